//! What tunnels between hosts need of the firewall. Pure.
//!
//! ```text
//!  table bridge berth   between a tunnel and its bridge: no DHCP, no question about the gateway nor its answer, nothing
//!                       from or to the gateway's hardware address: each host has its own, and they are the same
//!  table inet berth     a tunnel's packets are taken from its hosts only; no guest sends any to a host, which would
//!                       put a frame of its own into somebody else's network
//! ```

use serde_json::{Value, json};

use super::super::tunnel::{self, PORT};
use super::super::{hardware_address, stable_mac};
use super::{BRIDGES, Table, compare, drop, field, meta};
use crate::system::{Nat, Tunnel};

pub(super) const BRIDGED: Table = Table { family: "bridge", name: super::TABLE };

/// The table that stands between tunnels and their bridges.
pub(super) fn between(nat: &[Nat]) -> Vec<Value> {
    let mut commands = vec![BRIDGED.add()];
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
    let gateway = json!(hardware_address(stable_mac(&network.bridge)));
    vec![
        compare("==", payload("udp", "dport"), json!({"set": [67, 68]})),
        compare("==", payload("arp", "saddr ip"), json!(network.gateway)),
        compare("==", payload("arp", "daddr ip"), json!(network.gateway)),
        compare("==", payload("ether", "saddr"), gateway.clone()),
        compare("==", payload("ether", "daddr"), gateway),
    ]
}

/// Rules of the chain `input`: who may put packets into a tunnel.
pub(super) fn into_tunnels(nat: &[Nat]) -> Vec<Vec<Value>> {
    let from_guest = compare("==", meta("iifname"), json!(format!("@{BRIDGES}")));
    let mut rules = Vec::new();
    for Tunnel { vni, peers, .. } in nat.iter().filter_map(|network| network.tunnel.as_ref()) {
        let to_it = [to_tunnels(), compare("==", network_identifier(), json!(vni))];
        let hosts = peers.iter().map(|peer| json!(peer)).collect::<Vec<_>>();
        let stranger = compare("!=", field("saddr"), json!({"set": hosts}));
        rules.push(to_it.iter().cloned().chain([stranger, drop()]).collect());
        rules.push(to_it.into_iter().chain([from_guest.clone(), drop()]).collect());
    }
    rules
}

/// Rules of the chain `forward`: guests leave under the host's address, which the other hosts trust.
pub(super) fn past_tunnels(nat: &[Nat]) -> Vec<Vec<Value>> {
    let mut hosts: Vec<_> =
        nat.iter().filter_map(|n| n.tunnel.as_ref()).flat_map(|t| t.peers.iter().copied()).collect();
    hosts.sort();
    hosts.dedup();
    if hosts.is_empty() {
        return Vec::new();
    }
    let to_host = compare("==", field("daddr"), json!({"set": hosts}));
    vec![vec![compare("==", meta("iifname"), json!(format!("@{BRIDGES}"))), to_host, to_tunnels(), drop()]]
}

fn to_tunnels() -> Value {
    compare("==", json!({"payload": {"protocol": "udp", "field": "dport"}}), json!(PORT))
}

/// In the VXLAN header, which nftables has no name for: after UDP's 8 bytes and VXLAN's first 4, 24 bits.
fn network_identifier() -> Value {
    json!({"payload": {"base": "th", "offset": 96, "len": 24}})
}
