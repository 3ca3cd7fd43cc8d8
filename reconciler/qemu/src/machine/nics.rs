//! The network cards of a machine.

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NicSpec {
    /// The device id: same rule as [`DiskSpec::id`](super::DiskSpec::id).
    pub id: String,
    pub tap: Tap,
    /// `52:54:00:…`, lower case.
    pub mac: String,
    /// The MTU advertised to the guest.
    pub mtu: Option<u16>,
    /// 0–13, unique in the machine, fixed for the NIC's life: it determines the interface name in the guest.
    pub slot: u8,
    #[serde(default)]
    pub model: NicModel,
    /// The port of the machine that it is plugged into; unique in the machine. None: its place follows from `slot`, and it stays
    /// there while the machine runs.
    #[serde(default)]
    pub port: Option<u8>,
    /// Pairs of a receive and a transmit queue, 1–16; more than one of [`NicModel::Virtio`] only.
    #[serde(default = "one_queue")]
    pub queues: u8,
    /// Whether QEMU moves the packets of a [`NicModel::Virtio`] card also where the host's kernel could.
    #[serde(default)]
    pub no_vhost: bool,
}

fn one_queue() -> u8 {
    1
}

/// The network card that the guest sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum NicModel {
    #[default]
    Virtio,
    /// Intel 82540EM, gigabit, on PCI.
    E1000,
    /// Intel 82574L, gigabit, on PCI Express.
    E1000e,
    /// Realtek RTL8139, 100 Mbit/s.
    Rtl8139,
}

impl NicModel {
    const ALL: [Self; 4] = [Self::Virtio, Self::E1000, Self::E1000e, Self::Rtl8139];

    /// Whether it is a PCI Express device, which has a place in a port.
    #[must_use]
    pub fn is_hot_pluggable(self) -> bool {
        matches!(self, Self::Virtio | Self::E1000e)
    }

    pub(crate) fn of_driver(driver: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|model| model.driver() == driver)
    }

    /// The file with the program by which BIOS and UEFI boot from the card (iPXE), which QEMU looks for in its own folders.
    pub(crate) fn boot_rom(self) -> &'static str {
        match self {
            Self::Virtio => "efi-virtio.rom",
            Self::E1000 => "efi-e1000.rom",
            Self::E1000e => "efi-e1000e.rom",
            Self::Rtl8139 => "efi-rtl8139.rom",
        }
    }

    /// The name of QEMU's device.
    pub(crate) fn driver(self) -> &'static str {
        match self {
            Self::Virtio => "virtio-net-pci",
            Self::E1000 => "e1000",
            Self::E1000e => "e1000e",
            Self::Rtl8139 => "rtl8139",
        }
    }
}

/// A tap interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Tap {
    /// Opened by the launcher and passed to QEMU, which may not open it itself.
    Name(String),
    /// The numbers of open descriptors in the QEMU process, one for each queue. With one of `/dev/vhost-net` for each, the host's
    /// kernel moves the packets, not QEMU.
    Open { taps: Vec<i32>, vhosts: Vec<i32> },
}
