//! The backups in a repository, listed by its place and its password alone: without a control plane and without an agent.

use std::path::PathBuf;

use berth_backup::{ListedBackup, Location, Repository, S3Location};
use berth_engine::ErrorChain;
use jiff::Timestamp;
use secrecy::SecretString;

use super::DECLARATION;

/// A repository that is only read. Its secrets are never printed.
#[derive(Clone, Debug)]
pub struct RepositoryReader {
    location: Location,
    password: SecretString,
}

/// A place in an object store.
#[derive(Clone, Debug, Default)]
pub struct ObjectStore {
    pub endpoint: String,
    pub region: String,
    pub bucket: String,
    pub prefix: String,
}

/// A backup in a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepositoryEntry {
    /// The identities of the disk and of the backup.
    pub disk: String,
    pub backup: String,
    /// The facts that are stored with it. The error explains the damage.
    pub facts: Result<EntryFacts, String>,
}

/// The facts of a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryFacts {
    pub taken_at: Timestamp,
    /// The size of the disk, in bytes.
    pub size: u64,
    /// The declaration of the VM that had the disk, as JSON.
    pub declaration: Option<String>,
}

impl RepositoryReader {
    /// A repository in a folder.
    pub fn in_folder(path: PathBuf, password: String) -> Self {
        Self { location: Location::Folder(path), password: password.into() }
    }

    /// A repository in an object store, with the credentials `(key, secret)`. Any address is connected to.
    pub fn in_object_store(store: ObjectStore, credentials: (String, String), password: String) -> Self {
        let ObjectStore { endpoint, region, bucket, prefix } = store;
        let (access_key_id, secret) = credentials;
        let location = S3Location {
            endpoint,
            region,
            bucket,
            prefix,
            access_key_id,
            secret_access_key: secret.into(),
            ca_certificates: None,
            resolver: None,
        };
        Self { location: Location::S3(location), password: password.into() }
    }

    /// Lists all backups. Nothing is written.
    ///
    /// *Errors*: for people: there is no repository, the password does not open it, or the store does not answer.
    pub async fn list(&self) -> Result<Vec<RepositoryEntry>, String> {
        let explained = |error: berth_backup::Error| ErrorChain(&error).to_string();
        let repository = Repository::open(&self.location, &self.password, false).await.map_err(explained)?;
        let listed = repository.list().await.map_err(explained)?;
        Ok(listed.into_iter().map(entry).collect())
    }
}

fn entry(listed: ListedBackup) -> RepositoryEntry {
    let facts = listed.facts.map_err(|error| ErrorChain(&error).to_string());
    let facts = facts.map(|found| EntryFacts {
        taken_at: found.time,
        size: found.summary.size,
        declaration: found.facts.get(DECLARATION).map(ToString::to_string),
    });
    RepositoryEntry { disk: listed.disk.to_string(), backup: listed.backup.to_string(), facts }
}
