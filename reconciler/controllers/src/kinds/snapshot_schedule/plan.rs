//! Plan for a SnapshotSchedule. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use berth_api::{
    ConditionType, Readiness, Reason, SnapshotSchedule, VMSnapshot, VMSnapshotSpec, condition,
    snapshot_schedule::{
        MOST_SCHEDULED_VMS, SCHEDULED_AT_ANNOTATION, SNAPSHOT_SCHEDULE_LABEL, scheduled_name,
    },
};
use k8s_openapi::jiff::{SignedDuration, Timestamp, tz::TimeZone};
use kube::ResourceExt;

use super::{
    backups::{self, CLOCK_TOLERANCE, NeededSnapshots},
    observe::{Observed, Progress, ScheduledVm, is_stalled, taken_at},
};
use crate::{
    key::{Key, ObjectKind},
    plan::{Dependency, Plan},
};

/// The time in which a snapshot is usually taken: a schedule with one that takes longer is not ready.
const TAKING_TIME: SignedDuration = SignedDuration::from_mins(5);
/// The greatest number of snapshots of a VM that stay for backups alone: with those of `keep`, a disk is on fewer snapshots than it can be.
const MOST_NEEDED: usize = 4;

/// The decision about a SnapshotSchedule.
#[derive(Clone, Debug)]
pub(super) struct Decision {
    pub(super) create: Vec<VMSnapshot>,
    pub(super) delete: Vec<Arc<VMSnapshot>>,
    pub(super) last: Option<Timestamp>,
    pub(super) next: Option<Timestamp>,
    pub(super) last_successful: Option<Timestamp>,
    pub(super) vms: usize,
    /// The number of snapshots that are taken and kept.
    pub(super) snapshots: usize,
    pub(super) backups: backups::Decision,
    pub(super) readiness: Readiness,
}

pub(super) fn plan(schedule: &SnapshotSchedule, observed: &Observed, now: Timestamp) -> Plan<Decision> {
    let status = schedule.status.clone().unwrap_or_default();
    let recorded = |text: &Option<String>| text.as_ref().and_then(|text| text.parse::<Timestamp>().ok());
    let all = || observed.own.values().flat_map(BTreeMap::values);
    let taken = || all().filter(|snapshot| Progress::of(snapshot) == Progress::Taken);
    let mut decision = Decision {
        create: Vec::new(),
        delete: Vec::new(),
        last: recorded(&status.last_schedule_time),
        next: None,
        last_successful: recorded(&status.last_successful_time)
            .max(taken().filter_map(|s| taken_at(s)).max()),
        vms: observed.vms.values().filter(|vm| **vm != ScheduledVm::Missing).count(),
        snapshots: taken().count(),
        backups: backups::as_they_are(schedule, &observed.backups),
        readiness: Readiness::Ready(Reason::Available, String::new()),
    };
    let (cron, zone) = match schedule.spec.parsed() {
        Ok(parsed) => parsed,
        Err(error) => {
            decision.readiness = Readiness::Stalled(Reason::InvalidSpec, error.to_string());
            return Plan::settled(decision);
        }
    };
    if schedule.spec.suspend {
        let text = match schedule.spec.backup {
            None => "no snapshot is taken and none is deleted while suspend is true",
            Some(_) => "no snapshot and no backup is made, and none is deleted, while suspend is true",
        }
        .to_owned();
        decision.readiness = Readiness::Ready(Reason::ScheduleSuspended, text);
        return Plan::settled(decision);
    }
    let newest = observed.own.values().filter_map(|of_vm| of_vm.last_key_value()).map(|(m, _)| *m).max();
    let since = since(schedule, newest, now);
    let earliest = now.checked_sub(deadline(schedule)).unwrap_or(now);
    if let Some(due) = cron.last_between(since.max(earliest), now, &zone) {
        decision.create = created(schedule, observed, due);
        decision.last = Some(due);
    } else if decision.last.is_none_or(|last| last > now) {
        // The clock went back, or the status is lost.
        decision.last = newest;
    }
    decision.next = cron.next_after(since.max(now), &zone);
    let needed = backups::needed_snapshots(schedule, &observed.backups);
    let surplus = |of_vm| deleted(schedule, of_vm, &zone, &needed);
    decision.delete = observed.own.values().flat_map(surplus).collect();
    let leaving = decision.delete.iter().filter(|s| Progress::of(s) == Progress::Taken).count();
    decision.snapshots -= leaving;
    decision.backups = backups::plan(schedule, &observed.backups, &zone);
    decision.readiness = readiness(schedule, observed, newest, now);
    if let Some(of_backups) = backups::readiness(schedule, &observed.backups, now)
        && rank(&of_backups) > rank(&decision.readiness)
    {
        decision.readiness = of_backups;
    }
    let mut dependencies = dependencies(schedule, observed, decision.next, now);
    dependencies.extend(backups::dependencies(schedule, &observed.backups, now));
    Plan::blocked(decision, dependencies)
}

/// Returns the severity: the worst state of snapshots and backups is reported, and of equal ones that of the snapshots.
fn rank(readiness: &Readiness) -> u8 {
    match readiness {
        Readiness::Stalled(..) => 2,
        Readiness::Reconciling(..) | Readiness::Unknown(..) => 1,
        Readiness::Ready(..) => 0,
    }
}

fn deadline(schedule: &SnapshotSchedule) -> SignedDuration {
    SignedDuration::from_secs(schedule.spec.starting_deadline_seconds)
}

/// Returns the moment after which one may be due: all before it are done, or not of this schedule.
fn since(schedule: &SnapshotSchedule, newest: Option<Timestamp>, now: Timestamp) -> Timestamp {
    let created = schedule.creation_timestamp().map_or(now, |time| time.0.min(now));
    let status = schedule.status.as_ref().filter(|status| status.observed_generation >= 0);
    match status
        .map(|status| status.last_schedule_time.as_ref().and_then(|text| text.parse::<Timestamp>().ok()))
    {
        Some(Some(last)) if last <= now => last.max(created),
        Some(None) => created,
        // Without a status, or after the clock went back, the snapshots tell.
        _ => newest.unwrap_or(created).max(created),
    }
}

/// Returns the snapshots to make for a moment: of each VM that has none of that moment or of a later one.
fn created(schedule: &SnapshotSchedule, observed: &Observed, due: Timestamp) -> Vec<VMSnapshot> {
    let new = |(vm, state): (&String, &ScheduledVm)| {
        let of_vm = observed.own.get(vm).and_then(|of_vm| of_vm.last_key_value());
        let name = scheduled_name(&schedule.name_any(), vm, due);
        let is_made = of_vm.is_some_and(|(last, _)| *last >= due) || observed.others.contains(&name);
        if is_made || *state != ScheduledVm::Exists {
            return None;
        }
        let mut snapshot = VMSnapshot::new(&name, VMSnapshotSpec { vm: vm.as_str().into(), memory: false });
        snapshot.metadata.namespace = schedule.namespace();
        snapshot.metadata.labels = Some([(SNAPSHOT_SCHEDULE_LABEL.to_owned(), schedule.name_any())].into());
        snapshot.metadata.annotations = Some([(SCHEDULED_AT_ANNOTATION.to_owned(), due.to_string())].into());
        let of_vm = observed.inherited.get(vm).cloned().unwrap_or_default();
        of_vm.with(&schedule.metadata).add_to(&mut snapshot.metadata);
        Some(snapshot)
    };
    observed.vms.iter().filter_map(new).collect()
}

/// Returns those of a VM's snapshots to delete. Only snapshots that are taken count for the rules, and a new one that waits for room in a
/// quota; the last one that is taken stays. Those with one of the DiskSnapshots that backups need stay too, up to a limit. Those of backups
/// under way come first, from the oldest: the first backup of a large disk takes long, and later ones of other disks do not push out its
/// snapshot.
fn deleted(
    schedule: &SnapshotSchedule,
    of_vm: &BTreeMap<Timestamp, Arc<VMSnapshot>>,
    zone: &TimeZone,
    needed: &NeededSnapshots<'_>,
) -> Vec<Arc<VMSnapshot>> {
    let progress: BTreeMap<Timestamp, Progress> =
        of_vm.iter().map(|(moment, snapshot)| (*moment, Progress::of(snapshot))).collect();
    let with = |wanted: Progress| progress.iter().filter(move |(_, p)| **p == wanted).map(|(m, _)| *m);
    let taken: BTreeSet<Timestamp> = with(Progress::Taken).collect();
    let mut counted = taken.clone();
    // With a quota of just those that are kept, it is taken only once an older one is gone.
    counted.extend(
        of_vm.iter().next_back().filter(|(_, last)| waits_for_quota(last)).map(|(moment, _)| *moment),
    );
    let kept = schedule.spec.keep.kept(&counted, zone);
    let last = with(Progress::Taken).chain(with(Progress::Pending)).max();
    let is_surplus = |moment: &Timestamp| match progress.get(moment) {
        Some(Progress::Taken) => !kept.contains(moment) && taken.last() != Some(moment),
        Some(Progress::Lost) => taken.last().is_some_and(|last| moment < last),
        // A later one takes its place.
        Some(Progress::Pending) => last.is_some_and(|last| *moment < last),
        Some(Progress::Deleted) | None => false,
    };
    let surplus: Vec<_> = of_vm.iter().filter(|(moment, _)| is_surplus(moment)).map(|(_, s)| s).collect();
    let has_one_of = |snapshot: &VMSnapshot, names: &BTreeSet<&str>| {
        let mut disks = snapshot.status.iter().flat_map(|status| &status.disks);
        disks.any(|disk| names.contains(disk.snapshot.as_str()))
    };
    let under_way = surplus.iter().filter(|snapshot| has_one_of(snapshot, &needed.under_way));
    let bases = surplus
        .iter()
        .rev()
        .filter(|snapshot| has_one_of(snapshot, &needed.bases) && !has_one_of(snapshot, &needed.under_way));
    let of_backups = under_way.chain(bases).take(MOST_NEEDED);
    let stays: BTreeSet<String> = of_backups.map(|snapshot| snapshot.name_any()).collect();
    surplus.into_iter().filter(|snapshot| !stays.contains(&snapshot.name_any())).cloned().collect()
}

/// Whether it is not taken yet because of a quota.
fn waits_for_quota(snapshot: &VMSnapshot) -> bool {
    let conditions = snapshot.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let ready = condition::find(conditions, ConditionType::Ready.as_str());
    Progress::of(snapshot) == Progress::Pending
        && ready.is_some_and(|ready| ready.reason == Reason::QuotaExceeded.as_str())
}

/// Returns the snapshot that is not taken, if the last one of the VM is not.
fn pending<'a>(observed: &'a Observed, vm: &str) -> Option<(Timestamp, &'a Arc<VMSnapshot>)> {
    let is_there =
        |(_, snapshot): &(&Timestamp, &Arc<VMSnapshot>)| Progress::of(snapshot) != Progress::Deleted;
    let (moment, snapshot) = observed.own.get(vm)?.iter().rev().find(is_there)?;
    (Progress::of(snapshot) != Progress::Taken).then_some((*moment, snapshot))
}

fn readiness(
    schedule: &SnapshotSchedule,
    observed: &Observed,
    newest: Option<Timestamp>,
    now: Timestamp,
) -> Readiness {
    if let Some(newest) = newest.filter(|newest| newest.duration_since(now) > CLOCK_TOLERANCE) {
        let snapshots = observed.own.values().filter_map(|of_vm| of_vm.get(&newest));
        let name = snapshots.map(|snapshot| snapshot.name_any()).next().unwrap_or_default();
        let text = format!("VMSnapshot {name} is of {newest}, and it is {now}: none is taken before then");
        return Readiness::Stalled(Reason::ClockBehind, text);
    }
    if observed.selected > MOST_SCHEDULED_VMS {
        let text = format!(
            "vmSelector selects {} VMs: snapshots are taken of the first {MOST_SCHEDULED_VMS} by name. Use several schedules with other labels",
            observed.selected
        );
        return Readiness::Stalled(Reason::InvalidSpec, text);
    }
    let mut failed = Vec::new();
    let mut late = Vec::new();
    for (moment, snapshot) in observed.vms.keys().filter_map(|vm| pending(observed, vm)) {
        let conditions = snapshot.status.as_ref().map(|s| s.conditions.as_slice()).unwrap_or_default();
        let cause =
            condition::find(conditions, ConditionType::Ready.as_str()).map(|ready| ready.message.as_str());
        let (name, vm) = (snapshot.name_any(), &snapshot.spec.vm);
        let text = format!("VMSnapshot {name} of VM {vm}: {}", cause.unwrap_or("not reported yet"));
        if is_stalled(snapshot) {
            failed.push(text);
        } else if now.duration_since(moment) >= TAKING_TIME {
            late.push(text);
        }
    }
    let others = |texts: &[String]| match texts.len() {
        0 | 1 => String::new(),
        count => format!(" (and {} more)", count - 1),
    };
    if let Some(first) = failed.first() {
        return Readiness::Stalled(Reason::SnapshotFailed, format!("{first}{}", others(&failed)));
    }
    let with_state = |wanted: fn(&String, &ScheduledVm) -> Option<String>| -> Vec<String> {
        observed.vms.iter().filter_map(|(vm, state)| wanted(vm, state)).collect()
    };
    let missing = with_state(|vm, state| {
        (*state == ScheduledVm::Missing)
            .then(|| format!("VM {vm} does not exist: no snapshot is taken of it"))
    });
    let without_file = with_state(|vm, state| match state {
        ScheduledVm::WithoutFile(disk) => {
            Some(format!("Disk {disk} of VM {vm} has no file yet: no snapshot is taken of this VM"))
        }
        _ => None,
    });
    for (reason, texts) in [
        (Reason::SnapshotFailed, late),
        (Reason::WaitingForVM, missing),
        (Reason::WaitingForDisk, without_file),
    ] {
        if let Some(first) = texts.first() {
            return Readiness::Reconciling(reason, format!("{first}{}", others(&texts)));
        }
    }
    let text = if observed.vms.is_empty() && schedule.spec.vm_selector.is_some() {
        "no VM has the labels of vmSelector"
    } else {
        ""
    };
    Readiness::Ready(Reason::Available, text.to_owned())
}

fn dependencies(
    schedule: &SnapshotSchedule,
    observed: &Observed,
    next: Option<Timestamp>,
    now: Timestamp,
) -> Vec<Dependency> {
    let namespace = schedule.namespace().unwrap_or_default();
    let mut dependencies: Vec<Dependency> = next.map(Dependency::Time).into_iter().collect();
    for (vm, state) in &observed.vms {
        let object = match state {
            ScheduledVm::Missing => Key::namespaced(ObjectKind::VM, &namespace, vm),
            ScheduledVm::WithoutFile(disk) => Key::namespaced(ObjectKind::Disk, &namespace, disk.as_str()),
            ScheduledVm::Exists => continue,
        };
        dependencies.push(Dependency::Object(object));
    }
    let late = observed.vms.keys().filter_map(|vm| pending(observed, vm)).map(|(moment, _)| moment);
    let late = late.filter_map(|moment| moment.checked_add(TAKING_TIME).ok()).filter(|moment| *moment > now);
    dependencies.extend(late.map(Dependency::Time).min());
    dependencies
}
