//! The events of a VM: the differences between two statuses that people are to see.

use berth_api::{ConditionType, Reason, VMState, VMStatus, condition};

use super::conditions::FROZEN;

/// Returns the event of file systems that stay frozen.
pub(in crate::kinds::vm) fn frozen(stored: &VMStatus, status: &VMStatus) -> Option<(Reason, String)> {
    let kind = ConditionType::GuestFrozen;
    let is_new =
        condition::is_true(&status.conditions, kind) && !condition::is_true(&stored.conditions, kind);
    is_new.then(|| (Reason::GuestFrozen, FROZEN.to_owned()))
}

/// Returns the event of a network card that has lost its tap and cannot be exchanged.
pub(in crate::kinds::vm) fn without_tap(stored: &VMStatus, status: &VMStatus) -> Option<(Reason, String)> {
    let kind = ConditionType::InterfacesSynced.as_str();
    let missing = |status: &VMStatus| {
        let found = condition::find(&status.conditions, kind)?;
        (found.reason == Reason::TapMissing.as_str()).then(|| found.message.clone())
    };
    let message = missing(status)?;
    missing(stored).is_none().then_some((Reason::TapMissing, message))
}

/// Returns the event of a guest that was started again after it ended by itself.
pub(in crate::kinds::vm) fn restarted(stored: &VMStatus, status: &VMStatus) -> Option<(Reason, String)> {
    let cause = status.last_end.as_ref().map_or("the guest ended", |end| end.message.as_str());
    let out_of_memory = status.last_end.as_ref().is_some_and(|end| end.out_of_memory);
    let reason = if out_of_memory { Reason::OutOfMemory } else { Reason::Restarted };
    let note = || format!("{cause}: started again (restart {})", status.restarts);
    (status.restarts > stored.restarts).then(|| (reason, note()))
}

/// Returns the event of a guest that was stopped, paused or suspended, or was started again. The first start has none, as each new VM
/// would take one more write; `status.process` has its time.
pub(in crate::kinds::vm) fn transition(stored: &VMStatus, status: &VMStatus) -> Option<(Reason, String)> {
    let (before, now) = (stored.state?, status.state?);
    if before == now {
        return None;
    }
    // A guest that is paused otherwise, for a snapshot or by a full disk of its host, may come and go often.
    let is_ready = |status: &VMStatus| condition::is_true(&status.conditions, ConditionType::Ready);
    let did_run =
        matches!(before, VMState::Running | VMState::Paused | VMState::Stopping | VMState::Suspending);
    let runs_again = match before {
        VMState::Stopped | VMState::Suspended | VMState::CrashLoop => true,
        VMState::Paused => is_ready(stored),
        // A state on the way, which is not always written. The first start is that of the first generation.
        VMState::Starting | VMState::Stopping => status.observed_generation > 1,
        _ => false,
    };
    let ready = condition::find(&status.conditions, ConditionType::Ready.as_str());
    let note = |otherwise: &str| {
        let message = ready.map(|ready| ready.message.as_str()).filter(|message| !message.is_empty());
        message.unwrap_or(otherwise).to_owned()
    };
    match now {
        VMState::Running if runs_again => Some((Reason::Running, "the guest runs".to_owned())),
        VMState::Stopped if did_run => Some((Reason::Stopped, note("the guest is off"))),
        VMState::Paused if did_run && is_ready(status) => {
            Some((Reason::Paused, note("the guest's CPUs are stopped")))
        }
        VMState::Suspended if did_run => {
            Some((Reason::Suspended, note("the guest's memory is in a file of its host")))
        }
        _ => None,
    }
}
