//! Snapshots with the memory of a guest.

use std::time::Duration;

use berth_api::{DiskSnapshot, HOST_FINALIZER, VM};
use berth_qemu::power::RunState;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;

use crate::fixture::{Fixture, INSTANCE, ROOT, bound, reason_of};

async fn booted() -> (Fixture, u64) {
    let fixture = Fixture::start().await;
    fixture.furnish().await;
    fixture.make_vm(json!({})).await;
    fixture.running_vm().await;
    let seen =
        |vm: &VM| vm.status.as_ref().is_some_and(|s| reason_of(&s.conditions, "GuestReady") == "GuestSeen");
    fixture.until::<VM>("web", seen).await;
    let boot = fixture.system.hypervisor().view(INSTANCE).and_then(|view| view.boot);
    (fixture, boot.expect("it has booted"))
}

/// Creates the only part of a VMSnapshot with memory.
async fn make_part(fixture: &Fixture) {
    let api = fixture.api::<DiskSnapshot>();
    let part = json!({
        "metadata": {"name": "before-0", "namespace": "ns", "finalizers": [HOST_FINALIZER], "labels": {"berth.dev/vm-snapshot": "before"},
            "annotations": {"berth.dev/vm-snapshot-parts": "1", "berth.dev/vm-snapshot-memory": "true"}},
        "spec": {"disk": "root"},
    });
    let part: DiskSnapshot = serde_json::from_value(part).expect("a part");
    api.create(&PostParams::default(), &part).await.expect("created");
    let mut status = bound();
    for (field, value) in [("snapshotID", "s-1"), ("volumeID", ROOT), ("pool", "default")] {
        status[field] = value.into();
    }
    let patch = Patch::Merge(json!({"status": status}));
    api.patch_status("before-0", &PatchParams::default(), &patch).await.expect("bound");
}

fn run_state(fixture: &Fixture) -> RunState {
    fixture.system.hypervisor().view(INSTANCE).expect("it has a QEMU").run_state
}

async fn until_state(fixture: &Fixture, wanted: RunState) {
    let search = async {
        while run_state(fixture) != wanted {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), search).await.expect("it comes to this state");
}

fn is_taken(part: &DiskSnapshot) -> bool {
    part.status.as_ref().is_some_and(|s| s.taken_at.is_some() && s.memory == Some(true))
}

#[tokio::test(start_paused = true)]
async fn a_guest_is_paused_while_its_memory_is_saved_and_goes_on() {
    let (fixture, boot) = booted().await;
    fixture.system.hypervisor().set_behaviour(INSTANCE, |b| b.save_time = Duration::from_secs(30));
    make_part(&fixture).await;
    until_state(&fixture, RunState::Paused).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(run_state(&fixture), RunState::Paused, "the plan of the VM leaves it alone");
    fixture.until::<DiskSnapshot>("before-0", is_taken).await;
    fixture.running_vm().await;
    let view = fixture.system.hypervisor().view(INSTANCE).expect("it runs");
    assert_eq!((view.run_state, view.boot), (RunState::Running, Some(boot)));
    assert_eq!(fixture.system.kept_states_now(), ["s-1"]);
    assert!(fixture.system.saved_states_now().is_empty(), "the file has the snapshot's name only");
    fixture.assert_quiet().await;
    fixture.delete::<DiskSnapshot>("before-0").await;
    fixture.until_gone::<DiskSnapshot>("before-0").await;
    assert!(fixture.system.kept_states_now().is_empty(), "it goes with its snapshot");
}

#[tokio::test(start_paused = true)]
async fn a_guest_whose_memory_cannot_be_saved_goes_on_and_is_not_paused_again_and_again() {
    let (fixture, boot) = booted().await;
    let hypervisor = fixture.system.hypervisor();
    hypervisor.set_behaviour(INSTANCE, |b| b.save_fails = Some("the disk is broken".to_owned()));
    make_part(&fixture).await;
    let failed = |part: &DiskSnapshot| {
        part.status.as_ref().is_some_and(|s| reason_of(&s.conditions, "Ready") == "SnapshotFailed")
    };
    fixture.until::<DiskSnapshot>("before-0", failed).await;
    fixture.running_vm().await;
    assert_eq!(run_state(&fixture), RunState::Running);
    assert!(fixture.system.kept_states_now().is_empty() && fixture.system.saved_states_now().is_empty());
    fixture.assert_quiet().await;
    let view = fixture.system.hypervisor().view(INSTANCE).expect("it runs");
    assert_eq!((view.run_state, view.boot), (RunState::Running, Some(boot)));
}

#[tokio::test(start_paused = true)]
async fn a_guest_that_was_paused_when_the_agent_crashed_goes_on_and_the_snapshot_is_of_a_later_moment() {
    let (fixture, boot) = booted().await;
    fixture.system.hypervisor().set_behaviour(INSTANCE, |b| b.save_time = Duration::from_secs(30));
    make_part(&fixture).await;
    until_state(&fixture, RunState::Paused).await;
    fixture.crash_agent().await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(run_state(&fixture), RunState::PostMigrate, "nothing lets it go on");
    fixture.system.hypervisor().set_behaviour(INSTANCE, |b| b.save_time = Duration::from_millis(50));
    fixture.start_agent();
    until_state(&fixture, RunState::Running).await;
    let part = fixture.until::<DiskSnapshot>("before-0", is_taken).await;
    assert!(part.status.is_some_and(|status| status.taken_at.is_some()));
    fixture.running_vm().await;
    let view = fixture.system.hypervisor().view(INSTANCE).expect("it runs");
    assert_eq!((view.run_state, view.boot), (RunState::Running, Some(boot)));
    assert!(fixture.system.saved_states_now().is_empty(), "the state of the first attempt is gone");
}

#[tokio::test(start_paused = true)]
async fn a_full_disk_of_the_host_is_noticed_before_the_guest_is_paused() {
    let (fixture, _) = booted().await;
    fixture.system.change_facts(|facts| facts.storage_free_bytes = 1 << 20);
    make_part(&fixture).await;
    let is_full = |part: &DiskSnapshot| {
        part.status.as_ref().is_some_and(|s| reason_of(&s.conditions, "Ready") == "NoSpace")
    };
    fixture.until::<DiskSnapshot>("before-0", is_full).await;
    assert_eq!(run_state(&fixture), RunState::Running);
    fixture.system.change_facts(|facts| facts.storage_free_bytes = 1 << 40);
    fixture.until::<DiskSnapshot>("before-0", is_taken).await;
}
