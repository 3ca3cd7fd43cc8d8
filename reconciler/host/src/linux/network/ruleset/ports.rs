//! The frames that a guest may send by its tap. Pure.
//!
//! ```text
//!  table bridge berth, before any other processing of a frame from a tap or from a bridge of the host
//!    any     from the tap's own MAC; IPv4, ARP and IPv6, nothing else (no spanning tree)
//!    tagged  those of its trunk, by [`trunks`], and no further checks
//!    ARP     about itself: its MAC, and its address or none yet
//!    IPv4    from its address; from 0.0.0.0 for DHCP requests, for its own MAC; no replies of a DHCP server
//!    IPv6    from the link-local address of its MAC and from its address; no advertisement of other addresses and no detection of
//!            duplicates of them; no router, no redirect, no DHCP server, no fragments
//!    from a bridge of the host: no router advertisements, unless the network's routers give out its IPv6 addresses
//! ```
//!
//! The sets assign addresses to taps: a tap that is in none of them passes nothing. Rules are stateless, because not
//! every kernel tracks connections between the ports of a bridge.

use ipnet::{IpNet, Ipv4Net};
use serde_json::{Value, json};

use super::super::TAP_PREFIX;
use super::super::bridged::{INNER_PREFIX, inner_of};
use super::{BRIDGED, accept, compare, drop, meta, trunks};
use crate::{Isolation, Port, PortException};

const MACS: &str = "macs";
pub(super) const ADDRESSES: &str = "addresses";
/// Link-local IPv6 addresses, and those of the network's prefix.
pub(super) const IPV6_ADDRESSES: &str = "ipv6_addresses";
const CHAIN: &str = "guests";
/// Ranges of further addresses that single taps may send from, and the chains that look there.
const OTHERS: &str = "others";
const OTHER_ARP: &str = "other_arp";
const OTHER_IPV4: &str = "other_ipv4";
const OTHER_IPV6: &str = "other_ipv6";
/// The chains for frames to a DHCP server, and for neighbour discovery about an own IPv6 address: each tap has its own rules there.
const ASKS_DHCP: &str = "asks_dhcp";
const ADVERTISES: &str = "advertises";
/// Before the bridge's forwarding decision.
const PRIORITY: i32 = -200;
/// The client hardware address in a DHCP message, after UDP's 8 bytes and 28 of its own. Offset and length in bits.
const DHCP_CLIENT: (u32, u32) = (288, 48);
/// The target address in a neighbour solicitation or advertisement, after 8 bytes. Offset and length in bits.
pub(super) const ADVERTISED: (u32, u32) = (64, 128);
pub(super) const ROUTER_SOLICITATION: u8 = 133;
pub(super) const ROUTER_ADVERTISEMENT: u8 = 134;
pub(super) const NEIGHBOUR_SOLICITATION: u8 = 135;
pub(super) const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
pub(super) const REDIRECT: u8 = 137;
const MULTICAST_REPORT: u8 = 143;
/// TCP, UDP, ICMPv6.
const UPPER: [u8; 3] = [6, 17, 58];

/// The sets, chains and rules, for an empty table. `advertised`: the bridges whose guests hear the network's routers. `answered`: the taps
/// whose guests' requests of DHCP are kept from the network.
pub(super) fn guard(
    ports: &[Port],
    exceptions: &[PortException],
    isolated: &[Isolation],
    advertised: &[String],
    answered: &[String],
) -> Vec<Value> {
    let mut ports: Vec<&Port> = ports.iter().collect();
    ports.sort();
    ports.dedup_by_key(|port| &port.tap);
    let elements = |value: fn(&Port) -> Option<Value>| -> Vec<Value> {
        let element = |port: &&Port| Some(json!({"concat": [port.tap, value(port)?]}));
        ports.iter().filter_map(element).collect()
    };
    let mut macs = elements(|port| Some(json!(port.mac)));
    let further = exceptions.iter().flat_map(|e| e.macs.iter().map(|mac| json!({"concat": [e.tap, mac]})));
    macs.extend(further);
    macs.sort_by_key(ToString::to_string);
    macs.dedup();
    let mut ipv6 = elements(|port| Some(json!(link_local(&port.mac)?)));
    ipv6.extend(elements(|port| Some(json!(port.ipv6?))));
    let mut commands = vec![
        set(MACS, "ether_addr", macs),
        set(ADDRESSES, "ipv4_addr", elements(|port| Some(json!(port.address?)))),
        set(IPV6_ADDRESSES, "ipv6_addr", ipv6),
        chain(ASKS_DHCP),
        chain(ADVERTISES),
        BRIDGED.chain(CHAIN, "filter", "prerouting", PRIORITY),
    ];
    commands.extend(others(exceptions, isolated));
    for port in ports {
        let by_it = || compare("==", meta("iifname"), json!(port.tap));
        let Some(mac) = bytes(&port.mac) else { continue };
        let number = mac.iter().fold(0u64, |number, byte| number << 8 | u64::from(*byte));
        let other = compare("!=", raw(DHCP_CLIENT), json!(number));
        // The host answers from below the bridge.
        let asked =
            if answered.contains(&port.tap) { vec![by_it(), drop()] } else { vec![by_it(), other, drop()] };
        commands.push(BRIDGED.rule(ASKS_DHCP, asked));
        for own in link_local(&port.mac).into_iter().chain(port.ipv6) {
            let own = compare("==", raw(ADVERTISED), number_of(own));
            commands.push(BRIDGED.rule(ADVERTISES, vec![by_it(), own, json!({"return": null})]));
        }
        if !exceptions.iter().any(|exception| exception.tap == port.tap && has_any_ipv6(exception)) {
            commands.push(BRIDGED.rule(ADVERTISES, vec![by_it(), drop()]));
        }
    }
    commands.extend(rules(advertised).into_iter().map(|expressions| BRIDGED.rule(CHAIN, expressions)));
    commands
}

/// Whether the guest may send from any IPv6 address.
fn has_any_ipv6(exception: &PortException) -> bool {
    exception.ranges.iter().any(|range| matches!(range, IpNet::V6(range) if range.prefix_len() == 0))
}

/// The set and the chains for addresses that are not a tap's own. Those under which hosts forward connections into an isolated network
/// pass its filters, so that no guest may send from them.
fn others(exceptions: &[PortException], isolated: &[Isolation]) -> Vec<Value> {
    let ipv4 = |range: &IpNet| match range {
        IpNet::V4(range) => Some(*range),
        IpNet::V6(_) => None,
    };
    let ranges = |exception: &PortException| {
        Ipv4Net::aggregate(&exception.ranges.iter().filter_map(ipv4).collect::<Vec<_>>())
    };
    let element = |tap: &String, range: Ipv4Net| json!({"concat": [tap, {"prefix": {"addr": range.network(), "len": range.prefix_len()}}]});
    let elements =
        exceptions.iter().flat_map(|e| ranges(e).into_iter().map(|range| element(&e.tap, range))).collect();
    let mut extra = set(OTHERS, "ipv4_addr", elements);
    extra["add"]["set"]["flags"] = json!(["interval"]);
    let mut commands = vec![extra];
    for (name, protocol, field) in [(OTHER_ARP, "arp", "saddr ip"), (OTHER_IPV4, "ip", "saddr")] {
        commands.push(chain(name));
        for (exception, gateway) in exceptions.iter().filter_map(|e| Some((e, e.gateway?))) {
            let by_it = compare("==", meta("iifname"), json!(exception.tap));
            let as_gateway = compare("==", payload(protocol, field), json!(gateway));
            commands.push(BRIDGED.rule(name, vec![by_it, as_gateway, drop()]));
        }
        let relayed = isolated.iter().filter(|of| !of.taps.is_empty() && !of.relays.is_empty());
        for network in relayed.filter(|_| !exceptions.is_empty()) {
            let by_one = compare("==", meta("iifname"), json!({"set": network.taps}));
            let as_host = compare("==", payload(protocol, field), json!({"set": network.relays}));
            commands.push(BRIDGED.rule(name, vec![by_one, as_host, drop()]));
        }
        let there = json!({"concat": [meta("iifname"), payload(protocol, field)]});
        let allowed = compare("==", there, json!(format!("@{OTHERS}")));
        commands.push(BRIDGED.rule(name, vec![allowed, json!({"return": null})]));
        commands.push(BRIDGED.rule(name, vec![drop()]));
    }
    commands.push(chain(OTHER_IPV6));
    for exception in exceptions.iter().filter(|exception| has_any_ipv6(exception)) {
        let by_it = compare("==", meta("iifname"), json!(exception.tap));
        commands.push(BRIDGED.rule(OTHER_IPV6, vec![by_it, json!({"return": null})]));
    }
    commands.push(BRIDGED.rule(OTHER_IPV6, vec![drop()]));
    commands
}

/// The frames of routers' advertisements that come by a bridge of the host and do not reach guests.
fn from_routers(advertised: &[String]) -> Vec<Value> {
    let by_a_bridge = compare("==", meta("iifname"), json!(format!("{INNER_PREFIX}*")));
    let mut heard: Vec<String> = advertised.iter().map(|bridge| inner_of(bridge)).collect();
    heard.sort();
    heard.dedup();
    let not_heard = compare("!=", meta("iifname"), json!({"set": heard}));
    let is_advertisement = compare("==", payload("icmpv6", "type"), json!(ROUTER_ADVERTISEMENT));
    match advertised.is_empty() {
        true => vec![by_a_bridge, is_advertisement, drop()],
        false => vec![by_a_bridge, not_heard, is_advertisement, drop()],
    }
}

fn rules(advertised: &[String]) -> Vec<Vec<Value>> {
    let not_of = |left: Value, set: &str| {
        compare("!=", json!({"concat": [meta("iifname"), left]}), json!(format!("@{set}")))
    };
    let is = |protocol: &str, field: &str, value: Value| compare("==", payload(protocol, field), value);
    let is_not = |protocol: &str, field: &str, value: Value| compare("!=", payload(protocol, field), value);
    let go = |chain: &str| json!({"jump": {"target": chain}});
    let mut rules = Vec::from(trunks::untracked());
    rules.extend([
        trunks::from_the_network(),
        // Guests have link-local addresses there, or those that berth gives out, and no use for a router's.
        from_routers(advertised),
        vec![compare("!=", meta("iifname"), json!(format!("{TAP_PREFIX}*"))), accept()],
        vec![not_of(payload("ether", "saddr"), MACS), drop()],
        trunks::sent(),
        vec![is_not("ether", "type", json!({"set": ["arp", "ip", "ip6"]})), drop()],
    ]);
    // Hardware type Ethernet and protocol type IPv4; otherwise the following fields have other offsets.
    for (field, value) in [("htype", 1), ("ptype", 0x0800), ("hlen", 6), ("plen", 4)] {
        rules.push(vec![is_not("arp", field, json!(value)), drop()]);
    }
    rules.extend([
        vec![not_of(payload("arp", "saddr ether"), MACS), drop()],
        // A guest that probes whether its address is free.
        vec![is("arp", "saddr ip", json!("0.0.0.0")), is("arp", "operation", json!(1)), accept()],
        vec![not_of(payload("arp", "saddr ip"), ADDRESSES), go(OTHER_ARP)],
        vec![is("udp", "sport", json!({"set": [67, 547]})), drop()],
        vec![is("udp", "dport", json!({"set": [68, 546]})), drop()],
        // In a fragmented message, the client's MAC is not in the first fragment.
        vec![
            is("udp", "dport", json!(67)),
            compare("!=", json!({"&": [payload("ip", "frag-off"), 0x3fff]}), json!(0)),
            drop(),
        ],
        vec![is("udp", "dport", json!(67)), go(ASKS_DHCP)],
        vec![
            is("ip", "saddr", json!("0.0.0.0")),
            is("ip", "daddr", json!("255.255.255.255")),
            is("udp", "sport", json!(68)),
            is("udp", "dport", json!(67)),
            accept(),
        ],
        vec![not_of(payload("ip", "saddr"), ADDRESSES), go(OTHER_IPV4)],
        vec![compare("==", json!({"exthdr": {"name": "frag"}}), json!(true)), drop()],
        vec![is("icmpv6", "type", json!({"set": [ROUTER_ADVERTISEMENT, REDIRECT]})), drop()],
        vec![is("icmpv6", "type", json!(NEIGHBOUR_ADVERTISEMENT)), go(ADVERTISES)],
        vec![
            is("ip6", "saddr", json!("::")),
            is("icmpv6", "type", json!(NEIGHBOUR_SOLICITATION)),
            go(ADVERTISES),
        ],
        vec![
            is("ip6", "saddr", json!("::")),
            is("icmpv6", "type", json!({"set": [NEIGHBOUR_SOLICITATION, MULTICAST_REPORT]})),
            accept(),
        ],
        vec![not_of(payload("ip6", "saddr"), IPV6_ADDRESSES), go(OTHER_IPV6)],
        // The rules above match by protocol: a packet with any other one is dropped.
        vec![
            is("ether", "type", json!("ip6")),
            compare("!=", meta("l4proto"), json!({"set": UPPER})),
            drop(),
        ],
    ]);
    rules
}

fn set(name: &str, kind: &str, elements: Vec<Value>) -> Value {
    let mut set =
        json!({"family": BRIDGED.family, "table": BRIDGED.name, "name": name, "type": ["ifname", kind]});
    if !elements.is_empty() {
        set["elem"] = elements.into();
    }
    json!({"add": {"set": set}})
}

/// A chain that rules jump to.
fn chain(name: &str) -> Value {
    json!({"add": {"chain": {"family": BRIDGED.family, "table": BRIDGED.name, "name": name}}})
}

fn payload(protocol: &str, field: &str) -> Value {
    json!({"payload": {"protocol": protocol, "field": field}})
}

/// Matches bits in the transport header or after it.
pub(super) fn raw((offset, length): (u32, u32)) -> Value {
    json!({"payload": {"base": "th", "offset": offset, "len": length}})
}

/// The address as the number that [`raw`] compares with.
pub(super) fn number_of(address: std::net::Ipv6Addr) -> Value {
    json!(format!("{:#x}", u128::from(address)))
}

/// Derives the link-local IPv6 address of a MAC (RFC 4291, appendix A).
pub(in super::super) fn link_local(mac: &str) -> Option<std::net::Ipv6Addr> {
    let [a, b, c, d, e, f] = bytes(mac)?;
    let pair = |high: u8, low: u8| u16::from(high) << 8 | u16::from(low);
    let [first, second, third, fourth] = [pair(a ^ 2, b), pair(c, 0xff), pair(0xfe, d), pair(e, f)];
    Some(std::net::Ipv6Addr::new(0xfe80, 0, 0, 0, first, second, third, fourth))
}

fn bytes(mac: &str) -> Option<[u8; 6]> {
    let bytes: Option<Vec<u8>> = mac.split(':').map(|byte| u8::from_str_radix(byte, 16).ok()).collect();
    bytes?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_link_local_address_follows_from_the_mac() {
        assert_eq!(
            link_local("52:54:00:00:00:01").map(|a| a.to_string()).as_deref(),
            Some("fe80::5054:ff:fe00:1")
        );
        assert_eq!(
            link_local("02:00:5e:10:20:30").map(|a| a.to_string()).as_deref(),
            Some("fe80::5eff:fe10:2030")
        );
        assert_eq!(link_local("52:54:00:00:00"), None);
    }

    #[test]
    fn a_guest_of_an_isolated_network_never_sends_from_an_address_that_other_hosts_forward_from() {
        let exception = PortException {
            tap: "btt00000002n0".into(),
            ranges: vec!["0.0.0.0/0".parse().expect("a range")],
            macs: Vec::new(),
            gateway: None,
        };
        let isolated = Isolation {
            bridge: None,
            taps: vec![exception.tap.clone()],
            relays: vec!["10.77.0.9".parse().expect("an address")],
        };
        let ends = |chain: &str, isolated: &[Isolation]| -> Vec<String> {
            let commands = others(std::slice::from_ref(&exception), isolated);
            let rules = commands.iter().map(|command| &command["add"]["rule"]);
            let of_chain = rules.filter(|rule| rule["chain"] == chain);
            let end = |rule: &Value| rule["expr"].as_array()?.last()?.as_object()?.keys().next().cloned();
            of_chain.filter_map(end).collect()
        };
        for chain in [OTHER_ARP, OTHER_IPV4] {
            assert_eq!(ends(chain, &[]), ["return", "drop"], "{chain}");
            let closed = ends(chain, std::slice::from_ref(&isolated));
            assert_eq!(closed, ["drop", "return", "drop"], "{chain}");
        }
    }
}
