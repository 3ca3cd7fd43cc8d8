//! Observation of a snapshot.

use std::collections::BTreeSet;
use std::time::Duration;

use berth_api::vm::ConsoleAddress;
use berth_api::{DiskSnapshot, DiskSnapshotStatus, ResourceName};
use berth_host::{SnapshotFacts, SystemError};

use super::parts::{self, Parts};
use crate::context::Context;
use crate::error::Error;
use crate::index::left_on;
use crate::key::ObjectName;
use crate::pools;
use crate::restores;
use crate::unlocking;

/// Everything a snapshot's plan is made from.
#[derive(Clone, Debug, Default)]
pub(crate) struct Observed {
    pub(crate) snapshot: Option<SnapshotFacts>,
    /// Why its pool is away. Nothing else is known then.
    pub(crate) away: Option<String>,
    /// Whether this host has a record that it was taken, and its data is gone.
    pub(crate) is_lost: bool,
    /// Whether another host has the data of its disk still, which comes here; only checked for one that is not taken.
    pub(crate) is_elsewhere: bool,
    /// Whether the volume that it is taken of is there; only checked for one that is not taken.
    pub(crate) has_volume: bool,
    /// The pool that the volume was moved to before the snapshot was begun, by a move that the Disk did not report when it was bound.
    pub(crate) moved_to: Option<ResourceName>,
    /// The parts of a VMSnapshot that it is taken with; only read for one that is not taken.
    pub(crate) parts: Option<Parts>,
    /// The VM whose restore has begun and needs it; only observed of one that is being deleted.
    pub(crate) held_by: Option<String>,
    /// When to look for its key again, or whether that is still there. None: it is not encrypted.
    pub(crate) look_again: Option<Duration>,
    /// The server that clients read a taken one from. None: this host has none.
    pub(crate) server: Option<ConsoleAddress>,
}

pub(super) async fn observe(ctx: &Context, snapshot: &DiskSnapshot) -> Result<Observed, Error> {
    let Some(status) = &snapshot.status else { return Ok(Observed::default()) };
    let (Some(id), Some(volume), Some(pool)) = (&status.snapshot_id, &status.volume_id, &status.pool) else {
        return Ok(Observed::default());
    };
    let (found, is_lost) = match look(ctx, snapshot, status, (pool, id.as_str())).await {
        Err(error @ SystemError::PoolAway { .. }) => {
            return Ok(Observed { away: Some(error.to_string()), ..Observed::default() });
        }
        Err(SystemError::SnapshotLost { .. }) => (None, true),
        found => (found?, false),
    };
    let is_taken = found.as_ref().is_some_and(|found| found.taken.is_some());
    // Backups need it, also once the disk is gone.
    let sealed = found.as_ref().and_then(|found| found.encryption.as_deref());
    let look_again = unlocking::unlock_snapshot(ctx, id, sealed).await;
    let is_untaken = !is_taken && !is_lost;
    let is_elsewhere = is_untaken && !has_data(ctx, snapshot);
    let is_looked_for = is_untaken && !is_elsewhere;
    let has_volume = is_looked_for && pools::present(ctx, pool.as_str(), volume).await?.is_some();
    let moved_to = match found.is_none() && is_looked_for && !has_volume {
        true => ctx.system.pool_of_volume(volume).await?.map(ResourceName),
        false => None,
    };
    let parts = if is_untaken { parts::observe(ctx, snapshot).await? } else { None };
    let held_by = match snapshot.metadata.deletion_timestamp {
        Some(_) => restores::holds(ctx, snapshot).await?,
        None => None,
    };
    let server = ctx.config.console.as_ref().filter(|_| is_taken).map(|own| own.published());
    Ok(Observed {
        snapshot: found,
        away: None,
        is_lost,
        is_elsewhere,
        has_volume,
        moved_to,
        parts,
        held_by,
        look_again,
        server,
    })
}

/// Returns the snapshot. One that was taken, and is not in its pool any more, has perhaps moved with its disk to a pool that is away now: it
/// is neither lost nor deleted.
///
/// *Errors*: [`SystemError::SnapshotLost`], [`SystemError::PoolAway`].
async fn look(
    ctx: &Context,
    snapshot: &DiskSnapshot,
    status: &DiskSnapshotStatus,
    (pool, id): (&ResourceName, &str),
) -> Result<Option<SnapshotFacts>, SystemError> {
    let found = match ctx.system.snapshot(pool.as_str(), id).await {
        Err(lost @ SystemError::SnapshotLost { .. }) => Err(lost),
        found => Ok(found?),
    };
    let is_owned = matches!(&found, Ok(Some(facts)) if facts.owner.is_some());
    if is_owned || status.taken_at.is_none() {
        return found;
    }
    let name = ObjectName::of(snapshot).beside(snapshot.spec.disk.as_str());
    let disk = ctx.index.read().disks.get(&name);
    let mut others = BTreeSet::new();
    if let Some(disk) = &disk {
        others.extend([disk.pool().clone(), disk.target_pool().clone()]);
    }
    others.remove(pool);
    for other in others {
        let there = ctx.system.snapshot(other.as_str(), id).await?;
        if there.as_ref().is_some_and(|facts| facts.owner.is_some()) {
            return Ok(there);
        }
    }
    found
}

/// Whether this host has the data of the disk: a file that is here may be an earlier one while another host has it.
fn has_data(ctx: &Context, snapshot: &DiskSnapshot) -> bool {
    let name = ObjectName::of(snapshot).beside(snapshot.spec.disk.as_str());
    let disk = ctx.index.read().disks.get(&name);
    disk.is_none_or(|disk| left_on(&disk, ctx.host()).is_none())
}
