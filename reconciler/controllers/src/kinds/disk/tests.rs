//! Decisions for given inputs.

mod placement;

use berth_api::{ConditionType, Disk, Host, Image, Reason, VM, condition};
use k8s_openapi::jiff::Timestamp;

use crate::{
    cache::Cache,
    key::{Key, ObjectKind},
    kinds::quota::Excess,
    plan::{Dependency, Outcome},
};

use super::{
    observe::{
        BackupSource, Observed, Restore, Source, SourcePlace, image_host, observe, unconfirmed,
        undecided_user,
    },
    plan::{bind_disk, obstacle, plan, plan_unbound},
    status::status,
};

use serde_json::json;

#[test]
fn a_disk_bound_for_a_vm_that_never_came_goes_back_and_waits_for_its_first_use() {
    let disk: Disk = serde_json::from_value(json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "Disk", "metadata": {"name": "root", "namespace": "default"},
        "spec": {"size": "1Gi"}, "status": {"binding": {"host": "h1", "epoch": 1}, "volumeID": "v-1",
            "usedBy": [{"use": "Fixed", "vm": "web", "vmUid": "u1"}]},
    }))
    .expect("a disk");
    let seen = |abandoned| Observed {
        source: None,
        backup: None,
        unknown: None,
        fresh_volume_id: String::new(),
        image: None,
        foreign_original: None,
        pool_missing: false,
        default_pools: Vec::new(),
        chosen_pool: None,
        over_quota: None,
        others_may_judge: false,
        restore: None,
        claim: None,
        unconfirmed: None,
        abandoned,
        is_whole: false,
        not_encrypting: None,
        misplaced: None,
    };
    let now: Timestamp = "2026-01-01T00:00:00Z".parse().expect("a time");
    let decision = plan(&disk, &seen(true)).decision;
    let mut left = disk.clone();
    left.status.as_mut().expect("a status").former_host = Some("h0".into());
    let kept = status(&left, &decision, now);
    assert_eq!(
        (kept.binding, kept.volume_id.as_deref(), kept.used_by.len()),
        (None, Some("v-1"), 1),
        "on h0"
    );
    let status = status(&disk, &decision, now);
    assert_eq!((status.binding, status.volume_id, status.used_by), (None, None, Vec::new()));
    assert!(condition::is_true(&status.conditions, ConditionType::Ready));
    assert_eq!(plan(&disk, &seen(false)).decision, None);
}

#[test]
fn a_disk_of_an_adopted_vm_is_not_made_anew_while_the_vms_host_has_a_file_of_that_name() {
    let object = |kind: &str, name: &str, uid: &str, spec: serde_json::Value, status: serde_json::Value| {
        json!({"apiVersion": "berth.dev/v1alpha1", "kind": kind, "spec": spec, "status": status,
            "metadata": {"name": name, "namespace": "ns", "uid": uid, "resourceVersion": "1"}})
    };
    let orphan = |of: &str, uid: &str| {
        json!({"kind": "Volume", "name": format!("v-{of}"), "detail": "",
            "owner": {"kind": "Disk", "namespace": "ns", "name": of, "uid": uid}})
    };
    let doubts = |adopted: bool, host: &str| {
        let orphans =
            json!({"orphans": [orphan("root", "old"), orphan("data", "old"), orphan("own", "own")]});
        let host = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "Host",
            "metadata": {"name": host, "resourceVersion": "1"}, "spec": {}, "status": orphans});
        let disks = json!([{"name": "root", "boot": true}, {"name": "own"}, {"name": "new"}]);
        let bound = json!({"binding": {"host": "h1", "epoch": 1}});
        let mut vm = object("VM", "web", "u1", json!({"class": "small", "disks": disks}), bound);
        if adopted {
            vm["metadata"]["annotations"] = json!({berth_api::FORMER_UID_ANNOTATION: "u0"});
        }
        let attachment =
            object("HotswapDiskAttachment", "a", "u2", json!({"vm": "web", "disk": "data"}), json!(null));
        let now = tokio::time::Instant::now();
        let mut cache = Cache::new(std::time::Duration::from_secs(40));
        cache.put(serde_json::from_value::<Host>(host).expect("a host"), now);
        cache.put(serde_json::from_value::<VM>(vm).expect("a VM"), now);
        let attachment: berth_api::HotswapDiskAttachment =
            serde_json::from_value(attachment).expect("an attachment");
        cache.put(attachment, now);
        let disk = |name: &str| -> Disk {
            serde_json::from_value(object("Disk", name, name, json!({"size": "1Gi"}), json!(null)))
                .expect("a disk")
        };
        let disks = ["root", "own", "data", "new"].map(|name| unconfirmed(&cache, &disk(name)));
        disks.iter().map(Option::is_some).collect::<Vec<_>>()
    };
    assert_eq!(doubts(true, "h1"), [true, true, true, false]);
    assert_eq!(doubts(false, "h1"), [false; 4], "it was made anew with its disks");
    assert_eq!(doubts(true, "h2"), [false; 4], "another host's word counts for nothing");
}

#[test]
fn a_disk_of_a_pool_that_does_not_exist_waits_for_it_and_keeps_its_vm_waiting() {
    let mut disk: Disk = serde_json::from_value(json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "Disk",
        "metadata": {"name": "root", "namespace": "default", "generation": 1}, "spec": {"size": "1Gi", "pool": "fast"},
    }))
    .expect("a disk");
    let seen = |pool_missing| Observed {
        source: None,
        backup: None,
        unknown: None,
        fresh_volume_id: String::new(),
        image: None,
        foreign_original: None,
        pool_missing,
        default_pools: Vec::new(),
        chosen_pool: None,
        over_quota: None,
        others_may_judge: false,
        unconfirmed: None,
        restore: None,
        claim: None,
        abandoned: false,
        is_whole: false,
        not_encrypting: None,
        misplaced: None,
    };
    let now: Timestamp = "2026-01-01T00:00:00Z".parse().expect("a time");
    let waits = plan(&disk, &seen(true));
    let needed = vec![Dependency::Object(Key::cluster(ObjectKind::StoragePool, "fast"))];
    assert_eq!(waits.outcome, Outcome::Blocked(needed.clone()));
    for status in [None, Some(status(&disk, &waits.decision, now))] {
        // Whether its own status was written already.
        disk.status = status;
        let obstacle_found = obstacle(&disk, &seen(true)).expect("it cannot be used");
        assert!(obstacle_found.text.contains("StoragePool fast does not exist"), "{obstacle_found:?}");
        assert_eq!(obstacle_found.dependencies, needed);
        assert_eq!(obstacle(&disk, &seen(false)), None);
    }
}

#[test]
fn one_hosts_verdict_on_an_image_does_not_hold_back_disks_that_another_can_make() {
    let disk: Disk = serde_json::from_value(json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "Disk", "metadata": {"name": "root", "namespace": "default"},
        "spec": {"size": "1Gi", "image": "debian"},
    }))
    .expect("a disk");
    let stalled = json!([{"type": "Stalled", "status": "True", "reason": "ChecksumMismatch", "message": "no",
        "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
    for verdict in [json!({"conditions": stalled}), json!({"virtualSize": "1Pi"})] {
        let mut status = verdict;
        status["binding"] = json!({"host": "evil", "epoch": 1});
        let image: Image = serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "Image", "metadata": {"name": "debian", "namespace": "default"},
            "spec": {"source": {"url": "https://x/a", "sha256": "0".repeat(64)}}, "status": status,
        }))
        .expect("an image");
        let reason = |others| plan_unbound(&disk, Some(&image), others).decision.map(|r| r.reason());
        assert_eq!(reason(true), Some(Reason::WaitingForFirstUse));
        assert_ne!(reason(false), Some(Reason::WaitingForFirstUse), "there is no other word");
    }
}

#[test]
fn a_new_disk_is_reported_by_or_after_the_first_decision_about_a_vm_that_names_it() {
    let now = tokio::time::Instant::now();
    let mut cache = Cache::new(std::time::Duration::from_secs(40));
    let vm = |version: u32, deleted: bool, status: serde_json::Value| -> VM {
        let deleted = deleted.then_some("2026-01-01T00:00:00Z");
        serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "VM", "status": status,
            "metadata": {"name": "web", "namespace": "ns", "uid": "u1", "resourceVersion": version.to_string(),
                "deletionTimestamp": deleted},
            "spec": {"class": "small", "disks": [{"name": "root", "boot": true}]},
        }))
        .expect("a VM")
    };
    let disk: Disk = serde_json::from_value(json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "Disk", "spec": {"size": "1Gi"},
        "metadata": {"name": "root", "namespace": "ns", "uid": "u2", "resourceVersion": "1"},
    }))
    .expect("a disk");
    cache.put(disk.clone(), now);
    assert_eq!(undecided_user(&cache, &disk), None);
    cache.put(vm(2, false, json!(null)), now);
    assert_eq!(undecided_user(&cache, &disk), Some(Key::namespaced(ObjectKind::VM, "ns", "web")));
    cache.put(vm(3, false, json!({"observedGeneration": 1})), now);
    assert_eq!(undecided_user(&cache, &disk), None, "it waits, and its disk waits for its first use");
    cache.put(vm(4, true, json!(null)), now);
    assert_eq!(undecided_user(&cache, &disk), None, "nothing is decided about it any more");
}

#[test]
fn a_report_about_a_disk_that_was_created_with_the_finalizer_counts_only_if_the_disk_may_have_been_bound() {
    let orphan = json!({"kind": "Volume", "name": "v-1", "detail": "",
        "owner": {"kind": "Disk", "namespace": "ns", "name": "root", "uid": "u1"}});
    let host = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "Host", "spec": {},
        "metadata": {"name": "h1", "resourceVersion": "1"}, "status": {"orphans": [orphan]}});
    let disk = |version: &str, status: serde_json::Value| -> Disk {
        let meta = json!({"name": "root", "namespace": "ns", "uid": "u1", "resourceVersion": version,
            "finalizers": [berth_api::HOST_FINALIZER]});
        serde_json::from_value(json!({"apiVersion": "berth.dev/v1alpha1", "kind": "Disk", "metadata": meta,
            "spec": {"size": "1Gi"}, "status": status}))
        .expect("a disk")
    };
    let new = || disk("2", json!(null));
    let now = tokio::time::Instant::now();
    let mut cache = Cache::new(std::time::Duration::from_secs(40));
    cache.put(serde_json::from_value::<Host>(host).expect("a host"), now);
    cache.begin_list(ObjectKind::Disk);
    cache.put(new(), now);
    cache.end_list(ObjectKind::Disk);
    assert!(unconfirmed(&cache, &new()).is_some(), "it was there before the controllers");
    cache.remove(&Key::of(&new()));
    cache.put(new(), now);
    assert_eq!(unconfirmed(&cache, &new()), None, "it has just been created");
    cache.put(disk("3", json!({"binding": {"host": "h2", "epoch": 1}})), now);
    let lost = disk("4", json!(null));
    cache.put(lost.clone(), now);
    assert!(unconfirmed(&cache, &lost).is_some(), "it has lost its status");
}

#[test]
fn a_disk_of_a_backup_waits_for_it_and_is_placed_with_its_first_vm() {
    let key = Key::namespaced(ObjectKind::Backup, "default", "b");
    let planned = |size: Result<Option<u64>, String>| {
        let disk: Disk = serde_json::from_value(json!({
            "metadata": {"name": "d", "namespace": "default"}, "spec": {"size": "2Gi", "source": {"backup": "b"}},
        }))
        .expect("a disk");
        let observed = Observed {
            source: None,
            backup: Some(BackupSource { key: key.clone(), size }),
            unknown: None,
            fresh_volume_id: String::new(),
            image: None,
            foreign_original: None,
            pool_missing: false,
            default_pools: Vec::new(),
            chosen_pool: None,
            over_quota: None,
            others_may_judge: false,
            unconfirmed: None,
            restore: None,
            claim: None,
            abandoned: false,
            is_whole: false,
            not_encrypting: None,
            misplaced: None,
        };
        let plan = plan(&disk, &observed);
        assert!(plan.steps.is_empty(), "{plan:?}");
        assert_eq!(plan.outcome, Outcome::Blocked(vec![Dependency::Object(key.clone())]));
        plan.decision.map(|readiness| readiness.reason())
    };
    assert_eq!(planned(Err("Backup b is not complete yet".into())), Some(Reason::WaitingForBackup));
    assert_eq!(planned(Ok(Some(1 << 30))), Some(Reason::WaitingForFirstUse));
    assert_eq!(planned(Ok(Some(3 << 30))), Some(Reason::DiskSmallerThanImage));
}

#[tokio::test]
async fn a_disk_whose_vm_moves_needs_only_the_image_that_its_file_is_based_on() {
    let now = tokio::time::Instant::now();
    let mut cache = Cache::new(std::time::Duration::from_secs(40));
    let grown: Image = serde_json::from_value(json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "Image", "metadata": {"name": "grown", "namespace": "ns"},
        "spec": {"source": {"url": "https://images.test/a", "sha256": "0".repeat(64)}},
        "status": {"binding": {"host": "h1", "epoch": 1}, "virtualSize": "2Gi"},
    }))
    .expect("an image");
    cache.put(grown, now);
    let obstacle_of = |spec: serde_json::Value| {
        let status = json!({"size": "1Gi", "volumeID": "v-1", "formerHost": "h1"});
        let left: Disk = serde_json::from_value(
            json!({"metadata": {"name": "root", "namespace": "ns"}, "spec": spec, "status": status}),
        )
        .expect("a disk");
        obstacle(&left, &observe(&cache, &left)).map(|obstacle| obstacle.text)
    };
    assert_eq!(obstacle_of(json!({"source": {"backup": "gone"}})), None, "its data was written");
    assert_eq!(obstacle_of(json!({"source": {"file": "/srv/a.qcow2"}})), None);
    assert_eq!(obstacle_of(json!({"image": "gone", "cloneMode": "Full"})), None);
    let linked = obstacle_of(json!({"image": "gone"}));
    assert!(linked.is_some_and(|text| text.contains("Image gone does not exist")));
    assert_eq!(obstacle_of(json!({"image": "grown", "size": "1Gi"})), None, "its file has its size");
}

#[test]
fn a_copy_is_bound_to_the_host_of_its_source_or_says_what_it_waits_for() {
    let copy = |spec: serde_json::Value| -> Disk {
        serde_json::from_value(json!({"metadata": {"name": "copy", "namespace": "ns"}, "spec": spec}))
            .expect("a disk")
    };
    let key = Key::namespaced(ObjectKind::DiskSnapshot, "ns", "before");
    let seen = |place: Result<SourcePlace, String>| Observed {
        image: None,
        foreign_original: None,
        pool_missing: false,
        default_pools: Vec::new(),
        chosen_pool: None,
        over_quota: None,
        others_may_judge: false,
        restore: None,
        claim: None,
        unconfirmed: None,
        abandoned: false,
        is_whole: false,
        not_encrypting: None,
        misplaced: None,
        backup: None,
        source: Some(Source { key: key.clone(), place, away: None, refusal: None }),
        unknown: None,
        fresh_volume_id: "v-new".into(),
    };
    let place = |is_encrypted| {
        let (host, pool) = ("h1".to_owned(), Some("default".to_owned()));
        Ok(SourcePlace { host, pool, is_encrypted, size: Some(1 << 30) })
    };
    let there = || place(false);
    let from_snapshot = copy(json!({"source": {"snapshot": "before"}}));
    let bound = plan(&from_snapshot, &seen(there()));
    assert_eq!(bound.steps, bind_disk(&Key::of(&from_snapshot), "h1", None, "v-new", Vec::new()));
    let reason = |disk: &Disk, observed: &Observed| {
        let plan = plan(disk, observed);
        assert_eq!(plan.outcome, Outcome::Blocked(vec![Dependency::Object(key.clone())]));
        plan.decision.map(|readiness| readiness.reason())
    };
    // An older agent would make a file without encryption.
    let old = plan(&from_snapshot, &Observed { not_encrypting: Some("h1".into()), ..seen(there()) });
    let host = Dependency::Object(Key::cluster(ObjectKind::Host, "h1"));
    assert_eq!((old.steps, old.outcome), (Vec::new(), Outcome::Blocked(vec![host])));
    assert_eq!(old.decision.map(|readiness| readiness.reason()), Some(Reason::NotSupported));
    let missing = seen(Err("DiskSnapshot before does not exist".into()));
    assert_eq!(reason(&from_snapshot, &missing), Some(Reason::WaitingForSnapshot));
    assert!(
        obstacle(&from_snapshot, &missing).is_some_and(|o| o.text.contains("does not exist")),
        "so does its VM"
    );
    let small = copy(json!({"source": {"snapshot": "before"}, "size": "1Mi"}));
    assert_eq!(reason(&small, &seen(there())), Some(Reason::DiskSmallerThanImage));
    let elsewhere = copy(json!({"source": {"snapshot": "before"}, "pool": "fast"}));
    let bound = plan(&elsewhere, &seen(there()));
    assert_eq!(bound.steps, bind_disk(&Key::of(&elsewhere), "h1", None, "v-new", Vec::new()), "a full copy");
    assert_eq!(reason(&elsewhere, &seen(place(true))), Some(Reason::NotSupported), "it is encrypted");
    let encrypted =
        copy(json!({"source": {"snapshot": "before"}, "pool": "fast", "encryption": {"keyClass": "k"}}));
    assert_eq!(reason(&encrypted, &seen(there())), Some(Reason::NotSupported), "so is the copy");
}

#[test]
fn a_disk_of_a_made_image_that_its_host_does_not_serve_is_bound_to_that_host() {
    let mut cache = Cache::new(std::time::Duration::from_secs(40));
    let image = |version: &str, status: serde_json::Value| -> Image {
        serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "Image",
            "metadata": {"name": "golden", "namespace": "ns", "uid": "i", "resourceVersion": version},
            "spec": {"source": {"snapshot": "before"}}, "status": status,
        }))
        .expect("an image")
    };
    let disk: Disk = serde_json::from_value(json!({
        "metadata": {"name": "d", "namespace": "ns", "uid": "d"}, "spec": {"image": "golden"},
    }))
    .expect("a disk");
    let now = tokio::time::Instant::now();
    let bound = json!({"binding": {"host": "h2", "epoch": 1}});
    cache.put(image("1", bound.clone()), now);
    let waits = obstacle(&disk, &observe(&cache, &disk)).expect("it waits");
    assert!(waits.text.contains("Image golden is not made yet"), "{}", waits.text);
    let mut made = bound;
    (made["virtualSize"], made["checksum"]) = ("1Gi".into(), "ab".into());
    cache.put(image("2", made.clone()), now);
    let seen = observe(&cache, &disk);
    let place = SourcePlace { host: "h2".into(), pool: None, is_encrypted: false, size: Some(1 << 30) };
    let key = Key::namespaced(ObjectKind::Image, "ns", "golden");
    assert_eq!(seen.source, Some(Source { key, place: Ok(place), away: None, refusal: None }));
    let steps = plan(&disk, &Observed { fresh_volume_id: "v-new".into(), unknown: None, ..seen }).steps;
    assert_eq!(steps, bind_disk(&Key::of(&disk), "h2", None, "v-new", Vec::new()), "in whichever pool");
    made["conditions"] = json!([{"type": "Stalled", "status": "True", "reason": "ImageLost", "message": "gone",
        "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
    cache.put(image("3", made), now);
    let waits = obstacle(&disk, &observe(&cache, &disk)).expect("it waits");
    assert_eq!(waits.text, "Image golden: gone");
}

#[test]
fn a_disk_of_an_image_that_other_hosts_can_copy_is_placed_with_its_first_vm_and_waits_while_that_host_is_away()
 {
    let now = tokio::time::Instant::now();
    let mut cache = Cache::new(std::time::Duration::from_secs(40));
    let image: Image = serde_json::from_value(json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "Image",
        "metadata": {"name": "golden", "namespace": "ns", "uid": "i", "resourceVersion": "1"},
        "spec": {"source": {"disk": "reference"}},
        "status": {"binding": {"host": "h2", "epoch": 1}, "virtualSize": "2Gi", "checksum": "ab",
            "server": {"address": "192.0.2.2:7444", "certificateSha256": "ab"}},
    }))
    .expect("an image");
    cache.put(image, now);
    let disk = |size: &str| -> Disk {
        serde_json::from_value(json!({
            "metadata": {"name": "d", "namespace": "ns", "uid": "d"}, "spec": {"image": "golden", "size": size},
        }))
        .expect("a disk")
    };
    let key = Key::namespaced(ObjectKind::Image, "ns", "golden");
    let away = plan(&disk("2Gi"), &observe(&cache, &disk("2Gi")));
    let text = away.decision.as_ref().map(|readiness| readiness.message().to_owned()).unwrap_or_default();
    assert_eq!(text, "Image golden is on host h2, which is away: other hosts copy it from there");
    assert_eq!(away.decision.map(|readiness| readiness.reason()), Some(Reason::WaitingForImage));
    let host = Key::cluster(ObjectKind::Host, "h2");
    assert_eq!(
        away.outcome,
        Outcome::Blocked(vec![Dependency::Object(key.clone()), Dependency::Object(host)])
    );
    let lease = json!({"metadata": {"name": "h2", "namespace": "berth-system", "resourceVersion": "2"},
        "spec": {"holderIdentity": "h2", "renewTime": "2026-01-01T00:00:00.000000Z", "leaseDurationSeconds": 40}});
    let lease: k8s_openapi::api::coordination::v1::Lease = serde_json::from_value(lease).expect("a Lease");
    cache.put(lease, now);
    let reason = |size: &str| {
        let plan = plan(&disk(size), &observe(&cache, &disk(size)));
        assert!(plan.steps.is_empty(), "it is bound to no host: {plan:?}");
        plan.decision.map(|readiness| readiness.reason())
    };
    assert_eq!(reason("2Gi"), Some(Reason::WaitingForFirstUse));
    assert_eq!(reason("1Gi"), Some(Reason::DiskSmallerThanImage));
    assert_eq!(image_host(&cache, &disk("2Gi")).as_deref(), Some("h2"));
}

#[test]
fn a_disk_beyond_a_quota_waits_for_it_once_nothing_else_is_in_its_way() {
    let disk: Disk = serde_json::from_value(json!({
        "metadata": {"name": "d", "namespace": "ns"}, "spec": {"size": "1Gi", "pool": "fast"},
    }))
    .expect("a disk");
    let quota = Dependency::Object(Key::namespaced(ObjectKind::Quota, "ns", "team"));
    let excess = || Excess { text: "Quota team: disks: 1 used".into(), dependency: quota.clone() };
    let seen = |pool_missing: bool, restore: Option<bool>| Observed {
        image: None,
        foreign_original: None,
        pool_missing,
        default_pools: Vec::new(),
        chosen_pool: None,
        over_quota: Some(excess()),
        others_may_judge: false,
        restore: restore.map(|found| Restore { host: "h1".into(), volume_id: "v-1".into(), found }),
        claim: None,
        unconfirmed: None,
        abandoned: false,
        is_whole: false,
        not_encrypting: None,
        misplaced: None,
        backup: None,
        source: None,
        unknown: None,
        fresh_volume_id: String::new(),
    };
    let reason = |observed: &Observed| {
        let plan = plan(&disk, observed);
        assert!(plan.steps.is_empty(), "it is not bound: {plan:?}");
        plan.decision.map(|readiness| readiness.reason())
    };
    assert_eq!(reason(&seen(false, None)), Some(Reason::QuotaExceeded));
    assert_eq!(plan(&disk, &seen(false, None)).outcome, Outcome::Blocked(vec![quota.clone()]));
    assert_eq!(reason(&seen(true, None)), Some(Reason::WaitingForPool));
    assert_eq!(reason(&seen(false, Some(true))), Some(Reason::QuotaExceeded), "also one from the trash");
    assert_eq!(reason(&seen(false, Some(false))), Some(Reason::DiskLost));
    let claimed = Observed { claim: Some(("h1".into(), "v-1".into())), ..seen(false, None) };
    assert!(!plan(&disk, &claimed).steps.is_empty(), "a host has it");
}

#[test]
fn an_encrypted_disk_is_not_bound_to_the_host_of_its_vm_before_the_agent_there_encrypts_disks() {
    let mut cache = Cache::new(std::time::Duration::from_secs(40));
    let now = tokio::time::Instant::now();
    let object =
        |kind: &str, name: &str, version: &str, spec: serde_json::Value, status: serde_json::Value| {
            json!({
                "apiVersion": "berth.dev/v1alpha1", "kind": kind,
                "metadata": {"name": name, "namespace": "ns", "uid": name, "resourceVersion": version},
                "spec": spec, "status": status,
            })
        };
    let host = |version: &str, status: serde_json::Value| -> Host {
        let mut host = object("Host", "h1", version, json!({}), status);
        host["metadata"].as_object_mut().expect("an object").remove("namespace");
        serde_json::from_value(host).expect("a Host")
    };
    let spec = json!({"class": "small", "disks": [{"name": "root", "boot": true}, {"name": "d"}]});
    let bound = json!({"binding": {"host": "h1", "epoch": 1}});
    cache.put(host("1", json!({})), now);
    cache.put(serde_json::from_value::<VM>(object("VM", "web", "2", spec, bound)).expect("a VM"), now);
    let disk = |spec: serde_json::Value| -> Disk {
        serde_json::from_value(object("Disk", "d", "3", spec, json!(null))).expect("a Disk")
    };
    let encrypted = disk(json!({"size": "1Gi", "encryption": {}}));
    let waits = obstacle(&encrypted, &observe(&cache, &encrypted)).expect("it waits");
    assert!(waits.text.contains("host h1 has an older agent"), "{}", waits.text);
    let plain = disk(json!({"size": "1Gi"}));
    assert_eq!(obstacle(&plain, &observe(&cache, &plain)), None);
    cache.put(host("4", json!({"diskEncryption": true})), now);
    assert_eq!(obstacle(&encrypted, &observe(&cache, &encrypted)), None);
}

#[test]
fn a_new_disk_needs_that_the_image_of_another_namespace_is_still_shared() {
    let now = tokio::time::Instant::now();
    let mut cache = Cache::new(std::time::Duration::from_secs(40));
    let image = |namespace: &str,
                 version: &str,
                 spec: serde_json::Value,
                 status: serde_json::Value|
     -> Image {
        serde_json::from_value(json!({
            "metadata": {"name": "debian", "namespace": namespace, "uid": namespace, "resourceVersion": version},
            "spec": spec, "status": status,
        }))
        .expect("an Image")
    };
    let original = |version: &str, shared_with: serde_json::Value| {
        let spec = json!({"source": {"url": "https://a/b", "sha256": "ab"}, "sharedWith": shared_with});
        image("golden", version, spec, json!({"virtualSize": "1Gi"}))
    };
    let status = json!({"binding": {"host": "h1", "epoch": 1}, "virtualSize": "1Gi", "checksum": "ab"});
    let foreign = json!({"source": {"image": "debian", "imageNamespace": "golden"}});
    cache.put(original("1", json!(["team"])), now);
    cache.put(image("team", "2", foreign, status), now);
    let disk = |status: serde_json::Value| -> Disk {
        let spec = json!({"image": "debian", "size": "1Gi"});
        serde_json::from_value(json!({
            "metadata": {"name": "d", "namespace": "team", "uid": "d"}, "spec": spec, "status": status,
        }))
        .expect("a disk")
    };
    let new = disk(json!(null));
    let seen = Observed { unknown: None, ..observe(&cache, &new) };
    assert_eq!(plan(&new, &seen).steps.len(), 2, "it is bound to the host of the image");
    cache.put(original("3", json!(["others"])), now);
    let refused = plan(&new, &observe(&cache, &new));
    assert_eq!(refused.decision.as_ref().map(|readiness| readiness.reason()), Some(Reason::ImageNotShared));
    let Outcome::Blocked(dependencies) = &refused.outcome else { panic!("{refused:?}") };
    let key = Key::namespaced(ObjectKind::Image, "golden", "debian");
    assert!(dependencies.contains(&Dependency::Object(key.clone())), "{dependencies:?}");
    assert!(obstacle(&new, &observe(&cache, &new)).is_some(), "so does its VM");
    let text = refused.decision.map(|readiness| readiness.message().to_owned());
    cache.remove(&key);
    let gone = plan(&new, &observe(&cache, &new)).decision.map(|readiness| readiness.message().to_owned());
    assert_eq!(gone, text, "whether it exists is not shown");
    let bound = disk(json!({"binding": {"host": "h1", "epoch": 1}, "volumeID": "v-1", "size": "1Gi"}));
    assert_eq!(plan(&bound, &observe(&cache, &bound)).decision, None, "one that exists goes on");
}

fn object(kind: &str, name: &str, spec: serde_json::Value, status: serde_json::Value) -> serde_json::Value {
    json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": kind,
        "metadata": {"name": name, "namespace": "ns", "uid": name, "resourceVersion": "1"},
        "spec": spec, "status": status,
    })
}
