//! Isolated networks: guests that reach their gateway and the outside, and not each other, on one host and on two.

use super::guest::{self, Guest};
use super::host::{self, Host, segment};
use super::*;
use crate::{Balanced, BalancedPort, Isolation, Port, PortProtocol, Relay};

const PUBLIC: &str = "192.0.2.200";
/// The address under which the holder of the public address forwards connections.
const SOURCE: &str = "10.77.0.9";

fn address(text: &str) -> Ipv4Addr {
    text.parse().expect("an address")
}

fn port(last: u8) -> Port {
    Port {
        tap: format!("btt0000000{last}n0"),
        mac: lease(last).mac,
        address: lease(last).address,
        ipv6: lease(last).ipv6,
    }
}

fn guest(last: u8) -> Guest {
    let guest = Guest::by_tap(BRIDGE, &port(last).tap, last);
    guest.on(move || {
        ip(&format!("addr add 10.77.0.{last}/24 dev eth0"));
        ip("route add default via 10.77.0.1");
    });
    guest
}

fn isolation(guests: &[u8], relays: &[&str]) -> Vec<Isolation> {
    let taps = guests.iter().map(|last| port(*last).tap).collect();
    let relays = relays.iter().map(|text| text.parse().expect("an address")).collect();
    vec![Isolation { bridge: Some(BRIDGE.to_owned()), taps, relays }]
}

/// Whether a connection is accepted soon: a new port of a bridge forwards after a moment.
fn connects(from: &Guest, to: &'static str, port: u16) -> bool {
    (0..5).any(|_| from.connects(to, port))
}

#[test]
fn guests_of_an_isolated_network_reach_their_gateway_and_the_outside_and_not_each_other() {
    in_own_namespace(|| async {
        let f = Fixture::new();
        let rules = |isolated: Vec<Isolation>| Firewall {
            ports: vec![port(5), port(6)],
            guests: true,
            isolated,
            ..firewall(&[("198.18.100.1", "10.77.0.6")])
        };
        f.networks.apply_firewall(&rules(Vec::new())).await.expect("rules");
        f.networks.ensure(&network(BRIDGE, "10.77.0.0/24", Vec::new())).await.expect("made");
        let (one, two) = (guest(5), guest(6));
        let outside = Guest::beside("203.0.113.9/24", "203.0.113.1/24");
        outside.serve(80);
        two.serve(80);
        assert!(connects(&one, "10.77.0.6", 80) && connects(&one, "198.18.100.1", 80), "not isolated");

        f.networks.apply_firewall(&rules(isolation(&[5, 6], &[]))).await.expect("rules");
        assert!(!one.connects("10.77.0.6", 80));
        assert!(!one.connects("198.18.100.1", 80), "nor by its public address");
        one.on(|| ip("route add 10.77.0.6/32 via 10.77.0.1"));
        assert!(!one.connects("10.77.0.6", 80), "nor by the host as a router");
        one.on(|| ip("route del 10.77.0.6/32 via 10.77.0.1"));
        assert!(connects(&one, "203.0.113.9", 80) && connects(&one, "10.77.0.1", 53));
        assert!(outside.fetch("198.18.100.1", 80).is_some(), "from outside by the public address");
        assert!(guest::fetch("10.77.0.6", 80).is_some(), "from the host");
        // Verifies that the rules, and nothing else, keep them apart.
        run("nft", "flush chain bridge berth isolation");
        run("nft", "flush chain inet berth forward");
        assert!(connects(&one, "10.77.0.6", 80));

        f.networks.apply_firewall(&rules(Vec::new())).await.expect("rules");
        assert!(connects(&one, "10.77.0.6", 80), "isolated no more");
        f.networks.remove(BRIDGE).await.expect("removed");
    });
}

/// Makes the network on a host with a tunnel to the other, with one guest; the holder of the public address leads a port to `target`.
fn make(
    host: &Host,
    other: &Host,
    last: u8,
    (target, relays): (Option<&'static str>, &'static [&'static str]),
) {
    let tunnel = Tunnel { vni: 77, local: host.address.into(), peers: vec![other.address.into()] };
    let relay = target.map(|target| Relay {
        addresses: vec![address(SOURCE).into()],
        targets: vec![address(target).into()],
    });
    let balanced = |target| Balanced {
        public: address(PUBLIC).into(),
        announced_on: Some("up0".to_owned()),
        ports: vec![BalancedPort {
            protocol: PortProtocol::Tcp,
            port: 8080,
            by_client: false,
            targets: vec![address(target).into()],
            target_port: 80,
        }],
        sources: vec![(BRIDGE.to_owned(), address(SOURCE).into())],
        by_lan: Vec::new(),
    };
    let config =
        NetworkConfig { tunnel: Some(tunnel.clone()), relay, ..network(BRIDGE, "10.77.0.0/24", Vec::new()) };
    let firewall = Firewall {
        nat: vec![nat(BRIDGE, "10.77.0.0/24", Some(tunnel))],
        balanced: target.map(balanced).into_iter().collect(),
        ports: vec![port(last)],
        guests: true,
        isolated: isolation(&[last], relays),
        ..Firewall::default()
    };
    host.run(move |f| {
        Box::pin(async move {
            f.networks.apply_firewall(&firewall).await.expect("rules");
            f.networks.ensure(&config).await.expect("made");
        })
    });
}

#[test]
fn isolated_guests_of_two_hosts_get_what_the_other_host_forwards_and_nothing_from_each_other() {
    in_own_namespace(|| async {
        segment(1500);
        let (a, b) = (Host::on_segment(11, 1500), Host::on_segment(12, 1500));
        let holder: (Option<&str>, &[&str]) = (Some("10.77.0.6"), &[SOURCE]);
        make(&a, &b, 5, holder);
        make(&b, &a, 6, (None, &[SOURCE]));
        let (one, two) = (a.on(|_, _| guest(5)), b.on(|_, _| guest(6)));
        let outsider = host::outsider("192.0.2.99/24");
        two.serve(80);
        let forwarded = |expected: Option<&str>| {
            let seen = (0..3).find_map(|_| outsider.fetch(PUBLIC, 8080));
            assert_eq!(seen.as_deref(), expected);
        };
        forwarded(Some(SOURCE));
        assert!(!one.connects("10.77.0.6", 80), "by the tunnel");
        make(&b, &a, 6, (None, &[]));
        forwarded(None);
        make(&b, &a, 6, (None, &[SOURCE]));
        forwarded(Some(SOURCE));
        // Verifies that the rules of both hosts, and nothing else, keep them apart.
        for host in [&a, &b] {
            host.on(|_, _| {
                run("nft", "flush chain bridge berth isolation");
                run("nft", "flush chain inet berth forward");
            });
        }
        assert!(connects(&one, "10.77.0.6", 80));
    });
}
