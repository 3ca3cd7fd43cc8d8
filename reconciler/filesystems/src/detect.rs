//! The content of a disk: its partitions, the logical volumes in them, and the file system of each by its magic bytes.

use std::rc::Rc;

use crate::disk::{Disk, Window, number};
use crate::error::{FsError, Result};
use crate::lvm;
use crate::partitions::{Partition, of_gpt, of_mbr};
use crate::volume::shown;

/// The file system, or other content, of a partition or a logical volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSystem {
    /// ext2, ext3 or ext4.
    Ext,
    /// FAT12, FAT16 or FAT32.
    Fat,
    /// XFS.
    Xfs,
    /// NTFS.
    Ntfs,
    /// A physical volume of LVM: its logical volumes are contents of their own.
    PhysicalVolume,
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
            Self::Xfs => "XFS",
            Self::Ntfs => "NTFS",
            Self::PhysicalVolume => "a physical volume of LVM",
            Self::Other(name) => name,
            Self::Unknown => "unknown content",
        }
    }

    /// Whether its files can be read.
    pub fn is_read(self) -> bool {
        matches!(self, Self::Ext | Self::Fat | Self::Xfs | Self::Ntfs)
    }
}

/// A partition, a logical volume, or the whole disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// As Linux counts them; `None`: a logical volume, or the disk has no partitions.
    pub partition: Option<u32>,
    /// The volume group, a slash, and the logical volume; `None`: it is none.
    pub volume: Option<String>,
    /// In bytes; zero for a logical volume.
    pub start: u64,
    /// In bytes.
    pub length: u64,
    /// Its content.
    pub file_system: FileSystem,
}

impl Content {
    /// The partition or the logical volume, for people.
    pub fn place(&self) -> String {
        match (&self.volume, self.partition) {
            (Some(name), _) => format!("logical volume {}", shown(name.as_bytes())),
            (None, Some(number)) => format!("partition {number}"),
            (None, None) => "the disk".to_owned(),
        }
    }
}

/// A content, and its data.
pub(crate) struct Place {
    pub(crate) content: Content,
    pub(crate) part: Window,
}

/// The contents of a disk.
pub(crate) struct Layout {
    pub(crate) places: Vec<Place>,
    /// Damage that hides logical volumes.
    pub(crate) damage: Option<FsError>,
}

/// Magic bytes: the offset, the bytes, and the content.
const MAGIC: &[(u64, &[u8], FileSystem)] = &[
    (0, b"XFSB", FileSystem::Xfs),
    (0x1_0040, b"_BHRfS_M", FileSystem::Other("btrfs")),
    (3, b"NTFS    ", FileSystem::Ntfs),
    (3, b"EXFAT   ", FileSystem::Other("exFAT")),
    (3, b"-FVE-FS-", FileSystem::Other("BitLocker")),
    (0, b"LUKS\xba\xbe", FileSystem::Other("LUKS encryption")),
    (0x218, b"LVM2 001", FileSystem::PhysicalVolume),
    (0, b"hsqs", FileSystem::Other("squashfs")),
    (0x8001, b"CD001", FileSystem::Other("ISO 9660")),
    (4086, b"SWAPSPACE2", FileSystem::Other("swap space")),
    (0x400, b"\x10\x20\xf5\xf2", FileSystem::Other("F2FS")),
    (0x1000, b"\xfc\x4e\x2b\xa9", FileSystem::Other("a part of a RAID")),
];

/// Returns the partitions of a disk with their content; without any, the disk as a whole. The logical volumes in them follow.
///
/// # Errors
/// The disk cannot be read; its partition table is damaged.
pub fn contents(disk: &Rc<dyn Disk>) -> Result<Vec<Content>, FsError> {
    Ok(layout(disk)?.places.into_iter().map(|place| place.content).collect())
}

/// Returns the contents of a disk with their data.
pub(crate) fn layout(disk: &Rc<dyn Disk>) -> Result<Layout> {
    let mut places = partitions(&Window::whole(disk))?;
    let physical = places.iter().filter(|place| place.content.file_system == FileSystem::PhysicalVolume);
    let physical: Vec<_> = physical.map(|place| (place.content.start, place.part.clone())).collect();
    let found = lvm::volumes(disk, &physical)?;
    for lvm::Volume { name, size, data } in found.volumes {
        // The data of one that is not read is not looked at.
        let (part, file_system) = match data {
            Ok(data) => {
                let part = Window::whole(&data);
                let file_system = detect(&part)?;
                (part, file_system)
            }
            Err(kind) => (Window::whole(disk).part(0, 0), FileSystem::Other(kind)),
        };
        let content = Content { partition: None, volume: Some(name), start: 0, length: size, file_system };
        places.push(Place { content, part });
    }
    Ok(Layout { places, damage: found.damage })
}

/// Returns the partitions; without any, the disk as a whole.
fn partitions(disk: &Window) -> Result<Vec<Place>> {
    let partitions = match of_gpt(disk)? {
        Some(partitions) => partitions,
        None => {
            let file_system = detect(disk)?;
            let partitions = if has_boot_sector(file_system) { Vec::new() } else { of_mbr(disk)? };
            if partitions.is_empty() {
                return Ok(vec![place(None, 0, disk.clone(), file_system)]);
            }
            partitions
        }
    };
    let places = partitions.into_iter().map(|Partition { number, start, length }| -> Result<Place> {
        let part = disk.part(start, length);
        let file_system = detect(&part)?;
        Ok(place(Some(number), start, part, file_system))
    });
    places.collect()
}

fn place(partition: Option<u32>, start: u64, part: Window, file_system: FileSystem) -> Place {
    let content = Content { partition, volume: None, start, length: part.length(), file_system };
    Place { content, part }
}

/// Whether its first sector ends as an MBR does, without being one.
fn has_boot_sector(file_system: FileSystem) -> bool {
    matches!(file_system, FileSystem::Fat | FileSystem::Ntfs | FileSystem::Other("exFAT" | "BitLocker"))
}

fn detect(part: &Window) -> Result<FileSystem> {
    let look = |offset, length| part.look(offset, length).map_err(|source| FsError::Read { source });
    for (offset, magic, file_system) in MAGIC {
        if look(*offset, magic.len())? == *magic {
            return Ok(*file_system);
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
