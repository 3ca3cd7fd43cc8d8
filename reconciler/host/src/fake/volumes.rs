//! Volumes of the fake host.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use berth_qemu::machine::DiskKey;

use crate::{
    Arrival, Fill, Merged, NewDevice, NewFetch, NewMove, NewRestore, NewSnapshot, NewTake, NewVolume,
    Progress, RemoteVolume, Result, SealedKey, SharedPool, SnapshotFacts, SystemError, Taken, TrashedVolume,
    VolumeFacts, VolumeOwner, VolumeReader, Volumes,
};

use super::FakeSystem;
use super::calls::failed;
use super::snapshots::collect;
use super::state::{State, Volume, volume_path};

#[async_trait]
impl Volumes for FakeSystem {
    /// Its folders are there or away as they are set.
    fn declare_pools(&self, _: &BTreeMap<String, Option<SharedPool>>) {}

    async fn volume(&self, pool: &str, id: &str) -> Result<Option<VolumeFacts>> {
        let work = async {
            let state = self.state();
            state.ensure_there(pool)?;
            if state.lost.contains(id) {
                return Err(SystemError::VolumeLost { id: id.to_owned() });
            }
            let found = state.volumes.get(id).filter(|volume| volume.facts.pool == pool);
            Ok(found.map(|volume| state.with_device(self.facts_of(volume))))
        };
        self.call("volume", work).await
    }

    async fn pool_of_volume(&self, id: &str) -> Result<Option<String>> {
        let work = async {
            let state = self.state();
            let pool = state.volumes.get(id).map(|volume| volume.facts.pool.clone());
            Ok(pool.filter(|pool| state.ensure_there(pool).is_ok()))
        };
        self.call("pool_of_volume", work).await
    }

    async fn check_move(&self, volume: &NewMove) -> Result<()> {
        self.call("check_move", async { self.check_relocation(volume) }).await
    }

    async fn move_volume(&self, volume: &NewMove, progress: Progress<'_>) -> Result<VolumeFacts> {
        let work = async {
            self.check_relocation(volume)?;
            progress(1, Some(1));
            self.relocate(volume)
        };
        self.call("move_volume", work).await
    }

    async fn prepared_mirror(&self, id: &str) -> Result<Option<NewMove>> {
        self.call("prepared_mirror", async { Ok(self.mirror_of(id)) }).await
    }

    async fn prepare_mirror(&self, volume: &NewMove) -> Result<VolumeFacts> {
        self.call("prepare_mirror", async { self.prepare(volume) }).await
    }

    async fn check_mirror(&self, volume: &NewMove) -> Result<()> {
        self.call("check_mirror", async { self.check_prepared(volume) }).await
    }

    async fn commit_mirror(&self, volume: &NewMove) -> Result<()> {
        self.call("commit_mirror", async { self.commit(volume) }).await
    }

    async fn settle_mirror(&self, volume: &NewMove) -> Result<()> {
        self.call("settle_mirror", async { self.settle(volume) }).await
    }

    async fn create_volume(&self, volume: &NewVolume) -> Result<VolumeFacts> {
        self.call("create_volume", async { self.make_volume(volume) }).await
    }

    async fn use_device(&self, new: &NewDevice) -> Result<VolumeFacts> {
        self.call("use_device", async { self.device_used(new) }).await
    }

    async fn create_filled_volume(
        &self,
        volume: &NewVolume,
        fill: &Fill,
        _: Progress<'_>,
    ) -> Result<VolumeFacts> {
        self.call("create_filled_volume", async { self.make_filled(volume, fill) }).await
    }

    async fn take_volume(&self, volume: &NewTake) -> Result<VolumeFacts> {
        self.call("take_volume", async { self.volume_taken(volume) }).await
    }

    async fn prepare_arriving(&self, volume: &NewTake) -> Result<VolumeFacts> {
        self.call("prepare_arriving", async { self.arriving(volume) }).await
    }

    async fn own_arriving(&self, _pool: &str, _id: &str, _instance: &str) -> Result<()> {
        self.call("own_arriving", async { Ok(()) }).await
    }

    async fn drop_arriving(&self, _pool: &str, id: &str) -> Result<()> {
        let work = async {
            self.not_arriving(id);
            Ok(())
        };
        self.call("drop_arriving", work).await
    }

    async fn arrival(&self, _pool: &str, id: &str) -> Result<Option<Arrival>> {
        self.call("arrival", async { Ok(self.arrival_of(id)) }).await
    }

    async fn fetch_volume(
        &self,
        volume: &NewFetch,
        from: Arc<dyn RemoteVolume>,
        progress: Progress<'_>,
    ) -> Result<VolumeFacts> {
        self.call("fetch_volume", self.fetched(volume, from, progress)).await
    }

    async fn open_left_volume(
        &self,
        pool: &str,
        id: &str,
        offset: u64,
    ) -> Result<Option<Box<dyn VolumeReader>>> {
        self.call("open_left_volume", async { self.left_file(pool, id, offset) }).await
    }

    async fn remove_left_volume(
        &self,
        pool: &str,
        id: &str,
        uid: Option<&str>,
        seen: Option<&Arrival>,
    ) -> Result<()> {
        self.call("remove_left_volume", async { self.remove_left(pool, id, uid, seen) }).await
    }

    async fn grow_volume(&self, _: &str, id: &str, size: u64) -> Result<VolumeFacts> {
        let work = async {
            let found = self.state().volumes.get(id).cloned();
            let volume = found.ok_or_else(|| SystemError::VolumeLost { id: id.to_owned() })?;
            let now = self.facts_of(&volume);
            if self.is_open(&now.path) {
                return Err(failed("grow", "it is open in a machine"));
            }
            if size < now.size {
                return Err(SystemError::Shrink { id: id.to_owned(), from: now.size, to: size });
            }
            self.files.put(&now.path, size);
            Ok(VolumeFacts { size, ..now })
        };
        self.call("grow_volume", work).await
    }

    fn unlock(&self, id: &str, holder: &str, key: DiskKey) -> bool {
        self.state().keys.add(id, holder, key)
    }

    fn lock(&self, id: &str, holder: &str) {
        self.state().keys.remove(id, holder);
    }

    fn keep_keys(&self, holders: &BTreeSet<String>) {
        self.state().keys.keep(holders);
    }

    /// Its works end with their futures.
    fn is_making(&self, _: &str) -> bool {
        false
    }

    fn unlocked(&self, id: &str, holder: &str) -> Option<DiskKey> {
        self.state().keys.get(id, holder)
    }

    async fn rewrap_volume(&self, _: &str, id: &str, sealed: &SealedKey) -> Result<()> {
        let work = async {
            let mut state = self.state();
            let State { volumes, snapshots, .. } = &mut *state;
            let lost = || SystemError::VolumeLost { id: id.to_owned() };
            volumes.get_mut(id).ok_or_else(lost)?.facts.encryption = Some(Box::new(sealed.clone()));
            for snapshot in snapshots.values_mut().filter(|s| s.facts.volume == id) {
                snapshot.facts.encryption = Some(Box::new(sealed.clone()));
            }
            Ok(())
        };
        self.call("rewrap_volume", work).await
    }

    async fn reserve_volume(&self, _: &str, id: &str, size: u64) -> Result<()> {
        let work = async {
            let mut state = self.state();
            let lost = || SystemError::VolumeLost { id: id.to_owned() };
            let reserved = &mut state.volumes.get_mut(id).ok_or_else(lost)?.facts.reserved;
            *reserved = Some(size.max(reserved.unwrap_or(0)));
            Ok(())
        };
        self.call("reserve_volume", work).await
    }

    async fn trash_volume(&self, pool: &str, id: &str) -> Result<()> {
        let work = async {
            self.state().ensure_there(pool)?;
            let found = self.state().volumes.get(id).map(|volume| volume.facts.path.clone());
            let path = found.unwrap_or_else(|| volume_path(pool, id));
            let open = self.is_open(&path);
            let mut state = self.state();
            if open {
                state.violations.push(format!("volume {id} moved to the trash while a machine has it open"));
            }
            let now = self.clock.now();
            state.lost.remove(id);
            if let Some(volume) = state.volumes.remove(id) {
                if volume.facts.is_device() {
                    state.give_up_device(&path);
                    return Ok(());
                }
                let size = self.files.size_of(&path).unwrap_or(0);
                self.files.remove(&path);
                state.trash.insert(id.to_owned(), (volume, size, now));
            }
            Ok(())
        };
        self.call("trash_volume", work).await
    }

    async fn restore_volume(&self, pool: &str, id: &str, owner: &VolumeOwner) -> Result<VolumeFacts> {
        let work = async {
            let mut state = self.state();
            state.ensure_there(pool)?;
            if let Some((mut volume, size, _)) = state.trash.remove(id) {
                volume.facts.owner = owner.clone();
                self.files.put(&volume.facts.path, size);
                state.volumes.insert(id.to_owned(), volume);
            }
            let volume =
                state.volumes.get(id).ok_or_else(|| SystemError::VolumeLost { id: id.to_owned() })?;
            Ok(self.facts_of(volume))
        };
        self.call("restore_volume", work).await
    }

    async fn hand_over_volume(&self, _: &str, id: &str, owner: &VolumeOwner) -> Result<()> {
        let work = async {
            let mut state = self.state();
            let lost = || SystemError::VolumeLost { id: id.to_owned() };
            let facts = &mut state.volumes.get_mut(id).ok_or_else(lost)?.facts;
            (facts.owner, facts.retained) = (owner.clone(), false);
            Ok(())
        };
        self.call("hand_over_volume", work).await
    }

    async fn retain_volume(&self, pool: &str, id: &str) -> Result<()> {
        let work = async {
            self.state().ensure_there(pool)?;
            if let Some(volume) = self.state().volumes.get_mut(id) {
                volume.facts.retained = true;
            }
            Ok(())
        };
        self.call("retain_volume", work).await
    }

    async fn purge_trash(&self, pool: &str, older_than: Duration) -> Result<Vec<String>> {
        let work = async {
            let now = self.clock.now();
            let mut state = self.state();
            state.ensure_there(pool)?;
            let over = |(volume, _, at): &(Volume, u64, jiff::Timestamp)| {
                let age = Duration::try_from(now.duration_since(*at)).unwrap_or_default();
                volume.facts.pool == pool && age >= older_than
            };
            let gone: Vec<String> =
                state.trash.iter().filter(|(_, item)| over(item)).map(|(id, _)| id.clone()).collect();
            state.trash.retain(|id, _| !gone.contains(id));
            collect(&mut state);
            Ok(gone)
        };
        self.call("purge_trash", work).await
    }

    async fn volumes(&self) -> Result<Vec<VolumeFacts>> {
        let work = async {
            let state = self.state();
            let there = state.volumes.values().filter(|v| state.ensure_there(&v.facts.pool).is_ok());
            Ok(there.map(|v| self.facts_of(v)).collect())
        };
        self.call("volumes", work).await
    }

    async fn used_bytes(&self) -> Result<BTreeMap<String, u64>> {
        self.call("used_bytes", async { Ok(self.state().used.clone()) }).await
    }

    async fn snapshot_bytes(&self) -> Result<BTreeMap<String, u64>> {
        self.call("snapshot_bytes", async { Ok(BTreeMap::new()) }).await
    }

    async fn trash(&self) -> Result<Vec<TrashedVolume>> {
        let work = async {
            let state = self.state();
            let item = |(volume, size, deleted_at): &(Volume, u64, jiff::Timestamp)| TrashedVolume {
                volume: VolumeFacts { size: *size, ..volume.facts.clone() },
                deleted_at: *deleted_at,
                rested: Duration::try_from(self.clock.now().duration_since(*deleted_at)).unwrap_or_default(),
            };
            let there = state.trash.values().filter(|(v, ..)| state.ensure_there(&v.facts.pool).is_ok());
            Ok(there.map(item).collect())
        };
        self.call("trash", work).await
    }

    async fn snapshot(&self, pool: &str, id: &str) -> Result<Option<SnapshotFacts>> {
        let work = async {
            let state = self.state();
            if state.lost.contains(id) {
                return Err(SystemError::SnapshotLost { id: id.to_owned() });
            }
            let found = state.snapshots.get(id).map(|snapshot| snapshot.facts.clone());
            // It may have been moved with its volume, and is found if that pool is there.
            let found = found.filter(|facts| state.ensure_there(&facts.pool).is_ok());
            if found.is_none() {
                state.ensure_there(pool)?;
            }
            Ok(found)
        };
        self.call("snapshot", work).await
    }

    async fn begin_snapshots(&self, new: &[NewSnapshot]) -> Result<Vec<VolumeFacts>> {
        self.call("begin_snapshots", async { self.begin_all(new) }).await
    }

    async fn check_snapshots(&self, new: &[NewSnapshot]) -> Result<()> {
        self.call("check_snapshots", async { self.check(new) }).await
    }

    async fn prepare_in_ceph(&self, _: &[NewSnapshot], _: bool) -> Result<()> {
        self.call("prepare_in_ceph", async { Ok(()) }).await
    }

    async fn take_closed(&self, _: &[NewSnapshot]) -> Result<()> {
        self.call("take_closed", async { Ok(()) }).await
    }

    async fn is_as_in_snapshot(&self, _: &str, volume: &str, snapshot: &str) -> Result<bool> {
        let work = async {
            let state = self.state();
            let (volume, snapshot) = (state.volumes.get(volume), state.snapshots.get(snapshot));
            Ok(volume.zip(snapshot).is_some_and(|(volume, snapshot)| {
                volume.facts.backing.as_ref() == Some(&snapshot.backing)
                    && !state.opened.contains(&volume.facts.path)
            }))
        };
        self.call("is_as_in_snapshot", work).await
    }

    async fn restore_snapshot(&self, restore: &NewRestore) -> Result<VolumeFacts> {
        self.call("restore_snapshot", async { self.restore(restore) }).await
    }

    fn keep_snapshots(&self, _: &BTreeSet<String>) {
        // It has no pools in Ceph.
    }

    async fn merge_snapshots(&self, kept: &BTreeSet<String>) -> Result<Option<Merged>> {
        self.call("merge_snapshots", async { Ok(self.merge(kept)) }).await
    }

    async fn finish_restore(&self, _: &str, _: &str) -> Result<()> {
        self.call("finish_restore", async { Ok(()) }).await
    }

    async fn finish_snapshot(&self, _: &str, id: &str, taken: &Taken) -> Result<SnapshotFacts> {
        self.call("finish_snapshot", async { self.finish(id, taken) }).await
    }

    async fn hand_over_snapshot(&self, _: &str, id: &str, owner: &VolumeOwner) -> Result<()> {
        let work = async {
            let mut state = self.state();
            let lost = || SystemError::SnapshotLost { id: id.to_owned() };
            state.snapshots.get_mut(id).ok_or_else(lost)?.facts.owner = Some(owner.clone());
            Ok(())
        };
        self.call("hand_over_snapshot", work).await
    }

    async fn delete_snapshot(&self, _: &str, id: &str) -> Result<()> {
        let work = async {
            let mut state = self.state();
            let Some(snapshot) = state.snapshots.get(id) else { return Ok(()) };
            let pending = |v: &Volume| v.facts.pending_snapshot.as_deref() == Some(id);
            if state.volumes.values().any(pending) {
                let detail = "the snapshot has to be finished first";
                return Err(SystemError::VolumeBusy { id: snapshot.facts.volume.clone(), detail });
            }
            if let Some(snapshot) = state.snapshots.get_mut(id) {
                snapshot.facts.owner = None;
                // One that was begun only is not the base of anything yet.
                snapshot.facts.taken.get_or_insert(Taken {
                    at: self.clock.now(),
                    frozen: false,
                    memory: false,
                });
            }
            collect(&mut state);
            if !state.snapshots.contains_key(id) {
                state.lost.remove(id);
            }
            Ok(())
        };
        self.call("delete_snapshot", work).await
    }
}
