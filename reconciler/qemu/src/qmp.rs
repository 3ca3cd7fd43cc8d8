//! A QMP client over any byte stream.
//!
//! Deliberately untyped (`serde_json::Value`): QEMU adds events, fields and enum values with every release, and a
//! client that must know them all breaks on the next one. The parts that this crate needs are typed where they are used
//! ([`crate::block`], [`crate::power`], [`Event::kind`]).
//!
//! One background task owns the stream:
//!
//! ```text
//!   Qmp (clones) ──request──▶ ┌──────┐ ──line──▶ QEMU
//!                ◀──reply──── │ task │ ◀─line──
//!   Events (any) ◀──event──── └──────┘
//! ```
//!
//! *Guarantees*: an event that QEMU sent before a reply is in every [`Events`] before `execute` returns that reply.
//! Events are bounded: a slow reader receives the number of missed events ([`Notice::Missed`]) and must query the state
//! instead. The task ends when the last handle is dropped, when QEMU disconnects, or at the first malformed message.

mod connection;
mod event;
mod frame;
#[cfg(test)]
mod tests;

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio::task::AbortHandle;

use crate::socket;
use connection::{Ended, Request};
pub use event::{Event, EventKind, Events, Notice};
pub(crate) use frame::{FrameError, Frames};

/// The default time limit for a command. Generous: of 100 QEMUs started at once on two cores under TCG, the slowest
/// takes more than 7 s to reply to its first command.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);
/// The number of events buffered for a reader that does not read.
const EVENT_CAPACITY: usize = 64;
/// The number of queued requests; further callers wait.
const REQUEST_CAPACITY: usize = 32;
/// The maximum length of a message from QEMU. `query-qmp-schema`, the longest known reply, has about 250 KiB.
const MAX_MESSAGE: usize = 8 << 20;

/// A monitor connection. Clones share it.
#[derive(Clone, Debug)]
pub struct Qmp {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    requests: mpsc::Sender<Request>,
    events: broadcast::WeakSender<Event>,
    ended: watch::Receiver<Option<Ended>>,
    version: Version,
    task: AbortHandle,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The version that QEMU reports.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    pub major: u32,
    pub minor: u32,
    pub micro: u32,
    /// The distribution's version text, possibly empty.
    pub package: String,
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum QmpError {
    #[error("cannot connect to the monitor socket {}", path.display())]
    Connect { path: PathBuf, source: std::io::Error },
    #[error("no QMP greeting within {after:?}: another client may be holding this monitor")]
    NoGreeting { after: Duration },
    #[error("this is not a QMP server: {detail}")]
    NotQmp { detail: String },
    #[error("no answer to {command} within {after:?}")]
    Timeout { command: String, after: Duration },
    #[error("the connection to QEMU ended ({detail}) before {command} was answered")]
    Disconnected { command: String, detail: String },
    /// QEMU refused the command.
    #[error("{command}: {desc} ({class})")]
    Refused { command: String, class: String, desc: String },
    #[error("{command}: QEMU answered with something else than expected: {detail}")]
    Unexpected { command: String, detail: String },
}

impl QmpError {
    /// Whether QEMU knows no device of that name.
    pub fn is_device_not_found(&self) -> bool {
        matches!(self, Self::Refused { class, .. } if class == "DeviceNotFound")
    }

    /// Whether this connection to the machine is unusable.
    pub fn is_disconnected(&self) -> bool {
        matches!(self, Self::Disconnected { .. } | Self::Connect { .. })
    }
}

impl Qmp {
    /// Connects to a monitor's unix socket. See [`Qmp::over`].
    pub async fn connect(path: &Path) -> Result<(Self, Events), QmpError> {
        let stream = socket::connect(path)
            .await
            .map_err(|source| QmpError::Connect { path: path.to_owned(), source })?;
        let socket = stream.as_fd().try_clone_to_owned();
        let socket = socket.map_err(|source| QmpError::Connect { path: path.to_owned(), source })?;
        Self::open(stream, DEFAULT_TIMEOUT, Some(socket)).await
    }

    /// Reads the greeting and negotiates over a connected stream, then returns the handle and all events from the first
    /// one on.
    pub async fn over<S>(stream: S) -> Result<(Self, Events), QmpError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        Self::over_within(stream, DEFAULT_TIMEOUT).await
    }

    /// Does the same as [`Qmp::over`], with a time limit for the greeting and for the negotiation (each).
    pub async fn over_within<S>(stream: S, limit: Duration) -> Result<(Self, Events), QmpError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        Self::open(stream, limit, None).await
    }

    /// `socket` is the stream's own, if files can be passed over it.
    async fn open<S>(stream: S, limit: Duration, socket: Option<OwnedFd>) -> Result<(Self, Events), QmpError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (reader, writer) = tokio::io::split(stream);
        let mut frames = Frames::new(reader, MAX_MESSAGE);
        let greeting = tokio::time::timeout(limit, frames.next())
            .await
            .map_err(|_| QmpError::NoGreeting { after: limit })?
            .map_err(|e| QmpError::NotQmp { detail: e.to_string() })?;
        let version = version_of(&greeting).ok_or_else(|| QmpError::NotQmp { detail: shorten(&greeting) })?;

        let (requests, queue) = mpsc::channel(REQUEST_CAPACITY);
        let (events, first) = broadcast::channel(EVENT_CAPACITY);
        let (end, ended) = watch::channel(None);
        let weak = events.downgrade();
        let task = tokio::spawn(connection::run((frames, writer, socket), queue, events, end)).abort_handle();
        let qmp = Self { shared: Arc::new(Shared { requests, events: weak, ended, version, task }) };
        qmp.execute_within("qmp_capabilities", Value::Null, limit).await?;
        Ok((qmp, Events::new(first)))
    }

    /// Runs one command; `args` is an object, or null for none.
    pub async fn execute(&self, command: &str, args: Value) -> Result<Value, QmpError> {
        self.execute_within(command, args, DEFAULT_TIMEOUT).await
    }

    /// Runs one command with its own time limit.
    ///
    /// After a timeout the command may still take effect: query the state before repeating it. The same applies if the
    /// future is dropped.
    pub async fn execute_within(
        &self,
        command: &str,
        args: Value,
        limit: Duration,
    ) -> Result<Value, QmpError> {
        self.exchange(command, args, None, limit).await
    }

    /// Gives QEMU an open file, which its commands name `fd:NAME`. A file that it had under this name is closed.
    ///
    /// *Errors*: also if this connection is no unix socket.
    pub async fn give_file(&self, name: &str, file: OwnedFd) -> Result<(), QmpError> {
        self.exchange("getfd", json!({"fdname": name}), Some(file), DEFAULT_TIMEOUT).await.map(|_| ())
    }

    async fn exchange(
        &self,
        command: &str,
        args: Value,
        file: Option<OwnedFd>,
        limit: Duration,
    ) -> Result<Value, QmpError> {
        let (reply, answer) = oneshot::channel();
        let request = Request { command: command.to_owned(), args, file, reply };
        let exchange = async {
            self.shared.requests.send(request).await.ok()?;
            answer.await.ok()
        };
        match tokio::time::timeout(limit, exchange).await {
            Err(_) => Err(QmpError::Timeout { command: command.to_owned(), after: limit }),
            Ok(None) => Err(self.disconnected(command)),
            Ok(Some(Ok(value))) => Ok(value),
            Ok(Some(Err(refusal))) => Err(QmpError::Refused {
                command: command.to_owned(),
                class: refusal.class,
                desc: refusal.desc,
            }),
        }
    }

    /// Returns a new reader of future events. After the connection has ended it yields nothing.
    pub fn events(&self) -> Events {
        match self.shared.events.upgrade() {
            Some(sender) => Events::new(sender.subscribe()),
            None => Events::new(broadcast::channel(1).1),
        }
    }

    pub fn version(&self) -> &Version {
        &self.shared.version
    }

    pub fn is_closed(&self) -> bool {
        self.shared.ended.borrow().is_some()
    }

    /// Waits until the connection has ended.
    pub async fn closed(&self) {
        let mut ended = self.shared.ended.clone();
        // An error means that the task has ended, and with it the connection.
        let _ = ended.wait_for(Option::is_some).await;
    }

    fn disconnected(&self, command: &str) -> QmpError {
        let detail = match &*self.shared.ended.borrow() {
            Some(ended) => ended.0.clone(),
            None => "closing".to_owned(),
        };
        QmpError::Disconnected { command: command.to_owned(), detail }
    }
}

fn version_of(greeting: &Value) -> Option<Version> {
    let version = greeting.get("QMP")?.get("version")?;
    let number = |name: &str| u32::try_from(version.get("qemu")?.get(name)?.as_u64()?).ok();
    Some(Version {
        major: number("major")?,
        minor: number("minor")?,
        micro: number("micro")?,
        package: version.get("package").and_then(Value::as_str).unwrap_or_default().to_owned(),
    })
}

/// Shortens untrusted JSON for an error message.
pub(crate) fn shorten(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(200) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

fn request_line(id: u64, command: &str, args: &Value) -> Vec<u8> {
    let mut message = json!({"execute": command, "id": id});
    if !args.is_null() {
        message["arguments"] = args.clone();
    }
    let mut line = message.to_string().into_bytes();
    line.push(b'\n');
    line
}
