//! Properties of the plan of any VM in any state.

use super::*;

#[test]
fn a_machine_whose_journal_cannot_be_read_is_left_alone() {
    let journal_problem = Some("newer than this agent".to_owned());
    for object in [vm(json!({})), deleted(vm(json!({}))), vm(json!({"power": "Stopped"}))] {
        let observed = Observed { journal_problem: journal_problem.clone(), ..present(RunState::Shutdown) };
        assert_eq!(stands(&plan(&object, &observed)), (true, Reason::NotSupported));
    }
}

#[test]
fn a_void_binding_is_not_acted_on() {
    let mut observed = ready_to_start();
    observed.journal.epoch = 2;
    assert_eq!(stands(&plan(&vm(json!({})), &observed)), (false, Reason::Bound));
}

fn any_state() -> impl Strategy<Value = RunState> {
    prop::sample::select(vec![
        RunState::Prelaunch,
        RunState::Running,
        RunState::Paused,
        RunState::Shutdown,
        RunState::GuestPanicked,
        RunState::Watchdog,
        RunState::IoError,
        RunState::InternalError,
        RunState::Suspended,
        RunState::Other("inmigrate".into()),
    ])
}

proptest! {
    /// Whatever the journal and QEMU report: nothing is launched beside an existing QEMU, and a VM that is to be off or
    /// gone is neither launched nor started, except that a paused guest is resumed to shut down.
    #[test]
    fn no_plan_starts_a_second_machine_or_one_that_should_be_off(
        state in any_state(),
        present_now in any::<bool>(),
        reachable in any::<bool>(),
        off in any::<bool>(),
        gone in any::<bool>(),
        updated in any::<bool>(),
        ended in prop::option::of(any::<bool>()),
        stop in prop::option::of((0u8..4, any::<bool>())),
        later in 0i64..200,
    ) {
        let is_paused = matches!(state, RunState::Paused | RunState::IoError);
        let mut observed = if present_now { present(state) } else { ready_to_start() };
        observed.now = at(NOW + later);
        if !reachable {
            observed.machine = None;
        }
        if updated {
            let ended = ended.map(|orderly| Ended { at: at(NOW), orderly, how: String::new(), out_of_memory: false });
            observed.journal.run = Some(Run { ended, ..run() });
        }
        observed.journal.stop = stop.map(|(asked, cancelled)| {
            Stop { why: StopReason::PowerOff, since: at(NOW), released: None, asked, cancelled }
        });
        let mut object = vm(if off { json!({"power": "Stopped"}) } else { json!({}) });
        if gone {
            object = deleted(object);
        }
        let steps = names(&plan(&object, &observed));
        if present_now || off || gone {
            prop_assert!(!steps.contains(&"Launch"), "{steps:?}");
        }
        if (off || gone) && !is_paused {
            prop_assert!(!steps.contains(&"Start"), "{steps:?}");
        }
        if present_now {
            for step in ["RemoveInstance", "RemoveTap", "Release"] {
                prop_assert!(!steps.contains(&step), "{steps:?}");
            }
        }
        if let Some(launch) = steps.iter().position(|s| *s == "Launch") {
            prop_assert!(steps[..launch].contains(&"WriteJournal"));
        }
    }

    /// A plan that only writes the journal makes progress with what it wrote: no plan writes it forever.
    #[test]
    fn writing_the_journal_comes_to_an_end(
        state in any_state(),
        off in any::<bool>(),
        gone in any::<bool>(),
        token in prop::option::of("[a-z]{0,3}"),
        stop in prop::option::of((0u8..4, any::<bool>())),
    ) {
        let mut observed = present(state);
        observed.journal.stop = stop.map(|(asked, cancelled)| {
            Stop { why: StopReason::Restart, since: at(NOW), released: None, asked, cancelled }
        });
        let mut object = vm(if off { json!({"power": "Stopped"}) } else { json!({}) });
        object.spec.restart_token = token;
        if gone {
            object = deleted(object);
        }
        let mut rounds = 0;
        loop {
            let plan = plan(&object, &observed);
            if plan.steps.is_empty() || !plan.steps.iter().all(|s| matches!(s, Step::WriteJournal(_))) {
                break;
            }
            for step in plan.steps {
                if let Step::WriteJournal(journal) = step {
                    observed.journal = *journal;
                }
            }
            rounds += 1;
            prop_assert!(rounds < 6, "{:?}", observed.journal);
        }
    }
}
