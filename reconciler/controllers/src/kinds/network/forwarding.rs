//! Addresses of a Network under which a host forwards connections to VMs on other hosts.

use std::net::Ipv4Addr;

use crate::{
    cache::Cache,
    key::{Key, ObjectKind},
};

/// Returns the highest free address of a network (`namespace/name`): VMs get the lowest ones. The text gives the reason for none.
pub(crate) fn free_address(cache: &Cache, name: &str) -> Result<Ipv4Addr, String> {
    let found = name.split_once('/').and_then(|(namespace, name)| {
        cache.tables.networks.get(&Key::namespaced(ObjectKind::Network, namespace, name))
    });
    let network = found.ok_or_else(|| format!("network {name} does not exist"))?;
    let (lowest, highest) = network.pool().ok_or_else(|| format!("network {name} has no valid range"))?;
    let gateway = network.gateway();
    let is_free = |address: &Ipv4Addr| {
        Some(*address) != gateway
            && !cache.index.is_address_used(name, *address)
            && !cache.claims.is_address_held(name, *address)
    };
    let mut all = (u32::from(lowest)..=u32::from(highest)).rev().map(Ipv4Addr::from);
    all.find(is_free).ok_or_else(|| format!("network {name} has no free address"))
}
