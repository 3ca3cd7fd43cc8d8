//! The entries of a folder: in its inode, or in blocks of its file. Blocks from 32 GiB on have indexes, which are not used.

use super::extents;
use super::inode::{Format, Inode};
use super::superblock::{Superblock, field};
use super::{damaged, has_checksum};
use crate::disk::Window;
use crate::error::Result;

/// The offset in the file of the indexes.
const INDEXES: u64 = 32 << 30;
/// The lengths of the header of a block, before format 5 and in it.
const SMALL: usize = 16;
const LARGE: usize = 64;
const CHECKSUM: usize = 4;
/// The mark of room that no entry has.
const FREE: u64 = 0xffff;
/// The length of an entry without its name and its type; lengths are multiples of 8.
const HEAD: usize = 11;
/// The length of an entry of the index at the end of a folder of one block, and of the counts after them.
const INDEX: u64 = 8;

/// Calls `visit` with the name and the inode of each entry, as it is stored.
pub(super) fn entries(
    part: &Window,
    superblock: &Superblock,
    folder: &Inode,
    visit: &mut dyn FnMut(&[u8], u64) -> Result<()>,
) -> Result<()> {
    if folder.format == Format::Local {
        return short(superblock, folder, visit);
    }
    let (size, whole) = (superblock.block_size, superblock.folder_block);
    let mut pieces = Vec::new();
    for extent in extents::of(part, superblock, folder)? {
        if extent.first * size >= INDEXES {
            break;
        }
        if extent.is_unwritten {
            return Err(damaged(format!("folder {} has a block that was not written", folder.number)));
        }
        pieces.extend((0..extent.count).map(|index| (extent.first + index, extent.block + index)));
        // A folder of the limit of entries has fewer.
        if pieces.len() as u64 * size > INDEXES / 32 {
            return Err(damaged(format!("folder {} has too many blocks", folder.number)));
        }
    }
    // Each block of a folder has one or more blocks of the file system.
    let each = usize::try_from(whole / size).unwrap_or(1).max(1);
    for blocks in pieces.chunks(each) {
        let first = blocks.first().map_or(0, |(first, _)| *first);
        let is_whole = blocks.len() == each && first.is_multiple_of(each as u64);
        let is_in_order = (first..).zip(blocks).all(|(expected, (found, _))| expected == *found);
        if !is_whole || !is_in_order {
            return Err(damaged(format!("a block of folder {} is missing", folder.number)));
        }
        let mut bytes: Vec<u8> = Vec::new();
        for (_, block) in blocks {
            bytes.extend(superblock.block(part, *block)?);
        }
        of_block(&bytes, superblock, folder, visit)?;
    }
    Ok(())
}

/// Reads the entries of an inode.
fn short(
    superblock: &Superblock,
    folder: &Inode,
    visit: &mut dyn FnMut(&[u8], u64) -> Result<()>,
) -> Result<()> {
    let wrong = || damaged(format!("the entries in folder {} are damaged", folder.number));
    let (count, wide) = (field(&folder.fork, 0, 1), field(&folder.fork, 1, 1));
    let number = if wide == 0 { 4 } else { 8 };
    let mut rest = folder.fork.get(2 + number..).ok_or_else(wrong)?;
    for _ in 0..count {
        let name_length = usize::from(*rest.first().ok_or_else(wrong)?);
        // The length, an offset, and the name; then the type.
        let after = 3 + name_length;
        let at = after + usize::from(superblock.has_types);
        let name = rest.get(3..after).ok_or_else(wrong)?;
        let inode = rest.get(at..at + number).ok_or_else(wrong)?;
        visit(name, field(inode, 0, number))?;
        rest = &rest[at + number..];
    }
    Ok(())
}

fn of_block(
    block: &[u8],
    superblock: &Superblock,
    folder: &Inode,
    visit: &mut dyn FnMut(&[u8], u64) -> Result<()>,
) -> Result<()> {
    let wrong = |detail: &str| damaged(format!("a block of folder {} {detail}", folder.number));
    let is_checked = superblock.is_checked();
    let (single, many) = if is_checked { (b"XDB3", b"XDD3") } else { (b"XD2B", b"XD2D") };
    let is_single = block.starts_with(single);
    if !is_single && !block.starts_with(many) {
        return Err(wrong("has no entries"));
    }
    if is_checked {
        let is_right = has_checksum(block, CHECKSUM)
            && block[24..40] == superblock.id
            && field(block, 40, 8) == folder.number;
        if !is_right {
            return Err(wrong("has a wrong checksum, or is of another folder"));
        }
    }
    let end = if is_single { end_of(block).ok_or_else(|| wrong("has no end"))? } else { block.len() };
    let mut at = if is_checked { LARGE } else { SMALL };
    while at < end {
        let rest = &block[at..end];
        let is_free = field(rest, 0, 2) == FREE;
        let name_length = usize::try_from(field(rest, 8, 1)).unwrap_or_default();
        let length = match is_free {
            true => usize::try_from(field(rest, 2, 2)).unwrap_or_default(),
            false => (HEAD + name_length + usize::from(superblock.has_types)).next_multiple_of(8),
        };
        let is_entry = length.is_multiple_of(8) && length > 0 && length <= rest.len();
        if !is_entry || (!is_free && name_length == 0) {
            return Err(wrong("has an entry that is none"));
        }
        if !is_free {
            visit(&rest[9..9 + name_length], field(rest, 0, 8))?;
        }
        at += length;
    }
    Ok(())
}

/// Returns the end of the entries of a folder of one block, before its index.
fn end_of(block: &[u8]) -> Option<usize> {
    let counts = block.len().checked_sub(8)?;
    let index = field(block, counts, 4).checked_mul(INDEX)?;
    counts.checked_sub(usize::try_from(index).ok()?).filter(|end| *end >= SMALL)
}
