//! Disks of a running machine: observe, plug, resize, continue in an overlay, unplug. CD-ROM drives and
//! network cards are observed with them.
//!
//! A disk consists of two QEMU objects: a block node (the file, opened and locked) and a `scsi-hd` device (seen by the
//! guest), both named by [`DiskSpec::id`]. Every function here first reads the current state and then does the missing
//! steps, so each can be repeated from the start after a crash at any point, or after a timeout.
//!
//! ```text
//!  absent ──blockdev-add──▶ node only ──device_add──▶ plugged
//!     ▲                        │  ▲                      │
//!     └──────blockdev-del──────┘  └──DEVICE_DELETED──────┘ device_del
//! ```
//!
//! The chain of files below the disk's own begins with the node `ID.below-0`; once it was replaced, with `ID.below-1`, then
//! `ID.below-2`. After a snapshot the device is on a node of another name: `ID.1`, then `ID.2`, above the first one.

mod chain;
mod key;
mod left;
mod limits;
mod mirror;
mod names;
mod observe;
mod stats;

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;

use crate::devices;
pub use crate::devices::Unplugged;
use crate::machine::{Bus, DiskSpec, SpecError, blockdevs, disk_device, overlay_blockdev};
use crate::qmp::{Qmp, QmpError};
pub use chain::shorten_chain;
use chain::{is_open, remove_nodes};
pub use key::add_key;
pub use left::{close_unused, left_open};
pub use limits::IoLimits;
pub use mirror::{Mirror, begin_mirror, cancel_mirror, end_mirror, mirrors, switch_mirror};
use names::place_in_chain;
pub use observe::{Devices, Observation, cdroms, disks, free_target};
use observe::{disk_devices, node, nodes};
pub use stats::{DURATION_LIMITS, DiskUse, OperationUse, disk_use};

/// A disk as QEMU reports it. Always queried, never assumed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedDisk {
    /// The device's id, and the id of the [`DiskSpec`] it came from.
    pub id: String,
    /// Its block node; None for a device without one.
    pub node: Option<String>,
    pub serial: String,
    pub file: Option<PathBuf>,
    /// The size that the guest sees, in bytes.
    pub size: u64,
    pub read_only: bool,
    pub bus: Bus,
    /// Only on the virtio-scsi controller.
    pub target: Option<u8>,
    pub limits: IoLimits,
    /// Whether its file bypasses the host's page cache.
    pub is_direct: bool,
    /// The number of files that are open below its file, of those that [`shorten_chain`] can replace.
    pub files_below: u64,
    /// Whether the data in its file is encrypted.
    pub is_encrypted: bool,
    /// QEMU's `io-status` is not `ok`; the machine may be paused because of it.
    pub io_error: bool,
}

/// A CD-ROM drive as QEMU reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedCdrom {
    pub slot: u8,
    /// The block node of the medium: [`Medium::node`](crate::machine::Medium::node). None: there is no medium.
    pub node: Option<String>,
    pub tray_open: bool,
    /// The guest uses the medium, and has locked the tray.
    pub locked: bool,
}

/// Why a disk could not be changed.
#[derive(Debug, thiserror::Error)]
pub enum BlockError {
    #[error(transparent)]
    Qmp(#[from] QmpError),
    #[error("the disk cannot be described to QEMU")]
    Spec(#[from] SpecError),
    #[error("{id} is already in the machine as something else: {detail}")]
    Conflict { id: String, detail: String },
    #[error("the machine has no disk {id}")]
    NoSuchDisk { id: String },
    #[error("disk {id} has {from} bytes and cannot shrink to {to}")]
    Shrink { id: String, from: u64, to: u64 },
    #[error("the image file is in use by another process: {desc}")]
    Locked { id: String, desc: String },
    #[error("disk {id} can be plugged in at the start of the machine only")]
    NotPluggable { id: String },
    #[error("all SCSI targets of the machine are taken")]
    Full,
    #[error("disk {id} continues in its new file already, and others do not: they are of different moments")]
    NotOneMoment { id: String },
    #[error("disk {id} is not mirrored to another file: {detail}")]
    Mirror { id: String, detail: String },
}

/// Ensures that the machine has this disk.
///
/// *Errors*: [`BlockError::Conflict`] when the id exists with another file or serial: it is not touched. When
/// `device_add` fails, its node is removed again, so that the file is not held needlessly, and so is the key of an encrypted disk that
/// is not open.
pub async fn plug(qmp: &Qmp, disk: &DiskSpec) -> Result<(), BlockError> {
    let plugged = open_and_add(qmp, disk).await;
    if plugged.is_err() && disk.format.is_encrypted() && matches!(is_open(qmp, &disk.id).await, Ok(false)) {
        // Best effort: a later call needs the key, and its disk is unplugged with it.
        let _ = key::remove(qmp, &disk.id).await;
    }
    plugged
}

async fn open_and_add(qmp: &Qmp, disk: &DiskSpec) -> Result<(), BlockError> {
    disk.validate()?;
    if disk.bus != Bus::VirtioScsi {
        return Err(BlockError::NotPluggable { id: disk.id.clone() });
    }
    if let Some(present) = disks(qmp).await?.into_iter().find(|d| d.id == disk.id) {
        return same_disk(disk, &present);
    }
    match node(qmp, &disk.id).await? {
        Some(open) if open.file.as_ref() == Some(&disk.file) => {}
        Some(open) if !open.file.as_deref().is_some_and(|file| is_former(file, &disk.file)) => {
            let detail = format!("node on {}", open.file.unwrap_or_default().display());
            return Err(BlockError::Conflict { id: disk.id.clone(), detail });
        }
        _ => {
            // An unplugged disk that had continued in another file left them.
            remove_nodes(qmp, &disk.id).await?;
            add_nodes(qmp, disk).await?;
        }
    }
    let Err(error) = qmp.execute("device_add", disk_device(disk)).await else { return Ok(()) };
    if let QmpError::Refused { .. } = error {
        // Best effort: a later call finds the node and continues from there.
        let _ = remove_nodes(qmp, &disk.id).await;
    }
    Err(error.into())
}

/// Opens the files of a disk.
async fn add_nodes(qmp: &Qmp, disk: &DiskSpec) -> Result<(), BlockError> {
    for node in blockdevs(disk) {
        let Err(error) = qmp.execute("blockdev-add", node).await else { continue };
        if let QmpError::Refused { .. } = error {
            // Best effort: a later call finds the nodes.
            let _ = remove_nodes(qmp, &disk.id).await;
        }
        return Err(locked(&disk.id, error));
    }
    Ok(())
}

fn same_disk(wanted: &DiskSpec, present: &ObservedDisk) -> Result<(), BlockError> {
    let file = present.file.as_ref().is_none_or(|f| *f == wanted.file);
    if file && present.serial == wanted.serial && present.node.is_some() {
        return Ok(());
    }
    let file = present.file.clone().unwrap_or_default();
    let detail = format!("serial {}, file {}", present.serial, file.display());
    Err(BlockError::Conflict { id: wanted.id.clone(), detail })
}

fn locked(id: &str, error: QmpError) -> BlockError {
    match error {
        QmpError::Refused { desc, .. } if desc.contains("lock") => {
            BlockError::Locked { id: id.to_owned(), desc }
        }
        other => other.into(),
    }
}

/// Ensures that the machine does not have this disk. Waits at most `limit` for the guest.
///
/// Neither flushes nor checks the guest's file systems: callers query the guest agent first.
pub async fn unplug(qmp: &Qmp, id: &str, limit: Duration) -> Result<Unplugged, BlockError> {
    let deadline = Instant::now() + limit;
    if !devices::remove(qmp, id, deadline).await? {
        return Ok(Unplugged::Waiting);
    }
    // QEMU drops the last reference to the device shortly after the event.
    while !remove_nodes(qmp, id).await? {
        if Instant::now() >= deadline {
            return Ok(Unplugged::Waiting);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    key::remove(qmp, id).await?;
    Ok(Unplugged::Released)
}

/// Whether both files are those of one volume.
fn is_former(file: &Path, now: &Path) -> bool {
    let stem = |path: &Path| path.file_name()?.to_str()?.split('.').next().map(str::to_owned);
    file != now && file.parent() == now.parent() && stem(file).is_some() && stem(file) == stem(now)
}

/// Grows a disk to at least `bytes`. The guest sees the new size at once.
///
/// *Errors*: [`BlockError::Shrink`] instead of truncating data (QEMU itself would do it).
pub async fn resize(qmp: &Qmp, id: &str, bytes: u64) -> Result<(), BlockError> {
    let (name, size) = match top(qmp, id).await? {
        Some(found) => found,
        // Plugged in without its device.
        None => match node(qmp, id).await? {
            Some(node) => (node.name, node.size),
            None => return Err(BlockError::NoSuchDisk { id: id.to_owned() }),
        },
    };
    if bytes < size {
        return Err(BlockError::Shrink { id: id.to_owned(), from: size, to: bytes });
    }
    if bytes > size {
        qmp.execute("block_resize", json!({"node-name": name, "size": bytes})).await?;
    }
    Ok(())
}

/// Returns the node that a disk's device writes to, and its size.
async fn top(qmp: &Qmp, id: &str) -> Result<Option<(String, u64)>, BlockError> {
    let found = disks(qmp).await?.into_iter().find(|disk| disk.id == id);
    Ok(found.and_then(|disk| Some((disk.node?, disk.size))))
}

/// A snapshot of an image of Ceph that a disk of the running machine is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageSnapshot {
    /// The id of the disk.
    pub disk: String,
    /// The name of the snapshot in Ceph.
    pub name: String,
}

/// Takes snapshots of disks of the running machine, all at one moment, in one transaction. The guest waits for a few milliseconds.
///
/// Disks continue in the files of `overlays`, empty overlays on their present files, which are not written any more after that; those that
/// are only read are left out. Of `images`, which are in Ceph, QEMU has snapshots taken, as it has their locks: each disk goes on in its
/// image. Does nothing without images if the disks continue in their overlays already. Returns whether it did something.
///
/// *Errors*: [`BlockError::NotOneMoment`] if some of the disks continue in their overlays already, and others do not or are in Ceph. Also if an
/// image has a snapshot of this name. Those that were taken in Ceph before an error may stay there.
pub async fn snapshot_disks(
    qmp: &Qmp,
    overlays: &[DiskSpec],
    images: &[ImageSnapshot],
) -> Result<bool, BlockError> {
    let present = disks(qmp).await?;
    let mut open = Vec::new();
    let mut done = None;
    for overlay in overlays {
        let disk = present.iter().find(|disk| disk.id == overlay.id);
        let disk = disk.ok_or_else(|| BlockError::NoSuchDisk { id: overlay.id.clone() })?;
        if disk.file.as_ref() == Some(&overlay.file) {
            done = Some(&overlay.id);
        } else if !disk.read_only {
            open.push((overlay, disk));
        }
    }
    match (done, open.is_empty() && images.is_empty()) {
        (_, true) => return Ok(false),
        (Some(id), false) => return Err(BlockError::NotOneMoment { id: id.clone() }),
        (None, false) => {}
    }
    let mut of_images = Vec::new();
    for ImageSnapshot { disk, name } in images {
        let node = present.iter().find(|present| present.id == *disk).and_then(|found| found.node.as_ref());
        let node = node.ok_or_else(|| BlockError::NoSuchDisk { id: disk.clone() })?;
        let data = json!({"device": node, "name": name});
        of_images.push(json!({"type": "blockdev-snapshot-internal-sync", "data": data}));
    }
    let mut actions = Vec::new();
    for (overlay, disk) in open {
        let below = disk.node.clone().ok_or_else(|| BlockError::NoSuchDisk { id: disk.id.clone() })?;
        let name = add_overlay(qmp, overlay, disk.size).await?;
        let data = json!({"node": below, "overlay": name});
        actions.push(json!({"type": "blockdev-snapshot", "data": data}));
    }
    // Last: after a failure before, there is nothing in Ceph to remove.
    actions.append(&mut of_images);
    qmp.execute("transaction", json!({"actions": actions})).await?;
    Ok(true)
}

/// Opens an overlay for a disk of the running machine, at least as large as the disk. Returns the name of its node.
async fn add_overlay(qmp: &Qmp, overlay: &DiskSpec, size: u64) -> Result<String, BlockError> {
    let chain: Vec<_> =
        nodes(qmp).await?.into_iter().filter(|n| place_in_chain(&n.name, &overlay.id).is_some()).collect();
    // An interrupted call left it.
    let added =
        chain.iter().find(|node| node.file.as_ref() == Some(&overlay.file)).map(|node| node.name.clone());
    let name = match added {
        Some(name) => name,
        None => {
            let last = chain.iter().filter_map(|node| place_in_chain(&node.name, &overlay.id)).max();
            let name = format!("{}.{}", overlay.id, last.map_or(1, |last| last + 1));
            let added = qmp.execute("blockdev-add", overlay_blockdev(overlay, &name)).await;
            added.map_err(|e| locked(&overlay.id, e))?;
            name
        }
    };
    // The disk may have grown since the overlay was created.
    if node(qmp, &name).await?.is_some_and(|added| added.size < size) {
        qmp.execute("block_resize", json!({"node-name": name, "size": size})).await?;
    }
    Ok(name)
}

/// Gives a disk these ceilings. Operations that are waiting for the former ones go on under the new ones.
pub async fn set_limits(qmp: &Qmp, id: &str, limits: &IoLimits) -> Result<(), BlockError> {
    let devices = disk_devices(qmp).await?;
    let bus = devices.iter().find(|(device, _)| device == id).map(|(_, bus)| *bus);
    let bus = bus.ok_or_else(|| BlockError::NoSuchDisk { id: id.to_owned() })?;
    let arguments = limits.arguments(&bus.backend(id));
    match qmp.execute("block_set_io_throttle", arguments).await {
        Ok(_) => Ok(()),
        Err(error) if error.is_device_not_found() => Err(BlockError::NoSuchDisk { id: id.to_owned() }),
        Err(error) => Err(error.into()),
    }
}
