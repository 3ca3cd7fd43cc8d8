//! The number of connections, in total and of each owner: an address, or a VM.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

/// Counts connections.
#[derive(Clone, Debug)]
pub(super) struct Places<K> {
    most: usize,
    most_of_owner: usize,
    taken: Arc<Mutex<HashMap<K, usize>>>,
}

/// The place of one connection; dropped, it is free again.
#[derive(Debug)]
pub(super) struct Place<K: Eq + Hash> {
    owner: K,
    taken: Arc<Mutex<HashMap<K, usize>>>,
}

impl<K: Clone + Eq + Hash> Places<K> {
    pub(super) fn new(most: usize, most_of_owner: usize) -> Self {
        Self { most, most_of_owner, taken: Arc::default() }
    }

    /// Returns a place for a connection of the owner; `None` if there is none.
    pub(super) fn take(&self, owner: K) -> Option<Place<K>> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let total: usize = taken.values().sum();
        let count = taken.get(&owner).copied().unwrap_or_default();
        if total >= self.most || count >= self.most_of_owner {
            return None;
        }
        taken.insert(owner.clone(), count + 1);
        Some(Place { owner, taken: self.taken.clone() })
    }
}

impl<K: Eq + Hash> Drop for Place<K> {
    fn drop(&mut self) {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = taken.get_mut(&self.owner) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_owner_does_not_take_every_place() {
        let places = Places::new(3, 2);
        let [a, b] = ["a", "b"];
        let first = places.take(a);
        let _second = places.take(a);
        assert!(first.is_some() && places.take(a).is_none(), "two of an owner");
        let _third = places.take(b);
        assert!(places.take(b).is_none(), "three in total");
        drop(first);
        assert!(places.take(b).is_some(), "a place is free again");
    }
}
