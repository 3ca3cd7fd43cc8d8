//! Whether an interface of a VM, as declared, can be on its Network. Pure.

use std::net::IpAddr;

use kube::ResourceExt;

use crate::Network;
use crate::route::Route;
use crate::vm::NetworkInterface;

/// The largest packet of a Network that declares none.
const USUAL_MTU: i64 = 1500;
/// The most routes of a guest, as of a Network.
const MOST_ROUTES: usize = 16;

impl NetworkInterface {
    /// Returns why a router that it declares is none of this Network, for people.
    pub fn misrouted_on(&self, network: &Network) -> Option<String> {
        let gateways = [("gateway", &self.gateway), ("ipv6Gateway", &self.ipv6_gateway)];
        let gateways =
            gateways.into_iter().filter_map(|(field, via)| Some((field.to_owned(), via.as_ref()?)));
        let routes = self.routes.iter().map(|route| (format!("via of the route {}", route.name), &route.via));
        let wrong = gateways.chain(routes).find_map(|(field, via)| Some((field, outside(network, via)?)));
        let (interface, name) = (&self.name, network.name_any());
        if let Some((field, why)) = wrong {
            return Some(format!(
                "interface {interface}: {field} is no router of Network {name}: {why}; declare an address of the Network, or leave it out"
            ));
        }
        let (own, of_network) =
            (self.routes.len(), network.spec.routes.iter().filter(|route| self.keeps(route)).count());
        if own > 0 && own + of_network > MOST_ROUTES {
            return Some(format!(
                "interface {interface}: its {own} routes and {of_network} of Network {name} are more than {MOST_ROUTES}, which fit into a \
                 packet of DHCP: take some out"
            ));
        }
        let follows_advertisements = network.host_bridge().is_none() && !network.is_without_dhcp6(self.dhcp6);
        self.ipv6_gateway.as_ref().filter(|_| follows_advertisements).map(|via| {
            format!(
                "interface {interface}: ipv6Gateway {via} has no effect on Network {name} of type Overlay, whose guests follow the \
                 advertisements of its gateway: set dhcp6 to false on the interface, or leave ipv6Gateway out"
            )
        })
    }

    /// Whether a route of the Network is beside its own ones.
    fn keeps(&self, of_network: &Route) -> bool {
        self.routes.iter().all(|own| own.to != of_network.to)
    }

    /// Returns why its largest packet is none of this Network, for people.
    pub fn too_large_on(&self, network: &Network) -> Option<String> {
        let of_network = network.status.as_ref().and_then(|status| status.mtu).or(network.spec.mtu);
        let of_network = of_network.unwrap_or(USUAL_MTU);
        let mtu = self.mtu.filter(|mtu| *mtu > of_network)?;
        Some(format!(
            "interface {}: mtu {mtu} is larger than that of Network {}, which is {of_network}: lower it, or leave it out",
            self.name,
            network.name_any()
        ))
    }
}

/// Returns why the router is none of the Network.
fn outside(network: &Network, via: &str) -> Option<String> {
    match via.parse::<IpAddr>().ok()? {
        IpAddr::V4(via) => match network.range() {
            Some(range) if range.contains(&via) => None,
            Some(range) => Some(format!("{via} is not an address of its cidr {range}")),
            None => Some(format!("{via} is of IPv4, and it has no cidr")),
        },
        IpAddr::V6(via) => match network.ipv6_prefix() {
            Some(prefix) if prefix.contains(&via) || via.is_unicast_link_local() => None,
            Some(prefix) => Some(format!("{via} is not an address of its ipv6CIDR {prefix}")),
            None => Some(format!("{via} is of IPv6, and it has no ipv6CIDR")),
        },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn network(spec: Value) -> Network {
        let network = json!({"metadata": {"name": "lan", "namespace": "ns"}, "spec": spec});
        serde_json::from_value(network).expect("a Network")
    }

    fn interface(part: Value) -> NetworkInterface {
        let mut whole = json!({"name": "nic0"});
        whole.as_object_mut().expect("an object").extend(part.as_object().cloned().unwrap_or_default());
        serde_json::from_value(whole).expect("an interface")
    }

    #[test]
    fn routers_are_addresses_of_the_network_or_link_local() {
        let both = network(json!({"cidr": "10.77.0.0/16", "ipv6CIDR": "fd00:60::/64"}));
        let problem = |part: Value| interface(part).misrouted_on(&both);
        let route = |to: &str, via: &str| json!({"routes": [{"name": "office", "to": to, "via": via}]});
        assert_eq!(problem(json!({"gateway": "10.77.0.9"})), None);
        assert_eq!(problem(route("192.168.0.0/16", "10.77.0.9")), None);
        assert_eq!(problem(route("fd09::/48", "fe80::9")), None);
        assert_eq!(problem(json!({"ipv6Gateway": "fd00:60::9", "dhcp6": false})), None);
        for (part, why) in [
            (
                json!({"gateway": "10.78.0.9"}),
                "gateway is no router of Network lan: 10.78.0.9 is not an address of its cidr",
            ),
            (route("192.168.0.0/16", "10.78.0.9"), "via of the route office is no router"),
            (route("fd09::/48", "fd00:61::9"), "fd00:61::9 is not an address of its ipv6CIDR fd00:60::/64"),
            (json!({"ipv6Gateway": "fd00:60::9"}), "set dhcp6 to false"),
        ] {
            let text = problem(part).unwrap_or_default();
            assert!(text.contains(why), "{text}");
        }
        let routes: Value = (0..16)
            .map(|n| json!({"name": format!("r{n}"), "to": format!("172.16.{n}.0/24"), "via": "10.77.0.9"}))
            .collect();
        let full = network(json!({"cidr": "10.77.0.0/16", "routes": routes}));
        assert_eq!(
            interface(route("172.16.5.0/24", "10.77.0.8")).misrouted_on(&full),
            None,
            "in place of that one"
        );
        let text = interface(route("172.16.99.0/24", "10.77.0.8")).misrouted_on(&full).unwrap_or_default();
        assert!(text.contains("its 1 routes and 16 of Network lan"), "{text}");
        let ipv4 = network(json!({"cidr": "10.77.0.0/16"}));
        let text = interface(route("fd09::/48", "fe80::9")).misrouted_on(&ipv4).unwrap_or_default();
        assert!(text.contains("it has no ipv6CIDR"), "{text}");
        let bridge =
            network(json!({"type": "Bridge", "bridge": {"name": "vmbr0"}, "ipv6CIDR": "2001:db8:7::/64"}));
        assert_eq!(interface(json!({"ipv6Gateway": "fe80::9"})).misrouted_on(&bridge), None);
        assert!(interface(json!({"gateway": "192.0.2.1"})).misrouted_on(&bridge).is_some());
    }

    #[test]
    fn the_largest_packet_is_at_most_that_of_the_network() {
        let problem = |mtu: i64, spec: Value| interface(json!({"mtu": mtu})).too_large_on(&network(spec));
        assert_eq!(problem(1500, json!({"cidr": "10.77.0.0/16"})), None);
        assert!(problem(1501, json!({"cidr": "10.77.0.0/16"})).is_some());
        assert_eq!(problem(9000, json!({"cidr": "10.77.0.0/16", "mtu": 9000})), None);
        let text = problem(1450, json!({"cidr": "10.77.0.0/16", "mtu": 1400})).unwrap_or_default();
        assert!(text.contains("mtu 1450 is larger than that of Network lan, which is 1400"), "{text}");
    }
}
