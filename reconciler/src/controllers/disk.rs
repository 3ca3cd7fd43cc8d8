//! Disk: before its first VM it has no host; the controllers only say how it stands, or bind it to bring it back.

use std::sync::Arc;

use berth_api::{
    ConditionType, Disk, DiskState, DiskStatus, HOST_FINALIZER, Image, RESTORE_ANNOTATION, Readiness, Reason,
    condition,
};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

use super::{
    Config, Key, Kind, World,
    draft::Draft,
    fenced,
    plan::{Need, Outcome, Plan, Standing, Step},
    vm::{awaits_its_host, bind_disk},
};

#[derive(Debug)]
struct Observed {
    image: Option<Arc<Image>>,
    /// It was bound for a VM that is not bound there (any more), before anything was made of it.
    forsaken: bool,
    /// A host has its file already, and the volume's identity there: its status was lost.
    claim: Option<(String, String)>,
    /// For a disk that is to be brought back: whether that host's trash has it.
    restore: Option<Restore>,
}

#[derive(Debug)]
struct Restore {
    host: String,
    volume_id: String,
    found: bool,
}

pub(super) fn reconcile(world: &World, config: &Config, key: &Key, draft: &mut Draft) -> Outcome {
    let Some(disk) = world.disks.get(key).cloned() else { return Outcome::Settled };
    let observed = observe(world, &disk);
    // What nothing was made of is not lost with its host.
    if !observed.forsaken
        && let Some(outcome) = fenced::disk(world, config, &disk, draft)
    {
        return outcome;
    }
    let plan = plan(&disk, &observed);
    draft.steps(world, config, &plan.steps);
    if plan.decision.is_some() {
        draft.status(disk.as_ref(), status(&disk, &plan.decision, config.clock.now()));
    }
    plan.outcome
}

fn observe(world: &World, disk: &Disk) -> Observed {
    let namespace = disk.namespace().unwrap_or_default();
    let image =
        disk.spec.image.as_ref().and_then(|name| world.images.lookup(&namespace, name.as_str()).cloned());
    let restore = disk.annotations().get(RESTORE_ANNOTATION).and_then(|text| text.split_once('/')).map(
        |(host, volume)| {
            let trash = world.hosts.cluster(host).and_then(|h| h.status.as_ref()).map(|s| s.trash.as_slice());
            let found = trash
                .unwrap_or_default()
                .iter()
                .any(|t| t.volume_id == volume && t.namespace == namespace && t.name == disk.name_any());
            Restore { host: host.to_owned(), volume_id: volume.to_owned(), found }
        },
    );
    let claim = world.claims.of(&Key::of(disk), disk).map(|claim| (claim.host.clone(), claim.id.clone()));
    Observed { image, restore, claim, forsaken: is_forsaken(world, disk, &namespace) }
}

/// Nothing is made of a disk before the host has taken on the VM it is bound for.
fn is_forsaken(world: &World, disk: &Disk, namespace: &str) -> bool {
    let Some(status) = disk.status.as_ref().filter(|s| s.size.is_none()) else { return false };
    let (Some(binding), Some(user)) = (&status.binding, status.used_by.first()) else { return false };
    if disk.annotations().contains_key(RESTORE_ANNOTATION) {
        return false;
    }
    let vm = world.vms.named(namespace, &user.vm).filter(|vm| vm.uid().as_ref() == Some(&user.vm_uid));
    let host = vm.and_then(|vm| vm.status.as_ref()).and_then(|s| s.binding.as_ref()).map(|b| &b.host);
    // A VM that its host has without being bound is about to be bound there again.
    let held = vm.and_then(|vm| world.claims.of(&Key::of(vm.as_ref()), vm.as_ref())).map(|claim| &claim.host);
    host.or(held) != Some(&binding.host)
}

fn plan(disk: &Disk, observed: &Observed) -> Plan<Standing> {
    let is_bound = disk.status.as_ref().is_some_and(|s| s.binding.is_some());
    if is_bound && !(observed.forsaken && disk.metadata.deletion_timestamp.is_none()) {
        return Plan::settled(None);
    }
    if let Some((host, volume)) = observed.claim.as_ref().filter(|_| !is_bound) {
        let steps = bind_disk(&Key::of(disk), host, volume, Vec::new()).into();
        return Plan { steps, decision: None, outcome: Outcome::Settled };
    }
    if disk.metadata.deletion_timestamp.is_some() {
        let mut plan = Plan::settled(None);
        plan.steps.push(Step::RemoveFinalizer(Key::of(disk), HOST_FINALIZER));
        return plan;
    }
    if let Some(restore) = &observed.restore {
        return plan_restore(disk, restore);
    }
    if let Some(text) = awaits_its_host(disk) {
        return Plan::settled(Some(Readiness::Reconciling(Reason::WaitingForInventory, text)));
    }
    plan_unbound(disk, observed.image.as_deref())
}

fn plan_restore(disk: &Disk, restore: &Restore) -> Plan<Standing> {
    if restore.found {
        let steps = bind_disk(&Key::of(disk), &restore.host, &restore.volume_id, Vec::new()).into();
        return Plan { steps, decision: None, outcome: Outcome::Settled };
    }
    let text = format!("host {} has no file {} of this disk in its trash", restore.host, restore.volume_id);
    let need = Need::Object(Key::cluster(Kind::Host, &restore.host));
    Plan::blocked(Some(Readiness::Stalled(Reason::DiskLost, text)), vec![need])
}

fn plan_unbound(disk: &Disk, image: Option<&Image>) -> Plan<Standing> {
    let ready = Readiness::Ready(Reason::WaitingForFirstUse, "its first VM decides the host".into());
    let Some(name) = &disk.spec.image else { return Plan::settled(Some(ready)) };
    let namespace = disk.namespace().unwrap_or_default();
    let needs = [namespace.as_str(), berth_api::SHARED_NAMESPACE]
        .map(|ns| Need::Object(Key::namespaced(Kind::Image, ns, name.as_str())))
        .into();
    let Some(image) = image else {
        let text = format!("Image {name} does not exist in namespace {namespace} or berth-shared");
        return Plan::blocked(Some(Readiness::Reconciling(Reason::WaitingForImage, text)), needs);
    };
    let status = image.status.clone().unwrap_or_default();
    if condition::is_true(&status.conditions, ConditionType::Stalled) {
        let why =
            condition::find(&status.conditions, "Stalled").map(|c| c.message.clone()).unwrap_or_default();
        let text = format!("Image {name}: {why}");
        return Plan::blocked(Some(Readiness::Reconciling(Reason::WaitingForImage, text)), needs);
    }
    let bytes = |text: &str| berth_api::Quantity(text.to_owned()).bytes().ok();
    let image_size = status.virtual_size.as_deref().and_then(bytes);
    let disk_size = disk.spec.size.as_ref().and_then(|size| size.bytes().ok());
    if let (Some(image_size), Some(disk_size)) = (image_size, disk_size)
        && disk_size < image_size
    {
        let least = berth_api::Quantity::from_bytes(image_size);
        let text = format!("size is smaller than Image {name}: set size to {least} or more");
        return Plan::blocked(Some(Readiness::Stalled(Reason::DiskSmallerThanImage, text)), needs);
    }
    Plan::blocked(Some(ready), needs)
}

/// Why a VM must not be bound with this unbound disk yet.
pub(super) fn blocks_its_vm(disk: &Disk) -> Option<String> {
    let status = disk.status.as_ref();
    let observed = status.map_or(-1, |s| s.observed_generation);
    if observed < disk.metadata.generation.unwrap_or_default() {
        return Some("nobody has looked at it yet".into());
    }
    let conditions = &status?.conditions;
    match condition::is_true(conditions, ConditionType::Ready) {
        true => None,
        false => condition::find(conditions, "Ready").map(|c| c.message.clone()),
    }
}

fn status(disk: &Disk, standing: &Standing, now: Timestamp) -> DiskStatus {
    let mut status = disk.status.clone().unwrap_or_default();
    if let Some(readiness) = standing {
        // Only one that goes back to the unbound is spoken for here.
        status.binding = None;
        status.volume_id = None;
        status.serial = None;
        status.used_by.clear();
        let generation = disk.metadata.generation.unwrap_or_default();
        readiness.write(&mut status.conditions, generation, now);
        status.state = Some(match readiness {
            Readiness::Stalled(..) => DiskState::Failed,
            _ => DiskState::Pending,
        });
        status.observed_generation = generation;
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_disk_bound_for_a_vm_that_never_came_goes_back_and_waits_for_its_first_use() {
        let disk: Disk = serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "Disk", "metadata": {"name": "root", "namespace": "default"},
            "spec": {"size": "1Gi"}, "status": {"binding": {"host": "h1", "epoch": 1}, "volumeID": "v-1",
                "usedBy": [{"use": "Fixed", "vm": "web", "vmUid": "u1"}]},
        }))
        .expect("a disk");
        let seen = |forsaken| Observed { image: None, restore: None, claim: None, forsaken };
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().expect("a time");
        let decision = plan(&disk, &seen(true)).decision;
        let status = status(&disk, &decision, now);
        assert_eq!((status.binding, status.volume_id, status.used_by), (None, None, Vec::new()));
        assert!(condition::is_true(&status.conditions, ConditionType::Ready));
        assert_eq!(plan(&disk, &seen(false)).decision, None);
    }
}
