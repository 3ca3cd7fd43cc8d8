//! Applies the steps of a disk's plan.

use berth_api::Disk;

use super::Step;
use super::observe::opener;
use crate::context::Context;
use crate::converge::release;
use crate::error::Error;
use crate::key::Key;
use crate::machine::MachineError;
use crate::pulls::Wanted;
use crate::snapshots::take;
use berth_host::{NewRestore, SystemError};

pub(super) async fn apply(ctx: &Context, disk: &Disk, step: &Step) -> Result<(), Error> {
    let key = || Key::of(disk);
    match step {
        Step::Pull(source) => ctx.pulls.start(&Wanted::Image(source.clone()), key()),
        Step::FollowPull(source) => ctx.pulls.follow(&Wanted::Image(source.clone()), key()),
        Step::Create(volume) => {
            ctx.system.create_volume(volume).await?;
        }
        Step::TakeSnapshot(new) => take(ctx, std::slice::from_ref(new)).await?,
        Step::Restore { pool, volume, owner } => {
            ctx.system.restore_volume(pool, volume, owner).await?;
        }
        Step::RestoreSnapshot(new) => restore(ctx, disk, new).await?,
        Step::FinishRestore { pool, volume } => ctx.system.finish_restore(pool, volume).await?,
        Step::TakeOver { pool, volume, owner } => {
            ctx.system.hand_over_volume(pool, volume, owner).await?;
        }
        Step::GrowOffline { pool, volume, bytes } => {
            ctx.system.grow_volume(pool, volume, *bytes).await?;
        }
        Step::GrowOnline { volume, bytes } => match ctx.machines.holder(volume) {
            Some(machine) => machine.resize(volume, *bytes).await?,
            None => return Err(MachineError::Gone.into()),
        },
        Step::Reserve { pool, volume, bytes } => ctx.system.reserve_volume(pool, volume, *bytes).await?,
        Step::SetLimits { volume, limits } => match ctx.machines.holder(volume) {
            Some(machine) => machine.set_limits(volume, *limits).await?,
            None => return Err(MachineError::Gone.into()),
        },
        Step::Trash { pool, volume } => ctx.system.trash_volume(pool, volume).await?,
        Step::Retain { pool, volume } => ctx.system.retain_volume(pool, volume).await?,
        Step::Release => release(ctx, disk).await?,
    }
    Ok(())
}

/// Restores a volume that no machine has open, and that none opens meanwhile.
async fn restore(ctx: &Context, disk: &Disk, new: &NewRestore) -> Result<(), Error> {
    let _still = ctx.machines.hold_still(vec![new.volume.clone()])?;
    if opener(ctx, disk, &new.volume).is_some() {
        let detail = "a machine has it open, or may have";
        return Err(SystemError::VolumeBusy { id: new.volume.clone(), detail }.into());
    }
    ctx.system.restore_snapshot(new).await?;
    Ok(())
}
