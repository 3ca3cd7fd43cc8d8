//! The log: whether it has changes that are not in their places yet. It is not applied.
//!
//! ```text
//!  tail ─▶ record: header, operations ─▶ … ─▶ head     a ring of blocks; each has the number of its round
//! ```
//!
//! After an unmount, the records between tail and head are the mark of the unmount and the superblock; after a freeze they are the
//! superblock alone, of which only counters change.

use super::failed;
use super::superblock::{Superblock, field};
use crate::disk::{Window, number};
use crate::error::Result;

const BLOCK: u64 = 512;
const MAGIC: &[u8] = b"\xfe\xed\xba\xbe";
/// The limit of blocks of a record, with its headers.
const LONGEST: u64 = 1024;
/// The limits of records, and of operations in one, of a log with nothing but superblocks.
const MOST_RECORDS: u64 = 8;
const MOST_OPERATIONS: u64 = 8;
/// The second version, whose records can have several headers; the bytes of a record that one header describes.
const VERSION_2: u64 = 2;
const DESCRIBED: u64 = 32 << 10;
/// The length of the head of an operation.
const HEAD: usize = 12;
/// The beginnings of the data of operations: of an unmount, a transaction, the description of a buffer, and the superblock. Those before
/// the last one have the order of bytes of the machine: a log of a big-endian one counts as one with changes.
const UNMOUNT: &[u8] = b"\x6e\x55";
const TRANSACTION: &[u8] = b"NART";
const BUFFER: &[u8] = b"\x3c\x12";
const SUPERBLOCK: &[u8] = b"XFSB";

/// Returns whether there are such changes, or the log is not known.
pub(super) fn unapplied(part: &Window, superblock: &Superblock) -> Result<bool> {
    let (start, count) = superblock.log();
    if count == 0 {
        return Ok(true);
    }
    let log = Log { part, start, count };
    let head = log.head()?;
    let Some(last) = log.last(head)? else { return Ok(true) };
    let mut at = field(&last, 28, 4);
    for _ in 0..MOST_RECORDS {
        let header = log.block(at)?;
        let is_version_2 = field(&header, 8, 4) & VERSION_2 != 0;
        let headers = if is_version_2 { field(&header, 320, 4).div_ceil(DESCRIBED).max(1) } else { 1 };
        if !header.starts_with(MAGIC) || !has_superblocks_only(&header, &log.block(at + headers)?) {
            return Ok(true);
        }
        at = (at + headers + field(&header, 12, 4).div_ceil(BLOCK)) % count;
        if at == head {
            return Ok(false);
        }
    }
    Ok(true)
}

struct Log<'a> {
    part: &'a Window,
    /// In bytes.
    start: u64,
    /// The number of blocks.
    count: u64,
}

impl Log<'_> {
    fn block(&self, at: u64) -> Result<Vec<u8>> {
        let mut bytes = vec![0; 512];
        let offset = self.start + at % self.count * BLOCK;
        self.part.read_at(offset, &mut bytes).map_err(|source| failed(self.part, source))?;
        Ok(bytes)
    }

    fn round(&self, at: u64) -> Result<u64> {
        let block = self.block(at)?;
        Ok(if block.starts_with(MAGIC) { field(&block, 4, 4) } else { field(&block, 0, 4) })
    }

    /// Returns the first block of the former round: those before it are of the newest.
    fn head(&self) -> Result<u64> {
        let newest = self.round(0)?;
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.round(middle)? == newest {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(low % self.count)
    }

    /// Returns the header of the last record.
    fn last(&self, head: u64) -> Result<Option<Vec<u8>>> {
        for back in 1..=LONGEST.min(self.count) {
            let block = self.block(head + self.count - back)?;
            if block.starts_with(MAGIC) {
                return Ok(Some(block));
            }
        }
        Ok(None)
    }
}

/// Whether the operations of a record, which begin in this block, change nothing but the superblock.
fn has_superblocks_only(header: &[u8], block: &[u8]) -> bool {
    let mut rest = block;
    for _ in 0..field(header, 40, 4).min(MOST_OPERATIONS + 1) {
        let length = usize::try_from(field(rest, 4, 4)).unwrap_or(usize::MAX);
        let Some((data, others)) = rest.get(HEAD..).and_then(|rest| rest.split_at_checked(length)) else {
            return false;
        };
        let is_of_superblock = data.starts_with(BUFFER) && data.len() >= 16 && number(data, 8, 8) == 0;
        let is_known = [UNMOUNT, TRANSACTION, SUPERBLOCK].iter().any(|known| data.starts_with(known));
        if !data.is_empty() && !is_of_superblock && !is_known {
            return false;
        }
        rest = others;
    }
    field(header, 40, 4) <= MOST_OPERATIONS
}
