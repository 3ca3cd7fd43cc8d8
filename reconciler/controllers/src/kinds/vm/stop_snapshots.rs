//! The snapshots that a hook takes before a VM is stopped: created when its host asks for one, and deleted beyond the number that is kept.
//!
//! The host waits with the stop as long as it asks. One that is not taken when the host has gone on is deleted: it would be of a later moment.

use std::{cmp::Reverse, sync::Arc};

use berth_api::{
    ConditionType, Conditions, SnapshotHook, SnapshotOfDisk, VM, VMSnapshot, VMSnapshotSpec, condition,
    vm::{STOPPED_AT_ANNOTATION, STOPPED_VM_LABEL, StopSnapshot},
};
use kube::ResourceExt;

use crate::{batch::Write, cache::Cache, key::Key};

/// How far a snapshot is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// It has the data of all disks.
    Taken,
    /// It had them, and has not all of them any more.
    Lost,
    /// All that there is of it reports that it is not taken.
    NotTaken,
    /// Nothing is known of it, such as after a loss of its status.
    Unknown,
    Deleted,
}

/// A snapshot that the hook took, or is to take.
#[derive(Clone, Debug)]
struct OwnSnapshot {
    object: Arc<VMSnapshot>,
    progress: Progress,
}

/// The decision about the snapshots.
#[derive(Clone, Debug, Default)]
struct Decision {
    create: Option<VMSnapshot>,
    delete: Vec<Arc<VMSnapshot>>,
}

/// Returns the writes that create and delete the snapshots of the VM's stops.
pub(super) fn writes(cache: &Cache, vm: &VM) -> Vec<Write> {
    let keys = cache.index.made_for(&Key::of(vm));
    let objects = keys.iter().filter_map(|key| cache.tables.vm_snapshots.get(key));
    let own: Vec<OwnSnapshot> = objects
        .map(|object| OwnSnapshot { object: object.clone(), progress: progress(cache, object) })
        .collect();
    let namespace = vm.namespace().unwrap_or_default();
    let is_name_used = |name: &str| cache.tables.vm_snapshots.named(&namespace, name).is_some();
    let decision = decide(vm, &own, is_name_used);
    let delete = decision.delete.into_iter().map(|snapshot| Write::Delete(snapshot.into()));
    // Last: it may be refused, by a quota or in a namespace that is being deleted.
    delete.chain(decision.create.map(|snapshot| Write::Create(snapshot.into()))).collect()
}

fn progress(cache: &Cache, snapshot: &VMSnapshot) -> Progress {
    if snapshot.metadata.deletion_timestamp.is_some() {
        return Progress::Deleted;
    }
    let Some(status) = snapshot.status.as_ref() else { return Progress::Unknown };
    if status.taken_at.is_some() {
        let is_lost = condition::is_true(&status.conditions, ConditionType::Stalled);
        return if is_lost { Progress::Lost } else { Progress::Taken };
    }
    let namespace = snapshot.namespace().unwrap_or_default();
    let is_reported =
        |conditions: &Conditions| condition::find(conditions, ConditionType::Ready.as_str()).is_some();
    let is_not_taken = |of: &SnapshotOfDisk| {
        let part = cache.tables.disk_snapshots.named(&namespace, of.snapshot.as_str());
        let part = part.and_then(|part| part.status.as_ref());
        part.is_some_and(|status| status.taken_at.is_none() && is_reported(&status.conditions))
    };
    match is_reported(&status.conditions) && status.disks.iter().all(is_not_taken) {
        true => Progress::NotTaken,
        false => Progress::Unknown,
    }
}

fn decide(vm: &VM, own: &[OwnSnapshot], is_name_used: impl Fn(&str) -> bool) -> Decision {
    let hook = vm.spec.hooks.as_ref().and_then(|hooks| hooks.pre_stop.as_ref()?.snapshot.as_ref());
    let request = vm.status.as_ref().and_then(|status| status.stop_snapshot.as_deref());
    let request = request.filter(|request| request.is_of(&vm.name_any()));
    let create = request.filter(|request| hook.is_some() && !is_name_used(request.name.as_str()));
    Decision {
        create: create.map(|request| new_snapshot(vm, request)),
        delete: surplus(vm, own, hook, request),
    }
}

fn new_snapshot(vm: &VM, request: &StopSnapshot) -> VMSnapshot {
    let name = vm.name_any();
    let mut snapshot = VMSnapshot::new(request.name.as_str(), VMSnapshotSpec { vm: name.as_str().into() });
    snapshot.metadata.namespace = vm.namespace();
    snapshot.metadata.labels = Some([(STOPPED_VM_LABEL.to_owned(), name)].into());
    snapshot.metadata.annotations =
        Some([(STOPPED_AT_ANNOTATION.to_owned(), request.requested_at.clone())].into());
    snapshot
}

/// Returns the snapshots to delete. The newest one that is taken stays, and the one that the host asks for.
fn surplus(
    vm: &VM,
    own: &[OwnSnapshot],
    hook: Option<&SnapshotHook>,
    request: Option<&StopSnapshot>,
) -> Vec<Arc<VMSnapshot>> {
    let Some(status) = vm.status.as_ref().filter(|status| status.observed_generation >= 0) else {
        return Vec::new();
    };
    // By the clock of the control plane: those of hosts may go back.
    let mut sorted: Vec<&OwnSnapshot> = own.iter().collect();
    sorted.sort_by_key(|own| {
        Reverse((own.object.creation_timestamp().map(|time| time.0), own.object.name_any()))
    });
    let keep = hook.map_or(usize::MAX, |hook| usize::try_from(hook.keep).unwrap_or_default().max(1));
    let mut taken = 0;
    let is_surplus = |own: &&OwnSnapshot| {
        let name = own.object.name_any();
        match own.progress {
            Progress::Taken => {
                taken += 1;
                taken > keep && request.is_none_or(|request| request.name.as_str() != name)
            }
            Progress::Lost => taken > 0 && hook.is_some(),
            // The host lists those that it has taken before the controllers know of it.
            Progress::NotTaken => {
                request.is_none_or(|request| request.name.as_str() != name)
                    && !status.snapshots.iter().any(|listed| listed.name.as_str() == name)
            }
            Progress::Unknown | Progress::Deleted => false,
        }
    };
    sorted.into_iter().filter(is_surplus).map(|own| own.object.clone()).collect()
}

#[cfg(test)]
mod tests {
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
        decide(vm, own, |_| true).delete.iter().map(|snapshot| snapshot.name_any()).collect()
    }

    #[test]
    fn the_snapshot_that_a_host_asks_for_is_created_once() {
        let asked = vm(keeping(1), request(1), &[]);
        let made = decide(&asked, &[], |_| false).create.expect("it is created");
        assert_eq!((made.name_any().as_str(), made.spec.vm.as_str()), (FIRST, "web"));
        assert_eq!(made.namespace().as_deref(), Some("ns"));
        assert!(made.is_of_stop());
        assert!(decide(&asked, &[], |name| name == FIRST).create.is_none(), "it exists");
    }

    #[test]
    fn a_host_has_no_other_snapshot_created_than_the_declared_one() {
        let exec = vm(json!({"exec": {"command": ["true"]}}), request(1), &[]);
        assert!(decide(&exec, &[], |_| false).create.is_none(), "the hook takes none");
        let other = json!({"name": "other", "requestedAt": "2026-01-01T00:00:01Z"});
        assert!(decide(&vm(keeping(1), other, &[]), &[], |_| false).create.is_none());
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
        let unknown = [own(FIRST, 1, Progress::Unknown)];
        assert!(deleted(&vm(keeping(1), Value::Null, &[]), &unknown).is_empty());
        let mut lost = vm(keeping(1), Value::Null, &[]);
        lost.status = None;
        assert!(deleted(&lost, &left).is_empty(), "the status of the VM is lost");
    }

    #[test]
    fn a_host_whose_clock_goes_back_keeps_the_snapshot_that_was_made_last() {
        let all = [own(THIRD, 1, Progress::Taken), own(FIRST, 2, Progress::Taken)];
        assert_eq!(deleted(&vm(keeping(1), Value::Null, &[]), &all), [THIRD]);
    }
}
