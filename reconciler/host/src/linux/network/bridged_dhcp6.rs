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

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::unix::AsyncFd;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::netlink::{Link, Netlink, network};
use super::{Result, announce, bridge_mac, probe, snooping};
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
    /// By tap.
    served: Mutex<BTreeMap<String, Served>>,
}

/// A guest that is answered, with the socket once its tap is there.
#[derive(Debug)]
struct Served {
    bridge: String,
    guest: Arc<Mutex<ServedIpv6Guest>>,
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

impl BridgedDhcp6 {
    fn served(&self) -> MutexGuard<'_, BTreeMap<String, Served>> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers exactly these guests of a network from now on: each as soon as its tap is there.
    pub(super) async fn serve(&self, netlink: &Netlink, wanted: &BridgedNetwork) -> Result<()> {
        {
            let mut served = self.served();
            let is_wanted = |tap: &String| wanted.served_ipv6.iter().any(|guest| guest.tap == *tap);
            served.retain(|tap, of| of.bridge != wanted.bridge || is_wanted(tap));
            for guest in &wanted.served_ipv6 {
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
        for guest in &wanted.served_ipv6 {
            if let Some(link) = netlink.link(&guest.tap).await? {
                self.listen(&link)?;
            }
        }
        Ok(())
    }

    /// Answers no guest of this bridge any more.
    pub(super) fn forget(&self, bridge: &str) {
        self.served().retain(|_, of| of.bridge != bridge);
    }

    /// Opens the socket on a tap, if its guest is to be answered and it has none.
    pub(super) fn listen(&self, tap: &Link) -> Result<()> {
        let mut served = self.served();
        let Some(of) = served.get_mut(&tap.name) else { return Ok(()) };
        if of.listener.as_ref().is_some_and(|open| open.link == tap.index && !open.task.is_finished()) {
            return Ok(());
        }
        let failed = |error: io::Error| network("listen on", &tap.name, error.to_string());
        let socket = snooping::open_filtered(tap.index, &mut message::requests()).map_err(failed)?;
        let own = bridge_mac(&of.bridge);
        let task = tokio::spawn(answer(socket, tap.index, own, of.guest.clone()));
        of.listener = Some(Listener { link: tap.index, task });
        Ok(())
    }
}

/// Answers a guest until the task is aborted.
async fn answer(socket: AsyncFd<OwnedFd>, link: u32, own: [u8; 6], guest: Arc<Mutex<ServedIpv6Guest>>) {
    let current = || guest.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let send = |frame: Vec<u8>| announce::send_frame(socket.get_ref(), link, &frame);
    let mut advertise_at = Instant::now();
    loop {
        let answered = tokio::select! {
            ready = socket.readable() => {
                let Ok(mut ready) = ready else { return };
                match probe::receive(socket.get_ref(), message::MOST_BYTES) {
                    Ok(Some(request)) => message::answer(&request, &current(), own).map_or(Ok(()), send),
                    Ok(None) => {
                        ready.clear_ready();
                        continue;
                    }
                    Err(error) => Err(error),
                }
            }
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
