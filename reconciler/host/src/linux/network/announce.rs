//! Announces on a segment that an address is at this host: gratuitous ARP (RFC 5227, section 3), and for IPv6 advertisements that no
//! neighbour has asked for (RFC 4861, section 7.2.6), which update the caches of neighbours that knew it elsewhere.
//!
//! A frame may get lost, and a switch may still be learning: a new address is announced three times within a few
//! seconds, and every address again every few minutes. The state is not kept over a restart, so a new agent announces
//! all addresses.
#![allow(unsafe_code, reason = "packet sockets have no safe wrapper among our dependencies")]

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::discovery;
use super::netlink::{Link, network};
use crate::SystemError;

/// The delays of the repetitions after the first announcement.
const AGAIN: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(3)];
/// Shorter than the interval between full resyncs, so that each resync repeats the announcement.
const KNOWN_FOR: Duration = Duration::from_secs(240);
pub(super) const ETHERTYPE_ARP: u16 = 0x0806;
pub(super) const ASKS: u8 = 1;
pub(super) const ANSWERS: u8 = 2;

/// The announced addresses, with the time of their last announcement.
#[derive(Clone, Debug, Default)]
pub(super) struct Announcer {
    announcements: Arc<Mutex<BTreeMap<IpAddr, Announcement>>>,
}

#[derive(Clone, Copy, Debug)]
struct Announcement {
    at: Instant,
    link: u32,
}

impl Announcer {
    fn announcements(&self) -> MutexGuard<'_, BTreeMap<IpAddr, Announcement>> {
        self.announcements.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets all other addresses, which another host may own by now.
    pub(super) fn only(&self, addresses: &[IpAddr]) {
        self.announcements().retain(|address, _| addresses.contains(address));
    }

    /// Returns the announced IPv6 addresses, with the index of their interface.
    pub(super) fn ipv6(&self) -> Vec<(u32, Ipv6Addr)> {
        let ipv6 = |(address, known): (&IpAddr, &Announcement)| match address {
            IpAddr::V4(_) => None,
            IpAddr::V6(address) => Some((known.link, *address)),
        };
        self.announcements().iter().filter_map(ipv6).collect()
    }

    /// Announces the addresses that were not announced recently.
    pub(super) fn announce(&self, link: &Link, addresses: &[IpAddr]) -> Result<(), SystemError> {
        let Some(mac) = link.mac else { return Ok(()) };
        let index = link.index;
        let (new, due): (Vec<IpAddr>, Vec<IpAddr>) = {
            let known = self.announcements();
            let lately = |address: &IpAddr| {
                known.get(address).is_some_and(|known| known.link == index && known.at.elapsed() < KNOWN_FOR)
            };
            let due = addresses.iter().copied().filter(|address| !lately(address));
            due.partition(|address| !known.contains_key(address))
        };
        let failed = |error: io::Error| network("announce addresses on", &link.name, error.to_string());
        for address in new.iter().chain(&due) {
            match send(index, mac, *address) {
                // There is no segment that could hear of it, and the rules do not depend on that. The next resync announces it.
                Err(error) if error.raw_os_error() == Some(libc::ENETDOWN) => {
                    tracing::debug!(%address, interface = link.name, "not announced: the interface is down");
                    return Ok(());
                }
                sent => sent.map_err(failed)?,
            }
            self.announcements().insert(*address, Announcement { at: Instant::now(), link: index });
        }
        if !new.is_empty() {
            tracing::info!(addresses = ?new, interface = link.name, "public addresses announced");
            tokio::spawn(self.clone().repeat(index, mac, new));
        }
        Ok(())
    }

    async fn repeat(self, link: u32, mac: [u8; 6], addresses: Vec<IpAddr>) {
        for wait in AGAIN {
            tokio::time::sleep(wait).await;
            for address in &addresses {
                let still = self.announcements().get(address).is_some_and(|known| known.link == link);
                // Announced once already; the next resync makes up for a failure here.
                if still && let Err(error) = send(link, mac, *address) {
                    tracing::debug!(%address, %error, "not announced again");
                }
            }
        }
    }
}

/// Sends a request and a reply of ARP, as some receivers process only one of them, or an advertisement of IPv6.
fn send(link: u32, mac: [u8; 6], address: IpAddr) -> io::Result<()> {
    let socket = packet_socket(0)?;
    let frames: Vec<Vec<u8>> = match address {
        IpAddr::V4(address) => {
            [ASKS, ANSWERS].map(|operation| frame(mac, address, address, operation)).into()
        }
        IpAddr::V6(address) => vec![discovery::advertisement(mac, address)],
    };
    frames.iter().try_for_each(|frame| send_frame(&socket, link, frame))
}

/// Opens a packet socket that receives this protocol, in network byte order; 0: it receives nothing.
pub(super) fn packet_socket(protocol: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: takes integers and no pointer.
    let number = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, protocol) };
    if number < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just created this descriptor; it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Returns the socket address for a protocol on a link.
pub(super) fn on_link(link: u32, ethertype: u16) -> io::Result<libc::sockaddr_ll> {
    // SAFETY: all-zero bytes are a valid `sockaddr_ll`: it has integers and byte arrays only.
    let mut at: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    at.sll_family = libc::c_ushort::try_from(libc::AF_PACKET).expect("a small number");
    at.sll_protocol = ethertype.to_be();
    at.sll_ifindex = i32::try_from(link).map_err(io::Error::other)?;
    Ok(at)
}

/// Sends a frame by a link, at once or not at all: a guest that takes no frames from its tap does not hold up other work.
pub(super) fn send_frame(socket: &OwnedFd, link: u32, frame: &[u8]) -> io::Result<()> {
    let ethertype = frame.get(12..14).and_then(|bytes| bytes.try_into().ok()).map_or(0, u16::from_be_bytes);
    let to = on_link(link, ethertype)?;
    let size = libc::socklen_t::try_from(size_of::<libc::sockaddr_ll>()).expect("a small number");
    // SAFETY: the kernel reads the frame and the address, both of which live until the call returns, and not beyond the
    // sizes given.
    let sent = unsafe {
        libc::sendto(
            socket.as_raw_fd(),
            frame.as_ptr().cast(),
            frame.len(),
            libc::MSG_DONTWAIT,
            (&raw const to).cast(),
            size,
        )
    };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Builds a broadcast ARP packet from `sender` about `target`.
pub(super) fn frame(mac: [u8; 6], sender: Ipv4Addr, target: Ipv4Addr, operation: u8) -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend(mac);
    frame.extend(ETHERTYPE_ARP.to_be_bytes());
    // Hardware type Ethernet, protocol type IPv4, their address lengths.
    frame.extend([0, 1, 8, 0, 6, 4, 0, operation]);
    frame.extend(mac);
    frame.extend(sender.octets());
    frame.extend(if operation == ASKS { [0; 6] } else { [0xff; 6] });
    frame.extend(target.octets());
    // The minimum length of an Ethernet frame.
    frame.resize(60, 0);
    frame
}
