//! The number of connections, in total and from each address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

/// Counts connections.
#[derive(Clone, Debug)]
pub(super) struct Places {
    most: usize,
    most_of_address: usize,
    taken: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

/// The place of one connection; dropped, it is free again.
#[derive(Debug)]
pub(super) struct Place {
    address: IpAddr,
    taken: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

impl Places {
    pub(super) fn new(most: usize, most_of_address: usize) -> Self {
        Self { most, most_of_address, taken: Arc::default() }
    }

    /// Returns a place for a connection from the address; `None` if there is none.
    pub(super) fn take(&self, address: IpAddr) -> Option<Place> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let total: usize = taken.values().sum();
        let count = taken.get(&address).copied().unwrap_or_default();
        if total >= self.most || count >= self.most_of_address {
            return None;
        }
        taken.insert(address, count + 1);
        Some(Place { address, taken: self.taken.clone() })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = taken.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_does_not_take_every_place() {
        let places = Places::new(3, 2);
        let [a, b] = [1, 2].map(|last| IpAddr::from([192, 0, 2, last]));
        let first = places.take(a);
        let _second = places.take(a);
        assert!(first.is_some() && places.take(a).is_none(), "two of an address");
        let _third = places.take(b);
        assert!(places.take(b).is_none(), "three in total");
        drop(first);
        assert!(places.take(b).is_some(), "a place is free again");
    }
}
