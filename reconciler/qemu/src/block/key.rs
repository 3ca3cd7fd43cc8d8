//! The keys of encrypted disks in a running machine: an object of QEMU for each, named by the disk.

use serde_json::json;

use super::BlockError;
use crate::devices;
use crate::machine::{DiskKey, key_id};
use crate::qmp::{Qmp, QmpError};

/// Gives the machine the key of an encrypted disk, before the disk is plugged in. Does nothing if it has one for this disk.
pub async fn add_key(qmp: &Qmp, id: &str, key: &DiskKey) -> Result<(), BlockError> {
    let object = json!({"qom-type": "secret", "id": key_id(id), "data": key.passphrase()});
    match qmp.execute("object-add", object).await {
        Ok(_) => Ok(()),
        Err(QmpError::Refused { desc, .. }) if desc.contains("duplicate property") => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Removes the key of a disk that is not open, if the machine has one.
pub(super) async fn remove(qmp: &Qmp, id: &str) -> Result<(), BlockError> {
    let objects = devices::list(qmp, "qom-list", json!({"path": "/objects"})).await?;
    if !objects.iter().any(|object| object["name"] == key_id(id).as_str()) {
        return Ok(());
    }
    match qmp.execute("object-del", json!({"id": key_id(id)})).await {
        Ok(_) => Ok(()),
        Err(QmpError::Refused { desc, .. }) if desc.contains("not found") => Ok(()),
        Err(error) => Err(error.into()),
    }
}
