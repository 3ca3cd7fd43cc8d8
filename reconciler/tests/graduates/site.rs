//! Two control planes in one runtime, two hosts that move from one to the other, and a `berth graduate` that can be
//! made to crash after any of its writes.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use berth::{
    credential,
    graduate::{self, Destination, Graduation, Outcome},
    install, site,
};
use berth_agent::{AgentConfig, AgentError};
use berth_api::{
    ConditionType, VM, VMState, condition,
    manifests::access,
    site::{Authority, TermRecord, authority},
};
use berth_apiserver::{ApiService, Server, ServerConfig};
use berth_controllers as controllers;
use berth_engine::Identities;
use berth_host::{BackupFolderFacts, HostInfo as _, fake::FakeSystem};
use http::{Method, Request};
use http_body_util::BodyExt;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams},
    client::Body,
    core::GroupVersionKind,
};
use serde_json::{Value, json};
use tokio::{
    sync::{Mutex, Notify},
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use tower::Service;

use crate::image;

const LIMIT: Duration = Duration::from_secs(600);
pub(crate) const HOSTS: [&str; 2] = ["h1", "h2"];

/// A control plane, and its address in tickets.
#[derive(Clone)]
pub(crate) struct Plane {
    pub(crate) server: Server,
    pub(crate) admin: Client,
    pub(crate) url: &'static str,
}

impl Plane {
    async fn new(url: &'static str, seed: u64) -> Self {
        let base = "2026-01-01T00:00:00Z".parse().expect("a time");
        let config = ServerConfig {
            clock: Arc::new(berth_engine::RuntimeClock::starting_at(base)),
            seed: Some(seed),
            ..ServerConfig::in_memory()
        };
        let server = Server::open(config).await.expect("an in-memory server opens");
        let admin = Client::new(server.service(), "default");
        Self { server, admin, url }
    }

    /// Runs controllers on it, as `berth controllers` does.
    pub(crate) fn decides(&self, seed: u64, clock: &Arc<berth_engine::RuntimeClock>) {
        let config = controllers::Config {
            clock: clock.clone(),
            identities: Identities::seeded(seed),
            ..controllers::Config::new()
        };
        let decides = self.admin.clone();
        tokio::spawn(site::while_in_charge(
            self.admin.clone(),
            || None,
            CancellationToken::new(),
            move |leading| controllers::run(decides.clone(), config.clone(), leading),
        ));
    }

    pub(crate) fn of<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::default_namespaced(self.admin.clone())
    }

    /// Returns every object of a kind; none if the kind is not defined.
    pub(crate) async fn objects(&self, kind: &str, plural: &str) -> BTreeMap<String, Value> {
        let gvk = GroupVersionKind::gvk(berth_api::GROUP, berth_api::VERSION, kind);
        let resource = ApiResource { plural: plural.into(), ..ApiResource::from_gvk(&gvk) };
        let api: Api<DynamicObject> = Api::all_with(self.admin.clone(), &resource);
        let listed = match api.list(&ListParams::default()).await {
            Ok(listed) => listed.items,
            Err(kube::Error::Api(status)) if status.code == 404 => Vec::new(),
            Err(error) => panic!("listing {kind}: {error}"),
        };
        let entry = |object: DynamicObject| {
            let name = format!(
                "{}/{}",
                object.metadata.namespace.clone().unwrap_or_default(),
                object.metadata.name.clone().unwrap_or_default()
            );
            (name, serde_json::to_value(object).expect("an object is plain data"))
        };
        listed.into_iter().map(entry).collect()
    }

    pub(crate) async fn vm(&self, name: &str) -> Option<VM> {
        self.of::<VM>().get_opt(name).await.expect("the control plane answers")
    }

    pub(crate) async fn apply(&self, manager: &str, object: &Value) -> kube::Result<DynamicObject> {
        let kind = object["kind"].as_str().expect("a kind").to_owned();
        let api_version = object["apiVersion"].as_str().expect("a version");
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let gvk = GroupVersionKind::gvk(group, version, &kind);
        let resource = ApiResource::from_gvk(&gvk);
        let api: Api<DynamicObject> = Api::default_namespaced_with(self.admin.clone(), &resource);
        let name = object["metadata"]["name"].as_str().expect("a name");
        api.patch(name, &PatchParams::apply(manager), &Patch::Apply(object)).await
    }

    pub(crate) async fn declare(&self, kind: &str, name: &str, spec: Value) {
        let object = declared(kind, name, spec);
        self.apply("terraform:default", &object).await.unwrap_or_else(|e| panic!("{kind} {name}: {e}"));
    }

    pub(crate) async fn until_vm(&self, name: &str, what: &str, holds: impl Fn(&VM) -> bool) -> VM {
        let begun = Instant::now();
        loop {
            let vm = self.vm(name).await;
            if let Some(vm) = vm.clone().filter(&holds) {
                return vm;
            }
            assert!(begun.elapsed() < LIMIT, "never: VM {name} {what} at {}; it is {vm:#?}", self.url);
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }
}

pub(crate) fn declared(kind: &str, name: &str, spec: Value) -> Value {
    json!({"apiVersion": "berth.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec})
}

pub(crate) fn runs(vm: &VM) -> bool {
    let status = vm.status.clone().unwrap_or_default();
    status.state == Some(VMState::Running)
        && status.observed_generation == vm.metadata.generation.unwrap_or_default()
        && condition::is_true(&status.conditions, ConditionType::Ready)
}

/// A host's processes and files of its machines: a guest would notice their loss.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Real {
    launches: u64,
    instances: Vec<String>,
    volumes: BTreeMap<String, u64>,
    trash: Vec<String>,
    firewall: String,
}

/// The control planes and hosts of a test.
pub(crate) struct Site {
    pub(crate) old: Plane,
    pub(crate) new: Plane,
    /// A further control plane, without controllers until they are started.
    pub(crate) third: Plane,
    pub(crate) systems: [Arc<FakeSystem>; 2],
    pub(crate) clock: Arc<berth_engine::RuntimeClock>,
}

impl Site {
    /// Two hosts of the old control plane, each with a VM that has a Secret, a public address and a second disk.
    pub(crate) async fn new() -> Self {
        let base = "2026-01-01T00:00:00Z".parse().expect("a time");
        let clock = Arc::new(berth_engine::RuntimeClock::starting_at(base));
        let old = Plane::new("https://old:7443", 1).await;
        let new = Plane::new("https://new:6443", 2).await;
        let third = Plane::new("https://third:6443", 3).await;
        old.decides(1, &clock);
        new.decides(2, &clock);
        install::manifests(&old.admin).await.expect("the manifests apply");
        install::defaults(&old.admin, "198.18.100.0/24").await.expect("the defaults apply");
        let systems = HOSTS.map(|_| image::host(&clock));
        let site = Self { old, new, third, systems, clock };
        for (index, host) in HOSTS.iter().enumerate() {
            site.spawn_host(index, host).await;
        }
        Box::pin(site.populate()).await;
        site
    }

    async fn spawn_host(&self, index: usize, host: &'static str) {
        let system = self.systems[index].clone();
        let planes = self.planes().map(Clone::clone);
        // The first is the host inside `berth up`, the second has joined.
        let client = if index == 0 { self.old.admin.clone() } else { joined(&self.old, host).await };
        tokio::spawn(live(host, client, planes, system, self.clock.clone()));
    }

    fn planes(&self) -> [&Plane; 3] {
        [&self.old, &self.new, &self.third]
    }

    async fn populate(&self) {
        let old = &self.old;
        old.declare("VMClass", "small", json!({"cpus": 1, "memory": "512Mi", "firmware": "BIOS"})).await;
        old.declare("Image", "debian", image::spec()).await;
        old.declare("PlacementGroup", "web", json!({})).await;
        old.declare("VMGroup", "idle", json!({})).await;
        let rule = json!({"name": "own", "securityGroups": ["web"]});
        old.declare("SecurityGroup", "web", json!({"ingress": [rule]})).await;
        let key = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "disk-key"},
            "data": {"key": "Y2FuYXJ5"}});
        old.apply("terraform:default", &key).await.expect("it applies");
        old.declare("KeyClass", "default", json!({"secret": {"name": "disk-key"}})).await;
        for name in ["one", "two"] {
            old.declare("Disk", name, json!({"image": "debian", "size": "2Gi"})).await;
            old.declare("PublicIP", name, json!({})).await;
            let spec = json!({"class": "small", "disks": [{"name": name, "boot": true}],
                "networkInterfaces": [{"name": "nic0", "publicIP": name, "securityGroups": ["web"]}],
                "bootstrap": {"secretName": name}, "placement": {"group": "web"}});
            old.declare("VM", name, spec).await;
            let uid = old.vm(name).await.and_then(|vm| vm.metadata.uid).expect("it is there");
            let owner = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "VM", "name": name, "uid": uid});
            let secret = json!({"apiVersion": "v1", "kind": "Secret",
                "metadata": {"name": name, "ownerReferences": [owner]},
                "data": {"userData": "I2Nsb3VkLWNvbmZpZwp7fQo="}});
            old.apply("terraform:default", &secret).await.expect("it applies");
        }
        for name in ["one", "two"] {
            old.until_vm(name, "runs", runs).await;
        }
        self.back_up().await;
        old.declare("Disk", "more", json!({"size": "1Gi"})).await;
        old.declare("HotswapDiskAttachment", "more", json!({"vm": "one", "disk": "more"})).await;
        // One that fits nowhere: it waits on both control planes.
        old.declare("VMClass", "huge", json!({"cpus": 128, "memory": "1Ti", "firmware": "BIOS"})).await;
        old.declare("Disk", "huge", json!({"image": "debian", "size": "2Gi"})).await;
        old.declare("VM", "huge", json!({"class": "huge", "disks": [{"name": "huge", "boot": true}]})).await;
        tokio::time::sleep(Duration::from_secs(60)).await;
    }

    /// A backup of a snapshot, in a folder of its host.
    async fn back_up(&self) {
        let old = &self.old;
        for system in &self.systems {
            let nas = BackupFolderFacts { name: "nas".to_owned(), problem: None };
            system.change_facts(|facts| facts.backup_folders.push(nas));
        }
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "backups"},
            "data": {"password": "Y2FuYXJ5"}});
        old.apply("terraform:default", &secret).await.expect("it applies");
        old.declare("BackupRepository", "nas", json!({"folder": "nas", "passwordSecretName": "backups"}))
            .await;
        old.declare("DiskSnapshot", "one", json!({"disk": "one"})).await;
        old.declare("Backup", "one", json!({"repository": "nas", "snapshot": "one"})).await;
    }

    /// A move from one control plane to another; `back`: to the original one.
    pub(crate) fn graduation(&self, from: &Plane, to: &Plane) -> Graduation {
        Graduation {
            source: from.admin.clone(),
            masters: to.admin.clone(),
            target: to.admin.clone(),
            from: from.url.into(),
            to: Destination { server: to.url.into(), ca: None },
            back: to.url == self.old.url,
            wait: Duration::from_secs(120),
            identities: Identities::seeded(9),
            clock: self.clock.clone(),
        }
    }

    /// Runs `berth graduate` to its end.
    pub(crate) async fn moves(&self, from: &Plane, to: &Plane) -> anyhow::Result<Outcome> {
        Box::pin(self.graduation(from, to).run(&mut |_| {})).await
    }

    /// Runs `berth graduate` and ends it as `kill -9` would after so many writes; `None`: it was ended.
    pub(crate) async fn killed_after(
        &self,
        writes: i64,
        from: &Plane,
        to: &Plane,
    ) -> Option<anyhow::Result<Outcome>> {
        let budget = Budget::new(writes);
        let graduation = self.counted(&budget, from, to);
        budget.spend(Box::pin(graduation.run(&mut |_| {}))).await
    }

    /// The same with `berth graduate --abort`.
    pub(crate) async fn abort_killed_after(
        &self,
        writes: i64,
        from: &Plane,
        to: &Plane,
    ) -> Option<anyhow::Result<()>> {
        let budget = Budget::new(writes);
        let graduation = self.counted(&budget, from, to);
        budget.spend(Box::pin(graduation.abort())).await
    }

    fn counted(&self, budget: &Arc<Budget>, from: &Plane, to: &Plane) -> Graduation {
        let client = |plane: &Plane| {
            let counted = Counted { inner: plane.server.service(), budget: budget.clone() };
            Client::new(counted, "default")
        };
        Graduation {
            source: client(from),
            target: client(to),
            masters: client(to),
            ..self.graduation(from, to)
        }
    }

    pub(crate) fn real(&self) -> [Real; 2] {
        [0, 1].map(|index| {
            let system = &self.systems[index];
            Real {
                launches: system.hypervisor().launches(),
                instances: system.hypervisor().instances(),
                volumes: system.volumes_now(),
                trash: system.trash_now(),
                firewall: format!("{:?}", system.firewall_now()),
            }
        })
    }

    /// Asserts that at most one control plane is in charge of each host, whatever record the host keeps.
    pub(crate) async fn one_commands_at_most(&self) {
        let mut sites = Vec::new();
        for plane in self.planes() {
            let read = site::read(&plane.admin).await.expect("it answers");
            sites.push(read.transpose().expect("it is understood"));
        }
        for system in &self.systems {
            let kept = system.read_site().await.expect("it is read");
            let kept: Option<TermRecord> = kept.map(|kept| serde_json::from_value(kept).expect("a record"));
            // A control plane without a site state has no host of ours, except the one they began with.
            let commands = |index: usize, known: Option<&berth_api::site::Site>| {
                (index == 0 || known.is_some())
                    && matches!(authority(known, kept.as_ref()), Authority::InCharge(_))
            };
            let count =
                sites.iter().enumerate().filter(|(index, known)| commands(*index, known.as_ref())).count();
            assert!(count <= 1, "{sites:?}: {count} of them command a host that has kept {kept:?}");
        }
        for (system, host) in self.systems.iter().zip(HOSTS) {
            assert!(system.violations().is_empty(), "{host}: {:?}", system.violations());
        }
    }
}

pub(crate) async fn joined(plane: &Plane, host: &str) -> Client {
    install::apply(&plane.admin, &access::host(host)).await.expect("the host gets its account");
    let token = credential::request(&plane.admin, host, Duration::from_secs(86_400)).await.expect("a token");
    Client::new(plane.server.service_with_token(&token).expect("it opens"), "default")
}

/// A host that follows its site, with the rights its tickets give it.
async fn live(
    host: &'static str,
    mut client: Client,
    planes: [Plane; 3],
    system: Arc<FakeSystem>,
    clock: Arc<berth_engine::RuntimeClock>,
) {
    loop {
        let config = AgentConfig {
            identity: format!("{host}_x"),
            clock: clock.clone(),
            seed: Some(3),
            ..AgentConfig::new(host)
        };
        let ended = berth_agent::run(config, client.clone(), system.clone(), CancellationToken::new()).await;
        let error = ended.expect_err("it ends only for a reason");
        if matches!(error, AgentError::Moved { .. })
            && let Ok(join) = graduate::ticket(&client, host).await
        {
            let plane = planes.iter().find(|plane| plane.url == join.server).expect("it leads somewhere");
            let service = plane.server.service_with_token(&join.token).expect("it opens");
            client = Client::new(service, "default");
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// Returns the version of an object, if it exists.
async fn version(api: &mut ApiService, path: &str) -> Option<String> {
    let request = Request::get(path).body(Body::empty()).expect("a request");
    let Ok(response) = api.call(request).await;
    let body = response.into_body().collect().await.expect("a whole answer").to_bytes();
    let object: Value = serde_json::from_slice(&body).ok()?;
    object["metadata"]["resourceVersion"].as_str().map(str::to_owned)
}

/// The number of writes left until the program is killed.
#[derive(Debug)]
struct Budget {
    left: Mutex<i64>,
    spent: Notify,
}

impl Budget {
    fn new(writes: i64) -> Arc<Self> {
        Arc::new(Self { left: Mutex::new(writes), spent: Notify::new() })
    }

    /// Runs a program that spends this budget with its writes; `None`: it was ended for that.
    async fn spend<T>(&self, program: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.spent.notified() => None,
            done = program => Some(done),
        }
    }
}

/// A control plane as seen by a program that is killed after some writes.
#[derive(Clone)]
struct Counted {
    inner: ApiService,
    budget: Arc<Budget>,
}

impl Service<Request<Body>> for Counted {
    type Response = <ApiService as Service<Request<Body>>>::Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let mut inner = self.inner.clone();
        let budget = self.budget.clone();
        // Tokens are signed and reviews answered without being stored.
        let path = request.uri().path();
        let reads = request.method() == Method::GET
            || path.ends_with("/token")
            || path.ends_with("/selfsubjectaccessreviews")
            || request.uri().query().is_some_and(|query| query.contains("dryRun"));
        Box::pin(async move {
            if reads {
                return inner.call(request).await;
            }
            // One write at a time: the next begins when it is known whether this one changed anything.
            let mut left = budget.left.lock().await;
            if *left <= 0 {
                budget.spent.notify_one();
                return std::future::pending().await;
            }
            let (method, path) = (request.method().clone(), request.uri().path().to_owned());
            let is_update = method == Method::PATCH || method == Method::PUT;
            let before = if is_update { version(&mut inner, &path).await } else { None };
            let Ok(response) = inner.call(request).await;
            let changed = before.is_none() || version(&mut inner, &path).await != before;
            // A program reads an object before it writes it, so that it never writes without a change.
            assert!(changed || method != Method::PUT, "{method} {path} changes nothing");
            if changed && response.status().is_success() {
                *left -= 1;
            }
            Ok(response)
        })
    }
}
