//! Guests of an isolated network do not reach each other, neither on one host nor by a tunnel nor by their host's routes. Pure.
//!
//! ```text
//!  table bridge berth   chain isolation, between the ports of a bridge
//!    tap ── tap         nothing
//!    tap ── tunnel      packets of IPv4, IPv6 and ARP from and to the addresses under which other hosts forward connections to public
//!                       addresses, and neighbour solicitations about these; nothing else
//!  table inet berth     chain forward, before established connections: nothing from a network back into it, also not by a public address
//! ```
//!
//! Packets of a guest to its gateway, to the outside and to the host's name server are not between ports.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde_json::{Value, json};

use super::super::relay::relay_link;
use super::super::tunnel;
use super::ports::{ADVERTISED, NEIGHBOUR_SOLICITATION, number_of, raw};
use super::{BRIDGED, TABLE, accept, compare, drop, meta, rule};
use crate::Isolation;
use crate::balancing::of_family;

const TAPS: &str = "isolated";
const CHAIN: &str = "isolation";
/// Beside the filters of interfaces.
const PRIORITY: i32 = -190;

/// The set, chain and rules between the ports of bridges. Nothing without isolated networks.
pub(super) fn between_ports(isolated: &[Isolation]) -> Vec<Value> {
    if isolated.is_empty() {
        return Vec::new();
    }
    let taps: BTreeSet<&String> = isolated.iter().flat_map(|network| &network.taps).collect();
    let mut set = json!({"family": BRIDGED.family, "table": TABLE, "name": TAPS, "type": "ifname"});
    if !taps.is_empty() {
        set["elem"] = json!(taps);
    }
    let mut commands =
        vec![json!({"add": {"set": set}}), BRIDGED.chain(CHAIN, "filter", "forward", PRIORITY)];
    let of_tunnels = by_bridge(isolated).into_iter().flat_map(by_tunnel);
    let between_taps = vec![by("iifname"), by("oifname"), drop()];
    let rules = of_tunnels.chain([between_taps]);
    commands.extend(rules.map(|expressions| BRIDGED.rule(CHAIN, expressions)));
    commands
}

/// The networks with a bridge, each once.
fn by_bridge(isolated: &[Isolation]) -> BTreeMap<&str, &Isolation> {
    isolated.iter().filter_map(|network| Some((network.bridge.as_deref()?, network))).collect()
}

fn by(side: &str) -> Value {
    compare("==", meta(side), json!(format!("@{TAPS}")))
}

fn by_tunnel((bridge, network): (&str, &Isolation)) -> Vec<Vec<Value>> {
    let tunnel = |side: &str| compare("==", meta(side), json!(tunnel::name_of(bridge)));
    let ways = [("iifname", "oifname", "daddr"), ("oifname", "iifname", "saddr")];
    let mut rules = Vec::new();
    let [ipv4, ipv6] = [false, true].map(|is_ipv6| of_family(&network.relays, is_ipv6));
    for (of_guest, of_tunnel, address) in ways {
        for protocol in ["ip", "arp"].into_iter().filter(|_| !ipv4.is_empty()) {
            let name = if protocol == "arp" { format!("{address} ip") } else { address.to_owned() };
            let is_relay = compare("==", payload(protocol, &name), json!({"set": ipv4}));
            rules.push(vec![by(of_guest), tunnel(of_tunnel), is_relay, accept()]);
        }
        if !ipv6.is_empty() {
            let is_relay = compare("==", payload("ip6", address), json!({"set": ipv6}));
            rules.push(vec![by(of_guest), tunnel(of_tunnel), is_relay, accept()]);
        }
    }
    let [(guests, others, _), _] = ways;
    for about in asks_for(&ipv6) {
        rules.push([by(guests), tunnel(others)].into_iter().chain(about).chain([accept()]).collect());
    }
    for (of_guest, of_tunnel, _) in ways {
        rules.push(vec![by(of_guest), tunnel(of_tunnel), drop()]);
    }
    rules
}

/// Conditions for neighbour solicitations about these addresses, one list for each: they are sent to a multicast address.
fn asks_for(relays: &[IpAddr]) -> impl Iterator<Item = [Value; 2]> {
    let about = |relay: &IpAddr| match relay {
        IpAddr::V4(_) => None,
        IpAddr::V6(relay) => {
            let is_question = compare("==", payload("icmpv6", "type"), json!(NEIGHBOUR_SOLICITATION));
            Some([is_question, compare("==", raw(ADVERTISED), number_of(*relay))])
        }
    };
    relays.iter().filter_map(about)
}

fn payload(protocol: &str, name: &str) -> Value {
    json!({"payload": {"protocol": protocol, "field": name}})
}

/// Rules of the chain `forward`: what the host would route back into the network. Where the bridge is tracked, packets between its ports
/// pass here too.
pub(super) fn by_the_host(isolated: &[Isolation]) -> Vec<Value> {
    let of_network = |(bridge, network): (&str, &Isolation)| {
        let from = || compare("==", meta("iifname"), json!(bridge));
        let to = |link: &str| compare("==", meta("oifname"), json!(link));
        let mut rules = Vec::new();
        for (is_ipv6, protocol) in [(false, "ip"), (true, "ip6")] {
            let relays = of_family(&network.relays, is_ipv6);
            for side in ["saddr", "daddr"].into_iter().filter(|_| !relays.is_empty()) {
                let is_relay = compare("==", payload(protocol, side), json!({"set": relays}));
                rules.push(vec![from(), to(bridge), is_relay, accept()]);
            }
            for about in asks_for(&relays) {
                rules.push([from(), to(bridge)].into_iter().chain(about).chain([accept()]).collect());
            }
        }
        rules.push(vec![from(), to(bridge), drop()]);
        rules.push(vec![from(), to(&relay_link(bridge)), drop()]);
        rules
    };
    let rules = by_bridge(isolated).into_iter().flat_map(of_network);
    rules.map(|expressions| rule("forward", expressions)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(relays: &[&str]) -> Isolation {
        Isolation {
            bridge: Some("bth-00004d".into()),
            taps: vec!["btt00000002n0".into(), "btt00000003n0".into()],
            relays: relays.iter().map(|text| text.parse().expect("an address")).collect(),
        }
    }

    #[test]
    fn without_isolated_networks_there_is_nothing() {
        assert!(between_ports(&[]).is_empty() && by_the_host(&[]).is_empty());
        let without_bridge = Isolation { bridge: None, ..network(&["10.77.0.9"]) };
        assert!(by_the_host(std::slice::from_ref(&without_bridge)).is_empty());
        assert_eq!(between_ports(&[without_bridge]).len(), 3, "its guests here: a set, a chain, a rule");
    }

    #[test]
    fn nothing_passes_between_guests_and_by_a_tunnel_only_what_other_hosts_forward() {
        let ends = |relays: &[&str]| -> Vec<String> {
            let commands = between_ports(&[network(relays)]);
            let rules = commands.iter().filter_map(|command| command["add"]["rule"]["expr"].as_array());
            let end = |rule: &Vec<Value>| {
                let last = rule.last().and_then(Value::as_object).and_then(|last| last.keys().next());
                format!("{} {}", rule.len(), last.map(String::as_str).unwrap_or_default())
            };
            rules.map(end).collect()
        };
        assert_eq!(ends(&[]), ["3 drop", "3 drop", "3 drop"]);
        let with = ends(&["10.77.0.9"]);
        assert_eq!(with, ["4 accept", "4 accept", "4 accept", "4 accept", "3 drop", "3 drop", "3 drop"]);
        assert_eq!(
            (by_the_host(&[network(&[])]).len(), by_the_host(&[network(&["10.77.0.9"])]).len()),
            (2, 4)
        );
        let ipv6 = ends(&["fd00:60::9"]);
        assert_eq!(ipv6, ["4 accept", "4 accept", "5 accept", "3 drop", "3 drop", "3 drop"]);
        assert_eq!(by_the_host(&[network(&["fd00:60::9"])]).len(), 5);
    }
}
