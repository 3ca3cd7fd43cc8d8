//! HotswapDiskAttachment: bound to its VM's host, with its disk, once both allow it. After that it is its agent's.

use std::sync::Arc;

use berth_api::{
    AttachmentState, Binding, ConditionType, Disk, HOST_FINALIZER, HotswapDiskAttachment,
    HotswapDiskAttachmentStatus, ObjectUse, Readiness, Reason, UseKind, VM, condition,
};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

use super::{
    Config, Key, Kind, World,
    disk::blocks_its_vm,
    draft::Draft,
    fenced,
    plan::{Need, Outcome, Plan, Step},
    vm::{awaits_its_host, bind_disk},
    world::Unknown,
};
use crate::clock::Identities;

#[derive(Debug)]
struct Observed {
    vm: Option<Arc<VM>>,
    disk: Option<Arc<Disk>>,
    /// Somebody else who has the disk: the VM, and how.
    user: Option<String>,
    fresh_volume_id: String,
    /// Why no disk may be given a host yet.
    unknown: Option<Unknown>,
    /// The disk has its file somewhere, though its status does not say so (any more).
    is_claimed: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Decision {
    Leave,
    Wait(Readiness),
    Bind(String),
}

pub(super) fn reconcile(world: &World, config: &Config, key: &Key, draft: &mut Draft) -> Outcome {
    let Some(attachment) = world.attachments.get(key).cloned() else { return Outcome::Settled };
    if let Some(outcome) = fenced::attachment(world, config, &attachment, draft) {
        return outcome;
    }
    let plan = plan(&attachment, &observe(world, &attachment, &config.identities));
    draft.steps(world, config, &plan.steps);
    let status = status(&attachment, &plan.decision, config.clock.now());
    draft.status(attachment.as_ref(), status);
    plan.outcome
}

fn observe(world: &World, attachment: &HotswapDiskAttachment, identities: &Identities) -> Observed {
    let namespace = attachment.namespace().unwrap_or_default();
    let disk_key = Key::namespaced(Kind::Disk, &namespace, attachment.spec.disk.as_str());
    let disk = world.disks.get(&disk_key).cloned();
    let mine = attachment.name_any();
    let by_status = disk.as_ref().and_then(|d| d.status.as_ref()).and_then(|status| {
        let other = |u: &&ObjectUse| u.attachment.as_deref() != Some(mine.as_str());
        status.used_by.iter().find(other).map(|u| format!("VM {}", u.vm))
    });
    let by_vm = world.index.vms_with_disk(&disk_key).into_iter().next().map(|key| format!("VM {}", key.name));
    let is_bound = |key: &Key| {
        let other = world.attachments.get(key).and_then(|a| a.status.as_ref());
        key.name != mine && other.is_some_and(|s| s.binding.is_some())
    };
    let by_attachment = world.index.attachments_of_disk(&disk_key).into_iter().find(is_bound);
    Observed {
        vm: world.vms.named(&namespace, attachment.spec.vm.as_str()).cloned(),
        user: by_status.or(by_vm).or(by_attachment.map(|key| format!("attachment {}", key.name))),
        fresh_volume_id: format!("v-{}", identities.hex(16)),
        unknown: world.why_not_place(),
        is_claimed: disk.as_deref().is_some_and(|disk| world.claims.of(&disk_key, disk).is_some()),
        disk,
    }
}

fn plan(attachment: &HotswapDiskAttachment, observed: &Observed) -> Plan<Decision> {
    if attachment.status.as_ref().is_some_and(|s| s.binding.is_some()) {
        return Plan::settled(Decision::Leave);
    }
    if attachment.metadata.deletion_timestamp.is_some() {
        let mut plan = Plan::settled(Decision::Leave);
        plan.steps.push(Step::RemoveFinalizer(Key::of(attachment), HOST_FINALIZER));
        return plan;
    }
    let namespace = attachment.namespace().unwrap_or_default();
    let vm_key = Key::namespaced(Kind::VM, &namespace, attachment.spec.vm.as_str());
    let disk_key = Key::namespaced(Kind::Disk, &namespace, attachment.spec.disk.as_str());
    let needs = vec![Need::Object(vm_key.clone()), Need::Object(disk_key.clone())];
    let wait = |reason, text: String| {
        Plan::blocked(Decision::Wait(Readiness::Reconciling(reason, text)), needs.clone())
    };
    let Some(vm) = &observed.vm else {
        return wait(Reason::WaitingForVM, format!("VM {} does not exist", vm_key.name));
    };
    let Some(host) = vm.status.as_ref().and_then(|s| s.binding.as_ref()).map(|b| b.host.clone()) else {
        return wait(Reason::WaitingForVM, format!("VM {} is not bound to a host yet", vm_key.name));
    };
    if vm.metadata.deletion_timestamp.is_some() {
        return wait(Reason::WaitingForVM, format!("VM {} is being deleted", vm_key.name));
    }
    let Some(disk) = &observed.disk else {
        return wait(Reason::WaitingForDisk, format!("Disk {} does not exist", disk_key.name));
    };
    if let Some(user) = &observed.user {
        return wait(Reason::DiskInUse, format!("Disk {} is used by {user}", disk_key.name));
    }
    let mut steps = vec![Step::AddFinalizer(Key::of(attachment), HOST_FINALIZER)];
    match disk.status.as_ref().and_then(|s| s.binding.as_ref()) {
        Some(binding) if binding.host != host => {
            let text = format!(
                "Disk {} is on host {}, VM {} on host {host}",
                disk_key.name, binding.host, vm_key.name
            );
            return Plan::blocked(Decision::Wait(Readiness::Stalled(Reason::DiskOnOtherHost, text)), needs);
        }
        Some(_) => {}
        None => {
            if let Some(unknown) = &observed.unknown {
                let readiness = Readiness::Reconciling(Reason::WaitingForInventory, unknown.text.clone());
                return Plan::blocked(Decision::Wait(readiness), vec![unknown.need.clone()]);
            }
            if observed.is_claimed {
                return wait(
                    Reason::WaitingForDisk,
                    format!("Disk {} is given back to its host first", disk_key.name),
                );
            }
            if let Some(why) = awaits_its_host(disk.as_ref()).or_else(|| blocks_its_vm(disk)) {
                return wait(Reason::WaitingForDisk, format!("Disk {}: {why}", disk_key.name));
            }
            let usage = ObjectUse {
                use_kind: UseKind::Hotswap,
                vm: vm.name_any(),
                vm_uid: vm.uid().unwrap_or_default(),
                attachment: Some(attachment.name_any()),
            };
            steps.extend(bind_disk(&disk_key, &host, &observed.fresh_volume_id, vec![usage]));
        }
    }
    Plan { steps, decision: Decision::Bind(host), outcome: Outcome::Settled }
}

fn status(
    attachment: &HotswapDiskAttachment,
    decision: &Decision,
    now: Timestamp,
) -> HotswapDiskAttachmentStatus {
    let mut status = attachment.status.clone().unwrap_or_default();
    let generation = attachment.metadata.generation.unwrap_or_default();
    let readiness = match decision {
        Decision::Leave => return status,
        Decision::Wait(readiness) => readiness.clone(),
        Decision::Bind(host) => {
            status.binding = Some(Binding { host: host.clone(), epoch: 1 });
            Readiness::Reconciling(Reason::Bound, format!("bound to host {host}"))
        }
    };
    let attached = ConditionType::Attached;
    condition::set(
        &mut status.conditions,
        attached,
        "False",
        readiness.reason(),
        readiness.message(),
        generation,
        now,
    );
    readiness.write(&mut status.conditions, generation, now);
    status.state = Some(AttachmentState::Requested);
    status.observed_generation = generation;
    status
}
