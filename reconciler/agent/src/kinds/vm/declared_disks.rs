//! The disks that a VM declares, with what this host knows about their files.

use std::collections::BTreeMap;

use berth_api::condition::{find, is_true};
use berth_api::vm::{VMOperationName, disk_obstacle};
use berth_api::{ConditionType, DataOrigin, Disk, ExpandPolicy, MOST_DISK_READERS, ObjectUse, Reason, VM};
use berth_host::VolumeFacts;
use berth_qemu::machine::Bus;
use kube::ResourceExt;

use crate::context::Context;
use crate::error::Error;
use crate::hardware::bus_of;
use crate::index::{Tables, instance_of, left_on, volume_of};
use crate::key::{Key, ObjectName};
use crate::kinds::disk::{copied_percent, is_in_local_pool, is_unencrypted};
use crate::kinds::image::local;
use crate::moves;
use crate::plugging::is_limited;
use crate::pools::{self, SeenVolume};
use crate::restores;

/// A disk listed in the spec.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DeclaredDisk {
    pub(crate) name: String,
    pub(crate) boot: bool,
    pub(crate) volume: Option<VolumeFacts>,
    pub(crate) volume_id: Option<String>,
    pub(crate) serial: String,
    pub(crate) user: User,
    /// The Disk's own message when it is not ready.
    pub(crate) problem: Option<String>,
    /// Whether it is encrypted, and this host does not have its key.
    pub(crate) is_locked: bool,
    /// Whether the control plane knows that its file exists, so that it never gets another one.
    pub(crate) reported: bool,
    pub(crate) bus: Bus,
    pub(crate) read_only: bool,
    /// Whether its file is to grow before a machine opens it.
    pub(crate) grows_first: bool,
    /// Whether it is to be restored from a snapshot before a machine opens it.
    pub(crate) restores_first: bool,
    /// Whether it is to be moved to another pool before a machine opens it.
    pub(crate) moves_first: bool,
    /// Whether its machine counts as having it open, also if it has no such disk: since it was to be plugged in.
    pub(crate) is_reserved: bool,
    /// The work on it that its VM waits for, if that is an operation.
    pub(crate) work: Option<DiskWork>,
    /// Whether it has ceilings of its operations and bandwidth.
    pub(crate) has_limits: bool,
}

/// Long-running work on a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DiskWork {
    /// The operation of the VM that waits for it.
    pub(crate) operation: VMOperationName,
    pub(crate) percent: Option<i64>,
}

/// The VM that a disk is given to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum User {
    None,
    ThisVm,
    Other(String),
}

/// Returns whether a disk is given to this VM, or to another one.
pub(crate) fn user_of(disk: &Disk, vm: &VM) -> User {
    let users = disk.status.as_ref().map(|status| status.used_by.as_slice()).unwrap_or_default();
    let is_own = |user: &&ObjectUse| Some(&user.vm_uid) == vm.metadata.uid.as_ref();
    match (users.iter().find(is_own), users.first()) {
        (Some(own), _) if own.attachment.is_none() => User::ThisVm,
        (Some(own), _) => User::Other(own.vm.clone()),
        // Its host adds this VM to the others.
        (None, Some(_)) if disk.is_for_many() && users.len() < MOST_DISK_READERS => User::None,
        (None, Some(other)) => User::Other(other.vm.clone()),
        (None, None) => User::None,
    }
}

/// Observes the disks in the spec, in its order.
pub(super) async fn declared_disks(
    ctx: &Context,
    vm: &VM,
    name: &ObjectName,
) -> Result<Vec<DeclaredDisk>, Error> {
    let mut seen = Vec::new();
    for wanted in &vm.spec.disks {
        let disk = ctx.index.read().disks.get(&name.beside(wanted.name.as_str()));
        let status = disk.as_ref().and_then(|d| d.status.clone()).unwrap_or_default();
        let SeenVolume { facts: volume, away, .. } = match (&disk, &status.volume_id) {
            (Some(disk), Some(id)) => pools::look(ctx, disk.pool().as_str(), id).await?,
            _ => SeenVolume::default(),
        };
        // A file that is here is an earlier one then, or not reported yet.
        let left = disk.as_ref().and_then(|disk| left_on(disk, ctx.host()));
        let volume = volume.filter(|_| left.is_none());
        let unusable = disk.as_ref().and_then(|disk| disk_obstacle(disk, vm));
        let user = match &disk {
            Some(disk) if unusable.is_none() => user_of(disk, vm),
            _ => User::None,
        };
        let ready = find(&status.conditions, "Ready").filter(|c| c.status != "True");
        let stalled = is_true(&status.conditions, ConditionType::Stalled);
        // A restore or a move that is refused leaves the disk as it is.
        let harmless = [Reason::RestoreRefused.as_str(), Reason::MoveRefused.as_str()];
        let stalled = stalled && ready.is_none_or(|c| !harmless.contains(&c.reason.as_str()));
        let not_ready = ready.filter(|_| stalled || volume.is_none()).map(|c| match c.message.as_str() {
            "" => c.reason.clone(),
            message => format!("{}: {message}", c.reason),
        });
        let found = disk.as_ref().zip(volume.as_ref());
        let unencrypted = found.and_then(|(disk, volume)| unencrypted(disk, volume));
        let locked = volume.as_ref().and_then(|volume| locked(ctx, volume));
        let is_locked = locked.is_some();
        let away = away.map(|text| format!("{}: {text}", Reason::PoolAway));
        let is_copied =
            left.is_some() && disk.as_ref().is_some_and(|disk| is_in_local_pool(&ctx.index.read(), disk));
        let left = left.map(|host| format!("{}: host {host} has its data still", Reason::Moving));
        let no_device = volume.as_ref().and_then(|volume| volume.problem.clone());
        let no_device = no_device.map(|text| format!("{}: {text}", Reason::DeviceUnavailable));
        let problem = unusable.or(away).or(not_ready).or(left).or(unencrypted).or(locked).or(no_device);
        let restores_first = match (&disk, &volume) {
            (Some(disk), Some(volume)) => restores::observe(ctx, disk, volume).await?.is_due(),
            _ => false,
        };
        let moves_first = match (&disk, &volume) {
            (Some(disk), Some(volume)) => {
                moves::comes_first(ctx, disk, volume, vm.metadata.uid.as_deref()).await?
            }
            _ => false,
        };
        let is_pulled = volume.is_none() && ready.is_some_and(|c| c.reason == Reason::Pulling.as_str());
        let work = match (&disk, operation(restores_first, moves_first || is_copied, is_pulled)) {
            (Some(disk), Some(operation)) => Some(work(ctx, disk, operation).await),
            _ => None,
        };
        let grows_first = disk.as_ref().zip(volume.as_ref()).is_some_and(|(d, v)| grows_first(d, v));
        seen.push(DeclaredDisk {
            name: wanted.name.to_string(),
            boot: wanted.boot,
            bus: bus_of(wanted.bus),
            read_only: wanted.read_only,
            grows_first,
            restores_first,
            moves_first,
            is_reserved: volume
                .as_ref()
                .zip(instance_of(vm))
                .is_some_and(|(volume, instance)| ctx.machines.is_certain_holder(instance, &volume.id)),
            work,
            has_limits: disk.as_ref().is_some_and(|disk| is_limited(&ctx.index.read(), disk)),
            volume,
            reported: status.size.is_some(),
            volume_id: status.volume_id,
            serial: status.serial.unwrap_or_default(),
            user,
            problem,
            is_locked,
        });
    }
    Ok(seen)
}

fn operation(restores_first: bool, moves_first: bool, is_pulled: bool) -> Option<VMOperationName> {
    if restores_first {
        Some(VMOperationName::Restore)
    } else if moves_first {
        Some(VMOperationName::Move)
    } else {
        is_pulled.then_some(VMOperationName::Download)
    }
}

/// Returns the operation on a disk with its progress.
async fn work(ctx: &Context, disk: &Disk, operation: VMOperationName) -> DiskWork {
    let percent = match (operation, &disk.spec.image) {
        (VMOperationName::Move, _) => moves::progress(ctx, disk).or_else(|| copied_percent(ctx, disk)),
        (VMOperationName::Download, Some(name)) => {
            let namespace = disk.namespace().unwrap_or_default();
            // An error is reported by the Disk.
            let image = local::observe(ctx, &namespace, name.as_str(), &Key::of(disk)).await;
            image.ok().and_then(|image| image.percent())
        }
        _ => None,
    };
    DiskWork { operation, percent }
}

/// The name of a disk, its pool, its origin, its size, the space that it takes and the state of its key, as its Disk has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReportedDisk {
    pub(crate) name: String,
    pub(crate) pool: String,
    pub(crate) origin: Option<DataOrigin>,
    pub(crate) size: Option<String>,
    pub(crate) used: Option<String>,
    /// Why its key is not in sync, with its name. None: it is, or the disk is not encrypted.
    pub(crate) key_problem: Option<String>,
}

/// Returns the disks that the VM declares, or attachments plug, as their Disks report them: by volume.
pub(super) fn reported_disks(tables: &Tables, vm: &VM, name: &ObjectName) -> BTreeMap<String, ReportedDisk> {
    let declared = vm.spec.disks.iter().map(|disk| disk.name.to_string());
    let attached = tables.attachments_of(name).map(|attachment| attachment.spec.disk.to_string());
    let report = |disk: String| {
        let disk = tables.disks.get(&name.beside(&disk))?;
        let status = disk.status.as_ref()?;
        let (size, used) = (status.size.clone(), status.used.clone());
        let (name, pool) = (disk.name_any(), disk.pool().to_string());
        let synced = find(&status.conditions, ConditionType::EncryptionSynced.as_str());
        let key_problem = synced
            .filter(|synced| synced.status != "True")
            .map(|synced| format!("Disk {name}: {}: {}", synced.reason, synced.message));
        let report = ReportedDisk { name, pool, origin: Some(disk.origin()), size, used, key_problem };
        Some((volume_of(&disk)?.to_owned(), report))
    };
    declared.chain(attached).filter_map(report).collect()
}

/// Returns why a disk is not opened that is to be encrypted.
fn unencrypted(disk: &Disk, volume: &VolumeFacts) -> Option<String> {
    let text = "its data is not encrypted, and encryption is declared: see its condition EncryptionSynced";
    is_unencrypted(disk, volume).then(|| text.to_owned())
}

/// Returns why an encrypted disk cannot be opened yet.
fn locked(ctx: &Context, volume: &VolumeFacts) -> Option<String> {
    let key =
        volume.encryption.as_deref().filter(|key| ctx.system.unlocked(&key.id, &volume.id).is_none())?;
    Some(format!(
        "its key, which KeyClass {} protects, is not known to this host (yet): see its condition EncryptionSynced",
        key.wrapped_by
    ))
}

fn grows_first(disk: &Disk, volume: &VolumeFacts) -> bool {
    let wanted = disk.spec.size.as_ref().and_then(|size| size.bytes().ok());
    // Another VM may have it open for as long as it runs.
    let is_waited_for = disk.spec.expand_policy == ExpandPolicy::Offline && !disk.is_for_many();
    is_waited_for && wanted.is_some_and(|wanted| volume.size < wanted)
}
