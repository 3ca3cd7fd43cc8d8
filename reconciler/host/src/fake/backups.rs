//! Repositories of backups, in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use secrecy::ExposeSecret;

use super::FakeSystem;
use crate::{
    BackupFacts, BackupId, BackupToVerify, Backups, DiskReader, NewBackup, NewVolume, Progress,
    RepositoryAccess, RepositoryPlace, RepositoryProblem, Result, SystemError, VerifiedBackup, VolumeFacts,
};

/// Duration of a backup or a restore, which goes on in `PIECES` pieces.
const TIME: Duration = Duration::from_secs(3);
const PIECES: u64 = 10;

/// The repositories of a fake host.
#[derive(Clone, Debug, Default)]
pub struct FakeRepositories(Arc<Mutex<BTreeMap<RepositoryPlace, Repository>>>);

#[derive(Debug)]
struct Repository {
    id: String,
    password: String,
    backups: BTreeMap<BackupId, BackupFacts>,
    declarations: BTreeMap<BackupId, String>,
    /// The backups with a damaged block.
    damaged: BTreeSet<BackupId>,
    /// The verifications that have ended, in order.
    verified: Vec<BackupToVerify>,
}

impl FakeRepositories {
    fn all(&self) -> MutexGuard<'_, BTreeMap<RepositoryPlace, Repository>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the complete backups of all repositories.
    pub fn backups(&self) -> Vec<BackupFacts> {
        self.all().values().flat_map(|repository| repository.backups.values().cloned()).collect()
    }

    /// Removes a backup without berth being involved.
    pub fn lose(&self, id: &BackupId) {
        for repository in self.all().values_mut() {
            repository.backups.remove(id);
        }
    }

    /// Damages a block of a backup without berth being involved.
    pub fn damage(&self, id: &BackupId) {
        for repository in self.all().values_mut().filter(|repository| repository.backups.contains_key(id)) {
            repository.damaged.insert(id.clone());
        }
    }

    /// Returns the verifications that have ended, in order.
    pub fn verified(&self) -> Vec<BackupToVerify> {
        self.all().values().flat_map(|repository| repository.verified.iter().cloned()).collect()
    }

    /// Calls `work` with the repository; None if there is none and none was opened before. One is made first if `makes`.
    fn with<T>(
        &self,
        access: &RepositoryAccess,
        makes: bool,
        work: impl FnOnce(&mut Repository) -> T,
    ) -> Result<Option<T>> {
        let problem = |problem, detail: &str| SystemError::Repository {
            repository: access.shown.clone(),
            problem,
            detail: detail.to_owned(),
        };
        let mut all = self.all();
        let number = all.len() + 1;
        if makes && access.id.is_none() {
            all.entry(access.place.clone()).or_insert_with(|| Repository {
                id: format!("r-{number}"),
                password: access.password.expose_secret().to_owned(),
                backups: BTreeMap::new(),
                declarations: BTreeMap::new(),
                damaged: BTreeSet::new(),
                verified: Vec::new(),
            });
        }
        let Some(repository) = all.get_mut(&access.place) else {
            return match &access.id {
                Some(_) => Err(problem(RepositoryProblem::NoRepository, "there is none any more")),
                None => Ok(None),
            };
        };
        if repository.password != access.password.expose_secret() {
            return Err(problem(RepositoryProblem::WrongPassword, "the password does not open it"));
        }
        if access.id.as_ref().is_some_and(|id| *id != repository.id) {
            return Err(problem(RepositoryProblem::Replaced, "it is another one than before"));
        }
        Ok(Some(work(repository)))
    }
}

impl FakeSystem {
    /// The repositories that this host reaches.
    pub fn repositories(&self) -> FakeRepositories {
        self.state().repositories.clone()
    }

    /// Sets the first bytes that a snapshot or a backup of this id has.
    pub fn put_disk_data(&self, id: &str, bytes: &[u8]) {
        self.state().disk_data.insert(id.to_owned(), bytes.to_vec());
    }

    fn reader(&self, id: &str, size: u64, declaration: Option<String>) -> Box<dyn DiskReader> {
        let bytes = self.state().disk_data.get(id).cloned().unwrap_or_default();
        Box::new(FakeReader { bytes, size, declaration })
    }

    fn check_folder(&self, access: &RepositoryAccess) -> Result<()> {
        let RepositoryPlace::Folder { name, .. } = &access.place else { return Ok(()) };
        let state = self.state();
        let found = state.facts.backup_folders.iter().find(|folder| folder.name == *name);
        let detail = match found {
            Some(folder) => folder.problem.clone(),
            None => Some("this host does not offer it".to_owned()),
        };
        match detail {
            Some(detail) => Err(SystemError::BackupFolder { name: name.clone(), detail }),
            None => Ok(()),
        }
    }

    async fn work(&self, total: u64, progress: Progress<'_>) {
        for piece in 1..=PIECES {
            tokio::time::sleep(TIME / u32::try_from(PIECES).unwrap_or(1)).await;
            progress(total / PIECES * piece, Some(total));
        }
    }

    async fn write_backup(
        &self,
        access: &RepositoryAccess,
        new: &NewBackup,
        progress: Progress<'_>,
    ) -> Result<BackupFacts> {
        self.check_folder(access)?;
        let repositories = self.repositories();
        let found = repositories.with(access, true, |repository| {
            (repository.id.clone(), repository.backups.get(&new.id).cloned())
        })?;
        let (repository, found) = found.unwrap_or_default();
        if let Some(found) = found {
            return Ok(BackupFacts { read_bytes: None, stored_bytes: None, ..found });
        }
        let lost = || SystemError::SnapshotLost { id: new.snapshot.clone() };
        let snapshot = self.state().snapshots.get(&new.snapshot).cloned().ok_or_else(lost)?;
        let taken = snapshot.facts.taken.clone().ok_or_else(lost)?;
        let size = snapshot.facts.size;
        let below = |id: &String| {
            let mut files =
                std::iter::successors(snapshot.backing.backing.as_deref(), |b| b.backing.as_deref());
            let state = self.state();
            state.snapshots.get(id).is_some_and(|parent| files.any(|file| file.file == parent.backing.file))
        };
        let parent = new.parents.iter().find(|parent| below(&parent.snapshot));
        self.work(size, progress).await;
        let facts = BackupFacts {
            id: new.id.clone(),
            repository,
            size,
            taken: Some(taken),
            // Of a disk, an eighth has data, and a hundredth of that changes.
            read_bytes: Some(if parent.is_some() { size / 800 } else { size / 8 }),
            stored_bytes: Some(if parent.is_some() { size / 1600 } else { size / 16 }),
            parent: parent.map(|parent| parent.backup.clone()),
        };
        let stored = facts.clone();
        repositories.with(access, false, |repository| {
            repository.declarations.extend(new.declaration.clone().map(|text| (new.id.clone(), text)));
            repository.backups.insert(new.id.clone(), stored)
        })?;
        Ok(facts)
    }

    fn read_backup(&self, access: &RepositoryAccess, id: &BackupId) -> Result<BackupFacts> {
        self.check_folder(access)?;
        let found =
            self.repositories().with(access, false, |repository| repository.backups.get(id).cloned())?;
        let found =
            found.flatten().map(|facts| BackupFacts { read_bytes: None, stored_bytes: None, ..facts });
        found.ok_or_else(|| SystemError::BackupLost {
            backup: format!("{}/{}", id.disk, id.backup),
            repository: access.shown.clone(),
            detail: "there is no such backup".to_owned(),
        })
    }
}

impl FakeSystem {
    async fn read_back(
        &self,
        access: &RepositoryAccess,
        wanted: &BackupToVerify,
        progress: Progress<'_>,
    ) -> Result<VerifiedBackup> {
        let facts = match self.read_backup(access, &wanted.id) {
            Err(SystemError::BackupLost { backup, .. }) => {
                let named = vec![format!("{backup}: it is missing")];
                return Ok(VerifiedBackup { damaged: 1, named, ..VerifiedBackup::default() });
            }
            found => found?,
        };
        self.work(facts.size, progress).await;
        let ended = self.repositories().with(access, false, |repository| {
            repository.verified.push(wanted.clone());
            let of_base =
                wanted.base.as_ref().map(|base| BackupId { backup: base.clone(), ..wanted.id.clone() });
            let base = of_base.filter(|base| repository.backups.contains_key(base)).map(|base| base.backup);
            let damaged = repository.damaged.contains(&wanted.id);
            let named = damaged.then(|| format!("disks/{}/blocks/00/0: it is missing", wanted.id.disk));
            VerifiedBackup {
                read_bytes: if base.is_some() { facts.size / 800 } else { facts.size / 8 },
                base,
                damaged: u64::from(damaged),
                named: named.into_iter().collect(),
            }
        })?;
        Ok(ended.unwrap_or_default())
    }
}

/// The data of a snapshot or a backup.
struct FakeReader {
    bytes: Vec<u8>,
    size: u64,
    declaration: Option<String>,
}

#[async_trait]
impl DiskReader for FakeReader {
    fn size(&self) -> u64 {
        self.size
    }

    async fn read_at(&mut self, offset: u64, into: &mut [u8]) -> Result<()> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        for (at, byte) in into.iter_mut().enumerate() {
            *byte = self.bytes.get(start.saturating_add(at)).copied().unwrap_or_default();
        }
        Ok(())
    }

    fn declaration(&self) -> Option<String> {
        self.declaration.clone()
    }
}

#[async_trait]
impl Backups for FakeSystem {
    async fn back_up(
        &self,
        repository: &RepositoryAccess,
        new: &NewBackup,
        progress: Progress<'_>,
    ) -> Result<BackupFacts> {
        self.call("back_up", self.write_backup(repository, new, progress)).await
    }

    async fn backup(&self, repository: &RepositoryAccess, id: &BackupId) -> Result<BackupFacts> {
        self.call("backup", async { self.read_backup(repository, id) }).await
    }

    async fn create_from_backup(
        &self,
        repository: &RepositoryAccess,
        backup: &BackupId,
        volume: &NewVolume,
        progress: Progress<'_>,
    ) -> Result<VolumeFacts> {
        let work = async {
            let facts = self.read_backup(repository, backup)?;
            let size = volume.size.unwrap_or(facts.size);
            if size < facts.size {
                return Err(SystemError::SmallerThanImage { size, image: facts.size });
            }
            self.work(facts.size, progress).await;
            // Lost meanwhile.
            self.read_backup(repository, backup)?;
            let blank =
                NewVolume { size: Some(size), base: None, snapshot: None, file: None, ..volume.clone() };
            self.make_volume(&blank)
        };
        self.call("create_from_backup", work).await
    }

    async fn verify_backup(
        &self,
        repository: &RepositoryAccess,
        wanted: &BackupToVerify,
        progress: Progress<'_>,
    ) -> Result<VerifiedBackup> {
        self.call("verify_backup", self.read_back(repository, wanted, progress)).await
    }

    async fn open_backup(&self, repository: &RepositoryAccess, id: &BackupId) -> Result<Box<dyn DiskReader>> {
        let work = async {
            let facts = self.read_backup(repository, id)?;
            let found =
                self.repositories().with(repository, false, |found| found.declarations.get(id).cloned())?;
            Ok(self.reader(&id.backup, facts.size, found.flatten()))
        };
        self.call("open_backup", work).await
    }

    async fn open_snapshot(&self, _: &str, snapshot: &str) -> Result<Box<dyn DiskReader>> {
        let work = async {
            let found = self.state().snapshots.get(snapshot).map(|found| found.facts.clone());
            let taken = found.filter(|facts| facts.taken.is_some());
            let facts = taken.ok_or_else(|| SystemError::SnapshotLost { id: snapshot.to_owned() })?;
            Ok(self.reader(snapshot, facts.size, None))
        };
        self.call("open_snapshot", work).await
    }

    async fn delete_backup(&self, repository: &RepositoryAccess, id: &BackupId) -> Result<()> {
        let work = async {
            self.check_folder(repository)?;
            let gone = self.repositories().with(repository, false, |found| found.backups.remove(id));
            gone.map(|_| ())
        };
        self.call("delete_backup", work).await
    }
}
