//! Private addresses and MACs: given out once, by the controllers, so that they are known before the guest runs.

use std::{collections::BTreeSet, net::Ipv4Addr, sync::Arc};

use berth_api::{Network, VM, vm::InterfaceStatus};
use ipnet::Ipv4Net;
use kube::ResourceExt;

use super::{World, index::Index, network::is_accepted};
use crate::clock::Identities;

/// A MAC and an address for one interface; the text says why there is none.
pub(super) type Fresh = Result<(String, String), String>;

/// One entry for each interface of the spec: what it was given before, or something fresh.
pub(super) fn fresh(
    world: &World,
    vm: &VM,
    networks: &[Option<Arc<Network>>],
    identities: &Identities,
) -> Vec<Fresh> {
    let given = vm.status.as_ref().map(|s| s.interfaces.as_slice()).unwrap_or_default();
    let mut taken = BTreeSet::new();
    let mut macs = BTreeSet::new();
    let mut out = Vec::new();
    for (interface, network) in vm.spec.network_interfaces.iter().zip(networks) {
        if let Some(given) = given.iter().find(|g| g.name == interface.name.as_str()) {
            out.push(Ok((given.mac_address.clone(), given.address.clone())));
            continue;
        }
        let Some(network) = network else {
            out.push(Err(String::new()));
            continue;
        };
        let name = network_name(network);
        let address = pick(&world.index, network, interface.address.as_deref(), |a| {
            taken.contains(&(name.clone(), a)) || world.claims.is_address_held(&name, a)
        });
        let mac = match &interface.mac_address {
            Some(mac) => mac.to_lowercase(),
            None => fresh_mac(identities, |mac| {
                world.index.is_mac_used(mac) || macs.contains(mac) || world.claims.is_mac_held(mac)
            }),
        };
        if let Ok(address) = &address {
            taken.insert((name.clone(), *address));
        }
        macs.insert(mac.clone());
        out.push(address.map(|address| (mac, address.to_string())));
    }
    out
}

/// One entry for each interface of the spec whose network exists and is not refused: the one it was given, else the fresh one.
pub(super) fn decide(vm: &VM, networks: &[Option<Arc<Network>>], fresh: &[Fresh]) -> Vec<InterfaceStatus> {
    let given = vm.status.as_ref().map(|s| s.interfaces.as_slice()).unwrap_or_default();
    let mut decided = Vec::new();
    for (interface, (network, fresh)) in vm.spec.network_interfaces.iter().zip(networks.iter().zip(fresh)) {
        if let Some(given) = given.iter().find(|g| g.name == interface.name.as_str()) {
            decided.push(given.clone());
        } else if let (Some(network), Ok((mac_address, address))) = (network, fresh)
            && is_accepted(network)
        {
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

/// A network as a status names it.
pub(super) fn network_name(network: &Network) -> String {
    format!("{}/{}", network.namespace().unwrap_or_default(), network.name_any())
}

/// The address wanted, or the lowest free one. The first address is the gateway's.
fn pick(
    index: &Index,
    network: &Network,
    wanted: Option<&str>,
    is_taken: impl Fn(Ipv4Addr) -> bool,
) -> Result<Ipv4Addr, String> {
    let name = network_name(network);
    let range: Ipv4Net =
        network.spec.cidr.parse().map_err(|_| format!("network {name} has no valid range"))?;
    let gateway = range.hosts().next();
    let is_free = |a: Ipv4Addr| !index.is_address_used(&name, a) && !is_taken(a);
    let Some(wanted) = wanted else {
        let first = u32::from(range.network()) + 2;
        let last = u32::from(range.broadcast());
        let begin = index.lowest_free(&name, first.into()).into();
        let free = (begin..last).map(Ipv4Addr::from).find(|a| is_free(*a));
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

#[cfg(test)]
mod tests {
    use super::*;
    use berth_api::NetworkSpec;

    #[test]
    fn addresses_are_given_out_from_the_second_on_until_there_is_none() {
        let mut network =
            Network::new("default", NetworkSpec { cidr: "10.0.0.0/29".into(), ..NetworkSpec::default() });
        network.metadata.namespace = Some("berth-shared".into());
        let address = |text: &str| text.parse::<Ipv4Addr>().expect("an address");
        let index = Index::default();
        assert_eq!(pick(&index, &network, None, |_| false), Ok(address("10.0.0.2")));
        assert_eq!(pick(&index, &network, None, |a| a <= address("10.0.0.4")), Ok(address("10.0.0.5")));
        assert!(pick(&index, &network, None, |_| true).unwrap_err().contains("no free address"));
        for wrong in ["10.0.0.0", "10.0.0.1", "10.0.0.7", "10.0.1.2", "x"] {
            assert!(pick(&index, &network, Some(wrong), |_| false).is_err(), "{wrong}");
        }
        assert!(pick(&index, &network, Some("10.0.0.3"), |_| true).unwrap_err().contains("taken"));
    }
}
