//! Which requests are legal in which state of a machine. Synchronous and total.

use berth_qemu::power::RunState;

/// The kind of a request to a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Reads state only.
    ReadState,
    /// Lets the guest run.
    Start,
    /// Wakes up a guest that has suspended itself to its memory.
    WakeUp,
    /// Stops the guest's CPUs.
    Pause,
    PressPowerButton,
    /// Presses the reset button.
    Reset,
    InjectNmi,
    /// Ends QEMU.
    Quit,
    /// Plugs, unplugs or grows a disk or shortens its chain, or exchanges a medium. Plugs in or unplugs a network card, or sets its link.
    ChangeDevices,
    /// Has disks continue in overlays.
    ContinueInOverlays,
    /// Asks the guest to give memory back, or to take it.
    SetBalloon,
    /// Saves the machine's state.
    Save,
    /// Loads a saved state.
    Load,
}

impl Action {
    #[cfg(test)]
    pub(super) const ALL: [Self; 13] = [
        Self::ReadState,
        Self::Start,
        Self::WakeUp,
        Self::Pause,
        Self::PressPowerButton,
        Self::Quit,
        Self::ChangeDevices,
        Self::ContinueInOverlays,
        Self::SetBalloon,
        Self::Save,
        Self::Load,
        Self::Reset,
        Self::InjectNmi,
    ];
}

/// The machine's state does not allow the request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{action:?} is not possible while the machine is {state:?}")]
pub(crate) struct IllegalAction {
    pub(crate) action: Action,
    pub(crate) state: RunState,
}

/// Whether a guest in this state has ended. It runs again only in a new QEMU, so that every observer sees that it
/// ended, also after a restart of the agent.
pub(crate) fn has_ended(state: &RunState) -> bool {
    matches!(
        state,
        RunState::Shutdown | RunState::GuestPanicked | RunState::Watchdog | RunState::InternalError
    )
}

/// Checks whether a request is legal; the only place that decides it.
pub(crate) fn check_legal(state: &RunState, action: Action) -> Result<(), IllegalAction> {
    let ended = has_ended(state);
    let allowed = match action {
        Action::ReadState | Action::Quit => true,
        // QEMU would let the guest run as soon as its state is loaded, before the caller has recorded it.
        // QEMU ignores it for a guest that has suspended itself.
        Action::Start => !ended && !matches!(state, RunState::InMigrate | RunState::Suspended),
        Action::WakeUp => *state == RunState::Suspended,
        Action::Load => *state == RunState::InMigrate,
        Action::Save => matches!(state, RunState::Running | RunState::Paused),
        // Any other state is kept: its name is the reason why the guest does not run.
        Action::Pause => matches!(state, RunState::Running | RunState::Paused),
        // A guest that does not run cannot receive the button; acting on it after a later resume is not what the caller
        // wants. A reset would hide how a guest has ended.
        Action::PressPowerButton | Action::SetBalloon | Action::Reset | Action::InjectNmi => {
            *state == RunState::Running
        }
        Action::ChangeDevices => {
            // A guest that has suspended itself releases nothing, and finds what was plugged in only by luck.
            let is_elsewhere = matches!(state, RunState::InMigrate | RunState::PostMigrate);
            !ended && !is_elsewhere && !matches!(state, RunState::Other(_) | RunState::Suspended)
        }
        // QEMU allows it between the end of a save and the guest that goes on.
        Action::ContinueInOverlays => !ended && !matches!(state, RunState::Other(_) | RunState::InMigrate),
    };
    if allowed { Ok(()) } else { Err(IllegalAction { action, state: state.clone() }) }
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
            Just(RunState::InMigrate),
            Just(RunState::PostMigrate),
            Just(RunState::Suspended),
            "[a-z-]{0,12}".prop_map(RunState::Other),
        ]
    }

    /// The machine's state afterwards; None if QEMU is gone.
    fn after(state: RunState, action: Action) -> Option<RunState> {
        match action {
            Action::ReadState
            | Action::ChangeDevices
            | Action::ContinueInOverlays
            | Action::SetBalloon
            | Action::PressPowerButton
            | Action::Reset
            | Action::InjectNmi => Some(state),
            Action::Start | Action::WakeUp => Some(RunState::Running),
            Action::Save => Some(RunState::PostMigrate),
            Action::Load => Some(RunState::Paused),
            Action::Pause => Some(RunState::Paused),
            Action::Quit => None,
        }
    }

    proptest! {
        #[test]
        fn a_guest_that_ended_never_runs_again_in_the_same_qemu(
            start in any_state(),
            requests in prop::collection::vec((0usize..13, any::<bool>()), 0..40),
        ) {
            let mut state = start;
            let mut ended = has_ended(&state);
            for (request, guest_ends) in requests {
                if guest_ends && state == RunState::Running {
                    state = RunState::Shutdown;
                }
                ended |= has_ended(&state);
                let action = Action::ALL[request];
                if check_legal(&state, action).is_ok() {
                    match after(state.clone(), action) {
                        Some(next) => state = next,
                        None => break,
                    }
                }
                prop_assert!(!(ended && state == RunState::Running));
            }
        }

        #[test]
        fn looking_and_pulling_the_plug_are_always_possible(state in any_state()) {
            prop_assert!(check_legal(&state, Action::ReadState).is_ok());
            prop_assert!(check_legal(&state, Action::Quit).is_ok());
        }

        #[test]
        fn nothing_is_plugged_into_a_machine_that_ended(state in any_state()) {
            prop_assume!(has_ended(&state));
            prop_assert!(check_legal(&state, Action::ChangeDevices).is_err());
            prop_assert!(check_legal(&state, Action::PressPowerButton).is_err());
            prop_assert!(check_legal(&state, Action::Reset).is_err());
        }

        #[test]
        fn a_machine_that_waits_for_its_state_is_only_loaded_or_ended(action in 0usize..13) {
            let action = Action::ALL[action];
            let is_legal = check_legal(&RunState::InMigrate, action).is_ok();
            prop_assert_eq!(is_legal, matches!(action, Action::ReadState | Action::Load | Action::Quit));
        }
    }
}
