//! The volumes of this host in a pool of Ceph.
//!
//! ```text
//!             note (intent)     image, metadata      note (complete)
//!    nothing ────────────▶ ○ ───────────────▶ ○ ─────────────────▶ volume ──trash──▶ in the trash ──purge──▶ gone
//!                                                                     ▲                   │
//!                                                                     └──────restore──────┘
//! ```
//!
//! The image keeps its name in the trash: only its note has the date. It stays there while it has snapshots.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use berth_qemu::machine::{Cache, DiskKey, Format};
use jiff::Timestamp;

use super::super::files::{self, blocking, failed};
use super::super::layout::check_name;
use super::super::volumes::wanted_size;
use super::client::{Client, LISTED_WITHIN, LOCKED_FOR, LONG, PATIENCE, is_absent};
use super::filled::Data;
use super::images::{FEATURES, Target, bytes};
use super::note::{Note, json_of, notes_in};
use super::{CLIENTS, RbdPool, Result, locked, replies};
use crate::volumes::check_encryption;
use crate::{
    ImageFacts, NewVolume, Progress, SnapshotFacts, SystemError, TrashedVolume, VolumeFacts, VolumeOwner,
};

/// How long the deletion of images waits after one that failed.
const REMOVE_AGAIN: Duration = Duration::from_secs(30);

impl RbdPool {
    /// The name of the image of a volume.
    pub(super) fn name_of(id: &str) -> String {
        format!("berth-{id}")
    }

    pub(in super::super) async fn volume(&self, id: &str) -> Result<Option<VolumeFacts>> {
        check_name("volume", id)?;
        self.ensure_there().await?;
        let Some(note) = self.note(id).await?.filter(Note::is_there) else { return Ok(None) };
        // The VM may have moved to another host, which has taken it, and come back.
        let image = Self::name_of(id);
        let (is_own, size) = tokio::join!(self.owns_now(&note), self.size(&image));
        if !is_own? {
            return Ok(None);
        }
        match size? {
            Some(size) => Ok(Some(self.facts_of(note, size))),
            None => Err(SystemError::VolumeLost { id: id.to_owned() }),
        }
    }

    /// Whether this host has a volume in the pool, also while it is away.
    pub(in super::super) async fn has_volume(&self, id: &str) -> Result<bool> {
        Ok(self.note(id).await?.is_some_and(|note| note.is_there()))
    }

    /// `base` is the cached image that `new` names, and `key` that of an encrypted volume. The note is complete only after the image has the
    /// data of `fill`.
    pub(in super::super) async fn create(
        self: &Arc<Self>,
        new: &NewVolume,
        base: Option<&ImageFacts>,
        fill: Option<(Data<'_>, Progress<'_>)>,
        key: Option<&DiskKey>,
    ) -> Result<VolumeFacts> {
        check_name("volume", &new.id)?;
        check_plain(new)?;
        self.ensure_there().await?;
        let source = match &new.snapshot {
            Some(snapshot) => Some(self.finished(snapshot).await?),
            None => None,
        };
        check_encryption(new, source.as_ref().and_then(|source| source.encryption.as_deref()))?;
        let least = source.as_ref().map(|source| source.size).or(base.map(|base| base.virtual_size));
        let size = wanted_size(new, least)?;
        let lost = || SystemError::VolumeLost { id: new.id.clone() };
        let _alone = self.alone(&new.id).ok_or_else(|| being_made(&new.id))?;
        match self.note(&new.id).await? {
            Some(note) if note.deleted_at.is_some() => {
                return Err(damaged(&new.id, "it is in the trash: it has to be restored, not made again"));
            }
            Some(note) if note.complete => {
                let found = self.volume(&new.id).await?.ok_or_else(lost)?;
                return if size > found.size { self.grow(&new.id, size).await } else { Ok(found) };
            }
            _ => {}
        }
        let snapshot = match (&source, base) {
            (Some(source), _) => Some(self.protect(source).await?),
            // A clone of it would not be encrypted.
            (None, Some(base)) if key.is_none() => Some(self.import(base, &new.id).await?),
            (None, _) => None,
        };
        let header = match key.filter(|_| source.is_none()) {
            Some(key) => Some(self.make_header(key).await?),
            None => None,
        };
        let mut note = Note::new(new, self.host());
        note.luks = self.luks_of(new, header.as_ref()).await?;
        if fill.is_some() || key.is_some() {
            note.base = None;
        }
        self.write_note(&note).await?;
        self.make(&note, snapshot.as_deref(), size.saturating_add(note.header())).await?;
        if let Some(header) = &header {
            self.write_header(&new.id, header).await?;
        }
        if let (Some(base), Some(_)) = (base, key) {
            let (disk, name) = (self.disk_of(base).await?, Self::name_of(&new.id));
            let progress: Progress<'_> = fill.map_or(&|_, _| {}, |(_, progress)| progress);
            let target = Target { name: &name, key };
            Box::pin(self.copy_files(&disk, self.tools_user, target, (size, progress))).await?;
        }
        if let Some(fill) = fill {
            self.fill(&new.id, size, fill, key).await?;
        }
        self.write_note(&Note { complete: true, ..note }).await?;
        tracing::info!(volume = new.id, size, "volume made in Ceph");
        self.volume(&new.id).await?.ok_or_else(lost)
    }

    /// `snapshot` is the content that it is a clone of, and `size` that of the image.
    async fn make(&self, note: &Note, snapshot: Option<&str>, size: u64) -> Result<()> {
        let (image, wanted) = (Self::name_of(&note.volume_id), bytes(size));
        let spec = self.spec(&image);
        if self.size(&image).await?.is_some() {
            // An interrupted call left it.
            if !self.is_made_for(note).await? {
                return Err(damaged(
                    &note.volume_id,
                    "an image of its name is in Ceph, which this host did not make",
                ));
            }
        } else if let Some(snapshot) = snapshot {
            // A clone of the later format would not keep the snapshot protected.
            let args =
                ["--rbd_default_clone_format", "1", "clone", "--image-feature", FEATURES, snapshot, &spec];
            self.must(&args, PATIENCE * 4).await?;
        } else {
            self.must(&["create", "--size", &wanted, "--image-feature", FEATURES, &spec], PATIENCE * 4)
                .await?;
        }
        // A clone has the metadata of the image that it is one of, and would be taken from the clients of that.
        if self.entry(&image, CLIENTS).await?.is_some() {
            self.must(&["image-meta", "remove", &spec, CLIENTS], PATIENCE).await?;
        }
        self.set_meta(&image, &note.text()).await?;
        if self.size(&image).await?.is_some_and(|now| now < size) {
            self.must(&["resize", "--no-progress", "--size", &wanted, &spec], PATIENCE * 4).await?;
        }
        Ok(())
    }

    /// Protects a snapshot, as one of which volumes are clones has to be. Returns it as `rbd` names it.
    async fn protect(&self, snapshot: &SnapshotFacts) -> Result<String> {
        let spec = self.snapshot_spec(&snapshot.volume, &snapshot.id);
        let done = self.rbd_within(&["snap", "protect", &spec], LOCKED_FOR).await?;
        match done.ok || done.stderr.contains("already protected") {
            true => Ok(spec),
            false => Err(Client::failed(&done)),
        }
    }

    pub(in super::super) async fn grow(&self, id: &str, size: u64) -> Result<VolumeFacts> {
        let lost = || SystemError::VolumeLost { id: id.to_owned() };
        let found = self.volume(id).await?.ok_or_else(lost)?;
        if size < found.size {
            return Err(SystemError::Shrink { id: id.to_owned(), from: found.size, to: size });
        }
        if size > found.size {
            let spec = self.spec(&Self::name_of(id));
            let note = self.note(id).await?.ok_or_else(lost)?;
            let wanted = bytes(size.saturating_add(note.header()));
            self.must(&["resize", "--no-progress", "--size", &wanted, &spec], PATIENCE * 4).await?;
        }
        self.volume(id).await?.ok_or_else(lost)
    }

    pub(in super::super) async fn hand_over(&self, id: &str, owner: &VolumeOwner) -> Result<()> {
        self.ensure_there().await?;
        let lost = || SystemError::VolumeLost { id: id.to_owned() };
        let _alone = self.trashing.lock().await;
        let note = self.note(id).await?.ok_or_else(lost)?;
        if note.owner == *owner && !note.retained {
            return Ok(());
        }
        if !self.owns_now(&note).await? {
            return Err(lost());
        }
        let note = Note { owner: owner.clone(), retained: false, ..note };
        // First there: with the note here it is done.
        self.set_meta(&Self::name_of(id), &note.text()).await?;
        self.write_note(&note).await
    }

    pub(in super::super) async fn retain(&self, id: &str) -> Result<()> {
        self.ensure_there().await?;
        let _alone = self.trashing.lock().await;
        match self.note(id).await? {
            Some(note) if !note.retained => self.write_note(&Note { retained: true, ..note }).await,
            _ => Ok(()),
        }
    }

    /// Moves a volume to the trash. `clock` is the trash's.
    pub(in super::super) async fn trash(&self, id: &str, clock: u64) -> Result<()> {
        self.ensure_there().await?;
        let _alone = self.trashing.lock().await;
        match self.note(id).await? {
            Some(note) if note.deleted_at.is_none() => {
                let (deleted_at, deleted_after) = (Some(Timestamp::now()), Some(clock));
                self.write_note(&Note { deleted_at, deleted_after, ..note }).await
            }
            _ => Ok(()),
        }
    }

    pub(in super::super) async fn restore(&self, id: &str, owner: &VolumeOwner) -> Result<VolumeFacts> {
        self.ensure_there().await?;
        let lost = || SystemError::VolumeLost { id: id.to_owned() };
        let alone = self.trashing.lock().await;
        let note = self.note(id).await?.filter(|note| !note.removing).ok_or_else(lost)?;
        // Its metadata is written next, which may say by now that another host has it.
        if !self.owns_now(&note).await? {
            return Err(lost());
        }
        let note = Note {
            owner: owner.clone(),
            retained: false,
            complete: true,
            deleted_at: None,
            deleted_after: None,
            ..note
        };
        self.set_meta(&Self::name_of(id), &note.text()).await?;
        self.write_note(&note).await?;
        drop(alone);
        self.volume(id).await?.ok_or_else(lost)
    }

    /// Begins to delete the volumes that have been in the trash for longer than `older_than`: of a large one that takes minutes. Returns those
    /// that are being deleted.
    pub(in super::super) async fn purge(
        self: &Arc<Self>,
        older_than: Duration,
        clock: u64,
    ) -> Result<Vec<String>> {
        self.ensure_there().await?;
        let mut due = Vec::new();
        let alone = self.trashing.lock().await;
        let with_snapshots = self.with_snapshots().await?;
        for note in self.notes().await? {
            let is_due = note.removing || rested(&note, clock) >= older_than;
            if note.deleted_at.is_none() || !is_due || with_snapshots.contains(&note.volume_id) {
                continue;
            }
            if !self.owns_now(&note).await? {
                continue;
            }
            due.push(note.volume_id.clone());
            self.write_note(&Note { removing: true, ..note }).await?;
        }
        drop(alone);
        if let Ok(alone) = Arc::clone(&self.removing).try_lock_owned()
            && !due.is_empty()
        {
            let (pool, ids) = (Arc::clone(self), due.clone());
            tokio::spawn(async move {
                for id in ids {
                    match pool.remove(&id).await {
                        Ok(()) => tracing::info!(volume = id, "volume purged from the trash"),
                        Err(error) => {
                            tracing::warn!(
                                volume = id,
                                error = error.chain(),
                                "volume in the trash not deleted"
                            );
                            // Ceph forgets a client that was killed after half a minute.
                            tokio::time::sleep(REMOVE_AGAIN).await;
                        }
                    }
                }
                // They may have been the last clones of a snapshot.
                pool.collect().await;
                drop(alone);
            });
        }
        Ok(due)
    }

    pub(super) async fn remove(&self, id: &str) -> Result<()> {
        let image = Self::name_of(id);
        let spec = self.spec(&image);
        let remove = ["rm", "--no-progress", &spec];
        let mut removed = self.rbd_within(&remove, LONG).await?;
        if !removed.ok && !is_absent(&removed) && self.break_locks(&image).await? {
            removed = self.rbd_within(&remove, LONG).await?;
        }
        if !removed.ok && !is_absent(&removed) {
            return Err(Client::failed(&removed));
        }
        self.remove_note(id).await
    }

    /// Lists the volumes of this host; none while the pool is away.
    pub(in super::super) async fn volumes(&self) -> Result<Vec<VolumeFacts>> {
        let mut notes = self.notes().await?;
        notes.retain(Note::is_there);
        let listed = self.listed(notes).await?;
        Ok(listed.into_iter().map(|(note, size)| self.facts_of(note, size)).collect())
    }

    /// Lists the volumes in the trash; none while the pool is away.
    pub(in super::super) async fn trashed(&self, clock: u64) -> Result<Vec<TrashedVolume>> {
        // While one is being deleted there is nothing else to do about it.
        let are_removed = self.removing.try_lock().is_err();
        let mut notes = self.notes().await?;
        notes.retain(|note| note.deleted_at.is_some() && !(note.removing && are_removed));
        let listed = self.listed(notes).await?;
        let trashed = listed.into_iter().map(|(note, size)| TrashedVolume {
            deleted_at: note.deleted_at.unwrap_or(Timestamp::UNIX_EPOCH),
            rested: rested(&note, clock),
            volume: self.facts_of(note, size),
        });
        Ok(trashed.collect())
    }

    /// Lists those volumes with these notes that are this host's still, and their sizes: 0 for one whose image is gone.
    async fn listed(&self, notes: Vec<Note>) -> Result<Vec<(Note, u64)>> {
        if notes.is_empty() || self.ensure_there().await.is_err() {
            return Ok(Vec::new());
        }
        let mut own = Vec::new();
        for note in notes {
            match self.owns(&note).await {
                Err(SystemError::PoolAway { .. }) => return Ok(Vec::new()),
                Ok(false) => {}
                Ok(true) => own.push(note),
                Err(error) => return Err(error),
            }
        }
        let place = self.spec("");
        let args = ["ls", "-l", "--format", "json", place.trim_end_matches('/')];
        let reply = match self.rbd_within(&args, LISTED_WITHIN).await {
            Err(SystemError::PoolAway { .. }) => return Ok(Vec::new()),
            reply => reply?,
        };
        if !reply.ok {
            return Err(Client::failed(&reply));
        }
        let sizes = replies::sizes(&reply.stdout).map_err(Self::not_understood)?;
        let with_size = |note: Note| {
            let size = sizes.get(&Self::name_of(&note.volume_id)).copied().unwrap_or_default();
            (note, size)
        };
        Ok(own.into_iter().map(with_size).collect())
    }

    /// Whether this host has a volume still. Another one has taken it if this one was declared gone for good, or has given its VM up: then its
    /// note here is removed. Asked once for each volume, for lists of them; before one is used, it is asked anew.
    pub(super) async fn owns(&self, note: &Note) -> Result<bool> {
        if locked(&self.own).contains(&note.volume_id) {
            return Ok(true);
        }
        let found = self.meta(&Self::name_of(&note.volume_id)).await?;
        let found = found.and_then(|text| serde_json::from_str::<Note>(&text).ok());
        if let Some(other) = found.filter(|found| found.host != note.host) {
            tracing::warn!(volume = note.volume_id, host = other.host, "volume is another host's now");
            self.remove_note(&note.volume_id).await?;
            return Ok(false);
        }
        locked(&self.own).insert(note.volume_id.clone());
        Ok(true)
    }

    /// The same by its metadata now, and not as it was seen before.
    pub(super) async fn owns_now(&self, note: &Note) -> Result<bool> {
        locked(&self.own).remove(&note.volume_id);
        self.owns(note).await
    }

    /// Whether this host has a volume now.
    pub(super) async fn is_own(&self, id: &str) -> Result<bool> {
        match self.note(id).await?.filter(Note::is_there) {
            Some(note) => self.owns_now(&note).await,
            None => Ok(false),
        }
    }

    /// Returns the size of an image. None: there is none.
    pub(super) async fn size(&self, image: &str) -> Result<Option<u64>> {
        let reply = self.rbd(&["info", "--format", "json", &self.spec(image)]).await?;
        match reply.ok {
            true => replies::size(&reply.stdout).map(Some).map_err(Self::not_understood),
            false if is_absent(&reply) => Ok(None),
            false => Err(Client::failed(&reply)),
        }
    }

    /// `size` is that of the image.
    fn facts_of(&self, note: Note, size: u64) -> VolumeFacts {
        let size = size.saturating_sub(note.header());
        let encryption = note.luks.map(|luks| Box::new(luks.key));
        VolumeFacts {
            problem: None,
            pool: self.mapping.pool.clone(),
            path: self.image(&Self::name_of(&note.volume_id)).file(),
            id: note.volume_id,
            size,
            base: note.base,
            owner: note.owner,
            format: if encryption.is_some() { Format::Luks } else { Format::Raw },
            backing: None,
            cache: Cache::Writeback,
            reserved: None,
            retained: note.retained,
            pending_snapshot: None,
            restoring: note.restoring.is_some(),
            restores: note.restores,
            encryption,
        }
    }

    fn note_path(&self, id: &str) -> PathBuf {
        self.notes.join(format!("{id}.json"))
    }

    pub(super) async fn note(&self, id: &str) -> Result<Option<Note>> {
        check_name("volume", id)?;
        let (path, id) = (self.note_path(id), id.to_owned());
        blocking(move || files::read_json(&path)?.transpose().map_err(|detail| damaged(&id, &detail))).await
    }

    /// Lists the notes that can be read.
    pub(super) async fn notes(&self) -> Result<Vec<Note>> {
        notes_in(self.notes.clone()).await
    }

    pub(super) async fn write_note(&self, note: &Note) -> Result<()> {
        let (folder, path) = (self.notes.clone(), self.note_path(&note.volume_id));
        let note = json_of(note, note.luks.as_ref());
        let write = move || {
            files::ensure_folder(&folder)?;
            files::write_json(&path, &note, 0o600)
        };
        blocking(write).await
    }

    pub(super) async fn remove_note(&self, id: &str) -> Result<()> {
        let path = self.note_path(id);
        blocking(move || files::remove_if_there(&path).map_err(failed("remove", &path))).await
    }
}

/// Checks that a volume is one that pools of Ceph have.
///
/// *Errors*: [`SystemError::Invalid`].
pub(super) fn check_plain(new: &NewVolume) -> Result<()> {
    let refusals = [
        (new.file.is_some(), "a pool of type RBD takes over no files: make an Image of the file"),
        (new.thick, "a pool of type RBD has no thick disks"),
        (new.shared, "a pool of type RBD has no disks that several VMs write to (ReadWriteMany)"),
    ];
    match refusals.into_iter().find(|(refuses, _)| *refuses) {
        Some((_, why)) => Err(SystemError::Invalid { what: "storage pool", value: new.pool.clone(), why }),
        None => Ok(()),
    }
}

/// Time in the trash by the trash's clock, which begins anew if it is lost.
fn rested(note: &Note, clock: u64) -> Duration {
    Duration::from_secs(note.deleted_after.map_or(0, |after| clock.saturating_sub(after)))
}

pub(super) fn being_made(id: &str) -> SystemError {
    let detail = "it is being made, or what an earlier attempt has left is being removed";
    SystemError::VolumeBusy { id: id.to_owned(), detail }
}

pub(super) fn damaged(id: &str, detail: &str) -> SystemError {
    SystemError::VolumeDamaged { id: id.to_owned(), detail: detail.to_owned() }
}
