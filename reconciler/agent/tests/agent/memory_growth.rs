//! Memory that a running guest gets and gives back.

use std::time::Duration;

use berth_api::VM;
use serde_json::json;
use tokio::time::Instant;

use crate::fixture::{Fixture, INSTANCE, is_ready, reason_of, vm_reason};

/// A VM that runs with 512 MiB and room for 2 GiB.
async fn growing() -> Fixture {
    let fixture = Fixture::start().await;
    fixture.furnish().await;
    fixture.make_vm(json!({})).await;
    fixture.running_vm().await;
    fixture.change::<VM>("web", json!({"memory": "512Mi", "maxMemory": "2Gi", "restartToken": "1"})).await;
    fixture.until::<VM>("web", has("512Mi", &[])).await;
    fixture
}

fn has(memory: &'static str, pending: &'static [&'static str]) -> impl Fn(&VM) -> bool {
    move |vm| {
        let status = vm.status.clone().unwrap_or_default();
        is_ready(vm, "Running")
            && status.pending_power_cycle == pending
            && status.hardware.is_some_and(|h| h.memory == memory && h.max_memory.as_deref() == Some("2Gi"))
    }
}

fn set_plugs_memory(fixture: &Fixture, plugs: bool) {
    fixture.system.hypervisor().set_behaviour(INSTANCE, |behaviour| behaviour.plugs_memory = plugs);
}

fn class_synced(vm: &VM) -> String {
    vm.status.as_ref().map(|status| reason_of(&status.conditions, "ClassSynced")).unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn a_running_guest_gets_memory_and_gives_it_back_within_its_bounds() {
    let fixture = growing().await;
    let pid = |vm: VM| vm.status.and_then(|s| s.process).map(|process| process.pid);
    let started = pid(fixture.until::<VM>("web", has("512Mi", &[])).await);
    for memory in ["1Gi", "2Gi", "512Mi"] {
        fixture.change::<VM>("web", json!({"memory": memory})).await;
        let vm = fixture.until::<VM>("web", has(memory, &[])).await;
        assert_eq!(pid(vm), started, "{memory}: it was not restarted");
    }
    fixture.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_vm_is_ready_once_its_guest_has_taken_the_memory_and_nothing_waits_for_a_power_cycle_before() {
    let fixture = growing().await;
    set_plugs_memory(&fixture, false);
    fixture.change::<VM>("web", json!({"memory": "1Gi"})).await;
    let is_under_way = |vm: &VM| {
        let status = vm.status.clone().unwrap_or_default();
        // The provider ends its wait, and reads the status, when it is ready.
        let is_current = Some(status.observed_generation) == vm.metadata.generation;
        assert!(!is_current || status.pending_power_cycle.is_empty(), "{status:?}");
        is_current && vm_reason(vm) == "Attaching"
    };
    let vm = fixture.until::<VM>("web", is_under_way).await;
    assert_eq!(class_synced(&vm), "Attaching");
    // A restart of the agent in between changes nothing: the time of the request is in the journal.
    fixture.stop_agent().await;
    fixture.start_agent();
    tokio::time::sleep(Duration::from_secs(20)).await;
    let vm = fixture.until::<VM>("web", is_under_way).await;
    assert_eq!(vm.status.and_then(|s| s.hardware).map(|h| h.memory).as_deref(), Some("512Mi"));
    set_plugs_memory(&fixture, true);
    let vm = fixture.until::<VM>("web", has("1Gi", &[])).await;
    assert_eq!(class_synced(&vm), "Synced");
    fixture.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn memory_that_the_guest_does_not_take_waits_for_a_power_cycle_after_a_minute() {
    let fixture = growing().await;
    set_plugs_memory(&fixture, false);
    let declared = Instant::now();
    fixture.change::<VM>("web", json!({"memory": "1Gi"})).await;
    let vm = fixture.until::<VM>("web", has("512Mi", &["memory"])).await;
    let passed = declared.elapsed();
    assert!((60..70).contains(&passed.as_secs()), "{passed:?}");
    assert_eq!(class_synced(&vm), "PowerCycleNeeded");
    fixture.assert_quiet().await;

    // It has a driver now.
    set_plugs_memory(&fixture, true);
    fixture.until::<VM>("web", has("1Gi", &[])).await;
}
