//! Volumes: one qcow2 file each, with a note beside it that records its owner. Those that several machines write to are raw, see `raw`.
//!
//! ```text
//!               note (intent)     file            note (complete)
//!    nothing ───────────────▶ ○ ───────────▶ ○ ──────────────────▶ volume ──trash──▶ in the trash ──purge──▶ gone
//!                                                                     ▲                   │
//!                                                                     └──────restore──────┘
//! ```
//!
//! A complete note without a file, here or in the trash, is a lost disk: it is never created again, because an empty
//! disk in its place would look like a working one. A file without a note is foreign and not touched. Must not know how
//! QEMU gets a disk, nor which disks should exist.
//!
//! The first file of a volume is named by its id; after each snapshot it continues in another one, see `snapshots`. Below it are
//! the files of snapshots; those of deleted ones become fewer, see `merges`. A volume goes to another pool by `moves`, or
//! by `mirrored` while a QEMU has it open, from the folder of a lost host to that of this one by `taken`, with its running guest by
//! `arriving`, and from another host by `left` there and `fetched` here. A volume that is a block device of the host has a note alone,
//! see `devices`.

mod adopt;
mod arriving;
mod begun;
mod chains;
mod clock;
mod copying;
mod devices;
mod encryption;
mod fetched;
mod left;
mod making;
mod merges;
mod mirrored;
mod moved_snapshots;
mod moves;
mod note;
mod raw;
mod restored;
mod restores;
mod snapshot_note;
mod snapshots;
mod space;
mod started;
mod taken;
mod trash;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use berth_qemu::machine::{Backing, Cache};
use berth_qemu::process::RunAs;
use berth_qemu::qcow2::{self, ImageError};

use super::block_devices::BlockDevices;
use super::files::{self, failed};
use super::layout::{Layout, check_digest, check_name, is_name};
use super::pool_folders::PoolFolders;
use crate::keyring::Keyring;
use crate::volumes::check_encryption;
use crate::{ForeignKind, ForeignObject, ImageFacts, NewVolume, SystemError, VolumeFacts, VolumeOwner};

pub(super) use arriving::is_arriving;
use chains::{Chains, ChainsLock};
use copying::Copying;
use encryption::NewFile;
pub(super) use encryption::create_header;
pub(super) use fetched::Fetch;
pub(super) use left::LeftFile;
use making::Makers;
use note::{Base, Note};
pub(super) use restored::{BACKUPS, Begun};

type Result<T> = std::result::Result<T, SystemError>;

const SUFFIX: &str = ".qcow2";
/// The suffix of a file that several machines write to.
const RAW_SUFFIX: &str = ".raw";

/// Every method blocks: callers run them off the async threads.
#[derive(Clone, Debug)]
pub(super) struct LinuxVolumes {
    layout: Layout,
    owner: Option<RunAs>,
    /// The folders whose files may become volumes.
    adoptable: Vec<PathBuf>,
    pool_folders: PoolFolders,
    /// The pools in which it is being decided and changed what is based on what.
    chains: Chains,
    /// Held while the trash's clock is read and written.
    clock: Arc<Mutex<()>>,
    copying: Copying,
    makers: Makers,
    keys: Keyring,
    /// The block devices that volumes may be.
    devices: BlockDevices,
}

/// The paths of one volume in each of its states.
#[derive(Debug)]
struct Place {
    pool: String,
    id: String,
    file: PathBuf,
    note: PathBuf,
    trashed_file: PathBuf,
    trashed_note: PathBuf,
    /// Whether its note has it as a raw file.
    is_raw: bool,
}

impl LinuxVolumes {
    pub(super) fn new(layout: Layout, owner: Option<RunAs>) -> Self {
        Self {
            layout,
            owner,
            adoptable: Vec::new(),
            pool_folders: PoolFolders::default(),
            chains: Chains::default(),
            clock: Arc::default(),
            copying: Copying::default(),
            makers: Makers::default(),
            keys: Keyring::default(),
            devices: BlockDevices::default(),
        }
    }

    /// Lets block devices of the host be volumes.
    pub(super) fn with_block_devices(self, devices: BlockDevices) -> Self {
        Self { devices, ..self }
    }

    /// Checks before each use of a pool with a folder of its own that the folder is there.
    pub(super) fn with_pool_folders(self, pool_folders: PoolFolders) -> Self {
        Self { pool_folders, ..self }
    }

    /// Lets files below these folders become volumes.
    pub(super) fn with_adoptable(self, adoptable: Vec<PathBuf>) -> Self {
        Self { adoptable, ..self }
    }

    /// The keys of its encrypted volumes.
    pub(super) fn keys(&self) -> &Keyring {
        &self.keys
    }

    fn lock(&self, pools: &[&str]) -> Result<ChainsLock> {
        self.chains.lock(pools)
    }

    fn place(&self, pool: &str, id: &str) -> Result<Place> {
        check_name("pool", pool)?;
        check_name("volume", id)?;
        self.pool_folders.ensure_there(pool)?;
        let (volumes, trash) = (self.layout.volumes(pool), self.layout.trash(pool));
        let (note, trashed_note) = (volumes.join(format!("{id}.json")), trash.join(format!("{id}.json")));
        let noted = match Note::read(&note)? {
            None => Note::read(&trashed_note)?,
            found => found,
        };
        let noted = noted.and_then(std::result::Result::ok);
        let is_raw = noted.as_ref().is_some_and(|note| note.raw);
        let generation = noted.map_or(0, |note| note.generation);
        let place = Place {
            pool: pool.to_owned(),
            id: id.to_owned(),
            file: volumes.join(file_name(id, generation)),
            note,
            trashed_file: trash.join(format!("{id}{SUFFIX}")),
            trashed_note,
            is_raw: false,
        };
        Ok(if is_raw { place.of_raw() } else { place })
    }

    pub(super) fn volume(&self, pool: &str, id: &str) -> Result<Option<VolumeFacts>> {
        let place = self.place(pool, id)?;
        let note = match Note::read(&place.note)? {
            None if exists(&place.file)? => {
                return Err(place.damaged("a file of this name is there, which berth did not make"));
            }
            None => return self.pool_folders.ensure_there(pool).map(|()| None),
            Some(note) => note.map_err(|detail| place.damaged(&detail))?,
        };
        if let Some(device) = &note.device {
            return Ok(Some(self.device_facts(&place, &note, device)));
        }
        if note.arriving_from.is_some() || self.is_elsewhere(pool, id, &note)? {
            return Ok(None);
        }
        if exists(&place.file)? {
            let size = place.read_size()?;
            return self.facts(&place, &place.file, &note, size).map(Some);
        }
        let is_trashed = exists(&place.trashed_file)?;
        // Once more: its file system may have been unmounted meanwhile, which leaves nothing either.
        self.pool_folders.ensure_there(pool)?;
        match note.complete && !is_trashed {
            true => Err(SystemError::VolumeLost { id: id.to_owned() }),
            false => Ok(None),
        }
    }

    /// `base` is the cached image that `new` names.
    pub(super) fn create(&self, new: &NewVolume, base: Option<&ImageFacts>) -> Result<VolumeFacts> {
        let _chains = self.lock(&[&new.pool])?;
        if new.shared {
            raw::check(new)?;
        }
        if let Some(file) = &new.file {
            check_encryption(new, None)?;
            return self.adopt(new, file);
        }
        let place = self.place(&new.pool, &new.id)?;
        let place = if new.shared { place.of_raw() } else { place };
        let least = match &new.snapshot {
            None => base.map(|b| b.virtual_size),
            Some(snapshot) => {
                let snapshot = self.finished(&new.pool, snapshot)?;
                check_encryption(new, snapshot.encryption.as_deref())?;
                Some(snapshot.size)
            }
        };
        let size = wanted_size(new, least)?;
        if let Some(found) = self.volume(&new.pool, &new.id)? {
            self.finish(&place)?;
            return match size > found.size {
                true => self.grow_file(&new.pool, &new.id, size),
                false => Ok(found),
            };
        }
        if exists(&place.trashed_file)? {
            return Err(place.damaged("it is in the trash: it has to be restored, not made again"));
        }
        files::ensure_folder(&self.layout.volumes(&new.pool))?;
        let base = base.map(|b| Base { digest: b.digest.clone(), format: b.format });
        let note = Note::new(new, base);
        self.make(&place, &note, size).inspect_err(|error| {
            tracing::debug!(volume = place.id, %error, "volume not made");
            // Leaves no partial volume; anything that cannot be removed is identified by its note next time.
            let _ = fs::remove_file(&place.note);
        })?;
        if new.thick {
            self.reserve_space(&new.pool, &new.id, size).inspect_err(|_| {
                let _ = fs::remove_file(&place.file).and_then(|()| fs::remove_file(&place.note));
            })?;
        }
        self.finish(&place)?;
        tracing::info!(volume = place.id, size, "volume made");
        let lost = || SystemError::VolumeLost { id: new.id.clone() };
        self.volume(&new.pool, &new.id)?.ok_or_else(lost)
    }

    fn make(&self, place: &Place, note: &Note, size: u64) -> Result<()> {
        note.write(&place.note)?;
        if note.raw {
            return place.create_raw(size);
        }
        let backing = match (&note.snapshot, &note.base) {
            (Some(snapshot), _) => Some(snapshots::relative(snapshot)),
            (None, None) => None,
            (None, Some(base)) => {
                let file = self.path_to_image(&place.pool, &base.digest);
                Some(Backing { file, format: base.format, backing: None })
            }
        };
        let (backing, encryption) = (backing.as_ref(), note.encryption.as_ref());
        self.create_file(place, &place.file, NewFile { size, backing, encryption })
    }

    /// Ensures the invariants of every volume with a file.
    fn finish(&self, place: &Place) -> Result<()> {
        files::give(&place.file, self.owner.as_ref())?;
        if let Some(Ok(mut note)) = Note::read(&place.note)?
            && !note.complete
        {
            note.complete = true;
            // Syncs the folder, which is that of the file too.
            return note.write(&place.note);
        }
        files::sync_parent(&place.file).map_err(failed("write", &place.file))
    }

    pub(super) fn grow(&self, pool: &str, id: &str, size: u64) -> Result<VolumeFacts> {
        let _chains = self.lock(&[pool])?;
        self.grow_file(pool, id, size)
    }

    /// The caller holds the lock.
    fn grow_file(&self, pool: &str, id: &str, size: u64) -> Result<VolumeFacts> {
        let place = self.place(pool, id)?;
        let lost = || SystemError::VolumeLost { id: id.to_owned() };
        let found = self.volume(pool, id)?.ok_or_else(lost)?;
        if size < found.size {
            return Err(SystemError::Shrink { id: id.to_owned(), from: found.size, to: size });
        }
        if found.is_device() {
            return Ok(found);
        }
        if size > found.size && place.is_raw {
            place.grow_raw(size)?;
        } else if size > found.size {
            qcow2::grow(&place.file, size).map_err(|error| place.refused(error))?;
        }
        self.volume(pool, id)?.ok_or_else(lost)
    }

    /// Writes another owner into the note of a volume: replaces one file atomically, and nothing else.
    pub(super) fn hand_over(&self, pool: &str, id: &str, owner: &VolumeOwner) -> Result<()> {
        let _chains = self.lock(&[pool])?;
        let place = self.place(pool, id)?;
        let lost = || SystemError::VolumeLost { id: id.to_owned() };
        let note = Note::read(&place.note)?.ok_or_else(lost)?;
        let note = note.map_err(|detail| place.damaged(&detail))?;
        if note.owner == *owner && !note.retained {
            return Ok(());
        }
        Note { owner: owner.clone(), retained: false, ..note }.write(&place.note)?;
        tracing::info!(volume = id, "volume handed over");
        Ok(())
    }

    /// Records that the volume's Disk is deleted and its file is retained.
    pub(super) fn retain(&self, pool: &str, id: &str) -> Result<()> {
        let _chains = self.lock(&[pool])?;
        let place = self.place(pool, id)?;
        let Some(note) = Note::read(&place.note)? else { return Ok(()) };
        let note = note.map_err(|detail| place.damaged(&detail))?;
        if note.retained {
            return Ok(());
        }
        Note { retained: true, ..note }.write(&place.note)?;
        tracing::info!(volume = id, "volume kept without a Disk");
        Ok(())
    }

    /// Lists every volume. One with an unreadable header has size 0: it still needs its image, and its owner.
    pub(super) fn volumes(&self) -> Result<Vec<VolumeFacts>> {
        let mut volumes = Vec::new();
        for pool in self.pools()? {
            for name in files::names(&self.layout.volumes(&pool))? {
                let Some(id) = name.strip_suffix(".json").filter(|id| is_name(id)) else {
                    continue;
                };
                let place = self.place(&pool, id)?;
                let Some(Ok(note)) = Note::read(&place.note)? else {
                    continue;
                };
                if note.arriving_from.is_some() {
                    continue;
                }
                if let Some(device) = &note.device {
                    volumes.push(self.device_facts(&place, &note, device));
                    continue;
                }
                // One of a pool that is away may be there.
                if !exists(&place.file)? || self.is_elsewhere(&pool, id, &note).unwrap_or(true) {
                    continue;
                }
                let size = place.read_size().unwrap_or_else(|error| {
                    tracing::warn!(volume = id, error = error.chain(), "volume unreadable");
                    0
                });
                volumes.push(self.listed(&place, &place.file, &note, size));
            }
        }
        Ok(volumes)
    }

    /// Returns a volume, in a pool or in the trash, with a note that refers to this image. One of a pool that is away may.
    pub(super) fn based_on(&self, digest: &str) -> Result<Option<String>> {
        if let Some(pool) = self.pool_folders.first_away() {
            return Ok(Some(format!("{pool}/…")));
        }
        for pool in self.pools()? {
            for folder in [self.layout.volumes(&pool), self.layout.trash(&pool)] {
                for name in files::names(&folder)?.iter().filter(|n| n.ends_with(".json")) {
                    // An unreadable one may refer to any image.
                    let note = Note::read(&folder.join(name))?.and_then(std::result::Result::ok);
                    if note.is_none_or(|note| note.bases().any(|base| base.digest == digest)) {
                        return Ok(Some(format!("{pool}/{}", name.trim_end_matches(".json"))));
                    }
                }
            }
            if let Some(snapshot) = self.snapshot_based_on(&pool, digest)? {
                return Ok(Some(format!("{pool}/{snapshot}")));
            }
        }
        Ok(None)
    }

    /// Lists files in the pools that no note describes.
    pub(super) fn foreign(&self) -> Result<Vec<ForeignObject>> {
        let mut foreign = Vec::new();
        for pool in self.pools()? {
            let names = files::names(&self.layout.volumes(&pool))?;
            for name in names.iter().filter(|n| !n.starts_with(files::UNFINISHED)) {
                let file = id_of_file(name);
                let id = file.or_else(|| name.strip_suffix(".json"));
                let note = id.filter(|id| is_name(id)).map(|id| self.place(&pool, id)).transpose()?;
                let ours = match note {
                    Some(place) => matches!(Note::read(&place.note)?, Some(Ok(_))),
                    None => false,
                };
                if !ours {
                    let detail = "a file in the pool that berth did not make".to_owned();
                    foreign.push(ForeignObject {
                        kind: ForeignKind::Volume,
                        name: format!("{pool}/{name}"),
                        detail,
                    });
                }
            }
        }
        Ok(foreign)
    }

    /// Lists the pools that are there.
    fn pools(&self) -> Result<Vec<String>> {
        self.pool_folders.there(&self.layout)
    }

    /// The path from a file of the pool to an image.
    fn path_to_image(&self, pool: &str, digest: &str) -> PathBuf {
        if !self.layout.has_own_folder(pool) {
            return relative_to_volumes(digest);
        }
        // The folder is not beside the images.
        let image = self.layout.image(digest);
        std::path::absolute(&image).unwrap_or(image)
    }

    fn facts(&self, place: &Place, file: &Path, note: &Note, size: u64) -> Result<VolumeFacts> {
        let chain = self.chain(&place.pool, note.base.as_ref(), note.snapshot.as_deref());
        let (backing, base) = chain.map_err(|detail| place.damaged(&detail))?;
        Ok(VolumeFacts {
            problem: None,
            encryption: note.encryption.clone().map(Box::new),
            pool: place.pool.clone(),
            id: place.id.clone(),
            size,
            base,
            owner: note.owner.clone(),
            path: file.to_owned(),
            format: note.format(),
            cache: Cache::default(),
            reserved: note.reserved,
            retained: note.retained,
            pending_snapshot: note.pending_snapshot.clone(),
            restores: note.restores.clone(),
            restoring: note.former.is_some(),
            backing,
        })
    }

    /// The facts for a list, also of a volume with damage below it.
    fn listed(&self, place: &Place, file: &Path, note: &Note, size: u64) -> VolumeFacts {
        self.facts(place, file, note, size).unwrap_or_else(|error| {
            tracing::warn!(volume = place.id, error = error.chain(), "volume unreadable");
            let blank = Note { snapshot: None, ..note.clone() };
            let base = blank.base.as_ref().map(|b| b.digest.clone());
            VolumeFacts {
                problem: None,
                format: blank.format(),
                encryption: blank.encryption.map(Box::new),
                pool: place.pool.clone(),
                id: place.id.clone(),
                size: 0,
                base,
                owner: blank.owner,
                path: file.to_owned(),
                cache: Cache::default(),
                reserved: blank.reserved,
                retained: blank.retained,
                pending_snapshot: blank.pending_snapshot,
                restores: blank.restores,
                restoring: blank.former.is_some(),
                backing: None,
            }
        })
    }
}

impl Place {
    fn read_size(&self) -> Result<u64> {
        self.size_of(&self.file).map_err(|detail| self.damaged(&detail))
    }

    /// Returns the size of the disk in this file of it.
    fn size_of(&self, file: &Path) -> std::result::Result<u64, String> {
        if self.is_raw { raw::size_of(file) } else { size_of(file) }
    }

    fn damaged(&self, detail: &str) -> SystemError {
        SystemError::VolumeDamaged { id: self.id.clone(), detail: detail.to_owned() }
    }

    fn refused(&self, error: ImageError) -> SystemError {
        match error {
            ImageError::Write { path, source } => failed("write", &path)(source),
            ImageError::SmallerThanBase { size, base } => SystemError::SmallerThanImage { size, image: base },
            ImageError::Size { size } => invalid_size(size),
            ImageError::Shrink { from, to, .. } => SystemError::Shrink { id: self.id.clone(), from, to },
            ImageError::InUse { path } => SystemError::File {
                attempt: "change",
                path,
                source: io::Error::new(io::ErrorKind::ResourceBusy, "a running QEMU has it open"),
            },
            other => {
                let cause = std::error::Error::source(&other).map(|c| format!(": {c}")).unwrap_or_default();
                self.damaged(&format!("{other}{cause}"))
            }
        }
    }
}

/// `least` is the size of the base.
pub(super) fn wanted_size(new: &NewVolume, least: Option<u64>) -> Result<u64> {
    if let Some(digest) = &new.base {
        check_digest(digest)?;
    }
    match (new.size, least) {
        (Some(size), Some(image)) if size < image => Err(SystemError::SmallerThanImage { size, image }),
        // QEMU counts in sectors: a declared size of 1.5k is rounded up to 2k, never down.
        (Some(size), _) if size > 0 && size <= qcow2::MAX_VIRTUAL_SIZE => {
            Ok(size.next_multiple_of(qcow2::SECTOR))
        }
        (None, Some(image)) => Ok(image),
        (size, _) => Err(invalid_size(size.unwrap_or(0))),
    }
}

fn invalid_size(size: u64) -> SystemError {
    SystemError::Invalid { what: "disk size", value: size.to_string(), why: "1 byte to 64 TiB" }
}

/// The name of a volume's file after this number of snapshots.
fn file_name(id: &str, generation: u32) -> String {
    match generation {
        0 => format!("{id}{SUFFIX}"),
        generation => format!("{id}.{generation}{SUFFIX}"),
    }
}

/// Returns the volume, or the snapshot, that a file with this name is of. None: it has another suffix.
fn id_of_file(name: &str) -> Option<&str> {
    if let Some(id) = name.strip_suffix(RAW_SUFFIX) {
        return Some(id);
    }
    let name = name.strip_suffix(SUFFIX)?;
    let is_generation = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    Some(name.split_once('.').filter(|(_, generation)| is_generation(generation)).map_or(name, |(id, _)| id))
}

/// The path from `pools/<pool>/volumes/` to the image. Relative, so that a state directory can be moved.
fn relative_to_volumes(digest: &str) -> PathBuf {
    Path::new("../../../images").join(digest)
}

fn size_of(file: &Path) -> std::result::Result<u64, String> {
    let mut open = File::open(file).map_err(|e| e.to_string())?;
    qcow2::virtual_size(&mut open).map_err(|e| e.to_string())
}

fn exists(path: &Path) -> Result<bool> {
    path.try_exists().map_err(failed("look for", path))
}

#[cfg(test)]
mod tests;
