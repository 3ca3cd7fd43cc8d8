//! Decisions about a VM for given inputs.

mod interfaces;
mod release;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use berth_api::{Binding, Disk, Network, PlacementGroup, Reason, VM, VMState, console::VM_ACCOUNTS};
use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

use crate::{
    batch::WriteBatch,
    cache::Cache,
    cache::affinity::PlacedVms,
    cache::capacity::{Demand, HostCapacity},
    cache::claims::Claim,
    cache::shared_images::ForeignOriginal,
    config::Config,
    key::{Key, ObjectKind},
    kinds::{disk::Obstacle, quota::Excess, rebind::CopyRemoval},
    placement_hold::PlacementHold,
    plan::{Dependency, Outcome, Step},
    scheduler::PlacementPolicy,
};

use super::{
    Decision,
    observe::{DiskSeen, Fresh, Observed},
    plan::plan,
    status::status,
};
use crate::cache::capacity::Candidate;
use berth_api::NetworkSpec;
use serde_json::json;

fn network() -> Arc<Network> {
    let mut network =
        Network::new("default", NetworkSpec { cidr: "10.0.0.0/29".into(), ..NetworkSpec::default() });
    network.metadata.namespace = Some("berth-shared".into());
    network.status = Some(berth_api::NetworkStatus { vni: Some(7), ..Default::default() });
    Arc::new(network)
}

fn vm(status: serde_json::Value) -> VM {
    serde_json::from_value(json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "VM",
        "metadata": {"name": "web", "namespace": "default", "uid": "u1", "generation": 3},
        "spec": {"class": "small", "disks": [{"name": "root", "boot": true}]}, "status": status,
    }))
    .expect("a VM")
}

fn disk(status: serde_json::Value) -> Arc<Disk> {
    Arc::new(
        serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "Disk",
            "metadata": {"name": "root", "namespace": "default", "generation": 1}, "spec": {"size": "1Gi"}, "status": status,
        }))
        .expect("a disk"),
    )
}

fn ready_disk() -> serde_json::Value {
    json!({"observedGeneration": 1, "conditions": [{"type": "Ready", "status": "True", "reason": "WaitingForFirstUse",
        "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]})
}

fn capacity() -> HostCapacity {
    let mut capacity = HostCapacity::default();
    capacity.set_host(Candidate {
        name: "h1".into(),
        ready: true,
        allocatable_cpus: 4,
        allocatable_memory: 1 << 40,
        ..Candidate::default()
    });
    capacity
}

fn observed(disk: Option<Arc<Disk>>) -> Observed {
    Observed {
        architecture: Default::default(),
        other_architecture: None,
        cpu_model: None,
        size: Some(Demand { cpus: 1, memory: 1 << 29, ..Demand::default() }),
        invalid_size: None,
        tpm: false,
        new_disks: Default::default(),
        choices: Vec::new(),
        chosen_pools: Default::default(),
        backup_folders: BTreeSet::new(),
        image_hosts: BTreeSet::new(),
        disks: vec![DiskSeen {
            key: Key::namespaced(ObjectKind::Disk, "default", "root"),
            object: disk,
            foreign: None,
            user: None,
            claimed: None,
            unknown: None,
            unconfirmed: None,
            obstacle: None,
        }],
        group: None,
        beside: PlacedVms::default(),
        networks: vec![Some(network())],
        no_security_group: None,
        policy: PlacementPolicy::Balance,
        host_silent: false,
        host_fenced: false,
        claim: None,
        unknown: None,
        over_quota: None,
        recovering: false,
        unconfirmed: None,
        taken: BTreeSet::new(),
        open_claims: Vec::new(),
        deleting: None,
        unshared_medium: None,
        refused_by: None,
        misnamed_address: None,
        copies: CopyRemoval::Nothing,
        fresh: Fresh {
            instance_id: "i-1".into(),
            volume_ids: vec!["v-0123456789abcdef".into()],
            interfaces: vec![Ok(super::addresses::Addresses {
                mac: "52:54:00:00:00:01".into(),
                ipv4: "10.0.0.2".into(),
                ipv6: String::new(),
            })],
        },
    }
}

fn waits_for(vm: &VM, observed: &Observed) -> Reason {
    match plan(vm, observed, &capacity()).decision {
        Decision::Wait(_, readiness) => readiness.reason(),
        other => panic!("expected it to wait, got {other:?}"),
    }
}

#[test]
fn a_deleted_vm_without_a_host_goes_to_one_only_for_the_removal_of_its_copies() {
    let mut vm = vm(json!({"refusal": {"host": "h1", "epoch": 4, "message": "gone"}, "instanceID": "i-1"}));
    vm.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::UNIX_EPOCH));
    let planned = |copies| plan(&vm, &Observed { copies, ..observed(None) }, &capacity());
    let ends = Step::RemoveFinalizer(Key::of(&vm), berth_api::HOST_FINALIZER);
    assert_eq!(planned(CopyRemoval::Nothing).steps, [ends]);
    let waits = planned(CopyRemoval::Waits { text: "away".into(), hosts: vec!["h2".into()] });
    let host = Dependency::Object(Key::cluster(ObjectKind::Host, "h2"));
    assert_eq!((waits.steps.len(), waits.outcome), (0, Outcome::Blocked(vec![host, Dependency::Hosts])));
    let by = planned(CopyRemoval::By("h2".into()));
    let bound = status(&vm, &by.decision, Timestamp::UNIX_EPOCH);
    assert!(by.steps.is_empty() && bound.is_admitted());
    assert_eq!(bound.binding, Some(Binding { host: "h2".into(), epoch: 5 }));
}

#[test]
fn a_vm_beyond_a_quota_waits_for_it() {
    let quota = Dependency::Object(Key::namespaced(ObjectKind::Quota, "default", "team"));
    let excess = Excess { text: "Quota team: vms: 1 used".into(), dependency: quota.clone() };
    let seen = Observed { over_quota: Some(excess), ..observed(Some(disk(ready_disk()))) };
    assert_eq!(waits_for(&vm(json!(null)), &seen), Reason::QuotaExceeded);
    let waits = plan(&vm(json!(null)), &seen, &capacity());
    assert!(waits.steps.is_empty() && waits.outcome == Outcome::Blocked(vec![quota]), "{waits:?}");
}

#[test]
fn a_vm_and_its_unbound_disk_are_bound_in_one_decision() {
    insta::assert_debug_snapshot!(plan(&vm(json!(null)), &observed(Some(disk(ready_disk()))), &capacity()).steps, @r#"
    [
        AddFinalizer(
            Key {
                kind: VM,
                namespace: Some(
                    "default",
                ),
                name: "web",
            },
            "berth.dev/host",
        ),
        AddFinalizer(
            Key {
                kind: Disk,
                namespace: Some(
                    "default",
                ),
                name: "root",
            },
            "berth.dev/host",
        ),
        BindDisk {
            disk: Key {
                kind: Disk,
                namespace: Some(
                    "default",
                ),
                name: "root",
            },
            host: "h1",
            pool: None,
            volume_id: "v-0123456789abcdef",
            serial: "v0123456789abcdef",
            used_by: [
                ObjectUse {
                    use_kind: Fixed,
                    vm: "web",
                    vm_uid: "u1",
                    attachment: None,
                },
            ],
        },
    ]
    "#);
}

#[test]
fn what_is_missing_is_waited_for_with_its_own_reason() {
    let vm = vm(json!(null));
    let mut seen = observed(None);
    assert_eq!(waits_for(&vm, &seen), Reason::WaitingForDisk);
    seen.size = None;
    assert_eq!(waits_for(&vm, &seen), Reason::WaitingForClass);
    seen.invalid_size = Some("memory 513Mi is not a multiple of hugePages, which is 2Mi".to_owned());
    assert_eq!(waits_for(&vm, &seen), Reason::InvalidSpec);
    let image = Dependency::Object(Key::namespaced(ObjectKind::Image, "default", "debian"));
    let mut seen = observed(Some(disk(json!(null))));
    seen.disks[0].obstacle =
        Some(Obstacle { text: "Image debian does not exist".into(), dependencies: vec![image.clone()] });
    assert_eq!(waits_for(&vm, &seen), Reason::WaitingForDisk);
    let Outcome::Blocked(dependencies) = plan(&vm, &seen, &capacity()).outcome else { panic!("it waits") };
    assert!(dependencies.contains(&image), "the disk's own status may not change: {dependencies:?}");
    seen = observed(Some(disk(ready_disk())));
    seen.networks = vec![None];
    assert_eq!(waits_for(&vm, &seen), Reason::WaitingForNetwork);
    seen = observed(Some(disk(ready_disk())));
    seen.disks[0].user = Some("other".into());
    assert_eq!(waits_for(&vm, &seen), Reason::DiskInUse);
    seen = observed(Some(disk(ready_disk())));
    let nowhere = plan(&vm, &seen, &HostCapacity::default());
    assert!(
        matches!(nowhere.decision, Decision::Wait(VMState::Unschedulable, r) if r.reason() == Reason::Unschedulable)
    );
}

#[test]
fn a_vm_waits_for_a_security_group_and_a_bound_one_follows_its_spec_in_the_status() {
    let mut seen = observed(Some(disk(ready_disk())));
    let group = Key::namespaced(ObjectKind::SecurityGroup, "default", "front");
    seen.no_security_group = Some(group.clone());
    let waits = plan(&vm(json!(null)), &seen, &capacity());
    assert_eq!(waits_for(&vm(json!(null)), &seen), Reason::WaitingForSecurityGroup);
    let Outcome::Blocked(dependencies) = waits.outcome else { panic!("it waits") };
    assert_eq!(dependencies, [Dependency::Object(group)]);

    let given = json!({"name": "nic0", "network": "berth-shared/default", "macAddress": "52:54:00:00:00:01", "address": "10.0.0.2"});
    let bound = json!({"binding": {"host": "h1", "epoch": 1}, "interfaces": [given]});
    let mut bound = vm(bound);
    bound.spec.network_interfaces[0].security_groups = vec!["front".into()];
    let Decision::Interfaces(interfaces) = plan(&bound, &observed(None), &capacity()).decision else {
        panic!("its groups differ")
    };
    assert_eq!(interfaces[0].security_groups, ["front"]);
    assert_eq!(interfaces[0].address, "10.0.0.2", "and nothing else changes");
}

/// The inputs of a VM on a Network with these security groups.
fn observed_with_groups(groups: &[&str]) -> Observed {
    let mut seen = observed(Some(disk(ready_disk())));
    let mut network = Network::clone(&network());
    network.spec.security_groups = groups.iter().map(|group| (*group).into()).collect();
    seen.networks = vec![Some(Arc::new(network))];
    seen
}

#[test]
fn an_interface_has_the_security_groups_of_its_network_unless_it_names_its_own() {
    let given = json!({"name": "nic0", "network": "berth-shared/default", "macAddress": "52:54:00:00:00:01", "address": "10.0.0.2"});
    let mut bound = vm(json!({"binding": {"host": "h1", "epoch": 1}, "interfaces": [given]}));
    let groups = |bound: &VM, seen: &Observed| match plan(bound, seen, &capacity()).decision {
        Decision::Interfaces(interfaces) => interfaces[0].security_groups.clone(),
        _ => bound.status.as_ref().expect("bound").interfaces[0].security_groups.clone(),
    };
    assert_eq!(groups(&bound, &observed_with_groups(&["base"])), ["base"]);
    bound.spec.network_interfaces[0].security_groups = vec!["front".into()];
    assert_eq!(groups(&bound, &observed_with_groups(&["base"])), ["front"], "its own take their place");
    bound.spec.network_interfaces[0].security_groups.clear();
    bound.status.as_mut().expect("bound").interfaces[0].security_groups = vec!["base".into()];
    assert_eq!(groups(&bound, &observed_with_groups(&[])), [""; 0], "those of the Network are gone");
    let mut seen = observed_with_groups(&["other"]);
    let mut namesake = Network::clone(seen.networks[0].as_ref().expect("a Network"));
    namesake.metadata.namespace = Some("default".into());
    seen.networks = vec![Some(Arc::new(namesake))];
    assert_eq!(
        groups(&bound, &seen),
        ["base"],
        "its addresses are of another Network than the name is today"
    );
}

#[test]
fn further_addresses_on_a_network_with_security_groups_are_refused() {
    let mut unbound = vm(json!(null));
    unbound.spec.network_interfaces[0].allowed_addresses = vec!["10.0.0.4/32".into()];
    let refused = plan(&unbound, &observed_with_groups(&["base"]), &capacity());
    let Decision::Wait(_, readiness) = refused.decision else { panic!("it is placed") };
    assert_eq!(readiness.reason(), Reason::NotSupported);
    assert!(readiness.message().contains("Network default (base)"), "{}", readiness.message());
    let placed = plan(&unbound, &observed_with_groups(&[]), &capacity());
    assert!(matches!(placed.decision, Decision::Bind { .. }), "{:?}", placed.decision);
}

#[test]
fn what_is_being_deleted_is_waited_for_under_its_name_in_the_vms_namespace_and_in_the_shared_one() {
    let dependencies = |vm: &VM, kind: ObjectKind, namespace: &str| {
        let mut seen = observed(Some(disk(ready_disk())));
        seen.deleting = Some(Key::namespaced(kind, namespace, "x"));
        let Outcome::Blocked(dependencies) = plan(vm, &seen, &capacity()).outcome else { panic!("it waits") };
        dependencies
    };
    let [unbound, bound] = [vm(json!(null)), bound_vm(json!({"admittedEpoch": 3}))];
    for (vm, kind) in
        [(&unbound, ObjectKind::VMClass), (&unbound, ObjectKind::Network), (&bound, ObjectKind::Image)]
    {
        for deleting in ["default", berth_api::SHARED_NAMESPACE] {
            let dependencies = dependencies(vm, kind, deleting);
            for namespace in ["default", berth_api::SHARED_NAMESPACE] {
                let dependency = Dependency::Object(Key::namespaced(kind, namespace, "x"));
                assert!(dependencies.contains(&dependency), "{kind:?} in {namespace}: {dependencies:?}");
            }
        }
    }
    let group = Dependency::Object(Key::namespaced(ObjectKind::PlacementGroup, "default", "x"));
    assert_eq!(
        dependencies(&unbound, ObjectKind::PlacementGroup, "default"),
        [group],
        "groups are not shared"
    );
}

#[test]
fn a_vm_with_a_medium_that_another_namespace_shares_no_more_is_not_placed() {
    let key = Key::namespaced(ObjectKind::Image, "golden", "installer");
    let mut seen = observed(Some(disk(ready_disk())));
    let refusal = Some("no Image installer".to_owned());
    seen.unshared_medium = Some(("iso".into(), ForeignOriginal { key: key.clone(), refusal }));
    let plan = plan(&vm(json!(null)), &seen, &capacity());
    let Decision::Wait(_, readiness) = plan.decision else { panic!("it is placed") };
    assert_eq!(readiness.reason(), Reason::ImageNotShared);
    assert_eq!(readiness.message(), "Image iso: no Image installer");
    let Outcome::Blocked(dependencies) = plan.outcome else { panic!("it waits") };
    assert!(dependencies.contains(&Dependency::Object(key)), "{dependencies:?}");
}

#[test]
fn a_vm_whose_disk_is_on_a_host_that_is_full_says_which_disk_which_host_and_how_full() {
    let mut status = ready_disk();
    status["binding"] = json!({"host": "h1", "epoch": 1});
    let seen = observed(Some(disk(status)));
    let mut capacity = capacity();
    capacity.take("h1", &Demand { cpus: 4, ..Demand::default() });
    let plan = plan(&vm(json!(null)), &seen, &capacity);
    let Decision::Wait(VMState::Unschedulable, readiness) = plan.decision else { panic!("it waits") };
    insta::assert_snapshot!(readiness.message(), @"Disk root is on host h1: host h1 has 0 of 4 CPUs free and it needs 1");
    let Outcome::Blocked(dependencies) = plan.outcome else { panic!("it is blocked") };
    assert!(
        dependencies.contains(&Dependency::Object(Key::cluster(ObjectKind::Host, "h1"))),
        "whatever becomes of h1 concerns it"
    );
}

#[test]
fn a_new_interface_of_a_bound_vm_is_given_an_address_and_an_old_one_keeps_its_own() {
    let given = json!({"name": "nic9", "network": "berth-shared/default", "macAddress": "52:54:00:00:00:09", "address": "10.0.0.6"});
    let bound = json!({"binding": {"host": "h1", "epoch": 1}, "interfaces": [given], "process": {"pid": 1, "startedAt": "2026-01-01T00:00:00Z"}});
    let Decision::Interfaces(interfaces) = plan(&vm(bound), &observed(None), &capacity()).decision else {
        panic!("its interfaces differ")
    };
    let names: Vec<_> = interfaces.iter().map(|i| (i.name.as_str(), i.address.as_str())).collect();
    assert_eq!(names, [("nic0", "10.0.0.2"), ("nic9", "10.0.0.6")]);
}

fn bound_vm(more: serde_json::Value) -> VM {
    let mut status = json!({"binding": {"host": "h1", "epoch": 3}, "instanceID": "i-1", "interfaces": [
        {"name": "nic0", "network": "berth-shared/default", "macAddress": "52:54:00:00:00:01", "address": "10.0.0.2"}]});
    for (key, value) in more.as_object().cloned().unwrap_or_default() {
        status[key] = value;
    }
    vm(status)
}

fn refusal(epoch: i64) -> serde_json::Value {
    json!({"host": "h1", "epoch": epoch, "message": "it is full"})
}

#[test]
fn a_refused_vm_is_placed_anew_under_a_higher_epoch_with_the_identity_and_addresses_it_has() {
    let now: Timestamp = "2026-01-01T00:00:00Z".parse().expect("a time");
    let download = json!({"name": "Download", "startedAt": "2026-01-01T00:00:00Z"});
    let refused = bound_vm(json!({"refusal": refusal(3), "operation": download}));
    let back = plan(&refused, &observed(Some(disk(ready_disk()))), &capacity());
    let mut unbound = refused.clone();
    unbound.status = Some(status(&refused, &back.decision, now));
    let status_now = unbound.status.clone().expect("just set");
    assert_eq!(status_now.binding, None);
    assert_eq!(status_now.operation, None, "that of its former host");
    assert_eq!(status_now.refusal.as_ref().and_then(|r| r.time), Some(now));
    let mut seen = observed(Some(disk(ready_disk())));
    seen.refused_by = Some(("h1".into(), "it is full".into()));
    let Decision::Wait(_, readiness) = plan(&unbound, &seen, &capacity()).decision else {
        panic!("it waits")
    };
    insta::assert_snapshot!(readiness.message(), @"host h1 refused it (it is full): 0 of 1 hosts can take it: 1 that just refused it (it needs 1 CPUs and 512 MiB)");
    let again = plan(&unbound, &observed(Some(disk(ready_disk()))), &capacity());
    let bound = status(&unbound, &again.decision, now);
    assert_eq!(bound.binding, Some(Binding { host: "h1".into(), epoch: 4 }));
    assert_eq!(
        (bound.instance_id.as_deref(), bound.private_address.as_deref()),
        (Some("i-1"), Some("10.0.0.2"))
    );
}

#[test]
fn a_vm_that_its_host_took_on_is_never_taken_back() {
    let mut seen = observed(Some(disk(ready_disk())));
    seen.host_silent = true;
    let silent = plan(&bound_vm(json!({})), &seen, &capacity()).decision;
    assert!(
        matches!(silent, Decision::Unbind(r) if r.reason() == Reason::HostSilent),
        "nothing was made for it"
    );
    for taken in
        [json!({"admittedEpoch": 3}), json!({"process": {"pid": 1, "startedAt": "2026-01-01T00:00:00Z"}})]
    {
        let mut taken = taken;
        taken["refusal"] = refusal(3);
        assert_eq!(plan(&bound_vm(taken), &seen, &capacity()).decision, Decision::Unknown("h1".into()));
    }
    let old = bound_vm(json!({"refusal": refusal(2)}));
    assert_eq!(
        plan(&old, &observed(Some(disk(ready_disk()))), &capacity()).decision,
        Decision::NoChange,
        "of an older binding"
    );
}

#[test]
fn a_disk_added_to_a_bound_vm_is_given_its_host() {
    let taken = bound_vm(json!({"admittedEpoch": 3}));
    let steps = plan(&taken, &observed(Some(disk(ready_disk()))), &capacity()).steps;
    assert!(steps.iter().any(|s| matches!(s, Step::BindDisk { host, .. } if host == "h1")), "{steps:?}");
    let mut used = observed(Some(disk(ready_disk())));
    used.disks[0].user = Some("other".into());
    let plan = plan(&taken, &used, &capacity());
    assert!(plan.steps.is_empty() && matches!(plan.outcome, Outcome::Blocked(_)), "it waits for it");
}

#[test]
fn what_a_host_in_a_recovery_had_not_taken_on_goes_back_and_then_to_the_host_that_has_it() {
    let mut seen = observed(Some(disk(ready_disk())));
    seen.recovering = true;
    let restored = bound_vm(json!({}));
    let Decision::Unbind(why) = plan(&restored, &seen, &capacity()).decision else { panic!("it goes back") };
    assert_eq!(why.reason(), Reason::WaitingForInventory);
    assert!(!matches!(
        plan(&bound_vm(json!({"admittedEpoch": 3})), &seen, &capacity()).decision,
        Decision::Unbind(_)
    ));
    let now: Timestamp = "2026-01-01T00:00:00Z".parse().expect("a time");
    let mut unbound = restored.clone();
    unbound.status = Some(status(&restored, &Decision::Unbind(why), now));
    // The host it was bound to after the backup holds it, under a later binding.
    let mut claim = Claim::default();
    (claim.host, claim.epoch, claim.id) = ("h2".into(), 4, "i-1".into());
    let seen = Observed { claim: Some(claim), ..observed(Some(disk(ready_disk()))) };
    let bound = status(&unbound, &plan(&unbound, &seen, &capacity()).decision, now);
    assert_eq!(bound.binding, Some(Binding { host: "h2".into(), epoch: 5 }));
    assert!(bound.is_admitted(), "it runs there");
}

#[test]
fn a_disk_that_a_host_in_a_recovery_may_have_is_given_to_no_other() {
    let unknown = || PlacementHold { text: "h2 has not said".into(), dependency: Dependency::Hosts };
    let mut seen = observed(Some(disk(ready_disk())));
    seen.disks[0].unknown = Some(unknown());
    assert_eq!(waits_for(&vm(json!(null)), &seen), Reason::WaitingForInventory);
    let taken = bound_vm(json!({"admittedEpoch": 3}));
    assert!(plan(&taken, &seen, &capacity()).steps.is_empty(), "nor to the host of a VM that runs");
    let mut seen = observed(Some(disk(ready_disk())));
    seen.unconfirmed = Some("host h2 says that it has it".into());
    assert_eq!(waits_for(&vm(json!(null)), &seen), Reason::WaitingForInventory);
}

#[tokio::test]
async fn a_namespace_has_the_accounts_of_tickets_once_a_vm_of_it_is_bound_and_not_for_one_that_is_deleted() {
    let written = |vm: VM| {
        let mut cache = Cache::new(Duration::from_secs(40));
        cache.put(vm, Instant::now());
        cache.put(network().as_ref().clone(), Instant::now());
        let mut batch = WriteBatch::default();
        let key = Key::namespaced(ObjectKind::VM, "default", "web");
        super::reconcile(&cache, &Config::new(), &key, &mut batch);
        let keys: Vec<Key> = batch.keys().collect();
        VM_ACCOUNTS.iter().filter(|account| keys.contains(&Key::ticket_account("default", account))).count()
    };
    let bound = || vm(json!({"binding": {"host": "h1", "epoch": 1}}));
    assert_eq!(written(vm(json!({}))), 0, "it waits for a host");
    assert_eq!(written(bound()), VM_ACCOUNTS.len());
    let mut deleted = bound();
    deleted.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::UNIX_EPOCH));
    assert_eq!(written(deleted), 0);
}

#[test]
fn a_vm_goes_where_it_its_group_and_its_new_disks_ask_for() {
    let mut capacity = HostCapacity::default();
    for (name, zone, rack) in [("a", "b", "2"), ("b", "a", "1"), ("c", "b", "1"), ("d", "b", "1")] {
        let labels = [("zone", zone), ("rack", rack), ("name", name)];
        capacity.set_host(Candidate {
            name: name.into(),
            labels: labels.map(|(label, value)| (label.to_owned(), value.to_owned())).into(),
            ready: true,
            allocatable_cpus: 4,
            allocatable_memory: 1 << 40,
            ..Candidate::default()
        });
    }
    let group: PlacementGroup = serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"topologyKey": "name", "hostSelector": {"rack": "1"}, "preferredHostSelector": {"name": "d"}},
    }))
    .expect("a group");
    let group = Arc::new(group);
    let decided = |placement: serde_json::Value, zone: &str| {
        let mut vm = vm(json!(null));
        vm.spec.placement = Some(serde_json::from_value(placement).expect("a placement"));
        let mut disk = disk(ready_disk()).as_ref().clone();
        let asked = json!({"hostSelector": {"zone": zone}});
        disk.spec.placement = Some(serde_json::from_value(asked).expect("a placement"));
        let seen = Observed { group: Some(group.clone()), ..observed(Some(Arc::new(disk))) };
        let plan = plan(&vm, &seen, &capacity);
        match plan.decision {
            Decision::Bind { host, .. } => Ok(host),
            Decision::Wait(state, readiness) => {
                assert_eq!((state, readiness.reason()), (VMState::Unschedulable, Reason::NoSuchHost));
                let Outcome::Blocked(dependencies) = plan.outcome else { panic!("it waits") };
                for (kind, name) in [(ObjectKind::Disk, "root"), (ObjectKind::PlacementGroup, "web")] {
                    let needed = Dependency::Object(Key::namespaced(kind, "default", name));
                    assert!(dependencies.contains(&needed), "{dependencies:?}");
                }
                Err(readiness.message().to_owned())
            }
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(decided(json!({"group": "web"}), "b"), Ok("d".into()), "the group prefers d");
    let own = json!({"group": "web", "preferredHostSelector": {"name": "c"}});
    assert_eq!(decided(own, "b"), Ok("c".into()), "the VM prefers c");
    insta::assert_snapshot!(
        decided(json!({"group": "web"}), "c").expect_err("no host is in zone c"),
        @"PlacementGroup web asks for hosts with rack=1, Disk root asks for hosts with zone=c: none of 4 hosts has the labels rack=1, zone=c"
    );
    let own = json!({"group": "web", "hostSelector": {"zone": "a"}});
    insta::assert_snapshot!(
        decided(own, "b").expect_err("no host is in two zones"),
        @"placement.hostSelector asks for hosts with zone=a and Disk root for hosts with zone=b: no host has both"
    );
}

#[test]
fn a_new_disk_with_a_choice_is_bound_in_the_pool_that_is_chosen_on_the_host() {
    let key = Key::namespaced(ObjectKind::Disk, "default", "root");
    let new = crate::scheduler::NewDisks::default();
    let choice = [("slow".to_owned(), new), ("fast".to_owned(), new)];
    let seen = Observed { choices: vec![(key.clone(), choice.into())], ..observed(Some(disk(ready_disk()))) };
    let pools = |steps: Vec<Step>| -> Vec<String> {
        let pool = |step: Step| match step {
            Step::BindDisk { pool, .. } => pool.map(|pool| pool.to_string()),
            _ => None,
        };
        steps.into_iter().filter_map(pool).collect()
    };
    assert_eq!(pools(plan(&vm(json!(null)), &seen, &capacity()).steps), ["fast"], "room is not known");
    let bound = vm(json!({"binding": {"host": "h1", "epoch": 1}}));
    let chosen = [(key, "slow".into())];
    let seen = Observed { chosen_pools: chosen.into(), ..observed(Some(disk(ready_disk()))) };
    assert_eq!(pools(plan(&bound, &seen, &capacity()).steps), ["slow"], "a disk that it gets later");
}
