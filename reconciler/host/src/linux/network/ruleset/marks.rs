//! The DSCP of what guests send. Pure.
//!
//! ```text
//!  table bridge berth
//!    chain marks      frames that a guest has sent, after checks and limits ── map `marked` ──▶ chain of the DSCP
//!    chain of a DSCP  writes it into packets of IPv4 and IPv6, and leaves their ECN bits
//! ```
//!
//! The cost of a frame does not depend on the number of taps.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{BRIDGED, meta};
use crate::PortMark;

const CHAIN: &str = "marks";
const MAP: &str = "marked";
/// After the limits, so that nothing is written into packets that they drop.
const PRIORITY: i32 = -140;

/// The map, chains and rules, for a table without them. Nothing without marks.
pub(super) fn mark(marks: &[PortMark]) -> Vec<Value> {
    if marks.is_empty() {
        return Vec::new();
    }
    let mut marks: Vec<&PortMark> = marks.iter().collect();
    marks.sort();
    marks.dedup_by_key(|mark| &mark.tap);
    let chain_of = |dscp: u8| format!("dscp_{dscp}");
    let values: BTreeSet<u8> = marks.iter().map(|mark| mark.dscp).collect();
    let mut commands = Vec::new();
    for dscp in values {
        let chain = chain_of(dscp);
        commands.push(
            json!({"add": {"chain": {"family": BRIDGED.family, "table": BRIDGED.name, "name": chain}}}),
        );
        commands.extend(["ip", "ip6"].map(|protocol| {
            let field = json!({"payload": {"protocol": protocol, "field": "dscp"}});
            BRIDGED.rule(&chain, vec![json!({"mangle": {"key": field, "value": dscp}})])
        }));
    }
    let elements: Vec<Value> =
        marks.iter().map(|mark| json!([mark.tap, {"jump": {"target": chain_of(mark.dscp)}}])).collect();
    commands.push(json!({"add": {"map": {"family": BRIDGED.family, "table": BRIDGED.name, "name": MAP,
        "type": "ifname", "map": "verdict", "elem": elements}}}));
    commands.push(BRIDGED.chain(CHAIN, "filter", "prerouting", PRIORITY));
    let go = json!({"vmap": {"key": meta("iifname"), "data": format!("@{MAP}")}});
    commands.push(BRIDGED.rule(CHAIN, vec![go]));
    commands
}
