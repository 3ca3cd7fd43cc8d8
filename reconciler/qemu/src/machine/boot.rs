//! The order in which the firmware tries the devices of a machine. Pure.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{CdromSpec, DiskSpec, Firmware, MAX_CDROMS, MAX_NICS, MachineSpec, NicModel, NicSpec};

/// Devices that a machine boots from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BootSource {
    /// The boot disk.
    Disk,
    /// The CD-ROM drives, by their slots.
    Cdrom,
    /// The network cards that are there from the start, by their slots.
    Network,
}

/// Installers run once: their medium is tried only while the disk does not boot.
const DEFAULT_ORDER: [BootSource; 2] = [BootSource::Disk, BootSource::Cdrom];

impl BootSource {
    /// The number of indexes that its devices can have.
    fn width(self) -> u8 {
        match self {
            Self::Disk => 1,
            Self::Cdrom => MAX_CDROMS,
            Self::Network => MAX_NICS,
        }
    }
}

impl MachineSpec {
    /// The order that is declared, or the default.
    fn boot_order(&self) -> &[BootSource] {
        let declared = self.extras.boot_order.as_slice();
        if declared.is_empty() { &DEFAULT_ORDER } else { declared }
    }

    /// The first index of the devices of a source. None: the machine does not boot from it.
    pub(super) fn first_index(&self, source: BootSource) -> Option<u8> {
        let order = self.boot_order();
        let place = order.iter().position(|other| *other == source)?;
        // 0 is that of a drive which comes before everything else.
        Some(1 + order[..place].iter().map(|before| before.width()).sum::<u8>())
    }

    pub(super) fn disk_index(&self, disk: &DiskSpec) -> Option<u8> {
        self.first_index(BootSource::Disk).filter(|_| disk.boot)
    }

    pub(super) fn cdrom_index(&self, cdrom: &CdromSpec) -> Option<u8> {
        if cdrom.boot_first {
            return Some(0);
        }
        Some(self.first_index(BootSource::Cdrom)? + cdrom.slot)
    }

    pub(super) fn nic_index(&self, nic: &NicSpec) -> Option<u8> {
        Some(self.first_index(BootSource::Network)? + nic.slot)
    }

    /// Whether the firmware boots from this card by a program in the card's ROM. UEFI has a driver of its own for a virtio card.
    pub(super) fn needs_boot_rom(&self, nic: &NicSpec) -> bool {
        let has_driver = self.firmware != Firmware::Bios && nic.model == NicModel::Virtio;
        self.nic_index(nic).is_some() && !has_driver
    }
}

/// Returns the arguments of a device with its place in the order.
pub(super) fn with_index(mut device: Value, index: Option<u8>) -> Value {
    if let Some(index) = index {
        device["bootindex"] = json!(index);
    }
    device
}
