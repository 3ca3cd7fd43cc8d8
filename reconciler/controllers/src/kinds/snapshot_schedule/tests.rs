mod backups;
mod disks;

use std::time::Duration;

use berth_api::{Disk, Readiness, Reason, VM, VMSnapshot};
use kube::ResourceExt;
use proptest::prelude::*;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::*;
use crate::{object::Object, plan::Plan};

fn at(text: &str) -> Timestamp {
    text.parse().unwrap_or_else(|error| panic!("{text:?}: {error}"))
}

/// A schedule at every full hour, of the VMs `db` and `web`, which was created at 00:30 on the first day.
fn hourly() -> Value {
    json!({
        "metadata": {"name": "hourly", "namespace": "ns", "uid": "u1", "generation": 1, "creationTimestamp": "2026-01-01T00:30:00Z"},
        "spec": {"schedule": "@hourly", "vms": ["web", "db"], "keep": {"last": 2}},
        "status": {"observedGeneration": -1},
    })
}

fn put(cache: &mut Cache, object: impl Into<Object>) {
    cache.replace(object.into(), Instant::now());
}

fn object<K: serde::de::DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).expect("an object")
}

/// The controllers' cache, and a clock.
struct Site {
    cache: Cache,
    schedule: SnapshotSchedule,
    now: Timestamp,
}

impl Site {
    fn new(schedule: Value) -> Self {
        let mut site = Self {
            cache: Cache::new(Duration::from_secs(40)),
            schedule: object(schedule),
            now: at("2026-01-01T00:30:00Z"),
        };
        for name in ["db", "web"] {
            site.vm(name, &json!({}));
        }
        site
    }

    /// A VM with a disk that has a file.
    fn vm(&mut self, name: &str, labels: &Value) {
        let vm: VM = object(json!({
            "metadata": {"name": name, "namespace": "ns", "labels": labels},
            "spec": {"class": "small", "disks": [{"name": name, "boot": true}]},
        }));
        put(&mut self.cache, vm);
        self.disk(name, json!("1Gi"));
    }

    fn disk(&mut self, name: &str, size: Value) {
        let disk: Disk = object(json!({
            "metadata": {"name": name, "namespace": "ns"}, "spec": {"size": "1Gi"},
            "status": {"binding": {"host": "h", "epoch": 1}, "volumeID": "v", "size": size},
        }));
        put(&mut self.cache, disk);
    }

    /// Plans at this time, without a write.
    fn plan(&mut self, now: &str) -> Plan<plan::Decision> {
        self.now = at(now);
        planned(&self.cache, &self.schedule, self.now)
    }

    /// Plans at this time, and makes all writes; returns the names that it made and deleted.
    fn reconcile(&mut self, now: &str) -> (Vec<String>, Vec<String>) {
        let plan = self.plan(now);
        self.schedule.status = Some(status(&self.schedule, &plan.decision, self.now));
        let names =
            |snapshots: &[VMSnapshot]| snapshots.iter().map(ResourceExt::name_any).collect::<Vec<_>>();
        let deleted: Vec<VMSnapshot> = plan.decision.delete.iter().map(|s| s.as_ref().clone()).collect();
        for snapshot in &deleted {
            self.cache.remove(&Key::of(snapshot));
        }
        for snapshot in &plan.decision.create {
            put(&mut self.cache, snapshot.clone());
        }
        for snapshot in &plan.decision.delete_of_disks {
            self.cache.remove(&Key::of(snapshot.as_ref()));
        }
        for snapshot in &plan.decision.create_of_disks {
            put(&mut self.cache, snapshot.clone());
        }
        for backup in &plan.decision.backups.delete {
            self.cache.remove(&Key::of(backup.as_ref()));
        }
        for backup in &plan.decision.backups.create {
            put(&mut self.cache, backup.clone());
        }
        (names(&plan.decision.create), names(&deleted))
    }

    fn snapshots(&self) -> Vec<String> {
        let mut names: Vec<String> =
            self.cache.tables.vm_snapshots.all().map(|snapshot| snapshot.name_any()).collect();
        names.sort();
        names
    }

    /// Reports the snapshots that are not taken yet as this.
    fn report(&mut self, change: impl Fn(&VMSnapshot) -> Option<Value>) {
        let all: Vec<_> = self.cache.tables.vm_snapshots.all().cloned().collect();
        for snapshot in all.iter().filter(|s| s.status.as_ref().is_none_or(|s| s.taken_at.is_none())) {
            if let Some(status) = change(snapshot) {
                let mut value = serde_json::to_value(snapshot.as_ref()).expect("an object");
                value["status"] = status;
                put(&mut self.cache, object::<VMSnapshot>(value));
            }
        }
    }

    fn take(&mut self) {
        let taken = taken(&self.now.to_string());
        self.report(|snapshot| snapshot.status.is_none().then(|| taken.clone()));
    }
}

fn taken(moment: &str) -> Value {
    json!({"takenAt": moment, "conditions": [condition("Ready", "True", "Available", "")]})
}

fn failed(message: &str) -> Value {
    json!({"conditions": [
        condition("Ready", "False", "TooManySnapshots", message), condition("Stalled", "True", "TooManySnapshots", message),
    ]})
}

fn condition(kind: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": "2026-01-01T00:00:00Z"})
}

fn hours(names: &[String]) -> Vec<String> {
    let hour = |name: &String| name.rsplit('-').nth(1).map(|minute| minute[6..10].to_owned());
    names.iter().filter_map(hour).collect()
}

fn reason(plan: &Plan<plan::Decision>) -> (bool, Reason) {
    (matches!(plan.decision.readiness, Readiness::Stalled(..)), plan.decision.readiness.reason())
}

#[test]
fn each_vm_has_a_snapshot_at_each_moment_and_the_rules_keep_the_last_ones() {
    let mut site = Site::new(hourly());
    assert_eq!(
        site.reconcile("2026-01-01T00:30:00Z").0,
        Vec::<String>::new(),
        "none before the first moment"
    );
    let status = site.schedule.status.clone().expect("reported");
    assert_eq!(
        (status.last_schedule_time, status.next_schedule_time.as_deref()),
        (None, Some("2026-01-01T01:00:00Z"))
    );
    let (made, _) = site.reconcile("2026-01-01T01:00:03Z");
    assert_eq!(hours(&made), ["0101", "0101"]);
    let first = site.cache.tables.vm_snapshots.named("ns", &made[1]).expect("made").clone();
    assert_eq!(
        (first.spec.vm.as_str(), first.scheduled()),
        ("web", Some(("hourly", at("2026-01-01T01:00:00Z"))))
    );
    assert_eq!(site.reconcile("2026-01-01T01:00:04Z"), (vec![], vec![]), "once");
    site.take();
    for hour in 2..5 {
        let (made, deleted) = site.reconcile(&format!("2026-01-01T0{hour}:00:01Z"));
        assert_eq!((made.len(), deleted.len()), (2, 0), "none is deleted before the new one is taken");
        site.take();
        let (_, deleted) = site.reconcile(&format!("2026-01-01T0{hour}:00:02Z"));
        let surplus: Vec<String> = if hour > 2 { vec![format!("010{}", hour - 2); 2] } else { vec![] };
        assert_eq!(hours(&deleted), surplus, "of each VM the one that is not kept");
    }
    let status = site.schedule.status.clone().expect("reported");
    assert_eq!((status.vms, status.snapshots), (2, 4));
    assert_eq!(status.last_schedule_time.as_deref(), Some("2026-01-01T04:00:00Z"));
    assert_eq!(status.next_schedule_time.as_deref(), Some("2026-01-01T05:00:00Z"));
    assert_eq!(status.last_successful_time.as_deref(), Some("2026-01-01T04:00:01Z"));
}

#[test]
fn of_the_moments_that_were_missed_the_last_one_counts_within_the_deadline() {
    let mut site = Site::new(hourly());
    site.reconcile("2026-01-01T00:30:00Z");
    let (made, _) = site.reconcile("2026-01-01T05:50:00Z");
    assert_eq!(hours(&made), ["0105", "0105"], "one of the five, 50 minutes late");
    let mut daily = hourly();
    daily["spec"]["schedule"] = "@daily".into();
    let mut site = Site::new(daily);
    site.reconcile("2026-01-01T00:30:00Z");
    assert_eq!(site.reconcile("2026-01-02T01:00:01Z").0, Vec::<String>::new(), "more than an hour late");
    assert_eq!(
        site.schedule.status.as_ref().and_then(|s| s.next_schedule_time.as_deref()),
        Some("2026-01-03T00:00:00Z")
    );
    site.schedule.spec.starting_deadline_seconds = 86_400;
    assert_eq!(hours(&site.reconcile("2026-01-02T20:00:00Z").0), ["0200", "0200"]);
}

#[test]
fn a_clock_that_goes_back_makes_none_twice_and_deletes_none() {
    let mut site = Site::new(hourly());
    site.reconcile("2026-01-01T00:30:00Z");
    for hour in 1..4 {
        site.reconcile(&format!("2026-01-01T0{hour}:00:00Z"));
        site.take();
    }
    site.reconcile("2026-01-01T03:10:00Z");
    let kept = site.snapshots();
    assert_eq!(hours(&kept), ["0102", "0103", "0102", "0103"]);
    for now in
        ["2026-01-01T00:45:00Z", "2026-01-01T01:00:10Z", "2026-01-01T02:59:00Z", "2026-01-01T03:00:00Z"]
    {
        assert_eq!(site.reconcile(now), (vec![], vec![]), "{now}");
    }
    assert_eq!(hours(&site.reconcile("2026-01-01T04:00:00Z").0), ["0104", "0104"]);
}

#[test]
fn snapshots_of_the_future_are_reported_until_they_are_deleted() {
    let mut site = Site::new(hourly());
    site.reconcile("2026-01-01T00:30:00Z");
    site.reconcile("2036-01-01T01:00:00Z");
    site.take();
    let behind = site.plan("2026-01-01T02:00:00Z");
    assert_eq!((reason(&behind), behind.decision.create.len()), ((true, Reason::ClockBehind), 0));
    site.reconcile("2026-01-01T02:00:00Z");
    for name in site.snapshots() {
        assert!(behind.decision.readiness.message().contains("hourly-db-203601010100"), "{behind:?}");
        site.cache.remove(&Key::namespaced(crate::key::ObjectKind::VMSnapshot, "ns", &name));
    }
    assert_eq!(hours(&site.reconcile("2026-01-01T02:00:05Z").0), ["0102", "0102"]);
}

#[test]
fn a_crash_between_two_snapshots_or_a_lost_status_makes_none_twice() {
    let mut site = Site::new(hourly());
    site.reconcile("2026-01-01T00:30:00Z");
    let first = site.plan("2026-01-01T01:00:00Z").decision.create[0].clone();
    put(&mut site.cache, first.clone());
    let (made, _) = site.reconcile("2026-01-01T01:00:09Z");
    assert_eq!(made.len(), 1, "the other one");
    assert_ne!(made[0], first.name_any());
    site.take();
    site.schedule.status = None;
    assert_eq!(site.reconcile("2026-01-01T01:30:00Z"), (vec![], vec![]));
    let status = site.schedule.status.clone().expect("reported");
    assert_eq!(status.last_schedule_time.as_deref(), Some("2026-01-01T01:00:00Z"), "as the snapshots tell");
}

#[test]
fn a_schedule_that_is_created_again_goes_on_with_its_snapshots_and_takes_none_of_the_past() {
    let mut site = Site::new(hourly());
    site.reconcile("2026-01-01T00:30:00Z");
    site.reconcile("2026-01-01T01:00:00Z");
    site.take();
    let mut anew = hourly();
    anew["metadata"]["creationTimestamp"] = "2026-01-01T02:30:00Z".into();
    site.schedule = object(anew);
    for now in ["2026-01-01T02:30:00Z", "2026-01-01T02:31:00Z"] {
        assert_eq!(site.reconcile(now), (vec![], vec![]), "{now}");
    }
    assert_eq!(hours(&site.reconcile("2026-01-01T03:00:00Z").0), ["0103", "0103"]);
    assert_eq!(site.snapshots().len(), 4);
}

#[test]
fn a_vm_whose_snapshot_fails_does_not_hold_up_the_others_and_is_named() {
    let mut site = Site::new(hourly());
    site.reconcile("2026-01-01T00:30:00Z");
    for hour in 1..5 {
        let (made, _) = site.reconcile(&format!("2026-01-01T0{hour}:00:00Z"));
        assert_eq!(made.len(), 2);
        let moment = format!("2026-01-01T0{hour}:00:00Z");
        site.report(|s| (s.spec.vm.as_str() == "web").then(|| taken(&moment)));
        site.report(|s| (s.spec.vm.as_str() == "db").then(|| failed("32 snapshots")));
        let plan = site.plan(&format!("2026-01-01T0{hour}:01:00Z"));
        assert_eq!(reason(&plan), (true, Reason::SnapshotFailed));
        let text = plan.decision.readiness.message().to_owned();
        assert!(
            text.contains(&format!("hourly-db-20260101{hour:02}00"))
                && text.ends_with("of VM db: 32 snapshots"),
            "{text}"
        );
    }
    site.reconcile("2026-01-01T04:02:00Z");
    let left = site.snapshots();
    assert_eq!(
        hours(&left),
        ["0104", "0103", "0104"],
        "of db the last that failed, of web those that are kept: {left:?}"
    );
    // After a success none that failed is left, and they do not count for the rules.
    site.reconcile("2026-01-01T05:00:00Z");
    site.take();
    site.reconcile("2026-01-01T05:01:00Z");
    assert_eq!(hours(&site.snapshots()), ["0104", "0105", "0104", "0105"][1..].to_vec());
    assert_eq!(reason(&site.plan("2026-01-01T05:01:00Z")), (false, Reason::Available));
}

#[test]
fn a_snapshot_that_is_not_taken_never_decides_that_another_is_deleted() {
    let mut schedule = hourly();
    schedule["spec"]["keep"] = json!({"last": 1});
    let mut site = Site::new(schedule);
    site.reconcile("2026-01-01T00:30:00Z");
    site.reconcile("2026-01-01T01:00:00Z");
    site.take();
    for hour in 2..6 {
        site.reconcile(&format!("2026-01-01T0{hour}:00:00Z"));
        site.reconcile(&format!("2026-01-01T0{hour}:10:00Z"));
        assert_eq!(hours(&site.snapshots()), ["0101", &format!("010{hour}"), "0101", &format!("010{hour}")]);
    }
    assert_eq!(reason(&site.plan("2026-01-01T05:04:59Z")), (false, Reason::Available), "it takes a while");
    let late = site.plan("2026-01-01T05:05:00Z");
    assert_eq!(reason(&late), (false, Reason::SnapshotFailed));
    assert!(late.decision.readiness.message().ends_with("(and 1 more)"), "{late:?}");
}

#[test]
fn a_snapshot_that_waits_for_a_quota_takes_the_place_of_the_oldest_one_and_never_of_the_last() {
    let held = json!({"conditions": [condition("Ready", "False", "QuotaExceeded", "")]});
    for keep in [2, 1] {
        let mut schedule = hourly();
        schedule["spec"]["keep"] = json!({"last": keep});
        let mut site = Site::new(schedule);
        site.reconcile("2026-01-01T00:30:00Z");
        for hour in 1..=keep {
            site.reconcile(&format!("2026-01-01T0{hour}:00:00Z"));
            site.take();
        }
        for hour in keep + 1..6 {
            site.reconcile(&format!("2026-01-01T0{hour}:00:00Z"));
            site.report(|snapshot| snapshot.status.is_none().then(|| held.clone()));
            site.reconcile(&format!("2026-01-01T0{hour}:10:00Z"));
            let of_vm = [format!("010{keep}"), format!("010{hour}")];
            assert_eq!(hours(&site.snapshots()), [of_vm.clone(), of_vm].concat(), "keep {keep}");
        }
    }
}

#[test]
fn a_vm_that_is_gone_or_has_no_files_yet_is_left_out_and_keeps_its_snapshots() {
    let mut site = Site::new(hourly());
    site.reconcile("2026-01-01T00:30:00Z");
    site.reconcile("2026-01-01T01:00:00Z");
    site.take();
    site.cache.remove(&Key::namespaced(crate::key::ObjectKind::VM, "ns", "db"));
    site.disk("web", Value::Null);
    let plan = site.plan("2026-01-01T02:00:00Z");
    assert_eq!((plan.decision.create.len(), plan.decision.delete.len()), (0, 0));
    assert_eq!(reason(&plan), (false, Reason::WaitingForVM));
    site.vm("db", &json!({}));
    let plan = site.plan("2026-01-01T02:00:00Z");
    assert_eq!(plan.decision.create.len(), 1, "of db");
    assert_eq!(reason(&plan), (false, Reason::WaitingForDisk));
    assert!(plan.decision.readiness.message().starts_with("Disk web of VM web"), "{plan:?}");
    site.disk("web", json!("1Gi"));
    assert_eq!(site.reconcile("2026-01-01T02:00:00Z").0.len(), 2);
}

#[test]
fn labels_select_vms_of_the_namespace_and_the_first_hundred_count() {
    let mut schedule = hourly();
    schedule["spec"]["vms"] = Value::Null;
    schedule["spec"]["vmSelector"] = json!({"backup": "nightly"});
    let mut site = Site::new(schedule);
    let nothing = site.plan("2026-01-01T01:00:00Z");
    assert_eq!((nothing.decision.create.len(), reason(&nothing)), (0, (false, Reason::Available)));
    assert!(nothing.decision.readiness.message().contains("no VM has the labels"));
    site.vm("web", &json!({"backup": "nightly", "tier": "web"}));
    site.vm("db", &json!({"backup": "weekly"}));
    assert_eq!(hours(&site.reconcile("2026-01-01T01:00:00Z").0), ["0101"]);
    for n in 0..100 {
        site.vm(&format!("vm-{n:03}"), &json!({"backup": "nightly"}));
    }
    let plan = site.plan("2026-01-01T02:00:00Z");
    assert_eq!((plan.decision.create.len(), plan.decision.vms), (100, 100));
    assert_eq!(reason(&plan), (true, Reason::InvalidSpec));
}

#[test]
fn a_snapshot_of_a_person_is_never_deleted() {
    let mut site = Site::new(hourly());
    site.reconcile("2026-01-01T00:30:00Z");
    for hour in 1..4 {
        site.reconcile(&format!("2026-01-01T0{hour}:00:00Z"));
        site.take();
    }
    let labels = json!({"berth.dev/snapshot-schedule": "hourly"});
    let mut own: VMSnapshot = object(json!({
        "metadata": {"name": "before", "namespace": "ns", "labels": labels,
            "annotations": {"berth.dev/scheduled-at": "2025-01-01T00:00:00Z"}},
        "spec": {"vm": "web"}, "status": taken("2025-01-01T00:00:00Z"),
    }));
    put(&mut site.cache, own.clone());
    // One that had the label, and was taken out of the schedule.
    let released =
        site.snapshots().into_iter().find(|name| name.contains("web-202601010100")).expect("there");
    let mut kept = site.cache.tables.vm_snapshots.named("ns", &released).expect("there").as_ref().clone();
    kept.metadata.labels = None;
    put(&mut site.cache, kept);
    let (_, deleted) = site.reconcile("2026-01-01T03:01:00Z");
    assert_eq!(hours(&deleted), ["0101"], "of db only: {deleted:?}");
    own.metadata.annotations = None;
    put(&mut site.cache, own);
    assert_eq!(site.reconcile("2026-01-01T03:02:00Z"), (vec![], vec![]));
}

#[test]
fn a_suspended_schedule_takes_none_and_deletes_none_and_one_that_cannot_be_used_says_so() {
    let mut site = Site::new(hourly());
    site.reconcile("2026-01-01T00:30:00Z");
    for hour in 1..4 {
        site.reconcile(&format!("2026-01-01T0{hour}:00:00Z"));
        site.take();
    }
    site.schedule.spec.suspend = true;
    let plan = site.plan("2026-01-01T04:00:00Z");
    assert_eq!((plan.decision.create.len(), plan.decision.delete.len()), (0, 0));
    assert_eq!((reason(&plan), plan.decision.next), ((false, Reason::ScheduleSuspended), None));
    site.schedule.spec.suspend = false;
    for (schedule, zone) in [("0 3 31 2 *", "UTC"), ("@hourly", "Europe/Atlantis")] {
        site.schedule.spec.schedule = schedule.into();
        site.schedule.spec.time_zone = zone.into();
        let plan = site.plan("2026-01-01T04:00:00Z");
        assert_eq!((plan.decision.create.len(), plan.decision.delete.len()), (0, 0));
        assert_eq!(reason(&plan), (true, Reason::InvalidSpec));
    }
}

#[test]
fn the_controllers_are_awake_at_the_next_moment_and_when_a_snapshot_changes() {
    let mut site = Site::new(hourly());
    site.reconcile("2026-01-01T00:30:00Z");
    site.reconcile("2026-01-01T01:00:00Z");
    let plan = site.plan("2026-01-01T01:00:01Z");
    let Outcome::Blocked(dependencies) = plan.outcome else { panic!("it waits") };
    let expected =
        ["2026-01-01T02:00:00Z", "2026-01-01T01:05:00Z"].map(|t| crate::plan::Dependency::Time(at(t)));
    assert_eq!(dependencies, expected, "the next moment, and the time by which they are taken");
    let key = Key::of(&site.schedule);
    let snapshot = site.cache.tables.vm_snapshots.all().next().expect("made").as_ref().clone();
    assert!(site.cache.replace(snapshot.clone().into(), Instant::now()).contains(&key));
    assert!(site.cache.remove(&Key::of(&snapshot)).contains(&key));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever the clock does, and whatever fails: no snapshot is made twice, the last one that is taken stays, and no more are kept
    /// than the rules keep and one that is not taken.
    #[test]
    fn the_last_snapshot_stays_whatever_the_clock_does(
        steps in prop::collection::vec((-200_i64..400, any::<bool>(), any::<bool>()), 1..40),
    ) {
        let mut site = Site::new(hourly());
        let mut made = std::collections::BTreeSet::new();
        let mut minutes = 0_i64;
        for (step, succeeds, loses_status) in steps {
            minutes = (minutes + step).max(0);
            let now = at("2026-01-01T00:30:00Z").checked_add(k8s_openapi::jiff::SignedDuration::from_mins(minutes)).expect("a time");
            if loses_status {
                site.schedule.status = None;
            }
            let last_taken = |site: &Site| {
                let taken = site.cache.tables.vm_snapshots.all().filter(|s| s.status.as_ref().is_some_and(|s| s.taken_at.is_some()));
                taken.filter_map(|s| Some((s.spec.vm.to_string(), s.scheduled()?.1))).collect::<std::collections::BTreeMap<_, _>>()
            };
            let before = last_taken(&site);
            let (new, _) = site.reconcile(&now.to_string());
            for name in new {
                prop_assert!(made.insert(name.clone()), "{} twice", name);
            }
            let after = last_taken(&site);
            for (vm, moment) in &before {
                prop_assert!(after.get(vm) >= Some(moment), "the last snapshot of {} went", vm);
            }
            if succeeds {
                site.take();
            } else {
                site.report(|s| (s.spec.vm.as_str() == "db").then(|| failed("no space")));
            }
            let again = site.reconcile(&now.to_string());
            prop_assert!(again.0.is_empty());
            prop_assert!(site.snapshots().len() <= 6, "{:?}", site.snapshots());
        }
    }
}
