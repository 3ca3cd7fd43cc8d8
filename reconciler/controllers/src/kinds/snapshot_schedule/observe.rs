//! Observation of a SnapshotSchedule, its VMs or Disks, their snapshots and its Backups.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use berth_api::{
    Backup, Disk, DiskSnapshot, QuotaAmounts, ResourceName, SnapshotSchedule, VMSnapshot,
    snapshot_schedule::{MOST_SCHEDULED_VMS, scheduled_name},
};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

use crate::{
    cache::Cache,
    inherited::Inherited,
    key::{Key, ObjectKind, Watched},
    kinds::{
        quota::{self, Excess},
        vm_snapshot::disk_without_file,
    },
};

use super::snapshots::{Scheduled, Selected, Snapshot};

/// The inputs of a SnapshotSchedule's plan.
#[derive(Clone, Debug, Default)]
pub(super) struct Observed {
    /// Its VMs.
    pub(super) of_vms: Scheduled<VMSnapshot>,
    /// Its Disks.
    pub(super) of_disks: Scheduled<DiskSnapshot>,
    /// The number of objects that its selector selects.
    pub(super) selected: usize,
    pub(super) backups: ObservedBackups,
    /// The new snapshots that wait for room. They follow from a plan without them.
    pub(super) deferred: Option<Deferred>,
}

/// New snapshots that the Quotas of the namespace do not allow now.
#[derive(Clone, Debug)]
pub(super) struct Deferred {
    /// The Disks that they are of.
    pub(super) disks: BTreeSet<String>,
    pub(super) excess: Excess,
}

/// The inputs of the part of the plan that is about backups.
#[derive(Clone, Debug, Default)]
pub(super) struct ObservedBackups {
    /// Whether the repository exists, and is not being deleted.
    pub(super) has_repository: bool,
    /// The disks of the last snapshot of each VM, or of each Disk, that is taken.
    pub(super) due: Vec<DueBackup>,
    /// The Backups that it made, by disk and moment.
    pub(super) own: BTreeMap<String, BTreeMap<Timestamp, OwnBackup>>,
    /// The number of backups that the Quotas of the namespace allow, and why no more, if that is less than those that are due.
    pub(super) over_quota: Option<(usize, Excess)>,
}

/// A disk of a snapshot that a Backup is to be made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DueBackup {
    pub(super) moment: Timestamp,
    /// The labels and annotations that its snapshot passes down.
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
            observed.of_vms.add(moment, snapshot);
        }
        if let Some(snapshot) = cache.tables.disk_snapshots.get(&key)
            && let Some((_, moment)) = snapshot.scheduled()
        {
            observed.of_disks.add(moment, snapshot);
        }
        if let Some(backup) = cache.tables.backups.get(&key)
            && let Some(made_by) = backup.scheduled()
        {
            let of_disk = observed.backups.own.entry(made_by.disk.to_owned()).or_default();
            of_disk.insert(made_by.moment, own_backup(cache, backup));
        }
    }
    let spec = &schedule.spec;
    let tables = &cache.tables;
    let vms = names(tables.vms.all(), &namespace, spec.vms.as_deref(), spec.vm_selector.as_ref());
    let disks = names(tables.disks.all(), &namespace, spec.disks.as_deref(), spec.disk_selector.as_ref());
    observed.selected = vms.len().max(disks.len());
    for name in vms.into_iter().take(MOST_SCHEDULED_VMS) {
        let vm = tables.vms.named(&namespace, &name).filter(|vm| vm.metadata.deletion_timestamp.is_none());
        let state = match vm.map(|vm| disk_without_file(cache, vm)) {
            None => Selected::Missing,
            Some(Some(disk)) => Selected::WithoutFile(disk),
            Some(None) => Selected::Exists,
        };
        observed.of_vms.select(name, state, vm.map(|vm| Inherited::of(&vm.metadata)));
    }
    for name in disks.into_iter().take(MOST_SCHEDULED_VMS) {
        let disk =
            tables.disks.named(&namespace, &name).filter(|disk| disk.metadata.deletion_timestamp.is_none());
        let state = match disk.map(|disk| has_file(disk)) {
            None => Selected::Missing,
            Some(false) => Selected::WithoutFile(name.as_str().into()),
            Some(true) => Selected::Exists,
        };
        observed.of_disks.select(name, state, disk.map(|disk| Inherited::of(&disk.metadata)));
    }
    // A large site has many snapshots: only those of the kind that it makes are looked at.
    if !observed.of_vms.selected.is_empty() {
        observed.of_vms.others = others(tables.vm_snapshots.all(), &namespace, schedule);
    }
    if !observed.of_disks.selected.is_empty() {
        observed.of_disks.others = others(tables.disk_snapshots.all(), &namespace, schedule);
    }
    if let Some(declared) = &schedule.spec.backup {
        let repository = cache.tables.backup_repositories.named(&namespace, declared.repository.as_str());
        observed.backups.has_repository =
            repository.is_some_and(|found| found.metadata.deletion_timestamp.is_none());
        observed.backups.due = due_backups(cache, schedule, &observed);
        observed.backups.over_quota = over_quota(cache, &namespace, observed.backups.due.len());
    }
    observed
}

/// Returns those of these new snapshots that the Quotas of a namespace do not allow.
pub(super) fn deferred(cache: &Cache, namespace: &str, new: &[DiskSnapshot]) -> Option<Deferred> {
    let mut allowed = QuotaAmounts::default();
    let mut held: Option<Deferred> = None;
    for disk in new.iter().map(|snapshot| &snapshot.spec.disk) {
        let with_it = allowed.plus(quota::of_snapshots(cache, namespace, std::iter::once(disk)));
        match quota::excess_of_new(cache, namespace, with_it) {
            None => allowed = with_it,
            Some(excess) => {
                let held = held.get_or_insert_with(|| Deferred { disks: BTreeSet::new(), excess });
                held.disks.insert(disk.to_string());
            }
        }
    }
    held
}

/// Returns how many of this number of new backups the Quotas of a namespace allow, and why no more.
fn over_quota(cache: &Cache, namespace: &str, due: usize) -> Option<(usize, Excess)> {
    let excess = |backups: usize| {
        let backups = i64::try_from(backups).unwrap_or(i64::MAX);
        quota::excess_of_new(cache, namespace, QuotaAmounts { backups, ..QuotaAmounts::default() })
    };
    (0..due).find_map(|fit| Some((fit, excess(fit + 1)?)))
}

/// Returns the names of the VMs or Disks that a schedule selects, in order.
fn names<'a, K: Watched + 'a>(
    all: impl Iterator<Item = &'a Arc<K>>,
    namespace: &str,
    named: Option<&[ResourceName]>,
    selector: Option<&BTreeMap<String, String>>,
) -> Vec<String> {
    match (named, selector) {
        (Some(names), _) => names.iter().map(ToString::to_string).collect(),
        (None, Some(labels)) => {
            let is_selected = |object: &&Arc<K>| {
                object.meta().namespace.as_deref() == Some(namespace)
                    && object.meta().deletion_timestamp.is_none()
                    && labels.iter().all(|(key, value)| object.labels().get(key) == Some(value))
            };
            let mut names: Vec<String> = all.filter(is_selected).map(|object| object.name_any()).collect();
            names.sort();
            names
        }
        (None, None) => Vec::new(),
    }
}

fn has_file(disk: &Disk) -> bool {
    disk.status.as_ref().is_some_and(|status| status.binding.is_some() && status.size.is_some())
}

fn own_backup(cache: &Cache, backup: &Arc<Backup>) -> OwnBackup {
    let namespace = backup.namespace().unwrap_or_default();
    let snapshot = backup.spec.snapshot.as_ref();
    let snapshot = snapshot.and_then(|name| cache.tables.disk_snapshots.named(&namespace, name.as_str()));
    let has_snapshot = snapshot.is_some_and(|found| found.metadata.deletion_timestamp.is_none());
    OwnBackup { backup: backup.clone(), has_snapshot }
}

/// Returns the disks to back up: those of the last snapshot of each VM, or of each Disk, that is taken. Older ones that have no backup stay
/// without.
fn due_backups(cache: &Cache, schedule: &SnapshotSchedule, observed: &Observed) -> Vec<DueBackup> {
    let namespace = schedule.namespace().unwrap_or_default();
    let of_vms = observed.of_vms.last_taken().flat_map(|(moment, snapshot)| {
        let disks = snapshot.status.iter().flat_map(|status| &status.disks);
        disks.map(move |of| (moment, &snapshot.metadata, of.disk.clone(), of.snapshot.clone()))
    });
    let of_disks = observed.of_disks.last_taken().map(|(moment, snapshot)| {
        let name = snapshot.name_any();
        (moment, &snapshot.metadata, snapshot.spec.disk.clone(), ResourceName::from(name.as_str()))
    });
    let due = of_vms.chain(of_disks).map(|(moment, meta, disk, snapshot)| {
        let part = cache.tables.disk_snapshots.named(&namespace, snapshot.as_str());
        let name = scheduled_name(&schedule.name_any(), disk.as_str(), moment);
        let same = cache.tables.backups.get(&Key::namespaced(ObjectKind::Backup, &namespace, &name));
        DueBackup {
            moment,
            inherited: Inherited::of(meta),
            volume: part.and_then(|part| part.status.as_ref()?.volume_id.clone()),
            disk,
            snapshot,
            is_name_taken: same.is_some_and(|same| {
                same.scheduled().is_none_or(|made_by| made_by.schedule != schedule.name_any())
            }),
            name,
        }
    });
    due.collect()
}

/// Returns the names of the snapshots of the namespace that this schedule did not make, as far as they begin like those that it makes.
fn others<'a, S: Snapshot + 'a>(
    all: impl Iterator<Item = &'a Arc<S>>,
    namespace: &str,
    schedule: &SnapshotSchedule,
) -> BTreeSet<String> {
    let name = schedule.name_any();
    let begin = &name[..name.len().min(20)];
    let is_other = |snapshot: &&Arc<S>| {
        snapshot.meta().namespace.as_deref() == Some(namespace)
            && snapshot.name_any().starts_with(begin)
            && snapshot.schedule() != Some(name.as_str())
    };
    all.filter(is_other).map(|snapshot| snapshot.name_any()).collect()
}
