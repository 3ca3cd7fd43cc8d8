//! The status for a decision. Pure.

use berth_api::{Disk, DiskState, DiskStatus, Readiness};
use k8s_openapi::jiff::Timestamp;

pub(super) fn status(disk: &Disk, readiness: &Option<Readiness>, now: Timestamp) -> DiskStatus {
    let mut status = disk.status.clone().unwrap_or_default();
    if let Some(readiness) = readiness {
        // Only a disk that becomes unbound again gets its status from here.
        status.binding = None;
        // A file in the folder of another host is that of this volume, for this VM.
        if status.former_host.is_none() {
            status.volume_id = None;
            status.serial = None;
            status.used_by.clear();
            status.survives_host_loss = None;
            status.host_loss_reason = None;
            let is_chosen = disk.spec.has_pool_choice() || status.default_pool.is_some();
            if is_chosen && status.size.is_none() {
                // The pool is chosen again, together with the next host.
                status.pool = None;
                status.default_pool = None;
            }
        }
        let generation = disk.metadata.generation.unwrap_or_default();
        readiness.write(&mut status.conditions, generation, now);
        status.state = Some(match readiness {
            Readiness::Stalled(..) => DiskState::Failed,
            _ => DiskState::Pending,
        });
        status.observed_generation = generation;
    }
    status
}
