//! Ports of public addresses that lead to guests on several hosts.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use super::guest::{self, Guest};
use super::host::{self, Host, segment};
use super::*;
use crate::{Balanced, BalancedPort, PortProtocol, Relay};

const PUBLIC: &str = "192.0.2.130";
/// The address under which the holder forwards to the other host.
const SOURCE: &str = "10.77.0.9";
const SOON: Duration = Duration::from_secs(3);

fn address(text: &str) -> Ipv4Addr {
    text.parse().expect("an address")
}

/// A port of the public address.
fn port(number: u16, protocol: PortProtocol, targets: &[&str], by_client: bool) -> BalancedPort {
    let targets = targets.iter().map(|target| address(target).into()).collect();
    BalancedPort { protocol, port: number, by_client, targets, target_port: 80 }
}

/// Makes the network on a host with a tunnel to the other, and gives it the public address if there are ports.
fn make(host: &Host, other: &Host, ports: Vec<BalancedPort>, remote: &'static [&str]) {
    let tunnel = Tunnel { vni: 77, local: host.address.into(), peers: vec![other.address.into()] };
    let relay = (!remote.is_empty()).then(|| Relay {
        addresses: vec![IpAddr::from(address(SOURCE))],
        targets: remote.iter().map(|target| IpAddr::from(address(target))).collect(),
    });
    let sources = relay.iter().map(|_| (BRIDGE.to_owned(), IpAddr::from(address(SOURCE)))).collect();
    let public = address(PUBLIC).into();
    let balanced =
        Balanced { public, announced_on: Some("up0".to_owned()), ports, sources, by_lan: Vec::new() };
    let config = NetworkConfig {
        mtu: 1450,
        tunnel: Some(tunnel.clone()),
        relay,
        ..network(BRIDGE, "10.77.0.0/24", Vec::new())
    };
    let firewall = Firewall {
        nat: vec![nat(BRIDGE, "10.77.0.0/24", Some(tunnel))],
        balanced: if balanced.ports.is_empty() { Vec::new() } else { vec![balanced] },
        ..Firewall::default()
    };
    host.run(move |f| {
        Box::pin(async move {
            f.networks.apply_firewall(&firewall).await.expect("rules");
            f.networks.ensure(&config).await.expect("made");
        })
    });
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

/// The addresses that the guests saw of this client, over several connections, in order.
fn seen_by_guests(client: &Guest, port: u16) -> Vec<String> {
    let mut seen: Vec<String> = (0..4).filter_map(|_| client.fetch(PUBLIC, port)).collect();
    seen.sort();
    seen
}

#[test]
fn connections_to_a_port_are_spread_over_guests_on_two_hosts_and_come_back() {
    in_own_namespace(|| async {
        segment(1500);
        let (a, b) = (Host::on_segment(11, 1500), Host::on_segment(12, 1500));
        let both = || {
            vec![
                port(8080, PortProtocol::Tcp, &["10.77.0.5", "10.77.0.6"], false),
                port(8081, PortProtocol::Tcp, &["10.77.0.5", "10.77.0.6"], true),
                port(8082, PortProtocol::Tcp, &[], false),
                port(8083, PortProtocol::Tcp, &["10.77.0.6"], false),
                port(9000, PortProtocol::Udp, &["10.77.0.6"], false),
            ]
        };
        make(&a, &b, both(), &["10.77.0.6"]);
        make(&b, &a, Vec::new(), &[]);
        let one = a.guest(BRIDGE, "10.77.0.5/24", "10.77.0.1");
        let two = b.guest(BRIDGE, "10.77.0.6/24", "10.77.0.1");
        let outsider = host::outsider("192.0.2.99/24");
        one.serve(80);
        two.serve(80);

        // The guest on the holder sees the client, the other one the address of the holder in their network.
        assert_eq!(seen_by_guests(&outsider, 8080), [SOURCE, SOURCE, "192.0.2.99", "192.0.2.99"]);
        let seen = seen_by_guests(&outsider, 8081);
        assert_eq!((seen.len(), seen.first()), (4, seen.last()), "one guest for one client: {seen:?}");
        assert_eq!(outsider.fetch(PUBLIC, 8082), None, "no guest");
        assert_eq!(outsider.fetch(PUBLIC, 80), None, "not a port of it");
        assert_eq!(outsider.fetch(PUBLIC, 8083).as_deref(), Some(SOURCE));
        let inbox = two.listen(80);
        outsider.send(PUBLIC, 9000, 100, false).expect("sent");
        assert_eq!(inbox.recv_timeout(SOON), Ok(100 - 28), "a packet of UDP");
        // From a guest, itself among the targets, from its neighbour, and from the hosts.
        for (client, what) in [(&one, "on the holder"), (&two, "on the other host")] {
            assert_eq!(seen_by_guests(client, 8080).len(), 4, "{what}");
        }
        for host in [&a, &b] {
            let answers = host.on(|_, _| (0..4).filter_map(|_| guest::fetch(PUBLIC, 8080)).count());
            assert_eq!(answers, 4);
        }
        // Its gateway still answers a guest of the holder, with its own MAC.
        assert!(one.fetch("10.77.0.6", 80).is_some(), "within the network");
        clear(&[&a, &b]);
    });
}

#[test]
fn a_connection_outlives_a_change_of_the_targets_and_new_ones_go_elsewhere() {
    in_own_namespace(|| async {
        segment(1500);
        let (a, b) = (Host::on_segment(11, 1500), Host::on_segment(12, 1500));
        let with = |targets: &[&str]| vec![port(8080, PortProtocol::Tcp, targets, false)];
        make(&a, &b, with(&["10.77.0.6"]), &["10.77.0.6"]);
        make(&b, &a, Vec::new(), &[]);
        let one = a.guest(BRIDGE, "10.77.0.5/24", "10.77.0.1");
        let two = b.guest(BRIDGE, "10.77.0.6/24", "10.77.0.1");
        let outsider = host::outsider("192.0.2.99/24");
        one.serve(80);
        let listener = two.on(|| TcpListener::bind(("0.0.0.0", 80)).expect("a free port"));
        let mut client = outsider.on(|| connect(PUBLIC, 8080).expect("it is accepted"));
        let (mut server, _) = listener.accept().expect("the connection");
        make(&a, &b, with(&["10.77.0.5"]), &["10.77.0.6"]);
        assert_eq!(outsider.fetch(PUBLIC, 8080).as_deref(), Some("192.0.2.99"), "a new one");
        client.write_all(b"still here").expect("sent");
        let mut heard = [0; 10];
        server.set_read_timeout(Some(SOON)).expect("a timeout above zero");
        server.read_exact(&mut heard).expect("the established one goes on");
        assert_eq!(&heard, b"still here");
        clear(&[&a, &b]);
    });
}

#[test]
fn a_guest_reaches_nothing_of_the_host_by_the_relay() {
    in_own_namespace(|| async {
        segment(1500);
        let (a, b) = (Host::on_segment(11, 1500), Host::on_segment(12, 1500));
        make(&a, &b, vec![port(8080, PortProtocol::Tcp, &["10.77.0.6"], false)], &["10.77.0.6"]);
        make(&b, &a, Vec::new(), &[]);
        let two = b.guest(BRIDGE, "10.77.0.6/24", "10.77.0.1");
        let outsider = host::outsider("192.0.2.99/24");
        outsider.serve(80);
        a.on(|_, _| {
            let listener = TcpListener::bind(("0.0.0.0", 2222)).expect("a port");
            std::thread::spawn(move || listener.incoming().for_each(drop));
        });
        assert!(two.on(move || !reaches(SOURCE, 2222)), "a port of the host");
        // By the relay as its router, to elsewhere.
        two.on(|| ip("route replace 192.0.2.99 via 10.77.0.9"));
        assert_eq!(two.fetch("192.0.2.99", 80), None);
        // Verifies that the rules, and nothing else, drop them.
        a.on(|_, _| {
            run("nft", "flush chain inet berth input");
        });
        assert!(two.on(move || reaches(SOURCE, 2222)));
        clear(&[&a, &b]);
    });
}

fn reaches(to: &str, port: u16) -> bool {
    connect(to, port).is_ok()
}

fn connect(to: &str, port: u16) -> std::io::Result<TcpStream> {
    TcpStream::connect_timeout(&SocketAddr::from((address(to), port)), Duration::from_millis(800))
}
