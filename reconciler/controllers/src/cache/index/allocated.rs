//! The allocated addresses of a network, whose lowest free one is known without a search.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::{Ipv4Addr, Ipv6Addr},
};

/// An address of one family.
pub(super) trait Address: Copy + Ord {
    /// The address after this one. None: it is the last one.
    fn next(self) -> Option<Self>;
}

impl Address for Ipv4Addr {
    fn next(self) -> Option<Self> {
        u32::from(self).checked_add(1).map(Self::from)
    }
}

impl Address for Ipv6Addr {
    fn next(self) -> Option<Self> {
        u128::from(self).checked_add(1).map(Self::from)
    }
}

/// Takes the addresses that an object has anew, and gives back those that it has no more. One that it keeps is not touched: to find the
/// lowest free one again, all that follow it would be passed.
pub(super) fn move_allocated<A: Address>(
    networks: &mut HashMap<String, AllocatedAddresses<A>>,
    before: &[(String, A)],
    now: &[(String, A)],
) {
    // An object counts once for an address, however often it lists it.
    let first = |list: &[(String, A)], at: usize| !list[..at].contains(&list[at]);
    for (at, (network, address)) in before.iter().enumerate() {
        if !now.contains(&before[at])
            && first(before, at)
            && let Some(allocated) = networks.get_mut(network)
        {
            allocated.remove(*address);
        }
    }
    for (at, (network, address)) in now.iter().enumerate() {
        if !before.contains(&now[at]) && first(now, at) {
            networks.entry(network.clone()).or_default().insert(*address);
        }
    }
}

/// The allocated addresses of a network, of one family.
#[derive(Debug)]
pub(super) struct AllocatedAddresses<A> {
    pub(super) addresses: BTreeSet<A>,
    /// The number of further objects that have an address, which a late write of a former leader may cause: it is taken until the last of them
    /// gives it back.
    further: BTreeMap<A, usize>,
    /// The first free address after the lowest allocated one.
    gap: Option<A>,
    /// The number of addresses that searches have passed.
    #[cfg(test)]
    passed: usize,
}

impl<A> Default for AllocatedAddresses<A> {
    fn default() -> Self {
        Self {
            addresses: BTreeSet::new(),
            further: BTreeMap::new(),
            gap: None,
            #[cfg(test)]
            passed: 0,
        }
    }
}

impl<A: Address> AllocatedAddresses<A> {
    pub(super) fn insert(&mut self, address: A) {
        let lowest = self.addresses.first().copied();
        if !self.addresses.insert(address) {
            *self.further.entry(address).or_default() += 1;
            return;
        }
        match lowest {
            Some(lowest) if address.next() == Some(lowest) => {}
            Some(lowest) if address > lowest && self.gap != Some(address) => {}
            _ => self.close_gap(address),
        }
    }

    pub(super) fn remove(&mut self, address: A) {
        if let Some(further) = self.further.get_mut(&address) {
            *further -= 1;
            if *further == 0 {
                self.further.remove(&address);
            }
            return;
        }
        let was_lowest = self.addresses.first() == Some(&address);
        if !self.addresses.remove(&address) {
            return;
        }
        match self.addresses.first().copied() {
            // Between the removed address and the gap there was none.
            Some(lowest) if was_lowest && self.gap.is_some() && address.next() >= self.gap => {
                self.close_gap(lowest);
            }
            _ if was_lowest => {}
            _ => self.gap = Some(self.gap.map_or(address, |gap| gap.min(address))),
        }
    }

    /// Looks for the gap after an allocated address.
    fn close_gap(&mut self, after: A) {
        self.gap = after.next();
        while let Some(gap) = self.gap.filter(|gap| self.addresses.contains(gap)) {
            #[cfg(test)]
            {
                self.passed += 1;
            }
            self.gap = gap.next();
        }
    }

    /// Returns where to start the search for a free address that is not below `from`.
    pub(super) fn lowest_free(&self, from: A) -> A {
        match self.gap {
            Some(gap) if self.addresses.first() == Some(&from) => gap,
            _ => from,
        }
    }
}

#[cfg(test)]
mod tests {
    use berth_api::VM;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::{
        cache::{capacity::Demand, index::Index},
        key::{Key, ObjectKind},
    };

    proptest! {
        #[test]
        fn the_lowest_free_address_is_the_one_a_search_finds(changes in prop::collection::vec((0u32..12, any::<bool>()), 0..60)) {
            let mut taken = AllocatedAddresses::default();
            for (address, insert) in changes {
                let address = Ipv4Addr::from(address + 100);
                if insert { taken.insert(address) } else { taken.remove(address) }
                for from in [100u32, 103] {
                    let search = (from..).map(Ipv4Addr::from).find(|a| !taken.addresses.contains(a));
                    let begin: u32 = taken.lowest_free(from.into()).into();
                    let found = (begin..).map(Ipv4Addr::from).find(|a| !taken.addresses.contains(a));
                    prop_assert_eq!(found, search);
                    if taken.addresses.first() == Some(&from.into()) {
                        prop_assert_eq!(Some(Ipv4Addr::from(begin)), search, "without a search");
                    }
                }
            }
        }
    }

    #[test]
    fn an_address_that_two_vms_have_is_taken_until_both_are_gone() {
        let key = |name: &str| Key::namespaced(ObjectKind::VM, "ns", name);
        let vm = |name: &str| -> VM {
            let interface = |name: &str| {
                json!({"name": name, "network": "ns/lan", "macAddress": "52:54:00:00:00:01", "address": "10.0.0.2",
                    "ipv6Address": "fd00::2"})
            };
            serde_json::from_value(json!({
                "metadata": {"name": name, "namespace": "ns"},
                "spec": {"class": "s", "disks": [], "networkInterfaces": []},
                "status": {"observedGeneration": 1, "interfaces": [interface("nic0"), interface("nic1")]},
            }))
            .expect("a VM")
        };
        let mut index = Index::default();
        let (ipv4, ipv6) = (Ipv4Addr::new(10, 0, 0, 2), "fd00::2".parse::<Ipv6Addr>().expect("an address"));
        let is_taken = |index: &Index| {
            (index.is_address_used("ns/lan", ipv4), index.is_ipv6_address_used("ns/lan", ipv6))
        };
        for name in ["a", "b"] {
            index.set_vm(&key(name), Some(&vm(name)), Demand::default());
        }
        index.set_vm(&key("b"), None, Demand::default());
        assert_eq!(is_taken(&index), (true, true), "the other VM has it");
        assert_eq!(index.lowest_free("ns/lan", ipv4), Ipv4Addr::new(10, 0, 0, 3));
        index.set_vm(&key("a"), None, Demand::default());
        assert_eq!(is_taken(&index), (false, false));
    }

    #[test]
    fn a_vm_that_changes_and_keeps_its_addresses_has_no_address_looked_for() {
        let key = |number: u16| Key::namespaced(ObjectKind::VM, "ns", &format!("vm-{number}"));
        let vm = |number: u16, epoch: i64| -> VM {
            let [high, low] = number.to_be_bytes();
            serde_json::from_value(json!({
                "metadata": {"name": format!("vm-{number}"), "namespace": "ns"},
                "spec": {"class": "s", "disks": [], "networkInterfaces": []},
                "status": {"observedGeneration": 1, "binding": {"host": format!("h{epoch}"), "epoch": epoch}, "interfaces": [{
                    "name": "nic0", "network": "ns/lan", "macAddress": format!("52:54:00:00:{high:02x}:{low:02x}"),
                    "address": format!("10.0.{high}.{low}"), "ipv6Address": format!("fd00::{number:x}"),
                }]},
            }))
            .expect("a VM")
        };
        let mut index = Index::default();
        for number in 2..1002 {
            index.set_vm(&key(number), Some(&vm(number, 1)), Demand::default());
        }
        let passed =
            |index: &Index| (index.addresses["ns/lan"].passed, index.ipv6_addresses["ns/lan"].passed);
        let before = passed(&index);
        for number in 2..1002 {
            index.set_vm(&key(number), Some(&vm(number, 2)), Demand::default());
        }
        assert_eq!(passed(&index), before);
        let first = Ipv4Addr::new(10, 0, 0, 2);
        assert_eq!(u32::from(index.lowest_free("ns/lan", first)), u32::from(first) + 1000);
        index.set_vm(&key(7), None, Demand::default());
        assert_eq!(index.lowest_free("ns/lan", first), Ipv4Addr::new(10, 0, 0, 7));
    }

    #[test]
    fn the_last_address_of_a_family_is_followed_by_none() {
        let last = Ipv6Addr::from(u128::MAX);
        let mut taken = AllocatedAddresses::default();
        taken.insert(last);
        assert_eq!(taken.lowest_free(last), last);
        taken.insert(Ipv6Addr::from(u128::MAX - 1));
        taken.remove(last);
        assert_eq!(taken.lowest_free(Ipv6Addr::from(u128::MAX - 1)), last);
    }
}
