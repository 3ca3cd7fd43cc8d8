//! Disks: attached, out of reach, taken over from a file, copied and restored, and the snapshots of one disk.

use std::time::Duration;

use berth_api::{AttachmentState, Disk, HotswapDiskAttachment, VM, VMState};
use berth_host::BlockDeviceFacts;
use serde_json::{Value, json};

use crate::faults::Fault;
use crate::rig::{self, Rig, converges};
use crate::{all_is_deleted, has_file, until_host, web, web_is_declared, web_runs};

#[test]
fn a_disk_is_attached_grown_and_detached_while_the_vm_runs() {
    converges(&[Fault::Error, Fault::LostAnswer, Fault::CrashAfter], async |rig| {
        web_is_declared(rig).await;
        web_runs(rig).await;
        let pid = rig.pid("web").await;
        rig.strike_from_here();
        let disk =
            |size: &str, iops: u64| json!({"size": size, "provisioning": "Thick", "limits": {"iops": iops}});
        let iops = || {
            let hypervisor = rig.system.hypervisor();
            let web = hypervisor.instances().first().and_then(|web| hypervisor.view(web));
            web.map(|web| web.iops.into_values().collect::<Vec<_>>()).unwrap_or_default()
        };
        let reserved = || {
            let volumes = rig.system.volume_facts_now();
            volumes.iter().filter_map(|volume| volume.reserved).collect::<Vec<_>>()
        };
        rig.apply("Disk", "web-data", disk("1Gi", 100)).await;
        rig.apply("HotswapDiskAttachment", "web-data", json!({"vm": "web", "disk": "web-data"})).await;
        let attached = |a: &HotswapDiskAttachment| {
            a.status
                .as_ref()
                .is_some_and(|s| s.state == Some(AttachmentState::Attached) && s.serial.is_some())
        };
        rig.until("web-data", "is attached", attached).await;
        let limited = |d: &Disk| rig::is_disk_ready(d) && iops() == [100] && reserved() == [1 << 30];
        rig.until("web-data", "has its ceiling", limited).await;
        rig.apply("Disk", "web-data", disk("2Gi", 200)).await;
        let grown = |d: &Disk| d.status.as_ref().and_then(|s| s.size.clone()).as_deref() == Some("2Gi");
        let grown =
            |d: &Disk| grown(d) && rig::is_disk_ready(d) && iops() == [200] && reserved() == [2 << 30];
        rig.until("web-data", "has grown", grown).await;
        rig.delete("HotswapDiskAttachment", "web-data").await;
        rig.until_gone("HotswapDiskAttachment", "web-data").await;
        rig.until("web-data", "is free", |d: &Disk| d.status.as_ref().is_some_and(|s| s.used_by.is_empty()))
            .await;
        assert_eq!(rig.pid("web").await, pid, "it is the same QEMU all along");
        rig.must_settle().await;
    });
}

#[test]
fn a_formatted_disk_is_made_once_attached_and_deleted() {
    converges(&[Fault::Error, Fault::LostAnswer, Fault::CrashAfter], async |rig| {
        web_is_declared(rig).await;
        web_runs(rig).await;
        rig.strike_from_here();
        let formatted = json!({"size": "1Gi", "filesystem": {"type": "ext4", "label": "data"}});
        rig.apply("Disk", "web-data", formatted).await;
        rig.apply("HotswapDiskAttachment", "web-data", json!({"vm": "web", "disk": "web-data"})).await;
        let attached = |a: &HotswapDiskAttachment| {
            a.status.as_ref().is_some_and(|status| status.state == Some(AttachmentState::Attached))
        };
        rig.until("web-data", "is attached", attached).await;
        rig.until("web-data", "is ready", rig::is_disk_ready).await;
        rig.must_settle().await;
        all_is_deleted(rig).await;
    });
}

fn is_away(disk: &Disk) -> bool {
    let conditions = disk.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    berth_api::condition::find(conditions, "Ready").is_some_and(|ready| ready.reason == "PoolAway")
}

#[test]
fn a_disk_of_a_pool_that_is_away_is_out_of_reach_and_is_deleted_once_the_pool_is_back() {
    converges(&[Fault::Error, Fault::LostAnswer, Fault::CrashAfter], async |rig| {
        rig.system.set_pool_folder("default", None);
        web_is_declared(rig).await;
        web_runs(rig).await;
        rig.strike_from_here();
        rig.system.set_pool_folder("default", Some("its file system is not mounted"));
        rig.until("web-root", "is out of reach", is_away).await;
        rig.delete("VM", "web").await;
        rig.until_gone("VM", "web").await;
        rig.delete("Disk", "web-root").await;
        tokio::time::sleep(Duration::from_secs(120)).await;
        assert_eq!(rig.system.volumes_now().len(), 1, "the file stays");
        rig.until("web-root", "is still out of reach", is_away).await;
        rig.system.set_pool_folder("default", None);
        rig.until_gone("Disk", "web-root").await;
        for (kind, name) in [("PublicIP", "web"), ("Image", "debian"), ("VMClass", "small")] {
            rig.delete(kind, name).await;
        }
        rig.until_nothing_is_left().await;
    });
}

/// A snapshot of the running VM's disk, a copy of it, and a copy of the disk itself.
async fn snapshot_and_copies_are_declared(rig: &Rig) {
    rig.apply("DiskSnapshot", "before", json!({"disk": "web-root"})).await;
    rig.apply("Disk", "copy", json!({"source": {"snapshot": "before"}})).await;
    rig.apply("Disk", "twin", json!({"source": {"disk": "web-root"}})).await;
}

async fn snapshot_and_copies_are_there(rig: &Rig) {
    rig.until("before", "is taken", rig::is_taken).await;
    for copy in ["copy", "twin"] {
        rig.until(copy, "has a file", has_file).await;
    }
}

#[test]
fn a_file_of_the_host_becomes_the_disk_of_a_vm() {
    converges(&[Fault::Error, Fault::LostAnswer, Fault::CrashAfter, Fault::FullDisk], async |rig| {
        a_vm_has_a_disk_of_a_file(rig, json!({"file": "/srv/taken.qcow2"})).await;
    });
}

#[test]
fn the_data_of_a_raw_file_of_the_host_is_that_of_the_disk_of_a_vm() {
    converges(&[Fault::Error, Fault::LostAnswer, Fault::CrashAfter, Fault::FullDisk], async |rig| {
        a_vm_has_a_disk_of_a_file(rig, json!({"file": "/srv/taken.img", "format": "raw"})).await;
    });
}

/// The file appears after the VM and its disk are declared, which are deleted in the end.
async fn a_vm_has_a_disk_of_a_file(rig: &Rig, source: Value) {
    let file = source["file"].as_str().expect("a path").to_owned();
    rig.apply("VMClass", "small", json!({"cpus": 1, "memory": "512Mi", "firmware": "BIOS"})).await;
    rig.apply("Disk", "taken", json!({"source": source})).await;
    let vm = json!({"class": "small", "disks": [{"name": "taken", "boot": true}], "networkInterfaces": []});
    rig.apply("VM", "old", vm).await;
    rig.until("taken", "waits for its file", |disk: &Disk| {
        berth_api::condition::find(&disk.status.clone().unwrap_or_default().conditions, "Ready")
            .is_some_and(|ready| ready.reason == "WaitingForFile")
    })
    .await;
    rig.strike_from_here();
    rig.system.put_file(&file, 4 << 30);
    rig.until("taken", "has a file", has_file).await;
    rig.until_vm("old", "runs", |vm| rig::state(vm) == Some(VMState::Running)).await;
    rig.must_settle().await;
    for (kind, name) in [("VM", "old"), ("Disk", "taken"), ("VMClass", "small")] {
        rig.delete(kind, name).await;
    }
    rig.until_nothing_is_left().await;
}

#[test]
fn a_block_device_of_the_host_is_one_disk_at_a_time_and_is_given_up() {
    converges(&[Fault::Error, Fault::LostAnswer, Fault::CrashAfter], async |rig| {
        let nvme = BlockDeviceFacts {
            name: "nvme".to_owned(),
            path: "/dev/nvme0n1".into(),
            size: 8 << 30,
            ..BlockDeviceFacts::default()
        };
        rig.system.change_facts(|facts| facts.block_devices = vec![nvme]);
        rig.apply("VMClass", "small", json!({"cpus": 1, "memory": "512Mi", "firmware": "BIOS"})).await;
        rig.strike_from_here();
        let declare = async |name: &str| {
            rig.apply("Disk", name, json!({"source": {"device": "nvme"}})).await;
            let disks = json!([{"name": name, "boot": true}]);
            let vm = json!({"class": "small", "disks": disks, "networkInterfaces": []});
            rig.apply("VM", name, vm).await;
        };
        let runs = |vm: &VM| rig::state(vm) == Some(VMState::Running);
        declare("first").await;
        rig.until_vm("first", "runs", runs).await;
        let has_its_size =
            |disk: &Disk| disk.status.as_ref().and_then(|status| status.size.as_deref()) == Some("8Gi");
        rig.until("first", "has the size of the device", has_its_size).await;
        declare("second").await;
        rig.until_vm("second", "waits for the device", |vm| {
            let conditions = vm.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default();
            berth_api::condition::find(&conditions, "Ready").is_some_and(|ready| {
                ready.reason == "Unschedulable" && ready.message.contains("block device nvme")
            })
        })
        .await;
        for kind in ["VM", "Disk"] {
            rig.delete(kind, "first").await;
            rig.until_gone(kind, "first").await;
        }
        rig.until_vm("second", "runs", runs).await;
        rig.must_settle().await;
        for (kind, name) in [("VM", "second"), ("Disk", "second"), ("VMClass", "small")] {
            rig.delete(kind, name).await;
        }
        rig.until_nothing_is_left().await;
        rig.system.change_facts(|facts| assert_eq!(facts.block_devices[0].held_by, None));
    });
}

#[test]
fn a_disk_of_a_running_vm_has_a_snapshot_taken_and_is_copied() {
    converges(&[Fault::Error, Fault::LostAnswer, Fault::CrashAfter, Fault::FullDisk], async |rig| {
        web_is_declared(rig).await;
        web_runs(rig).await;
        let pid = rig.pid("web").await;
        rig.strike_from_here();
        snapshot_and_copies_are_declared(rig).await;
        snapshot_and_copies_are_there(rig).await;
        let hypervisor = rig.system.hypervisor();
        let view = hypervisor.view(&hypervisor.instances()[0]).expect("it runs");
        assert!(!view.is_frozen, "the guest goes on");
        assert_eq!(rig.pid("web").await, pid, "in the same QEMU");
        let taken = rig.system.snapshots_now();
        assert_eq!(taken.iter().filter(|snapshot| snapshot.taken.is_some()).count(), 2, "{taken:?}");
        assert_eq!(rig.system.volumes_now().len(), 3, "the disk and its copies");
    });
}

#[test]
fn a_disk_of_a_running_vm_and_a_snapshot_are_copied_to_another_pool() {
    converges(&[Fault::Error, Fault::LostAnswer, Fault::CrashAfter], async |rig| {
        rig.apply_pool("slow", json!({})).await;
        web_is_declared(rig).await;
        web_runs(rig).await;
        let pid = rig.pid("web").await;
        rig.strike_from_here();
        rig.apply("DiskSnapshot", "before", json!({"disk": "web-root"})).await;
        rig.apply("Disk", "copy", json!({"source": {"snapshot": "before"}, "pool": "slow"})).await;
        rig.apply("Disk", "twin", json!({"source": {"disk": "web-root"}, "pool": "slow"})).await;
        snapshot_and_copies_are_there(rig).await;
        assert_eq!(rig.pid("web").await, pid, "in the same QEMU");
        let volumes = rig.system.volume_facts_now();
        let copies: Vec<_> = volumes.iter().filter(|volume| volume.pool == "slow").collect();
        assert_eq!((volumes.len(), copies.len()), (3, 2), "{volumes:?}");
        assert!(copies.iter().all(|copy| copy.backing.is_none()), "they depend on nothing: {copies:?}");
    });
}

#[test]
fn a_snapshot_and_its_copies_are_deleted_and_the_file_goes_with_the_last_that_is_based_on_it() {
    converges(&[Fault::CrashAfter], async |rig| {
        web_is_declared(rig).await;
        web_runs(rig).await;
        snapshot_and_copies_are_declared(rig).await;
        snapshot_and_copies_are_there(rig).await;
        rig.apply("VM", "web", web("Stopped")).await;
        rig.until_vm("web", "is stopped", |vm| rig::state(vm) == Some(VMState::Stopped)).await;
        rig.apply("VM", "web", web("Running")).await;
        web_runs(rig).await;
        rig.strike_from_here();
        rig.delete("DiskSnapshot", "before").await;
        rig.until_gone("DiskSnapshot", "before").await;
        rig.delete("Disk", "copy").await;
        rig.until_gone("Disk", "copy").await;
        assert_eq!(rig.system.volumes_now().len(), 2, "the disk and its copy");
        rig.delete("Disk", "twin").await;
        all_is_deleted(rig).await;
    });
}

#[test]
fn the_file_of_a_deleted_snapshot_is_merged_and_a_running_vm_closes_it() {
    converges(&[Fault::Error, Fault::LostAnswer, Fault::CrashAfter], async |rig| {
        web_is_declared(rig).await;
        web_runs(rig).await;
        let pid = rig.pid("web").await;
        for name in ["first", "second"] {
            rig.apply("DiskSnapshot", name, json!({"disk": "web-root"})).await;
            rig.until(name, "is taken", rig::is_taken).await;
        }
        let hypervisor = rig.system.hypervisor();
        let below = || {
            let view = hypervisor.view(&hypervisor.instances()[0]).expect("it runs");
            view.below.values().map(Vec::len).max()
        };
        assert_eq!(below(), Some(3), "two snapshots and the image");
        rig.strike_from_here();
        rig.delete("DiskSnapshot", "first").await;
        rig.until_gone("DiskSnapshot", "first").await;
        until_host("the machine has its file open no more", || below() == Some(2)).await;
        assert_eq!(rig.system.snapshots_now().len(), 1, "one file is left");
        assert_eq!(rig.pid("web").await, pid, "in the same QEMU");
        assert_eq!(rig.system.volumes_now().len(), 1);
    });
}

#[test]
fn a_snapshot_that_is_deleted_without_its_finalizer_leaves_nothing() {
    converges(&[], async |rig| {
        web_is_declared(rig).await;
        web_runs(rig).await;
        rig.apply("DiskSnapshot", "before", json!({"disk": "web-root"})).await;
        rig.until("before", "is taken", rig::is_taken).await;
        rig.delete_by_force("DiskSnapshot", "before").await;
        let unowned = || rig.system.snapshots_now().iter().all(|snapshot| snapshot.owner.is_none());
        until_host("the snapshot is its disk's only", unowned).await;
        rig.must_settle().await;
        all_is_deleted(rig).await;
    });
}

#[test]
fn a_snapshot_is_of_the_same_moment_when_its_status_was_lost_or_it_was_created_anew() {
    converges(&[], async |rig| {
        web_is_declared(rig).await;
        web_runs(rig).await;
        rig.apply("DiskSnapshot", "before", json!({"disk": "web-root"})).await;
        rig.until("before", "is taken", rig::is_taken).await;
        let moment = || {
            let found = rig.system.snapshots_now();
            found.into_iter().map(|snapshot| (snapshot.id, snapshot.taken)).collect::<Vec<_>>()
        };
        let before = moment();
        assert_eq!(before.len(), 1);
        rig.lose_every_status().await;
        web_runs(rig).await;
        rig.until("before", "is known again", rig::is_taken).await;
        assert_eq!(moment(), before);
        rig.make_everything_anew(true).await;
        web_runs(rig).await;
        rig.until("before", "is taken over", rig::is_taken).await;
        assert_eq!(moment(), before);
        rig.must_settle().await;
        rig.delete("DiskSnapshot", "before").await;
        all_is_deleted(rig).await;
    });
}

fn restore_of(disk: &Disk) -> Option<String> {
    let status = disk.status.as_ref()?;
    Some(status.restored_from.as_ref()?.snapshot.to_string())
}

fn is_restored(disk: &Disk) -> bool {
    rig::is_disk_ready(disk) && restore_of(disk).as_deref() == Some("before")
}

async fn restore_is_declared(rig: &Rig) {
    let restore = json!({"image": "debian", "size": "4Gi", "restore": {"snapshot": "before"}});
    rig.apply("Disk", "web-root", restore).await;
}

#[test]
fn a_disk_is_restored_in_place_while_its_vm_is_stopped() {
    converges(&[Fault::Error, Fault::LostAnswer, Fault::CrashAfter, Fault::FullDisk], async |rig| {
        web_is_declared(rig).await;
        web_runs(rig).await;
        rig.apply("DiskSnapshot", "before", json!({"disk": "web-root"})).await;
        rig.until("before", "is taken", rig::is_taken).await;
        rig.strike_from_here();
        restore_is_declared(rig).await;
        rig.apply("VM", "web", web("Stopped")).await;
        rig.until("web-root", "is restored", is_restored).await;
        rig.apply("VM", "web", web("Running")).await;
        web_runs(rig).await;
        let restores: Vec<usize> =
            rig.system.volume_facts_now().iter().map(|volume| volume.restores.len()).collect();
        assert_eq!(restores, [1], "one volume, restored once");
    });
}

#[test]
fn a_restore_is_not_done_again_when_its_status_was_lost_or_its_disk_was_created_anew() {
    converges(&[], async |rig| {
        web_is_declared(rig).await;
        web_runs(rig).await;
        rig.apply("DiskSnapshot", "before", json!({"disk": "web-root"})).await;
        rig.until("before", "is taken", rig::is_taken).await;
        rig.apply("VM", "web", web("Stopped")).await;
        restore_is_declared(rig).await;
        rig.until("web-root", "is restored", is_restored).await;
        let files =
            || rig.system.volume_facts_now().into_iter().map(|volume| volume.path).collect::<Vec<_>>();
        let restored = files();
        rig.lose_every_status().await;
        rig.until("web-root", "is known again", is_restored).await;
        rig.make_everything_anew(true).await;
        rig.until("web-root", "is taken over", is_restored).await;
        rig.apply("VM", "web", web("Running")).await;
        web_runs(rig).await;
        rig.must_settle().await;
        assert_eq!(files(), restored);
        rig.delete("DiskSnapshot", "before").await;
        all_is_deleted(rig).await;
    });
}
