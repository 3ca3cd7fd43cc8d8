//! qemu-guest-agent: the guest's information about itself.
//!
//! The channel is a serial line without connection state: there may be no listener, and a reply may belong to a request
//! of an earlier client. So after a failed exchange, a `guest-sync-delimited` precedes the next one. The guest, which
//! may be hostile, writes all replies: sizes and counts are bounded, control characters are dropped, and the content
//! may only affect the information shown to this guest's owner.

mod channel;
mod commands;
mod facts;
mod files;
mod ssh_keys;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::machine::GUEST_AGENT_CHANNEL;
use crate::qmp::{Qmp, QmpError, shorten};
use crate::socket;
use channel::{Channel, MAX_MESSAGE};
pub use commands::{GuestCommand, GuestExit, MAX_OUTPUT};
pub use facts::{Filesystem, FilesystemDisk, GuestPart, Interface, OsInfo, mounts_of};
pub use files::{FileAccess, FileHandle, MAX_PIECE};
pub use ssh_keys::KeysRefusal;

/// The time limit for one reply. A present agent replies within milliseconds.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(3);

/// The time limit to freeze the file systems of a guest, which writes what it has in memory first, or to thaw them.
const FREEZE_TIMEOUT: Duration = Duration::from_secs(10);

/// The time for the guest agent to refuse a suspension: it runs programs of the guest, which refuse it themselves.
const SUSPEND_TIMEOUT: Duration = Duration::from_secs(15);

/// The channel to one guest's agent. One request at a time.
#[derive(Debug)]
pub struct GuestAgent {
    channel: Channel,
    timeout: Duration,
    synced: bool,
}

/// Whether a process in the guest has the agent's port open. If not, a request would only wait for the timeout.
///
/// *Errors*: QEMU's. A QEMU that does not know the channel counts as open.
pub async fn has_listener(qmp: &Qmp) -> Result<bool, QmpError> {
    let channels = qmp.execute("query-chardev", Value::Null).await?;
    let of_agent = |channel: &&Value| channel["label"] == GUEST_AGENT_CHANNEL;
    let ours = channels.as_array().into_iter().flatten().find(of_agent);
    Ok(ours.is_none_or(|channel| channel["frontend-open"] != false))
}

/// The limits of one exchange.
#[derive(Clone, Copy, Debug)]
struct Limits {
    time: Duration,
    /// The length of the reply in bytes.
    reply: usize,
}

/// The action after the guest has shut down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShutdownMode {
    Powerdown,
    Reboot,
}

/// Why the guest agent gave no (usable) reply.
#[derive(Debug, thiserror::Error)]
pub enum GuestAgentError {
    #[error("cannot connect to the guest agent's socket {}", path.display())]
    Connect { path: PathBuf, source: std::io::Error },
    #[error("the guest agent did not answer within {after:?}: it is not installed, or the guest is not up")]
    Silent { after: Duration },
    #[error("the guest agent's channel broke: {detail}")]
    Broken { detail: String },
    /// `is_unknown`: the agent does not have the command, or it is disabled.
    #[error("the guest agent refused {command}: {desc}")]
    Refused { command: &'static str, desc: String, is_unknown: bool },
    #[error("the guest agent answered {command} with something else than expected: {detail}")]
    Unexpected { command: &'static str, detail: String },
}

impl GuestAgent {
    /// Connects to the channel's unix socket. Succeeds even if no agent listens: [`GuestAgent::ping`] checks that.
    pub async fn connect(path: &Path) -> Result<Self, GuestAgentError> {
        let stream = socket::connect(path)
            .await
            .map_err(|source| GuestAgentError::Connect { path: path.to_owned(), source })?;
        Ok(Self::over(stream))
    }

    /// Uses the agent at the other end of a connected stream.
    pub fn over<S>(stream: S) -> Self
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        Self { channel: Channel::new(stream), timeout: DEFAULT_TIMEOUT, synced: false }
    }

    /// Changes the time limit for one reply.
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Checks that an agent replies.
    pub async fn ping(&mut self) -> Result<(), GuestAgentError> {
        self.execute("guest-ping", Value::Null).await.map(|_| ())
    }

    pub async fn host_name(&mut self) -> Result<String, GuestAgentError> {
        let answer = self.execute("guest-get-host-name", Value::Null).await?;
        facts::host_name(&answer).ok_or_else(|| unexpected("guest-get-host-name", &answer))
    }

    pub async fn os_info(&mut self) -> Result<OsInfo, GuestAgentError> {
        let answer = self.execute("guest-get-osinfo", Value::Null).await?;
        facts::os_info(&answer).ok_or_else(|| unexpected("guest-get-osinfo", &answer))
    }

    pub async fn interfaces(&mut self) -> Result<Vec<Interface>, GuestAgentError> {
        let answer = self.execute("guest-network-get-interfaces", Value::Null).await?;
        facts::interfaces(&answer).ok_or_else(|| unexpected("guest-network-get-interfaces", &answer))
    }

    /// Lists the mounted file systems and their disks: see [`mounts_of`].
    pub async fn filesystems(&mut self) -> Result<Vec<Filesystem>, GuestAgentError> {
        let answer = self.execute("guest-get-fsinfo", Value::Null).await?;
        facts::filesystems(&answer).ok_or_else(|| unexpected("guest-get-fsinfo", &answer))
    }

    /// Lists the CPUs that the guest's kernel knows.
    pub async fn cpus(&mut self) -> Result<Vec<GuestPart>, GuestAgentError> {
        let answer = self.execute("guest-get-vcpus", Value::Null).await?;
        facts::cpus(&answer).ok_or_else(|| unexpected("guest-get-vcpus", &answer))
    }

    /// Sets these CPUs of the guest online.
    pub async fn set_cpus_online(&mut self, cpus: &[u64]) -> Result<(), GuestAgentError> {
        let online: Vec<Value> = cpus.iter().map(|id| json!({"logical-id": id, "online": true})).collect();
        self.execute("guest-set-vcpus", json!({"vcpus": online})).await.map(|_| ())
    }

    /// Lists the guest's blocks of memory.
    pub async fn memory_blocks(&mut self) -> Result<Vec<GuestPart>, GuestAgentError> {
        let answer = self.execute("guest-get-memory-blocks", Value::Null).await?;
        facts::memory_blocks(&answer).ok_or_else(|| unexpected("guest-get-memory-blocks", &answer))
    }

    /// Sets these blocks of the guest's memory online.
    pub async fn set_memory_online(&mut self, blocks: &[u64]) -> Result<(), GuestAgentError> {
        let online: Vec<Value> = blocks.iter().map(|id| json!({"phys-index": id, "online": true})).collect();
        self.execute("guest-set-memory-blocks", json!({"mem-blks": online})).await.map(|_| ())
    }

    /// Sets the guest's clock, in nanoseconds since the epoch.
    pub async fn set_time(&mut self, nanoseconds: i128) -> Result<(), GuestAgentError> {
        let nanoseconds = i64::try_from(nanoseconds).unwrap_or(i64::MAX);
        self.execute("guest-set-time", json!({"time": nanoseconds})).await.map(|_| ())
    }

    /// Freezes the guest's file systems: what was written is on the disks, and writes wait for [`GuestAgent::thaw`]. Returns
    /// the number of file systems.
    ///
    /// *Errors*: also while they are frozen. After any error they may be frozen.
    pub async fn freeze(&mut self) -> Result<u64, GuestAgentError> {
        let limits = Limits { time: FREEZE_TIMEOUT, reply: MAX_MESSAGE };
        let answer = self.execute_within(limits, "guest-fsfreeze-freeze", Value::Null).await?;
        answer.as_u64().ok_or_else(|| unexpected("guest-fsfreeze-freeze", &answer))
    }

    /// Lets writes to the guest's file systems continue. Does nothing if none is frozen.
    pub async fn thaw(&mut self) -> Result<(), GuestAgentError> {
        let limits = Limits { time: FREEZE_TIMEOUT, reply: MAX_MESSAGE };
        self.execute_within(limits, "guest-fsfreeze-thaw", Value::Null).await.map(|_| ())
    }

    /// Whether the agent has frozen the guest's file systems.
    pub async fn frozen(&mut self) -> Result<bool, GuestAgentError> {
        let answer = self.execute("guest-fsfreeze-status", Value::Null).await?;
        let status = answer.as_str().ok_or_else(|| unexpected("guest-fsfreeze-status", &answer))?;
        Ok(status == "frozen")
    }

    /// Requests a shutdown of the guest. The agent does not reply on success, so a missing reply counts as success.
    pub async fn shutdown(&mut self, mode: ShutdownMode) -> Result<(), GuestAgentError> {
        self.ping().await?;
        let mode = match mode {
            ShutdownMode::Powerdown => "powerdown",
            ShutdownMode::Reboot => "reboot",
        };
        match self.execute("guest-shutdown", json!({"mode": mode})).await {
            Ok(_) | Err(GuestAgentError::Silent { .. } | GuestAgentError::Broken { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Requests that the guest suspends itself to its memory. The agent does not reply on success, so a missing reply counts as success.
    ///
    /// *Errors*: also if the guest cannot do so.
    pub async fn suspend_to_memory(&mut self) -> Result<(), GuestAgentError> {
        self.ping().await?;
        let limits = Limits { time: SUSPEND_TIMEOUT, reply: MAX_MESSAGE };
        match self.execute_within(limits, "guest-suspend-ram", Value::Null).await {
            Ok(_) | Err(GuestAgentError::Silent { .. } | GuestAgentError::Broken { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn execute(&mut self, command: &'static str, args: Value) -> Result<Value, GuestAgentError> {
        let limits = Limits { time: self.timeout, reply: MAX_MESSAGE };
        self.execute_within(limits, command, args).await
    }

    async fn execute_within(
        &mut self,
        limits: Limits,
        command: &'static str,
        args: Value,
    ) -> Result<Value, GuestAgentError> {
        let limit = limits.time;
        let mut message = json!({"execute": command});
        if !args.is_null() {
            message["arguments"] = args;
        }
        let already = std::mem::take(&mut self.synced);
        let exchange = async {
            if !already {
                self.channel.sync().await?;
            }
            self.channel.exchange(&message, limits.reply).await
        };
        let answer = match tokio::time::timeout(limit, exchange).await {
            Err(_) => return Err(GuestAgentError::Silent { after: limit }),
            Ok(answer) => answer?,
        };
        self.synced = true;
        if let Some(error) = answer.get("error") {
            let desc = error.get("desc").and_then(Value::as_str).unwrap_or("no reason given");
            let is_unknown = error.get("class").and_then(Value::as_str) == Some("CommandNotFound");
            return Err(GuestAgentError::Refused { command, desc: facts::clean(desc), is_unknown });
        }
        answer.get("return").cloned().ok_or_else(|| unexpected(command, &answer))
    }
}

fn unexpected(command: &'static str, answer: &Value) -> GuestAgentError {
    GuestAgentError::Unexpected { command, detail: facts::clean(&shorten(answer)) }
}
