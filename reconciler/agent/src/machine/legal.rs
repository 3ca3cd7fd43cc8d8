//! What may be asked of a machine in which state. Synchronous and total.

use berth_qemu::power::RunState;

/// What can be asked of a machine, without the details.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// Only looks.
    Look,
    /// Lets the guest run.
    Start,
    PressPowerButton,
    /// Ends QEMU.
    Quit,
    /// Plugs a disk in, out, or grows it.
    ChangeDisks,
}

impl Act {
    #[cfg(test)]
    pub(super) const ALL: [Self; 5] =
        [Self::Look, Self::Start, Self::PressPowerButton, Self::Quit, Self::ChangeDisks];
}

/// The machine's state does not allow it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{act:?} is not possible while the machine is {state:?}")]
pub(crate) struct Refusal {
    pub(crate) act: Act,
    pub(crate) state: RunState,
}

/// Whether a guest in this state has come to its end: it runs again only in a new QEMU, so that what ended is seen
/// as ended by everybody, also after a restart of the agent.
pub(crate) fn has_ended(state: &RunState) -> bool {
    matches!(state, RunState::Shutdown | RunState::GuestPanicked | RunState::InternalError)
}

/// The one place that says what is legal.
pub(crate) fn legal(state: &RunState, act: Act) -> Result<(), Refusal> {
    let ended = has_ended(state);
    let allowed = match act {
        Act::Look | Act::Quit => true,
        Act::Start => !ended,
        // A guest that does not run cannot hear the button; what it would do later is not what is wanted now.
        Act::PressPowerButton => *state == RunState::Running,
        Act::ChangeDisks => !ended && !matches!(state, RunState::Other(_)),
    };
    if allowed { Ok(()) } else { Err(Refusal { act, state: state.clone() }) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_state() -> impl Strategy<Value = RunState> {
        prop_oneof![
            Just(RunState::Prelaunch),
            Just(RunState::Running),
            Just(RunState::Paused),
            Just(RunState::Shutdown),
            Just(RunState::GuestPanicked),
            Just(RunState::IoError),
            Just(RunState::InternalError),
            "[a-z-]{0,12}".prop_map(RunState::Other),
        ]
    }

    /// What the machine is in afterwards; None: QEMU is gone.
    fn after(state: RunState, act: Act) -> Option<RunState> {
        match act {
            Act::Look | Act::ChangeDisks | Act::PressPowerButton => Some(state),
            Act::Start => Some(RunState::Running),
            Act::Quit => None,
        }
    }

    proptest! {
        #[test]
        fn a_guest_that_ended_never_runs_again_in_the_same_qemu(
            start in any_state(),
            wishes in prop::collection::vec((0usize..5, any::<bool>()), 0..40),
        ) {
            let mut state = start;
            let mut ended = has_ended(&state);
            for (wish, guest_ends) in wishes {
                if guest_ends && state == RunState::Running {
                    state = RunState::Shutdown;
                }
                ended |= has_ended(&state);
                let act = Act::ALL[wish];
                if legal(&state, act).is_ok() {
                    match after(state.clone(), act) {
                        Some(next) => state = next,
                        None => break,
                    }
                }
                prop_assert!(!(ended && state == RunState::Running));
            }
        }

        #[test]
        fn looking_and_pulling_the_plug_are_always_possible(state in any_state()) {
            prop_assert!(legal(&state, Act::Look).is_ok());
            prop_assert!(legal(&state, Act::Quit).is_ok());
        }

        #[test]
        fn nothing_is_plugged_into_a_machine_that_ended(state in any_state()) {
            prop_assume!(has_ended(&state));
            prop_assert!(legal(&state, Act::ChangeDisks).is_err());
            prop_assert!(legal(&state, Act::PressPowerButton).is_err());
        }
    }
}
