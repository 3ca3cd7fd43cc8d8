//! A VM whose host is being shut down.

use std::borrow::Cow;

use berth_api::{Power, SuspendMode, VM};
use berth_qemu::saved_state::Transfer;

use crate::context::Context;
use crate::error::Error;
use crate::host_shutdown::AtShutdown;
use crate::journal::Journal;
use crate::machine::MachineState;
use crate::saved_machine::size_at_most;
use crate::start_order;

/// The space that the host keeps beside the memory of a guest, in bytes.
const FOR_THE_HOST: u64 = 64 << 20;

/// Returns what is done with the VM because its host is being shut down. `runs`: whether it has a QEMU.
pub(super) fn of(ctx: &Context, vm: &VM, runs: bool) -> Option<AtShutdown> {
    let stopping = ctx.config.shutdown.current()?;
    match runs {
        true => stopping.includes(start_order::of(vm)).then_some(stopping.how),
        // It is not started any more, whatever its order.
        false => Some(AtShutdown::Stop),
    }
}

/// Whether the memory of a guest fits on the disk of its host, or is on its way there.
pub(super) async fn has_room(
    ctx: &Context,
    journal: &Journal,
    machine: Option<&MachineState>,
) -> Result<bool, Error> {
    let is_idle = |transfer: &Transfer| matches!(transfer, Transfer::Idle | Transfer::Failed(_));
    // A monitor that does not answer for a moment ends no save.
    let begins = machine.is_some_and(|machine| is_idle(&machine.transfer));
    let Some(run) = journal.run.as_ref().filter(|_| begins) else { return Ok(true) };
    let needed = run.machine.as_deref().map_or(run.memory_bytes, size_at_most);
    Ok(ctx.system.machine_facts().await?.storage_free_bytes >= needed.saturating_add(FOR_THE_HOST))
}

/// Returns the VM with the power that its guest has while its host is being shut down.
pub(super) fn declared(vm: &VM, at_shutdown: Option<AtShutdown>) -> Cow<'_, VM> {
    let has_memory = match vm.spec.power {
        Power::Running | Power::Paused => true,
        // Its memory would be lost with the power of the host.
        Power::Suspended => vm.spec.suspend_mode == SuspendMode::Memory,
        Power::Stopped => false,
    };
    if !has_memory || at_shutdown != Some(AtShutdown::Suspend) {
        return Cow::Borrowed(vm);
    }
    let mut suspended = vm.clone();
    suspended.spec.power = Power::Suspended;
    suspended.spec.suspend_mode = SuspendMode::Disk;
    Cow::Owned(suspended)
}
