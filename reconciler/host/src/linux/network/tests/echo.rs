//! Echo requests of a machine, without the program `ping`.

use std::net::{IpAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, SockaddrIn6, SockaddrLike, recv,
    sendto, setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};

use super::guest::Guest;
use super::ip;

/// Longer than an answer on one machine takes.
const PATIENCE: Duration = Duration::from_secs(1);
/// Type, code, checksum, identifier and number. The kernel computes the checksum of ICMPv6.
const QUESTION: [u8; 8] = [8, 0, 0x95, 0x99, 0x62, 0x65, 0, 1];
const QUESTION_IPV6: [u8; 8] = [128, 0, 0, 0, 0x62, 0x65, 0, 1];
const ANSWER: u8 = 0;
const ANSWER_IPV6: u8 = 129;
/// The length of the IPv4 header, which a raw socket receives too.
const HEADER: usize = 20;

impl Guest {
    /// Whether an echo request to this address is answered. To a link-local one it leaves by `eth0`.
    pub(super) fn is_echoed(&self, address: &'static str) -> bool {
        self.on(move || is_answered(address.parse().expect("an address")).expect("asked"))
    }
}

fn is_answered(address: IpAddr) -> nix::Result<bool> {
    let (family, protocol, question, answer, header) = match address {
        IpAddr::V4(_) => (AddressFamily::Inet, SockProtocol::Icmp, QUESTION, ANSWER, HEADER),
        IpAddr::V6(_) => (AddressFamily::Inet6, SockProtocol::IcmpV6, QUESTION_IPV6, ANSWER_IPV6, 0),
    };
    let to: Box<dyn SockaddrLike> = match address {
        IpAddr::V4(address) => Box::new(SockaddrIn::from(SocketAddrV4::new(address, 0))),
        IpAddr::V6(address) => Box::new(SockaddrIn6::from(SocketAddrV6::new(address, 0, 0, index()))),
    };
    let socket = socket(family, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)?;
    setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::seconds(1))?;
    match sendto(socket.as_raw_fd(), &question, to.as_ref(), MsgFlags::empty()) {
        // The machine's own link-local address is still being checked for duplicates.
        Err(Errno::EADDRNOTAVAIL) => {
            std::thread::sleep(PATIENCE);
            return Ok(false);
        }
        sent => sent?,
    };
    let until = Instant::now() + PATIENCE;
    let mut packet = [0; 256];
    while Instant::now() < until {
        let length = match recv(socket.as_raw_fd(), &mut packet, MsgFlags::empty()) {
            Ok(length) => length,
            Err(Errno::EAGAIN | Errno::EINTR) => continue,
            Err(error) => return Err(error),
        };
        // Other messages of ICMP arrive there too.
        let message = packet[..length].get(header..header + 8);
        if message.is_some_and(|message| message[0] == answer && message[4..] == question[4..]) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn index() -> u32 {
    let link = ip("-o link show dev eth0");
    link.split(':').next().and_then(|index| index.parse().ok()).expect("an index")
}
