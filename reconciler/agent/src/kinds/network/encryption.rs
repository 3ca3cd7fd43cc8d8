//! Encrypted tunnels of this host's networks: their addresses, and the peers of its interface of WireGuard. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddrV4};

use berth_api::wireguard::address_of;
use berth_api::{Network, NetworkHost};
use berth_host::{WireguardConfig, WireguardPeer};

use crate::index::Tables;
use crate::networking::find;

/// Returns the address that packets of a network between hosts go from and to. None: the entry does not fit the network, so that no
/// packets of an encrypted one go by the address of a host itself.
pub(super) fn tunnel_address(network: &Network, of: &NetworkHost) -> Option<IpAddr> {
    if network.is_encrypted() {
        return address_of(&of.wireguard.as_ref()?.public_key).map(IpAddr::V6);
    }
    of.address.parse().ok().filter(IpAddr::is_ipv4)
}

/// Returns this host's interface of WireGuard for its encrypted networks. None: it needs none. `bridges`: by network.
pub(super) fn wireguard(
    tables: &Tables,
    bridges: &BTreeMap<String, String>,
    host: &str,
) -> Option<WireguardConfig> {
    let mut own = None;
    let mut peers = BTreeSet::new();
    let networks = bridges.keys().filter_map(|name| find(tables, name));
    for network in networks.filter(|network| network.is_encrypted()) {
        let hosts = network.status.as_ref().map(|status| status.hosts.as_slice()).unwrap_or_default();
        let Some(here) = hosts.iter().find(|of| of.name == host).and_then(peer) else { continue };
        peers.extend(hosts.iter().filter(|of| of.name != host).filter_map(peer));
        own = Some(here);
    }
    let own = own?;
    peers.retain(|peer| peer.public_key != own.public_key);
    // Statuses of several networks may differ for a moment: one entry for each key.
    let peers: BTreeMap<String, WireguardPeer> =
        peers.into_iter().map(|peer| (peer.public_key.clone(), peer)).collect();
    if peers.is_empty() {
        return None;
    }
    let local = *own.endpoint.ip();
    Some(WireguardConfig { address: own.address, local, peers: peers.into_values().collect() })
}

fn peer(of: &NetworkHost) -> Option<WireguardPeer> {
    let declared = of.wireguard.as_ref()?;
    let endpoint: SocketAddrV4 = declared.endpoint.parse().ok()?;
    let address = address_of(&declared.public_key)?;
    Some(WireguardPeer { public_key: declared.public_key.clone(), endpoint, address })
}

#[cfg(test)]
mod tests {
    use kube::runtime::watcher::Event;
    use serde_json::json;

    use super::*;
    use crate::index::Index;

    const KEYS: [&str; 3] = [
        "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=",
        "TrMvSoP4jYQlY6RIzBgbssQqY3vxI2Pi+y71lOWWXX0=",
        "gN65BkIKy1eCE9pP1wdc8ROUtkHLF2PfAqYdyYBz6EA=",
    ];

    fn host(name: &str, number: usize) -> serde_json::Value {
        json!({"name": name, "address": address_of(KEYS[number]),
            "wireguard": {"publicKey": KEYS[number], "endpoint": format!("192.0.2.{}:51847", number + 1)}})
    }

    fn network(name: &str, encryption: &str, hosts: &[serde_json::Value]) -> Network {
        let network = json!({
            "metadata": {"name": name, "namespace": "ns", "resourceVersion": "1"},
            "spec": {"cidr": "10.77.0.0/16", "encryption": encryption},
            "status": {"observedGeneration": 1, "vni": 77, "hosts": hosts},
        });
        serde_json::from_value(network).expect("a Network")
    }

    #[test]
    fn the_peers_are_the_hosts_of_all_encrypted_networks_here() {
        let index = Index::default();
        let bridges: BTreeMap<String, String> =
            ["a", "b", "c"].map(|name| (format!("ns/{name}"), format!("bth-{name}"))).into();
        let plain = json!({"name": "h1", "address": "192.0.2.1"});
        for network in [
            network("a", "WireGuard", &[host("h1", 0), host("h2", 1)]),
            network("b", "WireGuard", &[host("h1", 0), host("h3", 2)]),
            network("c", "None", std::slice::from_ref(&plain)),
        ] {
            index.apply::<Network>(Event::Apply(network));
        }
        let found = wireguard(&index.read(), &bridges, "h1").expect("an interface");
        let mut keys: Vec<&str> = found.peers.iter().map(|peer| peer.public_key.as_str()).collect();
        keys.sort_unstable();
        let mut expected = KEYS[1..].to_vec();
        expected.sort_unstable();
        assert_eq!(keys, expected);
        assert_eq!(
            (found.local.to_string().as_str(), Some(found.address)),
            ("192.0.2.1", address_of(KEYS[0]))
        );
        assert_eq!(wireguard(&index.read(), &bridges, "h4"), None, "a host that none of them is on");
    }

    #[test]
    fn an_encrypted_network_never_has_the_address_of_a_host_itself() {
        let of = |value: serde_json::Value| -> NetworkHost { serde_json::from_value(value).expect("a host") };
        let (encrypted, plain) = (network("a", "WireGuard", &[]), network("a", "None", &[]));
        let unencrypted = of(json!({"name": "h1", "address": "192.0.2.1"}));
        assert_eq!(tunnel_address(&encrypted, &unencrypted), None);
        assert_eq!(tunnel_address(&encrypted, &of(host("h1", 0))), address_of(KEYS[0]).map(IpAddr::V6));
        assert_eq!(tunnel_address(&plain, &unencrypted), "192.0.2.1".parse().ok());
        assert_eq!(tunnel_address(&plain, &of(host("h1", 0))), None);
    }
}
