//! Disk: a volume in a pool of this host.
//!
//! ```text
//!  (image cached) ─Create─▶ file ─GrowOnline / GrowOffline─▶ file …   deleted, unused: ─Trash─▶ trash ─Release─▶ (gone)
//!  block device of the host ─UseDevice─▶ volume       deleted, unused: ─Trash─▶ block device ─Release─▶ (gone)
//!  restore annotation: trash ─Restore─▶ file                          Retain: file stays, recorded ─Release─▶ (gone)
//!  restore, no machine has it open: file ─RestoreSnapshot─▶ file with the data of the snapshot, and the former one in the trash
//!  full clone of its image, or file system: (image cached) ─StartFill─▶ file
//!  its VM has left another host: (image cached) ─Take (shared pool) / Fetch─▶ file
//!  another pool, no machine has it open: file ─StartMove─▶ file in that pool
//!  another pool, its guest runs: file ─BeginMirror─▶ file, and its copy in that pool ─FinishMirror─▶ file in that pool
//! ```
//!
//! A file that existed once and is missing is never created again: that would replace data with an empty disk.

mod apply;
mod backup;
mod claims;
mod device;
mod encryption;
#[cfg(test)]
mod encryption_tests;
mod fetch;
mod fill;
mod mirror;
mod observe;
mod plan;
mod source;
mod status;

use async_trait::async_trait;
use berth_api::{
    Binding, Conditions, Disk, DiskSnapshot, DiskStatus, HotswapDiskAttachment, Image, Readiness, VM,
};
use jiff::Timestamp;
use kube::ResourceExt;

use crate::context::Context;
use crate::converge::{Plan, Reconciler, Requeue, converge};
use crate::departed;
use crate::error::Error;
use crate::index::{Departed, Indexed, Table, Tables, volume_of};
use crate::key::{Key, ObjectName};
use crate::pools;
use berth_host::{
    ImageSource, NewDevice, NewMove, NewRestore, NewSnapshot, NewTake, NewVolume, SealedKey, VolumeOwner,
};
use berth_qemu::block::IoLimits;

use crate::pulls::Wanted;

use observe::Observed;

pub(crate) use backup::wanted;
pub(crate) use encryption::is_unencrypted;
pub(crate) use fetch::{copied_percent, is_in_local_pool, is_local_pool, wanted_copies};
pub(crate) use fill::wanted_fills;

/// A step of a disk's plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Starts the download of its image, which continues in the background.
    Pull(ImageSource),
    /// Has the disk enqueued on the progress of a download that another object started.
    FollowPull(ImageSource),
    Create(NewVolume),
    /// Records that it is a block device of this host.
    UseDevice(NewDevice),
    /// Moves its file from the folder of its former host in a shared pool.
    Take(NewTake),
    /// Starts to copy its file from its former host, in a pool of single hosts, which continues in the background.
    Fetch(Wanted),
    /// Starts to make its file from a backup, which continues in the background.
    StartRestore(Wanted),
    /// Has the disk enqueued on the progress of that.
    FollowRestore(Wanted),
    /// Ends either: nothing is made for a disk that is gone.
    CancelRestore(String),
    /// Starts to make its file with a copy of its image or with a file system, which continues in the background.
    StartFill(Wanted),
    /// Has the disk enqueued on the end of that.
    FollowFill(Wanted),
    /// Takes the snapshot that the disk is to be an overlay on, or finishes one that was begun of the disk itself.
    TakeSnapshot(NewSnapshot),
    Restore {
        pool: String,
        volume: String,
        owner: VolumeOwner,
    },
    /// Gives the volume the data of a snapshot of it.
    RestoreSnapshot(NewRestore),
    /// Moves the data from before an interrupted restore to the trash.
    FinishRestore {
        pool: String,
        volume: String,
    },
    /// Records beside the file that it belongs to this disk, which had another uid before.
    TakeOver {
        pool: String,
        volume: String,
        owner: VolumeOwner,
    },
    GrowOffline {
        pool: String,
        volume: String,
        bytes: u64,
    },
    /// Replaces the sealed form of its key, beside its file.
    Rewrap {
        pool: String,
        volume: String,
        key: Box<SealedKey>,
    },
    /// Reserves the space for a disk of this size.
    Reserve {
        pool: String,
        volume: String,
        bytes: u64,
    },
    /// Changes the ceilings of the disk in the machine that has it open.
    SetLimits {
        volume: String,
        limits: IoLimits,
    },
    /// Starts the move of its file to another pool, which continues in the background.
    StartMove(Wanted),
    /// Has the disk enqueued on the progress of that.
    FollowMove(Wanted),
    /// Ends the moves of this volume.
    CancelMove(String),
    /// Has the machine that has the volume open begin to copy it to another pool.
    BeginMirror(NewMove),
    /// Switches the machine to that copy, records it, and removes the former file.
    FinishMirror(String),
    /// Ends that, with the volume where it is. With why, if it failed.
    CancelMirror {
        volume: String,
        failure: Option<String>,
    },
    /// Has the machine that has the volume open read through the files that it is based on now: fewer than the machine has open.
    ShortenChain {
        pool: String,
        volume: String,
    },
    /// Grows the volume through the machine that has it open.
    GrowOnline {
        volume: String,
        bytes: u64,
    },
    Trash {
        pool: String,
        volume: String,
    },
    /// Records beside the file that it is kept without a Disk.
    Retain {
        pool: String,
        volume: String,
    },
    /// Removes this host's finalizer.
    Release,
}

impl Indexed for Disk {
    fn table(tables: &mut Tables) -> &mut Table<Self> {
        &mut tables.disks
    }

    fn departed(tables: &mut Tables) -> Option<&mut Departed<Self>> {
        Some(&mut tables.departed_disks)
    }

    fn keys_of(name: &ObjectName, disk: &Self, tables: &Tables) -> Vec<Key> {
        let mut keys = vec![Key::new::<Disk>(name.clone()), Key::host()];
        keys.extend(tables.vms_where(|vm_name, vm| {
            vm_name.namespace == name.namespace && vm.spec.disks.iter().any(|d| d.name.as_str() == name.name)
        }));
        let users = disk.status.iter().flat_map(|s| &s.used_by);
        keys.extend(users.map(|u| Key::new::<VM>(name.beside(&u.vm))));
        let attachments = tables
            .attachments
            .all()
            .filter(|(a_name, a)| a_name.namespace == name.namespace && a.spec.disk.as_str() == name.name);
        keys.extend(attachments.map(|(name, _)| Key::new::<HotswapDiskAttachment>(name.clone())));
        let snapshots = tables
            .disk_snapshots
            .all()
            .filter(|(s_name, s)| s_name.namespace == name.namespace && s.spec.disk.as_str() == name.name);
        keys.extend(snapshots.map(|(name, _)| Key::new::<DiskSnapshot>(name.clone())));
        let copies = tables.disks.all();
        let copies = copies.filter(|(_, copy)| copy.is_copy_of_disk(&name.namespace, &name.name));
        keys.extend(copies.map(|(name, _)| Key::new::<Disk>(name.clone())));
        // Those of other namespaces wait for the grant.
        let images = tables.images.all().filter(|(_, image)| {
            let source = &image.spec.source;
            image.foreign_data() == Some(name.namespace.as_str())
                && source.disk.as_ref().is_some_and(|disk| disk.as_str() == name.name)
        });
        keys.extend(images.map(|(name, _)| Key::new::<Image>(name.clone())));
        keys
    }

    /// Its own reconcile reads from the status what uses it, the pool of its file, the host that had its data, and the class that its key gets next.
    fn reads_own_write(old: &Self, new: &Self) -> bool {
        let read = |disk: &Self| {
            let status = disk.status.as_ref()?;
            let next = status.encryption.as_ref().and_then(|found| found.next.clone());
            Some((status.used_by.clone(), status.pool.clone(), status.former_host.clone(), next))
        };
        read(old) != read(new)
    }
}

#[derive(Debug)]
pub(crate) struct DiskReconciler;

#[async_trait]
impl Reconciler for DiskReconciler {
    type Object = Disk;
    type Status = DiskStatus;
    type Observed = Observed;
    type Step = Step;

    async fn observe(ctx: &Context, disk: &Disk) -> Result<Observed, Error> {
        observe::observe(ctx, disk).await
    }

    fn plan(disk: &Disk, observed: &Observed) -> Plan<Step> {
        plan::plan(disk, observed)
    }

    async fn apply(ctx: &Context, disk: &Disk, step: &Step) -> Result<(), Error> {
        apply::apply(ctx, disk, step).await
    }

    fn status(disk: &Disk, observed: &Observed, readiness: &Readiness, now: Timestamp) -> DiskStatus {
        status::status(disk, observed, readiness, now)
    }

    fn without_progress(stored: &DiskStatus, status: &DiskStatus) -> DiskStatus {
        status::without_progress(stored, status)
    }

    fn binding(disk: &Disk) -> Option<&Binding> {
        disk.status.as_ref()?.binding.as_ref()
    }

    fn conditions(status: &DiskStatus) -> &Conditions {
        &status.conditions
    }
}

/// Reconciles the disk of this name, and those of the same name that were deleted without their finalizer.
pub(crate) async fn reconcile(ctx: &Context, name: &ObjectName) -> Result<Requeue, Error> {
    let departed = reconcile_departed(ctx, name).await?;
    let found = ctx.index.read().disks.get(name);
    match found {
        Some(disk) => Ok(departed.sooner(reconcile_one(ctx, &disk).await?)),
        None => Ok(departed),
    }
}

/// Moves the files of the departed Disks of this name to the trash, unless they are to be retained.
async fn reconcile_departed(ctx: &Context, name: &ObjectName) -> Result<Requeue, Error> {
    let found = ctx.index.read().departed_disks.named(name);
    let mut again = Requeue::OnChange;
    for disk in found {
        let volume = match volume_of(&disk) {
            Some(volume) => pools::present(ctx, disk.pool().as_str(), volume).await?,
            None => None,
        };
        let here = volume.is_some_and(|v| !v.retained && v.owner.uid == disk.metadata.uid);
        if !here || departed::exists(&ctx.client, disk.as_ref()).await? {
            ctx.index.read().departed_disks.forget(&disk);
            continue;
        }
        tracing::warn!(disk = %name, uid = disk.uid(), "deleted without its finalizer: its file is let go");
        let disk = departed::with_finalizer(disk.as_ref(), ctx.now());
        again = again.sooner(reconcile_one(ctx, &disk).await?);
    }
    Ok(again)
}

/// Reconciles a disk. No machine can take the volume during the reconcile. After a reconcile that changed the users but
/// could not report them, no machine can take it until a later one succeeds: only then is it known what the control
/// plane holds.
async fn reconcile_one(ctx: &Context, disk: &Disk) -> Result<Requeue, Error> {
    let volume = volume_of(disk).unwrap_or_default();
    ctx.machines.block_reservations(volume);
    let done = converge::<DiskReconciler>(ctx, disk).await;
    // Without a change of users, the control plane can only hold the users known here. Whether the file exists is not
    // known here; assuming that it does is the stricter check, as it includes orphans.
    let same = || disk.status.as_ref().is_some_and(|s| s.used_by == observe::users(ctx, disk, volume, true));
    if done.is_ok() || same() {
        ctx.machines.allow_reservations(volume);
    }
    done
}
