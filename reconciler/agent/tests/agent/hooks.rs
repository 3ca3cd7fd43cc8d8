//! Hooks after the start of a guest and before its stop.

use std::time::Duration;

use berth_api::{VM, vm::StopSnapshot};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::fixture::{Fixture, INSTANCE, is_ready, vm_reason};

fn hook(kind: &str, command: &[&str], policy: &str) -> Value {
    json!({"hooks": {kind: {"exec": {"command": command}, "timeoutSeconds": 20, "failurePolicy": policy}}})
}

async fn started(spec: Value) -> Fixture {
    let fixture = Fixture::start().await;
    fixture.furnish().await;
    fixture.make_vm(spec).await;
    fixture
}

fn has_agent(vm: &VM) -> bool {
    let guest = vm.status.as_ref().and_then(|status| status.guest.as_ref());
    guest.is_some_and(|guest| guest.agent)
}

async fn stopped(fixture: &Fixture) -> Duration {
    let start = Instant::now();
    fixture.change::<VM>("web", json!({"power": "Stopped"})).await;
    fixture.until::<VM>("web", |vm| is_ready(vm, "Stopped")).await;
    start.elapsed()
}

#[tokio::test(start_paused = true)]
async fn a_hook_after_the_start_is_called_once_and_its_failure_is_shown_as_declared() {
    let fixture = started(hook("postStart", &["fail"], "Fail")).await;
    let hypervisor = fixture.system.hypervisor();
    let vm = fixture.until::<VM>("web", |vm| vm_reason(vm) == "HookFailed").await;
    assert!(
        format!("{:?}", vm.status).contains("its postStart hook failed: the program ended with exit code 3")
    );
    fixture.assert_quiet().await;
    fixture.crash_agent().await;
    fixture.start_agent();
    fixture.assert_quiet().await;
    assert_eq!(hypervisor.guest_programs(INSTANCE), 1, "another agent does not call it again");
    fixture.change::<VM>("web", hook("postStart", &["fail"], "Ignore")).await;
    fixture.running_vm().await;
    let mut changed = hook("postStart", &["echo", "up"], "Fail");
    changed["restartToken"] = json!("1");
    fixture.change::<VM>("web", changed).await;
    fixture.running_vm().await;
    assert_eq!(hypervisor.guest_programs(INSTANCE), 1, "once for the new start");
    fixture.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_hook_after_the_start_that_hangs_ends_with_its_time() {
    let fixture = started(hook("postStart", &["sleep", "1000000"], "Ignore")).await;
    fixture.until::<VM>("web", |vm| vm_reason(vm) == "HookRunning").await;
    let start = Instant::now();
    fixture.running_vm().await;
    assert!((15..=25).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
    fixture.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_guest_is_stopped_after_its_hook_and_not_after_one_that_failed_with_the_policy_fail() {
    let fixture = started(hook("preStop", &["sleep", "1000000"], "Ignore")).await;
    fixture.until::<VM>("web", |vm| is_ready(vm, "Running") && has_agent(vm)).await;
    let took = stopped(&fixture).await.as_secs();
    assert!((20..=25).contains(&took), "the time of the hook: {took} s");
    let mut failing = hook("preStop", &["fail"], "Fail");
    failing["power"] = json!("Running");
    fixture.change::<VM>("web", failing).await;
    fixture.until::<VM>("web", |vm| is_ready(vm, "Running") && has_agent(vm)).await;
    fixture.change::<VM>("web", json!({"power": "Stopped"})).await;
    let vm = fixture.until::<VM>("web", |vm| vm_reason(vm) == "HookFailed").await;
    assert!(format!("{:?}", vm.status).contains("the guest is not stopped"), "{:?}", vm.status);
    assert!(format!("{:?}", vm.status).contains("exit code 3"), "{:?}", vm.status);
    fixture.assert_quiet().await;
    assert_eq!(fixture.system.hypervisor().guest_programs(INSTANCE), 1, "called once");
    fixture.change::<VM>("web", hook("preStop", &["fail"], "Ignore")).await;
    fixture.until::<VM>("web", |vm| is_ready(vm, "Stopped")).await;
    // Neither a hard stop nor a deletion depends on it.
    let mut again = hook("preStop", &["fail"], "Fail");
    again["power"] = json!("Running");
    again["stop"] = json!({"mode": "Hard"});
    fixture.change::<VM>("web", again).await;
    fixture.running_vm().await;
    assert!(stopped(&fixture).await < Duration::from_secs(5));
    fixture.change::<VM>("web", json!({"power": "Running", "stop": {"mode": "Graceful"}})).await;
    fixture.running_vm().await;
    fixture.delete::<VM>("web").await;
    fixture.until_gone::<VM>("web").await;
    fixture.assert_quiet().await;
}

fn snapshot(policy: &str) -> Value {
    json!({"hooks": {"preStop": {"snapshot": {}, "timeoutSeconds": 20, "failurePolicy": policy}}})
}

fn request(vm: &VM) -> Option<StopSnapshot> {
    vm.status.as_ref()?.stop_snapshot.as_deref().cloned()
}

#[tokio::test(start_paused = true)]
async fn a_host_asks_for_one_snapshot_before_a_stop_and_goes_on_without_it_as_declared() {
    let fixture = started(snapshot("Fail")).await;
    fixture.running_vm().await;
    fixture.change::<VM>("web", json!({"power": "Stopped"})).await;
    let asking = fixture.until::<VM>("web", |vm| request(vm).is_some()).await;
    let asked = request(&asking).expect("awaited");
    assert!(asked.is_of("web") && asked.message.is_none(), "{asked:?}");
    assert!(format!("{:?}", asking.status).contains(&format!("once VMSnapshot {} is taken", asked.name)));
    fixture.crash_agent().await;
    fixture.start_agent();
    // There are no controllers, so it is not taken.
    let failed = fixture.until::<VM>("web", |vm| vm_reason(vm) == "HookFailed").await;
    let still = request(&failed).expect("it is taken late, if it is");
    assert_eq!((&still.name, &still.requested_at), (&asked.name, &asked.requested_at), "by another agent");
    assert!(still.message.is_some_and(|message| message.contains("not taken within 20 s")));
    fixture.assert_quiet().await;
    fixture.change::<VM>("web", snapshot("Ignore")).await;
    let off = fixture.until::<VM>("web", |vm| is_ready(vm, "Stopped")).await;
    assert_eq!(request(&off), None);
    // Neither a stop that is withdrawn nor a hard one asks for one.
    fixture.change::<VM>("web", json!({"power": "Running"})).await;
    fixture.running_vm().await;
    fixture.change::<VM>("web", snapshot("Fail")).await;
    fixture.change::<VM>("web", json!({"power": "Stopped"})).await;
    let second = fixture.until::<VM>("web", |vm| request(vm).is_some()).await;
    assert_ne!(request(&second).map(|asked| asked.name), Some(asked.name), "another stop");
    fixture.change::<VM>("web", json!({"power": "Running"})).await;
    let running = fixture.until::<VM>("web", |vm| is_ready(vm, "Running") && request(vm).is_none()).await;
    assert_eq!(running.status.map(|status| status.restarts), Some(0));
    fixture.change::<VM>("web", json!({"stop": {"mode": "Hard"}})).await;
    assert!(stopped(&fixture).await < Duration::from_secs(5));
    fixture.assert_quiet().await;
}
