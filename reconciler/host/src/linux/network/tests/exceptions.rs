//! Guests that may send from more addresses than their own: routers, and addresses that guests share.

use super::guest::Guest;
use super::ipv6::{configure, ipv6};
use super::*;
use crate::{Port, PortException};

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

#[test]
fn a_guest_answers_for_the_addresses_it_is_allowed_and_for_no_others() {
    in_own_namespace(|| async {
        let f = Fixture::new();
        let with = |exceptions: Vec<PortException>| Firewall {
            ports: vec![port(5), port(6)],
            guests: true,
            exceptions,
            ..firewall(&[])
        };
        let exception = |range: &str| PortException {
            tap: port(5).tap,
            ranges: vec![range.parse().expect("a range")],
            macs: vec!["00:00:5e:00:01:0a".into()],
            gateways: vec![Ipv4Addr::new(10, 77, 0, 1).into()],
        };
        f.networks.apply_firewall(&with(vec![exception("10.77.0.100/32")])).await.expect("rules");
        f.networks.ensure(&network(BRIDGE, "10.77.0.0/24", Vec::new())).await.expect("made");
        let (router, client) = (guest(5), guest(6));
        let outside = Guest::beside("203.0.113.9/24", "203.0.113.1/24");
        outside.serve(80);
        router.on(|| {
            ip("addr add 10.77.0.100/24 dev eth0");
            ip("addr add 10.77.0.101/24 dev eth0");
            ip("addr add 192.168.9.1/24 dev lo");
        });
        client.on(|| ip("route add 192.168.9.0/24 via 10.77.0.5"));
        router.serve(80);
        assert_eq!(
            client.fetch("10.77.0.100", 80).as_deref(),
            Some("10.77.0.6"),
            "an address that it shares"
        );
        assert!(!client.connects("10.77.0.101", 80), "not among them");
        assert!(!client.connects("192.168.9.1", 80), "nor behind it");

        f.networks.apply_firewall(&with(vec![exception("0.0.0.0/0")])).await.expect("rules");
        assert!(client.connects("192.168.9.1", 80), "a router");
        assert_eq!(router.fetch("203.0.113.9", 80).as_deref(), Some("203.0.113.1"), "its own address leaves");
        router.on(|| ip("route replace 203.0.113.0/24 via 10.77.0.1 src 192.168.9.1"));
        assert_eq!(router.fetch("203.0.113.9", 80), None, "another one stays within the network");
        // It does not answer as the gateway.
        let frames = client.frames();
        router.inject(gratuitous(Ipv4Addr::new(10, 77, 0, 1)));
        router.inject(gratuitous(Ipv4Addr::new(10, 77, 0, 200)));
        let about = |frame: &[u8], last: u8| frame.get(28..32) == Some(&[10, 77, 0, last]);
        let since = std::time::Instant::now();
        loop {
            let frame = frames.recv_timeout(Duration::from_secs(2)).expect("the second one arrives");
            assert!(!about(&frame, 1) || frame[6..12] != [0x52, 0x54, 0, 0, 0, 5], "as the gateway");
            if about(&frame, 200) {
                break;
            }
            assert!(since.elapsed() < Duration::from_secs(10));
        }

        f.networks.apply_firewall(&with(Vec::new())).await.expect("rules");
        client.on(|| ip("neigh flush all"));
        assert!(!client.connects("10.77.0.100", 80), "taken away again");
        assert!(client.connects("10.77.0.5", 80));
    });
}

#[test]
fn a_guest_answers_for_the_ipv6_addresses_it_is_allowed_and_for_no_others() {
    in_own_namespace(|| async {
        let f = Fixture::new();
        let ipv6 = ipv6(Egress::None);
        let with = |range: &str| Firewall {
            nat: vec![Nat { ipv6, ..nat(BRIDGE, "10.77.0.0/24", None) }],
            ports: vec![port(5), port(6)],
            guests: true,
            exceptions: vec![PortException {
                tap: port(5).tap,
                ranges: vec![range.parse().expect("a range")],
                macs: vec!["00:00:5e:00:02:0a".into()],
                gateways: vec!["fd00:60::1".parse().expect("an address")],
            }],
            ..Firewall::default()
        };
        f.networks.apply_firewall(&with("fd00:60::100/128")).await.expect("rules");
        let config = NetworkConfig { ipv6, ..network(BRIDGE, "10.77.0.0/24", Vec::new()) };
        f.networks.ensure(&config).await.expect("made");
        let (router, client) = (guest(5), guest(6));
        configure(&router, "fd00:60::5");
        configure(&client, "fd00:60::6");
        router.on(|| {
            ip("-6 addr add fd00:60::100/128 dev eth0 nodad");
            ip("-6 addr add fd00:60::101/128 dev eth0 nodad");
        });
        router.serve6(80);
        assert!(client.connects("fd00:60::100", 80), "an address that it shares");
        assert!(!client.connects("fd00:60::101", 80), "not among them");
        f.networks.apply_firewall(&with("fd00:60::/61")).await.expect("rules");
        client.on(|| ip("-6 neigh flush all"));
        assert!(client.connects("fd00:60::101", 80), "by a range whose length is no whole number of bytes");
        f.networks.apply_firewall(&with("fd00:61::/64")).await.expect("rules");
        client.on(|| ip("-6 neigh flush all"));
        assert!(!client.connects("fd00:60::100", 80), "taken away again");
        assert!(client.connects("fd00:60::5", 80), "its own");
    });
}

/// An announcement of an address by the guest with MAC ...:05.
fn gratuitous(address: Ipv4Addr) -> Vec<u8> {
    announce::frame([0x52, 0x54, 0, 0, 0, 5], address, address, 1)
}
