//! VM: chosen a host, with its disks, addresses and identity, in one decision. After that it is its agent's.

use std::sync::Arc;

use berth_api::{
    Binding, ConditionType, Disk, HOST_FINALIZER, Network, ObjectUse, PlacementGroup, Readiness, Reason,
    UseKind, VM, VMState, VMStatus, condition,
    vm::{InterfaceStatus, Refusal},
};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;

use super::{
    Key, Kind, World, access,
    addresses::{self, Fresh as FreshInterface},
    apply::{WriteError, Writer},
    fenced,
    fleet::Fleet,
    plan::{Need, Outcome, Place, Plan, Step},
    scheduler::{self, Filling, Group, Members, Request},
};
use crate::clock::Identities;

/// How long a host that refused a VM is not asked again: what it knows better will be known here by then.
const REFUSAL_COUNTS: SignedDuration = SignedDuration::from_secs(30);

/// What a VM's decision rests on.
#[derive(Debug)]
struct Observed {
    /// `None`: its class does not exist.
    size: Option<(i64, u64)>,
    disks: Vec<DiskSeen>,
    /// The group it names, if that exists.
    group: Option<Arc<PlacementGroup>>,
    /// How many other members of the group each host has.
    members: Members,
    /// The network of each interface, if it exists.
    networks: Vec<Option<Arc<Network>>>,
    filling: Filling,
    /// Its host, when it is bound, is silent.
    host_silent: bool,
    /// Or gone for good.
    host_fenced: bool,
    /// The host that has just refused it, and why.
    refused_by: Option<(String, String)>,
    fresh: Fresh,
}

/// One of the VM's disks.
#[derive(Debug)]
struct DiskSeen {
    key: Key,
    object: Option<Arc<Disk>>,
    /// Another VM has it.
    user: Option<String>,
}

/// Identities and addresses to give out: randomness and the pool of addresses come in as data.
#[derive(Debug, Default)]
struct Fresh {
    instance_id: String,
    /// One for each disk.
    volume_ids: Vec<String>,
    /// One for each interface; the text says why there is none.
    interfaces: Vec<FreshInterface>,
}

/// What the VM's status is to say.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Decision {
    /// It is its agent's, or it goes.
    Leave,
    /// Not bound, for this reason.
    Wait(VMState, Readiness),
    /// Bound.
    Bind { host: String, instance_id: String, interfaces: Vec<InterfaceStatus> },
    /// Its host is silent.
    Unknown(String),
    /// Its host has not taken it on and will not: it is placed anew.
    Unbind(Readiness),
    /// Bound, and its spec has other interfaces than it had then.
    Interfaces(Vec<InterfaceStatus>),
}

pub(super) async fn reconcile(
    world: &mut World,
    writer: &Writer,
    key: &Key,
    touched: &mut Vec<Key>,
) -> Result<Outcome, WriteError> {
    let Some(vm) = world.vms.get(key).cloned() else { return Ok(Outcome::Settled) };
    // What was never taken on there is not lost with its host.
    let admitted = vm.status.as_ref().is_some_and(VMStatus::is_admitted);
    if admitted && let Some(outcome) = fenced::vm(world, writer, &vm, touched).await? {
        return Ok(outcome);
    }
    let mut observed = observe(world, &vm, writer);
    if observed.host_silent
        && let Some(status) =
            vm.status.as_ref().filter(|s| s.state != Some(VMState::Unknown) || !s.is_admitted())
        && let Some(binding) = &status.binding
    {
        observed.host_silent = writer.confirms_silence(world, &binding.host, touched).await?;
    }
    let plan = plan(&vm, &observed, &world.index.fleet);
    if let Decision::Bind { host, .. } = &plan.decision {
        // Before the host knows of the VM, so that it never looks for its Secret in vain.
        access::grant(world, writer, host, &vm, touched).await?;
    }
    writer.apply(world, &plan.steps, touched).await?;
    let Some(vm) = world.vms.get(key).cloned() else { return Ok(Outcome::Settled) };
    let status = status(&vm, &plan.decision, writer.now());
    writer.status(world, vm.as_ref(), status, touched).await?;
    Ok(plan.outcome)
}

fn observe(world: &World, vm: &VM, writer: &Writer) -> Observed {
    let (identities, filling): (&Identities, Filling) = (writer.identities(), writer.filling());
    let namespace = vm.namespace().unwrap_or_default();
    let binding = vm.status.as_ref().and_then(|s| s.binding.as_ref());
    let networks: Vec<Option<Arc<Network>>> = vm
        .spec
        .network_interfaces
        .iter()
        .map(|i| world.networks.lookup(&namespace, i.network.as_str()).cloned())
        .collect();
    let interfaces = addresses::fresh(world, vm, &networks, identities);
    let disks: Vec<DiskSeen> = vm
        .spec
        .disks
        .iter()
        .map(|disk| {
            let key = Key::namespaced(Kind::Disk, &namespace, disk.name.as_str());
            let object = world.disks.get(&key).cloned();
            let user = other_user(world, &key, object.as_deref(), vm);
            DiskSeen { key, object, user }
        })
        .collect();
    let volume_ids = disks.iter().map(|_| format!("v-{}", identities.hex(16))).collect();
    if let Some(binding) = binding {
        return Observed {
            size: None,
            disks,
            group: None,
            members: Members::new(),
            networks,
            filling,
            host_silent: !world.is_alive(&binding.host) && world.hosts.cluster(&binding.host).is_some(),
            host_fenced: world.is_fenced(&binding.host),
            refused_by: None,
            fresh: Fresh { interfaces, volume_ids, ..Fresh::default() },
        };
    }
    let name = vm.spec.placement.as_ref().and_then(|p| p.group.as_ref());
    let group = name.and_then(|name| world.placement_groups.named(&namespace, name.as_str()).cloned());
    // It has no host itself: whoever counts is another.
    let members = group.as_ref().map(|group| world.index.group_hosts(&Key::of(group.as_ref())));
    let fresh = Fresh { instance_id: format!("i-{}", identities.hex(12)), volume_ids, interfaces };
    let refusal = vm.status.as_ref().and_then(|s| s.refusal.as_ref());
    let just_now = |time: &Timestamp| writer.now().duration_since(*time) < REFUSAL_COUNTS;
    let refusal = refusal.filter(|r| r.time.as_ref().is_some_and(just_now));
    Observed {
        size: world.vm_size(vm),
        disks,
        group,
        members: members.unwrap_or_default(),
        networks,
        filling,
        host_silent: false,
        host_fenced: false,
        refused_by: refusal.map(|r| (r.host.clone(), r.message.clone())),
        fresh,
    }
}

fn host_of(world: &World, key: &Key) -> Option<String> {
    world.vms.get(key)?.status.as_ref()?.binding.as_ref().map(|b| b.host.clone())
}

/// Who else has the disk: a user its status names, a bound VM that lists it, or a bound attachment.
fn other_user(world: &World, key: &Key, disk: Option<&Disk>, vm: &VM) -> Option<String> {
    let uid = vm.uid().unwrap_or_default();
    let named = disk.and_then(|d| d.status.as_ref()).and_then(|s| s.used_by.iter().find(|u| u.vm_uid != uid));
    if let Some(user) = named {
        return Some(user.vm.clone());
    }
    let is_other = |other: &Key| other.name != vm.name_any() && host_of(world, other).is_some();
    world.index.vms_with_disk(key).into_iter().find(is_other).map(|other| other.name)
}

fn plan(vm: &VM, observed: &Observed, fleet: &Fleet) -> Plan<Decision> {
    if let Some(binding) = vm.status.as_ref().and_then(|s| s.binding.as_ref()) {
        return match (returns(vm, observed, binding), observed.host_silent) {
            (Some(why), _) => Plan::settled(Decision::Unbind(why)),
            (None, true) => Plan::settled(Decision::Unknown(binding.host.clone())),
            (None, false) => plan_bound(vm, observed, &binding.host),
        };
    }
    if vm.metadata.deletion_timestamp.is_some() {
        // Nothing was made for it: only a finalizer set before a bind that never came holds it.
        let mut plan = Plan::settled(Decision::Leave);
        plan.steps.push(Step::RemoveFinalizer(Key::of(vm), HOST_FINALIZER));
        return plan;
    }
    match requirements(vm, observed) {
        Err((state, readiness, needs)) => Plan::blocked(Decision::Wait(state, readiness), needs),
        Ok(request) => {
            match scheduler::choose(&request, &observed.members, fleet.hosts(), observed.filling) {
                Ok(host) => bind(vm, observed, host.to_owned()),
                Err(why) => {
                    let readiness = why.readiness(&tied_by(observed));
                    let needs = room(vm, observed, request);
                    Plan::blocked(Decision::Wait(VMState::Unschedulable, readiness), needs)
                }
            }
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

/// Why a VM that its host has not taken on comes back to be placed anew, if it does.
///
/// *Guarantees:* never one that was taken on. The host takes on, and the binding is taken back, by a write of this
/// object that carries the version read: never both.
fn returns(vm: &VM, observed: &Observed, binding: &Binding) -> Option<Readiness> {
    let status = vm.status.as_ref().filter(|s| !s.is_admitted())?;
    let host = &binding.host;
    if let Some(refusal) = status.refused() {
        let text = format!("host {host} refused it: {}", refusal.message);
        return Some(Readiness::Reconciling(Reason::Refused, text));
    }
    let gone = [
        (observed.host_fenced, Reason::HostFenced, "is gone for good and had not taken it on"),
        (observed.host_silent, Reason::HostSilent, "fell silent before it took it on"),
    ];
    if let Some((_, reason, text)) = gone.iter().find(|(holds, ..)| *holds) {
        return Some(Readiness::Reconciling(*reason, format!("host {host} {text}: it is placed anew")));
    }
    let elsewhere = observed.disks.iter().find_map(|disk| {
        let other = bound(disk.object.as_ref()?).filter(|b| b.host != *host)?;
        Some(format!("Disk {} is on host {}: it is placed anew", disk.key.name, other.host))
    });
    elsewhere.map(|text| Readiness::Reconciling(Reason::DiskOnOtherHost, text))
}

/// A bound VM: disks it lists that have no host yet are given its own; new interfaces get addresses.
fn plan_bound(vm: &VM, observed: &Observed, host: &str) -> Plan<Decision> {
    let mut plan = plan_interfaces(vm, observed);
    if vm.metadata.deletion_timestamp.is_some() {
        return plan;
    }
    let mut needs = Vec::new();
    for (disk, volume_id) in observed.disks.iter().zip(&observed.fresh.volume_ids) {
        if disk.object.as_ref().is_some_and(|d| bound(d).is_some()) {
            continue;
        }
        needs.push(Need::Object(disk.key.clone()));
        if check_disk(disk).is_ok() {
            plan.steps.extend(bind_disk(&disk.key, host, volume_id, vec![fixed_use(vm)]));
        }
    }
    if !needs.is_empty() {
        plan.outcome = Outcome::Blocked(needs);
    }
    plan
}

fn fixed_use(vm: &VM) -> ObjectUse {
    ObjectUse {
        use_kind: UseKind::Fixed,
        vm: vm.name_any(),
        vm_uid: vm.uid().unwrap_or_default(),
        attachment: None,
    }
}

/// What a bound VM's status has to say of its interfaces: each keeps what it was given; a new one is given an address;
/// one that the spec no longer has keeps its address while the VM runs with it.
fn plan_interfaces(vm: &VM, observed: &Observed) -> Plan<Decision> {
    let status = vm.status.clone().unwrap_or_default();
    let wanted = addresses::decide(vm, &observed.networks, &observed.fresh.interfaces);
    let is_wanted =
        |i: &&InterfaceStatus| vm.spec.network_interfaces.iter().any(|w| w.name.as_str() == i.name);
    let leftover = status.interfaces.iter().filter(|i| !is_wanted(i) && status.process.is_some()).cloned();
    let interfaces: Vec<InterfaceStatus> = wanted.into_iter().chain(leftover).collect();
    if interfaces == status.interfaces || vm.metadata.deletion_timestamp.is_some() {
        return Plan::settled(Decision::Leave);
    }
    Plan::settled(Decision::Interfaces(interfaces))
}

type Blocked = (VMState, Readiness, Vec<Need>);

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
        if let Some(text) = super::network::why_not(network) {
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
        }),
    };
    let disk_hosts =
        observed.disks.iter().filter_map(|d| Some(bound(d.object.as_ref()?)?.host.clone())).collect();
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

fn bound(disk: &Disk) -> Option<&Binding> {
    disk.status.as_ref()?.binding.as_ref()
}

fn check_disk(disk: &DiskSeen) -> Result<(), Blocked> {
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
        && let Some(not_ready) = super::disk::blocks_its_vm(object)
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
    Plan { steps, decision: Decision::Bind { host, instance_id, interfaces }, outcome: Outcome::Settled }
}

/// The steps that give a disk its host.
pub(super) fn bind_disk(disk: &Key, host: &str, volume_id: &str, used_by: Vec<ObjectUse>) -> [Step; 2] {
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

fn status(vm: &VM, decision: &Decision, now: Timestamp) -> VMStatus {
    let mut status = vm.status.clone().unwrap_or_default();
    let generation = vm.metadata.generation.unwrap_or_default();
    let conditions = &mut status.conditions;
    match decision {
        Decision::Leave => return status,
        Decision::Unknown(host) => {
            let text = format!("host {host} has not renewed its lease: what runs there is not known");
            Readiness::Unknown(Reason::HostSilent, text).write(conditions, generation, now);
            status.state = Some(VMState::Unknown);
            return status;
        }
        Decision::Interfaces(interfaces) => {
            status.private_address = interfaces.first().map(|i| i.address.clone());
            status.interfaces.clone_from(interfaces);
            return status;
        }
        Decision::Unbind(readiness) => {
            if let Some(binding) = status.binding.take() {
                let message = match &status.refusal {
                    Some(refusal) if refusal.epoch == binding.epoch => refusal.message.clone(),
                    _ => readiness.message().to_owned(),
                };
                let Binding { host, epoch } = binding;
                status.refusal = Some(Refusal { host, epoch, message, time: Some(now) });
            }
            status.admitted_epoch = None;
            let (scheduled, reason) = (ConditionType::Scheduled, readiness.reason());
            condition::set(conditions, scheduled, "False", reason, readiness.message(), generation, now);
            readiness.write(conditions, generation, now);
            status.state = Some(VMState::Pending);
        }
        Decision::Wait(state, readiness) => {
            let scheduled = ConditionType::Scheduled;
            condition::set(
                conditions,
                scheduled,
                "False",
                readiness.reason(),
                readiness.message(),
                generation,
                now,
            );
            readiness.write(conditions, generation, now);
            status.state = Some(*state);
        }
        Decision::Bind { host, instance_id, interfaces } => {
            let text = format!("bound to host {host}");
            condition::set(
                conditions,
                ConditionType::Scheduled,
                "True",
                Reason::Bound,
                &text,
                generation,
                now,
            );
            Readiness::Reconciling(Reason::Bound, text).write(conditions, generation, now);
            status.state = Some(VMState::Creating);
            // Above every epoch that a host has seen of this VM.
            let epoch = status.refusal.as_ref().map_or(1, |r| r.epoch + 1);
            status.binding = Some(Binding { host: host.clone(), epoch });
            status.instance_id = Some(instance_id.clone());
            status.private_address = interfaces.first().map(|i| i.address.clone());
            status.interfaces.clone_from(interfaces);
        }
    }
    status.observed_generation = generation;
    status
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controllers::scheduler::Candidate;
    use berth_api::NetworkSpec;
    use serde_json::json;

    fn network() -> Arc<Network> {
        let mut network =
            Network::new("default", NetworkSpec { cidr: "10.0.0.0/29".into(), ..NetworkSpec::default() });
        network.metadata.namespace = Some("berth-shared".into());
        network.status = Some(berth_api::NetworkStatus { vni: Some(7), ..Default::default() });
        Arc::new(network)
    }

    fn vm(status: serde_json::Value) -> VM {
        serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "VM",
            "metadata": {"name": "web", "namespace": "default", "uid": "u1", "generation": 3},
            "spec": {"class": "small", "disks": [{"name": "root", "boot": true}]}, "status": status,
        }))
        .expect("a VM")
    }

    fn disk(status: serde_json::Value) -> Arc<Disk> {
        Arc::new(
            serde_json::from_value(json!({
                "apiVersion": "berth.dev/v1alpha1", "kind": "Disk",
                "metadata": {"name": "root", "namespace": "default", "generation": 1}, "spec": {"size": "1Gi"}, "status": status,
            }))
            .expect("a disk"),
        )
    }

    fn ready_disk() -> serde_json::Value {
        json!({"observedGeneration": 1, "conditions": [{"type": "Ready", "status": "True", "reason": "WaitingForFirstUse",
            "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]})
    }

    fn fleet() -> Fleet {
        let mut fleet = Fleet::default();
        fleet.set_host(Candidate {
            name: "h1".into(),
            ready: true,
            allocatable_cpus: 4,
            allocatable_memory: 1 << 40,
            ..Candidate::default()
        });
        fleet
    }

    fn observed(disk: Option<Arc<Disk>>) -> Observed {
        Observed {
            size: Some((1, 1 << 29)),
            disks: vec![DiskSeen {
                key: Key::namespaced(Kind::Disk, "default", "root"),
                object: disk,
                user: None,
            }],
            group: None,
            members: Members::new(),
            networks: vec![Some(network())],
            filling: Filling::Balance,
            host_silent: false,
            host_fenced: false,
            refused_by: None,
            fresh: Fresh {
                instance_id: "i-1".into(),
                volume_ids: vec!["v-0123456789abcdef".into()],
                interfaces: vec![Ok(("52:54:00:00:00:01".into(), "10.0.0.2".into()))],
            },
        }
    }

    fn waits_for(vm: &VM, observed: &Observed) -> Reason {
        match plan(vm, observed, &fleet()).decision {
            Decision::Wait(_, readiness) => readiness.reason(),
            other => panic!("expected it to wait, got {other:?}"),
        }
    }

    #[test]
    fn a_vm_and_its_unbound_disk_are_bound_in_one_decision() {
        insta::assert_debug_snapshot!(plan(&vm(json!(null)), &observed(Some(disk(ready_disk()))), &fleet()).steps, @r#"
        [
            AddFinalizer(
                Key {
                    kind: VM,
                    namespace: Some(
                        "default",
                    ),
                    name: "web",
                },
                "berth.dev/host",
            ),
            AddFinalizer(
                Key {
                    kind: Disk,
                    namespace: Some(
                        "default",
                    ),
                    name: "root",
                },
                "berth.dev/host",
            ),
            BindDisk {
                disk: Key {
                    kind: Disk,
                    namespace: Some(
                        "default",
                    ),
                    name: "root",
                },
                host: "h1",
                volume_id: "v-0123456789abcdef",
                serial: "v0123456789abcdef",
                used_by: [
                    ObjectUse {
                        use_kind: Fixed,
                        vm: "web",
                        vm_uid: "u1",
                        attachment: None,
                    },
                ],
            },
        ]
        "#);
    }

    #[test]
    fn what_is_missing_is_waited_for_with_its_own_reason() {
        let vm = vm(json!(null));
        let mut seen = observed(None);
        assert_eq!(waits_for(&vm, &seen), Reason::WaitingForDisk);
        seen.size = None;
        assert_eq!(waits_for(&vm, &seen), Reason::WaitingForClass);
        let mut seen = observed(Some(disk(json!(null))));
        assert_eq!(waits_for(&vm, &seen), Reason::WaitingForDisk, "a disk nobody has looked at");
        seen = observed(Some(disk(ready_disk())));
        seen.networks = vec![None];
        assert_eq!(waits_for(&vm, &seen), Reason::WaitingForNetwork);
        seen = observed(Some(disk(ready_disk())));
        seen.disks[0].user = Some("other".into());
        assert_eq!(waits_for(&vm, &seen), Reason::DiskInUse);
        seen = observed(Some(disk(ready_disk())));
        let nowhere = plan(&vm, &seen, &Fleet::default());
        assert!(
            matches!(nowhere.decision, Decision::Wait(VMState::Unschedulable, r) if r.reason() == Reason::Unschedulable)
        );
    }

    #[test]
    fn a_vm_whose_disk_is_on_a_host_that_is_full_says_which_disk_which_host_and_how_full() {
        let mut status = ready_disk();
        status["binding"] = json!({"host": "h1", "epoch": 1});
        let seen = observed(Some(disk(status)));
        let mut fleet = fleet();
        fleet.take("h1", 4, 0);
        let plan = plan(&vm(json!(null)), &seen, &fleet);
        let Decision::Wait(VMState::Unschedulable, readiness) = plan.decision else { panic!("it waits") };
        insta::assert_snapshot!(readiness.message(), @"Disk root is on host h1: host h1 has 0 of 4 CPUs free and it needs 1");
        let Outcome::Blocked(needs) = plan.outcome else { panic!("it is blocked") };
        assert!(
            needs.contains(&Need::Object(Key::cluster(Kind::Host, "h1"))),
            "whatever becomes of h1 concerns it"
        );
    }

    #[test]
    fn a_new_interface_of_a_bound_vm_is_given_an_address_and_an_old_one_keeps_its_own() {
        let given = json!({"name": "nic9", "network": "berth-shared/default", "macAddress": "52:54:00:00:00:09", "address": "10.0.0.6"});
        let bound = json!({"binding": {"host": "h1", "epoch": 1}, "interfaces": [given], "process": {"pid": 1, "startedAt": "2026-01-01T00:00:00Z"}});
        let Decision::Interfaces(interfaces) = plan(&vm(bound), &observed(None), &fleet()).decision else {
            panic!("its interfaces differ")
        };
        let names: Vec<_> = interfaces.iter().map(|i| (i.name.as_str(), i.address.as_str())).collect();
        assert_eq!(names, [("nic0", "10.0.0.2"), ("nic9", "10.0.0.6")]);
    }

    fn bound_vm(more: serde_json::Value) -> VM {
        let mut status = json!({"binding": {"host": "h1", "epoch": 3}, "instanceID": "i-1", "interfaces": [
            {"name": "nic0", "network": "berth-shared/default", "macAddress": "52:54:00:00:00:01", "address": "10.0.0.2"}]});
        for (key, value) in more.as_object().cloned().unwrap_or_default() {
            status[key] = value;
        }
        vm(status)
    }

    fn refusal(epoch: i64) -> serde_json::Value {
        json!({"host": "h1", "epoch": epoch, "message": "it is full"})
    }

    #[test]
    fn a_refused_vm_is_placed_anew_under_a_higher_epoch_with_the_identity_and_addresses_it_has() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().expect("a time");
        let refused = bound_vm(json!({"refusal": refusal(3)}));
        let back = plan(&refused, &observed(Some(disk(ready_disk()))), &fleet());
        let mut unbound = refused.clone();
        unbound.status = Some(status(&refused, &back.decision, now));
        let status_now = unbound.status.clone().expect("just set");
        assert_eq!(status_now.binding, None);
        assert_eq!(status_now.refusal.as_ref().and_then(|r| r.time), Some(now));
        let mut seen = observed(Some(disk(ready_disk())));
        seen.refused_by = Some(("h1".into(), "it is full".into()));
        let Decision::Wait(_, readiness) = plan(&unbound, &seen, &fleet()).decision else {
            panic!("it waits")
        };
        insta::assert_snapshot!(readiness.message(), @"host h1 refused it (it is full): 0 of 1 hosts can take it: 1 that just refused it (it needs 1 CPUs and 512 MiB)");
        let again = plan(&unbound, &observed(Some(disk(ready_disk()))), &fleet());
        let bound = status(&unbound, &again.decision, now);
        assert_eq!(bound.binding, Some(Binding { host: "h1".into(), epoch: 4 }));
        assert_eq!(
            (bound.instance_id.as_deref(), bound.private_address.as_deref()),
            (Some("i-1"), Some("10.0.0.2"))
        );
    }

    #[test]
    fn a_vm_that_its_host_took_on_is_never_taken_back() {
        let mut seen = observed(Some(disk(ready_disk())));
        seen.host_silent = true;
        let silent = plan(&bound_vm(json!({})), &seen, &fleet()).decision;
        assert!(
            matches!(silent, Decision::Unbind(r) if r.reason() == Reason::HostSilent),
            "nothing was made for it"
        );
        for taken in
            [json!({"admittedEpoch": 3}), json!({"process": {"pid": 1, "startedAt": "2026-01-01T00:00:00Z"}})]
        {
            let mut taken = taken;
            taken["refusal"] = refusal(3);
            assert_eq!(plan(&bound_vm(taken), &seen, &fleet()).decision, Decision::Unknown("h1".into()));
        }
        let old = bound_vm(json!({"refusal": refusal(2)}));
        assert_eq!(
            plan(&old, &observed(Some(disk(ready_disk()))), &fleet()).decision,
            Decision::Leave,
            "of an older binding"
        );
    }

    #[test]
    fn a_disk_added_to_a_bound_vm_is_given_its_host() {
        let taken = bound_vm(json!({"admittedEpoch": 3}));
        let steps = plan(&taken, &observed(Some(disk(ready_disk()))), &fleet()).steps;
        assert!(steps.iter().any(|s| matches!(s, Step::BindDisk { host, .. } if host == "h1")), "{steps:?}");
        let mut used = observed(Some(disk(ready_disk())));
        used.disks[0].user = Some("other".into());
        let plan = plan(&taken, &used, &fleet());
        assert!(plan.steps.is_empty() && matches!(plan.outcome, Outcome::Blocked(_)), "it waits for it");
    }
}
