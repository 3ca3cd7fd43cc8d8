//! The requests that a machine takes: of its driver, and of the task that talks with its guest.

use std::time::Duration;

use berth_qemu::balloon::Balloon;
use berth_qemu::block::{DiskUse, ImageSnapshot, IoLimits, Unplugged};
use berth_qemu::cdrom::Changed;
use berth_qemu::machine::{DiskSpec, Medium, NicSpec};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use super::command::Command;
use super::driver::briefly;
use super::guest::{Freeze, GuestRequest};
use super::{GuestFacts, Machine, MachineError, MachineState};

/// The time for the guest's agent to answer a reconcile, with the requests of others before it: a guest that keeps its agent busy does not
/// hold up its stop.
const AGENT_WAIT: Duration = Duration::from_secs(10);

impl Machine {
    /// Has the driver execute a request.
    ///
    /// *Errors*: at once while QEMU is silent, except for what is asked of one that is expected to be.
    pub(super) async fn ask<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<Result<T, MachineError>>) -> Command,
    ) -> Result<T, MachineError> {
        let (reply, answer) = oneshot::channel();
        let command = command(reply);
        if self.is_silent() && !command.is_patient() {
            // The next one is executed if it answers again.
            self.check_answer();
            return Err(self.unanswered());
        }
        self.commands.send(command).await.map_err(|_| MachineError::Gone)?;
        answer.await.map_err(|_| self.unanswered())?
    }

    /// As [`Machine::ask`], for what is asked again regularly: a QEMU that does not answer holds up the caller for two seconds.
    async fn ask_briefly<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<Result<T, MachineError>>) -> Command,
    ) -> Result<T, MachineError> {
        briefly(self.ask(command)).await
    }

    pub(crate) async fn state(&self) -> Result<MachineState, MachineError> {
        self.ask(Command::ReadState).await
    }

    pub(crate) async fn start(&self) -> Result<(), MachineError> {
        self.ask(Command::Start).await
    }

    pub(crate) async fn pause(&self) -> Result<(), MachineError> {
        self.ask(Command::Pause).await
    }

    /// Begins to save the machine's state, of at most this many bytes. The guest's CPUs are stopped.
    pub(crate) async fn save(&self, at_most: u64) -> Result<(), MachineError> {
        self.ask(|reply| Command::Save(at_most, reply)).await
    }

    /// Cancels a save; the guest's CPUs stay stopped.
    pub(crate) async fn cancel_save(&self) -> Result<(), MachineError> {
        self.ask(Command::CancelSave).await
    }

    /// Begins to load the state of a machine that had this number of CPUs.
    pub(crate) async fn load(&self, cpus: usize) -> Result<(), MachineError> {
        self.ask(|reply| Command::Load(cpus, reply)).await
    }

    pub(crate) async fn press_power_button(&self) -> Result<(), MachineError> {
        self.ask(Command::PressPowerButton).await
    }

    pub(crate) async fn reset(&self) -> Result<(), MachineError> {
        self.ask(Command::Reset).await
    }

    pub(crate) async fn inject_nmi(&self) -> Result<(), MachineError> {
        self.ask(Command::InjectNmi).await
    }

    pub(crate) async fn quit(&self) -> Result<(), MachineError> {
        self.ask(Command::Quit).await
    }

    pub(crate) async fn plug(&self, disk: DiskSpec) -> Result<(), MachineError> {
        self.ask(|reply| Command::Plug(Box::new(disk), reply)).await
    }

    pub(crate) async fn unplug(&self, id: &str) -> Result<Unplugged, MachineError> {
        self.ask(|reply| Command::Unplug(id.to_owned(), reply)).await
    }

    pub(crate) async fn plug_nic(&self, nic: NicSpec) -> Result<(), MachineError> {
        self.ask(|reply| Command::PlugNic(Box::new(nic), reply)).await
    }

    pub(crate) async fn unplug_nic(&self, id: &str) -> Result<Unplugged, MachineError> {
        self.ask(|reply| Command::UnplugNic(id.to_owned(), reply)).await
    }

    pub(crate) async fn set_link(&self, nic: &str, up: bool) -> Result<(), MachineError> {
        self.ask(|reply| Command::SetLink { nic: nic.to_owned(), up, reply }).await
    }

    /// Has the driver take the links as up that it has not set, and no file as left open: its process was started just now.
    pub(crate) async fn assume_links_up(&self) -> Result<(), MachineError> {
        self.ask(Command::AssumeLinksUp).await
    }

    /// Exchanges the medium of a CD-ROM drive.
    pub(crate) async fn change_medium(
        &self,
        slot: u8,
        medium: Option<Medium>,
    ) -> Result<Changed, MachineError> {
        self.ask(|reply| Command::ChangeMedium { slot, medium, reply }).await
    }

    /// Closes the tray of a CD-ROM drive.
    pub(crate) async fn close_tray(&self, slot: u8) -> Result<(), MachineError> {
        self.ask(|reply| Command::CloseTray(slot, reply)).await
    }

    pub(crate) async fn plug_cpus(&self, count: usize) -> Result<(), MachineError> {
        self.ask(|reply| Command::PlugCpus(count, reply)).await
    }

    pub(crate) async fn request_memory(&self, bytes: u64) -> Result<(), MachineError> {
        self.ask(|reply| Command::RequestMemory(bytes, reply)).await
    }

    /// Reads the operations of its disks.
    pub(crate) async fn disk_use(&self) -> Result<Vec<DiskUse>, MachineError> {
        self.ask_briefly(Command::ReadDiskUse).await
    }

    /// Reads its balloon, and the memory that its guest reports from the first reading on.
    pub(crate) async fn balloon(&self) -> Result<Balloon, MachineError> {
        self.ask_briefly(Command::ReadBalloon).await
    }

    /// Reads how much of its memory is in its balloon, in bytes, while its guest runs.
    pub(crate) async fn ballooned(&self) -> Result<u64, MachineError> {
        self.ask_briefly(Command::ReadBallooned).await
    }

    /// Asks the guest to have this many bytes of the memory of its start. Does not wait for it.
    pub(crate) async fn set_balloon(&self, bytes: u64) -> Result<(), MachineError> {
        self.ask_briefly(|reply| Command::SetBalloon(bytes, reply)).await
    }

    /// Has the guest agent set CPUs and memory online that were plugged in. Without an agent the guest decides. Does not wait for
    /// it.
    pub(crate) async fn set_online(&self) {
        if !self.guest_listens().await {
            return;
        }
        self.tell(GuestRequest::SetOnline).await;
    }

    /// Records that a snapshot begins to freeze the guest's file systems.
    pub(crate) fn freeze_begins(&self) {
        // A task with a full queue has no time to look at the guest either.
        let _ = self.requests.try_send(GuestRequest::Frozen(Freeze::None));
    }

    /// Records that the guest's file systems were frozen and not thawed: the guest task tries it until they are.
    pub(crate) async fn thaw_failed(&self) {
        self.tell(GuestRequest::Frozen(Freeze::Overdue)).await;
    }

    /// Has the guest agent set the guest's clock to the host's. Does not wait for it.
    pub(crate) async fn set_clock(&self) {
        if self.guest_listens().await {
            self.tell(GuestRequest::SetClock).await;
        }
    }

    /// Queues a request for the guest task, and does not wait for it. It is lost if a guest keeps its agent busy all the time.
    async fn tell(&self, request: GuestRequest) {
        // A guest task that has ended belongs to a machine that has ended.
        if timeout(AGENT_WAIT, self.requests.send(request)).await.is_err() {
            tracing::debug!("the guest agent is busy: a request to it is dropped");
        }
    }

    pub(crate) async fn resize(&self, id: &str, bytes: u64) -> Result<(), MachineError> {
        self.ask(|reply| Command::Resize { id: id.to_owned(), bytes, reply }).await
    }

    /// Has disks continue in these overlays on their present files, and takes snapshots of images of Ceph, at one moment. Returns whether
    /// something was done just now.
    pub(crate) async fn snapshot_disks(
        &self,
        overlays: Vec<DiskSpec>,
        images: Vec<ImageSnapshot>,
    ) -> Result<bool, MachineError> {
        self.ask(|reply| Command::SnapshotDisks { overlays, images, reply }).await
    }

    /// Has a disk read through the chain of files of this one, which is shorter than its present one.
    pub(crate) async fn shorten_chain(&self, disk: DiskSpec) -> Result<(), MachineError> {
        self.ask(|reply| Command::ShortenChain(Box::new(disk), reply)).await
    }

    pub(crate) async fn set_limits(&self, id: &str, limits: IoLimits) -> Result<(), MachineError> {
        self.ask(|reply| Command::SetLimits { id: id.to_owned(), limits, reply }).await
    }

    /// Returns the disk's mount points in the guest; None if no guest agent answers in time.
    pub(crate) async fn mounts(&self, serial: &str, target: Option<u8>) -> Option<Vec<String>> {
        if !self.guest_listens().await {
            return None;
        }
        let (reply, answer) = oneshot::channel();
        let request = GuestRequest::Mounts { serial: serial.to_owned(), target, reply };
        let asked = async {
            self.requests.send(request).await.ok()?;
            answer.await.ok()?
        };
        timeout(AGENT_WAIT, asked).await.ok()?
    }

    /// Asks the guest agent to shut the guest down. Returns false if no agent received the request in time.
    pub(crate) async fn ask_guest_to_shut_down(&self) -> bool {
        if !self.guest_listens().await {
            return false;
        }
        let (reply, answer) = oneshot::channel();
        let asked = async {
            self.requests.send(GuestRequest::Shutdown(reply)).await.is_ok() && answer.await.unwrap_or(false)
        };
        timeout(AGENT_WAIT, asked).await.unwrap_or(false)
    }

    /// Whether the guest has its agent's port open. True if the monitor does not answer: that is no reason not to ask.
    pub(crate) async fn guest_listens(&self) -> bool {
        self.ask_briefly(Command::GuestListens).await.unwrap_or(true)
    }

    pub(crate) fn guest(&self) -> GuestFacts {
        self.facts.borrow().clone()
    }

    /// Returns when the guest last began to boot, or when its process was started if that is not known.
    pub(crate) fn booted_at(&self) -> Instant {
        self.driver.borrow().booted_at.unwrap_or(self.launched)
    }

    /// Returns the number of starts of the guest's agent that were seen.
    pub(crate) fn agent_starts(&self) -> u64 {
        self.driver.borrow().agent_starts
    }

    /// Waits for another start of the guest's agent than those that were seen before, or for the end of the machine.
    pub(crate) async fn next_agent_start(&self, before: u64) {
        // An error is the end of the driver.
        let _ = self.driver.clone().wait_for(|state| state.agent_starts != before).await;
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.commands.is_closed()
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::super::QUEUE_LENGTH;
    use super::*;

    #[tokio::test]
    async fn a_request_that_was_dropped_while_qemu_was_silent_is_no_end_of_a_machine_that_answers_again() {
        let (commands, mut of_driver) = mpsc::channel(QUEUE_LENGTH);
        let machine = Machine { commands, ..Machine::unconnected() };
        let drops = async { drop(of_driver.recv().await) };
        let (answer, ()) = tokio::join!(machine.state(), drops);
        assert!(answer.is_err_and(|error| error.is_timeout()));
        drop(of_driver);
        assert!(matches!(machine.state().await, Err(MachineError::Gone)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_guest_that_keeps_its_agent_busy_does_not_hold_up_a_stop() {
        let (commands, mut of_driver) = mpsc::channel(QUEUE_LENGTH);
        // The guest task is busy: it takes no request, and has no room for another one.
        let (requests, _of_guest) = mpsc::channel(1);
        requests.send(GuestRequest::SetOnline).await.expect("there is room");
        let machine = Machine { commands, requests, ..Machine::unconnected() };
        let answers = async {
            while let Some(command) = of_driver.recv().await {
                if let Command::GuestListens(reply) = command {
                    let _ = reply.send(Ok(true));
                }
            }
        };
        let asks = async {
            let heard = machine.ask_guest_to_shut_down().await;
            machine.set_online().await;
            machine.set_clock().await;
            machine.thaw_failed().await;
            (heard, machine.mounts("serial", None).await)
        };
        let outcome = tokio::select! {
            outcome = timeout(AGENT_WAIT * 6, asks) => outcome.expect("it does not wait for the guest"),
            () = answers => unreachable!("the machine is there"),
        };
        assert_eq!(outcome, (false, None));
    }
}
