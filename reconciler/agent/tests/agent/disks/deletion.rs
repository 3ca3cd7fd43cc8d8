//! Disks and VMs that are deleted or have no owner, and orphans that have disks open.

use std::time::Duration;

use berth_api::{Disk, RESTORE_ANNOTATION, StoragePool, VM, condition};
use berth_host::{FirmwareCopy, Machines as _};
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::fixture::{DATA, Fixture, HOST, INSTANCE, ROOT, disk_bound, vm_bound, vm_reason};

use super::{disk_reason, running, size};

#[tokio::test(start_paused = true)]
async fn a_deleted_disk_comes_back_from_the_trash_and_a_retained_one_stays_where_it_is() {
    let fixture = Fixture::start().await;
    fixture.furnish().await;
    fixture.until::<Disk>("data", size("1Gi")).await;
    fixture.delete::<Disk>("data").await;
    fixture.until_gone::<Disk>("data").await;
    assert_eq!(fixture.system.trash_now(), [DATA]);
    let trash = |fixture: &Fixture| {
        let client = fixture.client.clone();
        async move {
            let hosts: kube::Api<berth_api::Host> = kube::Api::all(client);
            hosts.get(HOST).await.expect("there").status.expect("reported").trash
        }
    };
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(trash(&fixture).await[0].name, "data");
    fixture.system.set_used_bytes(DATA, 300 << 20);
    tokio::time::sleep(Duration::from_secs(700)).await;
    assert_eq!(trash(&fixture).await[0].used.as_deref(), Some("300Mi"), "it is measured as before");
    let mut disk = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "Disk", "spec": {"size": "1Gi"}});
    disk["metadata"] = json!({"name": "back", "namespace": "ns", "finalizers": [berth_api::HOST_FINALIZER],
        "annotations": {RESTORE_ANNOTATION: format!("{HOST}/{DATA}")}});
    let disk: Disk = serde_json::from_value(disk).expect("a Disk");
    fixture.api::<Disk>().create(&Default::default(), &disk).await.expect("created");
    let status = Patch::Merge(json!({"status": disk_bound(DATA)}));
    fixture.api::<Disk>().patch_status("back", &PatchParams::default(), &status).await.expect("bound");
    fixture.until::<Disk>("back", size("1Gi")).await;
    assert!(fixture.system.trash_now().is_empty());
    fixture.change::<Disk>("back", json!({"deletionPolicy": "Retain"})).await;
    fixture.delete::<Disk>("back").await;
    fixture.until_gone::<Disk>("back").await;
    assert!(fixture.system.volumes_now().contains_key(DATA) && fixture.system.trash_now().is_empty());
    assert!(fixture.system.volumes_now().contains_key(ROOT));

    let retained = |host: &berth_api::Host| {
        let volumes = host.status.iter().flat_map(|status| &status.retained_volumes);
        volumes.map(|volume| volume.name.clone()).collect::<Vec<String>>()
    };
    tokio::time::sleep(Duration::from_secs(70)).await;
    assert_eq!(retained(&fixture.host().await), ["back"]);
    let mut disk = disk;
    disk.metadata.name = Some("again".to_owned());
    fixture.api::<Disk>().create(&Default::default(), &disk).await.expect("created");
    let status = Patch::Merge(json!({"status": disk_bound(DATA)}));
    fixture.api::<Disk>().patch_status("again", &PatchParams::default(), &status).await.expect("bound");
    fixture.until::<Disk>("again", size("1Gi")).await;
    tokio::time::sleep(Duration::from_secs(70)).await;
    assert_eq!(retained(&fixture.host().await), [""; 0], "a Disk has it");
}

#[tokio::test(start_paused = true)]
async fn what_nobody_owns_is_reported_and_left_alone() {
    let fixture = running().await;
    fixture.system.hypervisor().add_foreign("somebody-elses");
    fixture.crash_agent().await;
    // The VM is deleted without this host being involved: its finalizer was removed.
    let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    fixture.api::<VM>().patch("web", &PatchParams::default(), &patch).await.expect("patched");
    fixture.delete::<VM>("web").await;
    fixture.until_gone::<VM>("web").await;
    fixture.start_agent();
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(fixture.system.hypervisor().instances(), [INSTANCE]);
    let orphans = fixture.host().await.status.expect("reported").orphans;
    let kinds: Vec<&str> = orphans.iter().map(|o| o.kind.as_str()).collect();
    assert_eq!(kinds, ["Instance", "Process"], "{orphans:?}");
    let root = fixture.api::<Disk>().get("root").await.expect("there");
    assert_eq!(root.status.expect("reported").used_by.len(), 1, "its machine still has it open");
    let said = |host: &berth_api::Host| {
        let conditions = &host.status.as_ref().expect("reported").conditions;
        condition::find(conditions, "Orphans").map(|c| c.message.clone()).unwrap_or_default()
    };
    let expected = format!("no object owns Instance {INSTANCE} of VM ns/web");
    assert!(said(&fixture.host().await).starts_with(&expected), "{}", said(&fixture.host().await));

    // An administrator releases it.
    let hosts: kube::Api<berth_api::Host> = kube::Api::all(fixture.client.clone());
    let released = Patch::Merge(json!({"spec": {"releasedOrphans": [INSTANCE]}}));
    hosts.patch(HOST, &PatchParams::default(), &released).await.expect("patched");
    fixture.until::<Disk>("root", |d| d.status.as_ref().is_some_and(|s| s.used_by.is_empty())).await;
    assert!(fixture.system.hypervisor().instances().is_empty());
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(!said(&fixture.host().await).contains(INSTANCE), "{}", said(&fixture.host().await));
    assert_eq!(fixture.system.violations(), Vec::<String>::new());
}

/// Makes a shared pool with a copy of the firmware state of the VM, of an epoch that is later than that of its binding by this number.
async fn copy_firmware(fixture: &Fixture, later: i64) {
    let pool = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "StoragePool", "metadata": {"name": "site"},
        "spec": {"type": "Shared"}});
    let pool: StoragePool = serde_json::from_value(pool).expect("a pool");
    let pools: kube::Api<StoragePool> = kube::Api::all(fixture.client.clone());
    pools.create(&Default::default(), &pool).await.expect("created");
    fixture.system.set_pool_folder("site", None);
    let vm = fixture.api::<VM>().get("web").await.expect("there");
    let binding = vm.status.and_then(|status| status.binding).expect("it is bound here");
    let (uid, epoch) = (vm.metadata.uid.expect("it has one"), binding.epoch + later);
    let copy = FirmwareCopy { uid, epoch, is_final: false, archive: b"keys".to_vec() };
    fixture.system.write_firmware_copy("site", INSTANCE, &copy).await.expect("written");
}

#[tokio::test(start_paused = true)]
async fn a_copy_of_firmware_state_goes_with_the_released_instance_unless_another_may_need_it() {
    // Whether there is a VM of its name, by how much the epoch of the copy is later, and whether the copy stays.
    for (is_back, later, stays) in [(false, 0, false), (true, 0, true), (false, 1, true)] {
        let fixture = running().await;
        copy_firmware(&fixture, later).await;
        fixture.crash_agent().await;
        lose(&fixture).await;
        if is_back {
            let spec = json!({"class": "small", "disks": [{"name": "root", "boot": true}]});
            fixture.make::<VM>("web", spec, None).await;
        }
        fixture.start_agent();
        tokio::time::sleep(Duration::from_secs(300)).await;
        assert_eq!(fixture.system.firmware_copies_now().len(), 1, "the instance may be adopted");
        let hosts: kube::Api<berth_api::Host> = kube::Api::all(fixture.client.clone());
        let released = Patch::Merge(json!({"spec": {"releasedOrphans": [INSTANCE]}}));
        hosts.patch(HOST, &PatchParams::default(), &released).await.expect("patched");
        fixture.until::<Disk>("root", |d| d.status.as_ref().is_some_and(|s| s.used_by.is_empty())).await;
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(fixture.system.firmware_copies_now().len(), usize::from(stays), "{is_back} {later}");
        assert_eq!(fixture.system.violations(), Vec::<String>::new());
    }
}

#[tokio::test(start_paused = true)]
async fn the_copy_of_a_vm_that_was_given_up_stays_when_the_control_plane_does_not_know_the_vm() {
    let fixture = running().await;
    copy_firmware(&fixture, 0).await;
    fixture.crash_agent().await;
    // As after a move of the VM.
    fixture.system.kill(INSTANCE, Duration::ZERO).await.expect("ended");
    let mut journal = fixture.system.read_journal(INSTANCE).await.expect("read").expect("it ran");
    journal["released"] = json!({"epoch": journal["epoch"], "volumes": []});
    fixture.system.write_journal(INSTANCE, &journal).await.expect("written");
    // As in a backup of the control plane of a time before the VM.
    lose(&fixture).await;
    fixture.start_agent();
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(fixture.system.read_journal(INSTANCE).await.expect("read"), None, "its instance is removed");
    assert_eq!(fixture.system.firmware_copies_now().len(), 1, "another host may have the VM");
    assert_eq!(fixture.system.violations(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_vm_that_is_deleted_without_its_finalizer_is_stopped_and_its_disks_are_free() {
    let fixture = running().await;
    let dropped = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    fixture.api::<VM>().patch("web", &PatchParams::default(), &dropped).await.expect("patched");
    fixture.delete::<VM>("web").await;
    fixture.until_gone::<VM>("web").await;
    fixture.until::<Disk>("root", |d| d.status.as_ref().is_some_and(|s| s.used_by.is_empty())).await;
    assert!(fixture.system.hypervisor().instances().is_empty());
    tokio::time::sleep(Duration::from_secs(5)).await;
    let status = fixture.host().await.status.expect("reported");
    assert!(status.orphans.is_empty(), "{:?}", status.orphans);
    assert!(condition::find(&status.conditions, "Orphans").is_none());
    assert_eq!(fixture.system.violations(), Vec::<String>::new());
    fixture.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_guest_whose_vm_is_deleted_without_its_finalizer_ends_at_once_whatever_its_grace_period() {
    let fixture = running().await;
    fixture.system.hypervisor().set_behaviour(INSTANCE, |b| b.ignores_powerdown = true);
    fixture.change::<VM>("web", json!({"stop": {"gracePeriodSeconds": 600}})).await;
    fixture.running_vm().await;
    let start = tokio::time::Instant::now();
    lose(&fixture).await;
    while !fixture.system.leftovers().taps.is_empty() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    assert!(fixture.system.hypervisor().instances().is_empty());
    assert_eq!(fixture.system.violations(), Vec::<String>::new());
}

/// Deletes the VM without its host being involved, by removing its finalizer.
async fn lose(fixture: &Fixture) {
    let dropped = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    fixture.api::<VM>().patch("web", &PatchParams::default(), &dropped).await.expect("patched");
    fixture.delete::<VM>("web").await;
    fixture.until_gone::<VM>("web").await;
}

/// A guest that runs without a VM, on a disk that does not list it as a user (any more), and a VM that claims that
/// disk.
async fn orphaned(fixture: &Fixture) {
    fixture.crash_agent().await;
    let uid = fixture.api::<VM>().get("web").await.expect("there").metadata.uid;
    lose(fixture).await;
    let unused = Patch::Merge(json!({"status": {"usedBy": []}}));
    fixture.api::<Disk>().patch_status("root", &PatchParams::default(), &unused).await.expect("patched");
    let spec = json!({"class": "small", "disks": [{"name": "root", "boot": true}]});
    fixture.make::<VM>("rival", spec, Some(vm_bound("i-ba9876543210", 3))).await;
    fixture.start_agent();
    let used = |d: &Disk| d.status.as_ref().is_some_and(|s| !s.used_by.is_empty());
    let users = fixture.until::<Disk>("root", used).await.status.expect("reported").used_by;
    assert_eq!((users.len(), Some(&users[0].vm_uid)), (1, uid.as_ref()), "{users:?}");
    fixture.until::<VM>("rival", |vm| vm_reason(vm) == "DiskInUse").await;
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_an_orphan_has_open_is_neither_given_away_nor_deleted_until_the_orphan_ends() {
    let fixture = running().await;
    orphaned(&fixture).await;
    fixture.change::<Disk>("root", json!({"size": "5Gi"})).await;
    fixture.until::<Disk>("root", size("5Gi")).await;
    fixture.delete::<Disk>("root").await;
    tokio::time::sleep(Duration::from_secs(300)).await;
    let root = fixture.api::<Disk>().get("root").await.expect("there");
    assert_eq!(disk_reason(&root), "InUse");
    assert_eq!(fixture.system.hypervisor().instances(), [INSTANCE]);
    // Its guest powers off; there is no VM to record it.
    fixture.system.hypervisor().crash(INSTANCE);
    fixture.until_gone::<Disk>("root").await;
    assert_eq!(fixture.system.trash_now(), [ROOT]);
    assert_eq!(fixture.system.violations(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_disk_passes_on_once_the_orphan_that_had_it_open_has_ended() {
    let fixture = running().await;
    orphaned(&fixture).await;
    fixture.system.hypervisor().crash(INSTANCE);
    fixture.until::<VM>("rival", |vm| vm_reason(vm) == "Running").await;
    assert_eq!(fixture.system.violations(), Vec::<String>::new());
    fixture.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn an_orphan_whose_monitor_does_not_answer_counts_as_having_the_disks_of_its_namespace_open() {
    let fixture = running().await;
    fixture.system.hypervisor().set_behaviour(INSTANCE, |b| b.hangs = true);
    orphaned(&fixture).await;
    fixture.change::<Disk>("root", json!({"size": "5Gi"})).await;
    fixture.until::<Disk>("root", |d| disk_reason(d) == "Growing").await;
    tokio::time::sleep(Duration::from_secs(300)).await;
    let root = fixture.api::<Disk>().get("root").await.expect("there");
    assert_eq!(root.status.expect("reported").size.as_deref(), Some("4Gi"));
    assert_eq!(fixture.system.hypervisor().instances(), [INSTANCE]);
    // The orphan cannot have a newly created disk open.
    fixture.make::<Disk>("more", json!({"size": "1Gi"}), Some(disk_bound("v-00000000000000e1"))).await;
    fixture.until::<Disk>("more", size("1Gi")).await;
    fixture.system.hypervisor().set_behaviour(INSTANCE, |b| b.hangs = false);
    fixture.until::<Disk>("root", size("5Gi")).await;
    assert_eq!(fixture.system.hypervisor().view(INSTANCE).expect("it runs").disks[ROOT].1, 5 << 30);
    assert_eq!(fixture.system.violations(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_is_deleted_without_its_finalizer_goes_to_the_trash() {
    let fixture = Fixture::start().await;
    fixture.furnish().await;
    fixture.until::<Disk>("data", size("1Gi")).await;
    let dropped = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    fixture.api::<Disk>().patch("data", &PatchParams::default(), &dropped).await.expect("patched");
    fixture.delete::<Disk>("data").await;
    fixture.until_gone::<Disk>("data").await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(fixture.system.trash_now(), [DATA]);
}

/// A watch of the objects bound to a host reports an object that leaves the host as deleted.
#[tokio::test(start_paused = true)]
async fn a_vm_that_is_no_longer_bound_here_but_is_not_deleted_goes_on() {
    let fixture = running().await;
    let elsewhere = Patch::Merge(json!({"status": {"binding": {"host": "h2", "epoch": 2}}}));
    fixture.api::<VM>().patch_status("web", &PatchParams::default(), &elsewhere).await.expect("patched");
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(fixture.system.hypervisor().instances(), [INSTANCE]);
}
