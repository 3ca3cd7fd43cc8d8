//! Whether a VM that is off is started now. Pure.

use std::time::Duration;

use berth_api::{Readiness, Reason, RestartPolicy, VM};
use jiff::Timestamp;

use super::devices::given_back;
use super::{Observed, Step, asks_for_restart};
use crate::converge::Plan;
use crate::group_turn::GroupTurn;
use crate::journal::{Ended, Journal, LONGEST_DELAY};
use crate::start_order::Held;

/// Plans for a VM that is not started now: its restart policy leaves it off, its group does not start it yet, or other VMs
/// precede it.
pub(super) fn not_due(vm: &VM, observed: &Observed) -> Option<Plan<Step>> {
    if let Some(stays_off) = left_off(vm, observed) {
        return Some(stays_off);
    }
    if let Some(ended) = ended(vm, observed)
        && let Some(wait) = back_off(&observed.journal, observed.now)
    {
        return Some(backed_off(observed, &ended.how, wait));
    }
    let waits = |held: Held| Plan::without_steps(deferred(held)).requeue_after(held.look_again);
    waits_for_group(observed).or_else(|| observed.held.map(waits))
}

/// Plans for a VM whose guest has ended by itself, and that its restart policy leaves off.
pub(super) fn left_off(vm: &VM, observed: &Observed) -> Option<Plan<Step>> {
    let ended = ended(vm, observed)?;
    if is_restarted(vm.spec.restart_policy, ended) {
        return None;
    }
    let text =
        format!("{}: restartPolicy leaves it off; change restartToken or power to start it", ended.how);
    let reason = if ended.out_of_memory { Reason::OutOfMemory } else { Reason::GuestEnded };
    let stays_off = Readiness::Stalled(reason, text);
    Some(Plan::steps(given_back(&observed.journal), stays_off))
}

/// Returns how the guest ended by itself, unless another restart is asked for.
pub(super) fn ended<'a>(vm: &VM, observed: &'a Observed) -> Option<&'a Ended> {
    let run = observed.journal.run.as_ref()?;
    run.ended.as_ref().filter(|_| !asks_for_restart(vm, run))
}

/// Plans for a VM that its group does not start yet.
fn waits_for_group(observed: &Observed) -> Option<Plan<Step>> {
    let GroupTurn::Waits(reason, text) = &observed.turn else { return None };
    Some(Plan::without_steps(Readiness::Reconciling(*reason, text.clone())))
}

/// The readiness of a VM that other VMs of its host precede.
pub(super) fn deferred(held: Held) -> Readiness {
    let text =
        format!("its host has booted, and VMs with startOrder {} are started before this one", held.behind);
    Readiness::Reconciling(Reason::StartOrderHeld, text)
}

/// Whether a guest that ended by itself is started again.
pub(super) fn is_restarted(policy: RestartPolicy, ended: &Ended) -> bool {
    match policy {
        RestartPolicy::Always => true,
        RestartPolicy::OnFailure => !ended.orderly,
        RestartPolicy::Never => false,
    }
}

/// Returns how long a guest that ended is not started again yet.
pub(super) fn back_off(journal: &Journal, now: Timestamp) -> Option<Duration> {
    let left = journal.not_before?.duration_since(now);
    // No delay is longer: the clock was set back since.
    let left = Duration::try_from(left).ok().filter(|_| left <= LONGEST_DELAY)?;
    (!left.is_zero()).then_some(left)
}

fn backed_off(observed: &Observed, how: &str, wait: Duration) -> Plan<Step> {
    // A time, not a countdown: the text must not change with every observation.
    let at = observed.journal.not_before.unwrap_or(Timestamp::UNIX_EPOCH);
    let at = at.round(jiff::Unit::Second).unwrap_or(at);
    let text = format!("{how}, {} times in a row: started again at {at}", observed.journal.failures);
    Plan::without_steps(Readiness::Stalled(Reason::CrashLoop, text)).requeue_after(wait)
}
