//! The BackupRepository controller: reports whether hosts can reach it, as far as is known without opening it, and records the
//! identity that it has in itself, which the host of its first Backup reads.

use std::collections::BTreeSet;

use berth_api::{BackupRepository, BackupRepositoryStatus, HostStatus, Readiness, Reason};
use k8s_openapi::jiff::Timestamp;

use crate::{
    batch::WriteBatch,
    cache::Cache,
    config::Config,
    key::Key,
    plan::{Dependency, Outcome},
};

pub(crate) fn reconcile(cache: &Cache, config: &Config, key: &Key, batch: &mut WriteBatch) -> Outcome {
    let Some(repository) = cache.tables.backup_repositories.get(key).cloned() else {
        return Outcome::Settled;
    };
    let hosts = cache.tables.hosts.all().filter(|host| !host.spec.fenced);
    let offered: BTreeSet<String> = hosts
        .filter_map(|host| host.status.as_ref().map(HostStatus::offered_backup_folders))
        .flatten()
        .collect();
    let readiness = readiness(&repository, &offered);
    let found = cache
        .users_of(key)
        .iter()
        .find_map(|user| cache.tables.backups.get(user)?.status.as_ref()?.repository_id.clone());
    let mut status = status(&repository, &readiness, found, config.clock.now());
    let users = cache.listed_users(key, &status.used_by);
    status.used_by.clone_from(&users);
    batch.used(repository.as_ref(), status, &users, config.clock.now());
    match repository.spec.folder {
        Some(_) => Outcome::Blocked(vec![Dependency::Hosts]),
        None => Outcome::Settled,
    }
}

fn readiness(repository: &BackupRepository, offered: &BTreeSet<String>) -> Readiness {
    match &repository.spec.folder {
        Some(folder) if !offered.contains(folder) => {
            let text = format!(
                "no host offers the folder {folder}: see status.backupFolders of the Hosts, and offer it with --backup-folder"
            );
            Readiness::Stalled(Reason::NoHostWithBackupFolder, text)
        }
        _ => Readiness::Ready(Reason::Available, String::new()),
    }
}

fn status(
    repository: &BackupRepository,
    readiness: &Readiness,
    found: Option<String>,
    now: Timestamp,
) -> BackupRepositoryStatus {
    let mut status = repository.status.clone().unwrap_or_default();
    let generation = repository.metadata.generation.unwrap_or_default();
    readiness.write(&mut status.conditions, generation, now);
    status.repository_id = status.repository_id.or(found);
    status.observed_generation = generation;
    status
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_repository_in_a_folder_needs_a_host_that_offers_it_and_keeps_the_identity_it_had_first() {
        let mut repository: BackupRepository = serde_json::from_value(json!({
            "metadata": {"name": "r", "namespace": "ns"}, "spec": {"folder": "nas", "passwordSecretName": "p"},
        }))
        .expect("a repository");
        let none = readiness(&repository, &BTreeSet::new());
        assert_eq!(none.reason(), Reason::NoHostWithBackupFolder);
        let ready = readiness(&repository, &BTreeSet::from(["nas".to_owned()]));
        assert!(matches!(ready, Readiness::Ready(..)));
        let now = Timestamp::UNIX_EPOCH;
        let first = status(&repository, &ready, Some("r-1".into()), now);
        assert_eq!(first.repository_id.as_deref(), Some("r-1"));
        repository.status = Some(first);
        assert_eq!(
            status(&repository, &ready, Some("r-2".into()), now).repository_id.as_deref(),
            Some("r-1")
        );
    }
}
