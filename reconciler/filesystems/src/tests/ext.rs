//! ext2, ext3 and ext4, as the tools of the system make them.

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use super::*;
use crate::contents;

mod journal;

const MAKE: [&str; 2] = ["mkfs.ext4", "/usr/sbin/mkfs.ext4"];
const CHANGE: [&str; 2] = ["debugfs", "/usr/sbin/debugfs"];
/// The bytes of blocks that were never written: those of a deleted file.
const STALE: u8 = 0xaa;

/// Makes a file system of 4 MiB with some files; `None`, with the reason, without the program.
fn made(kind: &str) -> Option<Vec<u8>> {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path().join("root");
    fs::create_dir_all(root.join("etc/deep")).expect("made");
    fs::write(root.join("etc/hostname"), "web\n").expect("written");
    fs::write(root.join("etc/deep/large"), large()).expect("written");
    fs::set_permissions(root.join("etc/hostname"), PermissionsExt::from_mode(0o640)).expect("set");
    let hostname = fs::File::options().write(true).open(root.join("etc/hostname")).expect("opened");
    hostname.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000)).expect("set");
    let long = format!("{}etc/hostname", "./".repeat(100));
    for (target, link) in [
        ("/etc/hostname", "absolute"),
        ("etc", "folder"),
        ("../../../../etc/hostname", "outwards"),
        (long.as_str(), "long"),
        ("round", "round"),
        ("other", "one"),
        ("one", "other"),
    ] {
        symlink(target, root.join(link)).expect("linked");
    }
    let sparse = fs::File::create(root.join("sparse")).expect("made");
    sparse.set_len(300_000).expect("set");
    sparse.write_all_at(b"end", 300_000).expect("written");
    made_of(&root, 4 << 20, &["-t", kind])
}

/// Makes a file system of this size with the files in a folder, as blocks of 1 KiB.
fn made_of(root: &Path, size: usize, options: &[&str]) -> Option<Vec<u8>> {
    let folder = tempfile::tempdir().expect("a folder");
    let image = folder.path().join("image");
    fs::write(&image, vec![STALE; size]).expect("written");
    let mut arguments = vec!["-q", "-F", "-b", "1024", "-E", "nodiscard,root_owner=0:0"];
    arguments.extend(options);
    run(MAKE, |program| program.args(&arguments).arg("-d").arg(root).arg(&image))?;
    Some(fs::read(&image).expect("an image"))
}

/// Changes a file system by commands of `debugfs`; returns it, and the output.
fn changed(image: &[u8], commands: &str) -> Option<(Vec<u8>, String)> {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, list) = (folder.path().join("image"), folder.path().join("commands"));
    fs::write(&path, image).expect("written");
    fs::write(&list, commands).expect("written");
    let output = run(CHANGE, |program| program.args(["-w", "-f"]).arg(&list).arg(&path))?;
    Some((fs::read(&path).expect("an image"), output))
}

/// Runs the first of these programs that is there; returns its output. `None`, with the reason, without any.
fn run(programs: [&str; 2], arguments: impl Fn(&mut Command) -> &mut Command) -> Option<String> {
    for program in programs {
        match arguments(&mut Command::new(program)).output() {
            Ok(output) => {
                assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
                return Some(String::from_utf8_lossy(&output.stdout).into_owned());
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => panic!("{program}: {error}"),
        }
    }
    eprintln!("skipped: there is no {} (Debian, Ubuntu: apt install e2fsprogs)", programs[0]);
    None
}

fn large() -> Vec<u8> {
    (0..400_000_u32).map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect()
}

fn sparse() -> Vec<u8> {
    let mut sparse = vec![0; 300_000];
    sparse.extend_from_slice(b"end");
    sparse
}

fn opened(bytes: Vec<u8>) -> Tree {
    crate::open(&disk(bytes), &Choice::Largest).expect("opened")
}

#[test]
fn files_of_ext2_ext3_and_ext4_are_read_with_modes_and_times() {
    for kind in ["ext2", "ext3", "ext4"] {
        let Some(image) = made(kind) else { return };
        let tree = opened(image);
        assert_eq!(tree.content().partition, None);
        let found = names(&tree, "/");
        assert!(found.contains(&"etc".to_owned()) && !found.contains(&".".to_owned()), "{found:?}");
        assert_eq!(names(&tree, "/etc"), ["deep", "hostname"]);
        assert_eq!(read(&tree, "/etc/hostname").expect("read"), b"web\n");
        assert!(read(&tree, "etc/deep/large").expect("read") == large(), "{kind}");
        assert!(read(&tree, "/sparse").expect("read") == sparse(), "{kind}");
        let node = tree.node(b"/etc/hostname").expect("there");
        assert_eq!((node.kind, node.size, node.mode), (NodeKind::File, 4, Some(0o640)));
        assert_eq!(node.modified, Some(SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000)));
        let missing = read(&tree, "/etc/none").expect_err("none").to_string();
        assert_eq!(missing, "there is no /etc/none");
        assert!(matches!(read(&tree, "/etc"), Err(FsError::NotAFile { .. })));
        assert!(read(&tree, "/etc/hostname/x").is_err());
    }
}

#[test]
fn links_are_followed_within_the_file_system_and_end() {
    let Some(image) = made("ext4") else { return };
    let tree = opened(image);
    for path in [
        "/absolute",
        "folder/hostname",
        "/outwards",
        "/../../etc/./hostname",
        "/folder/deep/../hostname",
        "/long",
    ] {
        assert_eq!(read(&tree, path).expect("read"), b"web\n", "{path}");
    }
    assert_eq!(tree.resolve(b"/folder", false).expect("there"), b"/folder");
    assert_eq!(tree.resolve(b"/folder", true).expect("there"), b"/etc");
    assert_eq!(tree.resolve(b"..", true).expect("there"), b"/");
    assert_eq!(tree.link(b"/outwards").expect("a link"), b"../../../../etc/hostname");
    for path in ["/round", "/one", "/other/x"] {
        let error = read(&tree, path).expect_err("without end");
        assert!(matches!(error, FsError::TooManyLinks { .. }), "{path}: {error}");
    }
}

#[test]
fn blocks_that_were_allocated_and_never_written_are_zeros() {
    let Some(image) = made("ext4") else { return };
    // The hole before the data is filled with such blocks, and so is a part beyond the end.
    let Some((image, _)) = changed(&image, "fallocate sparse 0 320\nfallocate etc/hostname 1 20\n") else {
        return;
    };
    let Some((_, extents)) = changed(&image, "ex sparse\nex etc/hostname\n") else { return };
    assert!(extents.contains("Uninit"), "{extents}");
    let tree = opened(image);
    assert!(read(&tree, "/sparse").expect("read") == sparse(), "data of deleted files is not read");
    assert_eq!(read(&tree, "/etc/hostname").expect("read"), b"web\n");
}

#[test]
fn many_entries_and_groups_with_descriptors_of_their_own_are_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let many = folder.path().join("many");
    fs::create_dir(&many).expect("made");
    for n in 0..400 {
        fs::write(many.join(format!("file-{n}")), n.to_string()).expect("written");
    }
    let features = ["-O", "meta_bg,^resize_inode", "-g", "256", "-N", "1024"];
    for options in [features.as_slice(), &["-t", "ext2"], &["-O", "^metadata_csum,^64bit"], &["-b", "4096"]] {
        let Some(image) = made_of(folder.path(), 16 << 20, options) else { return };
        let tree = opened(image);
        assert_eq!(names(&tree, "/many").len(), 400, "{options:?}");
        for n in 0..400 {
            let found = read(&tree, &format!("/many/file-{n}")).expect("read");
            assert_eq!(found, n.to_string().as_bytes(), "{options:?}");
        }
    }
}

#[test]
fn a_file_system_with_inline_data_is_refused_by_the_name_of_the_feature() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(image) = made_of(folder.path(), 4 << 20, &["-O", "inline_data"]) else { return };
    let error = crate::open(&disk(image), &Choice::Largest).expect_err("refused").to_string();
    assert_eq!(error, "the ext4 file system cannot be read: it has the feature inline_data");
}

#[test]
fn a_wrong_checksum_is_damage() {
    let Some(mut image) = made("ext4") else { return };
    // The length of the name and the type of the entry, then the name: targets of links have it too.
    let entry = image.windows(10).position(|name| name == b"\x08\x01hostname").expect("an entry");
    image[entry + 2] = b'H';
    let error = opened(image).names(b"/etc").expect_err("damaged").to_string();
    assert!(error.contains("the checksum of a block of folder"), "{error}");
}

#[test]
fn absurd_numbers_are_refused_before_memory_is_taken_for_them() {
    let Some(image) = made("ext4") else { return };
    let refused = |offset: usize, bytes: &[u8]| {
        let mut image = image.clone();
        image[1024 + offset..][..bytes.len()].copy_from_slice(bytes);
        crate::open(&disk(image), &Choice::Largest).expect_err("refused").to_string()
    };
    let huge = [0xff; 4];
    assert!(refused(4, &huge).contains("its place has 4194304 bytes"));
    assert!(refused(32, &[0; 4]).contains("a group has 0 of"));
    assert!(refused(24, &huge).contains("a block has 2^4294967295 KiB"));
    assert!(refused(0x58, &[0; 2]).contains("an inode has 0 bytes"));
    // A feature that no program knows.
    assert!(refused(0x60, &[0, 0, 0, 0x80]).contains("cannot be read"));
    let truncated =
        crate::open(&disk(image[..2 << 20].to_vec()), &Choice::Largest).expect_err("truncated").to_string();
    assert!(truncated.contains("its place has 2097152 bytes"), "{truncated}");
}

#[test]
fn damage_anywhere_ends_the_reads() {
    // Without checksums, which would end most of them at once.
    let (Some(plain), Some(checked)) = (made("ext2"), made("ext4")) else { return };
    for (image, seed) in [(&plain, 1), (&checked, 2)] {
        let mut numbers = Numbers(seed);
        for _ in 0..60 {
            let mut image = image.clone();
            for _ in 0..40 {
                // Tables are at the beginning.
                let at = 1024 + numbers.next(400 << 10);
                image[at] = u8::try_from(numbers.next(256)).expect("a byte");
            }
            survive(image);
        }
        for length in [0, 1, 511, 1024, 1500, 2048, 5000, 100_000] {
            survive(image[..length].to_vec());
        }
    }
    assert!(contents(&disk(Vec::new())).is_ok());
}
