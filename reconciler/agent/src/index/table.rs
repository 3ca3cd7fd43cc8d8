//! The objects of one kind as last seen, and what a watch event changes in them.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::SHARED_NAMESPACE;
use kube::ResourceExt;
use kube::runtime::watcher::Event;

use crate::key::ObjectName;

/// The objects of one kind.
#[derive(Debug)]
pub(crate) struct Table<K> {
    objects: berth_engine::Table<ObjectName, K>,
    /// Objects that are being written, each with what its last watch event showed: it is usually that same write.
    in_flight: BTreeMap<ObjectName, Option<K>>,
}

impl<K> Default for Table<K> {
    fn default() -> Self {
        Self { objects: berth_engine::Table::default(), in_flight: BTreeMap::new() }
    }
}

/// An object before and after a change; at least one of the two is present.
#[derive(Debug)]
pub(crate) struct Change<K> {
    pub(crate) name: ObjectName,
    pub(crate) old: Option<Arc<K>>,
    pub(crate) new: Option<Arc<K>>,
}

impl<K: ResourceExt> Table<K> {
    pub(crate) fn get(&self, name: &ObjectName) -> Option<Arc<K>> {
        self.objects.get(name).cloned()
    }

    /// Returns the object of this name in this namespace, else in the shared one.
    pub(crate) fn find(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        self.get(&ObjectName::new(namespace, name))
            .or_else(|| self.get(&ObjectName::new(SHARED_NAMESPACE, name)))
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (&ObjectName, &Arc<K>)> {
        self.objects.iter()
    }

    /// Returns the objects of a namespace.
    pub(crate) fn in_namespace<'a>(
        &'a self,
        namespace: &'a str,
    ) -> impl Iterator<Item = (&'a ObjectName, &'a Arc<K>)> {
        let from_there = self.objects.iter_from(ObjectName::new(namespace, ""));
        from_there.take_while(move |(name, _)| name.namespace == namespace)
    }

    /// Whether the table holds the control plane's objects.
    pub(super) fn is_synced(&self) -> bool {
        self.objects.is_synced()
    }

    /// Records that the control plane does not have the kind, unless it had it before.
    pub(super) fn set_unserved(&mut self) {
        if !self.objects.is_synced() {
            self.objects.begin_list();
            self.objects.end_list();
        }
    }

    /// Applies a watch event. Returns the actual changes.
    pub(super) fn apply(&mut self, event: Event<K>) -> Vec<Change<K>> {
        match event {
            Event::Init => {
                self.objects.begin_list();
                Vec::new()
            }
            Event::Apply(object) => match self.in_flight.get_mut(&ObjectName::of(&object)) {
                Some(kept) => {
                    *kept = Some(object);
                    Vec::new()
                }
                None => self.insert(object),
            },
            Event::InitApply(object) => {
                self.supersede(&ObjectName::of(&object));
                self.insert(object)
            }
            Event::InitDone => {
                let gone = self.objects.end_list();
                gone.iter().for_each(|name| self.supersede(name));
                let gone = gone.into_iter();
                gone.map(|name| Change { old: self.objects.remove(&name), name, new: None }).collect()
            }
            Event::Delete(object) => {
                let name = ObjectName::of(&object);
                self.supersede(&name);
                let old = self.objects.remove(&name).or_else(|| Some(Arc::new(object)));
                vec![Change { name, old, new: None }]
            }
        }
    }

    fn insert(&mut self, object: K) -> Vec<Change<K>> {
        let (name, new) = (ObjectName::of(&object), Arc::new(object));
        let old = self.objects.insert(name.clone(), new.clone());
        let same = old.as_ref().is_some_and(|o| o.resource_version() == new.resource_version());
        if same { Vec::new() } else { vec![Change { name, old, new: Some(new) }] }
    }

    /// Drops what was kept of an object that a later event shows.
    fn supersede(&mut self, name: &ObjectName) {
        if let Some(kept) = self.in_flight.get_mut(name) {
            *kept = None;
        }
    }

    /// Keeps the watch events of an object back until [`Table::end_write`].
    pub(super) fn begin_write(&mut self, name: ObjectName) {
        self.in_flight.insert(name, None);
    }

    /// Returns what the last event that was kept back showed.
    pub(super) fn end_write(&mut self, name: &ObjectName) -> Option<K> {
        self.in_flight.remove(name).flatten()
    }

    /// Stores the response to our own write of `base`, unless the table holds a newer version.
    pub(super) fn written(&mut self, base: &K, answer: Arc<K>) {
        let name = ObjectName::of(answer.as_ref());
        let known = self.objects.get(&name);
        if known.is_some_and(|k| k.resource_version() == base.resource_version() && k.uid() == base.uid()) {
            self.objects.insert(name, answer);
        }
    }
}
