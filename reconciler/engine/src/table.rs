//! The objects of one kind as last seen, fed by lists and watch events. Synchronous: no I/O.
//!
//! ```text
//!  begin_list ─▶ list, insert … ─▶ end_list: synced; the keys that the list did not name are gone
//! ```
//!
//! Objects are ordered by key, so that equal contents are processed in the same order.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// The table that the module describes.
#[derive(Debug)]
pub struct Table<K, V> {
    objects: BTreeMap<K, Arc<V>>,
    /// While a list is in progress: the keys it has named so far.
    listed: Option<BTreeSet<K>>,
    synced: bool,
}

impl<K, V> Default for Table<K, V> {
    fn default() -> Self {
        Self { objects: BTreeMap::new(), listed: None, synced: false }
    }
}

impl<K: Ord + Clone, V> Table<K, V> {
    /// Returns the object with this key.
    pub fn get(&self, key: &K) -> Option<&Arc<V>> {
        self.objects.get(key)
    }

    /// Returns the copy of this key that the table has, for users of keys that share their memory.
    pub fn key(&self, key: &K) -> Option<&K> {
        self.objects.get_key_value(key).map(|(key, _)| key)
    }

    /// Returns all objects, in order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &Arc<V>)> {
        self.objects.iter()
    }

    /// Returns the objects from this key on, in order of their keys.
    pub fn iter_from(&self, key: K) -> impl Iterator<Item = (&K, &Arc<V>)> {
        self.objects.range(key..)
    }

    /// Inserts an object, which a list in progress names; returns the one it replaces.
    pub fn insert(&mut self, key: K, object: Arc<V>) -> Option<Arc<V>> {
        self.list(&key);
        self.objects.insert(key, object)
    }

    /// Removes and returns the object with this key.
    pub fn remove(&mut self, key: &K) -> Option<Arc<V>> {
        self.objects.remove(key)
    }

    /// Begins a list. A list in progress is dropped.
    pub fn begin_list(&mut self) {
        self.listed = Some(BTreeSet::new());
    }

    /// Records that the list in progress names this key.
    pub fn list(&mut self, key: &K) {
        if let Some(listed) = &mut self.listed {
            listed.insert(key.clone());
        }
    }

    /// Ends the list; returns the keys in the table that it did not name. The caller removes them.
    pub fn end_list(&mut self) -> Vec<K> {
        self.synced = true;
        let listed = self.listed.take().unwrap_or_default();
        self.objects.keys().filter(|key| !listed.contains(*key)).cloned().collect()
    }

    /// Whether a list has been completed.
    pub fn is_synced(&self) -> bool {
        self.synced
    }

    /// Whether a list is in progress, or none has been completed: an object that is inserted then may have existed before.
    pub fn is_listing(&self) -> bool {
        self.listed.is_some() || !self.synced
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_returns_the_keys_that_it_does_not_name() {
        let mut table = Table::default();
        table.insert("a", Arc::new(1));
        table.insert("b", Arc::new(1));
        table.insert("c", Arc::new(1));
        assert!(!table.is_synced());
        table.begin_list();
        assert!(table.is_listing());
        table.insert("a", Arc::new(2));
        table.list(&"b");
        assert_eq!(table.end_list(), ["c"]);
        assert!(table.is_synced() && !table.is_listing());
        assert_eq!(table.get(&"a"), Some(&Arc::new(2)));
        assert_eq!(table.iter_from("b").map(|(key, _)| *key).collect::<Vec<_>>(), ["b", "c"]);
    }

    #[test]
    fn the_copy_of_a_key_is_the_one_of_its_first_object() {
        let (first, second): (Arc<str>, Arc<str>) = ("a".into(), "a".into());
        let mut table = Table::default();
        assert_eq!(table.key(&second), None);
        table.insert(Arc::clone(&first), Arc::new(1));
        table.insert(Arc::clone(&second), Arc::new(2));
        assert!(table.key(&second).is_some_and(|key| Arc::ptr_eq(key, &first)));
    }

    #[test]
    fn a_list_that_starts_again_forgets_the_one_before() {
        let mut table = Table::default();
        table.begin_list();
        table.insert("a", Arc::new(1));
        table.begin_list();
        assert_eq!(table.end_list(), ["a"]);
    }
}
