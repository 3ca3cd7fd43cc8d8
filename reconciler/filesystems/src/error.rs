//! The errors of this crate.

use std::io;

/// The result of an operation.
pub(crate) type Result<T, E = FsError> = std::result::Result<T, E>;

/// Why a file could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FsError {
    /// The disk could not be read, or ends too early.
    #[error("cannot read the disk")]
    Read {
        /// The error of the disk.
        source: io::Error,
    },
    /// A table is not as the formats have it.
    #[error("the {what} is damaged: {detail}")]
    Damaged {
        /// The table or the file system.
        what: &'static str,
        /// For people.
        detail: String,
    },
    /// There is no such partition.
    #[error("the disk has no partition {number}: it has {there}")]
    NoPartition {
        /// As given.
        number: u32,
        /// The partitions that there are, for people.
        there: String,
    },
    /// There is no such logical volume.
    #[error("the disk has no logical volume {name}: it has {there}")]
    NoVolume {
        /// As given, for people.
        name: String,
        /// The partitions and volumes that there are, for people.
        there: String,
    },
    /// The partition has logical volumes.
    #[error("{place} is a physical volume of LVM, choose one of its logical volumes: the disk has {there}")]
    PhysicalVolume {
        /// The partition.
        place: String,
        /// The partitions and volumes that there are, for people.
        there: String,
    },
    /// The partition has no file system that is read.
    #[error("{place} has {content}: only ext2, ext3, ext4, XFS, NTFS and FAT are read")]
    Unsupported {
        /// The partition.
        place: String,
        /// For people.
        content: String,
    },
    /// The file system is of a kind that is read, and has options that are not.
    #[error("the {what} cannot be read: {detail}")]
    Features {
        /// The file system.
        what: &'static str,
        /// For people.
        detail: String,
    },
    /// No partition has a file system that is read.
    #[error("nothing on the disk can be read, only ext2, ext3, ext4, XFS, NTFS and FAT are; it has {there}")]
    NothingToRead {
        /// For people.
        there: String,
    },
    /// There is no such file.
    #[error("there is no {path}")]
    NotFound {
        /// The path, for people.
        path: String,
    },
    /// A part of the path is no folder.
    #[error("{path} is not a folder")]
    NotAFolder {
        /// The path, for people.
        path: String,
    },
    /// It has no content.
    #[error("{path} is not a file")]
    NotAFile {
        /// The path, for people.
        path: String,
    },
    /// It has no target.
    #[error("{path} is not a symbolic link")]
    NotALink {
        /// The path, for people.
        path: String,
    },
    /// The links of a path do not end.
    #[error("{path} leads through more than {most} links, or is longer than {longest} bytes")]
    TooManyLinks {
        /// The path, for people.
        path: String,
        /// The limit of links.
        most: usize,
        /// The limit of the length.
        longest: usize,
    },
    /// The content is encrypted within the file system.
    #[error("{path} is encrypted by its guest")]
    Encrypted {
        /// The path, for people.
        path: String,
    },
    /// The content is in a form that is not read.
    #[error("{path} cannot be read: {detail}")]
    Content {
        /// The path, for people.
        path: String,
        /// For people.
        detail: &'static str,
    },
    /// The tables lead nowhere.
    #[error("the file system is damaged: its tables lead nowhere")]
    Endless,
}
