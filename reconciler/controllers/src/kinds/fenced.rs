//! Objects bound to a fenced host (`Host.spec.fenced`), which is gone for good: no agent will ever report them
//! again.
//!
//! An object that is being deleted is removed, because there is nothing left to wait for, except for copies of the firmware state of a VM, which another
//! host removes. Any other object is reported as lost with its host. The Host itself is removed with the last of them, so that the fencing is known until then.

use std::sync::Arc;

use berth_api::{
    AttachmentState, ConditionType, ConditionUpdate, Conditions, Disk, DiskSnapshot, DiskState,
    HOST_FINALIZER, Host, HotswapDiskAttachment, Image, Readiness, Reason, USED_FINALIZER, VM, VMState,
    condition,
};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

use crate::{
    batch::{Write, WriteBatch},
    cache::Cache,
    config::Config,
    key::{Key, ObjectKind},
    kinds::rebind::{self, CopyRemoval},
    plan::{Outcome, Step},
};

/// Reconciles a VM of a fenced host; `None` if its host is not fenced.
pub(crate) fn vm(cache: &Cache, config: &Config, vm: &VM, batch: &mut WriteBatch) -> Option<Outcome> {
    let host = host(cache, vm.status.as_ref().and_then(|s| s.binding.as_ref()))?;
    let namespace = vm.namespace().unwrap_or_default();
    let disks = vm.spec.disks.iter().map(|d| Key::namespaced(ObjectKind::Disk, &namespace, d.name.as_str()));
    if vm.metadata.deletion_timestamp.is_some() {
        match rebind::copy_removal(cache, vm) {
            CopyRemoval::Nothing => end(cache, config, &Key::of(vm), &host, batch),
            CopyRemoval::By(_) | CopyRemoval::Waits { .. } => {
                batch.status(vm, rebind::lost_and_deleted(vm, config.clock.now()));
                batch.enqueue(Key::of(vm));
                batch.enqueue(Key::cluster(ObjectKind::Host, &host));
            }
        }
        disks.for_each(|disk| batch.enqueue(disk));
        return Some(Outcome::Settled);
    }
    let mut status = vm.status.clone().unwrap_or_default();
    let generation = vm.metadata.generation.unwrap_or_default();
    let why = rebind::why_lost(cache, vm, &host)
        .map(|why| format!(" (not placed on another host: {why})"))
        .unwrap_or_default();
    let text = format!(
        "host {host} is gone for good, and with it this VM and its disks{why}: delete them and create them again"
    );
    lost(&mut status.conditions, &text, generation, config.clock.now());
    for kind in [ConditionType::Running, ConditionType::GuestReady] {
        let reason = Reason::HostFenced;
        condition::set(
            &mut status.conditions,
            ConditionUpdate::from_bool(kind, false, reason, &text),
            generation,
            config.clock.now(),
        );
    }
    condition::remove(&mut status.conditions, ConditionType::GuestFrozen);
    status.state = Some(VMState::Failed);
    status.process = None;
    status.facts.clear();
    status.operation = None;
    status.guest = None;
    status.observed_addresses = Vec::new();
    status.observed_generation = generation;
    // They follow the PublicIPs, also of a VM whose host is gone.
    status.public_ports = cache.index.public_ports.of(&Key::of(vm));
    batch.status(vm, status);
    Some(Outcome::Settled)
}

/// Reconciles a Disk of a fenced host; `None` if its host is not fenced.
pub(crate) fn disk(cache: &Cache, config: &Config, disk: &Disk, batch: &mut WriteBatch) -> Option<Outcome> {
    let host = host(cache, disk.status.as_ref().and_then(|s| s.binding.as_ref()))?;
    if disk.metadata.deletion_timestamp.is_some() {
        end(cache, config, &Key::of(disk), &host, batch);
        return Some(Outcome::Settled);
    }
    let namespace = disk.namespace().unwrap_or_default();
    let mut status = disk.status.clone().unwrap_or_default();
    let generation = disk.metadata.generation.unwrap_or_default();
    let text = format!("its file was on host {host}, which is gone for good: delete it and create it again");
    lost(&mut status.conditions, &text, generation, config.clock.now());
    // Removes the users that are gone: no agent does it.
    status.used_by.retain(|user| {
        cache
            .tables
            .vms
            .named(&namespace, &user.vm)
            .is_some_and(|vm| vm.uid().as_deref() == Some(&user.vm_uid))
    });
    status.state = Some(DiskState::Failed);
    status.observed_generation = generation;
    batch.status(disk, status);
    Some(Outcome::Settled)
}

/// Reconciles a DiskSnapshot of a fenced host; `None` if its host is not fenced.
pub(crate) fn snapshot(
    cache: &Cache,
    config: &Config,
    snapshot: &DiskSnapshot,
    batch: &mut WriteBatch,
) -> Option<Outcome> {
    let host = host(cache, snapshot.status.as_ref().and_then(|s| s.binding.as_ref()))?;
    if snapshot.metadata.deletion_timestamp.is_some() {
        end(cache, config, &Key::of(snapshot), &host, batch);
        return Some(Outcome::Settled);
    }
    let mut status = snapshot.status.clone().unwrap_or_default();
    let generation = snapshot.metadata.generation.unwrap_or_default();
    let text = format!("its file was on host {host}, which is gone for good: delete it");
    lost(&mut status.conditions, &text, generation, config.clock.now());
    status.observed_generation = generation;
    batch.status(snapshot, status);
    Some(Outcome::Settled)
}

/// Reconciles an attachment on a fenced host; `None` if its host is not fenced.
pub(crate) fn attachment(
    cache: &Cache,
    config: &Config,
    attachment: &HotswapDiskAttachment,
    batch: &mut WriteBatch,
) -> Option<Outcome> {
    let binding = attachment.status.as_ref().and_then(|s| s.binding.as_ref());
    let host = host(cache, binding)?;
    if attachment.metadata.deletion_timestamp.is_some() {
        end(cache, config, &Key::of(attachment), &host, batch);
        return Some(Outcome::Settled);
    }
    let mut status = attachment.status.clone().unwrap_or_default();
    let generation = attachment.metadata.generation.unwrap_or_default();
    let text = format!("host {host} is gone for good: delete the attachment");
    lost(&mut status.conditions, &text, generation, config.clock.now());
    status.state = Some(AttachmentState::Failed);
    status.observed_generation = generation;
    batch.status(attachment, status);
    Some(Outcome::Settled)
}

/// Enqueues everything bound to a fenced host; once nothing is left, removes the Host and its Lease.
pub(crate) fn host_itself(cache: &Cache, host: &Host, batch: &mut WriteBatch) {
    let left = bound_to(cache, &host.name_any());
    if left.is_empty() {
        batch.finalizer_of(host.clone().into(), USED_FINALIZER, false);
        batch.write(Write::EndHost(Box::new(host.clone())));
    }
    left.into_iter().for_each(|key| batch.enqueue(key));
    // They hold no Host, and say that their files are lost.
    let is_there = |image: &&Arc<Image>| {
        let binding = image.status.as_ref().and_then(|status| status.binding.as_ref());
        binding.is_some_and(|binding| binding.host == host.name_any())
    };
    let images = cache.tables.images.all().filter(is_there);
    images.for_each(|image| batch.enqueue(Key::of(image.as_ref())));
}

/// Returns the VMs, Disks, snapshots, attachments and Backups that are bound to a host, and the VMs whose running guests go there: the hosts
/// that send them see by this Host that they never run there. Scans the disks: a host is rarely lost.
fn bound_to(cache: &Cache, host: &str) -> Vec<Key> {
    let is_there = |binding: Option<&berth_api::Binding>| binding.is_some_and(|b| b.host == host);
    let disks = cache.tables.disks.all().filter(|disk| {
        is_there(disk.status.as_ref().and_then(|s| s.binding.as_ref())) || rebind::is_left_on(disk, host)
    });
    let attachments = cache
        .tables
        .attachments
        .all()
        .filter(|a| is_there(a.status.as_ref().and_then(|s| s.binding.as_ref())));
    let mut keys = cache.index.vms_on(host);
    let users = cache.users_of(&Key::cluster(ObjectKind::Host, host));
    keys.extend(users.into_iter().filter(|user| user.kind == ObjectKind::VM));
    keys.extend(disks.map(|disk| Key::of(disk.as_ref())));
    keys.extend(attachments.map(|attachment| Key::of(attachment.as_ref())));
    let snapshots = cache.tables.disk_snapshots.all();
    let snapshots = snapshots.filter(|s| is_there(s.status.as_ref().and_then(|s| s.binding.as_ref())));
    keys.extend(snapshots.map(|snapshot| Key::of(snapshot.as_ref())));
    let backups = cache.tables.backups.all();
    let backups = backups.filter(|b| is_there(b.status.as_ref().and_then(|s| s.binding.as_ref())));
    keys.extend(backups.map(|backup| Key::of(backup.as_ref())));
    keys
}

fn host(cache: &Cache, binding: Option<&berth_api::Binding>) -> Option<String> {
    binding.map(|b| b.host.clone()).filter(|host| cache.is_fenced(host))
}

fn end(cache: &Cache, config: &Config, key: &Key, host: &str, batch: &mut WriteBatch) {
    let steps = [Step::RemoveFinalizer(key.clone(), HOST_FINALIZER)];
    batch.steps(cache, config.clock.now(), &steps);
    batch.enqueue(Key::cluster(ObjectKind::Host, host));
}

fn lost(conditions: &mut Conditions, text: &str, generation: i64, now: Timestamp) {
    Readiness::Stalled(Reason::HostFenced, text.to_owned()).write(conditions, generation, now);
}
