//! Stopping and deleting a VM.

use berth_api::HookFailurePolicy;

use super::*;
use crate::hooks::{DueHook, DueSnapshot};
use crate::host_shutdown::AtShutdown;

#[test]
fn a_stop_is_noted_asked_for_three_times_and_then_forced() {
    let vm = vm(json!({"power": "Stopped", "stop": {"gracePeriodSeconds": 90}}));
    let mut observed = present(RunState::Running);
    let mut story = Vec::new();
    for second in 0..100 {
        observed.now = at(NOW + second);
        // Like the agent: until the plan has no step.
        for _ in 0..4 {
            let plan = plan(&vm, &observed);
            if plan.steps.is_empty() {
                break;
            }
            for step in &plan.steps {
                if let Step::WriteJournal(journal) = step {
                    observed.journal = (**journal).clone();
                }
            }
            story
                .extend(names(&plan).into_iter().filter(|n| *n != "WriteJournal").map(|name| (second, name)));
            if plan.steps.contains(&Step::EndProcess) {
                assert_eq!(
                    story,
                    [
                        (0, "PressPowerButton"),
                        (30, "AskGuestToShutDown"),
                        (60, "PressPowerButton"),
                        (90, "EndProcess"),
                        (90, "ReportPowerOff")
                    ]
                );
                return;
            }
        }
    }
    panic!("it was never ended: {story:?}");
}

/// Applies the plans of each second, up to the step that ends QEMU, and returns the steps other than those of the journal.
fn story(vm: &VM, observed: &mut Observed, seconds: i64) -> Vec<&'static str> {
    let mut story = Vec::new();
    for second in 0..seconds {
        observed.now = at(NOW + second);
        for _ in 0..4 {
            let plan = plan(vm, observed);
            for step in &plan.steps {
                if let Step::WriteJournal(journal) = step {
                    observed.journal = (**journal).clone();
                }
            }
            story.extend(names(&plan).into_iter().filter(|name| *name != "WriteJournal"));
            if story.contains(&"EndProcess") {
                return story;
            }
        }
    }
    story
}

fn with_hook(policy: &str) -> Value {
    json!({"power": "Stopped", "stop": {"gracePeriodSeconds": 90},
        "hooks": {"preStop": {"snapshot": {}, "timeoutSeconds": 30, "failurePolicy": policy}}})
}

/// A guest that runs, and whose stop began an hour ago and has not asked it yet.
fn awaiting_hook(state: RunState, policy: HookFailurePolicy, is_taken: bool) -> Observed {
    let mut observed = present(state);
    let since = at(NOW - 3600);
    observed.journal.stop =
        Some(Stop { why: StopReason::PowerOff, since, released: None, asked: 0, cancelled: false });
    observed.hook = Some(DueHook::Snapshot(DueSnapshot {
        name: "web-stop-20260101000000".to_owned(),
        since,
        is_taken,
        obstacle: None,
        time: Duration::from_secs(30),
        left: Duration::ZERO,
        policy,
    }));
    observed
}

#[test]
fn a_guest_whose_hook_ends_after_the_grace_period_is_asked_to_shut_down_before_it_is_powered_off() {
    let vm = vm(with_hook("Fail"));
    let failed = plan(&vm, &awaiting_hook(RunState::Running, HookFailurePolicy::Fail, false));
    assert_eq!((stands(&failed), failed.steps.is_empty()), ((true, Reason::HookFailed), true));
    let forced =
        ["PressPowerButton", "AskGuestToShutDown", "PressPowerButton", "EndProcess", "ReportPowerOff"];
    assert_eq!(story(&vm, &mut awaiting_hook(RunState::Running, HookFailurePolicy::Fail, true), 100), forced);
    // After the failure was reported, it is ignored, or the VM is deleted.
    let reported = |mut vm: VM| {
        let status = vm.status.as_mut().expect("set");
        failed.readiness.write(&mut status.conditions, 4, at(NOW));
        vm
    };
    let ignoring = reported(super::vm(with_hook("Ignore")));
    assert_eq!(
        story(&ignoring, &mut awaiting_hook(RunState::Running, HookFailurePolicy::Ignore, false), 100),
        forced
    );
    assert_eq!(
        story(
            &reported(deleted(vm)),
            &mut awaiting_hook(RunState::Running, HookFailurePolicy::Fail, false),
            100
        ),
        forced
    );
}

#[test]
fn a_guest_that_cannot_be_called_for_a_moment_is_not_powered_off_without_its_required_hook() {
    let mut observed = awaiting_hook(RunState::Running, HookFailurePolicy::Fail, false);
    observed.hook = None;
    observed.machine = None;
    let fail = with_hook("Fail");
    let waits = plan(&vm(fail.clone()), &observed);
    assert!(waits.steps.is_empty() && waits.requeue_after.is_some(), "{waits:?}");
    let mut set_back = observed.clone();
    set_back.journal.stop.as_mut().expect("set").since = at(NOW + 3600);
    let waits = plan(&vm(fail.clone()), &set_back);
    assert!(waits.steps.is_empty(), "its grace period begins after the hook: {waits:?}");
    assert_eq!(names(&plan(&vm(with_hook("Ignore")), &observed)), ["EndProcess"]);
    let mut hard = fail.clone();
    hard["stop"] = json!({"mode": "Hard"});
    assert_eq!(names(&plan(&vm(hard), &observed)), ["EndProcess"]);
    let draining =
        Observed { draining: true, ..awaiting_hook(RunState::IoError, HookFailurePolicy::Fail, false) };
    assert_eq!(names(&plan(&vm(fail.clone()), &Observed { hook: None, ..draining })), ["EndProcess"]);
    let full = Observed { hook: None, ..awaiting_hook(RunState::IoError, HookFailurePolicy::Fail, false) };
    assert!(!names(&plan(&vm(fail.clone()), &full)).contains(&"EndProcess"), "its disk is full");
    observed.journal.stop.as_mut().expect("set").why = StopReason::Delete;
    assert_eq!(names(&plan(&deleted(vm(fail)), &observed)), ["EndProcess"]);
}

#[test]
fn a_soft_stop_asks_and_does_not_force_unless_the_vm_is_deleted_or_its_host_drained() {
    let asked = ["PressPowerButton", "AskGuestToShutDown", "PressPowerButton"];
    let forced =
        ["PressPowerButton", "AskGuestToShutDown", "PressPowerButton", "EndProcess", "ReportPowerOff"];
    let soft = json!({"power": "Stopped", "stop": {"mode": "Soft", "gracePeriodSeconds": 90}});
    let mut observed = present(RunState::Running);
    assert_eq!(story(&vm(soft.clone()), &mut observed, 3600), asked);
    let left = plan(&vm(soft.clone()), &observed);
    assert_eq!((stands(&left), left.requeue_after), ((true, Reason::ShutdownIgnored), None));
    assert!(left.readiness.message().contains("stop.mode"), "{}", left.readiness.message());
    let reported = status(&vm(soft.clone()), &observed, &left.readiness, at(NOW));
    assert_eq!(reported.state, Some(VMState::Stopping));
    // Another mode takes effect at once.
    let hard = vm(json!({"power": "Stopped", "stop": {"mode": "Hard"}}));
    assert_eq!(names(&plan(&hard, &observed)), ["EndProcess"]);

    assert_eq!(story(&deleted(vm(soft.clone())), &mut present(RunState::Running), 3600), forced);
    let mut draining = Observed { draining: true, ..present(RunState::Running) };
    assert_eq!(story(&vm(soft), &mut draining, 3600), forced);
}

#[test]
fn a_vm_that_is_off_before_its_host_is_shut_down_says_so() {
    let observed = Observed { draining: true, at_shutdown: Some(AtShutdown::Stop), ..ready_to_start() };
    let held = plan(&vm(json!({})), &observed);
    assert_eq!(stands(&held), (false, Reason::HostShuttingDown));
    let text = "its host is being shut down: it starts again when the host has booted";
    assert_eq!(held.readiness.message(), text);
    let reported = status(&vm(json!({})), &observed, &held.readiness, at(NOW));
    assert_eq!(reported.state, Some(VMState::Stopped));
    let declared = plan(&vm(json!({"power": "Stopped"})), &observed);
    assert_eq!(stands(&declared), (false, Reason::Stopped));
}

#[test]
fn a_restart_has_a_mode_of_its_own() {
    let restart = |spec: Value| {
        let mut spec = spec;
        spec["restartToken"] = "2".into();
        story(&vm(spec), &mut present(RunState::Running), 100)
    };
    let asked = ["PressPowerButton", "AskGuestToShutDown", "PressPowerButton"];
    assert_eq!(restart(json!({"restartMode": "Hard"})), ["EndProcess"]);
    assert_eq!(restart(json!({"stop": {"mode": "Hard"}})), ["EndProcess"], "the mode of stop is the default");
    assert_eq!(restart(json!({"restartMode": "Soft", "stop": {"mode": "Hard"}})), asked);
    let stopped = json!({"power": "Stopped", "restartMode": "Hard"});
    let steps = story(&vm(stopped), &mut present(RunState::Running), 100);
    assert_eq!(steps.first(), Some(&"PressPowerButton"), "it is no restart");
}

#[test]
fn a_guest_that_went_off_when_asked_is_stopped_and_not_crashed() {
    let stop =
        Stop { why: StopReason::PowerOff, since: at(NOW - 5), released: None, asked: 1, cancelled: false };
    let mut observed = present(RunState::Shutdown);
    observed.journal.stop = Some(stop);
    let vm = vm(json!({"power": "Stopped"}));
    assert_eq!(names(&plan(&vm, &observed)), ["EndProcess"]);
    observed.process = None;
    observed.machine = None;
    let settled = plan(&vm, &observed);
    let [Step::WriteJournal(journal)] = &settled.steps[..] else { panic!("{settled:?}") };
    assert_eq!((&journal.run, &journal.stop, journal.restarts), (&None, &None, 0));
    observed.journal = (**journal).clone();
    observed.taps = vec!["btt01234567n0".into()];
    assert_eq!(names(&plan(&vm, &observed)), ["RemoveTap"]);
    observed.taps.clear();
    let stopped = plan(&vm, &observed);
    assert_eq!(stopped.readiness, Readiness::Ready(Reason::Stopped, String::new()));
}

#[test]
fn the_guest_of_a_deleted_vm_is_asked_to_shut_down_first() {
    let gone = deleted(vm(json!({})));
    let mut observed = present(RunState::Running);
    let noted = plan(&gone, &observed);
    let [Step::WriteJournal(journal)] = &noted.steps[..] else { panic!("{noted:?}") };
    assert_eq!(journal.stop.as_ref().map(|stop| stop.why), Some(StopReason::Delete));
    observed.journal = (**journal).clone();
    let asks = plan(&gone, &observed);
    let [Step::WriteJournal(journal), Step::PressPowerButton] = &asks.steps[..] else { panic!("{asks:?}") };
    observed.now = at(NOW + 1000);
    assert_eq!(names(&plan(&gone, &observed)), ["EndProcess"], "it was not asked");
    observed.journal = (**journal).clone();
    assert_eq!(names(&plan(&gone, &observed)), ["EndProcess", "ReportPowerOff"]);
}

#[test]
fn deletion_ends_with_nothing_left_and_the_disks_given_back() {
    let gone = deleted(vm(json!({})));
    let mut observed = present(RunState::Running);
    assert_eq!(names(&plan(&gone, &observed)), ["WriteJournal"]);
    observed.process = None;
    observed.machine = None;
    observed.journal = Journal::new(&gone);
    observed.still_user = true;
    observed.taps = vec!["t".into()];
    assert_eq!(names(&plan(&gone, &observed)), ["RemoveTap", "RemoveInstance"]);
    observed.taps.clear();
    observed.journal_written = false;
    assert_eq!(stands(&plan(&gone, &observed)), (false, Reason::Deleting));
    observed.still_user = false;
    assert_eq!(names(&plan(&gone, &observed)), ["Release"]);
}

/// A guest in this state that was asked to stop at this time.
fn stopping_since(state: RunState, since: i64) -> Observed {
    let stop =
        Stop { why: StopReason::PowerOff, since: at(since), released: None, asked: 0, cancelled: false };
    let mut observed = present(state);
    observed.journal.stop = Some(stop);
    observed
}

#[test]
fn a_guest_that_a_full_disk_has_paused_is_resumed_so_that_it_can_shut_down() {
    let soft = vm(json!({"power": "Stopped", "stop": {"mode": "Soft"}}));
    let resumed = plan(&soft, &stopping_since(RunState::IoError, NOW - 3600));
    assert_eq!(names(&resumed), ["Start"]);
    let every = Some(Duration::from_secs(10));
    assert_eq!((resumed.readiness.reason(), resumed.requeue_after), (Reason::NoSpace, every));
    let graceful = vm(json!({"power": "Stopped", "stop": {"gracePeriodSeconds": 8}}));
    let within = plan(&graceful, &stopping_since(RunState::IoError, NOW - 5));
    assert_eq!((names(&within), within.requeue_after), (vec!["Start"], Some(Duration::from_secs(3))));
    assert_eq!(names(&plan(&graceful, &stopping_since(RunState::IoError, NOW - 8))), ["EndProcess"]);
}

#[test]
fn a_guest_has_its_grace_period_and_no_more_after_the_clock_was_set_back() {
    let vm = vm(json!({"power": "Stopped", "stop": {"gracePeriodSeconds": 90}}));
    let mut observed = stopping_since(RunState::Running, NOW + 3600);
    let forced =
        ["PressPowerButton", "AskGuestToShutDown", "PressPowerButton", "EndProcess", "ReportPowerOff"];
    assert_eq!(story(&vm, &mut observed, 100), forced);
}
