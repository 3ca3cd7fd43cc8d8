use berth_api::{Consistency, DiskSnapshot, Readiness, Reason};
use berth_host::{NewSnapshot, SnapshotFacts, Taken, VolumeOwner};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::observe::Observed;
use super::parts::Parts;
use super::plan::plan;
use super::status::status;
use super::*;

fn snapshot(status: Value) -> DiskSnapshot {
    let mut whole = json!({"snapshotID": "s-u1", "volumeID": "v-1", "pool": "default", "binding": {"host": "h", "epoch": 1}});
    for (key, value) in status.as_object().cloned().unwrap_or_default() {
        whole[key] = value;
    }
    serde_json::from_value(json!({
        "metadata": {"name": "before", "namespace": "ns", "uid": "u1", "generation": 2}, "spec": {"disk": "data"}, "status": whole,
    }))
    .expect("a snapshot")
}

fn deleted(mut snapshot: DiskSnapshot) -> DiskSnapshot {
    snapshot.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::UNIX_EPOCH));
    snapshot
}

fn owner(uid: &str) -> VolumeOwner {
    VolumeOwner {
        namespace: "ns".into(),
        name: "before".into(),
        uid: Some(uid.into()),
        image: None,
        source: None,
    }
}

fn new() -> NewSnapshot {
    NewSnapshot { pool: "default".into(), id: "s-u1".into(), volume: "v-1".into(), owner: Some(owner("u1")) }
}

fn found(uid: &str, frozen: Option<bool>) -> Observed {
    let facts = SnapshotFacts {
        encryption: None,
        pool: "default".into(),
        id: "s-u1".into(),
        volume: "v-1".into(),
        size: 4 << 30,
        owner: Some(owner(uid)),
        taken: frozen.map(|frozen| Taken { at: Timestamp::UNIX_EPOCH, frozen, memory: false }),
    };
    Observed {
        snapshot: Some(facts),
        away: None,
        is_lost: false,
        is_elsewhere: false,
        has_volume: true,
        moved_to: None,
        parts: None,
        held_by: None,
        look_again: None,
        server: None,
    }
}

fn reason(plan: &Plan<Step>) -> (bool, Reason) {
    (matches!(plan.readiness, Readiness::Stalled(..)), plan.readiness.reason())
}

#[test]
fn a_snapshot_is_taken_once_and_one_that_was_begun_is_taken_to_its_end() {
    let none = Observed { has_volume: true, ..Observed::default() };
    for observed in [none, found("u1", None)] {
        assert_eq!(plan(&snapshot(json!({})), &observed).steps, [Step::Take(vec![new()])]);
    }
    let done = plan(&snapshot(json!({})), &found("u1", Some(false)));
    assert_eq!((done.steps.len(), reason(&done)), (0, (false, Reason::Available)));
}

#[test]
fn the_parts_of_a_vm_snapshot_are_taken_together_by_the_first_once_all_are_here() {
    let second = NewSnapshot { id: "s-u2".into(), volume: "v-2".into(), ..new() };
    let planned = |here: Vec<NewSnapshot>, taken_by: Option<&str>| {
        let parts = Parts { here, total: 2, memory: false, taken_by: taken_by.map(str::to_owned) };
        let observed = Observed { has_volume: true, parts: Some(parts), ..Observed::default() };
        plan(&snapshot(json!({})), &observed)
    };
    let both = vec![new(), second];
    assert_eq!(planned(both.clone(), None).steps, [Step::Take(both.clone())]);
    for (here, taken_by, reason_of) in
        [(vec![new()], None, Reason::WaitingForSnapshot), (both, Some("before-0"), Reason::Provisioning)]
    {
        let waits = planned(here, taken_by);
        assert_eq!((waits.steps.len(), reason(&waits)), (0, (false, reason_of)), "{waits:?}");
    }
}

#[test]
fn the_parts_of_a_vm_snapshot_with_memory_are_taken_with_the_memory_and_say_so() {
    let parts = Parts { here: vec![new()], total: 1, memory: true, taken_by: None };
    let observed = Observed { has_volume: true, parts: Some(parts), ..Observed::default() };
    assert_eq!(plan(&snapshot(json!({})), &observed).steps, [Step::TakeWithMemory(vec![new()])]);
    let mut taken = found("u1", Some(false));
    let facts = taken.snapshot.as_mut().and_then(|facts| facts.taken.as_mut()).expect("set");
    facts.memory = true;
    let ready = Readiness::Ready(Reason::Available, String::new());
    let reported = status(&snapshot(json!({})), &taken, &ready, Timestamp::UNIX_EPOCH);
    assert_eq!((reported.consistency, reported.memory), (Some(Consistency::Crash), Some(true)));
}

#[test]
fn a_snapshot_whose_memory_was_not_saved_is_not_tried_again() {
    let parts = Parts { here: vec![new()], total: 1, memory: true, taken_by: None };
    let observed = Observed { has_volume: true, parts: Some(parts.clone()), ..Observed::default() };
    let mut failed = snapshot(json!({}));
    let stored = Readiness::Stalled(Reason::SnapshotFailed, "no space".to_owned());
    let conditions = &mut failed.status.as_mut().expect("bound").conditions;
    stored.write(conditions, 2, Timestamp::UNIX_EPOCH);
    let stays = plan(&failed, &observed);
    assert_eq!((stays.steps.len(), stays.readiness), (0, stored));
    let without = Observed { parts: Some(Parts { memory: false, ..parts }), ..observed };
    assert_eq!(plan(&failed, &without).steps.len(), 1, "only an attempt with memory pauses the guest");
}

#[test]
fn a_snapshot_that_is_gone_is_not_taken_again_of_another_moment() {
    let taken = snapshot(json!({"takenAt": "2026-01-01T00:00:00Z"}));
    let lost = plan(&taken, &Observed { has_volume: true, ..Observed::default() });
    assert_eq!((lost.steps.len(), reason(&lost)), (0, (true, Reason::SnapshotLost)));
    let late = plan(&snapshot(json!({})), &Observed::default());
    assert_eq!((late.steps.len(), reason(&late)), (0, (true, Reason::DiskLost)));
    assert!(late.readiness.message().contains("before the snapshot was taken"), "{late:?}");
}

#[test]
fn a_snapshot_of_a_disk_that_comes_from_another_host_waits_for_its_data() {
    let comes = Observed { is_elsewhere: true, ..Observed::default() };
    let waits = plan(&snapshot(json!({})), &comes);
    assert_eq!((waits.steps.len(), reason(&waits)), (0, (false, Reason::WaitingForDisk)));
    assert!(waits.requeue_after.is_some());
}

#[test]
fn a_snapshot_whose_data_is_lost_is_not_taken_again_and_the_record_of_it_goes_with_it() {
    let lost = || Observed { is_lost: true, ..Observed::default() };
    for object in [snapshot(json!({"takenAt": "2026-01-01T00:00:00Z"})), snapshot(json!({}))] {
        let stays = plan(&object, &lost());
        assert_eq!((stays.steps.len(), reason(&stays)), (0, (true, Reason::SnapshotLost)));
        let gone = plan(&deleted(object), &lost());
        assert_eq!(gone.steps, [Step::RemoveMemory("s-u1".into()), Step::Delete(new()), Step::Release]);
    }
}

#[test]
fn a_snapshot_of_a_disk_that_was_moved_meanwhile_is_taken_in_the_pool_that_has_it_now() {
    let observed = Observed { moved_to: Some("fast".into()), ..Observed::default() };
    let bound = snapshot(json!({}));
    let waits = plan(&bound, &observed);
    assert_eq!((waits.steps.len(), reason(&waits)), (0, (false, Reason::Provisioning)));
    assert!(waits.requeue_after.is_some());
    let reported = status(&bound, &observed, &waits.readiness, Timestamp::UNIX_EPOCH);
    assert_eq!(reported.pool.as_ref().map(ToString::to_string).as_deref(), Some("fast"));
    let moved = DiskSnapshot { status: Some(reported), ..bound };
    let there = Observed { has_volume: true, ..Observed::default() };
    let taken = NewSnapshot { pool: "fast".into(), ..new() };
    assert_eq!(plan(&moved, &there).steps, [Step::Take(vec![taken])]);
    let lost = snapshot(json!({"takenAt": "2026-01-01T00:00:00Z"}));
    let stays = status(&lost, &observed, &waits.readiness, Timestamp::UNIX_EPOCH);
    assert_eq!(stays.pool.as_ref().map(ToString::to_string).as_deref(), Some("default"));
}

#[test]
fn a_taken_snapshot_that_was_moved_with_its_disk_names_its_new_pool_and_is_deleted_there() {
    let mut observed = found("u1", Some(false));
    observed.snapshot.as_mut().expect("set").pool = "fast".into();
    let bound = snapshot(json!({"takenAt": "1970-01-01T00:00:00Z"}));
    let stays = plan(&bound, &observed);
    assert_eq!((stays.steps.len(), reason(&stays)), (0, (false, Reason::Available)));
    let reported = status(&bound, &observed, &stays.readiness, Timestamp::UNIX_EPOCH);
    assert_eq!(reported.pool.as_ref().map(ToString::to_string).as_deref(), Some("fast"));
    let gone = plan(&deleted(bound), &observed);
    let there = NewSnapshot { pool: "fast".into(), ..new() };
    assert_eq!(gone.steps, [Step::RemoveMemory("s-u1".into()), Step::Delete(there), Step::Release]);
}

#[test]
fn a_snapshot_in_a_pool_that_is_away_is_neither_lost_nor_taken_nor_deleted() {
    let away = Observed { away: Some("storage pool fast is away".into()), ..Observed::default() };
    let taken = || snapshot(json!({"takenAt": "2026-01-01T00:00:00Z"}));
    for object in [taken(), deleted(taken()), snapshot(json!({}))] {
        let plan = plan(&object, &away);
        assert_eq!((plan.steps.as_slice(), reason(&plan)), ([].as_slice(), (false, Reason::PoolAway)));
        assert!(plan.requeue_after.is_some());
    }
    let kept = status(&taken(), &away, &plan(&taken(), &away).readiness, Timestamp::UNIX_EPOCH);
    assert_eq!(kept.taken_at.as_deref(), Some("2026-01-01T00:00:00Z"));
}

#[test]
fn a_part_is_held_until_the_restore_of_its_vm_that_has_begun_is_done() {
    let held = Observed { held_by: Some("web".into()), ..found("u1", Some(true)) };
    let held = plan(&deleted(snapshot(json!({}))), &held);
    assert_eq!((held.steps.len(), reason(&held)), (0, (false, Reason::InUse)));
    assert!(held.requeue_after.is_some() && held.readiness.message().contains("VM web"), "{held:?}");
}

#[test]
fn a_snapshot_is_deleted_whether_it_was_taken_or_only_begun_and_that_of_another_object_stays() {
    for frozen in [None, Some(true)] {
        let gone = plan(&deleted(snapshot(json!({}))), &found("u1", frozen));
        assert_eq!(gone.steps, [Step::RemoveMemory("s-u1".into()), Step::Delete(new()), Step::Release]);
    }
    let unbegun = plan(&deleted(snapshot(json!({}))), &Observed::default());
    assert_eq!(unbegun.steps, [Step::RemoveMemory("s-u1".into()), Step::Release], "it may have its memory");
    assert_eq!(plan(&deleted(snapshot(json!({}))), &found("u0", Some(true))).steps, [Step::Release]);
    assert_eq!(reason(&plan(&snapshot(json!({})), &found("u0", Some(true)))), (true, Reason::NotSupported));
    let mut unnamed = found("u1", Some(true));
    unnamed.snapshot.as_mut().expect("set").owner = None;
    assert_eq!(reason(&plan(&snapshot(json!({})), &unnamed)), (true, Reason::NotSupported), "it was deleted");
}

#[test]
fn a_snapshot_of_an_object_that_had_another_uid_is_taken_over() {
    let mut object = snapshot(json!({}));
    object.metadata.annotations =
        Some([(berth_api::FORMER_UID_ANNOTATION.to_owned(), "u0".to_owned())].into());
    let plan = plan(&object, &found("u0", Some(false)));
    assert_eq!(
        plan.steps,
        [Step::TakeOver { pool: "default".into(), snapshot: "s-u1".into(), owner: owner("u1") }]
    );
}

#[test]
fn the_status_tells_the_moment_and_keeps_it_when_the_file_is_lost() {
    let object = snapshot(json!({}));
    let ready = Readiness::Ready(Reason::Available, String::new());
    let reported = |frozen| status(&object, &found("u1", Some(frozen)), &ready, Timestamp::UNIX_EPOCH);
    assert_eq!(reported(true).consistency, Some(Consistency::FileSystem));
    let crash = reported(false);
    assert_eq!((crash.consistency, crash.size.as_deref()), (Some(Consistency::Crash), Some("4Gi")));
    assert_eq!((crash.taken_at.as_deref(), crash.memory), (Some("1970-01-01T00:00:00Z"), None));
    let later = DiskSnapshot { status: Some(crash.clone()), ..object.clone() };
    let lost = status(&later, &Observed::default(), &ready, Timestamp::UNIX_EPOCH);
    assert_eq!((lost.taken_at, lost.size), (crash.taken_at, crash.size));
    let begun = status(&object, &found("u1", None), &ready, Timestamp::UNIX_EPOCH);
    assert_eq!(begun.taken_at, None);
}
