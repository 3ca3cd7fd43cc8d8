//! Security groups → the packet filters of the interfaces here. Pure.
//!
//! *Guarantees:* an interface that names a group is in the list of filtered ones, whether the group exists or not. What cannot be
//! understood allows nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

use berth_api::security_group::port_range;
use berth_api::{RuleProtocol, SecurityGroup, SecurityRule};
use berth_host::{FilterGroup, FilterProtocol, FilterRule, FilteredPort, Filters, RoutedPrefix};
use ipnet::Ipv6Net;

use crate::index::Tables;
use crate::key::ObjectName;
use crate::networking::GuestPort;

/// The groups (`namespace/name`) of the interfaces in the statuses of VMs here, by network and MAC address.
pub(super) type GroupsOf = BTreeMap<(String, String), Vec<String>>;

/// Returns the groups of a tap: those of its interface, and if its VM's status does not have that, what it was started with.
pub(super) fn groups<'a>(groups_of: &'a GroupsOf, guest: &'a GuestPort) -> &'a Vec<String> {
    groups_of.get(&(guest.network.clone(), guest.port.mac.clone())).unwrap_or(&guest.groups)
}

/// Returns the public prefixes of a tap. No two networks have the same addresses.
fn routed_to(guest: &GuestPort, routed: &[RoutedPrefix]) -> Vec<Ipv6Net> {
    let Some(own) = guest.port.ipv6 else { return Vec::new() };
    routed.iter().filter(|routed| routed.via == own).map(|routed| routed.prefix).collect()
}

/// `routed`: the public prefixes, whose addresses are filtered as those of their interfaces.
pub(super) fn filters(
    tables: &Tables,
    groups_of: &GroupsOf,
    ports: &[GuestPort],
    routed: &[RoutedPrefix],
) -> Filters {
    let filtered = |guest: &GuestPort| {
        let network = crate::networking::find(tables, &guest.network);
        let asks_dhcp = network.is_some_and(|network| network.checks_leases());
        let is_known = asks_dhcp || guest.port.address.is_some() || guest.port.ipv6.is_some();
        let groups = groups(groups_of, guest);
        let (port, groups) = (guest.port.clone(), groups.clone());
        let is_filtered = is_known && !groups.is_empty();
        let port = FilteredPort { port, groups, asks_dhcp, prefixes: routed_to(guest, routed) };
        is_filtered.then_some(port)
    };
    let mut ports: Vec<FilteredPort> = ports.iter().filter_map(filtered).collect();
    ports.sort();
    ports.dedup();
    of_ports(tables, ports)
}

/// Returns the filters of these interfaces, with their groups as they are now.
pub(super) fn of_ports(tables: &Tables, ports: Vec<FilteredPort>) -> Filters {
    let used: BTreeSet<&String> = ports.iter().flat_map(|port| &port.groups).collect();
    let found: Vec<_> = used.iter().filter_map(|name| Some((*name, find(tables, name)?))).collect();
    let (mut sets, mut ipv6_sets) = (BTreeMap::new(), BTreeMap::new());
    let mut groups = Vec::new();
    for (name, group) in found {
        let namespace = name.split_once('/').map(|(namespace, _)| namespace).unwrap_or_default();
        for named in group.spec.named_groups() {
            let named = format!("{namespace}/{named}");
            let found = find(tables, &named);
            let status = found.as_ref().and_then(|group| group.status.as_ref());
            sets.insert(named.clone(), status.map(|status| ranges(&status.addresses)).unwrap_or_default());
            let ipv6 = status.map(|status| ranges(&status.ipv6_addresses)).unwrap_or_default();
            ipv6_sets.insert(named, ipv6);
        }
        let rules = |rules: &[SecurityRule]| rules.iter().filter_map(|r| rule(namespace, r)).collect();
        groups.push(FilterGroup {
            name: name.clone(),
            ingress: rules(&group.spec.ingress),
            egress: group.spec.egress.as_deref().map(rules),
        });
    }
    Filters { ports, groups, sets, ipv6_sets }
}

/// Returns the groups (`namespace/name`) whose change changes these filters, those that do not exist included.
pub(super) fn groups_in(filters: &Filters) -> BTreeSet<String> {
    let of_ports = filters.ports.iter().flat_map(|port| &port.groups);
    of_ports.chain(filters.sets.keys()).cloned().collect()
}

fn find(tables: &Tables, name: &str) -> Option<std::sync::Arc<SecurityGroup>> {
    let (namespace, name) = name.split_once('/')?;
    tables.security_groups.get(&ObjectName::new(namespace, name))
}

/// Returns ranges of addresses, without those that cannot be understood.
fn ranges<A: FromStr + PartialOrd>(texts: &[String]) -> Vec<(A, A)> {
    let range = |text: &String| {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let (first, last): (A, A) = (first.parse().ok()?, last.parse().ok()?);
        (first <= last).then_some((first, last))
    };
    texts.iter().filter_map(range).collect()
}

/// Returns a rule, or None if a part of it cannot be understood: it would allow more without that part.
fn rule(namespace: &str, rule: &SecurityRule) -> Option<FilterRule> {
    let protocol = match rule.protocol {
        RuleProtocol::Any => FilterProtocol::Any,
        RuleProtocol::Tcp => FilterProtocol::Tcp,
        RuleProtocol::Udp => FilterProtocol::Udp,
        RuleProtocol::Icmp => FilterProtocol::Icmp,
        RuleProtocol::Icmpv6 => FilterProtocol::Icmpv6,
    };
    let ports: Option<Vec<(u16, u16)>> = rule.ports.iter().map(|text| port_range(text)).collect();
    let ranges: Option<Vec<ipnet::IpNet>> = rule.cidrs.iter().map(|cidr| cidr.parse().ok()).collect();
    let icmp_types: Option<Vec<u8>> = rule.icmp_types.iter().map(|kind| kind.number(rule.protocol)).collect();
    Some(FilterRule {
        name: rule.name.to_string(),
        protocol,
        ports: ports?,
        icmp_types: icmp_types?,
        ranges: ranges?,
        sets: rule.security_groups.iter().map(|group| format!("{namespace}/{group}")).collect(),
    })
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use berth_host::Port;
    use kube::runtime::watcher::Event;
    use serde_json::{Value, json};

    use super::*;
    use crate::index::Index;

    fn index(groups: &[(&str, Value, Value)]) -> Index {
        let index = Index::default();
        for (name, spec, addresses) in groups {
            let group = json!({
                "metadata": {"name": name, "namespace": "ns", "resourceVersion": "1"}, "spec": spec,
                "status": {"observedGeneration": 1, "addresses": addresses, "ipv6Addresses": ["fd00:60::2-fd00:60::9", "x-"]},
            });
            index.apply::<SecurityGroup>(Event::Apply(serde_json::from_value(group).expect("a group")));
        }
        index
    }

    fn port(last: u8, groups: &[&str]) -> GuestPort {
        let tap = format!("btt0000000{last}n0");
        let port = Port {
            tap,
            mac: format!("52:54:00:00:00:0{last}"),
            address: Some(Ipv4Addr::new(10, 0, 0, last)),
            ipv6: None,
        };
        let groups = groups.iter().map(|name| format!("ns/{name}")).collect();
        GuestPort { network: "ns/default".into(), port, groups }
    }

    #[test]
    fn the_groups_of_the_status_count_and_those_of_the_start_where_it_has_none() {
        let index = index(&[]);
        let key = ("ns/default".to_owned(), "52:54:00:00:00:02".to_owned());
        let groups_of = GroupsOf::from([(key, vec!["ns/new".to_owned()])]);
        let ports = [port(2, &["old"]), port(3, &["kept"]), port(4, &[])];
        let filters = filters(&index.read(), &groups_of, &ports, &[]);
        let found: Vec<_> = filters
            .ports
            .iter()
            .map(|p| (p.port.address.map(|a| a.octets()[3]), p.groups[0].as_str()))
            .collect();
        assert_eq!(found, [(Some(2), "ns/new"), (Some(3), "ns/kept")]);
        assert!(filters.groups.is_empty(), "neither exists: both let nothing pass");
    }

    #[test]
    fn the_members_of_groups_that_rules_name_are_there_and_a_broken_rule_is_left_out() {
        let web = json!({"ingress": [
            {"name": "a", "protocol": "tcp", "ports": ["22", "80-81"], "cidrs": ["192.0.2.0/24", "fd00::/8"], "securityGroups": ["db", "gone"]},
            {"name": "b", "protocol": "tcp", "ports": ["x"], "cidrs": ["0.0.0.0/0"]},
            {"name": "c", "cidrs": ["192.0.2.1/33"]},
            {"name": "d", "protocol": "icmpv6", "icmpTypes": ["timestamp-request"], "cidrs": ["::/0"]},
        ], "egress": [{"name": "ping", "protocol": "icmp", "icmpTypes": ["echo-request"], "cidrs": ["0.0.0.0/0"]}]});
        let index = index(&[
            ("web", web, json!([])),
            ("db", json!({}), json!(["10.0.0.2-10.0.0.9", "10.0.1.1", "x", "10.0.0.9-10.0.0.1"])),
        ]);
        let filters = filters(&index.read(), &GroupsOf::new(), &[port(2, &["web"])], &[]);
        let [group] = &filters.groups[..] else { panic!("{filters:?}") };
        assert_eq!((group.ingress.len(), group.egress.as_ref().map(Vec::len)), (1, Some(1)));
        assert_eq!(group.egress.as_ref().expect("it has some")[0].icmp_types, [8]);
        assert_eq!(group.ingress[0].ports, [(22, 22), (80, 81)]);
        assert_eq!(group.ingress[0].sets, ["ns/db", "ns/gone"]);
        let address = |a, b| Ipv4Addr::new(10, 0, a, b);
        assert_eq!(filters.sets["ns/db"], [(address(0, 2), address(0, 9)), (address(1, 1), address(1, 1))]);
        assert!(filters.sets["ns/gone"].is_empty() && filters.ipv6_sets["ns/gone"].is_empty());
        assert_eq!(groups_in(&filters), BTreeSet::from(["ns/db", "ns/gone", "ns/web"].map(str::to_owned)));
        let ipv6 = |last| Ipv6Addr::new(0xfd00, 0x60, 0, 0, 0, 0, 0, last);
        assert_eq!(filters.ipv6_sets["ns/db"], [(ipv6(2), ipv6(9))]);
    }
}
