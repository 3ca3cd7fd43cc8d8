//! A minimal DHCP client.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, UdpSocket};
use std::time::{Duration, Instant};

use nix::sys::socket::{setsockopt, sockopt};

use super::ip;

const PATIENCE: Duration = Duration::from_secs(2);
const TRANSACTION: [u8; 4] = [0xbe, 0x27, 0x40, 0x01];
const COOKIE: [u8; 4] = [0x63, 0x82, 0x53, 0x63];
/// The host name that each guest claims to have.
pub(super) const CLAIMED: &str = "db";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Offer {
    pub(super) address: Ipv4Addr,
    pub(super) router: Option<Ipv4Addr>,
    pub(super) mtu: Option<u16>,
    pub(super) dns: Vec<Ipv4Addr>,
    pub(super) domain: Option<String>,
    pub(super) search_domains: Vec<String>,
    /// Destination and router.
    pub(super) routes: Vec<(String, Ipv4Addr)>,
    kind: u8,
    server: Option<Ipv4Addr>,
}

/// Sends discover and request, and returns the acknowledged offer.
pub(super) fn ask(interface: &str, mac: [u8; 6]) -> Option<Offer> {
    let socket = client(interface);
    let offer = exchange(&socket, &message(mac, 1, None, None), 2)?;
    exchange(&socket, &message(mac, 3, Some(&offer), None), 5)
}

/// Requests an offered address under so many client identifiers, and does not wait for answers.
pub(super) fn request_as(interface: &str, mac: [u8; 6], offer: &Offer, identifiers: u16) {
    let socket = client(interface);
    for identifier in 0..identifiers {
        for (kind, offer) in [(1, None), (3, Some(offer))] {
            let message = message(mac, kind, offer, Some(identifier));
            socket.send_to(&message, "255.255.255.255:67").expect("sent");
        }
    }
}

fn client(interface: &str) -> UdpSocket {
    // Without an address there is no route for broadcasts either.
    ip(&format!("route replace 255.255.255.255 dev {interface}"));
    let deadline = Instant::now() + PATIENCE;
    // A program that another test starts at that moment has the former socket, until it is executed.
    let socket = loop {
        match UdpSocket::bind("0.0.0.0:68") {
            Err(error) if error.kind() == ErrorKind::AddrInUse && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(10));
            }
            bound => break bound.expect("a namespace of our own"),
        }
    };
    socket.set_broadcast(true).expect("set");
    setsockopt(&socket, sockopt::BindToDevice, &interface.into()).expect("as root");
    socket.set_read_timeout(Some(Duration::from_millis(100))).expect("a timeout above zero");
    socket
}

fn exchange(socket: &UdpSocket, message: &[u8], kind: u8) -> Option<Offer> {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        socket.send_to(message, "255.255.255.255:67").expect("sent");
        let mut answer = [0; 1500];
        while let Ok((len, _)) = socket.recv_from(&mut answer) {
            // Answers to others are broadcasts, too.
            let is_own = answer[28..34] == message[28..34];
            if let Some(offer) = parse(&answer[..len]).filter(|offer| is_own && offer.kind == kind) {
                return Some(offer);
            }
        }
    }
    None
}

fn message(mac: [u8; 6], kind: u8, offer: Option<&Offer>, identifier: Option<u16>) -> Vec<u8> {
    let mut m = vec![1, 1, 6, 0];
    m.extend(TRANSACTION);
    // The broadcast flag: the client has no address yet for a unicast reply.
    m.extend([0, 0, 0x80, 0]);
    m.extend([0; 16]);
    m.extend(mac);
    m.resize(236, 0);
    m.extend(COOKIE);
    m.extend([53, 1, kind, 55, 8, 1, 3, 6, 12, 15, 26, 119, 121]);
    m.extend([12, CLAIMED.len() as u8]);
    m.extend(CLAIMED.as_bytes());
    if let Some(identifier) = identifier {
        m.extend([61, 3, 0]);
        m.extend(identifier.to_be_bytes());
    }
    if let Some(offer) = offer {
        m.extend([50, 4]);
        m.extend(offer.address.octets());
        m.extend([54, 4]);
        m.extend(offer.server.expect("servers name themselves").octets());
    }
    m.push(255);
    m.resize(300, 0);
    m
}

fn parse(answer: &[u8]) -> Option<Offer> {
    if answer.get(4..8)? != TRANSACTION || answer.get(236..240)? != COOKIE {
        return None;
    }
    let mut offer = Offer { address: address(answer.get(16..20)?)?, ..Offer::none() };
    let overload = offer.read(answer.get(240..)?)?;
    // The fields of the boot file and of the server's name hold the options that have no room after them.
    for (bit, field) in [(1, 108..236), (2, 44..108)] {
        if overload & bit != 0 {
            offer.read(&answer[field])?;
        }
    }
    Some(offer)
}

fn address(bytes: &[u8]) -> Option<Ipv4Addr> {
    <[u8; 4]>::try_from(bytes).ok().map(Ipv4Addr::from)
}

/// Reads classless static routes: the length of a prefix, its bytes that are not zero for certain, and a router.
fn routes(mut bytes: &[u8]) -> Option<Vec<(String, Ipv4Addr)>> {
    let mut routes = Vec::new();
    while let [length, rest @ ..] = bytes {
        let significant = usize::from(length.div_ceil(8));
        let mut to = [0; 4];
        to[..significant].copy_from_slice(rest.get(..significant)?);
        let via = address(rest.get(significant..significant + 4)?)?;
        routes.push((format!("{}/{length}", Ipv4Addr::from(to)), via));
        bytes = &rest[significant + 4..];
    }
    Some(routes)
}

/// Reads a list of domains, which may end with a pointer into the list.
fn domains(bytes: &[u8]) -> Option<Vec<String>> {
    let mut domains = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let (mut labels, mut next) = (Vec::new(), None);
        loop {
            match *bytes.get(at)? {
                0 => break at += 1,
                pointer if pointer >= 0xc0 => {
                    next.get_or_insert(at + 2);
                    at = usize::from(pointer & 0x3f) << 8 | usize::from(*bytes.get(at + 1)?);
                }
                length => {
                    let label = bytes.get(at + 1..at + 1 + usize::from(length))?;
                    labels.push(String::from_utf8(label.to_vec()).ok()?);
                    at += 1 + usize::from(length);
                }
            }
        }
        domains.push(labels.join("."));
        at = next.unwrap_or(at);
    }
    Some(domains)
}

impl Offer {
    fn none() -> Self {
        Self {
            address: Ipv4Addr::UNSPECIFIED,
            router: None,
            mtu: None,
            dns: Vec::new(),
            domain: None,
            search_domains: Vec::new(),
            routes: Vec::new(),
            kind: 0,
            server: None,
        }
    }

    /// Adds the options of a field; returns which other fields have options too.
    fn read(&mut self, mut options: &[u8]) -> Option<u8> {
        let mut overload = 0;
        while let [code, rest @ ..] = options {
            if *code == 255 {
                break;
            }
            if *code == 0 {
                options = rest;
                continue;
            }
            let [len, rest @ ..] = rest else { return None };
            let value = rest.get(..usize::from(*len))?;
            match code {
                3 => self.router = address(value),
                6 => self.dns = value.chunks(4).filter_map(address).collect(),
                15 => self.domain = Some(String::from_utf8(value.to_vec()).ok()?),
                26 => self.mtu = value.try_into().ok().map(u16::from_be_bytes),
                52 => overload = *value.first()?,
                53 => self.kind = *value.first()?,
                54 => self.server = address(value),
                119 => self.search_domains = domains(value)?,
                121 => self.routes = routes(value)?,
                _ => {}
            }
            options = &rest[value.len()..];
        }
        Some(overload)
    }
}
