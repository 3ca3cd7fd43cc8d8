//! The effect of a guest's arbitrary frames on its neighbours and its host.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::mpsc::Receiver;

use super::*;
use crate::Port;

const TAPS: [&str; 2] = ["btt0a1b2c3dn0", "btt99999999n0"];
const ALL: [u8; 6] = [0xff; 6];
pub(super) const ATTACKER: [u8; 6] = [0x52, 0x54, 0, 0, 0, 5];
const VICTIM: [u8; 6] = [0x52, 0x54, 0, 0, 0, 6];
pub(super) const ITS_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 5);
const OTHERS: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 77, 0, 6), Ipv4Addr::new(10, 77, 0, 1)];
pub(super) const SERVER: Ipv4Addr = Ipv4Addr::BROADCAST;
pub(super) const UDP: u8 = 17;
const ICMPV6: u8 = 58;
const FRAGMENT: u8 = 44;

pub(super) fn link_local(last: u16) -> Ipv6Addr {
    Ipv6Addr::new(0xfe80, 0, 0, 0, 0x5054, 0x00ff, 0xfe00, last)
}

fn global(last: u16) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0x60, 0, 0, 0, 0, 0, last)
}

pub(super) fn ethernet(from: [u8; 6], kind: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = ALL.to_vec();
    frame.extend(from);
    frame.extend(kind.to_be_bytes());
    frame.extend(payload);
    frame
}

pub(super) fn arp(operation: u8, mac: [u8; 6], address: Ipv4Addr) -> Vec<u8> {
    arp_for(operation, mac, address, Ipv4Addr::new(10, 77, 0, 9))
}

fn arp_for(operation: u8, mac: [u8; 6], address: Ipv4Addr, target: Ipv4Addr) -> Vec<u8> {
    let mut packet = vec![0, 1, 8, 0, 6, 4, 0, operation];
    packet.extend(mac);
    packet.extend(address.octets());
    packet.extend([0; 6]);
    packet.extend(target.octets());
    packet
}

pub(super) fn ipv4(from: Ipv4Addr, to: Ipv4Addr, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(20 + payload.len() + MARK).expect("small");
    let mut packet = vec![0x45, 0];
    packet.extend(length.to_be_bytes());
    packet.extend([0, 1, 0, 0, 64, UDP, 0, 0]);
    packet.extend(from.octets());
    packet.extend(to.octets());
    let sum: u32 = packet.chunks(2).map(|two| u32::from(u16::from_be_bytes([two[0], two[1]]))).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = !u16::try_from((sum & 0xffff) + (sum >> 16)).expect("folded");
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet.extend(payload);
    packet
}

pub(super) fn udp(from: u16, to: u16, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(8 + payload.len() + MARK).expect("small");
    [&from.to_be_bytes()[..], &to.to_be_bytes(), &length.to_be_bytes(), &[0, 0], payload].concat()
}

fn dhcp(client: [u8; 6]) -> Vec<u8> {
    let mut message = vec![1, 1, 6, 0, 1, 2, 3, 4];
    message.resize(28, 0);
    message.extend(client);
    message.resize(240, 0);
    message
}

pub(super) fn ipv6(from: Ipv6Addr, next: u8, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(payload.len() + MARK).expect("small");
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend(length.to_be_bytes());
    packet.extend([next, 255]);
    packet.extend(from.octets());
    packet.extend("ff02::1".parse::<Ipv6Addr>().expect("an address").octets());
    packet.extend(payload);
    packet
}

/// Builds a neighbour discovery message about an address.
fn neighbour(kind: u8, about: Ipv6Addr) -> Vec<u8> {
    let mut message = vec![kind, 0, 0, 0, 0, 0, 0, 0];
    message.extend(about.octets());
    message
}

/// Bytes at the end of each frame that identify it.
const MARK: usize = 40;

pub(super) fn mark(what: &str) -> Vec<u8> {
    let mut mark = what.as_bytes().to_vec();
    assert!(mark.len() <= MARK, "{what}");
    mark.resize(MARK, b'.');
    mark
}

type Cases = Vec<(&'static str, Vec<u8>)>;

fn honest() -> Cases {
    let own = link_local(5);
    vec![
        ("arp question", ethernet(ATTACKER, 0x0806, &arp(1, ATTACKER, ITS_ADDRESS))),
        ("arp probe", ethernet(ATTACKER, 0x0806, &arp_for(1, ATTACKER, Ipv4Addr::UNSPECIFIED, ITS_ADDRESS))),
        ("ipv4", ethernet(ATTACKER, 0x0800, &ipv4(ITS_ADDRESS, SERVER, &udp(9, 9, &[])))),
        (
            "dhcp",
            ethernet(ATTACKER, 0x0800, &ipv4(Ipv4Addr::UNSPECIFIED, SERVER, &udp(68, 67, &dhcp(ATTACKER)))),
        ),
        ("ipv6", ethernet(ATTACKER, 0x86dd, &ipv6(own, UDP, &udp(9, 9, &[])))),
        ("ipv6 advertisement", ethernet(ATTACKER, 0x86dd, &ipv6(own, ICMPV6, &neighbour(136, own)))),
        ("ipv6 address", ethernet(ATTACKER, 0x86dd, &ipv6(global(5), UDP, &udp(9, 9, &[])))),
        (
            "ipv6 address advertisement",
            ethernet(ATTACKER, 0x86dd, &ipv6(global(5), ICMPV6, &neighbour(136, global(5)))),
        ),
        (
            "neighbour's solicitation",
            ethernet(ATTACKER, 0x86dd, &ipv6(own, ICMPV6, &neighbour(135, global(6)))),
        ),
        (
            "ipv6 address probe",
            ethernet(ATTACKER, 0x86dd, &ipv6(Ipv6Addr::UNSPECIFIED, ICMPV6, &neighbour(135, global(5)))),
        ),
        (
            "ipv6 probe",
            ethernet(ATTACKER, 0x86dd, &ipv6(Ipv6Addr::UNSPECIFIED, ICMPV6, &neighbour(135, own))),
        ),
    ]
}

fn lies() -> Cases {
    let own = link_local(5);
    let [neighbours, gateway] = OTHERS;
    let any = Ipv4Addr::UNSPECIFIED;
    let tagged = [&[0, 5, 8, 0][..], &ipv4(neighbours, SERVER, &udp(9, 9, &[]))].concat();
    let advertisement = neighbour(134, own);
    let hidden = [&[ICMPV6, 0, 0, 1, 0, 0, 0, 1][..], &advertisement].concat();
    let behind = [&[ICMPV6, 0, 1, 4, 0, 0, 0, 0][..], &advertisement].concat();
    let mut odd = arp(2, ATTACKER, neighbours);
    odd[1] = 6;
    vec![
        ("another mac", ethernet(VICTIM, 0x0800, &ipv4(ITS_ADDRESS, SERVER, &udp(9, 9, &[])))),
        ("arp answer about a neighbour", ethernet(ATTACKER, 0x0806, &arp(2, ATTACKER, neighbours))),
        ("arp question as the gateway", ethernet(ATTACKER, 0x0806, &arp(1, ATTACKER, gateway))),
        ("arp with another mac inside", ethernet(ATTACKER, 0x0806, &arp(2, VICTIM, ITS_ADDRESS))),
        (
            "arp probe for a neighbour's address",
            ethernet(ATTACKER, 0x0806, &arp_for(1, ATTACKER, any, neighbours)),
        ),
        ("arp answer about no address", ethernet(ATTACKER, 0x0806, &arp(2, ATTACKER, any))),
        ("arp for other hardware", ethernet(ATTACKER, 0x0806, &odd)),
        ("rarp", ethernet(ATTACKER, 0x8035, &arp(3, ATTACKER, neighbours))),
        ("vlan", ethernet(ATTACKER, 0x8100, &tagged)),
        ("spanning tree", ethernet(ATTACKER, 39, &[0x42, 0x42, 3, 0, 0, 0, 0, 0])),
        ("ipv4 of a neighbour", ethernet(ATTACKER, 0x0800, &ipv4(neighbours, SERVER, &udp(9, 9, &[])))),
        (
            "ipv4 of another network",
            ethernet(ATTACKER, 0x0800, &ipv4("10.78.0.5".parse().expect("address"), SERVER, &udp(9, 9, &[]))),
        ),
        ("ipv4 of nobody", ethernet(ATTACKER, 0x0800, &ipv4(any, SERVER, &udp(9, 9, &[])))),
        ("dhcp server", ethernet(ATTACKER, 0x0800, &ipv4(ITS_ADDRESS, SERVER, &udp(67, 68, &dhcp(VICTIM))))),
        ("dhcp for a neighbour", ethernet(ATTACKER, 0x0800, &ipv4(any, SERVER, &udp(68, 67, &dhcp(VICTIM))))),
        (
            "dhcp release of a neighbour's",
            ethernet(ATTACKER, 0x0800, &ipv4(ITS_ADDRESS, SERVER, &udp(68, 67, &dhcp(VICTIM)))),
        ),
        ("ipv6 of a neighbour", ethernet(ATTACKER, 0x86dd, &ipv6(link_local(6), UDP, &udp(9, 9, &[])))),
        (
            "ipv6 of a made-up network",
            ethernet(ATTACKER, 0x86dd, &ipv6("2001:db8::5".parse().expect("address"), UDP, &udp(9, 9, &[]))),
        ),
        ("router advertisement", ethernet(ATTACKER, 0x86dd, &ipv6(own, ICMPV6, &advertisement))),
        ("router advertisement, later", ethernet(ATTACKER, 0x86dd, &ipv6(own, 60, &behind))),
        ("router advertisement in a fragment", ethernet(ATTACKER, 0x86dd, &ipv6(own, FRAGMENT, &hidden))),
        ("redirect", ethernet(ATTACKER, 0x86dd, &ipv6(own, ICMPV6, &neighbour(137, own)))),
        (
            "neighbour's advertisement",
            ethernet(ATTACKER, 0x86dd, &ipv6(own, ICMPV6, &neighbour(136, link_local(6)))),
        ),
        ("ipv6 address of a neighbour", ethernet(ATTACKER, 0x86dd, &ipv6(global(6), UDP, &udp(9, 9, &[])))),
        ("ipv6 address of the gateway", ethernet(ATTACKER, 0x86dd, &ipv6(global(1), UDP, &udp(9, 9, &[])))),
        (
            "advertisement of a neighbour's address",
            ethernet(ATTACKER, 0x86dd, &ipv6(global(5), ICMPV6, &neighbour(136, global(6)))),
        ),
        (
            "advertisement of the gateway",
            ethernet(ATTACKER, 0x86dd, &ipv6(own, ICMPV6, &neighbour(136, global(1)))),
        ),
        (
            "probe for a neighbour's address",
            ethernet(ATTACKER, 0x86dd, &ipv6(Ipv6Addr::UNSPECIFIED, ICMPV6, &neighbour(135, global(6)))),
        ),
        ("dhcpv6 server", ethernet(ATTACKER, 0x86dd, &ipv6(own, UDP, &udp(547, 546, &[])))),
        ("another protocol over ipv6", ethernet(ATTACKER, 0x86dd, &ipv6(own, 4, &[0; 20]))),
    ]
}

/// Sends all frames, then a marker; returns those that arrived before the marker.
fn arrived(from: &Guest, inbox: &Receiver<Vec<u8>>, cases: &Cases) -> Vec<&'static str> {
    for (what, frame) in cases {
        from.inject([&frame[..], &mark(what)].concat());
    }
    let last = ethernet(ATTACKER, 0x0806, &arp(1, ATTACKER, ITS_ADDRESS));
    from.inject([&last[..], &mark("the last")].concat());
    let mut arrived = Vec::new();
    while let Ok(frame) = inbox.recv_timeout(Duration::from_secs(3)) {
        if frame.ends_with(&mark("the last")) {
            return arrived;
        }
        arrived.extend(cases.iter().map(|(what, _)| *what).filter(|what| frame.ends_with(&mark(what))));
    }
    panic!("an honest frame did not arrive; before it: {arrived:?}");
}

fn port(tap: &str, last: u8) -> Port {
    Port { tap: tap.to_owned(), mac: lease(last).mac, address: lease(last).address, ipv6: lease(last).ipv6 }
}

fn guarded() -> Firewall {
    Firewall { ports: vec![port(TAPS[0], 5), port(TAPS[1], 6)], ..firewall(&[]) }
}

fn names(cases: &Cases) -> Vec<&'static str> {
    cases.iter().map(|(what, _)| *what).collect()
}

#[test]
fn a_guest_sends_under_its_own_addresses_only() {
    in_own_namespace(|| async {
        let f = Fixture::new();
        f.networks.ensure(&network(BRIDGE, "10.77.0.0/24", vec![lease(5), lease(6)])).await.expect("made");
        f.networks.apply_firewall(&guarded()).await.expect("written");
        let attacker = Guest::by_tap(BRIDGE, TAPS[0], 5);
        let victim = Guest::by_tap(BRIDGE, TAPS[1], 6);
        let inbox = victim.frames();
        assert_eq!(arrived(&attacker, &inbox, &honest()), names(&honest()));
        assert_eq!(arrived(&attacker, &inbox, &lies()), [""; 0]);
        // Verifies that the rules, and nothing else, drop them: those with a tag already where they are sent.
        run("nft", "flush chain bridge berth tagged");
        assert_eq!(arrived(&attacker, &inbox, &lies()), [""; 0], "without the check of what leaves");
        run("nft", "flush chain bridge berth guests");
        let mut open = names(&lies());
        // If the host's firewall sees bridged packets, it holds a fragment until the others arrive.
        let kept = |what: &&str| what.contains("fragment");
        let mut all = arrived(&attacker, &inbox, &lies());
        all.retain(|what| !kept(what));
        open.retain(|what| !kept(what));
        assert_eq!(all, open);
        // A removed filter is restored, and an unknown tap passes nothing.
        let known = Firewall { ports: vec![port(TAPS[1], 6)], ..firewall(&[]) };
        f.networks.apply_firewall(&known).await.expect("written");
        attacker.inject([&honest()[2].1[..], &mark("ipv4")].concat());
        // The victim's own frames are received there too.
        let heard = std::iter::from_fn(|| inbox.recv_timeout(Duration::from_millis(300)).ok());
        let passed = heard.take(64).any(|frame| frame.ends_with(&mark("ipv4")));
        assert!(!passed, "a tap that is not known");
        f.networks.apply_firewall(&guarded()).await.expect("written");
        let (offer, _attacker) = blocking(move || (attacker.dhcp(), attacker)).await;
        assert_eq!(offer.map(|offer| offer.address), Some(ITS_ADDRESS), "DHCP goes on");
        f.networks.remove(BRIDGE).await.expect("removed");
    });
}

#[test]
fn a_guest_with_many_client_identifiers_has_one_lease_and_its_neighbour_gets_an_address() {
    in_own_namespace(|| async {
        let f = Fixture::new();
        f.networks.ensure(&network(BRIDGE, "10.77.0.0/24", vec![lease(5), lease(6)])).await.expect("made");
        f.networks.apply_firewall(&guarded()).await.expect("written");
        let attacker = Guest::by_tap(BRIDGE, TAPS[0], 5);
        let victim = Guest::by_tap(BRIDGE, TAPS[1], 6);
        let (own, attacker) = blocking(move || (attacker.dhcp(), attacker)).await;
        let own = own.expect("an address");
        assert_eq!(own.address, ITS_ADDRESS);
        let attacker = blocking(move || {
            attacker.request_as(own, 200);
            attacker
        })
        .await;
        let (offer, _victim) = blocking(move || (victim.dhcp(), victim)).await;
        assert_eq!(offer.map(|offer| offer.address), Some(OTHERS[0]), "the neighbour");
        let taken = f.networks.leases_taken(BRIDGE).await.expect("read");
        let of = |last: u8| taken.iter().filter(|taken| taken.mac == lease(last).mac).count();
        assert!(taken.len() <= 2 && of(5) <= 1 && of(6) == 1, "{taken:?}");
        let (offer, _attacker) = blocking(move || (attacker.dhcp(), attacker)).await;
        assert_eq!(offer.map(|offer| offer.address), Some(ITS_ADDRESS), "the guest itself");
        f.networks.remove(BRIDGE).await.expect("removed");
    });
}

#[test]
fn the_host_answers_a_guest_for_addresses_and_names_and_nothing_else() {
    in_own_namespace(|| async {
        let f = Fixture::new();
        for (bridge, cidr) in [(BRIDGE, "10.77.0.0/24"), (OTHER, "10.78.0.0/24")] {
            f.networks.ensure(&network(bridge, cidr, vec![lease(5)])).await.expect("made");
        }
        let forwards = || firewall(&[("198.18.100.1", "10.77.0.5")]);
        f.networks.apply_firewall(&forwards()).await.expect("written");
        let outside = Guest::beside("10.9.0.2/24", "10.9.0.1/24");
        ip("addr add 198.18.100.77/32 dev lo");
        let guest = Guest::at(BRIDGE, "10.77.0.5/24", "10.77.0.1");
        guest::serve_here(8080);
        guest::serve_here(22);
        assert!(guest::fetch("10.9.0.1", 8080).is_some(), "the host reaches itself");
        for address in ["10.77.0.1", "10.78.0.1", "10.9.0.1", "198.18.100.77"] {
            for port in [8080, 22] {
                assert!(!guest.connects(address, port), "{address}:{port}");
            }
        }
        assert!(guest.connects("10.77.0.1", 53), "names");
        assert!(!guest.connects("10.78.0.1", 53) && !guest.connects("10.9.0.1", 53), "by its gateway only");
        let answers = |address: &'static str| {
            guest.on(move || {
                let ping = Command::new("ping").args(["-c", "1", "-W", "1", address]).output();
                ping.map(|output| output.status.success()).unwrap_or(true)
            })
        };
        assert!(answers("10.77.0.1"), "an echo request to its gateway");
        // The host reaches its guests, and they reply.
        guest.serve(80);
        assert!(guest::fetch("10.77.0.5", 80).is_some() && guest::fetch("198.18.100.1", 80).is_some());
        assert!(outside.fetch("198.18.100.1", 80).is_some());

        let allowed = vec!["10.9.0.1/32".parse().expect("a range")];
        f.networks.apply_firewall(&Firewall { allowed, ..forwards() }).await.expect("written");
        assert!(guest.connects("10.9.0.1", 8080), "what the administrator allows");
        assert!(!guest.connects("10.77.0.1", 8080), "and no more");
        f.networks.apply_firewall(&Firewall::default()).await.expect("removed");
        for bridge in [BRIDGE, OTHER] {
            f.networks.remove(bridge).await.expect("removed");
        }
    });
}

#[test]
fn guests_reach_the_world_but_no_host_no_control_plane_and_nothing_link_local() {
    in_own_namespace(|| async {
        let f = Fixture::new();
        f.networks.ensure(&network(BRIDGE, "10.77.0.0/24", Vec::new())).await.expect("made");
        let outside = Guest::beside("10.9.0.2/24", "10.9.0.1/24");
        outside.on(|| {
            ip("addr add 10.9.0.3/24 dev eth0");
            ip("addr add 169.254.169.254/16 dev eth0");
        });
        ip("route add 169.254.0.0/16 via 10.9.0.2");
        outside.serve(80);
        let guest = Guest::at(BRIDGE, "10.77.0.5/24", "10.77.0.1");
        guest.serve(80);
        let closed: Vec<Ipv4Net> = vec!["10.9.0.2/32".parse().expect("a host")];
        let rules = |allowed: &[&str]| Firewall {
            closed: closed.clone(),
            allowed: allowed.iter().map(|range| range.parse().expect("a range")).collect(),
            ..firewall(&[("198.18.100.1", "10.77.0.5")])
        };
        f.networks.apply_firewall(&rules(&[])).await.expect("written");
        assert!(guest.connects("10.9.0.3", 80), "the world");
        assert!(!guest.connects("10.9.0.2", 80), "another host");
        assert!(!guest.connects("169.254.169.254", 80), "a cloud's metadata");
        assert!(outside.fetch("198.18.100.1", 80).is_some(), "which reaches a guest all the same");
        f.networks.apply_firewall(&rules(&["10.9.0.2/32", "169.254.169.254/32"])).await.expect("written");
        assert!(guest.connects("10.9.0.2", 80) && guest.connects("169.254.169.254", 80), "unless allowed");
        f.networks.apply_firewall(&Firewall::default()).await.expect("removed");
        f.networks.remove(BRIDGE).await.expect("removed");
    });
}
