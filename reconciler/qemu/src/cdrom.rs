//! CD-ROM drives of a running machine: their media are inserted, exchanged and taken out.
//!
//! ```text
//!  tray closed ──open-tray──▶ open ──remove-medium──▶ open, empty ──insert-medium──▶ open ──close-tray──▶ closed
//! ```
//!
//! Each function first reads the current state and then does the missing steps, so it can be repeated from the start. A guest
//! that uses a medium locks the tray: it is asked to open it, and not forced. A tray that the guest has opened stays open
//! until the medium is exchanged, or until the caller has it closed.

use serde_json::json;

use crate::block::{BlockError, cdroms};
use crate::machine::{CdromSpec, Medium, medium_blockdev};
use crate::qmp::{Qmp, QmpError};

/// The result of [`change_medium`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    Done,
    /// The guest uses the medium. It has been asked to open the tray; retry later.
    Locked,
}

/// Ensures that the drive has this medium, or none.
///
/// *Errors*: [`BlockError::NoSuchDisk`] if the machine has no such drive.
pub async fn change_medium(qmp: &Qmp, slot: u8, medium: Option<&Medium>) -> Result<Changed, BlockError> {
    let id = CdromSpec::id(slot);
    let drives = cdroms(qmp).await?;
    let Some(drive) = drives.into_iter().find(|drive| drive.slot == slot) else {
        return Err(BlockError::NoSuchDisk { id });
    };
    let wanted = medium.map(|medium| Medium::node(slot, &medium.digest));
    if drive.node != wanted {
        if !drive.tray_open && !open_tray(qmp, &id).await? {
            return Ok(Changed::Locked);
        }
        qmp.execute("blockdev-remove-medium", json!({"id": id})).await?;
        if let (Some(medium), Some(node)) = (medium, &wanted) {
            add_node(qmp, slot, medium).await?;
            qmp.execute("blockdev-insert-medium", json!({"id": id, "node-name": node})).await?;
        }
        qmp.execute("blockdev-close-tray", json!({"id": id})).await?;
    }
    remove_nodes(qmp, slot, wanted.as_deref()).await?;
    Ok(Changed::Done)
}

/// Ensures that the tray of the drive is closed, with the medium that is in it.
pub async fn close_tray(qmp: &Qmp, slot: u8) -> Result<(), BlockError> {
    qmp.execute("blockdev-close-tray", json!({"id": CdromSpec::id(slot)})).await?;
    Ok(())
}

/// Returns false if the guest has locked the tray.
async fn open_tray(qmp: &Qmp, id: &str) -> Result<bool, BlockError> {
    match qmp.execute("blockdev-open-tray", json!({"id": id})).await {
        Ok(_) => Ok(true),
        Err(QmpError::Refused { desc, .. }) if desc.contains("locked") => Ok(false),
        Err(error) => Err(error.into()),
    }
}

async fn add_node(qmp: &Qmp, slot: u8, medium: &Medium) -> Result<(), BlockError> {
    // An interrupted change has left it.
    if media_nodes(qmp, slot).await?.contains(&Medium::node(slot, &medium.digest)) {
        return Ok(());
    }
    qmp.execute("blockdev-add", medium_blockdev(slot, medium)).await?;
    Ok(())
}

/// Closes the files of media that are not in the drive any more.
async fn remove_nodes(qmp: &Qmp, slot: u8, but: Option<&str>) -> Result<(), BlockError> {
    for node in media_nodes(qmp, slot).await? {
        if Some(node.as_str()) != but {
            qmp.execute("blockdev-del", json!({"node-name": node})).await?;
        }
    }
    Ok(())
}

async fn media_nodes(qmp: &Qmp, slot: u8) -> Result<Vec<String>, BlockError> {
    let prefix = format!("{}-", CdromSpec::id(slot));
    let nodes = qmp.execute("query-named-block-nodes", json!({"flat": true})).await?;
    let names = nodes.as_array().into_iter().flatten().filter_map(|node| node["node-name"].as_str());
    Ok(names.filter(|name| name.starts_with(&prefix)).map(str::to_owned).collect())
}
