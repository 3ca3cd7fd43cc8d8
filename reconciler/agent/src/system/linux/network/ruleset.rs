//! `Firewall` → nftables, as JSON for `nft -j`. Pure.
//!
//! ```text
//!  to a public address, from outside or from the host ── map `forwards` ──▶ the private one
//!  from a private range to anywhere else ── masquerade ──▶ the host's address
//!  into a private network: answers, and what was sent to a public address; nothing else, other networks included
//!  from a private network to the host itself: not to another network's gateway
//! ```
//!
//! A guest whose public address is announced leaves under it by the interface it is announced on. All others leave
//! under the host's address: the addresses of a `local` pool lead nowhere outside of this host, so answers to them
//! would not come back.

mod tunnels;

use serde_json::{Value, json};

use crate::system::{Firewall, Forward, Nat};

pub(super) const TABLE: &str = "berth";
/// What nftables keeps together. Ours have the same name in each family.
#[derive(Clone, Copy, Debug)]
pub(super) struct Table {
    pub(super) family: &'static str,
    pub(super) name: &'static str,
}

const ROUTED: Table = Table { family: "inet", name: TABLE };
/// Every table that may be ours.
pub(super) const TABLES: [Table; 2] = [ROUTED, tunnels::BRIDGED];
const FORWARDS: &str = "forwards";
const SOURCES: &str = "sources";
const BRIDGES: &str = "bridges";
const GATEWAYS: &str = "gateways";

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

/// One transaction that makes our tables be this, whatever they were; `there` says which there are.
pub(super) fn replace(firewall: &Firewall, there: &[Table]) -> Value {
    let mut commands = deletions(there);
    let mut nat = firewall.nat.clone();
    let mut forwards = firewall.forwards.clone();
    nat.sort();
    nat.dedup();
    forwards.sort();
    forwards.dedup_by_key(|f| f.public);
    commands.push(ROUTED.add());
    commands.extend(sets(&nat, &forwards));
    commands.extend(chains());
    commands.extend(rules(&nat, &forwards));
    if nat.iter().any(|network| network.tunnel.is_some()) {
        commands.extend(tunnels::between(&nat));
    }
    json!({"nftables": commands})
}

/// One transaction that leaves nothing.
pub(super) fn remove(there: &[Table]) -> Value {
    json!({"nftables": deletions(there)})
}

/// To delete what may not be there is an error in nftables: so each is made first, in case somebody removed it since
/// we looked.
fn deletions(there: &[Table]) -> Vec<Value> {
    there.iter().flat_map(|table| [table.add(), json!({"delete": table.id()})]).collect()
}

fn sets(nat: &[Nat], forwards: &[Forward]) -> Vec<Value> {
    let map = |name: &str, elements: Vec<Value>| {
        let kind = "ipv4_addr";
        let mut map =
            json!({"family": ROUTED.family, "table": TABLE, "name": name, "type": kind, "map": kind});
        if !elements.is_empty() {
            map["elem"] = elements.into();
        }
        json!({"add": {"map": map}})
    };
    let mut announced: Vec<&Forward> = forwards.iter().filter(|f| f.announced_on.is_some()).collect();
    // Of several addresses of one guest, the first is the one it leaves under.
    announced.sort_by_key(|f| (f.private, f.public));
    announced.dedup_by_key(|f| f.private);
    let set = |name: &str, kind: &str, elements: Vec<Value>| {
        let mut set = json!({"family": ROUTED.family, "table": TABLE, "name": name, "type": kind});
        if !elements.is_empty() {
            set["elem"] = elements.into();
        }
        json!({"add": {"set": set}})
    };
    let bridges = nat.iter().map(|n| json!(n.bridge)).collect();
    let gateways = nat.iter().map(|n| json!(n.gateway)).collect();
    vec![
        map(FORWARDS, forwards.iter().map(|f| json!([f.public, f.private])).collect()),
        map(SOURCES, announced.iter().map(|f| json!([f.private, f.public])).collect()),
        set(BRIDGES, "ifname", bridges),
        set(GATEWAYS, "ipv4_addr", gateways),
    ]
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

fn rules(nat: &[Nat], forwards: &[Forward]) -> Vec<Value> {
    let to_private = || {
        json!({"dnat": {"family": "ip", "addr":
            {"map": {"key": field("daddr"), "data": format!("@{FORWARDS}")}}}})
    };
    let accept = || json!({"accept": null});
    let was_forwarded = || json!({"match": {"op": "in", "left": {"ct": {"key": "status"}}, "right": "dnat"}});
    let answer =
        json!({"match": {"op": "in", "left": {"ct": {"key": "state"}}, "right": ["established", "related"]}});
    let mut rules = vec![rule("prerouting", vec![to_private()]), rule("output", vec![to_private()])];
    rules.extend(tunnels::past_tunnels(nat).into_iter().map(|expressions| rule("forward", expressions)));
    rules.extend(tunnels::into_tunnels(nat).into_iter().map(|expressions| rule("input", expressions)));
    rules.extend([rule("forward", vec![answer, accept()]), rule("forward", vec![was_forwarded(), accept()])]);
    let mut uplinks: Vec<&String> = forwards.iter().filter_map(|f| f.announced_on.as_ref()).collect();
    uplinks.sort();
    uplinks.dedup();
    for Nat { bridge, cidr, gateway, .. } in nat {
        let range = json!({"prefix": {"addr": cidr.network(), "len": cidr.prefix_len()}});
        let masquerade = || json!({"masquerade": null});
        let from = || compare("==", field("saddr"), range.clone());
        let elsewhere = || compare("!=", field("daddr"), range.clone());
        for uplink in &uplinks {
            let under_its_own = json!({"snat": {"family": "ip", "addr":
                {"map": {"key": field("saddr"), "data": format!("@{SOURCES}")}}}});
            let by_it = compare("==", meta("oifname"), json!(uplink));
            rules.push(rule("postrouting", vec![from(), elsewhere(), by_it, under_its_own]));
        }
        rules.push(rule("postrouting", vec![from(), elsewhere(), masquerade()]));
        // A neighbour reached by its public address would answer directly, under an address nobody asked.
        let neighbour = compare("==", field("daddr"), range.clone());
        rules.push(rule("postrouting", vec![from(), neighbour, was_forwarded(), masquerade()]));
        // Where the kernel shows bridged packets to the firewall, a network's own are not its business.
        let within = vec![
            compare("==", meta("iifname"), json!(bridge)),
            compare("==", meta("oifname"), json!(bridge)),
            accept(),
        ];
        rules.push(rule("forward", within));
        // Its name server knows that network's guests, and the host would take a packet for it from anywhere.
        let to_others = vec![
            compare("==", meta("iifname"), json!(bridge)),
            compare("!=", field("daddr"), json!(gateway)),
            compare("==", field("daddr"), json!(format!("@{GATEWAYS}"))),
            drop(),
        ];
        rules.push(rule("input", to_others));
    }
    let into_any = compare("==", meta("oifname"), json!(format!("@{BRIDGES}")));
    rules.push(rule("forward", vec![into_any.clone(), drop()]));
    // A guest that reaches a neighbour by its public address must not be told that there is a shorter way.
    let redirect =
        compare("==", json!({"payload": {"protocol": "icmp", "field": "type"}}), json!("redirect"));
    rules.push(rule("redirects", vec![into_any, redirect, drop()]));
    rules
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

/// What `nft -j list table` shows, without what differs from one listing to the next.
pub(super) fn canonical(mut listing: Value) -> Value {
    fn strip(value: &mut Value) {
        match value {
            Value::Object(map) => {
                map.remove("handle");
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
