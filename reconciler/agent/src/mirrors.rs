//! Mirrors of disks under running guests: a disk moves to another pool of this host while its VM has it open.
//!
//! ```text
//!            file in the other pool, QEMU copies to it      guest paused, QEMU switched      recorded      former file closed, removed
//!   begin ─────────────────────────────────────────▶ … ───────────────────────────▶ ○ ─────────▶ ● ─────────────────────────────▶ done
//!                  │ set back, an error, a stop of the guest                         └── after a crash: the same again
//!                  └──▶ QEMU closes the other file, which is removed; an error is followed by a pause before the next attempt
//! ```
//!
//! Nothing of this is remembered here but failures: QEMU is asked which files it has open, and the notes of the host which file counts. The
//! guest is paused from the switch until the record, so both files are the same at the one moment at which it matters which one is taken.

use std::time::Duration;

use berth_api::{Disk, VM};
use berth_host::{InstanceFacts, NewMove, SystemError, VolumeFacts};
use berth_qemu::block::{Mirror, ObservedDisk};
use berth_qemu::machine::{Backing, DiskSpec};

use crate::context::Context;
use crate::error::Error;
use crate::journal::Journal;
use crate::key::{Key, ObjectName};
use crate::machine::{Machine, MachineError};
use crate::moves::Move;
use crate::plugging::disk_spec;
use crate::walks;

/// The greatest number of mirrors of a host at a time: each reads and writes as fast as the drives allow.
const MOST: usize = 2;
/// How long a guest may take to go on at the start or the end of the agent: all QEMUs of the host are asked at once.
const FINISH_LIMIT: Duration = Duration::from_secs(20);

const BUSY: &str = "two other disks of this host are being moved under their guests";
const NOT_OPEN: &str = "no machine that answers has it open";
const LEAVES: &str = "its running guest is being sent to another host";
const NOT_RECORDED: &str = "it is not recorded that the file counts that QEMU has open: its guest stays paused until its pools are there";
const NOT_SWITCHED: &str = "QEMU writes to its former file";

/// The mirror of a disk as it is seen now.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct SeenMirror {
    /// As QEMU reports it.
    pub(crate) state: Option<Mirror>,
    /// Where it goes from and to, as the host has prepared it.
    pub(crate) prepared: Option<NewMove>,
    /// Whether its guest runs.
    pub(crate) is_running: bool,
    /// Why none can begin, for people: the disk moves once no VM has it open.
    pub(crate) obstacle: Option<String>,
    /// Why the last one failed, for people, and when another one begins.
    pub(crate) failure: Option<(String, Duration)>,
}

/// A volume as a machine that has it open sees it.
#[derive(Clone, Debug)]
pub(crate) struct OpenVolume {
    pub(crate) disk: ObservedDisk,
    /// Whether the files of the machine can be changed now.
    pub(crate) changes: bool,
    /// Whether its guest runs.
    pub(crate) is_running: bool,
    pub(crate) mirror: Option<Mirror>,
}

/// Observes the mirror of a disk. `open`: as the machines that answer see it.
pub(crate) async fn observe(
    ctx: &Context,
    disk: &Disk,
    volume: Option<&VolumeFacts>,
    moving: &Move,
    open: &[OpenVolume],
) -> Result<SeenMirror, Error> {
    let Some(volume) = volume else { return Ok(SeenMirror::default()) };
    let state = open.iter().find_map(|open| open.mirror.clone());
    let is_deleted = disk.metadata.deletion_timestamp.is_some();
    let may_be_prepared = state.is_some() || is_deleted || ctx.mirrors.is_begun(&volume.id);
    let prepared = match may_be_prepared {
        true => ctx.system.prepared_mirror(&volume.id).await?,
        false => None,
    };
    let obstacle = match moving.is_due() && state.is_none() {
        true => obstacle(volume, open).or_else(|| (ctx.machines.mirrors() >= MOST).then_some(BUSY)),
        false => None,
    };
    Ok(SeenMirror {
        state,
        prepared,
        is_running: open.iter().any(|open| open.is_running),
        obstacle: obstacle.map(str::to_owned),
        failure: ctx.mirrors.failure(&volume.id),
    })
}

/// Returns why a disk does not move while it is open.
fn obstacle(volume: &VolumeFacts, open: &[OpenVolume]) -> Option<&'static str> {
    let below = volume.backing.as_ref();
    let is_on_snapshot = volume.continues_snapshots()
        || below.is_some_and(|below| below.backing.is_some() || volume.base.is_none());
    let [open] = open else {
        return Some(if open.is_empty() { NOT_OPEN } else { "several VMs have it open" });
    };
    if volume.encryption.is_some() {
        return Some("it is encrypted");
    }
    if is_on_snapshot {
        return Some("it has files of snapshots below it");
    }
    if open.disk.read_only || volume.is_shared() {
        return Some("its VM only reads it, or shares it");
    }
    if !open.is_running {
        return Some("its guest does not run");
    }
    let is_old = open.disk.files_below != below.map_or(0, Backing::files);
    is_old.then_some("its machine was started by an earlier version of berth")
}

/// Begins to copy a disk to another pool, by the machine that has it open. A failure is recorded, and shown by the next observation.
pub(crate) async fn begin(ctx: &Context, new: &NewMove) -> Result<(), Error> {
    let (_begins, others) = ctx.mirrors.beginning();
    let _still = ctx.machines.hold_still(vec![new.id.clone()])?;
    if ctx.machines.mirrors() + others >= MOST {
        return Err(SystemError::VolumeBusy { id: new.id.clone(), detail: BUSY }.into());
    }
    ctx.mirrors.begin(&new.id);
    match begin_on_machine(ctx, new).await {
        Err(error) if !error.is_transient() => cancel(ctx, &new.id, Some(error.chain())).await,
        begun => begun,
    }
}

async fn begin_on_machine(ctx: &Context, new: &NewMove) -> Result<(), Error> {
    let (instance, machine) = writer(ctx, &new.id)?;
    if is_leaving(ctx, &instance).await? {
        return Err(SystemError::VolumeBusy { id: new.id.clone(), detail: LEAVES }.into());
    }
    let disks = machine.state().await?.disks;
    let present = disks.into_iter().find(|disk| disk.id == new.id).ok_or(MachineError::Gone)?;
    // A call that was interrupted may have opened a file, which is made anew.
    if !machine.cancel_mirror(&new.id).await? {
        return Ok(());
    }
    let facts = ctx.system.prepare_mirror(new).await?;
    let target = DiskSpec { bus: present.bus, ..disk_spec(&facts, &present.serial, false, present.target) };
    let granted = ctx.system.grant_disk(&instance, &target).await?;
    machine.begin_mirror(granted).await?;
    // From now on it counts.
    machine.state().await?;
    Ok(())
}

/// Whether the guest of an instance is being sent to another host, which has the present files of its disks.
async fn is_leaving(ctx: &Context, instance: &str) -> Result<bool, Error> {
    let journal = ctx.system.read_journal(instance).await?.map(Journal::parse).transpose()?;
    Ok(journal.is_some_and(|journal| journal.departure.is_some()))
}

/// Returns the machine that has a volume open, with the name of its instance.
fn writer(ctx: &Context, volume: &str) -> Result<(String, Machine), Error> {
    let holders = ctx.machines.holders(volume).into_iter().filter(|holder| holder.is_certain);
    let mut found = holders.filter_map(|holder| {
        let machine = ctx.machines.get(&holder.instance)?;
        Some((holder.instance, machine))
    });
    Ok(found.next().ok_or(MachineError::Gone)?)
}

/// Switches a disk to the file that it was copied to, records that, and removes the former one. Continues one that was interrupted.
pub(crate) async fn finish(ctx: &Context, volume: &str) -> Result<(), Error> {
    let _still = ctx.machines.hold_still(vec![volume.to_owned()])?;
    let (instance, machine) = writer(ctx, volume)?;
    let prepared = ctx.system.prepared_mirror(volume).await?;
    if let Some(new) = &prepared
        && machine.state().await?.mirrors.get(volume) != Some(&Mirror::Switched)
    {
        if is_leaving(ctx, &instance).await? {
            return cancel(ctx, volume, Some(LEAVES.to_owned())).await;
        }
        let switched = match ctx.system.check_mirror(new).await {
            // From here on both files are the same until the record.
            Ok(()) => machine.switch_mirror(volume).await.map_err(Error::from),
            Err(error) => Err(error.into()),
        };
        match switched {
            Ok(()) => {}
            // Something else has been done with its file.
            Err(error @ Error::System(SystemError::VolumeBusy { .. })) => {
                return cancel(ctx, volume, Some(error.chain())).await;
            }
            Err(Error::Machine(error)) if error.is_failed_mirror() => {
                return cancel(ctx, volume, Some(Error::from(error).chain())).await;
            }
            Err(error) => return Err(error),
        }
    }
    record(ctx, &machine, volume, prepared.as_ref()).await
}

/// Records the switch of a disk, lets its guest go on, and removes the former file.
async fn record(
    ctx: &Context,
    machine: &Machine,
    volume: &str,
    prepared: Option<&NewMove>,
) -> Result<(), Error> {
    let Some(new) = prepared else {
        // It was recorded, and the former file was removed, before a crash. Or the note in the other pool cannot be read now, and it is not
        // recorded that the open file counts.
        let counting = match ctx.system.pool_of_volume(volume).await? {
            Some(pool) => ctx.system.volume(&pool, volume).await?,
            None => None,
        };
        let open = machine.state().await?.disks.into_iter().find(|disk| disk.id == volume);
        let open = open.and_then(|disk| disk.file);
        if counting.is_none_or(|counting| open.as_ref() != Some(&counting.path)) {
            return Err(SystemError::VolumeBusy { id: volume.to_owned(), detail: NOT_RECORDED }.into());
        }
        return Ok(machine.end_mirror(volume).await?);
    };
    if let Some(former) = ctx.system.volume(&new.from, volume).await? {
        let open = machine.state().await?.disks.into_iter().find(|disk| disk.id == volume);
        if open.and_then(|disk| disk.file).as_ref() == Some(&former.path) {
            return Err(SystemError::VolumeBusy { id: volume.to_owned(), detail: NOT_SWITCHED }.into());
        }
    }
    ctx.system.commit_mirror(new).await?;
    machine.end_mirror(volume).await?;
    ctx.system.settle_mirror(new).await?;
    machine.state().await?;
    ctx.mirrors.forget(volume);
    Ok(())
}

/// Ends the mirror of a disk, which stays in its file, and removes the other file. One that is switched stays: it is recorded by the next
/// plan. `failure`: why, if it is to be tried again after a pause.
pub(crate) async fn cancel(ctx: &Context, volume: &str, failure: Option<String>) -> Result<(), Error> {
    let has_failed = failure.is_some();
    if let Some(text) = failure {
        tracing::info!(volume, error = text, "a disk was not mirrored to another pool");
        ctx.mirrors.fail(volume, text);
    }
    for machine in ctx.machines.openers(volume) {
        if !machine.cancel_mirror(volume).await? {
            return Ok(());
        }
        machine.state().await?;
    }
    if let Some(new) = ctx.system.prepared_mirror(volume).await? {
        ctx.system.settle_mirror(&new).await?;
    }
    if !has_failed {
        ctx.mirrors.forget(volume);
    }
    Ok(())
}

/// Records the switches that this agent, or a former one, did not when it ended: their guests are paused. Needs no control plane.
pub(crate) async fn finish_interrupted(ctx: &Context) {
    let instances = match ctx.system.instances().await {
        Ok(instances) => instances,
        Err(error) => return tracing::warn!(%error, "it is not known whether guests are paused for mirrors"),
    };
    walks::go_on(FINISH_LIMIT, instances, |facts| finish_of_instance(ctx, facts)).await;
}

async fn finish_of_instance(ctx: &Context, facts: InstanceFacts) -> Result<(), Error> {
    let InstanceFacts { instance, journal, process } = facts;
    let (Some(Ok(journal)), Some(process)) = (journal.map(Journal::parse), process) else { return Ok(()) };
    let key = Key::new::<VM>(ObjectName::new(&journal.namespace, &journal.name));
    let machine = ctx.machines.connect(&instance, Some(&journal.uid), Some(key), &process).await?;
    for (volume, mirror) in machine.state().await?.mirrors {
        match mirror {
            Mirror::Switched => {
                let prepared = ctx.system.prepared_mirror(&volume).await?;
                record(ctx, &machine, &volume, prepared.as_ref()).await?;
            }
            // The guest is paused, and its disk is in its file.
            Mirror::Pending => cancel(ctx, &volume, None).await?,
            Mirror::Copying { .. } | Mirror::Ready | Mirror::Failed(_) => {}
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "mirror_tests.rs"]
mod tests;
