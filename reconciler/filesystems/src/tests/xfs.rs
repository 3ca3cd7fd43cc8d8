//! XFS, as the tools of the system make it.

use std::fmt::Write;
use std::fs;
use std::process::Command;

use super::*;
use crate::FileSystem;
use crate::checksum::{START, crc32c_without};
use crate::disk::big_endian;

const MAKE: [&str; 2] = ["mkfs.xfs", "/usr/sbin/mkfs.xfs"];
/// The number of entries of a folder that has several blocks.
const MANY: usize = 400;

fn large() -> Vec<u8> {
    (0..400_000_u32).map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect()
}

fn long() -> String {
    format!("{}etc/hostname", "./".repeat(400))
}

/// Makes a file system of 16 MiB with some files; `None`, with the reason, without the program.
fn made(options: &[&str]) -> Option<Vec<u8>> {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    fs::write(at("hostname"), "web\n").expect("written");
    fs::write(at("large"), large()).expect("written");
    let (hostname, large) = (at("hostname"), at("large"));
    let file = |list: &mut String, name: &str, mode: &str, from: &std::path::Path| {
        writeln!(list, "{name} ---{mode} 0 0 {}", from.display()).expect("text");
    };
    let mut list = "/\n0 0\nd--755 0 0\netc d--755 0 0\n".to_owned();
    file(&mut list, "hostname", "640", &hostname);
    list.push_str("deep d--755 0 0\n");
    file(&mut list, "large", "644", &large);
    list.push_str("$\n$\n");
    for (folder, count) in [("some", 20), ("many", MANY)] {
        writeln!(list, "{folder} d--755 0 0").expect("text");
        for n in 0..count {
            file(&mut list, &format!("file-with-a-name-{n}"), "644", &hostname);
        }
        list.push_str("$\n");
    }
    list.push_str("absolute l--777 0 0 /etc/hostname\nround l--777 0 0 round\npipe p--644 0 0\n");
    writeln!(list, "long l--777 0 0 {}\n$\n$", long()).expect("text");
    fs::write(at("list"), list).expect("written");
    fs::File::create(at("image")).expect("made").set_len(16 << 20).expect("set");
    for program in MAKE {
        // A file system this small is one for tests.
        let made = Command::new(program)
            .envs(["TEST_DIR", "TEST_DEV", "QA_CHECK_FS"].map(|name| (name, "1")))
            .args(["-q", "-f"])
            .args(options)
            .arg("-p")
            .args([at("list"), at("image")])
            .output();
        match made {
            Ok(made) => {
                assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
                let mut image = fs::read(at("image")).expect("an image");
                add_header(&mut image);
                return Some(image);
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => panic!("{program}: {error}"),
        }
    }
    eprintln!("skipped: there is no {} (Debian, Ubuntu: apt install xfsprogs)", MAKE[0]);
    None
}

/// Writes the header of the block with the long target, which blocks of format 5 have. The tools leave it out.
fn add_header(image: &mut [u8]) {
    if image[101] & 0xf != 5 {
        return;
    }
    let (block, target) = (usize::try_from(big_endian(image, 4, 4)).expect("small"), long());
    let inode = inode_with(image, target.len() as u64);
    let place = (0..image.len()).step_by(block).find(|at| image[*at..].starts_with(target.as_bytes()));
    let place = place.expect("the target");
    let mut bytes = b"XSLM\0\0\0\0".to_vec();
    bytes.extend(u32::try_from(target.len()).expect("short").to_be_bytes());
    bytes.extend([0_u8; 4]);
    bytes.extend(&image[32..48]);
    bytes.extend(&image[inode + 152..inode + 160]);
    bytes.extend([0_u8; 16]);
    bytes.extend(target.as_bytes());
    bytes.resize(block, 0);
    let sum = !crc32c_without(START, &bytes, 12..16);
    bytes[12..16].copy_from_slice(&sum.to_le_bytes());
    image[place..place + block].copy_from_slice(&bytes);
}

/// Returns the offset of the inode of a file of this size.
fn inode_with(image: &[u8], size: u64) -> usize {
    let inode_size = usize::try_from(big_endian(image, 104, 2)).expect("small");
    let mut places = (0..image.len()).step_by(inode_size);
    places
        .find(|at| image[*at..].starts_with(b"IN") && big_endian(image, at + 56, 8) == size)
        .expect("the inode")
}

fn opened(bytes: Vec<u8>) -> Tree {
    crate::open(&disk(bytes), &Choice::Largest).expect("opened")
}

/// Options for both formats, small blocks, and blocks of folders that have several.
const OPTIONS: [&[&str]; 4] =
    [&[], &["-m", "crc=0"], &["-b", "size=1024"], &["-m", "crc=0", "-b", "size=512", "-n", "size=4096"]];

#[test]
fn files_of_both_formats_are_read_with_modes() {
    for options in OPTIONS {
        let Some(image) = made(options) else { return };
        let tree = opened(image);
        assert_eq!(tree.content().file_system, FileSystem::Xfs);
        assert_eq!(
            names(&tree, "/"),
            ["absolute", "etc", "long", "many", "pipe", "round", "some"],
            "{options:?}"
        );
        assert_eq!(read(&tree, "/etc/hostname").expect("read"), b"web\n", "{options:?}");
        assert!(read(&tree, "/etc/deep/large").expect("read") == large(), "{options:?}");
        let node = tree.node(b"/etc/hostname").expect("there");
        assert_eq!((node.kind, node.size, node.mode), (NodeKind::File, 4, Some(0o640)));
        assert!(node.modified.is_some_and(|time| time > std::time::SystemTime::UNIX_EPOCH), "{node:?}");
        assert_eq!(tree.node(b"/pipe").expect("there").kind, NodeKind::Special);
        for (folder, count) in [("/some", 20), ("/many", MANY)] {
            assert_eq!(names(&tree, folder).len(), count, "{options:?}");
            for n in 0..count {
                let path = format!("{folder}/file-with-a-name-{n}");
                assert_eq!(read(&tree, &path).expect("read"), b"web\n", "{options:?} {path}");
            }
        }
        assert_eq!(read(&tree, "/etc/none").expect_err("none").to_string(), "there is no /etc/none");
        assert!(matches!(read(&tree, "/etc"), Err(FsError::NotAFile { .. })));
    }
}

#[test]
fn links_are_followed_in_the_inode_and_in_blocks() {
    for options in OPTIONS {
        let Some(image) = made(options) else { return };
        let tree = opened(image);
        for path in ["/absolute", "/long"] {
            assert_eq!(read(&tree, path).expect("read"), b"web\n", "{options:?} {path}");
        }
        assert_eq!(tree.link(b"/long").expect("a link"), long().as_bytes());
        assert!(matches!(read(&tree, "/round"), Err(FsError::TooManyLinks { .. })));
    }
}

/// Gives the large file a tree of two extents, whose leaf is the last block; returns the offsets of its inode and of the leaf.
fn with_a_tree(image: &mut [u8]) -> (usize, usize) {
    let inode = inode_with(image, 400_000);
    let number = |at: usize, length: usize| big_endian(image, at, length);
    let (block, inode_size) = (number(4, 4), usize::try_from(number(104, 2)).expect("small"));
    let (group_blocks, bits) = (number(84, 4), number(124, 1));
    let last = number(8, 8) - 1;
    let pointer = (last / group_blocks) << bits | last % group_blocks;
    let leaf = usize::try_from(last * block).expect("small");
    assert_eq!((number(inode + 76, 4), image[inode + 82]), (1, 0), "one extent, and no attributes");
    let (high, low) = (number(inode + 100, 8), number(inode + 108, 8));
    let (at, count) = (low >> 21, low & 0x1f_ffff);
    let record = |first: u64, at: u64, count: u64| [first << 9 | high & 0x1ff, at << 21 | count];
    let records = [record(0, at, 3), record(3, at + 3, count - 3)].concat();
    let mut node = b"BMAP\0\0\0\x02".to_vec();
    node.extend([0xff_u8; 16]);
    node.extend(records.into_iter().flat_map(u64::to_be_bytes));
    image[leaf..leaf + node.len()].copy_from_slice(&node);
    let room = (inode_size - 100 - 4) / 16;
    image[inode + 5] = 3;
    image[inode + 76..inode + 80].copy_from_slice(&2_u32.to_be_bytes());
    image[inode + 100..inode + inode_size].fill(0);
    image[inode + 100..inode + 104].copy_from_slice(&[0, 1, 0, 1]);
    image[inode + 104 + room * 8..][..8].copy_from_slice(&pointer.to_be_bytes());
    (inode, leaf)
}

#[test]
fn a_file_in_a_tree_of_extents_is_read_and_a_tree_without_end_is_damage() {
    let Some(mut image) = made(OPTIONS[1]) else { return };
    let (inode, leaf) = with_a_tree(&mut image);
    assert!(read(&opened(image.clone()), "/etc/deep/large").expect("read") == large());
    // The second extent was allocated and never written.
    let mut unwritten = image.clone();
    unwritten[leaf + 24 + 16] |= 0x80;
    let mut expected = large();
    expected[3 * 4096..].fill(0);
    assert!(read(&opened(unwritten), "/etc/deep/large").expect("read") == expected);
    let refused = |image: Vec<u8>| read(&opened(image), "/etc/deep/large").expect_err("damaged").to_string();
    // The leaf is no leaf, and its first pointer names itself.
    let mut round = image.clone();
    round[leaf + 5] = 1;
    assert!(refused(round).contains("in a node that is none"));
    let mut many = image.clone();
    many[leaf + 6] = 0xff;
    assert!(refused(many).contains("more entries than there is room for"));
    let mut backwards = image.clone();
    backwards.copy_within(leaf + 24..leaf + 40, leaf + 40);
    assert!(refused(backwards).contains("overlap"));
    let mut absurd = image;
    absurd[inode + 56] = 0xff;
    assert!(
        opened(absurd)
            .node(b"/etc/deep/large")
            .expect_err("damaged")
            .to_string()
            .contains("a size that none has")
    );
}

#[test]
fn changes_in_the_log_are_seen() {
    let Some(image) = made(OPTIONS[1]) else { return };
    assert!(!opened(image.clone()).has_unapplied_changes(), "it was unmounted");
    // The mark of the unmount: the header of a record, and one operation without data.
    let record = image.windows(4).position(|bytes| bytes == b"\xfe\xed\xba\xbe").expect("a record");
    let with = |data: &[u8]| {
        let mut image = image.clone();
        let operation = record + 512;
        image[operation + 4..operation + 8]
            .copy_from_slice(&u32::try_from(data.len()).expect("short").to_be_bytes());
        image[operation + 12..][..data.len()].copy_from_slice(data);
        opened(image).has_unapplied_changes()
    };
    let buffer = |block: u8| [b"\x3c\x12\0\0\0\0\0\0".as_slice(), &[block, 0, 0, 0, 0, 0, 0, 0]].concat();
    assert!(!with(&buffer(0)), "the superblock");
    assert!(
        with(&buffer(8)) && with(b"\x3b\x12") && with(&[0xff; 490]),
        "a block, an inode, and no operation"
    );
    let mut image = image;
    image[record] = 0;
    assert!(opened(image).has_unapplied_changes(), "no record");
}

#[test]
fn a_wrong_checksum_is_damage() {
    let Some(mut image) = made(&[]) else { return };
    // The entry is in the inode of the folder, before the link with the same name in its target.
    let entry = image.windows(8).position(|name| name == b"hostname").expect("an entry");
    image[entry] = b'H';
    let error = opened(image).names(b"/etc").expect_err("damaged").to_string();
    assert!(error.contains("has a wrong checksum"), "{error}");
}

#[test]
fn absurd_numbers_and_unknown_features_are_refused() {
    let (Some(plain), Some(checked)) = (made(OPTIONS[1]), made(&[])) else { return };
    let refused = |image: &[u8], offset: usize, bytes: &[u8]| {
        let mut image = image.to_vec();
        image[offset..][..bytes.len()].copy_from_slice(bytes);
        crate::open(&disk(image), &Choice::Largest).expect_err("refused").to_string()
    };
    assert!(refused(&plain, 4, &[0xff; 4]).contains("a block has 4294967295 bytes"));
    assert!(refused(&plain, 8, &[0xff; 8]).contains("its place has 16777216 bytes"));
    assert!(refused(&plain, 104, &[0; 2]).contains("an inode has 0 bytes"));
    assert!(refused(&plain, 84, &[0; 4]).contains("groups of 0 blocks"));
    assert!(refused(&plain, 192, &[200]).contains("blocks of its folders"));
    assert!(refused(&plain, 100, &[0, 3]).contains("it has the format 3"));
    let needs_repair = refused(&checked, 219, &[0x13]);
    assert_eq!(needs_repair, "the XFS file system cannot be read: it has the feature needsrepair");
    assert!(refused(&checked, 12, &[1]).contains("the checksum of its superblock"));
}

#[test]
fn damage_anywhere_ends_the_reads() {
    let (Some(mut plain), Some(checked)) = (made(OPTIONS[1]), made(&[])) else { return };
    with_a_tree(&mut plain);
    let mut numbers = Numbers(7);
    for image in [&plain, &checked] {
        let used = used(image);
        for _ in 0..40 {
            endure(damaged(image, &used, 40, &mut numbers));
        }
        // The inodes of the root and its folders.
        let inodes =
            (0..image.len()).step_by(256).find(|at| image[*at..].starts_with(b"IN")).expect("inodes");
        for _ in 0..40 {
            let mut image = image.clone();
            for _ in 0..20 {
                let at = inodes + numbers.next(4 << 10);
                image[at] = u8::try_from(numbers.next(256)).expect("a byte");
            }
            endure(image);
        }
        for length in [0, 4, 264, 512, 4096, 100_000] {
            endure(image[..length].to_vec());
        }
    }
}
