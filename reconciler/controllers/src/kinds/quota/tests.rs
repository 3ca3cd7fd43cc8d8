use std::time::Duration;

use berth_api::{
    ADDRESS_FINALIZER, Backup, ConditionType, Disk, DiskSnapshot, HOST_FINALIZER, Host, Image, PublicIP,
    Quota, QuotaAmounts, RESTORE_ANNOTATION, USED_FINALIZER, VM, VMClass, condition,
};
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

fn snapshot(name: &str, disk: &str, status: Value) -> DiskSnapshot {
    let snapshot = object("DiskSnapshot", name, json!({"disk": disk}), status);
    serde_json::from_value(snapshot).expect("a DiskSnapshot")
}

fn ip(name: &str) -> PublicIP {
    serde_json::from_value(object("PublicIP", name, json!({"pool": "default"}), json!(null)))
        .expect("a PublicIP")
}

fn class(cpus: i64, memory: &str) -> VMClass {
    let spec = json!({"cpus": cpus, "memory": memory});
    serde_json::from_value(object("VMClass", "small", spec, json!(null))).expect("a class")
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

fn used(cache: &Cache) -> QuotaAmounts {
    cache.usages.of("team").expect("it has a quota").total()
}

fn text(cache: &Cache, kind: ObjectKind, name: &str) -> Option<String> {
    excess(cache, &Key::namespaced(kind, "team", name)).map(|excess| excess.text)
}

#[test]
fn a_quota_counts_declared_sizes_of_all_objects_placed_or_not() {
    let cache = cache_with(
        json!({"vms": 9}),
        vec![
            class(2, "3Gi").into(),
            vm("own", json!({"cpus": 4}), true).into(),
            vm("of-class", json!({"class": "small"}), false).into(),
            vm("no-class", json!({"class": "gone"}), false).into(),
            disk("a", json!({"size": "10Gi"}), true).into(),
            disk("b", json!({"image": "unknown"}), false).into(),
            snapshot("s", "a", json!(null)).into(),
            ip("ip").into(),
        ],
    );
    let used = used(&cache);
    assert_eq!(
        used,
        QuotaAmounts {
            disk_size: 20 << 30,
            used_storage: 0,
            image_storage: 0,
            backup_storage: 0,
            memory: 11 << 30,
            cpus: 6,
            vms: 3,
            disks: 2,
            snapshots: 1,
            images: 0,
            backups: 0,
            public_ips: 1,
        }
    );
    assert!(cache.usages.of("other").is_none(), "without a quota nothing is counted");
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
fn a_quota_follows_the_objects_of_its_namespace() {
    let mut cache = cache_with(
        json!({"vms": 1}),
        vec![vm("a", json!({"cpus": 1}), true).into(), vm("held", json!({"cpus": 1}), false).into()],
    );
    let quota = Key::namespaced(ObjectKind::Quota, "team", "q");
    let held = excess(&cache, &Key::namespaced(ObjectKind::VM, "team", "held")).expect("it waits");
    assert_eq!(held.dependency, Dependency::Object(quota.clone()));
    let same = cache.tables.vms.named("team", "a").expect("it is there").clone();
    assert!(!cache.replace(same.into(), Instant::now()).contains(&quota), "it counts as before");
    let concerned = cache.remove(&Key::namespaced(ObjectKind::VM, "team", "a"));
    assert!(concerned.contains(&quota), "{concerned:?}");
    assert_eq!(text(&cache, ObjectKind::VM, "held"), None, "there is room now");
    let mut elsewhere = vm("b", json!({"cpus": 1}), false);
    elsewhere.metadata.namespace = Some("other".into());
    assert!(!cache.put(elsewhere, Instant::now()).contains(&quota));
    cache.remove(&quota);
    assert!(cache.usages.of("team").is_none(), "nothing is counted any more");
}

#[test]
fn an_object_counts_otherwise_once_what_it_gets_its_amounts_from_is_known_or_changes() {
    let mut cache = cache_with(
        json!({"diskSize": "1Ti"}),
        vec![
            vm("web", json!({"class": "small"}), false).into(),
            disk("d", json!({"image": "debian"}), false).into(),
            snapshot("s", "d", json!(null)).into(),
        ],
    );
    let quota = Key::namespaced(ObjectKind::Quota, "team", "q");
    assert_eq!((used(&cache).memory, used(&cache).disk_size), (0, 0));
    let mut shared = class(2, "3Gi");
    shared.metadata.namespace = Some("berth-shared".into());
    assert!(cache.put(shared, Instant::now()).contains(&quota));
    assert_eq!((used(&cache).memory, used(&cache).cpus), (3 << 30, 2));
    assert!(cache.put(class(4, "8Gi"), Instant::now()).contains(&quota));
    assert_eq!((used(&cache).memory, used(&cache).cpus), (8 << 30, 4), "its own class comes first");
    let spec = json!({"source": {"snapshot": "before"}});
    let image: Image = serde_json::from_value(object("Image", "debian", spec, json!({"virtualSize": "2Gi"})))
        .expect("an image");
    assert!(cache.put(image, Instant::now()).contains(&quota));
    assert_eq!((used(&cache).disk_size, used(&cache).images), (4 << 30, 1), "the disk, and its snapshot");
}

#[test]
fn a_vm_counts_with_what_it_runs_with_and_a_snapshot_with_the_size_that_it_was_taken_of() {
    let hardware = json!({"cpus": 8, "memory": "64Gi", "firmware": "UEFI", "machineType": "q35",
        "cpuModel": "host", "accelerator": "kvm", "uuid": "u"});
    let running = |spec: Value| -> VM {
        let status = json!({"binding": {"host": "h1", "epoch": 1}, "hardware": hardware});
        serde_json::from_value(object("VM", "web", spec, status)).expect("a VM")
    };
    let counted = |spec: Value| {
        let all = vec![running(spec).into()];
        let used = used(&cache_with(json!({"vms": 9}), all));
        (used.cpus, used.memory)
    };
    let smaller = json!({"disks": [], "cpus": 1, "memory": "1Gi"});
    assert_eq!(counted(smaller), (8, 64 << 30), "it keeps them until its next start");
    assert_eq!(counted(json!({"disks": [], "cpus": 9, "memory": "1Gi"})), (9, 64 << 30));
    assert_eq!(counted(json!({"disks": [], "class": "gone"})), (8, 64 << 30), "its size is not usable");

    let taken = json!({"binding": {"host": "h1", "epoch": 1}, "size": "2Gi"});
    let disk = disk("d", json!({"size": "10Gi"}), true);
    let cache = cache_with(json!({"disks": 9}), vec![disk.into(), snapshot("s", "d", taken).into()]);
    assert_eq!(used(&cache).disk_size, 12 << 30, "its disk has grown since");
}

#[test]
fn an_object_that_waits_counts_for_creations_and_takes_no_room_from_those_that_exist() {
    let disk = |name: &str, size: &str, is_placed| disk(name, json!({"size": size}), is_placed);
    let disks =
        vec![disk("a", "4Gi", true).into(), disk("b", "1Ti", false).into(), disk("c", "6Gi", false).into()];
    let cache = cache_with(json!({"diskSize": "10Gi"}), disks);
    assert!(text(&cache, ObjectKind::Disk, "b").is_some());
    assert_eq!(text(&cache, ObjectKind::Disk, "c"), None);
    assert_eq!(used(&cache).disk_size, (1 << 40) + (10 << 30));
    let byte = QuotaAmounts { disk_size: 1, ..QuotaAmounts::default() };
    assert!(excess_of_new(&cache, "team", byte).is_some(), "admission would refuse it");
    assert_eq!(excess_of_new(&cache, "team", QuotaAmounts::default()), None, "nothing is created");
}

#[test]
fn of_several_quotas_an_object_has_to_fit_all() {
    let vms = ["a", "b"].map(|name| Object::from(vm(name, json!({"cpus": 1, "memory": "4Gi"}), false)));
    let mut cache = cache_with(json!({"memory": "4Gi"}), vms.to_vec());
    let other: Quota =
        serde_json::from_value(object("Quota", "r", json!({"hard": {"memory": "3Gi"}}), json!(null)))
            .expect("a Quota");
    assert_eq!(text(&cache, ObjectKind::VM, "a"), None);
    assert!(cache.put(other, Instant::now()).contains(&Key::namespaced(ObjectKind::Quota, "team", "q")));
    let expected = Some("Quota r: memory: 0 used, 4Gi more needed, limit 3Gi".to_owned());
    assert_eq!(text(&cache, ObjectKind::VM, "a"), expected);
    assert_eq!(text(&cache, ObjectKind::VM, "b"), expected, "the first one does not fit");
}

#[test]
fn a_snapshot_or_an_address_whose_status_was_lost_is_not_held() {
    let mut address = ip("ip");
    let mut lost = snapshot("s", "d", json!(null));
    let mut part = snapshot("part", "d", json!(null));
    address.metadata.finalizers = Some(vec![ADDRESS_FINALIZER.to_owned()]);
    lost.metadata.finalizers = Some(vec![HOST_FINALIZER.to_owned()]);
    part.metadata.finalizers.clone_from(&lost.metadata.finalizers);
    let label = berth_api::vm_snapshot::VM_SNAPSHOT_LABEL.to_owned();
    part.metadata.labels = Some([(label, "of-vm".to_owned())].into());
    let parts = berth_api::vm_snapshot::VM_SNAPSHOT_PARTS_ANNOTATION.to_owned();
    part.metadata.annotations = Some([(parts, "1".to_owned())].into());
    let all = vec![address.into(), ip("new").into(), lost.into(), part.into()];
    let cache = cache_with(json!({"snapshots": 0, "publicIps": 0}), all);
    assert_eq!(text(&cache, ObjectKind::DiskSnapshot, "s"), None);
    assert_eq!(text(&cache, ObjectKind::PublicIP, "ip"), None);
    assert!(text(&cache, ObjectKind::DiskSnapshot, "part").is_some(), "it has the finalizer from the start");
    assert!(text(&cache, ObjectKind::PublicIP, "new").is_some());
}

#[test]
fn a_disk_from_the_trash_counts_with_the_size_of_its_file() {
    let mut restored = disk("d", json!({"size": "1Gi"}), false);
    restored.metadata.annotations = Some([(RESTORE_ANNOTATION.to_owned(), "h1/v-1".to_owned())].into());
    let mut cache = cache_with(json!({"diskSize": "5Gi"}), vec![restored.into()]);
    assert_eq!(text(&cache, ObjectKind::Disk, "d"), None);
    let trash =
        json!([{"volumeID": "v-1", "namespace": "team", "name": "d", "size": "9Gi", "deletedAt": ""}]);
    let host: Host = serde_json::from_value(json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "Host", "metadata": {"name": "h1", "resourceVersion": "1"},
        "spec": {}, "status": {"trash": trash},
    }))
    .expect("a Host");
    let quota = Key::namespaced(ObjectKind::Quota, "team", "q");
    assert!(cache.put(host, Instant::now()).contains(&quota));
    let expected = "Quota q: diskSize: 0 used, 9Gi more needed, limit 5Gi";
    assert_eq!(text(&cache, ObjectKind::Disk, "d").as_deref(), Some(expected));
}

#[test]
fn files_count_while_their_space_is_limited_also_those_of_deleted_disks() {
    let deleted = |namespace: &str, used: Value| json!({"volumeID": "v-1", "pool": "default", "namespace": namespace, "name": "d", "size": "9Gi", "used": used, "deletedAt": ""});
    let host = |version: &str, used: &str| -> Host {
        serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "Host", "spec": {},
            "metadata": {"name": "h1", "uid": "h1", "resourceVersion": version},
            "status": {
                "trash": [deleted("team", json!(used)), deleted("other", json!("7Gi")), deleted("team", json!(null))],
                "retainedVolumes": [deleted("team", json!("1Gi"))],
            },
        }))
        .expect("a Host")
    };
    let mut data = disk("data", json!({"size": "10Gi"}), true);
    data.status.as_mut().expect("it has one").used = Some("3Gi".into());
    let mut web = vm("web", json!({"cpus": 1}), true);
    let storage = json!({"provisioned": "10Gi", "disks": "3Gi", "snapshots": "512Mi", "files": "512Mi"});
    web.status.as_mut().expect("it has one").storage = serde_json::from_value(storage).expect("amounts");
    let objects = || -> Vec<Object> {
        vec![
            host("1", "2Gi").into(),
            data.clone().into(),
            web.clone().into(),
            disk("new", json!({"size": "1Gi"}), false).into(),
        ]
    };
    let mut cache = cache_with(json!({"usedStorage": "7Gi"}), objects());
    assert_eq!(used(&cache).used_storage, 7 << 30);
    let why = "Quota q: usedStorage: 7Gi used, limit 7Gi";
    assert_eq!(text(&cache, ObjectKind::Disk, "new").as_deref(), Some(why));
    assert_eq!(text(&cache, ObjectKind::Disk, "data"), None, "it has its host");
    let quota = cache.tables.quotas.all().next().expect("it is there").clone();
    let reported = status(&quota, used(&cache), Timestamp::UNIX_EPOCH);
    assert_eq!(reported.used.and_then(|used| used.used_storage).as_deref(), Some("7Gi"));
    let ready = condition::find(&reported.conditions, "Ready").map(|ready| ready.message.clone());
    assert!(ready.is_some_and(|text| text.contains("no disk and no snapshot is created")), "it says so");
    assert!(cache.put(host("2", "1Gi"), Instant::now()).contains(&Key::of(quota.as_ref())));
    assert_eq!(text(&cache, ObjectKind::Disk, "new"), None);
    let unlimited = cache_with(json!({"vms": 9}), objects());
    assert_eq!(used(&unlimited).used_storage, 4 << 30, "deleted disks are not looked at");
    let quota = unlimited.tables.quotas.all().next().expect("it is there").clone();
    let reported = status(&quota, used(&unlimited), Timestamp::UNIX_EPOCH).used;
    assert_eq!(reported.and_then(|used| used.used_storage), None, "it costs no writes");
}

#[test]
fn images_and_backups_wait_while_those_that_have_a_host_take_the_space_of_the_limit() {
    let image = |name: &str, source: Value, status: Value| -> Image {
        serde_json::from_value(object("Image", name, json!({"source": source}), status)).expect("an Image")
    };
    let backup = |name: &str, status: Value| -> Backup {
        let spec = json!({"repository": "nas", "snapshot": "s"});
        serde_json::from_value(object("Backup", name, spec, status)).expect("a Backup")
    };
    let bound = |bytes: i64| json!({"binding": {"host": "h1", "epoch": 1}, "bytes": bytes});
    let stored = |bytes: i64| json!({"completedAt": "2026-01-01T00:00:00Z", "storedBytes": bytes});
    let upload = |size: i64| json!({"upload": {"size": size}, "sha256": "0".repeat(64)});
    let url = || json!({"url": "https://a/b", "sha256": "0".repeat(64)});
    let mut used_image = image("used", url(), json!(null));
    used_image.metadata.finalizers = Some(vec![USED_FINALIZER.to_owned()]);
    let hard = json!({"imageStorage": "4Gi", "backupStorage": "8Gi"});
    let objects = |images: i64, backups: i64| {
        vec![
            Object::from(image("there", url(), bound(images))),
            image("upload", upload(2 << 30), json!(null)).into(),
            image("url", url(), json!(null)).into(),
            used_image.clone().into(),
            backup("there", stored(backups)).into(),
            backup("new", json!(null)).into(),
        ]
    };
    let cache = cache_with(hard.clone(), objects(1 << 30, 7 << 30));
    let counted = used(&cache);
    assert_eq!((counted.image_storage, counted.backup_storage, counted.backups), (3 << 30, 7 << 30, 2));
    for (kind, name) in
        [(ObjectKind::Image, "upload"), (ObjectKind::Image, "url"), (ObjectKind::Backup, "new")]
    {
        assert_eq!(text(&cache, kind, name), None, "{name}");
    }
    let cache = cache_with(hard, objects(4 << 30, 8 << 30));
    let why = |kind, name| text(&cache, kind, name).unwrap_or_default();
    assert_eq!(why(ObjectKind::Image, "url"), "Quota q: imageStorage: 4Gi used, limit 4Gi");
    let upload = why(ObjectKind::Image, "upload");
    assert_eq!(upload, "Quota q: imageStorage: 4Gi used, 2Gi more needed, limit 4Gi");
    assert!(
        !why(ObjectKind::Image, "used").is_empty(),
        "a disk that names it does not get it past the quota"
    );
    let anew = |name| excess_of_image_anew(&cache, &Key::namespaced(ObjectKind::Image, "team", name));
    assert_eq!(anew("there"), None, "its own file is replaced");
    let waits = anew("url").map(|excess| excess.text);
    assert_eq!(
        waits.as_deref(),
        Some("Quota q: imageStorage: 4Gi used, limit 4Gi"),
        "that of another one is not"
    );
    assert_eq!(why(ObjectKind::Backup, "new"), "Quota q: backupStorage: 8Gi used, limit 8Gi");
    assert_eq!((why(ObjectKind::Image, "there"), why(ObjectKind::Backup, "there")), Default::default());
    let quota = cache.tables.quotas.all().next().expect("it is there").clone();
    let reported = status(&quota, used(&cache), Timestamp::UNIX_EPOCH);
    let ready = condition::find(&reported.conditions, "Ready").map(|ready| ready.message.clone());
    let ready = ready.unwrap_or_default();
    assert!(ready.contains("no image is created") && ready.contains("no backup is created"), "{ready}");
    let amounts = reported.used.map(|used| (used.image_storage, used.backup_storage));
    assert_eq!(amounts, Some((Some("6Gi".to_owned()), Some("8Gi".to_owned()))));
}

#[test]
fn what_moves_keeps_its_amounts_and_no_older_object_gets_them() {
    let left =
        json!({"releasedEpoch": 1, "refusal": {"host": "h1", "epoch": 1, "message": "it has given it up"}});
    let moving = object("VM", "web", json!({"disks": [], "cpus": 2}), left);
    let moving: VM = serde_json::from_value(moving).expect("a VM");
    let file = json!({"formerHost": "h1", "volumeID": "v-1", "size": "8Gi"});
    let root = object("Disk", "root", json!({"size": "8Gi"}), file);
    let root: Disk = serde_json::from_value(root).expect("a Disk");
    let cache = cache_with(
        json!({"cpus": 2, "diskSize": "8Gi"}),
        vec![
            moving.into(),
            root.into(),
            // By name these come first.
            vm("a", json!({"cpus": 2}), false).into(),
            disk("a", json!({"size": "8Gi"}), false).into(),
        ],
    );
    for kind in [ObjectKind::VM, ObjectKind::Disk] {
        let name = if kind == ObjectKind::VM { "web" } else { "root" };
        assert_eq!(text(&cache, kind, name), None, "{name} moves");
        assert!(text(&cache, kind, "a").is_some(), "{kind:?}");
    }
}

#[test]
fn a_scratch_disk_counts_with_the_sizes_of_disks() {
    let scratch = json!({"cpus": 1, "memory": "1Gi", "scratchDisk": {"size": "3Gi"}});
    let objects = vec![vm("web", scratch, true).into(), disk("d", json!({"size": "1Gi"}), true).into()];
    let cache = cache_with(json!({"diskSize": "10Gi"}), objects);
    assert_eq!(used(&cache).disk_size, 4 << 30);
}

#[test]
fn the_scratch_disk_of_a_class_counts_for_each_vm_without_one_of_its_own_also_when_it_grows() {
    let with = |scratch: &str, version: &str| {
        let mut class = class(1, "1Gi");
        class.metadata.resource_version = Some(version.into());
        class.spec.scratch_disk = serde_json::from_value(json!({"size": scratch})).expect("a scratch disk");
        class
    };
    let own = json!({"class": "small", "scratchDisk": {"size": "1Gi"}});
    let objects = vec![
        with("3Gi", "1").into(),
        vm("a", json!({"class": "small"}), true).into(),
        vm("own", own, true).into(),
        vm("new", json!({"class": "small"}), false).into(),
    ];
    let mut cache = cache_with(json!({"diskSize": "7Gi"}), objects);
    assert_eq!(used(&cache).disk_size, 7 << 30);
    assert_eq!(text(&cache, ObjectKind::VM, "new"), None);
    let quota = Key::namespaced(ObjectKind::Quota, "team", "q");
    assert!(cache.put(with("5Gi", "2"), Instant::now()).contains(&quota));
    assert_eq!(used(&cache).disk_size, 11 << 30);
    let waits = text(&cache, ObjectKind::VM, "new").expect("it waits");
    assert!(waits.contains("diskSize: 6Gi used, 5Gi more needed, limit 7Gi"), "{waits}");
}
