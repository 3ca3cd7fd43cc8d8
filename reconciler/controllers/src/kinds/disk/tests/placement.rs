//! The host of a disk, and when it is looked at again.

use super::*;

#[test]
fn a_disk_is_bound_only_to_a_host_with_the_labels_that_it_asks_for() {
    let mut cache = Cache::new(std::time::Duration::from_secs(40));
    let now = tokio::time::Instant::now();
    let host = |name: &str, version: &str, zone: &str| -> Host {
        serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "Host", "spec": {},
            "metadata": {"name": name, "resourceVersion": version, "labels": {"zone": zone}},
        }))
        .expect("a Host")
    };
    let asks = |zone: &str, source: serde_json::Value| -> Disk {
        let spec = json!({"size": "1Gi", "source": source, "placement": {"hostSelector": {"zone": zone}}});
        serde_json::from_value(object("Disk", "d", spec, json!(null))).expect("a Disk")
    };
    let in_the_way = |cache: &Cache, disk: &Disk| obstacle(disk, &observe(cache, disk));
    let new = asks("b", json!(null));
    assert_eq!(in_the_way(&cache, &new), None, "before the first host has joined");
    cache.put(host("h1", "1", "a"), now);
    let nowhere = plan(&new, &observe(&cache, &new));
    let readiness = nowhere.decision.expect("it is reported");
    assert_eq!(readiness.reason(), Reason::NoSuchHost);
    insta::assert_snapshot!(readiness.message(), @"none of 1 hosts has the labels zone=b of its hostSelector");
    assert_eq!(nowhere.outcome, Outcome::Blocked(vec![Dependency::Hosts]));
    cache.put(host("h2", "2", "b"), now);
    assert_eq!(in_the_way(&cache, &new), None, "its first VM goes to h2");
    let waits = plan(&new, &observe(&cache, &new));
    assert_eq!(waits.outcome, Outcome::Blocked(vec![Dependency::Hosts]), "h2 may get other labels");

    let there = json!({"binding": {"host": "h1", "epoch": 1}, "size": "1Gi", "volumeID": "v-1"});
    let other = object("Disk", "other", json!({"size": "1Gi"}), there);
    cache.put(serde_json::from_value::<Disk>(other).expect("a Disk"), now);
    let copy = in_the_way(&cache, &asks("b", json!({"disk": "other"}))).expect("its source is on h1");
    insta::assert_snapshot!(copy.text, @"host h1, where it would be, does not have the label zone=b of its hostSelector");
    let source = Dependency::Object(Key::namespaced(ObjectKind::Disk, "ns", "other"));
    assert_eq!(copy.dependencies, [source, Dependency::Hosts]);

    let spec = json!({"class": "small", "disks": [{"name": "root", "boot": true}, {"name": "d"}]});
    let bound = json!({"binding": {"host": "h1", "epoch": 1}});
    cache.put(serde_json::from_value::<VM>(object("VM", "web", spec, bound)).expect("a VM"), now);
    let waits = in_the_way(&cache, &new).expect("a VM on h1 lists it");
    assert!(waits.text.contains("host h1"), "{}", waits.text);
    cache.put(host("h1", "3", "b"), now);
    assert_eq!(in_the_way(&cache, &new), None);
}

#[test]
fn a_disk_that_is_a_block_device_is_bound_with_a_vm_only_where_that_is_offered() {
    let mut cache = Cache::new(std::time::Duration::from_secs(40));
    let now = tokio::time::Instant::now();
    let host = |version: &str, devices: serde_json::Value| -> Host {
        serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "Host", "spec": {},
            "metadata": {"name": "h1", "resourceVersion": version},
            "status": {"observedGeneration": 1, "blockDevices": devices},
        }))
        .expect("a Host")
    };
    let spec = json!({"source": {"device": "nvme"}});
    let disk: Disk = serde_json::from_value(object("Disk", "d", spec, json!(null))).expect("a Disk");
    let in_the_way = |cache: &Cache| obstacle(&disk, &observe(cache, &disk));
    cache.put(host("1", json!([])), now);
    assert_eq!(in_the_way(&cache), None, "the scheduler chooses the host of its first VM");
    let spec = json!({"class": "small", "disks": [{"name": "root", "boot": true}, {"name": "d"}]});
    let bound = json!({"binding": {"host": "h1", "epoch": 1}});
    cache.put(serde_json::from_value::<VM>(object("VM", "web", spec, bound)).expect("a VM"), now);
    let waits = in_the_way(&cache).expect("a VM on h1 lists it");
    assert!(waits.text.contains("host h1, where it would be, offers no block device nvme"), "{}", waits.text);
    let gone = json!([{"name": "nvme", "path": "/dev/nvme0n1", "problem": "it is mounted"}]);
    cache.put(host("2", gone), now);
    assert!(in_the_way(&cache).is_some());
    cache.put(host("3", json!([{"name": "nvme", "path": "/dev/nvme0n1", "size": "1Ti"}])), now);
    assert_eq!(in_the_way(&cache), None);
}

#[test]
fn a_disk_is_looked_at_again_when_it_is_attached_and_when_the_vm_gets_a_host() {
    let mut cache = Cache::new(std::time::Duration::from_secs(40));
    let now = tokio::time::Instant::now();
    let data = Key::namespaced(ObjectKind::Disk, "ns", "data");
    let attachment = object("HotswapDiskAttachment", "a", json!({"vm": "web", "disk": "data"}), json!(null));
    let attachment: berth_api::HotswapDiskAttachment =
        serde_json::from_value(attachment).expect("an attachment");
    let concerned = cache.put(attachment.clone(), now);
    assert!(concerned.contains(&data), "{concerned:?}");
    let mut reported = attachment;
    reported.metadata.resource_version = Some("2".into());
    let concerned = cache.put(reported.clone(), now);
    assert!(!concerned.contains(&data), "only its status changed: {concerned:?}");
    let spec = json!({"class": "small", "disks": [{"name": "root", "boot": true}]});
    let bound = json!({"binding": {"host": "h1", "epoch": 1}});
    let concerned =
        cache.put(serde_json::from_value::<VM>(object("VM", "web", spec, bound)).expect("a VM"), now);
    assert!(concerned.contains(&data), "{concerned:?}");
    let concerned = cache.remove(&Key::of(&reported));
    assert!(concerned.contains(&data), "{concerned:?}");
}

#[tokio::test]
async fn a_disk_whose_vm_moves_does_not_wait_for_the_end_of_an_image_that_waits_for_the_disk() {
    let now = tokio::time::Instant::now();
    let mut cache = Cache::new(std::time::Duration::from_secs(40));
    for (name, source) in
        [("below", json!({"url": "https://images.test/a"})), ("made", json!({"disk": "other"}))]
    {
        let image: Image = serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "ns", "resourceVersion": "1", "deletionTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"source": source},
            "status": {"binding": {"host": "h1", "epoch": 1}, "virtualSize": "1Gi",
                "server": {"address": "192.0.2.1:7444", "certificateSha256": "ab"}},
        }))
        .expect("an image");
        cache.put(image, now);
    }
    let lease = json!({"metadata": {"name": "h1", "namespace": "berth-system", "resourceVersion": "2"},
        "spec": {"holderIdentity": "h1", "renewTime": "2026-01-01T00:00:00.000000Z", "leaseDurationSeconds": 40}});
    cache.put(
        serde_json::from_value::<k8s_openapi::api::coordination::v1::Lease>(lease).expect("a Lease"),
        now,
    );
    for image in ["below", "made"] {
        let why = |status: serde_json::Value| {
            let spec = json!({"image": image, "size": "1Gi"});
            let disk = serde_json::from_value(
                json!({"metadata": {"name": "root", "namespace": "ns"}, "spec": spec, "status": status}),
            );
            let disk: Disk = disk.expect("a disk");
            obstacle(&disk, &observe(&cache, &disk)).map(|obstacle| obstacle.text)
        };
        assert_eq!(why(json!(null)), Some(format!("Image {image} is being deleted")), "a new disk");
        assert_eq!(why(json!({"size": "1Gi", "volumeID": "v-1", "formerHost": "h1"})), None, "{image}");
    }
}

#[tokio::test]
async fn a_disk_whose_vm_moves_keeps_its_identity_while_the_host_of_its_image_does_not_serve_that() {
    let mut cache = Cache::new(std::time::Duration::from_secs(40));
    let status = json!({"binding": {"host": "h1", "epoch": 1}, "virtualSize": "1Gi"});
    let image = object("Image", "made", json!({"source": {"disk": "other"}}), status);
    let now = tokio::time::Instant::now();
    cache.put(serde_json::from_value::<Image>(image).expect("an image"), now);
    let steps = |former: serde_json::Value| {
        let users = json!([{"use": "Fixed", "vm": "gone", "vmUid": "u"}]);
        let status = json!({"binding": {"host": "h2", "epoch": 2}, "volumeID": "v-1", "formerHost": former, "usedBy": users});
        let disk = object("Disk", "root", json!({"image": "made", "size": "1Gi"}), status);
        let disk: Disk = serde_json::from_value(disk).expect("a disk");
        let seen = Observed { unknown: None, ..observe(&cache, &disk) };
        assert!(seen.abandoned, "its VM is not on h2");
        plan(&disk, &seen).steps.len()
    };
    assert_eq!(steps(json!("h1")), 0, "its file is on h1");
    assert_eq!(steps(json!(null)), 2, "a disk without a file is made there");
}
