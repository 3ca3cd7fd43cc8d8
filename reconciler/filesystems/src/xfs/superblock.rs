//! The superblock: the geometry and the features of a file system, and its blocks.

use super::{WHAT, damaged, failed, has_checksum};
use crate::disk::{Window, big_endian};
use crate::error::{FsError, Result};

/// The largest sector, which has the superblock.
pub(super) const MOST: usize = 32 << 10;
/// The length of the fields.
const LENGTH: usize = 264;
const CHECKSUM: usize = 224;

/// Features of format 4: folders of the second version, and more features, one of which is the types of entries.
const FOLDERS_2: u64 = 0x2000;
const MORE: u64 = 0x8000;
const TYPES_4: u64 = 0x200;
/// Features of format 5 that change how the file system is read. One that is not in [`KNOWN`] is refused.
const TYPES: u64 = 0x1;
const OTHER_ID: u64 = 0x4;
/// With them: sparse inodes, times of 64 bits, counts of extents of 64 bits, exchanged ranges, parents of entries.
const KNOWN: u64 = TYPES | 0x2 | OTHER_ID | 0x8 | 0x20 | 0x40 | 0x80;
/// The names of those that are refused.
const REFUSED: &[(u64, &str)] = &[(0x10, "needsrepair"), (0x100, "metadir")];

/// The numbers of a superblock, which are verified.
#[derive(Clone, Debug)]
pub(super) struct Superblock {
    pub(super) block_size: u64,
    pub(super) inode_size: u64,
    /// The inode of the root.
    pub(super) root: u64,
    /// In bytes.
    pub(super) folder_block: u64,
    /// Whether entries of folders have a type.
    pub(super) has_types: bool,
    /// The identity that blocks of format 5 have.
    pub(super) id: [u8; 16],
    version: u64,
    /// The first block of the log, and the number of its blocks.
    log: (u64, u64),
    blocks: u64,
    group_blocks: u64,
    groups: u64,
    /// The bits of numbers: of a block in a group, and of an inode in a block.
    group_bits: u64,
    inode_bits: u64,
}

/// Returns the number in these bytes.
pub(super) fn field(bytes: &[u8], offset: usize, length: usize) -> u64 {
    big_endian(bytes, offset, length)
}

impl Superblock {
    /// Verifies a superblock. `there` is the size of its place in bytes.
    pub(super) fn new(bytes: &[u8], there: u64) -> Result<Self> {
        if bytes.len() < LENGTH || !bytes.starts_with(b"XFSB") {
            return Err(damaged("it has no superblock"));
        }
        let at = |offset, length| field(bytes, offset, length);
        let (features, version) = (at(100, 2), at(100, 2) & 0xf);
        let more = if features & MORE == 0 { 0 } else { at(200, 4) };
        let incompatible = if version == 5 { at(216, 4) } else { 0 };
        refuse_unknown(version, features, incompatible)?;
        let mut id = [0; 16];
        id.copy_from_slice(if incompatible & OTHER_ID == 0 { &bytes[32..48] } else { &bytes[248..264] });
        let sector = usize::try_from(at(102, 2)).unwrap_or_default();
        let is_sector = (512..=MOST).contains(&sector) && sector.is_power_of_two();
        if version == 5
            && !bytes.get(..sector).is_some_and(|bytes| is_sector && has_checksum(bytes, CHECKSUM))
        {
            return Err(damaged("the checksum of its superblock is wrong"));
        }
        let found = Self {
            block_size: at(4, 4),
            inode_size: at(104, 2),
            root: at(56, 8),
            folder_block: at(4, 4).checked_shl(u32::try_from(at(192, 1)).unwrap_or(u32::MAX)).unwrap_or(0),
            has_types: if version == 5 { incompatible & TYPES != 0 } else { more & TYPES_4 != 0 },
            id,
            version,
            log: (at(48, 8), at(96, 4)),
            blocks: at(8, 8),
            group_blocks: at(84, 4),
            groups: at(88, 4),
            group_bits: at(124, 1),
            inode_bits: at(123, 1),
        };
        found.check(there)?;
        Ok(found)
    }

    /// Refuses numbers that lead beyond the place, or that no file system has.
    fn check(&self, there: u64) -> Result<()> {
        let Self { block_size, blocks, inode_size, group_blocks, groups, .. } = self;
        if !(512..=64 << 10).contains(block_size) || !block_size.is_power_of_two() {
            return Err(damaged(format!("a block has {block_size} bytes")));
        }
        if blocks.checked_mul(*block_size).is_none_or(|bytes| bytes > there) {
            return Err(damaged(format!(
                "it has {blocks} blocks of {block_size} bytes, and its place has {there} bytes"
            )));
        }
        let is_inode = (256..=2048).contains(inode_size) && inode_size.is_power_of_two();
        if !is_inode || block_size >> self.inode_bits.min(63) != *inode_size {
            return Err(damaged(format!("an inode has {inode_size} bytes")));
        }
        let is_group = (1..=31).contains(&self.group_bits)
            && *group_blocks > 0
            && *group_blocks <= 1 << self.group_bits
            && groups.checked_mul(*group_blocks).is_some_and(|all| all >= *blocks);
        if !is_group {
            return Err(damaged(format!("it has {groups} groups of {group_blocks} blocks")));
        }
        if !(*block_size..=64 << 10).contains(&self.folder_block) {
            return Err(damaged("the blocks of its folders have a size that none has"));
        }
        Ok(())
    }

    /// Whether it has the format whose blocks have checksums.
    pub(super) fn is_checked(&self) -> bool {
        self.version == 5
    }

    /// Returns the place of the log in bytes, and the number of its blocks of 512 bytes; none if it is on another disk.
    pub(super) fn log(&self) -> (u64, u64) {
        let (first, count) = self.log;
        let is_here = first > 0 && self.has(first, count);
        if is_here { (self.place(first), count * self.block_size / 512) } else { (0, 0) }
    }

    /// Returns the place of an inode in bytes.
    pub(super) fn inode_place(&self, inode: u64) -> Option<u64> {
        let (block, index) = (inode >> self.inode_bits, inode & ((1 << self.inode_bits) - 1));
        self.has(block, 1).then(|| self.place(block) + index * self.inode_size)
    }

    /// Whether so many blocks from this one on are there, in one group.
    pub(super) fn has(&self, block: u64, count: u64) -> bool {
        let (group, within) = (block >> self.group_bits, block & ((1 << self.group_bits) - 1));
        let is_in_group = within.checked_add(count).is_some_and(|end| end <= self.group_blocks);
        is_in_group && group < self.groups && group * self.group_blocks + within + count <= self.blocks
    }

    /// Returns the place of a block, which is there, in bytes.
    pub(super) fn place(&self, block: u64) -> u64 {
        let (group, within) = (block >> self.group_bits, block & ((1 << self.group_bits) - 1));
        (group * self.group_blocks + within) * self.block_size
    }

    /// Reads a block.
    pub(super) fn block(&self, part: &Window, block: u64) -> Result<Vec<u8>> {
        if !self.has(block, 1) {
            return Err(damaged(format!("there is no block {block}")));
        }
        let mut bytes = vec![0; usize::try_from(self.block_size).unwrap_or_default()];
        part.read_at(self.place(block), &mut bytes).map_err(|source| failed(part, source))?;
        Ok(bytes)
    }
}

fn refuse_unknown(version: u64, features: u64, incompatible: u64) -> Result<()> {
    let unknown = incompatible & !KNOWN;
    let detail = match version {
        4 | 5 if features & FOLDERS_2 == 0 => "its folders are of the first version".to_owned(),
        4 | 5 if unknown == 0 => return Ok(()),
        4 | 5 => {
            let named: Vec<_> = REFUSED.iter().filter(|(bit, _)| unknown & bit != 0).collect();
            match named.first() {
                Some((_, name)) => format!("it has the feature {name}"),
                None => format!("it has features that are not known ({unknown:#x})"),
            }
        }
        other => format!("it has the format {other}"),
    };
    Err(FsError::Features { what: WHAT, detail })
}
