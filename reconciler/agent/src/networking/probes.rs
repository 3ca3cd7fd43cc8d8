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
    known: Arc<Mutex<BTreeMap<IpAddr, Probe>>>,
}

impl Probes {
    pub(super) fn new(system: Arc<dyn System>, queue: Arc<Queue<Key>>) -> Self {
        Self { system, queue, known: Arc::default() }
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<IpAddr, Probe>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn all(&self) -> BTreeMap<IpAddr, Probe> {
        self.known().clone()
    }

    /// Whether [`Probes::ensure`] would change nothing for these addresses.
    pub(crate) fn is_settled(&self, wanted: &[IpAddr]) -> bool {
        let known = self.known();
        known.keys().all(|address| wanted.contains(address)) && due(&known, wanted).is_empty()
    }

    /// Probes each of these addresses on the interface, unless its state is known and recent; forgets all others.
    pub(crate) fn ensure(&self, interface: &str, wanted: &[IpAddr]) {
        let mut known = self.known();
        known.retain(|address, _| wanted.contains(address));
        for address in due(&known, wanted) {
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
                self.known().remove(&address);
                self.queue.add_after(Key::networks(), RETRY_TAKEN);
                return;
            }
        };
        if let Some(probe) = self.known().get_mut(&address) {
            *probe = found;
        }
        self.queue.add(Key::networks());
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
        probes.known().insert(address, taken);
        assert!(probes.is_settled(&[address]));
        tokio::time::advance(RETRY_TAKEN).await;
        assert!(!probes.is_settled(&[address]), "it is due");
        probes.ensure("eth0", &[address]);
        assert!(probes.is_settled(&[address]), "it is being probed");
        assert!(matches!(probes.all()[&address], Probe::Taken(..)), "until there is an answer");
    }
}
