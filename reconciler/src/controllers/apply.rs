//! The only writer of the controllers: each write stands for itself, carries the resourceVersion that was read, and
//! its answer goes into the world at once, so that the next decision already knows of it.

use berth_api::{
    Binding, CONTROLLER_MANAGER, Disk, DiskState, DiskStatus, Readiness, Reason, SYSTEM_NAMESPACE,
};
use k8s_openapi::{NamespaceResourceScope, api::coordination::v1::Lease, jiff::Timestamp};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{Patch, PatchParams, PostParams},
};
use rand::{SeedableRng, rngs::StdRng};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;
use std::{fmt::Debug, sync::Mutex};
use tokio::time::Instant;

use super::{Config, Filling, Key, Kind, World, key::Watched, plan::Step, users, watches::Object};
use crate::clock::Identities;

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

/// Writes decisions.
#[derive(Debug)]
pub(super) struct Writer {
    client: PrintableClient,
    config: Config,
    jitter: Mutex<StdRng>,
}

/// A client that can be printed.
struct PrintableClient(Client);

impl Debug for PrintableClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Client")
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
    ($($kind:ty, $status:ty, $api:expr;)+) => { $(
        impl WithStatus for $kind {
            type Status = $status;
            fn status(&self) -> Option<&Self::Status> { self.status.as_ref() }
            fn set_status(&mut self, status: Self::Status) { self.status = Some(status); }
            fn api(client: Client, key: &Key) -> Api<Self> { ($api)(client, key) }
        }
    )+ };
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
    berth_api::VM, berth_api::VMStatus, namespaced;
    Disk, DiskStatus, namespaced;
    berth_api::HotswapDiskAttachment, berth_api::HotswapDiskAttachmentStatus, namespaced;
    berth_api::Image, berth_api::ImageStatus, namespaced;
    berth_api::PublicIP, berth_api::PublicIPStatus, namespaced;
    berth_api::PlacementGroup, berth_api::PlacementGroupStatus, namespaced;
    berth_api::VMClass, berth_api::VMClassStatus, namespaced;
    berth_api::Network, berth_api::NetworkStatus, namespaced;
    berth_api::IPPool, berth_api::IPPoolStatus, cluster;
    berth_api::StoragePool, berth_api::StoragePoolStatus, cluster;
    berth_api::Host, berth_api::HostStatus, cluster;
}

impl Writer {
    /// Whether the host is silent, by its Lease as it is now: a watch that lags must not have us call unknown, again
    /// and again, what a living agent reports.
    pub(super) async fn confirms_silence(
        &self,
        world: &mut World,
        host: &str,
        touched: &mut Vec<Key>,
    ) -> Result<bool, WriteError> {
        let api: Api<Lease> = Api::namespaced(self.client.0.clone(), SYSTEM_NAMESPACE);
        let key = Key::namespaced(Kind::Lease, SYSTEM_NAMESPACE, host);
        let read = api.get_opt(host).await.map_err(|source| WriteError::new(&key, source))?;
        if let Some(lease) = read {
            touched.extend(world.put(lease, Instant::now()));
        }
        Ok(!world.is_alive(host))
    }

    pub(super) fn new(client: Client, config: Config) -> Self {
        let seed = u64::from_str_radix(&config.identities.hex(16), 16).unwrap_or_default();
        Self { client: PrintableClient(client), config, jitter: Mutex::new(StdRng::seed_from_u64(seed)) }
    }

    pub(super) fn client(&self) -> &Client {
        &self.client.0
    }

    pub(super) fn now(&self) -> Timestamp {
        self.config.clock.now()
    }

    pub(super) fn identities(&self) -> &Identities {
        &self.config.identities
    }

    pub(super) fn filling(&self) -> Filling {
        self.config.filling
    }

    /// A number from 0 to 1 that spreads retries.
    pub(super) fn jitter(&self) -> f64 {
        use rand::Rng;
        self.jitter.lock().unwrap_or_else(std::sync::PoisonError::into_inner).random()
    }

    /// Makes the steps true, in order; the keys that were written are added to `touched`.
    pub(super) async fn apply(
        &self,
        world: &mut World,
        steps: &[Step],
        touched: &mut Vec<Key>,
    ) -> Result<(), WriteError> {
        for step in steps {
            match step {
                Step::AddFinalizer(key, finalizer) => {
                    self.finalizer(world, key, finalizer, true, touched).await?
                }
                Step::RemoveFinalizer(key, finalizer) => {
                    self.finalizer(world, key, finalizer, false, touched).await?
                }
                Step::BindDisk { disk, host, volume_id, serial, used_by } => {
                    let Some(object) = world.disks.get(disk).cloned() else { continue };
                    users::claim(world, self, users::of_disk(&object), touched).await?;
                    let mut status = object.status.clone().unwrap_or_default();
                    let epoch = status.binding.as_ref().map_or(1, |b| b.epoch + 1);
                    status.binding = Some(Binding { host: host.clone(), epoch });
                    status.volume_id = Some(volume_id.clone());
                    status.serial = Some(serial.clone());
                    status.used_by.clone_from(used_by);
                    status.state = Some(DiskState::Creating);
                    let generation = object.metadata.generation.unwrap_or_default();
                    status.observed_generation = generation;
                    Readiness::Reconciling(Reason::Bound, format!("bound to host {host}")).write(
                        &mut status.conditions,
                        generation,
                        self.now(),
                    );
                    self.status(world, object.as_ref(), status, touched).await?;
                }
            }
        }
        Ok(())
    }

    /// Writes the status of an object, if it differs from what was read.
    pub(super) async fn status<K: WithStatus>(
        &self,
        world: &mut World,
        object: &K,
        status: K::Status,
        touched: &mut Vec<Key>,
    ) -> Result<(), WriteError> {
        if object.status() == Some(&status) {
            return Ok(());
        }
        let key = Key::of(object);
        let mut object = object.clone();
        object.set_status(status);
        object.meta_mut().managed_fields = None;
        let params =
            PostParams { field_manager: Some(CONTROLLER_MANAGER.to_owned()), ..PostParams::default() };
        let api = K::api(self.client.0.clone(), &key);
        let written = api.replace_subresource("status", &key.name, &params, &object).await;
        touched.extend(world.put(written.map_err(|error| WriteError::new(&key, error))?, Instant::now()));
        Ok(())
    }

    async fn finalizer(
        &self,
        world: &mut World,
        key: &Key,
        finalizer: &str,
        wanted: bool,
        touched: &mut Vec<Key>,
    ) -> Result<(), WriteError> {
        match key.kind {
            Kind::VM => {
                let object = world.vms.get(key).cloned();
                self.finalizer_of(world, object, key, finalizer, wanted, touched).await
            }
            Kind::Disk => {
                let object = world.disks.get(key).cloned();
                self.finalizer_of(world, object, key, finalizer, wanted, touched).await
            }
            Kind::HotswapDiskAttachment => {
                let object = world.attachments.get(key).cloned();
                self.finalizer_of(world, object, key, finalizer, wanted, touched).await
            }
            Kind::PublicIP => {
                let object = world.public_ips.get(key).cloned();
                self.finalizer_of(world, object, key, finalizer, wanted, touched).await
            }
            _ => Ok(()),
        }
    }

    async fn finalizer_of<K: WithStatus>(
        &self,
        world: &mut World,
        object: Option<std::sync::Arc<K>>,
        key: &Key,
        finalizer: &str,
        wanted: bool,
        touched: &mut Vec<Key>,
    ) -> Result<(), WriteError> {
        let Some(object) = object else { return Ok(()) };
        let mut finalizers = object.finalizers().to_vec();
        if finalizers.iter().any(|f| f == finalizer) == wanted {
            return Ok(());
        }
        if wanted {
            finalizers.push(finalizer.to_owned());
        } else {
            finalizers.retain(|f| f != finalizer);
        }
        let patch = json!({"metadata": {
            "uid": object.uid(), "resourceVersion": object.resource_version(), "finalizers": finalizers,
        }});
        let params =
            PatchParams { field_manager: Some(CONTROLLER_MANAGER.to_owned()), ..PatchParams::default() };
        let api = K::api(self.client.0.clone(), key);
        let written = api.patch(&key.name, &params, &Patch::Merge(&patch)).await;
        let written = written.map_err(|error| WriteError::new(key, error))?;
        // The answer to a patch that took the last finalizer off is the object's last state: it is gone.
        if written.meta().deletion_timestamp.is_some() && written.finalizers().is_empty() {
            touched.extend(world.remove(key));
        } else {
            touched.extend(world.put(written, Instant::now()));
        }
        Ok(())
    }
}
