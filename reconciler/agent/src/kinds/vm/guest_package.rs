//! The package of the guest agent, as the VM declares it for its running guest.

use berth_api::condition::{self, remove};
use berth_api::vm::{GuestAgentStatus, PackagePolicy};
use berth_api::{ConditionType, ConditionUpdate, Reason, VM, VMStatus};
use jiff::Timestamp;

use super::observe::is_left_alone;
use super::{Observed, Step};
use crate::context::Context;
use crate::guest_packages::{ObservedPackage, PackageFound, PackagePlan};
use crate::key::ObjectName;

fn declared(vm: &VM) -> Option<PackagePolicy> {
    let policy = vm.spec.guest_agent.as_ref().map(|agent| agent.policy);
    policy.filter(|policy| *policy != PackagePolicy::Keep)
}

/// Observes the package. A machine whose monitor does not answer keeps what is done.
pub(super) fn observe(ctx: &Context, vm: &VM, observed: &mut Observed) {
    let name = ObjectName::of(vm);
    let stop = || (!ctx.guest_packages.is_keeping(&name, None)).then_some(None);
    let (Some(running), Some(policy)) = (observed.process.clone(), declared(vm)) else {
        observed.guest_package.watch = stop();
        return;
    };
    if observed.machine.is_none() {
        return;
    }
    if !is_left_alone(vm, observed) {
        observed.guest_package.watch = stop();
        return;
    }
    let recorded = vm.status.as_ref().and_then(|status| status.guest_agent.as_ref());
    let recorded = recorded.filter(|recorded| recorded.policy == policy).and_then(|recorded| recorded.time);
    let plan = PackagePlan {
        process: running.identity.clone(),
        policy,
        upgraded: recorded.filter(|time| *time >= running.started_at),
    };
    let is_kept = ctx.guest_packages.is_keeping(&name, Some(&plan));
    observed.guest_package = ObservedPackage {
        found: ctx.guest_packages.found(&name, &running.identity, policy),
        watch: (!is_kept).then(|| Some(Box::new(plan))),
    };
}

/// Returns the step that has this done with the package, if something else is.
pub(super) fn step(package: &ObservedPackage) -> Option<Step> {
    package.watch.clone().map(Step::KeepPackage)
}

/// Writes the package and its condition.
pub(super) fn write(status: &mut VMStatus, vm: &VM, observed: &Observed, generation: i64, now: Timestamp) {
    let synced = ConditionType::GuestAgentSynced;
    let Some(policy) = declared(vm) else {
        remove(&mut status.conditions, synced);
        status.guest_agent = None;
        return;
    };
    let Some(process) = &observed.process else {
        // The record of a guest that does not run stays.
        remove(&mut status.conditions, synced);
        return;
    };
    let former = status.guest_agent.take().filter(|former| former.policy == policy);
    let Some(found) = &observed.guest_package.found else {
        // An agent that was restarted does not know it for a moment.
        let is_current = former.as_ref().is_some_and(|former| match former.time {
            Some(time) => time >= process.started_at,
            None => condition::find(&status.conditions, synced.as_str()).is_some(),
        });
        if !is_current {
            let text = "it has not been looked at since the policy was declared";
            let update = ConditionUpdate::from_bool(synced, false, Reason::GuestPackagePending, text);
            condition::set(&mut status.conditions, update, generation, now);
        }
        status.guest_agent = former;
        return;
    };
    let (reason, text) = match found {
        PackageFound::Upgraded(_) | PackageFound::Removed => (Reason::Synced, String::new()),
        PackageFound::Differs(problem) => (problem.reason(), problem.to_string()),
    };
    let time = match found {
        PackageFound::Upgraded(time) => Some(time.round(jiff::Unit::Second).unwrap_or(*time)),
        PackageFound::Removed | PackageFound::Differs(_) => former.and_then(|former| former.time),
    };
    status.guest_agent = Some(Box::new(GuestAgentStatus { policy, time }));
    let update = ConditionUpdate::from_bool(synced, reason == Reason::Synced, reason, &text);
    condition::set(&mut status.conditions, update, generation, now);
}
