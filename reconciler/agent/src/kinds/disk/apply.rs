//! Applies the steps of a disk's plan.

use berth_api::{Disk, DiskSnapshot};

use super::Step;
use super::observe::opener;
use crate::context::Context;
use crate::converge::release;
use crate::error::Error;
use crate::index::volume_of;
use crate::key::Key;
use crate::machine::MachineError;
use crate::mirrors;
use crate::plugging::disk_spec;
use crate::pulls::Wanted;
use crate::snapshots::take;
use berth_host::{NewRestore, SystemError};
use berth_qemu::block::ObservedDisk;
use berth_qemu::machine::{Backing, DiskSpec};

/// Why a volume that is being made is waited for, although its Disk is deleted.
const LAST_STEP: &str = "its file, whose data is complete, is just becoming the volume";

pub(super) async fn apply(ctx: &Context, disk: &Disk, step: &Step) -> Result<(), Error> {
    let key = || Key::of(disk);
    match step {
        Step::Pull(source) => ctx.pulls.start(&Wanted::Image(source.clone()), key()),
        Step::FollowPull(source) => ctx.pulls.follow(&Wanted::Image(source.clone()), key()),
        Step::StartRestore(wanted) | Step::StartFill(wanted) | Step::Fetch(wanted) => {
            ctx.pulls.start(wanted, key());
        }
        Step::FollowRestore(wanted) | Step::FollowFill(wanted) => ctx.pulls.follow(wanted, key()),
        Step::CancelRestore(volume) => cancel_restore(ctx, volume).await?,
        Step::StartMove(wanted) => start_move(ctx, disk, wanted)?,
        Step::FollowMove(wanted) => ctx.pulls.follow(wanted, key()),
        Step::CancelMove(volume) => ctx.pulls.cancel_moves(volume).await,
        Step::BeginMirror(new) => Box::pin(mirrors::begin(ctx, new)).await?,
        Step::FinishMirror(volume) => Box::pin(mirrors::finish(ctx, volume)).await?,
        Step::CancelMirror { volume, failure } => {
            Box::pin(mirrors::cancel(ctx, volume, failure.clone())).await?;
        }
        Step::Create(volume) => {
            ctx.system.create_volume(volume).await?;
        }
        Step::UseDevice(new) => {
            ctx.system.use_device(new).await?;
        }
        Step::Take(new) => {
            ctx.system.take_volume(new).await?;
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
        Step::Rewrap { pool, volume, key } => {
            ctx.system.rewrap_volume(pool, volume, key).await?;
            wake_snapshots(ctx, volume);
        }
        Step::Reserve { pool, volume, bytes } => ctx.system.reserve_volume(pool, volume, *bytes).await?,
        Step::SetLimits { volume, limits } => {
            let machines = ctx.machines.openers(volume);
            if machines.is_empty() {
                return Err(MachineError::Gone.into());
            }
            for machine in machines {
                machine.set_limits(volume, *limits).await?;
            }
        }
        Step::ShortenChain { pool, volume } => shorten_chain(ctx, pool, volume)
            .await
            .map_err(|source| Error::FormerFilesKept { volume: volume.clone(), source: Box::new(source) })?,
        Step::Trash { pool, volume } => ctx.system.trash_volume(pool, volume).await?,
        Step::Retain { pool, volume } => ctx.system.retain_volume(pool, volume).await?,
        Step::Release => release(ctx, disk).await?,
    }
    Ok(())
}

/// Ends the work that makes a volume. Its last step cannot be ended: without the Disk, the volume that it makes would belong to nothing.
async fn cancel_restore(ctx: &Context, volume: &str) -> Result<(), Error> {
    ctx.pulls.cancel_restore(volume).await;
    match ctx.system.is_making(volume) {
        true => Err(SystemError::VolumeBusy { id: volume.to_owned(), detail: LAST_STEP }.into()),
        false => Ok(()),
    }
}

/// Enqueues the snapshots of a volume, whose key has another form too.
fn wake_snapshots(ctx: &Context, volume: &str) {
    let tables = ctx.index.read();
    let is_its = |snapshot: &DiskSnapshot| {
        snapshot.status.as_ref().and_then(|status| status.volume_id.as_deref()) == Some(volume)
    };
    for (name, _) in tables.disk_snapshots.all().filter(|(_, snapshot)| is_its(snapshot)) {
        ctx.queue.add(Key::new::<DiskSnapshot>(name.clone()));
    }
}

/// Has the machines with this volume read through the files that it is based on now.
async fn shorten_chain(ctx: &Context, pool: &str, volume: &str) -> Result<(), Error> {
    let holders = ctx.machines.holders(volume).into_iter().filter(|holder| holder.is_certain);
    let instances: Vec<String> = holders.map(|holder| holder.instance).collect();
    if instances.is_empty() {
        return Err(MachineError::Gone.into());
    }
    for instance in instances {
        shorten_chain_of(ctx, &instance, pool, volume).await?;
    }
    Ok(())
}

async fn shorten_chain_of(ctx: &Context, instance: &str, pool: &str, volume: &str) -> Result<(), Error> {
    let machine = ctx.machines.get(instance).ok_or(MachineError::Gone)?;
    let mut disks = machine.state().await?.disks.into_iter();
    let ObservedDisk { serial, read_only, files_below, .. } =
        disks.find(|disk| disk.id == volume).ok_or(MachineError::Gone)?;
    let lost = || SystemError::VolumeLost { id: volume.to_owned() };
    let facts = ctx.system.volume(pool, volume).await?.ok_or_else(lost)?;
    if files_below <= facts.backing.as_ref().map_or(0, Backing::files) {
        return Ok(());
    }
    let disk = DiskSpec { read_only, ..disk_spec(&facts, &serial, false, None) };
    let _alone = ctx.machines.open_alone(std::slice::from_ref(&disk)).await;
    let disk = ctx.system.grant_disk(instance, &disk).await?;
    Ok(machine.shorten_chain(disk).await?)
}

/// Starts the move of a volume that no machine has open: from then on those that are to open it wait for the move, and its file is locked.
fn start_move(ctx: &Context, disk: &Disk, wanted: &Wanted) -> Result<(), Error> {
    let volume = volume_of(disk).unwrap_or_default();
    let _still = ctx.machines.hold_still(vec![volume.to_owned()])?;
    if opener(ctx, disk, volume).is_some() {
        let detail = "a machine has it open, or may have";
        return Err(SystemError::VolumeBusy { id: volume.to_owned(), detail }.into());
    }
    ctx.pulls.start(wanted, Key::of(disk));
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
