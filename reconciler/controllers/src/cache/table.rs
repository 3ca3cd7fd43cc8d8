//! The cached objects of one kind: which of two states of an object takes precedence, and lookups by name.

use std::sync::Arc;

use berth_api::SHARED_NAMESPACE;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::{
    key::{Key, Watched},
    object::Object,
};

/// The objects of one kind.
#[derive(Debug)]
pub(crate) struct Table<K>(berth_engine::Table<Key, K>);

impl<K> Default for Table<K> {
    fn default() -> Self {
        Self(berth_engine::Table::default())
    }
}

impl<K: Watched> Table<K> {
    pub(crate) fn get(&self, key: &Key) -> Option<&Arc<K>> {
        self.0.get(key)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<K>> {
        self.0.iter().map(|(_, object)| object)
    }

    pub(crate) fn named(&self, namespace: &str, name: &str) -> Option<&Arc<K>> {
        self.0.get(&Key::namespaced(K::KIND, namespace, name))
    }

    pub(crate) fn cluster(&self, name: &str) -> Option<&Arc<K>> {
        self.0.get(&Key::cluster(K::KIND, name))
    }

    /// Returns the object of that name in the namespace, else in `berth-shared`.
    pub(crate) fn lookup(&self, namespace: &str, name: &str) -> Option<&Arc<K>> {
        self.named(namespace, name).or_else(|| self.named(SHARED_NAMESPACE, name))
    }

    /// Caches an object, unless a newer one is cached and takes precedence; returns whether it was cached.
    pub(super) fn put(&mut self, key: &Key, mut object: Arc<K>, precedence: Precedence) -> bool {
        // Field ownership is not used here, and is half of an object's memory.
        if object.meta().managed_fields.is_some() {
            Arc::make_mut(&mut object).meta_mut().managed_fields = None;
        }
        let cached = self.0.get(key);
        if precedence == Precedence::IfNewer
            && cached.is_some_and(|cached| !is_newer(object.as_ref(), cached.as_ref()))
        {
            self.0.list(key);
            return false;
        }
        self.0.insert(key.clone(), object);
        true
    }
}

/// A table of any kind.
pub(crate) trait AnyTable {
    fn is_synced(&self) -> bool;
    /// Whether a list is in progress, or none has been completed.
    fn is_listing(&self) -> bool;
    fn begin_list(&mut self);
    /// Records that the list in progress names this object.
    fn list(&mut self, key: &Key);
    /// Completes the list; returns the keys it did not name.
    fn end_list(&mut self) -> Vec<Key>;
    fn remove(&mut self, key: &Key);
    /// Returns the copy of this key that the table has.
    fn key(&self, key: &Key) -> Option<&Key>;
    fn object(&self, key: &Key) -> Option<Object>;
    fn meta(&self, key: &Key) -> Option<&ObjectMeta>;
}

impl<K: Watched> AnyTable for Table<K>
where
    Arc<K>: Into<Object>,
{
    fn is_synced(&self) -> bool {
        self.0.is_synced()
    }

    fn is_listing(&self) -> bool {
        self.0.is_listing()
    }

    fn begin_list(&mut self) {
        self.0.begin_list();
    }

    fn list(&mut self, key: &Key) {
        self.0.list(key);
    }

    fn end_list(&mut self) -> Vec<Key> {
        self.0.end_list()
    }

    fn remove(&mut self, key: &Key) {
        self.0.remove(key);
    }

    fn key(&self, key: &Key) -> Option<&Key> {
        self.0.key(key)
    }

    fn object(&self, key: &Key) -> Option<Object> {
        self.0.get(key).cloned().map(Into::into)
    }

    fn meta(&self, key: &Key) -> Option<&ObjectMeta> {
        self.0.get(key).map(|object| object.meta())
    }
}

/// Which of two states of an object takes precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Precedence {
    IfNewer,
    Always,
}

/// Whether `a` is newer than `b`: another object of the same name always is, the same one by its resourceVersion.
fn is_newer<K: Watched>(a: &K, b: &K) -> bool {
    let version = |object: &K| object.meta().resource_version.as_ref().and_then(|v| v.parse::<u64>().ok());
    match (a.meta().uid == b.meta().uid, version(a), version(b)) {
        (_, Some(a), Some(b)) => a > b,
        (same, ..) => !same || a.meta().resource_version != b.meta().resource_version,
    }
}
