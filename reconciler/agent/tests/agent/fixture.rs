//! A control plane, a host and an agent. The tests themselves do the controllers' work (binding objects to a host,
//! allocating identities and addresses).

use std::cell::RefCell;
use std::convert::Infallible;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use berth_agent::{AgentConfig, ConsoleServer};
use berth_api::{
    Disk, DiskSnapshot, HOST_FINALIZER, Host, HotswapDiskAttachment, Image, Network, PublicIP, VM, VMClass,
    condition,
};
use berth_apiserver::Server;
use berth_engine::{Clock as _, RuntimeClock};
use berth_host::fake::{FakeSource, FakeSystem};
use berth_qemu::machine::Format;
use jiff::Timestamp;
use k8s_openapi::NamespaceResourceScope;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::installed::{self, Copy};

pub(crate) const HOST: &str = "h1";
pub(crate) const INSTANCE: &str = "i-0123456789ab";
pub(crate) const ROOT: &str = "v-00000000000000a1";
pub(crate) const DATA: &str = "v-00000000000000d1";
pub(crate) const IMAGE_URL: &str = "http://images.example/debian.qcow2";
pub(crate) const SHA256: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
/// Longer than anything in these tests takes, back-off included.
const PATIENCE: Duration = Duration::from_secs(1800);

pub(crate) struct Fixture {
    pub(crate) system: Arc<FakeSystem>,
    pub(crate) client: Client,
    _server: Server,
    /// The control plane's database.
    _folder: TempDir,
    agent: RefCell<Option<JoinHandle<()>>>,
    stop: RefCell<CancellationToken>,
    clock: RuntimeClock,
}

impl Fixture {
    /// Returns a world with the kinds installed and a running agent.
    pub(crate) async fn start() -> Self {
        let fixture = Self::without_agent().await;
        fixture.start_agent();
        fixture
    }

    pub(crate) async fn without_agent() -> Self {
        let Copy { server, admin: client, clock, folder } = installed::copy().await;
        let system = Arc::new(FakeSystem::new(clock.clone()));
        let (agent, stop) = (RefCell::default(), RefCell::default());
        Self { system, client, _server: server, _folder: folder, agent, stop, clock: *clock }
    }

    pub(crate) fn start_agent(&self) {
        self.start_agent_with(None, Duration::ZERO);
    }

    /// Starts the agent with a server for consoles, and with a clock that is ahead of the control plane's.
    pub(crate) fn start_agent_with(&self, console: Option<Arc<ConsoleServer>>, ahead: Duration) {
        let clock = Arc::new(RuntimeClock::starting_at(self.clock.now() + ahead));
        self.start_agent_configured(|config| {
            config.clock = clock;
            config.console = console;
        });
    }

    /// Starts the agent with a changed configuration.
    pub(crate) fn start_agent_configured(&self, change: impl FnOnce(&mut AgentConfig)) {
        self.start_agent_of(self.client.clone(), change);
    }

    /// Starts the agent while no control plane answers.
    pub(crate) fn start_agent_alone(&self) {
        self.start_agent_alone_with(|_| {});
    }

    /// Starts the agent with a changed configuration while no control plane answers.
    pub(crate) fn start_agent_alone_with(&self, change: impl FnOnce(&mut AgentConfig)) {
        let silent = tower::service_fn(|_: http::Request<kube::client::Body>| {
            std::future::pending::<Result<http::Response<kube::client::Body>, Infallible>>()
        });
        self.start_agent_of(Client::new(silent, "default"), change);
    }

    fn start_agent_of(&self, client: Client, change: impl FnOnce(&mut AgentConfig)) {
        let mut config = AgentConfig::new(HOST);
        config.clock = Arc::new(RuntimeClock::starting_at(self.clock.now()));
        config.seed = Some(7);
        change(&mut config);
        let (system, stop) = (self.system.clone(), CancellationToken::new());
        self.stop.replace(stop.clone());
        let agent = tokio::spawn(async move {
            berth_agent::run(config, client, system, stop).await.expect("it runs");
        });
        self.agent.replace(Some(agent));
    }

    /// Stops the agent, as a signal does.
    pub(crate) async fn stop_agent(&self) {
        self.stop.borrow().cancel();
        let agent = self.agent.take();
        if let Some(agent) = agent {
            agent.await.expect("it ends");
        }
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Crashes the agent: it stops from one moment to the next.
    pub(crate) async fn crash_agent(&self) {
        let agent = self.agent.take();
        if let Some(agent) = agent {
            agent.abort();
            let _ = agent.await;
        }
    }

    pub(crate) fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), "ns")
    }

    /// Creates an object; with a status it counts as bound.
    pub(crate) async fn make<K>(&self, name: &str, spec: Value, status: Option<Value>) -> K
    where
        K: Resource<Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned + Serialize,
        K::DynamicType: Default,
    {
        let api = self.api::<K>();
        let mut object = json!({"metadata": {"name": name, "namespace": "ns"}, "spec": spec});
        if status.is_some() && K::kind(&K::DynamicType::default()) != "Image" {
            object["metadata"]["finalizers"] = json!([HOST_FINALIZER]);
        }
        object["apiVersion"] = json!(K::api_version(&K::DynamicType::default()));
        object["kind"] = json!(K::kind(&K::DynamicType::default()));
        let object: K = serde_json::from_value(object).expect("an object");
        let made = api.create(&PostParams::default(), &object).await.expect("created");
        let Some(status) = status else { return made };
        let patch = Patch::Merge(json!({"status": status}));
        api.patch_status(name, &PatchParams::default(), &patch).await.expect("bound")
    }

    pub(crate) async fn change<K>(&self, name: &str, spec: Value)
    where
        K: Resource<Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
        K::DynamicType: Default,
    {
        let patch = Patch::Merge(json!({"spec": spec}));
        self.api::<K>().patch(name, &PatchParams::default(), &patch).await.expect("changed");
    }

    /// Sets how long deleted disks stay in the trash.
    pub(crate) async fn set_retention(&self, seconds: i64) {
        let pools: Api<berth_api::StoragePool> = Api::all(self.client.clone());
        let patch = Patch::Merge(json!({"spec": {"trashRetentionSeconds": seconds}}));
        pools.patch("default", &PatchParams::default(), &patch).await.expect("changed");
    }

    pub(crate) async fn delete<K>(&self, name: &str)
    where
        K: Resource<Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
        K::DynamicType: Default,
    {
        self.api::<K>().delete(name, &DeleteParams::default()).await.expect("deleted");
    }

    /// Waits until the object is as wanted.
    pub(crate) async fn until<K>(&self, name: &str, wanted: impl Fn(&K) -> bool) -> K
    where
        K: Resource<Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
        K::DynamicType: Default,
    {
        let api = self.api::<K>();
        let mut last = None;
        let search = async {
            loop {
                last = api.get_opt(name).await.expect("readable");
                if let Some(object) = last.as_ref().filter(|object| wanted(object)) {
                    return object.clone();
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        match tokio::time::timeout(PATIENCE, search).await {
            Ok(object) => object,
            Err(_) => panic!("{} {name} never was as wanted: {last:#?}", K::kind(&K::DynamicType::default())),
        }
    }

    pub(crate) async fn until_gone<K>(&self, name: &str)
    where
        K: Resource<Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
        K::DynamicType: Default,
    {
        let api = self.api::<K>();
        let mut last = None;
        let search = async {
            loop {
                last = api.get_opt(name).await.expect("readable");
                if last.is_none() {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        if tokio::time::timeout(PATIENCE, search).await.is_err() {
            panic!("{} {name} never went: {last:#?}", K::kind(&K::DynamicType::default()));
        }
    }

    pub(crate) async fn host(&self) -> Host {
        let api: Api<Host> = Api::all(self.client.clone());
        for _ in 0..600 {
            if let Ok(Some(host)) = api.get_opt(HOST).await
                && host.status.as_ref().is_some_and(|s| s.observed_generation >= 0)
            {
                return host;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("the host never reported");
    }

    /// Makes the image available at its URL.
    pub(crate) fn furnish_source(&self) {
        let source = FakeSource {
            sha256: SHA256.into(),
            format: Format::Qcow2,
            virtual_size: 2 << 30,
            bytes: 400 << 20,
            refused: None,
        };
        self.system.add_source(IMAGE_URL, source);
    }

    /// Creates a class, an image, a root and a data disk, bound here.
    pub(crate) async fn furnish(&self) {
        self.furnish_source();
        self.make::<VMClass>("small", json!({"cpus": 1, "memory": "512Mi"}), None).await;
        self.make::<Image>("debian", json!({"source": {"url": IMAGE_URL, "sha256": SHA256}}), Some(bound()))
            .await;
        self.make::<Disk>("root", json!({"image": "debian", "size": "4Gi"}), Some(disk_bound(ROOT))).await;
        self.make::<Disk>("data", json!({"size": "1Gi"}), Some(disk_bound(DATA))).await;
    }

    /// Creates a VM with the root disk, bound here.
    pub(crate) async fn make_vm(&self, spec: Value) -> VM {
        let mut whole = json!({"class": "small", "disks": [{"name": "root", "boot": true}]});
        for (key, value) in spec.as_object().cloned().unwrap_or_default() {
            whole[key] = value;
        }
        self.make::<VM>("web", whole, Some(vm_bound(INSTANCE, 2))).await
    }

    pub(crate) async fn make_attachment(&self) {
        let spec = json!({"vm": "web", "disk": "data"});
        self.make::<HotswapDiskAttachment>("data", spec, Some(bound())).await;
    }

    /// Creates a public address for the VM.
    pub(crate) async fn make_public_ip(&self, vm: &VM) {
        let used = json!([{"use": "Address", "vm": vm.name_any(), "vmUid": vm.uid()}]);
        let mut status = bound();
        status["address"] = json!("198.18.100.5");
        status["usedBy"] = used;
        self.make::<PublicIP>("web", json!({}), Some(status)).await;
    }

    pub(crate) async fn running_vm(&self) -> VM {
        self.until::<VM>("web", |vm| is_ready(vm, "Running")).await
    }

    /// Waits until no call of the host and no write to the control plane has an effect any more, then verifies it:
    /// nothing but the Lease is written for a further five minutes.
    pub(crate) async fn assert_quiet(&self) {
        tokio::time::sleep(Duration::from_secs(120)).await;
        let before = self.versions().await;
        tokio::time::sleep(Duration::from_secs(300)).await;
        assert_eq!(self.versions().await, before, "something is still being written");
        assert_eq!(self.system.violations(), Vec::<String>::new());
    }

    async fn versions(&self) -> Vec<(String, Option<String>)> {
        let mut all = Vec::new();
        all.extend(versions::<VM>(&self.client).await);
        all.extend(versions::<Disk>(&self.client).await);
        all.extend(versions::<DiskSnapshot>(&self.client).await);
        all.extend(versions::<Image>(&self.client).await);
        all.extend(versions::<HotswapDiskAttachment>(&self.client).await);
        all.extend(versions::<Network>(&self.client).await);
        all.extend(versions::<Host>(&self.client).await);
        all.extend(versions::<k8s_openapi::api::events::v1::Event>(&self.client).await);
        all
    }
}

async fn versions<K>(client: &Client) -> Vec<(String, Option<String>)>
where
    K: Resource + Clone + Debug + DeserializeOwned,
    K::DynamicType: Default,
{
    let all: Api<K> = Api::all(client.clone());
    let items = all.list(&Default::default()).await.expect("listed").items;
    items.into_iter().map(|o| (o.name_any(), o.resource_version())).collect()
}

pub(crate) fn bound() -> Value {
    json!({"observedGeneration": 0, "binding": {"host": HOST, "epoch": 1}})
}

pub(crate) fn disk_bound(volume: &str) -> Value {
    let mut status = bound();
    status["volumeID"] = json!(volume);
    status["serial"] = json!(volume.replace('-', ""));
    status
}

pub(crate) fn vm_bound(instance: &str, number: u8) -> Value {
    let mut status = bound();
    let address = format!("10.77.0.{number}");
    status["instanceID"] = json!(instance);
    status["privateAddress"] = json!(address);
    status["interfaces"] = json!([{
        "name": "nic0", "network": "berth-shared/default",
        "macAddress": format!("52:54:00:00:00:{number:02x}"), "address": address,
    }]);
    status
}

/// Whether the VM is ready for this reason, and its status is of the current spec.
pub(crate) fn is_ready(vm: &VM, reason: &str) -> bool {
    let Some(status) = &vm.status else { return false };
    let ready = condition::find(&status.conditions, "Ready");
    ready.is_some_and(|c| c.status == "True" && c.reason == reason)
        && Some(status.observed_generation) == vm.metadata.generation
}

pub(crate) fn reason_of(
    conditions: &[k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition],
    kind: &str,
) -> String {
    condition::find(conditions, kind).map(|c| c.reason.clone()).unwrap_or_default()
}

/// Returns why the VM is not ready.
pub(crate) fn vm_reason(vm: &VM) -> String {
    vm.status.as_ref().map(|s| reason_of(&s.conditions, "Ready")).unwrap_or_default()
}
