//! Mirrors: the file of a volume that a QEMU has open is copied by that QEMU to another pool of this host, while its guest runs.
//!
//! ```text
//!                 note in the target, empty file    QEMU copies, and writes to both    note here: moved     QEMU has closed it: file, note gone
//!   volume here ───────────────────────────────▶ ○ ───────────────────────────────▶ ○ ───────────────▶ ● ─────────────────────────▶ volume there
//! ```
//!
//! The notes are those of a move, see `moves`: the note of the volume in its former pool is the one step that counts, and is written
//! while the guest is paused and both files are the same. So a QEMU that ends at any moment leaves a file with all data in the pool that
//! counts. A file that a QEMU has open is not removed before it is recorded that it does not count.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use berth_qemu::machine::Backing;
use berth_qemu::qcow2::ImageLock;

use super::super::files::{self, failed};
use super::copying::{CHANGED, busy};
use super::encryption::NewFile;
use super::moves::Movable;
use super::note::Note;
use super::space::reserve_file;
use super::{LinuxVolumes, Place, Result, exists};
use crate::{NewMove, SystemError, VolumeFacts};

const ENCRYPTED: &str = "the disk is encrypted: it moves while no VM has it open";
const SNAPSHOTS: &str = "the disk has files of snapshots below it: it moves while no VM has it open";
const NOT_PREPARED: &str = "its file in the other pool is not there";
const OPEN: &str =
    "a QEMU has its file in the other pool open, and it is not recorded that it does not count";

impl LinuxVolumes {
    /// Returns the mirror of a volume that was prepared and not settled.
    pub(in super::super) fn prepared_mirror(&self, id: &str) -> Result<Option<NewMove>> {
        for to in self.pools()? {
            let place = self.place(&to, id)?;
            let Some(Ok(note)) = Note::read(&place.note)? else { continue };
            let Some(from) = note.moved_from.filter(|_| note.moved_to.is_none()) else { continue };
            return Ok(Some(NewMove { id: id.to_owned(), from, to }));
        }
        Ok(None)
    }

    pub(in super::super) fn prepare_mirror(&self, new: &NewMove) -> Result<VolumeFacts> {
        let _chains = self.lock(&[&new.from, &new.to])?;
        let movable = self.movable(new)?;
        if movable.note.encryption.is_some() {
            return Err(SystemError::Invalid { what: "pool", value: new.to.clone(), why: ENCRYPTED });
        }
        if movable.note.snapshot.is_some() || movable.note.generation > 0 {
            return Err(SystemError::Invalid { what: "pool", value: new.to.clone(), why: SNAPSHOTS });
        }
        let Movable { place, target, note, .. } = &movable;
        self.check_room(new, &movable)?;
        self.settle_volume(&new.to, &new.id)?;
        if exists(&target.note)? || exists(&target.file)? {
            return Err(target.damaged("a file of this name is in the target, which berth did not make"));
        }
        files::ensure_folder(&self.layout.volumes(&new.to))?;
        let size = place.read_size()?;
        // First the note: a file without one would be foreign.
        arriving_note(new, note).write(&target.note)?;
        let backing = note.base.as_ref().map(|base| Backing {
            file: self.path_to_image(&new.to, &base.digest),
            format: base.format,
            backing: None,
        });
        let made = self
            .create_file(target, &target.file, NewFile { size, backing: backing.as_ref(), encryption: None })
            .and_then(|()| match note.reserved.filter(|size| *size > 0) {
                Some(size) => reserve_file(&target.file, size),
                None => Ok(()),
            })
            .and_then(|()| files::give(&target.file, self.owner.as_ref()))
            .and_then(|()| files::sync_parent(&target.file).map_err(failed("write", &target.file)));
        if let Err(error) = made {
            // Best effort: the next attempt removes it too.
            let _ = self.settle_volume(&new.to, &new.id);
            return Err(error);
        }
        tracing::info!(volume = new.id, from = new.from, to = new.to, "volume is to be mirrored");
        self.facts(target, &target.file, note, size)
    }

    /// Returns the note of a volume in the pool that it is mirrored to.
    fn arriving(&self, new: &NewMove, target: &Place) -> Result<Option<Note>> {
        let Some(note) = Note::read(&target.note)? else { return Ok(None) };
        let note = note.map_err(|detail| target.damaged(&detail))?;
        Ok(Some(note).filter(|note| note.moved_from.as_deref() == Some(new.from.as_str())))
    }

    /// Returns the notes of a volume that is mirrored: that here, and that of the other file. None: it is recorded that the other one
    /// counts. The caller holds the lock.
    fn mirrored(&self, new: &NewMove) -> Result<Option<(Place, Note, Place)>> {
        let (place, target) = (self.place(&new.from, &new.id)?, self.place(&new.to, &new.id)?);
        let lost = || SystemError::VolumeLost { id: new.id.clone() };
        let now = match Note::read(&place.note)? {
            // It was settled.
            None if self.volume(&new.to, &new.id)?.is_some() => return Ok(None),
            None => return Err(lost()),
            Some(now) => now.map_err(|detail| place.damaged(&detail))?,
        };
        if now.moved_to.as_deref() == Some(new.to.as_str()) {
            return Ok(None);
        }
        let arriving = self.arriving(new, &target)?.ok_or_else(|| busy(new, NOT_PREPARED))?;
        if !exists(&target.file)? {
            return Err(busy(new, NOT_PREPARED));
        }
        if !now.has_files_of(&arriving) || self.is_being_taken(&new.from, &new.id)? {
            return Err(busy(new, CHANGED));
        }
        Ok(Some((place, now, target)))
    }

    pub(in super::super) fn check_mirror(&self, new: &NewMove) -> Result<()> {
        let _chains = self.lock(&[&new.from, &new.to])?;
        self.mirrored(new).map(drop)
    }

    pub(in super::super) fn commit_mirror(&self, new: &NewMove) -> Result<()> {
        let _chains = self.lock(&[&new.from, &new.to])?;
        let Some((place, now, target)) = self.mirrored(new)? else { return Ok(()) };
        // The owner may have changed since it was prepared.
        arriving_note(new, &now).write(&target.note)?;
        files::sync_parent(&target.file).map_err(failed("write", &target.file))?;
        Note { moved_to: Some(new.to.clone()), moved_from: None, ..now }.write(&place.note)?;
        tracing::info!(volume = new.id, from = new.from, to = new.to, "volume moved under its guest");
        Ok(())
    }

    pub(in super::super) fn settle_mirror(&self, new: &NewMove) -> Result<()> {
        let _chains = self.lock(&[&new.from, &new.to])?;
        self.settle_volume(&new.to, &new.id)?;
        self.settle_volume(&new.from, &new.id)
    }

    /// Checks that no QEMU has a file open that is to be removed, which is not the volume: it may be mirrored to it. The two names of a file
    /// that was moved within its file system are not two files. `other` is the pool that has the volume.
    pub(super) fn ensure_not_mirrored(&self, place: &Place, other: &str) -> Result<()> {
        if !exists(&place.file)? || is_same_file(&place.file, &self.place(other, &place.id)?.file)? {
            return Ok(());
        }
        match is_open(&place.file)? {
            true => Err(SystemError::VolumeBusy { id: place.id.clone(), detail: OPEN }),
            false => Ok(()),
        }
    }
}

/// Returns the note in the pool that a volume is mirrored to.
fn arriving_note(new: &NewMove, note: &Note) -> Note {
    let moved_from = Some(new.from.clone());
    Note { moved_from, moved_to: None, mirrored: true, complete: true, ..note.clone() }
}

/// Whether a QEMU has this file open.
fn is_open(file: &Path) -> Result<bool> {
    let open = OpenOptions::new().read(true).write(true).open(file).map_err(failed("open", file))?;
    match ImageLock::new(open) {
        Ok(_) => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(true),
        Err(error) => Err(failed("lock", file)(error)),
    }
}

fn is_same_file(one: &Path, other: &Path) -> Result<bool> {
    if !exists(other)? {
        return Ok(false);
    }
    let of = |path: &Path| fs::metadata(path).map(|about| (about.dev(), about.ino()));
    Ok(of(one).map_err(failed("look at", one))? == of(other).map_err(failed("look at", other))?)
}

#[cfg(test)]
#[path = "mirror_tests.rs"]
mod tests;
