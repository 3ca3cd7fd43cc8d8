//! The frames of neighbour discovery by which a guest claims addresses. Pure.

use std::net::Ipv6Addr;

use super::super::discovery::{ADVERTISEMENT, ETHERTYPE_IPV6, ICMPV6, SOLICITATION};
use super::super::socket_filter::{is, known, load, take};

/// The bytes of a frame that are looked at.
pub(super) const MOST_BYTES: u32 = 128;
/// The offsets of the IPv6 header and of ICMPv6 in a frame.
const IPV6_AT: usize = 14;
const ICMPV6_AT: usize = 54;
/// Receivers discard a message with another hop limit: a router has forwarded it.
const HOP_LIMIT: u8 = 255;

/// Takes solicitations and advertisements of neighbours that have come by a link, without a tag.
pub(super) fn discovery() -> [libc::sock_filter; 13] {
    [
        known(libc::SKF_AD_PKTTYPE),
        is(libc::PACKET_OUTGOING.into(), 10, 0),
        known(libc::SKF_AD_VLAN_TAG_PRESENT),
        is(0, 0, 8),
        load(libc::BPF_H, 12),
        is(ETHERTYPE_IPV6.into(), 0, 6),
        load(libc::BPF_B, 20),
        is(ICMPV6.into(), 0, 4),
        load(libc::BPF_B, 54),
        is(SOLICITATION.into(), 1, 0),
        is(ADVERTISEMENT.into(), 0, 1),
        take(MOST_BYTES),
        take(0),
    ]
}

/// Returns the sender's MAC address, and the address that it uses by this frame or is about to take. None: it is no address that is
/// learned. The bytes are untrusted.
pub(super) fn claimed(frame: &[u8]) -> Option<([u8; 6], Ipv6Addr)> {
    let header = frame.get(IPV6_AT..ICMPV6_AT)?;
    let message = frame.get(ICMPV6_AT..ICMPV6_AT + 24)?;
    let is_discovery = frame.get(12..14)? == ETHERTYPE_IPV6.to_be_bytes()
        && header[0] >> 4 == 6
        && header[6..8] == [ICMPV6, HOP_LIMIT];
    let source = address(&header[8..24])?;
    let address = match message[0] {
        // A guest that looks for duplicates of an address has none yet.
        SOLICITATION if source.is_unspecified() => address(&message[8..24])?,
        SOLICITATION | ADVERTISEMENT => source,
        _ => return None,
    };
    let sender = <[u8; 6]>::try_from(frame.get(6..12)?).ok()?;
    (is_discovery && is_learnable(address)).then_some((sender, address))
}

fn address(bytes: &[u8]) -> Option<Ipv6Addr> {
    Some(<[u8; 16]>::try_from(bytes).ok()?.into())
}

/// Whether it is a global or a unique local address. The link-local one of a guest follows from its MAC address.
fn is_learnable(address: Ipv6Addr) -> bool {
    let first = address.segments()[0];
    first >> 13 == 1 || first >> 9 == 0xfc00 >> 9
}

#[cfg(test)]
mod tests {
    use super::super::super::discovery;
    use super::*;

    const MAC: [u8; 6] = [0x52, 0x54, 0, 0, 0, 3];

    fn address(text: &str) -> Ipv6Addr {
        text.parse().expect("an address")
    }

    #[test]
    fn a_guest_claims_the_address_that_it_looks_for_and_the_one_that_it_sends_from() {
        let own = address("2001:db8:7::77");
        assert_eq!(claimed(&discovery::probe(MAC, own)), Some((MAC, own)));
        assert_eq!(claimed(&discovery::advertisement(MAC, own)), Some((MAC, own)));
        let local = address("fd00:60::77");
        assert_eq!(claimed(&discovery::probe(MAC, local)), Some((MAC, local)));
        let mut question = discovery::probe(MAC, address("2001:db8:7::1"));
        question[22..38].copy_from_slice(&own.octets());
        assert_eq!(claimed(&question), Some((MAC, own)), "not the neighbour that it asks for");
    }

    #[test]
    fn no_address_is_learned_that_is_not_of_one_machine_of_a_network() {
        for other in ["fe80::77", "ff02::1", "::1", "::", "::ffff:192.0.2.1", "64:ff9b::1"] {
            assert_eq!(claimed(&discovery::probe(MAC, address(other))), None, "{other}");
            assert_eq!(claimed(&discovery::advertisement(MAC, address(other))), None, "{other}");
        }
        let own = address("2001:db8:7::77");
        let mut forwarded = discovery::probe(MAC, own);
        forwarded[21] = 254;
        assert_eq!(claimed(&forwarded), None, "it comes from another segment");
        for length in 0..90 {
            claimed(&vec![0xff; length]);
            claimed(&discovery::advertisement(MAC, own)[..length.min(86)]);
        }
        assert_eq!(claimed(&discovery::probe(MAC, own)[..60]), None);
    }
}
