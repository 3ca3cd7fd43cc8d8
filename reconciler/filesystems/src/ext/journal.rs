//! The journal (jbd2) of a file system that was not unmounted: which blocks have newer content in it. Nothing is written: the content stays
//! where it is, and is read from there.
//!
//! ```text
//!  descriptor: numbers of blocks ─▶ their content, one block after the other ─▶ … ─▶ commit     one transaction, with a sequence number
//!  revoke: numbers of blocks whose content in this and in older transactions does not count
//! ```
//!
//! The blocks are a ring. The log ends at the first block without the magic bytes and the expected sequence number: what follows is older,
//! or was not committed.
//!
//! *Errors*: a feature of the journal that is not known, as fast commits are; a wrong checksum within the log. A log that is read only in part
//! gives a file system that looks whole and is not.

mod format;

use std::collections::BTreeMap;

use super::blocks::{Blocks, JOURNAL_MAGIC, Newer};
use super::inode::Inode;
use super::map::{Run, runs};
use super::superblock::{self, Superblock};
use super::{WHAT, damaged};
use crate::checksum::crc32c;
use crate::disk::big_endian;
use crate::error::{FsError, Result};
use crate::volume::NodeKind;
use format::Format;

/// The limits of the numbers of blocks in a journal, which are those of one of 2 GiB: each takes some 60 bytes of memory.
const MOST_TAGS: usize = 512 << 10;
const MOST_REVOKED: usize = 512 << 10;

const DESCRIPTOR: u64 = 1;
const COMMIT: u64 = 2;
const REVOKE: u64 = 5;

/// A block whose content is in the log.
#[derive(Clone, Copy, Debug)]
struct Logged {
    transaction: u64,
    block: u64,
    newer: Newer,
}

/// Returns the file system as it is once its journal is applied.
pub(super) fn applied(blocks: Blocks, superblock: Superblock, there: u64) -> Result<(Blocks, Superblock)> {
    if superblock.journal == 0 {
        return Err(FsError::Features {
            what: WHAT,
            detail: "it was not unmounted, and its journal is on another disk".to_owned(),
        });
    }
    let inode = Inode::read(&blocks, &superblock, superblock.journal)?;
    if inode.node.kind != NodeKind::File {
        return Err(damaged("its journal is not a file"));
    }
    let place = runs(&blocks, &inode)?;
    let first = block_in(&place, 0)?;
    let Some(format) = Format::new(&blocks.whole(first)?, &blocks, &inode)? else {
        // The log is empty: the file system was frozen, or idle.
        return Ok((blocks, superblock));
    };
    let mut log = Log {
        blocks: &blocks,
        place,
        format,
        pending: Pending::default(),
        newer: Vec::new(),
        revoked: BTreeMap::new(),
    };
    log.read()?;
    let newer = log.newest();
    blocks.found();
    let blocks = blocks.with_newer(newer);
    let mut bytes = vec![0; superblock::LENGTH];
    let size = superblock.block_size;
    blocks.read(superblock::OFFSET / size, superblock::OFFSET % size, &mut bytes)?;
    let found = Superblock::new(&bytes, there)?;
    if found.block_size != size {
        return Err(damaged("its journal changes the size of its blocks"));
    }
    let blocks = blocks.with_count(found.blocks);
    Ok((blocks, found))
}

/// Returns the place of a block of a file without holes.
fn block_in(place: &[Run], block: u64) -> Result<u64> {
    let after = place.partition_point(|run| run.first <= block);
    let run = after.checked_sub(1).and_then(|at| place.get(at));
    let run = run.filter(|run| block < run.first + run.count);
    run.map(|run| run.block + (block - run.first)).ok_or_else(|| damaged("its journal has a hole"))
}

/// A transaction whose commit was not read yet.
#[derive(Default)]
struct Pending {
    logged: Vec<Logged>,
    revoked: Vec<u64>,
}

struct Log<'a> {
    blocks: &'a Blocks,
    place: Vec<Run>,
    format: Format,
    pending: Pending,
    /// Of transactions that were committed, in their order.
    newer: Vec<Logged>,
    /// The last transaction that revokes a block.
    revoked: BTreeMap<u64, u64>,
}

impl Log<'_> {
    /// Reads the log until its end. Transactions are counted from 0: sequence numbers wrap.
    fn read(&mut self) -> Result<()> {
        let (mut at, mut sequence, mut transaction) = (self.format.start, self.format.sequence, 0);
        let mut left = self.format.length();
        loop {
            let block = self.blocks.whole(block_in(&self.place, at)?)?;
            let is_next =
                block.starts_with(&JOURNAL_MAGIC) && big_endian(&block, 8, 4) == u64::from(sequence);
            if !is_next || left == 0 {
                return Ok(());
            }
            let kind = big_endian(&block, 4, 4);
            let mut length = 1;
            match kind {
                DESCRIPTOR => {
                    self.format.check_tail(&block)?;
                    length += self.descriptor(&block, at, sequence, transaction)?;
                }
                REVOKE => {
                    self.format.check_tail(&block)?;
                    self.pending.revoked.extend(self.format.revoked(&block)?);
                }
                COMMIT => {
                    self.format.check_commit(&block)?;
                    self.commit(transaction);
                    (sequence, transaction) = (sequence.wrapping_add(1), transaction + 1);
                }
                _ => return Ok(()),
            }
            if self.pending.revoked.len() + self.revoked.len() > MOST_REVOKED {
                return Err(damaged(format!("its journal revokes more than {MOST_REVOKED} blocks")));
            }
            // Once around is the whole ring.
            left = left.saturating_sub(length);
            at = self.format.after(at, length);
        }
    }

    /// Reads the numbers of the blocks whose content follows; returns how many they are.
    fn descriptor(&mut self, block: &[u8], at: u64, sequence: u32, transaction: u64) -> Result<u64> {
        let tags = self.format.tags(block)?;
        let count = tags.len() as u64;
        if count >= self.format.length()
            || self.newer.len() + self.pending.logged.len() + tags.len() > MOST_TAGS
        {
            return Err(damaged("a transaction in its journal is too long"));
        }
        for (tag, distance) in tags.into_iter().zip(1..) {
            let place = block_in(&self.place, self.format.after(at, distance))?;
            let checksum = tag.checksum.map(|(sum, bits)| {
                let seed = self.format.seed.unwrap_or_default();
                (crc32c(seed, &sequence.to_be_bytes()), sum, bits)
            });
            let newer = Newer { block: place, is_escaped: tag.is_escaped, checksum };
            self.pending.logged.push(Logged { transaction, block: tag.block, newer });
        }
        Ok(count)
    }

    fn commit(&mut self, transaction: u64) {
        let Pending { logged, revoked } = std::mem::take(&mut self.pending);
        self.newer.extend(logged);
        self.revoked.extend(revoked.into_iter().map(|block| (block, transaction)));
    }

    /// Returns the newest content of each block. A revoke also counts for transactions before its own.
    fn newest(self) -> BTreeMap<u64, Newer> {
        let counts = |logged: &Logged| {
            self.revoked.get(&logged.block).is_none_or(|revoked| logged.transaction > *revoked)
        };
        let newest = self.newer.iter().filter(|logged| counts(logged));
        newest.map(|logged| (logged.block, logged.newer)).collect()
    }
}
