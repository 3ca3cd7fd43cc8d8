//! Bridged networks: guests on a bridge of the host, with a machine of the host's network beside them.

use super::*;
use crate::{BridgeChoice, BridgedNetwork, Port, PortException};

const HOST_BRIDGE: &str = "vmbr0";

pub(super) fn part(tracked: bool) -> BridgedNetwork {
    BridgedNetwork {
        bridge: BRIDGE.to_owned(),
        to: BridgeChoice::Named(HOST_BRIDGE.to_owned()),
        tracked,
        leased: Vec::new(),
        served: Vec::new(),
        served_ipv6: Vec::new(),
        learned: Vec::new(),
        names: None,
        relay: None,
    }
}

fn port(last: u8, address: Option<&str>) -> Port {
    Port {
        tap: format!("btt0000000{last}n0"),
        mac: format!("52:54:00:00:00:{last:02x}"),
        address: address.map(|text| text.parse().expect("an address")),
        ipv6: None,
    }
}

fn rules() -> Firewall {
    let any = PortException {
        tap: port(3, None).tap,
        ranges: vec![Ipv4Net::default().into()],
        macs: Vec::new(),
        gateways: Vec::new(),
    };
    Firewall {
        bridged: vec![BRIDGE.to_owned()],
        ports: vec![port(2, Some("192.0.2.50")), port(3, None)],
        exceptions: vec![any],
        guests: true,
        ..Firewall::default()
    }
}

/// The host's bridge with its own address and MTU, and a machine on it.
pub(super) fn lan() -> Guest {
    ip(&format!("link add {HOST_BRIDGE} mtu 1400 type bridge"));
    ip(&format!("addr add 192.0.2.1/24 dev {HOST_BRIDGE}"));
    // The card, whose address the bridge takes.
    ip("link add card address 02:00:00:00:00:01 mtu 1400 type veth peer name cable");
    ip(&format!("link set card master {HOST_BRIDGE} up"));
    ip(&format!("link set {HOST_BRIDGE} up"));
    let machine = Guest::join(HOST_BRIDGE, 0x80);
    machine.on(|| ip("addr add 192.0.2.9/24 dev eth0"));
    machine
}

fn guest(last: u8, address: &'static str) -> Guest {
    let guest = Guest::by_tap(BRIDGE, &port(last, None).tap, last);
    guest.on(move || ip(&format!("addr add {address}/24 dev eth0")));
    guest
}

/// Whether a machine answers a datagram from this address of the caller: it refuses the port.
fn answers(from: &str, to: &str) -> bool {
    let attempt = || {
        let socket = std::net::UdpSocket::bind((from, 0)).expect("an address of its own");
        socket.set_read_timeout(Some(Duration::from_secs(1))).expect("set");
        socket.connect((to, 9)).expect("a route");
        let _ = socket.send(b"?");
        socket.recv(&mut [0; 1]).expect_err("nothing listens").kind() == std::io::ErrorKind::ConnectionRefused
    };
    (0..3).any(|_| attempt())
}

pub(super) fn reaches(from: &Guest, to: &'static str) -> bool {
    from.on(move || answers("0.0.0.0", to))
}

/// The host's bridge, without what its ports come and go with.
fn bridge_settings() -> String {
    let text = ip(&format!("-d -o link show dev {HOST_BRIDGE}"));
    let timers = ["gc_timer", "hello_timer", "tcn_timer", "topology_change_timer", "fdb_n_learned"];
    let words: Vec<&str> = text.split_whitespace().collect();
    let keep = |n: &usize| !timers.contains(&words[*n]) && (*n == 0 || !timers.contains(&words[*n - 1]));
    let kept: Vec<&str> = (0..words.len()).filter(keep).map(|n| words[n]).collect();
    format!("{} {}", kept.join(" "), ip(&format!("-o -4 addr show dev {HOST_BRIDGE}")))
}

#[test]
fn guests_are_machines_of_the_hosts_network_and_the_hosts_bridge_stays_as_it_is() {
    in_own_namespace(|| async {
        let host = Fixture::new();
        let machine = lan();
        let before = bridge_settings();
        host.networks.apply_firewall(&rules()).await.expect("rules");
        host.networks.ensure_bridged(&part(false)).await.expect("made");
        host.networks.ensure_bridged(&part(false)).await.expect("made again");
        assert_eq!(bridge_settings(), before);
        let found = host.networks.host_links().await.expect("listed").bridges;
        let names: Vec<&str> = found.iter().map(|bridge| bridge.name.as_str()).collect();
        assert_eq!((names, found[0].mtu, found[0].up), (vec![HOST_BRIDGE], 1400, true));
        assert_eq!(host.networks.networks().await.expect("listed"), [BRIDGE]);

        let (fixed, any) = (guest(2, "192.0.2.50"), guest(3, "192.0.2.77"));
        assert!(reaches(&fixed, "192.0.2.9") && reaches(&machine, "192.0.2.50"));
        assert!(reaches(&any, "192.0.2.9") && reaches(&machine, "192.0.2.77"));
        assert!(reaches(&fixed, "192.0.2.77"), "another guest");
        for machine in [&fixed, &machine] {
            machine.on(|| ip("neigh flush dev eth0"));
            assert!(reaches(machine, "192.0.2.1"), "the host");
            let neighbour = machine.on(|| ip("neigh show 192.0.2.1 dev eth0"));
            assert!(
                neighbour.contains("02:00:00:00:00:01"),
                "the MAC address of the host's bridge: {neighbour}"
            );
        }
        assert!(!ip(&format!("addr show dev {BRIDGE}")).contains("inet"), "it has no address");
        for (address, is_taken) in [("192.0.2.9", true), ("192.0.2.77", true), ("192.0.2.51", false)] {
            let address = address.parse().expect("an address");
            let found = host.networks.occupant(HOST_BRIDGE, address).await.expect("asked");
            assert_eq!(found.is_some(), is_taken, "{address}: {found:?}");
        }

        host.networks.remove(BRIDGE).await.expect("removed");
        host.networks.remove(BRIDGE).await.expect("removed again");
        assert_eq!(bridge_settings(), before);
        assert!(!ip("-o link").contains("btu-") && !ip("-o link").contains("btv-"));
        assert_eq!(host.networks.networks().await.expect("listed"), [""; 0]);
    });
}

#[test]
fn a_guest_of_a_bridge_takes_no_address_that_is_not_its_own_and_no_other_mac() {
    in_own_namespace(|| async {
        let host = Fixture::new();
        let machine = lan();
        host.networks.apply_firewall(&rules()).await.expect("rules");
        host.networks.ensure_bridged(&part(false)).await.expect("made");
        let (fixed, any) = (guest(2, "192.0.2.50"), guest(3, "192.0.2.77"));
        assert!(reaches(&fixed, "192.0.2.9") && reaches(&any, "192.0.2.9"));
        for guest in [&fixed, &any] {
            guest.on(|| ip("addr add 192.0.2.60/24 dev eth0"));
        }
        let from_60 = || answers("192.0.2.60", "192.0.2.9");
        assert!(!fixed.on(from_60), "not its address");
        fixed.on(|| ip("addr del 192.0.2.60/24 dev eth0"));
        machine.on(|| ip("neigh flush dev eth0"));
        assert!(any.on(from_60), "another DHCP server may have given it this address");
        any.on(|| ip("link set dev eth0 address 52:54:00:00:00:99"));
        assert!(!reaches(&any, "192.0.2.9"), "another MAC");
    });
}

#[test]
fn a_connection_that_was_interrupted_in_the_making_is_completed_and_a_part_of_one_is_removed() {
    in_own_namespace(|| async {
        let host = Fixture::new();
        let machine = lan();
        ip("link add btu-0a1b2c3d type veth peer name btv-0a1b2c3d");
        assert_eq!(host.networks.networks().await.expect("listed"), [BRIDGE], "it is known");
        ip(&format!("link add {BRIDGE} type bridge"));
        host.networks.apply_firewall(&rules()).await.expect("rules");
        host.networks.ensure_bridged(&part(false)).await.expect("completed");
        let setting = std::fs::read_to_string(format!("/proc/sys/net/ipv6/conf/{BRIDGE}/disable_ipv6"));
        assert!(!setting.is_ok_and(|value| value.trim() == "0"), "its bridge has no IPv6");
        let fixed = guest(2, "192.0.2.50");
        assert!(reaches(&machine, "192.0.2.50"));
        drop(fixed);
        ip(&format!("link del {BRIDGE}"));
        host.networks.remove(BRIDGE).await.expect("removed");
        assert!(!ip("-o link").contains("btu-"));
    });
}

#[test]
fn nothing_is_left_of_a_network_of_the_other_type_that_had_the_same_bridge() {
    in_own_namespace(|| async {
        let host = Fixture::new();
        let _machine = lan();
        host.networks.apply_firewall(&rules()).await.expect("rules");
        let private = network(BRIDGE, "10.77.0.0/24", Vec::new());
        host.networks.ensure(&private).await.expect("made");
        host.networks.ensure_bridged(&part(false)).await.expect("in its place");
        assert!(!host.layout.network(BRIDGE).exists(), "its DHCP server has ended");
        assert!(!ip(&format!("addr show dev {BRIDGE}")).contains("inet"), "it has no address");

        host.networks.ensure(&private).await.expect("in its place");
        assert!(!ip("-o link").contains("btv-"), "nothing connects it with the LAN");
        assert!(ip(&format!("addr show dev {BRIDGE}")).contains("10.77.0.1/24"));
        let setting = std::fs::read_to_string(format!("/proc/sys/net/ipv4/conf/{BRIDGE}/arp_ignore"));
        assert_eq!(setting.expect("read").trim(), "0", "it answers for its gateway");
        host.networks.remove(BRIDGE).await.expect("removed");
    });
}

#[test]
fn without_the_bridge_of_the_host_nothing_is_made() {
    in_own_namespace(|| async {
        let host = Fixture::new();
        let error = host.networks.ensure_bridged(&part(false)).await.expect_err("there is none");
        assert!(error.to_string().contains("no such interface"), "{error}");
        ip(&format!("link add {HOST_BRIDGE} type veth peer name other"));
        let error = host.networks.ensure_bridged(&part(false)).await.expect_err("it is none");
        assert!(error.to_string().contains("no bridge of this host"), "{error}");
        assert!(!ip("-o link").contains("bth-"));
    });
}

#[test]
fn a_bridge_of_the_host_that_vanishes_and_comes_back_is_connected_again() {
    in_own_namespace(|| async {
        let host = Fixture::new();
        let machine = lan();
        host.networks.apply_firewall(&rules()).await.expect("rules");
        host.networks.ensure_bridged(&part(false)).await.expect("made");
        let fixed = guest(2, "192.0.2.50");
        assert!(reaches(&machine, "192.0.2.50"));

        // As a restart of the host's network configuration does it.
        ip(&format!("link del {HOST_BRIDGE}"));
        ip("link del card");
        drop(machine);
        assert!(host.networks.host_links().await.expect("listed").bridges.is_empty());
        let error = host.networks.ensure_bridged(&part(false)).await.expect_err("it is gone");
        assert!(error.to_string().contains("no such interface"), "{error}");
        assert_eq!(host.networks.networks().await.expect("listed"), [BRIDGE], "the guest keeps its part");

        let machine = lan();
        host.networks.ensure_bridged(&part(false)).await.expect("connected again");
        host.networks.ensure_bridged(&part(false)).await.expect("connected still");
        fixed.on(|| ip("neigh flush dev eth0"));
        assert!(reaches(&fixed, "192.0.2.9") && reaches(&machine, "192.0.2.50"));
        drop(fixed);

        host.networks.remove(BRIDGE).await.expect("removed");
        assert!(!ip("-o link").contains("btu-") && !ip("-o link").contains("btv-"));
    });
}
