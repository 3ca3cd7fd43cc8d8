//! Decisions of rules, in the words of the objects that they follow from. Pure.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::super::relay::OUTER_PREFIX;
use super::super::ruleset::GroupChain;
use super::rules::Hit;
use crate::{Filters, TraceDirection, TraceObject, TracedRule};

/// The beginning of hosts' addresses within WireGuard, as nftables writes their prefix.
const WITHIN_WIREGUARD: &str = "\"fd62:6572:7468::\"";

/// A decision as a step shows it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Explanation {
    pub(super) place: &'static str,
    pub(super) by: Option<TraceObject>,
    pub(super) detail: String,
}

/// The place of a packet whose rules are explained.
#[derive(Clone, Copy, Debug)]
pub(super) struct Context<'a> {
    pub(super) groups: &'a BTreeMap<String, GroupChain>,
    pub(super) filters: &'a Filters,
    /// The interfaces by which it came and by which it leaves.
    pub(super) by: &'a str,
    pub(super) leaves_by: &'a str,
    /// The address to which its sender sent it.
    pub(super) opened_to: IpAddr,
}

/// Explains a rule that has dropped or rejected the packet.
pub(super) fn refusal(hit: &Hit, context: Context<'_>) -> Explanation {
    if let Some(explanation) = of_groups(hit, context) {
        return explanation;
    }
    let (place, detail) = reason(hit).unwrap_or(("rules of berth", ""));
    let network = |name: &str| Some(TraceObject::Network { name: name.to_owned() });
    let by = match (hit.family.as_str(), hit.chain.as_str()) {
        ("bridge", "filtered" | "tagged") => {
            Some(TraceObject::Interface { name: context.leaves_by.to_owned() })
        }
        ("bridge", "input" | "forward" | "output") => None,
        ("bridge", _) => Some(TraceObject::Interface { name: context.by.to_owned() }),
        (_, "input") if hit.rule.contains("reject") => {
            Some(TraceObject::PublicAddress { address: context.opened_to })
        }
        (_, "forward") if detail == BETWEEN_NETWORKS => network(context.leaves_by),
        (_, "forward") if ![CLOSED, TUNNELS, RELAY, NO_WAY].contains(&detail) => network(context.by),
        _ => Some(TraceObject::Host),
    };
    let detail = if detail.is_empty() {
        format!("a rule of chain {} {}", hit.family, hit.chain)
    } else {
        detail.into()
    };
    Explanation { place, by, detail }
}

/// Explains a rule that has accepted the packet. None: it is not worth a step.
pub(super) fn acceptance(hit: &Hit, context: Context<'_>) -> Option<Explanation> {
    if let Some(explanation) = of_groups(hit, context) {
        return Some(explanation);
    }
    let step = |place, by, detail: &str| Some(Explanation { place, by, detail: detail.to_owned() });
    let network = |name: &str| Some(TraceObject::Network { name: name.to_owned() });
    let has = |text: &str| hit.rule.contains(text);
    match (hit.family.as_str(), hit.chain.as_str()) {
        ("inet", "forward") if has("\"status\"") => {
            let by = Some(TraceObject::PublicAddress { address: context.opened_to });
            step("forwarding", by, "connections to a public address are forwarded to its guest")
        }
        ("inet", "forward") if has("@closed6") => {
            step("forwarding", network(context.by), "its IPv6 egress lets packets of its guests out")
        }
        ("inet", "forward") if context.by == context.leaves_by => {
            step("forwarding", network(context.by), "packets within a network pass")
        }
        ("inet", "input") if has("@gateways") => {
            step("host", network(context.by), "DHCP, DNS and echo requests at the gateway are answered")
        }
        ("inet", "input") if has("@allowed") => {
            step("host", Some(TraceObject::Host), "the host's option --guest-allow has the address")
        }
        ("inet", "input") => step("host", Some(TraceObject::Host), ""),
        _ => None,
    }
}

/// Explains a rule of a security group, or that none has one for the packet.
fn of_groups(hit: &Hit, context: Context<'_>) -> Option<Explanation> {
    let chain = context.groups.get(&hit.chain)?;
    let (direction, place) = match chain.is_egress {
        true => (TraceDirection::Egress, "security groups, egress"),
        false => (TraceDirection::Ingress, "security groups, ingress"),
    };
    if chain.is_of_interfaces {
        let by = TraceObject::SecurityGroups { names: chain.groups.clone(), direction };
        return Some(Explanation { place, by: Some(by), detail: "no rule allows the packet".to_owned() });
    }
    let name = chain.groups.first().cloned().unwrap_or_default();
    let rule = hit.comment.as_ref().and_then(|comment| rule_of(context.filters, &name, direction, comment));
    let detail = if hit.comment.is_none() { "the group has no egress rules, and allows all" } else { "" };
    let by = TraceObject::SecurityGroup { name, direction, rule };
    Some(Explanation { place, by: Some(by), detail: detail.to_owned() })
}

/// Returns the rule of a group that a comment names: group, direction and name, cut at the length that nftables allows.
fn rule_of(filters: &Filters, group: &str, direction: TraceDirection, comment: &str) -> Option<TracedRule> {
    let found = filters.groups.iter().find(|each| each.name == group)?;
    let (rules, word) = match direction {
        TraceDirection::Ingress => (found.ingress.as_slice(), "ingress"),
        TraceDirection::Egress => (found.egress.as_deref().unwrap_or_default(), "egress"),
    };
    let prefix = format!("{group} {word} ");
    let text = comment.strip_prefix(&prefix).unwrap_or_default();
    let is_it = |name: &str| if comment.len() < 120 { name == text } else { name.starts_with(text) };
    let index = rules.iter().position(|rule| is_it(&rule.name))?;
    Some(TracedRule { number: index + 1, name: rules[index].name.clone() })
}

const CLOSED: &str = "addresses of hosts and of the control plane, and link-local ones, are closed to guests: the host's option \
                      --guest-allow makes exceptions";
const TUNNELS: &str = "the tunnels between hosts are closed to guests and strangers";
const WIREGUARD: &str = "the encrypted way between hosts is closed to guests";
const RELAY: &str =
    "by the way to guests on other hosts, only connections to public addresses and their answers pass";
const NO_WAY: &str = "connections to a guest of a bridge leave by that bridge only, and the host has another way to its address";
const ISOLATED: &str = "the network is isolated: its guests do not reach each other";
const BETWEEN_NETWORKS: &str = "from outside and from other networks, a network receives answers and connections to public addresses only";

/// Returns place and reason of a rule that drops or rejects.
pub(super) fn reason(hit: &Hit) -> Option<(&'static str, &'static str)> {
    let has = |text: &str| hit.rule.contains(text);
    let is_tunnels = has("\"right\":4789");
    let found = match (hit.family.as_str(), hit.chain.as_str()) {
        ("bridge", "isolation") => ("isolation", ISOLATED),
        ("bridge", "filtered") => {
            ("filter of the bridge", "a filtered interface receives packets to its own addresses only")
        }
        ("bridge", "tagged") => {
            ("trunk", "frames with a VLAN tag reach interfaces with a trunk of that VLAN only")
        }
        ("bridge", "input" | "forward" | "output") => (
            "tunnel",
            "the gateway, DHCP and discovery of routers are each host's own, and do not cross a tunnel",
        ),
        ("bridge", chain) if chain.starts_with("sent_") || chain.starts_with("received_") => {
            ("limits", "above the limits of the interface")
        }
        ("bridge", "asks_dhcp") => ("source check", "a guest asks DHCP for its own MAC address only"),
        ("bridge", "advertises") => ("source check", "a guest advertises its own addresses only"),
        ("bridge", "other_arp" | "other_ipv4") => (
            "source check",
            "a guest sends from the addresses of its interface only: allowed_addresses makes exceptions",
        ),
        ("bridge", "other_ipv6") => (
            "source check",
            "a guest sends from the IPv6 addresses of its interface only: allowed_addresses makes exceptions",
        ),
        ("bridge", "guests") => ("source check", of_guests(&hit.rule)),
        ("inet", "input" | "forward") if is_tunnels => ("host", TUNNELS),
        ("inet", "input" | "forward" | "redirects") if has(WITHIN_WIREGUARD) || has("\"btw-*\"") => {
            ("host", WIREGUARD)
        }
        ("inet", "input" | "forward") if has(OUTER_PREFIX) => ("forwarding", RELAY),
        ("inet", "forward") if has("\"original\"") => ("forwarding", NO_WAY),
        ("inet", "forward") if has("@closed\"") => ("forwarding", CLOSED),
        ("inet", "forward") if has("net-unreachable") => {
            ("forwarding", "its egress is None, or it has no IPv4: packets to the outside are rejected")
        }
        ("inet", "forward") if has("no-route") => (
            "forwarding",
            "its IPv6 egress has no way there: it is None, or the address is in a network of the host or of other guests, or that of another \
             host or of the control plane",
        ),
        ("inet", "forward") if has("\"saddr\"") || has("\"nfproto\"") => {
            ("forwarding", "packets leave a network from its own addresses only")
        }
        ("inet", "forward") if has("\"iifname\"") && has("\"oifname\"") && has("\"!=\"") => {
            ("forwarding", "packets of a bridged network are not routed")
        }
        ("inet", "forward") if has("\"iifname\"") && has("\"oifname\"") => ("isolation", ISOLATED),
        ("inet", "forward") if has("\"oifname\"") => ("forwarding", BETWEEN_NETWORKS),
        ("inet", "input") if has("\"reject\"") => {
            ("public address", "no port of the address that leads to a guest matches the packet")
        }
        ("inet", "input") if has("\"lo\"") => {
            ("host", "the name server at a gateway answers the guests of its network only")
        }
        ("inet", "input") => {
            ("host", "the host is closed to guests, but for DHCP, DNS and echo requests at their gateway")
        }
        ("inet", "egress" | "ingress") => ("security groups", "the packet belongs to no connection"),
        ("inet", "redirects") => ("host", "guests are not redirected"),
        ("inet", chain) if chain.starts_with("groups_") => ("security groups", "no rule allows the packet"),
        _ => return None,
    };
    Some(found)
}

fn of_guests(rule: &str) -> &'static str {
    if rule.contains("@macs") {
        "a guest sends from the MAC addresses of its interface only: allowed_mac_addresses makes exceptions"
    } else if rule.contains("\"sport\"") || rule.contains("\"dport\"") {
        "a guest is no DHCP server, and its requests are in one piece"
    } else if rule.contains("\"icmpv6\"") {
        "a guest is no router"
    } else {
        "guests send IPv4 and ARP, and by IPv6 TCP, UDP and ICMPv6 without fragments"
    }
}

#[cfg(test)]
mod tests {
    use super::super::rules::Ruleset;
    use super::*;
    use crate::linux::network::ruleset;
    use crate::{Balanced, Firewall};

    #[test]
    fn a_connection_that_would_leave_by_another_way_than_its_bridge_has_an_explanation() {
        let balanced = Balanced {
            public: "198.51.100.8".parse().expect("an address"),
            announced_on: None,
            ports: Vec::new(),
            sources: Vec::new(),
            by_lan: vec![("vmbr0".to_owned(), "192.0.2.50".parse().expect("an address"))],
        };
        let firewall = Firewall { balanced: vec![balanced], ..Firewall::default() };
        let refusals = Ruleset::of(&ruleset::replace(&firewall, &[], &[])).refusals();
        let found = refusals.iter().find(|hit| hit.rule.contains("192.0.2.50")).expect("a rule");
        assert_eq!(reason(found), Some(("forwarding", NO_WAY)));
    }
}
