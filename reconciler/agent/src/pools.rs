//! Volumes in pools that may be away: out of reach, and not lost.

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

/// Returns a volume that is within reach. None: there is none, or its pool is away.
pub(crate) async fn reachable(ctx: &Context, pool: &str, id: &str) -> Result<Option<VolumeFacts>, Error> {
    Ok(look(ctx, pool, id).await?.facts)
}
