//! Space that is reserved for the whole size of a volume, before the guest writes it.
//!
//! The reserved blocks are beyond the end of the file (`FALLOC_FL_KEEP_SIZE`): QEMU, which lets the file grow, gets these
//! blocks, and the file looks like any other.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{FallocateFlags, fallocate};

use super::super::files::{self, failed};
use super::super::layout::Layout;
use super::note::Note;
use super::{LinuxVolumes, Result, id_of_file};
use crate::SystemError;

/// Room for the header, the tables' first clusters and QEMU's allocation ahead of writes.
const MARGIN: u64 = 4 << 20;
/// Bytes that the file of a small disk may have beside its data and its tables.
const SLACK: u64 = 64 << 20;

impl LinuxVolumes {
    pub(in super::super) fn reserve(&self, pool: &str, id: &str, size: u64) -> Result<()> {
        let _chains = self.lock(&[pool])?;
        self.reserve_space(pool, id, size)
    }

    /// The caller holds the lock: a snapshot that is begun meanwhile would be lost with the note that is written here.
    pub(super) fn reserve_space(&self, pool: &str, id: &str, size: u64) -> Result<()> {
        let place = self.place(pool, id)?;
        let lost = || SystemError::VolumeLost { id: id.to_owned() };
        let note = Note::read(&place.note)?.ok_or_else(lost)?;
        let note = note.map_err(|detail| place.damaged(&detail))?;
        if note.reserved.is_some_and(|reserved| reserved >= size) {
            return Ok(());
        }
        let attempt = || failed("reserve space for", &place.file);
        let file = OpenOptions::new().write(true).open(&place.file).map_err(attempt())?;
        let whole = if note.raw { size } else { with_tables(size) };
        // A reservation that fails midway would have taken the last space of the other guests.
        let has = file.metadata().map_err(attempt())?.blocks() * 512;
        files::check_space(&place.file, whole.saturating_sub(has))?;
        let length = i64::try_from(whole).map_err(|_| attempt()(io::ErrorKind::FileTooLarge.into()))?;
        fallocate(&file, FallocateFlags::FALLOC_FL_KEEP_SIZE, 0, length)
            .map_err(|errno| attempt()(errno.into()))?;
        file.sync_all().map_err(attempt())?;
        Note { reserved: Some(size), ..note }.write(&place.note)?;
        tracing::info!(volume = id, size, "space reserved");
        Ok(())
    }

    /// Returns the bytes that the files of volumes take, those in the trash included, by the identity of the volume.
    pub(in super::super) fn used_bytes(&self) -> Result<BTreeMap<String, u64>> {
        let mut used = self.bytes_in(Layout::trash)?;
        used.extend(self.bytes_in(Layout::volumes)?);
        Ok(used)
    }

    /// Returns the bytes that the files of snapshots take, by the identity of the snapshot.
    pub(in super::super) fn snapshot_bytes(&self) -> Result<BTreeMap<String, u64>> {
        self.bytes_in(Layout::snapshots)
    }

    /// Returns the bytes of the files in a folder of each pool, by the identity in their names.
    fn bytes_in(&self, folder_of: impl Fn(&Layout, &str) -> PathBuf) -> Result<BTreeMap<String, u64>> {
        let mut used: BTreeMap<String, u64> = BTreeMap::new();
        for pool in self.pools()? {
            let folder = folder_of(&self.layout, &pool);
            for name in files::names(&folder)?.iter().filter(|name| !name.starts_with(files::UNFINISHED)) {
                let Some(id) = id_of_file(name) else { continue };
                // A file that was removed since takes none.
                let Ok(about) = fs::symlink_metadata(folder.join(name)) else { continue };
                let of_volume = used.entry(id.to_owned()).or_default();
                *of_volume = of_volume.saturating_add(about.blocks().saturating_mul(512));
            }
        }
        Ok(used)
    }
}

/// Reserves the space for a disk of this size in a new qcow2 file.
pub(super) fn reserve_file(path: &Path, size: u64) -> Result<()> {
    let attempt = || failed("reserve space for", path);
    let file = OpenOptions::new().write(true).open(path).map_err(attempt())?;
    let whole = with_tables(size);
    files::check_space(path, whole)?;
    let length = i64::try_from(whole).map_err(|_| attempt()(io::ErrorKind::FileTooLarge.into()))?;
    fallocate(&file, FallocateFlags::FALLOC_FL_KEEP_SIZE, 0, length).map_err(|errno| attempt()(errno.into()))
}

/// The bytes of a file with this many bytes of data: an entry of 8 bytes and a count of 2 bytes for each 64 KiB.
pub(super) fn with_tables(size: u64) -> u64 {
    size + size / 8192 + size / 32768 + MARGIN
}

/// The greatest length of a file that is taken over for a disk of this size. Besides its data it may have as much again, twice, that nothing
/// refers to: a qcow2 file does not get shorter when a snapshot within it is deleted.
pub(super) fn most_adopted(size: u64) -> u64 {
    with_tables(size).saturating_mul(3).saturating_add(SLACK)
}

/// The greatest length of a file that is copied from another host: one that was taken over, and to which the whole disk was written since.
pub(super) fn most_copied(size: u64) -> u64 {
    with_tables(size).saturating_mul(4).saturating_add(SLACK)
}
