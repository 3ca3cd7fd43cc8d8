//! Stopping, restarting, ending by itself, being adopted.

use std::time::Duration;

use berth_api::{HugePages, Image, Power, VM, VMClass, VMState};
use berth_qemu::fake::Behaviour;
use berth_qemu::power::RunState;
use serde_json::json;

use crate::fixture::{Fixture, INSTANCE, ROOT, is_ready, reason_of, vm_reason};

fn state(wanted: VMState) -> impl Fn(&VM) -> bool {
    move |vm| vm.status.as_ref().is_some_and(|s| s.state == Some(wanted))
}

async fn booted() -> Fixture {
    let fixture = Fixture::start().await;
    fixture.furnish().await;
    fixture.make_vm(json!({})).await;
    fixture.running_vm().await;
    seen(&fixture).await;
    fixture
}

async fn seen(fixture: &Fixture) {
    let seen =
        |vm: &VM| vm.status.as_ref().is_some_and(|s| reason_of(&s.conditions, "GuestReady") == "GuestSeen");
    fixture.until::<VM>("web", seen).await;
}

fn pid(fixture: &Fixture) -> i32 {
    fixture.system.hypervisor().view(INSTANCE).expect("it runs").identity.pid
}

#[tokio::test(start_paused = true)]
async fn a_vm_that_pins_its_class_starts_again_with_its_former_values_until_it_follows() {
    let fixture = Fixture::start().await;
    fixture.furnish().await;
    fixture.make_vm(json!({"classPolicy": "Pin"})).await;
    fixture.running_vm().await;
    fixture.change::<VMClass>("small", json!({"cpus": 4})).await;
    let restarted = |token: &'static str, cpus: i64| {
        move |vm: &VM| {
            let status = vm.status.clone().unwrap_or_default();
            let has = status.hardware.map(|hardware| hardware.cpus);
            is_ready(vm, "Running") && status.restart_token.as_deref() == Some(token) && has == Some(cpus)
        }
    };
    fixture.change::<VM>("web", json!({"restartToken": "1"})).await;
    let pinned = fixture.until::<VM>("web", restarted("1", 1)).await;
    let kept = pinned.status.and_then(|status| status.pinned_class).expect("it is reported");
    assert!(kept.name == "small" && kept.values.contains("\"cpus\":1"), "{kept:?}");
    fixture.change::<VM>("web", json!({"classPolicy": "Follow", "restartToken": "2"})).await;
    let follows = fixture.until::<VM>("web", restarted("2", 4)).await;
    assert_eq!(follows.status.and_then(|status| status.pinned_class), None);
    fixture.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_restarted_agent_adopts_what_runs_with_the_same_pid() {
    let fixture = booted().await;
    let before = pid(&fixture);
    fixture.crash_agent().await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    fixture.start_agent();
    fixture.assert_quiet().await;
    let vm = fixture.running_vm().await;
    assert_eq!(vm.status.expect("reported").process.expect("it runs").pid, i64::from(before));
    assert_eq!((pid(&fixture), fixture.system.hypervisor().launches()), (before, 1));
}

#[tokio::test(start_paused = true)]
async fn a_guest_that_does_not_listen_is_asked_three_times_and_then_ended() {
    let fixture = booted().await;
    fixture.system.hypervisor().set_behaviour(INSTANCE, |b| b.ignores_powerdown = true);
    let start = tokio::time::Instant::now();
    fixture.change::<VM>("web", json!({"power": "Stopped", "stop": {"gracePeriodSeconds": 90}})).await;
    fixture.until::<VM>("web", |vm| is_ready(vm, "Stopped")).await;
    let took = start.elapsed();
    assert!(took >= Duration::from_secs(30) && took < Duration::from_secs(100), "{took:?}");
    assert!(fixture.system.hypervisor().instances().is_empty());
    fixture.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_starts_while_a_poll_waits_is_seen_at_once() {
    let fixture = Fixture::start().await;
    fixture.furnish().await;
    // The first poll, a second after the launch, would wait for three.
    let behaviour = Behaviour { boot_time: Duration::from_millis(1500), ..Behaviour::default() };
    fixture.system.hypervisor().set_default_behaviour(behaviour);
    fixture.make_vm(json!({})).await;
    fixture.running_vm().await;
    let start = tokio::time::Instant::now();
    let answers =
        |vm: &VM| vm.status.as_ref().and_then(|s| s.guest.as_ref()).is_some_and(|guest| guest.agent);
    fixture.until::<VM>("web", answers).await;
    let took = start.elapsed();
    assert!(took < Duration::from_millis(2500), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_guest_is_paused_and_resumed_in_the_same_process_also_by_another_agent() {
    let fixture = booted().await;
    let before = pid(&fixture);
    let run_state = || fixture.system.hypervisor().view(INSTANCE).expect("it runs").run_state;
    fixture.change::<VM>("web", json!({"power": "Paused"})).await;
    fixture.until::<VM>("web", |vm| is_ready(vm, "Paused") && state(VMState::Paused)(vm)).await;
    assert_eq!(run_state(), RunState::Paused);
    fixture.crash_agent().await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    fixture.start_agent();
    fixture.assert_quiet().await;
    fixture.until::<VM>("web", |vm| is_ready(vm, "Paused") && state(VMState::Paused)(vm)).await;
    assert_eq!(run_state(), RunState::Paused);
    // Resumed at once each time: what was resumed a moment ago was paused as declared.
    for power in ["Running", "Paused", "Running"] {
        let start = tokio::time::Instant::now();
        fixture.change::<VM>("web", json!({"power": power})).await;
        fixture.until::<VM>("web", |vm| is_ready(vm, power)).await;
        assert!(start.elapsed() < Duration::from_secs(2), "{power}: {:?}", start.elapsed());
    }
    assert_eq!((pid(&fixture), fixture.system.hypervisor().launches()), (before, 1));
}

#[tokio::test(start_paused = true)]
async fn a_vm_that_starts_as_paused_executes_its_first_instruction_when_it_is_to_run() {
    let fixture = Fixture::start().await;
    fixture.furnish().await;
    fixture.make_vm(json!({"power": "Paused"})).await;
    fixture.until::<VM>("web", |vm| is_ready(vm, "Paused") && state(VMState::Paused)(vm)).await;
    fixture.assert_quiet().await;
    let view = fixture.system.hypervisor().view(INSTANCE).expect("there is a QEMU");
    assert_eq!((view.run_state, view.booted), (RunState::Prelaunch, false));
    fixture.change::<VM>("web", json!({"power": "Running"})).await;
    fixture.running_vm().await;
    seen(&fixture).await;
    assert_eq!(fixture.system.hypervisor().launches(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_paused_guest_is_resumed_to_shut_down() {
    let fixture = booted().await;
    fixture.change::<VM>("web", json!({"power": "Paused"})).await;
    fixture.until::<VM>("web", |vm| is_ready(vm, "Paused")).await;
    let start = tokio::time::Instant::now();
    fixture.change::<VM>("web", json!({"power": "Stopped"})).await;
    fixture.until::<VM>("web", |vm| is_ready(vm, "Stopped")).await;
    assert!(start.elapsed() < Duration::from_secs(5), "it was asked: {:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_guest_that_a_full_disk_paused_is_paused_by_an_io_error_whatever_else_fails() {
    let fixture = booted().await;
    let hypervisor = fixture.system.hypervisor();
    hypervisor.set_behaviour(INSTANCE, |b| {
        b.refuses.insert("cont".into(), "No space left on device".into());
    });
    hypervisor.disk_full(INSTANCE, ROOT);
    let paused = |vm: &VM| {
        let conditions = vm.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default();
        let message = berth_api::condition::find(&conditions, "Running").map(|c| c.message.clone());
        state(VMState::Paused)(vm)
            && reason_of(&conditions, "Running") == "NoSpace"
            && message.is_some_and(|message| {
                message.contains("I/O error") && message.contains("StoragePool default")
            })
    };
    fixture.until::<VM>("web", paused).await;
    fixture.crash_agent().await;
    hypervisor.set_behaviour(INSTANCE, |b| b.hangs = true);
    fixture.start_agent();
    for _ in 0..60 {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let vm = fixture.api::<VM>().get("web").await.expect("it exists");
        assert!(state(VMState::Paused)(&vm), "{:?}", vm.status.and_then(|status| status.state));
    }
    hypervisor.set_behaviour(INSTANCE, |b| {
        b.hangs = false;
        b.refuses.clear();
    });
    fixture.running_vm().await;
}

#[tokio::test(start_paused = true)]
async fn a_soft_stop_of_a_guest_that_does_not_listen_says_so_and_another_mode_ends_it() {
    let fixture = booted().await;
    fixture.system.hypervisor().set_behaviour(INSTANCE, |b| {
        b.ignores_powerdown = true;
        b.guest_agent = false;
    });
    let stop = json!({"power": "Stopped", "stop": {"mode": "Soft", "gracePeriodSeconds": 30}});
    fixture.change::<VM>("web", stop).await;
    fixture.until::<VM>("web", |vm| vm_reason(vm) == "ShutdownIgnored").await;
    fixture.assert_quiet().await;
    pid(&fixture);
    fixture.change::<VM>("web", json!({"stop": {"mode": "Hard"}})).await;
    fixture.until::<VM>("web", |vm| is_ready(vm, "Stopped")).await;
}

#[tokio::test(start_paused = true)]
async fn a_gate_holds_back_each_start_and_no_guest_that_runs() {
    let fixture = booted().await;
    let before = pid(&fixture);
    let annotate = async |reason: Option<&str>| {
        let patch = json!({"metadata": {"annotations": {"poweron.check.berth.dev/backup": reason}}});
        let patch = kube::api::Patch::Merge(patch);
        let params = kube::api::PatchParams::default();
        fixture.api::<VM>().patch("web", &params, &patch).await.expect("an administrator may");
    };
    annotate(Some("being restored")).await;
    fixture.change::<VM>("web", json!({"restartToken": "1"})).await;
    fixture.assert_quiet().await;
    assert_eq!(pid(&fixture), before, "it runs on, and is restarted later");
    fixture.change::<VM>("web", json!({"power": "Stopped"})).await;
    fixture.until::<VM>("web", |vm| is_ready(vm, "Stopped")).await;
    for power in ["Running", "Paused"] {
        fixture.change::<VM>("web", json!({"power": power})).await;
        let vm = fixture.until::<VM>("web", |vm| vm_reason(vm) == "PowerOnHeld").await;
        assert!(state(VMState::Stopped)(&vm));
        let conditions = vm.status.expect("reported").conditions;
        let ready = berth_api::condition::find(&conditions, "Ready").expect("reported").message.clone();
        assert!(
            ready.contains("poweron.check.berth.dev/backup") && ready.contains("being restored"),
            "{ready}"
        );
        fixture.assert_quiet().await;
        assert!(fixture.system.hypervisor().instances().is_empty());
    }
    fixture.change::<VM>("web", json!({"power": "Running"})).await;
    annotate(None).await;
    let vm = fixture.running_vm().await;
    assert_eq!(vm.status.expect("reported").restart_token.as_deref(), Some("1"));
    assert_eq!(fixture.system.hypervisor().launches(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_hard_stop_does_not_ask() {
    let fixture = booted().await;
    fixture.system.hypervisor().set_behaviour(INSTANCE, |b| b.ignores_powerdown = true);
    let start = tokio::time::Instant::now();
    fixture.change::<VM>("web", json!({"power": "Stopped", "stop": {"mode": "Hard"}})).await;
    fixture.until::<VM>("web", |vm| is_ready(vm, "Stopped")).await;
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_guest_that_switches_itself_off_stays_off_until_somebody_wants_it() {
    let fixture = booted().await;
    fixture.crash_agent().await;
    fixture.system.hypervisor().guest_powers_off(INSTANCE);
    tokio::time::sleep(Duration::from_secs(5)).await;
    // QEMU reports why the guest ended, and waits until a client asks.
    fixture.start_agent();
    fixture.until::<VM>("web", |vm| vm_reason(vm) == "GuestEnded").await;
    assert!(fixture.system.hypervisor().instances().is_empty());
    fixture.assert_quiet().await;
    fixture.change::<VM>("web", json!({"restartToken": "again"})).await;
    let vm = fixture.running_vm().await;
    let status = vm.status.expect("reported");
    assert_eq!((status.restart_token.as_deref(), status.restarts), (Some("again"), 0));
}

#[tokio::test(start_paused = true)]
async fn a_vm_that_crashes_is_started_again_and_in_a_loop_ever_later() {
    let fixture = booted().await;
    fixture.system.hypervisor().crash(INSTANCE);
    let restarted = |n: i64| {
        move |vm: &VM| is_ready(vm, "Running") && vm.status.as_ref().is_some_and(|s| s.restarts == n)
    };
    fixture.until::<VM>("web", restarted(1)).await;
    fixture.system.hypervisor().guest_panics(INSTANCE);
    let vm = fixture.until::<VM>("web", state(VMState::CrashLoop)).await;
    assert_eq!(vm_reason(&vm), "CrashLoop");
    let start = tokio::time::Instant::now();
    fixture.until::<VM>("web", restarted(2)).await;
    assert!(start.elapsed() > Duration::from_secs(8), "{:?}", start.elapsed());
    assert_eq!(vm.spec.power, Power::Running);
}

#[tokio::test(start_paused = true)]
async fn another_restart_token_restarts_once() {
    let fixture = booted().await;
    let before = pid(&fixture);
    fixture.change::<VM>("web", json!({"restartToken": "1"})).await;
    let acted = |vm: &VM| {
        is_ready(vm, "Running") && vm.status.as_ref().is_some_and(|s| s.restart_token.as_deref() == Some("1"))
    };
    fixture.until::<VM>("web", acted).await;
    assert_ne!(pid(&fixture), before);
    fixture.assert_quiet().await;
    assert_eq!(fixture.system.hypervisor().launches(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_stop_that_is_taken_back_leaves_the_vm_running_in_the_end() {
    let fixture = booted().await;
    fixture.system.hypervisor().set_behaviour(INSTANCE, |b| b.shutdown_time = Duration::from_secs(20));
    fixture.change::<VM>("web", json!({"power": "Stopped"})).await;
    fixture.until::<VM>("web", state(VMState::Stopping)).await;
    fixture.change::<VM>("web", json!({"power": "Running"})).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let vm = fixture.running_vm().await;
    assert_eq!(vm.status.expect("reported").restarts, 0, "an end that was asked for is no crash");
    assert_eq!(fixture.system.hypervisor().launches(), 2);
    fixture.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_qemu_that_fails_at_start_says_why_and_is_tried_again() {
    let fixture = Fixture::start().await;
    fixture.furnish().await;
    fixture
        .system
        .hypervisor()
        .set_behaviour(INSTANCE, |b| b.fails_at_start = Some("no such machine type".into()));
    fixture.make_vm(json!({})).await;
    let vm = fixture.until::<VM>("web", |vm| vm_reason(vm) == "QemuFailed").await;
    let status = vm.status.expect("reported");
    let stalled = berth_api::condition::find(&status.conditions, "Stalled").expect("stalled");
    assert!(stalled.message.contains("no such machine type"), "{}", stalled.message);
    tokio::time::sleep(Duration::from_secs(600)).await;
    fixture.system.hypervisor().set_behaviour(INSTANCE, |b| b.fails_at_start = None);
    fixture.running_vm().await;
}

#[tokio::test(start_paused = true)]
async fn a_host_without_qemu_says_so_and_goes_on_once_it_is_installed() {
    let fixture = Fixture::start().await;
    fixture.furnish().await;
    let missing = "QEMU is not installed (Debian: apt install qemu-system-x86)";
    fixture.system.change_facts(|facts| facts.qemu = Err(missing.into()));
    fixture.make_vm(json!({})).await;
    fixture.until::<VM>("web", |vm| vm_reason(vm) == "QemuMissing").await;
    let qemu = berth_host::QemuFacts {
        version: "7.2".into(),
        machine_type: "pc-q35-7.2".into(),
        machine_types: vec!["pc-q35-7.2".to_owned()],
        cpu_model: "max".into(),
        uefi: true,
        secure_boot: true,
        cpu_models: vec!["Westmere".to_owned(), "x86-64-v2".to_owned()],
        boot_roms: true,
        io_uring: true,
        tpm: true,
        vsock: true,
    };
    fixture.system.change_facts(|facts| facts.qemu = Ok(qemu));
    fixture.running_vm().await;
}

#[tokio::test(start_paused = true)]
async fn a_class_that_changes_takes_effect_at_the_next_power_cycle() {
    let fixture = booted().await;
    fixture.change::<VMClass>("small", json!({"cpus": 2})).await;
    let synced = |reason: &'static str| {
        move |vm: &VM| vm.status.as_ref().is_some_and(|s| reason_of(&s.conditions, "ClassSynced") == reason)
    };
    let vm = fixture.until::<VM>("web", synced("PowerCycleNeeded")).await;
    assert!(is_ready(&vm, "Running"));
    assert_eq!(vm.status.expect("it runs").pending_power_cycle, ["cpus"]);
    fixture.change::<VM>("web", json!({"restartToken": "1"})).await;
    let vm = fixture.until::<VM>("web", synced("Synced")).await;
    assert!(vm.status.as_ref().is_some_and(|status| status.pending_power_cycle.is_empty()));
    assert_eq!(vm.status.and_then(|s| s.hardware).map(|h| h.cpus), Some(2));
}

#[tokio::test(start_paused = true)]
async fn the_system_of_an_image_is_that_of_the_vms_that_boot_from_it_and_declare_none() {
    let fixture = booted().await;
    let pending = |names: &'static [&'static str]| {
        move |vm: &VM| vm.status.as_ref().is_some_and(|status| status.pending_power_cycle == names)
    };
    fixture.change::<Image>("debian", json!({"guestOS": "Windows"})).await;
    fixture.until::<VM>("web", pending(&["guestOS"])).await;
    fixture.change::<VM>("web", json!({"guestOS": "Linux"})).await;
    fixture.until::<VM>("web", pending(&[])).await;
}

#[tokio::test(start_paused = true)]
async fn a_tpm_comes_with_a_power_cycle_and_a_suspension_and_its_end_is_reported_until_a_restart() {
    let fixture = booted().await;
    fixture.change::<VM>("web", json!({"tpm": true})).await;
    let is_pending = |vm: &VM| vm.status.as_ref().is_some_and(|status| status.pending_power_cycle == ["tpm"]);
    fixture.until::<VM>("web", is_pending).await;
    fixture.change::<VM>("web", json!({"restartToken": "1"})).await;
    let has = |vm: &VM| {
        let hardware = vm.status.as_ref().and_then(|status| status.hardware.clone()).unwrap_or_default();
        hardware.tpm == Some(true) && is_ready(vm, "Running")
    };
    fixture.until::<VM>("web", has).await;
    fixture.change::<VM>("web", json!({"power": "Suspended"})).await;
    fixture.until::<VM>("web", |vm| is_ready(vm, "Suspended")).await;
    fixture.change::<VM>("web", json!({"power": "Running"})).await;
    fixture.until::<VM>("web", has).await;
    let set_ended = |ended: bool| {
        fixture.system.hypervisor().set_behaviour(INSTANCE, |behaviour| behaviour.tpm_ended = ended);
    };
    set_ended(true);
    fixture.until::<VM>("web", |vm| vm_reason(vm) == "TPMFailed").await;
    set_ended(false);
    fixture.change::<VM>("web", json!({"restartToken": "2"})).await;
    fixture.until::<VM>("web", has).await;
    fixture.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_share_comes_with_a_power_cycle_and_the_end_of_its_server_is_reported_until_a_restart() {
    let fixture = booted().await;
    let share = berth_host::ShareFacts { name: "data".into(), read_only: false, problem: None };
    fixture.system.change_facts(|facts| facts.shares = vec![share]);
    fixture.change::<VM>("web", json!({"shares": [{"name": "data"}]})).await;
    let pending = |names: &'static [&str]| {
        move |vm: &VM| vm.status.as_ref().is_some_and(|status| status.pending_power_cycle == names)
    };
    fixture.until::<VM>("web", pending(&["shares"])).await;
    fixture.change::<VM>("web", json!({"restartToken": "1"})).await;
    fixture.until::<VM>("web", |vm| pending(&[])(vm) && is_ready(vm, "Running")).await;
    let set_lost = |lost: &[&str]| {
        let lost = lost.iter().map(|tag| (*tag).to_owned()).collect();
        fixture.system.hypervisor().set_behaviour(INSTANCE, |behaviour| behaviour.lost_shares = lost);
    };
    set_lost(&["data"]);
    fixture.until::<VM>("web", |vm| vm_reason(vm) == "ShareFailed").await;
    set_lost(&[]);
    fixture.change::<VM>("web", json!({"restartToken": "2"})).await;
    fixture.until::<VM>("web", |vm| is_ready(vm, "Running")).await;
    fixture.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_running_vm_gets_more_cpus_at_once_within_the_maximum_of_its_start() {
    let fixture = booted().await;
    let class = async |spec: serde_json::Value| fixture.change::<VMClass>("small", spec).await;
    class(json!({"maxCpus": 3})).await;
    let waits_for = |names: &'static [&str]| {
        move |vm: &VM| vm.status.as_ref().is_some_and(|s| s.pending_power_cycle == names)
    };
    fixture.until::<VM>("web", waits_for(&["maxCpus"])).await;
    fixture.change::<VM>("web", json!({"restartToken": "1"})).await;
    fixture.until::<VM>("web", waits_for(&[])).await;
    let restarted = fixture.running_vm().await.status.expect("it runs");
    assert_eq!(restarted.facts.get("accelerator").map(String::as_str), Some("tcg"), "{:?}", restarted.facts);
    let pid = restarted.process.as_ref().map(|process| process.pid);

    // Times are in seconds.
    tokio::time::sleep(Duration::from_secs(2)).await;
    class(json!({"cpus": 3})).await;
    let has = |cpus: i64| {
        move |vm: &VM| vm.status.as_ref().and_then(|s| s.hardware.as_ref()).is_some_and(|h| h.cpus == cpus)
    };
    fixture.until::<VM>("web", has(3)).await;
    let grown = fixture.until::<VM>("web", |vm| is_ready(vm, "Running")).await.status.expect("it runs");
    assert!(grown.last_reconfigured > restarted.last_reconfigured, "{:?}", grown.last_reconfigured);
    assert_eq!((&grown.facts, &grown.operation), (&restarted.facts, &None));
    assert_eq!(grown.process.map(|process| process.pid), pid, "it was not restarted");
    assert!(grown.pending_power_cycle.is_empty(), "{:?}", grown.pending_power_cycle);

    class(json!({"cpus": 2})).await;
    let vm = fixture.until::<VM>("web", waits_for(&["cpus"])).await;
    assert_eq!(vm.status.and_then(|s| s.hardware).map(|h| (h.cpus, h.max_cpus)), Some((3, Some(3))));
    fixture.change::<VM>("web", json!({"restartToken": "2"})).await;
    fixture.until::<VM>("web", has(2)).await;
}

#[tokio::test(start_paused = true)]
async fn the_cpu_time_of_a_running_vm_follows_its_declaration_and_that_of_its_class() {
    let fixture = booted().await;
    let pid = |vm: VM| vm.status.and_then(|s| s.process).map(|process| process.pid);
    let started = pid(fixture.running_vm().await);
    let has = |limit: Option<&'static str>, weight: i64| {
        move |vm: &VM| {
            let time = vm.status.as_ref().and_then(|s| s.cpu_time.as_ref());
            is_ready(vm, "Running") && time.is_some_and(|t| t.limit.as_deref() == limit && t.weight == weight)
        }
    };
    fixture.change::<VMClass>("small", json!({"cpuLimit": "0.5", "cpuWeight": 300})).await;
    fixture.until::<VM>("web", has(Some("0.5"), 300)).await;
    fixture.change::<VM>("web", json!({"cpuLimit": "1.750"})).await;
    fixture.until::<VM>("web", has(Some("1.75"), 300)).await;
    // An eighth of the host's 8 CPUs.
    fixture.change::<VM>("web", json!({"cpuReservation": "1"})).await;
    fixture.until::<VM>("web", has(Some("1.75"), 1250)).await;
    fixture.change::<VMClass>("small", json!({"cpuLimit": null, "cpuWeight": null})).await;
    fixture.change::<VM>("web", json!({"cpuLimit": null, "cpuReservation": null})).await;
    let vm = fixture.until::<VM>("web", |vm| {
        is_ready(vm, "Running") && vm.status.as_ref().is_some_and(|s| s.cpu_time.is_none())
    });
    assert_eq!(pid(vm.await), started, "it was never restarted");
}

#[tokio::test(start_paused = true)]
async fn a_vm_with_values_of_its_own_leaves_its_class_at_the_next_power_cycle() {
    let fixture = booted().await;
    let size = json!({"class": null, "cpus": 4, "memory": "256Mi", "firmware": "BIOS", "cpuTopology": {"sockets": 2, "cores": 2}});
    fixture.change::<VM>("web", size).await;
    let is_pending = |vm: &VM| {
        let pending = vm.status.as_ref().map(|s| s.pending_power_cycle.clone()).unwrap_or_default();
        pending == ["class", "cpus", "memory", "firmware"]
    };
    fixture.until::<VM>("web", is_pending).await;
    fixture.change::<VM>("web", json!({"restartToken": "1"})).await;
    let has = |vm: &VM| {
        let hardware = vm.status.as_ref().and_then(|s| s.hardware.clone()).unwrap_or_default();
        let topology = berth_api::CpuTopology { sockets: 2, cores: 2, threads: 1 };
        (hardware.class, hardware.cpus, hardware.memory.as_str(), hardware.firmware.as_str())
            == (None, 4, "256Mi", "BIOS")
            && hardware.cpu_topology == Some(topology)
    };
    let vm = fixture.until::<VM>("web", has).await;
    assert!(vm.status.is_some_and(|status| status.pending_power_cycle.is_empty()));
}

#[tokio::test(start_paused = true)]
async fn a_guest_without_an_agent_counts_as_seen_once_it_took_its_address() {
    let fixture = Fixture::start().await;
    fixture.furnish().await;
    fixture.system.hypervisor().set_behaviour(INSTANCE, |b| b.guest_agent = false);
    fixture.make_vm(json!({})).await;
    seen(&fixture).await;
    let vm = fixture.running_vm().await;
    assert!(!vm.status.and_then(|s| s.guest).expect("it runs").agent);
    fixture.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_vm_on_dedicated_cpus_in_huge_pages_waits_for_both_without_a_crash_loop() {
    const PAGE: u64 = 2 << 20;
    let fixture = booted().await;
    fixture.running_vm().await;
    let pages = |total, free| berth_host::HugePagesFacts { page_bytes: PAGE, total, free };
    fixture.system.change_facts(|facts| {
        facts.huge_pages = vec![pages(1024, 10)];
        facts.dedicated.cpus = [6, 7].into();
    });
    let declared = json!({"cpus": 2, "hugePages": "2Mi", "dedicatedCpuPlacement": true, "restartToken": "1"});
    fixture.change::<VM>("web", declared).await;
    let waits = |reason: &'static str, words: &'static str| {
        move |vm: &VM| {
            let conditions = vm.status.iter().flat_map(|s| &s.conditions);
            let mut ready = conditions.filter(|c| c.type_ == "Ready");
            ready.any(|c| c.reason == reason && c.message.contains(words))
        }
    };
    fixture.until::<VM>("web", waits("Unschedulable", "this host has 10 huge pages of 2Mi left")).await;
    // Another program takes the rest after the host has looked.
    fixture.system.change_facts(|facts| facts.huge_pages = vec![pages(1024, 1024)]);
    let vm = fixture.until::<VM>("web", |vm| is_ready(vm, "Running")).await;
    let status = vm.status.expect("it runs");
    assert_eq!(status.restarts, 0, "it was never started without its pages");
    let cpus = status.dedicated_cpus.expect("it has some");
    assert_eq!((cpus.cpus.as_slice(), cpus.emulator_thread), ([6, 7].as_slice(), None));
    let hardware = status.hardware.expect("it runs");
    assert_eq!(
        (hardware.dedicated_cpu_placement, hardware.huge_pages),
        (Some(true), Some(HugePages::TwoMebibytes))
    );
    assert!(status.pending_power_cycle.is_empty());
    fixture.change::<VM>("web", json!({"isolateEmulatorThread": true, "restartToken": "2"})).await;
    fixture
        .until::<VM>("web", waits("NoHostWithDedicatedCPUs", "needs 3 dedicated CPUs and this host has 2"))
        .await;
}
