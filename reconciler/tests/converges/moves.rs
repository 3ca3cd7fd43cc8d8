//! A disk that moves to another pool of its host.

use std::path::PathBuf;
use std::time::Duration;

use berth_api::{Disk, DiskSnapshot, ResourceName, VMState, condition};
use serde_json::{Value, json};

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

/// The disk in the other pool.
fn moved() -> Value {
    json!({"image": "debian", "size": "4Gi", "pool": "slow"})
}

/// The file of the disk in the machine that has it open.
fn open_file(rig: &Rig) -> Option<PathBuf> {
    let hypervisor = rig.system.hypervisor();
    let view = hypervisor.instances().first().and_then(|web| hypervisor.view(web))?;
    let volume = rig.system.volumes_now().into_keys().next()?;
    view.disks.get(&volume).map(|(file, _)| file.clone())
}

fn is_moving(disk: &Disk) -> bool {
    let conditions = disk.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    condition::find(conditions, "Ready").is_some_and(|ready| ready.reason == "Moving")
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
        // It would move under a guest that runs.
        rig.apply("VM", "web", web("Paused")).await;
        rig.until_vm("web", "is paused", |vm| rig::state(vm) == Some(VMState::Paused)).await;
        rig.apply("Disk", "web-root", moved()).await;
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

#[test]
fn the_snapshots_of_a_disk_move_with_it_and_it_is_restored_from_one_in_the_other_pool() {
    converges(&[Fault::Error, Fault::LostAnswer, Fault::CrashAfter], async |rig| {
        rig.apply_pool("slow", json!({})).await;
        web_is_declared(rig).await;
        web_runs(rig).await;
        for name in ["before", "unused"] {
            rig.apply("DiskSnapshot", name, json!({"disk": "web-root"})).await;
            rig.until(name, "is taken", rig::is_taken).await;
        }
        rig.apply("VM", "web", web("Stopped")).await;
        rig.until_vm("web", "is stopped", |vm| rig::state(vm) == Some(VMState::Stopped)).await;
        rig.strike_from_here();
        rig.apply("Disk", "web-root", moved()).await;
        check_moved(rig).await;
        for name in ["before", "unused"] {
            rig.until::<DiskSnapshot>(name, "is in the other pool", |snapshot| {
                let pool = snapshot.status.as_ref().and_then(|status| status.pool.as_ref());
                rig::is_taken(snapshot) && pool.map(ResourceName::as_str) == Some("slow")
            })
            .await;
        }
        rig.delete("DiskSnapshot", "unused").await;
        rig.until_gone("DiskSnapshot", "unused").await;
        let mut restored = moved();
        restored["restore"] = json!({"snapshot": "before"});
        rig.apply("Disk", "web-root", restored).await;
        rig.until::<Disk>("web-root", "is restored", |disk| {
            let done = disk.status.as_ref().and_then(|status| status.restored_from.as_ref());
            rig::is_disk_ready(disk) && done.is_some_and(|done| done.snapshot.as_str() == "before")
        })
        .await;
        rig.apply("VM", "web", web("Running")).await;
        web_runs(rig).await;
        rig.must_settle().await;
    });
}

fn is_out_of_reach(snapshot: &DiskSnapshot) -> bool {
    let conditions = snapshot.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    condition::find(conditions, "Ready").is_some_and(|ready| ready.reason == "PoolAway")
}

#[test]
fn a_snapshot_whose_status_names_its_former_pool_is_not_let_go_while_its_new_one_is_away() {
    converges(&[Fault::Error, Fault::LostAnswer, Fault::CrashAfter], async |rig| {
        rig.system.set_pool_folder("slow", None);
        rig.apply_pool("slow", json!({})).await;
        web_is_declared(rig).await;
        web_runs(rig).await;
        rig.apply("DiskSnapshot", "before", json!({"disk": "web-root"})).await;
        rig.until("before", "is taken", rig::is_taken).await;
        rig.apply("VM", "web", web("Stopped")).await;
        rig.until_vm("web", "is stopped", |vm| rig::state(vm) == Some(VMState::Stopped)).await;
        rig.apply("Disk", "web-root", moved()).await;
        check_moved(rig).await;
        rig.strike_from_here();
        rig.system.set_pool_folder("slow", Some("its file system is not mounted"));
        // As if the agent had ended before it wrote the new one.
        rig.patch_status("DiskSnapshot", "before", json!({"pool": "default"})).await;
        rig.delete("DiskSnapshot", "before").await;
        tokio::time::sleep(Duration::from_secs(120)).await;
        assert!(rig.system.snapshots_now().iter().any(|facts| facts.owner.is_some()), "it stays");
        rig.until("before", "is out of reach", is_out_of_reach).await;
        rig.system.set_pool_folder("slow", None);
        rig.until_gone("DiskSnapshot", "before").await;
        assert!(rig.system.snapshots_now().iter().all(|facts| facts.owner.is_none()), "it is deleted");
        rig.must_settle().await;
    });
}

#[test]
fn a_disk_moves_to_another_pool_under_its_guest_which_runs_on_in_the_same_qemu() {
    converges(&[Fault::Error, Fault::LostAnswer, Fault::CrashAfter], async |rig| {
        rig.apply_pool("slow", json!({})).await;
        web_is_declared(rig).await;
        web_runs(rig).await;
        let (pid, volumes) = (rig.pid("web").await, rig.system.volumes_now());
        let before = open_file(rig).expect("it has a disk");
        rig.strike_from_here();
        rig.apply("Disk", "web-root", moved()).await;
        check_moved(rig).await;
        rig.until::<Disk>("web-root", "is ready", rig::is_disk_ready).await;
        web_runs(rig).await;
        let after = open_file(rig).expect("it has a disk");
        let volume = rig.system.volume_facts_now().into_iter().next().expect("a volume");
        assert!(after == volume.path && after != before, "{}", after.display());
        assert_eq!((rig.pid("web").await, rig.system.volumes_now()), (pid, volumes));
        rig.must_settle().await;
    });
}

#[test]
fn a_move_under_a_guest_that_is_set_back_leaves_the_disk_where_it_was() {
    converges(&[Fault::Error, Fault::LostAnswer, Fault::CrashAfter], async |rig| {
        rig.apply_pool("slow", json!({})).await;
        web_is_declared(rig).await;
        web_runs(rig).await;
        let (pid, before) = (rig.pid("web").await, open_file(rig));
        let hypervisor = rig.system.hypervisor();
        let web = hypervisor.instances().remove(0);
        hypervisor.set_behaviour(&web, |behaviour| behaviour.mirrors_stall = true);
        rig.strike_from_here();
        rig.apply("Disk", "web-root", moved()).await;
        rig.until::<Disk>("web-root", "is being moved", is_moving).await;
        rig.apply("Disk", "web-root", json!({"image": "debian", "size": "4Gi"})).await;
        rig.until::<Disk>("web-root", "is ready", rig::is_disk_ready).await;
        assert_eq!((rig.pid("web").await, open_file(rig)), (pid, before));
        rig.must_settle().await;
    });
}
