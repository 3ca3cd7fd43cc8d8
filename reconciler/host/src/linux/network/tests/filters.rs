//! Security groups: packets of real machines on tracked bridges.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::guest::Guest;
use super::host::{Host, segment};
use super::*;
use crate::{FilterGroup, FilterProtocol, FilterRule, FilteredPort, Filters, Port};

/// Longer than a packet takes, shorter than a retransmission that gives up.
const PATIENCE: Duration = Duration::from_millis(1200);
pub(super) const FRIENDS: &str = "ns/friends";

pub(super) fn port(last: u8) -> Port {
    Port {
        tap: format!("btt0000000{last}n0"),
        mac: format!("52:54:00:00:00:{last:02x}"),
        address: Some(Ipv4Addr::new(10, 77, 0, last)),
        ipv6: lease(last).ipv6,
    }
}

pub(super) fn rule(
    protocol: FilterProtocol,
    ports: &[(u16, u16)],
    ranges: &[&str],
    sets: &[&str],
) -> FilterRule {
    FilterRule {
        name: "rule".into(),
        protocol,
        ports: ports.to_vec(),
        icmp_types: Vec::new(),
        ranges: ranges.iter().map(|range| range.parse().expect("a range")).collect(),
        sets: sets.iter().map(|name| (*name).to_owned()).collect(),
    }
}

pub(super) fn group(ingress: Vec<FilterRule>, egress: Option<Vec<FilterRule>>) -> FilterGroup {
    FilterGroup { name: "ns/web".into(), ingress, egress }
}

/// The filters of the machine .2, with the members of `friends`.
pub(super) fn filters(group: Option<FilterGroup>, friends: &[u8]) -> Filters {
    let address = |last: &u8| Ipv4Addr::new(10, 77, 0, *last);
    Filters {
        ports: vec![FilteredPort {
            port: port(2),
            groups: vec!["ns/web".into()],
            asks_dhcp: false,
            prefixes: Vec::new(),
        }],
        groups: group.into_iter().collect(),
        sets: [(FRIENDS.to_owned(), friends.iter().map(|last| (address(last), address(last))).collect())]
            .into(),
        ipv6_sets: BTreeMap::new(),
    }
}

pub(super) fn firewall_with(filters: Filters) -> Firewall {
    Firewall {
        ports: (2..=4).map(port).collect(),
        guests: true,
        filters: filters.into(),
        ..firewall(&[("198.51.100.7", "10.77.0.2")])
    }
}

pub(super) fn tracked() -> NetworkConfig {
    NetworkConfig { tracked: true, ..network(BRIDGE, "10.77.0.0/24", Vec::new()) }
}

pub(super) fn guest(last: u8) -> Guest {
    let guest = Guest::by_tap(BRIDGE, &port(last).tap, last);
    ip(&format!("link set {} type bridge_slave hairpin on", port(last).tap));
    guest.on(move || {
        ip(&format!("addr add 10.77.0.{last}/24 dev eth0"));
        ip("route add default via 10.77.0.1");
    });
    guest
}

/// Sends back what it receives on this port.
fn echo(guest: &Guest, port: u16) {
    guest.on(move || {
        let listener = TcpListener::bind(("::", port)).expect("a free port");
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.expect("a connection");
                std::thread::spawn(move || {
                    let mut reader = stream.try_clone().expect("a second handle");
                    let _ = std::io::copy(&mut reader, &mut stream);
                });
            }
        });
    });
}

fn open(guest: &Guest, port: u16) -> TcpStream {
    guest.on(move || {
        let address = SocketAddr::from((Ipv4Addr::new(10, 77, 0, 2), port));
        TcpStream::connect_timeout(&address, PATIENCE).expect("allowed")
    })
}

/// Whether a byte comes back on an open connection.
fn is_alive(mut stream: &TcpStream) -> bool {
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream.write_all(b"x").is_ok() && stream.read_exact(&mut [0]).is_ok()
}

/// Whether a connection to the link-local address of the machine .2 is accepted.
fn connects_by_ipv6(guest: &Guest, port: u16) -> bool {
    guest.on(move || {
        let link = ip("-o link show dev eth0");
        let index = link.split(':').next().and_then(|index| index.parse().ok()).expect("an index");
        let address: Ipv6Addr = "fe80::5054:ff:fe00:2".parse().expect("an address");
        let address = SocketAddr::V6(SocketAddrV6::new(address, port, 0, index));
        TcpStream::connect_timeout(&address, PATIENCE).is_ok()
    })
}

#[test]
fn a_filtered_machine_receives_what_its_groups_allow_from_neighbours_and_from_outside() {
    in_own_namespace(|| async {
        let f = Fixture::new();
        let tcp = FilterProtocol::Tcp;
        let rules = vec![
            rule(tcp, &[(8080, 8081)], &[], &[FRIENDS]),
            rule(tcp, &[(80, 80)], &["203.0.113.0/24"], &[]),
            rule(FilterProtocol::Any, &[], &["fe80::/10"], &[]),
        ];
        let allowed = filters(Some(group(rules.clone(), None)), &[3]);
        f.networks.apply_firewall(&firewall_with(allowed)).await.expect("rules");
        f.networks.ensure(&tracked()).await.expect("made");
        let (web, friend, stranger) = (guest(2), guest(3), guest(4));
        let outside = Guest::beside("203.0.113.9/24", "203.0.113.1/24");
        for port in [80, 8080, 9090] {
            web.serve(port);
        }
        stranger.serve(70);
        assert!(friend.connects("10.77.0.2", 8080), "a member of the group that a rule names");
        assert!(!friend.connects("10.77.0.2", 9090), "another port");
        assert!(!stranger.connects("10.77.0.2", 8080), "not a member");
        assert!(outside.connects("198.51.100.7", 80) && !outside.connects("198.51.100.7", 8080));
        assert_eq!(web.fetch("10.77.0.4", 70).as_deref(), Some("10.77.0.2"), "it sends everything");
        assert_eq!(stranger.fetch("198.51.100.7", 80), None, "by its public address neither");
        assert!(stranger.connects("10.77.0.1", 53) && web.connects("10.77.0.1", 53), "the host's DNS");

        // No address of its own in the packet, but its MAC address in the frame.
        let inbox = web.listen(9999);
        stranger.inject(broadcast_to(2, 4));
        assert!(inbox.recv_timeout(PATIENCE).is_err(), "a broadcast belongs to no connection");

        echo(&web, 6000);
        let since = Instant::now();
        while !connects_by_ipv6(&stranger, 6000) {
            assert!(since.elapsed() < Duration::from_secs(10), "link-local addresses are allowed");
        }
        let without = rules.into_iter().take(2).collect();
        let closed = filters(Some(group(without, None)), &[3]);
        f.networks.apply_firewall(&firewall_with(closed)).await.expect("rules");
        assert!(!connects_by_ipv6(&stranger, 6000));

        f.networks.apply_firewall(&firewall_with(Filters::default())).await.expect("rules");
        f.networks.ensure(&network(BRIDGE, "10.77.0.0/24", Vec::new())).await.expect("no tracking");
        assert!(!ip(&format!("-d link show {BRIDGE}")).contains("nf_call_iptables 1"));
        assert!(stranger.connects("10.77.0.2", 9090), "without a group everything within the network");
        stranger.inject(broadcast_to(2, 4));
        assert_eq!(inbox.recv_timeout(PATIENCE), Ok(4), "a broadcast too");
    });
}

#[test]
fn a_rule_with_types_of_icmp_lets_those_queries_and_their_answers_pass() {
    in_own_namespace(|| async {
        let f = Fixture::new();
        let with = |protocol, icmp_types: &[u8]| {
            let ranges = ["0.0.0.0/0", "::/0"];
            let rule = FilterRule { icmp_types: icmp_types.to_vec(), ..rule(protocol, &[], &ranges, &[]) };
            firewall_with(filters(Some(group(vec![rule], None)), &[]))
        };
        let (icmp, icmpv6) = (FilterProtocol::Icmp, FilterProtocol::Icmpv6);
        f.networks.apply_firewall(&with(icmp, &[8])).await.expect("rules");
        f.networks.ensure(&tracked()).await.expect("made");
        let (_web, stranger) = (guest(2), guest(4));
        let answers = |address: &'static str| stranger.is_echoed(address);
        let soon = |address| (0..10).any(|_| answers(address));
        let (ipv4, ipv6) = ("10.77.0.2", "fe80::5054:ff:fe00:2");
        assert!(soon(ipv4), "a query of the rule, and its answer");
        assert!(!answers(ipv6), "another protocol");
        f.networks.apply_firewall(&with(icmp, &[13])).await.expect("rules");
        assert!(!answers(ipv4), "another type");
        f.networks.apply_firewall(&with(icmpv6, &[139])).await.expect("rules");
        assert!(!answers(ipv6), "another type of IPv6");
        f.networks.apply_firewall(&with(icmpv6, &[128])).await.expect("rules");
        assert!(soon(ipv6), "a query of IPv6");
    });
}

#[test]
fn addresses_of_an_ipv6_prefix_are_filtered_by_ranges_and_by_members() {
    in_own_namespace(|| async {
        let f = Fixture::new();
        let tcp = FilterProtocol::Tcp;
        let rules = vec![
            rule(tcp, &[(8080, 8080)], &[], &[FRIENDS]),
            rule(tcp, &[(80, 80)], &["fd00:60::4/128"], &[]),
        ];
        let friend = lease(3).ipv6.expect("an address");
        let ipv6_sets = [(FRIENDS.to_owned(), vec![(friend, friend)])].into();
        let allowed = Filters { ipv6_sets, ..filters(Some(group(rules, None)), &[3]) };
        f.networks.apply_firewall(&firewall_with(allowed)).await.expect("rules");
        let ipv6 = ipv6::ipv6(Egress::None);
        f.networks.ensure(&NetworkConfig { ipv6, ..tracked() }).await.expect("made");
        let (web, friend, stranger) = (guest(2), guest(3), guest(4));
        for (machine, last) in [(&web, 2), (&friend, 3), (&stranger, 4)] {
            machine.on(move || ip(&format!("-6 addr add fd00:60::{last}/64 dev eth0 nodad")));
        }
        for port in [80, 8080] {
            web.serve6(port);
        }
        assert!(friend.connects("fd00:60::2", 8080), "a member of the group that a rule names");
        assert!(!friend.connects("fd00:60::2", 80), "another port");
        assert!(stranger.connects("fd00:60::2", 80), "an address of the range");
        assert!(!stranger.connects("fd00:60::2", 8080), "not a member");
        f.networks.remove(BRIDGE).await.expect("removed");
    });
}

/// A UDP packet to port 9999 of all machines, in a frame for one alone.
fn broadcast_to(last: u8, from: u8) -> Vec<u8> {
    let mut frame = vec![0x52, 0x54, 0, 0, 0, last, 0x52, 0x54, 0, 0, 0, from, 0x08, 0x00];
    let mut packet = vec![0x45, 0, 0, 32, 0, 0, 0, 0, 64, 17, 0, 0, 10, 77, 0, from, 255, 255, 255, 255];
    let sum: u32 = packet.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let checksum = !u16::try_from((folded & 0xffff) + (folded >> 16)).expect("folded");
    packet[10..12].copy_from_slice(&checksum.to_be_bytes());
    frame.extend(packet);
    frame.extend([0x03, 0xe7, 0x27, 0x0f, 0, 12, 0, 0, 1, 2, 3, 4]);
    frame
}

#[test]
fn a_connection_lives_while_its_rules_do_and_is_cut_with_them() {
    in_own_namespace(|| async {
        let f = Fixture::new();
        let any = FilterProtocol::Any;
        let by_members = || group(vec![rule(any, &[], &[], &[FRIENDS])], None);
        f.networks.apply_firewall(&firewall_with(filters(Some(by_members()), &[3, 4]))).await.expect("rules");
        f.networks.ensure(&tracked()).await.expect("made");
        let (web, first, second) = (guest(2), guest(3), guest(4));
        echo(&web, 7000);
        let (stays, goes) = (open(&first, 7000), open(&second, 7000));
        assert!(is_alive(&stays) && is_alive(&goes));
        // A member leaves, and a rule comes.
        let more = group(vec![rule(any, &[], &[], &[FRIENDS]), rule(any, &[], &["192.0.2.0/24"], &[])], None);
        f.networks.apply_firewall(&firewall_with(filters(Some(more), &[3]))).await.expect("rules");
        assert!(is_alive(&stays), "still allowed");
        assert!(!is_alive(&goes), "no longer a member: cut with its next packet");
        // The group is gone: it allows nothing any more, in neither direction.
        f.networks.apply_firewall(&firewall_with(filters(None, &[3, 4]))).await.expect("rules");
        assert!(!is_alive(&stays));
        first.serve(70);
        assert!(!web.connects("10.77.0.3", 70), "an unknown group opens nothing");
        assert!(web.connects("10.77.0.1", 53), "but the host's DNS answers");
        f.networks.apply_firewall(&firewall_with(filters(Some(by_members()), &[3, 4]))).await.expect("rules");
        let since = Instant::now();
        while !is_alive(&stays) {
            assert!(since.elapsed() < Duration::from_secs(20), "allowed again, it goes on");
        }
    });
}

#[test]
fn members_come_and_go_and_the_table_stays() {
    in_own_namespace(|| async {
        let f = Fixture::new();
        let by_members = || group(vec![rule(FilterProtocol::Tcp, &[(8080, 8080)], &[], &[FRIENDS])], None);
        let cases: [(&[u8], &str, &str); 4] = [
            (&[3], "10.77.0.3", "10.77.0.9"),
            (&[3, 9], "10.77.0.9", "10.77.0.5"),
            (&[9], "10.77.0.9", "10.77.0.3"),
            // A longer range: nftables may want all rules anew.
            (&[9, 10], "10.77.0.9-10.77.0.10", "10.77.0.3"),
        ];
        let mut tables = Vec::new();
        for (friends, there, gone) in cases {
            let wanted = firewall_with(filters(Some(by_members()), friends));
            f.networks.apply_firewall(&wanted).await.expect("rules");
            let listing = run("nft", "-a list table inet berth");
            assert!(listing.contains(there) && !listing.contains(gone), "{friends:?}: {listing}");
            tables.push(listing.lines().next().unwrap_or_default().to_owned());
        }
        // A new table has another handle.
        if generation::current().await.is_some() {
            assert!(tables[0].contains("handle"), "{tables:?}");
            assert!(tables[1] == tables[0] && tables[2] == tables[0], "{tables:?}");
        }
    });
}

#[test]
fn what_a_machine_sends_is_limited_by_its_groups() {
    in_own_namespace(|| async {
        let f = Fixture::new();
        let egress = vec![rule(FilterProtocol::Tcp, &[(70, 70)], &["10.77.0.3/32"], &[])];
        let group = group(vec![rule(FilterProtocol::Any, &[], &["0.0.0.0/0"], &[])], Some(egress));
        f.networks.apply_firewall(&firewall_with(filters(Some(group), &[]))).await.expect("rules");
        f.networks.ensure(&tracked()).await.expect("made");
        let (web, allowed, other) = (guest(2), guest(3), guest(4));
        let outside = Guest::beside("203.0.113.9/24", "203.0.113.1/24");
        allowed.serve(70);
        allowed.serve(71);
        other.serve(70);
        outside.serve(70);
        web.serve(80);
        assert!(web.connects("10.77.0.3", 70));
        assert!(!web.connects("10.77.0.3", 71) && !web.connects("10.77.0.4", 70));
        assert!(!web.connects("203.0.113.9", 70), "nor outside");
        assert!(
            other.fetch("10.77.0.2", 80).is_some(),
            "answers to what it accepts are no connections of its own"
        );
    });
}

#[test]
fn machines_on_other_hosts_are_filtered_like_neighbours() {
    in_own_namespace(|| async {
        segment(1500);
        let (a, b) = (Host::on_segment(11, 1500), Host::on_segment(12, 1500));
        let egress = Some(vec![rule(FilterProtocol::Tcp, &[(8080, 8080)], &["0.0.0.0/0"], &[])]);
        let on = |host: &Host, other: &Host, filters: Filters| {
            let tunnel = Tunnel { vni: 77, local: host.address.into(), peers: vec![other.address.into()] };
            let firewall = Firewall {
                nat: vec![nat(BRIDGE, "10.77.0.0/24", Some(tunnel.clone()))],
                guests: true,
                filters: filters.into(),
                ..Firewall::default()
            };
            let config = tunnelled(tracked(), tunnel);
            host.run(move |f| {
                Box::pin(async move {
                    f.networks.apply_firewall(&firewall).await.expect("rules");
                    f.networks.ensure(&config).await.expect("made");
                })
            });
        };
        let ingress = vec![rule(FilterProtocol::Tcp, &[(8080, 8081)], &[], &[FRIENDS])];
        on(&a, &b, filters(Some(group(ingress, None)), &[3]));
        let sender = Filters {
            ports: vec![FilteredPort {
                port: port(4),
                groups: vec!["ns/web".into()],
                asks_dhcp: false,
                prefixes: Vec::new(),
            }],
            ..filters(Some(group(Vec::new(), egress)), &[])
        };
        on(&b, &a, sender);
        let web = a.guest(BRIDGE, "10.77.0.2/24", "10.77.0.1");
        let friend = b.guest(BRIDGE, "10.77.0.3/24", "10.77.0.1");
        let limited = b.guest(BRIDGE, "10.77.0.4/24", "10.77.0.1");
        for port in [8080, 8081, 9090] {
            web.serve(port);
            friend.serve(port);
        }
        assert!(friend.connects("10.77.0.2", 8080) && !friend.connects("10.77.0.2", 9090));
        assert!(!limited.connects("10.77.0.2", 8080), "not a member: its receiver's host drops it");
        assert!(limited.connects("10.77.0.3", 8080) && !limited.connects("10.77.0.3", 8081));
        assert!(web.connects("10.77.0.3", 9090));
    });
}
