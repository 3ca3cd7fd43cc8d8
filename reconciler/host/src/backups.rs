//! Backups: the data of snapshots in repositories, and volumes that are made from it.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use async_trait::async_trait;
use secrecy::SecretString;

use crate::shares::{check_name, folder_path};
use crate::{NewVolume, Progress, Result, Taken, VolumeFacts};

/// The maximum length of a declaration that is stored with a backup.
pub const MAX_DECLARATION: usize = 56 << 10;

/// The backups that a host makes and reads.
#[async_trait]
pub trait Backups: Send + Sync + fmt::Debug + 'static {
    /// Writes the data of a snapshot to a repository, which is made if there is none and none was opened before. Returns the backup
    /// once it is complete and was read back. One that is complete already is returned as it is, also without its snapshot.
    ///
    /// *Guarantees*: a backup of an interrupted call is not complete; the next call uses the parts that it has written. Dropping the
    /// future ends the work.
    ///
    /// *Errors*: [`SystemError::SnapshotLost`] if the snapshot is not there or not taken; [`SystemError::Repository`];
    /// [`SystemError::BackupFolder`]; [`SystemError::NoSpace`].
    ///
    /// [`SystemError::SnapshotLost`]: crate::SystemError::SnapshotLost
    /// [`SystemError::Repository`]: crate::SystemError::Repository
    /// [`SystemError::BackupFolder`]: crate::SystemError::BackupFolder
    /// [`SystemError::NoSpace`]: crate::SystemError::NoSpace
    async fn back_up(
        &self,
        repository: &RepositoryAccess,
        new: &NewBackup,
        progress: Progress<'_>,
    ) -> Result<BackupFacts>;

    /// Returns a backup that is complete.
    ///
    /// *Errors*: [`SystemError::BackupLost`](crate::SystemError::BackupLost) if there is none.
    async fn backup(&self, repository: &RepositoryAccess, id: &BackupId) -> Result<BackupFacts>;

    /// Makes a volume with the data of a backup, of at least its size. An existing volume is returned as it is.
    ///
    /// *Guarantees*: all data is verified before it is written; a volume of an interrupted call does not exist. Dropping the future
    /// ends the work.
    ///
    /// *Errors*: [`SystemError::BackupLost`](crate::SystemError::BackupLost) if the backup is not there, or damaged;
    /// [`SystemError::SmallerThanImage`](crate::SystemError::SmallerThanImage);
    /// [`SystemError::NoSpace`](crate::SystemError::NoSpace), with no partial file left behind.
    async fn create_from_backup(
        &self,
        repository: &RepositoryAccess,
        backup: &BackupId,
        volume: &NewVolume,
        progress: Progress<'_>,
    ) -> Result<VolumeFacts>;

    /// Reads a backup back, and compares each block with its checksum. Damage is a result, not an error. Nothing is deleted, and nothing is
    /// written but notes of damaged blocks, which the next backup that has them stores anew. Dropping the future ends the work.
    ///
    /// *Errors*: [`SystemError::Repository`](crate::SystemError::Repository) and
    /// [`SystemError::BackupFolder`](crate::SystemError::BackupFolder), after which nothing is known of the backup.
    async fn verify_backup(
        &self,
        repository: &RepositoryAccess,
        wanted: &BackupToVerify,
        progress: Progress<'_>,
    ) -> Result<VerifiedBackup>;

    /// Opens a complete backup, to read parts of its data. What is read is verified.
    ///
    /// *Errors*: [`SystemError::BackupLost`](crate::SystemError::BackupLost) if the backup is not there;
    /// [`SystemError::Repository`](crate::SystemError::Repository).
    async fn open_backup(&self, repository: &RepositoryAccess, id: &BackupId) -> Result<Box<dyn DiskReader>>;

    /// Opens a snapshot that is taken, to read parts of its data.
    ///
    /// *Assumptions*: the caller discards what it has read once the snapshot may have been deleted: its file can have other data then.
    ///
    /// *Errors*: [`SystemError::SnapshotLost`](crate::SystemError::SnapshotLost) if the snapshot is not there or not taken.
    async fn open_snapshot(&self, pool: &str, snapshot: &str) -> Result<Box<dyn DiskReader>>;

    /// Deletes a backup, and the data that no other backup of the same disk needs. Succeeds if there is no such backup, or no
    /// repository and none was opened before.
    async fn delete_backup(&self, repository: &RepositoryAccess, id: &BackupId) -> Result<()>;
}

/// The data of a backup or a snapshot, at any place. It takes some MiB of memory, or a process, until it is dropped.
#[async_trait]
pub trait DiskReader: Send {
    /// Returns the size of the disk in bytes.
    fn size(&self) -> u64;

    /// Fills the buffer with the data at this offset.
    ///
    /// *Errors*: [`SystemError::BackupLost`](crate::SystemError::BackupLost) if the data is missing or damaged;
    /// [`SystemError::Repository`](crate::SystemError::Repository); the buffer goes beyond the end of the disk.
    async fn read_at(&mut self, offset: u64, into: &mut [u8]) -> Result<()>;

    /// Returns the declaration that is stored with a backup, as JSON. It was authenticated, and has the form that its writer gave it.
    fn declaration(&self) -> Option<String> {
        None
    }
}

/// A repository, and what opens it. Its secrets are never printed.
#[derive(Clone, Debug)]
pub struct RepositoryAccess {
    /// The repository, for messages.
    pub shown: String,
    pub place: RepositoryPlace,
    pub password: SecretString,
    /// Of a place in an object store.
    pub s3: Option<S3Access>,
    /// The identity that the repository had when it was first opened. None: it was not opened yet.
    pub id: Option<String>,
}

/// Where a repository is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RepositoryPlace {
    S3 {
        endpoint: String,
        region: String,
        bucket: String,
        prefix: String,
    },
    /// In a folder that the host offers.
    Folder {
        /// The name of the folder.
        name: String,
        /// The folders in it, which separate namespaces.
        namespace: String,
        repository: String,
    },
}

/// The credentials for an object store.
#[derive(Clone, Debug)]
pub struct S3Access {
    pub key_id: String,
    pub secret: SecretString,
    /// Certificates in PEM, trusted beside those of the system.
    pub ca: Option<String>,
}

/// The identity of a backup in its repository.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BackupId {
    /// Backups of one disk share their data.
    pub disk: String,
    pub backup: String,
}

/// A backup to make. Its declaration, in which users may have passwords, is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct NewBackup {
    pub id: BackupId,
    pub pool: String,
    /// The snapshot whose data it has.
    pub snapshot: String,
    /// Complete backups of the same disk in the same repository, the newest first. The data that has not changed since the first of
    /// them whose snapshot is still below this one is not read again.
    pub parents: Vec<BackupParent>,
    /// The declaration of the VM that has the disk, to store with the backup: JSON of at most [`MAX_DECLARATION`] bytes.
    pub declaration: Option<String>,
}

impl fmt::Debug for NewBackup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, pool, snapshot, parents, declaration } = self;
        f.debug_struct("NewBackup")
            .field("id", id)
            .field("pool", pool)
            .field("snapshot", snapshot)
            .field("parents", parents)
            .field("declaration", &declaration.as_ref().map(String::len))
            .finish()
    }
}

/// A complete backup, and the snapshot that it was made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupParent {
    pub backup: String,
    pub snapshot: String,
}

/// A complete backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupFacts {
    pub id: BackupId,
    /// The identity of the repository.
    pub repository: String,
    /// The size of the disk, in bytes.
    pub size: u64,
    /// None: its repository does not know.
    pub taken: Option<Taken>,
    /// The bytes that were read from the disk, and those that were added to the repository. None: it was not made just now.
    pub read_bytes: Option<u64>,
    pub stored_bytes: Option<u64>,
    /// The backup whose unchanged data was not read again.
    pub parent: Option<String>,
}

/// A backup to read back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupToVerify {
    pub id: BackupId,
    /// A backup of the same disk that was read back before. The blocks that both have are not read again.
    pub base: Option<String>,
    /// The most bytes of the disk to read in a second, on average.
    pub bytes_per_second: u64,
}

/// A backup that was read back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifiedBackup {
    /// The backup whose blocks were left out.
    pub base: Option<String>,
    /// The bytes of the disk that were read.
    pub read_bytes: u64,
    /// The number of objects of the repository that are damaged or missing. Zero: the backup is whole.
    pub damaged: u64,
    /// The first few of them, for people.
    pub named: Vec<String>,
}

/// A folder of this host for backups, and its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupFolderMapping {
    pub name: String,
    /// Absolute.
    pub path: PathBuf,
}

impl FromStr for BackupFolderMapping {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let (name, path) = text.split_once('=').ok_or_else(|| format!("{text:?} is not NAME=FOLDER"))?;
        check_name(name)?;
        Ok(Self { name: name.to_owned(), path: folder_path(path)? })
    }
}

/// A folder for backups, as it is on the host now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackupFolderFacts {
    pub name: String,
    /// Why it cannot be used, for people.
    pub problem: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_for_backups_is_a_name_with_an_absolute_path() {
        let parse = |text: &str| text.parse::<BackupFolderMapping>();
        let nas = BackupFolderMapping { name: "nas".to_owned(), path: "/mnt/nas".into() };
        assert_eq!(parse("nas=/mnt/nas"), Ok(nas));
        for wrong in ["nas", "=/mnt", "Nas=/mnt", "nas=mnt", "nas=", "nas=/mnt\n"] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn secrets_are_not_printed() {
        let access = RepositoryAccess {
            shown: "repository ns/r".to_owned(),
            place: RepositoryPlace::S3 {
                endpoint: "https://s3.example".to_owned(),
                region: "r".to_owned(),
                bucket: "b".to_owned(),
                prefix: String::new(),
            },
            password: "canary-1".into(),
            s3: Some(S3Access { key_id: "id".to_owned(), secret: "canary-2".into(), ca: None }),
            id: None,
        };
        let text = format!("{access:?}");
        assert!(text.contains("s3.example") && !text.contains("canary"), "{text}");
    }
}
