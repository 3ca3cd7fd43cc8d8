//! Disk images written byte by byte: partition tables, FAT and ext4 without loop devices or mounts.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fatfs::{FatType, FileSystem, FormatVolumeOptions, FsOptions};
use fscommon::{BufStream, StreamSlice};

use crate::process;

/// The size of a sector, in bytes.
pub const SECTOR: u64 = 512;
/// The start of first partitions, as every partitioner chooses it, in bytes.
pub const FIRST_PARTITION: u64 = 1 << 20;

/// A file for a FAT volume: its path there, and its source.
pub type FatFile<'a> = (&'a str, &'a Path);

/// Formats `length` bytes of `disk` from `start` as FAT and copies the files.
pub fn write_fat(disk: &Path, start: u64, length: u64, label: &str, files: &[FatFile<'_>]) -> Result<()> {
    let file = File::options().read(true).write(true).open(disk)?;
    let mut name = [b' '; 11];
    ensure!(label.len() <= name.len(), "a FAT label has at most 11 letters: {label}");
    name[..label.len()].copy_from_slice(label.as_bytes());
    let mut slice = BufStream::new(StreamSlice::new(file, start, start + length)?);
    // The boot sector must contain its position on the disk: syslinux's boot code reads it.
    fatfs::format_volume(
        &mut slice,
        FormatVolumeOptions::new().volume_label(name).fat_type(FatType::Fat16).drive_num(0x80),
    )?;
    slice.seek(SeekFrom::Start(0))?;
    let volume = FileSystem::new(slice, FsOptions::new())?;
    for (path, from) in files {
        copy_into(&volume, path, from).with_context(|| format!("writing {path}"))?;
    }
    volume.unmount()?;
    set_hidden_sectors(disk, start)
}

fn copy_into(volume: &FileSystem<BufStream<StreamSlice<File>>>, path: &str, from: &Path) -> Result<()> {
    let (folders, name) = path.rsplit_once('/').unwrap_or(("", path));
    let mut folder = volume.root_dir();
    for part in folders.split('/').filter(|part| !part.is_empty()) {
        folder = folder.create_dir(part)?;
    }
    let mut target = folder.create_file(name)?;
    target.truncate()?;
    let mut source = File::open(from)?;
    let mut chunk = vec![0; 1 << 20];
    loop {
        let read = source.read(&mut chunk)?;
        if read == 0 {
            break;
        }
        target.write_all(&chunk[..read])?;
    }
    target.flush()?;
    Ok(())
}

fn set_hidden_sectors(disk: &Path, start: u64) -> Result<()> {
    const HIDDEN_SECTORS: u64 = 28;
    let mut file = File::options().write(true).open(disk)?;
    file.seek(SeekFrom::Start(start + HIDDEN_SECTORS))?;
    file.write_all(&u32::try_from(start / SECTOR)?.to_le_bytes())?;
    Ok(())
}

/// Writes an MBR with one active partition of type EFI system, after boot code that boots it under BIOS.
pub fn write_mbr(disk: &Path, boot_code: &Path, start: u64, length: u64) -> Result<()> {
    const EFI_SYSTEM: u8 = 0xef;
    let code = fs::read(boot_code)?;
    ensure!(code.len() <= 440, "boot code of {} bytes does not fit an MBR", code.len());
    let mut sector = [0; SECTOR as usize];
    sector[..code.len()].copy_from_slice(&code);
    let entry = &mut sector[446..462];
    entry[0] = 0x80;
    // Cylinder, head and sector mean "beyond the limit": only the linear address counts.
    entry[1..4].copy_from_slice(&[0xfe, 0xff, 0xff]);
    entry[4] = EFI_SYSTEM;
    entry[5..8].copy_from_slice(&[0xfe, 0xff, 0xff]);
    entry[8..12].copy_from_slice(&u32::try_from(start / SECTOR)?.to_le_bytes());
    entry[12..16].copy_from_slice(&u32::try_from(length / SECTOR)?.to_le_bytes());
    sector[510..].copy_from_slice(&[0x55, 0xaa]);
    let mut file = File::options().write(true).open(disk)?;
    file.write_all(&sector)?;
    Ok(())
}

/// A partition of a GPT.
#[derive(Debug, Clone, Copy)]
pub struct Partition {
    /// The type.
    pub kind: PartitionKind,
    /// The first byte.
    pub start: u64,
    /// The length in bytes.
    pub length: u64,
}

/// The type of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PartitionKind {
    /// The EFI system partition.
    Efi,
    /// A root file system for x86-64.
    Root,
}

impl PartitionKind {
    /// The type's GUID as stored on disk: its first three groups are little-endian.
    fn guid(self) -> [u8; 16] {
        let (a, b, c, rest): (u32, u16, u16, [u8; 8]) = match self {
            Self::Efi => (0xc12a_7328, 0xf81f, 0x11d2, [0xba, 0x4b, 0x00, 0xa0, 0xc9, 0x3e, 0xc9, 0x3b]),
            Self::Root => (0x4f68_bce3, 0xe8cd, 0x4db1, [0x96, 0xe7, 0xfb, 0xca, 0xf9, 0x84, 0xb7, 0x09]),
        };
        let mut guid = [0; 16];
        guid[..4].copy_from_slice(&a.to_le_bytes());
        guid[4..6].copy_from_slice(&b.to_le_bytes());
        guid[6..8].copy_from_slice(&c.to_le_bytes());
        guid[8..].copy_from_slice(&rest);
        guid
    }
}

/// Writes a GPT (both copies and the protective MBR) on a disk of its final size.
pub fn write_gpt(disk: &Path, partitions: &[Partition]) -> Result<()> {
    const ENTRIES: usize = 128;
    const ENTRY: usize = 128;
    let mut file = File::options().read(true).write(true).open(disk)?;
    let sectors = file.metadata()?.len() / SECTOR;
    let mut entries = vec![0; ENTRIES * ENTRY];
    for (index, partition) in partitions.iter().enumerate() {
        let entry = &mut entries[index * ENTRY..(index + 1) * ENTRY];
        entry[..16].copy_from_slice(&partition.kind.guid());
        // A build must be reproducible, so the unique GUIDs are counted, not random.
        entry[16..32].copy_from_slice(b"berth-partition0");
        entry[31] = u8::try_from(index + 1)?;
        entry[32..40].copy_from_slice(&(partition.start / SECTOR).to_le_bytes());
        entry[40..48].copy_from_slice(&((partition.start + partition.length) / SECTOR - 1).to_le_bytes());
    }
    let table_sectors = entries.len() as u64 / SECTOR;
    let header = |own: u64, other: u64, table: u64| {
        let mut header = [0_u8; SECTOR as usize];
        header[..8].copy_from_slice(b"EFI PART");
        header[8..12].copy_from_slice(&0x0001_0000_u32.to_le_bytes());
        header[12..16].copy_from_slice(&92_u32.to_le_bytes());
        header[24..32].copy_from_slice(&own.to_le_bytes());
        header[32..40].copy_from_slice(&other.to_le_bytes());
        header[40..48].copy_from_slice(&(2 + table_sectors).to_le_bytes());
        header[48..56].copy_from_slice(&(sectors - table_sectors - 2).to_le_bytes());
        header[56..72].copy_from_slice(b"berth-test-disk0");
        header[72..80].copy_from_slice(&table.to_le_bytes());
        header[80..84].copy_from_slice(&(ENTRIES as u32).to_le_bytes());
        header[84..88].copy_from_slice(&(ENTRY as u32).to_le_bytes());
        header[88..92].copy_from_slice(&crc32(&entries).to_le_bytes());
        let own_sum = crc32(&header[..92]);
        header[16..20].copy_from_slice(&own_sum.to_le_bytes());
        header
    };
    let mut protective = [0_u8; SECTOR as usize];
    protective[446..462]
        .copy_from_slice(&[0, 0, 2, 0, 0xee, 0xff, 0xff, 0xff, 1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
    protective[510..].copy_from_slice(&[0x55, 0xaa]);
    file.write_all(&protective)?;
    file.write_all(&header(1, sectors - 1, 2))?;
    file.write_all(&entries)?;
    file.seek(SeekFrom::Start((sectors - 1 - table_sectors) * SECTOR))?;
    file.write_all(&entries)?;
    file.write_all(&header(sectors - 1, 1, sectors - 1 - table_sectors))?;
    Ok(())
}

fn crc32(bytes: &[u8]) -> u32 {
    let mut sum = flate2::Crc::new();
    sum.update(bytes);
    sum.sum()
}

/// Creates an ext4 file system from a folder, in a file of its own.
pub fn make_ext4(folder: &Path, label: &str, length: u64, to: &Path) -> Result<()> {
    File::create(to)?.set_len(length)?;
    let mut make = Command::new("mke2fs");
    make.args([
        "-q",
        "-t",
        "ext4",
        "-L",
        label,
        "-E",
        "lazy_itable_init=1,lazy_journal_init=1,nodiscard",
        "-d",
    ]);
    make.arg(folder).arg(to);
    process::run(&mut make, Duration::from_secs(300))?.success()?;
    Ok(())
}

/// Copies a file to a place on the disk, leaving holes where it has zeros.
pub fn place(disk: &Path, start: u64, from: &Path) -> Result<()> {
    let mut copy = Command::new("dd");
    copy.arg(format!("if={}", from.display())).arg(format!("of={}", disk.display()));
    copy.arg(format!("seek={start}")).args([
        "oflag=seek_bytes",
        "bs=4M",
        "conv=notrunc,sparse",
        "status=none",
    ]);
    process::run(&mut copy, Duration::from_secs(300))?.success()?;
    Ok(())
}

/// Compresses a raw disk into a qcow2.
pub fn compress(raw: &Path, to: &Path) -> Result<()> {
    let mut convert = Command::new("qemu-img");
    convert.args(["convert", "-c", "-W", "-m", "4", "-f", "raw", "-O", "qcow2"]).arg(raw).arg(to);
    process::run(&mut convert, Duration::from_secs(600))?.success()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_partition_types_lie_on_disk_as_the_specification_prints_them() {
        // C12A7328-F81F-11D2-BA4B-00A0C93EC93B
        assert_eq!(
            &PartitionKind::Efi.guid()[..10],
            &[0x28, 0x73, 0x2a, 0xc1, 0x1f, 0xf8, 0xd2, 0x11, 0xba, 0x4b]
        );
    }

    #[test]
    fn both_copies_of_a_partition_table_check_out() {
        let folder = tempfile::tempdir().expect("a folder");
        let disk = folder.path().join("disk");
        File::create(&disk).and_then(|file| file.set_len(8 << 20)).expect("a disk");
        let partition = Partition { kind: PartitionKind::Root, start: FIRST_PARTITION, length: 4 << 20 };
        write_gpt(&disk, &[partition]).expect("written");
        let bytes = fs::read(&disk).expect("read");
        for at in [512, bytes.len() - 512] {
            let mut header = bytes[at..at + 92].to_vec();
            assert_eq!(&header[..8], b"EFI PART");
            let stated = u32::from_le_bytes(header[16..20].try_into().expect("four bytes"));
            header[16..20].fill(0);
            assert_eq!(stated, crc32(&header));
        }
    }
}
