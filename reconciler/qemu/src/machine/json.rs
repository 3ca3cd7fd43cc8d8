//! The block graph in QEMU's JSON, used by the command line and by hot plug alike, so that a disk is the same
//! disk however it came in.

use std::path::Path;

use serde_json::{Value, json};

use super::{Cache, DiskSpec, Format, SCSI_CONTROLLER};

/// One `blockdev` tree: format node named like the disk, its file node and its backing chain inside it.
///
/// Children are given inline, so one `blockdev-del` of the top removes all of them.
/// `locking: on` refuses a file system without locks instead of going on without: two machines on one disk
/// is the one mistake that cannot be repaired.
pub(crate) fn blockdev(disk: &DiskSpec) -> Value {
    let mut node = json!({
        "driver": disk.format.driver(),
        "node-name": disk.id,
        "read-only": disk.read_only,
        "cache": cache(disk.cache),
        "discard": "unmap",
        "file": file(&disk.file, disk.read_only, disk.cache),
    });
    if disk.format == Format::Qcow2 {
        // Explicit, because QEMU would otherwise open whatever file the header names.
        node["backing"] = match &disk.backing {
            None => Value::Null,
            Some(backing) => json!({
                "driver": backing.format.driver(),
                "read-only": true,
                "file": file(&backing.file, true, disk.cache),
            }),
        };
        if let Some(backing) = &disk.backing
            && backing.format == Format::Qcow2
        {
            node["backing"]["backing"] = Value::Null;
        }
    }
    node
}

fn file(path: &Path, read_only: bool, mode: Cache) -> Value {
    json!({
        "driver": "file",
        "filename": path.to_string_lossy(),
        "read-only": read_only,
        "auto-read-only": false,
        "aio": match mode { Cache::Writeback => "threads", Cache::Direct => "native" },
        "cache": cache(mode),
        "discard": "unmap",
        "locking": "on",
    })
}

fn cache(mode: Cache) -> Value {
    json!({"direct": mode == Cache::Direct, "no-flush": false})
}

/// The arguments of `device_add` (or `-device`) for a disk on the controller.
pub(crate) fn scsi_disk(disk: &DiskSpec) -> Value {
    let mut device = json!({
        "driver": "scsi-hd",
        "id": disk.id,
        "bus": format!("{SCSI_CONTROLLER}.0"),
        "drive": disk.id,
        "serial": disk.serial,
        "device_id": disk.serial,
        // A guest that sees an I/O error is told, rather than paused with nobody looking; a full host disk
        // pauses it until there is room again.
        "rerror": "report",
        "werror": "enospc",
    });
    if let Some(target) = disk.target {
        device["channel"] = json!(0);
        device["scsi-id"] = json!(target);
        device["lun"] = json!(0);
    }
    if let Some(wwn) = disk.wwn {
        device["wwn"] = json!(wwn);
    }
    if disk.boot {
        device["bootindex"] = json!(1);
    }
    device
}
