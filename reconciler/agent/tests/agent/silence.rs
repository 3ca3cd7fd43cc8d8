//! QEMUs that do not answer, and those that the kernel has ended.

use std::time::Duration;

use berth_api::VM;
use serde_json::json;
use tokio::time::Instant;

use crate::fixture::{Fixture, INSTANCE, is_ready, vm_reason};

async fn running() -> Fixture {
    let fixture = Fixture::start().await;
    fixture.furnish().await;
    fixture.make_vm(json!({})).await;
    fixture.running_vm().await;
    fixture.assert_quiet().await;
    fixture
}

fn hang(fixture: &Fixture, hangs: bool) {
    fixture.system.hypervisor().set_behaviour(INSTANCE, |qemu| qemu.hangs = hangs);
}

#[tokio::test(start_paused = true)]
async fn a_qemu_that_falls_silent_and_one_that_answers_again_are_seen_although_nothing_is_changed() {
    let fixture = running().await;
    let before = fixture.system.hypervisor().view(INSTANCE).expect("it runs").identity;
    hang(&fixture, true);
    let vm = fixture.until::<VM>("web", |vm| vm_reason(vm) == "NotResponding").await;
    let text = format!("{vm:?}");
    assert!(text.contains("is stopped by a signal") && text.contains("kill -CONT"), "{text}");
    fixture.assert_quiet().await;
    hang(&fixture, false);
    let answers = Instant::now();
    let vm = fixture.running_vm().await;
    assert!(answers.elapsed() < Duration::from_secs(60), "questions have piled up: {:?}", answers.elapsed());
    assert_eq!(vm.status.map_or(0, |status| status.restarts), 0);
    assert_eq!(fixture.system.hypervisor().view(INSTANCE).expect("it runs").identity, before);
    fixture.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_qemu_whose_balloon_is_read_regularly_is_seen_to_fall_silent_as_soon() {
    let fixture = Fixture::start().await;
    fixture.furnish().await;
    fixture.make_vm(json!({"memoryReservation": "256Mi"})).await;
    fixture.running_vm().await;
    for wait in [1, 4, 9] {
        tokio::time::sleep(Duration::from_secs(wait)).await;
        hang(&fixture, true);
        let silent = Instant::now();
        fixture.until::<VM>("web", |vm| vm_reason(vm) == "NotResponding").await;
        assert!(silent.elapsed() < Duration::from_secs(45), "{:?}", silent.elapsed());
        hang(&fixture, false);
        fixture.running_vm().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_is_started_while_a_qemu_stands_still_begins_with_its_work_soon_and_connects_later() {
    let fixture = running().await;
    fixture.crash_agent().await;
    hang(&fixture, true);
    fixture.start_agent();
    let begun = Instant::now();
    fixture.until::<VM>("web", |vm| vm_reason(vm) == "NotResponding").await;
    assert!(begun.elapsed() < Duration::from_secs(90), "{:?}", begun.elapsed());
    hang(&fixture, false);
    fixture.running_vm().await;
}

#[tokio::test(start_paused = true)]
async fn a_qemu_that_is_silent_is_ended_by_a_hard_stop() {
    let fixture = running().await;
    hang(&fixture, true);
    fixture.until::<VM>("web", |vm| vm_reason(vm) == "NotResponding").await;
    fixture.change::<VM>("web", json!({"power": "Stopped", "stop": {"mode": "Hard"}})).await;
    fixture.until::<VM>("web", |vm| is_ready(vm, "Stopped")).await;
    assert!(fixture.system.hypervisor().instances().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_qemu_that_the_oom_killer_ended_is_started_again_and_its_end_says_so() {
    let fixture = running().await;
    fixture.system.hypervisor().run_out_of_memory(INSTANCE);
    let again = |restarts: i64| {
        move |vm: &VM| {
            is_ready(vm, "Running") && vm.status.as_ref().is_some_and(|status| status.restarts == restarts)
        }
    };
    let end = |vm: VM| vm.status.and_then(|status| status.last_end).expect("an end");
    let first = end(fixture.until::<VM>("web", again(1)).await);
    assert!(first.out_of_memory && first.message.contains("OOM killer"), "{first:?}");
    fixture.system.hypervisor().crash(INSTANCE);
    let second = end(fixture.until::<VM>("web", again(2)).await);
    assert!(!second.out_of_memory, "{second:?}");
    fixture.change::<VM>("web", json!({"restartPolicy": "Never"})).await;
    fixture.system.hypervisor().run_out_of_memory(INSTANCE);
    fixture.until::<VM>("web", |vm| vm_reason(vm) == "OutOfMemory").await;
    fixture.assert_quiet().await;
}
