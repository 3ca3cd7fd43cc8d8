//! Reads of parts of a backup, at any place.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::{CONCURRENCY, Inner, Repository};
use crate::block::{BLOCK_SIZE, BlockId};
use crate::error::{Error, Result};
use crate::ids::{BackupId, DiskId};
use crate::manifest::{self, Manifest, Part};

/// A backup that is open. Only the blocks that are asked for are read from the store, and each is authenticated before its data is
/// returned. The last few blocks stay in memory.
pub struct BackupReader {
    inner: Arc<Inner>,
    disk: DiskId,
    manifest: Manifest,
    /// The part that was read last, with the ids of its blocks.
    index: Option<(Part, Vec<BlockId>)>,
    /// By offset, the last one first.
    blocks: VecDeque<(u64, Vec<u8>)>,
}

impl fmt::Debug for BackupReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BackupReader").field("disk", &self.disk).finish_non_exhaustive()
    }
}

impl Repository {
    /// Opens a backup, to read parts of it.
    ///
    /// *Errors*: [`Error::NoBackup`], [`Error::Damaged`] and those of the store.
    pub async fn open_backup(&self, disk: &DiskId, backup: &BackupId) -> Result<BackupReader> {
        let manifest = self.complete(disk, backup).await?;
        let (inner, disk) = (Arc::clone(&self.inner), disk.clone());
        Ok(BackupReader { inner, disk, manifest, index: None, blocks: VecDeque::new() })
    }
}

impl BackupReader {
    /// Returns the size of the disk in bytes.
    pub fn size(&self) -> u64 {
        self.manifest.size
    }

    /// Returns the facts that were stored with the backup.
    pub fn facts(&self) -> &Map<String, Value> {
        &self.manifest.facts
    }

    /// Fills the buffer with the data at this offset.
    ///
    /// *Errors*: [`Error::OutOfRange`], [`Error::MissingBlock`], [`Error::Damaged`] and those of the store.
    pub async fn read_at(&mut self, offset: u64, into: &mut [u8]) -> Result<()> {
        let (length, size) = (into.len(), self.size());
        if offset.checked_add(length as u64).is_none_or(|end| end > size) {
            return Err(Error::OutOfRange { offset, length, size });
        }
        let (mut at, mut rest) = (offset, into);
        while !rest.is_empty() {
            let within = (at % BLOCK_SIZE as u64) as usize;
            let count = rest.len().min(BLOCK_SIZE - within);
            let (piece, others) = std::mem::take(&mut rest).split_at_mut(count);
            match self.block(at - within as u64).await? {
                Some(block) => piece.copy_from_slice(&block[within..within + count]),
                None => piece.fill(0),
            }
            (at, rest) = (at + count as u64, others);
        }
        Ok(())
    }

    /// Returns the block that begins at this offset of the disk; `None`: it is zeros.
    async fn block(&mut self, offset: u64) -> Result<Option<&[u8]>> {
        if let Some(found) = self.blocks.iter().position(|(at, _)| *at == offset) {
            if let Some(block) = self.blocks.remove(found) {
                self.blocks.push_front(block);
            }
        } else {
            let (id, length) = self.id_of(offset).await?;
            if id == BlockId::ZERO {
                return Ok(None);
            }
            // Before the read, which takes the memory of another block.
            self.blocks.truncate(CONCURRENCY - 1);
            let data = self.inner.read_whole_block(&self.disk, id, length).await;
            let data = self.inner.noting(&self.disk, &[id], data).await?;
            self.blocks.push_front((offset, data));
        }
        Ok(self.blocks.front().map(|(_, data)| data.as_slice()))
    }

    /// Returns the id and the length of the block that begins at this offset, which is on the disk.
    async fn id_of(&mut self, offset: u64) -> Result<(BlockId, usize)> {
        let holds = |part: &Part| (part.offset..part.offset + part.length).contains(&offset);
        let known = self.index.take().filter(|(part, _)| holds(part));
        let (part, ids) = match known {
            Some(known) => known,
            None => {
                let part = manifest::parts(self.size()).find(holds);
                let size = self.size();
                let part = part.ok_or(Error::OutOfRange { offset, length: BLOCK_SIZE, size })?;
                let index = self.manifest.indexes.get(part.index).copied().flatten();
                let ids = self.inner.index(&self.disk, &self.manifest, part).await;
                (part, self.inner.noting(&self.disk, index.as_slice(), ids).await?)
            }
        };
        let at = ((offset - part.offset) / BLOCK_SIZE as u64) as usize;
        // An index has an id for each block of its part.
        let found = (ids.get(at).copied().unwrap_or(BlockId::ZERO), part.block(at).1);
        self.index = Some((part, ids));
        Ok(found)
    }
}
