//! A VM that moves to another host: this one gives it up once its guest is off. Pure.
//!
//! ```text
//!    status.moveEpoch = N, guest off         journal: released N          status.releasedEpoch = N       bound elsewhere, under an epoch above N
//!    (stopped, or to be started again) ────▶ (never started under N) ───▶ (read by the controllers) ───▶ the instance is removed here
//! ```
//!
//! The journal is written, and durable, before the report. An agent that finds either of the two starts nothing. A VM that comes back has a
//! greater epoch. Files that are left here of an earlier stay, whose data another host has by then, are removed before it is started.

use berth_api::{Power, Readiness, Reason, VM, VMStatus};
use berth_host::VolumeFacts;

use super::{Observed, Step, asks_for_restart, stop, write_journal};
use crate::admission::Admission;
use crate::converge::Plan;
use crate::journal::{Journal, Released, epoch_of};

/// Returns the plan for a VM without a QEMU that this host gives up, has given up, or has back.
pub(super) fn plan(vm: &VM, observed: &Observed) -> Option<Plan<Step>> {
    let status = vm.status.as_ref()?;
    let (journal, epoch) = (&observed.journal, epoch_of(vm));
    let moving = || {
        let text = "this host has given it up: it moves to another one".to_owned();
        Readiness::Reconciling(Reason::Moving, text)
    };
    let released = journal.released.as_ref();
    if released.is_some_and(|released| released.epoch == epoch) || status.is_released() {
        return Some(stop::off(observed, moving()));
    }
    if let Some(released) = released {
        let updated = Journal { epoch, ..journal.clone() }.with_release(None);
        let text = "it is back on this host".to_owned();
        // First: while the journal names them, nothing is started on them.
        let stale = (!released.volumes.is_empty()).then(|| Step::RemoveStale(released.volumes.clone()));
        let steps = stale.into_iter().chain([write_journal(updated)]).collect();
        return Some(Plan::steps(steps, Readiness::Reconciling(Reason::Bound, text)));
    }
    if !is_due(vm, status, observed) {
        return None;
    }
    let volumes = observed.disks.iter().filter_map(|disk| disk.volume_id.clone()).collect();
    let updated =
        Journal { epoch, public: Vec::new(), public_ipv6: Vec::new(), ..journal.clone().without_devices() };
    let updated = updated.stopped().with_release(Some(Released { epoch, volumes }));
    let off = stop::off(observed, moving());
    // Before the record: the next host takes this copy if this one does not answer.
    let copy = observed.copies_firmware.then_some(Step::CopyFirmware);
    let steps = off.steps.into_iter().chain(copy).chain([write_journal(updated)]).collect();
    Some(Plan::steps(steps, moving()))
}

/// Whether the VM is to move, and its guest is off because that was declared: one that ended by itself is started here again, or left off.
fn is_due(vm: &VM, status: &VMStatus, observed: &Observed) -> bool {
    let is_recorded = matches!(observed.admission, Admission::Recorded);
    // The controllers may not know of a snapshot yet. The file of a pool that is away is not seen here: it can be elsewhere.
    let can_follow =
        |volume: &VolumeFacts| !volume.continues_snapshots() && volume.pending_snapshot.is_none();
    let can_follow = observed.disks.iter().filter_map(|disk| disk.volume.as_ref()).all(can_follow);
    if !status.is_to_move() || !is_recorded || !can_follow || observed.at_shutdown.is_some() {
        return false;
    }
    let run = observed.journal.run.as_ref();
    vm.spec.power == Power::Stopped || run.is_none_or(|run| asks_for_restart(vm, run))
}
