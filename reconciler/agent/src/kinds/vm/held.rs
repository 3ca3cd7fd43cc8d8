//! Whether a VM waits for others after a boot of its host.

use berth_api::VM;
use berth_host::HostFacts;

use crate::context::Context;
use crate::journal::Journal;
use crate::start_order::{self, Held};

/// Returns what holds back a VM that has not been started since the host has booted. Any other start is at once.
pub(super) fn held(ctx: &Context, vm: &VM, journal: &Journal, host: &HostFacts) -> Option<Held> {
    if journal.boot.as_ref().is_none_or(|boot| *boot == host.boot_id) {
        return None;
    }
    let others = start_order::others(&ctx.index.read(), vm, |instance| {
        ctx.machines.get(instance).map(|machine| machine.process.started_at)
    });
    ctx.start_order.held(start_order::of(vm), &others, ctx.now())
}
