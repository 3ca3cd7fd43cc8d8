//! The objects of one kind as last seen, and what a watch event changes in them.

use std::sync::Arc;

use berth_api::SHARED_NAMESPACE;
use kube::ResourceExt;
use kube::runtime::watcher::Event;

use crate::key::ObjectName;

/// The objects of one kind.
#[derive(Debug)]
pub(crate) struct Table<K>(berth_engine::Table<ObjectName, K>);

impl<K> Default for Table<K> {
    fn default() -> Self {
        Self(berth_engine::Table::default())
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
        self.0.get(name).cloned()
    }

    /// Returns the object of this name in this namespace, else in the shared one.
    pub(crate) fn find(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        self.get(&ObjectName::new(namespace, name))
            .or_else(|| self.get(&ObjectName::new(SHARED_NAMESPACE, name)))
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (&ObjectName, &Arc<K>)> {
        self.0.iter()
    }

    /// Whether the table holds the control plane's objects.
    pub(super) fn is_synced(&self) -> bool {
        self.0.is_synced()
    }

    /// Applies a watch event. Returns the actual changes.
    pub(super) fn apply(&mut self, event: Event<K>) -> Vec<Change<K>> {
        match event {
            Event::Init => {
                self.0.begin_list();
                Vec::new()
            }
            Event::InitApply(object) | Event::Apply(object) => {
                let (name, new) = (ObjectName::of(&object), Arc::new(object));
                let old = self.0.insert(name.clone(), new.clone());
                let same = old.as_ref().is_some_and(|o| o.resource_version() == new.resource_version());
                if same { Vec::new() } else { vec![Change { name, old, new: Some(new) }] }
            }
            Event::InitDone => {
                let gone = self.0.end_list().into_iter();
                gone.map(|name| Change { old: self.0.remove(&name), name, new: None }).collect()
            }
            Event::Delete(object) => {
                let name = ObjectName::of(&object);
                let old = self.0.remove(&name).or_else(|| Some(Arc::new(object)));
                vec![Change { name, old, new: None }]
            }
        }
    }

    /// Stores the response to our own write of `base`, unless the table holds a newer version.
    pub(super) fn written(&mut self, base: &K, answer: K) {
        let name = ObjectName::of(&answer);
        let known = self.0.get(&name);
        if known.is_some_and(|k| k.resource_version() == base.resource_version() && k.uid() == base.uid()) {
            self.0.insert(name, Arc::new(answer));
        }
    }
}
