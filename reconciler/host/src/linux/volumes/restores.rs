//! Restores: a volume gets the data of a snapshot of it, and the file that it had is another volume, in the trash.
//!
//! ```text
//!              overlay on      note: overlay, restore done,     note in the trash,       note:
//!   volume ──▶ the snapshot ──▶ former file ────────────────▶  former file moved there ──▶ no former file
//! ```
//!
//! The volume's note is the one step that counts: before it nothing names the overlay, after it the restore is done and is never
//! done again, also if the status of the Disk is lost. A crash after it leaves the former file to [`LinuxVolumes::finish_restore`];
//! its base stays meanwhile, since the note names it.

use std::fs;

use berth_qemu::qcow2;
use jiff::Timestamp;
use sha2::{Digest, Sha256};

use super::super::files::{self, failed};
use super::encryption::NewFile;
use super::note::{Former, Note};
use super::snapshots::{is_written, relative};
use super::{LinuxVolumes, Place, Result, exists, file_name};
use crate::{NewRestore, SystemError, VolumeFacts};

impl LinuxVolumes {
    pub(in super::super) fn restore_snapshot(&self, new: &NewRestore) -> Result<VolumeFacts> {
        let _chains = self.lock(&[&new.pool])?;
        let place = self.place(&new.pool, &new.volume)?;
        let lost = || SystemError::VolumeLost { id: new.volume.clone() };
        self.volume(&new.pool, &new.volume)?.ok_or_else(lost)?;
        let note = Note::read(&place.note)?.ok_or_else(lost)?.map_err(|detail| place.damaged(&detail))?;
        let note = self.set_aside(&place, note)?;
        if !new.is_done(&note.restores) {
            let note = self.continue_on_snapshot(&place, note, new)?;
            self.set_aside(&place, note)?;
        }
        self.volume(&new.pool, &new.volume)?.ok_or_else(lost)
    }

    /// Has the volume continue in an overlay on the snapshot. Returns its note, which has the former file.
    fn continue_on_snapshot(&self, place: &Place, note: Note, new: &NewRestore) -> Result<Note> {
        let busy = |detail| Err(SystemError::VolumeBusy { id: new.volume.clone(), detail });
        let id = &new.snapshot;
        let snapshot = self.snapshot(&new.pool, id)?.filter(|snapshot| snapshot.taken.is_some());
        let snapshot = snapshot.ok_or_else(|| SystemError::SnapshotLost { id: id.clone() })?;
        if snapshot.volume != new.volume {
            return Err(place.damaged(&format!("snapshot {id} is of volume {}", snapshot.volume)));
        }
        // It continues in the next file, as a snapshot that is begun expects to.
        if note.pending_snapshot.is_some() || self.is_being_taken(&new.pool, &new.volume)? {
            return busy("a snapshot of it is being taken");
        }
        if is_written(&place.file)? {
            return busy("a running QEMU has it open");
        }
        let generation = note.generation + 1;
        let overlay = place.file.with_file_name(file_name(&place.id, generation));
        // A crash left it: no note names it, so nothing has opened it.
        files::remove_if_there(&overlay).map_err(failed("remove", &overlay))?;
        let size = new.size.max(snapshot.size).next_multiple_of(qcow2::SECTOR);
        let (backing, encryption) = (relative(id), note.encryption.as_ref());
        self.create_file(place, &overlay, NewFile { size, backing: Some(&backing), encryption })?;
        files::give(&overlay, self.owner.as_ref())?;
        files::sync_parent(&overlay).map_err(failed("write", &overlay))?;
        let former = Former {
            generation: note.generation,
            base: note.base,
            snapshot: note.snapshot,
            reserved: note.reserved,
        };
        let note = Note {
            base: None,
            snapshot: Some(id.clone()),
            generation,
            restores: new.added_to(note.restores, Timestamp::now()),
            former: Some(former),
            // The overlay has no space reserved yet.
            reserved: note.reserved.map(|_| 0),
            ..note
        };
        note.write(&place.note)?;
        tracing::info!(volume = place.id, snapshot = id, "volume restored from a snapshot");
        Ok(note)
    }

    pub(in super::super) fn finish_restore(&self, pool: &str, id: &str) -> Result<()> {
        let _chains = self.lock(&[pool])?;
        let place = self.place(pool, id)?;
        let Some(note) = Note::read(&place.note)? else { return Ok(()) };
        self.set_aside(&place, note.map_err(|detail| place.damaged(&detail))?).map(drop)
    }

    /// Moves the file from before a restore to the trash, as a volume of its own. Returns the note without it. The caller holds the
    /// lock.
    pub(super) fn set_aside(&self, place: &Place, note: Note) -> Result<Note> {
        let Some(former) = &note.former else { return Ok(note) };
        let file = place.file.with_file_name(file_name(&place.id, former.generation));
        if exists(&file)? {
            let aside = self.place(&place.pool, &former_id(&place.id, former.generation))?;
            let trashed = Note {
                volume_id: aside.id.clone(),
                base: former.base.clone(),
                snapshot: former.snapshot.clone(),
                generation: 0,
                pending_snapshot: None,
                restores: Vec::new(),
                former: None,
                reserved: former.reserved,
                deleted_at: Some(Timestamp::now()),
                deleted_after: Some(self.trash_clock()?),
                ..note.clone()
            };
            files::ensure_folder(&self.layout.trash(&place.pool))?;
            // First the note, then the file: a file in the trash always has its date.
            trashed.write(&aside.trashed_note)?;
            fs::rename(&file, &aside.trashed_file).map_err(failed("move to the trash", &file))?;
            for moved in [&aside.trashed_file, &file] {
                files::sync_parent(moved).map_err(failed("write", moved))?;
            }
            tracing::info!(volume = place.id, former = aside.id, "data from before the restore in the trash");
        }
        let note = Note { former: None, ..note };
        note.write(&place.note)?;
        Ok(note)
    }
}

/// The identity of the data that a volume had in this generation: the same after a crash, and different for each.
fn former_id(volume: &str, generation: u32) -> String {
    let digest = Sha256::digest(format!("{volume}.{generation}"));
    let digits: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    format!("v-{digits}")
}

#[cfg(test)]
#[path = "restore_tests.rs"]
mod tests;
