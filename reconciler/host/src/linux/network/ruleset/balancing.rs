//! The firewall rules for ports of public addresses. Pure.
//!
//! ```text
//!  table inet berth   to a port of such an address, from outside or from the host: the next guest of the list, or the one that
//!                     the client's address selects; an established connection stays with its guest
//!                     to all else at the address: refused, except echo requests and neighbour discovery
//!                     to a guest on another host, or on a bridged network on which the host has no address of its own: by the interface
//!                     `btr-…`, with an address of the network as the source
//!                     by such an interface come answers, and neighbour discovery of IPv6, only
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::super::TAP_PREFIX;
use super::super::bridged::INNER_PREFIX;
use super::super::relay::{self, OUTER_PREFIX, relay_link};
use super::ports::{NEIGHBOUR_ADVERTISEMENT, NEIGHBOUR_SOLICITATION, REDIRECT};
use super::{BRIDGED, accept, answers, compare, drop, meta, rule};
use crate::{Balanced, BalancedPort, PortProtocol};

/// The number of parts that clients' addresses are divided into. A guest that comes or goes moves its share of them only.
const PARTS: u32 = 256;

const BY_LAN: &str = "by_lan";
/// Before the kernel tracks a frame.
const BY_LAN_PRIORITY: i32 = -300;

impl PortProtocol {
    const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }
}

/// Rules of the chains `prerouting` and `output`: choose a guest for each new connection.
pub(super) fn choose(balanced: &[Balanced]) -> Vec<Value> {
    let mut rules = Vec::new();
    for address in balanced {
        for port in address.ports.iter().filter(|port| !port.targets.is_empty()) {
            let to_it = || vec![to(address.public), destination(port)];
            let family = family(address.public);
            let choice =
                json!({"dnat": {"family": family, "addr": target(port, family), "port": port.target_port}});
            for chain in ["prerouting", "output"] {
                rules.push(rule(chain, to_it().into_iter().chain([choice.clone()]).collect()));
            }
        }
    }
    rules
}

/// The name of the protocol that an address is of.
const fn family(public: IpAddr) -> &'static str {
    if public.is_ipv4() { "ip" } else { "ip6" }
}

fn target(port: &BalancedPort, family: &str) -> Value {
    if let [target] = port.targets[..] {
        return json!(target);
    }
    let (key, parts) = if port.by_client {
        let key = json!({"jhash": {"mod": PARTS, "offset": 0, "seed": 1, "expr": field(family, "saddr")}});
        (key, (0..PARTS).map(|part| target_of(part, &port.targets)).collect())
    } else {
        let key = json!({"numgen": {"mode": "inc", "mod": port.targets.len(), "offset": 0}});
        (key, port.targets.clone())
    };
    let elements: Vec<Value> = parts.iter().enumerate().map(|(part, target)| json!([part, target])).collect();
    json!({"map": {"key": key, "data": {"set": elements}}})
}

/// Returns the guest with the highest hash for a part (rendezvous hashing).
fn target_of(part: u32, targets: &[IpAddr]) -> IpAddr {
    let weight = |target: &IpAddr| Sha256::digest(format!("{part} {target}"));
    targets.iter().copied().max_by_key(weight).unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED))
}

/// Rules of the chain `input`: refuse what no guest gets.
pub(super) fn refuse(balanced: &[Balanced]) -> Vec<Value> {
    let mut rules = Vec::new();
    for address in balanced {
        let to_it = || to(address.public);
        let icmp = if address.public.is_ipv4() { "icmp" } else { "icmpv6" };
        let echo = compare("==", field(icmp, "type"), json!("echo-request"));
        let is_tcp = compare("==", meta("l4proto"), json!("tcp"));
        rules.push(rule("input", vec![to_it(), answers(), accept()]));
        rules.push(rule("input", vec![to_it(), echo, accept()]));
        if address.public.is_ipv6() {
            // Neighbours ask the address itself whether it is still there.
            let discovery = json!({"set": [NEIGHBOUR_SOLICITATION, NEIGHBOUR_ADVERTISEMENT]});
            let is_discovery = compare("==", field(icmp, "type"), discovery);
            rules.push(rule("input", vec![to_it(), is_discovery, accept()]));
        }
        rules.push(rule("input", vec![to_it(), is_tcp, json!({"reject": {"type": "tcp reset"}})]));
        let unreachable = json!({"reject": {"type": icmp, "expr": "port-unreachable"}});
        rules.push(rule("input", vec![to_it(), unreachable]));
    }
    rules
}

/// Rules of the chain `postrouting`: connections by a relay come from an address that is this host's alone, and those by a bridge of the host
/// from its address there.
pub(super) fn sources(balanced: &[Balanced]) -> Vec<Value> {
    let mut rules = Vec::new();
    for address in balanced {
        for (bridge, source) in &address.sources {
            let by_it = compare("==", meta("oifname"), json!(relay_link(bridge)));
            let from = json!({"snat": {"family": family(address.public), "addr": source}});
            rules.push(rule("postrouting", vec![by_it, originally_to(address.public), from]));
        }
        for (bridge, target) in address.by_lan.iter().filter(|(link, _)| !link.starts_with(OUTER_PREFIX)) {
            let by_it = compare("==", meta("oifname"), json!(bridge));
            let to_it = compare("==", field(family(*target), "daddr"), json!(target));
            let masquerade = json!({"masquerade": null});
            rules.push(rule("postrouting", vec![by_it, to_it, originally_to(address.public), masquerade]));
        }
    }
    rules
}

/// Rules of the chain `redirects`: a client of a bridged network is not sent to the guest itself, which does not know the public address.
pub(super) fn redirects(balanced: &[Balanced]) -> Vec<Value> {
    let all = balanced.iter().flat_map(|address| &address.by_lan);
    let bridges: BTreeSet<(&String, bool)> = all.map(|(bridge, target)| (bridge, target.is_ipv6())).collect();
    let rule = |(bridge, is_ipv6): (&String, bool)| {
        let redirect = match is_ipv6 {
            false => compare("==", field("icmp", "type"), json!("redirect")),
            true => compare("==", field("icmpv6", "type"), json!(REDIRECT)),
        };
        rule("redirects", vec![compare("==", meta("oifname"), json!(bridge)), redirect, drop()])
    };
    bridges.into_iter().map(rule).collect()
}

/// The chain that leaves connections to guests of bridged networks untracked between the ports of berth's bridges: the host has
/// translated its own ones, and a kernel that tracks bridged packets would take them for others and drop them. Such guests have no
/// filters. On the host's bridge they stay tracked: a frame that is untracked there remains so when the host itself receives it, and
/// the host would not recognize an answer to a connection that it has translated.
pub(super) fn untracked(balanced: &[Balanced]) -> Vec<Value> {
    let mut rules: BTreeSet<(IpAddr, &str, u16)> = BTreeSet::new();
    for address in balanced {
        let by_lan = |target: &&IpAddr| address.by_lan.iter().any(|(_, of)| of == *target);
        for port in &address.ports {
            let targets = port.targets.iter().filter(by_lan);
            rules.extend(targets.map(|target| (*target, port.protocol.name(), port.target_port)));
        }
    }
    if rules.is_empty() {
        return Vec::new();
    }
    let by_others = [TAP_PREFIX, INNER_PREFIX, relay::INNER_PREFIX]
        .map(|prefix| compare("!=", meta("iifname"), json!(format!("{prefix}*"))));
    let mut commands = vec![
        BRIDGED.chain(BY_LAN, "filter", "prerouting", BY_LAN_PRIORITY),
        BRIDGED.rule(BY_LAN, by_others.into_iter().chain([accept()]).collect()),
    ];
    for (target, protocol, port) in rules {
        for (place, number) in [("daddr", "dport"), ("saddr", "sport")] {
            let machine = compare("==", field(family(target), place), json!(target));
            let port = compare("==", field(protocol, number), json!(port));
            commands.push(BRIDGED.rule(BY_LAN, vec![machine, port, json!({"notrack": null})]));
        }
    }
    commands
}

/// Rules of the chain `forward`, before those that accept answers. By a relay leave connections to the public addresses that have it only:
/// its routes to single guests come before the range of another network that has the same addresses. And connections to guests of bridged
/// networks leave by their link only: while it is not there, another network may have the range of theirs.
pub(super) fn own_ways(balanced: &[Balanced]) -> Vec<Value> {
    let mut by_relay: BTreeMap<(String, &str), BTreeSet<IpAddr>> = BTreeMap::new();
    for address in balanced {
        for (bridge, _) in &address.sources {
            by_relay.entry((relay_link(bridge), family(address.public))).or_default().insert(address.public);
        }
    }
    let others = |((link, family), public): (&(String, &str), &BTreeSet<IpAddr>)| {
        let by_it = compare("==", meta("oifname"), json!(link));
        let to_another = compare("!=", original(family), json!({"set": public}));
        rule("forward", vec![by_it, to_another, drop()])
    };
    let mut rules: Vec<Value> = by_relay.iter().map(others).collect();
    for address in balanced {
        for (link, target) in &address.by_lan {
            let by_another = compare("!=", meta("oifname"), json!(link));
            let to_it = compare("==", field(family(*target), "daddr"), json!(target));
            rules.push(rule("forward", vec![by_another, to_it, originally_to(address.public), drop()]));
        }
    }
    rules
}

/// Rules of the chains `forward` and `input`, after those that accept answers: nothing else comes by a relay, also if its network is
/// refused and therefore left as it is. Neighbour discovery belongs to no connection.
pub(super) fn guard() -> Vec<Value> {
    let by_one = || compare("==", meta("iifname"), any_relay());
    let discovery = json!({"set": [NEIGHBOUR_SOLICITATION, NEIGHBOUR_ADVERTISEMENT]});
    let is_discovery = compare("==", field("icmpv6", "type"), discovery);
    vec![
        rule("forward", vec![by_one(), drop()]),
        rule("input", vec![by_one(), answers(), accept()]),
        rule("input", vec![by_one(), is_discovery, accept()]),
        rule("input", vec![by_one(), drop()]),
    ]
}

/// The rule of the chain `forward`, after those that accept connections to public addresses: nothing else leaves by a relay.
pub(super) fn nothing_else() -> Value {
    rule("forward", vec![compare("==", meta("oifname"), any_relay()), drop()])
}

fn any_relay() -> Value {
    json!(format!("{OUTER_PREFIX}*"))
}

fn to(public: IpAddr) -> Value {
    compare("==", field(family(public), "daddr"), json!(public))
}

/// Matches packets of connections that were made to this address.
fn originally_to(public: IpAddr) -> Value {
    compare("==", original(family(public)), json!(public))
}

/// The address that a connection was made to.
fn original(family: &str) -> Value {
    json!({"ct": {"key": format!("{family} daddr"), "dir": "original"}})
}

fn field(protocol: &str, name: &str) -> Value {
    json!({"payload": {"protocol": protocol, "field": name}})
}

fn destination(port: &BalancedPort) -> Value {
    let field = json!({"payload": {"protocol": port.protocol.name(), "field": "dport"}});
    compare("==", field, json!(port.port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(targets: &[&str], by_client: bool) -> BalancedPort {
        let targets = targets.iter().map(|target| target.parse().expect("an address")).collect();
        BalancedPort { protocol: PortProtocol::Tcp, port: 443, by_client, targets, target_port: 8443 }
    }

    fn balanced(port: BalancedPort) -> Vec<Balanced> {
        let public = "198.51.100.7".parse().expect("an address");
        let source = "10.77.0.9".parse().expect("an address");
        vec![Balanced {
            public,
            announced_on: None,
            ports: vec![port],
            sources: vec![("bth-00004d".into(), source)],
            by_lan: Vec::new(),
        }]
    }

    #[test]
    fn new_connections_go_to_the_guests_in_turn() {
        let rules = choose(&balanced(port(&["10.77.0.2", "10.77.0.3"], false)));
        let chains: Vec<_> = rules.iter().map(|rule| rule["add"]["rule"]["chain"].clone()).collect();
        assert_eq!(chains, ["prerouting", "output"]);
        let [to, port, choice] = rules[0]["add"]["rule"]["expr"].as_array().expect("a list").as_slice()
        else {
            panic!("{rules:?}")
        };
        assert_eq!((&to["match"]["right"], &port["match"]["right"]), (&json!("198.51.100.7"), &json!(443)));
        let data = json!({"set": [[0, "10.77.0.2"], [1, "10.77.0.3"]]});
        let key = json!({"numgen": {"mode": "inc", "mod": 2, "offset": 0}});
        assert_eq!(choice["dnat"]["addr"], json!({"map": {"key": key, "data": data}}));
        assert_eq!(choice["dnat"]["port"], 8443);
    }

    #[test]
    fn one_guest_needs_no_choice_and_none_is_a_refusal() {
        let rules = choose(&balanced(port(&["10.77.0.2"], true)));
        assert_eq!(rules[0]["add"]["rule"]["expr"][2]["dnat"]["addr"], "10.77.0.2");
        assert!(choose(&balanced(port(&[], false))).is_empty());
        let refused = refuse(&balanced(port(&[], false)));
        assert_eq!(refused[2]["add"]["rule"]["expr"][2]["reject"]["type"], "tcp reset");
    }

    #[test]
    fn ports_of_an_ipv6_address_lead_to_ipv6_addresses_and_neighbours_still_find_it() {
        let public = "2001:db8::7".parse().expect("an address");
        let ports = vec![port(&["fd00:60::2", "fd00:60::3"], true)];
        let balanced =
            [Balanced { public, announced_on: None, ports, sources: Vec::new(), by_lan: Vec::new() }];
        let rules = choose(&balanced);
        let choice = &rules[0]["add"]["rule"]["expr"];
        let to = json!({"payload": {"protocol": "ip6", "field": "daddr"}});
        assert_eq!((&choice[0]["match"]["left"], &choice[0]["match"]["right"]), (&to, &json!("2001:db8::7")));
        assert_eq!(choice[2]["dnat"]["family"], "ip6");
        assert_eq!(choice[2]["dnat"]["addr"]["map"]["key"]["jhash"]["expr"]["payload"]["protocol"], "ip6");
        let refused = refuse(&balanced);
        let expressions: Vec<&Value> = refused.iter().map(|rule| &rule["add"]["rule"]["expr"]).collect();
        assert_eq!(expressions[2][1]["match"]["right"], json!({"set": [135, 136]}));
        assert_eq!(expressions[2][2], accept());
        let last = expressions.last().expect("a rule");
        assert_eq!(last[1]["reject"]["type"], "icmpv6");
        assert!(sources(&balanced).is_empty());
        let [mut elsewhere] = balanced;
        elsewhere.sources = vec![("bth-00004d".into(), "fd00:60::9".parse().expect("an address"))];
        let rules = sources(&[elsewhere]);
        let expressions = &rules[0]["add"]["rule"]["expr"];
        assert_eq!(expressions[1]["match"]["left"]["ct"]["key"], "ip6 daddr");
        assert_eq!(expressions[2]["snat"], json!({"family": "ip6", "addr": "fd00:60::9"}));
    }

    #[test]
    fn a_guest_that_goes_moves_its_own_clients_only_and_each_has_a_share() {
        let address = |last: u8| IpAddr::from([10, 77, 0, last]);
        let (three, two) = ([address(2), address(3), address(4)], [address(2), address(4)]);
        let mut shares: BTreeMap<IpAddr, u32> = BTreeMap::new();
        for part in 0..PARTS {
            let before = target_of(part, &three);
            *shares.entry(before).or_default() += 1;
            if before != address(3) {
                assert_eq!(target_of(part, &two), before, "part {part}");
            }
        }
        assert!(shares.len() == 3 && shares.values().all(|share| *share > PARTS / 6), "{shares:?}");
    }

    #[test]
    fn a_guest_of_a_bridged_network_sees_the_hosts_address_there_and_is_not_tracked_twice() {
        let mut balanced = balanced(port(&["192.0.2.50"], false));
        assert!(untracked(&balanced).is_empty() && redirects(&balanced).is_empty());
        balanced[0].sources.clear();
        balanced[0].by_lan = vec![("vmbr0".into(), "192.0.2.50".parse().expect("an address"))];
        let rules = sources(&balanced);
        let [by, to, of, from] = rules[0]["add"]["rule"]["expr"].as_array().expect("a list").as_slice()
        else {
            panic!("{rules:?}")
        };
        assert_eq!((&by["match"]["right"], &to["match"]["right"]), (&json!("vmbr0"), &json!("192.0.2.50")));
        assert_eq!(of["match"]["right"], "198.51.100.7");
        assert!(from.get("masquerade").is_some(), "{from}");
        let untracked = untracked(&balanced);
        assert_eq!(untracked.len(), 4, "a chain, a rule for other links, and one for each direction");
        let links = &untracked[1]["add"]["rule"]["expr"];
        let links: Vec<&Value> = (0..3_usize).map(|at| &links[at]["match"]["right"]).collect();
        assert_eq!(links, ["btt*", "btv-*", "btq-*"]);
        assert_eq!(untracked[2]["add"]["rule"]["expr"][1]["match"]["right"], 8443);
        assert_eq!(redirects(&balanced).len(), 1);
    }

    #[test]
    fn by_a_relay_leave_connections_to_its_own_public_addresses_and_to_a_guest_of_a_bridge_they_leave_by_its_link()
     {
        let relayed = |public: &str| {
            let mut balanced = balanced(port(&["192.0.2.50"], false));
            balanced[0].public = public.parse().expect("an address");
            balanced[0].by_lan = vec![("btr-00004d".into(), "192.0.2.50".parse().expect("an address"))];
            balanced.remove(0)
        };
        let other = Balanced { sources: Vec::new(), by_lan: Vec::new(), ..relayed("198.51.100.9") };
        let rules = own_ways(&[relayed("198.51.100.7"), relayed("198.51.100.8"), other]);
        let dropped = |expressions: &[Value]| {
            let expressions = expressions.iter().cloned().chain([drop()]).collect();
            rule("forward", expressions)
        };
        let own = json!({"set": ["198.51.100.7", "198.51.100.8"]});
        let to = |public: &str| originally_to(public.parse().expect("an address"));
        let by_another = compare("!=", meta("oifname"), json!("btr-00004d"));
        let to_guest = compare("==", field("ip", "daddr"), json!("192.0.2.50"));
        let expected = [
            dropped(&[
                compare("==", meta("oifname"), json!("btr-00004d")),
                compare("!=", original("ip"), own),
            ]),
            dropped(&[by_another.clone(), to_guest.clone(), to("198.51.100.7")]),
            dropped(&[by_another, to_guest, to("198.51.100.8")]),
        ];
        assert_eq!(rules, expected);
    }

    #[test]
    fn guests_by_a_relay_see_the_address_of_their_public_address_and_not_the_first_of_the_relay() {
        let mut balanced = balanced(port(&["192.0.2.50"], false));
        balanced[0].by_lan = vec![("btr-00004d".into(), "192.0.2.50".parse().expect("an address"))];
        let rules = sources(&balanced);
        let [rule] = &rules[..] else { panic!("{rules:?}") };
        assert_eq!(rule["add"]["rule"]["expr"][2]["snat"]["addr"], "10.77.0.9");
    }

    #[test]
    fn ipv6_guests_of_a_bridged_network_get_the_same_rules_of_their_family() {
        let mut balanced = balanced(port(&["2001:db8:7::50"], false));
        balanced[0].public = "2001:db8:9::7".parse().expect("an address");
        balanced[0].sources.clear();
        balanced[0].by_lan = vec![("vmbr0".into(), "2001:db8:7::50".parse().expect("an address"))];
        let rules = sources(&balanced);
        let expressions = &rules[0]["add"]["rule"]["expr"];
        assert_eq!(expressions[1]["match"]["left"]["payload"], json!({"protocol": "ip6", "field": "daddr"}));
        assert_eq!(expressions[2]["match"]["left"]["ct"]["key"], "ip6 daddr");
        assert!(expressions[3].get("masquerade").is_some(), "{expressions}");
        let untracked = untracked(&balanced);
        assert_eq!(untracked.len(), 4);
        assert_eq!(untracked[2]["add"]["rule"]["expr"][0]["match"]["left"]["payload"]["protocol"], "ip6");
        let redirects = redirects(&balanced);
        let [redirect] = &redirects[..] else { panic!("{redirects:?}") };
        assert_eq!(redirect["add"]["rule"]["expr"][1]["match"]["right"], REDIRECT);
    }

    #[test]
    fn a_guest_on_another_host_sees_an_address_of_its_network() {
        let rules = sources(&balanced(port(&["10.77.0.2"], false)));
        let [by, of, from] = rules[0]["add"]["rule"]["expr"].as_array().expect("a list").as_slice() else {
            panic!("{rules:?}")
        };
        assert_eq!(
            (&by["match"]["right"], &of["match"]["right"]),
            (&json!("btr-00004d"), &json!("198.51.100.7"))
        );
        assert_eq!(from["snat"]["addr"], "10.77.0.9");
    }
}
