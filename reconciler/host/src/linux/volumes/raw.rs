//! Volumes that several machines write to at a time. Their files are raw: the tables of a qcow2 file have one writer. They have no snapshots
//! and no copies, as these are qcow2 files above or below them, and stay in their pool and on their host.
//!
//! A guest chooses every byte of such a file, its first ones too, so that the format is in the note and the name alone. The size of the disk
//! is the length of the file.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use berth_qemu::machine::Format;
use berth_qemu::qcow2::{self, ImageLock};
use nix::fcntl::OFlag;

use super::super::files::{self, failed};
use super::devices;
use super::encryption::format_of;
use super::note::Note;
use super::{Place, RAW_SUFFIX, Result, invalid_size};
use crate::{NewVolume, SystemError, VolumeFacts};

/// Why a raw volume is not treated as the others are.
pub(super) const REFUSED: &str =
    "several VMs write to it: it has no snapshots and no copies, and stays in its pool and on its host";

/// Checks that a new volume can be one that several machines write to.
///
/// *Errors*: [`SystemError::Invalid`].
pub(super) fn check(new: &NewVolume) -> Result<()> {
    let refusals = [
        (new.encryption.is_some(), "a volume that several VMs write to cannot be encrypted"),
        (
            new.base.is_some() || new.snapshot.is_some() || new.file.is_some(),
            "a volume that several VMs write to is blank at first",
        ),
    ];
    match refusals.into_iter().find(|(refuses, _)| *refuses) {
        Some((_, why)) => Err(SystemError::Invalid { what: "volume", value: new.id.clone(), why }),
        None => Ok(()),
    }
}

/// Returns the size of the disk in a raw file: whole sectors.
pub(super) fn size_of(file: &Path) -> std::result::Result<u64, String> {
    let about = fs::symlink_metadata(file).map_err(|error| error.to_string())?;
    match about.is_file() && about.len() > 0 && about.len().is_multiple_of(qcow2::SECTOR) {
        true => Ok(about.len()),
        false => Err("it is no raw file of whole sectors".to_owned()),
    }
}

impl Note {
    /// Returns the format of its file.
    pub(super) fn format(&self) -> Format {
        if self.raw { Format::Raw } else { format_of(self.encryption.as_ref()) }
    }
}

impl VolumeFacts {
    /// Refuses work that needs a qcow2 file.
    ///
    /// *Errors*: [`SystemError::Invalid`].
    pub(super) fn ensure_qcow2(&self) -> Result<()> {
        let why = match (self.is_shared(), self.is_device()) {
            (true, _) => REFUSED,
            (_, true) => devices::REFUSED,
            (false, false) => return Ok(()),
        };
        Err(SystemError::Invalid { what: "volume", value: self.id.clone(), why })
    }
}

impl Place {
    /// The place of a raw file.
    pub(super) fn of_raw(self) -> Self {
        let name = format!("{}{RAW_SUFFIX}", self.id);
        Self {
            file: self.file.with_file_name(&name),
            trashed_file: self.trashed_file.with_file_name(&name),
            is_raw: true,
            ..self
        }
    }

    /// Creates its file: a hole of this size. It appears complete or not at all, and replaces no file.
    pub(super) fn create_raw(&self, size: u64) -> Result<()> {
        let unfinished =
            self.file.with_file_name(format!("{}{}{RAW_SUFFIX}.new", files::UNFINISHED, self.id));
        let write = || -> io::Result<()> {
            let mut options = OpenOptions::new();
            let file = options.write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
            file.set_len(size)?;
            file.sync_all()?;
            qcow2::rename_new(&unfinished, &self.file)
        };
        write().map_err(|error| {
            // Best effort: the file may not exist, and the next attempt begins with an empty one.
            let _ = fs::remove_file(&unfinished);
            failed("write", &self.file)(error)
        })
    }

    /// Grows its file, which no QEMU has open.
    pub(super) fn grow_raw(&self, size: u64) -> Result<()> {
        if !size.is_multiple_of(qcow2::SECTOR) || size > qcow2::MAX_VIRTUAL_SIZE {
            return Err(invalid_size(size));
        }
        let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits();
        let opened = OpenOptions::new().read(true).write(true).custom_flags(flags).open(&self.file);
        let lock = ImageLock::new(opened.map_err(failed("open", &self.file))?);
        let lock = lock.map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => {
                let detail = "a running QEMU has it open";
                SystemError::VolumeBusy { id: self.id.clone(), detail }
            }
            _ => failed("lock", &self.file)(error),
        })?;
        let grown = lock.file().set_len(size).and_then(|()| lock.file().sync_all());
        grown.map_err(failed("grow", &self.file))
    }
}

#[cfg(test)]
#[path = "raw_tests.rs"]
mod tests;
