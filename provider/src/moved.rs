//! Resources of other providers that a `moved` block hands to berth: their attributes, as far as berth has them too.
//!
//! Pure. A state of unknown shape gives fewer attributes, and no error: a move changes the record of Terraform only.

mod json;
mod libvirt;
mod proxmox;

use berth_api::{Firmware, Quantity};
use serde_json::Value as Json;
use tfplugin6::Value;

/// A resource of another provider in berth's attributes.
#[derive(Debug, Default, PartialEq)]
pub struct Source {
    /// Its name, if an object of berth can have it.
    pub name: Option<String>,
    /// Attributes of berth's resource.
    pub attributes: Vec<(&'static str, Value)>,
    /// Values that belong to other objects of berth.
    pub notes: Vec<String>,
    /// Attributes that have a value and no counterpart.
    pub left_out: Vec<String>,
}

/// The types that each type takes over.
const TYPES: [(&str, &[&str]); 2] = [
    ("berth_vm", &["libvirt_domain", "proxmox_virtual_environment_vm"]),
    ("berth_disk", &["libvirt_volume"]),
];

/// The types whose resources can become one of this type.
#[must_use]
pub fn sources_of(target: &str) -> &'static [&'static str] {
    TYPES.iter().find(|(name, _)| *name == target).map_or(&[], |(_, sources)| sources)
}

/// Reads the state of a resource. None if the type is none of [`sources_of`].
#[must_use]
pub fn read(source_type: &str, state: &Json) -> Option<Source> {
    match source_type {
        "libvirt_domain" => Some(libvirt::domain(state)),
        "libvirt_volume" => Some(libvirt::volume(state)),
        "proxmox_virtual_environment_vm" => Some(proxmox::vm(state)),
        _ => None,
    }
}

/// The size that a VM has on its own elsewhere and that a class holds in berth.
#[derive(Debug, Default)]
struct Size {
    cpus: Option<u64>,
    memory: Option<u64>,
    firmware: Firmware,
}

impl Size {
    /// The class that a VM of this size needs.
    fn note(&self) -> String {
        let mut arguments = Vec::new();
        arguments.extend(self.cpus.map(|cpus| format!("cpus = {cpus}")));
        arguments.extend(self.memory.map(|bytes| format!("memory = \"{}\"", Quantity::from_bytes(bytes).0)));
        arguments.push(format!("firmware = \"{}\"", self.firmware.as_str()));
        format!("The VM's size is that of a berth_vm_class with {}.", arguments.join(", "))
    }
}

/// The note on the content of disks.
const DATA: &str = "No data is copied: make a berth_image of each disk's file, and the berth_disk from that.";
