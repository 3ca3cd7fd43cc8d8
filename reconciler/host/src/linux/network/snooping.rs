//! DHCP snooping: the IPv4 addresses that the DHCP servers of bridged networks lease to guests, read from the servers' answers.
//!
//! ```text
//!  guest ─ tap ─ bth-0a1b2c3d ─ btv-0a1b2c3d ═ btu-0a1b2c3d ─ vmbr0 ─ LAN
//!                                     ▲ a packet socket: frames that come from the LAN, without a tag, from a server's port
//! ```
//!
//! Frames that guests send do not count: they leave by this end of the pair, and the rules of each tap drop those from a server's
//! port. Frames with a VLAN tag are those of trunks.
//!
//! The leases are kept in a file, each with its length. An agent that was away has possibly missed that one was renewed: those of the
//! file count as renewed when they are read.

pub(super) mod ack;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::announce::packet_socket;
use super::listener::Listener;
use super::netlink::{Link, network};
use super::records_file::RecordsFile;
use super::socket_filter::{is, known, load, step, take};
use super::{Result, hardware_address, probe};
use crate::ExternalLease;
use ack::{Ack, CLIENT_PORT, FRAGMENT, SERVER_PORT};

/// The bytes of a frame that are looked at: more than any frame of DHCP has.
const MOST_BYTES: u32 = 2048;
/// The pause after a socket has failed: its link is down, and may be up again.
const AFTER_ERROR: Duration = Duration::from_secs(1);
/// A timer that waits longer is not needed.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 3600);
/// The ports of the answers of DHCP servers, and of the requests to them.
const FROM_SERVERS: (u16, u16) = (SERVER_PORT, CLIENT_PORT);
pub(super) const TO_SERVERS: (u16, u16) = (CLIENT_PORT, SERVER_PORT);
/// All protocols: a socket for a single one does not see what comes by a port of a bridge.
const EVERY_PROTOCOL: u16 = 3;
const ETHERTYPE_IPV4: u32 = 0x0800;
const UDP: u32 = 17;

/// The leases of guests, and the sockets that hear of them.
#[derive(Debug)]
pub(super) struct Snooping {
    file: RecordsFile<Record>,
    heard: Arc<Heard>,
    /// By bridge, on its port to its network.
    listeners: Mutex<BTreeMap<String, Listener>>,
}

/// The state that the sockets' tasks change.
#[derive(Debug, Default)]
struct Heard {
    leases: Mutex<Leases>,
    changed: Notify,
}

impl Heard {
    fn leases(&self) -> MutexGuard<'_, Leases> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A lease in the file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Record {
    bridge: String,
    mac: String,
    address: Ipv4Addr,
    seconds: u32,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    address: Ipv4Addr,
    seconds: u32,
    ends: Instant,
}

/// The last lease of each guest.
#[derive(Debug, Default)]
struct Leases {
    /// The MAC addresses of guests, by bridge. Leases of others are not kept.
    guests: BTreeMap<String, BTreeSet<String>>,
    /// By bridge and MAC address.
    held: BTreeMap<(String, String), Held>,
}

impl Leases {
    /// Expects leases of exactly these guests of a bridge from now on.
    fn expect(&mut self, bridge: &str, guests: BTreeSet<String>) {
        self.held.retain(|(of, mac), _| of != bridge || guests.contains(mac));
        match guests.is_empty() {
            true => drop(self.guests.remove(bridge)),
            false => drop(self.guests.insert(bridge.to_owned(), guests)),
        }
    }

    /// Keeps a lease in place of the one before. Returns whether it has another address or length, or ends that of another guest.
    fn hear(&mut self, bridge: &str, ack: Ack, now: Instant) -> bool {
        let mac = hardware_address(ack.mac);
        // A server gives an address out again before its lease is over if its client has released it: that one has it no more.
        let before = self.held.len();
        self.held.retain(|(of, other), held| of != bridge || *other == mac || held.address != ack.address);
        let has_ended = self.held.len() < before;
        if !self.guests.get(bridge).is_some_and(|guests| guests.contains(&mac)) {
            return has_ended;
        }
        let (address, seconds) = (ack.address, ack.seconds);
        let held = Held { address, seconds, ends: now + Duration::from_secs(seconds.into()) };
        let before = self.held.insert((bridge.to_owned(), mac), held);
        has_ended || before.is_none_or(|before| (before.address, before.seconds) != (address, seconds))
    }

    /// Adds a lease of the file, unless a later one of its guest has been heard.
    fn remember(&mut self, record: Record, now: Instant) {
        let Record { bridge, mac, address, seconds } = record;
        let held = Held { address, seconds, ends: now + Duration::from_secs(seconds.into()) };
        self.held.entry((bridge, mac)).or_insert(held);
    }

    /// Removes the leases that have ended. Returns whether there were any.
    fn forget_ended(&mut self, now: Instant) -> bool {
        let before = self.held.len();
        self.held.retain(|_, held| held.ends > now);
        self.held.len() < before
    }

    fn next_end(&self) -> Option<Instant> {
        self.held.values().map(|held| held.ends).min()
    }

    fn records(&self) -> Vec<Record> {
        let record = |((bridge, mac), held): (&(String, String), &Held)| Record {
            bridge: bridge.clone(),
            mac: mac.clone(),
            address: held.address,
            seconds: held.seconds,
        };
        self.held.iter().map(record).collect()
    }
}

impl Snooping {
    pub(super) fn new(file: PathBuf) -> Self {
        Self {
            file: RecordsFile::new(file, "the leases of guests"),
            heard: Arc::default(),
            listeners: Mutex::default(),
        }
    }

    /// Hears of the leases of exactly these guests of a bridge from now on. `port`: the bridge's port to its network.
    pub(super) fn listen(&self, bridge: &str, port: &Link, macs: &[String]) -> Result<()> {
        self.heard.leases().expect(bridge, macs.iter().cloned().collect());
        let mut listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        if macs.is_empty() {
            listeners.remove(bridge);
        } else if !listeners.get(bridge).is_some_and(|of| of.is_on(port.index)) {
            let failed = |error: io::Error| network("listen on", &port.name, error.to_string());
            let socket = open(port.index, FROM_SERVERS).map_err(failed)?;
            let task = tokio::spawn(hear(socket, bridge.to_owned(), self.heard.clone()));
            listeners.insert(bridge.to_owned(), Listener::new(port.index, task));
        }
        Ok(())
    }

    /// Forgets a bridge and its leases.
    pub(super) async fn forget(&self, bridge: &str) -> Result<()> {
        self.read().await?;
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner).remove(bridge);
        let records = {
            let mut leases = self.heard.leases();
            leases.expect(bridge, BTreeSet::new());
            leases.records()
        };
        self.file.write(records).await;
        Ok(())
    }

    /// Lists the leases that have not ended.
    pub(super) async fn leases(&self) -> Result<Vec<ExternalLease>> {
        self.read().await?;
        let records = {
            let mut leases = self.heard.leases();
            leases.forget_ended(Instant::now());
            leases.records()
        };
        self.file.write(records.clone()).await;
        let lease = |Record { bridge, mac, address, .. }| ExternalLease { bridge, mac, address };
        Ok(records.into_iter().map(lease).collect())
    }

    /// Waits until a guest has another lease than before, or one has ended.
    pub(super) async fn changed(&self) {
        // Those of the file end too.
        if let Err(error) = self.read().await {
            tracing::debug!(error = error.chain(), "the leases of guests cannot be read yet");
        }
        loop {
            let end = self.heard.leases().next_end();
            let latest = Instant::now() + LONGEST_WAIT;
            tokio::select! {
                () = self.heard.changed.notified() => return,
                () = tokio::time::sleep_until(end.map_or(latest, |end| end.min(latest))) => {
                    if self.heard.leases().forget_ended(Instant::now()) {
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
            let mut leases = self.heard.leases();
            records.iter().cloned().for_each(|record| leases.remember(record, now));
        };
        self.file.read(remember).await
    }
}

/// Hears of leases until the task is aborted.
async fn hear(socket: AsyncFd<OwnedFd>, bridge: String, heard: Arc<Heard>) {
    loop {
        let Some(received) = probe::next_packet(&socket, MOST_BYTES).await else { return };
        match received {
            Ok(frame) => {
                let ack = ack::parse(&frame);
                if ack.is_some_and(|ack| heard.leases().hear(&bridge, ack, Instant::now())) {
                    heard.changed.notify_one();
                }
            }
            Err(error) => {
                tracing::debug!(bridge, %error, "leases are not heard of");
                tokio::time::sleep(AFTER_ERROR).await;
            }
        }
        // A network with many answers does not hold up other work.
        tokio::task::yield_now().await;
    }
}

/// Opens a socket for the UDP packets between two ports that come by a link.
pub(super) fn open(link: u32, (from, to): (u16, u16)) -> io::Result<AsyncFd<OwnedFd>> {
    open_filtered(link, &mut udp_between(from, to))
}

/// Opens a socket for the frames on a link that a filter takes.
#[allow(unsafe_code, reason = "tokio has no safe function for it")]
pub(super) fn open_filtered(link: u32, filter: &mut [libc::sock_filter]) -> io::Result<AsyncFd<OwnedFd>> {
    // Bound to no protocol until the filter is there: the link may carry much other traffic.
    let socket = packet_socket(0)?;
    probe::filter(&socket, filter)?;
    probe::bind(&socket, link, EVERY_PROTOCOL)?;
    // SAFETY: the descriptor is owned by the AsyncFd, which deregisters it before it is closed.
    Ok(unsafe { AsyncFd::register_with_interest(socket, Interest::READABLE) }?)
}

/// Takes whole UDP packets from one port to another that have come by the link, without a tag.
fn udp_between(from: u16, to: u16) -> [libc::sock_filter; 17] {
    [
        known(libc::SKF_AD_PKTTYPE),
        is(libc::PACKET_OUTGOING.into(), 14, 0),
        known(libc::SKF_AD_VLAN_TAG_PRESENT),
        is(0, 0, 12),
        load(libc::BPF_H, 12),
        is(ETHERTYPE_IPV4, 0, 10),
        load(libc::BPF_B, 23),
        is(UDP, 0, 8),
        load(libc::BPF_H, 20),
        step(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, 6, 0, FRAGMENT.into()),
        // The length of the header of IPv4.
        step(libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH, 0, 0, 14),
        step(libc::BPF_LD | libc::BPF_H | libc::BPF_IND, 0, 0, 14),
        is(from.into(), 0, 3),
        step(libc::BPF_LD | libc::BPF_H | libc::BPF_IND, 0, 0, 16),
        is(to.into(), 0, 1),
        take(MOST_BYTES),
        take(0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    const BRIDGE: &str = "bth-0a1b2c3d";
    const MAC: [u8; 6] = [0x52, 0x54, 0, 0, 0, 3];

    fn ack(last: u8, seconds: u32) -> Ack {
        Ack { mac: MAC, address: Ipv4Addr::new(192, 0, 2, last), seconds }
    }

    fn guests() -> BTreeSet<String> {
        BTreeSet::from([hardware_address(MAC)])
    }

    fn addresses(leases: &Leases) -> Vec<String> {
        leases.records().iter().map(|record| record.address.to_string()).collect()
    }

    #[test]
    fn the_last_lease_of_a_guest_counts_until_it_ends_and_those_of_others_do_not() {
        let (mut leases, now) = (Leases::default(), Instant::now());
        let after = |seconds| now + Duration::from_secs(seconds);
        assert!(!leases.hear(BRIDGE, ack(7, 60), now), "nothing is expected");
        leases.expect(BRIDGE, guests());
        assert!(leases.hear(BRIDGE, ack(7, 60), now));
        assert!(!leases.hear("bth-99999999", ack(8, 60), now), "another network");
        let other = Ack { mac: [2, 0, 0, 0, 0, 9], ..ack(8, 60) };
        assert!(!leases.hear(BRIDGE, other, now), "another machine");
        assert!(!leases.hear(BRIDGE, ack(7, 60), after(30)), "renewed");
        assert!(!leases.forget_ended(after(89)));
        assert_eq!(addresses(&leases), ["192.0.2.7"]);
        assert!(leases.hear(BRIDGE, ack(9, 60), after(89)), "another address");
        assert_eq!(addresses(&leases), ["192.0.2.9"]);
        assert_eq!(leases.next_end(), Some(after(149)));
        assert!(leases.forget_ended(after(149)));
        assert_eq!((addresses(&leases).len(), leases.next_end()), (0, None));
        assert!(leases.hear(BRIDGE, ack(9, u32::MAX), now), "one without an end");
        leases.expect(BRIDGE, BTreeSet::new());
        assert_eq!(addresses(&leases), [""; 0], "the guest is gone");
    }

    #[test]
    fn an_address_that_is_leased_to_another_machine_is_the_first_guests_no_more() {
        let (mut leases, now) = (Leases::default(), Instant::now());
        let other = [0x52, 0x54, 0, 0, 0, 4];
        let to = |mac, last| Ack { mac, ..ack(last, 3600) };
        leases.expect(BRIDGE, BTreeSet::from([hardware_address(MAC), hardware_address(other)]));
        leases.expect("bth-99999999", guests());
        assert!(leases.hear(BRIDGE, to(MAC, 7), now) && leases.hear("bth-99999999", to(MAC, 7), now));
        assert!(leases.hear(BRIDGE, to(other, 7), now));
        let held = |leases: &Leases| -> Vec<String> {
            leases.records().into_iter().map(|record| format!("{} {}", record.bridge, record.mac)).collect()
        };
        let expected = format!("{BRIDGE} 52:54:00:00:00:04");
        assert_eq!(held(&leases), [expected.as_str(), "bth-99999999 52:54:00:00:00:03"], "by network");
        assert!(leases.hear(BRIDGE, to([2, 0, 0, 0, 0, 9], 7), now), "to a machine that is no guest");
        assert_eq!(held(&leases), ["bth-99999999 52:54:00:00:00:03"]);
    }

    #[tokio::test(start_paused = true)]
    async fn leases_are_there_after_a_restart_and_count_as_renewed_and_the_file_goes_with_the_last() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("network").join("leases.json");
        let snooping = Snooping::new(file.clone());
        snooping.heard.leases().expect(BRIDGE, guests());
        assert!(snooping.heard.leases().hear(BRIDGE, ack(7, 60), Instant::now()));
        assert_eq!(snooping.leases().await.expect("listed").len(), 1);

        let later = Snooping::new(file.clone());
        tokio::time::advance(Duration::from_secs(59)).await;
        let leases = later.leases().await.expect("listed");
        let [lease] = &leases[..] else { panic!("{leases:?}") };
        assert_eq!((lease.bridge.as_str(), lease.mac.as_str()), (BRIDGE, "52:54:00:00:00:03"));
        tokio::time::advance(Duration::from_secs(59)).await;
        assert_eq!(later.leases().await.expect("listed").len(), 1);
        later.changed().await;
        assert!(later.leases().await.expect("listed").is_empty() && !file.exists(), "it has ended");

        std::fs::write(&file, "[").expect("written");
        let damaged = Snooping::new(file.clone());
        assert!(damaged.leases().await.expect("listed").is_empty());
        damaged.heard.leases().expect(BRIDGE, guests());
        damaged.heard.leases().hear(BRIDGE, ack(7, 60), Instant::now());
        assert_eq!(damaged.leases().await.expect("listed").len(), 1);
        damaged.forget(BRIDGE).await.expect("forgotten");
        assert!(damaged.leases().await.expect("listed").is_empty() && !file.exists());
    }
}
