//! Readiness and liveness probes of a guest.

use std::time::Duration;

use berth_api::{VM, condition};
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::fixture::{Fixture, INSTANCE, is_ready, vm_reason};

const FILE: &str = "/run/ready";

/// A probe of whether the file exists.
fn file_exists() -> Value {
    json!({"exec": {"command": ["test", "-e", FILE]}, "periodSeconds": 2, "failureThreshold": 2})
}

fn restarts(vm: &VM) -> i64 {
    vm.status.as_ref().map_or(0, |status| status.restarts)
}

fn ready_since(vm: &VM) -> Option<String> {
    let conditions = &vm.status.as_ref()?.conditions;
    Some(format!("{:?}", condition::find(conditions, "Ready")?.last_transition_time))
}

async fn started(spec: Value) -> Fixture {
    let fixture = Fixture::start().await;
    fixture.furnish().await;
    fixture.make_vm(spec).await;
    fixture
}

#[tokio::test(start_paused = true)]
async fn a_vm_is_ready_while_its_readiness_probe_succeeds_and_nothing_is_written_meanwhile() {
    let fixture = started(json!({"readinessProbe": file_exists()})).await;
    let hypervisor = fixture.system.hypervisor();
    let vm = fixture
        .until::<VM>("web", |vm| format!("{vm:?}").contains("the program ended with exit code 1"))
        .await;
    assert_eq!(vm_reason(&vm), "ProbeFailed");
    fixture.assert_quiet().await;
    hypervisor.guest_file(INSTANCE, FILE, true);
    fixture.running_vm().await;
    fixture.assert_quiet().await;
    // One failure is not enough.
    hypervisor.guest_file(INSTANCE, FILE, false);
    fixture.until::<VM>("web", |vm| vm_reason(vm) == "ProbeFailed").await;
    hypervisor.guest_file(INSTANCE, FILE, true);
    let before = fixture.running_vm().await;
    // Another agent does not know the results yet.
    fixture.crash_agent().await;
    fixture.start_agent();
    fixture.assert_quiet().await;
    assert_eq!(ready_since(&fixture.running_vm().await), ready_since(&before));
    fixture.change::<VM>("web", json!({"readinessProbe": null})).await;
    hypervisor.guest_file(INSTANCE, FILE, false);
    fixture.running_vm().await;
    let programs = hypervisor.guest_programs(INSTANCE);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(hypervisor.guest_programs(INSTANCE), programs, "it is no longer asked");
    assert_eq!(restarts(&fixture.running_vm().await), 0);
}

#[tokio::test(start_paused = true)]
async fn a_guest_whose_liveness_probe_fails_is_restarted_with_the_delay_of_its_policy() {
    let mut probe = file_exists();
    probe["initialDelaySeconds"] = json!(30);
    let fixture = started(json!({"livenessProbe": probe})).await;
    let hypervisor = fixture.system.hypervisor();
    fixture.running_vm().await;
    tokio::time::sleep(Duration::from_secs(20)).await;
    hypervisor.guest_file(INSTANCE, FILE, true);
    // A reboot of the guest gives it the same time again.
    let first = hypervisor.view(INSTANCE).expect("it runs").identity;
    tokio::time::sleep(Duration::from_secs(60)).await;
    hypervisor.guest_reboots(INSTANCE);
    hypervisor.guest_file(INSTANCE, FILE, false);
    tokio::time::sleep(Duration::from_secs(25)).await;
    hypervisor.guest_file(INSTANCE, FILE, true);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(hypervisor.view(INSTANCE).expect("it runs").identity, first);
    // It fails from now on: a first restart at once, a second one 10 seconds after the failure.
    hypervisor.guest_file(INSTANCE, FILE, false);
    let vm = fixture.until::<VM>("web", |vm| restarts(vm) == 1 && is_ready(vm, "Running")).await;
    let end = vm.status.and_then(|status| status.last_end).expect("an end");
    assert!(
        !end.orderly
            && end.message.contains("the liveness probe failed (the program ended with exit code 1)")
    );
    let start = Instant::now();
    fixture.until::<VM>("web", |vm| vm_reason(vm) == "CrashLoop").await;
    fixture.until::<VM>("web", |vm| restarts(vm) == 2 && is_ready(vm, "Running")).await;
    assert!((40..60).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
    fixture.change::<VM>("web", json!({"restartPolicy": "Never"})).await;
    let vm = fixture.until::<VM>("web", |vm| vm_reason(vm) == "GuestEnded").await;
    assert_eq!(restarts(&vm), 2);
    fixture.assert_quiet().await;
    // A power cycle starts it.
    fixture.change::<VM>("web", json!({"restartToken": "1", "livenessProbe": null})).await;
    fixture.running_vm().await;
    fixture.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_guest_is_not_stopped_for_a_liveness_probe_that_is_no_longer_declared() {
    let mut probe = file_exists();
    probe["initialDelaySeconds"] = json!(30);
    let fixture = started(json!({"livenessProbe": probe})).await;
    let hypervisor = fixture.system.hypervisor();
    let running = fixture.running_vm().await;
    let change = async |gate: Option<&str>, spec: Value| {
        let annotations = json!({"poweron.check.berth.dev/probe": gate});
        let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}, "spec": spec}));
        fixture.api::<VM>().patch("web", &PatchParams::default(), &patch).await.expect("changed");
    };
    // A guest that could not start again runs on, whatever its probe says.
    change(Some("its probe is wrong"), json!({})).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    hypervisor.guest_file(INSTANCE, "/run/alive", true);
    let right = json!({"livenessProbe": {"exec": {"command": ["test", "-e", "/run/alive"]}}});
    change(None, right).await;
    tokio::time::sleep(Duration::from_secs(120)).await;
    let now = fixture.running_vm().await;
    let process = |vm: &VM| vm.status.as_ref().and_then(|status| status.process.clone());
    assert_eq!((process(&now), restarts(&now)), (process(&running), 0));
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_hangs_runs_one_program_and_holds_up_no_stop() {
    let probe = json!({"exec": {"command": ["sleep", "1000000"]}, "periodSeconds": 1});
    let fixture = started(json!({"readinessProbe": probe})).await;
    fixture.until::<VM>("web", |vm| format!("{vm:?}").contains("no answer within 1 s")).await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(fixture.system.hypervisor().guest_programs(INSTANCE), 1);
    let start = Instant::now();
    fixture.change::<VM>("web", json!({"power": "Stopped"})).await;
    fixture.until::<VM>("web", |vm| is_ready(vm, "Stopped")).await;
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    fixture.assert_quiet().await;
}
