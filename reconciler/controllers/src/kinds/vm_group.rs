//! The VMGroup controller: decides which members may run, step by step, and reports what they do.
//!
//! ```text
//!   power Running:  Stopped ─▶ Waiting ─▶ (the steps before are ready, the delay is over) ─▶ Running
//!   power Stopped:  Running ─▶ (the steps after are stopped) ─▶ Stopped
//! ```
//!
//! The decisions are in the status of the group, where the hosts of its VMs and the groups below read them: a VM is never written. A group
//! that is a member of another one does as that one decides.

mod observe;
mod order;
#[cfg(test)]
mod tests;

use berth_api::{
    ConditionType, MemberKind, MemberPower, Readiness, Reason, VMGroup, VMGroupMember, VMGroupStatus,
    VMState, condition,
};
use k8s_openapi::jiff::{Timestamp, Unit};

use crate::{
    batch::WriteBatch,
    cache::Cache,
    config::Config,
    key::Key,
    plan::{Dependency, Outcome},
};
use observe::{Member, Observed};
use order::{Decision, order};

pub(crate) fn reconcile(cache: &Cache, config: &Config, key: &Key, batch: &mut WriteBatch) -> Outcome {
    let Some(group) = cache.tables.vm_groups.get(key).cloned() else { return Outcome::Settled };
    let now = config.clock.now();
    let observed = observe::observe(cache, &group, key);
    let decision = order(&observed, now);
    let mut status = status(&group, &observed, &decision, now);
    let users = cache.listed_users(key, &status.used_by);
    status.used_by.clone_from(&users);
    batch.used(group.as_ref(), status, &users, now);
    let outcome = match decision.next_step {
        Some(at) => Outcome::Settled.and(Dependency::Time(at)),
        None => Outcome::Settled,
    };
    match observed.missing_parent {
        Some(parent) => outcome.and(Dependency::Object(parent)),
        None => outcome,
    }
}

fn status(group: &VMGroup, observed: &Observed, decision: &Decision, now: Timestamp) -> VMGroupStatus {
    let mut status = group.status.clone().unwrap_or_default();
    let generation = group.metadata.generation.unwrap_or_default();
    let all: Vec<(&Member, MemberPower)> =
        observed.members.iter().zip(&decision.powers).map(|(member, power)| (member, *power)).collect();
    let members: Vec<VMGroupMember> = all
        .iter()
        .filter(|(member, _)| member.exists)
        .map(|(member, power)| report(member, *power, observed.wanted))
        .collect();
    let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
    let vms = || members.iter().filter(|member| member.kind == MemberKind::VM);
    status.running = count(vms().filter(|member| runs(member.state)).count());
    status.stopped = count(vms().count()) - status.running;
    status.total = count(members.len());
    status.power = Some(observed.wanted);
    status.next_step_time = decision.next_step.map(|at| at.to_string());
    readiness(observed, decision, &all).write(&mut status.conditions, generation, now);
    status.members = members;
    status.observed_generation = generation;
    status
}

fn report(member: &Member, power: MemberPower, wanted: MemberPower) -> VMGroupMember {
    VMGroupMember {
        kind: member.kind,
        name: member.name.clone(),
        power,
        state: member.state,
        synced: member.is_synced(power, wanted),
    }
}

/// Whether a VM in this state has a guest.
fn runs(state: Option<VMState>) -> bool {
    matches!(state, Some(VMState::Running | VMState::Paused | VMState::Suspending | VMState::Stopping))
}

/// Returns the readiness of a group. `all`: the members and the decision about each.
fn readiness(observed: &Observed, decision: &Decision, all: &[(&Member, MemberPower)]) -> Readiness {
    if let Some(problem) = &observed.problem {
        return problem.clone();
    }
    let exist = || all.iter().filter(|(member, _)| member.exists);
    let (total, synced) = (
        exist().count(),
        exist().filter(|(member, power)| member.is_synced(*power, observed.wanted)).count(),
    );
    if observed.excess > 0 {
        let text = format!(
            "{} members are more than a group can have: take {} of them out, or put them into groups that are members of this one",
            total + observed.excess,
            observed.excess
        );
        return Readiness::Stalled(Reason::InvalidSpec, text);
    }
    let Some((first, power)) = exist().find(|(member, power)| !member.is_synced(*power, observed.wanted))
    else {
        let reason =
            if observed.wanted == MemberPower::Stopped { Reason::Stopped } else { Reason::Available };
        let own = exist().filter(|(_, power)| *power == MemberPower::Own).count();
        let kept = if own > 0 { format!(", {own} of them one of their own") } else { String::new() };
        return Readiness::Ready(reason, format!("{total} members have the declared power{kept}"));
    };
    let so_far = format!("{synced} of {total} members have the declared power");
    if observed.wanted == MemberPower::Waiting {
        let text = format!("{so_far}; the group that this one is a member of does not start it yet");
        if observed.is_above_incomplete {
            let text = format!("{text}: it waits for a member that does not exist");
            return Readiness::Reconciling(Reason::WaitingForGroup, text);
        }
        return Readiness::Reconciling(Reason::StartOrderHeld, text);
    }
    if let Some(at) = decision.next_step {
        let at = at.round(Unit::Second).unwrap_or(at);
        return Readiness::Reconciling(Reason::Starting, format!("{so_far}; the next step begins at {at}"));
    }
    // The one that holds up the others, if some wait.
    let blocker = decision.blocker.and_then(|index| observed.members.get(index));
    let blocker =
        blocker.filter(|_| *power == MemberPower::Waiting || observed.wanted != *power).unwrap_or(first);
    if !blocker.exists {
        let (reason, kind) = match blocker.kind {
            MemberKind::VM => (Reason::WaitingForVM, "VM"),
            MemberKind::VMGroup => (Reason::WaitingForGroup, "VMGroup"),
        };
        let text = format!(
            "{so_far}; {kind} {} of bootOrder does not exist, or does not name this group",
            blocker.name
        );
        return Readiness::Reconciling(reason, text);
    }
    let reason = if observed.wanted == MemberPower::Stopped { Reason::Stopping } else { Reason::Starting };
    Readiness::Reconciling(reason, format!("{so_far}; {}", blocker.text()))
}

/// Whether the condition `Ready` of a group is that of its current spec.
fn is_ready(group: &VMGroup) -> bool {
    group.status.as_ref().is_some_and(|status| {
        let is_current = Some(status.observed_generation) == group.metadata.generation;
        is_current && condition::is_true(&status.conditions, ConditionType::Ready)
    })
}
