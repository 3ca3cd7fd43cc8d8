//! The state of a machine (the guest's memory and its devices), saved to a file and loaded into another QEMU.
//!
//! ```text
//!  Running ──save──▶ Paused … PostMigrate ──quit──▶ (the file is the guest)
//!                       │ failed or cancelled: start
//!                       ▼
//!                    Running
//!
//!  launch for a saved state ──▶ InMigrate ──load──▶ Paused ──start──▶ Running
//!                                   │ failed: QEMU ends with an error
//! ```
//!
//! QEMU gets the file as an open descriptor ([`Hypervisor::lend_state`](crate::hypervisor::Hypervisor::lend_state)) on the
//! connection that then saves or loads: its sandbox allows no program (`exec:`), and a descriptor needs no access by path. A
//! guest that is loaded runs only after [`power::start`](crate::power::start).

use std::time::Duration;

use serde_json::{Value, json};

use crate::power;
use crate::qmp::{Qmp, QmpError};

/// The name under which QEMU knows the file.
pub const STATE_FILE: &str = "state";
/// Bytes per second. QEMU's own limit is meant for networks.
const NO_LIMIT: u64 = 1 << 40;
/// How often it is seen whether a save that was cancelled has ended, and the time in between.
const CANCEL_LOOKS: u32 = 100;
const CANCEL_PAUSE: Duration = Duration::from_millis(20);

/// The progress of a save or a load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// None was begun in this QEMU, or it was cancelled.
    Idle,
    Active,
    Completed,
    /// Failed for this reason.
    Failed(String),
}

/// Stops the guest's CPUs and begins to save the state to the file that QEMU was given. The end shows in [`transfer`]: a machine in
/// state PostMigrate has a complete file only with [`Transfer::Completed`]. If the save does not begin, a guest that ran goes on.
pub async fn save(qmp: &Qmp, runs: bool) -> Result<(), QmpError> {
    announce(qmp).await?;
    qmp.execute("migrate-set-parameters", json!({"max-bandwidth": NO_LIMIT})).await?;
    power::stop(qmp).await?;
    let begun = qmp.execute("migrate", json!({"uri": format!("fd:{STATE_FILE}")})).await;
    if let (Err(_), true) = (&begun, runs) {
        power::start(qmp).await?;
    }
    begun.map(|_| ())
}

/// Cancels a save, and waits until QEMU has left it: before that, it refuses to let the guest's CPUs run. They stay stopped. Succeeds if
/// there is none.
pub async fn cancel(qmp: &Qmp) -> Result<(), QmpError> {
    qmp.execute("migrate_cancel", Value::Null).await?;
    for _ in 0..CANCEL_LOOKS {
        let state = qmp.execute("query-status", Value::Null).await?;
        if state["status"] != "finish-migrate" && transfer(qmp).await? != Transfer::Active {
            break;
        }
        tokio::time::sleep(CANCEL_PAUSE).await;
    }
    Ok(())
}

/// Begins to load the state from the file that QEMU was given. The machine must have been launched as the saved one was, with the
/// disks that were plugged in since; CPUs that were plugged in must be plugged in again. QEMU answers no further command while it loads, and ends if it
/// cannot load it.
pub async fn load(qmp: &Qmp) -> Result<(), QmpError> {
    announce(qmp).await?;
    qmp.execute("migrate-incoming", json!({"uri": format!("fd:{STATE_FILE}")})).await.map(|_| ())
}

/// Queries the progress.
pub async fn transfer(qmp: &Qmp) -> Result<Transfer, QmpError> {
    Ok(progress(qmp).await?.0)
}

/// Queries the progress, of a save with the part of the guest's memory that is saved, in percent.
pub async fn progress(qmp: &Qmp) -> Result<(Transfer, Option<i64>), QmpError> {
    let answer = qmp.execute("query-migrate", Value::Null).await?;
    let status = answer.get("status").and_then(Value::as_str).unwrap_or("none");
    let detail = answer.get("error-desc").and_then(Value::as_str);
    let transfer = match status {
        "none" | "cancelled" => Transfer::Idle,
        "completed" => Transfer::Completed,
        "failed" => Transfer::Failed(detail.unwrap_or(status).chars().take(500).collect()),
        _ => Transfer::Active,
    };
    let saved = (transfer == Transfer::Active).then(|| saved_percent(&answer)).flatten();
    Ok((transfer, saved))
}

pub(crate) fn saved_percent(answer: &Value) -> Option<i64> {
    let bytes = |name: &str| answer.get("ram")?.get(name)?.as_u64();
    let total = bytes("total").filter(|total| *total > 0)?;
    let saved = total.saturating_sub(bytes("remaining")?);
    i64::try_from(u128::from(saved) * 100 / u128::from(total)).ok()
}

/// Requests an event for each step. The capabilities that an earlier move of the guest was begun with would hold it up.
async fn announce(qmp: &Qmp) -> Result<(), QmpError> {
    let capabilities = [("events", true), ("auto-converge", false), ("pause-before-switchover", false)];
    set_capabilities(qmp, &capabilities).await
}

/// Sets capabilities of the next transfer of the guest's state.
pub(crate) async fn set_capabilities(qmp: &Qmp, states: &[(&str, bool)]) -> Result<(), QmpError> {
    let list: Vec<Value> =
        states.iter().map(|(name, state)| json!({"capability": name, "state": state})).collect();
    qmp.execute("migrate-set-capabilities", json!({"capabilities": list})).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_progress_of_a_save_is_the_part_of_the_memory_that_is_not_left() {
        let percent = |ram: Value| saved_percent(&json!({"status": "active", "ram": ram}));
        assert_eq!(percent(json!({"total": 1000, "remaining": 250, "transferred": 1})), Some(75));
        assert_eq!(
            percent(json!({"total": 1000, "remaining": 2000})),
            Some(0),
            "memory that was written again"
        );
        for unknown in [json!({}), json!({"total": 0, "remaining": 0}), json!({"total": "x", "remaining": 0})]
        {
            assert_eq!(percent(unknown), None);
        }
        assert_eq!(saved_percent(&json!({"status": "setup"})), None);
    }
}
