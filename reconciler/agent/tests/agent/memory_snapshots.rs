//! Snapshots with the memory of a guest.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use berth_api::{Disk, DiskSnapshot, HOST_FINALIZER, VM};
use berth_host::fake::{FaultAction, Faults, NoFaults, When};
use berth_qemu::power::RunState;
use jiff::Timestamp;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::sync::Notify;

use crate::fixture::{Fixture, INSTANCE, ROOT, bound, disk_bound, is_ready, reason_of, vm_bound};

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
    make_part_of(fixture, "before", ("root", ROOT), "s-1").await;
}

async fn make_part_of(fixture: &Fixture, whole: &str, (disk, volume): (&str, &str), id: &str) {
    let (api, name) = (fixture.api::<DiskSnapshot>(), format!("{whole}-0"));
    let part = json!({
        "metadata": {"name": name, "namespace": "ns", "finalizers": [HOST_FINALIZER], "labels": {"berth.dev/vm-snapshot": whole},
            "annotations": {"berth.dev/vm-snapshot-parts": "1", "berth.dev/vm-snapshot-memory": "true"}},
        "spec": {"disk": disk},
    });
    let part: DiskSnapshot = serde_json::from_value(part).expect("a part");
    api.create(&PostParams::default(), &part).await.expect("created");
    let mut status = bound();
    for (field, value) in [("snapshotID", id), ("volumeID", volume), ("pool", "default")] {
        status[field] = value.into();
    }
    let patch = Patch::Merge(json!({"status": status}));
    api.patch_status(&name, &PatchParams::default(), &patch).await.expect("bound");
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

/// Returns the moment of a snapshot that is taken.
fn moment(part: &DiskSnapshot) -> Timestamp {
    let taken_at = part.status.as_ref().and_then(|status| status.taken_at.as_deref());
    taken_at.expect("it is taken").parse().expect("a moment")
}

/// The guest runs in the boot that it had.
fn assert_goes_on(fixture: &Fixture, boot: u64) {
    let view = fixture.system.hypervisor().view(INSTANCE).expect("it runs");
    assert_eq!((view.run_state, view.boot), (RunState::Running, Some(boot)));
}

/// Never returns from one call of the host.
#[derive(Debug)]
struct HangAt {
    call: &'static str,
    reached: Notify,
}

#[async_trait]
impl Faults for HangAt {
    async fn fault(&self, call: &'static str, _: When) -> FaultAction {
        if call != self.call {
            return FaultAction::Continue;
        }
        self.reached.notify_one();
        FaultAction::Hang
    }
}

/// Crashes the agent at a call of the host.
async fn crash_at(fixture: &Fixture, call: &'static str) {
    let hang = Arc::new(HangAt { call, reached: Notify::new() });
    fixture.system.set_faults(hang.clone());
    make_part(fixture).await;
    hang.reached.notified().await;
    fixture.crash_agent().await;
    fixture.system.set_faults(Arc::new(NoFaults));
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
    let crashed = fixture.now();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(run_state(&fixture), RunState::PostMigrate, "nothing lets it go on");
    fixture.system.hypervisor().set_behaviour(INSTANCE, |b| b.save_time = Duration::from_millis(50));
    fixture.start_agent();
    until_state(&fixture, RunState::Running).await;
    let part = fixture.until::<DiskSnapshot>("before-0", is_taken).await;
    assert!(moment(&part) > crashed, "{part:?}");
    fixture.running_vm().await;
    assert_goes_on(&fixture, boot);
    assert!(fixture.system.saved_states_now().is_empty(), "the state of the first attempt is gone");
}

#[tokio::test(start_paused = true)]
async fn a_paused_guest_goes_on_when_the_agent_starts_also_without_a_control_plane() {
    let (fixture, boot) = booted().await;
    fixture.system.hypervisor().set_behaviour(INSTANCE, |b| b.save_time = Duration::from_secs(30));
    make_part(&fixture).await;
    until_state(&fixture, RunState::Paused).await;
    fixture.crash_agent().await;
    fixture.start_agent_alone();
    until_state(&fixture, RunState::Running).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_goes_on(&fixture, boot);
    assert!(fixture.system.saved_states_now().is_empty(), "what is incomplete takes no space");
    fixture.stop_agent().await;
}

#[tokio::test(start_paused = true)]
async fn a_paused_guest_goes_on_when_the_agent_is_stopped() {
    for wait in [0, 60] {
        let (fixture, boot) = booted().await;
        fixture.system.hypervisor().set_behaviour(INSTANCE, |b| b.save_time = Duration::from_secs(300));
        make_part(&fixture).await;
        until_state(&fixture, RunState::Paused).await;
        tokio::time::sleep(Duration::from_secs(wait)).await;
        fixture.stop_agent().await;
        assert_goes_on(&fixture, boot);
        assert!(fixture.system.saved_states_now().is_empty() && fixture.system.kept_states_now().is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn a_crash_after_the_disks_were_switched_leaves_the_snapshot_of_that_moment() {
    let (fixture, boot) = booted().await;
    crash_at(&fixture, "seal_kept_state").await;
    let crashed = fixture.now();
    assert_goes_on(&fixture, boot);
    tokio::time::sleep(Duration::from_secs(60)).await;
    fixture.start_agent();
    let part = fixture.until::<DiskSnapshot>("before-0", is_taken).await;
    assert!(moment(&part) <= crashed, "{part:?}");
    assert_eq!(fixture.system.kept_states_now(), ["s-1"]);
    assert_goes_on(&fixture, boot);
}

#[tokio::test(start_paused = true)]
async fn the_memory_of_a_snapshot_that_was_deleted_without_its_finalizer_is_removed() {
    let (fixture, boot) = booted().await;
    crash_at(&fixture, "begin_snapshots").await;
    assert_eq!(fixture.system.kept_states_now(), ["s-1"]);
    let dropped = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    fixture
        .api::<DiskSnapshot>()
        .patch("before-0", &PatchParams::default(), &dropped)
        .await
        .expect("patched");
    fixture.delete::<DiskSnapshot>("before-0").await;
    fixture.start_agent();
    until_state(&fixture, RunState::Running).await;
    tokio::time::sleep(Duration::from_secs(180)).await;
    assert!(fixture.system.kept_states_now().is_empty() && fixture.system.saved_states_now().is_empty());
    assert_goes_on(&fixture, boot);
}

#[tokio::test(start_paused = true)]
async fn the_memory_of_a_snapshot_that_was_not_begun_goes_with_its_object() {
    let (fixture, boot) = booted().await;
    crash_at(&fixture, "begin_snapshots").await;
    fixture.delete::<DiskSnapshot>("before-0").await;
    fixture.start_agent();
    fixture.until_gone::<DiskSnapshot>("before-0").await;
    assert!(fixture.system.kept_states_now().is_empty(), "the memory had been kept");
    fixture.running_vm().await;
    assert_goes_on(&fixture, boot);
}

#[tokio::test(start_paused = true)]
async fn a_save_ends_and_the_guest_goes_on_when_the_snapshot_is_deleted() {
    let (fixture, boot) = booted().await;
    fixture.system.hypervisor().set_behaviour(INSTANCE, |b| b.save_time = Duration::from_secs(300));
    make_part(&fixture).await;
    until_state(&fixture, RunState::Paused).await;
    let start = tokio::time::Instant::now();
    fixture.delete::<DiskSnapshot>("before-0").await;
    fixture.until_gone::<DiskSnapshot>("before-0").await;
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
    fixture.running_vm().await;
    assert_goes_on(&fixture, boot);
    assert!(fixture.system.saved_states_now().is_empty() && fixture.system.kept_states_now().is_empty());
    assert!(fixture.system.snapshots_now().is_empty(), "its disk has none");
}

#[tokio::test(start_paused = true)]
async fn a_monitor_that_does_not_answer_during_a_save_is_waited_for() {
    let (fixture, boot) = booted().await;
    fixture.system.hypervisor().set_behaviour(INSTANCE, |b| b.save_time = Duration::from_secs(30));
    make_part(&fixture).await;
    until_state(&fixture, RunState::Paused).await;
    let paused = fixture.now();
    fixture.system.hypervisor().set_behaviour(INSTANCE, |b| b.latency = Duration::from_secs(40));
    tokio::time::sleep(Duration::from_secs(65)).await;
    fixture.system.hypervisor().set_behaviour(INSTANCE, |b| b.latency = Duration::ZERO);
    let part = fixture.until::<DiskSnapshot>("before-0", is_taken).await;
    assert!(moment(&part) <= paused, "it is that of the first pause: {part:?}");
    fixture.running_vm().await;
    assert_goes_on(&fixture, boot);
}

#[tokio::test(start_paused = true)]
async fn the_memory_of_two_guests_is_saved_one_after_the_other() {
    const OTHER: &str = "i-ba9876543210";
    const VOLUME: &str = "v-00000000000000e1";
    let (fixture, _) = booted().await;
    fixture.make::<Disk>("other", json!({"size": "1Gi"}), Some(disk_bound(VOLUME))).await;
    let spec = json!({"class": "small", "disks": [{"name": "other", "boot": true}]});
    fixture.make::<VM>("other", spec, Some(vm_bound(OTHER, 3))).await;
    fixture.until::<VM>("other", |vm| is_ready(vm, "Running")).await;
    let hypervisor = fixture.system.hypervisor();
    for instance in [INSTANCE, OTHER] {
        hypervisor.set_behaviour(instance, |b| b.save_time = Duration::from_secs(30));
    }
    make_part(&fixture).await;
    until_state(&fixture, RunState::Paused).await;
    make_part_of(&fixture, "beside", ("other", VOLUME), "s-2").await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let state = |instance: &str| hypervisor.view(instance).expect("it has a QEMU").run_state;
    assert_eq!((state(INSTANCE), state(OTHER)), (RunState::Paused, RunState::Running));
    let first = fixture.until::<DiskSnapshot>("before-0", is_taken).await;
    let second = fixture.until::<DiskSnapshot>("beside-0", is_taken).await;
    assert!(moment(&first) < moment(&second));
    assert_eq!((state(INSTANCE), state(OTHER)), (RunState::Running, RunState::Running));
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
