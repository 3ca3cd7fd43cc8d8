//! Where a VM without a host goes: what it asks of a host, what it waits for, and the writes that bind it.

use berth_api::{Binding, Disk, HOST_FINALIZER, ObjectUse, Readiness, Reason, UseKind, VM, VMState};
use kube::ResourceExt;

use super::{Decision, DiskSeen, Observed, awaits_its_host};
use crate::controllers::{
    Key, Kind, addresses,
    claims::Claim,
    disk::blocks_its_vm,
    fleet::Fleet,
    network::why_not,
    plan::{Need, Outcome, Place, Plan, Step},
    scheduler::{self, Group, Request},
};

/// Chooses its host, or says what it waits for.
pub(super) fn place(vm: &VM, observed: &Observed, fleet: &Fleet) -> Plan<Decision> {
    if let Some(unknown) = &observed.unknown {
        let readiness = Readiness::Reconciling(Reason::WaitingForInventory, unknown.text.clone());
        return Plan::blocked(Decision::Wait(VMState::Pending, readiness), vec![unknown.need.clone()]);
    }
    let request = match requirements(vm, observed) {
        Err((state, readiness, needs)) => return Plan::blocked(Decision::Wait(state, readiness), needs),
        Ok(request) => request,
    };
    match scheduler::choose(&request, &observed.members, fleet.hosts(), observed.filling) {
        Ok(host) => bind(vm, observed, host.to_owned()),
        Err(why) => {
            let readiness = why.readiness(&tied_by(observed));
            let needs = room(vm, observed, request);
            Plan::blocked(Decision::Wait(VMState::Unschedulable, readiness), needs)
        }
    }
}

/// What a VM without a host waits for: room, and whatever decides where it may go.
fn room(vm: &VM, observed: &Observed, request: Request) -> Vec<Need> {
    let tied = request.disk_hosts.iter().chain(&request.host);
    let mut needs: Vec<Need> = tied.map(|host| Need::Object(Key::cluster(Kind::Host, host))).collect();
    needs.extend(observed.disks.iter().map(|disk| Need::Object(disk.key.clone())));
    if let Some(group) = &request.group {
        let key = Key::namespaced(Kind::PlacementGroup, &group.namespace, &group.name);
        needs.push(Need::Object(key));
    }
    let namespace = vm.namespace().unwrap_or_default();
    needs.extend(in_namespace_or_shared(Kind::VMClass, &namespace, vm.spec.class.as_str()));
    let since = vm.creation_timestamp().map(|time| time.0);
    needs.push(Need::Room(Box::new(Place { line: request, since })));
    needs
}

/// The disks that leave it no choice of host, and the host that would not have it.
fn tied_by(observed: &Observed) -> String {
    let refused = observed.refused_by.iter().map(|(host, why)| format!("host {host} refused it ({why})"));
    let tied = observed.disks.iter().filter_map(|disk| {
        let host = &bound(disk.object.as_ref()?)?.host;
        Some(format!("Disk {} is on host {host}", disk.key.name))
    });
    let tied: Vec<String> = refused.chain(tied).collect();
    if tied.is_empty() { String::new() } else { format!("{}: ", tied.join(", ")) }
}

fn in_namespace_or_shared(kind: Kind, namespace: &str, name: &str) -> Vec<Need> {
    [namespace, berth_api::SHARED_NAMESPACE].map(|ns| Need::Object(Key::namespaced(kind, ns, name))).into()
}

pub(super) type Blocked = (VMState, Readiness, Vec<Need>);

/// What the VM asks of a host, or what it waits for first.
fn requirements(vm: &VM, observed: &Observed) -> Result<Request, Blocked> {
    let namespace = vm.namespace().unwrap_or_default();
    let wait = |reason, text: String, needs| (VMState::Pending, Readiness::Reconciling(reason, text), needs);
    let shared = |kind, name: &str| in_namespace_or_shared(kind, &namespace, name);
    // A Secret's is looked at by the host, which may read it.
    let user_data = vm.spec.bootstrap.as_ref().and_then(|b| b.user_data.as_deref()).unwrap_or_default();
    if let Err(error) = berth_api::user_data::check(user_data) {
        let readiness = Readiness::Stalled(Reason::InvalidSpec, format!("user data: {error}"));
        return Err((VMState::Pending, readiness, Vec::new()));
    }
    let class = vm.spec.class.as_str();
    let Some((cpus, memory)) = observed.size else {
        let text = format!("VMClass {class} does not exist in namespace {namespace} or berth-shared");
        return Err(wait(Reason::WaitingForClass, text, shared(Kind::VMClass, class)));
    };
    for disk in &observed.disks {
        check_disk(disk)?;
    }
    for (interface, network) in vm.spec.network_interfaces.iter().zip(&observed.networks) {
        let name = interface.network.as_str();
        let Some(network) = network else {
            let text = format!("Network {name} does not exist in namespace {namespace} or berth-shared");
            return Err(wait(Reason::WaitingForNetwork, text, shared(Kind::Network, name)));
        };
        if let Some(text) = why_not(network) {
            return Err(wait(Reason::WaitingForNetwork, text, shared(Kind::Network, name)));
        }
    }
    if let Some(Err(why)) = observed.fresh.interfaces.iter().find(|i| i.is_err()) {
        let readiness = Readiness::Stalled(Reason::AddressUnavailable, why.clone());
        return Err((VMState::Pending, readiness, vec![Need::PrivateAddress]));
    }
    let placement = vm.spec.placement.clone().unwrap_or_default();
    let group = match (&placement.group, &observed.group) {
        (None, _) => None,
        (Some(name), None) => {
            let key = Key::namespaced(Kind::PlacementGroup, &namespace, name.as_str());
            let text = format!("PlacementGroup {name} does not exist");
            return Err(wait(Reason::WaitingForGroup, text, vec![Need::Object(key)]));
        }
        (Some(name), Some(group)) => Some(Group {
            namespace: namespace.clone(),
            name: name.0.clone(),
            strategy: group.spec.strategy,
            enforcement: group.spec.enforcement,
            topology_key: group.spec.topology_key.clone(),
            taken: observed.taken.clone(),
        }),
    };
    let host = |d: &DiskSeen| d.claimed.clone().or_else(|| Some(bound(d.object.as_ref()?)?.host.clone()));
    let disk_hosts = observed.disks.iter().filter_map(host).collect();
    Ok(Request {
        cpus,
        memory,
        host: placement.host,
        selector: placement.host_selector,
        preferred: placement.preferred_host_selector,
        disk_hosts,
        refused_by: observed.refused_by.as_ref().map(|(host, _)| host.clone()),
        group,
    })
}

pub(super) fn bound(disk: &Disk) -> Option<&Binding> {
    disk.status.as_ref()?.binding.as_ref()
}

pub(super) fn check_disk(disk: &DiskSeen) -> Result<(), Blocked> {
    let name = &disk.key.name;
    let need = vec![Need::Object(disk.key.clone())];
    let wait = |reason, text: String| (VMState::Pending, Readiness::Reconciling(reason, text), need.clone());
    let Some(object) = &disk.object else {
        return Err(wait(Reason::WaitingForDisk, format!("Disk {name} does not exist")));
    };
    if object.metadata.deletion_timestamp.is_some() {
        return Err(wait(Reason::WaitingForDisk, format!("Disk {name} is being deleted")));
    }
    if let Some(user) = &disk.user {
        let mut needs = need.clone();
        needs.push(Need::Object(Key::namespaced(Kind::VM, disk.key.namespace(), user)));
        let readiness =
            Readiness::Reconciling(Reason::DiskInUse, format!("Disk {name} is used by VM {user}"));
        return Err((VMState::Pending, readiness, needs));
    }
    if bound(object).is_none()
        && disk.claimed.is_none()
        && let Some(text) = awaits_its_host(object.as_ref())
    {
        return Err(wait(Reason::WaitingForDisk, format!("Disk {name}: {text}")));
    }
    if bound(object).is_none()
        && let Some(not_ready) = blocks_its_vm(object)
    {
        return Err(wait(Reason::WaitingForDisk, format!("Disk {name}: {not_ready}")));
    }
    Ok(())
}

fn bind(vm: &VM, observed: &Observed, host: String) -> Plan<Decision> {
    let mut steps = vec![Step::AddFinalizer(Key::of(vm), HOST_FINALIZER)];
    for (disk, volume_id) in observed.disks.iter().zip(&observed.fresh.volume_ids) {
        if disk.object.as_ref().is_some_and(|d| bound(d).is_none()) {
            steps.extend(bind_disk(&disk.key, &host, volume_id, vec![fixed_use(vm)]));
        }
    }
    let interfaces = addresses::decide(vm, &observed.networks, &observed.fresh.interfaces);
    let known = vm.status.as_ref().and_then(|s| s.instance_id.clone());
    let instance_id = known.unwrap_or_else(|| observed.fresh.instance_id.clone());
    let decision = Decision::Bind { host, instance_id, interfaces, held: None };
    Plan { steps, decision, outcome: Outcome::Settled }
}

/// Binds a VM whose status was lost to the host that has it, as what it is there, and its disks there as what they are.
pub(super) fn bind_again(vm: &VM, observed: &Observed, claim: &Claim) -> Plan<Decision> {
    let mut steps = vec![Step::AddFinalizer(Key::of(vm), HOST_FINALIZER)];
    for (disk, volume_id) in observed.disks.iter().zip(&observed.fresh.volume_ids) {
        if disk.claimed.as_ref() == Some(&claim.host) {
            steps.extend(bind_disk(&disk.key, &claim.host, volume_id, vec![fixed_use(vm)]));
        }
    }
    let decision = Decision::Bind {
        host: claim.host.clone(),
        instance_id: claim.id.clone(),
        interfaces: addresses::decide(vm, &observed.networks, &observed.fresh.interfaces),
        held: Some(claim.epoch),
    };
    Plan { steps, decision, outcome: Outcome::Settled }
}

pub(super) fn fixed_use(vm: &VM) -> ObjectUse {
    ObjectUse {
        use_kind: UseKind::Fixed,
        vm: vm.name_any(),
        vm_uid: vm.uid().unwrap_or_default(),
        attachment: None,
    }
}

/// The steps that give a disk its host.
pub(in crate::controllers) fn bind_disk(
    disk: &Key,
    host: &str,
    volume_id: &str,
    used_by: Vec<ObjectUse>,
) -> [Step; 2] {
    // A SCSI serial number has at most 20 characters; QEMU's by-id links carry it.
    let serial: String = volume_id.chars().filter(|c| *c != '-').take(20).collect();
    [
        Step::AddFinalizer(disk.clone(), HOST_FINALIZER),
        Step::BindDisk {
            disk: disk.clone(),
            host: host.to_owned(),
            volume_id: volume_id.to_owned(),
            serial,
            used_by,
        },
    ]
}
