//! `berth_snapshot_schedule`

use berth_api::snapshot_schedule::MOST_KEPT;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::Value as Json;
use tfplugin6::{AttributePath, Diagnostic, Value};

use crate::{
    field::{Field, Shape},
    form::Form,
    kind::{KindInfo, ResourceKind},
    readiness::Outcome,
};

/// The periods of which snapshots are kept.
const RULES: [&str; 6] = ["last", "hourly", "daily", "weekly", "monthly", "yearly"];

/// Snapshots of VMs at the moments of a cron expression.
#[derive(Debug)]
pub struct SnapshotSchedule;

impl ResourceKind for SnapshotSchedule {
    fn info(&self) -> KindInfo {
        KindInfo {
            type_name: "berth_snapshot_schedule",
            kind: "SnapshotSchedule",
            plural: "snapshotschedules",
            description: "Snapshots of VMs at the moments of a cron expression, each of all disks of a VM at one moment, as a `berth_vm_snapshot`. Those that no rule of `keep` keeps are deleted once a later one is taken; the last one that is taken is always kept, and snapshots that other resources or people made are left alone.\n\nDestroying this resource keeps its snapshots: a schedule that is created again under the same name goes on with them, and `kubectl delete vmsnap -l berth.dev/snapshot-schedule=NAME` deletes them. An apply does not wait for a snapshot; the data source has the last and the next moment in `status`.",
            example: include_str!("../../examples/resources/berth_snapshot_schedule/resource.tf"),
            shown: "status.last_successful_time",
            timeouts: [120, 120, 120],
        }
    }

    fn definition(&self) -> CustomResourceDefinition {
        berth_api::SnapshotSchedule::crd()
    }

    fn fields(&self) -> Vec<Field> {
        let rules = RULES.map(|name| Field::spec(name, Shape::Integer).default(0));
        vec![
            Field::spec("schedule", Shape::Text(Form::Cron)).required(),
            Field::spec("time_zone", Shape::Text(Form::TimeZone)).default("UTC"),
            Field::spec("vms", Shape::TextList(Form::Name)),
            Field::spec("vm_selector", Shape::TextMap),
            Field::spec("keep", Shape::Object(rules.into())).required(),
            Field::spec("starting_deadline_seconds", Shape::Integer).default(3600),
            Field::spec("suspend", Shape::Bool).default(false),
        ]
    }

    fn check(&self, config: &Value) -> Vec<Diagnostic> {
        let mut found = check_vms(config.get("vms"), config.get("vm_selector"));
        found.extend(check_keep(config.get("keep")));
        found
    }

    /// There is nothing to wait for: the first snapshot is taken at the next moment.
    fn outcome(&self, object: &Json, _planned: &Value) -> Outcome {
        crate::vm_class::seen(object)
    }
}

fn check_vms(vms: &Value, selector: &Value) -> Vec<Diagnostic> {
    let at = AttributePath::root("vms");
    let mut found = Vec::new();
    let mut wrong = |at: AttributePath, summary: &str, detail: &str| {
        found.push(Diagnostic::error(summary, format!("{at}: {detail}")).at(at));
    };
    if !vms.is_unknown() && !selector.is_unknown() {
        let remedy = "set either `vms`, the names of VMs, or `vm_selector`, the labels that VMs have.";
        match (vms.is_null(), selector.is_null()) {
            (true, true) => wrong(at.clone(), "A schedule without VMs", remedy),
            (false, false) => wrong(at.clone(), "Both vms and vm_selector", remedy),
            _ => {}
        }
    }
    if selector.as_map().is_some_and(|labels| labels.is_empty()) {
        let remedy = "set at least one label: without any, all VMs would be selected.";
        wrong(AttributePath::root("vm_selector"), "A selector without labels", remedy);
    }
    let names = vms.elements();
    let is_twice = |n: usize, name: &Value| name.as_str().is_some() && names[..n].contains(name);
    if let Some((n, name)) = names.iter().enumerate().find(|(n, name)| is_twice(*n, name)) {
        let detail = format!("{:?} is named twice: name each VM once.", name.as_str().unwrap_or_default());
        wrong(at.index(n), "A VM twice", &detail);
    }
    found
}

fn check_keep(keep: &Value) -> Vec<Diagnostic> {
    let rules = RULES.map(|name| keep.get(name));
    if keep.is_null() || keep.is_unknown() || rules.iter().any(|rule| rule.is_unknown()) {
        return Vec::new();
    }
    let sum = rules.iter().filter_map(|rule| rule.as_i64()).fold(0, i64::saturating_add);
    let at = AttributePath::root("keep");
    let (summary, detail) = match sum {
        ..=0 => (
            "No snapshot is kept",
            format!("{at}: keep at least one snapshot, for example with {{ last = 3, daily = 7 }}."),
        ),
        _ if sum > MOST_KEPT => (
            "Too many snapshots are kept",
            format!(
                "{at}: the numbers are {sum} together, and at most {MOST_KEPT} are allowed: a disk is on at most 32 snapshots, and some are \
                 for other purposes. Lower them."
            ),
        ),
        _ => return Vec::new(),
    };
    vec![Diagnostic::error(summary, detail).at(at)]
}
