//! Moves: a volume, with the data of the files below it and with its snapshots, goes to another pool of this host.
//!
//! ```text
//!                copied, compared     note in the target      named as the volume's      note here: moved     file, note gone
//!   volume here ─────────────────▶ ○ ───────────────────▶ ○ ─────────────────────▶ ○ ──────────────────▶ ● ────────────────▶ volume there
//! ```
//!
//! The note of the volume in its former pool is the one step that counts: before it the volume is here, and what the target has of it is
//! removed; after it the volume is there, and what is left here is removed. A volume on the same file system gets a second name instead
//! of a copy. A copy that shares its data with the original, where the file system can do that, is not compared.
//!
//! The files of its snapshots, and of others below it, are copied as they are, under the same identities. Its own snapshots go with it, see
//! `moved_snapshots`; those of other volumes stay in their pool, and the copies of their files have no owner and are merged like those of
//! deleted ones. A snapshot that the target has already is the base there: its data is the same. Files are copied as bytes, so that no key
//! of an encrypted one is needed, and no byte of a guest is interpreted.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use berth_qemu::qcow2::ImageLock;
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, PosixFadviseAdvice, fallocate, posix_fadvise};
use nix::unistd::{Whence, lseek};

use super::super::files::{self, failed};
use super::super::layout::{check_name, is_name};
use super::super::reflink;
use super::copying::{CHANGED, CopyingGuard, busy};
use super::moved_snapshots::SnapshotFiles;
use super::note::Note;
use super::snapshot_note::SnapshotNote;
use super::space::with_tables;
use super::{LinuxVolumes, Place, Result, exists, file_name};
use crate::{NewMove, SystemError};

/// The end of the names of files that are not whole.
const PARTIAL: &str = ".moved.qcow2";
/// The same of files that come from another host, see `fetched`.
pub(super) const FETCHED: &str = ".fetched.qcow2";
/// The bytes of one step, after which the work can be ended.
const STEP: u64 = 64 << 20;
const BUFFER: u64 = 1 << 20;
/// Room for the host's notes beside the data.
const MARGIN: u64 = 16 << 20;

const SNAPSHOT_PENDING: &str = "a snapshot of it is being taken";
const UNSETTLED: &str = "files of its last move are being removed: it is moved afterwards";

/// A volume that can be moved.
pub(super) struct Movable {
    pub(super) place: Place,
    pub(super) target: Place,
    pub(super) note: Note,
    snapshots: SnapshotFiles,
}

/// A file that is copied.
#[derive(Debug)]
struct Part {
    /// The snapshot that it is the file of. None: it is the file of the volume.
    snapshot: Option<(String, SnapshotNote)>,
    path: PathBuf,
    source: File,
    before: Identity,
    /// None: the partial file is a second name of the source.
    copy: Option<File>,
    /// Whether the copy has its data in common with the source.
    is_clone: bool,
    partial: PathBuf,
    to: PathBuf,
}

/// What changes when a file is replaced or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
    length: u64,
    modified: (i64, i64),
}

/// A move that is begun. Dropping it removes what is not whole.
#[derive(Debug)]
pub(in super::super) struct Move {
    new: NewMove,
    note: Note,
    /// The snapshots of the target that these files are based on there.
    reused: BTreeSet<String>,
    /// Each file after the one that it is based on, that of the volume last.
    parts: Vec<Part>,
    current: usize,
    at: u64,
    /// Whether the present file is read back: it is copied.
    compares: bool,
    done: u64,
    total: u64,
    _copying: CopyingGuard,
    /// No QEMU opens the volume meanwhile.
    _lock: ImageLock,
}

impl Drop for Move {
    fn drop(&mut self) {
        for part in &self.parts {
            // Best effort: the next start of the agent, or the next move of the volume, removes it too.
            let _ = fs::remove_file(&part.partial);
        }
    }
}

impl LinuxVolumes {
    /// Returns the pool, of those that are there, that has this volume.
    pub(in super::super) fn pool_of_volume(&self, id: &str) -> Result<Option<String>> {
        check_name("volume", id)?;
        for pool in self.pools()? {
            let note = self.layout.volumes(&pool).join(format!("{id}.json"));
            if exists(&note)? && matches!(self.volume(&pool, id), Ok(Some(_))) {
                return Ok(Some(pool));
            }
        }
        Ok(None)
    }

    /// Whether the volume of this note in this pool is in another one: it was moved there, or it was not moved here yet.
    pub(super) fn is_elsewhere(&self, pool: &str, id: &str, note: &Note) -> Result<bool> {
        if let Some(to) = &note.moved_to {
            return self.pool_folders.ensure_there(to).map(|()| true);
        }
        let Some(from) = &note.moved_from else { return Ok(false) };
        match Note::read(&self.place(from, id)?.note)? {
            // It may have moved to a third pool instead.
            Some(former) => Ok(!former.is_ok_and(|former| former.moved_to.as_deref() == Some(pool))),
            None if note.mirrored => Ok(true),
            None => self.is_in_another(pool, id),
        }
    }

    /// Whether a pool other than this one has the volume without any move.
    ///
    /// *Errors*: [`SystemError::PoolAway`] if one is away: it may have it.
    fn is_in_another(&self, pool: &str, id: &str) -> Result<bool> {
        for other in self.layout.pool_names()?.iter().filter(|other| *other != pool) {
            self.pool_folders.ensure_there(other)?;
            let note = Note::read(&self.layout.volumes(other).join(format!("{id}.json")))?;
            if note.is_some_and(|note| note.is_ok_and(|note| note.is_settled())) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    pub(in super::super) fn check_move(&self, new: &NewMove) -> Result<()> {
        // Nothing else removes what its last move has left.
        self.settle_with_lock(&new.from, &new.id)?;
        let _chains = self.lock(&[&new.from, &new.to])?;
        if self.volume(&new.to, &new.id)?.is_some() {
            return Ok(());
        }
        self.check_room(new, &self.movable(new)?)
    }

    /// None: the volume is in the target already.
    pub(in super::super) fn begin_move(&self, new: &NewMove) -> Result<Option<Move>> {
        self.settle_with_lock(&new.from, &new.id)?;
        let _chains = self.lock(&[&new.from, &new.to])?;
        if self.volume(&new.to, &new.id)?.is_some() {
            return Ok(None);
        }
        self.remove_partial(&new.to, &format!(".{}{PARTIAL}", new.id))?;
        self.settle_volume(&new.to, &new.id)?;
        let movable = self.movable(new)?;
        self.check_room(new, &movable)?;
        let Movable { place, target, note, snapshots } = movable;
        if exists(&target.note)? || exists(&target.file)? {
            return Err(target.damaged("a file of this name is in the target, which berth did not make"));
        }
        files::ensure_folder(&self.layout.volumes(&new.to))?;
        let open = OpenOptions::new().read(true).write(true).open(&place.file);
        let lock = ImageLock::new(open.map_err(failed("open", &place.file))?);
        let lock = lock.map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => busy(new, "a running QEMU has it open"),
            _ => failed("lock", &place.file)(error),
        })?;
        let copying = self.copying.add(snapshots.ids());
        let SnapshotFiles { copied, reused } = snapshots;
        let mut begun = Move {
            new: new.clone(),
            note,
            reused,
            parts: Vec::new(),
            current: 0,
            at: 0,
            compares: false,
            done: 0,
            total: 0,
            _copying: copying,
            _lock: lock,
        };
        if !copied.is_empty() {
            files::ensure_private_folder(&self.layout.snapshots(&new.to))?;
        }
        for (at, note) in copied {
            let to = self.snapshot_place(&new.to, &at.id)?.file;
            let partial = to.with_file_name(format!("{}{}.{}{PARTIAL}", files::UNFINISHED, at.id, new.id));
            begun.parts.push(Part::copied(at.file, partial, to, Some((at.id, note)), true)?);
        }
        begun.parts.push(self.own_part(new, &place, &begun.note)?);
        begun.reserve()?;
        begun.total = begun.parts.iter().map(Part::bytes).sum::<Result<u64>>()?.saturating_mul(2);
        Ok(Some(begun))
    }

    /// Returns the part that is the file of the volume: on the same file system a second name of it.
    fn own_part(&self, new: &NewMove, place: &Place, note: &Note) -> Result<Part> {
        let folder = self.layout.volumes(&new.to);
        let partial = folder.join(format!("{}{}{PARTIAL}", files::UNFINISHED, new.id));
        let to = folder.join(file_name(&new.id, note.generation));
        match fs::hard_link(&place.file, &partial) {
            Ok(()) => Part::new(place.file.clone(), partial, to, None, None),
            // Another file system, or one without links. Reserved space is not in common with another file.
            Err(_) => Part::copied(place.file.clone(), partial, to, None, note.reserved.is_none()),
        }
    }

    /// Checks that a volume can be moved, and collects its files. The caller holds the lock.
    pub(super) fn movable(&self, new: &NewMove) -> Result<Movable> {
        let (place, target) = (self.place(&new.from, &new.id)?, self.place(&new.to, &new.id)?);
        let lost = || SystemError::VolumeLost { id: new.id.clone() };
        self.volume(&new.from, &new.id)?.ok_or_else(lost)?.ensure_qcow2()?;
        let note = Note::read(&place.note)?.ok_or_else(lost)?.map_err(|detail| place.damaged(&detail))?;
        if note.pending_snapshot.is_some() || self.is_being_taken(&new.from, &new.id)? {
            return Err(busy(new, SNAPSHOT_PENDING));
        }
        if note.former.is_some() {
            return Err(busy(new, "the data from before its restore is being moved to the trash"));
        }
        if exists(&target.trashed_file)? {
            return Err(target.damaged("the trash of the target has a file of it"));
        }
        if note.moved_from.is_some() {
            return Err(busy(new, UNSETTLED));
        }
        let snapshots = self.snapshot_files(new, &note)?;
        Ok(Movable { place, target, note, snapshots })
    }

    /// Checks that the target has room for the files.
    pub(super) fn check_room(&self, new: &NewMove, movable: &Movable) -> Result<()> {
        let folder = self.layout.volumes(&new.to);
        let folder = folder.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("/"));
        let about = |path: &Path| fs::metadata(path).map_err(failed("look at", path));
        let own = about(&movable.place.file)?;
        let mut needed = match own.dev() == about(folder)?.dev() {
            true => 0,
            false => (own.blocks() * 512).max(movable.note.reserved.map_or(0, with_tables)),
        };
        for (at, _) in &movable.snapshots.copied {
            needed = needed.saturating_add(about(&at.file)?.blocks() * 512);
        }
        let free = files::space(folder).map_err(failed("read the free space of", folder))?.free;
        if needed == 0 || needed.saturating_add(MARGIN) <= free {
            return Ok(());
        }
        let what = format!("volume {} in the pool {}", new.id, new.to);
        Err(SystemError::NoSpace { what, needed: needed.saturating_add(MARGIN), free })
    }

    /// Makes the copy the volume, and removes the former files.
    pub(in super::super) fn finish_move(&self, begun: &Move) -> Result<()> {
        let _chains = self.lock(&[&begun.new.from, &begun.new.to])?;
        let new = &begun.new;
        let place = self.place(&new.from, &new.id)?;
        let lost = || SystemError::VolumeLost { id: new.id.clone() };
        let now = Note::read(&place.note)?.ok_or_else(lost)?.map_err(|detail| place.damaged(&detail))?;
        if !now.has_files_of(&begun.note) || self.is_being_taken(&new.from, &new.id)? {
            return Err(busy(new, CHANGED));
        }
        for part in &begun.parts {
            if Identity::of(&part.path)? != part.before {
                return Err(busy(new, CHANGED));
            }
        }
        for reused in &begun.reused {
            self.finished(&new.to, reused)?;
        }
        self.commit(begun, now, &place).inspect_err(|_| {
            // Best effort: the next move, or the next start of the agent, does it too.
            let _ = self.settle_volume(&new.to, &new.id);
        })?;
        tracing::info!(volume = new.id, from = new.from, to = new.to, "volume moved to another pool");
        if let Err(error) = self.settle_volume(&new.from, &new.id) {
            tracing::warn!(volume = new.id, error = error.chain(), "the former files of a volume are left");
        }
        Ok(())
    }

    fn commit(&self, begun: &Move, now: Note, place: &Place) -> Result<()> {
        let new = &begun.new;
        let target = self.layout.volumes(&new.to).join(format!("{}.json", new.id));
        // First the note: a file without one would be foreign.
        let arriving =
            Note { moved_from: Some(new.from.clone()), moved_to: None, complete: true, ..now.clone() };
        arriving.write(&target)?;
        for part in &begun.parts {
            if let Some((id, note)) = &part.snapshot {
                let at = self.snapshot_place(&new.to, id)?;
                // Another volume on the same snapshot was moved meanwhile.
                if exists(&at.note)? {
                    self.finished(&new.to, id)?;
                    continue;
                }
                SnapshotNote { owner: None, ..note.clone() }.write(&at.note)?;
                files::freeze(&part.partial)?;
            } else {
                files::give(&part.partial, self.owner.as_ref())?;
            }
            fs::rename(&part.partial, &part.to).map_err(failed("rename", &part.partial))?;
            files::sync_parent(&part.to).map_err(failed("write", &part.to))?;
        }
        self.announce_snapshots(new)?;
        Note { moved_to: Some(new.to.clone()), moved_from: None, ..now }.write(&place.note)
    }

    /// Removes what a move has left of a volume in a pool that does not have it, or has not got it. The caller holds the lock.
    pub(super) fn settle_volume(&self, pool: &str, id: &str) -> Result<()> {
        let place = self.place(pool, id)?;
        let Some(Ok(note)) = Note::read(&place.note)? else { return Ok(()) };
        if note.moved_to.is_none() && note.moved_from.is_none() {
            return Ok(());
        }
        if !self.is_elsewhere(pool, id, &note)? {
            let former = note.moved_from.as_deref().map(|from| self.place(from, id)).transpose()?;
            if let Some(former) = former {
                if exists(&former.note)? {
                    // Together with its snapshots, which are not here without the notes there.
                    return self.settle_volume(&former.pool, id);
                }
                self.adopt_announced_snapshots(&former.pool, pool, id)?;
            }
            return self.settle_arrival(pool, id);
        }
        // A file is removed only while there is another one.
        let Some(other) = self.pool_of_volume(id)? else { return Ok(()) };
        if note.moved_to.is_some() {
            // First the snapshots: a volume whose arrival is settled can move on, and they with it.
            self.settle_snapshots(pool, &other, id)?;
            self.settle_arrival(&other, id)?;
        } else {
            self.ensure_not_mirrored(&place, &other)?;
            self.drop_announced_snapshots(pool, id)?;
        }
        files::remove_if_there(&place.file).map_err(failed("delete", &place.file))?;
        files::sync_parent(&place.file).map_err(failed("write", &place.file))?;
        files::remove_if_there(&place.note).map_err(failed("remove", &place.note))?;
        self.collect_snapshots(pool)
    }

    /// Records that a volume has arrived: from then on it does not depend on the note in its former pool.
    fn settle_arrival(&self, pool: &str, id: &str) -> Result<()> {
        let place = self.place(pool, id)?;
        match Note::read(&place.note)? {
            Some(Ok(note)) if note.moved_from.is_some() => {
                Note { moved_from: None, mirrored: false, ..note }.write(&place.note)
            }
            _ => Ok(()),
        }
    }

    /// Settles the interrupted moves of a pool. The caller does not hold the lock.
    pub(super) fn settle_moves(&self, pool: &str) -> Result<()> {
        for name in files::names(&self.layout.volumes(pool))? {
            let Some(id) = name.strip_suffix(".json").filter(|id| is_name(id)) else { continue };
            self.try_to_settle(pool, id);
        }
        Ok(())
    }

    /// Removes what the moves from a pool that are done have left there. The caller does not hold the lock.
    pub(super) fn settle_done_moves(&self, pool: &str) -> Result<()> {
        let folder = self.layout.volumes(pool);
        for name in files::names(&folder)? {
            let Some(id) = name.strip_suffix(".json").filter(|id| is_name(id)) else { continue };
            if matches!(Note::read(&folder.join(&name))?, Some(Ok(note)) if note.moved_to.is_some()) {
                self.try_to_settle(pool, id);
            }
        }
        Ok(())
    }

    fn try_to_settle(&self, pool: &str, id: &str) {
        if let Err(error) = self.settle_with_lock(pool, id) {
            tracing::warn!(volume = id, pool, error = error.chain(), "a move is not settled yet");
        }
    }

    /// With the lock of the other pool too: its note of the volume changes as well.
    fn settle_with_lock(&self, pool: &str, id: &str) -> Result<()> {
        let Some(Ok(note)) = Note::read(&self.place(pool, id)?.note)? else { return Ok(()) };
        let Some(other) = note.moved_to.or(note.moved_from) else { return Ok(()) };
        self.pool_folders.ensure_there(&other)?;
        let has_it = self.pool_of_volume(id)?.unwrap_or_else(|| other.clone());
        let _chains = self.lock(&[pool, &other, &has_it])?;
        self.settle_volume(pool, id)
    }

    /// Removes the files of interrupted moves: one agent acts on a state directory.
    pub(in super::super) fn forget_moves(&self) -> Result<()> {
        for pool in self.pools()? {
            self.remove_partial(&pool, PARTIAL)?;
            self.remove_partial(&pool, FETCHED)?;
            self.settle_moves(&pool)?;
        }
        Ok(())
    }

    /// Removes the files that are not whole and have names with this end.
    pub(super) fn remove_partial(&self, pool: &str, end: &str) -> Result<()> {
        for folder in [self.layout.volumes(pool), self.layout.snapshots(pool)] {
            for name in files::names(&folder)? {
                if name.starts_with(files::UNFINISHED) && name.ends_with(end) {
                    let path = folder.join(name);
                    files::remove_if_there(&path).map_err(failed("remove", &path))?;
                }
            }
        }
        Ok(())
    }
}

impl Move {
    /// Reserves the space that is reserved for the volume, for its copy.
    fn reserve(&self) -> Result<()> {
        let reserved = self.note.reserved.filter(|size| *size > 0);
        let Some((size, part)) = reserved.zip(self.parts.last()) else { return Ok(()) };
        let Some(copy) = &part.copy else { return Ok(()) };
        let attempt = || failed("reserve space for", &part.partial);
        let length =
            i64::try_from(with_tables(size)).map_err(|_| attempt()(io::ErrorKind::FileTooLarge.into()))?;
        fallocate(copy, FallocateFlags::FALLOC_FL_KEEP_SIZE, 0, length)
            .map_err(|errno| attempt()(errno.into()))
    }

    /// Copies or compares the next bytes. Returns whether there are more.
    pub(in super::super) fn step(&mut self) -> Result<bool> {
        let mut left = STEP;
        while left > 0 {
            let Some(part) = self.parts.get(self.current) else { return Ok(false) };
            let Some(copy) = &part.copy else {
                self.current += 1;
                continue;
            };
            if part.is_clone {
                copy.sync_all().map_err(failed("write", &part.partial))?;
                self.current += 1;
                continue;
            }
            let data = next_data(&part.source, self.at).map_err(failed("read", &part.path))?;
            let Some((start, end)) = data else {
                if self.compares {
                    self.current += 1;
                } else {
                    copy.sync_all().map_err(failed("write", &part.partial))?;
                    // Best effort: the bytes are then read from the medium.
                    let _ = posix_fadvise(copy, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
                }
                (self.compares, self.at) = (!self.compares, 0);
                continue;
            };
            let length = (end - start).min(left);
            let is_same = part.transfer(copy, (start, length), self.compares)?;
            if !is_same {
                let detail = format!("the copy in the pool {} differs from its file", self.new.to);
                return Err(SystemError::VolumeDamaged { id: self.new.id.clone(), detail });
            }
            self.at = start + length;
            self.done = self.done.saturating_add(length);
            left -= length;
        }
        Ok(true)
    }

    /// Returns the bytes that were copied and compared, and those of the whole.
    pub(in super::super) fn progress(&self) -> (u64, u64) {
        (self.done, self.total.max(self.done))
    }
}

impl Part {
    fn new(
        path: PathBuf,
        partial: PathBuf,
        to: PathBuf,
        snapshot: Option<(String, SnapshotNote)>,
        copy: Option<File>,
    ) -> Result<Self> {
        let source = File::open(&path).map_err(failed("open", &path))?;
        let before = Identity::of(&path)?;
        Ok(Self { snapshot, path, source, before, copy, is_clone: false, partial, to })
    }

    /// A part with a file of the length of the source: a clone of it, if that is allowed and the file system can, or else without data.
    fn copied(
        path: PathBuf,
        partial: PathBuf,
        to: PathBuf,
        snapshot: Option<(String, SnapshotNote)>,
        may_clone: bool,
    ) -> Result<Self> {
        let mut options = OpenOptions::new();
        let copy = options.read(true).write(true).create_new(true).mode(0o600).open(&partial);
        let copy = copy.map_err(failed("create", &partial))?;
        let made = Self::new(path, partial.clone(), to, snapshot, None).and_then(|part| {
            let cloned = if may_clone { reflink::clone_file(&part.source, &copy) } else { Ok(false) };
            let is_clone = cloned.map_err(failed("write", &partial))?;
            copy.set_len(part.before.length).map_err(failed("write", &partial))?;
            Ok(Self { is_clone, ..part })
        });
        match made {
            Ok(part) => Ok(Self { copy: Some(copy), ..part }),
            Err(error) => {
                // Best effort: the next move removes it too.
                let _ = fs::remove_file(&partial);
                Err(error)
            }
        }
    }

    /// The bytes that are copied.
    fn bytes(&self) -> Result<u64> {
        if self.copy.is_none() || self.is_clone {
            return Ok(0);
        }
        let about = self.source.metadata().map_err(failed("look at", &self.path))?;
        Ok(about.blocks() * 512)
    }

    /// Copies these bytes, or compares them with the copy. Returns whether both are the same.
    fn transfer(&self, copy: &File, (start, length): (u64, u64), compares: bool) -> Result<bool> {
        let mut bytes = vec![0; usize::try_from(length.min(BUFFER)).unwrap_or(0)];
        let mut found = if compares { bytes.clone() } else { Vec::new() };
        let (mut at, end) = (start, start + length);
        while at < end {
            let count = usize::try_from((end - at).min(BUFFER)).unwrap_or(0);
            let bytes = &mut bytes[..count];
            self.source.read_exact_at(bytes, at).map_err(failed("read", &self.path))?;
            if compares {
                let found = &mut found[..count];
                copy.read_exact_at(found, at).map_err(failed("read", &self.partial))?;
                if bytes != found {
                    return Ok(false);
                }
            } else {
                copy.write_all_at(bytes, at).map_err(failed("write", &self.partial))?;
            }
            at += (end - at).min(BUFFER);
        }
        Ok(true)
    }
}

impl Identity {
    fn of(path: &Path) -> Result<Self> {
        let about = fs::metadata(path).map_err(failed("look at", path))?;
        let modified = (about.mtime(), about.mtime_nsec());
        Ok(Self { device: about.dev(), inode: about.ino(), length: about.len(), modified })
    }
}

/// Returns the next bytes of a file, from this one on, that are not a hole: the first one, and the one after the last.
pub(super) fn next_data(file: &File, from: u64) -> io::Result<Option<(u64, u64)>> {
    let from = libc::off_t::try_from(from).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
    let start = match lseek(file, from, Whence::SeekData) {
        Ok(start) => start,
        Err(Errno::ENXIO) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    };
    let end = lseek(file, start, Whence::SeekHole)?;
    Ok((end > start).then(|| (start.unsigned_abs(), end.unsigned_abs())))
}

#[cfg(test)]
#[path = "move_tests.rs"]
mod tests;
