//! Measures the space that disks and VMs take.

use berth_api::{Disk, Quantity, VM};
use berth_host::SystemError;

use crate::context::Context;
use crate::disk_use::{UsedBytes, amount, storage};
use crate::index::volume_of;
use crate::key::{Key, ObjectName};

/// Measures the disks and the VMs if that is due, and reconciles those that report another amount. A failure is made up for by the next
/// measurement.
pub(super) async fn measure(ctx: &Context) {
    if !ctx.disk_use.is_due() {
        return;
    }
    match used_bytes(ctx).await {
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
    let is_other_vm = |name: &ObjectName, vm: &VM| {
        let status = vm.status.as_ref()?;
        let bytes = ctx.disk_use.of_vm(&tables, name, vm)?;
        let reported = status.storage.as_deref();
        Some(reported != Some(&storage(&status.disks, bytes, reported)))
    };
    let changed = tables.vms.all().filter(|(name, vm)| is_other_vm(name, vm).unwrap_or_default());
    changed.for_each(|(name, _)| ctx.queue.add(Key::new::<VM>(name.clone())));
}

async fn used_bytes(ctx: &Context) -> Result<UsedBytes, SystemError> {
    Ok(UsedBytes {
        volumes: ctx.system.used_bytes().await?,
        snapshots: ctx.system.snapshot_bytes().await?,
        instances: ctx.system.instance_bytes().await?,
    })
}
