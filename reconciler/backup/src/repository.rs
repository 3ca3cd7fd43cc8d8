//! Operations on a repository.

mod back_up;
mod damage;
mod delete;
mod parts;
mod read;
mod verify;
mod writers;

use std::num::NonZeroU32;
use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _};
use jiff::Timestamp;
use secrecy::SecretString;
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::block::BlockId;
use crate::error::{Error, Result};
use crate::ids::{BackupId, DiskId};
use crate::keys::{Failed, Keys};
use crate::location::Location;
use crate::manifest::{BackupFacts, MAX_MANIFEST, Manifest};
use crate::objects::{self, Objects};
use crate::repository_file::{self, Identity};
use crate::sealed;
pub use parts::BackupReader;
pub use verify::{Verification, VerifyOptions};

/// The maximum number of blocks in memory, and of requests at a time, of one operation.
const CONCURRENCY: usize = 4;
/// The maximum number of disks in a repository.
const MAX_DISKS: usize = 10_000;
/// The maximum number of backups of a disk, and of all that are listed.
const MAX_BACKUPS: usize = 10_000;
/// The maximum number of blocks of one disk: 64 TiB of different data.
const MAX_BLOCKS: usize = 16 << 20;

/// A repository of backups.
///
/// *Assumptions*: one process writes and deletes the backups of a disk; in it, any number of repositories may be open. Other
/// processes only read them, and note blocks that they find damaged. A disk that moves to another host is written there once its former host has stopped.
#[derive(Clone, Debug)]
pub struct Repository {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    identity: Identity,
    objects: Arc<dyn Objects>,
    keys: Arc<Keys>,
}

/// A backup to make.
#[derive(Clone, Copy, Debug)]
pub struct NewBackup<'a> {
    pub disk: &'a DiskId,
    pub backup: &'a BackupId,
    /// The backup that unchanged extents are taken from. If there is none with this id, the whole disk is read.
    pub parent: Option<&'a BackupId>,
    /// The time of the disk's content.
    pub time: Timestamp,
    /// Anything else to store with the backup: at most [`MAX_FACTS`](crate::MAX_FACTS).
    pub facts: &'a Map<String, Value>,
}

/// A backup in the list of all.
#[derive(Debug)]
pub struct ListedBackup {
    pub disk: DiskId,
    pub backup: BackupId,
    /// The error is [`Error::Damaged`].
    pub facts: Result<BackupFacts>,
}

impl Repository {
    /// Opens a repository. Takes a fraction of a second of processor time, for the password.
    ///
    /// With `create`, makes it if there is none: only in an empty place, and never over another one. If several do so at the
    /// same time, all open the same repository. Pass `false` for a repository that was opened before: an empty mount point of a folder
    /// that is not mounted is then an error.
    ///
    /// *Errors*: [`Error::NoRepository`], [`Error::NotEmpty`], [`Error::Password`], [`Error::Version`], [`Error::Damaged`] and those of
    /// the store.
    pub async fn open(location: &Location, password: &SecretString, create: bool) -> Result<Self> {
        let objects = objects::at(location)?;
        Self::open_in(objects, password, create.then_some(repository_file::ITERATIONS)).await
    }

    /// Opens a repository in a store. `create`: the iterations for a new one.
    pub(crate) async fn open_in(
        objects: Arc<dyn Objects>,
        password: &SecretString,
        create: Option<NonZeroU32>,
    ) -> Result<Self> {
        let place = objects.place(repository_file::NAME);
        let mut file = objects.get(repository_file::NAME, repository_file::MAX_LENGTH).await?;
        if let (None, Some(iterations)) = (&file, create) {
            let found = objects.first().await?.filter(|name| name != repository_file::NAME);
            if let Some(found) = found {
                return Err(Error::NotEmpty { place: objects.place(""), found });
            }
            let (password, place) = (password.clone(), place.clone());
            let new = blocking(move || repository_file::create(&password, iterations, &place)).await?;
            objects.create(repository_file::NAME, Bytes::from(new)).await?;
            // Another process may have been first.
            file = objects.get(repository_file::NAME, repository_file::MAX_LENGTH).await?;
        }
        let file = file.ok_or_else(|| Error::NoRepository { place: objects.place("") })?;
        let password = password.clone();
        let opened = blocking(move || repository_file::open(&file, &password, &place)).await?;
        let (identity, keys) = (opened.identity, Arc::new(opened.keys));
        Ok(Self { inner: Arc::new(Inner { identity, objects, keys }) })
    }

    /// Returns the id of the repository, which never changes.
    pub fn id(&self) -> Uuid {
        self.inner.identity.id
    }

    /// Returns the description of a backup, or `None` if there is no complete backup with this id.
    pub async fn facts(&self, disk: &DiskId, backup: &BackupId) -> Result<Option<BackupFacts>> {
        Ok(self.inner.manifest(disk, backup).await?.map(Manifest::into_facts))
    }

    /// Lists all backups of all disks, those of each disk in the order of their ids.
    ///
    /// *Errors*: [`Error::TooMany`] for more than 10,000.
    pub async fn list(&self) -> Result<Vec<ListedBackup>> {
        let mut disks = self.inner.objects.folders("disks", MAX_DISKS).await?;
        disks.sort_unstable();
        let mut found = Vec::new();
        for disk in disks.into_iter().filter_map(|name| DiskId::new(name).ok()) {
            let backups = self.inner.backups(&disk).await?;
            if found.len() + backups.len() > MAX_BACKUPS {
                let place = self.inner.objects.place("");
                return Err(Error::TooMany { place, what: "backups", limit: MAX_BACKUPS });
            }
            let of_disk = &disk;
            let listed = futures::stream::iter(backups).map(async |backup| {
                let facts = match self.facts(of_disk, &backup).await {
                    // It was deleted since.
                    Ok(None) => return Ok(None),
                    Ok(Some(facts)) => Ok(facts),
                    Err(error @ Error::Damaged { .. }) => Err(error),
                    Err(error) => return Err(error),
                };
                Ok(Some(ListedBackup { disk: of_disk.clone(), backup, facts }))
            });
            let listed: Vec<_> = listed.buffered(CONCURRENCY).try_collect().await?;
            found.extend(listed.into_iter().flatten());
        }
        Ok(found)
    }
}

#[cfg(test)]
impl Repository {
    /// The same repository in another store.
    pub(crate) fn in_store(&self, objects: Arc<dyn Objects>) -> Self {
        let (identity, keys) = (self.inner.identity.clone(), Arc::clone(&self.inner.keys));
        Self { inner: Arc::new(Inner { identity, objects, keys }) }
    }

    /// The id of the first index of a backup.
    pub(crate) async fn first_index(&self, disk: &DiskId, backup: &BackupId) -> Option<String> {
        let manifest = self.inner.manifest(disk, backup).await.ok().flatten()?;
        manifest.indexes.first().copied().flatten().map(|id| id.to_string())
    }
}

impl Inner {
    /// Fails if the repository went away, or another one is in its place: nothing may be written to that one, and objects that are
    /// missing in it, or at an empty mount point, are not missing.
    async fn require_same(&self) -> Result<()> {
        let place = self.objects.place(repository_file::NAME);
        let file = self.objects.get(repository_file::NAME, repository_file::MAX_LENGTH).await?;
        let file = file.ok_or_else(|| Error::NoRepository { place: self.objects.place("") })?;
        let found = Identity::of(&file, &place)?;
        match found == self.identity {
            true => Ok(()),
            false => Err(Error::Replaced { place, id: self.identity.id, found: found.id }),
        }
    }

    /// Returns the manifest of a backup, or `None` if there is no complete backup with this id.
    async fn manifest(&self, disk: &DiskId, backup: &BackupId) -> Result<Option<Manifest>> {
        let name = manifest_name(disk, backup);
        let Some(sealed) = self.objects.get(&name, sealed::max_length(MAX_MANIFEST)).await? else {
            return Ok(None);
        };
        let opened = sealed::open(&self.keys, &manifest_binding(disk, backup), sealed, MAX_MANIFEST);
        let manifest = opened.and_then(|json| Manifest::decode(&json));
        manifest.map(Some).map_err(|detail| Error::Damaged { place: self.objects.place(&name), detail })
    }

    /// Returns the ids of the backups of a disk, in order.
    async fn backups(&self, disk: &DiskId) -> Result<Vec<BackupId>> {
        let folder = format!("{}/backups", disk_folder(disk));
        let mut found = Vec::new();
        let mut visit = |name: &str, _| {
            found.extend(BackupId::new(name).ok());
            match found.len() <= MAX_BACKUPS {
                true => Ok(()),
                false => Err(Error::TooMany {
                    place: self.objects.place(&folder),
                    what: "backups",
                    limit: MAX_BACKUPS,
                }),
            }
        };
        self.objects.list(&folder, &mut visit).await?;
        found.sort_unstable();
        Ok(found)
    }

    /// Calls `visit` with the id of each block of a disk and the length of its object.
    async fn blocks(&self, disk: &DiskId, visit: &mut (dyn FnMut(BlockId, u64) + Send)) -> Result<()> {
        let folder = format!("{}/blocks", disk_folder(disk));
        let mut count = 0;
        let mut see = |name: &str, length| {
            let (digits, id) = name.split_once('/').unwrap_or_default();
            let id = BlockId::parse(id).filter(|id| digits == format!("{:02x}", id.0[0]));
            if let Some(id) = id {
                count += 1;
                visit(id, length);
            }
            match count <= MAX_BLOCKS {
                true => Ok(()),
                false => Err(Error::TooMany {
                    place: self.objects.place(&folder),
                    what: "blocks",
                    limit: MAX_BLOCKS,
                }),
            }
        };
        self.objects.list(&folder, &mut see).await
    }

    /// Seals and writes a manifest.
    async fn write_manifest(&self, disk: &DiskId, backup: &BackupId, manifest: &Manifest) -> Result<()> {
        let name = manifest_name(disk, backup);
        let sealed = sealed::seal(&self.keys, &manifest_binding(disk, backup), &manifest.encode())
            .map_err(|Failed| Error::Cryptography { place: self.objects.place(&name) })?;
        self.objects.put(&name, Bytes::from(sealed)).await
    }
}

fn disk_folder(disk: &DiskId) -> String {
    format!("disks/{disk}")
}

fn block_name(disk: &DiskId, id: BlockId) -> String {
    format!("disks/{disk}/blocks/{:02x}/{id}", id.0[0])
}

/// The folder of the notes of a disk's damaged blocks.
fn notes_folder(disk: &DiskId) -> String {
    format!("disks/{disk}/damaged")
}

fn note_name(disk: &DiskId, id: BlockId) -> String {
    format!("disks/{disk}/damaged/{id}")
}

/// The name that a block is bound to.
fn block_binding(id: BlockId) -> String {
    format!("block/{id}")
}

fn manifest_name(disk: &DiskId, backup: &BackupId) -> String {
    format!("disks/{disk}/backups/{backup}")
}

/// The name that a manifest is bound to.
fn manifest_binding(disk: &DiskId, backup: &BackupId) -> String {
    format!("backup/{disk}/{backup}")
}

/// Runs what needs the processor for long.
async fn blocking<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(f).await {
        Ok(done) => done,
        // Blocking tasks that have begun are not cancelled.
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}
