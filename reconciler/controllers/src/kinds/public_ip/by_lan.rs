//! Targets of ports that are on a bridged network: the host with the public address reaches them as a machine of that network.

use std::{net::Ipv6Addr, sync::Arc};

use berth_api::{Host, HostStatus, Network, VM, public_ip::PortTarget, vm::InterfaceStatus};
use ipnet::{Ipv4Net, Ipv6Net};
use kube::ResourceExt;

use crate::{
    cache::Cache,
    key::{Key, ObjectKind},
};

/// Returns the Network of this `namespace/name`, if it is a bridge of hosts.
fn bridge<'a>(cache: &'a Cache, name: &str) -> Option<&'a Arc<Network>> {
    let (namespace, name) = name.split_once('/')?;
    let network = cache.tables.networks.get(&Key::namespaced(ObjectKind::Network, namespace, name))?;
    network.host_bridge().is_some().then_some(network)
}

/// Whether the host with the public address needs an address of this target's Network: on a bridge over an interface it has no other one,
/// and on an overlay it reaches those on other hosts by it.
pub(super) fn needs_address(cache: &Cache, host: Option<&str>, target: &PortTarget) -> bool {
    match bridge(cache, &target.network) {
        Some(network) => network.host_bridge().is_some_and(|bridge| bridge.name.is_none()),
        None => Some(target.host.as_str()) != host,
    }
}

/// Returns why no host forwards connections to this interface on a bridge, as the end of a sentence that begins with the VM.
pub(super) fn obstacle(network: &Network, vm: &VM, interface: &InterfaceStatus) -> Option<String> {
    let name = network.name_any();
    let declared =
        vm.spec.network_interfaces.iter().find(|declared| declared.name.as_str() == interface.name);
    let has_own = declared.is_some_and(|declared| !declared.security_groups.is_empty());
    (has_own || !network.spec.security_groups.is_empty()).then(|| {
        format!("has security groups on Network {name}, a bridge, where they would not see the clients: take them out")
    })
}

/// Returns why the host with the public address does not reach this target, as the end of a sentence that begins with the VM. None: it
/// does, or the target is on an overlay.
pub(super) fn out_of_reach(cache: &Cache, host: Option<&str>, target: &PortTarget) -> Option<String> {
    let network = bridge(cache, &target.network)?;
    let host = host?;
    let found = cache.tables.hosts.cluster(host);
    let declared = network.host_bridge()?;
    let Some(bridge) = &declared.name else {
        let status = found.and_then(|host| host.status.as_ref())?;
        let why = declared.unusable_on(&status.networks, status.vlans.unwrap_or_default())?;
        return Some(format!(
            "is on Network {}, and host {host}, which has the public address, is not: it {why}",
            network.name_any()
        ));
    };
    let is_ipv6 = target.address.parse::<Ipv6Addr>().is_ok();
    let (range, is_there) = if is_ipv6 {
        let prefix = network.ipv6_prefix()?;
        (format!("prefix {prefix}"), found.is_some_and(|host| has_address_in(host, prefix)))
    } else {
        let range = network.range()?;
        (format!("range {range}"), found.is_some_and(|host| is_on_segment(host, range)))
    };
    if is_there {
        return None;
    }
    Some(format!(
        "is on Network {}, in whose {range} host {host}, which has the public address, has no address: give it one on its bridge {bridge}",
        network.name_any()
    ))
}

/// Returns from which clients connections to these targets fail, if the host with the public address passes packets between the ports of
/// its bridges through the rules for routed ones. It then translates a packet within the bridge: that is not sent back by the port that it
/// came in on, and is not routed from a bridge of VMs.
pub(super) fn lost_clients<'a>(
    cache: &Cache,
    host: Option<&str>,
    targets: impl Iterator<Item = &'a PortTarget>,
) -> Option<String> {
    let host = host?;
    let status = cache.tables.hosts.cluster(host).and_then(|host| host.status.as_ref())?;
    let filtered = |target: &PortTarget| {
        let declared = bridge(cache, &target.network)?.host_bridge()?;
        let is_ipv6 = target.address.parse::<Ipv6Addr>().is_ok();
        let (family, setting) = match is_ipv6 {
            false => (HostStatus::IPV4, "net.bridge.bridge-nf-call-iptables"),
            true => (HostStatus::IPV6, "net.bridge.bridge-nf-call-ip6tables"),
        };
        status.filtered_bridges.iter().any(|of| of == family).then(|| (declared.name.clone(), setting))
    };
    // One with a bridge that the host has, if there is one, because it has more such clients.
    let (bridge, setting) = targets.filter_map(filtered).max()?;
    let behind = bridge.map(|bridge| {
        format!(
            "machines that are behind the same port of bridge {bridge} of the host as their target, and from "
        )
    });
    Some(format!(
        "no connections from {}VMs on a bridge of host {host}, because its firewall sees bridged packets: unless another program of the host \
         needs that, turn it off there (sysctl -w {setting}=0)",
        behind.unwrap_or_default()
    ))
}

fn is_on_segment(host: &Host, range: Ipv4Net) -> bool {
    let mut segments = host.status.iter().flat_map(|status| &status.segments);
    segments.any(|segment| {
        let segment = segment.parse::<Ipv4Net>();
        segment.is_ok_and(|segment| segment.contains(&range) || range.contains(&segment))
    })
}

fn has_address_in(host: &Host, prefix: Ipv6Net) -> bool {
    let mut addresses = host.status.iter().flat_map(|status| &status.ipv6_addresses);
    addresses.any(|address| address.parse::<Ipv6Addr>().is_ok_and(|address| prefix.contains(&address)))
}
