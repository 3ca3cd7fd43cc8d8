//! The data of backups and snapshots, read in parts.

use async_trait::async_trait;
use berth_backup::{BackupReader, Source};

use super::DECLARATION;
use super::disks::SnapshotDisk;
use super::repositories::failed;
use crate::{DiskReader, RepositoryAccess, Result, SystemError};

/// The data of a backup.
pub(super) struct BackupData {
    /// For the explanation of errors.
    access: RepositoryAccess,
    reader: BackupReader,
}

impl BackupData {
    pub(super) fn new(access: RepositoryAccess, reader: BackupReader) -> Self {
        Self { access, reader }
    }
}

#[async_trait]
impl DiskReader for BackupData {
    fn size(&self) -> u64 {
        self.reader.size()
    }

    async fn read_at(&mut self, offset: u64, into: &mut [u8]) -> Result<()> {
        let read = self.reader.read_at(offset, into).await;
        read.map_err(|error| failed(&self.access, error))
    }

    fn declaration(&self) -> Option<String> {
        self.reader.facts().get(DECLARATION).map(ToString::to_string)
    }
}

/// The data of a snapshot, through its `qemu-nbd`, which ends with it.
pub(super) struct SnapshotData(pub(super) SnapshotDisk);

#[async_trait]
impl DiskReader for SnapshotData {
    fn size(&self) -> u64 {
        Source::size(&self.0)
    }

    async fn read_at(&mut self, offset: u64, into: &mut [u8]) -> Result<()> {
        let read = Source::read_at(&mut self.0, offset, into).await;
        read.map_err(|error| SystemError::Program { program: "qemu-nbd", detail: error.to_string() })
    }
}
