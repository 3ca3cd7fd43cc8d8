//! FAT, as the crate that reads it makes it.

use std::io::{Cursor, Write};

use fatfs::{FatType, FileSystem, FormatVolumeOptions, FsOptions};

use super::*;

/// The offset of the first table, and the number of the first cluster of the first folder.
const TABLE: usize = 512;
const FIRST_CLUSTER: usize = 2;

pub(super) fn made() -> Vec<u8> {
    let mut bytes = vec![0; 8 << 20];
    let options = FormatVolumeOptions::new().fat_type(FatType::Fat16);
    fatfs::format_volume(Cursor::new(&mut bytes), options).expect("formatted");
    let volume = FileSystem::new(Cursor::new(&mut bytes), FsOptions::new()).expect("opened");
    let folder = volume.root_dir().create_dir("EFI").expect("made");
    for (name, content) in [("a file with a long name.txt", "long"), ("GRUB.CFG", "set root")] {
        let mut file = folder.create_file(name).expect("made");
        file.write_all(content.as_bytes()).expect("written");
        file.flush().expect("written");
    }
    drop(folder);
    volume.unmount().expect("written");
    bytes
}

#[test]
fn files_are_read_by_names_of_any_case() {
    let bytes = made();
    let tree = crate::open(&disk(bytes), &Choice::Largest).expect("opened");
    assert_eq!(tree.content().file_system, crate::FileSystem::Fat);
    assert_eq!(names(&tree, "/EFI"), ["GRUB.CFG", "a file with a long name.txt"]);
    assert_eq!(read(&tree, "/EFI/a file with a long name.txt").expect("read"), b"long");
    assert_eq!(read(&tree, "efi/Grub.cfg").expect("read"), b"set root");
    let node = tree.node(b"/EFI/GRUB.CFG").expect("there");
    assert_eq!((node.kind, node.size, node.mode), (NodeKind::File, 8, None));
    assert_eq!(read(&tree, "/EFI/none").expect_err("none").to_string(), "there is no /EFI/none");
    assert!(matches!(read(&tree, "/EFI"), Err(FsError::NotAFile { .. })));
    assert!(matches!(read(&tree, "/EFI/GRUB.CFG/x"), Err(FsError::NotAFolder { .. })));
}

/// Has the first folder continue with itself; returns its entries.
fn without_end(bytes: &mut [u8]) -> &mut [u8] {
    let number = |at: usize| usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
    let (sector, cluster, reserved) = (number(11), usize::from(bytes[13]), number(14));
    assert_eq!(sector * reserved, TABLE, "the table");
    let root = (reserved + 2 * number(22)) * sector;
    let data = root + number(17) * 32;
    let next = TABLE + 2 * FIRST_CLUSTER;
    bytes[next..next + 2].copy_from_slice(&2_u16.to_le_bytes());
    &mut bytes[data..data + cluster * sector]
}

#[test]
fn a_folder_without_end_is_damage() {
    let mut bytes = made();
    // All of its entries are deleted.
    without_end(&mut bytes).fill(0xe5);
    let tree = crate::open(&disk(bytes), &Choice::Largest).expect("opened");
    let error = tree.names(b"/EFI").expect_err("without end");
    assert!(matches!(error, FsError::Endless), "{error}");
}

#[test]
fn entries_that_lead_back_count_as_others_do() {
    let mut bytes = made();
    for entry in without_end(&mut bytes).chunks_exact_mut(32) {
        entry.fill(0);
        entry[..11].copy_from_slice(b".          ");
        entry[11] = 0x10;
    }
    let tree = crate::open(&disk(bytes), &Choice::Largest).expect("opened");
    let error = tree.names(b"/EFI").expect_err("without end").to_string();
    assert!(error.contains("has more than 1048576 entries"), "{error}");
}

#[test]
fn a_name_that_leads_elsewhere_is_damage() {
    let mut bytes = made();
    let name = bytes.windows(11).position(|name| name == b"GRUB    CFG").expect("the entry");
    bytes[name..name + 4].copy_from_slice(b"A/..");
    let tree = crate::open(&disk(bytes), &Choice::Largest).expect("opened");
    let error = tree.names(b"/EFI").expect_err("no name").to_string();
    assert!(error.contains("the folder is damaged") && error.contains('/'), "{error}");
}

#[test]
fn damage_anywhere_ends_the_reads() {
    let image = made();
    let mut numbers = Numbers(3);
    for _ in 0..100 {
        let mut image = image.clone();
        for _ in 0..20 {
            let at = numbers.next(80 << 10);
            image[at] = u8::try_from(numbers.next(256)).expect("a byte");
        }
        survive(image);
    }
}
