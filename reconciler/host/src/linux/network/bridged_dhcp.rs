//! DHCP for guests of bridged networks: each host answers the requests of its own guests, and of no other machine.
//!
//! ```text
//!  guest ─ tap ─ bth-0a1b2c3d ─ btv-0a1b2c3d ═ btu-0a1b2c3d ─ vmbr0 ─ LAN
//!           ▲ a packet socket: requests of DHCP that come from the guest; answers leave by the tap alone
//! ```
//!
//! The bridge needs no address, and no frame of the LAN is looked at. The rules of each tap keep the guest's requests from the LAN, whose
//! DHCP server would answer too; a packet socket sees them before.

mod message;

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::unix::AsyncFd;

use super::answered_guests::AnsweredGuests;
use super::bridged_dhcp6::BridgedDhcp6;
use super::netlink::{Link, Netlink};
use super::{Result, announce, probe, snooping};
use crate::{BridgedNetwork, ServedGuest};

/// The bytes of a frame that are looked at.
const MOST_BYTES: u32 = 2048;
/// The pause after a socket has failed: its link is down, and may be up again.
const AFTER_ERROR: Duration = Duration::from_secs(1);
/// The pause after an answer: a guest that asks all the time does not hold up other work.
const BETWEEN_ANSWERS: Duration = Duration::from_millis(20);

/// The guests that get their addresses from this host, and the sockets on their taps.
#[derive(Debug, Default)]
pub(super) struct BridgedDhcp {
    guests: AnsweredGuests<ServedGuest>,
    ipv6: BridgedDhcp6,
}

impl BridgedDhcp {
    /// Answers exactly these guests of a network from now on: each as soon as its tap is there.
    pub(super) async fn serve(&self, netlink: &Netlink, wanted: &BridgedNetwork) -> Result<()> {
        let guests = wanted.served.iter().map(|guest| (guest.tap.as_str(), guest)).collect();
        self.guests.set(&wanted.bridge, &guests);
        for guest in &wanted.served {
            if let Some(link) = netlink.link(&guest.tap).await? {
                self.listen(&link)?;
            }
        }
        self.ipv6.serve(netlink, wanted).await
    }

    /// Answers no guest of this bridge any more.
    pub(super) fn forget(&self, bridge: &str) {
        self.guests.forget(bridge);
        self.ipv6.forget(bridge);
    }

    /// Opens the socket on a tap, if its guest is to be answered and it has none.
    pub(super) fn listen(&self, tap: &Link) -> Result<()> {
        self.ipv6.listen(tap)?;
        self.guests.listen(tap, |own, guest| {
            let socket = snooping::open(tap.index, snooping::TO_SERVERS)?;
            Ok(tokio::spawn(answer(socket, tap.index, own, guest)))
        })
    }
}

/// Answers a guest until the task is aborted.
async fn answer(socket: AsyncFd<OwnedFd>, link: u32, own: [u8; 6], guest: Arc<Mutex<ServedGuest>>) {
    loop {
        let Some(received) = probe::next_packet(&socket, MOST_BYTES).await else { return };
        let answered = received.and_then(|request| {
            let answer = {
                let guest = guest.lock().unwrap_or_else(PoisonError::into_inner);
                message::answer(&request, &guest, own)
            };
            answer.map_or(Ok(()), |answer| announce::send_frame(socket.get_ref(), link, &answer))
        });
        match answered {
            Ok(()) => tokio::time::sleep(BETWEEN_ANSWERS).await,
            Err(error) => {
                tracing::debug!(link, %error, "a guest's request for its address is not answered");
                tokio::time::sleep(AFTER_ERROR).await;
            }
        }
    }
}
