//! The DSCP of what a guest sends, as its neighbour receives it.

use std::sync::mpsc::Receiver;

use super::spoofing::{ATTACKER, ITS_ADDRESS, SERVER, UDP, ethernet, ipv4, ipv6, link_local, mark, udp};
use super::*;
use crate::{Port, PortMark};

/// The IPv4 header in a frame.
const HEADER: std::ops::Range<usize> = 14..34;

fn port(last: u8) -> Port {
    Port {
        tap: format!("btt0000000{last}n0"),
        mac: lease(last).mac,
        address: lease(last).address,
        ipv6: lease(last).ipv6,
    }
}

/// Zero for a header with its checksum.
fn checksum(header: &[u8]) -> u16 {
    let sum: u32 = header.chunks(2).map(|two| u32::from(u16::from_be_bytes([two[0], two[1]]))).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    !u16::try_from((sum & 0xffff) + (sum >> 16)).expect("folded")
}

/// A datagram of IPv4 with DSCP and ECN bits.
fn datagram(class: u8) -> Vec<u8> {
    let mut frame = ethernet(ATTACKER, 0x0800, &ipv4(ITS_ADDRESS, SERVER, &udp(9, 9, &[])));
    frame[15] = class;
    frame[24..26].fill(0);
    let sum = checksum(&frame[HEADER]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame
}

/// A datagram of IPv6 with DSCP and ECN bits.
fn datagram6(class: u8) -> Vec<u8> {
    let mut frame = ethernet(ATTACKER, 0x86dd, &ipv6(link_local(5), UDP, &udp(9, 9, &[])));
    (frame[14], frame[15]) = (0x60 | class >> 4, class << 4);
    frame
}

/// The DSCP and ECN bits of a packet.
fn class_of(frame: &[u8]) -> u8 {
    if frame[14] >> 4 == 4 {
        assert_eq!(checksum(&frame[HEADER]), 0, "its checksum is right");
        return frame[15];
    }
    frame[14] << 4 | frame[15] >> 4
}

fn received(inbox: &Receiver<Vec<u8>>, what: &str) -> Vec<u8> {
    let mut frames = std::iter::from_fn(|| inbox.recv_timeout(Duration::from_secs(3)).ok()).take(64);
    frames.find(|frame| frame.ends_with(&mark(what))).unwrap_or_else(|| panic!("{what} did not arrive"))
}

#[test]
fn the_packets_of_a_marked_guest_have_its_dscp_and_their_own_ecn_bits() {
    in_own_namespace(|| async {
        let f = Fixture::new();
        let with = |dscp: Option<u8>| Firewall {
            ports: vec![port(5), port(6)],
            guests: true,
            marks: dscp.map(|dscp| PortMark { tap: port(5).tap, dscp }).into_iter().collect(),
            ..firewall(&[])
        };
        f.networks.apply_firewall(&with(Some(46))).await.expect("rules");
        f.networks.ensure(&network(BRIDGE, "10.77.0.0/24", Vec::new())).await.expect("made");
        let sender = Guest::by_tap(BRIDGE, &port(5).tap, 5);
        let receiver = Guest::by_tap(BRIDGE, &port(6).tap, 6);
        let inbox = receiver.frames();
        let cases = [
            ("no class", datagram(0)),
            ("a class and ECN", datagram(0x21)),
            ("a class and ECN, IPv6", datagram6(0x21)),
        ];
        let classes = || -> Vec<u8> {
            let class = |(what, frame): &(&str, Vec<u8>)| {
                sender.inject([&frame[..], &mark(what)].concat());
                class_of(&received(&inbox, what))
            };
            cases.iter().map(class).collect()
        };
        assert_eq!(classes(), [0xb8, 0xb9, 0xb9]);
        f.networks.apply_firewall(&with(Some(63))).await.expect("rules");
        assert_eq!(classes(), [0xfc, 0xfd, 0xfd], "another DSCP");
        f.networks.apply_firewall(&with(None)).await.expect("rules");
        assert_eq!(classes(), [0, 0x21, 0x21], "the guest's own");
    });
}
