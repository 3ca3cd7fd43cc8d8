//! The controllers' only writer. It makes the writes of one decision in order, concurrently with those of other
//! decisions.

use std::{fmt::Debug, time::Duration};

use berth_api::{
    CONTROLLER_MANAGER, Host, JsonKind, SYSTEM_NAMESPACE, Unparsed, VM, disk_read::READ_UNTIL_ANNOTATION,
    host_addresses::HOST_ADDRESSES, manifests::access,
};
use futures::{FutureExt, future::BoxFuture};
use k8s_openapi::{
    NamespaceResourceScope,
    api::{
        coordination::v1::Lease,
        core::v1::{ConfigMap, ServiceAccount},
        rbac::v1::{Role, RoleBinding},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
    core::Status,
};
use serde_json::{Value, json};
use tracing::warn;

use crate::{
    batch::Write,
    key::Key,
    key::ObjectKind,
    object::{Object, StatusVisitor, WithStatus},
};

/// Delays in milliseconds before the successive reads of an object after a failed write; after the last one the
/// cached state counts again.
const READ_DELAYS: [u64; 10] = [0, 100, 200, 400, 1_000, 2_000, 5_000, 10_000, 20_000, 20_000];

/// A write that failed.
#[derive(Debug, thiserror::Error)]
#[error("writing {kind} {namespace}/{name}")]
pub(crate) struct WriteError {
    kind: &'static str,
    namespace: String,
    name: String,
    source: kube::Error,
}

impl WriteError {
    pub(crate) fn new(key: &Key, source: kube::Error) -> Self {
        Self {
            kind: key.kind.as_str(),
            namespace: key.namespace().to_owned(),
            name: key.name.to_string(),
            source,
        }
    }

    /// Whether the control plane has no storage left for it.
    pub(crate) fn is_full(&self) -> bool {
        matches!(&self.source, kube::Error::Api(status) if status.code == 507)
    }

    /// Whether another write came between our read and our write, or the object is gone.
    pub(crate) fn is_conflict(&self) -> bool {
        matches!(&self.source, kube::Error::Api(status) if status.code == 409 || status.code == 404)
    }
}

/// The server's state of an object.
#[derive(Clone, Debug)]
pub(crate) enum Response {
    /// The object exists.
    Is(Object),
    /// It is gone.
    Gone(Key),
    /// The current Lease of a host.
    Lease(String, Option<Box<Lease>>),
}

impl Response {
    fn key(&self) -> Key {
        match self {
            Self::Is(object) => object.key(),
            Self::Gone(key) => key.clone(),
            Self::Lease(host, _) => Key::namespaced(ObjectKind::Lease, SYSTEM_NAMESPACE, host),
        }
    }
}

/// The result of the writes of one decision.
#[derive(Debug, Default)]
pub(crate) struct WriteResult {
    /// The server's responses, the latest last. After a failure also the state of the objects that were not
    /// written; objects that could not be read are missing.
    pub(crate) responses: Vec<Response>,
    /// The write that failed: the writes after it were not attempted.
    pub(crate) error: Option<WriteError>,
}

/// Makes writes.
#[derive(Clone)]
pub(crate) struct Writer(Client);

impl Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Writer")
    }
}

/// An operation on an object.
#[derive(Clone, Copy)]
enum Operation<'a> {
    /// Read it.
    Read,
    /// Create it.
    Create,
    /// Delete this version of it. The result is the object if a finalizer of another program holds it.
    Delete,
    /// Write its finalizers.
    Finalizers(&'a [String]),
    /// Write its status, over this version of it.
    Status(&'a ObjectMeta),
}

/// An operation with the client to make it with.
struct Attempt<'a>(&'a Writer, Operation<'a>);

impl<'a> StatusVisitor for Attempt<'a> {
    type Output = BoxFuture<'a, Result<Option<Object>, kube::Error>>;

    fn visit<K: WithStatus>(self, object: &K) -> Self::Output {
        let Self(writer, operation) = self;
        let key = Key::of(object);
        sent(K::api(writer.0.clone(), &key), key.name.to_string(), request(object, operation), read::<K>)
            .boxed()
    }
}

impl Writer {
    async fn object(&self, object: &Object, operation: Operation<'_>) -> Result<Option<Object>, kube::Error> {
        match object.visit(Attempt(self, operation)) {
            Some(written) => written.await,
            None => Ok(None),
        }
    }

    pub(crate) fn new(client: Client) -> Self {
        Self(client)
    }

    /// Makes the writes, in order, up to the first that fails.
    pub(crate) async fn run(&self, writes: &[Write]) -> WriteResult {
        let mut responses = Vec::new();
        for (done, write) in writes.iter().enumerate() {
            match self.write(write, &responses).await {
                Ok(response) => responses.extend(response),
                Err(source) => {
                    let error = Some(WriteError::new(&write.key(), source));
                    self.read_back(&writes[done..], &mut responses).await;
                    return WriteResult { responses, error };
                }
            }
        }
        WriteResult { responses, error: None }
    }

    async fn write(&self, write: &Write, before: &[Response]) -> Result<Option<Response>, kube::Error> {
        let response = match write {
            Write::Finalizers(object, finalizers) => {
                let written = self.object(object, Operation::Finalizers(finalizers)).await?;
                written.map(|written| {
                    // The response to a patch that removed the last finalizer is the object's last state: it is
                    // gone.
                    let meta = written.meta();
                    let is_gone = meta.deletion_timestamp.is_some()
                        && meta.finalizers.as_ref().is_none_or(Vec::is_empty);
                    if is_gone { Response::Gone(written.key()) } else { Response::Is(written) }
                })
            }
            Write::Status(object) => {
                let key = object.key();
                let meta = match before.iter().rev().find(|response| response.key() == key) {
                    Some(Response::Is(written)) => written.meta(),
                    Some(_) => return Ok(None),
                    None => object.meta(),
                };
                self.object(object, Operation::Status(meta)).await?.map(Response::Is)
            }
            Write::Create(object) => self.object(object, Operation::Create).await?.map(Response::Is),
            Write::Delete(object) => {
                let held = self.object(object, Operation::Delete).await?;
                Some(held.map_or_else(|| Response::Gone(object.key()), Response::Is))
            }
            Write::Allow { role, host, secrets } => Some(self.allow(role, host, secrets).await?),
            Write::Disallow(role) => {
                let bindings = self.namespaced::<RoleBinding>(role.namespace());
                ended(bindings.delete(&role.name, &DeleteParams::default()).await)?;
                let roles = self.namespaced::<Role>(role.namespace());
                ended(roles.delete(&role.name, &DeleteParams::default()).await)?;
                Some(Response::Gone(role.clone()))
            }
            Write::TicketAccount { namespace, account } => {
                Some(self.ticket_account(namespace, account).await?)
            }
            Write::HostAddresses(data) => {
                let map = json!({
                    "apiVersion": "v1", "kind": "ConfigMap",
                    "metadata": {"name": HOST_ADDRESSES, "namespace": SYSTEM_NAMESPACE}, "data": data,
                });
                let params = PatchParams::apply(CONTROLLER_MANAGER).force();
                let maps = self.namespaced::<ConfigMap>(SYSTEM_NAMESPACE);
                let written = maps.patch(HOST_ADDRESSES, &params, &Patch::Apply(&map)).await?;
                Some(Response::Is(parsed::<ConfigMap>(&written)?.into()))
            }
            Write::ReadLease(host) => {
                let found = self.namespaced::<Lease>(SYSTEM_NAMESPACE).get_opt(host).await?;
                let lease = found.as_ref().map(parsed::<Lease>).transpose()?;
                Some(Response::Lease(host.clone(), lease.map(Box::new)))
            }
            Write::EndRecovery(host) => {
                let patch = json!({
                    "metadata": {"uid": host.uid(), "resourceVersion": host.resource_version()},
                    "spec": {"recovery": null},
                });
                self.answer(host.as_ref(), Request::Patch(patch)).await?
            }
            Write::CreateNetwork(network) => {
                self.answer(network.as_ref(), Request::Create(text(network.as_ref())?)).await?
            }
            Write::ChangeDisk(disk, spec) => {
                let patch = json!({
                    "metadata": {"uid": disk.uid(), "resourceVersion": disk.resource_version()}, "spec": spec,
                });
                self.answer(disk.as_ref(), Request::Patch(patch)).await?
            }
            Write::ChangeMetadata(disk, changes) => {
                // Without the version: its status may be written in the same batch, and each value stands for itself.
                let mut patch = json!({"metadata": changes});
                patch["metadata"]["uid"] = json!(disk.uid());
                self.answer(disk.as_ref(), Request::Patch(patch)).await?
            }
            Write::EndRead(backup) => {
                // Without the version: its status may be written in the same batch.
                let annotations = json!({READ_UNTIL_ANNOTATION: null});
                let patch = json!({"metadata": {"uid": backup.uid(), "annotations": annotations}});
                self.answer(backup.as_ref(), Request::Patch(patch)).await?
            }
            Write::EndHost(host) => Some(self.end_host(host).await?),
            Write::EnsureGone { vm, uid } => {
                let found = self.namespaced::<VM>(vm.namespace()).get_opt(&vm.name).await?;
                if found.is_some_and(|found| found.uid().as_ref() == Some(uid)) {
                    return Err(conflict("the VM is there"));
                }
                None
            }
        };
        Ok(response)
    }

    /// The objects of a kind in a namespace, as text.
    fn namespaced<K>(&self, namespace: &str) -> Api<Unparsed>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced_with(self.0.clone(), namespace, &Unparsed::resource::<K>())
    }

    /// Sends a request about this object; the answer is the object as it is then.
    async fn answer<K: WithStatus>(
        &self,
        object: &K,
        request: Request,
    ) -> Result<Option<Response>, kube::Error> {
        let key = Key::of(object);
        let answer = sent(K::api(self.0.clone(), &key), key.name.to_string(), Ok(request), read::<K>).await?;
        Ok(answer.map(Response::Is))
    }

    /// Reads the objects of these writes, which failed or were not attempted.
    async fn read_back(&self, writes: &[Write], responses: &mut Vec<Response>) {
        for write in writes {
            let (Write::Finalizers(object, _) | Write::Status(object)) = write else { continue };
            let key = object.key();
            let is_failed = std::ptr::eq(write, &writes[0]);
            if is_failed || !responses.iter().any(|response| response.key() == key) {
                responses.extend(self.read(object).await);
            }
        }
    }

    async fn read(&self, object: &Object) -> Option<Response> {
        for delay in READ_DELAYS {
            tokio::time::sleep(Duration::from_millis(delay)).await;
            match self.object(object, Operation::Read).await {
                Ok(Some(object)) => return Some(Response::Is(object)),
                Ok(None) => return Some(Response::Gone(object.key())),
                Err(kube::Error::Api(status)) if (400..500).contains(&status.code) && status.code != 429 => {
                    return None;
                }
                Err(_) => {}
            }
        }
        None
    }

    async fn allow(&self, key: &Key, host: &str, secrets: &[String]) -> Result<Response, kube::Error> {
        let names: Vec<&str> = secrets.iter().map(String::as_str).collect();
        let [role, binding] = access::secrets(host, key.namespace(), &names);
        let params = PatchParams::apply(CONTROLLER_MANAGER).force();
        let bindings = self.namespaced::<RoleBinding>(key.namespace());
        let roles = self.namespaced::<Role>(key.namespace());
        // The binding comes first, so that the role's rules imply that both exist.
        match bindings.patch(&key.name, &params, &Patch::Apply(&binding)).await {
            // Only an administrator may bind a role that does not exist.
            Err(kube::Error::Api(status)) if status.code == 404 => {
                let empty = json!({"apiVersion": role["apiVersion"], "kind": "Role", "metadata": role["metadata"],
                    "rules": []});
                roles.patch(&key.name, &params, &Patch::Apply(&empty)).await?;
                bindings.patch(&key.name, &params, &Patch::Apply(&binding)).await?;
            }
            response => drop(response?),
        }
        let written = roles.patch(&key.name, &params, &Patch::Apply(&role)).await?;
        Ok(Response::Is(parsed::<Role>(&written)?.into()))
    }

    /// Creates the account, or leaves it as it is. A refusal is not repeated before the next list of accounts: tickets are
    /// not worth a VM's other writes.
    async fn ticket_account(&self, namespace: &str, name: &str) -> Result<Response, kube::Error> {
        let account = json!({
            "apiVersion": "v1", "kind": "ServiceAccount", "automountServiceAccountToken": false,
            "metadata": {"name": name, "namespace": namespace},
        });
        let accounts = self.namespaced::<ServiceAccount>(namespace);
        let params = PatchParams::apply(CONTROLLER_MANAGER).force();
        match accounts.patch(name, &params, &Patch::Apply(&account)).await {
            Err(kube::Error::Api(status)) => {
                warn!(namespace, name, error = %status.message, "the account for tickets cannot be created");
                let mut refused = ServiceAccount::default();
                refused.metadata.name = Some(name.to_owned());
                refused.metadata.namespace = Some(namespace.to_owned());
                Ok(Response::Is(refused.into()))
            }
            response => Ok(Response::Is(parsed::<ServiceAccount>(&response?)?.into())),
        }
    }

    async fn end_host(&self, host: &Host) -> Result<Response, kube::Error> {
        let name = host.name_any();
        let this_one = Preconditions { uid: host.uid(), resource_version: None };
        let params = DeleteParams { preconditions: Some(this_one), ..DeleteParams::default() };
        let hosts = Host::api(self.0.clone(), &Key::of(host));
        ended(hosts.delete(&name, &params).await)?;
        let leases = self.namespaced::<Lease>(SYSTEM_NAMESPACE);
        ended(leases.delete(&name, &DeleteParams::default()).await)?;
        Ok(Response::Gone(Key::of(host)))
    }
}

/// A request about an object of a kind that does not matter.
enum Request {
    Read,
    Create(Unparsed),
    Delete(Preconditions),
    Patch(Value),
    Status(Unparsed),
}

/// The request of an operation on an object.
fn request<K: WithStatus>(object: &K, operation: Operation<'_>) -> Result<Request, kube::Error> {
    let version = Preconditions { uid: object.uid(), resource_version: object.resource_version() };
    Ok(match operation {
        Operation::Read => Request::Read,
        Operation::Create => Request::Create(text(object)?),
        Operation::Delete => Request::Delete(version),
        Operation::Finalizers(finalizers) => Request::Patch(json!({"metadata": {
            "uid": version.uid, "resourceVersion": version.resource_version, "finalizers": finalizers,
        }})),
        // A copy is only needed for other metadata: that of the response to a write before.
        Operation::Status(meta) if std::ptr::eq(meta, object.meta()) && meta.managed_fields.is_none() => {
            Request::Status(text(object)?)
        }
        Operation::Status(meta) => {
            let mut object = object.clone();
            *object.meta_mut() = ObjectMeta { managed_fields: None, ..meta.clone() };
            Request::Status(text(&object)?)
        }
    })
}

/// Sends the request, and reads the answer: the object, or none if it is gone. Compiled once for all kinds.
async fn sent(
    api: Api<Unparsed>,
    name: String,
    request: Result<Request, kube::Error>,
    read: fn(&Unparsed) -> Result<Object, kube::Error>,
) -> Result<Option<Object>, kube::Error> {
    let request = request?;
    let is_deletion = matches!(request, Request::Delete(_));
    let answer = send(api, &name, request).await?;
    let object = answer.as_ref().map(read).transpose()?;
    let is_held = |object: &Object| object.meta().finalizers.as_ref().is_some_and(|held| !held.is_empty());
    Ok(object.filter(|object| !is_deletion || is_held(object)))
}

fn read<K: WithStatus>(answer: &Unparsed) -> Result<Object, kube::Error> {
    parsed::<K>(answer).map(Into::into)
}

/// Sends the request; the answer is the object, or none if there is none.
async fn send(api: Api<Unparsed>, name: &str, request: Request) -> Result<Option<Unparsed>, kube::Error> {
    let post = || PostParams { field_manager: manager(), ..PostParams::default() };
    match request {
        Request::Read => api.get_opt(name).await,
        Request::Create(object) => api.create(&post(), &object).await.map(Some),
        Request::Status(object) => api.replace_subresource("status", name, &post(), &object).await.map(Some),
        Request::Patch(patch) => {
            let params = PatchParams { field_manager: manager(), ..PatchParams::default() };
            api.patch(name, &params, &Patch::Merge(&patch)).await.map(Some)
        }
        Request::Delete(version) => {
            let params = DeleteParams { preconditions: Some(version), ..DeleteParams::background() };
            match api.delete(name, &params).await {
                Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
                deleted => deleted.map(|deleted| deleted.left()),
            }
        }
    }
}

fn parsed<K: JsonKind>(object: &Unparsed) -> Result<K, kube::Error> {
    object.parse().map_err(kube::Error::SerdeError)
}

fn text<K: JsonKind>(object: &K) -> Result<Unparsed, kube::Error> {
    Unparsed::of(object).map_err(kube::Error::SerdeError)
}

fn manager() -> Option<String> {
    Some(CONTROLLER_MANAGER.to_owned())
}

fn conflict(text: &str) -> kube::Error {
    kube::Error::Api(Box::new(Status::failure(text, "Conflict").with_code(409)))
}

fn ended<T>(result: kube::Result<T>) -> kube::Result<()> {
    match result {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => other.map(|_| ()),
    }
}
