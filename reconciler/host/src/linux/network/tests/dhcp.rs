//! A minimal DHCP client.

use std::net::{Ipv4Addr, UdpSocket};
use std::time::{Duration, Instant};

use nix::sys::socket::{setsockopt, sockopt};

use super::ip;

const PATIENCE: Duration = Duration::from_secs(2);
const TRANSACTION: [u8; 4] = [0xbe, 0x27, 0x40, 0x01];
const COOKIE: [u8; 4] = [0x63, 0x82, 0x53, 0x63];

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Offer {
    pub(super) address: Ipv4Addr,
    pub(super) router: Option<Ipv4Addr>,
    pub(super) mtu: Option<u16>,
    kind: u8,
    server: Option<Ipv4Addr>,
}

/// Sends discover and request, and returns the acknowledged offer.
pub(super) fn ask(interface: &str, mac: [u8; 6]) -> Option<Offer> {
    // Without an address there is no route for broadcasts either.
    ip(&format!("route replace 255.255.255.255 dev {interface}"));
    let socket = UdpSocket::bind("0.0.0.0:68").expect("a namespace of our own");
    socket.set_broadcast(true).expect("set");
    setsockopt(&socket, sockopt::BindToDevice, &interface.into()).expect("as root");
    socket.set_read_timeout(Some(Duration::from_millis(100))).expect("a timeout above zero");
    let offer = exchange(&socket, &message(mac, 1, None), 2)?;
    exchange(&socket, &message(mac, 3, Some(&offer)), 5)
}

fn exchange(socket: &UdpSocket, message: &[u8], kind: u8) -> Option<Offer> {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        socket.send_to(message, "255.255.255.255:67").expect("sent");
        let mut answer = [0; 1500];
        let Ok((len, _)) = socket.recv_from(&mut answer) else { continue };
        if let Some(offer) = parse(&answer[..len]).filter(|o| o.kind == kind) {
            return Some(offer);
        }
    }
    None
}

fn message(mac: [u8; 6], kind: u8, offer: Option<&Offer>) -> Vec<u8> {
    let mut m = vec![1, 1, 6, 0];
    m.extend(TRANSACTION);
    // The broadcast flag: the client has no address yet for a unicast reply.
    m.extend([0, 0, 0x80, 0]);
    m.extend([0; 16]);
    m.extend(mac);
    m.resize(236, 0);
    m.extend(COOKIE);
    m.extend([53, 1, kind, 55, 3, 1, 3, 26]);
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
    let address = |bytes: &[u8]| <[u8; 4]>::try_from(bytes).ok().map(Ipv4Addr::from);
    let mut offer = Offer { address: address(answer.get(16..20)?)?, ..Offer::none() };
    let mut options = answer.get(240..)?;
    while let [code, len, rest @ ..] = options {
        if *code == 255 {
            break;
        }
        let value = rest.get(..usize::from(*len))?;
        match code {
            3 => offer.router = address(value),
            26 => offer.mtu = value.try_into().ok().map(u16::from_be_bytes),
            53 => offer.kind = *value.first()?,
            54 => offer.server = address(value),
            _ => {}
        }
        options = &rest[value.len()..];
    }
    Some(offer)
}

impl Offer {
    fn none() -> Self {
        Self { address: Ipv4Addr::UNSPECIFIED, router: None, mtu: None, kind: 0, server: None }
    }
}
