//! The state directory: accessible to its owner only, and open in one process at a time.

use std::fs::{File, TryLockError};
use std::path::Path;

use crate::error::OpenError;

/// The database file in the state directory.
pub(crate) const DATABASE: &str = "berth.db";
/// The marker of a restore in progress; contains the suffix of the names under which the old files are kept.
pub(crate) const UNFINISHED: &str = "restore.unfinished";

/// The lock of the directory, released when dropped.
#[derive(Debug)]
pub(crate) struct DirectoryLock(File);

impl Drop for DirectoryLock {
    fn drop(&mut self) {
        // Unlocked explicitly: a child process that is being started elsewhere in this process still shares
        // the descriptor.
        let _ = self.0.unlock();
    }
}

/// Creates the directory, inaccessible to other users, and takes its lock.
pub(crate) fn lock_directory(directory: &Path) -> Result<DirectoryLock, OpenError> {
    use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
    let failed = |source| OpenError::Directory { path: directory.into(), source };
    if !directory.is_dir() {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed)?;
    }
    let path = directory.join("berth.lock");
    let private =
        |path: &Path| File::options().create(true).truncate(false).write(true).mode(0o600).open(path);
    let lock = private(&path).map_err(failed)?;
    // SQLite treats an empty file as a new database, and gives its companion files the same permissions.
    private(&directory.join(DATABASE)).map_err(failed)?;
    match lock.try_lock() {
        Ok(()) => Ok(DirectoryLock(lock)),
        Err(TryLockError::WouldBlock) => Err(OpenError::Locked { path: directory.join(DATABASE) }),
        Err(TryLockError::Error(source)) => Err(failed(source)),
    }
}

/// Refuses a directory whose restore was interrupted: its database and its keys may be of different ones.
pub(crate) fn refuse_unfinished(directory: &Path) -> Result<(), OpenError> {
    match directory.join(UNFINISHED).exists() {
        true => Err(OpenError::HalfRestored { path: directory.into() }),
        false => Ok(()),
    }
}
