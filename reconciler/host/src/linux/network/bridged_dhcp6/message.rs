//! The answers to requests of DHCPv6 (RFC 8415) and to router solicitations (RFC 4861), as frames. Pure: the bytes of the request are
//! untrusted.

use std::net::Ipv6Addr;

use super::super::discovery::{ETHERTYPE_IPV6, ICMPV6};
use super::super::hardware_address;
use super::super::ruleset::link_local;
use super::super::socket_filter::{is, known, load, take};
use crate::ServedIpv6Guest;

/// The bytes of a frame that are looked at.
pub(in super::super) const MOST_BYTES: u32 = 2048;
const UDP: u8 = 17;
const SERVER_PORT: u16 = 547;
const CLIENT_PORT: u16 = 546;
const ROUTER_SOLICITATION: u8 = 133;
const ROUTER_ADVERTISEMENT: u8 = 134;
const HOP_LIMIT: u8 = 255;
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// Offsets of the IPv6 header and of what follows it in a frame.
const IPV6_AT: usize = 14;
const PAYLOAD_AT: usize = 54;

/// The server's identifier (DUID-LL), the same on every host: a guest renews its lease by the host that it is on.
const SERVER: [u8; 10] = [0, 3, 0, 1, 0x02, 0x62, 0x65, 0x72, 0x74, 0x68];
const LEASE_SECONDS: u32 = 43_200;
/// When a client renews its lease by this server, and by any.
const RENEW_SECONDS: u32 = LEASE_SECONDS / 2;
const REBIND_SECONDS: u32 = LEASE_SECONDS / 5 * 4;
/// For how long guests use the router after an advertisement.
const ROUTER_SECONDS: u16 = 1800;
/// For how long they take the prefix as being on their link.
const PREFIX_SECONDS: u32 = 86_400;
/// Addresses are given out by DHCPv6, and so is the other configuration.
const MANAGED_AND_OTHER: u8 = 0xc0;
/// The machines of the prefix are on the link. Without the flag for addresses that machines form.
const ON_LINK: u8 = 0x80;

const SOLICIT: u8 = 1;
const ADVERTISE: u8 = 2;
const REQUEST: u8 = 3;
const CONFIRM: u8 = 4;
const RENEW: u8 = 5;
const REBIND: u8 = 6;
const REPLY: u8 = 7;
const RELEASE: u8 = 8;
const DECLINE: u8 = 9;
const INFORMATION_REQUEST: u8 = 11;

const CLIENT_ID: u16 = 1;
const SERVER_ID: u16 = 2;
const IA_NA: u16 = 3;
const IA_ADDRESS: u16 = 5;
const STATUS_CODE: u16 = 13;
const RAPID_COMMIT: u16 = 14;
const DNS_SERVERS: u16 = 23;
const DOMAIN_LIST: u16 = 24;

const SUCCESS: u16 = 0;
const NO_ADDRESSES: u16 = 2;
const NOT_ON_LINK: u16 = 4;
/// The longest identifier of a client.
const MOST_OF_ID: usize = 130;
/// The most associations of a request, and the most addresses of one, that are answered.
const MOST: usize = 4;

/// Takes requests of DHCPv6 and router solicitations that have come by a link, without a tag.
pub(in super::super) fn requests() -> [libc::sock_filter; 15] {
    [
        known(libc::SKF_AD_PKTTYPE),
        is(libc::PACKET_OUTGOING.into(), 12, 0),
        known(libc::SKF_AD_VLAN_TAG_PRESENT),
        is(0, 0, 10),
        load(libc::BPF_H, 12),
        is(ETHERTYPE_IPV6.into(), 0, 8),
        load(libc::BPF_B, 20),
        is(UDP.into(), 0, 2),
        load(libc::BPF_H, 56),
        is(SERVER_PORT.into(), 3, 4),
        is(ICMPV6.into(), 0, 3),
        load(libc::BPF_B, 54),
        is(ROUTER_SOLICITATION.into(), 0, 1),
        take(MOST_BYTES),
        take(0),
    ]
}

/// Returns the frame that answers a request of the guest. None: it is no request that this server answers.
pub(super) fn answer(frame: &[u8], guest: &ServedIpv6Guest, own: [u8; 6]) -> Option<Vec<u8>> {
    let mac = <[u8; 6]>::try_from(frame.get(6..12)?).ok()?;
    if hardware_address(mac) != guest.mac || frame.get(12..14)? != ETHERTYPE_IPV6.to_be_bytes() {
        return None;
    }
    let header = frame.get(IPV6_AT..PAYLOAD_AT)?;
    let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
    let payload = frame.get(PAYLOAD_AT..PAYLOAD_AT.checked_add(length)?)?;
    let from: Ipv6Addr = <[u8; 16]>::try_from(header.get(8..24)?).ok()?.into();
    match header[6] {
        ICMPV6 if payload.first() == Some(&ROUTER_SOLICITATION) && header[7] == HOP_LIMIT => {
            advertisement(guest, own)
        }
        UDP if Some(from) == link_local(&guest.mac) && payload.get(2..4)? == SERVER_PORT.to_be_bytes() => {
            let message = reply(payload.get(8..)?, guest)?;
            let server = link_local(&hardware_address(own))?;
            let mut datagram = Vec::from(SERVER_PORT.to_be_bytes());
            datagram.extend(CLIENT_PORT.to_be_bytes());
            datagram.extend(u16::try_from(message.len() + 8).ok()?.to_be_bytes());
            datagram.extend([0, 0]);
            datagram.extend(message);
            in_frame(datagram, 6, (own, server), (mac, from), UDP)
        }
        _ => None,
    }
}

/// Returns the frame that names the network's router to the guest, and says that addresses are given out.
pub(super) fn advertisement(guest: &ServedIpv6Guest, own: [u8; 6]) -> Option<Vec<u8>> {
    let from = guest.router.or_else(|| link_local(&hardware_address(own)))?;
    let seconds = if guest.router.is_some() { ROUTER_SECONDS } else { 0 };
    let mut message = vec![ROUTER_ADVERTISEMENT, 0, 0, 0, 64, MANAGED_AND_OTHER];
    message.extend(seconds.to_be_bytes());
    message.extend([0; 8]);
    message.extend([3, 4, guest.prefix.prefix_len(), ON_LINK]);
    message.extend(PREFIX_SECONDS.to_be_bytes());
    message.extend(PREFIX_SECONDS.to_be_bytes());
    message.extend([0; 4]);
    message.extend(guest.prefix.network().octets());
    if let Some(mtu) = guest.mtu {
        message.extend([5, 1, 0, 0]);
        message.extend(u32::from(mtu).to_be_bytes());
    }
    let mut mac = [0; 6];
    for (byte, text) in mac.iter_mut().zip(guest.mac.split(':')) {
        *byte = u8::from_str_radix(text, 16).ok()?;
    }
    // To the guest alone: its card has no other MAC address on this tap.
    in_frame(message, 2, (own, from), (mac, ALL_NODES), ICMPV6)
}

/// The parts of a request.
#[derive(Debug, Default)]
struct Parts<'a> {
    client: Option<&'a [u8]>,
    server: Option<&'a [u8]>,
    /// The identifiers of its associations, with their addresses.
    associations: Vec<([u8; 4], Vec<Ipv6Addr>)>,
    is_rapid: bool,
}

/// Splits options. None: they are cut off.
fn options(mut bytes: &[u8]) -> Option<Vec<(u16, &[u8])>> {
    let mut options = Vec::new();
    while let [a, b, c, d, rest @ ..] = bytes {
        let length = usize::from(u16::from_be_bytes([*c, *d]));
        options.push((u16::from_be_bytes([*a, *b]), rest.get(..length)?));
        bytes = rest.get(length..)?;
    }
    bytes.is_empty().then_some(options)
}

fn parts(bytes: &[u8]) -> Option<Parts<'_>> {
    let mut parts = Parts::default();
    for (number, value) in options(bytes)? {
        match number {
            CLIENT_ID if value.len() <= MOST_OF_ID => parts.client = Some(value),
            SERVER_ID => parts.server = Some(value),
            RAPID_COMMIT => parts.is_rapid = true,
            IA_NA if parts.associations.len() < MOST => {
                let id = <[u8; 4]>::try_from(value.get(..4)?).ok()?;
                let of_address = |(number, value): (u16, &[u8])| {
                    let bytes = value.get(..16).filter(|_| number == IA_ADDRESS)?;
                    Some(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?))
                };
                let addresses = options(value.get(12..)?)?.into_iter().filter_map(of_address);
                parts.associations.push((id, addresses.take(MOST).collect()));
            }
            _ => {}
        }
    }
    Some(parts)
}

/// Returns the message that answers another one. None: it is none that this server answers.
fn reply(request: &[u8], guest: &ServedIpv6Guest) -> Option<Vec<u8>> {
    let (kind, transaction) = (*request.first()?, request.get(1..4)?);
    let asked = parts(request.get(4..)?)?;
    let is_to_this = match kind {
        SOLICIT | CONFIRM | REBIND => asked.server.is_none(),
        REQUEST | RENEW | RELEASE | DECLINE => asked.server == Some(&SERVER[..]),
        INFORMATION_REQUEST => asked.server.is_none_or(|server| server == SERVER),
        _ => false,
    };
    if !is_to_this || (asked.client.is_none() && kind != INFORMATION_REQUEST) {
        return None;
    }
    let is_tentative = kind == SOLICIT && !asked.is_rapid;
    let mut message = vec![if is_tentative { ADVERTISE } else { REPLY }];
    message.extend(transaction);
    if let Some(client) = asked.client {
        add(&mut message, CLIENT_ID, client);
    }
    add(&mut message, SERVER_ID, &SERVER);
    match kind {
        SOLICIT if asked.is_rapid => add(&mut message, RAPID_COMMIT, &[]),
        CONFIRM => {
            let mut all = asked.associations.iter().flat_map(|(_, addresses)| addresses);
            let code = if all.all(|address| *address == guest.address) { SUCCESS } else { NOT_ON_LINK };
            add(&mut message, STATUS_CODE, &code.to_be_bytes());
        }
        RELEASE | DECLINE => add(&mut message, STATUS_CODE, &SUCCESS.to_be_bytes()),
        _ => {}
    }
    if matches!(kind, SOLICIT | REQUEST | RENEW | REBIND) {
        for (place, (id, addresses)) in asked.associations.iter().enumerate() {
            add(&mut message, IA_NA, &association(*id, addresses, guest.address, place == 0));
        }
    }
    if !matches!(kind, CONFIRM | RELEASE | DECLINE) {
        let dns: Vec<u8> = guest.dns.iter().flat_map(Ipv6Addr::octets).collect();
        add_if_any(&mut message, DNS_SERVERS, &dns);
        add_if_any(&mut message, DOMAIN_LIST, &domains(&guest.search_domains));
    }
    Some(message)
}

/// Builds the value of an association: the first one of a request has the guest's address, and no other has any.
fn association(id: [u8; 4], asked: &[Ipv6Addr], own: Ipv6Addr, is_first: bool) -> Vec<u8> {
    let mut value = Vec::from(id);
    if !is_first {
        value.extend([0; 8]);
        add(&mut value, STATUS_CODE, &NO_ADDRESSES.to_be_bytes());
        return value;
    }
    value.extend(RENEW_SECONDS.to_be_bytes());
    value.extend(REBIND_SECONDS.to_be_bytes());
    // A client gives up an address without a lifetime.
    let others = asked.iter().filter(|address| **address != own).map(|other| (*other, 0));
    for (address, seconds) in [(own, LEASE_SECONDS)].into_iter().chain(others) {
        let mut option = Vec::from(address.octets());
        option.extend(u32::to_be_bytes(seconds));
        option.extend(u32::to_be_bytes(seconds));
        add(&mut value, IA_ADDRESS, &option);
    }
    value
}

fn add(message: &mut Vec<u8>, number: u16, value: &[u8]) {
    message.extend(number.to_be_bytes());
    message.extend(u16::try_from(value.len()).expect("a few hundred bytes").to_be_bytes());
    message.extend(value);
}

fn add_if_any(message: &mut Vec<u8>, number: u16, value: &[u8]) {
    if !value.is_empty() {
        add(message, number, value);
    }
}

/// Encodes domains as names of DNS, without compression.
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

/// Puts a message into IPv6 and Ethernet. `sum_at`: the place of its checksum.
fn in_frame(
    mut message: Vec<u8>,
    sum_at: usize,
    (own, from): ([u8; 6], Ipv6Addr),
    (mac, to): ([u8; 6], Ipv6Addr),
    protocol: u8,
) -> Option<Vec<u8>> {
    let length = u16::try_from(message.len()).ok()?;
    let sum = match checksum(from, to, protocol, &message) {
        // UDP over IPv6 has no packet without a checksum.
        0 => 0xffff,
        sum => sum,
    };
    message.get_mut(sum_at..sum_at + 2)?.copy_from_slice(&sum.to_be_bytes());
    let mut frame = Vec::from(mac);
    frame.extend(own);
    frame.extend(ETHERTYPE_IPV6.to_be_bytes());
    frame.extend([0x60, 0, 0, 0]);
    frame.extend(length.to_be_bytes());
    frame.extend([protocol, HOP_LIMIT]);
    frame.extend(from.octets());
    frame.extend(to.octets());
    frame.extend(message);
    Some(frame)
}

/// The checksum over a header of the addresses, the length and the protocol, and the message (RFC 8200, section 8.1).
fn checksum(from: Ipv6Addr, to: Ipv6Addr, protocol: u8, message: &[u8]) -> u16 {
    let length = u32::try_from(message.len()).unwrap_or_default().to_be_bytes();
    let header = [&from.octets()[..], &to.octets(), &length, &[0, 0, 0, protocol]].concat();
    let words = header.chunks(2).chain(message.chunks(2));
    let mut sum: u32 = words.map(|w| u32::from(w[0]) << 8 | w.get(1).copied().map_or(0, u32::from)).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap_or_default()
}

#[cfg(test)]
pub(in super::super) mod tests {
    use super::*;

    pub(in super::super::super) const MAC: [u8; 6] = [0x52, 0x54, 0, 0, 0, 3];
    const OWN: [u8; 6] = [0x52, 0x54, 0, 9, 9, 9];
    const CLIENT: [u8; 4] = [0, 3, 0, 1];

    fn address(text: &str) -> Ipv6Addr {
        text.parse().expect("an address")
    }

    pub(in super::super::super) fn guest() -> ServedIpv6Guest {
        ServedIpv6Guest {
            tap: "btt00000003n0".to_owned(),
            mac: hardware_address(MAC),
            address: address("2001:db8:7::50"),
            prefix: "2001:db8:7::/64".parse().expect("a prefix"),
            router: Some(address("fe80::1")),
            mtu: Some(1400),
            dns: vec![address("2001:db8:7::1")],
            search_domains: vec!["example.org".to_owned()],
        }
    }

    /// A request of a client with one association, which has these addresses, and these options more.
    pub(in super::super::super) fn asks(kind: u8, addresses: &[Ipv6Addr], more: &[(u16, &[u8])]) -> Vec<u8> {
        let mut message = vec![kind, 1, 2, 3];
        add(&mut message, CLIENT_ID, &CLIENT);
        let mut association = vec![0, 0, 0, 7];
        association.extend([0; 8]);
        for address in addresses {
            let option = [&address.octets()[..], &[0; 8]].concat();
            add(&mut association, IA_ADDRESS, &option);
        }
        add(&mut message, IA_NA, &association);
        more.iter().for_each(|(number, value)| add(&mut message, *number, value));
        let mut datagram = [&CLIENT_PORT.to_be_bytes()[..], &SERVER_PORT.to_be_bytes()].concat();
        datagram.extend(u16::try_from(message.len() + 8).expect("short").to_be_bytes());
        datagram.extend([0, 0]);
        datagram.extend(message);
        let from = link_local(&hardware_address(MAC)).expect("an address");
        let servers = ([0x33, 0x33, 0, 1, 0, 2], address("ff02::1:2"));
        in_frame(datagram, 6, (MAC, from), servers, UDP).expect("a frame")
    }

    pub(in super::super::super) fn solicits_router() -> Vec<u8> {
        let message = vec![ROUTER_SOLICITATION, 0, 0, 0, 0, 0, 0, 0];
        let routers = ([0x33, 0x33, 0, 0, 0, 2], address("ff02::2"));
        in_frame(message, 2, (MAC, Ipv6Addr::UNSPECIFIED), routers, ICMPV6).expect("a frame")
    }

    /// The kind of an answer of DHCPv6, and its addresses with their lifetimes. None: the frame is none.
    pub(in super::super::super) fn answered(frame: &[u8]) -> Option<(u8, Vec<(Ipv6Addr, u32)>)> {
        let is_answer = frame.get(20) == Some(&UDP) && frame.get(56..58)? == CLIENT_PORT.to_be_bytes();
        let message = frame.get(62..).filter(|_| is_answer)?;
        let mut addresses = Vec::new();
        for (_, value) in options(message.get(4..)?)?.into_iter().filter(|(number, _)| *number == IA_NA) {
            for (_, value) in options(value.get(12..)?)?.into_iter().filter(|(n, _)| *n == IA_ADDRESS) {
                let address = Ipv6Addr::from(<[u8; 16]>::try_from(value.get(..16)?).ok()?);
                let seconds = u32::from_be_bytes(value.get(16..20)?.try_into().ok()?);
                addresses.push((address, seconds));
            }
        }
        Some((*message.first()?, addresses))
    }

    fn answer_to(
        kind: u8,
        addresses: &[Ipv6Addr],
        more: &[(u16, &[u8])],
    ) -> Option<(u8, Vec<(Ipv6Addr, u32)>)> {
        answered(&answer(&asks(kind, addresses, more), &guest(), OWN)?)
    }

    #[test]
    fn a_guest_gets_its_own_address_and_gives_up_any_other() {
        let (own, other) = (address("2001:db8:7::50"), address("2001:db8:7::99"));
        let to_server: &[(u16, &[u8])] = &[(SERVER_ID, &SERVER)];
        let lease = vec![(own, LEASE_SECONDS)];
        assert_eq!(answer_to(SOLICIT, &[], &[]), Some((ADVERTISE, lease.clone())));
        assert_eq!(answer_to(SOLICIT, &[], &[(RAPID_COMMIT, &[])]), Some((REPLY, lease.clone())));
        assert_eq!(answer_to(REQUEST, &[own], to_server), Some((REPLY, lease.clone())));
        assert_eq!(answer_to(REBIND, &[own], &[]), Some((REPLY, lease.clone())));
        let both = vec![(own, LEASE_SECONDS), (other, 0)];
        assert_eq!(answer_to(RENEW, &[other], to_server), Some((REPLY, both)));
        assert_eq!(answer_to(RELEASE, &[own], to_server), Some((REPLY, Vec::new())));
        for (addresses, code) in [([own], SUCCESS), ([other], NOT_ON_LINK)] {
            let frame = answer(&asks(CONFIRM, &addresses, &[]), &guest(), OWN).expect("an answer");
            let status = [&STATUS_CODE.to_be_bytes()[..], &[0, 2], &code.to_be_bytes()].concat();
            assert!(frame.windows(6).any(|bytes| bytes == status), "{code}: {frame:?}");
        }
        let frame = answer(&asks(SOLICIT, &[], &[]), &guest(), OWN).expect("an answer");
        assert!(frame.ends_with(b"\x07example\x03org\x00"), "{frame:?}");
        assert_eq!(checksum_of(&frame), 0);
    }

    /// The sum over a datagram with its checksum, which is zero.
    fn checksum_of(frame: &[u8]) -> u16 {
        let part = |at: usize| Ipv6Addr::from(<[u8; 16]>::try_from(&frame[at..at + 16]).expect("16 bytes"));
        checksum(part(22), part(38), frame[20], &frame[PAYLOAD_AT..])
    }

    #[test]
    fn other_machines_other_servers_and_broken_requests_get_no_answer() {
        let solicit = asks(SOLICIT, &[], &[]);
        let other = ServedIpv6Guest { mac: "52:54:00:00:00:04".to_owned(), ..guest() };
        assert_eq!(answer(&solicit, &other, OWN), None);
        assert_eq!(answer_to(REQUEST, &[], &[(SERVER_ID, &[0, 3, 0, 1, 9])]), None);
        assert_eq!(answer_to(REQUEST, &[], &[]), None);
        assert_eq!(answer_to(REPLY, &[], &[]), None);
        let mut from_another = solicit.clone();
        from_another[37] = 9;
        assert_eq!(answer(&from_another, &guest(), OWN), None, "not from its link-local address");
        for length in 0..solicit.len() {
            assert_eq!(answer(&solicit[..length], &guest(), OWN), None, "{length}");
        }
        for at in PAYLOAD_AT..solicit.len() {
            let mut broken = solicit.clone();
            broken[at] = 0xff;
            answer(&broken, &guest(), OWN);
        }
    }

    #[test]
    fn a_guest_that_looks_for_routers_hears_of_the_networks_router_and_forms_no_address() {
        let frame = answer(&solicits_router(), &guest(), OWN).expect("an answer");
        assert_eq!((&frame[..6], frame[54], frame[59]), (&MAC[..], ROUTER_ADVERTISEMENT, MANAGED_AND_OTHER));
        assert_eq!(frame[22..38], address("fe80::1").octets());
        assert_eq!(frame[60..62], ROUTER_SECONDS.to_be_bytes());
        assert_eq!(frame[70..74], [3, 4, 64, ON_LINK]);
        assert_eq!(checksum_of(&frame), 0);
        let alone = ServedIpv6Guest { router: None, ..guest() };
        let frame = answer(&solicits_router(), &alone, OWN).expect("an answer");
        assert_eq!(frame[60..62], [0, 0], "it has no default route by this");
    }
}
