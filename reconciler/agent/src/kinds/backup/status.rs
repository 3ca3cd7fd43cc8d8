//! Status of a backup. Pure.

use berth_api::{Backup, BackupStatus, Consistency, Quantity, Readiness};
use berth_host::BackupFacts;
use jiff::Timestamp;

use super::observe::Observed;
use super::verification;
use crate::pulls::{Pull, percent};

pub(super) fn status(
    backup: &Backup,
    observed: &Observed,
    readiness: &Readiness,
    now: Timestamp,
) -> BackupStatus {
    let mut status = backup.status.clone().unwrap_or_default();
    let generation = backup.metadata.generation.unwrap_or(0);
    status.observed_generation = generation;
    readiness.write(&mut status.conditions, generation, now);
    status.progress = match &observed.pull {
        Some(Pull::Running { done, total, .. })
            if backup.metadata.deletion_timestamp.is_none() && !backup.is_complete() =>
        {
            percent(*done, *total)
        }
        _ => None,
    };
    if backup.is_complete() && backup.metadata.deletion_timestamp.is_none() {
        verification::write(&mut status, observed.pull.as_ref(), generation, now);
    }
    if let Some(Pull::Stored(facts)) = &observed.pull
        && status.completed_at.is_none()
    {
        complete(&mut status, facts, now);
    }
    status.files = observed.server.clone().filter(|_| status.completed_at.is_some());
    status
}

fn complete(status: &mut BackupStatus, facts: &BackupFacts, now: Timestamp) {
    let number = |bytes: Option<u64>| bytes.map(|bytes| i64::try_from(bytes).unwrap_or(i64::MAX));
    status.repository_id = Some(facts.repository.clone());
    status.size = Some(Quantity::from_bytes(facts.size).0);
    if let Some(taken) = &facts.taken {
        status.taken_at = Some(taken.at.to_string());
        status.consistency = Some(if taken.frozen { Consistency::FileSystem } else { Consistency::Crash });
    }
    (status.read_bytes, status.stored_bytes) = (number(facts.read_bytes), number(facts.stored_bytes));
    status.parent_backup.clone_from(&facts.parent);
    status.completed_at = Some(now.to_string());
}
