//! The space that the images of this host's volumes take in a pool of Ceph, without the copies of the data, as `rbd du` counts it.
//!
//! Ceph counts whole objects, by their state (`fast-diff`), so one question costs little. An image without a valid state is not measured:
//! Ceph would look at each of its objects. One image is measured at a time, each within a limit, and what is known is returned meanwhile.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::client::{Client, PATIENCE, is_absent};
use super::replies::{self, ImageUsage};
use super::{RbdPool, RbdPools, Result, locked};
use crate::SystemError;

/// How long a caller waits for a measurement, which then goes on by itself: the next caller has the rest of it.
const WAIT: Duration = Duration::from_secs(5);
/// How long Ceph may take to count the objects of one image.
const COUNT: Duration = Duration::from_secs(30);

/// The last measurement, by volume.
pub(super) type Usage = BTreeMap<String, ImageUsage>;

impl RbdPools {
    /// Measures the volumes of all pools, also those in the trash, and returns the bytes that each takes: of those that take long, the ones
    /// of the measurement before.
    pub(in super::super) async fn used_bytes(&self) -> BTreeMap<String, u64> {
        let pools: Vec<_> = self.all().cloned().collect();
        let measured = pools.into_iter().map(|pool| async move { pool.measure_soon().await });
        futures::future::join_all(measured).await;
        self.all().flat_map(|pool| used_by_volumes(&locked(&pool.usage))).collect()
    }

    /// Returns the bytes that the snapshots of these volumes took at the last measurement, by the identity of the snapshot.
    pub(in super::super) fn snapshot_bytes(&self) -> BTreeMap<String, u64> {
        self.all().flat_map(|pool| used_by_snapshots(&locked(&pool.usage))).collect()
    }
}

impl RbdPool {
    /// Begins a measurement, unless one goes on, and waits a little for its end.
    async fn measure_soon(self: &Arc<Self>) {
        let Ok(alone) = Arc::clone(&self.measuring).try_lock_owned() else { return };
        let pool = Arc::clone(self);
        let measured = tokio::spawn(async move {
            if let Err(error) = pool.measure_images().await {
                tracing::debug!(pool = pool.mapping.pool, error = error.chain(), "images not measured");
            }
            drop(alone);
        });
        let _ = tokio::time::timeout(WAIT, measured).await;
    }

    async fn measure_images(&self) -> Result<()> {
        self.ensure_there().await?;
        let mut notes = self.notes().await?;
        notes.retain(|note| note.complete && !note.removing);
        locked(&self.usage).retain(|id, _| notes.iter().any(|note| note.volume_id == *id));
        for note in notes {
            let id = &note.volume_id;
            let found = match self.owns(&note).await? {
                true => self.usage_of(id).await,
                false => Ok(None),
            };
            match found {
                Ok(Some(found)) => drop(locked(&self.usage).insert(id.clone(), found)),
                Ok(None) => drop(locked(&self.usage).remove(id)),
                // The others would wait for the cluster as long.
                Err(error @ SystemError::PoolAway { .. }) => return Err(error),
                Err(error) => tracing::debug!(volume = id, error = error.chain(), "image not measured"),
            }
        }
        Ok(())
    }

    /// Returns the space of the image of a volume. None: there is no image, or Ceph does not know which objects it has.
    ///
    /// *Errors*: [`SystemError::VolumeBusy`] if Ceph takes too long to count, though it answers.
    async fn usage_of(&self, id: &str) -> Result<Option<ImageUsage>> {
        let spec = self.spec(&Self::name_of(id));
        let info = self.rbd(&["info", "--format", "json", &spec]).await?;
        match info.ok {
            true if replies::has_fast_diff(&info.stdout).map_err(Self::not_understood)? => {}
            false if !is_absent(&info) => return Err(Client::failed(&info)),
            _ => return Ok(None),
        }
        // The limit of the client comes later: a count that takes long does not mean that the pool is away.
        let args = ["du", "--format", "json", &spec];
        let counted = tokio::time::timeout(COUNT, self.rbd_within(&args, COUNT + PATIENCE)).await;
        let Ok(counted) = counted else {
            return Err(SystemError::VolumeBusy { id: id.to_owned(), detail: "Ceph counts its objects" });
        };
        let counted = counted?;
        match counted.ok {
            true => replies::usage(&counted.stdout).map(Some).map_err(Self::not_understood),
            false if is_absent(&counted) => Ok(None),
            false => Err(Client::failed(&counted)),
        }
    }
}

fn used_by_volumes(usage: &Usage) -> Vec<(String, u64)> {
    usage.iter().map(|(id, of)| (id.clone(), of.used)).collect()
}

fn used_by_snapshots(usage: &Usage) -> Vec<(String, u64)> {
    usage.values().flat_map(|of| of.snapshots.iter().map(|(id, used)| (id.clone(), *used))).collect()
}

#[cfg(test)]
mod tests {
    use super::super::super::layout::Layout;
    use super::*;
    use crate::CephAccess;

    #[tokio::test]
    async fn amounts_of_the_last_measurement_stay_while_the_pool_is_away() {
        let folder = tempfile::tempdir().expect("a folder");
        let mapping = "fast=vms".parse().expect("a mapping");
        let (layout, access) = (Layout::new(folder.path()), CephAccess::default());
        let pools = RbdPools::open(&layout, &[mapping], &[], &access, None).expect("opened");
        assert!(pools.used_bytes().await.is_empty() && pools.snapshot_bytes().is_empty());
        let pool = pools.get("fast").expect("there");
        let snapshots = BTreeMap::from([("s-1".to_owned(), 8 << 20)]);
        locked(&pool.usage).insert("v-1".to_owned(), ImageUsage { used: 4 << 20, snapshots });
        assert_eq!(pools.used_bytes().await, BTreeMap::from([("v-1".to_owned(), 4 << 20)]));
        assert_eq!(pools.snapshot_bytes(), BTreeMap::from([("s-1".to_owned(), 8 << 20)]));
    }

    #[tokio::test]
    async fn one_measurement_of_a_pool_goes_on_at_a_time() {
        let folder = tempfile::tempdir().expect("a folder");
        let mapping = "fast=vms".parse().expect("a mapping");
        let (layout, access) = (Layout::new(folder.path()), CephAccess::default());
        let pools = RbdPools::open(&layout, &[mapping], &[], &access, None).expect("opened");
        let pool = pools.get("fast").expect("there");
        let alone = Arc::clone(&pool.measuring).try_lock_owned().expect("none goes on");
        let asked = tokio::time::timeout(WAIT, pools.used_bytes()).await.expect("it waits for none");
        assert!(asked.is_empty());
        drop(alone);
    }
}
