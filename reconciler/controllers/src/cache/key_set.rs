//! A set of keys, in order.
//!
//! The index has several sets for each VM, and most of them have one key: a tree would take the room of eleven.

use crate::key::Key;

/// The set that the module describes.
#[derive(Debug, Default)]
pub(super) struct KeySet(Vec<Key>);

impl KeySet {
    pub(super) fn insert(&mut self, key: &Key) {
        let Err(position) = self.0.binary_search(key) else { return };
        if self.0.is_empty() {
            self.0.reserve_exact(1);
        }
        self.0.insert(position, key.clone());
    }

    pub(super) fn remove(&mut self, key: &Key) {
        if let Ok(position) = self.0.binary_search(key) {
            self.0.remove(position);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn first(&self) -> Option<&Key> {
        self.0.first()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Key> {
        self.0.iter()
    }
}

impl IntoIterator for KeySet {
    type Item = Key;
    type IntoIter = std::vec::IntoIter<Key>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::ObjectKind;

    #[test]
    fn keys_are_in_order_and_each_is_there_once() {
        let key = |name: &str| Key::namespaced(ObjectKind::VM, "ns", name);
        let mut set = KeySet::default();
        set.insert(&key("b"));
        assert_eq!(set.0.capacity(), 1);
        for name in ["c", "a", "b"] {
            set.insert(&key(name));
        }
        set.remove(&key("d"));
        assert!(set.iter().eq(&[key("a"), key("b"), key("c")]));
        set.remove(&key("a"));
        assert_eq!(set.first(), Some(&key("b")));
        set.remove(&key("b"));
        set.remove(&key("c"));
        assert!(set.is_empty());
    }
}
