//! The backups of a schedule.

use std::{collections::BTreeMap, sync::Arc};

use berth_api::{Backup, BackupRepository, DiskSnapshot, Quota};

use super::*;
use crate::{key::ObjectKind, plan::Dependency};

#[test]
fn snapshots_and_backups_have_the_labels_and_annotations_of_vm_and_schedule() {
    let mut declared = with_backups();
    declared["metadata"]["labels"] = json!({"team": "backup"});
    declared["metadata"]["annotations"] = json!({"note": "nightly", "berth.dev/x": "y"});
    let mut site = Site::new(declared);
    site.vm("web", &json!({"team": "shop", "tier": "front", "app.kubernetes.io/name": "web"}));
    site.repository();
    site.reconcile("2026-01-01T00:30:00Z");
    site.hour(1);
    let snapshot = site.cache.tables.vm_snapshots.all().next().expect("it is made").clone();
    let backup = site.backups().first().expect("it is made").clone();
    for meta in [&snapshot.metadata, &backup.metadata] {
        let own = |entries: Option<&BTreeMap<String, String>>| {
            let own = entries.cloned().unwrap_or_default().into_iter();
            own.filter(|(key, _)| !key.starts_with("berth.dev/")).collect::<Vec<_>>()
        };
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(own(meta.labels.as_ref()), [pair("team", "backup"), pair("tier", "front")]);
        assert_eq!(own(meta.annotations.as_ref()), [pair("note", "nightly")]);
    }
    assert!(!snapshot.annotations().contains_key("berth.dev/x"));
    assert!(snapshot.scheduled().is_some() && backup.scheduled().is_some());
}

/// The schedule of each hour with backups: one snapshot and two backups are kept.
fn with_backups() -> Value {
    let mut schedule = hourly();
    schedule["spec"]["vms"] = json!(["web"]);
    schedule["spec"]["keep"] = json!({"last": 1});
    schedule["spec"]["backup"] = json!({"repository": "offsite", "keep": {"last": 2}});
    schedule
}

fn site(schedule: Value) -> Site {
    let mut site = Site::new(schedule);
    site.repository();
    site.reconcile("2026-01-01T00:30:00Z");
    site
}

impl Site {
    fn repository(&mut self) {
        let repository: BackupRepository = object(json!({
            "metadata": {"name": "offsite", "namespace": "ns"}, "spec": {"folder": "nas", "passwordSecretName": "p"},
        }));
        put(&mut self.cache, repository);
    }

    /// Takes the snapshots of all disks of this volume, and reconciles.
    fn take_disks(&mut self, volume: &str) {
        let now = self.now.to_string();
        let new: Vec<_> =
            self.cache.tables.vm_snapshots.all().filter(|s| s.status.is_none()).cloned().collect();
        for snapshot in new {
            let part = format!("{}-0", snapshot.name_any());
            let mut value = serde_json::to_value(snapshot.as_ref()).expect("an object");
            value["status"] = taken(&now);
            value["status"]["disks"] = json!([{"disk": snapshot.spec.vm, "snapshot": part}]);
            put(&mut self.cache, object::<VMSnapshot>(value));
            let part: DiskSnapshot = object(json!({
                "metadata": {"name": part, "namespace": "ns"}, "spec": {"disk": snapshot.spec.vm},
                "status": {"volumeID": volume, "takenAt": now},
            }));
            put(&mut self.cache, part);
        }
        self.reconcile(&now);
    }

    /// At this hour: the snapshot is due and taken.
    fn hour(&mut self, hour: i32) {
        self.reconcile(&format!("2026-01-01T{hour:02}:00:00Z"));
        self.take_disks("v-1");
        self.parts_follow();
    }

    /// The DiskSnapshots of deleted VMSnapshots go.
    fn parts_follow(&mut self) {
        let whole = self.snapshots();
        let parts: Vec<_> = self.cache.tables.disk_snapshots.all().cloned().collect();
        for part in
            parts.iter().filter(|part| !whole.contains(&part.name_any().trim_end_matches("-0").to_owned()))
        {
            self.cache.remove(&Key::of(part.as_ref()));
        }
    }

    fn backups(&self) -> Vec<Arc<Backup>> {
        let by_name: BTreeMap<String, _> =
            self.cache.tables.backups.all().map(|backup| (backup.name_any(), backup.clone())).collect();
        by_name.into_values().collect()
    }

    fn backup_hours(&self) -> Vec<String> {
        hours(&self.backups().iter().map(|backup| backup.name_any()).collect::<Vec<_>>())
    }

    /// Reports the backups that are not complete as this, and reconciles.
    fn report_backups(&mut self, status: &Value) {
        for backup in self.backups().iter().filter(|backup| !backup.is_complete()) {
            let mut value = serde_json::to_value(backup.as_ref()).expect("an object");
            value["status"] = status.clone();
            put(&mut self.cache, object::<Backup>(value));
        }
        self.reconcile(&self.now.to_string());
        self.parts_follow();
    }

    /// Reports the backups without a status as this, and reconciles.
    fn report_new(&mut self, status: &Value) {
        for backup in self.backups().iter().filter(|backup| backup.status.is_none()) {
            let mut value = serde_json::to_value(backup.as_ref()).expect("an object");
            value["status"] = status.clone();
            put(&mut self.cache, object::<Backup>(value));
        }
        self.reconcile(&self.now.to_string());
        self.parts_follow();
    }

    fn complete(&mut self) {
        self.report_backups(&complete(&self.now.to_string()));
    }
}

fn complete(moment: &str) -> Value {
    json!({"volumeID": "v-1", "backupID": "b-1", "takenAt": moment, "completedAt": moment, "conditions": [condition("Ready", "True", "Available", "")]})
}

fn written() -> Value {
    json!({"volumeID": "v-1", "backupID": "b-1", "conditions": [condition("Ready", "False", "BackingUp", "40 % backed up")]})
}

fn written_of(volume: &str) -> Value {
    let mut status = written();
    status["volumeID"] = volume.into();
    status
}

fn stalled(reason: &str) -> Value {
    json!({"volumeID": "v-1", "backupID": "b-1", "conditions": [
        condition("Ready", "False", reason, "the cause"), condition("Stalled", "True", reason, "the cause"),
    ]})
}

fn unreachable() -> Value {
    json!({"volumeID": "v-1", "backupID": "b-1", "conditions": [condition("Ready", "False", "RepositoryUnreachable", "no answer")]})
}

#[test]
fn each_disk_of_a_snapshot_that_is_taken_has_a_backup_and_the_rules_keep_the_last_ones() {
    let mut site = site(with_backups());
    site.reconcile("2026-01-01T01:00:00Z");
    assert!(site.backups().is_empty(), "its snapshot is not taken yet");
    site.take_disks("v-1");
    let first = site.backups()[0].clone();
    let made_by = first.scheduled().expect("made by the schedule");
    assert_eq!(
        (made_by.schedule, made_by.disk, made_by.moment),
        ("hourly", "web", at("2026-01-01T01:00:00Z"))
    );
    assert_eq!(
        (first.spec.repository.as_str(), first.spec.snapshot.as_ref().map(ToString::to_string)),
        ("offsite", Some(format!("{}-0", site.snapshots()[0])))
    );
    assert_eq!(first.spec.deletion_policy, berth_api::DeletionPolicy::Delete);
    site.complete();
    for hour in 2..5 {
        site.hour(hour);
        site.complete();
    }
    assert_eq!(site.backup_hours(), ["0103", "0104"]);
    let status = site.schedule.status.clone().expect("reported");
    assert_eq!((status.backups, status.snapshots), (2, 1));
    assert_eq!(status.last_backup_time.as_deref(), Some("2026-01-01T04:00:00Z"));
    assert_eq!(reason(&site.plan("2026-01-01T04:01:00Z")), (false, Reason::Available));
}

#[test]
fn a_schedule_makes_no_backup_beyond_a_quota_and_says_so() {
    let mut site = site(with_backups());
    let quota = |backups: i64| -> Quota {
        object(json!({"metadata": {"name": "q", "namespace": "ns"}, "spec": {"hard": {"backups": backups}}}))
    };
    put(&mut site.cache, quota(0));
    site.hour(1);
    let plan = site.plan("2026-01-01T01:01:00Z");
    assert_eq!((site.backups().len(), reason(&plan)), (0, (false, Reason::QuotaExceeded)));
    let Outcome::Blocked(waits) = plan.outcome else { panic!("it waits") };
    let key = Key::namespaced(ObjectKind::Quota, "ns", "q");
    assert!(waits.contains(&Dependency::Object(key)), "{waits:?}");
    put(&mut site.cache, quota(1));
    site.reconcile("2026-01-01T01:02:00Z");
    assert_eq!(site.backup_hours(), ["0101"]);
    site.complete();
    assert_eq!(reason(&site.plan("2026-01-01T01:03:00Z")), (false, Reason::Available));
}

#[test]
fn a_backup_that_failed_and_takes_the_last_place_of_a_quota_is_named() {
    let mut site = site(with_backups());
    let quota: Quota =
        object(json!({"metadata": {"name": "q", "namespace": "ns"}, "spec": {"hard": {"backups": 1}}}));
    put(&mut site.cache, quota);
    site.hour(1);
    site.report_backups(&stalled("SnapshotLost"));
    site.hour(2);
    assert_eq!(
        (site.backup_hours(), reason(&site.plan("2026-01-01T02:01:00Z"))),
        (vec!["0101".into()], (true, Reason::BackupFailed))
    );
}

#[test]
fn a_snapshot_stays_until_its_backup_is_complete_and_until_the_next_one_has_read_what_changed() {
    let mut site = site(with_backups());
    site.hour(1);
    site.report_backups(&written());
    for hour in 2..5 {
        site.hour(hour);
        assert_eq!(hours(&site.snapshots()), ["0101", &format!("010{hour}")], "one is kept, and one is read");
        assert_eq!(site.backup_hours(), ["0101"], "one backup of a disk at a time");
    }
    site.complete();
    assert_eq!(site.backup_hours(), ["0101", "0104"], "those that were missed are not backed up");
    assert_eq!(hours(&site.snapshots()), ["0101", "0104"], "the backup reads what differs between the two");
    site.complete();
    assert_eq!(hours(&site.snapshots()), ["0104"]);
    site.hour(5);
    assert_eq!(hours(&site.snapshots()), ["0104", "0105"]);
}

#[test]
fn a_backup_that_fails_is_named_and_is_tried_again_until_its_snapshot_is_gone() {
    let mut site = site(with_backups());
    site.hour(1);
    site.complete();
    site.hour(2);
    for (status, now, expected) in [
        (unreachable(), "2026-01-01T02:14:59Z", (false, Reason::Available)),
        (unreachable(), "2026-01-01T02:15:00Z", (false, Reason::BackupFailed)),
        (stalled("WrongPassword"), "2026-01-01T02:01:00Z", (true, Reason::BackupFailed)),
        (written(), "2026-01-02T01:59:59Z", (false, Reason::Available)),
    ] {
        site.report_backups(&status);
        let plan = site.plan(now);
        assert_eq!(reason(&plan), expected, "{status}");
        assert_eq!(plan.decision.backups.create.len() + plan.decision.backups.delete.len(), 0);
        if expected.1 == Reason::BackupFailed {
            let text = plan.decision.readiness.message();
            assert!(
                text.contains("Backup hourly-web-202601010200-") && text.contains(" of Disk web: "),
                "{text}"
            );
        }
        site.now = at("2026-01-01T02:30:00Z");
    }
    site.hour(3);
    assert_eq!(
        (site.backup_hours(), hours(&site.snapshots())),
        (vec!["0101".into(), "0102".into()], vec!["0101".into(), "0102".into(), "0103".into()])
    );
    site.report_backups(&stalled("SnapshotLost"));
    assert_eq!(site.backup_hours(), ["0101", "0102", "0103"], "the last snapshot is backed up in its place");
    site.reconcile("2026-01-01T03:00:30Z");
    site.complete();
    assert_eq!(site.backup_hours(), ["0101", "0103"]);
    assert_eq!(reason(&site.plan("2026-01-01T03:10:00Z")), (false, Reason::Available));
}

#[test]
fn a_backup_that_failed_stays_and_is_reported_until_another_takes_its_place() {
    let mut site = site(with_backups());
    site.hour(1);
    site.report_backups(&stalled("SnapshotLost"));
    assert_eq!(
        (site.backup_hours(), reason(&site.plan("2026-01-01T01:01:00Z"))),
        (vec!["0101".into()], (true, Reason::BackupFailed))
    );
    site.hour(2);
    site.reconcile("2026-01-01T02:00:01Z");
    assert_eq!(site.backup_hours(), ["0102"]);
}

#[test]
fn without_the_repository_none_is_made_and_the_schedule_wakes_up_with_it() {
    let mut site = Site::new(with_backups());
    site.reconcile("2026-01-01T00:30:00Z");
    site.hour(1);
    let plan = site.plan("2026-01-01T01:01:00Z");
    assert_eq!((site.backups().len(), reason(&plan)), (0, (false, Reason::WaitingForRepository)));
    let repository = Key::namespaced(ObjectKind::BackupRepository, "ns", "offsite");
    let Outcome::Blocked(waits) = plan.outcome else { panic!("it waits") };
    assert!(waits.contains(&Dependency::Object(repository)), "{waits:?}");
    site.repository();
    site.reconcile("2026-01-01T01:02:00Z");
    assert_eq!(site.backup_hours(), ["0101"]);
    let key = Key::of(&site.schedule);
    let backup = site.backups()[0].as_ref().clone();
    assert!(site.cache.replace(backup.clone().into(), Instant::now()).contains(&key));
    assert!(site.cache.remove(&Key::of(&backup)).contains(&key));
}

#[test]
fn a_suspended_schedule_makes_and_deletes_no_backup_and_one_without_backups_keeps_those_it_made() {
    let mut site = site(with_backups());
    for hour in 1..4 {
        site.hour(hour);
        site.complete();
    }
    site.hour(4);
    site.report_backups(&written());
    site.schedule.spec.suspend = true;
    site.reconcile("2026-01-01T05:00:00Z");
    assert_eq!((site.backup_hours().len(), site.schedule.status.as_ref().map(|s| s.backups)), (3, Some(2)));
    site.schedule.spec.suspend = false;
    let declared = site.schedule.spec.backup.take();
    for hour in 5..8 {
        site.hour(hour);
    }
    assert_eq!(site.backup_hours(), ["0102", "0103", "0104"]);
    assert_eq!(hours(&site.snapshots()), ["0104", "0107"], "the one that is being read stays");
    site.schedule.spec.backup = declared;
    site.complete();
    assert_eq!(site.backup_hours(), ["0103", "0104", "0107"], "it goes on with them");
}

#[test]
fn backups_of_people_of_former_repositories_and_of_former_disks_are_never_deleted() {
    let mut site = site(with_backups());
    site.hour(1);
    site.complete();
    // One that a person keeps: without its label, it is none of the schedule's.
    let mut kept = site.backups()[0].as_ref().clone();
    kept.metadata.labels = None;
    put(&mut site.cache, kept.clone());
    site.reconcile("2026-01-01T01:10:00Z");
    assert_eq!(site.backups().len(), 1, "it is not made again");
    for hour in 2..4 {
        site.hour(hour);
        site.complete();
    }
    // The disk is created anew under its name.
    for hour in 4..8 {
        site.reconcile(&format!("2026-01-01T0{hour}:00:00Z"));
        site.take_disks("v-2");
        let mut status = complete(&site.now.to_string());
        status["volumeID"] = "v-2".into();
        site.report_backups(&status);
    }
    assert_eq!(site.backup_hours(), ["0101", "0102", "0103", "0106", "0107"]);
    let other: BackupRepository = object(json!({
        "metadata": {"name": "other", "namespace": "ns"}, "spec": {"folder": "nas", "passwordSecretName": "p"},
    }));
    put(&mut site.cache, other);
    site.schedule.spec.backup.as_mut().expect("declared").repository = "other".into();
    for hour in [8, 9] {
        site.hour(hour);
        site.complete();
    }
    assert_eq!(site.backup_hours(), ["0101", "0102", "0103", "0106", "0107", "0108", "0109"]);
}

#[test]
fn a_disk_that_is_created_anew_does_not_wait_for_the_backup_of_the_former_one() {
    let mut site = site(with_backups());
    site.hour(1);
    site.report_backups(&unreachable());
    site.reconcile("2026-01-01T02:00:00Z");
    site.take_disks("v-2");
    assert_eq!(site.backup_hours(), ["0101", "0102"]);
    // That of a repository that is not declared any more gives way.
    site.schedule.spec.backup.as_mut().expect("declared").repository = "other".into();
    let plan = site.plan("2026-01-01T02:01:00Z");
    assert_eq!(reason(&plan), (false, Reason::WaitingForRepository));
    assert_eq!(plan.decision.backups.delete.len(), 0, "no other one has taken its place");
}

#[test]
fn few_snapshots_stay_for_backups_that_hang() {
    let mut site = site(with_backups());
    for hour in 1..12 {
        site.hour(hour);
        // Each is of another disk, and its backup goes on for ever.
        site.report_new(&written_of(&format!("v-old-{hour}")));
    }
    site.reconcile("2026-01-01T11:01:00Z");
    assert_eq!(
        hours(&site.snapshots()),
        ["0101", "0102", "0103", "0104", "0111"],
        "the first are not pushed out"
    );
}

#[test]
fn the_snapshot_of_a_backup_under_way_stays_rather_than_that_of_a_complete_one() {
    for (hanging, expected) in
        [(3, ["0101", "0102", "0103", "0104", "0105"]), (4, ["0101", "0102", "0103", "0104", "0106"])]
    {
        let mut site = site(with_backups());
        for hour in 1..=hanging {
            site.hour(hour);
            site.report_new(&written_of(&format!("v-old-{hour}")));
        }
        site.hour(hanging + 1);
        site.report_new(&complete(&site.now.to_string()));
        site.hour(hanging + 2);
        assert_eq!(hours(&site.snapshots()), expected, "{hanging} are under way");
    }
}

#[test]
fn backups_of_the_future_are_reported_until_they_are_deleted_or_lose_their_label() {
    let mut site = site(with_backups());
    site.reconcile("2036-01-01T01:00:00Z");
    site.take_disks("v-1");
    site.complete();
    for name in site.snapshots() {
        site.cache.remove(&Key::namespaced(ObjectKind::VMSnapshot, "ns", &name));
    }
    site.parts_follow();
    site.reconcile("2026-01-01T02:00:05Z");
    site.take_disks("v-1");
    assert_eq!((hours(&site.snapshots()), site.backups().len()), (vec!["0102".into()], 1));
    let behind = site.plan("2026-01-01T02:01:00Z");
    assert_eq!(reason(&behind), (true, Reason::ClockBehind));
    let text = behind.decision.readiness.message();
    assert!(text.contains("Backup hourly-web-203601010100-"), "{text}");
    assert_eq!(
        reason(&site.plan("2036-01-01T00:00:00Z")),
        (false, Reason::Available),
        "an hour is tolerated"
    );
    let mut kept = site.backups()[0].as_ref().clone();
    kept.metadata.labels = None;
    put(&mut site.cache, kept);
    site.reconcile("2026-01-01T02:02:00Z");
    assert_eq!(site.backup_hours(), ["0102", "0101"]);
    assert_eq!(reason(&site.plan("2026-01-01T02:03:00Z")), (false, Reason::Available));
}

#[test]
fn the_time_of_a_wrong_clock_does_not_stay_in_the_status() {
    let mut site = site(with_backups());
    let ahead = Some("2036-01-01T00:00:00Z".to_owned());
    let status = site.schedule.status.as_mut().expect("reported");
    (status.last_backup_time, status.last_successful_time) = (ahead.clone(), ahead);
    site.reconcile("2026-01-01T00:40:00Z");
    let status = site.schedule.status.clone().expect("reported");
    assert_eq!((status.last_backup_time, status.last_successful_time), (None, None));
}

#[test]
fn backups_that_lost_their_status_and_their_snapshot_are_never_deleted() {
    let mut site = site(with_backups());
    for hour in 1..4 {
        site.hour(hour);
        site.complete();
    }
    for name in site.snapshots() {
        site.cache.remove(&Key::namespaced(ObjectKind::VMSnapshot, "ns", &name));
    }
    site.parts_follow();
    let waiting =
        json!({"conditions": [condition("Ready", "False", "WaitingForSnapshot", "it does not exist")]});
    for backup in site.backups() {
        let mut value = serde_json::to_value(backup.as_ref()).expect("an object");
        value["status"] = waiting.clone();
        put(&mut site.cache, object::<Backup>(value));
    }
    for hour in 4..7 {
        site.hour(hour);
        site.report_new(&complete(&site.now.to_string()));
    }
    assert_eq!(site.backup_hours(), ["0102", "0103", "0105", "0106"]);
    assert_eq!(site.schedule.status.as_ref().map(|status| status.backups), Some(2));
    assert_eq!(reason(&site.plan("2026-01-01T06:30:00Z")), (false, Reason::Available));
    // With the identity of its data, a Backup that is not complete is known to have failed.
    site.report_backups(&unreachable());
    assert_eq!(site.backup_hours(), ["0105", "0106"]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever succeeds, hangs or fails: the last complete backup stays, one is under way, and no more are left than are kept and one.
    #[test]
    fn the_last_complete_backup_stays_and_one_is_under_way(outcomes in prop::collection::vec(0..5_usize, 1..20)) {
        let mut site = site(with_backups());
        let mut last = None;
        for (hour, outcome) in outcomes.into_iter().enumerate() {
            site.hour(i32::try_from(hour + 1).expect("small"));
            match outcome {
                0 | 1 => site.complete(),
                2 => site.report_backups(&unreachable()),
                3 => site.report_backups(&stalled("SnapshotLost")),
                _ => site.report_backups(&written()),
            }
            site.reconcile(&site.now.to_string());
            let all = site.backups();
            let newest = all.iter().filter(|backup| backup.is_complete()).filter_map(|b| Some(b.scheduled()?.moment)).max();
            prop_assert!(newest >= last, "the last one went: {:?}", site.backup_hours());
            last = newest;
            prop_assert!(all.iter().filter(|backup| !backup.is_complete()).count() <= 2);
            prop_assert!(all.len() <= 4, "{:?}", site.backup_hours());
            prop_assert!(site.snapshots().len() <= 4, "{:?}", site.snapshots());
        }
    }
}
