//! The options that guests get by DHCP, from a real dnsmasq.

use std::net::{IpAddr, Ipv4Addr};

use super::dhcp::Offer;
use super::guest::Guest;
use super::{BRIDGE, Fixture, in_own_namespace, lease, network};
use crate::linux::files::blocking;
use crate::{Lease, Names, NetworkConfig, Route};

const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);

fn address(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, last)
}

fn route(to: &str, last: u8) -> Route {
    Route { to: to.parse().expect("a range"), via: address(last) }
}

fn texts(all: &[&str]) -> Vec<String> {
    all.iter().map(|text| (*text).to_owned()).collect()
}

/// Asks for an address, as at the end of a lease.
async fn offer(guest: Guest) -> (Offer, Guest) {
    let (offer, guest) = blocking(move || (guest.dhcp(), guest)).await;
    (offer.expect("an address"), guest)
}

fn routes(offer: &Offer) -> Vec<(&str, Ipv4Addr)> {
    offer.routes.iter().map(|(to, via)| (to.as_str(), *via)).collect()
}

#[test]
fn guests_get_routes_and_search_domains_and_a_change_at_their_next_request() {
    in_own_namespace(|| async {
        let f = Fixture::new();
        let plain = network(BRIDGE, "10.77.0.0/24", vec![lease(5), lease(9)]);
        f.networks.ensure(&plain).await.expect("made");
        let (guest, router) = (Guest::join(BRIDGE, 5), Guest::join(BRIDGE, 9));
        let (before, guest) = offer(guest).await;
        assert_eq!((before.router, before.dns.as_slice()), (Some(GATEWAY), [GATEWAY].as_slice()));
        assert!(before.routes.is_empty() && before.search_domains.is_empty(), "{before:?}");

        let config = NetworkConfig {
            search_domains: texts(&["example.org", "db.example.org"]),
            routes: vec![route("192.168.0.0/16", 9)],
            ..plain.clone()
        };
        f.networks.ensure(&config).await.expect("told");
        let (with, guest) = offer(guest).await;
        assert_eq!(with.search_domains, config.search_domains);
        assert_eq!(routes(&with), [("0.0.0.0/0", GATEWAY), ("192.168.0.0/16", address(9))]);
        let (of_router, _router) = offer(router).await;
        assert!(of_router.routes.is_empty(), "none by itself: {of_router:?}");
        assert_eq!(of_router.router, Some(GATEWAY));

        let config = NetworkConfig { routes: vec![route("0.0.0.0/0", 9)], ..plain.clone() };
        f.networks.ensure(&config).await.expect("told");
        let (by_another, guest) = offer(guest).await;
        assert_eq!(by_another.router, Some(address(9)));
        f.networks.ensure(&plain).await.expect("told");
        let (after, _guest) = offer(guest).await;
        assert_eq!(after, before);
    });
}

#[test]
fn an_interface_has_no_default_route_if_it_is_not_to_have_one_and_its_own_servers_and_domains() {
    in_own_namespace(|| async {
        let f = Fixture::new();
        let second = Lease { no_default_route: true, ..lease(6) };
        let third = Lease {
            dns: vec![Ipv4Addr::new(9, 9, 9, 9).into(), address(53).into()],
            search_domains: texts(&["example.net"]),
            ..lease(7)
        };
        let config = NetworkConfig {
            search_domains: texts(&["example.org"]),
            ..network(BRIDGE, "10.77.0.0/24", vec![lease(5), second, third])
        };
        f.networks.ensure(&config).await.expect("made");
        let guests = [5, 6, 7].map(|last| Guest::join(BRIDGE, last));
        let [first, second, third] = guests;
        let ((first, _a), (second, b), (third, _c)) =
            (offer(first).await, offer(second).await, offer(third).await);
        assert_eq!((first.router, first.dns.as_slice()), (Some(GATEWAY), [GATEWAY].as_slice()));
        assert_eq!((second.router, second.dns.as_slice()), (None, [GATEWAY].as_slice()));
        assert_eq!(second.search_domains, ["example.org"]);
        assert_eq!(third.dns, [Ipv4Addr::new(9, 9, 9, 9), address(53)]);
        assert_eq!(
            (third.router, third.search_domains.as_slice()),
            (Some(GATEWAY), texts(&["example.net"]).as_slice())
        );

        let routed = NetworkConfig { routes: vec![route("192.168.0.0/16", 9)], ..config };
        f.networks.ensure(&routed).await.expect("told");
        let (second, b) = offer(b).await;
        assert_eq!((second.router, routes(&second)), (None, vec![("192.168.0.0/16", address(9))]));
        let elsewhere = NetworkConfig { routes: vec![route("0.0.0.0/0", 9)], ..routed };
        f.networks.ensure(&elsewhere).await.expect("told");
        let (second, _b) = offer(b).await;
        assert_eq!((second.router, second.routes.len()), (None, 0));
    });
}

#[test]
fn a_guest_without_dhcp_gets_no_offer_and_the_others_of_its_network_do() {
    in_own_namespace(|| async {
        let f = Fixture::new();
        let unserved = Lease { no_dhcp4: true, ..lease(6) };
        let config = network(BRIDGE, "10.77.0.0/24", vec![lease(5), unserved]);
        f.networks.ensure(&config).await.expect("made");
        let (_, _served) = offer(Guest::join(BRIDGE, 5)).await;
        let guest = Guest::join(BRIDGE, 6);
        let (none, _guest) = blocking(move || (guest.dhcp(), guest)).await;
        assert!(none.is_none(), "{none:?}");
    });
}

#[test]
fn a_guest_with_domains_of_its_own_does_not_search_the_domain_of_names() {
    in_own_namespace(|| async {
        let f = Fixture::new();
        let own = Lease { search_domains: texts(&["example.net"]), ..lease(6) };
        let names =
            |is_searched| Some(Names { domain: "app.internal".to_owned(), is_searched, records: Vec::new() });
        let config =
            NetworkConfig { names: names(true), ..network(BRIDGE, "10.77.0.0/24", vec![lease(5), own]) };
        f.networks.ensure(&config).await.expect("made");
        let (first, a) = offer(Guest::join(BRIDGE, 5)).await;
        let (second, _b) = offer(Guest::join(BRIDGE, 6)).await;
        assert_eq!((first.domain.as_deref(), first.search_domains.len()), (Some("app.internal"), 1));
        assert_eq!((second.domain, second.search_domains), (None, texts(&["example.net"])));
        f.networks.ensure(&NetworkConfig { names: names(false), ..config }).await.expect("changed");
        let (first, _a) = offer(a).await;
        assert_eq!((first.domain, first.search_domains.len()), (None, 0));
    });
}

#[test]
fn as_much_as_can_be_declared_fits_into_a_packet() {
    in_own_namespace(|| async {
        let f = Fixture::new();
        let routes_to: Vec<Route> = (1..=16).map(|i| route(&format!("198.51.100.{i}/32"), 9)).collect();
        let longest = format!("{}.{}", "a".repeat(33), "b".repeat(7));
        let domain = format!("{}.{}", "d".repeat(40), "e".repeat(9));
        let own = Lease { hostname: "h".repeat(63), ..lease(5) };
        let config = NetworkConfig {
            dns: [50, 51, 52, 53].map(|last| IpAddr::V4(address(last))).to_vec(),
            search_domains: texts(&["c.d", "ef", "g", "h", "ij", &longest]),
            names: Some(Names { domain: domain.clone(), is_searched: true, records: Vec::new() }),
            routes: routes_to,
            ..network(BRIDGE, "10.77.0.0/24", vec![own])
        };
        assert_eq!((domain.len(), config.search_domains.concat().len()), (50, 50));
        f.networks.ensure(&config).await.expect("made");
        let (got, _guest) = offer(Guest::join(BRIDGE, 5)).await;
        assert_eq!((got.routes.len(), got.dns.len()), (17, 4));
        assert_eq!(got.search_domains[1..], config.search_domains);
        assert_eq!((&got.search_domains[0], got.domain.as_ref()), (&domain, Some(&domain)));
        assert_eq!((got.router, got.mtu), (Some(GATEWAY), Some(1450)));
    });
}
