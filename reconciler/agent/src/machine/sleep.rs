//! The suspension of a guest to its memory (ACPI S3), which its own kernel does: the guest agent requests it, and QEMU reports it.
//!
//! ```text
//!   Running ──suspend_guest──▶ (the guest suspends its devices) ──SUSPEND──▶ Suspended ──wake_up──▶ Running
//!                                                                                └── its clock, a key ──▲
//! ```

use std::time::Duration;

use berth_qemu::power;
use berth_qemu::qmp::EventKind;
use jiff::Timestamp;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::command::Command;
use super::driver::Driver;
use super::guest::GuestRequest;
use super::legal::Action;
use super::sleep_command::SleepCommand;
use super::{Machine, MachineError};

const NO_AGENT: &str = "no guest agent listens in the guest: run qemu-guest-agent there";
const BUSY: &str = "its agent is busy with other requests";
/// The time for the guest's agent to take the request, with those of others before it, and for the guest to suspend itself.
const ASK_WAIT: Duration = Duration::from_secs(30);

/// The suspensions of a guest to its memory, as far as the driver was connected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sleep {
    /// When the guest was last asked to suspend itself.
    pub(crate) asked_at: Option<Timestamp>,
    /// Why it did not then, if its agent has said so.
    pub(crate) refusal: Option<String>,
    /// It did not after the request before, and had not refused it: a guest that ignores requests is reported so all along.
    pub(crate) was_ignored: bool,
    /// When it last woke up by itself.
    pub(crate) woke_at: Option<Timestamp>,
    /// How often it has suspended itself.
    count: u64,
    /// It is being woken up.
    expects_wakeup: bool,
}

impl Driver {
    pub(super) fn note_sleep(&self, event: &EventKind) {
        let now = self.notifier.clock.now();
        self.published.send_modify(|state| match event {
            EventKind::Suspend => {
                state.sleep.count += 1;
                state.sleep.expects_wakeup = false;
            }
            _ if std::mem::take(&mut state.sleep.expects_wakeup) => {}
            _ => state.sleep.woke_at = Some(now),
        });
    }

    pub(super) async fn execute_sleep(&mut self, command: SleepCommand) {
        match command {
            SleepCommand::Asked(refusal, reply) => {
                let now = self.notifier.clock.now();
                self.published.send_modify(|state| {
                    let before = &state.sleep;
                    let was_asked = before.asked_at.is_some() && before.refusal.is_none();
                    state.sleep.was_ignored = was_asked && before.woke_at < before.asked_at;
                    state.sleep.asked_at = Some(now);
                    state.sleep.refusal = refusal;
                    // The wake-up after it does not wait.
                    state.resumed_at = None;
                });
                let _ = reply.send(Ok(()));
            }
            SleepCommand::WakeUp(reply) => {
                let _ = reply.send(self.wake_up().await);
            }
        }
    }

    async fn wake_up(&mut self) -> Result<(), MachineError> {
        self.allowed(Action::WakeUp).await?;
        power::wake_up(&self.qmp).await?;
        let now = self.notifier.clock.now();
        self.published.send_modify(|state| {
            // The next suspension does not wait.
            state.sleep = Sleep { count: state.sleep.count, expects_wakeup: true, ..Sleep::default() };
            state.resumed_at = Some(now);
        });
        self.notifier.guest.notify_one();
        Ok(())
    }
}

impl Machine {
    /// Asks the guest to suspend itself to its memory, by its agent, and records its answer in [`Sleep`]. Waits until it has done so or its
    /// agent has refused it, for seconds at most.
    pub(crate) async fn suspend_guest(&self) -> Result<(), MachineError> {
        let refusal =
            if self.guest_listens().await { self.refusal().await } else { Some(NO_AGENT.to_owned()) };
        self.ask(|reply| Command::Sleep(SleepCommand::Asked(refusal, reply))).await
    }

    async fn refusal(&self) -> Option<String> {
        let before = self.driver.borrow().sleep.count;
        let mut driver = self.driver.clone();
        let (reply, answer) = oneshot::channel();
        let asked = async {
            // A guest task that has ended belongs to a machine that has ended.
            self.requests.send(GuestRequest::Suspend(reply)).await.ok()?;
            // Its agent does not answer then.
            let suspended = async {
                // An error is the end of the driver.
                let _ = driver.wait_for(|state| state.sleep.count != before).await;
            };
            tokio::select! {
                () = suspended => None,
                answer = answer => answer.ok().flatten(),
            }
        };
        timeout(ASK_WAIT, asked).await.unwrap_or_else(|_| Some(BUSY.to_owned()))
    }

    /// Wakes up a guest that has suspended itself to its memory.
    pub(crate) async fn wake_up(&self) -> Result<(), MachineError> {
        self.ask(|reply| Command::Sleep(SleepCommand::WakeUp(reply))).await
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::{mpsc, watch};

    use super::super::{DriverState, QUEUE_LENGTH};
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_guest_that_keeps_its_agent_busy_does_not_hold_up_its_vm() {
        // The guest task is busy: it takes no request.
        let (requests, _of_guest) = mpsc::channel(QUEUE_LENGTH);
        let (_state, driver) = watch::channel(DriverState::default());
        let machine = Machine { requests, driver, ..Machine::unconnected() };
        let refusal = timeout(ASK_WAIT * 2, machine.refusal()).await.expect("it does not wait for the guest");
        assert_eq!(refusal.as_deref(), Some(BUSY));
    }
}
