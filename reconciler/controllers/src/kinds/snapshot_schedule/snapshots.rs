//! The snapshots that a schedule makes, of VMs and of Disks, and what it knows about each of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use berth_api::{ConditionType, DiskSnapshot, Reason, ResourceName, VMSnapshot, condition};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Condition, jiff::Timestamp};
use kube::ResourceExt;

use crate::inherited::Inherited;

/// A snapshot as a schedule makes it.
pub(super) trait Snapshot: ResourceExt {
    /// Its kind.
    const KIND: &'static str;
    /// The kind of the objects that it is taken of.
    const OF: &'static str;

    /// Returns the name of the object that it is taken of.
    fn of(&self) -> &str;

    /// Returns the name of the schedule that made it.
    fn schedule(&self) -> Option<&str>;

    /// Returns when it was taken.
    fn taken_at(&self) -> Option<Timestamp>;

    fn conditions(&self) -> &[Condition];

    /// Whether one of these DiskSnapshots is a part of it.
    fn has_one_of(&self, disk_snapshots: &BTreeSet<&str>) -> bool;
}

impl Snapshot for VMSnapshot {
    const KIND: &'static str = "VMSnapshot";
    const OF: &'static str = "VM";

    fn of(&self) -> &str {
        self.spec.vm.as_str()
    }

    fn schedule(&self) -> Option<&str> {
        self.scheduled().map(|(schedule, _)| schedule)
    }

    fn taken_at(&self) -> Option<Timestamp> {
        self.status.as_ref()?.taken_at.as_ref()?.parse().ok()
    }

    fn conditions(&self) -> &[Condition] {
        self.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default()
    }

    fn has_one_of(&self, disk_snapshots: &BTreeSet<&str>) -> bool {
        let mut disks = self.status.iter().flat_map(|status| &status.disks);
        disks.any(|disk| disk_snapshots.contains(disk.snapshot.as_str()))
    }
}

impl Snapshot for DiskSnapshot {
    const KIND: &'static str = "DiskSnapshot";
    const OF: &'static str = "Disk";

    fn of(&self) -> &str {
        self.spec.disk.as_str()
    }

    fn schedule(&self) -> Option<&str> {
        self.scheduled().map(|(schedule, _)| schedule)
    }

    fn taken_at(&self) -> Option<Timestamp> {
        self.status.as_ref()?.taken_at.as_ref()?.parse().ok()
    }

    fn conditions(&self) -> &[Condition] {
        self.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default()
    }

    fn has_one_of(&self, disk_snapshots: &BTreeSet<&str>) -> bool {
        disk_snapshots.contains(self.name_any().as_str())
    }
}

/// A VM or a Disk of a schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Selected {
    /// It does not exist, or is being deleted.
    Missing,
    /// It is or has this disk, which has no file yet.
    WithoutFile(ResourceName),
    /// A snapshot of it can be taken.
    Exists,
}

/// How far a snapshot is.
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
    pub(super) fn of<S: Snapshot>(snapshot: &S) -> Self {
        match snapshot.taken_at() {
            _ if snapshot.meta().deletion_timestamp.is_some() => Self::Deleted,
            None => Self::Pending,
            Some(_) if is_stalled(snapshot) => Self::Lost,
            Some(_) => Self::Taken,
        }
    }
}

/// Whether it has lost data for good.
pub(super) fn is_stalled<S: Snapshot>(snapshot: &S) -> bool {
    condition::is_true(snapshot.conditions(), ConditionType::Stalled)
}

/// Whether it is not taken yet because of a quota.
pub(super) fn waits_for_quota<S: Snapshot>(snapshot: &S) -> bool {
    let ready = condition::find(snapshot.conditions(), ConditionType::Ready.as_str());
    Progress::of(snapshot) == Progress::Pending
        && ready.is_some_and(|ready| ready.reason == Reason::QuotaExceeded.as_str())
}

/// The VMs or the Disks of a schedule, and the snapshots that it made of them.
#[derive(Clone, Debug)]
pub(super) struct Scheduled<S> {
    /// Its VMs or Disks by name, at most `MOST_SCHEDULED_VMS`.
    pub(super) selected: BTreeMap<String, Selected>,
    /// The labels and annotations that these pass down.
    pub(super) inherited: BTreeMap<String, Inherited>,
    /// The snapshots that it made, by VM or Disk and by moment.
    pub(super) own: BTreeMap<String, BTreeMap<Timestamp, Arc<S>>>,
    /// The names of the other snapshots of its namespace: one that lost its label is not made again.
    pub(super) others: BTreeSet<String>,
}

impl<S> Default for Scheduled<S> {
    fn default() -> Self {
        Self {
            selected: BTreeMap::new(),
            inherited: BTreeMap::new(),
            own: BTreeMap::new(),
            others: BTreeSet::new(),
        }
    }
}

impl<S: Snapshot> Scheduled<S> {
    pub(super) fn add(&mut self, moment: Timestamp, snapshot: &Arc<S>) {
        self.own.entry(snapshot.of().to_owned()).or_default().insert(moment, snapshot.clone());
    }

    pub(super) fn select(&mut self, name: String, state: Selected, inherited: Option<Inherited>) {
        self.inherited.extend(inherited.map(|inherited| (name.clone(), inherited)));
        self.selected.insert(name, state);
    }

    /// Returns the number of VMs or Disks that exist.
    pub(super) fn existing(&self) -> usize {
        self.selected.values().filter(|state| **state != Selected::Missing).count()
    }

    /// Returns the snapshots that are taken.
    pub(super) fn taken(&self) -> impl Iterator<Item = &Arc<S>> {
        let all = self.own.values().flat_map(BTreeMap::values);
        all.filter(|snapshot| Progress::of(snapshot.as_ref()) == Progress::Taken)
    }

    /// Returns the moment of the newest one.
    pub(super) fn newest(&self) -> Option<Timestamp> {
        self.own.values().filter_map(|own| own.last_key_value()).map(|(moment, _)| *moment).max()
    }

    /// Returns the last one that is taken of each VM or Disk that exists.
    pub(super) fn last_taken(&self) -> impl Iterator<Item = (Timestamp, &Arc<S>)> {
        let existing = self.selected.iter().filter(|(_, state)| **state != Selected::Missing);
        existing.filter_map(move |(name, _)| {
            let mut own = self.own.get(name)?.iter().rev();
            let (moment, snapshot) =
                own.find(|(_, snapshot)| Progress::of(snapshot.as_ref()) == Progress::Taken)?;
            Some((*moment, snapshot))
        })
    }

    /// Returns the last ones of its VMs or Disks that are not taken, with their moments.
    pub(super) fn pending(&self) -> impl Iterator<Item = (Timestamp, &Arc<S>)> {
        self.selected.keys().filter_map(move |name| {
            let is_there =
                |(_, snapshot): &(&Timestamp, &Arc<S>)| Progress::of(snapshot.as_ref()) != Progress::Deleted;
            let (moment, snapshot) = self.own.get(name)?.iter().rev().find(is_there)?;
            (Progress::of(snapshot.as_ref()) != Progress::Taken).then_some((*moment, snapshot))
        })
    }
}
