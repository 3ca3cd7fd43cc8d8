//! Probes a segment for the owner of an address before the address is taken (RFC 5227, section 2.1): two machines that
//! answer for one address cut each other off.
#![allow(unsafe_code, reason = "packet sockets have no safe wrapper among our dependencies")]

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use super::announce::{ASKS, ETHERTYPE_ARP, arp_socket, frame, on_link, send_frame};
use super::netlink::{Link, network};
use crate::SystemError;

/// The number of probes, as a frame may get lost.
const PROBES: u32 = 3;
/// The delay between two probes, and after the last.
const WAIT: Duration = Duration::from_millis(250);
/// The interval between checks for a reply.
const LOOK_EVERY: Duration = Duration::from_millis(25);

/// Returns the MAC address of another machine that answers for the address, or that probes for it because it is about
/// to take it.
///
/// Takes three quarters of a second if there is none.
pub(super) async fn occupant(link: &Link, address: Ipv4Addr) -> Result<Option<String>, SystemError> {
    let Some(mac) = link.mac else { return Ok(None) };
    let failed = |error: io::Error| network("ask for an address on", &link.name, error.to_string());
    let socket = listening(link.index).map_err(failed)?;
    // From the unspecified address: a request with the address itself as its sender would be an announcement.
    let question = frame(mac, Ipv4Addr::UNSPECIFIED, address, ASKS);
    for _ in 0..PROBES {
        send_frame(&socket, link.index, &question).map_err(failed)?;
        for _ in 0..WAIT.as_millis() / LOOK_EVERY.as_millis() {
            tokio::time::sleep(LOOK_EVERY).await;
            while let Some(packet) = receive(&socket).map_err(failed)? {
                if let Some(other) = claims(&packet, address).filter(|other| *other != mac) {
                    let text: Vec<String> = other.iter().map(|byte| format!("{byte:02x}")).collect();
                    return Ok(Some(text.join(":")));
                }
            }
        }
    }
    Ok(None)
}

/// Opens a non-blocking socket that receives the ARP packets of this link.
fn listening(link: u32) -> io::Result<OwnedFd> {
    let socket = arp_socket(ETHERTYPE_ARP.to_be().into())?;
    let at = on_link(link)?;
    let size = libc::socklen_t::try_from(size_of::<libc::sockaddr_ll>()).expect("a small number");
    // SAFETY: the kernel reads the address, which lives until the call returns, and not beyond the size given.
    if unsafe { libc::bind(socket.as_raw_fd(), (&raw const at).cast(), size) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(socket)
}

/// Returns the next packet, if there is one.
fn receive(socket: &OwnedFd) -> io::Result<Option<Vec<u8>>> {
    let mut packet = vec![0u8; 128];
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
