//! Invariants that hold while writes are in flight, whatever their results and order.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use berth_api::{
    Disk, Host, Network, Quota, USED_FINALIZER, VM, VMClass, placement_group::HOSTNAME_LABEL, vm::Placement,
};
use k8s_openapi::api::{coordination::v1::Lease, core::v1::ServiceAccount};
use kube::{ResourceExt, core::Status};
use proptest::prelude::*;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::*;
use berth_engine::Identities;

use crate::writer::WriteError;

/// The name prefix of such users.
const USER: &str = "user-of-c";

/// The parts of the control plane that these tests need.
#[derive(Default)]
struct Server {
    vms: BTreeMap<String, VM>,
    version: u64,
}

/// The fate of a job.
#[derive(Clone, Copy, Debug)]
enum Fate {
    /// All of it is written.
    WriteResult,
    /// A foreign write of the VM comes first.
    Conflict,
    /// Nothing is written, and the server cannot be read.
    Lost,
    /// A foreign deletion of the VM comes first.
    Deleted,
}

fn object<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).expect("an object")
}

fn vm(name: &str, class: &str, version: u64) -> VM {
    object(json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "VM",
        "metadata": {"name": name, "namespace": "default", "uid": name, "generation": 1, "resourceVersion": version.to_string()},
        "spec": {"class": class, "disks": []}, "status": {"observedGeneration": -1},
    }))
}

/// Hosts with as many CPUs as given, and classes `c1` to `c3` with one to three.
fn pipeline(hosts: &[i64]) -> Pipeline {
    let config = Config { identities: Identities::seeded(1), ..Config::new() };
    let mut pipeline = Pipeline::new(config);
    let now = Instant::now();
    let mut put = |object: Object| pipeline.take(Change::Applied(object), now);
    for (n, cpus) in hosts.iter().enumerate() {
        let name = format!("h{n}");
        put(object::<Host>(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "Host", "metadata": {"name": name, "uid": name, "resourceVersion": "1", "finalizers": [USED_FINALIZER], "labels": {HOSTNAME_LABEL: name}},
            "spec": {}, "status": {"observedGeneration": 1, "allocatable": {"cpus": cpus, "memory": "1Ti", "storage": "1Ti"}, "inventory": {"complete": true},
                "conditions": [{"type": "Ready", "status": "True", "reason": "Available", "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z"}]},
        }))
        .into());
        put(object::<Lease>(
            json!({"metadata": {"name": name, "namespace": "berth-system", "resourceVersion": "1"}}),
        )
        .into());
    }
    for cpus in 1..=3 {
        put(object::<VMClass>(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "VMClass",
            "metadata": {"name": format!("c{cpus}"), "namespace": "default", "uid": format!("c{cpus}"), "resourceVersion": "1",
                "finalizers": [USED_FINALIZER]},
            "spec": {"cpus": cpus, "memory": "1Gi"},
        }))
        .into());
    }
    put(object::<Network>(json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "Network",
        "metadata": {"name": "default", "namespace": "default", "uid": "n", "resourceVersion": "1", "finalizers": [USED_FINALIZER]},
        "spec": {"cidr": "10.0.0.0/28"}, "status": {"vni": 7},
    }))
    .into());
    pipeline
}

/// A site with classes and a network that already have a user, which no host takes: so that the writes for a VM are
/// of the VM only.
fn site(hosts: &[i64]) -> (Pipeline, Server, VecDeque<Job>) {
    let (mut pipeline, mut server, mut jobs) = (pipeline(hosts), Server::default(), VecDeque::new());
    for cpus in 1..=3 {
        let mut user = vm(&format!("{USER}{cpus}"), &format!("c{cpus}"), 1);
        user.spec.placement =
            Some(Box::new(Placement { host: Some("nowhere".into()), ..Placement::default() }));
        pipeline.take(Change::Applied(user.clone().into()), Instant::now());
        server.vms.insert(user.name_any(), user);
    }
    for _ in 0..4 {
        decide_all(&mut pipeline, &mut server, &mut jobs);
        for job in std::mem::take(&mut jobs) {
            let written = server.write(&job, Fate::WriteResult);
            pipeline.finish(job, written, Instant::now());
        }
    }
    (pipeline, server, jobs)
}

fn cpus_of(vm: &VM) -> i64 {
    let class = vm.spec.class.as_ref().expect("it names a class");
    class.as_str()[1..].parse().expect("the name has the number")
}

fn host_of(vm: &VM) -> Option<String> {
    Some(vm.status.as_ref()?.binding.as_ref()?.host.clone())
}

/// Collects the jobs until nothing is due; those of other kinds than VM are written at once.
fn decide_all(pipeline: &mut Pipeline, server: &mut Server, jobs: &mut VecDeque<Job>) {
    loop {
        match pipeline.decide(Instant::now()) {
            Progress::Idle => return,
            Progress::Settled => {}
            Progress::Write(job) if job.key.kind == ObjectKind::VM => jobs.push_back(job),
            Progress::Write(job) => {
                let written = server.write(&job, Fate::WriteResult);
                pipeline.finish(job, written, Instant::now());
            }
        }
    }
}

fn refused(key: &Key, code: u16) -> WriteError {
    WriteError::new(key, kube::Error::Api(Status::failure("struck", "Struck").with_code(code).boxed()))
}

impl Server {
    fn create(&mut self, pipeline: &mut Pipeline, name: &str, class: &str) {
        self.version += 1;
        let vm = vm(name, class, self.version);
        self.vms.insert(name.to_owned(), vm.clone());
        pipeline.take(Change::Applied(vm.into()), Instant::now());
    }

    fn write(&mut self, job: &Job, fate: Fate) -> WriteResult {
        let Some(known) = self.vms.get(&*job.key.name).cloned().filter(|_| job.key.kind == ObjectKind::VM)
        else {
            return self.write_others(job);
        };
        self.version += 1;
        let mut vm = known;
        vm.metadata.resource_version = Some(self.version.to_string());
        let (responses, code) = match fate {
            Fate::WriteResult => {
                let mut others = Vec::new();
                for write in &job.writes {
                    match write {
                        Write::Status(object @ (Object::VMClass(_) | Object::Network(_))) => {
                            others.push(Response::Is(self.newer(object)));
                        }
                        Write::Status(Object::VM(written)) => vm.status.clone_from(&written.status),
                        Write::Finalizers(_, finalizers) => vm.metadata.finalizers = Some(finalizers.clone()),
                        Write::TicketAccount { namespace, account } => {
                            let mut written = ServiceAccount::default();
                            written.metadata.name = Some((*account).to_owned());
                            written.metadata.namespace = Some(namespace.clone());
                            others.push(Response::Is(written.into()));
                        }
                        other => panic!("a VM alone writes no {other:?}"),
                    }
                }
                self.vms.insert(job.key.name.to_string(), vm.clone());
                others.push(Response::Is(vm.into()));
                return WriteResult { responses: others, error: None };
            }
            Fate::Conflict => {
                vm.metadata.labels = Some(BTreeMap::from([("edited".to_owned(), self.version.to_string())]));
                self.vms.insert(job.key.name.to_string(), vm.clone());
                (vec![Response::Is(vm.into())], 409)
            }
            Fate::Lost => (Vec::new(), 503),
            Fate::Deleted => {
                self.vms.remove(&*job.key.name);
                (vec![Response::Gone(job.key.clone())], 404)
            }
        };
        WriteResult { responses, error: Some(refused(&job.key, code)) }
    }

    fn write_others(&mut self, job: &Job) -> WriteResult {
        let responses = job.writes.iter().map(|write| {
            let Write::Status(object) = write else { panic!("only a status: {write:?}") };
            Response::Is(self.newer(object))
        });
        WriteResult { responses: responses.collect(), error: None }
    }

    fn newer(&mut self, object: &Object) -> Object {
        self.version += 1;
        let version = Some((1000 + self.version).to_string());
        match object.clone() {
            Object::Network(mut network) => {
                Arc::make_mut(&mut network).metadata.resource_version = version;
                Object::Network(network)
            }
            Object::VMClass(mut class) => {
                Arc::make_mut(&mut class).metadata.resource_version = version;
                Object::VMClass(class)
            }
            Object::Quota(mut quota) => {
                Arc::make_mut(&mut quota).metadata.resource_version = version;
                Object::Quota(quota)
            }
            other => panic!("{other:?} is written"),
        }
    }

    /// Returns each host's usage, including writes that may still succeed, and every allocated address.
    fn taken<'a>(&self, jobs: impl Iterator<Item = &'a Job>) -> (BTreeMap<String, i64>, Vec<String>) {
        let mut vms = self.vms.clone();
        for write in jobs.flat_map(|job| &job.writes) {
            if let Write::Status(Object::VM(vm)) = write {
                vms.insert(vm.name_any(), vm.as_ref().clone());
            }
        }
        let mut cpus = BTreeMap::new();
        for vm in vms.values() {
            if let Some(host) = host_of(vm) {
                *cpus.entry(host).or_default() += cpus_of(vm);
            }
        }
        let addresses = vms.values().filter_map(|vm| vm.status.as_ref()?.private_address.clone());
        (cpus, addresses.collect())
    }

    fn must_be_within(&self, jobs: &VecDeque<Job>, hosts: &[i64]) {
        let (cpus, addresses) = self.taken(jobs.iter());
        for (host, taken) in cpus {
            let n: usize = host[1..].parse().expect("a host");
            assert!(taken <= hosts[n], "{host} has {} CPUs and gave out {taken}", hosts[n]);
        }
        let different: BTreeSet<&String> = addresses.iter().collect();
        assert_eq!(different.len(), addresses.len(), "an address twice: {addresses:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_decision_under_way_took_nobody_else_gets_and_its_failure_gives_it_back() {
    let (mut pipeline, mut server, mut jobs) = site(&[2]);
    decide_all(&mut pipeline, &mut server, &mut jobs);
    server.create(&mut pipeline, "a", "c2");
    decide_all(&mut pipeline, &mut server, &mut jobs);
    let a = jobs.pop_front().expect("a is bound");
    assert_eq!(pipeline.cache.index.capacity.usage("h0").cpus, 2, "it has its room before it is written");
    server.create(&mut pipeline, "b", "c1");
    decide_all(&mut pipeline, &mut server, &mut jobs);
    let b = jobs.pop_front().expect("b is told that it waits");
    let said = |job: &Job| match job.writes.last() {
        Some(Write::Status(Object::VM(vm))) => host_of(vm),
        other => panic!("{other:?}"),
    };
    assert_eq!((said(&a), said(&b)), (Some("h0".into()), None));
    let written = server.write(&b, Fate::WriteResult);
    pipeline.finish(b, written, Instant::now());
    let written = server.write(&a, Fate::Deleted);
    pipeline.finish(a, written, Instant::now());
    assert_eq!(pipeline.cache.index.capacity.usage("h0").cpus, 0);
    decide_all(&mut pipeline, &mut server, &mut jobs);
    assert_eq!(jobs.front().and_then(said), Some("h0".into()), "b has the room that a gave back");
}

#[tokio::test(start_paused = true)]
async fn what_a_watch_tells_of_an_object_that_is_written_counts_after_the_answer() {
    let (mut pipeline, mut server, mut jobs) = site(&[2]);
    decide_all(&mut pipeline, &mut server, &mut jobs);
    server.create(&mut pipeline, "a", "c2");
    decide_all(&mut pipeline, &mut server, &mut jobs);
    let a = jobs.pop_front().expect("a is bound");
    let key = a.key.clone();
    // The watch delivers its own write before the response arrives; then it is deleted.
    let written = server.write(&a, Fate::WriteResult);
    let own = server.vms["a"].clone();
    pipeline.take(Change::Applied(own.clone().into()), Instant::now());
    pipeline.take(Change::ListBegins(ObjectKind::VM), Instant::now());
    pipeline.take(Change::Listed(ObjectKind::VM), Instant::now());
    assert!(pipeline.cache.tables.vms.get(&key).is_some(), "not before the answer");
    pipeline.finish(a, written, Instant::now());
    assert!(pipeline.cache.tables.vms.get(&key).is_none(), "a list without it came later");
    assert_eq!(pipeline.cache.index.capacity.usage("h0").vms, 0);
    assert!(pipeline.in_flight.is_empty() && pipeline.deferred.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_write_that_fails_is_tried_again_only_after_its_back_off() {
    let (mut pipeline, mut server, mut jobs) = site(&[2]);
    decide_all(&mut pipeline, &mut server, &mut jobs);
    server.create(&mut pipeline, "a", "c2");
    for wait in [50, 100, 200, 400] {
        decide_all(&mut pipeline, &mut server, &mut jobs);
        let job = jobs.pop_front().expect("it is tried");
        let written = server.write(&job, Fate::Lost);
        pipeline.finish(job, written, Instant::now());
        decide_all(&mut pipeline, &mut server, &mut jobs);
        assert!(jobs.is_empty(), "not at once");
        tokio::time::advance(Duration::from_millis(wait)).await;
        decide_all(&mut pipeline, &mut server, &mut jobs);
        assert!(jobs.is_empty(), "each time later");
        tokio::time::advance(Duration::from_millis(2 * wait)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_vm_with_a_rule_waits_for_those_that_it_selects_and_they_stay_away_from_one_that_is_kept_apart() {
    let (mut pipeline, mut server, mut jobs) = site(&[4, 4]);
    let mut create = |name: &str, app: &str, strategy: Option<&str>| {
        server.version += 1;
        let mut vm = vm(name, "c1", server.version);
        vm.metadata.labels = Some(BTreeMap::from([("app".to_owned(), app.to_owned())]));
        let rule = strategy
            .map(|strategy| json!({"name": "web", "vmSelector": {"app": "web"}, "strategy": strategy}));
        let rules: Vec<Value> = rule.into_iter().collect();
        vm.spec.placement = Some(Box::new(object(json!({"affinity": rules}))));
        server.vms.insert(name.to_owned(), vm.clone());
        pipeline.take(Change::Applied(vm.into()), Instant::now());
        for _ in 0..4 {
            decide_all(&mut pipeline, &mut server, &mut jobs);
            for job in std::mem::take(&mut jobs) {
                let written = server.write(&job, Fate::WriteResult);
                pipeline.finish(job, written, Instant::now());
            }
        }
        server.vms.iter().map(|(name, vm)| (name.clone(), host_of(vm))).collect::<BTreeMap<_, _>>()
    };
    let hosts = create("beside", "cache", Some("pack"));
    assert_eq!(hosts["beside"], None, "there is no VM with the label yet");
    let hosts = create("web-0", "web", None);
    assert_eq!((hosts["web-0"].as_deref(), hosts["beside"].as_deref()), (Some("h0"), Some("h0")));
    let hosts = create("apart", "batch", Some("spread"));
    assert_eq!(hosts["apart"].as_deref(), Some("h1"));
    let hosts = create("web-1", "web", None);
    assert_eq!(hosts["web-1"].as_deref(), Some("h0"), "the emptier host has one that is kept apart from it");
    let hosts = create("batch", "batch", None);
    assert_eq!(hosts["batch"].as_deref(), Some("h1"));
}

/// Decides until nothing is due; returns the jobs of this key, and writes all others at once.
fn decide_others(pipeline: &mut Pipeline, server: &mut Server, key: &Key) -> Vec<Job> {
    let mut jobs = Vec::new();
    loop {
        match pipeline.decide(Instant::now()) {
            Progress::Idle => return jobs,
            Progress::Settled => {}
            Progress::Write(job) if job.key == *key => jobs.push(job),
            Progress::Write(job) => {
                let written = server.write(&job, Fate::WriteResult);
                pipeline.finish(job, written, Instant::now());
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_blank_disk_waits_a_moment_for_its_vm_and_a_copy_does_not() {
    let disk = |name: &str, spec: Value| -> Disk {
        object(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "Disk",
            "metadata": {"name": name, "namespace": "default", "uid": name, "generation": 1, "resourceVersion": "1"},
            "spec": spec, "status": {"observedGeneration": -1},
        }))
    };
    let decided = |pipeline: &mut Pipeline| {
        let mut names = BTreeSet::new();
        loop {
            match pipeline.decide(Instant::now()) {
                Progress::Idle => return names,
                Progress::Settled => {}
                Progress::Write(job) => {
                    names.insert(job.key.name.to_string());
                }
            }
        }
    };
    let (mut pipeline, ..) = site(&[4]);
    pipeline.take(Change::Applied(disk("blank", json!({"size": "1Gi"})).into()), Instant::now());
    for (name, source) in [("copy", json!({"disk": "other"})), ("of-snapshot", json!({"snapshot": "other"}))]
    {
        let copy = disk(name, json!({"size": "1Gi", "source": source}));
        pipeline.take(Change::Applied(copy.into()), Instant::now());
    }
    assert_eq!(decided(&mut pipeline), ["copy".into(), "of-snapshot".into()].into());
    tokio::time::advance(Duration::from_millis(250)).await;
    assert_eq!(decided(&mut pipeline), ["blank".into()].into());
}

#[tokio::test(start_paused = true)]
async fn a_vm_that_waits_for_a_quota_is_decided_a_second_after_there_is_room() {
    let (mut pipeline, mut server, mut jobs) = site(&[20]);
    let quota: Quota = object(json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "Quota",
        "metadata": {"name": "q", "namespace": "default", "uid": "q", "resourceVersion": "1"},
        // The three VMs that the site has, and one more.
        "spec": {"hard": {"vms": 4}},
    }));
    pipeline.take(Change::Applied(quota.into()), Instant::now());
    for name in ["x1", "x2"] {
        server.create(&mut pipeline, name, "c1");
    }
    let write_all = |pipeline: &mut Pipeline, server: &mut Server, jobs: &mut VecDeque<Job>| {
        for _ in 0..4 {
            decide_all(pipeline, server, jobs);
            for job in std::mem::take(jobs) {
                let written = server.write(&job, Fate::WriteResult);
                pipeline.finish(job, written, Instant::now());
            }
        }
    };
    for _ in 0..3 {
        write_all(&mut pipeline, &mut server, &mut jobs);
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    let placed = |server: &Server, name: &str| host_of(&server.vms[name]).is_some();
    assert!(placed(&server, "x1") && !placed(&server, "x2"));
    write_all(&mut pipeline, &mut server, &mut jobs);
    let gone = server.vms.remove("x1").expect("it was created");
    pipeline.take(Change::Deleted(gone.into()), Instant::now());
    write_all(&mut pipeline, &mut server, &mut jobs);
    assert!(!placed(&server, "x2"), "once for all changes of a second");
    tokio::time::advance(Duration::from_millis(1100)).await;
    write_all(&mut pipeline, &mut server, &mut jobs);
    assert!(placed(&server, "x2"));
}

#[tokio::test(start_paused = true)]
async fn a_network_whose_names_go_is_written_once_a_second_and_its_vms_are_decided_meanwhile() {
    let (mut pipeline, mut server, mut jobs) = site(&[20]);
    let key = Key::namespaced(ObjectKind::Network, "default", "default");
    let mut network = pipeline.cache.tables.networks.get(&key).expect("cached").as_ref().clone();
    network.spec.dns_domain = Some("app.internal".to_owned());
    let network = server.newer(&network.into());
    pipeline.take(Change::Applied(network), Instant::now());
    for n in 0..12 {
        server.create(&mut pipeline, &format!("vm{n}"), "c1");
    }
    for _ in 0..5 {
        decide_all(&mut pipeline, &mut server, &mut jobs);
        for job in std::mem::take(&mut jobs) {
            let written = server.write(&job, Fate::WriteResult);
            pipeline.finish(job, written, Instant::now());
        }
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    let names = |pipeline: &Pipeline| {
        let network = pipeline.cache.tables.networks.get(&key).expect("cached");
        network.status.as_ref().map_or(0, |status| status.names.len())
    };
    assert_eq!(names(&pipeline), 12);

    let (mut writes, mut in_flight) = (0, Vec::new());
    // A VM goes each quarter of a second, for which each write of the network takes.
    for n in 0..12 {
        let gone = server.vms.remove(&format!("vm{n}")).expect("it was created");
        pipeline.take(Change::Deleted(gone.into()), Instant::now());
        let is_deferred = !in_flight.is_empty() && !server.vms.contains_key("late");
        if is_deferred {
            server.create(&mut pipeline, "late", "c1");
            assert!(decide_others(&mut pipeline, &mut server, &key).is_empty());
            assert_eq!(host_of(&server.vms["late"]), None, "it waits for the write");
        }
        for job in std::mem::take(&mut in_flight) {
            let written = server.write(&job, Fate::WriteResult);
            pipeline.finish(job, written, Instant::now());
        }
        in_flight = decide_others(&mut pipeline, &mut server, &key);
        writes += in_flight.len();
        assert!(!is_deferred || host_of(&server.vms["late"]).is_some(), "it comes before the network");
        tokio::time::advance(Duration::from_millis(250)).await;
    }
    assert!((2..=3).contains(&writes), "{writes} writes in three seconds");
    assert!(server.vms.contains_key("late"));
}

fn fates() -> impl Strategy<Value = Fate> {
    prop_oneof![6 => Just(Fate::WriteResult), 2 => Just(Fate::Conflict), 1 => Just(Fate::Lost), 1 => Just(Fate::Deleted)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn nothing_is_given_out_twice_whatever_becomes_of_the_writes_under_way(
        hosts in prop::collection::vec(1i64..6, 1..4),
        events in prop::collection::vec((0usize..4, 1usize..4, any::<prop::sample::Index>(), fates()), 1..60),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
        runtime.block_on(async {
            let (mut pipeline, mut server, mut jobs) = site(&hosts);
            for (n, (what, class, which, fate)) in events.into_iter().enumerate() {
                match what {
                    0 | 1 => server.create(&mut pipeline, &format!("vm{n}"), &format!("c{class}")),
                    2 => tokio::time::advance(Duration::from_secs(1)).await,
                    _ if jobs.is_empty() => {}
                    _ => {
                        let job = jobs.remove(which.index(jobs.len())).expect("one of them");
                        let written = server.write(&job, fate);
                        pipeline.finish(job, written, Instant::now());
                    }
                }
                decide_all(&mut pipeline, &mut server, &mut jobs);
                server.must_be_within(&jobs, &hosts);
            }
            // In the end everything is written, and the cache's counts equal the server's.
            for _ in 0..200 {
                while let Some(job) = jobs.pop_front() {
                    let written = server.write(&job, Fate::WriteResult);
                    pipeline.finish(job, written, Instant::now());
                    server.must_be_within(&jobs, &hosts);
                }
                tokio::time::advance(Duration::from_secs(10)).await;
                decide_all(&mut pipeline, &mut server, &mut jobs);
            }
            assert!(jobs.is_empty() && pipeline.in_flight.is_empty() && pipeline.deferred.is_empty());
            let (cpus, _) = server.taken(std::iter::empty());
            for n in 0..hosts.len() {
                let host = format!("h{n}");
                assert_eq!(pipeline.cache.index.capacity.usage(&host).cpus, cpus.get(&host).copied().unwrap_or_default());
            }
            let free: i64 = hosts.iter().zip(0..).map(|(all, n)| all - cpus.get(&format!("h{n}")).copied().unwrap_or_default()).max().unwrap_or_default();
            let waits = server.vms.values().find(|vm| !vm.name_any().starts_with(USER) && host_of(vm).is_none() && cpus_of(vm) <= free);
            // The range has thirteen addresses for VMs.
            assert!(waits.is_none() || server.vms.values().filter(|vm| host_of(vm).is_some()).count() >= 13, "{waits:?} waits for {free} free CPUs");
        });
    }
}
