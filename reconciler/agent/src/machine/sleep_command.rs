//! The requests about the suspension of a guest to its memory, as data.

use tokio::sync::oneshot;

use super::error::MachineError;

type Answer = oneshot::Sender<Result<(), MachineError>>;

/// A request about the suspension of a guest.
#[derive(Debug)]
pub(super) enum SleepCommand {
    /// The guest was asked to suspend itself, and has refused it for this reason.
    Asked(Option<String>, Answer),
    WakeUp(Answer),
}
