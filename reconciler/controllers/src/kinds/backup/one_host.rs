//! One host at a time writes and deletes the data of a disk in a repository: a deletion removes the blocks that no complete backup has, and
//! those of one that another host is making would be among them.
//!
//! ```text
//!   a new Backup of the disk, whose snapshot is on another host than its earlier Backups are bound to (its VM has moved):
//!     earlier ones, complete, or without their snapshot ─▶ not bound (read, or deleted, where the new one is)  ┐
//!     earlier ones that their host still makes          ─▶ it completes them first                             │
//!     earlier ones, deleted                             ─▶ their host deletes them first                       ┴─▶ the new one is bound
//! ```
//!
//! An earlier one loses its host by a write with the resource version that was read: if it was deleted meanwhile, the write fails, and the new
//! one waits for the deletion. The new one is bound only once all of that was read back.

use std::sync::Arc;

use berth_api::{Backup, BackupStatus, DiskSnapshot, Readiness, Reason};
use kube::ResourceExt;

use super::{Decision, Observed, binding, repository_key};
use crate::{
    batch::WriteBatch,
    cache::Cache,
    key::{Key, ObjectKind},
    plan::{Dependency, Plan},
};

/// How many Backups lose their host in one step. Each of them has the new one reconciled again.
const MOST_AT_ONCE: usize = 100;

/// Returns the other Backups of the same disk in the repository that are bound to another host than the snapshot of this one. One that is
/// not complete is among them: its host would delete it while the new one is made.
pub(super) fn elsewhere(cache: &Cache, backup: &Backup, snapshot: &DiskSnapshot) -> Vec<Arc<Backup>> {
    let Some((own, volume)) = place_of(snapshot) else { return Vec::new() };
    let is_elsewhere = |other: &Arc<Backup>| {
        let is_there = binding(other).is_some_and(|bound| bound.host != own && !cache.is_gone(&bound.host));
        is_there && is_of(other, volume)
    };
    others(cache, backup).into_iter().filter(is_elsewhere).collect()
}

/// Returns the host that writes the data of a disk, or is about to: that of a new Backup's snapshot.
pub(super) fn writer(cache: &Cache, backup: &Backup, disk: &str) -> Option<String> {
    let namespace = backup.namespace().unwrap_or_default();
    others(cache, backup).into_iter().find_map(|other| {
        let is_new = binding(&other).is_none() && !is_whole(&other);
        let name = other.spec.snapshot.as_ref().filter(|_| is_new)?;
        if other.metadata.deletion_timestamp.is_some() {
            return None;
        }
        let snapshot = cache.tables.disk_snapshots.named(&namespace, name.as_str())?;
        let (host, volume) = place_of(snapshot)?;
        (volume == disk && !cache.is_gone(host)).then(|| host.to_owned())
    })
}

/// Returns the hosts that other Backups of a disk are bound to.
pub(super) fn hosts_of(cache: &Cache, backup: &Backup, disk: &str) -> Vec<String> {
    let same = others(cache, backup).into_iter().filter(|other| is_of(other, disk));
    let hosts = same.filter_map(|other| binding(&other).map(|bound| bound.host.clone()));
    hosts.filter(|host| !cache.is_gone(host)).collect()
}

/// The plan for a new backup while others of its disk are bound elsewhere. None: there are none.
pub(super) fn waits(backup: &Backup, observed: &Observed) -> Option<Plan<Decision>> {
    let first = observed.elsewhere.first()?;
    let host = binding(first).map(|bound| bound.host.clone()).unwrap_or_default();
    let text = format!(
        "Backup {} of the same disk is with host {host}, which the disk has left: it is made once that host does not change the data of the \
         disk any more",
        first.name_any()
    );
    let mut dependencies = vec![Dependency::Object(repository_key(backup))];
    dependencies.extend(observed.elsewhere.iter().map(|other| Dependency::Object(Key::of(other.as_ref()))));
    dependencies
        .extend(observed.elsewhere.iter().filter_map(|other| Some(Dependency::Object(snapshot_key(other)?))));
    let readiness = Readiness::Reconciling(Reason::WaitingForBackup, text);
    Some(Plan::blocked(Decision::Report(readiness), dependencies))
}

/// Takes their host from the others that a new backup waits for. Those that are deleted, or still made, keep theirs, which may be at work.
pub(super) fn release(cache: &Cache, observed: &Observed, decision: &Decision, batch: &mut WriteBatch) {
    if !matches!(decision, Decision::Report(readiness) if readiness.reason() == Reason::WaitingForBackup) {
        return;
    }
    let living = observed.elsewhere.iter().filter(|other| other.metadata.deletion_timestamp.is_none());
    let idle = living.filter(|other| is_whole(other) || !has_snapshot(cache, other));
    for other in idle.take(MOST_AT_ONCE) {
        batch.status(other.as_ref(), unbound(other));
    }
}

/// The status of a backup that no host has any more.
pub(super) fn unbound(backup: &Backup) -> BackupStatus {
    BackupStatus { binding: None, files: None, ..backup.status.clone().unwrap_or_default() }
}

fn others(cache: &Cache, backup: &Backup) -> Vec<Arc<Backup>> {
    let users = cache.users_of(&repository_key(backup));
    let backups = users.iter().filter_map(|key| cache.tables.backups.get(key).cloned());
    backups.filter(|other| other.name_any() != backup.name_any()).collect()
}

/// Whether its data is in the repository, as far as its host is concerned.
pub(super) fn is_whole(backup: &Backup) -> bool {
    backup.is_complete() || backup.spec.existing.is_some()
}

/// Whether the snapshot that it is made from is on its host.
fn has_snapshot(cache: &Cache, backup: &Backup) -> bool {
    let snapshot = snapshot_key(backup).and_then(|key| cache.tables.disk_snapshots.get(&key));
    let host = snapshot.and_then(|snapshot| Some(&snapshot.status.as_ref()?.binding.as_ref()?.host));
    host.is_some_and(|host| binding(backup).is_some_and(|bound| bound.host == *host))
}

fn snapshot_key(backup: &Backup) -> Option<Key> {
    let namespace = backup.namespace().unwrap_or_default();
    Some(Key::namespaced(ObjectKind::DiskSnapshot, &namespace, backup.spec.snapshot.as_ref()?.as_str()))
}

fn is_of(backup: &Backup, disk: &str) -> bool {
    backup.identity().is_some_and(|(of, _)| of == disk)
}

/// Returns the host and the volume of a snapshot.
fn place_of(snapshot: &DiskSnapshot) -> Option<(&str, &str)> {
    let status = snapshot.status.as_ref()?;
    Some((status.binding.as_ref()?.host.as_str(), status.volume_id.as_deref()?))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use berth_api::{BackupRepository, HOST_FINALIZER, Host};
    use serde_json::{Value, json};
    use tokio::time::Instant;

    use super::*;
    use crate::{batch::Write, config::Config, object::Object};

    fn put(cache: &mut Cache, name: &str, version: u32, is_deleted: bool, spec: &Value, status: &Value) {
        let mut metadata = json!({"name": name, "namespace": "ns", "uid": name, "generation": 1,
            "resourceVersion": version.to_string(), "finalizers": [HOST_FINALIZER]});
        if is_deleted {
            metadata["deletionTimestamp"] = json!("2026-01-02T00:00:00Z");
        }
        let backup = json!({"metadata": metadata, "spec": spec, "status": status});
        cache.put(serde_json::from_value::<Backup>(backup).expect("a Backup"), Instant::now());
    }

    fn earlier(host: Option<&str>) -> Value {
        let binding = host.map(|host| json!({"host": host, "epoch": 1}));
        json!({"binding": binding, "volumeID": "v-1", "backupID": "b-earlier", "completedAt": "2026-01-01T00:00:00Z"})
    }

    fn of_snapshot(name: &str) -> Value {
        json!({"repository": "r", "snapshot": name})
    }

    /// A cache with a disk that went from one host to another, where a snapshot is to be backed up.
    fn moved() -> Cache {
        let mut cache = Cache::new(Duration::from_secs(40));
        for (name, version) in [("former", "1"), ("next", "2")] {
            let host =
                json!({"metadata": {"name": name, "uid": name, "resourceVersion": version}, "spec": {}});
            cache.put(serde_json::from_value::<Host>(host).expect("a Host"), Instant::now());
        }
        let meta = |name: &str| json!({"name": name, "namespace": "ns", "uid": name, "resourceVersion": "3"});
        let spec = json!({"s3": {"endpoint": "https://s3.example.org", "region": "r", "bucket": "b"},
            "credentialsSecretName": "c", "passwordSecretName": "p"});
        let repository = json!({"metadata": meta("r"), "spec": spec});
        cache.put(
            serde_json::from_value::<BackupRepository>(repository).expect("a BackupRepository"),
            Instant::now(),
        );
        let taken = json!({"binding": {"host": "next", "epoch": 1}, "snapshotID": "s-1", "volumeID": "v-1",
            "pool": "ceph", "size": "4Gi", "takenAt": "2026-01-02T00:00:00Z", "consistency": "Crash"});
        let snapshot = json!({"metadata": meta("s"), "spec": {"disk": "d"}, "status": taken});
        cache.put(serde_json::from_value::<DiskSnapshot>(snapshot).expect("a DiskSnapshot"), Instant::now());
        put(&mut cache, "new", 4, false, &of_snapshot("s"), &json!(null));
        cache
    }

    fn elsewhere_of(cache: &Cache) -> Vec<String> {
        let new = cache.tables.backups.named("ns", "new").expect("it is there");
        let snapshot = cache.tables.disk_snapshots.named("ns", "s").expect("it is there");
        elsewhere(cache, new, snapshot).iter().map(|other| other.name_any()).collect()
    }

    /// Returns the statuses that a reconcile of the new one writes, by name.
    fn written(cache: &Cache) -> Vec<(String, BackupStatus)> {
        let mut batch = WriteBatch::default();
        let key = Key::namespaced(ObjectKind::Backup, "ns", "new");
        super::super::reconcile(cache, &Config::new(), &key, &mut batch);
        let (writes, _) = batch.into_parts();
        let statuses = writes.into_iter().filter_map(|write| match write {
            Write::Status(Object::Backup(backup)) => {
                Some((backup.name_any(), backup.status.clone().unwrap_or_default()))
            }
            _ => None,
        });
        statuses.collect()
    }

    #[tokio::test]
    async fn a_backup_of_a_disk_that_has_moved_is_made_once_its_former_host_has_given_up_the_earlier_ones() {
        let mut cache = moved();
        put(&mut cache, "earlier", 5, false, &of_snapshot("gone"), &earlier(Some("former")));
        let statuses = written(&cache);
        let of = |name: &str| statuses.iter().find(|(of, _)| of == name).map(|(_, status)| status.clone());
        let given_up = of("earlier").expect("its host is taken from it");
        assert_eq!((given_up.binding, given_up.backup_id.as_deref()), (None, Some("b-earlier")));
        assert!(of("new").is_some_and(|status| status.binding.is_none()), "it waits");
        put(&mut cache, "earlier", 6, false, &of_snapshot("gone"), &earlier(None));
        let bound: Vec<_> =
            written(&cache).into_iter().map(|(name, s)| (name, s.binding.map(|b| b.host))).collect();
        assert_eq!(bound, [("new".to_owned(), Some("next".to_owned()))]);
        let unbound = cache.tables.backups.named("ns", "earlier").expect("it is there").clone();
        assert_eq!(writer(&cache, &unbound, "v-1").as_deref(), Some("next"), "it is read and deleted there");
    }

    #[tokio::test]
    async fn a_backup_waits_for_the_deletion_of_another_one_of_its_disk_by_another_host() {
        let mut cache = moved();
        put(&mut cache, "earlier", 5, true, &of_snapshot("gone"), &earlier(Some("former")));
        let statuses = written(&cache);
        let names: Vec<&str> = statuses.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["new"], "its host goes on with the deletion");
        assert_eq!(statuses[0].1.binding, None);
    }

    #[tokio::test]
    async fn a_backup_waits_for_one_that_its_former_host_makes_and_takes_the_host_from_one_without_a_snapshot()
     {
        let mut cache = moved();
        let mut unfinished = earlier(Some("former"));
        unfinished["completedAt"] = json!(null);
        put(&mut cache, "earlier", 5, false, &of_snapshot("gone"), &unfinished);
        let statuses = written(&cache);
        let bound: Vec<_> = statuses.iter().map(|(name, s)| (name.as_str(), s.binding.is_some())).collect();
        assert_eq!(bound.len(), 2, "its host would delete it while the new one is made: {bound:?}");
        assert!(bound.iter().all(|(_, is_bound)| !is_bound), "{bound:?}");
        let status =
            json!({"binding": {"host": "former", "epoch": 1}, "snapshotID": "s-0", "volumeID": "v-1"});
        let meta = json!({"name": "gone", "namespace": "ns", "uid": "gone", "resourceVersion": "6"});
        let snapshot = json!({"metadata": meta, "spec": {"disk": "d"}, "status": status});
        cache.put(serde_json::from_value::<DiskSnapshot>(snapshot).expect("a DiskSnapshot"), Instant::now());
        let names: Vec<String> = written(&cache).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["new"], "it is made to its end");
        assert_eq!(elsewhere_of(&cache), ["earlier"]);
    }

    #[tokio::test]
    async fn backups_of_other_disks_of_the_same_host_and_of_one_that_is_gone_hold_up_nothing() {
        let mut cache = moved();
        let mut of_other = earlier(Some("former"));
        of_other["volumeID"] = json!("v-2");
        put(&mut cache, "other", 5, false, &of_snapshot("gone"), &of_other);
        put(&mut cache, "beside", 6, false, &of_snapshot("gone"), &earlier(Some("next")));
        put(&mut cache, "lost", 7, true, &of_snapshot("gone"), &earlier(Some("removed")));
        assert!(elsewhere_of(&cache).is_empty());
        let existing = json!({"repository": "r", "existing": "v-1/b-9"});
        let status = json!({"binding": {"host": "former", "epoch": 1}, "volumeID": "v-1", "backupID": "b-9"});
        put(&mut cache, "existing", 8, false, &existing, &status);
        assert_eq!(elsewhere_of(&cache), ["existing"]);
    }
}
