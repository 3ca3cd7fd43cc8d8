//! Plan for stopping a VM, and for what is left to do when it is off.

use std::time::Duration;

use berth_api::{Readiness, Reason, StopMode, VM};
use berth_qemu::power::RunState;
use jiff::{SignedDuration, Timestamp};

use super::super::hooking;
use super::super::stop_mode::mode;
use super::{Observed, Step, devices, running, write_journal};
use crate::converge::Plan;
use crate::journal::{Journal, Stop, StopReason};

/// Maximum number of shutdown requests to a guest, spread over its grace period.
const ASKED_AT_MOST: u8 = 3;
/// Retry interval for a monitor that does not answer.
const TRY_AGAIN: Duration = Duration::from_secs(1);

pub(super) fn stopping(why: StopReason) -> Readiness {
    match why {
        StopReason::PowerOff => Readiness::Reconciling(Reason::Stopping, "the guest is being stopped".into()),
        StopReason::Restart => {
            Readiness::Reconciling(Reason::Stopping, "the guest is being stopped to be started again".into())
        }
        StopReason::Unhealthy => {
            let text = "the liveness probe failed, and the guest is being stopped";
            Readiness::Reconciling(Reason::Stopping, text.into())
        }
        StopReason::Delete => Readiness::Reconciling(Reason::Deleting, "the guest is being stopped".into()),
    }
}

fn grace(vm: &VM, mode: StopMode) -> SignedDuration {
    match mode {
        StopMode::Hard => SignedDuration::ZERO,
        StopMode::Graceful | StopMode::Soft => {
            SignedDuration::from_secs(vm.spec.stop.grace_period_seconds.clamp(0, 3600))
        }
    }
}

/// Returns how much of its grace period the guest has left.
pub(super) fn time_left(vm: &VM, observed: &Observed, stop: &Stop) -> Duration {
    until(began(stop), grace(vm, mode(vm, observed, stop.why)), observed.now)
}

/// Returns when the grace period began.
fn began(stop: &Stop) -> Timestamp {
    stop.released.unwrap_or(stop.since)
}

/// Returns when the grace period began after a hook: now, if it is over and its hook held the guest back until now.
pub(super) fn released(vm: &VM, observed: &Observed, stop: &Stop) -> Option<Timestamp> {
    let begins = time_left(vm, observed, stop).is_zero() && hooking::is_to_be_released(vm, observed, stop);
    if begins { Some(observed.now) } else { stop.released }
}

/// Returns the journal with the grace period beginning now.
fn released_now(observed: &Observed, stop: &Stop) -> Journal {
    let released = Stop { released: Some(observed.now), ..stop.clone() };
    Journal { stop: Some(released), ..observed.journal.clone() }
}

fn until(since: Timestamp, span: SignedDuration, now: Timestamp) -> Duration {
    let left = span - now.duration_since(since);
    Duration::try_from(left).unwrap_or(Duration::ZERO)
}

/// Asks the guest a few times to shut down, then ends QEMU if the mode allows it.
pub(super) fn plan(vm: &VM, observed: &Observed, stop: &Stop) -> Plan<Step> {
    let readiness = stopping(stop.why);
    // The clock was set back: the guest has its grace period, and no more than that, after the hook that it is not stopped without.
    let is_set_back = began(stop) > observed.now;
    let is_required = hooking::is_required(vm, observed, stop);
    if is_set_back && !is_required {
        return Plan::steps(vec![write_journal(released_now(observed, stop))], readiness);
    }
    let left = time_left(vm, observed, stop);
    let mode = mode(vm, observed, stop.why);
    if mode != StopMode::Hard
        && let Some(plan) = hooking::before_stop(vm, observed, stop, &readiness, left)
    {
        return plan;
    }
    if released(vm, observed, stop) != stop.released {
        return Plan::steps(vec![write_journal(released_now(observed, stop))], readiness);
    }
    if is_required && let Some(plan) = until_it_runs(observed, &readiness) {
        return plan;
    }
    if is_set_back {
        return Plan::steps(vec![write_journal(released_now(observed, stop))], readiness);
    }
    if left.is_zero() && mode != StopMode::Soft {
        let runs = observed.machine.as_ref().is_some_and(|machine| machine.run_state == RunState::Running);
        let has_ignored = runs && mode == StopMode::Graceful && stop.asked > 0;
        let report = has_ignored.then_some(Step::ReportPowerOff);
        return Plan::steps(std::iter::once(Step::EndProcess).chain(report).collect(), readiness);
    }
    if let Some(machine) = observed.machine.as_ref().filter(|seen| seen.run_state == RunState::IoError) {
        // It repeats its write once there is space, and the request reaches it then.
        let text = running::io_error(observed, machine);
        let plan = running::resume(observed, machine, Reason::NoSpace, &text);
        return if left.is_zero() { plan } else { plan.requeue_after(left) };
    }
    match observed.machine.as_ref().map(|machine| &machine.run_state) {
        // The guest has not executed anything yet, so it cannot react.
        Some(RunState::Prelaunch | RunState::InMigrate) => Plan::steps(vec![Step::EndProcess], readiness),
        // The request to shut down reaches a guest that runs.
        Some(RunState::Paused | RunState::PostMigrate) => {
            Plan::steps(vec![Step::Start], readiness).requeue_after(left)
        }
        Some(RunState::Suspended) => Plan::steps(vec![Step::WakeUp], readiness).requeue_after(TRY_AGAIN),
        Some(RunState::Running) if stop.asked < ASKED_AT_MOST => ask(vm, observed, stop, readiness, left),
        Some(_) if left.is_zero() => Plan::without_steps(ignored(stop)),
        Some(_) => Plan::without_steps(readiness).requeue_after(left),
        None if left.is_zero() => Plan::without_steps(readiness).requeue_after(TRY_AGAIN),
        None => Plan::without_steps(readiness).requeue_after(left.min(TRY_AGAIN)),
    }
}

/// Returns the plan for a guest that is not stopped without its hook, and that cannot be called or read at the moment, whatever is left of
/// its grace period.
fn until_it_runs(observed: &Observed, readiness: &Readiness) -> Option<Plan<Step>> {
    let Some(machine) = &observed.machine else {
        return Some(Plan::without_steps(readiness.clone()).requeue_after(TRY_AGAIN));
    };
    match &machine.run_state {
        RunState::IoError => {
            let text = running::io_error(observed, machine);
            Some(running::resume(observed, machine, Reason::NoSpace, &text))
        }
        RunState::Paused | RunState::PostMigrate => {
            Some(Plan::steps(vec![Step::Start], readiness.clone()).requeue_after(TRY_AGAIN))
        }
        RunState::Suspended => {
            Some(Plan::steps(vec![Step::WakeUp], readiness.clone()).requeue_after(TRY_AGAIN))
        }
        _ => None,
    }
}

/// The readiness of a VM that a soft stop did not stop.
fn ignored(stop: &Stop) -> Readiness {
    let field = if stop.why == StopReason::Restart { "restartMode" } else { "stop.mode" };
    let text = format!(
        "the guest was asked to shut down and still runs at the end of its grace period; with {field} Soft it is not powered off: \
         shut it down inside, or set {field} to Graceful or Hard"
    );
    Readiness::Stalled(Reason::ShutdownIgnored, text)
}

fn ask(vm: &VM, observed: &Observed, stop: &Stop, readiness: Readiness, left: Duration) -> Plan<Step> {
    let whole = grace(vm, mode(vm, observed, stop.why));
    let due_in = until(began(stop), whole / i32::from(ASKED_AT_MOST) * i32::from(stop.asked), observed.now);
    if !due_in.is_zero() {
        return Plan::without_steps(readiness).requeue_after(due_in.min(left));
    }
    let asked = Stop { asked: stop.asked + 1, ..stop.clone() };
    let updated = write_journal(Journal { stop: Some(asked), ..observed.journal.clone() });
    // A guest that did not react to the button the first time may react to its agent.
    let how = if stop.asked == 1 && observed.guest.agent {
        Step::AskGuestToShutDown
    } else {
        Step::PressPowerButton
    };
    Plan::steps(vec![updated, how], readiness).requeue_after(left.max(TRY_AGAIN))
}

/// Plans for a VM that is off as declared.
pub(super) fn stopped(observed: &Observed) -> Plan<Step> {
    off(observed, Readiness::Ready(Reason::Stopped, String::new()))
}

/// The readiness of a VM that is off because its host is being drained or shut down, whatever is declared. `goes_on`: how it goes on
/// after that.
pub(super) fn held_by_host(observed: &Observed, goes_on: &str) -> Readiness {
    match observed.at_shutdown {
        Some(_) => {
            let text = format!("its host is being shut down: it {goes_on} when the host has booted");
            Readiness::Reconciling(Reason::HostShuttingDown, text)
        }
        None => {
            let text = format!("its host is being drained: it {goes_on} when the host is uncordoned");
            Readiness::Reconciling(Reason::HostDraining, text)
        }
    }
}

/// Plans for a VM that is off, and stays off for the reason in `readiness`.
pub(super) fn off(observed: &Observed, readiness: Readiness) -> Plan<Step> {
    let mut steps: Vec<Step> = observed.taps.iter().cloned().map(Step::RemoveTap).collect();
    steps.extend(devices::given_back(&observed.journal));
    // A power cycle: how the machine ended before no longer matters.
    if observed.journal.run.is_some() {
        let journal = observed.journal.clone().without_devices();
        steps.push(write_journal(journal.stopped()));
    }
    Plan::steps(steps, readiness)
}

/// Removes everything of a VM that is being deleted; its disks are released before the object is.
pub(super) fn remove(observed: &Observed) -> Plan<Step> {
    let readiness = |text: &str| Readiness::Reconciling(Reason::Deleting, text.to_owned());
    let mut steps: Vec<Step> = observed.taps.iter().cloned().map(Step::RemoveTap).collect();
    if observed.journal_written {
        steps.push(Step::RemoveInstance);
    }
    if !steps.is_empty() {
        return Plan::steps(steps, readiness("being removed"));
    }
    if observed.still_user {
        return Plan::without_steps(readiness("its disks are being given back")).requeue_after(TRY_AGAIN);
    }
    Plan::steps(vec![Step::Release], readiness("removed"))
}
