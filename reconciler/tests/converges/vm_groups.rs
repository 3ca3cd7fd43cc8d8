//! VMs that are started and stopped by their group.

use berth_api::{ConditionType, VM, VMGroup, VMState, condition};
use serde_json::{Value, json};

use crate::faults::Fault;
use crate::rig::{self, Rig, converges};
use crate::{all_is_deleted, prerequisites_are_declared};

fn member(disk: &str) -> Value {
    json!({"class": "small", "vmGroup": "app", "disks": [{"name": disk, "boot": true}],
        "stop": {"mode": "Graceful", "gracePeriodSeconds": 5}})
}

async fn group_is(rig: &Rig, power: &str) {
    let order =
        json!([{"name": "data", "vms": ["db"]}, {"name": "front", "vms": ["web"], "powerOnDelaySeconds": 5}]);
    rig.apply("VMGroup", "app", json!({"power": power, "bootOrder": order})).await;
}

/// Waits until the group has come to its power, with so many VMs that run.
async fn until_done(rig: &Rig, running: i64) {
    let is_done = |group: &VMGroup| {
        let status = group.status.clone().unwrap_or_default();
        let is_current = Some(status.observed_generation) == group.metadata.generation;
        let is_ready = condition::is_true(&status.conditions, ConditionType::Ready);
        is_current && is_ready && status.running == running && status.total == 2
    };
    rig.until("app", "has come to its power", is_done).await;
}

fn is_held(vm: &VM) -> bool {
    let status = vm.status.clone().unwrap_or_default();
    condition::find(&status.conditions, "Ready").is_some_and(|ready| ready.reason == "WaitingForVM")
}

#[test]
fn members_start_in_the_order_of_their_group_and_stop_with_it() {
    converges(&[Fault::CrashAfter], async |rig| {
        prerequisites_are_declared(rig).await;
        rig.apply("Disk", "db-root", json!({"image": "debian", "size": "4Gi"})).await;
        group_is(rig, "Running").await;
        rig.apply("VM", "web", member("web-root")).await;
        rig.until_vm("web", "waits for the one before it", is_held).await;
        assert!(rig.system.hypervisor().instances().is_empty(), "it is not started");
        rig.strike_from_here();
        rig.apply("VM", "db", member("db-root")).await;
        until_done(rig, 2).await;
        group_is(rig, "Stopped").await;
        until_done(rig, 0).await;
        for name in ["web", "db"] {
            rig.until_vm(name, "is stopped", |vm| rig::state(vm) == Some(VMState::Stopped)).await;
        }
        assert!(rig.system.hypervisor().instances().is_empty(), "no QEMU is left");
        group_is(rig, "Running").await;
        until_done(rig, 2).await;
        rig.must_settle().await;
        for (kind, name) in [("VM", "web"), ("VM", "db"), ("Disk", "db-root"), ("VMGroup", "app")] {
            rig.delete(kind, name).await;
        }
        rig.until_gone("VMGroup", "app").await;
        all_is_deleted(rig).await;
    });
}
