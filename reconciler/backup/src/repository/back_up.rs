//! Backups.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::vec;

use bytes::Bytes;
use tokio::task::JoinSet;

use super::{
    CONCURRENCY, Inner, NewBackup, Repository, block_binding, block_name, blocking, disk_folder,
    manifest_name, note_name, writers,
};
use crate::block::{BLOCK_SIZE, BlockId, is_zero};
use crate::disk::{Extent, Progress, Source};
use crate::error::{Error, Result};
use crate::ids::{BackupId, DiskId};
use crate::keys::Failed;
use crate::manifest::{self, MAX_SIZE, Manifest, Part, Summary};
use crate::sealed;

/// How many times a backup is completed whose blocks are deleted meanwhile.
const MOST_ROUNDS: usize = 3;

/// The blocks of a disk that are stored, or are being stored.
type Stored = Arc<Mutex<HashSet<BlockId>>>;

impl Repository {
    /// Makes a backup of a disk.
    ///
    /// Blocks that are zeros or unchanged since the parent are not read, and blocks that are in the repository not uploaded, unless they
    /// were found damaged. So repeating an interrupted backup only reads the disk again. A backup that is there is left as it is, unless
    /// its manifest is damaged.
    ///
    /// *Guarantees*: the backup exists once all its blocks are stored, and not before. If another site that shares the repository has
    /// deleted some of them meanwhile, they are stored anew.
    ///
    /// *Errors*: [`Error::Source`], those of the store, and those of sizes above the limits; [`Error::BlocksDeleted`] if blocks are
    /// deleted again and again; [`Error::Replaced`] and [`Error::NoRepository`] if the repository is not there any more.
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
        let _writer = writers::lock(self.id(), new.disk).await;
        self.inner.require_same().await?;
        if let Some(manifest) = self.inner.whole_manifest(new.disk, new.backup).await? {
            progress(Progress { done: manifest.size, total: manifest.size });
            return Ok(manifest.summary());
        }
        self.inner.objects.remove_partial(&disk_folder(new.disk)).await?;
        let parent = self.inner.parent(&new).await?;
        let writer = Writer {
            inner: Arc::clone(&self.inner),
            disk: new.disk.clone(),
            stored: Stored::default(),
            noted: Arc::default(),
            tasks: JoinSet::new(),
        };
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
        let mut lost = None;
        for _ in 0..MOST_ROUNDS {
            run.all(lost).await?;
            // Not before, as the deletions of other sites spare the blocks of the backups that they find.
            let found = match self.inner.write_manifest(new.disk, new.backup, &run.manifest).await {
                Ok(()) => self.inner.first_lost(new.disk, &run.manifest).await,
                Err(error) => Err(error),
            };
            lost = match found {
                Ok(None) => return Ok(run.manifest.summary()),
                Ok(lost) => lost,
                Err(error) => {
                    // It may lack blocks. The error is the one to report.
                    let _ = self.inner.objects.delete(&manifest_name(new.disk, new.backup)).await;
                    return Err(error);
                }
            };
            tracing::warn!(disk = %new.disk, "blocks were deleted while a backup was made; they are stored anew");
            self.inner.objects.delete(&manifest_name(new.disk, new.backup)).await?;
        }
        let name = block_name(new.disk, lost.unwrap_or(BlockId::ZERO));
        Err(Error::BlocksDeleted { place: self.inner.objects.place(&name) })
    }
}

impl Inner {
    /// Returns the parent of a new backup. A damaged one would make every further backup fail, so it counts as missing.
    async fn parent(&self, new: &NewBackup<'_>) -> Result<Option<Manifest>> {
        match new.parent {
            Some(parent) => self.whole_manifest(new.disk, parent).await,
            None => Ok(None),
        }
    }

    /// Returns the manifest of a backup. A damaged one counts as missing.
    async fn whole_manifest(&self, disk: &DiskId, backup: &BackupId) -> Result<Option<Manifest>> {
        match self.manifest(disk, backup).await {
            Err(Error::Damaged { place, detail }) => {
                tracing::warn!(place, detail, "the manifest of a backup is damaged: it counts as missing");
                Ok(None)
            }
            found => found,
        }
    }

    /// Returns the blocks of a disk that are stored. Damaged ones are not among them, as far as their length shows.
    async fn stored(&self, disk: &DiskId) -> Result<HashSet<BlockId>> {
        let lengths = sealed::MIN_LENGTH as u64..=sealed::max_length(BLOCK_SIZE) as u64;
        let mut stored = HashSet::new();
        let mut visit = |id, length| {
            if lengths.contains(&length) {
                stored.insert(id);
            }
        };
        self.blocks(disk, &mut visit).await?;
        Ok(stored)
    }

    /// Returns a block or an index of a complete backup that is not in the repository.
    async fn first_lost(self: &Arc<Self>, disk: &DiskId, manifest: &Manifest) -> Result<Option<BlockId>> {
        self.require_same().await?;
        let stored = self.stored(disk).await?;
        for part in manifest::parts(manifest.size) {
            let Some(index) = manifest.indexes.get(part.index).copied().flatten() else { continue };
            let ids = match self.index(disk, manifest, part).await {
                Ok(ids) => ids,
                Err(Error::Damaged { .. } | Error::MissingBlock { .. }) => return Ok(Some(index)),
                Err(error) => return Err(error),
            };
            for id in ids.into_iter().filter(|id| *id != BlockId::ZERO && !stored.contains(id)) {
                // Some stores do not list at once what was written.
                match self.read_block(disk, id, BLOCK_SIZE).await {
                    Ok(_) => {}
                    Err(Error::Damaged { .. } | Error::MissingBlock { .. }) => return Ok(Some(id)),
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(None)
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
    /// Stores the blocks of the disk that are not in the repository, and its indexes. `lost`: a block that is not, whatever the store lists.
    async fn all(&mut self, lost: Option<BlockId>) -> Result<()> {
        self.writer.look(lost).await?;
        (self.manifest.blocks, self.manifest.indexes) = (0, Vec::new());
        for part in manifest::parts(self.manifest.size) {
            self.part(part).await?;
            // A part takes long, and the next one, or the manifest, is not for another repository.
            self.writer.inner.require_same().await?;
        }
        // The blocks are looked for anew, and those of a large disk need memory.
        self.writer.stored = Stored::default();
        Ok(())
    }

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
    /// The blocks that were found damaged.
    noted: Arc<HashSet<BlockId>>,
    tasks: JoinSet<Result<Written>>,
}

struct Written {
    /// The number of the block in its part.
    at: usize,
    id: BlockId,
    stored_bytes: u64,
}

impl Writer {
    /// Looks for the blocks that need not be stored. A block that was found damaged is not among them.
    async fn look(&mut self, lost: Option<BlockId>) -> Result<()> {
        let noted = self.inner.noted(&self.disk).await?;
        let mut stored = self.inner.stored(&self.disk).await?;
        stored.retain(|id| !noted.contains(id) && Some(*id) != lost);
        (self.stored, self.noted) = (Arc::new(Mutex::new(stored)), Arc::new(noted));
        Ok(())
    }

    fn has(&self, id: BlockId) -> bool {
        id == BlockId::ZERO || self.stored.lock().unwrap_or_else(PoisonError::into_inner).contains(&id)
    }

    /// Has a block stored again when it is needed.
    fn forget(&self, id: BlockId) {
        self.stored.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
    }

    fn start(&mut self, at: usize, data: Vec<u8>) {
        let (inner, disk, stored) = (Arc::clone(&self.inner), self.disk.clone(), Arc::clone(&self.stored));
        let noted = Arc::clone(&self.noted);
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
            if noted.contains(&id) {
                inner.objects.delete(&note_name(&disk, id)).await?;
            }
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
