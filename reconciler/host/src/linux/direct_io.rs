//! Direct I/O: whether the file system of a pool reads and writes past the page cache. Tried on the pool's own files.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use berth_qemu::machine::Cache;

/// A multiple of the block size of every disk. Direct I/O needs memory and lengths aligned to it.
const BLOCK: usize = 4096;

/// The folders that were tried.
#[derive(Debug, Default)]
pub(super) struct DirectIo {
    tried: Mutex<BTreeMap<PathBuf, bool>>,
}

impl DirectIo {
    /// Returns how QEMU opens a disk's file. Tried once for each folder: a file system does not change under a pool.
    pub(super) fn cache_of(&self, file: &Path, io_uring: bool) -> Cache {
        let Some(folder) = file.parent() else { return Cache::Writeback };
        let tried = || self.tried.lock().unwrap_or_else(PoisonError::into_inner);
        let known = tried().get(folder).copied();
        let works = match known {
            Some(works) => works,
            // Without the lock: a file system that does not answer holds up no other.
            None => match reads_directly(file) {
                Ok(works) => *tried().entry(folder.to_owned()).or_insert(works),
                Err(error) => {
                    tracing::debug!(%error, file = %file.display(), "direct I/O not tried");
                    return Cache::Writeback;
                }
            },
        };
        match (works, io_uring) {
            (false, _) => Cache::Writeback,
            (true, true) => Cache::DirectIoUring,
            (true, false) => Cache::Direct,
        }
    }
}

/// Reads a block of the file with O_DIRECT.
fn reads_directly(file: &Path) -> io::Result<bool> {
    let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(file);
    match direct.and_then(|file| read_block(&file)) {
        Ok(()) => Ok(true),
        // The open or the read is refused where direct I/O does not work.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(false),
        Err(error) => Err(error),
    }
}

fn read_block(file: &File) -> io::Result<()> {
    // Twice as long as needed, so that an aligned block is in it.
    let mut memory = vec![0; 2 * BLOCK];
    let start = memory.as_ptr().align_offset(BLOCK).min(BLOCK);
    file.read_at(&mut memory[start..start + BLOCK], 0).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_opened_directly_where_its_file_system_can() {
        let io = DirectIo::default();
        assert_eq!(
            io.cache_of(Path::new("/proc/version"), true),
            Cache::Writeback,
            "/proc has no direct I/O"
        );
        assert_eq!(io.cache_of(Path::new("/nonexistent/file"), true), Cache::Writeback);
        // /var/tmp is on a disk.
        let folder = tempfile::tempdir_in("/var/tmp").expect("a folder");
        let file = folder.path().join("disk");
        std::fs::write(&file, [1; 2 * BLOCK]).expect("written");
        match reads_directly(&file).expect("tried") {
            true => assert_eq!(
                (io.cache_of(&file, true), io.cache_of(&file, false)),
                (Cache::DirectIoUring, Cache::Direct)
            ),
            false => println!("skipped: the file system of /var/tmp has no direct I/O"),
        }
    }
}
