//! Further addresses of interfaces → what their taps may send beside their own. Pure.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;

use berth_api::Network;
use berth_api::vm::InterfaceStatus;
use berth_host::{ObservedPort, Port, PortException};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::filters::{self, GroupsOf};
use crate::index::Tables;
use crate::networking::{GuestPort, find, per_port};

/// The addresses of the families that are given out by others than berth: the guest sends from any, except where it is held to its
/// lease or to the addresses that are learned. Without its Network, a guest with no known address got it from another DHCP server.
fn given_out_elsewhere(network: Option<&Network>, port: &Port) -> Vec<IpNet> {
    let (ipv4, ipv6) = match network {
        Some(network) => {
            let ipv6 = network.is_ipv6_external() && !network.checks_learned();
            (network.is_external() && !network.checks_leases(), ipv6)
        }
        None => (port.address.is_none() && port.ipv6.is_none(), false),
    };
    let ipv4 = ipv4.then(|| IpNet::V4(Ipv4Net::default()));
    let ipv6 = ipv6.then(|| IpNet::V6(Ipv6Net::default()));
    ipv4.into_iter().chain(ipv6).collect()
}

/// The prefix of the link-local addresses of guests.
const LINK_LOCAL: Ipv6Net = Ipv6Net::new_assert(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 64);

/// The interfaces in the statuses of the guests here, by network and MAC address.
pub(super) type ByMac<'a> = BTreeMap<(&'a str, String), &'a InterfaceStatus>;

pub(super) fn by_mac<'a>(interfaces: &[&'a InterfaceStatus]) -> ByMac<'a> {
    let key = |interface: &&'a InterfaceStatus| {
        ((interface.network.as_str(), interface.mac_address.to_ascii_lowercase()), *interface)
    };
    interfaces.iter().map(key).collect()
}

/// Returns the prefix whose addresses the guest of a tap chooses among, besides link-local ones, if it does. One that declares such
/// addresses has these in their place, and a filtered one sends from addresses that the filter knows.
pub(super) fn chosen_prefix(
    network: Option<&Network>,
    groups_of: &GroupsOf,
    interfaces: &ByMac<'_>,
    guest: &GuestPort,
) -> Option<Ipv6Net> {
    let network = network.filter(|network| network.has_privacy_addresses())?;
    let prefix = network.ipv6_prefix()?;
    let is_of_it = |range: Ipv6Net| {
        let mut own = [prefix, LINK_LOCAL].into_iter();
        own.any(|own| own.contains(&range) || range.contains(&own))
    };
    let declares = |interface: &&InterfaceStatus| {
        let mut ranges = interface.allowed_addresses.iter().filter_map(|range| range.parse::<Ipv6Net>().ok());
        !interface.allowed_mac_addresses.is_empty() || ranges.any(is_of_it)
    };
    let interface = interfaces.get(&(guest.network.as_str(), guest.port.mac.clone()));
    let is_free = filters::groups(groups_of, guest).is_empty() && !interface.is_some_and(declares);
    is_free.then_some(prefix)
}

/// Returns the exceptions of these ports. `interfaces`: those in the statuses of the guests here, which count as they are now. A filtered
/// interface sends from addresses that the filter knows, and from no others. `observed`: the taps whose guests are held to the addresses
/// that they claim; of another one no guest chooses any.
pub(super) fn exceptions(
    tables: &Tables,
    groups_of: &GroupsOf,
    interfaces: &ByMac<'_>,
    observed: &[ObservedPort],
    ports: &[GuestPort],
) -> Vec<PortException> {
    let of_tap = |port: &ObservedPort| Some((port.tap.clone(), port.chosen.as_ref()?.prefix));
    let prefixes: BTreeMap<String, Ipv6Net> = observed.iter().filter_map(of_tap).collect();
    let exception = |guest: &GuestPort| {
        let network = find(tables, &guest.network);
        let mut any = match filters::groups(groups_of, guest).is_empty() {
            true => given_out_elsewhere(network.as_deref(), &guest.port),
            false => Vec::new(),
        };
        let chosen = prefixes.get(&guest.port.tap).copied();
        any.extend(chosen.into_iter().flat_map(|prefix| [prefix, LINK_LOCAL]).map(IpNet::V6));
        let declared = interfaces.get(&(guest.network.as_str(), guest.port.mac.clone()));
        let declared = declared.zip(network.as_deref());
        let routers = network.as_deref().filter(|_| chosen.is_some()).map(Network::router_addresses);
        let mut exception = PortException {
            tap: guest.port.tap.clone(),
            ranges: any.clone(),
            macs: Vec::new(),
            gateways: routers.unwrap_or_default(),
        };
        if let Some((interface, network)) = declared {
            let gateway_mac = network.gateway_mac();
            let macs = interface.allowed_mac_addresses.iter().map(|mac| mac.to_ascii_lowercase());
            let ranges = interface.allowed_addresses.iter().filter_map(|range| range.parse::<IpNet>().ok());
            // A guest that sends from any address of a family needs no further ones of it.
            let is_further = |range: &IpNet| !any.iter().any(|open| open.contains(range));
            exception.ranges.extend(ranges.filter(is_further));
            exception.macs = macs.filter(|mac| Some(mac) != gateway_mac.as_ref()).collect();
            exception.gateways = network.router_addresses();
        }
        (!exception.ranges.is_empty() || !exception.macs.is_empty()).then_some(exception)
    };
    per_port(ports, exception)
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use berth_host::ChosenAddresses;
    use kube::runtime::watcher::Event;
    use serde_json::json;

    use super::*;
    use crate::index::Index;

    #[test]
    fn an_interface_gets_what_its_status_has_and_never_the_gateways_mac() {
        let index = Index::default();
        let network = json!({
            "metadata": {"name": "default", "namespace": "ns", "resourceVersion": "1"},
            "spec": {"cidr": "10.77.0.0/16"}, "status": {"observedGeneration": 1, "vni": 77},
        });
        let network: Network = serde_json::from_value(network).expect("a Network");
        let gateway = network.gateway_mac().expect("it has an identifier");
        index.apply(Event::Apply(network));
        let interface = |last: u8, ranges: &[&str], macs: &[&str]| InterfaceStatus {
            network: "ns/default".into(),
            mac_address: format!("52:54:00:00:00:{last:02X}"),
            address: format!("10.77.0.{last}"),
            allowed_addresses: ranges.iter().map(|r| (*r).to_owned()).collect(),
            allowed_mac_addresses: macs.iter().map(|m| (*m).to_owned()).collect(),
            ..InterfaceStatus::default()
        };
        let port = |last: u8| GuestPort {
            network: "ns/default".into(),
            port: Port {
                tap: format!("btt{last}"),
                mac: format!("52:54:00:00:00:{last:02x}"),
                address: Some(Ipv4Addr::new(10, 77, 0, last)),
                ipv6: None,
            },
            groups: Vec::new(),
        };
        let interfaces = [
            interface(2, &["10.77.0.100/32", "x"], &["00:00:5e:00:01:0a", &gateway]),
            interface(3, &[], &[]),
        ];
        let found = {
            let interfaces: Vec<&InterfaceStatus> = interfaces.iter().collect();
            exceptions(
                &index.read(),
                &GroupsOf::new(),
                &by_mac(&interfaces),
                &[],
                &[port(2), port(3), port(4)],
            )
        };
        let [only] = &found[..] else { panic!("{found:?}") };
        assert_eq!((only.tap.as_str(), only.ranges.len(), only.macs.len()), ("btt2", 1, 1));
        assert_eq!(only.gateways, [IpAddr::from([10, 77, 0, 1])]);
    }

    #[test]
    fn further_ipv4_addresses_count_also_where_routers_give_out_those_of_ipv6() {
        let index = Index::default();
        let spec = json!({"type": "Bridge", "bridge": {"name": "vmbr0"}, "cidr": "192.0.2.0/24",
            "ipv4": {"gateway": "192.0.2.1"}, "ipv6": {"allocation": "External"}});
        let network = json!({"metadata": {"name": "lan", "namespace": "berth-shared", "resourceVersion": "1"},
            "spec": spec, "status": {"observedGeneration": 1, "vni": 77}});
        index.apply::<Network>(Event::Apply(serde_json::from_value(network).expect("a Network")));
        let mac = "52:54:00:00:00:02".to_owned();
        let interface = InterfaceStatus {
            network: "berth-shared/lan".into(),
            mac_address: mac.clone(),
            address: "192.0.2.50".into(),
            allowed_addresses: vec!["192.0.2.99/32".into()],
            ..InterfaceStatus::default()
        };
        let port = Port { tap: "btt2".into(), mac, address: "192.0.2.50".parse().ok(), ipv6: None };
        let guest = GuestPort { network: "berth-shared/lan".into(), port, groups: Vec::new() };
        let found = exceptions(&index.read(), &GroupsOf::new(), &by_mac(&[&interface]), &[], &[guest]);
        let [only] = &found[..] else { panic!("{found:?}") };
        assert_eq!(
            only.ranges.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["::/0", "192.0.2.99/32"]
        );
        assert_eq!(only.gateways, [IpAddr::from([192, 0, 2, 1])]);
    }

    #[test]
    fn further_addresses_are_of_both_families_and_never_those_of_the_gateway() {
        let index = Index::default();
        let network = json!({"metadata": {"name": "six", "namespace": "ns", "resourceVersion": "1"},
            "spec": {"cidr": "10.77.0.0/16", "ipv6CIDR": "fd00:60::/64"}, "status": {"observedGeneration": 1, "vni": 77}});
        index.apply::<Network>(Event::Apply(serde_json::from_value(network).expect("a Network")));
        let mac = "52:54:00:00:00:02".to_owned();
        let ranges = ["10.77.0.100/32", "fd00:60::100/128", "fe80::100/128", "fd00::/129"];
        let interface = InterfaceStatus {
            network: "ns/six".into(),
            mac_address: mac.clone(),
            allowed_addresses: ranges.map(str::to_owned).into(),
            ..InterfaceStatus::default()
        };
        let port = Port { tap: "btt2".into(), mac, address: None, ipv6: "fd00:60::2".parse().ok() };
        let guest = GuestPort { network: "ns/six".into(), port, groups: Vec::new() };
        let found = exceptions(&index.read(), &GroupsOf::new(), &by_mac(&[&interface]), &[], &[guest]);
        let [only] = &found[..] else { panic!("{found:?}") };
        assert_eq!(only.ranges.iter().map(ToString::to_string).collect::<Vec<_>>(), ranges[..3]);
        let gateways: Vec<String> = only.gateways.iter().map(ToString::to_string).collect();
        assert_eq!(gateways[..2], ["10.77.0.1", "fd00:60::1"]);
        assert!(gateways[2].starts_with("fe80::5054:ff:fe"), "{gateways:?}");
    }

    #[test]
    fn a_guest_sends_from_any_address_of_a_family_that_others_give_out_unless_it_is_filtered() {
        let any = |spec: serde_json::Value, ipv6: Option<&str>, groups: &[&str]| {
            let index = Index::default();
            let network = json!({"metadata": {"name": "lan", "namespace": "berth-shared", "resourceVersion": "1"},
                "spec": spec, "status": {"observedGeneration": 1, "vni": 77}});
            index.apply::<Network>(Event::Apply(serde_json::from_value(network).expect("a Network")));
            let ipv6 = ipv6.map(|text| text.parse().expect("an address"));
            let port = Port { tap: "btt2".into(), mac: "52:54:00:00:00:02".into(), address: None, ipv6 };
            let groups = groups.iter().map(|name| (*name).to_owned()).collect();
            let guest = GuestPort { network: "berth-shared/lan".into(), port, groups };
            let found = exceptions(&index.read(), &GroupsOf::new(), &ByMac::new(), &[], &[guest]);
            found.iter().flat_map(|one| &one.ranges).map(ToString::to_string).collect::<Vec<_>>()
        };
        let bridge = json!({"name": "vmbr0"});
        let external = json!({"allocation": "External"});
        let both = json!({"type": "Bridge", "bridge": bridge, "ipv4": external, "ipv6": external});
        assert_eq!(any(both.clone(), None, &[]), ["0.0.0.0/0", "::/0"]);
        assert_eq!(any(both, None, &["ns/web"]), [""; 0]);
        let ipv6_only = json!({"type": "Bridge", "bridge": bridge, "ipv6": external});
        assert_eq!(any(ipv6_only, None, &[]), ["::/0"]);
        let checked = json!({"allocation": "External", "sourceCheck": "Lease"});
        let checked = json!({"type": "Bridge", "bridge": bridge, "ipv4": checked, "ipv6": external});
        assert_eq!(any(checked, None, &[]), ["::/0"], "of IPv4 its lease only");
        let learned = json!({"allocation": "External", "sourceCheck": "Learned"});
        let learned = json!({"type": "Bridge", "bridge": bridge, "ipv4": external, "ipv6": learned});
        assert_eq!(any(learned, None, &[]), ["0.0.0.0/0"], "of IPv6 those that it has taken first only");
        let fixed = json!({"type": "Bridge", "bridge": bridge, "ipv6CIDR": "2001:db8:7::/64"});
        assert_eq!(any(fixed, Some("2001:db8:7::50"), &[]), [""; 0], "its own address only");
    }

    #[test]
    fn a_guest_that_chooses_sends_from_its_prefix_unless_it_is_filtered_or_declares_addresses_of_it() {
        let found_with = |is_held: bool, chooses: bool, ranges: &[&str], groups: &[&str]| {
            let index = Index::default();
            let spec = json!({"ipv6CIDR": "fd00:60::/64", "ipv6Autoconfiguration": true, "ipv6PrivacyAddresses": chooses});
            let network = json!({"metadata": {"name": "app", "namespace": "ns", "resourceVersion": "1"}, "spec": spec,
                "status": {"observedGeneration": 1, "vni": 77}});
            index.apply::<Network>(Event::Apply(serde_json::from_value(network).expect("a Network")));
            let mac = "52:54:00:00:00:02".to_owned();
            let interface = InterfaceStatus {
                network: "ns/app".into(),
                mac_address: mac.clone(),
                allowed_addresses: ranges.iter().map(|range| (*range).to_owned()).collect(),
                ..InterfaceStatus::default()
            };
            let ipv6 = "fd00:60::5054:ff:fe00:2".parse().ok();
            let port = Port { tap: "btt2".into(), mac, address: None, ipv6 };
            let groups = groups.iter().map(|name| (*name).to_owned()).collect();
            let guest = GuestPort { network: "ns/app".into(), port, groups };
            let (tables, interfaces) = (index.read(), by_mac(&[&interface]));
            let network = find(&tables, "ns/app");
            let prefix = chosen_prefix(network.as_deref(), &GroupsOf::new(), &interfaces, &guest);
            let observed = prefix.filter(|_| is_held).map(|prefix| ObservedPort {
                tap: "btt2".into(),
                chosen: Some(ChosenAddresses { bridge: "bth-00004d".into(), prefix, own: Vec::new() }),
                ..ObservedPort::default()
            });
            let found = exceptions(&tables, &GroupsOf::new(), &interfaces, observed.as_slice(), &[guest]);
            let texts = found.iter().map(|one| {
                let ranges: Vec<String> = one.ranges.iter().map(ToString::to_string).collect();
                format!("{} but {}", ranges.join(" "), one.gateways.len())
            });
            texts.collect::<Vec<_>>()
        };
        let found =
            |chooses: bool, ranges: &[&str], groups: &[&str]| found_with(true, chooses, ranges, groups);
        assert_eq!(found(true, &[], &[]), ["fd00:60::/64 fe80::/64 but 2"]);
        let routed = "2001:db8:5:0:1::/80";
        assert_eq!(found(true, &[routed], &[]), ["fd00:60::/64 fe80::/64 2001:db8:5:0:1::/80 but 2"]);
        assert_eq!(found(true, &["fd00:60::100/128"], &[]), ["fd00:60::100/128 but 2"]);
        assert_eq!(found(true, &["::/0"], &[]), ["::/0 but 2"]);
        assert_eq!(found(true, &[], &["ns/web"]), [""; 0]);
        assert_eq!(found(false, &[], &[]), [""; 0]);
        let unheld = found_with(false, true, &[], &[]);
        assert_eq!(unheld, [""; 0], "nothing holds it to its claims: a network without a bridge here");
    }
}
