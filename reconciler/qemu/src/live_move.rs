//! The move of a running guest to another QEMU, over a connection that both have an end of.
//!
//! ```text
//!  the QEMU that the guest leaves                                   the QEMU that it goes to
//!
//!  Running ──send──▶ Sending ──▶ ReadyToSwitch ──switch_over──▶ Completed      InMigrate ──receive──▶ Paused ──start──▶ Running
//!                       │ cancelled, or failed: it runs on          │              │ failed: it ends
//!                       ▼                                           │ start: it runs on, if the other one has not started
//!                    Running ◀──────────────────────────────────────┘
//! ```
//!
//! In ReadyToSwitch the guest is paused, and its disks are flushed and still those of the first QEMU. Completed gives them up. The second QEMU
//! takes them only when its guest is started (`late-block-activate`): until then the first one can go on.
//!
//! QEMU answers no command while it writes the last part of the state: the connection must be read meanwhile.

use serde_json::{Value, json};

use crate::qmp::{Qmp, QmpError};
use crate::saved_state::set_capabilities;

/// The name under which QEMU knows its end of the connection.
pub const CHANNEL: &str = "channel";
/// The length of a cause that is kept.
const MAX_CAUSE: usize = 500;

/// Limits of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendLimits {
    /// Bytes in a second.
    pub bandwidth: u64,
    /// How long the guest may be paused for the last part of its memory, in milliseconds.
    pub downtime_ms: u64,
}

/// The progress of a move, at the QEMU that the guest leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SendPhase {
    /// None was begun, or it was cancelled.
    Idle,
    Sending,
    /// The guest is paused, and its disks are flushed.
    ReadyToSwitch,
    /// The last part is being written.
    Switching,
    Completed,
    /// Failed for this reason.
    Failed(String),
}

/// Begins to send the state of the guest, which runs on, to the connection that QEMU was given.
pub async fn send(qmp: &Qmp, limits: SendLimits) -> Result<(), QmpError> {
    set_capabilities(qmp, &[("events", true), ("auto-converge", true), ("pause-before-switchover", true)])
        .await?;
    let parameters = json!({"max-bandwidth": limits.bandwidth, "downtime-limit": limits.downtime_ms});
    qmp.execute("migrate-set-parameters", parameters).await?;
    qmp.execute("migrate", json!({"uri": format!("fd:{CHANNEL}")})).await.map(drop)
}

/// Has QEMU give the disks up and write the rest of the state, from [`SendPhase::ReadyToSwitch`].
pub async fn switch_over(qmp: &Qmp) -> Result<(), QmpError> {
    qmp.execute("migrate-continue", json!({"state": "pre-switchover"})).await.map(drop)
}

/// Begins to receive the state of a guest from the connection that QEMU was given. The disks are not taken before the guest is started. QEMU
/// answers no further command while it loads, and ends if it cannot load it.
pub async fn receive(qmp: &Qmp) -> Result<(), QmpError> {
    set_capabilities(qmp, &[("events", true), ("late-block-activate", true)]).await?;
    qmp.execute("migrate-incoming", json!({"uri": format!("fd:{CHANNEL}")})).await.map(drop)
}

/// Has the network cards of a guest that has come announce where it is, a few times within a second.
pub async fn announce(qmp: &Qmp) -> Result<(), QmpError> {
    let repeated = json!({"initial": 50, "max": 550, "rounds": 5, "step": 100});
    qmp.execute("announce-self", repeated).await.map(drop)
}

/// Queries the progress, with the part of the guest's memory that is sent, in percent.
pub async fn progress(qmp: &Qmp) -> Result<(SendPhase, Option<i64>), QmpError> {
    let answer = qmp.execute("query-migrate", Value::Null).await?;
    Ok((phase(&answer), crate::saved_state::saved_percent(&answer)))
}

fn phase(answer: &Value) -> SendPhase {
    let status = answer.get("status").and_then(Value::as_str).unwrap_or("none");
    let detail = answer.get("error-desc").and_then(Value::as_str);
    match status {
        "none" | "cancelled" => SendPhase::Idle,
        "pre-switchover" => SendPhase::ReadyToSwitch,
        "device" => SendPhase::Switching,
        "completed" => SendPhase::Completed,
        "failed" => SendPhase::Failed(detail.unwrap_or(status).chars().take(MAX_CAUSE).collect()),
        _ => SendPhase::Sending,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_state_of_a_migration_is_a_phase() {
        let of = |status: &str| phase(&json!({"status": status}));
        for status in ["setup", "active", "cancelling", "wait-unplug"] {
            assert_eq!(of(status), SendPhase::Sending, "{status}");
        }
        assert_eq!(of("pre-switchover"), SendPhase::ReadyToSwitch);
        assert_eq!(of("device"), SendPhase::Switching);
        assert_eq!(of("completed"), SendPhase::Completed);
        assert_eq!((phase(&json!({})), of("cancelled")), (SendPhase::Idle, SendPhase::Idle));
        let failed = phase(&json!({"status": "failed", "error-desc": "x".repeat(1000)}));
        assert_eq!(failed, SendPhase::Failed("x".repeat(MAX_CAUSE)), "of bounded length");
    }
}
