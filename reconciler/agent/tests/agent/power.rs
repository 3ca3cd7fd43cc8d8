//! Stopping, restarting, ending by itself, being adopted.

use std::time::Duration;

use berth_api::{Power, VM, VMState};
use serde_json::json;

use crate::world::{INSTANCE, World, is_ready, reason_of, vm_reason};

fn state(wanted: VMState) -> impl Fn(&VM) -> bool {
    move |vm| vm.status.as_ref().is_some_and(|s| s.state == Some(wanted))
}

async fn booted() -> World {
    let world = World::start().await;
    world.furnish().await;
    world.make_vm(json!({})).await;
    world.running_vm().await;
    seen(&world).await;
    world
}

async fn seen(world: &World) {
    let seen =
        |vm: &VM| vm.status.as_ref().is_some_and(|s| reason_of(&s.conditions, "GuestReady") == "GuestSeen");
    world.until::<VM>("web", seen).await;
}

fn pid(world: &World) -> i32 {
    world.system.hypervisor().view(INSTANCE).expect("it runs").identity.pid
}

#[tokio::test(start_paused = true)]
async fn a_restarted_agent_adopts_what_runs_with_the_same_pid() {
    let world = booted().await;
    let before = pid(&world);
    world.crash_agent().await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    world.start_agent();
    world.assert_quiet().await;
    let vm = world.running_vm().await;
    assert_eq!(vm.status.expect("reported").process.expect("it runs").pid, i64::from(before));
    assert_eq!((pid(&world), world.system.hypervisor().launches()), (before, 1));
}

#[tokio::test(start_paused = true)]
async fn a_guest_that_does_not_listen_is_asked_three_times_and_then_ended() {
    let world = booted().await;
    world.system.hypervisor().set_behaviour(INSTANCE, |b| b.ignores_powerdown = true);
    let start = tokio::time::Instant::now();
    world.change::<VM>("web", json!({"power": "Stopped", "stop": {"gracePeriodSeconds": 90}})).await;
    world.until::<VM>("web", |vm| is_ready(vm, "Stopped")).await;
    let took = start.elapsed();
    assert!(took >= Duration::from_secs(30) && took < Duration::from_secs(100), "{took:?}");
    assert!(world.system.hypervisor().instances().is_empty());
    world.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_hard_stop_does_not_ask() {
    let world = booted().await;
    world.system.hypervisor().set_behaviour(INSTANCE, |b| b.ignores_powerdown = true);
    let start = tokio::time::Instant::now();
    world.change::<VM>("web", json!({"power": "Stopped", "stop": {"mode": "Hard"}})).await;
    world.until::<VM>("web", |vm| is_ready(vm, "Stopped")).await;
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_guest_that_switches_itself_off_stays_off_until_somebody_wants_it() {
    let world = booted().await;
    world.crash_agent().await;
    world.system.hypervisor().guest_powers_off(INSTANCE);
    tokio::time::sleep(Duration::from_secs(5)).await;
    // Why it ended is told by QEMU, which waits for somebody to ask.
    world.start_agent();
    world.until::<VM>("web", |vm| vm_reason(vm) == "GuestEnded").await;
    assert!(world.system.hypervisor().instances().is_empty());
    world.assert_quiet().await;
    world.change::<VM>("web", json!({"restartToken": "again"})).await;
    let vm = world.running_vm().await;
    let status = vm.status.expect("reported");
    assert_eq!((status.restart_token.as_deref(), status.restarts), (Some("again"), 0));
}

#[tokio::test(start_paused = true)]
async fn a_vm_that_crashes_is_started_again_and_in_a_loop_ever_later() {
    let world = booted().await;
    world.system.hypervisor().crash(INSTANCE);
    let restarted = |n: i64| {
        move |vm: &VM| is_ready(vm, "Running") && vm.status.as_ref().is_some_and(|s| s.restarts == n)
    };
    world.until::<VM>("web", restarted(1)).await;
    world.system.hypervisor().guest_panics(INSTANCE);
    let vm = world.until::<VM>("web", state(VMState::CrashLoop)).await;
    assert_eq!(vm_reason(&vm), "CrashLoop");
    let start = tokio::time::Instant::now();
    world.until::<VM>("web", restarted(2)).await;
    assert!(start.elapsed() > Duration::from_secs(8), "{:?}", start.elapsed());
    assert_eq!(vm.spec.power, Power::Running);
}

#[tokio::test(start_paused = true)]
async fn another_restart_token_restarts_once() {
    let world = booted().await;
    let before = pid(&world);
    world.change::<VM>("web", json!({"restartToken": "1"})).await;
    let acted = |vm: &VM| {
        is_ready(vm, "Running") && vm.status.as_ref().is_some_and(|s| s.restart_token.as_deref() == Some("1"))
    };
    world.until::<VM>("web", acted).await;
    assert_ne!(pid(&world), before);
    world.assert_quiet().await;
    assert_eq!(world.system.hypervisor().launches(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_stop_that_is_taken_back_leaves_the_vm_running_in_the_end() {
    let world = booted().await;
    world.system.hypervisor().set_behaviour(INSTANCE, |b| b.shutdown_time = Duration::from_secs(20));
    world.change::<VM>("web", json!({"power": "Stopped"})).await;
    world.until::<VM>("web", state(VMState::Stopping)).await;
    world.change::<VM>("web", json!({"power": "Running"})).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let vm = world.running_vm().await;
    assert_eq!(vm.status.expect("reported").restarts, 0, "an end that was asked for is no crash");
    assert_eq!(world.system.hypervisor().launches(), 2);
    world.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_qemu_that_fails_at_start_says_why_and_is_tried_again() {
    let world = World::start().await;
    world.furnish().await;
    world
        .system
        .hypervisor()
        .set_behaviour(INSTANCE, |b| b.fails_at_start = Some("no such machine type".into()));
    world.make_vm(json!({})).await;
    let vm = world.until::<VM>("web", |vm| vm_reason(vm) == "QemuFailed").await;
    let status = vm.status.expect("reported");
    let stalled = berth_api::condition::find(&status.conditions, "Stalled").expect("stalled");
    assert!(stalled.message.contains("no such machine type"), "{}", stalled.message);
    tokio::time::sleep(Duration::from_secs(600)).await;
    world.system.hypervisor().set_behaviour(INSTANCE, |b| b.fails_at_start = None);
    world.running_vm().await;
}

#[tokio::test(start_paused = true)]
async fn a_host_without_qemu_says_so_and_goes_on_once_it_is_installed() {
    let world = World::start().await;
    world.furnish().await;
    let missing = "QEMU is not installed (Debian: apt install qemu-system-x86)";
    world.system.change_facts(|facts| facts.qemu = Err(missing.into()));
    world.make_vm(json!({})).await;
    world.until::<VM>("web", |vm| vm_reason(vm) == "QemuMissing").await;
    let qemu = berth_agent::system::QemuFacts {
        version: "7.2".into(),
        machine_type: "pc-q35-7.2".into(),
        cpu_model: "max".into(),
        uefi: true,
    };
    world.system.change_facts(|facts| facts.qemu = Ok(qemu));
    world.running_vm().await;
}

#[tokio::test(start_paused = true)]
async fn a_class_that_changes_takes_effect_at_the_next_power_cycle() {
    let world = booted().await;
    world.change::<berth_api::VMClass>("small", json!({"cpus": 2})).await;
    let synced = |reason: &'static str| {
        move |vm: &VM| vm.status.as_ref().is_some_and(|s| reason_of(&s.conditions, "ClassSynced") == reason)
    };
    let vm = world.until::<VM>("web", synced("PowerCycleNeeded")).await;
    assert!(is_ready(&vm, "Running"));
    world.change::<VM>("web", json!({"restartToken": "1"})).await;
    let vm = world.until::<VM>("web", synced("Synced")).await;
    assert_eq!(vm.status.and_then(|s| s.hardware).map(|h| h.cpus), Some(2));
}

#[tokio::test(start_paused = true)]
async fn a_guest_without_an_agent_counts_as_seen_once_it_took_its_address() {
    let world = World::start().await;
    world.furnish().await;
    world.system.hypervisor().set_behaviour(INSTANCE, |b| b.guest_agent = false);
    world.make_vm(json!({})).await;
    seen(&world).await;
    let vm = world.running_vm().await;
    assert!(!vm.status.and_then(|s| s.guest).expect("it runs").agent);
    world.assert_quiet().await;
}
