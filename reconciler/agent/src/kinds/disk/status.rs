//! Status of a disk. Pure.

use berth_api::{Disk, DiskRestored, DiskState, DiskStatus, Quantity, Readiness};
use jiff::Timestamp;

use super::encryption;
use super::observe::Observed;
use crate::converge::held_conditions;
use crate::disk_use::amount;

pub(super) fn status(disk: &Disk, observed: &Observed, readiness: &Readiness, now: Timestamp) -> DiskStatus {
    let mut status = disk.status.clone().unwrap_or_default();
    let generation = disk.metadata.generation.unwrap_or(0);
    status.observed_generation = generation;
    readiness.write(&mut status.conditions, generation, now);
    status.used_by.clone_from(&observed.users);
    // A known size is kept when the file is lost: it distinguishes a lost disk from a new one.
    status.pool = observed.volume.as_ref().map(|volume| volume.pool.as_str().into()).or(status.pool);
    status.default_pool = observed.default_pool.clone().or(status.default_pool);
    // A block device that is gone has none.
    let there = observed.volume.as_ref().filter(|volume| volume.problem.is_none() || volume.size > 0);
    let size = observed.open_size.or(there.map(|volume| volume.size));
    if let Some(size) = size {
        status.size = Some(Quantity::from_bytes(size).0);
        let used = observed.used.map(|used| amount(used, size, status.used.as_deref()));
        status.used = used.or(status.used);
    }
    if let Some(volume) = &observed.volume {
        status.continues_snapshots = volume.continues_snapshots().then_some(true);
    }
    // While its VM leaves this host, it is named itself.
    let is_own = status.former_host.as_ref() == status.binding.as_ref().map(|binding| &binding.host);
    if observed.volume.is_some() && !is_own {
        // It is this host's from now on.
        status.former_host = None;
    }
    if let Some(last) = observed.volume.as_ref().and_then(|volume| volume.restores.last()) {
        let restored = DiskRestored {
            snapshot: last.declared.name.as_str().into(),
            snapshot_id: last.snapshot.clone(),
            token: last.declared.token.clone(),
            restored_at: last.at.to_string(),
        };
        status.restored_from = Some(Box::new(restored));
    }
    if observed.away.is_none() {
        encryption::report(disk, observed, &mut status.conditions, now);
    }
    // That of a lost file is kept, as its size is.
    status.encryption = encryption::reported(disk, observed).or(status.encryption);
    status.state = Some(state(disk, observed, readiness));
    if let Some(facts) = &observed.leave_facts {
        let (metadata, spec) = (disk.metadata.clone(), disk.spec.clone());
        let reported = Disk { metadata, spec, status: Some(status.clone()) };
        let why = reported.lost_because(facts);
        status.survives_host_loss = Some(why.is_none());
        status.host_loss_reason = why.map(|why| format!("it {why}"));
    }
    status
}

/// Returns the status with its progress as stored: no reader waits for anything between the bound disk and its file, which
/// is reported by its size, before any machine uses it.
pub(super) fn without_progress(stored: &DiskStatus, status: &DiskStatus) -> DiskStatus {
    let conditions = held_conditions(&stored.conditions, &status.conditions);
    if conditions != stored.conditions {
        return status.clone();
    }
    DiskStatus { conditions, state: stored.state, ..status.clone() }
}

fn state(disk: &Disk, observed: &Observed, readiness: &Readiness) -> DiskState {
    if disk.metadata.deletion_timestamp.is_some() {
        return DiskState::Terminating;
    }
    match (&observed.volume, readiness) {
        (_, Readiness::Stalled(..)) => DiskState::Failed,
        (None, _) => DiskState::Creating,
        (Some(_), _) if observed.users.is_empty() => DiskState::Available,
        (Some(_), _) => DiskState::InUse,
    }
}
