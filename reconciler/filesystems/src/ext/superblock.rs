//! The superblock: the geometry and the features of a file system, and where the descriptors of its groups are.

use std::ops::RangeInclusive;

use super::{WHAT, damaged};
use crate::checksum::{START, crc32c};
use crate::disk::number;
use crate::error::{FsError, Result};

/// The offset of the superblock, and its length.
pub(super) const OFFSET: u64 = 1024;
pub(super) const LENGTH: usize = 1024;
const MAGIC: u64 = 0xef53;
/// The offset of its checksum.
const CHECKSUM: usize = 0x3fc;
/// The limit of groups of blocks: 64 TiB in blocks of 4 KiB have so many.
const MOST_GROUPS: u64 = 512 << 10;
/// The sizes of an inode, and of the descriptor of a group with numbers of 64 bits.
const INODES: RangeInclusive<u64> = 128..=4096;
const DESCRIPTORS: RangeInclusive<u64> = 64..=1024;

/// Features that change how the file system is read. One that is not in [`KNOWN`] is refused.
const NEEDS_RECOVERY: u64 = 0x4;
const META_GROUPS: u64 = 0x10;
const WIDE: u64 = 0x80;
const SEED: u64 = 0x2000;
const LARGE_FOLDERS: u64 = 0x4000;
/// With them: types in entries of folders, extents, multiple mount protection, flexible groups, attributes in inodes, encryption of
/// single files, which are refused.
const KNOWN: u64 = 0x2
    | NEEDS_RECOVERY
    | META_GROUPS
    | 0x40
    | WIDE
    | 0x100
    | 0x200
    | 0x400
    | SEED
    | LARGE_FOLDERS
    | 0x1_0000;
/// The names of those that are refused.
const REFUSED: &[(u64, &str)] = &[
    (0x1, "compression"),
    (0x8, "journal_dev"),
    (0x1000, "dirdata"),
    (0x8000, "inline_data"),
    (0x2_0000, "casefold"),
];
/// Features that a reader need not know.
const SPARSE_BACKUPS: u64 = 0x1;
const CHECKSUMS: u64 = 0x400;
const TWO_BACKUPS: u64 = 0x200;

/// The superblock, whose numbers are verified.
#[derive(Clone, Debug)]
pub(super) struct Superblock {
    pub(super) block_size: u64,
    pub(super) blocks: u64,
    pub(super) inodes: u64,
    pub(super) inode_size: u64,
    pub(super) inodes_per_group: u64,
    pub(super) descriptor_size: u64,
    /// The inode of the journal.
    pub(super) journal: u64,
    /// The start value of checksums; `None`: there are none.
    pub(super) seed: Option<u32>,
    features: u64,
    blocks_per_group: u64,
    first_block: u64,
    first_meta_group: u64,
    backups: Backups,
}

/// Which groups begin with a copy of the superblock.
#[derive(Clone, Copy, Debug)]
enum Backups {
    All,
    Sparse,
    Two([u64; 2]),
}

impl Superblock {
    /// Verifies a superblock. `there` is the size of its place in bytes.
    pub(super) fn new(bytes: &[u8], there: u64) -> Result<Self> {
        let field = |offset, length| number(bytes, offset, length);
        if field(0x38, 2) != MAGIC || bytes.len() < LENGTH {
            return Err(damaged("it has no superblock"));
        }
        // The first revision has no features, and inodes of one size.
        let is_first = field(0x4c, 4) == 0;
        let feature = |offset| if is_first { 0 } else { field(offset, 4) };
        let (compatible, features, read_only) = (feature(0x5c), feature(0x60), feature(0x64));
        refuse_unknown(features)?;
        let is_wide = features & WIDE != 0;
        let found = Self {
            block_size: block_size(field(0x18, 4))?,
            blocks: field(0x4, 4) | if is_wide { field(0x150, 4) << 32 } else { 0 },
            inodes: field(0x0, 4),
            inode_size: if is_first { *INODES.start() } else { field(0x58, 2) },
            inodes_per_group: field(0x28, 4),
            descriptor_size: if is_wide { field(0xfe, 2) } else { 32 },
            journal: field(0xe0, 4),
            seed: None,
            features,
            blocks_per_group: field(0x20, 4),
            first_block: field(0x14, 4),
            first_meta_group: field(0x104, 4),
            backups: if compatible & TWO_BACKUPS != 0 {
                Backups::Two([field(0x24c, 4), field(0x250, 4)])
            } else if read_only & SPARSE_BACKUPS != 0 {
                Backups::Sparse
            } else {
                Backups::All
            },
        };
        found.check(there)?;
        if read_only & CHECKSUMS == 0 {
            return Ok(found);
        }
        if field(0x175, 1) != 1 || u64::from(crc32c(START, &bytes[..CHECKSUM])) != field(CHECKSUM, 4) {
            return Err(damaged("the checksum of its superblock is wrong"));
        }
        let seed = match features & SEED {
            0 => crc32c(START, &bytes[0x68..0x78]),
            _ => u32::try_from(field(0x270, 4)).unwrap_or_default(),
        };
        Ok(Self { seed: Some(seed), ..found })
    }

    /// Refuses numbers that lead beyond the place, or that no file system has.
    fn check(&self, there: u64) -> Result<()> {
        let Self { blocks, block_size, blocks_per_group: group, inode_size, .. } = self;
        if blocks.checked_mul(*block_size).is_none_or(|bytes| bytes > there) {
            return Err(damaged(format!(
                "it has {blocks} blocks of {block_size} bytes, and its place has {there} bytes"
            )));
        }
        if *group == 0 || blocks / group > MOST_GROUPS {
            return Err(damaged(format!("a group has {group} of {blocks} blocks")));
        }
        if !INODES.contains(inode_size) || !inode_size.is_power_of_two() || inode_size > block_size {
            return Err(damaged(format!("an inode has {inode_size} bytes")));
        }
        if self.inodes_per_group == 0 {
            return Err(damaged("a group has no inodes"));
        }
        let size = self.descriptor_size;
        let is_size = if self.is_wide() { DESCRIPTORS.contains(&size) } else { size == 32 };
        if !is_size || !size.is_power_of_two() {
            return Err(damaged(format!("the descriptor of a group has {size} bytes")));
        }
        Ok(())
    }

    /// Whether numbers of blocks have more than 32 bits in the descriptors of groups.
    pub(super) fn is_wide(&self) -> bool {
        self.features & WIDE != 0
    }

    /// Whether it was not unmounted.
    pub(super) fn needs_recovery(&self) -> bool {
        self.features & NEEDS_RECOVERY != 0
    }

    /// Whether the size of a folder has 64 bits.
    pub(super) fn has_large_folders(&self) -> bool {
        self.features & LARGE_FOLDERS != 0
    }

    /// Returns the block with the descriptor of a group, and the descriptor's offset in it.
    pub(super) fn descriptor(&self, group: u64) -> (u64, u64) {
        let in_block = self.block_size / self.descriptor_size;
        let (meta_group, within) = (group / in_block, group % in_block * self.descriptor_size);
        if self.features & META_GROUPS == 0 || meta_group < self.first_meta_group {
            return (self.first_block + 1 + meta_group, within);
        }
        // The first group of those that the block describes has it, after the copy of the superblock.
        let first = meta_group * in_block;
        let start = self.first_block + first * self.blocks_per_group;
        (start + u64::from(self.has_backup(first)), within)
    }

    fn has_backup(&self, group: u64) -> bool {
        let is_power_of = |base: u64| {
            std::iter::successors(Some(base), |n| n.checked_mul(base))
                .take_while(|power| *power <= group)
                .any(|power| power == group)
        };
        match self.backups {
            Backups::All => true,
            Backups::Two(groups) => group == 0 || groups.contains(&group),
            Backups::Sparse => group <= 1 || [3, 5, 7].into_iter().any(is_power_of),
        }
    }
}

fn block_size(exponent: u64) -> Result<u64> {
    match exponent {
        0..=6 => Ok(1024 << exponent),
        _ => Err(damaged(format!("a block has 2^{exponent} KiB"))),
    }
}

fn refuse_unknown(features: u64) -> Result<()> {
    let unknown = features & !KNOWN;
    if unknown == 0 {
        return Ok(());
    }
    let named = REFUSED.iter().filter(|(bit, _)| unknown & bit != 0).map(|(_, name)| *name);
    let names: Vec<&str> = named.collect();
    let detail = match names.is_empty() {
        true => format!("it has features that are not known ({unknown:#x})"),
        false => format!("it has the feature {}", names.join(" and ")),
    };
    Err(FsError::Features { what: WHAT, detail })
}

#[test]
fn copies_of_the_superblock_are_in_powers_of_three_five_and_seven() {
    let mut bytes = vec![0; LENGTH];
    for (offset, value) in
        [(0x4, 8_u32), (0x20, 8192), (0x28, 8), (0x38, 0xef53), (0x4c, 1), (0x58, 128), (0x64, 1)]
    {
        bytes[offset..offset + 4].copy_from_slice(&value.to_le_bytes());
    }
    let found = Superblock::new(&bytes, 1 << 20).expect("it is one");
    let backups: Vec<u64> = (0..60).filter(|group| found.has_backup(*group)).collect();
    assert_eq!(backups, [0, 1, 3, 5, 7, 9, 25, 27, 49]);
}
