//! The entries of a folder, one block after the other. An index of hashes is in blocks that look like ones without entries, and is not used.

use super::blocks::Blocks;
use super::damaged;
use super::inode::Inode;
use super::map::runs;
use crate::checksum::crc32c;
use crate::disk::number;
use crate::error::Result;

/// The length of an entry without its name, and of the one at the end of a block that has the checksum.
const HEAD: usize = 8;
const TAIL: usize = 12;
/// The type of the entry with the checksum.
const CHECKSUM: u64 = 0xde;

/// Calls `visit` with the name and the inode of each entry, as it is stored.
pub(super) fn entries(
    blocks: &Blocks,
    folder: &Inode,
    visit: &mut dyn FnMut(&[u8], u64) -> Result<()>,
) -> Result<()> {
    let count = folder.size.div_ceil(blocks.size());
    let mut next = 0;
    for run in runs(blocks, folder)? {
        for at in 0..run.count {
            if next >= count {
                return Ok(());
            }
            if run.first + at != next {
                return Err(damaged(format!("block {next} of folder {} is missing", folder.number)));
            }
            let block = blocks.whole(run.block + at)?;
            check(&block, folder, next == 0)?;
            of_block(&block, folder, visit)?;
            next += 1;
        }
    }
    if next < count {
        return Err(damaged(format!("block {next} of folder {} is missing", folder.number)));
    }
    Ok(())
}

/// Verifies the checksum of a block with entries.
fn check(block: &[u8], folder: &Inode, is_first: bool) -> Result<()> {
    let Some(seed) = folder.seed else { return Ok(()) };
    let is_index = number(block, 0, 4) == 0 && length_of(block, block) == block.len();
    if folder.is_indexed() && (is_first || is_index) {
        return Ok(());
    }
    let end = block.len() - TAIL;
    let tail = &block[end..];
    let has_sum =
        number(tail, 0, 4) == 0 && number(tail, 4, 2) == TAIL as u64 && number(tail, 7, 1) == CHECKSUM;
    if !has_sum || u64::from(crc32c(seed, &block[..end])) != number(tail, 8, 4) {
        return Err(damaged(format!("the checksum of a block of folder {} is wrong", folder.number)));
    }
    Ok(())
}

fn of_block(block: &[u8], folder: &Inode, visit: &mut dyn FnMut(&[u8], u64) -> Result<()>) -> Result<()> {
    let mut rest = block;
    while !rest.is_empty() {
        let length = length_of(rest, block);
        let name_length = usize::try_from(number(rest, 6, 1)).unwrap_or_default();
        let is_entry =
            length.is_multiple_of(4) && length >= HEAD + name_length.max(4) && length <= rest.len();
        if !is_entry {
            return Err(damaged(format!("an entry of folder {} has {length} bytes", folder.number)));
        }
        let (entry, others) = rest.split_at(length);
        let inode = number(entry, 0, 4);
        if inode != 0 {
            visit(&entry[HEAD..HEAD + name_length], inode)?;
        }
        rest = others;
    }
    Ok(())
}

/// Returns the length of the first entry. The one of 64 KiB does not fit in the 16 bits of the field.
fn length_of(rest: &[u8], block: &[u8]) -> usize {
    let length = usize::try_from(number(rest, 4, 2)).unwrap_or_default();
    let is_whole = block.len() > usize::from(u16::MAX) && matches!(length, 0 | 0xffff);
    if is_whole { block.len() } else { length }
}
