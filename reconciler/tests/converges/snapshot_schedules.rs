//! Snapshots of a VM at the moments of a schedule, and backups of them.

use std::time::Duration;

use berth_api::{
    ConditionType, DiskSnapshot, SnapshotSchedule, VMSnapshot, condition, snapshot_schedule::scheduled_name,
};
use berth_engine::Clock as _;
use berth_host::BackupFolderFacts;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::backups::is_complete;
use crate::faults::Fault;
use crate::rig::{Rig, converges};
use crate::{all_is_deleted, until_host, web_is_declared, web_runs};

fn is_taken(snapshot: &VMSnapshot) -> bool {
    let status = snapshot.status.clone().unwrap_or_default();
    status.taken_at.is_some() && condition::is_true(&status.conditions, ConditionType::Ready)
}

fn owned(rig: &Rig) -> usize {
    rig.system.snapshots_now().iter().filter(|snapshot| snapshot.owner.is_some()).count()
}

/// The VM runs, and a schedule keeps its last snapshot; returns its two moments, each with the name of its snapshot.
async fn web_has_a_schedule(rig: &Rig, backup: Value) -> [(String, Timestamp); 2] {
    web_is_declared(rig).await;
    web_runs(rig).await;
    let mut spec = json!({"vms": ["web"], "keep": {"last": 1}});
    if backup.is_object() {
        spec["backup"] = backup;
    }
    until_two_moments(rig, spec, "web").await
}

/// Declares a schedule with two moments, each with the name of the snapshot of this object.
async fn until_two_moments(rig: &Rig, mut spec: Value, of: &str) -> [(String, Timestamp); 2] {
    // A minute that does not begin in the next seconds.
    let minute = (rig.clock.now().as_second() + 20) / 60 + 1;
    let moments = [minute, minute + 1].map(|minute| Timestamp::from_second(minute * 60).expect("a time"));
    let minutes = moments.map(|moment| moment.strftime("%-M").to_string()).join(",");
    let schedule = format!("{minutes} {} *", moments[0].strftime("%-H %-d %-m"));
    spec["schedule"] = json!(schedule);
    rig.apply("SnapshotSchedule", "nightly", spec).await;
    moments.map(|moment| (scheduled_name("nightly", of, moment), moment))
}

/// Waits until the second before a moment.
async fn until_almost(rig: &Rig, moment: Timestamp) {
    let before = moment.as_second() - rig.clock.now().as_second() - 1;
    tokio::time::sleep(Duration::from_secs(u64::try_from(before).unwrap_or_default())).await;
}

async fn until_the_last_is_left(rig: &Rig, [first, last]: &[(String, Timestamp); 2]) {
    rig.until(&last.0, "is taken", is_taken).await;
    rig.until_gone("VMSnapshot", &first.0).await;
    let is_done = |schedule: &SnapshotSchedule| {
        let status = schedule.status.clone().unwrap_or_default();
        status.last_schedule_time == Some(last.1.to_string()) && status.snapshots == 1
    };
    rig.until("nightly", "has the last one", is_done).await;
    until_host("one snapshot is left", || owned(rig) == 1).await;
}

#[test]
fn a_schedule_takes_one_snapshot_at_each_moment_and_keeps_as_many_as_it_declares() {
    converges(&[Fault::Error, Fault::CrashAfter], async |rig| {
        let moments = web_has_a_schedule(rig, Value::Null).await;
        rig.until(&moments[0].0, "is taken", is_taken).await;
        until_almost(rig, moments[1].1).await;
        rig.strike_from_here();
        until_the_last_is_left(rig, &moments).await;
    });
}

#[test]
fn the_last_snapshot_stays_without_its_schedule() {
    converges(&[], async |rig| {
        let moments = web_has_a_schedule(rig, Value::Null).await;
        until_the_last_is_left(rig, &moments).await;
        rig.delete("SnapshotSchedule", "nightly").await;
        rig.restart().await;
        rig.must_settle().await;
        rig.until(&moments[1].0, "is taken", is_taken).await;
        rig.delete("VMSnapshot", &moments[1].0).await;
        until_host("none is left", || owned(rig) == 0).await;
        all_is_deleted(rig).await;
    });
}

#[test]
fn a_schedule_backs_up_its_snapshots_and_the_next_backup_reads_only_what_has_changed() {
    converges(&[Fault::CrashAfter], async |rig| {
        let nas = BackupFolderFacts { name: "nas".to_owned(), problem: None };
        rig.system.change_facts(|facts| facts.backup_folders.push(nas));
        rig.set_secret_value("backups", "password", "canary").await;
        rig.apply("BackupRepository", "nas", json!({"folder": "nas", "passwordSecretName": "backups"})).await;
        let backup = json!({"repository": "nas", "keep": {"last": 1}});
        let moments = web_has_a_schedule(rig, backup).await;
        let backups = moments.clone().map(|(_, moment)| scheduled_name("nightly", "web-root", moment));
        rig.until(&backups[0], "is complete", is_complete).await;
        until_almost(rig, moments[1].1).await;
        rig.strike_from_here();
        rig.until(&backups[1], "is complete", is_complete).await;
        rig.until_gone("Backup", &backups[0]).await;
        until_the_last_is_left(rig, &moments).await;
        let left = rig.system.repositories().backups();
        assert!(left.len() == 1 && left[0].parent.is_some(), "{left:?}");
    });
}

#[test]
fn a_disk_that_no_vm_has_any_more_has_snapshots_by_a_schedule() {
    converges(&[Fault::Error, Fault::CrashAfter], async |rig| {
        web_is_declared(rig).await;
        web_runs(rig).await;
        rig.delete("VM", "web").await;
        rig.until_gone("VM", "web").await;
        let spec = json!({"disks": ["web-root"], "keep": {"last": 1}});
        let [first, last] = until_two_moments(rig, spec, "web-root").await;
        let is_taken = |snapshot: &DiskSnapshot| {
            let status = snapshot.status.clone().unwrap_or_default();
            status.taken_at.is_some() && condition::is_true(&status.conditions, ConditionType::Ready)
        };
        rig.until(&first.0, "is taken", is_taken).await;
        until_almost(rig, last.1).await;
        rig.strike_from_here();
        rig.until(&last.0, "is taken", is_taken).await;
        rig.until_gone("DiskSnapshot", &first.0).await;
        until_host("one snapshot is left", || owned(rig) == 1).await;
    });
}
