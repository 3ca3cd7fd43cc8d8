//! Reads files out of the data of a disk: partition tables, logical volumes, and the file systems ext2, ext3, ext4, XFS, NTFS and FAT.
//!
//! ```text
//!  Tree         a file system with its paths: nodes, names, links, content
//!    │
//!    ├── ext, xfs, ntfs, fat    the file systems: by code of this crate, FAT by the crate fatfs
//!    │     lookup, content      paths by numbers of nodes; files as pieces
//!    ├── detect         which file system a partition has, also those that are not read
//!    ├── lvm            logical volumes in partitions
//!    ├── partitions     GPT and MBR
//!    ▼
//!  Disk         the trait of the data, which callers implement; Window: a part of it, and the guard against reads without end
//! ```
//!
//! Must not know berth's kinds, a network or a runtime. Nothing is written, neither to a disk nor to a file.
//!
//! *Assumptions*: the data is hostile. Callers use this crate in a process that has no more rights than the person at it, and that may end:
//! damage that the crate fatfs does not expect makes it panic.
//!
//! *Guarantees*: reads of a disk that lead nowhere end, by [`FsError::Endless`]; no link leads out of its file system; a name is never empty,
//! `.`, `..`, nor has it a slash or a zero byte; no memory is taken for a number in the data before it is compared with a limit.

mod checksum;
mod content;
mod detect;
mod disk;
mod error;
mod ext;
mod fat;
mod lookup;
mod lvm;
mod ntfs;
mod partitions;
#[cfg(test)]
mod tests;
mod tree;
mod volume;
mod xfs;

pub use detect::{Content, FileSystem, contents};
pub use disk::Disk;
pub use error::FsError;
pub use tree::{Choice, Tree, open};
pub use volume::{Node, NodeKind, is_plain, shown};
