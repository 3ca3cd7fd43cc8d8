//! Two hosts on one control plane, each with the rights it gets by joining and nothing more.

use std::{sync::Arc, time::Duration};

use berth::{credential, install};
use berth_agent::{AgentConfig, AgentError, ConsoleServer};
use berth_api::{ConditionType, Disk, Host, SYSTEM_NAMESPACE, VM, VMState, condition, manifests::access};
use berth_apiserver::Server;
use berth_controllers as controllers;
use berth_engine::{Clock as _, Identities};
use berth_host::fake::FakeSystem;
use k8s_openapi::{
    api::{authentication::v1::TokenRequest, core::v1::ServiceAccount, events::v1::Event},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{task::JoinHandle, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    image,
    installed::{self, Copy},
};

mod architecture;
mod cpu_levels;
mod firmware_state;
mod image_copies;
mod live_moves;
mod namespaces;
mod volume_copies;

const LIMIT: Duration = Duration::from_secs(600);

struct Fleet {
    server: Server,
    admin: Client,
    clock: Arc<berth_engine::RuntimeClock>,
    /// The control plane's database.
    _folder: TempDir,
}

impl Fleet {
    async fn new() -> Self {
        let Copy { server, admin, clock, folder } = installed::copy().await;
        let config = controllers::Config {
            clock: clock.clone(),
            identities: Identities::seeded(7),
            ..controllers::Config::new()
        };
        let client = Self::operator(&server, &admin).await;
        tokio::spawn(controllers::run(client, config, CancellationToken::new()));
        Self { server, admin, clock, _folder: folder }
    }

    /// A client with the rights that controllers have on a Kubernetes control plane and no others.
    async fn operator(server: &Server, admin: &Client) -> Client {
        let subject = json!({"kind": "ServiceAccount", "name": "controllers", "namespace": SYSTEM_NAMESPACE});
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"name": "controllers", "namespace": SYSTEM_NAMESPACE}});
        let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": {"name": "controllers"}, "subjects": [subject],
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "berth-operator"}});
        install::apply(admin, &[account, binding]).await.expect("it applies");
        let accounts: Api<ServiceAccount> = Api::namespaced(admin.clone(), SYSTEM_NAMESPACE);
        let request = TokenRequest::default();
        let answer = accounts.create_token_request("controllers", &PostParams::default(), &request).await;
        let token = answer.expect("a token").status.and_then(|s| s.token).expect("a token");
        Client::new(server.service_with_token(&token).expect("it opens"), "default")
    }

    /// The agent of a host, with the token of that host and no other right.
    async fn join(
        &self,
        host: &str,
        identity: &str,
        system: &Arc<FakeSystem>,
    ) -> JoinHandle<Result<(), AgentError>> {
        self.join_with(host, identity, system, None).await
    }

    /// As [`Fleet::join`], with a server that has images for other hosts.
    async fn join_with(
        &self,
        host: &str,
        identity: &str,
        system: &Arc<FakeSystem>,
        console: Option<Arc<ConsoleServer>>,
    ) -> JoinHandle<Result<(), AgentError>> {
        install::apply(&self.admin, &access::host(host)).await.expect("the host gets its account");
        let token = credential::request(&self.admin, host, Duration::from_secs(3600)).await.expect("a token");
        let service = self.server.service_with_token(&token).expect("it opens");
        let config = AgentConfig {
            identity: format!("{host}_{identity}"),
            clock: self.clock.clone(),
            seed: Some(3),
            console,
            ..AgentConfig::new(host)
        };
        let client = Client::new(service, "default");
        let system = system.clone();
        tokio::spawn(berth_agent::run(config, client, system, CancellationToken::new()))
    }

    async fn apply(&self, kind: &str, name: &str, spec: Value) {
        let object = json!({"apiVersion": "berth.dev/v1alpha1", "kind": kind,
            "metadata": {"name": name, "namespace": "default"}, "spec": spec});
        install::apply(&self.admin, &[object]).await.expect("it applies");
    }

    /// Two VMs of a group that must not share a host, each with a Secret.
    async fn declare_two_vms(&self) {
        self.apply("VMClass", "small", json!({"cpus": 1, "memory": "512Mi", "firmware": "BIOS"})).await;
        self.apply("Image", "debian", image::spec()).await;
        self.apply("PlacementGroup", "web", json!({})).await;
        for name in ["one", "two"] {
            let secret = json!({"apiVersion": "v1", "kind": "Secret",
                "metadata": {"name": name, "namespace": "default"}, "stringData": {"userData": "#cloud-config\n{}\n"}});
            install::apply(&self.admin, &[secret]).await.expect("it applies");
            self.apply("Disk", name, json!({"image": "debian", "size": "2Gi"})).await;
            let spec = json!({"class": "small", "disks": [{"name": name, "boot": true}],
                "bootstrap": {"secretName": name}, "placement": {"group": "web"},
                "stop": {"gracePeriodSeconds": 5}});
            self.apply("VM", name, spec).await;
        }
    }

    async fn vm(&self, name: &str) -> Option<VM> {
        Api::default_namespaced(self.admin.clone()).get_opt(name).await.expect("the control plane answers")
    }

    async fn until_vm(&self, name: &str, what: &str, holds: impl Fn(&VM) -> bool) -> VM {
        let begun = Instant::now();
        loop {
            let vm = self.vm(name).await;
            if let Some(vm) = vm.clone().filter(&holds) {
                return vm;
            }
            assert!(begun.elapsed() < LIMIT, "never: VM {name} {what}; it is {vm:#?}");
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }

    async fn until(&self, what: &str, holds: impl AsyncFn() -> bool) {
        let begun = Instant::now();
        while !holds().await {
            assert!(begun.elapsed() < LIMIT, "never: {what}");
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }

    async fn declare_host(&self, host: &str, spec: Value) {
        let hosts: Api<Host> = Api::all(self.admin.clone());
        let patch = Patch::Merge(json!({"spec": spec}));
        hosts.patch(host, &PatchParams::default(), &patch).await.expect("the host is there");
    }

    async fn host_exists(&self, host: &str) -> bool {
        Api::<Host>::all(self.admin.clone()).get_opt(host).await.expect("it answers").is_some()
    }

    /// The Secrets a host may read according to the role that the controllers maintain.
    async fn secrets_of(&self, host: &str) -> Vec<String> {
        let roles: Api<k8s_openapi::api::rbac::v1::Role> = Api::default_namespaced(self.admin.clone());
        let role = roles.get_opt(&access::secrets_role_name(host)).await.expect("it answers");
        let rules = role.and_then(|role| role.rules).unwrap_or_default();
        rules.into_iter().flat_map(|rule| rule.resource_names.unwrap_or_default()).collect()
    }
}

fn runs(vm: &VM) -> bool {
    let status = vm.status.clone().unwrap_or_default();
    status.state == Some(VMState::Running) && condition::is_true(&status.conditions, ConditionType::Ready)
}

fn host_of(vm: &VM) -> String {
    vm.status.as_ref().and_then(|s| s.binding.as_ref()).map(|b| b.host.clone()).unwrap_or_default()
}

fn ready_reason(vm: &VM) -> String {
    let conditions = vm.status.as_ref().map(|s| s.conditions.as_slice()).unwrap_or_default();
    condition::find(conditions, "Ready").map(|c| c.reason.clone()).unwrap_or_default()
}

/// Two hosts, a VM on each: the VM on `h1` first.
async fn two() -> (Fleet, [Arc<FakeSystem>; 2], [JoinHandle<Result<(), AgentError>>; 2], [String; 2]) {
    let fleet = Fleet::new().await;
    let systems = [image::host(&fleet.clock), image::host(&fleet.clock)];
    let agents = [fleet.join("h1", "a", &systems[0]).await, fleet.join("h2", "a", &systems[1]).await];
    fleet.declare_two_vms().await;
    let mut names = Vec::new();
    for name in ["one", "two"] {
        names.push((host_of(&fleet.until_vm(name, "runs", runs).await), name.to_owned()));
    }
    names.sort();
    let hosts: Vec<&str> = names.iter().map(|(host, _)| host.as_str()).collect();
    assert_eq!(hosts, ["h1", "h2"], "a required group spreads");
    let [first, second] = [names[0].1.clone(), names[1].1.clone()];
    (fleet, systems, agents, [first, second])
}

#[tokio::test(start_paused = true)]
async fn each_host_runs_its_own_and_reads_only_its_own_secrets() {
    let (fleet, systems, _agents, vms) = two().await;
    for (system, vm) in systems.iter().zip(&vms) {
        let vm = fleet.vm(vm).await.expect("it is there");
        let instance = vm.status.and_then(|s| s.instance_id).expect("it has one");
        assert_eq!(system.hypervisor().instances(), [instance], "one QEMU, on the host it is bound to");
    }
    assert_eq!(fleet.secrets_of("h1").await, [vms[0].clone()]);
    assert_eq!(fleet.secrets_of("h2").await, [vms[1].clone()]);
    let gone: Api<VM> = Api::default_namespaced(fleet.admin.clone());
    gone.delete(&vms[0], &DeleteParams::default()).await.expect("it is deleted");
    fleet
        .until("the host may no longer read the Secret", async || fleet.secrets_of("h1").await.is_empty())
        .await;
    assert_eq!(fleet.secrets_of("h2").await, [vms[1].clone()]);
    for system in &systems {
        assert!(system.violations().is_empty(), "{:?}", system.violations());
    }
}

#[tokio::test(start_paused = true)]
async fn a_drained_host_is_empty_until_it_is_uncordoned_and_nothing_declared_changes() {
    let (fleet, systems, _agents, [first, second]) = two().await;
    let before = fleet.vm(&first).await.expect("it is there");
    fleet.declare_host("h1", json!({"cordoned": true, "draining": true})).await;
    let held = fleet
        .until_vm(&first, "is held stopped", |vm| {
            ready_reason(vm) == "HostDraining" && vm.status.as_ref().is_some_and(|s| s.process.is_none())
        })
        .await;
    assert!(systems[0].hypervisor().instances().is_empty(), "its QEMU has ended");
    assert_eq!((&held.spec, held.metadata.generation), (&before.spec, before.metadata.generation));
    assert_eq!(held.status.as_ref().and_then(|s| s.state), Some(VMState::Stopped));
    assert!(runs(&fleet.vm(&second).await.expect("it is there")), "the other host is none of its business");
    fleet.apply("Disk", "three", json!({"image": "debian", "size": "2Gi"})).await;
    let spec = json!({"class": "small", "disks": [{"name": "three", "boot": true}], "networkInterfaces": []});
    fleet.apply("VM", "three", spec).await;
    assert_eq!(host_of(&fleet.until_vm("three", "runs", runs).await), "h2", "a cordoned host takes none");
    fleet.declare_host("h1", json!({"cordoned": false, "draining": false})).await;
    fleet.until_vm(&first, "runs again", runs).await;
}

#[tokio::test(start_paused = true)]
async fn reserved_capacity_is_given_to_no_other_vm_and_touches_none_that_runs() {
    let (fleet, _systems, _agents, [first, _]) = two().await;
    let process = |vm: &VM| vm.status.as_ref().and_then(|status| status.process.clone());
    let before = process(&fleet.vm(&first).await.expect("it is there"));
    let hosts: Api<Host> = Api::all(fleet.admin.clone());
    let status = async |host: &str| hosts.get(host).await.expect("it is there").status.unwrap_or_default();
    let allocatable = async |host: &str| status(host).await.allocatable.unwrap_or_default();
    // Of 32 GiB, one is left, which holds one VM of 512 MiB with its overhead.
    for host in ["h1", "h2"] {
        fleet.declare_host(host, json!({"reserved": {"memory": "31Gi"}})).await;
        fleet.until("it offers the rest", async || allocatable(host).await.memory == "1Gi").await;
    }
    fleet.apply("Disk", "three", json!({"image": "debian", "size": "2Gi"})).await;
    let spec = json!({"class": "small", "disks": [{"name": "three", "boot": true}], "networkInterfaces": []});
    fleet.apply("VM", "three", spec).await;
    fleet.until_vm("three", "waits for room", |vm| ready_reason(vm) == "Unschedulable").await;
    let events: Api<Event> = Api::default_namespaced(fleet.admin.clone());
    let of_three = async || {
        let all = events.list(&ListParams::default()).await.expect("they can be listed").items;
        all.into_iter()
            .filter(|event| event.regarding.as_ref().is_some_and(|r| r.name.as_deref() == Some("three")))
            .map(|event| (event.reason.unwrap_or_default(), event.note.unwrap_or_default()))
            .collect::<Vec<_>>()
    };
    fleet.until("an event has the reason", async || !of_three().await.is_empty()).await;
    let [(reason, note)] = of_three().await.try_into().expect("one event");
    assert!(reason == "Unschedulable" && note.contains("memory"), "{reason}: {note}");
    assert_eq!(process(&fleet.vm(&first).await.expect("it is there")), before, "it runs on");
    fleet.declare_host("h2", json!({"reserved": {"cpus": 1, "memory": "1Gi"}})).await;
    assert_eq!(host_of(&fleet.until_vm("three", "runs", runs).await), "h2");
    assert_eq!(allocatable("h2").await.cpus, 4 * (8 - 1));

    // A VM starts again only where there is room, and by itself once there is.
    let fits = async || {
        let conditions = status("h1").await.conditions;
        condition::find(&conditions, "ReservedFits").map(|fits| fits.message.clone())
    };
    assert_eq!(fits().await, None);
    let power = async |power: &str| {
        let vms: Api<VM> = Api::default_namespaced(fleet.admin.clone());
        let patch = Patch::Merge(json!({"spec": {"power": power}}));
        vms.patch(&first, &PatchParams::default(), &patch).await.expect("it is there");
    };
    power("Stopped").await;
    fleet.until_vm(&first, "stops", |vm| process(vm).is_none()).await;
    fleet.declare_host("h1", json!({"reserved": {"memory": "64Gi"}})).await;
    fleet
        .until("it says so", async || fits().await.is_some_and(|text| text.contains("the machine has 32Gi")))
        .await;
    power("Running").await;
    fleet
        .until_vm(&first, "waits for memory", |vm| {
            process(vm).is_none() && !runs(vm) && ready_reason(vm) != "Stopped"
        })
        .await;
    fleet.declare_host("h1", json!({"reserved": {"memory": "31Gi"}})).await;
    fleet.until_vm(&first, "runs again", runs).await;
    assert_eq!(fits().await, None);
}

#[tokio::test(start_paused = true)]
async fn a_second_machine_of_the_same_name_is_refused_and_the_first_goes_on() {
    let (fleet, systems, agents, vms) = two().await;
    let stranger = image::host(&fleet.clock);
    let second = fleet.join("h1", "b", &stranger).await;
    let ended = second.await.expect("it ends by itself").expect_err("it is refused");
    assert!(matches!(&ended, AgentError::Taken { host, .. } if host == "h1"), "{ended}");
    assert!(stranger.hypervisor().instances().is_empty(), "it has started nothing");
    assert!(!agents[0].is_finished());
    assert!(runs(&fleet.vm(&vms[0]).await.expect("it is there")));
    assert_eq!(systems[0].hypervisor().instances().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_takes_a_silent_ones_place_waits_until_its_lease_has_run_out() {
    let (fleet, systems, agents, vms) = two().await;
    agents[0].abort();
    let begun = Instant::now();
    // The same machine after its state directory was restored: another identity, the same instances.
    let _second = fleet.join("h1", "b", &systems[0]).await;
    let hosts = async || {
        let leases: Api<k8s_openapi::api::coordination::v1::Lease> =
            Api::namespaced(fleet.admin.clone(), "berth-system");
        let lease = leases.get("h1").await.expect("it is there");
        lease.spec.and_then(|spec| spec.holder_identity).as_deref() == Some("h1_b")
    };
    fleet.until("the Lease is taken", hosts).await;
    assert!(begun.elapsed() >= Duration::from_secs(40), "not before it had run out");
    fleet.until_vm(&vms[0], "runs", runs).await;
}

/// A joined host that reports arbitrary data: the given status, with its Lease renewed.
async fn hostile(fleet: &Fleet, status: Value) -> JoinHandle<()> {
    install::apply(&fleet.admin, &access::host("evil")).await.expect("the host gets its account");
    let token = credential::request(&fleet.admin, "evil", Duration::from_secs(3600)).await.expect("a token");
    let client = Client::new(fleet.server.service_with_token(&token).expect("it opens"), "default");
    let hosts: Api<Host> = Api::all(client.clone());
    hosts.create(&PostParams::default(), &Host::new("evil", Default::default())).await.expect("it joins");
    let leases: Api<k8s_openapi::api::coordination::v1::Lease> = Api::namespaced(client, "berth-system");
    let lease = json!({"metadata": {"name": "evil"}, "spec": {"holderIdentity": "evil"}});
    let lease = serde_json::from_value(lease).expect("a Lease");
    leases.create(&PostParams::default(), &lease).await.expect("it lives");
    // Sent after the Lease is known: the report of a silent host is set aside.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let report = Patch::Merge(json!({"status": status}));
    hosts.patch_status("evil", &PatchParams::default(), &report).await.expect("it reports");
    tokio::spawn(async move {
        for seconds in 1.. {
            tokio::time::sleep(Duration::from_secs(10)).await;
            let renewal = Patch::Merge(json!({"spec": {"leaseDurationSeconds": seconds}}));
            let _ = leases.patch("evil", &PatchParams::default(), &renewal).await;
        }
    })
}

fn boundless() -> Value {
    json!({
        "observedGeneration": 1,
        "conditions": [{"type": "Ready", "status": "True", "reason": "AgentReady", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"}],
        "allocatable": {"cpus": 1000, "memory": "1Ti", "storage": "1Ti"}, "vmOverhead": "0",
    })
}

fn orphan(kind: &str, name: &str, of: &str, uid: Option<&str>) -> Value {
    let owner_kind = if kind == "Instance" { "VM" } else { "Disk" };
    let interface = |n: u8| {
        json!({"name": "nic0", "network": "berth-shared/default", "macAddress": format!("52:54:00:00:00:{n:02x}"),
            "address": format!("10.77.0.{n}")})
    };
    let interfaces: Vec<Value> =
        if kind == "Instance" { (2..60).map(interface).collect() } else { Vec::new() };
    json!({"kind": kind, "name": name, "detail": "", "owner": {"kind": owner_kind, "namespace": "default", "name": of,
        "uid": uid, "epoch": 7, "interfaces": interfaces,
        "publicIPs": [{"name": "web", "address": "198.18.100.0"}]}})
}

#[tokio::test(start_paused = true)]
async fn a_host_that_claims_a_future_vm_gets_neither_it_nor_its_secret_and_holds_nobody_up() {
    // Without an inventory, or with an incomplete one, its objects are unknown.
    for inventory in [Value::Null, json!({"complete": false})] {
        claims_a_future_vm(inventory).await;
    }
}

async fn claims_a_future_vm(inventory: Value) {
    let fleet = Fleet::new().await;
    let _agent = fleet.join("h1", "a", &image::host(&fleet.clock)).await;
    fleet.until("it reports", async || fleet.host_exists("h1").await).await;
    let mut status = boundless();
    status["inventory"] = inventory;
    status["orphans"] =
        json!([orphan("Instance", "i-evil", "one", None), orphan("Volume", "v-evil", "one", None)]);
    let _evil = hostile(&fleet, status).await;
    fleet.declare_two_vms().await;
    let vm = fleet.until_vm("one", "runs", runs).await;
    assert_eq!(host_of(&vm), "h1");
    assert_eq!(
        vm.status.and_then(|s| s.private_address).as_deref(),
        Some("10.77.0.2"),
        "it holds no address"
    );
    assert_eq!(fleet.secrets_of("evil").await, Vec::<String>::new());
    let disks: Api<Disk> = Api::default_namespaced(fleet.admin.clone());
    let disk = disks.get("one").await.expect("it is there").status.unwrap_or_default();
    assert_eq!(disk.binding.map(|b| b.host).as_deref(), Some("h1"));
    let evil: Api<Host> = Api::all(fleet.admin.clone());
    for wrong in [
        json!({"mtu": 60}),
        json!({"mtu": 100_000}),
        json!({"address": "everywhere"}),
        json!({"allocatable": {"cpus": i64::MAX, "memory": "1Ti", "storage": "1Ti"}}),
    ] {
        let refused =
            evil.patch_status("evil", &PatchParams::default(), &Patch::Merge(json!({"status": wrong}))).await;
        assert!(
            matches!(&refused, Err(kube::Error::Api(status)) if status.code == 422),
            "{wrong}: {refused:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_host_that_claims_a_vm_that_was_refused_gets_nothing_of_it_either() {
    let fleet = Fleet::new().await;
    let mut status = boundless();
    status["inventory"] = json!({"complete": true});
    let _evil = hostile(&fleet, status).await;
    let hosts: Api<Host> = Api::all(fleet.admin.clone());
    let label = json!({"metadata": {"labels": {"kubernetes.io/hostname": "evil"}}});
    hosts.patch("evil", &PatchParams::default(), &Patch::Merge(&label)).await.expect("labelled");
    fleet.declare_two_vms().await;
    let bound = fleet.until_vm("one", "is bound", |vm| host_of(vm) == "evil").await;
    let epoch = bound.status.as_ref().and_then(|s| s.binding.as_ref()).map(|b| b.epoch);
    let vms: Api<VM> = Api::default_namespaced(fleet.admin.clone());
    let refusal = json!({"status": {"refusal": {"host": "evil", "epoch": epoch, "message": "no"}}});
    vms.patch_status("one", &PatchParams::default(), &Patch::Merge(&refusal)).await.expect("it refuses it");
    let uid = bound.uid();
    let report = json!({"status": {"orphans": [orphan("Instance", "i-evil", "one", uid.as_deref())],
        "conditions": [{"type": "Ready", "status": "False", "reason": "x", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
    hosts.patch_status("evil", &PatchParams::default(), &Patch::Merge(&report)).await.expect("it claims it");
    let _agent = fleet.join("h1", "a", &image::host(&fleet.clock)).await;
    assert_eq!(host_of(&fleet.until_vm("one", "runs", runs).await), "h1");
}

/// Restores the control plane to a backup made when VM `one` was bound to `host` and not admitted yet.
async fn restore_before_admission(fleet: &Fleet, host: &str, since: &str) {
    for name in ["h1", "h2"] {
        fleet.declare_host(name, json!({"recovery": {"since": since}})).await;
    }
    let (vms, disks): (Api<VM>, Api<Disk>) =
        (Api::default_namespaced(fleet.admin.clone()), Api::default_namespaced(fleet.admin.clone()));
    let params = PatchParams::default();
    let binding = json!({"host": host, "epoch": 1});
    let disk = json!({"status": {"binding": binding, "volumeID": "v-0123456789abcdef", "serial": "x", "size": null}});
    disks.patch_status("one", &params, &Patch::Merge(&disk)).await.expect("as in the backup");
    let vm = json!({"status": {"binding": binding, "instanceID": "i-0123456789ab", "admittedEpoch": null, "process": null,
        "hardware": null, "refusal": null, "state": "Creating"}});
    vms.patch_status("one", &params, &Patch::Merge(&vm)).await.expect("as in the backup");
}

#[tokio::test(start_paused = true)]
async fn a_vm_that_a_backup_has_bound_elsewhere_goes_to_the_host_that_runs_it() {
    let (fleet, systems, _agents, vms) = two().await;
    let its = usize::from(vms[1] == "one");
    let before = fleet.vm("one").await.expect("it is there").status.expect("it runs");
    let other = ["h2", "h1"][its];
    restore_before_admission(&fleet, other, "2027-01-01T00:00:00Z").await;
    let again = fleet
        .until_vm("one", "runs again", |vm| runs(vm) && host_of(vm) != other)
        .await
        .status
        .expect("it runs");
    assert_eq!((again.instance_id, again.process), (before.instance_id, before.process), "the same QEMU");
    fleet
        .until("the recovery is over", async || {
            let hosts: Api<Host> = Api::all(fleet.admin.clone());
            let all = hosts.list(&ListParams::default()).await.expect("it answers");
            all.iter().all(|host| host.spec.recovery.is_none())
        })
        .await;
    for system in &systems {
        assert_eq!(system.hypervisor().instances().len(), 1, "nothing was started");
        assert_eq!(system.volumes_now().len(), 1, "no empty disk was made");
        assert!(system.violations().is_empty(), "{:?}", system.violations());
    }
}

#[tokio::test(start_paused = true)]
async fn a_silent_host_in_a_recovery_holds_back_only_what_it_may_have() {
    let (fleet, systems, agents, vms) = two().await;
    let its = usize::from(vms[1] == "one");
    agents[its].abort();
    fleet
        .until("it is silent", async || {
            let host: Api<Host> = Api::all(fleet.admin.clone());
            let host = host.get(["h1", "h2"][its]).await.expect("it is there").status.unwrap_or_default();
            condition::find(&host.conditions, "Ready").is_some_and(|c| c.status == "Unknown")
        })
        .await;
    restore_before_admission(&fleet, ["h2", "h1"][its], &fleet.clock.now().to_string()).await;
    fleet.until_vm("one", "waits for it", |vm| ready_reason(vm) == "WaitingForInventory").await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    fleet.apply("Disk", "new", json!({"image": "debian", "size": "2Gi"})).await;
    let spec = json!({"class": "small", "disks": [{"name": "new", "boot": true}], "networkInterfaces": []});
    fleet.apply("VM", "new", spec).await;
    fleet.until_vm("new", "runs", runs).await;
    assert_eq!(host_of(&fleet.vm("one").await.expect("it is there")), "", "it is placed nowhere else");
    assert_eq!(systems[1 - its].hypervisor().instances().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn what_was_on_a_lost_host_says_so_and_can_be_deleted() {
    let (fleet, systems, agents, [first, second]) = two().await;
    agents[1].abort();
    fleet.declare_host("h2", json!({"fenced": true, "cordoned": true})).await;
    let lost = fleet.until_vm(&second, "is given up", |vm| ready_reason(vm) == "HostFenced").await;
    let status = lost.status.unwrap_or_default();
    assert!(condition::is_true(&status.conditions, ConditionType::Stalled));
    assert_eq!((&status.process, &status.operation, status.facts.len()), (&None, &None, 0));
    assert!(fleet.host_exists("h2").await, "it is not forgotten while something is bound to it");
    let (vms, disks): (Api<VM>, Api<Disk>) =
        (Api::default_namespaced(fleet.admin.clone()), Api::default_namespaced(fleet.admin.clone()));
    vms.delete(&second, &DeleteParams::default()).await.expect("deletable");
    fleet.until("the VM goes", async || fleet.vm(&second).await.is_none()).await;
    let deleted = async || disks.delete(&second, &DeleteParams::default()).await.is_ok();
    fleet.until("its disk is not in use any more", deleted).await;
    fleet.until("the Host goes with the last of it", async || !fleet.host_exists("h2").await).await;
    assert!(runs(&fleet.vm(&first).await.expect("it is there")), "the other host goes on");
    assert_eq!(systems[0].hypervisor().instances().len(), 1);
    assert_eq!(systems[1].hypervisor().instances().len(), 1, "a guest that may run there was touched");
}

#[tokio::test(start_paused = true)]
async fn a_host_older_than_the_definitions_keeps_its_vms_and_takes_no_new_ones() {
    let (fleet, _systems, _agents, [first, second]) = two().await;
    let definitions: Api<CustomResourceDefinition> = Api::all(fleet.admin.clone());
    let hosts: Api<Host> = Api::all(fleet.admin.clone());
    let label = async |version: &str| {
        let patch = json!({"metadata": {"labels": {"berth.dev/version": version}}});
        definitions
            .patch("hosts.berth.dev", &PatchParams::default(), &Patch::Merge(&patch))
            .await
            .expect("labelled");
    };
    let reason = async |host: &str| {
        let status = hosts.get(host).await.expect("it is there").status.unwrap_or_default();
        let found = condition::find(&status.conditions, "DefinitionsCurrent");
        found.map(|c| c.reason.clone()).unwrap_or_default()
    };
    assert_eq!(reason("h1").await, "", "they are of one version");
    label("99.0.0").await;
    for host in ["h1", "h2"] {
        fleet.until("the host reports it", async || reason(host).await == "NewerDefinitions").await;
    }
    fleet.apply("Disk", "three", json!({"image": "debian", "size": "2Gi"})).await;
    let spec = json!({"class": "small", "disks": [{"name": "three", "boot": true}], "networkInterfaces": []});
    fleet.apply("VM", "three", spec).await;
    fleet.until_vm("three", "waits", |vm| ready_reason(vm) == "Unschedulable").await;
    for vm in [&first, &second] {
        assert!(runs(&fleet.vm(vm).await.expect("it is there")), "what runs goes on");
    }
    label("0.0.1").await;
    fleet.until("the other way round", async || reason("h1").await == "OlderDefinitions").await;
    fleet.until_vm("three", "runs", runs).await;
}

#[tokio::test(start_paused = true)]
async fn a_label_a_person_sets_on_a_host_stays() {
    let (fleet, ..) = two().await;
    let hosts: Api<Host> = Api::all(fleet.admin.clone());
    let label = json!({"metadata": {"labels": {"topology.kubernetes.io/zone": "a"}}});
    hosts.patch("h1", &PatchParams::default(), &Patch::Merge(&label)).await.expect("labelled");
    tokio::time::sleep(Duration::from_secs(130)).await;
    let listed = hosts.list(&ListParams::default().labels("topology.kubernetes.io/zone=a")).await;
    let names: Vec<String> = listed.expect("it answers").iter().map(ResourceExt::name_any).collect();
    assert_eq!(names, ["h1"]);
    let accounts: Api<ServiceAccount> = Api::namespaced(fleet.admin.clone(), "berth-system");
    assert!(accounts.get_opt("host-h1").await.expect("it answers").is_some());
}
