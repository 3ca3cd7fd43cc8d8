//! Clones of files on real file systems, which other tests use too.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::Uid;
use tempfile::TempDir;

use super::super::filesystems::{MKFS_EXT4, MKFS_XFS};
use super::super::program::Program;
use super::*;

/// `mkfs.xfs` makes none below 300 MiB. The file has holes.
const SIZE: u64 = 320 << 20;

const BTRFS_PROGS: &str = "the tests make file systems with it (Debian, Ubuntu: apt install btrfs-progs)";
const MKFS_BTRFS: Program = Program { name: "mkfs.btrfs", advice: BTRFS_PROGS };
const BTRFS_PROGRAM: Program = Program { name: "btrfs", advice: BTRFS_PROGS };
const MOUNT: Program =
    Program { name: "mount", advice: "the tests need it (Debian, Ubuntu: apt install mount)" };
const FILEFRAG: Program =
    Program { name: "filefrag", advice: "the tests need it (Debian, Ubuntu: apt install e2fsprogs)" };

/// A file system that a test makes in a file.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct FileSystem {
    /// Its name in the kernel.
    name: &'static str,
    make: Program,
    options: &'static [&'static str],
    /// Whether its files can have data in common.
    pub(in super::super) shares: bool,
}

pub(in super::super) const XFS: FileSystem =
    FileSystem { name: "xfs", make: MKFS_XFS, options: &["-q", "-m", "reflink=1"], shares: true };
pub(in super::super) const BTRFS: FileSystem =
    FileSystem { name: "btrfs", make: MKFS_BTRFS, options: &["-q"], shares: true };
pub(in super::super) const EXT4: FileSystem =
    FileSystem { name: "ext4", make: MKFS_EXT4, options: &["-q"], shares: false };
/// As older versions of `mkfs.xfs` make it.
const OLD_XFS: FileSystem = FileSystem { options: &["-q", "-m", "reflink=0"], shares: false, ..XFS };

impl FileSystem {
    /// Makes a folder in a file system of this kind: in Btrfs a subvolume, between which a file cannot have two names.
    pub(in super::super) fn make_folder(self, folder: &Path) {
        if self.name == BTRFS.name {
            run(BTRFS_PROGRAM, &["subvolume", "create"], &[folder]).expect("a subvolume");
        } else {
            fs::create_dir(folder).expect("a folder");
        }
    }
}

/// Runs a test on a new file system of this kind, in a thread of its own. Threads started inside see it too.
pub(in super::super) fn on_file_system(kind: FileSystem, test: impl FnOnce(&Path) + Send) {
    let ended = std::thread::scope(|scope| {
        let thread = scope.spawn(move || match Mounted::new(kind) {
            Ok(mounted) => test(&mounted.folder()),
            Err(reason) => eprintln!("skipped: {reason}"),
        });
        thread.join()
    });
    if let Err(panic) = ended {
        std::panic::resume_unwind(panic);
    }
}

/// A file system in a file. The mount is in a namespace of the thread: it ends with the thread, also with a killed one, and
/// `mount` sets the loop device up so that it ends with the mount.
struct Mounted(TempDir);

impl Mounted {
    fn new(kind: FileSystem) -> Result<Self, String> {
        if !Uid::effective().is_root() {
            return Err("only root can mount a file system".to_owned());
        }
        let made = Self(tempfile::tempdir().expect("temporary folder"));
        let (file, folder) = (made.0.path().join("file"), made.folder());
        File::create(&file).and_then(|file| file.set_len(SIZE)).expect("a file");
        fs::create_dir(&folder).expect("a folder");
        run(kind.make, kind.options, &[file.as_path()])?;
        own_mounts().map_err(|error| format!("cannot make a mount namespace: {error}"))?;
        run(MOUNT, &["-t", kind.name, "-o", "loop"], &[file.as_path(), folder.as_path()])?;
        Ok(made)
    }

    fn folder(&self) -> PathBuf {
        self.0.path().join("mounted")
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Best effort: the namespace ends soon after. Nothing is mounted if the file system could not be made.
        let _ = umount2(&self.folder(), MntFlags::MNT_DETACH);
    }
}

fn own_mounts() -> nix::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)
}

/// Returns the output of a program that succeeds.
fn run(program: Program, options: &[&str], paths: &[&Path]) -> Result<String, String> {
    let found = program.find().map_err(|error| error.to_string())?;
    let output = Command::new(found).env("LC_ALL", "C").args(options).args(paths).output();
    let output = output.map_err(|error| format!("{}: {error}", program.name))?;
    if !output.status.success() {
        return Err(format!("{}: {}", program.name, String::from_utf8_lossy(&output.stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Whether a file has data, and all of it in common with other files.
pub(in super::super) fn is_shared(path: &Path) -> bool {
    let (shared, all) = blocks(path);
    all > 0 && shared == all
}

/// Returns how many blocks of the file system a file has in common with other files, and how many it has.
fn blocks(path: &Path) -> (u64, u64) {
    counted(&run(FILEFRAG, &["-s", "-v"], &[path]).expect("the extents of a file"))
}

/// Adds up the extents in the output of `filefrag -v`.
fn counted(listed: &str) -> (u64, u64) {
    let (mut shared, mut all) = (0, 0);
    for line in listed.lines() {
        // The number, the first and last block in the file and on the medium, the length, perhaps the expected block, and flags.
        let parts: Vec<&str> = line.split(':').map(str::trim).collect();
        let [number, _, _, length, .., flags] = parts.as_slice() else { continue };
        if number.parse::<u64>().is_err() {
            continue;
        }
        let length: u64 = length.parse().expect("a number of blocks");
        all += length;
        if flags.split(',').any(|flag| flag == "shared") {
            shared += length;
        }
    }
    (shared, all)
}

/// Clones a file of one folder into another. Returns the new file, if it is a clone.
fn cloned(from: &Path, to: &Path) -> Option<File> {
    let (original, copy) = (from.join("original"), to.join("copy"));
    let bytes = vec![7_u8; 1 << 16];
    fs::write(&original, &bytes).expect("written");
    let file = fs::OpenOptions::new().write(true).create_new(true).open(&copy).expect("created");
    let source = File::open(&original).expect("opened");
    let is_clone = clone_file(&source, &file).expect("it is cloned or not");
    let expected = if is_clone { bytes } else { Vec::new() };
    assert!(fs::read(&copy).expect("read") == expected, "all bytes or none");
    is_clone.then_some(file)
}

#[test]
fn the_extents_of_a_file_are_counted() {
    let listed = "Filesystem type is: 58465342\nFile size of /a: b/c is 3000000 (733 blocks of 4096 bytes)\n \
                  ext:     logical_offset:        physical_offset: length:   expected: flags:\n   \
                  0:        0..       1:         24..        25:      2:             shared\n   \
                  1:        2..       2:        759..       759:      1:         26:\n   \
                  2:        3..     732:         27..       756:    730:        760: last,shared,eof\n/a: b/c: 3 extents found\n";
    assert_eq!(counted(listed), (732, 733));
    assert_eq!(counted("/a: 0 extents found\n"), (0, 0));
}

#[test]
fn clones_have_their_data_in_common_until_it_is_written_and_no_file_system_without_them_writes_any() {
    for kind in [XFS, BTRFS, OLD_XFS, EXT4] {
        on_file_system(kind, |folder| {
            let clone = cloned(folder, folder);
            assert_eq!(clone.is_some(), kind.shares, "{kind:?}");
            let Some(file) = clone else { return };
            let (original, copy) = (folder.join("original"), folder.join("copy"));
            assert!(is_shared(&copy) && is_shared(&original), "{kind:?}");
            let (_, all) = blocks(&copy);
            file.write_all_at(b"other", 0).expect("written");
            assert_eq!(blocks(&copy), (all - 1, all), "{kind:?}");
            assert!(fs::read(&original).expect("read") == vec![7_u8; 1 << 16], "the original stays");
        });
    }
}

#[test]
fn files_of_two_file_systems_and_of_tmpfs_are_not_cloned() {
    let folder = tempfile::tempdir().expect("temporary folder");
    for kind in [XFS, BTRFS] {
        on_file_system(kind, |other| assert!(cloned(folder.path(), other).is_none(), "{kind:?}"));
    }
    let Ok(memory) = tempfile::tempdir_in("/dev/shm") else { return };
    let is_tmpfs = fs::read_to_string("/proc/mounts").is_ok_and(|all| all.contains(" /dev/shm tmpfs "));
    if is_tmpfs {
        assert!(cloned(memory.path(), memory.path()).is_none());
    }
}

#[test]
fn only_errors_that_a_copy_would_have_too_end_the_attempt() {
    for copies in [
        Errno::EOPNOTSUPP,
        Errno::ENOTTY,
        Errno::ENOSYS,
        Errno::EXDEV,
        Errno::EINVAL,
        Errno::EPERM,
        Errno::EACCES,
        Errno::ETXTBSY,
        Errno::EBADF,
    ] {
        assert!(!is_fatal(copies), "{copies}");
    }
    for fails in [Errno::ENOSPC, Errno::EDQUOT, Errno::EIO, Errno::EROFS, Errno::ESTALE] {
        assert!(is_fatal(fails), "{fails}");
    }
}
