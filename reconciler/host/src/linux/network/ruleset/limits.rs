//! Ceilings for the traffic of taps. Pure.
//!
//! ```text
//!  table bridge berth
//!    chain sent       frames that a guest has sent, after their checks ── map `senders` ──▶ chain of the tap
//!    chain received   frames that leave by a tap                      ── map `receivers` ─▶ chain of the tap
//!    a chain of a tap  drops what is above its bandwidth, and what is above its packets a second
//! ```
//!
//! Dropped packets make TCP slow down. The cost of a frame does not depend on the number of taps.

use serde_json::{Value, json};

use super::{BRIDGED, drop, meta};
use crate::{PortLimits, TrafficLimit};

const SENT: Direction = Direction {
    chain: "sent",
    map: "senders",
    hook: "prerouting",
    // After the checks of what a guest may send, and the filters.
    priority: -150,
    interface: "iifname",
    limit: |limits| limits.egress,
};
const RECEIVED: Direction = Direction {
    chain: "received",
    map: "receivers",
    hook: "postrouting",
    priority: 0,
    interface: "oifname",
    limit: |limits| limits.ingress,
};

struct Direction {
    chain: &'static str,
    map: &'static str,
    hook: &'static str,
    priority: i32,
    interface: &'static str,
    limit: fn(&PortLimits) -> TrafficLimit,
}

/// The maps, chains and rules, for a table without them. Nothing without limits.
pub(super) fn limit(limits: &[PortLimits]) -> Vec<Value> {
    let mut limits: Vec<&PortLimits> = limits.iter().collect();
    limits.sort();
    limits.dedup_by_key(|port| &port.tap);
    [SENT, RECEIVED].iter().flat_map(|direction| in_direction(&limits, direction)).collect()
}

fn in_direction(limits: &[&PortLimits], direction: &Direction) -> Vec<Value> {
    let limited: Vec<(&str, TrafficLimit)> = limits
        .iter()
        .map(|port| (port.tap.as_str(), (direction.limit)(port)))
        .filter(|(_, limit)| *limit != TrafficLimit::default())
        .collect();
    if limited.is_empty() {
        return Vec::new();
    }
    let chain_of = |tap: &str| format!("{}_{tap}", direction.chain);
    let mut commands = Vec::new();
    for (tap, limit) in &limited {
        let chain = chain_of(tap);
        commands.push(
            json!({"add": {"chain": {"family": BRIDGED.family, "table": BRIDGED.name, "name": chain}}}),
        );
        commands.extend(above(*limit).into_iter().map(|above| BRIDGED.rule(&chain, vec![above, drop()])));
    }
    let elements: Vec<Value> =
        limited.iter().map(|(tap, _)| json!([tap, {"jump": {"target": chain_of(tap)}}])).collect();
    commands
        .push(json!({"add": {"map": {"family": BRIDGED.family, "table": BRIDGED.name, "name": direction.map,
        "type": "ifname", "map": "verdict", "elem": elements}}}));
    commands.push(BRIDGED.chain(direction.chain, "filter", direction.hook, direction.priority));
    let go = json!({"vmap": {"key": meta(direction.interface), "data": format!("@{}", direction.map)}});
    commands.push(BRIDGED.rule(direction.chain, vec![go]));
    commands
}

/// Matches what exceeds the limit.
fn above(limit: TrafficLimit) -> Vec<Value> {
    let bandwidth = limit.bandwidth.map(|(rate, burst)| {
        json!({"limit": {"rate": rate, "rate_unit": "bytes", "per": "second", "burst": burst, "burst_unit": "bytes", "inv": true}})
    });
    // As many at once as come within a tenth of a second.
    let packets = limit.packets.map(
        |rate| json!({"limit": {"rate": rate, "per": "second", "burst": (rate / 10).max(32), "inv": true}}),
    );
    bandwidth.into_iter().chain(packets).collect()
}
