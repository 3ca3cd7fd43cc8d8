//! Observation of a SnapshotSchedule, its VMs and its VMSnapshots.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use berth_api::{ResourceName, SnapshotSchedule, VM, VMSnapshot, snapshot_schedule::MOST_SCHEDULED_VMS};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

use crate::{cache::Cache, key::Key, kinds::vm_snapshot::disk_without_file};

/// A VM of a schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ScheduledVm {
    /// It does not exist, or is being deleted.
    Missing,
    /// This disk of it has no file yet.
    WithoutFile(ResourceName),
    /// A snapshot of it can be taken.
    Exists,
}

/// The inputs of a SnapshotSchedule's plan.
#[derive(Clone, Debug, Default)]
pub(super) struct Observed {
    /// Its VMs, at most [`MOST_SCHEDULED_VMS`], by name.
    pub(super) vms: BTreeMap<String, ScheduledVm>,
    /// The number of VMs that its selector selects.
    pub(super) selected: usize,
    /// The VMSnapshots that it made, by VM and moment.
    pub(super) own: BTreeMap<String, BTreeMap<Timestamp, Arc<VMSnapshot>>>,
    /// The names of the other VMSnapshots of its namespace: one that lost its label is not made again.
    pub(super) others: BTreeSet<String>,
}

pub(super) fn observe(cache: &Cache, schedule: &SnapshotSchedule) -> Observed {
    let namespace = schedule.namespace().unwrap_or_default();
    let mut observed = Observed::default();
    for key in cache.index.scheduled_snapshots(&Key::of(schedule)) {
        let Some(snapshot) = cache.tables.vm_snapshots.get(&key) else { continue };
        if let Some((_, moment)) = snapshot.scheduled() {
            let of_vm = observed.own.entry(snapshot.spec.vm.to_string()).or_default();
            of_vm.insert(moment, snapshot.clone());
        }
    }
    let names: Vec<String> = match (&schedule.spec.vms, &schedule.spec.vm_selector) {
        (Some(names), _) => names.iter().map(ToString::to_string).collect(),
        (None, Some(labels)) => {
            let has_all =
                |vm: &&Arc<VM>| labels.iter().all(|(key, value)| vm.labels().get(key) == Some(value));
            let is_there = |vm: &&Arc<VM>| vm.metadata.deletion_timestamp.is_none();
            let here = cache.tables.vms.all().filter(|vm| vm.namespace().as_ref() == Some(&namespace));
            let mut names: Vec<String> =
                here.filter(is_there).filter(has_all).map(|vm| vm.name_any()).collect();
            names.sort();
            names
        }
        (None, None) => Vec::new(),
    };
    observed.selected = names.len();
    for name in names.into_iter().take(MOST_SCHEDULED_VMS) {
        let vm =
            cache.tables.vms.named(&namespace, &name).filter(|vm| vm.metadata.deletion_timestamp.is_none());
        let state = match vm.map(|vm| disk_without_file(cache, vm)) {
            None => ScheduledVm::Missing,
            Some(Some(disk)) => ScheduledVm::WithoutFile(disk),
            Some(None) => ScheduledVm::Exists,
        };
        observed.vms.insert(name, state);
    }
    observed.others = others(cache, &namespace, schedule);
    observed
}

/// Returns the names of the VMSnapshots of the namespace that this schedule did not make, as far as they begin like those that it makes.
fn others(cache: &Cache, namespace: &str, schedule: &SnapshotSchedule) -> BTreeSet<String> {
    let name = schedule.name_any();
    let begin = &name[..name.len().min(20)];
    let here = cache.tables.vm_snapshots.all().filter(|snapshot| {
        snapshot.metadata.namespace.as_deref() == Some(namespace) && snapshot.name_any().starts_with(begin)
    });
    let is_other =
        |snapshot: &&Arc<VMSnapshot>| snapshot.scheduled().is_none_or(|(schedule, _)| schedule != name);
    here.filter(is_other).map(|snapshot| snapshot.name_any()).collect()
}
