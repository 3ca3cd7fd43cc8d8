//! Volumes: the files of disks, in pools.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use berth_qemu::machine::{Backing, Cache, DiskKey, Format, RbdImage, is_block_device};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{
    Arrival, Fill, NewDevice, NewFetch, Progress, RemoteVolume, Result, SealedKey, SharedPool, SystemError,
    VolumeOwner, VolumeReader,
};

/// The volumes of a host.
#[async_trait]
pub trait Volumes: Send + Sync + fmt::Debug + 'static {
    /// Takes over which pools of the site are shared between hosts. A pool that is not among them stays as it was declared last.
    fn declare_pools(&self, pools: &BTreeMap<String, Option<SharedPool>>);

    async fn volume(&self, pool: &str, id: &str) -> Result<Option<VolumeFacts>>;

    /// Returns the pool, of those that are there, that has this volume. None: none of them has.
    async fn pool_of_volume(&self, id: &str) -> Result<Option<String>>;

    /// Checks that a volume can be moved to another pool now, and changes nothing.
    ///
    /// *Errors*: those of [`Volumes::move_volume`], as far as they are known before.
    async fn check_move(&self, volume: &NewMove) -> Result<()>;

    /// Moves a volume that no QEMU has open to another pool, with its snapshots and the data of others below it: those of other volumes stay in
    /// their pool. Does nothing if the volume is in that pool.
    ///
    /// *Guarantees*: the volume is in one of both pools at every moment, whole, and so is each of its snapshots. Dropping the future ends the work, with the volume where it
    /// was.
    ///
    /// *Errors*: [`SystemError::PoolAway`]; [`SystemError::NoSpace`], with no partial file left behind; [`SystemError::VolumeBusy`] while
    /// a QEMU has it open, a snapshot of it is not finished, or files below it are merged.
    async fn move_volume(&self, volume: &NewMove, progress: Progress<'_>) -> Result<VolumeFacts>;

    /// Returns the mirror of a volume that was prepared and not settled: another pool has a file for it. None: there is none.
    async fn prepared_mirror(&self, id: &str) -> Result<Option<NewMove>>;

    /// Creates the file in another pool to which a QEMU that has the volume open copies it, empty and of the same size, in the place of one
    /// that an earlier mirror has left. The volume is where it was. Returns it with the paths of that file.
    ///
    /// *Errors*: those of [`Volumes::check_move`]; [`SystemError::VolumeBusy`] while a QEMU has that file open; [`SystemError::Invalid`] if the volume is encrypted or has files of snapshots below it:
    /// it moves only while no QEMU has it open.
    async fn prepare_mirror(&self, volume: &NewMove) -> Result<VolumeFacts>;

    /// Checks that [`Volumes::commit_mirror`] can record the file, and changes nothing: from the switch of QEMU on nothing else can be done.
    ///
    /// *Errors*: [`SystemError::VolumeBusy`] if the volume has changed since it was prepared.
    async fn check_mirror(&self, volume: &NewMove) -> Result<()>;

    /// Records durably that the file in the other pool is the volume. Does nothing if that is recorded.
    ///
    /// *Assumptions*: both files have the same data, on their media, and no guest writes to either meanwhile.
    async fn commit_mirror(&self, volume: &NewMove) -> Result<()>;

    /// Removes the file of a mirror that is not the volume: the former one of a mirror that is recorded, or the other one. Succeeds if there
    /// is none.
    ///
    /// *Errors*: [`SystemError::VolumeBusy`] while a QEMU has a file open that is not recorded.
    async fn settle_mirror(&self, volume: &NewMove) -> Result<()>;

    /// Creates the volume's file. An existing file is returned as it is (and grown if it is smaller).
    ///
    /// *Errors*: [`SystemError::SmallerThanImage`]; [`SystemError::ImageNotCached`] if its base is not in the cache;
    /// [`SystemError::SnapshotLost`] if its snapshot is not there; [`SystemError::NoSpace`], with no partial file left
    /// behind.
    async fn create_volume(&self, volume: &NewVolume) -> Result<VolumeFacts>;

    /// Makes a block device of this host a volume: records beside no file that it is one. Nothing is written to the device, now or later:
    /// [`Volumes::trash_volume`] only removes the record. The volume is returned as it is if it is that device before.
    ///
    /// *Errors*: [`SystemError::BlockDevice`] if the device is not offered or not there, is used by the host itself, is smaller, or is
    /// another volume, or may be one in a pool that is away.
    async fn use_device(&self, new: &NewDevice) -> Result<VolumeFacts>;

    /// Creates a volume that has this data. The data is written under another name, so that the volume has all of it or does not exist. An
    /// existing file is returned as it is: it is never filled or formatted again. Dropping the future ends the work.
    ///
    /// Reports the progress of a copy of a snapshot to a pool of files.
    ///
    /// *Errors*: those of [`Volumes::create_volume`]; [`SystemError::ProgramMissing`] without the program that makes the file system.
    async fn create_filled_volume(
        &self,
        volume: &NewVolume,
        fill: &Fill,
        progress: Progress<'_>,
    ) -> Result<VolumeFacts>;

    /// Moves a volume of another host, which does not use it any more, to this host's folder of the same shared pool. Does nothing if the
    /// volume is here. The caller knows that nothing writes to it any more but, after [`Volumes::prepare_arriving`], a machine of this host.
    ///
    /// *Errors*: [`SystemError::VolumeLost`] if the other host's folder does not have it; [`SystemError::VolumeBusy`] while a QEMU has it
    /// open; [`SystemError::VolumeDamaged`] if it is none that can be taken, with the file where it was; [`SystemError::ImageNotCached`].
    async fn take_volume(&self, volume: &NewTake) -> Result<VolumeFacts>;

    /// Makes a volume of another host, in the same shared pool, one that a machine of this host can open, and returns it. It stays a volume of the
    /// other host, whose machine has it open: the machine of this host must not write to it before that one has given it up. Ends with
    /// [`Volumes::take_volume`] or [`Volumes::drop_arriving`].
    ///
    /// *Errors*: those of [`Volumes::take_volume`], except that a QEMU may have it open.
    async fn prepare_arriving(&self, volume: &NewTake) -> Result<VolumeFacts>;

    /// Lets the QEMU of this instance, and no other, write to an arriving volume: the one of the other host has given it up.
    async fn own_arriving(&self, pool: &str, id: &str, instance: &str) -> Result<()>;

    /// Ends [`Volumes::prepare_arriving`]: the volume stays the other host's alone. Does nothing to a volume that is this host's.
    async fn drop_arriving(&self, pool: &str, id: &str) -> Result<()>;

    /// Returns the stay that a volume was copied here for, if it is whole. None: it was not, or there is none.
    async fn arrival(&self, pool: &str, id: &str) -> Result<Option<Arrival>>;

    /// Copies a volume from the host that its VM has left, in the place of one that has been here before. Does nothing if it was copied for
    /// this stay. Nothing is changed but by a whole copy, which is durable, read back and compared.
    ///
    /// *Errors*: [`SystemError::Download`] if the other host does not answer, refuses, or has something else than a volume with this base;
    /// [`SystemError::NoSpace`], with no partial file left behind; [`SystemError::ImageNotCached`]; [`SystemError::VolumeBusy`] while a QEMU
    /// has the former one open; [`SystemError::VolumeDamaged`] if a file that is here is none that it can replace.
    async fn fetch_volume(
        &self,
        volume: &NewFetch,
        from: Arc<dyn RemoteVolume>,
        progress: Progress<'_>,
    ) -> Result<VolumeFacts>;

    /// Opens the file of a volume for a copy on another host, from this offset on. The caller knows that nothing writes to it any more. None:
    /// there is none.
    ///
    /// *Errors*: [`SystemError::VolumeBusy`] while a QEMU has it open; [`SystemError::VolumeDamaged`] if it is none that can be copied.
    async fn open_left_volume(
        &self,
        pool: &str,
        id: &str,
        offset: u64,
    ) -> Result<Option<Box<dyn VolumeReader>>>;

    /// Removes the file of a volume of this Disk, by its uid, for good: the caller knows that another host has its data. `seen`: the stay that
    /// the file was copied here for, as it was before the caller looked for that host. A file that has come for another one since then remains.
    /// Succeeds if there is none.
    ///
    /// *Errors*: [`SystemError::VolumeBusy`] while a QEMU has it open; [`SystemError::VolumeDamaged`] if it is of another Disk.
    async fn remove_left_volume(
        &self,
        pool: &str,
        id: &str,
        uid: Option<&str>,
        seen: Option<&Arrival>,
    ) -> Result<()>;

    /// Grows a volume that no QEMU has open (a volume in use grows by QMP). Does nothing if it already has this size;
    /// refuses a smaller one.
    async fn grow_volume(&self, pool: &str, id: &str, size: u64) -> Result<VolumeFacts>;

    /// Reserves the space for a disk of this size, which a volume in use may have too. Does nothing if it is reserved.
    ///
    /// *Errors*: [`SystemError::NoSpace`], with nothing reserved.
    async fn reserve_volume(&self, pool: &str, id: &str, size: u64) -> Result<()>;

    /// Keeps the key with this identifier in memory for a volume or a snapshot, so that it can be used. Returns false if it was kept for
    /// that before.
    fn unlock(&self, id: &str, holder: &str, key: DiskKey) -> bool;

    /// Forgets the key of a volume or a snapshot. Running machines have it still, and so have others that hold the same key.
    fn lock(&self, id: &str, holder: &str);

    /// Forgets the keys of all other volumes and snapshots than these.
    fn keep_keys(&self, holders: &BTreeSet<String>);

    /// Whether a volume is being made from data that is written to its file. Its last step goes on after its future was dropped.
    fn is_making(&self, id: &str) -> bool;

    /// Returns the key that is kept in memory for a volume or a snapshot.
    fn unlocked(&self, id: &str, holder: &str) -> Option<DiskKey>;

    /// Replaces the sealed form of a volume's key, beside the volume and its snapshots. Its files stay as they are, and may be open.
    async fn rewrap_volume(&self, pool: &str, id: &str, sealed: &SealedKey) -> Result<()>;

    /// Moves a volume to the pool's trash. Succeeds if the volume is neither in the pool nor in the trash.
    async fn trash_volume(&self, pool: &str, id: &str) -> Result<()>;

    /// Restores a volume from the trash for a (new) owner.
    async fn restore_volume(&self, pool: &str, id: &str, owner: &VolumeOwner) -> Result<VolumeFacts>;

    /// Records a new owner of the volume. Does not touch the file, which may be open.
    async fn hand_over_volume(&self, pool: &str, id: &str, owner: &VolumeOwner) -> Result<()>;

    /// Records that the volume's Disk was deleted and its file is retained. Succeeds if the volume does not exist.
    async fn retain_volume(&self, pool: &str, id: &str) -> Result<()>;

    /// Permanently deletes volumes that have been in the pool's trash for longer than `older_than`. Returns their ids.
    async fn purge_trash(&self, pool: &str, older_than: Duration) -> Result<Vec<String>>;

    /// Lists the volumes of all pools.
    async fn volumes(&self) -> Result<Vec<VolumeFacts>>;

    /// Returns the bytes that the files of volumes take, by the identity of the volume, also of those in the trash. Those of images and
    /// snapshots below them are not part of it. Volumes in pools that are away are left out; of those in Ceph it is the last measurement,
    /// if they were measured.
    async fn used_bytes(&self) -> Result<BTreeMap<String, u64>>;

    /// Returns the bytes that the files of snapshots take, with the memory that they keep, by the identity of the snapshot; without the files in
    /// pools that are away.
    async fn snapshot_bytes(&self) -> Result<BTreeMap<String, u64>>;

    /// Lists the trash of all pools.
    async fn trash(&self) -> Result<Vec<TrashedVolume>>;

    /// Returns a snapshot of this pool, or of the one that it was moved to with its volume.
    async fn snapshot(&self, pool: &str, id: &str) -> Result<Option<SnapshotFacts>>;

    /// Begins snapshots of several volumes, all or none, or continues those that were begun: from now on the file of each volume
    /// is a new overlay. A QEMU that has the former files open has to be switched to them at one moment, and
    /// [`Volumes::finish_snapshot`] of each follows. No other QEMU may open a volume meanwhile. The images of those in Ceph stay:
    /// [`Volumes::prepare_in_ceph`] follows before they are taken.
    ///
    /// *Errors*: [`SystemError::TooManySnapshots`]; [`SystemError::VolumeBusy`] while another snapshot of a volume is
    /// not finished; [`SystemError::NoSpace`], with the volumes as they were; [`SystemError::NotOneMoment`] if a call before was
    /// interrupted, and a volume has been written since.
    async fn begin_snapshots(&self, snapshots: &[NewSnapshot]) -> Result<Vec<VolumeFacts>>;

    /// Checks that these snapshots can be begun, or continued, and changes nothing.
    ///
    /// *Errors*: those of [`Volumes::begin_snapshots`], as far as they are known before.
    async fn check_snapshots(&self, snapshots: &[NewSnapshot]) -> Result<()>;

    /// Prepares those of these snapshots that are in Ceph, which were begun and are not finished: what an interrupted call has left of them
    /// is removed. With `are_taken` they were taken with the others, and nothing is removed. Does nothing for others.
    ///
    /// *Errors*: [`SystemError::NotOneMoment`] if one of those that were taken is not in Ceph.
    async fn prepare_in_ceph(&self, snapshots: &[NewSnapshot], are_taken: bool) -> Result<()>;

    /// Takes those of these snapshots, which were begun, that QEMU has to take itself, of volumes that it does not write to now: those in
    /// Ceph, in which the volume's image stays the same. Does nothing for others, and for those that are taken.
    async fn take_closed(&self, snapshots: &[NewSnapshot]) -> Result<()>;

    /// Whether the volume continues in an overlay on this very snapshot, and nothing was written to it: it has the data of the snapshot. In
    /// Ceph, whether it was restored from the snapshot and no machine could write to it since.
    async fn is_as_in_snapshot(&self, pool: &str, volume: &str, snapshot: &str) -> Result<bool>;

    /// Finishes a snapshot that was begun. Returns it if it is finished.
    ///
    /// *Errors*: [`SystemError::VolumeBusy`] while a QEMU writes to the file that becomes the snapshot.
    async fn finish_snapshot(&self, pool: &str, id: &str, taken: &Taken) -> Result<SnapshotFacts>;

    /// Records a new owner of the snapshot.
    ///
    /// *Errors*: [`SystemError::SnapshotLost`] if it has none in this pool (any more).
    async fn hand_over_snapshot(&self, pool: &str, id: &str, owner: &VolumeOwner) -> Result<()>;

    /// Deletes a snapshot. Its file is removed once nothing is based on it: no volume, no volume in the trash and no
    /// other snapshot, or once it is merged with another one ([`Volumes::merge_snapshots`]). One that was moved with its volume is deleted in
    /// its new pool. Succeeds if there is none.
    ///
    /// *Errors*: [`SystemError::VolumeBusy`] while it is begun and not finished.
    async fn delete_snapshot(&self, pool: &str, id: &str) -> Result<()>;

    /// Takes over from which snapshots something is still to be made: those in Ceph are not removed meanwhile, also if they are deleted. Until
    /// the first call none is.
    fn keep_snapshots(&self, kept: &BTreeSet<String>);

    /// Merges the file of one deleted snapshot, which only one other snapshot is based on, with that one's. The data of every
    /// snapshot and volume stays as it is meanwhile, also for a QEMU that has them open. A crash is made up for by a later call.
    /// Those of `kept` are left as they are. None: there is none to merge now.
    ///
    /// *Errors*: [`SystemError::NoSpace`], with all data as it was. A later call tries another one first.
    async fn merge_snapshots(&self, kept: &BTreeSet<String>) -> Result<Option<Merged>>;

    /// Gives a volume that no QEMU has open the data of a snapshot of it. The data that it had is a volume of its own in the
    /// pool's trash; in Ceph it is gone. Does nothing for a restore that was done before.
    ///
    /// *Errors*: [`SystemError::VolumeBusy`] while a QEMU writes to it or a snapshot of it is not finished;
    /// [`SystemError::SnapshotLost`]; [`SystemError::NoSpace`], with the volume as it was.
    async fn restore_snapshot(&self, restore: &NewRestore) -> Result<VolumeFacts>;

    /// Moves the data from before an interrupted restore to the trash; in Ceph, finishes the restore. Does nothing if none was interrupted.
    async fn finish_restore(&self, pool: &str, id: &str) -> Result<()>;
}

/// A move of a volume to another pool of its host.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NewMove {
    pub id: String,
    pub from: String,
    pub to: String,
}

/// A volume to take from the folder of another host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewTake {
    pub pool: String,
    pub id: String,
    /// The name of the host that had it.
    pub from: String,
    /// The uid of its Disk.
    pub uid: Option<String>,
    /// Digest of the cached image that it is an overlay on; None for a blank volume.
    pub base: Option<String>,
}

/// The greatest number of restores of a volume that its note lists; older ones are dropped, but for the last of the volume's own and the last of
/// its VM's.
pub const MOST_RESTORES: usize = 256;

/// A restore of a volume from a snapshot of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewRestore {
    pub pool: String,
    pub volume: String,
    pub snapshot: String,
    pub declared: DeclaredRestore,
    /// The least size that it has afterwards, in bytes.
    pub size: u64,
}

/// A restore as it is declared: of a volume, or of all volumes of a VM. Each is done once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeclaredRestore {
    /// The name of the snapshot of the volume.
    pub name: String,
    /// Another token restores the same snapshot once more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// The name of the snapshot of the VM, of which that of the volume is a part. None: declared for this volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm_snapshot: Option<String>,
}

impl DeclaredRestore {
    /// Whether both declare the same restore of the same scope.
    pub fn is_same(&self, other: &Self) -> bool {
        let snapshot = match (&self.vm_snapshot, &other.vm_snapshot) {
            (None, None) => self.name == other.name,
            (of_vm, other) => of_vm == other,
        };
        snapshot && self.token == other.token
    }
}

/// A restore as the note of its volume records it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Restored {
    #[serde(flatten)]
    pub declared: DeclaredRestore,
    /// The identity of the snapshot.
    pub snapshot: String,
    pub at: Timestamp,
}

impl NewRestore {
    /// Whether the volume was restored so before.
    pub fn is_done(&self, restores: &[Restored]) -> bool {
        restores.iter().any(|done| done.declared.is_same(&self.declared))
    }

    /// Returns the restores of the volume's note, with this one.
    pub(crate) fn added_to(&self, mut restores: Vec<Restored>, at: Timestamp) -> Vec<Restored> {
        restores.push(Restored { declared: self.declared.clone(), snapshot: self.snapshot.clone(), at });
        while restores.len() > MOST_RESTORES {
            // The last of each scope may be declared still, and would be done again.
            let is_of_vm = |restored: &Restored| restored.declared.vm_snapshot.is_some();
            let is_followed = |(at, old): (usize, &Restored)| {
                restores.iter().skip(at + 1).any(|new| is_of_vm(new) == is_of_vm(old))
            };
            let oldest = restores.iter().enumerate().position(is_followed);
            restores.remove(oldest.unwrap_or_default());
        }
        restores
    }
}

/// The greatest number of files of snapshots below one volume.
pub const MOST_SNAPSHOTS: usize = 32;

/// A snapshot to take of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewSnapshot {
    pub pool: String,
    pub id: String,
    pub volume: String,
    /// None: it serves as the base of a copy only, and goes with the last volume that is based on it.
    pub owner: Option<VolumeOwner>,
}

/// The result of a merge.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Merged {
    /// The volumes that are based on fewer files now. A QEMU that has one open has the former files open too.
    pub volumes: Vec<String>,
}

/// How and when a snapshot was taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taken {
    pub at: Timestamp,
    /// The guest's file systems were frozen meanwhile.
    pub frozen: bool,
    /// The memory of the guest of that moment is saved too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub memory: bool,
}

/// A snapshot as it is on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotFacts {
    pub pool: String,
    pub id: String,
    /// The volume it was taken of.
    pub volume: String,
    /// The size of the disk at that time, in bytes.
    pub size: u64,
    pub owner: Option<VolumeOwner>,
    /// None: it is begun and not finished.
    pub taken: Option<Taken>,
    /// The key of its files. None: they are not encrypted.
    pub encryption: Option<Box<SealedKey>>,
}

/// A volume to create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewVolume {
    pub pool: String,
    pub id: String,
    /// None: the size of the image. Required for a blank volume.
    pub size: Option<u64>,
    /// Digest of the cached image that it is an overlay on; None for a blank volume.
    pub base: Option<String>,
    /// The snapshot that it is an overlay on, instead of an image.
    pub snapshot: Option<String>,
    /// The file of the host that becomes the volume, instead of a new one.
    pub file: Option<PathBuf>,
    /// Whether the space for its whole size is reserved.
    pub thick: bool,
    /// Whether several machines write to it at a time: its file is raw, and blank at first.
    pub shared: bool,
    pub owner: VolumeOwner,
    /// The key that its file is encrypted with, which has to be unlocked. It is that of the snapshot, if there is one. None: it is not
    /// encrypted.
    pub encryption: Option<Box<SealedKey>>,
}

/// Checks that a new volume can have its encryption: a copy has the key of the snapshot below it, as all files of a chain have one key,
/// and a file that is taken over stays as it is.
///
/// *Errors*: [`SystemError::Invalid`].
pub(crate) fn check_encryption(new: &NewVolume, below: Option<&SealedKey>) -> Result<()> {
    let why = match (&new.file, &new.encryption, below) {
        (Some(_), Some(_), _) => "a file that is taken over stays as it is",
        (None, Some(_), None) if new.snapshot.is_some() => "it is a copy of a snapshot that is not encrypted",
        (None, None, Some(_)) => "it is a copy of a snapshot that is encrypted",
        (None, Some(key), Some(below)) if key.id != below.id => "a copy has the key of its snapshot",
        _ => return Ok(()),
    };
    Err(SystemError::Invalid { what: "encryption of volume", value: new.id.clone(), why })
}

/// A volume as it is on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeFacts {
    pub pool: String,
    pub id: String,
    /// The size that the guest sees, read from the file itself.
    pub size: u64,
    /// Digest of its base image, which may be below snapshots.
    pub base: Option<String>,
    pub owner: VolumeOwner,
    pub path: PathBuf,
    pub format: Format,
    /// The backing file, in the form that a disk's description needs.
    pub backing: Option<Backing>,
    /// How QEMU opens it on this host's file system.
    pub cache: Cache,
    /// The size that space is reserved for. None: it takes the space of what was written.
    pub reserved: Option<u64>,
    /// Its Disk was deleted with the policy to retain the file.
    pub retained: bool,
    /// The snapshot that is begun and not finished.
    pub pending_snapshot: Option<String>,
    /// Its restores, the oldest first; at most [`MOST_RESTORES`].
    pub restores: Vec<Restored>,
    /// Whether the data from before its last restore is not in the trash yet.
    pub restoring: bool,
    /// The key of its files. None: they are not encrypted.
    pub encryption: Option<Box<SealedKey>>,
    /// Why no machine can open its block device now, for people. None: it can, or it is a file.
    pub problem: Option<String>,
}

impl VolumeFacts {
    /// Whether several machines can write to it at a time: those of its host, with its raw file. All other files of volumes are qcow2.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.format == Format::Raw && !RbdImage::is_rbd(&self.path) && !self.is_device()
    }

    /// Whether it is a block device of its host, and no file.
    #[must_use]
    pub fn is_device(&self) -> bool {
        is_block_device(&self.path)
    }

    /// Whether its file is one that continues a snapshot of it, or did: after the first one, the name of the file has their number.
    #[must_use]
    pub fn continues_snapshots(&self) -> bool {
        let name = self.path.file_name().and_then(|name| name.to_str());
        let after_id = name.and_then(|name| name.strip_prefix(self.id.as_str())?.strip_prefix('.'));
        let number = after_id.and_then(|rest| rest.split_once('.')).map(|(number, _)| number);
        number.is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
    }
}

/// A volume in the trash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrashedVolume {
    pub volume: VolumeFacts,
    /// The wall clock at deletion, for people.
    pub deleted_at: Timestamp,
    /// Time in the trash, by a clock that cannot be set: the time for which this machine was on.
    pub rested: Duration,
}
