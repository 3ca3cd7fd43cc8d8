//! Guests whose agent freezes file systems for a snapshot and does not thaw them.

use std::time::Duration;

use berth_api::{DiskSnapshot, VM, condition};
use k8s_openapi::api::events::v1::Event;
use serde_json::json;

use crate::disks::{begin_snapshot, running, take_snapshot};
use crate::fixture::{INSTANCE, is_ready};

#[tokio::test(start_paused = true)]
async fn a_guest_whose_file_systems_stay_frozen_says_so_until_they_are_thawed() {
    let fixture = running().await;
    let frozen = |vm: &VM| {
        let conditions = vm.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default();
        condition::find(&conditions, "GuestFrozen").cloned()
    };
    let thaws = |thaws: bool| {
        fixture.system.hypervisor().set_behaviour(INSTANCE, |behaviour| behaviour.never_thaws = !thaws);
    };
    thaws(false);
    take_snapshot(&fixture).await;
    let vm = fixture.until::<VM>("web", |vm| frozen(vm).is_some()).await;
    let condition = frozen(&vm).expect("awaited");
    assert_eq!((condition.status.as_str(), condition.reason.as_str()), ("True", "GuestFrozen"));
    assert!(condition.message.contains("fsfreeze --unfreeze"), "{}", condition.message);
    let guest = vm.status.and_then(|status| status.guest).expect("as it was before");
    assert_eq!(guest.os_id.as_deref(), Some("debian"));
    let events: kube::Api<Event> = kube::Api::namespaced(fixture.client.clone(), "ns");
    tokio::time::sleep(Duration::from_secs(60)).await;
    let events = events.list(&Default::default()).await.expect("listed").items;
    let reasons: Vec<&str> = events.iter().filter_map(|event| event.reason.as_deref()).collect();
    assert_eq!(reasons.iter().filter(|reason| **reason == "GuestFrozen").count(), 1, "{reasons:?}");
    // Another agent finds it, and thaws it.
    fixture.crash_agent().await;
    thaws(true);
    fixture.start_agent();
    fixture.until::<VM>("web", |vm| frozen(vm).is_none()).await;
    let freezes = fixture.system.hypervisor().view(INSTANCE).map(|view| view.freezes);
    assert_eq!(freezes, Some(1), "it was frozen once");
}

#[tokio::test(start_paused = true)]
async fn a_hook_of_a_guest_whose_file_systems_are_frozen_waits_until_they_are_thawed() {
    let fixture = running().await;
    let hook = json!({"exec": {"command": ["echo", "bye"]}, "timeoutSeconds": 300, "failurePolicy": "Fail"});
    fixture.change::<VM>("web", json!({"hooks": {"preStop": hook}})).await;
    let hypervisor = fixture.system.hypervisor();
    hypervisor.set_behaviour(INSTANCE, |behaviour| behaviour.never_thaws = true);
    take_snapshot(&fixture).await;
    let is_frozen = |vm: &VM| {
        let conditions = vm.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        condition::find(conditions, "GuestFrozen").is_some()
    };
    fixture.until::<VM>("web", is_frozen).await;
    fixture.change::<VM>("web", json!({"power": "Stopped"})).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(hypervisor.guest_programs(INSTANCE), 0, "its agent refuses it");
    hypervisor.set_behaviour(INSTANCE, |behaviour| behaviour.never_thaws = false);
    // With the policy Fail it is not stopped before its hook has succeeded.
    fixture.until::<VM>("web", |vm| is_ready(vm, "Stopped")).await;
}

#[tokio::test(start_paused = true)]
async fn a_guest_that_is_frozen_when_the_agent_is_stopped_is_thawed_before_that_ends() {
    let fixture = running().await;
    let hypervisor = fixture.system.hypervisor();
    hypervisor.set_behaviour(INSTANCE, |behaviour| behaviour.latency = Duration::from_millis(200));
    let is_frozen = || hypervisor.view(INSTANCE).expect("it runs").is_frozen;
    begin_snapshot(&fixture).await;
    let begun = tokio::time::timeout(Duration::from_secs(300), async {
        while !is_frozen() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    begun.await.expect("the snapshot is being taken");
    fixture.stop_agent().await;
    assert!(!is_frozen(), "without an agent nothing would thaw it");
    hypervisor.set_behaviour(INSTANCE, |behaviour| behaviour.latency = Duration::ZERO);
    fixture.start_agent();
    let is_taken = |snapshot: &DiskSnapshot| snapshot.status.as_ref().is_some_and(|s| s.taken_at.is_some());
    fixture.until::<DiskSnapshot>("before", is_taken).await;
}
