//! Probes a segment for the owner of an address before the address is taken (RFC 5227, section 2.1; RFC 4862, section 5.4 for IPv6):
//! two machines that answer for one address cut each other off.
#![allow(unsafe_code, reason = "packet sockets have no safe wrapper among our dependencies")]

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use tokio::io::unix::AsyncFd;

use super::announce::{ASKS, ETHERTYPE_ARP, frame, on_link, packet_socket, send_frame};
use super::discovery::{self, ADVERTISEMENT, ETHERTYPE_IPV6, ICMPV6, SOLICITATION};
use super::hardware_address;
use super::netlink::{Link, network};
use super::socket_filter::{is, load, take};
use crate::SystemError;

/// The number of probes, as a frame may get lost.
const PROBES: u32 = 3;
/// The delay between two probes, and after the last.
const WAIT: Duration = Duration::from_millis(250);
/// The bytes of a packet that are looked at.
const MOST_BYTES: u32 = 128;
/// The interval between checks for a reply.
const LOOK_EVERY: Duration = Duration::from_millis(25);

/// Returns the MAC address of another machine that answers for the address, or that probes for it because it is about
/// to take it.
///
/// Takes three quarters of a second if there is none. `own`: the MAC addresses of this host that may answer for it too.
pub(super) async fn occupant(
    link: &Link,
    own: &[[u8; 6]],
    address: IpAddr,
) -> Result<Option<String>, SystemError> {
    let Some(mac) = link.mac else { return Ok(None) };
    let failed = |error: io::Error| network("ask for an address on", &link.name, error.to_string());
    let socket = listening(link.index, address).map_err(failed)?;
    ask(&socket, link.index, (mac, own), address).await.map_err(failed)
}

/// As [`occupant`], by a socket that receives the claims of other machines. `mac`: the sender of the probes, which is no other machine, nor is
/// one of `own`.
pub(super) async fn ask(
    socket: &OwnedFd,
    link: u32,
    (mac, own): ([u8; 6], &[[u8; 6]]),
    address: IpAddr,
) -> io::Result<Option<String>> {
    // From the unspecified address: a request with the address itself as its sender would be an announcement.
    let question = match address {
        IpAddr::V4(address) => frame(mac, Ipv4Addr::UNSPECIFIED, address, ASKS),
        IpAddr::V6(address) => discovery::probe(mac, address),
    };
    for _ in 0..PROBES {
        send_frame(socket, link, &question)?;
        for _ in 0..WAIT.as_millis() / LOOK_EVERY.as_millis() {
            tokio::time::sleep(LOOK_EVERY).await;
            while let Some(packet) = receive(socket, MOST_BYTES)? {
                let claimed = match address {
                    IpAddr::V4(address) => claims(&packet, address),
                    IpAddr::V6(address) => discovery::claims(&packet, address),
                };
                if let Some(other) = claimed.filter(|other| *other != mac && !own.contains(other)) {
                    return Ok(Some(hardware_address(other)));
                }
            }
        }
    }
    Ok(None)
}

/// Opens a socket that receives the packets of this link by which machines claim the address.
fn listening(link: u32, address: IpAddr) -> io::Result<OwnedFd> {
    let IpAddr::V6(address) = address else { return bound(link, ETHERTYPE_ARP) };
    // Bound to no protocol until the filter is there: the link may carry much other traffic.
    let socket = packet_socket(0)?;
    only_discovery(&socket)?;
    hear(&socket, link, address)?;
    bind(&socket, link, ETHERTYPE_IPV6)?;
    Ok(socket)
}

fn bound(link: u32, ethertype: u16) -> io::Result<OwnedFd> {
    let socket = packet_socket(ethertype.to_be().into())?;
    bind(&socket, link, ethertype)?;
    Ok(socket)
}

/// Drops all packets but solicitations and advertisements of neighbours.
fn only_discovery(socket: &OwnedFd) -> io::Result<()> {
    // The next header of IPv6, then the type of ICMPv6.
    let mut steps = [
        load(libc::BPF_B, 20),
        is(ICMPV6.into(), 0, 4),
        load(libc::BPF_B, 54),
        is(SOLICITATION.into(), 1, 0),
        is(ADVERTISEMENT.into(), 0, 1),
        take(MOST_BYTES),
        take(0),
    ];
    filter(socket, &mut steps)
}

/// Has the kernel drop the packets that this program does not take.
pub(super) fn filter(socket: &OwnedFd, steps: &mut [libc::sock_filter]) -> io::Result<()> {
    let len = u16::try_from(steps.len()).map_err(io::Error::other)?;
    let program = libc::sock_fprog { len, filter: steps.as_mut_ptr() };
    set(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
}

/// Has the card receive what is sent to nodes with this address, which none of this host's interfaces has.
fn hear(socket: &OwnedFd, link: u32, address: Ipv6Addr) -> io::Result<()> {
    let group = discovery::listens_to(address);
    let mut mr_address = [0; 8];
    mr_address[..group.len()].copy_from_slice(&group);
    let membership = libc::packet_mreq {
        mr_ifindex: i32::try_from(link).map_err(io::Error::other)?,
        mr_type: u16::try_from(libc::PACKET_MR_MULTICAST).expect("a small number"),
        mr_alen: u16::try_from(group.len()).expect("six"),
        mr_address,
    };
    set(socket, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &membership)
}

fn set<T>(socket: &OwnedFd, level: libc::c_int, name: libc::c_int, value: &T) -> io::Result<()> {
    let size = libc::socklen_t::try_from(size_of::<T>()).expect("a small number");
    // SAFETY: the kernel reads the value, and the filter that it may point to, which live until the call returns, and not beyond the size
    // given.
    let done = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const *value).cast(), size) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

pub(super) fn bind(socket: &OwnedFd, link: u32, ethertype: u16) -> io::Result<()> {
    let at = on_link(link, ethertype)?;
    let size = libc::socklen_t::try_from(size_of::<libc::sockaddr_ll>()).expect("a small number");
    // SAFETY: the kernel reads the address, which lives until the call returns, and not beyond the size given.
    if unsafe { libc::bind(socket.as_raw_fd(), (&raw const at).cast(), size) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Waits for the next packet and returns its first bytes. `None`: the socket can wait no more, because the program ends.
pub(super) async fn next_packet(socket: &AsyncFd<OwnedFd>, most: u32) -> Option<io::Result<Vec<u8>>> {
    loop {
        let mut ready = socket.readable().await.ok()?;
        match receive(socket.get_ref(), most).transpose() {
            None => ready.clear_ready(),
            received => return received,
        }
    }
}

/// Returns the first bytes of the next packet, if there is one.
fn receive(socket: &OwnedFd, most: u32) -> io::Result<Option<Vec<u8>>> {
    let mut packet = vec![0u8; most as usize];
    // SAFETY: the kernel writes into the buffer, which lives until the call returns, and not beyond its length.
    let got = unsafe {
        libc::recv(socket.as_raw_fd(), packet.as_mut_ptr().cast(), packet.len(), libc::MSG_DONTWAIT)
    };
    match usize::try_from(got) {
        Ok(length) => {
            packet.truncate(length);
            Ok(Some(packet))
        }
        Err(_) => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            error => Err(error),
        },
    }
}

/// Returns the sender's MAC address if this frame claims the address, or is about to. The bytes are untrusted.
fn claims(packet: &[u8], address: Ipv4Addr) -> Option<[u8; 6]> {
    let arp = packet.get(14..42)?;
    let is_arp = packet.get(12..14)? == ETHERTYPE_ARP.to_be_bytes() && arp[..6] == [0, 1, 8, 0, 6, 4];
    let sender = <[u8; 6]>::try_from(&arp[8..14]).ok()?;
    let (sender_address, target) = (&arp[14..18], &arp[24..28]);
    let has = sender_address == address.octets();
    let probes = sender_address == [0; 4] && target == address.octets();
    (is_arp && (has || probes)).then_some(sender)
}

#[cfg(test)]
mod tests {
    use super::super::announce::ANSWERS;
    use super::*;

    const MAC: [u8; 6] = [0x52, 0x54, 0, 0, 0, 9];

    #[test]
    fn an_answer_an_announcement_and_a_probe_claim_an_address_and_a_question_for_it_does_not() {
        let (mine, other) = (Ipv4Addr::new(192, 0, 2, 7), Ipv4Addr::new(192, 0, 2, 8));
        assert_eq!(claims(&frame(MAC, mine, mine, ANSWERS), mine), Some(MAC));
        assert_eq!(claims(&frame(MAC, mine, mine, ASKS), mine), Some(MAC));
        assert_eq!(claims(&frame(MAC, Ipv4Addr::UNSPECIFIED, mine, ASKS), mine), Some(MAC));
        assert_eq!(claims(&frame(MAC, other, mine, ASKS), mine), None, "somebody wants to reach it");
        assert_eq!(claims(&frame(MAC, other, other, ANSWERS), mine), None);
        for length in 0..60 {
            claims(&vec![0xff; length], mine);
        }
    }
}
