//! Placement of a VM without a host: its request, its needs, and the writes that bind it.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::{
    BridgeSpec, DEFAULT_NAME, DeviceCounts, Graphics, HOST_FINALIZER, Network, ObjectUse, Readiness, Reason,
    SizeError, UseKind, VM, VMState,
    hardware::is_machine_type,
    vm::{InterfaceStatus, NetworkInterface, VMAffinity, declared_shares},
};
use kube::ResourceExt;

use crate::{
    cache::architecture::OtherArchitecture,
    cache::capacity::{Demand, HostCapacity},
    cache::claims::Claim,
    cache::storage::device_of,
    key::{Key, ObjectKind},
    kinds::disk::bind_disk,
    kinds::network::why_not,
    kinds::vm::{
        Decision, addresses, labels,
        observe::{DiskSeen, Observed, bound, destination},
    },
    placement_hold::awaits_its_host,
    plan::{Dependency, Outcome, Plan, QueuePosition, Step, namesakes},
    scheduler,
    scheduler::{AffinityRule, Group, NAMED_RULES, Request},
};

/// Chooses its host, or returns its needs.
pub(super) fn place(vm: &VM, observed: &Observed, capacity: &HostCapacity) -> Plan<Decision> {
    if let Some(unknown) = &observed.unknown {
        let readiness = Readiness::Reconciling(Reason::WaitingForInventory, unknown.text.clone());
        return Plan::blocked(Decision::Wait(VMState::Pending, readiness), vec![unknown.dependency.clone()]);
    }
    if let Some(excess) = &observed.over_quota {
        let readiness = Readiness::Reconciling(Reason::QuotaExceeded, excess.text.clone());
        return Plan::blocked(Decision::Wait(VMState::Pending, readiness), vec![excess.dependency.clone()]);
    }
    let request = match requirements(vm, observed) {
        Err((state, readiness, dependencies)) => {
            return Plan::blocked(Decision::Wait(state, readiness), dependencies);
        }
        Ok(request) => request,
    };
    match scheduler::choose(&request, &observed.beside, capacity.hosts(), observed.policy) {
        Ok(host) => {
            let baseline = scheduler::cpu_baseline(&request, capacity.hosts());
            let pools = capacity.get(host).map(|c| scheduler::chosen_pools(c, &request)).unwrap_or_default();
            let keys = observed.choices.iter().map(|(key, _)| key);
            let pools: BTreeMap<&Key, String> = keys.zip(pools).collect();
            bind(vm, observed, host.to_owned(), baseline, &pools)
        }
        Err(why) => {
            let readiness = why.readiness(&constraints_text(observed));
            let dependencies = capacity_dependencies(vm, observed, request);
            Plan::blocked(Decision::Wait(VMState::Unschedulable, readiness), dependencies)
        }
    }
}

/// Returns the needs of a VM without a host: capacity, and the objects that decide where it may go.
fn capacity_dependencies(vm: &VM, observed: &Observed, request: Request) -> Vec<Dependency> {
    let tied = request.disk_hosts.iter().chain(&request.host);
    let mut dependencies: Vec<Dependency> =
        tied.map(|host| Dependency::Object(Key::cluster(ObjectKind::Host, host))).collect();
    dependencies.extend(observed.disks.iter().map(|disk| Dependency::Object(disk.key.clone())));
    if let Some(group) = &request.group {
        let key = Key::namespaced(ObjectKind::PlacementGroup, &group.namespace, &group.name);
        dependencies.push(Dependency::Object(key));
    }
    let namespace = vm.namespace().unwrap_or_default();
    if let Some(class) = &vm.spec.class {
        dependencies.extend(in_namespace_or_shared(ObjectKind::VMClass, &namespace, class.as_str()));
    }
    let since = vm.creation_timestamp().map(|time| time.0);
    dependencies.push(Dependency::Capacity(Box::new(QueuePosition { line: request, since })));
    dependencies
}

/// Names the disks that tie it to a host, the labels that its group and its disks ask for, and the host that refused it.
fn constraints_text(observed: &Observed) -> String {
    let refused = observed.refused_by.iter().map(|(host, why)| format!("host {host} refused it ({why})"));
    let tied = observed.disks.iter().filter_map(|disk| {
        let host = &bound(disk.object.as_ref()?)?.host;
        Some(format!("Disk {} is on host {host}", disk.key.name))
    });
    let tied: Vec<String> = refused.chain(tied).chain(labels::explain(observed)).collect();
    if tied.is_empty() { String::new() } else { format!("{}: ", tied.join(", ")) }
}

/// Returns the places of an object that a VM of the namespace names.
pub(super) fn in_namespace_or_shared(kind: ObjectKind, namespace: &str, name: &str) -> Vec<Dependency> {
    [namespace, berth_api::SHARED_NAMESPACE]
        .map(|ns| Dependency::Object(Key::namespaced(kind, ns, name)))
        .into()
}

pub(super) type Blocked = (VMState, Readiness, Vec<Dependency>);

/// Returns the VM's request, or what it waits for first.
pub(super) fn requirements(vm: &VM, observed: &Observed) -> Result<Request, Blocked> {
    let namespace = vm.namespace().unwrap_or_default();
    let wait = |reason, text: String, dependencies| {
        (VMState::Pending, Readiness::Reconciling(reason, text), dependencies)
    };
    let shared = |kind, name: &str| in_namespace_or_shared(kind, &namespace, name);
    // User data in a Secret is checked by the host, which may read it.
    let user_data = vm.spec.bootstrap.as_ref().and_then(|b| b.user_data.as_deref()).unwrap_or_default();
    if let Err(error) = berth_api::user_data::check(user_data) {
        let readiness = Readiness::Stalled(Reason::InvalidSpec, format!("user data: {error}"));
        return Err((VMState::Pending, readiness, Vec::new()));
    }
    if let Some(text) = &observed.invalid_size {
        let class = vm.spec.class.as_ref();
        let dependencies = class.map(|class| shared(ObjectKind::VMClass, class.as_str())).unwrap_or_default();
        return Err((VMState::Pending, Readiness::Stalled(Reason::InvalidSpec, text.clone()), dependencies));
    }
    let Some(demand) = &observed.size else {
        let Some(class) = vm.spec.class.as_ref().map(|class| class.as_str()) else {
            let readiness = Readiness::Stalled(Reason::InvalidSpec, SizeError::NoCpus.to_string());
            return Err((VMState::Pending, readiness, Vec::new()));
        };
        let text = format!("VMClass {class} does not exist in namespace {namespace} or berth-shared");
        return Err(wait(Reason::WaitingForClass, text, shared(ObjectKind::VMClass, class)));
    };
    if let Some(key) = &observed.deleting {
        let reason = match key.kind {
            ObjectKind::VMClass => Reason::WaitingForClass,
            ObjectKind::Network => Reason::WaitingForNetwork,
            ObjectKind::PlacementGroup | ObjectKind::VMGroup => Reason::WaitingForGroup,
            ObjectKind::SecurityGroup => Reason::WaitingForSecurityGroup,
            ObjectKind::Image => Reason::WaitingForImage,
            ObjectKind::KeyClass => Reason::WaitingForKeyClass,
            _ => Reason::WaitingForPool,
        };
        let text = format!("{} {} is being deleted", key.kind.as_str(), key.name);
        return Err(wait(reason, text, namesakes(key, &namespace)));
    }
    for disk in &observed.disks {
        check_disk(disk)?;
    }
    if let Some(OtherArchitecture { image, text }) = &observed.other_architecture {
        let readiness = Readiness::Stalled(Reason::InvalidSpec, text.clone());
        return Err((VMState::Pending, readiness, shared(ObjectKind::Image, image)));
    }
    if let Some((image, original)) = &observed.unshared_medium {
        let text = format!("Image {image}: {}", original.refusal.as_deref().unwrap_or_default());
        let mut dependencies = shared(ObjectKind::Image, image);
        dependencies.push(Dependency::Object(original.key.clone()));
        return Err((VMState::Pending, Readiness::Stalled(Reason::ImageNotShared, text), dependencies));
    }
    for (interface, network) in vm.spec.network_interfaces.iter().zip(&observed.networks) {
        let name = interface.network.as_str();
        let Some(network) = network else {
            let mut dependencies = shared(ObjectKind::Network, name);
            if name == DEFAULT_NAME {
                // The controllers create it as soon as there is a range for it.
                dependencies.extend([Dependency::NetworkRange, Dependency::Hosts]);
                let text = format!(
                    "namespace {namespace} has no Network {name}, and none can be created: no range is free (--private-cidr)"
                );
                return Err(wait(Reason::WaitingForNetwork, text, dependencies));
            }
            let text = format!("Network {name} does not exist in namespace {namespace} or berth-shared");
            return Err(wait(Reason::WaitingForNetwork, text, dependencies));
        };
        if let Some(text) = why_not(network) {
            return Err(wait(Reason::WaitingForNetwork, text, shared(ObjectKind::Network, name)));
        }
        if let Some(text) = not_on_a_bridge(interface, network) {
            return Err((VMState::Pending, Readiness::Stalled(Reason::NotSupported, text), Vec::new()));
        }
        if let Some(text) = without_groups(interface, network)
            .or_else(|| interface.misrouted_on(network))
            .or_else(|| interface.too_large_on(network))
            .or_else(|| without_public_ipv4(interface, network))
            .or_else(|| without_public_ipv6(interface, network))
        {
            let readiness = Readiness::Stalled(Reason::NotSupported, text);
            return Err((VMState::Pending, readiness, shared(ObjectKind::Network, name)));
        }
    }
    if let Some((key, text)) = &observed.misnamed_address {
        let readiness = Readiness::Stalled(Reason::InvalidSpec, text.clone());
        return Err((VMState::Pending, readiness, vec![Dependency::Object(key.clone())]));
    }
    if let Some(key) = &observed.no_security_group {
        // It would start without the packets that its first boot needs.
        let text = format!("SecurityGroup {} does not exist in namespace {namespace}", key.name);
        return Err(wait(Reason::WaitingForSecurityGroup, text, vec![Dependency::Object(key.clone())]));
    }
    if let Some(Err(why)) = observed.fresh.interfaces.iter().find(|i| i.is_err()) {
        let readiness = Readiness::Stalled(Reason::AddressUnavailable, why.clone());
        return Err((VMState::Pending, readiness, vec![Dependency::PrivateAddress]));
    }
    let placement = vm.spec.placement.clone().unwrap_or_default();
    let group = match (&placement.group, &observed.group) {
        (None, _) => None,
        (Some(name), None) => {
            let key = Key::namespaced(ObjectKind::PlacementGroup, &namespace, name.as_str());
            let text = format!("PlacementGroup {name} does not exist");
            return Err(wait(Reason::WaitingForGroup, text, vec![Dependency::Object(key)]));
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
    let selector = labels::required(&placement.host_selector, observed).map_err(|text| {
        let readiness = Readiness::Stalled(Reason::NoSuchHost, text);
        (VMState::Unschedulable, readiness, labels::dependencies(observed))
    })?;
    let host = |d: &DiskSeen| d.claimed.clone().or_else(|| Some(bound(d.object.as_ref()?)?.host.clone()));
    let disk_hosts = observed.disks.iter().filter_map(host).collect();
    Ok(Request {
        namespace,
        cpus: demand.cpus,
        memory: demand.memory,
        whole_memory: demand.whole_memory,
        huge_memory: demand.huge_memory,
        dedicated_cpus: demand.dedicated_cpus,
        reserved: demand.reserved,
        architecture: observed.architecture,
        cpu_model: observed.cpu_model.clone(),
        machine_type: machine_type(vm),
        tpm: observed.tpm,
        vsock: vm.spec.vsock,
        wireguard: observed.networks.iter().flatten().any(|network| network.is_encrypted()),
        disk_encryption: has_encrypted_disk(vm, observed),
        devices: devices(demand, observed),
        shares: declared_shares(vm),
        backup_folders: observed.backup_folders.clone(),
        disks: observed.new_disks.clone(),
        choices: observed.choices.iter().map(|(_, choice)| choice.clone()).collect(),
        image_hosts: observed.image_hosts.clone(),
        graphics: vm.spec.graphics != Graphics::None,
        bridges: bridges(observed),
        host: placement.host.or_else(|| destination(vm, observed)),
        selector,
        preferred: labels::preferred(placement.preferred_host_selector, observed),
        disk_hosts,
        refused_by: observed.refused_by.as_ref().map(|(host, _)| host.clone()),
        group,
        affinity: affinity(vm),
        repelling: observed.beside.repelling.keys().take(NAMED_RULES).cloned().collect(),
        labels: labels_if_repelled_by_many(vm, observed),
    })
}

/// Returns the devices of its host that it takes, and the block devices that its disks without a host are.
fn devices(demand: &Demand, observed: &Observed) -> DeviceCounts {
    let mut devices = demand.devices.clone();
    let disks = observed.disks.iter().filter(|seen| seen.claimed.is_none());
    let unbound = disks.filter_map(|seen| seen.object.as_deref()).filter(|disk| bound(disk).is_none());
    for device in unbound.filter_map(device_of) {
        *devices.entry(device).or_default() += 1;
    }
    devices
}

/// Returns its labels, if the request does not name all rules of other VMs that keep these apart from it.
fn labels_if_repelled_by_many(vm: &VM, observed: &Observed) -> BTreeMap<String, String> {
    match observed.beside.repelling.len() > NAMED_RULES {
        true => vm.labels().clone(),
        false => BTreeMap::new(),
    }
}

/// Returns its rules about other VMs.
fn affinity(vm: &VM) -> Vec<AffinityRule> {
    let rule =
        |rule: &VMAffinity| AffinityRule { selects_itself: rule.selects(vm.labels()), rule: rule.clone() };
    vm.affinity().iter().map(rule).collect()
}

/// Returns the machine type that a VM declares, or else the one with which it was first started.
fn machine_type(vm: &VM) -> Option<String> {
    let hardware = vm.status.as_ref().and_then(|status| status.hardware.as_ref());
    let pinned =
        || hardware.map(|hardware| hardware.machine_type.clone()).filter(|text| is_machine_type(text));
    vm.spec.machine_type.clone().or_else(pinned)
}

/// Whether one of its disks is encrypted, or one that is to be made from a template.
fn has_encrypted_disk(vm: &VM, observed: &Observed) -> bool {
    let templates = vm.spec.disks.iter().filter_map(|disk| disk.template.as_ref());
    let disks = observed.disks.iter().filter_map(|disk| disk.object.as_deref());
    templates
        .map(|template| &template.encryption)
        .chain(disks.map(|disk| &disk.spec.encryption))
        .any(Option::is_some)
}

/// Returns the bridges that its host must have.
fn bridges(observed: &Observed) -> BTreeSet<BridgeSpec> {
    observed.networks.iter().flatten().filter_map(|network| network.host_bridge().cloned()).collect()
}

/// Returns why an interface cannot be on a bridged network as it is declared.
fn not_on_a_bridge(interface: &NetworkInterface, network: &Network) -> Option<String> {
    network.host_bridge()?;
    let (name, network_name) = (&interface.name, network.name_any());
    if let Some(public) = &interface.public_ip {
        return Some(format!(
            "interface {name}: Network {network_name} is a bridge, on which a VM has an address of the network itself: take publicIP \
             {public} out"
        ));
    }
    let dhcp = [("dhcp4", interface.dhcp4), ("dhcp6", interface.dhcp6)];
    if let Some((field, _)) = dhcp.into_iter().find(|(_, declared)| declared.is_some()) {
        return Some(format!(
            "interface {name}: Network {network_name} is a bridge, on which berth has no DHCP server: take {field} out, or use a Network of \
             type Overlay"
        ));
    }
    let is_filtered = !interface.effective_security_groups(&network.spec.security_groups).is_empty();
    if network.is_ipv6_external() && is_filtered {
        return Some(format!(
            "interface {name}: security groups need the addresses that berth gives out, and Network {network_name} has \
             ipv6.allocation External: take securityGroups out, or use a Network with Static"
        ));
    }
    if !network.is_external() {
        return None;
    }
    if !network.checks_leases() && is_filtered {
        return Some(format!(
            "interface {name}: security groups need addresses that are checked, and Network {network_name} has ipv4.allocation \
             External without ipv4.sourceCheck Lease: take securityGroups out, set that, or use a Network with Static"
        ));
    }
    let declared = [
        ("dns", !interface.dns.is_empty()),
        ("searchDomains", !interface.search_domains.is_empty()),
        ("defaultRoute", interface.default_route.is_some()),
        ("gateway", interface.gateway.is_some()),
        ("mtu", interface.mtu.is_some()),
    ];
    let declared = declared.into_iter().find_map(|(field, is_declared)| is_declared.then_some(field))?;
    Some(format!(
        "interface {name}: the DHCP server of Network {network_name}, which is not berth's (ipv4.allocation External), configures it: \
         take {declared} out, or use a Network with Static"
    ))
}

/// Returns why an interface cannot have its security groups, or those of its Network.
fn without_groups(interface: &NetworkInterface, network: &Network) -> Option<String> {
    let groups = interface.effective_security_groups(&network.spec.security_groups);
    if !groups.is_empty() && network.has_privacy_addresses() {
        return Some(format!(
            "interface {}: security groups match only the allocated addresses of an interface, and Network {} has ipv6PrivacyAddresses: take \
             securityGroups out, or use a Network without it",
            interface.name,
            network.name_any()
        ));
    }
    if groups.is_empty() || interface.allowed_addresses.is_empty() {
        return None;
    }
    let groups: Vec<&str> = groups.iter().map(|group| group.as_str()).collect();
    Some(format!(
        "interface {}: it has the security groups of Network {} ({}), which match only the allocated addresses of an interface: take \
         allowedAddresses out, or use a Network without securityGroups",
        interface.name,
        network.name_any(),
        groups.join(", ")
    ))
}

/// Returns why the public IPv4 address of an interface cannot lead to it.
fn without_public_ipv4(interface: &NetworkInterface, network: &Network) -> Option<String> {
    let public = interface.public_ip.as_ref().filter(|_| !network.has_ipv4())?;
    let (name, network) = (&interface.name, network.name_any());
    Some(format!(
        "interface {name}: PublicIP {public} (publicIP) cannot lead to it: Network {network} has no IPv4 (cidr); name a PublicIP of an \
         IPv6 pool in publicIPv6, or take publicIP out"
    ))
}

/// Returns why the public IPv6 address of an interface cannot lead to it.
fn without_public_ipv6(interface: &NetworkInterface, network: &Network) -> Option<String> {
    let public = interface.public_ipv6.as_ref()?;
    let why = network.without_public_ipv6()?;
    let (name, network) = (&interface.name, network.name_any());
    Some(format!(
        "interface {name}: PublicIP {public} (publicIPv6) cannot lead to it: Network {network} {why}; or take publicIPv6 out"
    ))
}

pub(super) fn check_disk(disk: &DiskSeen) -> Result<(), Blocked> {
    let name = &disk.key.name;
    let dependency = vec![Dependency::Object(disk.key.clone())];
    let wait =
        |reason, text: String| (VMState::Pending, Readiness::Reconciling(reason, text), dependency.clone());
    let Some(object) = &disk.object else {
        return Err(wait(Reason::WaitingForDisk, format!("Disk {name} does not exist")));
    };
    if object.metadata.deletion_timestamp.is_some() {
        return Err(wait(Reason::WaitingForDisk, format!("Disk {name} is being deleted")));
    }
    if let Some(text) = &disk.foreign {
        return Err(wait(Reason::WaitingForDisk, text.clone()));
    }
    if let Some(user) = &disk.user {
        let mut dependencies = dependency.clone();
        dependencies.push(Dependency::Object(Key::namespaced(ObjectKind::VM, disk.key.namespace(), user)));
        let readiness =
            Readiness::Reconciling(Reason::DiskInUse, format!("Disk {name} is used by VM {user}"));
        return Err((VMState::Pending, readiness, dependencies));
    }
    if let Some(unknown) = disk.unknown.as_ref().filter(|_| disk.claimed.is_none()) {
        let readiness = Readiness::Reconciling(Reason::WaitingForInventory, unknown.text.clone());
        return Err((VMState::Pending, readiness, vec![unknown.dependency.clone(), dependency[0].clone()]));
    }
    if let Some(text) = &disk.unconfirmed {
        return Err(wait(Reason::WaitingForDisk, format!("Disk {name}: {text}")));
    }
    if bound(object).is_none()
        && disk.claimed.is_none()
        && let Some(text) = awaits_its_host(object.as_ref())
    {
        return Err(wait(Reason::WaitingForDisk, format!("Disk {name}: {text}")));
    }
    if let Some(obstacle) = &disk.obstacle {
        let text = format!("Disk {name}: {}", obstacle.text);
        let dependencies = [dependency.clone(), obstacle.dependencies.clone()].concat();
        return Err((VMState::Pending, Readiness::Reconciling(Reason::WaitingForDisk, text), dependencies));
    }
    Ok(())
}

fn bind(
    vm: &VM,
    observed: &Observed,
    host: String,
    cpu_baseline: Option<&'static str>,
    pools: &BTreeMap<&Key, String>,
) -> Plan<Decision> {
    if let Some(release) = release_first(vm) {
        return release;
    }
    let mut steps = vec![Step::AddFinalizer(Key::of(vm), HOST_FINALIZER)];
    for (disk, volume_id) in observed.disks.iter().zip(&observed.fresh.volume_ids) {
        if disk.object.as_ref().is_some_and(|d| bound(d).is_none()) {
            let pool = pools.get(&disk.key).map(|pool| pool.as_str().into());
            steps.extend(bind_disk(&disk.key, &host, pool, volume_id, vec![fixed_use(vm)]));
        }
    }
    let interfaces = addresses::decide(vm, &observed.networks, &observed.fresh.interfaces);
    let known = vm.status.as_ref().and_then(|s| s.instance_id.clone());
    let instance_id = known.unwrap_or_else(|| observed.fresh.instance_id.clone());
    let decision = Decision::Bind { host, instance_id, interfaces, cpu_baseline, held: None };
    Plan { steps, decision, outcome: Outcome::Settled }
}

/// Plans the release of the interfaces that a VM had when it left its host, and that its spec has no more. It is bound after that: a write
/// never both takes and releases, since the resources that it takes would be free for others until it is confirmed.
fn release_first(vm: &VM) -> Option<Plan<Decision>> {
    let had = vm.status.as_ref().map(|status| status.interfaces.as_slice()).unwrap_or_default();
    let is_declared =
        |had: &&InterfaceStatus| vm.spec.network_interfaces.iter().any(|i| i.name.as_str() == had.name);
    let kept: Vec<InterfaceStatus> = had.iter().filter(is_declared).cloned().collect();
    (kept.len() < had.len()).then(|| Plan::settled(Decision::Interfaces(kept)))
}

/// Binds a VM that lost its status to the host that holds it, and its disks, under their identities there.
pub(super) fn bind_again(vm: &VM, observed: &Observed, claim: &Claim) -> Plan<Decision> {
    if let Some(release) = release_first(vm) {
        return release;
    }
    let mut steps = vec![Step::AddFinalizer(Key::of(vm), HOST_FINALIZER)];
    for (disk, volume_id) in observed.disks.iter().zip(&observed.fresh.volume_ids) {
        if disk.claimed.as_ref() == Some(&claim.host) {
            steps.extend(bind_disk(&disk.key, &claim.host, None, volume_id, vec![fixed_use(vm)]));
        }
    }
    let decision = Decision::Bind {
        host: claim.host.clone(),
        instance_id: claim.id.clone(),
        interfaces: addresses::decide(vm, &observed.networks, &observed.fresh.interfaces),
        // Its host has the CPU model in its files.
        cpu_baseline: None,
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
