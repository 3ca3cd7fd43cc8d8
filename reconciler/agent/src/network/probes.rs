//! Whether public addresses are free on the segment they are to be announced on: asked for aside, so that nothing else
//! waits, and told to the host's networks when it is known.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::queue::{Key, Queue};
use crate::system::System;

/// How often an address that somebody else has is asked for again.
pub(super) const ASK_AGAIN: Duration = Duration::from_secs(10);
/// Questions at the same time; the others are asked when these are answered.
const AT_ONCE: usize = 32;

/// What is known of an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Probe {
    /// Being asked for.
    Asked,
    /// Nobody has it.
    Free,
    /// This MAC address answers for it, as of then.
    Taken(String, Instant),
}

/// What is known of the addresses that are to be taken.
#[derive(Clone, Debug, Default)]
pub(crate) struct Probes {
    known: Arc<Mutex<BTreeMap<Ipv4Addr, Probe>>>,
}

impl Probes {
    fn known(&self) -> MutexGuard<'_, BTreeMap<Ipv4Addr, Probe>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn all(&self) -> BTreeMap<Ipv4Addr, Probe> {
        self.known().clone()
    }

    /// Asks for each of these on the interface, unless it is known or was asked for just now; forgets all others.
    pub(super) fn ask(
        &self,
        system: &Arc<dyn System>,
        queue: &Arc<Queue>,
        interface: &str,
        wanted: &[Ipv4Addr],
    ) {
        let mut known = self.known();
        known.retain(|address, _| wanted.contains(address));
        let running = known.values().filter(|probe| **probe == Probe::Asked).count();
        let due: Vec<Ipv4Addr> = wanted
            .iter()
            .copied()
            .filter(|address| match known.get(address) {
                None => true,
                Some(Probe::Taken(_, at)) => at.elapsed() >= ASK_AGAIN,
                Some(Probe::Asked | Probe::Free) => false,
            })
            .take(AT_ONCE.saturating_sub(running))
            .collect();
        for address in due {
            // One that was taken stays so until the answer: what is said of it does not come and go.
            if !matches!(known.get(&address), Some(Probe::Taken(..))) {
                known.insert(address, Probe::Asked);
            }
            let (probes, system, queue) = (self.clone(), system.clone(), queue.clone());
            let interface = interface.to_owned();
            tokio::spawn(async move {
                let found = match system.occupant(&interface, address).await {
                    Ok(None) => Probe::Free,
                    Ok(Some(mac)) => {
                        tracing::warn!(%address, mac, interface, "somebody else has this public address");
                        Probe::Taken(mac, Instant::now())
                    }
                    Err(error) => {
                        tracing::warn!(%address, error = %error.chain(), "cannot ask whether an address is free");
                        probes.known().remove(&address);
                        queue.add_after(Key::Network, ASK_AGAIN);
                        return;
                    }
                };
                if let Some(probe) = probes.known().get_mut(&address) {
                    *probe = found;
                }
                queue.add(Key::Network);
            });
        }
    }
}
