//! A complete berth in one runtime: control plane, controllers, agent, and a host that outlives them.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    sync::{Arc, OnceLock},
    time::Duration,
};

use berth_agent::AgentConfig;
use berth_api::{ConditionType, Disk, DiskSnapshot, VM, VMState, condition};
use berth_apiserver::Server;
use berth_controllers as controllers;
use berth_engine::Identities;
use berth_host::fake::{FakeSource, FakeSystem};
use berth_qemu::machine::Format;
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams},
    core::NamespaceResourceScope,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{task::JoinHandle, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::faults::{Fault, FaultyApi, Injector};
use crate::installed::{self, Copy};

pub(crate) const IMAGE_URL: &str = "https://images.example/debian.qcow2";
pub(crate) const IMAGE_SHA256: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
/// The kinds that users create.
const NAMESPACED: [&str; 16] = [
    "Backup",
    "BackupRepository",
    "Disk",
    "DiskSnapshot",
    "HotswapDiskAttachment",
    "Image",
    "KeyClass",
    "PlacementGroup",
    "PublicIP",
    "Quota",
    "SecurityGroup",
    "SnapshotSchedule",
    "VM",
    "VMClass",
    "VMGroup",
    "VMSnapshot",
];
/// The maximum duration of any step, in simulated time, with any fault: longer than the longest back-off.
const LIMIT: Duration = Duration::from_secs(900);

/// The rig that the module describes.
#[derive(Debug)]
pub(crate) struct Rig {
    pub(crate) system: Arc<FakeSystem>,
    pub(crate) clock: Arc<berth_engine::RuntimeClock>,
    admin: PrintableClient,
    injector: Arc<Injector>,
    restart: Arc<tokio::sync::Notify>,
    supervisor: JoinHandle<()>,
    /// The control plane's database.
    _folder: TempDir,
}

#[derive(Clone)]
struct PrintableClient(Client);

impl Debug for PrintableClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Client")
    }
}

/// The address of the ISO image whose checksum consists of this digit.
pub(crate) fn iso_url(digit: &str) -> String {
    format!("http://images.example/{digit}.iso")
}

/// How often a run whose fault was not injected is repeated: the number of calls varies a little between runs, because
/// the store works in its own thread.
const ATTEMPTS: usize = 3;

/// Runs the scenario clean, then with each fault at its calls: at those that [`Fault::strikes`] chooses.
///
/// # Panics
///
/// If the declared state is not reached, or if more than one run in twenty ends before the call at which its fault
/// should have been injected.
pub(crate) fn converges(faults: &[Fault], scenario: impl AsyncFn(&Rig)) {
    let clean = Injector::counting();
    let calls = run(clean.clone(), &scenario);
    assert!(calls.len() > 10, "the scenario makes external calls");
    let mut runs = 0;
    let mut missed = Vec::new();
    for fault in faults {
        let mut equal: BTreeMap<&str, usize> = BTreeMap::new();
        for (before, call) in calls.iter().enumerate() {
            let equal = equal.entry(call).or_default();
            *equal += 1;
            if fault.strikes(before, call, *equal - 1) {
                let is_injected = (0..ATTEMPTS).any(|_| {
                    let injector = Injector::striking(before as u64 + 1, *fault, clean.has_start());
                    run(injector.clone(), &scenario);
                    injector.struck().is_some()
                });
                runs += 1;
                if !is_injected {
                    missed.push((*fault, before));
                }
            }
        }
    }
    eprintln!("{} external calls, {runs} runs with a fault, never reached: {missed:?}", calls.len());
    assert!(missed.len() * 20 <= runs, "of {} calls these were not made again: {missed:?}", calls.len());
}

/// Runs the scenario once; returns the calls it made. A panic in it names the fault.
fn run(injector: Arc<Injector>, scenario: &impl AsyncFn(&Rig)) -> Vec<String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without I/O can always be built");
    let named = Named(injector.clone());
    runtime.block_on(async {
        let rig = Rig::new(injector.clone()).await;
        scenario(&rig).await;
        rig.must_settle().await;
        let violations = rig.system.violations();
        assert!(violations.is_empty(), "asked of the host what never should be: {violations:?}");
        rig.supervisor.abort();
    });
    drop(named);
    injector.calls()
}

/// Prints the injected fault when a run panics.
struct Named(Arc<Injector>);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("with {:?} (struck: {:?})", self.0, self.0.struck());
        }
    }
}

impl Rig {
    async fn new(injector: Arc<Injector>) -> Self {
        injector.set_counting(false);
        let Copy { server, admin, clock, folder } = installed::copy().await;
        let system = Arc::new(FakeSystem::new(clock.clone()));
        let source = FakeSource {
            sha256: IMAGE_SHA256.into(),
            format: Format::Qcow2,
            virtual_size: 2 << 30,
            bytes: 100 << 20,
            refused: None,
        };
        for digit in ["c", "d"] {
            let iso = FakeSource { sha256: digit.repeat(64), format: Format::Iso, ..source.clone() };
            system.add_source(&iso_url(digit), iso);
        }
        system.add_source(IMAGE_URL, source);
        system.set_faults(injector.clone());
        let no_trash = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "StoragePool", "metadata": {"name": "default"},
            "spec": {"trashRetentionSeconds": 0}});
        // Nothing may be left at the end, so the trash is disabled.
        Api::<DynamicObject>::all_with(admin.clone(), &resource("StoragePool"))
            .patch("default", &PatchParams::default(), &Patch::Merge(&no_trash))
            .await
            .expect("the default pool is there");
        let restart = Arc::new(tokio::sync::Notify::new());
        let supervisor =
            tokio::spawn(supervise(server, system.clone(), injector.clone(), restart.clone(), clock.clone()));
        injector.set_counting(true);
        Self { system, clock, admin: PrintableClient(admin), injector, restart, supervisor, _folder: folder }
    }

    /// Faults strike only from here on.
    pub(crate) fn strike_from_here(&self) {
        self.injector.count_from_here();
    }

    /// Faults strike no more: other scenarios show what comes now with them.
    pub(crate) fn strike_until_here(&self) {
        self.injector.set_counting(false);
    }

    /// Ends controllers and agent as `kill -9` would, and starts them again.
    pub(crate) async fn restart(&self) {
        self.restart.notify_one();
        tokio::time::sleep(Duration::from_secs(5)).await;
    }

    /// Ends controllers and agent, removes every status as a restore may, opens a recovery, and starts them again.
    pub(crate) async fn lose_every_status(&self) {
        self.restart.notify_one();
        tokio::time::sleep(Duration::from_millis(500)).await;
        self.take_every_status().await;
        self.open_recovery().await;
        tokio::time::sleep(Duration::from_secs(5)).await;
    }

    /// The same, without a recovery.
    pub(crate) async fn lose_every_status_unnoticed(&self) {
        self.restart.notify_one();
        tokio::time::sleep(Duration::from_millis(500)).await;
        self.take_every_status().await;
        tokio::time::sleep(Duration::from_secs(5)).await;
    }

    /// Ends controllers and agent, creates every object again under another uid as in another control plane, and
    /// starts them again. With `with_former_uids` each VM, Disk and DiskSnapshot is annotated with its former uid.
    pub(crate) async fn make_everything_anew(&self, with_former_uids: bool) {
        self.restart.notify_one();
        tokio::time::sleep(Duration::from_millis(500)).await;
        self.take_every_status().await;
        for kind in plurals().keys() {
            let api = self.api(kind);
            if !NAMESPACED.contains(&kind.as_str()) {
                continue;
            }
            for object in api.list(&ListParams::default()).await.expect("the control plane answers") {
                let name = object.name_any();
                let params = PatchParams::default();
                let freed =
                    api.patch(&name, &params, &Patch::Merge(json!({"metadata": {"finalizers": null}}))).await;
                freed.unwrap_or_else(|error| panic!("freeing {kind} {name}: {error}"));
                let deleted = api.delete(&name, &DeleteParams::default()).await;
                deleted.unwrap_or_else(|error| panic!("deleting {kind} {name}: {error}"));
                let annotations =
                    match with_former_uids && ["VM", "Disk", "DiskSnapshot"].contains(&kind.as_str()) {
                        true => json!({berth_api::FORMER_UID_ANNOTATION: object.uid()}),
                        false => json!({}),
                    };
                let anew = json!({"apiVersion": "berth.dev/v1alpha1", "kind": kind, "spec": object.data["spec"],
                    "metadata": {"name": name, "annotations": annotations}});
                let anew: DynamicObject = serde_json::from_value(anew).expect("an object");
                let made = api.create(&kube::api::PostParams::default(), &anew).await;
                made.unwrap_or_else(|error| panic!("making {kind} {name} anew: {error}"));
            }
        }
        if with_former_uids {
            self.open_recovery().await;
        }
        tokio::time::sleep(Duration::from_secs(5)).await;
    }

    /// Opens a recovery for every host, as an administrator does.
    pub(crate) async fn open_recovery(&self) {
        let hosts: Api<DynamicObject> = Api::all_with(self.admin.0.clone(), &resource("Host"));
        let open = json!({"spec": {"recovery": {"since": "2027-01-01T00:00:00Z"}}});
        for host in hosts.list(&ListParams::default()).await.expect("the control plane answers") {
            let params = PatchParams::default();
            hosts.patch(&host.name_any(), &params, &Patch::Merge(&open)).await.expect("it is opened");
        }
    }

    /// Whether a host is in a recovery.
    pub(crate) async fn is_recovering(&self) -> bool {
        let hosts: Api<DynamicObject> = Api::all_with(self.admin.0.clone(), &resource("Host"));
        let hosts = hosts.list(&ListParams::default()).await.expect("the control plane answers");
        hosts.iter().any(|host| !host.data["spec"]["recovery"].is_null())
    }

    /// Removes the annotation of the former uid from every object.
    pub(crate) async fn forget_former_uids(&self) {
        for kind in ["VM", "Disk", "DiskSnapshot"] {
            for object in
                self.api(kind).list(&ListParams::default()).await.expect("the control plane answers")
            {
                let nothing = json!({"metadata": {"annotations": {berth_api::FORMER_UID_ANNOTATION: null}}});
                let params = PatchParams::default();
                self.api(kind)
                    .patch(&object.name_any(), &params, &Patch::Merge(nothing))
                    .await
                    .expect("patched");
            }
        }
    }

    async fn take_every_status(&self) {
        for kind in plurals().keys() {
            let everywhere: Api<DynamicObject> = Api::all_with(self.admin.0.clone(), &resource(kind));
            for mut object in
                everywhere.list(&ListParams::default()).await.expect("the control plane answers")
            {
                let api: Api<DynamicObject> = match object.namespace() {
                    Some(namespace) => {
                        Api::namespaced_with(self.admin.0.clone(), &namespace, &resource(kind))
                    }
                    None => everywhere.clone(),
                };
                object.data.as_object_mut().expect("an object").remove("status");
                let (name, params) = (object.name_any(), kube::api::PostParams::default());
                let written = api.replace_subresource("status", &name, &params, &object).await;
                written.unwrap_or_else(|error| panic!("taking the status of {kind} {name}: {error}"));
            }
        }
    }

    /// Declares an object, as a user would.
    pub(crate) async fn apply(&self, kind: &str, name: &str, spec: Value) {
        let applied = self.try_apply(kind, name, spec).await;
        applied.unwrap_or_else(|error| panic!("applying {kind} {name}: {error}"));
    }

    /// Declares an object, as a user would, unless the control plane refuses it.
    pub(crate) async fn try_apply(&self, kind: &str, name: &str, spec: Value) -> Result<(), String> {
        let object = json!({"apiVersion": "berth.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec});
        let params = PatchParams::apply("user").force();
        let applied = self.api(kind).patch(name, &params, &Patch::Apply(&object)).await;
        applied.map(drop).map_err(|error| error.to_string())
    }

    /// Sets an annotation of an object, as a user would, or removes it.
    pub(crate) async fn annotate(&self, kind: &str, name: &str, annotation: &str, value: Option<&str>) {
        let patch = json!({"metadata": {"annotations": {annotation: value}}});
        let patched = self.api(kind).patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
        patched.unwrap_or_else(|error| panic!("annotating {kind} {name}: {error}"));
    }

    /// Applies a StoragePool, as an administrator would.
    pub(crate) async fn apply_pool(&self, name: &str, spec: Value) {
        let object = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "StoragePool", "metadata": {"name": name}, "spec": spec});
        let api: Api<DynamicObject> = Api::all_with(self.admin.0.clone(), &resource("StoragePool"));
        let params = PatchParams::apply("user").force();
        api.patch(name, &params, &Patch::Apply(&object)).await.expect("the control plane answers");
    }

    /// Makes a host that is gone for good.
    pub(crate) async fn make_lost_host(&self, name: &str) {
        let object = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "Host", "metadata": {"name": name},
            "spec": {"fenced": true, "cordoned": true}});
        let api: Api<DynamicObject> = Api::all_with(self.admin.0.clone(), &resource("Host"));
        let params = PatchParams::apply("user").force();
        api.patch(name, &params, &Patch::Apply(&object)).await.expect("the control plane answers");
    }

    /// Changes a status, as the controllers would.
    pub(crate) async fn patch_status(&self, kind: &str, name: &str, status: Value) {
        let patch = Patch::Merge(json!({"status": status}));
        let patched = self.api(kind).patch_status(name, &PatchParams::default(), &patch).await;
        patched.expect("the control plane answers");
    }

    /// Applies an object for all namespaces, as an administrator would.
    pub(crate) async fn apply_shared(&self, kind: &str, name: &str, spec: Value) {
        let object = json!({"apiVersion": "berth.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec});
        let params = PatchParams::apply("user").force();
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.admin.0.clone(), berth_api::SHARED_NAMESPACE, &resource(kind));
        api.patch(name, &params, &Patch::Apply(&object)).await.expect("the control plane answers");
    }

    /// Writes a Secret with this text, as a user would.
    pub(crate) async fn set_secret(&self, name: &str, text: &str) {
        self.set_secret_value(name, "text", text).await;
    }

    /// Writes a Secret with this value, as a user would.
    pub(crate) async fn set_secret_value(&self, name: &str, key: &str, text: &str) {
        let secrets: Api<Secret> = Api::default_namespaced(self.admin.0.clone());
        let object = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": {key: text}});
        let params = PatchParams::apply("user").force();
        secrets.patch(name, &params, &Patch::Apply(&object)).await.expect("the control plane answers");
    }

    /// Deletes a Secret.
    pub(crate) async fn remove_secret(&self, name: &str) {
        let secrets: Api<Secret> = Api::default_namespaced(self.admin.0.clone());
        secrets.delete(name, &DeleteParams::default()).await.expect("the control plane answers");
    }

    /// Deletes an object, retrying while that is rejected; a missing object is no error.
    pub(crate) async fn delete(&self, kind: &str, name: &str) {
        let begun = Instant::now();
        loop {
            match self.api(kind).delete(name, &DeleteParams::default()).await {
                Ok(_) => return,
                Err(kube::Error::Api(status)) if status.code == 404 => return,
                Err(kube::Error::Api(status)) if status.code == 403 && begun.elapsed() < LIMIT => {}
                Err(error) => panic!("deleting {kind} {name}: {error}"),
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    /// Deletes an object without waiting for its finalizers, as an impatient user does.
    pub(crate) async fn delete_by_force(&self, kind: &str, name: &str) {
        self.delete(kind, name).await;
        let freed = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        match self.api(kind).patch(name, &PatchParams::default(), &freed).await {
            Err(kube::Error::Api(status)) if status.code != 404 => panic!("freeing {kind} {name}: {status}"),
            _ => self.until_gone(kind, name).await,
        }
    }

    pub(crate) async fn until_gone(&self, kind: &str, name: &str) {
        let begun = Instant::now();
        while self.api(kind).get_opt(name).await.expect("the control plane answers").is_some() {
            assert!(begun.elapsed() < LIMIT, "{kind} {name} does not go");
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }

    pub(crate) async fn until_vm(&self, name: &str, what: &str, holds: impl Fn(&VM) -> bool) {
        self.until(name, what, holds).await;
    }

    /// Waits for a state of an object.
    pub(crate) async fn until<K>(&self, name: &str, what: &str, holds: impl Fn(&K) -> bool)
    where
        K: kube::Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + Debug,
    {
        let api: Api<K> = Api::default_namespaced(self.admin.0.clone());
        let begun = Instant::now();
        loop {
            let object = api.get_opt(name).await.expect("the control plane answers");
            if object.as_ref().is_some_and(&holds) {
                return;
            }
            assert!(begun.elapsed() < LIMIT, "never: {} {name} {what}; it is {object:#?}", K::kind(&()));
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }

    /// Returns the VM's permanent allocations: its host, its identity there, its addresses, the public one
    /// included.
    pub(crate) async fn identity(&self, vm: &str) -> Vec<Option<String>> {
        let api: Api<VM> = Api::default_namespaced(self.admin.0.clone());
        let status = api.get(vm).await.expect("the VM is there").status.unwrap_or_default();
        let interfaces = status.interfaces.iter().map(|i| Some(format!("{} {}", i.mac_address, i.address)));
        let own = [status.binding.map(|b| b.host), status.instance_id, status.public_address];
        own.into_iter().chain(interfaces).collect()
    }

    /// Returns the pid of the VM's QEMU.
    pub(crate) async fn pid(&self, vm: &str) -> Option<i64> {
        let api: Api<VM> = Api::default_namespaced(self.admin.0.clone());
        let vm = api.get(vm).await.expect("the VM is there");
        vm.status.and_then(|s| s.process).map(|p| p.pid)
    }

    /// Waits until nothing of ours is left on the host.
    pub(crate) async fn until_nothing_is_left(&self) {
        let begun = Instant::now();
        while !(self.system.leftovers().is_empty() && self.system.trash_now().is_empty()) {
            let left = self.system.leftovers();
            // The clean-up of the image cache takes longest.
            assert!(begun.elapsed() < LIMIT * 2, "leaked: {left:#?}");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    /// Waits for the faults to pass, then asserts that the converged state stays untouched.
    pub(crate) async fn must_settle(&self) {
        self.injector.set_counting(false);
        let mut before = self.versions().await;
        let begun = Instant::now();
        loop {
            tokio::time::sleep(Duration::from_secs(45)).await;
            let now = self.versions().await;
            if now == before {
                break;
            }
            let changed: Vec<_> = now.iter().filter(|v| !before.contains(v)).collect();
            assert!(begun.elapsed() < LIMIT * 2, "a further reconcile still writes: {changed:?}");
            before = now;
        }
        self.injector.set_counting(true);
    }

    /// Returns kind, name and version of every object of ours.
    async fn versions(&self) -> Vec<(String, String, Option<String>)> {
        let mut versions = Vec::new();
        for kind in plurals().keys() {
            let api: Api<DynamicObject> = Api::all_with(self.admin.0.clone(), &resource(kind));
            let objects = api.list(&ListParams::default()).await.expect("the control plane answers");
            versions.extend(objects.iter().map(|o| (kind.clone(), o.name_any(), o.resource_version())));
        }
        versions
    }

    fn api(&self, kind: &str) -> Api<DynamicObject> {
        Api::default_namespaced_with(self.admin.0.clone(), &resource(kind))
    }
}

/// Kind and plural of every kind of ours; computed once, because every request of a scenario needs them.
fn plurals() -> &'static BTreeMap<String, String> {
    static PLURALS: OnceLock<BTreeMap<String, String>> = OnceLock::new();
    PLURALS.get_or_init(|| {
        let name = |crd: &Value, of: &str| crd["spec"]["names"][of].as_str().expect("a name").to_owned();
        let crds = berth_api::manifests::crds();
        crds.iter().map(|crd| (name(crd, "kind"), name(crd, "plural"))).collect()
    })
}

fn resource(kind: &str) -> ApiResource {
    ApiResource {
        group: berth_api::GROUP.into(),
        version: berth_api::VERSION.into(),
        api_version: format!("{}/{}", berth_api::GROUP, berth_api::VERSION),
        kind: kind.into(),
        plural: plurals()[kind].clone(),
    }
}

/// Starts controllers and agent, and restarts them whenever they crash.
async fn supervise(
    server: Server,
    system: Arc<FakeSystem>,
    injector: Arc<Injector>,
    restart: Arc<tokio::sync::Notify>,
    clock: Arc<berth_engine::RuntimeClock>,
) {
    for seed in 0.. {
        let client = Client::new(FaultyApi::new(server.service(), injector.clone()), "default");
        let cancel = CancellationToken::new();
        let config = controllers::Config {
            clock: clock.clone(),
            identities: Identities::seeded(seed),
            ..controllers::Config::new()
        };
        let agent = AgentConfig { clock: clock.clone(), seed: Some(seed), ..AgentConfig::new("h1") };
        let process = async {
            let agent = berth_agent::run(agent, client.clone(), system.clone(), cancel.clone());
            let (agent, ()) = tokio::join!(agent, controllers::run(client.clone(), config, cancel.clone()));
            eprintln!("the agent ended by itself: {agent:?}");
        };
        tokio::select! {
            () = process => {}
            () = injector.crashed() => {}
            () = restart.notified() => {}
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
}

pub(crate) fn is_ready(vm: &VM) -> bool {
    let status = vm.status.clone().unwrap_or_default();
    status.observed_generation == vm.metadata.generation.unwrap_or_default()
        && condition::is_true(&status.conditions, ConditionType::Ready)
}

pub(crate) fn is_taken(snapshot: &DiskSnapshot) -> bool {
    let status = snapshot.status.clone().unwrap_or_default();
    status.taken_at.is_some() && condition::is_true(&status.conditions, ConditionType::Ready)
}

pub(crate) fn is_disk_ready(disk: &Disk) -> bool {
    let status = disk.status.clone().unwrap_or_default();
    status.observed_generation == disk.metadata.generation.unwrap_or_default()
        && condition::is_true(&status.conditions, ConditionType::Ready)
}

pub(crate) fn state(vm: &VM) -> Option<VMState> {
    vm.status.as_ref().and_then(|s| s.state)
}
