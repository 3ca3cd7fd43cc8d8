//! Ports of public IPv6 addresses that lead to guests on several hosts.

use std::time::Instant;

use super::guest::{self, Guest};
use super::host::{self, Host, segment};
use super::ipv6::{configure, ipv6};
use super::*;
use crate::{Balanced, BalancedPort, Isolation, Port, PortProtocol, Relay};

/// Routed to the first host.
const PUBLIC: &str = "2001:db8:7::130";
/// Of the segment between the hosts, and announced there.
const ANNOUNCED: &str = "2001:db8:9::130";
/// The address under which the holder forwards to the other host.
const SOURCE: &str = "fd00:60::9";
const CLIENT: &str = "2001:db8:9::99";
const SOON: Duration = Duration::from_secs(10);

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// A port of the public addresses.
fn port(number: u16, targets: &[&str]) -> BalancedPort {
    let targets = targets.iter().map(|target| address(target)).collect();
    BalancedPort { protocol: PortProtocol::Tcp, port: number, by_client: false, targets, target_port: 80 }
}

/// Two hosts on a segment with IPv6, and a machine beside them.
fn site() -> (Host, Host, Guest) {
    segment(1500);
    let hosts = (Host::on_segment(11, 1500), Host::on_segment(12, 1500));
    hosts.0.on(|_, _| ip("-6 addr add 2001:db8:9::11/64 dev up0 nodad"));
    hosts.1.on(|_, _| {
        ip("-6 addr add 2001:db8:9::12/64 dev up0 nodad");
        ip("-6 route replace 2001:db8:7::/64 via 2001:db8:9::11");
    });
    let outsider = host::outsider("192.0.2.99/24");
    outsider.on(|| {
        ip("-6 addr add 2001:db8:9::99/64 dev eth0 nodad");
        ip("-6 route replace 2001:db8:7::/64 via 2001:db8:9::11");
    });
    // The kernel discovers the neighbours of forwarded packets from its link-local address, once that is known to be unique.
    let deadline = Instant::now() + SOON;
    for host in [&hosts.0, &hosts.1] {
        while !host.ip("-6 addr show dev up0 tentative").is_empty() {
            assert!(Instant::now() < deadline, "the link-local address stays tentative");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    (hosts.0, hosts.1, outsider)
}

/// Makes the network on a host with a tunnel to the other, and gives it the public addresses if there are ports. `remote`: the targets on
/// the other host.
fn make(host: &Host, other: &Host, ports: &[BalancedPort], remote: &[&str], more: Firewall) {
    let tunnel = Tunnel { vni: 77, local: host.address.into(), peers: vec![other.address.into()] };
    let relay = (!remote.is_empty()).then(|| Relay {
        addresses: vec![address(SOURCE)],
        targets: remote.iter().map(|target| address(target)).collect(),
    });
    let mut balanced = Vec::new();
    for (public, announced_on) in [(PUBLIC, None), (ANNOUNCED, Some("up0"))] {
        balanced.push(Balanced {
            public: address(public),
            announced_on: announced_on.map(str::to_owned),
            ports: ports.to_vec(),
            sources: relay.iter().map(|_| (BRIDGE.to_owned(), address(SOURCE))).collect(),
            by_lan: Vec::new(),
        });
    }
    balanced.retain(|balanced| !balanced.ports.is_empty());
    let config = NetworkConfig {
        ipv6: ipv6(Egress::Masquerade),
        tunnel: Some(tunnel.clone()),
        relay,
        ..network(BRIDGE, "10.77.0.0/24", Vec::new())
    };
    let nat = Nat { ipv6: ipv6(Egress::Masquerade), ..nat(BRIDGE, "10.77.0.0/24", Some(tunnel)) };
    let firewall = Firewall { nat: vec![nat], balanced, ..more };
    host.run(move |f| {
        Box::pin(async move {
            f.networks.apply_firewall(&firewall).await.expect("rules");
            f.networks.ensure(&config).await.expect("made");
        })
    });
}

fn guest(host: &Host, last: u8, address: &'static str) -> Guest {
    let guest = host.on(move |_, _| Guest::join(BRIDGE, last));
    configure(&guest, address);
    guest.serve6(80);
    guest
}

fn clear(hosts: &[&Host]) {
    for host in hosts {
        host.run(|f| {
            Box::pin(async move {
                f.networks.remove(BRIDGE).await.expect("removed");
                f.networks.apply_firewall(&Firewall::default()).await.expect("removed");
            })
        });
        let links = host.ip("-o link");
        assert!(!["bth-", "btx-", "btr-", "btq-"].iter().any(|name| links.contains(name)), "{links}");
        assert_eq!(host.on(|_, _| run("nft", "list ruleset")), "");
    }
}

#[test]
fn connections_to_a_port_of_an_ipv6_address_are_spread_over_guests_on_two_hosts_and_come_back() {
    in_own_namespace(|| async {
        let (a, b, outsider) = site();
        let ports = [port(8080, &["fd00:60::5", "fd00:60::6"]), port(8083, &["fd00:60::6"])];
        make(&a, &b, &ports, &["fd00:60::6"], Firewall::default());
        make(&b, &a, &[], &[], Firewall::default());
        let one = guest(&a, 5, "fd00:60::5");
        let two = guest(&b, 6, "fd00:60::6");

        // The guest on the holder sees the client, the other one the address of the holder in their network.
        let mut seen: Vec<String> = (0..4).filter_map(|_| outsider.fetch(PUBLIC, 8080)).collect();
        seen.sort();
        assert_eq!(seen, [CLIENT, CLIENT, SOURCE, SOURCE]);
        assert_eq!(outsider.fetch(ANNOUNCED, 8083).as_deref(), Some(SOURCE), "the announced address too");
        assert!(!outsider.connects(PUBLIC, 80), "not a port of it");
        for (client, place) in [(&one, "on the holder"), (&two, "itself, on the other host")] {
            assert_eq!(client.fetch(PUBLIC, 8083).as_deref(), Some(SOURCE), "{place}");
            assert_eq!((0..4).filter_map(|_| client.fetch(PUBLIC, 8080)).count(), 4, "{place}");
        }
        assert_eq!(one.fetch(ANNOUNCED, 8083).as_deref(), Some(SOURCE));
        for host in [&a, &b] {
            assert_eq!(host.on(|_, _| guest::fetch(PUBLIC, 8083)).as_deref(), Some(SOURCE));
        }
        assert_eq!(one.fetch("fd00:60::6", 80).as_deref(), Some("fd00:60::5"), "within the network");
        assert!(one.connects("fd00:60::1", 53) && two.connects("fd00:60::1", 53), "each its own gateway");

        // A health check of the guest on the other host.
        let checked = a.run(|_| {
            Box::pin(async {
                let target = "[fd00:60::6]:80".parse().expect("an address and a port");
                guest_port::connect_to_guest(&relay_link(BRIDGE), target).await.map(drop)
            })
        });
        checked.expect("it is reached");
        clear(&[&a, &b]);
    });
}

#[test]
fn the_way_to_ipv6_guests_on_other_hosts_has_exactly_their_routes_and_ends_with_the_last_of_them() {
    in_own_namespace(|| async {
        let (a, b, outsider) = site();
        let routes = || a.ip("-6 route show dev btr-0a1b2c3d proto 98");
        make(&b, &a, &[], &[], Firewall::default());
        make(&a, &b, &[port(8080, &["fd00:60::6"])], &["fd00:60::6"], Firewall::default());
        assert!(routes().contains("fd00:60::6 "), "{}", routes());
        let one = guest(&a, 5, "fd00:60::5");
        let _two = guest(&b, 6, "fd00:60::6");
        assert_eq!(outsider.fetch(PUBLIC, 8080).as_deref(), Some(SOURCE));
        make(&a, &b, &[port(8080, &["fd00:60::5"])], &["fd00:60::7"], Firewall::default());
        assert!(routes().contains("fd00:60::7 ") && !routes().contains("fd00:60::6 "), "{}", routes());
        assert_eq!(outsider.fetch(PUBLIC, 8080).as_deref(), Some(CLIENT), "another target, here");
        make(&a, &b, &[port(8080, &["fd00:60::5"])], &[], Firewall::default());
        assert!(!a.ip("-o link").contains("btr-"));
        assert_eq!(one.fetch("fd00:60::6", 80).as_deref(), Some("fd00:60::5"), "by the tunnel, as before");
        clear(&[&a, &b]);
    });
}

#[test]
fn a_guest_reaches_nothing_of_the_host_by_the_ipv6_address_that_connections_are_forwarded_from() {
    in_own_namespace(|| async {
        let (a, b, _outsider) = site();
        make(&a, &b, &[port(8080, &["fd00:60::6"])], &["fd00:60::6"], Firewall::default());
        make(&b, &a, &[], &[], Firewall::default());
        let two = guest(&b, 6, "fd00:60::6");
        a.on(|_, _| guest::serve_here6(2222));
        assert!(!two.connects(SOURCE, 2222), "a port of the host");
        // Verifies that the rules, and nothing else, drop them.
        a.on(|_, _| {
            run("nft", "flush chain inet berth input");
        });
        assert!(two.connects(SOURCE, 2222));
        clear(&[&a, &b]);
    });
}

/// The rules of a host with one guest of the isolated network. `relays`: the addresses that other hosts forward from.
fn isolated(last: u8, relays: &[&str]) -> Firewall {
    let tap = format!("btt0000000{last}n0");
    let port =
        Port { tap: tap.clone(), mac: lease(last).mac, address: lease(last).address, ipv6: lease(last).ipv6 };
    let relays = relays.iter().map(|relay| address(relay)).collect();
    let isolated = vec![Isolation { bridge: Some(BRIDGE.to_owned()), taps: vec![tap], relays }];
    Firewall { ports: vec![port], guests: true, isolated, ..Firewall::default() }
}

#[test]
fn isolated_guests_get_what_another_host_forwards_by_ipv6_and_nothing_from_each_other() {
    in_own_namespace(|| async {
        let (a, b, outsider) = site();
        let ports = [port(8080, &["fd00:60::6"])];
        make(&a, &b, &ports, &["fd00:60::6"], isolated(5, &[SOURCE]));
        make(&b, &a, &[], &[], isolated(6, &[SOURCE]));
        let one = a.on(|_, _| Guest::by_tap(BRIDGE, "btt00000005n0", 5));
        let two = b.on(|_, _| Guest::by_tap(BRIDGE, "btt00000006n0", 6));
        configure(&one, "fd00:60::5");
        configure(&two, "fd00:60::6");
        two.serve6(80);
        let forwarded = |expected: Option<&str>| {
            let seen = (0..4).find_map(|_| outsider.fetch(PUBLIC, 8080));
            assert_eq!(seen.as_deref(), expected);
        };
        forwarded(Some(SOURCE));
        assert!(!one.connects("fd00:60::6", 80), "by the tunnel");
        make(&b, &a, &[], &[], isolated(6, &[]));
        forwarded(None);
        make(&b, &a, &[], &[], isolated(6, &[SOURCE]));
        forwarded(Some(SOURCE));
        // Verifies that the rules of both hosts, and nothing else, keep them apart.
        for host in [&a, &b] {
            host.on(|_, _| {
                run("nft", "flush chain bridge berth isolation");
                run("nft", "flush chain inet berth forward");
            });
        }
        assert!((0..4).any(|_| one.connects("fd00:60::6", 80)));
    });
}
