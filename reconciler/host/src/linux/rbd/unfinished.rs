//! Volumes that were begun and not finished. Of a Disk that is deleted meanwhile, nothing else removes the image: to the agent there is no
//! volume. One whose Disk is still there is made again.

use std::sync::Arc;

use super::note::Note;
use super::{RbdPool, Result, locked};

/// A volume that no other call makes or removes meanwhile.
#[derive(Debug)]
pub(super) struct Alone<'a> {
    pool: &'a RbdPool,
    id: String,
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        locked(&self.pool.making).remove(&self.id);
    }
}

impl RbdPool {
    /// None: another call has it.
    pub(super) fn alone(&self, id: &str) -> Option<Alone<'_>> {
        let is_new = locked(&self.making).insert(id.to_owned());
        is_new.then(|| Alone { pool: self, id: id.to_owned() })
    }

    /// Begins to remove the volumes that are not finished and that no call is making.
    pub(super) async fn sweep(self: &Arc<Self>) -> Result<()> {
        let mut unfinished = self.notes().await?;
        unfinished.retain(Note::is_unfinished);
        if unfinished.is_empty() {
            return Ok(());
        }
        if let Ok(alone) = Arc::clone(&self.removing).try_lock_owned() {
            let pool = Arc::clone(self);
            tokio::spawn(async move {
                for note in unfinished {
                    let id = note.volume_id;
                    if let Err(error) = pool.remove_unfinished(&id).await {
                        tracing::warn!(volume = id, error = error.chain(), "unfinished volume not removed");
                    }
                }
                drop(alone);
            });
        }
        Ok(())
    }

    async fn remove_unfinished(&self, id: &str) -> Result<()> {
        let Some(_alone) = self.alone(id) else { return Ok(()) };
        // A call may have finished it since.
        let Some(note) = self.note(id).await?.filter(Note::is_unfinished) else { return Ok(()) };
        match self.is_made_for(&note).await? {
            true => self.remove(id).await,
            false => self.remove_note(id).await,
        }
    }

    /// Whether the image of a volume that is not finished, if there is one, is of a call of this host for the same Disk.
    pub(super) async fn is_made_for(&self, note: &Note) -> Result<bool> {
        let meta = self.meta(&Self::name_of(&note.volume_id)).await?;
        Ok(match meta.map(|text| serde_json::from_str::<Note>(&text)) {
            None => true,
            // A clone of another volume has that one's note until it gets its own.
            Some(Ok(found)) if found.volume_id != note.volume_id => true,
            Some(Ok(found)) => found.owner.uid == note.owner.uid && found.host == note.host,
            Some(Err(_)) => false,
        })
    }
}
