//! Stops the guests of a host that is being shut down, group after group.
//!
//! It wakes their VMs, whose reconciles stop them as in a drain, and looks at what still runs.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use berth_api::VM;
use jiff::SignedDuration;

use crate::context::Context;
use crate::error::Error;
use crate::host_shutdown::{AtShutdown, GuestsLeft, RunningVm};
use crate::index::instance_of;
use crate::start_order;

/// How often running guests are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The time beside its grace period that a guest's end may take.
const BESIDE_GRACE: SignedDuration = SignedDuration::from_secs(60);
/// The time that saving the memory of a guest may take.
const SAVING: SignedDuration = SignedDuration::from_secs(600);
/// The longest grace period, in seconds.
const LONGEST_GRACE: i64 = 3600;

/// Stops guests whenever a shutdown is under way; for as long as it is polled.
pub(crate) async fn run(ctx: &Context) {
    let shutdown = &ctx.config.shutdown;
    loop {
        shutdown.begun().await;
        tracing::info!("guests are stopped, because the host is to be shut down");
        // Also those without a QEMU, which are not started any more.
        wake(ctx, |_| true);
        let mut seen = None;
        while let Some(stopping) = shutdown.current() {
            match running(ctx, stopping.how).await {
                Ok(running) => {
                    let vms: Vec<RunningVm> = running.into_iter().map(|(_, vm)| vm).collect();
                    let _ = shutdown.advance(&vms, ctx.now());
                    // Other requests change it, too.
                    let current = shutdown.current();
                    if let Some(stopping) = current.filter(|_| current != seen) {
                        wake(ctx, |order| stopping.includes(order));
                    }
                    seen = current;
                }
                Err(error) => tracing::warn!(error = %error.chain(), "running guests cannot be listed"),
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        tracing::info!("the host is not to be shut down any more: its guests start again");
        wake(ctx, |_| true);
    }
}

/// Returns the guests that still run.
pub(crate) async fn left(ctx: &Context) -> Result<GuestsLeft, Error> {
    let current = ctx.config.shutdown.current();
    let mut running = running(ctx, current.map(|stopping| stopping.how).unwrap_or_default()).await?;
    running.sort_by_key(|(_, vm)| std::cmp::Reverse(vm.order));
    Ok(GuestsLeft {
        under_way: current.is_some(),
        is_working: ctx.is_working.load(Ordering::Relaxed),
        vms: running.into_iter().map(|(name, _)| name).collect(),
    })
}

/// Returns the VMs of this host that have a QEMU, in the order of their names.
async fn running(ctx: &Context, how: AtShutdown) -> Result<Vec<(String, RunningVm)>, Error> {
    let instances = ctx.system.instances().await?;
    let alive: BTreeSet<&str> = instances
        .iter()
        .filter(|found| found.process.is_some())
        .map(|found| found.instance.as_str())
        .collect();
    let tables = ctx.index.read();
    let running =
        tables.vms.all().filter(|(_, vm)| instance_of(vm).is_some_and(|instance| alive.contains(instance)));
    let mut running: Vec<_> = running
        .map(|(name, vm)| {
            (name.to_string(), RunningVm { order: start_order::of(vm), patience: patience(vm, how) })
        })
        .collect();
    running.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(running)
}

fn patience(vm: &VM, how: AtShutdown) -> SignedDuration {
    let grace = SignedDuration::from_secs(vm.spec.stop.grace_period_seconds.clamp(0, LONGEST_GRACE));
    match how {
        AtShutdown::Stop => grace + BESIDE_GRACE,
        // One that cannot be suspended is stopped.
        AtShutdown::Suspend => grace + BESIDE_GRACE + SAVING,
    }
}

/// Enqueues the VMs of these orders.
fn wake(ctx: &Context, of: impl Fn(i64) -> bool) {
    let vms = ctx.index.read().vms_where(|_, vm| of(start_order::of(vm)));
    vms.into_iter().for_each(|key| ctx.queue.add(key));
}
