//! The firewall rules for IPv6 of private networks. Pure.
//!
//! ```text
//!  from a network with egress `Masquerade` or `Routed` to anywhere but its host's own networks: passes, under the host's address or
//!      unchanged
//!  from any other network, and to the host's own networks: rejected (no route)
//!  into a network: answers, packets to a public address, as [`translation`] leads them, and to a public prefix; nothing else
//!  from a public prefix to the outside: passes unchanged
//!  from a guest with an announced public address: by the interface that it is announced on, under that address
//!  to the name server at a gateway: packets of its own network's guests and of the host only
//!  from a network to the host itself: neighbour and router discovery; DHCP; DNS and echo requests to its own gateway
//! ```

use std::net::Ipv6Addr;

use ipnet::Ipv6Net;
use serde_json::{Value, json};

use super::super::{bridge_mac, hardware_address};
use super::ports::{
    NEIGHBOUR_ADVERTISEMENT, NEIGHBOUR_SOLICITATION, REDIRECT, ROUTER_SOLICITATION, link_local,
};
use super::translation::{self, IPV6};
use super::{
    ROUTED, TABLE, accept, any_bridge, close_name_servers, compare, drop, from_guest, meta, port, rule,
    was_forwarded,
};
use crate::{Balanced, Egress, Forward, Ipv6Network, Nat, RoutedPrefix};

/// Gateways, with the link-local addresses of bridges.
const GATEWAYS: &str = "gateways6";
const CLOSED: &str = "closed6";
/// All DHCP servers and relays of a link.
const DHCP_SERVERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);
const DHCP_PORT: u16 = 547;

fn networks(nat: &[Nat]) -> impl Iterator<Item = (&str, Ipv6Network)> {
    nat.iter().filter_map(|network| Some((network.bridge.as_str(), network.ipv6?)))
}

pub(super) fn sets(nat: &[Nat], closed: &[Ipv6Net]) -> Vec<Value> {
    let gateways = |(bridge, ipv6): (&str, Ipv6Network)| -> Vec<Value> {
        let addresses = link_local(&hardware_address(bridge_mac(bridge))).into_iter().chain([ipv6.gateway]);
        addresses.map(|address| json!({"concat": [bridge, address]})).collect()
    };
    let gateways: Vec<Value> = networks(nat).flat_map(gateways).collect();
    let mut gateways_set =
        json!({"family": ROUTED.family, "table": TABLE, "name": GATEWAYS, "type": ["ifname", "ipv6_addr"]});
    if !gateways.is_empty() {
        gateways_set["elem"] = gateways.into();
    }
    let closed: Vec<Value> = closed.iter().map(|range| prefix(*range)).collect();
    let mut closed_set = json!({"family": ROUTED.family, "table": TABLE, "name": CLOSED, "type": "ipv6_addr", "flags": ["interval"]});
    if !closed.is_empty() {
        closed_set["elem"] = closed.into();
    }
    vec![json!({"add": {"set": gateways_set}}), json!({"add": {"set": closed_set}})]
}

/// The packets that guests may send to their host.
pub(super) fn to_host(nat: &[Nat]) -> Vec<Vec<Value>> {
    let kind = |kinds: Value| compare("==", payload("icmpv6", "type"), kinds);
    let to_its_gateway = || {
        let there = json!({"concat": [meta("iifname"), payload("ip6", "daddr")]});
        compare("==", there, json!(format!("@{GATEWAYS}")))
    };
    let discovery = json!({"set": [ROUTER_SOLICITATION, NEIGHBOUR_SOLICITATION, NEIGHBOUR_ADVERTISEMENT]});
    let mut rules: Vec<Vec<Value>> = Vec::new();
    for (bridge, _) in networks(nat) {
        let by_it = || compare("==", meta("iifname"), json!(bridge));
        let servers = compare("==", payload("ip6", "daddr"), json!(DHCP_SERVERS));
        rules.push(vec![by_it(), kind(discovery.clone()), accept()]);
        rules.push(vec![by_it(), servers, port("udp", DHCP_PORT), accept()]);
    }
    if !rules.is_empty() {
        rules.extend([
            vec![to_its_gateway(), port("udp", DHCP_PORT), accept()],
            vec![to_its_gateway(), port("udp", 53), accept()],
            vec![to_its_gateway(), port("tcp", 53), accept()],
            vec![to_its_gateway(), kind(json!("echo-request")), accept()],
        ]);
    }
    let gateways = networks(nat).map(|(_, ipv6)| ipv6.gateway.into()).collect();
    rules.extend(close_name_servers("ip6", &gateways));
    rules
}

/// The rules for packets that leave a network, after those for packets within one.
pub(super) fn leaving(nat: &[Nat], forwards: &[Forward], has_public: bool) -> Vec<Value> {
    let mut rules = Vec::new();
    let not_into_a_network = || compare("!=", meta("oifname"), any_bridge());
    for (bridge, ipv6) in networks(nat).filter(|(_, ipv6)| ipv6.egress != Egress::None) {
        let by_it = compare("==", meta("iifname"), json!(bridge));
        let from = || compare("==", payload("ip6", "saddr"), prefix(ipv6.prefix));
        let open = compare("!=", payload("ip6", "daddr"), json!(format!("@{CLOSED}")));
        rules.push(rule("forward", vec![by_it, from(), open, not_into_a_network(), accept()]));
        rules.extend(translation::under_their_own(IPV6, ipv6.prefix.into(), forwards));
        if ipv6.egress == Egress::Masquerade {
            let elsewhere = compare("!=", payload("ip6", "daddr"), prefix(ipv6.prefix));
            rules.push(rule("postrouting", vec![from(), elsewhere, json!({"masquerade": null})]));
        }
    }
    if has_public {
        // Without this, a neighbour reached by its public address would reply directly, from another address.
        for (_, ipv6) in networks(nat) {
            let from = compare("==", payload("ip6", "saddr"), prefix(ipv6.prefix));
            let neighbour = compare("==", payload("ip6", "daddr"), prefix(ipv6.prefix));
            let masquerade = json!({"masquerade": null});
            rules.push(rule("postrouting", vec![from, neighbour, was_forwarded(), masquerade]));
        }
    }
    let is_ipv6 = compare("==", meta("nfproto"), json!("ipv6"));
    let reject = json!({"reject": {"type": "icmpv6", "expr": "no-route"}});
    rules.push(rule("forward", vec![from_guest(), is_ipv6, reject]));
    rules
}

/// Rules of the chain `forward`: packets to a public prefix reach its guest, whose route the host has, and no other network.
pub(super) fn to_prefixes(prefixes: &[RoutedPrefix]) -> Vec<Value> {
    let pass = |routed: &RoutedPrefix| {
        let into_it = compare("==", meta("oifname"), json!(routed.bridge));
        let to = compare("==", payload("ip6", "daddr"), prefix(routed.prefix));
        rule("forward", vec![into_it, to, accept()])
    };
    prefixes.iter().map(pass).collect()
}

/// Rules of the chain `forward`: packets from a public prefix leave its network unchanged. They come by the tap of its guest, and by those
/// of guests on its network that are allowed these addresses.
pub(super) fn from_prefixes(prefixes: &[RoutedPrefix]) -> Vec<Value> {
    let pass = |routed: &RoutedPrefix| {
        let by_it = compare("==", meta("iifname"), json!(routed.bridge));
        let from = compare("==", payload("ip6", "saddr"), prefix(routed.prefix));
        let open = compare("!=", payload("ip6", "daddr"), json!(format!("@{CLOSED}")));
        let not_into_a_network = compare("!=", meta("oifname"), any_bridge());
        rule("forward", vec![by_it, from, open, not_into_a_network, accept()])
    };
    prefixes.iter().map(pass).collect()
}

/// Matches packets from an address that is neither of the network's prefix nor of a public one of its guests.
pub(super) fn of_others(network: &Nat, ipv6: Ipv6Network, prefixes: &[RoutedPrefix]) -> Value {
    let public = prefixes.iter().filter(|routed| routed.bridge == network.bridge).map(|routed| routed.prefix);
    let own: Vec<Ipv6Net> = public.chain([ipv6.prefix]).collect();
    let own: Vec<Value> = Ipv6Net::aggregate(&own).into_iter().map(prefix).collect();
    compare("!=", payload("ip6", "saddr"), json!({"set": own}))
}

/// The rule of the chain `redirects`: a guest that reaches a neighbour by its public address is not sent to the direct path.
pub(super) fn redirects(has_public: bool) -> Vec<Value> {
    if !has_public {
        return Vec::new();
    }
    let into_any = compare("==", meta("oifname"), any_bridge());
    let redirect = compare("==", payload("icmpv6", "type"), json!(REDIRECT));
    vec![rule("redirects", vec![into_any, redirect, drop()])]
}

/// Whether public IPv6 addresses lead to guests here.
pub(super) fn has_public(forwards: &[Forward], balanced: &[Balanced]) -> bool {
    let mut all = forwards.iter().map(|f| f.public).chain(balanced.iter().map(|b| b.public));
    all.any(|public| public.is_ipv6())
}

fn payload(protocol: &str, field: &str) -> Value {
    json!({"payload": {"protocol": protocol, "field": field}})
}

fn prefix(range: Ipv6Net) -> Value {
    json!({"prefix": {"addr": range.network(), "len": range.prefix_len()}})
}
