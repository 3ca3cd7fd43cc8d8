//! Partition tables, and content that is not read.

use super::*;
use crate::{FileSystem, contents};

const SECTOR: usize = 512;
const MIB: usize = 1 << 20;

/// An entry of an MBR: its place in the table, the type, the first sector and the number of sectors.
pub(super) fn entry(disk: &mut [u8], place: usize, kind: u8, first: u32, count: u32) {
    let at = 446 + place * 16;
    disk[at + 4] = kind;
    disk[at + 8..at + 12].copy_from_slice(&first.to_le_bytes());
    disk[at + 12..at + 16].copy_from_slice(&count.to_le_bytes());
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
}

fn sectors(bytes: usize) -> u32 {
    u32::try_from(bytes / SECTOR).expect("small")
}

/// A GPT of this sector size with a FAT file system in partition 2 and nothing that is known in partition 5.
fn gpt(sector: usize) -> Vec<u8> {
    let mut disk = vec![0; 16 * MIB];
    entry(&mut disk, 0, 0xee, 1, u32::MAX);
    let header = &mut disk[sector..][..92];
    header[..8].copy_from_slice(b"EFI PART");
    header[72..80].copy_from_slice(&2_u64.to_le_bytes());
    header[80..84].copy_from_slice(&128_u32.to_le_bytes());
    header[84..88].copy_from_slice(&128_u32.to_le_bytes());
    for (number, start, length) in [(2, MIB, 8 * MIB), (5, 12 * MIB, MIB)] {
        let entry = &mut disk[2 * sector + (number - 1) * 128..][..128];
        entry[0] = 1;
        entry[32..40].copy_from_slice(&((start / sector) as u64).to_le_bytes());
        entry[40..48].copy_from_slice(&(((start + length) / sector - 1) as u64).to_le_bytes());
    }
    disk[MIB..9 * MIB].copy_from_slice(&fat::made());
    disk
}

#[test]
fn a_gpt_has_partitions_with_numbers_and_the_one_that_can_be_read_is_chosen() {
    for sector in [512, 4096] {
        let disk = disk(gpt(sector));
        let found = contents(&disk).expect("a table");
        let found: Vec<_> = found.iter().map(|each| (each.partition, each.start, each.file_system)).collect();
        let mib = MIB as u64;
        assert_eq!(
            found,
            [(Some(2), mib, FileSystem::Fat), (Some(5), 12 * mib, FileSystem::Unknown)],
            "{sector}"
        );
        let tree = crate::open(&disk, &Choice::Largest).expect("opened");
        assert_eq!((tree.content().partition, names(&tree, "/")), (Some(2), vec!["EFI".to_owned()]));
        let refused =
            |partition| crate::open(&disk, &Choice::Partition(partition)).expect_err("refused").to_string();
        assert_eq!(
            refused(5),
            "partition 5 has unknown content: only ext2, ext3, ext4, XFS, NTFS and FAT are read"
        );
        assert_eq!(
            refused(1),
            "the disk has no partition 1: it has partition 2 (FAT), partition 5 (unknown content)"
        );
    }
}

#[test]
fn an_mbr_has_primary_and_logical_partitions() {
    let mut bytes = vec![0; 16 * MIB];
    entry(&mut bytes, 0, 0x0c, sectors(MIB), sectors(8 * MIB));
    entry(&mut bytes, 1, 0x05, sectors(10 * MIB), sectors(6 * MIB));
    entry(&mut bytes[10 * MIB..], 0, 0x83, 8, 100);
    entry(&mut bytes[10 * MIB..], 1, 0x05, sectors(2 * MIB), 200);
    entry(&mut bytes[12 * MIB..], 0, 0x83, 8, 100);
    bytes[MIB..9 * MIB].copy_from_slice(&fat::made());
    bytes[12 * MIB + 8 * SECTOR..][..4].copy_from_slice(b"XFSB");
    let found = contents(&disk(bytes.clone())).expect("a table");
    let found: Vec<_> = found.iter().map(|each| (each.partition, each.file_system.name())).collect();
    assert_eq!(found, [(Some(1), "FAT"), (Some(5), "unknown content"), (Some(6), "XFS")]);
    // The second table names itself.
    entry(&mut bytes[12 * MIB..], 1, 0x05, sectors(2 * MIB), 200);
    let error = contents(&disk(bytes)).expect_err("without end").to_string();
    assert!(error.contains("more than 64 logical partitions"), "{error}");
}

#[test]
fn absurd_tables_are_refused() {
    let refused = |offset: usize, bytes: &[u8]| {
        let mut disk = gpt(512);
        disk[512 + offset..][..bytes.len()].copy_from_slice(bytes);
        contents(&super::disk(disk)).expect_err("refused").to_string()
    };
    assert!(refused(80, &[0xff; 4]).contains("it has 4294967295 entries"));
    assert!(refused(84, &[0; 4]).contains("with 0 bytes each"));
    assert!(refused(72, &[0xff; 8]).contains("beyond its end"));
}

#[test]
fn content_that_is_not_read_has_a_name() {
    let contains = |offset: usize, magic: &[u8]| {
        let mut bytes = vec![0; MIB];
        bytes[offset..offset + magic.len()].copy_from_slice(magic);
        crate::open(&disk(bytes), &Choice::Largest).expect_err("not read").to_string()
    };
    let known: [(usize, &[u8], &str); 5] = [
        (0x1_0040, b"_BHRfS_M", "btrfs"),
        (3, b"EXFAT   ", "exFAT"),
        (3, b"-FVE-FS-", "BitLocker"),
        (0, b"LUKS\xba\xbe", "LUKS encryption"),
        (0x1000, b"\xfc\x4e\x2b\xa9", "a part of a RAID"),
    ];
    for (offset, magic, name) in known {
        let text = format!(
            "nothing on the disk can be read, only ext2, ext3, ext4, XFS, NTFS and FAT are; it has {name}"
        );
        assert_eq!(contains(offset, magic), text);
    }
    assert!(contains(0, b"").contains("unknown content"));
}
