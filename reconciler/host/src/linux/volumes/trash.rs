//! The trash: holds the files of deleted disks until they expire. The only module that deletes disks' data.

use std::fs;
use std::sync::PoisonError;
use std::time::Duration;

use jiff::Timestamp;

use super::super::files::{self, failed};
use super::super::layout::{check_name, is_name};
use super::clock::{self, Boot};
use super::note::Note;
use super::{LinuxVolumes, Place, RAW_SUFFIX, Result, SUFFIX, exists};
use crate::{SystemError, TrashedVolume, VolumeFacts, VolumeOwner};

impl LinuxVolumes {
    pub(in super::super) fn trash(&self, pool: &str, id: &str) -> Result<()> {
        let _chains = self.lock(&[pool])?;
        let place = self.place(pool, id)?;
        let Some(note) = Note::read(&place.note)? else {
            // Its file system may have been unmounted meanwhile.
            return self.pool_folders.ensure_there(pool);
        };
        if note.as_ref().is_ok_and(|note| note.device.is_some()) {
            // Its data stays where it is.
            self.devices.forget(id);
            remove_note(&place)?;
            tracing::info!(volume = id, "block device given up");
            return Ok(());
        }
        if exists(&place.file)? {
            let note = note.map_err(|detail| place.damaged(&detail))?;
            let mut note = self.set_aside(&place, note)?;
            note.deleted_at = Some(Timestamp::now());
            note.deleted_after = Some(self.trash_clock()?);
            files::ensure_folder(&self.layout.trash(pool))?;
            // First the note, then the file: a file in the trash always has its date.
            note.write(&place.trashed_note)?;
            fs::rename(&place.file, &place.trashed_file).map_err(failed("move to the trash", &place.file))?;
            files::sync_parent(&place.trashed_file).map_err(failed("write", &place.trashed_file))?;
            tracing::info!(volume = id, "volume in the trash");
        } else {
            // Once more: without it, a file that is out of reach would be taken for one that is gone.
            self.pool_folders.ensure_there(pool)?;
        }
        remove_note(&place)
    }

    pub(in super::super) fn restore(&self, pool: &str, id: &str, owner: &VolumeOwner) -> Result<VolumeFacts> {
        let _chains = self.lock(&[pool])?;
        let place = self.place(pool, id)?;
        let lost = || SystemError::VolumeLost { id: id.to_owned() };
        if exists(&place.trashed_file)? {
            if exists(&place.file)? {
                return Err(place.damaged("it is in the pool and in the trash"));
            }
            let note = Note::read(&place.trashed_note)?.ok_or_else(lost)?;
            let mut note = note.map_err(|detail| place.damaged(&detail))?;
            note.owner = owner.clone();
            note.deleted_at = None;
            note.deleted_after = None;
            note.retained = false;
            note.complete = true;
            let pending = note.pending_snapshot.take();
            note.pending_snapshot = pending.filter(|id| self.is_unfinished(pool, id));
            files::ensure_folder(&self.layout.volumes(pool))?;
            note.write(&place.note)?;
            fs::rename(&place.trashed_file, &place.file)
                .map_err(failed("bring back from the trash", &place.file))?;
            files::sync_parent(&place.file).map_err(failed("write", &place.file))?;
            files::give(&place.file, self.owner.as_ref())?;
            tracing::info!(volume = id, "volume restored");
        }
        let found = self.volume(pool, id)?.ok_or_else(lost)?;
        files::remove_if_there(&place.trashed_note).map_err(failed("remove", &place.trashed_note))?;
        Ok(found)
    }

    /// Whether a snapshot is begun and not finished: it is finished once its volume is back. One that was finished or deleted while the volume
    /// was in the trash is not, nor is one with an unreadable note, which those that use the chain find.
    fn is_unfinished(&self, pool: &str, id: &str) -> bool {
        let note = self.snapshot_place(pool, id).and_then(|place| place.read());
        note.is_ok_and(|note| note.is_some_and(|note| note.taken.is_none()))
    }

    pub(in super::super) fn purge(&self, pool: &str, older_than: Duration) -> Result<Vec<String>> {
        check_name("pool", pool)?;
        self.pool_folders.ensure_there(pool)?;
        self.settle_moves(pool)?;
        let _chains = self.lock(&[pool])?;
        let now = self.trash_clock()?;
        let mut purged = Vec::new();
        for name in files::names(&self.layout.trash(pool))? {
            let Some(id) = name.strip_suffix(".json").filter(|id| is_name(id)) else {
                continue;
            };
            let place = self.place(pool, id)?;
            let Some(Ok(note)) = Note::read(&place.trashed_note)? else {
                continue;
            };
            if note.deleted_at.is_none() {
                continue;
            }
            let rested = rested(&place, &note, now)?;
            // A note in the pool means that a move, to or from the trash, is incomplete: its operation has to be
            // completed first.
            if rested < older_than || exists(&place.note)? && exists(&place.trashed_file)? {
                continue;
            }
            if exists(&place.trashed_file)? {
                fs::remove_file(&place.trashed_file).map_err(failed("delete", &place.trashed_file))?;
                tracing::info!(volume = id, "volume purged from the trash");
                purged.push(id.to_owned());
            }
            // Without a file it is the note of an interrupted removal or restore.
            files::remove_if_there(&place.trashed_note).map_err(failed("remove", &place.trashed_note))?;
        }
        self.collect_snapshots(pool)?;
        Ok(purged)
    }

    pub(in super::super) fn trashed(&self) -> Result<Vec<TrashedVolume>> {
        let mut trashed = Vec::new();
        let mut clock = None;
        for pool in self.pools()? {
            for name in files::names(&self.layout.trash(&pool))? {
                let id = name.strip_suffix(SUFFIX).or_else(|| name.strip_suffix(RAW_SUFFIX));
                let Some(id) = id.filter(|id| is_name(id)) else {
                    continue;
                };
                let place = self.place(&pool, id)?;
                let Some(Ok(note)) = Note::read(&place.trashed_note)? else {
                    continue;
                };
                let size = place.size_of(&place.trashed_file).unwrap_or(0);
                let now = match clock {
                    Some(now) => now,
                    None => *clock.insert(self.trash_clock()?),
                };
                trashed.push(TrashedVolume {
                    volume: self.listed(&place, &place.trashed_file, &note, size),
                    deleted_at: note.deleted_at.unwrap_or(Timestamp::UNIX_EPOCH),
                    rested: rested(&place, &note, now)?,
                });
            }
        }
        Ok(trashed)
    }

    pub(in super::super) fn trash_clock(&self) -> Result<u64> {
        let _alone = self.clock.lock().unwrap_or_else(PoisonError::into_inner);
        clock::read(self.layout.root(), &Boot::now()?)
    }
}

/// Time in the trash by the trash's clock. Volumes without a clock reading, or with one of a clock that has been reset
/// since, start at 0 now.
fn rested(place: &Place, note: &Note, now: u64) -> Result<Duration> {
    match note.deleted_after.filter(|after| *after <= now) {
        Some(after) => Ok(Duration::from_secs(now - after)),
        None => {
            Note { deleted_after: Some(now), ..note.clone() }.write(&place.trashed_note)?;
            Ok(Duration::ZERO)
        }
    }
}

fn remove_note(place: &Place) -> Result<()> {
    files::remove_if_there(&place.note).map_err(failed("remove", &place.note))
}
