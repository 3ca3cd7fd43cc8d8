//! The mirrors of disks of a running machine: their files are copied to other pools while the guest runs.

use berth_qemu::block::{self, BlockError};
use berth_qemu::machine::DiskSpec;
use berth_qemu::power::{self, RunState};

use super::command::{Command, MirrorRequest};
use super::driver::Driver;
use super::legal::Action;
use super::{Machine, MachineError, Machines};

impl Driver {
    /// Returns false if a mirror was to be cancelled that is switched.
    pub(super) async fn mirror(&mut self, request: &MirrorRequest) -> Result<bool, MachineError> {
        self.may_have_left = true;
        match request {
            MirrorRequest::Begin(target) => {
                self.allowed(Action::ChangeDevices).await?;
                block::begin_mirror(&self.qmp, target).await?;
            }
            MirrorRequest::Switch(id) => {
                self.allowed(Action::ChangeDevices).await?;
                // The caller observes the result itself.
                self.expects_stop = power::run_state(&self.qmp).await? == RunState::Running;
                block::switch_mirror(&self.qmp, id).await?;
            }
            MirrorRequest::End(id) => {
                self.expects_resume |= power::run_state(&self.qmp).await? == RunState::Paused;
                block::end_mirror(&self.qmp, id).await?;
            }
            MirrorRequest::Cancel(id) => return Ok(block::cancel_mirror(&self.qmp, id).await?),
        }
        Ok(true)
    }

    /// Ends the mirror of a disk.
    ///
    /// *Errors:* [`MachineError::MirrorNotRecorded`] if it is switched.
    pub(super) async fn cancel_mirror(&self, id: &str) -> Result<(), MachineError> {
        let has_one = block::mirrors(&self.qmp).await?.contains_key(id);
        if has_one && !block::cancel_mirror(&self.qmp, id).await? {
            return Err(MachineError::MirrorNotRecorded { id: id.to_owned() });
        }
        Ok(())
    }

    /// Ends all mirrors: QEMU saves no state of a machine that has one.
    pub(super) async fn cancel_mirrors(&self) -> Result<(), MachineError> {
        for id in block::mirrors(&self.qmp).await?.into_keys() {
            self.cancel_mirror(&id).await?;
        }
        Ok(())
    }

    /// Checks that no guest goes on that is paused until it is recorded which file of a disk counts.
    pub(super) async fn ensure_none_switches(&self, state: &RunState) -> Result<(), MachineError> {
        if *state != RunState::Paused {
            return Ok(());
        }
        match block::mirrors(&self.qmp).await?.into_iter().find(|(_, mirror)| mirror.is_switching()) {
            Some((id, _)) => Err(MachineError::MirrorNotRecorded { id }),
            None => Ok(()),
        }
    }
}

impl Machine {
    /// Begins to copy a disk to this empty file.
    pub(crate) async fn begin_mirror(&self, target: DiskSpec) -> Result<(), MachineError> {
        self.ask(|reply| Command::Mirror(MirrorRequest::Begin(Box::new(target)), reply)).await.map(|_| ())
    }

    /// Pauses the guest and switches a disk to the file that it was copied to.
    pub(crate) async fn switch_mirror(&self, id: &str) -> Result<(), MachineError> {
        self.ask(|reply| Command::Mirror(MirrorRequest::Switch(id.to_owned()), reply)).await.map(|_| ())
    }

    /// Lets the guest go on after a switch that is recorded, and closes the former file.
    pub(crate) async fn end_mirror(&self, id: &str) -> Result<(), MachineError> {
        self.ask(|reply| Command::Mirror(MirrorRequest::End(id.to_owned()), reply)).await.map(|_| ())
    }

    /// Ends the mirror of a disk, which stays in its file. Returns false if it is switched.
    pub(crate) async fn cancel_mirror(&self, id: &str) -> Result<bool, MachineError> {
        self.ask(|reply| Command::Mirror(MirrorRequest::Cancel(id.to_owned()), reply)).await
    }
}

impl Machines {
    /// Returns the number of mirrors that the machines had when they were seen last.
    pub(crate) fn mirrors(&self) -> usize {
        let state = self.state();
        let machines = state.entries.values().filter_map(|entry| entry.machine.as_ref());
        machines.filter(|machine| !machine.is_closed()).map(|machine| machine.driver.borrow().mirrors).sum()
    }
}

impl MachineError {
    /// Whether a disk was not mirrored, and is in its former file.
    pub(crate) fn is_failed_mirror(&self) -> bool {
        matches!(self, Self::Block(BlockError::Mirror { .. }))
    }
}
