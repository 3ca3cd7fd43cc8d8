//! Whether the QEMU of a machine answers. While it does not, no request waits for it.

use berth_qemu::power;

use super::command::Command;
use super::driver::{ANSWER_WAIT, Driver};
use super::{Machine, MachineError, QUEUE_LENGTH};

impl Driver {
    /// Whether QEMU did not answer when it was last asked for that.
    pub(super) fn is_silent(&self) -> bool {
        self.published.borrow().is_silent
    }

    /// Asks QEMU for an answer, and enqueues the VM if it has fallen silent or answers again.
    pub(super) async fn check_answer(&mut self) {
        let is_silent = !power::is_answering(&self.qmp, ANSWER_WAIT).await;
        if self.is_silent() != is_silent {
            self.published.send_modify(|state| state.is_silent = is_silent);
            self.notifier.wake();
        }
    }
}

impl Machine {
    /// Has the driver ask whether QEMU answers, see [`Machine::is_silent`]. Does not wait for it. A driver for which other requests wait
    /// does not ask: it asks after each that took long.
    pub(crate) fn check_answer(&self) {
        if self.commands.capacity() == QUEUE_LENGTH {
            // A driver that has ended belongs to a machine that has ended.
            let _ = self.commands.try_send(Command::CheckAnswer);
        }
    }

    /// Whether QEMU did not answer when it was last asked for that.
    pub(crate) fn is_silent(&self) -> bool {
        self.driver.borrow().is_silent
    }

    /// Returns why a request is not executed. QEMU may answer again since it was dropped: that is not the end of the machine.
    pub(super) fn unanswered(&self) -> MachineError {
        if self.is_closed() { MachineError::Gone } else { MachineError::Silent }
    }
}
