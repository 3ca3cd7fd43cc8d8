//! Configuration for the machines of another hypervisor: libvirt's domains and networks, QEMU's command lines, and the virtual systems
//! of an OVF become HCL.
//!
//! ```text
//!  XML ───────────▶ domain, network ─▶ configuration ─▶ HCL, and notes on what berth cannot express
//!  command line ──▶ (xml, qemu, ovf)   (names, origin)
//! ```
//!
//! Pure, except that the caller reads files. All are foreign: their size is limited, XML cannot define entities, and nothing in
//! them reaches the configuration but as a literal or a comment.

mod configuration;
mod domain;
mod guest;
mod names;
mod network;
mod origin;
pub mod ovf;
pub mod qemu;
mod rest;
mod shell;
mod xml;

#[cfg(test)]
mod tests;

pub use configuration::{Configuration, DiskFiles, DiskReader, ImageFile, Unread, configuration};
pub use domain::{Cdrom, Disk, DiskSource, Domain, Interface};
pub use guest::GuestSystem;
pub use network::Network;
pub use origin::Origin;
pub use shell::ShellError;
pub use xml::MAX_XML;

/// What an XML document describes.
#[derive(Debug)]
pub enum Described {
    /// `virsh dumpxml`
    Domain(Box<Domain>),
    /// `virsh net-dumpxml`
    Network(Network),
}

/// Why a document is not imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// Larger than any description, as a whole or in one element.
    #[error(
        "it has more than {MAX_XML} bytes, or hundreds of namespaces or of attributes in an element, as no description of a domain has"
    )]
    TooLarge,
    /// Not well-formed, or with a DTD or too many elements.
    #[error("it is not XML of libvirt: {0}")]
    Xml(roxmltree::Error),
    /// Another document.
    #[error(
        "it describes a <{0}>, and a <domain> (virsh dumpxml) or a <network> (virsh net-dumpxml) can be imported"
    )]
    Root(String),
    /// An element that every description has is absent or unreadable.
    #[error("it has no <{0}>, or one that cannot be read")]
    Missing(&'static str),
    /// A container, or a guest of another hypervisor.
    #[error("its domain is one of {0}, and only those of QEMU (kvm, qemu) can be imported")]
    Type(String),
}

impl From<xml::XmlError> for ImportError {
    fn from(error: xml::XmlError) -> Self {
        match error {
            xml::XmlError::TooLarge => Self::TooLarge,
            xml::XmlError::Malformed(error) => Self::Xml(error),
        }
    }
}

/// Reads a document.
///
/// # Errors
/// When it describes neither a QEMU domain nor a network.
pub fn read(text: &str) -> Result<Described, ImportError> {
    let document = xml::parse(text)?;
    let root = document.root_element();
    match root.tag_name().name() {
        "domain" => Ok(Described::Domain(Box::new(domain::read(root)?))),
        "network" => Ok(Described::Network(network::read(root)?)),
        other => Err(ImportError::Root(other.chars().take(40).collect())),
    }
}
