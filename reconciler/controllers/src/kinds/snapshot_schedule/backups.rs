//! The part of a SnapshotSchedule's plan that is about backups. Pure.
//!
//! ```text
//!   due ─▶ UnderWay ─▶ Complete ─▶ (no rule keeps it) ─▶ deleted
//!             ├─▶ Failed ─▶ (there is a later one) ─▶ deleted
//!             └─▶ Undecided
//! ```
//!
//! A backup that its host tries again, such as while a repository does not answer, is under way however long it takes: another one would
//! fail like it, and could not be deleted meanwhile. It has failed once nothing can complete it. One without the status that tells is
//! undecided: after a restore of objects without their statuses, it may be a complete backup, and is never deleted. Complete backups are
//! kept by volume: a disk that is created anew under the same name does not push out the backups of the former one.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use berth_api::{
    Backup, BackupSpec, ConditionType, DeletionPolicy, Readiness, Reason, ScheduledBackups, SnapshotSchedule,
    condition,
    snapshot_schedule::{DISK_LABEL, SCHEDULED_AT_ANNOTATION, SNAPSHOT_SCHEDULE_LABEL},
};
use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::Condition,
    jiff::{SignedDuration, Timestamp, tz::TimeZone},
};
use kube::ResourceExt;

use super::observe::{DueBackup, ObservedBackups, OwnBackup};
use crate::{
    key::{Key, ObjectKind},
    plan::Dependency,
};

/// The time by which a clock may be behind the last snapshot or backup without a report: it was set back a little.
const CLOCK_TOLERANCE: SignedDuration = SignedDuration::from_hours(1);
/// The time in which a problem of a backup may pass by itself: a schedule with one that lasts longer is not ready.
const TRYING_TIME: SignedDuration = SignedDuration::from_mins(15);
/// The time in which a backup is usually complete, the first one of a large disk included.
const WRITING_TIME: SignedDuration = SignedDuration::from_hours(24);
/// The greatest number of backups that are made, and of those that are deleted, in one step. Each of them has the schedule reconciled
/// again, which goes on with the others.
const MOST_AT_ONCE: usize = 100;

/// The decision about the backups of a SnapshotSchedule.
#[derive(Clone, Debug, Default)]
pub(super) struct Decision {
    pub(super) create: Vec<Backup>,
    pub(super) delete: Vec<Arc<Backup>>,
    /// The number of backups that are complete and kept.
    pub(super) complete: usize,
    /// The moment whose data the last complete one has.
    pub(super) last: Option<Timestamp>,
}

/// How far a Backup is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Complete,
    /// It is being made, or will be tried again.
    UnderWay,
    /// It will never be complete.
    Failed,
    /// It is not complete, and not for the repository that the schedule names.
    Former,
    /// It has neither a snapshot nor the identity of its data: it lost its status, or its snapshot before its host was decided.
    Undecided,
    Deleted,
}

impl Progress {
    fn of(own: &OwnBackup, declared: Option<&ScheduledBackups>) -> Self {
        let backup = own.backup.as_ref();
        if backup.metadata.deletion_timestamp.is_some() {
            return Self::Deleted;
        }
        if backup.is_complete() {
            return Self::Complete;
        }
        let is_elsewhere = declared.is_some_and(|declared| declared.repository != backup.spec.repository);
        let is_over =
            |reason: &str| [Reason::SnapshotLost, Reason::HostFenced].iter().any(|r| r.as_str() == reason);
        let is_hopeless = ready(backup).is_some_and(|ready| is_over(&ready.reason));
        let has_identity = backup.status.as_ref().is_some_and(|status| status.backup_id.is_some());
        if !is_hopeless && !own.has_snapshot && !has_identity {
            return Self::Undecided;
        }
        match is_hopeless || !own.has_snapshot {
            true => Self::Failed,
            false if is_elsewhere => Self::Former,
            false => Self::UnderWay,
        }
    }
}

fn ready(backup: &Backup) -> Option<&Condition> {
    let conditions = &backup.status.as_ref()?.conditions;
    condition::find(conditions, ConditionType::Ready.as_str())
}

fn volume(backup: &Backup) -> Option<&str> {
    backup.status.as_ref()?.volume_id.as_deref()
}

/// Whether a Backup is of the disk that a snapshot is of, as far as the host of the Backup is decided.
fn is_of(backup: &Backup, due: &DueBackup) -> bool {
    volume(backup).is_none() || volume(backup) == due.volume.as_deref()
}

fn complete<'a>(
    schedule: &'a SnapshotSchedule,
    observed: &'a ObservedBackups,
) -> impl Iterator<Item = &'a OwnBackup> {
    let all = observed.own.values().flat_map(BTreeMap::values);
    all.filter(move |own| Progress::of(own, schedule.spec.backup.as_ref()) == Progress::Complete)
}

/// Returns a decision that neither makes nor deletes a backup.
pub(super) fn as_they_are(
    schedule: &SnapshotSchedule,
    observed: &ObservedBackups,
    now: Timestamp,
) -> Decision {
    let recorded: Option<Timestamp> =
        schedule.status.as_ref().and_then(|status| status.last_backup_time.as_ref()?.parse().ok());
    let recorded = recorded.filter(|at| !is_ahead(*at, now));
    let taken_at = |own: &OwnBackup| -> Option<Timestamp> {
        own.backup.status.as_ref()?.taken_at.as_ref()?.parse().ok()
    };
    Decision {
        complete: complete(schedule, observed).count(),
        last: recorded.max(complete(schedule, observed).filter_map(taken_at).max()),
        ..Decision::default()
    }
}

/// Whether a recorded time is that of a clock that was wrong: it would hide for long that nothing is made.
pub(super) fn is_ahead(at: Timestamp, now: Timestamp) -> bool {
    at.duration_since(now) > CLOCK_TOLERANCE
}

pub(super) fn plan(
    schedule: &SnapshotSchedule,
    observed: &ObservedBackups,
    zone: &TimeZone,
    now: Timestamp,
) -> Decision {
    let mut decision = as_they_are(schedule, observed, now);
    let Some(declared) = &schedule.spec.backup else { return decision };
    if observed.has_repository {
        let new = observed.due.iter().filter(|due| is_to_be_made(declared, observed, due));
        let most = observed.over_quota.as_ref().map_or(MOST_AT_ONCE, |(most, _)| *most).min(MOST_AT_ONCE);
        decision.create = new.map(|due| new_backup(schedule, declared, due)).take(most).collect();
    }
    let surplus = observed.own.values().flat_map(|of_disk| deleted(declared, of_disk, zone));
    decision.delete = surplus.take(MOST_AT_ONCE).collect();
    decision.complete -= decision.delete.iter().filter(|backup| backup.is_complete()).count();
    decision
}

/// Whether a disk has neither a backup of this moment, or of a later one, nor one under way.
fn is_to_be_made(declared: &ScheduledBackups, observed: &ObservedBackups, due: &DueBackup) -> bool {
    let Some(of_disk) = observed.own.get(due.disk.as_str()) else { return !due.is_name_taken };
    let is_made = of_disk.last_key_value().is_some_and(|(last, _)| *last >= due.moment);
    let is_busy = of_disk
        .values()
        .any(|own| Progress::of(own, Some(declared)) == Progress::UnderWay && is_of(&own.backup, due));
    !due.is_name_taken && !is_made && !is_busy
}

fn new_backup(schedule: &SnapshotSchedule, declared: &ScheduledBackups, due: &DueBackup) -> Backup {
    let spec = BackupSpec {
        repository: declared.repository.clone(),
        snapshot: Some(due.snapshot.clone()),
        existing: None,
        deletion_policy: DeletionPolicy::Delete,
    };
    let mut backup = Backup::new(&due.name, spec);
    let labels = [(SNAPSHOT_SCHEDULE_LABEL, schedule.name_any()), (DISK_LABEL, due.disk.to_string())];
    backup.metadata.namespace = schedule.namespace();
    backup.metadata.labels = Some(labels.map(|(key, value)| (key.to_owned(), value)).into());
    backup.metadata.annotations = Some([(SCHEDULED_AT_ANNOTATION.to_owned(), due.moment.to_string())].into());
    due.inherited.clone().with(&schedule.metadata).add_to(&mut backup.metadata);
    backup
}

/// Returns those of a disk's backups to delete: complete ones that no rule keeps, and failed ones that a later one takes the place of.
fn deleted(
    declared: &ScheduledBackups,
    of_disk: &BTreeMap<Timestamp, OwnBackup>,
    zone: &TimeZone,
) -> Vec<Arc<Backup>> {
    let progress: BTreeMap<Timestamp, Progress> =
        of_disk.iter().map(|(moment, own)| (*moment, Progress::of(own, Some(declared)))).collect();
    let is_after = |moment: &Timestamp, wanted: &[Progress]| {
        progress.iter().rev().find(|(_, p)| wanted.contains(p)).is_some_and(|(last, _)| moment < last)
    };
    let mut volumes: BTreeMap<Option<&str>, BTreeSet<Timestamp>> = BTreeMap::new();
    for (moment, own) in of_disk {
        let is_here = own.backup.spec.repository == declared.repository;
        if is_here && progress.get(moment) == Some(&Progress::Complete) {
            volumes.entry(volume(&own.backup)).or_default().insert(*moment);
        }
    }
    let is_surplus = |moment: &Timestamp, own: &OwnBackup| match progress.get(moment) {
        Some(Progress::Complete) => {
            let of_volume = volumes.get(&volume(&own.backup)).filter(|moments| moments.contains(moment));
            of_volume.is_some_and(|moments| !declared.keep.kept(moments, zone).contains(moment))
        }
        Some(Progress::Failed) => {
            is_after(moment, &[Progress::Complete, Progress::UnderWay, Progress::Failed])
        }
        Some(Progress::Former) => is_after(moment, &[Progress::Complete, Progress::UnderWay]),
        _ => false,
    };
    of_disk
        .iter()
        .filter(|(moment, own)| is_surplus(moment, own))
        .map(|(_, own)| own.backup.clone())
        .collect()
}

/// The names of the DiskSnapshots that backups need.
#[derive(Clone, Debug, Default)]
pub(super) struct NeededSnapshots<'a> {
    /// Those of the backups under way: without them, these can never be complete.
    pub(super) under_way: BTreeSet<&'a str>,
    /// Of each disk that of its last complete backup, by which the next one reads only what has changed.
    pub(super) bases: BTreeSet<&'a str>,
}

pub(super) fn needed_snapshots<'a>(
    schedule: &SnapshotSchedule,
    observed: &'a ObservedBackups,
) -> NeededSnapshots<'a> {
    let declared = schedule.spec.backup.as_ref();
    let all = observed.own.values().flat_map(BTreeMap::values);
    let under_way = all.filter(|own| Progress::of(own, declared) == Progress::UnderWay);
    let last = observed.due.iter().filter_map(|due| {
        let mut of_disk = observed.own.get(due.disk.as_str())?.values().rev();
        of_disk.find(|own| {
            declared.is_some_and(|declared| declared.repository == own.backup.spec.repository)
                && Progress::of(own, declared) == Progress::Complete
                && is_of(&own.backup, due)
        })
    });
    let snapshot = |own: &'a OwnBackup| Some(own.backup.spec.snapshot.as_ref()?.as_str());
    NeededSnapshots {
        under_way: under_way.filter_map(snapshot).collect(),
        bases: last.filter_map(snapshot).collect(),
    }
}

/// Returns the last backup of each disk that is not complete.
fn unfinished<'a>(
    declared: &'a ScheduledBackups,
    observed: &'a ObservedBackups,
) -> impl Iterator<Item = (&'a DueBackup, &'a OwnBackup, Timestamp)> {
    observed.due.iter().filter_map(move |due| {
        let of_disk = observed.own.get(due.disk.as_str())?;
        let is_there = |own: &OwnBackup| Progress::of(own, Some(declared)) != Progress::Deleted;
        let (moment, last) =
            of_disk.iter().rev().find(|(_, own)| is_there(own) && is_of(&own.backup, due))?;
        let is_here = last.backup.spec.repository == declared.repository;
        let made = last.backup.creation_timestamp().map_or(*moment, |made| made.0);
        (is_here && Progress::of(last, Some(declared)) != Progress::Complete).then_some((due, last, made))
    })
}

/// Returns the moment from which a backup that is not complete is a failure.
fn late_from(own: &OwnBackup, made: Timestamp) -> Timestamp {
    let is_written = ready(&own.backup).is_some_and(|ready| ready.reason == Reason::BackingUp.as_str());
    made.checked_add(if is_written { WRITING_TIME } else { TRYING_TIME }).unwrap_or(Timestamp::MAX)
}

/// Returns the last Backup of a disk that is of the future: a clock that was ahead made it, and it holds back all before its moment.
fn of_the_future(observed: &ObservedBackups, now: Timestamp) -> Option<Readiness> {
    let last = |due: &DueBackup| {
        let (moment, own) = observed.own.get(due.disk.as_str())?.last_key_value()?;
        is_ahead(*moment, now).then(|| (*moment, own.backup.name_any()))
    };
    let (moment, name) = observed.due.iter().filter_map(last).max()?;
    let text =
        format!("Backup {name} is of {moment}, and it is {now}: no backup of its disk is made before then");
    Some(Readiness::Stalled(Reason::ClockBehind, text))
}

/// Returns what stands in the way of backups. None: nothing, or there are none to make.
pub(super) fn readiness(
    schedule: &SnapshotSchedule,
    observed: &ObservedBackups,
    now: Timestamp,
) -> Option<Readiness> {
    let declared = schedule.spec.backup.as_ref()?;
    if let Some(behind) = of_the_future(observed, now) {
        return Some(behind);
    }
    if !observed.has_repository {
        let text = format!(
            "BackupRepository {} does not exist, or is being deleted: no backup is made",
            declared.repository
        );
        return Some(Readiness::Reconciling(Reason::WaitingForRepository, text));
    }
    let (mut failed, mut late) = (Vec::new(), Vec::new());
    for (due, own, made) in unfinished(declared, observed) {
        let conditions = own.backup.status.as_ref().map(|s| s.conditions.as_slice()).unwrap_or_default();
        let is_stalled = condition::is_true(conditions, ConditionType::Stalled);
        let cause = ready(&own.backup).map_or("not reported yet", |ready| ready.message.as_str());
        let text = format!("Backup {} of Disk {}: {cause}", own.backup.name_any(), due.disk);
        if is_stalled || matches!(Progress::of(own, Some(declared)), Progress::Failed | Progress::Former) {
            failed.push(text);
        } else if late_from(own, made) <= now {
            late.push(text);
        }
    }
    let counted = |texts: &[String]| match texts {
        [] => None,
        [only] => Some(only.clone()),
        [first, others @ ..] => Some(format!("{first} (and {} more)", others.len())),
    };
    let stalled = counted(&failed).map(|text| Readiness::Stalled(Reason::BackupFailed, text));
    // One that failed takes a place of the Quota until it is deleted: it is named first.
    stalled
        .or_else(|| over_quota(declared, observed))
        .or_else(|| counted(&late).map(|text| Readiness::Reconciling(Reason::BackupFailed, text)))
}

fn over_quota(declared: &ScheduledBackups, observed: &ObservedBackups) -> Option<Readiness> {
    let (most, excess) = observed.over_quota.as_ref()?;
    let new = observed.due.iter().filter(|due| is_to_be_made(declared, observed, due));
    let text = format!("{}: no further backup is made", excess.text);
    (new.count() > *most).then_some(Readiness::Reconciling(Reason::QuotaExceeded, text))
}

pub(super) fn dependencies(
    schedule: &SnapshotSchedule,
    observed: &ObservedBackups,
    now: Timestamp,
) -> Vec<Dependency> {
    let Some(declared) = &schedule.spec.backup else { return Vec::new() };
    let namespace = schedule.namespace().unwrap_or_default();
    let repository = Key::namespaced(ObjectKind::BackupRepository, &namespace, declared.repository.as_str());
    let late = unfinished(declared, observed).map(|(_, own, made)| late_from(own, made));
    let next = late.filter(|moment| *moment > now).min();
    let quota = observed.over_quota.as_ref().map(|(_, excess)| excess.dependency.clone());
    next.map(Dependency::Time).into_iter().chain([Dependency::Object(repository)]).chain(quota).collect()
}
