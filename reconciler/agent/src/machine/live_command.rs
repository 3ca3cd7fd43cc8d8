//! The requests of a move of a running guest, as data.

use berth_qemu::console::ConsoleStream;
use berth_qemu::live_move::{SendLimits, SendPhase};
use tokio::sync::oneshot;

use super::error::MachineError;

type Answer<T> = oneshot::Sender<Result<T, MachineError>>;

/// A request of a move.
#[derive(Debug)]
pub(super) enum LiveCommand {
    Send(SendLimits, Answer<ConsoleStream>),
    Progress(Answer<(SendPhase, Option<i64>)>),
    SwitchOver(Answer<()>),
    Receive(usize, Answer<ConsoleStream>),
    Announce(Answer<()>),
}
