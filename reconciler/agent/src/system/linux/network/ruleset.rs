//! `Firewall` → nftables, as JSON for `nft -j`. Pure.
//!
//! ```text
//!  to a public address, from outside or from the host ── map `forwards` ──▶ the private one
//!  from a private range to anywhere else ── masquerade ──▶ the host's address
//!  into a private network: answers, and what was sent to a public address; nothing else, other networks included
//! ```
//!
//! Guests with a public address leave under the host's address too: the addresses of a `local` pool lead nowhere
//! outside of this host, so answers to them would not come back.

use serde_json::{Value, json};

use crate::system::{Firewall, Forward, Nat};

pub(super) const TABLE: &str = "berth";
const FAMILY: &str = "inet";
const FORWARDS: &str = "forwards";
const BRIDGES: &str = "bridges";

/// One transaction that makes the table be this, whatever it was.
pub(super) fn replace(firewall: &Firewall) -> Value {
    let table = || json!({"table": {"family": FAMILY, "name": TABLE}});
    // To delete what may not be there is an error in nftables: so it is made first.
    let mut commands = vec![json!({"add": table()}), json!({"delete": table()}), json!({"add": table()})];
    let mut nat = firewall.nat.clone();
    let mut forwards = firewall.forwards.clone();
    nat.sort();
    nat.dedup();
    forwards.sort();
    forwards.dedup_by_key(|f| f.public);
    commands.extend(sets(&nat, &forwards));
    commands.extend(chains());
    commands.extend(rules(&nat));
    json!({"nftables": commands})
}

/// One transaction that leaves nothing.
pub(super) fn remove() -> Value {
    json!({"nftables": [{"delete": {"table": {"family": FAMILY, "name": TABLE}}}]})
}

fn sets(nat: &[Nat], forwards: &[Forward]) -> Vec<Value> {
    let mut map =
        json!({"family": FAMILY, "table": TABLE, "name": FORWARDS, "type": "ipv4_addr", "map": "ipv4_addr"});
    if !forwards.is_empty() {
        map["elem"] = forwards.iter().map(|f| json!([f.public, f.private])).collect();
    }
    let mut set = json!({"family": FAMILY, "table": TABLE, "name": BRIDGES, "type": "ifname"});
    if !nat.is_empty() {
        set["elem"] = nat.iter().map(|n| json!(n.bridge)).collect();
    }
    vec![json!({"add": {"map": map}}), json!({"add": {"set": set}})]
}

fn chains() -> Vec<Value> {
    let chain = |name, kind, hook, priority| {
        json!({"add": {"chain": {"family": FAMILY, "table": TABLE, "name": name, "type": kind, "hook": hook,
                                 "prio": priority, "policy": "accept"}}})
    };
    vec![
        chain("prerouting", "nat", "prerouting", -100),
        chain("output", "nat", "output", -100),
        chain("postrouting", "nat", "postrouting", 100),
        chain("forward", "filter", "forward", 0),
        chain("redirects", "filter", "output", 0),
    ]
}

fn rules(nat: &[Nat]) -> Vec<Value> {
    let to_private = || {
        json!({"dnat": {"family": "ip", "addr":
            {"map": {"key": field("daddr"), "data": format!("@{FORWARDS}")}}}})
    };
    let accept = || json!({"accept": null});
    let was_forwarded = || json!({"match": {"op": "in", "left": {"ct": {"key": "status"}}, "right": "dnat"}});
    let answer =
        json!({"match": {"op": "in", "left": {"ct": {"key": "state"}}, "right": ["established", "related"]}});
    let mut rules = vec![
        rule("prerouting", vec![to_private()]),
        rule("output", vec![to_private()]),
        rule("forward", vec![answer, accept()]),
        rule("forward", vec![was_forwarded(), accept()]),
    ];
    for Nat { bridge, cidr } in nat {
        let range = json!({"prefix": {"addr": cidr.network(), "len": cidr.prefix_len()}});
        let masquerade = || json!({"masquerade": null});
        let from = || compare("==", field("saddr"), range.clone());
        rules.push(rule(
            "postrouting",
            vec![from(), compare("!=", field("daddr"), range.clone()), masquerade()],
        ));
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
    }
    let into_any = compare("==", meta("oifname"), json!(format!("@{BRIDGES}")));
    rules.push(rule("forward", vec![into_any.clone(), json!({"drop": null})]));
    // A guest that reaches a neighbour by its public address must not be told that there is a shorter way.
    let redirect =
        compare("==", json!({"payload": {"protocol": "icmp", "field": "type"}}), json!("redirect"));
    rules.push(rule("redirects", vec![into_any, redirect, json!({"drop": null})]));
    rules
}

fn rule(chain: &str, expressions: Vec<Value>) -> Value {
    json!({"add": {"rule": {"family": FAMILY, "table": TABLE, "chain": chain, "expr": expressions}}})
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
