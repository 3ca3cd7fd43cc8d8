//! Volumes of another host whose guest is about to come, in the folder of a shared pool: a file has a second name, in the folder of this host,
//! by which a QEMU of this host opens it.
//!
//! ```text
//!                        checked      note here (arriving)      linked       taken: names there removed, note here (complete)
//!    hosts/OLD: note, file ─────▶ ○ ─────────────────────▶ ○ ──────────▶ ○ ─────────────────────────────────────────────────▶ volume
//!                                                                        │ dropped: name here removed, note here removed
//!                                                                        └─────────────────────────────────────────────────▶ nothing
//! ```
//!
//! While the note here says so, the volume is none of this host: it is neither found nor listed. A crash at any moment leaves the volume as
//! that of the other host, and both ways can be repeated. The file keeps its name there until it is taken.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::super::files::{self, failed};
use super::note::Note;
use super::taken::why_not;
use super::{LinuxVolumes, Place, Result, exists, file_name};
use crate::{NewTake, SystemError, VolumeFacts};

impl LinuxVolumes {
    pub(in super::super) fn prepare_arriving(&self, new: &NewTake) -> Result<VolumeFacts> {
        let _chains = self.lock(&[&new.pool])?;
        let place = self.place(&new.pool, &new.id)?;
        if self.volume_with_file(&new.pool, &new.id)?.is_some() || exists(&place.trashed_file)? {
            return Err(place.damaged("a volume of its name is on this host already"));
        }
        let theirs = self.pool_folders.volumes_of_host(&new.pool, &new.from)?;
        let lost = || SystemError::VolumeLost { id: new.id.clone() };
        let note = Note::read(&theirs.join(format!("{}.json", new.id)))?;
        let note = note.ok_or_else(lost)?.map_err(|detail| place.damaged(&detail))?;
        if let Some(why) = why_not(&note, new) {
            return Err(place.damaged(why));
        }
        let file = theirs.join(file_name(&new.id, note.generation));
        if !exists(&file)? {
            return Err(lost());
        }
        // As for a file that is taken: the other name of a link would lead out of the folder.
        if !fs::symlink_metadata(&file).map_err(failed("look at", &file))?.is_file() {
            return Err(place.damaged("its file on the other host is no regular file"));
        }
        files::ensure_folder(&self.layout.volumes(&new.pool))?;
        let here = self.layout.volumes(&new.pool).join(file_name(&new.id, note.generation));
        let arriving = Note { complete: false, arriving_from: Some(new.from.clone()), ..note };
        arriving.write(&place.note)?;
        link(&file, &here, &place)?;
        files::sync_parent(&here).map_err(failed("write", &here))?;
        let place = self.place(&new.pool, &new.id)?;
        let size = place.read_size()?;
        self.facts(&place, &here, &arriving, size)
    }

    /// Returns the file of a volume that is arriving, or has arrived.
    pub(in super::super) fn arriving_file(&self, pool: &str, id: &str) -> Result<Option<PathBuf>> {
        let place = self.place(pool, id)?;
        Ok(exists(&place.file)?.then_some(place.file))
    }

    pub(in super::super) fn drop_arriving(&self, pool: &str, id: &str) -> Result<()> {
        let _chains = self.lock(&[pool])?;
        let place = self.place(pool, id)?;
        let Some(Ok(note)) = Note::read(&place.note)? else { return Ok(()) };
        if note.arriving_from.is_none() {
            return Ok(());
        }
        // The note is the last: without it, nothing would know the other name.
        files::remove_if_there(&place.file).map_err(failed("remove", &place.file))?;
        files::sync_parent(&place.note).map_err(failed("write", &place.note))?;
        files::remove_if_there(&place.note).map_err(failed("remove", &place.note))?;
        files::sync_parent(&place.note).map_err(failed("write", &place.note))
    }

    /// Makes a volume that is arriving this host's. Returns false if it is not arriving.
    pub(super) fn take_arriving(&self, place: &Place, new: &NewTake) -> Result<bool> {
        let Some(Ok(note)) = Note::read(&place.note)? else { return Ok(false) };
        if note.arriving_from.as_ref() != Some(&new.from) || !exists(&place.file)? {
            return Ok(false);
        }
        let theirs = self.pool_folders.volumes_of_host(&new.pool, &new.from)?;
        let file = theirs.join(file_name(&new.id, note.generation));
        if exists(&file)? {
            if !is_same(&file, &place.file)? {
                return Err(place.damaged("a file of its name is in the folder of this host already"));
            }
            files::remove_if_there(&file).map_err(failed("remove", &file))?;
        }
        files::sync_parent(&file).map_err(failed("write", &file))?;
        Note { complete: true, arriving_from: None, ..note }.write(&place.note)?;
        let their_note = theirs.join(format!("{}.json", new.id));
        files::remove_if_there(&their_note).map_err(failed("remove", &their_note))?;
        tracing::info!(volume = place.id, host = new.from, "volume taken with its running guest");
        Ok(true)
    }
}

/// Whether this file is that of a volume whose guest is about to come: the QEMU of another host writes to it.
pub(in super::super) fn is_arriving(file: &Path, id: &str) -> Result<bool> {
    let note = Note::read(&file.with_file_name(format!("{id}.json")))?;
    Ok(note.is_some_and(|note| note.is_ok_and(|note| note.arriving_from.is_some())))
}

/// Gives a file a second name, unless it has that.
fn link(file: &Path, here: &Path, place: &Place) -> Result<()> {
    match fs::hard_link(file, here) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => match is_same(file, here)? {
            true => Ok(()),
            false => Err(place.damaged("a file of its name is in the folder of this host already")),
        },
        linked => linked.map_err(failed("link", file)),
    }
}

fn is_same(a: &Path, b: &Path) -> Result<bool> {
    let of = |path: &Path| {
        let about = fs::symlink_metadata(path).map_err(failed("look at", path))?;
        Ok::<_, SystemError>((about.dev(), about.ino()))
    };
    Ok(of(a)? == of(b)?)
}
