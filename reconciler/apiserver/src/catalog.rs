//! The currently served resources, kept consistent with the stored CustomResourceDefinitions.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use berth_store::{Entry, Key, Store};
use tokio_util::sync::CancellationToken;

use crate::builtin::{self, APIEXTENSIONS};
use crate::crd;
use crate::resource::{Origin, Resource};

/// One consistent set of resources.
#[derive(Debug, Default)]
pub(crate) struct Served {
    /// By group, then plural: this is the order of discovery, with the core group first.
    pub(crate) resources: BTreeMap<(String, String), Arc<Resource>>,
}

impl Served {
    pub(crate) fn find(&self, group: &str, plural: &str) -> Option<&Arc<Resource>> {
        // The tuple key needs owned strings; the cost is small compared to a request.
        self.resources.get(&(group.to_owned(), plural.to_owned()))
    }

    /// Returns the resource that stores under `storage`: of two views, the one that is stored in its own
    /// form.
    pub(crate) fn by_storage(&self, storage: &str) -> Option<&Arc<Resource>> {
        let (group, plural) = storage.split_once('/')?;
        self.find(group, plural)
    }
}

/// The stored definition of a resource, and the resource.
type Parsed = (Arc<Entry>, Arc<Resource>);

#[derive(Debug)]
pub(crate) struct Catalog {
    store: Arc<Store>,
    builtin: Vec<Arc<Resource>>,
    pub(crate) crds: Arc<str>,
    served: RwLock<Arc<Served>>,
    /// Definitions and what they define by CRD, so that one change does not parse them all.
    parsed: Mutex<HashMap<Key, Parsed>>,
    /// Cancelled when the server shuts down.
    stopping: CancellationToken,
}

impl Catalog {
    pub(crate) fn new(store: &Arc<Store>, stopping: CancellationToken) -> Self {
        let catalog = Self {
            store: Arc::clone(store),
            builtin: builtin::resources(&stopping),
            crds: format!("{APIEXTENSIONS}/customresourcedefinitions").into(),
            served: RwLock::default(),
            parsed: Mutex::default(),
            stopping,
        };
        for resource in &catalog.builtin {
            store.select_by(&resource.storage, Arc::clone(&resource.fields));
        }
        catalog.refresh();
        catalog
    }

    pub(crate) fn served(&self) -> Arc<Served> {
        Arc::clone(&self.served.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Updates the catalog from the stored definitions. Called after every write of a definition, before the
    /// response.
    pub(crate) fn refresh(&self) {
        let mut parsed = self.parsed.lock().unwrap_or_else(PoisonError::into_inner);
        let entries: Vec<_> = self.store.state().list(&self.crds, None, None).cloned().collect();
        let mut served = Served::default();
        for resource in &self.builtin {
            served.resources.insert((resource.group.clone(), resource.plural.clone()), Arc::clone(resource));
        }
        let mut kept = HashMap::new();
        for entry in entries {
            let known = parsed.get(&entry.key).filter(|(before, _)| crd::defines_same(before, &entry));
            let resource = match known {
                // Requests and watches of a resource that is still the same go on: an upgrade labels all definitions anew.
                Some((_, resource)) => {
                    resource.follow(entry.revision, entry.facts.deleting);
                    Arc::clone(resource)
                }
                None => match crd::resource(&entry, &self.stopping) {
                    Ok(resource) => Arc::new(resource),
                    Err(error) => {
                        tracing::error!(crd = %entry.key.name, error, "a stored definition cannot be served");
                        continue;
                    }
                },
            };
            self.store.select_by(&resource.storage, Arc::clone(&resource.fields));
            served.resources.insert((resource.group.clone(), resource.plural.clone()), Arc::clone(&resource));
            kept.insert(entry.key.clone(), (entry, resource));
        }
        // First: an object in the form of a new definition can only be written once that is served.
        for (key, (_, resource)) in &*parsed {
            match kept.get(key) {
                Some((_, now)) if Arc::ptr_eq(now, resource) => {}
                Some(_) => resource.retire(),
                None => resource.end(),
            }
        }
        *parsed = kept;
        *self.served.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(served);
    }
}

/// Returns the CRD of a custom resource, its revision, and whether it is being deleted.
pub(crate) fn definition(resource: &Resource) -> Option<(&Key, u64, bool)> {
    match &resource.origin {
        Origin::Builtin => None,
        Origin::Custom { crd, current, terminating, .. } => {
            // In this order: see `Resource::follow`.
            let revision = current.load(Ordering::Acquire);
            Some((crd, revision, terminating.load(Ordering::Acquire)))
        }
    }
}
