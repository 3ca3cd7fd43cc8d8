//! Backups.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::vec;

use bytes::Bytes;
use tokio::task::JoinSet;

use super::{
    CONCURRENCY, Inner, NewBackup, Repository, block_binding, block_name, blocking, disk_folder, writers,
};
use crate::block::{BlockId, is_zero};
use crate::disk::{Extent, Progress, Source};
use crate::error::{Error, Result};
use crate::ids::DiskId;
use crate::keys::Failed;
use crate::manifest::{self, MAX_SIZE, Manifest, Part, Summary};
use crate::sealed;

/// The blocks of a disk that are stored, or are being stored.
type Stored = Arc<Mutex<HashSet<BlockId>>>;

impl Repository {
    /// Makes a backup of a disk.
    ///
    /// Blocks that are zeros or unchanged since the parent are not read, and blocks that are in the repository not uploaded. So
    /// repeating an interrupted backup only reads the disk again. A backup that is there is left as it is.
    ///
    /// *Guarantees*: the backup exists once all its blocks are stored, and not before.
    ///
    /// *Errors*: [`Error::Source`], those of the store, and those of sizes above the limits.
    pub async fn back_up<S: Source + ?Sized>(
        &self,
        new: NewBackup<'_>,
        source: &mut S,
        progress: impl Fn(Progress) + Send + Sync,
    ) -> Result<Summary> {
        let size = source.size();
        if size > MAX_SIZE {
            return Err(Error::DiskTooLarge { size, limit: MAX_SIZE });
        }
        manifest::check_facts(new.facts)?;
        let _writer = writers::lock(self.inner.id, new.disk).await;
        if let Some(manifest) = self.inner.manifest(new.disk, new.backup).await? {
            progress(Progress { done: manifest.size, total: manifest.size });
            return Ok(manifest.summary());
        }
        self.inner.objects.remove_partial(&disk_folder(new.disk)).await?;
        let parent = self.inner.parent(&new).await?;
        let stored = self.inner.stored(new.disk).await?;
        let writer =
            Writer { inner: Arc::clone(&self.inner), disk: new.disk.clone(), stored, tasks: JoinSet::new() };
        let manifest = Manifest {
            size,
            time: new.time,
            facts: new.facts.clone(),
            read_bytes: 0,
            stored_bytes: 0,
            blocks: 0,
            indexes: Vec::new(),
        };
        let mut run = Run { source, parent, writer, manifest, progress };
        for part in manifest::parts(size) {
            run.part(part).await?;
        }
        self.inner.write_manifest(new.disk, new.backup, &run.manifest).await?;
        Ok(run.manifest.summary())
    }
}

impl Inner {
    /// Returns the parent of a new backup. A damaged one would make every further backup fail, so it counts as missing.
    async fn parent(&self, new: &NewBackup<'_>) -> Result<Option<Manifest>> {
        let Some(parent) = new.parent else { return Ok(None) };
        match self.manifest(new.disk, parent).await {
            Err(Error::Damaged { place, detail }) => {
                tracing::warn!(place, detail, "the parent of a backup is damaged; the whole disk is read");
                Ok(None)
            }
            found => found,
        }
    }

    /// Returns the blocks of a disk that are stored. Truncated ones are not among them, as far as their length shows.
    async fn stored(&self, disk: &DiskId) -> Result<Stored> {
        let mut stored = HashSet::new();
        let mut visit = |id, length| {
            if length >= sealed::MIN_LENGTH as u64 {
                stored.insert(id);
            }
        };
        self.blocks(disk, &mut visit).await?;
        Ok(Arc::new(Mutex::new(stored)))
    }
}

/// A backup in progress.
struct Run<'a, S: ?Sized, P> {
    source: &'a mut S,
    parent: Option<Manifest>,
    writer: Writer,
    manifest: Manifest,
    progress: P,
}

impl<S: Source + ?Sized, P: Fn(Progress) + Send + Sync> Run<'_, S, P> {
    /// Stores the blocks of a part of the disk, and its index.
    async fn part(&mut self, part: Part) -> Result<()> {
        let parent = self.parent_ids(part).await?;
        let extents = self.source.extents(part.offset, part.length).await;
        let extents = extents.map_err(|source| Error::Source { offset: part.offset, source })?;
        let mut cursor = Cursor::new(extents, part)?;
        let mut ids = vec![BlockId::ZERO; part.blocks()];
        for at in 0..part.blocks() {
            let (offset, length) = part.block(at);
            let extents = cursor.take(length as u64);
            if extents.iter().all(|extent| extent.is_zero) {
                continue;
            }
            let of_parent = parent.get(at).copied().flatten();
            match of_parent
                .filter(|id| extents.iter().all(|extent| extent.is_unchanged) && self.writer.has(*id))
            {
                Some(id) => ids[at] = id,
                None => {
                    while self.writer.tasks.len() >= CONCURRENCY {
                        self.finish_one(&mut ids).await?;
                    }
                    let data = self.read(offset, length, &extents).await?;
                    self.writer.start(at, data);
                }
            }
            (self.progress)(Progress { done: offset, total: self.manifest.size });
        }
        while !self.writer.tasks.is_empty() {
            self.finish_one(&mut ids).await?;
        }
        self.manifest.blocks += ids.iter().filter(|id| **id != BlockId::ZERO).count() as u64;
        self.writer.start(0, manifest::encode_index(&ids));
        let mut index = [BlockId::ZERO];
        self.finish_one(&mut index).await?;
        let [index] = index;
        self.manifest.indexes.push((index != BlockId::ZERO).then_some(index));
        (self.progress)(Progress { done: part.offset + part.length, total: self.manifest.size });
        Ok(())
    }

    /// Returns the ids of the parent's blocks in a part; `None` for a block that has another length there, or is not known.
    async fn parent_ids(&self, part: Part) -> Result<Vec<Option<BlockId>>> {
        let Some(parent) = &self.parent else { return Ok(Vec::new()) };
        let Some(of_parent) = manifest::parts(parent.size).nth(part.index) else { return Ok(Vec::new()) };
        let ids = match self.writer.inner.index(&self.writer.disk, parent, of_parent).await {
            Ok(ids) => ids,
            Err(error @ (Error::Damaged { .. } | Error::MissingBlock { .. })) => {
                tracing::warn!(%error, "an index of the parent of a backup cannot be read; this part of the disk is read");
                // The same index may be needed again.
                if let Some(id) = parent.indexes.get(part.index).copied().flatten() {
                    self.writer.forget(id);
                }
                return Ok(Vec::new());
            }
            Err(error) => return Err(error),
        };
        let is_same = |at: usize| at < part.blocks() && part.block(at) == of_parent.block(at);
        Ok(ids.into_iter().enumerate().map(|(at, id)| is_same(at).then_some(id)).collect())
    }

    /// Reads a block without its zero extents.
    async fn read(&mut self, offset: u64, length: usize, extents: &[Extent]) -> Result<Vec<u8>> {
        let mut data = vec![0; length];
        let mut from = 0;
        for run in extents.chunk_by(|a, b| a.is_zero == b.is_zero) {
            let to = from + run.iter().map(|extent| extent.length as usize).sum::<usize>();
            if !run[0].is_zero {
                let at = offset + from as u64;
                self.source
                    .read_at(at, &mut data[from..to])
                    .await
                    .map_err(|source| Error::Source { offset: at, source })?;
                self.manifest.read_bytes += (to - from) as u64;
            }
            from = to;
        }
        Ok(data)
    }

    async fn finish_one(&mut self, ids: &mut [BlockId]) -> Result<()> {
        let Some(done) = self.writer.tasks.join_next().await else { return Ok(()) };
        let done = done.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))?;
        ids[done.at] = done.id;
        self.manifest.stored_bytes += done.stored_bytes;
        Ok(())
    }
}

/// Stores blocks of a disk, several at a time. Stops when it is dropped.
struct Writer {
    inner: Arc<Inner>,
    disk: DiskId,
    stored: Stored,
    tasks: JoinSet<Result<Written>>,
}

struct Written {
    /// The number of the block in its part.
    at: usize,
    id: BlockId,
    stored_bytes: u64,
}

impl Writer {
    fn has(&self, id: BlockId) -> bool {
        id == BlockId::ZERO || self.stored.lock().unwrap_or_else(PoisonError::into_inner).contains(&id)
    }

    /// Has a block stored again when it is needed.
    fn forget(&self, id: BlockId) {
        self.stored.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
    }

    fn start(&mut self, at: usize, data: Vec<u8>) {
        let (inner, disk, stored) = (Arc::clone(&self.inner), self.disk.clone(), Arc::clone(&self.stored));
        self.tasks.spawn(async move {
            let prepared = {
                let inner = Arc::clone(&inner);
                blocking(move || inner.prepare(&data, &stored)).await
            };
            let (id, sealed) = prepared;
            let sealed = sealed.map_err(|Failed| Error::Cryptography {
                place: inner.objects.place(&block_name(&disk, id)),
            })?;
            let Some(sealed) = sealed else { return Ok(Written { at, id, stored_bytes: 0 }) };
            let stored_bytes = sealed.len() as u64;
            inner.objects.put(&block_name(&disk, id), Bytes::from(sealed)).await?;
            Ok(Written { at, id, stored_bytes })
        });
    }
}

impl Inner {
    /// Returns the id of a block, and its sealed form if it is to be stored.
    fn prepare(
        &self,
        data: &[u8],
        stored: &Mutex<HashSet<BlockId>>,
    ) -> (BlockId, Result<Option<Vec<u8>>, Failed>) {
        if is_zero(data) {
            return (BlockId::ZERO, Ok(None));
        }
        let id = self.keys.id(data);
        // Of equal blocks, the first one is stored. The manifest is written once that has succeeded.
        if !stored.lock().unwrap_or_else(PoisonError::into_inner).insert(id) {
            return (id, Ok(None));
        }
        (id, sealed::seal(&self.keys, &block_binding(id), data).map(Some))
    }
}

/// The extents of a part of a disk, from its first to its last byte.
struct Cursor {
    rest: vec::IntoIter<Extent>,
    current: Option<Extent>,
}

impl Cursor {
    fn new(extents: Vec<Extent>, part: Part) -> Result<Self> {
        let covered = extents.iter().fold(0_u64, |covered, extent| covered.saturating_add(extent.length));
        match covered == part.length {
            true => Ok(Self { rest: extents.into_iter(), current: None }),
            false => Err(Error::Extents { offset: part.offset, covered, needed: part.length }),
        }
    }

    /// Returns the extents of the next bytes.
    fn take(&mut self, length: u64) -> Vec<Extent> {
        let (mut taken, mut needed) = (Vec::new(), length);
        while needed > 0 {
            let Some(extent) = self.current.take().or_else(|| self.rest.next()) else { break };
            let part = extent.length.min(needed);
            if part < extent.length {
                self.current = Some(Extent { length: extent.length - part, ..extent });
            }
            if part > 0 {
                taken.push(Extent { length: part, ..extent });
            }
            needed -= part;
        }
        taken
    }
}

#[test]
fn extents_are_cut_at_the_blocks() {
    let extent = |length, is_zero| Extent { length, is_unchanged: false, is_zero };
    let extents = vec![extent(3, true), extent(0, false), extent(10, false), extent(1, true)];
    let part = |length| Part { index: 0, offset: 7, length };
    let error = Cursor::new(extents.clone(), part(15)).err();
    assert!(matches!(error, Some(Error::Extents { offset: 7, covered: 14, needed: 15 })), "{error:?}");
    let mut cursor = Cursor::new(extents, part(14)).expect("they cover the part");
    assert_eq!(cursor.take(4), [extent(3, true), extent(1, false)]);
    assert_eq!(cursor.take(4), [extent(4, false)]);
    assert_eq!(cursor.take(6), [extent(5, false), extent(1, true)]);
}
