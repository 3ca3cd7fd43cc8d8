//! Partition tables: GPT, and MBR with logical partitions.

use crate::disk::{Window, number};
use crate::error::{FsError, Result};

/// The sector sizes of disks with a GPT.
const SECTORS: [u64; 2] = [512, 4096];
/// The sector size of disks with an MBR.
const SECTOR: u64 = 512;
/// The limit of entries of a GPT; tools make 128.
const MOST_ENTRIES: u64 = 1024;
const ENTRY_SIZES: std::ops::RangeInclusive<u64> = 128..=4096;
/// The limit of logical partitions.
const MOST_LOGICAL: u32 = 64;
/// Types of an MBR: partitions that contain others, and the one that stands for a GPT.
const EXTENDED: [u8; 3] = [0x05, 0x0f, 0x85];
const PROTECTIVE: u8 = 0xee;
/// The offset and the length of the entries of an MBR.
const MBR_ENTRIES: usize = 446;
const MBR_ENTRY: usize = 16;
const FIRST_LOGICAL: u32 = 5;

/// A partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Partition {
    /// As Linux counts them.
    pub(crate) number: u32,
    /// In bytes.
    pub(crate) start: u64,
    pub(crate) length: u64,
}

/// Returns the partitions of a GPT; `None`: there is none.
pub(crate) fn of_gpt(disk: &Window) -> Result<Option<Vec<Partition>>> {
    for sector in SECTORS {
        let header = disk.look(sector, 92).map_err(|source| FsError::Read { source })?;
        if header.starts_with(b"EFI PART") {
            return entries(disk, sector, &header).map(Some);
        }
    }
    Ok(None)
}

fn entries(disk: &Window, sector: u64, header: &[u8]) -> Result<Vec<Partition>> {
    let damaged = |detail: String| FsError::Damaged { what: "partition table", detail };
    let (first, count, size) = (number(header, 72, 8), number(header, 80, 4), number(header, 84, 4));
    if count > MOST_ENTRIES || !ENTRY_SIZES.contains(&size) {
        return Err(damaged(format!("it has {count} entries with {size} bytes each")));
    }
    let start = first.checked_mul(sector).filter(|start| disk.has(*start, count * size));
    let start =
        start.ok_or_else(|| damaged(format!("its entries, from sector {first}, are beyond its end")))?;
    let mut partitions = Vec::new();
    for index in 0..count {
        let entry = disk.look(start + index * size, 128).map_err(|source| FsError::Read { source })?;
        let is_used = entry.iter().take(16).any(|byte| *byte != 0);
        let (first, last) = (number(&entry, 32, 8), number(&entry, 40, 8));
        let (Some(start), Some(end)) = (first.checked_mul(sector), last.checked_add(1)) else { continue };
        let end = end.saturating_mul(sector);
        if is_used && start < end && start < disk.length() {
            let number = u32::try_from(index + 1).unwrap_or(u32::MAX);
            partitions.push(Partition { number, start, length: end - start });
        }
    }
    Ok(partitions)
}

/// Returns the partitions of an MBR; none if it has none.
pub(crate) fn of_mbr(disk: &Window) -> Result<Vec<Partition>> {
    let Some(table) = table(disk, 0)? else { return Ok(Vec::new()) };
    // Boot code of a file system that has none.
    if table.iter().any(|entry| entry.status & 0x7f != 0) {
        return Ok(Vec::new());
    }
    let mut partitions = Vec::new();
    for (entry, number) in table.iter().zip(1..) {
        let (start, length) = (entry.first * SECTOR, entry.count * SECTOR);
        if EXTENDED.contains(&entry.kind) {
            logical(disk, start, &mut partitions)?;
        } else if entry.is_used() && start < disk.length() {
            partitions.push(Partition { number, start, length });
        }
    }
    partitions.sort_by_key(|partition| partition.number);
    Ok(partitions)
}

/// Adds the partitions in an extended one, each of which names the table with the next.
fn logical(disk: &Window, extended: u64, partitions: &mut Vec<Partition>) -> Result<()> {
    let mut at = extended;
    for number in FIRST_LOGICAL..FIRST_LOGICAL + MOST_LOGICAL {
        let Some([entry, next, ..]) = table(disk, at)? else { return Ok(()) };
        let start = at.saturating_add(entry.first * SECTOR);
        if entry.is_used() && start < disk.length() {
            partitions.push(Partition { number, start, length: entry.count * SECTOR });
        }
        if !EXTENDED.contains(&next.kind) {
            return Ok(());
        }
        at = extended.saturating_add(next.first * SECTOR);
    }
    Err(FsError::Damaged {
        what: "partition table",
        detail: format!("it has more than {MOST_LOGICAL} logical partitions"),
    })
}

/// An entry of an MBR, in sectors.
#[derive(Clone, Copy)]
struct Entry {
    status: u8,
    kind: u8,
    first: u64,
    count: u64,
}

impl Entry {
    fn is_used(self) -> bool {
        self.kind != 0 && self.kind != PROTECTIVE && self.first > 0 && self.count > 0
    }
}

/// Reads the four entries at this offset; `None`: there is no table.
fn table(disk: &Window, offset: u64) -> Result<Option<[Entry; 4]>> {
    let sector = disk.look(offset, 512).map_err(|source| FsError::Read { source })?;
    if !sector.ends_with(&[0x55, 0xaa]) || sector.len() < 512 {
        return Ok(None);
    }
    Ok(Some([0, 1, 2, 3].map(|index| {
        let entry = &sector[MBR_ENTRIES + index * MBR_ENTRY..][..MBR_ENTRY];
        Entry { status: entry[0], kind: entry[4], first: number(entry, 8, 4), count: number(entry, 12, 4) }
    })))
}
