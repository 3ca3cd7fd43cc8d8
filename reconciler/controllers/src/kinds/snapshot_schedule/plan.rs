//! Plan for a SnapshotSchedule. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use berth_api::{
    ConditionType, DiskSnapshot, DiskSnapshotSpec, Readiness, Reason, SnapshotSchedule, VMSnapshot,
    VMSnapshotSpec, condition,
    snapshot_schedule::{
        MOST_SCHEDULED_VMS, SCHEDULED_AT_ANNOTATION, SNAPSHOT_SCHEDULE_LABEL, scheduled_name,
    },
};
use k8s_openapi::jiff::{SignedDuration, Timestamp, tz::TimeZone};
use kube::ResourceExt;

use super::{
    backups::{self, NeededSnapshots},
    observe::Observed,
    snapshots::{Progress, Scheduled, Selected, Snapshot, is_stalled, waits_for_quota},
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
    pub(super) create_of_disks: Vec<DiskSnapshot>,
    pub(super) delete_of_disks: Vec<Arc<DiskSnapshot>>,
    pub(super) last: Option<Timestamp>,
    pub(super) next: Option<Timestamp>,
    pub(super) last_successful: Option<Timestamp>,
    pub(super) vms: usize,
    pub(super) disks: usize,
    /// The number of snapshots that are taken and kept.
    pub(super) snapshots: usize,
    pub(super) backups: backups::Decision,
    pub(super) readiness: Readiness,
}

pub(super) fn plan(schedule: &SnapshotSchedule, observed: &Observed, now: Timestamp) -> Plan<Decision> {
    let status = schedule.status.clone().unwrap_or_default();
    let recorded = |text: &Option<String>| text.as_ref().and_then(|text| text.parse::<Timestamp>().ok());
    let Observed { of_vms, of_disks, .. } = observed;
    let of_vms_taken = of_vms.taken().filter_map(|snapshot| snapshot.taken_at());
    let of_disks_taken = of_disks.taken().filter_map(|snapshot| snapshot.taken_at());
    let mut decision = Decision {
        create: Vec::new(),
        delete: Vec::new(),
        create_of_disks: Vec::new(),
        delete_of_disks: Vec::new(),
        last: recorded(&status.last_schedule_time),
        next: None,
        last_successful: recorded(&status.last_successful_time)
            .filter(|at| !backups::is_ahead(*at, now))
            .max(of_vms_taken.chain(of_disks_taken).max()),
        vms: of_vms.existing(),
        disks: of_disks.existing(),
        snapshots: of_vms.taken().count() + of_disks.taken().count(),
        backups: backups::as_they_are(schedule, &observed.backups, now),
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
    let newest = of_vms.newest().max(of_disks.newest());
    let since = since(schedule, newest, now);
    let earliest = now.checked_sub(deadline(schedule)).unwrap_or(now);
    let due = cron.last_between(since.max(earliest), now, &zone);
    let deferred = |disk: &str| observed.deferred.as_ref().is_some_and(|held| held.disks.contains(disk));
    if let Some(due) = due {
        decision.create = created(schedule, of_vms, due, |name, vm| {
            VMSnapshot::new(name, VMSnapshotSpec { vm: vm.into(), memory: false })
        });
        decision.create_of_disks = created(schedule, of_disks, due, |name, disk| {
            DiskSnapshot::new(name, DiskSnapshotSpec { disk: disk.into(), ..DiskSnapshotSpec::default() })
        });
        decision.create_of_disks.retain(|snapshot| !deferred(snapshot.spec.disk.as_str()));
        if observed.deferred.is_none() {
            decision.last = Some(due);
        }
    } else if decision.last.is_none_or(|last| last > now) {
        // The clock went back, or the status is lost.
        decision.last = newest;
    }
    decision.next = cron.next_after(since.max(now), &zone);
    let needed = backups::needed_snapshots(schedule, &observed.backups);
    decision.delete = surplus(schedule, of_vms, &zone, &needed, |_| None);
    decision.delete_of_disks =
        surplus(schedule, of_disks, &zone, &needed, |disk| due.filter(|_| deferred(disk)));
    decision.snapshots -= taken_of(&decision.delete) + taken_of(&decision.delete_of_disks);
    decision.backups = backups::plan(schedule, &observed.backups, &zone, now);
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

/// Returns the snapshots to make for a moment: of each VM or Disk that has none of that moment or of a later one.
fn created<S: Snapshot>(
    schedule: &SnapshotSchedule,
    scheduled: &Scheduled<S>,
    due: Timestamp,
    new: impl Fn(&str, &str) -> S,
) -> Vec<S> {
    let make = |(of, state): (&String, &Selected)| {
        let last = scheduled.own.get(of).and_then(|own| own.last_key_value());
        let name = scheduled_name(&schedule.name_any(), of, due);
        let is_made = last.is_some_and(|(last, _)| *last >= due) || scheduled.others.contains(&name);
        if is_made || *state != Selected::Exists {
            return None;
        }
        let mut snapshot = new(&name, of);
        let meta = snapshot.meta_mut();
        meta.namespace = schedule.namespace();
        meta.labels = Some([(SNAPSHOT_SCHEDULE_LABEL.to_owned(), schedule.name_any())].into());
        meta.annotations = Some([(SCHEDULED_AT_ANNOTATION.to_owned(), due.to_string())].into());
        let inherited = scheduled.inherited.get(of).cloned().unwrap_or_default();
        inherited.with(&schedule.metadata).add_to(meta);
        Some(snapshot)
    };
    scheduled.selected.iter().filter_map(make).collect()
}

/// Returns the snapshots to delete. `awaited`: the moment of the one that is held back of a VM or Disk.
fn surplus<S: Snapshot>(
    schedule: &SnapshotSchedule,
    scheduled: &Scheduled<S>,
    zone: &TimeZone,
    needed: &NeededSnapshots<'_>,
    awaited: impl Fn(&str) -> Option<Timestamp>,
) -> Vec<Arc<S>> {
    let all = scheduled.own.iter();
    all.flat_map(|(of, own)| deleted(schedule, own, awaited(of), zone, needed)).collect()
}

fn taken_of<S: Snapshot>(snapshots: &[Arc<S>]) -> usize {
    snapshots.iter().filter(|snapshot| Progress::of(snapshot.as_ref()) == Progress::Taken).count()
}

/// Returns those of a VM's or a Disk's snapshots to delete. Only snapshots that are taken count for the rules, and a new one that waits for
/// room in a quota; the last one that is taken stays. Those with one of the DiskSnapshots that backups need stay too, up to a limit. Those of
/// backups under way come first, from the oldest: the first backup of a large disk takes long, and later ones of other disks do not push out
/// its snapshot.
fn deleted<S: Snapshot>(
    schedule: &SnapshotSchedule,
    own: &BTreeMap<Timestamp, Arc<S>>,
    awaited: Option<Timestamp>,
    zone: &TimeZone,
    needed: &NeededSnapshots<'_>,
) -> Vec<Arc<S>> {
    let progress: BTreeMap<Timestamp, Progress> =
        own.iter().map(|(moment, snapshot)| (*moment, Progress::of(snapshot.as_ref()))).collect();
    let with = |wanted: Progress| progress.iter().filter(move |(_, p)| **p == wanted).map(|(m, _)| *m);
    let taken: BTreeSet<Timestamp> = with(Progress::Taken).collect();
    let mut counted = taken.clone();
    // With a quota of just those that are kept, it is taken only once an older one is gone.
    counted.extend(
        own.iter().next_back().filter(|(_, last)| waits_for_quota(last.as_ref())).map(|(moment, _)| *moment),
    );
    counted.extend(awaited);
    let kept = schedule.spec.keep.kept(&counted, zone);
    let last = with(Progress::Taken).chain(with(Progress::Pending)).max();
    let is_surplus = |moment: &Timestamp| match progress.get(moment) {
        Some(Progress::Taken) => !kept.contains(moment) && taken.last() != Some(moment),
        Some(Progress::Lost) => taken.last().is_some_and(|last| moment < last),
        // A later one takes its place.
        Some(Progress::Pending) => last.is_some_and(|last| *moment < last),
        Some(Progress::Deleted) | None => false,
    };
    let surplus: Vec<&Arc<S>> =
        own.iter().filter(|(moment, _)| is_surplus(moment)).map(|(_, snapshot)| snapshot).collect();
    let under_way = surplus.iter().filter(|snapshot| snapshot.has_one_of(&needed.under_way));
    let bases = surplus
        .iter()
        .rev()
        .filter(|snapshot| snapshot.has_one_of(&needed.bases) && !snapshot.has_one_of(&needed.under_way));
    let of_backups = under_way.chain(bases).take(MOST_NEEDED);
    let stays: BTreeSet<String> = of_backups.map(|snapshot| snapshot.name_any()).collect();
    surplus.into_iter().filter(|snapshot| !stays.contains(&snapshot.name_any())).cloned().collect()
}

/// Snapshots that are not taken, each with the cause, for people.
#[derive(Debug, Default)]
struct Untaken {
    failed: Vec<String>,
    late: Vec<String>,
}

impl Untaken {
    fn add<S: Snapshot>(&mut self, scheduled: &Scheduled<S>, now: Timestamp) {
        for (moment, snapshot) in scheduled.pending() {
            let ready = condition::find(snapshot.conditions(), ConditionType::Ready.as_str());
            let cause = ready.map_or("not reported yet", |ready| ready.message.as_str());
            let text = format!("{} {} of {} {}: {cause}", S::KIND, snapshot.name_any(), S::OF, snapshot.of());
            if is_stalled(snapshot.as_ref()) {
                self.failed.push(text);
            } else if now.duration_since(moment) >= TAKING_TIME {
                self.late.push(text);
            }
        }
    }
}

/// Returns the kind and the name of a snapshot of this moment.
fn named_of(observed: &Observed, moment: Timestamp) -> String {
    fn find<S: Snapshot>(scheduled: &Scheduled<S>, moment: Timestamp) -> Option<String> {
        let snapshot = scheduled.own.values().find_map(|own| own.get(&moment))?;
        Some(format!("{} {}", S::KIND, snapshot.name_any()))
    }
    find(&observed.of_vms, moment).or_else(|| find(&observed.of_disks, moment)).unwrap_or_default()
}

fn missing_of<S: Snapshot>(scheduled: &Scheduled<S>) -> Vec<String> {
    let missing = scheduled.selected.iter().filter(|(_, state)| **state == Selected::Missing);
    missing.map(|(name, _)| format!("{} {name} does not exist: no snapshot is taken of it", S::OF)).collect()
}

fn without_file(observed: &Observed) -> Vec<String> {
    let of_vms = observed.of_vms.selected.iter().filter_map(|(vm, state)| match state {
        Selected::WithoutFile(disk) => {
            Some(format!("Disk {disk} of VM {vm} has no file yet: no snapshot is taken of this VM"))
        }
        _ => None,
    });
    let of_disks = observed.of_disks.selected.iter().filter_map(|(disk, state)| match state {
        Selected::WithoutFile(_) => Some(format!("Disk {disk} has no file yet: no snapshot is taken of it")),
        _ => None,
    });
    of_vms.chain(of_disks).collect()
}

fn readiness(
    schedule: &SnapshotSchedule,
    observed: &Observed,
    newest: Option<Timestamp>,
    now: Timestamp,
) -> Readiness {
    if let Some(newest) = newest.filter(|newest| backups::is_ahead(*newest, now)) {
        let snapshot = named_of(observed, newest);
        let text = format!("{snapshot} is of {newest}, and it is {now}: none is taken before then");
        return Readiness::Stalled(Reason::ClockBehind, text);
    }
    let is_of_disks = schedule.spec.disk_selector.is_some();
    let (selector, objects) = if is_of_disks { ("diskSelector", "Disk") } else { ("vmSelector", "VM") };
    if observed.selected > MOST_SCHEDULED_VMS {
        let text = format!(
            "{selector} selects {} {objects}s: snapshots are taken of the first {MOST_SCHEDULED_VMS} by name. Use several schedules with other labels",
            observed.selected
        );
        return Readiness::Stalled(Reason::InvalidSpec, text);
    }
    let mut untaken = Untaken::default();
    untaken.add(&observed.of_vms, now);
    untaken.add(&observed.of_disks, now);
    let others = |texts: &[String]| match texts.len() {
        0 | 1 => String::new(),
        count => format!(" (and {} more)", count - 1),
    };
    if let Some(first) = untaken.failed.first() {
        return Readiness::Stalled(Reason::SnapshotFailed, format!("{first}{}", others(&untaken.failed)));
    }
    if let Some(held) = &observed.deferred {
        let disks: Vec<String> = held.disks.iter().cloned().collect();
        let first = disks.first().map(String::as_str).unwrap_or_default();
        let text = format!("{}: no snapshot of Disk {first} is taken{}", held.excess.text, others(&disks));
        return Readiness::Reconciling(Reason::QuotaExceeded, text);
    }
    for (reason, texts) in [
        (Reason::SnapshotFailed, untaken.late),
        (Reason::WaitingForVM, missing_of(&observed.of_vms)),
        (Reason::WaitingForDisk, missing_of(&observed.of_disks)),
        (Reason::WaitingForDisk, without_file(observed)),
    ] {
        if let Some(first) = texts.first() {
            return Readiness::Reconciling(reason, format!("{first}{}", others(&texts)));
        }
    }
    let is_selecting = is_of_disks || schedule.spec.vm_selector.is_some();
    let text = match is_selecting && observed.selected == 0 {
        true => format!("no {objects} has the labels of {selector}"),
        false => String::new(),
    };
    Readiness::Ready(Reason::Available, text)
}

fn dependencies(
    schedule: &SnapshotSchedule,
    observed: &Observed,
    next: Option<Timestamp>,
    now: Timestamp,
) -> Vec<Dependency> {
    let namespace = schedule.namespace().unwrap_or_default();
    let mut dependencies: Vec<Dependency> = next.map(Dependency::Time).into_iter().collect();
    for (vm, state) in &observed.of_vms.selected {
        let object = match state {
            Selected::Missing => Key::namespaced(ObjectKind::VM, &namespace, vm),
            Selected::WithoutFile(disk) => Key::namespaced(ObjectKind::Disk, &namespace, disk.as_str()),
            Selected::Exists => continue,
        };
        dependencies.push(Dependency::Object(object));
    }
    let absent = observed.of_disks.selected.iter().filter(|(_, state)| **state != Selected::Exists);
    let absent = absent.map(|(disk, _)| Key::namespaced(ObjectKind::Disk, &namespace, disk));
    dependencies.extend(absent.map(Dependency::Object));
    let of_vms = observed.of_vms.pending().map(|(moment, _)| moment);
    let late = of_vms.chain(observed.of_disks.pending().map(|(moment, _)| moment));
    let late = late.filter_map(|moment| moment.checked_add(TAKING_TIME).ok()).filter(|moment| *moment > now);
    dependencies.extend(late.map(Dependency::Time).min());
    dependencies.extend(observed.deferred.iter().map(|held| held.excess.dependency.clone()));
    dependencies
}
