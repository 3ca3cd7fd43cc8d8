//! A disk that moves to another pool of its host.

use berth_api::{Disk, ResourceName, VMState, condition};
use serde_json::json;

use crate::faults::Fault;
use crate::rig::{self, Rig, converges};
use crate::{web, web_is_declared, web_runs};

fn pool(disk: &Disk) -> Option<&str> {
    disk.status.as_ref().and_then(|status| status.pool.as_ref()).map(ResourceName::as_str)
}

fn waits_for_its_vm(disk: &Disk) -> bool {
    let conditions = disk.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    condition::find(conditions, "Ready").is_some_and(|ready| ready.reason == "MoveWaits")
}

async fn check_moved(rig: &Rig) {
    rig.until::<Disk>("web-root", "is in the other pool", |disk| pool(disk) == Some("slow")).await;
}

#[test]
fn a_disk_moves_to_another_pool_once_its_vm_is_stopped_and_the_vm_starts_with_it() {
    converges(&[Fault::Error, Fault::LostAnswer, Fault::CrashAfter], async |rig| {
        rig.apply_pool("slow", json!({})).await;
        web_is_declared(rig).await;
        web_runs(rig).await;
        let volumes = rig.system.volumes_now();
        rig.strike_from_here();
        rig.apply("Disk", "web-root", json!({"image": "debian", "size": "4Gi", "pool": "slow"})).await;
        rig.until::<Disk>("web-root", "waits for its VM", |disk| {
            pool(disk) == Some("default") && waits_for_its_vm(disk)
        })
        .await;
        rig.apply("VM", "web", web("Stopped")).await;
        rig.until_vm("web", "is stopped", |vm| rig::state(vm) == Some(VMState::Stopped)).await;
        check_moved(rig).await;
        assert_eq!(rig.system.volumes_now(), volumes, "the same volume, nothing made twice");
        rig.apply("VM", "web", web("Running")).await;
        web_runs(rig).await;
        rig.must_settle().await;
    });
}
