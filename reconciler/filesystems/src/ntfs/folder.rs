//! The entries of a folder: in the root of its index, and in all blocks of the index that are in use. The tree of the blocks is not followed.

use super::attribute::{Attribute, Type, value};
use super::record::fixed;
use super::{INDEX, NUMBER, Ntfs, damaged};
use crate::disk::number;
use crate::error::Result;

/// The records below are those of the file system itself.
const FIRST_FILE: u64 = 16;
/// The lengths of the head of a root, and of a block, before the head of the entries, and of the latter.
const ROOT_HEAD: usize = 16;
const BLOCK_HEAD: usize = 24;
const ENTRIES_HEAD: usize = 16;
/// The length of an entry without its key, and of the key without its name.
const ENTRY: usize = 16;
const KEY: usize = 66;
const LAST: u64 = 2;
/// The namespace of short names, which files have beside another one.
const SHORT: u64 = 2;
/// The sizes of a block.
const BLOCKS: std::ops::RangeInclusive<u64> = 512..=64 << 10;
/// The limit of the bitmap of the blocks in use: that of 4 GiB of blocks of 4 KiB.
const LONGEST_BITMAP: u64 = 128 << 10;

/// Calls `visit` with the name and the record of each entry, as it is stored.
pub(super) fn entries(
    ntfs: &Ntfs,
    all: &[Attribute],
    folder: u64,
    visit: &mut dyn FnMut(&[u8], u64) -> Result<()>,
) -> Result<()> {
    let wrong = || damaged(format!("the index of folder {folder} is damaged"));
    let root = value(all, Type::IndexRoot, INDEX).ok_or_else(wrong)?;
    of_node(root.get(ROOT_HEAD..).ok_or_else(wrong)?, folder, visit)?;
    let Some(content) = ntfs.content(all, Type::Index, INDEX)? else { return Ok(()) };
    let size = number(root, 8, 4);
    if !BLOCKS.contains(&size) || !size.is_power_of_two() {
        return Err(wrong());
    }
    let used = ntfs.whole(all, Type::Bitmap, INDEX, LONGEST_BITMAP)?.ok_or_else(wrong)?;
    let bits = used.iter().flat_map(|byte| (0..8).map(move |bit| byte >> bit & 1 == 1));
    for (index, _) in (0..content.size() / size).zip(bits).filter(|(_, is_used)| *is_used) {
        let mut block = vec![0; usize::try_from(size).unwrap_or_default()];
        ntfs.read(&content, index * size, &mut block)?;
        let block = fixed(block, b"INDX").ok_or_else(wrong)?;
        of_node(&block[BLOCK_HEAD..], folder, visit)?;
    }
    Ok(())
}

/// Reads the entries of a root or a block, after its head.
fn of_node(node: &[u8], folder: u64, visit: &mut dyn FnMut(&[u8], u64) -> Result<()>) -> Result<()> {
    let wrong = || damaged(format!("an entry of folder {folder} is none"));
    let offset = |at| usize::try_from(number(node, at, 4)).unwrap_or(usize::MAX);
    let (start, end) = (offset(0), offset(4));
    let mut rest = node.get(start..end).filter(|_| start >= ENTRIES_HEAD).ok_or_else(wrong)?;
    loop {
        let length = usize::try_from(number(rest, 8, 2)).unwrap_or_default();
        if length < ENTRY || length > rest.len() {
            return Err(wrong());
        }
        let (entry, others) = rest.split_at(length);
        if number(entry, 12, 2) & LAST != 0 {
            return Ok(());
        }
        let key = entry.get(ENTRY..).filter(|key| key.len() >= KEY).ok_or_else(wrong)?;
        let (letters, namespace) =
            (usize::try_from(number(key, 64, 1)).unwrap_or_default(), number(key, 65, 1));
        let name = key.get(KEY..KEY + letters * 2).ok_or_else(wrong)?;
        let record = number(entry, 0, 8) & NUMBER;
        if namespace != SHORT && record >= FIRST_FILE {
            visit(text(name).as_bytes(), record)?;
        }
        rest = others;
    }
}

/// Returns a name. Letters that are none are replaced.
fn text(name: &[u8]) -> String {
    let letters = name.chunks_exact(2).map(|letter| u16::from_le_bytes([letter[0], letter[1]]));
    char::decode_utf16(letters).map(|letter| letter.unwrap_or(char::REPLACEMENT_CHARACTER)).collect()
}
