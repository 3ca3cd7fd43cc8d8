//! The objects of one kind, as a list and a watch tell them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_api::SHARED_NAMESPACE;
use kube::ResourceExt;

use crate::controllers::{Key, key::Watched};

/// The objects of one kind.
#[derive(Debug)]
pub(in crate::controllers) struct Cache<K> {
    pub(super) objects: BTreeMap<Key, Arc<K>>,
    /// While a list runs: what it has named so far.
    pub(super) listing: Option<BTreeSet<Key>>,
    pub(super) synced: bool,
}

impl<K> Default for Cache<K> {
    fn default() -> Self {
        Self { objects: BTreeMap::new(), listing: None, synced: false }
    }
}

impl<K: Watched> Cache<K> {
    pub(in crate::controllers) fn get(&self, key: &Key) -> Option<&Arc<K>> {
        self.objects.get(key)
    }

    pub(in crate::controllers) fn all(&self) -> impl Iterator<Item = &Arc<K>> {
        self.objects.values()
    }

    pub(in crate::controllers) fn named(&self, namespace: &str, name: &str) -> Option<&Arc<K>> {
        self.objects.get(&Key::namespaced(K::KIND, namespace, name))
    }

    pub(in crate::controllers) fn cluster(&self, name: &str) -> Option<&Arc<K>> {
        self.objects.get(&Key::cluster(K::KIND, name))
    }

    /// The object of that name in the namespace, else in `berth-shared`.
    pub(in crate::controllers) fn lookup(&self, namespace: &str, name: &str) -> Option<&Arc<K>> {
        self.named(namespace, name).or_else(|| self.named(SHARED_NAMESPACE, name))
    }

    /// Takes an object, unless a newer one is known and counts for more; tells whether it was taken.
    pub(super) fn put(&mut self, mut object: K, taken: Taken) -> bool {
        // Who owns which field is of no use here, and half of an object's memory.
        object.meta_mut().managed_fields = None;
        let key = Key::of(&object);
        if let Some(listing) = &mut self.listing {
            listing.insert(key.clone());
        }
        let known = self.objects.get(&key);
        if taken == Taken::IfNewer && known.is_some_and(|known| !is_newer(&object, known.as_ref())) {
            return false;
        }
        self.objects.insert(key, Arc::new(object));
        true
    }
}

/// Which of two states of an object counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    IfNewer,
    Always,
}

/// Whether `a` is newer than `b`: another object of the same name always is, the same one by its resourceVersion.
fn is_newer<K: Watched>(a: &K, b: &K) -> bool {
    let version = |object: &K| object.resource_version().and_then(|v| v.parse::<u64>().ok());
    match (a.uid() == b.uid(), version(a), version(b)) {
        (_, Some(a), Some(b)) => a > b,
        (same, ..) => !same || a.resource_version() != b.resource_version(),
    }
}
