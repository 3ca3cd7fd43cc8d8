//! Status of a snapshot. Pure.

use berth_api::{Consistency, DiskSnapshot, DiskSnapshotStatus, Quantity, Readiness};
use berth_host::Taken;
use jiff::Timestamp;

use super::observe::Observed;
use crate::unlocking;

pub(super) fn status(
    snapshot: &DiskSnapshot,
    observed: &Observed,
    readiness: &Readiness,
    now: Timestamp,
) -> DiskSnapshotStatus {
    let mut status = snapshot.status.clone().unwrap_or_default();
    let generation = snapshot.metadata.generation.unwrap_or(0);
    status.observed_generation = generation;
    readiness.write(&mut status.conditions, generation, now);
    // The facts of a lost one are kept: they distinguish it from one that was not taken.
    if let Some(facts) = &observed.snapshot
        && let Some(taken) = &facts.taken
    {
        status.pool = Some(facts.pool.as_str().into());
        status.encryption = unlocking::reported(facts.encryption.as_deref());
        status.size = Some(Quantity::from_bytes(facts.size).0);
        status.taken_at = Some(taken.at.to_string());
        status.consistency = Some(match taken {
            Taken { frozen: true, .. } => Consistency::FileSystem,
            Taken { .. } => Consistency::Crash,
        });
        // In a field of its own: an older agent reads the consistency.
        status.memory = taken.memory.then_some(true);
    }
    if status.taken_at.is_none() && observed.moved_to.is_some() {
        status.pool.clone_from(&observed.moved_to);
    }
    status.files.clone_from(&observed.server);
    status
}
