//! Space that is reserved for the whole size of a volume, before the guest writes it.
//!
//! The reserved blocks are beyond the end of the file (`FALLOC_FL_KEEP_SIZE`): QEMU, which lets the file grow, gets these
//! blocks, and the file looks like any other.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::MetadataExt;

use nix::fcntl::{FallocateFlags, fallocate};

use super::super::files::{self, failed};
use super::note::Note;
use super::{LinuxVolumes, Result};
use crate::SystemError;

/// Room for the header, the tables' first clusters and QEMU's allocation ahead of writes.
const MARGIN: u64 = 4 << 20;

impl LinuxVolumes {
    pub(in super::super) fn reserve(&self, pool: &str, id: &str, size: u64) -> Result<()> {
        let place = self.place(pool, id)?;
        let lost = || SystemError::VolumeLost { id: id.to_owned() };
        let note = Note::read(&place.note)?.ok_or_else(lost)?;
        let note = note.map_err(|detail| place.damaged(&detail))?;
        if note.reserved.is_some_and(|reserved| reserved >= size) {
            return Ok(());
        }
        let attempt = || failed("reserve space for", &place.file);
        let file = OpenOptions::new().write(true).open(&place.file).map_err(attempt())?;
        let whole = with_tables(size);
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
}

/// The bytes of a file with this many bytes of data: an entry of 8 bytes and a count of 2 bytes for each 64 KiB.
fn with_tables(size: u64) -> u64 {
    size + size / 8192 + size / 32768 + MARGIN
}
