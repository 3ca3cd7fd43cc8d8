//! Addresses that guests were seen to send from, on networks whose addresses others than berth give out.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use berth_api::vm::ObservedAddresses;
use berth_host::ObservedPort;
use tokio::sync::watch;

use super::tap_of;

/// Most addresses of an interface, in the API.
const MOST: usize = 16;

type ByTap = BTreeMap<String, BTreeSet<IpAddr>>;

/// The addresses as last read.
#[derive(Debug)]
pub(crate) struct Senders {
    /// None: this agent has not read them yet.
    by_tap: Mutex<Option<ByTap>>,
    /// Whether there are taps whose addresses are read.
    expected: watch::Sender<bool>,
}

impl Default for Senders {
    fn default() -> Self {
        Self { by_tap: Mutex::default(), expected: watch::channel(false).0 }
    }
}

impl Senders {
    fn by_tap(&self) -> MutexGuard<'_, Option<ByTap>> {
        self.by_tap.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Expects addresses of exactly these taps from now on.
    pub(crate) fn watch(&self, ports: &[ObservedPort]) {
        let mut by_tap = self.by_tap();
        if ports.is_empty() {
            *by_tap = Some(ByTap::new());
        } else if let Some(by_tap) = by_tap.as_mut() {
            by_tap.retain(|tap, _| ports.iter().any(|port| port.tap == *tap));
        }
        drop(by_tap);
        self.expected.send_replace(!ports.is_empty());
    }

    /// Waits until there are taps whose addresses are read.
    pub(crate) async fn expected(&self) {
        let mut expected = self.expected.subscribe();
        // The sender is in `self`, so it cannot be dropped.
        let _ = expected.wait_for(|expected| *expected).await;
    }

    /// Whether they were read since this agent started.
    pub(crate) fn is_read(&self) -> bool {
        self.by_tap().is_some()
    }

    /// Records what was read. Returns the taps with other addresses than before.
    pub(crate) fn record(&self, read: ByTap) -> BTreeSet<String> {
        let mut by_tap = self.by_tap();
        let before = by_tap.take().unwrap_or_default();
        let none = BTreeSet::new();
        let of = |all: &ByTap, tap: &String| all.get(tap).unwrap_or(&none).clone();
        let taps: BTreeSet<&String> = before.keys().chain(read.keys()).collect();
        let changed = taps.into_iter().filter(|tap| of(&before, tap) != of(&read, tap));
        let changed = changed.cloned().collect();
        *by_tap = Some(read);
        changed
    }

    /// Returns the addresses of an instance, by the interfaces of these slots. None: they are not known yet.
    pub(crate) fn of(&self, instance: &str, slots: &BTreeMap<String, u8>) -> Option<Vec<ObservedAddresses>> {
        let by_tap = self.by_tap();
        let by_tap = by_tap.as_ref()?;
        let of_interface = |(name, slot): (&String, &u8)| {
            let addresses = by_tap.get(&tap_of(instance, *slot)).filter(|addresses| !addresses.is_empty())?;
            let addresses = addresses.iter().take(MOST).map(ToString::to_string).collect();
            Some(ObservedAddresses { name: name.clone(), addresses, leased_address: None })
        };
        Some(slots.iter().filter_map(of_interface).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(addresses: &[(&str, &str)]) -> ByTap {
        let mut by_tap = ByTap::new();
        for (tap, address) in addresses {
            by_tap.entry((*tap).to_owned()).or_default().insert(address.parse().expect("an address"));
        }
        by_tap
    }

    fn port(tap: &str) -> ObservedPort {
        ObservedPort { tap: tap.to_owned(), ipv4: true, ..ObservedPort::default() }
    }

    fn shown(senders: &Senders) -> Option<Vec<(String, Vec<String>)>> {
        let slots = BTreeMap::from([("nic0".to_owned(), 0), ("nic1".to_owned(), 3)]);
        let found = senders.of("i-0123456789ab", &slots)?;
        Some(found.into_iter().map(|one| (one.name, one.addresses)).collect())
    }

    #[test]
    fn addresses_are_known_by_interface_once_they_are_read_and_changes_are_named_by_tap() {
        let senders = Senders::default();
        senders.watch(&[port("btt01234567n3")]);
        assert!(shown(&senders).is_none() && !senders.is_read(), "the status keeps what it has");
        let first = [("btt01234567n3", "2001:db8::7"), ("btt01234567n3", "192.0.2.7")];
        assert_eq!(senders.record(read(&first)), BTreeSet::from(["btt01234567n3".to_owned()]));
        let addresses = vec!["192.0.2.7".to_owned(), "2001:db8::7".to_owned()];
        assert_eq!(shown(&senders), Some(vec![("nic1".to_owned(), addresses)]));
        assert!(senders.record(read(&first)).is_empty());
        assert_eq!(senders.record(ByTap::new()).len(), 1, "gone");
        assert_eq!(shown(&senders), Some(Vec::new()));
    }

    #[tokio::test]
    async fn nothing_is_read_while_no_tap_is_expected_and_a_tap_that_is_gone_has_no_addresses() {
        let senders = Senders::default();
        let waits = async || {
            tokio::select! { biased; () = senders.expected() => false, () = tokio::task::yield_now() => true }
        };
        assert!(waits().await);
        senders.watch(&[port("btt01234567n0")]);
        assert!(!waits().await);
        senders.record(read(&[("btt01234567n0", "192.0.2.7")]));
        senders.watch(&[port("btt89abcdefn0")]);
        assert_eq!(shown(&senders), Some(Vec::new()));
        senders.watch(&[]);
        assert!(waits().await);
    }
}
