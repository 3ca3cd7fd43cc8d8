//! Files that QEMU has open and that no disk of the machine uses. A plug, an unplug, a snapshot or a mirror has left them, which was
//! interrupted or which QEMU refused half way; so has a device that the guest released after the request to unplug it had ended. While such
//! a file is open, its volume cannot grow, be removed, or be opened by another machine.

use std::collections::{BTreeMap, BTreeSet};

use super::chain::remove_unused;
use super::names::{has_unused, without_device};
use super::observe::nodes;
use super::{BlockError, Mirror, ObservedDisk};
use crate::devices;
use crate::qmp::Qmp;

/// Lists the disks that the machine does not have and whose files QEMU has open, by their ids. [`unplug`](super::unplug) closes these.
pub async fn left_open(qmp: &Qmp) -> Result<BTreeSet<String>, BlockError> {
    // A device that goes in between is still among the devices then, and its event comes after this.
    let devices: Vec<String> = devices::all(qmp).await?.into_iter().map(|(id, _)| id).collect();
    Ok(without_device(&names(qmp).await?, &devices))
}

/// Closes the files that the disks of the machine do not use any more. `disks` and `mirrors`: those that it has. A disk with a mirror keeps
/// all of its files.
pub async fn close_unused(
    qmp: &Qmp,
    disks: &[ObservedDisk],
    mirrors: &BTreeMap<String, Mirror>,
) -> Result<(), BlockError> {
    let names = names(qmp).await?;
    for disk in disks.iter().filter(|disk| !mirrors.contains_key(&disk.id)) {
        if let Some(top) = disk.node.as_ref().filter(|_| has_unused(&names, &disk.id)) {
            remove_unused(qmp, &disk.id, top).await?;
        }
    }
    Ok(())
}

async fn names(qmp: &Qmp) -> Result<Vec<String>, BlockError> {
    Ok(nodes(qmp).await?.into_iter().map(|node| node.name).collect())
}
