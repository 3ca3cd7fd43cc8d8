//! Backups of snapshots, and volumes that are made from them.

use async_trait::async_trait;

use super::LinuxSystem;
use crate::{
    BackupFacts, BackupId, Backups, NewBackup, NewVolume, Progress, RepositoryAccess, RepositoryPlace,
    RepositoryProblem, Result, SystemError, VolumeFacts,
};

impl LinuxSystem {
    async fn open_repository(&self, access: &RepositoryAccess) -> Result<()> {
        if let RepositoryPlace::Folder { name, .. } = &access.place {
            self.backup_folders.path(name).await?;
        }
        Err(SystemError::Repository {
            repository: access.shown.clone(),
            problem: RepositoryProblem::Unreachable,
            detail: "this version of berth opens no repositories".to_owned(),
        })
    }
}

#[async_trait]
impl Backups for LinuxSystem {
    async fn back_up(
        &self,
        repository: &RepositoryAccess,
        _: &NewBackup,
        _: Progress<'_>,
    ) -> Result<BackupFacts> {
        Err(self.open_repository(repository).await.expect_err("none is opened"))
    }

    async fn backup(&self, repository: &RepositoryAccess, _: &BackupId) -> Result<BackupFacts> {
        Err(self.open_repository(repository).await.expect_err("none is opened"))
    }

    async fn create_from_backup(
        &self,
        repository: &RepositoryAccess,
        _: &BackupId,
        _: &NewVolume,
        _: Progress<'_>,
    ) -> Result<VolumeFacts> {
        Err(self.open_repository(repository).await.expect_err("none is opened"))
    }

    async fn delete_backup(&self, repository: &RepositoryAccess, _: &BackupId) -> Result<()> {
        self.open_repository(repository).await
    }
}
