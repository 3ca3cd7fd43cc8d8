//! Devices of a running machine that have an id: list, read a property, remove.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::qmp::{EventKind, Events, Notice, Qmp, QmpError, shorten};

/// The interval between checks for a removed device, in case its event was missed.
const POLL: Duration = Duration::from_millis(250);
/// The most items of a list that QEMU, which a guest may have taken over, answers with: far more than a machine has block nodes.
const MAX_ITEMS: usize = 16 << 10;
/// The most devices with an id, each of which is queried, and the longest id.
const MAX_DEVICES: usize = 2 << 10;
const MAX_ID: usize = 255;

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
        Value::Array(items) if items.len() <= MAX_ITEMS => Ok(items),
        Value::Array(items) => Err(too_many(command, items.len())),
        other => Err(QmpError::Unexpected { command: command.to_owned(), detail: shorten(&other) }),
    }
}

/// Returns the id and the QEMU driver of each device.
pub(crate) async fn all(qmp: &Qmp) -> Result<Vec<(String, String)>, QmpError> {
    let devices = list(qmp, "qom-list", json!({"path": "/machine/peripheral"})).await?;
    let driver = |kind: &str| Some(kind.strip_prefix("child<")?.strip_suffix('>')?.to_owned());
    let device =
        |d: &Value| Some((d["name"].as_str()?.to_owned(), driver(d["type"].as_str().unwrap_or_default())?));
    let named: Vec<_> = devices.iter().filter_map(device).filter(|(id, _)| id.len() <= MAX_ID).collect();
    if named.len() > MAX_DEVICES { Err(too_many("qom-list", named.len())) } else { Ok(named) }
}

fn too_many(command: &str, count: usize) -> QmpError {
    let detail = format!("a list of {count} items, more than a machine has");
    QmpError::Unexpected { command: command.to_owned(), detail }
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
    let mut look_at = deadline.min(Instant::now() + POLL);
    loop {
        let next = tokio::time::timeout_at(look_at, events.next()).await;
        match next {
            Ok(Some(Notice::Event(event))) => match event.kind() {
                EventKind::DeviceDeleted { device: Some(device) } if device == id => return Ok(true),
                EventKind::UnplugRefused { device: Some(device) } if device == id => return Ok(false),
                // Others do not put the look off: a guest can cause any number of them.
                _ if Instant::now() < look_at => continue,
                _ => {}
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
        look_at = deadline.min(Instant::now() + POLL);
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

    use super::*;

    /// Returns a connection to a QEMU that has these devices, and sends an event of another device after each of these intervals.
    async fn machine(devices: Value, interval: Duration) -> Qmp {
        let (near, far) = tokio::io::duplex(1 << 20);
        tokio::spawn(async move {
            let (reader, mut writer) = tokio::io::split(far);
            let mut lines = BufReader::new(reader).lines();
            let version = json!({"qemu": {"major": 9, "minor": 2, "micro": 0}});
            let mut message = json!({"QMP": {"version": version, "capabilities": []}});
            loop {
                if writer.write_all(format!("{message}\n").as_bytes()).await.is_err() {
                    return;
                }
                message = match tokio::time::timeout(interval, lines.next_line()).await {
                    Ok(Ok(Some(line))) => {
                        let request: Value = serde_json::from_str(&line).unwrap();
                        let is_list = request["execute"] == "qom-list";
                        let answer = if is_list { devices.clone() } else { json!({}) };
                        json!({"return": answer, "id": request["id"]})
                    }
                    Ok(_) => return,
                    Err(_) => json!({"event": "DEVICE_TRAY_MOVED", "data": {"id": "cd-0"}}),
                };
            }
        });
        Qmp::over(near).await.unwrap().0
    }

    #[tokio::test(start_paused = true)]
    async fn events_of_other_devices_do_not_put_off_the_deadline_of_an_unplug() {
        let device = json!([{"name": "v-1", "type": "child<scsi-hd>"}]);
        let qmp = machine(device, Duration::from_millis(100)).await;
        let limit = Duration::from_secs(2);
        let removed = remove(&qmp, "v-1", Instant::now() + limit);
        let removed = tokio::time::timeout(limit * 2, removed).await.expect("in time");
        assert!(!removed.unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn a_qemu_that_lists_more_devices_than_a_machine_has_is_not_queried_about_them() {
        let many = |count: usize| -> Value {
            (0..count).map(|n| json!({"name": format!("d-{n}"), "type": "child<scsi-hd>"})).collect()
        };
        let idle = Duration::from_secs(60);
        assert_eq!(all(&machine(many(MAX_DEVICES), idle).await).await.unwrap().len(), MAX_DEVICES);
        for count in [MAX_DEVICES + 1, MAX_ITEMS + 1] {
            let refused = all(&machine(many(count), idle).await).await.unwrap_err();
            assert!(matches!(refused, QmpError::Unexpected { .. }), "{refused}");
        }
        let long = json!([{"name": "d".repeat(MAX_ID + 1), "type": "child<scsi-hd>"}]);
        assert!(all(&machine(long, idle).await).await.unwrap().is_empty());
    }
}
