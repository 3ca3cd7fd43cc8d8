//! What to do about a VM. Pure: decides from the object, the journal and what was read back.

mod running;
mod start;
mod stop;
#[cfg(test)]
mod tests;

use berth_api::{Power, Readiness, Reason, VM};

use super::admission::Admission;
use super::journal::{Ended, Journal, Owner, PublicNote, Run, Stop, Why, epoch_of};
use super::{Observed, Step};
use crate::converge::Plan;
use crate::machine::has_ended;

pub(super) use start::{is_synced, too_large, unsynced_interfaces};

pub(super) fn plan(vm: &VM, observed: &Observed) -> Plan<Step> {
    if observed.instance.is_empty() {
        return Plan::stands(Readiness::Reconciling(
            Reason::Bound,
            "bound without an instance identity".into(),
        ));
    }
    if let Some(problem) = &observed.journal_problem {
        // What was asked of this machine is not known: anything done now might be the wrong thing.
        return Plan::stands(Readiness::Stalled(Reason::NotSupported, problem.clone()));
    }
    if epoch_of(vm) < observed.journal.epoch {
        let text = "a newer binding of this VM was worked on here: this one is void";
        return Plan::stands(Readiness::Reconciling(Reason::Bound, text.into()));
    }
    match observed.journal.owner(vm) {
        Owner::ThisVm => {}
        Owner::Former => return Plan::steps(vec![note(taken_over(vm, observed))], taking_over()),
        Owner::Other => {
            let text = format!(
                "instance {} was made for another VM of this name, with the uid {}: it is left alone",
                observed.instance, observed.journal.uid
            );
            return Plan::stands(Readiness::Stalled(Reason::NotSupported, text));
        }
    }
    if observed.process.is_some() {
        return present(vm, observed);
    }
    match &observed.admission {
        Admission::Done => absent(vm, observed),
        // Before the control plane knows that it was let in, nothing is made for it.
        Admission::Now | Admission::NotYet => {
            let plan = absent(vm, observed);
            Plan { steps: Vec::new(), ..plan }
        }
        Admission::Refused(why) => {
            Plan::stands(Readiness::Reconciling(Reason::Refused, format!("its host refused it: {why}")))
        }
    }
}

pub(super) fn note(journal: Journal) -> Step {
    Step::Note(Box::new(journal))
}

fn deleting(vm: &VM) -> bool {
    vm.metadata.deletion_timestamp.is_some()
}

/// Why this VM's machine should not go on as it is, if so.
fn reason_to_stop(vm: &VM, run: Option<&Run>, draining: bool) -> Option<Why> {
    if deleting(vm) {
        return Some(Why::Delete);
    }
    if vm.spec.power == Power::Stopped || draining {
        return Some(Why::PowerOff);
    }
    run.is_some_and(|run| run.token != vm.spec.restart_token).then_some(Why::Restart)
}

/// The journal of an instance whose VM has another uid now. From here on it is that one's, whatever becomes of the other.
fn taken_over(vm: &VM, observed: &Observed) -> Journal {
    let uid = vm.metadata.uid.clone().unwrap_or_default();
    Journal { uid, epoch: epoch_of(vm), ..observed.journal.clone() }
}

fn taking_over() -> Readiness {
    Readiness::Reconciling(Reason::Bound, "taken over from the uid it had before".into())
}

/// The journal with the public addresses that lead to the VM now, if it has others.
fn with_public(observed: &Observed) -> Option<Journal> {
    let seen = observed.public.iter().filter_map(|seen| {
        let (interface, name) = (seen.interface.clone(), seen.name.clone());
        Some(PublicNote { interface, name, address: seen.address?, mode: seen.mode })
    });
    let public: Vec<PublicNote> = seen.collect();
    (public != observed.journal.public).then(|| Journal { public, ..observed.journal.clone() })
}

/// There is a QEMU.
fn present(vm: &VM, observed: &Observed) -> Plan<Step> {
    let journal = &observed.journal;
    let starting = || Readiness::Reconciling(Reason::Starting, "being started".into());
    if let Some(adopted) = adopted(vm, observed) {
        return Plan::steps(vec![note(adopted)], starting());
    }
    if !deleting(vm)
        && let Some(noted) = with_public(observed)
    {
        return Plan::steps(vec![note(noted)], starting());
    }
    let ended = observed.look.as_ref().is_some_and(|look| has_ended(&look.state));
    if ended {
        return finish(observed);
    }
    let wanted = reason_to_stop(vm, journal.run.as_ref(), observed.draining);
    match (&journal.stop, wanted) {
        (None, None) => running::plan(vm, observed),
        (None, Some(why)) => {
            let stop = Stop { why, since: observed.now, asked: 0, cancelled: false };
            let noted = Journal { stop: Some(stop), deleting: deleting(vm), ..journal.clone() };
            Plan::steps(vec![note(noted)], stop::stopping(why))
        }
        (Some(stop), Some(why)) if stop.why != why || stop.cancelled => {
            // The wish changed on the way. How long the guest has been asked stays, unless it was taken back.
            let fresh = Stop { why, since: observed.now, asked: 0, cancelled: false };
            let stop = if stop.cancelled { fresh } else { Stop { why, ..stop.clone() } };
            let noted = Journal { stop: Some(stop), deleting: deleting(vm), ..journal.clone() };
            Plan::steps(vec![note(noted)], stop::stopping(why))
        }
        (Some(stop), Some(_)) => stop::plan(vm, observed, stop),
        (Some(stop), None) => cancelled(vm, observed, stop),
    }
}

/// The journal brought up to what runs: after a crash between a launch and its note.
fn adopted(vm: &VM, observed: &Observed) -> Option<Journal> {
    let process = observed.process.as_ref()?;
    let mut journal = observed.journal.clone();
    let run = journal.run.get_or_insert_with(|| start::unknown_run(vm, observed));
    if run.process.as_ref() == Some(&process.identity) {
        return None;
    }
    journal.epoch = epoch_of(vm);
    Some(journal.with_process(process))
}

/// The guest has ended and its QEMU waits to be asked why.
fn finish(observed: &Observed) -> Plan<Step> {
    let journal = &observed.journal;
    let readiness = Readiness::Reconciling(Reason::Stopping, "the guest has ended".into());
    let known = journal.stop.is_some() || journal.run.as_ref().is_some_and(|run| run.ended.is_some());
    if known {
        return Plan::steps(vec![Step::EndProcess], readiness);
    }
    let noted = journal.clone().with_ending(ending(observed));
    Plan::steps(vec![note(noted), Step::EndProcess], readiness)
}

fn ending(observed: &Observed) -> Ended {
    use berth_qemu::power::RunState;
    let state = observed.look.as_ref().map(|look| &look.state);
    let told = observed.look.as_ref().and_then(|look| look.ending.as_ref());
    let (orderly, how) = match (state, told) {
        (Some(RunState::GuestPanicked), _) => (false, "the guest's kernel panicked".to_owned()),
        (Some(RunState::InternalError), _) => (false, "QEMU reports an internal error".to_owned()),
        (_, Some(told)) if told.by_guest && told.reason != "guest-panic" => {
            (true, "the guest switched itself off".to_owned())
        }
        (_, Some(told)) => (false, format!("QEMU was told to end ({})", told.reason)),
        // Nobody was there to hear why; that it paused in this state is what a guest's own power-off leads to.
        (_, None) => (true, "the guest switched itself off".to_owned()),
    };
    Ended { at: observed.now, orderly, how }
}

/// A stop that is no longer wanted: a guest that heard it may end for it until its time is over.
fn cancelled(vm: &VM, observed: &Observed, stop: &Stop) -> Plan<Step> {
    let journal = &observed.journal;
    if !stop.cancelled {
        let stop = Stop { cancelled: true, ..stop.clone() };
        let noted = Journal { stop: Some(stop), ..journal.clone() };
        return Plan::steps(vec![note(noted)], Readiness::Reconciling(Reason::Starting, String::new()));
    }
    let left = stop::time_left(vm, observed, stop);
    if left.is_zero() {
        let noted = Journal { stop: None, ..journal.clone() };
        return Plan::steps(vec![note(noted)], Readiness::Reconciling(Reason::Starting, String::new()));
    }
    running::plan(vm, observed).look_again(left)
}

/// There is no QEMU.
fn absent(vm: &VM, observed: &Observed) -> Plan<Step> {
    let journal = &observed.journal;
    if journal.stop.is_some() {
        let noted = Journal { deleting: deleting(vm), ..journal.clone().stopped() };
        return Plan::steps(vec![note(noted)], Readiness::Reconciling(Reason::Stopping, "stopped".into()));
    }
    if journal.believes_running() {
        return Plan::steps(
            vec![note(vanished(observed))],
            Readiness::Reconciling(Reason::Stopping, "ended".into()),
        );
    }
    if deleting(vm) {
        return stop::remove(observed);
    }
    if vm.spec.power == Power::Stopped {
        return stop::stopped(observed);
    }
    if observed.draining {
        return stop::held(observed);
    }
    start::plan(vm, observed)
}

/// QEMU is gone and nobody asked it to end; or it was seen to end before it went.
fn vanished(observed: &Observed) -> Journal {
    let mut journal = observed.journal.clone();
    let known = journal.run.as_ref().is_some_and(|run| run.ended.is_some());
    if !known {
        let how = "QEMU was gone without having been asked to end".to_owned();
        journal = journal.with_ending(Ended { at: observed.now, orderly: false, how });
    }
    if let Some(run) = &mut journal.run {
        run.process = None;
    }
    journal
}
