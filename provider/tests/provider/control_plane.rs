//! An embedded control plane with berth's kinds, and a task that acts as the controllers and agents.
//!
//! Every few milliseconds the task reads the objects and writes the status that controllers and agents would write. An
//! object's name selects its behaviour: `stalled…` waits for a person, `slow…` is never ready, `busy…` is used by the guest
//! when it is to be detached, `late…` is a VM that is placed two seconds after its creation, `mute…` a VM without a console.

#[path = "../../../reconciler/tests/shared/template.rs"]
mod template;

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use berth_apiserver::{ApiService, Identity, Listener, Server, ServerConfig};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value as Json, json};
use tempfile::TempDir;
use template::Template;
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;

/// The files of a control plane in which the definitions were installed: each test has a copy. It stays in memory, since the
/// copies share the expressions that it has compiled.
static INSTALLED: OnceCell<(Template, Server)> = OnceCell::const_new();

/// Faults of the connection.
#[derive(Clone, Default)]
pub(crate) struct Line {
    /// The number of requests so far.
    pub(crate) requests: Arc<AtomicUsize>,
    /// The number of further requests that fail.
    pub(crate) failures: Arc<AtomicUsize>,
    /// No request gets through.
    pub(crate) cut: Arc<AtomicBool>,
    /// The next declaration arrives, but its response is lost.
    pub(crate) lose_answer: Arc<AtomicBool>,
}

/// The end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interruption {
    /// The provider's process is killed before a request arrives.
    KilledBefore,
    /// The provider's process is killed after a request had its effect.
    KilledAfter,
    /// From a request on, none arrives.
    CutBefore,
    /// A request has its effect, its response is lost, and no later request arrives.
    CutAfter,
}

impl Interruption {
    pub(crate) const ALL: [Self; 4] =
        [Self::KilledBefore, Self::KilledAfter, Self::CutBefore, Self::CutAfter];

    fn kills(self) -> bool {
        matches!(self, Self::KilledBefore | Self::KilledAfter)
    }
}

/// A connection that ends at one of its requests.
#[derive(Clone)]
pub(crate) struct Interrupted {
    at: usize,
    by: Interruption,
    requests: Arc<AtomicUsize>,
    killed: CancellationToken,
}

impl Interrupted {
    /// Whether the connection has ended.
    pub(crate) fn is_reached(&self) -> bool {
        self.requests.load(Ordering::SeqCst) >= self.at
    }

    /// Waits until the process is killed.
    pub(crate) async fn killed(&self) {
        self.killed.cancelled().await;
    }

    /// Ends the request: it has no response, or an error.
    async fn end<T>(&self) -> Result<T, tower::BoxError> {
        if self.by.kills() {
            self.killed.cancel();
            std::future::pending::<()>().await;
        }
        Err(tower::BoxError::from("the line is cut"))
    }
}

type Answer = <ApiService as tower::Service<http::Request<kube::client::Body>>>::Response;

/// A control plane on disk that is ended and opened again.
#[derive(Clone)]
pub(crate) struct Restart {
    directory: PathBuf,
    /// None while it is away.
    server: Arc<Mutex<Option<Server>>>,
}

impl Restart {
    fn server(&self) -> MutexGuard<'_, Option<Server>> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn restart(&self) {
        let Some(old) = self.server().take() else { return };
        old.shutdown().await;
        drop(old);
        let new = Server::open(ServerConfig::in_directory(&self.directory)).await.expect("it opens again");
        *self.server() = Some(new);
    }

    /// Sends a request, unless the control plane is away.
    async fn send(&self, request: http::Request<kube::client::Body>) -> Result<Answer, tower::BoxError> {
        use tower::Service as _;
        let service = self.server().as_ref().map(Server::service);
        let mut service = service.ok_or("the connection is refused")?;
        let Ok(answer) = service.call(request).await;
        Ok(answer)
    }

    fn client(&self) -> Client {
        let this = self.clone();
        let service = tower::service_fn(move |request| {
            let this = this.clone();
            async move { this.send(request).await }
        });
        Client::new(service, "default")
    }

    pub(crate) async fn close(self) {
        let server = self.server().take();
        if let Some(server) = server {
            server.shutdown().await;
        }
    }
}

/// One restart of the control plane, at the same request of several operations.
pub(crate) struct Meeting {
    restart: Restart,
    /// The number of the request, from 1.
    at: usize,
    /// Whether the requests have their effect before the restart. All of them fail.
    after: bool,
    /// The number of operations that have neither come to the request nor ended.
    expected: AtomicUsize,
    arrived: AtomicUsize,
    over: CancellationToken,
}

/// An operation that the control plane's restart concerns.
#[derive(Clone)]
pub(crate) struct Participant {
    meeting: Arc<Meeting>,
    requests: Arc<AtomicUsize>,
    is_counted: Arc<AtomicBool>,
}

impl Meeting {
    pub(crate) fn new(restart: &Restart, operations: usize, at: usize, after: bool) -> Arc<Self> {
        let (expected, arrived) = (AtomicUsize::new(operations), AtomicUsize::new(0));
        let over = CancellationToken::new();
        Arc::new(Self { restart: restart.clone(), at, after, expected, arrived, over })
    }

    /// Waits until no operation comes to the request any more, and the control plane runs.
    pub(crate) async fn end(&self) {
        self.over.cancelled().await;
    }

    /// The number of operations that came to the request.
    pub(crate) fn arrived(&self) -> usize {
        self.arrived.load(Ordering::SeqCst)
    }

    /// A client for one of the operations.
    pub(crate) fn join(self: &Arc<Self>) -> (Client, Participant) {
        let participant =
            Participant { meeting: self.clone(), requests: Arc::default(), is_counted: Arc::default() };
        let this = participant.clone();
        let service = tower::service_fn(move |request| {
            let this = this.clone();
            async move { this.send(request).await }
        });
        (Client::new(service, "default"), participant)
    }
}

impl Participant {
    async fn send(&self, request: http::Request<kube::client::Body>) -> Result<Answer, tower::BoxError> {
        let meeting = &self.meeting;
        if self.requests.fetch_add(1, Ordering::SeqCst) + 1 != meeting.at {
            return meeting.restart.send(request).await;
        }
        let answer = if meeting.after { Some(meeting.restart.send(request).await?) } else { None };
        meeting.arrived.fetch_add(1, Ordering::SeqCst);
        self.count();
        meeting.over.cancelled().await;
        drop(answer);
        Err(tower::BoxError::from("the connection is reset"))
    }

    /// Whether the operation came to the request.
    pub(crate) fn has_arrived(&self) -> bool {
        self.requests.load(Ordering::SeqCst) >= self.meeting.at
    }

    /// Notes that the operation has ended: others do not wait for it.
    pub(crate) fn leave(&self) {
        self.count();
    }

    fn count(&self) {
        if self.is_counted.swap(true, Ordering::SeqCst) {
            return;
        }
        if self.meeting.expected.fetch_sub(1, Ordering::SeqCst) == 1 {
            let meeting = self.meeting.clone();
            tokio::spawn(async move {
                if meeting.arrived() > 0 {
                    meeting.restart.restart().await;
                }
                meeting.over.cancel();
            });
        }
    }
}

async fn install() -> (Template, Server) {
    let folder = template::folder();
    let server = Server::open(template::config(folder.path())).await.expect("a new directory");
    let client = Client::new(server.service(), "default");
    for object in berth_api::manifests::all() {
        let object: DynamicObject = serde_json::from_value(object).expect("a manifest");
        let types = object.types.clone().expect("it has a kind");
        let (group, version) = types.api_version.split_once('/').unwrap_or(("", &types.api_version));
        let plural = match types.kind.as_str() {
            "ValidatingAdmissionPolicy" => "validatingadmissionpolicies".to_owned(),
            kind => format!("{}s", kind.to_lowercase()),
        };
        let resource = ApiResource {
            group: group.into(),
            version: version.into(),
            api_version: types.api_version.clone(),
            kind: types.kind.clone(),
            plural,
        };
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        let made = api.create(&PostParams::default(), &object).await;
        made.unwrap_or_else(|error| panic!("{} {:?}: {error}", types.kind, object.metadata.name));
    }
    server.shutdown().await;
    (Template::read(folder.path()), server)
}

/// A control plane that runs.
pub(crate) struct ControlPlane {
    pub(crate) client: Client,
    /// Whether a user under deletion stays listed until it is gone.
    pub(crate) hold_users: Arc<AtomicBool>,
    server: Server,
    stop: CancellationToken,
    /// Its database, if it is of this test alone.
    _folder: Option<TempDir>,
}

impl ControlPlane {
    /// A control plane with its database in memory, where the system has a folder there.
    pub(crate) async fn in_memory() -> Self {
        Self::without_controllers().await.played()
    }

    /// A control plane whose objects get no status.
    pub(crate) async fn without_controllers() -> Self {
        let folder = template::folder();
        let opened = Self::open(folder.path(), template::config(folder.path())).await;
        Self { _folder: Some(folder), ..opened }
    }

    /// A token and the authority's certificate, for clients without a kubeconfig.
    pub(crate) fn credentials(&self) -> (String, String) {
        let kubeconfig = self.server.kubeconfig("https://localhost").expect("it is on disk");
        let token = kubeconfig.lines().find_map(|line| line.trim().strip_prefix("token: "));
        let token = token.expect("a token").trim_matches('"').to_owned();
        (token, self.server.ca_certificate().expect("it is on disk"))
    }

    /// A control plane on disk and on a socket. Writes a kubeconfig, and the audit log beside it.
    pub(crate) async fn listening(directory: &Path, kubeconfig: &Path) -> Self {
        let audit_log = Some(kubeconfig.with_file_name("audit.log"));
        let config = ServerConfig { audit_log, ..ServerConfig::in_directory(directory) };
        let this = Self::open(directory, config).await.played();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("https://{}", listener.local_addr().expect("it is bound"));
        this.server.write_kubeconfig(kubeconfig, &url).expect("the directory is ours");
        let (server, stop) = (this.server.clone(), this.stop.clone());
        tokio::spawn(async move { server.serve(Listener::Tls(listener), stop).await });
        this
    }

    /// A control plane on disk that can be restarted. It is closed by the latter.
    pub(crate) async fn restartable(directory: &Path) -> (Self, Restart) {
        let opened = Self::open(directory, ServerConfig::in_directory(directory)).await;
        let server = Arc::new(Mutex::new(Some(opened.server.clone())));
        let restart = Restart { directory: directory.into(), server };
        let client = restart.client();
        // The placeholder holds no lock of the directory.
        let server = Server::open(ServerConfig::in_memory()).await.expect("memory");
        (Self { client, server, ..opened }.played(), restart)
    }

    /// Opens a copy with this configuration, whose database is in `directory`.
    async fn open(directory: &Path, config: ServerConfig) -> Self {
        INSTALLED.get_or_init(install).await.0.write(directory);
        let server = Server::open(config).await.expect("the copy opens");
        let client = Client::new(server.service(), "default");
        let hold_users = Arc::new(AtomicBool::new(false));
        Self { client, hold_users, server, stop: CancellationToken::new(), _folder: None }
    }

    /// Starts the task that acts as the controllers and agents.
    fn played(self) -> Self {
        let player = Player { client: self.client.clone(), hold_users: self.hold_users.clone() };
        let stopped = self.stop.clone();
        tokio::spawn(async move {
            while !stopped.is_cancelled() {
                let started = tokio::time::Instant::now();
                player.look().await;
                // With many objects it rests as long as it worked.
                tokio::time::sleep(started.elapsed().max(Duration::from_millis(20))).await;
            }
        });
        self
    }

    /// A client of a user without any role.
    pub(crate) fn without_roles(&self) -> Client {
        Client::new(self.server.service_as(Identity::new("someone", [])), "default")
    }

    /// A client with a connection that can be cut.
    pub(crate) fn line(&self) -> (Client, Line) {
        let line = Line::default();
        let (server, switch) = (self.server.service(), line.clone());
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let (mut server, line) = (server.clone(), switch.clone());
            async move {
                use tower::Service as _;
                line.requests.fetch_add(1, Ordering::SeqCst);
                let fails = |left: usize| left.checked_sub(1);
                let is_failure =
                    line.failures.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fails).is_ok();
                if is_failure || line.cut.load(Ordering::SeqCst) {
                    return Err(tower::BoxError::from("the line is cut"));
                }
                let declares = request.method() == http::Method::PATCH;
                let Ok(answer) = server.call(request).await;
                if declares && line.lose_answer.swap(false, Ordering::SeqCst) {
                    return Err(tower::BoxError::from("the answer was lost"));
                }
                Ok(answer)
            }
        });
        (Client::new(service, "default"), line)
    }

    /// A client with a connection that ends at its request number `at`, from 1.
    pub(crate) fn interrupted(&self, at: usize, by: Interruption) -> (Client, Interrupted) {
        let requests = Arc::new(AtomicUsize::new(0));
        let line = Interrupted { at, by, requests, killed: CancellationToken::new() };
        let (server, counted) = (self.server.service(), line.clone());
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let (mut server, line) = (server.clone(), counted.clone());
            async move {
                use tower::Service as _;
                let number = line.requests.fetch_add(1, Ordering::SeqCst) + 1;
                let arrives = matches!(line.by, Interruption::KilledAfter | Interruption::CutAfter);
                if number > line.at || number == line.at && !arrives {
                    return line.end().await;
                }
                let Ok(answer) = server.call(request).await;
                if number == line.at { line.end().await } else { Ok(answer) }
            }
        });
        (Client::new(service, "default"), line)
    }

    pub(crate) fn objects(&self, kind: &str) -> Api<DynamicObject> {
        objects(&self.client, "default", kind)
    }

    /// The current object.
    pub(crate) async fn object(&self, kind: &str, name: &str) -> Json {
        let object =
            self.objects(kind).get(name).await.unwrap_or_else(|error| panic!("{kind} {name}: {error}"));
        serde_json::to_value(object).expect("plain data")
    }

    /// Edits an object as a person does with `kubectl edit`.
    pub(crate) async fn edit(&self, kind: &str, name: &str, patch: Json) {
        let params = PatchParams { field_manager: Some("kubectl-edit".into()), ..PatchParams::default() };
        self.objects(kind).patch(name, &params, &Patch::Merge(patch)).await.expect("the edit is valid");
    }

    /// The refusal of an edit.
    pub(crate) async fn edit_refused(&self, kind: &str, name: &str, patch: Json) -> String {
        let edited = self.objects(kind).patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
        edited.expect_err("the edit is refused").to_string()
    }

    /// Declares an object as a GitOps program does.
    pub(crate) async fn declare_as(&self, manager: &str, kind: &str, name: &str, spec: Json) {
        let object = json!({"apiVersion": "berth.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec});
        let params = PatchParams::apply(manager).force();
        self.objects(kind)
            .patch(name, &params, &Patch::Apply(object))
            .await
            .expect("the declaration is valid");
    }

    /// Creates a DiskSnapshot as the controllers do for a VMSnapshot.
    pub(crate) async fn part_of_vm_snapshot(&self, name: &str, whole: &str) {
        let labels = json!({berth_api::vm_snapshot::VM_SNAPSHOT_LABEL: whole});
        let part = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "DiskSnapshot",
            "metadata": {"name": name, "labels": labels}, "spec": {"disk": "web-root"}});
        let part: DynamicObject = serde_json::from_value(part).expect("a snapshot");
        self.objects("DiskSnapshot").create(&PostParams::default(), &part).await.expect("it is valid");
    }

    /// Creates a Host with labels.
    pub(crate) async fn host(&self, name: &str, labels: Json) {
        let host = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "Host",
            "metadata": {"name": name, "labels": labels}, "spec": {}});
        let host: DynamicObject = serde_json::from_value(host).expect("a host");
        self.objects("Host").create(&PostParams::default(), &host).await.expect("it is valid");
    }

    /// Creates a namespace.
    pub(crate) async fn namespace(&self, name: &str) {
        let api: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(self.client.clone());
        let namespace = serde_json::from_value(json!({"metadata": {"name": name}})).expect("a namespace");
        api.create(&PostParams::default(), &namespace).await.expect("it is new");
    }

    /// Declares the class `small` and these disks, as another client.
    pub(crate) async fn stock(&self, disks: &[&str]) {
        self.declare_as("stock", "VMClass", "small", json!({"cpus": 1, "memory": "256Mi"})).await;
        for name in disks {
            self.declare_as("stock", "Disk", name, json!({"size": "1Gi"})).await;
        }
    }

    /// Declares a pool of addresses, as another client, and waits for its status.
    pub(crate) async fn pool(&self, name: &str, range: &str) {
        self.declare_as("stock", "IPPool", name, json!({"cidrs": [range]})).await;
        while self.object("IPPool", name).await.pointer("/status/observedGeneration") != Some(&json!(1)) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub(crate) async fn count(&self, kind: &str) -> usize {
        self.objects(kind).list(&ListParams::default()).await.expect("a list").items.len()
    }

    pub(crate) async fn close(self) {
        self.stop.cancel();
        self.server.shutdown().await;
    }
}

pub(crate) fn resource(kind: &str) -> ApiResource {
    let plural = match kind {
        "VMClass" => "vmclasses".to_owned(),
        "KeyClass" => "keyclasses".to_owned(),
        "BackupRepository" => "backuprepositories".to_owned(),
        _ => format!("{}s", kind.to_lowercase()),
    };
    ApiResource {
        group: "berth.dev".into(),
        version: "v1alpha1".into(),
        api_version: "berth.dev/v1alpha1".into(),
        kind: kind.into(),
        plural,
    }
}

/// The objects of a kind: of a namespace, if the kind is namespaced.
fn objects(client: &Client, namespace: &str, kind: &str) -> Api<DynamicObject> {
    if matches!(kind, "Host" | "IPPool" | "StoragePool") {
        return Api::all_with(client.clone(), &resource(kind));
    }
    Api::namespaced_with(client.clone(), namespace, &resource(kind))
}

struct Player {
    client: Client,
    hold_users: Arc<AtomicBool>,
}

const KINDS: [&str; 20] = [
    "Host",
    "StoragePool",
    "IPPool",
    "Network",
    "VMClass",
    "KeyClass",
    "Image",
    "Disk",
    "DiskSnapshot",
    "BackupRepository",
    "Backup",
    "PlacementGroup",
    "VMGroup",
    "SecurityGroup",
    "PublicIP",
    "VM",
    "VMSnapshot",
    "SnapshotSchedule",
    "HotswapDiskAttachment",
    "Quota",
];

impl Player {
    async fn look(&self) {
        let mut all = Vec::new();
        for kind in KINDS {
            let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource(kind));
            let Ok(list) = api.list(&ListParams::default()).await else { return };
            all.extend(list.items.into_iter().map(|object| {
                let mut object = serde_json::to_value(object).expect("plain data");
                object["kind"] = kind.into();
                object
            }));
        }
        let all = Arc::new(all);
        for object in all.iter() {
            self.play(object, &all).await;
        }
    }

    /// Acts on one object. Failures are retried in the next round, as controllers do.
    async fn play(&self, object: &Json, all: &[Json]) {
        let (kind, name) = (text(object, "/kind"), text(object, "/metadata/name"));
        let api = objects(&self.client, text(object, "/metadata/namespace"), kind);
        let params = PatchParams { field_manager: Some("player".into()), ..PatchParams::default() };
        let held = object.pointer("/metadata/finalizers").is_some();
        let terminating = object.pointer("/metadata/deletionTimestamp").is_some();
        let busy = terminating && name.starts_with("busy");
        let hold = self.hold_users.load(Ordering::SeqCst);
        let staying = |object: &&Json| hold || object.pointer("/metadata/deletionTimestamp").is_none();
        let users: Vec<&Json> = all.iter().filter(staying).collect();
        let mut status = status(object, all, busy);
        list_users(object, &users, &mut status);
        let is_used = status.get("usedBy").is_some();
        if terminating && !busy && !is_used {
            if held {
                let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
                let _ = api.patch(name, &params, &patch).await;
            }
            return;
        }
        if !held && !terminating && (is_used || matches!(kind, "VM" | "HotswapDiskAttachment")) {
            let finalizer =
                if kind == "VM" || kind.starts_with("Hot") { "berth.dev/host" } else { "berth.dev/in-use" };
            let patch = Patch::Merge(json!({"metadata": {"finalizers": [finalizer]}}));
            let _ = api.patch(name, &params, &patch).await;
        }
        if terminating && is_used {
            let mut ready = condition("Ready", false, "InUse", &object["metadata"]["generation"]);
            ready["message"] = format!("used by {}", status["usedBy"][0]).into();
            status["conditions"] = json!([ready]);
        }
        if object.get("status") != Some(&status) {
            // The whole status is written anew: null removes fields that are no longer there.
            let mut patch = status.clone();
            for (key, _) in object["status"].as_object().into_iter().flatten() {
                if status.get(key).is_none() {
                    patch[key] = Json::Null;
                }
            }
            let _ = api.patch_status(name, &params, &Patch::Merge(json!({"status": patch}))).await;
        }
    }
}

fn condition(kind: &str, status: bool, reason: &str, generation: &Json) -> Json {
    let status = if status { "True" } else { "False" };
    json!({"type": kind, "status": status, "reason": reason, "message": "", "observedGeneration": generation,
        "lastTransitionTime": "2026-01-01T00:00:00Z"})
}

fn status(object: &Json, all: &[Json], busy: bool) -> Json {
    let name = text(object, "/metadata/name");
    let generation = &object["metadata"]["generation"];
    let mut conditions = if name.starts_with("stalled") || busy {
        let reason = if busy { "GuestBusy" } else { "InvalidSpec" };
        vec![condition("Ready", false, reason, generation), condition("Stalled", true, reason, generation)]
    } else if name.starts_with("slow") {
        vec![
            condition("Ready", false, "Pulling", generation),
            condition("Reconciling", true, "Pulling", generation),
        ]
    } else {
        vec![condition("Ready", true, "Available", generation)]
    };
    let mut status = json!({"observedGeneration": generation});
    match text(object, "/kind") {
        "Host" => {
            status["address"] = "192.0.2.7".into();
            status["accelerator"] = "kvm".into();
            status["kvm"] = json!({"usable": true, "reason": "", "mips": 1234.25});
            status["capacity"] = json!({"cpus": 8, "memory": "16Gi", "storage": "100Gi"});
            status["allocatable"] = json!({"cpus": 8, "memory": "16Gi", "storage": "100Gi"});
            status["vmOverhead"] = "1Gi".into();
            status["vms"] = 0.into();
        }
        "IPPool" => {
            status["allocated"] = 0.into();
            status["free"] = if name == "tiny" { 1.into() } else { 30.into() };
        }
        "Network" => {
            status["vni"] = 7.into();
            status["mtu"] = 1450.into();
        }
        "PlacementGroup" => {
            let group = &object["metadata"]["name"];
            let is_member =
                |vm: &&Json| vm["kind"] == "VM" && vm.pointer("/spec/placement/group") == Some(group);
            let member =
                |vm: &Json| json!({"vm": vm["metadata"]["name"], "host": "host-a", "value": "host-a"});
            let members: Vec<Json> = all.iter().filter(is_member).map(member).collect();
            status["placed"] = members.len().into();
            status["total"] = members.len().into();
            status["members"] = members.into();
        }
        "Image" => status["virtualSize"] = "2Gi".into(),
        "PublicIP" => {
            status["address"] = format!("198.18.100.{}", name.len()).into();
            if object.pointer("/spec/ports").is_some() {
                status["ports"] = ports_of(object);
            }
        }
        "HotswapDiskAttachment" => {
            conditions.push(condition("Attached", true, "Attached", generation));
            status["serial"] = "v0123456789abcdef012".into();
            status["device"] = "/dev/sdb".into();
            status["state"] = "Attached".into();
        }
        "Disk" => {
            let restore = &object["spec"]["restore"];
            status["restoredFrom"] = object["status"]["restoredFrom"].clone();
            if restore.is_object() {
                let more = json!({"snapshotID": "s-0123456789abcdef", "restoredAt": "2026-01-01T00:00:00Z"});
                status["restoredFrom"] = restore.clone();
                status["restoredFrom"]
                    .as_object_mut()
                    .expect("an object")
                    .extend(more.as_object().cloned().unwrap_or_default());
            }
            let users = users(name, all);
            if !users.is_empty() {
                status["usedBy"] = users.into();
                status["volumeID"] = "v-0123456789abcdef".into();
                status["serial"] = "v0123456789abcdef".into();
                status["binding"] = json!({"host": "host-a", "epoch": 1});
            }
        }
        "Quota" => {
            status["hard"] = object["spec"]["hard"].clone();
            status["used"] = json!({"diskSize": "1Gi", "memory": "2Gi", "cpus": 1, "vms": 1, "disks": 1, "snapshots": 0,
                "images": 0, "publicIps": 0});
        }
        "SnapshotSchedule" => {
            status["lastScheduleTime"] = "2026-01-01T03:00:00Z".into();
            status["nextScheduleTime"] = "2026-01-02T03:00:00Z".into();
            status["lastSuccessfulTime"] = "2026-01-01T03:00:01Z".into();
            status["vms"] = 1.into();
            status["snapshots"] = 7.into();
            status["backups"] = 14.into();
            status["lastBackupTime"] = "2026-01-01T03:00:01Z".into();
        }
        "VMSnapshot" => {
            status["disks"] = json!([{"disk": "web-root", "snapshot": format!("{name}-0")}]);
            status["takenAt"] = "2026-01-01T00:00:00Z".into();
            status["consistency"] = "FileSystem".into();
        }
        "DiskSnapshot" => {
            status["size"] = "1Gi".into();
            status["takenAt"] = "2026-01-01T00:00:00Z".into();
            status["consistency"] = "FileSystem".into();
            status["pool"] = "default".into();
            status["snapshotID"] = "s-0123456789abcdef".into();
            status["volumeID"] = "v-0123456789abcdef".into();
            status["binding"] = json!({"host": "host-a", "epoch": 1});
        }
        "Backup" => {
            status["size"] = "1Gi".into();
            status["takenAt"] = "2026-01-01T00:00:00Z".into();
            status["consistency"] = "FileSystem".into();
            status["volumeID"] = "v-0123456789abcdef".into();
            status["backupID"] = "b-0123456789abcdef".into();
            if conditions[0]["status"] == "True" {
                status["readBytes"] = 4_194_304.into();
                status["storedBytes"] = 1_048_576.into();
                status["completedAt"] = "2026-01-01T00:01:00Z".into();
                status["verifiedAt"] = "2026-01-01T00:02:00Z".into();
                status["verification"] = json!({"endedAt": "2026-01-01T00:02:00Z", "damagedBlocks": 0});
            }
            status["binding"] = json!({"host": "host-a", "epoch": 1});
        }
        "VM" => {
            let runs = object["spec"]["power"] == "Running" && !name.starts_with("stalled");
            conditions.push(condition("Running", runs, "Running", generation));
            conditions.push(condition("GuestReady", runs, "GuestSeen", generation));
            vm_status(object, all, runs, &mut status);
        }
        _ => {}
    }
    status["conditions"] = conditions.into();
    status
}

fn vm_status(object: &Json, all: &[Json], runs: bool, status: &mut Json) {
    status["state"] = if runs { "Running".into() } else { object["spec"]["power"].clone() };
    if text(object, "/metadata/name").starts_with("late") && age(object) < 2 {
        return;
    }
    status["restarts"] = 0.into();
    if let Some(token) = object["spec"].get("restartToken").filter(|_| runs) {
        status["restartToken"] = token.clone();
    }
    status["binding"] = json!({"host": "host-a", "epoch": 1});
    if !text(object, "/metadata/name").starts_with("mute") {
        status["console"] = json!({"address": "192.0.2.7:7444", "certificateSha256": "ab".repeat(32)});
    }
    status["instanceID"] = "i-0123456789ab".into();
    let specified = object["spec"]["networkInterfaces"].as_array().cloned().unwrap_or_default();
    let find =
        |kind: &str, name: &Json| all.iter().find(|o| o["kind"] == kind && o["metadata"]["name"] == *name);
    let public_address = |interface: &Json| {
        find("PublicIP", interface.get("publicIP")?)?.pointer("/status/address").filter(|_| runs).cloned()
    };
    let interfaces = specified.iter().enumerate().map(|(i, interface)| {
        let mac = interface.get("macAddress").cloned().unwrap_or(json!(format!("52:54:00:00:00:0{i}")));
        let address = interface.get("address").cloned().unwrap_or(json!(format!("10.77.0.{}", 10 + i)));
        let mut decided = json!({"name": interface["name"], "network": "berth-shared/default", "macAddress": mac, "address": address});
        if let Some(address) = public_address(interface) {
            decided["publicAddress"] = address;
        }
        decided
    });
    let interfaces: Vec<Json> = interfaces.collect();
    if let Some(first) = interfaces.first() {
        status["privateAddress"] = first["address"].clone();
    }
    if let Some(address) = specified.iter().find_map(public_address) {
        status["publicAddress"] = address;
    }
    status["interfaces"] = interfaces.into();
    let disk = |disk: &Json| {
        let device =
            runs.then(|| format!("/dev/disk/by-id/virtio-{}", disk["name"].as_str().unwrap_or_default()));
        let message = (!runs).then_some("the VM does not run");
        json!({"name": disk["name"], "attached": runs, "device": device, "message": message})
    };
    let mut disks: Vec<Json> = object["spec"]["disks"].as_array().into_iter().flatten().map(disk).collect();
    for disk in disks.iter_mut().filter_map(Json::as_object_mut) {
        disk.retain(|_, value| !value.is_null());
    }
    status["disks"] = disks.into();
    if runs {
        status["guest"] =
            json!({"agent": true, "hostname": "guest", "addresses": ["10.77.0.10", "fd00::10"]});
        let class = find("VMClass", &object["spec"]["class"]);
        let of_class = |pointer: &str, default: Json| {
            class.and_then(|class| class.pointer(pointer)).cloned().unwrap_or(default)
        };
        let own = |key: &str| Some(object["spec"][key].clone()).filter(|value| !value.is_null());
        let declared = json!({"class": own("class"), "cpus": own("cpus").unwrap_or(of_class("/spec/cpus", json!(1))),
            "memory": own("memory").unwrap_or(of_class("/spec/memory", json!("512Mi"))), "firmware": "UEFI",
            "machineType": "pc-q35-7.2", "cpuModel": "max", "accelerator": "tcg", "uuid": "u"});
        let token = &object["spec"]["restartToken"];
        let is_restarted = !token.is_null() && *token != object["status"]["restartToken"];
        let ran = object["status"]["state"] == "Running" && !is_restarted;
        let hardware = object.pointer("/status/hardware").filter(|_| ran).unwrap_or(&declared).clone();
        let pending = ["class", "cpus", "memory"].into_iter().filter(|key| hardware[key] != declared[key]);
        let pending: Vec<&str> = pending.collect();
        if !pending.is_empty() {
            status["pendingPowerCycle"] = json!(pending);
        }
        status["hardware"] = hardware;
        status["facts"] = json!({"qemuVersion": "7.2.22", "diskIO": "io_uring"});
        status["lastReconfigured"] = object["metadata"]["creationTimestamp"].clone();
    }
}

/// The age in seconds.
fn age(object: &Json) -> i64 {
    let made = text(object, "/metadata/creationTimestamp").parse::<k8s_openapi::jiff::Timestamp>();
    made.map_or(0, |made| k8s_openapi::jiff::Timestamp::now().as_second() - made.as_second())
}

/// Lists the first users of an object that any number of others may use, as the controllers do.
fn list_users(object: &Json, all: &[&Json], status: &mut Json) {
    let name = &object["metadata"]["name"];
    let (kind, named_by) = match text(object, "/kind") {
        "VMClass" => ("VM", "/spec/class"),
        "PlacementGroup" => ("VM", "/spec/placement/group"),
        "VMGroup" => ("VM", "/spec/vmGroup"),
        "Image" => ("Disk", "/spec/image"),
        "KeyClass" => ("Disk", "/spec/encryption/keyClass"),
        "StoragePool" => ("Disk", "/spec/pool"),
        "IPPool" => ("PublicIP", "/spec/pool"),
        "Network" => ("VM", "/spec/networkInterfaces/0/network"),
        "SecurityGroup" => ("VM", "/spec/networkInterfaces/0/securityGroups/0"),
        _ => return,
    };
    let users = all.iter().filter(|user| user["kind"] == kind && user.pointer(named_by) == Some(name));
    let users = users.map(|user| {
        json!({"kind": kind, "namespace": user["metadata"]["namespace"], "name": user["metadata"]["name"]})
    });
    let users: Vec<Json> = users.take(4).collect();
    if !users.is_empty() {
        status["usedBy"] = users.into();
    }
}

fn users(disk: &str, all: &[Json]) -> Vec<Json> {
    let of_vms = all.iter().filter(|object| object["kind"] == "VM").filter(|vm| {
        let disks = vm["spec"]["disks"].as_array();
        disks.into_iter().flatten().any(|listed| listed["name"] == disk)
    });
    let fixed = of_vms
        .map(|vm| json!({"use": "Fixed", "vm": vm["metadata"]["name"], "vmUid": vm["metadata"]["uid"]}));
    let attached = all
        .iter()
        .filter(|object| object["kind"] == "HotswapDiskAttachment" && object["spec"]["disk"] == disk);
    let hotswap = attached.map(|attachment| {
        json!({"use": "Hotswap", "vm": attachment["spec"]["vm"], "vmUid": "u", "attachment": attachment["metadata"]["name"]})
    });
    fixed.chain(hotswap).collect()
}

fn text<'a>(object: &'a Json, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Json::as_str).unwrap_or_default()
}

/// The ports of a PublicIP: declared ones, those that its status has, and the lowest free ones.
fn ports_of(ip: &Json) -> Json {
    let list = |pointer: &str| ip.pointer(pointer).and_then(Json::as_array).cloned().unwrap_or_default();
    let (entries, former) = (list("/spec/ports"), list("/status/ports"));
    let mut taken: Vec<i64> = former.iter().filter_map(|port| port["port"].as_i64()).collect();
    let port_of = |entry: &Json| {
        let kept = former.iter().find(|port| port["name"] == entry["name"]);
        let known = entry["port"].as_i64().or_else(|| kept?["port"].as_i64());
        let port = known.or_else(|| (30_000..).find(|port| !taken.contains(port)));
        taken.extend(port);
        json!({"name": entry["name"], "port": port, "protocol": entry["protocol"], "available": 0, "total": 1})
    };
    entries.iter().map(port_of).collect()
}
