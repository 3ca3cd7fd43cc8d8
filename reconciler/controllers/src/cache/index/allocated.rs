//! The allocated IPv4 addresses of a network, whose lowest free one is known without a search.

use std::{collections::BTreeSet, net::Ipv4Addr};

/// The allocated addresses of a network.
#[derive(Debug, Default)]
pub(super) struct AllocatedAddresses {
    pub(super) addresses: BTreeSet<Ipv4Addr>,
    /// The first free address after the lowest allocated one.
    gap: u32,
}

impl AllocatedAddresses {
    pub(super) fn insert(&mut self, address: Ipv4Addr) {
        let lowest = self.addresses.first().copied();
        if !self.addresses.insert(address) {
            return;
        }
        let number = u32::from(address);
        match lowest {
            Some(lowest) if number + 1 == u32::from(lowest) => {}
            Some(lowest) if address > lowest && number != self.gap => {}
            _ => self.close_gap(number + 1),
        }
    }

    pub(super) fn remove(&mut self, address: Ipv4Addr) {
        let was_lowest = self.addresses.first() == Some(&address);
        if !self.addresses.remove(&address) {
            return;
        }
        let number = u32::from(address);
        match self.addresses.first() {
            Some(lowest) if was_lowest && number + 1 >= self.gap => self.close_gap(u32::from(*lowest) + 1),
            _ if was_lowest => {}
            _ => self.gap = self.gap.min(number),
        }
    }

    fn close_gap(&mut self, from: u32) {
        self.gap = from;
        while self.addresses.contains(&Ipv4Addr::from(self.gap)) {
            self.gap += 1;
        }
    }

    pub(super) fn lowest_free(&self, from: Ipv4Addr) -> Ipv4Addr {
        if self.addresses.contains(&from) && self.addresses.first() == Some(&from) {
            return self.gap.into();
        }
        from
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
}
