//! Probes whether public addresses are free on the segment they are to be announced on. Probes run in their own tasks,
//! so that nothing waits for them, and enqueue the host's networks when they finish.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::key::Key;
use berth_engine::Queue;
use berth_host::System;

/// Interval at which an address taken by another machine is probed again.
pub(crate) const RETRY_TAKEN: Duration = Duration::from_secs(10);
/// Maximum number of concurrent probes; further addresses are probed when these have finished.
const AT_ONCE: usize = 32;

/// State of a probed address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Probe {
    Running,
    /// No machine answers for it.
    Free,
    /// This MAC address answered for it at this time.
    Taken(String, Instant),
}

impl Probe {
    fn is_due(probe: Option<&Self>) -> bool {
        match probe {
            None => true,
            Some(Self::Taken(_, at)) => at.elapsed() >= RETRY_TAKEN,
            Some(Self::Running | Self::Free) => false,
        }
    }
}

/// State of all addresses that are to be announced. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Probes {
    system: Arc<dyn System>,
    queue: Arc<Queue<Key>>,
    known: Arc<Mutex<Known>>,
}

/// The addresses that are probed on an interface.
#[derive(Debug, Default)]
struct Known {
    interface: String,
    probes: BTreeMap<IpAddr, Probe>,
}

impl Probes {
    pub(super) fn new(system: Arc<dyn System>, queue: Arc<Queue<Key>>) -> Self {
        Self { system, queue, known: Arc::default() }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the states on this interface: those on another one say nothing about it.
    pub(crate) fn on(&self, interface: &str) -> BTreeMap<IpAddr, Probe> {
        let known = self.known();
        if known.interface == interface { known.probes.clone() } else { BTreeMap::new() }
    }

    /// Whether [`Probes::ensure`] would change nothing for these addresses.
    pub(crate) fn is_settled(&self, interface: &str, wanted: &[IpAddr]) -> bool {
        let known = self.known();
        let Known { interface: before, probes } = &*known;
        let is_same = before == interface || probes.is_empty();
        is_same && probes.keys().all(|address| wanted.contains(address)) && due(probes, wanted).is_empty()
    }

    /// Probes each of these addresses on the interface, unless its state there is known and recent; forgets all others.
    pub(crate) fn ensure(&self, interface: &str, wanted: &[IpAddr]) {
        let mut known = self.known();
        if known.interface != interface {
            *known = Known { interface: interface.to_owned(), probes: BTreeMap::new() };
        }
        let known = &mut known.probes;
        known.retain(|address, _| wanted.contains(address));
        for address in due(known, wanted) {
            match known.get_mut(&address) {
                // It stays so until the probe finishes, so that its report does not flap. Meanwhile no other probe of it is due.
                Some(Probe::Taken(_, at)) => *at = Instant::now(),
                _ => drop(known.insert(address, Probe::Running)),
            }
            tokio::spawn(self.clone().probe(interface.to_owned(), address));
        }
    }

    async fn probe(self, interface: String, address: IpAddr) {
        let found = match self.system.occupant(&interface, address).await {
            Ok(None) => Probe::Free,
            Ok(Some(mac)) => {
                tracing::warn!(%address, mac, interface, "another machine answers for this public address");
                Probe::Taken(mac, Instant::now())
            }
            Err(error) => {
                tracing::warn!(%address, error = %error.chain(), "the probe of a public address failed");
                self.settle(&interface, address, None);
                self.queue.add_after(Key::networks(), RETRY_TAKEN);
                return;
            }
        };
        self.settle(&interface, address, Some(found));
        self.queue.add(Key::networks());
    }

    /// Records the result of a probe, unless the addresses are probed on another interface by now. None: it failed.
    fn settle(&self, interface: &str, address: IpAddr, found: Option<Probe>) {
        let mut known = self.known();
        if known.interface != interface {
            return;
        }
        match found {
            Some(found) => {
                if let Some(probe) = known.probes.get_mut(&address) {
                    *probe = found;
                }
            }
            None => drop(known.probes.remove(&address)),
        }
    }
}

/// Returns the addresses to probe now.
fn due(known: &BTreeMap<IpAddr, Probe>, wanted: &[IpAddr]) -> Vec<IpAddr> {
    let running = known.values().filter(|probe| **probe == Probe::Running).count();
    let due = wanted.iter().copied().filter(|address| Probe::is_due(known.get(address)));
    due.take(AT_ONCE.saturating_sub(running)).collect()
}

#[cfg(test)]
mod tests {
    use berth_engine::RuntimeClock;
    use berth_host::fake::FakeSystem;
    use jiff::Timestamp;
    use rand::{SeedableRng, rngs::StdRng};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_address_that_was_taken_is_probed_again_by_one_probe_at_a_time() {
        let system = Arc::new(FakeSystem::new(Arc::new(RuntimeClock::starting_at(Timestamp::UNIX_EPOCH))));
        let queue = Arc::new(Queue::new(Duration::from_secs(1), StdRng::seed_from_u64(1)));
        let probes = Probes::new(system, queue);
        let address = IpAddr::from([192, 0, 2, 7]);
        let taken = Probe::Taken("52:54:00:66:66:66".to_owned(), Instant::now());
        *probes.known() = Known { interface: "eth0".to_owned(), probes: BTreeMap::from([(address, taken)]) };
        assert!(probes.is_settled("eth0", &[address]));
        tokio::time::advance(RETRY_TAKEN).await;
        assert!(!probes.is_settled("eth0", &[address]), "it is due");
        probes.ensure("eth0", &[address]);
        assert!(probes.is_settled("eth0", &[address]), "it is being probed");
        assert!(matches!(probes.on("eth0")[&address], Probe::Taken(..)), "until there is an answer");
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_is_probed_again_on_another_interface() {
        let system = Arc::new(FakeSystem::new(Arc::new(RuntimeClock::starting_at(Timestamp::UNIX_EPOCH))));
        let queue = Arc::new(Queue::new(Duration::from_secs(1), StdRng::seed_from_u64(1)));
        let probes = Probes::new(system, queue);
        let address = IpAddr::from([192, 0, 2, 7]);
        probes.ensure("eth0", &[address]);
        probes.settle("eth0", address, Some(Probe::Free));
        assert!(probes.is_settled("eth0", &[address]) && !probes.is_settled("eth1", &[address]));
        assert!(probes.on("eth1").is_empty());
        probes.ensure("eth1", &[address]);
        assert_eq!(probes.on("eth1"), BTreeMap::from([(address, Probe::Running)]));
        probes.settle("eth0", address, Some(Probe::Free));
        assert_eq!(probes.on("eth1"), BTreeMap::from([(address, Probe::Running)]), "a late answer");
    }
}
