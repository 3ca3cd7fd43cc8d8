//! IPPool: counts what is given out.

use berth_api::{IPPool, IPPoolStatus, Readiness, Reason};
use ipnet::Ipv4Net;
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
    let Some(pool) = world.ip_pools.get(key).cloned() else { return Ok(Outcome::Settled) };
    let allocated = world.index.allocated_in(key);
    let status = status(&pool, allocated, writer.now());
    writer.status(world, pool.as_ref(), status, touched).await?;
    Ok(Outcome::Settled)
}

fn status(pool: &IPPool, allocated: usize, now: Timestamp) -> IPPoolStatus {
    let mut status = pool.status.clone().unwrap_or_default();
    let generation = pool.metadata.generation.unwrap_or_default();
    let ranges = pool.spec.cidrs.iter().filter_map(|c| c.parse::<Ipv4Net>().ok());
    let size: i64 = ranges.map(|r| 1i64 << (32 - u32::from(r.prefix_len()))).sum();
    status.allocated = i64::try_from(allocated).unwrap_or(i64::MAX);
    status.free = (size - status.allocated).max(0);
    Readiness::Ready(Reason::Available, String::new()).write(&mut status.conditions, generation, now);
    status.observed_generation = generation;
    status
}
