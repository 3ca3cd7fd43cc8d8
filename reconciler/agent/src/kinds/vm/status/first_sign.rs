//! The first sign of a guest after the start of its machine: its agent or its lease. Pure.

use berth_api::{ConditionType, VMStatus, condition};
use jiff::SignedDuration;

/// The longest time between a start and a first sign that came soon: conditions have whole seconds.
const SOON: SignedDuration = SignedDuration::from_secs(1);

/// Whether the machine has started since the stored status, and the agent of its guest has not answered yet. Never of a status with an
/// admission: that of a guest that was taken up is recorded at once.
pub(in crate::kinds::vm) fn is_awaited(stored: &VMStatus, status: &VMStatus) -> bool {
    let is = |status: &VMStatus, kind| condition::is_true(&status.conditions, kind);
    let has_started = is(status, ConditionType::Running) && !is(stored, ConditionType::Running);
    let has_answered = status.guest.as_ref().is_some_and(|guest| guest.agent);
    has_started
        && stored.process != status.process
        && stored.admitted_epoch == status.admitted_epoch
        && !has_answered
        && !is(status, ConditionType::Stalled)
}

/// Returns whether the first sign came soon after the start, if this status is the first with it.
pub(in crate::kinds::vm) fn came_soon(stored: &VMStatus, status: &VMStatus) -> Option<bool> {
    let is_seen = |status: &VMStatus| condition::is_true(&status.conditions, ConditionType::GuestReady);
    if is_seen(stored) || !is_seen(status) {
        return None;
    }
    let since = |kind: ConditionType| {
        condition::find(&status.conditions, kind.as_str()).map(|found| found.last_transition_time.0)
    };
    let delay = since(ConditionType::GuestReady)?.duration_since(since(ConditionType::Running)?);
    Some(delay <= SOON)
}

#[cfg(test)]
mod tests {
    use berth_api::{ConditionUpdate, Reason};
    use jiff::Timestamp;
    use serde_json::json;

    use super::*;

    /// A status with the times since which the guest runs and is seen.
    fn status(runs: Option<i64>, seen: Option<i64>) -> VMStatus {
        let mut status = VMStatus::default();
        for (kind, since) in [(ConditionType::Running, runs), (ConditionType::GuestReady, seen)] {
            let update = ConditionUpdate::from_bool(kind, since.is_some(), Reason::Running, "");
            let at = Timestamp::from_second(since.unwrap_or_default()).expect("a time");
            condition::set(&mut status.conditions, update, 1, at);
        }
        if runs.is_some() {
            let process = json!({"pid": 7, "startedAt": "2026-01-01T00:00:00Z"});
            status.process = serde_json::from_value(process).expect("a process");
        }
        status
    }

    #[test]
    fn a_guest_is_awaited_from_the_start_of_its_machine_until_its_agent_answers() {
        let (off, started) = (status(None, None), status(Some(100), None));
        assert!(is_awaited(&off, &started));
        assert!(is_awaited(&off, &status(Some(100), Some(100))), "it was seen by its lease");
        assert!(!is_awaited(&started, &started) && !is_awaited(&started, &off));
        let admitted = VMStatus { admitted_epoch: Some(1), ..started.clone() };
        assert!(!is_awaited(&off, &admitted), "its admission is recorded");
        let mut resumed = started.clone();
        resumed.conditions.clone_from(&off.conditions);
        assert!(!is_awaited(&resumed, &started), "the same machine runs again after a pause");
        let mut stalled = started.clone();
        let update = ConditionUpdate::from_bool(ConditionType::Stalled, true, Reason::Running, "");
        condition::set(&mut stalled.conditions, update, 1, Timestamp::UNIX_EPOCH);
        assert!(!is_awaited(&off, &stalled));
    }

    #[test]
    fn a_first_sign_came_soon_within_a_second_of_the_start() {
        let started = status(Some(100), None);
        assert_eq!(came_soon(&started, &started), None);
        assert_eq!(came_soon(&started, &status(Some(100), Some(101))), Some(true));
        assert_eq!(came_soon(&started, &status(Some(100), Some(108))), Some(false));
        assert_eq!(came_soon(&status(Some(100), Some(101)), &status(Some(100), Some(101))), None);
    }
}
