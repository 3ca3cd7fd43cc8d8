//! An embedded control plane with berth's kinds, and a task that acts as the controllers and agents.
//!
//! Every few milliseconds the task reads the objects and writes the status that controllers and agents would write. An
//! object's name selects its behaviour: `stalled…` waits for a person, `slow…` is never ready, `busy…` is used by the guest
//! when it is to be detached, `late…` is a VM that is placed two seconds after its creation, `mute…` a VM without a console. A Host with the
//! label `live` offers live migration.

mod faults;
mod player;
#[path = "../../../reconciler/tests/shared/template.rs"]
mod template;

use std::{
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use berth_apiserver::{Identity, Listener, Server, ServerConfig};
use faults::{Interrupted, Line, Restart};
pub(crate) use faults::{Interruption, Meeting};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams},
};
use player::Player;
use serde_json::{Value as Json, json};
use tempfile::TempDir;
use template::Template;
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;

/// The files of a control plane in which the definitions were installed: each test has a copy. It stays in memory, since the
/// copies share the expressions that it has compiled.
static INSTALLED: OnceCell<(Template, Server)> = OnceCell::const_new();

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
        let mut player = Player::new(self.client.clone(), self.hold_users.clone());
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
