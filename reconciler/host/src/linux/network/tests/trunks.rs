//! Frames with a VLAN tag: those that guests send to each other and to a machine of the host's network, and those that they receive.

use std::sync::mpsc::Receiver;

use super::bridged::{lan, part};
use super::spoofing::{ITS_ADDRESS, SERVER, UDP, ethernet, ipv4, ipv6, link_local, mark, udp};
use super::*;
use crate::{Port, PortTrunk};

const VLAN: u16 = 0x8100;
const PROVIDER_VLAN: u16 = 0x88a8;
const OLD_VLANS: [u16; 3] = [0x9100, 0x9200, 0x9300];
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const ICMPV6: u8 = 58;
/// The machine of the host's network, which is no guest.
const MACHINE: u8 = 9;
const LAST: &str = "the last, without a tag";

type Cases = Vec<(&'static str, Vec<u8>)>;

fn port(last: u8) -> Port {
    Port {
        tap: format!("btt0000000{last}n0"),
        mac: lease(last).mac,
        address: lease(last).address,
        ipv6: None,
    }
}

fn mac(last: u8) -> [u8; 6] {
    [0x52, 0x54, 0, 0, 0, last]
}

fn rules(trunks: &[(u8, &[(u16, u16)])]) -> Firewall {
    let trunk =
        |(last, vlans): &(u8, &[(u16, u16)])| PortTrunk { tap: port(*last).tap, vlans: vlans.to_vec() };
    Firewall {
        bridged: vec![BRIDGE.to_owned()],
        ports: (5..=7).map(port).collect(),
        trunks: trunks.iter().map(trunk).collect(),
        guests: true,
        ..Firewall::default()
    }
}

fn datagram(from: Ipv4Addr) -> Vec<u8> {
    ipv4(from, SERVER, &udp(9, 9, &[]))
}

/// A frame with a tag of this type; `control` has the VLAN, and its priority in the highest three bits.
fn tagged(from: [u8; 6], (tag, control): (u16, u16), kind: u16, payload: &[u8]) -> Vec<u8> {
    ethernet(from, tag, &[&control.to_be_bytes()[..], &kind.to_be_bytes(), payload].concat())
}

/// Frames of each kind, from this MAC address.
fn frames(from: [u8; 6]) -> Cases {
    let own = datagram(ITS_ADDRESS);
    let other = datagram(Ipv4Addr::new(192, 168, 10, 1));
    let advertisement = ipv6(link_local(9), ICMPV6, &[134, 0, 0, 0, 0, 0, 0, 0]);
    let plain = |vlan: u16| tagged(from, (VLAN, vlan), IPV4, &own);
    let second = [&10_u16.to_be_bytes()[..], &IPV4.to_be_bytes(), &own].concat();
    vec![
        ("vlan 10", plain(10)),
        ("vlan 10, priority 3", plain(3 << 13 | 10)),
        ("vlan 10, another address", tagged(from, (VLAN, 10), IPV4, &other)),
        ("vlan 10, ipv6", tagged(from, (VLAN, 10), IPV6, &ipv6(link_local(9), UDP, &udp(9, 9, &[])))),
        ("vlan 10, router advertisement", tagged(from, (VLAN, 10), IPV6, &advertisement)),
        ("vlan 20", plain(20)),
        ("vlan 100", plain(100)),
        ("vlan 150", plain(150)),
        ("vlan 199", plain(199)),
        ("vlan 0", plain(0)),
        ("vlan 30", plain(30)),
        ("vlan 200", plain(200)),
        ("vlan 4094", plain(4094)),
        ("vlan 10, spanning tree", tagged(from, (VLAN, 10), 39, &[0x42, 0x42, 3, 0, 0, 0, 0, 0])),
        ("vlan 10 in vlan 10", tagged(from, (VLAN, 10), VLAN, &second)),
        ("802.1ad in vlan 10", tagged(from, (VLAN, 10), PROVIDER_VLAN, &second)),
        ("802.1ad", tagged(from, (PROVIDER_VLAN, 10), IPV4, &own)),
        ("vlan 10 in 802.1ad", tagged(from, (PROVIDER_VLAN, 10), VLAN, &second)),
        ("0x9100", tagged(from, (OLD_VLANS[0], 10), IPV4, &own)),
        ("0x9200", tagged(from, (OLD_VLANS[1], 10), IPV4, &own)),
        ("0x9300", tagged(from, (OLD_VLANS[2], 10), IPV4, &own)),
    ]
}

/// A frame without a tag, from a machine's own addresses.
fn untagged(last: u8) -> Vec<u8> {
    [&ethernet(mac(last), IPV4, &datagram(lease(last).address.expect("an IPv4 address")))[..], &mark(LAST)]
        .concat()
}

/// Waits until the bridges between two machines forward: a new port needs a moment.
fn connect(from: (&Guest, u8), to: &Guest) {
    let passes = |_| {
        let inbox = to.frames();
        from.0.inject(untagged(from.1));
        let mut frames = std::iter::from_fn(|| inbox.recv_timeout(Duration::from_millis(500)).ok()).take(64);
        frames.any(|frame| frame.ends_with(&mark(LAST)))
    };
    assert!((0..10).any(passes), "no frame without a tag arrives");
}

/// Sends all frames of a machine, and one without a tag. Returns those that arrived at each of these machines before that one.
fn arrived(from: (&Guest, u8), to: &[&Guest], cases: &Cases) -> Vec<Vec<&'static str>> {
    let (sender, last) = from;
    // New ones: a machine also sees the frames that it sends.
    let inboxes: Vec<Receiver<Vec<u8>>> = to.iter().map(|machine| machine.frames()).collect();
    for (what, frame) in cases {
        sender.inject([&frame[..], &mark(what)].concat());
    }
    sender.inject(untagged(last));
    let of_machine = |inbox: &Receiver<Vec<u8>>| {
        let mut arrived = Vec::new();
        while let Ok(frame) = inbox.recv_timeout(Duration::from_secs(3)) {
            if frame.ends_with(&mark(LAST)) {
                return arrived;
            }
            arrived.extend(cases.iter().map(|(what, _)| *what).filter(|what| frame.ends_with(&mark(what))));
        }
        panic!("a frame without a tag did not arrive; before it: {arrived:?}");
    };
    inboxes.iter().map(of_machine).collect()
}

/// The frames of VLAN 10 that pass.
const OF_10: [&str; 5] = [
    "vlan 10",
    "vlan 10, priority 3",
    "vlan 10, another address",
    "vlan 10, ipv6",
    "vlan 10, router advertisement",
];

fn with_10(more: &[&'static str]) -> Vec<&'static str> {
    [&OF_10[..], more].concat()
}

#[test]
fn tagged_frames_pass_by_the_trunks_of_interfaces_and_reach_no_other_one() {
    in_own_namespace(|| async {
        let host = Fixture::new();
        let machine = lan();
        let all: &[(u16, u16)] = &[(10, 10), (20, 20), (100, 199)];
        let some: &[(u16, u16)] = &[(10, 10), (100, 150)];
        host.networks.apply_firewall(&rules(&[(5, all), (6, some)])).await.expect("rules");
        host.networks.ensure_bridged(&part(false)).await.expect("made");
        let guest = |last: u8| Guest::by_tap(BRIDGE, &port(last).tap, last);
        let (wide, narrow, none) = (guest(5), guest(6), guest(7));
        let (of_all, of_some) =
            (with_10(&["vlan 20", "vlan 100", "vlan 150", "vlan 199"]), with_10(&["vlan 100", "vlan 150"]));
        for guest in [&narrow, &none, &machine] {
            connect((&wide, 5), guest);
        }

        let found = arrived((&wide, 5), &[&machine, &narrow, &none], &frames(mac(5)));
        assert_eq!(found, [of_all.clone(), of_some.clone(), Vec::new()], "of a guest");
        let found = arrived((&machine, MACHINE), &[&wide, &narrow, &none], &frames(mac(MACHINE)));
        assert_eq!(found, [of_all, of_some, Vec::new()], "of the LAN");
        let lies = vec![("vlan 10, another mac", frames(mac(6)).swap_remove(0).1)];
        assert_eq!(arrived((&wide, 5), &[&machine, &narrow], &lies), [[""; 0]; 2]);
        assert_eq!(arrived((&none, 7), &[&machine, &wide], &frames(mac(7))), [[""; 0]; 2], "without a trunk");

        host.networks.apply_firewall(&rules(&[])).await.expect("rules");
        assert_eq!(arrived((&wide, 5), &[&machine, &narrow], &frames(mac(5))), [[""; 0]; 2], "it is gone");
        assert_eq!(arrived((&machine, MACHINE), &[&wide, &narrow], &frames(mac(MACHINE))), [[""; 0]; 2]);
    });
}

/// Else a guest with a trunk would begin, under another guest's address, a connection whose answers pass that guest's security groups.
#[test]
fn a_tagged_frame_of_a_guest_begins_no_connection() {
    const SEES_TAGGED: &str = "/proc/sys/net/bridge/bridge-nf-filter-vlan-tagged";
    in_own_namespace(|| async {
        if [BRIDGED, SEES_TAGGED].into_iter().any(|setting| std::fs::write(setting, "1").is_err()) {
            eprintln!("skipped: this kernel has no br_netfilter");
            return;
        }
        let host = Fixture::new();
        let machine = lan();
        host.networks.apply_firewall(&rules(&[(5, &[(10, 10)])])).await.expect("rules");
        host.networks.ensure_bridged(&part(false)).await.expect("made");
        let guest = Guest::by_tap(BRIDGE, &port(5).tap, 5);
        connect((&guest, 5), &machine);
        run("nft", "add table inet seen");
        run("nft", "add chain inet seen forward { type filter hook forward priority 0 ; }");
        run("nft", "add rule inet seen forward ip saddr 10.77.0.7 ct state new counter");
        let has_begun = || !run("nft", "list chain inet seen forward").contains("packets 0 ");
        let others = datagram(lease(7).address.expect("an IPv4 address"));
        let frame = vec![("as a neighbour", tagged(mac(5), (VLAN, 10), IPV4, &others))];
        assert_eq!(arrived((&guest, 5), &[&machine], &frame), [["as a neighbour"]]);
        assert!(!has_begun());
        // Verifies that the rules, and nothing else, keep it from that.
        run("nft", "flush chain bridge berth guests");
        assert_eq!(arrived((&guest, 5), &[&machine], &frame), [["as a neighbour"]]);
        assert!(has_begun());
    });
}
