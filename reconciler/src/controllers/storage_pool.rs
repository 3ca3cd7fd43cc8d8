//! StoragePool: a local pool is a folder each host makes for itself; it is ready as soon as it was looked at.

use berth_api::{Readiness, Reason, StoragePool, StoragePoolStatus};
use k8s_openapi::jiff::Timestamp;

use super::{
    Key, World,
    apply::{WriteError, Writer},
    plan::Outcome,
};

pub(super) async fn reconcile(
    world: &mut World,
    writer: &Writer,
    key: &Key,
    touched: &mut Vec<Key>,
) -> Result<Outcome, WriteError> {
    let Some(pool) = world.storage_pools.get(key).cloned() else { return Ok(Outcome::Settled) };
    let mut status = status(&pool, writer.now());
    status.used_by = world.listed_users(key, &status.used_by);
    writer.status(world, pool.as_ref(), status, touched).await?;
    Ok(Outcome::Settled)
}

fn status(pool: &StoragePool, now: Timestamp) -> StoragePoolStatus {
    let mut status = pool.status.clone().unwrap_or_default();
    let generation = pool.metadata.generation.unwrap_or_default();
    Readiness::Ready(Reason::Available, String::new()).write(&mut status.conditions, generation, now);
    status.observed_generation = generation;
    status
}
