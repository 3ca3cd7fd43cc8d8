//! Observation of a SnapshotSchedule, its VMs, its VMSnapshots and its Backups.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use berth_api::{
    Backup, ConditionType, ResourceName, SnapshotSchedule, VM, VMSnapshot, condition,
    snapshot_schedule::{MOST_SCHEDULED_VMS, scheduled_name},
};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

use crate::{
    cache::Cache,
    inherited::Inherited,
    key::{Key, ObjectKind},
    kinds::vm_snapshot::disk_without_file,
};

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

/// How far a VMSnapshot is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// It has the data of all disks.
    Taken,
    /// It had them, and has not all of them any more.
    Lost,
    /// It is not taken yet.
    Pending,
    Deleted,
}

impl Progress {
    pub(super) fn of(snapshot: &VMSnapshot) -> Self {
        match taken_at(snapshot) {
            _ if snapshot.metadata.deletion_timestamp.is_some() => Self::Deleted,
            None => Self::Pending,
            Some(_) if is_stalled(snapshot) => Self::Lost,
            Some(_) => Self::Taken,
        }
    }
}

/// Whether it has lost data for good.
pub(super) fn is_stalled(snapshot: &VMSnapshot) -> bool {
    snapshot.status.as_ref().is_some_and(|s| condition::is_true(&s.conditions, ConditionType::Stalled))
}

/// When it was taken.
pub(super) fn taken_at(snapshot: &VMSnapshot) -> Option<Timestamp> {
    snapshot.status.as_ref()?.taken_at.as_ref()?.parse().ok()
}

/// The inputs of a SnapshotSchedule's plan.
#[derive(Clone, Debug, Default)]
pub(super) struct Observed {
    /// Its VMs, at most [`MOST_SCHEDULED_VMS`], by name.
    pub(super) vms: BTreeMap<String, ScheduledVm>,
    /// The labels and annotations that these VMs pass down.
    pub(super) inherited: BTreeMap<String, Inherited>,
    /// The number of VMs that its selector selects.
    pub(super) selected: usize,
    /// The VMSnapshots that it made, by VM and moment.
    pub(super) own: BTreeMap<String, BTreeMap<Timestamp, Arc<VMSnapshot>>>,
    /// The names of the other VMSnapshots of its namespace: one that lost its label is not made again.
    pub(super) others: BTreeSet<String>,
    pub(super) backups: ObservedBackups,
}

/// The inputs of the part of the plan that is about backups.
#[derive(Clone, Debug, Default)]
pub(super) struct ObservedBackups {
    /// Whether the repository exists, and is not being deleted.
    pub(super) has_repository: bool,
    /// The disks of the last snapshot of each VM that is taken.
    pub(super) due: Vec<DueBackup>,
    /// The Backups that it made, by disk and moment.
    pub(super) own: BTreeMap<String, BTreeMap<Timestamp, OwnBackup>>,
}

/// A disk of a snapshot that a Backup is to be made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DueBackup {
    pub(super) moment: Timestamp,
    /// The labels and annotations that its VMSnapshot passes down.
    pub(super) inherited: Inherited,
    pub(super) disk: ResourceName,
    pub(super) snapshot: ResourceName,
    /// berth's own identity of the disk.
    pub(super) volume: Option<String>,
    /// The name of its Backup.
    pub(super) name: String,
    /// Another Backup has that name: one that lost its label is not made again.
    pub(super) is_name_taken: bool,
}

/// A Backup that the schedule made.
#[derive(Clone, Debug)]
pub(super) struct OwnBackup {
    pub(super) backup: Arc<Backup>,
    /// Whether the DiskSnapshot exists whose data it has, or is to have.
    pub(super) has_snapshot: bool,
}

pub(super) fn observe(cache: &Cache, schedule: &SnapshotSchedule) -> Observed {
    let namespace = schedule.namespace().unwrap_or_default();
    let mut observed = Observed::default();
    for key in cache.index.made_for(&Key::of(schedule)) {
        if let Some(snapshot) = cache.tables.vm_snapshots.get(&key)
            && let Some((_, moment)) = snapshot.scheduled()
        {
            let of_vm = observed.own.entry(snapshot.spec.vm.to_string()).or_default();
            of_vm.insert(moment, snapshot.clone());
        }
        if let Some(backup) = cache.tables.backups.get(&key)
            && let Some(made_by) = backup.scheduled()
        {
            let of_disk = observed.backups.own.entry(made_by.disk.to_owned()).or_default();
            of_disk.insert(made_by.moment, own_backup(cache, backup));
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
        if let Some(vm) = vm {
            observed.inherited.insert(name.clone(), Inherited::of(&vm.metadata));
        }
        observed.vms.insert(name, state);
    }
    observed.others = others(cache, &namespace, schedule);
    if let Some(declared) = &schedule.spec.backup {
        let repository = cache.tables.backup_repositories.named(&namespace, declared.repository.as_str());
        observed.backups.has_repository =
            repository.is_some_and(|found| found.metadata.deletion_timestamp.is_none());
        observed.backups.due = due_backups(cache, schedule, &observed);
    }
    observed
}

fn own_backup(cache: &Cache, backup: &Arc<Backup>) -> OwnBackup {
    let namespace = backup.namespace().unwrap_or_default();
    let snapshot = backup.spec.snapshot.as_ref();
    let snapshot = snapshot.and_then(|name| cache.tables.disk_snapshots.named(&namespace, name.as_str()));
    let has_snapshot = snapshot.is_some_and(|found| found.metadata.deletion_timestamp.is_none());
    OwnBackup { backup: backup.clone(), has_snapshot }
}

/// Returns the disks to back up: those of the last snapshot of each VM that is taken. Older ones that have no backup stay without.
fn due_backups(cache: &Cache, schedule: &SnapshotSchedule, observed: &Observed) -> Vec<DueBackup> {
    let namespace = schedule.namespace().unwrap_or_default();
    let vms = observed.vms.iter().filter(|(_, state)| **state != ScheduledVm::Missing);
    let taken = vms.filter_map(|(vm, _)| {
        let mut of_vm = observed.own.get(vm)?.iter().rev();
        of_vm.find(|(_, snapshot)| Progress::of(snapshot) == Progress::Taken)
    });
    let disks = taken.flat_map(|(moment, snapshot)| {
        let disks = snapshot.status.iter().flat_map(|status| &status.disks);
        disks.map(move |of| (*moment, snapshot, of))
    });
    let due = disks.map(|(moment, snapshot, of)| {
        let part = cache.tables.disk_snapshots.named(&namespace, of.snapshot.as_str());
        let name = scheduled_name(&schedule.name_any(), of.disk.as_str(), moment);
        let same = cache.tables.backups.get(&Key::namespaced(ObjectKind::Backup, &namespace, &name));
        DueBackup {
            moment,
            inherited: Inherited::of(&snapshot.metadata),
            disk: of.disk.clone(),
            snapshot: of.snapshot.clone(),
            volume: part.and_then(|part| part.status.as_ref()?.volume_id.clone()),
            is_name_taken: same.is_some_and(|same| {
                same.scheduled().is_none_or(|made_by| made_by.schedule != schedule.name_any())
            }),
            name,
        }
    });
    due.collect()
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
