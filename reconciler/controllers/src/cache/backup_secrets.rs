//! The Secrets of repositories of backups: a host reads them while it makes, finds, verifies or deletes a Backup, makes a Disk from one, or
//! opens one for a client.

use berth_api::{Backup, BackupRepository, DeletionPolicy, Disk};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

use crate::{
    cache::Cache,
    key::{Key, ObjectKind},
};

/// Returns the host that works on the data of a Backup.
fn host_of_backup(backup: &Backup) -> Option<&str> {
    let is_deleted = backup.metadata.deletion_timestamp.is_some();
    let works = match is_deleted {
        true => backup.spec.deletion_policy == DeletionPolicy::Delete,
        false => !backup.is_complete() || is_read(backup) || backup.requested_verification().is_some(),
    };
    let binding = backup.status.as_ref()?.binding.as_ref();
    binding.filter(|_| works).map(|binding| binding.host.as_str())
}

/// Whether a client wants to read it. The controller of Backups removes the annotation once its time has come.
fn is_read(backup: &Backup) -> bool {
    backup.read_until().is_some_and(|until| until.parse::<Timestamp>().is_ok())
}

/// Returns the host that makes a Disk from a Backup, and the name of the Backup.
fn host_of_disk(disk: &Disk) -> Option<(&str, &str)> {
    let backup = disk.spec.source.as_ref()?.backup.as_ref()?;
    let status = disk.status.as_ref().filter(|status| status.size.is_none())?;
    let binding = status.binding.as_ref().filter(|_| disk.metadata.deletion_timestamp.is_none())?;
    Some((binding.host.as_str(), backup.as_str()))
}

impl Cache {
    /// Returns the host that works on a repository for this Backup or Disk, and the repository.
    fn works_on(&self, key: &Key) -> Option<(&str, Key)> {
        let (host, backup) = match key.kind {
            ObjectKind::Backup => {
                let backup = self.tables.backups.get(key)?;
                (host_of_backup(backup)?, backup)
            }
            ObjectKind::Disk => {
                let (host, name) = host_of_disk(self.tables.disks.get(key)?)?;
                (host, self.tables.backups.named(key.namespace(), name)?)
            }
            _ => return None,
        };
        let repository = backup.spec.repository.as_str();
        Some((host, Key::namespaced(ObjectKind::BackupRepository, key.namespace(), repository)))
    }

    /// Records whether a host works on a repository for this Backup or Disk.
    pub(super) fn note_repository_user(&mut self, key: &Key) {
        let works = match key.kind {
            ObjectKind::Backup => self.tables.backups.get(key).is_some_and(|b| host_of_backup(b).is_some()),
            _ => self.tables.disks.get(key).is_some_and(|disk| host_of_disk(disk).is_some()),
        };
        if works {
            self.repository_users.insert(key.clone());
        } else {
            self.repository_users.remove(key);
        }
    }

    /// Returns the work on repositories in a namespace: its host, and the repository.
    fn work_in<'a>(&'a self, namespace: &'a str) -> impl Iterator<Item = (&'a str, Key)> + 'a {
        let its = self.repository_users.iter().filter(move |key| key.namespace() == namespace);
        its.filter_map(|key| self.works_on(key))
    }

    /// Returns the Secrets of repositories in a namespace that a host must read.
    pub(super) fn repository_secrets(&self, host: &str, namespace: &str) -> Vec<String> {
        let repositories = self.work_in(namespace).filter(|(works, _)| *works == host);
        let repositories =
            repositories.filter_map(|(_, repository)| self.tables.backup_repositories.get(&repository));
        repositories.flat_map(|found| found.spec.secrets().map(ToString::to_string)).collect()
    }

    /// Returns the Roles by which hosts read the Secrets of the repository that this is, or that this Backup or Disk is about.
    pub(super) fn repository_roles(&self, key: &Key) -> Vec<Key> {
        let role = |host: &str| Key::secrets_role(host, key.namespace());
        match key.kind {
            ObjectKind::BackupRepository => {
                let its = self.work_in(key.namespace()).filter(|(_, repository)| repository == key);
                its.map(|(host, _)| role(host)).collect()
            }
            ObjectKind::Backup => {
                let disks = self.repository_users.iter().filter(|user| {
                    let disk = self.tables.disks.get(user).and_then(|disk| host_of_disk(disk));
                    user.namespace == key.namespace && disk.is_some_and(|(_, backup)| *backup == *key.name)
                });
                let works = std::iter::once(key).chain(disks).filter_map(|user| self.works_on(user));
                works.map(|(host, _)| role(host)).collect()
            }
            ObjectKind::Disk => self.works_on(key).map(|(host, _)| role(host)).into_iter().collect(),
            _ => Vec::new(),
        }
    }

    /// Returns the repository of a Backup whose host has read the identity of the repository, which is not recorded yet.
    pub(super) fn repository_to_identify(&self, key: &Key) -> Vec<Key> {
        let found = self
            .tables
            .backups
            .get(key)
            .filter(|backup| backup.status.as_ref().is_some_and(|status| status.repository_id.is_some()));
        let repository = found.map(|backup| {
            Key::namespaced(ObjectKind::BackupRepository, key.namespace(), backup.spec.repository.as_str())
        });
        let is_unidentified = |object: &BackupRepository| {
            object.status.as_ref().is_none_or(|status| status.repository_id.is_none())
        };
        let unidentified = repository.filter(|repository| {
            self.tables.backup_repositories.get(repository).is_some_and(|object| is_unidentified(object))
        });
        unidentified.into_iter().collect()
    }

    /// Returns the folder for backups that the host of an unbound Disk must offer.
    pub(crate) fn backup_folder_of(&self, disk: &Disk) -> Option<String> {
        let is_made = disk.status.as_ref().is_some_and(|status| status.size.is_some());
        let name = disk.spec.source.as_ref().filter(|_| !is_made)?.backup.as_ref()?;
        let namespace = disk.namespace()?;
        let backup = self.tables.backups.named(&namespace, name.as_str())?;
        let repository =
            self.tables.backup_repositories.named(&namespace, backup.spec.repository.as_str())?;
        repository.spec.folder.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json};
    use tokio::time::Instant;

    use super::*;

    fn put(
        cache: &mut Cache,
        version: &str,
        kind: &str,
        name: &str,
        spec: &Value,
        status: &Value,
    ) -> Vec<Key> {
        let object = json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": kind,
            "metadata": {"name": name, "namespace": "ns", "uid": name, "resourceVersion": version},
            "spec": spec, "status": status,
        });
        let now = Instant::now();
        match kind {
            "Backup" => cache.put(serde_json::from_value::<Backup>(object).expect("a Backup"), now),
            "Disk" => cache.put(serde_json::from_value::<Disk>(object).expect("a Disk"), now),
            _ => {
                let repository = serde_json::from_value::<BackupRepository>(object);
                cache.put(repository.expect("a BackupRepository"), now)
            }
        }
    }

    #[test]
    fn a_host_reads_the_secrets_of_a_repository_while_it_works_on_it() {
        let mut cache = Cache::new(Duration::from_secs(40));
        let role = |host: &str| Key::secrets_role(host, "ns");
        let both = ["keys".to_owned(), "password".to_owned()];
        let repository = json!({"s3": {"endpoint": "https://s3.example", "bucket": "abc"},
            "credentialsSecretName": "keys", "passwordSecretName": "password"});
        put(&mut cache, "1", "BackupRepository", "r", &repository, &json!(null));
        let spec = json!({"repository": "r", "snapshot": "s"});
        let mut status = json!({"binding": {"host": "h1", "epoch": 1}, "volumeID": "v", "backupID": "b"});
        assert!(put(&mut cache, "2", "Backup", "b", &spec, &status).contains(&role("h1")));
        assert_eq!(cache.secrets_of("h1", "ns"), both);
        assert!(cache.secrets_of("h2", "ns").is_empty() && cache.secrets_of("h1", "other").is_empty());
        status["completedAt"] = json!("2026-01-01T00:00:00Z");
        status["repositoryID"] = json!("r-1");
        let repository_key = Key::namespaced(ObjectKind::BackupRepository, "ns", "r");
        let done = put(&mut cache, "3", "Backup", "b", &spec, &status);
        assert!(done.contains(&role("h1")) && done.contains(&repository_key), "{done:?}");
        assert!(cache.secrets_of("h1", "ns").is_empty());
        let disk = json!({"source": {"backup": "b"}});
        let bound = json!({"binding": {"host": "h2", "epoch": 1}, "volumeID": "v-2"});
        assert!(put(&mut cache, "4", "Disk", "d", &disk, &bound).contains(&role("h2")));
        assert_eq!(cache.secrets_of("h2", "ns"), both);
        let mut other = repository;
        other["passwordSecretName"] = json!("other");
        assert!(put(&mut cache, "5", "BackupRepository", "r", &other, &json!(null)).contains(&role("h2")));
        assert_eq!(cache.secrets_of("h2", "ns"), ["keys".to_owned(), "other".to_owned()]);
        let mut made = bound;
        made["size"] = json!("1Gi");
        assert!(put(&mut cache, "6", "Disk", "d", &disk, &made).contains(&role("h2")));
        assert!(cache.secrets_of("h2", "ns").is_empty());
    }

    #[test]
    fn a_host_reads_the_secrets_of_a_complete_backup_while_it_verifies_it() {
        let mut cache = Cache::new(Duration::from_secs(40));
        let repository = json!({"folder": "nas", "passwordSecretName": "password"});
        put(&mut cache, "1", "BackupRepository", "r", &repository, &json!(null));
        let spec = json!({"repository": "r", "snapshot": "s"});
        let mut status = json!({"binding": {"host": "h1", "epoch": 1}, "volumeID": "v", "backupID": "b",
            "completedAt": "2026-01-01T00:00:00Z",
            "verification": {"requested": {"at": "2026-01-02T00:00:00Z"}}});
        put(&mut cache, "2", "Backup", "b", &spec, &status);
        assert_eq!(cache.secrets_of("h1", "ns"), ["password".to_owned()]);
        status["verification"] = json!({"endedAt": "2026-01-02T01:00:00Z", "damagedBlocks": 0});
        assert!(put(&mut cache, "3", "Backup", "b", &spec, &status).contains(&Key::secrets_role("h1", "ns")));
        assert!(cache.secrets_of("h1", "ns").is_empty());
    }

    #[test]
    fn a_host_reads_the_secrets_of_a_complete_backup_while_a_client_opens_it() {
        let mut cache = Cache::new(Duration::from_secs(40));
        let repository = json!({"folder": "nas", "passwordSecretName": "password"});
        put(&mut cache, "1", "BackupRepository", "r", &repository, &json!(null));
        let mut version = 1;
        let mut declare = |cache: &mut Cache, until: Option<&str>| {
            version += 1;
            let object = json!({
                "apiVersion": "berth.dev/v1alpha1", "kind": "Backup",
                "metadata": {"name": "b", "namespace": "ns", "uid": "b", "resourceVersion": version.to_string(),
                    "annotations": until.map(|until| json!({"berth.dev/read-until": until}))},
                "spec": {"repository": "r", "snapshot": "s"},
                "status": {"binding": {"host": "h1", "epoch": 1}, "volumeID": "v", "backupID": "b",
                    "completedAt": "2026-01-01T00:00:00Z"},
            });
            cache.put(serde_json::from_value::<Backup>(object).expect("a Backup"), Instant::now())
        };
        declare(&mut cache, None);
        assert!(cache.secrets_of("h1", "ns").is_empty());
        assert!(declare(&mut cache, Some("2026-01-01T00:05:00Z")).contains(&Key::secrets_role("h1", "ns")));
        assert_eq!(cache.secrets_of("h1", "ns"), ["password".to_owned()]);
        assert!(cache.secrets_of("h2", "ns").is_empty());
        assert!(declare(&mut cache, Some("for ever")).contains(&Key::secrets_role("h1", "ns")));
        assert!(cache.secrets_of("h1", "ns").is_empty(), "it is no time");
    }
}
