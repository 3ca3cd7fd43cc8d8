//! Power: what state a machine is in, and the ways to change it.
//!
//! With `-action shutdown=pause` a guest that switched itself off leaves QEMU behind in state
//! [`RunState::Shutdown`], so "it is off, and not because we killed it" is readable after a restart of the caller.
//! The *reason* is only in the [`SHUTDOWN`](crate::qmp::EventKind::Shutdown) event.
//!
//! ```text
//!  launch ─▶ Prelaunch ─start─▶ Running ◀─start/stop─▶ Paused
//!                                 │ ▲
//!            guest off, powerdown ▼ │ reset + start
//!                              Shutdown ──quit──▶ (process gone)
//! ```

use serde_json::{Value, json};

use crate::qmp::{Qmp, QmpError, shorten};

/// `query-status`, by what it means to us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunState {
    /// Launched, no instruction executed yet.
    Prelaunch,
    Running,
    /// Stopped on request.
    Paused,
    /// The guest has switched itself off.
    Shutdown,
    /// The guest's kernel gave up.
    GuestPanicked,
    /// Paused by QEMU itself: the host's disk is full or broken.
    IoError,
    /// QEMU or the accelerator failed: only a reset helps.
    InternalError,
    /// Any other, in QEMU's words.
    Other(String),
}

impl RunState {
    pub(crate) fn from_qemu(status: &str) -> Self {
        match status {
            "prelaunch" => Self::Prelaunch,
            "running" => Self::Running,
            "paused" => Self::Paused,
            "shutdown" => Self::Shutdown,
            "guest-panicked" => Self::GuestPanicked,
            "io-error" => Self::IoError,
            "internal-error" => Self::InternalError,
            other => Self::Other(other.to_owned()),
        }
    }
}

/// The state right now.
pub async fn run_state(qmp: &Qmp) -> Result<RunState, QmpError> {
    let answer = qmp.execute("query-status", Value::Null).await?;
    let Some(status) = answer.get("status").and_then(Value::as_str) else {
        return Err(QmpError::Unexpected { command: "query-status".to_owned(), detail: shorten(&answer) });
    };
    Ok(RunState::from_qemu(status))
}

/// Lets the guest's processors run: after launch, after [`stop`], after [`reset`]. Running already is fine.
pub async fn start(qmp: &Qmp) -> Result<(), QmpError> {
    plain(qmp, "cont").await
}

/// Stops the guest's processors. Stopped already is fine.
pub async fn stop(qmp: &Qmp) -> Result<(), QmpError> {
    plain(qmp, "stop").await
}

/// Presses the power button. Whether the guest cares is seen in [`run_state`], or as a SHUTDOWN event.
pub async fn powerdown(qmp: &Qmp) -> Result<(), QmpError> {
    plain(qmp, "system_powerdown").await
}

/// Presses the reset button. A machine that was off stays stopped until [`start`].
pub async fn reset(qmp: &Qmp) -> Result<(), QmpError> {
    plain(qmp, "system_reset").await
}

/// Ends QEMU at once, as if the plug were pulled; what the guest flushed is on disk.
///
/// A connection that ends instead of answering is success: QEMU may be quicker than its own reply.
pub async fn quit(qmp: &Qmp) -> Result<(), QmpError> {
    match plain(qmp, "quit").await {
        Err(QmpError::Disconnected { .. }) => Ok(()),
        other => other,
    }
}

/// How much memory the guest has left for itself after ballooning, in bytes.
pub async fn balloon(qmp: &Qmp) -> Result<u64, QmpError> {
    let answer = qmp.execute("query-balloon", json!({})).await?;
    answer
        .get("actual")
        .and_then(Value::as_u64)
        .ok_or_else(|| QmpError::Unexpected { command: "query-balloon".to_owned(), detail: shorten(&answer) })
}

async fn plain(qmp: &Qmp, command: &str) -> Result<(), QmpError> {
    qmp.execute(command, Value::Null).await.map(|_| ())
}
