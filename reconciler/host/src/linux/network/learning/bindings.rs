//! The IPv6 addresses that guests have taken first. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv6Addr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

/// Most addresses of a guest on a network: of one that takes more, the one that it has not used for longest ends.
const MOST: usize = 16;
/// An address ends when its guest has not used it for this long: more than the time between two frames of a guest that does nothing but
/// keep its clock.
pub(super) const UNUSED_FOR: Duration = Duration::from_secs(2 * 3600);
/// The time from one probe for an address to the next.
const BETWEEN_PROBES: Duration = Duration::from_secs(10);

/// An address in the file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) bridge: String,
    pub(super) mac: String,
    pub(super) address: Ipv6Addr,
}

/// The answer to a guest's claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Claim {
    /// It has the address.
    Known,
    /// It has not, and does not get it now.
    Refused,
    /// It gets the address if no other machine of the network has it.
    Probe,
}

#[derive(Clone, Debug)]
struct Held {
    mac: String,
    used: Instant,
}

/// The addresses of guests.
#[derive(Debug, Default)]
pub(super) struct Bindings {
    /// The MAC addresses of guests, by bridge. Addresses of others are not kept.
    guests: BTreeMap<String, BTreeSet<String>>,
    /// By bridge and address.
    held: BTreeMap<(String, Ipv6Addr), Held>,
    /// The addresses that have been probed lately, and when they can be probed again.
    probed: BTreeMap<(String, Ipv6Addr), Instant>,
}

impl Bindings {
    /// Expects addresses of exactly these guests of a bridge from now on.
    pub(super) fn expect(&mut self, bridge: &str, guests: BTreeSet<String>) {
        self.held.retain(|(of, _), held| of != bridge || guests.contains(&held.mac));
        match guests.is_empty() {
            true => drop(self.guests.remove(bridge)),
            false => drop(self.guests.insert(bridge.to_owned(), guests)),
        }
    }

    fn is_expected(&self, bridge: &str, mac: &str) -> bool {
        self.guests.get(bridge).is_some_and(|guests| guests.contains(mac))
    }

    /// Decides about the address that a guest uses, or is about to take.
    pub(super) fn claim(&mut self, bridge: &str, mac: &str, address: Ipv6Addr, now: Instant) -> Claim {
        if !self.is_expected(bridge, mac) {
            return Claim::Refused;
        }
        let key = (bridge.to_owned(), address);
        if let Some(held) = self.held.get_mut(&key).filter(|held| held.used + UNUSED_FOR > now) {
            if held.mac != mac {
                return Claim::Refused;
            }
            held.used = now;
            return Claim::Known;
        }
        self.probed.retain(|_, again| *again > now);
        if self.probed.contains_key(&key) {
            return Claim::Refused;
        }
        self.probed.insert(key, now + BETWEEN_PROBES);
        Claim::Probe
    }

    /// Gives a guest the address that it has claimed. Returns whether it has got it.
    pub(super) fn bind(&mut self, bridge: &str, mac: &str, address: Ipv6Addr, now: Instant) -> bool {
        if !self.is_expected(bridge, mac) {
            return false;
        }
        let own = |(of, _): &(String, Ipv6Addr), held: &Held| of == bridge && held.mac == mac;
        let mut of_guest: Vec<(Instant, Ipv6Addr)> = self
            .held
            .iter()
            .filter(|(key, held)| own(key, held))
            .map(|(key, held)| (held.used, key.1))
            .collect();
        of_guest.sort();
        let surplus = (of_guest.len() + 1).saturating_sub(MOST);
        for (_, longest) in of_guest.into_iter().take(surplus) {
            self.held.remove(&(bridge.to_owned(), longest));
        }
        let key = (bridge.to_owned(), address);
        self.probed.remove(&key);
        self.held.insert(key, Held { mac: mac.to_owned(), used: now });
        true
    }

    /// Adds an address of the file, unless it has been taken since.
    pub(super) fn remember(&mut self, record: Record, now: Instant) {
        let Record { bridge, mac, address } = record;
        self.held.entry((bridge, address)).or_insert(Held { mac, used: now });
    }

    /// Removes the addresses that have not been used. Returns whether there were any.
    pub(super) fn forget_unused(&mut self, now: Instant) -> bool {
        let before = self.held.len();
        self.held.retain(|_, held| held.used + UNUSED_FOR > now);
        self.held.len() < before
    }

    /// Returns when the next address ends, unless it is used.
    pub(super) fn next_end(&self) -> Option<Instant> {
        self.held.values().map(|held| held.used + UNUSED_FOR).min()
    }

    /// Lists the addresses, in order.
    pub(super) fn records(&self) -> Vec<Record> {
        let record = |((bridge, address), held): (&(String, Ipv6Addr), &Held)| Record {
            bridge: bridge.clone(),
            mac: held.mac.clone(),
            address: *address,
        };
        self.held.iter().map(record).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BRIDGE: &str = "bth-0a1b2c3d";
    const ONE: &str = "52:54:00:00:00:03";
    const TWO: &str = "52:54:00:00:00:04";

    fn address(number: u16) -> Ipv6Addr {
        Ipv6Addr::new(0x2001, 0xdb8, 7, 0, 0, 0, 0, number)
    }

    fn two_guests() -> (Bindings, Instant) {
        let mut bindings = Bindings::default();
        bindings.expect(BRIDGE, [ONE, TWO].map(str::to_owned).into());
        (bindings, Instant::now())
    }

    fn addresses(bindings: &Bindings) -> Vec<Ipv6Addr> {
        bindings.records().into_iter().map(|record| record.address).collect()
    }

    #[test]
    fn the_first_guest_that_claims_an_address_keeps_it_while_it_uses_it() {
        let (mut bindings, now) = two_guests();
        let later = |seconds| now + Duration::from_secs(seconds);
        assert_eq!(bindings.claim("bth-99999999", ONE, address(7), now), Claim::Refused, "another network");
        assert_eq!(bindings.claim(BRIDGE, ONE, address(7), now), Claim::Probe);
        assert_eq!(bindings.claim(BRIDGE, TWO, address(7), now), Claim::Refused, "it is being probed");
        assert!(bindings.bind(BRIDGE, ONE, address(7), later(1)));
        assert_eq!(bindings.claim(BRIDGE, TWO, address(7), later(60)), Claim::Refused, "it is another's");
        assert_eq!(bindings.claim(BRIDGE, ONE, address(7), later(7000)), Claim::Known);
        assert!(!bindings.forget_unused(later(14_000)), "it has been used");
        assert_eq!(bindings.next_end(), Some(later(14_200)));
        assert!(bindings.forget_unused(later(14_200)));
        assert_eq!(bindings.claim(BRIDGE, TWO, address(7), later(14_200)), Claim::Probe);
        bindings.expect(BRIDGE, BTreeSet::from([ONE.to_owned()]));
        assert!(!bindings.bind(BRIDGE, TWO, address(7), later(14_201)), "the guest has gone meanwhile");
    }

    #[test]
    fn an_address_of_another_machine_is_probed_again_after_a_pause() {
        let (mut bindings, now) = two_guests();
        assert_eq!(bindings.claim(BRIDGE, ONE, address(7), now), Claim::Probe);
        let soon = now + BETWEEN_PROBES - Duration::from_secs(1);
        assert_eq!(bindings.claim(BRIDGE, ONE, address(7), soon), Claim::Refused);
        assert_eq!(bindings.claim(BRIDGE, ONE, address(8), soon), Claim::Probe, "another address");
        assert_eq!(bindings.claim(BRIDGE, ONE, address(7), now + BETWEEN_PROBES), Claim::Probe);
        assert!(addresses(&bindings).is_empty());
    }

    #[test]
    fn of_a_guest_with_many_addresses_the_longest_unused_ends_and_those_of_others_stay() {
        let (mut bindings, now) = two_guests();
        assert!(bindings.bind(BRIDGE, TWO, address(100), now));
        for number in 1..=16 {
            let at = now + Duration::from_secs(number.into());
            assert!(bindings.bind(BRIDGE, ONE, address(number), at));
        }
        let later = now + Duration::from_secs(60);
        assert_eq!(bindings.claim(BRIDGE, ONE, address(1), later), Claim::Known);
        assert!(bindings.bind(BRIDGE, ONE, address(17), later));
        let expected: Vec<Ipv6Addr> = [1].into_iter().chain(3..=17).chain([100]).map(address).collect();
        assert_eq!(addresses(&bindings), expected);
        bindings.expect(BRIDGE, BTreeSet::from([TWO.to_owned()]));
        assert_eq!(addresses(&bindings), [address(100)]);
    }
}
