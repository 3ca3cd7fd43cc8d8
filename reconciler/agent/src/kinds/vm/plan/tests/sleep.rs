//! A guest that is suspended to its memory, and woken up.

use berth_api::vm::StopSnapshot;
use berth_qemu::machine::MachineSpec;

use super::*;
use crate::host_shutdown::AtShutdown;
use crate::kinds::vm::shutdown;

fn to_sleep() -> VM {
    vm(json!({"power": "Suspended", "suspendMode": "Memory"}))
}

/// A guest in this state that was asked so many seconds ago.
fn asked(state: RunState, seconds: Option<i64>) -> Observed {
    let mut observed = present(state);
    let machine = observed.machine.as_mut().expect("it runs");
    machine.sleep.asked_at = seconds.map(|seconds| at(NOW - seconds));
    observed
}

fn with_sleep(mut observed: Observed, change: impl FnOnce(&mut crate::machine::Sleep)) -> Observed {
    change(&mut observed.machine.as_mut().expect("it runs").sleep);
    observed
}

#[test]
fn a_guest_is_asked_to_suspend_itself_and_then_left_asleep() {
    let running = present(RunState::Running);
    assert_eq!(names(&plan(&to_sleep(), &running)), ["SuspendGuest"]);
    let disk = plan(&vm(json!({"power": "Suspended"})), &running);
    assert!(!names(&disk).contains(&"SuspendGuest"), "the default is a file");
    let falls_asleep = plan(&to_sleep(), &asked(RunState::Running, Some(10)));
    assert_eq!(stands(&falls_asleep), (false, Reason::Suspending));
    assert_eq!(falls_asleep.requeue_after, Some(Duration::from_secs(20)));

    let sleeps = asked(RunState::Suspended, Some(10));
    let asleep = plan(&to_sleep(), &sleeps);
    assert_eq!((names(&asleep), asleep.readiness.reason()), (vec![], Reason::Suspended));
    assert!(matches!(asleep.readiness, Readiness::Ready(..)));
    let reported = status(&to_sleep(), &sleeps, &asleep.readiness, at(NOW));
    assert_eq!(reported.state, Some(VMState::Suspended));
}

#[test]
fn a_guest_that_does_not_suspend_itself_runs_on_and_is_asked_again_after_a_minute() {
    let why = "no guest agent listens in the guest";
    let refuses =
        |seconds| with_sleep(asked(RunState::Running, Some(seconds)), |s| s.refusal = Some(why.into()));
    let refused = plan(&to_sleep(), &refuses(1));
    assert_eq!(stands(&refused), (true, Reason::SuspendFailed));
    assert!(refused.readiness.message().contains(why), "{:?}", refused.readiness);
    assert_eq!(refused.requeue_after, Some(Duration::from_secs(29)));
    let reported = status(&to_sleep(), &refuses(1), &refused.readiness, at(NOW));
    assert_eq!(reported.state, Some(VMState::Running));
    let again = plan(&to_sleep(), &refuses(60));
    assert_eq!((names(&again), again.readiness), (vec!["SuspendGuest"], refused.readiness));

    let ignored = plan(&to_sleep(), &asked(RunState::Running, Some(30)));
    assert_eq!(stands(&ignored), (true, Reason::SuspendFailed));
    assert!(ignored.readiness.message().contains("within 30 seconds"), "{:?}", ignored.readiness);
    assert_eq!(ignored.requeue_after, Some(Duration::from_secs(30)));
    let ignores_again = with_sleep(asked(RunState::Running, Some(1)), |sleep| sleep.was_ignored = true);
    assert_eq!(plan(&to_sleep(), &ignores_again).readiness, ignored.readiness);
}

#[test]
fn a_guest_that_woke_up_by_itself_has_a_minute_before_it_is_suspended_again() {
    let woken =
        |seconds| with_sleep(asked(RunState::Running, Some(3600)), |s| s.woke_at = Some(at(NOW - seconds)));
    let waits = plan(&to_sleep(), &woken(59));
    assert_eq!(stands(&waits), (false, Reason::Suspending));
    assert!(waits.readiness.message().contains("woken up by itself"), "{:?}", waits.readiness);
    assert_eq!(names(&plan(&to_sleep(), &woken(60))), ["SuspendGuest"]);
    assert_eq!(names(&plan(&to_sleep(), &woken(-3600))), ["SuspendGuest"], "the clock was set back");
}

#[test]
fn a_guest_is_woken_up_for_every_other_power() {
    let sleeps = present(RunState::Suspended);
    for power in ["Running", "Paused", "Suspended"] {
        // Suspended: to a file.
        let woken = plan(&vm(json!({"power": power})), &sleeps);
        assert_eq!(names(&woken), ["WakeUp"], "{power}");
    }
    let mut stopping = sleeps.clone();
    stopping.journal.stop = Some(Stop {
        why: StopReason::PowerOff,
        since: at(NOW - 1),
        released: None,
        asked: 0,
        cancelled: false,
    });
    let mut stopped = vm(json!({"power": "Stopped"}));
    let wakes = plan(&stopped, &stopping);
    assert_eq!(names(&wakes), ["WakeUp"]);
    let request = StopSnapshot { name: "web-stop".into(), requested_at: String::new(), message: None };
    stopped.status.as_mut().expect("bound").stop_snapshot = Some(Box::new(request));
    let reported = status(&stopped, &stopping, &wakes.readiness, at(NOW));
    assert!(reported.stop_snapshot.is_some(), "it is still to be taken, before the guest is asked");
    let hard = vm(json!({"power": "Stopped", "stop": {"mode": "Hard"}}));
    assert_eq!(names(&plan(&hard, &stopping)), ["EndProcess"]);
    stopping.now = at(NOW + 60);
    assert_eq!(
        names(&plan(&vm(json!({"power": "Stopped"})), &stopping)),
        ["EndProcess"],
        "it does not wake up"
    );
}

#[test]
fn a_guest_that_sleeps_is_shut_down_or_saved_before_its_host_is() {
    let drained = Observed { draining: true, ..present(RunState::Suspended) };
    assert_eq!(names(&plan(&to_sleep(), &drained)), ["WriteJournal"], "its stop begins");
    let saved = shutdown::declared(&to_sleep(), Some(AtShutdown::Suspend)).into_owned();
    let shut_down =
        |state| Observed { at_shutdown: Some(AtShutdown::Suspend), draining: true, ..present(state) };
    assert_eq!(names(&plan(&saved, &shut_down(RunState::Suspended))), ["WakeUp"], "before it is saved");
    // One that suspended itself goes on after the boot, too.
    let by_itself = shutdown::declared(&vm(json!({})), Some(AtShutdown::Suspend)).into_owned();
    assert_eq!(names(&plan(&by_itself, &shut_down(RunState::Suspended))), ["WakeUp"]);
    assert_eq!(shutdown::declared(&to_sleep(), None).into_owned(), to_sleep());
}

#[test]
fn machines_without_a_suspension_to_memory_say_so_and_run_on() {
    let refused = |change: &dyn Fn(&mut Run)| {
        let mut observed = present(RunState::Running);
        change(observed.journal.run.as_mut().expect("it runs"));
        let plan = plan(&to_sleep(), &observed);
        assert_eq!(stands(&plan), (true, Reason::SuspendFailed));
        plan.readiness.message().to_owned()
    };
    assert!(refused(&|run| run.firmware = "UEFISecureBoot".into()).contains("UEFISecureBoot"));
    assert!(refused(&|run| run.profile.watchdog = Some(berth_api::Watchdog::Reset)).contains("watchdog"));
    let aarch64 = |run: &mut Run| run.machine = Some(Box::new(virt()));
    assert!(refused(&aarch64).contains("aarch64"));
}

fn virt() -> MachineSpec {
    let started = plan(&vm(json!({})), &ready_to_start());
    let launch = started.steps.into_iter().find_map(|step| match step {
        Step::Launch(request) => Some(request.machine),
        _ => None,
    });
    MachineSpec { machine_type: "virt-7.2".into(), ..launch.expect("it starts") }
}

#[test]
fn the_memory_of_a_guest_that_ended_in_its_sleep_is_reported_as_lost() {
    let mut observed = ready_to_start();
    observed.journal_written = true;
    observed.journal.last_end =
        Some(Ended { at: at(NOW - 9), orderly: false, how: "QEMU was gone".into(), out_of_memory: false });
    let lost = plan(&to_sleep(), &observed);
    assert_eq!(lost.readiness.reason(), Reason::GuestEnded);
    let text = lost.readiness.message();
    assert!(text.contains("is lost") && text.contains("QEMU was gone"), "{text}");
    assert_eq!(status(&to_sleep(), &observed, &lost.readiness, at(NOW)).state, Some(VMState::Stopped));
    let file = plan(&vm(json!({"power": "Suspended"})), &observed);
    assert_eq!(file.readiness.reason(), Reason::Stopped);
}
