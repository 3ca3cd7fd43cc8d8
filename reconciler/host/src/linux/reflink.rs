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
pub(super) mod tests;
