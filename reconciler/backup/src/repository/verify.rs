//! Verification: a backup is read back, and damage is reported.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use tokio::time::Instant;

use super::damage::MOST_NOTES;
use super::read::wanted;
use super::{Inner, Repository, block_name, manifest_name};
use crate::block::BlockId;
use crate::disk::Progress;
use crate::error::{Error, Result};
use crate::ids::{BackupId, DiskId};
use crate::manifest::{self, Manifest, Part};

/// The maximum number of damaged objects that a report names.
const MOST_NAMED: usize = 8;

/// How a backup is read back.
#[derive(Clone, Copy, Debug, Default)]
pub struct VerifyOptions<'a> {
    /// A backup of the same disk that was read back before: the blocks that both have are not read again. If there is none with this
    /// id, all blocks are read.
    pub base: Option<&'a BackupId>,
    /// The most bytes of the disk to read in a second, on average. None: no limit.
    pub bytes_per_second: Option<u64>,
}

/// The result of reading a backup back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verification {
    /// Whether the blocks of the base were left out.
    pub has_base: bool,
    /// The number of blocks that were read.
    pub blocks: u64,
    /// The bytes of the disk in them.
    pub read_bytes: u64,
    /// The number of objects that are damaged or missing. Zero: the backup is whole.
    pub damaged: u64,
    /// The first few of them, for people.
    pub named: Vec<String>,
}

impl Repository {
    /// Reads the blocks of a backup and checks each. Damage does not end it: the result has the number of damaged objects.
    ///
    /// *Guarantees*: nothing is deleted, and nothing is written but notes of damaged blocks, which the next backup that has them stores anew.
    /// Dropping the future ends the reads. Beside the blocks in memory it needs less than 4 MiB, whatever the size of the disk.
    ///
    /// *Errors*: those of the store, after which nothing is known of the backup; [`Error::NoRepository`] if the repository went away
    /// meanwhile, as a folder does that is unmounted; [`Error::Replaced`] if another one is in its place.
    pub async fn verify(
        &self,
        disk: &DiskId,
        backup: &BackupId,
        options: VerifyOptions<'_>,
        progress: impl Fn(Progress) + Send + Sync,
    ) -> Result<Verification> {
        let (result, damaged) = self.read_back(disk, backup, options, progress).await?;
        if result.damaged > 0 {
            self.inner.require_same().await?;
            self.inner.note_damaged(disk, damaged).await;
        }
        Ok(result)
    }

    /// Returns the result, and the first of the blocks and indexes that are there and damaged.
    async fn read_back(
        &self,
        disk: &DiskId,
        backup: &BackupId,
        options: VerifyOptions<'_>,
        progress: impl Fn(Progress) + Send + Sync,
    ) -> Result<(Verification, BTreeSet<BlockId>)> {
        let (mut result, mut damaged) = (Verification::default(), BTreeSet::new());
        let manifest = match self.complete(disk, backup).await {
            Ok(manifest) => manifest,
            Err(error) => {
                result.note(&manifest_name(disk, backup), None, error)?;
                return Ok((result, damaged));
            }
        };
        let base = self.inner.base(disk, backup, options.base).await?;
        result.has_base = base.is_some();
        let mut pace = Pace { next: Instant::now(), bytes_per_second: options.bytes_per_second };
        for part in manifest::parts(manifest.size) {
            let ids = match self.inner.index(disk, &manifest, part).await {
                Ok(ids) => ids,
                Err(error) => {
                    let index = manifest.indexes.get(part.index).copied().flatten();
                    let is_noted = is_damage(&error) && damaged.len() < MOST_NOTES;
                    damaged.extend(index.filter(|_| is_noted));
                    let name = block_name(disk, index.unwrap_or(BlockId::ZERO));
                    result.note(&name, Some(part.offset), error)?;
                    continue;
                }
            };
            let mut known = self.inner.known_of(disk, base.as_ref(), part).await?;
            // Of equal blocks of a part, the first one is read.
            let new: Vec<_> = wanted(part, &ids).into_iter().filter(|block| known.insert(block.id)).collect();
            let mut blocks = Arc::clone(&self.inner).read_blocks(disk, new.clone());
            for block in new {
                let read = blocks.next().await.expect("each block that is to be read has a result");
                let is_fetched = !matches!(read, Err(Error::MissingBlock { .. }));
                match read {
                    Ok(_) => {
                        result.blocks += 1;
                        result.read_bytes += block.length as u64;
                    }
                    Err(error) => {
                        let is_noted = is_damage(&error) && damaged.len() < MOST_NOTES;
                        damaged.extend(is_noted.then_some(block.id));
                        result.note(&block_name(disk, block.id), Some(block.offset), error)?;
                    }
                }
                if is_fetched {
                    pace.keep(block.length as u64).await;
                }
                progress(Progress { done: block.offset, total: manifest.size });
            }
            progress(Progress { done: part.offset + part.length, total: manifest.size });
        }
        Ok((result, damaged))
    }
}

impl Verification {
    /// Counts a damaged or missing object. Any other error is returned: the object may be whole.
    fn note(&mut self, name: &str, offset: Option<u64>, error: Error) -> Result<()> {
        let detail = match error {
            Error::Damaged { detail, .. } => detail,
            Error::MissingBlock { .. } | Error::NoBackup { .. } => "it is missing".to_owned(),
            other => return Err(other),
        };
        self.damaged += 1;
        if self.named.len() < MOST_NAMED {
            self.named.push(match offset {
                Some(offset) => format!("{name}, at byte {offset} of the disk: {detail}"),
                None => format!("{name}: {detail}"),
            });
        }
        Ok(())
    }
}

impl Inner {
    /// Returns the manifest of the base. One that is damaged or missing leaves nothing out.
    async fn base(
        &self,
        disk: &DiskId,
        backup: &BackupId,
        base: Option<&BackupId>,
    ) -> Result<Option<Manifest>> {
        let Some(base) = base.filter(|base| *base != backup) else { return Ok(None) };
        match self.manifest(disk, base).await {
            Err(Error::Damaged { .. }) => Ok(None),
            found => found,
        }
    }

    /// Returns the ids of the base's blocks in a part.
    async fn known_of(
        self: &Arc<Self>,
        disk: &DiskId,
        base: Option<&Manifest>,
        part: Part,
    ) -> Result<HashSet<BlockId>> {
        let Some(base) = base else { return Ok(HashSet::new()) };
        let Some(of_base) = manifest::parts(base.size).nth(part.index) else { return Ok(HashSet::new()) };
        match self.index(disk, base, of_base).await {
            Ok(ids) => Ok(ids.into_iter().collect()),
            Err(Error::Damaged { .. } | Error::MissingBlock { .. }) => Ok(HashSet::new()),
            Err(error) => Err(error),
        }
    }
}

/// Whether an object is there and is not as it was written. One that is missing is not listed, and backups do not rely on it.
fn is_damage(error: &Error) -> bool {
    matches!(error, Error::Damaged { .. })
}

/// Keeps reads within a rate. Time that a slow store takes is not caught up on.
struct Pace {
    /// Since when more may be read.
    next: Instant,
    bytes_per_second: Option<u64>,
}

impl Pace {
    /// Waits until more may be read, after so many bytes were.
    async fn keep(&mut self, bytes: u64) {
        self.next = (self.next + due(bytes, self.bytes_per_second)).max(Instant::now());
        tokio::time::sleep_until(self.next).await;
    }
}

/// Returns the least time in which so many bytes are read.
fn due(bytes: u64, bytes_per_second: Option<u64>) -> Duration {
    let Some(rate) = bytes_per_second.filter(|rate| *rate > 0) else { return Duration::ZERO };
    let millis = u128::from(bytes) * 1000 / u128::from(rate);
    Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX))
}

#[test]
fn a_rate_is_a_least_time() {
    assert_eq!(due(10 << 20, Some(4 << 20)), Duration::from_millis(2500));
    assert_eq!(due(0, Some(1)), Duration::ZERO);
    for none in [None, Some(0)] {
        assert_eq!(due(u64::MAX, none), Duration::ZERO);
    }
}

#[tokio::test(start_paused = true)]
async fn time_that_was_lost_is_not_caught_up_on() {
    let begun = Instant::now();
    let mut pace = Pace { next: begun, bytes_per_second: Some(1 << 20) };
    pace.keep(4 << 20).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    for _ in 0..3 {
        pace.keep(4 << 20).await;
    }
    assert!(begun.elapsed() >= Duration::from_secs(72), "{:?}", begun.elapsed());
}
