//! StoragePool: a local pool is a folder each host makes for itself; it is ready as soon as it was looked at.

use berth_api::{Readiness, Reason, StoragePool, StoragePoolStatus};
use k8s_openapi::jiff::Timestamp;

use super::{Config, Key, World, draft::Draft, plan::Outcome};

pub(super) fn reconcile(world: &World, config: &Config, key: &Key, draft: &mut Draft) -> Outcome {
    let Some(pool) = world.storage_pools.get(key).cloned() else { return Outcome::Settled };
    let mut status = status(&pool, config.clock.now());
    status.used_by = world.listed_users(key, &status.used_by);
    draft.status(pool.as_ref(), status);
    Outcome::Settled
}

fn status(pool: &StoragePool, now: Timestamp) -> StoragePoolStatus {
    let mut status = pool.status.clone().unwrap_or_default();
    let generation = pool.metadata.generation.unwrap_or_default();
    Readiness::Ready(Reason::Available, String::new()).write(&mut status.conditions, generation, now);
    status.observed_generation = generation;
    status
}
