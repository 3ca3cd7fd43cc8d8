//! QEMU's lock of an image file: while one process holds it, no QEMU has the file open or opens it.

use std::fs::File;
use std::io;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};

/// The byte range of QEMU's image locks (`RAW_LOCK_PERM_BASE` … `RAW_LOCK_SHARED_BASE` + 64).
const LOCK_START: libc::off_t = 100;
const LOCK_LENGTH: libc::off_t = 164;

/// A file with QEMU's image lock.
#[derive(Debug)]
pub struct ImageLock(File);

impl ImageLock {
    /// Locks a file that is open for reading and writing. Does not wait.
    ///
    /// # Errors
    /// `WouldBlock` when another process has the file open as an image.
    pub fn new(file: File) -> io::Result<Self> {
        match set_lock(&file, libc::F_WRLCK) {
            Ok(()) => Ok(Self(file)),
            Err(Errno::EAGAIN | Errno::EACCES) => Err(io::ErrorKind::WouldBlock.into()),
            Err(other) => Err(other.into()),
        }
    }

    pub fn file(&self) -> &File {
        &self.0
    }
}

impl Drop for ImageLock {
    /// Closing is not enough: a process forked by another thread also holds the lock until its `exec`.
    fn drop(&mut self) {
        let _ = set_lock(&self.0, libc::F_UNLCK);
    }
}

fn set_lock(file: &File, kind: libc::c_int) -> Result<(), Errno> {
    let lock = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: LOCK_START,
        l_len: LOCK_LENGTH,
        l_pid: 0,
    };
    fcntl(file, FcntlArg::F_OFD_SETLK(&lock)).map(|_| ())
}
