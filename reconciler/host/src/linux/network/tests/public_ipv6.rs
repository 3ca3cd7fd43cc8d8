//! Public IPv6 addresses: translation, announcements, answers and probes on a segment.

use std::net::IpAddr;
use std::time::Instant;

use super::filters::{group, rule};
use super::guest::Guest;
use super::host::{self, Host, segment};
use super::ipv6::{configure, ipv6};
use super::*;
use crate::{
    Balanced, BalancedPort, FilterProtocol, FilterRule, FilteredPort, Filters, Port, PortException,
    PortProtocol, RoutedPrefix, Uplink,
};

/// Of the segment between the hosts.
const PUBLIC: &str = "2001:db8:9::130";
const OTHER_PUBLIC: &str = "2001:db8:9::131";

fn rules(forwards: &[(&str, &str)], announced_on: Option<&str>) -> Firewall {
    let nat = vec![Nat { ipv6: ipv6(Egress::Masquerade), ..nat(BRIDGE, "10.77.0.0/24", None) }];
    let forward = |(public, private): &(&str, &str)| Forward {
        public: public.parse().expect("an address"),
        private: private.parse().expect("an address"),
        announced_on: announced_on.map(str::to_owned),
    };
    Firewall { nat, forwards: forwards.iter().map(forward).collect(), ..Firewall::default() }
}

fn dual_stack() -> NetworkConfig {
    NetworkConfig { ipv6: ipv6(Egress::Masquerade), ..network(BRIDGE, "10.77.0.0/24", Vec::new()) }
}

/// Two hosts on a segment with IPv6, each with the network, and a machine beside them that also leads to 2001:db8:1::/64.
fn site() -> (Host, Host, Guest) {
    segment(1500);
    let hosts = (Host::on_segment(11, 1500), Host::on_segment(12, 1500));
    for (host, address) in [(&hosts.0, "2001:db8:9::11"), (&hosts.1, "2001:db8:9::12")] {
        host.on(move |_, _| {
            ip(&format!("-6 addr add {address}/64 dev up0 nodad"));
            ip("-6 route add 2001:db8:1::/64 via 2001:db8:9::99");
        });
        host.run(|f| Box::pin(async move { f.networks.ensure(&dual_stack()).await.expect("made") }));
    }
    let outsider = host::outsider("192.0.2.99/24");
    outsider.on(|| {
        ip("-6 addr add 2001:db8:9::99/64 dev eth0 nodad");
        ip("-6 addr add 2001:db8:1::2/64 dev eth0 nodad");
    });
    (hosts.0, hosts.1, outsider)
}

/// Assigns public addresses to a host, and announces them on the segment.
fn publish(host: &Host, forwards: &'static [(&str, &str)]) {
    host.run(move |f| {
        Box::pin(async move {
            f.networks.apply_firewall(&rules(forwards, Some("up0"))).await.expect("written");
        })
    });
}

fn guest(host: &Host, last: u8, address: &'static str) -> Guest {
    let guest = host.on(move |_, _| Guest::join(BRIDGE, last));
    configure(&guest, address);
    guest.serve6(80);
    guest
}

fn uplink(host: &Host) -> Uplink {
    host.run(|f| {
        Box::pin(async move {
            let choice = UplinkChoice { named: Some("up0".to_owned()), address: None };
            f.networks.uplink(&choice).await.expect("looked")
        })
    })
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
        assert!(!links.contains("bth-") && !links.contains(PUBLIC_LINK), "{links}");
        assert_eq!(host.ip("-6 neigh show proxy"), "");
        assert_eq!(host.on(|_, _| run("nft", "list ruleset")), "");
    }
}

#[test]
fn an_announced_ipv6_address_leads_to_its_guest_from_the_whole_segment_and_others_get_nothing() {
    in_own_namespace(|| async {
        let (a, b, outsider) = site();
        let one = guest(&a, 5, "fd00:60::5");
        let two = guest(&a, 6, "fd00:60::6");
        outsider.serve6(80);
        outsider.on(|| ip("-6 route add fd00:60::/64 via 2001:db8:9::11"));
        publish(&a, &[(PUBLIC, "fd00:60::5")]);

        assert_eq!(outsider.fetch(PUBLIC, 80).as_deref(), Some("2001:db8:9::99"), "guests see the client");
        assert!(b.on(|_, _| guest::fetch(PUBLIC, 80)).is_some(), "another host");
        assert!(a.on(|_, _| guest::fetch(PUBLIC, 80)).is_some(), "its own host");
        assert!(two.fetch(PUBLIC, 80).is_some(), "a neighbour on the same network");
        assert!(one.fetch(PUBLIC, 80).is_some(), "the guest itself");
        assert_eq!(one.fetch("2001:db8:1::2", 80).as_deref(), Some(PUBLIC), "it leaves under its own");
        let without = two.fetch("2001:db8:1::2", 80);
        assert_eq!(without.as_deref(), Some("2001:db8:9::11"), "under the host's address");
        assert_eq!(one.fetch("fd00:60::6", 80).as_deref(), Some("fd00:60::5"), "itself within its network");
        for address in ["fd00:60::5", "fd00:60::6"] {
            assert_eq!(outsider.fetch(address, 80), None, "{address} is private");
        }
        assert!(!one.connects("2001:db8:9::99", 80), "the host's own segment stays closed to guests");
        assert_eq!(a.ip("-6 neigh show proxy").split_whitespace().next(), Some(PUBLIC));
        clear(&[&a, &b]);
    });
}

#[test]
fn ports_of_an_ipv6_address_lead_to_guests_and_all_others_are_refused() {
    in_own_namespace(|| async {
        let (a, b, outsider) = site();
        let one = guest(&a, 5, "fd00:60::5");
        let _two = guest(&a, 6, "fd00:60::6");
        let targets =
            ["fd00:60::5", "fd00:60::6"].map(|target| target.parse::<IpAddr>().expect("an address"));
        let port = BalancedPort {
            protocol: PortProtocol::Tcp,
            port: 8080,
            by_client: false,
            targets: targets.into(),
            target_port: 80,
        };
        let balanced = Balanced {
            public: PUBLIC.parse().expect("an address"),
            announced_on: Some("up0".to_owned()),
            ports: vec![port],
            sources: Vec::new(),
            by_lan: Vec::new(),
        };
        let firewall = Firewall { balanced: vec![balanced], ..rules(&[], None) };
        a.run(move |f| {
            Box::pin(async move {
                f.networks.apply_firewall(&firewall).await.expect("written");
            })
        });
        for _ in 0..2 {
            let seen = outsider.fetch(PUBLIC, 8080);
            assert_eq!(seen.as_deref(), Some("2001:db8:9::99"), "each guest in turn sees the client");
            assert!(one.fetch(PUBLIC, 8080).is_some(), "a target reaches itself and its neighbour");
        }
        assert!(b.on(|_, _| guest::fetch(PUBLIC, 8080)).is_some(), "another host");
        assert!(a.on(|_, _| guest::fetch(PUBLIC, 8080)).is_some(), "its own host");
        assert!(!outsider.connects(PUBLIC, 80), "a port that is not declared");
        clear(&[&a, &b]);
    });
}

#[test]
fn an_ipv6_address_that_moves_to_another_host_is_found_there_at_once() {
    in_own_namespace(|| async {
        let (a, b, outsider) = site();
        let _before = guest(&a, 5, "fd00:60::5");
        let _after = guest(&b, 6, "fd00:60::6");
        publish(&a, &[(PUBLIC, "fd00:60::5")]);
        assert!(outsider.fetch(PUBLIC, 80).is_some());
        publish(&a, &[]);
        assert_eq!(a.ip("-6 neigh show proxy"), "", "the former host answers for it no more");
        assert_eq!(outsider.fetch(PUBLIC, 80), None, "no host has it");
        publish(&b, &[(PUBLIC, "fd00:60::6")]);
        assert!(outsider.fetch(PUBLIC, 80).is_some(), "on the other host");
        // A neighbour has a wrong entry; a new agent announces the right one.
        let known = || outsider.on(|| ip(&format!("-6 neigh show {PUBLIC}")));
        outsider.on(|| ip(&format!("-6 neigh replace {PUBLIC} lladdr 52:54:00:66:66:66 dev eth0 nud stale")));
        assert!(known().contains("52:54:00:66:66:66"));
        b.run(|f| {
            Box::pin(async move {
                let restarted = LinuxNetworks::new(f.layout.clone());
                let link = Netlink::open().expect("open").expect("up0").await.expect("there");
                let address = PUBLIC.parse().expect("an address");
                restarted.announcer.announce(&link, &[address]).expect("sent");
            })
        });
        let corrected = (0..40).any(|_| {
            std::thread::sleep(Duration::from_millis(25));
            !known().contains("52:54:00:66:66:66")
        });
        assert!(corrected, "{}", known());
        clear(&[&a, &b]);
    });
}

#[test]
fn another_machine_with_an_ipv6_address_is_found_before_it_is_taken() {
    in_own_namespace(|| async {
        let (a, b, outsider) = site();
        outsider.on(|| ip(&format!("-6 addr add {PUBLIC}/64 dev eth0 nodad")));
        let occupant = |address: &'static str| {
            a.run(move |f| {
                Box::pin(async move {
                    let address = address.parse().expect("an address");
                    f.networks.occupant("up0", address).await.expect("asked")
                })
            })
        };
        let link = outsider.on(|| ip("-o link show eth0"));
        let mac = occupant(PUBLIC).expect("the outsider answers");
        assert!(link.contains(&mac), "{mac} is not of {link}");
        assert_eq!(occupant(OTHER_PUBLIC), None, "no machine has it");
        assert_eq!(occupant("2001:db8:9::11"), None, "the host does not answer itself");
        publish(&b, &[(OTHER_PUBLIC, "fd00:60::6")]);
        assert!(occupant(OTHER_PUBLIC).is_some(), "another host has taken it");
        let found = uplink(&b);
        assert_eq!(found.public, [OTHER_PUBLIC.parse::<IpAddr>().expect("an address")].into());
        assert!(found.own.contains(&"2001:db8:9::12".parse::<IpAddr>().expect("an address")));
        assert!(!found.own.contains(&"fd00:60::1".parse::<IpAddr>().expect("the gateway of a network")));
        assert_eq!(found.ipv6_obstacle, None);
        clear(&[&a, &b]);
        b.on(|_, _| std::fs::write("/proc/sys/net/ipv6/conf/up0/forwarding", "0").expect("set"));
        let obstacle = uplink(&b).ipv6_obstacle.expect("it forwards nothing that arrives there");
        assert!(obstacle.contains("up0.forwarding=1"), "{obstacle}");
        b.on(|_, _| std::fs::write("/proc/sys/net/ipv6/conf/up0/disable_ipv6", "1").expect("set"));
        let obstacle = uplink(&b).ipv6_obstacle.expect("it has no IPv6");
        assert!(obstacle.contains("disable_ipv6=0"), "{obstacle}");
    });
}

#[test]
fn the_host_sends_from_no_public_ipv6_address_and_other_guests_neither() {
    in_own_namespace(|| async {
        let (a, b, _outsider) = site();
        publish(&a, &[(PUBLIC, "fd00:60::5")]);
        let addresses = a.ip("-6 addr show dev berth-public");
        assert!(addresses.contains(PUBLIC) && addresses.contains("deprecated"), "{addresses}");
        let gateway = a.on(|_, _| ip(&format!("-6 addr show dev {BRIDGE}")));
        assert!(gateway.contains("fd00:60::1") && !gateway.contains("deprecated"), "{gateway}");
        // The other address is on another interface too, and has less in common with the destination.
        a.on(|_, _| {
            ip("-6 addr del 2001:db8:9::11/64 dev up0");
            ip("-6 addr add 2001:db9::11/128 dev lo nodad");
            ip("-6 route replace 2001:db8:1::/64 dev up0");
        });
        let route = a.ip("-6 route get 2001:db8:1::2");
        assert!(route.contains("src 2001:db9::11"), "{route}");
        clear(&[&a, &b]);
    });
}

#[test]
fn answers_end_also_where_another_program_has_taken_the_addresses_and_those_of_others_stay() {
    in_own_namespace(|| async {
        let (a, b, _outsider) = site();
        publish(&a, &[(PUBLIC, "fd00:60::5")]);
        a.on(|_, _| {
            ip("-6 addr flush dev berth-public");
            ip(&format!("-6 neigh add proxy {OTHER_PUBLIC} dev up0"));
        });
        a.run(|f| {
            Box::pin(async move { f.networks.apply_firewall(&Firewall::default()).await.expect("removed") })
        });
        let left = a.ip("-6 neigh show proxy");
        assert!(!left.contains(PUBLIC) && left.contains(OTHER_PUBLIC), "{left}");
        a.on(|_, _| ip(&format!("-6 neigh del proxy {OTHER_PUBLIC} dev up0")));
        clear(&[&a, &b]);
    });
}

#[test]
fn answers_that_end_with_the_interface_or_its_settings_are_missed_at_once() {
    in_own_namespace(|| async {
        let (a, b, _outsider) = site();
        let missed = |change: fn()| {
            a.run(move |f| {
                Box::pin(async move {
                    let removed = async |wait| {
                        tokio::time::timeout(Duration::from_millis(wait), f.networks.firewall_removed()).await
                    };
                    assert!(removed(400).await.is_err(), "it listens, and nothing is missing");
                    change();
                    matches!(removed(2000).await, Ok(Ok(())))
                })
            })
        };
        publish(&a, &[(PUBLIC, "fd00:60::5")]);
        let is_down_for_a_moment = || {
            ip("link set up0 down");
            ip("link set up0 up");
        };
        assert!(missed(is_down_for_a_moment));
        publish(&a, &[(PUBLIC, "fd00:60::5")]);
        assert!(a.ip("-6 neigh show proxy").contains(PUBLIC), "the answers are there again");
        let is_configured = || std::fs::write("/proc/sys/net/ipv6/conf/up0/proxy_ndp", "0").expect("set");
        assert!(missed(is_configured));
        publish(&a, &[(PUBLIC, "fd00:60::5")]);
        let unrelated = || std::fs::write("/proc/sys/net/ipv6/conf/lo/proxy_ndp", "1").expect("set");
        assert!(!missed(unrelated), "the host still answers");
        clear(&[&a, &b]);
    });
}

#[test]
fn a_local_ipv6_address_is_reached_by_a_route_and_not_announced() {
    in_own_namespace(|| async {
        let f = Fixture::new();
        let outside = Guest::beside("10.9.0.2/24", "10.9.0.1/24");
        let uplink = ip("-o -4 addr show to 10.9.0.1");
        let uplink = uplink.split_ascii_whitespace().nth(1).expect("a name").to_owned();
        ip(&format!("-6 addr add 2001:db8:9::1/64 dev {uplink} nodad"));
        outside.on(|| {
            ip("-6 addr add 2001:db8:9::2/64 dev eth0 nodad");
            ip("-6 route add 2001:db8:5::/64 via 2001:db8:9::1");
        });
        f.networks.ensure(&dual_stack()).await.expect("made");
        let guest = Guest::join(BRIDGE, 5);
        configure(&guest, "fd00:60::5");
        guest.serve6(80);
        let forwards = rules(&[("2001:db8:5::7", "fd00:60::5"), ("198.18.100.1", "10.77.0.5")], None);
        f.networks.apply_firewall(&forwards).await.expect("written");
        assert_eq!(outside.fetch("2001:db8:5::7", 80).as_deref(), Some("2001:db8:9::2"));
        assert_eq!(ip("-6 neigh show proxy"), "");
        // Both families come and go without each other.
        f.networks.apply_firewall(&rules(&[("198.18.100.1", "10.77.0.5")], None)).await.expect("written");
        let addresses = ip(&format!("addr show dev {PUBLIC_LINK}"));
        assert!(addresses.contains("198.18.100.1") && !addresses.contains("inet6"), "{addresses}");
        assert!(!run("nft", "list table inet berth").contains("forwards6"));
        assert_eq!(outside.fetch("2001:db8:5::7", 80), None, "it leads nowhere");
        f.networks.apply_firewall(&Firewall::default()).await.expect("removed");
        assert!(!ip("-o link").contains(PUBLIC_LINK));
        f.networks.remove(BRIDGE).await.expect("removed");
    });
}

const PREFIX: &str = "2001:db8:5:0:1::/80";

fn routed(via: &str) -> RoutedPrefix {
    let prefix = PREFIX.parse().expect("a prefix");
    RoutedPrefix { prefix, via: via.parse().expect("an address"), bridge: BRIDGE.to_owned() }
}

fn port(last: u8) -> Port {
    let ipv6 = format!("fd00:60::{last}").parse().ok();
    Port { tap: format!("btt0000000{last}n0"), mac: lease(last).mac, address: lease(last).address, ipv6 }
}

/// The rules of two guests, to the first of which the prefix leads, if it does.
fn with_prefix(prefixes: Vec<RoutedPrefix>) -> Firewall {
    let ranges = prefixes.iter().map(|routed| routed.prefix.into()).collect();
    let exception = PortException { tap: port(5).tap, ranges, macs: Vec::new(), gateways: Vec::new() };
    let exceptions = if prefixes.is_empty() { Vec::new() } else { vec![exception] };
    Firewall { ports: vec![port(5), port(6)], guests: true, exceptions, prefixes, ..rules(&[], None) }
}

fn prefix_routes() -> String {
    ip("-6 route show proto 98")
}

/// A machine beside the host, which routes the prefixes to it. It also leads to 2001:db8:1::/64.
fn outside() -> Guest {
    let outside = Guest::beside("10.9.0.2/24", "10.9.0.1/24");
    let uplink = ip("-o -4 addr show to 10.9.0.1");
    let uplink = uplink.split_ascii_whitespace().nth(1).expect("a name").to_owned();
    ip(&format!("-6 addr add 2001:db8:9::1/64 dev {uplink} nodad"));
    ip("-6 route add 2001:db8:1::/64 via 2001:db8:9::2");
    outside.on(|| {
        ip("-6 addr add 2001:db8:9::2/64 dev eth0 nodad");
        ip("-6 addr add 2001:db8:1::2/64 dev eth0 nodad");
        ip("-6 route add 2001:db8:5::/64 via 2001:db8:9::1");
    });
    outside.serve6(80);
    // The kernel discovers the neighbours of forwarded packets from its link-local address, once that is known to be unique.
    let deadline = Instant::now() + Duration::from_secs(5);
    while !ip(&format!("-6 addr show dev {uplink} tentative")).is_empty() {
        assert!(Instant::now() < deadline, "the link-local address stays tentative");
        std::thread::sleep(Duration::from_millis(20));
    }
    outside
}

#[test]
fn the_addresses_of_a_public_prefix_are_filtered_as_those_of_their_interface() {
    in_own_namespace(|| async {
        let f = Fixture::new();
        let outside = outside();
        let with = |egress: Option<Vec<FilterRule>>| {
            let http = rule(FilterProtocol::Tcp, &[(80, 80)], &["::/0"], &[]);
            let filtered = FilteredPort {
                port: port(5),
                groups: vec!["ns/web".into()],
                asks_dhcp: false,
                prefixes: vec![PREFIX.parse().expect("a prefix")],
            };
            let groups = vec![group(vec![http], egress)];
            let filters = Filters { ports: vec![filtered], groups, ..Filters::default() };
            Firewall { filters: filters.into(), ..with_prefix(vec![routed("fd00:60::5")]) }
        };
        f.networks.apply_firewall(&with(Some(Vec::new()))).await.expect("written");
        let leading = NetworkConfig { prefixes: vec![routed("fd00:60::5")], ..dual_stack() };
        f.networks.ensure(&leading).await.expect("made");
        let one = Guest::by_tap(BRIDGE, &port(5).tap, 5);
        configure(&one, "fd00:60::5");
        one.on(|| {
            ip("-6 addr add 2001:db8:5:0:1::7/128 dev eth0 nodad");
            ip("-6 route add 2001:db8:1::/64 via fd00:60::1 src 2001:db8:5:0:1::7");
        });
        one.serve6(80);
        one.serve6(81);
        assert!(outside.fetch("2001:db8:5:0:1::7", 80).is_some(), "a port that its group allows");
        assert!(!outside.connects("2001:db8:5:0:1::7", 81), "no other port");
        assert_eq!(one.fetch("2001:db8:1::2", 80), None, "its group allows no connections of its own");
        f.networks.apply_firewall(&with(None)).await.expect("written");
        assert_eq!(one.fetch("2001:db8:1::2", 80).as_deref(), Some("2001:db8:5:0:1::7"));
        assert!(!outside.connects("2001:db8:5:0:1::7", 81), "as before");
        f.networks.remove(BRIDGE).await.expect("removed");
    });
}

#[test]
fn a_public_prefix_is_routed_to_its_guest_which_alone_sends_from_it() {
    in_own_namespace(|| async {
        let f = Fixture::new();
        let outside = outside();
        // An administrator discards the packets to prefixes that lead to no guest.
        ip(&format!("-6 route add unreachable {PREFIX}"));
        f.networks.apply_firewall(&with_prefix(vec![routed("fd00:60::5")])).await.expect("written");
        let leading = NetworkConfig { prefixes: vec![routed("fd00:60::5")], ..dual_stack() };
        f.networks.ensure(&leading).await.expect("made, before any guest is there");
        let route = prefix_routes();
        assert!(route.contains(&format!("{PREFIX} via fd00:60::5 dev {BRIDGE}")), "{route}");
        let one = Guest::by_tap(BRIDGE, &port(5).tap, 5);
        let two = Guest::by_tap(BRIDGE, &port(6).tap, 6);
        configure(&one, "fd00:60::5");
        configure(&two, "fd00:60::6");
        one.on(|| ip("-6 addr add 2001:db8:5:0:1::7/128 dev eth0 nodad"));
        one.serve6(80);
        assert!(outside.fetch("2001:db8:5:0:1::7", 80).is_some(), "from outside");
        assert!(two.fetch("2001:db8:5:0:1::7", 80).is_some(), "from a neighbour");
        assert!(guest::fetch("2001:db8:5:0:1::7", 80).is_some(), "from the host");
        assert!(!outside.connects("2001:db8:5:0:2::7", 80), "not of the prefix");
        one.on(|| ip("-6 route add 2001:db8:1::/64 via fd00:60::1 src 2001:db8:5:0:1::7"));
        let seen = one.fetch("2001:db8:1::2", 80);
        assert_eq!(seen.as_deref(), Some("2001:db8:5:0:1::7"), "it leaves unchanged, also with Masquerade");
        assert_eq!(two.fetch("2001:db8:1::2", 80).as_deref(), Some("2001:db8:9::1"));
        two.on(|| {
            ip("-6 addr add 2001:db8:5:0:1::8/128 dev eth0 nodad");
            ip("-6 route add 2001:db8:1::/64 via fd00:60::1 src 2001:db8:5:0:1::8");
        });
        assert_eq!(two.fetch("2001:db8:1::2", 80), None, "the prefix of another guest");

        let moved = NetworkConfig { prefixes: vec![routed("fd00:60::6")], ..dual_stack() };
        f.networks.ensure(&moved).await.expect("updated");
        let route = prefix_routes();
        assert!(route.contains("via fd00:60::6") && !route.contains("fd00:60::5"), "{route}");
        f.networks.ensure(&dual_stack()).await.expect("updated");
        assert_eq!(prefix_routes(), "");
        assert!(ip("-6 route show type unreachable").contains(PREFIX), "that of the administrator stays");
        f.networks.apply_firewall(&with_prefix(Vec::new())).await.expect("written");
        assert!(!outside.connects("2001:db8:5:0:1::7", 80), "it leads nowhere");
        assert_eq!(one.fetch("2001:db8:1::2", 80), None, "nor does the guest send from it");
        f.networks.remove(BRIDGE).await.expect("removed");
    });
}

#[test]
fn routes_of_prefixes_that_a_former_agent_made_end_with_the_next_one() {
    in_own_namespace(|| async {
        let f = Fixture::new();
        let leading = NetworkConfig { prefixes: vec![routed("fd00:60::5")], ..dual_stack() };
        f.networks.ensure(&leading).await.expect("made");
        assert!(prefix_routes().contains(PREFIX));
        let restarted = LinuxNetworks::new(f.layout.clone());
        restarted.ensure(&dual_stack()).await.expect("updated");
        assert_eq!(prefix_routes(), "");
        restarted.ensure(&leading).await.expect("updated");
        assert!(prefix_routes().contains(PREFIX));
        ip(&format!("-6 route flush dev {BRIDGE} proto 98"));
        restarted.ensure(&leading).await.expect("updated");
        assert!(prefix_routes().contains(PREFIX), "what another program removed is there again");
        restarted.remove(BRIDGE).await.expect("removed");
        assert_eq!(prefix_routes(), "");
    });
}
