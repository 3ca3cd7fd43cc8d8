//! The core test: whatever fails or crashes on the way, the declared state is reached.
//!
//! The embedded control plane, the controllers and an agent on a fake host with a QEMU that speaks real QMP run in
//! one runtime with paused time. A scenario is run clean first, which counts its external calls (requests to the
//! control plane and calls to the host); then once for each call and each kind of fault at that call. Unless
//! `BERTH_TEST_EVERY_CALL` is set, of equal calls for the first only, and with either a lost answer or a crash after the
//! call, in turn. Each time the declared state must be reached, a further reconcile must write nothing, and nothing may
//! leak.

#[path = "converges/backups.rs"]
mod backups;
#[path = "shared/changes.rs"]
mod changes;
#[path = "converges/disks.rs"]
mod disks;
#[path = "converges/effects.rs"]
mod effects;
#[path = "converges/faults.rs"]
mod faults;
#[path = "converges/firmware.rs"]
mod firmware;
#[path = "converges/hardware.rs"]
mod hardware;
#[path = "converges/images.rs"]
mod images;
#[path = "shared/installed.rs"]
mod installed;
#[path = "converges/interfaces.rs"]
mod interfaces;
#[path = "converges/moves.rs"]
mod moves;
#[path = "converges/partitions.rs"]
mod partitions;
#[path = "converges/power.rs"]
mod power;
#[path = "converges/recovery.rs"]
mod recovery;
#[path = "converges/rig.rs"]
mod rig;
#[path = "shared/setup.rs"]
mod setup;
#[path = "converges/snapshot_schedules.rs"]
mod snapshot_schedules;
#[path = "converges/vm_groups.rs"]
mod vm_groups;
#[path = "converges/vm_snapshots.rs"]
mod vm_snapshots;

use std::time::Duration;

use berth_api::{Disk, Power, VMState};
use faults::Fault;
use rig::{Rig, converges};
use serde_json::json;

/// A running VM with a root disk from an image and a public address.
async fn web_is_declared(rig: &Rig) {
    web_is_declared_with(rig, "Running").await;
}

async fn web_is_declared_with(rig: &Rig, power: &str) {
    prerequisites_are_declared(rig).await;
    rig.apply("PublicIP", "web", json!({})).await;
    rig.apply("VM", "web", web(power)).await;
}

async fn prerequisites_are_declared(rig: &Rig) {
    rig.apply("VMClass", "small", json!({"cpus": 1, "memory": "512Mi", "firmware": "BIOS"})).await;
    rig.apply("Image", "debian", json!({"source": {"url": rig::IMAGE_URL, "sha256": rig::IMAGE_SHA256}}))
        .await;
    rig.apply("Disk", "web-root", json!({"image": "debian", "size": "4Gi"})).await;
}

fn web(power: &str) -> serde_json::Value {
    json!({
        "class": "small", "power": power,
        "disks": [{"name": "web-root", "boot": true}],
        "networkInterfaces": [{"name": "nic0", "publicIP": "web"}],
        "stop": {"mode": "Graceful", "gracePeriodSeconds": 5},
    })
}

async fn web_runs(rig: &Rig) {
    rig.until_vm("web", "runs and is ready", |vm| {
        rig::is_ready(vm) && rig::state(vm) == Some(VMState::Running)
    })
    .await;
    assert_eq!(rig.system.hypervisor().instances().len(), 1, "one VM, one QEMU");
}

async fn all_is_deleted(rig: &Rig) {
    for (kind, name) in [
        ("HotswapDiskAttachment", "web-data"),
        ("VM", "web"),
        ("Disk", "web-root"),
        ("Disk", "web-data"),
        ("PublicIP", "web"),
        ("Image", "debian"),
        ("VMClass", "small"),
    ] {
        rig.delete(kind, name).await;
    }
    rig.until_nothing_is_left().await;
}

/// The longest scenario; one test per fault, so that they run in parallel.
fn a_vm_is_created_and_deleted(fault: Fault) {
    converges(&[fault], async |rig| {
        web_is_declared(rig).await;
        web_runs(rig).await;
        rig.must_settle().await;
        all_is_deleted(rig).await;
    });
}

#[test]
fn a_vm_is_created_and_deleted_whatever_call_fails() {
    a_vm_is_created_and_deleted(Fault::Error);
}

#[test]
fn a_vm_is_created_and_deleted_whatever_answer_is_lost() {
    a_vm_is_created_and_deleted(Fault::LostAnswer);
}

#[test]
fn a_vm_is_created_and_deleted_wherever_berth_crashes_after_an_effect() {
    a_vm_is_created_and_deleted(Fault::CrashAfter);
}

#[test]
fn a_vm_is_created_and_deleted_through_a_partition() {
    a_vm_is_created_and_deleted(Fault::Partition);
}

#[test]
fn a_vm_is_created_and_deleted_on_stale_knowledge() {
    a_vm_is_created_and_deleted(Fault::StaleWatches);
}

#[test]
fn a_vm_is_created_and_deleted_while_the_disk_is_full() {
    a_vm_is_created_and_deleted(Fault::FullDisk);
}

async fn until_host(what: &str, holds: impl Fn() -> bool) {
    let begun = tokio::time::Instant::now();
    while !holds() {
        assert!(begun.elapsed().as_secs() < 900, "not reached: {what}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

fn has_file(disk: &Disk) -> bool {
    rig::is_disk_ready(disk) && disk.status.as_ref().is_some_and(|s| s.size.as_deref() == Some("4Gi"))
}
