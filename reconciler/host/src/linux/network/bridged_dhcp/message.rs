//! The answer to a request of DHCP (RFC 2131), as frames. Pure: the bytes of the request are untrusted.

use std::net::Ipv4Addr;

use super::super::hardware_address;
use super::super::snooping::ack::{Request, request};
use crate::{Route, ServedGuest};

/// The server's identifier, the same on every host and of no machine. A guest that renews its lease sends to it by way of its tap.
const SERVER: Ipv4Addr = Ipv4Addr::new(169, 254, 0, 67);
const LEASE_SECONDS: u32 = 43_200;
const DISCOVER: u8 = 1;
const OFFER: u8 = 2;
const REQUEST: u8 = 3;
const ACK: u8 = 5;
const NAK: u8 = 6;
const INFORM: u8 = 8;
/// The least length of a message, which old clients expect.
const SHORTEST: usize = 300;
const HOPS: u8 = 64;
const UDP: u8 = 17;

/// Returns the frame that answers a request of the guest. None: it is no request that this server answers.
pub(super) fn answer(frame: &[u8], guest: &ServedGuest, own: [u8; 6]) -> Option<Vec<u8>> {
    let request = request(frame)?;
    if hardware_address(request.mac) != guest.mac || request.server.is_some_and(|server| server != SERVER) {
        return None;
    }
    let asked = request.requested.unwrap_or(request.current);
    let kind = match request.message_type {
        DISCOVER => OFFER,
        REQUEST if asked == guest.address => ACK,
        REQUEST => NAK,
        INFORM => ACK,
        _ => return None,
    };
    let is_lease = kind != NAK && request.message_type != INFORM;
    let options = options(kind, is_lease, guest);
    let address = if is_lease { guest.address } else { Ipv4Addr::UNSPECIFIED };
    let message = message(&request, address, &options);
    // A client without an address receives a packet to it only if it says so.
    let (mac, to) = match (kind, request.current) {
        (NAK, _) => ([0xff; 6], Ipv4Addr::BROADCAST),
        (_, current) if !current.is_unspecified() => (request.mac, current),
        _ if request.wants_broadcast => ([0xff; 6], Ipv4Addr::BROADCAST),
        _ => (request.mac, guest.address),
    };
    Some(in_frame(&message, (own, SERVER), (mac, to)))
}

/// Builds the message, from the fields of the request.
fn message(request: &Request, address: Ipv4Addr, options: &[u8]) -> Vec<u8> {
    let mut message = vec![2, 1, 6, 0];
    message.extend(request.transaction);
    message.extend([0, 0, if request.wants_broadcast { 0x80 } else { 0 }, 0]);
    message.extend(request.current.octets());
    message.extend(address.octets());
    message.extend([0; 8]);
    message.extend(request.mac);
    message.resize(236, 0);
    message.extend([99, 130, 83, 99]);
    message.extend(options);
    message.push(255);
    message.resize(message.len().max(SHORTEST), 0);
    message
}

fn options(kind: u8, is_lease: bool, guest: &ServedGuest) -> Vec<u8> {
    let mut options = Vec::new();
    // A long value is in several options of the same number (RFC 3396).
    let mut add = |number: u8, value: &[u8]| {
        for part in value.chunks(255) {
            options.push(number);
            options.push(u8::try_from(part.len()).expect("at most 255"));
            options.extend(part);
        }
    };
    add(53, &[kind]);
    add(54, &SERVER.octets());
    if kind == NAK {
        return options;
    }
    if is_lease {
        add(51, &LEASE_SECONDS.to_be_bytes());
    }
    let bits = u32::MAX.checked_shl(32 - u32::from(guest.prefix_len.min(32))).unwrap_or_default();
    add(1, &bits.to_be_bytes());
    if let Some(router) = guest.routes.default {
        add(3, &router.octets());
    }
    let dns: Vec<u8> = guest.dns.iter().flat_map(Ipv4Addr::octets).collect();
    add(6, &dns);
    add(12, guest.hostname.as_bytes());
    if let Some(mtu) = guest.mtu {
        add(26, &mtu.to_be_bytes());
    }
    add(119, &domains(&guest.search_domains));
    // A client that gets routes ignores the router, so that they have the default route too.
    if !guest.routes.others.is_empty() {
        add(121, &guest.routes.all().iter().flat_map(route).collect::<Vec<u8>>());
    }
    options
}

/// Encodes domains as names of DNS (RFC 3397), without compression.
fn domains(domains: &[String]) -> Vec<u8> {
    let mut encoded = Vec::new();
    for domain in domains {
        for label in domain.trim_end_matches('.').split('.') {
            let Ok(length @ 1..=63) = u8::try_from(label.len()) else { continue };
            encoded.push(length);
            encoded.extend(label.as_bytes());
        }
        encoded.push(0);
    }
    encoded
}

/// Encodes a route (RFC 3442).
fn route(route: &Route) -> Vec<u8> {
    let length = route.to.prefix_len();
    let significant = usize::from(length.div_ceil(8));
    let mut encoded = vec![length];
    encoded.extend(&route.to.network().octets()[..significant]);
    encoded.extend(route.via.octets());
    encoded
}

/// Puts a message of DHCP into UDP, IPv4 and Ethernet.
fn in_frame(message: &[u8], (own, from): ([u8; 6], Ipv4Addr), (mac, to): ([u8; 6], Ipv4Addr)) -> Vec<u8> {
    let length = |more: usize| u16::try_from(message.len() + more).unwrap_or(u16::MAX).to_be_bytes();
    let mut header = vec![0x45, 0];
    header.extend(length(28));
    header.extend([0, 0, 0, 0, HOPS, UDP, 0, 0]);
    header.extend(from.octets());
    header.extend(to.octets());
    let sum = checksum(&header);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    let mut frame = Vec::new();
    frame.extend(mac);
    frame.extend(own);
    frame.extend([8, 0]);
    frame.extend(header);
    frame.extend([0, 67, 0, 68]);
    frame.extend(length(8));
    // UDP over IPv4 may go without a checksum.
    frame.extend([0, 0]);
    frame.extend(message);
    frame
}

fn checksum(header: &[u8]) -> u16 {
    let words = header.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::GuestRoutes;

    const MAC: [u8; 6] = [0x52, 0x54, 0, 0, 0, 3];
    const OWN: [u8; 6] = [0x52, 0x54, 0, 9, 9, 9];
    const ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 50);

    fn guest() -> ServedGuest {
        ServedGuest {
            tap: "btt00000003n0".to_owned(),
            mac: hardware_address(MAC),
            address: ADDRESS,
            prefix_len: 24,
            hostname: "web".to_owned(),
            mtu: Some(1400),
            dns: vec![Ipv4Addr::new(192, 0, 2, 1)],
            search_domains: vec!["example.org".to_owned()],
            routes: GuestRoutes { default: Some(Ipv4Addr::new(192, 0, 2, 1)), others: Vec::new() },
        }
    }

    /// A request in a frame, with these options after its type.
    fn asks(mac: [u8; 6], kind: u8, more: &[u8]) -> Vec<u8> {
        let mut message = vec![1, 1, 6, 0, 1, 2, 3, 4, 0, 0, 0, 0];
        message.resize(28, 0);
        message.extend(mac);
        message.resize(236, 0);
        message.extend([99, 130, 83, 99, 53, 1, kind]);
        message.extend(more);
        message.push(255);
        let mut frame = in_frame(&message, (mac, Ipv4Addr::UNSPECIFIED), ([0xff; 6], Ipv4Addr::BROADCAST));
        frame[34..38].copy_from_slice(&[0, 68, 0, 67]);
        frame
    }

    /// The type of an answer, and the address in it.
    fn kind(answer: &[u8]) -> (u8, Ipv4Addr) {
        let message = &answer[42..];
        assert_eq!((&message[..4], &message[4..8]), (&[2, 1, 6, 0][..], &[1, 2, 3, 4][..]));
        assert_eq!(&message[240..242], [53, 1]);
        (message[242], Ipv4Addr::new(message[16], message[17], message[18], message[19]))
    }

    fn requesting(last: u8) -> [u8; 6] {
        [50, 4, 192, 0, 2, last]
    }

    #[test]
    fn a_guest_is_offered_its_address_and_gets_it_with_its_options() {
        let offered = answer(&asks(MAC, DISCOVER, &[]), &guest(), OWN).expect("an offer");
        assert_eq!(kind(&offered), (OFFER, ADDRESS));
        assert_eq!((&offered[..6], &offered[6..12]), (&MAC[..], &OWN[..]));
        let granted = answer(&asks(MAC, REQUEST, &requesting(50)), &guest(), OWN).expect("an answer");
        assert_eq!(kind(&granted), (ACK, ADDRESS));
        let has = |option: &[u8]| granted.windows(option.len()).any(|part| part == option);
        assert!(has(&[1, 4, 255, 255, 255, 0]) && has(&[3, 4, 192, 0, 2, 1]) && has(&[6, 4, 192, 0, 2, 1]));
        assert!(has(b"\x0c\x03web") && has(&[26, 2, 5, 120]) && has(b"\x77\x0d\x07example\x03org\x00"));
        assert!(has(&[51, 4, 0, 0, 0xa8, 0xc0]));
        // As the kernel of the guest checks it.
        assert_eq!(checksum(&granted[14..34]), 0);
    }

    #[test]
    fn another_address_is_refused_and_requests_to_other_servers_and_of_others_are_left_alone() {
        let refused = answer(&asks(MAC, REQUEST, &requesting(51)), &guest(), OWN).expect("an answer");
        assert_eq!(kind(&refused).0, NAK);
        assert_eq!(refused[..6], [0xff; 6]);
        let mut elsewhere = requesting(50).to_vec();
        elsewhere.extend([54, 4, 192, 0, 2, 1]);
        assert_eq!(answer(&asks(MAC, REQUEST, &elsewhere), &guest(), OWN), None);
        assert_eq!(answer(&asks([2; 6], DISCOVER, &[]), &guest(), OWN), None);
        for kind in [0, OFFER, 4, 7, 255] {
            assert_eq!(answer(&asks(MAC, kind, &[]), &guest(), OWN), None, "{kind}");
        }
        let frame = asks(MAC, DISCOVER, &[]);
        for length in 0..frame.len() - 1 {
            assert_eq!(answer(&frame[..length], &guest(), OWN), None, "cut at {length}");
        }
    }

    #[test]
    fn a_client_that_wants_a_broadcast_gets_one_and_one_with_an_address_is_answered_there() {
        let mut frame = asks(MAC, DISCOVER, &[]);
        frame[42 + 10] = 0x80;
        assert_eq!(answer(&frame, &guest(), OWN).expect("an offer")[..6], [0xff; 6]);
        let mut renews = asks(MAC, REQUEST, &[]);
        renews[42 + 12..42 + 16].copy_from_slice(&ADDRESS.octets());
        let granted = answer(&renews, &guest(), OWN).expect("an answer");
        assert_eq!((kind(&granted), &granted[30..34]), ((ACK, ADDRESS), &ADDRESS.octets()[..]));
    }

    #[test]
    fn many_routes_are_split_and_have_the_default_route_too() {
        let route = |last: u8| Route {
            to: format!("10.{last}.0.0/16").parse().expect("a range"),
            via: Ipv4Addr::new(192, 0, 2, 9),
        };
        let default = Some(Ipv4Addr::new(192, 0, 2, 1));
        let routes = GuestRoutes { default, others: (0..64).map(route).collect() };
        let options = options(ACK, true, &ServedGuest { routes, ..guest() });
        let at = options.windows(3).position(|part| part == [121, 255, 0]).expect("the default route first");
        assert_eq!(options[at + 2 + 255], 121, "the rest follows");
    }
}
