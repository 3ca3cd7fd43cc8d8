//! Disk image files: inspecting foreign files ([`inspect`]), and creating and growing berth's own ([`create`],
//! [`create_overlay`], [`grow`]).
//!
//! Reads and writes headers only: takes microseconds, no process, no guest data. The format is declared with the file,
//! never probed: a guest could write a qcow2 header into a raw disk and have the next boot open any file of the host.
//! Source: QEMU's `docs/interop/qcow2.txt`.

mod below;
mod create;
mod grow;
mod header;
mod inspect;
mod lock;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use crate::machine::Format;
pub use below::{name_below, rename_below};
pub use create::{create, create_overlay, rename_new};
pub use grow::{grow, grow_below};
pub use inspect::{
    cluster_size, has_internal_snapshots, inspect, inspect_volume, is_unwritten, virtual_size,
};
pub use lock::ImageLock;

/// The maximum accepted virtual size: a larger one is a mistake or an attack.
pub const MAX_VIRTUAL_SIZE: u64 = 64 << 40;
/// The sector size of disks, in bytes.
pub const SECTOR: u64 = 512;

/// The properties of a well-formed, self-contained image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageInfo {
    pub format: Format,
    /// The size that a guest sees, in bytes.
    pub virtual_size: u64,
    /// Size of the file in bytes.
    pub file_size: u64,
}

/// Why a file is not used as a disk image.
#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    #[error("cannot read the image")]
    Read(#[from] std::io::Error),
    #[error("the image is empty")]
    Empty,
    #[error("the image is declared as {declared} and is {found}")]
    WrongFormat { declared: &'static str, found: &'static str },
    #[error("the image has {size} bytes, which is no multiple of 512: it is cut off, or not a raw image")]
    NotSectors { size: u64 },
    #[error(
        "the image needs a second file, {name:?}: images have to be self-contained (qemu-img convert makes them so)"
    )]
    BackingFile { name: String },
    #[error(
        "the image keeps its data in another file: images have to be self-contained (qemu-img convert makes them so)"
    )]
    ExternalData,
    #[error("the image is encrypted")]
    Encrypted,
    #[error("the image claims {size} bytes: larger than the {MAX_VIRTUAL_SIZE} supported")]
    TooLarge { size: u64 },
    #[error("the image was not closed properly or is marked corrupt: run qemu-img check -r all on it")]
    Unclean,
    #[error("the image uses qcow2 features this version does not know ({bits:#x})")]
    UnknownFeatures { bits: u64 },
    #[error("the image's header is damaged: {detail}")]
    Malformed { detail: &'static str },
    #[error("the image is cut off: {what} lies behind its end")]
    Truncated { what: &'static str },
}

/// Why an image could not be created or grown.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    #[error("cannot write {}", path.display())]
    Write { path: PathBuf, source: std::io::Error },
    #[error("{size} bytes is no disk size: a multiple of 512, at least 512, at most {MAX_VIRTUAL_SIZE}")]
    Size { size: u64 },
    #[error("a disk of {size} bytes cannot hold its image of {base}")]
    SmallerThanBase { size: u64, base: u64 },
    #[error("the backing file's name is longer than the 1023 bytes qcow2 can keep")]
    BackingName,
    #[error("{} cannot be used", path.display())]
    Inspect { path: PathBuf, source: InspectError },
    #[error("{} has {from} bytes and cannot shrink to {to}", path.display())]
    Shrink { path: PathBuf, from: u64, to: u64 },
    #[error("{} is open in a running QEMU: grow it there", path.display())]
    InUse { path: PathBuf },
    /// The file is unchanged.
    #[error("{} cannot be grown in place ({why}): use qemu-img resize", path.display())]
    NotInPlace { path: PathBuf, why: &'static str },
}
