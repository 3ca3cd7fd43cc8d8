//! Schedules of Disks.

use berth_api::{Backup, BackupRepository, DiskSnapshot, Quota};

use super::*;

/// A schedule at every full hour of the Disks `data` and `logs`, which no VM has.
fn of_disks() -> Site {
    let mut schedule = hourly();
    schedule["spec"]["vms"] = Value::Null;
    schedule["spec"]["disks"] = json!(["logs", "data"]);
    let mut site = Site::new(schedule);
    for name in ["data", "logs"] {
        site.disk(name, json!("1Gi"));
    }
    site.reconcile("2026-01-01T00:30:00Z");
    site
}

fn snapshots(site: &Site) -> Vec<String> {
    let mut names: Vec<String> =
        site.cache.tables.disk_snapshots.all().map(|snapshot| snapshot.name_any()).collect();
    names.sort();
    names
}

/// Reports the snapshots of disks that are not taken yet as this, and reconciles.
fn report(site: &mut Site, status: &Value) {
    let all: Vec<_> = site.cache.tables.disk_snapshots.all().cloned().collect();
    for snapshot in all.iter().filter(|snapshot| snapshot.status.is_none()) {
        let mut value = serde_json::to_value(snapshot.as_ref()).expect("an object");
        value["status"] = status.clone();
        put(&mut site.cache, object::<DiskSnapshot>(value));
    }
    let now = site.now.to_string();
    site.reconcile(&now);
}

fn taken_of_a_disk(moment: &str) -> Value {
    let mut status = taken(moment);
    status["volumeID"] = "v".into();
    status
}

#[test]
fn disks_without_a_vm_have_snapshots_of_which_as_many_are_kept_as_declared() {
    let mut site = of_disks();
    for hour in 1..=4 {
        let now = format!("2026-01-01T{hour:02}:00:00Z");
        site.reconcile(&now);
        report(&mut site, &taken_of_a_disk(&now));
    }
    let names = snapshots(&site);
    assert_eq!(names.len(), 4, "two of each: {names:?}");
    assert!(names.iter().all(|name| name.contains("0300") || name.contains("0400")), "{names:?}");
    assert!(site.snapshots().is_empty(), "none of a VM");
    let status = site.schedule.status.clone().expect("a status");
    assert_eq!((status.disks, status.vms, status.snapshots), (2, 0, 4));
    assert_eq!(status.last_successful_time.as_deref(), Some("2026-01-01T04:00:00Z"));
    let made = site.cache.tables.disk_snapshots.all().next().expect("there").clone();
    assert_eq!(made.scheduled().map(|(schedule, _)| schedule), Some("hourly"));
    assert!(site.plan("2026-01-01T04:00:30Z").decision.create_of_disks.is_empty(), "once for each moment");
}

#[test]
fn a_snapshot_of_a_disk_that_a_quota_does_not_allow_takes_the_place_of_the_oldest_and_never_of_the_last() {
    for keep in [2u32, 1] {
        let mut site = of_disks();
        site.schedule.spec.keep.last = keep.into();
        let hard = json!({"snapshots": 2 * keep});
        let quota: Quota =
            object(json!({"metadata": {"name": "q", "namespace": "ns"}, "spec": {"hard": hard}}));
        put(&mut site.cache, quota);
        for hour in 1..=keep {
            let now = format!("2026-01-01T0{hour}:00:00Z");
            site.reconcile(&now);
            report(&mut site, &taken_of_a_disk(&now));
        }
        let now = format!("2026-01-01T0{}:00:00Z", keep + 1);
        let full = site.plan(&now);
        assert_eq!(reason(&full), (false, Reason::QuotaExceeded));
        assert!(full.decision.readiness.message().starts_with("Quota q: snapshots"), "{full:?}");
        assert_eq!(full.decision.delete_of_disks.len(), if keep == 1 { 0 } else { 2 });
        site.reconcile(&now);
        site.reconcile(&format!("2026-01-01T0{}:00:10Z", keep + 1));
        let left: Vec<String> = if keep == 1 {
            vec!["-202601010100-".into()]
        } else {
            vec!["-202601010200-".into(), "-202601010300-".into()]
        };
        let names = snapshots(&site);
        assert_eq!(names.len(), 2 * left.len(), "{names:?}");
        assert!(names.iter().all(|name| left.iter().any(|hour| name.contains(hour))), "{names:?}");
    }
}

#[test]
fn the_last_snapshot_of_a_disk_stays_while_later_ones_fail() {
    let mut site = of_disks();
    site.reconcile("2026-01-01T01:00:00Z");
    report(&mut site, &taken_of_a_disk("2026-01-01T01:00:00Z"));
    for hour in 2..=5 {
        site.reconcile(&format!("2026-01-01T{hour:02}:00:00Z"));
        report(&mut site, &failed("the disk has 32 snapshots"));
    }
    let names = snapshots(&site);
    assert_eq!(names.iter().filter(|name| name.contains("0100")).count(), 2, "{names:?}");
    let plan = site.plan("2026-01-01T05:00:01Z");
    assert_eq!(reason(&plan), (true, Reason::SnapshotFailed));
    let text = plan.decision.readiness.message();
    assert!(text.starts_with("DiskSnapshot hourly-") && text.contains("of Disk data"), "{text}");
}

#[test]
fn a_disk_that_is_missing_or_has_no_file_holds_up_no_other_one() {
    let mut site = of_disks();
    site.disk("data", Value::Null);
    let plan = site.plan("2026-01-01T01:00:00Z");
    let of = |plan: &Plan<plan::Decision>| {
        plan.decision.create_of_disks.iter().map(|s| s.spec.disk.to_string()).collect::<Vec<_>>()
    };
    assert_eq!((of(&plan), reason(&plan)), (vec!["logs".to_owned()], (false, Reason::WaitingForDisk)));
    assert!(plan.decision.readiness.message().starts_with("Disk data has no file yet"));
    let disk: Disk =
        object(json!({"metadata": {"name": "data", "namespace": "ns"}, "spec": {"size": "1Gi"}}));
    site.cache.remove(&Key::of(&disk));
    let plan = site.plan("2026-01-01T01:00:00Z");
    assert_eq!(of(&plan), ["logs"]);
    assert!(plan.decision.readiness.message().starts_with("Disk data does not exist"));
}

#[test]
fn disks_are_selected_by_their_labels() {
    let mut site = of_disks();
    site.schedule.spec.disks = None;
    site.schedule.spec.disk_selector = Some([("backup".to_owned(), "nightly".to_owned())].into());
    let nothing = site.plan("2026-01-01T01:00:00Z");
    assert_eq!(reason(&nothing), (false, Reason::Available));
    assert!(nothing.decision.readiness.message().contains("no Disk has the labels of diskSelector"));
    let labelled: Disk = object(json!({
        "metadata": {"name": "data", "namespace": "ns", "labels": {"backup": "nightly", "team": "shop"}},
        "spec": {"size": "1Gi"},
        "status": {"binding": {"host": "h", "epoch": 1}, "volumeID": "v", "size": "1Gi"},
    }));
    put(&mut site.cache, labelled);
    let plan = site.plan("2026-01-01T01:00:00Z");
    assert_eq!(plan.decision.create_of_disks.len(), 1);
    let made = &plan.decision.create_of_disks[0];
    assert_eq!(made.spec.disk.as_str(), "data");
    assert_eq!(made.labels().get("team").map(String::as_str), Some("shop"), "it has the labels of its disk");
}

#[test]
fn the_snapshot_of_a_disk_is_backed_up_once_it_is_taken_and_stays_for_the_next_backup() {
    let mut site = of_disks();
    site.schedule.spec.keep.last = 1;
    site.schedule.spec.disks = Some(vec!["data".into()]);
    site.schedule.spec.backup = Some(object(json!({"repository": "offsite", "keep": {"last": 1}})));
    let repository: BackupRepository = object(json!({
        "metadata": {"name": "offsite", "namespace": "ns"}, "spec": {"folder": "nas", "passwordSecretName": "p"},
    }));
    put(&mut site.cache, repository);
    let backups = |site: &Site| -> Vec<Backup> {
        site.cache.tables.backups.all().map(|backup| backup.as_ref().clone()).collect()
    };
    site.reconcile("2026-01-01T01:00:00Z");
    assert!(backups(&site).is_empty(), "it is not taken yet");
    report(&mut site, &taken_of_a_disk("2026-01-01T01:00:00Z"));
    let made = backups(&site);
    assert_eq!(made.len(), 1);
    let snapshot = made[0].spec.snapshot.as_ref().map(ToString::to_string);
    assert_eq!(snapshot.as_ref(), snapshots(&site).first());
    assert_eq!(made[0].scheduled().map(|made_by| made_by.disk), Some("data"));
    site.reconcile("2026-01-01T02:00:00Z");
    report(&mut site, &taken_of_a_disk("2026-01-01T02:00:00Z"));
    assert_eq!(snapshots(&site).len(), 2, "the backup of the first one is not complete");
}
