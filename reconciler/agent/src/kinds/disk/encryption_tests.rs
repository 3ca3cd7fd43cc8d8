//! Disks that are encrypted.

use berth_api::condition::{find, is_true};
use berth_api::{ConditionType, Disk, Provisioning, Readiness, Reason};
use berth_host::{SealedKey, SnapshotFacts, Taken, VolumeFacts};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::encryption::is_unencrypted;
use super::plan::plan;
use super::source::LocalSource;
use super::status::status;
use super::{Observed, Step};
use crate::unlocking::{Held, KeyState};

fn disk(spec: Value) -> Disk {
    let status = json!({"observedGeneration": 1, "volumeID": "v-1", "serial": "v1", "binding": {"host": "h", "epoch": 1}});
    let object = json!({"metadata": {"name": "d", "namespace": "ns", "generation": 3}, "spec": spec, "status": status});
    serde_json::from_value(object).expect("a Disk")
}

fn key(class: &str) -> Box<SealedKey> {
    Box::new(SealedKey {
        id: "k-1".into(),
        provider: "Secret".into(),
        wrapped_by: format!("ns/{class}"),
        wrapping_key_id: "w-1".into(),
        generation: 1,
        sealed: "AAAA".into(),
    })
}

fn missing() -> KeyState {
    KeyState::Waits(Readiness::Reconciling(Reason::WaitingForSecret, "Secret ns/s: it does not exist".into()))
}

/// A disk with an encrypted file of 1 GiB.
fn made(state: KeyState) -> Observed {
    let facts = VolumeFacts {
        problem: None,
        encryption: Some(key("default")),
        retained: false,
        pending_snapshot: None,
        restores: Vec::new(),
        restoring: false,
        reserved: None,
        pool: "default".into(),
        id: "v-1".into(),
        size: 1 << 30,
        base: None,
        owner: berth_host::VolumeOwner {
            namespace: "ns".into(),
            name: "d".into(),
            uid: None,
            image: None,
            source: None,
        },
        path: "/v-1.qcow2".into(),
        format: berth_qemu::machine::Format::EncryptedQcow2,
        cache: Default::default(),
        backing: None,
    };
    Observed { volume: Some(facts), key: state, ..Observed::default() }
}

#[test]
fn a_new_disk_is_made_with_its_key_and_not_before_the_key_is_known() {
    let encrypted = disk(json!({"size": "1Gi", "encryption": {}}));
    assert_eq!(encrypted.spec.provisioning, Provisioning::Thin);
    let wraps = Observed { key: KeyState::Wraps(key("default")), ..Observed::default() };
    let plan_of = |observed: &Observed| plan(&encrypted, observed);
    let steps = plan_of(&wraps).steps;
    let [Step::Create(new)] = steps.as_slice() else { panic!("{steps:?}") };
    assert_eq!(new.encryption, Some(key("default")));
    let waits = plan_of(&Observed { key: missing(), ..Observed::default() });
    assert_eq!((waits.steps.len(), waits.readiness.reason()), (0, Reason::WaitingForSecret));
}

#[test]
fn a_file_without_the_declared_encryption_is_found() {
    let (encrypted, plain) = (disk(json!({"size": "1Gi", "encryption": {}})), disk(json!({"size": "1Gi"})));
    let with = made(KeyState::Plain).volume.expect("made");
    let without = VolumeFacts { encryption: None, ..with.clone() };
    assert!(is_unencrypted(&encrypted, &without), "as after a change of the metadata of an image");
    assert!(!is_unencrypted(&encrypted, &with) && !is_unencrypted(&plain, &without));
}

#[test]
fn another_class_protects_the_key_while_a_machine_has_the_disk_open() {
    let declared = disk(json!({"size": "1Gi", "encryption": {"keyClass": "other"}}));
    let wraps = Observed { open_size: Some(1 << 30), ..made(KeyState::Wraps(key("other"))) };
    let rewrap = Step::Rewrap { pool: "default".into(), volume: "v-1".into(), key: key("other") };
    assert_eq!(plan(&declared, &wraps).steps, [rewrap]);
    let done = plan(&declared, &made(KeyState::Synced(key("other"))));
    assert!(done.steps.is_empty() && matches!(done.readiness, Readiness::Ready(..)));
}

/// Status of a disk whose key one class protects, and perhaps the next one already.
fn reported(mut disk: Disk, class: &str, next: &str) -> Disk {
    let encryption = json!({
        "keyClass": format!("ns/{class}"), "providerID": "Secret", "keyID": "w-1", "diskKeyID": "k-1", "generation": 1,
        "next": format!("ns/{next}"),
    });
    let status = disk.status.as_mut().expect("a status");
    status.encryption = Some(Box::new(serde_json::from_value(encryption).expect("an encryption")));
    disk
}

#[test]
fn the_class_that_is_to_protect_a_key_is_reported_before_it_does_and_none_is_lost_by_a_crash_in_between() {
    let declared = disk(json!({"size": "1Gi", "encryption": {"keyClass": "third"}}));
    // `other` protects it since a moment that no report has seen, and the disk declares yet another one now.
    let mut seen = made(KeyState::Wraps(key("third")));
    seen.volume.as_mut().expect("made").encryption = Some(key("other"));
    let before = reported(declared.clone(), "default", "other");
    let waits = plan(&before, &seen);
    assert_eq!((waits.steps.len(), waits.readiness.reason()), (0, Reason::Provisioning));
    let status = status(&before, &seen, &waits.readiness, Timestamp::UNIX_EPOCH);
    let encryption = status.encryption.expect("reported");
    assert_eq!((encryption.key_class.as_str(), encryption.next.as_deref()), ("ns/other", Some("ns/third")));
    let rewrap = Step::Rewrap { pool: "default".into(), volume: "v-1".into(), key: key("third") };
    assert_eq!(plan(&reported(declared, "other", "third"), &seen).steps, [rewrap]);
}

#[test]
fn a_missing_key_leaves_a_running_disk_ready_and_holds_back_every_other_one() {
    let encrypted = disk(json!({"size": "1Gi", "encryption": {}}));
    let stopped = made(missing());
    assert_eq!(plan(&encrypted, &stopped).readiness.reason(), Reason::WaitingForSecret);
    let running = Observed { open_size: Some(1 << 30), ..stopped };
    let plan = plan(&encrypted, &running);
    assert!(matches!(plan.readiness, Readiness::Ready(..)), "{:?}", plan.readiness);
    let status = status(&encrypted, &running, &plan.readiness, Timestamp::UNIX_EPOCH);
    let synced = find(&status.conditions, "EncryptionSynced").expect("reported");
    assert_eq!((synced.status.as_str(), synced.reason.as_str()), ("False", "WaitingForSecret"));
    let encryption = status.encryption.expect("reported");
    assert_eq!((encryption.key_class.as_str(), encryption.key_id.as_str()), ("ns/default", "w-1"));
}

#[test]
fn the_condition_is_there_for_encrypted_disks_only() {
    let ready = Readiness::Ready(Reason::Available, String::new());
    let encrypted = disk(json!({"size": "1Gi", "encryption": {}}));
    let synced = status(&encrypted, &made(KeyState::Synced(key("default"))), &ready, Timestamp::UNIX_EPOCH);
    assert!(is_true(&synced.conditions, ConditionType::EncryptionSynced));
    let plain = status(&disk(json!({"size": "1Gi"})), &Observed::default(), &ready, Timestamp::UNIX_EPOCH);
    assert!(find(&plain.conditions, "EncryptionSynced").is_none() && plain.encryption.is_none());
}

#[test]
fn a_copy_has_the_key_of_its_source_once_that_is_known() {
    let facts = SnapshotFacts {
        pool: "default".into(),
        id: "s-1".into(),
        volume: "v-2".into(),
        size: 1 << 30,
        owner: None,
        taken: Some(Taken { at: Timestamp::UNIX_EPOCH, frozen: false, memory: false }),
        encryption: Some(key("default")),
    };
    let source = LocalSource::Snapshot(Some(facts.clone()));
    let expected = key("default");
    assert!(matches!(source.held(), Held::Copy(Some(found)) if *found == *expected));
    assert!(matches!(LocalSource::Snapshot(None).held(), Held::New), "it is not known yet");
    let plain =
        LocalSource::Disk { volume: None, snapshot: Some(SnapshotFacts { encryption: None, ..facts }) };
    assert!(matches!(plain.held(), Held::Copy(None)));
}
