//! The firewall rules for tunnels between hosts. Pure.
//!
//! ```text
//!  table bridge berth   between a tunnel and its bridge: no DHCP, no ARP from or about the gateway, no frame from or to the
//!                       gateway's MAC address: each host has its own gateway, with the same addresses
//!  table inet berth     accepts a tunnel's packets from its peers only; no guest sends any to a host, which would
//!                       inject its frame into another tenant's network
//! ```

use serde_json::{Value, json};

use super::super::tunnel::{self, PORT};
use super::super::{bridge_mac, hardware_address};
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
                let expressions = vec![compare("==", meta(side), json!(device)), what, drop()];
                commands.push(BRIDGED.rule(chain, expressions));
            }
        }
    }
    commands
}

fn never_across(network: &Nat) -> Vec<Value> {
    let payload = |protocol: &str, field: &str| json!({"payload": {"protocol": protocol, "field": field}});
    let gateway = json!(hardware_address(bridge_mac(&network.bridge)));
    vec![
        compare("==", payload("udp", "dport"), json!({"set": [67, 68]})),
        compare("==", payload("arp", "saddr ip"), json!(network.gateway)),
        compare("==", payload("arp", "daddr ip"), json!(network.gateway)),
        compare("==", payload("ether", "saddr"), gateway.clone()),
        compare("==", payload("ether", "daddr"), gateway),
    ]
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
