//! Addresses of bridged networks that other machines were found to have.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// How long an answer counts. It is longer than the interval at which a VM is looked at again, so that between two probes there is
/// a look without one, at which everything else that the VM declares is done.
const COUNTS_FOR: Duration = Duration::from_secs(15);
/// Interval at which a VM that waits for an address is looked at again.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// The addresses that were answered for, by the bridge of the host that leads to the network.
#[derive(Debug, Default)]
pub(crate) struct Conflicts {
    known: Mutex<BTreeMap<(String, IpAddr), Conflict>>,
}

#[derive(Debug)]
struct Conflict {
    /// For people.
    text: String,
    at: Instant,
}

impl Conflicts {
    pub(crate) fn record(&self, bridge: &str, address: IpAddr, text: String) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, conflict| conflict.at.elapsed() < COUNTS_FOR);
        known.insert((bridge.to_owned(), address), Conflict { text, at: Instant::now() });
    }

    /// Returns what is known of an address that another machine has answered for just now.
    pub(crate) fn recent(&self, bridge: &str, address: IpAddr) -> Option<String> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let conflict = known.get(&(bridge.to_owned(), address))?;
        (conflict.at.elapsed() < COUNTS_FOR).then(|| conflict.text.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_conflict_counts_for_its_network_and_only_for_a_time() {
        let conflicts = Conflicts::default();
        let address: IpAddr = "192.0.2.50".parse().expect("an address");
        conflicts.record("vmbr0", address, "taken".to_owned());
        assert_eq!(conflicts.recent("vmbr0", address).as_deref(), Some("taken"));
        assert_eq!(conflicts.recent("vmbr1", address), None, "another network");
        tokio::time::advance(LOOK_AGAIN).await;
        assert!(conflicts.recent("vmbr0", address).is_some());
        tokio::time::advance(LOOK_AGAIN).await;
        assert_eq!(conflicts.recent("vmbr0", address), None);
    }
}
