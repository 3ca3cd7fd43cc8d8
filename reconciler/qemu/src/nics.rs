//! Network cards of a running machine: plug in, set the link, unplug. They are observed with the disks
//! ([`Devices`](crate::block::Devices)).
//!
//! A card consists of two QEMU objects: a network back end `net-ID` (the tap) and a device (seen by the guest), named by
//! [`NicSpec::id`]. Only the ports with which the machine was started ([`NIC_PORTS`](crate::machine::NIC_PORTS)) take and
//! release cards while it runs.
//!
//! ```text
//!  absent ──getfd, netdev_add──▶ back end only ──device_add──▶ plugged
//!     ▲                              │  ▲                         │
//!     └──────────netdev_del──────────┘  └──────DEVICE_DELETED─────┘ device_del
//! ```
//!
//! QEMU does not report the state of a link: who has set it has to remember it, or sets it again.

use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;

use crate::devices::{self, Unplugged};
use crate::machine::{MAX_QUEUES, NicModel, NicSpec, SpecError, backend_of, nic_device, port_name};
use crate::qmp::{Qmp, QmpError};

/// A network card as QEMU reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedNic {
    /// The device's id, and the id of the [`NicSpec`] it came from.
    pub id: String,
    pub model: NicModel,
    pub mac: String,
    /// The port that it is plugged into. None: it stays until the machine ends.
    pub port: Option<u8>,
}

/// The tap that QEMU was given for a card: see [`Hypervisor::lend_tap`](crate::hypervisor::Hypervisor::lend_tap).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LentTap {
    /// Whether the host's kernel moves the packets, not QEMU.
    pub vhost: bool,
}

/// Why a network card could not be changed.
#[derive(Debug, thiserror::Error)]
pub enum NicError {
    #[error(transparent)]
    Qmp(#[from] QmpError),
    #[error("the network card cannot be described to QEMU")]
    Spec(#[from] SpecError),
    #[error("{id} is already in the machine as something else: {detail}")]
    Conflict { id: String, detail: String },
    #[error("network card {id} can be plugged in at the start of the machine only")]
    NotPluggable { id: String },
}

/// The names under which QEMU has the descriptors of a card's tap, one for each queue.
pub(crate) fn tap_files(id: &str, queues: u8) -> impl Iterator<Item = String> {
    files("tap", id, queues)
}

/// The names under which QEMU has the descriptors of `/dev/vhost-net` for a card, one for each queue.
pub(crate) fn vhost_files(id: &str, queues: u8) -> impl Iterator<Item = String> {
    files("vhost", id, queues)
}

fn files(what: &str, id: &str, queues: u8) -> impl Iterator<Item = String> {
    (0..queues)
        .map(move |queue| if queue == 0 { format!("{what}-{id}") } else { format!("{what}-{id}-{queue}") })
}

fn joined(names: impl Iterator<Item = String>) -> String {
    names.collect::<Vec<_>>().join(":")
}

/// Whether the machine has this card.
///
/// *Errors*: [`NicError::Conflict`] when the id exists with another MAC address: it is not touched.
pub async fn is_plugged(qmp: &Qmp, nic: &NicSpec) -> Result<bool, NicError> {
    if !devices::exists(qmp, &nic.id).await? {
        return Ok(false);
    }
    let Some(mac) = devices::property(qmp, &nic.id, "mac").await? else { return Ok(false) };
    match mac.as_str() {
        Some(mac) if mac.eq_ignore_ascii_case(&nic.mac) => Ok(true),
        other => {
            let detail = format!("MAC address {}", other.unwrap_or_default());
            Err(NicError::Conflict { id: nic.id.clone(), detail })
        }
    }
}

/// Removes the back end of a card that has no device, and the descriptors that QEMU was given for one: an interrupted call
/// leaves them, and a tap can be opened once.
pub async fn remove_backend(qmp: &Qmp, id: &str) -> Result<(), NicError> {
    match qmp.execute("netdev_del", json!({"id": backend_of(id)})).await {
        Ok(_) => {}
        Err(error) if error.is_device_not_found() => {}
        Err(error) => return Err(error.into()),
    }
    for mut names in [files("tap", id, MAX_QUEUES), files("vhost", id, MAX_QUEUES)] {
        // They are passed in this order: after one that is not there, there is none.
        while let Some(name) = names.next()
            && close(qmp, &name).await?
        {}
    }
    Ok(())
}

/// Closes a descriptor that QEMU was given. Returns whether it had it.
async fn close(qmp: &Qmp, name: &str) -> Result<bool, NicError> {
    match qmp.execute("closefd", json!({"fdname": name})).await {
        Ok(_) => Ok(true),
        Err(QmpError::Refused { desc, .. }) if desc.contains("not found") => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Plugs in a card whose tap QEMU was given. When `device_add` fails, its back end is removed again.
///
/// *Assumptions*: the machine does not have the card ([`is_plugged`]), nor its back end ([`remove_backend`]).
pub async fn plug(qmp: &Qmp, nic: &NicSpec, lent: LentTap) -> Result<(), NicError> {
    nic.validate()?;
    if nic.port.is_none() || !nic.model.is_hot_pluggable() {
        return Err(NicError::NotPluggable { id: nic.id.clone() });
    }
    let taps = joined(tap_files(&nic.id, nic.queues));
    let mut backend = json!({"type": "tap", "id": backend_of(&nic.id), "fds": taps, "vhost": lent.vhost});
    if lent.vhost {
        backend["vhostfds"] = json!(joined(vhost_files(&nic.id, nic.queues)));
    }
    qmp.execute("netdev_add", backend).await?;
    let Err(error) = qmp.execute("device_add", nic_device(nic)).await else { return Ok(()) };
    if let QmpError::Refused { .. } = error {
        // Best effort: a later call removes it first.
        let _ = remove_backend(qmp, &nic.id).await;
    }
    Err(error.into())
}

/// Ensures that the machine does not have this card. Waits at most `limit` for the guest.
pub async fn unplug(qmp: &Qmp, id: &str, limit: Duration) -> Result<Unplugged, NicError> {
    if !devices::remove(qmp, id, Instant::now() + limit).await? {
        return Ok(Unplugged::Waiting);
    }
    remove_backend(qmp, id).await?;
    Ok(Unplugged::Released)
}

/// Sets the link of a card. Setting the state that it has is not seen by the guest.
pub async fn set_link(qmp: &Qmp, id: &str, up: bool) -> Result<(), QmpError> {
    qmp.execute("set_link", json!({"name": id, "up": up})).await.map(|_| ())
}

/// Returns the number of the port with this path of its bus, such as `/machine/peripheral/nicport0/nicport0`.
pub(crate) fn port_of(bus: &str) -> Option<u8> {
    let id = bus.strip_prefix("/machine/peripheral/")?.split('/').next()?;
    let number = id.strip_prefix(crate::machine::PORT_PREFIX)?.parse().ok()?;
    (id == port_name(number)).then_some(number)
}
