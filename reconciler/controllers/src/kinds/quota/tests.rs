use std::time::Duration;

use berth_api::{Disk, DiskSnapshot, PublicIP, Quota, QuotaAmounts, VM, VMClass};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::*;
use crate::{key::ObjectKind, object::Object};

fn object(kind: &str, name: &str, spec: Value, status: Value) -> Value {
    json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": kind, "spec": spec, "status": status,
        "metadata": {"name": name, "namespace": "team", "uid": name, "resourceVersion": "1", "generation": 1,
            "creationTimestamp": "2026-01-01T00:00:00Z"},
    })
}

/// A status with a host, or none.
fn placed(is_placed: bool) -> Value {
    if is_placed { json!({"binding": {"host": "h1", "epoch": 1}}) } else { json!(null) }
}

fn vm(name: &str, spec: Value, is_placed: bool) -> VM {
    let mut all = json!({"disks": []});
    if let (Some(all), Value::Object(own)) = (all.as_object_mut(), spec) {
        all.extend(own);
    }
    serde_json::from_value(object("VM", name, all, placed(is_placed))).expect("a VM")
}

fn disk(name: &str, spec: Value, is_placed: bool) -> Disk {
    serde_json::from_value(object("Disk", name, spec, placed(is_placed))).expect("a Disk")
}

fn snapshot(name: &str, disk: &str) -> DiskSnapshot {
    let snapshot = object("DiskSnapshot", name, json!({"disk": disk}), json!(null));
    serde_json::from_value(snapshot).expect("a DiskSnapshot")
}

fn cache_with(hard: Value, objects: Vec<Object>) -> Cache {
    let mut cache = Cache::new(Duration::from_secs(40));
    let quota: Quota =
        serde_json::from_value(object("Quota", "q", json!({"hard": hard}), json!(null))).expect("a Quota");
    cache.put(quota, Instant::now());
    for object in objects {
        cache.put(object, Instant::now());
    }
    cache
}

fn text(cache: &Cache, kind: ObjectKind, name: &str) -> Option<String> {
    excess(cache, &Key::namespaced(kind, "team", name)).map(|excess| excess.text)
}

#[test]
fn a_quota_counts_declared_sizes_of_all_objects_placed_or_not() {
    let class: VMClass =
        serde_json::from_value(object("VMClass", "small", json!({"cpus": 2, "memory": "3Gi"}), json!(null)))
            .expect("a class");
    let ip: PublicIP =
        serde_json::from_value(object("PublicIP", "ip", json!({"pool": "default"}), json!(null)))
            .expect("an ip");
    let cache = cache_with(
        json!({"vms": 9}),
        vec![
            class.into(),
            vm("own", json!({"cpus": 4}), true).into(),
            vm("of-class", json!({"class": "small"}), false).into(),
            vm("no-class", json!({"class": "gone"}), false).into(),
            disk("a", json!({"size": "10Gi"}), true).into(),
            disk("b", json!({"image": "unknown"}), false).into(),
            snapshot("s", "a").into(),
            ip.into(),
        ],
    );
    let used = sum(&counted(&cache, "team"));
    assert_eq!(
        used,
        QuotaAmounts {
            disk_size: 20 << 30,
            memory: 11 << 30,
            cpus: 6,
            vms: 3,
            disks: 2,
            snapshots: 1,
            images: 0,
            public_ips: 1,
        }
    );
    assert_eq!(sum(&counted(&cache, "other")), QuotaAmounts::default());
    let quota = cache.tables.quotas.all().next().expect("it is there").clone();
    let status = status(&quota, used, Timestamp::UNIX_EPOCH);
    assert_eq!(status.used.map(|used| (used.disk_size, used.memory)), Some(("20Gi".into(), "11Gi".into())));
    assert_eq!(status.hard, Some(quota.spec.hard.clone()));
    assert!(condition::is_true(&status.conditions, ConditionType::Ready));
}

#[test]
fn of_many_created_at_once_the_first_ones_fit_and_a_placed_one_is_never_beyond() {
    let disks = |placed: &str| {
        let of = |name: &str| Object::from(disk(name, json!({"size": "4Gi"}), name == placed));
        cache_with(json!({"diskSize": "10Gi"}), ["a", "b", "c"].map(of).to_vec())
    };
    let cache = disks("none");
    assert_eq!((text(&cache, ObjectKind::Disk, "a"), text(&cache, ObjectKind::Disk, "b")), (None, None));
    assert_eq!(
        text(&cache, ObjectKind::Disk, "c").as_deref(),
        Some("Quota q: diskSize: 8Gi used, 4Gi more needed, limit 10Gi")
    );
    let cache = disks("c");
    assert_eq!((text(&cache, ObjectKind::Disk, "a"), text(&cache, ObjectKind::Disk, "c")), (None, None));
    assert!(text(&cache, ObjectKind::Disk, "b").is_some(), "the one that has a host comes before it");
}

#[test]
fn a_large_object_that_does_not_fit_holds_no_smaller_one_back() {
    let cache = cache_with(
        json!({"memory": "8Gi"}),
        vec![
            vm("a-large", json!({"cpus": 1, "memory": "16Gi"}), false).into(),
            vm("b-small", json!({"cpus": 1, "memory": "4Gi"}), false).into(),
        ],
    );
    assert!(text(&cache, ObjectKind::VM, "a-large").is_some());
    assert_eq!(text(&cache, ObjectKind::VM, "b-small"), None);
}

#[test]
fn a_lowered_limit_touches_nothing_that_is_placed_and_holds_new_objects() {
    let cache = cache_with(
        json!({"vms": 1}),
        vec![vm("a", json!({"cpus": 1}), true).into(), vm("b", json!({"cpus": 1}), true).into()],
    );
    assert_eq!((text(&cache, ObjectKind::VM, "a"), text(&cache, ObjectKind::VM, "b")), (None, None));
    let new = excess_of_new(&cache, "team", QuotaAmounts { vms: 1, ..QuotaAmounts::default() });
    assert_eq!(
        new.map(|excess| excess.text).as_deref(),
        Some("Quota q: vms: 2 used, 1 more needed, limit 1")
    );
    let disks = QuotaAmounts { disks: 1, ..QuotaAmounts::default() };
    assert_eq!(excess_of_new(&cache, "team", disks), None);
    let vms = QuotaAmounts { vms: 1, ..QuotaAmounts::default() };
    assert_eq!(excess_of_new(&cache, "other", vms), None, "another namespace has no quota");
}

#[test]
fn a_disk_of_unknown_size_waits_under_a_limit_of_sizes_alone() {
    let of = |hard: Value| {
        let cache = cache_with(hard, vec![disk("d", json!({"image": "debian"}), false).into()]);
        text(&cache, ObjectKind::Disk, "d")
    };
    assert!(
        of(json!({"diskSize": "1Ti"})).is_some_and(|text| text.contains("size of the disk is not known yet"))
    );
    assert_eq!(of(json!({"disks": 1})), None);
}

#[test]
fn a_quota_wakes_what_it_held_and_follows_the_objects_of_its_namespace() {
    let held = json!({"conditions": [{"type": "Ready", "status": "False", "reason": "QuotaExceeded", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z"}]});
    let held: VM =
        serde_json::from_value(object("VM", "held", json!({"disks": [], "cpus": 1}), held)).expect("a VM");
    let mut cache =
        cache_with(json!({"vms": 1}), vec![vm("a", json!({"cpus": 1}), true).into(), held.clone().into()]);
    assert_eq!(waiting(&cache, "team"), [Key::of(&held)]);
    let quota = Key::namespaced(ObjectKind::Quota, "team", "q");
    let concerned = cache.remove(&Key::namespaced(ObjectKind::VM, "team", "a"));
    assert!(concerned.contains(&quota), "{concerned:?}");
    assert_eq!(text(&cache, ObjectKind::VM, "held"), None, "there is room now");
    let mut elsewhere = held;
    elsewhere.metadata.namespace = Some("other".into());
    assert!(!cache.put(elsewhere, Instant::now()).contains(&quota));
}
