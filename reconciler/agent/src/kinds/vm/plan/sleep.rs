//! Plan for a guest that is to be suspended to its memory (ACPI S3), which its own kernel does on request of its agent.
//!
//! Nothing of it is recorded: QEMU reports whether the guest sleeps, and the memory is gone with QEMU.

use std::time::Duration;

use berth_api::{Firmware, Readiness, Reason, SuspendMode, VM};
use berth_qemu::machine::Architecture;
use berth_qemu::power::RunState;
use jiff::Timestamp;

use super::running;
use super::start::left_of;
use super::{Observed, Step};
use crate::converge::Plan;
use crate::machine::Sleep;

/// How long after a request, or after the guest woke up by itself, it is asked (again).
const ASK_AGAIN: Duration = Duration::from_secs(60);
/// The time for a guest to suspend itself after its agent took the request.
const SLEEPS_WITHIN: Duration = Duration::from_secs(30);
/// How often a guest that sleeps is looked at: QEMU reports that it woke up, unless the event is lost.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

const SLEEPS: &str = "the guest is suspended, and its memory is in that of its host";

/// Plans for a guest that is to sleep; None: it is not to now, or does not run yet.
pub(super) fn plan(vm: &VM, observed: &Observed) -> Option<Plan<Step>> {
    // It does not hold back the administrator of its host: it is shut down.
    if observed.draining {
        return None;
    }
    let machine = observed.machine.as_ref()?;
    match machine.run_state {
        RunState::Suspended => {
            let sleeps = Readiness::Ready(Reason::Suspended, SLEEPS.to_owned());
            Some(Plan::without_steps(sleeps).requeue_after(LOOK_AGAIN))
        }
        RunState::Running => Some(ask(vm, observed, &machine.sleep)),
        _ => None,
    }
}

fn ask(vm: &VM, observed: &Observed, sleep: &Sleep) -> Plan<Step> {
    if let Some(why) = obstacle(observed) {
        return Plan { readiness: refused(why), ..running::plan(vm, observed) };
    }
    let last = sleep.asked_at.max(sleep.woke_at);
    let wait = last.map_or(Duration::ZERO, |last| left_of(ASK_AGAIN, last, observed.now));
    let readiness = standing(sleep, observed.now);
    if wait.is_zero() {
        return Plan::steps(vec![Step::SuspendGuest], readiness);
    }
    let falls_asleep = sleep.asked_at.map_or(Duration::ZERO, |at| left_of(SLEEPS_WITHIN, at, observed.now));
    let look = if falls_asleep.is_zero() { wait } else { falls_asleep };
    Plan { readiness, ..running::plan(vm, observed) }.requeue_after(look)
}

/// Returns the readiness of a VM whose guest runs and is to sleep. It stays the same while the guest is asked again.
fn standing(sleep: &Sleep, now: Timestamp) -> Readiness {
    let Some(asked) = sleep.asked_at.max(sleep.woke_at) else {
        return suspending("the guest is asked to suspend itself to its memory");
    };
    if sleep.woke_at == Some(asked) {
        return suspending("the guest has woken up by itself, and is suspended again a minute after that");
    }
    if let Some(why) = &sleep.refusal {
        return refused(why);
    }
    if !sleep.was_ignored && !left_of(SLEEPS_WITHIN, asked, now).is_zero() {
        return suspending("the guest was asked to suspend itself to its memory");
    }
    refused(&format!(
        "its agent took the request, and the guest has not suspended itself within {} seconds; its kernel's log has the cause",
        SLEEPS_WITHIN.as_secs()
    ))
}

fn refused(why: &str) -> Readiness {
    Readiness::Stalled(Reason::SuspendFailed, format!("the guest runs on: {why}"))
}

fn suspending(text: &str) -> Readiness {
    Readiness::Reconciling(Reason::Suspending, text.to_owned())
}

/// Returns why the machine cannot be suspended to its memory, whatever its guest is.
fn obstacle(observed: &Observed) -> Option<&'static str> {
    let run = observed.journal.run.as_ref()?;
    let architecture = run.machine.as_ref().map(|machine| machine.architecture());
    if architecture == Some(Architecture::Aarch64) {
        return Some("machines of aarch64 have no suspension to memory. Set suspendMode to Disk");
    }
    if run.profile.watchdog.is_some() {
        return Some(
            "it has a watchdog until the next power cycle, whose timer runs on while the guest sleeps. Set suspendMode to Disk",
        );
    }
    if observed.journal.has_devices() {
        return Some("it has devices of its host until the next power cycle. Set power to Stopped");
    }
    (run.firmware == Firmware::UEFISecureBoot.as_str())
        .then_some("the firmware of UEFISecureBoot has no suspension to memory. Set suspendMode to Disk")
}

/// Returns the readiness of a VM that is to sleep and has no QEMU, after its guest has ended.
pub(super) fn lost(vm: &VM, observed: &Observed) -> Option<Readiness> {
    let ended = observed.journal.last_end.as_ref();
    let ended = ended.filter(|_| vm.spec.suspend_mode == SuspendMode::Memory)?;
    let text = format!(
        "its guest is off, and what it had in memory is lost; the last time it ended by itself: {}. Set power to Running, which boots it",
        ended.how
    );
    Some(Readiness::Stalled(Reason::GuestEnded, text))
}
