//! The shares of a running machine: which of them have lost their server.

use serde_json::Value;

use crate::machine::share_of_channel;
use crate::qmp::{Qmp, QmpError};
use crate::tpm::is_connected;

/// Returns the tags of the shares whose server QEMU is not connected to. None: the machine has no shares.
///
/// A machine that has lost a server does not get another one: what the guest asks of the folder is not answered.
pub async fn lost(qmp: &Qmp) -> Result<Option<Vec<String>>, QmpError> {
    let channels = qmp.execute("query-chardev", Value::Null).await?;
    let shares: Vec<(&str, &Value)> = channels
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|channel| Some((share_of_channel(channel["label"].as_str()?)?, channel)))
        .collect();
    if shares.is_empty() {
        return Ok(None);
    }
    let lost = shares.into_iter().filter(|(_, channel)| !is_connected(channel));
    let mut tags: Vec<String> = lost.map(|(tag, _)| tag.to_owned()).collect();
    tags.sort();
    Ok(Some(tags))
}
