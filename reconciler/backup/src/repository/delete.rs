//! Deletions.

use std::collections::HashSet;
use std::sync::Arc;

use futures::{StreamExt as _, TryStreamExt as _};

use super::{
    CONCURRENCY, Inner, MAX_BLOCKS, Repository, block_name, disk_folder, manifest_name, note_name, writers,
};
use crate::block::BlockId;
use crate::error::{Error, Result};
use crate::ids::{BackupId, DiskId};
use crate::manifest;

impl Repository {
    /// Deletes a backup, and then the blocks of its disk that no backup needs: also those that an interrupted backup or an
    /// interrupted delete left. Does nothing else if there is no such backup, so that an interrupted delete can be repeated.
    ///
    /// *Errors*: [`Error::Damaged`] and [`Error::MissingBlock`] if the blocks of another backup of the disk are unknown. The backup is deleted
    /// then, and its blocks are after a delete of the other one. A transient error if the store lists another backup and does not have it,
    /// or still has this one.
    pub async fn delete(&self, disk: &DiskId, backup: &BackupId) -> Result<()> {
        let _writer = writers::lock(self.id(), disk).await;
        self.inner.require_same().await?;
        // A late write of a backup that was cancelled: a manifest that it makes after its deletion would never be deleted.
        self.inner.objects.remove_partial(&disk_folder(disk)).await?;
        self.inner.objects.delete(&manifest_name(disk, backup)).await?;
        let others = self.inner.backups(disk).await?;
        let needed = self.inner.needed(disk, &others, backup).await?;
        let mut surplus = Vec::new();
        let mut visit = |id, _| {
            if !needed.contains(&id) {
                surplus.push(id);
            }
        };
        self.inner.blocks(disk, &mut visit).await?;
        let mut settled = self.inner.noted(disk).await?;
        settled.retain(|id| !needed.contains(id));
        drop(needed);
        // Another site that shares the repository may have completed one meanwhile, whose blocks are among these.
        let now = self.inner.backups(disk).await?;
        if let Some(new) = now.iter().find(|backup| others.binary_search(backup).is_err()) {
            return Err(self.inner.behind(
                disk,
                new,
                "it was made while another backup of its disk was deleted",
            ));
        }
        let objects = &self.inner.objects;
        let deletes =
            futures::stream::iter(surplus).map(async |id| objects.delete(&block_name(disk, id)).await);
        deletes.buffer_unordered(CONCURRENCY).try_collect::<()>().await?;
        let deletes =
            futures::stream::iter(settled).map(async |id| objects.delete(&note_name(disk, id)).await);
        deletes.buffer_unordered(CONCURRENCY).try_collect().await
    }
}

impl Inner {
    /// The deletion is repeated later.
    fn behind(&self, disk: &DiskId, backup: &BackupId, detail: &str) -> Error {
        let place = self.objects.place(&manifest_name(disk, backup));
        Error::NoAnswer { action: "read", place, attempts: 1, detail: detail.to_owned() }
    }

    /// Returns the ids of the blocks and indexes of all these backups of a disk but the one that was deleted just now.
    async fn needed(
        self: &Arc<Self>,
        disk: &DiskId,
        backups: &[BackupId],
        deleted: &BackupId,
    ) -> Result<HashSet<BlockId>> {
        let mut needed = HashSet::new();
        for backup in backups {
            let behind = |detail: &str| self.behind(disk, backup, detail);
            let manifest = match self.manifest(disk, backup).await? {
                // Some stores list for a while what was deleted.
                None if backup == deleted => continue,
                // A write that was cut off came after the deletion, and would leave a backup that nothing deletes.
                Some(_) if backup == deleted => {
                    return Err(behind("it is there again after it was deleted"));
                }
                // Nothing else deletes backups of the disk meanwhile: the store is behind, and the blocks of this one must stay.
                None => return Err(behind("the store lists it, and answers that it is not there")),
                Some(manifest) => manifest,
            };
            for part in manifest::parts(manifest.size) {
                let index = manifest.indexes.get(part.index).copied().flatten();
                // Backups of a disk share the indexes of its unchanged parts.
                if index.is_some_and(|index| needed.insert(index)) {
                    needed.extend(self.index(disk, &manifest, part).await?);
                }
                if needed.len() > MAX_BLOCKS {
                    let place = self.objects.place(&disk_folder(disk));
                    return Err(Error::TooMany { place, what: "blocks", limit: MAX_BLOCKS });
                }
            }
        }
        Ok(needed)
    }
}
