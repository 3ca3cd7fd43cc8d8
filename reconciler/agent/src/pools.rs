//! Volumes in pools that may be away: out of reach, and not lost.

use std::collections::BTreeMap;

use berth_api::{Disk, StoragePool, StoragePoolType};
use berth_host::{SharedPool, SystemError, VolumeFacts};

use crate::context::Context;
use crate::error::Error;

/// A volume as it is seen now.
#[derive(Clone, Debug, Default)]
pub(crate) struct SeenVolume {
    pub(crate) facts: Option<VolumeFacts>,
    /// Why its pool is away: whether there is a volume is not known.
    pub(crate) away: Option<String>,
    /// Whether the host has a record of it, and its file is gone.
    pub(crate) is_lost: bool,
}

/// Has the host treat the folders of pools as the site declares them.
pub(crate) fn declare(ctx: &Context) {
    let host = ctx.host();
    let pools: BTreeMap<String, Option<SharedPool>> = {
        let tables = ctx.index.read();
        tables.pools.all().map(|(name, pool)| (name.name.clone(), shared(pool, host))).collect()
    };
    ctx.system.declare_pools(&pools);
}

fn shared(pool: &StoragePool, host: &str) -> Option<SharedPool> {
    if !pool.spec.pool_type.is_shared() {
        return None;
    }
    let folder = pool.status.as_ref().and_then(|status| status.shared.as_ref());
    let marks = folder.is_some_and(|of| !of.initialized && of.first_host.as_deref() == Some(host));
    let is_rbd = pool.spec.pool_type == StoragePoolType::Rbd;
    Some(SharedPool { id: folder.map(|of| of.id.clone()), host: host.to_owned(), marks, is_rbd })
}

/// Looks for a volume.
pub(crate) async fn look(ctx: &Context, pool: &str, id: &str) -> Result<SeenVolume, Error> {
    declare(ctx);
    match ctx.system.volume(pool, id).await {
        Ok(facts) => Ok(SeenVolume { facts, ..SeenVolume::default() }),
        Err(error @ SystemError::PoolAway { .. }) => {
            Ok(SeenVolume { away: Some(error.to_string()), ..SeenVolume::default() })
        }
        Err(SystemError::VolumeLost { .. }) => Ok(SeenVolume { is_lost: true, ..SeenVolume::default() }),
        Err(error) => Err(error.into()),
    }
}

/// Returns a volume; none if its file is lost.
///
/// *Errors*: also if its pool is away.
pub(crate) async fn present(ctx: &Context, pool: &str, id: &str) -> Result<Option<VolumeFacts>, SystemError> {
    match ctx.system.volume(pool, id).await {
        Err(SystemError::VolumeLost { .. }) => Ok(None),
        found => found,
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

#[cfg(test)]
mod tests {
    use berth_api::{SharedFolder, StoragePoolSpec, StoragePoolStatus};

    use super::*;

    #[test]
    fn a_pool_of_ceph_is_one_that_hosts_share_and_no_folder() {
        let of = |pool_type| {
            let mut pool =
                StoragePool::new("fast", StoragePoolSpec { pool_type, ..StoragePoolSpec::default() });
            let folder = SharedFolder { id: "u".into(), first_host: Some("a".into()), initialized: false };
            pool.status = Some(StoragePoolStatus { shared: Some(folder), ..StoragePoolStatus::default() });
            shared(&pool, "a").map(|shared| (shared.id, shared.marks, shared.is_rbd))
        };
        assert_eq!(of(StoragePoolType::Local), None);
        assert_eq!(of(StoragePoolType::Shared), Some((Some("u".to_owned()), true, false)));
        assert_eq!(of(StoragePoolType::Rbd), Some((Some("u".to_owned()), true, true)));
    }
}
