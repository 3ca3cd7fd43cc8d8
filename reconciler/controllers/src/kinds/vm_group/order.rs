//! The decision which members of a VMGroup may run. Pure.

use berth_api::MemberPower;
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::observe::{Member, Observed};

/// The longest delay of a step, in seconds.
const LONGEST_DELAY: i64 = 3600;

/// The decision about all members.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Decision {
    /// That of each member, in their order.
    pub(super) powers: Vec<MemberPower>,
    /// When the next step begins, while only its delay is waited for.
    pub(super) next_step: Option<Timestamp>,
    /// The member that others wait for.
    pub(super) blocker: Option<usize>,
}

/// Decides about all members.
///
/// *Guarantees:* a member that may run is stopped only in a group that is to be stopped, and one is started only when all members of the
/// steps before were seen to run after they were allowed to.
pub(super) fn order(observed: &Observed, now: Timestamp) -> Decision {
    let mut decision =
        Decision { powers: observed.members.iter().map(kept).collect(), next_step: None, blocker: None };
    match observed.wanted {
        MemberPower::Running => start(observed, &mut decision, now),
        MemberPower::Stopped => stop(observed, &mut decision),
        MemberPower::Waiting | MemberPower::Own => {}
    }
    decision
}

/// Returns the decision about a member that nothing changes.
fn kept(member: &Member) -> MemberPower {
    if member.is_own { MemberPower::Own } else { member.before }
}

fn start(observed: &Observed, decision: &mut Decision, now: Timestamp) {
    let steps = observed.delays.len();
    for step in 0..=steps {
        let due: Vec<usize> = of_step(observed, step)
            .filter(|(_, member)| member.exists && !member.is_own && member.before != MemberPower::Running)
            .map(|(index, _)| index)
            .collect();
        let begins = (!due.is_empty() && decision.blocker.is_none() && decision.next_step.is_none())
            .then(|| begin(observed, step, now));
        let power = match begins {
            Some(at) if at > now => {
                decision.next_step = Some(at);
                MemberPower::Waiting
            }
            Some(_) => MemberPower::Running,
            None => MemberPower::Waiting,
        };
        due.into_iter().for_each(|index| decision.powers[index] = power);
        if decision.blocker.is_none() && decision.next_step.is_none() {
            let awaited =
                |member: &Member| !(member.is_own || member.exists && member.has(MemberPower::Running));
            decision.blocker =
                of_step(observed, step).find(|(_, member)| awaited(member)).map(|(index, _)| index);
        }
    }
}

/// Returns when the members of a step are started, once those of the steps before are ready.
fn begin(observed: &Observed, step: usize, now: Timestamp) -> Timestamp {
    let delay = observed.delays.get(step).copied().unwrap_or_default().clamp(0, LONGEST_DELAY);
    if delay == 0 {
        return now;
    }
    let latest = now.checked_add(SignedDuration::from_secs(delay)).unwrap_or(now);
    // A later time means that the clock was set back since, or that the delay was made shorter.
    observed.next_step.map_or(latest, |at| at.min(latest))
}

fn stop(observed: &Observed, decision: &mut Decision) {
    for step in (0..=observed.delays.len()).rev() {
        let members = || of_step(observed, step).filter(|(_, member)| member.exists && !member.is_own);
        if decision.blocker.is_none() {
            members().for_each(|(index, _)| decision.powers[index] = MemberPower::Stopped);
            decision.blocker =
                members().find(|(_, member)| !member.has(MemberPower::Stopped)).map(|(index, _)| index);
        }
    }
}

fn of_step(observed: &Observed, step: usize) -> impl Iterator<Item = (usize, &Member)> {
    observed.members.iter().enumerate().filter(move |(_, member)| member.step == step)
}
