//! The bytes that clients upload: a partial file as that of a download, which is verified in the same way once it is whole.
//!
//! *Guarantees:* the file always has the first bytes of the upload, whatever ended the last call.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use super::super::files::{self, blocking, failed};
use super::super::layout::check_digest;
use super::partial::{Place, is_named};
use super::{LinuxImages, Result};
use crate::{ImageSource, SystemError};

/// A block of zeros of this size is not written.
const HOLE: usize = 64 << 10;

impl LinuxImages {
    /// Returns how many bytes of the upload are here.
    pub(in super::super) async fn uploaded(&self, source: &ImageSource, size: u64) -> Result<u64> {
        check_digest(&source.digest)?;
        if size > self.max_bytes {
            let detail = format!("more than the {} bytes this host allows for an image", self.max_bytes);
            return Err(SystemError::ImageTooLarge { url: source.shown.clone(), detail });
        }
        let place = Place::of(&self.cache.folder(), source);
        blocking(move || {
            let found = fs::metadata(&place.file).map_or(0, |metadata| metadata.len());
            if found < size {
                files::check_space(&place.file, size - found)?;
            }
            Ok(found)
        })
        .await
    }

    /// Adds bytes to the upload.
    pub(in super::super) async fn append_upload(
        &self,
        source: &ImageSource,
        offset: u64,
        bytes: Vec<u8>,
    ) -> Result<()> {
        check_digest(&source.digest)?;
        let place = Place::of(&self.cache.folder(), source);
        blocking(move || append(&place, offset, &bytes)).await
    }
}

fn append(place: &Place, offset: u64, bytes: &[u8]) -> Result<()> {
    let refused = |detail: String| SystemError::Upload { detail };
    let mut options = OpenOptions::new();
    // Not created again in the middle: it was removed together with its Image.
    options.write(true).create(offset == 0).truncate(false).mode(0o600);
    let file = match options.open(&place.file) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(refused("its first bytes are gone".to_owned()));
        }
        Err(error) => return Err(failed("open", &place.file)(error)),
    };
    match file.try_lock() {
        Ok(()) if is_named(&file, &place.file) => {}
        Ok(()) | Err(TryLockError::WouldBlock) => {
            return Err(refused("the host works on its bytes".to_owned()));
        }
        Err(TryLockError::Error(error)) => return Err(failed("lock", &place.file)(error)),
    }
    let found = file.metadata().map_err(failed("read", &place.file))?.len();
    if found != offset {
        return Err(refused(format!("the host has {found} bytes, and these follow {offset}")));
    }
    write(&file, offset, bytes).map_err(failed("write", &place.file))
}

/// Writes the bytes at the end of the file, with holes for zeros.
fn write(file: &File, offset: u64, bytes: &[u8]) -> io::Result<()> {
    let mut at = offset;
    for block in bytes.chunks(HOLE) {
        let end = at + block.len() as u64;
        if block.iter().all(|byte| *byte == 0) {
            file.set_len(end)?;
        } else {
            file.write_all_at(block, at)?;
        }
        at = end;
    }
    Ok(())
}
