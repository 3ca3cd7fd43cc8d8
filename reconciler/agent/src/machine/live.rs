//! The requests of a move of a running guest: at the machine that it leaves, and at the one that it goes to.

use berth_qemu::console::ConsoleStream;
use berth_qemu::cpus;
use berth_qemu::live_move::{self, SendLimits, SendPhase};
use berth_qemu::power::{self, RunState};

use super::command::Command;
use super::driver::Driver;
use super::legal::{Action, IllegalAction, check_legal};
use super::live_command::LiveCommand;
use super::{Machine, MachineError};

impl Driver {
    pub(super) async fn execute_live(&mut self, command: LiveCommand) {
        match command {
            LiveCommand::Send(limits, reply) => {
                let _ = reply.send(self.send_guest(limits).await);
            }
            LiveCommand::Progress(reply) => {
                let _ = reply.send(live_move::progress(&self.qmp).await.map_err(MachineError::from));
            }
            LiveCommand::SwitchOver(reply) => {
                let _ = reply.send(live_move::switch_over(&self.qmp).await.map_err(MachineError::from));
            }
            LiveCommand::Receive(cpus, reply) => {
                let _ = reply.send(self.receive_guest(cpus).await);
            }
            LiveCommand::Announce(reply) => {
                let _ = reply.send(live_move::announce(&self.qmp).await.map_err(MachineError::from));
            }
        }
    }

    async fn send_guest(&mut self, limits: SendLimits) -> Result<ConsoleStream, MachineError> {
        let state = power::run_state(&self.qmp).await?;
        if state != RunState::Running {
            return Err(IllegalAction { action: Action::Save, state }.into());
        }
        // One that began while the other host prepared: that has the present files.
        self.cancel_mirrors().await?;
        let channel = self.system.lend_channel(&self.instance, &self.qmp).await?;
        // The resume after this pause, if it fails, does not wait.
        self.published.send_modify(|state| state.resumed_at = None);
        self.is_sending = true;
        live_move::send(&self.qmp, limits).await?;
        Ok(channel)
    }

    async fn receive_guest(&mut self, cpus: usize) -> Result<ConsoleStream, MachineError> {
        check_legal(&power::run_state(&self.qmp).await?, Action::Load)?;
        self.cpus = None;
        cpus::plug(&self.qmp, cpus).await?;
        let channel = self.system.lend_channel(&self.instance, &self.qmp).await?;
        live_move::receive(&self.qmp).await?;
        Ok(channel)
    }
}

impl Machine {
    /// Begins to send the running guest, and returns the connection that its state comes from. It must be read at all times.
    pub(crate) async fn send_guest(&self, limits: SendLimits) -> Result<ConsoleStream, MachineError> {
        self.ask(|reply| Command::Live(LiveCommand::Send(limits, reply))).await
    }

    /// Queries how far the guest is sent, and the part of its memory that is, in percent.
    pub(crate) async fn send_progress(&self) -> Result<(SendPhase, Option<i64>), MachineError> {
        self.ask(|reply| Command::Live(LiveCommand::Progress(reply))).await
    }

    /// Has the machine give its disks up and send the rest of its state.
    pub(crate) async fn switch_over(&self) -> Result<(), MachineError> {
        self.ask(|reply| Command::Live(LiveCommand::SwitchOver(reply))).await
    }

    /// Begins to receive a guest with this number of CPUs, and returns the connection that its state is written to.
    pub(crate) async fn receive_guest(&self, cpus: usize) -> Result<ConsoleStream, MachineError> {
        self.ask(|reply| Command::Live(LiveCommand::Receive(cpus, reply))).await
    }

    /// Has the network cards announce where the guest is now.
    pub(crate) async fn announce(&self) -> Result<(), MachineError> {
        self.ask(|reply| Command::Live(LiveCommand::Announce(reply))).await
    }
}
