//! The snapshots that a hook takes before a VM is stopped: created when its host asks for one, and deleted beyond the number that is kept.
//!
//! The host waits with the stop as long as it asks. One that is not taken when the host has gone on is deleted: it would be of a later moment.
//! After a loss of statuses it is not known which of them are taken until the host has reported all of them: the others are not deleted
//! before as many newer ones are taken as are kept.

use std::{cmp::Reverse, sync::Arc};

use berth_api::{
    ConditionType, Disk, DiskSnapshot, Reason, ResourceName, SnapshotHook, VM, VMSnapshot, VMSnapshotSpec,
    condition,
    vm::{STOPPED_AT_ANNOTATION, STOPPED_VM_LABEL, StopSnapshot},
    vm_snapshot::MOST_SNAPSHOT_DISKS,
};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

use crate::{batch::Write, cache::Cache, inherited::Inherited, key::Key};

#[cfg(test)]
mod tests;

/// How many snapshots of a VM's stops there may be beside those that are kept when another one is created: lost ones, those of which nothing
/// is known, and those that backups and restores need. With all of them, a disk is on fewer snapshots than it can be.
const MOST_OTHERS: usize = 4;
/// The reasons that the host gives for a snapshot of a disk of which it knows that it is not taken. Others, such as `DiskLost` and `Retrying`,
/// also stand for one that it cannot read.
const NOT_TAKEN: [Reason; 5] = [
    Reason::Provisioning,
    Reason::WaitingForSnapshot,
    Reason::NoSpace,
    Reason::TooManySnapshots,
    Reason::SnapshotInterrupted,
];

/// How far a snapshot is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// It has the data of all disks.
    Taken,
    /// It had them, and has not all of them any more.
    Lost,
    /// Its host reports of all parts that there are that they are not taken.
    NotTaken,
    /// It is not known whether it is taken, such as after a loss of its status.
    Unknown,
    /// The same, and there is no part of it.
    Empty,
    Deleted,
}

/// A snapshot that the hook took, or is to take.
#[derive(Clone, Debug)]
struct OwnSnapshot {
    object: Arc<VMSnapshot>,
    progress: Progress,
}

/// The decision about the snapshots.
#[derive(Clone, Debug, Default)]
struct Decision {
    create: Option<VMSnapshot>,
    delete: Vec<Arc<VMSnapshot>>,
}

/// Returns the writes that create and delete the snapshots of the VM's stops.
pub(super) fn writes(cache: &Cache, vm: &VM) -> Vec<Write> {
    let keys = cache.index.made_for(&Key::of(vm));
    let objects = keys.iter().filter_map(|key| cache.tables.vm_snapshots.get(key));
    let own: Vec<OwnSnapshot> = objects
        .map(|object| OwnSnapshot { object: object.clone(), progress: progress(cache, object) })
        .collect();
    let namespace = vm.namespace().unwrap_or_default();
    let is_name_used = |name: &str| cache.tables.vm_snapshots.named(&namespace, name).is_some();
    let decision = decide(vm, &own, is_name_used, |snapshot| is_needed(cache, snapshot));
    let delete = decision.delete.into_iter().map(|snapshot| Write::Delete(snapshot.into()));
    // Last: it may be refused, by a quota or in a namespace that is being deleted.
    delete.chain(decision.create.map(|snapshot| Write::Create(snapshot.into()))).collect()
}

/// Returns the writes that delete the snapshots of a VM that is gone which its host will not take. One that is being taken when the VM goes
/// may be reported as taken a moment later.
pub(super) fn writes_without_vm(cache: &Cache, vm: &Key) -> Vec<Write> {
    let keys = cache.index.made_for(vm);
    let objects = keys.iter().filter_map(|key| cache.tables.vm_snapshots.get(key));
    let left = objects.filter(|snapshot| {
        progress(cache, snapshot) == Progress::NotTaken && will_not_be_taken(cache, snapshot)
    });
    left.map(|snapshot| Write::Delete(snapshot.clone().into())).collect()
}

/// Whether a part needs a person, or is missing, of one that is not taken.
fn will_not_be_taken(cache: &Cache, snapshot: &VMSnapshot) -> bool {
    snapshot.status.as_ref().is_some_and(|status| {
        condition::is_true(&status.conditions, ConditionType::Stalled)
            || parts(cache, snapshot).len() < status.disks.len()
    })
}

/// Returns the DiskSnapshots of a VMSnapshot, whatever its status says.
fn parts<'a>(cache: &'a Cache, snapshot: &VMSnapshot) -> Vec<&'a Arc<DiskSnapshot>> {
    let namespace = snapshot.namespace().unwrap_or_default();
    let name = snapshot.name_any();
    let named = |place| cache.tables.disk_snapshots.named(&namespace, snapshot.part_name(place).as_str());
    let is_part = |part: &&Arc<DiskSnapshot>| part.part_of().is_some_and(|of| of.name == name);
    (0..MOST_SNAPSHOT_DISKS).filter_map(named).filter(is_part).collect()
}

fn progress(cache: &Cache, snapshot: &VMSnapshot) -> Progress {
    if snapshot.metadata.deletion_timestamp.is_some() {
        return Progress::Deleted;
    }
    if let Some(status) = snapshot.status.as_ref().filter(|status| status.taken_at.is_some()) {
        let is_lost = condition::is_true(&status.conditions, ConditionType::Stalled);
        return if is_lost { Progress::Lost } else { Progress::Taken };
    }
    // The host takes all of them at one moment: of a part that is missing, the others tell.
    let parts = parts(cache, snapshot);
    if parts.is_empty() {
        return Progress::Empty;
    }
    if parts.iter().all(|part| is_not_taken(part)) { Progress::NotTaken } else { Progress::Unknown }
}

/// Whether the host reports that this part is not taken. The controllers write a status too, before the host does.
fn is_not_taken(part: &DiskSnapshot) -> bool {
    let Some(status) = part.status.as_ref().filter(|status| status.binding.is_some()) else { return false };
    let ready = condition::find(&status.conditions, ConditionType::Ready.as_str());
    let is_reported =
        ready.is_some_and(|ready| NOT_TAKEN.iter().any(|reason| reason.as_str() == ready.reason));
    is_reported && status.taken_at.is_none()
}

/// Whether a Backup that is not complete or a Disk that is being made or restored names a part of it.
fn is_needed(cache: &Cache, snapshot: &VMSnapshot) -> bool {
    let namespace = &snapshot.metadata.namespace;
    let parts: Vec<ResourceName> = (0..MOST_SNAPSHOT_DISKS).map(|place| snapshot.part_name(place)).collect();
    let mut backups = cache.tables.backups.all().filter(|backup| {
        backup.metadata.namespace == *namespace
            && backup.metadata.deletion_timestamp.is_none()
            && !backup.is_complete()
    });
    let mut disks =
        cache.tables.disks.all().filter(|disk| {
            disk.metadata.namespace == *namespace && disk.metadata.deletion_timestamp.is_none()
        });
    backups.any(|backup| backup.spec.snapshot.as_ref().is_some_and(|name| parts.contains(name)))
        || disks.any(|disk| awaited(disk).iter().flatten().any(|name| parts.contains(name)))
}

/// Returns the snapshots whose data the Disk is to have and does not have yet.
fn awaited(disk: &Disk) -> [Option<&ResourceName>; 2] {
    let status = disk.status.as_ref();
    let is_made = status.is_some_and(|status| status.size.is_some());
    // One that a Disk names in another namespace is no snapshot of this VM.
    let own = disk.metadata.namespace.as_deref().unwrap_or_default();
    let source = disk.spec.source.as_ref().filter(|source| !is_made && source.namespace(own) == own);
    let source = source.and_then(|source| source.snapshot.as_ref());
    let restored = status.and_then(|status| status.restored_from.as_ref());
    let restore = disk.spec.restore.as_ref().filter(|declared| {
        restored.is_none_or(|done| (&done.snapshot, &done.token) != (&declared.snapshot, &declared.token))
    });
    [source, restore.map(|declared| &declared.snapshot)]
}

fn decide(
    vm: &VM,
    own: &[OwnSnapshot],
    is_name_used: impl Fn(&str) -> bool,
    is_needed: impl Fn(&VMSnapshot) -> bool,
) -> Decision {
    let hook = vm.spec.hooks.as_ref().and_then(|hooks| hooks.pre_stop.as_ref()?.snapshot.as_ref());
    let request = vm.status.as_ref().and_then(|status| status.stop_snapshot.as_deref());
    let request = request.filter(|request| request.is_of(&vm.name_any()));
    let mut delete = surplus(vm, own, hook, request);
    delete.retain(|own| own.progress == Progress::NotTaken || !is_needed(&own.object));
    let mut decision =
        Decision { create: None, delete: delete.into_iter().map(|own| own.object.clone()).collect() };
    let (Some(hook), Some(request)) = (hook, request) else { return decision };
    if is_name_used(request.name.as_str()) {
        return decision;
    }
    let existing = own.iter().filter(|own| own.progress != Progress::Deleted);
    if existing.count() <= kept(hook) + MOST_OTHERS {
        decision.create = Some(new_snapshot(vm, request));
    } else if decision.delete.is_empty() {
        // The VM is reconciled again once it is gone.
        decision.delete.extend(oldest_empty(own));
    }
    decision
}

fn kept(hook: &SnapshotHook) -> usize {
    usize::try_from(hook.keep).unwrap_or_default().max(1)
}

/// Returns the oldest one without a part, which has no data.
fn oldest_empty(own: &[OwnSnapshot]) -> Option<Arc<VMSnapshot>> {
    let empty = own.iter().filter(|own| own.progress == Progress::Empty);
    empty.min_by_key(|own| age(&own.object)).map(|own| own.object.clone())
}

/// The order of creation, by the clock of the control plane: those of hosts may go back.
fn age(snapshot: &VMSnapshot) -> (Option<Timestamp>, String) {
    (snapshot.creation_timestamp().map(|time| time.0), snapshot.name_any())
}

fn new_snapshot(vm: &VM, request: &StopSnapshot) -> VMSnapshot {
    let name = vm.name_any();
    let mut snapshot =
        VMSnapshot::new(request.name.as_str(), VMSnapshotSpec { vm: name.as_str().into(), memory: false });
    snapshot.metadata.namespace = vm.namespace();
    snapshot.metadata.labels = Some([(STOPPED_VM_LABEL.to_owned(), name)].into());
    snapshot.metadata.annotations =
        Some([(STOPPED_AT_ANNOTATION.to_owned(), request.requested_at.clone())].into());
    Inherited::of(&vm.metadata).add_to(&mut snapshot.metadata);
    snapshot
}

/// Returns the snapshots to delete. The newest one that is taken stays, the one that the host asks for, and the one that the VM is to be
/// restored from.
fn surplus<'a>(
    vm: &VM,
    own: &'a [OwnSnapshot],
    hook: Option<&SnapshotHook>,
    request: Option<&StopSnapshot>,
) -> Vec<&'a OwnSnapshot> {
    let status = vm.status.as_ref().filter(|status| status.observed_generation >= 0);
    let (Some(status), Some(hook)) = (status, hook) else { return Vec::new() };
    let mut sorted: Vec<&OwnSnapshot> = own.iter().collect();
    sorted.sort_by_key(|own| Reverse(age(&own.object)));
    let keep = kept(hook);
    let mut taken = 0;
    let is_surplus = |own: &&OwnSnapshot| {
        let name = own.object.name_any();
        let is_requested = request.is_some_and(|request| request.name.as_str() == name);
        match own.progress {
            Progress::Taken => {
                taken += 1;
                taken > keep && !is_requested && !is_to_be_restored(vm, &name)
            }
            Progress::Lost => taken > 0 && !is_to_be_restored(vm, &name),
            // The host lists those that it has taken before the controllers know of it.
            Progress::NotTaken => {
                !is_requested && !status.snapshots.iter().any(|listed| listed.name.as_str() == name)
            }
            // If it is taken, it is not one of those that are kept.
            Progress::Unknown | Progress::Empty => {
                taken >= keep && !is_requested && !is_to_be_restored(vm, &name)
            }
            Progress::Deleted => false,
        }
    };
    sorted.into_iter().filter(is_surplus).collect()
}

/// Whether the VM is to have the data of this snapshot again, and does not have it yet.
fn is_to_be_restored(vm: &VM, snapshot: &str) -> bool {
    let restored = vm.status.as_ref().and_then(|status| status.restored_from.as_ref());
    let declared = vm.spec.restore.as_ref().filter(|declared| declared.snapshot.as_str() == snapshot);
    declared.is_some_and(|declared| restored.is_none_or(|done| !done.is_of(declared)))
}
