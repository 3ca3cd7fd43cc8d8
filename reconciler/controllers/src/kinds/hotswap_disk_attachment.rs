//! The HotswapDiskAttachment controller: binds an attachment to its VM's host, with its disk, once both permit it.
//! After that the host's agent owns it.

use std::sync::Arc;

use berth_api::{
    AttachmentState, Binding, ConditionType, ConditionUpdate, Disk, HOST_FINALIZER, HotswapDiskAttachment,
    HotswapDiskAttachmentStatus, ObjectUse, Readiness, Reason, ResourceName, UseKind, VM, VMStatus,
    condition,
};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

use crate::{
    batch::WriteBatch,
    cache::{Cache, users},
    config::Config,
    key::{Key, ObjectKind},
    kinds::disk::{self, Obstacle, bind_disk},
    kinds::fenced,
    placement_hold::{PlacementHold, awaits_its_host, placement_hold},
    plan::{Dependency, Outcome, Plan, Step, namesakes},
};
use berth_engine::Identities;

#[derive(Debug)]
struct Observed {
    vm: Option<Arc<VM>>,
    disk: Option<Arc<Disk>>,
    /// Another user of the disk: the VM, and the kind of use.
    user: Option<String>,
    fresh_volume_id: String,
    /// The pool that is chosen for a disk which may be in several.
    pool: Option<ResourceName>,
    /// The reason why the disk cannot be bound yet.
    unknown: Option<PlacementHold>,
    /// Some host has the disk's file, although the disk's status does not name the host (any more).
    is_claimed: bool,
    /// A host reports that it has the disk's file, and the report does not count without a recovery.
    unconfirmed: Option<String>,
    /// The reason why a disk without a host cannot be used yet.
    obstacle: Option<Obstacle>,
    /// The disk's image or pool, if that is being deleted.
    deleting: Option<Key>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Decision {
    NoChange,
    Wait(Readiness),
    Bind(String),
}

pub(crate) fn reconcile(cache: &Cache, config: &Config, key: &Key, batch: &mut WriteBatch) -> Outcome {
    let Some(attachment) = cache.tables.attachments.get(key).cloned() else { return Outcome::Settled };
    if let Some(outcome) = fenced::attachment(cache, config, &attachment, batch) {
        return outcome;
    }
    let plan = plan(&attachment, &observe(cache, &attachment, &config.identities));
    batch.steps(cache, config.clock.now(), &plan.steps);
    let status = status(&attachment, &plan.decision, config.clock.now());
    batch.status(attachment.as_ref(), status);
    plan.outcome
}

fn observe(cache: &Cache, attachment: &HotswapDiskAttachment, identities: &Identities) -> Observed {
    let namespace = attachment.namespace().unwrap_or_default();
    let disk_key = Key::namespaced(ObjectKind::Disk, &namespace, attachment.spec.disk.as_str());
    let disk = cache.tables.disks.get(&disk_key).cloned();
    let mine = attachment.name_any();
    let by_status = disk.as_ref().and_then(|d| d.status.as_ref()).and_then(|status| {
        let other = |u: &&ObjectUse| u.attachment.as_deref() != Some(mine.as_str());
        status.used_by.iter().find(other).map(|u| format!("VM {}", u.vm))
    });
    let by_vm = cache.index.vms_with_disk(&disk_key).into_iter().next().map(|key| format!("VM {}", key.name));
    let is_bound = |key: &Key| {
        let other = cache.tables.attachments.get(key).and_then(|a| a.status.as_ref());
        *key.name != *mine && other.is_some_and(|s| s.binding.is_some())
    };
    let by_attachment = cache.index.attachments_of_disk(&disk_key).into_iter().find(is_bound);
    let unbound = disk.as_deref().filter(|d| d.status.as_ref().is_none_or(|s| s.binding.is_none()));
    let vm = cache.tables.vms.named(&namespace, attachment.spec.vm.as_str()).cloned();
    let binding = vm.as_ref().and_then(|vm| vm.status.as_ref()?.binding.as_ref());
    let pool = unbound.zip(binding).and_then(|(d, binding)| disk::choose_one(cache, &binding.host, d));
    Observed {
        vm,
        pool,
        user: by_status.or(by_vm).or(by_attachment.map(|key| format!("attachment {}", key.name))),
        fresh_volume_id: format!("v-{}", identities.hex(16)),
        unknown: placement_hold(cache, disk.as_ref().and_then(|d| d.creation_timestamp()).map(|made| made.0)),
        is_claimed: disk.as_deref().is_some_and(|disk| cache.claims.of(&disk_key, disk).is_some()),
        unconfirmed: disk.as_deref().and_then(|disk| disk::unconfirmed(cache, disk)),
        obstacle: unbound.and_then(|disk| disk::obstacle(cache, disk)),
        deleting: cache.first_deleted(disk.as_deref().map(users::of_disk).unwrap_or_default()),
        disk,
    }
}

fn plan(attachment: &HotswapDiskAttachment, observed: &Observed) -> Plan<Decision> {
    let is_deleted = attachment.metadata.deletion_timestamp.is_some();
    if attachment.status.as_ref().is_some_and(|s| s.binding.is_some()) {
        let mut plan = Plan::settled(Decision::NoChange);
        if !is_deleted {
            // Restored after its removal: the attachment's host has to detach the disk first.
            plan.steps.push(Step::AddFinalizer(Key::of(attachment), HOST_FINALIZER));
        }
        return plan;
    }
    if is_deleted {
        let mut plan = Plan::settled(Decision::NoChange);
        plan.steps.push(Step::RemoveFinalizer(Key::of(attachment), HOST_FINALIZER));
        return plan;
    }
    let namespace = attachment.namespace().unwrap_or_default();
    let vm_key = Key::namespaced(ObjectKind::VM, &namespace, attachment.spec.vm.as_str());
    let disk_key = Key::namespaced(ObjectKind::Disk, &namespace, attachment.spec.disk.as_str());
    let dependencies = vec![Dependency::Object(vm_key.clone()), Dependency::Object(disk_key.clone())];
    let wait = |reason, text: String| {
        Plan::blocked(Decision::Wait(Readiness::Reconciling(reason, text)), dependencies.clone())
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
    // Bound to the host that its guest leaves, the attachment and the disk would stay there.
    if vm.status.as_ref().and_then(VMStatus::live_move).is_some() {
        return wait(Reason::WaitingForVM, format!("VM {} is moving to another host", vm_key.name));
    }
    let Some(disk) = &observed.disk else {
        return wait(Reason::WaitingForDisk, format!("Disk {} does not exist", disk_key.name));
    };
    if disk.metadata.deletion_timestamp.is_some() {
        return wait(Reason::WaitingForDisk, format!("Disk {} is being deleted", disk_key.name));
    }
    if disk.is_read_write_many() {
        let text = format!(
            "Disk {} is ReadWriteMany: list it in the disks of VM {}, also while that runs",
            disk_key.name, vm_key.name
        );
        return Plan::blocked(Decision::Wait(Readiness::Stalled(Reason::InvalidSpec, text)), dependencies);
    }
    if disk.is_read_only_many() {
        let text = format!(
            "Disk {} is ReadOnlyMany: list it in the disks of VM {} with readOnly (read_only in Terraform), also while that runs",
            disk_key.name, vm_key.name
        );
        return Plan::blocked(Decision::Wait(Readiness::Stalled(Reason::InvalidSpec, text)), dependencies);
    }
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
            return Plan::blocked(
                Decision::Wait(Readiness::Stalled(Reason::DiskOnOtherHost, text)),
                dependencies,
            );
        }
        Some(_) => {}
        None => {
            if let Some(unknown) = &observed.unknown {
                let readiness = Readiness::Reconciling(Reason::WaitingForInventory, unknown.text.clone());
                return Plan::blocked(Decision::Wait(readiness), vec![unknown.dependency.clone()]);
            }
            if let Some(deleting) = &observed.deleting {
                let text = format!("{} {} is being deleted", deleting.kind.as_str(), deleting.name);
                let dependencies = [dependencies.clone(), namesakes(deleting, &namespace)].concat();
                let readiness = Readiness::Reconciling(Reason::WaitingForDisk, text);
                return Plan::blocked(Decision::Wait(readiness), dependencies);
            }
            if observed.is_claimed {
                return wait(
                    Reason::WaitingForDisk,
                    format!("Disk {} is given back to its host first", disk_key.name),
                );
            }
            let why = observed.unconfirmed.clone().or_else(|| awaits_its_host(disk.as_ref()));
            if let Some(why) = why.or_else(|| left_behind(disk)) {
                return wait(Reason::WaitingForDisk, format!("Disk {}: {why}", disk_key.name));
            }
            if let Some(Obstacle { text, dependencies: needed }) = &observed.obstacle {
                let text = format!("Disk {}: {text}", disk_key.name);
                let readiness = Readiness::Reconciling(Reason::WaitingForDisk, text);
                return Plan::blocked(Decision::Wait(readiness), [dependencies, needed.clone()].concat());
            }
            let usage = ObjectUse {
                use_kind: UseKind::Hotswap,
                vm: vm.name_any(),
                vm_uid: vm.uid().unwrap_or_default(),
                attachment: Some(attachment.name_any()),
            };
            steps.extend(bind_disk(
                &disk_key,
                &host,
                observed.pool.clone(),
                &observed.fresh_volume_id,
                vec![usage],
            ));
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
        Decision::NoChange => return status,
        Decision::Wait(readiness) => readiness.clone(),
        Decision::Bind(host) => {
            status.binding = Some(Binding { host: host.clone(), epoch: 1 });
            Readiness::bound_to(host)
        }
    };
    let attached = ConditionType::Attached;
    condition::set(
        &mut status.conditions,
        ConditionUpdate::new(attached, "False", readiness.reason(), readiness.message()),
        generation,
        now,
    );
    readiness.write(&mut status.conditions, generation, now);
    status.state = Some(AttachmentState::Requested);
    status.observed_generation = generation;
    status
}

/// Returns why a disk is not bound under another identity than its file has.
fn left_behind(disk: &Disk) -> Option<String> {
    let host = disk.status.as_ref()?.former_host.as_ref()?;
    Some(format!(
        "its file is in the folder of host {host}, which its VM has left: list it in the disks of a VM, whose host takes it from there"
    ))
}

#[cfg(test)]
mod tests {
    use berth_api::DiskStatus;

    use super::*;
    use serde_json::json;

    /// An attachment of a disk of this kind to a VM that is bound.
    fn seen(disk: serde_json::Value) -> (HotswapDiskAttachment, Observed) {
        let object = |kind: &str, spec: serde_json::Value, status: serde_json::Value| {
            json!({"apiVersion": "berth.dev/v1alpha1", "kind": kind,
                "metadata": {"name": "data", "namespace": "ns", "uid": "u1"}, "spec": spec, "status": status})
        };
        let attachment = object("HotswapDiskAttachment", json!({"vm": "data", "disk": "data"}), json!(null));
        let binding = json!({"binding": {"host": "h1", "epoch": 1}});
        let vm = object("VM", json!({"class": "small", "disks": [{"name": "root", "boot": true}]}), binding);
        let disk = object("Disk", disk, json!(null));
        let observed = Observed {
            vm: Some(Arc::new(serde_json::from_value(vm).expect("a VM"))),
            disk: Some(Arc::new(serde_json::from_value(disk).expect("a disk"))),
            user: None,
            fresh_volume_id: "v-1".into(),
            pool: None,
            unknown: None,
            is_claimed: false,
            unconfirmed: None,
            obstacle: None,
            deleting: None,
        };
        (serde_json::from_value(attachment).expect("an attachment"), observed)
    }

    #[test]
    fn a_disk_that_several_vms_read_is_not_attached() {
        let (attachment, observed) = seen(json!({"image": "debian", "access": "ReadOnlyMany"}));
        let plan = plan(&attachment, &observed);
        let Decision::Wait(Readiness::Stalled(Reason::InvalidSpec, text)) = &plan.decision else {
            panic!("{plan:?}")
        };
        assert!(text.contains("Disk data is ReadOnlyMany") && text.contains("disks of VM data"), "{text}");
        assert!(plan.steps.is_empty());
    }

    #[test]
    fn a_disk_does_not_go_to_the_host_that_a_running_guest_is_leaving() {
        let (attachment, mut observed) = seen(json!({"image": "debian"}));
        let mut sent = |epoch: i64| {
            let vm = Arc::make_mut(observed.vm.as_mut().expect("a VM"));
            let migration = json!({"id": "m1", "to": "h2", "epoch": epoch, "phase": "Requested"});
            let status = vm.status.as_mut().expect("a status");
            status.migration = serde_json::from_value(migration).expect("a move");
            plan(&attachment, &observed)
        };
        let moving = sent(1);
        let Decision::Wait(Readiness::Reconciling(Reason::WaitingForVM, text)) = &moving.decision else {
            panic!("{moving:?}")
        };
        assert!(text.contains("moving") && moving.steps.is_empty(), "{text}");
        let Outcome::Blocked(dependencies) = &moving.outcome else { panic!("it waits for the VM") };
        assert!(dependencies.contains(&Dependency::Object(Key::namespaced(ObjectKind::VM, "ns", "data"))));
        assert_eq!(sent(0).decision, Decision::Bind("h1".to_owned()), "a move out of an earlier binding");
    }

    #[test]
    fn a_disk_whose_file_is_in_the_folder_of_a_lost_host_gets_no_other_identity() {
        let (attachment, mut observed) = seen(json!({"image": "debian"}));
        let mut disk = observed.disk.as_deref().cloned().expect("a disk");
        disk.status = Some(DiskStatus { former_host: Some("h9".into()), ..DiskStatus::default() });
        observed.disk = Some(Arc::new(disk));
        let plan = plan(&attachment, &observed);
        let Decision::Wait(Readiness::Reconciling(Reason::WaitingForDisk, text)) = &plan.decision else {
            panic!("{plan:?}")
        };
        assert!(text.contains("host h9") && plan.steps.is_empty(), "{text}");
    }

    #[test]
    fn an_attachment_whose_disks_image_is_being_deleted_waits_for_each_image_of_that_name() {
        let (attachment, mut observed) = seen(json!({"image": "debian"}));
        let image = Key::namespaced(ObjectKind::Image, berth_api::SHARED_NAMESPACE, "debian");
        observed.deleting = Some(image);
        let Outcome::Blocked(dependencies) = plan(&attachment, &observed).outcome else { panic!("it waits") };
        for namespace in ["ns", berth_api::SHARED_NAMESPACE] {
            let dependency = Dependency::Object(Key::namespaced(ObjectKind::Image, namespace, "debian"));
            assert!(dependencies.contains(&dependency), "{namespace}: {dependencies:?}");
        }
    }
}
