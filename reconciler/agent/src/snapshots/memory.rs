//! The memory of a guest beside the snapshots of its disks, of one moment.
//!
//! ```text
//!   check ──▶ pause, save ──▶ keep ──▶ begin all, switch QEMU ──▶ the guest goes on ──▶ finish each
//! ```
//!
//! The disks are switched while the guest is still paused. The plan of the VM leaves the guest alone meanwhile, as long as this agent
//! lives: after a crash of the agent it lets the guest go on, and the state is saved anew. Only if the disks were switched before the
//! crash, in the process that the state is of, it is of their moment, and the snapshots are finished with it. That they have the
//! memory is recorded with each of them, as it is finished: an agent that does not know of it records none.

use std::time::Duration;

use berth_api::VM;
use berth_host::{InstanceFacts, NewSnapshot, ProcessFacts, SystemError, Taken, VolumeFacts, VolumeOwner};
use berth_qemu::power::RunState;
use berth_qemu::saved_state::Transfer;
use jiff::{SignedDuration, Timestamp};
use tokio::time::{Instant, sleep};

use super::{Writer, take, writer};
use crate::context::Context;
use crate::error::Error;
use crate::journal::Journal;
use crate::key::{Key, ObjectName};
use crate::machine::Machine;
use crate::saved_machine::{SavedMachine, as_it_is, has_recorded_cards, size_at_most};

/// How long a guest is paused at most.
const LONGEST_SAVE: Duration = Duration::from_secs(600);
/// How long after a save that failed a guest is not paused again.
const SAVE_AGAIN: SignedDuration = SignedDuration::from_secs(60);
/// How often QEMU is asked whether it has saved the memory.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long a guest that a former agent paused may take to go on.
const RESUME_LIMIT: Duration = Duration::from_secs(10);

/// Takes snapshots of these volumes and of the memory of the guest that writes to them at one moment, or finishes those that were
/// begun. The memory is kept under the identity of the first.
///
/// *Errors:* [`Error::NoRunningGuest`], [`Error::MemoryRefused`] and a lack of space before the guest is paused; those of [`take`].
pub(crate) async fn take_with_memory(ctx: &Context, all: &[NewSnapshot]) -> Result<(), Error> {
    let Some(first) = all.first() else { return Ok(()) };
    if is_any_taken(ctx, all).await? {
        return take(ctx, all).await;
    }
    let _still = ctx.machines.hold_still(all.iter().map(|new| new.volume.clone()).collect())?;
    let writer = writer(ctx, all).await?.ok_or(Error::NoRunningGuest)?;
    let kept = ctx.system.kept_state(&first.id).await?.and_then(SavedMachine::parse);
    let kept = kept.filter(|kept| kept.process == writer.machine.process.identity);
    let at = match (kept, writer.switched(ctx, all).await?) {
        (Some(kept), Some(_)) => kept.at,
        // The VM was started on the new files, or another agent switched it to them: the guest has written to them since.
        (None, Some(id)) => return Err(SystemError::NotOneMoment { id }.into()),
        (_, None) => save(ctx, all, &first.id, &writer).await?,
    };
    let taken = Taken { at, frozen: false, memory: true };
    for new in all {
        ctx.system.finish_snapshot(&new.pool, &new.id, &taken).await?;
    }
    Ok(())
}

async fn is_any_taken(ctx: &Context, all: &[NewSnapshot]) -> Result<bool, Error> {
    for new in all {
        let found = ctx.system.snapshot(&new.pool, &new.id).await?;
        if found.is_some_and(|facts| facts.taken.is_some()) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Saves the memory, and has QEMU continue in the new files before the guest goes on. Returns the moment.
async fn save(ctx: &Context, all: &[NewSnapshot], id: &str, writer: &Writer) -> Result<Timestamp, Error> {
    ctx.system.check_snapshots(all).await?;
    // Before the journal is read: from then on the plan of the VM begins nothing.
    let _saving = ctx.machines.begin_save(&writer.instance)?;
    let saved = describe(ctx, all, writer).await?;
    ctx.system.remove_kept_state(id).await?;
    let done = take_paused(ctx, all, id, (writer, &saved)).await;
    // Best effort: the plan of the VM does what is left. That this file is there shows a later agent that the guest may be paused.
    if let Err(error) = let_go_on(ctx, &writer.instance, &writer.machine).await {
        tracing::warn!(error = %error.chain(), "the guest does not go on after its memory was saved");
    }
    done.map(|()| saved.at)
}

/// Pauses the guest, saves its memory, and switches its disks.
async fn take_paused(
    ctx: &Context,
    all: &[NewSnapshot],
    id: &str,
    (writer, saved): (&Writer, &SavedMachine),
) -> Result<(), Error> {
    writer.machine.save(size_at_most(&saved.machine)).await?;
    until_saved(ctx, all, &writer.machine).await?;
    ctx.system.keep_state(&writer.instance, id, &saved.to_value()).await?;
    let volumes = ctx.system.begin_snapshots(all).await?;
    let open: Vec<&VolumeFacts> =
        volumes.iter().filter(|volume| writer.volumes.contains(&volume.id)).collect();
    let overlays = writer.overlays(ctx, &open).await?;
    writer.machine.continue_in_overlays(overlays).await?;
    Ok(())
}

/// Describes the machine of a guest that runs, and whose memory can be saved.
async fn describe(ctx: &Context, all: &[NewSnapshot], writer: &Writer) -> Result<SavedMachine, Error> {
    let refused = |why: String| Error::MemoryRefused { why };
    let journal = ctx.system.read_journal(&writer.instance).await?.ok_or(Error::NoRunningGuest)?;
    let journal = Journal::parse(journal)?;
    let state = writer.machine.state().await?;
    if journal.suspension.is_some() || journal.stop.is_some() || state.run_state != RunState::Running {
        return Err(Error::NoRunningGuest);
    }
    if let Some((began, why)) = &state.save_failure
        && ctx.now().duration_since(*began) < SAVE_AGAIN
    {
        return Err(Error::MemoryNotSaved { why: why.clone() });
    }
    if journal.has_devices() {
        let why = "it has devices of its host until the next power cycle, whose state is not saved with it";
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
    let saved = SavedMachine::new(&journal, &state, process, machine, ctx.now());
    saved.ok_or(Error::NoRunningGuest)
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

/// Waits until QEMU has saved the state.
///
/// *Errors:* [`Error::Conflict`] once one of the snapshots is being deleted.
async fn until_saved(ctx: &Context, all: &[NewSnapshot], machine: &Machine) -> Result<(), Error> {
    let failed = |why: String| Err(Error::MemoryNotSaved { why });
    let deadline = Instant::now() + LONGEST_SAVE;
    while Instant::now() < deadline {
        if !are_wanted(ctx, all) {
            return Err(Error::Conflict);
        }
        let state = machine.state().await?;
        match (&state.run_state, &state.transfer) {
            (RunState::PostMigrate, _) => return Ok(()),
            (_, Transfer::Failed(why)) => return failed(why.clone()),
            (RunState::Paused | RunState::Other(_), Transfer::Active | Transfer::Completed) => {}
            (other, _) => return failed(format!("QEMU is in state {other:?}")),
        }
        sleep(LOOK_EVERY).await;
    }
    failed(format!("it takes longer than {} minutes", LONGEST_SAVE.as_secs() / 60))
}

/// Lets a guest go on that was paused for its memory, saved or not.
async fn let_go_on(ctx: &Context, instance: &str, machine: &Machine) -> Result<(), Error> {
    let state = machine.state().await?;
    let was_paused = match state.run_state {
        RunState::PostMigrate => true,
        // Without a save it is paused because it is declared so, or is resumed by the plan of its VM.
        RunState::Paused => state.transfer != Transfer::Idle,
        _ => false,
    };
    if was_paused {
        if state.transfer == Transfer::Active {
            machine.cancel_save().await?;
        }
        machine.start().await?;
        machine.set_clock().await;
    }
    Ok(ctx.system.remove_state(instance).await?)
}

/// Lets the guests go on that a former agent had paused for a snapshot when it ended. Needs no control plane.
pub(crate) async fn resume_paused(ctx: &Context) {
    let instances = match ctx.system.instances().await {
        Ok(instances) => instances,
        Err(error) => {
            return tracing::warn!(%error, "it is not known whether guests are paused for snapshots");
        }
    };
    for InstanceFacts { instance, journal, process } in instances {
        let (Some(Ok(journal)), Some(process)) = (journal.map(Journal::parse), process) else { continue };
        let resumed = tokio::time::timeout(RESUME_LIMIT, resume(ctx, &instance, &journal, &process)).await;
        match resumed {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(instance, error = %error.chain(), "its guest may stay paused"),
            Err(_) => tracing::warn!(instance, "its monitor does not answer: its guest may stay paused"),
        }
    }
}

async fn resume(
    ctx: &Context,
    instance: &str,
    journal: &Journal,
    process: &ProcessFacts,
) -> Result<(), Error> {
    // A state that its journal knows is that of a suspension.
    if journal.suspension.is_some() || !ctx.system.has_state(instance).await? {
        return Ok(());
    }
    let key = Key::new::<VM>(ObjectName::new(&journal.namespace, &journal.name));
    let machine = ctx.machines.connect(instance, Some(&journal.uid), Some(key), process).await?;
    let_go_on(ctx, instance, &machine).await
}

impl Writer {
    /// Returns a volume whose new file the machine has open already.
    async fn switched(&self, ctx: &Context, all: &[NewSnapshot]) -> Result<Option<String>, Error> {
        for new in all.iter().filter(|new| self.volumes.contains(&new.volume)) {
            let volume = ctx.system.volume(&new.pool, &new.volume).await?;
            let pending = volume.filter(|volume| volume.pending_snapshot.as_ref() == Some(&new.id));
            let Some(volume) = pending else { continue };
            let overlays = self.overlays(ctx, &[&volume]).await?;
            let is_open = |disk: &berth_qemu::block::ObservedDisk| {
                overlays
                    .iter()
                    .any(|overlay| overlay.id == disk.id && disk.file.as_ref() == Some(&overlay.file))
            };
            if self.state.disks.iter().any(is_open) {
                return Ok(Some(new.volume.clone()));
            }
        }
        Ok(None)
    }
}
