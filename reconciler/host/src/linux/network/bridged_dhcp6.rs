//! DHCPv6 for guests of bridged networks, as [`super::bridged_dhcp`] for IPv4: each host answers its own guests, and no other machine.
//!
//! ```text
//!  guest ─ tap ─ bth-0a1b2c3d ─ btv-0a1b2c3d ═ btu-0a1b2c3d ─ vmbr0 ─ LAN
//!           ▲ a packet socket: requests of DHCPv6 and router solicitations; answers and advertisements leave by the tap alone
//! ```
//!
//! A guest asks by DHCPv6 because of a router advertisement. The network's own ones do not reach it: the host sends one that names the
//! network's router and says that addresses are given out. The rules of each tap keep the guest's requests from the LAN.

pub(super) mod message;

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::unix::AsyncFd;
use tokio::time::Instant;

use super::answered_guests::AnsweredGuests;
use super::netlink::{Link, Netlink};
use super::{Result, announce, probe, snooping};
use crate::{BridgedNetwork, ServedIpv6Guest};

/// The pause after a socket has failed: its link is down, and may be up again.
const AFTER_ERROR: Duration = Duration::from_secs(1);
/// The pause after an answer: a guest that asks all the time does not hold up other work.
const BETWEEN_ANSWERS: Duration = Duration::from_millis(20);
/// The time from one advertisement to the next that no guest has asked for: a third of the time for which it counts.
const BETWEEN_ADVERTISEMENTS: Duration = Duration::from_secs(600);

/// The guests that get their IPv6 addresses from this host, and the sockets on their taps.
#[derive(Debug, Default)]
pub(super) struct BridgedDhcp6 {
    guests: AnsweredGuests<ServedIpv6Guest>,
}

impl BridgedDhcp6 {
    /// Answers exactly these guests of a network from now on: each as soon as its tap is there.
    pub(super) async fn serve(&self, netlink: &Netlink, wanted: &BridgedNetwork) -> Result<()> {
        let guests = wanted.served_ipv6.iter().map(|guest| (guest.tap.as_str(), guest)).collect();
        self.guests.set(&wanted.bridge, &guests);
        for guest in &wanted.served_ipv6 {
            if let Some(link) = netlink.link(&guest.tap).await? {
                self.listen(&link)?;
            }
        }
        Ok(())
    }

    /// Answers no guest of this bridge any more.
    pub(super) fn forget(&self, bridge: &str) {
        self.guests.forget(bridge);
    }

    /// Opens the socket on a tap, if its guest is to be answered and it has none.
    pub(super) fn listen(&self, tap: &Link) -> Result<()> {
        self.guests.listen(tap, |own, guest| {
            let socket = snooping::open_filtered(tap.index, &mut message::requests())?;
            Ok(tokio::spawn(answer(socket, tap.index, own, guest)))
        })
    }
}

/// Answers a guest until the task is aborted.
async fn answer(socket: AsyncFd<OwnedFd>, link: u32, own: [u8; 6], guest: Arc<Mutex<ServedIpv6Guest>>) {
    let current = || guest.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let send = |frame: Vec<u8>| announce::send_frame(socket.get_ref(), link, &frame);
    let mut advertise_at = Instant::now();
    loop {
        let answered = tokio::select! {
            received = probe::next_packet(&socket, message::MOST_BYTES) => match received {
                Some(Ok(request)) => message::answer(&request, &current(), own).map_or(Ok(()), send),
                Some(Err(error)) => Err(error),
                None => return,
            },
            () = tokio::time::sleep_until(advertise_at) => {
                advertise_at = Instant::now() + BETWEEN_ADVERTISEMENTS;
                message::advertisement(&current(), own).map_or(Ok(()), send)
            }
        };
        match answered {
            Ok(()) => tokio::time::sleep(BETWEEN_ANSWERS).await,
            Err(error) => {
                tracing::debug!(link, %error, "a guest's request for its IPv6 address is not answered");
                tokio::time::sleep(AFTER_ERROR).await;
            }
        }
    }
}
