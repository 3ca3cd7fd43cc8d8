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

fn rules() -> Firewall {
    let address = TARGETS[0].parse().ok();
    let port = Port { tap: TAP.to_owned(), mac: "52:54:00:00:00:02".to_owned(), address, ipv6: None };
    let targets: Vec<IpAddr> = TARGETS.iter().map(|target| target.parse().expect("an address")).collect();
    let by_lan = targets.iter().map(|target| ("vmbr0".to_owned(), *target)).collect();
    let balanced =
        BalancedPort { protocol: PortProtocol::Tcp, port: PORT, by_client: false, targets, target_port: 80 };
    let balanced = Balanced {
        public: PUBLIC.parse().expect("an address"),
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
        host.networks.apply_firewall(&rules()).await.expect("rules");
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
