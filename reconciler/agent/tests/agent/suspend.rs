//! Suspending and resuming.

use std::sync::Arc;
use std::time::Duration;

use berth_agent::{AtShutdown, HostShutdown};
use berth_api::{Host, HotswapDiskAttachment, VM, VMState};
use berth_qemu::power::RunState;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::fixture::{DATA, Fixture, HOST, INSTANCE, is_ready, reason_of, vm_reason};

fn state(wanted: VMState) -> impl Fn(&VM) -> bool {
    move |vm| vm.status.as_ref().is_some_and(|s| s.state == Some(wanted))
}

async fn booted() -> (Fixture, u64) {
    let fixture = Fixture::start().await;
    fixture.furnish().await;
    fixture.make_vm(json!({})).await;
    fixture.running_vm().await;
    let seen =
        |vm: &VM| vm.status.as_ref().is_some_and(|s| reason_of(&s.conditions, "GuestReady") == "GuestSeen");
    fixture.until::<VM>("web", seen).await;
    let boot = boot(&fixture).expect("it has booted");
    (fixture, boot)
}

fn boot(fixture: &Fixture) -> Option<u64> {
    fixture.system.hypervisor().view(INSTANCE)?.boot
}

async fn suspend(fixture: &Fixture) {
    fixture.change::<VM>("web", json!({"power": "Suspended"})).await;
    fixture.until::<VM>("web", |vm| is_ready(vm, "Suspended") && state(VMState::Suspended)(vm)).await;
    assert!(fixture.system.hypervisor().instances().is_empty(), "a suspended VM has no QEMU");
    assert_eq!(fixture.system.saved_states_now().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_suspended_guest_goes_on_where_it_was_also_after_the_agent_was_away() {
    let (fixture, before) = booted().await;
    suspend(&fixture).await;
    fixture.assert_quiet().await;
    fixture.crash_agent().await;
    tokio::time::sleep(Duration::from_secs(3600)).await;
    fixture.start_agent();
    fixture.assert_quiet().await;
    assert!(fixture.system.hypervisor().instances().is_empty(), "it stays suspended");
    let start = tokio::time::Instant::now();
    fixture.change::<VM>("web", json!({"power": "Running"})).await;
    fixture.running_vm().await;
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    assert_eq!(boot(&fixture), Some(before), "the guest did not boot again");
    assert!(fixture.system.saved_states_now().is_empty(), "a state is used once");
    fixture.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn guests_are_suspended_before_their_host_is_shut_down_and_go_on_after_the_boot() {
    let fixture = Fixture::without_agent().await;
    let shutdown = Arc::new(HostShutdown::default());
    let shared = shutdown.clone();
    fixture.start_agent_configured(|config| config.shutdown = shared);
    fixture.furnish().await;
    fixture.make_vm(json!({})).await;
    fixture.running_vm().await;
    let seen =
        |vm: &VM| vm.status.as_ref().is_some_and(|s| reason_of(&s.conditions, "GuestReady") == "GuestSeen");
    fixture.until::<VM>("web", seen).await;
    let before = boot(&fixture);
    assert!(before.is_some(), "it has booted");
    shutdown.stop(AtShutdown::Suspend);
    let is_suspended = |vm: &VM| vm_reason(vm) == "HostShuttingDown" && state(VMState::Suspended)(vm);
    fixture.until::<VM>("web", is_suspended).await;
    assert_eq!(fixture.system.saved_states_now().len(), 1);
    fixture.crash_agent().await;
    fixture.system.hypervisor().reboot();
    fixture.start_agent();
    fixture.running_vm().await;
    assert_eq!(boot(&fixture), before, "the guest did not boot again");
    assert!(fixture.system.saved_states_now().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_guest_whose_memory_does_not_fit_on_its_host_is_stopped_before_that_is_shut_down() {
    let fixture = Fixture::without_agent().await;
    let shutdown = Arc::new(HostShutdown::default());
    let shared = shutdown.clone();
    fixture.start_agent_configured(|config| config.shutdown = shared);
    fixture.furnish().await;
    fixture.make_vm(json!({})).await;
    fixture.running_vm().await;
    fixture.system.change_facts(|facts| facts.storage_free_bytes = 1 << 20);
    shutdown.stop(AtShutdown::Suspend);
    let is_off = |vm: &VM| vm_reason(vm) == "HostShuttingDown" && state(VMState::Stopped)(vm);
    fixture.until::<VM>("web", is_off).await;
    assert!(fixture.system.hypervisor().instances().is_empty());
    assert!(fixture.system.saved_states_now().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_guest_that_cannot_be_saved_runs_on() {
    let (fixture, before) = booted().await;
    fixture
        .system
        .hypervisor()
        .set_behaviour(INSTANCE, |b| b.save_fails = Some("the disk is broken".to_owned()));
    fixture.change::<VM>("web", json!({"power": "Suspended"})).await;
    fixture.until::<VM>("web", |vm| vm_reason(vm) == "SuspendFailed").await;
    fixture.until::<VM>("web", state(VMState::Running)).await;
    assert_eq!(fixture.system.hypervisor().view(INSTANCE).expect("it runs").run_state, RunState::Running);
    assert!(fixture.system.saved_states_now().is_empty(), "what is incomplete takes no space");
    fixture.system.hypervisor().set_behaviour(INSTANCE, |b| b.save_fails = None);
    fixture.until::<VM>("web", |vm| is_ready(vm, "Suspended")).await;
    fixture.change::<VM>("web", json!({"power": "Running"})).await;
    fixture.running_vm().await;
    assert_eq!(boot(&fixture), Some(before));
}

#[tokio::test(start_paused = true)]
async fn a_full_disk_of_the_host_is_noticed_before_the_guest_is_stopped() {
    let (fixture, _) = booted().await;
    fixture.system.change_facts(|facts| facts.storage_free_bytes = 1 << 20);
    fixture.change::<VM>("web", json!({"power": "Suspended"})).await;
    fixture.until::<VM>("web", |vm| vm_reason(vm) == "NoSpace").await;
    assert_eq!(fixture.system.hypervisor().view(INSTANCE).expect("it runs").run_state, RunState::Running);
    fixture.system.change_facts(|facts| facts.storage_free_bytes = 1 << 40);
    fixture.until::<VM>("web", |vm| is_ready(vm, "Suspended")).await;
}

#[tokio::test(start_paused = true)]
async fn a_guest_that_waits_for_room_for_its_memory_holds_up_no_drain() {
    let (fixture, _) = booted().await;
    fixture.system.change_facts(|facts| facts.storage_free_bytes = 1 << 20);
    fixture.change::<VM>("web", json!({"power": "Suspended"})).await;
    fixture.until::<VM>("web", |vm| vm_reason(vm) == "NoSpace").await;
    let hosts: Api<Host> = Api::all(fixture.client.clone());
    let draining = Patch::Merge(json!({"spec": {"draining": true}}));
    hosts.patch(HOST, &PatchParams::default(), &draining).await.expect("patched");
    fixture.until::<VM>("web", |vm| is_ready(vm, "Stopped") && state(VMState::Stopped)(vm)).await;
    assert!(fixture.system.hypervisor().instances().is_empty());
    assert!(fixture.system.saved_states_now().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_state_that_cannot_be_loaded_waits_for_a_person() {
    let (fixture, before) = booted().await;
    suspend(&fixture).await;
    fixture.system.hypervisor().set_behaviour(INSTANCE, |b| b.load_fails = Some("bad section".to_owned()));
    fixture.change::<VM>("web", json!({"power": "Running"})).await;
    fixture.until::<VM>("web", |vm| vm_reason(vm) == "ResumeFailed").await;
    fixture.assert_quiet().await;
    assert_eq!(fixture.system.saved_states_now().len(), 1, "it is kept");
    fixture.system.hypervisor().set_behaviour(INSTANCE, |b| b.load_fails = None);
    fixture.change::<VM>("web", json!({"power": "Suspended"})).await;
    fixture.until::<VM>("web", |vm| is_ready(vm, "Suspended")).await;
    fixture.change::<VM>("web", json!({"power": "Running"})).await;
    fixture.running_vm().await;
    assert_eq!(boot(&fixture), Some(before), "tried again");

    suspend(&fixture).await;
    fixture.change::<VM>("web", json!({"power": "Running", "restartToken": "boot"})).await;
    fixture.running_vm().await;
    assert_ne!(boot(&fixture), Some(before), "discarded by another token");
    assert!(fixture.system.saved_states_now().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_disk_of_a_suspended_guest_is_its_own_until_it_was_resumed() {
    let (fixture, before) = booted().await;
    fixture.make_attachment().await;
    let plugged =
        || fixture.system.hypervisor().view(INSTANCE).is_some_and(|view| view.disks.contains_key(DATA));
    fixture.until::<HotswapDiskAttachment>("data", |_| plugged()).await;
    suspend(&fixture).await;
    fixture.crash_agent().await;
    fixture.start_agent();
    fixture.delete::<HotswapDiskAttachment>("data").await;
    let waits = |a: &HotswapDiskAttachment| {
        a.status.as_ref().is_some_and(|s| reason_of(&s.conditions, "Ready") == "Detaching")
    };
    fixture.until::<HotswapDiskAttachment>("data", waits).await;
    tokio::time::sleep(Duration::from_secs(120)).await;
    fixture
        .until::<berth_api::Disk>("data", |disk| {
            disk.status.as_ref().is_some_and(|s| s.used_by.first().is_some_and(|user| user.vm == "web"))
        })
        .await;
    fixture.change::<VM>("web", json!({"power": "Running"})).await;
    fixture.until_gone::<HotswapDiskAttachment>("data").await;
    assert!(!plugged(), "it is released by the guest that goes on");
    assert_eq!(boot(&fixture), Some(before));
}
