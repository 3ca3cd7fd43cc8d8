//! Snapshots for copies and images that a crash has left begun, before their volumes continued. No object owns them: if the copy or the image
//! is deleted meanwhile, nothing else finishes or removes them, and their volumes would be neither restored nor moved any more.

use super::{LinuxVolumes, Result};
use crate::SystemError;

impl LinuxVolumes {
    /// Removes those of processes that have ended: one agent acts on a state directory. One that is still wanted is begun anew.
    pub(in super::super) fn forget_begun(&self) -> Result<()> {
        for pool in self.pools()? {
            for id in self.snapshot_ids(&pool)? {
                match self.forget_if_begun(&pool, &id) {
                    // Its volume has continued: the Disk of that finishes it.
                    Ok(()) | Err(SystemError::VolumeBusy { .. }) => {}
                    Err(error) => {
                        tracing::warn!(snapshot = id, error = error.chain(), "begun snapshot not removed");
                    }
                }
            }
        }
        Ok(())
    }

    fn forget_if_begun(&self, pool: &str, id: &str) -> Result<()> {
        let note = self.snapshot_place(pool, id)?.read()?;
        match note.is_some_and(|note| note.taken.is_none() && note.owner.is_none()) {
            true => self.delete_snapshot(pool, id),
            false => Ok(()),
        }
    }
}
