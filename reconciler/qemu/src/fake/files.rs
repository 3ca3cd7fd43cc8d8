//! The image files below fake machines.

use std::fmt;
use std::fs::OpenOptions;
use std::io;
use std::path::Path;

use crate::machine::Format;
use crate::qcow2;

/// The operations of a fake machine on image files. [`LocalFiles`] are real files; a simulation may provide its own.
pub trait ImageFiles: Send + Sync + fmt::Debug {
    /// Returns the size that a guest would see.
    fn size(&self, path: &Path, format: Format) -> io::Result<u64>;
    /// Grows the image.
    fn grow(&self, path: &Path, format: Format, bytes: u64) -> io::Result<()>;
    /// Creates or overwrites a file, which then has this many bytes.
    fn create(&self, path: &Path, bytes: u64) -> io::Result<()>;
}

/// Real files, read and written as QEMU does.
#[derive(Clone, Copy, Debug, Default)]
pub struct LocalFiles;

impl ImageFiles for LocalFiles {
    fn size(&self, path: &Path, format: Format) -> io::Result<u64> {
        let mut file = std::fs::File::open(path)?;
        match format {
            Format::Raw | Format::Iso | Format::Luks => Ok(file.metadata()?.len()),
            Format::Qcow2 | Format::EncryptedQcow2 => {
                qcow2::virtual_size(&mut file).map_err(io::Error::other)
            }
        }
    }

    fn grow(&self, path: &Path, format: Format, bytes: u64) -> io::Result<()> {
        match format {
            Format::Raw | Format::Iso | Format::Luks => {
                OpenOptions::new().write(true).open(path)?.set_len(bytes)
            }
            Format::Qcow2 | Format::EncryptedQcow2 => qcow2::grow(path, bytes).map_err(io::Error::other),
        }
    }

    fn create(&self, path: &Path, bytes: u64) -> io::Result<()> {
        std::fs::File::create(path)?.set_len(bytes)
    }
}
