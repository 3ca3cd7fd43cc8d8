//! Ports of public addresses that lead to machines of a network that the host is on by a bridge of its own.

use super::bridged::{lan, part};
use super::guest::{self, Guest};
use super::*;
use crate::{Balanced, BalancedPort, Port, PortProtocol};

const PUBLIC: &str = "198.51.100.7";
const TAP: &str = "btt00000002n0";
const PORT: u16 = 8080;
/// The guest, and a machine of the network: as a guest of another host.
const TARGETS: [&str; 2] = ["192.0.2.50", "192.0.2.9"];
/// The address of the host on its bridge.
const HOST: &str = "192.0.2.1";

/// The same by IPv6.
const PUBLIC6: &str = "2001:db8:9::7";
const TARGETS6: [&str; 2] = ["2001:db8:7::50", "2001:db8:7::9"];
const HOST6: &str = "2001:db8:7::1";
const BRIDGED6: &str = "/proc/sys/net/bridge/bridge-nf-call-ip6tables";

fn rules(public: &str, targets: [&str; 2]) -> Firewall {
    let (address, ipv6) = (targets[0].parse().ok(), targets[0].parse().ok());
    let port = Port { tap: TAP.to_owned(), mac: "52:54:00:00:00:02".to_owned(), address, ipv6 };
    let targets: Vec<IpAddr> = targets.iter().map(|target| target.parse().expect("an address")).collect();
    let by_lan = targets.iter().map(|target| ("vmbr0".to_owned(), *target)).collect();
    let balanced =
        BalancedPort { protocol: PortProtocol::Tcp, port: PORT, by_client: false, targets, target_port: 80 };
    let balanced = Balanced {
        public: public.parse().expect("an address"),
        announced_on: None,
        ports: vec![balanced],
        sources: Vec::new(),
        by_lan,
    };
    Firewall {
        bridged: vec![BRIDGE.to_owned()],
        ports: vec![port],
        balanced: vec![balanced],
        guests: true,
        ..Firewall::default()
    }
}

#[test]
fn machines_of_the_network_get_connections_from_the_host_and_answer_by_it() {
    in_own_namespace(|| async {
        let host = Fixture::new();
        let machine = lan();
        // Without it, a host may have turned forwarding on before.
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "0").expect("written");
        host.networks.apply_firewall(&rules(PUBLIC, TARGETS)).await.expect("rules");
        host.networks.ensure_bridged(&part(false)).await.expect("made");
        let guest = Guest::by_tap(BRIDGE, TAP, 2);
        guest.on(|| ip("addr add 192.0.2.50/24 dev eth0"));
        let client = Guest::join("vmbr0", 0x81);
        client.on(|| {
            ip("addr add 192.0.2.99/24 dev eth0");
            ip("route add 198.51.100.7 via 192.0.2.1");
        });
        guest.serve(80);
        machine.serve(80);
        // A new port of a bridge forwards after a moment.
        assert!((0..10).any(|_| client.connects(TARGETS[0], 80)));
        // Whether or not the kernel passes bridged packets to the firewall. One that never does has no such setting.
        for filters in ["1", "0"] {
            let _ = std::fs::write(BRIDGED, filters);
            let seen: Vec<Option<String>> = (0..4).map(|_| client.fetch(PUBLIC, PORT)).collect();
            assert_eq!(seen, vec![Some(HOST.to_owned()); 4], "both targets see the host: {filters}");
            let of_host: Vec<Option<String>> =
                blocking(|| (0..2).map(|_| guest::fetch(PUBLIC, PORT)).collect()).await;
            assert!(of_host.iter().all(Option::is_some), "{filters}: {of_host:?}");
        }
        let routes = client.on(|| ip("route get 198.51.100.7"));
        assert!(routes.contains("via 192.0.2.1"), "no redirect has changed its way: {routes}");
        host.networks.remove(BRIDGE).await.expect("removed");
        host.networks.apply_firewall(&Firewall::default()).await.expect("removed");
    });
}

#[test]
fn machines_of_the_network_get_connections_to_an_ipv6_address_too() {
    in_own_namespace(|| async {
        let host = Fixture::new();
        let machine = lan();
        ip("-6 addr add 2001:db8:7::1/64 dev vmbr0 nodad");
        machine.on(|| ip("-6 addr add 2001:db8:7::9/64 dev eth0 nodad"));
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "0").expect("written");
        host.networks.apply_firewall(&rules(PUBLIC6, TARGETS6)).await.expect("rules");
        let forwards = std::fs::read_to_string("/proc/sys/net/ipv4/ip_forward").expect("read");
        assert_eq!(forwards.trim(), "0", "IPv4 need not be forwarded");
        host.networks.ensure_bridged(&part(false)).await.expect("made");
        let guest = Guest::by_tap(BRIDGE, TAP, 2);
        guest.on(|| ip("-6 addr add 2001:db8:7::50/64 dev eth0 nodad"));
        let client = Guest::join("vmbr0", 0x81);
        client.on(|| {
            ip("-6 addr add 2001:db8:7::99/64 dev eth0 nodad");
            ip("-6 route add 2001:db8:9::7 via 2001:db8:7::1");
        });
        guest.serve6(80);
        machine.serve6(80);
        // A new port of a bridge forwards after a moment, and a link-local address is first looked for elsewhere.
        for target in TARGETS6 {
            assert!((0..10).any(|_| client.connects(target, 80)), "{target}");
        }
        assert!((0..10).any(|_| client.fetch(PUBLIC6, PORT).is_some()));
        for filters in ["1", "0"] {
            let _ = std::fs::write(BRIDGED6, filters);
            let seen: Vec<Option<String>> = (0..4).map(|_| client.fetch(PUBLIC6, PORT)).collect();
            assert_eq!(seen, vec![Some(HOST6.to_owned()); 4], "both targets see the host: {filters}");
            let of_host: Vec<Option<String>> =
                blocking(|| (0..2).map(|_| guest::fetch(PUBLIC6, PORT)).collect()).await;
            assert!(of_host.iter().all(Option::is_some), "{filters}: {of_host:?}");
        }
        let routes = client.on(|| ip("-6 route get 2001:db8:9::7"));
        assert!(routes.contains("via 2001:db8:7::1"), "no redirect has changed its way: {routes}");
        host.networks.remove(BRIDGE).await.expect("removed");
        host.networks.apply_firewall(&Firewall::default()).await.expect("removed");
    });
}
