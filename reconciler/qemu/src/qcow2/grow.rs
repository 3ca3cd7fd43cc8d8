//! Growing a qcow2 file if only the header has to change.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::header::{Header, LUKS, incompatible};
use super::lock::ImageLock;
use super::{ImageError, MAX_VIRTUAL_SIZE, SECTOR};

/// Grows the disk to at least `size` bytes. Succeeds if it already has this size.
///
/// Works if the L1 table has space in its existing clusters: for files created here always up to the next 4 TiB. Holds
/// QEMU's own image lock meanwhile, so that no QEMU has the file open or opens it.
/// *Guarantees*: a crash leaves the old size or the new one.
pub fn grow(path: &Path, size: u64) -> Result<(), ImageError> {
    let failed = |source: io::Error| ImageError::Write { path: path.to_owned(), source };
    let lock = ImageLock::new(open(path)?).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => ImageError::InUse { path: path.to_owned() },
        _ => failed(error),
    })?;
    grow_open(path, lock.file(), size)
}

/// The same for a file that others may read meanwhile, and that nothing writes: each of them has the old size or the new one.
pub fn grow_below(path: &Path, size: u64) -> Result<(), ImageError> {
    grow_open(path, &open(path)?, size)
}

fn open(path: &Path) -> Result<File, ImageError> {
    let opened = OpenOptions::new().read(true).write(true).open(path);
    opened.map_err(|source| ImageError::Write { path: path.to_owned(), source })
}

fn grow_open(path: &Path, file: &File, size: u64) -> Result<(), ImageError> {
    let failed = |source: io::Error| ImageError::Write { path: path.to_owned(), source };
    if size == 0 || !size.is_multiple_of(SECTOR) || size > MAX_VIRTUAL_SIZE {
        return Err(ImageError::Size { size });
    }
    let header =
        Header::read(&mut &*file).map_err(|source| ImageError::Inspect { path: path.to_owned(), source })?;
    if size < header.size {
        return Err(ImageError::Shrink { path: path.to_owned(), from: header.size, to: size });
    }
    if size == header.size {
        return Ok(());
    }
    let refuse = |why| Err(ImageError::NotInPlace { path: path.to_owned(), why });
    if header.incompatible & !incompatible::COMPRESSION != 0 || header.external_data {
        return refuse("it uses features that need QEMU");
    }
    // The size is in no header of LUKS.
    if header.encrypted && header.encryption != LUKS {
        return refuse("its encryption needs QEMU");
    }
    if header.snapshots > 0 {
        return refuse("it has internal snapshots");
    }
    let (old, new) = (u64::from(header.l1_size), header.l1_entries_for(size).max(header.l1_size.into()));
    if (new * 8).div_ceil(header.cluster()) > (old * 8).div_ceil(header.cluster()) {
        return refuse("its L1 table is full");
    }
    let mut unused = vec![0; usize::try_from((new - old) * 8).expect("within the last cluster of a table")];
    file.read_exact_at(&mut unused, header.l1_offset + old * 8).map_err(failed)?;
    if unused.iter().any(|b| *b != 0) {
        return refuse("its L1 table is followed by other data");
    }
    // Size, encryption and number of L1 entries are adjacent: one write of 16 bytes within a sector.
    let mut fields = Vec::with_capacity(16);
    fields.extend(size.to_be_bytes());
    fields.extend(header.encryption.to_be_bytes());
    fields.extend(u32::try_from(new).expect("64 TiB needs 131072 entries").to_be_bytes());
    file.write_all_at(&fields, 24).and_then(|()| file.sync_all()).map_err(failed)
}
