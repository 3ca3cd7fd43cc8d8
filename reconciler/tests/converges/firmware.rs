//! The firmware variables of a VM whose former host is lost: they come from the copy in the shared pool of its boot disk.

use berth_api::{VMState, condition};
use berth_host::Machines as _;
use serde_json::{Value, json};

use crate::faults::Fault;
use crate::rig::{self, Rig, converges};
use crate::{until_host, web_runs};

fn sealed(power: &str) -> Value {
    json!({"class": "small", "power": power, "disks": [{"name": "web-root", "boot": true}], "networkInterfaces": [],
        "stop": {"mode": "Hard"}})
}

async fn must_stop(rig: &Rig) {
    rig.until_vm("web", "is stopped and ready", |vm| {
        rig::is_ready(vm) && rig::state(vm) == Some(VMState::Stopped)
    })
    .await;
}

/// Makes a VM with a boot disk in a shared pool of this type, which has run and is off. Returns its instance.
async fn instance_with_a_copy(rig: &Rig, pool_type: &str) -> String {
    rig.system.set_pool_folder("site", None);
    rig.apply_pool("site", json!({"type": pool_type})).await;
    rig.apply("VMClass", "small", json!({"cpus": 1, "memory": "512Mi", "firmware": "UEFI"})).await;
    rig.apply("Disk", "web-root", json!({"size": "4Gi", "pool": "site"})).await;
    rig.apply("VM", "web", sealed("Running")).await;
    web_runs(rig).await;
    let instance = rig.system.hypervisor().instances().remove(0);
    rig.apply("VM", "web", sealed("Stopped")).await;
    must_stop(rig).await;
    until_host("they are copied", || !rig.system.firmware_copies_now().is_empty()).await;
    instance
}

/// The host is lost, whose copy is in a shared pool of this type.
async fn starts_with_the_copy(rig: &Rig, pool_type: &str) {
    let instance = instance_with_a_copy(rig, pool_type).await;
    let before = rig.system.firmware_now(&instance).expect("it has variables");
    // As on its next host.
    rig.system.lose_firmware();
    rig.strike_from_here();
    rig.patch_status("VM", "web", json!({"formerHost": "lost"})).await;
    rig.until_vm("web", "has its firmware state", |vm| vm.firmware_state_on().is_none()).await;
    assert_eq!(rig.system.firmware_now(&instance).as_ref(), Some(&before));
    must_stop(rig).await;
    rig.apply("VM", "web", sealed("Running")).await;
    web_runs(rig).await;
    assert_eq!(rig.system.firmware_now(&instance), Some(before));
    rig.must_settle().await;
    rig.delete("VM", "web").await;
    rig.until_gone("VM", "web").await;
    assert!(rig.system.firmware_copies_now().is_empty(), "the copy goes with the VM");
}

#[test]
fn a_vm_of_a_lost_host_starts_with_the_firmware_state_that_was_copied_beside_its_boot_disk() {
    converges(&[Fault::Error, Fault::LostAnswer, Fault::CrashAfter], async |rig| {
        starts_with_the_copy(rig, "Shared").await;
    });
}

#[test]
fn a_vm_of_a_lost_host_starts_with_the_copy_of_its_firmware_state_in_ceph() {
    converges(&[Fault::CrashAfter], async |rig| starts_with_the_copy(rig, "RBD").await);
}

#[test]
fn the_copy_of_a_vm_that_is_deleted_after_its_host_was_lost_is_removed_by_another_host() {
    converges(&[Fault::Error, Fault::LostAnswer, Fault::CrashAfter], async |rig| {
        let instance = instance_with_a_copy(rig, "Shared").await;
        // As if another host had it.
        rig.system.remove_instance(&instance).await.expect("it is off");
        let elsewhere = json!({"binding": {"host": "lost", "epoch": 9}, "admittedEpoch": 9});
        rig.patch_status("VM", "web", elsewhere).await;
        rig.make_lost_host("lost").await;
        rig.until_vm("web", "is lost with its host", |vm| {
            let conditions = vm.status.as_ref().map(|status| status.conditions.as_slice());
            let stalled = condition::find(conditions.unwrap_or_default(), "Stalled");
            stalled.is_some_and(|stalled| stalled.reason == "HostFenced")
        })
        .await;
        assert_eq!(rig.system.firmware_copies_now().len(), 1, "it is kept as long as its VM exists");
        rig.strike_from_here();
        rig.delete("VM", "web").await;
        rig.until_gone("VM", "web").await;
        assert!(rig.system.firmware_copies_now().is_empty(), "it is removed before its VM is gone");
    });
}

#[test]
fn a_vm_without_firmware_state_is_deleted_while_the_shared_pool_of_its_boot_disk_is_away() {
    converges(&[Fault::Error], async |rig| {
        rig.system.set_pool_folder("site", None);
        rig.apply_pool("site", json!({"type": "Shared"})).await;
        rig.apply("VMClass", "small", json!({"cpus": 1, "memory": "512Mi", "firmware": "BIOS"})).await;
        rig.apply("Disk", "web-root", json!({"size": "4Gi", "pool": "site"})).await;
        rig.apply("VM", "web", sealed("Running")).await;
        web_runs(rig).await;
        rig.strike_from_here();
        rig.system.set_pool_folder("site", Some("its file system is not mounted"));
        rig.delete("VM", "web").await;
        rig.until_gone("VM", "web").await;
        assert!(rig.system.firmware_copies_now().is_empty());
    });
}
