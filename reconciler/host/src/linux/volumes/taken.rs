//! Volumes of another host, which is gone for good or has given their VM up, in the folder of a shared pool: one is moved to this host's
//! folder.
//!
//! ```text
//!                             checked, locked      note here (intent)      renamed      note here (complete)      note there removed
//!    hosts/OLD: note, file ─────────────────▶ ○ ────────────────────▶ ○ ──────────▶ ○ ─────────────────────▶ ○ ───────────────────▶ volume
//! ```
//!
//! A crash before the renaming leaves the file there, and the next call begins again. One after it leaves a volume here, and there at most a
//! note without a file, which makes the volume a lost one for that host, until it takes the volume back.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use berth_qemu::qcow2::ImageLock;
use nix::fcntl::OFlag;

use super::super::files::{self, failed};
use super::note::Note;
use super::{LinuxVolumes, Place, Result, exists, file_name, raw};
use crate::{NewTake, SystemError, VolumeFacts};

impl LinuxVolumes {
    /// Moves a volume from the folder of another host to that of this one. When the volume is here, the other folder is not looked at.
    pub(in super::super) fn take_from_host(&self, new: &NewTake) -> Result<VolumeFacts> {
        let _chains = self.lock(&[&new.pool])?;
        let place = self.place(&new.pool, &new.id)?;
        let lost = || SystemError::VolumeLost { id: new.id.clone() };
        if self.volume_with_file(&new.pool, &new.id)?.is_none() {
            if exists(&place.trashed_file)? {
                return Err(place.damaged("it is in the trash: it has to be restored, not taken from a host"));
            }
            if self.take_arriving(&place, new)? {
                // Its file stays that of the user of the QEMU that has it open.
                return self.volume(&new.pool, &new.id)?.ok_or_else(lost);
            }
            self.take_file(&place, new)?;
        }
        self.finish(&place)?;
        self.volume(&new.pool, &new.id)?.ok_or_else(lost)
    }

    /// Returns a volume of this host. A note without a file is no volume here: the host that took the file from this one may have been
    /// interrupted before it removed the note.
    pub(super) fn volume_with_file(&self, pool: &str, id: &str) -> Result<Option<VolumeFacts>> {
        match self.volume(pool, id) {
            Err(SystemError::VolumeLost { .. }) => Ok(None),
            found => found,
        }
    }

    fn take_file(&self, place: &Place, new: &NewTake) -> Result<()> {
        let theirs = self.pool_folders.volumes_of_host(&new.pool, &new.from)?;
        let their_note = theirs.join(format!("{}.json", new.id));
        let lost = || SystemError::VolumeLost { id: new.id.clone() };
        let note = Note::read(&their_note)?.ok_or_else(lost)?.map_err(|detail| place.damaged(&detail))?;
        if let Some(why) = why_not(&note, new) {
            return Err(place.damaged(why));
        }
        let file = theirs.join(file_name(&new.id, note.generation));
        if !exists(&file)? {
            return Err(lost());
        }
        let here = self.layout.volumes(&new.pool).join(file_name(&new.id, note.generation));
        if exists(&here)? {
            return Err(place.damaged("a file of its name is in the folder of this host already"));
        }
        // As long as a QEMU of any host has it open, it stays, if the file system has locks between hosts.
        let _locked = lock(&file, &new.id)?;
        files::ensure_folder(&self.layout.volumes(&new.pool))?;
        Note { complete: false, ..note.clone() }.write(&place.note)?;
        fs::rename(&file, &here).map_err(failed("move", &file))?;
        files::sync_parent(&here).map_err(failed("write", &here))?;
        files::sync_parent(&file).map_err(failed("write", &file))?;
        Note { complete: true, ..note }.write(&place.note)?;
        files::remove_if_there(&their_note).map_err(failed("remove", &their_note))?;
        tracing::info!(volume = place.id, host = new.from, "volume taken from another host");
        Ok(())
    }
}

/// Returns why the volume with this note is not taken, if it is not.
pub(super) fn why_not(note: &Note, new: &NewTake) -> Option<&'static str> {
    let base = note.base.as_ref().map(|base| &base.digest);
    let refusals = [
        (note.volume_id != new.id, "its note is that of another volume"),
        (note.owner.uid != new.uid, "it is of another Disk"),
        (note.encryption.is_some(), "it is encrypted: only plain volumes are taken from another host"),
        (note.raw, raw::REFUSED),
        (
            note.generation > 0 || note.snapshots().next().is_some() || note.former.is_some(),
            "it is based on snapshots, or was restored: only volumes without them are taken from another host",
        ),
        (
            note.moved_to.is_some() || note.moved_from.is_some(),
            "it was being moved to another pool when its VM left its host",
        ),
        (base != new.base.as_ref(), "it is based on another image than that of its Disk"),
    ];
    refusals.into_iter().find_map(|(refuses, why)| refuses.then_some(why))
}

fn lock(file: &Path, id: &str) -> Result<ImageLock> {
    let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits();
    let opened = OpenOptions::new().read(true).write(true).custom_flags(flags).open(file);
    let opened = opened.map_err(failed("open", file))?;
    if !opened.metadata().map_err(failed("read", file))?.is_file() {
        let detail = "it is no regular file".to_owned();
        return Err(SystemError::VolumeDamaged { id: id.to_owned(), detail });
    }
    ImageLock::new(opened).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => {
            let detail = "a QEMU of another host has it open";
            SystemError::VolumeBusy { id: id.to_owned(), detail }
        }
        _ => failed("lock", file)(error),
    })
}
