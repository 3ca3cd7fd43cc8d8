//! Assigns bridges on this host to networks, or refuses a network. Pure.
//!
//! A bridge is named after the network's VNI, which no two networks share. A network with running guests keeps the
//! bridge their taps are on, whatever its name: earlier agents named bridges differently.

use std::collections::BTreeMap;

use ipnet::Ipv4Net;
use kube::ResourceExt;

use crate::index::{Tables, mtu_of};
use crate::networking::{find, host_networks, without_trunk};
use berth_api::BridgeSpec;
use berth_host::{HostLinks, HostRange};

/// The bridges and ranges found on the host.
#[derive(Clone, Debug, Default)]
pub(super) struct Existing<'a> {
    /// By network: the bridge that the taps of its running guests are on.
    pub(super) attached: BTreeMap<String, String>,
    /// All bridges created by berth.
    pub(super) bridges: &'a [String],
    /// Ranges that the host itself uses.
    pub(super) ranges: &'a [HostRange],
    /// Bridges and interfaces of the host, which bridged networks name.
    pub(super) links: HostLinks,
}

/// The assigned bridges, and the refused networks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Assigned {
    /// By network.
    pub(super) bridges: BTreeMap<String, String>,
    /// By network: why no VM is started on it, for people. It has a bridge if it lacks nothing but its trunk.
    pub(super) refused: BTreeMap<String, String>,
}

impl Assigned {
    /// Returns the bridges by network, and those of bridged networks that are refused while guests run on them: these keep their
    /// connection, so that the rules pass and guard it as before. `attached`: by network, the bridge that its guests are on.
    pub(super) fn with_running(
        &self,
        tables: &Tables,
        attached: &BTreeMap<String, String>,
    ) -> BTreeMap<String, String> {
        let is_kept = |(name, _): &(&String, &String)| {
            let network = find(tables, name);
            self.refused.contains_key(*name) && network.is_some_and(|network| network.host_bridge().is_some())
        };
        let all = attached.iter().filter(is_kept).chain(&self.bridges);
        all.map(|(name, bridge)| (name.clone(), bridge.clone())).collect()
    }
}

const SAME_IDENTIFIER: &str = "its identifier is that of another network on this host: create it anew";

/// Returns why a network with this MTU cannot be connected to this bridge of the host.
fn cannot_join(bridge: &BridgeSpec, mtu: u16, links: &HostLinks) -> Option<String> {
    let networks = host_networks(links);
    if let Some(why) = bridge.unusable_on(&networks, links.vlans) {
        return Some(format!("this host {why}; correct that, or place the VM on another host"));
    }
    let name = bridge.name.as_ref().or(bridge.interface.as_ref())?;
    let found = networks.iter().find(|network| network.name == *name)?;
    (found.mtu < i64::from(mtu)).then(|| {
        format!(
            "its MTU is {mtu} and that of {name} of this host {}: lower the Network's mtu, or raise that of {name}",
            found.mtu
        )
    })
}

/// Returns why a new network cannot have this range. `others`: those of the networks before it.
fn unusable_range(range: Ipv4Net, others: &[Ipv4Net], existing: &Existing<'_>) -> Option<String> {
    if others.iter().any(|of| of.contains(&range) || range.contains(of)) {
        return Some(format!(
            "its range {range} overlaps that of another network on this host: create it with another"
        ));
    }
    existing
        .ranges
        .iter()
        .find(|of| of.is_taken_by(range))
        .map(|_| format!("its range {range} is in use by this host itself: create it with another range"))
}

/// Assigns a bridge to each of these networks. Networks that have one come first, then older ones.
pub(super) fn assign<'a>(
    tables: &Tables,
    networks: impl Iterator<Item = &'a String>,
    existing: &Existing<'_>,
) -> Assigned {
    let mut found: Vec<_> = networks.filter_map(|name| Some((name, find(tables, name)?))).collect();
    found.sort_by_key(|(name, network)| {
        (!existing.attached.contains_key(*name), network.creation_timestamp(), (*name).clone())
    });
    found.dedup_by(|a, b| a.0 == b.0);
    let mut assigned = Assigned::default();
    let mut ranges: Vec<Ipv4Net> = Vec::new();
    for (name, network) in found {
        let attached = existing.attached.get(name);
        // A network without an identifier is not accepted yet; an existing bridge is left as it is.
        let Some(named) = network.bridge_name() else { continue };
        let bridge = attached.cloned().unwrap_or(named);
        let is_there = existing.bridges.contains(&bridge);
        if let Some(host_bridge) = network.host_bridge() {
            let is_taken = assigned.bridges.values().any(|of| *of == bridge);
            let without_trunk = without_trunk(host_bridge, &existing.links);
            let why = match cannot_join(host_bridge, mtu_of(&network), &existing.links) {
                _ if is_taken => Some(SAME_IDENTIFIER.to_owned()),
                Some(why) => Some(why),
                // Guests that run there keep their connection and lose the trunk.
                None => {
                    if without_trunk.is_none() || attached.is_some() {
                        assigned.bridges.insert(name.clone(), bridge);
                    }
                    without_trunk.map(|why| format!("this host {why}"))
                }
            };
            assigned.refused.extend(why.map(|why| (name.clone(), why)));
            continue;
        }
        // Without IPv4, the host compares the prefix with its own when it makes the bridge.
        let range = network.range();
        if range.is_none() && network.ipv6_prefix().is_none() {
            continue;
        }
        let why = match range {
            _ if assigned.bridges.values().any(|of| *of == bridge) => Some(SAME_IDENTIFIER.to_owned()),
            Some(range) if !is_there => unusable_range(range, &ranges, existing),
            _ => None,
        };
        match why {
            Some(why) => {
                assigned.refused.insert(name.clone(), why);
            }
            None => {
                ranges.extend(range);
                assigned.bridges.insert(name.clone(), bridge);
            }
        }
    }
    assigned
}

#[cfg(test)]
mod tests {
    use berth_api::Network;
    use kube::runtime::watcher::Event;
    use serde_json::json;

    use super::*;
    use crate::index::Index;

    fn world(networks: &[(&str, &str, i64)]) -> Index {
        let index = Index::default();
        for (n, (name, cidr, vni)) in networks.iter().enumerate() {
            let network = json!({
                "metadata": {"name": name, "namespace": "ns", "resourceVersion": "1",
                             "creationTimestamp": format!("2026-01-01T00:00:0{n}Z")},
                "spec": {"cidr": cidr}, "status": {"observedGeneration": 1, "vni": vni},
            });
            index.apply::<Network>(Event::Apply(serde_json::from_value(network).expect("a Network")));
        }
        index
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| format!("ns/{name}")).collect()
    }

    #[test]
    fn a_second_network_with_the_same_identifier_never_joins_the_bridge_of_the_first() {
        let index = world(&[("old", "10.1.0.0/24", 77), ("new", "10.2.0.0/24", 77)]);
        let both = names(&["new", "old"]);
        let assigned = assign(&index.read(), both.iter(), &Existing::default());
        assert_eq!(assigned.bridges, [("ns/old".to_owned(), "bth-00004d".to_owned())].into());
        assert!(assigned.refused["ns/new"].contains("identifier"), "{assigned:?}");
        // The network with running guests keeps its bridge, however young it is.
        let attached = BTreeMap::from([("ns/new".to_owned(), "bth-00004d".to_owned())]);
        let existing = Existing { attached, ..Existing::default() };
        let assigned = assign(&index.read(), both.iter(), &existing);
        assert_eq!(assigned.bridges.keys().collect::<Vec<_>>(), ["ns/new"]);
    }

    #[test]
    fn a_network_whose_guests_run_keeps_the_bridge_they_are_on() {
        let index = world(&[("a", "10.1.0.0/24", 77), ("b", "10.2.0.0/24", 78)]);
        let attached = BTreeMap::from([("ns/a".to_owned(), "bth-6a60db49".to_owned())]);
        let there = ["bth-6a60db49".to_owned()];
        let ranges = [HostRange { range: "10.1.0.0/16".parse().expect("a range"), is_route: false }];
        let existing = Existing { attached, bridges: &there, ranges: &ranges, ..Existing::default() };
        let assigned = assign(&index.read(), names(&["a", "b"]).iter(), &existing);
        assert_eq!(assigned.bridges["ns/a"], "bth-6a60db49");
        assert_eq!(assigned.bridges["ns/b"], "bth-00004e");
        assert!(assigned.refused.is_empty());
    }

    #[test]
    fn a_range_that_the_host_uses_is_refused_and_one_within_a_route_to_elsewhere_is_not() {
        let index =
            world(&[("lan", "192.0.2.0/25", 1), ("wide", "10.0.0.0/8", 2), ("within", "172.16.5.0/24", 3)]);
        let range = |text: &str, is_route| HostRange { range: text.parse().expect("a range"), is_route };
        let ranges = [range("192.0.2.0/24", false), range("10.9.0.0/16", true), range("172.16.0.0/12", true)];
        let existing = Existing { ranges: &ranges, ..Existing::default() };
        let assigned = assign(&index.read(), names(&["lan", "wide", "within"]).iter(), &existing);
        assert_eq!(assigned.refused.keys().collect::<Vec<_>>(), ["ns/lan", "ns/wide"]);
        assert_eq!(assigned.bridges.keys().collect::<Vec<_>>(), ["ns/within"]);
    }
}
