//! Volumes in pools that may be away: out of reach, and not lost.

use berth_api::Disk;
use berth_host::{SystemError, VolumeFacts};

use crate::context::Context;
use crate::error::Error;

/// A volume as it is seen now.
#[derive(Clone, Debug, Default)]
pub(crate) struct SeenVolume {
    pub(crate) facts: Option<VolumeFacts>,
    /// Why its pool is away: whether there is a volume is not known.
    pub(crate) away: Option<String>,
}

/// Looks for a volume.
pub(crate) async fn look(ctx: &Context, pool: &str, id: &str) -> Result<SeenVolume, Error> {
    match ctx.system.volume(pool, id).await {
        Ok(facts) => Ok(SeenVolume { facts, away: None }),
        Err(error @ SystemError::PoolAway { .. }) => {
            Ok(SeenVolume { facts: None, away: Some(error.to_string()) })
        }
        Err(error) => Err(error.into()),
    }
}

/// Looks for the volume of a Disk, in the pool that is reported and then in the others: it may have been moved before a crash.
pub(crate) async fn look_everywhere(ctx: &Context, disk: &Disk, id: &str) -> Result<SeenVolume, Error> {
    let seen = look(ctx, disk.pool().as_str(), id).await?;
    if seen.facts.is_some() || seen.away.is_some() {
        return Ok(seen);
    }
    match ctx.system.pool_of_volume(id).await? {
        Some(pool) => look(ctx, &pool, id).await,
        None => Ok(seen),
    }
}

/// Returns a volume that is within reach. None: there is none, or its pool is away.
pub(crate) async fn reachable(ctx: &Context, pool: &str, id: &str) -> Result<Option<VolumeFacts>, Error> {
    Ok(look(ctx, pool, id).await?.facts)
}
