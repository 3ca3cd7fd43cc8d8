//! The StoragePool controller: a local pool is a folder that each host creates itself; it is ready once reconciled.

use berth_api::{Readiness, Reason, StoragePool, StoragePoolStatus};
use k8s_openapi::jiff::Timestamp;

use crate::{batch::WriteBatch, cache::Cache, config::Config, key::Key, plan::Outcome};

pub(crate) fn reconcile(cache: &Cache, config: &Config, key: &Key, batch: &mut WriteBatch) -> Outcome {
    let Some(pool) = cache.tables.storage_pools.get(key).cloned() else { return Outcome::Settled };
    let mut status = status(&pool, config.clock.now());
    let users = cache.listed_users(key, &status.used_by);
    status.used_by.clone_from(&users);
    batch.used(pool.as_ref(), status, &users, config.clock.now());
    Outcome::Settled
}

fn status(pool: &StoragePool, now: Timestamp) -> StoragePoolStatus {
    let mut status = pool.status.clone().unwrap_or_default();
    let generation = pool.metadata.generation.unwrap_or_default();
    Readiness::Ready(Reason::Available, String::new()).write(&mut status.conditions, generation, now);
    status.observed_generation = generation;
    status
}
