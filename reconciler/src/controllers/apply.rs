//! The only writer of the controllers. It makes the writes of one decision in their order; those of other decisions
//! are under way beside them.

use std::{fmt::Debug, time::Duration};

use berth_api::{CONTROLLER_MANAGER, Host, SYSTEM_NAMESPACE, manifests::access};
use k8s_openapi::{
    NamespaceResourceScope,
    api::{
        coordination::v1::Lease,
        rbac::v1::{Role, RoleBinding},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
    core::Status,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;

use super::{Key, Kind, draft::Write, key::Watched, watches::Object};

/// When it is asked what became of an object whose write failed, in milliseconds after each other; then what was known
/// of it counts again.
const ASKED: [u64; 10] = [0, 100, 200, 400, 1_000, 2_000, 5_000, 10_000, 20_000, 20_000];

/// A write that failed.
#[derive(Debug, thiserror::Error)]
#[error("writing {kind} {namespace}/{name}")]
pub(super) struct WriteError {
    kind: &'static str,
    namespace: String,
    name: String,
    source: kube::Error,
}

impl WriteError {
    pub(super) fn new(key: &Key, source: kube::Error) -> Self {
        Self {
            kind: key.kind.as_str(),
            namespace: key.namespace().to_owned(),
            name: key.name.clone(),
            source,
        }
    }

    /// Whether the control plane has no room left for it.
    pub(super) fn is_full(&self) -> bool {
        matches!(&self.source, kube::Error::Api(status) if status.code == 507)
    }

    /// Whether somebody else wrote between our read and our write, or the object is gone.
    pub(super) fn is_conflict(&self) -> bool {
        matches!(&self.source, kube::Error::Api(status) if status.code == 409 || status.code == 404)
    }
}

/// What the server says of an object.
#[derive(Clone, Debug)]
pub(super) enum Answer {
    /// It is this.
    Is(Object),
    /// It is gone.
    Gone(Key),
    /// The Lease of a host, as it is now.
    Lease(String, Option<Box<Lease>>),
}

impl Answer {
    fn key(&self) -> Key {
        match self {
            Self::Is(object) => object.key(),
            Self::Gone(key) => key.clone(),
            Self::Lease(host, _) => Key::namespaced(Kind::Lease, SYSTEM_NAMESPACE, host),
        }
    }
}

/// What became of the writes of one decision.
#[derive(Debug, Default)]
pub(super) struct Written {
    /// What the server said, the latest last. After a failure also of the objects that were not written; of one it
    /// could not be asked about there is nothing.
    pub(super) answers: Vec<Answer>,
    /// The write that failed: none after it was tried.
    pub(super) error: Option<WriteError>,
}

/// Makes writes.
#[derive(Clone)]
pub(super) struct Writer(Client);

impl Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Writer")
    }
}

/// An object of a kind whose status the controllers write.
pub(super) trait WithStatus: Watched + Serialize + DeserializeOwned + Debug + Into<Object> {
    /// The status type.
    type Status: PartialEq + Clone + Default;
    fn status(&self) -> Option<&Self::Status>;
    fn set_status(&mut self, status: Self::Status);
    fn api(client: Client, key: &Key) -> Api<Self>;
}

macro_rules! with_status {
    ($($kind:ident, $status:ident, $api:expr;)+) => {
        $(impl WithStatus for berth_api::$kind {
            type Status = berth_api::$status;
            fn status(&self) -> Option<&Self::Status> { self.status.as_ref() }
            fn set_status(&mut self, status: Self::Status) { self.status = Some(status); }
            fn api(client: Client, key: &Key) -> Api<Self> { ($api)(client, key) }
        })+

        impl Writer {
            async fn object(&self, object: &Object, write: What<'_>) -> Result<Option<Object>, kube::Error> {
                match object {
                    $(Object::$kind(object) => self.typed(object.as_ref(), write).await,)+
                    Object::Lease(_) | Object::ServiceAccount(_) | Object::Role(_) => Ok(None),
                }
            }
        }
    };
}

fn namespaced<K>(client: Client, key: &Key) -> Api<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    Api::namespaced(client, key.namespace())
}

fn cluster<K: Resource<DynamicType = ()>>(client: Client, _: &Key) -> Api<K> {
    Api::all(client)
}

with_status! {
    VM, VMStatus, namespaced;
    Disk, DiskStatus, namespaced;
    HotswapDiskAttachment, HotswapDiskAttachmentStatus, namespaced;
    Image, ImageStatus, namespaced;
    PublicIP, PublicIPStatus, namespaced;
    PlacementGroup, PlacementGroupStatus, namespaced;
    VMClass, VMClassStatus, namespaced;
    Network, NetworkStatus, namespaced;
    IPPool, IPPoolStatus, cluster;
    StoragePool, StoragePoolStatus, cluster;
    Host, HostStatus, cluster;
}

/// What to do with an object.
#[derive(Clone, Copy)]
enum What<'a> {
    /// Read it.
    Read,
    /// Write its finalizers.
    Finalizers(&'a [String]),
    /// Write its status, over this version of it.
    Status(&'a ObjectMeta),
}

impl Writer {
    pub(super) fn new(client: Client) -> Self {
        Self(client)
    }

    /// Makes the writes, in order, up to the first that fails.
    pub(super) async fn run(&self, writes: &[Write]) -> Written {
        let mut answers = Vec::new();
        for (done, write) in writes.iter().enumerate() {
            match self.write(write, &answers).await {
                Ok(answer) => answers.extend(answer),
                Err(source) => {
                    let error = Some(WriteError::new(&write.key(), source));
                    self.ask_again(&writes[done..], &mut answers).await;
                    return Written { answers, error };
                }
            }
        }
        Written { answers, error: None }
    }

    async fn write(&self, write: &Write, before: &[Answer]) -> Result<Option<Answer>, kube::Error> {
        let answer = match write {
            Write::Finalizers(object, finalizers) => {
                let written = self.object(object, What::Finalizers(finalizers)).await?;
                written.map(|written| {
                    // The answer to a patch that took the last finalizer off is the object's last state: it is gone.
                    let meta = written.meta();
                    let is_gone = meta.deletion_timestamp.is_some()
                        && meta.finalizers.as_ref().is_none_or(Vec::is_empty);
                    if is_gone { Answer::Gone(written.key()) } else { Answer::Is(written) }
                })
            }
            Write::Status(object) => {
                let key = object.key();
                let meta = match before.iter().rev().find(|answer| answer.key() == key) {
                    Some(Answer::Is(written)) => written.meta(),
                    Some(_) => return Ok(None),
                    None => object.meta(),
                };
                self.object(object, What::Status(meta)).await?.map(Answer::Is)
            }
            Write::Allow { role, host, secrets } => Some(self.allow(role, host, secrets).await?),
            Write::Disallow(role) => {
                let bindings: Api<RoleBinding> = Api::namespaced(self.0.clone(), role.namespace());
                ended(bindings.delete(&role.name, &DeleteParams::default()).await)?;
                let roles: Api<Role> = Api::namespaced(self.0.clone(), role.namespace());
                ended(roles.delete(&role.name, &DeleteParams::default()).await)?;
                Some(Answer::Gone(role.clone()))
            }
            Write::ReadLease(host) => {
                let leases: Api<Lease> = Api::namespaced(self.0.clone(), SYSTEM_NAMESPACE);
                Some(Answer::Lease(host.clone(), leases.get_opt(host).await?.map(Box::new)))
            }
            Write::EndHost(host) => Some(self.end_host(host).await?),
            Write::EnsureGone { vm, uid } => {
                let vms: Api<berth_api::VM> = Api::namespaced(self.0.clone(), vm.namespace());
                let found = vms.get_opt(&vm.name).await?;
                if found.is_some_and(|found| found.uid().as_ref() == Some(uid)) {
                    return Err(conflict("the VM is there"));
                }
                None
            }
        };
        Ok(answer)
    }

    async fn typed<K: WithStatus>(&self, object: &K, what: What<'_>) -> Result<Option<Object>, kube::Error> {
        let key = Key::of(object);
        let api = K::api(self.0.clone(), &key);
        let manager = Some(CONTROLLER_MANAGER.to_owned());
        let answer = match what {
            What::Read => return Ok(api.get_opt(&key.name).await?.map(Into::into)),
            What::Finalizers(finalizers) => {
                let patch = json!({"metadata": {
                    "uid": object.uid(), "resourceVersion": object.resource_version(), "finalizers": finalizers,
                }});
                let params = PatchParams { field_manager: manager, ..PatchParams::default() };
                api.patch(&key.name, &params, &Patch::Merge(&patch)).await?
            }
            What::Status(meta) => {
                let mut object = object.clone();
                *object.meta_mut() = meta.clone();
                object.meta_mut().managed_fields = None;
                let params = PostParams { field_manager: manager, ..PostParams::default() };
                api.replace_subresource("status", &key.name, &params, &object).await?
            }
        };
        Ok(Some(answer.into()))
    }

    /// Asks what became of the objects of these writes, which failed or were not tried.
    async fn ask_again(&self, writes: &[Write], answers: &mut Vec<Answer>) {
        for write in writes {
            let (Write::Finalizers(object, _) | Write::Status(object)) = write else { continue };
            let key = object.key();
            let is_failed = std::ptr::eq(write, &writes[0]);
            if is_failed || !answers.iter().any(|answer| answer.key() == key) {
                answers.extend(self.ask(object).await);
            }
        }
    }

    async fn ask(&self, object: &Object) -> Option<Answer> {
        for delay in ASKED {
            tokio::time::sleep(Duration::from_millis(delay)).await;
            match self.object(object, What::Read).await {
                Ok(Some(object)) => return Some(Answer::Is(object)),
                Ok(None) => return Some(Answer::Gone(object.key())),
                Err(kube::Error::Api(status)) if (400..500).contains(&status.code) && status.code != 429 => {
                    return None;
                }
                Err(_) => {}
            }
        }
        None
    }

    async fn allow(&self, key: &Key, host: &str, secrets: &[String]) -> Result<Answer, kube::Error> {
        let names: Vec<&str> = secrets.iter().map(String::as_str).collect();
        let [role, binding] = access::secrets(host, key.namespace(), &names);
        let params = PatchParams::apply(CONTROLLER_MANAGER).force();
        let bindings: Api<RoleBinding> = Api::namespaced(self.0.clone(), key.namespace());
        bindings.patch(&key.name, &params, &Patch::Apply(&binding)).await?;
        let roles: Api<Role> = Api::namespaced(self.0.clone(), key.namespace());
        Ok(Answer::Is(roles.patch(&key.name, &params, &Patch::Apply(&role)).await?.into()))
    }

    async fn end_host(&self, host: &Host) -> Result<Answer, kube::Error> {
        let name = host.name_any();
        let this_one = Preconditions { uid: host.uid(), resource_version: None };
        let params = DeleteParams { preconditions: Some(this_one), ..DeleteParams::default() };
        let hosts: Api<Host> = Api::all(self.0.clone());
        ended(hosts.delete(&name, &params).await)?;
        let leases: Api<Lease> = Api::namespaced(self.0.clone(), SYSTEM_NAMESPACE);
        ended(leases.delete(&name, &DeleteParams::default()).await)?;
        Ok(Answer::Gone(Key::of(host)))
    }
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
