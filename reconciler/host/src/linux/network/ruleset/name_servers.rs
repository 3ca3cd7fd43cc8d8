//! Keeps the name servers of bridged networks from the networks: each host has its own at the same address. Pure.
//!
//! ```text
//!  table bridge berth   what comes by a port of any bridge but a tap, and what leaves by a port to a bridged network: dropped if it
//!                       is from or to the address of a name server, or asks for it
//! ```

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use serde_json::{Value, json};

use super::super::TAP_PREFIX;
use super::super::bridged::INNER_PREFIX;
use super::{BRIDGED, compare, drop, meta};

const COMES: &str = "name_servers_in";
const LEAVES: &str = "name_servers_out";
/// Beside the check of guests' frames.
const COMES_PRIORITY: i32 = -199;
/// After the bridge has decided about a frame of its own or of a port.
const LEAVES_PRIORITY: i32 = 0;

/// The chains and rules. `servers`: the addresses by bridge.
pub(super) fn hide(servers: &[(String, Ipv4Addr)]) -> Vec<Value> {
    let addresses: BTreeSet<Ipv4Addr> = servers.iter().map(|(_, address)| *address).collect();
    if addresses.is_empty() {
        return Vec::new();
    }
    let mut commands = vec![
        BRIDGED.chain(COMES, "filter", "prerouting", COMES_PRIORITY),
        BRIDGED.chain(LEAVES, "filter", "postrouting", LEAVES_PRIORITY),
    ];
    let by_others = compare("!=", meta("iifname"), json!(format!("{TAP_PREFIX}*")));
    let to_a_network = compare("==", meta("oifname"), json!(format!("{INNER_PREFIX}*")));
    for (chain, by) in [(COMES, by_others), (LEAVES, to_a_network)] {
        for (protocol, field) in [("arp", "saddr ip"), ("arp", "daddr ip"), ("ip", "saddr"), ("ip", "daddr")]
        {
            let field = json!({"payload": {"protocol": protocol, "field": field}});
            let is_one = compare("==", field, json!({"set": addresses}));
            commands.push(BRIDGED.rule(chain, vec![by.clone(), is_one, drop()]));
        }
    }
    commands
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_of_name_servers_pass_no_port_but_taps() {
        assert!(hide(&[]).is_empty());
        let commands = hide(&[("bth-0a1b2c3d".to_owned(), Ipv4Addr::new(192, 0, 2, 53))]);
        let rules: Vec<&Value> =
            commands.iter().map(|command| &command["add"]["rule"]).filter(|rule| !rule.is_null()).collect();
        assert_eq!((commands.len(), rules.len()), (10, 8));
        for rule in &rules {
            assert_eq!(rule["expr"][1]["match"]["right"], json!({"set": ["192.0.2.53"]}));
            assert_eq!(rule["expr"][2], drop());
        }
        let by = |rule: &Value| {
            (rule["expr"][0]["match"]["op"].clone(), rule["expr"][0]["match"]["right"].clone())
        };
        assert_eq!(by(rules[0]), (json!("!="), json!("btt*")));
        assert_eq!(by(rules[4]), (json!("=="), json!("btv-*")));
    }
}
