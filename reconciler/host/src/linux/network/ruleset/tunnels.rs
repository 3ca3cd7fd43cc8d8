//! The firewall rules for tunnels between hosts. Pure.
//!
//! ```text
//!  table bridge berth   between a tunnel and its bridge: no DHCP, no ARP and no neighbour discovery from or about the gateway,
//!                       no router discovery, no frame from or to the
//!                       gateway's MAC address: each host has its own gateway, with the same addresses
//!  table inet berth     accepts a tunnel's packets from its peers only; no guest sends any to a host, which would
//!                       inject its frame into another tenant's network
//! ```

use serde_json::{Value, json};

use super::super::tunnel::{self, PORT};
use super::super::{bridge_mac, hardware_address};
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

/// Rules of the chain `input`: drop a tunnel's packets unless they come from its peers.
pub(super) fn into_tunnels(nat: &[Nat]) -> Vec<Vec<Value>> {
    let mut rules = Vec::new();
    for Tunnel { vni, peers, .. } in nat.iter().filter_map(|network| network.tunnel.as_ref()) {
        let to_it = [to_tunnels(), compare("==", network_identifier(), json!(vni))];
        let hosts = peers.iter().map(|peer| json!(peer)).collect::<Vec<_>>();
        let stranger = compare("!=", field("saddr"), json!({"set": hosts}));
        rules.push(to_it.iter().cloned().chain([stranger, drop()]).collect());
        rules.push(to_it.into_iter().chain([from_guest(), drop()]).collect());
    }
    rules
}

/// Rules of the chain `forward`: drop guests' packets to the tunnels of other hosts, which trust this host's address.
pub(super) fn past_tunnels(nat: &[Nat]) -> Vec<Vec<Value>> {
    let mut hosts: Vec<_> =
        nat.iter().filter_map(|n| n.tunnel.as_ref()).flat_map(|t| t.peers.iter().copied()).collect();
    hosts.sort();
    hosts.dedup();
    if hosts.is_empty() {
        return Vec::new();
    }
    let to_host = compare("==", field("daddr"), json!({"set": hosts}));
    vec![vec![from_guest(), to_host, to_tunnels(), drop()]]
}

fn to_tunnels() -> Value {
    compare("==", json!({"payload": {"protocol": "udp", "field": "dport"}}), json!(PORT))
}

/// Matches the VNI in the VXLAN header, which nftables has no name for: after UDP's 8 bytes and VXLAN's first 4, 24
/// bits.
fn network_identifier() -> Value {
    json!({"payload": {"base": "th", "offset": 96, "len": 24}})
}
