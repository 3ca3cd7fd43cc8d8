//! The blocks of a journal. Its numbers are big-endian.

use crate::checksum::{START, crc32c, crc32c_without};
use crate::disk::big_endian;
use crate::error::{FsError, Result};
use crate::ext::blocks::{Blocks, JOURNAL_MAGIC};
use crate::ext::inode::Inode;
use crate::ext::{WHAT, damaged};

/// The types of the superblock of a journal: without features, and with them.
const FIRST_VERSION: u64 = 3;
const SECOND_VERSION: u64 = 4;
/// The length of the superblock, the place of its checksum, and that of the UUID.
const SUPERBLOCK: usize = 1024;
const CHECKSUM: usize = 0xfc;
const UUID: std::ops::Range<usize> = 0x30..0x40;
/// The length of the header of a block, and that of a block with revoked numbers.
const HEADER: usize = 12;
const REVOKE_HEADER: usize = 16;
/// The length of the checksum at the end of a block, and its place in a commit.
const TAIL: usize = 4;
const COMMIT_CHECKSUM: usize = 16;

const REVOKES: u64 = 0x1;
const WIDE: u64 = 0x2;
const CHECKSUMS_2: u64 = 0x8;
const CHECKSUMS_3: u64 = 0x10;
/// Those that are not known: commits that do not wait for their data (4), fast commits (32).
const REFUSED: &[(u64, &str)] = &[(0x4, "asynchronous commits"), (0x20, "fast commits")];

const IS_ESCAPED: u64 = 1;
const HAS_NO_UUID: u64 = 2;
const IS_LAST: u64 = 8;

/// The geometry and the features of a journal that is not empty.
#[derive(Clone, Debug)]
pub(super) struct Format {
    /// The block at which the log begins, and its sequence number.
    pub(super) start: u64,
    pub(super) sequence: u32,
    /// The start value of checksums; `None`: there are none.
    pub(super) seed: Option<u32>,
    /// The ring of blocks.
    first: u64,
    end: u64,
    features: u64,
}

/// The number of a block in a descriptor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tag {
    pub(super) block: u64,
    pub(super) is_escaped: bool,
    /// With the bits of it that are stored.
    pub(super) checksum: Option<(u32, u32)>,
}

impl Format {
    /// Reads the superblock of a journal; `None`: its log is empty.
    pub(super) fn new(block: &[u8], blocks: &Blocks, inode: &Inode) -> Result<Option<Self>> {
        let field = |offset, length| big_endian(block, offset, length);
        let version = field(4, 4);
        if !block.starts_with(&JOURNAL_MAGIC) || !matches!(version, FIRST_VERSION | SECOND_VERSION) {
            return Err(damaged("its journal has no superblock"));
        }
        let features = if version == SECOND_VERSION { field(0x28, 4) } else { 0 };
        let has_checksums = features & (CHECKSUMS_2 | CHECKSUMS_3) != 0;
        if has_checksums {
            let sum = crc32c_without(START, &block[..SUPERBLOCK], CHECKSUM..CHECKSUM + TAIL);
            if u64::from(sum) != field(CHECKSUM, 4) {
                return Err(damaged("the checksum of its journal's superblock is wrong"));
            }
        }
        // Fast commits are beside the log, which can be empty then.
        refuse_unknown(features)?;
        let start = field(0x1c, 4);
        if start == 0 {
            return Ok(None);
        }
        let (end, first) = (field(0x10, 4), field(0x14, 4));
        let is_right = field(0xc, 4) == blocks.size()
            && end <= inode.size / blocks.size()
            && (1..end).contains(&first)
            && (first..end).contains(&start);
        if !is_right {
            return Err(damaged("its journal has a superblock that does not fit to it"));
        }
        Ok(Some(Self {
            start,
            sequence: low(field(0x18, 4)),
            seed: has_checksums.then(|| crc32c(START, &block[UUID])),
            first,
            end,
            features,
        }))
    }

    /// The number of blocks in the ring.
    pub(super) fn length(&self) -> u64 {
        self.end - self.first
    }

    /// Returns the block that is so many blocks after this one.
    pub(super) fn after(&self, block: u64, distance: u64) -> u64 {
        self.first + (block - self.first + distance) % self.length()
    }

    /// Verifies the checksum at the end of a block.
    pub(super) fn check_tail(&self, block: &[u8]) -> Result<()> {
        let end = block.len() - TAIL;
        self.check(block, end)
    }

    /// Verifies the checksum of a commit.
    pub(super) fn check_commit(&self, block: &[u8]) -> Result<()> {
        self.check(block, COMMIT_CHECKSUM)
    }

    fn check(&self, block: &[u8], at: usize) -> Result<()> {
        let Some(seed) = self.seed else { return Ok(()) };
        if u64::from(crc32c_without(seed, block, at..at + TAIL)) != big_endian(block, at, TAIL) {
            return Err(damaged("the checksum of a block of its journal is wrong"));
        }
        Ok(())
    }

    /// Returns the numbers in a descriptor.
    pub(super) fn tags(&self, block: &[u8]) -> Result<Vec<Tag>> {
        let (wide, third) = (self.features & WIDE != 0, self.features & CHECKSUMS_3 != 0);
        let second = !third && self.features & CHECKSUMS_2 != 0;
        let length = match (third, second, wide) {
            (true, ..) => 16,
            // Linux adds the two bytes of a checksum that has its place already.
            (false, second, wide) => 8 + if second { 2 } else { 0 } + if wide { 4 } else { 0 },
        };
        let end = block.len() - if self.seed.is_some() { TAIL } else { 0 };
        let (mut tags, mut at) = (Vec::new(), HEADER);
        while at + length <= end {
            let tag = &block[at..at + length];
            let flags = if third { big_endian(tag, 4, 4) } else { big_endian(tag, 6, 2) };
            let high = if wide { big_endian(tag, 8, 4) << 32 } else { 0 };
            let checksum = match (third, second) {
                (true, _) => Some((low(big_endian(tag, 12, 4)), u32::MAX)),
                (false, true) => Some((low(big_endian(tag, 4, 2)), u32::from(u16::MAX))),
                (false, false) => None,
            };
            let block = big_endian(tag, 0, 4) | high;
            tags.push(Tag { block, is_escaped: flags & IS_ESCAPED != 0, checksum });
            at += length + if flags & HAS_NO_UUID == 0 { UUID.len() } else { 0 };
            if flags & IS_LAST != 0 {
                return Ok(tags);
            }
        }
        // Linux marks the last one always.
        Err(damaged("a block of its journal has no last entry"))
    }

    /// Returns the numbers in a block with revoked ones.
    pub(super) fn revoked(&self, block: &[u8]) -> Result<Vec<u64>> {
        let length = if self.features & WIDE != 0 { 8 } else { 4 };
        let most = block.len() - if self.seed.is_some() { TAIL } else { 0 };
        let end = usize::try_from(big_endian(block, HEADER, 4)).unwrap_or(usize::MAX);
        if self.features & REVOKES == 0 || !(REVOKE_HEADER..=most).contains(&end) {
            return Err(damaged("a block of its journal revokes more than it can"));
        }
        let numbers = block[REVOKE_HEADER..end].chunks_exact(length);
        Ok(numbers.map(|number| big_endian(number, 0, length)).collect())
    }
}

fn refuse_unknown(features: u64) -> Result<()> {
    let unknown = features & !(REVOKES | WIDE | CHECKSUMS_2 | CHECKSUMS_3);
    if unknown == 0 {
        return Ok(());
    }
    let name =
        REFUSED.iter().find(|(bit, _)| unknown & bit != 0).map_or("unknown features", |(_, name)| *name);
    Err(FsError::Features {
        what: WHAT,
        detail: format!(
            "it was not unmounted, and its journal has {name} ({unknown:#x}); one that is frozen for the snapshot has an empty journal"
        ),
    })
}

/// Returns a number of at most 32 bits.
fn low(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
