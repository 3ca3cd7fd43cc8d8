//! Backups of snapshots, and volumes that are made from them.
//!
//! ```text
//!  snapshot ─▶ … ─▶ image  ──qemu-nbd (reads)──▶ socket ──▶ repository
//!  repository ──▶ socket ──qemu-nbd (writes)──▶ partial file ──renamed──▶ volume
//!  snapshot in Ceph ◀──reads or writes── qemu-nbd, in the same place ──▶ new image in Ceph
//! ```
//!
//! The headers of a snapshot's files are written by the QEMUs of guests. `qemu-nbd` therefore gets the whole chain by name, follows no
//! name in a header, and can open no other file.

mod disks;
mod listing;
mod readers;
mod repositories;
#[cfg(test)]
mod tests;

use async_trait::async_trait;
use berth_backup::{BackupId as StoredId, DiskId, Repository, VerifyOptions};
use berth_qemu::machine::{Backing, DiskKey};
use serde_json::{Map, Value};

use super::LinuxSystem;
use super::qemu_img::paths;
use super::rbd::{self, Changes, RbdPool};
use super::volumes::{Begun, LinuxVolumes};
use crate::keyring::Keyring;
use crate::{
    BackupFacts, BackupId, BackupParent, BackupToVerify, Backups, DiskReader, MAX_DECLARATION, NewBackup,
    NewVolume, Progress, RepositoryAccess, Result, SystemError, Taken, VerifiedBackup, VolumeFacts,
};
use disks::{ImageDisk, Parent, SnapshotDisk, VolumeDisk};
pub use listing::{EntryFacts, ObjectStore, RepositoryEntry, RepositoryReader};
use readers::{BackupData, SnapshotData};
use repositories::failed;

/// In the facts of a backup: whether the guest's file systems were frozen, the backup whose unchanged data was not read again, and the
/// declaration of the VM that has the disk.
const FROZEN: &str = "frozen";
const PARENT: &str = "parent";
const DECLARATION: &str = "declaration";

/// A backup in an open repository.
struct Stored<'a> {
    access: &'a RepositoryAccess,
    repository: Repository,
    disk: DiskId,
    backup: StoredId,
}

impl LinuxSystem {
    /// Returns None if there is no repository, and none was opened before.
    async fn stored<'a>(
        &self,
        access: &'a RepositoryAccess,
        id: &BackupId,
        makes: bool,
    ) -> Result<Option<Stored<'a>>> {
        let disk = DiskId::new(&id.disk).map_err(|error| failed(access, error))?;
        let backup = StoredId::new(&id.backup).map_err(|error| failed(access, error))?;
        let repository = self.open_repository(access, makes).await?;
        Ok(repository.map(|repository| Stored { access, repository, disk, backup }))
    }

    async fn write_backup(
        &self,
        stored: &Stored<'_>,
        new: &NewBackup,
        progress: Progress<'_>,
    ) -> Result<BackupFacts> {
        match stored.facts().await {
            Ok(Some(facts)) => return Ok(facts),
            Ok(None) => {}
            // A damaged one is made anew.
            Err(error @ SystemError::BackupLost { .. }) => {
                tracing::warn!(error = %error.chain(), "a backup that is there is damaged: it is made again");
            }
            Err(error) => return Err(error),
        }
        let OpenSnapshot { taken, mut disk, parent } = match self.rbd.get(&new.pool) {
            Some(rbd) => open_in_ceph(rbd, self.volumes.keys(), stored, new).await?,
            None => {
                let pool = self.present_pool(&new.pool, &new.snapshot).await?;
                self.open_files(stored, &NewBackup { pool, ..new.clone() }).await?
            }
        };
        let mut facts = Map::new();
        facts.insert(FROZEN.to_owned(), taken.frozen.into());
        if let Some(parent) = &parent {
            facts.insert(PARENT.to_owned(), parent.as_str().into());
        }
        if let Some(declaration) = new.declaration.as_deref().and_then(declared) {
            facts.insert(DECLARATION.to_owned(), declaration);
        }
        let request = berth_backup::NewBackup {
            disk: &stored.disk,
            backup: &stored.backup,
            parent: parent.as_ref(),
            time: taken.at,
            facts: &facts,
        };
        let done = |now: berth_backup::Progress| progress(now.done, Some(now.total));
        let summary = stored.repository.back_up(request, &mut disk, done).await;
        let summary = summary.map_err(|error| failed(stored.access, error))?;
        disk.close().await;
        let written = stored.facts().await?.ok_or_else(|| stored.lost("it is gone after it was written"))?;
        let (read_bytes, stored_bytes) = (Some(summary.read_bytes), Some(summary.stored_bytes));
        Ok(BackupFacts { read_bytes, stored_bytes, ..written })
    }

    async fn open_files(&self, stored: &Stored<'_>, new: &NewBackup) -> Result<OpenSnapshot> {
        let (pool, snapshot) = (new.pool.clone(), new.snapshot.clone());
        let (taken, chain, key) = self
            .on_pool(&new.pool, move |volumes| {
                let lost = || SystemError::SnapshotLost { id: snapshot.clone() };
                let taken =
                    volumes.snapshot(&pool, &snapshot)?.and_then(|facts| facts.taken).ok_or_else(lost)?;
                let key = volumes.key_of_snapshot(&pool, &snapshot)?;
                Ok((taken, volumes.chain_of_snapshot(&pool, &snapshot)?, key))
            })
            .await?;
        let (parent, below) = self.parent(stored, new, &chain).await?.unzip();
        let disk = SnapshotDisk::open(&self.layout, self.tools_user, &new.pool, (chain, key), below).await?;
        Ok(OpenSnapshot { taken, disk, parent })
    }

    /// Returns the first of the parents that is in the repository and whose snapshot is below this one.
    async fn parent(
        &self,
        stored: &Stored<'_>,
        new: &NewBackup,
        chain: &Backing,
    ) -> Result<Option<(StoredId, Parent)>> {
        let files = paths(chain);
        for BackupParent { backup, snapshot } in &new.parents {
            let file = self.layout.snapshots(&new.pool).join(format!("{snapshot}.qcow2"));
            let place = files.iter().position(|below| *below == file).filter(|place| *place > 0);
            let (Some(place), Ok(id)) = (place, StoredId::new(backup)) else { continue };
            if let Some(size) = stored.size_of_parent(&id).await? {
                return Ok(u32::try_from(place + 1).ok().map(|depth| (id, Parent { depth, size })));
            }
        }
        Ok(None)
    }
}

/// A snapshot to back up.
struct OpenSnapshot {
    taken: Taken,
    disk: SnapshotDisk,
    /// The backup whose unchanged data is not read again.
    parent: Option<StoredId>,
}

async fn open_in_ceph(
    rbd: &RbdPool,
    keys: &Keyring,
    stored: &Stored<'_>,
    new: &NewBackup,
) -> Result<OpenSnapshot> {
    let (facts, node) = rbd.snapshot_node(&new.snapshot).await?;
    let key = keys.key_of_snapshot(&facts.id, facts.owner.is_some(), facts.encryption.as_deref())?;
    let taken = facts.taken.ok_or_else(|| SystemError::SnapshotLost { id: new.snapshot.clone() })?;
    let (parent, changes) = parent_in_ceph(rbd, stored, new).await?.unzip();
    let written = rbd.written(&new.snapshot).await?;
    let disk = SnapshotDisk::open_in_ceph(rbd, (node, key), changes, written).await?;
    Ok(OpenSnapshot { taken, disk, parent })
}

/// Returns the first of the parents that is in the repository and whose snapshot is an earlier one of the same volume, and what was written
/// since.
async fn parent_in_ceph(
    rbd: &RbdPool,
    stored: &Stored<'_>,
    new: &NewBackup,
) -> Result<Option<(StoredId, Changes)>> {
    for BackupParent { backup, snapshot } in &new.parents {
        let Ok(id) = StoredId::new(backup) else { continue };
        let Some(changes) = rbd.changes(snapshot, &new.snapshot).await? else { continue };
        if stored.size_of_parent(&id).await? == Some(changes.size()) {
            return Ok(Some((id, changes)));
        }
    }
    Ok(None)
}

impl Stored<'_> {
    fn lost(&self, detail: &str) -> SystemError {
        SystemError::BackupLost {
            backup: format!("{}/{}", self.disk, self.backup),
            repository: self.access.shown.clone(),
            detail: detail.to_owned(),
        }
    }

    async fn facts(&self) -> Result<Option<BackupFacts>> {
        let found = self.repository.facts(&self.disk, &self.backup).await;
        let found = found.map_err(|error| failed(self.access, error))?;
        Ok(found.map(|found| {
            let frozen = found.facts.get(FROZEN).and_then(Value::as_bool);
            BackupFacts {
                id: BackupId { disk: self.disk.to_string(), backup: self.backup.to_string() },
                repository: self.repository.id().to_string(),
                size: found.summary.size,
                taken: frozen.map(|frozen| Taken { at: found.time, frozen, memory: false }),
                read_bytes: None,
                stored_bytes: None,
                parent: found.facts.get(PARENT).and_then(Value::as_str).map(str::to_owned),
            }
        }))
    }

    /// Returns the size of the disk at an earlier backup. None: there is none, or it is damaged, which holds up no later backup.
    async fn size_of_parent(&self, id: &StoredId) -> Result<Option<u64>> {
        match self.repository.facts(&self.disk, id).await {
            Err(berth_backup::Error::Damaged { place, detail }) => {
                tracing::warn!(place, detail, "an earlier backup is damaged: it is the parent of no other");
                Ok(None)
            }
            found => Ok(found.map_err(|error| failed(self.access, error))?.map(|found| found.summary.size)),
        }
    }

    async fn existing(&self) -> Result<BackupFacts> {
        self.facts().await?.ok_or_else(|| self.lost("there is no such backup"))
    }
}

/// Makes a volume in Ceph with the data of a backup of this size.
async fn restore_in_ceph(
    rbd: &RbdPool,
    stored: &Stored<'_>,
    (new, size): (&NewVolume, u64),
    key: Option<DiskKey>,
    progress: Progress<'_>,
) -> Result<VolumeFacts> {
    let blank = match rbd.begin_restored(new, size, key.as_ref()).await? {
        rbd::Begun::There(facts) => return Ok(*facts),
        rbd::Begun::Blank(blank) => blank,
    };
    let mut disk = ImageDisk::open(rbd, blank.node(), key).await?;
    let done = |now: berth_backup::Progress| progress(now.done, Some(now.total));
    let written = stored.repository.restore(&stored.disk, &stored.backup, &mut disk, done).await;
    written.map_err(|error| failed(stored.access, error))?;
    disk.close().await?;
    rbd.finish_restored(*blank).await
}

/// Returns the value of a declaration: as a text in JSON it would be longer. One that is too long is left out, as the backup would fail with it.
fn declared(text: &str) -> Option<Value> {
    let value = serde_json::from_str::<Value>(text).ok().filter(|_| text.len() <= MAX_DECLARATION);
    if value.is_none() {
        tracing::warn!(
            bytes = text.len(),
            "a declaration is no JSON, or too long to be stored with a backup"
        );
    }
    value
}

fn no_repository(access: &RepositoryAccess, id: &BackupId) -> SystemError {
    SystemError::BackupLost {
        backup: format!("{}/{}", id.disk, id.backup),
        repository: access.shown.clone(),
        detail: "there is no repository".to_owned(),
    }
}

#[async_trait]
impl Backups for LinuxSystem {
    async fn back_up(
        &self,
        repository: &RepositoryAccess,
        new: &NewBackup,
        progress: Progress<'_>,
    ) -> Result<BackupFacts> {
        let stored = self.stored(repository, &new.id, true).await?;
        let stored = stored.ok_or_else(|| no_repository(repository, &new.id))?;
        self.write_backup(&stored, new, progress).await
    }

    async fn backup(&self, repository: &RepositoryAccess, id: &BackupId) -> Result<BackupFacts> {
        let stored = self.stored(repository, id, false).await?;
        stored.ok_or_else(|| no_repository(repository, id))?.existing().await
    }

    async fn create_from_backup(
        &self,
        repository: &RepositoryAccess,
        backup: &BackupId,
        volume: &NewVolume,
        progress: Progress<'_>,
    ) -> Result<VolumeFacts> {
        let stored = self.stored(repository, backup, false).await?;
        let stored = stored.ok_or_else(|| no_repository(repository, backup))?;
        let size = stored.existing().await?.size;
        let key = self.volumes.keys().key_of(&volume.id, volume.encryption.as_deref());
        if let Some(rbd) = self.rbd.get(&volume.pool) {
            return Box::pin(restore_in_ceph(rbd, &stored, (volume, size), key?, progress)).await;
        }
        let (new, user) = (volume.clone(), self.tools_user);
        let begun = self.on_pool(&volume.pool, move |v| v.begin_restored(&new, size, user.as_ref())).await?;
        let (partial, making) = match begun {
            Begun::There(facts) => return Ok(*facts),
            Begun::Partial(partial, making) => (partial, making),
        };
        let mut disk = VolumeDisk::open(&self.layout, self.tools_user, volume, partial, key?).await?;
        let done = |now: berth_backup::Progress| progress(now.done, Some(now.total));
        let written = stored.repository.restore(&stored.disk, &stored.backup, &mut disk, done).await;
        written.map_err(|error| failed(repository, error))?;
        let partial = disk.close().await?;
        let new = volume.clone();
        let finish = move |v: &LinuxVolumes| {
            let (_making, partial) = (making, partial);
            v.finish_restored(&new, partial.path())
        };
        self.on_pool(&volume.pool, finish).await
    }

    async fn verify_backup(
        &self,
        repository: &RepositoryAccess,
        wanted: &BackupToVerify,
        progress: Progress<'_>,
    ) -> Result<VerifiedBackup> {
        let Some(stored) = self.stored(repository, &wanted.id, false).await? else {
            let named = vec!["the repository: there is none".to_owned()];
            return Ok(VerifiedBackup { damaged: 1, named, ..VerifiedBackup::default() });
        };
        let base = wanted.base.as_ref().and_then(|base| StoredId::new(base).ok());
        let options = VerifyOptions { base: base.as_ref(), bytes_per_second: Some(wanted.bytes_per_second) };
        let done = |now: berth_backup::Progress| progress(now.done, Some(now.total));
        let read = stored.repository.verify(&stored.disk, &stored.backup, options, done).await;
        let read = read.map_err(|error| failed(repository, error))?;
        let berth_backup::Verification { has_base, read_bytes, damaged, named, blocks: _ } = read;
        let base = base.filter(|_| has_base).map(|base| base.to_string());
        Ok(VerifiedBackup { base, read_bytes, damaged, named })
    }

    async fn open_backup(&self, repository: &RepositoryAccess, id: &BackupId) -> Result<Box<dyn DiskReader>> {
        let stored = self.stored(repository, id, false).await?;
        let stored = stored.ok_or_else(|| no_repository(repository, id))?;
        let opened = stored.repository.open_backup(&stored.disk, &stored.backup).await;
        let reader = opened.map_err(|error| failed(repository, error))?;
        Ok(Box::new(BackupData::new(repository.clone(), reader)))
    }

    async fn open_snapshot(&self, pool: &str, snapshot: &str) -> Result<Box<dyn DiskReader>> {
        if let Some(rbd) = self.rbd.get(pool) {
            let (facts, node) = rbd.snapshot_node(snapshot).await?;
            let key = self.volumes.keys().key_of(snapshot, facts.encryption.as_deref())?;
            return Ok(Box::new(SnapshotData(
                SnapshotDisk::open_in_ceph(rbd, (node, key), None, None).await?,
            )));
        }
        let pool = self.present_pool(pool, snapshot).await?;
        let (of_pool, id) = (pool.clone(), snapshot.to_owned());
        let opened = self
            .on_pool(&pool, move |volumes| {
                Ok((volumes.chain_of_snapshot(&of_pool, &id)?, volumes.key_of_snapshot(&of_pool, &id)?))
            })
            .await?;
        let disk = SnapshotDisk::open(&self.layout, self.tools_user, &pool, opened, None).await?;
        Ok(Box::new(SnapshotData(disk)))
    }

    async fn delete_backup(&self, repository: &RepositoryAccess, id: &BackupId) -> Result<()> {
        let Some(stored) = self.stored(repository, id, false).await? else { return Ok(()) };
        let deleted = stored.repository.delete(&stored.disk, &stored.backup).await;
        deleted.map_err(|error| failed(repository, error))
    }
}
