//! The disks and the network cards of a virtual system, and notes on its other devices.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::vm::{DiskBus, NicModel};
use roxmltree::Node;

use super::items::{kind, name_of, number};
use super::package::Package;
use super::{OvfError, short};
use crate::import::configuration::DISKS;
use crate::import::domain::{Disk, Domain, Interface};
use crate::import::xml::text;

/// The resource types of controllers.
const IDE: u32 = 5;
const SCSI: u32 = 6;
const SATA: u32 = 20;

/// The most disks of a VM on SATA.
const SATA_DISKS: usize = 6;

/// The most networks in a note: a VM has at most ten interfaces.
const SHOWN_NETWORKS: usize = 10;

/// The controller of a disk.
#[derive(Clone, Debug)]
struct Controller {
    /// The first item of its kind, its number among those, and its own item: not all have a number.
    place: (usize, u32, usize),
    bus: DiskBus,
    note: Option<String>,
}

/// Adds the devices of the items.
pub(super) fn add(
    domain: &mut Domain,
    items: &[Node<'_, '_>],
    is_windows: bool,
    package: &mut Package<'_, '_>,
) -> Result<(), OvfError> {
    let controllers = controllers(items, is_windows);
    let (bus, note) = bus(SCSI, "not declared", is_windows);
    let undeclared = Controller { place: (usize::MAX, u32::MAX, usize::MAX), bus, note };
    let mut disks = Vec::new();
    let mut networks = BTreeSet::new();
    // Last: there may be many.
    let mut others = Vec::new();
    for (index, item) in items.iter().copied().enumerate() {
        match kind(item) {
            Some(10) => {
                networks.extend(add_interface(domain, item, is_windows));
            }
            Some(17 | 31) => {
                let controller = text(item, &["Parent"]).and_then(|parent| controllers.get(parent));
                let controller = controller.unwrap_or(&undeclared);
                let slot = number(item, "AddressOnParent");
                disks.push(((controller.place, slot, index), item, controller));
            }
            of => others.extend(other_device(item, of)),
        }
    }
    disks.sort_by_key(|(place, ..)| *place);
    for (_, item, controller) in disks {
        add_disk(domain, item, controller, package)?;
    }
    if !networks.is_empty() {
        domain.notes.push(format!(
            "its network ({}) is one of the other hypervisor; its interfaces are on the Network default, unless you set network",
            networks.into_iter().take(SHOWN_NETWORKS).collect::<Vec<String>>().join(", ")
        ));
    }
    domain.notes.append(&mut others);
    Ok(())
}

/// The controllers by the ids of their items.
fn controllers<'a>(items: &[Node<'a, '_>], is_windows: bool) -> BTreeMap<&'a str, Controller> {
    let mut found = BTreeMap::new();
    let mut firsts: BTreeMap<(u32, bool), usize> = BTreeMap::new();
    for (index, item) in items.iter().copied().enumerate() {
        let Some(of @ (IDE | SCSI | SATA)) = kind(item) else { continue };
        let Some(instance) = text(item, &["InstanceID"]) else { continue };
        let model = text(item, &["ResourceSubType"]).unwrap_or_default();
        let first = *firsts.entry((of, is_nvme(model))).or_insert(index);
        let (bus, note) = bus(of, model, is_windows);
        found.insert(instance, Controller { place: (first, number(item, "Address"), index), bus, note });
    }
    found
}

/// Whether it is a controller for NVMe, which has the resource type of one for SATA.
fn is_nvme(model: &str) -> bool {
    model.to_ascii_lowercase().contains("nvme")
}

/// The bus of the disks on a controller, and the note on it.
fn bus(of: u32, model: &str, is_windows: bool) -> (DiskBus, Option<String>) {
    if of == IDE {
        return (DiskBus::Sata, Some("its controller is IDE; in berth it is SATA".to_owned()));
    }
    if of == SATA && !is_nvme(model) {
        return (DiskBus::Sata, None);
    }
    if model.to_ascii_lowercase().contains("virtio") {
        return (DiskBus::VirtioScsi, None);
    }
    let model = if model.is_empty() { "SCSI".to_owned() } else { short(model) };
    if is_windows {
        let note = format!("its controller is {model}; in berth it is SATA, for which Windows has a driver");
        return (DiskBus::Sata, Some(note));
    }
    let note = format!(
        "its controller is {model}; in berth it is virtio-scsi: a guest without a driver for it needs bus = \"sata\""
    );
    (DiskBus::VirtioScsi, Some(note))
}

fn add_disk(
    domain: &mut Domain,
    item: Node<'_, '_>,
    controller: &Controller,
    package: &mut Package<'_, '_>,
) -> Result<(), OvfError> {
    let target = format!("disk{}", domain.disks.len() + 1);
    let Some(resource) = text(item, &["HostResource"]) else {
        domain.notes.push(format!("{} has no data, and is left out", name_of(item)));
        return Ok(());
    };
    // Its file is not extracted either.
    if domain.disks.len() == DISKS {
        let name = name_of(item);
        domain.notes.push(format!("{name}: a VM of berth has at most {DISKS} disks; it is left out"));
        return Ok(());
    }
    let path = resource.strip_prefix("ovf:").unwrap_or(resource).trim_start_matches('/');
    let id = path.strip_prefix("disk/").ok_or_else(|| OvfError::Disk {
        disk: name_of(item),
        why: format!("has the resource {:?}, and a disk has ovf:/disk/ID", short(resource)),
    })?;
    let data = package.data(id)?;
    let mut bus = controller.bus;
    let of_sata = domain.disks.iter().filter(|disk| disk.bus == DiskBus::Sata).count();
    if bus == DiskBus::Sata && of_sata == SATA_DISKS {
        bus = DiskBus::VirtioScsi;
        domain.notes.push(format!(
            "{target}: a VM of berth has at most {SATA_DISKS} disks on SATA; it is on virtio-scsi, for which Windows needs a driver"
        ));
    } else if let Some(note) = &controller.note {
        domain.notes.push(format!("{target}: {note}"));
    }
    domain.disks.push(Disk {
        target,
        source: data.source,
        format: data.format.to_owned(),
        boot_order: None,
        bus,
    });
    Ok(())
}

/// Adds an interface. Returns the network that it is on.
fn add_interface(domain: &mut Domain, item: Node<'_, '_>, is_windows: bool) -> Option<String> {
    let name = name_of(item);
    let declared = text(item, &["ResourceSubType"]).unwrap_or_default();
    let lower = declared.to_ascii_lowercase();
    let model = if lower.contains("e1000e") {
        NicModel::E1000e
    } else if lower.contains("e1000") {
        NicModel::E1000
    } else if lower.starts_with("virtio") {
        NicModel::Virtio
    } else {
        // Windows has a driver for this card, and none for virtio.
        let model = if is_windows { NicModel::E1000e } else { NicModel::Virtio };
        let was = if declared.is_empty() { "not declared".to_owned() } else { short(declared) };
        domain.notes.push(format!(
            "{name}: its model is {was}; in berth it is {}, for which the guest needs a driver",
            model.as_str()
        ));
        model
    };
    if let Some(address) = text(item, &["Address"]) {
        domain.notes.push(format!(
            "{name}: its MAC address {} would be that of every copy of the appliance; in berth it has another",
            short(address)
        ));
    }
    domain.interfaces.push(Interface { mac: None, network: None, model });
    text(item, &["Connection"]).map(short)
}

/// The note on a device that is not taken over.
fn other_device(item: Node<'_, '_>, of: Option<u32>) -> Option<String> {
    let model = text(item, &["ResourceSubType"]).unwrap_or_default().to_ascii_lowercase();
    let name = name_of(item);
    let note = match of {
        // CPUs, memory, controllers, serial ports, and the screen.
        Some(3 | 4 | 5 | 6 | 20 | 21 | 24) => return None,
        // An interface to VMware's host.
        Some(1) if model.contains("vmci") => return None,
        Some(1) if model.contains("tpm") => {
            "it has a TPM, whose memory is not taken over: tpm = true gives it a new one".to_owned()
        }
        Some(14) => format!("it has a floppy drive ({name}), which berth does not have"),
        Some(15 | 16) => match text(item, &["HostResource"]) {
            Some(medium) => format!(
                "it has a CD-ROM drive ({name}) with the medium {}, which are not taken over: see cdroms of berth_vm",
                short(medium)
            ),
            None => {
                format!("it has a CD-ROM drive ({name}), which is not taken over: see cdroms of berth_vm")
            }
        },
        Some(22) => format!("it has a parallel port ({name}), which berth does not have"),
        Some(23) => format!("it has a USB controller ({name}), which berth does not have"),
        Some(35) => format!("it has a sound card ({name}), which berth does not have"),
        Some(of) => format!("it has a device ({name}, resource type {of}), which is not taken over"),
        None => format!("it has a device ({name}) without a resource type, which is not taken over"),
    };
    Some(note)
}
