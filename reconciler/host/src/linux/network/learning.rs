//! The IPv6 addresses of guests that get them from others than berth: first come, first served (RFC 6620).
//!
//! ```text
//!  guest ─ tap ─ bth-0a1b2c3d ─ btv-0a1b2c3d ═ btu-0a1b2c3d ─ vmbr0 ─ LAN
//!           ▲ neighbour discovery        ▲ probes of this host, and the claims of other machines
//! ```
//!
//! A guest claims an address when it looks for duplicates of it, or asks or answers neighbours from it. A packet socket sees the frame
//! before the rules of the tap drop it. Unless another guest of the network has the address here, the host looks for duplicates of it in
//! place of the guest: by the port to the network only, because a guest that hears of a probe gives the address up. If no machine answers,
//! the address is the guest's, until the guest has not used it for two hours.
//!
//! The addresses are kept in a file. An agent that was away has possibly missed that one was used: those of the file count as used when
//! they are read.

mod bindings;
mod frames;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::listener::Listener;
use super::netlink::{Link, Netlink, network};
use super::records_file::RecordsFile;
use super::{Result, hardware_address, probe, snooping};
use crate::{BridgedNetwork, LearnedAddress};
use bindings::{Bindings, Claim, Record};
use frames::MOST_BYTES;

/// The pause after a socket has failed: its link is down, and may be up again.
const AFTER_ERROR: Duration = Duration::from_secs(1);
/// A timer that waits longer is not needed.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 3600);

/// The addresses that guests have taken, and the sockets on their taps.
#[derive(Debug)]
pub(super) struct Learning {
    file: RecordsFile<Record>,
    learned: Arc<Learned>,
    /// By tap.
    guests: Mutex<BTreeMap<String, Guest>>,
}

/// The state that the sockets' tasks change.
#[derive(Debug, Default)]
struct Learned {
    bindings: Mutex<Bindings>,
    changed: Notify,
}

impl Learned {
    fn bindings(&self) -> MutexGuard<'_, Bindings> {
        self.bindings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A guest whose addresses are learned, with the socket once its tap is there.
#[derive(Debug)]
struct Guest {
    place: Place,
    listener: Option<Listener>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    bridge: String,
    /// Lower case.
    mac: String,
    /// The bridge's port to its network.
    port: u32,
}

impl Learning {
    pub(super) fn new(file: PathBuf) -> Self {
        Self {
            file: RecordsFile::new(file, "the addresses of guests"),
            learned: Arc::default(),
            guests: Mutex::default(),
        }
    }

    fn guests(&self) -> MutexGuard<'_, BTreeMap<String, Guest>> {
        self.guests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Learns the addresses of exactly these guests of a network from now on: of each as soon as its tap is there. `port`: the bridge's
    /// port to its network.
    pub(super) async fn learn(&self, netlink: &Netlink, port: &Link, wanted: &BridgedNetwork) -> Result<()> {
        // Before a claim is decided: an address of the file is another guest's.
        if !wanted.learned.is_empty() {
            self.read().await?;
        }
        let macs: BTreeSet<String> = wanted.learned.iter().map(|guest| guest.mac.clone()).collect();
        self.learned.bindings().expect(&wanted.bridge, macs);
        {
            let mut guests = self.guests();
            let is_wanted = |tap: &String| wanted.learned.iter().any(|guest| guest.tap == *tap);
            guests.retain(|tap, of| of.place.bridge != wanted.bridge || is_wanted(tap));
            for guest in &wanted.learned {
                let (bridge, mac) = (wanted.bridge.clone(), guest.mac.clone());
                let place = Place { bridge, mac, port: port.index };
                if guests.get(&guest.tap).is_none_or(|of| of.place != place) {
                    guests.insert(guest.tap.clone(), Guest { place, listener: None });
                }
            }
        }
        for guest in &wanted.learned {
            if let Some(link) = netlink.link(&guest.tap).await? {
                self.listen(&link)?;
            }
        }
        Ok(())
    }

    /// Opens the socket on a tap, if the addresses of its guest are learned and it has none.
    pub(super) fn listen(&self, tap: &Link) -> Result<()> {
        let mut guests = self.guests();
        let Some(of) = guests.get_mut(&tap.name) else { return Ok(()) };
        if of.listener.as_ref().is_some_and(|open| open.is_on(tap.index)) {
            return Ok(());
        }
        let failed = |error: io::Error| network("listen on", &tap.name, error.to_string());
        let socket = snooping::open_filtered(tap.index, &mut frames::discovery()).map_err(failed)?;
        let task = tokio::spawn(learn(socket, of.place.clone(), self.learned.clone()));
        of.listener = Some(Listener::new(tap.index, task));
        Ok(())
    }

    /// Forgets a bridge and the addresses of its guests.
    pub(super) async fn forget(&self, bridge: &str) -> Result<()> {
        self.read().await?;
        self.guests().retain(|_, of| of.place.bridge != bridge);
        let records = {
            let mut bindings = self.learned.bindings();
            bindings.expect(bridge, BTreeSet::new());
            bindings.records()
        };
        self.file.write(records).await;
        Ok(())
    }

    /// Lists the addresses that guests have.
    pub(super) async fn addresses(&self) -> Result<Vec<LearnedAddress>> {
        self.read().await?;
        let records = {
            let mut bindings = self.learned.bindings();
            bindings.forget_unused(Instant::now());
            bindings.records()
        };
        self.file.write(records.clone()).await;
        let address = |Record { bridge, mac, address }| LearnedAddress { bridge, mac, address };
        Ok(records.into_iter().map(address).collect())
    }

    /// Waits until a guest has taken another address, or has one no more.
    pub(super) async fn changed(&self) {
        // Those of the file end too.
        if let Err(error) = self.read().await {
            tracing::debug!(error = error.chain(), "the addresses of guests cannot be read yet");
        }
        loop {
            let end = self.learned.bindings().next_end();
            let latest = Instant::now() + LONGEST_WAIT;
            tokio::select! {
                () = self.learned.changed.notified() => return,
                () = tokio::time::sleep_until(end.map_or(latest, |end| end.min(latest))) => {
                    if self.learned.bindings().forget_unused(Instant::now()) {
                        return;
                    }
                }
            }
        }
    }

    /// Reads the file, once.
    async fn read(&self) -> Result<()> {
        let now = Instant::now();
        let remember = |records: &[Record]| {
            let mut bindings = self.learned.bindings();
            records.iter().cloned().for_each(|record| bindings.remember(record, now));
        };
        self.file.read(remember).await
    }
}

/// Learns the addresses of a guest, one after the other, until the task is aborted.
async fn learn(socket: AsyncFd<OwnedFd>, place: Place, learned: Arc<Learned>) {
    loop {
        let Some(received) = probe::next_packet(&socket, MOST_BYTES).await else { return };
        match received {
            Ok(frame) => {
                let claimed = frames::claimed(&frame);
                // The rules of the tap drop what has another MAC address.
                if let Some((mac, address)) = claimed.filter(|(mac, _)| hardware_address(*mac) == place.mac) {
                    decide(&place, mac, address, &learned).await;
                }
            }
            Err(error) => {
                tracing::debug!(bridge = place.bridge, %error, "the addresses of a guest are not learned");
                tokio::time::sleep(AFTER_ERROR).await;
            }
        }
        // A guest that sends all the time does not hold up other work.
        tokio::task::yield_now().await;
    }
}

/// Gives a guest the address that it claims, if no other machine has it.
async fn decide(place: &Place, mac: [u8; 6], address: Ipv6Addr, learned: &Learned) {
    let Place { bridge, mac: name, port } = place;
    if learned.bindings().claim(bridge, name, address, Instant::now()) != Claim::Probe {
        return;
    }
    match duplicate(*port, mac, address).await {
        Ok(None) => {
            if learned.bindings().bind(bridge, name, address, Instant::now()) {
                tracing::info!(bridge, mac = name, %address, "IPv6 address of a guest learned");
                learned.changed.notify_one();
            }
        }
        Ok(Some(other)) => {
            tracing::warn!(bridge, mac = name, %address, other, "a guest claims the address of another machine");
        }
        Err(error) => tracing::debug!(bridge, %address, %error, "an address cannot be probed"),
    }
}

/// Returns the MAC address of a machine beyond the port that has the address, or is about to take it.
async fn duplicate(port: u32, mac: [u8; 6], address: Ipv6Addr) -> io::Result<Option<String>> {
    let socket = snooping::open_filtered(port, &mut frames::discovery())?;
    // With the guest's MAC address, which switches know or are to know at this port.
    probe::ask(socket.get_ref(), port, (mac, &[]), IpAddr::V6(address)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    const BRIDGE: &str = "bth-0a1b2c3d";
    const MAC: &str = "52:54:00:00:00:03";

    fn address() -> Ipv6Addr {
        "2001:db8:7::77".parse().expect("an address")
    }

    fn take(learning: &Learning) {
        let mut bindings = learning.learned.bindings();
        bindings.expect(BRIDGE, BTreeSet::from([MAC.to_owned()]));
        assert_eq!(bindings.claim(BRIDGE, MAC, address(), Instant::now()), Claim::Probe);
        assert!(bindings.bind(BRIDGE, MAC, address(), Instant::now()));
    }

    #[tokio::test(start_paused = true)]
    async fn addresses_are_there_after_a_restart_and_count_as_used_and_the_file_goes_with_the_last() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("network").join("learned.json");
        let learning = Learning::new(file.clone());
        take(&learning);
        assert_eq!(learning.addresses().await.expect("listed").len(), 1);

        let later = Learning::new(file.clone());
        tokio::time::advance(bindings::UNUSED_FOR / 2).await;
        let expected = LearnedAddress { bridge: BRIDGE.into(), mac: MAC.into(), address: address() };
        assert_eq!(later.addresses().await.expect("listed"), [expected]);
        tokio::time::advance(bindings::UNUSED_FOR - Duration::from_secs(1)).await;
        assert_eq!(later.addresses().await.expect("listed").len(), 1);
        later.changed().await;
        assert!(later.addresses().await.expect("listed").is_empty() && !file.exists(), "it is not used");

        std::fs::write(&file, "[").expect("written");
        let damaged = Learning::new(file.clone());
        assert!(damaged.addresses().await.expect("listed").is_empty());
        take(&damaged);
        assert_eq!(damaged.addresses().await.expect("listed").len(), 1);
        damaged.forget(BRIDGE).await.expect("forgotten");
        assert!(damaged.addresses().await.expect("listed").is_empty() && !file.exists());
    }
}
