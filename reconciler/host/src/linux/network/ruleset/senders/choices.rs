//! The IPv6 addresses that guests choose among those of their network: the first one that claims an address has it (as in RFC 6620). Pure.
//!
//! ```text
//!  table bridge berth_senders, after the check of a guest's frames in the table `bridge berth`, which passes all addresses of the network
//!    of a network   held     the addresses that were claimed by neighbour discovery on this host or through the tunnel, for two hours
//!                   pairs    the same, with the MAC address that has each
//!    of a tap       chosen   the addresses that its guest uses, at most sixteen
//!    chain choices  a frame of a tap or of a tunnel ── map `choosers` ─▶ its chain `from`
//!    from a tap     about an address, or by discovery from one: in `pairs` or `own` passes; in `held` is dropped; else it is claimed
//!                   any other packet: from an address in `pairs`, which it keeps by that, or `own`
//!    from a tunnel  neighbour discovery about or from an address that another MAC address has is dropped; else it is claimed
//! ```
//!
//! An address goes with the MAC address of its guest, so that the guest keeps it where it is started again or moved. Addresses with an
//! identifier of a MAC address cannot be claimed: they are those of other interfaces. Nor can those whose identifier begins with 32 zeros:
//! they are those of the gateway and of hosts. nftables has no name for the target of a message, so that addresses are numbers in all sets.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv6Addr;

use serde_json::{Value, json};

use super::super::super::{TAP_PREFIX, tunnel};
use super::super::ports::{NEIGHBOUR_ADVERTISEMENT, NEIGHBOUR_SOLICITATION, ROUTER_SOLICITATION, number_of};
use super::super::{accept, compare, drop, meta};
use super::{MOST, PRIORITY, SENDERS, TIMEOUT, names, of_table};
use crate::{ChosenAddresses, ObservedPort};

pub(super) const CHOSEN_PREFIX: &str = "chosen_";
const CHAIN: &str = "choices";
const CHOOSERS: &str = "choosers";
/// Most addresses of a network.
const MOST_HELD: usize = 65_536;
/// The header with the source address of a packet, and the one with the target address of a message of discovery. Both begin at bit 64.
const SOURCE: &str = "nh";
const TARGET: &str = "th";
const AT: u32 = 64;
/// The upper half of link-local addresses.
const LINK_LOCAL: u64 = 0xfe80 << 48;
/// In the middle of an identifier that follows from a MAC address.
const OF_MAC: u16 = 0xfffe;

/// A rule, as its expressions.
type Rule = Vec<Value>;
/// Rules by chain.
pub(super) type Chains = BTreeMap<String, Vec<Rule>>;

fn held(bridge: &str) -> String {
    format!("held_{bridge}")
}

fn pairs(bridge: &str) -> String {
    format!("pairs_{bridge}")
}

fn chosen(tap: &str) -> String {
    format!("{CHOSEN_PREFIX}{tap}")
}

fn choosers(ports: &[ObservedPort]) -> impl Iterator<Item = (&str, &ChosenAddresses)> {
    ports.iter().filter_map(|port| Some((port.tap.as_str(), port.chosen.as_ref()?)))
}

/// The wanted sets by name, as nftables declares them.
pub(super) fn sets(ports: &[ObservedPort]) -> BTreeMap<String, String> {
    let declared = |of: &str, most: usize| {
        format!("{{ typeof {of}; size {most}; flags dynamic,timeout; timeout {TIMEOUT}s; }}")
    };
    let address = format!("@{TARGET},{AT},128");
    let mut sets = BTreeMap::new();
    for (tap, ChosenAddresses { bridge, .. }) in choosers(ports) {
        sets.insert(held(bridge), declared(&address, MOST_HELD));
        sets.insert(pairs(bridge), declared(&format!("{address} . ether saddr"), MOST_HELD));
        sets.insert(chosen(tap), declared(&address, MOST));
    }
    sets
}

/// Returns commands for `nft` that add the sets which are not there: its JSON has no name for their type.
pub(in super::super::super) fn declare(ports: &[ObservedPort], there: Option<&Value>) -> Option<String> {
    let is_known = |name: &String| there.is_some_and(|there| names(there, "set").any(|known| known == name));
    let (family, table) = (SENDERS.family, SENDERS.name);
    let missing: Vec<String> = sets(ports)
        .into_iter()
        .filter(|(name, _)| !is_known(name))
        .map(|(name, declared)| format!("add set {family} {table} {name} {declared}\n"))
        .collect();
    (!missing.is_empty()).then(|| format!("add table {family} {table}\n{}", missing.concat()))
}

/// Returns the taps whose guests choose by the rules that are there.
pub(in super::super::super) fn choosing(there: &Value) -> BTreeSet<String> {
    let of = names(there, "chain").filter_map(|name| name.strip_prefix("from_"));
    of.filter(|of| of.starts_with(TAP_PREFIX)).map(str::to_owned).collect()
}

/// The wanted chains with their rules.
pub(super) fn chains(ports: &[ObservedPort]) -> Chains {
    let mut chains = Chains::new();
    for (tap, of_tap) in choosers(ports) {
        let ChosenAddresses { bridge, prefix, own } = of_tap;
        let upper = upper_half(prefix.network());
        chains.insert(format!("from_{tap}"), from_tap(tap, of_tap));
        chains.insert(format!("from_{bridge}"), from_tunnel(bridge));
        for (name, header) in [("source", SOURCE), ("target", TARGET)] {
            let is_own = one_of(header, own);
            chains.insert(format!("{name}_{tap}"), claims(header, (tap, bridge.as_str()), upper, &is_own));
            chains.insert(format!("{name}_{bridge}"), seen(header, bridge, upper));
        }
    }
    if !chains.is_empty() {
        let is_other =
            compare("!=", json!({"payload": {"protocol": "ether", "field": "type"}}), json!("ip6"));
        let go = json!({"vmap": {"key": meta("iifname"), "data": format!("@{CHOOSERS}")}});
        chains.insert(CHAIN.to_owned(), vec![vec![is_other, accept()], vec![go]]);
    }
    chains
}

/// The commands that remove what is there, but for the sets. `stays`: the first chain is wanted again.
pub(super) fn removals(there: Option<&Value>, stays: bool) -> Vec<Value> {
    let Some(there) = there else { return Vec::new() };
    let chains: Vec<&str> = names(there, "chain").filter(|name| *name != super::CHAIN).collect();
    let maps = names(there, "map").map(|name| json!({"delete": {"map": of_table(name)}}));
    let (first, others): (Vec<&str>, Vec<&str>) = chains.into_iter().partition(|name| *name == CHAIN);
    let flush = |name: &&str| json!({"flush": {"chain": of_table(name)}});
    let delete = |name: &&str| json!({"delete": {"chain": of_table(name)}});
    // Nothing leads to a chain that is deleted.
    let mut commands: Vec<Value> = first.iter().map(flush).chain(maps).collect();
    commands.extend(others.iter().map(flush));
    commands.extend(others.iter().map(delete));
    commands.extend(first.iter().filter(|_| !stays).map(delete));
    commands
}

/// The commands that add the chains, for a table without them.
pub(super) fn additions(ports: &[ObservedPort], chains: &Chains) -> Vec<Value> {
    if chains.is_empty() {
        return Vec::new();
    }
    let mut commands = vec![SENDERS.chain(CHAIN, "filter", "prerouting", PRIORITY)];
    let plain = chains.keys().filter(|name| *name != CHAIN);
    commands.extend(plain.map(|name| json!({"add": {"chain": of_table(name)}})));
    let mut ways: BTreeMap<String, String> = BTreeMap::new();
    for (tap, ChosenAddresses { bridge, .. }) in choosers(ports) {
        ways.insert(tap.to_owned(), format!("from_{tap}"));
        ways.insert(tunnel::name_of(bridge), format!("from_{bridge}"));
    }
    let elements: Vec<Value> =
        ways.into_iter().map(|(link, chain)| json!([link, {"goto": {"target": chain}}])).collect();
    let mut map = of_table(CHOOSERS);
    map["type"] = json!("ifname");
    map["map"] = json!("verdict");
    map["elem"] = elements.into();
    commands.push(json!({"add": {"map": map}}));
    for (name, rules) in chains {
        commands.extend(rules.iter().map(|rule| SENDERS.rule(name, rule.clone())));
    }
    commands
}

fn from_tap(tap: &str, of_tap: &ChosenAddresses) -> Vec<Rule> {
    let ChosenAddresses { bridge, prefix, own } = of_tap;
    let (about, by) = (format!("target_{tap}"), format!("source_{tap}"));
    let discovery = json!({"set": [ROUTER_SOLICITATION, NEIGHBOUR_SOLICITATION, NEIGHBOUR_ADVERTISEMENT]});
    let is_paired = || member_of(with_mac(SOURCE), &pairs(bridge));
    let hold = [update(with_mac(SOURCE), &pairs(bridge)), update(address(SOURCE), &held(bridge))];
    vec![
        // The detection of duplicates, which is the first sign of an address.
        vec![from_none(), of_type(json!(NEIGHBOUR_SOLICITATION)), go_to(&about)],
        vec![of_type(json!(NEIGHBOUR_ADVERTISEMENT)), json!({"jump": {"target": about}})],
        vec![of_type(discovery), go_to(&by)],
        vec![outside(SOURCE, upper_half(prefix.network())), accept()],
        vec![one_of(SOURCE, own), accept()],
        // Neighbours that hear of a guest by its connections do not ask for it, so that its claim would end while it uses the address.
        [vec![is_paired(), update(address(SOURCE), &chosen(tap))], hold.to_vec(), vec![accept()]].concat(),
        vec![is_paired(), accept()],
        vec![drop()],
    ]
}

/// The rules for an address in a message of discovery of a tap.
fn claims(header: &str, (tap, bridge): (&str, &str), upper: u64, is_own: &Value) -> Vec<Rule> {
    let back = || json!({"return": null});
    let (held, pairs) = (held(bridge), pairs(bridge));
    let use_it = || update(address(header), &chosen(tap));
    let hold = || [update(with_mac(header), &pairs), update(address(header), &held)];
    let is_paired = || member_of(with_mac(header), &pairs);
    let [first, second] = hold();
    let [third, fourth] = hold();
    vec![
        vec![outside(header, upper), back()],
        // A rule ends where a set is full.
        vec![is_own.clone(), use_it(), back()],
        vec![is_own.clone(), back()],
        vec![is_paired(), use_it(), first, second, back()],
        vec![is_paired(), back()],
        vec![member_of(address(header), &held), drop()],
        vec![of_mac(header), drop()],
        vec![low(header), drop()],
        vec![use_it(), third, fourth, back()],
        vec![drop()],
    ]
}

/// The packets of other hosts' guests pass, which these hosts have checked, except for discovery about addresses of guests here.
fn from_tunnel(bridge: &str) -> Vec<Rule> {
    let (about, by) = (format!("target_{bridge}"), format!("source_{bridge}"));
    let discovery = json!({"set": [NEIGHBOUR_SOLICITATION, NEIGHBOUR_ADVERTISEMENT]});
    vec![
        vec![from_none(), of_type(json!(NEIGHBOUR_SOLICITATION)), go_to(&about)],
        vec![of_type(json!(NEIGHBOUR_ADVERTISEMENT)), json!({"jump": {"target": about}})],
        vec![of_type(discovery), go_to(&by)],
    ]
}

/// The rules for an address in a message of discovery that comes by a tunnel.
fn seen(header: &str, bridge: &str, upper: u64) -> Vec<Rule> {
    let back = || json!({"return": null});
    let (held, pairs) = (held(bridge), pairs(bridge));
    let hold = || vec![update(with_mac(header), &pairs), update(address(header), &held)];
    vec![
        vec![outside(header, upper), back()],
        vec![of_mac(header), back()],
        vec![low(header), back()],
        [vec![member_of(with_mac(header), &pairs)], hold(), vec![back()]].concat(),
        vec![member_of(address(header), &held), drop()],
        hold(),
    ]
}

fn raw(header: &str, offset: u32, length: u32) -> Value {
    json!({"payload": {"base": header, "offset": offset, "len": length}})
}

fn address(header: &str) -> Value {
    raw(header, AT, 128)
}

fn with_mac(header: &str) -> Value {
    json!({"concat": [address(header), {"payload": {"protocol": "ether", "field": "saddr"}}]})
}

fn update(element: Value, set: &str) -> Value {
    json!({"set": {"op": "update", "elem": element, "set": format!("@{set}")}})
}

fn member_of(element: Value, set: &str) -> Value {
    compare("==", element, json!(format!("@{set}")))
}

fn one_of(header: &str, addresses: &[Ipv6Addr]) -> Value {
    let numbers: Vec<Value> = addresses.iter().copied().map(number_of).collect();
    compare("==", address(header), json!({"set": numbers}))
}

/// Neither of the network's prefix nor link-local.
fn outside(header: &str, upper: u64) -> Value {
    let own = [upper, LINK_LOCAL].map(|number| format!("{number:#x}"));
    compare("!=", raw(header, AT, 64), json!({"set": own}))
}

fn of_mac(header: &str) -> Value {
    compare("==", raw(header, AT + 88, 16), json!(OF_MAC))
}

fn low(header: &str) -> Value {
    compare("==", raw(header, AT + 64, 32), json!(0))
}

fn of_type(types: Value) -> Value {
    compare("==", json!({"payload": {"protocol": "icmpv6", "field": "type"}}), types)
}

fn from_none() -> Value {
    compare("==", json!({"payload": {"protocol": "ip6", "field": "saddr"}}), json!("::"))
}

fn go_to(chain: &str) -> Value {
    json!({"goto": {"target": chain}})
}

fn upper_half(prefix: Ipv6Addr) -> u64 {
    let [a, b, c, d, ..] = prefix.segments();
    [a, b, c, d].into_iter().fold(0, |upper, part| upper << 16 | u64::from(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BRIDGE: &str = "bth-00004d";

    fn port(last: u8) -> ObservedPort {
        let own = [format!("fd00:60::5054:ff:fe00:{last:x}"), format!("fe80::5054:ff:fe00:{last:x}")];
        let chosen = ChosenAddresses {
            bridge: BRIDGE.to_owned(),
            prefix: "fd00:60::/64".parse().expect("a prefix"),
            own: own.iter().map(|text| text.parse().expect("an address")).collect(),
        };
        ObservedPort { tap: format!("btt{last}"), chosen: Some(chosen), ..ObservedPort::default() }
    }

    fn end(rule: &[Value]) -> &str {
        let last = rule.last().and_then(Value::as_object).and_then(|last| last.keys().next());
        last.map(String::as_str).unwrap_or_default()
    }

    #[test]
    fn each_network_and_each_tap_has_its_sets_and_those_that_are_there_stay() {
        let ports = [port(2), port(3), ObservedPort { tap: "btt4".into(), ..ObservedPort::default() }];
        let names: Vec<String> = sets(&ports).into_keys().collect();
        let expected = ["chosen_btt2", "chosen_btt3", "held_bth-00004d", "pairs_bth-00004d"];
        assert_eq!(names, expected);
        let text = declare(&ports, None).expect("none is there");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!((lines.len(), lines[0]), (5, "add table bridge berth_senders"));
        assert_eq!(
            lines[1],
            "add set bridge berth_senders chosen_btt2 { typeof @th,64,128; size 16; flags dynamic,timeout; timeout 7200s; }"
        );
        assert!(lines[4].contains("{ typeof @th,64,128 . ether saddr; size 65536;"), "{}", lines[4]);
        let there = |names: &[&str]| {
            let sets = names.iter().map(|name| json!({"set": {"name": name}}));
            json!({"nftables": sets.collect::<Vec<_>>()})
        };
        let text = declare(&ports, Some(&there(&expected[1..]))).expect("one is missing");
        assert_eq!(text.lines().count(), 2, "{text}");
        assert_eq!(declare(&ports, Some(&there(&expected))), None);
        assert_eq!(declare(&ports[2..], None), None);
    }

    #[test]
    fn an_address_is_claimed_only_if_no_other_has_it_and_it_is_of_no_mac_address_and_not_low() {
        let chains = chains(&[port(2)]);
        let names: Vec<&str> = chains.keys().map(String::as_str).collect();
        let expected = ["choices", "from_bth-00004d", "from_btt2", "source_bth-00004d", "source_btt2"];
        assert_eq!(names[..5], expected);
        assert_eq!(names[5..], ["target_bth-00004d", "target_btt2"]);
        let ends: Vec<&str> = chains["target_btt2"].iter().map(|rule| end(rule)).collect();
        let passes = ["return"; 5];
        assert_eq!(ends[..5], passes, "of others, its own, and claimed before");
        assert_eq!(ends[5..], ["drop", "drop", "drop", "return", "drop"]);
        let text = |rule: usize| json!(chains["target_btt2"][rule]).to_string();
        assert!(text(0).contains(r#"["0xfd00006000000000","0xfe80000000000000"]"#), "{}", text(0));
        assert!(text(1).contains("0xfd00006000000000505400fffe000002"), "{}", text(1));
        assert!(text(5).contains("@held_bth-00004d"), "{}", text(5));
        assert!(text(6).contains("65534") && text(6).contains("152"), "{}", text(6));
        assert!(text(7).contains("\"len\":32") && text(7).contains("128"), "{}", text(7));
        assert!(text(8).contains("@chosen_btt2") && text(8).contains("@pairs_bth-00004d"), "{}", text(8));
        // By a tunnel only an address of another MAC address is kept out.
        let ends: Vec<&str> = chains["source_bth-00004d"].iter().map(|rule| end(rule)).collect();
        assert_eq!(ends, ["return", "return", "return", "return", "drop", "set"]);
        let ends: Vec<&str> = chains["from_btt2"].iter().map(|rule| end(rule)).collect();
        assert_eq!(ends, ["goto", "jump", "goto", "accept", "accept", "accept", "accept", "drop"]);
        let kept = json!(chains["from_btt2"][5]).to_string();
        for set in ["@chosen_btt2", "@pairs_bth-00004d", "@held_bth-00004d"] {
            assert!(kept.contains(&format!(r#""set":"{set}""#)), "what a guest uses it keeps: {kept}");
        }
        assert!(super::chains(&[]).is_empty());
    }

    #[test]
    fn taps_and_tunnels_lead_to_their_chains_and_nothing_leads_to_one_that_is_removed() {
        let ports = [port(2), port(3)];
        let added = additions(&ports, &chains(&ports));
        let map = added.iter().find_map(|command| command["add"]["map"].as_object()).expect("a map");
        let links: Vec<&Value> =
            map["elem"].as_array().into_iter().flatten().map(|element| &element[0]).collect();
        assert_eq!(links, ["btt2", "btt3", "btx-00004d"]);
        let listed = ["senders", "choices", "from_btt2", "target_btt2"];
        let chains = listed.iter().map(|name| json!({"chain": {"name": name}}));
        let map = json!({"map": {"name": "choosers"}});
        let there = json!({"nftables": chains.chain([map]).collect::<Vec<_>>()});
        assert_eq!(choosing(&there), BTreeSet::from(["btt2".to_owned()]));
        let commands = |stays: bool| -> Vec<String> {
            let removed = removals(Some(&there), stays).into_iter();
            let name = |command: Value| {
                let (verb, object) = command.as_object().and_then(|command| command.iter().next())?;
                let name = object.as_object()?.values().next()?["name"].as_str()?;
                Some(format!("{verb} {name}"))
            };
            removed.filter_map(name).collect()
        };
        let first = ["flush choices", "delete choosers", "flush from_btt2", "flush target_btt2"];
        assert_eq!(commands(true)[..4], first);
        assert_eq!(commands(true)[4..], ["delete from_btt2", "delete target_btt2"]);
        assert_eq!(commands(false)[6..], ["delete choices"]);
        assert!(removals(None, true).is_empty() && additions(&[], &super::chains(&[])).is_empty());
    }
}
