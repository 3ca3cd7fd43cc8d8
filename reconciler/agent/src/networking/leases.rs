//! Leases that DHCP servers of bridged networks, which are not berth's, have given to guests.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use berth_host::ExternalLease;

/// By bridge and MAC address.
type ByGuest = BTreeMap<(String, String), Ipv4Addr>;

/// The leases as the host listed them last.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    by_guest: Mutex<ByGuest>,
}

impl Leases {
    fn by_guest(&self) -> MutexGuard<'_, ByGuest> {
        self.by_guest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records what was listed. Returns the MAC addresses with other leases than before.
    pub(crate) fn record(&self, listed: &[ExternalLease]) -> BTreeSet<String> {
        let of_guest = |lease: &ExternalLease| ((lease.bridge.clone(), lease.mac.clone()), lease.address);
        let now: ByGuest = listed.iter().map(of_guest).collect();
        let before = std::mem::replace(&mut *self.by_guest(), now.clone());
        let differs = |guest: &&(String, String)| before.get(*guest) != now.get(*guest);
        before.keys().chain(now.keys()).filter(differs).map(|(_, mac)| mac.clone()).collect()
    }

    /// Returns the lease of a guest on a bridge.
    pub(crate) fn of(&self, bridge: &str, mac: &str) -> Option<Ipv4Addr> {
        self.by_guest().get(&(bridge.to_owned(), mac.to_ascii_lowercase())).copied()
    }

    pub(crate) fn has_any(&self) -> bool {
        !self.by_guest().is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_are_known_by_bridge_and_mac_and_changes_are_named_by_mac() {
        let lease = |last: u8, address: &str| ExternalLease {
            bridge: "bth-00004d".into(),
            mac: format!("52:54:00:00:00:0{last}"),
            address: address.parse().expect("an address"),
        };
        let macs = |found: BTreeSet<String>| found.into_iter().collect::<Vec<_>>();
        let leases = Leases::default();
        assert!(!leases.has_any());
        let first = [lease(1, "192.0.2.7"), lease(2, "192.0.2.8")];
        assert_eq!(leases.record(&first).len(), 2);
        assert!(leases.record(&first).is_empty());
        let changed = leases.record(&[lease(1, "192.0.2.9"), lease(2, "192.0.2.8")]);
        assert_eq!(macs(changed), ["52:54:00:00:00:01"]);
        assert_eq!(leases.of("bth-00004d", "52:54:00:00:00:01"), "192.0.2.9".parse().ok());
        assert_eq!(leases.of("bth-99999999", "52:54:00:00:00:01"), None);
        assert_eq!(leases.record(&[]).len(), 2);
    }
}
