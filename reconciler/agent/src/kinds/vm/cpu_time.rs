//! The CPU time that a VM declares, in the terms of its host, and that which its machine has. Pure.

use berth_api::{CpuAmount, CpuControls, vm};
use berth_qemu::hypervisor::CpuTime;

use super::Step;

/// Returns the CPU time of a machine on a host with this many CPUs.
pub(super) fn of(controls: &CpuControls, cpus: u32) -> CpuTime {
    CpuTime { limit: controls.limit, weight: controls.weight_on(cpus) }
}

/// Returns the step that gives a running machine the CPU time it is to have, if it has another.
pub(super) fn step(has: Option<CpuTime>, wanted: CpuTime) -> Option<Step> {
    has.filter(|has| *has != wanted).map(|_| Step::SetCpuTime(wanted))
}

/// Returns the CPU time of a running machine for the status; none if it is the default.
pub(super) fn report(has: Option<CpuTime>) -> Option<vm::CpuTime> {
    let has = has.filter(|has| *has != CpuTime::default())?;
    let limit = has.limit.map(|millis| CpuAmount::from_millis(millis).0);
    Some(vm::CpuTime { limit, weight: has.weight.into() })
}
