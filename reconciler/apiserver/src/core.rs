//! What every verb shares: the store, the catalog, the clock, and how stored objects become served ones.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::admission::Policies;
use crate::audit::Audit;
use crate::authorize::GrantsCache;
use crate::backups;
use crate::builtin::{ADMISSION, EVENTS};
use crate::catalog::Catalog;
use crate::clock::{Clock, Ids};
use crate::credentials::Credentials;
use crate::error::{ApiError, Result};
use crate::event;
use crate::resource::Resource;
use crate::service_account::SigningKey;
use crate::store::{Encoded, Entry, Key, Store, Write, WriteError};

/// Who the server's own controllers are.
pub(crate) const SELF: &str = "system:apiserver";
/// Bytes one stored object may have, as etcd's default.
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
    pub(crate) signing: SigningKey,
    pub(crate) grants: GrantsCache,
    pub(crate) backups: backups::Counters,
    /// Of a server with a directory. Set before the server answers anybody.
    pub(crate) credentials: Option<Credentials>,
    /// Set before the server answers anybody.
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
        signing: SigningKey,
    ) -> Self {
        Self {
            catalog: Catalog::new(&store),
            store,
            clock,
            ids,
            event_ttl,
            stopping: CancellationToken::new(),
            namespaces: "/namespaces".into(),
            service_accounts: "/serviceaccounts".into(),
            secrets: "/secrets".into(),
            signing,
            grants: GrantsCache::default(),
            backups: backups::Counters::default(),
            credentials: None,
            audit: None,
            policies: Mutex::default(),
            policy_storage: format!("{ADMISSION}/validatingadmissionpolicies").into(),
            binding_storage: format!("{ADMISSION}/validatingadmissionpolicybindings").into(),
        }
    }

    /// Writes, and keeps the catalog in step when a definition was written.
    pub(crate) async fn commit(&self, write: Write) -> Result<Arc<Entry>, WriteError> {
        let defines = write.key.resource == self.catalog.crds;
        // Everybody else's writes are told of as requests.
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

    /// The object as the version serves it.
    pub(crate) fn view(entry: &Entry, resource: &Resource, version: usize) -> Value {
        let mut object = entry.value();
        if resource.group == EVENTS {
            event::to_events_group(&mut object);
        } else if !is_served_as_stored(entry, resource, version) {
            // As in Kubernetes defaults are those of the version that is stored.
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

    /// The same as JSON text, which in the common case is what was stored.
    pub(crate) fn text(entry: &Entry, resource: &Resource, version: usize) -> Bytes {
        if resource.group != EVENTS && is_served_as_stored(entry, resource, version) {
            return entry.bytes.clone();
        }
        let object = Self::view(entry, resource, version);
        serde_json::to_vec(&object).expect("a JSON value always serializes into memory").into()
    }

    /// The object as it is stored.
    pub(crate) fn encode(resource: &Resource, object: &Value) -> Result<Encoded> {
        let mut object = object.clone();
        if resource.group == EVENTS {
            event::to_core_group(&mut object);
        } else {
            let stored = resource.api_version(resource.storage_version);
            if resource.is_custom() && object["apiVersion"] != stored.as_str() {
                resource.versions[resource.storage_version].schema.prune(&mut object);
            }
            object["apiVersion"] = stored.into();
        }
        object["kind"] = resource.kind.as_str().into();
        let encoded = Encoded::of(&object, &resource.fields);
        if encoded.text.len() > MAX_OBJECT {
            return Err(ApiError::too_large("the object", MAX_OBJECT));
        }
        Ok(encoded)
    }

    /// The admission policies in force, built anew only after one has changed.
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

/// Whether the stored text is what this version serves: same version, and written under today's definition.
pub(crate) fn is_served_as_stored(entry: &Entry, resource: &Resource, version: usize) -> bool {
    !resource.is_custom() || (version == resource.storage_version && entry.revision > resource.defined_at())
}
