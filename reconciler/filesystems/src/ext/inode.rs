//! Inodes: the nodes of a file system by their numbers.

use super::blocks::Blocks;
use super::damaged;
use super::superblock::Superblock;
use crate::checksum::{crc32c, crc32c_without};
use crate::disk::number;
use crate::error::Result;
use crate::volume::{Node, NodeKind, time};

/// The inode of the root.
pub(super) const ROOT: u64 = 2;
/// The size of an inode without more fields.
const SMALL: usize = 128;
const EXTENTS: u64 = 0x8_0000;
const ENCRYPTED: u64 = 0x800;
const INDEXED: u64 = 0x1000;
const INLINE: u64 = 0x1000_0000;

/// The content of an inode.
#[derive(Clone, Debug)]
pub(super) struct Inode {
    pub(super) number: u64,
    pub(super) node: Node,
    /// In bytes, also of a folder and a link.
    pub(super) size: u64,
    /// The map of its blocks, or the target of a link.
    pub(super) map: [u8; 60],
    /// The start value of checksums of its blocks; `None`: there are none.
    pub(super) seed: Option<u32>,
    flags: u64,
}

impl Inode {
    /// Reads an inode.
    pub(super) fn read(blocks: &Blocks, superblock: &Superblock, inode: u64) -> Result<Self> {
        if inode == 0 || inode > superblock.inodes {
            return Err(damaged(format!("there is no inode {inode}")));
        }
        let (group, index) =
            ((inode - 1) / superblock.inodes_per_group, (inode - 1) % superblock.inodes_per_group);
        let table = table(blocks, superblock, group)?;
        let offset = index * superblock.inode_size;
        let mut bytes = vec![0; usize::try_from(superblock.inode_size).unwrap_or(SMALL)];
        let block = table.saturating_add(offset / superblock.block_size);
        blocks.read(block, offset % superblock.block_size, &mut bytes)?;
        Self::new(&bytes, superblock, inode)
    }

    fn new(bytes: &[u8], superblock: &Superblock, inode: u64) -> Result<Self> {
        let field = |offset, length| number(bytes, offset, length);
        let more = if bytes.len() > SMALL { field(0x80, 2) } else { 0 };
        let mut seed = None;
        if let Some(start) = superblock.seed {
            let start = crc32c(start, &bytes_of(inode));
            let start = crc32c(start, &bytes[0x64..0x68]);
            seed = Some(start);
            let is_long = more >= 4;
            let low = crc32c_without(start, &bytes[..SMALL], 0x7c..0x7e);
            let rest = &bytes[SMALL..];
            let sum = if is_long { crc32c_without(low, rest, 2..4) } else { crc32c(low, rest) };
            let stored = field(0x7c, 2) | if is_long { field(0x82, 2) << 16 } else { 0 };
            let bits = if is_long { u64::from(u32::MAX) } else { u64::from(u16::MAX) };
            if u64::from(sum) & bits != stored {
                return Err(damaged(format!("the checksum of inode {inode} is wrong")));
            }
        }
        let kind = match field(0x0, 2) >> 12 {
            0x8 => NodeKind::File,
            0x4 => NodeKind::Folder,
            0xa => NodeKind::Link,
            0x1 | 0x2 | 0x6 | 0xc => NodeKind::Special,
            _ => return Err(damaged(format!("inode {inode} is not in use, or of no kind"))),
        };
        let has_wide_size =
            kind == NodeKind::File || (kind == NodeKind::Folder && superblock.has_large_folders());
        let size = field(0x4, 4) | if has_wide_size { field(0x6c, 4) << 32 } else { 0 };
        let mut map = [0; 60];
        map.copy_from_slice(&bytes[0x28..0x64]);
        let id = |low, high| u32::try_from(field(low, 2) | field(high, 2) << 16).unwrap_or_default();
        let node = Node {
            kind,
            size,
            mode: Some(u32::try_from(field(0x0, 2) & 0o7777).unwrap_or_default()),
            owner: Some((id(0x2, 0x78), id(0x18, 0x7a))),
            modified: modified(field(0x10, 4), if more >= 12 { field(0x88, 4) } else { 0 }),
        };
        Ok(Self { number: inode, node, size, map, seed, flags: field(0x20, 4) })
    }

    pub(super) fn has_extents(&self) -> bool {
        self.flags & EXTENTS != 0
    }

    pub(super) fn is_encrypted(&self) -> bool {
        self.flags & ENCRYPTED != 0
    }

    pub(super) fn is_inline(&self) -> bool {
        self.flags & INLINE != 0
    }

    /// Whether it is a folder with an index of hashes in some of its blocks.
    pub(super) fn is_indexed(&self) -> bool {
        self.flags & INDEXED != 0
    }
}

/// Returns the first block of a group's inodes.
fn table(blocks: &Blocks, superblock: &Superblock, group: u64) -> Result<u64> {
    let (block, within) = superblock.descriptor(group);
    let mut bytes = vec![0; usize::try_from(superblock.descriptor_size).unwrap_or_default()];
    blocks.read(block, within, &mut bytes)?;
    if let Some(seed) = superblock.seed {
        let sum = crc32c_without(crc32c(seed, &bytes_of(group)), &bytes, 0x1e..0x20);
        if u64::from(sum) & 0xffff != number(&bytes, 0x1e, 2) {
            return Err(damaged(format!("the checksum of the descriptor of group {group} is wrong")));
        }
    }
    let high = if superblock.is_wide() { number(&bytes, 0x28, 4) << 32 } else { 0 };
    Ok(number(&bytes, 0x8, 4) | high)
}

/// Returns the lower 32 bits of a number, as checksums have them.
fn bytes_of(number: u64) -> [u8; 4] {
    let [a, b, c, d, ..] = number.to_le_bytes();
    [a, b, c, d]
}

/// Returns a time: a signed number of seconds, two more bits of it, and nanoseconds.
fn modified(seconds: u64, extra: u64) -> Option<std::time::SystemTime> {
    let [a, b, c, d, ..] = seconds.to_le_bytes();
    let low = i64::from(i32::from_le_bytes([a, b, c, d]));
    let high = i64::try_from((extra & 3) << 32).unwrap_or_default();
    let nanoseconds = u32::try_from(extra >> 2).unwrap_or_default();
    time(low + high, if nanoseconds < 1_000_000_000 { nanoseconds } else { 0 })
}

#[test]
fn times_have_34_bits() {
    use std::time::{Duration, SystemTime};

    let at = |seconds| Some(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
    assert_eq!(modified(1_000_000_000, 0), at(1_000_000_000));
    assert_eq!(modified(0x8000_0000, 1), at(0x8000_0000));
    assert_eq!(modified(0xffff_ffff, 0), Some(SystemTime::UNIX_EPOCH - Duration::from_secs(1)));
}
