use serde_json::{Value, json};

use super::*;

const FIRST: &str = "web-stop-20260101000001";
const SECOND: &str = "web-stop-20260101000002";
const THIRD: &str = "web-stop-20260101000003";

fn request(second: u8) -> Value {
    let requested_at = format!("2026-01-01T00:00:0{second}Z");
    json!({"name": format!("web-stop-2026010100000{second}"), "requestedAt": requested_at})
}

fn vm(hook: Value, request: Value, listed: &[&str]) -> VM {
    let listed: Vec<Value> =
        listed.iter().map(|name| json!({"name": name, "takenAt": "2026-01-01T00:00:00Z"})).collect();
    serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "ns", "uid": "u"},
        "spec": {"class": "s", "disks": [{"name": "root", "boot": true}], "hooks": {"preStop": hook}},
        "status": {"observedGeneration": 1, "stopSnapshot": request, "snapshots": listed},
    }))
    .expect("a VM")
}

fn keeping(keep: i64) -> Value {
    json!({"snapshot": {"keep": keep}})
}

fn own(name: &str, created: u8, progress: Progress) -> OwnSnapshot {
    let object = serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "ns", "creationTimestamp": format!("2026-01-01T00:00:0{created}Z")},
        "spec": {"vm": "web"},
    }));
    OwnSnapshot { object: Arc::new(object.expect("a snapshot")), progress }
}

fn deleted(vm: &VM, own: &[OwnSnapshot]) -> Vec<String> {
    names(&decide(vm, own, |_| true, |_| false))
}

fn names(decision: &Decision) -> Vec<String> {
    decision.delete.iter().map(|snapshot| snapshot.name_any()).collect()
}

/// Returns the name of the snapshot that is created where none has that name.
fn created(vm: &VM, own: &[OwnSnapshot]) -> Option<String> {
    decide(vm, own, |_| false, |_| false).create.map(|snapshot| snapshot.name_any())
}

#[test]
fn the_snapshot_that_a_host_asks_for_is_created_once() {
    let asked = vm(keeping(1), request(1), &[]);
    let made = decide(&asked, &[], |_| false, |_| false).create.expect("it is created");
    assert_eq!((made.name_any().as_str(), made.spec.vm.as_str()), (FIRST, "web"));
    assert_eq!(made.namespace().as_deref(), Some("ns"));
    assert!(made.is_of_stop());
    assert!(decide(&asked, &[], |name| name == FIRST, |_| false).create.is_none(), "it exists");
}

#[test]
fn a_host_has_no_other_snapshot_created_than_the_declared_one() {
    let exec = vm(json!({"exec": {"command": ["true"]}}), request(1), &[]);
    assert_eq!(created(&exec, &[]), None, "the hook takes none");
    let other = json!({"name": "other", "requestedAt": "2026-01-01T00:00:01Z"});
    assert_eq!(created(&vm(keeping(1), other, &[]), &[]), None);
}

#[test]
fn the_newest_ones_that_are_taken_are_kept() {
    let all =
        [own(FIRST, 1, Progress::Taken), own(SECOND, 2, Progress::Taken), own(THIRD, 3, Progress::Taken)];
    assert_eq!(deleted(&vm(keeping(2), Value::Null, &[]), &all), [FIRST]);
    assert_eq!(deleted(&vm(keeping(1), Value::Null, &[]), &all), [SECOND, FIRST]);
    assert!(deleted(&vm(keeping(3), Value::Null, &[]), &all).is_empty());
    let exec = json!({"exec": {"command": ["true"]}});
    assert!(deleted(&vm(exec, Value::Null, &[]), &all).is_empty(), "without the hook all stay");
}

#[test]
fn one_that_is_not_taken_deletes_none_that_is_and_a_lost_one_goes_after_the_next() {
    let waits = [own(FIRST, 1, Progress::Taken), own(SECOND, 2, Progress::NotTaken)];
    assert!(deleted(&vm(keeping(1), request(2), &[]), &waits).is_empty(), "its host waits for it");
    let lost = [own(FIRST, 1, Progress::Lost), own(SECOND, 2, Progress::Taken)];
    assert_eq!(deleted(&vm(keeping(1), Value::Null, &[]), &lost), [FIRST]);
    assert!(deleted(&vm(keeping(1), Value::Null, &[]), &lost[..1]).is_empty());
}

#[test]
fn one_that_is_not_taken_is_deleted_once_its_host_has_gone_on_without_it() {
    let left = [own(FIRST, 1, Progress::NotTaken)];
    assert_eq!(deleted(&vm(keeping(1), Value::Null, &[]), &left), [FIRST]);
    assert_eq!(deleted(&vm(keeping(1), request(2), &[]), &left), [FIRST], "another stop has begun");
    assert!(deleted(&vm(keeping(1), Value::Null, &[FIRST]), &left).is_empty(), "its host has taken it");
    let exec = json!({"exec": {"command": ["true"]}});
    assert!(deleted(&vm(exec, Value::Null, &[]), &left).is_empty(), "the hook takes none any more");
    let mut lost = vm(keeping(1), Value::Null, &[]);
    lost.status = None;
    assert!(deleted(&lost, &left).is_empty(), "the status of the VM is lost");
}

#[test]
fn a_host_whose_clock_goes_back_keeps_the_snapshot_that_was_made_last() {
    let all = [own(THIRD, 1, Progress::Taken), own(FIRST, 2, Progress::Taken)];
    assert_eq!(deleted(&vm(keeping(1), Value::Null, &[]), &all), [THIRD]);
}

#[test]
fn one_of_which_nothing_is_known_is_deleted_once_as_many_newer_ones_are_taken_as_are_kept() {
    for progress in [Progress::Unknown, Progress::Empty] {
        let alone = [own(FIRST, 1, progress)];
        assert!(deleted(&vm(keeping(1), Value::Null, &[]), &alone).is_empty());
        let newer = [own(FIRST, 1, progress), own(SECOND, 2, Progress::Taken)];
        assert_eq!(deleted(&vm(keeping(1), Value::Null, &[]), &newer), [FIRST]);
        assert!(deleted(&vm(keeping(2), Value::Null, &[]), &newer).is_empty(), "it may be one of two");
        let newest = [own(FIRST, 1, Progress::Taken), own(SECOND, 2, progress)];
        assert!(deleted(&vm(keeping(1), Value::Null, &[]), &newest).is_empty());
    }
}

#[test]
fn the_one_that_the_vm_is_to_be_restored_from_is_kept_until_it_is_restored() {
    let all = [own(FIRST, 1, Progress::Taken), own(SECOND, 2, Progress::Taken)];
    let mut restored = vm(keeping(1), Value::Null, &[]);
    restored.spec.restore =
        serde_json::from_value(json!({"snapshot": FIRST, "token": "2"})).expect("a restore");
    assert!(deleted(&restored, &all).is_empty());
    let done = |token: &str| json!({"snapshot": FIRST, "token": token, "restoredAt": "2026-01-01T00:00:09Z"});
    let mut with = |token: &str| {
        let status = restored.status.as_mut().expect("set");
        status.restored_from = serde_json::from_value(done(token)).expect("a restore");
        deleted(&restored, &all)
    };
    assert!(with("1").is_empty(), "it was restored before, and is to be once more");
    assert_eq!(with("2"), [FIRST]);
}

#[test]
fn one_that_a_backup_or_a_disk_needs_is_kept_unless_it_is_not_taken() {
    let all = [own(FIRST, 1, Progress::Taken), own(SECOND, 2, Progress::Taken)];
    let one = vm(keeping(1), Value::Null, &[]);
    let needed = |own: &[OwnSnapshot]| names(&decide(&one, own, |_| true, |s| s.name_any() == FIRST));
    assert!(needed(&all).is_empty());
    assert_eq!(needed(&[own(FIRST, 1, Progress::NotTaken)]), [FIRST]);
}

#[test]
fn a_host_that_asks_again_and_again_has_a_limited_number_created() {
    let asked = vm(keeping(1), request(9), &[]);
    let some = |progress: &[Progress]| -> Vec<OwnSnapshot> {
        (1..)
            .zip(progress)
            .map(|(n, progress)| own(&format!("web-stop-2026010100000{n}"), n, *progress))
            .collect()
    };
    let created = |progress: &[Progress]| created(&asked, &some(progress)).is_some();
    for progress in [Progress::Unknown, Progress::Lost, Progress::Empty] {
        assert!(created(&[progress; 5]), "{progress:?}");
        assert!(!created(&[progress; 6]), "{progress:?}");
    }
    assert!(created(&[[Progress::Lost; 5].as_slice(), &[Progress::Deleted; 3]].concat()));
    let full = |progress: Progress| names(&decide(&asked, &some(&[progress; 6]), |_| false, |_| false));
    assert!(full(Progress::Unknown).is_empty());
    assert_eq!(full(Progress::Empty), [FIRST], "it makes room");
}

mod cached {
    use std::time::Duration;

    use berth_api::Backup;
    use tokio::time::Instant;

    use super::*;
    use crate::{batch::WriteBatch, config::Config, key::ObjectKind, object::Object};

    fn cache(objects: impl IntoIterator<Item = Object>) -> Cache {
        let mut cache = Cache::new(Duration::from_secs(40));
        for object in objects {
            cache.replace(object, Instant::now());
        }
        cache
    }

    fn snapshot(status: &Value) -> VMSnapshot {
        let mut made = new_snapshot(
            &vm(keeping(1), Value::Null, &[]),
            &serde_json::from_value(request(1)).expect("a request"),
        );
        made.metadata.uid = Some("u1".to_owned());
        made.status = serde_json::from_value(status.clone()).expect("a status");
        made
    }

    fn part(place: usize, status: &Value) -> DiskSnapshot {
        serde_json::from_value(json!({
            "metadata": {"name": format!("{FIRST}-{place}"), "namespace": "ns",
                "labels": {"berth.dev/vm-snapshot": FIRST}, "annotations": {"berth.dev/vm-snapshot-parts": "2"}},
            "spec": {"disk": "root"}, "status": status,
        }))
        .expect("a part")
    }

    fn reported(reason: &str) -> Value {
        json!({"binding": {"host": "h", "epoch": 1}, "conditions": [{"type": "Ready", "status": "False",
            "reason": reason, "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]})
    }

    fn decided(is_stalled: bool) -> Value {
        let stalled = if is_stalled { "True" } else { "False" };
        json!({"disks": [{"disk": "root", "snapshot": format!("{FIRST}-0")}, {"disk": "data", "snapshot": format!("{FIRST}-1")}],
            "conditions": [{"type": "Stalled", "status": stalled, "reason": "NoSpace", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z"}]})
    }

    fn of(parts: &[Value]) -> Progress {
        let parts = parts.iter().enumerate().map(|(place, status)| Object::from(part(place, status)));
        progress(&cache(parts), &snapshot(&decided(false)))
    }

    #[test]
    fn a_disk_that_may_be_refused_is_created_after_the_snapshot_that_a_stop_waits_for() {
        let mut asked = serde_json::to_value(vm(keeping(1), request(1), &[])).expect("a VM");
        asked["metadata"]["creationTimestamp"] = "2020-01-01T00:00:00Z".into();
        asked["spec"]["disks"][0]["template"] = json!({"size": "1Gi"});
        asked["spec"]["networkInterfaces"] = json!([]);
        asked["status"]["binding"] = json!({"host": "h", "epoch": 1});
        asked["status"]["admittedEpoch"] = 1.into();
        let asked: VM = serde_json::from_value(asked).expect("a VM");
        let mut batch = WriteBatch::default();
        let cache = cache([asked.clone().into()]);
        crate::kinds::vm::reconcile(&cache, &Config::new(), &Key::of(&asked), &mut batch);
        let (writes, _) = batch.into_parts();
        let created = writes.iter().filter(|write| matches!(write, Write::Create(_)));
        let kinds: Vec<ObjectKind> = created.map(|write| write.key().kind).collect();
        assert_eq!(kinds, [ObjectKind::VMSnapshot, ObjectKind::Disk]);
    }

    #[test]
    fn only_the_host_knows_that_a_snapshot_is_not_taken() {
        assert_eq!(of(&[]), Progress::Empty);
        assert_eq!(of(&[Value::Null]), Progress::Unknown);
        assert_eq!(of(&[reported("NoSpace"), reported("Bound")]), Progress::Unknown, "bound after a loss");
        assert_eq!(of(&[reported("NoSpace"), reported("Retrying")]), Progress::Unknown, "it cannot read it");
        let mut unbound = reported("NoSpace");
        unbound["binding"] = Value::Null;
        assert_eq!(of(&[unbound]), Progress::Unknown);
        let mut taken = reported("Provisioning");
        taken["takenAt"] = json!("2026-01-01T00:00:00Z");
        assert_eq!(of(&[reported("Provisioning"), taken]), Progress::Unknown);
        assert_eq!(of(&[reported("NoSpace"), reported("Provisioning")]), Progress::NotTaken);
        assert_eq!(of(&[reported("WaitingForSnapshot")]), Progress::NotTaken, "the other one is not there");
    }

    #[test]
    fn of_a_vm_that_is_gone_those_are_deleted_that_its_host_will_not_take() {
        let left = |status: &Value, parts: &[Value]| {
            let parts = parts.iter().enumerate().map(|(place, status)| Object::from(part(place, status)));
            let objects: Vec<Object> = [Object::from(snapshot(status))].into_iter().chain(parts).collect();
            writes_without_vm(&cache(objects), &Key::of(&vm(keeping(1), Value::Null, &[]))).len()
        };
        assert_eq!(left(&decided(true), &[reported("NoSpace"), reported("Provisioning")]), 1);
        assert_eq!(left(&decided(false), &[reported("WaitingForSnapshot")]), 1, "the other one is not there");
        let going_on = [reported("Provisioning"), reported("Provisioning")];
        assert_eq!(left(&decided(false), &going_on), 0, "it is being taken");
        assert_eq!(left(&decided(true), &[reported("Bound"), reported("Bound")]), 0, "it may be taken");
        assert_eq!(left(&decided(true), &[]), 0);
    }

    #[test]
    fn a_backup_that_is_not_complete_and_a_disk_without_the_data_need_a_snapshot() {
        let name = format!("{FIRST}-1");
        let needs = |object: Object| is_needed(&cache([object]), &snapshot(&Value::Null));
        let backup = |status: Value| -> Object {
            let backup: Backup = serde_json::from_value(json!({
                "metadata": {"name": "b", "namespace": "ns"}, "status": status,
                "spec": {"repository": "nas", "snapshot": name},
            }))
            .expect("a backup");
            backup.into()
        };
        assert!(needs(backup(Value::Null)));
        assert!(!needs(backup(json!({"completedAt": "2026-01-01T00:00:00Z"}))));
        let disk = |spec: Value, status: Value| -> Object {
            let mut object = json!({"metadata": {"name": "d", "namespace": "ns"}, "spec": {"size": "1Gi"}, "status": status});
            object["spec"]
                .as_object_mut()
                .expect("set")
                .extend(spec.as_object().cloned().expect("an object"));
            serde_json::from_value::<Disk>(object).expect("a disk").into()
        };
        let source = json!({"source": {"snapshot": name}});
        assert!(needs(disk(source.clone(), Value::Null)));
        assert!(!needs(disk(source, json!({"size": "1Gi"}))), "it is made");
        let restore = json!({"restore": {"snapshot": name}});
        assert!(needs(disk(restore.clone(), json!({"size": "1Gi"}))));
        let done = json!({"snapshot": name, "snapshotID": "s", "restoredAt": "2026-01-01T00:00:00Z"});
        assert!(!needs(disk(restore, json!({"size": "1Gi", "restoredFrom": done}))));
        assert!(!needs(disk(json!({}), Value::Null)));
    }
}
