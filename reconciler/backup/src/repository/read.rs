//! Restores, and reads of blocks.

use std::sync::Arc;

use futures::{Stream, StreamExt as _, TryStreamExt as _};
use tokio_util::task::AbortOnDropHandle;

use super::{CONCURRENCY, Inner, Repository, block_binding, block_name, blocking};
use crate::block::BlockId;
use crate::disk::{Progress, Sink};
use crate::error::{Error, Result};
use crate::ids::{BackupId, DiskId};
use crate::manifest::{self, MAX_INDEX, Manifest, Part};
use crate::sealed;

impl Repository {
    /// Restores a backup to a disk that is at least as large. Bytes after the size of the backup are left as they are.
    ///
    /// *Guarantees*: only data that was authenticated is written, and on success all of it is on the disk's medium. After an error the
    /// disk has a part of the data.
    ///
    /// *Errors*: [`Error::NoBackup`], [`Error::MissingBlock`], [`Error::Damaged`], [`Error::Sink`] and those of the store.
    pub async fn restore<S: Sink + ?Sized>(
        &self,
        disk: &DiskId,
        backup: &BackupId,
        sink: &mut S,
        progress: impl Fn(Progress) + Send + Sync,
    ) -> Result<()> {
        let manifest = self.complete(disk, backup).await?;
        if sink.size() < manifest.size {
            return Err(Error::DiskTooSmall { size: sink.size(), needed: manifest.size });
        }
        for part in manifest::parts(manifest.size) {
            let index = manifest.indexes.get(part.index).copied().flatten();
            let ids = self.inner.index(disk, &manifest, part).await;
            let ids = self.inner.noting(disk, index.as_slice(), ids).await?;
            for (offset, length) in zero_runs(part, &ids) {
                let written = sink.write_zeroes(offset, length).await;
                written.map_err(|source| Error::Sink { offset, source })?;
            }
            let mut blocks = Arc::clone(&self.inner).read_blocks(disk, wanted(part, &ids));
            loop {
                let next = blocks.try_next().await;
                let Some((offset, data)) = self.inner.noting(disk, &ids, next).await? else { break };
                sink.write_at(offset, &data).await.map_err(|source| Error::Sink { offset, source })?;
                progress(Progress { done: offset, total: manifest.size });
            }
            progress(Progress { done: part.offset + part.length, total: manifest.size });
        }
        sink.flush().await.map_err(|source| Error::Sink { offset: 0, source })
    }

    pub(super) async fn complete(&self, disk: &DiskId, backup: &BackupId) -> Result<Manifest> {
        let manifest = self.inner.manifest(disk, backup).await?;
        manifest.ok_or_else(|| Error::NoBackup { disk: disk.to_string(), backup: backup.to_string() })
    }
}

/// A block to read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) offset: u64,
    pub(super) length: usize,
    pub(super) id: BlockId,
}

/// The blocks of a part that are not zeros.
pub(super) fn wanted(part: Part, ids: &[BlockId]) -> Vec<Wanted> {
    let blocks = ids.iter().enumerate().filter(|(_, id)| **id != BlockId::ZERO);
    let wanted = blocks.map(|(at, id)| {
        let (offset, length) = part.block(at);
        Wanted { offset, length, id: *id }
    });
    wanted.collect()
}

/// The offsets and lengths of consecutive zero blocks of a part.
fn zero_runs(part: Part, ids: &[BlockId]) -> Vec<(u64, u64)> {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for (at, _) in ids.iter().enumerate().filter(|(_, id)| **id == BlockId::ZERO) {
        let (offset, length) = part.block(at);
        match runs.last_mut().filter(|(start, so_far)| start + so_far == offset) {
            Some((_, so_far)) => *so_far += length as u64,
            None => runs.push((offset, length as u64)),
        }
    }
    runs
}

impl Inner {
    /// Returns the ids of the blocks of a part.
    pub(super) async fn index(
        self: &Arc<Self>,
        disk: &DiskId,
        manifest: &Manifest,
        part: Part,
    ) -> Result<Vec<BlockId>> {
        let Some(id) = manifest.indexes.get(part.index).copied().flatten() else {
            return Ok(vec![BlockId::ZERO; part.blocks()]);
        };
        let name = block_name(disk, id);
        let data = self.read_block(disk, id, MAX_INDEX).await?;
        manifest::decode_index(&data, part)
            .map_err(|detail| Error::Damaged { place: self.objects.place(&name), detail })
    }

    /// Reads blocks in order, each with its offset. One is with the caller while the others are read.
    pub(super) fn read_blocks(
        self: Arc<Self>,
        disk: &DiskId,
        blocks: Vec<Wanted>,
    ) -> impl Stream<Item = Result<(u64, Vec<u8>)>> + Send + Unpin + use<> {
        let disk = disk.clone();
        let reads = futures::stream::iter(blocks).map(move |block| {
            let (inner, disk) = (Arc::clone(&self), disk.clone());
            let task = async move {
                let data = inner.read_whole_block(&disk, block.id, block.length).await?;
                Ok((block.offset, data))
            };
            AbortOnDropHandle::new(tokio::spawn(task))
        });
        let done = reads.buffered(CONCURRENCY - 1);
        done.map(|read| read.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic())))
    }

    /// Reads a block of a disk, which has this length.
    pub(super) async fn read_whole_block(
        self: &Arc<Self>,
        disk: &DiskId,
        id: BlockId,
        length: usize,
    ) -> Result<Vec<u8>> {
        let data = self.read_block(disk, id, length).await?;
        if data.len() != length {
            let place = self.objects.place(&block_name(disk, id));
            let detail = format!("the block has {} bytes, and {length} are needed", data.len());
            return Err(Error::Damaged { place, detail });
        }
        Ok(data)
    }

    /// Reads a block and checks its id.
    pub(super) async fn read_block(
        self: &Arc<Self>,
        disk: &DiskId,
        id: BlockId,
        max: usize,
    ) -> Result<Vec<u8>> {
        let name = block_name(disk, id);
        let Some(sealed) = self.objects.get(&name, sealed::max_length(max)).await? else {
            return Err(Error::MissingBlock { place: self.objects.place(&name) });
        };
        let inner = Arc::clone(self);
        let opened = blocking(move || {
            let data = sealed::open(&inner.keys, &block_binding(id), sealed, max)?;
            match inner.keys.id(&data) == id {
                true => Ok(data),
                false => Err("its data has another id".to_owned()),
            }
        });
        opened.await.map_err(|detail| Error::Damaged { place: self.objects.place(&name), detail })
    }
}
