//! Decisions whether a VM moves.

use berth_api::{Host, HostStatus, StoragePool, placement_group::HOSTNAME_LABEL, vm::MOVE_ANNOTATION};
use serde_json::{Value, json};

use super::*;
use crate::cache::storage::HostStorage;

fn object<K: serde::de::DeserializeOwned>(kind: &str, name: &str, spec: Value, status: Value) -> K {
    let namespace = ["VM", "Disk"].contains(&kind).then_some("ns");
    let metadata =
        json!({"name": name, "namespace": namespace, "uid": name, "resourceVersion": "1", "generation": 3});
    let whole = json!({"apiVersion": "berth.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec, "status": status});
    serde_json::from_value(whole).expect("an object")
}

/// A VM of host h1, whose placement does not allow that host any more.
fn vm(placement: Value, request: Option<&str>) -> VM {
    let synced = json!({"type": "PlacementSynced", "status": "False", "reason": "PlacedElsewhere", "message": "", "observedGeneration": 3,
        "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let mut vm: VM = object(
        "VM",
        "web",
        json!({"cpus": 1, "memory": "512Mi", "disks": [{"name": "root", "boot": true}], "networkInterfaces": [], "placement": placement}),
        json!({"binding": {"host": "h1", "epoch": 4}, "admittedEpoch": 4, "instanceID": "i-1", "state": "Running",
            "conditions": [synced]}),
    );
    vm.metadata.annotations = request.map(|text| [(MOVE_ANNOTATION.to_owned(), text.to_owned())].into());
    vm
}

/// Two hosts with a pool in common; the second one has room if `free`.
fn cache(free: bool, vm: &VM) -> Cache {
    cache_of(free, vm, &json!(null))
}

/// `status`: of the hosts.
fn cache_of(free: bool, vm: &VM, status: &Value) -> Cache {
    let now = tokio::time::Instant::now();
    let mut cache = Cache::new(std::time::Duration::from_secs(40));
    for host in ["h1", "h2"] {
        cache.put(object::<Host>("Host", host, json!({}), status.clone()), now);
    }
    cache.put(object::<StoragePool>("StoragePool", "site", json!({"type": "Shared"}), json!(null)), now);
    let disk = json!({"binding": {"host": "h1", "epoch": 2}, "volumeID": "v-1", "size": "1Gi", "pool": "site",
        "usedBy": [{"use": "Fixed", "vm": "web", "vmUid": "web"}]});
    cache.put(object::<Disk>("Disk", "root", json!({"size": "1Gi", "pool": "site"}), disk), now);
    cache.put(vm.clone(), now);
    let pools: HostStatus = serde_json::from_value(json!({"pools": [
        {"name": "site", "sharedId": "p-1", "total": "100Gi", "free": "50Gi", "promised": "1Gi"},
    ]}))
    .expect("a status");
    cache.index.capacity.set_host(Candidate {
        name: "h2".into(),
        ready: true,
        allocatable_cpus: i64::from(free) * 4,
        allocatable_memory: 1 << 40,
        storage: HostStorage::of(&pools),
        ..Candidate::default()
    });
    cache
}

fn decided(free: bool, vm: &VM) -> Option<Result<(), String>> {
    decide(&cache(free, vm), &Config::new(), vm)
}

#[tokio::test]
async fn a_vm_moves_for_its_placement_only_if_it_declares_that_and_another_host_takes_it() {
    let moves = || vm(json!({"host": "h2", "movePolicy": "WhenStopped"}), None);
    assert_eq!(decided(true, &vm(json!({"host": "h2"}), None)), None);
    assert_eq!(decided(true, &moves()), Some(Ok(())));
    assert!(decided(false, &moves()).is_some_and(|decided| decided.is_err()), "there is no room");
    let mut changed = moves();
    changed.metadata.generation = Some(4);
    assert_eq!(decided(true, &changed), None, "the report is about an earlier spec");
    let mut with_tpm = moves();
    with_tpm.spec.tpm = Some(true);
    let why = decided(true, &with_tpm).expect("it is to move").expect_err("its TPM stays");
    assert!(why.contains("TPM"), "{why}");
}

#[tokio::test]
async fn a_vm_moves_to_a_host_only_if_its_rules_about_other_vms_allow_that() {
    let rules = json!([
        {"name": "db", "vmSelector": {"app": "db"}},
        {"name": "web", "vmSelector": {"app": "web"}, "strategy": "pack"},
    ]);
    let mut moving = vm(json!({"affinity": rules, "movePolicy": "WhenStopped"}), None);
    moving.metadata.labels = Some([("app".to_owned(), "web".to_owned())].into());
    let mut cache = cache(true, &moving);
    let mut second = cache.index.capacity.get("h2").cloned().expect("it is there");
    second.labels = [(HOSTNAME_LABEL.to_owned(), "h2".to_owned())].into();
    cache.index.capacity.set_host(second);
    assert_eq!(decide(&cache, &Config::new(), &moving), Some(Ok(())), "it is not beside itself on its host");
    let mut db: VM = object(
        "VM",
        "db",
        json!({"cpus": 1, "memory": "512Mi", "disks": [], "networkInterfaces": []}),
        json!({"binding": {"host": "h2", "epoch": 1}}),
    );
    db.metadata.labels = Some([("app".to_owned(), "db".to_owned())].into());
    cache.put(db, tokio::time::Instant::now());
    let why = decide(&cache, &Config::new(), &moving).expect("it is to move").expect_err("h2 has the other");
    assert!(why.contains("with a VM with app=db, from which affinity db keeps it apart"), "{why}");
}

#[tokio::test]
async fn a_request_counts_for_the_binding_that_it_names_whatever_the_policy() {
    let requested = |placement: Value, text: &str| decided(true, &vm(placement, Some(text)));
    assert_eq!(requested(json!({}), "4"), Some(Ok(())));
    assert_eq!(requested(json!({}), "4/h2"), Some(Ok(())));
    assert_eq!(requested(json!({}), "3/h2"), None, "it has left that one");
    for (placement, text, expected) in [
        (json!({}), "4/h1", "on host h1 already"),
        (json!({}), "4/h9", "no host h9"),
        (json!({"host": "h1"}), "4", "placement.host names the host that it has"),
        (json!({"host": "h3"}), "4/h2", "placement.host names host h3"),
    ] {
        let why = requested(placement, text).expect("it is requested").expect_err("it cannot");
        assert!(why.contains(expected), "{why:?} does not say {expected:?}");
    }
}

#[test]
fn the_status_says_whether_it_can_move_only_while_it_is_to_move() {
    let now = Timestamp::UNIX_EPOCH;
    let vm = vm(json!({}), None);
    let written = |decided: Option<&Result<(), String>>| {
        write(&vm, decided, None, vm.status.clone().expect("a status"), now)
    };
    let movable =
        |status: &VMStatus| condition::find(&status.conditions, "Movable").map(|found| found.status.clone());
    let before = written(None);
    assert_eq!(Some(&before), vm.status.as_ref(), "and nothing is written otherwise");
    let moves = written(Some(&Ok(())));
    assert_eq!((moves.move_epoch, movable(&moves).as_deref()), (Some(4), Some("True")));
    let stays = written(Some(&Err("no room".to_owned())));
    assert_eq!((stays.move_epoch, movable(&stays).as_deref()), (None, Some("False")));
    let mut released = moves.clone();
    released.released_epoch = Some(4);
    assert_eq!(
        write(&vm, None, None, released.clone(), now),
        released,
        "it is given up: nothing is withdrawn"
    );
}

#[tokio::test]
async fn a_running_vm_moves_live_only_if_it_is_to_and_both_hosts_do_that() {
    let running = |policy: &str, request: Option<&str>| {
        let mut vm = vm(json!({"host": "h2", "movePolicy": policy}), request);
        let process = json!({"pid": 7, "startedAt": "2026-01-01T00:00:00Z"});
        vm.status.as_mut().expect("a status").process = serde_json::from_value(process).expect("a process");
        vm
    };
    let decided = |vm: &VM, status: Value| decide_live(&cache_of(true, vm, &status), &Config::new(), vm);
    let able = || json!({"liveMigration": true});
    let Some(Live::Moves(migration)) = decided(&running("Live", None), able()) else {
        panic!("it moves live")
    };
    assert_eq!((migration.to.as_str(), migration.epoch), ("h2", 4));
    assert_eq!(decided(&running("WhenStopped", None), able()), None);
    assert!(matches!(decided(&running("Never", Some("4//live")), able()), Some(Live::Moves(_))));
    assert_eq!(decided(&running("Never", Some("4")), able()), None);
    assert_eq!(decided(&vm(json!({"host": "h2", "movePolicy": "Live"}), None), able()), None, "it is off");
    let Some(Live::Refused(why)) = decided(&running("Live", None), json!({})) else {
        panic!("an older agent")
    };
    assert!(why.contains("does not send running guests"), "{why}");
    let mut grouped = running("Live", None);
    if let Some(placement) = grouped.spec.placement.as_mut() {
        placement.group = Some("replicas".into());
    }
    assert!(matches!(decided(&grouped, able()), Some(Live::Refused(_))));

    // The decision stays until the host withdraws it.
    let mut moving = running("Live", None);
    let now = Timestamp::UNIX_EPOCH;
    let status = moving.status.clone().expect("a status");
    let written = write(&moving, Some(&Ok(())), Some(Live::Moves(migration.clone())), status, now);
    assert_eq!(written.live_move(), Some(&*migration));
    moving.status = Some(written);
    assert_eq!(decided(&moving, able()), Some(Live::Moves(migration.clone())));
    let stays = write(&moving, None, None, moving.status.clone().expect("a status"), now);
    assert_eq!(
        (stays.move_epoch, stays.live_move()),
        (None, Some(&*migration)),
        "its host may hand it over now"
    );
}

#[tokio::test]
async fn the_host_that_a_running_guest_is_sent_to_keeps_the_room_for_it() {
    let mut moving = vm(json!({"host": "h2", "movePolicy": "Live"}), None);
    let migration = json!({"id": "m1", "to": "h2", "epoch": 4, "phase": "Requested"});
    let status = moving.status.as_mut().expect("a status");
    status.migration = serde_json::from_value(migration).expect("a move");
    let mut cache = cache(true, &moving);
    let used = |cache: &Cache| ["h1", "h2"].map(|host| cache.index.capacity.usage(host).cpus);
    assert_eq!(used(&cache), [1, 1]);
    let mut next = cache.index.capacity.get("h2").cloned().expect("it is there");
    next.allocatable_cpus = 1;
    cache.index.capacity.set_host(next);
    assert_eq!(decide(&cache, &Config::new(), &moving), Some(Ok(())), "the room is its own");

    let mut stays = moving.clone();
    stays.metadata.resource_version = Some("2".to_owned());
    stays.status.as_mut().expect("a status").migration = None;
    let _ = cache.index.capacity.take_changes();
    cache.put(stays, tokio::time::Instant::now());
    assert_eq!(used(&cache), [1, 0]);
    assert!(cache.index.capacity.take_changes().freed, "VMs that wait for room are tried again");
}
