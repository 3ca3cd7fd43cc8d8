//! NTFS: a small file system that the test writes, and one that the tools of the system make.

use std::fs;
use std::process::Command;
use std::time::{Duration, SystemTime};

use super::*;
use crate::FileSystem;

const SECTOR: usize = 512;
const CLUSTER: usize = 1024;
const CLUSTERS: usize = 256;
/// The size of a block of an index.
const BLOCK: usize = 4096;
/// The master file table is in two parts.
const TABLE: [usize; 2] = [4, 40];
const HALF: usize = 16;
/// 2001-09-09 in units of 100 ns since 1601.
const TIME: u64 = (1_000_000_000 + 11_644_473_600) * 10_000_000;

/// Pads to a multiple of 8 bytes.
fn padded(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    bytes
}

fn wide(text: &str) -> Vec<u8> {
    text.encode_utf16().flat_map(u16::to_le_bytes).collect()
}

fn put(bytes: &mut [u8], at: usize, number: u64, length: usize) {
    bytes[at..at + length].copy_from_slice(&number.to_le_bytes()[..length]);
}

/// The head of an attribute: the type, the name, the flags, and the length of the head.
fn head(kind: u64, name: &str, flags: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    put(&mut bytes, 0, kind, 4);
    put(&mut bytes, 9, (wide(name).len() / 2) as u64, 1);
    put(&mut bytes, 10, length as u64, 2);
    put(&mut bytes, 12, flags, 2);
    bytes.extend(wide(name));
    padded(bytes)
}

fn with_length(bytes: Vec<u8>) -> Vec<u8> {
    let mut bytes = padded(bytes);
    let length = bytes.len() as u64;
    put(&mut bytes, 4, length, 4);
    bytes
}

/// An attribute with its value.
fn value(kind: u64, name: &str, value: &[u8]) -> Vec<u8> {
    let mut bytes = head(kind, name, 0, 24);
    let start = bytes.len() as u64;
    put(&mut bytes, 16, value.len() as u64, 4);
    put(&mut bytes, 20, start, 2);
    bytes.extend(value);
    with_length(bytes)
}

/// An attribute with runs, the first cluster that they have, and its sizes.
fn runs(kind: u64, name: &str, flags: u64, first: u64, sizes: [u64; 2], runs: &[u8]) -> Vec<u8> {
    let mut bytes = head(kind, name, flags, 64);
    let start = bytes.len() as u64;
    put(&mut bytes, 8, 1, 1);
    put(&mut bytes, 16, first, 8);
    put(&mut bytes, 32, start, 2);
    put(&mut bytes, 48, sizes[0], 8);
    put(&mut bytes, 56, sizes[1], 8);
    bytes.extend(runs);
    bytes.push(0);
    with_length(bytes)
}

/// Has the last bytes of each sector stored at this offset.
fn torn(mut bytes: Vec<u8>, at: usize) -> Vec<u8> {
    let count = bytes.len() / SECTOR;
    put(&mut bytes, 4, at as u64, 2);
    put(&mut bytes, 6, count as u64 + 1, 2);
    bytes[at..at + 2].copy_from_slice(&[7, 0]);
    for sector in 0..count {
        let end = (sector + 1) * SECTOR - 2;
        bytes.copy_within(end..end + 2, at + 2 + 2 * sector);
        bytes[end..end + 2].copy_from_slice(&[7, 0]);
    }
    bytes
}

/// A record: whether it is in use, and that of a folder; the record that it belongs to, and its attributes.
fn record(flags: u64, base: u64, attributes: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = vec![0; CLUSTER];
    bytes[..4].copy_from_slice(b"FILE");
    put(&mut bytes, 20, 56, 2);
    put(&mut bytes, 22, flags, 2);
    // A reference also counts the uses of a record.
    put(&mut bytes, 32, if base == 0 { 0 } else { base | 3 << 48 }, 8);
    let mut all = attributes.concat();
    all.extend(u32::MAX.to_le_bytes());
    bytes[56..56 + all.len()].copy_from_slice(&all);
    torn(bytes, 48)
}

/// An entry of a folder.
fn entry(record: u64, name: &str, namespace: u64) -> Vec<u8> {
    let mut bytes = vec![0; 16 + 66];
    put(&mut bytes, 0, record | 1 << 48, 8);
    put(&mut bytes, 16 + 64, (wide(name).len() / 2) as u64, 1);
    put(&mut bytes, 16 + 65, namespace, 1);
    bytes.extend(wide(name));
    let mut bytes = padded(bytes);
    let length = bytes.len() as u64;
    put(&mut bytes, 8, length, 2);
    bytes
}

/// Entries with their head, which is at this offset before them, and the entry at their end.
fn node(first: usize, entries: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = vec![0; first];
    bytes.extend(entries.concat());
    let mut last = vec![0; 16];
    put(&mut last, 8, 16, 2);
    put(&mut last, 12, 2, 2);
    bytes.extend(last);
    let size = bytes.len() as u64;
    put(&mut bytes, 0, first as u64, 4);
    put(&mut bytes, 4, size, 4);
    bytes
}

fn index_root(entries: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = vec![0; 16];
    put(&mut bytes, 8, BLOCK as u64, 4);
    bytes.extend(node(16, entries));
    value(0x90, "$I30", &bytes)
}

fn index_block(entries: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = vec![0; 24];
    bytes[..4].copy_from_slice(b"INDX");
    bytes.extend(node(64, entries));
    bytes.resize(BLOCK, 0);
    torn(bytes, 40)
}

fn information() -> Vec<u8> {
    let mut bytes = vec![0; 48];
    put(&mut bytes, 8, TIME, 8);
    value(0x10, "", &bytes)
}

fn reparse(tag: u64, target: &str) -> Vec<u8> {
    let mut bytes = vec![0; 20];
    put(&mut bytes, 0, tag, 4);
    put(&mut bytes, 14, wide(target).len() as u64, 2);
    bytes.extend(wide(target));
    value(0xc0, "", &bytes)
}

/// An entry of a list of attributes: the type, the first cluster, and the record.
fn listed(kind: u64, first: u64, record: u64) -> Vec<u8> {
    let mut bytes = vec![0; 32];
    put(&mut bytes, 0, kind, 4);
    put(&mut bytes, 4, 32, 2);
    put(&mut bytes, 8, first, 8);
    put(&mut bytes, 16, record | 1 << 48, 8);
    bytes
}

fn letters(cluster: usize) -> Vec<u8> {
    (0..CLUSTER).map(|at| (at / 3 + cluster) as u8).collect()
}

/// The file with runs: two clusters, a hole, and one cluster of which 100 bytes were written.
fn sparse() -> Vec<u8> {
    let last = letters(110)[..100].to_vec();
    [letters(100), letters(101), vec![0; CLUSTER], last, vec![0; 400]].concat()
}

/// The records of files, by their numbers.
fn records() -> Vec<(usize, Vec<u8>)> {
    let size = (2 * HALF * CLUSTER) as u64;
    let table = runs(0x80, "", 0, 0, [size; 2], &[0x11, 16, 4, 0x11, 16, 36]);
    let root = [
        information(),
        index_root(&[
            entry(0, "$MFT", 3),
            entry(5, ".", 3),
            entry(16, "notes.txt", 1),
            entry(16, "NOTES~1.TXT", 2),
        ]),
        // Two blocks, of which the second one is not in use.
        runs(0xa0, "$I30", 0, 0, [2 * BLOCK as u64; 2], &[0x11, 8, 60]),
        value(0xb0, "$I30", &[1]),
    ];
    let content = 3 * CLUSTER as u64 + 500;
    let sparse = runs(0x80, "", 0x8000, 0, [content, content - 400], &[0x11, 2, 100, 0x01, 1, 0x11, 1, 10]);
    let whole = CLUSTER as u64;
    let other = |flags| runs(0x80, "", flags, 0, [whole; 2], &[0x11, 1, 100]);
    let list = [listed(0x80, 0, 22), listed(0x80, 1, 23)].concat();
    let both = 2 * CLUSTER as u64;
    vec![
        (0, record(1, 0, &[table])),
        (5, record(3, 0, &root)),
        (16, record(1, 0, &[information(), value(0x80, "stream", b"no"), value(0x80, "", b"hello")])),
        (17, record(3, 0, &[index_root(&[entry(18, "Deep.bin", 3)])])),
        (18, record(1, 0, &[information(), sparse])),
        (19, record(1, 0, &[other(1)])),
        (20, record(1, 0, &[other(0x4000)])),
        (21, record(1, 0, &[reparse(0xa000_000c, r"Ordner Ä\Deep.bin")])),
        (22, record(1, 0, &[value(0x20, "", &list), runs(0x80, "", 0, 0, [both; 2], &[0x11, 1, 100])])),
        (23, record(1, 22, &[runs(0x80, "", 0, 1, [0; 2], &[0x11, 1, 110])])),
        (24, record(1, 0, &[other(0), reparse(0x8000_0017, "x")])),
        (25, record(0, 0, &[other(0)])),
    ]
}

fn made() -> Vec<u8> {
    let mut image = vec![0; CLUSTERS * CLUSTER + SECTOR];
    image[3..11].copy_from_slice(b"NTFS    ");
    for (at, number, length) in
        [(11, 512, 2), (13, 2, 1), (40, 2 * CLUSTERS as u64, 8), (48, 4, 8), (64, 1, 1)]
    {
        put(&mut image, at, number, length);
    }
    image[510..512].copy_from_slice(&[0x55, 0xaa]);
    let mut write = |cluster: usize, bytes: &[u8]| {
        image[cluster * CLUSTER..][..bytes.len()].copy_from_slice(bytes);
    };
    for number in 0..2 * HALF {
        write(TABLE[number / HALF] + number % HALF, &record(0, 0, &[]));
    }
    for (number, bytes) in records() {
        write(TABLE[number / HALF] + number % HALF, &bytes);
    }
    let names = [
        (17, "Ordner Ä"),
        (19, "compressed"),
        (20, "encrypted"),
        (21, "link"),
        (22, "listed"),
        (24, "compact"),
        (25, "gone"),
    ];
    write(60, &index_block(&names.map(|(record, name)| entry(record, name, 1))));
    for cluster in [100, 101, 110] {
        write(cluster, &letters(cluster));
    }
    image
}

fn opened(bytes: Vec<u8>) -> Tree {
    crate::open(&disk(bytes), &Choice::Largest).expect("opened")
}

#[test]
fn files_are_read_by_names_of_any_case() {
    let tree = opened(made());
    assert_eq!(tree.content().file_system, FileSystem::Ntfs);
    let expected = ["Ordner Ä", "compact", "compressed", "encrypted", "gone", "link", "listed", "notes.txt"];
    assert_eq!(names(&tree, "/"), expected);
    assert_eq!(names(&tree, "/Ordner Ä"), ["Deep.bin"]);
    assert_eq!(read(&tree, "/NOTES.txt").expect("read"), b"hello");
    assert!(
        read(&tree, "/ordner ä/deep.BIN").expect("read") == sparse(),
        "runs, holes, and what was not written"
    );
    assert!(read(&tree, "/link").expect("read") == sparse(), "a link");
    assert!(read(&tree, "/listed").expect("read") == [letters(100), letters(110)].concat(), "two records");
    let node = tree.node(b"/notes.txt").expect("there");
    assert_eq!((node.kind, node.size, node.mode), (NodeKind::File, 5, None));
    assert_eq!(node.modified, Some(SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000)));
    assert_eq!(tree.link(b"/link").expect("a link"), "Ordner Ä/Deep.bin".as_bytes());
    assert!(matches!(tree.link(b"/listed"), Err(FsError::NotALink { .. })));
    assert!(matches!(read(&tree, "/Ordner Ä"), Err(FsError::NotAFile { .. })));
    assert_eq!(read(&tree, "/none").expect_err("none").to_string(), "there is no /none");
}

#[test]
fn content_that_is_not_read_is_an_error() {
    let tree = opened(made());
    let refused = |path| read(&tree, path).expect_err("refused").to_string();
    assert_eq!(
        refused("/compressed"),
        "/compressed cannot be read: its guest compresses it, by the attribute of NTFS"
    );
    assert_eq!(refused("/encrypted"), "/encrypted is encrypted by its guest");
    assert_eq!(refused("/compact"), "/compact cannot be read: its guest compresses it (CompactOS)");
    assert!(refused("/gone").contains("record 25 is not that of a file"));
}

#[test]
fn a_torn_record_and_a_torn_block_are_damage() {
    let mut image = made();
    image[(TABLE[1] + 1) * CLUSTER + SECTOR - 2] ^= 1;
    let error = opened(image).names(b"/Ordner \xc3\x84").expect_err("torn").to_string();
    assert!(error.contains("record 17 is none, or was not written whole"), "{error}");
    let mut image = made();
    image[60 * CLUSTER + BLOCK - 1] ^= 1;
    let error = opened(image).names(b"/").expect_err("torn").to_string();
    assert!(error.contains("the index of folder 5 is damaged"), "{error}");
}

#[test]
fn absurd_numbers_are_refused() {
    let refused = |offset: usize, bytes: &[u8]| {
        let mut image = made();
        image[offset..][..bytes.len()].copy_from_slice(bytes);
        crate::open(&disk(image), &Choice::Largest).expect_err("refused").to_string()
    };
    assert!(refused(11, &[0; 2]).contains("sectors of 0 bytes"));
    assert!(refused(13, &[0]).contains("a cluster has 0 sectors"));
    assert!(refused(40, &[0xff; 8]).contains("its place has"));
    assert!(refused(48, &[0xff; 8]).contains("beyond its end"));
    assert!(refused(64, &[0x81]).contains("a record has"));
    assert!(refused(4 * CLUSTER, b"BAAD").contains("record 0 is none"));
}

#[test]
fn a_file_system_of_the_tools_is_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let (image, file) = (folder.path().join("image"), folder.path().join("file"));
    fs::File::create(&image).expect("made").set_len(8 << 20).expect("set");
    let content: Vec<u8> = (0..300_000_u32).map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
    fs::write(&file, &content).expect("written");
    let run = |programs: [&str; 2], arguments: &[&std::ffi::OsStr]| {
        programs.iter().any(|program| match Command::new(program).args(arguments).output() {
            Ok(made) => {
                assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
                true
            }
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::NotFound, "{program}");
                false
            }
        })
    };
    let image_name = image.as_os_str();
    if !run(["mkntfs", "/usr/sbin/mkntfs"], &["-F".as_ref(), "-q".as_ref(), "-Q".as_ref(), image_name]) {
        eprintln!("skipped: there is no mkntfs (Debian, Ubuntu: apt install ntfs-3g)");
        return;
    }
    // Enough for blocks of an index.
    for n in 0..40 {
        let name = format!("a file with number {n}");
        run(
            ["ntfscp", "/usr/sbin/ntfscp"],
            &["-f".as_ref(), "-q".as_ref(), image_name, file.as_os_str(), name.as_ref()],
        );
        if n == 0 {
            fs::write(&file, "small").expect("written");
        }
    }
    let bytes = fs::read(&image).expect("an image");
    let tree = opened(bytes.clone());
    assert_eq!(names(&tree, "/").len(), 40);
    assert!(read(&tree, "/a file with number 0").expect("read") == content);
    assert_eq!(read(&tree, "/A FILE WITH NUMBER 39").expect("read"), b"small");
    let (used, mut numbers) = (used(&bytes), Numbers(9));
    for _ in 0..30 {
        endure(damaged(&bytes, &used, 40, &mut numbers));
    }
}

#[test]
fn damage_anywhere_ends_the_reads() {
    let image = made();
    let (used, mut numbers) = (used(&image), Numbers(11));
    for places in [1, 4, 20] {
        for _ in 0..200 {
            endure(damaged(&image, &used, places, &mut numbers));
        }
    }
    for length in [0, 11, 512, 4096, 5000, 100_000] {
        endure(image[..length].to_vec());
    }
}
