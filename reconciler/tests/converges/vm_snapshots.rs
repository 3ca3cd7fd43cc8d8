//! Snapshots of all disks of a VM.

use std::sync::Mutex;

use berth_api::{
    AttachmentState, ConditionType, Disk, HotswapDiskAttachment, VM, VMSnapshot, VMState, condition,
};
use berth_host::{SnapshotFacts, Taken};
use serde_json::{Value, json};

use crate::faults::Fault;
use crate::rig::{self, Rig, converges};
use crate::{all_is_deleted, until_host, web, web_is_declared, web_runs};

/// The VM runs, with a disk of its own and one that is attached to it.
async fn web_runs_with_two_disks(rig: &Rig) {
    web_is_declared(rig).await;
    web_runs(rig).await;
    rig.apply("Disk", "web-data", json!({"size": "1Gi"})).await;
    rig.apply("HotswapDiskAttachment", "web-data", json!({"vm": "web", "disk": "web-data"})).await;
    let attached = |a: &HotswapDiskAttachment| {
        a.status.as_ref().is_some_and(|s| s.state == Some(AttachmentState::Attached))
    };
    rig.until("web-data", "is attached", attached).await;
}

async fn until_taken(rig: &Rig, name: &str) {
    let ready = |snapshot: &VMSnapshot| {
        let status = snapshot.status.clone().unwrap_or_default();
        status.taken_at.is_some() && condition::is_true(&status.conditions, ConditionType::Ready)
    };
    rig.until(name, "is taken", ready).await;
}

/// Returns the moment of the snapshots of both disks.
fn moment(rig: &Rig) -> Taken {
    let snapshots = rig.system.snapshots_now();
    let taken: Vec<Taken> = snapshots.iter().filter_map(|snapshot| snapshot.taken.clone()).collect();
    let volumes: std::collections::BTreeSet<_> =
        snapshots.iter().map(|SnapshotFacts { volume, .. }| volume).collect();
    assert_eq!((taken.len(), snapshots.len(), volumes.len()), (2, 2, 2), "{snapshots:?}");
    assert_eq!(taken[0], taken[1], "of one moment");
    taken[0].clone()
}

#[test]
fn all_disks_of_a_running_vm_have_snapshots_of_one_moment() {
    converges(&[Fault::Error, Fault::CrashAfter, Fault::FullDisk], async |rig| {
        web_runs_with_two_disks(rig).await;
        let pid = rig.pid("web").await;
        rig.strike_from_here();
        rig.apply("VMSnapshot", "before", json!({"vm": "web"})).await;
        until_taken(rig, "before").await;
        moment(rig);
        let hypervisor = rig.system.hypervisor();
        let view = hypervisor.view(&hypervisor.instances()[0]).expect("it runs");
        assert!(!view.is_frozen, "the guest goes on");
        assert_eq!(rig.pid("web").await, pid, "in the same QEMU");
    });
}

/// The number of the boot of the guest's operating system; None: it has not booted yet.
fn boot(rig: &Rig) -> Option<u64> {
    let hypervisor = rig.system.hypervisor();
    hypervisor.view(hypervisor.instances().first()?)?.boot
}

/// The guest runs; returns the number of its boot.
async fn booted(rig: &Rig) -> u64 {
    web_runs(rig).await;
    until_host("the guest has booted", || boot(rig).is_some()).await;
    boot(rig).expect("booted")
}

#[test]
fn the_memory_of_a_running_vm_is_of_the_moment_of_its_disks_and_the_guest_goes_on() {
    converges(&[Fault::Error, Fault::LostAnswer, Fault::CrashAfter, Fault::FullDisk], async |rig| {
        web_runs_with_two_disks(rig).await;
        let (pid, first) = (rig.pid("web").await, booted(rig).await);
        rig.strike_from_here();
        rig.apply("VMSnapshot", "running", json!({"vm": "web", "memory": true})).await;
        until_taken(rig, "running").await;
        let taken = moment(rig);
        assert!(taken.memory && !taken.frozen, "{taken:?}");
        assert_eq!(rig.system.kept_states_now().len(), 1);
        assert_eq!(booted(rig).await, first, "the guest goes on");
        assert_eq!(rig.pid("web").await, pid, "in the same QEMU");
        rig.delete("VMSnapshot", "running").await;
        until_host("the memory is gone with it", || rig.system.kept_states_now().is_empty()).await;
    });
}

#[test]
fn a_restored_guest_goes_on_with_the_memory_of_its_snapshot_once() {
    converges(&[Fault::Error, Fault::LostAnswer, Fault::CrashAfter], async |rig| {
        web_runs_with_two_disks(rig).await;
        let first = booted(rig).await;
        rig.apply("VMSnapshot", "before", json!({"vm": "web", "memory": true})).await;
        until_taken(rig, "before").await;
        let mut again = web("Running");
        again["restartToken"] = json!("1");
        rig.apply("VM", "web", again).await;
        rig.until_vm("web", "is restarted", |vm| {
            vm.status.as_ref().and_then(|status| status.restart_token.as_deref()) == Some("1")
        })
        .await;
        assert_ne!(booted(rig).await, first, "it has booted once more");
        rig.strike_from_here();
        let mut restored = web_restored_from("before");
        restored["restartToken"] = json!("2");
        rig.apply("VM", "web", restored).await;
        rig.until_vm("web", "is restored", is_restored).await;
        until_host("the guest of the snapshot runs", || boot(rig) == Some(first)).await;
        web_runs(rig).await;
        are_restored_once(rig);
        let mut booted_again = web_restored_from("before");
        booted_again["restartToken"] = json!("3");
        rig.apply("VM", "web", booted_again).await;
        until_host("the guest has booted", || boot(rig).is_some_and(|boot| boot != first)).await;
        web_runs(rig).await;
    });
}

#[test]
fn a_restore_without_memory_boots_the_guest_and_one_to_other_hardware_is_refused_with_the_disks_as_they_were()
{
    converges(&[], async |rig| {
        web_runs_with_two_disks(rig).await;
        let first = booted(rig).await;
        rig.apply("VMSnapshot", "before", json!({"vm": "web", "memory": true})).await;
        until_taken(rig, "before").await;
        let mut other = web_restored_from("before");
        other["serialNumber"] = json!("other");
        rig.apply("VM", "web", other.clone()).await;
        let is_refused = |vm: &VM| {
            let conditions =
                vm.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
            condition::find(conditions, ConditionType::RestoreSynced.as_str()).is_some_and(|synced| {
                synced.reason == "RestoreRefused" && synced.message.contains("serialNumber")
            })
        };
        rig.until_vm("web", "says what differs", is_refused).await;
        other["restore"]["memory"] = json!(false);
        other["restartToken"] = json!("1");
        rig.apply("VM", "web", other).await;
        rig.until_vm("web", "is restored", is_restored).await;
        until_host("the guest has booted", || boot(rig).is_some_and(|boot| boot != first)).await;
        are_restored_once(rig);
    });
}

#[test]
fn all_disks_of_a_stopped_vm_have_snapshots_of_one_moment_and_it_starts_on_them() {
    converges(&[Fault::CrashAfter], async |rig| {
        let with_both = |power: &str| {
            let mut vm = web(power);
            vm["disks"] = json!([{"name": "web-root", "boot": true}, {"name": "web-data"}]);
            vm
        };
        web_is_declared(rig).await;
        rig.apply("Disk", "web-data", json!({"size": "1Gi"})).await;
        rig.apply("VM", "web", with_both("Running")).await;
        web_runs(rig).await;
        let made =
            |disk: &Disk| rig::is_disk_ready(disk) && disk.status.as_ref().is_some_and(|s| s.size.is_some());
        rig.until("web-data", "has a file", made).await;
        rig.apply("VM", "web", with_both("Stopped")).await;
        rig.until_vm("web", "is stopped", |vm| rig::state(vm) == Some(VMState::Stopped)).await;
        rig.strike_from_here();
        rig.apply("VMSnapshot", "before", json!({"vm": "web"})).await;
        until_taken(rig, "before").await;
        assert!(!moment(rig).frozen, "no guest ran");
        rig.apply("VM", "web", with_both("Running")).await;
        web_runs(rig).await;
    });
}

fn web_restored_from(snapshot: &str) -> Value {
    let mut vm = web("Running");
    vm["restore"] = json!({"snapshot": snapshot});
    vm
}

fn is_restored(vm: &VM) -> bool {
    let from = vm.status.as_ref().and_then(|status| status.restored_from.as_ref());
    from.is_some_and(|from| from.snapshot.as_str() == "before")
}

/// Each volume was restored once, and the former data of each is in the trash.
fn are_restored_once(rig: &Rig) {
    let restores: Vec<usize> =
        rig.system.volume_facts_now().iter().map(|volume| volume.restores.len()).collect();
    assert_eq!(restores, [1, 1]);
}

#[test]
fn all_disks_of_a_vm_are_restored_from_its_snapshot_at_its_power_cycle() {
    converges(&[Fault::Error, Fault::LostAnswer, Fault::CrashAfter, Fault::FullDisk], async |rig| {
        web_runs_with_two_disks(rig).await;
        rig.apply("VMSnapshot", "before", json!({"vm": "web"})).await;
        until_taken(rig, "before").await;
        let lists_it = |vm: &VM| {
            vm.status
                .as_ref()
                .is_some_and(|status| status.snapshots.iter().any(|s| s.name.as_str() == "before"))
        };
        rig.until_vm("web", "lists its snapshot", lists_it).await;
        rig.strike_from_here();
        rig.apply("VM", "web", web_restored_from("before")).await;
        let waits = |vm: &VM| vm.status.as_ref().is_some_and(|s| s.pending_power_cycle == ["restore"]);
        rig.until_vm("web", "says that the restore waits", waits).await;
        let mut again = web_restored_from("before");
        again["restartToken"] = json!("1");
        rig.apply("VM", "web", again).await;
        rig.until_vm("web", "is restored", is_restored).await;
        web_runs(rig).await;
        are_restored_once(rig);
    });
}

#[test]
fn a_restore_of_a_vm_is_not_done_again_when_its_status_was_lost_and_its_snapshot_was_deleted() {
    converges(&[], async |rig| {
        web_runs_with_two_disks(rig).await;
        rig.apply("VMSnapshot", "before", json!({"vm": "web"})).await;
        until_taken(rig, "before").await;
        let mut stopped = web_restored_from("before");
        stopped["power"] = json!("Stopped");
        rig.apply("VM", "web", stopped).await;
        rig.until_vm("web", "is restored", is_restored).await;
        rig.apply("VM", "web", web_restored_from("before")).await;
        web_runs(rig).await;
        rig.delete("VMSnapshot", "before").await;
        for part in ["before-0", "before-1"] {
            rig.until_gone("DiskSnapshot", part).await;
        }
        rig.lose_every_status().await;
        web_runs(rig).await;
        rig.until_vm("web", "knows its restore again", is_restored).await;
        rig.must_settle().await;
        are_restored_once(rig);
        all_is_deleted(rig).await;
    });
}

#[test]
fn a_snapshot_of_a_vm_is_of_the_same_moment_when_its_status_was_lost_and_goes_with_its_parts() {
    converges(&[], async |rig| {
        web_runs_with_two_disks(rig).await;
        rig.apply("VMSnapshot", "before", json!({"vm": "web"})).await;
        until_taken(rig, "before").await;
        let before = moment(rig);
        rig.lose_every_status().await;
        web_runs(rig).await;
        until_taken(rig, "before").await;
        assert_eq!(moment(rig), before);
        rig.must_settle().await;
        rig.delete("VMSnapshot", "before").await;
        for part in ["before-0", "before-1"] {
            rig.until_gone("DiskSnapshot", part).await;
        }
        let unowned = || rig.system.snapshots_now().iter().all(|snapshot| snapshot.owner.is_none());
        until_host("the snapshots are their disks' only", unowned).await;
        all_is_deleted(rig).await;
    });
}

fn web_with_a_snapshot_before_stops(power: &str, grace: i64) -> Value {
    let mut vm = web(power);
    vm["hooks"] =
        json!({"preStop": {"snapshot": {"keep": 1}, "timeoutSeconds": 3600, "failurePolicy": "Fail"}});
    vm["stop"]["gracePeriodSeconds"] = json!(grace);
    vm
}

/// Waits until the VM is stopped and has one snapshot, which is not the former one; returns its name.
async fn stopped_with_another_than(rig: &Rig, former: &str) -> String {
    let found = Mutex::new(String::new());
    rig.until_vm("web", "is stopped and has one new snapshot", |vm| {
        let listed = vm.status.as_ref().map(|status| status.snapshots.as_slice()).unwrap_or_default();
        let [snapshot] = listed else { return false };
        *found.lock().expect("not poisoned") = snapshot.name.to_string();
        rig::state(vm) == Some(VMState::Stopped) && snapshot.name.as_str() != former
    })
    .await;
    found.into_inner().expect("not poisoned")
}

/// The VM ran, and is stopped with a snapshot; returns its name.
async fn web_is_stopped_with_a_snapshot(rig: &Rig) -> String {
    web_is_declared(rig).await;
    rig.apply("VM", "web", web_with_a_snapshot_before_stops("Running", 5)).await;
    web_runs(rig).await;
    rig.apply("VM", "web", web_with_a_snapshot_before_stops("Stopped", 5)).await;
    stopped_with_another_than(rig, "").await
}

#[test]
fn a_vm_is_stopped_after_the_snapshot_that_its_hook_takes_and_the_former_one_is_deleted() {
    converges(&[Fault::Error, Fault::CrashAfter, Fault::FullDisk], async |rig| {
        let first = web_is_stopped_with_a_snapshot(rig).await;
        assert!(first.starts_with("web-stop-"), "{first}");
        rig.apply("VM", "web", web_with_a_snapshot_before_stops("Running", 5)).await;
        web_runs(rig).await;
        rig.strike_from_here();
        rig.apply("VM", "web", web_with_a_snapshot_before_stops("Stopped", 5)).await;
        stopped_with_another_than(rig, &first).await;
        rig.until_gone("VMSnapshot", &first).await;
    });
}

#[test]
fn the_snapshot_of_a_stop_stays_when_every_status_was_lost() {
    converges(&[], async |rig| {
        let taken = web_is_stopped_with_a_snapshot(rig).await;
        rig.apply("VM", "web", web_with_a_snapshot_before_stops("Running", 5)).await;
        web_runs(rig).await;
        rig.lose_every_status().await;
        web_runs(rig).await;
        until_taken(rig, &taken).await;
        rig.must_settle().await;
        until_taken(rig, &taken).await;
    });
}

#[test]
fn the_snapshot_that_a_vm_is_restored_from_stays_until_it_is_restored_though_another_stop_takes_one() {
    converges(&[Fault::CrashAfter], async |rig| {
        let first = web_is_stopped_with_a_snapshot(rig).await;
        rig.apply("VM", "web", web_with_a_snapshot_before_stops("Running", 5)).await;
        web_runs(rig).await;
        rig.strike_from_here();
        let mut restored = web_with_a_snapshot_before_stops("Running", 5);
        restored["restore"] = json!({"snapshot": first});
        restored["restartToken"] = json!("1");
        rig.apply("VM", "web", restored).await;
        let has_its_data = |vm: &VM| {
            let from = vm.status.as_ref().and_then(|status| status.restored_from.as_ref());
            from.is_some_and(|from| from.snapshot.as_str() == first)
        };
        rig.until_vm("web", "is restored", has_its_data).await;
        web_runs(rig).await;
        rig.until_gone("VMSnapshot", &first).await;
    });
}

#[test]
fn a_vm_that_is_deleted_leaves_the_snapshot_that_its_hook_takes() {
    converges(&[Fault::CrashAfter], async |rig| {
        web_is_declared(rig).await;
        rig.apply("VM", "web", web_with_a_snapshot_before_stops("Running", 600)).await;
        web_runs(rig).await;
        rig.strike_from_here();
        rig.delete("VM", "web").await;
        rig.until_gone("VM", "web").await;
        let taken = || rig.system.snapshots_now().iter().filter(|s| s.taken.is_some()).count() == 1;
        until_host("its disk has the snapshot", taken).await;
    });
}
