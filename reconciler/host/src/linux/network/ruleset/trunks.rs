//! Frames with a VLAN tag, to and from taps. Pure.
//!
//! ```text
//!  table bridge berth
//!    map `trunks`      taps with a trunk ──▶ chain of their VLANs
//!    chain guests      a tagged frame that comes by a link of berth's is not tracked
//!                      a tagged frame of a guest, after the check of its MAC ── map `trunks` ─▶ chain of VLANs, or dropped
//!    chain tagged      a tagged frame that leaves by a tap                   ── map `trunks` ─▶ chain of VLANs, or dropped
//!    a chain of VLANs  accepts IPv4, ARP and IPv6 with one tag (802.1Q) of these VLANs
//! ```
//!
//! The kernel moves the tag of a received frame into its own data. nftables puts it back where it reads a frame from its beginning, as
//! `ether` and `vlan` do, and not where it reads `ip`, `arp` or `ip6`: those see the packet in a tagged frame as if it had none.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::super::bridged::INNER_PREFIX;
use super::super::{PORT_PREFIX, TAP_PREFIX};
use super::{BRIDGED, accept, compare, drop, meta};
use crate::PortTrunk;

const MAP: &str = "trunks";
const CHAIN: &str = "tagged";
/// Before all that others do with a frame that leaves.
const PRIORITY: i32 = -200;
/// The types of frames that begin with an older tag of providers.
const OTHER_TAGS: [u16; 3] = [0x9100, 0x9200, 0x9300];

/// The map, chains and rules, for a table without them.
pub(super) fn pass(trunks: &[PortTrunk]) -> Vec<Value> {
    let mut trunks: Vec<&PortTrunk> = trunks.iter().collect();
    trunks.sort();
    trunks.dedup_by_key(|trunk| &trunk.tap);
    let lists: BTreeSet<&[(u16, u16)]> = trunks.iter().map(|trunk| trunk.vlans.as_slice()).collect();
    let lists: Vec<&[(u16, u16)]> = lists.into_iter().collect();
    let mut commands = Vec::new();
    for (number, vlans) in lists.iter().enumerate() {
        let chain = chain_of(number);
        commands.push(
            json!({"add": {"chain": {"family": BRIDGED.family, "table": BRIDGED.name, "name": chain}}}),
        );
        commands.push(BRIDGED.rule(&chain, with_one_tag_of(vlans)));
    }
    let element = |trunk: &&PortTrunk| {
        let number = lists.iter().position(|vlans| *vlans == trunk.vlans.as_slice())?;
        Some(json!([trunk.tap, {"jump": {"target": chain_of(number)}}]))
    };
    let elements: Vec<Value> = trunks.iter().filter_map(element).collect();
    let mut map = json!({"family": BRIDGED.family, "table": BRIDGED.name, "name": MAP, "type": "ifname", "map": "verdict"});
    if !elements.is_empty() {
        map["elem"] = elements.into();
    }
    let to_guest = || compare("==", meta("oifname"), json!(format!("{TAP_PREFIX}*")));
    let [first, second, third] = OTHER_TAGS;
    let any_tag = compare("==", ether_type(), json!({"set": ["8021q", "8021ad", first, second, third]}));
    commands.extend([
        json!({"add": {"map": map}}),
        BRIDGED.chain(CHAIN, "filter", "postrouting", PRIORITY),
        BRIDGED.rule(CHAIN, vec![to_guest(), tagged(), by_trunk("oifname")]),
        BRIDGED.rule(CHAIN, vec![to_guest(), any_tag, drop()]),
    ]);
    commands
}

/// Keeps tagged frames out of connection tracking, by each link at which a guest's come to a bridge. A host may have the kernel look
/// into them (`bridge-nf-filter-vlan-tagged`): a guest with a trunk would then begin connections under addresses of others, and what
/// belongs to a connection passes their security groups. Frames of other links are the host's own.
pub(super) fn untracked() -> [Vec<Value>; 3] {
    [TAP_PREFIX, INNER_PREFIX, PORT_PREFIX].map(|prefix| {
        let by_it = compare("==", meta("iifname"), json!(format!("{prefix}*")));
        vec![by_it, tagged(), json!({"notrack": null})]
    })
}

/// Goes to the VLANs of the tap by which a tagged frame came. One that is not accepted there goes on.
pub(super) fn sent() -> Vec<Value> {
    vec![tagged(), by_trunk("iifname")]
}

/// Accepts the tagged frames of a network that the hosts have: they are checked where they leave by a tap.
pub(super) fn from_the_network() -> Vec<Value> {
    vec![compare("==", meta("iifname"), json!(format!("{INNER_PREFIX}*"))), tagged(), accept()]
}

fn chain_of(number: usize) -> String {
    format!("trunk_{number}")
}

fn by_trunk(interface: &str) -> Value {
    json!({"vmap": {"key": meta(interface), "data": format!("@{MAP}")}})
}

fn ether_type() -> Value {
    json!({"payload": {"protocol": "ether", "field": "type"}})
}

fn tagged() -> Value {
    compare("==", ether_type(), json!("8021q"))
}

/// A second tag would be the type of what is in the first.
fn with_one_tag_of(vlans: &[(u16, u16)]) -> Vec<Value> {
    let element = |(first, last): &(u16, u16)| match first == last {
        true => json!(first),
        false => json!({"range": [first, last]}),
    };
    let vlans: Vec<Value> = vlans.iter().map(element).collect();
    let field = |name: &str| json!({"payload": {"protocol": "vlan", "field": name}});
    vec![
        tagged(),
        compare("==", field("id"), json!({"set": vlans})),
        compare("==", field("type"), json!({"set": ["arp", "ip", "ip6"]})),
        accept(),
    ]
}
