//! The SnapshotSchedule controller: makes a VMSnapshot of each VM, or a DiskSnapshot of each Disk, when one is due, a Backup of each of these
//! disks, and deletes those that no rule keeps.
//!
//! ```text
//!   moment ─▶ (not later than the deadline) ─▶ a snapshot each ─▶ status.lastScheduleTime
//!                                                 ├─▶ (taken) ─▶ those before it that no rule keeps are deleted
//!                                                 └─▶ (taken, the last one) ─▶ a Backup of each disk that has none under way
//!                                                        └─▶ (complete) ─▶ those before it that no rule keeps are deleted
//! ```
//!
//! The name of a snapshot follows from the schedule, the VM or Disk and the moment, so that after a crash, or with two controllers, none is made
//! twice. `lastScheduleTime` is written once all of a moment are made. After a time without a controller, the last moment that was missed
//! counts. While the clock is behind the last snapshot, none is made; nothing is ever deleted because of the current time.

mod backups;
mod observe;
mod plan;
mod snapshots;
#[cfg(test)]
mod tests;

use berth_api::{SnapshotSchedule, SnapshotScheduleStatus};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

use crate::{
    batch::{Write, WriteBatch},
    cache::Cache,
    config::Config,
    key::Key,
    plan::{Outcome, Plan},
};

pub(crate) fn reconcile(cache: &Cache, config: &Config, key: &Key, batch: &mut WriteBatch) -> Outcome {
    let Some(schedule) = cache.tables.snapshot_schedules.get(key).cloned() else { return Outcome::Settled };
    if schedule.metadata.deletion_timestamp.is_some() {
        return Outcome::Settled;
    }
    let now = config.clock.now();
    let plan = planned(cache, &schedule, now);
    let status = status(&schedule, &plan.decision, now);
    for snapshot in plan.decision.create {
        batch.write(Write::Create(snapshot.into()));
    }
    for snapshot in plan.decision.create_of_disks {
        batch.write(Write::Create(snapshot.into()));
    }
    // After them: a moment whose snapshots are not all made is due again.
    batch.status(schedule.as_ref(), status);
    for snapshot in plan.decision.delete {
        batch.write(Write::Delete(snapshot.into()));
    }
    for snapshot in plan.decision.delete_of_disks {
        batch.write(Write::Delete(snapshot.into()));
    }
    // A quota may refuse a new backup, but not the deletion of those that are not kept.
    for backup in plan.decision.backups.delete {
        batch.write(Write::Delete(backup.into()));
    }
    for backup in plan.decision.backups.create {
        batch.write(Write::Create(backup.into()));
    }
    plan.outcome
}

/// Plans, a second time without the snapshots of Disks that a Quota does not allow: one that is refused would hold up all other writes, and
/// among them the deletions that make room for it. Those of VMs wait by themselves.
fn planned(cache: &Cache, schedule: &SnapshotSchedule, now: Timestamp) -> Plan<plan::Decision> {
    let mut observed = observe::observe(cache, schedule);
    let plan = plan::plan(schedule, &observed, now);
    let namespace = schedule.namespace().unwrap_or_default();
    observed.deferred = observe::deferred(cache, &namespace, &plan.decision.create_of_disks);
    if observed.deferred.is_some() { plan::plan(schedule, &observed, now) } else { plan }
}

fn status(schedule: &SnapshotSchedule, decision: &plan::Decision, now: Timestamp) -> SnapshotScheduleStatus {
    let mut status = schedule.status.clone().unwrap_or_default();
    let generation = schedule.metadata.generation.unwrap_or_default();
    let text = |moment: Option<Timestamp>| moment.map(|moment| moment.to_string());
    status.last_schedule_time = text(decision.last);
    status.next_schedule_time = text(decision.next);
    status.last_successful_time = text(decision.last_successful);
    status.vms = i64::try_from(decision.vms).unwrap_or(i64::MAX);
    status.disks = i64::try_from(decision.disks).unwrap_or(i64::MAX);
    status.snapshots = i64::try_from(decision.snapshots).unwrap_or(i64::MAX);
    status.backups = i64::try_from(decision.backups.complete).unwrap_or(i64::MAX);
    status.last_backup_time = text(decision.backups.last);
    decision.readiness.write(&mut status.conditions, generation, now);
    status.observed_generation = generation;
    status
}
