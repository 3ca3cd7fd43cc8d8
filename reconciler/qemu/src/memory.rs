//! Memory that a running guest gets and gives back: one virtio-mem device beside the memory of the start.
//!
//! QEMU passes a size to the guest, whose driver plugs memory in or out until it has that much, as far as it can. A guest
//! without the driver keeps what it had. After a reset the guest plugs it in again.

use serde_json::{Value, json};

use crate::machine::MEMORY_DEVICE;
use crate::qmp::{Qmp, QmpError, shorten};

/// The state of the device, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Growth {
    /// The size that the guest is to have beside the memory of the start.
    pub requested: u64,
    /// The size that it has.
    pub plugged: u64,
}

/// Reads what the guest has of it. None: the machine has no such device.
pub async fn observe(qmp: &Qmp) -> Result<Option<Growth>, QmpError> {
    const COMMAND: &str = "query-memory-devices";
    let answer = qmp.execute(COMMAND, Value::Null).await?;
    let devices = answer.as_array().into_iter().flatten();
    let Some(device) = devices.map(|device| &device["data"]).find(|data| data["id"] == MEMORY_DEVICE) else {
        return Ok(None);
    };
    match (device["requested-size"].as_u64(), device["size"].as_u64()) {
        (Some(requested), Some(plugged)) => Ok(Some(Growth { requested, plugged })),
        _ => Err(QmpError::Unexpected { command: COMMAND.to_owned(), detail: shorten(device) }),
    }
}

/// Requests that the guest has this many bytes beside the memory of the start: a multiple of
/// [`MEMORY_BLOCK`](crate::machine::MEMORY_BLOCK). Does not wait for the guest.
pub async fn request(qmp: &Qmp, bytes: u64) -> Result<(), QmpError> {
    let path = format!("/machine/peripheral/{MEMORY_DEVICE}");
    let arguments = json!({"path": path, "property": "requested-size", "value": bytes});
    qmp.execute("qom-set", arguments).await.map(|_| ())
}
