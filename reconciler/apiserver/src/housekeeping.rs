//! The server's own controllers: garbage collection by owner, deletion of the contents of deleted namespaces
//! and definitions, aggregated ClusterRoles, default accounts, expiry of Events, compaction of history.
//!
//! One task, woken by events, so that an idle server stays idle. Level-triggered: every step looks at the
//! current state, and a missed event only costs a full pass.

mod access;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use berth_store::{Change, Entry, Event, Keep, Key, State};
use serde_json::Value;
use tokio::time::{Instant, sleep_until};

use crate::config::HistoryWindow;
use crate::core::{Core, SELF};
use crate::identity::Identity;
use crate::request::{Options, Propagation, Sub, Target};
use crate::resource::Resource;
use crate::verbs::{Call, FOREGROUND, ORPHAN, PatchKind};
use crate::{builtin, crd};

/// How long after a failed step the whole state is checked again.
const RETRY: Duration = Duration::from_secs(5);
/// How often the server looks for expired Events.
const EXPIRE_EVERY: Duration = Duration::from_secs(60);
/// The maximum number of Events removed at once, so that a flood of them does not delay other work.
const EXPIRE_AT_ONCE: usize = 500;

/// A unit of pending work.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Task {
    /// Check an object's owners and its deletion.
    Object(Key),
    /// An owner is gone: check its dependents.
    Owned(String),
    /// An object left a namespace that may be waiting for it.
    Namespace(String),
    /// A namespace may lack its default account.
    Account(String),
    /// A ClusterRole changed: the rules of ClusterRoles that aggregate it may change.
    ClusterRoles,
    /// An object of a resource was removed, and the resource's definition may be waiting for that.
    Resource(Arc<str>),
}

/// Completes the objects that the server needs before it accepts requests, in addition to
/// [`crate::bootstrap`].
pub(crate) async fn settle(core: &Arc<Core>) -> Result<(), String> {
    access::settle(core).await.map_err(|error| error.message)
}

/// Runs until the server stops.
pub(crate) async fn run(core: Arc<Core>, history: HistoryWindow) {
    let mut events = core.store.subscribe_all();
    let mut tasks = everything(&core);
    let mut retry: Option<Instant> = None;
    let mut failed = BTreeSet::new();
    let mut expire = tokio::time::interval(EXPIRE_EVERY);
    let mut compact = tokio::time::interval(history.every);
    let mut compacted_at = 0;
    let mut compaction_failed = None;
    loop {
        while let Some(task) = tasks.pop_first() {
            if let Err(error) = attend(&core, task.clone()).await {
                tracing::debug!(error = error.message, "housekeeping step failed, retrying");
                retry.get_or_insert_with(|| Instant::now() + RETRY);
                // Its event is not seen again.
                if matches!(task, Task::Owned(_)) {
                    failed.insert(task);
                }
            }
            while let Some(event) = events.try_recv() {
                note(&core, &mut tasks, &event);
            }
        }
        if is_beyond(core.store.counters.history(), history.keep_bytes, compaction_failed) {
            compaction_failed = (!compact_history(&core, history).await).then(Instant::now);
        }
        tokio::select! {
            biased;
            () = core.stopping.cancelled() => return,
            event = events.recv() => match event {
                Some(event) => note(&core, &mut tasks, &event),
                None if core.stopping.is_cancelled() => return,
                // Events arrived faster than they could be processed.
                None => (events, tasks) = (core.store.subscribe_all(), everything(&core)),
            },
            () = sleep_until(retry.unwrap_or_else(Instant::now)), if retry.is_some() => {
                retry = None;
                tasks = everything(&core);
                tasks.append(&mut failed);
            }
            _ = expire.tick() => expire_events(&core).await,
            _ = compact.tick() => {
                let revision = core.store.state().revision;
                if revision != compacted_at {
                    compacted_at = revision;
                    compact_history(&core, history).await;
                }
            }
        }
    }
}

/// A task for every object that has owners or is being deleted, for each namespace and for the roles.
fn everything(core: &Core) -> BTreeSet<Task> {
    // Events of definitions may be among those that were missed.
    core.catalog.refresh();
    let state = core.store.state();
    let accounts =
        state.list(&core.namespaces, None, None).map(|entry| Task::Account(entry.key.name.to_string()));
    let mut tasks: BTreeSet<Task> = accounts.chain([Task::ClusterRoles]).collect();
    tasks.extend(objects(&state));
    tasks
}

/// A task for every object that has owners or is being deleted.
fn objects(state: &State) -> Vec<Task> {
    let resources = state.resources();
    let objects = resources.iter().flat_map(|resource| state.list(resource, None, None));
    objects
        .filter(|entry| entry.facts.deleting || !entry.facts.owners.is_empty())
        .map(|entry| Task::Object(entry.key.clone()))
        .collect()
}

fn note(core: &Core, tasks: &mut BTreeSet<Task>, event: &Event) {
    let (key, facts) = (&event.entry.key, &event.entry.facts);
    // A request that its client cancels while the definition is written does not come to it.
    if key.resource == core.catalog.crds {
        core.catalog.refresh();
        // Objects that were left alone may name owners of this kind.
        if event.change == Change::Added {
            tasks.extend(objects(&core.store.state()));
        }
    }
    // Owners that wait for the deletion of this object, or for it to drop its owner reference.
    for owner in event.previous.iter().flat_map(|previous| &previous.facts.owners) {
        if let Some(owner) = core.store.state().by_uid(owner).filter(|owner| owner.facts.deleting) {
            tasks.insert(Task::Object(owner.key.clone()));
        }
    }
    if access::is_cluster_role(key) {
        tasks.insert(Task::ClusterRoles);
    } else if key.resource == core.namespaces && event.change == Change::Added {
        tasks.insert(Task::Account(key.name.to_string()));
    } else if key.resource == core.service_accounts && *key.name == *access::DEFAULT_ACCOUNT {
        tasks.insert(Task::Account(key.namespace.to_string()));
    }
    if event.change != Change::Deleted {
        if facts.deleting || !facts.owners.is_empty() {
            tasks.insert(Task::Object(key.clone()));
        }
        return;
    }
    tasks.insert(Task::Owned(facts.uid.to_string()));
    if !key.namespace.is_empty() {
        tasks.insert(Task::Namespace(key.namespace.to_string()));
    }
    tasks.insert(Task::Resource(Arc::clone(&key.resource)));
}

type Step = Result<(), berth_apimachinery::error::ApiError>;

async fn attend(core: &Arc<Core>, task: Task) -> Step {
    match task {
        Task::Object(key) => object(core, &key, None).await,
        Task::Owned(uid) => {
            let keys = core.store.state().dependents(&uid);
            for key in keys {
                object(core, &key, Some(&uid)).await?;
            }
            Ok(())
        }
        Task::Namespace(name) => {
            let namespace = core.namespace(&name).filter(|namespace| namespace.facts.deleting);
            match namespace {
                Some(namespace) => empty_namespace(core, &namespace.key).await,
                None => Ok(()),
            }
        }
        Task::Account(namespace) => access::default_account(core, &namespace).await,
        Task::ClusterRoles => access::aggregate(core).await.map(drop),
        Task::Resource(storage) => {
            let served = core.catalog.served();
            let definition =
                served.by_storage(&storage).and_then(|r| crate::catalog::definition(r).map(|d| d.0.clone()));
            match definition {
                Some(key) if core.store.get(&key).is_some_and(|crd| crd.facts.deleting) => {
                    object(core, &key, None).await
                }
                _ => Ok(()),
            }
        }
    }
}

/// Checks an object's owners and its deletion. `gone`: the uid of an owner whose removal was observed.
async fn object(core: &Arc<Core>, key: &Key, gone: Option<&str>) -> Step {
    let Some(entry) = core.store.get(key) else { return Ok(()) };
    if !entry.facts.deleting {
        if entry.facts.owners.is_empty() {
            return Ok(());
        }
        return collect(core, key, &entry.value(), gone).await;
    }
    let object = entry.value();
    let held_by = |finalizer: &str| {
        object["metadata"]["finalizers"].as_array().is_some_and(|list| list.iter().any(|f| f == finalizer))
    };
    if held_by(ORPHAN) {
        orphan_dependents(core, &entry.facts.uid).await?;
        return drop_finalizer(core, key, ORPHAN).await;
    }
    if held_by(FOREGROUND) && delete_dependents(core, &entry.facts.uid).await? {
        return drop_finalizer(core, key, FOREGROUND).await;
    }
    if key.resource == core.namespaces {
        return empty_namespace(core, key).await;
    }
    if key.resource == core.catalog.crds && held_by(crd::CLEANUP) {
        return empty_definition(core, key, &object).await;
    }
    Ok(())
}

/// Deletes an object if all its owners are gone, otherwise removes the owner references to missing owners. As in Kubernetes, an object
/// that names an owner of a kind that is not served is left alone: it is not known whether that owner exists. One whose removal was
/// observed is gone, also if its definition went with it.
async fn collect(core: &Arc<Core>, key: &Key, object: &Value, gone: Option<&str>) -> Step {
    let owners = owners_of(object);
    let is_live = |owner: &Value| live_owner(core, key, owner).is_some();
    let is_gone = |owner: &Value| gone.is_some() && owner["uid"].as_str() == gone && !is_live(owner);
    let has_unknown = owners.iter().any(|owner| !is_gone(owner) && is_unknown(core, key, owner));
    let stays = |owner: &&Value| if has_unknown { !is_gone(owner) } else { is_live(owner) };
    let remaining: Vec<Value> = owners.iter().filter(stays).cloned().collect();
    if remaining.len() == owners.len() {
        return Ok(());
    }
    if !remaining.is_empty() {
        return patch_metadata(core, key, object, "ownerReferences", &remaining).await;
    }
    tracing::info!(%key, "deleting an object whose owners are gone");
    delete_as_read(core, key, object, Propagation::Background).await
}

fn owners_of(object: &Value) -> Vec<Value> {
    object["metadata"]["ownerReferences"].as_array().cloned().unwrap_or_default()
}

/// Returns the object that an owner reference of the object with this key names. One in a namespace owns nothing in another one. A
/// cluster-scoped object that names it stays as long as it exists.
fn live_owner(core: &Core, key: &Key, owner: &Value) -> Option<Arc<Entry>> {
    let found = core.store.state().by_uid(owner["uid"].as_str().unwrap_or_default()).cloned();
    let is_apart =
        |a: &Key, b: &Key| !a.namespace.is_empty() && !b.namespace.is_empty() && a.namespace != b.namespace;
    found.filter(|found| !is_apart(&found.key, key))
}

/// Whether an owner reference names nothing that exists, and a kind or a version that is not served.
fn is_unknown(core: &Core, key: &Key, owner: &Value) -> bool {
    let text = |member: &str| owner[member].as_str().unwrap_or_default();
    let (group, version) = text("apiVersion").split_once('/').unwrap_or(("", text("apiVersion")));
    let names = |resource: &Arc<Resource>| {
        resource.group == group && resource.kind == text("kind") && resource.version(version).is_some()
    };
    live_owner(core, key, owner).is_none() && !core.catalog.served().resources.values().any(names)
}

/// Whether an owner is deleted together with its dependents, and waits for them.
fn waits_for_dependents(owner: &Entry) -> bool {
    let object = owner.value();
    let mut finalizers = object["metadata"]["finalizers"].as_array().into_iter().flatten();
    owner.facts.deleting && finalizers.any(|finalizer| finalizer == FOREGROUND)
}

/// Replaces a list in an object's metadata, unless the object has changed meanwhile.
async fn patch_metadata(core: &Arc<Core>, key: &Key, object: &Value, list: &str, items: &[Value]) -> Step {
    let Some(mut call) = call(core, key) else { return Ok(()) };
    let metadata = &object["metadata"];
    let patch = serde_json::json!({"metadata": {
        "uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"], list: items,
    }});
    gone_is_done(call.patch(PatchKind::Merge, patch).await)
}

async fn orphan_dependents(core: &Arc<Core>, uid: &str) -> Step {
    let keys = core.store.state().dependents(uid);
    for key in keys {
        let Some(entry) = core.store.get(&key) else { continue };
        let object = entry.value();
        let others: Vec<Value> = owners_of(&object).into_iter().filter(|owner| owner["uid"] != uid).collect();
        patch_metadata(core, &key, &object, "ownerReferences", &others).await?;
    }
    Ok(())
}

/// Deletes the dependents of `uid`; returns whether no blocking dependent is left. As in Kubernetes, a dependent with another owner that
/// stays loses only its reference to this one.
async fn delete_dependents(core: &Arc<Core>, uid: &str) -> Result<bool, berth_apimachinery::error::ApiError> {
    let keys = core.store.state().dependents(uid);
    for key in &keys {
        let Some(entry) = core.store.get(key).filter(|entry| !entry.facts.deleting) else { continue };
        let object = entry.value();
        let stays = |owner: &&Value| {
            owner["uid"] != uid
                && live_owner(core, key, owner)
                    .map_or_else(|| is_unknown(core, key, owner), |owner| !waits_for_dependents(&owner))
        };
        let staying: Vec<Value> = owners_of(&object).iter().filter(stays).cloned().collect();
        if staying.is_empty() {
            delete_as_read(core, key, &object, Propagation::Foreground).await?;
        } else {
            patch_metadata(core, key, &object, "ownerReferences", &staying).await?;
        }
    }
    let blocks = |key: &Key| {
        let Some(entry) = core.store.get(key) else { return false };
        let owners = owners_of(&entry.value());
        owners.iter().any(|owner| owner["uid"] == uid && owner["blockOwnerDeletion"] == true)
    };
    Ok(!keys.iter().any(blocks))
}

async fn drop_finalizer(core: &Arc<Core>, key: &Key, finalizer: &str) -> Step {
    let Some(entry) = core.store.get(key) else { return Ok(()) };
    let object = entry.value();
    let finalizers = object["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
    let others: Vec<Value> = finalizers.into_iter().filter(|one| one != finalizer).collect();
    patch_metadata(core, key, &object, "finalizers", &others).await
}

/// Deletes everything in a namespace; removes its `kubernetes` finalizer once the namespace is empty.
async fn empty_namespace(core: &Arc<Core>, key: &Key) -> Step {
    let name = key.name.to_string();
    let contents: Vec<_> = {
        let state = core.store.state();
        let resources = state.resources();
        resources.iter().flat_map(|resource| state.list(resource, Some(&name), None)).cloned().collect()
    };
    // Cluster-scoped objects have an empty namespace.
    let contents: Vec<_> = contents.into_iter().filter(|entry| !entry.key.namespace.is_empty()).collect();
    delete_each(core, &contents).await?;
    if contents.iter().any(|entry| core.store.get(&entry.key).is_some()) {
        return Ok(());
    }
    let Some(entry) = core.store.get(key) else { return Ok(()) };
    let mut namespace = entry.value();
    // Finalizers of other owners are removed by those owners.
    let Some(finalizers) = namespace["spec"]["finalizers"].as_array_mut() else { return Ok(()) };
    let before = finalizers.len();
    finalizers.retain(|one| one != builtin::FINALIZER);
    if finalizers.len() == before {
        return Ok(());
    }
    let Some(mut call) = call(core, key) else { return Ok(()) };
    call.target.sub = Sub::Finalize;
    gone_is_done(call.update(namespace).await)
}

/// Deletes each of the entries. A deletion that an admission policy refuses for now does not stop the others:
/// the refused object may be waiting for them. Returns the first refusal, so that all are retried.
async fn delete_each(core: &Arc<Core>, entries: &[Arc<Entry>]) -> Step {
    let mut first = Ok(());
    for entry in entries.iter().filter(|entry| !entry.facts.deleting) {
        let deleted = delete(core, &entry.key, Some(&entry.facts.uid), Some(Propagation::Background)).await;
        first = first.and(deleted);
    }
    first
}

/// Deletes every object of a definition; removes its finalizer once no object is left.
async fn empty_definition(core: &Arc<Core>, key: &Key, definition: &Value) -> Step {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let storage =
        format!("{}/{}", text(&definition["spec"]["group"]), text(&definition["spec"]["names"]["plural"]));
    let objects: Vec<_> = core.store.state().list(&storage, None, None).cloned().collect();
    delete_each(core, &objects).await?;
    if core.store.state().count(&storage) > 0 {
        return Ok(());
    }
    drop_finalizer(core, key, crd::CLEANUP).await
}

async fn expire_events(core: &Arc<Core>) {
    let storage: Arc<str> = "/events".into();
    let ttl = i64::try_from(core.event_ttl.as_millis()).unwrap_or(i64::MAX);
    let before = core.now_ms().saturating_sub(ttl);
    let expired: Vec<Key> = {
        let state = core.store.state();
        let old = state.list(&storage, None, None).filter(|entry| entry.written_ms < before);
        old.take(EXPIRE_AT_ONCE).map(|entry| entry.key.clone()).collect()
    };
    for key in expired {
        if let Err(error) = delete(core, &key, None, None).await {
            tracing::debug!(error = error.message, "removing an expired event failed");
            return;
        }
    }
}

/// Whether history has more bytes than are kept and is to be compacted now. An attempt that failed, as on a full disk, is not repeated with
/// every write: each takes longer than the writes that it delays.
fn is_beyond(bytes: u64, keep_bytes: u64, failed_at: Option<Instant>) -> bool {
    bytes > keep_bytes && failed_at.is_none_or(|at| at.elapsed() >= RETRY)
}

/// Applies the history window; returns whether it succeeded.
async fn compact_history(core: &Core, history: HistoryWindow) -> bool {
    let keep = i64::try_from(history.keep_for.as_millis()).unwrap_or(i64::MAX);
    let written_since_ms = core.now_ms().saturating_sub(keep);
    let (revisions, bytes) = (history.keep_revisions, history.keep_bytes);
    let compacted = core.store.compact(Keep { written_since_ms, revisions, bytes }).await;
    if let Err(error) = &compacted {
        tracing::warn!(error = %error, "compacting history failed");
    }
    compacted.is_ok()
}

async fn delete(core: &Arc<Core>, key: &Key, uid: Option<&str>, propagation: Option<Propagation>) -> Step {
    let Some(mut call) = call(core, key) else { return Ok(()) };
    call.verb = "delete";
    call.options.precondition_uid = uid.map(str::to_owned);
    call.options.propagation = propagation;
    gone_is_done(call.delete().await)
}

/// Deletes an object for its owner references, unless it has changed since it was read: it may have been released from its owners.
async fn delete_as_read(core: &Arc<Core>, key: &Key, object: &Value, propagation: Propagation) -> Step {
    let Some(mut call) = call(core, key) else { return Ok(()) };
    let text = |member: &str| object["metadata"][member].as_str().map(str::to_owned);
    call.verb = "delete";
    call.options.precondition_uid = text("uid");
    call.options.precondition_revision = text("resourceVersion");
    call.options.propagation = Some(propagation);
    gone_is_done(call.delete().await)
}

/// An object that is gone, or was replaced by another of the same name, needs no further work.
fn gone_is_done<T>(result: Result<T, berth_apimachinery::error::ApiError>) -> Step {
    match result {
        Err(error) if error.reason != "NotFound" => Err(error),
        _ => Ok(()),
    }
}

/// Returns a request of the server itself on one object, in the storage version.
fn call(core: &Arc<Core>, key: &Key) -> Option<Call> {
    let served = core.catalog.served();
    let resource: &Arc<Resource> = served.by_storage(&key.resource)?;
    let target = Target {
        resource: Arc::clone(resource),
        version: resource.storage_version,
        namespace: key.namespace.to_string(),
        name: key.name.to_string(),
        sub: Sub::None,
    };
    Some(Call {
        core: Arc::clone(core),
        who: Identity::new(SELF, [builtin::SYSTEM_GROUP.to_owned()]),
        target,
        options: Options::default(),
        default_manager: "berth-apiserver".into(),
        warnings: Vec::new(),
        twice: Vec::new(),
        verb: "update",
        written: None,
    })
}

#[cfg(test)]
mod tests {
    use berth_store::{Action, Expect, Origin, Write};
    use serde_json::json;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_compaction_that_failed_is_not_repeated_with_every_write() {
        assert!(is_beyond(2, 1, None) && !is_beyond(1, 1, None));
        let failed = Some(Instant::now());
        assert!(!is_beyond(2, 1, failed));
        tokio::time::advance(RETRY).await;
        assert!(is_beyond(2, 1, failed));
    }

    #[tokio::test]
    async fn an_object_that_lost_its_owner_references_meanwhile_is_not_deleted() {
        let core = Core::in_memory();
        let namespace = Key::new(&core.namespaces, "", "default");
        let created = call(&core, &namespace).unwrap().create(json!({"metadata": {"name": "default"}})).await;
        created.unwrap();
        let key = Key::new(&"/configmaps".into(), "default", "owned");
        let owners = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": "gone"}]);
        let owned = json!({"metadata": {"name": "owned", "ownerReferences": owners}});
        call(&core, &key).unwrap().create(owned).await.unwrap();
        let read = core.store.get(&key).unwrap().value();
        patch_metadata(&core, &key, &read, "ownerReferences", &[]).await.unwrap();
        assert_eq!(collect(&core, &key, &read, None).await.unwrap_err().reason, "Conflict");
        assert!(core.store.get(&key).is_some(), "it has no owner that is gone any more");
    }

    #[tokio::test]
    async fn a_cluster_scoped_object_stays_while_the_owner_in_a_namespace_that_it_names_exists() {
        let core = Core::in_memory();
        let namespace = Key::new(&core.namespaces, "", "default");
        let created = call(&core, &namespace).unwrap().create(json!({"metadata": {"name": "default"}})).await;
        created.unwrap();
        let owner = Key::new(&"/configmaps".into(), "default", "owner");
        call(&core, &owner).unwrap().create(json!({"metadata": {"name": "owner"}})).await.unwrap();
        let uid = core.store.get(&owner).unwrap().facts.uid.to_string();
        let key = Key::new(&"rbac.authorization.k8s.io/clusterroles".into(), "", "owned");
        let owners = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid}]);
        let owned = json!({"metadata": {"name": "owned", "ownerReferences": owners}, "rules": []});
        call(&core, &key).unwrap().create(owned).await.unwrap();
        object(&core, &key, None).await.unwrap();
        assert!(core.store.get(&key).is_some());
        delete(&core, &owner, None, None).await.unwrap();
        object(&core, &key, None).await.unwrap();
        assert!(core.store.get(&key).is_none());
    }

    #[tokio::test]
    async fn an_object_that_names_an_owner_of_a_kind_that_is_not_served_is_left_alone() {
        let core = Core::in_memory();
        let namespace = Key::new(&core.namespaces, "", "default");
        let created = call(&core, &namespace).unwrap().create(json!({"metadata": {"name": "default"}})).await;
        created.unwrap();
        let key = Key::new(&"/configmaps".into(), "default", "owned");
        let create = async |owners: Value| {
            let owned = json!({"metadata": {"name": "owned", "ownerReferences": owners}});
            call(&core, &key).unwrap().create(owned).await.unwrap();
        };
        let boat = json!({"apiVersion": "toys.example/v1", "kind": "Boat", "name": "ada", "uid": "b"});
        let map =
            |version: &str| json!({"apiVersion": version, "kind": "ConfigMap", "name": "gone", "uid": "m"});
        for owners in [json!([boat]), json!([boat, map("v1")]), json!([map("v2")])] {
            create(owners.clone()).await;
            object(&core, &key, None).await.unwrap();
            let left = core.store.get(&key).expect("it is left alone").value();
            assert_eq!(owners_of(&left).len(), owners.as_array().unwrap().len());
            delete(&core, &key, None, None).await.unwrap();
        }
        create(json!([boat])).await;
        object(&core, &key, Some("b")).await.unwrap();
        assert!(core.store.get(&key).is_none(), "the removal of its owner was observed");
        let ship = json!({"apiVersion": "toys.example/v1", "kind": "Boat", "name": "eve", "uid": "e"});
        create(json!([boat, ship])).await;
        object(&core, &key, Some("b")).await.unwrap();
        let left = core.store.get(&key).expect("it has another owner").value();
        assert_eq!((owners_of(&left).len(), &owners_of(&left)[0]["uid"]), (1, &json!("e")));
        object(&core, &key, Some("e")).await.unwrap();
        assert!(core.store.get(&key).is_none(), "the removal of both was observed");
        create(json!([map("v1")])).await;
        object(&core, &key, None).await.unwrap();
        assert!(core.store.get(&key).is_none(), "its owner is of a kind that is served, and does not exist");
    }

    #[tokio::test]
    async fn a_definition_is_served_also_if_its_request_was_cancelled_while_it_was_written() {
        let core = Core::in_memory();
        let mut events = core.store.subscribe_all();
        let key = Key::new(&core.catalog.crds, "", "boats.toys.example");
        let version = json!({"name": "v1", "served": true, "storage": true,
            "schema": {"openAPIV3Schema": {"type": "object"}}});
        let names = json!({"plural": "boats", "singular": "boat", "kind": "Boat", "listKind": "BoatList"});
        let crd = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": "boats.toys.example", "uid": "u"}, "spec": {"group": "toys.example",
            "scope": "Namespaced", "names": names, "versions": [version]}});
        let served = core.catalog.served();
        let action = Action::Put(Core::encode(served.by_storage(&key.resource).unwrap(), &crd).unwrap());
        let (guards, by) = (Vec::new(), Origin::default());
        let write = Write { key, expect: Expect::Absent, action, guards, at_ms: 0, by, deferrable: false };
        core.store.submit(write).await.unwrap();
        assert!(core.catalog.served().find("toys.example", "boats").is_none());
        note(&core, &mut BTreeSet::new(), &events.try_recv().unwrap());
        assert!(core.catalog.served().find("toys.example", "boats").is_some());
    }
}
