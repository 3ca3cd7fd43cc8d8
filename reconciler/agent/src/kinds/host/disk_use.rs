//! Measures the space that disks take.

use berth_api::{Disk, Quantity};

use crate::context::Context;
use crate::disk_use::amount;
use crate::index::volume_of;
use crate::key::Key;

/// Measures the disks if that is due, and reconciles those that report another amount. A failure is made up for by the next measurement.
pub(super) async fn measure(ctx: &Context) {
    if !ctx.disk_use.is_due() {
        return;
    }
    match ctx.system.used_bytes().await {
        Ok(used) => ctx.disk_use.record(used),
        Err(error) => return tracing::debug!(error = error.chain(), "the space of disks is not measured"),
    }
    let tables = ctx.index.read();
    let is_other = |disk: &Disk| {
        let status = disk.status.as_ref()?;
        let size = Quantity(status.size.clone()?).bytes().ok()?;
        let used = ctx.disk_use.of(volume_of(disk)?)?;
        let reported = status.used.as_deref();
        Some(reported != Some(amount(used, size, reported).as_str()))
    };
    let changed = tables.disks.all().filter(|(_, disk)| is_other(disk).unwrap_or_default());
    changed.for_each(|(name, _)| ctx.queue.add(Key::new::<Disk>(name.clone())));
}
