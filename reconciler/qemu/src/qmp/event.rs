//! QEMU's asynchronous messages.

use serde_json::Value;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};

/// An asynchronous message of QEMU, including unknown ones.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// QEMU's name for it, e.g. `SHUTDOWN`.
    pub name: String,
    pub data: Value,
    /// Host time in microseconds since the epoch, if QEMU reports it.
    pub timestamp_us: Option<i64>,
}

/// The events berth acts on; all others are [`EventKind::Other`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// The machine has shut down, and is paused if it was started with `-action shutdown=pause`.
    Shutdown {
        by_guest: bool,
        reason: String,
    },
    Reset {
        by_guest: bool,
        reason: String,
    },
    Powerdown,
    Stop,
    Resume,
    /// The guest has suspended itself to its memory.
    Suspend,
    /// The guest has woken up: on request, or by its clock or a key.
    Wakeup,
    /// `device` is None for devices without an id.
    DeviceDeleted {
        device: Option<String>,
    },
    /// The guest refused to release the device.
    UnplugRefused {
        device: Option<String>,
    },
    GuestPanicked,
    /// The guest did not reset its watchdog timer in time.
    Watchdog,
    /// `no_space`: the host file system is full and the machine is paused because of it.
    BlockIoError {
        node: Option<String>,
        no_space: bool,
    },
    /// The guest plugged memory in or out.
    MemoryChanged,
    /// The tray of a CD-ROM drive was opened or closed, by the guest or by us.
    TrayMoved,
    /// The saving or loading of a state went on, see [`crate::saved_state`].
    StateTransfer,
    /// The guest agent's port was opened or closed inside the guest.
    PortOpened {
        port: String,
        open: bool,
    },
    Other,
}

impl Event {
    pub(crate) fn from_message(message: &Value) -> Option<Self> {
        let name = message.get("event")?.as_str()?.to_owned();
        let timestamp_us = message.get("timestamp").and_then(|t| {
            let seconds = t.get("seconds")?.as_i64().filter(|s| *s >= 0)?;
            seconds.checked_mul(1_000_000)?.checked_add(t.get("microseconds")?.as_i64()?)
        });
        Some(Self { name, data: message.get("data").cloned().unwrap_or(Value::Null), timestamp_us })
    }

    pub fn kind(&self) -> EventKind {
        match self.name.as_str() {
            "SHUTDOWN" => EventKind::Shutdown {
                by_guest: self.flag("guest"),
                reason: self.text("reason").unwrap_or_default(),
            },
            "RESET" => EventKind::Reset {
                by_guest: self.flag("guest"),
                reason: self.text("reason").unwrap_or_default(),
            },
            "POWERDOWN" => EventKind::Powerdown,
            "STOP" => EventKind::Stop,
            "RESUME" => EventKind::Resume,
            "SUSPEND" => EventKind::Suspend,
            "WAKEUP" => EventKind::Wakeup,
            "WATCHDOG" => EventKind::Watchdog,
            "DEVICE_DELETED" => EventKind::DeviceDeleted { device: self.text("device") },
            "DEVICE_UNPLUG_GUEST_ERROR" | "MEM_UNPLUG_ERROR" => {
                EventKind::UnplugRefused { device: self.text("device") }
            }
            "GUEST_PANICKED" => EventKind::GuestPanicked,
            "BLOCK_IO_ERROR" => {
                EventKind::BlockIoError { node: self.text("node-name"), no_space: self.flag("nospace") }
            }
            "MIGRATION" => EventKind::StateTransfer,
            "MEMORY_DEVICE_SIZE_CHANGE" => EventKind::MemoryChanged,
            "DEVICE_TRAY_MOVED" => EventKind::TrayMoved,
            "VSERPORT_CHANGE" => match self.text("id") {
                Some(port) => EventKind::PortOpened { port, open: self.flag("open") },
                None => EventKind::Other,
            },
            _ => EventKind::Other,
        }
    }

    fn flag(&self, name: &str) -> bool {
        self.data.get(name).and_then(Value::as_bool).unwrap_or(false)
    }

    fn text(&self, name: &str) -> Option<String> {
        Some(self.data.get(name)?.as_str()?.to_owned())
    }
}

/// An item of an event stream.
#[derive(Clone, Debug, PartialEq)]
pub enum Notice {
    Event(Event),
    /// The reader was too slow and this many events were dropped: query the state instead.
    Missed(u64),
}

/// One reader of a connection's events.
#[derive(Debug)]
pub struct Events {
    receiver: broadcast::Receiver<Event>,
}

impl Events {
    pub(super) fn new(receiver: broadcast::Receiver<Event>) -> Self {
        Self { receiver }
    }

    /// Returns the next notice; None after the connection has ended. Cancel safe.
    pub async fn next(&mut self) -> Option<Notice> {
        match self.receiver.recv().await {
            Ok(event) => Some(Notice::Event(event)),
            Err(RecvError::Lagged(count)) => Some(Notice::Missed(count)),
            Err(RecvError::Closed) => None,
        }
    }

    /// Returns a notice that is already available, without waiting.
    pub fn try_next(&mut self) -> Option<Notice> {
        match self.receiver.try_recv() {
            Ok(event) => Some(Notice::Event(event)),
            Err(TryRecvError::Lagged(count)) => Some(Notice::Missed(count)),
            Err(TryRecvError::Empty | TryRecvError::Closed) => None,
        }
    }
}
