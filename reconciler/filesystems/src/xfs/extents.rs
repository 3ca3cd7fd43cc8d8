//! Where a file is: extents in its inode, or in the leaves of a tree.
//!
//! *Guarantees*: the extents are in the order of the file, do not overlap, and are in the file system; their ends in bytes are numbers of 64
//! bits. Nodes of the tree are counted.

use super::inode::{Format, Inode};
use super::superblock::{Superblock, field};
use super::{damaged, has_checksum};
use crate::disk::Window;
use crate::error::Result;

/// The limit of extents of a file: 32 bytes of memory each.
const MOST_EXTENTS: usize = 4 << 20;
/// The limit of nodes of its tree.
const MOST_NODES: usize = 256 << 10;
/// The deepest tree that Linux makes is lower.
const DEEPEST: u64 = 9;
/// The lengths of the headers of a node, before format 5 and in it.
const SMALL: usize = 24;
const LARGE: usize = 72;
const CHECKSUM: usize = 64;
/// The length of a record, and of a key and a pointer together.
const RECORD: usize = 16;
/// The limit of blocks in a file: its offsets have 54 bits.
const MOST_BLOCKS: u64 = 1 << 54;

/// Blocks that follow each other, in the file and in the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    /// In the file.
    pub(super) first: u64,
    pub(super) count: u64,
    /// In the file system.
    pub(super) block: u64,
    /// Whether it was allocated and never written.
    pub(super) is_unwritten: bool,
}

/// Returns the extents of a file, a folder or a long link.
pub(super) fn of(part: &Window, superblock: &Superblock, inode: &Inode) -> Result<Vec<Extent>> {
    let mut reading = Reading { part, superblock, inode, extents: Vec::new(), nodes: 0 };
    match inode.format {
        Format::Extents => {
            let count = usize::try_from(inode.extents).unwrap_or(usize::MAX);
            let records = inode.fork.chunks_exact(RECORD);
            if records.len() < count {
                return reading.damaged("are more than there is room for");
            }
            for record in records.take(count) {
                reading.add(record)?;
            }
        }
        Format::Tree => reading.root()?,
        Format::Local | Format::Nothing => return reading.damaged("are none"),
    }
    Ok(reading.extents)
}

struct Reading<'a> {
    part: &'a Window,
    superblock: &'a Superblock,
    inode: &'a Inode,
    extents: Vec<Extent>,
    nodes: usize,
}

impl Reading<'_> {
    fn damaged<T>(&self, detail: &str) -> Result<T> {
        Err(damaged(format!("the extents of inode {} {detail}", self.inode.number)))
    }

    /// Adds the extent of a record of 128 bits: a flag, and numbers of 54, 52 and 21 bits.
    fn add(&mut self, record: &[u8]) -> Result<()> {
        let (high, low) = (field(record, 0, 8), field(record, 8, 8));
        let extent = Extent {
            first: high << 1 >> 10,
            count: low & 0x1f_ffff,
            block: (high & 0x1ff) << 43 | low >> 21,
            is_unwritten: high >> 63 == 1,
        };
        let next = self.extents.last().map_or(0, |last| last.first + last.count);
        let end = (extent.first + extent.count).checked_mul(self.superblock.block_size);
        let is_there = extent.count > 0
            && extent.first >= next
            && extent.first + extent.count <= MOST_BLOCKS
            && end.is_some()
            && self.superblock.has(extent.block, extent.count);
        if !is_there {
            return self.damaged("overlap, or are not all in the file system");
        }
        if self.extents.len() >= MOST_EXTENTS {
            return self.damaged(&format!("are more than {MOST_EXTENTS}"));
        }
        self.extents.push(extent);
        Ok(())
    }

    /// Reads the tree, whose root is in the inode.
    fn root(&mut self) -> Result<()> {
        let inode = self.inode;
        let (level, count) = (field(&inode.fork, 0, 2), field(&inode.fork, 2, 2));
        let Some(rest) = inode.fork.get(4..).filter(|_| (1..=DEEPEST).contains(&level)) else {
            return self.damaged("are in a tree that is none");
        };
        self.below(rest, count, level)
    }

    /// Reads the nodes that a node names. Its pointers follow the room for its keys.
    fn below(&mut self, rest: &[u8], count: u64, level: u64) -> Result<()> {
        let most = rest.len() / RECORD;
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        if count == 0 || count > most {
            return self.damaged("are in a node with more entries than there is room for");
        }
        let pointers = rest[most * 8..].chunks_exact(8).take(count);
        for pointer in pointers {
            self.node(field(pointer, 0, 8), level - 1)?;
        }
        Ok(())
    }

    fn node(&mut self, block: u64, level: u64) -> Result<()> {
        self.nodes += 1;
        if self.nodes > MOST_NODES {
            return self.damaged(&format!("are in more than {MOST_NODES} nodes"));
        }
        let bytes = self.superblock.block(self.part, block)?;
        let is_checked = self.superblock.is_checked();
        let is_right = match is_checked {
            false => bytes.starts_with(b"BMAP"),
            true => {
                bytes.starts_with(b"BMA3")
                    && has_checksum(&bytes, CHECKSUM)
                    && bytes[40..56] == self.superblock.id
                    && field(&bytes, 56, 8) == self.inode.number
            }
        };
        let (found, count) = (field(&bytes, 4, 2), field(&bytes, 6, 2));
        if !is_right || found != level {
            return self.damaged("are in a node that is none, or has a wrong checksum");
        }
        let rest = &bytes[if is_checked { LARGE } else { SMALL }..];
        if level > 0 {
            return self.below(rest, count, level);
        }
        let records = rest.chunks_exact(RECORD);
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        if count > records.len() {
            return self.damaged("are in a node with more entries than there is room for");
        }
        for record in records.take(count) {
            self.add(record)?;
        }
        Ok(())
    }
}
