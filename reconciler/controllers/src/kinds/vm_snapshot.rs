//! The VMSnapshot controller: decides the disks once, creates a DiskSnapshot for each, and reports them together. The host's agent takes
//! them at one moment.
//!
//! ```text
//!   (all disks have files on one host) ─▶ status.disks ─▶ a DiskSnapshot each ─▶ (all are taken) Ready
//! ```
//!
//! The DiskSnapshots name the VMSnapshot and the number of its parts: the host takes none before all of them are there, and a lost
//! status is found again. Once one of them is taken, one that is missing is not created again: it would be of another moment. They go
//! with the VMSnapshot, by their owner reference.

mod observe;
mod plan;
#[cfg(test)]
mod tests;

use berth_api::{Readiness, Reason, ResourceName, VM, VMSnapshot, VMSnapshotStatus};
use k8s_openapi::jiff::Timestamp;

use crate::{
    batch::{Write, WriteBatch},
    cache::Cache,
    config::Config,
    key::Key,
    kinds::quota,
    plan::Outcome,
};

pub(crate) fn reconcile(cache: &Cache, config: &Config, key: &Key, batch: &mut WriteBatch) -> Outcome {
    let Some(snapshot) = cache.tables.vm_snapshots.get(key).cloned() else { return Outcome::Settled };
    if snapshot.metadata.deletion_timestamp.is_some() {
        return Outcome::Settled;
    }
    let mut plan = plan::plan(&snapshot, &observe::observe(cache, &snapshot));
    let disks = plan.decision.create.iter().map(|part| &part.spec.disk);
    let more = quota::of_snapshots(cache, key.namespace(), disks);
    if let Some(excess) = quota::excess_of_new(cache, key.namespace(), more) {
        // All of them, or none: they are taken together.
        plan.decision.create.clear();
        if matches!(plan.decision.readiness, Readiness::Reconciling(..)) {
            plan.decision.readiness = Readiness::Reconciling(Reason::QuotaExceeded, excess.text);
        }
        plan.outcome = plan.outcome.and(excess.dependency);
    }
    batch.status(snapshot.as_ref(), status(&snapshot, &plan.decision, config.clock.now()));
    for part in plan.decision.create {
        batch.write(Write::Create(part.into()));
    }
    plan.outcome
}

/// Returns the first disk of the VM that has no file yet: a snapshot of the VM would wait for it.
pub(super) fn disk_without_file(cache: &Cache, vm: &VM) -> Option<ResourceName> {
    let mut disks = observe::disks_of(cache, vm).into_iter();
    disks.find(|(_, disk)| disk.as_deref().and_then(plan::host_of).is_none()).map(|(name, _)| name)
}

fn status(snapshot: &VMSnapshot, decision: &plan::Decision, now: Timestamp) -> VMSnapshotStatus {
    let mut status = snapshot.status.clone().unwrap_or_default();
    let generation = snapshot.metadata.generation.unwrap_or_default();
    status.disks.clone_from(&decision.disks);
    if let (Readiness::Ready(..), Some((taken_at, consistency))) = (&decision.readiness, &decision.taken) {
        status.taken_at = Some(taken_at.clone());
        status.consistency = Some(*consistency);
    }
    decision.readiness.write(&mut status.conditions, generation, now);
    status.observed_generation = generation;
    status
}
