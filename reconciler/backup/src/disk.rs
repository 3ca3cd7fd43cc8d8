//! The disks that backups are made of and restored to, as their callers implement them.

use async_trait::async_trait;

use crate::error::DiskError;

/// A part of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// In bytes.
    pub length: u64,
    /// The content is that of the parent: no write since then.
    pub is_unchanged: bool,
    /// The content is zeros.
    pub is_zero: bool,
}

/// A disk to back up. Its content must not change during the backup.
#[async_trait]
pub trait Source: Send {
    /// Returns the size in bytes.
    fn size(&self) -> u64;

    /// Returns the extents of a part of the disk, in order, without gaps, from `offset` on and `length` bytes in all. `false` where
    /// nothing is known. Called for 64 GiB at a time.
    async fn extents(&mut self, offset: u64, length: u64) -> Result<Vec<Extent>, DiskError>;

    /// Fills the buffer with the data at this offset.
    async fn read_at(&mut self, offset: u64, into: &mut [u8]) -> Result<(), DiskError>;
}

/// A disk to restore to. Its former content is overwritten.
#[async_trait]
pub trait Sink: Send {
    /// Returns the size in bytes.
    fn size(&self) -> u64;

    async fn write_at(&mut self, offset: u64, data: &[u8]) -> Result<(), DiskError>;

    /// Makes this part of the disk zeros. The length may be the whole disk's.
    async fn write_zeroes(&mut self, offset: u64, length: u64) -> Result<(), DiskError>;

    /// Returns once all writes are on the medium.
    async fn flush(&mut self) -> Result<(), DiskError>;
}

/// How far an operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The part of the disk that is done, in bytes.
    pub done: u64,
    /// The size of the disk in bytes.
    pub total: u64,
}
