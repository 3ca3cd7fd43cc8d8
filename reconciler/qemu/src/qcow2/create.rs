//! New qcow2 files: metadata only, so any size takes the same few hundred kilobytes and milliseconds.
//!
//! ```text
//!  cluster 0   1               2               3 … 3+n
//!  header      refcount table  refcount block  L1 table
//! ```

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::header::{EXTENSION_BACKING_FORMAT, MAGIC, V3_LENGTH};
use super::{ImageError, InspectError, MAX_VIRTUAL_SIZE, SECTOR, virtual_size};
use crate::machine::{Backing, Format};

const CLUSTER_BITS: u32 = 16;
const CLUSTER: u64 = 1 << CLUSTER_BITS;
/// Guest bytes that one L2 table (one L1 entry) maps.
const PER_L1_ENTRY: u64 = CLUSTER * (CLUSTER / 8);
/// 16-bit refcounts.
const REFCOUNT_ORDER: u32 = 4;
const MAX_BACKING_NAME: usize = 1023;

/// Creates a new, empty disk.
///
/// *Guarantees*: `path` appears complete or not at all. *Errors*: also when `path` exists.
pub fn create(path: &Path, size: u64) -> Result<(), ImageError> {
    write_new(path, size, None)
}

/// Creates a disk that starts as `backing` and stores only differences. `size` may be larger, never smaller.
///
/// A relative backing path is relative to the directory of `path`.
pub fn create_overlay(path: &Path, size: u64, backing: &Backing) -> Result<(), ImageError> {
    let file = match path.parent() {
        Some(directory) => directory.join(&backing.file),
        None => backing.file.clone(),
    };
    let base = size_of(&file, backing.format)?;
    if size < base {
        return Err(ImageError::SmallerThanBase { size, base });
    }
    write_new(path, size, Some(backing))
}

fn size_of(file: &Path, format: Format) -> Result<u64, ImageError> {
    let failed = |source| ImageError::Inspect { path: file.to_owned(), source };
    let mut open = File::open(file).map_err(|e| failed(e.into()))?;
    match format {
        Format::Raw | Format::Iso => open.metadata().map(|m| m.len()).map_err(|e| failed(e.into())),
        Format::Qcow2 | Format::EncryptedQcow2 => virtual_size(&mut open).map_err(failed),
        Format::Luks => Err(failed(InspectError::Encrypted)),
    }
}

fn write_new(path: &Path, size: u64, backing: Option<&Backing>) -> Result<(), ImageError> {
    if size == 0 || !size.is_multiple_of(SECTOR) || size > MAX_VIRTUAL_SIZE {
        return Err(ImageError::Size { size });
    }
    let l1_entries = size.div_ceil(PER_L1_ENTRY);
    let l1_clusters = (l1_entries * 8).div_ceil(CLUSTER);
    let header = header(size, u32::try_from(l1_entries).map_err(|_| ImageError::Size { size })?, backing)?;
    let failed = |source| ImageError::Write { path: path.to_owned(), source };
    let unfinished = unfinished_name(path);
    let write = || -> io::Result<()> {
        let file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
        // The rest of the file reads as zeros: no data, no snapshot, every L1 entry unused.
        file.set_len((3 + l1_clusters) * CLUSTER)?;
        file.write_all_at(&header, 0)?;
        file.write_all_at(&(2 * CLUSTER).to_be_bytes(), CLUSTER)?;
        let used = usize::try_from(3 + l1_clusters).expect("at most 64 TiB needs 16 clusters of L1");
        file.write_all_at(&[0, 1].repeat(used), 2 * CLUSTER)?;
        file.sync_all()?;
        rename_new(&unfinished, path)
    };
    write().map_err(|source| {
        // Best effort: the file may not exist.
        let _ = std::fs::remove_file(&unfinished);
        failed(source)
    })
}

fn unfinished_name(path: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".new");
    path.with_file_name(name)
}

/// Renames a file. Unlike plain `rename(2)`, never replaces another one, which could be another disk.
pub fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
    match renameat2(AT_FDCWD, from, AT_FDCWD, to, RenameFlags::RENAME_NOREPLACE) {
        // Some file systems (NFS) lack the flag; a second link does the same in two steps.
        Err(nix::errno::Errno::EINVAL) => {
            std::fs::hard_link(from, to)?;
            std::fs::remove_file(from)
        }
        other => other.map_err(io::Error::from),
    }
}

fn header(size: u64, l1_entries: u32, backing: Option<&Backing>) -> Result<Vec<u8>, ImageError> {
    let mut extensions = Vec::new();
    let mut name: &[u8] = &[];
    if let Some(backing) = backing {
        name = backing.file.as_os_str().as_bytes();
        if name.is_empty() || name.len() > MAX_BACKING_NAME {
            return Err(ImageError::BackingName);
        }
        let format = backing.format.driver().as_bytes();
        extensions.extend(EXTENSION_BACKING_FORMAT.to_be_bytes());
        extensions.extend(length(format).to_be_bytes());
        extensions.extend(format);
        extensions.resize(extensions.len().next_multiple_of(8), 0);
    }
    // The end of the extensions.
    extensions.extend([0; 8]);
    let name_at = if name.is_empty() { 0 } else { u64::from(V3_LENGTH) + extensions.len() as u64 };

    let mut out = Vec::new();
    out.extend(MAGIC);
    out.extend(3_u32.to_be_bytes());
    out.extend(name_at.to_be_bytes());
    out.extend(length(name).to_be_bytes());
    out.extend(CLUSTER_BITS.to_be_bytes());
    out.extend(size.to_be_bytes());
    out.extend(0_u32.to_be_bytes()); // encryption
    out.extend(l1_entries.to_be_bytes());
    out.extend((3 * CLUSTER).to_be_bytes()); // L1 table
    out.extend(CLUSTER.to_be_bytes()); // refcount table
    out.extend(1_u32.to_be_bytes()); // and its clusters
    out.extend([0; 12]); // snapshots
    out.extend([0; 24]); // features: incompatible, compatible, autoclear
    out.extend(REFCOUNT_ORDER.to_be_bytes());
    out.extend(V3_LENGTH.to_be_bytes());
    out.extend(extensions);
    out.extend(name);
    Ok(out)
}

fn length(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).expect("formats and names were checked to be short")
}
