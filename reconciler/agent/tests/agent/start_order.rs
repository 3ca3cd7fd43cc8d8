//! VMs that are started after their host has booted, and stopped before it is shut down.

use std::sync::Arc;
use std::time::Duration;

use berth_agent::{AtShutdown, HostShutdown};
use berth_api::{Disk, VM, VMState};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::fixture::{Fixture, disk_bound, is_ready, vm_bound, vm_reason};

/// Creates a VM with a disk of its own; its instance has this number.
async fn make(fixture: &Fixture, name: &str, number: u8, spec: Value) {
    let disk = format!("{name}-root");
    let volume = format!("v-00000000000000b{number}");
    fixture.make::<Disk>(&disk, json!({"size": "1Gi"}), Some(disk_bound(&volume))).await;
    let mut whole = json!({"class": "small", "disks": [{"name": disk, "boot": true}]});
    for (key, value) in spec.as_object().cloned().unwrap_or_default() {
        whole[key] = value;
    }
    let status = vm_bound(&format!("i-{number}00000000000"), 10 + number);
    fixture.make::<VM>(name, whole, Some(status)).await;
    fixture.until::<VM>(name, |vm| is_ready(vm, "Running")).await;
}

/// Returns the instances in the order in which they start, and when.
async fn starts(fixture: &Fixture, number: usize) -> (Vec<String>, Vec<Duration>) {
    let start = Instant::now();
    let (mut seen, mut at) = (Vec::new(), Vec::new());
    while seen.len() < number {
        assert!(start.elapsed() < Duration::from_secs(900), "only {seen:?} started");
        for instance in fixture.system.hypervisor().instances() {
            if !seen.contains(&instance) {
                seen.push(instance);
                at.push(start.elapsed());
            }
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    (seen, at)
}

#[tokio::test(start_paused = true)]
async fn after_the_host_has_booted_its_vms_start_in_their_order_with_their_delays() {
    let fixture = Fixture::start().await;
    fixture.furnish().await;
    make(&fixture, "third", 3, json!({})).await;
    make(&fixture, "first", 1, json!({"startOrder": 1, "startDelaySeconds": 30})).await;
    make(&fixture, "second", 2, json!({"startOrder": 2})).await;
    fixture.crash_agent().await;
    fixture.system.hypervisor().reboot();
    fixture.start_agent();
    let held = fixture.until::<VM>("second", |vm| vm_reason(vm) == "StartOrderHeld").await;
    assert!(format!("{:?}", held.status).contains("startOrder 1"), "{held:?}");
    let (seen, at) = starts(&fixture, 3).await;
    assert_eq!(seen, ["i-100000000000", "i-200000000000", "i-300000000000"]);
    assert!(at[1] - at[0] >= Duration::from_secs(27), "the delay of the first: {at:?}");
    assert!(at[2] - at[1] < Duration::from_secs(10), "{at:?}");
    fixture.until::<VM>("third", |vm| is_ready(vm, "Running")).await;
    // A start that no boot has caused waits for no other.
    fixture.change::<VM>("first", json!({"power": "Stopped"})).await;
    fixture.until::<VM>("first", |vm| is_ready(vm, "Stopped")).await;
    fixture.system.hypervisor().crash("i-300000000000");
    let start = Instant::now();
    fixture.change::<VM>("first", json!({"power": "Running"})).await;
    let restarted = |vm: &VM| is_ready(vm, "Running") && vm.status.as_ref().is_some_and(|s| s.restarts == 2);
    fixture.until::<VM>("third", restarted).await;
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    fixture.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_vm_that_cannot_start_holds_back_the_others_for_five_minutes() {
    let fixture = Fixture::start().await;
    fixture.furnish().await;
    make(&fixture, "first", 1, json!({"startOrder": 0})).await;
    make(&fixture, "last", 2, json!({})).await;
    fixture.crash_agent().await;
    fixture.system.hypervisor().reboot();
    fixture
        .system
        .hypervisor()
        .set_behaviour("i-100000000000", |b| b.launch_time = Duration::from_secs(3600));
    fixture.start_agent();
    let start = Instant::now();
    fixture.until::<VM>("last", |vm| vm_reason(vm) == "StartOrderHeld").await;
    fixture.until::<VM>("last", |vm| is_ready(vm, "Running")).await;
    let took = start.elapsed().as_secs();
    assert!((295..330).contains(&took), "{took} seconds");
}

/// Starts an agent whose host can be shut down.
async fn site() -> (Fixture, Arc<HostShutdown>) {
    let fixture = Fixture::without_agent().await;
    let shutdown = Arc::new(HostShutdown::default());
    let shared = shutdown.clone();
    fixture.start_agent_configured(|config| config.shutdown = shared);
    fixture.furnish().await;
    (fixture, shutdown)
}

/// Returns the instances in the order in which they end, and when.
async fn ends(fixture: &Fixture, number: usize) -> (Vec<String>, Vec<Duration>) {
    let start = Instant::now();
    let mut running = fixture.system.hypervisor().instances();
    let (mut ended, mut at) = (Vec::new(), Vec::new());
    while ended.len() < number {
        assert!(start.elapsed() < Duration::from_secs(900), "only {ended:?} ended");
        let now = fixture.system.hypervisor().instances();
        for instance in running.iter().filter(|instance| !now.contains(instance)) {
            ended.push(instance.clone());
            at.push(start.elapsed());
        }
        running = now;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    (ended, at)
}

fn is_stopped_by_its_host(vm: &VM) -> bool {
    let state = vm.status.as_ref().and_then(|status| status.state);
    vm_reason(vm) == "HostShuttingDown" && state == Some(VMState::Stopped)
}

#[tokio::test(start_paused = true)]
async fn before_the_host_is_shut_down_its_vms_end_in_the_reverse_order_and_start_again_after_the_boot() {
    let (fixture, shutdown) = site().await;
    make(&fixture, "first", 1, json!({"startOrder": 1})).await;
    make(&fixture, "second", 2, json!({"startOrder": 2})).await;
    make(&fixture, "third", 3, json!({})).await;
    shutdown.stop(AtShutdown::Stop);
    let (ended, _) = ends(&fixture, 3).await;
    assert_eq!(ended, ["i-300000000000", "i-200000000000", "i-100000000000"]);
    for name in ["first", "second", "third"] {
        fixture.until::<VM>(name, is_stopped_by_its_host).await;
    }
    // Neither a restart nor time starts one.
    fixture.change::<VM>("third", json!({"restartToken": "now"})).await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(fixture.system.hypervisor().instances().is_empty());
    fixture.crash_agent().await;
    fixture.system.hypervisor().reboot();
    fixture.start_agent();
    let (started, _) = starts(&fixture, 3).await;
    assert_eq!(started, ["i-100000000000", "i-200000000000", "i-300000000000"]);
    let whole = fixture.until::<VM>("third", |vm| is_ready(vm, "Running")).await;
    assert_eq!(whole.status.expect("reported").restarts, 0, "an orderly stop is no end by itself");
}

#[tokio::test(start_paused = true)]
async fn a_guest_that_ignores_the_shutdown_of_its_host_is_ended_and_holds_back_the_others_until_then() {
    let (fixture, shutdown) = site().await;
    make(&fixture, "first", 1, json!({"startOrder": 1})).await;
    let soft = json!({"stop": {"mode": "Soft", "gracePeriodSeconds": 30}});
    make(&fixture, "last", 2, soft).await;
    fixture.system.hypervisor().set_behaviour("i-200000000000", |b| {
        b.ignores_powerdown = true;
        b.guest_agent = false;
    });
    shutdown.stop(AtShutdown::Stop);
    let (ended, at) = ends(&fixture, 2).await;
    assert_eq!(ended, ["i-200000000000", "i-100000000000"]);
    assert!((29..40).contains(&at[0].as_secs()), "its grace period: {at:?}");
    fixture.until::<VM>("first", is_stopped_by_its_host).await;
    shutdown.start();
    fixture.until::<VM>("first", |vm| is_ready(vm, "Running")).await;
    fixture.until::<VM>("last", |vm| is_ready(vm, "Running")).await;
    fixture.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn in_a_hurry_a_guest_that_ignores_the_shutdown_holds_back_no_other() {
    let (fixture, shutdown) = site().await;
    make(&fixture, "first", 1, json!({"startOrder": 1})).await;
    make(&fixture, "last", 2, json!({"stop": {"gracePeriodSeconds": 30}})).await;
    fixture.system.hypervisor().set_behaviour("i-200000000000", |b| b.ignores_powerdown = true);
    shutdown.stop(AtShutdown::Stop);
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(fixture.system.hypervisor().instances().len(), 2);
    shutdown.hurry();
    let (ended, at) = ends(&fixture, 2).await;
    assert_eq!(ended, ["i-100000000000", "i-200000000000"]);
    assert!(at[0] < Duration::from_secs(10), "{at:?}");
    fixture.until::<VM>("first", is_stopped_by_its_host).await;
}
