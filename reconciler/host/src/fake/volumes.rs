//! Volumes of the fake host.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use berth_qemu::machine::{Backing, DiskKey};

use crate::{
    Arrival, Fill, Merged, NewFetch, NewMove, NewRestore, NewSnapshot, NewTake, NewVolume, Progress,
    RemoteVolume, Result, SealedKey, SharedPool, SnapshotFacts, SystemError, Taken, TrashedVolume,
    VolumeFacts, VolumeOwner, VolumeReader, Volumes,
};

use super::FakeSystem;
use super::calls::failed;
use super::state::{Snapshot, State, Volume, volume_path};

impl FakeSystem {
    fn begin_all(&self, all: &[NewSnapshot]) -> Result<Vec<VolumeFacts>> {
        self.check(all)?;
        let mut state = self.state();
        all.iter().map(|new| self.begin(&mut state, new)).collect()
    }

    fn check(&self, all: &[NewSnapshot]) -> Result<()> {
        let state = self.state();
        let is_taken = |new: &NewSnapshot| {
            state.snapshots.get(&new.id).is_some_and(|snapshot| snapshot.facts.taken.is_some())
        };
        let is_new = |new: &&NewSnapshot| !state.snapshots.contains_key(&new.id);
        if let Some(taken) =
            all.iter().find(|new| is_taken(new)).filter(|_| all.iter().any(|new| is_new(&new)))
        {
            return Err(SystemError::NotOneMoment { id: taken.volume.clone() });
        }
        for new in all.iter().filter(is_new) {
            let lost = || SystemError::VolumeLost { id: new.volume.clone() };
            let volume = state.volumes.get(&new.volume).ok_or_else(lost)?;
            if volume.facts.is_shared() {
                let why = "several VMs write to it: it has no snapshots and no copies";
                return Err(SystemError::Invalid { what: "volume", value: new.volume.clone(), why });
            }
            if volume.facts.pending_snapshot.is_some() {
                let detail = "another snapshot of it is being taken";
                return Err(SystemError::VolumeBusy { id: new.volume.clone(), detail });
            }
        }
        Ok(())
    }

    fn begin(&self, state: &mut State, new: &NewSnapshot) -> Result<VolumeFacts> {
        let lost = || SystemError::VolumeLost { id: new.volume.clone() };
        let volume = state.volumes.get(&new.volume).cloned().ok_or_else(lost)?;
        let now = self.facts_of(&volume);
        if state.snapshots.contains_key(&new.id) {
            return Ok(now);
        }
        let backing = Backing {
            file: now.path.clone(),
            format: now.format,
            backing: now.backing.clone().map(Box::new),
        };
        state.keys.key_of(&new.volume, now.encryption.as_deref())?;
        // As many numbers as there ever were files.
        let mut paths =
            (1..).map(|number: u32| now.path.with_file_name(format!("{}.{number}.qcow2", new.volume)));
        let path = paths.find(|path| self.files.size_of(path).is_none()).expect("numbers do not run out");
        self.files.put(&path, now.size);
        let facts = SnapshotFacts {
            encryption: now.encryption.clone(),
            pool: new.pool.clone(),
            id: new.id.clone(),
            volume: new.volume.clone(),
            size: now.size,
            owner: new.owner.clone(),
            taken: None,
        };
        state.snapshots.insert(new.id.clone(), Snapshot { facts, backing: backing.clone() });
        let facts = VolumeFacts {
            path,
            backing: Some(backing),
            pending_snapshot: Some(new.id.clone()),
            reserved: now.reserved.map(|_| 0),
            ..now
        };
        state.volumes.insert(new.volume.clone(), Volume { facts: facts.clone() });
        Ok(facts)
    }

    fn finish(&self, id: &str, taken: &Taken) -> Result<SnapshotFacts> {
        let lost = || SystemError::SnapshotLost { id: id.to_owned() };
        let file = self.state().snapshots.get(id).ok_or_else(lost)?.backing.file.clone();
        let is_written = self.is_open(&file);
        let mut state = self.state();
        let snapshot = state.snapshots.get_mut(id).ok_or_else(lost)?;
        if snapshot.facts.taken.is_none() {
            if is_written {
                let detail = "a running QEMU has not been switched to its new file";
                return Err(SystemError::VolumeBusy { id: snapshot.facts.volume.clone(), detail });
            }
            snapshot.facts.taken = Some(taken.clone());
            snapshot.facts.size = self.files.size_of(&file).unwrap_or(0);
        }
        let facts = snapshot.facts.clone();
        if let Some(volume) = state.volumes.get_mut(&facts.volume) {
            volume.facts.pending_snapshot = None;
        }
        Ok(facts)
    }
}

impl FakeSystem {
    fn restore(&self, new: &NewRestore) -> Result<VolumeFacts> {
        let lost = || SystemError::VolumeLost { id: new.volume.clone() };
        let found = self.state().volumes.get(&new.volume).cloned().ok_or_else(lost)?;
        let now = self.facts_of(&found);
        if new.is_done(&now.restores) {
            return Ok(now);
        }
        let is_open = self.is_open(&now.path);
        let mut state = self.state();
        if is_open {
            state.violations.push(format!("volume {} restored while a machine has it open", new.volume));
        }
        let taken = state.snapshots.get(&new.snapshot).filter(|s| s.facts.taken.is_some()).cloned();
        let snapshot = taken.ok_or_else(|| SystemError::SnapshotLost { id: new.snapshot.clone() })?;
        let begun = |s: &Snapshot| s.facts.volume == new.volume && s.facts.taken.is_none();
        if state.snapshots.values().any(begun) {
            let detail = "a snapshot of it is being taken";
            return Err(SystemError::VolumeBusy { id: new.volume.clone(), detail });
        }
        let former = format!("{}-former-{}", new.volume, now.restores.len());
        let path = now.path.with_file_name(format!("{}.r{}.qcow2", new.volume, now.restores.len() + 1));
        self.files.put(&path, new.size.max(snapshot.facts.size));
        self.files.remove(&now.path);
        let aside = VolumeFacts {
            id: former.clone(),
            path: volume_path(&new.pool, &former),
            restores: Vec::new(),
            ..now.clone()
        };
        let at = self.clock.now();
        state.trash.insert(former, (Volume { facts: aside }, now.size, at));
        let restores = new.added_to(now.restores.clone(), at);
        let reserved = now.reserved.map(|_| 0);
        let facts =
            VolumeFacts { path, base: None, backing: Some(snapshot.backing), restores, reserved, ..now };
        state.volumes.insert(new.volume.clone(), Volume { facts });
        let volume = state.volumes.get(&new.volume).cloned().ok_or_else(lost)?;
        drop(state);
        Ok(self.facts_of(&volume))
    }
}

impl FakeSystem {
    /// Merges one deleted snapshot with the only one that is based on it.
    fn merge(&self, kept: &BTreeSet<String>) -> Option<Merged> {
        let machines = self.hypervisor.instances();
        let views: Vec<_> = machines.iter().filter_map(|instance| self.hypervisor.view(instance)).collect();
        let mut state = self.state();
        let (file, upper) = mergeable(&state, kept)?;
        for (volume, below) in views.iter().flat_map(|view| &view.below) {
            let place = |wanted: &Path| below.iter().position(|file| file == wanted);
            if place(&file).is_some_and(|lower| place(&upper).is_none_or(|upper| upper > lower)) {
                state.violations.push(format!("the data of volume {volume} changes in a machine"));
            }
        }
        state.snapshots.retain(|_, snapshot| snapshot.backing.file != file);
        let State { volumes, trash, snapshots, .. } = &mut *state;
        for snapshot in snapshots.values_mut() {
            snapshot.backing = without(&snapshot.backing, &file)?;
        }
        let mut merged = Merged::default();
        for (id, volume) in volumes.iter_mut().chain(trash.iter_mut().map(|(id, (volume, ..))| (id, volume)))
        {
            let shorter = volume.facts.backing.as_ref().and_then(|backing| without(backing, &file));
            if shorter != volume.facts.backing {
                volume.facts.backing = shorter;
                merged.volumes.push(id.clone());
            }
        }
        self.files.remove(&file);
        Some(merged)
    }
}

/// Returns the file of a deleted snapshot that only one snapshot is based on, and the file of that one.
fn mergeable(state: &State, kept: &BTreeSet<String>) -> Option<(PathBuf, PathBuf)> {
    let volumes = state.volumes.values().chain(state.trash.values().map(|(volume, ..)| volume));
    let below_volumes: BTreeSet<&PathBuf> =
        volumes.filter_map(|volume| Some(&volume.facts.backing.as_ref()?.file)).collect();
    let deleted = state.snapshots.iter().filter(|(id, snapshot)| {
        let facts = &snapshot.facts;
        facts.owner.is_none()
            && facts.taken.is_some()
            && !kept.contains(*id)
            && !below_volumes.contains(&snapshot.backing.file)
    });
    let found = deleted.filter_map(|(_, lower)| {
        let file = &lower.backing.file;
        let is_on = |s: &&Snapshot| s.backing.backing.as_ref().is_some_and(|below| below.file == *file);
        let mut on: Vec<&Snapshot> = state.snapshots.values().filter(is_on).collect();
        let upper = on.pop().filter(|upper| on.is_empty() && upper.facts.taken.is_some())?;
        Some((file.clone(), upper.backing.file.clone()))
    });
    found.min()
}

/// Returns a chain without one of its files.
fn without(chain: &Backing, file: &Path) -> Option<Backing> {
    let below = chain.backing.as_deref().and_then(|below| without(below, file));
    match chain.file == file {
        true => below,
        false => Some(Backing { backing: below.map(Box::new), ..chain.clone() }),
    }
}

/// Removes the snapshots that nothing owns and nothing is based on.
fn collect(state: &mut State) {
    let mut used = BTreeSet::new();
    let mut mark = |mut below: Option<&Backing>| {
        while let Some(backing) = below {
            used.insert(backing.file.clone());
            below = backing.backing.as_deref();
        }
    };
    let volumes = state.volumes.values().chain(state.trash.values().map(|(volume, ..)| volume));
    volumes.for_each(|volume| mark(volume.facts.backing.as_ref()));
    state
        .snapshots
        .values()
        .filter(|s| s.facts.owner.is_some())
        .for_each(|s| mark(s.backing.backing.as_deref()));
    state.snapshots.retain(|_, snapshot| {
        snapshot.facts.taken.is_none()
            || snapshot.facts.owner.is_some()
            || used.contains(&snapshot.backing.file)
    });
}

#[async_trait]
impl Volumes for FakeSystem {
    /// Its folders are there or away as they are set.
    fn declare_pools(&self, _: &BTreeMap<String, Option<SharedPool>>) {}

    async fn volume(&self, pool: &str, id: &str) -> Result<Option<VolumeFacts>> {
        let work = async {
            let state = self.state();
            state.ensure_there(pool)?;
            let found = state.volumes.get(id).filter(|volume| volume.facts.pool == pool);
            Ok(found.map(|volume| self.facts_of(volume)))
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
            if let Some(volume) = state.volumes.remove(id) {
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
        self.call("snapshot_bytes", async { Ok(self.state().used_by_snapshots.clone()) }).await
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
            state.ensure_there(pool)?;
            Ok(state.snapshots.get(id).map(|snapshot| snapshot.facts.clone()))
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
            Ok(())
        };
        self.call("delete_snapshot", work).await
    }
}
