//! Which blocks of the file system a file has: by a tree of extents, or by the older lists of blocks.
//!
//! *Guarantees*: the runs are in the order of the file and do not overlap. Bytes of the file in no run are zeros: holes, and extents that were
//! allocated (`fallocate`) and never written, whose blocks have old data of other files.

use super::blocks::Blocks;
use super::damaged;
use super::inode::Inode;
use crate::checksum::crc32c;
use crate::disk::number;
use crate::error::Result;

/// The limit of runs of a file: 24 bytes of memory each.
const MOST_RUNS: usize = 4 << 20;
/// The deepest tree of extents that Linux makes.
const DEEPEST: u64 = 5;
const EXTENT_MAGIC: u64 = 0xf30a;
/// The length of the header of a node, and of an entry.
const ENTRY: usize = 12;
/// An extent that is longer has one block for each number above this, none of which was written.
const UNWRITTEN: u64 = 1 << 15;
/// The blocks that an inode names itself.
const DIRECT: usize = 12;

/// Blocks that follow each other, in the file and in the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// In the file.
    pub(super) first: u64,
    pub(super) count: u64,
    /// In the file system.
    pub(super) block: u64,
}

/// Returns the runs of a file, a folder or a long link.
pub(super) fn runs(blocks: &Blocks, inode: &Inode) -> Result<Vec<Run>> {
    let mut reading = Reading { blocks, inode, runs: Vec::new(), next: 0, nodes: 0 };
    if inode.has_extents() {
        reading.extents(&inode.map, None)?;
    } else {
        reading.lists()?;
    }
    Ok(reading.runs)
}

struct Reading<'a> {
    blocks: &'a Blocks,
    inode: &'a Inode,
    runs: Vec<Run>,
    /// The first block of the file that is not seen yet.
    next: u64,
    nodes: usize,
}

impl Reading<'_> {
    fn damaged<T>(&self, detail: &str) -> Result<T> {
        Err(damaged(format!("the blocks of inode {} {detail}", self.inode.number)))
    }

    fn add(&mut self, run: Run) -> Result<()> {
        let is_there =
            run.block > 0 && run.block.checked_add(run.count).is_some_and(|end| end <= self.blocks.count());
        if !is_there {
            return self.damaged("are not all in the file system");
        }
        if let Some(last) = self.runs.last_mut()
            && (last.first + last.count, last.block + last.count) == (run.first, run.block)
        {
            last.count += run.count;
            return Ok(());
        }
        if self.runs.len() >= MOST_RUNS {
            return self.damaged(&format!("are in more than {MOST_RUNS} places"));
        }
        self.runs.push(run);
        Ok(())
    }

    /// Reads a node of a tree of extents, whose depth is known unless it is the root.
    fn extents(&mut self, node: &[u8], expected: Option<u64>) -> Result<()> {
        let (count, depth) = (number(node, 2, 2), number(node, 6, 2));
        let most = (node.len() / ENTRY).saturating_sub(1) as u64;
        let is_node = number(node, 0, 2) == EXTENT_MAGIC
            && count <= number(node, 4, 2)
            && number(node, 4, 2) <= most
            && expected.map_or(depth <= DEEPEST, |expected| depth == expected)
            && (depth == 0 || count > 0);
        self.nodes += 1;
        if !is_node || self.nodes > MOST_RUNS {
            return self.damaged("are in a tree of extents that is none");
        }
        if expected.is_some() {
            self.check(node)?;
        }
        for entry in node.chunks_exact(ENTRY).skip(1).take(usize::try_from(count).unwrap_or_default()) {
            if depth == 0 {
                self.extent(entry)?;
            } else {
                let block = number(entry, 4, 4) | number(entry, 8, 2) << 32;
                let below = self.blocks.whole(block)?;
                self.extents(&below, Some(depth - 1))?;
            }
        }
        Ok(())
    }

    fn check(&self, node: &[u8]) -> Result<()> {
        let Some(seed) = self.inode.seed else { return Ok(()) };
        let most = usize::try_from(number(node, 4, 2)).unwrap_or_default();
        let end = ENTRY * (most + 1);
        let is_right = node.len() >= end + 4 && u64::from(crc32c(seed, &node[..end])) == number(node, end, 4);
        if is_right { Ok(()) } else { self.damaged("are in a node whose checksum is wrong") }
    }

    fn extent(&mut self, entry: &[u8]) -> Result<()> {
        let (first, length) = (number(entry, 0, 4), number(entry, 4, 2));
        let block = number(entry, 8, 4) | number(entry, 6, 2) << 32;
        let is_unwritten = length > UNWRITTEN;
        let count = if is_unwritten { length - UNWRITTEN } else { length };
        if count == 0 || first < self.next {
            return self.damaged("are in extents that overlap, or have no length");
        }
        self.next = first + count;
        if is_unwritten { Ok(()) } else { self.add(Run { first, count, block }) }
    }

    /// Reads the numbers of the first blocks, then the lists with one, two and three levels.
    fn lists(&mut self) -> Result<()> {
        let map = self.inode.map;
        let end = self.inode.size.div_ceil(self.blocks.size());
        let (direct, indirect) = map.split_at(DIRECT * 4);
        self.list(direct, 0, end)?;
        for (level, entry) in (1..).zip(indirect.chunks_exact(4)) {
            self.list(entry, level, end)?;
        }
        Ok(())
    }

    /// Reads a list of blocks, each of which has data (level 0) or another list.
    fn list(&mut self, list: &[u8], level: u32, end: u64) -> Result<()> {
        let span = (self.blocks.size() / 4).pow(level);
        for entry in list.chunks_exact(4) {
            if self.next >= end {
                return Ok(());
            }
            match (number(entry, 0, 4), level) {
                (0, _) => self.next += span,
                (block, 0) => {
                    self.add(Run { first: self.next, count: 1, block })?;
                    self.next += 1;
                }
                (block, _) => {
                    let below = self.blocks.whole(block)?;
                    self.list(&below, level - 1, end)?;
                }
            }
        }
        Ok(())
    }
}
