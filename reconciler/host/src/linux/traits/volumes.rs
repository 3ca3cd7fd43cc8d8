//! The volumes of all pools: [`Volumes`]. Those in Ceph have code of their own.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use berth_qemu::machine::DiskKey;

use crate::linux::LinuxSystem;
use crate::linux::fetching::LeftReader;
use crate::linux::rbd::Data;
use crate::linux::volumes::LinuxVolumes;
use crate::{
    Arrival, Fill, ImageFacts, Merged, NewDevice, NewFetch, NewMove, NewRestore, NewSnapshot, NewTake,
    NewVolume, Progress, RemoteVolume, Result, SealedKey, SharedPool, SnapshotFacts, SystemError, Taken,
    TrashedVolume, VolumeFacts, VolumeOwner, VolumeReader, Volumes,
};

/// Why a pool of type RBD has no copies of volumes on other hosts.
const COPIED: &str = "hosts have the disks of a pool of type RBD in common: none is copied";

/// Why no guest comes live with a disk in a pool of type RBD.
const ARRIVING: &str = "a running guest with a disk in a pool of type RBD does not come from another host";

/// Returns volumes with their identities.
fn ids(volumes: impl IntoIterator<Item = VolumeFacts>) -> impl Iterator<Item = (String, VolumeFacts)> {
    volumes.into_iter().map(|volume| (volume.id.clone(), volume))
}

/// The pools that a volume goes from and to.
fn pools_of(volume: &NewMove) -> BTreeSet<String> {
    BTreeSet::from([volume.from.clone(), volume.to.clone()])
}

impl LinuxSystem {
    /// Checks that each of these files has begun its snapshot if one of all is finished: they all were by then.
    ///
    /// *Errors*: [`SystemError::NotOneMoment`].
    async fn ensure_begun(&self, all: &[NewSnapshot], files: &[NewSnapshot]) -> Result<()> {
        let mut is_any_finished = false;
        for new in all {
            let found = Volumes::snapshot(self, &new.pool, &new.id).await?;
            is_any_finished = is_any_finished || found.is_some_and(|facts| facts.taken.is_some());
        }
        for new in files.iter().filter(|_| is_any_finished) {
            let found = Volumes::snapshot(self, &new.pool, &new.id).await?;
            let volume = Volumes::volume(self, &new.pool, &new.volume).await?;
            let is_pending = volume.is_some_and(|volume| volume.pending_snapshot.as_ref() == Some(&new.id));
            if !is_pending && found.is_none_or(|facts| facts.taken.is_none()) {
                return Err(SystemError::NotOneMoment { id: new.volume.clone() });
            }
        }
        Ok(())
    }

    /// Returns the pool of files that a snapshot of this pool was moved to with its volume. None: it was not moved.
    async fn moved_snapshot(&self, pool: &str, id: &str) -> Result<Option<String>> {
        let id = id.to_owned();
        let found = self.on_all_pools(move |v| v.pool_of_snapshot(&id)).await?;
        Ok(found.filter(|other| other != pool))
    }

    /// Returns the pool of files that a volume of this pool was moved to since the caller has looked: the last step of a move goes on after
    /// the move was given up. None: it was not moved.
    async fn moved_volume(&self, pool: &str, id: &str) -> Result<Option<String>> {
        let id = id.to_owned();
        let found = self.on_all_pools(move |v| v.pool_of_volume(&id)).await?;
        Ok(found.filter(|other| other != pool))
    }

    /// Returns the pool of files that has a snapshot now: this one, or the one that it was moved to with its volume.
    pub(in crate::linux) async fn present_pool(&self, pool: &str, snapshot: &str) -> Result<String> {
        let found = Volumes::snapshot(self, pool, snapshot).await?;
        Ok(found.map_or_else(|| pool.to_owned(), |facts| facts.pool))
    }

    /// Returns the cached image that a new volume names.
    async fn cached_base(&self, digest: Option<&str>) -> Result<Option<ImageFacts>> {
        let Some(digest) = digest else { return Ok(None) };
        let missing = || SystemError::ImageNotCached { digest: digest.to_owned() };
        self.images.cached(digest).await?.ok_or_else(missing).map(Some)
    }
}

#[async_trait]
impl Volumes for LinuxSystem {
    fn declare_pools(&self, pools: &BTreeMap<String, Option<SharedPool>>) {
        self.pool_folders.declare(pools);
        self.rbd.declare(pools);
    }

    async fn volume(&self, pool: &str, id: &str) -> Result<Option<VolumeFacts>> {
        if let Some(rbd) = self.rbd.get(pool) {
            return rbd.volume(id).await;
        }
        let (of_pool, id) = (pool.to_owned(), id.to_owned());
        match self.on_pool(pool, move |v| v.volume(&of_pool, &id)).await? {
            Some(volume) => self.with_cache(volume).await.map(Some),
            None => Ok(None),
        }
    }

    async fn pool_of_volume(&self, id: &str) -> Result<Option<String>> {
        if let Some(pool) = self.rbd.pool_of_volume(id).await? {
            return Ok(Some(pool));
        }
        let id = id.to_owned();
        self.on_all_pools(move |v| v.pool_of_volume(&id)).await
    }

    async fn check_move(&self, volume: &NewMove) -> Result<()> {
        for pool in [&volume.from, &volume.to] {
            self.rbd.refuse(pool, "disks move neither to nor from a pool of type RBD")?;
        }
        let new = volume.clone();
        self.on_pools(pools_of(volume), move |v| v.check_move(&new)).await
    }

    async fn move_volume(&self, volume: &NewMove, progress: Progress<'_>) -> Result<VolumeFacts> {
        for pool in [&volume.from, &volume.to] {
            self.rbd.refuse(pool, "disks move neither to nor from a pool of type RBD")?;
        }
        let new = volume.clone();
        let mut begun = self.on_pools(pools_of(volume), move |v| v.begin_move(&new)).await?;
        while let Some(mut copying) = begun {
            let step = move |_: &LinuxVolumes| {
                let more = copying.step();
                Ok((copying, more))
            };
            let (copying, more) = self.on_pools(pools_of(volume), step).await?;
            let (done, total) = copying.progress();
            progress(done, Some(total));
            begun = match more? {
                true => Some(copying),
                false => {
                    self.on_pools(pools_of(volume), move |v| v.finish_move(&copying)).await?;
                    None
                }
            };
        }
        let found = Volumes::volume(self, &volume.to, &volume.id).await?;
        found.ok_or_else(|| SystemError::VolumeLost { id: volume.id.clone() })
    }

    async fn prepared_mirror(&self, id: &str) -> Result<Option<NewMove>> {
        let id = id.to_owned();
        self.on_all_pools(move |v| v.prepared_mirror(&id)).await
    }

    async fn prepare_mirror(&self, volume: &NewMove) -> Result<VolumeFacts> {
        for pool in [&volume.from, &volume.to] {
            self.rbd.refuse(pool, "disks move neither to nor from a pool of type RBD")?;
        }
        let new = volume.clone();
        let prepared = self.on_pools(pools_of(volume), move |v| v.prepare_mirror(&new)).await?;
        self.with_cache(prepared).await
    }

    async fn check_mirror(&self, volume: &NewMove) -> Result<()> {
        let new = volume.clone();
        self.on_pools(pools_of(volume), move |v| v.check_mirror(&new)).await
    }

    async fn commit_mirror(&self, volume: &NewMove) -> Result<()> {
        let new = volume.clone();
        self.on_pools(pools_of(volume), move |v| v.commit_mirror(&new)).await
    }

    async fn settle_mirror(&self, volume: &NewMove) -> Result<()> {
        let new = volume.clone();
        self.on_pools(pools_of(volume), move |v| v.settle_mirror(&new)).await
    }

    async fn create_volume(&self, volume: &NewVolume) -> Result<VolumeFacts> {
        let no_image_goes = self.bases.read().await;
        let base = self.cached_base(volume.base.as_deref()).await?;
        if let Some(rbd) = self.rbd.get(&volume.pool) {
            // An import takes minutes; it is tried again if the image goes meanwhile.
            drop(no_image_goes);
            let key = self.volumes.keys().key_of(&volume.id, volume.encryption.as_deref())?;
            return Box::pin(rbd.create(volume, base.as_ref(), None, key.as_ref())).await;
        }
        let new = volume.clone();
        self.on_pool(&volume.pool, move |v| v.create(&new, base.as_ref())).await
    }

    async fn use_device(&self, new: &NewDevice) -> Result<VolumeFacts> {
        self.rbd
            .refuse(&new.pool, "a pool of type RBD has no block devices of hosts: set pool to another one")?;
        let device = new.clone();
        self.on_pool(&new.pool, move |v| v.use_device(&device)).await
    }

    async fn create_filled_volume(
        &self,
        volume: &NewVolume,
        fill: &Fill,
        progress: Progress<'_>,
    ) -> Result<VolumeFacts> {
        let data = match fill {
            Fill::Snapshot { pool, id } => {
                return Box::pin(self.copy_snapshot(volume, (pool.as_str(), id.as_str()), progress)).await;
            }
            Fill::RawFile(file) => {
                self.rbd.refuse(
                    &volume.pool,
                    "a pool of type RBD takes over no files: make an Image of the file",
                )?;
                return Box::pin(self.copy_raw_file(volume, file, progress)).await;
            }
            Fill::Image => Data::Image,
            Fill::Filesystem(filesystem) => Data::Filesystem(filesystem),
        };
        let base = self.cached_base(volume.base.as_deref()).await?;
        if let Some(rbd) = self.rbd.get(&volume.pool) {
            let key = self.volumes.keys().key_of(&volume.id, volume.encryption.as_deref())?;
            return Box::pin(rbd.create(volume, base.as_ref(), Some((data, progress)), key.as_ref())).await;
        }
        // The copy is of the open file, if the image goes meanwhile.
        self.fill(volume, base.as_ref(), fill).await
    }

    async fn take_volume(&self, volume: &NewTake) -> Result<VolumeFacts> {
        if let Some(rbd) = self.rbd.get(&volume.pool) {
            return rbd.take(volume).await;
        }
        let _no_image_goes = self.bases.read().await;
        self.cached_base(volume.base.as_deref()).await?;
        let new = volume.clone();
        self.on_pool(&volume.pool, move |v| v.take_from_host(&new)).await
    }

    async fn prepare_arriving(&self, volume: &NewTake) -> Result<VolumeFacts> {
        self.rbd.refuse(&volume.pool, ARRIVING)?;
        let _no_image_goes = self.bases.read().await;
        self.cached_base(volume.base.as_deref()).await?;
        let new = volume.clone();
        self.on_pool(&volume.pool, move |v| v.prepare_arriving(&new)).await
    }

    async fn own_arriving(&self, pool: &str, id: &str, instance: &str) -> Result<()> {
        let (of_pool, of) = (pool.to_owned(), id.to_owned());
        let file = self.on_pool(pool, move |v| v.arriving_file(&of_pool, &of)).await?;
        match file {
            Some(file) => self.machines.own(instance, file).await,
            None => Err(SystemError::VolumeLost { id: id.to_owned() }),
        }
    }

    async fn drop_arriving(&self, pool: &str, id: &str) -> Result<()> {
        if self.rbd.get(pool).is_some() {
            return Ok(());
        }
        let (of_pool, id) = (pool.to_owned(), id.to_owned());
        self.on_pool(pool, move |v| v.drop_arriving(&of_pool, &id)).await
    }

    async fn arrival(&self, pool: &str, id: &str) -> Result<Option<Arrival>> {
        if self.rbd.get(pool).is_some() {
            return Ok(None);
        }
        let (of_pool, id) = (pool.to_owned(), id.to_owned());
        self.on_pool(pool, move |v| v.arrival(&of_pool, &id)).await
    }

    async fn fetch_volume(
        &self,
        volume: &NewFetch,
        from: Arc<dyn RemoteVolume>,
        progress: Progress<'_>,
    ) -> Result<VolumeFacts> {
        self.rbd.refuse(&volume.pool, COPIED)?;
        self.fetch(volume, from, progress).await
    }

    async fn open_left_volume(
        &self,
        pool: &str,
        id: &str,
        offset: u64,
    ) -> Result<Option<Box<dyn VolumeReader>>> {
        self.rbd.refuse(pool, COPIED)?;
        let (of_pool, id) = (pool.to_owned(), id.to_owned());
        let opened = self.on_pool(pool, move |v| v.open_left(&of_pool, &id, offset)).await?;
        Ok(opened.map(|file| Box::new(LeftReader::new(file)) as Box<dyn VolumeReader>))
    }

    async fn remove_left_volume(
        &self,
        pool: &str,
        id: &str,
        uid: Option<&str>,
        seen: Option<&Arrival>,
    ) -> Result<()> {
        self.rbd.refuse(pool, COPIED)?;
        let (of_pool, id) = (pool.to_owned(), id.to_owned());
        let (uid, seen) = (uid.map(str::to_owned), seen.cloned());
        self.on_pool(pool, move |v| v.remove_left(&of_pool, &id, uid.as_deref(), seen.as_ref())).await
    }

    async fn grow_volume(&self, pool: &str, id: &str, size: u64) -> Result<VolumeFacts> {
        if let Some(rbd) = self.rbd.get(pool) {
            return rbd.grow(id, size).await;
        }
        let (of_pool, id) = (pool.to_owned(), id.to_owned());
        self.on_pool(pool, move |v| v.grow(&of_pool, &id, size)).await
    }

    async fn reserve_volume(&self, pool: &str, id: &str, size: u64) -> Result<()> {
        self.rbd.refuse(pool, "a pool of type RBD has no thick disks")?;
        let (of_pool, id) = (pool.to_owned(), id.to_owned());
        self.on_pool(pool, move |v| v.reserve(&of_pool, &id, size)).await
    }

    async fn trash_volume(&self, pool: &str, id: &str) -> Result<()> {
        if let Some(rbd) = self.rbd.get(pool) {
            return rbd.trash(id, self.trash_clock().await?).await;
        }
        // The file in another pool would be left without a volume that it is a copy of.
        if let Some(new) = self.prepared_mirror(id).await? {
            self.settle_mirror(&new).await?;
        }
        let (of_pool, of) = (pool.to_owned(), id.to_owned());
        self.on_pool(pool, move |v| v.trash(&of_pool, &of)).await?;
        let Some(other) = self.moved_volume(pool, id).await? else { return Ok(()) };
        let (of_pool, of) = (other.clone(), id.to_owned());
        self.on_pool(&other, move |v| v.trash(&of_pool, &of)).await
    }

    async fn restore_volume(&self, pool: &str, id: &str, owner: &VolumeOwner) -> Result<VolumeFacts> {
        if let Some(rbd) = self.rbd.get(pool) {
            return rbd.restore(id, owner).await;
        }
        let (of_pool, id, owner) = (pool.to_owned(), id.to_owned(), owner.clone());
        self.on_pool(pool, move |v| v.restore(&of_pool, &id, &owner)).await
    }

    async fn hand_over_volume(&self, pool: &str, id: &str, owner: &VolumeOwner) -> Result<()> {
        if let Some(rbd) = self.rbd.get(pool) {
            return rbd.hand_over(id, owner).await;
        }
        let (of_pool, id, owner) = (pool.to_owned(), id.to_owned(), owner.clone());
        self.on_pool(pool, move |v| v.hand_over(&of_pool, &id, &owner)).await
    }

    fn unlock(&self, id: &str, holder: &str, key: DiskKey) -> bool {
        self.volumes.keys().add(id, holder, key)
    }

    fn lock(&self, id: &str, holder: &str) {
        self.volumes.keys().remove(id, holder);
    }

    fn keep_keys(&self, holders: &BTreeSet<String>) {
        self.volumes.keys().keep(holders);
    }

    fn is_making(&self, id: &str) -> bool {
        self.volumes.is_making(id)
    }

    fn unlocked(&self, id: &str, holder: &str) -> Option<DiskKey> {
        self.volumes.keys().get(id, holder)
    }

    async fn rewrap_volume(&self, pool: &str, id: &str, sealed: &SealedKey) -> Result<()> {
        if let Some(rbd) = self.rbd.get(pool) {
            return rbd.rewrap(id, sealed).await;
        }
        let (of_pool, id, sealed) = (pool.to_owned(), id.to_owned(), sealed.clone());
        self.on_pool(pool, move |v| v.rewrap(&of_pool, &id, &sealed)).await
    }

    async fn retain_volume(&self, pool: &str, id: &str) -> Result<()> {
        if let Some(rbd) = self.rbd.get(pool) {
            return rbd.retain(id).await;
        }
        let (of_pool, of) = (pool.to_owned(), id.to_owned());
        self.on_pool(pool, move |v| v.retain(&of_pool, &of)).await?;
        let Some(other) = self.moved_volume(pool, id).await? else { return Ok(()) };
        let (of_pool, of) = (other.clone(), id.to_owned());
        self.on_pool(&other, move |v| v.retain(&of_pool, &of)).await
    }

    async fn purge_trash(&self, pool: &str, older_than: Duration) -> Result<Vec<String>> {
        if let Some(rbd) = self.rbd.get(pool) {
            return rbd.purge(older_than, self.trash_clock().await?).await;
        }
        let of_pool = pool.to_owned();
        self.on_pool(pool, move |v| v.purge(&of_pool, older_than)).await
    }

    async fn volumes(&self) -> Result<Vec<VolumeFacts>> {
        let mut volumes = self.on_all_pools(LinuxVolumes::volumes).await?;
        for rbd in self.rbd.all() {
            volumes.extend(rbd.volumes().await?);
        }
        Ok(volumes)
    }

    async fn used_bytes(&self) -> Result<BTreeMap<String, u64>> {
        let mut used = self.on_all_pools(LinuxVolumes::used_bytes).await?;
        used.extend(self.rbd.used_bytes().await);
        Ok(used)
    }

    async fn snapshot_bytes(&self) -> Result<BTreeMap<String, u64>> {
        let mut used = self.on_all_pools(LinuxVolumes::snapshot_bytes).await?;
        used.extend(self.rbd.snapshot_bytes());
        for (id, memory) in self.machines.kept_state_bytes().await? {
            let of_snapshot = used.entry(id).or_default();
            *of_snapshot = of_snapshot.saturating_add(memory);
        }
        Ok(used)
    }

    async fn trash(&self) -> Result<Vec<TrashedVolume>> {
        let mut trashed = self.on_all_pools(LinuxVolumes::trashed).await?;
        for rbd in self.rbd.all() {
            trashed.extend(rbd.trashed(self.trash_clock().await?).await?);
        }
        Ok(trashed)
    }

    async fn snapshot(&self, pool: &str, id: &str) -> Result<Option<SnapshotFacts>> {
        if let Some(rbd) = self.rbd.get(pool) {
            return rbd.snapshot(id).await;
        }
        let (of_pool, of) = (pool.to_owned(), id.to_owned());
        let found = self.on_pool(pool, move |v| v.snapshot(&of_pool, &of)).await;
        if matches!(&found, Ok(Some(facts)) if facts.owner.is_some()) {
            return found;
        }
        let Some(other) = self.moved_snapshot(pool, id).await? else { return found };
        let (of_pool, of) = (other.clone(), id.to_owned());
        self.on_pool(&other, move |v| v.snapshot(&of_pool, &of)).await
    }

    async fn check_snapshots(&self, snapshots: &[NewSnapshot]) -> Result<()> {
        let (in_ceph, files) = self.rbd.divide(snapshots);
        for (rbd, of_pool) in in_ceph {
            rbd.check_snapshots(&of_pool).await?;
        }
        if files.is_empty() {
            return Ok(());
        }
        let pools = files.iter().map(|new| new.pool.clone()).collect();
        self.on_pools(pools, move |v| v.check_snapshots(&files)).await
    }

    async fn is_as_in_snapshot(&self, pool: &str, volume: &str, snapshot: &str) -> Result<bool> {
        if let Some(rbd) = self.rbd.get(pool) {
            return rbd.is_as_in_snapshot(volume, snapshot).await;
        }
        let (of_pool, volume, snapshot) = (pool.to_owned(), volume.to_owned(), snapshot.to_owned());
        self.on_pool(pool, move |v| v.is_as_in_snapshot(&of_pool, &volume, &snapshot)).await
    }

    async fn begin_snapshots(&self, snapshots: &[NewSnapshot]) -> Result<Vec<VolumeFacts>> {
        let (in_ceph, files) = self.rbd.divide(snapshots);
        if !in_ceph.is_empty() && !files.is_empty() {
            self.ensure_begun(snapshots, &files).await?;
        }
        // Those in Ceph are checked before a file changes, and leave their volumes as they are.
        let mut begun = BTreeMap::new();
        for (rbd, of_pool) in in_ceph {
            begun.extend(ids(rbd.begin_snapshots(&of_pool).await?));
        }
        if !files.is_empty() {
            let pools = files.iter().map(|new| new.pool.clone()).collect();
            for volume in self.on_pools(pools, move |v| v.begin_snapshots(&files)).await? {
                begun.extend(ids([self.with_cache(volume).await?]));
            }
        }
        let of = |new: &NewSnapshot| {
            let lost = || SystemError::VolumeLost { id: new.volume.clone() };
            begun.get(&new.volume).cloned().ok_or_else(lost)
        };
        snapshots.iter().map(of).collect()
    }

    async fn prepare_in_ceph(&self, snapshots: &[NewSnapshot], are_taken: bool) -> Result<()> {
        for (rbd, of_pool) in self.rbd.divide(snapshots).0 {
            rbd.prepare(&of_pool, are_taken).await?;
        }
        Ok(())
    }

    async fn take_closed(&self, snapshots: &[NewSnapshot]) -> Result<()> {
        for (rbd, of_pool) in self.rbd.divide(snapshots).0 {
            rbd.take_closed(&of_pool).await?;
        }
        Ok(())
    }

    async fn restore_snapshot(&self, restore: &NewRestore) -> Result<VolumeFacts> {
        if let Some(rbd) = self.rbd.get(&restore.pool) {
            return rbd.restore_snapshot(restore).await;
        }
        let new = restore.clone();
        let volume = self.on_pool(&restore.pool, move |v| v.restore_snapshot(&new)).await?;
        self.with_cache(volume).await
    }

    async fn finish_restore(&self, pool: &str, id: &str) -> Result<()> {
        if let Some(rbd) = self.rbd.get(pool) {
            return rbd.finish_restore(id).await;
        }
        let (of_pool, id) = (pool.to_owned(), id.to_owned());
        self.on_pool(pool, move |v| v.finish_restore(&of_pool, &id)).await
    }

    async fn finish_snapshot(&self, pool: &str, id: &str, taken: &Taken) -> Result<SnapshotFacts> {
        if let Some(rbd) = self.rbd.get(pool) {
            return rbd.finish_snapshot(id, taken).await;
        }
        let (of_pool, id, taken) = (pool.to_owned(), id.to_owned(), taken.clone());
        self.on_pool(pool, move |v| v.finish_snapshot(&of_pool, &id, &taken)).await
    }

    async fn hand_over_snapshot(&self, pool: &str, id: &str, owner: &VolumeOwner) -> Result<()> {
        if let Some(rbd) = self.rbd.get(pool) {
            return rbd.hand_over_snapshot(id, owner).await;
        }
        let (of_pool, id, owner) = (pool.to_owned(), id.to_owned(), owner.clone());
        self.on_pool(pool, move |v| v.hand_over_snapshot(&of_pool, &id, &owner)).await
    }

    async fn delete_snapshot(&self, pool: &str, id: &str) -> Result<()> {
        if let Some(rbd) = self.rbd.get(pool) {
            return rbd.delete_snapshot(id).await;
        }
        let (of_pool, of) = (pool.to_owned(), id.to_owned());
        self.on_pool(pool, move |v| v.delete_snapshot(&of_pool, &of)).await?;
        // Its volume may have moved since the caller has looked.
        let Some(other) = self.moved_snapshot(pool, id).await? else { return Ok(()) };
        let (of_pool, of) = (other.clone(), id.to_owned());
        self.on_pool(&other, move |v| v.delete_snapshot(&of_pool, &of)).await
    }

    fn keep_snapshots(&self, kept: &BTreeSet<String>) {
        self.rbd.keep_snapshots(kept);
    }

    async fn merge_snapshots(&self, kept: &BTreeSet<String>) -> Result<Option<Merged>> {
        let kept = kept.clone();
        let Some(merge) = self.on_all_pools(move |v| v.begin_merge(&kept)).await? else { return Ok(None) };
        merge.run(self.tools_user).await?;
        let pool = merge.pool().to_owned();
        self.on_pool(&pool, move |v| v.finish_merge(&merge)).await.map(Some)
    }
}
