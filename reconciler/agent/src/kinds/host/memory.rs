//! The memory of guests that no snapshot needs any more.

use std::collections::BTreeSet;

use berth_api::DiskSnapshot;

use crate::context::Context;
use crate::error::Error;
use crate::key::ObjectName;

/// Returns the identities of states that are kept for snapshots that are gone: their objects were deleted without the finalizer, before the
/// snapshots were begun. That of a snapshot whose files are here stays with them, as an orphan.
pub(super) async fn lost(ctx: &Context) -> Result<Vec<String>, Error> {
    let kept = ctx.system.kept_states().await?;
    if kept.is_empty() {
        return Ok(Vec::new());
    }
    let Some((declared, pools)) = declared(ctx) else { return Ok(Vec::new()) };
    let mut lost = Vec::new();
    for id in kept.into_iter().filter(|id| !declared.contains(id)) {
        if !is_on_disk(ctx, &pools, &id).await {
            lost.push(id);
        }
    }
    Ok(lost)
}

/// Returns the identities of the snapshots bound here, and the pools. None: not all are known (again), as in a recovery.
fn declared(ctx: &Context) -> Option<(BTreeSet<String>, Vec<String>)> {
    let tables = ctx.index.read();
    let host = tables.hosts.get(&ObjectName::new("", ctx.host()))?;
    let has_looked = host.status.as_ref().is_some_and(|status| status.inventory.is_some());
    if !has_looked || host.spec.recovery.is_some() {
        return None;
    }
    let id = |snapshot: &DiskSnapshot| snapshot.status.as_ref()?.snapshot_id.clone();
    // Those that were deleted without their finalizer are brought down under their own keys.
    let departed = tables.departed_snapshots.all().filter_map(|snapshot| id(snapshot));
    let here = tables.disk_snapshots.all().filter_map(|(_, snapshot)| id(snapshot));
    let pools = tables.pools.all().map(|(name, _)| name.name.clone()).collect();
    Some((here.chain(departed).collect(), pools))
}

/// Whether a pool has the snapshot of an object, or may have it.
async fn is_on_disk(ctx: &Context, pools: &[String], id: &str) -> bool {
    for pool in pools {
        match ctx.system.snapshot(pool, id).await {
            Ok(facts) if facts.as_ref().is_none_or(|facts| facts.owner.is_none()) => {}
            Ok(_) | Err(_) => return true,
        }
    }
    false
}
