//! The addresses that guests send from, on networks whose addresses others than berth give out. Pure.
//!
//! ```text
//!  table bridge berth_senders, after the check of a guest's frames in the table `bridge berth`
//!    a set for each tap and family   the addresses that the guest has sent from within two hours
//!    chain senders                   ARP of a tap ─▶ its set of IPv4; neighbour discovery of a tap ─▶ its set of IPv6
//!    chain choices                   IPv6 of a tap whose guest chooses its addresses, by [`choices`]
//! ```
//!
//! Nothing is dropped here, but by [`choices`]. The table is one of its own because a change of the rules replaces the others with all that
//! they know. The first rule has a checksum of all as its comment: those of other addresses, or of another version, are as many.

mod choices;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::ports::{NEIGHBOUR_ADVERTISEMENT, NEIGHBOUR_SOLICITATION};
use super::{Table, accept, compare, meta};
use crate::ObservedPort;
pub(in super::super) use choices::{choosing, declare};

pub(in super::super) const SENDERS: Table = Table { family: "bridge", name: "berth_senders" };
const CHAIN: &str = "senders";
/// After the check of guests' frames.
const PRIORITY: i32 = -190;
/// Most addresses of a tap and family: a guest may send from any number.
const MOST: usize = 16;
/// In seconds. Longer than the time between two frames of a guest that does nothing but keep its clock and its lease.
const TIMEOUT: u64 = 2 * 3600;
const ICMPV6: u8 = 58;
const IPV4_PREFIX: &str = "ipv4_";
const IPV6_PREFIX: &str = "ipv6_";

/// Returns one transaction that makes the table as these ports need it, and keeps the addresses that it has of them. None: it is so.
/// `there`: the table as nftables lists it, before the sets of [`declare`] are added.
pub(in super::super) fn change(ports: &[ObservedPort], there: Option<&Value>) -> Option<Value> {
    let (wanted, declared) = (sets(ports), choices::sets(ports));
    if wanted.is_empty() && declared.is_empty() {
        // Added first, in case it has been removed since it was listed.
        return there.map(|_| json!({"nftables": [SENDERS.add(), {"delete": SENDERS.id()}]}));
    }
    let (rules, chains) = (rules(&wanted), choices::chains(ports));
    let additions = choices::additions(ports, &chains);
    let mark = checksum(&json!([rules, additions]));
    let known: BTreeSet<&str> = there.map(|there| names(there, "set").collect()).unwrap_or_default();
    let needed: BTreeSet<&str> = wanted.keys().chain(declared.keys()).map(String::as_str).collect();
    let count = rules.len() + chains.values().map(Vec::len).sum::<usize>();
    let is_marked = |there: &Value| objects(there, "rule").any(|rule| rule["comment"] == mark);
    let is_complete = there.is_some_and(|there| objects(there, "rule").count() == count && is_marked(there));
    if is_complete && known == needed {
        return None;
    }
    let mut commands = vec![
        SENDERS.add(),
        SENDERS.chain(CHAIN, "filter", "prerouting", PRIORITY),
        json!({"flush": {"chain": of_table(CHAIN)}}),
    ];
    commands.extend(choices::removals(there, !chains.is_empty()));
    let surplus = known.iter().filter(|name| !needed.contains(*name));
    commands.extend(surplus.map(|name| json!({"delete": {"set": of_table(name)}})));
    // A set that is there is not added again: nftables has marked it as one that rules add to, which counts as another set.
    let missing = wanted.iter().filter(|(name, _)| !known.contains(name.as_str()));
    commands.extend(missing.map(|(name, (_, is_ipv6))| {
        let mut set = of_table(name);
        set["type"] = json!(if *is_ipv6 { "ipv6_addr" } else { "ipv4_addr" });
        set["flags"] = json!(["timeout"]);
        set["timeout"] = json!(TIMEOUT);
        set["size"] = json!(MOST);
        json!({"add": {"set": set}})
    }));
    let mut first = Some(mark);
    commands.extend(rules.into_iter().map(|expressions| {
        let mut command = SENDERS.rule(CHAIN, expressions);
        if let Some(mark) = first.take() {
            command["add"]["rule"]["comment"] = json!(mark);
        }
        command
    }));
    commands.extend(additions);
    Some(json!({"nftables": commands}))
}

fn checksum(rules: &Value) -> String {
    Sha256::digest(rules.to_string().as_bytes()).iter().map(|b| format!("{b:02x}")).collect()
}

/// A set or chain of the table.
fn of_table(name: &str) -> Value {
    json!({"family": SENDERS.family, "table": SENDERS.name, "name": name})
}

/// The wanted sets by name: their tap, and whether they are of IPv6.
fn sets(ports: &[ObservedPort]) -> BTreeMap<String, (&str, bool)> {
    let of_port = |port: &ObservedPort| {
        let ipv4 = port.ipv4.then(|| format!("{IPV4_PREFIX}{}", port.tap));
        let ipv6 = port.ipv6.then(|| format!("{IPV6_PREFIX}{}", port.tap));
        ipv4.map(|name| (name, false)).into_iter().chain(ipv6.map(|name| (name, true)))
    };
    let sets =
        ports.iter().flat_map(|port| of_port(port).map(move |(name, is_ipv6)| (name, (&*port.tap, is_ipv6))));
    sets.collect()
}

fn rules(wanted: &BTreeMap<String, (&str, bool)>) -> Vec<Vec<Value>> {
    let payload = |protocol: &str, field: &str| json!({"payload": {"protocol": protocol, "field": field}});
    let source = |is_ipv6: bool| if is_ipv6 { payload("ip6", "saddr") } else { payload("arp", "saddr ip") };
    let mut rules = vec![
        // Also all frames with a tag, whose addresses are those of a trunk.
        vec![compare("!=", payload("ether", "type"), json!({"set": ["arp", "ip6"]})), accept()],
        vec![compare("!=", payload("ip6", "nexthdr"), json!(ICMPV6)), accept()],
    ];
    for (name, (tap, is_ipv6)) in wanted {
        let mut rule = vec![compare("==", meta("iifname"), json!(tap))];
        if *is_ipv6 {
            let discovery = json!({"set": [NEIGHBOUR_SOLICITATION, NEIGHBOUR_ADVERTISEMENT]});
            rule.push(compare("==", payload("icmpv6", "type"), discovery));
        }
        let update = json!({"op": "update", "elem": source(*is_ipv6), "set": format!("@{name}")});
        let without = if *is_ipv6 {
            json!({"set": ["::", {"prefix": {"addr": "fe80::", "len": 10}}]})
        } else {
            json!("0.0.0.0")
        };
        rule.extend([compare("!=", source(*is_ipv6), without), json!({"set": update})]);
        rules.push(rule);
    }
    rules
}

/// Returns the addresses in a listing of the table, by tap, without those that are no address of one machine on a network.
pub(in super::super) fn addresses(there: &Value) -> BTreeMap<String, BTreeSet<IpAddr>> {
    let mut by_tap: BTreeMap<String, BTreeSet<IpAddr>> = BTreeMap::new();
    for set in objects(there, "set") {
        let name = set["name"].as_str().unwrap_or_default();
        let prefixes = [IPV4_PREFIX, IPV6_PREFIX, choices::CHOSEN_PREFIX];
        let Some(tap) = prefixes.iter().find_map(|prefix| name.strip_prefix(prefix)) else { continue };
        let elements = set["elem"].as_array().into_iter().flatten();
        let texts =
            elements.filter_map(|element| element["elem"]["val"].as_str().or_else(|| element.as_str()));
        let addresses = texts.filter_map(parsed).filter(is_of_a_machine).take(MOST);
        by_tap.entry(tap.to_owned()).or_default().extend(addresses);
    }
    by_tap
}

/// Reads an address, or the number of an IPv6 address.
fn parsed(text: &str) -> Option<IpAddr> {
    match text.strip_prefix("0x") {
        Some(number) => u128::from_str_radix(number, 16).ok().map(|number| Ipv6Addr::from(number).into()),
        None => text.parse().ok(),
    }
}

fn is_of_a_machine(address: &IpAddr) -> bool {
    let is_link_local = match address {
        IpAddr::V4(ipv4) => ipv4.is_link_local() || ipv4.is_broadcast(),
        IpAddr::V6(ipv6) => ipv6.is_unicast_link_local(),
    };
    !(is_link_local || address.is_unspecified() || address.is_loopback() || address.is_multicast())
}

fn objects<'a>(there: &'a Value, kind: &'static str) -> impl Iterator<Item = &'a Value> {
    let listed = there["nftables"].as_array().into_iter().flatten();
    listed.filter_map(move |item| item.get(kind))
}

fn names<'a>(there: &'a Value, kind: &'static str) -> impl Iterator<Item = &'a str> {
    objects(there, kind).filter_map(|object| object["name"].as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(tap: &str, ipv4: bool, ipv6: bool) -> ObservedPort {
        ObservedPort { tap: tap.to_owned(), ipv4, ipv6, chosen: None }
    }

    fn kinds(change: Option<Value>) -> Vec<String> {
        let change = change.unwrap_or_default();
        let commands = change["nftables"].as_array().cloned().unwrap_or_default();
        let kind = |command: &Value| {
            let (verb, what) = command.as_object().and_then(|command| command.iter().next())?;
            let (kind, object) = what.as_object()?.iter().next()?;
            Some(format!("{verb} {kind} {}", object["name"].as_str().unwrap_or_default()).trim().to_owned())
        };
        commands.iter().filter_map(kind).collect()
    }

    /// A listing with these sets and the rules that a change adds.
    fn listing(sets: &[&str], change: Option<&Value>) -> Value {
        let sets = sets.iter().map(|name| json!({"set": {"name": name}}));
        let commands = change.and_then(|change| change["nftables"].as_array()).into_iter().flatten();
        let rules = commands.filter_map(|command| command["add"].get("rule"));
        let rules = rules.map(|rule| json!({"rule": rule}));
        json!({"nftables": sets.chain(rules).collect::<Vec<_>>()})
    }

    #[test]
    fn the_table_is_made_and_changed_without_its_addresses_and_removed_with_the_last_port() {
        let ports = [port("btt1n0", true, true), port("btt2n0", true, false)];
        let made = kinds(change(&ports, None));
        assert_eq!(made[..3], ["add table berth_senders", "add chain senders", "flush chain senders"]);
        assert_eq!(made[3..6], ["add set ipv4_btt1n0", "add set ipv4_btt2n0", "add set ipv6_btt1n0"]);
        assert_eq!(made.len(), 6 + 5, "two rules for all, and one for each set");
        let there = listing(&["ipv4_btt1n0", "ipv4_btt2n0", "ipv6_btt1n0"], change(&ports, None).as_ref());
        assert_eq!(change(&ports, Some(&there)), None, "it is so");
        let flushed = listing(&["ipv4_btt1n0", "ipv4_btt2n0", "ipv6_btt1n0"], None);
        assert_eq!(
            kinds(change(&ports, Some(&flushed))).len(),
            3 + 5,
            "another program has removed the rules"
        );
        let fewer = kinds(change(&ports[..1], Some(&there)));
        assert_eq!(fewer[3..], ["delete set ipv4_btt2n0", "add rule", "add rule", "add rule", "add rule"]);
        assert_eq!(
            kinds(change(&[], Some(&there))),
            ["add table berth_senders", "delete table berth_senders"]
        );
        assert_eq!(change(&[], None), None);
    }

    #[test]
    fn the_sets_of_choices_stay_while_their_chains_are_made_again() {
        let chosen = |tap: &str| ObservedPort {
            chosen: Some(crate::ChosenAddresses {
                bridge: "bth-00004d".to_owned(),
                prefix: "fd00:60::/64".parse().expect("a prefix"),
                own: Vec::new(),
            }),
            ..port(tap, false, false)
        };
        let made = change(&[chosen("btt1n0")], None);
        let sets = ["chosen_btt1n0", "held_bth-00004d", "pairs_bth-00004d"];
        let there = listing(&sets, made.as_ref());
        assert_eq!(change(&[chosen("btt1n0")], Some(&there)), None, "it is so");
        let more = kinds(change(&[chosen("btt1n0"), chosen("btt2n0")], Some(&there)));
        assert!(!more.iter().any(|command| command.contains(" set ")), "{more:?}");
        let other = kinds(change(&[chosen("btt2n0")], Some(&there)));
        let deleted: Vec<&String> = other.iter().filter(|command| command.contains(" set ")).collect();
        assert_eq!(deleted, ["delete set chosen_btt1n0"]);
        assert_eq!(kinds(change(&[], Some(&there))).len(), 2, "the table goes");
    }

    #[test]
    fn as_many_rules_about_other_addresses_are_written_again() {
        let chosen = |own: &str, prefix: &str| ObservedPort {
            chosen: Some(crate::ChosenAddresses {
                bridge: "bth-00004d".to_owned(),
                prefix: prefix.parse().expect("a prefix"),
                own: vec![own.parse().expect("an address")],
            }),
            ..port("btt1n0", false, false)
        };
        let ports = [chosen("fd00:60::5054:ff:fe00:2", "fd00:60::/64")];
        let sets = ["chosen_btt1n0", "held_bth-00004d", "pairs_bth-00004d"];
        let there = listing(&sets, change(&ports, None).as_ref());
        assert_eq!(change(&ports, Some(&there)), None, "it is so");
        assert!(change(&[chosen("fd00:60::5054:ff:fe00:3", "fd00:60::/64")], Some(&there)).is_some());
        assert!(change(&[chosen("fd00:60::5054:ff:fe00:2", "fd00:61::/64")], Some(&there)).is_some());
    }

    #[test]
    fn addresses_are_read_by_tap_and_those_of_no_machine_are_left_out() {
        let element = |text: &str| json!({"elem": {"val": text, "expires": 7}});
        let there = json!({"nftables": [
            {"metainfo": {"version": "1"}},
            {"set": {"name": "ipv4_btt1n0", "elem": [element("192.0.2.9"), element("169.254.1.1"), element("224.0.0.1")]}},
            {"set": {"name": "ipv6_btt1n0", "elem": [element("2001:db8::9"), "2001:db8::8", "fe80::1", 7]}},
            {"set": {"name": "ipv4_btt2n0"}},
            {"set": {"name": "chosen_btt3n0", "elem": [element("0xfd0000600000000012345678000000aa"),
                element("0xfe80000000000000505400fffe000003"), element("0xzz")]}},
            {"set": {"name": "held_bth-00004d", "elem": [element("0xfd0000600000000012345678000000aa")]}},
            {"set": {"name": "of_another", "elem": [element("192.0.2.8")]}},
        ]});
        let found = addresses(&there);
        let texts = |tap: &str| found[tap].iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(texts("btt1n0"), ["192.0.2.9", "2001:db8::8", "2001:db8::9"]);
        assert_eq!(texts("btt2n0"), [""; 0]);
        assert_eq!(texts("btt3n0"), ["fd00:60::1234:5678:0:aa"], "without the link-local one");
        assert_eq!(found.len(), 3);
        assert!(addresses(&json!({})).is_empty());
    }
}
