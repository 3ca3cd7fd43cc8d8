//! `Firewall` → nftables, as JSON for `nft -j`. Pure.
//!
//! ```text
//!  to a public address, from outside or from the host ── [`translation`] ──▶ the private one
//!  to a port of a public address that has ports ── [`balancing`] ──▶ one of its guests
//!  from a private range to anywhere else, as its network declares ── masquerade ──▶ the host's address, or unchanged, or rejected
//!  into a private network: replies, and packets to a public address or prefix; nothing else, other networks included
//!  from a private network to the host itself: DHCP, DNS and echo requests to its own gateway, replies; nothing else
//!  to the name server at a gateway: packets of its own network's guests and of the host only
//!  from a private network to link-local addresses, other hosts and the control plane: nothing, unless it is allowed
//!  IPv6: as [`ipv6`] describes
//!  in a bridged network: packets between its ports; none is routed, except for connections to public addresses by [`balancing`]
//!  from a bridge that berth made over an interface: nothing to the host itself, which has no address there
//!  from a tap: packets that pass [`ports`]
//!  between guests of an isolated network: nothing, by [`isolation`]
//!  from an observed tap: as before; [`senders`] reads the addresses
//!  to and from a filtered tap: packets that also pass [`groups`]
//!  to and from a tap, with a VLAN tag: those of its trunk, by [`trunks`]
//!  to and from a limited tap: as many as [`limits`] allow
//!  from a marked tap: with the DSCP that [`marks`] sets
//! ```
//!
//! Packets of a guest with an announced public address have that address as their source on the interface it is
//! announced on. All others have the host's address: the addresses of a `local` pool are not routed to this host from
//! outside, so replies to them would not come back.

mod balancing;
mod groups;
mod ipv6;
mod isolation;
mod limits;
mod marks;
mod name_servers;
mod ports;
pub(super) mod senders;
mod translation;
mod trunks;
mod tunnels;

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use ipnet::{Ipv4Net, Ipv6Net};
use serde_json::{Value, json};

use super::BRIDGE_PREFIX;
use crate::bridged_networks::OVER_PREFIX;
use crate::{Egress, Firewall, Forward, Ipv4Network, Nat, RoutedPrefix};
pub(super) use groups::{GroupChain, group_chains};
pub(super) use ports::link_local;

pub(super) const TABLE: &str = "berth";
/// An nftables table. berth's have the same name in each family.
#[derive(Clone, Copy, Debug)]
pub(super) struct Table {
    pub(super) family: &'static str,
    pub(super) name: &'static str,
}

const ROUTED: Table = Table { family: "inet", name: TABLE };
/// All tables that berth may create.
pub(super) const TABLES: [Table; 2] = [ROUTED, BRIDGED];
/// Filters between the ports of each bridge.
const BRIDGED: Table = Table { family: "bridge", name: TABLE };
const GATEWAYS: &str = "gateways";
const CLOSED: &str = "closed";
const ALLOWED: &str = "allowed";
/// Link-local addresses, including the metadata services of clouds: closed to guests.
const LINK_LOCAL: (Ipv4Addr, u8) = (Ipv4Addr::new(169, 254, 0, 0), 16);

impl Table {
    fn id(self) -> Value {
        json!({"table": {"family": self.family, "name": self.name}})
    }

    fn add(self) -> Value {
        json!({"add": self.id()})
    }

    fn chain(self, name: &str, kind: &str, hook: &str, priority: i32) -> Value {
        json!({"add": {"chain": {"family": self.family, "table": self.name, "name": name, "type": kind, "hook": hook,
                                 "prio": priority, "policy": "accept"}}})
    }

    fn rule(self, chain: &str, expressions: Vec<Value>) -> Value {
        json!({"add": {"rule": {"family": self.family, "table": self.name, "chain": chain, "expr": expressions}}})
    }
}

/// Returns one transaction that replaces berth's tables; `there` lists the existing ones.
/// `ipv6_closed`: prefixes to which guests' IPv6 packets are not forwarded.
pub(super) fn replace(firewall: &Firewall, ipv6_closed: &[Ipv6Net], there: &[Table]) -> Value {
    let mut commands = deletions(there);
    let mut nat = firewall.nat.clone();
    let mut forwards = firewall.forwards.clone();
    nat.sort();
    nat.dedup();
    forwards.sort();
    forwards.dedup_by_key(|f| f.public);
    commands.push(ROUTED.add());
    commands.extend(sets(&nat, &forwards, &firewall.name_servers));
    commands.extend([range_set(CLOSED, closed(firewall)), range_set(ALLOWED, firewall.allowed.clone())]);
    commands.extend(ipv6::sets(&nat, ipv6_closed));
    commands.extend(chains());
    if !firewall.exceptions.is_empty() {
        commands.extend(nat.iter().flat_map(|network| own_addresses_leave(network, &firewall.prefixes)));
    }
    commands.extend(between_ports_only(&firewall.bridged));
    commands.extend(isolation::by_the_host(&firewall.isolated));
    commands.extend(rules(&nat, &forwards, firewall));
    commands.push(BRIDGED.add());
    commands.extend(balancing::untracked(&firewall.balanced));
    commands.extend(trunks::pass(&firewall.trunks));
    let Firewall { ports, exceptions, isolated, advertised, .. } = firewall;
    let answered = (firewall.answered.as_slice(), firewall.answered_ipv6.as_slice());
    commands.extend(ports::guard(ports, exceptions, isolated, advertised, answered));
    commands.extend(name_servers::hide(&firewall.name_servers));
    commands.extend(isolation::between_ports(&firewall.isolated));
    commands.extend(groups::filter(&firewall.filters, exceptions));
    commands.extend(limits::limit(&firewall.limits));
    commands.extend(marks::mark(&firewall.marks));
    if nat.iter().any(|network| network.tunnel.is_some()) {
        commands.extend(tunnels::between(&nat));
    }
    json!({"nftables": commands})
}

/// Returns one transaction that makes of the rules of one firewall those of another, if they differ in the members of security groups
/// only. Its size depends on neither the number of rules nor that of interfaces.
pub(super) fn change_members(before: &Firewall, after: &Firewall) -> Option<Value> {
    let with_new_filters = Firewall { filters: after.filters.clone(), ..before.clone() };
    let is_rest_equal = with_new_filters == *after;
    let commands = is_rest_equal.then(|| groups::change_members(&before.filters, &after.filters))??;
    (!commands.is_empty()).then(|| json!({"nftables": commands}))
}

/// The networks with IPv4, and their bridges.
fn ipv4_networks(nat: &[Nat]) -> impl Iterator<Item = (&str, Ipv4Network)> {
    nat.iter().filter_map(|network| Some((network.bridge.as_str(), network.ipv4?)))
}

fn closed(firewall: &Firewall) -> Vec<Ipv4Net> {
    let link_local = Ipv4Net::new_assert(LINK_LOCAL.0, LINK_LOCAL.1);
    firewall.closed.iter().copied().chain([link_local]).collect()
}

/// Declares a set of ranges that do not overlap.
fn range_set(name: &str, mut ranges: Vec<Ipv4Net>) -> Value {
    ranges.sort();
    let element = |range: &Ipv4Net| json!({"prefix": {"addr": range.network(), "len": range.prefix_len()}});
    let elements: Vec<Value> = Ipv4Net::aggregate(&ranges).iter().map(element).collect();
    let mut set = json!({"family": ROUTED.family, "table": TABLE, "name": name, "type": "ipv4_addr", "flags": ["interval"]});
    if !elements.is_empty() {
        set["elem"] = elements.into();
    }
    json!({"add": {"set": set}})
}

/// Returns one transaction that removes berth's tables.
pub(super) fn remove(there: &[Table]) -> Value {
    json!({"nftables": deletions(there)})
}

/// Deleting a missing table is an error in nftables, so each table is added first, in case it has been removed since it
/// was listed.
fn deletions(there: &[Table]) -> Vec<Value> {
    there.iter().flat_map(|table| [table.add(), json!({"delete": table.id()})]).collect()
}

fn sets(nat: &[Nat], forwards: &[Forward], name_servers: &[(String, Ipv4Addr)]) -> Vec<Value> {
    let set = |name: &str, kind: Value, elements: Vec<Value>| {
        let mut set = json!({"family": ROUTED.family, "table": TABLE, "name": name, "type": kind});
        if !elements.is_empty() {
            set["elem"] = elements.into();
        }
        json!({"add": {"set": set}})
    };
    let gateways = ipv4_networks(nat).map(|(bridge, ipv4)| (bridge, ipv4.gateway));
    let all = gateways.chain(name_servers.iter().map(|(bridge, address)| (bridge.as_str(), *address)));
    let gateways = all.map(|(bridge, address)| json!({"concat": [bridge, address]})).collect();
    let mut sets = translation::maps(forwards);
    sets.push(set(GATEWAYS, json!(["ifname", "ipv4_addr"]), gateways));
    sets
}

fn chains() -> Vec<Value> {
    vec![
        ROUTED.chain("prerouting", "nat", "prerouting", -100),
        ROUTED.chain("output", "nat", "output", -100),
        ROUTED.chain("postrouting", "nat", "postrouting", 100),
        ROUTED.chain("forward", "filter", "forward", 0),
        ROUTED.chain("input", "filter", "input", 0),
        ROUTED.chain("redirects", "filter", "output", 0),
    ]
}

/// Drops what leaves a network from an address that is neither of its ranges nor of its public prefixes: a guest that may send from other
/// addresses does so within its network only. The bridge of a network without an IPv6 prefix has no IPv6.
fn own_addresses_leave(network: &Nat, prefixes: &[RoutedPrefix]) -> Vec<Value> {
    let leaving = || {
        let from_it = compare("==", meta("iifname"), json!(network.bridge));
        vec![from_it, compare("!=", meta("oifname"), json!(network.bridge))]
    };
    let of_others = match network.ipv4 {
        Some(ipv4) => {
            let range = json!({"prefix": {"addr": ipv4.range.network(), "len": ipv4.range.prefix_len()}});
            compare("!=", field("saddr"), range)
        }
        None => compare("==", meta("nfproto"), json!("ipv4")),
    };
    let mut all: Vec<Vec<Value>> = vec![leaving().into_iter().chain([of_others, drop()]).collect()];
    if let Some(ipv6) = network.ipv6 {
        all.push(leaving().into_iter().chain([ipv6::of_others(network, ipv6, prefixes), drop()]).collect());
    }
    all.into_iter().map(|expressions| rule("forward", expressions)).collect()
}

fn rules(nat: &[Nat], forwards: &[Forward], firewall: &Firewall) -> Vec<Value> {
    let Firewall { balanced, prefixes, name_servers, .. } = firewall;
    let mut rules = translation::to_private(forwards);
    rules.extend(
        tunnels::within_wireguard(nat).into_iter().map(|(chain, expressions)| rule(chain, expressions)),
    );
    rules.extend(tunnels::past_tunnels(nat).into_iter().map(|expressions| rule("forward", expressions)));
    rules.extend(tunnels::into_tunnels(nat).into_iter().map(|expressions| rule("input", expressions)));
    rules.extend(balancing::choose(balanced));
    rules.extend(balancing::sources(balanced));
    rules.extend(balancing::own_ways(balanced));
    rules.push(rule("forward", vec![answers(), accept()]));
    rules.extend(balancing::guard());
    let not_allowed = compare("!=", field("daddr"), json!(format!("@{ALLOWED}")));
    let to_closed = compare("==", field("daddr"), json!(format!("@{CLOSED}")));
    rules.push(rule("forward", vec![from_guest(), not_allowed, to_closed, drop()]));
    rules.push(rule("forward", vec![was_forwarded(), accept()]));
    rules.extend(ipv6::to_prefixes(prefixes));
    rules.push(balancing::nothing_else());
    rules.extend(balancing::refuse(balanced));
    rules.extend(ipv6::to_host(nat).into_iter().map(|expressions| rule("input", expressions)));
    rules.extend(to_host(nat, name_servers).into_iter().map(|expressions| rule("input", expressions)));
    for network in nat {
        rules.extend(ipv4_leaving(network, forwards));
        // The kernel may pass bridged packets to the firewall; packets within a network are accepted.
        let bridge = || json!(network.bridge);
        let within = vec![
            compare("==", meta("iifname"), bridge()),
            compare("==", meta("oifname"), bridge()),
            accept(),
        ];
        rules.push(rule("forward", within));
        // Without IPv4, what a guest sends from an address that its interface is allowed stays in its network.
        if network.ipv4.is_none_or(|ipv4| ipv4.egress == Egress::None) {
            let by_it = compare("==", meta("iifname"), bridge());
            let is_ipv4 = compare("==", meta("nfproto"), json!("ipv4"));
            let reject = json!({"reject": {"type": "icmp", "expr": "net-unreachable"}});
            rules.push(rule("forward", vec![by_it, is_ipv4, reject]));
        }
    }
    let has_public_ipv6 = ipv6::has_public(forwards, balanced) || !prefixes.is_empty();
    rules.extend(ipv6::from_prefixes(prefixes));
    rules.extend(ipv6::leaving(nat, forwards, has_public_ipv6));
    let into_any = compare("==", meta("oifname"), any_bridge());
    rules.push(rule("forward", vec![into_any.clone(), drop()]));
    // A guest that reaches a neighbour by its public address must not be redirected to the direct path.
    let redirect =
        compare("==", json!({"payload": {"protocol": "icmp", "field": "type"}}), json!("redirect"));
    rules.push(rule("redirects", vec![into_any, redirect, drop()]));
    rules.extend(ipv6::redirects(has_public_ipv6));
    rules.extend(balancing::redirects(balanced));
    rules
}

/// Rules of the chain `postrouting` for the IPv4 packets of a network's guests.
fn ipv4_leaving(network: &Nat, forwards: &[Forward]) -> Vec<Value> {
    let Some(Ipv4Network { range, egress, .. }) = network.ipv4 else { return Vec::new() };
    let prefix = json!({"prefix": {"addr": range.network(), "len": range.prefix_len()}});
    let masquerade = || json!({"masquerade": null});
    let from = || compare("==", field("saddr"), prefix.clone());
    let elsewhere = compare("!=", field("daddr"), prefix.clone());
    let mut rules = translation::under_their_own(translation::IPV4, range.into(), forwards);
    if egress != Egress::Routed {
        rules.push(rule("postrouting", vec![from(), elsewhere, masquerade()]));
    }
    // Without this, a neighbour reached by its public address would reply directly, from an address that the client did not
    // connect to.
    let neighbour = compare("==", field("daddr"), prefix.clone());
    rules.push(rule("postrouting", vec![from(), neighbour, was_forwarded(), masquerade()]));
    rules
}

/// The packets of bridged networks, if the kernel passes bridged packets to the firewall: those between ports are accepted. All
/// others would be routed, which a bridged network is not.
fn between_ports_only(bridged: &[String]) -> Vec<Value> {
    let mut bridged: Vec<&String> = bridged.iter().collect();
    bridged.sort();
    bridged.dedup();
    let rules = |bridge: &String| {
        let from = || compare("==", meta("iifname"), json!(bridge));
        let to = |operator: &str| compare(operator, meta("oifname"), json!(bridge));
        [vec![from(), to("=="), accept()], vec![from(), to("!="), drop()]]
    };
    bridged.into_iter().flat_map(rules).map(|expressions| rule("forward", expressions)).collect()
}

/// The packets that a guest may send to the host, to any of the host's addresses.
fn to_host(nat: &[Nat], name_servers: &[(String, Ipv4Addr)]) -> Vec<Vec<Value>> {
    let to_its_gateway = || {
        let there = json!({"concat": [meta("iifname"), field("daddr")]});
        compare("==", there, json!(format!("@{GATEWAYS}")))
    };
    let echo =
        compare("==", json!({"payload": {"protocol": "icmp", "field": "type"}}), json!("echo-request"));
    let to_all = compare("==", field("daddr"), json!(Ipv4Addr::BROADCAST));
    let allowed = compare("==", field("daddr"), json!(format!("@{ALLOWED}")));
    let mut rules = vec![
        vec![from_guest(), answers(), accept()],
        vec![from_guest(), to_all, port("udp", 67), accept()],
        vec![to_its_gateway(), port("udp", 67), accept()],
        vec![to_its_gateway(), port("udp", 53), accept()],
        vec![to_its_gateway(), port("tcp", 53), accept()],
        vec![to_its_gateway(), echo, accept()],
    ];
    let gateways = ipv4_networks(nat).map(|(_, ipv4)| ipv4.gateway);
    let gateways = gateways.chain(name_servers.iter().map(|(_, address)| *address));
    let gateways = gateways.map(IpAddr::V4).collect();
    rules.extend(close_name_servers("ip", &gateways));
    rules.extend([
        vec![from_guest(), allowed, accept()],
        vec![from_guest(), drop()],
        vec![compare("==", meta("iifname"), json!(format!("{OVER_PREFIX}*"))), drop()],
    ]);
    rules
}

/// Drops the questions to name servers at gateways that are neither of their guests, which were accepted before, nor of the host:
/// dnsmasq decides by the address that a packet is sent to, whatever interface it comes by.
fn close_name_servers(protocol: &str, gateways: &BTreeSet<IpAddr>) -> Vec<Vec<Value>> {
    if gateways.is_empty() {
        return Vec::new();
    }
    let to_one = json!({"payload": {"protocol": protocol, "field": "daddr"}});
    let to_one = compare("==", to_one, json!({"set": gateways}));
    let from_another = compare("!=", meta("iifname"), json!("lo"));
    let rule = |transport| vec![from_another.clone(), to_one.clone(), port(transport, 53), drop()];
    vec![rule("udp"), rule("tcp")]
}

fn port(protocol: &str, number: u16) -> Value {
    compare("==", json!({"payload": {"protocol": protocol, "field": "dport"}}), json!(number))
}

/// Matches any of berth's bridges by its name prefix, so that a guest is kept from the host also if its network was
/// removed or refused.
fn from_guest() -> Value {
    compare("==", meta("iifname"), any_bridge())
}

fn any_bridge() -> Value {
    json!(format!("{BRIDGE_PREFIX}*"))
}

fn was_forwarded() -> Value {
    json!({"match": {"op": "in", "left": {"ct": {"key": "status"}}, "right": "dnat"}})
}

fn answers() -> Value {
    json!({"match": {"op": "in", "left": {"ct": {"key": "state"}}, "right": ["established", "related"]}})
}

fn accept() -> Value {
    json!({"accept": null})
}

fn rule(chain: &str, expressions: Vec<Value>) -> Value {
    ROUTED.rule(chain, expressions)
}

fn drop() -> Value {
    json!({"drop": null})
}

fn compare(operator: &str, left: Value, right: Value) -> Value {
    json!({"match": {"op": operator, "left": left, "right": right}})
}

fn field(name: &str) -> Value {
    json!({"payload": {"protocol": "ip", "field": name}})
}

fn meta(key: &str) -> Value {
    json!({"meta": {"key": key}})
}

/// Removes the parts of `nft -j list table` output that differ between listings.
pub(super) fn canonical(mut listing: Value) -> Value {
    fn strip(value: &mut Value) {
        match value {
            Value::Object(map) => {
                map.remove("handle");
                if let Some(counter) = map.get_mut("counter").filter(|counter| counter.is_object()) {
                    *counter = Value::Null;
                }
                map.values_mut().for_each(strip);
            }
            Value::Array(items) => items.iter_mut().for_each(strip),
            _ => {}
        }
    }
    if let Some(items) = listing.get_mut("nftables").and_then(Value::as_array_mut) {
        items.retain(|item| item.get("metainfo").is_none());
    }
    strip(&mut listing);
    listing
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Ipv6Network, PortException};

    #[test]
    fn nothing_but_answers_comes_by_a_relay_that_was_left_without_its_network() {
        let transaction = replace(&Firewall::default(), &[], &[]);
        let commands = transaction["nftables"].as_array().cloned().unwrap_or_default();
        let rules: Vec<&Value> = commands.iter().map(|command| &command["add"]["rule"]).collect();
        let by_relay = compare("==", meta("iifname"), json!("btr-*"));
        let accepted = json!([by_relay, answers(), accept()]);
        let dropped = json!([by_relay, drop()]);
        let place = |chain: &str, expressions: &Value| {
            rules.iter().position(|rule| rule["chain"] == chain && rule["expr"] == *expressions)
        };
        assert!(place("forward", &dropped).is_some());
        assert!(place("input", &accepted).is_some_and(|at| place("input", &dropped) > Some(at)));
    }

    #[test]
    fn packets_from_further_addresses_leave_no_network_not_even_to_a_public_address() {
        let ipv4 = Ipv4Network {
            range: "10.77.0.0/24".parse().expect("a range"),
            gateway: "10.77.0.1".parse().expect("an address"),
            egress: Egress::Masquerade,
        };
        let ipv6 = Ipv6Network {
            prefix: "fd00:60::/64".parse().expect("a prefix"),
            gateway: "fd00:60::1".parse().expect("an address"),
            egress: Egress::Masquerade,
            autoconfiguration: false,
        };
        let nat = |bridge: &str, ipv4: Option<Ipv4Network>| Nat {
            bridge: bridge.to_owned(),
            ipv4,
            ipv6: Some(ipv6),
            tunnel: None,
        };
        let exception = PortException {
            tap: "btt00000005n0".to_owned(),
            ranges: vec!["::/0".parse().expect("a range")],
            macs: Vec::new(),
            gateways: Vec::new(),
        };
        let routed = RoutedPrefix {
            prefix: "2001:db8:5:0:1::/80".parse().expect("a prefix"),
            via: "fd00:60::5".parse().expect("an address"),
            bridge: "bth-00004d".to_owned(),
        };
        let firewall = Firewall {
            nat: vec![nat("bth-00004d", Some(ipv4)), nat("bth-000050", None)],
            exceptions: vec![exception],
            prefixes: vec![routed],
            ..Firewall::default()
        };
        let forwarded = |firewall: &Firewall| -> Vec<Value> {
            let transaction = replace(firewall, &[], &[]);
            let commands = transaction["nftables"].as_array().cloned().unwrap_or_default();
            let rules = commands.iter().map(|command| &command["add"]["rule"]);
            let of_chain = rules.filter(|rule| rule["chain"] == "forward" && rule["family"] == "inet");
            of_chain.map(|rule| rule["expr"].clone()).collect()
        };
        let all = forwarded(&firewall);
        let parts = |rule: &Value| {
            let right = |at: usize| rule[at]["match"]["right"].clone();
            vec![right(0), rule[2]["match"]["op"].clone(), right(2), rule[3].clone()]
        };
        let first: Vec<Vec<Value>> = all.iter().take(4).map(parts).collect();
        let prefix = |addr: &str, len: u8| json!({"prefix": {"addr": addr, "len": len}});
        let with_public = json!({"set": [prefix("2001:db8:5:0:1::", 80), prefix("fd00:60::", 64)]});
        let own = json!({"set": [prefix("fd00:60::", 64)]});
        let (one, two) = (json!("bth-00004d"), json!("bth-000050"));
        let expected = [
            vec![one.clone(), json!("!="), prefix("10.77.0.0", 24), drop()],
            vec![one, json!("!="), with_public, drop()],
            vec![two.clone(), json!("=="), json!("ipv4"), drop()],
            vec![two, json!("!="), own, drop()],
        ];
        assert_eq!(first, expected);
        let without = Firewall { exceptions: Vec::new(), ..firewall };
        assert_eq!(forwarded(&without).len(), all.len() - 4);
    }
}
