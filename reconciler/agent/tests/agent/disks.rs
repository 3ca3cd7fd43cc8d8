//! Disks: made, grown, lost, shared out, plugged in and out, deleted and brought back.

use std::time::Duration;

use berth_api::{Disk, HotswapDiskAttachment, Image, RESTORE_ANNOTATION, VM};
use berth_qemu::machine::Format;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::world::{
    DATA, HOST, IMAGE_URL, INSTANCE, ROOT, SHA256, World, disk_bound, reason_of, vm_bound, vm_reason,
};

fn disk_reason(disk: &Disk) -> String {
    disk.status.as_ref().map(|s| reason_of(&s.conditions, "Ready")).unwrap_or_default()
}

fn attachment_reason(attachment: &HotswapDiskAttachment) -> String {
    attachment.status.as_ref().map(|s| reason_of(&s.conditions, "Ready")).unwrap_or_default()
}

fn size(wanted: &'static str) -> impl Fn(&Disk) -> bool {
    move |disk| disk.status.as_ref().is_some_and(|s| s.size.as_deref() == Some(wanted))
}

async fn attached(world: &World) {
    world.until::<HotswapDiskAttachment>("data", |a| attachment_reason(a) == "Attached").await;
}

async fn running() -> World {
    let world = World::start().await;
    world.furnish().await;
    world.make_vm(json!({})).await;
    world.running_vm().await;
    let up =
        |vm: &VM| vm.status.as_ref().is_some_and(|s| reason_of(&s.conditions, "GuestReady") == "GuestSeen");
    world.until::<VM>("web", up).await;
    world
}

#[tokio::test(start_paused = true)]
async fn a_disk_grows_while_nobody_uses_it_and_while_it_is_plugged_in() {
    let world = running().await;
    world.change::<Disk>("data", json!({"size": "2Gi"})).await;
    world.until::<Disk>("data", size("2Gi")).await;
    world.make_attachment().await;
    attached(&world).await;
    world.change::<Disk>("data", json!({"size": "3Gi"})).await;
    world.until::<Disk>("data", size("3Gi")).await;
    let view = world.system.hypervisor().view(INSTANCE).expect("it runs");
    assert_eq!(view.disks[DATA].1, 3 << 30);
    world.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_disk_whose_file_is_gone_is_lost_and_never_made_anew() {
    let world = World::start().await;
    world.furnish().await;
    world.until::<Disk>("data", size("1Gi")).await;
    world.system.lose_volume(DATA);
    let patch = Patch::Merge(json!({"metadata": {"labels": {"look": "again"}}}));
    world.api::<Disk>().patch("data", &PatchParams::default(), &patch).await.expect("patched");
    world.until::<Disk>("data", |d| disk_reason(d) == "DiskLost").await;
    world.assert_quiet().await;
    assert!(!world.system.volumes_now().contains_key(DATA));
}

#[tokio::test(start_paused = true)]
async fn a_disk_smaller_than_its_image_says_so() {
    let world = World::start().await;
    world.furnish().await;
    world
        .make::<Disk>(
            "tiny",
            json!({"image": "debian", "size": "1Gi"}),
            Some(disk_bound("v-00000000000000b1")),
        )
        .await;
    world.until::<Disk>("tiny", |d| disk_reason(d) == "DiskSmallerThanImage").await;
    world.change::<Disk>("tiny", json!({"size": "3Gi"})).await;
    world.until::<Disk>("tiny", size("3Gi")).await;
}

#[tokio::test(start_paused = true)]
async fn a_wrong_checksum_stalls_the_image_and_is_downloaded_once() {
    let world = World::start().await;
    let source = berth_agent::fake::FakeSource {
        sha256: "bb".into(),
        format: Format::Qcow2,
        virtual_size: 1 << 30,
        bytes: 1 << 20,
        refused: None,
    };
    world.system.add_source(IMAGE_URL, source);
    let spec = json!({"source": {"url": IMAGE_URL, "sha256": SHA256}});
    world
        .make::<Image>(
            "debian",
            spec,
            Some(json!({"observedGeneration": 0, "binding": {"host": HOST, "epoch": 1}})),
        )
        .await;
    let reason = |wanted: &'static str| {
        move |i: &Image| i.status.as_ref().is_some_and(|s| reason_of(&s.conditions, "Ready") == wanted)
    };
    world.until::<Image>("debian", reason("ChecksumMismatch")).await;
    world.assert_quiet().await;
    assert_eq!(world.system.pulls(), 1);
    // A mirror that has the right bytes.
    let source = berth_agent::fake::FakeSource {
        sha256: SHA256.into(),
        format: Format::Qcow2,
        virtual_size: 1 << 30,
        bytes: 1 << 20,
        refused: None,
    };
    world.system.add_source("http://mirror.example/d", source);
    world.change::<Image>("debian", json!({"source": {"url": "http://mirror.example/d"}})).await;
    world.until::<Image>("debian", reason("Verified")).await;
}

#[tokio::test(start_paused = true)]
async fn an_image_that_is_not_there_yet_is_tried_again() {
    let world = World::start().await;
    let spec = json!({"source": {"url": IMAGE_URL, "sha256": SHA256}});
    world
        .make::<Image>(
            "debian",
            spec,
            Some(json!({"observedGeneration": 0, "binding": {"host": HOST, "epoch": 1}})),
        )
        .await;
    let reason = |wanted: &'static str| {
        move |i: &Image| i.status.as_ref().is_some_and(|s| reason_of(&s.conditions, "Ready") == wanted)
    };
    world.until::<Image>("debian", reason("ImageNotFound")).await;
    world.furnish_source();
    world.until::<Image>("debian", reason("Verified")).await;
}

#[tokio::test(start_paused = true)]
async fn of_two_vms_on_one_disk_one_boots_and_the_other_waits_for_it() {
    let world = running().await;
    let spec = json!({"class": "small", "disks": [{"name": "root", "boot": true}]});
    world.make::<VM>("rival", spec, Some(vm_bound("i-ba9876543210", 3))).await;
    let rival = world.until::<VM>("rival", |vm| vm_reason(vm) == "DiskInUse").await;
    assert!(rival.status.is_some_and(|s| s.process.is_none()));
    world.delete::<VM>("web").await;
    world.until_gone::<VM>("web").await;
    world.until::<VM>("rival", |vm| vm_reason(vm) == "Running").await;
    let users =
        world.until::<Disk>("root", |d| d.status.as_ref().is_some_and(|s| s.used_by.len() == 1)).await;
    assert_eq!(users.status.expect("reported").used_by[0].vm, "rival");
}

#[tokio::test(start_paused = true)]
async fn a_mounted_disk_is_not_pulled_unless_forced() {
    let world = running().await;
    world.make_attachment().await;
    attached(&world).await;
    let serial = DATA.replace('-', "");
    world.system.hypervisor().set_behaviour(INSTANCE, |b| {
        b.guest.mounts.insert(serial, "/srv/data".into());
    });
    world.delete::<HotswapDiskAttachment>("data").await;
    let busy = world.until::<HotswapDiskAttachment>("data", |a| attachment_reason(a) == "GuestBusy").await;
    let message = berth_api::condition::find(&busy.status.expect("reported").conditions, "Stalled")
        .expect("stalled")
        .message
        .clone();
    assert!(message.contains("/srv/data"), "{message}");
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(world.system.hypervisor().view(INSTANCE).is_some_and(|v| v.disks.contains_key(DATA)));
    world.change::<HotswapDiskAttachment>("data", json!({"force": true})).await;
    world.until_gone::<HotswapDiskAttachment>("data").await;
    assert!(world.system.hypervisor().view(INSTANCE).is_some_and(|v| !v.disks.contains_key(DATA)));
}

#[tokio::test(start_paused = true)]
async fn a_guest_without_an_agent_loses_its_disk_without_a_wait_for_one() {
    let world = running().await;
    world.make_attachment().await;
    attached(&world).await;
    world.system.hypervisor().set_behaviour(INSTANCE, |b| b.guest_agent = false);
    // What is asked of the guest now and then, and then waits for an answer, is over.
    tokio::time::sleep(Duration::from_secs(40)).await;
    let asked = tokio::time::Instant::now();
    world.delete::<HotswapDiskAttachment>("data").await;
    world.until_gone::<HotswapDiskAttachment>("data").await;
    // Time here is not the machine's: it passes only while all wait.
    assert!(asked.elapsed() < berth_qemu::guest_agent::DEFAULT_TIMEOUT, "{:?}", asked.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_guest_that_keeps_a_disk_is_asked_until_it_lets_go_and_the_disk_can_come_right_back() {
    let world = running().await;
    world.make_attachment().await;
    attached(&world).await;
    world.system.hypervisor().set_behaviour(INSTANCE, |b| b.keeps.push(DATA.into()));
    world.delete::<HotswapDiskAttachment>("data").await;
    world.until::<HotswapDiskAttachment>("data", |a| attachment_reason(a) == "Detaching").await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    let disk = world.api::<Disk>().get("data").await.expect("there");
    assert_eq!(disk.status.expect("reported").used_by.len(), 1, "still in use");
    world.system.hypervisor().guest_releases(INSTANCE, DATA);
    world.until_gone::<HotswapDiskAttachment>("data").await;
    world.make_attachment().await;
    attached(&world).await;
    world.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_second_disk_does_not_disturb_the_first_and_a_restart_brings_both_back() {
    let world = running().await;
    let more = "v-00000000000000e1";
    world.make::<Disk>("more", json!({"size": "1Gi"}), Some(disk_bound(more))).await;
    world.make_attachment().await;
    attached(&world).await;
    let target =
        |world: &World| world.system.hypervisor().view(INSTANCE).expect("it runs").disks[DATA].clone();
    let before = target(&world);
    world.change::<VM>("web", json!({"disks": [{"name": "root", "boot": true}, {"name": "more"}]})).await;
    let both = |world: &World| {
        let view = world.system.hypervisor().view(INSTANCE);
        view.is_some_and(|v| v.disks.contains_key(more) && v.disks.contains_key(DATA))
    };
    for _ in 0..100 {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(both(&world));
    assert_eq!(target(&world), before);
    world.change::<VM>("web", json!({"restartToken": "1"})).await;
    let acted =
        |vm: &VM| vm_reason(vm) == "Running" && vm.status.as_ref().is_some_and(|s| s.restart_token.is_some());
    world.until::<VM>("web", acted).await;
    attached(&world).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(both(&world));
    world.change::<VM>("web", json!({"disks": [{"name": "root", "boot": true}]})).await;
    let free = |d: &Disk| d.status.as_ref().is_some_and(|s| s.used_by.is_empty());
    world.until::<Disk>("more", free).await;
    assert!(!both(&world));
    world.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_deleted_disk_comes_back_from_the_trash_and_a_retained_one_stays_where_it_is() {
    let world = World::start().await;
    world.furnish().await;
    world.until::<Disk>("data", size("1Gi")).await;
    world.delete::<Disk>("data").await;
    world.until_gone::<Disk>("data").await;
    assert_eq!(world.system.trash_now(), [DATA]);
    let trash = |world: &World| {
        let client = world.client.clone();
        async move {
            let hosts: kube::Api<berth_api::Host> = kube::Api::all(client);
            hosts.get(HOST).await.expect("there").status.expect("reported").trash
        }
    };
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(trash(&world).await[0].name, "data");
    let mut disk = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "Disk", "spec": {"size": "1Gi"}});
    disk["metadata"] = json!({"name": "back", "namespace": "ns", "finalizers": [berth_api::HOST_FINALIZER],
        "annotations": {RESTORE_ANNOTATION: format!("{HOST}/{DATA}")}});
    let disk: Disk = serde_json::from_value(disk).expect("a Disk");
    world.api::<Disk>().create(&Default::default(), &disk).await.expect("created");
    let status = Patch::Merge(json!({"status": disk_bound(DATA)}));
    world.api::<Disk>().patch_status("back", &PatchParams::default(), &status).await.expect("bound");
    world.until::<Disk>("back", size("1Gi")).await;
    assert!(world.system.trash_now().is_empty());
    world.change::<Disk>("back", json!({"deletionPolicy": "Retain"})).await;
    world.delete::<Disk>("back").await;
    world.until_gone::<Disk>("back").await;
    assert!(world.system.volumes_now().contains_key(DATA) && world.system.trash_now().is_empty());
    assert!(world.system.volumes_now().contains_key(ROOT));
}

#[tokio::test(start_paused = true)]
async fn what_nobody_owns_is_reported_and_left_alone() {
    let world = running().await;
    world.system.hypervisor().add_foreign("somebody-elses");
    world.crash_agent().await;
    // Its VM goes without this host being asked: somebody took the finalizer off.
    let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    world.api::<VM>().patch("web", &PatchParams::default(), &patch).await.expect("patched");
    world.delete::<VM>("web").await;
    world.until_gone::<VM>("web").await;
    world.start_agent();
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(world.system.hypervisor().instances(), [INSTANCE]);
    let orphans = world.host().await.status.expect("reported").orphans;
    let kinds: Vec<&str> = orphans.iter().map(|o| o.kind.as_str()).collect();
    assert_eq!(kinds, ["Instance", "Process"], "{orphans:?}");
    let root = world.api::<Disk>().get("root").await.expect("there");
    assert_eq!(root.status.expect("reported").used_by.len(), 1, "its machine still has it open");
    assert_eq!(world.system.violations(), Vec::<String>::new());
}
