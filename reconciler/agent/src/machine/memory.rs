//! The memory of a running machine: what is plugged in, and its balloon.

use berth_qemu::balloon::{self, Balloon};
use berth_qemu::memory::{self, Growth};
use berth_qemu::qmp::QmpError;

use super::MachineError;
use super::driver::Driver;
use super::legal::Action;

impl Driver {
    pub(super) async fn request_memory(&self, bytes: u64) -> Result<(), MachineError> {
        self.allowed(Action::ChangeDevices).await?;
        Ok(memory::request(&self.qmp, bytes).await?)
    }

    /// Reads the memory that was plugged in. Most machines have no device for it, and are asked once.
    pub(super) async fn read_growth(&self) -> Result<Option<Growth>, QmpError> {
        if self.can_grow == Some(false) {
            return Ok(None);
        }
        memory::observe(&self.qmp).await
    }

    /// Reads the balloon. From the first time on the guest is asked to report its memory.
    pub(super) async fn balloon(&mut self) -> Result<Balloon, MachineError> {
        if !self.reports_memory {
            balloon::report_regularly(&self.qmp).await?;
            self.reports_memory = true;
        }
        Ok(balloon::observe(&self.qmp).await?)
    }

    /// Reads how much is in the balloon, of a guest that runs: a state that is being loaded may change it.
    pub(super) async fn ballooned(&self) -> Result<u64, MachineError> {
        self.allowed(Action::SetBalloon).await?;
        Ok(balloon::ballooned(&self.qmp).await?)
    }

    pub(super) async fn set_balloon(&self, bytes: u64) -> Result<(), MachineError> {
        self.allowed(Action::SetBalloon).await?;
        Ok(balloon::request(&self.qmp, bytes).await?)
    }
}
