//! The blocks of a file system, as they are once its journal is applied.

use std::collections::BTreeMap;

use super::damaged;
use crate::checksum::crc32c;
use crate::disk::Window;
use crate::error::{FsError, Result};

/// The first bytes of a block of the journal. A block of data with them has zeros there in the journal.
pub(super) const JOURNAL_MAGIC: [u8; 4] = [0xc0, 0x3b, 0x39, 0x98];

/// The blocks of a file system.
pub(super) struct Blocks {
    part: Window,
    size: u64,
    count: u64,
    newer: BTreeMap<u64, Newer>,
}

/// The newer content of a block, in the journal.
#[derive(Clone, Copy, Debug)]
pub(super) struct Newer {
    /// Its place.
    pub(super) block: u64,
    /// Whether its first bytes are those of [`JOURNAL_MAGIC`].
    pub(super) is_escaped: bool,
    /// The start value of its checksum, the checksum, and the bits of it that are stored; `None`: it has none.
    pub(super) checksum: Option<(u32, u32, u32)>,
}

impl Blocks {
    pub(super) fn new(part: &Window, size: u64, count: u64) -> Self {
        Self { part: part.clone(), size, count, newer: BTreeMap::new() }
    }

    /// The same file system with the content that its journal has.
    pub(super) fn with_newer(self, newer: BTreeMap<u64, Newer>) -> Self {
        Self { newer, ..self }
    }

    /// The same file system with so many blocks.
    pub(super) fn with_count(self, count: u64) -> Self {
        Self { count, ..self }
    }

    /// The size of a block in bytes.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// The number of blocks.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Something was found: an entry, or data of a file.
    pub(super) fn found(&self) {
        self.part.found();
    }

    /// Returns a whole block.
    pub(super) fn whole(&self, block: u64) -> Result<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(self.size).unwrap_or_default()];
        self.read(block, 0, &mut bytes)?;
        Ok(bytes)
    }

    /// Fills the buffer from this offset in a block on; the blocks after it follow.
    pub(super) fn read(&self, block: u64, within: u64, into: &mut [u8]) -> Result<()> {
        let length = within.saturating_add(into.len() as u64).div_ceil(self.size);
        let end = block.checked_add(length).filter(|end| *end <= self.count);
        let end = end.ok_or_else(|| {
            damaged(format!("{length} blocks from {block} on are not in its {} blocks", self.count))
        })?;
        if self.newer.range(block..end).next().is_none() {
            return self.stored(block, within, into);
        }
        let (mut block, mut within, mut rest) = (block, within, into);
        while !rest.is_empty() {
            let count = rest.len().min(usize::try_from(self.size - within).unwrap_or(usize::MAX));
            let (piece, others) = std::mem::take(&mut rest).split_at_mut(count);
            match self.newer.get(&block) {
                None => self.stored(block, within, piece)?,
                Some(newer) => {
                    let bytes = self.of_journal(block, *newer)?;
                    let start = usize::try_from(within).unwrap_or_default();
                    piece.copy_from_slice(&bytes[start..start + count]);
                }
            }
            (block, within, rest) = (block + 1, 0, others);
        }
        Ok(())
    }

    fn of_journal(&self, block: u64, newer: Newer) -> Result<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(self.size).unwrap_or_default()];
        self.stored(newer.block, 0, &mut bytes)?;
        if let Some((start, sum, bits)) = newer.checksum
            && crc32c(start, &bytes) & bits != sum
        {
            return Err(damaged(format!("the checksum of block {block} in its journal is wrong")));
        }
        if newer.is_escaped {
            bytes[..JOURNAL_MAGIC.len()].copy_from_slice(&JOURNAL_MAGIC);
        }
        Ok(bytes)
    }

    /// Reads what is at the place of a block itself.
    fn stored(&self, block: u64, within: u64, into: &mut [u8]) -> Result<()> {
        let offset = block.saturating_mul(self.size).saturating_add(within);
        self.part.read_at(offset, into).map_err(|source| match self.part.is_endless() {
            true => FsError::Endless,
            false => FsError::Read { source },
        })
    }
}
