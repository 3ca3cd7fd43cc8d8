//! Observation of a disk.

use berth_api::vm::disk_obstacle;
use berth_api::{
    ConditionType, DEFAULT_NAME, Disk, DiskSnapshot, LeaveFacts, ObjectUse, Reason, ResourceName,
    StoragePoolType, UseKind, VM, condition, former_uid,
};
use berth_host::{SnapshotFacts, VolumeFacts};
use berth_qemu::block::IoLimits;
use berth_qemu::power::RunState;
use futures::future::join_all;
use jiff::Timestamp;
use kube::{Resource, ResourceExt};

use super::backup::{self, LocalBackup};
use super::claims::{self, UseRequest};
use super::fetch::{self, DiskCopy};
use super::fill;
use super::source::{self, LocalSource};
use crate::context::Context;
use crate::error::Error;
use crate::index::{Index, Tables, volume_of};
use crate::key::{Key, ObjectName};
use crate::kinds::image::local::{self, LocalImage};
use crate::machine::{Holder, Machine};
use crate::mirrors::{self, OpenVolume, SeenMirror};
use crate::moves::{self, Move};
use crate::plugging::{class_limits, io_limits};
use crate::pools::{self, SeenVolume};
use crate::pulls::Pull;
use crate::restores::{self, Restore};
use crate::unlocking::{self, Held, KeyState};

/// Everything a disk's plan is made from.
#[derive(Clone, Debug, Default)]
pub(crate) struct Observed {
    pub(crate) volume: Option<VolumeFacts>,
    /// The pool of this host that has its file of an earlier stay of its VM, while another host has its data in a pool that hosts share.
    pub(crate) earlier_in: Option<String>,
    /// Why its pool is away. Its volume is not known then, nor anything that follows from it.
    pub(crate) away: Option<String>,
    /// Whether this host has a record of its volume, and the file is gone.
    pub(crate) is_lost: bool,
    /// Size in bytes as seen by the running machines that have it open.
    pub(crate) open_size: Option<u64>,
    /// Its ceilings in these machines: those in one of them that has others than declared, if there is one.
    pub(crate) open_limits: Option<IoLimits>,
    /// The ceilings of a disk that has none of its own. As long as its VM or the class is not known, those that it has in a machine.
    pub(crate) default_limits: IoLimits,
    /// The most files that one of these machines has open below that of the disk. None also while its chain cannot be changed.
    pub(crate) files_below: Option<u64>,
    /// Whether they have it open for reading only.
    pub(crate) is_read_only: bool,
    /// The image that a disk without a file is created from. None: a blank disk, or one that already has a file.
    pub(crate) image: Option<LocalImage>,
    /// The source that a disk without a file is copied from. None: it is no copy, or it has a file.
    pub(crate) source: Option<LocalSource>,
    /// The backup that a disk without a file is made from. None: it is made from none, or it has a file.
    pub(crate) backup: Option<LocalBackup>,
    /// Whether the pool of a disk without a file is in Ceph.
    pub(crate) is_in_ceph: bool,
    /// The work that makes a disk without a file with data of this host.
    pub(crate) filling: Option<Pull>,
    /// Its copy from the host that has its data. None: this host has it, or its pool is one that hosts share.
    pub(crate) fetch: Option<DiskCopy>,
    /// Whether it is being made from a backup. Only observed of a disk that is deleted.
    pub(crate) is_restoring: bool,
    /// The snapshot of its volume that is begun and not finished.
    pub(crate) pending_snapshot: Option<SnapshotFacts>,
    /// Whether its DiskSnapshot takes it, together with those of other disks.
    pub(crate) pending_with_others: bool,
    /// The restore that it declares; only observed of a disk with a file.
    pub(crate) restore: Restore,
    /// The move to another pool that it declares; only observed of a disk with a file.
    pub(crate) moving: Move,
    /// Its mirror to another pool, while a machine has it open.
    pub(crate) mirror: SeenMirror,
    /// Whether a move goes on that it does not declare (any more).
    pub(crate) has_stray_move: bool,
    /// The pool of its file, if that is the default pool of the namespace, and the status of the Disk was lost.
    pub(crate) default_pool: Option<ResourceName>,
    /// The facts about other objects by which it outlives this host. None: it has no file, or its pool is not known.
    pub(crate) leave_facts: Option<LeaveFacts>,
    /// Bytes that its file took when that was measured last.
    pub(crate) used: Option<u64>,
    /// The VM whose machine has its file open, or may have. Only observed for a restore or a move.
    pub(crate) opener: Option<String>,
    /// Whether the file is in the trash; only checked for a disk that is to be restored.
    pub(crate) in_trash: bool,
    pub(crate) users: Vec<ObjectUse>,
    /// Whether a machine without a VM bound here has its file open, or may have.
    pub(crate) has_orphan: bool,
    pub(crate) key: KeyState,
    /// Whether the VM it is created for has not been admitted by this host yet.
    pub(crate) user_waits: bool,
}

pub(super) async fn observe(ctx: &Context, disk: &Disk) -> Result<Observed, Error> {
    let Some(id) = volume_of(disk).map(str::to_owned) else { return Ok(Observed::default()) };
    let SeenVolume { facts: volume, away, is_lost } = pools::look_everywhere(ctx, disk, &id).await?;
    let pool = volume.as_ref().map_or_else(|| disk.pool().to_string(), |volume| volume.pool.to_string());
    if away.is_some() {
        return Ok(Observed { away, users: users(ctx, disk, &id, true), ..Observed::default() });
    }
    let fetch = fetch::observe(ctx, disk, volume.as_ref()).await?;
    // A file that is here does not count before it is the copy of that one.
    let volume = volume.filter(|_| fetch.as_ref().is_none_or(|fetch| fetch.has_arrived));
    let (volume, earlier_in) = match volume {
        Some(earlier) if fetch.is_none() && fetch::is_earlier(disk, ctx.host(), &earlier) => {
            (None, Some(earlier.pool))
        }
        volume => (volume, None),
    };
    let restores = disk.annotations().contains_key(berth_api::RESTORE_ANNOTATION);
    let in_trash = volume.is_none()
        && restores
        && ctx.system.trash().await?.iter().any(|t| t.volume.id == id && t.volume.pool == *pool);
    let open = opened(ctx, &id).await;
    let mut limits = open.iter().map(|open| open.disk.limits);
    let first_limits = limits.clone().next();
    let default_limits = class_limits(&ctx.index.read(), disk).or(first_limits).unwrap_or_default();
    let declared = disk.spec.limits.as_deref().map_or(default_limits, |own| io_limits(Some(own)));
    let open_limits = limits.find(|limits| *limits != declared).or(first_limits);
    let files_below = open.iter().filter(|open| open.changes).map(|open| open.disk.files_below).max();
    let open_size = open.first().map(|open| open.disk.size);
    let is_read_only = open.iter().any(|open| open.disk.read_only);
    let (image, source, backup) = match &volume {
        Some(_) => (None, None, None),
        // Nothing is made any more, and a source that cannot be looked at holds up no deletion.
        None if leaves(disk) => (None, None, None),
        None => (image(ctx, disk).await?, source::observe(ctx, disk).await?, backup::observe(ctx, disk)),
    };
    let filling = if volume.is_none() { fill::observe(ctx, disk) } else { None };
    let is_in_ceph = volume.is_none() && fill::is_in_ceph(&ctx.index.read(), disk);
    let held = match (&volume, &source) {
        (Some(volume), _) => Held::File(volume.encryption.as_deref()),
        (None, Some(source)) => source.held(),
        (None, None) => Held::New,
    };
    let key = unlocking::observe(ctx, disk, held).await;
    let pending = volume.as_ref().and_then(|volume| volume.pending_snapshot.as_deref());
    let pending_snapshot = match pending {
        Some(snapshot) => ctx.system.snapshot(&pool, snapshot).await?,
        None => None,
    };
    let restore = match &volume {
        Some(volume) => restores::observe(ctx, disk, volume).await?,
        None => Restore::default(),
    };
    let moving = declared_move(ctx, disk, volume.as_ref()).await?;
    let mirror = mirrors::observe(ctx, disk, volume.as_ref(), &moving, &open).await?;
    let opener = (restore.is_due() || moving.is_due()).then(|| opener(ctx, disk, &id)).flatten();
    let has_orphan = volume.is_some() && orphan(ctx, disk, &id).is_some();
    let users = users(ctx, disk, &id, volume.is_some());
    let none_admitted = !users.is_empty() && users.iter().all(|user| !is_admitted(&ctx.index, user));
    let user_waits = volume.is_none() && !restores && none_admitted;
    let default_pool = default_pool(&ctx.index.read(), disk, volume.as_ref());
    let leave_facts = volume.as_ref().and_then(|volume| leave_facts(&ctx.index.read(), disk, &volume.pool));
    Ok(Observed {
        volume,
        earlier_in,
        default_pool,
        leave_facts,
        away,
        is_lost,
        open_size,
        open_limits,
        default_limits,
        files_below,
        is_read_only,
        image,
        source,
        backup,
        is_in_ceph,
        filling,
        fetch,
        is_restoring: leaves(disk) && (ctx.pulls.is_restoring(&id) || ctx.system.is_making(&id)),
        pending_with_others: pending_snapshot.as_ref().is_some_and(|facts| is_taken_with_others(ctx, facts)),
        pending_snapshot,
        restore,
        has_stray_move: moving == Move::Done && ctx.pulls.is_moving(&id),
        moving,
        mirror,
        used: ctx.disk_use.of(&id),
        opener,
        in_trash,
        users,
        has_orphan,
        key,
        user_waits,
    })
}

/// Returns the pool of the file of a Disk that has no status and names no pool, if it is the default pool of the namespace: the file is not
/// to be moved to the pool `default`.
fn default_pool(tables: &Tables, disk: &Disk, volume: Option<&VolumeFacts>) -> Option<ResourceName> {
    let is_reported = disk.status.as_ref().is_some_and(|status| status.pool.is_some());
    let pool = volume.filter(|_| disk.spec.names_no_pool() && !is_reported)?.pool.as_str();
    let declared = tables.pools.get(&ObjectName::new("", pool))?;
    let is_default = declared.spec.is_default_for(&disk.namespace().unwrap_or_default());
    (is_default && pool != DEFAULT_NAME).then(|| pool.into())
}

/// Returns the facts about other objects by which a disk in this pool can leave its host, as the controllers see them.
fn leave_facts(tables: &Tables, disk: &Disk, pool: &str) -> Option<LeaveFacts> {
    let pool = tables.pools.get(&ObjectName::new("", pool))?;
    let namespace = disk.namespace().unwrap_or_default();
    let is_in_ceph = pool.spec.pool_type == StoragePoolType::Rbd;
    let image = disk.image_below(is_in_ceph).and_then(|name| tables.images.find(&namespace, name.as_str()));
    Some(LeaveFacts {
        is_in_shared_pool: pool.spec.pool_type.is_shared(),
        is_in_ceph,
        has_image_of_one_host: image.is_some_and(|image| image.is_of_one_host()),
        has_snapshots: tables.disk_snapshots.all().any(|(_, snapshot)| snapshot.is_of(disk)),
    })
}

async fn declared_move(ctx: &Context, disk: &Disk, volume: Option<&VolumeFacts>) -> Result<Move, Error> {
    match volume {
        Some(volume) => moves::observe(ctx, disk, volume).await,
        None => Ok(Move::Done),
    }
}

/// Returns the volume as the machines that have it open see it.
async fn opened(ctx: &Context, volume: &str) -> Vec<OpenVolume> {
    let mut open = Vec::new();
    let openers = ctx.machines.openers(volume);
    // Those that do not answer are not waited for one after the other.
    for mut state in join_all(openers.iter().map(Machine::state)).await.into_iter().flatten() {
        let is_running = state.run_state == RunState::Running;
        let changes = is_running || state.run_state == RunState::Paused;
        let mirror = state.mirrors.remove(volume);
        let disk = state.disks.into_iter().find(|disk| disk.id == volume);
        open.extend(disk.map(|disk| OpenVolume { disk, changes, is_running, mirror }));
    }
    open
}

async fn image(ctx: &Context, disk: &Disk) -> Result<Option<LocalImage>, Error> {
    let Some(name) = &disk.spec.image else { return Ok(None) };
    let is_elsewhere = disk.status.as_ref().is_some_and(|status| status.former_host.is_some());
    let is_in_ceph = fill::is_in_ceph(&ctx.index.read(), disk);
    // Its file on another host does not depend on the image.
    if is_elsewhere && disk.image_below(is_in_ceph).is_none() {
        return Ok(None);
    }
    let namespace = disk.namespace().unwrap_or_default();
    local::observe(ctx, &namespace, name.as_str(), &Key::of(disk)).await.map(Some)
}

/// Returns the users of the disk. A machine without a VM bound here can only have the file open if the file exists.
pub(super) fn users(ctx: &Context, disk: &Disk, volume: &str, is_there: bool) -> Vec<ObjectUse> {
    let mut requests = requests(&ctx.index.read(), disk);
    if leaves(disk) {
        // A deleted disk stays with the VM that has it and is given to no other.
        let have: Vec<&str> =
            disk.status.iter().flat_map(|s| &s.used_by).map(|user| user.vm_uid.as_str()).collect();
        requests.retain(|request| have.contains(&request.by.vm_uid.as_str()));
    }
    let have = disk.status.as_ref().map(|s| s.used_by.clone()).unwrap_or_default();
    // The scheduler binds a disk before the VM it is for. The file has not been created yet, and the scheduler unbinds
    // the disk if the VM does not arrive.
    let unmade = disk.status.as_ref().is_some_and(|status| {
        let here = status.binding.as_ref().map(|binding| &binding.host);
        // The file of a disk whose VM has left another host is there still.
        let is_untaken = status.former_host.is_some() && status.former_host.as_ref() != here;
        status.size.is_none() || (is_untaken && !is_there)
    });
    let orphan = if is_there { orphan(ctx, disk, volume) } else { None };
    if unmade && orphan.is_none() && !leaves(disk) && have.iter().any(|user| !is_here(&ctx.index, user)) {
        return have;
    }
    // A machine is known by the uid in its journal until the VM that now has another uid has taken it over.
    let former = |user: &ObjectUse| {
        let tables = ctx.index.read();
        let vm = tables.vms.all().map(|(_, vm)| vm).find(|vm| vm.metadata.uid.as_ref() == Some(&user.vm_uid));
        vm.and_then(|vm| former_uid(vm.as_ref()).map(str::to_owned))
    };
    let holds = |user: &ObjectUse| {
        ctx.machines.holds(&user.vm_uid, volume)
            || former(user).is_some_and(|uid| ctx.machines.holds(&uid, volume))
    };
    match disk.is_for_many() {
        true => claims::sharers(&have, &requests, orphan.as_ref(), holds),
        false => claims::users(&have, &requests, orphan.as_ref(), holds),
    }
}

/// Returns the name of the VM, or of the instance, that has the volume open, or may have. A suspended machine has its disks open.
pub(super) fn opener(ctx: &Context, disk: &Disk, volume: &str) -> Option<String> {
    let holders = ctx.machines.holders(volume).into_iter().filter(|holder| is_possible(holder, disk));
    let holder = holders.max_by_key(|holder| holder.is_certain)?;
    Some(vm_of(&holder).map_or_else(|| holder.instance.clone(), |vm| vm.name))
}

fn vm_of(holder: &Holder) -> Option<ObjectName> {
    holder.key.as_ref().map(|vm| vm.name.clone())
}

/// Whether the machine has the disk, or may have it. A machine only has disks of its own namespace, so an unresponsive machine
/// blocks no other tenant.
fn is_possible(holder: &Holder, disk: &Disk) -> bool {
    let namespace = disk.metadata.namespace.as_ref();
    holder.is_certain || vm_of(holder).is_none_or(|vm| Some(&vm.namespace) == namespace)
}

/// Returns the use by a machine that has the volume open, or may have, and has no VM bound here: the VM's object was
/// deleted, or is not bound here, as after a restore.
fn orphan(ctx: &Context, disk: &Disk, volume: &str) -> Option<ObjectUse> {
    let holders = ctx.machines.holders(volume);
    let tables = ctx.index.read();
    let is_here = |uid: &str| {
        let mut vms = tables.vms.all().map(|(_, vm)| vm);
        vms.any(|vm| vm.metadata.uid.as_deref() == Some(uid) || former_uid(vm.as_ref()) == Some(uid))
    };
    let orphans = holders.into_iter().filter(|holder| !holder.vm_uid.as_deref().is_some_and(is_here));
    let orphan = orphans.filter(|holder| is_possible(holder, disk)).max_by_key(|holder| holder.is_certain)?;
    Some(ObjectUse {
        use_kind: UseKind::Fixed,
        vm: vm_of(&orphan).map_or_else(|| orphan.instance.clone(), |vm| vm.name),
        vm_uid: orphan.vm_uid.unwrap_or_default(),
        attachment: None,
    })
}

fn is_here(index: &Index, user: &ObjectUse) -> bool {
    index.read().vms.all().any(|(_, vm)| vm.metadata.uid.as_ref() == Some(&user.vm_uid))
}

fn is_admitted(index: &Index, user: &ObjectUse) -> bool {
    let tables = index.read();
    let vm = tables.vms.all().map(|(_, vm)| vm).find(|vm| vm.metadata.uid.as_ref() == Some(&user.vm_uid));
    vm.and_then(|vm| vm.status.as_ref()).is_some_and(berth_api::VMStatus::is_admitted)
}

/// Returns the claims of all VMs and attachments on this host that name the disk.
fn requests(tables: &Tables, object: &Disk) -> Vec<UseRequest> {
    let disk = &ObjectName::of(object);
    let here = |name: &ObjectName| name.namespace == disk.namespace;
    let mut requests = Vec::new();
    for (name, vm) in tables.vms.all().filter(|(name, _)| here(name)) {
        let names_it = vm.spec.disks.iter().any(|d| d.name.as_str() == disk.name);
        if names_it && disk_obstacle(object, vm).is_none() {
            let by = used(UseKind::Fixed, name, vm, None);
            requests.push(UseRequest { by, since: created(vm.as_ref()), leaving: leaves(vm.as_ref()) });
        }
    }
    for (name, attachment) in tables.attachments.all().filter(|(name, _)| here(name)) {
        // An attachment has nothing that makes a disk read-only, and is of a disk of one VM.
        if attachment.spec.disk.as_str() != disk.name || object.is_for_many() {
            continue;
        }
        let vm_name = name.beside(attachment.spec.vm.as_str());
        let Some(vm) = tables.vms.get(&vm_name) else { continue };
        let by = used(UseKind::Hotswap, &vm_name, &vm, Some(name.name.clone()));
        let leaving = leaves(attachment.as_ref()) || leaves(vm.as_ref());
        requests.push(UseRequest { by, since: created(attachment.as_ref()), leaving });
    }
    requests
}

fn used(use_kind: UseKind, name: &ObjectName, vm: &VM, attachment: Option<String>) -> ObjectUse {
    ObjectUse { use_kind, vm: name.name.clone(), vm_uid: vm.uid().unwrap_or_default(), attachment }
}

fn created(object: &impl ResourceExt) -> Option<Timestamp> {
    object.creation_timestamp().map(|time| time.0)
}

fn leaves(object: &impl Resource) -> bool {
    object.meta().deletion_timestamp.is_some()
}

/// Whether a snapshot that is begun is left to its DiskSnapshot: by itself it would be of another moment than the other parts of its
/// VMSnapshot. One that cannot be taken so any more is finished like any other.
fn is_taken_with_others(ctx: &Context, facts: &SnapshotFacts) -> bool {
    let Some(owner) = &facts.owner else { return false };
    let name = ObjectName::new(owner.namespace.clone(), owner.name.clone());
    let object = ctx.index.read().disk_snapshots.get(&name);
    object.is_some_and(|object| {
        object.uid() == owner.uid
            && object.part_of().is_some()
            && object.metadata.deletion_timestamp.is_none()
            && !is_refused(&object)
    })
}

/// Whether a snapshot cannot be taken with others any more.
fn is_refused(snapshot: &DiskSnapshot) -> bool {
    let conditions = snapshot.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let stalled = condition::find(conditions, ConditionType::Stalled.as_str());
    // A pool that is away comes back, and the snapshots are taken then.
    stalled.is_some_and(|stalled| stalled.status == "True" && stalled.reason != Reason::PoolAway.as_str())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_part_of_a_snapshot_waits_for_a_pool_that_is_away_and_not_for_a_moment_that_is_over() {
        let snapshot = |kind: &str, status: &str, reason: Reason| -> DiskSnapshot {
            let condition = json!({
                "type": kind, "status": status, "reason": reason.as_str(), "message": "",
                "lastTransitionTime": "2026-01-09T00:00:00Z",
            });
            let object = json!({
                "metadata": {"name": "s", "namespace": "ns"},
                "spec": {"disk": "d"},
                "status": {"conditions": [condition]},
            });
            serde_json::from_value(object).expect("a DiskSnapshot")
        };
        assert!(is_refused(&snapshot("Stalled", "True", Reason::SnapshotInterrupted)));
        assert!(!is_refused(&snapshot("Stalled", "True", Reason::PoolAway)));
        assert!(!is_refused(&snapshot("Stalled", "False", Reason::SnapshotInterrupted)));
        assert!(!is_refused(&snapshot("Reconciling", "True", Reason::Retrying)));
    }
}
