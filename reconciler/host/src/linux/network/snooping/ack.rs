//! The acknowledgement of a DHCP server (RFC 2131, section 3.1) and the request of a client, in a frame as it is received. Pure: the bytes are untrusted.

use std::net::Ipv4Addr;

const ETHERTYPE_IPV4: [u8; 2] = [8, 0];
const UDP: u8 = 17;
pub(super) const SERVER_PORT: u16 = 67;
pub(super) const CLIENT_PORT: u16 = 68;
/// The bits of a fragment's offset, and the one of further fragments.
pub(super) const FRAGMENT: u16 = 0x3fff;
/// A reply, to Ethernet, with addresses of six bytes.
const REPLY: [u8; 3] = [2, 1, 6];
/// A request, likewise.
const ASKS: [u8; 3] = [1, 1, 6];
/// The flag of a client that asks for a broadcast.
const BROADCAST: u16 = 0x8000;
const MAGIC: [u8; 4] = [99, 130, 83, 99];
const PAD: u8 = 0;
const END: u8 = 255;
const REQUESTED: u8 = 50;
const LEASE_TIME: u8 = 51;
const OVERLOAD: u8 = 52;
const MESSAGE_TYPE: u8 = 53;
const SERVER: u8 = 54;
const ACKNOWLEDGES: u8 = 5;

/// A lease, as its server has acknowledged it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ack {
    /// The client's, to which the frame is sent unless it is a broadcast.
    pub(super) mac: [u8; 6],
    pub(super) address: Ipv4Addr,
    /// From its receipt.
    pub(super) seconds: u32,
}

/// Returns the lease that this frame acknowledges, if it does. One without a time, such as the answer to a client that has an address
/// already, is none.
pub(super) fn parse(frame: &[u8]) -> Option<Ack> {
    let to: [u8; 6] = array(frame, 0)?;
    let message = message(frame, (SERVER_PORT, CLIENT_PORT))?;
    if array::<3>(message, 0)? != REPLY || array::<4>(message, 236)? != MAGIC {
        return None;
    }
    let address = Ipv4Addr::from(array::<4>(message, 16)?);
    let mac: [u8; 6] = array(message, 28)?;
    let mut options = Options::default();
    options.read(message.get(240..)?)?;
    // The fields for the name of the server and of the boot file may have more of them.
    let overload = options.overload.unwrap_or_default();
    for (bit, field) in [(1, 108..236), (2, 44..108)] {
        if overload & bit != 0 {
            options.read(message.get(field)?)?;
        }
    }
    let is_lease = options.message_type == Some(ACKNOWLEDGES) && is_of_a_machine(address);
    let is_for_it = to == mac || to == [0xff; 6];
    let seconds = options.seconds.filter(|seconds| *seconds > 0)?;
    (is_lease && is_for_it).then_some(Ack { mac, address, seconds })
}

/// A request of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Request {
    pub(in super::super) mac: [u8; 6],
    pub(in super::super) transaction: [u8; 4],
    pub(in super::super) message_type: u8,
    /// The address that the client has, or 0.0.0.0.
    pub(in super::super) current: Ipv4Addr,
    pub(in super::super) requested: Option<Ipv4Addr>,
    /// The server that it is for.
    pub(in super::super) server: Option<Ipv4Addr>,
    /// Whether the client receives no packet to an address that it does not have yet.
    pub(in super::super) wants_broadcast: bool,
}

/// Returns the request of a client in this frame, if it has one.
pub(in super::super) fn request(frame: &[u8]) -> Option<Request> {
    let message = message(frame, (CLIENT_PORT, SERVER_PORT))?;
    if array::<3>(message, 0)? != ASKS || array::<4>(message, 236)? != MAGIC {
        return None;
    }
    let mut options = Options::default();
    options.read(message.get(240..)?)?;
    Some(Request {
        mac: array(message, 28)?,
        transaction: array(message, 4)?,
        message_type: options.message_type?,
        current: Ipv4Addr::from(array::<4>(message, 12)?),
        requested: options.requested,
        server: options.server,
        wants_broadcast: number(message, 10)? & BROADCAST != 0,
    })
}

/// Returns the DHCP message from one port to another in this frame, if it is whole.
fn message(frame: &[u8], ports: (u16, u16)) -> Option<&[u8]> {
    let packet = frame.get(14..).filter(|_| array::<2>(frame, 12) == Some(ETHERTYPE_IPV4))?;
    let first = *packet.first()?;
    let header = usize::from(first & 0xf) * 4;
    // A short frame is padded.
    let packet = packet.get(..usize::from(number(packet, 2)?))?;
    let is_udp = packet.get(9) == Some(&UDP) && number(packet, 6)? & FRAGMENT == 0;
    if first >> 4 != 4 || header < 20 || !is_udp {
        return None;
    }
    let datagram = packet.get(header..)?;
    if (number(datagram, 0)?, number(datagram, 2)?) != ports {
        return None;
    }
    datagram.get(8..usize::from(number(datagram, 4)?))
}

/// The options of a message, each as it occurs first.
#[derive(Default)]
struct Options {
    message_type: Option<u8>,
    seconds: Option<u32>,
    overload: Option<u8>,
    requested: Option<Ipv4Addr>,
    server: Option<Ipv4Addr>,
}

impl Options {
    /// Returns None if one of them ends beyond the bytes.
    fn read(&mut self, mut bytes: &[u8]) -> Option<()> {
        while let [kind, rest @ ..] = bytes {
            match *kind {
                PAD => bytes = rest,
                END => return Some(()),
                kind => {
                    let (length, rest) = rest.split_first()?;
                    let (value, rest) = rest.split_at_checked(usize::from(*length))?;
                    self.keep(kind, value);
                    bytes = rest;
                }
            }
        }
        Some(())
    }

    fn keep(&mut self, kind: u8, value: &[u8]) {
        match (kind, value) {
            (MESSAGE_TYPE, [value]) => {
                self.message_type.get_or_insert(*value);
            }
            (OVERLOAD, [value]) => {
                self.overload.get_or_insert(*value);
            }
            (REQUESTED, [a, b, c, d]) => {
                self.requested.get_or_insert(Ipv4Addr::new(*a, *b, *c, *d));
            }
            (SERVER, [a, b, c, d]) => {
                self.server.get_or_insert(Ipv4Addr::new(*a, *b, *c, *d));
            }
            (LEASE_TIME, [a, b, c, d]) => {
                self.seconds.get_or_insert(u32::from_be_bytes([*a, *b, *c, *d]));
            }
            _ => {}
        }
    }
}

fn is_of_a_machine(address: Ipv4Addr) -> bool {
    let is_special = address.is_broadcast() || address.is_loopback() || address.is_link_local();
    !(is_special || address.is_multicast() || address.octets()[0] == 0 || address.octets()[0] >= 240)
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

fn number(bytes: &[u8], at: usize) -> Option<u16> {
    array(bytes, at).map(u16::from_be_bytes)
}

#[cfg(test)]
pub(in super::super) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(in super::super::super) const MAC: [u8; 6] = [0x52, 0x54, 0, 0, 0, 3];
    const ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 77);
    const ACK: [u8; 3] = [MESSAGE_TYPE, 1, ACKNOWLEDGES];
    const HOUR: [u8; 6] = [LEASE_TIME, 4, 0, 0, 0x0e, 0x10];

    /// A message of a server with these options, in a frame to this machine.
    fn frame(to: [u8; 6], mac: [u8; 6], address: Ipv4Addr, options: &[u8]) -> Vec<u8> {
        let mut message = vec![2, 1, 6, 0, 1, 2, 3, 4];
        message.resize(16, 0);
        message.extend(address.octets());
        message.resize(28, 0);
        message.extend(mac);
        message.resize(236, 0);
        message.extend(MAGIC);
        message.extend(options);
        let length = |more: usize| u16::try_from(message.len() + more).expect("short").to_be_bytes();
        let mut frame = [&to[..], &[2, 0, 0, 0, 0, 0x53], &ETHERTYPE_IPV4, &[0x45, 0], &length(28)].concat();
        frame.extend([0, 1, 0, 0, 64, UDP, 0, 0, 192, 0, 2, 1, 255, 255, 255, 255, 0, 67, 0, 68]);
        frame.extend(length(8));
        frame.extend([0, 0]);
        frame.extend(message);
        // Hosts that filter in their bridges pass no packet without it.
        let checksum = checksum(&frame[14..34]);
        frame[24..26].copy_from_slice(&checksum.to_be_bytes());
        frame
    }

    /// The checksum of a header of IPv4 (RFC 1071).
    fn checksum(header: &[u8]) -> u16 {
        let sum: u32 = header.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
        !u16::try_from((sum & 0xffff) + (sum >> 16)).expect("a short header without further carry")
    }

    /// A lease of an hour, or of so many seconds.
    pub(in super::super::super) fn ack(mac: [u8; 6], address: Ipv4Addr, seconds: u32) -> Vec<u8> {
        let time = [&[LEASE_TIME, 4][..], &seconds.to_be_bytes()].concat();
        frame([0xff; 6], mac, address, &[&ACK[..], &time, &[END]].concat())
    }

    fn with(options: &[&[u8]]) -> Option<Ack> {
        parse(&frame(MAC, MAC, ADDRESS, &options.concat()))
    }

    const LEASE: Ack = Ack { mac: MAC, address: ADDRESS, seconds: 3600 };

    #[test]
    fn an_acknowledgement_to_the_client_or_to_all_is_a_lease() {
        assert_eq!(with(&[&ACK, &HOUR, &[END]]), Some(LEASE));
        assert_eq!(parse(&ack(MAC, ADDRESS, 3600)), Some(LEASE));
        let other = [&[PAD, PAD, 1, 4, 255, 255, 255, 0][..], &[12, 0]].concat();
        assert_eq!(with(&[&other, &HOUR, &ACK]), Some(LEASE), "in any order, among others, without an end");
        let padded = [ack(MAC, ADDRESS, 3600), vec![END; 40]].concat();
        assert_eq!(parse(&padded), Some(LEASE));
        let twice = [&ACK[..], &HOUR, &[MESSAGE_TYPE, 1, 6], &[LEASE_TIME, 4, 0, 0, 0, 9], &[END]];
        assert_eq!(with(&twice), Some(LEASE), "the first counts");
        assert_eq!(parse(&ack(MAC, ADDRESS, u32::MAX)).map(|ack| ack.seconds), Some(u32::MAX));
    }

    #[test]
    fn options_in_the_fields_for_names_count_if_the_message_says_so() {
        let mut all = frame(MAC, MAC, ADDRESS, &[&ACK[..], &[OVERLOAD, 1, 1], &[END]].concat());
        let field = all.len() - (240 + 7) + 108;
        all[field..field + HOUR.len()].copy_from_slice(&HOUR);
        assert_eq!(parse(&all), Some(LEASE));
        let mut other = all.clone();
        let overload = other.len() - 2;
        other[overload] = 2;
        assert_eq!(parse(&other), None, "the other field");
        all[field + HOUR.len()] = 12;
        all[field + HOUR.len() + 1] = 255;
        assert_eq!(parse(&all), None, "an option that ends beyond the field");
    }

    #[test]
    fn other_messages_and_broken_ones_are_no_lease() {
        let good = frame(MAC, MAC, ADDRESS, &[&ACK[..], &HOUR, &[END]].concat());
        let changed = |at: usize, value: u8| {
            let mut frame = good.clone();
            frame[at] = value;
            parse(&frame)
        };
        let cases = [
            ("another receiver", changed(5, 9)),
            ("not IPv4", changed(13, 6)),
            ("a tag", changed(12, 0x81)),
            ("IP version 6", changed(14, 0x65)),
            ("a short header", changed(14, 0x44)),
            ("a header beyond the packet", changed(14, 0x4f)),
            ("a packet longer than the frame", changed(16, 0xff)),
            ("a fragment", changed(20, 0x20)),
            ("TCP", changed(23, 6)),
            ("from a client's port", changed(35, 68)),
            ("to a server's port", changed(37, 67)),
            ("a datagram longer than the packet", changed(38, 0xff)),
            ("a datagram that is longer by little", changed(39, 7)),
            ("a request", changed(42, 1)),
            ("another hardware", changed(43, 6)),
            ("wrong magic", changed(42 + 236, 98)),
            ("a loopback address", changed(42 + 16, 127)),
            ("a multicast address", changed(42 + 16, 224)),
            ("no address", parse(&frame(MAC, MAC, Ipv4Addr::UNSPECIFIED, &[&ACK[..], &HOUR].concat()))),
            ("an offer", with(&[&[MESSAGE_TYPE, 1, 2], &HOUR, &[END]])),
            ("a refusal", with(&[&[MESSAGE_TYPE, 1, 6], &HOUR, &[END]])),
            ("no type", with(&[&HOUR, &[END]])),
            ("no time", with(&[&ACK, &[END]])),
            ("no time before the end", with(&[&ACK, &[END], &HOUR])),
            ("a time of zero", with(&[&ACK, &[LEASE_TIME, 4, 0, 0, 0, 0], &[END]])),
            ("a time of three bytes", with(&[&ACK, &[LEASE_TIME, 3, 0, 0, 9], &[END]])),
            ("an option that ends beyond the message", with(&[&ACK, &HOUR, &[12, 200, 1]])),
            ("an option without a length", with(&[&ACK, &HOUR, &[12]])),
        ];
        for (what, found) in cases {
            assert_eq!(found, None, "{what}");
        }
        for end in 0..good.len() {
            assert_eq!(parse(&good[..end]), None, "cut at {end}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..1600)) {
            parse(&bytes);
        }

        #[test]
        fn any_options_are_read_without_a_panic(options in prop::collection::vec(any::<u8>(), 0..600)) {
            if let Some(ack) = with(&[&options]) {
                prop_assert_eq!((ack.mac, ack.address), (MAC, ADDRESS));
            }
        }
    }
}
