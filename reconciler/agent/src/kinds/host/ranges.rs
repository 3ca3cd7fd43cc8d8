//! The IPv4 ranges that the host reports: those that it uses, and those of its network segments. Pure.

use std::collections::BTreeSet;

use ipnet::{IpNet, Ipv4Net};

use super::observe::Observed;
use crate::config::AgentConfig;

/// Maximum number of address ranges in the API.
pub(super) const MAX_RANGES: usize = 64;
/// Larger segments are not reported, and smaller ones have neither a network nor a broadcast address.
const SEGMENT_PREFIXES: std::ops::RangeInclusive<u8> = 8..=30;

/// Returns the ranges that no Network may have.
pub(super) fn used(observed: &Observed, config: &AgentConfig) -> Vec<String> {
    let own = observed.facts.ranges.iter().map(|of| of.range);
    // Drops ranges that are contained in another.
    let control_plane = config.control_plane.iter().filter_map(|range| match range {
        IpNet::V4(range) => Some(*range),
        IpNet::V6(_) => None,
    });
    let all = Ipv4Net::aggregate(&own.chain(control_plane).collect());
    all.iter().filter(|range| range.prefix_len() > 0).take(MAX_RANGES).map(ToString::to_string).collect()
}

/// Returns the ranges of the segments that the host's interfaces are on, in order, so that the report does not follow the order in which the
/// kernel lists addresses. Adjacent ones stay apart: each has a broadcast address.
pub(super) fn segments(observed: &Observed) -> Vec<String> {
    let own = observed.facts.ranges.iter().filter(|of| !of.is_route).map(|of| of.range.trunc());
    let segments: BTreeSet<Ipv4Net> =
        own.filter(|range| SEGMENT_PREFIXES.contains(&range.prefix_len())).collect();
    segments.iter().take(MAX_RANGES).map(ToString::to_string).collect()
}
