use proptest::prelude::*;

use super::*;
use crate::{BackupSpec, DiskSnapshotSpec, ResourceName, VMSnapshotSpec};

fn at(text: &str) -> Timestamp {
    text.parse().unwrap_or_else(|error| panic!("{text:?}: {error}"))
}

fn moments(texts: &[&str]) -> BTreeSet<Timestamp> {
    texts.iter().map(|text| at(text)).collect()
}

#[test]
fn rules_keep_the_last_snapshot_of_each_period_and_a_snapshot_is_kept_by_one_rule_or_more() {
    let all = moments(&[
        "2025-12-31T23:00:00Z",
        "2026-01-01T10:00:00Z",
        "2026-01-04T10:00:00Z",
        "2026-01-05T09:00:00Z",
        "2026-01-05T09:30:00Z",
        "2026-01-05T10:00:00Z",
    ]);
    let kept = |keep: Keep| -> Vec<String> {
        keep.kept(&all, &TimeZone::UTC).iter().map(|m| m.strftime("%m-%d %H:%M").to_string()).collect()
    };
    assert_eq!(kept(Keep { last: 2, ..Keep::default() }), ["01-05 09:30", "01-05 10:00"]);
    assert_eq!(kept(Keep { hourly: 2, ..Keep::default() }), ["01-05 09:30", "01-05 10:00"]);
    assert_eq!(kept(Keep { daily: 2, ..Keep::default() }), ["01-04 10:00", "01-05 10:00"]);
    // 2026-01-05 is a Monday.
    assert_eq!(kept(Keep { weekly: 2, ..Keep::default() }), ["01-04 10:00", "01-05 10:00"]);
    assert_eq!(kept(Keep { monthly: 2, ..Keep::default() }), ["12-31 23:00", "01-05 10:00"]);
    assert_eq!(kept(Keep { yearly: 5, ..Keep::default() }), ["12-31 23:00", "01-05 10:00"]);
    assert_eq!(
        kept(Keep { last: 1, daily: 2, yearly: 2, ..Keep::default() }),
        ["12-31 23:00", "01-04 10:00", "01-05 10:00"]
    );
    assert_eq!(kept(Keep::default()), ["01-05 10:00"], "the last one is kept whatever the rules");
}

#[test]
fn days_are_those_of_the_time_zone() {
    let all = moments(&["2026-01-01T22:30:00Z", "2026-01-01T23:30:00Z"]);
    let daily = Keep { daily: 5, ..Keep::default() };
    assert_eq!(daily.kept(&all, &TimeZone::UTC).len(), 1);
    assert_eq!(daily.kept(&all, &time_zone("Europe/Stockholm").expect("it exists")).len(), 2);
    let repeated = moments(&["2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z"]);
    let hourly = Keep { hourly: 5, ..Keep::default() };
    let zone = time_zone("Europe/Stockholm").expect("it exists");
    assert_eq!(hourly.kept(&repeated, &zone).len(), 2, "both at 02:30");
}

#[test]
fn a_name_says_what_it_is_of_and_differs_for_each_schedule_vm_and_moment() {
    let moment = at("2026-01-02T03:04:00Z");
    let name = scheduled_name("nightly", "web-1", moment);
    assert_eq!(name, "nightly-web-1-202601020304-31221e");
    let other = scheduled_name("nightly-web", "1", moment);
    assert_ne!(name, other, "the same text, split at another place");
    let long = "a".repeat(63);
    let longest = scheduled_name(&long, &long, moment);
    assert_eq!(longest.len(), LONGEST_VM_SNAPSHOT_NAME);
    assert!(ResourceName::is_dns_label(&longest));
    assert_ne!(longest, scheduled_name(&long, "web", moment));
}

#[test]
fn a_snapshot_with_the_label_that_no_schedule_made_belongs_to_none() {
    let moment = at("2026-01-02T03:04:00Z");
    let made = |name: &str, vm: &str, moment: &str| {
        let mut snapshot = VMSnapshot::new(name, VMSnapshotSpec { vm: vm.into(), memory: false });
        snapshot.metadata.labels = Some([(SNAPSHOT_SCHEDULE_LABEL.to_owned(), "nightly".to_owned())].into());
        snapshot.metadata.annotations =
            Some([(SCHEDULED_AT_ANNOTATION.to_owned(), moment.to_owned())].into());
        snapshot
    };
    let name = scheduled_name("nightly", "web", moment);
    let own = made(&name, "web", &moment.to_string());
    assert_eq!(own.scheduled(), Some(("nightly", moment)));
    for other in [
        made("before-upgrade", "web", &moment.to_string()),
        made(&name, "db", &moment.to_string()),
        made(&name, "web", "2026-01-02T03:05:00Z"),
        made(&name, "web", "yesterday"),
        VMSnapshot { metadata: own.metadata.clone(), ..made("x", "db", "") },
    ] {
        assert_eq!(other.scheduled(), None, "{other:?}");
    }
    let mut released = own;
    released.metadata.labels = None;
    assert_eq!(released.scheduled(), None, "without the label it is kept");
}

#[test]
fn the_snapshot_of_a_disk_that_a_schedule_made_is_known_by_its_name() {
    let moment = at("2026-01-02T03:04:00Z");
    let made = |name: &str, disk: &str| {
        let spec = DiskSnapshotSpec { disk: disk.into(), ..DiskSnapshotSpec::default() };
        let mut snapshot = DiskSnapshot::new(name, spec);
        snapshot.metadata.labels = Some([(SNAPSHOT_SCHEDULE_LABEL.to_owned(), "nightly".to_owned())].into());
        snapshot.metadata.annotations =
            Some([(SCHEDULED_AT_ANNOTATION.to_owned(), moment.to_string())].into());
        snapshot
    };
    let name = scheduled_name("nightly", "data", moment);
    assert_eq!(made(&name, "data").scheduled(), Some(("nightly", moment)));
    assert_eq!(made(&name, "other").scheduled(), None);
    assert_eq!(made("before-upgrade", "data").scheduled(), None);
}

#[test]
fn a_backup_of_a_schedule_names_its_disk_and_one_of_a_person_belongs_to_none() {
    let moment = at("2026-01-02T03:04:00Z");
    let made = |name: &str, labels: &[(&str, &str)]| {
        let mut backup = Backup::new(name, BackupSpec::default());
        let label = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        backup.metadata.labels = Some(labels.iter().map(label).collect());
        backup.metadata.annotations = Some([(SCHEDULED_AT_ANNOTATION.to_owned(), moment.to_string())].into());
        backup
    };
    let name = scheduled_name("nightly", "web-data", moment);
    let both = [(SNAPSHOT_SCHEDULE_LABEL, "nightly"), (DISK_LABEL, "web-data")];
    let expected = BackupOrigin { schedule: "nightly", disk: "web-data", moment };
    assert_eq!(made(&name, &both).scheduled(), Some(expected));
    for other in [made("data-1", &both), made(&name, &both[..1]), made(&name, &both[1..])] {
        assert_eq!(other.scheduled(), None, "{other:?}");
    }
}

#[test]
fn more_backups_than_snapshots_can_be_kept() {
    use kube::CustomResourceExt as _;
    let crd = serde_json::to_value(SnapshotSchedule::crd()).expect("plain data");
    let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    let spec = &schema["properties"]["spec"]["properties"];
    let (snapshots, backups) = (&spec["keep"], &spec["backup"]["properties"]["keep"]);
    let rules = |keep: &serde_json::Value| -> Vec<String> {
        let all = keep["x-kubernetes-validations"].as_array().expect("rules");
        all.iter()
            .filter_map(|rule| Some(rule["rule"].as_str()?.rsplit_once("yearly ")?.1.to_owned()))
            .collect()
    };
    assert_eq!(rules(snapshots), [">= 1", "<= 500", "<= 24"]);
    assert_eq!(rules(backups), [">= 1", "<= 500"]);
    assert_eq!((MOST_KEPT, MOST_KEPT_BACKUPS), (24, 500));
    for (keep, most) in [(snapshots, 24.0), (backups, 500.0)] {
        let rules = keep["properties"].as_object().expect("rules");
        assert_eq!(rules.len(), 6);
        assert!(rules.values().all(|rule| rule["maximum"] == most), "{keep:#}");
    }
}

#[test]
fn an_expression_and_a_time_zone_that_do_not_exist_are_named() {
    let spec = |schedule: &str, zone: &str| SnapshotScheduleSpec {
        schedule: schedule.into(),
        time_zone: zone.into(),
        ..SnapshotScheduleSpec::default()
    };
    let error = |schedule: &str, zone: &str| spec(schedule, zone).parsed().expect_err("refused").to_string();
    assert!(spec("0 3 * * *", "Europe/Stockholm").parsed().is_ok());
    assert!(error("0 3 31 2 *", "UTC").starts_with("schedule: it never has a moment"));
    assert!(error("0 3 * * *", "Europe/Atlantis").contains("no time zone \"Europe/Atlantis\""));
}

prop_compose! {
    fn rules()(n in prop::array::uniform6(0_i64..5)) -> Keep {
        Keep { last: n[0], hourly: n[1], daily: n[2], weekly: n[3], monthly: n[4], yearly: n[5] }
    }
}

proptest! {
    #[test]
    fn no_more_are_kept_than_the_rules_say_and_pruning_twice_deletes_nothing_more(
        seconds in prop::collection::btree_set(1_700_000_000_i64..1_760_000_000, 0..60), keep in rules(),
    ) {
        let all: BTreeSet<Timestamp> =
            seconds.iter().map(|s| Timestamp::from_second(s - s % 60).expect("a time")).collect();
        let zone = time_zone("America/New_York").expect("it exists");
        let kept = keep.kept(&all, &zone);
        let sum = keep.last + keep.hourly + keep.daily + keep.weekly + keep.monthly + keep.yearly;
        prop_assert!(kept.len() <= usize::try_from(sum.max(1)).expect("small"));
        prop_assert!(kept.is_subset(&all));
        prop_assert_eq!(kept.last(), all.last(), "the last one is kept");
        prop_assert_eq!(&keep.kept(&kept, &zone), &kept);
    }

    #[test]
    fn names_are_labels_that_fit(
        schedule in "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", vm in "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", minute in 0_i64..50_000_000,
    ) {
        let moment = Timestamp::from_second(minute * 60).expect("a time");
        let name = scheduled_name(&schedule, &vm, moment);
        prop_assert!(name.len() <= LONGEST_VM_SNAPSHOT_NAME && ResourceName::is_dns_label(&name), "{}", name);
    }
}
