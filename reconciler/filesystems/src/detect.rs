//! The content of a disk: its partitions, and the file system of each by its magic bytes.

use std::rc::Rc;

use crate::disk::{Disk, Window, number};
use crate::error::{FsError, Result};
use crate::partitions::{Partition, of_gpt, of_mbr};

/// The file system, or other content, of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSystem {
    /// ext2, ext3 or ext4.
    Ext,
    /// FAT12, FAT16 or FAT32.
    Fat,
    /// Content that is known by its name and is not read.
    Other(&'static str),
    /// Content that is not known.
    Unknown,
}

impl FileSystem {
    /// Its name, for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ext => "ext4",
            Self::Fat => "FAT",
            Self::Other(name) => name,
            Self::Unknown => "unknown content",
        }
    }

    /// Whether its files can be read.
    pub fn is_read(self) -> bool {
        matches!(self, Self::Ext | Self::Fat)
    }
}

/// A partition, or the whole disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content {
    /// As Linux counts them; `None`: the disk has no partitions.
    pub partition: Option<u32>,
    /// In bytes.
    pub start: u64,
    /// In bytes.
    pub length: u64,
    /// Its content.
    pub file_system: FileSystem,
}

impl Content {
    /// The partition and its content, for people.
    pub fn place(&self) -> String {
        match self.partition {
            Some(number) => format!("partition {number}"),
            None => "the disk".to_owned(),
        }
    }
}

/// Magic bytes: the offset, the bytes, and the name of the content.
const MAGIC: &[(u64, &[u8], &str)] = &[
    (0, b"XFSB", "XFS"),
    (0x1_0040, b"_BHRfS_M", "btrfs"),
    (3, b"NTFS    ", "NTFS"),
    (3, b"EXFAT   ", "exFAT"),
    (3, b"-FVE-FS-", "BitLocker"),
    (0, b"LUKS\xba\xbe", "LUKS encryption"),
    (0x218, b"LVM2 001", "a physical volume of LVM"),
    (0, b"hsqs", "squashfs"),
    (0x8001, b"CD001", "ISO 9660"),
    (4086, b"SWAPSPACE2", "swap space"),
    (0x400, b"\x10\x20\xf5\xf2", "F2FS"),
    (0x1000, b"\xfc\x4e\x2b\xa9", "a part of a RAID"),
];

/// Returns the partitions of a disk with their content; without any, the disk as a whole.
///
/// # Errors
/// The disk cannot be read; its partition table is damaged.
pub fn contents(disk: &Rc<dyn Disk>) -> Result<Vec<Content>, FsError> {
    contents_of(&Window::whole(disk))
}

pub(crate) fn contents_of(disk: &Window) -> Result<Vec<Content>> {
    let partitions = match of_gpt(disk)? {
        Some(partitions) => partitions,
        None => {
            let file_system = detect(disk)?;
            let partitions = if has_boot_sector(file_system) { Vec::new() } else { of_mbr(disk)? };
            if partitions.is_empty() {
                let (start, length) = (0, disk.length());
                return Ok(vec![Content { partition: None, start, length, file_system }]);
            }
            partitions
        }
    };
    let content = |Partition { number, start, length }: Partition| -> Result<Content> {
        let part = disk.part(start, length);
        let (length, file_system) = (part.length(), detect(&part)?);
        Ok(Content { partition: Some(number), start, length, file_system })
    };
    partitions.into_iter().map(content).collect()
}

/// Whether its first sector ends as an MBR does, without being one.
fn has_boot_sector(file_system: FileSystem) -> bool {
    matches!(file_system, FileSystem::Fat | FileSystem::Other("NTFS" | "exFAT" | "BitLocker"))
}

fn detect(part: &Window) -> Result<FileSystem> {
    let look = |offset, length| part.look(offset, length).map_err(|source| FsError::Read { source });
    for (offset, magic, name) in MAGIC {
        if look(*offset, magic.len())? == *magic {
            return Ok(FileSystem::Other(name));
        }
    }
    if look(0x438, 2)? == [0x53, 0xef] {
        return Ok(FileSystem::Ext);
    }
    Ok(if is_fat(&look(0, 512)?) { FileSystem::Fat } else { FileSystem::Unknown })
}

/// Whether it is the boot sector of a FAT file system: an MBR has the same last bytes.
fn is_fat(sector: &[u8]) -> bool {
    let is_jump = matches!(sector.first(), Some(0xeb | 0xe9));
    let (sector_size, cluster) = (number(sector, 11, 2), number(sector, 13, 1));
    let (reserved, tables) = (number(sector, 14, 2), number(sector, 16, 1));
    sector.len() == 512
        && sector.ends_with(&[0x55, 0xaa])
        && is_jump
        && matches!(sector_size, 512 | 1024 | 2048 | 4096)
        && cluster.is_power_of_two()
        && reserved > 0
        && matches!(tables, 1 | 2)
}
