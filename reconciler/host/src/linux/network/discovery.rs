//! The frames of IPv6 neighbour discovery (RFC 4861) by which public addresses are announced, and probed before they are taken. Pure.

use std::net::Ipv6Addr;

pub(super) const ETHERTYPE_IPV6: u16 = 0x86dd;
pub(super) const ICMPV6: u8 = 58;
pub(super) const SOLICITATION: u8 = 135;
pub(super) const ADVERTISEMENT: u8 = 136;
/// An entry of a neighbour with another MAC address is replaced.
const OVERRIDE: u8 = 0x20;
/// The option with the MAC address of the advertised address, and its length in units of 8 bytes.
const TARGET_MAC: [u8; 2] = [2, 1];
/// Receivers discard a message with another hop limit: a router has forwarded it.
const HOP_LIMIT: u8 = 255;
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// The offsets of the IPv6 header and of ICMPv6 in a frame.
const IPV6_AT: usize = 14;
const ICMPV6_AT: usize = 54;

/// Builds an advertisement to all nodes, which no node has asked for, that the address is at this MAC address.
pub(super) fn advertisement(mac: [u8; 6], address: Ipv6Addr) -> Vec<u8> {
    let mut message = vec![ADVERTISEMENT, 0, 0, 0, OVERRIDE, 0, 0, 0];
    message.extend(address.octets());
    message.extend(TARGET_MAC);
    message.extend(mac);
    frame(mac, address, ALL_NODES, message)
}

/// Builds a question for the owner of an address, from the unspecified address: the sender has none yet (RFC 4862, section 5.4).
pub(super) fn probe(mac: [u8; 6], address: Ipv6Addr) -> Vec<u8> {
    let mut message = vec![SOLICITATION, 0, 0, 0, 0, 0, 0, 0];
    message.extend(address.octets());
    frame(mac, Ipv6Addr::UNSPECIFIED, solicited_node(address), message)
}

/// The multicast address that nodes with this address listen to.
fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., high, low] = address.segments();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | (high & 0xff), low)
}

/// The Ethernet address of a multicast address.
fn multicast_mac(group: Ipv6Addr) -> [u8; 6] {
    let [.., a, b, c, d] = group.octets();
    [0x33, 0x33, a, b, c, d]
}

/// The Ethernet address at which questions about this address, and those of machines that probe for it, arrive.
pub(super) fn listens_to(address: Ipv6Addr) -> [u8; 6] {
    multicast_mac(solicited_node(address))
}

fn frame(mac: [u8; 6], from: Ipv6Addr, to: Ipv6Addr, mut message: Vec<u8>) -> Vec<u8> {
    let length = u16::try_from(message.len()).expect("at most 32 bytes");
    let sum = checksum(from, to, &message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut frame = Vec::from(multicast_mac(to));
    frame.extend(mac);
    frame.extend(ETHERTYPE_IPV6.to_be_bytes());
    frame.extend([0x60, 0, 0, 0]);
    frame.extend(length.to_be_bytes());
    frame.extend([ICMPV6, HOP_LIMIT]);
    frame.extend(from.octets());
    frame.extend(to.octets());
    frame.extend(message);
    frame
}

/// The checksum of ICMPv6 (RFC 4443, section 2.3): over a header of the addresses, the length and the protocol, and the message.
fn checksum(from: Ipv6Addr, to: Ipv6Addr, message: &[u8]) -> u16 {
    let length = u32::try_from(message.len()).expect("at most 32 bytes").to_be_bytes();
    let header = [&from.octets()[..], &to.octets(), &length, &[0, 0, 0, ICMPV6]].concat();
    let words = header.chunks(2).chain(message.chunks(2));
    let mut sum: u32 = words.map(|w| u32::from(w[0]) << 8 | w.get(1).copied().map_or(0, u32::from)).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).expect("it was folded")
}

/// Returns the MAC address of the machine that claims the address by this frame, or is about to. The bytes are untrusted.
pub(super) fn claims(packet: &[u8], address: Ipv6Addr) -> Option<[u8; 6]> {
    let header = packet.get(IPV6_AT..ICMPV6_AT)?;
    let message = packet.get(ICMPV6_AT..ICMPV6_AT + 24)?;
    let is_discovery = packet.get(12..14)? == ETHERTYPE_IPV6.to_be_bytes()
        && header[0] >> 4 == 6
        && header[6..8] == [ICMPV6, HOP_LIMIT];
    if !is_discovery || message[8..24] != address.octets() {
        return None;
    }
    let sender = <[u8; 6]>::try_from(packet.get(6..12)?).ok()?;
    match message[0] {
        // A proxy may answer for a machine with another MAC address.
        ADVERTISEMENT => Some(option_mac(packet).unwrap_or(sender)),
        SOLICITATION if header[8..24] == Ipv6Addr::UNSPECIFIED.octets() => Some(sender),
        _ => None,
    }
}

/// Returns the MAC address of an advertisement's first option.
fn option_mac(packet: &[u8]) -> Option<[u8; 6]> {
    let option = packet.get(ICMPV6_AT + 24..ICMPV6_AT + 32)?;
    if option[..2] == TARGET_MAC { option[2..].try_into().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: [u8; 6] = [0x52, 0x54, 0, 0, 0, 9];
    const OTHER: [u8; 6] = [0x52, 0x54, 0, 0, 0, 8];

    fn address(text: &str) -> Ipv6Addr {
        text.parse().expect("an address")
    }

    #[test]
    fn an_advertisement_goes_to_all_nodes_and_overrides_what_they_know() {
        let expected: [u8; 86] = [
            // Ethernet
            0x33, 0x33, 0x00, 0x00, 0x00, 0x01, 0x52, 0x54, 0x00, 0x00, 0x00, 0x09, 0x86, 0xdd,
            // IPv6, with 32 bytes of ICMPv6 and hop limit 255, from the address to all nodes
            0x60, 0x00, 0x00, 0x00, 0x00, 0x20, 0x3a, 0xff, 0x20, 0x01, 0x0d, 0xb8, 0x00, 0x00, 0x00, 0x00,
            0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x07, 0xff, 0x02, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
            0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x01,
            // An advertisement with its checksum, which overrides entries of the address, and the MAC address
            0x88, 0x00, 0xa8, 0xc2, 0x20, 0x00, 0x00, 0x00, 0x20, 0x01, 0x0d, 0xb8, 0x00, 0x00, 0x00, 0x00,
            0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x07, 0x02, 0x01, 0x52, 0x54, 0x00, 0x00, 0x00, 0x09,
        ];
        assert_eq!(advertisement(MAC, address("2001:db8::7")), expected);
    }

    #[test]
    fn a_probe_comes_from_no_address_and_goes_to_the_group_of_the_address() {
        let frame = probe(MAC, address("2001:db8::12:3456"));
        assert_eq!(frame[..6], [0x33, 0x33, 0xff, 0x12, 0x34, 0x56]);
        assert_eq!(frame[..6], listens_to(address("2001:db8::12:3456")));
        assert_eq!(frame[22..38], [0; 16]);
        assert_eq!(frame[38..54], address("ff02::1:ff12:3456").octets());
    }

    #[test]
    fn the_sum_over_a_message_with_its_checksum_is_zero() {
        let (from, to) = (address("2001:db8::7"), ALL_NODES);
        for frame in [advertisement(MAC, from), advertisement([0xff; 6], from)] {
            assert_eq!(checksum(from, to, &frame[ICMPV6_AT..]), 0);
        }
    }

    #[test]
    fn an_advertisement_and_a_probe_claim_an_address_and_a_question_for_it_does_not() {
        let (mine, other) = (address("2001:db8::7"), address("2001:db8::8"));
        assert_eq!(claims(&advertisement(MAC, mine), mine), Some(MAC));
        assert_eq!(claims(&probe(MAC, mine), mine), Some(MAC));
        assert_eq!(claims(&advertisement(MAC, other), mine), None);
        assert_eq!(claims(&probe(MAC, other), mine), None);
        let mut question = probe(MAC, mine);
        question[22..38].copy_from_slice(&other.octets());
        assert_eq!(claims(&question, mine), None, "a machine wants to reach it");
        let mut by_proxy = advertisement(MAC, mine);
        by_proxy[80..86].copy_from_slice(&OTHER);
        assert_eq!(claims(&by_proxy, mine), Some(OTHER));
        let mut forwarded = advertisement(MAC, mine);
        forwarded[21] = 254;
        assert_eq!(claims(&forwarded, mine), None, "it comes from another segment");
        for length in 0..90 {
            claims(&vec![0xff; length], mine);
            claims(&advertisement(MAC, mine)[..length.min(86)], mine);
        }
    }
}
