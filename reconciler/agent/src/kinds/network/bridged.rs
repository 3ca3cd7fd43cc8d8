//! Bridged networks: their part on this host, and what their guests may send. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use berth_api::vm::InterfaceStatus;
use berth_api::{Network, Reason};
use berth_host::{
    BridgeChoice, BridgedNames, BridgedNetwork, GuestRoutes, Port, ServedGuest, ServedIpv6Guest,
};

use super::config::{addresses, names};
use super::filters::{self, GroupsOf};
use super::leases::macs;
use crate::index::{Tables, mtu_of};
use crate::networking::{
    GuestPort, RefusedAddress, bridge_choice, find, mtu_for, own_ipv6_gateway, routes_for, routes_of,
};

/// Returns the parts of bridged networks here. `interfaces`: those of all guests.
pub(super) fn bridged(
    tables: &Tables,
    bridges: &BTreeMap<String, String>,
    interfaces: &[&InterfaceStatus],
) -> Vec<BridgedNetwork> {
    let part = |(name, bridge): (&String, &String)| {
        let network = find(tables, name)?;
        let of_network: Vec<&InterfaceStatus> =
            interfaces.iter().copied().filter(|interface| interface.network == *name).collect();
        Some(BridgedNetwork {
            bridge: bridge.clone(),
            to: bridge_choice(network.host_bridge()?)?,
            tracked: of_network.iter().any(|interface| !interface.security_groups.is_empty()),
            leased: if network.is_external() { macs(of_network.iter().copied()) } else { Vec::new() },
            served: Vec::new(),
            served_ipv6: Vec::new(),
            learned: Vec::new(),
            names: named(&network),
            relay: None,
        })
    };
    let mut parts: Vec<BridgedNetwork> = bridges.iter().filter_map(part).collect();
    parts.sort_by(|a, b| a.bridge.cmp(&b.bridge));
    parts
}

/// Returns the names that the hosts of a bridged network answer, if it has any.
fn named(network: &Network) -> Option<BridgedNames> {
    let (address, range) = (network.name_server()?, network.range()?);
    Some(BridgedNames { address, range, names: names(network)? })
}

/// Returns a guest that gets the address of this interface from its host by DHCP, with the bridge of the network. None: it gets none.
pub(super) fn served(
    tables: &Tables,
    bridges: &BTreeMap<String, String>,
    (hostname, interface): (&str, &InterfaceStatus),
    ports: &[GuestPort],
) -> Option<(String, ServedGuest)> {
    let network = find(tables, &interface.network).filter(|network| network.serves_dhcp())?;
    let bridge = bridges.get(&interface.network)?;
    let mac = interface.mac_address.to_ascii_lowercase();
    let is_its = |guest: &&GuestPort| guest.network == interface.network && guest.port.mac == mac;
    let tap = ports.iter().find(is_its)?.port.tap.clone();
    let address: Ipv4Addr = interface.address.parse().ok()?;
    let (own_dns, own_domains) = (addresses(&interface.dns), interface.search_domains.clone());
    let has_default = interface.default_route != Some(false);
    let guest = ServedGuest {
        tap,
        mac,
        address,
        prefix_len: network.range()?.prefix_len(),
        hostname: hostname.to_owned(),
        mtu: match interface.mtu {
            Some(_) => Some(mtu_for(mtu_of(&network), interface.mtu)),
            None => network.spec.mtu.and_then(|mtu| u16::try_from(mtu).ok()),
        },
        dns: if own_dns.is_empty() { addresses(&network.bridge_dns()) } else { own_dns },
        search_domains: if own_domains.is_empty() {
            network.spec.search_domains.clone()
        } else {
            own_domains
        },
        routes: GuestRoutes::of(
            &routes_for(&routes_of(&network), interface),
            network.gateway(),
            Some(address),
            has_default,
        ),
    };
    Some((bridge.clone(), guest))
}

/// As [`served`], of its IPv6 address by DHCPv6.
pub(super) fn served_ipv6(
    tables: &Tables,
    bridges: &BTreeMap<String, String>,
    interface: &InterfaceStatus,
    ports: &[GuestPort],
) -> Option<(String, ServedIpv6Guest)> {
    let network = find(tables, &interface.network).filter(|network| network.serves_dhcp6())?;
    let bridge = bridges.get(&interface.network)?;
    let mac = interface.mac_address.to_ascii_lowercase();
    let is_its = |guest: &&GuestPort| guest.network == interface.network && guest.port.mac == mac;
    let tap = ports.iter().find(is_its)?.port.tap.clone();
    let router = own_ipv6_gateway(&network, interface).or_else(|| network.ipv6_gateway());
    let has_default = interface.default_route != Some(false);
    let (own_dns, own_domains) = (addresses(&interface.dns), interface.search_domains.clone());
    let guest = ServedIpv6Guest {
        tap,
        mac,
        address: interface.ipv6_address.parse().ok()?,
        prefix: network.ipv6_prefix()?,
        // A router advertises itself by its link-local address only.
        router: router.filter(|router| has_default && router.is_unicast_link_local()),
        mtu: match interface.mtu {
            Some(_) => Some(mtu_for(mtu_of(&network), interface.mtu)),
            None => network.spec.mtu.and_then(|mtu| u16::try_from(mtu).ok()),
        },
        dns: if own_dns.is_empty() { addresses(&network.spec.dns) } else { own_dns },
        search_domains: if own_domains.is_empty() {
            network.spec.search_domains.clone()
        } else {
            own_domains
        },
    };
    Some((bridge.clone(), guest))
}

/// Returns the bridges whose guests hear the advertisements of the network's routers: these give out its IPv6 addresses.
pub(super) fn advertised(tables: &Tables, bridges: &BTreeMap<String, String>) -> Vec<String> {
    let is_heard = |name: &String| find(tables, name).is_some_and(|network| network.is_ipv6_external());
    bridges.iter().filter(|(name, _)| is_heard(name)).map(|(_, bridge)| bridge.clone()).collect()
}

/// Returns the bridges whose packets pass between their ports and to no other interface: those for the taps of bridged networks, and those
/// that berth makes over interfaces.
pub(super) fn between_ports(tables: &Tables, bridges: &BTreeMap<String, String>) -> Vec<String> {
    let declared = |(name, bridge): (&String, &String)| {
        Some((bridge.clone(), bridge_choice(find(tables, name)?.host_bridge()?)?))
    };
    let (own, to): (BTreeSet<String>, Vec<BridgeChoice>) = bridges.iter().filter_map(declared).unzip();
    let over = to.iter().filter(|to| matches!(to, BridgeChoice::Over { .. }));
    let over: BTreeSet<String> = over.map(BridgeChoice::name).collect();
    own.into_iter().chain(over).collect()
}

/// Returns the addresses at which the hosts of bridged networks answer questions about names, with the bridge for their taps.
pub(super) fn name_servers(tables: &Tables, bridges: &BTreeMap<String, String>) -> Vec<(String, Ipv4Addr)> {
    let server =
        |(name, bridge): (&String, &String)| Some((bridge.clone(), find(tables, name)?.name_server()?));
    let mut servers: Vec<(String, Ipv4Addr)> = bridges.iter().filter_map(server).collect();
    servers.sort();
    servers
}

/// Returns why a public address is not forwarded to this interface: it is on a bridged network, or on one without IPv6 for that.
pub(super) fn refuse_public(
    tables: &Tables,
    interface: &InterfaceStatus,
    public: IpAddr,
) -> Option<RefusedAddress> {
    let network = find(tables, &interface.network)?;
    let (why, advice) = match public {
        IpAddr::V4(_) => {
            network.host_bridge()?;
            ("is a bridge, on which a VM has an address of the network itself", "take publicIP out")
        }
        IpAddr::V6(_) => (network.without_public_ipv6()?, "take publicIPv6 out"),
    };
    let text = format!(
        "{public} is not forwarded to interface {}: Network {} {why}; {advice}",
        interface.name, interface.network
    );
    Some(RefusedAddress { reason: Reason::NotSupported, text, mac: None })
}

/// Returns the taps that may send. An interface none of whose addresses is known cannot be filtered: if it names a security group, it
/// sends nothing, unless it sends only from its lease, which it has to ask for.
pub(super) fn ports(tables: &Tables, groups_of: &GroupsOf, guests: &[GuestPort]) -> Vec<Port> {
    let is_given_out_elsewhere = |guest: &GuestPort| {
        find(tables, &guest.network).is_none_or(|network| network.is_external() || network.is_ipv6_external())
    };
    let asks_for_lease =
        |guest: &GuestPort| find(tables, &guest.network).is_some_and(|network| network.checks_leases());
    let is_open = |guest: &&GuestPort| {
        guest.port.address.is_some()
            || guest.port.ipv6.is_some()
            || (filters::groups(groups_of, guest).is_empty() && is_given_out_elsewhere(guest))
            || asks_for_lease(guest)
    };
    let mut ports: Vec<Port> = guests.iter().filter(is_open).map(|guest| guest.port.clone()).collect();
    ports.sort();
    ports.dedup();
    ports
}

#[cfg(test)]
mod tests {
    use berth_host::{ExternalLease, HostBridge, HostInterface, HostLinks, TapFacts, Uplink};
    use kube::runtime::watcher::Event;
    use serde_json::{Value, json};

    use super::super::Step;
    use super::super::observe::{Actual, Desired, Observed, wanted};
    use super::super::plan::plan;
    use super::*;
    use crate::index::Index;

    const BRIDGE: &str = "bth-00004d";
    const TAP: &str = "btt01234567n0";
    const MAC: &str = "52:54:00:00:00:01";

    fn world(network: &Value, interface: &Value) -> Index {
        let index = Index::default();
        let mut status = json!({"name": "nic0", "network": "berth-shared/lan", "macAddress": MAC});
        let address = interface["address"].clone();
        if !address.is_null() {
            status["address"] = address;
        }
        let mut declared = interface.clone();
        declared["name"] = "nic0".into();
        let vm = json!({
            "metadata": {"name": "web", "namespace": "ns", "uid": "u1", "resourceVersion": "1"},
            "spec": {"class": "s", "disks": [{"name": "d", "boot": true}], "networkInterfaces": [declared]},
            "status": {"observedGeneration": 1, "instanceID": "i-0123456789ab", "interfaces": [status]},
        });
        index.apply::<berth_api::VM>(Event::Apply(serde_json::from_value(vm).expect("a VM")));
        let ip = json!({
            "metadata": {"name": "web", "namespace": "ns", "resourceVersion": "1"}, "spec": {},
            "status": {"observedGeneration": 1, "address": "198.18.100.1", "usedBy": [{"use": "Address", "vm": "web", "vmUid": "u1"}]},
        });
        index.apply::<berth_api::PublicIP>(Event::Apply(serde_json::from_value(ip).expect("a PublicIP")));
        let network = json!({
            "metadata": {"name": "lan", "namespace": "berth-shared", "resourceVersion": "1"},
            "spec": network, "status": {"observedGeneration": 1, "vni": 77, "hosts": [
                {"name": "h1", "address": "192.0.2.11"}, {"name": "h2", "address": "192.0.2.12"}]},
        });
        index.apply::<Network>(Event::Apply(serde_json::from_value(network).expect("a Network")));
        index
    }

    fn lan() -> Value {
        json!({"type": "Bridge", "bridge": {"name": "vmbr0"}, "cidr": "192.0.2.0/24"})
    }

    fn external() -> Value {
        json!({"type": "Bridge", "bridge": {"name": "vmbr0"}, "ipv4": {"allocation": "External"}})
    }

    fn with_bridge(name: &str, mtu: u32) -> HostLinks {
        let bridge = HostBridge { name: name.into(), mtu, up: true, filters_vlans: false };
        HostLinks { bridges: vec![bridge], ..HostLinks::default() }
    }

    fn vmbr0(mtu: u32) -> HostLinks {
        with_bridge("vmbr0", mtu)
    }

    fn port(address: Option<&str>) -> GuestPort {
        let address = address.map(|text| text.parse().expect("an address"));
        let port = Port { tap: TAP.into(), mac: MAC.into(), address, ipv6: None };
        GuestPort { network: "berth-shared/lan".into(), port, groups: Vec::new() }
    }

    #[test]
    fn a_bridged_network_is_connected_after_the_rules_and_has_no_dhcp_no_nat_and_no_tunnel() {
        let index = world(&lan(), &json!({"address": "192.0.2.50"}));
        let links = vmbr0(1500);
        let here = Actual {
            host: "h1",
            links: links.clone(),
            ports: vec![port(Some("192.0.2.50"))],
            ..Actual::default()
        };
        let wanted = wanted(&index.read(), &here);
        assert!(wanted.firewall.nat.is_empty() && wanted.networks.is_empty(), "{wanted:?}");
        let steps = plan(&Observed { wanted, ..Observed::default() });
        let [Step::ApplyFirewall(firewall), Step::EnsureBridged(part)] = &steps[..] else {
            panic!("{steps:?}")
        };
        assert_eq!((firewall.bridged.as_slice(), firewall.ports.len()), ([BRIDGE.to_owned()].as_slice(), 1));
        let expected = BridgedNetwork {
            bridge: BRIDGE.into(),
            to: BridgeChoice::Named("vmbr0".into()),
            tracked: false,
            leased: Vec::new(),
            served: Vec::new(),
            served_ipv6: Vec::new(),
            learned: Vec::new(),
            names: None,
            relay: None,
        };
        assert_eq!(*part, expected);
    }

    #[test]
    fn with_dhcp_the_host_answers_its_guests_and_keeps_their_requests_from_the_network() {
        let served = |dhcp: Value| {
            let mut spec = lan();
            spec["ipv4"] = json!({"gateway": "192.0.2.1", "dhcp": dhcp});
            spec["dns"] = json!(["192.0.2.2", "2001:db8::2"]);
            let index = world(&spec, &json!({"address": "192.0.2.50"}));
            let ports = vec![port(Some("192.0.2.50"))];
            let here = Actual { host: "h1", links: vmbr0(1500), ports, ..Actual::default() };
            let wanted = wanted(&index.read(), &here);
            (wanted.bridged[0].served.clone(), wanted.firewall.answered)
        };
        assert_eq!(served(json!(false)), (Vec::new(), Vec::new()));
        let (guests, answered) = served(json!(true));
        let [guest] = &guests[..] else { panic!("{guests:?}") };
        assert_eq!((guest.tap.as_str(), guest.mac.as_str(), guest.hostname.as_str()), (TAP, MAC, "web"));
        assert_eq!((guest.address.to_string().as_str(), guest.prefix_len), ("192.0.2.50", 24));
        assert_eq!((guest.routes.default, guest.dns.len()), ("192.0.2.1".parse().ok(), 1));
        assert_eq!(answered, [TAP]);
    }

    #[test]
    fn with_dhcp6_the_host_answers_its_guests_and_names_the_link_local_router() {
        let served = |ipv6: Value| {
            let spec = json!({"type": "Bridge", "bridge": {"name": "vmbr0"}, "ipv6CIDR": "2001:db8:7::/64",
                "ipv6": ipv6, "dns": ["192.0.2.1", "2001:db8:7::1"]});
            let index = world(&spec, &json!({}));
            let mut port = port(None);
            port.port.ipv6 = "2001:db8:7::50".parse().ok();
            let status = json!({"name": "nic0", "network": "berth-shared/lan", "macAddress": MAC, "ipv6Address": "2001:db8:7::50"});
            let interface: InterfaceStatus = serde_json::from_value(status).expect("an interface");
            let bridges = BTreeMap::from([("berth-shared/lan".to_owned(), BRIDGE.to_owned())]);
            served_ipv6(&index.read(), &bridges, &interface, &[port])
        };
        assert_eq!(served(json!({"gateway": "fe80::1"})), None);
        assert_eq!(served(json!({"gateway": "fe80::1", "dhcp": false})), None);
        let (bridge, guest) = served(json!({"gateway": "fe80::1", "dhcp": true})).expect("it is served");
        assert_eq!((bridge.as_str(), guest.tap.as_str(), guest.mac.as_str()), (BRIDGE, TAP, MAC));
        assert_eq!((guest.address.to_string().as_str(), guest.dns.len()), ("2001:db8:7::50", 1));
        assert_eq!(guest.router, "fe80::1".parse().ok());
        let global = served(json!({"gateway": "2001:db8:7::1", "dhcp": true}));
        assert_eq!(global.expect("it is served").1.router, None, "it cannot be advertised");
    }

    #[test]
    fn with_a_domain_the_host_answers_at_an_address_that_its_guests_ask() {
        let parts = |name_server: Value| {
            let mut spec = lan();
            spec["dnsDomain"] = "lan.example.org".into();
            spec["ipv4"] = json!({"dhcp": true, "nameServer": name_server});
            let index = world(&spec, &json!({"address": "192.0.2.50"}));
            let ports = vec![port(Some("192.0.2.50"))];
            let here = Actual { host: "h1", links: vmbr0(1500), ports, ..Actual::default() };
            let wanted = wanted(&index.read(), &here);
            (wanted.bridged[0].clone(), wanted.firewall.name_servers)
        };
        let (without, none) = parts(Value::Null);
        assert_eq!((without.names, without.served[0].dns.len(), none.len()), (None, 0, 0));
        let address = "192.0.2.53".parse().expect("an address");
        let (with, servers) = parts(json!("192.0.2.53"));
        let named = with.names.expect("names");
        assert_eq!((named.address, named.names.domain.as_str()), (address, "lan.example.org"));
        assert_eq!(
            (with.served[0].dns.as_slice(), servers),
            (&[address][..], vec![(BRIDGE.to_owned(), address)])
        );
    }

    #[test]
    fn a_host_without_the_bridge_refuses_the_network_and_leaves_what_runs_on_it() {
        let index = world(&lan(), &json!({"address": "192.0.2.50"}));
        let taps = [TapFacts { name: TAP.into(), bridge: Some(BRIDGE.into()) }];
        let there = [BRIDGE.to_owned()];
        let here = Actual {
            host: "h1",
            links: with_bridge("vmbr1", 1500),
            bridges: &there,
            taps: &taps,
            ports: vec![port(Some("192.0.2.50"))],
            ..Actual::default()
        };
        let wanted = wanted(&index.read(), &here);
        assert!(wanted.refused_networks["berth-shared/lan"].contains("no bridge vmbr0"), "{wanted:?}");
        assert_eq!(wanted.firewall.ports.len(), 1, "the guest is guarded as before");
        assert_eq!(wanted.firewall.bridged, [BRIDGE.to_owned()], "and passes between its ports");
        let observed = Observed {
            wanted: Desired { left_alone: BTreeSet::from([BRIDGE.to_owned()]), ..wanted },
            bridges: there.to_vec(),
            taps: vec![TAP.to_owned()],
            tap_owners: BTreeSet::from(["btt01234567n".to_owned()]),
            ..Observed::default()
        };
        let steps = plan(&observed);
        assert!(matches!(&steps[..], [Step::ApplyFirewall(_)]), "{steps:?}");
    }

    #[test]
    fn a_network_over_an_interface_is_connected_unless_the_host_uses_it_or_has_no_vlans() {
        let spec = |bridge: Value| json!({"type": "Bridge", "bridge": bridge, "cidr": "192.0.2.0/24"});
        let plain = spec(json!({"interface": "eth1"}));
        let tagged = spec(json!({"interface": "eth1", "vlan": 120}));
        let eth1 = |in_use: Option<&str>, mtu: u32, own: &[(u16, &str)]| HostInterface {
            name: "eth1".into(),
            mtu,
            in_use: in_use.map(str::to_owned),
            vlans: own.iter().map(|(id, name)| (*id, (*name).to_owned())).collect(),
            ..HostInterface::default()
        };
        let used = "has address 192.0.2.1/24";
        let cases = [
            (&plain, eth1(None, 1500, &[]), false, None),
            (&plain, eth1(Some(used), 1500, &[]), false, Some("has address 192.0.2.1/24; make a bridge")),
            (&plain, eth1(None, 1400, &[]), false, Some("MTU")),
            (&tagged, eth1(Some(used), 1500, &[]), true, None),
            (&tagged, eth1(None, 1500, &[]), false, Some("modprobe 8021q")),
            (&tagged, eth1(None, 1500, &[(120, "eth1.120")]), true, Some("as eth1.120")),
            (&tagged, HostInterface::default(), true, Some("no interface eth1")),
        ];
        for (network, interface, vlans, refused) in cases {
            let index = world(network, &json!({"address": "192.0.2.50"}));
            let links = HostLinks { interfaces: vec![interface], vlans, ..HostLinks::default() };
            let here = Actual { host: "h1", links: links.clone(), ..Actual::default() };
            let wanted = wanted(&index.read(), &here);
            let why = wanted.refused_networks.get("berth-shared/lan");
            match refused {
                Some(words) => assert!(why.is_some_and(|why| why.contains(words)), "{links:?}: {why:?}"),
                None => {
                    assert_eq!(why, None, "{links:?}");
                    let vlan = network["bridge"]["vlan"].as_u64().and_then(|vlan| u16::try_from(vlan).ok());
                    let over = BridgeChoice::Over { interface: "eth1".into(), vlan };
                    assert_eq!(wanted.bridged[0].to, over);
                    assert_eq!(wanted.firewall.bridged, [BRIDGE.to_owned(), over.name()]);
                }
            }
        }
    }

    #[test]
    fn a_bridge_with_a_smaller_mtu_is_refused() {
        let index = world(
            &json!({"type": "Bridge", "bridge": {"name": "vmbr0"}, "cidr": "192.0.2.0/24", "mtu": 9000}),
            &json!({}),
        );
        for (mtu, refused) in [(1500, true), (9000, false)] {
            let links = vmbr0(mtu);
            let here = Actual { host: "h1", links: links.clone(), ..Actual::default() };
            assert_eq!(wanted(&index.read(), &here).refused_networks.len(), usize::from(refused), "{mtu}");
        }
    }

    #[test]
    fn guests_that_run_on_a_network_that_is_refused_meanwhile_keep_the_rules_of_their_connection() {
        let spec = json!({"type": "Bridge", "bridge": {"name": "vmbr0"}, "cidr": "192.0.2.0/24", "mtu": 9000,
            "dnsDomain": "lan.example.org", "ipv4": {"dhcp": true, "nameServer": "192.0.2.53"},
            "ipv6": {"allocation": "External"}});
        let index = world(&spec, &json!({"address": "192.0.2.50"}));
        let taps = [TapFacts { name: TAP.into(), bridge: Some(BRIDGE.into()) }];
        let rules = |mtu: u32| {
            let ports = vec![port(Some("192.0.2.50"))];
            let here = Actual { host: "h1", links: vmbr0(mtu), taps: &taps, ports, ..Actual::default() };
            let found = wanted(&index.read(), &here);
            assert_eq!(found.refused_networks.len(), usize::from(mtu < 9000), "{mtu}");
            found.firewall
        };
        let before = rules(9000);
        assert_eq!((before.bridged.len(), before.advertised.len(), before.answered.len()), (1, 1, 1));
        assert_eq!(before.name_servers.len(), 1);
        assert_eq!(rules(1500), before);
    }

    #[test]
    fn a_bridge_with_vlan_filtering_is_refused_for_a_trunk_which_running_guests_lose() {
        let trunk = json!({"type": "Bridge", "bridge": {"name": "vmbr0", "trunkVLANs": ["10"]}, "cidr": "192.0.2.0/24"});
        let taps = [TapFacts { name: TAP.into(), bridge: Some(BRIDGE.into()) }];
        for (network, filters_vlans, trunks, refused) in
            [(&trunk, false, 1, false), (&trunk, true, 0, true), (&lan(), true, 0, false)]
        {
            let index = world(network, &json!({"address": "192.0.2.50"}));
            let mut links = vmbr0(1500);
            links.bridges[0].filters_vlans = filters_vlans;
            let ports = vec![port(Some("192.0.2.50"))];
            let runs = Actual { host: "h1", links: links.clone(), ports, taps: &taps, ..Actual::default() };
            let starts = Actual { host: "h1", links: links.clone(), ..Actual::default() };
            assert_eq!(wanted(&index.read(), &starts).bridged.is_empty(), refused, "{links:?}");
            let wanted = wanted(&index.read(), &runs);
            assert_eq!(wanted.bridged.len(), 1, "a running guest keeps its connection: {links:?}");
            let why = wanted.refused_networks.get("berth-shared/lan");
            assert_eq!(why.is_some_and(|why| why.contains("VLAN filtering")), refused, "{links:?}: {why:?}");
            assert_eq!((wanted.firewall.ports.len(), wanted.firewall.trunks.len()), (1, trunks), "{links:?}");
        }
    }

    #[test]
    fn with_another_dhcp_server_a_guest_sends_from_any_address_and_with_a_group_from_none() {
        let links = vmbr0(1500);
        let sees = |interface: &Value| {
            let index = world(&external(), interface);
            let here =
                Actual { host: "h1", links: links.clone(), ports: vec![port(None)], ..Actual::default() };
            wanted(&index.read(), &here).firewall
        };
        let open = sees(&json!({}));
        assert_eq!((open.ports.len(), open.filters.ports.len()), (1, 0));
        let [exception] = &open.exceptions[..] else { panic!("{open:?}") };
        assert_eq!((exception.tap.as_str(), exception.ranges[0].to_string().as_str()), (TAP, "0.0.0.0/0"));
        let closed = sees(&json!({"securityGroups": ["web"]}));
        assert!(
            closed.ports.is_empty(),
            "its address is not known, so that nothing could filter it: {closed:?}"
        );
    }

    #[test]
    fn where_leases_are_checked_a_guest_sends_from_its_lease_only_and_is_filtered_before_it_has_one() {
        let spec = json!({"type": "Bridge", "bridge": {"name": "vmbr0"},
            "ipv4": {"allocation": "External", "sourceCheck": "Lease"}});
        let lease = ExternalLease {
            bridge: BRIDGE.into(),
            mac: MAC.into(),
            address: "192.0.2.77".parse().expect("an address"),
        };
        let links = vmbr0(1500);
        for groups in [json!([]), json!(["web"])] {
            let sees = |leases: &[ExternalLease]| {
                let index = world(&spec, &json!({"securityGroups": groups}));
                let ports = vec![port(None)];
                wanted(
                    &index.read(),
                    &Actual { host: "h1", links: links.clone(), ports, leases, ..Actual::default() },
                )
            };
            let (without, with) = (sees(&[]), sees(std::slice::from_ref(&lease)));
            assert_eq!(without.bridged[0].leased, [MAC.to_owned()]);
            let addresses = |desired: &Desired| {
                desired.firewall.ports.iter().map(|port| port.address).collect::<Vec<_>>()
            };
            assert_eq!((addresses(&without), addresses(&with)), (vec![None], vec![Some(lease.address)]));
            for desired in [&without, &with] {
                assert!(desired.firewall.exceptions.is_empty(), "{desired:?}");
                let filtered = &desired.firewall.filters.ports;
                assert!(filtered.len() == groups.as_array().map_or(0, Vec::len), "{desired:?}");
                assert!(filtered.iter().all(|filtered| filtered.asks_dhcp), "{desired:?}");
            }
        }
    }

    #[test]
    fn a_public_address_never_leads_to_an_interface_on_a_bridge() {
        let index = world(&lan(), &json!({"address": "192.0.2.50", "publicIP": "web"}));
        let uplink = Uplink {
            interface: Ok("eth0".to_owned()),
            ipv6_obstacle: None,
            own: BTreeSet::new(),
            public: BTreeSet::new(),
        };
        let links = vmbr0(1500);
        let here = Actual { host: "h1", uplink: Some(&uplink), links: links.clone(), ..Actual::default() };
        let wanted = wanted(&index.read(), &here);
        assert!(wanted.firewall.forwards.is_empty());
        let refused = wanted.refused.values().next().expect("it is refused");
        assert!(refused.text.contains("nic0") && refused.reason == Reason::NotSupported, "{refused:?}");
    }
}
