//! Tells a segment that an address is here now: gratuitous ARP (RFC 5227, section 3), so that whoever knew it elsewhere
//! sends here from now on.
//!
//! A frame may get lost and a switch may just be learning: each address is told of three times within a few seconds
//! when it comes, and again every few minutes. What was told is not kept over a restart, so a new agent tells all.
#![allow(unsafe_code, reason = "packet sockets have no safe wrapper among our dependencies")]

use std::collections::BTreeMap;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::netlink::{Link, network};
use crate::system::SystemError;

/// After the first time.
const AGAIN: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(3)];
/// Less than the time between two looks at everything, so that each such look tells again.
const KNOWN_FOR: Duration = Duration::from_secs(240);
pub(super) const ETHERTYPE_ARP: u16 = 0x0806;
pub(super) const ASKS: u8 = 1;
pub(super) const ANSWERS: u8 = 2;

/// What was told, and when last.
#[derive(Clone, Debug, Default)]
pub(super) struct Announcer {
    told: Arc<Mutex<BTreeMap<Ipv4Addr, Told>>>,
}

#[derive(Clone, Copy, Debug)]
struct Told {
    at: Instant,
    link: u32,
}

impl Announcer {
    fn told(&self) -> MutexGuard<'_, BTreeMap<Ipv4Addr, Told>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets every other address: it may be another host's by now.
    pub(super) fn only(&self, addresses: &[Ipv4Addr]) {
        self.told().retain(|address, _| addresses.contains(address));
    }

    /// Tells of those that were not told of lately.
    pub(super) fn announce(&self, link: &Link, addresses: &[Ipv4Addr]) -> Result<(), SystemError> {
        let Some(mac) = link.mac else { return Ok(()) };
        let index = link.index;
        let (new, due): (Vec<Ipv4Addr>, Vec<Ipv4Addr>) = {
            let told = self.told();
            let lately = |address: &Ipv4Addr| {
                told.get(address).is_some_and(|told| told.link == index && told.at.elapsed() < KNOWN_FOR)
            };
            let due = addresses.iter().copied().filter(|address| !lately(address));
            due.partition(|address| !told.contains_key(address))
        };
        let failed = |error: io::Error| network("announce addresses on", &link.name, error.to_string());
        for address in new.iter().chain(&due) {
            send(index, mac, *address).map_err(failed)?;
            self.told().insert(*address, Told { at: Instant::now(), link: index });
        }
        if !new.is_empty() {
            tracing::info!(addresses = ?new, interface = link.name, "public addresses announced");
            tokio::spawn(self.clone().repeat(index, mac, new));
        }
        Ok(())
    }

    async fn repeat(self, link: u32, mac: [u8; 6], addresses: Vec<Ipv4Addr>) {
        for wait in AGAIN {
            tokio::time::sleep(wait).await;
            for address in &addresses {
                let still = self.told().get(address).is_some_and(|told| told.link == link);
                // It was told once; what fails here is told again with the next look.
                if still && let Err(error) = send(link, mac, *address) {
                    tracing::debug!(%address, %error, "not announced again");
                }
            }
        }
    }
}

/// As a question and as an answer: some listen to one only.
fn send(link: u32, mac: [u8; 6], address: Ipv4Addr) -> io::Result<()> {
    let socket = arp_socket(0)?;
    for operation in [ASKS, ANSWERS] {
        send_frame(&socket, link, &frame(mac, address, address, operation))?;
    }
    Ok(())
}

/// A packet socket that hears this protocol, in network byte order; 0: nothing.
pub(super) fn arp_socket(protocol: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: takes integers and no pointer.
    let number = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, protocol) };
    if number < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just made this descriptor for us; nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// The address of ARP on a link.
pub(super) fn on_link(link: u32) -> io::Result<libc::sockaddr_ll> {
    // SAFETY: all-zero bytes are a valid `sockaddr_ll`: it has integers and byte arrays only.
    let mut at: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    at.sll_family = libc::c_ushort::try_from(libc::AF_PACKET).expect("a small number");
    at.sll_protocol = ETHERTYPE_ARP.to_be();
    at.sll_ifindex = i32::try_from(link).map_err(io::Error::other)?;
    Ok(at)
}

pub(super) fn send_frame(socket: &OwnedFd, link: u32, frame: &[u8]) -> io::Result<()> {
    let to = on_link(link)?;
    let size = libc::socklen_t::try_from(size_of::<libc::sockaddr_ll>()).expect("a small number");
    // SAFETY: the kernel reads the frame and the address, both of which live until the call returns, and not beyond the
    // sizes given.
    let sent = unsafe {
        libc::sendto(socket.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0, (&raw const to).cast(), size)
    };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// An ARP packet to all of the segment: from `sender`, about `target`.
pub(super) fn frame(mac: [u8; 6], sender: Ipv4Addr, target: Ipv4Addr, operation: u8) -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend(mac);
    frame.extend(ETHERTYPE_ARP.to_be_bytes());
    // Ethernet, IPv4, their lengths.
    frame.extend([0, 1, 8, 0, 6, 4, 0, operation]);
    frame.extend(mac);
    frame.extend(sender.octets());
    frame.extend(if operation == ASKS { [0; 6] } else { [0xff; 6] });
    frame.extend(target.octets());
    // The least that Ethernet carries.
    frame.resize(60, 0);
    frame
}
