//! The routes of guests. Pure.

use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::{Ipv4Net, Ipv6Net};
use serde::{Deserialize, Serialize};

/// The destination of a default route.
const EVERYWHERE: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::UNSPECIFIED, 0);
/// The most declared routes of a guest: 16, and its default route. An option of DHCP has at most 255 bytes, and a DHCP server that is
/// configured with a longer one does not start, so that no guest of the network would have an address.
const MOST_DECLARED: usize = 17;

/// A route of guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Route {
    pub to: Ipv4Net,
    /// The address of the router.
    pub via: Ipv4Addr,
}

impl Route {
    /// The default route by this router.
    #[must_use]
    pub fn default_by(via: Ipv4Addr) -> Self {
        Self { to: EVERYWHERE, via }
    }

    pub fn is_default(&self) -> bool {
        self.to == EVERYWHERE
    }

    /// Returns the routes of a guest and those of its network, without the network's to destinations for which the guest has its own. Of
    /// more than an option of DHCP can have, the last ones are left out.
    #[must_use]
    pub fn with_network(own: &[Self], network: &[Self]) -> Vec<Self> {
        let is_other = |route: &&Self| !own.iter().any(|of_guest| of_guest.to == route.to);
        own.iter().chain(network.iter().filter(is_other)).take(MOST_DECLARED).copied().collect()
    }
}

/// An IPv6 route of guests. Those of a network are no default routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Ipv6Route {
    pub to: Ipv6Net,
    /// The address of the router, possibly a link-local one.
    pub via: Ipv6Addr,
}

impl Ipv6Route {
    /// The default route by this router.
    #[must_use]
    pub fn default_by(via: Ipv6Addr) -> Self {
        Self { to: Ipv6Net::default(), via }
    }

    /// Whether it leads to all destinations.
    #[must_use]
    pub fn is_default(&self) -> bool {
        self.to.prefix_len() == 0
    }

    /// Returns the routes of a guest and those of its network, as [`Route::with_network`] does.
    #[must_use]
    pub fn with_network(own: &[Self], network: &[Self]) -> Vec<Self> {
        let is_other = |route: &&Self| !own.iter().any(|of_guest| of_guest.to == route.to);
        own.iter().chain(network.iter().filter(is_other)).copied().collect()
    }
}

/// The routes of a guest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GuestRoutes {
    /// The router of the default route.
    pub default: Option<Ipv4Addr>,
    /// All others.
    pub others: Vec<Route>,
}

impl GuestRoutes {
    /// Returns the routes of a guest among those of its network: it has none by itself. A declared default route comes before the
    /// one by the gateway. `address`: its own; None for that of a guest that is no router.
    pub fn of(
        declared: &[Route],
        gateway: Option<Ipv4Addr>,
        address: Option<Ipv4Addr>,
        has_default: bool,
    ) -> Self {
        let by_others = || declared.iter().filter(|route| Some(route.via) != address);
        let default = by_others().find(|route| route.is_default()).map(|route| route.via).or(gateway);
        Self {
            default: default.filter(|_| has_default),
            others: by_others().filter(|route| !route.is_default()).copied().collect(),
        }
    }

    /// Returns all of them, the default route first.
    pub fn all(&self) -> Vec<Route> {
        let default = self.default.map(Route::default_by);
        default.into_iter().chain(self.others.iter().copied()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(to: &str, last: u8) -> Route {
        Route { to: to.parse().expect("a range"), via: address(last) }
    }

    fn address(last: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, 0, last)
    }

    #[test]
    fn a_declared_default_route_replaces_the_gateways_except_for_the_router_itself() {
        let declared = [route("192.168.0.0/16", 9), route("0.0.0.0/0", 9), route("172.16.0.0/12", 8)];
        let of = |last: u8, has_default: bool| {
            GuestRoutes::of(&declared, Some(address(1)), Some(address(last)), has_default)
        };
        let others = vec![route("192.168.0.0/16", 9), route("172.16.0.0/12", 8)];
        assert_eq!(of(5, true), GuestRoutes { default: Some(address(9)), others: others.clone() });
        assert_eq!(of(5, false), GuestRoutes { default: None, others: others.clone() });
        assert_eq!(of(9, true), GuestRoutes { default: Some(address(1)), others: vec![others[1]] });
        assert_eq!(of(8, true).others, [others[0]]);
        assert_eq!(of(5, true).all()[0], route("0.0.0.0/0", 9));
        assert_eq!(GuestRoutes::of(&[], None, None, true).all(), []);
    }

    #[test]
    fn a_route_of_a_guest_takes_the_place_of_the_networks_to_the_same_destination() {
        let network = [route("192.168.0.0/16", 9), route("0.0.0.0/0", 9)];
        let own = [Route::default_by(address(7)), route("172.16.0.0/12", 8)];
        let all = Route::with_network(&own, &network);
        assert_eq!(all, [own[0], own[1], network[0]]);
        let routes = GuestRoutes::of(&all, Some(address(1)), Some(address(5)), true);
        assert_eq!(routes, GuestRoutes { default: Some(address(7)), others: vec![own[1], network[0]] });
        let many = |second: u8| -> Vec<Route> {
            (0..16).map(|third| route(&format!("10.{second}.{third}.0/24"), 9)).collect()
        };
        let (of_guest, of_network) = (many(1), many(2));
        let all = Route::with_network(&of_guest, &of_network);
        assert_eq!((&all[..16], &all[16..]), (&of_guest[..], &of_network[..1]), "no more fit into an option");
        let ipv6 = |to: &str, via: &str| Ipv6Route {
            to: to.parse().expect("a prefix"),
            via: via.parse().expect("an address"),
        };
        let of_network = [ipv6("fd09::/48", "fd00:60::9"), ipv6("fd0a::/48", "fd00:60::9")];
        let of_guest = [ipv6("fd09::/48", "fd00:60::7")];
        assert_eq!(Ipv6Route::with_network(&of_guest, &of_network), [of_guest[0], of_network[1]]);
    }
}
