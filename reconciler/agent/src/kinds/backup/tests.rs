mod verification;

use std::time::Duration;

use berth_api::{Backup, BackupRepository, Consistency, DiskSnapshot, Readiness, Reason};
use berth_host::{BackupFacts, Taken};
use jiff::Timestamp;
use kube::runtime::watcher::Event;
use serde_json::{Value, json};

use super::observe::{Observed, is_in_another};
use super::plan::plan;
use super::status::status;
use super::*;
use crate::index::Index;
use crate::pulls::Pull;

fn backup(name: &str, spec: &Value, status: &Value) -> Backup {
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "ns", "uid": name, "generation": 1, "resourceVersion": "1"},
        "spec": spec, "status": status,
    }))
    .expect("a backup")
}

fn bound(name: &str, more: Value) -> Backup {
    let mut status = json!({"binding": {"host": "h", "epoch": 1}, "volumeID": "v-1", "backupID": format!("b-{name}"),
        "snapshotID": format!("s-{name}"), "pool": "default"});
    for (key, value) in more.as_object().cloned().unwrap_or_default() {
        status[key] = value;
    }
    backup(name, &json!({"repository": "r", "snapshot": name}), &status)
}

fn complete(name: &str, taken_at: &str) -> Backup {
    bound(name, json!({"completedAt": "2026-01-09T00:00:00Z", "takenAt": taken_at}))
}

fn deleted(mut backup: Backup, policy: DeletionPolicy) -> Backup {
    backup.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::UNIX_EPOCH));
    backup.spec.deletion_policy = policy;
    backup
}

fn index(backups: &[Backup]) -> Index {
    let index = Index::default();
    let repository: BackupRepository = serde_json::from_value(json!({
        "metadata": {"name": "r", "namespace": "ns", "resourceVersion": "1"},
        "spec": {"folder": "nas", "passwordSecretName": "password"},
    }))
    .expect("a repository");
    index.apply(Event::Apply(repository));
    for backup in backups {
        index.apply(Event::Apply(backup.clone()));
    }
    index
}

/// The observation of a backup whose work is in this state.
fn seen(backup: &Backup, pull: Option<Pull>) -> Observed {
    let index = index(std::slice::from_ref(backup));
    let wanted = wanted_by(&index.read(), backup);
    Observed { has_repository: true, wanted, pull, unfinished: None, server: None }
}

fn facts() -> BackupFacts {
    BackupFacts {
        id: BackupId { disk: "v-1".into(), backup: "b-a".into() },
        repository: "r-1".into(),
        size: 4 << 30,
        taken: Some(Taken { at: Timestamp::UNIX_EPOCH, frozen: true, memory: false }),
        read_bytes: Some(1000),
        stored_bytes: Some(100),
        parent: Some("b-0".into()),
    }
}

fn failed(readiness: Readiness) -> Option<Pull> {
    Some(Pull::Failed { readiness, again: Some(Duration::from_secs(9)) })
}

#[test]
fn the_newest_complete_backups_of_the_same_disk_are_the_first_parents() {
    let other_disk =
        bound("o", json!({"completedAt": "x", "takenAt": "2026-01-05T00:00:00Z", "volumeID": "v-2"}));
    let mut other_repository = complete("p", "2026-01-06T00:00:00Z");
    other_repository.spec.repository = "other".into();
    let all = [
        complete("old", "2026-01-01T00:00:00Z"),
        complete("new", "2026-01-03T00:00:00Z"),
        bound("unfinished", json!({"takenAt": "2026-01-04T00:00:00Z"})),
        deleted(complete("gone", "2026-01-04T00:00:00Z"), DeletionPolicy::Delete),
        other_disk,
        other_repository,
        bound("a", json!({})),
    ];
    let index = index(&all);
    let Some(Wanted::Backup(repository, id, Details(new))) = wanted_by(&index.read(), &all[6]) else {
        panic!("it is to be made")
    };
    assert_eq!((repository.name.as_str(), id.backup.as_str()), ("r", "b-a"));
    let parents: Vec<&str> = new.parents.iter().map(|parent| parent.backup.as_str()).collect();
    assert_eq!(parents, ["b-new", "b-old"]);
    assert_eq!(new.parents[0].snapshot, "s-new");
}

#[test]
fn a_backup_keeps_the_declaration_of_the_vm_that_has_the_disk_in_its_list() {
    let new = bound("a", json!({}));
    let index = index(std::slice::from_ref(&new));
    let kept = |index: &Index| match wanted_by(&index.read(), &new) {
        Some(Wanted::Backup(_, _, Details(new))) => new.declaration,
        other => panic!("{other:?}"),
    };
    let metadata = |name: &str| json!({"name": name, "namespace": "ns", "resourceVersion": "1"});
    let snapshot = json!({"metadata": metadata("a"), "spec": {"disk": "web-data"}});
    index.apply::<DiskSnapshot>(Event::Apply(serde_json::from_value(snapshot).expect("a snapshot")));
    let disk = json!({"metadata": metadata("web-data"), "spec": {"size": "1Gi"}});
    index.apply::<Disk>(Event::Apply(serde_json::from_value(disk).expect("a Disk")));
    assert_eq!(kept(&index), None, "it has no VM");
    let spec = json!({"cpus": 1, "disks": [{"name": "web-root", "boot": true}, {"name": "web-data"}]});
    let vm = json!({"metadata": metadata("web"), "spec": spec});
    index.apply::<VM>(Event::Apply(serde_json::from_value(vm).expect("a VM")));
    let declaration = VMDeclaration::decode(kept(&index).expect("kept").as_bytes()).expect("a declaration");
    assert_eq!((declaration.vm.as_str(), declaration.disk.as_str()), ("web", "web-data"));
    assert_eq!(declaration.disk_spec["size"], "1Gi");
}

#[test]
fn a_backup_is_made_once_and_its_progress_is_reported() {
    let new = bound("a", json!({}));
    let start = plan(&new, &seen(&new, None));
    assert!(matches!(start.steps[..], [Step::Start(Wanted::Backup(..))]), "{start:?}");
    let running = Pull::Running { done: 37, total: Some(100), rate: None, followed: true };
    let observed = seen(&new, Some(running));
    let goes_on = plan(&new, &observed);
    assert!(goes_on.steps.is_empty() && goes_on.readiness.message() == "35 % backed up", "{goes_on:?}");
    let reported = status(&new, &observed, &goes_on.readiness, Timestamp::UNIX_EPOCH);
    assert_eq!(reported.progress, Some(35));
    let observed = seen(&new, Some(Pull::Stored(facts())));
    let done = plan(&new, &observed);
    assert!(matches!(done.readiness, Readiness::Ready(..)) && done.steps.is_empty(), "{done:?}");
    let reported = status(&new, &observed, &done.readiness, Timestamp::UNIX_EPOCH);
    assert_eq!((reported.progress, reported.size.as_deref()), (None, Some("4Gi")));
    assert_eq!((reported.consistency, reported.stored_bytes), (Some(Consistency::FileSystem), Some(100)));
    assert_eq!(
        (reported.parent_backup.as_deref(), reported.repository_id.as_deref()),
        (Some("b-0"), Some("r-1"))
    );
    assert!(reported.completed_at.is_some());
    let later = Backup { status: Some(reported.clone()), ..new };
    let observed = seen(&later, None);
    assert_eq!((observed.wanted.clone(), plan(&later, &observed).steps), (None, Vec::new()));
    assert_eq!(
        status(&later, &observed, &done.readiness, Timestamp::UNIX_EPOCH).completed_at,
        reported.completed_at
    );
}

#[test]
fn a_first_backup_in_another_repository_than_the_recorded_one_is_not_complete() {
    let new = bound("a", json!({}));
    let known = index(std::slice::from_ref(&new));
    let is_another = || {
        let wanted = wanted_by(&known.read(), &new).expect("work");
        is_in_another(&wanted, &Pull::Stored(facts()))
    };
    assert!(!is_another(), "none is recorded");
    for (id, expected) in [("r-1", false), ("r-2", true)] {
        let repository = json!({
            "metadata": {"name": "r", "namespace": "ns", "resourceVersion": id},
            "spec": {"folder": "nas", "passwordSecretName": "password"},
            "status": {"repositoryID": id},
        });
        known.apply::<BackupRepository>(Event::Apply(
            serde_json::from_value(repository).expect("a repository"),
        ));
        assert_eq!(is_another(), expected, "{id}");
    }
}

#[test]
fn an_existing_backup_is_looked_for_and_one_without_its_repository_waits() {
    let existing = backup(
        "e",
        &json!({"repository": "r", "existing": "v-9/b-9"}),
        &json!({"binding": {"host": "h", "epoch": 1}}),
    );
    let find = plan(&existing, &seen(&existing, None));
    let [Step::Start(Wanted::Existing(_, id))] = &find.steps[..] else { panic!("{find:?}") };
    assert_eq!((id.disk.as_str(), id.backup.as_str()), ("v-9", "b-9"));
    let waits = plan(&existing, &Observed::default());
    assert_eq!((waits.steps.len(), waits.readiness.reason()), (0, Reason::WaitingForRepository));
}

#[test]
fn a_backup_whose_snapshot_is_gone_says_so() {
    let new = bound("a", json!({}));
    let lost = failed(Readiness::Stalled(Reason::SnapshotLost, "snapshot s-a is not on this host".into()));
    let stalled = plan(&new, &seen(&new, lost));
    assert!(stalled.readiness.message().starts_with("DiskSnapshot a was deleted or lost"), "{stalled:?}");
    assert_eq!(stalled.requeue_after, Some(Duration::from_secs(9)));
}

#[test]
fn a_deletion_ends_the_work_first_and_then_deletes_what_is_not_retained() {
    let gone = deleted(bound("a", json!({})), DeletionPolicy::Delete);
    let unfinished = made_by(&index(std::slice::from_ref(&gone)).read(), &gone);
    let observed = Observed { unfinished: unfinished.clone(), ..seen(&gone, None) };
    assert_eq!(plan(&gone, &observed).steps, [Step::Cancel(unfinished.expect("work"))]);
    let deletes = plan(&gone, &seen(&gone, None));
    assert!(matches!(deletes.steps[..], [Step::Start(Wanted::Deletion(..))]), "{deletes:?}");
    assert_eq!(plan(&gone, &seen(&gone, Some(Pull::Deleted))).steps, [Step::Release]);
    let refused = failed(Readiness::Stalled(Reason::WrongPassword, "wrong".into()));
    let stalled = plan(&gone, &seen(&gone, refused));
    assert!(
        stalled.steps.is_empty() && stalled.readiness.message().contains("deletionPolicy"),
        "{stalled:?}"
    );
    let kept = deleted(complete("a", "2026-01-01T00:00:00Z"), DeletionPolicy::Retain);
    assert_eq!(plan(&kept, &seen(&kept, None)).steps, [Step::Release]);
}

#[test]
fn data_that_another_backup_stands_for_stays() {
    let gone = deleted(complete("a", "2026-01-01T00:00:00Z"), DeletionPolicy::Delete);
    let same = backup("again", &json!({"repository": "r", "existing": "v-1/b-a"}), &json!({}));
    let wanted = |others: &[Backup]| wanted_by(&index(others).read(), &gone);
    assert_eq!(wanted(&[gone.clone(), same.clone()]), None);
    let both_go = [gone.clone(), deleted(same, DeletionPolicy::Delete)];
    let other = backup("other", &json!({"repository": "r", "existing": "v-1/b-other"}), &json!({}));
    for others in [&both_go[..], &[gone.clone(), other]] {
        assert!(matches!(wanted(others), Some(Wanted::Deletion(..))), "{others:?}");
    }
}

#[test]
fn backups_and_their_deletions_hold_up_nothing_else() {
    let own = bound("a", json!({}));
    let (repository, id) =
        (repository_of(&index(&[]).read(), &own).expect("it is there"), id_of(&own).expect("set"));
    let making = made_by(&index(&[]).read(), &own).expect("work").slot_group();
    // It waits for a backup of the same disk, which may take days.
    let deletion = Wanted::Deletion(repository.clone(), id.clone()).slot_group();
    let others = Wanted::Existing(repository, id).slot_group();
    assert!(making != deletion && making != others && deletion != others);
}
