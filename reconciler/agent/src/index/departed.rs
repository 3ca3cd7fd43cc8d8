//! Objects that were deleted before this host released them.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::ResourceExt;

use crate::key::ObjectName;

/// Objects of one kind that a watch reported as deleted, by uid, in their last known state.
#[derive(Debug)]
pub(crate) struct Departed<K>(BTreeMap<String, Arc<K>>);

impl<K> Default for Departed<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: ResourceExt> Departed<K> {
    pub(super) fn record(&mut self, object: Arc<K>) {
        if let Some(uid) = object.uid() {
            self.0.insert(uid, object);
        }
    }

    /// Removes the object's entry. Returns whether there was one.
    pub(crate) fn forget(&mut self, object: &K) -> bool {
        object.uid().is_some_and(|uid| self.0.remove(&uid).is_some())
    }

    pub(crate) fn contains(&self, object: &K) -> bool {
        object.uid().is_some_and(|uid| self.0.contains_key(&uid))
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<K>> {
        self.0.values()
    }

    pub(crate) fn named(&self, name: &ObjectName) -> Vec<Arc<K>> {
        let is_it = |object: &&Arc<K>| {
            object.name_any() == name.name && object.namespace().unwrap_or_default() == name.namespace
        };
        self.0.values().filter(is_it).cloned().collect()
    }
}
