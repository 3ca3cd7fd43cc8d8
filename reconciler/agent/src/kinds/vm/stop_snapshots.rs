//! The snapshot that a hook takes before a VM is stopped. The host asks for it in the status of the VM, the controllers create it, and the stop
//! goes on once all its parts are taken.
//!
//! Its name follows from the VM and the time at which the stop began, which is in the journal: an agent that restarts goes on with the same
//! snapshot.

use std::time::Duration;

use berth_api::vm::{StopSnapshot, stop_snapshot_name};
use berth_api::{
    ConditionType, DiskSnapshot, PreStopHook, Readiness, Reason, ResourceName, VM, VMState, VMStatus,
    condition,
};
use berth_qemu::power::RunState;
use kube::ResourceExt;

use super::{Observed, Step};
use crate::context::Context;
use crate::converge::Plan;
use crate::hooks::{DueHook, DueSnapshot};
use crate::journal::Stop;
use crate::key::ObjectName;
use crate::restores;

/// The maximum length of the cause, in bytes.
const MAX_CAUSE: usize = 512;

/// Returns the snapshot that this hook is to take before the stop that has begun.
pub(super) fn due(
    ctx: &Context,
    vm: &VM,
    observed: &Observed,
    (hook, stop): (&PreStopHook, &Stop),
) -> Option<DueSnapshot> {
    hook.snapshot.as_ref()?;
    let name = stop_snapshot_name(&vm.name_any(), stop.since);
    let parts = restores::parts_of(&ctx.index.read(), &ObjectName::of(vm).namespace, &name);
    let mut obstacles: Vec<(String, bool)> = parts.iter().filter_map(|part| obstacle(part)).collect();
    obstacles.sort_by_key(|(_, is_stalled)| !is_stalled);
    let time = Duration::from_secs(u64::try_from(hook.timeout_seconds).unwrap_or_default());
    let passed = Duration::try_from(observed.now.duration_since(stop.since)).unwrap_or_default();
    Some(DueSnapshot {
        is_taken: observed.snapshots.iter().any(|taken| taken.name.as_str() == name),
        obstacle: obstacles.into_iter().next(),
        since: stop.since,
        time,
        left: time.saturating_sub(passed),
        policy: hook.failure_policy,
        name,
    })
}

/// Returns why a part is not taken, if it reports it, and whether that needs a person.
fn obstacle(part: &DiskSnapshot) -> Option<(String, bool)> {
    let conditions = part.status.as_ref()?.conditions.as_slice();
    let ready = condition::find(conditions, ConditionType::Ready.as_str())?;
    let text = || format!("Disk {}: {}", part.spec.disk, condition::cut(&ready.message, MAX_CAUSE));
    let is_stalled = condition::is_true(conditions, ConditionType::Stalled);
    (ready.status != "True").then(|| (text(), is_stalled))
}

/// Returns why it is not taken and is not waited for any longer.
fn failure(due: &DueSnapshot) -> Option<String> {
    let late = format!("it was not taken within {} s", due.time.as_secs());
    match &due.obstacle {
        Some((cause, true)) => Some(cause.clone()),
        Some((cause, false)) => due.left.is_zero().then(|| format!("{late}: {cause}")),
        None => due.left.is_zero().then_some(late),
    }
}

/// Whether it is not waited for any longer.
pub(super) fn is_over(due: &DueSnapshot) -> bool {
    due.is_taken || failure(due).is_some()
}

/// Returns the plan while the guest is not to be asked to shut down yet. `left`: of the grace period. A snapshot that is taken late still lets
/// the stop go on.
pub(super) fn before_stop(
    due: &DueSnapshot,
    is_heeded: bool,
    stopping: &Readiness,
    left: Duration,
) -> Option<Plan<Step>> {
    let name = &due.name;
    if due.is_taken {
        return None;
    }
    if let Some(cause) = failure(due) {
        let text =
            format!("the guest is not stopped, because its preStop hook failed: VMSnapshot {name}: {cause}");
        return is_heeded.then(|| Plan::without_steps(Readiness::Stalled(Reason::HookFailed, text)));
    }
    // The grace period ends the wait for a hook whose failure is ignored.
    if left.is_zero() && !is_heeded {
        return None;
    }
    let waiting = match stopping {
        Readiness::Reconciling(reason, _) => {
            Readiness::Reconciling(*reason, format!("the guest is stopped once VMSnapshot {name} is taken"))
        }
        other => other.clone(),
    };
    let wait = if left.is_zero() { due.left } else { left.min(due.left) };
    Some(Plan::without_steps(waiting).requeue_after(wait))
}

/// Returns the request for the status. `stored`: the one that is there.
pub(super) fn requested(observed: &Observed, stored: Option<Box<StopSnapshot>>) -> Option<Box<StopSnapshot>> {
    match &observed.hook {
        Some(DueHook::Snapshot(due)) if !due.is_taken => Some(Box::new(StopSnapshot {
            name: ResourceName(due.name.clone()),
            requested_at: due.since.to_string(),
            message: failure(due),
        })),
        // A guest that cannot be read for a moment, or does not run, has not been asked to shut down.
        None if observed.process.is_some()
            && observed.machine.as_ref().is_none_or(|machine| {
                matches!(machine.run_state, RunState::IoError | RunState::Paused | RunState::Suspended)
            })
            && observed.journal.stop.as_ref().is_some_and(|stop| stop.asked == 0 && !stop.cancelled) =>
        {
            stored
        }
        _ => None,
    }
}

/// Returns the event of a VM that was stopped without its snapshot.
pub(super) fn not_taken(stored: &VMStatus, status: &VMStatus) -> Option<(Reason, String)> {
    let request = stored.stop_snapshot.as_deref().filter(|_| status.stop_snapshot.is_none())?;
    let is_taken = status.snapshots.iter().any(|taken| taken.name == request.name);
    // A guest that goes on in the same process is not to be stopped any more.
    let is_stopped =
        matches!(status.state, Some(VMState::Stopping | VMState::Stopped | VMState::Terminating));
    let is_withdrawn = !is_stopped && status.process == stored.process;
    let cause = request.message.as_deref().unwrap_or("it was not taken in time");
    let note = || format!("stopped without VMSnapshot {}: {cause}", request.name);
    (!is_taken && !is_withdrawn).then(|| (Reason::SnapshotFailed, note()))
}

#[cfg(test)]
mod tests {
    use berth_api::HookFailurePolicy;
    use berth_api::vm::{ProcessStatus, SnapshotOfVM};
    use jiff::Timestamp;
    use serde_json::json;

    use super::*;

    fn waiting() -> DueSnapshot {
        DueSnapshot {
            name: "web-stop-19700101000000".to_owned(),
            since: Timestamp::UNIX_EPOCH,
            is_taken: false,
            obstacle: None,
            time: Duration::from_secs(30),
            left: Duration::from_secs(20),
            policy: HookFailurePolicy::Ignore,
        }
    }

    fn planned(due: &DueSnapshot, is_heeded: bool, left: u64) -> Option<Plan<Step>> {
        let stopping = Readiness::Reconciling(Reason::Stopping, String::new());
        before_stop(due, is_heeded, &stopping, Duration::from_secs(left))
    }

    #[test]
    fn a_stop_waits_for_its_snapshot_as_long_as_both_have_time() {
        let due = waiting();
        for (is_heeded, left, wait) in [(false, 60, 20), (false, 5, 5), (true, 60, 20), (true, 0, 20)] {
            let plan = planned(&due, is_heeded, left).expect("it waits");
            assert!(plan.steps.is_empty());
            assert_eq!(plan.requeue_after, Some(Duration::from_secs(wait)), "{is_heeded} {left}");
            assert!(plan.readiness.message().contains("once VMSnapshot web-stop-19700101000000 is taken"));
        }
        assert_eq!(planned(&due, false, 0), None, "the grace period is over");
        let taken = DueSnapshot { is_taken: true, left: Duration::ZERO, ..waiting() };
        assert_eq!(planned(&taken, true, 60), None, "also one that was taken late");
    }

    #[test]
    fn a_snapshot_that_is_not_taken_holds_back_the_stop_with_the_policy_fail_only() {
        let late = DueSnapshot { left: Duration::ZERO, ..waiting() };
        let refused =
            DueSnapshot { obstacle: Some(("Disk root: no space left".to_owned(), true)), ..waiting() };
        for (due, cause) in [(late, "not taken within 30 s"), (refused, "Disk root: no space left")] {
            assert_eq!(planned(&due, false, 60), None);
            let plan = planned(&due, true, 60).expect("the guest runs on");
            let Readiness::Stalled(Reason::HookFailed, text) = &plan.readiness else { panic!("{plan:?}") };
            assert!(text.contains(cause) && text.contains("VMSnapshot web-stop-19700101000000"), "{text}");
        }
    }

    #[test]
    fn the_cause_of_a_part_counts_at_once_if_it_needs_a_person_and_else_at_the_end_of_the_time() {
        let part = |stalled: &str| -> DiskSnapshot {
            let condition = |kind: &str, status: &str| {
                json!({"type": kind, "status": status, "reason": "NoSpace", "message": "no space left",
                    "lastTransitionTime": "2026-01-01T00:00:00Z"})
            };
            serde_json::from_value(json!({
                "metadata": {"name": "s-0"}, "spec": {"disk": "root"},
                "status": {"conditions": [condition("Ready", "False"), condition("Stalled", stalled)]},
            }))
            .expect("a snapshot")
        };
        let cause = "Disk root: no space left".to_owned();
        let of = |stalled: &str| DueSnapshot { obstacle: obstacle(&part(stalled)), ..waiting() };
        assert_eq!(failure(&of("True")), Some(cause.clone()));
        assert_eq!(failure(&of("False")), None);
        let late = DueSnapshot { left: Duration::ZERO, ..of("False") };
        assert_eq!(failure(&late), Some(format!("it was not taken within 30 s: {cause}")));
    }

    #[test]
    fn an_event_tells_of_a_stop_without_its_snapshot_and_not_of_one_that_was_withdrawn() {
        let request = StopSnapshot {
            name: "web-stop-19700101000000".into(),
            requested_at: Timestamp::UNIX_EPOCH.to_string(),
            message: Some("Disk root: no space left".to_owned()),
        };
        let stored = VMStatus { stop_snapshot: Some(Box::new(request.clone())), ..VMStatus::default() };
        let stopped = VMStatus { state: Some(VMState::Stopped), ..VMStatus::default() };
        let (reason, note) = not_taken(&stored, &stopped).expect("an event");
        assert_eq!(reason, Reason::SnapshotFailed);
        assert!(note.contains("web-stop-19700101000000: Disk root: no space left"), "{note}");
        assert_eq!(not_taken(&stored, &stored), None, "it is waited for");
        assert_eq!(not_taken(&stopped, &stopped), None, "none was asked for");
        for state in [VMState::Running, VMState::Paused] {
            let goes_on = VMStatus { state: Some(state), ..VMStatus::default() };
            assert_eq!(not_taken(&stored, &goes_on), None, "{state:?}");
        }
        let process = ProcessStatus { pid: 7, started_at: Timestamp::UNIX_EPOCH };
        let again = VMStatus { state: Some(VMState::Running), process: Some(process), ..VMStatus::default() };
        assert!(not_taken(&stored, &again).is_some(), "another process: it was restarted");
        let taken = SnapshotOfVM { name: request.name, taken_at: String::new() };
        assert_eq!(not_taken(&stored, &VMStatus { snapshots: vec![taken], ..stopped }), None);
    }
}
