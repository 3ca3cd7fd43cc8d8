//! What was on a host that is gone for good (`Host.spec.fenced`): nobody else will ever speak for it.
//!
//! An object that is being deleted ends, because there is nothing left to wait for; any other says that it is lost
//! with its host. The Host itself goes with the last of them, so that this is never forgotten before.

use berth_api::{
    AttachmentState, ConditionType, Conditions, Disk, DiskState, HOST_FINALIZER, HotswapDiskAttachment,
    Readiness, Reason, SYSTEM_NAMESPACE, VM, VMState, condition,
};
use k8s_openapi::{api::coordination::v1::Lease, jiff::Timestamp};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Preconditions},
};

use super::{
    Key, Kind, World,
    apply::{WriteError, Writer},
    plan::{Outcome, Step},
};

/// Takes care of a VM of such a host; `None` if its host is not one.
pub(super) async fn vm(
    world: &mut World,
    writer: &Writer,
    vm: &VM,
    touched: &mut Vec<Key>,
) -> Result<Option<Outcome>, WriteError> {
    let Some(host) = host(world, vm.status.as_ref().and_then(|s| s.binding.as_ref())) else {
        return Ok(None);
    };
    let namespace = vm.namespace().unwrap_or_default();
    let disks = vm.spec.disks.iter().map(|d| Key::namespaced(Kind::Disk, &namespace, d.name.as_str()));
    if vm.metadata.deletion_timestamp.is_some() {
        let disks: Vec<Key> = disks.collect();
        end(world, writer, &Key::of(vm), &host, touched).await?;
        touched.extend(disks);
        return Ok(Some(Outcome::Settled));
    }
    let mut status = vm.status.clone().unwrap_or_default();
    let generation = vm.metadata.generation.unwrap_or_default();
    let text = format!(
        "host {host} is gone for good, and with it this VM and its disks: delete them and create them again"
    );
    lost(&mut status.conditions, &text, generation, writer.now());
    for kind in [ConditionType::Running, ConditionType::GuestReady] {
        let reason = Reason::HostFenced;
        condition::set_bool(&mut status.conditions, kind, false, reason, &text, generation, writer.now());
    }
    status.state = Some(VMState::Failed);
    status.process = None;
    status.guest = None;
    status.observed_generation = generation;
    writer.status(world, vm, status, touched).await?;
    Ok(Some(Outcome::Settled))
}

/// Takes care of a Disk of such a host; `None` if its host is not one.
pub(super) async fn disk(
    world: &mut World,
    writer: &Writer,
    disk: &Disk,
    touched: &mut Vec<Key>,
) -> Result<Option<Outcome>, WriteError> {
    let Some(host) = host(world, disk.status.as_ref().and_then(|s| s.binding.as_ref())) else {
        return Ok(None);
    };
    if disk.metadata.deletion_timestamp.is_some() {
        end(world, writer, &Key::of(disk), &host, touched).await?;
        return Ok(Some(Outcome::Settled));
    }
    let namespace = disk.namespace().unwrap_or_default();
    let mut status = disk.status.clone().unwrap_or_default();
    let generation = disk.metadata.generation.unwrap_or_default();
    let text = format!("its file was on host {host}, which is gone for good: delete it and create it again");
    lost(&mut status.conditions, &text, generation, writer.now());
    // Who used it and is gone lets go of it: nobody else would say so.
    status.used_by.retain(|user| {
        world.vms.named(&namespace, &user.vm).is_some_and(|vm| vm.uid().as_deref() == Some(&user.vm_uid))
    });
    status.state = Some(DiskState::Failed);
    status.observed_generation = generation;
    writer.status(world, disk, status, touched).await?;
    Ok(Some(Outcome::Settled))
}

/// Takes care of an attachment on such a host; `None` if its host is not one.
pub(super) async fn attachment(
    world: &mut World,
    writer: &Writer,
    attachment: &HotswapDiskAttachment,
    touched: &mut Vec<Key>,
) -> Result<Option<Outcome>, WriteError> {
    let binding = attachment.status.as_ref().and_then(|s| s.binding.as_ref());
    let Some(host) = host(world, binding) else { return Ok(None) };
    if attachment.metadata.deletion_timestamp.is_some() {
        end(world, writer, &Key::of(attachment), &host, touched).await?;
        return Ok(Some(Outcome::Settled));
    }
    let mut status = attachment.status.clone().unwrap_or_default();
    let generation = attachment.metadata.generation.unwrap_or_default();
    let text = format!("host {host} is gone for good: delete the attachment");
    lost(&mut status.conditions, &text, generation, writer.now());
    status.state = Some(AttachmentState::Failed);
    status.observed_generation = generation;
    writer.status(world, attachment, status, touched).await?;
    Ok(Some(Outcome::Settled))
}

/// Has everything of such a host looked at; once nothing is left, the Host goes and its Lease with it.
pub(super) async fn host_itself(
    world: &mut World,
    writer: &Writer,
    key: &Key,
    touched: &mut Vec<Key>,
) -> Result<(), WriteError> {
    let left = bound_to(world, &key.name);
    if !left.is_empty() {
        touched.extend(left);
        return Ok(());
    }
    let Some(host) = world.hosts.get(key).cloned() else { return Ok(()) };
    let ended = |result: kube::Result<()>| match result {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => other,
    };
    let failed = |source| WriteError::new(key, source);
    let this_one = Preconditions { uid: host.uid(), resource_version: None };
    let params = DeleteParams { preconditions: Some(this_one), ..DeleteParams::default() };
    let hosts: Api<berth_api::Host> = Api::all(writer.client().clone());
    ended(hosts.delete(&key.name, &params).await.map(|_| ())).map_err(failed)?;
    let leases: Api<Lease> = Api::namespaced(writer.client().clone(), SYSTEM_NAMESPACE);
    ended(leases.delete(&key.name, &DeleteParams::default()).await.map(|_| ())).map_err(failed)?;
    touched.extend(world.remove(key));
    Ok(())
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

async fn end(
    world: &mut World,
    writer: &Writer,
    key: &Key,
    host: &str,
    touched: &mut Vec<Key>,
) -> Result<(), WriteError> {
    writer.apply(world, &[Step::RemoveFinalizer(key.clone(), HOST_FINALIZER)], touched).await?;
    touched.push(Key::cluster(Kind::Host, host));
    Ok(())
}

fn lost(conditions: &mut Conditions, text: &str, generation: i64, now: Timestamp) {
    Readiness::Stalled(Reason::HostFenced, text.to_owned()).write(conditions, generation, now);
}
