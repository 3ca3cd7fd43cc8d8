//! The file that a download writes: the bytes that have come, and their checksum so far.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256, Sha512};

const BLOCK: usize = 1 << 20;
/// The hexadecimal digits of a SHA-512.
const SHA512_DIGITS: usize = 128;

/// Why the file of a download cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PartError {
    /// Another download writes to it.
    #[error("another download writes to {}: wait for it, or end it", .0.display())]
    Busy(PathBuf),
    /// It cannot be read or written.
    #[error("{} cannot be written: {error}", path.display())]
    Unusable {
        /// Its path.
        path: PathBuf,
        /// The cause.
        error: io::Error,
    },
}

/// The bytes of a file to download.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    /// The number of bytes.
    pub size: u64,
    /// SHA-256 or SHA-512, in hexadecimal digits.
    pub digest: String,
}

enum Hasher {
    Sha256(Sha256),
    Sha512(Sha512),
}

impl Hasher {
    fn new(digest: &str) -> Self {
        match digest.len() {
            SHA512_DIGITS => Self::Sha512(Sha512::new()),
            _ => Self::Sha256(Sha256::new()),
        }
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hasher) => hasher.update(bytes),
            Self::Sha512(hasher) => hasher.update(bytes),
        }
    }

    fn digits(&self) -> String {
        match self {
            Self::Sha256(hasher) => {
                hasher.clone().finalize().iter().map(|byte| format!("{byte:02x}")).collect()
            }
            Self::Sha512(hasher) => {
                hasher.clone().finalize().iter().map(|byte| format!("{byte:02x}")).collect()
            }
        }
    }
}

/// A file that is downloaded in parts. It stays when this is dropped. Blocking.
pub(crate) struct Part {
    path: PathBuf,
    /// Locked, so that one process writes to it.
    file: File,
    hasher: Hasher,
    at: u64,
    expected: Expected,
    /// Whether some of the bytes were there before.
    is_continued: bool,
}

impl Part {
    /// Opens the file, or creates it, readable by its owner only. The bytes in it are those of an earlier download, unless they are too
    /// many.
    pub(crate) fn open(path: &Path, expected: &Expected) -> Result<Self, PartError> {
        let unusable = |error| PartError::Unusable { path: path.to_owned(), error };
        // Neither a link elsewhere nor a pipe, which would wait for its reader.
        if fs::symlink_metadata(path).is_ok_and(|found| !found.is_file()) {
            return Err(unusable(io::Error::other("it is not a regular file")));
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(path).map_err(unusable)?;
        file.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => PartError::Busy(path.to_owned()),
            TryLockError::Error(error) => unusable(error),
        })?;
        let hasher = Hasher::new(&expected.digest);
        let (path, expected) = (path.to_owned(), expected.clone());
        let mut part = Self { path, file, hasher, at: 0, expected, is_continued: false };
        part.read_again().map_err(|error| part.unusable(error))?;
        Ok(part)
    }

    fn read_again(&mut self) -> io::Result<()> {
        if self.file.metadata()?.len() > self.expected.size {
            return self.cut();
        }
        let mut block = vec![0; BLOCK];
        loop {
            let count = self.file.read(&mut block)?;
            if count == 0 {
                break;
            }
            self.hasher.update(&block[..count]);
            self.at += count as u64;
        }
        self.is_continued = self.at > 0;
        Ok(())
    }

    fn cut(&mut self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.seek(SeekFrom::Start(0))?;
        self.hasher = Hasher::new(&self.expected.digest);
        (self.at, self.is_continued) = (0, false);
        Ok(())
    }

    fn unusable(&self, error: io::Error) -> PartError {
        PartError::Unusable { path: self.path.clone(), error }
    }

    /// The number of bytes that have come.
    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.at >= self.expected.size
    }

    pub(crate) fn size(&self) -> u64 {
        self.expected.size
    }

    pub(crate) fn is_continued(&self) -> bool {
        self.is_continued
    }

    /// Adds bytes, which must not be more than are missing.
    pub(crate) fn add(&mut self, bytes: &[u8]) -> Result<(), PartError> {
        self.file.write_all(bytes).map_err(|error| self.unusable(error))?;
        self.hasher.update(bytes);
        self.at += bytes.len() as u64;
        Ok(())
    }

    /// Removes the bytes that have come.
    pub(crate) fn begin_anew(&mut self) -> Result<(), PartError> {
        self.cut().map_err(|error| self.unusable(error))
    }

    /// Compares the checksum of the bytes with the expected one. If they are equal, the bytes are on the medium when this returns.
    pub(crate) fn verify(&self) -> Result<bool, PartError> {
        if self.hasher.digits() != self.expected.digest {
            return Ok(false);
        }
        self.file.sync_all().map(|()| true).map_err(|error| self.unusable(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expected(bytes: &[u8]) -> Expected {
        let digest = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        Expected { size: bytes.len() as u64, digest }
    }

    #[test]
    fn a_download_continues_after_the_bytes_that_are_there() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.part");
        let mut part = Part::open(&path, &expected(b"abcdef")).expect("opened");
        assert!(!part.is_continued() && !part.is_whole());
        part.add(b"abc").expect("added");
        assert!(matches!(Part::open(&path, &expected(b"abcdef")), Err(PartError::Busy(_))));
        drop(part);
        let mut part = Part::open(&path, &expected(b"abcdef")).expect("opened");
        assert_eq!((part.at(), part.is_continued()), (3, true));
        part.add(b"def").expect("added");
        assert!(part.is_whole() && part.verify().expect("read"));
        assert_eq!(fs::read(&path).expect("there"), b"abcdef");
    }

    #[test]
    fn bytes_of_another_file_are_found_by_the_checksum_and_too_many_are_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.part");
        fs::write(&path, b"xyz").expect("written");
        let mut part = Part::open(&path, &expected(b"abcdef")).expect("opened");
        part.add(b"def").expect("added");
        assert!(part.is_whole() && !part.verify().expect("read"));
        part.begin_anew().expect("cut");
        part.add(b"abcdef").expect("added");
        assert!(part.verify().expect("read") && !part.is_continued());
        drop(part);
        let part = Part::open(&path, &expected(b"abc")).expect("opened");
        assert_eq!((part.at(), part.is_continued(), fs::read(&path).expect("there").len()), (0, false, 0));
    }

    #[test]
    fn a_sha512_is_verified_and_a_link_is_not_followed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.part");
        let digest = Sha512::digest(b"abc").iter().map(|byte| format!("{byte:02x}")).collect();
        let mut part = Part::open(&path, &Expected { size: 3, digest }).expect("opened");
        part.add(b"abc").expect("added");
        assert!(part.verify().expect("read"));
        let link = folder.path().join("link.part");
        std::os::unix::fs::symlink(folder.path().join("elsewhere"), &link).expect("a link");
        assert!(matches!(Part::open(&link, &expected(b"abc")), Err(PartError::Unusable { .. })));
        assert!(!folder.path().join("elsewhere").exists());
    }
}
