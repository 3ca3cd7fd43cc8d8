//! The network configuration that a guest gets, as its status publishes it. Pure.

use berth_api::vm::{ConfiguredRoute, InterfaceConfig, InterfaceStatus};
use berth_api::{Egress, Network, SHARED_NAMESPACE, VM};
use berth_host::{GuestRoutes, Ipv6Route, Route};

use crate::index::{Tables, mtu_of};
use crate::networking::{
    find, ipv6_routes_for, ipv6_routes_of, mtu_for, own_ipv6_gateway, routes_for, routes_of,
};

/// The most routes of an interface in the API. A Network that gets further ones can have more together with those of an interface.
const MOST_ROUTES: usize = 16;

/// Returns the configuration of each interface whose Network is known.
pub(super) fn configs(tables: &Tables, vm: &VM) -> Vec<InterfaceConfig> {
    let interfaces = vm.status.iter().flat_map(|status| &status.interfaces);
    interfaces
        .filter_map(|interface| find(tables, &interface.network).map(|network| config(&network, interface)))
        .collect()
}

fn config(network: &Network, interface: &InterfaceStatus) -> InterfaceConfig {
    let has_default = interface.default_route != Some(false);
    let ipv4 = network.range().filter(|_| !network.is_external() && !interface.address.is_empty());
    let ipv6 = network.ipv6_prefix().filter(|_| !interface.ipv6_address.is_empty());
    let is_overlay = network.host_bridge().is_none();
    let routes = match ipv4 {
        Some(_) => {
            let own = interface.address.parse().ok();
            let declared = routes_for(&routes_of(network), interface);
            GuestRoutes::of(&declared, network.gateway(), own, has_default)
        }
        None => GuestRoutes::default(),
    };
    let has_dhcp6 = !network.is_without_dhcp6(interface.dhcp6);
    // In an overlay the router advertises itself, whatever the interface declares. A guest without DHCPv6 ignores it.
    let is_ipv6_open = match is_overlay {
        true => network.spec.ipv6_egress != Egress::None && (has_dhcp6 || has_default),
        false => has_default,
    };
    let own_gateway = own_ipv6_gateway(network, interface).filter(|_| has_default);
    let ipv6_gateway = own_gateway.or_else(|| network.ipv6_gateway().filter(|_| is_ipv6_open));
    let ipv6_gateway = ipv6_gateway.filter(|_| ipv6.is_some());
    let route = |route: &Route| ConfiguredRoute { to: route.to.to_string(), via: route.via.to_string() };
    let ipv6_routes = match ipv6 {
        Some(_) => ipv6_routes_for(&ipv6_routes_of(network), interface),
        None => Vec::new(),
    };
    let ipv6_route =
        |route: Ipv6Route| ConfiguredRoute { to: route.to.to_string(), via: route.via.to_string() };
    let address = |address: &str, length: u8| format!("{address}/{length}");
    let gateway = routes.default.map(|gateway| gateway.to_string());
    InterfaceConfig {
        name: interface.name.clone(),
        addresses: ipv4
            .map(|range| address(&interface.address, range.prefix_len()))
            .into_iter()
            .chain(ipv6.map(|prefix| address(&interface.ipv6_address, prefix.prefix_len())))
            .collect(),
        gateways: gateway.into_iter().chain(ipv6_gateway.map(|gateway| gateway.to_string())).collect(),
        dns: name_servers(network, interface, ipv4.is_some(), ipv6.is_some()),
        search_domains: search_domains(network, interface),
        routes: routes
            .others
            .iter()
            .map(route)
            .chain(ipv6_routes.into_iter().map(ipv6_route))
            .take(MOST_ROUTES)
            .collect(),
        dhcp4: (ipv4.is_some() && network.is_without_dhcp4(interface.dhcp4)).then_some(false),
        dhcp6: (ipv6.is_some() && !has_dhcp6).then_some(false),
        ipv6_autoconfiguration: (ipv6.is_some() && has_dhcp6 && network.is_autoconfigured()).then_some(true),
        mtu: mtu_for(mtu_of(network), interface.mtu).into(),
    }
}

/// The name servers of the interface, or those of the network: on a bridge as they are declared, and in an overlay those of the families
/// that the guest has, as DHCP and DHCPv6 give them out.
fn name_servers(
    network: &Network,
    interface: &InterfaceStatus,
    has_ipv4: bool,
    has_ipv6: bool,
) -> Vec<String> {
    let (own, common) = (&interface.dns, &network.spec.dns);
    if network.host_bridge().is_some() {
        return if own.is_empty() { network.bridge_dns() } else { own.clone() };
    }
    let declared = if own.is_empty() { common } else { own };
    let of = |list: &[String], is_ipv6: bool| -> Vec<String> {
        list.iter().filter(|address| address.contains(':') == is_ipv6).cloned().collect()
    };
    let mut servers = Vec::new();
    if has_ipv4 && declared.is_empty() {
        servers.extend(network.gateway().map(|gateway| gateway.to_string()));
    } else if has_ipv4 {
        servers.extend(of(declared, false));
    }
    // An interface that names none of IPv6 has those of the network.
    let own_ipv6 = of(own, true);
    if has_ipv6 && !own_ipv6.is_empty() {
        servers.extend(own_ipv6);
    } else if has_ipv6 && common.is_empty() {
        servers.extend(network.ipv6_gateway().map(|gateway| gateway.to_string()));
    } else if has_ipv6 {
        servers.extend(of(common, true));
    }
    servers
}

/// The domains of the interface, or the one of the network's names and then those of the network.
fn search_domains(network: &Network, interface: &InterfaceStatus) -> Vec<String> {
    if !interface.search_domains.is_empty() {
        return interface.search_domains.clone();
    }
    let is_searched = network.metadata.namespace.as_deref() != Some(SHARED_NAMESPACE);
    let of_names = network.spec.dns_domain.as_ref().filter(|_| is_searched);
    let declared = network.spec.search_domains.iter().filter(|domain| Some(*domain) != of_names);
    of_names.into_iter().chain(declared).cloned().collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn configured(spec: Value, own: Value) -> Value {
        let network = json!({"metadata": {"name": "net", "namespace": "ns"}, "spec": spec});
        let network: Network = serde_json::from_value(network).expect("a Network");
        let mut interface = json!({"name": "nic0", "network": "ns/net", "macAddress": "52:54:00:00:00:01"});
        interface.as_object_mut().expect("an object").extend(own.as_object().cloned().unwrap_or_default());
        let interface = serde_json::from_value(interface).expect("an interface");
        serde_json::to_value(config(&network, &interface)).expect("JSON")
    }

    #[test]
    fn an_overlay_gives_its_gateway_as_router_and_name_server_and_its_routes_and_domains() {
        let spec = json!({"cidr": "10.77.0.0/16", "ipv6CIDR": "fd00:60::/64", "ipv6Egress": "Routed", "mtu": 1400,
            "dnsDomain": "app.internal", "searchDomains": ["example.org"],
            "routes": [{"name": "office", "to": "192.168.0.0/16", "via": "10.77.0.9"}]});
        let own = json!({"address": "10.77.0.2", "ipv6Address": "fd00:60::2"});
        assert_eq!(
            configured(spec.clone(), own),
            json!({"name": "nic0", "addresses": ["10.77.0.2/16", "fd00:60::2/64"], "gateways": ["10.77.0.1", "fd00:60::1"],
                "dns": ["10.77.0.1", "fd00:60::1"], "searchDomains": ["app.internal", "example.org"],
                "routes": [{"to": "192.168.0.0/16", "via": "10.77.0.9"}], "mtu": 1400})
        );
        let own = json!({"address": "10.77.0.9", "defaultRoute": false, "dns": ["9.9.9.9"], "searchDomains": ["a.b"]});
        assert_eq!(
            configured(spec, own),
            json!({"name": "nic0", "addresses": ["10.77.0.9/16"], "dns": ["9.9.9.9"], "searchDomains": ["a.b"], "mtu": 1400})
        );
    }

    #[test]
    fn an_interface_has_routes_routers_and_a_largest_packet_of_its_own() {
        let spec = json!({"cidr": "10.77.0.0/16", "ipv6CIDR": "fd00:60::/64", "mtu": 1400,
            "routes": [{"name": "office", "to": "192.168.0.0/16", "via": "10.77.0.9"}]});
        let own = json!({"address": "10.77.0.2", "ipv6Address": "fd00:60::2", "gateway": "10.77.0.8", "ipv6Gateway": "fd00:60::8",
            "mtu": 1300, "dhcp6": false,
            "routes": [{"to": "192.168.0.0/16", "via": "10.77.0.7"}, {"to": "fd09::/48", "via": "fd00:60::7"}]});
        let found = configured(spec.clone(), own);
        assert_eq!(found["gateways"], json!(["10.77.0.8", "fd00:60::8"]), "also where the Network has none");
        assert_eq!(
            found["routes"],
            json!([{"to": "192.168.0.0/16", "via": "10.77.0.7"}, {"to": "fd09::/48", "via": "fd00:60::7"}])
        );
        assert_eq!(found["mtu"], 1300);
        let many = |second: u8| -> Value {
            let to = |third: u8| json!({"name": format!("r{third}"), "to": format!("10.{second}.{third}.0/24"), "via": "10.77.0.7"});
            (0..12).map(to).collect()
        };
        let full = json!({"cidr": "10.77.0.0/16", "routes": many(1)});
        let found = configured(full, json!({"address": "10.77.0.2", "routes": many(2)}));
        assert_eq!(found["routes"].as_array().map(Vec::len), Some(16), "the API takes no more");
        let served = json!({"address": "10.77.0.2", "ipv6Address": "fd00:60::2", "ipv6Gateway": "fd00:60::8", "mtu": 9000});
        let found = configured(spec, served);
        assert_eq!(found["gateways"], json!(["10.77.0.1"]), "its guest follows the advertisements");
        assert_eq!(found["mtu"], 1400, "the smaller one counts");
    }

    #[test]
    fn ipv6_routes_are_those_of_guests_with_ipv6_but_not_of_their_router() {
        let spec = json!({"cidr": "10.77.0.0/16", "ipv6CIDR": "fd00:60::/64",
            "routes": [{"name": "office", "to": "192.168.0.0/16", "via": "10.77.0.9"},
                {"name": "office6", "to": "fd09::/48", "via": "fd00:60::9"},
                {"name": "lab6", "to": "fd0a::/48", "via": "fe80::5054:ff:fe00:1"},
                {"name": "all", "to": "::/0", "via": "fd00:60::9"}]});
        let of = |own: Value| configured(spec.clone(), own)["routes"].clone();
        let (office, office6) = (
            json!({"to": "192.168.0.0/16", "via": "10.77.0.9"}),
            json!({"to": "fd09::/48", "via": "fd00:60::9"}),
        );
        let both = json!({"address": "10.77.0.2", "ipv6Address": "fd00:60::2"});
        assert_eq!(of(both), json!([office, office6]), "the link-local router is the guest itself");
        assert_eq!(of(json!({"address": "10.77.0.2"})), json!([office]));
        assert_eq!(of(json!({"address": "10.77.0.2", "ipv6Address": "fd00:60::9"})), json!([office]));
    }

    #[test]
    fn an_interface_without_dhcp_has_the_same_configuration_and_is_marked() {
        let spec = json!({"cidr": "10.77.0.0/16", "ipv6CIDR": "fd00:60::/64", "dhcp4": false});
        let own = json!({"address": "10.77.0.2", "ipv6Address": "fd00:60::2"});
        assert_eq!(
            configured(spec.clone(), own),
            json!({"name": "nic0", "addresses": ["10.77.0.2/16", "fd00:60::2/64"], "gateways": ["10.77.0.1"],
                "dns": ["10.77.0.1", "fd00:60::1"], "dhcp4": false, "mtu": 1500})
        );
        let marked = |own: Value| {
            let config = configured(spec.clone(), own);
            (config["dhcp4"].clone(), config["dhcp6"].clone())
        };
        let served = json!({"address": "10.77.0.2", "dhcp4": true, "dhcp6": false});
        assert_eq!(marked(served), (Value::Null, Value::Null), "it has no IPv6 address");
        let only =
            json!({"address": "10.77.0.2", "ipv6Address": "fd00:60::2", "dhcp4": true, "dhcp6": false});
        assert_eq!(marked(only), (Value::Null, json!(false)));
        let routed = json!({"ipv6CIDR": "fd00:60::/64", "ipv6Egress": "Routed"});
        let gateways = |own: Value| {
            let mut interface = json!({"ipv6Address": "fd00:60::2", "defaultRoute": false});
            interface
                .as_object_mut()
                .expect("an object")
                .extend(own.as_object().cloned().unwrap_or_default());
            configured(routed.clone(), interface)["gateways"].clone()
        };
        assert_eq!(gateways(json!({})), json!(["fd00:60::1"]), "by router advertisements");
        assert_eq!(gateways(json!({"dhcp6": false})), Value::Null, "the guest ignores them");
    }

    #[test]
    fn a_guest_that_forms_its_address_has_no_lease_of_it_unless_it_is_configured_without_router_advertisements()
     {
        let spec = json!({"cidr": "10.77.0.0/16", "ipv6CIDR": "fd00:60::/64", "ipv6Autoconfiguration": true});
        let config = |own: Value| -> InterfaceConfig {
            serde_json::from_value(configured(spec.clone(), own)).expect("a configuration")
        };
        let ipv6 = "fd00:60::5054:ff:fe00:1";
        let formed = config(json!({"ipv6Address": ipv6}));
        assert_eq!((formed.ipv6_autoconfiguration, formed.dhcp6), (Some(true), None));
        assert!(formed.is_wholly_without_dhcp());
        assert!(!config(json!({"address": "10.77.0.2", "ipv6Address": ipv6})).is_wholly_without_dhcp());
        let fixed = config(json!({"ipv6Address": ipv6, "dhcp6": false}));
        assert_eq!((fixed.ipv6_autoconfiguration, fixed.dhcp6), (None, Some(false)));
        assert!(fixed.is_wholly_without_dhcp());
    }

    #[test]
    fn the_name_servers_of_each_family_are_those_that_the_guest_gets_of_it() {
        let dns = |network: Value, own: Value, ipv6: &str| {
            let spec = json!({"cidr": "10.77.0.0/16", "ipv6CIDR": "fd00:60::/64", "dns": network});
            let own = json!({"address": "10.77.0.2", "ipv6Address": ipv6, "dns": own});
            configured(spec, own)["dns"].clone()
        };
        let address = "fd00:60::2";
        assert_eq!(dns(json!([]), json!(["9.9.9.9"]), address), json!(["9.9.9.9", "fd00:60::1"]));
        assert_eq!(
            dns(json!(["2620:fe::fe", "9.9.9.9"]), json!([]), address),
            json!(["9.9.9.9", "2620:fe::fe"])
        );
        assert_eq!(
            dns(json!(["2620:fe::fe"]), json!(["9.9.9.9"]), address),
            json!(["9.9.9.9", "2620:fe::fe"])
        );
        assert_eq!(dns(json!([]), json!(["2620:fe::9"]), address), json!(["2620:fe::9"]));
        assert_eq!(dns(json!(["2620:fe::fe", "9.9.9.9"]), json!([]), ""), json!(["9.9.9.9"]), "without IPv6");
    }

    #[test]
    fn without_ipv4_and_without_a_way_out_there_is_an_address_and_a_name_server_and_no_router() {
        let spec = json!({"ipv6CIDR": "fd00:60::/64"});
        assert_eq!(
            configured(spec, json!({"ipv6Address": "fd00:60::2"})),
            json!({"name": "nic0", "addresses": ["fd00:60::2/64"], "dns": ["fd00:60::1"], "mtu": 1500})
        );
    }

    #[test]
    fn on_a_bridge_there_is_what_berth_gives_out_and_nothing_of_the_networks_own_servers() {
        let spec = |more: Value| {
            let mut spec = json!({"type": "Bridge", "bridge": {"name": "vmbr0"}});
            spec.as_object_mut().expect("an object").extend(more.as_object().cloned().unwrap_or_default());
            spec
        };
        let fixed = spec(
            json!({"cidr": "192.0.2.0/24", "ipv4": {"gateway": "192.0.2.1"}, "ipv6": {"allocation": "External"}}),
        );
        assert_eq!(
            configured(fixed, json!({"address": "192.0.2.50"})),
            json!({"name": "nic0", "addresses": ["192.0.2.50/24"], "gateways": ["192.0.2.1"], "mtu": 1500})
        );
        let external = spec(json!({"ipv4": {"allocation": "External"}}));
        assert_eq!(configured(external, json!({})), json!({"name": "nic0", "mtu": 1500}));
    }
}
