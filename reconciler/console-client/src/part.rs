//! The bytes of a download that have come, in their file, and their checksum so far.

use std::io::{self, Read, Write};

use sha2::{Digest, Sha256, Sha512};

use crate::part_file::{PartError, PartFile};

const BLOCK: usize = 1 << 20;
/// The hexadecimal digits of a SHA-512.
const SHA512_DIGITS: usize = 128;

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
    file: PartFile,
    hasher: Hasher,
    at: u64,
    expected: Expected,
    /// Whether some of the bytes were there before.
    is_continued: bool,
}

impl Part {
    /// Reads what is in the file: the bytes of an earlier download, unless they are too many.
    pub(crate) fn of(file: PartFile, expected: &Expected) -> Result<Self, PartError> {
        let hasher = Hasher::new(&expected.digest);
        let mut part = Self { file, hasher, at: 0, expected: expected.clone(), is_continued: false };
        let length = part.file.file().metadata().map_err(|error| part.file.unusable(error))?.len();
        if length > expected.size {
            part.begin_anew()?;
        } else {
            part.read_again().map_err(|error| part.file.unusable(error))?;
        }
        Ok(part)
    }

    fn read_again(&mut self) -> io::Result<()> {
        self.file.rewind()?;
        let mut file = self.file.file();
        let mut block = vec![0; BLOCK];
        loop {
            let count = file.read(&mut block)?;
            if count == 0 {
                break;
            }
            self.hasher.update(&block[..count]);
            self.at += count as u64;
        }
        self.is_continued = self.at > 0;
        Ok(())
    }

    /// Returns the file, still locked.
    pub(crate) fn into_file(self) -> PartFile {
        self.file
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
        let mut file = self.file.file();
        file.write_all(bytes).map_err(|error| self.file.unusable(error))?;
        self.hasher.update(bytes);
        self.at += bytes.len() as u64;
        Ok(())
    }

    /// Removes the bytes that have come.
    pub(crate) fn begin_anew(&mut self) -> Result<(), PartError> {
        self.file.clear()?;
        self.hasher = Hasher::new(&self.expected.digest);
        (self.at, self.is_continued) = (0, false);
        Ok(())
    }

    /// Compares the checksum of the bytes with the expected one. If they are equal, the bytes are on the medium when this returns.
    pub(crate) fn verify(&self) -> Result<bool, PartError> {
        if self.hasher.digits() != self.expected.digest {
            return Ok(false);
        }
        self.file.file().sync_all().map(|()| true).map_err(|error| self.file.unusable(error))
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    fn opened(path: &Path, expected: &Expected) -> Part {
        Part::of(PartFile::open(path).expect("opened"), expected).expect("read")
    }

    fn expected(bytes: &[u8]) -> Expected {
        let digest = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        Expected { size: bytes.len() as u64, digest }
    }

    #[test]
    fn a_download_continues_after_the_bytes_that_are_there() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.part");
        let mut part = opened(&path, &expected(b"abcdef"));
        assert!(!part.is_continued() && !part.is_whole());
        part.add(b"abc").expect("added");
        assert!(matches!(PartFile::open(&path), Err(PartError::Busy(_))));
        drop(part);
        let mut part = opened(&path, &expected(b"abcdef"));
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
        let mut part = opened(&path, &expected(b"abcdef"));
        part.add(b"def").expect("added");
        assert!(part.is_whole() && !part.verify().expect("read"));
        part.begin_anew().expect("cut");
        part.add(b"abcdef").expect("added");
        assert!(part.verify().expect("read") && !part.is_continued());
        drop(part);
        let part = opened(&path, &expected(b"abc"));
        assert_eq!((part.at(), part.is_continued(), fs::read(&path).expect("there").len()), (0, false, 0));
    }

    #[test]
    fn a_sha512_is_verified() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.part");
        let digest = Sha512::digest(b"abc").iter().map(|byte| format!("{byte:02x}")).collect();
        let mut part = opened(&path, &Expected { size: 3, digest });
        part.add(b"abc").expect("added");
        assert!(part.verify().expect("read"));
    }
}
