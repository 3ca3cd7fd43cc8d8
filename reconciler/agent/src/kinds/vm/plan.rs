//! Plan for a VM. Pure: decided from the object, the journal and the observation.

mod architecture;
mod cards;
mod devices;
mod due;
mod enrolling;
mod firmware;
mod interfaces;
mod lan_addresses;
mod live;
mod memory;
pub(super) mod offline;
mod pins;
mod release;
mod running;
mod seeding;
mod sleep;
mod start;
mod stop;
mod suspend;
#[cfg(test)]
mod tests;
mod vgpus;

use std::time::Duration;

use berth_api::gates::power_on_gate;
use berth_api::{Power, Readiness, Reason, VM};
use berth_qemu::power::RunState;
use jiff::Timestamp;

use super::observe::DeclaredAddress;
use super::{Observed, Step, guest_package, guest_users};
use crate::admission::Admission;
use crate::converge::Plan;
use crate::journal::{Ended, ForwardedAddress, Journal, Owner, Run, Stop, StopReason, epoch_of};
use crate::machine::{MachineState, has_ended};
use crate::probes::Outcome;
use crate::public_address::GivenAddress;

pub(super) use cards::with_models;
pub(super) use interfaces::{changes as interface_changes, tap_missing};
pub(super) use live::{is_withdrawn as is_live_move_withdrawn, refusal as live_refusal};
pub(super) use memory::is_changing as is_memory_changing;
pub(super) use running::io_error;
pub(super) use start::{limits_with, too_large};

/// How a guest ended whose QEMU ended without it.
const GONE: &str = "QEMU was gone without having been asked to end";
/// The same, if the kernel ended it.
const OUT_OF_MEMORY: &str = "the kernel of the host ended QEMU for lack of memory (OOM killer)";
/// How often a guest that is paused for a snapshot is looked at.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

pub(super) fn plan(vm: &VM, observed: &Observed) -> Plan<Step> {
    let mut plan = decide(vm, observed);
    plan.steps.splice(0..0, bookkeeping(observed));
    let plan = live::requeue(vm, observed, plan);
    guest_users::requeue(&observed.guest_users, plan)
}

/// Steps that bring what the agent keeps in memory up to date, whatever is decided about the VM.
fn bookkeeping(observed: &Observed) -> Vec<Step> {
    let forget = observed.machine_known.then_some(Step::ForgetMachine);
    let hold = (!observed.disks_to_hold.is_empty()).then(|| Step::HoldDisks(observed.disks_to_hold.clone()));
    let watch = observed.lease_watch.clone().map(Step::WatchLeases);
    let probes = observed.probe_watch.clone().map(Step::WatchProbes);
    let keys = guest_users::step(&observed.guest_users);
    let package = guest_package::step(&observed.guest_package);
    forget.into_iter().chain(hold).chain(watch).chain(probes).chain(keys).chain(package).collect()
}

fn decide(vm: &VM, observed: &Observed) -> Plan<Step> {
    if observed.instance.is_empty() {
        return Plan::without_steps(Readiness::Reconciling(
            Reason::Bound,
            "bound without an instance identity".into(),
        ));
    }
    if let Some(problem) = &observed.journal_problem {
        // It is not known what was requested of this machine, so any step might be wrong.
        return Plan::without_steps(Readiness::Stalled(Reason::NotSupported, problem.clone()));
    }
    if epoch_of(vm) < observed.journal.epoch {
        let text = "a newer binding of this VM was worked on here: this one is void";
        return Plan::without_steps(Readiness::Reconciling(Reason::Bound, text.into()));
    }
    match observed.journal.owner(vm) {
        Owner::ThisVm => {}
        Owner::Former => return Plan::steps(vec![write_journal(taken_over(vm, observed))], taking_over()),
        Owner::Other => {
            let text = format!(
                "instance {} was made for another VM of this name, with the uid {}: it is left alone",
                observed.instance, observed.journal.uid
            );
            return Plan::without_steps(Readiness::Stalled(Reason::NotSupported, text));
        }
    }
    if let Some(plan) = live::moving(vm, observed) {
        return plan;
    }
    if let Some(updated) = offline::updated(vm, observed) {
        let text = "its restart is recorded".to_owned();
        return Plan::steps(vec![write_journal(updated)], Readiness::Reconciling(Reason::Starting, text));
    }
    if let Some(process) = &observed.process {
        if observed.connection_due {
            let text = "connecting to QEMU".to_owned();
            let connect = vec![Step::Connect(process.clone())];
            return Plan::steps(connect, Readiness::Reconciling(Reason::Retrying, text));
        }
        return present(vm, observed);
    }
    match &observed.admission {
        Admission::Recorded => absent(vm, observed),
        // Nothing is created for the VM before the control plane knows that it was admitted.
        Admission::Granted | Admission::Unknown => Plan { steps: Vec::new(), ..absent(vm, observed) },
        Admission::Fits(offer) => {
            Plan { steps: vec![Step::ReserveCapacity(offer.clone())], ..absent(vm, observed) }
        }
        Admission::Refused(why) => Plan::without_steps(Readiness::Reconciling(
            Reason::Refused,
            format!("its host refused it: {why}"),
        )),
    }
}

pub(super) fn write_journal(journal: Journal) -> Step {
    Step::WriteJournal(Box::new(journal))
}

fn deleting(vm: &VM) -> bool {
    vm.metadata.deletion_timestamp.is_some()
}

/// Returns why this VM's machine must stop, if it must.
fn reason_to_stop(vm: &VM, run: Option<&Run>, draining: bool) -> Option<StopReason> {
    if deleting(vm) {
        return Some(StopReason::Delete);
    }
    if vm.spec.power == Power::Stopped || draining {
        return Some(StopReason::PowerOff);
    }
    // A paused guest is restarted once it is to run.
    let restarts = vm.spec.power == Power::Running && run.is_some_and(|run| asks_for_restart(vm, run));
    // A guest that could not start again runs on.
    let restarts = restarts && power_on_gate(vm).is_none();
    restarts.then_some(StopReason::Restart)
}

/// Whether the guest must stop because its liveness probe fails. A stop that was begun for it goes on.
fn unhealthy(vm: &VM, observed: &Observed) -> Option<StopReason> {
    let begun = observed.journal.stop.as_ref();
    let is_begun = begun.is_some_and(|stop| stop.why == StopReason::Unhealthy && !stop.cancelled);
    let fails = vm.spec.liveness_probe.is_some()
        && vm.spec.power == Power::Running
        && matches!(observed.probes.liveness, Some(Outcome::Failure(_)));
    // A guest that could not start again runs on.
    let fails = fails && power_on_gate(vm).is_none() && !observed.turn.waits();
    (is_begun || fails).then_some(StopReason::Unhealthy)
}

/// Whether the VM has another restart token than at its last start. Without a token nothing is restarted.
fn asks_for_restart(vm: &VM, run: &Run) -> bool {
    vm.spec.restart_token.is_some() && run.token != vm.spec.restart_token
}

/// Returns the journal with the VM's current uid, for an instance recorded under the uid it had before. From here on
/// the instance belongs to the current uid, whatever happens to the former one.
fn taken_over(vm: &VM, observed: &Observed) -> Journal {
    let uid = vm.metadata.uid.clone().unwrap_or_default();
    Journal { uid, epoch: epoch_of(vm), ..observed.journal.clone() }
}

fn taking_over() -> Readiness {
    Readiness::Reconciling(Reason::Bound, "taken over from the uid it had before".into())
}

/// Returns why a public address does not lead to the VM; `otherwise` if it is not refused, as the end of a sentence that begins with
/// the PublicIP.
fn obstacle(public: &DeclaredAddress, otherwise: &str) -> String {
    match &public.refused {
        Some(why) => format!("PublicIP {} cannot lead here: {why}", public.name),
        None => format!("PublicIP {} {otherwise}", public.name),
    }
}

/// Returns why an interface waits for its address or its Network, for people: as much as a host knows of it.
fn without_address(name: &str) -> String {
    format!(
        "network interface {name} waits for its address: its Network does not exist, is not ready or has no free address, or the declared \
         address or MAC address is taken"
    )
}

/// Returns the journal with the public addresses the VM has now, if they have changed.
fn with_public(observed: &Observed) -> Option<Journal> {
    let seen = observed.public.iter().filter_map(|seen| {
        let (interface, name) = (seen.interface.clone(), seen.name.clone());
        let GivenAddress { address, prefix, mode } = seen.address?;
        let prefix_length = prefix.map(|prefix| prefix.prefix_len());
        Some(ForwardedAddress { interface, name, address, mode, prefix_length })
    });
    let (public_ipv6, public): (Vec<_>, Vec<_>) = seen.partition(|seen| seen.address.is_ipv6());
    let is_so = public == observed.journal.public && public_ipv6 == observed.journal.public_ipv6;
    (!is_so).then(|| Journal { public, public_ipv6, ..observed.journal.clone() })
}

/// Returns the journal with the CPUs and the memory that the machine has now, if some were plugged in or out.
fn with_size(observed: &Observed) -> Option<Journal> {
    let machine = observed.machine.as_ref()?;
    let mut journal = observed.journal.clone();
    // While it is being resumed it does not have them yet.
    if journal.suspension.is_some() {
        return None;
    }
    let run = journal.run.as_mut()?;
    let before = (run.cpus, run.memory_bytes);
    // A QEMU that a guest has taken over does not fill its host with numbers.
    let most = run.max_cpus.unwrap_or(run.cpus).max(run.cpus);
    run.cpus = machine.cpus.map_or(run.cpus, |cpus| cpus.min(most));
    if let (Some(growth), Some(has)) = (run.growth, machine.growth) {
        run.memory_bytes = growth.base.saturating_add(has.plugged).min(growth.most);
    }
    if run.memory_bytes != before.1
        && let Some(growth) = &mut run.growth
    {
        growth.changed_at = Some(observed.now);
    }
    ((run.cpus, run.memory_bytes) != before).then_some(journal)
}

/// Plans for a VM with a QEMU.
fn present(vm: &VM, observed: &Observed) -> Plan<Step> {
    let journal = &observed.journal;
    let starting = || Readiness::Reconciling(Reason::Starting, "being started".into());
    if let Some(adopted) = adopted(vm, observed) {
        return Plan::steps(vec![write_journal(adopted)], starting());
    }
    if !deleting(vm)
        && let Some(updated) = with_public(observed)
    {
        return Plan::steps(vec![write_journal(updated)], starting());
    }
    if let Some(updated) = with_size(observed) {
        return Plan::steps(vec![write_journal(updated)], starting());
    }
    let ended = observed.machine.as_ref().is_some_and(|machine| has_ended(&machine.run_state));
    if ended {
        return finish(observed);
    }
    if observed.is_saving {
        return saving(vm, observed);
    }
    if let Some(plan) = suspend::present(vm, observed).or_else(|| live::begin(vm, observed)) {
        return plan;
    }
    let wanted = reason_to_stop(vm, journal.run.as_ref(), observed.draining)
        // A guest that could not start again runs on.
        .filter(|why| *why != StopReason::Restart || !observed.turn.waits())
        .or_else(|| unhealthy(vm, observed));
    match (&journal.stop, wanted) {
        (None, None) => running::plan(vm, observed),
        (None, Some(why)) => begin_stop(vm, observed, why),
        (Some(stop), Some(why)) if stop.cancelled => begin_stop(vm, observed, why),
        (Some(stop), Some(why)) if stop.why != why => {
            // The reason changed during the stop: the time the guest has already been given counts.
            let released = stop::released(vm, observed, stop);
            let stop = Stop { why, released, ..stop.clone() };
            let updated = Journal { stop: Some(stop), deleting: deleting(vm), ..journal.clone() };
            Plan::steps(vec![write_journal(updated)], stop::stopping(why))
        }
        (Some(stop), Some(_)) => stop::plan(vm, observed, stop),
        (Some(stop), None) => cancelled(vm, observed, stop),
    }
}

/// Plans for a guest that is paused for a snapshot, which lets it go on. A stop that is asked for meanwhile waits for that.
fn saving(vm: &VM, observed: &Observed) -> Plan<Step> {
    // It is about to be paused, or goes on: nothing is begun, and it stands as it does without the snapshot.
    if observed.machine.as_ref().is_some_and(|machine| machine.run_state == RunState::Running) {
        return Plan::without_steps(running::plan(vm, observed).readiness).requeue_after(LOOK_AGAIN);
    }
    let text = "the guest is paused while its memory is saved for a snapshot".to_owned();
    Plan::without_steps(Readiness::Reconciling(Reason::Paused, text)).requeue_after(LOOK_AGAIN)
}

fn begin_stop(vm: &VM, observed: &Observed, why: StopReason) -> Plan<Step> {
    let stop = Stop { why, since: observed.now, released: None, asked: 0, cancelled: false };
    let mut updated = Journal { stop: Some(stop), deleting: deleting(vm), ..observed.journal.clone() };
    if let (StopReason::Unhealthy, Some(Outcome::Failure(cause))) = (why, &observed.probes.liveness) {
        let how = format!("the liveness probe failed ({cause})");
        updated = updated.with_ending(Ended { at: observed.now, orderly: false, how, out_of_memory: false });
    }
    Plan::steps(vec![write_journal(updated)], stop::stopping(why))
}

/// Returns the journal updated to the running process, after a crash between a launch and its record.
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

/// Plans for a guest that has ended while its QEMU waits to be asked why.
fn finish(observed: &Observed) -> Plan<Step> {
    let journal = &observed.journal;
    let readiness = Readiness::Reconciling(Reason::Stopping, "the guest has ended".into());
    let known = journal.stop.is_some() || journal.run.as_ref().is_some_and(|run| run.ended.is_some());
    if known {
        return Plan::steps(vec![Step::EndProcess], readiness);
    }
    let ended = ending(observed.machine.as_ref(), observed.now);
    let updated = journal.clone().with_ending(ended).with_suspension(None);
    let mut steps = vec![write_journal(updated), Step::EndProcess];
    // It ended before its state was saved.
    if journal.suspension.is_some() {
        steps.insert(0, Step::RemoveState);
    }
    Plan::steps(steps, readiness)
}

fn ending(machine: Option<&MachineState>, at: Timestamp) -> Ended {
    let state = machine.map(|machine| &machine.run_state);
    let reported = machine.and_then(|machine| machine.ending.as_ref());
    let (orderly, how) = match (state, reported) {
        (Some(RunState::GuestPanicked), _) => (false, "the guest's kernel panicked".to_owned()),
        (Some(RunState::Watchdog), _) => (false, "the guest did not reset its watchdog timer".to_owned()),
        (Some(RunState::InternalError), _) => (false, "QEMU reports an internal error".to_owned()),
        (_, Some(reported)) if reported.by_guest && reported.reason != "guest-panic" => {
            (true, "the guest switched itself off".to_owned())
        }
        (_, Some(reported)) => (false, format!("QEMU was ended ({})", reported.reason)),
        // The driver was not connected to receive the event; a guest that powers itself off leads to this paused state.
        (_, None) => (true, "the guest switched itself off".to_owned()),
    };
    Ended { at, orderly, how, out_of_memory: false }
}

/// Plans for a stop that is no longer wanted: a guest that received the request may still end until its grace period is
/// over.
fn cancelled(vm: &VM, observed: &Observed, stop: &Stop) -> Plan<Step> {
    let journal = &observed.journal;
    if !stop.cancelled {
        let stop = Stop { cancelled: true, ..stop.clone() };
        let updated = Journal { stop: Some(stop), ..journal.clone() };
        return Plan::steps(
            vec![write_journal(updated)],
            Readiness::Reconciling(Reason::Starting, String::new()),
        );
    }
    let left = stop::time_left(vm, observed, stop);
    if left.is_zero() {
        let mut updated = Journal { stop: None, ..journal.clone() };
        // A failed liveness probe counted as its end, and it runs on: how it ends later is not known yet.
        updated.run.iter_mut().for_each(|run| run.ended = None);
        return Plan::steps(
            vec![write_journal(updated)],
            Readiness::Reconciling(Reason::Starting, String::new()),
        );
    }
    running::plan(vm, observed).requeue_after(left)
}

/// Plans for a VM without a QEMU.
fn absent(vm: &VM, observed: &Observed) -> Plan<Step> {
    let journal = &observed.journal;
    if let Some(plan) = suspend::absent(vm, observed) {
        return plan;
    }
    if let Some(stop) = &journal.stop {
        let updated = match stop.why {
            // Its restart policy decides, as if it had ended by itself.
            StopReason::Unhealthy => {
                Journal { stop: None, ..vanished(observed, "the liveness probe failed") }
            }
            _ => Journal { deleting: deleting(vm), ..journal.clone().stopped() },
        };
        return Plan::steps(
            vec![write_journal(updated)],
            Readiness::Reconciling(Reason::Stopping, "stopped".into()),
        );
    }
    if journal.has_process() {
        return Plan::steps(
            vec![write_journal(vanished(observed, GONE))],
            Readiness::Reconciling(Reason::Stopping, "ended".into()),
        );
    }
    if deleting(vm) {
        return stop::remove(observed);
    }
    if let Some(plan) = release::plan(vm, observed).or_else(|| firmware::taken_over(vm, observed)) {
        return plan;
    }
    if vm.spec.power == Power::Stopped {
        return stop::stopped(observed);
    }
    if vm.spec.power == Power::Suspended {
        let off = Readiness::Ready(Reason::Stopped, "there is no guest to suspend: it is off".to_owned());
        return stop::off(observed, sleep::lost(vm, observed).unwrap_or(off));
    }
    if observed.draining {
        // A boot starts no guest that has ended by itself before, unlike the end of a drain.
        let stays_off = observed.at_shutdown.and_then(|_| due::left_off(vm, observed));
        return stays_off
            .unwrap_or_else(|| stop::off(observed, stop::held_by_host(observed, "starts again")));
    }
    if let Some((gate, reason)) = power_on_gate(vm) {
        let text =
            format!("the annotation {gate} holds back the start ({reason}): it starts once that is removed");
        let held = stop::off(observed, Readiness::Reconciling(Reason::PowerOnHeld, text));
        // The removal of a gate starts no guest that has ended by itself before, and stays off.
        return due::left_off(vm, observed).unwrap_or(held);
    }
    due::not_due(vm, observed)
        .or_else(|| suspend::restored(vm, observed))
        .unwrap_or_else(|| offline::recorded(vm, observed, start::plan(vm, observed)))
}

/// Returns the journal after QEMU exited without a request, or after the guest was seen to end before QEMU exited.
fn vanished(observed: &Observed, how: &str) -> Journal {
    gone(&observed.journal, observed.now, how, observed.oom_killed)
}

fn gone(journal: &Journal, at: Timestamp, how: &str, out_of_memory: bool) -> Journal {
    let mut journal = journal.clone();
    let known = journal.run.as_ref().is_some_and(|run| run.ended.is_some());
    if !known {
        let how = if out_of_memory { OUT_OF_MEMORY } else { how }.to_owned();
        journal = journal.with_ending(Ended { at, orderly: false, how, out_of_memory });
    }
    if let Some(ended) = journal.run.as_mut().and_then(|run| run.process.take()) {
        // An older agent did not record it.
        journal.boot.get_or_insert(ended.boot_id);
    }
    journal
}
