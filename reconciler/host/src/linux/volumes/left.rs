//! Volumes that another host copies, because their VM goes there: their files are read here, and removed once that host has all of them.
//!
//! ```text
//!    volume ──read in blocks, holes left out──▶ the other host          the other host has it: file removed      note removed
//!                                                                       ───────────────────────────────────▶ ○ ────────────▶ nothing
//! ```

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use berth_qemu::qcow2::ImageLock;
use nix::fcntl::OFlag;

use super::super::files::{self, failed};
use super::moves::next_data;
use super::note::Note;
use super::{LinuxVolumes, Place, Result, exists, raw};
use crate::{Arrival, COPY_BLOCK, CopiedFile, CopiedPart, SystemError};

/// The file of a volume that is read for another host.
#[derive(Debug)]
pub(in super::super) struct LeftFile {
    id: String,
    path: PathBuf,
    file: File,
    about: CopiedFile,
    at: u64,
}

impl LinuxVolumes {
    /// Opens the file of a volume for another host. None: there is none.
    pub(in super::super) fn open_left(&self, pool: &str, id: &str, offset: u64) -> Result<Option<LeftFile>> {
        let _chains = self.lock(&[pool])?;
        let place = self.place(pool, id)?;
        if self.volume(pool, id)?.is_none() {
            return Ok(None);
        }
        let lost = || SystemError::VolumeLost { id: id.to_owned() };
        let note = Note::read(&place.note)?.ok_or_else(lost)?.map_err(|detail| place.damaged(&detail))?;
        if let Some(why) = why_not(&note) {
            return Err(place.damaged(why));
        }
        check_closed(&place)?;
        let file = open(&place.file, false)?;
        let length = file.metadata().map_err(failed("look at", &place.file))?.len();
        let about = CopiedFile {
            length,
            taken: taken(&file, &place.file, offset)?,
            base: note.base.map(|base| base.digest),
            tag: tag(&file, &place.file)?,
        };
        Ok(Some(LeftFile { id: id.to_owned(), path: place.file, file, about, at: offset }))
    }

    /// Removes a volume that another host has now.
    pub(in super::super) fn remove_left(
        &self,
        pool: &str,
        id: &str,
        uid: Option<&str>,
        seen: Option<&Arrival>,
    ) -> Result<()> {
        let _chains = self.lock(&[pool])?;
        let place = self.place(pool, id)?;
        let Some(note) = Note::read(&place.note)? else { return Ok(()) };
        let note = note.map_err(|detail| place.damaged(&detail))?;
        let is_there = exists(&place.file)?;
        if is_there && note.arrived.as_ref() != seen {
            return Ok(());
        }
        if note.volume_id != id || note.owner.uid.as_deref() != uid {
            return Err(place.damaged("it is of another Disk: only the former file of this one is removed"));
        }
        if let Some(why) = why_not(&note) {
            return Err(place.damaged(why));
        }
        if is_there {
            check_closed(&place)?;
        }
        // The note last: a crash in between leaves one without a file, which the next call removes.
        files::remove_if_there(&place.file).map_err(failed("delete", &place.file))?;
        files::sync_parent(&place.file).map_err(failed("write", &place.file))?;
        files::remove_if_there(&place.note).map_err(failed("remove", &place.note))?;
        files::sync_parent(&place.note).map_err(failed("write", &place.note))?;
        tracing::info!(volume = id, "former file of a volume removed: another host has it");
        Ok(())
    }
}

impl LeftFile {
    pub(in super::super) fn about(&self) -> &CopiedFile {
        &self.about
    }

    /// Reads the next bytes that are not a hole, within one block.
    pub(in super::super) fn read(&mut self) -> Result<Option<CopiedPart>> {
        let failed_read = || failed("read", &self.path);
        let data = next_data(&self.file, self.at).map_err(failed_read())?;
        let Some((start, first_end)) = data.filter(|(start, _)| *start < self.about.length) else {
            if tag(&self.file, &self.path)? != self.about.tag {
                let detail = "it has changed while it was copied";
                return Err(SystemError::VolumeBusy { id: self.id.clone(), detail });
            }
            return Ok(None);
        };
        let limit = ((start / COPY_BLOCK + 1) * COPY_BLOCK).min(self.about.length);
        let mut end = first_end.min(limit);
        // Small holes within a block are sent as zeros.
        while end < limit
            && let Some((next, next_end)) = next_data(&self.file, end).map_err(failed_read())?
            && next < limit
        {
            end = next_end.min(limit);
        }
        let mut bytes = vec![0; usize::try_from(end - start).unwrap_or_default()];
        self.file.read_exact_at(&mut bytes, start).map_err(failed_read())?;
        // One part in a block, so that there are not more than blocks.
        self.at = limit;
        Ok(Some(CopiedPart { offset: start, bytes }))
    }
}

/// Returns why a volume with this note is neither copied by another host nor removed after a copy.
fn why_not(note: &Note) -> Option<&'static str> {
    let refusals = [
        (note.encryption.is_some(), "it is encrypted: only plain volumes go to another host"),
        (note.raw, raw::REFUSED),
        (
            note.generation > 0 || note.snapshots().next().is_some() || note.former.is_some(),
            "it is based on snapshots, or was restored: only volumes without them go to another host",
        ),
        (note.moved_to.is_some() || note.moved_from.is_some(), "it is being moved to another pool"),
        (note.retained, "its Disk is deleted and the file is retained"),
    ];
    refusals.into_iter().find_map(|(refuses, why)| refuses.then_some(why))
}

fn open(path: &Path, write: bool) -> Result<File> {
    let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits();
    let opened = OpenOptions::new().read(true).write(write).custom_flags(flags).open(path);
    opened.map_err(failed("open", path))
}

/// Checks that no QEMU has the file of a volume open.
pub(super) fn check_closed(place: &Place) -> Result<()> {
    let lock = ImageLock::new(open(&place.file, true)?);
    lock.map(drop).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => {
            let detail = "a running QEMU has it open";
            SystemError::VolumeBusy { id: place.id.clone(), detail }
        }
        _ => failed("lock", &place.file)(error),
    })
}

/// Another text for each state of a file.
fn tag(file: &File, path: &Path) -> Result<String> {
    let about = file.metadata().map_err(failed("look at", path))?;
    let at_path = fs::symlink_metadata(path).map_err(failed("look at", path))?;
    let modified = format!("{}.{}", about.mtime(), about.mtime_nsec());
    Ok(format!("{}-{}-{}-{modified}", about.ino(), at_path.ino(), about.len()))
}

/// The bytes from this offset on that are not holes.
fn taken(file: &File, path: &Path, from: u64) -> Result<u64> {
    let (mut at, mut taken) = (from, 0_u64);
    while let Some((start, end)) = next_data(file, at).map_err(failed("read", path))? {
        taken = taken.saturating_add(end - start);
        at = end;
    }
    Ok(taken)
}
