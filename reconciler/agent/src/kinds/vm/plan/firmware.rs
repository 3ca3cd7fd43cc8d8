//! Plan for the firmware variables and the memory of the TPM of a VM that comes from another host. Pure.
//!
//! ```text
//!    status.formerHost = OLD     TakeFirmware ▸ journal: firmware = epoch      status.formerHost removed      OLD removes its files
//!    (bound here, off)      ───▶ (durable here)                           ───▶ (the VM may start)        ───▶
//! ```

use berth_api::{Readiness, Reason, Size, VM};

use super::super::FirmwareOrigin;
use super::super::firmware::lost;
use super::{Observed, Step, write_journal};
use crate::converge::Plan;
use crate::journal::{Journal, epoch_of};

/// Returns the plan for a VM whose firmware state another host has, or had when the VM was bound here. None: it is here, or there is none.
pub(super) fn taken_over(vm: &VM, observed: &Observed) -> Option<Plan<Step>> {
    let former = vm.firmware_state_on()?;
    let epoch = epoch_of(vm);
    let readiness = |text: String| Readiness::Reconciling(Reason::Moving, text);
    if observed.journal_written && observed.journal.firmware == Some(epoch) {
        // The report of it removes the former host, and wakes the VM.
        let text = format!("its firmware state is here, and host {former} may remove it");
        return Some(Plan::without_steps(readiness(text)));
    }
    let own = vm.status.as_ref().and_then(|status| status.binding.as_ref()).map(|binding| &*binding.host);
    let origin = if own == Some(former) {
        // Also if a loss is accepted: what is here is not lost.
        FirmwareOrigin::Here
    } else if vm.accepts_firmware_loss() {
        FirmwareOrigin::Nowhere
    } else {
        FirmwareOrigin::Host(former.to_owned())
    };
    let updated = Journal { epoch, firmware: Some(epoch), ..observed.journal.clone() };
    let steps = vec![Step::TakeFirmware(origin), write_journal(updated)];
    let text = format!("its firmware variables and the memory of its TPM are fetched from host {former}");
    Some(Plan::steps(steps, readiness(text)))
}

/// Checks that a TPM which the VM had is not replaced by an empty one.
pub(super) fn ready(vm: &VM, observed: &Observed, size: &Size) -> Result<(), Plan<Step>> {
    let is_known = observed.journal.firmware == Some(epoch_of(vm)) || observed.has_tpm_state;
    if !size.tpm || !vm.had_tpm() || is_known || vm.accepts_firmware_loss() {
        return Ok(());
    }
    Err(Plan::without_steps(lost(vm, "it is not in the state directory of this host").readiness()))
}

/// Records in the journal of a start that a TPM without memory is a new one.
pub(super) fn record(journal: &mut Journal, size: &Size) {
    if size.tpm {
        journal.firmware = Some(journal.epoch);
    }
}
