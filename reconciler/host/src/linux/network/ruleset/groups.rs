//! The packet filters of interfaces. Pure.
//!
//! ```text
//!  table inet berth, before the other rules for forwarded packets; bridged packets pass it where their bridge is tracked
//!    chain egress    the address that opened the connection ── map `egress_of` ──▶ chain of its groups, or on
//!    chain ingress   the address that accepts it            ── map `ingress_of` ─▶ chain of its groups, or on
//!    each of both    an address of a public prefix          ── a rule of it ─────▶ chain of the groups of its interface
//!    a chain of groups   jumps to the chain of each group; drops what none of them has accepted
//!    a chain of a group  one rule for each range or set of a rule
//!  table bridge berth, between ports
//!    to a filtered tap: unicast to its addresses, neighbour discovery; no broadcast, which no connection belongs to, but the answers
//!    of another DHCP server, where that gives the guest its address: then DHCP also passes both chains above
//! ```
//!
//! A packet is judged by the connection it belongs to, as it was opened and after translation: an answer passes while the rules
//! allow its connection, and a change of the rules applies to established connections with their next packet. Nothing is flushed.
//! Interfaces with the same groups share a chain, and members of a group are a set: the number of rules depends on neither the
//! number of interfaces nor that of members. A public prefix has two rules more in each direction.

mod addresses;
mod members;

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::ports::{ADDRESSES, IPV6_ADDRESSES};
use super::{BRIDGED, ROUTED, TABLE, accept, compare, drop, meta};
use crate::{FilterGroup, FilterProtocol, FilterRule, FilteredPort, Filters, PortException};
use addresses::{addresses, map};
pub(super) use members::change_members;
use members::{ipv6_member_set, member_set};

const EGRESS: Direction = Direction { chain: "egress", letter: 'e', own: "original", peer: "reply" };
const INGRESS: Direction = Direction { chain: "ingress", letter: 'i', own: "reply", peer: "original" };
/// Before the chain `forward`, whose rules accept answers.
const PRIORITY: i32 = -10;
/// Before the bridge passes a packet to the table `inet`.
const BRIDGE_PRIORITY: i32 = -200;
/// Router and neighbour solicitations, neighbour advertisements, and reports of multicast listeners. The table `bridge` has
/// checked them.
const DISCOVERY: [u8; 7] = [130, 131, 132, 133, 135, 136, 143];
/// Of IPv4. The types of answers follow those of their queries, except for this one.
const ECHO_REQUEST: u8 = 8;
const FILTERED: &str = "filtered";
const FILTERED_TAPS: &str = "filtered_taps";
const FILTERED_CHAIN: &str = "filtered";

/// One direction of connections, seen from a filtered interface.
#[derive(Clone, Copy)]
struct Direction {
    chain: &'static str,
    letter: char,
    /// The direction of packets whose source is the interface.
    own: &'static str,
    /// The direction of packets whose source is the other end.
    peer: &'static str,
}

#[derive(Clone, Copy)]
enum Family {
    V4,
    V6,
}

impl Family {
    const ALL: [Self; 2] = [Self::V4, Self::V6];

    fn kind(self) -> &'static str {
        match self {
            Self::V4 => "ipv4_addr",
            Self::V6 => "ipv6_addr",
        }
    }

    fn protocol(self) -> &'static str {
        match self {
            Self::V4 => "ip",
            Self::V6 => "ip6",
        }
    }

    /// The name of a set or map of this family.
    fn named(self, name: &str) -> String {
        match self {
            Self::V4 => name.to_owned(),
            Self::V6 => format!("{name}6"),
        }
    }
}

/// The sets, chains and rules of both tables, for empty tables. Nothing without filtered ports. `exceptions`: those of the ports, whose guests
/// also have the link-local addresses of their further MAC addresses.
pub(super) fn filter(filters: &Filters, exceptions: &[PortException]) -> Vec<Value> {
    if filters.ports.is_empty() {
        return Vec::new();
    }
    let mut commands: Vec<Value> =
        filters.sets.iter().map(|(name, ranges)| member_set(name, ranges)).collect();
    commands.extend(filters.ipv6_sets.iter().map(|(name, ranges)| ipv6_member_set(name, ranges)));
    let known: BTreeMap<&str, &FilterGroup> = filters.groups.iter().map(|g| (g.name.as_str(), g)).collect();
    let by_family = Family::ALL.map(|family| (family, addresses(filters, exceptions, family)));
    let of_addresses = by_family.iter().flat_map(|(_, addresses)| addresses.values().cloned());
    let profiles: BTreeSet<BTreeSet<&str>> =
        filters.ports.iter().map(|port| groups_of(&port.groups)).chain(of_addresses).collect();
    for direction in [EGRESS, INGRESS] {
        for group in known.values() {
            commands.extend(group_chain(group, direction, filters));
        }
        for profile in &profiles {
            commands.extend(profile_chain(profile, &known, direction));
        }
    }
    for (family, addresses) in &by_family {
        let own = addresses.keys().map(|address| json!(address)).collect();
        commands.push(set(&family.named(FILTERED), family.kind(), own));
        for direction in [EGRESS, INGRESS] {
            commands.push(map(addresses, *family, direction));
        }
    }
    let dhcp = with_dhcp_servers(filters);
    for (direction, priority) in [(EGRESS, PRIORITY), (INGRESS, PRIORITY + 1)] {
        commands.push(ROUTED.chain(direction.chain, "filter", "forward", priority));
        commands.extend(dhcp.iter().map(|rule| ROUTED.rule(direction.chain, rule.clone())));
        commands.extend(
            base_rules(direction, filters).into_iter().map(|rule| ROUTED.rule(direction.chain, rule)),
        );
    }
    commands.extend(between_ports(filters));
    commands
}

/// A chain with rules of groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct GroupChain {
    pub(in super::super) is_egress: bool,
    /// The one group whose rules it has, or all of an interface.
    pub(in super::super) groups: Vec<String>,
    /// Whether it is the chain of interfaces, which jumps to those of their groups.
    pub(in super::super) is_of_interfaces: bool,
}

/// Returns the chains with rules of groups, by name.
pub(in super::super) fn group_chains(filters: &Filters) -> BTreeMap<String, GroupChain> {
    let mut chains = BTreeMap::new();
    for direction in [EGRESS, INGRESS] {
        let is_egress = direction.chain == EGRESS.chain;
        for group in &filters.groups {
            let name = name_of("group_", direction.letter, &group.name);
            let groups = vec![group.name.clone()];
            chains.insert(name, GroupChain { is_egress, groups, is_of_interfaces: false });
        }
        for port in &filters.ports {
            let profile = groups_of(&port.groups);
            let groups = profile.iter().map(|name| (*name).to_owned()).collect();
            let name = profile_name(&profile, direction);
            chains.insert(name, GroupChain { is_egress, groups, is_of_interfaces: true });
        }
    }
    chains
}

/// The rules of the chain in which every forwarded packet begins.
fn base_rules(direction: Direction, filters: &Filters) -> Vec<Vec<Value>> {
    let side = if direction.chain == EGRESS.chain { "saddr" } else { "daddr" };
    let types = json!({"set": DISCOVERY});
    let icmp_type = json!({"payload": {"protocol": "icmpv6", "field": "type"}});
    let any_icmp = json!({"set": ["icmp", "ipv6-icmp"]});
    let mut rules = vec![vec![compare("==", icmp_type, types), accept()]];
    for family in Family::ALL {
        // Such a packet belongs to no connection, so that no rule below would match it.
        let address = json!({"payload": {"protocol": family.protocol(), "field": side}});
        let filtered = compare("==", address, json!(format!("@{}", family.named(FILTERED))));
        rules.push(vec![filtered, in_state(&["invalid", "untracked"]), drop()]);
    }
    for (prefix, _) in prefixes(filters) {
        let address = json!({"payload": {"protocol": "ip6", "field": side}});
        rules.push(vec![compare("==", address, prefix), in_state(&["invalid", "untracked"]), drop()]);
    }
    // An error about a connection has another protocol than the connection itself.
    rules.push(vec![compare("==", meta("l4proto"), any_icmp), in_state(&["related"]), accept()]);
    for family in Family::ALL {
        let map = format!("@{}", family.named(&format!("{}_of", direction.chain)));
        rules.push(vec![json!({"vmap": {"key": source(family, direction.own), "data": map}})]);
    }
    for (prefix, profile) in prefixes(filters) {
        let its = compare("==", source(Family::V6, direction.own), json!({"set": [prefix]}));
        rules.push(vec![its, json!({"goto": {"target": profile_name(&profile, direction)}})]);
    }
    rules
}

/// The public prefixes of the filtered ports, and the groups of each port.
fn prefixes(filters: &Filters) -> Vec<(Value, BTreeSet<&str>)> {
    let of_port = |filtered: &FilteredPort| {
        let prefix =
            |range: &Ipv6Net| json!({"prefix": {"addr": range.network(), "len": range.prefix_len()}});
        filtered.prefixes.iter().map(prefix).collect::<Vec<_>>()
    };
    let ports = filters.ports.iter();
    ports.flat_map(|f| of_port(f).into_iter().map(|prefix| (prefix, groups_of(&f.groups)))).collect()
}

/// Accepts the messages between guests with a lease and their DHCP servers, by which they keep it.
fn with_dhcp_servers(filters: &Filters) -> Vec<Vec<Value>> {
    let asking = filters.ports.iter().filter(|filtered| filtered.asks_dhcp);
    let leases: BTreeSet<Ipv4Addr> = asking.filter_map(|filtered| filtered.port.address).collect();
    if leases.is_empty() {
        return Vec::new();
    }
    let is = |protocol: &str, field: &str, value: Value| {
        compare("==", json!({"payload": {"protocol": protocol, "field": field}}), value)
    };
    let message = |side: &str, from: u16, to: u16| {
        let own = is("ip", side, json!({"set": leases}));
        vec![own, is("udp", "sport", json!(from)), is("udp", "dport", json!(to)), accept()]
    };
    vec![message("saddr", 68, 67), message("daddr", 67, 68)]
}

fn in_state(states: &[&str]) -> Value {
    json!({"match": {"op": "in", "left": {"ct": {"key": "state"}}, "right": states}})
}

/// The source address of packets in this direction of a connection.
fn source(family: Family, direction: &str) -> Value {
    json!({"ct": {"key": format!("{} saddr", family.protocol()), "dir": direction}})
}

fn groups_of(groups: &[String]) -> BTreeSet<&str> {
    groups.iter().map(String::as_str).collect()
}

/// A name for nftables, which allows fewer characters than names of groups have.
fn name_of(prefix: &str, letter: char, text: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    let hex: String = digest.iter().take(10).map(|byte| format!("{byte:02x}")).collect();
    format!("{prefix}{letter}_{hex}")
}

fn profile_name(profile: &BTreeSet<&str>, direction: Direction) -> String {
    let joined: Vec<&str> = profile.iter().copied().collect();
    name_of("groups_", direction.letter, &joined.join(" "))
}

fn set_name(name: &str) -> String {
    name_of("members_", 'g', name)
}

fn profile_chain(
    profile: &BTreeSet<&str>,
    known: &BTreeMap<&str, &FilterGroup>,
    direction: Direction,
) -> Vec<Value> {
    let chain = profile_name(profile, direction);
    let jump = |group: &&str| {
        known.contains_key(group).then(|| {
            let target = name_of("group_", direction.letter, group);
            ROUTED.rule(&chain, vec![json!({"jump": {"target": target}})])
        })
    };
    let mut commands = vec![plain_chain(&chain)];
    commands.extend(profile.iter().filter_map(jump));
    commands.push(ROUTED.rule(&chain, vec![json!({"counter": {"packets": 0, "bytes": 0}}), drop()]));
    commands
}

fn group_chain(group: &FilterGroup, direction: Direction, filters: &Filters) -> Vec<Value> {
    let chain = name_of("group_", direction.letter, &group.name);
    let rules =
        if direction.chain == EGRESS.chain { group.egress.as_deref() } else { Some(&group.ingress[..]) };
    let mut commands = vec![plain_chain(&chain)];
    let Some(rules) = rules else {
        commands.push(ROUTED.rule(&chain, vec![accept()]));
        return commands;
    };
    for rule in rules {
        let conditions = peers(rule, direction, filters).into_iter();
        commands.extend(conditions.map(|peer| {
            let expressions: Vec<Value> = transport(rule).into_iter().chain(peer).chain([accept()]).collect();
            let mut command = ROUTED.rule(&chain, expressions);
            command["add"]["rule"]["comment"] = comment(group, rule, direction).into();
            command
        }));
    }
    commands
}

/// Shown with the rule by `nft list`, at most 128 bytes.
fn comment(group: &FilterGroup, rule: &FilterRule, direction: Direction) -> String {
    format!("{} {} {}", group.name, direction.chain, rule.name).chars().take(120).collect()
}

/// The type of the answer to a query of ICMP or ICMPv6.
fn answer_to(query: u8) -> u8 {
    if query == ECHO_REQUEST { 0 } else { query.saturating_add(1) }
}

/// The conditions on protocol, and port or type.
fn transport(rule: &FilterRule) -> Vec<Value> {
    let protocol = match rule.protocol {
        FilterProtocol::Any => return Vec::new(),
        FilterProtocol::Tcp => "tcp",
        FilterProtocol::Udp => "udp",
        FilterProtocol::Icmp => "icmp",
        FilterProtocol::Icmpv6 => "ipv6-icmp",
    };
    let mut conditions = vec![compare("==", meta("l4proto"), json!(protocol))];
    if !rule.ports.is_empty() && matches!(rule.protocol, FilterProtocol::Tcp | FilterProtocol::Udp) {
        let element = |(first, last): (u16, u16)| match first == last {
            true => json!(first),
            false => json!({"range": [first, last]}),
        };
        let ports: Vec<Value> =
            joined(&rule.ports, |port| port.checked_add(1)).into_iter().map(element).collect();
        // The port that accepts the connection, after translation.
        let port = json!({"ct": {"key": "proto-src", "dir": "reply"}});
        conditions.push(compare("==", port, json!({"set": ports})));
    }
    let of_icmp = match rule.protocol {
        FilterProtocol::Icmp => Some("icmp"),
        FilterProtocol::Icmpv6 => Some("icmpv6"),
        _ => None,
    };
    if let Some(protocol) = of_icmp.filter(|_| !rule.icmp_types.is_empty()) {
        // An answer opens no connection: the kernel tracks one that nothing has asked for as invalid.
        let types: BTreeSet<u8> =
            rule.icmp_types.iter().flat_map(|query| [*query, answer_to(*query)]).collect();
        let own = json!({"payload": {"protocol": protocol, "field": "type"}});
        conditions.push(compare("==", own, json!({"set": types})));
    }
    conditions
}

/// The conditions on the other end's address, one list for each rule of nftables.
fn peers(rule: &FilterRule, direction: Direction, filters: &Filters) -> Vec<Vec<Value>> {
    let of = |range: &IpNet| match range {
        IpNet::V4(range) => (Some(*range), None),
        IpNet::V6(range) => (None, Some(*range)),
    };
    let (v4, v6): (Vec<_>, Vec<_>) = rule.ranges.iter().map(of).unzip();
    let v4 = Ipv4Net::aggregate(&v4.into_iter().flatten().collect::<Vec<_>>());
    let v6 = Ipv6Net::aggregate(&v6.into_iter().flatten().collect::<Vec<_>>());
    let v4 = v4.into_iter().map(|range| (range.network().to_string(), range.prefix_len()));
    let v6 = v6.into_iter().map(|range| (range.network().to_string(), range.prefix_len()));
    let mut peers = Vec::new();
    for (family, ranges) in [(Family::V4, v4.collect::<Vec<_>>()), (Family::V6, v6.collect())] {
        if ranges.iter().any(|(_, length)| *length == 0) {
            let protocol = if matches!(family, Family::V4) { "ipv4" } else { "ipv6" };
            peers.push(vec![compare("==", meta("nfproto"), json!(protocol))]);
        } else if !ranges.is_empty() {
            let element =
                |(address, length): &(String, u8)| json!({"prefix": {"addr": address, "len": length}});
            let elements: Vec<Value> = ranges.iter().map(element).collect();
            peers.push(vec![compare("==", source(family, direction.peer), json!({"set": elements}))]);
        }
    }
    let sets = rule.sets.iter().filter(|name| filters.sets.contains_key(*name));
    peers.extend(sets.map(|name| {
        let set = format!("@{}", set_name(name));
        vec![compare("==", source(Family::V4, direction.peer), json!(set))]
    }));
    let sets = rule.sets.iter().filter(|name| filters.ipv6_sets.contains_key(*name));
    peers.extend(sets.map(|name| {
        let set = format!("@{}", Family::V6.named(&set_name(name)));
        vec![compare("==", source(Family::V6, direction.peer), json!(set))]
    }));
    peers
}

/// Sorts ranges and joins those that overlap or touch: nftables refuses sets with overlapping ranges.
fn joined<T: Copy + Ord>(ranges: &[(T, T)], next: impl Fn(T) -> Option<T>) -> Vec<(T, T)> {
    let mut sorted = ranges.to_vec();
    sorted.sort();
    let mut joined: Vec<(T, T)> = Vec::new();
    for (first, last) in sorted {
        match joined.last_mut() {
            Some((_, end)) if next(*end).is_none_or(|next| first <= next) => *end = last.max(*end),
            _ => joined.push((first, last)),
        }
    }
    joined
}

/// The rules for frames from one port of a bridge to a filtered tap.
fn between_ports(filters: &Filters) -> Vec<Value> {
    let taps: Vec<Value> = filters.ports.iter().map(|filtered| json!(filtered.port.tap)).collect();
    let taps = json!({"family": BRIDGED.family, "table": TABLE, "name": FILTERED_TAPS, "type": "ifname", "elem": taps});
    let to_filtered = || compare("==", meta("oifname"), json!(format!("@{FILTERED_TAPS}")));
    let is = |protocol: &str, field: &str, value: Value| {
        compare("==", json!({"payload": {"protocol": protocol, "field": field}}), value)
    };
    let not_its = |protocol: &str, set: &str| {
        let address = json!({"payload": {"protocol": protocol, "field": "daddr"}});
        compare("!=", json!({"concat": [meta("oifname"), address]}), json!(format!("@{set}")))
    };
    let asking = filters.ports.iter().filter(|filtered| filtered.asks_dhcp);
    let asking: BTreeSet<&str> = asking.map(|filtered| filtered.port.tap.as_str()).collect();
    let answer = (!asking.is_empty()).then(|| {
        let to_one = compare("==", meta("oifname"), json!({"set": asking}));
        vec![
            to_one,
            is("ether", "type", json!("ip")),
            is("udp", "sport", json!(67)),
            is("udp", "dport", json!(68)),
            accept(),
        ]
    });
    let rules = [
        vec![to_filtered(), is("ether", "type", json!("ip")), not_its("ip", ADDRESSES), drop()],
        vec![to_filtered(), is("icmpv6", "type", json!({"set": DISCOVERY})), accept()],
        vec![to_filtered(), is("ether", "type", json!("ip6")), not_its("ip6", IPV6_ADDRESSES), drop()],
    ];
    let mut commands = vec![
        json!({"add": {"set": taps}}),
        BRIDGED.chain(FILTERED_CHAIN, "filter", "forward", BRIDGE_PRIORITY),
    ];
    commands.extend(answer.into_iter().chain(rules).map(|rule| BRIDGED.rule(FILTERED_CHAIN, rule)));
    commands
}

fn set(name: &str, kind: &str, elements: Vec<Value>) -> Value {
    let mut set = json!({"family": ROUTED.family, "table": TABLE, "name": name, "type": kind});
    if !elements.is_empty() {
        set["elem"] = elements.into();
    }
    json!({"add": {"set": set}})
}

fn plain_chain(name: &str) -> Value {
    json!({"add": {"chain": {"family": ROUTED.family, "table": TABLE, "name": name}}})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Port;

    fn rules_of(filters: &Filters) -> usize {
        filter(filters, &[]).iter().filter(|command| command["add"].get("rule").is_some()).count()
    }

    fn group(rules: usize) -> FilterGroup {
        let rule = |n: usize| FilterRule {
            name: format!("rule{n}"),
            protocol: FilterProtocol::Tcp,
            ports: vec![(80, 80)],
            icmp_types: Vec::new(),
            ranges: vec!["192.0.2.0/24".parse().expect("a range")],
            sets: vec!["ns/web".into()],
        };
        FilterGroup { name: "ns/web".into(), ingress: (0..rules).map(rule).collect(), egress: None }
    }

    fn filters(ports: u32, rules: usize) -> Filters {
        let port = |n: u32| FilteredPort {
            port: Port {
                tap: format!("btt{n:08x}n0"),
                mac: format!("52:54:00:00:{:02x}:{:02x}", n >> 8 & 0xff, n & 0xff),
                address: Some(Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 0, 0, 2)) + n)),
                ipv6: None,
            },
            groups: vec!["ns/web".into()],
            asks_dhcp: false,
            prefixes: Vec::new(),
        };
        let last = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 0, 0, 2)) + ports);
        Filters {
            ports: (0..ports).map(port).collect(),
            groups: vec![group(rules)],
            sets: [("ns/web".into(), vec![(Ipv4Addr::new(10, 0, 0, 2), last)])].into(),
            ipv6_sets: BTreeMap::new(),
        }
    }

    #[test]
    fn the_number_of_rules_does_not_depend_on_interfaces_or_members() {
        let few = rules_of(&filters(1, 100));
        assert_eq!(few, rules_of(&filters(1000, 100)));
        assert!(few > 200, "two for each rule: its range and its set");
    }

    #[test]
    fn dhcp_passes_only_for_guests_whose_address_another_server_gives_out() {
        let accepted = |change: fn(&mut FilteredPort)| {
            let mut filters = filters(2, 1);
            change(&mut filters.ports[0]);
            let commands = filter(&filters, &[]);
            let rules = commands.iter().map(|command| &command["add"]["rule"]);
            let is_dhcp = |rule: &&Value| rule["expr"].to_string().contains("sport");
            let chains = rules.filter(is_dhcp).filter_map(|rule| rule["chain"].as_str().map(str::to_owned));
            chains.collect::<Vec<_>>()
        };
        assert_eq!(accepted(|_| {}), [""; 0]);
        let leased = accepted(|port| port.asks_dhcp = true);
        assert_eq!(leased, ["egress", "egress", "ingress", "ingress", FILTERED_CHAIN]);
        let waiting = accepted(|port| {
            port.asks_dhcp = true;
            port.port.address = None;
        });
        assert_eq!(waiting, [FILTERED_CHAIN], "its first address comes by a broadcast or to the address");
    }

    #[test]
    fn without_filtered_interfaces_there_is_nothing() {
        assert!(filter(&Filters { ports: Vec::new(), ..filters(0, 3) }, &[]).is_empty());
    }

    #[test]
    fn a_rule_with_types_has_those_of_the_answers_too() {
        let types = |protocol, icmp_types: &[u8]| {
            let rule = FilterRule { protocol, icmp_types: icmp_types.to_vec(), ..FilterRule::default() };
            transport(&rule).get(1).map(|condition| condition["match"]["right"]["set"].clone())
        };
        assert_eq!(types(FilterProtocol::Icmp, &[8, 13]), Some(json!([0, 8, 13, 14])));
        assert_eq!(types(FilterProtocol::Icmpv6, &[128]), Some(json!([128, 129])));
        assert_eq!(types(FilterProtocol::Icmp, &[]), None);
        assert_eq!(types(FilterProtocol::Udp, &[8]), None);
    }

    #[test]
    fn ranges_that_overlap_or_touch_are_joined() {
        let next = |port: u16| port.checked_add(1);
        assert_eq!(joined(&[(80, 90), (85, 86), (91, 95), (1, 1)], next), [(1, 1), (80, 95)]);
        assert_eq!(joined(&[(65_535, 65_535), (65_535, 65_535)], next), [(65_535, 65_535)]);
    }

    #[test]
    fn an_unknown_group_allows_nothing_and_a_rule_without_addresses_neither() {
        let mut filters = filters(1, 0);
        filters.groups[0].ingress = vec![FilterRule::default()];
        filters.groups[0].egress = Some(Vec::new());
        filters.ports[0].groups.push("ns/unknown".into());
        let accepts = |command: &&Value| {
            let rule = &command["add"]["rule"];
            let chain = rule["chain"].as_str().unwrap_or_default();
            chain.starts_with("group") && rule["expr"].to_string().contains("accept")
        };
        assert_eq!(filter(&filters, &[]).iter().filter(accepts).count(), 0);
    }
}
