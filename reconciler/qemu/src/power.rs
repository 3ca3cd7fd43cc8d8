//! Power: the state of a machine, and the operations that change it.
//!
//! With `-action shutdown=pause` a guest that powered itself off leaves QEMU in state [`RunState::Shutdown`], so that a
//! guest's own shutdown can be distinguished from a kill after a restart of the caller. The *reason* is only in the
//! [`SHUTDOWN`](crate::qmp::EventKind::Shutdown) event.
//!
//! ```text
//!  launch ─▶ Prelaunch ─start─▶ Running ◀─start/stop─▶ Paused
//!                                 │ ▲ ◀─wake_up── Suspended (by the guest itself)
//!            guest off, powerdown ▼ │ reset + start
//!                              Shutdown ──quit──▶ (process ended)
//! ```

use std::time::Duration;

use serde_json::Value;

use crate::qmp::{Qmp, QmpError, shorten};

/// The longest name of a state that is kept.
const MAX_STATE: usize = 64;

/// The states of `query-status` that berth distinguishes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunState {
    /// Launched, no instruction executed yet.
    Prelaunch,
    Running,
    /// Stopped on request.
    Paused,
    /// The guest has powered itself off.
    Shutdown,
    /// The guest's kernel panicked.
    GuestPanicked,
    /// Paused by QEMU itself: the host's disk is full or broken.
    IoError,
    /// The guest did not reset its watchdog timer.
    Watchdog,
    /// QEMU or the accelerator failed: only a reset helps.
    InternalError,
    /// Launched for a saved state, which is not loaded yet.
    InMigrate,
    /// Its state was saved. It can still run on.
    PostMigrate,
    /// The guest has suspended itself to its memory (ACPI S3), until it is woken up.
    Suspended,
    /// Any other, in QEMU's terms.
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
            "watchdog" => Self::Watchdog,
            "internal-error" => Self::InternalError,
            "inmigrate" => Self::InMigrate,
            "postmigrate" => Self::PostMigrate,
            "suspended" => Self::Suspended,
            other => Self::Other(other.chars().take(MAX_STATE).collect()),
        }
    }
}

/// Queries the current state.
pub async fn run_state(qmp: &Qmp) -> Result<RunState, QmpError> {
    let answer = qmp.execute("query-status", Value::Null).await?;
    let Some(status) = answer.get("status").and_then(Value::as_str) else {
        return Err(QmpError::Unexpected { command: "query-status".to_owned(), detail: shorten(&answer) });
    };
    Ok(RunState::from_qemu(status))
}

/// Whether QEMU answers within this time, whatever it answers. A connection that has ended is no silence.
pub async fn is_answering(qmp: &Qmp, within: Duration) -> bool {
    let answer = qmp.execute_within("query-status", Value::Null, within).await;
    !matches!(answer, Err(QmpError::Timeout { .. }))
}

/// Wakes up a guest that has suspended itself to its memory.
///
/// *Errors*: QEMU's, also for a guest in any other state.
pub async fn wake_up(qmp: &Qmp) -> Result<(), QmpError> {
    plain(qmp, "system_wakeup").await
}

/// Starts the guest's CPUs: after launch, after [`stop`], after [`reset`]. Succeeds if they are already running.
pub async fn start(qmp: &Qmp) -> Result<(), QmpError> {
    plain(qmp, "cont").await
}

/// Stops the guest's CPUs. Succeeds if they are already stopped.
pub async fn stop(qmp: &Qmp) -> Result<(), QmpError> {
    plain(qmp, "stop").await
}

/// Presses the power button. The guest's reaction is visible in [`run_state`], or as a SHUTDOWN event.
pub async fn powerdown(qmp: &Qmp) -> Result<(), QmpError> {
    plain(qmp, "system_powerdown").await
}

/// Presses the reset button. A machine that was off stays stopped until [`start`].
pub async fn reset(qmp: &Qmp) -> Result<(), QmpError> {
    plain(qmp, "system_reset").await
}

/// Sends all of the guest's CPUs a non-maskable interrupt.
pub async fn inject_nmi(qmp: &Qmp) -> Result<(), QmpError> {
    plain(qmp, "inject-nmi").await
}

/// Ends QEMU at once, like a power failure; data that the guest has flushed is on disk.
///
/// A connection that ends without a reply counts as success: QEMU may end before it sends its reply.
pub async fn quit(qmp: &Qmp) -> Result<(), QmpError> {
    match plain(qmp, "quit").await {
        Err(QmpError::Disconnected { .. }) => Ok(()),
        other => other,
    }
}

async fn plain(qmp: &Qmp, command: &str) -> Result<(), QmpError> {
    qmp.execute(command, Value::Null).await.map(|_| ())
}
