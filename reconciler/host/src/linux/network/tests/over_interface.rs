//! Bridged networks over an interface of the host: with and without a VLAN, in use, interrupted, and gone again.

use super::bridged::reaches;
use super::guest;
use super::*;
use crate::{Balanced, BalancedPort, BridgeChoice, BridgedNetwork, HostInterface, Port, PortProtocol, Relay};

const CARD: &str = "eth1";
const TAG: u16 = 120;

fn choice(vlan: Option<u16>) -> BridgeChoice {
    BridgeChoice::Over { interface: CARD.to_owned(), vlan }
}

fn part(bridge: &str, vlan: Option<u16>) -> BridgedNetwork {
    BridgedNetwork {
        bridge: bridge.to_owned(),
        to: choice(vlan),
        tracked: false,
        leased: Vec::new(),
        served: Vec::new(),
        served_ipv6: Vec::new(),
        learned: Vec::new(),
        names: None,
        relay: None,
    }
}

/// A card of the host, which is down, with a machine at the other end of its cable.
fn card() -> Guest {
    let machine = Guest::beside("192.0.2.9/24", "192.0.2.1/24");
    let name = ip("-o -4 addr show to 192.0.2.1");
    let name = name.split_whitespace().nth(1).expect("an interface");
    ip(&format!("addr flush dev {name}"));
    ip(&format!("link set dev {name} down"));
    ip(&format!("link set dev {name} name {CARD} mtu 1400"));
    machine
}

fn port(last: u8, address: &str) -> Port {
    Port {
        tap: format!("btt0000000{last}n0"),
        mac: format!("52:54:00:00:00:{last:02x}"),
        address: address.parse().ok(),
        ipv6: None,
    }
}

fn rules(vlan: Option<u16>) -> Firewall {
    Firewall {
        bridged: vec![BRIDGE.to_owned(), choice(vlan).name()],
        ports: vec![port(2, "192.0.2.50")],
        guests: true,
        ..Firewall::default()
    }
}

fn guest() -> Guest {
    let guest = Guest::by_tap(BRIDGE, &port(2, "192.0.2.50").tap, 2);
    guest.on(|| ip("addr add 192.0.2.50/24 dev eth0"));
    guest
}

fn is_up() -> bool {
    ip(&format!("-o link show dev {CARD}")).contains(",UP")
}

/// The index and the name of each link, and the bridge that it is a port of. Its state follows a little later.
fn topology() -> Vec<String> {
    let of = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let master = words.windows(2).find(|pair| pair[0] == "master").map_or("", |pair| pair[1]);
        format!("{} {} {master}", words[0], words[1])
    };
    ip("-o link").lines().map(of).collect()
}

fn nothing_is_left() {
    let links = ip("-o link");
    let prefixes = ["bth-", "btb-", "btg-", "btu-", "btv-", "btr-", "btq-"];
    assert!(!prefixes.iter().any(|prefix| links.contains(prefix)), "{links}");
}

fn ipv6_is_off() -> bool {
    std::fs::read_to_string(format!("/proc/sys/net/ipv6/conf/{CARD}/disable_ipv6"))
        .is_ok_and(|value| value.trim() == "1")
}

fn has_vlans() -> bool {
    Path::new("/proc/net/vlan").exists()
}

async fn facts(host: &Fixture) -> HostInterface {
    let links = host.networks.host_links().await.expect("listed");
    links.interfaces.into_iter().find(|of| of.name == CARD).expect("the card")
}

#[test]
fn guests_are_on_the_network_of_the_interface_and_it_is_left_as_it_was_found() {
    in_own_namespace(|| async {
        let host = Fixture::new();
        let machine = card();
        let before = (is_up(), ipv6_is_off());
        assert!(!before.0);
        host.networks.apply_firewall(&rules(None)).await.expect("rules");
        host.networks.ensure_bridged(&part(BRIDGE, None)).await.expect("made");
        let made = topology();
        host.networks.ensure_bridged(&part(BRIDGE, None)).await.expect("made again");
        assert_eq!(topology(), made, "nothing changes");
        host.networks.ensure_bridged(&part(OTHER, None)).await.expect("another network of the interface");
        let bridge = choice(None).name();
        assert_eq!(ip(&format!("-o link show master {bridge}")).lines().count(), 3, "both share its bridge");
        let found = facts(&host).await;
        assert_eq!(
            (found.in_use, found.up, found.carrier, found.mtu),
            (None, true, true, 1400),
            "berth's own use"
        );
        assert!(host.networks.host_links().await.expect("listed").bridges.is_empty());
        assert!(ip(&format!("-o link show dev {BRIDGE}")).contains("mtu 1400"));

        let guest = guest();
        assert!(reaches(&guest, "192.0.2.9") && reaches(&machine, "192.0.2.50"));
        assert!(!ip("-o addr").contains(&bridge), "no address");
        ip("addr add 192.0.2.77/32 dev lo");
        assert!(!reaches(&machine, "192.0.2.77"), "the host does not answer there");
        drop(guest);

        host.networks.remove(OTHER).await.expect("removed");
        assert!(ip("-o link").contains(&bridge), "the other network is connected");
        host.networks.remove(BRIDGE).await.expect("removed");
        host.networks.remove(BRIDGE).await.expect("removed again");
        assert_eq!((is_up(), ipv6_is_off()), before);
        nothing_is_left();
        assert_eq!(host.networks.networks().await.expect("listed"), [""; 0]);
    });
}

#[test]
fn an_interface_that_the_host_uses_never_becomes_a_port() {
    in_own_namespace(|| async {
        let host = Fixture::new();
        let machine = card();
        ip(&format!("link set {CARD} up"));
        ip("link add vmbr0 type bridge");
        let cases = [
            ("addr add 192.0.2.1/24 dev eth1", "addr del 192.0.2.1/24 dev eth1", "has address 192.0.2.1/24"),
            (
                "addr add fd00:60::1/64 dev eth1",
                "addr del fd00:60::1/64 dev eth1",
                "has address fd00:60::1/64",
            ),
            (
                "route add 203.0.113.0/24 dev eth1",
                "route del 203.0.113.0/24 dev eth1",
                "has a route to 203.0.113.0/24",
            ),
            ("link set eth1 master vmbr0", "link set eth1 nomaster", "is a port of vmbr0"),
        ];
        for (begin, end, why) in cases {
            ip(begin);
            let before = (topology(), ip("-o -4 addr"), ip("route"));
            let error = host.networks.ensure_bridged(&part(BRIDGE, None)).await.expect_err(why);
            assert!(error.to_string().contains(why), "{error}");
            assert_eq!((topology(), ip("-o -4 addr"), ip("route")), before, "nothing is made");
            let listed = host.networks.host_links().await.expect("listed").interfaces;
            let listed = listed.into_iter().find(|of| of.name == CARD);
            let expected = (!why.contains("vmbr0")).then(|| Some(why.to_owned()));
            assert_eq!(listed.map(|of| of.in_use), expected, "ends of pairs on a bridge are containers'");
            ip(end);
        }
        for missing in ["eth9", "vmbr0", "lo"] {
            let to = BridgeChoice::Over { interface: missing.to_owned(), vlan: None };
            let network = BridgedNetwork { to, ..part(BRIDGE, None) };
            let error = host.networks.ensure_bridged(&network).await.expect_err(missing);
            assert!(error.to_string().contains("no such interface"), "{error}");
        }
        assert!(machine.on(|| ip("-o link")).contains("eth0"));
    });
}

#[test]
fn a_bridge_that_was_interrupted_in_the_making_or_loses_its_interface_is_completed_or_removed() {
    in_own_namespace(|| async {
        let host = Fixture::new();
        let machine = card();
        let bridge = choice(None).name();
        host.networks.apply_firewall(&rules(None)).await.expect("rules");
        // Killed after the bridge was made, before anything was recorded.
        ip(&format!("link add {BRIDGE} type bridge"));
        ip(&format!("link add {bridge} type bridge"));
        host.networks.remove(BRIDGE).await.expect("removed");
        assert!(!ip("-o link").contains(&bridge) && !is_up());
        ip(&format!("link add {bridge} type bridge"));
        host.networks.ensure_bridged(&part(BRIDGE, None)).await.expect("completed");
        // Killed after the interface was taken from the bridge and brought down, before the bridge was removed.
        ip(&format!("link set {CARD} nomaster"));
        ip(&format!("link set {CARD} down"));
        host.networks.ensure_bridged(&part(BRIDGE, None)).await.expect("completed");
        let first = guest();
        assert!(reaches(&machine, "192.0.2.50"));

        // The interface vanishes, as with its driver, and comes back.
        ip(&format!("link del {CARD}"));
        drop(machine);
        let error = host.networks.ensure_bridged(&part(BRIDGE, None)).await.expect_err("it is gone");
        assert!(error.to_string().contains(CARD), "{error}");
        let machine = card();
        host.networks.ensure_bridged(&part(BRIDGE, None)).await.expect("connected again");
        assert!(reaches(&machine, "192.0.2.50"));
        drop(first);

        // The administrator has given it an address meanwhile: it stays up.
        ip(&format!("addr add 198.51.100.1/24 dev {CARD}"));
        host.networks.remove(BRIDGE).await.expect("removed");
        assert!(is_up() && !ip("-o link").contains(&bridge));
    });
}

#[test]
fn a_vlan_carries_guests_beside_the_hosts_own_addresses_or_the_kernel_has_none_and_the_message_says_so() {
    in_own_namespace(|| async {
        let host = Fixture::new();
        let machine = card();
        ip(&format!("link set {CARD} up"));
        ip(&format!("addr add 198.51.100.1/24 dev {CARD}"));
        let state = || (topology(), is_up(), ip("-o -4 addr"), ip("route"));
        let before = state();
        let links = host.networks.host_links().await.expect("listed");
        assert_eq!(links.vlans, has_vlans());
        host.networks.apply_firewall(&rules(Some(TAG))).await.expect("rules");
        let made = host.networks.ensure_bridged(&part(BRIDGE, Some(TAG))).await;
        if !has_vlans() {
            let error = made.expect_err("this kernel has none").to_string();
            assert!(
                error.contains("VLANs are not available on this host's kernel: modprobe 8021q"),
                "{error}"
            );
        } else {
            made.expect("made");
            vlan_carries_guests(&host, &machine).await;
        }
        host.networks.remove(BRIDGE).await.expect("removed");
        assert_eq!(state(), before);
        nothing_is_left();
    });
}

/// On a kernel with VLANs.
async fn vlan_carries_guests(host: &Fixture, machine: &Guest) {
    machine.on(|| {
        ip("addr flush dev eth0");
        ip("addr add 198.51.100.9/24 dev eth0");
        ip(&format!("link add link eth0 name tagged type vlan id {TAG}"));
        ip("addr add 192.0.2.9/24 dev tagged");
        ip("link set tagged up")
    });
    host.networks.ensure_bridged(&part(BRIDGE, Some(TAG))).await.expect("made again");
    let guest = guest();
    assert!(reaches(&guest, "192.0.2.9") && reaches(machine, "192.0.2.50"));
    assert!(reaches(machine, "198.51.100.1"), "the host has its address as before, without the tag");
    drop(guest);
    host.networks.ensure_bridged(&part(OTHER, Some(TAG + 1))).await.expect("another VLAN");
    ip(&format!("link add link {CARD} name eth1.7 type vlan id 7"));
    let error = host.networks.ensure_bridged(&part(OTHER, Some(7))).await.expect_err("the host's own");
    assert!(error.to_string().contains("as eth1.7"), "{error}");
    ip("link del eth1.7");
    host.networks.remove(OTHER).await.expect("removed");
    assert!(ip("-o link").contains(&choice(Some(TAG)).name()));
}

#[test]
fn connections_to_a_public_address_reach_machines_of_the_network_from_an_address_that_takes_nothing_else() {
    in_own_namespace(|| async {
        let host = Fixture::new();
        let machine = card();
        let addresses = ["192.0.2.50", "192.0.2.9"].map(|text| text.parse::<IpAddr>().expect("an address"));
        let port = BalancedPort {
            protocol: PortProtocol::Tcp,
            port: 8080,
            by_client: false,
            targets: addresses.to_vec(),
            target_port: 80,
        };
        let [former, source] = ["192.0.2.59", "192.0.2.60"].map(|text| text.parse().expect("an address"));
        let balanced = Balanced {
            public: "198.51.100.7".parse().expect("an address"),
            announced_on: None,
            ports: vec![port],
            sources: vec![(BRIDGE.to_owned(), source)],
            by_lan: addresses.map(|target| (relay_link(BRIDGE), target)).to_vec(),
        };
        let firewall = Firewall { balanced: vec![balanced], ..rules(None) };
        host.networks.apply_firewall(&firewall).await.expect("rules");
        // The first one is that of another public address.
        let relay = Relay { addresses: vec![former, source], targets: addresses.to_vec() };
        let with_relay = BridgedNetwork { relay: Some(relay), ..part(BRIDGE, None) };
        host.networks.ensure_bridged(&with_relay).await.expect("made");
        let guest = guest();
        guest.serve(80);
        machine.serve(80);
        assert!((0..10).any(|_| reaches(&guest, "192.0.2.9")));
        let client = Guest::beside("203.0.113.9/24", "203.0.113.1/24");
        assert!((0..10).any(|_| client.fetch("198.51.100.7", 8080).is_some()));
        for filters in ["1", "0"] {
            let _ = std::fs::write(BRIDGED, filters);
            let seen: Vec<Option<String>> = (0..4).map(|_| client.fetch("198.51.100.7", 8080)).collect();
            assert_eq!(seen, vec![Some("192.0.2.60".to_owned()); 4], "both targets see it: {filters}");
        }
        guest::serve_here(2222);
        assert!(!machine.connects("192.0.2.60", 2222), "a port of the host");
        run("nft", "flush chain inet berth input");
        assert!(machine.connects("192.0.2.60", 2222), "the rules, and nothing else, drop them");

        host.networks.apply_firewall(&rules(None)).await.expect("rules");
        host.networks.ensure_bridged(&part(BRIDGE, None)).await.expect("as before");
        assert!(!ip("-o link").contains("btr-"));
        drop(guest);
        host.networks.remove(BRIDGE).await.expect("removed");
        nothing_is_left();
    });
}
