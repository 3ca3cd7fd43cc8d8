//! The firewall rules for tunnels between hosts. Pure.
//!
//! ```text
//!  table bridge berth   between a tunnel and its bridge: no DHCP, no ARP and no neighbour discovery from or about the gateway,
//!                       no router discovery, no frame from or to the
//!                       gateway's MAC address: each host has its own gateway, with the same addresses
//!  table inet berth     accepts a tunnel's packets from its peers and to its own address only; no guest sends any to a host, which
//!                       would inject its frame into another tenant's network
//!                       of an encrypted network: by the interface of WireGuard only, from the addresses of its peers there;
//!                       that interface brings nothing but tunnels' packets and ICMPv6, nothing is routed by it, and packets
//!                       between hosts' addresses in WireGuard use no other, so that none is sent unencrypted while it is away
//! ```

use serde_json::{Value, json};

use super::super::tunnel::{self, PORT};
use super::super::{bridge_mac, hardware_address, wireguard};
use super::ports::{
    ADVERTISED, NEIGHBOUR_ADVERTISEMENT, NEIGHBOUR_SOLICITATION, ROUTER_ADVERTISEMENT, ROUTER_SOLICITATION,
    link_local, number_of, raw,
};
use super::{BRIDGED, compare, drop, field, from_guest, meta};
use crate::{Nat, Tunnel};

/// Filters between tunnels and their bridges.
pub(super) fn between(nat: &[Nat]) -> Vec<Value> {
    let mut commands = Vec::new();
    for hook in ["input", "forward", "output"] {
        commands.push(BRIDGED.chain(hook, "filter", hook, 0));
    }
    for network in nat.iter().filter(|network| network.tunnel.is_some()) {
        let device = tunnel::name_of(&network.bridge);
        for (chain, side) in
            [("input", "iifname"), ("forward", "iifname"), ("forward", "oifname"), ("output", "oifname")]
        {
            for what in never_across(network) {
                let mut expressions = vec![compare("==", meta(side), json!(device))];
                expressions.extend(what);
                expressions.push(drop());
                commands.push(BRIDGED.rule(chain, expressions));
            }
        }
    }
    commands
}

/// Conditions for frames that do not cross the tunnel, one list for each rule.
fn never_across(network: &Nat) -> Vec<Vec<Value>> {
    let payload = |protocol: &str, field: &str| json!({"payload": {"protocol": protocol, "field": field}});
    let gateway = json!(hardware_address(bridge_mac(&network.bridge)));
    let mut rules = vec![vec![compare("==", payload("udp", "dport"), json!({"set": [67, 68]}))]];
    if let Some(ipv4) = network.ipv4 {
        rules.push(vec![compare("==", payload("arp", "saddr ip"), json!(ipv4.gateway))]);
        rules.push(vec![compare("==", payload("arp", "daddr ip"), json!(ipv4.gateway))]);
    }
    rules.push(vec![compare("==", payload("ether", "saddr"), gateway.clone())]);
    rules.push(vec![compare("==", payload("ether", "daddr"), gateway)]);
    if let Some(ipv6) = network.ipv6 {
        let kind = |kinds: &[u8]| compare("==", payload("icmpv6", "type"), json!({"set": kinds}));
        rules.push(vec![compare("==", payload("udp", "dport"), json!({"set": [546, 547]}))]);
        rules.push(vec![kind(&[ROUTER_SOLICITATION, ROUTER_ADVERTISEMENT])]);
        let addresses = link_local(&hardware_address(bridge_mac(&network.bridge))).into_iter();
        rules.extend(addresses.chain([ipv6.gateway]).map(|address| {
            let about = compare("==", raw(ADVERTISED), number_of(address));
            vec![kind(&[NEIGHBOUR_SOLICITATION, NEIGHBOUR_ADVERTISEMENT]), about]
        }));
    }
    rules
}

/// Rules of the chain `input`: drop a tunnel's packets unless they come from its peers, to its address. Guests of a peer that send to another
/// address of this host, which the peer does not know as one, do so under the peer's address.
pub(super) fn into_tunnels(nat: &[Nat]) -> Vec<Vec<Value>> {
    let mut rules = Vec::new();
    for tunnel in nat.iter().filter_map(|network| network.tunnel.as_ref()) {
        let Tunnel { vni, local, peers } = tunnel;
        let to_it = [to_tunnels(), compare("==", network_identifier(), json!(vni))];
        let hosts = peers.iter().map(|peer| json!(peer)).collect::<Vec<_>>();
        let of_family = if tunnel.is_encrypted() { field_of_ipv6 } else { field };
        let stranger = compare("!=", of_family("saddr"), json!({"set": hosts}));
        let elsewhere = compare("!=", of_family("daddr"), json!(local));
        rules.push(to_it.iter().cloned().chain([stranger, drop()]).collect());
        if tunnel.is_encrypted() {
            let unencrypted = compare("!=", meta("iifname"), by_wireguard());
            rules.push(to_it.iter().cloned().chain([unencrypted, drop()]).collect());
        }
        rules.push(to_it.iter().cloned().chain([elsewhere, drop()]).collect());
        rules.push(to_it.into_iter().chain([from_guest(), drop()]).collect());
    }
    rules
}

/// Rules of the chain `forward`: drop guests' packets to the tunnels of other hosts, which trust this host's address.
pub(super) fn past_tunnels(nat: &[Nat]) -> Vec<Vec<Value>> {
    // Nothing is routed to the others by WireGuard.
    let tunnels = nat.iter().filter_map(|n| n.tunnel.as_ref()).filter(|tunnel| !tunnel.is_encrypted());
    let mut hosts: Vec<_> = tunnels.flat_map(|t| t.peers.iter().copied()).collect();
    hosts.sort();
    hosts.dedup();
    if hosts.is_empty() {
        return Vec::new();
    }
    let to_host = compare("==", field("daddr"), json!({"set": hosts}));
    vec![vec![from_guest(), to_host, to_tunnels(), drop()]]
}

/// Rules for the interface of WireGuard and the addresses of hosts in it, with their chain; none without encrypted tunnels.
pub(super) fn within_wireguard(nat: &[Nat]) -> Vec<(&'static str, Vec<Value>)> {
    if !nat.iter().filter_map(|n| n.tunnel.as_ref()).any(Tunnel::is_encrypted) {
        return Vec::new();
    }
    let by = |operator: &str, side: &str| compare(operator, meta(side), by_wireguard());
    let to_hosts = || {
        let (address, length) = wireguard::hosts();
        compare("==", field_of_ipv6("daddr"), json!({"prefix": {"addr": address, "len": length}}))
    };
    let others = compare("!=", meta("l4proto"), json!({"set": ["udp", "ipv6-icmp"]}));
    let other_port = compare("!=", json!({"payload": {"protocol": "udp", "field": "dport"}}), json!(PORT));
    vec![
        ("input", vec![to_hosts(), by("!=", "iifname"), drop()]),
        ("input", vec![by("==", "iifname"), others, drop()]),
        ("input", vec![by("==", "iifname"), other_port, drop()]),
        ("forward", vec![to_hosts(), drop()]),
        ("forward", vec![by("==", "iifname"), drop()]),
        ("forward", vec![by("==", "oifname"), drop()]),
        // The one chain for what the host itself sends.
        ("redirects", vec![to_hosts(), by("!=", "oifname"), drop()]),
    ]
}

fn by_wireguard() -> Value {
    json!(format!("{}*", wireguard::PREFIX))
}

fn field_of_ipv6(name: &str) -> Value {
    json!({"payload": {"protocol": "ip6", "field": name}})
}

fn to_tunnels() -> Value {
    compare("==", json!({"payload": {"protocol": "udp", "field": "dport"}}), json!(PORT))
}

/// Matches the VNI in the VXLAN header, which nftables has no name for: after UDP's 8 bytes and VXLAN's first 4, 24
/// bits.
fn network_identifier() -> Value {
    json!({"payload": {"base": "th", "offset": 96, "len": 24}})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nat(local: &str, peer: &str) -> Nat {
        let [local, peer] = [local, peer].map(|text| text.parse().expect("an address"));
        let tunnel = Some(Tunnel { vni: 77, local, peers: vec![peer] });
        Nat { bridge: "bth-00004d".to_owned(), ipv4: None, ipv6: None, tunnel }
    }

    #[test]
    fn an_encrypted_tunnel_has_packets_of_its_peers_by_wireguard_only() {
        let nat = [nat("fd62:6572:7468::1", "fd62:6572:7468::2")];
        let rules = into_tunnels(&nat);
        let text: Vec<String> = rules.iter().map(|rule| json!(rule).to_string()).collect();
        assert_eq!(text.len(), 4, "{text:?}");
        assert!(text[0].contains("ip6") && text[0].contains("\"fd62:6572:7468::2\""), "{}", text[0]);
        assert!(text[1].contains("iifname") && text[1].contains("btw-*"), "{}", text[1]);
        assert!(text[2].contains("daddr") && text[2].contains("\"fd62:6572:7468::1\""), "{}", text[2]);
        assert!(text.iter().all(|rule| rule.contains("4789") && rule.contains("drop")), "{text:?}");
        assert!(past_tunnels(&nat).is_empty());
        let chains: Vec<&str> = within_wireguard(&nat).iter().map(|(chain, _)| *chain).collect();
        assert_eq!(chains, ["input", "input", "input", "forward", "forward", "forward", "redirects"]);
    }

    #[test]
    fn without_encryption_there_are_no_rules_for_it() {
        let nat = [nat("192.0.2.1", "192.0.2.2")];
        assert!(within_wireguard(&nat).is_empty());
        assert_eq!((into_tunnels(&nat).len(), past_tunnels(&nat).len()), (3, 1));
        let to_another = compare("!=", field("daddr"), json!("192.0.2.1"));
        assert!(into_tunnels(&nat).iter().any(|rule| rule[2..] == [to_another.clone(), drop()]));
        assert!(!json!(into_tunnels(&nat)).to_string().contains("btw-"));
    }
}
