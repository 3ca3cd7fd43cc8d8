//! `berth_snapshot_schedule`

use berth_api::snapshot_schedule::{MOST_KEPT, MOST_KEPT_BACKUPS};
use serde_json::Value as Json;
use tfplugin6::{AttributePath, Diagnostic, Value};

use crate::{
    field::{Field, Shape},
    form::Form,
    kind::{KindInfo, ResourceKind},
    readiness::Outcome,
    references::BACKUP_REPOSITORY,
};

/// The periods of which snapshots or backups are kept.
const RULES: [&str; 6] = ["last", "hourly", "daily", "weekly", "monthly", "yearly"];

/// The attributes that say of which objects snapshots are taken, of which one is set.
const SELECTIONS: [&str; 4] = ["vms", "vm_selector", "disks", "disk_selector"];

/// Snapshots of VMs or Disks at the moments of a cron expression, and backups of them.
#[derive(Debug)]
pub struct SnapshotSchedule;

impl ResourceKind for SnapshotSchedule {
    fn info(&self) -> KindInfo {
        KindInfo {
            type_name: "berth_snapshot_schedule",
            kind: "SnapshotSchedule",
            plural: "snapshotschedules",
            description: "Snapshots of VMs at the moments of a cron expression, each of all disks of a VM at one moment, as a `berth_vm_snapshot`; or of Disks, each as a `berth_disk_snapshot`. Those that no rule of `keep` keeps are deleted once a later one is taken; the last one that is taken is always kept, and snapshots that other resources or people made are left alone.\n\nWith `backup`, each disk of a snapshot is also backed up, as a `berth_backup` would, into a `berth_backup_repository`; rules of their own decide which backups are kept.\n\nDestroying this resource keeps its snapshots and its backups: a schedule that is created again under the same name goes on with them, and `kubectl delete vmsnap,dsnap,bkp -l berth.dev/snapshot-schedule=NAME` deletes them. An apply does not wait for a snapshot or a backup; the data source has the last and the next moment in `status`.",
            example: include_str!("../../examples/resources/berth_snapshot_schedule/resource.tf"),
            shown: "status.last_successful_time",
            timeouts: [120, 120, 120],
        }
    }

    fn fields(&self) -> Vec<Field> {
        let rules = || RULES.map(|name| Field::spec(name, Shape::Integer).default(0));
        let backup = vec![
            Field::spec("repository", Shape::Text(Form::Name)).required().refers(BACKUP_REPOSITORY),
            Field::spec("keep", Shape::Object(rules().into())).required(),
        ];
        vec![
            Field::spec("schedule", Shape::Text(Form::Cron)).required(),
            Field::spec("time_zone", Shape::Text(Form::TimeZone)).default("UTC"),
            Field::spec("vms", Shape::TextList(Form::Name)),
            Field::spec("vm_selector", Shape::TextMap),
            Field::spec("disks", Shape::TextList(Form::Name)),
            Field::spec("disk_selector", Shape::TextMap),
            Field::spec("keep", Shape::Object(rules().into())).required(),
            Field::spec("backup", Shape::Object(backup)),
            Field::spec("starting_deadline_seconds", Shape::Integer).default(3600),
            Field::spec("suspend", Shape::Bool).default(false),
        ]
    }

    fn check(&self, config: &Value) -> Vec<Diagnostic> {
        let mut found = check_selection(config);
        let backup = config.get("backup");
        found.extend(check_keep(config.get("keep"), AttributePath::root("keep"), &SNAPSHOTS));
        found.extend(check_keep(
            backup.get("keep"),
            AttributePath::root("backup").attribute("keep"),
            &BACKUPS,
        ));
        found
    }

    /// There is nothing to wait for: the first snapshot is taken at the next moment.
    fn outcome(&self, object: &Json, _planned: &Value) -> Outcome {
        crate::vm_class::seen(object)
    }
}

/// Checks that one attribute says of which objects snapshots are taken, and each list and selector.
fn check_selection(config: &Value) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    let mut wrong = |at: AttributePath, summary: &str, detail: &str| {
        found.push(Diagnostic::error(summary, format!("{at}: {detail}")).at(at));
    };
    if !SELECTIONS.iter().any(|name| config.get(name).is_unknown()) {
        let remedy = "set either `vms`, the names of VMs, or `vm_selector`, the labels that VMs have, or `disks` or `disk_selector`, for Disks.";
        let declared: Vec<&str> = SELECTIONS.into_iter().filter(|name| !config.get(name).is_null()).collect();
        match declared.as_slice() {
            [] => wrong(AttributePath::root("vms"), "A schedule without VMs", remedy),
            [_] => {}
            [first, second, ..] => {
                let summary = format!("Both {first} and {second}");
                wrong(AttributePath::root(*first), &summary, remedy);
            }
        }
    }
    for (name, objects) in [("vm_selector", "VMs"), ("disk_selector", "Disks")] {
        if config.get(name).as_map().is_some_and(|labels| labels.is_empty()) {
            let remedy = format!("set at least one label: without any, all {objects} would be selected.");
            wrong(AttributePath::root(name), "A selector without labels", &remedy);
        }
    }
    for (list, object) in [("vms", "VM"), ("disks", "Disk")] {
        let names = config.get(list).elements();
        let is_twice = |n: usize, name: &Value| name.as_str().is_some() && names[..n].contains(name);
        if let Some((n, name)) = names.iter().enumerate().find(|(n, name)| is_twice(*n, name)) {
            let name = name.as_str().unwrap_or_default();
            let detail = format!("{name:?} is named twice: name each {object} once.");
            wrong(AttributePath::root(list).index(n), &format!("A {object} twice"), &detail);
        }
    }
    found
}

/// The limit of the numbers in `keep` together, and the words for it.
struct Limit {
    things: &'static str,
    most: i64,
    reason: &'static str,
}

const SNAPSHOTS: Limit = Limit {
    things: "snapshot",
    most: MOST_KEPT,
    reason: ": a disk is on at most 32 snapshots, and some are for other purposes",
};
const BACKUPS: Limit = Limit { things: "backup", most: MOST_KEPT_BACKUPS, reason: " for each disk" };

fn check_keep(keep: &Value, at: AttributePath, limit: &Limit) -> Option<Diagnostic> {
    let rules = RULES.map(|name| keep.get(name));
    if keep.is_null() || keep.is_unknown() || rules.iter().any(|rule| rule.is_unknown()) {
        return None;
    }
    let sum = rules.iter().filter_map(|rule| rule.as_i64()).fold(0, i64::saturating_add);
    let Limit { things, most, reason } = limit;
    let (summary, detail) = match sum {
        ..=0 => (
            format!("No {things} is kept"),
            format!("{at}: keep at least one {things}, for example with {{ last = 3, daily = 7 }}."),
        ),
        _ if sum > *most => (
            format!("Too many {things}s are kept"),
            format!(
                "{at}: the numbers are {sum} together, and at most {most} are allowed{reason}. Lower them."
            ),
        ),
        _ => return None,
    };
    Some(Diagnostic::error(summary, detail).at(at))
}
