//! A VM's life, from its making to its end.

use std::time::Duration;

use berth_api::{AttachmentState, Disk, DiskState, HotswapDiskAttachment, Image, VM, VMClass, VMState};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::world::{DATA, HOST, INSTANCE, ROOT, SHA256, World, is_ready, vm_reason};

#[tokio::test(start_paused = true)]
async fn a_vm_is_made_runs_gets_a_disk_stops_and_goes_without_a_trace() {
    let world = World::start().await;
    world.set_retention(600).await;
    world.furnish().await;
    let vm = world.make_vm(json!({"networkInterfaces": [{"name": "nic0", "publicIP": "web"}]})).await;
    world.make_public_ip(&vm).await;

    let vm = world.running_vm().await;
    let status = vm.status.expect("reported");
    assert_eq!(status.state, Some(VMState::Running));
    assert_eq!(status.public_address.as_deref(), Some("198.18.100.5"));
    let hardware = status.hardware.expect("pinned");
    assert_eq!((hardware.machine_type.as_str(), hardware.accelerator.as_str()), ("pc-q35-7.2", "tcg"));
    assert_eq!(world.system.pulls(), 1);
    let guest = world
        .until::<VM>("web", |vm| vm.status.as_ref().and_then(|s| s.guest.as_ref()).is_some_and(|g| g.agent));
    guest.await;

    world.make_attachment().await;
    let attached = world
        .until::<HotswapDiskAttachment>("data", |a| {
            a.status.as_ref().is_some_and(|s| s.state == Some(AttachmentState::Attached))
        })
        .await;
    assert!(attached.status.expect("reported").device.is_some());
    let view = world.system.hypervisor().view(INSTANCE).expect("it runs");
    assert_eq!(view.disks.keys().filter(|id| *id != "seed").collect::<Vec<_>>(), [ROOT, DATA]);

    world.delete::<HotswapDiskAttachment>("data").await;
    world.until_gone::<HotswapDiskAttachment>("data").await;
    let view = world.system.hypervisor().view(INSTANCE).expect("it still runs");
    assert!(!view.disks.contains_key(DATA) && !view.nodes.iter().any(|node| node == DATA));

    world.change::<VM>("web", json!({"power": "Stopped"})).await;
    world.until::<VM>("web", |vm| is_ready(vm, "Stopped")).await;
    assert!(world.system.hypervisor().instances().is_empty());

    world.delete::<VM>("web").await;
    world.until_gone::<VM>("web").await;
    for disk in ["root", "data"] {
        world.until::<Disk>(disk, |d| d.status.as_ref().is_some_and(|s| s.used_by.is_empty())).await;
        world.delete::<Disk>(disk).await;
        world.until_gone::<Disk>(disk).await;
    }
    assert_eq!(world.system.trash_now(), [ROOT, DATA]);
    world.delete::<Image>("debian").await;
    // The trash still stands on the image; once its time is over both go.
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(world.system.leftovers().images, [SHA256]);
    tokio::time::sleep(Duration::from_secs(900)).await;
    let left = world.system.leftovers();
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(world.system.violations(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn what_is_converged_is_left_alone() {
    let world = World::start().await;
    world.furnish().await;
    world.make_vm(json!({})).await;
    world.make_attachment().await;
    world.running_vm().await;
    world.assert_quiet().await;
    assert_eq!(world.system.hypervisor().launches(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_host_registers_and_says_what_it_has() {
    let world = World::start().await;
    let host = world.host().await;
    assert_eq!(
        host.metadata.labels.as_ref().and_then(|l| l.get("kubernetes.io/hostname")).map(String::as_str),
        Some(HOST)
    );
    let status = host.status.expect("reported");
    assert_eq!(status.accelerator.as_deref(), Some("tcg"));
    assert_eq!(status.allocatable.expect("offered").cpus, 32);
    world.furnish().await;
    world.make_vm(json!({})).await;
    world.running_vm().await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let status = world.host().await.status.expect("reported");
    assert_eq!((status.vms, status.free.expect("offered").cpus), (1, 31));
    assert_eq!(status.images, [SHA256]);
    assert!(status.orphans.is_empty(), "{:?}", status.orphans);
}

#[tokio::test(start_paused = true)]
async fn what_a_vm_waits_for_is_said_and_when_it_comes_the_vm_goes_on_by_itself() {
    let world = World::start().await;
    let reason = |wanted: &'static str| move |vm: &VM| vm_reason(vm) == wanted;
    let vm = world
        .make_vm(json!({
            "networkInterfaces": [{"name": "nic0", "publicIP": "web"}],
            "bootstrap": {"secretName": "web-bootstrap"},
        }))
        .await;
    world.until::<VM>("web", reason("WaitingForClass")).await;
    world.make::<VMClass>("small", json!({"cpus": 1, "memory": "512Mi"}), None).await;
    world.until::<VM>("web", reason("WaitingForDisk")).await;
    let root = json!({"image": "debian", "size": "4Gi"});
    world.make::<Disk>("root", root, Some(crate::world::disk_bound(ROOT))).await;
    let waits = |d: &Disk| {
        d.status
            .as_ref()
            .is_some_and(|s| crate::world::reason_of(&s.conditions, "Ready") == "WaitingForImage")
    };
    world.until::<Disk>("root", waits).await;
    let url = crate::world::IMAGE_URL;
    let source = berth_agent::fake::FakeSource {
        sha256: SHA256.into(),
        format: berth_qemu::machine::Format::Qcow2,
        virtual_size: 1 << 30,
        bytes: 1 << 20,
        refused: None,
    };
    world.system.add_source(url, source);
    world.make::<Image>("debian", json!({"source": {"url": url, "sha256": SHA256}}), None).await;
    world.until::<VM>("web", reason("WaitingForPublicIP")).await;
    world.make_public_ip(&vm).await;
    world.until::<VM>("web", reason("WaitingForBootstrap")).await;
    let secret = json!({"metadata": {"name": "web-bootstrap"}, "stringData": {"userData": "canary"}});
    let secret: Secret = serde_json::from_value(secret).expect("a Secret");
    world.api::<Secret>().create(&Default::default(), &secret).await.expect("created");
    let vm = world.running_vm().await;
    assert!(!format!("{vm:?}").contains("canary"));
    let root = world
        .until::<Disk>("root", |d| d.status.as_ref().is_some_and(|s| s.state == Some(DiskState::InUse)))
        .await;
    assert_eq!(root.status.expect("reported").used_by[0].vm, "web");
}

#[tokio::test(start_paused = true)]
async fn a_vm_that_was_never_started_goes_too() {
    let world = World::start().await;
    world.make_vm(json!({})).await;
    world.until::<VM>("web", |vm| vm_reason(vm) == "WaitingForClass").await;
    world.delete::<VM>("web").await;
    world.until_gone::<VM>("web").await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(world.system.leftovers().is_empty(), "{:?}", world.system.leftovers());
}

/// What was looked at in twenty minutes in which nobody asked for anything.
#[derive(Debug)]
struct Looks {
    networks: u64,
    hosts: u64,
    guests: u64,
}

impl Looks {
    async fn count(world: &World) -> Self {
        let before = world.system.calls();
        tokio::time::sleep(Duration::from_secs(1200)).await;
        let after = world.system.calls();
        let more = |name| after.get(name).copied().unwrap_or(0) - before.get(name).copied().unwrap_or(0);
        Self { networks: more("taps"), hosts: more("strangers"), guests: more("instances") }
    }
}

#[tokio::test(start_paused = true)]
async fn a_look_at_the_networks_asks_for_every_guest_only_where_a_tap_is_nobodys() {
    let world = World::start().await;
    world.furnish().await;
    world.make_vm(json!({})).await;
    world.running_vm().await;
    let known = Looks::count(&world).await;
    // Each look at the host asks for them too, and one may be under way.
    assert!(known.networks >= 3 && known.guests <= known.hosts + 1, "{known:?}");

    // The VM is forgotten while nobody looks; its guest runs on.
    world.crash_agent().await;
    let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    world.api::<VM>().patch("web", &PatchParams::default(), &free).await.expect("changed");
    world.delete::<VM>("web").await;
    world.until_gone::<VM>("web").await;
    world.start_agent();
    let strange = Looks::count(&world).await;
    assert!(strange.guests >= strange.hosts + strange.networks, "{strange:?}");
    assert_eq!(world.system.hypervisor().instances(), [INSTANCE]);
}
