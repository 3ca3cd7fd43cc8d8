//! The memory of a guest beside the snapshots of its disks, of one moment.
//!
//! ```text
//!   check ──▶ pause, save ──▶ keep ──▶ begin all, switch QEMU ──▶ the guest goes on ──▶ seal ──▶ finish each
//!                                      (in Ceph: take all)
//! ```
//!
//! The disks are switched while the guest is still paused. The plan of the VM leaves the guest alone meanwhile, as long as this agent
//! lives: after a crash of the agent it lets the guest go on, and the state is saved anew. Only if the disks were switched before the
//! crash, in the process that the state is of, it is of their moment, and the snapshots are finished with it, once the state is durable.
//! Snapshots in Ceph of an earlier pause are removed before the next one: all that are there beside a state were taken in its pause.
//! That they have the memory is recorded with each of them, as it is finished: an agent that does not know of it records none.

use std::time::Duration;

use berth_host::{NewSnapshot, SystemError, Taken, VolumeFacts, VolumeOwner};
use berth_qemu::block::ObservedDisk;
use berth_qemu::machine::RbdImage;
use berth_qemu::power::RunState;
use berth_qemu::saved_state::Transfer;
use jiff::{SignedDuration, Timestamp};
use tokio::time::{Instant, sleep};

use super::paused::let_go_on;
use super::{Part, Writer, files_of, mixed, moment, take, take_closed, writer};
use crate::context::Context;
use crate::error::Error;
use crate::journal::{Journal, PostStart};
use crate::key::ObjectName;
use crate::machine::{Machine, MachineError, MachineState};
use crate::saved_machine::{SavedMachine, as_it_is, has_recorded_cards, size_at_most};

/// How long a guest is paused at most.
const LONGEST_SAVE: Duration = Duration::from_secs(600);
/// How long after a save that failed a guest is not paused again.
const SAVE_AGAIN: SignedDuration = SignedDuration::from_secs(60);
/// How often a guest is paused for one snapshot.
const MOST_SAVES: usize = 3;
/// How often QEMU is asked whether it has saved the memory.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The bytes that stay free on the disk of the host beside a state: the control plane's database may be there too, and a state stays.
const SPARE: u64 = 512 << 20;

/// Takes snapshots of these volumes and of the memory of the guest that writes to them at one moment, or finishes those that were
/// begun. The memory is kept under the identity of the first.
///
/// *Errors:* [`Error::NoRunningGuest`], [`Error::MemoryRefused`] and a lack of space before the guest is paused; those of [`take`].
pub(crate) async fn take_with_memory(ctx: &Context, all: &[NewSnapshot]) -> Result<(), Error> {
    let Some(first) = all.first() else { return Ok(()) };
    if moment(ctx, all).await?.is_some() {
        return take(ctx, all).await;
    }
    let _still = ctx.machines.hold_still(all.iter().map(|new| new.volume.clone()).collect())?;
    let writer = writer(ctx, all).await?.ok_or(Error::NoRunningGuest)?;
    let kept = ctx.system.kept_state(&first.id).await?.and_then(SavedMachine::parse);
    let kept = kept.filter(|kept| kept.process == writer.machine.process.identity);
    let switched = writer.switched(ctx, all).await?;
    let known = match (kept, &switched) {
        (Some(kept), _) => were_taken(ctx, all, switched.is_some()).await?.then_some(kept.at),
        // The VM was started on the new files, or another agent switched it to them: the guest has written to them since.
        (None, Some(id)) => return Err(SystemError::NotOneMoment { id: id.clone() }.into()),
        (None, None) => None,
    };
    let at = match known {
        Some(at) => at,
        None => save(ctx, all, &first.id, &writer).await?,
    };
    // The guest runs meanwhile.
    ctx.system.seal_kept_state(&first.id).await?;
    let taken = Taken { at, frozen: false, memory: true };
    for new in all {
        ctx.system.finish_snapshot(&new.pool, &new.id, &taken).await?;
    }
    ctx.machines.forget_saves(&first.id);
    Ok(())
}

/// Whether the disks were taken in the pause of the state that is kept. `is_switched`: the machine continues in a new file of them.
async fn were_taken(ctx: &Context, all: &[NewSnapshot], is_switched: bool) -> Result<bool, Error> {
    let images = of_images(ctx, all).await?;
    if images.is_empty() || (images.len() < all.len() && !is_switched) {
        return Ok(is_switched);
    }
    match ctx.system.prepare_in_ceph(&images, true).await {
        Ok(()) => Ok(true),
        Err(SystemError::NotOneMoment { .. }) if !is_switched => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Returns the snapshots of volumes in Ceph.
async fn of_images(ctx: &Context, all: &[NewSnapshot]) -> Result<Vec<NewSnapshot>, Error> {
    let mut images = Vec::new();
    for new in all {
        let volume = ctx.system.volume(&new.pool, &new.volume).await?;
        images.extend(volume.filter(|volume| RbdImage::is_rbd(&volume.path)).map(|_| new.clone()));
    }
    Ok(images)
}

/// Saves the memory, and has QEMU continue in the new files before the guest goes on. Returns the moment.
async fn save(ctx: &Context, all: &[NewSnapshot], id: &str, writer: &Writer) -> Result<Timestamp, Error> {
    ctx.system.check_snapshots(all).await?;
    // Before the journal is read: from then on the plan of the VM begins nothing.
    let _saving = ctx.machines.begin_save(&writer.instance)?;
    // That of an earlier attempt: the disks were not switched after it.
    ctx.system.remove_kept_state(id).await?;
    let images = of_images(ctx, all).await?;
    if !images.is_empty() {
        ctx.system.prepare_in_ceph(&images, false).await?;
    }
    let (saved, state) = describe(ctx, all, id, writer).await?;
    let done = take_paused(ctx, all, writer, (&saved, &state)).await;
    if let Err(error) = &done
        && !is_before_pause(error)
    {
        ctx.machines.save_failed(id, error.chain());
    }
    // Best effort: the plan of the VM does what is left. That this file is there shows a later agent that the guest may be paused.
    if let Err(error) = let_go_on(ctx, &writer.instance, &writer.machine).await {
        tracing::warn!(error = %error.chain(), "the guest does not go on after its memory was saved");
    }
    done.map(|()| saved.at)
}

/// Whether a save failed before the guest was paused: there is no space for the state, or the machine has just ended.
fn is_before_pause(error: &Error) -> bool {
    matches!(error, Error::Machine(MachineError::System(_) | MachineError::Illegal(_)))
}

/// Pauses the guest, saves its memory, and switches its disks.
async fn take_paused(
    ctx: &Context,
    all: &[NewSnapshot],
    writer: &Writer,
    (saved, before): (&SavedMachine, &MachineState),
) -> Result<(), Error> {
    let Some(first) = all.first() else { return Ok(()) };
    writer.machine.save(size_at_most(&saved.machine) + SPARE).await?;
    let after = until_saved(ctx, all, &writer.machine).await?;
    if has_changed(before, &after) {
        return Err(MachineError::ChangedMeanwhile.into());
    }
    ctx.system.keep_state(&writer.instance, &first.id, &saved.to_value()).await?;
    let volumes = ctx.system.begin_snapshots(all).await?;
    let parts: Vec<Part<'_>> = all.iter().zip(volumes).collect();
    let (open, closed): (Vec<&Part<'_>>, Vec<_>) =
        parts.iter().partition(|(_, volume)| writer.volumes.contains(&volume.id));
    if parts.iter().any(|(_, volume)| RbdImage::is_rbd(&volume.path)) {
        mixed::ensure_unwritten(ctx, &closed).await?;
    }
    // QEMU, which has let go of its disks with the memory, takes none in Ceph: nothing is written to them. They come first, so that a
    // machine that was switched has all of them.
    take_closed(ctx, &parts.iter().collect::<Vec<_>>()).await?;
    let overlays = writer.overlays(ctx, &files_of(&open)).await?;
    if !overlays.is_empty() {
        writer.machine.snapshot_disks(overlays, Vec::new()).await?;
    }
    // Another program may have let the guest go on before: then it has written to its disks since its memory was saved.
    if writer.machine.state().await?.run_state != RunState::PostMigrate {
        ctx.system.remove_kept_state(&first.id).await?;
        return Err(SystemError::NotOneMoment { id: first.volume.clone() }.into());
    }
    Ok(())
}

/// Whether a machine has other devices than when it was described: a step that was planned before may have been applied since.
fn has_changed(before: &MachineState, after: &MachineState) -> bool {
    let disk = |disk: &ObservedDisk| {
        (disk.id.clone(), disk.serial.clone(), disk.size, disk.read_only, disk.bus, disk.target)
    };
    let disks = |state: &MachineState| state.disks.iter().map(disk).collect::<Vec<_>>();
    disks(before) != disks(after)
        || (&before.nics, &before.cdroms, before.cpus) != (&after.nics, &after.cdroms, after.cpus)
}

/// Describes the machine of a guest that runs, and whose memory can be saved.
async fn describe(
    ctx: &Context,
    all: &[NewSnapshot],
    id: &str,
    writer: &Writer,
) -> Result<(SavedMachine, MachineState), Error> {
    let refused = |why: String| Error::MemoryRefused { why };
    let journal = ctx.system.read_journal(&writer.instance).await?.ok_or(Error::NoRunningGuest)?;
    let journal = Journal::parse(journal)?;
    // The plan of the VM may have begun to send it since it was looked at.
    if journal.departure.is_some() {
        return Err(Error::Conflict);
    }
    let state = writer.machine.state().await?;
    let is_off = journal.suspension.is_some() || journal.stop.is_some();
    // The hook after the start asks the guest for something, and judges its answer.
    let is_starting = journal.run.as_ref().is_none_or(|run| run.post_start == Some(PostStart::Due));
    if is_off || is_starting || state.run_state != RunState::Running {
        return Err(Error::NoRunningGuest);
    }
    may_be_paused(ctx, id, &state)?;
    if journal.has_devices() {
        let why = "it has devices of its host until the next power cycle, whose state is not saved with it";
        return Err(refused(why.to_owned()));
    }
    if journal.run.as_ref().is_some_and(|run| run.profile.scratch_disk.is_some()) {
        let why = "it has a scratch disk, which no snapshot has: take the snapshot without memory";
        return Err(refused(why.to_owned()));
    }
    if !has_recorded_cards(&journal, &state) {
        // The plan of the VM records it next.
        return Err(Error::Conflict);
    }
    let mut volumes = Vec::new();
    for new in all {
        volumes.extend(ctx.system.volume(&new.pool, &new.volume).await?);
    }
    let volumes: Vec<&VolumeFacts> = volumes.iter().collect();
    let machine = as_it_is(&journal, &state, &volumes).map_err(refused)?;
    if let Some(disk) = machine.disks.iter().find(|disk| !all.iter().any(|new| new.volume == disk.id)) {
        return Err(refused(format!("it has disk {}, which the snapshot does not have", disk.serial)));
    }
    let process = &writer.machine.process.identity;
    let bootstrap = ctx.system.bootstrap_data(&writer.instance).await?;
    let saved = SavedMachine::new(&journal, &state, process, (machine, bootstrap), ctx.now());
    Ok((saved.ok_or(Error::NoRunningGuest)?, state))
}

/// Checks whether the guest may be paused (again) for this snapshot.
fn may_be_paused(ctx: &Context, id: &str, state: &MachineState) -> Result<(), Error> {
    let failed = ctx.machines.failed_saves(id);
    if let Some((count, why)) = &failed
        && *count >= MOST_SAVES
    {
        let why = format!("it was tried {count} times, the last time: {why}");
        return Err(Error::MemoryNotSaved { why });
    }
    let has_failed = failed.is_some() || state.save_failure.is_some();
    let Some(began) = state.save_began.filter(|_| has_failed) else { return Ok(()) };
    match Duration::try_from((SAVE_AGAIN - ctx.now().duration_since(began)).min(SAVE_AGAIN)) {
        Ok(left) if !left.is_zero() => Err(MachineError::SavedJustNow { left }.into()),
        _ => Ok(()),
    }
}

/// Whether the objects of all these snapshots are there, and none is being deleted.
fn are_wanted(ctx: &Context, all: &[NewSnapshot]) -> bool {
    let tables = ctx.index.read();
    let is_wanted = |owner: &VolumeOwner| {
        let object = tables.disk_snapshots.get(&ObjectName::new(&owner.namespace, &owner.name));
        object.is_some_and(|object| {
            object.metadata.uid == owner.uid && object.metadata.deletion_timestamp.is_none()
        })
    };
    all.iter().all(|new| new.owner.as_ref().is_none_or(is_wanted))
}

/// Waits until QEMU has saved the state. Returns the machine, whose guest is paused.
///
/// *Errors:* [`Error::Conflict`] once one of the snapshots is being deleted.
async fn until_saved(ctx: &Context, all: &[NewSnapshot], machine: &Machine) -> Result<MachineState, Error> {
    let deadline = Instant::now() + LONGEST_SAVE;
    while Instant::now() < deadline {
        if !are_wanted(ctx, all) {
            return Err(Error::Conflict);
        }
        match machine.state().await {
            Ok(state) => {
                if has_saved(&state.run_state, &state.transfer)
                    .map_err(|why| Error::MemoryNotSaved { why })?
                {
                    return Ok(state);
                }
            }
            // QEMU may be busy with the save.
            Err(error) if error.is_timeout() => {}
            Err(error) => return Err(error.into()),
        }
        sleep(LOOK_EVERY).await;
    }
    let why = format!("it takes longer than {} minutes", LONGEST_SAVE.as_secs() / 60);
    Err(Error::MemoryNotSaved { why })
}

/// Whether QEMU has saved the state. The error is for people: it will not.
fn has_saved(state: &RunState, transfer: &Transfer) -> Result<bool, String> {
    match (state, transfer) {
        (_, Transfer::Failed(why)) => Err(why.clone()),
        (RunState::PostMigrate, Transfer::Completed) => Ok(true),
        (RunState::PostMigrate | RunState::Paused | RunState::Other(_), Transfer::Idle) => {
            Err("the save was cancelled".to_owned())
        }
        (RunState::PostMigrate | RunState::Paused | RunState::Other(_), _) => Ok(false),
        (other, _) => Err(format!("QEMU is in state {other:?}")),
    }
}

impl Writer {
    /// Returns a volume whose new file the machine was switched to already.
    ///
    /// *Errors:* [`SystemError::NotOneMoment`] if the machine was started on it, or the disk was plugged in with it: also in the process
    /// that a state is of, the guest has written to it since.
    async fn switched(&self, ctx: &Context, all: &[NewSnapshot]) -> Result<Option<String>, Error> {
        for new in all.iter().filter(|new| self.volumes.contains(&new.volume)) {
            let volume = ctx.system.volume(&new.pool, &new.volume).await?;
            let pending = volume.filter(|volume| volume.pending_snapshot.as_ref() == Some(&new.id));
            let Some(volume) = pending else { continue };
            let overlays = self.overlays(ctx, &[&volume]).await?;
            if mixed::was_switched(&self.state.disks, &overlays)? {
                return Ok(Some(new.volume.clone()));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests;
