//! The routes of guests. Pure.

use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::{Ipv4Net, Ipv6Net};

/// The destination of a default route.
const EVERYWHERE: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::UNSPECIFIED, 0);

/// A route of guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Route {
    pub to: Ipv4Net,
    /// The address of the router.
    pub via: Ipv4Addr,
}

impl Route {
    pub fn is_default(&self) -> bool {
        self.to == EVERYWHERE
    }
}

/// An IPv6 route of guests, which is no default route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ipv6Route {
    pub to: Ipv6Net,
    /// The address of the router, possibly a link-local one.
    pub via: Ipv6Addr,
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
        let default = self.default.map(|via| Route { to: EVERYWHERE, via });
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
}
