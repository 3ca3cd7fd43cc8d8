//! Copies of files that have their data on the disk in common with the original (reflinks), on file systems that can do that: XFS, Btrfs,
//! and NFS 4.2 in front of them.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use nix::errno::Errno;

/// Gives an empty file the data of another one, holes included, without a copy of it. Later writes to either file do not show in the other.
/// Returns whether the file system did so: otherwise the data has to be copied.
///
/// *Errors*: a full file system, or one that fails.
#[allow(unsafe_code, reason = "neither the standard library nor nix has this call of the kernel")]
pub(super) fn clone_file(from: &File, to: &File) -> io::Result<bool> {
    // SAFETY: FICLONE takes the number of a descriptor, no pointer. Both files are open until the call returns.
    let result = unsafe { libc::ioctl(to.as_raw_fd(), libc::FICLONE, from.as_raw_fd()) };
    if result >= 0 {
        return Ok(true);
    }
    let errno = Errno::last();
    if is_fatal(errno) { Err(errno.into()) } else { Ok(false) }
}

/// Whether a copy of the data would fail too. All other errors only say that this file system does not clone these files.
fn is_fatal(errno: Errno) -> bool {
    matches!(errno, Errno::ENOSPC | Errno::EDQUOT | Errno::EIO | Errno::EROFS | Errno::ESTALE)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::path::Path;

    use super::*;

    /// Clones a file of one folder into another. Returns the bytes that the new file has then, if it is a clone.
    fn cloned(from: &Path, to: &Path) -> Option<Vec<u8>> {
        let (original, copy) = (from.join("original"), to.join("copy"));
        fs::write(&original, vec![7_u8; 1 << 16]).expect("written");
        let mut file = fs::OpenOptions::new().write(true).create_new(true).open(&copy).expect("created");
        let source = File::open(&original).expect("opened");
        if !clone_file(&source, &file).expect("it is cloned or not") {
            assert_eq!(fs::metadata(&copy).expect("there").len(), 0, "nothing was written");
            return None;
        }
        let bytes = fs::read(&copy).expect("read");
        file.write_all(b"other").expect("written");
        assert_eq!(fs::read(&original).expect("read"), vec![7_u8; 1 << 16], "the original stays");
        Some(bytes)
    }

    #[test]
    fn a_clone_has_all_bytes_and_a_file_that_cannot_be_cloned_stays_empty() {
        let folder = tempfile::tempdir().expect("temporary folder");
        if let Some(bytes) = cloned(folder.path(), folder.path()) {
            assert_eq!(bytes, vec![7_u8; 1 << 16]);
        }
        // tmpfs does not clone, neither within itself nor from another file system.
        let Ok(shared) = tempfile::tempdir_in("/dev/shm") else { return };
        let other = tempfile::tempdir().expect("temporary folder");
        let is_tmpfs = fs::read_to_string("/proc/mounts").is_ok_and(|all| all.contains(" /dev/shm tmpfs "));
        if is_tmpfs {
            assert_eq!(cloned(other.path(), shared.path()), None);
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
}
