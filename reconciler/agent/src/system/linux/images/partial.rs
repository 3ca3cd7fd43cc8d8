//! A download that is not complete yet, and where it came from.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::super::files::{self, failed};
use crate::system::SystemError;

pub(super) fn path(image: &Path) -> PathBuf {
    image.with_extension("partial")
}

pub(super) fn origin(image: &Path) -> PathBuf {
    image.with_extension("partial.json")
}

pub(super) fn discard(image: &Path) -> Result<(), SystemError> {
    for path in [path(image), origin(image)] {
        files::remove_if_there(&path).map_err(failed("remove", &path))?;
    }
    Ok(())
}

/// What a server called the version whose first bytes we have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Origin {
    pub(super) url: String,
    /// A strong ETag or a date of modification, for `If-Range`.
    pub(super) validator: Option<String>,
}

impl Origin {
    pub(super) fn read(image: &Path) -> Option<Self> {
        // A damaged note costs a download from the start, nothing else.
        files::read_json(&origin(image)).ok().flatten()?.ok()
    }

    pub(super) fn write(&self, image: &Path) -> Result<(), SystemError> {
        files::write_json(&origin(image), self, 0o600)
    }
}

/// The bytes so far, with their checksum.
///
/// Holds the file's lock: a writer that was told to stop and still finishes its last block, or another process,
/// never writes into the same file.
#[derive(Debug)]
pub(super) struct Partial {
    path: PathBuf,
    file: File,
    hasher: Sha256,
    len: u64,
}

impl Partial {
    /// Opens what there is and computes its checksum. Blocking.
    pub(super) fn open(image: &Path) -> Result<Self, SystemError> {
        let path = path(image);
        let open = || -> io::Result<Self> {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .open(&path)?;
            file.lock()?;
            let mut partial = Self { path: path.clone(), file, hasher: Sha256::new(), len: 0 };
            partial.take_up()?;
            Ok(partial)
        };
        open().map_err(failed("open", &path))
    }

    fn take_up(&mut self) -> io::Result<()> {
        let mut block = vec![0; 1 << 20];
        loop {
            let n = self.file.read(&mut block)?;
            if n == 0 {
                return Ok(());
            }
            self.hasher.update(&block[..n]);
            self.len += n as u64;
        }
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    pub(super) fn restart(&mut self) -> Result<(), SystemError> {
        let emptied = self.file.set_len(0).and_then(|()| self.file.seek(SeekFrom::Start(0)));
        emptied.map_err(failed("empty", &self.path))?;
        self.hasher = Sha256::new();
        self.len = 0;
        Ok(())
    }

    pub(super) fn append(&mut self, bytes: &[u8]) -> Result<(), SystemError> {
        self.file.write_all(bytes).map_err(failed("write", &self.path))?;
        self.hasher.update(bytes);
        self.len += bytes.len() as u64;
        Ok(())
    }

    pub(super) fn sha256(&self) -> String {
        self.hasher.clone().finalize().iter().map(|b| format!("{b:02x}")).collect()
    }
}
