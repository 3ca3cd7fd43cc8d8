//! The architecture of a VM's processors at its start: this host and the machine have it, and it is that of the first start. Pure.

use std::time::Duration;

use berth_api::{Readiness, Reason, Size, VM};
use berth_host::HostFacts;
use berth_qemu::machine::Architecture;

use super::{Observed, Step, pins};
use crate::converge::Plan;
use crate::hardware::architecture_of;

/// Retry interval while the host does not allow it.
const ASK_HOST: Duration = Duration::from_secs(30);

/// Checks that the VM can be started with its architecture.
pub(super) fn check(vm: &VM, observed: &Observed, size: &Size, host: &HostFacts) -> Result<(), Plan<Step>> {
    let stalled = |reason, text| Plan::without_steps(Readiness::Stalled(reason, text));
    let wanted = architecture_of(observed.profile.architecture);
    let first = pins::recovered(vm, &observed.journal).pins;
    let first = first.map(|pins| Architecture::of_machine_type(&pins.machine_type));
    if let Some(first) = first.filter(|first| *first != wanted) {
        let (first, wanted) = (first.as_str(), wanted.as_str());
        let text = format!(
            "the VM was first started with architecture {first}, which it keeps, and it is to have {wanted}: give it a class of {first}, or \
             create another VM"
        );
        return Err(stalled(Reason::InvalidSpec, text));
    }
    if let Some(text) = vm.spec.unsupported_part(size, &observed.profile) {
        return Err(stalled(Reason::InvalidSpec, text));
    }
    if let Some(text) = host.refusal(wanted) {
        return Err(stalled(Reason::NotSupported, text).requeue_after(ASK_HOST));
    }
    Ok(())
}
