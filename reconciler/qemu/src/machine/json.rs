//! The block graph and network cards in QEMU's JSON. The command line and hot plug both use it, so that a device is the same in
//! both cases.

use std::path::Path;

use serde_json::{Value, json};

use super::{
    Backing, Bus, Cache, CdromSpec, DISK_SLOTS, DISK_THREAD, DiskSpec, FIRST_CDROM_TARGET, Format, Medium,
    NicModel, NicSpec, RbdImage, SCSI_CONTROLLER, SLOT_FIRST_NIC, backend_of, is_block_device, key_id,
    port_name, rbd, slot,
};

/// What follows the disk's id in the name of a node that the chain below its file begins with.
pub(crate) const BELOW: &str = ".below-";

/// Builds the `blockdev` trees of a disk, in the order in which they are added: its backing chain, if it has one, and a format node
/// named like the disk, with its file node inside.
///
/// The chain is a tree of its own: QEMU 7.2 aborts if `blockdev-reopen` replaces a chain that is inline and that an I/O thread uses.
/// `locking: on` fails on a file system without locks instead of continuing without them: two machines on one disk is the one mistake
/// that cannot be repaired.
pub(crate) fn blockdevs(disk: &DiskSpec) -> Vec<Value> {
    let mut top = format_node(disk);
    let Some(backing) = disk.backing.as_ref().filter(|_| disk.format.is_qcow2()) else { return vec![top] };
    let name = format!("{}{BELOW}0", disk.id);
    top["backing"] = json!(name);
    vec![chain_blockdev(&disk.id, backing, &name), top]
}

/// Builds the format node of a disk without a backing chain.
fn format_node(disk: &DiskSpec) -> Value {
    let discard = if disk.keeps_space { "ignore" } else { "unmap" };
    let mut node = json!({
        "driver": disk.format.driver(),
        "node-name": disk.id,
        "read-only": disk.read_only,
        "cache": cache(disk.cache),
        "discard": discard,
        "file": file(&disk.file, disk.read_only, disk.cache, discard),
    });
    // Encrypted, zeros are data as any other.
    if !disk.read_only && !disk.keeps_space && disk.format != Format::Luks {
        // Zeros take no space, also where the guest writes them.
        node["detect-zeroes"] = json!("unmap");
    }
    if disk.format.is_qcow2() {
        // Explicit, because QEMU would otherwise open the file named in the header.
        node["backing"] = Value::Null;
    }
    name_key(&mut node, disk.format, &key_id(&disk.id));
    node
}

/// Builds the tree of an overlay that a running machine continues in: QEMU puts the node of its present file below.
pub(crate) fn overlay_blockdev(disk: &DiskSpec, name: &str) -> Value {
    let mut node = format_node(disk);
    node["node-name"] = json!(name);
    node
}

/// Builds the options with which a running disk gets another chain: those of its node as it is open, with its file node as it is.
pub(crate) fn reopened_blockdev(disk: &DiskSpec, name: &str, file: &str, backing: &str) -> Value {
    let mut node = overlay_blockdev(disk, name);
    node["file"] = json!(file);
    node["backing"] = json!(backing);
    node
}

/// Builds the tree of a chain below a disk, as a node of this name.
pub(crate) fn chain_blockdev(disk: &str, backing: &Backing, name: &str) -> Value {
    let mut node = chain(backing, &key_id(disk));
    node["node-name"] = json!(name);
    node
}

/// Names the object with the key of an encrypted file or image.
fn name_key(node: &mut Value, format: Format, key: &str) {
    match format {
        Format::EncryptedQcow2 => node["encrypt"] = json!({"format": "luks", "key-secret": key}),
        Format::Luks => node["key-secret"] = json!(key),
        Format::Raw | Format::Qcow2 | Format::Iso => {}
    }
}

fn chain(backing: &Backing, key: &str) -> Value {
    let mut node = json!({
        "driver": backing.format.driver(),
        "read-only": true,
        "file": file(&backing.file, true, Cache::Writeback, "unmap"),
    });
    if backing.format.is_qcow2() {
        node["backing"] = backing.backing.as_deref().map_or(Value::Null, |below| chain(below, key));
    }
    name_key(&mut node, backing.format, key);
    node
}

fn file(path: &Path, read_only: bool, mode: Cache, discard: &str) -> Value {
    if let Some(image) = RbdImage::of(path) {
        return rbd::file_node(&image, read_only, mode, discard);
    }
    json!({
        "driver": if is_block_device(path) { "host_device" } else { "file" },
        "filename": path.to_string_lossy(),
        "read-only": read_only,
        // Without a writer it is open for reading: after a snapshot the file below is closed for writing at once.
        "auto-read-only": !read_only,
        "aio": mode.aio(),
        "cache": cache(mode),
        "discard": discard,
        "locking": "on",
    })
}

fn cache(mode: Cache) -> Value {
    json!({"direct": mode.is_direct(), "no-flush": false})
}

/// Builds the arguments of `-device` for a disk; on the virtio-scsi controller also those of `device_add`.
pub(crate) fn disk_device(disk: &DiskSpec) -> Value {
    let number = disk.target.unwrap_or_default();
    let mut device = json!({
        "driver": disk.bus.driver(),
        "id": disk.id,
        "bus": match disk.bus {
            Bus::VirtioScsi => format!("{SCSI_CONTROLLER}.0"),
            Bus::VirtioBlk => "pcie.0".to_owned(),
            Bus::Sata => format!("ide.{number}"),
        },
        "drive": disk.id,
        "serial": disk.serial,
    });
    if disk.bus == Bus::VirtioScsi {
        device["device_id"] = json!(disk.serial);
    }
    // An I/O error is reported to the guest, rather than pausing it unnoticed; a full host disk pauses it until there is
    // space again.
    device["rerror"] = json!("report");
    device["werror"] = json!("enospc");
    match disk.bus {
        Bus::VirtioScsi => {
            if let Some(target) = disk.target {
                device["channel"] = json!(0);
                device["scsi-id"] = json!(target);
                device["lun"] = json!(0);
            }
        }
        Bus::VirtioBlk => {
            let [first, second] = DISK_SLOTS.map(slot);
            let slot = if number < 8 { first } else { second };
            device["addr"] = json!(format!("{slot}.{:#x}", number % 8));
            device["multifunction"] = json!(true);
            device["iothread"] = json!(DISK_THREAD);
        }
        Bus::Sata => {}
    }
    if disk.shared {
        device["share-rw"] = json!(true);
    }
    if let Some(wwn) = disk.wwn {
        device["wwn"] = json!(wwn);
    }
    device
}

/// Builds the `blockdev` tree of a medium.
pub(crate) fn medium_blockdev(slot: u8, medium: &Medium) -> Value {
    json!({
        "driver": Format::Iso.driver(),
        "node-name": Medium::node(slot, &medium.digest),
        "read-only": true,
        "file": file(&medium.file, true, Cache::Writeback, "unmap"),
    })
}

/// Builds the arguments of `-device` for a CD-ROM drive, with or without a medium.
pub(crate) fn scsi_cdrom(cdrom: &CdromSpec, boot_index: Option<u8>) -> Value {
    let slot = cdrom.slot;
    let mut device = json!({
        "driver": "scsi-cd",
        "id": CdromSpec::id(slot),
        "bus": format!("{SCSI_CONTROLLER}.0"),
        "channel": 0,
        "scsi-id": FIRST_CDROM_TARGET + slot,
        "lun": 0,
        "serial": cdrom.serial,
        "device_id": cdrom.serial,
    });
    if let Some(index) = boot_index {
        device["bootindex"] = json!(index);
    }
    if let Some(medium) = &cdrom.medium {
        device["drive"] = json!(Medium::node(slot, &medium.digest));
    }
    device
}

/// The device of a network card, at the start of a machine or when it is plugged in.
pub(crate) fn nic_device(nic: &NicSpec) -> Value {
    let (bus, addr) = match nic.port {
        Some(port) => (port_name(port), slot(0)),
        None => ("pcie.0".to_owned(), slot(SLOT_FIRST_NIC + nic.slot)),
    };
    let mut device = json!({
        "driver": nic.model.driver(),
        "id": nic.id,
        "netdev": backend_of(&nic.id),
        "mac": nic.mac,
        // No ROM: it is for booting from the network, and its file may not be installed.
        "romfile": "",
        "bus": bus,
        "addr": addr,
    });
    // The other models have no way to tell the guest: there it learns the MTU by DHCP only.
    if let Some(mtu) = nic.mtu.filter(|_| nic.model == NicModel::Virtio) {
        device["host_mtu"] = json!(mtu);
    }
    if nic.queues > 1 {
        device["mq"] = json!(true);
        // One for each queue, one for the control queue and one for changes of the configuration.
        device["vectors"] = json!(2 * u16::from(nic.queues) + 2);
    }
    device
}
