//! Disks: created, grown, lost, shared, plugged, unplugged, deleted and restored.

#[path = "disks/deletion.rs"]
mod deletion;
#[path = "disks/images.rs"]
mod images;

use std::sync::Arc;
use std::time::Duration;

use berth_api::{Disk, DiskSnapshot, HotswapDiskAttachment, Image, VM, VMClass, VMState, condition};
use berth_qemu::machine::Bus;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;

use crate::fixture::{DATA, Fixture, INSTANCE, ROOT, bound, disk_bound, reason_of, vm_bound, vm_reason};
use crate::life::Failing;

fn disk_reason(disk: &Disk) -> String {
    disk.status.as_ref().map(|s| reason_of(&s.conditions, "Ready")).unwrap_or_default()
}

fn attachment_reason(attachment: &HotswapDiskAttachment) -> String {
    attachment.status.as_ref().map(|s| reason_of(&s.conditions, "Ready")).unwrap_or_default()
}

fn size(wanted: &'static str) -> impl Fn(&Disk) -> bool {
    move |disk| disk.status.as_ref().is_some_and(|s| s.size.as_deref() == Some(wanted))
}

async fn attached(fixture: &Fixture) {
    fixture.until::<HotswapDiskAttachment>("data", |a| attachment_reason(a) == "Attached").await;
}

pub(crate) async fn running() -> Fixture {
    let fixture = Fixture::start().await;
    fixture.furnish().await;
    fixture.make_vm(json!({})).await;
    fixture.running_vm().await;
    let up =
        |vm: &VM| vm.status.as_ref().is_some_and(|s| reason_of(&s.conditions, "GuestReady") == "GuestSeen");
    fixture.until::<VM>("web", up).await;
    fixture
}

#[tokio::test(start_paused = true)]
async fn a_disk_grows_while_nobody_uses_it_and_while_it_is_plugged_in() {
    let fixture = running().await;
    fixture.change::<Disk>("data", json!({"size": "2Gi"})).await;
    fixture.until::<Disk>("data", size("2Gi")).await;
    fixture.make_attachment().await;
    attached(&fixture).await;
    fixture.change::<Disk>("data", json!({"size": "3Gi"})).await;
    fixture.until::<Disk>("data", size("3Gi")).await;
    let view = fixture.system.hypervisor().view(INSTANCE).expect("it runs");
    assert_eq!(view.disks[DATA].1, 3 << 30);
    fixture.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn an_attachment_of_a_disk_that_could_not_be_plugged_in_goes_while_its_vm_runs() {
    let fixture = running().await;
    fixture.system.hypervisor().set_behaviour(INSTANCE, |behaviour| {
        behaviour.refuses.insert("device_add".into(), "no".into());
    });
    fixture.make_attachment().await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    fixture.until::<HotswapDiskAttachment>("data", |a| attachment_reason(a) != "Attached").await;
    fixture.delete::<HotswapDiskAttachment>("data").await;
    fixture.until_gone::<HotswapDiskAttachment>("data").await;
    let is_free = |disk: &Disk| disk.status.as_ref().is_some_and(|status| status.used_by.is_empty());
    fixture.until::<Disk>("data", is_free).await;
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_the_guest_releases_late_is_closed_before_it_is_free() {
    for crashes in [false, true] {
        let fixture = running().await;
        let view = || fixture.system.hypervisor().view(INSTANCE).expect("it runs");
        let disks = json!([{"name": "root", "boot": true}, {"name": "data"}]);
        fixture.change::<VM>("web", json!({"disks": disks})).await;
        fixture.until::<Disk>("data", |_| view().disks.contains_key(DATA)).await;
        fixture
            .system
            .hypervisor()
            .set_behaviour(INSTANCE, |behaviour| behaviour.keeps.push(DATA.to_owned()));
        fixture.change::<VM>("web", json!({"disks": [{"name": "root", "boot": true}]})).await;
        tokio::time::sleep(Duration::from_secs(30)).await;
        if crashes {
            fixture.crash_agent().await;
        }
        fixture.system.hypervisor().guest_releases(INSTANCE, DATA);
        if crashes {
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert!(view().nodes.contains(&DATA.to_owned()), "QEMU has its file open still");
            fixture.start_agent();
        }
        let is_free = |disk: &Disk| disk.status.as_ref().is_some_and(|status| status.used_by.is_empty());
        fixture.until::<Disk>("data", is_free).await;
        assert!(!view().nodes.contains(&DATA.to_owned()), "{:?}", view().nodes);
    }
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_could_not_be_plugged_in_and_is_not_declared_any_more_is_free() {
    let fixture = running().await;
    fixture.system.hypervisor().set_behaviour(INSTANCE, |behaviour| {
        behaviour.refuses.insert("device_add".into(), "no".into());
    });
    let disks = json!([{"name": "root", "boot": true}, {"name": "data"}]);
    fixture.change::<VM>("web", json!({"disks": disks})).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    // It is free once QEMU does not have its file open, whether or not the file is taken from QEMU.
    fixture.system.set_faults(Arc::new(Failing("revoke_disk")));
    fixture.change::<VM>("web", json!({"disks": [{"name": "root", "boot": true}]})).await;
    let is_free = |disk: &Disk| disk.status.as_ref().is_some_and(|status| status.used_by.is_empty());
    fixture.until::<Disk>("data", is_free).await;
    fixture.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_does_not_fit_its_template_is_not_plugged_in_and_the_vm_says_why() {
    let fixture = running().await;
    let says = |text: &'static str| {
        move |vm: &VM| {
            let ready = vm.status.as_ref().and_then(|s| condition::find(&s.conditions, "Ready"));
            ready.is_some_and(|ready| ready.reason == "WaitingForDisk" && ready.message.contains(text))
        }
    };
    let template = json!({"size": "1Gi", "image": "debian"});
    let disks = json!([{"name": "root", "boot": true}, {"name": "data", "template": template}]);
    fixture.change::<VM>("web", json!({"disks": disks})).await;
    let vm = fixture.until::<VM>("web", says("was not created for this VM")).await;
    let owner =
        json!({"apiVersion": "berth.dev/v1alpha1", "kind": "VM", "name": "web", "uid": vm.metadata.uid});
    let patch = Patch::Merge(json!({"metadata": {"ownerReferences": [owner]}}));
    fixture.api::<Disk>().patch("data", &PatchParams::default(), &patch).await.expect("changed");
    fixture.until::<VM>("web", says("a template with another image")).await;
    let view = fixture.system.hypervisor().view(INSTANCE).expect("it runs");
    assert!(!view.disks.contains_key(DATA));
    fixture.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_grows_offline_has_grown_when_its_vm_runs_again() {
    let fixture = running().await;
    fixture.change::<Disk>("root", json!({"size": "8Gi", "expandPolicy": "Offline"})).await;
    fixture.until::<Disk>("root", |disk| disk_reason(disk) == "PowerCycleNeeded").await;
    let opened = || fixture.system.hypervisor().view(INSTANCE).map(|view| view.disks[ROOT].1);
    assert_eq!(opened(), Some(4 << 30), "not while the VM runs");
    fixture.change::<VM>("web", json!({"restartToken": "again", "stop": {"mode": "Hard"}})).await;
    fixture.until::<Disk>("root", |disk| size("8Gi")(disk) && disk_reason(disk) == "Available").await;
    fixture.running_vm().await;
    assert_eq!(opened(), Some(8 << 30));
    fixture.assert_quiet().await;
}

/// Whether the disk was last restored with this token, and is ready.
fn restored(token: Option<&'static str>) -> impl Fn(&Disk) -> bool {
    move |disk| {
        let last = disk.status.as_ref().and_then(|s| s.restored_from.clone());
        last.is_some_and(|last| last.token.as_deref() == token) && disk_reason(disk) == "Available"
    }
}

async fn running_with_snapshot() -> Fixture {
    let fixture = running().await;
    take_snapshot(&fixture).await;
    fixture
}

/// Takes a snapshot of the boot disk of the VM.
pub(crate) async fn take_snapshot(fixture: &Fixture) {
    begin_snapshot(fixture).await;
    fixture
        .until::<DiskSnapshot>("before", |s| s.status.as_ref().is_some_and(|s| s.taken_at.is_some()))
        .await;
}

/// Has a snapshot of the boot disk of the VM taken, and does not wait for it.
pub(crate) async fn begin_snapshot(fixture: &Fixture) {
    let mut status = bound();
    for (field, value) in [("snapshotID", "s-1"), ("volumeID", ROOT), ("pool", "default")] {
        status[field] = value.into();
    }
    fixture.make::<DiskSnapshot>("before", json!({"disk": "root"}), Some(status)).await;
}

#[tokio::test(start_paused = true)]
async fn a_disk_is_restored_between_the_end_of_its_vm_and_its_next_start_and_once() {
    let fixture = running_with_snapshot().await;
    let file = || fixture.system.hypervisor().view(INSTANCE).map(|view| view.disks[ROOT].0.clone());
    let before = file();
    fixture.change::<Disk>("root", json!({"restore": {"snapshot": "before"}})).await;
    fixture.until::<Disk>("root", |disk| disk_reason(disk) == "PowerCycleNeeded").await;
    fixture.assert_quiet().await;
    assert_eq!((file(), fixture.system.trash_now().len()), (before.clone(), 0), "not while the VM runs");
    fixture.change::<VM>("web", json!({"restartToken": "again", "stop": {"mode": "Hard"}})).await;
    fixture.until::<Disk>("root", restored(None)).await;
    fixture.running_vm().await;
    let after = file();
    assert_ne!(after, before);
    // Neither another agent nor a lost status nor another power cycle restores it again.
    fixture.crash_agent().await;
    let lost = Patch::Merge(json!({"status": {"restoredFrom": null, "observedGeneration": 0}}));
    fixture.api::<Disk>().patch_status("root", &PatchParams::default(), &lost).await.expect("taken away");
    fixture.start_agent();
    fixture.until::<Disk>("root", restored(None)).await;
    fixture.change::<VM>("web", json!({"power": "Stopped"})).await;
    fixture.until::<VM>("web", |vm| vm_reason(vm) == "Stopped").await;
    fixture.assert_quiet().await;
    assert_eq!(fixture.system.trash_now().len(), 1, "its data from before");
    // Another token does, of a stopped VM at once.
    fixture.change::<Disk>("root", json!({"restore": {"snapshot": "before", "token": "2"}})).await;
    fixture.until::<Disk>("root", restored(Some("2"))).await;
    assert_eq!(fixture.system.trash_now().len(), 2);
    fixture.change::<Disk>("root", json!({"restore": {"snapshot": "before", "token": null}})).await;
    fixture.until::<Disk>("root", |disk| disk_reason(disk) == "RestoreRefused").await;
    fixture.change::<VM>("web", json!({"power": "Running"})).await;
    fixture.running_vm().await;
    assert_eq!(fixture.system.trash_now().len(), 2, "the refused restore does not hold the VM");
    fixture.change::<Disk>("root", json!({"restore": null})).await;
    fixture.until::<Disk>("root", restored(Some("2"))).await;
    fixture.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_disk_of_a_suspended_vm_is_not_restored_under_it() {
    let fixture = running_with_snapshot().await;
    fixture.change::<VM>("web", json!({"power": "Suspended"})).await;
    let suspended = |vm: &VM| vm.status.as_ref().is_some_and(|s| s.state == Some(VMState::Suspended));
    fixture.until::<VM>("web", suspended).await;
    for _ in 0..2 {
        fixture.change::<Disk>("root", json!({"restore": {"snapshot": "before"}})).await;
        fixture.until::<Disk>("root", |disk| disk_reason(disk) == "PowerCycleNeeded").await;
        fixture.assert_quiet().await;
        assert!(fixture.system.trash_now().is_empty(), "its guest goes on with its disk");
        fixture.crash_agent().await;
        fixture.start_agent();
    }
    // Another token of the VM gives the saved memory up: the guest boots on the restored disk.
    fixture.change::<VM>("web", json!({"power": "Running", "restartToken": "boot"})).await;
    fixture.until::<Disk>("root", restored(None)).await;
    fixture.running_vm().await;
    fixture.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_disk_on_another_bus_comes_and_goes_at_a_power_cycle() {
    let fixture = running().await;
    let pending = |wanted: &'static [&'static str]| {
        move |vm: &VM| vm.status.as_ref().is_some_and(|status| status.pending_power_cycle == wanted)
    };
    let restart = async |token: &str| {
        fixture.change::<VM>("web", json!({"restartToken": token, "stop": {"mode": "Hard"}})).await;
        fixture.until::<VM>("web", pending(&[])).await;
        fixture.running_vm().await;
        fixture.system.hypervisor().view(INSTANCE).expect("it runs").spec.disks
    };
    let data = json!({"name": "data", "bus": "virtio-blk", "readOnly": true});
    fixture.change::<VM>("web", json!({"disks": [{"name": "root", "boot": true}, data]})).await;
    fixture.until::<VM>("web", pending(&["disks[data]"])).await;
    let disks = restart("1").await;
    assert_eq!((disks[1].bus, disks[1].read_only, disks[1].target), (Bus::VirtioBlk, true, Some(0)));
    let device = |vm: &VM| vm.status.as_ref().and_then(|s| s.disks.last()?.device.clone());
    let by_id = |vm: &VM| device(vm).is_some_and(|device| device.starts_with("/dev/disk/by-id/virtio-"));
    fixture.until::<VM>("web", by_id).await;
    fixture.change::<VM>("web", json!({"disks": [{"name": "root", "boot": true, "bus": "sata"}]})).await;
    let both = |vm: &VM| vm.status.as_ref().is_some_and(|status| status.pending_power_cycle.len() == 2);
    fixture.until::<VM>("web", both).await;
    assert!(
        fixture.system.hypervisor().view(INSTANCE).expect("it runs").disks.contains_key(DATA),
        "still there"
    );
    let disks = restart("2").await;
    assert_eq!((disks.len(), disks[0].bus), (1, Bus::Sata));
    fixture.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_guest_runs_only_with_the_ceilings_of_its_disks() {
    let fixture = Fixture::start().await;
    fixture.furnish().await;
    fixture.change::<Disk>("root", json!({"limits": {"iops": 100}})).await;
    fixture.make_vm(json!({})).await;
    fixture.running_vm().await;
    let iops = || fixture.system.hypervisor().view(INSTANCE).expect("it runs").iops[ROOT];
    assert_eq!(iops(), 100);
    fixture.change::<Disk>("root", json!({"limits": {"iops": 250}})).await;
    fixture.until::<Disk>("root", |disk| disk_reason(disk) == "Available" && iops() == 250).await;
    fixture.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_disk_without_ceilings_of_its_own_has_those_of_the_class_of_its_vm_at_once() {
    let fixture = Fixture::start().await;
    fixture.furnish().await;
    fixture.change::<VMClass>("small", json!({"diskLimits": {"iops": 100}})).await;
    fixture.make_vm(json!({"disks": [{"name": "root", "boot": true}, {"name": "data"}]})).await;
    fixture.running_vm().await;
    let iops = |volume: &str| fixture.system.hypervisor().view(INSTANCE).expect("it runs").iops[volume];
    assert_eq!((iops(ROOT), iops(DATA)), (100, 100));
    fixture.change::<Disk>("data", json!({"limits": {"iops": 70}})).await;
    fixture.until::<Disk>("data", |disk| disk_reason(disk) == "Available" && iops(DATA) == 70).await;
    fixture.change::<VMClass>("small", json!({"diskLimits": {"iops": 250}})).await;
    fixture.until::<Disk>("root", |disk| disk_reason(disk) == "Available" && iops(ROOT) == 250).await;
    assert_eq!(iops(DATA), 70, "it has some of its own");
    fixture.change::<VMClass>("small", json!({"diskLimits": null})).await;
    fixture.until::<Disk>("root", |disk| disk_reason(disk) == "Available" && iops(ROOT) == 0).await;
    fixture.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_disk_whose_file_is_gone_is_lost_and_never_made_anew() {
    let fixture = Fixture::start().await;
    fixture.furnish().await;
    fixture.until::<Disk>("data", size("1Gi")).await;
    fixture.system.lose_volume(DATA);
    let patch = Patch::Merge(json!({"metadata": {"labels": {"look": "again"}}}));
    fixture.api::<Disk>().patch("data", &PatchParams::default(), &patch).await.expect("patched");
    fixture.until::<Disk>("data", |d| disk_reason(d) == "DiskLost").await;
    fixture.assert_quiet().await;
    assert!(!fixture.system.volumes_now().contains_key(DATA));
    fixture.delete::<Disk>("data").await;
    fixture.until_gone::<Disk>("data").await;
    assert!(fixture.system.trash_now().is_empty(), "there is no file");
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_whose_file_is_gone_is_lost_and_can_be_deleted() {
    let fixture = running_with_snapshot().await;
    fixture.system.lose_snapshot("s-1");
    let patch = Patch::Merge(json!({"metadata": {"labels": {"look": "again"}}}));
    fixture.api::<DiskSnapshot>().patch("before", &PatchParams::default(), &patch).await.expect("patched");
    let is_lost = |snapshot: &DiskSnapshot| {
        let status = snapshot.status.as_ref();
        status.is_some_and(|status| reason_of(&status.conditions, "Ready") == "SnapshotLost")
    };
    fixture.until::<DiskSnapshot>("before", is_lost).await;
    let copy = json!({"source": {"snapshot": "before"}});
    fixture.make::<Disk>("copy", copy, Some(disk_bound("v-00000000000000cc"))).await;
    fixture.until::<Disk>("copy", |disk| disk_reason(disk) == "WaitingForSnapshot").await;
    let mut status = bound();
    (status["snapshotID"], status["pool"]) = ("s-1".into(), "default".into());
    fixture.make::<Image>("golden", json!({"source": {"snapshot": "before"}}), Some(status)).await;
    let names_it = |image: &Image| {
        let conditions = image.status.as_ref().map(|s| s.conditions.as_slice()).unwrap_or_default();
        let stalled = condition::find(conditions, "Stalled").filter(|c| c.status == "True");
        stalled.is_some_and(|c| c.reason == "SnapshotLost" && c.message.contains("DiskSnapshot before"))
    };
    fixture.until::<Image>("golden", names_it).await;
    fixture.assert_quiet().await;
    fixture.delete::<Image>("golden").await;
    fixture.delete::<Disk>("copy").await;
    fixture.until_gone::<Disk>("copy").await;
    fixture.delete::<DiskSnapshot>("before").await;
    fixture.until_gone::<DiskSnapshot>("before").await;
    assert!(fixture.system.snapshots_now().iter().all(|facts| facts.owner.is_none()));
}

#[tokio::test(start_paused = true)]
async fn the_space_that_a_disk_takes_is_reported_by_it_and_by_its_vm_and_a_small_change_is_not() {
    let fixture = running().await;
    fixture.system.set_used_bytes(ROOT, 300 << 20);
    let measurement = Duration::from_secs(700);
    tokio::time::sleep(measurement).await;
    // The disk has 4 GiB: it is rounded to 16 MiB.
    let used = |wanted: &'static str| move |s: Option<&str>| s == Some(wanted);
    let (first, second) = (used("304Mi"), used("400Mi"));
    fixture.until::<Disk>("root", |d| first(d.status.as_ref().and_then(|s| s.used.as_deref()))).await;
    let of_vm = |vm: &VM| {
        let disks = vm.status.as_ref().map(|s| s.disks.as_slice()).unwrap_or_default();
        disks.iter().find(|disk| disk.name == "root").cloned().unwrap_or_default()
    };
    fixture.until::<VM>("web", |vm| first(of_vm(vm).used.as_deref())).await;
    fixture.system.set_used_bytes(ROOT, 303 << 20);
    tokio::time::sleep(measurement).await;
    fixture.assert_quiet().await;
    fixture.system.set_used_bytes(ROOT, 400 << 20);
    tokio::time::sleep(measurement).await;
    let vm = fixture.until::<VM>("web", |vm| second(of_vm(vm).used.as_deref())).await;
    assert_eq!(of_vm(&vm).size.as_deref(), Some("4Gi"));
}

#[tokio::test(start_paused = true)]
async fn the_space_that_the_files_of_a_vm_take_is_reported_and_a_small_change_is_not() {
    let fixture = running().await;
    let instance =
        fixture.running_vm().await.status.and_then(|status| status.instance_id).expect("an instance");
    fixture.system.set_used_bytes(ROOT, 300 << 20);
    fixture.system.set_instance_bytes(&instance, 20 << 20);
    let measurement = Duration::from_secs(700);
    tokio::time::sleep(measurement).await;
    let files = |wanted: &'static str| {
        move |vm: &VM| {
            let storage = vm.status.as_ref().and_then(|status| status.storage.as_deref());
            storage.is_some_and(|storage| storage.files == wanted && storage.disks == "304Mi")
        }
    };
    fixture.until::<VM>("web", files("32Mi")).await;
    fixture.system.set_instance_bytes(&instance, 25 << 20);
    tokio::time::sleep(measurement).await;
    fixture.assert_quiet().await;
    fixture.system.set_instance_bytes(&instance, 600 << 20);
    tokio::time::sleep(measurement).await;
    fixture.until::<VM>("web", files("608Mi")).await;
}

#[tokio::test(start_paused = true)]
async fn a_disk_whose_pool_is_away_says_so_and_is_used_again_when_the_pool_is_back() {
    let fixture = running().await;
    fixture.system.set_pool_folder("default", Some("/mnt/default/berth-pool.json is not there"));
    for disk in ["root", "data"] {
        fixture.until::<Disk>(disk, |d| disk_reason(d) == "PoolAway").await;
    }
    // The VM can be stopped, and waits for its disk when it is to start.
    fixture.change::<VM>("web", json!({"power": "Stopped"})).await;
    fixture.until::<VM>("web", |vm| vm.status.as_ref().and_then(|s| s.state) == Some(VMState::Stopped)).await;
    fixture.change::<VM>("web", json!({"power": "Running"})).await;
    fixture.until::<VM>("web", |vm| vm_reason(vm) == "WaitingForDisk").await;
    fixture.api::<Disk>().delete("data", &DeleteParams::default()).await.expect("accepted");
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(fixture.system.volumes_now().len(), 2, "nothing is deleted");
    fixture.system.set_pool_folder("default", None);
    fixture.running_vm().await;
    fixture.until::<Disk>("root", |d| disk_reason(d) == "Available").await;
    assert_eq!(fixture.system.violations(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn of_two_vms_on_one_disk_one_boots_and_the_other_waits_for_it() {
    let fixture = running().await;
    let spec = json!({"class": "small", "disks": [{"name": "root", "boot": true}]});
    fixture.make::<VM>("rival", spec, Some(vm_bound("i-ba9876543210", 3))).await;
    let rival = fixture.until::<VM>("rival", |vm| vm_reason(vm) == "DiskInUse").await;
    assert!(rival.status.is_some_and(|s| s.process.is_none()));
    fixture.delete::<VM>("web").await;
    fixture.until_gone::<VM>("web").await;
    fixture.until::<VM>("rival", |vm| vm_reason(vm) == "Running").await;
    let users =
        fixture.until::<Disk>("root", |d| d.status.as_ref().is_some_and(|s| s.used_by.len() == 1)).await;
    assert_eq!(users.status.expect("reported").used_by[0].vm, "rival");
}

#[tokio::test(start_paused = true)]
async fn a_mounted_disk_is_not_pulled_unless_forced() {
    let fixture = running().await;
    fixture.make_attachment().await;
    attached(&fixture).await;
    let serial = DATA.replace('-', "");
    fixture.system.hypervisor().set_behaviour(INSTANCE, |b| {
        b.guest.mounts.insert(serial, "/srv/data".into());
    });
    fixture.delete::<HotswapDiskAttachment>("data").await;
    let busy = fixture.until::<HotswapDiskAttachment>("data", |a| attachment_reason(a) == "GuestBusy").await;
    let message = condition::find(&busy.status.expect("reported").conditions, "Stalled")
        .expect("stalled")
        .message
        .clone();
    assert!(message.contains("/srv/data"), "{message}");
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(fixture.system.hypervisor().view(INSTANCE).is_some_and(|v| v.disks.contains_key(DATA)));
    fixture.change::<HotswapDiskAttachment>("data", json!({"force": true})).await;
    fixture.until_gone::<HotswapDiskAttachment>("data").await;
    assert!(fixture.system.hypervisor().view(INSTANCE).is_some_and(|v| !v.disks.contains_key(DATA)));
}

#[tokio::test(start_paused = true)]
async fn a_guest_without_an_agent_keeps_its_disk_until_that_is_forced_or_the_vm_is_off() {
    let fixture = running().await;
    fixture.make_attachment().await;
    attached(&fixture).await;
    fixture.system.hypervisor().set_behaviour(INSTANCE, |b| b.guest_agent = false);
    // Periodic queries of the guest, and their timeouts, are over.
    tokio::time::sleep(Duration::from_secs(40)).await;
    fixture.delete::<HotswapDiskAttachment>("data").await;
    let unknown = |a: &HotswapDiskAttachment| attachment_reason(a) == "MountsUnknown";
    fixture.until::<HotswapDiskAttachment>("data", unknown).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(fixture.system.hypervisor().view(INSTANCE).is_some_and(|v| v.disks.contains_key(DATA)));
    let asked = tokio::time::Instant::now();
    fixture.change::<HotswapDiskAttachment>("data", json!({"force": true})).await;
    fixture.until_gone::<HotswapDiskAttachment>("data").await;
    // Paused time advances only while all tasks wait.
    assert!(asked.elapsed() < berth_qemu::guest_agent::DEFAULT_TIMEOUT, "{:?}", asked.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_a_guest_without_an_agent_kept_is_released_with_its_vm() {
    let fixture = running().await;
    fixture.make_attachment().await;
    attached(&fixture).await;
    fixture.system.hypervisor().set_behaviour(INSTANCE, |b| b.guest_agent = false);
    tokio::time::sleep(Duration::from_secs(40)).await;
    fixture.delete::<HotswapDiskAttachment>("data").await;
    let unknown = |a: &HotswapDiskAttachment| attachment_reason(a) == "MountsUnknown";
    fixture.until::<HotswapDiskAttachment>("data", unknown).await;
    fixture.delete::<VM>("web").await;
    fixture.until_gone::<HotswapDiskAttachment>("data").await;
    fixture.until_gone::<VM>("web").await;
}

#[tokio::test(start_paused = true)]
async fn a_guest_that_keeps_a_disk_is_asked_until_it_lets_go_and_the_disk_can_come_right_back() {
    let fixture = running().await;
    fixture.make_attachment().await;
    attached(&fixture).await;
    fixture.system.hypervisor().set_behaviour(INSTANCE, |b| b.keeps.push(DATA.into()));
    fixture.delete::<HotswapDiskAttachment>("data").await;
    fixture.until::<HotswapDiskAttachment>("data", |a| attachment_reason(a) == "Detaching").await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    let disk = fixture.api::<Disk>().get("data").await.expect("there");
    assert_eq!(disk.status.expect("reported").used_by.len(), 1, "still in use");
    fixture.system.hypervisor().guest_releases(INSTANCE, DATA);
    fixture.until_gone::<HotswapDiskAttachment>("data").await;
    fixture.make_attachment().await;
    attached(&fixture).await;
    fixture.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn an_attached_disk_that_the_guest_releases_while_no_agent_runs_is_closed_before_it_is_free() {
    let fixture = running().await;
    fixture.make_attachment().await;
    attached(&fixture).await;
    fixture.system.hypervisor().set_behaviour(INSTANCE, |b| b.keeps.push(DATA.into()));
    fixture.delete::<HotswapDiskAttachment>("data").await;
    fixture.until::<HotswapDiskAttachment>("data", |a| attachment_reason(a) == "Detaching").await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    fixture.crash_agent().await;
    fixture.system.hypervisor().guest_releases(INSTANCE, DATA);
    tokio::time::sleep(Duration::from_secs(1)).await;
    fixture.start_agent();
    let is_free = |disk: &Disk| disk.status.as_ref().is_some_and(|status| status.used_by.is_empty());
    fixture.until::<Disk>("data", is_free).await;
    let view = fixture.system.hypervisor().view(INSTANCE).expect("it runs");
    assert!(!view.nodes.contains(&DATA.to_owned()), "{:?}", view.nodes);
    fixture.until_gone::<HotswapDiskAttachment>("data").await;
}

#[tokio::test(start_paused = true)]
async fn a_second_disk_does_not_disturb_the_first_and_a_restart_brings_both_back() {
    let fixture = running().await;
    let more = "v-00000000000000e1";
    fixture.make::<Disk>("more", json!({"size": "1Gi"}), Some(disk_bound(more))).await;
    fixture.make_attachment().await;
    attached(&fixture).await;
    let target =
        |fixture: &Fixture| fixture.system.hypervisor().view(INSTANCE).expect("it runs").disks[DATA].clone();
    let before = target(&fixture);
    fixture.change::<VM>("web", json!({"disks": [{"name": "root", "boot": true}, {"name": "more"}]})).await;
    let both = |fixture: &Fixture| {
        let view = fixture.system.hypervisor().view(INSTANCE);
        view.is_some_and(|v| v.disks.contains_key(more) && v.disks.contains_key(DATA))
    };
    for _ in 0..100 {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(both(&fixture));
    assert_eq!(target(&fixture), before);
    fixture.change::<VM>("web", json!({"restartToken": "1"})).await;
    let acted =
        |vm: &VM| vm_reason(vm) == "Running" && vm.status.as_ref().is_some_and(|s| s.restart_token.is_some());
    fixture.until::<VM>("web", acted).await;
    attached(&fixture).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(both(&fixture));
    fixture.change::<VM>("web", json!({"disks": [{"name": "root", "boot": true}]})).await;
    let free = |d: &Disk| d.status.as_ref().is_some_and(|s| s.used_by.is_empty());
    fixture.until::<Disk>("more", free).await;
    assert!(!both(&fixture));
    fixture.assert_quiet().await;
}
