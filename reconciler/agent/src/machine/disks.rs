//! The disks of a running machine: plugged in, taken out, grown and limited, and the files that QEMU has open without a disk.

use std::collections::{BTreeMap, BTreeSet};

use berth_engine::ErrorChain;
use berth_qemu::block::{self, Devices, ImageSnapshot, IoLimits, Mirror, ObservedDisk, Unplugged};
use berth_qemu::machine::DiskSpec;
use berth_qemu::power::RunState;

use super::MachineError;
use super::driver::{Driver, RELEASE_WAIT};
use super::legal::{Action, check_legal};

impl Driver {
    /// Closes the files that disks do not use any more, and returns the disks that the machine does not have and whose files QEMU has open.
    /// They are looked for until there are none.
    pub(super) async fn left_open(
        &mut self,
        state: &RunState,
        disks: &[ObservedDisk],
        mirrors: &BTreeMap<String, Mirror>,
    ) -> Result<BTreeSet<String>, MachineError> {
        let may_close = !self.is_sending && check_legal(state, Action::ChangeDevices).is_ok();
        let is_closed = match may_close {
            true => block::close_unused(&self.qmp, disks, mirrors).await,
            false => Ok(()),
        };
        if let Err(error) = &is_closed {
            tracing::debug!(error = %ErrorChain(error), "files that no disk uses stay open");
        }
        let left = block::left_open(&self.qmp).await?;
        self.may_have_left = !left.is_empty() || !may_close || is_closed.is_err();
        Ok(left)
    }

    pub(super) async fn plug(&mut self, disk: &DiskSpec) -> Result<(), MachineError> {
        self.allowed(Action::ChangeDevices).await?;
        self.devices = Devices::default();
        self.may_have_left = true;
        if disk.format.is_encrypted() {
            self.system.lend_key(&self.qmp, disk).await?;
        }
        Ok(block::plug(&self.qmp, disk).await?)
    }

    pub(super) async fn unplug(&mut self, id: &str) -> Result<Unplugged, MachineError> {
        self.allowed(Action::ChangeDevices).await?;
        self.may_have_left = true;
        self.cancel_mirror(id).await?;
        Ok(block::unplug(&self.qmp, id, RELEASE_WAIT).await?)
    }

    pub(super) async fn snapshot_disks(
        &mut self,
        overlays: &[DiskSpec],
        images: &[ImageSnapshot],
    ) -> Result<bool, MachineError> {
        self.allowed(Action::ContinueInOverlays).await?;
        self.may_have_left = true;
        Ok(block::snapshot_disks(&self.qmp, overlays, images).await?)
    }

    pub(super) async fn shorten_chain(&mut self, disk: &DiskSpec) -> Result<(), MachineError> {
        self.allowed(Action::ChangeDevices).await?;
        self.may_have_left = true;
        Ok(block::shorten_chain(&self.qmp, disk).await?)
    }

    pub(super) async fn set_limits(&self, id: &str, limits: &IoLimits) -> Result<(), MachineError> {
        self.allowed(Action::ChangeDevices).await?;
        Ok(block::set_limits(&self.qmp, id, limits).await?)
    }

    pub(super) async fn resize(&self, id: &str, bytes: u64) -> Result<(), MachineError> {
        self.allowed(Action::ChangeDevices).await?;
        Ok(block::resize(&self.qmp, id, bytes).await?)
    }
}
