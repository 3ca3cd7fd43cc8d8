//! The long-running operation of a VM, from its journal and the observation. Pure.
//!
//! It begins and ends together with a condition, so that it costs no write of its own. The progress of one that takes long costs at most one for
//! each tenth.

use berth_api::vm::{VMOperation, VMOperationName};
use berth_api::{Power, Readiness, Reason, VM};
use berth_qemu::power::RunState;
use jiff::{SignedDuration, Timestamp};

use super::super::Observed;
use crate::journal::SuspensionPhase;
use crate::restores::VmRestore;

/// How long an operation takes whose progress is reported.
const LONG: SignedDuration = SignedDuration::from_secs(10);

struct Current {
    name: VMOperationName,
    /// None: the time at which it is first reported.
    since: Option<Timestamp>,
    percent: Option<i64>,
}

impl Current {
    fn of(name: VMOperationName) -> Self {
        Self { name, since: None, percent: None }
    }
}

/// Returns the operation, if there is one.
pub(super) fn current(
    vm: &VM,
    observed: &Observed,
    readiness: &Readiness,
    now: Timestamp,
) -> Option<VMOperation> {
    let Current { name, since, percent } = match observed.process {
        Some(_) => present(vm, observed).or_else(|| awaited(observed, readiness)),
        None => absent(vm, observed, readiness),
    }?;
    let stored = vm.status.as_ref().and_then(|status| status.operation.as_ref());
    let reported = stored.filter(|stored| stored.name == name).map(|stored| stored.started_at);
    let started_at = since.or(reported).unwrap_or(now);
    let percent = percent.filter(|_| now.duration_since(started_at) >= LONG);
    Some(VMOperation {
        name,
        // Not rounded up: it is compared with the present time.
        started_at: Timestamp::from_second(started_at.as_second()).unwrap_or(started_at),
        percent: percent.map(|percent| percent.clamp(0, 100) / 10 * 10).filter(|percent| *percent > 0),
    })
}

/// Returns the operation of a VM with a QEMU.
fn present(vm: &VM, observed: &Observed) -> Option<Current> {
    let (journal, machine) = (&observed.journal, observed.machine.as_ref());
    let percent = machine.and_then(|machine| machine.saved_percent);
    if let Some(departure) = journal.departure.as_deref() {
        let (name, percent) = (VMOperationName::Move, observed.departure.percent);
        return Some(Current { name, since: Some(departure.since), percent });
    }
    if observed.is_saving && machine.is_some_and(|machine| machine.run_state != RunState::Running) {
        return Some(Current { percent, ..Current::of(VMOperationName::Snapshot) });
    }
    if let Some(suspension) = &journal.suspension {
        return Some(match suspension.phase {
            SuspensionPhase::Saving | SuspensionPhase::Saved => {
                Current { name: VMOperationName::Suspend, since: Some(suspension.since), percent }
            }
            SuspensionPhase::Resuming => Current::of(VMOperationName::Resume),
        });
    }
    if let Some(stop) = journal.stop.as_ref().filter(|stop| !stop.cancelled) {
        return Some(Current { since: Some(stop.since), ..Current::of(VMOperationName::Stop) });
    }
    let starts = vm.spec.power == Power::Running
        && machine.is_some_and(|machine| machine.run_state == RunState::Prelaunch);
    starts.then(|| Current::of(VMOperationName::Start))
}

/// Returns the operation of a VM without a QEMU.
fn absent(vm: &VM, observed: &Observed, readiness: &Readiness) -> Option<Current> {
    if vm.metadata.deletion_timestamp.is_some() {
        return None;
    }
    if matches!(observed.restore, VmRestore::Due(_)) && observed.journal.suspension.is_none() {
        return Some(Current::of(VMOperationName::Restore));
    }
    if matches!(readiness, Readiness::Reconciling(Reason::Moving, _)) {
        return Some(Current::of(VMOperationName::Move));
    }
    if !matches!(readiness, Readiness::Reconciling(Reason::Starting, _)) {
        return awaited(observed, readiness);
    }
    let name = match observed.journal.is_suspended() {
        true => VMOperationName::Resume,
        false => VMOperationName::Start,
    };
    Some(Current::of(name))
}

/// Returns the work on an image or a disk that the VM waits for.
fn awaited(observed: &Observed, readiness: &Readiness) -> Option<Current> {
    match readiness {
        // Of a CD-ROM drive.
        Readiness::Reconciling(Reason::Pulling, _) => {
            let mut images = observed.cdroms.iter().filter_map(|drive| drive.image.as_ref());
            let percent = images.find_map(|(_, image)| image.percent());
            Some(Current { percent, ..Current::of(VMOperationName::Download) })
        }
        Readiness::Reconciling(Reason::WaitingForDisk, _) => {
            let work = observed.disks.iter().find_map(|disk| disk.work.as_ref())?;
            // Of a VM that runs it would be outdated: it is not looked at for that.
            let percent = work.percent.filter(|_| observed.process.is_none());
            Some(Current { percent, ..Current::of(work.operation) })
        }
        _ => None,
    }
}
