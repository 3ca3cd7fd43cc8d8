//! A VM whose running guest is on another host by now: it is bound there, with its disks, whatever is declared of it meanwhile.
//!
//! ```text
//!    bound to OLD, status.migration   each Disk:            each Disk:        the VM: bound to NEW under
//!    HandedOver, given up by OLD ───▶ formerHost OLD ─────▶ bound to NEW ───▶ the next epoch, admitted there
//! ```
//!
//! NEW runs the guest before the first step, and OLD never starts it again: no other host is chosen, and the VM does not go back. If OLD is
//! lost before it has said whether it handed the guest over, NEW alone knows: the VM is bound there, and boots there if it does not run.

use std::sync::Arc;

use berth_api::{
    Binding, ConditionType, Disk, DiskStatus, Readiness, Reason, VM, VMStatus, condition,
    vm::{HostRefusal, MigrationPhase, VMMigration},
};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

use crate::{batch::WriteBatch, cache::Cache, key::Key, kinds::role};

use super::{data_host, disks, host_of, lives, marked};

/// Returns the move of a VM of a lost host whose guest may run on the other host by now.
pub(super) fn of_lost<'a>(cache: &Cache, vm: &'a VM, host: &str) -> Option<&'a VMMigration> {
    let migration = vm.status.as_ref()?.live_move()?;
    if !cache.is_fenced(host) || !lives(cache, &migration.to) {
        return None;
    }
    let namespace = vm.namespace().unwrap_or_default();
    let mut objects =
        vm.spec.disks.iter().filter_map(|disk| cache.tables.disks.named(&namespace, disk.name.as_str()));
    // The disks are bound before the VM is.
    let is_begun = objects.any(|disk| host_of(disk).is_some_and(|of| *of == migration.to));
    // One that is deleted is deleted there, with its guest if that runs.
    let is_deleted = vm.metadata.deletion_timestamp.is_some();
    (is_begun || is_deleted || disks(cache, vm, host).is_ok()).then_some(migration)
}

pub(super) fn bind(
    cache: &Cache,
    vm: &VM,
    host: &str,
    migration: &VMMigration,
    now: Timestamp,
    batch: &mut WriteBatch,
) {
    let namespace = vm.namespace().unwrap_or_default();
    let disks =
        vm.spec.disks.iter().filter_map(|disk| cache.tables.disks.named(&namespace, disk.name.as_str()));
    let left: Vec<&Arc<Disk>> = disks.filter(|disk| host_of(disk).is_some_and(|of| of == host)).collect();
    let unmarked: Vec<&Arc<Disk>> = left.iter().copied().filter(|disk| data_host(disk).is_none()).collect();
    if !unmarked.is_empty() {
        // The Disks enqueue the VM when they have the mark.
        for disk in unmarked {
            batch.status(disk.as_ref(), marked(disk, host));
        }
        return;
    }
    if left.is_empty() {
        // Written before the host knows of the VM, so that it never looks for the VM's Secret in vain.
        role::grant(cache, &migration.to, vm, batch);
        batch.status(vm, bound(vm, host, migration, now));
    }
    for disk in left {
        batch.status(disk.as_ref(), with_its_vm(disk, host, migration, now));
    }
    batch.enqueue(Key::of(vm));
}

/// The status of a disk whose file is open on the next host.
fn with_its_vm(disk: &Disk, host: &str, migration: &VMMigration, now: Timestamp) -> DiskStatus {
    let mut status = disk.status.clone().unwrap_or_default();
    let generation = disk.metadata.generation.unwrap_or_default();
    let epoch = status.binding.as_ref().map_or(0, |binding| binding.epoch).saturating_add(1);
    status.binding = Some(Binding { host: migration.to.clone(), epoch });
    let text = format!("its VM runs on host {}, which takes its file from host {host}", migration.to);
    Readiness::Reconciling(Reason::Moving, text).write(&mut status.conditions, generation, now);
    status
}

/// The status of the VM, bound to the host that runs its guest.
fn bound(vm: &VM, host: &str, migration: &VMMigration, now: Timestamp) -> VMStatus {
    let mut status = vm.status.clone().unwrap_or_default();
    let generation = vm.metadata.generation.unwrap_or_default();
    let epoch = migration.epoch.saturating_add(1);
    let to = &migration.to;
    let text = match migration.phase {
        MigrationPhase::HandedOver => format!("its running guest went from host {host} to host {to}"),
        MigrationPhase::Requested => {
            format!("host {host} is gone for good, and its running guest was being sent to host {to}")
        }
    };
    // Every later binding has a greater epoch.
    let refusal =
        HostRefusal { host: host.to_owned(), epoch: migration.epoch, message: text.clone(), time: Some(now) };
    status.refusal = Some(Box::new(refusal));
    status.binding = Some(Binding { host: migration.to.clone(), epoch });
    status.admitted_epoch = Some(epoch);
    // Its next host reports these anew.
    [ConditionType::Movable, ConditionType::PlacementSynced]
        .into_iter()
        .for_each(|kind| condition::remove(&mut status.conditions, kind));
    Readiness::Reconciling(Reason::Moving, text).write(&mut status.conditions, generation, now);
    status.migration = None;
    status.move_epoch = None;
    status.host_address = None;
    status.console = None;
    status.process = None;
    status.operation = None;
    status.facts.clear();
    status.observed_generation = generation;
    status
}
