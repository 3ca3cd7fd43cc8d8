//! What was on a host that is gone for good (`Host.spec.fenced`): nobody else will ever speak for it.
//!
//! An object that is being deleted ends, because there is nothing left to wait for; any other says that it is lost
//! with its host. The Host itself goes with the last of them, so that this is never forgotten before.

use berth_api::{
    AttachmentState, ConditionType, Conditions, Disk, DiskState, HOST_FINALIZER, Host, HotswapDiskAttachment,
    Readiness, Reason, VM, VMState, condition,
};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

use super::{
    Config, Key, Kind, World,
    draft::{Draft, Write},
    plan::{Outcome, Step},
};

/// Takes care of a VM of such a host; `None` if its host is not one.
pub(super) fn vm(world: &World, config: &Config, vm: &VM, draft: &mut Draft) -> Option<Outcome> {
    let host = host(world, vm.status.as_ref().and_then(|s| s.binding.as_ref()))?;
    let namespace = vm.namespace().unwrap_or_default();
    let disks = vm.spec.disks.iter().map(|d| Key::namespaced(Kind::Disk, &namespace, d.name.as_str()));
    if vm.metadata.deletion_timestamp.is_some() {
        end(world, config, &Key::of(vm), &host, draft);
        disks.for_each(|disk| draft.touch(disk));
        return Some(Outcome::Settled);
    }
    let mut status = vm.status.clone().unwrap_or_default();
    let generation = vm.metadata.generation.unwrap_or_default();
    let text = format!(
        "host {host} is gone for good, and with it this VM and its disks: delete them and create them again"
    );
    lost(&mut status.conditions, &text, generation, config.clock.now());
    for kind in [ConditionType::Running, ConditionType::GuestReady] {
        let reason = Reason::HostFenced;
        condition::set_bool(
            &mut status.conditions,
            kind,
            false,
            reason,
            &text,
            generation,
            config.clock.now(),
        );
    }
    status.state = Some(VMState::Failed);
    status.process = None;
    status.guest = None;
    status.observed_generation = generation;
    draft.status(vm, status);
    Some(Outcome::Settled)
}

/// Takes care of a Disk of such a host; `None` if its host is not one.
pub(super) fn disk(world: &World, config: &Config, disk: &Disk, draft: &mut Draft) -> Option<Outcome> {
    let host = host(world, disk.status.as_ref().and_then(|s| s.binding.as_ref()))?;
    if disk.metadata.deletion_timestamp.is_some() {
        end(world, config, &Key::of(disk), &host, draft);
        return Some(Outcome::Settled);
    }
    let namespace = disk.namespace().unwrap_or_default();
    let mut status = disk.status.clone().unwrap_or_default();
    let generation = disk.metadata.generation.unwrap_or_default();
    let text = format!("its file was on host {host}, which is gone for good: delete it and create it again");
    lost(&mut status.conditions, &text, generation, config.clock.now());
    // Who used it and is gone lets go of it: nobody else would say so.
    status.used_by.retain(|user| {
        world.vms.named(&namespace, &user.vm).is_some_and(|vm| vm.uid().as_deref() == Some(&user.vm_uid))
    });
    status.state = Some(DiskState::Failed);
    status.observed_generation = generation;
    draft.status(disk, status);
    Some(Outcome::Settled)
}

/// Takes care of an attachment on such a host; `None` if its host is not one.
pub(super) fn attachment(
    world: &World,
    config: &Config,
    attachment: &HotswapDiskAttachment,
    draft: &mut Draft,
) -> Option<Outcome> {
    let binding = attachment.status.as_ref().and_then(|s| s.binding.as_ref());
    let host = host(world, binding)?;
    if attachment.metadata.deletion_timestamp.is_some() {
        end(world, config, &Key::of(attachment), &host, draft);
        return Some(Outcome::Settled);
    }
    let mut status = attachment.status.clone().unwrap_or_default();
    let generation = attachment.metadata.generation.unwrap_or_default();
    let text = format!("host {host} is gone for good: delete the attachment");
    lost(&mut status.conditions, &text, generation, config.clock.now());
    status.state = Some(AttachmentState::Failed);
    status.observed_generation = generation;
    draft.status(attachment, status);
    Some(Outcome::Settled)
}

/// Has everything of such a host looked at; once nothing is left, the Host goes and its Lease with it.
pub(super) fn host_itself(world: &World, host: &Host, draft: &mut Draft) {
    let left = bound_to(world, &host.name_any());
    if left.is_empty() {
        draft.write(Write::EndHost(Box::new(host.clone())));
    }
    left.into_iter().for_each(|key| draft.touch(key));
}

/// The VMs, Disks and attachments that are bound to a host. Scans the disks: a host is lost rarely.
fn bound_to(world: &World, host: &str) -> Vec<Key> {
    let is_there = |binding: Option<&berth_api::Binding>| binding.is_some_and(|b| b.host == host);
    let disks = world.disks.all().filter(|d| is_there(d.status.as_ref().and_then(|s| s.binding.as_ref())));
    let attachments =
        world.attachments.all().filter(|a| is_there(a.status.as_ref().and_then(|s| s.binding.as_ref())));
    let mut keys = world.index.vms_on(host);
    keys.extend(disks.map(|disk| Key::of(disk.as_ref())));
    keys.extend(attachments.map(|attachment| Key::of(attachment.as_ref())));
    keys
}

fn host(world: &World, binding: Option<&berth_api::Binding>) -> Option<String> {
    binding.map(|b| b.host.clone()).filter(|host| world.is_fenced(host))
}

fn end(world: &World, config: &Config, key: &Key, host: &str, draft: &mut Draft) {
    let steps = [Step::RemoveFinalizer(key.clone(), HOST_FINALIZER)];
    draft.steps(world, config, &steps);
    draft.touch(Key::cluster(Kind::Host, host));
}

fn lost(conditions: &mut Conditions, text: &str, generation: i64, now: Timestamp) {
    Readiness::Stalled(Reason::HostFenced, text.to_owned()).write(conditions, generation, now);
}
