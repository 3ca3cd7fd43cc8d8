//! Appliances: the virtual systems of an OVF descriptor become [`Domain`]s, and the files of their disks are named.
//!
//! ```text
//!  tar ─▶ archive ─▶ descriptor ─▶ package (files, disks) ─▶ system (items, units) ─▶ devices ─▶ Domain
//!                 ╲▶ manifest
//! ```
//!
//! All of it is foreign: sizes are limited, a file has a name of ours, and the content of a disk is not looked at.

mod archive;
mod devices;
mod items;
mod manifest;
mod package;
mod system;
mod units;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use roxmltree::Node;

use super::domain::{Disk, DiskSource, Domain};
use super::xml::{self, MAX_XML, XmlError, all, first, local};
use package::Package;

pub use archive::{ArchiveError, Member, members};
pub use manifest::{ExpectedDigest, MAX_MANIFEST, Manifest, ManifestError, hex, read as read_manifest};
pub use package::PackedFile;

/// The most virtual systems of a descriptor.
const MAX_SYSTEMS: usize = 64;
/// The most notes on an appliance or a system of it.
const MAX_NOTES: usize = 60;
/// The longest text of a descriptor in a message, in characters.
const SHORT: usize = 80;
/// The elements of a descriptor that are read, or without an effect on a VM.
const KNOWN: [&str; 9] = [
    "References",
    "DiskSection",
    "NetworkSection",
    "DeploymentOptionSection",
    "VirtualSystem",
    "VirtualSystemCollection",
    "Strings",
    "AnnotationSection",
    "Info",
];

/// The virtual systems of a descriptor.
#[derive(Debug)]
pub struct Appliance {
    /// Each with its disks, whose files have the names of `files`.
    pub domains: Vec<Domain>,
    /// The files of all disks, each once.
    pub files: Vec<PackedFile>,
    /// The parts that are not taken over.
    pub notes: Vec<String>,
}

/// Why a descriptor is not imported.
#[derive(Debug, thiserror::Error)]
pub enum OvfError {
    /// Larger than any descriptor, as a whole or in one element.
    #[error(
        "it has more than {MAX_XML} bytes, or hundreds of namespaces or of attributes in an element, as no descriptor has"
    )]
    TooLarge,
    /// Not well-formed, or with a DTD or too many elements.
    #[error("it is not XML of an OVF: {0}")]
    Xml(roxmltree::Error),
    /// Another document.
    #[error("it describes a <{0}>, and an OVF descriptor is an <Envelope>")]
    Root(String),
    /// A descriptor of the draft that precedes the standard.
    #[error("it is OVF 0.9: convert it with ovftool, or import it into VirtualBox and export it as OVF 1.0")]
    Preliminary,
    /// Nothing to import.
    #[error("it has no VirtualSystem")]
    NoSystem,
    /// More than any appliance has.
    #[error("it has {0} virtual systems, and at most {MAX_SYSTEMS} are imported")]
    TooManySystems(usize),
    /// Which of both is meant cannot be known.
    #[error("it has two {kind} with the id {id:?}")]
    Duplicate {
        /// Files or disks.
        kind: &'static str,
        /// The id.
        id: String,
    },
    /// A system without hardware, or with CPUs or memory that cannot be read.
    #[error("its virtual system {system:?} {why}")]
    System {
        /// The name of the system.
        system: String,
        /// The reason.
        why: String,
    },
    /// A disk whose data cannot be had.
    #[error("its disk {disk:?} {why}")]
    Disk {
        /// The id of the disk.
        disk: String,
        /// The reason.
        why: String,
    },
}

impl From<XmlError> for OvfError {
    fn from(error: XmlError) -> Self {
        match error {
            XmlError::TooLarge => Self::TooLarge,
            XmlError::Malformed(error) => Self::Xml(error),
        }
    }
}

/// Reads a descriptor.
///
/// # Errors
/// When it is none, or a disk or a size in it cannot be had.
pub fn read(descriptor: &str) -> Result<Appliance, OvfError> {
    let document = xml::parse(descriptor)?;
    let root = document.root_element();
    if root.tag_name().name() != "Envelope" {
        return Err(OvfError::Root(short(root.tag_name().name())));
    }
    if first(root, &["Content"]).is_some() {
        return Err(OvfError::Preliminary);
    }
    let mut package = Package::read(root)?;
    let is_system = |node: &Node<'_, '_>| node.is_element() && node.tag_name().name() == "VirtualSystem";
    let systems: Vec<Node<'_, '_>> = root.descendants().filter(is_system).collect();
    match systems.len() {
        0 => return Err(OvfError::NoSystem),
        count if count > MAX_SYSTEMS => return Err(OvfError::TooManySystems(count)),
        _ => {}
    }
    let mut notes = notes(root);
    let chosen = deployment(root, &mut notes);
    let mut domains = Vec::new();
    for node in systems {
        let mut domain = system::read(node, chosen, &mut package)?;
        if converted_files(&domain) > 1 {
            domain.notes.insert(0, SEVERAL_FILES.to_owned());
        }
        limit(&mut domain.notes);
        domains.push(domain);
    }
    limit(&mut notes);
    Ok(Appliance { domains, files: package.into_files(), notes })
}

/// Notes on sections that are of all systems.
fn notes(root: Node<'_, '_>) -> Vec<String> {
    let mut notes = Vec::new();
    for collection in all(root, &["VirtualSystemCollection"]).into_iter().chain([root]) {
        for section in collection.children().filter(Node::is_element) {
            match section.tag_name().name() {
                "EulaSection" => notes.push(LICENCE.to_owned()),
                "ProductSection" => notes.extend(system::properties(section)),
                "StartupSection" => {
                    notes.push(
                        "it has an order in which its systems start, which is not taken over".to_owned(),
                    );
                }
                name if KNOWN.contains(&name) || name == "Name" => {}
                name => notes.push(unknown_section(name)),
            }
        }
    }
    notes
}

/// The configuration of the appliance that is the default: its systems have other sizes in others.
fn deployment<'a>(root: Node<'a, '_>, notes: &mut Vec<String>) -> Option<&'a str> {
    let configurations = all(root, &["DeploymentOptionSection", "Configuration"]);
    let is_default = |node: &&Node<'_, '_>| matches!(local(**node, "default"), Some("true" | "1"));
    let chosen = configurations.iter().find(is_default).or(configurations.first())?;
    let id = local(*chosen, "id")?;
    if configurations.len() > 1 {
        let ids: Vec<String> =
            configurations.iter().filter_map(|node| local(*node, "id")).map(short).take(10).collect();
        notes.push(format!("of its configurations {}, {} is taken", ids.join(", "), short(id)));
    }
    Some(id)
}

/// The note on a licence.
const LICENCE: &str = "it has a licence agreement (EulaSection): read it before you use the appliance";

/// The note on images that each stay on the host that they are uploaded to.
const SEVERAL_FILES: &str = "its images stay on the hosts that convert them: on a site with several hosts it is not placed \
                             (DiskOnOtherHost) if these are not the same, unless the files are converted to qcow2 first";

/// The number of files that hosts convert or decompress for the disks of a system.
fn converted_files(domain: &Domain) -> usize {
    let file = |disk: &Disk| match &disk.source {
        DiskSource::Upload { file, compression, .. } if compression.is_some() || disk.format != "qcow2" => {
            Some(file.clone())
        }
        _ => None,
    };
    domain.disks.iter().filter_map(file).collect::<BTreeSet<String>>().len()
}

fn unknown_section(name: &str) -> String {
    format!("it has a {}, which is not taken over", short(name))
}

fn limit(notes: &mut Vec<String>) {
    let count = notes.len();
    if count > MAX_NOTES {
        notes.truncate(MAX_NOTES);
        notes.push(format!("{} further parts are not taken over", count - MAX_NOTES));
    }
}

/// The start of a text of the descriptor.
fn short(text: &str) -> String {
    text.chars().take(SHORT).collect()
}
