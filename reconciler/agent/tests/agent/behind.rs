//! An agent reports as true only that which it has observed: each test changes the host while no agent runs, and the next agent, which has the
//! former statuses only, reports what is there.

use berth_api::{Disk, HotswapDiskAttachment, Image, VM, condition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde_json::json;

use crate::disks::running;
use crate::fixture::{DATA, Fixture, IMAGE_URL, INSTANCE, ROOT, SHA256};

/// Changes the host while no agent runs.
async fn behind(fixture: &Fixture, change: impl FnOnce(&Fixture)) {
    fixture.crash_agent().await;
    change(fixture);
    fixture.start_agent();
}

/// Returns the status and the reason of a condition.
fn found(conditions: &[Condition], kind: &str) -> Option<(String, String)> {
    condition::find(conditions, kind).map(|found| (found.status.clone(), found.reason.clone()))
}

fn of_vm(vm: &VM, kind: &str) -> Option<(String, String)> {
    found(&vm.status.as_ref()?.conditions, kind)
}

fn is_true(vm: &VM, kind: &str) -> bool {
    of_vm(vm, kind).is_some_and(|(status, _)| status == "True")
}

async fn attached(fixture: &Fixture) {
    fixture.make_attachment().await;
    fixture.until::<HotswapDiskAttachment>("data", is_attached).await;
}

fn is_attached(attachment: &HotswapDiskAttachment) -> bool {
    let status = attachment.status.as_ref();
    let attached = status.and_then(|status| found(&status.conditions, "Attached"));
    attached.is_some_and(|(status, _)| status == "True")
}

#[tokio::test(start_paused = true)]
async fn no_condition_of_a_vm_stays_true_whose_machine_has_ended_meanwhile() {
    let fixture = running().await;
    fixture.change::<VM>("web", json!({"restartPolicy": "Never"})).await;
    let vm = fixture.running_vm().await;
    for kind in ["Ready", "Running", "GuestReady", "ClassSynced", "InterfacesSynced"] {
        assert!(is_true(&vm, kind), "{kind}: {:?}", of_vm(&vm, kind));
    }
    behind(&fixture, |fixture| fixture.system.hypervisor().crash(INSTANCE)).await;
    let vm = fixture.until::<VM>("web", |vm| !is_true(vm, "Running")).await;
    for kind in ["Ready", "Running", "GuestReady", "ClassSynced", "InterfacesSynced"] {
        assert!(!is_true(&vm, kind), "{kind}: {:?}", of_vm(&vm, kind));
    }
    let status = vm.status.expect("reported");
    assert_eq!((status.process, status.guest), (None, None));
    assert!(status.disks.iter().all(|disk| !disk.attached), "{:?}", status.disks);
    assert!(status.facts.is_empty(), "{:?}", status.facts);
    fixture.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_guest_whose_agent_is_gone_meanwhile_has_no_facts_of_it() {
    let fixture = running().await;
    let has_facts = |vm: &VM| {
        vm.status.as_ref().and_then(|s| s.guest.as_ref()).is_some_and(|g| g.agent && g.hostname.is_some())
    };
    fixture.until::<VM>("web", has_facts).await;
    behind(&fixture, |fixture| {
        fixture.system.hypervisor().set_behaviour(INSTANCE, |behaviour| behaviour.guest_agent = false);
    })
    .await;
    let is_gone = |vm: &VM| {
        let guest = vm.status.as_ref().and_then(|status| status.guest.as_ref());
        guest.is_some_and(|guest| !guest.agent && guest.hostname.is_none() && guest.os.is_none())
    };
    let vm = fixture.until::<VM>("web", is_gone).await;
    let conditions = vm.status.map(|status| status.conditions).unwrap_or_default();
    let ready = condition::find(&conditions, "GuestReady").expect("always there");
    assert_ne!(ready.message, "the guest agent answers");
    fixture.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_guest_that_was_paused_by_a_full_disk_meanwhile_does_not_run() {
    let fixture = running().await;
    behind(&fixture, |fixture| {
        let hypervisor = fixture.system.hypervisor();
        hypervisor.set_behaviour(INSTANCE, |behaviour| {
            behaviour.refuses.insert("cont".into(), "No space left on device".into());
        });
        hypervisor.disk_full(INSTANCE, ROOT);
    })
    .await;
    let paused = |vm: &VM| of_vm(vm, "Running") == Some(("False".into(), "NoSpace".into()));
    let vm = fixture.until::<VM>("web", paused).await;
    assert!(!is_true(&vm, "Ready") && !is_true(&vm, "GuestReady"), "{:?}", vm.status);
    fixture.system.hypervisor().set_behaviour(INSTANCE, |behaviour| behaviour.refuses.clear());
    fixture.running_vm().await;
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_was_unplugged_meanwhile_is_not_attached() {
    let fixture = running().await;
    attached(&fixture).await;
    behind(&fixture, |fixture| {
        let hypervisor = fixture.system.hypervisor();
        hypervisor.set_behaviour(INSTANCE, |behaviour| {
            behaviour.refuses.insert("device_add".into(), "no".into());
        });
        hypervisor.pull_device(INSTANCE, DATA);
    })
    .await;
    fixture.until::<HotswapDiskAttachment>("data", |attachment| !is_attached(attachment)).await;
    let vm = fixture
        .until::<VM>("web", |vm| {
            let disks = vm.status.iter().flat_map(|status| &status.disks);
            disks.filter(|disk| disk.name == "data").all(|disk| !disk.attached)
        })
        .await;
    assert!(is_true(&vm, "Running"), "{:?}", vm.status);
}

#[tokio::test(start_paused = true)]
async fn a_disk_whose_file_was_deleted_meanwhile_is_not_ready() {
    let fixture = Fixture::start().await;
    fixture.furnish().await;
    let ready = |disk: &Disk| {
        let status = disk.status.as_ref();
        status.and_then(|status| found(&status.conditions, "Ready"))
    };
    fixture.until::<Disk>("data", |disk| ready(disk).is_some_and(|(status, _)| status == "True")).await;
    behind(&fixture, |fixture| fixture.system.lose_volume(DATA)).await;
    fixture.until::<Disk>("data", |disk| ready(disk) == Some(("False".into(), "DiskLost".into()))).await;
    fixture.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn an_image_whose_file_was_deleted_meanwhile_is_not_in_the_cache() {
    let fixture = Fixture::start().await;
    fixture.furnish().await;
    let is_verified = |image: &Image| {
        let status = image.status.as_ref();
        let ready = status.and_then(|status| found(&status.conditions, "Ready"));
        ready == Some(("True".into(), "Verified".into()))
    };
    fixture.until::<Image>("debian", is_verified).await;
    behind(&fixture, |fixture| {
        fixture.system.remove_source(IMAGE_URL);
        fixture.system.lose_image(SHA256);
    })
    .await;
    let says_so = |image: &Image| {
        let ready = image.status.as_ref().and_then(|status| condition::find(&status.conditions, "Ready"));
        ready.is_some_and(|ready| ready.message.contains("not in the cache of its host"))
    };
    fixture.until::<Image>("debian", says_so).await;
}

#[tokio::test(start_paused = true)]
async fn rules_and_taps_that_were_removed_meanwhile_are_made_again() {
    let fixture = Fixture::start().await;
    fixture.furnish().await;
    fixture.make_vm(json!({"networkInterfaces": [{"name": "nic0"}]})).await;
    fixture.running_vm().await;
    fixture.assert_quiet().await;
    let (firewall, taps) = (fixture.system.firewall_now(), fixture.system.taps_now());
    behind(&fixture, |fixture| {
        fixture.system.lose_firewall();
        taps.iter().for_each(|tap| fixture.system.lose_tap(tap));
    })
    .await;
    for _ in 0..600 {
        if fixture.system.taps_now() == taps && fixture.system.firewall_now() == firewall {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    }
    assert_eq!((fixture.system.firewall_now(), fixture.system.taps_now()), (firewall, taps));
    fixture.running_vm().await;
}
