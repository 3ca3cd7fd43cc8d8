//! The frames that a guest may send by its tap. Pure.
//!
//! ```text
//!  table bridge berth, before any other processing of a frame from a tap or from a bridge of the host
//!    any     from the tap's own MAC; IPv4, ARP and IPv6, nothing else (no spanning tree)
//!    tagged  those of its trunk, by [`trunks`], and no further checks
//!    ARP     about itself: its MAC, and its address or none yet; no probe for an address that it may not send from
//!    IPv4    from its address; from 0.0.0.0 for DHCP requests, for its own MAC; no replies of a DHCP server
//!    IPv6    from the link-local addresses of its MACs and from its address; no advertisement of other addresses and no detection of
//!            duplicates of them; no router, no redirect, no DHCP server, no fragments; VRRP where a guest has further addresses
//!    further addresses of single taps: those of ARP, IPv4 and IPv6 in [`others`], but for the gateway's
//!    from a bridge of the host: no router advertisements, unless the network's routers give out its IPv6 addresses
//! ```
//!
//! The sets assign addresses to taps: a tap that is in none of them passes nothing. Rules are stateless, because not
//! every kernel tracks connections between the ports of a bridge.

use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde_json::{Value, json};

use super::super::TAP_PREFIX;
use super::super::bridged::{INNER_PREFIX, inner_of};
use super::{BRIDGED, accept, compare, drop, meta, trunks};
use crate::balancing::of_family;
use crate::{Isolation, Port, PortException};

const MACS: &str = "macs";
pub(super) const ADDRESSES: &str = "addresses";
/// Link-local IPv6 addresses, and those of the network's prefix.
pub(super) const IPV6_ADDRESSES: &str = "ipv6_addresses";
const CHAIN: &str = "guests";
/// Ranges of further addresses that single taps may send from, and the chains that look there.
const OTHERS: &str = "others";
const OTHERS_IPV6: &str = "others6";
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
const VRRP: u8 = 112;

/// The sets, chains and rules, for an empty table. `advertised`: the bridges whose guests hear the network's routers. `answered`: the taps
/// whose guests' requests of DHCP are kept from the network, and those whose requests of DHCPv6 are.
pub(super) fn guard(
    ports: &[Port],
    exceptions: &[PortException],
    isolated: &[Isolation],
    advertised: &[String],
    (answered, answered_ipv6): (&[String], &[String]),
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
    let of_macs =
        |e: &PortException| of_macs(e).map(|own| json!({"concat": [e.tap, own]})).collect::<Vec<_>>();
    ipv6.extend(exceptions.iter().flat_map(of_macs));
    ipv6.sort_by_key(ToString::to_string);
    ipv6.dedup();
    let mut commands = vec![
        set(MACS, "ether_addr", macs),
        set(ADDRESSES, "ipv4_addr", elements(|port| Some(json!(port.address?)))),
        set(IPV6_ADDRESSES, "ipv6_addr", ipv6),
        chain(ASKS_DHCP),
        chain(ADVERTISES),
        BRIDGED.chain(CHAIN, "filter", "prerouting", PRIORITY),
    ];
    commands.extend(others(exceptions, isolated));
    if !exceptions.is_empty() {
        commands.extend(about_relays(isolated));
    }
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
        let further: Vec<&PortException> = exceptions.iter().filter(|e| e.tap == port.tap).collect();
        commands.extend(further.iter().flat_map(|exception| advertises(exception)));
        if !further.into_iter().any(has_any_ipv6) {
            commands.push(BRIDGED.rule(ADVERTISES, vec![by_it(), drop()]));
        }
    }
    commands.extend(
        rules(exceptions, advertised, answered_ipv6)
            .into_iter()
            .map(|expressions| BRIDGED.rule(CHAIN, expressions)),
    );
    commands
}

/// Whether the guest may send from any IPv6 address.
fn has_any_ipv6(exception: &PortException) -> bool {
    ipv6_ranges(exception).iter().any(|range| range.prefix_len() == 0)
}

fn ipv6_ranges(exception: &PortException) -> Vec<Ipv6Net> {
    let ipv6 = |range: &IpNet| match range {
        IpNet::V4(_) => None,
        IpNet::V6(range) => Some(*range),
    };
    Ipv6Net::aggregate(&exception.ranges.iter().filter_map(ipv6).collect::<Vec<_>>())
}

/// The link-local addresses that a guest forms of its further MAC addresses.
pub(super) fn of_macs(exception: &PortException) -> impl Iterator<Item = std::net::Ipv6Addr> {
    exception.macs.iter().filter_map(|mac| link_local(mac))
}

/// The rules for neighbour discovery about further addresses of a tap. Those of the gateway are dropped, also within a range.
fn advertises(exception: &PortException) -> Vec<Value> {
    let by_it = || compare("==", meta("iifname"), json!(exception.tap));
    let is_about = |address| compare("==", raw(ADVERTISED), number_of(address));
    let mut rules = Vec::new();
    for gateway in exception.gateways.iter().copied() {
        let IpAddr::V6(gateway) = gateway else { continue };
        rules.push(vec![by_it(), is_about(gateway), drop()]);
    }
    rules.extend(of_macs(exception).map(|own| vec![by_it(), is_about(own), json!({"return": null})]));
    for range in ipv6_ranges(exception).into_iter().filter(|range| range.prefix_len() > 0) {
        let mut expressions = vec![by_it()];
        expressions.extend(address_conditions(range));
        expressions.push(json!({"return": null}));
        rules.push(expressions);
    }
    rules.into_iter().map(|expressions| BRIDGED.rule(ADVERTISES, expressions)).collect()
}

/// Conditions for a neighbour discovery message about an address of a range: on the whole bytes of the prefix, and on the bits after them.
fn address_conditions(range: Ipv6Net) -> Vec<Value> {
    let (start, length) = (ADVERTISED.0, u32::from(range.prefix_len()));
    let (whole, rest) = (length / 8 * 8, length % 8);
    let number = u128::from(range.network());
    let mut conditions = Vec::new();
    if whole > 0 {
        let bytes = json!(format!("{:#x}", number >> (128 - whole)));
        conditions.push(compare("==", raw((start, whole)), bytes));
    }
    if rest > 0 {
        let byte = (number >> (120 - whole)) & 0xff;
        let bits = json!({"&": [raw((start + whole, 8)), (0xff << (8 - rest)) & 0xff]});
        conditions.push(compare("==", bits, json!(u8::try_from(byte).unwrap_or_default())));
    }
    conditions
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
    let mut commands = vec![interval_set(OTHERS, "ipv4_addr", elements)];
    for (name, protocol, field) in [(OTHER_ARP, "arp", "saddr ip"), (OTHER_IPV4, "ip", "saddr")] {
        commands.push(chain(name));
        for (exception, gateway) in gateways(exceptions, IpAddr::is_ipv4) {
            let by_it = compare("==", meta("iifname"), json!(exception.tap));
            let as_gateway = compare("==", payload(protocol, field), json!(gateway));
            commands.push(BRIDGED.rule(name, vec![by_it, as_gateway, drop()]));
        }
        for network in isolated.iter().filter(|_| !exceptions.is_empty()) {
            commands.extend(as_relay(network, name, payload(protocol, field), false));
        }
        let there = json!({"concat": [meta("iifname"), payload(protocol, field)]});
        let allowed = compare("==", there, json!(format!("@{OTHERS}")));
        commands.push(BRIDGED.rule(name, vec![allowed, json!({"return": null})]));
        commands.push(BRIDGED.rule(name, vec![drop()]));
    }
    let element = |tap: &String, range: Ipv6Net| json!({"concat": [tap, {"prefix": {"addr": range.network(), "len": range.prefix_len()}}]});
    let ranges = |e: &PortException| ipv6_ranges(e).into_iter().filter(|range| range.prefix_len() > 0);
    let elements: Vec<Value> =
        exceptions.iter().flat_map(|e| ranges(e).map(|range| element(&e.tap, range))).collect();
    let has_ranges = !elements.is_empty();
    commands.push(interval_set(OTHERS_IPV6, "ipv6_addr", elements));
    commands.push(chain(OTHER_IPV6));
    for (exception, gateway) in gateways(exceptions, IpAddr::is_ipv6) {
        let by_it = compare("==", meta("iifname"), json!(exception.tap));
        let as_gateway = compare("==", payload("ip6", "saddr"), json!(gateway));
        commands.push(BRIDGED.rule(OTHER_IPV6, vec![by_it, as_gateway, drop()]));
    }
    for network in isolated.iter().filter(|_| !exceptions.is_empty()) {
        commands.extend(as_relay(network, OTHER_IPV6, payload("ip6", "saddr"), true));
    }
    if has_ranges {
        let there = json!({"concat": [meta("iifname"), payload("ip6", "saddr")]});
        let allowed = compare("==", there, json!(format!("@{OTHERS_IPV6}")));
        commands.push(BRIDGED.rule(OTHER_IPV6, vec![allowed, json!({"return": null})]));
    }
    for exception in exceptions.iter().filter(|exception| has_any_ipv6(exception)) {
        let by_it = compare("==", meta("iifname"), json!(exception.tap));
        commands.push(BRIDGED.rule(OTHER_IPV6, vec![by_it, json!({"return": null})]));
    }
    commands.push(BRIDGED.rule(OTHER_IPV6, vec![drop()]));
    commands
}

/// The rule that drops what guests of an isolated network send from an address under which hosts forward connections into it.
fn as_relay(network: &Isolation, chain: &str, source: Value, is_ipv6: bool) -> Option<Value> {
    let relays = of_family(&network.relays, is_ipv6);
    let by_one = compare("==", meta("iifname"), json!({"set": network.taps}));
    let as_host = compare("==", source, json!({"set": relays}));
    let has_both = !network.taps.is_empty() && !relays.is_empty();
    has_both.then(|| BRIDGED.rule(chain, vec![by_one, as_host, drop()]))
}

/// The rules that drop neighbour discovery of guests of isolated networks about such an address.
fn about_relays(isolated: &[Isolation]) -> Vec<Value> {
    let of_network = |network: &Isolation| {
        let about = |relay: IpAddr| match relay {
            IpAddr::V4(_) => None,
            IpAddr::V6(relay) => {
                let by_one = compare("==", meta("iifname"), json!({"set": network.taps}));
                let about_it = compare("==", raw(ADVERTISED), number_of(relay));
                Some(BRIDGED.rule(ADVERTISES, vec![by_one, about_it, drop()]))
            }
        };
        of_family(&network.relays, true).into_iter().filter_map(about).collect::<Vec<_>>()
    };
    isolated.iter().filter(|network| !network.taps.is_empty()).flat_map(of_network).collect()
}

/// The gateways of these taps that are of one family.
fn gateways(
    exceptions: &[PortException],
    is_of_family: fn(&IpAddr) -> bool,
) -> Vec<(&PortException, IpAddr)> {
    let all = exceptions.iter().flat_map(|e| e.gateways.iter().map(move |gateway| (e, *gateway)));
    all.filter(|(_, gateway)| is_of_family(gateway)).collect()
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

/// VRRP over IPv6 of the taps with further IPv6 or MAC addresses. That over IPv4 is a packet as any other.
fn vrrp(exceptions: &[PortException]) -> Option<Vec<Value>> {
    let has_further = |e: &&PortException| !e.macs.is_empty() || !ipv6_ranges(e).is_empty();
    let taps: Vec<&str> = exceptions.iter().filter(has_further).map(|e| e.tap.as_str()).collect();
    let by_one = compare("==", meta("iifname"), json!({"set": taps}));
    let is_ipv6 = compare("==", payload("ether", "type"), json!("ip6"));
    let is_vrrp = compare("==", meta("l4proto"), json!(VRRP));
    (!taps.is_empty()).then(|| vec![by_one, is_ipv6, is_vrrp, accept()])
}

/// The frames by which these taps ask for an IPv6 address and for routers: the host answers from below the bridge.
fn asks_dhcp6(answered: &[String]) -> Vec<Vec<Value>> {
    if answered.is_empty() {
        return Vec::new();
    }
    let by_one = || compare("==", meta("iifname"), json!({"set": answered}));
    let to_servers = compare("==", payload("udp", "dport"), json!(547));
    let to_routers = compare("==", payload("icmpv6", "type"), json!(ROUTER_SOLICITATION));
    vec![vec![by_one(), to_servers, drop()], vec![by_one(), to_routers, drop()]]
}

fn rules(exceptions: &[PortException], advertised: &[String], answered_ipv6: &[String]) -> Vec<Vec<Value>> {
    let not_of = |left: Value, set: &str| {
        compare("!=", json!({"concat": [meta("iifname"), left]}), json!(format!("@{set}")))
    };
    let is = |protocol: &str, field: &str, value: Value| compare("==", payload(protocol, field), value);
    // A probe for the address of a guest that is about to take it would make that guest give it up (RFC 5227, section 2.1.1).
    let probes_for = |set: &str| {
        let target = json!({"concat": [meta("iifname"), payload("arp", "daddr ip")]});
        let is_its = compare("==", target, json!(format!("@{set}")));
        vec![is("arp", "saddr ip", json!("0.0.0.0")), is("arp", "operation", json!(1)), is_its, accept()]
    };
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
    rules.extend(asks_dhcp6(answered_ipv6));
    rules.extend([
        vec![not_of(payload("arp", "saddr ether"), MACS), drop()],
        // A guest that probes whether its address is free.
        probes_for(ADDRESSES),
        probes_for(OTHERS),
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
    ]);
    rules.extend(vrrp(exceptions));
    rules.extend([
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

fn interval_set(name: &str, kind: &str, elements: Vec<Value>) -> Value {
    let mut set = set(name, kind, elements);
    set["add"]["set"]["flags"] = json!(["interval"]);
    set
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
    fn a_guest_probes_for_its_own_address_and_those_that_it_may_send_from() {
        let is_probe = compare("==", payload("arp", "saddr ip"), json!("0.0.0.0"));
        let all = rules(&[], &[], &[]);
        let probes = all.iter().filter(|rule| rule.first() == Some(&is_probe));
        let accepted: Vec<Option<&Value>> = probes.map(|rule| rule.get(2)).collect();
        let target = json!({"concat": [meta("iifname"), payload("arp", "daddr ip")]});
        let of = |set: &str| compare("==", target.clone(), json!(format!("@{set}")));
        assert_eq!(accepted, [Some(&of(ADDRESSES)), Some(&of(OTHERS))]);
    }

    #[test]
    fn further_ipv6_addresses_are_advertised_by_their_prefix_and_those_of_a_gateway_never() {
        let exception = |ranges: &[&str]| PortException {
            tap: "btt2".into(),
            ranges: ranges.iter().map(|range| range.parse().expect("a range")).collect(),
            macs: vec!["00:00:5e:00:02:0a".into()],
            gateways: vec![
                "10.77.0.1".parse().expect("an address"),
                "fd00:60::1".parse().expect("an address"),
            ],
        };
        let rules = |ranges: &[&str]| -> Vec<String> {
            let rule = |command: &Value| {
                let expressions = command["add"]["rule"]["expr"].as_array().cloned().unwrap_or_default();
                let part = |expression: &Value| match expression.get("match") {
                    Some(matched) if matched["left"].get("&").is_some() => {
                        format!(
                            "{}&{} {}",
                            matched["left"]["&"][0]["payload"]["offset"],
                            matched["left"]["&"][1],
                            matched["right"]
                        )
                    }
                    Some(matched) => {
                        let payload = &matched["left"]["payload"];
                        format!("{}+{} {}", payload["offset"], payload["len"], matched["right"])
                    }
                    None => expression.as_object().and_then(|o| o.keys().next()).cloned().unwrap_or_default(),
                };
                expressions.iter().skip(1).map(part).collect::<Vec<_>>().join(", ")
            };
            advertises(&exception(ranges)).iter().map(rule).collect()
        };
        let gateway = "64+128 \"0xfd000060000000000000000000000001\", drop";
        let of_mac = "64+128 \"0xfe8000000000000002005efffe00020a\", return";
        assert_eq!(rules(&["10.77.0.100/32"]), [gateway, of_mac], "none of IPv6");
        assert_eq!(
            rules(&["fd00:60::100/128", "fd00:61::/64", "fd00:70::/29"]),
            [
                gateway,
                of_mac,
                "64+128 \"0xfd000060000000000000000000000100\", return",
                "64+64 \"0xfd00006100000000\", return",
                "64+24 \"0xfd0000\", 88&248 112, return",
            ]
        );
        assert_eq!(rules(&["::/0"]), [gateway, of_mac], "all pass, by the absence of the last rule");
    }

    #[test]
    fn a_tap_with_further_ipv6_addresses_sends_from_them_and_by_vrrp() {
        let port = Port { tap: "btt2".into(), mac: "52:54:00:00:00:02".into(), address: None, ipv6: None };
        let exception = PortException {
            tap: "btt2".into(),
            ranges: vec!["fd00:60::100/128".parse().expect("a range")],
            macs: vec!["00:00:5e:00:02:0a".into()],
            gateways: vec!["fd00:60::1".parse().expect("an address")],
        };
        let text = |exceptions: &[PortException]| {
            Value::from(guard(std::slice::from_ref(&port), exceptions, &[], &[], (&[], &[]))).to_string()
        };
        let (with, without) = (text(&[exception]), text(&[]));
        for part in [
            r#"["btt2",{"prefix":{"addr":"fd00:60::100","len":128}}]"#,
            r#"["btt2","fe80::200:5eff:fe00:20a"]"#,
            r#""right":"fd00:60::1""#,
            r#""right":"@others6""#,
            r#""right":112"#,
        ] {
            assert!(with.contains(part), "{part}: {with}");
            assert!(!without.contains(part), "{part}: {without}");
        }
    }

    #[test]
    fn a_guest_of_an_isolated_network_never_sends_from_an_address_that_other_hosts_forward_from() {
        let exception = PortException {
            tap: "btt00000002n0".into(),
            ranges: vec!["0.0.0.0/0".parse().expect("a range")],
            macs: Vec::new(),
            gateways: Vec::new(),
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
        let ipv6 = Isolation { relays: vec!["fd00:60::9".parse().expect("an address")], ..isolated };
        assert_eq!(ends(OTHER_IPV4, std::slice::from_ref(&ipv6)), ["return", "drop"]);
        assert_eq!(
            ends(OTHER_IPV6, std::slice::from_ref(&ipv6)),
            ["drop", "drop"],
            "before what it may send"
        );
        assert_eq!(about_relays(&[ipv6]).len(), 1, "nor advertises it");
    }
}
