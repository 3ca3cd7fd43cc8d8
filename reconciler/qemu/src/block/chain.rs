//! The nodes of one disk: the one that its device writes to, those that it continued from, and the chain of files below.

use serde_json::json;

use super::names::own;
use super::observe::{disks, nodes};
use super::{BlockError, ObservedDisk};
use crate::machine::{BELOW, Backing, DiskSpec, chain_blockdev, reopened_blockdev};
use crate::qmp::{Qmp, QmpError};

/// Has a disk of the running machine read the data below its file through the chain of `disk`, which shows the same data in fewer
/// files, and closes the files of its present chain. The guest waits for a few milliseconds. Does nothing if it reads through no
/// more files, or through a chain that cannot be replaced ([`ObservedDisk::files_below`]).
///
/// *Errors*: [`BlockError::Conflict`] if the disk writes to another file than that of `disk`.
pub async fn shorten_chain(qmp: &Qmp, disk: &DiskSpec) -> Result<(), BlockError> {
    disk.validate()?;
    let missing = || BlockError::NoSuchDisk { id: disk.id.clone() };
    let present = disks(qmp).await?.into_iter().find(|d| d.id == disk.id).ok_or_else(missing)?;
    let top = present.node.clone().ok_or_else(missing)?;
    if present.file.as_ref() != Some(&disk.file) {
        let detail = format!("it writes to {}", present.file.unwrap_or_default().display());
        return Err(BlockError::Conflict { id: disk.id.clone(), detail });
    }
    if let Some(backing) = disk.backing.as_ref().filter(|backing| backing.files() < present.files_below) {
        // An interrupted call may have left nodes, of a chain that is outdated.
        remove_unused(qmp, &disk.id, &top).await?;
        replace(qmp, disk, &present, &top, backing).await?;
    }
    remove_unused(qmp, &disk.id, &top).await
}

async fn replace(
    qmp: &Qmp,
    disk: &DiskSpec,
    present: &ObservedDisk,
    top: &str,
    backing: &Backing,
) -> Result<(), BlockError> {
    let known = nodes(qmp).await?;
    let is_file =
        |file: &&super::observe::Node| file.driver == "file" && file.file.as_ref() == Some(&disk.file);
    let missing = || BlockError::NoSuchDisk { id: disk.id.clone() };
    let file = known.iter().find(is_file).map(|node| node.name.clone()).ok_or_else(missing)?;
    let mut names = (1..).map(|number: u32| format!("{}{BELOW}{number}", disk.id));
    let is_free = |name: &String| !known.iter().any(|node| node.name == *name);
    let name = names.find(is_free).expect("numbers do not run out");
    qmp.execute("blockdev-add", chain_blockdev(&disk.id, backing, &name)).await?;
    let mut options =
        reopened_blockdev(&DiskSpec { read_only: present.read_only, ..disk.clone() }, top, &file, &name);
    // As it is open: only the chain changes.
    options["cache"]["direct"] = json!(present.is_direct);
    let reopened = qmp.execute("blockdev-reopen", json!({"options": [options]})).await;
    if let Err(QmpError::Refused { .. }) = reopened {
        // Best effort: a later call finds the node.
        let _ = remove_node(qmp, &name).await;
    }
    reopened?;
    Ok(())
}

/// Removes the nodes of a disk, from the top of its chain. Returns false while one is in use.
pub(super) async fn remove_nodes(qmp: &Qmp, id: &str) -> Result<bool, BlockError> {
    for name in own_nodes(qmp, id).await? {
        if !remove_node(qmp, &name).await? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Removes the nodes of a disk that it does not use any more.
pub(super) async fn remove_unused(qmp: &Qmp, id: &str, top: &str) -> Result<(), BlockError> {
    for name in own_nodes(qmp, id).await?.iter().filter(|name| *name != top) {
        remove_node(qmp, name).await?;
    }
    Ok(())
}

/// Returns the nodes of this disk that have names of their own: a node before those below it.
async fn own_nodes(qmp: &Qmp, id: &str) -> Result<Vec<String>, BlockError> {
    let names: Vec<String> = nodes(qmp).await?.into_iter().map(|node| node.name).collect();
    Ok(own(&names, id).into_iter().cloned().collect())
}

/// Whether QEMU has a file of this disk open.
pub(super) async fn is_open(qmp: &Qmp, id: &str) -> Result<bool, BlockError> {
    Ok(!own_nodes(qmp, id).await?.is_empty())
}

/// Returns false while the node is in use.
async fn remove_node(qmp: &Qmp, id: &str) -> Result<bool, BlockError> {
    match qmp.execute("blockdev-del", json!({"node-name": id})).await {
        Ok(_) => Ok(true),
        Err(QmpError::Refused { desc, .. }) if desc.contains("in use") || desc.contains("is busy") => {
            Ok(false)
        }
        Err(QmpError::Refused { desc, .. }) if desc.contains("Failed to find node") => Ok(true),
        Err(error) => Err(error.into()),
    }
}
