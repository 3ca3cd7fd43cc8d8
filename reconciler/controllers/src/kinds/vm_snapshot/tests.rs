use std::time::Duration;

use berth_api::{
    Consistency, Disk, DiskSnapshot, HotswapDiskAttachment, Quota, Reason, VM, VMSnapshotStatus, condition,
};
use kube::ResourceExt;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::*;
use crate::{object::Object, plan::Plan};

fn snapshot(status: Value) -> VMSnapshot {
    serde_json::from_value(json!({
        "metadata": {"name": "before", "namespace": "ns", "uid": "u1", "generation": 1}, "spec": {"vm": "web"}, "status": status,
    }))
    .expect("a snapshot of a VM")
}

/// Caches an object in place of the one of its name.
fn put(cache: &mut Cache, object: impl Into<Object>) {
    cache.replace(object.into(), Instant::now());
}

/// A VM with the disks `root` and `data`, and `log` attached to it.
fn site() -> Cache {
    let mut cache = Cache::new(Duration::from_secs(40));
    let vm: VM = serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "ns"},
        "spec": {"class": "small", "disks": [{"name": "root", "boot": true}, {"name": "data"}]},
    }))
    .expect("a VM");
    put(&mut cache, vm);
    for (name, disk, state) in [("z", "other", "Requested"), ("a", "log", "Attached")] {
        let attachment: HotswapDiskAttachment = serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "ns"}, "spec": {"vm": "web", "disk": disk}, "status": {"state": state},
        }))
        .expect("an attachment");
        put(&mut cache, attachment);
    }
    for name in ["root", "data", "log"] {
        put(&mut cache, disk(name, "h"));
    }
    cache
}

fn disk(name: &str, host: &str) -> Disk {
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "ns"}, "spec": {"size": "1Gi"},
        "status": {"binding": {"host": host, "epoch": 1}, "volumeID": format!("v-{name}"), "size": "1Gi"},
    }))
    .expect("a disk")
}

fn planned(cache: &Cache, snapshot: &VMSnapshot) -> Plan<plan::Decision> {
    plan::plan(snapshot, &observe::observe(cache, snapshot))
}

fn reason(plan: &Plan<plan::Decision>) -> (bool, Reason) {
    let readiness = &plan.decision.readiness;
    (matches!(readiness, Readiness::Stalled(..)), readiness.reason())
}

fn reported(snapshot: &VMSnapshot, plan: &Plan<plan::Decision>) -> VMSnapshotStatus {
    status(snapshot, &plan.decision, Timestamp::UNIX_EPOCH)
}

/// The snapshot with its disks decided, and the DiskSnapshots to create for them.
fn decided(cache: &Cache) -> (VMSnapshot, Vec<DiskSnapshot>) {
    let mut snapshot = snapshot(json!(null));
    snapshot.status = Some(reported(&snapshot, &planned(cache, &snapshot)));
    let parts = planned(cache, &snapshot).decision.create;
    (snapshot, parts)
}

fn with_status(part: &DiskSnapshot, status: &Value) -> DiskSnapshot {
    let mut part = serde_json::to_value(part).expect("an object");
    part["status"] = status.clone();
    serde_json::from_value(part).expect("a snapshot of a disk")
}

fn taken() -> Value {
    json!({"takenAt": "2026-01-01T00:00:00Z", "consistency": "FileSystem", "binding": {"host": "h", "epoch": 1},
        "conditions": [{"type": "Ready", "status": "True", "reason": "Available", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]})
}

fn stalled() -> Value {
    let condition = |kind: &str, status: &str| {
        json!({"type": kind, "status": status, "reason": "NoSpace", "message": "no space left",
            "lastTransitionTime": "2026-01-01T00:00:00Z"})
    };
    json!({"conditions": [condition("Ready", "False"), condition("Stalled", "True")]})
}

#[test]
fn its_parts_have_the_labels_and_annotations_of_the_vm_and_of_the_snapshot() {
    let mut cache = site();
    let vm: VM = serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "ns", "labels": {"team": "shop", "tier": "front"},
            "annotations": {"note": "of the VM"}},
        "spec": {"class": "small", "disks": [{"name": "root", "boot": true}]},
    }))
    .expect("a VM");
    put(&mut cache, vm);
    let mut snapshot = snapshot(json!(null));
    snapshot.metadata.labels = Some([("team".to_owned(), "backup".to_owned())].into());
    snapshot.status = Some(reported(&snapshot, &planned(&cache, &snapshot)));
    let parts = planned(&cache, &snapshot).decision.create;
    let part = parts.first().expect("one is made");
    assert_eq!(part.labels()["team"], "backup", "the nearer one counts");
    assert_eq!(part.labels()["tier"], "front");
    assert_eq!(part.annotations()["note"], "of the VM");
    assert!(part.part_of().is_some(), "it is found again");
}

#[test]
fn a_disk_that_several_vms_read_is_no_part_of_it() {
    let mut cache = site();
    let read_only = |name: &str| {
        let mut disk = disk(name, "h");
        disk.spec.access = berth_api::DiskAccess::ReadOnlyMany;
        disk
    };
    put(&mut cache, read_only("data"));
    let decided = planned(&cache, &snapshot(json!(null))).decision.disks;
    let names: Vec<&str> = decided.iter().map(|of| of.disk.as_str()).collect();
    assert_eq!(names, ["root", "log"]);
    put_web(&mut cache, "Running", "Running");
    let refused = planned(&cache, &with_memory());
    assert_eq!((reason(&refused), refused.decision.disks.len()), ((true, Reason::NotSupported), 0));
    let text = refused.decision.readiness.message().to_owned();
    assert!(text.contains("Disk data of VM web is ReadOnlyMany"), "{text}");
    for name in ["root", "log"] {
        put(&mut cache, read_only(name));
    }
    let without = planned(&cache, &snapshot(json!(null)));
    assert_eq!(without.decision.readiness.reason(), Reason::NotSupported);
    assert!(without.decision.disks.is_empty());
}

#[test]
fn it_waits_until_all_disks_of_its_vm_have_files_and_refuses_those_of_two_hosts() {
    let new = snapshot(json!(null));
    let nothing = planned(&Cache::new(Duration::from_secs(40)), &new);
    assert_eq!(reason(&nothing), (false, Reason::WaitingForVM));
    assert!(matches!(nothing.outcome, Outcome::Blocked(_)), "it is requeued when the VM is created");
    let mut cache = site();
    let mut without_file = disk("log", "h");
    without_file.status.as_mut().expect("set").size = None;
    put(&mut cache, without_file);
    let waits = planned(&cache, &new);
    assert_eq!(reason(&waits), (false, Reason::WaitingForDisk));
    assert!(waits.decision.readiness.message().contains("Disk log has no file yet"), "{waits:?}");
    assert!(waits.decision.disks.is_empty());
    put(&mut cache, disk("log", "h2"));
    assert_eq!(reason(&planned(&cache, &new)), (true, Reason::DiskOnOtherHost));
}

const OF_STOP: &str = "web-stop-20260101000001";

fn of_stop() -> VMSnapshot {
    serde_json::from_value(json!({
        "metadata": {"name": OF_STOP, "namespace": "ns", "uid": "u2", "labels": {"berth.dev/stopped-vm": "web"},
            "annotations": {"berth.dev/stopped-at": "2026-01-01T00:00:01Z"}},
        "spec": {"vm": "web"},
    }))
    .expect("a snapshot of a VM")
}

/// The VM, whose host asks for this snapshot.
fn put_asking(cache: &mut Cache, asked: &Value, is_deleted: bool) {
    let mut vm = json!({
        "metadata": {"name": "web", "namespace": "ns"},
        "spec": {"class": "small", "disks": [{"name": "root", "boot": true}, {"name": "data"}]},
        "status": {"stopSnapshot": asked},
    });
    if is_deleted {
        vm["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    }
    put(cache, serde_json::from_value::<VM>(vm).expect("a VM"));
}

fn asked() -> Value {
    json!({"name": OF_STOP, "requestedAt": "2026-01-01T00:00:01Z"})
}

#[test]
fn a_vm_that_is_being_deleted_has_no_new_snapshot_but_the_one_that_its_host_asks_for() {
    let mut cache = site();
    put_asking(&mut cache, &asked(), true);
    assert_eq!(reason(&planned(&cache, &snapshot(json!(null)))), (false, Reason::WaitingForVM));
    assert!(!planned(&cache, &of_stop()).decision.disks.is_empty());
}

#[test]
fn a_snapshot_of_a_stop_is_not_taken_after_its_host_has_gone_on() {
    let mut cache = site();
    let late = planned(&cache, &of_stop());
    assert_eq!((reason(&late), late.decision.disks.len()), ((false, Reason::WaitingForVM), 0));
    assert!(late.decision.readiness.message().contains("of a later moment"), "{late:?}");
    put_asking(&mut cache, &asked(), false);
    let mut snapshot = of_stop();
    snapshot.status = Some(reported(&snapshot, &planned(&cache, &snapshot)));
    let parts = planned(&cache, &snapshot).decision.create;
    assert_eq!(parts.len(), 3);
    put(&mut cache, parts[0].clone());
    put_asking(&mut cache, &Value::Null, false);
    let left = planned(&cache, &snapshot);
    assert_eq!((reason(&left), left.decision.create.len()), ((false, Reason::WaitingForVM), 0));
    assert_eq!(left.decision.disks.len(), 3, "they stay decided");
    put_asking(&mut cache, &asked(), false);
    assert_eq!(planned(&cache, &snapshot).decision.create.len(), 2, "its status was lost for a moment");
}

#[test]
fn the_disks_are_decided_once_and_each_has_a_snapshot_of_its_own() {
    let mut cache = site();
    let (snapshot, parts) = decided(&cache);
    let made: Vec<_> = parts.iter().map(|part| (part.name_any(), part.spec.disk.to_string())).collect();
    let expected = [("before-0", "root"), ("before-1", "data"), ("before-2", "log")];
    assert_eq!(made, expected.map(|(name, disk)| (name.to_owned(), disk.to_owned())));
    for part in &parts {
        assert_eq!(part.part_of().map(|of| (of.name, of.parts)), Some(("before", 3)));
        assert_eq!(part.owner_references().first().map(|owner| owner.uid.as_str()), Some("u1"));
    }
    // A crash came between the first and the second: it is bound already, and the others are created.
    put(&mut cache, with_status(&parts[0], &json!({"binding": {"host": "h", "epoch": 1}})));
    cache.remove(&Key::namespaced(crate::key::ObjectKind::VM, "ns", "web"));
    let left: Vec<_> = planned(&cache, &snapshot).decision.create.iter().map(ResourceExt::name_any).collect();
    assert_eq!(left, ["before-1", "before-2"]);
}

#[test]
fn it_is_ready_once_all_are_taken_and_tells_of_the_one_that_is_not() {
    let mut cache = site();
    let (snapshot, parts) = decided(&cache);
    put(&mut cache, with_status(&parts[0], &taken()));
    put(&mut cache, with_status(&parts[1], &taken()));
    put(&mut cache, with_status(&parts[2], &stalled()));
    let waits = planned(&cache, &snapshot);
    assert_eq!(reason(&waits), (true, Reason::NoSpace));
    assert!(waits.decision.readiness.message().contains("DiskSnapshot before-2 of Disk log: no space left"));
    assert_eq!(reported(&snapshot, &waits).taken_at, None);
    put(&mut cache, with_status(&parts[2], &taken()));
    let ready = planned(&cache, &snapshot);
    assert_eq!(reason(&ready), (false, Reason::Available));
    let status = reported(&snapshot, &ready);
    assert_eq!(status.taken_at.as_deref(), Some("2026-01-01T00:00:00Z"));
    assert_eq!((status.consistency, status.disks.len()), (Some(Consistency::FileSystem), 3));
}

fn with_memory() -> VMSnapshot {
    let mut snapshot = snapshot(json!(null));
    snapshot.spec.memory = true;
    snapshot
}

/// The VM of [`site`], with this power, in this state.
fn put_web(cache: &mut Cache, power: &str, state: &str) {
    let vm: VM = serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "ns"},
        "spec": {"class": "small", "power": power, "disks": [{"name": "root", "boot": true}, {"name": "data"}]},
        "status": {"state": state},
    }))
    .expect("a VM");
    put(cache, vm);
}

#[test]
fn a_snapshot_with_memory_waits_for_a_guest_that_runs_and_its_parts_are_taken_with_it() {
    let mut cache = site();
    put_web(&mut cache, "Running", "Starting");
    let waits = planned(&cache, &with_memory());
    assert_eq!(reason(&waits), (false, Reason::WaitingForVM));
    assert!(matches!(waits.outcome, Outcome::Blocked(_)), "it is requeued when the VM changes");
    for (power, state) in [("Stopped", "Stopped"), ("Paused", "Paused"), ("Suspended", "Suspended")] {
        put_web(&mut cache, power, state);
        let refused = planned(&cache, &with_memory());
        assert_eq!((reason(&refused), refused.decision.disks.len()), ((true, Reason::NotSupported), 0));
        assert!(
            !planned(&cache, &snapshot(json!(null))).decision.disks.is_empty(),
            "without memory it is taken"
        );
    }
    put_web(&mut cache, "Running", "Running");
    let mut snapshot = with_memory();
    snapshot.status = Some(reported(&snapshot, &planned(&cache, &snapshot)));
    let parts = planned(&cache, &snapshot).decision.create;
    assert_eq!(parts.len(), 3);
    assert!(parts.iter().all(|part| part.part_of().is_some_and(|of| of.memory)), "{parts:?}");
}

#[test]
fn a_snapshot_whose_host_took_the_disks_without_the_memory_says_so() {
    let mut cache = site();
    put_web(&mut cache, "Running", "Running");
    let mut snapshot = with_memory();
    snapshot.status = Some(reported(&snapshot, &planned(&cache, &snapshot)));
    let parts = planned(&cache, &snapshot).decision.create;
    for part in &parts {
        put(&mut cache, with_status(part, &taken()));
    }
    let without = planned(&cache, &snapshot);
    assert_eq!(reason(&without), (true, Reason::SnapshotInterrupted));
    assert!(without.decision.readiness.message().contains("upgrade berth"), "{without:?}");
    let mut whole = taken();
    whole["consistency"] = json!("Crash");
    whole["memory"] = json!(true);
    for part in &parts {
        put(&mut cache, with_status(part, &whole));
    }
    let ready = planned(&cache, &snapshot);
    assert_eq!(reason(&ready), (false, Reason::Available));
    assert_eq!(reported(&snapshot, &ready).consistency, Some(Consistency::Crash));
}

#[test]
fn parts_of_different_moments_are_no_snapshot_of_the_vm() {
    let mut cache = site();
    let (snapshot, parts) = decided(&cache);
    let mut later = taken();
    later["takenAt"] = "2026-01-01T00:00:01Z".into();
    for (part, status) in parts.iter().zip([taken(), later, taken()]) {
        put(&mut cache, with_status(part, &status));
    }
    let torn = planned(&cache, &snapshot);
    assert_eq!(reason(&torn), (true, Reason::SnapshotInterrupted));
    assert_eq!(reported(&snapshot, &torn).taken_at, None);
}

#[test]
fn a_part_that_is_gone_after_another_was_taken_is_reported_and_not_created_again() {
    let mut cache = site();
    let (snapshot, parts) = decided(&cache);
    put(&mut cache, with_status(&parts[0], &taken()));
    let lost = planned(&cache, &snapshot);
    assert_eq!((lost.decision.create.len(), reason(&lost)), (0, (true, Reason::SnapshotLost)));
    assert!(lost.decision.readiness.message().contains("before-1 of Disk data was deleted"), "{lost:?}");
}

#[test]
fn a_lost_status_is_found_again_by_the_parts() {
    let mut cache = site();
    let (decided, parts) = decided(&cache);
    for part in &parts {
        put(&mut cache, with_status(part, &taken()));
    }
    let anew = snapshot(json!(null));
    let found = planned(&cache, &anew);
    assert_eq!(reason(&found), (false, Reason::Available));
    assert_eq!(Some(reported(&anew, &found).disks), decided.status.map(|status| status.disks));
    cache.remove(&Key::of(&parts[1]));
    let incomplete = planned(&cache, &anew);
    assert_eq!((incomplete.decision.create.len(), reason(&incomplete)), (0, (true, Reason::SnapshotLost)));
}

#[test]
fn a_snapshot_of_the_same_name_that_is_no_part_is_left_alone() {
    let mut cache = site();
    let (_, parts) = decided(&cache);
    let mut foreign = parts[1].clone();
    foreign.metadata.owner_references.as_mut().expect("set")[0].uid = "u0".to_owned();
    put(&mut cache, foreign.clone());
    let former = planned(&cache, &snapshot(json!(null)));
    assert_eq!(reason(&former), (false, Reason::WaitingForSnapshot), "it goes with its VMSnapshot");
    foreign.metadata.labels = None;
    put(&mut cache, foreign);
    assert_eq!(reason(&planned(&cache, &snapshot(json!(null)))), (true, Reason::InvalidSpec));
}

#[test]
fn a_snapshot_beyond_a_quota_waits_for_it_and_one_with_another_obstacle_reports_that() {
    let mut cache = site();
    let quota: Quota = serde_json::from_value(json!({
        "metadata": {"name": "team", "namespace": "ns"}, "spec": {"hard": {"snapshots": 2}},
    }))
    .expect("a Quota");
    put(&mut cache, quota);
    let (snapshot, parts) = decided(&cache);
    put(&mut cache, snapshot.clone());
    let reported = |cache: &Cache| {
        let mut batch = WriteBatch::default();
        reconcile(cache, &Config::new(), &Key::of(&snapshot), &mut batch);
        let (writes, _) = batch.into_parts();
        let [Write::Status(Object::VMSnapshot(written))] = writes.as_slice() else { panic!("{writes:?}") };
        let conditions = written.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default();
        condition::find(&conditions, "Ready").map(|ready| ready.reason.clone())
    };
    assert_eq!(reported(&cache).as_deref(), Some(Reason::QuotaExceeded.as_str()));
    let mut foreign = parts[0].clone();
    foreign.metadata.labels = None;
    put(&mut cache, foreign);
    assert_eq!(reported(&cache).as_deref(), Some(Reason::InvalidSpec.as_str()), "and none is created");
}
