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

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::unix::AsyncFd;
use tokio::task::JoinHandle;

use super::bridged_dhcp6::BridgedDhcp6;
use super::netlink::{Link, Netlink, network};
use super::{Result, announce, bridge_mac, probe, snooping};
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
    /// By tap.
    served: Mutex<BTreeMap<String, Served>>,
    ipv6: BridgedDhcp6,
}

/// A guest that is answered, with the socket once its tap is there.
#[derive(Debug)]
struct Served {
    bridge: String,
    guest: Arc<Mutex<ServedGuest>>,
    listener: Option<Listener>,
}

#[derive(Debug)]
struct Listener {
    link: u32,
    task: JoinHandle<()>,
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl BridgedDhcp {
    fn served(&self) -> MutexGuard<'_, BTreeMap<String, Served>> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers exactly these guests of a network from now on: each as soon as its tap is there.
    pub(super) async fn serve(&self, netlink: &Netlink, wanted: &BridgedNetwork) -> Result<()> {
        {
            let mut served = self.served();
            let is_wanted = |tap: &String| wanted.served.iter().any(|guest| guest.tap == *tap);
            served.retain(|tap, of| of.bridge != wanted.bridge || is_wanted(tap));
            for guest in &wanted.served {
                match served.get(&guest.tap) {
                    Some(of) if of.bridge == wanted.bridge => {
                        *of.guest.lock().unwrap_or_else(PoisonError::into_inner) = guest.clone();
                    }
                    _ => {
                        let guest_of_tap = Arc::new(Mutex::new(guest.clone()));
                        let bridge = wanted.bridge.clone();
                        let of = Served { bridge, guest: guest_of_tap, listener: None };
                        served.insert(guest.tap.clone(), of);
                    }
                }
            }
        }
        for guest in &wanted.served {
            if let Some(link) = netlink.link(&guest.tap).await? {
                self.listen(&link)?;
            }
        }
        self.ipv6.serve(netlink, wanted).await
    }

    /// Answers no guest of this bridge any more.
    pub(super) fn forget(&self, bridge: &str) {
        self.served().retain(|_, of| of.bridge != bridge);
        self.ipv6.forget(bridge);
    }

    /// Opens the socket on a tap, if its guest is to be answered and it has none.
    pub(super) fn listen(&self, tap: &Link) -> Result<()> {
        self.ipv6.listen(tap)?;
        let mut served = self.served();
        let Some(of) = served.get_mut(&tap.name) else { return Ok(()) };
        if of.listener.as_ref().is_some_and(|open| open.link == tap.index && !open.task.is_finished()) {
            return Ok(());
        }
        let failed = |error: io::Error| network("listen on", &tap.name, error.to_string());
        let socket = snooping::open(tap.index, snooping::TO_SERVERS).map_err(failed)?;
        let own = bridge_mac(&of.bridge);
        let task = tokio::spawn(answer(socket, tap.index, own, of.guest.clone()));
        of.listener = Some(Listener { link: tap.index, task });
        Ok(())
    }
}

/// Answers a guest until the task is aborted.
async fn answer(socket: AsyncFd<OwnedFd>, link: u32, own: [u8; 6], guest: Arc<Mutex<ServedGuest>>) {
    loop {
        let received = {
            let Ok(mut ready) = socket.readable().await else { return };
            let received = probe::receive(socket.get_ref(), MOST_BYTES);
            if matches!(received, Ok(None)) {
                ready.clear_ready();
            }
            received
        };
        let answered = match received {
            Ok(Some(request)) => {
                let answer = {
                    let guest = guest.lock().unwrap_or_else(PoisonError::into_inner);
                    message::answer(&request, &guest, own)
                };
                answer.map_or(Ok(()), |answer| announce::send_frame(socket.get_ref(), link, &answer))
            }
            Ok(None) => continue,
            Err(error) => Err(error),
        };
        match answered {
            Ok(()) => tokio::time::sleep(BETWEEN_ANSWERS).await,
            Err(error) => {
                tracing::debug!(link, %error, "a guest's request for its address is not answered");
                tokio::time::sleep(AFTER_ERROR).await;
            }
        }
    }
}
