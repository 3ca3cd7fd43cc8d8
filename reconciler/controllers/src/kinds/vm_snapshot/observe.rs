//! Observation of a VMSnapshot, its VM and its parts.

use std::sync::Arc;

use berth_api::{
    AttachmentState, Disk, DiskSnapshot, ResourceName, SnapshotOfDisk, VM, VMSnapshot,
    vm_snapshot::MOST_SNAPSHOT_DISKS,
};
use kube::ResourceExt;

use crate::{
    cache::Cache,
    key::{Key, ObjectKind},
};

/// The inputs of a VMSnapshot's plan.
#[derive(Clone, Debug, Default)]
pub(super) struct Observed {
    pub(super) vm: Option<Arc<VM>>,
    /// The disks of the VM now: those that it declares, and those that are attached to it.
    pub(super) disks: Vec<(ResourceName, Option<Arc<Disk>>)>,
    /// A disk of the VM that several VMs read, and that is in no snapshot.
    pub(super) shared: Option<ResourceName>,
    /// The disks that were decided, with the DiskSnapshots that exist.
    pub(super) parts: Vec<(SnapshotOfDisk, Option<Arc<DiskSnapshot>>)>,
    /// DiskSnapshots under the names that those of the VM's disks would have.
    pub(super) others: Vec<Arc<DiskSnapshot>>,
    /// The number of parts that the DiskSnapshots name, where only some of them exist and the status is lost.
    pub(super) incomplete: Option<usize>,
}

pub(super) fn observe(cache: &Cache, snapshot: &VMSnapshot) -> Observed {
    let namespace = snapshot.namespace().unwrap_or_default();
    let part = |name: &ResourceName| cache.tables.disk_snapshots.named(&namespace, name.as_str()).cloned();
    let vm = cache.tables.vms.named(&namespace, snapshot.spec.vm.as_str()).cloned();
    let decided = snapshot.status.as_ref().map(|status| status.disks.as_slice()).unwrap_or_default();
    if !decided.is_empty() {
        let parts = decided.iter().map(|of| (of.clone(), part(&of.snapshot)));
        return Observed { vm, parts: parts.collect(), ..Observed::default() };
    }
    let names = (0..MOST_SNAPSHOT_DISKS).map(|place| snapshot.part_name(place));
    let existing: Vec<_> = names.filter_map(|name| Some((part(&name)?, name))).collect();
    let own: Vec<_> = existing.iter().filter(|(part, _)| is_part_of(part, snapshot)).collect();
    let total = own.first().and_then(|(part, _)| part.part_of()).map(|of| of.parts);
    if let Some(total) = total {
        let found = own.iter().map(|(part, name)| {
            let of = SnapshotOfDisk { disk: part.spec.disk.clone(), snapshot: name.clone() };
            (of, Some(part.clone()))
        });
        let incomplete = (own.len() != total).then_some(total);
        return Observed { vm, parts: found.collect(), incomplete, ..Observed::default() };
    }
    let disks: Vec<_> = vm.as_deref().map(|vm| disks_of(cache, vm)).unwrap_or_default();
    let others = (0..disks.len()).filter_map(|place| part(&snapshot.part_name(place))).collect();
    let all = vm.as_deref().map(|vm| all_disks_of(cache, vm)).unwrap_or_default();
    let shared = all.into_iter().find(is_shared).map(|(name, _)| name);
    Observed { vm, disks, shared, others, ..Observed::default() }
}

/// Whether the DiskSnapshot was created for this VMSnapshot, or for the one that it was before.
pub(super) fn is_part_of(part: &DiskSnapshot, snapshot: &VMSnapshot) -> bool {
    let uid = snapshot.uid();
    let owners = part.owner_references();
    part.part_of().is_some_and(|of| of.name == snapshot.name_any())
        && (owners.is_empty() || owners.iter().any(|owner| Some(&owner.uid) == uid.as_ref()))
}

/// Returns the disks of a VM that have data of its own: those that several VMs read never change, and one VM alone cannot restore them.
pub(super) fn disks_of(cache: &Cache, vm: &VM) -> Vec<(ResourceName, Option<Arc<Disk>>)> {
    all_disks_of(cache, vm).into_iter().filter(|disk| !is_shared(disk)).collect()
}

/// Whether several VMs read this disk.
fn is_shared((_, disk): &(ResourceName, Option<Arc<Disk>>)) -> bool {
    disk.as_deref().is_some_and(Disk::is_read_only_many)
}

fn all_disks_of(cache: &Cache, vm: &VM) -> Vec<(ResourceName, Option<Arc<Disk>>)> {
    let namespace = vm.namespace().unwrap_or_default();
    let attachments = cache.index.attachments_of_vm(&Key::of(vm));
    let attached = attachments.iter().filter_map(|key| cache.tables.attachments.get(key));
    let attached = attached.filter(|attachment| {
        attachment.status.as_ref().is_some_and(|status| status.state == Some(AttachmentState::Attached))
    });
    let declared = vm.spec.disks.iter().map(|disk| disk.name.clone());
    let mut names: Vec<ResourceName> = Vec::new();
    for name in declared.chain(attached.map(|attachment| attachment.spec.disk.clone())) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let disk = |name: ResourceName| {
        let key = Key::namespaced(ObjectKind::Disk, &namespace, name.as_str());
        (name, cache.tables.disks.get(&key).cloned())
    };
    names.into_iter().map(disk).collect()
}
