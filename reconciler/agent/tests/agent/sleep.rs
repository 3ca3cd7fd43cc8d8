//! Guests that are suspended to their memory.

use std::sync::Arc;
use std::time::Duration;

use berth_agent::{AtShutdown, HostShutdown};
use berth_api::{VM, VMState, condition};
use berth_qemu::power::RunState;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::fixture::{Fixture, INSTANCE, is_ready, reason_of, vm_reason};

fn state(wanted: VMState) -> impl Fn(&VM) -> bool {
    move |vm| vm.status.as_ref().is_some_and(|s| s.state == Some(wanted))
}

fn message(vm: &VM) -> String {
    let ready = vm.status.as_ref().and_then(|status| condition::find(&status.conditions, "Ready"));
    ready.map(|ready| ready.message.clone()).unwrap_or_default()
}

fn to_sleep() -> Value {
    json!({"power": "Suspended", "suspendMode": "Memory"})
}

async fn booted() -> Fixture {
    let fixture = Fixture::start().await;
    boots(&fixture).await;
    fixture
}

async fn boots(fixture: &Fixture) {
    fixture.furnish().await;
    fixture.make_vm(json!({})).await;
    fixture.running_vm().await;
    let seen =
        |vm: &VM| vm.status.as_ref().is_some_and(|s| reason_of(&s.conditions, "GuestReady") == "GuestSeen");
    fixture.until::<VM>("web", seen).await;
}

fn run_state(fixture: &Fixture) -> RunState {
    fixture.system.hypervisor().view(INSTANCE).expect("it has a QEMU").run_state
}

async fn falls_asleep(fixture: &Fixture) {
    fixture.change::<VM>("web", to_sleep()).await;
    fixture.until::<VM>("web", |vm| is_ready(vm, "Suspended") && state(VMState::Suspended)(vm)).await;
    assert_eq!(run_state(fixture), RunState::Suspended);
    assert!(fixture.system.saved_states_now().is_empty(), "its memory is in no file");
}

#[tokio::test(start_paused = true)]
async fn a_guest_sleeps_in_its_memory_and_wakes_up_in_the_same_process_also_after_the_agent_was_away() {
    let fixture = booted().await;
    falls_asleep(&fixture).await;
    fixture.assert_quiet().await;
    fixture.crash_agent().await;
    tokio::time::sleep(Duration::from_secs(3600)).await;
    fixture.start_agent();
    fixture.assert_quiet().await;
    assert_eq!(run_state(&fixture), RunState::Suspended, "it sleeps on");
    // Without a wait also if it slept and woke up a moment ago.
    for _ in 0..2 {
        let start = Instant::now();
        fixture.change::<VM>("web", json!({"power": "Running"})).await;
        fixture.running_vm().await;
        falls_asleep(&fixture).await;
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    }
    assert_eq!(fixture.system.hypervisor().launches(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_guest_that_cannot_sleep_runs_on_with_the_cause_in_its_condition() {
    let fixture = booted().await;
    let refusal = "the requested suspend mode is not supported by the guest";
    fixture
        .system
        .hypervisor()
        .set_behaviour(INSTANCE, |behaviour| behaviour.suspend_refused = Some(refusal.to_owned()));
    fixture.change::<VM>("web", to_sleep()).await;
    let refused = fixture.until::<VM>("web", |vm| vm_reason(vm) == "SuspendFailed").await;
    assert!(message(&refused).contains(refusal), "{}", message(&refused));
    assert!(state(VMState::Running)(&refused));
    fixture.assert_quiet().await;

    fixture.system.hypervisor().set_behaviour(INSTANCE, |behaviour| {
        behaviour.suspend_refused = None;
        behaviour.ignores_suspend = true;
    });
    fixture.until::<VM>("web", |vm| message(vm).contains("within 30 seconds")).await;
    fixture.assert_quiet().await;
    assert_eq!(run_state(&fixture), RunState::Running);

    fixture.system.hypervisor().set_behaviour(INSTANCE, |behaviour| behaviour.ignores_suspend = false);
    fixture.until::<VM>("web", |vm| is_ready(vm, "Suspended")).await;
}

#[tokio::test(start_paused = true)]
async fn a_guest_without_an_agent_is_not_suspended_to_its_memory() {
    let fixture = booted().await;
    fixture.system.hypervisor().set_behaviour(INSTANCE, |behaviour| behaviour.guest_agent = false);
    fixture.change::<VM>("web", to_sleep()).await;
    let refused = fixture.until::<VM>("web", |vm| vm_reason(vm) == "SuspendFailed").await;
    assert!(message(&refused).contains("no guest agent"), "{}", message(&refused));
    assert_eq!(run_state(&fixture), RunState::Running);
}

#[tokio::test(start_paused = true)]
async fn a_guest_that_wakes_up_by_itself_is_seen_to_run_and_sleeps_again_after_a_minute() {
    let fixture = booted().await;
    falls_asleep(&fixture).await;
    fixture.system.hypervisor().guest_wakes(INSTANCE);
    let start = Instant::now();
    fixture.until::<VM>("web", |vm| state(VMState::Running)(vm) && message(vm).contains("by itself")).await;
    fixture.until::<VM>("web", |vm| is_ready(vm, "Suspended") && state(VMState::Suspended)(vm)).await;
    assert!((58..90).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
    // One that is to run is woken up.
    fixture.change::<VM>("web", json!({"power": "Running"})).await;
    fixture.running_vm().await;
    fixture.system.hypervisor().guest_sleeps(INSTANCE);
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(run_state(&fixture), RunState::Running);
}

#[tokio::test(start_paused = true)]
async fn the_memory_of_a_sleeping_guest_is_lost_with_its_host_which_the_status_says() {
    let fixture = booted().await;
    falls_asleep(&fixture).await;
    fixture.crash_agent().await;
    fixture.system.hypervisor().reboot();
    fixture.start_agent();
    let lost = fixture.until::<VM>("web", |vm| vm_reason(vm) == "GuestEnded").await;
    assert!(state(VMState::Stopped)(&lost) && message(&lost).contains("is lost"), "{}", message(&lost));
    fixture.assert_quiet().await;
    fixture.change::<VM>("web", json!({"power": "Running"})).await;
    fixture.running_vm().await;
}

#[tokio::test(start_paused = true)]
async fn the_memory_of_a_sleeping_guest_is_saved_before_its_host_is_shut_down_and_is_there_after_the_boot() {
    let fixture = Fixture::without_agent().await;
    let shutdown = Arc::new(HostShutdown::default());
    let shared = shutdown.clone();
    fixture.start_agent_configured(|config| config.shutdown = shared);
    boots(&fixture).await;
    let boot = || fixture.system.hypervisor().view(INSTANCE).and_then(|view| view.boot);
    let before = boot();
    assert!(before.is_some(), "it has booted");
    falls_asleep(&fixture).await;
    shutdown.stop(AtShutdown::Suspend);
    let is_saved = |vm: &VM| fixture.system.hypervisor().instances().is_empty() && is_ready(vm, "Suspended");
    fixture.until::<VM>("web", is_saved).await;
    assert_eq!(fixture.system.saved_states_now().len(), 1, "its memory is in a file");
    fixture.crash_agent().await;
    fixture.system.hypervisor().reboot();
    fixture.start_agent();
    fixture.until::<VM>("web", |vm| is_ready(vm, "Suspended") && state(VMState::Suspended)(vm)).await;
    fixture.change::<VM>("web", json!({"power": "Running"})).await;
    fixture.running_vm().await;
    assert_eq!(boot(), before, "the guest did not boot again");
}
