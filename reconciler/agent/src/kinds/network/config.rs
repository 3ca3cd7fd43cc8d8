//! A Network → its configuration on this host. Pure.

use std::net::IpAddr;
use std::str::FromStr;

use berth_api::{Network, NetworkHost, NetworkName, SHARED_NAMESPACE};
use berth_host::{Egress, Ipv4Network, Ipv6Network, NameRecord, Names, NetworkConfig, Tunnel};

use super::encryption::tunnel_address;
use crate::index::mtu_of;
use crate::networking::{ipv6_routes_of, routes_of};

/// Returns the configuration of a network on this host, without the leases of its guests. None: it has no range that can be understood.
pub(super) fn config(network: &Network, bridge: &str, host: &str) -> Option<NetworkConfig> {
    let (ipv4, ipv6) = (ipv4(network), ipv6(network));
    (ipv4.is_some() || ipv6.is_some()).then(|| NetworkConfig {
        bridge: bridge.to_owned(),
        ipv4,
        ipv6,
        mtu: mtu_of(network),
        dns: addresses(&network.spec.dns),
        search_domains: network.spec.search_domains.clone(),
        names: names(network),
        routes: routes_of(network),
        ipv6_routes: ipv6_routes_of(network),
        leases: Vec::new(),
        tunnel: tunnel(network, host),
        tracked: false,
        relay: None,
        prefixes: Vec::new(),
    })
}

/// Returns the names of the VMs of a network with a domain, on all hosts: its status lists them, also while this host knows none of
/// these VMs.
pub(super) fn names(network: &Network) -> Option<Names> {
    let domain = network.spec.dns_domain.clone()?;
    let named = network.status.iter().flat_map(|status| &status.names);
    let of = |named: &NetworkName| {
        let ipv4 = named.address.parse().ok().map(IpAddr::V4);
        let ipv6 = named.ipv6_address.parse().ok().map(IpAddr::V6);
        let addresses = ipv4.into_iter().chain(ipv6);
        addresses.map(|address| NameRecord { name: named.name.clone(), address }).collect::<Vec<_>>()
    };
    // In `berth-shared`, a name of two labels that is none here would be that of a VM of another namespace.
    let is_searched = network.metadata.namespace.as_deref() != Some(SHARED_NAMESPACE);
    Some(Names { domain, is_searched, records: named.flat_map(of).collect() })
}

fn ipv4(network: &Network) -> Option<Ipv4Network> {
    let egress = network.spec.egress.map_or(Egress::Masquerade, egress);
    Some(Ipv4Network { range: network.range()?, gateway: network.gateway()?, egress })
}

fn ipv6(network: &Network) -> Option<Ipv6Network> {
    let egress = egress(network.spec.ipv6_egress);
    let autoconfiguration = network.is_autoconfigured();
    Some(Ipv6Network {
        prefix: network.ipv6_prefix()?,
        gateway: network.ipv6_gateway()?,
        egress,
        autoconfiguration,
    })
}

fn egress(declared: berth_api::Egress) -> Egress {
    match declared {
        berth_api::Egress::None => Egress::None,
        berth_api::Egress::Masquerade => Egress::Masquerade,
        berth_api::Egress::Routed => Egress::Routed,
    }
}

/// Returns the addresses of the list that can be understood.
pub(super) fn addresses<A: FromStr>(texts: &[String]) -> Vec<A> {
    texts.iter().filter_map(|text| text.parse().ok()).collect()
}

/// Returns the tunnel to the network's other hosts, if it has any and this host is one of its hosts.
fn tunnel(network: &Network, host: &str) -> Option<Tunnel> {
    let status = network.status.as_ref()?;
    let vni = u32::try_from(status.vni?).ok()?;
    let address = |of: &NetworkHost| tunnel_address(network, of);
    let local = status.hosts.iter().find(|h| h.name == host).and_then(address)?;
    let others = status.hosts.iter().filter(|h| h.name != host).filter_map(address);
    let mut peers: Vec<IpAddr> = others.filter(|peer| *peer != local).collect();
    peers.sort();
    peers.dedup();
    if peers.is_empty() { None } else { Some(Tunnel { vni, local, peers }) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_host_knows_the_names_in_the_status_of_a_network_with_a_domain() {
        let names = json!([
            {"name": "db", "address": "10.77.0.2", "ipv6Address": "fd00:60::2"},
            {"name": "web", "address": "10.77.0.3"},
            {"name": "broken", "address": "x"},
        ]);
        let network = |spec| -> Network {
            let network = json!({"metadata": {"name": "lan", "namespace": "ns"}, "spec": spec,
                "status": {"observedGeneration": 1, "vni": 77, "names": names}});
            serde_json::from_value(network).expect("a Network")
        };
        let with = network(json!({"cidr": "10.77.0.0/16", "dnsDomain": "app.internal"}));
        let config = config(&with, "bth-00004d", "h1").expect("a configuration");
        let names = config.names.expect("names");
        let records: Vec<_> = names.records.iter().map(|r| format!("{} {}", r.name, r.address)).collect();
        assert_eq!((names.domain.as_str(), names.is_searched), ("app.internal", true));
        assert_eq!(records, ["db 10.77.0.2", "db fd00:60::2", "web 10.77.0.3"]);
        assert_eq!(self::names(&network(json!({"cidr": "10.77.0.0/16"}))), None);
        let mut shared = with;
        shared.metadata.namespace = Some(SHARED_NAMESPACE.to_owned());
        assert!(!self::names(&shared).expect("names").is_searched);
    }

    #[test]
    fn guests_that_choose_identifiers_get_from_dhcp_and_router_advertisements_what_the_others_get() {
        let config = |chooses: bool| {
            let spec = json!({"cidr": "10.77.0.0/16", "ipv6CIDR": "fd00:60::/64", "ipv6Autoconfiguration": true,
                "ipv6PrivacyAddresses": chooses, "dnsDomain": "app.internal", "dns": ["fd00:60::9"]});
            let network = json!({"metadata": {"name": "lan", "namespace": "ns"}, "spec": spec,
                "status": {"observedGeneration": 1, "vni": 77}});
            let network: Network = serde_json::from_value(network).expect("a Network");
            assert_eq!(network.has_privacy_addresses(), chooses);
            config(&network, "bth-00004d", "h1").expect("a configuration")
        };
        assert_eq!(config(true), config(false));
    }
}
