//! A guest that ended: restarted, backed off, or left off.

use super::*;
use crate::host_shutdown::AtShutdown;

fn ended(policy: &str, orderly: bool) -> Plan<Step> {
    ended_in(ready_to_start(), policy, orderly)
}

fn ended_in(mut observed: Observed, policy: &str, orderly: bool) -> Plan<Step> {
    let ending = Ended { at: at(NOW), orderly, how: "it ended".into(), out_of_memory: false };
    let run = Run { process: None, ended: Some(ending), ..run() };
    observed.journal = Journal { run: Some(run), failures: 1, ..observed.journal };
    plan(&vm(json!({"restartPolicy": policy})), &observed)
}

#[test]
fn the_restart_policy_decides_about_a_guest_that_ended_by_itself() {
    let starts = |policy: &str, orderly: bool| names(&ended(policy, orderly)).contains(&"Launch");
    assert_eq!([starts("Always", true), starts("Always", false)], [true, true]);
    assert_eq!([starts("OnFailure", true), starts("OnFailure", false)], [false, true]);
    assert_eq!([starts("Never", true), starts("Never", false)], [false, false]);
    assert_eq!(stands(&ended("Never", false)), (true, Reason::GuestEnded));
    let Step::WriteJournal(journal) = &ended("Always", false).steps[0] else {
        panic!("a start is updated first")
    };
    assert_eq!(journal.restarts, 1);
}

#[test]
fn the_shutdown_of_a_host_does_not_have_a_guest_started_that_its_restart_policy_leaves_off() {
    let host = || Observed { draining: true, at_shutdown: Some(AtShutdown::Stop), ..ready_to_start() };
    let stays_off = ended_in(host(), "Never", true);
    assert_eq!(stands(&stays_off), (true, Reason::GuestEnded));
    assert!(!names(&stays_off).contains(&"WriteJournal"), "its end is not forgotten");
    let starts_after_boot = ended_in(host(), "Always", true);
    assert_eq!(names(&starts_after_boot), ["WriteJournal"], "its end is not held against its next start");
    assert_eq!(starts_after_boot.readiness.reason(), Reason::HostShuttingDown);
}

#[test]
fn a_gate_that_comes_and_goes_does_not_have_a_guest_started_that_its_restart_policy_leaves_off() {
    let gated = |policy: &str| {
        let mut vm = vm(json!({"restartPolicy": policy}));
        let gate = ("poweron.check.berth.dev/backup".to_owned(), "copying".to_owned());
        vm.metadata.annotations.get_or_insert_default().extend([gate]);
        vm
    };
    let ending =
        Ended { at: at(NOW), orderly: true, how: "it switched itself off".into(), out_of_memory: false };
    let mut observed = ready_to_start();
    let run = Run { process: None, ended: Some(ending), ..run() };
    observed.journal = Journal { run: Some(run), ..observed.journal };
    // Without a step: its end is not forgotten.
    assert_eq!(stands(&plan(&gated("OnFailure"), &observed)), (true, Reason::GuestEnded));
    assert_eq!(plan(&gated("Always"), &observed).readiness.reason(), Reason::PowerOnHeld);
}

#[test]
fn a_loop_waits_and_says_until_when_without_counting_down() {
    let mut observed = ready_to_start();
    let ending = Ended { at: at(NOW), orderly: false, how: "it crashed".into(), out_of_memory: false };
    let run = Run { process: None, ended: Some(ending), ..run() };
    observed.journal =
        Journal { run: Some(run), failures: 3, not_before: Some(at(NOW + 20)), ..observed.journal };
    let early = plan(&vm(json!({})), &observed);
    assert_eq!(
        (stands(&early), early.requeue_after),
        ((true, Reason::CrashLoop), Some(Duration::from_secs(20)))
    );
    observed.now = at(NOW + 15);
    let later = plan(&vm(json!({})), &observed);
    assert_eq!(later.readiness, early.readiness);
    let reported = status(&vm(json!({})), &observed, &later.readiness, at(NOW));
    assert_eq!(reported.state, Some(VMState::CrashLoop));
    let token = vm(json!({"restartToken": "now"}));
    assert!(names(&plan(&token, &observed)).contains(&"Launch"), "a person need not wait");
    observed.now = at(NOW - 3600);
    assert!(names(&plan(&vm(json!({})), &observed)).contains(&"Launch"), "the clock was set back");
}

#[test]
fn the_last_end_is_reported_also_after_the_restart() {
    let ending = Ended {
        at: at(NOW),
        orderly: false,
        how: "the guest's kernel panicked".into(),
        out_of_memory: false,
    };
    let crashed = Journal { run: Some(run()), ..ready_to_start().journal }.with_ending(ending);
    let mut observed = present(RunState::Running);
    observed.journal =
        Journal { run: Some(run()), restarts: 1, last_end: crashed.last_end, ..observed.journal };
    let readiness = plan(&vm(json!({})), &observed).readiness;
    let reported = status(&vm(json!({})), &observed, &readiness, at(NOW));
    let end = reported.last_end.as_ref().expect("reported");
    assert_eq!(
        (end.message.as_str(), end.orderly, end.time),
        ("the guest's kernel panicked", false, at(NOW))
    );
    let stored = VMStatus { restarts: 0, ..reported.clone() };
    let (reason, note) = restarted(&stored, &reported).expect("an event");
    assert_eq!(reason, Reason::Restarted);
    assert_eq!(note, "the guest's kernel panicked: started again (restart 1)");
    assert_eq!(restarted(&reported, &reported), None, "once");
}

#[test]
fn why_a_guest_ended_is_told_from_what_qemu_says() {
    let ending = |state: RunState| {
        let plan = plan(&vm(json!({})), &present(state));
        assert_eq!(names(&plan), ["WriteJournal", "EndProcess"]);
        let Step::WriteJournal(journal) = plan.steps[0].clone() else { panic!("updated first") };
        journal.run.and_then(|run| run.ended).expect("updated").orderly
    };
    assert!(ending(RunState::Shutdown));
    assert!(!ending(RunState::GuestPanicked));
    assert!(!ending(RunState::Watchdog));
    assert!(!ending(RunState::InternalError));
}

#[test]
fn another_restart_token_restarts_a_running_vm_and_a_removed_one_does_not() {
    let reason = |token: Option<&str>, before: Option<&str>| {
        let ran = Run { token: before.map(str::to_owned), ..run() };
        reason_to_stop(&vm(json!({"restartToken": token})), Some(&ran), false)
    };
    assert_eq!(reason(Some("2"), Some("1")), Some(StopReason::Restart));
    assert_eq!(reason(Some("1"), None), Some(StopReason::Restart));
    assert_eq!(reason(Some("1"), Some("1")), None);
    assert_eq!(reason(None, Some("1")), None);
}

#[test]
fn a_change_of_power_is_an_event_and_the_first_start_is_none() {
    let with = |state: VMState, generation: i64| {
        let mut status =
            VMStatus { state: Some(state), observed_generation: generation, ..VMStatus::default() };
        Readiness::Ready(Reason::Running, String::new()).write(&mut status.conditions, generation, at(NOW));
        status
    };
    let reason = |before: VMState, now: VMState, generation: i64| {
        transition(&with(before, generation), &with(now, generation)).map(|(reason, _)| reason)
    };
    for before in [VMState::Pending, VMState::Creating, VMState::Starting, VMState::Unknown] {
        assert_eq!(reason(before, VMState::Running, 1), None, "{before:?}");
        assert_eq!(reason(before, VMState::Stopped, 1), None, "{before:?}");
    }
    assert_eq!(reason(VMState::Stopped, VMState::Running, 1), Some(Reason::Running), "the host has booted");
    assert_eq!(reason(VMState::Starting, VMState::Running, 2), Some(Reason::Running));
    assert_eq!(reason(VMState::Suspended, VMState::Running, 3), Some(Reason::Running));
    assert_eq!(reason(VMState::Stopping, VMState::Stopped, 2), Some(Reason::Stopped));
    assert_eq!(reason(VMState::Suspending, VMState::Suspended, 2), Some(Reason::Suspended));
    assert_eq!(reason(VMState::Running, VMState::Paused, 2), Some(Reason::Paused));
    for state in [VMState::Running, VMState::Stopped] {
        assert_eq!(reason(state, state, 2), None, "nothing has changed");
    }
    assert_eq!(reason(VMState::Running, VMState::Terminating, 2), None);
    let mut full = with(VMState::Paused, 2);
    let waits = Readiness::Reconciling(Reason::NoSpace, String::new());
    waits.write(&mut full.conditions, 2, at(NOW));
    assert_eq!(transition(&with(VMState::Running, 2), &full), None, "it is not declared");
    assert_eq!(transition(&full, &with(VMState::Running, 2)), None);
}

#[test]
fn a_qemu_that_the_kernel_ended_for_lack_of_memory_has_a_reason_of_its_own() {
    let mut observed = ready_to_start();
    observed.journal = Journal { run: Some(run()), ..observed.journal };
    observed.oom_killed = true;
    let never = vm(json!({"restartPolicy": "Never"}));
    let seen = plan(&never, &observed);
    let [Step::WriteJournal(journal)] = &seen.steps[..] else { panic!("{seen:?}") };
    let observed = Observed { journal: (**journal).clone(), oom_killed: false, ..observed };
    let off = plan(&never, &observed);
    assert_eq!(stands(&off), (true, Reason::OutOfMemory));
    let reported = status(&never, &observed, &off.readiness, at(NOW));
    assert_eq!(reported.state, Some(VMState::Stopped));
    let end = reported.last_end.as_ref().expect("reported");
    assert!(end.out_of_memory && !end.orderly && end.message.contains("for lack of memory"), "{end:?}");
    let again = VMStatus { restarts: 1, ..reported.clone() };
    let (reason, note) = restarted(&reported, &again).expect("an event");
    assert!(reason == Reason::OutOfMemory && note.ends_with("started again (restart 1)"), "{note}");
    let policy = vm(json!({"restartPolicy": "OnFailure"}));
    assert!(names(&plan(&policy, &observed)).contains(&"Launch"), "as after a crash");
}

#[test]
fn a_guest_that_runs_on_after_the_stop_for_its_liveness_probe_is_withdrawn_has_not_ended() {
    let declared = |power: &str| vm(json!({"power": power, "livenessProbe": {"tcpSocket": {"port": 22}}}));
    let next = |vm: &VM, observed: &Observed| {
        let plan = plan(vm, observed);
        let [Step::WriteJournal(journal)] = &plan.steps[..] else { panic!("{plan:?}") };
        Observed { journal: (**journal).clone(), probes: ProbeResults::default(), ..observed.clone() }
    };
    let mut fails = present(RunState::Running);
    fails.probes.liveness = Some(Outcome::Failure("no connection".into()));
    let unhealthy = next(&declared("Running"), &fails);
    let stopping = next(&declared("Stopped"), &unhealthy);
    let cancelled = next(&declared("Running"), &stopping);
    let runs_on = next(&declared("Running"), &Observed { now: at(NOW + 3600), ..cancelled });
    assert_eq!(runs_on.journal.stop, None);
    let off = Observed { machine: present(RunState::Shutdown).machine, ..runs_on };
    let ended = plan(&declared("Running"), &off);
    assert_eq!(names(&ended), ["WriteJournal", "EndProcess"]);
    let Step::WriteJournal(journal) = &ended.steps[0] else { panic!("{ended:?}") };
    let end = journal.last_end.as_ref().expect("recorded");
    assert!(end.orderly && end.how.contains("switched itself off"), "{end:?}");
}
