//! The routers of guests, as they are configured. Pure.

use std::net::{IpAddr, Ipv6Addr};

use super::super::ruleset::link_local;
use crate::{GuestRoutes, Ipv6Route, NetworkConfig, Port, Route};

/// The router to which a guest sends a packet, as DHCP, router advertisements and its network configuration give it routes.
pub(super) fn router(network: &NetworkConfig, port: &Port, to: IpAddr) -> Option<IpAddr> {
    let lease = network.leases.iter().find(|lease| lease.mac == port.mac);
    let has_default = !lease.is_some_and(|lease| lease.no_default_route);
    let to = match to {
        IpAddr::V4(to) => to,
        IpAddr::V6(to) => {
            // A guest with DHCPv6 follows the router's advertisements, whatever its interface declares.
            let has_router = has_default || !lease.is_some_and(|lease| lease.no_dhcp6);
            let by_gateway = network.ipv6.filter(|_| has_router).map(|ipv6| ipv6.gateway);
            let own = lease.map(|lease| lease.ipv6_routes.as_slice()).unwrap_or_default();
            let routes = Ipv6Route::with_network(own, &network.ipv6_routes);
            return ipv6_router(&routes, port, to).or(by_gateway).map(IpAddr::V6);
        }
    };
    let gateway = network.ipv4?.gateway;
    let own = lease.map(|lease| lease.routes.as_slice()).unwrap_or_default();
    let declared = Route::with_network(own, &network.routes);
    let routes = GuestRoutes::of(&declared, Some(gateway), port.address, has_default).all();
    let found = routes.iter().filter(|route| route.to.contains(&to));
    found.max_by_key(|route| route.to.prefix_len()).map(|route| route.via.into())
}

/// The router of the most specific of these routes. A router gets no route by itself.
fn ipv6_router(routes: &[Ipv6Route], port: &Port, to: Ipv6Addr) -> Option<Ipv6Addr> {
    let own = [port.ipv6, link_local(&port.mac)];
    let found = routes.iter().filter(|route| route.to.contains(&to) && !own.contains(&Some(route.via)));
    found.max_by_key(|route| route.to.prefix_len()).map(|route| route.via)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_specific_ipv6_route_leads_to_its_router_and_never_to_itself() {
        let route = |to: &str, via: &str| Ipv6Route {
            to: to.parse().expect("a prefix"),
            via: via.parse().expect("an address"),
        };
        let routes = [route("fd09::/16", "fd00:60::9"), route("fd09:1::/32", "fe80::5054:ff:fe00:8")];
        let port = |last: u8, ipv6: &str| Port {
            tap: "btt1".into(),
            mac: format!("52:54:00:00:00:{last:02x}"),
            address: None,
            ipv6: ipv6.parse().ok(),
        };
        let to = |text: &str, port: &Port| {
            ipv6_router(&routes, port, text.parse().expect("an address")).map(|via| via.to_string())
        };
        let client = port(2, "fd00:60::2");
        assert_eq!(to("fd09:2::1", &client).as_deref(), Some("fd00:60::9"));
        assert_eq!(to("fd09:1::1", &client).as_deref(), Some("fe80::5054:ff:fe00:8"));
        assert_eq!(to("2001:db8::1", &client), None);
        assert_eq!(to("fd09:2::1", &port(9, "fd00:60::9")), None, "itself");
        assert_eq!(to("fd09:1::1", &port(8, "fd00:60::8")).as_deref(), Some("fd00:60::9"), "the other one");
    }
}
