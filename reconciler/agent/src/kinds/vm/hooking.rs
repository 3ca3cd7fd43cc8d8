//! The hooks that a VM declares: which of them is due, and what follows from it.

use std::time::Duration;

use berth_api::{
    ConditionType, HookFailurePolicy, Power, PreStopHook, Readiness, Reason, StopMode, VM, condition,
};
use berth_qemu::power::RunState;

use super::{Observed, Step, stop_mode, stop_snapshots};
use crate::context::Context;
use crate::converge::Plan;
use crate::hooks::{DueCall, DueHook, HookCall, HookCause, HookProgress};
use crate::journal::{Journal, PostStart, Run, Stop, StopReason};
use crate::key::ObjectName;
use crate::probes::{GuestAddress, Outcome};

/// Observes the hook that is due.
pub(super) fn observe(ctx: &Context, vm: &VM, observed: &mut Observed) {
    let name = ObjectName::of(vm);
    let hook = pre_stop(vm, observed).filter(|_| runs(observed));
    let snapshot = hook.and_then(|of| stop_snapshots::due(ctx, vm, observed, of));
    if let Some(snapshot) = snapshot {
        ctx.hooks.forget(&name);
        observed.hook = Some(DueHook::Snapshot(snapshot));
        return;
    }
    match due(vm, observed) {
        Some(call) => {
            let progress = ctx.hooks.progress(&name, &call);
            observed.hook = Some(DueHook::Call(Box::new(DueCall { call, progress })));
        }
        // A monitor that does not answer for a moment does not end a call.
        None if observed.process.is_some() && observed.machine.is_none() => {}
        None => ctx.hooks.forget(&name),
    }
}

fn due(vm: &VM, observed: &Observed) -> Option<HookCall> {
    let process = observed.process.as_ref()?.identity.clone();
    let (cause, hook) = match &observed.journal.stop {
        Some(_) => {
            let (hook, stop) = pre_stop(vm, observed)?;
            (HookCause::PreStop(stop.since), hook.call()?)
        }
        None if is_post_start_due(vm, observed) => {
            (HookCause::PostStart, vm.spec.hooks.as_ref()?.post_start.clone()?)
        }
        None => return None,
    };
    let time = Duration::from_secs(u64::try_from(hook.timeout_seconds).unwrap_or_default());
    runs(observed).then(|| HookCall {
        process,
        cause,
        hook,
        address: GuestAddress::of(vm, &observed.accesses),
        time,
    })
}

fn runs(observed: &Observed) -> bool {
    observed.machine.as_ref().is_some_and(|machine| machine.run_state == RunState::Running)
}

/// Returns the hook before a stop that has not asked the guest yet. A guest that does not work is not called, and neither is one that is not
/// asked to shut down.
fn pre_stop<'a>(vm: &'a VM, observed: &'a Observed) -> Option<(&'a PreStopHook, &'a Stop)> {
    let stop = observed.journal.stop.as_ref()?;
    let hook = vm.spec.hooks.as_ref()?.pre_stop.as_ref()?;
    let is_early = stop.asked == 0 && !stop.cancelled && stop.why != StopReason::Unhealthy;
    let is_hard = stop_mode::mode(vm, observed, stop.why) == StopMode::Hard;
    (is_early && !is_hard).then_some((hook, stop))
}

fn is_post_start_due(vm: &VM, observed: &Observed) -> bool {
    let run = observed.journal.run.as_ref();
    vm.spec.power == Power::Running && run.is_some_and(|run| run.post_start == Some(PostStart::Due))
}

/// Returns the plan that the hook before a stop makes, if the guest is not to be asked to shut down yet. `left`: of the grace period.
pub(super) fn before_stop(
    vm: &VM,
    observed: &Observed,
    stop: &Stop,
    stopping: &Readiness,
    left: Duration,
) -> Option<Plan<Step>> {
    let due = match observed.hook.as_ref()? {
        DueHook::Call(due) => due,
        DueHook::Snapshot(due) => {
            let is_heeded = is_heeded(vm, observed, stop, due.policy);
            return stop_snapshots::before_stop(due, is_heeded, stopping, left);
        }
    };
    let is_heeded = is_heeded(vm, observed, stop, due.call.hook.failure_policy);
    match &due.progress {
        HookProgress::Ended(Outcome::Failure(cause)) if is_heeded => {
            let text = format!("the guest is not stopped, because its preStop hook failed: {cause}");
            Some(Plan::without_steps(Readiness::Stalled(Reason::HookFailed, text)))
        }
        HookProgress::Ended(_) => None,
        // The grace period ends the wait for a hook whose failure is ignored.
        _ if left.is_zero() && !is_heeded => None,
        HookProgress::Due => {
            Some(Plan::steps(vec![Step::RunHook(Box::new(due.call.clone()))], stopping.clone()))
        }
        HookProgress::Running => {
            let plan = Plan::without_steps(stopping.clone());
            Some(if left.is_zero() { plan } else { plan.requeue_after(left) })
        }
    }
}

/// Whether the guest is not stopped before its hook has succeeded.
pub(super) fn is_required(vm: &VM, observed: &Observed, stop: &Stop) -> bool {
    pre_stop(vm, observed).is_some_and(|(hook, _)| is_heeded(vm, observed, stop, hook.failure_policy))
}

/// Whether the grace period begins now, because its hook held the guest back until now: it is asked to shut down before it is powered off.
pub(super) fn is_to_be_released(vm: &VM, observed: &Observed, stop: &Stop) -> bool {
    let (is_over, has_succeeded) = match &observed.hook {
        Some(DueHook::Call(due)) => {
            let progress = &due.progress;
            (matches!(progress, HookProgress::Ended(_)), *progress == HookProgress::Ended(Outcome::Success))
        }
        Some(DueHook::Snapshot(due)) => (stop_snapshots::is_over(due), due.is_taken),
        None => return false,
    };
    if stop.asked > 0 || stop.released.is_some() {
        return false;
    }
    if is_required(vm, observed, stop) {
        return has_succeeded;
    }
    // Its failure does not count any more: the policy was changed, or the VM is deleted or its host drained.
    let conditions = vm.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let ready = condition::find(conditions, ConditionType::Ready.as_str());
    let has_failed = ready.is_some_and(|ready| ready.reason == Reason::HookFailed.as_str());
    has_failed && is_over && pre_stop(vm, observed).is_some()
}

/// Whether a failure keeps the guest running. A guest holds back neither a deletion nor the administrator of its host.
fn is_heeded(vm: &VM, observed: &Observed, stop: &Stop, policy: HookFailurePolicy) -> bool {
    let is_urgent =
        stop.why == StopReason::Delete || observed.draining || vm.metadata.deletion_timestamp.is_some();
    policy == HookFailurePolicy::Fail && !is_urgent
}

/// Returns the plan that the hook after the start makes for a VM that is as declared otherwise.
pub(super) fn after_start(vm: &VM, observed: &Observed) -> Option<Plan<Step>> {
    let run = observed.journal.run.as_ref()?;
    let due = match &observed.hook {
        Some(DueHook::Call(due)) if due.call.cause == HookCause::PostStart => Some(due),
        _ => None,
    };
    let waiting =
        || Readiness::Reconciling(Reason::HookRunning, "its postStart hook has not ended yet".to_owned());
    let recorded = |outcome: PostStart| {
        let run = Run { post_start: Some(outcome), ..run.clone() };
        let journal = Journal { run: Some(run), ..observed.journal.clone() };
        Some(Plan::steps(vec![Step::WriteJournal(Box::new(journal))], waiting()))
    };
    match (&run.post_start, due.map(|due| &due.progress)) {
        (Some(PostStart::Due), Some(HookProgress::Due)) => {
            let call = due.map(|due| due.call.clone())?;
            Some(Plan::steps(vec![Step::RunHook(Box::new(call))], waiting()))
        }
        (Some(PostStart::Due), Some(HookProgress::Running)) => Some(Plan::without_steps(waiting())),
        (Some(PostStart::Due), Some(HookProgress::Ended(Outcome::Success))) => recorded(PostStart::Done),
        (Some(PostStart::Due), Some(HookProgress::Ended(Outcome::Failure(why)))) => {
            recorded(PostStart::Failed(why.clone()))
        }
        (Some(PostStart::Failed(cause)), _) => {
            let hook = vm.spec.hooks.as_ref()?.post_start.as_ref()?;
            let text = format!("its postStart hook failed: {cause}");
            let stalled = Plan::without_steps(Readiness::Stalled(Reason::HookFailed, text));
            (hook.failure_policy == HookFailurePolicy::Fail).then_some(stalled)
        }
        _ => None,
    }
}
