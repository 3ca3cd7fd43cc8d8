//! Addresses of a Network under which a host forwards connections to VMs on other hosts, or over an interface of the hosts.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use berth_api::Network;

use crate::{
    cache::Cache,
    key::{Key, ObjectKind},
};

/// The IPv6 addresses that are looked at for a free one.
const MOST_LOOKED_AT: usize = 65_536;

/// Returns the highest free address of a network (`namespace/name`) of this family: VMs get the lowest ones. The text gives the reason for
/// none.
pub(crate) fn free_address(cache: &Cache, name: &str, is_ipv6: bool) -> Result<IpAddr, String> {
    let found = name.split_once('/').and_then(|(namespace, name)| {
        cache.tables.networks.get(&Key::namespaced(ObjectKind::Network, namespace, name))
    });
    let network = found.ok_or_else(|| format!("network {name} does not exist"))?;
    if is_ipv6 { free_ipv6(cache, name, network) } else { free_ipv4(cache, name, network) }
}

fn free_ipv4(cache: &Cache, name: &str, network: &Network) -> Result<IpAddr, String> {
    let (lowest, highest) = network.pool().ok_or_else(|| format!("network {name} has no valid range"))?;
    let is_free = |address: &Ipv4Addr| {
        !network.is_reserved(*address)
            && !is_of_host(cache, network, (*address).into())
            && !cache.index.is_address_used(name, *address)
            && !cache.claims.is_address_held(name, *address)
    };
    let mut all = (u32::from(lowest)..=u32::from(highest)).rev().map(Ipv4Addr::from);
    all.find(is_free).map(IpAddr::V4).ok_or_else(|| format!("network {name} has no free address"))
}

fn free_ipv6(cache: &Cache, name: &str, network: &Network) -> Result<IpAddr, String> {
    let (lowest, highest) =
        network.ipv6_pool().ok_or_else(|| format!("network {name} has no IPv6 prefix (ipv6CIDR)"))?;
    let gateway = network.ipv6_gateway();
    let is_free = |address: &Ipv6Addr| {
        Some(*address) != gateway
            && !is_of_host(cache, network, (*address).into())
            && !cache.index.is_ipv6_address_used(name, *address)
            && !cache.claims.is_ipv6_address_held(name, *address)
    };
    let all = (u128::from(lowest)..=u128::from(highest)).rev().map(Ipv6Addr::from);
    let free = all.take(MOST_LOOKED_AT).find(is_free);
    free.map(IpAddr::V6).ok_or_else(|| format!("network {name} has no free IPv6 address"))
}

/// Whether a host has this address on the network itself, which is a bridge.
fn is_of_host(cache: &Cache, network: &Network, address: IpAddr) -> bool {
    network.host_bridge().is_some() && cache.underlay.host_at(address).is_some()
}
