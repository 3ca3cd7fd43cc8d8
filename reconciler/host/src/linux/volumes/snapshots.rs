//! Snapshots: the former file of a volume, which nothing writes any more, with a note beside it. The volume continues in
//! an overlay on it; copies are further overlays.
//!
//! ```text
//!                  note (begun)    second name of   overlay, and note     QEMU switched,    note (taken)
//!   volume's file ───────────────▶ the same file ──▶ of the volume ──────▶ first name gone ──────────────▶ snapshot
//! ```
//!
//! Once the volume's note names the overlay it is what a QEMU opens, whether or not a running one has been switched: the
//! overlay shows everything below it. Until the snapshot is finished the file below may still change. The file of a
//! snapshot is removed when it has no owner and no note, of a volume here or in the trash or of a snapshot, names it as its
//! base. While any note of the pool is unreadable nothing is removed. Files of deleted snapshots are merged with those above them,
//! see `merges`.
//!
//! Snapshots of several volumes at one moment take each step for all of them before the next one. Their volumes' notes are written
//! one after the other: a crash in between leaves volumes that continue in overlays, and others. They are of one moment as long as
//! no QEMU has written to one of these overlays; else the snapshots are not taken any more.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use berth_qemu::machine::{Backing, DiskKey, Format};
use berth_qemu::qcow2;
use jiff::Timestamp;

use super::super::files::{self, failed};
use super::super::layout::{check_name, is_name};
use super::encryption::{NewFile, format_of};
use super::note::{Base, Note};
use super::snapshot_note::SnapshotNote;
use super::{LinuxVolumes, Place, Result, SUFFIX, exists, file_name, size_of};
use crate::{MOST_SNAPSHOTS, NewSnapshot, SnapshotFacts, SystemError, Taken, VolumeFacts, VolumeOwner};

/// The backing file of a volume in `pools/<pool>/volumes/` or in the trash beside it.
pub(super) fn relative(snapshot: &str) -> Backing {
    let file = Path::new("../snapshots").join(format!("{snapshot}{SUFFIX}"));
    Backing { file, format: Format::Qcow2, backing: None }
}

/// The paths of one snapshot.
pub(super) struct SnapshotPlace {
    pub(super) id: String,
    pub(super) file: PathBuf,
    pub(super) note: PathBuf,
}

impl SnapshotPlace {
    fn damaged(&self, detail: &str) -> SystemError {
        SystemError::VolumeDamaged { id: self.id.clone(), detail: detail.to_owned() }
    }

    pub(super) fn read(&self) -> Result<Option<SnapshotNote>> {
        SnapshotNote::read(&self.note)?.transpose().map_err(|detail| self.damaged(&detail))
    }

    pub(super) fn size(&self) -> Result<u64> {
        size_of(&self.file).map_err(|detail| self.damaged(&detail))
    }
}

/// A volume, or another snapshot, that is based on a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum User {
    Volume,
    Snapshot(String),
}

/// A snapshot that is being begun with others, and its volume.
struct Part<'a> {
    new: &'a NewSnapshot,
    place: Place,
    volume: Note,
    snapshot: SnapshotPlace,
    note: SnapshotNote,
}

impl Part<'_> {
    fn is_taken(&self) -> bool {
        self.note.taken.is_some()
    }

    /// Whether the volume continues in the overlay already.
    fn has_continued(&self) -> bool {
        self.is_taken() || self.volume.generation != self.note.generation
    }
}

impl LinuxVolumes {
    pub(super) fn snapshot_place(&self, pool: &str, id: &str) -> Result<SnapshotPlace> {
        check_name("pool", pool)?;
        check_name("snapshot", id)?;
        self.pool_folders.ensure_there(pool)?;
        let folder = self.layout.snapshots(pool);
        Ok(SnapshotPlace {
            id: id.to_owned(),
            file: folder.join(format!("{id}{SUFFIX}")),
            note: folder.join(format!("{id}.json")),
        })
    }

    pub(in super::super) fn snapshot(&self, pool: &str, id: &str) -> Result<Option<SnapshotFacts>> {
        let place = self.snapshot_place(pool, id)?;
        let Some(note) = place.read()?.filter(|note| note.merge.is_none()) else {
            // Once more: its file system may have been unmounted meanwhile.
            return self.pool_folders.ensure_there(pool).map(|()| None);
        };
        let size = match &note.taken {
            Some(_) if !exists(&place.file)? => {
                self.pool_folders.ensure_there(pool)?;
                return Err(SystemError::SnapshotLost { id: id.to_owned() });
            }
            Some(_) => place.size()?,
            // Begun, and perhaps no file yet.
            None => size_of(&place.file).unwrap_or(0),
        };
        Ok(Some(SnapshotFacts {
            owner: note.owner_here().cloned(),
            encryption: note.encryption.map(Box::new),
            pool: pool.to_owned(),
            id: id.to_owned(),
            volume: note.volume_id,
            size,
            taken: note.taken,
        }))
    }

    /// Returns the size of a snapshot that a new volume can be based on.
    pub(super) fn finished_size(&self, pool: &str, id: &str) -> Result<u64> {
        self.finished(pool, id).map(|found| found.size)
    }

    /// Returns a snapshot that a new volume can be based on.
    pub(super) fn finished(&self, pool: &str, id: &str) -> Result<SnapshotFacts> {
        let found = self.snapshot(pool, id)?.filter(|snapshot| snapshot.taken.is_some());
        found.ok_or_else(|| SystemError::SnapshotLost { id: id.to_owned() })
    }

    /// Returns the file of a snapshot that is taken, with those below it.
    pub(in super::super) fn chain_of_snapshot(&self, pool: &str, id: &str) -> Result<Backing> {
        self.finished_size(pool, id)?;
        let chain = self.chain(pool, None, Some(id));
        let (backing, _) =
            chain.map_err(|detail| SystemError::VolumeDamaged { id: id.to_owned(), detail })?;
        backing.ok_or_else(|| SystemError::SnapshotLost { id: id.to_owned() })
    }

    pub(in super::super) fn begin_snapshots(&self, new: &[NewSnapshot]) -> Result<Vec<VolumeFacts>> {
        let _chains = self.lock(&super::chains::pools_of(new))?;
        let parts = new.iter().map(|new| self.part(new)).collect::<Result<Vec<_>>>()?;
        let (continued, others): (Vec<&Part<'_>>, Vec<&Part<'_>>) =
            parts.iter().partition(|part| part.has_continued());
        if !others.is_empty() {
            // A crash came between the notes of the volumes.
            for part in &continued {
                if part.is_taken() || !is_unwritten(&part.place)? {
                    return Err(SystemError::NotOneMoment { id: part.place.id.clone() });
                }
            }
        }
        let prepared = others.iter().map(|part| self.prepare(part)).collect::<Result<Vec<Note>>>();
        let notes = match prepared {
            Ok(notes) => notes,
            Err(error) => {
                self.give_up(&others);
                return Err(error);
            }
        };
        let mut written = others.iter().zip(notes);
        written
            .try_for_each(|(part, note)| note.write(&part.place.note))
            .inspect_err(|_| self.give_up(&others))?;
        for part in continued.into_iter().filter(|part| !part.is_taken()) {
            // The file below may have grown while a QEMU still had it open.
            match qcow2::grow(&part.place.file, part.snapshot.size()?) {
                // The QEMU that has the overlay open has all of it.
                Ok(()) | Err(qcow2::ImageError::InUse { .. } | qcow2::ImageError::Shrink { .. }) => {}
                Err(error) => return Err(part.place.refused(error)),
            }
        }
        let facts = |new: &NewSnapshot| {
            let found = self.volume(&new.pool, &new.volume)?;
            found.ok_or_else(|| SystemError::VolumeLost { id: new.volume.clone() })
        };
        new.iter().map(facts).collect()
    }

    pub(in super::super) fn check_snapshots(&self, new: &[NewSnapshot]) -> Result<()> {
        let _chains = self.lock(&super::chains::pools_of(new))?;
        new.iter().try_for_each(|new| self.part(new).map(drop))
    }

    pub(in super::super) fn is_as_in_snapshot(
        &self,
        pool: &str,
        volume: &str,
        snapshot: &str,
    ) -> Result<bool> {
        let _chains = self.lock(&[pool])?;
        let place = self.place(pool, volume)?;
        let note = Note::read(&place.note)?.transpose().map_err(|detail| place.damaged(&detail))?;
        match note.is_some_and(|note| note.snapshot.as_deref() == Some(snapshot)) {
            true => is_unwritten(&place),
            false => Ok(false),
        }
    }

    /// Reads what there is of a snapshot, and checks that it can be begun or continued.
    fn part<'a>(&self, new: &'a NewSnapshot) -> Result<Part<'a>> {
        let snapshot = self.snapshot_place(&new.pool, &new.id)?;
        let lost = || SystemError::VolumeLost { id: new.volume.clone() };
        let place = self.place(&new.pool, &new.volume)?;
        self.volume(&new.pool, &new.volume)?.ok_or_else(lost)?.ensure_qcow2()?;
        let volume = Note::read(&place.note)?.ok_or_else(lost)?.map_err(|detail| place.damaged(&detail))?;
        let note = match snapshot.read()? {
            Some(note) if note.merge.is_some() => {
                let detail = "the file of a deleted snapshot of this identity is being merged";
                return Err(SystemError::VolumeBusy { id: new.volume.clone(), detail });
            }
            Some(note) if note.taken.is_some() => note,
            Some(note) if note.volume_id != new.volume => {
                return Err(snapshot.damaged("it was begun of another volume"));
            }
            Some(note)
                if volume.generation != note.generation
                    && volume.pending_snapshot.as_deref() != Some(new.id.as_str()) =>
            {
                return Err(snapshot.damaged("its volume has continued without it"));
            }
            Some(note) => note,
            None => {
                if volume.pending_snapshot.is_some() {
                    let detail = "another snapshot of it is being taken";
                    return Err(SystemError::VolumeBusy { id: new.volume.clone(), detail });
                }
                if self.depth(&new.pool, &volume)? >= MOST_SNAPSHOTS {
                    return Err(SystemError::TooManySnapshots {
                        id: new.volume.clone(),
                        most: MOST_SNAPSHOTS,
                    });
                }
                SnapshotNote::new(new, &volume)
            }
        };
        let part = Part { new, place, volume, snapshot, note };
        let is_foreign = !part.has_continued()
            && exists(&part.snapshot.file)?
            && identity(&part.place.file)? != identity(&part.snapshot.file)?;
        match is_foreign {
            true => Err(part.snapshot.damaged("a file of this name is there, which berth did not make")),
            false => Ok(part),
        }
    }

    /// Gives the volume's file a second name, as the snapshot's, and makes an overlay on it. Returns the note with which the volume
    /// continues in it.
    fn prepare(&self, part: &Part<'_>) -> Result<Note> {
        let Part { new, place, volume, snapshot, note } = part;
        files::ensure_private_folder(&self.layout.snapshots(&new.pool))?;
        note.write(&snapshot.note)?;
        match fs::hard_link(&place.file, &snapshot.file) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            linked => linked.map_err(failed("link", &snapshot.file))?,
        }
        files::sync_parent(&snapshot.file).map_err(failed("write", &snapshot.file))?;
        let overlay = self.overlay_of(&new.pool, note);
        // A crash left it: no note names it, so nothing has opened it.
        files::remove_if_there(&overlay).map_err(failed("remove", &overlay))?;
        let backing = relative(&snapshot.id);
        let encryption = volume.encryption.as_ref();
        let new = NewFile { size: snapshot.size()?, backing: Some(&backing), encryption };
        self.create_file(place, &overlay, new)?;
        files::give(&overlay, self.owner.as_ref())?;
        files::sync_parent(&overlay).map_err(failed("write", &overlay))?;
        Ok(Note {
            base: None,
            snapshot: Some(snapshot.id.clone()),
            generation: note.generation + 1,
            pending_snapshot: Some(snapshot.id.clone()),
            // The overlay has no space reserved yet.
            reserved: volume.reserved.map(|_| 0),
            ..volume.clone()
        })
    }

    /// Returns the file in which a volume continues after a snapshot of it.
    fn overlay_of(&self, pool: &str, note: &SnapshotNote) -> PathBuf {
        self.layout.volumes(pool).join(file_name(&note.volume_id, note.generation + 1))
    }

    /// Removes what there is of those of these snapshots whose volumes have not continued. Best effort: a later call, the deletion of the
    /// snapshot, or the next agent finds what is left.
    fn give_up(&self, parts: &[&Part<'_>]) {
        for part in parts {
            let volume = Note::read(&part.place.note).ok().flatten().and_then(std::result::Result::ok);
            if volume.is_some_and(|volume| volume.generation == part.note.generation) {
                let _ = self.discard(&part.new.pool, &part.note, &part.snapshot);
            }
        }
    }

    /// Removes what there is of a snapshot that was begun, while the volume still is the file that would have become the snapshot.
    fn discard(&self, pool: &str, note: &SnapshotNote, snapshot: &SnapshotPlace) -> Result<()> {
        for file in [&self.overlay_of(pool, note), &snapshot.file, &snapshot.note] {
            files::remove_if_there(file).map_err(failed("remove", file))?;
        }
        Ok(())
    }

    /// Records that a snapshot was taken: its volume continues in the overlay, and nothing writes to its file any more.
    fn freeze(
        &self,
        pool: &str,
        place: &SnapshotPlace,
        note: SnapshotNote,
        taken: Taken,
    ) -> Result<SnapshotNote> {
        files::freeze(&place.file)?;
        let former = self.layout.volumes(pool).join(file_name(&note.volume_id, note.generation));
        files::remove_if_there(&former).map_err(failed("remove", &former))?;
        files::sync_parent(&former).map_err(failed("write", &former))?;
        let note = SnapshotNote { taken: Some(taken), ..note };
        note.write(&place.note)?;
        Ok(note)
    }

    pub(in super::super) fn finish_snapshot(
        &self,
        pool: &str,
        id: &str,
        taken: &Taken,
    ) -> Result<SnapshotFacts> {
        let _chains = self.lock(&[pool])?;
        let snapshot = self.snapshot_place(pool, id)?;
        let lost = || SystemError::SnapshotLost { id: id.to_owned() };
        let mut note = snapshot.read()?.ok_or_else(lost)?;
        let place = self.place(pool, &note.volume_id)?;
        let volume = Note::read(&place.note)?.transpose().map_err(|detail| place.damaged(&detail))?;
        if note.taken.is_none() {
            let continues = |volume: &Note| volume.generation > note.generation;
            if !volume.as_ref().is_none_or(continues) || !exists(&snapshot.file)? {
                return Err(snapshot.damaged("it was not begun"));
            }
            if is_written(&snapshot.file)? {
                let detail = "a running QEMU has not been switched to its new file";
                return Err(SystemError::VolumeBusy { id: note.volume_id, detail });
            }
            if may_be_written(&snapshot.file)? {
                let detail = "a QEMU that an earlier version started has its former file open for writing: stop and \
                              start the VM";
                return Err(SystemError::VolumeBusy { id: note.volume_id, detail });
            }
            note = self.freeze(pool, &snapshot, note, taken.clone())?;
            tracing::info!(snapshot = id, volume = note.volume_id, "snapshot taken");
        }
        if let Some(volume) = volume.filter(|v| v.pending_snapshot.as_deref() == Some(id)) {
            Note { pending_snapshot: None, ..volume }.write(&place.note)?;
        }
        self.snapshot(pool, id)?.ok_or_else(lost)
    }

    pub(in super::super) fn hand_over_snapshot(
        &self,
        pool: &str,
        id: &str,
        owner: &VolumeOwner,
    ) -> Result<()> {
        let _chains = self.lock(&[pool])?;
        let place = self.snapshot_place(pool, id)?;
        let note = place.read()?.filter(|note| note.merge.is_none() && note.owner_here().is_some());
        let note = note.ok_or_else(|| SystemError::SnapshotLost { id: id.to_owned() })?;
        SnapshotNote { owner: Some(owner.clone()), ..note }.write(&place.note)
    }

    pub(in super::super) fn delete_snapshot(&self, pool: &str, id: &str) -> Result<()> {
        let _chains = self.lock(&[pool])?;
        let place = self.snapshot_place(pool, id)?;
        let Some(note) = place.read()? else { return Ok(()) };
        if note.taken.is_some() {
            SnapshotNote { owner: None, ..note }.write(&place.note)?;
            return self.collect_snapshots(pool);
        }
        let of = self.place(pool, &note.volume_id)?;
        let volume = Note::read(&of.note)?.transpose().map_err(|detail| of.damaged(&detail))?;
        if volume.as_ref().is_some_and(|v| v.generation != note.generation) {
            let detail = "the snapshot has to be finished first";
            return Err(SystemError::VolumeBusy { id: note.volume_id, detail });
        }
        let trashed = Note::read(&of.trashed_note)?.filter(|_| volume.is_none());
        let trashed = trashed.transpose().map_err(|detail| of.damaged(&detail))?;
        if trashed.is_some_and(|volume| volume.generation != note.generation) {
            // The volume was moved to the trash before the snapshot was finished, and is based on it there.
            let taken = Taken { at: Timestamp::now(), frozen: false, memory: false };
            self.freeze(pool, &place, SnapshotNote { owner: None, ..note }, taken)?;
            return self.collect_snapshots(pool);
        }
        self.discard(pool, &note, &place)
    }

    /// Removes the snapshots that nothing owns and nothing is based on. The caller holds the lock.
    pub(super) fn collect_snapshots(&self, pool: &str) -> Result<()> {
        loop {
            let Some(users) = self.snapshot_users(pool)? else {
                tracing::warn!(pool, "a note is unreadable: no file of a snapshot is removed");
                return Ok(());
            };
            let mut removed = false;
            for id in self.snapshot_ids(pool)? {
                let place = self.snapshot_place(pool, &id)?;
                let Some(note) = place.read()? else { continue };
                if note.taken.is_none() || note.owner.is_some() || users.contains_key(&id) {
                    continue;
                }
                files::remove_if_there(&place.file).map_err(failed("delete", &place.file))?;
                files::remove_if_there(&place.note).map_err(failed("remove", &place.note))?;
                tracing::info!(snapshot = id, "snapshot deleted");
                removed = true;
            }
            if !removed {
                return Ok(());
            }
        }
    }

    /// Returns the snapshots that a volume, here or in the trash, or a snapshot is based on, with these. None: a note is unreadable.
    pub(super) fn snapshot_users(&self, pool: &str) -> Result<Option<BTreeMap<String, Vec<User>>>> {
        let mut users: BTreeMap<String, Vec<User>> = BTreeMap::new();
        for folder in [self.layout.volumes(pool), self.layout.trash(pool)] {
            for name in files::names(&folder)?.iter().filter(|n| n.ends_with(".json") && !is_unfinished(n)) {
                match Note::read(&folder.join(name))? {
                    Some(Ok(note)) => note
                        .snapshots()
                        .for_each(|id| users.entry(id.clone()).or_default().push(User::Volume)),
                    Some(Err(_)) => return Ok(None),
                    None => {}
                }
            }
        }
        for id in self.snapshot_ids(pool)? {
            match SnapshotNote::read(&self.snapshot_place(pool, &id)?.note)? {
                Some(Ok(note)) => note
                    .snapshot
                    .into_iter()
                    .for_each(|below| users.entry(below).or_default().push(User::Snapshot(id.clone()))),
                Some(Err(_)) => return Ok(None),
                None => {}
            }
        }
        Ok(Some(users))
    }

    /// Whether a snapshot of the volume is begun and not finished, also one that its note does not name yet.
    pub(super) fn is_being_taken(&self, pool: &str, volume: &str) -> Result<bool> {
        for id in self.snapshot_ids(pool)? {
            let note = self.snapshot_place(pool, &id)?.read()?;
            if note.is_some_and(|note| note.volume_id == volume && note.taken.is_none()) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    pub(super) fn snapshot_ids(&self, pool: &str) -> Result<Vec<String>> {
        let names = files::names(&self.layout.snapshots(pool))?;
        let ids = names.iter().filter_map(|name| name.strip_suffix(".json")).filter(|id| is_name(id));
        Ok(ids.map(str::to_owned).collect())
    }

    /// Returns a snapshot of the pool that is based on this image. One with an unreadable note may be.
    pub(super) fn snapshot_based_on(&self, pool: &str, digest: &str) -> Result<Option<String>> {
        for id in self.snapshot_ids(pool)? {
            match SnapshotNote::read(&self.snapshot_place(pool, &id)?.note)? {
                Some(Ok(note)) if note.base.as_ref().is_none_or(|base| base.digest != digest) => {}
                Some(_) => return Ok(Some(id)),
                None => {}
            }
        }
        Ok(None)
    }

    /// Returns the files below a volume, and the image at the bottom. The error is for people.
    pub(super) fn chain(
        &self,
        pool: &str,
        base: Option<&Base>,
        snapshot: Option<&str>,
    ) -> std::result::Result<(Option<Backing>, Option<String>), String> {
        let mut files = Vec::new();
        let (mut base, mut snapshot) = (base.cloned(), snapshot.map(str::to_owned));
        while let Some(id) = snapshot {
            if files.len() > MOST_SNAPSHOTS {
                return Err(format!("there are more than {MOST_SNAPSHOTS} snapshots below it"));
            }
            let place = self.snapshot_place(pool, &id).map_err(|error| error.chain())?;
            let note = place.read().map_err(|error| error.chain())?;
            let note = note.ok_or_else(|| format!("snapshot {id}, which it is based on, is gone"))?;
            // A crash came after the file got the name of the one above it.
            if !note.is_renamed(&place.file).map_err(|error| error.chain())? {
                files.push((place.file, format_of(note.encryption.as_ref())));
            }
            (base, snapshot) = (note.base, note.snapshot);
        }
        files.extend(base.as_ref().map(|base| (self.layout.image(&base.digest), base.format)));
        let backing = files
            .into_iter()
            .rev()
            .fold(None, |below, (file, format)| Some(Backing { file, format, backing: below.map(Box::new) }));
        Ok((backing, base.map(|base| base.digest)))
    }

    /// Returns the key of a snapshot that is taken. None: it is not encrypted.
    pub(in super::super) fn key_of_snapshot(&self, pool: &str, id: &str) -> Result<Option<DiskKey>> {
        let Some(note) = self.snapshot_place(pool, id)?.read()? else { return Ok(None) };
        self.keys.key_of_snapshot(id, note.owner.is_some(), note.encryption.as_ref())
    }

    /// Returns the key of a snapshot's file, which any volume, snapshot or copy may hold that has the same. None: it is not encrypted.
    pub(super) fn shared_key_of_snapshot(&self, at: &SnapshotPlace) -> Result<Option<DiskKey>> {
        self.keys.shared_key_of(&at.id, at.read()?.and_then(|note| note.encryption).as_ref())
    }

    fn depth(&self, pool: &str, volume: &Note) -> Result<usize> {
        let mut depth = 0;
        let mut next = volume.snapshot.clone();
        while let Some(id) = next.filter(|_| depth <= MOST_SNAPSHOTS) {
            depth += 1;
            next = self.snapshot_place(pool, &id)?.read()?.and_then(|note| note.snapshot);
        }
        Ok(depth)
    }
}

fn is_unfinished(name: &str) -> bool {
    name.starts_with(files::UNFINISHED)
}

fn identity(path: &Path) -> Result<(u64, u64)> {
    fs::metadata(path).map(|m| (m.dev(), m.ino())).map_err(failed("look at", path))
}

/// Whether nothing was written to the volume's present file.
fn is_unwritten(place: &Place) -> Result<bool> {
    let mut file = File::open(&place.file).map_err(failed("open", &place.file))?;
    qcow2::is_unwritten(&mut file).map_err(|error| place.damaged(&error.to_string()))
}

/// Whether a process has the file open for writing, whether or not it writes. False on a file system without leases.
fn may_be_written(path: &Path) -> Result<bool> {
    let file = File::open(path).map_err(failed("open", path))?;
    // The kernel grants a lease for reading only while nothing has the file open for writing.
    let granted = set_lease(&file, libc::F_RDLCK);
    if granted.is_ok() {
        // Closing the file ends it as well.
        let _ = set_lease(&file, libc::F_UNLCK);
    }
    Ok(granted == Err(nix::errno::Errno::EAGAIN))
}

#[allow(unsafe_code, reason = "leases are not in nix")]
fn set_lease(file: &File, kind: libc::c_int) -> nix::Result<libc::c_int> {
    use std::os::fd::AsRawFd;
    // SAFETY: the descriptor is open, and the command takes a number.
    nix::errno::Errno::result(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, kind) })
}

/// Whether a QEMU writes to the file: it holds the lock of the byte for that permission.
pub(super) fn is_written(path: &Path) -> Result<bool> {
    const WRITE: libc::off_t = 100 + 1;
    let file = File::open(path).map_err(failed("open", path))?;
    let mut lock = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: WRITE,
        l_len: 1,
        l_pid: 0,
    };
    nix::fcntl::fcntl(&file, nix::fcntl::FcntlArg::F_OFD_GETLK(&mut lock))
        .map_err(|errno| failed("read the locks of", path)(errno.into()))?;
    Ok(lock.l_type != libc::F_UNLCK as libc::c_short)
}

#[cfg(test)]
impl LinuxVolumes {
    pub(in super::super) fn begin_snapshot(&self, new: &NewSnapshot) -> Result<VolumeFacts> {
        Ok(self.begin_snapshots(std::slice::from_ref(new))?.remove(0))
    }
}

#[cfg(test)]
#[path = "snapshot_tests.rs"]
pub(super) mod tests;
