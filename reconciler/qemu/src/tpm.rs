//! The TPM of a running machine: whether its emulator is there.

use serde_json::Value;

use crate::machine::TPM_CHANNEL;
use crate::qmp::{Qmp, QmpError};

/// Reads whether QEMU is connected to the emulator of the machine's TPM. None: the machine has no TPM.
///
/// A machine that has lost its emulator does not get another one: the guest's commands to the TPM fail, and QEMU ends when
/// the guest restarts.
pub async fn emulator(qmp: &Qmp) -> Result<Option<bool>, QmpError> {
    let channels = qmp.execute("query-chardev", Value::Null).await?;
    let is_ours = |channel: &&Value| channel["label"] == TPM_CHANNEL;
    let ours = channels.as_array().into_iter().flatten().find(is_ours);
    Ok(ours.map(is_connected))
}

/// Whether QEMU is connected to the program at the other end of this channel.
pub(crate) fn is_connected(channel: &Value) -> bool {
    !channel["filename"].as_str().is_some_and(|name| name.starts_with("disconnected:"))
}
