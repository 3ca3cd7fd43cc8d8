//! The balloon of a fake machine.

use serde_json::{Map, Value, json};

use super::command_error::{Answer, CommandError};
use super::machine::Machine;
use crate::machine::BALLOON;

/// A report's time, far in the future: simulated time may start anywhere, and a fake guest's report is never old.
const REPORTED_AT: i64 = 4_000_000_000;

/// Whether a path names the balloon.
pub(super) fn is_balloon(path: &Value) -> bool {
    *path == format!("/machine/peripheral/{BALLOON}").as_str()
}

/// Returns the memory that the balloon leaves to the guest.
pub(super) fn query(machine: &Machine) -> Value {
    json!({"actual": left(machine)})
}

/// The guest, if it runs and has the driver, follows at once.
pub(super) fn request(machine: &mut Machine, args: &Map<String, Value>) -> Answer {
    let bytes = args["value"].as_u64().filter(|bytes| *bytes > 0);
    let bytes = bytes.ok_or_else(|| CommandError::generic("Parameter 'target' expects a size"))?;
    if machine.booted && machine.behaviour.balloons {
        machine.ballooned = machine.spec.machine.memory_bytes.saturating_sub(bytes);
    }
    Ok((json!({}), Vec::new()))
}

pub(super) fn set_property(machine: &mut Machine, args: &Map<String, Value>) -> Answer {
    match (args["property"].as_str(), args["value"].as_u64()) {
        (Some("guest-stats-polling-interval"), Some(seconds)) => machine.reports_memory = seconds > 0,
        _ => return Err(CommandError::generic("Property not found")),
    }
    Ok((json!({}), Vec::new()))
}

/// Returns what the guest reports, as far as it is asked and can.
pub(super) fn stats(machine: &Machine) -> Value {
    let reports = machine.reports_memory && machine.booted && machine.behaviour.balloons;
    let number = |bytes: u64| if reports { bytes } else { u64::MAX };
    let total = left(machine) + machine.memory_plugged;
    let stats = json!({
        "stat-total-memory": number(total),
        "stat-available-memory": number(total.saturating_sub(machine.behaviour.memory_used)),
        "stat-swap-in": u64::MAX,
        "stat-swap-out": u64::MAX,
    });
    json!({"last-update": if reports { REPORTED_AT } else { 0 }, "stats": stats})
}

fn left(machine: &Machine) -> u64 {
    machine.spec.machine.memory_bytes.saturating_sub(machine.ballooned)
}
