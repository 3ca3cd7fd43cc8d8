//! Landlock: restricts the files that a process can open from its start on, even if a guest takes it over.
//!
//! Files that are already open, and sockets, are not affected. A kernel without Landlock runs machines all the same:
//! users and file modes isolate them there.
#![allow(unsafe_code, reason = "system calls that no library here wraps")]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

const EXECUTE: u64 = 1 << 0;
const WRITE_FILE: u64 = 1 << 1;
const READ_FILE: u64 = 1 << 2;
const READ_DIR: u64 = 1 << 3;
const REMOVE_FILE: u64 = 1 << 5;
const MAKE_REG: u64 = 1 << 8;
const MAKE_SOCK: u64 = 1 << 9;
/// All access rights of the first ABI version.
const FIRST: u64 = (1 << 13) - 1;
/// Moving and linking between directories, from the second ABI version on.
const REFER: u64 = 1 << 13;
/// From the third ABI version on.
const TRUNCATE: u64 = 1 << 14;
/// The rights that apply to files other than directories.
const OF_FILES: u64 = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE;

const VERSION: libc::c_ulong = 1;
const PATH_BENEATH: libc::c_int = 1;

/// The access granted beneath a path.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reach {
    /// Execute programs and load libraries.
    Run,
    Read,
    /// Read and write existing files.
    Write,
    /// Also create and remove files and sockets.
    Own,
}

impl Reach {
    fn rights(self) -> u64 {
        match self {
            Self::Run => EXECUTE | READ_FILE | READ_DIR,
            Self::Read => READ_FILE,
            Self::Write => READ_FILE | WRITE_FILE | TRUNCATE,
            Self::Own => READ_FILE | WRITE_FILE | TRUNCATE | READ_DIR | REMOVE_FILE | MAKE_REG | MAKE_SOCK,
        }
    }
}

#[repr(C)]
struct RulesetAttr {
    handled_access_fs: u64,
}

#[repr(C, packed)]
struct PathBeneathAttr {
    allowed_access: u64,
    parent_fd: i32,
}

/// A ruleset that can be applied to a process.
#[derive(Debug)]
pub(super) struct Ruleset {
    file: File,
    handled: u64,
}

impl Ruleset {
    /// Creates a ruleset that allows nothing yet. None: this kernel has no Landlock.
    pub(super) fn new() -> io::Result<Option<Self>> {
        // SAFETY: with this flag the kernel reads nothing and returns a number.
        let version = unsafe {
            libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0_usize, VERSION)
        };
        if version < 1 {
            return Ok(None);
        }
        let mut handled = FIRST;
        if version >= 2 {
            handled |= REFER;
        }
        if version >= 3 {
            handled |= TRUNCATE;
        }
        let attr = RulesetAttr { handled_access_fs: handled };
        // SAFETY: the kernel reads as many bytes as the structure has.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_landlock_create_ruleset,
                &raw const attr,
                size_of::<RulesetAttr>(),
                0 as libc::c_ulong,
            )
        };
        let fd = RawFd::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or_else(io::Error::last_os_error)?;
        // SAFETY: the kernel has just opened it for us, close-on-exec.
        Ok(Some(Self { file: unsafe { File::from_raw_fd(fd) }, handled }))
    }

    /// Allows this path and everything beneath it. A missing path needs no rule.
    pub(super) fn allow(&self, path: &Path, reach: Reach) -> io::Result<()> {
        let opened = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(path);
        let parent = match opened {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other?,
        };
        let mut allowed_access = reach.rights() & self.handled;
        if !parent.metadata()?.is_dir() {
            allowed_access &= OF_FILES;
        }
        let attr = PathBeneathAttr { allowed_access, parent_fd: parent.as_raw_fd() };
        // SAFETY: the kernel reads one such structure; both descriptors are open.
        let result = unsafe {
            libc::syscall(
                libc::SYS_landlock_add_rule,
                self.file.as_raw_fd(),
                PATH_BENEATH,
                &raw const attr,
                0 as libc::c_ulong,
            )
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    pub(super) fn as_raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

/// Applies the ruleset to the calling process, permanently. Allowed between fork and exec: one system call.
pub(super) fn restrict(ruleset: RawFd) -> io::Result<()> {
    // SAFETY: integers only.
    let result = unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset, 0 as libc::c_ulong) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
