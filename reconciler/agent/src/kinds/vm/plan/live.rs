//! Plan for a VM whose running guest moves to another host, see [`crate::journal::Departure`]. Pure.
//!
//! While a task sends the guest, it alone decides: nothing else is done to the machine, and a stop or a deletion ends the task first. After
//! the guest was handed over, its QEMU here is ended, and then the release is recorded, which the controllers bind the VM by.

use std::collections::BTreeSet;
use std::time::Duration;

use berth_api::vm::MigrationPhase;
use berth_api::{Power, Readiness, Reason, VM, VMStatus};
use berth_host::VolumeFacts;
use berth_qemu::power::RunState;

use super::super::leaving::Leaving;
use super::super::surplus;
use super::interfaces::are_recorded;
use super::{Observed, Step, asks_for_restart, deleting, running, vanished, write_journal};
use crate::converge::Plan;
use crate::journal::{ArrivalPhase, Departure, DeparturePhase, Journal, Released, epoch_of};
use crate::live_moves::FailedDeparture;
use crate::saved_machine::{as_it_is, on_present_files};

/// How often the progress is looked at.
const LOOK_AGAIN: Duration = Duration::from_secs(2);
/// The number of attempts after which the controllers choose another host, or the same.
const ATTEMPTS: u32 = 3;
/// How often it is seen whether a guest can move that could not.
const ASK_AGAIN: Duration = Duration::from_secs(30);

fn sending(to: &str) -> Readiness {
    Readiness::Reconciling(Reason::Moving, format!("the running guest is being sent to host {to}"))
}

/// A guest that runs stands as it does without the move.
fn while_sending(vm: &VM, observed: &Observed, departure: &Departure) -> Readiness {
    let runs = observed.machine.as_ref().is_some_and(|machine| machine.run_state == RunState::Running);
    match runs && departure.phase == DeparturePhase::Sending {
        true => running::plan(vm, observed).readiness,
        false => sending(&departure.to),
    }
}

/// Plans for a guest that is being sent, or was sent, or has come. None: it is not, or there is nothing to do for it but the usual.
pub(super) fn moving(vm: &VM, observed: &Observed) -> Option<Plan<Step>> {
    let journal = &observed.journal;
    if let Some(arrival) = journal.arrival.as_deref() {
        if arrival.phase == ArrivalPhase::Receiving {
            let text = format!("what was made for its guest from host {} is being removed", arrival.from);
            let waits = Readiness::Reconciling(Reason::Moving, text);
            return Some(Plan::without_steps(waits).requeue_after(LOOK_AGAIN));
        }
        // The VM is bound here.
        let updated = Journal { epoch: epoch_of(vm), ..journal.clone() }.with_arrival(None);
        let readiness = Readiness::Reconciling(Reason::Moving, "its running guest has come".to_owned());
        return Some(Plan::steps(vec![write_journal(updated)], readiness));
    }
    let departure = journal.departure.as_deref()?;
    match departure.phase {
        DeparturePhase::HandedOver => handed_over(vm, observed, departure),
        _ if observed.departure.is_active => {
            let is_over = observed.departure.is_cancelled || departure.phase != DeparturePhase::Sending;
            let ends = !is_to_move_on(vm, observed) || has_surplus_disk(observed);
            let cancel = (!is_over && ends).then_some(Step::CancelDeparture);
            let plan = Plan::steps(cancel.into_iter().collect(), while_sending(vm, observed, departure));
            Some(plan.requeue_after(LOOK_AGAIN))
        }
        DeparturePhase::HandingOver => {
            let step = Step::SettleDeparture(Box::new(departure.clone()));
            Some(Plan::steps(vec![step], sending(&departure.to)))
        }
        DeparturePhase::Sending if observed.process.is_some() => {
            Some(Plan::steps(vec![Step::AbandonDeparture], sending(&departure.to)))
        }
        DeparturePhase::Sending => {
            let updated = vanished(observed, super::GONE).with_departure(None);
            let readiness = Readiness::Reconciling(Reason::Stopping, "ended".to_owned());
            Some(Plan::steps(vec![write_journal(updated)], readiness))
        }
    }
}

/// Ends what is left of a guest that runs on the other host, and records that this host has given the VM up.
fn handed_over(vm: &VM, observed: &Observed, departure: &Departure) -> Option<Plan<Step>> {
    let text = format!("its guest runs on host {}", departure.to);
    let readiness = Readiness::Reconciling(Reason::Moving, text);
    if observed.process.is_some() {
        return Some(Plan::steps(vec![Step::EndProcess], readiness));
    }
    if let Some(released) = &observed.journal.released {
        // A VM that is deleted before it is bound there is deleted there.
        let awaits_host = released.epoch == epoch_of(vm) && deleting(vm);
        return awaits_host.then(|| Plan::without_steps(readiness));
    }
    let volumes: BTreeSet<String> = observed.disks.iter().filter_map(|disk| disk.volume_id.clone()).collect();
    let released = Released { epoch: departure.epoch, volumes };
    let journal = Journal { public: Vec::new(), public_ipv6: Vec::new(), ..observed.journal.clone() };
    let updated = journal.without_devices().stopped().with_release(Some(released));
    Some(Plan::steps(vec![write_journal(updated)], readiness))
}

/// Whether the running guest is still to be sent: nothing else is declared of it meanwhile.
fn is_to_move_on(vm: &VM, observed: &Observed) -> bool {
    let status = vm.status.as_ref();
    let is_requested = status.and_then(VMStatus::live_move).is_some_and(|migration| {
        migration.phase == MigrationPhase::Requested
            && observed.journal.departure.as_ref().is_none_or(|now| now.migration == migration.id)
    });
    let restarts = observed.journal.run.as_ref().is_some_and(|run| asks_for_restart(vm, run));
    let is_to_move = status.is_some_and(VMStatus::is_to_move);
    is_requested
        && is_to_move
        && vm.spec.power == Power::Running
        && !deleting(vm)
        && !restarts
        && !observed.draining
}

/// Whether the machine has a disk that was taken off its VM. The other host would open it, although the Disk stays with this one, where another
/// VM may get it.
fn has_surplus_disk(observed: &Observed) -> bool {
    observed.machine.as_ref().is_some_and(|machine| !surplus(machine, observed).is_empty())
}

/// Returns why the guest of a VM that is to move cannot be sent, as far as its host sees that. None also if it can.
pub(in crate::kinds::vm) fn refusal(vm: &VM, observed: &Observed) -> Option<String> {
    if !is_to_move_on(vm, observed) || observed.journal.released.is_some() {
        return None;
    }
    let machine = observed.machine.as_ref().filter(|machine| machine.run_state == RunState::Running)?;
    if let Some(bus) = observed.journal.device_bus() {
        return Some(format!(
            "it has {} of its host, which stay there: it moves while it is off",
            bus.noun(0)
        ));
    }
    if machine.has_tpm.is_some() {
        return Some("its TPM is on this host: it moves while it is off".to_owned());
    }
    if observed.journal.run.as_ref().is_some_and(|run| run.profile.scratch_disk.is_some()) {
        return Some("its scratch disk is on this host: it moves while it is off".to_owned());
    }
    if !machine.mirrors.is_empty() {
        return Some("a disk of it is being moved to another pool".to_owned());
    }
    if let Some(disk) = surplus(machine, observed).first() {
        return Some(format!("its guest has the disk {} still, which was taken off it", disk.serial));
    }
    as_it_is(&observed.journal, machine, &volumes(observed)).err()
}

fn volumes(observed: &Observed) -> Vec<&VolumeFacts> {
    observed.disks.iter().filter_map(|disk| disk.volume.as_ref()).collect()
}

/// Whether the record of the move is withdrawn: the VM does not move out of this binding any more, or the controllers are to choose again
/// after some attempts. Only its host knows that the guest is not being handed over.
pub(in crate::kinds::vm) fn is_withdrawn(vm: &VM, observed: &Observed) -> bool {
    let Some(migration) = vm.status.as_ref().and_then(VMStatus::live_move) else { return false };
    if observed.journal.departure.is_some()
        || observed.departure.is_active
        || observed.journal.released.is_some()
    {
        return false;
    }
    let failed = observed.departure.failure.as_ref();
    let has_failed = failed.is_some_and(|failed| {
        failed.migration == migration.id && failed.count > 0 && failed.count.is_multiple_of(ATTEMPTS)
    });
    has_failed || !vm.status.as_ref().is_some_and(VMStatus::is_to_move)
}

/// Begins to send a running guest, if that is requested and possible now.
pub(super) fn begin(vm: &VM, observed: &Observed) -> Option<Plan<Step>> {
    if !is_to_move_on(vm, observed) || awaited(observed).is_some() || refusal(vm, observed).is_some() {
        return None;
    }
    // The status of this pass has the record no more, and a guest that was handed over would not be found by it.
    if is_withdrawn(vm, observed) {
        return None;
    }
    let journal = &observed.journal;
    let migration = vm.status.as_ref().and_then(VMStatus::live_move)?;
    let machine = observed.machine.as_ref().filter(|machine| machine.run_state == RunState::Running)?;
    let is_busy = journal.stop.is_some()
        || journal.suspension.is_some()
        || journal.released.is_some()
        || observed.departure.is_active;
    let volumes = volumes(observed);
    let is_snapshot_taken = volumes.iter().any(|volume| volume.pending_snapshot.is_some());
    if is_busy || is_snapshot_taken || !are_recorded(observed) {
        return None;
    }
    let spec = on_present_files(&as_it_is(journal, machine, &volumes).ok()?, &volumes);
    let cpus = machine.cpus.unwrap_or_else(|| journal.run.as_ref().map_or(1, |run| run.cpus));
    let departure = Departure {
        id: format!("{}-{}", migration.id, observed.now.as_millisecond()),
        migration: migration.id.clone(),
        to: migration.to.clone(),
        epoch: migration.epoch,
        phase: DeparturePhase::Sending,
        since: observed.now,
    };
    let updated = journal.clone().with_departure(Some(departure.clone()));
    let readiness = while_sending(vm, observed, &departure);
    let leaving = Leaving { departure, machine: spec, cpus };
    let steps = vec![write_journal(updated), Step::Depart(Box::new(leaving))];
    Some(Plan::steps(steps, readiness).requeue_after(LOOK_AGAIN))
}

/// Returns the attempt that has failed, while the next is not due.
fn awaited(observed: &Observed) -> Option<&FailedDeparture> {
    observed.departure.failure.as_ref().filter(|failed| !failed.left.is_zero())
}

/// Has a VM looked at again whose guest could not be sent.
pub(super) fn requeue(vm: &VM, observed: &Observed, plan: Plan<Step>) -> Plan<Step> {
    if observed.journal.departure.is_some() || !is_to_move_on(vm, observed) {
        return plan;
    }
    plan.requeue_after(awaited(observed).map_or(ASK_AGAIN, |failed| failed.left))
}
