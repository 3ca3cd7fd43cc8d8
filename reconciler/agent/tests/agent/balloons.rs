//! Memory that guests give back to their host.

use std::time::Duration;

use berth_api::VM;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::fixture::{Fixture, INSTANCE, is_ready};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// All memory of the fake host.
const ALL: u64 = 32 << 30;

async fn started(spec: Value) -> Fixture {
    let fixture = Fixture::start().await;
    fixture.furnish().await;
    fixture.make_vm(spec).await;
    fixture.running_vm().await;
    fixture
}

fn overcommitted() -> Value {
    json!({"memory": "512Mi", "memoryReservation": "256Mi"})
}

/// Returns the MiB in the balloon, after this time.
async fn ballooned(fixture: &Fixture, seconds: u64) -> u64 {
    sleep(Duration::from_secs(seconds)).await;
    fixture.system.hypervisor().view(INSTANCE).expect("it runs").ballooned / MIB
}

/// Returns how much the kernel's OOM killer prefers the QEMU.
fn oom_preference(fixture: &Fixture) -> u16 {
    fixture.system.hypervisor().view(INSTANCE).expect("it runs").oom_preference
}

fn kept(vm: &VM) -> Option<String> {
    vm.status.as_ref()?.hardware.as_ref()?.memory_reservation.clone()
}

#[tokio::test(start_paused = true)]
async fn a_guest_gives_memory_back_slowly_down_to_what_is_kept_for_it_and_gets_it_again() {
    let fixture = started(overcommitted()).await;
    fixture.until::<VM>("web", |vm| kept(vm).as_deref() == Some("256Mi")).await;
    assert_eq!(ballooned(&fixture, 60).await, 0, "the host has enough");
    fixture.system.set_available_memory(GIB);
    let first = ballooned(&fixture, 35).await;
    assert!((50..150).contains(&first), "a few steps of a twentieth: {first}");
    assert_eq!(ballooned(&fixture, 300).await, 256);
    fixture.assert_quiet().await;
    // Another agent continues with the balloons as they are.
    fixture.crash_agent().await;
    fixture.start_agent();
    assert_eq!(ballooned(&fixture, 60).await, 256);
    fixture.system.set_available_memory(ALL / 100 * 22);
    assert_eq!(ballooned(&fixture, 60).await, 256, "between the thresholds");
    fixture.system.set_available_memory(ALL);
    assert_eq!(ballooned(&fixture, 300).await, 0);
    fixture.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_guest_that_loses_its_reservation_gets_its_memory_back_at_once_also_by_another_agent() {
    let fixture = started(overcommitted()).await;
    fixture.system.set_available_memory(GIB);
    assert_eq!(ballooned(&fixture, 300).await, 256);
    assert_eq!(oom_preference(&fixture), 993, "256 MiB are kept of 32 GiB");
    fixture.change::<VM>("web", json!({"memoryReservation": "384Mi"})).await;
    assert_eq!(ballooned(&fixture, 15).await, 128);
    fixture.crash_agent().await;
    fixture.change::<VM>("web", json!({"memoryReservation": null})).await;
    fixture.start_agent();
    assert_eq!(ballooned(&fixture, 60).await, 0, "the host is short of memory");
    fixture.until::<VM>("web", |vm| kept(vm).is_none()).await;
    assert_eq!(oom_preference(&fixture), 0);
    fixture.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn guests_without_a_reservation_or_without_a_driver_or_that_are_paused_give_nothing() {
    let fixture = started(json!({"memory": "512Mi"})).await;
    fixture.system.set_available_memory(GIB);
    assert_eq!(ballooned(&fixture, 120).await, 0);
    fixture.system.hypervisor().set_behaviour(INSTANCE, |guest| guest.balloons = false);
    fixture.change::<VM>("web", json!({"memoryReservation": "256Mi"})).await;
    assert_eq!(ballooned(&fixture, 120).await, 0);
    fixture.change::<VM>("web", json!({"power": "Paused"})).await;
    fixture.until::<VM>("web", |vm| is_ready(vm, "Paused")).await;
    fixture.system.hypervisor().set_behaviour(INSTANCE, |guest| guest.balloons = true);
    assert_eq!(ballooned(&fixture, 120).await, 0);
    fixture.change::<VM>("web", json!({"power": "Running"})).await;
    assert_eq!(ballooned(&fixture, 300).await, 256);
    fixture.assert_quiet().await;
}
