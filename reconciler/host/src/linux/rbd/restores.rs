//! Restores: the image of a volume gets the data of a snapshot of it again.
//!
//! ```text
//!            note: restore done, begun      rbd snap rollback, resize      note: none begun
//!   volume ────────────────────────▶ ○ ──────────────────────────▶ ○ ───────────────▶ volume
//! ```
//!
//! A restore that has begun is finished before a machine opens the disk, also after a crash. The data from before it is gone: in Ceph it
//! would be another image than that of the snapshots.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::client::{LONG, PATIENCE};
use super::images::bytes;
use super::note::{Note, Restoring};
use super::volumes::damaged;
use super::{RbdPool, Result};
use crate::{NewRestore, SystemError, VolumeFacts};

/// How long a call waits for a restore: of a large disk it takes minutes.
const RESTORE_WAIT: Duration = Duration::from_secs(30);
/// How long a restore may take. One that is ended before begins at the first object again.
const ROLLBACK: Duration = LONG.saturating_mul(24);

impl RbdPool {
    pub(in super::super) async fn restore_snapshot(
        self: &Arc<Self>,
        new: &NewRestore,
    ) -> Result<VolumeFacts> {
        let lost = || SystemError::VolumeLost { id: new.volume.clone() };
        self.finish_restore(&new.volume).await?;
        let found = self.volume(&new.volume).await?.ok_or_else(lost)?;
        if new.is_done(&found.restores) {
            return Ok(found);
        }
        let snapshot = self.finished(&new.snapshot).await?;
        if snapshot.volume != new.volume {
            let detail = format!("snapshot {} is of volume {}", snapshot.id, snapshot.volume);
            return Err(damaged(&new.volume, &detail));
        }
        self.ensure_closed(&new.volume).await?;
        let alone = self.trashing.lock().await;
        let note = self.note(&new.volume).await?.filter(Note::is_there).ok_or_else(lost)?;
        let restoring = Restoring { snapshot: snapshot.id, size: new.size.max(snapshot.size) };
        let restores = new.added_to(note.restores, Timestamp::now());
        let unwritten_since = None;
        self.write_note(&Note { restores, restoring: Some(restoring), unwritten_since, ..note }).await?;
        drop(alone);
        self.finish_restore(&new.volume).await?;
        self.volume(&new.volume).await?.ok_or_else(lost)
    }

    /// Finishes a restore that has begun. It goes on, also when nothing waits for it any more.
    ///
    /// *Errors*: [`SystemError::VolumeBusy`] while it goes on for longer.
    pub(in super::super) async fn finish_restore(self: &Arc<Self>, id: &str) -> Result<()> {
        if self.restoring(id).await?.is_none() {
            return Ok(());
        }
        self.ensure_there().await?;
        let (pool, volume) = (Arc::clone(self), id.to_owned());
        let work = tokio::spawn(async move {
            let Some(_alone) = pool.alone(&volume) else { return Err(busy(&volume)) };
            let done = pool.roll_back(&volume).await;
            if let Err(error) = &done {
                tracing::warn!(volume, error = error.chain(), "volume in Ceph not restored");
            }
            done
        });
        match tokio::time::timeout(RESTORE_WAIT, work).await {
            Ok(Ok(done)) => done,
            Ok(Err(_)) | Err(_) => Err(busy(id)),
        }
    }

    async fn roll_back(&self, id: &str) -> Result<()> {
        let Some(note) = self.note(id).await? else { return Ok(()) };
        let Some(Restoring { snapshot, size }) = note.restoring.clone() else { return Ok(()) };
        let size = size.saturating_add(note.header());
        // Another host may have taken it since the restore has begun.
        if !self.owns_now(&note).await? {
            return Err(SystemError::VolumeLost { id: id.to_owned() });
        }
        self.ensure_closed(id).await?;
        let image = Self::name_of(id);
        let from = self.snapshot_spec(id, &snapshot);
        self.must(&["snap", "rollback", "--no-progress", &from], ROLLBACK).await?;
        if self.size(&image).await?.is_some_and(|now| now < size) {
            let spec = self.spec(&image);
            self.must(&["resize", "--no-progress", "--size", &bytes(size), &spec], PATIENCE * 4).await?;
        }
        // It may have got another owner, or gone to the trash, meanwhile.
        let _alone = self.trashing.lock().await;
        if let Some(note) = self.note(id).await? {
            let unwritten_since = Some(snapshot.clone());
            self.write_note(&Note { restoring: None, unwritten_since, ..note }).await?;
        }
        tracing::info!(volume = id, snapshot, "volume in Ceph restored from a snapshot");
        Ok(())
    }

    /// Finishes the restore of a volume in the trash, whose snapshot, and so its image, would otherwise stay for good. One that is retained
    /// without a Disk may have other data by now: its restore waits for a Disk.
    pub(super) async fn finish_in_trash(&self, id: &str) -> Result<()> {
        if !self.note(id).await?.is_some_and(|note| note.restores_in_trash()) {
            return Ok(());
        }
        match self.alone(id) {
            Some(_alone) => self.roll_back(id).await,
            None => Ok(()),
        }
    }

    /// Whether the image of a volume has the data of this snapshot, from which it was restored: no machine could write to it since.
    pub(in super::super) async fn is_as_in_snapshot(&self, id: &str, snapshot: &str) -> Result<bool> {
        let note = self.note(id).await?.filter(|note| note.is_there() && note.restoring.is_none());
        Ok(note.is_some_and(|note| note.unwritten_since.as_deref() == Some(snapshot)))
    }

    /// Notes that a machine may write to the image of a volume from now on.
    pub(super) async fn note_use(&self, id: &str) -> Result<()> {
        let _alone = self.trashing.lock().await;
        match self.note(id).await? {
            Some(note) if note.unwritten_since.is_some() => {
                self.write_note(&Note { unwritten_since: None, ..note }).await
            }
            _ => Ok(()),
        }
    }

    /// Returns the restore that has begun and is not finished, also of a volume in the trash.
    pub(super) async fn restoring(&self, id: &str) -> Result<Option<Restoring>> {
        Ok(self.note(id).await?.and_then(|note| note.restoring))
    }

    /// Checks that no client has the image of a volume open.
    async fn ensure_closed(&self, id: &str) -> Result<()> {
        let (_, open) = self.lockers_and_watchers(&Self::name_of(id)).await?;
        match open.is_empty() {
            true => Ok(()),
            // Ceph forgets a client that was killed after half a minute.
            false => Err(SystemError::VolumeBusy {
                id: id.to_owned(),
                detail: "a client of Ceph has its image open, or was killed a moment ago",
            }),
        }
    }
}

fn busy(id: &str) -> SystemError {
    SystemError::VolumeBusy { id: id.to_owned(), detail: "it is being restored from a snapshot in Ceph" }
}
