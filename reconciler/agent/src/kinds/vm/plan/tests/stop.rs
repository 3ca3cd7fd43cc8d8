//! Stopping and deleting a VM.

use super::*;

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
                        (90, "EndProcess")
                    ]
                );
                return;
            }
        }
    }
    panic!("it was never ended: {story:?}");
}

#[test]
fn a_guest_that_went_off_when_asked_is_stopped_and_not_crashed() {
    let stop = Stop { why: StopReason::PowerOff, since: at(NOW - 5), asked: 1, cancelled: false };
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
    assert_eq!(names(&plan(&gone, &observed)), ["WriteJournal", "PressPowerButton"]);
    observed.now = at(NOW + 1000);
    assert_eq!(names(&plan(&gone, &observed)), ["EndProcess"]);
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
