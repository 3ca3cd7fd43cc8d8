//! The state shared by all verbs: the store, the catalog, the clock, and the conversion of stored objects to
//! served ones.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use berth_apimachinery::error::{ApiError, Result};
use berth_store::{Encoded, Entry, Key, Store, Text, Write, WriteError};
use bytes::Bytes;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::admission::{MOST_PARAMS, ParamKind, ParamSource, Policies};
use crate::audit::Audit;
use crate::authenticate::Tokens;
use crate::authorize::Access;
use crate::backups;
use crate::builtin::{ADMISSION, EVENTS};
use crate::catalog::Catalog;
use crate::event;
use crate::ids::Ids;
use crate::resource::Resource;
use berth_engine::Clock;

/// The user name of the server's own controllers.
pub(crate) const SELF: &str = "system:apiserver";
/// The maximum size of one stored object in bytes, as etcd's default.
pub(crate) const MAX_OBJECT: usize = 1536 * 1024;

#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) store: Arc<Store>,
    pub(crate) catalog: Catalog,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) ids: Ids,
    pub(crate) event_ttl: Duration,
    /// Cancelled when the server shuts down: watches end.
    pub(crate) stopping: CancellationToken,
    pub(crate) namespaces: Arc<str>,
    pub(crate) service_accounts: Arc<str>,
    pub(crate) secrets: Arc<str>,
    pub(crate) tokens: Tokens,
    pub(crate) access: Access,
    pub(crate) backups: Arc<backups::Counters>,
    /// Set before the server answers requests.
    pub(crate) audit: Option<Audit>,
    policies: Mutex<Option<(u64, u64, Arc<Policies>)>>,
    policy_storage: Arc<str>,
    binding_storage: Arc<str>,
}

impl Core {
    pub(crate) fn new(
        store: Arc<Store>,
        clock: Arc<dyn Clock>,
        ids: Ids,
        event_ttl: Duration,
        tokens: Tokens,
    ) -> Self {
        let stopping = CancellationToken::new();
        Self {
            catalog: Catalog::new(&store, stopping.clone()),
            clock,
            ids,
            event_ttl,
            stopping,
            namespaces: "/namespaces".into(),
            service_accounts: "/serviceaccounts".into(),
            secrets: "/secrets".into(),
            tokens,
            access: Access::new(Arc::clone(&store)),
            store,
            backups: Arc::default(),
            audit: None,
            policies: Mutex::default(),
            policy_storage: format!("{ADMISSION}/validatingadmissionpolicies").into(),
            binding_storage: format!("{ADMISSION}/validatingadmissionpolicybindings").into(),
        }
    }

    /// Writes, and updates the catalog after the write of a definition.
    pub(crate) async fn commit(&self, write: Write) -> Result<Arc<Entry>, WriteError> {
        let defines = write.key.resource == self.catalog.crds;
        // Writes of other users are audited as requests.
        let own = (write.by.user == SELF).then(|| (write.key.to_string(), write.by.verb));
        let entry = self.store.submit(write).await?;
        if let (Some(audit), Some((key, verb))) = (&self.audit, own) {
            let time = self.clock.now().strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string();
            let revision = entry.revision.to_string();
            audit
                .tell(json!({"time": time, "user": SELF, "verb": verb, "object": key, "revision": revision}));
        }
        if defines {
            self.catalog.refresh();
        }
        Ok(entry)
    }

    pub(crate) fn now_ms(&self) -> i64 {
        self.clock.now().as_millisecond()
    }

    pub(crate) fn namespace(&self, name: &str) -> Option<Arc<Entry>> {
        self.store.get(&Key::new(&self.namespaces, "", name))
    }

    /// Returns the object as the version serves it.
    pub(crate) fn view(entry: &Entry, resource: &Resource, version: usize) -> Value {
        let mut object = entry.value();
        if resource.group == EVENTS {
            event::to_events_group(&mut object);
        } else if !is_served_as_stored(entry, resource, version) {
            // As in Kubernetes, defaults are those of the storage version.
            let stored = &resource.versions[resource.storage_version].schema;
            stored.prune(&mut object);
            stored.default(&mut object);
            if version != resource.storage_version {
                object["apiVersion"] = resource.api_version(version).into();
                resource.versions[version].schema.prune(&mut object);
            }
        }
        object
    }

    /// Returns the same as JSON text, which in the common case is the stored text.
    pub(crate) fn text(entry: &Entry, resource: &Resource, version: usize) -> Bytes {
        Self::shared_text(entry, resource, version).to_bytes()
    }

    /// Does the same without a copy of a stored text.
    pub(crate) fn shared_text(entry: &Entry, resource: &Resource, version: usize) -> Text {
        if resource.group != EVENTS && is_served_as_stored(entry, resource, version) {
            return entry.text.clone();
        }
        let object = Self::view(entry, resource, version);
        let text = serde_json::to_vec(&object).expect("a JSON value always serializes into memory");
        Bytes::from(text).into()
    }

    /// Encodes the object for storage.
    pub(crate) fn encode(resource: &Resource, object: &Value) -> Result<Encoded> {
        let mut object = Cow::Borrowed(object);
        let stored = resource.api_version(resource.storage_version);
        if resource.group == EVENTS {
            event::to_core_group(object.to_mut());
        } else if object["apiVersion"] != stored.as_str() {
            if resource.is_custom() {
                resource.versions[resource.storage_version].schema.prune(object.to_mut());
            }
            object.to_mut()["apiVersion"] = stored.into();
        }
        if object["kind"] != resource.kind.as_str() {
            object.to_mut()["kind"] = resource.kind.as_str().into();
        }
        let encoded = Encoded::of(&object, &resource.fields);
        if encoded.text.len() > MAX_OBJECT {
            return Err(ApiError::too_large("the object", MAX_OBJECT));
        }
        Ok(encoded)
    }

    /// Returns the admission policies in force, rebuilt only after one changed.
    pub(crate) fn policies(&self) -> Arc<Policies> {
        let mut cached = self.policies.lock().unwrap_or_else(PoisonError::into_inner);
        let state = self.store.state();
        let now = (state.changed(&self.policy_storage), state.changed(&self.binding_storage));
        if let Some((policies, bindings, built)) = &*cached
            && (*policies, *bindings) == now
        {
            return Arc::clone(built);
        }
        let all =
            |storage: &str| state.list(storage, None, None).map(|entry| entry.value()).collect::<Vec<_>>();
        let (policies, bindings) = (all(&self.policy_storage), all(&self.binding_storage));
        drop(state);
        let built = Arc::new(Policies::build(&policies, &bindings));
        *cached = Some((now.0, now.1, Arc::clone(&built)));
        built
    }
}

impl Core {
    /// Returns the custom resource of a kind of parameters, and its version.
    fn param_resource(&self, kind: &ParamKind) -> Option<(Arc<Resource>, usize)> {
        let (group, version) = kind.api_version.split_once('/')?;
        let served = self.catalog.served();
        let is_kind = |resource: &&Arc<Resource>| {
            resource.is_custom() && resource.group == group && resource.kind == kind.kind
        };
        let resource = served.resources.values().find(is_kind)?;
        Some((Arc::clone(resource), resource.version(version)?))
    }
}

impl ParamSource for Core {
    fn namespaced(&self, kind: &ParamKind) -> Option<bool> {
        self.param_resource(kind).map(|(resource, _)| resource.namespaced)
    }

    fn objects(&self, kind: &ParamKind, namespace: &str) -> Vec<Value> {
        let Some((resource, version)) = self.param_resource(kind) else { return Vec::new() };
        let namespace = resource.namespaced.then_some(namespace);
        let state = self.store.state();
        let entries: Vec<Arc<Entry>> =
            state.list(&resource.storage, namespace, None).take(MOST_PARAMS + 1).cloned().collect();
        drop(state);
        entries.iter().map(|entry| Self::view(entry, &resource, version)).collect()
    }
}

/// Whether the stored text is what this version serves: the same version, and written under the current
/// definition.
pub(crate) fn is_served_as_stored(entry: &Entry, resource: &Resource, version: usize) -> bool {
    !resource.is_custom() || (version == resource.storage_version && entry.revision > resource.defined_at())
}

#[cfg(test)]
impl Core {
    /// Returns the core of a server without files, for tests.
    pub(crate) fn in_memory() -> Arc<Self> {
        use crate::config::ServerConfig;
        use crate::service_account::{Accounts, SigningKey};

        let config = ServerConfig::in_memory();
        let store = Store::open(&config.storage, config.writer).unwrap();
        let signing = SigningKey::ephemeral().unwrap();
        let accounts = Accounts::new(signing, Arc::clone(&store), Arc::clone(&config.clock));
        let tokens = Tokens { given: None, accounts };
        Arc::new(Self::new(store, config.clock, Ids::new(Some(1)), config.event_ttl, tokens))
    }
}
