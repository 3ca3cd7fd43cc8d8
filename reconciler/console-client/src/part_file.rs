//! The file for the bytes of a download, which one process has at a time.
//!
//! *Guarantees:* while a [`PartFile`] exists, no other process opens the file at its path by [`PartFile::open`], nor that file under the
//! name that it is given at the end.

use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::unistd::geteuid;

/// How often a file is opened that is renamed or removed before it is locked.
const ATTEMPTS: usize = 8;

/// Why the file of a download cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PartError {
    /// Another download writes to it.
    #[error("another download writes to {}: wait for it, or end it", .0.display())]
    Busy(PathBuf),
    /// It cannot be opened, read or written.
    #[error("{} cannot be used: {error}", path.display())]
    Unusable {
        /// Its path.
        path: PathBuf,
        /// The cause.
        error: io::Error,
    },
}

/// A locked file. The lock ends when this is dropped; the file stays.
#[derive(Debug)]
pub struct PartFile {
    path: PathBuf,
    file: File,
}

impl PartFile {
    /// Opens and locks the file, or creates it, readable by its owner only.
    ///
    /// # Errors
    /// Another download has it; it is no regular file of this user.
    pub fn open(path: &Path) -> Result<Self, PartError> {
        let unusable = |error| PartError::Unusable { path: path.to_owned(), error };
        for _ in 0..ATTEMPTS {
            let file = opened(path).map_err(unusable)?;
            file.try_lock().map_err(|error| match error {
                TryLockError::WouldBlock => PartError::Busy(path.to_owned()),
                TryLockError::Error(error) => unusable(error),
            })?;
            // Between the two steps another download may have given the file its final name.
            if is_at(&file, path).map_err(unusable)? {
                return Ok(Self { path: path.to_owned(), file });
            }
        }
        Err(PartError::Busy(path.to_owned()))
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The open file.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Removes the bytes in it.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn clear(&self) -> Result<(), PartError> {
        let cleared = self.file.set_len(0).and_then(|()| self.rewind());
        cleared.map_err(|error| self.unusable(error))
    }

    pub(crate) fn rewind(&self) -> io::Result<()> {
        (&self.file).seek(SeekFrom::Start(0)).map(drop)
    }

    pub(crate) fn unusable(&self, error: io::Error) -> PartError {
        PartError::Unusable { path: self.path.clone(), error }
    }
}

/// Opens neither a link elsewhere nor a pipe, which would wait for its reader.
fn opened(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    options.custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits());
    let file = options.open(path).map_err(|error| match error.raw_os_error() {
        Some(code) if code == Errno::ELOOP as i32 => io::Error::other("it is a symbolic link"),
        _ => error,
    })?;
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    if found.uid() != geteuid().as_raw() {
        return Err(io::Error::other("it belongs to another user"));
    }
    if found.mode() & 0o077 != 0 {
        // A file system without modes, such as FAT, refuses that, and can do no better.
        let _ = file.set_permissions(Permissions::from_mode(0o600));
    }
    Ok(file)
}

/// Whether the path still leads to the open file.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let open = file.metadata()?;
    match fs::symlink_metadata(path) {
        Ok(found) => Ok((open.dev(), open.ino()) == (found.dev(), found.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_locked_until_it_has_its_final_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, done) = (folder.path().join("a.part"), folder.path().join("a"));
        let first = PartFile::open(&path).expect("opened");
        assert!(matches!(PartFile::open(&path), Err(PartError::Busy(_))));
        fs::rename(&path, &done).expect("renamed");
        assert!(matches!(PartFile::open(&done), Err(PartError::Busy(_))), "the lock is on the file");
        let second = PartFile::open(&path).expect("another file");
        second.clear().expect("cut");
        assert!(is_at(first.file(), &done).expect("read") && !is_at(first.file(), &path).expect("read"));
        drop(first);
        assert!(PartFile::open(&done).is_ok());
    }

    #[test]
    fn only_a_regular_file_is_used_and_only_its_owner_reads_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, link) = (folder.path().join("a.part"), folder.path().join("link.part"));
        fs::write(&path, b"abc").expect("written");
        fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("a mode");
        let part = PartFile::open(&path).expect("opened");
        assert_eq!(part.file().metadata().expect("read").mode() & 0o777, 0o600);
        std::os::unix::fs::symlink(folder.path().join("elsewhere"), &link).expect("a link");
        let refused = PartFile::open(&link).expect_err("a link").to_string();
        assert!(refused.ends_with("cannot be used: it is a symbolic link"), "{refused}");
        assert!(!folder.path().join("elsewhere").exists());
        let pipe = folder.path().join("pipe.part");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
        let refused = PartFile::open(&pipe).expect_err("a pipe").to_string();
        assert!(refused.ends_with("it is not a regular file"), "{refused}");
    }
}
