//! Devices of a running machine that have an id: list, read a property, remove.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::qmp::{EventKind, Events, Notice, Qmp, QmpError, shorten};

/// The interval between checks for a removed device, in case its event was missed.
const POLL: Duration = Duration::from_millis(250);

/// The result of a request to unplug a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unplugged {
    /// QEMU no longer holds the device, nor its file or tap.
    Released,
    /// The guest has been asked to release the device but has not done so yet; retry later.
    Waiting,
}

pub(crate) async fn list(qmp: &Qmp, command: &str, args: Value) -> Result<Vec<Value>, QmpError> {
    match qmp.execute(command, args).await? {
        Value::Array(items) => Ok(items),
        other => Err(QmpError::Unexpected { command: command.to_owned(), detail: shorten(&other) }),
    }
}

/// Returns the id and the QEMU driver of each device.
pub(crate) async fn all(qmp: &Qmp) -> Result<Vec<(String, String)>, QmpError> {
    let devices = list(qmp, "qom-list", json!({"path": "/machine/peripheral"})).await?;
    let driver = |kind: &str| Some(kind.strip_prefix("child<")?.strip_suffix('>')?.to_owned());
    let device =
        |d: &Value| Some((d["name"].as_str()?.to_owned(), driver(d["type"].as_str().unwrap_or_default())?));
    Ok(devices.iter().filter_map(device).collect())
}

pub(crate) async fn exists(qmp: &Qmp, id: &str) -> Result<bool, QmpError> {
    Ok(all(qmp).await?.iter().any(|(device, _)| device == id))
}

/// Returns None if the device was removed between two queries.
pub(crate) async fn property(qmp: &Qmp, id: &str, name: &str) -> Result<Option<Value>, QmpError> {
    let path = format!("/machine/peripheral/{id}");
    match qmp.execute("qom-get", json!({"path": path, "property": name})).await {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_device_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Ensures that the machine does not have this device. Returns false if the guest has not released it by the deadline.
pub(crate) async fn remove(qmp: &Qmp, id: &str, deadline: Instant) -> Result<bool, QmpError> {
    // Subscribed before the request, so the event cannot be missed.
    let mut events = qmp.events();
    if !exists(qmp, id).await? {
        return Ok(true);
    }
    match qmp.execute("device_del", json!({"id": id})).await {
        Ok(_) => {}
        Err(error) if error.is_device_not_found() => {}
        // Requested before, and the guest has not responded yet.
        Err(QmpError::Refused { desc, .. }) if desc.contains("in the process of unplug") => {}
        Err(error) => return Err(error),
    }
    is_gone(qmp, id, &mut events, deadline).await
}

/// Waits for the event, and polls in case the event was lost. Returns false at the deadline.
async fn is_gone(qmp: &Qmp, id: &str, events: &mut Events, deadline: Instant) -> Result<bool, QmpError> {
    loop {
        let next = tokio::time::timeout_at(deadline.min(Instant::now() + POLL), events.next()).await;
        match next {
            Ok(Some(Notice::Event(event))) => match event.kind() {
                EventKind::DeviceDeleted { device: Some(device) } if device == id => return Ok(true),
                EventKind::UnplugRefused { device: Some(device) } if device == id => return Ok(false),
                _ => continue,
            },
            // The monitor may be disconnected: the query below reports it.
            Ok(None) | Ok(Some(Notice::Missed(_))) | Err(_) => {}
        }
        if !exists(qmp, id).await? {
            return Ok(true);
        }
        if Instant::now() >= deadline {
            return Ok(false);
        }
    }
}
