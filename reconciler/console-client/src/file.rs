//! The file to upload: its size and its checksum.

use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use berth_api::image::MAX_IMAGE_FILE;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

const BLOCK: usize = 1 << 20;

/// Why a file cannot be uploaded.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// There is no such file.
    #[error("{} does not exist", .0.display())]
    Missing(PathBuf),
    /// It is a folder, a device, or the like.
    #[error("{} is not a regular file", .0.display())]
    NotAFile(PathBuf),
    /// It has no bytes.
    #[error("{} is empty", .0.display())]
    Empty(PathBuf),
    /// It is larger than any image.
    #[error("{} has {size} bytes, and an image has at most 256 GiB", path.display())]
    TooLarge {
        /// Its path.
        path: PathBuf,
        /// Its size.
        size: u64,
    },
    /// Another program writes to it.
    #[error("{} has changed since its checksum was computed: wait until nothing writes to it", .0.display())]
    Changed(PathBuf),
    /// It cannot be read.
    #[error("{} cannot be read: {error}", path.display())]
    Unreadable {
        /// Its path.
        path: PathBuf,
        /// The cause.
        error: io::Error,
    },
}

/// The size of a file, and its times and identity, which change with its content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileStamp {
    size: u64,
    /// In nanoseconds, as are the seconds before them.
    modified: (i64, i64),
    changed: (i64, i64),
    inode: u64,
    device: u64,
}

impl FileStamp {
    fn of(metadata: &Metadata) -> Self {
        Self {
            size: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
            inode: metadata.ino(),
            device: metadata.dev(),
        }
    }
}

/// A file with its checksum.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeasuredFile {
    /// Its path.
    pub path: PathBuf,
    /// SHA-256 of its bytes, 64 hexadecimal digits in lower case.
    pub sha256: String,
    stamp: FileStamp,
}

impl MeasuredFile {
    /// The number of its bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.stamp.size
    }

    /// Checks that the file is as it was.
    ///
    /// # Errors
    /// It changed, or is gone.
    pub fn check_unchanged(&self) -> Result<(), FileError> {
        let metadata = fs::metadata(&self.path).map_err(unreadable(&self.path))?;
        if FileStamp::of(&metadata) == self.stamp {
            Ok(())
        } else {
            Err(FileError::Changed(self.path.clone()))
        }
    }
}

fn unreadable(path: &Path) -> impl Fn(io::Error) -> FileError {
    let path = path.to_owned();
    move |error| match error.kind() {
        io::ErrorKind::NotFound => FileError::Missing(path.clone()),
        _ => FileError::Unreadable { path: path.clone(), error },
    }
}

/// Reads the file and computes its checksum, unless `known` is of this very file as it is now. Blocking.
///
/// # Errors
/// It cannot be uploaded.
pub fn measure(path: &Path, known: Option<&MeasuredFile>) -> Result<MeasuredFile, FileError> {
    let failed = unreadable(path);
    // Opening a pipe would wait for its writer.
    if !fs::metadata(path).map_err(&failed)?.is_file() {
        return Err(FileError::NotAFile(path.to_owned()));
    }
    let mut file = File::open(path).map_err(&failed)?;
    let stamp = FileStamp::of(&file.metadata().map_err(&failed)?);
    match stamp.size {
        0 => return Err(FileError::Empty(path.to_owned())),
        size if i64::try_from(size).is_ok_and(|size| size <= MAX_IMAGE_FILE) => {}
        size => return Err(FileError::TooLarge { path: path.to_owned(), size }),
    }
    if let Some(known) = known.filter(|known| known.stamp == stamp && known.path == path) {
        return Ok(known.clone());
    }
    let (mut hasher, mut block) = (Sha256::new(), vec![0; BLOCK]);
    loop {
        match file.read(&mut block).map_err(&failed)? {
            0 => break,
            count => hasher.update(&block[..count]),
        }
    }
    let sha256 = hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    let measured = MeasuredFile { path: path.to_owned(), sha256, stamp };
    measured.check_unchanged()?;
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_its_checksum_and_is_read_once_while_it_is_unchanged() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("disk.raw");
        fs::write(&path, "abc").expect("a file");
        let first = measure(&path, None).expect("measured");
        assert_eq!(first.size(), 3);
        assert_eq!(first.sha256, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        let known = MeasuredFile { sha256: "known".to_owned(), ..first.clone() };
        assert_eq!(measure(&path, Some(&known)).expect("measured").sha256, "known");
        fs::write(&path, "abcd").expect("changed");
        assert!(matches!(first.check_unchanged(), Err(FileError::Changed(_))));
        let second = measure(&path, Some(&known)).expect("measured");
        assert!(second.size() == 4 && second.sha256 != first.sha256);
        let stored = serde_json::to_string(&second).expect("JSON");
        assert_eq!(serde_json::from_str::<MeasuredFile>(&stored).expect("read"), second);
    }

    #[test]
    fn what_is_no_file_with_bytes_is_refused_by_its_path() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        fs::write(at("empty"), "").expect("a file");
        let large = File::create(at("large")).expect("a file");
        large.set_len(MAX_IMAGE_FILE.unsigned_abs() + 1).expect("sparse");
        for (path, why) in [
            (at("missing"), "does not exist"),
            (at("empty"), "is empty"),
            (at("large"), "an image has at most 256 GiB"),
            (folder.path().to_owned(), "is not a regular file"),
            (PathBuf::from("/dev/null"), "is not a regular file"),
        ] {
            let error = measure(&path, None).expect_err("refused").to_string();
            assert!(error.starts_with(&path.display().to_string()) && error.contains(why), "{error}");
        }
    }
}
