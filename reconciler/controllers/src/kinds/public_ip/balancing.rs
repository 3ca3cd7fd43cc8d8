//! The ports of a PublicIP: which VMs get new connections, which host has the address, and under which addresses it forwards to
//! targets on other hosts.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use berth_api::{
    Host, PublicIP, PublicIPPort, VM, VMState, condition,
    public_ip::{ForwardingAddress, PortStatus, PortTarget},
};
use kube::ResourceExt;

use crate::{
    cache::Cache,
    key::{Key, ObjectKind},
    kinds::network::free_address,
    plan::Dependency,
};

use super::{by_lan, ports};

/// The longest message about the targets of a port.
const MAX_MESSAGE: usize = 4096;

/// The destination of the ports of a PublicIP.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Balancing {
    /// The host that has the address.
    pub(super) host: Option<String>,
    /// The targets that run.
    pub(super) targets: Vec<PortTarget>,
    pub(super) forwarding_addresses: Vec<ForwardingAddress>,
    pub(super) ports: Vec<PortStatus>,
    /// Which clients do not reach available targets, for people.
    pub(super) lost_clients: Option<String>,
    /// Why entries have no port, for people.
    pub(super) port_shortage: Option<String>,
    /// The objects whose changes may change this.
    pub(super) dependencies: Vec<Dependency>,
}

/// A target that runs, or the reason why it gets no connections.
type Seen = Result<PortTarget, String>;

/// Returns the destination of the ports; None without ports.
pub(super) fn observe(cache: &Cache, ip: &PublicIP, address: Option<IpAddr>) -> Option<Balancing> {
    if ip.spec.ports.is_empty() {
        return None;
    }
    let namespace = ip.namespace().unwrap_or_default();
    let names: BTreeSet<&str> = ip.spec.ports.iter().flat_map(|p| &p.targets).map(|t| t.as_str()).collect();
    let key = |name: &str| Key::namespaced(ObjectKind::VM, &namespace, name);
    let vms: BTreeMap<&str, Option<Arc<VM>>> =
        names.iter().map(|name| (*name, cache.tables.vms.get(&key(name)).cloned())).collect();
    let is_ipv6 = address.is_some_and(|address| address.is_ipv6());
    let mut seen: BTreeMap<&str, Seen> =
        vms.iter().map(|(name, vm)| (*name, target(cache, name, vm.as_deref(), is_ipv6))).collect();
    let host = holder(cache, ip, &seen, &vms);
    for target in seen.values_mut() {
        let why = target.as_ref().ok().and_then(|found| by_lan::out_of_reach(cache, host.as_deref(), found));
        if let Some(why) = why {
            *target = Err(why);
        }
    }
    let networks = vms.values().flatten().filter_map(|vm| first_network(vm)).collect();
    let forwarding_addresses =
        forwarding_addresses(cache, ip, (host.as_deref(), is_ipv6), &networks, &mut seen);
    let checks = host.as_deref().and_then(|host| cache.tables.hosts.cluster(host)).cloned();
    let assigned = ports::assign(ip);
    let of_port = |entry: &PublicIPPort| {
        let port = assigned.get(entry.name.as_str()).copied();
        port_status(entry, port, &seen, address, checks.as_deref())
    };
    let hosts: BTreeSet<String> =
        vms.values().flatten().filter_map(|vm| host_of(vm)).chain(host.clone()).collect();
    let mut dependencies: Vec<Dependency> =
        hosts.iter().map(|host| Dependency::Object(Key::cluster(ObjectKind::Host, host))).collect();
    dependencies.extend(names.iter().map(|name| Dependency::Object(key(name))));
    Some(Balancing {
        ports: ip.spec.ports.iter().map(of_port).collect(),
        lost_clients: by_lan::lost_clients(cache, host.as_deref(), seen.values().flatten()),
        port_shortage: ports::shortage(ip, &assigned),
        targets: seen.values().filter_map(|seen| seen.clone().ok()).collect(),
        host,
        forwarding_addresses,
        dependencies,
    })
}

fn host_of(vm: &VM) -> Option<String> {
    Some(vm.status.as_ref()?.binding.as_ref()?.host.clone())
}

fn first_network(vm: &VM) -> Option<String> {
    Some(vm.status.as_ref()?.interfaces.first()?.network.clone())
}

/// Returns the target if its VM runs on a host that reports, with its address of the family.
fn target(cache: &Cache, name: &str, vm: Option<&VM>, is_ipv6: bool) -> Seen {
    let Some(vm) = vm else { return Err("does not exist".to_owned()) };
    if vm.metadata.deletion_timestamp.is_some() {
        return Err("is being deleted".to_owned());
    }
    let status = vm.status.as_ref();
    let Some(host) = host_of(vm) else { return Err("has no host yet".to_owned()) };
    if status.and_then(|s| s.state) != Some(VMState::Running) {
        return Err("does not run".to_owned());
    }
    if !cache.is_alive(&host) {
        return Err(format!("is on host {host}, which does not report"));
    }
    let interface = status.and_then(|s| s.interfaces.first());
    let address = interface.map(|i| if is_ipv6 { &i.ipv6_address } else { &i.address });
    let (Some(interface), Some(address)) = (interface, address.filter(|address| !address.is_empty())) else {
        let kind = if is_ipv6 { "an IPv6 address" } else { "an address" };
        return Err(format!("has no network interface with {kind}"));
    };
    let network = interface.network.split_once('/');
    let network = network
        .and_then(|(ns, name)| cache.tables.networks.get(&Key::namespaced(ObjectKind::Network, ns, name)));
    let lan = network.filter(|network| network.host_bridge().is_some());
    if let Some(why) = lan.and_then(|lan| by_lan::obstacle(lan, vm, interface)) {
        return Err(why);
    }
    let overlay = network.filter(|network| network.host_bridge().is_none());
    if let Some(why) = overlay.filter(|_| is_ipv6).and_then(|network| network.without_public_ipv6()) {
        return Err(format!("has its first interface on Network {}, which {why}", interface.network));
    }
    Ok(PortTarget {
        name: name.to_owned(),
        host,
        network: interface.network.clone(),
        address: address.clone(),
    })
}

/// Returns the host that has the address: as long as it reports and is not drained, the one that had it, else that of the first
/// target that runs, in the order of the ports, else that of the first target with a host.
fn holder(
    cache: &Cache,
    ip: &PublicIP,
    seen: &BTreeMap<&str, Seen>,
    vms: &BTreeMap<&str, Option<Arc<VM>>>,
) -> Option<String> {
    let current = ip.status.as_ref().and_then(|s| s.binding.as_ref()).map(|b| b.host.clone());
    let is_draining = |host: &String| cache.tables.hosts.cluster(host).is_none_or(|host| host.spec.draining);
    let stays = |host: &String| cache.is_alive(host) && !is_draining(host);
    let names = || ip.spec.ports.iter().flat_map(|p| &p.targets).map(|t| t.as_str());
    let running = || names().filter_map(|name| Some(seen.get(name)?.as_ref().ok()?.host.clone()));
    if let Some(host) = current.as_ref().filter(|host| stays(host)) {
        return Some(host.clone());
    }
    // One that is deleted may be bound only for the removal of its copies, to a host that no guest of it was on.
    let any = || {
        let living = names().filter_map(|name| vms.get(name)?.as_deref());
        living.filter(|vm| vm.metadata.deletion_timestamp.is_none()).filter_map(host_of)
    };
    let fit = running().find(|host| stays(host)).or_else(|| any().find(|host| stays(host)));
    fit.or_else(|| running().next()).or(current).or_else(|| any().next())
}

/// Returns an address of the family in each Network with a target on another host, or over an interface of the hosts. Targets of a Network
/// without a free address are left out.
fn forwarding_addresses(
    cache: &Cache,
    ip: &PublicIP,
    (host, is_ipv6): (Option<&str>, bool),
    networks: &BTreeSet<String>,
    seen: &mut BTreeMap<&str, Seen>,
) -> Vec<ForwardingAddress> {
    let given = ip.status.as_ref().map(|s| s.forwarding_addresses.as_slice()).unwrap_or_default();
    // An address stays as long as a target is in the Network, so that a restart of that VM cuts no connection of another.
    let (mut all, unused): (Vec<ForwardingAddress>, Vec<ForwardingAddress>) =
        given.iter().cloned().partition(|given| networks.contains(&given.network));
    let kept = all.len();
    for target in seen.values_mut() {
        let Ok(found) = target else { continue };
        let has_address = all.iter().any(|given| given.network == found.network);
        if has_address || !by_lan::needs_address(cache, host, found) {
            continue;
        }
        match free_address(cache, &found.network, is_ipv6) {
            Ok(address) => {
                all.push(ForwardingAddress { network: found.network.clone(), address: address.to_string() });
            }
            Err(why) => *target = Err(format!("is reached only from an address of its network: {why}")),
        }
    }
    // A write never both takes and releases: the addresses that it takes would be free for others until it is confirmed.
    if all.len() > kept {
        all.extend(unused);
    }
    all.sort();
    all
}

fn port_status(
    entry: &PublicIPPort,
    port: Option<i64>,
    seen: &BTreeMap<&str, Seen>,
    address: Option<IpAddr>,
    holder: Option<&Host>,
) -> PortStatus {
    let problem = |name: &str| match (seen.get(name), port) {
        (Some(Ok(_)), None) => Some("is not reached: no port of the address is free".to_owned()),
        (Some(Ok(_)), Some(_)) if entry.health_check.is_none() => None,
        (Some(Ok(_)), Some(port)) => failure((entry, port), name, address, holder),
        (Some(Err(why)), _) => Some(why.clone()),
        (None, _) => Some("does not exist".to_owned()),
    };
    let problems: Vec<String> = entry
        .targets
        .iter()
        .filter_map(|name| Some(format!("VM {name} {}", problem(name.as_str())?)))
        .collect();
    let total = entry.targets.len();
    let count = |number: usize| i64::try_from(number).unwrap_or_default();
    PortStatus {
        name: entry.name.to_string(),
        port,
        protocol: entry.protocol,
        available: count(total - problems.len()),
        total: count(total),
        message: condition::cut(&problems.join("; "), MAX_MESSAGE).to_owned(),
    }
}

/// Returns why the health check of a target does not succeed.
fn failure(
    (entry, port): (&PublicIPPort, i64),
    vm: &str,
    address: Option<IpAddr>,
    holder: Option<&Host>,
) -> Option<String> {
    let address = address.map(|address| address.to_string()).unwrap_or_default();
    let results =
        holder.and_then(|host| host.status.as_ref()).map(|s| s.target_health.as_slice()).unwrap_or_default();
    let result = results.iter().find(|result| {
        result.address == address
            && result.port == port
            && result.protocol == entry.protocol.as_str()
            && result.vm == vm
    });
    match result {
        None => Some("has not been checked yet".to_owned()),
        Some(result) if result.failure.is_empty() => None,
        Some(result) => Some(format!("fails its health check: {}", result.failure)),
    }
}
