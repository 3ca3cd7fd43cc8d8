//! Notes of the damaged blocks of a disk. The listing of a store does not show damage: without a note, backups would go on relying on a
//! block that a verification, a restore or another read has found damaged.
//!
//! ```text
//!   read: damaged ─▶ noted ─▶ (a backup that has the block) ─▶ stored anew ─▶ note deleted
//!                          └▶ (no backup has it any more) ─▶ deleted with the block
//! ```

use std::collections::{BTreeSet, HashSet};

use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _};

use super::{CONCURRENCY, Inner, MAX_BLOCKS, block_name, note_name, notes_folder};
use crate::block::BlockId;
use crate::error::{Error, Result};
use crate::ids::DiskId;

/// The maximum number of notes that one read makes. The next one makes further ones.
pub(super) const MOST_NOTES: usize = 10_000;
/// Some stores refuse objects without content.
const NOTE: &[u8] = b"damaged\n";

impl Inner {
    /// Notes that these blocks of a disk are damaged. A failure is only logged: the result of the read does not depend on it, and the next one
    /// repeats it.
    pub(super) async fn note_damaged(&self, disk: &DiskId, damaged: BTreeSet<BlockId>) {
        let objects = &self.objects;
        let notes = futures::stream::iter(damaged)
            .map(async |id| objects.put(&note_name(disk, id), Bytes::from_static(NOTE)).await);
        let noted: Result<()> = notes.buffer_unordered(CONCURRENCY).try_collect().await;
        if let Err(error) = noted {
            tracing::warn!(%disk, %error, "damaged blocks cannot be noted: the next backup of the disk may rely on them");
        }
    }

    /// Passes the result of a read on, and notes the one of these blocks that is damaged, if it says so.
    pub(super) async fn noting<T>(&self, disk: &DiskId, ids: &[BlockId], read: Result<T>) -> Result<T> {
        if let Err(Error::Damaged { place, .. }) = &read {
            let damaged = ids.iter().filter(|id| self.objects.place(&block_name(disk, **id)) == *place);
            self.note_damaged(disk, damaged.copied().collect()).await;
        }
        read
    }

    /// Returns the blocks of a disk that were found damaged and not stored anew since.
    pub(super) async fn noted(&self, disk: &DiskId) -> Result<HashSet<BlockId>> {
        let mut noted = HashSet::new();
        let mut visit = |name: &str, _| {
            // A disk has no more blocks.
            if noted.len() < MAX_BLOCKS {
                noted.extend(BlockId::parse(name));
            }
            Ok(())
        };
        self.objects.list(&notes_folder(disk), &mut visit).await?;
        Ok(noted)
    }
}
