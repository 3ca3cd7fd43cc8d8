//! Snapshots of the volumes of this host in a pool of Ceph.
//!
//! ```text
//!              note (begun)    by QEMU, or by `rbd` while no machine writes to the disk    note (taken)
//!   nothing ───────────────▶ ○ ────────────────────────────────────────────────────▶ ○ ───────────────▶ snapshot
//! ```
//!
//! The snapshot of the image has the identity of the snapshot as its name. One that was begun and not finished may be of another moment than
//! the others of its VM: unless it is known that it is not, a later call removes it, and all are taken anew. One that was taken and is deleted
//! stays, without an owner, while disks are clones of it, and while a backup, an Image or a copy is being made from it.
//!
//! A snapshot for a copy or an Image has no owner from the start. It goes once that is made, or ten minutes after it was begun if nothing
//! needs it then. A host that takes a volume from another one notes those that the other one has left, and removes them in the same way.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::super::files::{self, blocking, failed};
use super::super::layout::{check_name, is_name};
use super::super::program::Output;
use super::client::{Client, LOCKED_FOR, is_absent};
use super::note::{Luks, header_of, json_of, notes_in};
use super::replies::{self, Snapshot};
use super::volumes::damaged;
use super::{RbdPool, Result, locked};
use crate::{
    MOST_SNAPSHOTS, NewSnapshot, Restored, SnapshotFacts, SystemError, Taken, VolumeFacts, VolumeOwner,
};

/// How often it is looked whether snapshots of which disks were clones can go.
const COLLECT_EVERY: Duration = Duration::from_secs(60);
/// How long the snapshot for a copy or an Image waits for that.
const MADE_WITHIN: SignedDuration = SignedDuration::from_secs(600);
/// The beginning of the identity of a snapshot that is taken for a copy. The rest is the identity of the copy's volume.
const FOR_COPY: &str = "c-";
/// The beginning of the identity of a snapshot that is taken for an Image.
const FOR_IMAGE: &str = "i-";

/// The note of a snapshot: a file of the host that has the volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SnapshotNote {
    pub(super) id: String,
    #[serde(rename = "volumeID", alias = "encryptedVolumeID")]
    pub(super) volume_id: String,
    /// None: no object names it (any more), and it goes with the last disk that is a clone of it.
    pub(super) owner: Option<VolumeOwner>,
    /// When a call has begun it last.
    pub(super) begun: Timestamp,
    /// None: it is not finished.
    pub(super) taken: Option<Taken>,
    /// The last restore of the volume before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) restored: Option<Restored>,
    /// The encryption of the image, which is that of its volume. None: it is not encrypted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) luks: Option<Luks>,
}

impl SnapshotNote {
    /// Whether something may still be made from it. `is_made`: whether the copy is.
    fn awaits_use(&self, now: Timestamp, is_made: bool) -> bool {
        is_for_use(&self.id) && !is_made && now.duration_since(self.begun) < MADE_WITHIN
    }
}

/// Whether a snapshot of this identity is taken for a copy or an Image, and no object names it.
fn is_for_use(id: &str) -> bool {
    id.starts_with(FOR_COPY) || id.starts_with(FOR_IMAGE)
}

impl RbdPool {
    /// The snapshot of a volume's image, as `rbd` names it.
    pub(super) fn snapshot_spec(&self, volume: &str, id: &str) -> String {
        format!("{}@{id}", self.spec(&Self::name_of(volume)))
    }

    pub(in super::super) async fn snapshot(&self, id: &str) -> Result<Option<SnapshotFacts>> {
        check_name("snapshot", id)?;
        self.ensure_there().await?;
        let Some(note) = self.snapshot_note(id).await? else { return Ok(None) };
        let size = self.snapshot_sizes(&note.volume_id).await?.get(id).copied();
        if size.is_none() && note.taken.is_some() {
            return Err(SystemError::SnapshotLost { id: id.to_owned() });
        }
        Ok(Some(SnapshotFacts {
            pool: self.mapping.pool.clone(),
            id: note.id,
            volume: note.volume_id,
            size: size.unwrap_or_default().saturating_sub(header_of(note.luks.as_ref())),
            owner: note.owner,
            taken: note.taken,
            encryption: note.luks.map(|luks| Box::new(luks.key)),
        }))
    }

    /// Returns a snapshot that a volume can be made from or restored from.
    pub(super) async fn finished(&self, id: &str) -> Result<SnapshotFacts> {
        let found = self.snapshot(id).await?.filter(|snapshot| snapshot.taken.is_some());
        found.ok_or_else(|| SystemError::SnapshotLost { id: id.to_owned() })
    }

    /// Checks that snapshots can be begun, or continued.
    pub(in super::super) async fn check_snapshots(&self, all: &[NewSnapshot]) -> Result<()> {
        self.ensure_there().await?;
        for new in all {
            self.part(new).await?;
        }
        Ok(())
    }

    /// Begins snapshots of one moment, or begins them anew.
    pub(in super::super) async fn begin_snapshots(&self, all: &[NewSnapshot]) -> Result<Vec<VolumeFacts>> {
        self.ensure_there().await?;
        // The key of one must not be wrapped again meanwhile.
        let _alone = self.trashing.lock().await;
        let mut parts = Vec::new();
        for new in all {
            parts.push(self.part(new).await?);
        }
        let mut begun = Vec::new();
        for (note, volume) in parts {
            if note.taken.is_some() {
                begun.push(volume);
                continue;
            }
            let (begun_at, restored) = (Timestamp::now(), volume.restores.last().cloned());
            self.write_snapshot_note(&SnapshotNote { begun: begun_at, restored, ..note.clone() }).await?;
            begun.push(VolumeFacts { pending_snapshot: Some(note.id), ..volume });
        }
        Ok(begun)
    }

    /// Has nothing in Ceph of those of these snapshots that are not finished, or, with `are_taken`, all of them.
    pub(in super::super) async fn prepare(&self, all: &[NewSnapshot], are_taken: bool) -> Result<()> {
        self.ensure_there().await?;
        for new in all {
            let note = self.snapshot_note(&new.id).await?;
            if note.is_some_and(|note| note.taken.is_some()) {
                continue;
            }
            match (are_taken, self.snapshot_sizes(&new.volume).await?.contains_key(&new.id)) {
                (true, false) => return Err(SystemError::NotOneMoment { id: new.volume.clone() }),
                (true, true) | (false, false) => {}
                (false, true) => {
                    let spec = self.snapshot_spec(&new.volume, &new.id);
                    self.must(&["snap", "rm", "--no-progress", &spec], LOCKED_FOR).await?;
                }
            }
        }
        Ok(())
    }

    /// Reads what there is of a snapshot and of its volume, and checks that it can be begun or continued.
    async fn part(&self, new: &NewSnapshot) -> Result<(SnapshotNote, VolumeFacts)> {
        check_name("snapshot", &new.id)?;
        let volume = self.volume(&new.volume).await?;
        let volume = volume.ok_or_else(|| SystemError::VolumeLost { id: new.volume.clone() })?;
        if volume.restoring {
            let detail = "it is being restored from a snapshot in Ceph";
            return Err(SystemError::VolumeBusy { id: new.volume.clone(), detail });
        }
        let note = match self.snapshot_note(&new.id).await? {
            Some(note) if note.volume_id != new.volume => {
                return Err(damaged(&new.id, "it was begun of another volume"));
            }
            Some(note) => note,
            None => {
                let notes = self.snapshot_notes().await?;
                if notes.iter().filter(|note| note.volume_id == new.volume).count() >= MOST_SNAPSHOTS {
                    return Err(SystemError::TooManySnapshots {
                        id: new.volume.clone(),
                        most: MOST_SNAPSHOTS,
                    });
                }
                SnapshotNote {
                    id: new.id.clone(),
                    volume_id: new.volume.clone(),
                    owner: new.owner.clone(),
                    begun: Timestamp::now(),
                    taken: None,
                    restored: None,
                    luks: self.note(&new.volume).await?.and_then(|note| note.luks),
                }
            }
        };
        Ok((note, volume))
    }

    /// Takes those of these snapshots, which were begun, that QEMU has not taken: of volumes to which no machine writes.
    pub(in super::super) async fn take_closed(&self, all: &[NewSnapshot]) -> Result<()> {
        for new in all {
            if !self.snapshot_sizes(&new.volume).await?.contains_key(&new.id) {
                let spec = self.snapshot_spec(&new.volume, &new.id);
                self.must(&["snap", "create", "--no-progress", &spec], LOCKED_FOR).await?;
            }
        }
        Ok(())
    }

    pub(in super::super) async fn finish_snapshot(&self, id: &str, taken: &Taken) -> Result<SnapshotFacts> {
        self.ensure_there().await?;
        let lost = || SystemError::SnapshotLost { id: id.to_owned() };
        let note = self.snapshot_note(id).await?.ok_or_else(lost)?;
        if note.taken.is_none() {
            if !self.snapshot_sizes(&note.volume_id).await?.contains_key(id) {
                return Err(damaged(id, "it was not taken"));
            }
            let _alone = self.trashing.lock().await;
            // Its key may have been wrapped again meanwhile.
            let note = self.snapshot_note(id).await?.ok_or_else(lost)?;
            self.write_snapshot_note(&SnapshotNote { taken: Some(taken.clone()), ..note.clone() }).await?;
            tracing::info!(snapshot = id, volume = note.volume_id, "snapshot taken in Ceph");
        }
        self.snapshot(id).await?.ok_or_else(lost)
    }

    pub(in super::super) async fn hand_over_snapshot(&self, id: &str, owner: &VolumeOwner) -> Result<()> {
        let _alone = self.trashing.lock().await;
        let note = self.snapshot_note(id).await?;
        let note = note.ok_or_else(|| SystemError::SnapshotLost { id: id.to_owned() })?;
        self.write_snapshot_note(&SnapshotNote { owner: Some(owner.clone()), ..note }).await
    }

    pub(in super::super) async fn delete_snapshot(&self, id: &str) -> Result<()> {
        self.ensure_there().await?;
        let alone = self.trashing.lock().await;
        let Some(note) = self.snapshot_note(id).await? else { return Ok(()) };
        let note = SnapshotNote { owner: None, ..note };
        self.write_snapshot_note(&note).await?;
        drop(alone);
        match self.is_kept(id) {
            true => Ok(()),
            false => self.remove_snapshot(&note).await,
        }
    }

    /// Takes over which snapshots something is still to be made from.
    pub(super) fn keep_snapshots(&self, kept: &BTreeSet<String>) {
        *locked(&self.kept) = Some(kept.clone());
    }

    /// Whether something is to be made from a snapshot, as far as it is known: a process that has just started does not know it.
    fn is_kept(&self, id: &str) -> bool {
        locked(&self.kept).as_ref().is_none_or(|kept| kept.contains(id))
    }

    /// Removes a snapshot that was taken for an Image or for a copy in another pool, which is made. If that fails, it is tried again with all
    /// others that nothing needs. One that has an object stays.
    pub(in super::super) async fn remove_used(&self, id: &str) {
        if let Err(error) = self.remove_for_use(id).await {
            tracing::warn!(
                snapshot = id,
                error = error.chain(),
                "snapshot for an image or a copy not deleted from Ceph"
            );
        }
    }

    async fn remove_for_use(&self, id: &str) -> Result<()> {
        let note = self.snapshot_note(id).await?.filter(|note| note.owner.is_none());
        match note.filter(|note| is_for_use(&note.id)) {
            Some(note) => self.remove_snapshot(&note).await,
            None => Ok(()),
        }
    }

    /// Notes the snapshots that the former host of a volume has taken for copies and Images, and not removed.
    pub(super) async fn note_left_snapshots(&self, volume: &str, luks: Option<&Luks>) -> Result<()> {
        for id in self.snapshot_sizes(volume).await?.into_keys() {
            if is_name(&id) && is_for_use(&id) && self.snapshot_note(&id).await?.is_none() {
                self.write_snapshot_note(&left(volume, id, luks)).await?;
            }
        }
        Ok(())
    }

    /// Removes a snapshot that no object names, unless disks are clones of it or one is being restored from it: then it stays until later.
    async fn remove_snapshot(&self, note: &SnapshotNote) -> Result<()> {
        let (id, volume) = (&note.id, &note.volume_id);
        let of_volume = self.note(volume).await?;
        if of_volume.and_then(|of| of.restoring).is_some_and(|restoring| restoring.snapshot == *id) {
            return Ok(());
        }
        if self.snapshot_sizes(volume).await?.contains_key(id) {
            let spec = self.snapshot_spec(volume, id);
            // One that no disk was made from is not protected.
            let unprotected = self.rbd_within(&["snap", "unprotect", &spec], LOCKED_FOR).await?;
            if is_busy(&unprotected) {
                return Ok(());
            }
            let removed = self.rbd_within(&["snap", "rm", "--no-progress", &spec], LOCKED_FOR).await?;
            if is_busy(&removed) {
                return Ok(());
            }
            if !removed.ok && !is_absent(&removed) {
                return Err(Client::failed(&removed));
            }
        }
        let path = self.snapshot_path(id);
        blocking(move || files::remove_if_there(&path).map_err(failed("remove", &path))).await?;
        tracing::info!(snapshot = id, "snapshot deleted from Ceph");
        Ok(())
    }

    /// Removes the snapshots that no object names and of which no disk is a clone any more.
    pub(super) async fn collect(&self) {
        let notes = match self.snapshot_notes().await {
            Ok(notes) => notes,
            Err(error) => return tracing::warn!(error = error.chain(), "snapshots in Ceph not listed"),
        };
        for note in notes.iter().filter(|note| note.owner.is_none()) {
            if let Err(error) = self.collect_one(note).await {
                tracing::warn!(snapshot = note.id, error = error.chain(), "snapshot not deleted from Ceph");
                // The others would wait for the cluster as long.
                if matches!(error, SystemError::PoolAway { .. }) {
                    return;
                }
            }
        }
    }

    async fn collect_one(&self, note: &SnapshotNote) -> Result<()> {
        self.finish_in_trash(&note.volume_id).await?;
        if self.is_kept(&note.id) {
            return Ok(());
        }
        let copy = match note.id.strip_prefix(FOR_COPY).filter(|copy| is_name(copy)) {
            Some(copy) => self.note(copy).await?,
            None => None,
        };
        let is_made = copy.is_some_and(|copy| !copy.is_unfinished());
        match note.awaits_use(Timestamp::now(), is_made) {
            true => Ok(()),
            false => self.remove_snapshot(note).await,
        }
    }

    /// Does the same in the background, once a minute.
    pub(super) fn collect_later(self: &Arc<Self>) {
        let mut last = locked(&self.collected);
        if last.is_some_and(|at| at.elapsed() < COLLECT_EVERY) {
            return;
        }
        *last = Some(Instant::now());
        drop(last);
        if let Ok(alone) = Arc::clone(&self.removing).try_lock_owned() {
            let pool = Arc::clone(self);
            tokio::spawn(async move {
                pool.collect().await;
                // After one that takes long, purges come first.
                *locked(&pool.collected) = Some(Instant::now());
                drop(alone);
            });
        }
    }

    /// The volumes that have snapshots.
    pub(super) async fn with_snapshots(&self) -> Result<BTreeSet<String>> {
        Ok(self.snapshot_notes().await?.into_iter().map(|note| note.volume_id).collect())
    }

    async fn snapshot_sizes(&self, volume: &str) -> Result<BTreeMap<String, u64>> {
        let found = self.snapshots_of_image(&Self::name_of(volume)).await?;
        Ok(found.into_iter().map(|(id, of)| (id, of.size)).collect())
    }

    /// Returns the snapshots of an image by name; none if there is no image.
    pub(super) async fn snapshots_of_image(&self, image: &str) -> Result<BTreeMap<String, Snapshot>> {
        let reply = self.rbd(&["snap", "ls", "--format", "json", &self.spec(image)]).await?;
        match reply.ok {
            true => replies::snapshots(&reply.stdout).map_err(Self::not_understood),
            false if is_absent(&reply) => Ok(BTreeMap::new()),
            false => Err(Client::failed(&reply)),
        }
    }

    fn snapshot_folder(&self) -> PathBuf {
        self.notes.with_file_name("snapshots")
    }

    fn snapshot_path(&self, id: &str) -> PathBuf {
        self.snapshot_folder().join(format!("{id}.json"))
    }

    pub(super) async fn snapshot_note(&self, id: &str) -> Result<Option<SnapshotNote>> {
        check_name("snapshot", id)?;
        let (path, id) = (self.snapshot_path(id), id.to_owned());
        blocking(move || files::read_json(&path)?.transpose().map_err(|detail| damaged(&id, &detail))).await
    }

    /// Lists the notes of snapshots that can be read.
    pub(super) async fn snapshot_notes(&self) -> Result<Vec<SnapshotNote>> {
        notes_in(self.snapshot_folder()).await
    }

    pub(super) async fn write_snapshot_note(&self, note: &SnapshotNote) -> Result<()> {
        let (folder, path) = (self.snapshot_folder(), self.snapshot_path(&note.id));
        let note = json_of(note, note.luks.as_ref());
        let write = move || {
            files::ensure_folder(&folder)?;
            files::write_json(&path, &note, 0o600)
        };
        blocking(write).await
    }
}

/// The note of a snapshot that another host has left. It may be new.
fn left(volume: &str, id: String, luks: Option<&Luks>) -> SnapshotNote {
    let (volume_id, begun, luks) = (volume.to_owned(), Timestamp::now(), luks.cloned());
    SnapshotNote { id, volume_id, owner: None, begun, taken: None, restored: None, luks }
}

/// Whether `rbd` has refused it since disks are clones of the snapshot.
fn is_busy(output: &Output) -> bool {
    !output.ok && (output.stderr.contains("(16)") || output.stderr.contains("is protected from removal"))
}

#[cfg(test)]
mod tests {
    use super::super::super::layout::Layout;
    use super::*;
    use crate::{CephAccess, RbdPoolMapping};

    fn note(id: &str) -> SnapshotNote {
        let begun = Timestamp::UNIX_EPOCH;
        let (id, volume_id) = (id.to_owned(), "v-1".to_owned());
        SnapshotNote { id, volume_id, owner: None, begun, taken: None, restored: None, luks: None }
    }

    #[test]
    fn the_snapshot_for_a_copy_or_an_image_waits_for_it_for_a_while() {
        let after = |seconds| Timestamp::from_second(seconds).expect("a moment");
        for id in ["c-v-2", "i-u"] {
            assert!(note(id).awaits_use(after(599), false));
            assert!(!note(id).awaits_use(after(600), false));
        }
        assert!(!note("c-v-2").awaits_use(after(1), true), "the copy is made");
        assert!(!note("s-1").awaits_use(after(1), false), "its object is deleted");
        assert!(
            left("v-1", "i-u".to_owned(), None).awaits_use(Timestamp::now(), false),
            "its host may be there"
        );
    }

    #[test]
    fn no_snapshot_is_removed_until_it_is_known_from_which_something_is_made() {
        let folder = tempfile::tempdir().expect("a folder");
        let mapping: RbdPoolMapping = "fast=vms".parse().expect("a mapping");
        let pool = RbdPool::new(&Layout::new(folder.path()), mapping, CephAccess::default(), None);
        assert!(pool.is_kept("s-1"), "the agent has just started");
        pool.keep_snapshots(&BTreeSet::from(["s-1".to_owned()]));
        assert!(pool.is_kept("s-1") && !pool.is_kept("s-2"));
        pool.keep_snapshots(&BTreeSet::new());
        assert!(!pool.is_kept("s-1"), "the backup is made");
    }

    #[test]
    fn notes_of_the_former_release_are_read() {
        let text =
            r#"{"id":"s-1","volumeID":"v-1","owner":null,"begun":"1970-01-01T00:00:00Z","taken":null}"#;
        assert_eq!(serde_json::from_str::<SnapshotNote>(text).expect("read"), note("s-1"));
    }

    #[test]
    fn a_snapshot_of_which_disks_are_clones_is_busy() {
        let output = |ok, stderr: &str| Output { ok, stdout: Vec::new(), stderr: stderr.to_owned() };
        let unprotect = "rbd: unprotecting snap failed: (16) Device or resource busy";
        assert!(is_busy(&output(false, unprotect)) && !is_busy(&output(true, unprotect)));
        assert!(is_busy(&output(false, "rbd: snapshot 'base' is protected from removal.")));
        assert!(!is_busy(&output(false, "rbd: unprotecting snap failed: (22) Invalid argument")));
    }

    #[tokio::test]
    async fn notes_of_snapshots_are_beside_those_of_volumes() {
        let folder = tempfile::tempdir().expect("a folder");
        let mapping: RbdPoolMapping = "fast=vms/site".parse().expect("a mapping");
        let pool = RbdPool::new(&Layout::new(folder.path()), mapping, CephAccess::default(), None);
        assert_eq!(pool.snapshot_spec("v-1", "s-1"), "vms/site/berth-v-1@s-1");
        assert!(pool.with_snapshots().await.expect("listed").is_empty());
        pool.write_snapshot_note(&note("s-1")).await.expect("written");
        assert_eq!(pool.snapshot_note("s-1").await.expect("read"), Some(note("s-1")));
        assert!(pool.with_snapshots().await.expect("listed").contains("v-1"));
        assert!(pool.notes().await.expect("listed").is_empty(), "they are no volumes");
    }
}
