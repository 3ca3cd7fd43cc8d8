//! The life of a VM, from creation to deletion.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use berth_api::{
    AttachmentState, ConditionType, Disk, DiskState, HotswapDiskAttachment, Image, VM, VMClass, VMState,
    condition, host_addresses::HOST_ADDRESSES, vm::VMOperationName,
};
use berth_host::fake::{FaultAction, Faults, NoFaults, When};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;

use crate::fixture::{DATA, Fixture, HOST, INSTANCE, ROOT, SHA256, is_ready, vm_bound, vm_reason};

#[tokio::test(start_paused = true)]
async fn the_start_of_a_guest_that_comes_as_soon_as_the_one_before_is_reported_once() {
    let fixture = Fixture::start().await;
    fixture.furnish().await;
    fixture.make_vm(json!({})).await;
    fixture.running_vm().await;
    let is =
        |vm: &VM, kind| vm.status.as_ref().is_some_and(|status| condition::is_true(&status.conditions, kind));
    fixture.until::<VM>("web", |vm| is(vm, ConditionType::GuestReady)).await;
    fixture.change::<VM>("web", json!({"power": "Stopped"})).await;
    fixture
        .until::<VM>("web", |vm| vm.status.as_ref().is_some_and(|s| s.state == Some(VMState::Stopped)))
        .await;
    fixture.change::<VM>("web", json!({"power": "Running"})).await;
    for _ in 0..1000 {
        let vm = fixture.api::<VM>().get("web").await.expect("it answers");
        if is(&vm, ConditionType::GuestReady) {
            return;
        }
        assert!(!is(&vm, ConditionType::Running), "its start was reported by itself: {:?}", vm.status);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("its guest never came");
}

#[tokio::test(start_paused = true)]
async fn the_reports_of_a_vm_make_nothing_else_on_its_host_reconcile() {
    let fixture = Fixture::start().await;
    fixture.furnish().await;
    fixture.until::<Disk>("root", |disk| disk.status.as_ref().is_some_and(|s| s.size.is_some())).await;
    fixture.host().await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let before = fixture.system.calls();
    fixture.make_vm(json!({})).await;
    fixture.running_vm().await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let after = fixture.system.calls();
    let made = |call: &str| after[call] - before.get(call).copied().unwrap_or_default();
    assert!(made("networks") <= 3, "{} passes over the networks", made("networks"));
    assert!(made("foreign") <= 2, "{} passes over the host", made("foreign"));
    assert!(made("read_journal") <= 10, "{} observations of the VM", made("read_journal"));
    // By passes over the host, and by those over the networks that make a bridge: those of a real host grow with its guests.
    assert!(made("facts") <= made("foreign") + made("networks"), "{} readings of all facts", made("facts"));
    assert!(made("machine_facts") <= made("read_journal"), "{} readings for a start", made("machine_facts"));
}

#[tokio::test(start_paused = true)]
async fn a_vm_that_waits_for_the_image_of_its_disk_has_the_download_as_its_operation() {
    let fixture = Fixture::start().await;
    fixture.furnish().await;
    fixture.make_vm(json!({})).await;
    let operation = |vm: &VM| vm.status.as_ref()?.operation.as_ref().map(|operation| operation.name);
    fixture.until::<VM>("web", |vm| operation(vm) == Some(VMOperationName::Download)).await;
    assert_eq!(operation(&fixture.running_vm().await), None);
    fixture.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_vm_is_made_runs_gets_a_disk_stops_and_goes_without_a_trace() {
    let fixture = Fixture::start().await;
    fixture.set_retention(600).await;
    fixture.furnish().await;
    let vm = fixture.make_vm(json!({"networkInterfaces": [{"name": "nic0", "publicIP": "web"}]})).await;
    fixture.make_public_ip(&vm).await;

    let vm = fixture.running_vm().await;
    let status = vm.status.expect("reported");
    assert_eq!(status.state, Some(VMState::Running));
    assert_eq!(status.public_address.as_deref(), Some("198.18.100.5"));
    let hardware = status.hardware.expect("pinned");
    assert_eq!((hardware.machine_type.as_str(), hardware.accelerator.as_str()), ("pc-q35-7.2", "tcg"));
    assert_eq!(fixture.system.pulls(), 1);
    let guest = fixture
        .until::<VM>("web", |vm| vm.status.as_ref().and_then(|s| s.guest.as_ref()).is_some_and(|g| g.agent));
    guest.await;

    fixture.make_attachment().await;
    let attached = fixture
        .until::<HotswapDiskAttachment>("data", |a| {
            a.status.as_ref().is_some_and(|s| s.state == Some(AttachmentState::Attached))
        })
        .await;
    assert!(attached.status.expect("reported").device.is_some());
    let view = fixture.system.hypervisor().view(INSTANCE).expect("it runs");
    assert_eq!(view.disks.keys().filter(|id| *id != "seed").collect::<Vec<_>>(), [ROOT, DATA]);

    fixture.delete::<HotswapDiskAttachment>("data").await;
    fixture.until_gone::<HotswapDiskAttachment>("data").await;
    let view = fixture.system.hypervisor().view(INSTANCE).expect("it still runs");
    assert!(!view.disks.contains_key(DATA) && !view.nodes.iter().any(|node| node == DATA));

    fixture.change::<VM>("web", json!({"power": "Stopped"})).await;
    fixture.until::<VM>("web", |vm| is_ready(vm, "Stopped")).await;
    assert!(fixture.system.hypervisor().instances().is_empty());

    fixture.delete::<VM>("web").await;
    fixture.until_gone::<VM>("web").await;
    for disk in ["root", "data"] {
        fixture.until::<Disk>(disk, |d| d.status.as_ref().is_some_and(|s| s.used_by.is_empty())).await;
        fixture.delete::<Disk>(disk).await;
        fixture.until_gone::<Disk>(disk).await;
    }
    assert_eq!(fixture.system.trash_now(), [ROOT, DATA]);
    fixture.delete::<Image>("debian").await;
    // The trash still depends on the image; once its retention is over both are removed.
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(fixture.system.leftovers().images, [SHA256]);
    tokio::time::sleep(Duration::from_secs(900)).await;
    let left = fixture.system.leftovers();
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(fixture.system.violations(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn what_is_converged_is_left_alone() {
    let fixture = Fixture::start().await;
    fixture.furnish().await;
    fixture.make_vm(json!({})).await;
    fixture.make_attachment().await;
    fixture.running_vm().await;
    fixture.assert_quiet().await;
    assert_eq!(fixture.system.hypervisor().launches(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_host_registers_and_says_what_it_has() {
    let fixture = Fixture::start().await;
    let host = fixture.host().await;
    assert_eq!(
        host.metadata.labels.as_ref().and_then(|l| l.get("kubernetes.io/hostname")).map(String::as_str),
        Some(HOST)
    );
    let status = host.status.expect("reported");
    assert_eq!(status.accelerator.as_deref(), Some("tcg"));
    assert_eq!(status.allocatable.expect("offered").cpus, 32);
    fixture.furnish().await;
    fixture.make_vm(json!({})).await;
    fixture.running_vm().await;
    tokio::time::sleep(Duration::from_secs(32)).await;
    let status = fixture.host().await.status.expect("reported");
    assert_eq!((status.vms, status.free.expect("offered").cpus), (1, 31));
    assert_eq!(status.images, [SHA256]);
    assert!(status.orphans.is_empty(), "{:?}", status.orphans);
}

/// Makes one call of the host fail always.
#[derive(Debug)]
pub(crate) struct Failing(pub(crate) &'static str);

#[async_trait]
impl Faults for Failing {
    async fn fault(&self, call: &'static str, _: When) -> FaultAction {
        if call == self.0 { FaultAction::Error } else { FaultAction::Continue }
    }
}

#[tokio::test(start_paused = true)]
async fn a_host_reports_although_its_housekeeping_fails_and_tries_that_again() {
    let fixture = Fixture::start().await;
    fixture.furnish().await;
    fixture.make_vm(json!({})).await;
    fixture.running_vm().await;
    fixture.delete::<VM>("web").await;
    fixture.until_gone::<VM>("web").await;
    fixture.set_retention(60).await;
    let hosts: Api<berth_api::Host> = Api::all(fixture.client.clone());
    fixture.delete::<Disk>("root").await;
    fixture.until_gone::<Disk>("root").await;
    fixture.delete::<Image>("debian").await;
    for (call, is_cordoned) in [("purge_trash", true), ("remove_image", false)] {
        fixture.system.set_faults(Arc::new(Failing(call)));
        // The trash is past its retention, and nothing depends on the image any more.
        tokio::time::sleep(Duration::from_secs(600)).await;
        let cordoned = Patch::Merge(json!({"spec": {"cordoned": is_cordoned}}));
        let wanted = hosts.patch(HOST, &PatchParams::default(), &cordoned).await.expect("patched");
        tokio::time::sleep(Duration::from_secs(5)).await;
        let status = fixture.host().await.status.expect("reported");
        assert_eq!(Some(status.observed_generation), wanted.metadata.generation, "while {call} fails");
    }
    assert!(fixture.system.trash_now().is_empty(), "tried again");
    assert_eq!(fixture.system.leftovers().images, [SHA256]);
    fixture.system.set_faults(Arc::new(NoFaults));
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(fixture.system.leftovers().images.is_empty(), "tried again");
}

#[tokio::test(start_paused = true)]
async fn what_a_vm_waits_for_is_said_and_when_it_comes_the_vm_goes_on_by_itself() {
    let fixture = Fixture::start().await;
    let reason = |wanted: &'static str| move |vm: &VM| vm_reason(vm) == wanted;
    let vm = fixture
        .make_vm(json!({
            "networkInterfaces": [{"name": "nic0", "publicIP": "web"}],
            "bootstrap": {"secretName": "web-bootstrap"},
        }))
        .await;
    fixture.until::<VM>("web", reason("WaitingForClass")).await;
    fixture.make::<VMClass>("small", json!({"cpus": 1, "memory": "512Mi"}), None).await;
    fixture.until::<VM>("web", reason("WaitingForDisk")).await;
    let root = json!({"image": "debian", "size": "4Gi"});
    fixture.make::<Disk>("root", root, Some(crate::fixture::disk_bound(ROOT))).await;
    let waits = |d: &Disk| {
        d.status
            .as_ref()
            .is_some_and(|s| crate::fixture::reason_of(&s.conditions, "Ready") == "WaitingForImage")
    };
    fixture.until::<Disk>("root", waits).await;
    let url = crate::fixture::IMAGE_URL;
    let source = berth_host::fake::FakeSource {
        sha256: SHA256.into(),
        format: berth_qemu::machine::Format::Qcow2,
        virtual_size: 1 << 30,
        bytes: 1 << 20,
        refused: None,
    };
    fixture.system.add_source(url, source);
    fixture.make::<Image>("debian", json!({"source": {"url": url, "sha256": SHA256}}), None).await;
    fixture.until::<VM>("web", reason("WaitingForPublicIP")).await;
    fixture.make_public_ip(&vm).await;
    fixture.until::<VM>("web", reason("WaitingForBootstrap")).await;
    let secret = json!({"metadata": {"name": "web-bootstrap"}, "stringData": {"userData": "canary"}});
    let secret: Secret = serde_json::from_value(secret).expect("a Secret");
    fixture.api::<Secret>().create(&Default::default(), &secret).await.expect("created");
    let vm = fixture.running_vm().await;
    assert!(!format!("{vm:?}").contains("canary"));
    let root = fixture
        .until::<Disk>("root", |d| d.status.as_ref().is_some_and(|s| s.state == Some(DiskState::InUse)))
        .await;
    assert_eq!(root.status.expect("reported").used_by[0].vm, "web");
}

#[tokio::test(start_paused = true)]
async fn a_vm_that_was_never_started_goes_too() {
    let fixture = Fixture::start().await;
    fixture.make_vm(json!({})).await;
    fixture.until::<VM>("web", |vm| vm_reason(vm) == "WaitingForClass").await;
    fixture.delete::<VM>("web").await;
    fixture.until_gone::<VM>("web").await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(fixture.system.leftovers().is_empty(), "{:?}", fixture.system.leftovers());
}

/// Number of observations during twenty minutes without any request.
#[derive(Debug)]
struct Looks {
    networks: u64,
    hosts: u64,
    guests: u64,
}

impl Looks {
    async fn count(fixture: &Fixture) -> Self {
        let before = fixture.system.calls();
        tokio::time::sleep(Duration::from_secs(1200)).await;
        let after = fixture.system.calls();
        let more = |name| after.get(name).copied().unwrap_or(0) - before.get(name).copied().unwrap_or(0);
        Self { networks: more("taps"), hosts: more("foreign"), guests: more("instances") }
    }
}

/// The controllers refuse such a VM; the agent does not rely on that.
#[tokio::test(start_paused = true)]
async fn a_vm_that_is_bound_with_the_mac_of_an_older_one_is_not_started_while_that_one_exists() {
    let fixture = Fixture::start().await;
    fixture.furnish().await;
    fixture.make_vm(json!({})).await;
    fixture.running_vm().await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let mut bound = vm_bound("i-ba9876543210", 3);
    bound["interfaces"][0]["macAddress"] = json!("52:54:00:00:00:02");
    let spec = json!({"class": "small", "disks": [{"name": "data", "boot": true}]});
    fixture.make::<VM>("twin", spec, Some(bound)).await;
    let stalled = |vm: &VM| {
        let conditions = vm.status.iter().flat_map(|s| &s.conditions);
        let mut stalled = conditions.filter(|c| c.type_ == "Stalled" && c.status == "True");
        stalled.any(|c| c.message.contains("another VM on this host has MAC address 52:54:00:00:00:02"))
    };
    fixture.until::<VM>("twin", stalled).await;
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(fixture.system.hypervisor().instances(), [INSTANCE]);
    assert!(
        is_ready(&fixture.api::<VM>().get("web").await.expect("there"), "Running"),
        "the older one goes on"
    );
    fixture.delete::<VM>("web").await;
    fixture.until_gone::<VM>("web").await;
    fixture.until::<VM>("twin", |vm| is_ready(vm, "Running")).await;
    assert_eq!(fixture.system.violations(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_knows_no_list_of_hosts_leaves_the_firewall_as_it_is() {
    let fixture = Fixture::start().await;
    fixture.furnish().await;
    fixture.make_vm(json!({})).await;
    fixture.running_vm().await;
    let applied = || fixture.system.calls().get("apply_firewall").copied().unwrap_or_default();
    let (firewall, before) = (fixture.system.firewall_now(), applied());
    assert!(!firewall.closed.is_empty(), "{firewall:?}");
    fixture.crash_agent().await;
    let maps: Api<ConfigMap> = Api::namespaced(fixture.client.clone(), "berth-system");
    let list = maps.get(HOST_ADDRESSES).await.expect("there is a list");
    maps.delete(HOST_ADDRESSES, &DeleteParams::default()).await.expect("deleted");
    fixture.start_agent();
    tokio::time::sleep(Duration::from_secs(1200)).await;
    assert_eq!((fixture.system.firewall_now(), applied()), (firewall.clone(), before));
    let again = ConfigMap { data: list.data, ..ConfigMap::default() };
    let again =
        ConfigMap { metadata: ObjectMeta { name: list.metadata.name, ..ObjectMeta::default() }, ..again };
    maps.create(&PostParams::default(), &again).await.expect("created");
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(fixture.system.firewall_now(), firewall);
    assert!(applied() > before, "it is made sure of again");
}

#[tokio::test(start_paused = true)]
async fn a_look_at_the_networks_asks_for_every_guest_only_where_a_tap_is_nobodys() {
    let fixture = Fixture::start().await;
    fixture.furnish().await;
    fixture.make_vm(json!({})).await;
    fixture.running_vm().await;
    let known = Looks::count(&fixture).await;
    // Each observation of the host reads them too, and one may be in progress.
    assert!(known.networks >= 3 && known.guests <= known.hosts + 1, "{known:?}");

    // The VM is lost while no agent runs; its guest keeps running.
    fixture.crash_agent().await;
    let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    fixture.api::<VM>().patch("web", &PatchParams::default(), &free).await.expect("changed");
    fixture.delete::<VM>("web").await;
    fixture.until_gone::<VM>("web").await;
    fixture.start_agent();
    let strange = Looks::count(&fixture).await;
    assert!(strange.guests >= strange.hosts + strange.networks, "{strange:?}");
    assert_eq!(fixture.system.hypervisor().instances(), [INSTANCE]);
}
