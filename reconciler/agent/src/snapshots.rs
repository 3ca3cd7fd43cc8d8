//! Takes snapshots of volumes at one moment, whether a machine has them open or not. Disks and DiskSnapshots take them the same way.
//!
//! ```text
//!   begin: the files of all volumes are overlays ──▶ freeze ──▶ switch QEMU to them ──▶ thaw ──▶ finish each
//!                                                    (with an agent in the guest)
//! ```
//!
//! The files of deleted snapshots are merged afterwards, in the background ([`merge_deleted`]).
//!
//! Each step can be repeated: after a crash anywhere, the whole is taken again from the start under the same identities. QEMU is
//! switched to all overlays in one transaction, and without a machine no volume is written meanwhile. Volumes that were written
//! after an interruption in between are refused: [`SystemError::NotOneMoment`], [`BlockError::NotOneMoment`].
//!
//! A volume in Ceph has no overlay: QEMU takes the snapshot of its image in the place of a switch, or `rbd` does while nothing writes to it.
//! Volumes of both kinds are taken in one transaction. After an interruption, that the machine continues in the new files shows that the
//! snapshots in Ceph were taken too: see [`mixed`].
//!
//! With the memory of the guest: see [`memory`].
//!
//! [`BlockError::NotOneMoment`]: berth_qemu::block::BlockError::NotOneMoment

mod memory;
mod mixed;
mod paused;

use std::collections::BTreeSet;
use std::time::Duration;

use berth_api::{Disk, DiskSnapshot};
use berth_host::{NewSnapshot, SystemError, Taken, VolumeFacts};
use berth_qemu::block::ImageSnapshot;
use berth_qemu::machine::{DiskSpec, RbdImage};
use berth_qemu::power::RunState;

use crate::context::Context;
use crate::error::Error;
use crate::index::{Tables, volume_of};
use crate::journal::Journal;
use crate::key::Key;
use crate::machine::{GuestError, Holder, Machine, MachineState};
use crate::plugging::disk_spec;

pub(crate) use memory::take_with_memory;
pub(crate) use paused::resume_paused;

/// How often a guest that was frozen is asked to go on.
const THAW_ATTEMPTS: usize = 3;
/// How long guests may take to thaw their file systems at the end of the agent.
const THAW_LIMIT: Duration = Duration::from_secs(5);

/// Takes snapshots of these volumes at one moment, or finishes those that were begun.
///
/// *Errors:* [`SystemError::VolumeBusy`] while it is not known which machine has a volume open: the caller retries.
pub(crate) async fn take(ctx: &Context, all: &[NewSnapshot]) -> Result<(), Error> {
    let _still = ctx.machines.hold_still(all.iter().map(|new| new.volume.clone()).collect())?;
    let writer = writer(ctx, all).await?;
    let volumes = ctx.system.begin_snapshots(all).await?;
    let parts: Vec<Part<'_>> = all.iter().zip(volumes).collect();
    let is_pending = |(new, volume): &&Part<'_>| volume.pending_snapshot.as_ref() == Some(&new.id);
    let pending: Vec<&Part<'_>> = parts.iter().filter(is_pending).collect();
    if pending.is_empty() {
        return Ok(());
    }
    let (open, closed): (Vec<&Part<'_>>, Vec<_>) = pending
        .iter()
        .copied()
        .partition(|(_, volume)| writer.as_ref().is_some_and(|writer| writer.volumes.contains(&volume.id)));
    // All of them are taken before the first one is finished.
    let moment = moment(ctx, all).await?;
    let are_taken = moment.is_some()
        || pending.len() < parts.len()
        || mixed::were_taken(ctx, writer.as_ref(), &pending).await?;
    prepare_in_ceph(ctx, &pending, are_taken).await?;
    if !are_taken {
        take_closed(ctx, &closed).await?;
    }
    let frozen = match &writer {
        Some(writer) => writer.switch(ctx, &open, are_taken).await?,
        None => false,
    };
    let taken = moment.unwrap_or(Taken { at: ctx.now(), frozen, memory: false });
    for (new, _) in pending {
        ctx.system.finish_snapshot(&new.pool, &new.id, &taken).await?;
    }
    Ok(())
}

/// Returns the moment of snapshots of which one is finished, or was being finished when an earlier call ended.
async fn moment(ctx: &Context, all: &[NewSnapshot]) -> Result<Option<Taken>, Error> {
    for new in all {
        let found = ctx.system.snapshot(&new.pool, &new.id).await?;
        if let Some(taken) = found.and_then(|facts| facts.taken) {
            return Ok(Some(taken));
        }
    }
    Ok(None)
}

/// A snapshot that is taken with others, and its volume.
type Part<'a> = (&'a NewSnapshot, VolumeFacts);

/// Has what an interrupted call has left in Ceph removed, or checked if the snapshots are taken.
async fn prepare_in_ceph(ctx: &Context, parts: &[&Part<'_>], are_taken: bool) -> Result<(), Error> {
    let images = in_ceph(parts);
    match images.is_empty() {
        true => Ok(()),
        false => Ok(ctx.system.prepare_in_ceph(&images, are_taken).await?),
    }
}

/// Takes snapshots of images in Ceph to which no machine writes.
async fn take_closed(ctx: &Context, parts: &[&Part<'_>]) -> Result<(), Error> {
    let closed = in_ceph(parts);
    match closed.is_empty() {
        true => Ok(()),
        false => Ok(ctx.system.take_closed(&closed).await?),
    }
}

/// Returns the volumes in files.
fn files_of<'a>(parts: &[&'a Part<'_>]) -> Vec<&'a VolumeFacts> {
    let volumes = parts.iter().copied().map(|(_, volume)| volume);
    volumes.filter(|volume| !RbdImage::is_rbd(&volume.path)).collect()
}

/// Returns the snapshots of volumes in Ceph, as QEMU takes them.
fn images_of(parts: &[&Part<'_>]) -> Vec<ImageSnapshot> {
    let image = |new: NewSnapshot| ImageSnapshot { disk: new.volume, name: new.id };
    in_ceph(parts).into_iter().map(image).collect()
}

/// Returns the snapshots of volumes in Ceph.
fn in_ceph(parts: &[&Part<'_>]) -> Vec<NewSnapshot> {
    let images = parts.iter().filter(|(_, volume)| RbdImage::is_rbd(&volume.path));
    images.map(|(new, _)| (*new).clone()).collect()
}

/// Has the files of deleted snapshots merged, except those that a copy, an image or a backup is still to be made from.
pub(crate) fn merge_deleted(ctx: &Context) {
    let kept = needed_now(ctx);
    ctx.system.keep_snapshots(&kept);
    ctx.merges.start(kept);
}

/// Has the host keep the snapshots that a copy, an image or a backup is still to be made from: those in Ceph, and the files of others also
/// from the merges that follow one that goes on.
pub(crate) fn keep_needed(ctx: &Context) {
    let kept = needed_now(ctx);
    ctx.system.keep_snapshots(&kept);
    ctx.merges.keep(kept);
}

/// Returns the snapshots that something is still to be made from, also those whose objects are deleted while they are copied to another
/// pool.
fn needed_now(ctx: &Context) -> BTreeSet<String> {
    let mut kept = needed(&ctx.index.read());
    kept.append(&mut ctx.pulls.copied_snapshots());
    kept
}

/// Returns the snapshots that something is still to be made from.
fn needed(tables: &Tables) -> BTreeSet<String> {
    let images = tables.images.all().map(|(_, image)| image).filter(|image| image.digest().is_none());
    let images = images.filter_map(|image| image.status.as_ref()?.snapshot_id.clone());
    let backups = tables.backups.all().map(|(_, backup)| backup).filter(|backup| !backup.is_complete());
    let backups = backups.filter_map(|backup| backup.status.as_ref()?.snapshot_id.clone());
    let is_made = |disk: &Disk| disk.status.as_ref().is_some_and(|status| status.size.is_some());
    let copies = tables.disks.all().map(|(_, disk)| disk).filter(|disk| !is_made(disk));
    let copies = copies.filter_map(|disk| Some(identity_for_copy(volume_of(disk)?)));
    images.chain(backups).chain(copies).collect()
}

/// Enqueues the disks that may be based on fewer files since the last call, and the snapshots that are to be taken of them.
pub(crate) fn wake_merged(ctx: &Context) {
    let merged = ctx.merges.take_merged();
    if merged.is_empty() {
        return;
    }
    let tables = ctx.index.read();
    let is_merged = |disk: &Disk| volume_of(disk).is_some_and(|volume| merged.contains(volume));
    for (name, _) in tables.disks.all().filter(|(_, disk)| is_merged(disk)) {
        ctx.queue.add(Key::new::<Disk>(name.clone()));
    }
    let volume = |snapshot: &DiskSnapshot| snapshot.status.as_ref()?.volume_id.clone();
    let waits = |snapshot: &DiskSnapshot| volume(snapshot).is_some_and(|volume| merged.contains(&volume));
    for (name, _) in tables.disk_snapshots.all().filter(|(_, snapshot)| waits(snapshot)) {
        ctx.queue.add(Key::new::<DiskSnapshot>(name.clone()));
    }
}

/// Returns the identity of the snapshot that is taken for the copy with this volume, which nothing else names.
pub(crate) fn identity_for_copy(volume: &str) -> String {
    format!("c-{volume}")
}

/// The machine that writes to volumes.
struct Writer {
    instance: String,
    machine: Machine,
    state: MachineState,
    /// Those of the volumes that it may write to.
    volumes: Vec<String>,
}

/// Returns the machine that may write to some of the volumes. Machines that only read them may read either file.
async fn writer(ctx: &Context, all: &[NewSnapshot]) -> Result<Option<Writer>, Error> {
    let busy = |volume: &str, detail| SystemError::VolumeBusy { id: volume.to_owned(), detail };
    let mut found: Option<Writer> = None;
    for volume in all.iter().map(|new| &new.volume) {
        let namespace = namespace_of(&ctx.index.read(), volume);
        let mut holders = ctx.machines.holders(volume);
        holders.retain(|holder| may_have(holder, namespace.as_deref()));
        if holders.is_empty() {
            continue;
        }
        let instance = holders.iter().find(|holder| holder.is_certain).map(|holder| &holder.instance);
        // One that is being started has no machine yet, and one that does not answer may have any volume open.
        let Some((instance, machine)) = instance.and_then(|name| Some((name, ctx.machines.get(name)?)))
        else {
            return Err(busy(volume, "a machine that may have it open does not answer yet").into());
        };
        let writer = match &mut found {
            Some(writer) if writer.instance == *instance => writer,
            other => {
                let state = machine.state().await?;
                if is_only_read(&state, volume) {
                    continue;
                }
                if other.is_some() {
                    return Err(busy(volume, "another VM than that of the other disks has it open").into());
                }
                let journal = ctx.system.read_journal(instance).await?.map(Journal::parse).transpose()?;
                // The other host writes to the present files, and knows of no others.
                if journal.is_some_and(|journal| journal.departure.is_some()) {
                    return Err(busy(volume, "its running guest is being sent to another host").into());
                }
                other.insert(Writer { instance: instance.clone(), machine, state, volumes: Vec::new() })
            }
        };
        if writer.state.mirrors.contains_key(volume) {
            return Err(busy(volume, "it is being moved to another pool while its guest runs").into());
        }
        if !is_only_read(&writer.state, volume) {
            writer.volumes.push(volume.clone());
        }
    }
    Ok(found)
}

/// Returns the namespace of the Disk with this volume. None: it is not known here.
fn namespace_of(tables: &Tables, volume: &str) -> Option<String> {
    let mut disks = tables.disks.all();
    let found = disks.find(|(_, disk)| volume_of(disk) == Some(volume));
    found.map(|(name, _)| name.namespace.clone())
}

/// Whether a machine has a volume of this namespace open, or may have. A machine has volumes of its own namespace only, so one that does not
/// answer holds up no other tenant.
fn may_have(holder: &Holder, namespace: Option<&str>) -> bool {
    let other = holder.key.as_ref().map(|vm| vm.name.namespace.as_str());
    holder.is_certain || namespace.is_none() || other.is_none() || other == namespace
}

fn is_only_read(state: &MachineState, volume: &str) -> bool {
    state.disks.iter().any(|disk| disk.id == volume && disk.read_only)
}

impl Writer {
    /// Has the machine continue in the new files of its volumes, and take the snapshots of those in Ceph, unless they are taken. Returns
    /// whether the guest's file systems were frozen meanwhile.
    async fn switch(&self, ctx: &Context, parts: &[&Part<'_>], are_taken: bool) -> Result<bool, Error> {
        let overlays = self.overlays(ctx, &files_of(parts)).await?;
        let images = if are_taken { Vec::new() } else { images_of(parts) };
        if overlays.is_empty() && images.is_empty() {
            return Ok(false);
        }
        let freezes = self.state.run_state == RunState::Running;
        let freezing = freezes.then(|| self.machine.freezing());
        let frozen = freezes && freeze(&self.machine).await;
        let switched = self.machine.snapshot_disks(overlays, images).await;
        // Also after a failure to freeze, and after a crash in between: whether the guest is frozen is not known then.
        if let Some(freezing) = freezing
            && thaw(&self.machine, frozen).await
        {
            freezing.thawed();
        }
        Ok(switched? && frozen)
    }

    /// Returns the present files of volumes, which the machine may open.
    async fn overlays(&self, ctx: &Context, volumes: &[&VolumeFacts]) -> Result<Vec<DiskSpec>, Error> {
        let mut overlays = Vec::new();
        for volume in volumes {
            let overlay = DiskSpec { backing: None, ..disk_spec(volume, "", false, None) };
            overlays.push(ctx.system.grant_disk(&self.instance, &overlay).await?);
        }
        Ok(overlays)
    }
}

async fn freeze(machine: &Machine) -> bool {
    machine.freeze_begins();
    match machine.exchange(|agent| Box::pin(agent.freeze())).await {
        Ok(filesystems) => filesystems > 0,
        Err(error) => {
            tracing::debug!(%error, "the guest's file systems are not frozen");
            false
        }
    }
}

/// Thaws the guest's file systems, whether or not it is known that they are frozen. If they stay so, the guest task goes on with it. Returns
/// whether they are thawed.
async fn thaw(machine: &Machine, frozen: bool) -> bool {
    for _ in 0..THAW_ATTEMPTS {
        match machine.exchange(|agent| Box::pin(agent.thaw())).await {
            Ok(()) | Err(GuestError::Gone) => return true,
            // There was none before either.
            Err(GuestError::NoAgent) if !frozen => return true,
            Err(error) => tracing::warn!(%error, "the guest's agent does not thaw its file systems"),
        }
    }
    // Without that it is not known, and seen when the agent answers again.
    if frozen {
        machine.thaw_failed().await;
    }
    false
}

/// Thaws the file systems of guests that were frozen for a snapshot when this agent ended: without an agent nothing else does.
pub(crate) async fn thaw_left(ctx: &Context) {
    let machines = ctx.machines.all().into_iter().filter(Machine::may_be_frozen);
    let thaws = machines.map(|machine| async move { thaw(&machine, true).await });
    let all = futures::future::join_all(thaws);
    if tokio::time::timeout(THAW_LIMIT, all).await.is_err() {
        tracing::warn!("the file systems of a guest may stay frozen until the agent runs again");
    }
}

#[cfg(test)]
mod tests {
    use berth_api::{Backup, Image, VM};
    use kube::runtime::watcher::Event;
    use serde_json::{Value, json};

    use super::*;
    use crate::index::Index;
    use crate::key::ObjectName;

    fn object(name: &str, spec: &Value, status: &Value) -> Value {
        json!({
            "metadata": {"name": name, "namespace": "ns", "uid": name, "resourceVersion": "1"},
            "spec": spec, "status": status,
        })
    }

    #[test]
    fn a_machine_that_does_not_answer_holds_up_the_snapshots_of_its_own_namespace_only() {
        let holder = |namespace: Option<&str>, is_certain: bool| Holder {
            instance: "i-1".to_owned(),
            vm_uid: None,
            key: namespace.map(|namespace| Key::new::<VM>(ObjectName::new(namespace, "web"))),
            is_certain,
        };
        assert!(!may_have(&holder(Some("other"), false), Some("ns")));
        assert!(may_have(&holder(Some("other"), true), Some("ns")), "it was seen");
        assert!(may_have(&holder(Some("ns"), false), Some("ns")));
        assert!(may_have(&holder(None, false), Some("ns")), "it may be of any VM");
        assert!(may_have(&holder(Some("other"), false), None), "it may be a disk of any VM");
        let index = Index::default();
        let disk = object("data", &json!({"size": "1Gi"}), &json!({"volumeID": "v-1"}));
        index.apply::<Disk>(Event::Apply(serde_json::from_value(disk).expect("a disk")));
        assert_eq!(namespace_of(&index.read(), "v-1").as_deref(), Some("ns"));
        assert_eq!(namespace_of(&index.read(), "v-2"), None);
    }

    #[test]
    fn snapshots_are_kept_for_the_backups_images_and_copies_that_are_not_made() {
        let index = Index::default();
        for (name, completed) in [("a", json!(null)), ("b", json!("2026-01-09T00:00:00Z"))] {
            let status =
                json!({"backupID": name, "snapshotID": format!("s-{name}"), "completedAt": completed});
            let backup = object(name, &json!({"repository": "r", "snapshot": name}), &status);
            index.apply::<Backup>(Event::Apply(serde_json::from_value(backup).expect("a backup")));
        }
        let image = object("c", &json!({"source": {"disk": "data"}}), &json!({"snapshotID": "i-c"}));
        index.apply::<Image>(Event::Apply(serde_json::from_value(image).expect("an image")));
        for (name, size) in [("d", json!(null)), ("e", json!("1Gi"))] {
            let status = json!({"volumeID": format!("v-{name}"), "size": size});
            let disk = object(name, &json!({"source": {"disk": "data"}}), &status);
            index.apply::<Disk>(Event::Apply(serde_json::from_value(disk).expect("a disk")));
        }
        let kept = needed(&index.read());
        assert_eq!(kept.into_iter().collect::<Vec<_>>(), ["c-v-d", "i-c", "s-a"]);
    }
}
