//! Encrypted disks: made with a key, protected by another class while their VM runs, and held back without their key.

use std::collections::BTreeSet;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use berth_api::{Disk, DiskSnapshot, EncryptionStatus, KeyClass, VM, condition};
use berth_host::{VaultProblem, Volumes as _};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::fixture::{Fixture, INSTANCE, bound, disk_bound, is_ready, reason_of, vm_reason};

async fn set_secret(fixture: &Fixture, name: &str, byte: u8) {
    set_entry(fixture, name, "key", &BASE64.encode([byte; 32])).await;
}

async fn set_entry(fixture: &Fixture, name: &str, entry: &str, text: &str) {
    let object = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": {entry: text}});
    let params = PatchParams::apply("test").force();
    fixture.api::<Secret>().patch(name, &params, &Patch::Apply(&object)).await.expect("applied");
}

fn synced(disk: &Disk) -> String {
    disk.status.as_ref().map(|s| reason_of(&s.conditions, "EncryptionSynced")).unwrap_or_default()
}

fn encryption(disk: &Disk) -> Option<EncryptionStatus> {
    disk.status.as_ref()?.encryption.as_deref().cloned()
}

fn has_class(class: &'static str) -> impl Fn(&Disk) -> bool {
    move |disk| encryption(disk).is_some_and(|found| found.key_class == class) && synced(disk) == "Synced"
}

/// A running VM with an encrypted root disk.
async fn running() -> Fixture {
    let fixture = Fixture::start().await;
    set_secret(&fixture, "first", 1).await;
    fixture.make::<KeyClass>("default", json!({"secret": {"name": "first"}}), None).await;
    fixture.furnish().await;
    fixture.delete::<Disk>("root").await;
    fixture.until_gone::<Disk>("root").await;
    let root = json!({"image": "debian", "size": "4Gi", "encryption": {}});
    fixture.make::<Disk>("root", root, Some(disk_bound("v-encrypted"))).await;
    fixture.make_vm(json!({})).await;
    fixture.running_vm().await;
    fixture
}

#[tokio::test(start_paused = true)]
async fn an_encrypted_disk_is_made_with_the_default_class_and_reported_by_its_vm() {
    let fixture = running().await;
    let disk = fixture.until::<Disk>("root", has_class("ns/default")).await;
    let found = encryption(&disk).expect("encrypted");
    assert_eq!((found.provider_id.as_str(), found.generation), ("Secret", 1));
    let vm = fixture.running_vm().await;
    assert!(vm.status.expect("reported").disks[0].encrypted);
    assert!(!format!("{disk:?}").contains(&BASE64.encode([1; 32])));
    fixture.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn another_class_protects_the_key_while_the_vm_runs_and_its_snapshots_follow() {
    let fixture = running().await;
    let before =
        encryption(&fixture.until::<Disk>("root", has_class("ns/default")).await).expect("encrypted");
    let mut status = bound();
    for (field, value) in [("snapshotID", "s-1"), ("volumeID", "v-encrypted"), ("pool", "default")] {
        status[field] = value.into();
    }
    fixture.make::<DiskSnapshot>("before", json!({"disk": "root"}), Some(status)).await;
    let of = |snapshot: &DiskSnapshot| {
        let status = snapshot.status.as_ref()?;
        status.encryption.as_ref().map(|found| found.key_class.clone())
    };
    fixture.until::<DiskSnapshot>("before", |snapshot| of(snapshot).as_deref() == Some("ns/default")).await;
    let started = fixture.system.hypervisor().view(INSTANCE).map(|view| view.identity);
    fixture.change::<Disk>("root", json!({"encryption": {"keyClass": "next"}})).await;
    fixture.until::<Disk>("root", |disk| synced(disk) == "WaitingForKeyClass").await;
    set_secret(&fixture, "second", 2).await;
    fixture.make::<KeyClass>("next", json!({"secret": {"name": "second"}}), None).await;
    let after = encryption(&fixture.until::<Disk>("root", has_class("ns/next")).await).expect("encrypted");
    assert_eq!((&after.disk_key_id, after.generation), (&before.disk_key_id, 2));
    assert_ne!(after.key_id, before.key_id);
    fixture.until::<DiskSnapshot>("before", |snapshot| of(snapshot).as_deref() == Some("ns/next")).await;
    assert_eq!(fixture.system.hypervisor().view(INSTANCE).map(|view| view.identity), started);
    fixture.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_vm_runs_on_without_the_secret_of_its_disks_and_is_not_started_before_it_is_back() {
    let fixture = running().await;
    fixture.until::<Disk>("root", has_class("ns/default")).await;
    fixture.api::<Secret>().delete("first", &Default::default()).await.expect("deleted");
    let disk = fixture.until::<Disk>("root", |disk| synced(disk) == "WaitingForSecret").await;
    let ready = condition::find(&disk.status.as_ref().expect("reported").conditions, "Ready").cloned();
    assert_eq!(ready.expect("reported").status, "True", "the machine has its key");
    fixture.running_vm().await;
    fixture.change::<VM>("web", json!({"restartToken": "again", "stop": {"mode": "Hard"}})).await;
    fixture.until::<VM>("web", |vm| vm_reason(vm) == "WaitingForDisk").await;
    set_secret(&fixture, "first", 9).await;
    fixture.until::<Disk>("root", |disk| synced(disk) == "WrongKey").await;
    assert!(fixture.system.hypervisor().view(INSTANCE).is_none(), "it is not started");
    set_secret(&fixture, "first", 1).await;
    fixture.running_vm().await;
    fixture.until::<Disk>("root", has_class("ns/default")).await;
    fixture.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_stopped_vm_starts_after_a_restart_of_the_agent_and_not_once_the_secret_is_gone() {
    let fixture = running().await;
    fixture.until::<Disk>("root", has_class("ns/default")).await;
    let stop = json!({"power": "Stopped", "stop": {"mode": "Hard"}});
    fixture.change::<VM>("web", stop.clone()).await;
    fixture.until::<VM>("web", |vm| is_ready(vm, "Stopped")).await;
    for is_declared_first in [false, true] {
        // A host forgets the keys with its agent.
        fixture.crash_agent().await;
        fixture.system.keep_keys(&BTreeSet::new());
        if is_declared_first {
            fixture.change::<VM>("web", json!({"power": "Running"})).await;
            fixture.start_agent();
        } else {
            fixture.start_agent();
            fixture.change::<VM>("web", json!({"power": "Running"})).await;
        }
        fixture.running_vm().await;
        fixture.change::<VM>("web", stop.clone()).await;
        fixture.until::<VM>("web", |vm| is_ready(vm, "Stopped")).await;
    }
    fixture.api::<Secret>().delete("first", &Default::default()).await.expect("deleted");
    let disk = fixture.until::<Disk>("root", |disk| synced(disk) == "WaitingForSecret").await;
    let id = encryption(&disk).expect("encrypted").disk_key_id;
    assert!(fixture.system.unlocked(&id, "v-encrypted").is_none(), "the key is forgotten");
    fixture.change::<VM>("web", json!({"power": "Running"})).await;
    fixture.until::<VM>("web", |vm| vm_reason(vm) == "WaitingForDisk").await;
    assert!(fixture.system.hypervisor().view(INSTANCE).is_none(), "it is not started");
    set_secret(&fixture, "first", 1).await;
    fixture.running_vm().await;
    fixture.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_copy_without_its_secret_leaves_its_source_the_key_and_a_deleted_one_holds_none() {
    let fixture = running().await;
    let source = fixture.until::<Disk>("root", has_class("ns/default")).await;
    let id = encryption(&source).expect("encrypted").disk_key_id;
    set_secret(&fixture, "second", 2).await;
    fixture.make::<KeyClass>("next", json!({"secret": {"name": "second"}}), None).await;
    let spec = json!({"source": {"disk": "root"}, "encryption": {"keyClass": "next"}});
    fixture.make::<Disk>("copy", spec, Some(disk_bound("v-copy"))).await;
    fixture.until::<Disk>("copy", has_class("ns/next")).await;
    let known = |holder: &str| fixture.system.unlocked(&id, holder).is_some();
    assert!(known("v-encrypted") && known("v-copy"));
    fixture.api::<Secret>().delete("second", &Default::default()).await.expect("deleted");
    fixture.until::<Disk>("copy", |disk| synced(disk) == "WaitingForSecret").await;
    assert!(known("v-encrypted") && !known("v-copy"));
    fixture.change::<VM>("web", json!({"restartToken": "again", "stop": {"mode": "Hard"}})).await;
    fixture.running_vm().await;
    set_secret(&fixture, "second", 2).await;
    fixture.until::<Disk>("copy", has_class("ns/next")).await;
    assert!(known("v-copy"));
    fixture.delete::<Disk>("copy").await;
    fixture.until_gone::<Disk>("copy").await;
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert!(known("v-encrypted") && !known("v-copy"));
}

#[tokio::test(start_paused = true)]
async fn a_key_is_sealed_with_the_key_that_its_class_has_now_and_not_with_one_that_was_read_before() {
    let fixture = running().await;
    fixture.until::<Disk>("root", has_class("ns/default")).await;
    set_secret(&fixture, "second", 2).await;
    fixture.make::<KeyClass>("next", json!({"secret": {"name": "second"}}), None).await;
    let spec = json!({"size": "1Gi", "encryption": {"keyClass": "next"}});
    fixture.make::<Disk>("early", spec, Some(disk_bound("v-early"))).await;
    let early = fixture.until::<Disk>("early", has_class("ns/next")).await;
    set_secret(&fixture, "second", 3).await;
    fixture.change::<Disk>("root", json!({"encryption": {"keyClass": "next"}})).await;
    let root = fixture.until::<Disk>("root", has_class("ns/next")).await;
    let id = |disk: &Disk| encryption(disk).map(|found| found.key_id);
    assert_ne!(id(&root), id(&early), "nothing could open it any more");
}

const VAULT: &str = "https://vault.example:8200";
const TOKEN: &str = "canary-of-the-token";

/// A running VM with an encrypted root disk, and a class with a key in a Vault.
async fn running_beside_a_vault() -> Fixture {
    let fixture = running().await;
    fixture.until::<Disk>("root", has_class("ns/default")).await;
    fixture.system.add_vault(VAULT, TOKEN, "berth");
    set_entry(&fixture, "login", "secretID", TOKEN).await;
    set_entry(&fixture, "authority", "ca.crt", "pem").await;
    let vault = json!({"address": VAULT, "key": "berth", "caSecret": {"name": "authority"},
        "appRole": {"roleID": "hosts", "secret": {"name": "login"}}});
    fixture.make::<KeyClass>("vault", json!({"vault": vault}), None).await;
    fixture
}

#[tokio::test(start_paused = true)]
async fn a_key_goes_from_a_secret_to_a_vault_and_back_while_its_vm_runs() {
    let fixture = running_beside_a_vault().await;
    let of = |disk: &Disk| encryption(disk).expect("encrypted");
    let before = of(&fixture.until::<Disk>("root", has_class("ns/default")).await);
    fixture.running_vm().await;
    let started = fixture.system.hypervisor().view(INSTANCE).map(|view| view.identity);
    fixture.change::<Disk>("root", json!({"encryption": {"keyClass": "vault"}})).await;
    let disk = fixture.until::<Disk>("root", has_class("ns/vault")).await;
    let there = of(&disk);
    assert_eq!((there.provider_id.as_str(), there.generation), ("Vault", 2));
    assert_eq!(there.disk_key_id, before.disk_key_id);
    assert!(!format!("{disk:?}").contains(TOKEN));
    fixture.change::<Disk>("root", json!({"encryption": {"keyClass": "default"}})).await;
    let back = of(&fixture.until::<Disk>("root", has_class("ns/default")).await);
    assert_eq!((back.provider_id.as_str(), back.generation), ("Secret", 3));
    assert_eq!((back.disk_key_id, back.key_id), (before.disk_key_id, before.key_id));
    assert_eq!(fixture.system.hypervisor().view(INSTANCE).map(|view| view.identity), started);
    let spec = json!({"size": "1Gi", "encryption": {"keyClass": "vault"}});
    fixture.make::<Disk>("new", spec, Some(disk_bound("v-new"))).await;
    let new = of(&fixture.until::<Disk>("new", has_class("ns/vault")).await);
    assert_eq!((new.provider_id.as_str(), new.generation, new.key_id), ("Vault", 1, there.key_id));
    fixture.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_vm_runs_on_without_its_vault_and_one_that_is_to_start_waits_for_it() {
    let fixture = running_beside_a_vault().await;
    fixture.change::<Disk>("root", json!({"encryption": {"keyClass": "vault"}})).await;
    let disk = fixture.until::<Disk>("root", has_class("ns/vault")).await;
    let id = encryption(&disk).expect("encrypted").disk_key_id;
    fixture.system.set_vault_problem(VAULT, Some(VaultProblem::Unreachable));
    // The host has looked again meanwhile, and keeps the key that it has.
    tokio::time::sleep(Duration::from_secs(1300)).await;
    fixture.until::<Disk>("root", has_class("ns/vault")).await;
    assert!(fixture.system.unlocked(&id, "v-encrypted").is_some());
    // A host forgets the keys with its agent.
    fixture.crash_agent().await;
    fixture.system.keep_keys(&BTreeSet::new());
    fixture.start_agent();
    fixture.until::<Disk>("root", |disk| synced(disk) == "VaultUnreachable").await;
    fixture.running_vm().await;
    fixture.change::<VM>("web", json!({"restartToken": "again", "stop": {"mode": "Hard"}})).await;
    fixture.until::<VM>("web", |vm| vm_reason(vm) == "WaitingForDisk").await;
    fixture.system.set_vault_problem(VAULT, None);
    fixture.running_vm().await;
    fixture.until::<Disk>("root", has_class("ns/vault")).await;
    // What opens the Vault is taken away, and the host forgets the key.
    set_entry(&fixture, "login", "secretID", "another").await;
    fixture.until::<Disk>("root", |disk| synced(disk) == "VaultAccessDenied").await;
    assert!(fixture.system.unlocked(&id, "v-encrypted").is_none());
    fixture.running_vm().await;
    set_entry(&fixture, "login", "secretID", TOKEN).await;
    fixture.until::<Disk>("root", has_class("ns/vault")).await;
    fixture.assert_quiet().await;
}

/// Declares a disk that cannot be made.
async fn refused(fixture: &Fixture, name: &str, spec: Value) {
    fixture.make::<Disk>(name, spec, Some(disk_bound(&format!("v-{name}")))).await;
    let ready = |disk: &Disk| disk.status.as_ref().map(|s| reason_of(&s.conditions, "Ready"));
    fixture.until::<Disk>(name, |disk| ready(disk).as_deref() == Some("InvalidSpec")).await;
}

#[tokio::test(start_paused = true)]
async fn a_copy_is_encrypted_as_its_source_is_and_says_so_otherwise() {
    let fixture = running().await;
    let source = fixture.until::<Disk>("root", has_class("ns/default")).await;
    refused(&fixture, "plain", json!({"source": {"disk": "root"}})).await;
    refused(&fixture, "more", json!({"source": {"disk": "data"}, "encryption": {}})).await;
    let spec = json!({"source": {"disk": "root"}, "encryption": {}});
    fixture.make::<Disk>("copy", spec, Some(disk_bound("v-copy"))).await;
    let copy = fixture.until::<Disk>("copy", has_class("ns/default")).await;
    let id = |disk: &Disk| encryption(disk).map(|found| found.disk_key_id);
    assert_eq!(id(&copy), id(&source));
}
