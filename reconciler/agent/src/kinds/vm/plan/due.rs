//! Whether a VM that is off is started now. Pure.

use std::time::Duration;

use berth_api::{Readiness, Reason, RestartPolicy, VM};
use jiff::Timestamp;

use super::devices::given_back;
use super::{Observed, Step, asks_for_restart};
use crate::converge::Plan;
use crate::journal::{Ended, Journal};
use crate::start_order::Held;

/// Plans for a VM that is not started now: its restart policy leaves it off, or other VMs precede it.
pub(super) fn not_due(vm: &VM, observed: &Observed) -> Option<Plan<Step>> {
    if let Some(ended) = ended(vm, observed) {
        if !is_restarted(vm.spec.restart_policy, ended) {
            let text = format!(
                "{}: restartPolicy leaves it off; change restartToken or power to start it",
                ended.how
            );
            let stays_off = Readiness::Stalled(Reason::GuestEnded, text);
            return Some(Plan::steps(given_back(&observed.journal), stays_off));
        }
        if let Some(wait) = back_off(&observed.journal, observed.now) {
            return Some(backed_off(observed, &ended.how, wait));
        }
    }
    observed.held.map(deferred)
}

/// Returns how the guest ended by itself, unless another restart is asked for.
pub(super) fn ended<'a>(vm: &VM, observed: &'a Observed) -> Option<&'a Ended> {
    let run = observed.journal.run.as_ref()?;
    run.ended.as_ref().filter(|_| !asks_for_restart(vm, run))
}

/// Plans for a VM that other VMs of its host precede.
fn deferred(held: Held) -> Plan<Step> {
    let text =
        format!("its host has booted, and VMs with startOrder {} are started before this one", held.behind);
    Plan::without_steps(Readiness::Reconciling(Reason::StartOrderHeld, text)).requeue_after(held.look_again)
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
    let left = Duration::try_from(journal.not_before?.duration_since(now)).ok()?;
    (!left.is_zero()).then_some(left)
}

fn backed_off(observed: &Observed, how: &str, wait: Duration) -> Plan<Step> {
    // A time, not a countdown: the text must not change with every observation.
    let at = observed.journal.not_before.unwrap_or(Timestamp::UNIX_EPOCH);
    let at = at.round(jiff::Unit::Second).unwrap_or(at);
    let text = format!("{how}, {} times in a row: started again at {at}", observed.journal.failures);
    Plan::without_steps(Readiness::Stalled(Reason::CrashLoop, text)).requeue_after(wait)
}
