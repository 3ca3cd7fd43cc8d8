//! Decisions about the VMs of a fenced host.

use berth_api::{Host, HotswapDiskAttachment, Image, StoragePool};
use serde_json::{Value, json};

use super::*;

fn object<K: serde::de::DeserializeOwned>(
    kind: &str,
    name: &str,
    namespace: Option<&str>,
    spec: Value,
    status: Value,
) -> K {
    let metadata = json!({"name": name, "namespace": namespace, "uid": name, "resourceVersion": "1"});
    let whole = json!({"apiVersion": "berth.dev/v1alpha1", "kind": kind, "metadata": metadata,
        "spec": spec, "status": status});
    serde_json::from_value(whole).expect("an object")
}

fn vm_with(spec: Value) -> VM {
    let mut whole = json!({"class": "small", "disks": [{"name": "root", "boot": true}]});
    for (key, value) in spec.as_object().cloned().unwrap_or_default() {
        whole[key] = value;
    }
    let status = json!({"binding": {"host": "h1", "epoch": 4}, "admittedEpoch": 4, "instanceID": "i-1", "state": "Running"});
    object("VM", "web", Some("ns"), whole, status)
}

fn disk_with(spec: Value, status: Value) -> Disk {
    let mut declared = json!({"size": "1Gi", "pool": "site"});
    let mut known = json!({"binding": {"host": "h1", "epoch": 2}, "volumeID": "v-1", "size": "1Gi", "pool": "site",
        "usedBy": [{"use": "Fixed", "vm": "web", "vmUid": "web"}]});
    for (whole, changes) in [(&mut declared, spec), (&mut known, status)] {
        for (key, value) in changes.as_object().cloned().unwrap_or_default() {
            whole[key] = value;
        }
    }
    object("Disk", "root", Some("ns"), declared, known)
}

fn cache(fenced: bool, disk: Disk) -> Cache {
    let now = tokio::time::Instant::now();
    let mut cache = Cache::new(std::time::Duration::from_secs(40));
    let server = json!({"address": "192.0.2.1:7444", "certificateSha256": "ab"});
    for (name, is_fenced, status) in [
        ("h1", fenced, json!({"server": server})),
        ("h2", false, json!({"server": server})),
        ("h3", false, json!({})),
    ] {
        cache.put(object::<Host>("Host", name, None, json!({"fenced": is_fenced}), status), now);
    }
    for (name, kind) in [("site", "Shared"), ("ceph", "RBD"), ("fast", "Local")] {
        cache.put(object::<StoragePool>("StoragePool", name, None, json!({"type": kind}), json!(null)), now);
    }
    cache.put(disk, now);
    cache
}

#[test]
fn only_plain_disks_in_shared_pools_go_to_another_host() {
    let plain = || vm_with(json!({}));
    let why = |vm: &VM, spec: Value, status: Value| {
        let cache = cache(true, disk_with(spec, status));
        disks(&cache, vm, "h1").err().unwrap_or_default()
    };
    assert_eq!(why(&plain(), json!({}), json!({})), "");
    assert_eq!(
        why(&plain(), json!({}), json!({"binding": null, "formerHost": "h1"})),
        "",
        "it was left there"
    );
    assert_eq!(why(&plain(), json!({"pool": "ceph"}), json!({"pool": "ceph"})), "", "an image in Ceph");
    for source in [json!({"backup": "b"}), json!({"file": "/srv/a.qcow2"})] {
        assert_eq!(why(&plain(), json!({"source": source}), json!({})), "", "its file is based on nothing");
    }
    let refused = [
        (json!({"pool": "fast"}), json!({"pool": "fast"}), "no pool of type Shared or RBD"),
        (json!({"pool": "fast"}), json!({}), "another pool"),
        (json!({}), json!({"binding": {"host": "h2", "epoch": 1}}), "another host"),
        (json!({}), json!({"formerHost": "h0"}), "folder of one"),
        (json!({}), json!({"binding": null, "formerHost": "h2"}), "another host"),
        // Definitions of an older version have dropped the mark.
        (json!({}), json!({"binding": null}), "another host"),
        (json!({}), json!({"size": null}), "no file yet"),
        (json!({}), json!({"continuesSnapshots": true}), "had snapshots"),
        (json!({"source": {"disk": "other"}}), json!({}), "copy of a Disk"),
        (json!({"restore": {"snapshot": "s"}}), json!({}), "restored"),
        (json!({}), json!({"usedBy": [{"use": "Fixed", "vm": "db", "vmUid": "db"}]}), "another VM"),
    ];
    for (spec, status, text) in refused {
        let found = why(&plain(), spec, status);
        assert!(found.starts_with("Disk root ") && found.contains(text), "{found:?} does not say {text:?}");
    }
    let lost = [
        (json!({"disks": []}), "no disk"),
        (json!({"tpm": true}), "TPM"),
        (json!({"power": "Suspended"}), "memory"),
        (json!({"disks": [{"name": "root", "boot": true}, {"name": "data"}]}), "does not exist"),
    ];
    for (spec, text) in lost {
        let found = why(&vm_with(spec), json!({}), json!({}));
        assert!(found.contains(text), "{found:?} does not say {text:?}");
    }
}

#[test]
fn a_disk_reports_before_the_loss_of_its_host_as_is_decided_after_it() {
    for (spec, status) in [
        (json!({}), json!({})),
        (json!({"pool": "ceph"}), json!({"pool": "ceph"})),
        (json!({"pool": "fast"}), json!({"pool": "fast"})),
        (json!({"pool": "fast"}), json!({})),
        (json!({}), json!({"size": null})),
        (json!({}), json!({"continuesSnapshots": true})),
        (json!({"source": {"disk": "other"}}), json!({})),
        (json!({"source": {"backup": "b"}}), json!({})),
        (json!({"source": {"file": "/srv/a.qcow2"}}), json!({})),
        (json!({"restore": {"snapshot": "s"}}), json!({})),
        (json!({"encryption": {"keyClass": "k"}}), json!({})),
        (json!({"pool": "ceph", "encryption": {"keyClass": "k"}}), json!({"pool": "ceph"})),
        (json!({"access": "ReadOnlyMany"}), json!({})),
    ] {
        let disk = disk_with(spec, status);
        let cache = cache(true, disk.clone());
        let decided = disks(&cache, &vm_with(json!({})), "h1").err();
        let reported = disk.lost_because(&leave_facts(&cache, &disk));
        assert_eq!(decided.is_some(), reported.is_some(), "{decided:?}, {reported:?}");
    }
}

#[tokio::test]
async fn a_disk_of_a_pool_of_single_hosts_leaves_a_host_that_lives_and_serves_copies() {
    let why = |fenced, status: Value| {
        let mut whole = json!({"pool": "fast"});
        for (key, value) in status.as_object().cloned().unwrap_or_default() {
            whole[key] = value;
        }
        let cache = cache(fenced, disk_with(json!({"pool": "fast"}), whole));
        disks(&cache, &vm_with(json!({})), "h1").err().unwrap_or_default()
    };
    assert_eq!(why(false, json!({})), "");
    assert_eq!(why(false, json!({"formerHost": "h1"})), "", "it is marked");
    assert_eq!(why(false, json!({"binding": null, "formerHost": "h1"})), "", "it was left there");
    assert_eq!(why(false, json!({"formerHost": "h2"})), "", "the VM goes on before the disk has come");
    assert_eq!(why(false, json!({"binding": null, "formerHost": "h2"})), "", "and the disk has left too");
    assert_eq!(why(true, json!({"formerHost": "h2"})), "", "its data is not on the lost host");
    assert!(why(true, json!({})).contains("gone for good"), "its data is lost");
    assert!(why(false, json!({"formerHost": "h3"})).contains("reports no server"));
    assert!(why(false, json!({"formerHost": "h9"})).contains("gone for good"), "there is no such host");
}

#[test]
fn a_disk_of_a_pool_of_single_hosts_goes_to_no_host_whose_agent_cannot_copy_it() {
    let why = |pool: &str, host: &str| {
        let disk = disk_with(json!({"pool": pool}), json!({"pool": pool}));
        copies_none(&cache(false, disk.clone()), &[Arc::new(disk)], host)
    };
    assert_eq!(why("fast", "h2"), None);
    assert!(why("fast", "h3").is_some_and(|why| why.contains("host h3, which reports no server")));
    assert_eq!(why("site", "h3"), None, "it is not copied");
}

#[test]
fn the_mark_of_a_disk_names_the_host_with_its_data_at_each_step_of_a_move() {
    let now = Timestamp::UNIX_EPOCH;
    let at = |status: DiskStatus| {
        let mut disk = disk_with(json!({"pool": "fast"}), json!({"pool": "fast"}));
        disk.status = Some(status);
        disk
    };
    let names = |disk: &Disk| {
        let status = disk.status.clone().unwrap_or_default();
        (status.binding.map(|binding| binding.host), status.former_host)
    };
    let some = |host: &str| Some(host.to_owned());
    let on_h1 = disk_with(json!({"pool": "fast"}), json!({"pool": "fast"}));
    let marked_on_h1 = at(marked(&on_h1, "h1"));
    assert_eq!(names(&marked_on_h1), (some("h1"), some("h1")));
    let left_h1 = at(left(&marked_on_h1, "h1", Cause::Released, now));
    assert_eq!(names(&left_h1), (None, some("h1")));
    // The VM was placed on h2, and leaves it before the copy is reported.
    let mut status = left_h1.status.clone().expect("a status");
    status.binding = Some(Binding { host: "h2".to_owned(), epoch: 1 });
    let on_the_way = at(status);
    let marked_on_h2 = at(marked(&on_the_way, "h2"));
    assert_eq!(names(&marked_on_h2), (some("h2"), some("h1")), "h1 has the data still");
    assert_eq!(names(&at(left(&marked_on_h2, "h2", Cause::Released, now))), (None, some("h1")));
}

#[test]
fn a_deleted_disk_that_was_to_be_copied_or_taken_is_deleted_where_its_data_is() {
    for pool in ["fast", "site"] {
        let mut disk = disk_with(json!({"pool": pool}), json!({"pool": pool, "formerHost": "h2"}));
        disk.metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::UNIX_EPOCH));
        let host = |disk: &Disk| deletes_left(&cache(false, disk.clone()), disk);
        assert_eq!(host(&disk), None, "a VM has it");
        disk.status.as_mut().expect("a status").used_by.clear();
        assert_eq!(host(&disk).as_deref(), Some("h2"), "{pool}");
        let lost = |disk: &Disk| without_lost_data(&cache(false, disk.clone()), disk);
        assert_eq!(lost(&disk), None, "it has a host that deletes it");
        disk.status.as_mut().expect("a status").former_host = Some("h9".to_owned());
        assert_eq!(host(&disk), None);
        let lost = lost(&disk).expect("nothing is waited for");
        assert_eq!(lost.former_host, None);
    }
}

#[test]
fn a_disk_of_an_attachment_keeps_a_vm_lost_and_the_message_says_so_only_with_a_shared_pool() {
    let with_attachment = |disk: Disk| {
        let mut cache = cache(true, disk);
        let attachment: HotswapDiskAttachment =
            object("HotswapDiskAttachment", "a", Some("ns"), json!({"vm": "web", "disk": "x"}), json!(null));
        cache.put(attachment, tokio::time::Instant::now());
        why_lost(&cache, &vm_with(json!({})), "h1")
    };
    let why = with_attachment(disk_with(json!({}), json!({}))).expect("it stays lost");
    assert!(why.contains("HotswapDiskAttachment"), "{why}");
    let local = disk_with(json!({"pool": "fast"}), json!({"pool": "fast"}));
    assert_eq!(with_attachment(local), None, "nothing else was to be expected");
}

#[test]
fn a_vm_that_leaves_keeps_its_identity_and_its_disks_keep_theirs() {
    let now: Timestamp = "2026-01-01T00:00:00Z".parse().expect("a time");
    let of_disk = marked(&disk_with(json!({}), json!({})), "h1");
    assert_eq!(of_disk.binding.as_ref().map(|binding| binding.host.as_str()), Some("h1"));
    let of_disk =
        left(&Disk { status: Some(of_disk), ..disk_with(json!({}), json!({})) }, "h1", Cause::Lost, now);
    assert_eq!((of_disk.binding, of_disk.former_host.as_deref()), (None, Some("h1")));
    assert_eq!((of_disk.volume_id.as_deref(), of_disk.size.as_deref()), (Some("v-1"), Some("1Gi")));
    assert_eq!(of_disk.used_by.len(), 1, "no other VM gets it meanwhile");
    let mut lost = vm_with(json!({}));
    let known = lost.status.as_mut().expect("a status");
    known.facts.insert("cgroup".into(), "/berth/i-1".into());
    let of_vm = unbound(&lost, Cause::Lost, now);
    assert!(of_vm.facts.is_empty(), "they are of the process on the lost host");
    assert_eq!((of_vm.binding, of_vm.admitted_epoch), (None, None));
    assert_eq!(of_vm.instance_id.as_deref(), Some("i-1"), "the guest is the same machine");
    assert_eq!(of_vm.refusal.map(|refusal| refusal.epoch), Some(4), "the next epoch is greater");
    assert!(condition::find(&of_vm.conditions, "Running").is_some_and(|c| c.status == "False"));
}

#[test]
fn a_disk_between_hosts_is_held_for_its_vm_until_that_is_deleted() {
    let left = || disk_with(json!({}), json!({"binding": null, "formerHost": "h1"}));
    let mut cache = cache(true, left());
    assert!(is_left_on(&left(), "h1") && !is_left_on(&left(), "h2"));
    let users = |cache: &Cache| between_hosts(cache, &left()).map(|status| status.used_by.len());
    assert_eq!(users(&cache), Some(0), "its VM is gone");
    cache.put(vm_with(json!({})), tokio::time::Instant::now());
    assert_eq!(users(&cache), Some(1));
    assert_eq!(between_hosts(&cache, &disk_with(json!({}), json!({}))), None, "it has a host");
}

#[tokio::test]
async fn a_vm_that_its_living_host_has_given_up_leaves_it_after_its_disks() {
    let with = |disk: Disk, released: Value| {
        let mut cache = cache(false, disk);
        let mut vm = vm_with(json!({}));
        let status = vm.status.as_mut().expect("a status");
        status.released_epoch = released.as_i64();
        status.move_epoch = Some(4);
        cache.put(vm.clone(), tokio::time::Instant::now());
        let mut batch = WriteBatch::default();
        let outcome = super::vm(&cache, &Config::new(), &vm, &mut batch);
        (outcome, batch.keys().collect::<Vec<_>>(), vm)
    };
    let (disk, vm) =
        (Key::namespaced(ObjectKind::Disk, "ns", "root"), Key::namespaced(ObjectKind::VM, "ns", "web"));
    for released in [json!(null), json!(3)] {
        assert_eq!(with(disk_with(json!({}), json!({})), released).0, None, "it may run there");
    }
    let (marks, keys, _) = with(disk_with(json!({}), json!({})), json!(4));
    assert!(marks.is_some() && keys == [disk.clone()], "{keys:?}");
    let (_, keys, _) = with(disk_with(json!({}), json!({"formerHost": "h1"})), json!(4));
    assert!(
        keys.contains(&disk) && !keys.contains(&vm),
        "the VM keeps its host for as long as a disk does: {keys:?}"
    );
    let (_, keys, left) = with(disk_with(json!({}), json!({"binding": null, "formerHost": "h1"})), json!(4));
    assert_eq!(keys, std::slice::from_ref(&vm));
    // It cannot follow any more.
    let (_, keys, _) =
        with(disk_with(json!({"encryption": {"keyClass": "k"}}), json!({"formerHost": "h1"})), json!(4));
    assert!(keys.contains(&disk) && keys.contains(&vm), "it goes back to its disks: {keys:?}");

    let now: Timestamp = "2026-01-01T00:00:00Z".parse().expect("a time");
    let back = back_on(&left, "h1", "it has a snapshot", now);
    assert_eq!(back.binding, Some(Binding { host: "h1".to_owned(), epoch: 5 }));
    assert!(!back.is_released() && back.is_admitted(), "its place there was never given to another VM");
    let status = released(&left, now);
    assert_eq!((status.move_epoch, status.released_epoch), (None, Some(4)), "its next host has to admit it");
    assert_eq!(status.operation.map(|operation| operation.name), Some(VMOperationName::Move));
}

#[tokio::test]
async fn a_disk_that_is_to_be_copied_stays_on_its_host_until_the_copy_is_made() {
    let why = |fenced, made: Value| {
        let mut cache = cache(fenced, disk_with(json!({}), json!({})));
        let source = json!({"size": "1Gi", "pool": "site", "source": {"disk": "root"}});
        let copy: Disk = object("Disk", "copy", Some("ns"), source, json!({"size": made}));
        cache.put(copy, tokio::time::Instant::now());
        disks(&cache, &vm_with(json!({})), "h1").err().unwrap_or_default()
    };
    assert_eq!(why(false, json!(null)), "Disk root is the source of a Disk that is not made yet");
    assert_eq!(why(false, json!("1Gi")), "");
    assert_eq!(why(true, json!(null)), "", "no copy is made on a lost host");
}

#[tokio::test]
async fn a_copy_that_can_never_be_made_does_not_keep_a_disk_on_its_host() {
    let why = |binding: Value| {
        let mut cache = cache(false, disk_with(json!({"sharedWith": ["other"]}), json!({})));
        let stalled = json!({"type": "Stalled", "status": "True", "reason": "DiskSmallerThanImage", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let source = json!({"size": "1Mi", "source": {"disk": "root", "diskNamespace": "ns"}});
        let status = json!({"binding": binding, "conditions": [stalled]});
        cache.put(object::<Disk>("Disk", "copy", Some("other"), source, status), tokio::time::Instant::now());
        disks(&cache, &vm_with(json!({})), "h1").err().unwrap_or_default()
    };
    assert_eq!(why(json!(null)), "");
    let bound = json!({"host": "h1", "epoch": 1});
    assert_eq!(why(bound), "Disk root is the source of a Disk that is not made yet", "it may be made there");
}

#[tokio::test]
async fn a_disk_stays_for_copies_and_images_in_namespaces_that_it_is_shared_with() {
    let now = tokio::time::Instant::now();
    let why = |shared: Value, namespace: &str, source: Value| {
        let mut cache = cache(false, disk_with(json!({"sharedWith": shared}), json!({})));
        let copy = json!({"size": "1Gi", "pool": "site", "source": source});
        cache.put(object::<Disk>("Disk", "copy", Some(namespace), copy, json!(null)), now);
        disks(&cache, &vm_with(json!({})), "h1").err().unwrap_or_default()
    };
    let of_ns = || json!({"disk": "root", "diskNamespace": "ns"});
    assert_eq!(
        why(json!(["other"]), "other", of_ns()),
        "Disk root is the source of a Disk that is not made yet"
    );
    assert_eq!(why(json!([]), "other", of_ns()), "", "it gets no access");
    let mut of_ceph = cache(false, disk_with(json!({"pool": "ceph"}), json!({"pool": "ceph"})));
    let copy = json!({"size": "1Gi", "pool": "ceph", "source": {"disk": "root"}});
    of_ceph.put(object::<Disk>("Disk", "copy", Some("ns"), copy, json!(null)), now);
    assert!(disks(&of_ceph, &vm_with(json!({})), "h1").is_err(), "the host that has it makes the clone");
    assert_eq!(
        why(json!([]), "ns", json!({"disk": "root", "diskNamespace": "other"})),
        "",
        "of another disk"
    );
    let image = |status: Value| {
        let mut cache = cache(false, disk_with(json!({"sharedWith": ["other"]}), json!({})));
        let source = json!({"source": {"disk": "root", "diskNamespace": "ns"}, "format": "qcow2"});
        cache.put(object::<Image>("Image", "copy", Some("other"), source, status), now);
        disks(&cache, &vm_with(json!({})), "h1").err().unwrap_or_default()
    };
    let bound = json!({"binding": {"host": "h1", "epoch": 1}, "volumeID": "v-1"});
    assert_eq!(image(bound), "Disk root is the source of an Image that is not made yet");
    assert_eq!(image(json!(null)), "", "it is made wherever the disk is by then");
}

#[tokio::test]
async fn a_disk_in_ceph_stays_on_its_host_while_that_makes_an_image_of_it() {
    let why = |fenced, checksum: Value| {
        let mut cache = cache(fenced, disk_with(json!({"pool": "ceph"}), json!({"pool": "ceph"})));
        let source = json!({"source": {"disk": "root"}, "format": "qcow2"});
        let status = json!({"binding": {"host": "h1", "epoch": 1}, "volumeID": "v-1", "checksum": checksum});
        let now = tokio::time::Instant::now();
        cache.put(object::<Image>("Image", "made", Some("ns"), source, status), now);
        disks(&cache, &vm_with(json!({})), "h1").err().unwrap_or_default()
    };
    assert_eq!(why(false, json!(null)), "Disk root is the source of an Image that is not made yet");
    assert_eq!(why(false, json!("0".repeat(64))), "", "it is made");
    assert_eq!(why(true, json!(null)), "", "the next host removes the snapshot that was taken for it");
}

#[tokio::test]
async fn a_disk_of_an_image_that_may_have_other_content_stays_unless_ceph_has_what_it_is_based_on() {
    let now = tokio::time::Instant::now();
    let why = |fenced, pool: &str, token: Value| {
        let declared = json!({"pool": pool, "image": "nightly"});
        let mut cache = cache(fenced, disk_with(declared, json!({"pool": pool})));
        let source =
            json!({"source": {"url": "https://images.test/a", "trustOnFirstUse": true, "token": token}});
        cache.put(object::<Image>("Image", "nightly", Some("ns"), source, json!(null)), now);
        disks(&cache, &vm_with(json!({})), "h1").err().unwrap_or_default()
    };
    let stays = "Disk root is made from an image with a token: other hosts get its present content only";
    assert_eq!(why(false, "site", json!("1")), stays);
    assert_eq!(why(false, "site", json!(null)), "");
    assert_eq!(why(false, "ceph", json!("1")), "");
    assert_eq!(why(true, "site", json!("1")), "", "of a lost host it is tried");
}

#[tokio::test]
async fn the_mark_of_a_disk_goes_if_its_vm_does_not_leave() {
    let marked = || disk_with(json!({}), json!({"formerHost": "h1"}));
    let without = |fenced, released: Option<i64>, disk: Disk| {
        let mut cache = cache(fenced, disk.clone());
        let mut vm = vm_with(json!({}));
        vm.status.as_mut().expect("a status").released_epoch = released;
        cache.put(vm, tokio::time::Instant::now());
        without_mark(&cache, &disk)
    };
    assert_eq!(without(false, Some(4), marked()), None, "it leaves");
    assert_eq!(without(true, None, marked()), None, "its host is gone");
    assert_eq!(
        without(false, None, disk_with(json!({}), json!({"formerHost": "h0"}))),
        None,
        "not taken yet"
    );
    let stays = without(false, Some(3), marked()).expect("it stays");
    assert_eq!((stays.former_host, stays.binding.map(|binding| binding.host)), (None, Some("h1".to_owned())));
}

#[test]
fn a_deleted_disk_that_was_left_on_a_living_host_is_deleted_by_that_host() {
    let mut disk = disk_with(json!({}), json!({"binding": null, "formerHost": "h1"}));
    let host = |fenced, disk: &Disk| deletes_left(&cache(fenced, disk.clone()), disk);
    assert_eq!(host(false, &disk), None);
    disk.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::UNIX_EPOCH));
    assert_eq!(host(false, &disk).as_deref(), Some("h1"));
    assert_eq!(host(true, &disk), None);
}

#[tokio::test]
async fn a_vm_whose_guest_was_handed_over_is_bound_there_after_its_disks_and_goes_back_in_no_case() {
    let handed_over = |is_deleted: bool| {
        let mut vm = vm_with(json!({}));
        let status = vm.status.as_mut().expect("a status");
        status.released_epoch = Some(4);
        let migration = json!({"id": "m1", "to": "h2", "epoch": 4, "phase": "HandedOver"});
        status.migration = serde_json::from_value(migration).expect("a migration");
        if is_deleted {
            let time = "2026-01-01T00:00:00Z".parse().expect("a time");
            vm.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(time));
        }
        vm
    };
    let (disk, vm) =
        (Key::namespaced(ObjectKind::Disk, "ns", "root"), Key::namespaced(ObjectKind::VM, "ns", "web"));
    for is_deleted in [false, true] {
        let written = |spec: Value, status: Value| {
            let (object, of) = (handed_over(is_deleted), disk_with(spec, status));
            let mut cache = cache(false, of);
            cache.put(object.clone(), tokio::time::Instant::now());
            let mut batch = WriteBatch::default();
            assert_eq!(super::vm(&cache, &Config::new(), &object, &mut batch), Some(Outcome::Settled));
            batch.keys().collect::<Vec<_>>()
        };
        assert_eq!(written(json!({}), json!({})), std::slice::from_ref(&disk), "the disk is marked first");
        // One that could not move while the VM is off goes with the guest that has it open.
        for spec in [json!({}), json!({"encryption": {"keyClass": "k"}})] {
            let bound = written(spec, json!({"formerHost": "h1"}));
            assert!(bound.contains(&disk) && !bound.contains(&vm), "{bound:?}");
        }
        let there = json!({"binding": {"host": "h2", "epoch": 3}, "formerHost": "h1"});
        assert!(written(json!({}), there).contains(&vm));
    }
    let status = handed_over(true).status.expect("a status");
    assert!(status.handed_over().is_some(), "its mark stays, although it is being deleted");
}

#[tokio::test]
async fn the_vm_of_a_lost_host_whose_running_guest_was_being_sent_goes_to_no_third_host() {
    let sent = |to: &str| {
        let mut vm = vm_with(json!({}));
        let migration = json!({"id": "m1", "to": to, "epoch": 4, "phase": "Requested"});
        let status = vm.status.as_mut().expect("a status");
        status.migration = serde_json::from_value(migration).expect("a migration");
        vm
    };
    let goes_to = |fenced: bool, to: &str, spec: Value| {
        let (cache, vm) = (cache(fenced, disk_with(spec, json!({}))), sent(to));
        live::of_lost(&cache, &vm, "h1").map(|migration| migration.to.clone())
    };
    assert_eq!(goes_to(true, "h2", json!({})).as_deref(), Some("h2"));
    assert_eq!(goes_to(false, "h2", json!({})), None, "its host decides");
    assert_eq!(goes_to(true, "h9", json!({})), None, "that host is gone too");
    assert_eq!(goes_to(true, "h2", json!({"encryption": {"keyClass": "k"}})), None, "it stays lost");
    let lost = cache(true, disk_with(json!({"encryption": {"keyClass": "k"}}), json!({})));
    let mut deleted = sent("h2");
    deleted.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::UNIX_EPOCH));
    assert!(live::of_lost(&lost, &deleted, "h1").is_some(), "it is deleted there");
    // A disk is bound there, and the VM is next.
    let there = json!({"binding": {"host": "h2", "epoch": 3}, "formerHost": "h1"});
    let (mut cache, vm) = (cache(true, disk_with(json!({}), there)), sent("h2"));
    cache.put(vm.clone(), tokio::time::Instant::now());
    let mut batch = WriteBatch::default();
    assert_eq!(super::vm(&cache, &Config::new(), &vm, &mut batch), Some(Outcome::Settled));
    assert!(batch.keys().any(|key| key == Key::of(&vm)));
}

#[tokio::test]
async fn a_lost_host_stays_known_while_a_running_guest_may_be_sent_there() {
    let is_removed = |migration: Value| {
        let mut cache = cache(false, disk_with(json!({}), json!({})));
        let lost: Host = object("Host", "h2", None, json!({"fenced": true}), json!({}));
        let mut vm = vm_with(json!({}));
        let status = vm.status.as_mut().expect("a status");
        status.migration = serde_json::from_value(migration).expect("a migration");
        cache.put(vm, tokio::time::Instant::now());
        let mut batch = WriteBatch::default();
        crate::kinds::fenced::host_itself(&cache, &lost, &mut batch);
        batch.keys().next().is_some()
    };
    assert!(is_removed(json!(null)));
    assert!(!is_removed(json!({"id": "m1", "to": "h2", "epoch": 4, "phase": "Requested"})));
    assert!(is_removed(json!({"id": "m1", "to": "h2", "epoch": 3, "phase": "Requested"})), "that is over");
}

#[test]
fn the_firmware_state_of_a_vm_is_marked_as_left_if_the_next_host_gets_it() {
    let now = Timestamp::UNIX_EPOCH;
    let server = json!({"address": "192.0.2.1:7444", "certificateSha256": "ab"});
    let status = json!({"server": server, "firmwareMoves": true});
    let vm_of = |firmware: &str, tpm: bool, former: Option<&str>| {
        let mut vm = vm_with(json!({}));
        let known = vm.status.as_mut().expect("a status");
        let hardware = json!({"cpus": 1, "memory": "1Gi", "firmware": firmware, "tpm": tpm, "machineType": "q35",
            "cpuModel": "max", "accelerator": "tcg", "uuid": "u"});
        known.hardware = serde_json::from_value(hardware).expect("hardware");
        known.former_host = former.map(str::to_owned);
        vm
    };
    let left = |fenced: bool, pool: &str, vm: &VM| {
        let mut cache = cache(fenced, disk_with(json!({"pool": pool}), json!({"pool": pool})));
        for (name, is_fenced) in [("h1", fenced), ("h2", false)] {
            let mut host: Host = object("Host", name, None, json!({"fenced": is_fenced}), status.clone());
            host.metadata.resource_version = Some("2".to_owned());
            cache.put(host, tokio::time::Instant::now());
        }
        let cause = if fenced { Cause::Lost } else { Cause::Released };
        let leaves = disks(&cache, vm, "h1").is_ok();
        (leaves, firmware::marked(&cache, vm, "h1", unbound(vm, cause, now)).former_host)
    };
    let on = |host: &str| Some(host.to_owned());
    let (plain, with_tpm) = (vm_of("UEFI", false, None), vm_of("UEFI", true, None));
    assert_eq!(left(false, "fast", &plain), (true, on("h1")));
    assert_eq!(left(false, "fast", &with_tpm), (true, on("h1")));
    assert_eq!(left(false, "site", &vm_of("UEFISecureBoot", false, None)), (true, on("h1")));
    assert_eq!(left(false, "fast", &vm_of("BIOS", false, None)), (true, None), "it has none that counts");
    assert_eq!(left(true, "site", &with_tpm), (true, on("h1")), "its copy is beside the boot disk");
    for of_ceph in [&with_tpm, &plain, &vm_of("UEFISecureBoot", false, None)] {
        assert_eq!(left(true, "ceph", of_ceph), (true, on("h1")), "its copy is beside the boot disk");
    }
    let on_the_way = vm_of("UEFI", true, Some("h2"));
    assert_eq!(left(false, "fast", &on_the_way), (true, on("h2")), "h1 has not fetched it");
}

#[test]
fn a_vm_with_a_tpm_goes_to_no_host_whose_agent_would_start_it_without() {
    let mut vm = vm_with(json!({}));
    let hardware = json!({"cpus": 1, "memory": "1Gi", "firmware": "UEFI", "tpm": true, "machineType": "q35",
        "cpuModel": "max", "accelerator": "tcg", "uuid": "u"});
    vm.status.as_mut().expect("a status").hardware = serde_json::from_value(hardware).expect("hardware");
    let cache = cache(false, disk_with(json!({}), json!({})));
    assert!(takes_no_firmware(&cache, &vm, "h2").is_some_and(|why| why.contains("host h2")));
    assert_eq!(takes_no_firmware(&cache, &vm_with(json!({})), "h2"), None, "it has none");
}
