//! VM: chosen a host, with its disks, addresses and identity, in one decision. After that it is its agent's.

use std::{collections::BTreeSet, net::Ipv4Addr, sync::Arc};

use berth_api::{
    Binding, ConditionType, Disk, HOST_FINALIZER, Network, ObjectUse, PlacementGroup, Readiness, Reason,
    UseKind, VM, VMState, VMStatus, condition, vm::InterfaceStatus,
};
use ipnet::Ipv4Net;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

use super::{
    Key, Kind, World,
    apply::{WriteError, Writer},
    plan::{Need, Outcome, Plan, Step},
    scheduler::{self, Candidate, Group, Request},
};
use crate::clock::Identities;

/// What a VM's decision rests on.
#[derive(Debug)]
struct Observed {
    /// `None`: its class does not exist.
    size: Option<(i64, u64)>,
    disks: Vec<DiskSeen>,
    /// The group it names, if that exists, with the hosts of its other members.
    group: Option<(Arc<PlacementGroup>, Vec<String>)>,
    /// The network of each interface, if it exists.
    networks: Vec<Option<Arc<Network>>>,
    candidates: Vec<Candidate>,
    /// Its host, when it is bound, is silent.
    host_silent: bool,
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
    interfaces: Vec<Result<(String, String), String>>,
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
    let mut observed = observe(world, &vm, writer.identities());
    if observed.host_silent
        && let Some(status) = vm.status.as_ref().filter(|s| s.state != Some(VMState::Unknown))
        && let Some(binding) = &status.binding
    {
        observed.host_silent = writer.confirms_silence(world, &binding.host, touched).await?;
    }
    let plan = plan(&vm, &observed);
    writer.apply(world, &plan.steps, touched).await?;
    let Some(vm) = world.vms.get(key).cloned() else { return Ok(Outcome::Settled) };
    let status = status(&vm, &plan.decision, writer.now());
    writer.status(world, vm.as_ref(), status, touched).await?;
    Ok(plan.outcome)
}

fn observe(world: &World, vm: &VM, identities: &Identities) -> Observed {
    let namespace = vm.namespace().unwrap_or_default();
    let binding = vm.status.as_ref().and_then(|s| s.binding.as_ref());
    let networks: Vec<Option<Arc<Network>>> = vm
        .spec
        .network_interfaces
        .iter()
        .map(|i| world.networks.lookup(&namespace, i.network.as_str()).cloned())
        .collect();
    let interfaces = fresh_interfaces(world, vm, &networks, identities);
    if let Some(binding) = binding {
        return Observed {
            size: None,
            disks: Vec::new(),
            group: None,
            networks,
            candidates: Vec::new(),
            host_silent: !world.is_alive(&binding.host) && world.hosts.cluster(&binding.host).is_some(),
            fresh: Fresh { interfaces, ..Fresh::default() },
        };
    }
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
    let group = vm.spec.placement.as_ref().and_then(|p| p.group.as_ref()).and_then(|name| {
        let group = world.placement_groups.named(&namespace, name.as_str())?.clone();
        let hosts = world
            .index
            .members(&Key::of(group.as_ref()))
            .iter()
            .filter_map(|key| host_of(world, key))
            .collect();
        Some((group, hosts))
    });
    let fresh = Fresh {
        instance_id: format!("i-{}", identities.hex(12)),
        volume_ids: disks.iter().map(|_| format!("v-{}", identities.hex(16))).collect(),
        interfaces,
    };
    Observed {
        size: world.vm_size(vm),
        disks,
        group,
        networks,
        candidates: candidates(world),
        host_silent: false,
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

fn fresh_interfaces(
    world: &World,
    vm: &VM,
    networks: &[Option<Arc<Network>>],
    identities: &Identities,
) -> Vec<Result<(String, String), String>> {
    let mut taken = BTreeSet::new();
    let mut macs = BTreeSet::new();
    let mut out = Vec::new();
    for (interface, network) in vm.spec.network_interfaces.iter().zip(networks) {
        let Some(network) = network else {
            out.push(Err(String::new()));
            continue;
        };
        let name = network_name(network);
        let is_free =
            |a: Ipv4Addr| !world.index.is_address_used(&name, a) && !taken.contains(&(name.clone(), a));
        let address = pick_address(network, interface.address.as_deref(), is_free);
        let mac = match &interface.mac_address {
            Some(mac) => mac.to_lowercase(),
            None => fresh_mac(identities, |mac| world.index.is_mac_used(mac) || macs.contains(mac)),
        };
        if let Ok(address) = &address {
            taken.insert((name.clone(), *address));
        }
        macs.insert(mac.clone());
        out.push(address.map(|address| (mac, address.to_string())));
    }
    out
}

fn network_name(network: &Network) -> String {
    format!("{}/{}", network.namespace().unwrap_or_default(), network.name_any())
}

/// The address wanted, or the lowest free one. The first address is the gateway's.
fn pick_address(
    network: &Network,
    wanted: Option<&str>,
    is_free: impl Fn(Ipv4Addr) -> bool,
) -> Result<Ipv4Addr, String> {
    let name = network_name(network);
    let range: Ipv4Net =
        network.spec.cidr.parse().map_err(|_| format!("network {name} has no valid range"))?;
    let gateway = range.hosts().next();
    let Some(wanted) = wanted else {
        let free = range.hosts().skip(1).find(|a| is_free(*a));
        return free.ok_or_else(|| format!("network {name} ({range}) has no free address"));
    };
    let address: Ipv4Addr = wanted.parse().map_err(|_| format!("{wanted} is not an IPv4 address"))?;
    let is_host = address != range.network() && address != range.broadcast() && Some(address) != gateway;
    if !range.contains(&address) || !is_host {
        return Err(format!("{address} is not an address for VMs of network {name} ({range})"));
    }
    if is_free(address) { Ok(address) } else { Err(format!("{address} is taken in network {name}")) }
}

fn fresh_mac(identities: &Identities, is_used: impl Fn(&str) -> bool) -> String {
    loop {
        let hex = identities.hex(8);
        // 52:54 is the prefix QEMU uses: locally administered, not a group address.
        let mac = format!("52:54:{}:{}:{}:{}", &hex[0..2], &hex[2..4], &hex[4..6], &hex[6..8]);
        if !is_used(&mac) {
            return mac;
        }
    }
}

/// Every host, as the scheduler sees it.
fn candidates(world: &World) -> Vec<Candidate> {
    let bytes = |text: &str| berth_api::Quantity(text.to_owned()).bytes().unwrap_or_default();
    let candidate = |host: &Arc<berth_api::Host>| {
        let name = host.name_any();
        let status = host.status.clone().unwrap_or_default();
        let usage = world.index.usage(&name);
        let overhead = status.vm_overhead.as_deref().map(bytes).unwrap_or_default();
        let allocatable = status.allocatable.unwrap_or_default();
        Candidate {
            labels: host.labels().clone(),
            alive: world.is_alive(&name) && condition::is_true(&status.conditions, ConditionType::Ready),
            cordoned: host.spec.cordoned,
            allocatable_cpus: allocatable.cpus,
            allocatable_memory: bytes(&allocatable.memory),
            used_cpus: usage.cpus,
            used_memory: usage.memory + usage.vms * overhead,
            overhead,
            name,
        }
    };
    world.hosts.all().map(candidate).collect()
}

fn plan(vm: &VM, observed: &Observed) -> Plan<Decision> {
    if let Some(binding) = vm.status.as_ref().and_then(|s| s.binding.as_ref()) {
        return match observed.host_silent {
            true => Plan::settled(Decision::Unknown(binding.host.clone())),
            false => plan_interfaces(vm, observed),
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
        Ok(request) => match scheduler::choose(&request, &observed.candidates) {
            Err(why) => Plan::blocked(
                Decision::Wait(VMState::Unschedulable, Readiness::Reconciling(Reason::Unschedulable, why)),
                vec![Need::Capacity],
            ),
            Ok(host) => bind(vm, observed, host),
        },
    }
}

/// What a bound VM's status has to say of its interfaces: each keeps what it was given; a new one is given an address;
/// one that the spec no longer has keeps its address while the VM runs with it.
fn plan_interfaces(vm: &VM, observed: &Observed) -> Plan<Decision> {
    let status = vm.status.clone().unwrap_or_default();
    let wanted = decide_interfaces(vm, observed, &status.interfaces);
    let is_wanted =
        |i: &&InterfaceStatus| vm.spec.network_interfaces.iter().any(|w| w.name.as_str() == i.name);
    let leftover = status.interfaces.iter().filter(|i| !is_wanted(i) && status.process.is_some()).cloned();
    let interfaces: Vec<InterfaceStatus> = wanted.into_iter().chain(leftover).collect();
    if interfaces == status.interfaces || vm.metadata.deletion_timestamp.is_some() {
        return Plan::settled(Decision::Leave);
    }
    Plan::settled(Decision::Interfaces(interfaces))
}

/// One entry for each interface of the spec whose network exists: the one it was given, else a fresh one.
fn decide_interfaces(vm: &VM, observed: &Observed, given: &[InterfaceStatus]) -> Vec<InterfaceStatus> {
    let mut decided = Vec::new();
    let fresh = observed.networks.iter().zip(&observed.fresh.interfaces);
    for (interface, (network, fresh)) in vm.spec.network_interfaces.iter().zip(fresh) {
        if let Some(given) = given.iter().find(|g| g.name == interface.name.as_str()) {
            decided.push(given.clone());
        } else if let (Some(network), Ok((mac_address, address))) = (network, fresh) {
            decided.push(InterfaceStatus {
                name: interface.name.0.clone(),
                network: network_name(network),
                mac_address: mac_address.clone(),
                address: address.clone(),
                public_address: None,
            });
        }
    }
    decided
}

type Blocked = (VMState, Readiness, Vec<Need>);

/// What the VM asks of a host, or what it waits for first.
fn requirements(vm: &VM, observed: &Observed) -> Result<Request, Blocked> {
    let namespace = vm.namespace().unwrap_or_default();
    let wait = |reason, text: String, needs| (VMState::Pending, Readiness::Reconciling(reason, text), needs);
    let shared = |kind, name: &str| {
        vec![
            Need::Object(Key::namespaced(kind, &namespace, name)),
            Need::Object(Key::namespaced(kind, berth_api::SHARED_NAMESPACE, name)),
        ]
    };
    let class = vm.spec.class.as_str();
    let Some((cpus, memory)) = observed.size else {
        let text = format!("VMClass {class} does not exist in namespace {namespace} or berth-shared");
        return Err(wait(Reason::WaitingForClass, text, shared(Kind::VMClass, class)));
    };
    for disk in &observed.disks {
        check_disk(disk)?;
    }
    for (interface, network) in vm.spec.network_interfaces.iter().zip(&observed.networks) {
        if network.is_none() {
            let name = interface.network.as_str();
            let text = format!("Network {name} does not exist in namespace {namespace} or berth-shared");
            return Err(wait(Reason::WaitingForNetwork, text, shared(Kind::Network, name)));
        }
    }
    if let Some(Err(why)) = observed.fresh.interfaces.iter().find(|i| i.is_err()) {
        let readiness = Readiness::Stalled(Reason::AddressUnavailable, why.clone());
        return Err((VMState::Pending, readiness, vec![Need::Capacity]));
    }
    let placement = vm.spec.placement.clone().unwrap_or_default();
    let group = match (&placement.group, &observed.group) {
        (None, _) => None,
        (Some(name), None) => {
            let key = Key::namespaced(Kind::PlacementGroup, &namespace, name.as_str());
            let text = format!("PlacementGroup {name} does not exist");
            return Err(wait(Reason::WaitingForGroup, text, vec![Need::Object(key)]));
        }
        (Some(name), Some((group, member_hosts))) => Some(Group {
            name: name.0.clone(),
            enforcement: group.spec.enforcement,
            topology_key: group.spec.topology_key.clone(),
            member_hosts: member_hosts.clone(),
        }),
    };
    let disk_hosts =
        observed.disks.iter().filter_map(|d| Some(bound(d.object.as_ref()?)?.host.clone())).collect();
    Ok(Request { cpus, memory, host: placement.host, selector: placement.host_selector, disk_hosts, group })
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
    let usage = ObjectUse {
        use_kind: UseKind::Fixed,
        vm: vm.name_any(),
        vm_uid: vm.uid().unwrap_or_default(),
        attachment: None,
    };
    for (disk, volume_id) in observed.disks.iter().zip(&observed.fresh.volume_ids) {
        if disk.object.as_ref().is_some_and(|d| bound(d).is_none()) {
            steps.extend(bind_disk(&disk.key, &host, volume_id, vec![usage.clone()]));
        }
    }
    let interfaces = decide_interfaces(vm, observed, &[]);
    let instance_id = observed.fresh.instance_id.clone();
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
            status.binding = Some(Binding { host: host.clone(), epoch: 1 });
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
    use berth_api::NetworkSpec;
    use serde_json::json;

    fn network() -> Arc<Network> {
        let mut network =
            Network::new("default", NetworkSpec { cidr: "10.0.0.0/29".into(), ..NetworkSpec::default() });
        network.metadata.namespace = Some("berth-shared".into());
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

    fn observed(disk: Option<Arc<Disk>>) -> Observed {
        let candidate = Candidate {
            name: "h1".into(),
            alive: true,
            allocatable_cpus: 4,
            allocatable_memory: 1 << 40,
            ..Candidate::default()
        };
        Observed {
            size: Some((1, 1 << 29)),
            disks: vec![DiskSeen {
                key: Key::namespaced(Kind::Disk, "default", "root"),
                object: disk,
                user: None,
            }],
            group: None,
            networks: vec![Some(network())],
            candidates: vec![candidate],
            host_silent: false,
            fresh: Fresh {
                instance_id: "i-1".into(),
                volume_ids: vec!["v-0123456789abcdef".into()],
                interfaces: vec![Ok(("52:54:00:00:00:01".into(), "10.0.0.2".into()))],
            },
        }
    }

    fn waits_for(vm: &VM, observed: &Observed) -> Reason {
        match plan(vm, observed).decision {
            Decision::Wait(_, readiness) => readiness.reason(),
            other => panic!("expected it to wait, got {other:?}"),
        }
    }

    #[test]
    fn a_vm_and_its_unbound_disk_are_bound_in_one_decision() {
        insta::assert_debug_snapshot!(plan(&vm(json!(null)), &observed(Some(disk(ready_disk())))).steps, @r#"
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
        seen.candidates.clear();
        assert_eq!(waits_for(&vm, &seen), Reason::Unschedulable);
    }

    #[test]
    fn a_new_interface_of_a_bound_vm_is_given_an_address_and_an_old_one_keeps_its_own() {
        let given = json!({"name": "nic9", "network": "berth-shared/default", "macAddress": "52:54:00:00:00:09", "address": "10.0.0.6"});
        let bound = json!({"binding": {"host": "h1", "epoch": 1}, "interfaces": [given], "process": {"pid": 1, "startedAt": "2026-01-01T00:00:00Z"}});
        let Decision::Interfaces(interfaces) = plan(&vm(bound), &observed(None)).decision else {
            panic!("its interfaces differ")
        };
        let names: Vec<_> = interfaces.iter().map(|i| (i.name.as_str(), i.address.as_str())).collect();
        assert_eq!(names, [("nic0", "10.0.0.2"), ("nic9", "10.0.0.6")]);
    }

    #[test]
    fn addresses_are_given_out_from_the_second_on_until_there_is_none() {
        let network = network();
        let address = |text: &str| text.parse::<Ipv4Addr>().expect("an address");
        assert_eq!(pick_address(&network, None, |_| true), Ok(address("10.0.0.2")));
        assert_eq!(pick_address(&network, None, |a| a > address("10.0.0.4")), Ok(address("10.0.0.5")));
        assert!(pick_address(&network, None, |_| false).unwrap_err().contains("no free address"));
        for wrong in ["10.0.0.0", "10.0.0.1", "10.0.0.7", "10.0.1.2", "x"] {
            assert!(pick_address(&network, Some(wrong), |_| true).is_err(), "{wrong}");
        }
        assert!(pick_address(&network, Some("10.0.0.3"), |_| false).unwrap_err().contains("taken"));
    }
}
