//! Applies the steps of an attachment's plan.

use berth_api::{Disk, HotswapDiskAttachment};
use kube::ResourceExt;

use super::{Step, uses};
use crate::context::Context;
use crate::converge::release;
use crate::error::Error;
use crate::key::{Key, ObjectName};
use crate::machine::MachineError;
use crate::plugging::{limit, unplug};

pub(super) async fn apply(
    ctx: &Context,
    attachment: &HotswapDiskAttachment,
    step: &Step,
) -> Result<(), Error> {
    let machine = |instance: &str| ctx.machines.get(instance).ok_or(Error::from(MachineError::Gone));
    match step {
        Step::Plug { instance, disk } => {
            take(ctx, attachment, instance, &disk.id)?;
            let machine = machine(instance)?;
            let lent = ctx.system.grant_disk(instance, disk).await?;
            machine.plug(lent).await?;
            limit(ctx, &machine, &[&disk.id]).await?;
        }
        Step::Unplug { instance, volume } => {
            let done = unplug(ctx, instance, volume).await;
            // The machine may have released the disk although a later call failed: the Disk's own reconcile finds
            // out.
            settle_disk(ctx, attachment);
            done?;
        }
        Step::Release => {
            release(ctx, attachment).await?;
            settle_disk(ctx, attachment);
        }
    }
    Ok(())
}

fn settle_disk(ctx: &Context, attachment: &HotswapDiskAttachment) {
    let name = ObjectName::new(attachment.namespace().unwrap_or_default(), attachment.spec.disk.as_str());
    ctx.enqueue(Key::new::<Disk>(name));
}

/// Reserves the volume for the machine if the control plane still lists this attachment as its user.
fn take(
    ctx: &Context,
    attachment: &HotswapDiskAttachment,
    instance: &str,
    volume: &str,
) -> Result<(), Error> {
    let name = ObjectName::new(attachment.namespace().unwrap_or_default(), attachment.name_any());
    let vm_name = name.beside(attachment.spec.vm.as_str());
    let vm = ctx.index.read().vms.get(&vm_name).ok_or(Error::Conflict)?;
    let vm_uid = vm.uid().unwrap_or_default();
    ctx.machines.reserve(instance, &vm_uid, volume)?;
    let disk = ctx.index.read().disks.get(&name.beside(attachment.spec.disk.as_str()));
    let ours = disk.and_then(|d| d.status.as_ref()?.used_by.first().cloned());
    if ours.is_some_and(|user| uses(&user, &name.name, &vm_uid)) {
        return Ok(());
    }
    ctx.machines.unreserve(instance, volume);
    Err(Error::Conflict)
}
