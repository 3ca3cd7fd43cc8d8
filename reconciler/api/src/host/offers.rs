//! Devices and folders that a host offers to VMs, as its status lists them.

use std::collections::{BTreeMap, BTreeSet};

use super::HostStatus;
use crate::{DeviceBus, DeviceName, OfferedDevices};

impl HostStatus {
    /// Returns the devices that the host offers, by name. The report is trusted within the bounds of the API only.
    #[must_use]
    pub fn offered_devices(&self) -> BTreeMap<DeviceName, OfferedDevices> {
        let offered = |bus: DeviceBus, name: &str, usable: i64, display: bool| {
            (DeviceName::new(bus, name), OfferedDevices { usable: usable.clamp(0, 1_000_000), display })
        };
        let pci = self.pci_devices.iter().map(|of| offered(DeviceBus::Pci, &of.name, of.usable, of.display));
        let usb = self.usb_devices.iter().map(|of| offered(DeviceBus::Usb, &of.name, of.usable, false));
        let vgpus = self.vgpus.iter().map(|of| offered(DeviceBus::Mdev, &of.name, of.usable, of.display));
        let block = self.block_devices.iter();
        let block =
            block.map(|of| offered(DeviceBus::Block, &of.name, i64::from(of.problem.is_none()), false));
        pci.chain(usb).chain(vgpus).chain(block).collect()
    }

    /// Returns the folders that VMs can have, by name, and whether they can write to each.
    #[must_use]
    pub fn offered_shares(&self) -> BTreeMap<String, bool> {
        let usable = self.shares.iter().filter(|share| share.problem.is_none());
        usable.map(|share| (share.name.clone(), !share.read_only)).collect()
    }

    /// Returns the folders in which Backups can be, by name.
    #[must_use]
    pub fn offered_backup_folders(&self) -> BTreeSet<String> {
        let usable = self.backup_folders.iter().filter(|folder| folder.problem.is_none());
        usable.map(|folder| folder.name.clone()).collect()
    }
}
