//! The number of connections, in total, of each owner (an address, or a VM), and of each namespace.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

/// Counts connections.
#[derive(Clone, Debug)]
pub(super) struct Places<K> {
    most: usize,
    most_of_owner: usize,
    most_of_namespace: usize,
    taken: Arc<Mutex<Taken<K>>>,
}

/// The numbers of the places that are taken.
#[derive(Debug)]
struct Taken<K> {
    by_owner: HashMap<K, usize>,
    by_namespace: HashMap<String, usize>,
}

/// The place of one connection; dropped, it is free again.
#[derive(Debug)]
pub(super) struct Place<K: Eq + Hash> {
    owner: K,
    namespace: Option<String>,
    taken: Arc<Mutex<Taken<K>>>,
}

impl<K: Clone + Eq + Hash> Places<K> {
    pub(super) fn new(most: usize, most_of_owner: usize) -> Self {
        let taken = Taken { by_owner: HashMap::new(), by_namespace: HashMap::new() };
        Self { most, most_of_owner, most_of_namespace: most, taken: Arc::new(Mutex::new(taken)) }
    }

    /// Places of which one namespace, however many owners it has, gets three quarters at most: the rest is left to others.
    pub(super) fn among_namespaces(most: usize, most_of_owner: usize) -> Self {
        Self { most_of_namespace: most - most / 4, ..Self::new(most, most_of_owner) }
    }

    /// Returns a place for a connection of the owner; `None` if there is none.
    pub(super) fn take(&self, owner: K) -> Option<Place<K>> {
        self.take_for(owner, None)
    }

    /// Returns a place for a connection of an owner in this namespace; `None` if there is none.
    pub(super) fn take_in(&self, namespace: &str, owner: K) -> Option<Place<K>> {
        self.take_for(owner, Some(namespace.to_owned()))
    }

    fn take_for(&self, owner: K, namespace: Option<String>) -> Option<Place<K>> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let total: usize = taken.by_owner.values().sum();
        let of_owner = taken.by_owner.get(&owner).copied().unwrap_or_default();
        let of_namespace = namespace.as_ref().and_then(|namespace| taken.by_namespace.get(namespace));
        let of_namespace = of_namespace.copied().unwrap_or_default();
        if total >= self.most || of_owner >= self.most_of_owner || of_namespace >= self.most_of_namespace {
            return None;
        }
        taken.by_owner.insert(owner.clone(), of_owner + 1);
        if let Some(namespace) = &namespace {
            taken.by_namespace.insert(namespace.clone(), of_namespace + 1);
        }
        Some(Place { owner, namespace, taken: self.taken.clone() })
    }
}

impl<K: Eq + Hash> Drop for Place<K> {
    fn drop(&mut self) {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        give_back(&mut taken.by_owner, &self.owner);
        if let Some(namespace) = &self.namespace {
            give_back(&mut taken.by_namespace, namespace);
        }
    }
}

fn give_back<K: Eq + Hash>(taken: &mut HashMap<K, usize>, of: &K) {
    if let Some(count) = taken.get_mut(of) {
        *count -= 1;
        if *count == 0 {
            taken.remove(of);
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

    #[test]
    fn one_namespace_with_many_owners_leaves_places_to_others() {
        let places = Places::among_namespaces(4, 2);
        let mut held: Vec<_> = ["a", "b", "c"].map(|owner| places.take_in("x", owner)).into();
        assert!(held.iter().all(Option::is_some), "three quarters");
        assert!(places.take_in("x", "d").is_none(), "the last place is not for this namespace");
        let other = places.take_in("y", "e");
        assert!(other.is_some() && places.take_in("z", "f").is_none(), "four in total");
        held.pop();
        assert!(places.take_in("x", "d").is_some(), "a place of the namespace is free again");
    }
}
