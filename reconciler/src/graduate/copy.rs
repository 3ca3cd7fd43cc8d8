//! Copies objects from one control plane to another. A copy can be restarted at any point: an object is written
//! only if it differs from the wanted one.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use anyhow::{Context, bail};
use berth_api::MOVED_FROM_ANNOTATION;
use futures::{StreamExt, TryStreamExt};
use http::Method;
use kube::Client;
use serde_json::{Value, json};

use super::{
    freeze,
    kinds::{MovedKind, NAMESPACE, OURS, Object, QUOTA, SECRET, SecretNames},
    translate::{self, Uids},
};
use crate::requests::{self, has_code};

/// The field manager of the writes, until the copy gets its own.
const MANAGER: &str = "berth-graduate";
/// Namespaces that every control plane has.
const EVERYWHERE: [&str; 4] =
    ["default", "kube-system", berth_api::SYSTEM_NAMESPACE, berth_api::SHARED_NAMESPACE];
/// The number of attempts for an object that is written concurrently.
const ATTEMPTS: usize = 5;
/// Concurrent reads of Secrets: each is read by name, and there may be one per VM.
const AT_ONCE: usize = 16;
/// How long a control plane may take to serve kinds after their definitions are created.
const SERVED: Duration = Duration::from_secs(60);
/// How long Kubernetes may evaluate admission policies with a Quota that is deleted.
const SEEN: Duration = Duration::from_secs(1);

type Key = (&'static str, String, String);

/// All of a site's objects on one control plane, in the order in which they are copied.
#[derive(Clone, Debug, Default)]
pub(super) struct Contents(pub(super) Vec<Object>);

impl Contents {
    /// Reads the contents of a control plane.
    ///
    /// *Errors:* the control plane's; an object names a Secret that cannot be read.
    pub(super) async fn read(client: &Client) -> anyhow::Result<Self> {
        Self::read_with(client, &SecretNames::new()).await
    }

    /// Reads the contents and the Secrets in `also`, whether an object names them there or not.
    ///
    /// *Errors:* see [`Contents::read`].
    pub(super) async fn read_with(client: &Client, also: &SecretNames) -> anyhow::Result<Self> {
        let mut all = namespaces(client).await?;
        let mut ours = Self::default();
        for kind in OURS {
            ours.0.extend(list(client, kind).await?);
        }
        let named = &ours.secrets_named() | also;
        all.extend(secrets(client, &named).await?);
        all.extend(ours.0);
        Ok(Self(all))
    }

    /// Returns the Secrets that the objects name, whether they exist or not.
    pub(super) fn secrets_named(&self) -> SecretNames {
        self.0.iter().flat_map(secrets_of).collect()
    }

    /// Returns the objects of a kind.
    pub(super) fn of(&self, kind: MovedKind) -> impl Iterator<Item = &Object> {
        self.0.iter().filter(move |object| object.kind == kind)
    }

    /// Returns the objects' keys and versions.
    fn versions(&self) -> BTreeSet<(Key, String)> {
        self.0.iter().map(|object| (object.key(), object.version().to_owned())).collect()
    }
}

async fn list(client: &Client, kind: MovedKind) -> anyhow::Result<Vec<Object>> {
    let path = kind.collection(None);
    let listed = match requests::list(client, &path, None).await {
        Err(error) if is_missing(&error) => Vec::new(),
        other => other.with_context(|| format!("listing each {}", kind.name))?,
    };
    let mut objects: Vec<Object> = listed.into_iter().map(|value| Object::new(kind, value)).collect();
    // Preserves the order of creation, which decides between two objects that want the same resource.
    objects.sort_by_key(|object| {
        (object.value["metadata"]["creationTimestamp"].as_str().map(str::to_owned), object.key())
    });
    Ok(objects)
}

/// A kind that is not defined yet has no objects.
fn is_missing(error: &anyhow::Error) -> bool {
    error.downcast_ref::<kube::Error>().is_some_and(|error| has_code(error, 404))
}

async fn namespaces(client: &Client) -> anyhow::Result<Vec<Object>> {
    let all = list(client, NAMESPACE).await?;
    let is_theirs = |name: &str| EVERYWHERE.contains(&name) || name.starts_with("kube-");
    let own = |object: &Object| !is_theirs(object.name()) || translate::is_restricted(object);
    Ok(all.into_iter().filter(own).collect())
}

/// Returns the Secrets that an object names, as far as a Secret can have that name.
fn secrets_of(object: &Object) -> impl Iterator<Item = (String, String)> {
    let spec = &object.value["spec"];
    let names: Vec<&Value> = match object.kind.name {
        "VM" => {
            let users = spec["guestUsers"].as_array().into_iter().flatten();
            let bootstrap = ["secretName", "sshAuthorizedKeysSecret"].map(|key| &spec["bootstrap"][key]);
            let keys = &spec["secureBootKeys"]["secretName"];
            let of_users = users.flat_map(|user| [&user["sshAuthorizedKeysSecret"], &user["passwordSecret"]]);
            bootstrap.into_iter().chain(of_users).chain([keys]).collect()
        }
        "Image" => vec![&spec["source"]["secretName"]],
        "KeyClass" => {
            let vault = &spec["vault"];
            let of_vault = [&vault["tokenSecret"], &vault["appRole"]["secret"], &vault["caSecret"]];
            of_vault.into_iter().chain([&spec["secret"]]).map(|secret| &secret["name"]).collect()
        }
        "BackupRepository" => vec![&spec["passwordSecretName"], &spec["credentialsSecretName"]],
        _ => Vec::new(),
    };
    let names = names.into_iter().filter_map(Value::as_str).filter(|name| is_name_of_secret(name));
    names.map(|name| (object.namespace().unwrap_or_default().to_owned(), name.to_owned()))
}

fn is_name_of_secret(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
    name.bytes().all(fits) && name.bytes().any(|byte| byte.is_ascii_alphanumeric())
}

async fn secrets(client: &Client, named: &SecretNames) -> anyhow::Result<Vec<Object>> {
    let each = named.iter().map(|(namespace, name)| secret(client, namespace, name));
    let found: Vec<Option<Object>> = futures::stream::iter(each).buffered(AT_ONCE).try_collect().await?;
    Ok(found.into_iter().flatten().collect())
}

async fn secret(client: &Client, namespace: &str, name: &str) -> anyhow::Result<Option<Object>> {
    let path = format!("{}/{name}", SECRET.collection(Some(namespace)));
    match requests::get(client, &path).await {
        Ok(value) => Ok(Some(Object::new(SECRET, value))),
        Err(error) if has_code(&error, 404) => Ok(None),
        Err(error) => Err(error).with_context(|| format!("reading Secret {namespace}/{name}")),
    }
}

/// Waits until the control plane serves every kind, which may take a moment after a definition is created.
pub(super) async fn until_served(client: &Client) -> anyhow::Result<()> {
    let begun = tokio::time::Instant::now();
    for kind in OURS {
        let path = format!("{}?limit=1", kind.collection(None));
        loop {
            match requests::get(client, &path).await {
                Err(error) if has_code(&error, 404) && begun.elapsed() < SERVED => {}
                answer => {
                    break drop(answer.with_context(|| format!("asking whether it serves {}", kind.plural))?);
                }
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
    Ok(())
}

/// The source and the target of a copy.
#[derive(Clone)]
pub(super) struct Copying<'a> {
    pub(super) from: &'a Client,
    pub(super) to: &'a Client,
    /// The target accessed as a member of `system:masters`, for operations that it permits to this group only.
    pub(super) masters: &'a Client,
    /// Objects that the target has and the source has not are removed: the target is an older state of the same
    /// site.
    pub(super) replace: bool,
    /// The target's address, for the message of a write that is rejected during the copy.
    pub(super) address: &'a str,
}

impl Copying<'_> {
    /// Makes the target's objects equal to the source's.
    ///
    /// *Assumptions:* no controller or agent acts on the target's objects, and the source's objects stop changing
    /// soon.
    ///
    /// *Errors:* a control plane's; an object of another origin has a name that is needed.
    pub(super) async fn run(&self) -> anyhow::Result<()> {
        for _ in 0..ATTEMPTS {
            let source = Contents::read(self.from).await?;
            freeze::hold(self.from, &source.secrets_named(), self.address).await?;
            self.once(&source).await?;
            if Contents::read(self.from).await?.versions() == source.versions() {
                return Ok(());
            }
        }
        bail!("objects keep changing although the control plane takes no writes: is it frozen?")
    }

    async fn once(&self, source: &Contents) -> anyhow::Result<()> {
        let target = Contents::read(self.to).await?;
        if self.replace {
            self.remove_quotas(source, &target).await?;
        }
        let mut uids = Uids::new();
        let mut made: BTreeMap<Key, Object> = BTreeMap::new();
        for object in &source.0 {
            let there = self.ensure(object).await.with_context(|| format!("copying {}", object.title()))?;
            uids.insert(object.uid().to_owned(), there.uid().to_owned());
            made.insert(object.key(), there);
        }
        for object in &source.0 {
            let there = &made[&object.key()];
            self.finish(object, there, &uids).await.with_context(|| format!("copying {}", object.title()))?;
        }
        self.prune(&target, &made).await
    }

    /// Removes the Quotas of an older state. Nothing counts on the target: with the limits and amounts of that time they would refuse
    /// objects that the site has got since. Their copies come last.
    async fn remove_quotas(&self, source: &Contents, target: &Contents) -> anyhow::Result<()> {
        let mut is_removed = false;
        for quota in target.of(QUOTA).filter(|quota| !is_copied(quota, source)) {
            remove(self.to, quota).await.with_context(|| format!("taking away {}", quota.title()))?;
            is_removed = true;
        }
        if is_removed {
            tokio::time::sleep(SEEN).await;
        }
        Ok(())
    }

    /// Creates or corrects the object's declaration; its status and owners follow when all objects have their uids.
    async fn ensure(&self, object: &Object) -> anyhow::Result<Object> {
        let mut wanted = translate::created(object);
        for _ in 0..ATTEMPTS {
            let found = match requests::get(self.to, &object.path()).await {
                Ok(found) => Object::new(object.kind, found),
                Err(error) if has_code(&error, 404) => match self.create(object, &wanted).await {
                    Err(error) if has_code(&error, 409) => continue,
                    made => return Ok(Object::new(object.kind, made?)),
                },
                Err(error) => return Err(error.into()),
            };
            if !self.replace && !is_same(object, &found) {
                bail!("the target has another one of that name: rename or delete one of them");
            }
            if object.kind == NAMESPACE {
                if let Some(metadata) = translate::restrictions(object, &found, self.replace) {
                    self.merge(&object.path(), found.uid(), &metadata).await?;
                }
                return Ok(found);
            }
            if found.was(found.uid()) || !is_moved(object, &found) {
                translate::take_over(&mut wanted, found.uid());
            }
            let Some(corrected) = translate::corrected(&wanted, &found.value) else { return Ok(found) };
            match self.privileged(Method::PUT, &object.path(), "application/json", &corrected).await {
                Err(error) if has_code(&error, 409) => {}
                written => return Ok(Object::new(object.kind, written?)),
            }
        }
        bail!("another client keeps writing it")
    }

    async fn create(&self, object: &Object, wanted: &Value) -> kube::Result<Value> {
        self.privileged(Method::POST, &object.collection(), "application/json", wanted).await
    }

    /// Sends a write; if it is rejected, repeats it as a member of `system:masters`.
    async fn privileged(&self, method: Method, path: &str, kind: &str, body: &Value) -> kube::Result<Value> {
        let path = format!("{path}?fieldManager={MANAGER}");
        match requests::send(self.to, method.clone(), &path, kind, body).await {
            Err(error) if has_code(&error, 403) => {
                requests::send(self.masters, method, &path, kind, body).await.map_err(|_| error)
            }
            other => other,
        }
    }

    /// Copies a pending deletion, the status, owners, and field ownership: in this order.
    async fn finish(&self, object: &Object, there: &Object, uids: &Uids) -> anyhow::Result<()> {
        let path = object.path();
        if object.is_terminating() && !there.is_terminating() {
            // Before the status with its users is written: the source has already allowed the deletion.
            delete(self.to, &path, there.uid()).await?;
        }
        if object.kind.ours {
            self.write_status(object, &path, uids).await?;
        }
        let owners = translate::owners(object, uids);
        let live = requests::get(self.to, &path).await?;
        let known = live["metadata"].get("ownerReferences").cloned().unwrap_or_else(|| json!([]));
        if known != owners {
            self.merge(&path, there.uid(), &json!({"ownerReferences": owners})).await?;
        }
        let Some(fields) = translate::ownership(object, uids) else { return Ok(()) };
        let live = requests::get(self.to, &path).await?;
        if live["metadata"]["managedFields"] != fields && object.kind != NAMESPACE {
            self.merge(&path, there.uid(), &json!({"managedFields": fields})).await?;
        }
        Ok(())
    }

    async fn write_status(&self, object: &Object, path: &str, uids: &Uids) -> anyhow::Result<()> {
        for _ in 0..ATTEMPTS {
            let mut live = requests::get(self.to, path).await?;
            let generation = live["metadata"]["generation"].as_i64().unwrap_or(1);
            let Some(status) = translate::status(object, uids, generation) else { return Ok(()) };
            if live["status"] == status {
                return Ok(());
            }
            live["status"] = status;
            let to = format!("{path}/status");
            match self.privileged(Method::PUT, &to, "application/json", &live).await {
                Err(error) if has_code(&error, 409) => {}
                written => return written.map(drop).context("writing its status"),
            }
        }
        bail!("another client keeps writing its status")
    }

    async fn merge(&self, path: &str, uid: &str, metadata: &Value) -> kube::Result<()> {
        let mut metadata = metadata.clone();
        metadata["uid"] = uid.into();
        let patch = json!({"metadata": metadata});
        self.privileged(Method::PATCH, path, "application/merge-patch+json", &patch).await.map(drop)
    }

    /// Removes the objects that the source no longer has: copies of an earlier attempt, or part of an older state.
    async fn prune(&self, target: &Contents, made: &BTreeMap<Key, Object>) -> anyhow::Result<()> {
        for object in
            target.0.iter().rev().filter(|object| object.kind.ours && !made.contains_key(&object.key()))
        {
            if !self.replace && object.annotation(MOVED_FROM_ANNOTATION).is_none() {
                bail!(
                    "the target has {} of its own: a site moves to a control plane without one",
                    object.title()
                );
            }
            remove(self.to, object).await.with_context(|| format!("taking away {}", object.title()))?;
        }
        Ok(())
    }
}

/// Whether the target's Quota is a copy that this move has made, so that it refuses nothing of what is copied: its status is written
/// when all objects exist.
fn is_copied(theirs: &Object, source: &Contents) -> bool {
    let Some(ours) = source.of(QUOTA).find(|ours| ours.key() == theirs.key()) else { return false };
    let (used, wanted) = (&theirs.value["status"]["used"], &ours.value["status"]["used"]);
    theirs.was(ours.uid()) && theirs.value["spec"] == ours.value["spec"] && (used.is_null() || used == wanted)
}

/// Whether one of two objects is a copy of the other, or both are copies of a third.
pub(super) fn is_moved(object: &Object, found: &Object) -> bool {
    found.was(object.uid()) || object.was(found.uid()) || object.before().any(|uid| found.was(uid))
}

/// Whether the target's object is this object and not another of that name: a copy, one that every installation
/// creates, or one that is identical byte for byte.
pub(super) fn is_same(object: &Object, found: &Object) -> bool {
    let equal = match object.kind.name {
        "Namespace" => true,
        "Secret" => object.value["data"] == found.value["data"],
        "Network" | "IPPool" | "StoragePool" => object.value["spec"] == found.value["spec"],
        _ => false,
    };
    equal || is_moved(object, found)
}

/// Removes a copy's annotation from an object.
pub(super) async fn unmark(client: &Client, object: &Object) -> anyhow::Result<()> {
    let patch = json!({"metadata": {"uid": object.uid(), "annotations": {MOVED_FROM_ANNOTATION: null}}});
    let merge = "application/merge-patch+json";
    match requests::send(client, Method::PATCH, &object.path(), merge, &patch).await {
        Err(error) if has_code(&error, 404) => Ok(()),
        other => {
            other?;
            Ok(())
        }
    }
}

/// Removes an object on which no controller acts, whatever finalizers and protection it has.
pub(super) async fn remove(client: &Client, object: &Object) -> anyhow::Result<()> {
    let path = object.path();
    let gone = |result: kube::Result<Value>| match result {
        Err(error) if has_code(&error, 404) => Ok(()),
        other => other.map(drop),
    };
    let merge = "application/merge-patch+json";
    gone(requests::send(client, Method::PATCH, &path, merge, &translate::released(object)).await)?;
    delete(client, &path, object.uid()).await?;
    Ok(())
}

async fn delete(client: &Client, path: &str, uid: &str) -> kube::Result<()> {
    let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}, "propagationPolicy": "Background"});
    match requests::send(client, Method::DELETE, path, "application/json", &options).await {
        Err(error) if has_code(&error, 404) => Ok(()),
        other => other.map(drop),
    }
}
