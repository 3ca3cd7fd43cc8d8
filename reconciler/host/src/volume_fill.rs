//! The data of a new volume.

use std::path::PathBuf;

/// The data that a new volume has from the beginning, in a file of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fill {
    /// A copy of the cached image that the volume names as its base. It does not depend on the image afterwards.
    Image,
    /// An empty file system.
    Filesystem(NewFilesystem),
    /// A copy of the data of a snapshot in another pool of this host. It does not depend on the snapshot afterwards.
    Snapshot { pool: String, id: String },
    /// A copy of the data of a raw file of this host, which stays.
    RawFile(PathBuf),
}

/// A file system to make. It takes the whole disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewFilesystem {
    pub kind: FilesystemKind,
    pub label: Option<String>,
}

/// The file systems that a host makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilesystemKind {
    Ext4,
    Xfs,
}

/// The temporary disk of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewScratch {
    /// In bytes.
    pub size: u64,
    /// None: it is empty.
    pub filesystem: Option<NewFilesystem>,
}
