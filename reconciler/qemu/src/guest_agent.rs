//! qemu-guest-agent: what the guest says about itself.
//!
//! The channel is a serial line with no connection state: nobody may listen, an answer may be one to a question of
//! a client before us. So every exchange that failed is followed by a `guest-sync-delimited` before the next.
//! Everything that comes back is written by the guest, which may be hostile: sizes and counts are bounded, control
//! characters are dropped, and nothing of it may decide anything but what this guest's owner sees.

mod channel;
mod facts;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;

use crate::machine::GUEST_AGENT_CHANNEL;
use crate::qmp::{Qmp, QmpError, shorten};
use channel::Channel;
pub use facts::{Filesystem, FilesystemDisk, Interface, OsInfo, mounts_of};

/// How long the guest may take for one answer. An agent answers in milliseconds, or it is not there.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(3);

/// The channel to one guest's agent. One question at a time.
#[derive(Debug)]
pub struct GuestAgent {
    channel: Channel,
    timeout: Duration,
    synced: bool,
}

/// Whether something in the guest has the agent's port open. If not, asking would only wait for the timeout.
///
/// *Errors*: QEMU's. One that does not know the channel counts as open.
pub async fn has_listener(qmp: &Qmp) -> Result<bool, QmpError> {
    let channels = qmp.execute("query-chardev", Value::Null).await?;
    let of_agent = |channel: &&Value| channel["label"] == GUEST_AGENT_CHANNEL;
    let ours = channels.as_array().into_iter().flatten().find(of_agent);
    Ok(ours.is_none_or(|channel| channel["frontend-open"] != false))
}

/// What to do after the guest has shut down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShutdownMode {
    Powerdown,
    Reboot,
}

/// Why the guest agent gave no (usable) answer.
#[derive(Debug, thiserror::Error)]
pub enum GuestAgentError {
    #[error("cannot connect to the guest agent's socket {}", path.display())]
    Connect { path: PathBuf, source: std::io::Error },
    #[error("the guest agent did not answer within {after:?}: it is not installed, or the guest is not up")]
    Silent { after: Duration },
    #[error("the guest agent's channel broke: {detail}")]
    Broken { detail: String },
    #[error("the guest agent refused {command}: {desc}")]
    Refused { command: &'static str, desc: String },
    #[error("the guest agent answered {command} with something else than expected: {detail}")]
    Unexpected { command: &'static str, detail: String },
}

impl GuestAgent {
    /// Connects to the channel's unix socket. Says nothing about whether an agent listens: [`GuestAgent::ping`] does.
    pub async fn connect(path: &Path) -> Result<Self, GuestAgentError> {
        let stream = UnixStream::connect(path)
            .await
            .map_err(|source| GuestAgentError::Connect { path: path.to_owned(), source })?;
        Ok(Self::over(stream))
    }

    /// The agent at the other end of a connected stream.
    pub fn over<S>(stream: S) -> Self
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        Self { channel: Channel::new(stream), timeout: DEFAULT_TIMEOUT, synced: false }
    }

    /// Changes how long one answer may take.
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Whether an agent is there.
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

    /// What is mounted, and on which disks: see [`mounts_of`].
    pub async fn filesystems(&mut self) -> Result<Vec<Filesystem>, GuestAgentError> {
        let answer = self.execute("guest-get-fsinfo", Value::Null).await?;
        facts::filesystems(&answer).ok_or_else(|| unexpected("guest-get-fsinfo", &answer))
    }

    /// Asks the guest to shut down. The agent does not answer when it does: silence is success.
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

    async fn execute(&mut self, command: &'static str, args: Value) -> Result<Value, GuestAgentError> {
        let limit = self.timeout;
        let mut message = json!({"execute": command});
        if !args.is_null() {
            message["arguments"] = args;
        }
        let already = std::mem::take(&mut self.synced);
        let exchange = async {
            if !already {
                self.channel.sync().await?;
            }
            self.channel.exchange(&message).await
        };
        let answer = match tokio::time::timeout(limit, exchange).await {
            Err(_) => return Err(GuestAgentError::Silent { after: limit }),
            Ok(answer) => answer?,
        };
        self.synced = true;
        if let Some(error) = answer.get("error") {
            let desc = error.get("desc").and_then(Value::as_str).unwrap_or("no reason given");
            return Err(GuestAgentError::Refused { command, desc: facts::clean(desc) });
        }
        answer.get("return").cloned().ok_or_else(|| unexpected(command, &answer))
    }
}

fn unexpected(command: &'static str, answer: &Value) -> GuestAgentError {
    GuestAgentError::Unexpected { command, detail: facts::clean(&shorten(answer)) }
}
