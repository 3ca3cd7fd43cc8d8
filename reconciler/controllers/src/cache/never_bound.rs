//! Which VMs and Disks have certainly never been bound, although they may have the finalizer of a host.
//!
//! An object may be created with the finalizer, so the finalizer alone does not say that the object was bound. The cache has seen
//! an object from its beginning if it came by a watch event, outside of a list. Until a binding of it is seen or attempted, a host
//! that reports to have it is wrong.
//!
//! *Guarantees:* an object of which this is not known counts as possibly bound: after a start, or a new list, all that have the
//! finalizer do.

use std::collections::BTreeMap;

use crate::key::{Key, ObjectKind};

/// The set that the module describes, with the uid of each object. A tree, which becomes smaller: after a burst nearly all objects are
/// bound.
#[derive(Debug, Default)]
pub(super) struct NeverBound(BTreeMap<Key, String>);

impl NeverBound {
    /// Records an object that was cached. `is_created`: it was not there before, and no list is in progress.
    pub(super) fn seen(&mut self, key: &Key, uid: Option<&str>, is_bound: bool, is_created: bool) {
        if !matches!(key.kind, ObjectKind::VM | ObjectKind::Disk) {
            return;
        }
        let Some(uid) = uid else { return };
        if is_bound {
            self.0.remove(key);
        } else if is_created {
            self.0.insert(key.clone(), uid.to_owned());
        } else if self.0.get(key).is_some_and(|known| known != uid) {
            // An object of the same name, whose creation was not seen.
            self.0.remove(key);
        }
    }

    /// Records that an object is gone.
    pub(super) fn gone(&mut self, key: &Key) {
        self.0.remove(key);
    }

    /// Whether the object with this key has never been bound.
    pub(super) fn contains(&self, key: &Key) -> bool {
        self.0.contains_key(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_that_was_seen_from_its_creation_is_never_bound_until_its_first_binding() {
        let (mut never, vm) = (NeverBound::default(), Key::namespaced(ObjectKind::VM, "ns", "web"));
        never.seen(&vm, Some("u1"), false, true);
        never.seen(&vm, Some("u1"), false, false);
        assert!(never.contains(&vm));
        never.seen(&vm, Some("u1"), true, false);
        never.seen(&vm, Some("u1"), false, false);
        assert!(!never.contains(&vm), "it lost its status");
    }

    #[test]
    fn an_object_that_was_listed_or_took_the_place_of_another_may_have_been_bound() {
        let (mut never, vm) = (NeverBound::default(), Key::namespaced(ObjectKind::VM, "ns", "web"));
        never.seen(&vm, Some("u1"), false, false);
        assert!(!never.contains(&vm));
        never.gone(&vm);
        never.seen(&vm, Some("u2"), false, true);
        never.seen(&vm, Some("u3"), false, false);
        assert!(!never.contains(&vm));
    }
}
