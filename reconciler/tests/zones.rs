//! Two concurrent schedulers and a required rule over zones: whatever they do not know of each other, and however
//! late their writes come, no two members of a `spread` group are admitted in one zone, none of a `pack` group in
//! two, and no member waits forever.
//!
//! Each scheduler reaches the control plane over its own transport that delays every request, every response and
//! every watch event by a time derived from a seed: its cache is seconds old, and its writes come seconds late.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use berth::install;
use berth_agent::AgentConfig;
use berth_api::{Host, PlacementGroup, Strategy, VM, VMState};
use berth_apiserver::{ApiService, Server};
use berth_controllers as controllers;
use berth_engine::{Identities, RuntimeClock};
use berth_host::fake::FakeSystem;
use bytes::Bytes;
use futures::StreamExt;
use http::{Request, Response};
use http_body_util::{BodyExt, BodyStream, StreamBody, combinators::UnsyncBoxBody};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, Patch, PatchParams},
    client::Body,
};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{task::JoinHandle, time::Instant};
use tokio_util::sync::CancellationToken;
use tower::{BoxError, Service};

use crate::installed::{self, Copy};

const LIMIT: Duration = Duration::from_secs(900);
const HOSTS: [(&str, &str); 4] = [("h1", "a"), ("h2", "a"), ("h3", "b"), ("h4", "b")];
const ZONE: &str = "topology.kubernetes.io/zone";

/// A slow transport to the control plane.
#[derive(Clone)]
struct Slow {
    inner: ApiService,
    random: Arc<Mutex<StdRng>>,
    longest: Duration,
}

impl Slow {
    fn wait(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        // Most delays are short: the few long ones change the order.
        let share = random.random::<f64>().powi(3);
        tokio::time::sleep(self.longest.mul_f64(share))
    }
}

impl Service<Request<Body>> for Slow {
    type Response = Response<UnsyncBoxBody<Bytes, BoxError>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let mut slow = self.clone();
        Box::pin(async move {
            slow.wait().await;
            let Ok(response) = slow.inner.call(request).await;
            slow.wait().await;
            let (parts, body) = response.into_parts();
            let frames = BodyStream::new(body.map_err(Into::into)).then(move |frame| {
                let wait = slow.wait();
                async move {
                    wait.await;
                    frame
                }
            });
            Ok(Response::from_parts(parts, StreamBody::new(frames).boxed_unsync()))
        })
    }
}

struct Site {
    server: Server,
    admin: Client,
    clock: Arc<RuntimeClock>,
    systems: Vec<Arc<FakeSystem>>,
    /// The zone of each host as labelled now.
    zones: Mutex<BTreeMap<&'static str, &'static str>>,
    rule: Strategy,
    /// The control plane's database.
    _folder: TempDir,
}

impl Site {
    async fn new(rule: Strategy) -> Self {
        let Copy { server, admin, clock, folder } = installed::copy().await;
        let zones = Mutex::new(HOSTS.into());
        let mut site = Self { server, admin, clock, systems: Vec::new(), zones, rule, _folder: folder };
        for (name, zone) in HOSTS {
            let system = Arc::new(FakeSystem::new(site.clock.clone()));
            let labels = [(ZONE.to_owned(), zone.to_owned())].into();
            let config =
                AgentConfig { clock: site.clock.clone(), seed: Some(1), labels, ..AgentConfig::new(name) };
            let agent =
                berth_agent::run(config, site.admin.clone(), system.clone(), CancellationToken::new());
            tokio::spawn(agent);
            site.systems.push(system);
        }
        let hosts: Api<Host> = Api::all(site.admin.clone());
        for (name, _) in HOSTS {
            site.until("every host reports", async || {
                let host = hosts.get_opt(name).await.expect("it answers");
                host.and_then(|h| h.status).is_some_and(|s| s.inventory.is_some())
            })
            .await;
        }
        site.apply("VMClass", "small", json!({"cpus": 1, "memory": "512Mi", "firmware": "BIOS"})).await;
        site.apply("PlacementGroup", "db", json!({"topologyKey": ZONE, "strategy": rule})).await;
        site
    }

    /// A scheduler that does not know of the other.
    fn scheduler(&self, seed: u64, longest: Duration) -> JoinHandle<()> {
        let random = Arc::new(Mutex::new(StdRng::seed_from_u64(seed)));
        let way = Slow { inner: self.server.service(), random, longest };
        let config = controllers::Config {
            clock: self.clock.clone(),
            identities: Identities::seeded(seed),
            ..controllers::Config::new()
        };
        tokio::spawn(controllers::run(Client::new(way, "default"), config, CancellationToken::new()))
    }

    async fn apply(&self, kind: &str, name: &str, spec: Value) {
        let object = json!({"apiVersion": "berth.dev/v1alpha1", "kind": kind,
            "metadata": {"name": name, "namespace": "default"}, "spec": spec});
        install::apply(&self.admin, &[object]).await.expect("it applies");
    }

    /// A member of the group that must run on this host.
    async fn member(&self, name: &str, host: &str) {
        self.apply("Disk", name, json!({"size": "1Gi"})).await;
        let spec = json!({"class": "small", "disks": [{"name": name, "boot": true}],
            "placement": {"group": "db", "host": host}, "stop": {"gracePeriodSeconds": 5}});
        self.apply("VM", name, spec).await;
    }

    /// Labels a host with another zone.
    async fn relabel(&self, host: &'static str, zone: &'static str) {
        let hosts: Api<Host> = Api::all(self.admin.clone());
        let label = Patch::Merge(json!({"metadata": {"labels": {ZONE: zone}}}));
        hosts.patch(host, &PatchParams::default(), &label).await.expect("patched");
        self.zones.lock().unwrap_or_else(PoisonError::into_inner).insert(host, zone);
    }

    async fn until(&self, what: &str, holds: impl AsyncFn() -> bool) {
        let begun = Instant::now();
        while !holds().await {
            self.keeps_the_rule();
            assert!(begun.elapsed() < LIMIT, "never: {what}: {}", self.conditions().await);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// The guests that run are read from the hosts, not from any status.
    fn keeps_the_rule(&self) {
        let zones = self.zones.lock().unwrap_or_else(PoisonError::into_inner);
        let mut run: BTreeMap<&str, usize> = BTreeMap::new();
        for ((host, _), system) in HOSTS.iter().zip(&self.systems) {
            *run.entry(zones[host]).or_default() += system.hypervisor().instances().len();
        }
        let holds = match self.rule {
            Strategy::Spread => run.values().all(|members| *members <= 1),
            Strategy::Pack => run.values().filter(|members| **members > 0).count() <= 1,
        };
        assert!(holds, "members of the group that run in the zones: {run:?}");
    }

    async fn conditions(&self) -> String {
        let vms: Api<VM> = Api::default_namespaced(self.admin.clone());
        let groups: Api<PlacementGroup> = Api::default_namespaced(self.admin.clone());
        let vms = vms.list(&Default::default()).await.expect("it answers");
        let group = groups.get("db").await.expect("it answers");
        format!(
            "{:#?} {:#?}",
            vms.iter().map(|vm| (vm.name_any(), &vm.status)).collect::<Vec<_>>(),
            group.status
        )
    }

    async fn running(&self) -> Vec<String> {
        let vms: Api<VM> = Api::default_namespaced(self.admin.clone());
        let vms = vms.list(&Default::default()).await.expect("it answers");
        let runs = |vm: &&VM| vm.status.as_ref().is_some_and(|s| s.state == Some(VMState::Running));
        vms.iter().filter(runs).map(|vm| vm.name_any()).collect()
    }

    async fn delete(&self, name: &str) {
        let vms: Api<VM> = Api::default_namespaced(self.admin.clone());
        vms.delete(name, &DeleteParams::default()).await.expect("deleted");
        self.until("it is gone", async || vms.get_opt(name).await.expect("it answers").is_none()).await;
    }
}

/// Runs a scenario on paused time, which never waits for a clock.
fn simulated(scenario: impl AsyncFnOnce()) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime without I/O can always be built").block_on(scenario());
}

/// Four members, each with a host of its own, two zones, two schedulers; one of them is killed and restarted on the
/// way. Either rule lets two of them run, and the other two after them.
async fn two_run_and_then_the_others(rule: Strategy, seed: u64) {
    let site = Site::new(rule).await;
    let first = site.scheduler(seed * 2, Duration::from_secs(8));
    let _second = site.scheduler(seed * 2 + 1, Duration::from_secs(8));
    let names = ["one", "two", "three", "four"];
    for (name, (host, _)) in names.iter().zip(HOSTS) {
        site.member(name, host).await;
    }
    if seed.is_multiple_of(2) {
        tokio::time::sleep(Duration::from_secs(seed % 16)).await;
        first.abort();
        site.scheduler(seed + 1_000_000, Duration::from_secs(8));
    }
    site.until("two run", async || site.running().await.len() == 2).await;
    // Enough time for everything in flight.
    tokio::time::sleep(Duration::from_secs(120)).await;
    let before = site.running().await;
    assert_eq!(before.len(), 2, "{before:?}");
    for name in &before {
        site.delete(name).await;
    }
    site.until("the others take their places", async || site.running().await.len() == 2).await;
    tokio::time::sleep(Duration::from_secs(120)).await;
    site.keeps_the_rule();
    let after = site.running().await;
    assert!(after.iter().all(|name| !before.contains(name)), "{before:?}, then {after:?}");
}

#[test]
fn two_schedulers_at_once_never_have_two_members_of_a_group_run_in_one_zone() {
    for seed in 0..12 {
        eprintln!("seed {seed}");
        simulated(async || two_run_and_then_the_others(Strategy::Spread, seed).await);
    }
}

#[test]
fn two_schedulers_at_once_never_have_members_of_a_group_run_in_two_zones() {
    for seed in 0..12 {
        eprintln!("seed {seed}");
        simulated(async || two_run_and_then_the_others(Strategy::Pack, seed).await);
    }
}

/// Returns the claims of the group, as `value VM`.
async fn claims(site: &Site) -> Vec<String> {
    let groups: Api<PlacementGroup> = Api::default_namespaced(site.admin.clone());
    let status = groups.get("db").await.expect("it answers").status.unwrap_or_default();
    status.claims.iter().map(|c| format!("{} {}", c.value, c.vm)).collect()
}

#[test]
fn a_host_takes_the_zones_of_its_members_along_when_it_is_given_another_label() {
    simulated(async || {
        let site = Site::new(Strategy::Spread).await;
        site.scheduler(1, Duration::ZERO);
        site.member("one", "h1").await;
        site.until("it runs", async || site.running().await.len() == 1).await;
        assert_eq!(claims(&site).await, ["a one"]);
        site.relabel("h1", "c").await;
        site.until("the claim follows", async || claims(&site).await == ["c one"]).await;
        site.member("two", "h2").await;
        site.until("zone a is free", async || site.running().await.len() == 2).await;
        assert_eq!(claims(&site).await, ["a two", "c one"]);
    });
}

#[test]
fn a_binding_that_no_claim_was_made_for_is_refused_by_its_host_and_placed_anew() {
    simulated(async || {
        let site = Site::new(Strategy::Spread).await;
        site.member("one", "h1").await;
        // The write of an older scheduler: host and identity, and nothing in the group.
        let vms: Api<VM> = Api::default_namespaced(site.admin.clone());
        let bound = json!({"metadata": {"finalizers": [berth_api::HOST_FINALIZER]}});
        vms.patch("one", &PatchParams::default(), &Patch::Merge(bound)).await.expect("patched");
        let status =
            json!({"status": {"binding": {"host": "h1", "epoch": 1}, "instanceID": "i-0123456789ab"}});
        vms.patch_status("one", &PatchParams::default(), &Patch::Merge(status)).await.expect("bound");
        let refused = async || vms.get("one").await.expect("there").status.unwrap_or_default().refusal;
        site.until("it is refused", async || refused().await.is_some()).await;
        let why = refused().await.expect("just seen").message;
        assert_eq!(why, format!("placement group db does not give {ZONE} a to this binding of the VM"));
        site.scheduler(1, Duration::ZERO);
        site.until("it runs", async || site.running().await.len() == 1).await;
        let status = vms.get("one").await.expect("there").status.unwrap_or_default();
        assert_eq!(status.binding.map(|b| b.epoch), Some(2));
    });
}
