//! PCI and USB devices of a host that a VM has, and how these, vGPUs and block devices are counted.

use std::collections::BTreeMap;
use std::fmt;

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::ResourceName;

/// The maximum number of PCI devices of a VM.
pub const MOST_PCI_DEVICES: i64 = 8;
/// The maximum number of USB devices of a VM.
pub const MOST_USB_DEVICES: i64 = 8;
/// The maximum number of names of devices in a Host's status.
pub const MOST_DEVICE_NAMES: usize = 64;
/// The maximum number of devices of a name that a Host's status lists. All of them count.
pub const MOST_LISTED_DEVICES: usize = 32;

/// The bus of the host that a device is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeviceBus {
    Pci,
    Usb,
    /// The bus of mediated devices: vGPUs.
    Mdev,
    /// Block devices, each of which is a Disk.
    Block,
}

impl DeviceBus {
    pub const ALL: [Self; 4] = [Self::Pci, Self::Usb, Self::Mdev, Self::Block];

    /// The word for this number of its devices.
    #[must_use]
    pub fn noun(self, count: i64) -> &'static str {
        match (self, count) {
            (Self::Pci, 1) => "PCI device",
            (Self::Pci, _) => "PCI devices",
            (Self::Usb, 1) => "USB device",
            (Self::Usb, _) => "USB devices",
            (Self::Mdev, 1) => "vGPU",
            (Self::Mdev, _) => "vGPUs",
            (Self::Block, 1) => "block device",
            (Self::Block, _) => "block devices",
        }
    }

    /// The field of a Host's status, and except for block devices of a VM's spec, that lists its devices.
    #[must_use]
    pub fn field(self) -> &'static str {
        match self {
            Self::Pci => "pciDevices",
            Self::Usb => "usbDevices",
            Self::Mdev => "vgpus",
            Self::Block => "blockDevices",
        }
    }

    /// The option with which administrators offer its devices.
    #[must_use]
    pub fn option(self) -> &'static str {
        match self {
            Self::Pci => "--pci-device",
            Self::Usb => "--usb-device",
            Self::Mdev => "--vgpu",
            Self::Block => "--block-device",
        }
    }
}

/// A name under which hosts offer devices. The names of each bus are independent of those of the others.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceName {
    pub bus: DeviceBus,
    pub name: String,
}

impl DeviceName {
    #[must_use]
    pub fn new(bus: DeviceBus, name: impl Into<String>) -> Self {
        Self { bus, name: name.into() }
    }

    /// A number of these devices, for people: `2 PCI devices gpu-a100`.
    #[must_use]
    pub fn counted(&self, count: i64) -> String {
        format!("{count} {} {}", self.bus.noun(count), self.name)
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.bus.noun(0), self.name)
    }
}

/// Numbers of devices by name.
pub type DeviceCounts = BTreeMap<DeviceName, i64>;

/// PCI devices that a VM is to have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct PciDevices {
    /// The name under which administrators offer devices with `--pci-device` of their hosts, for example `gpu-a100`. The key of the
    /// list.
    pub name: ResourceName,
    /// The number of devices, 1 to 8. Default 1.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 8))]
    pub count: i64,
}

fn one() -> i64 {
    1
}

/// USB devices that a VM is to have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct UsbDevices {
    /// The name under which administrators offer devices with `--usb-device` of their hosts, for example `licence-dongle`. The key of
    /// the list.
    pub name: ResourceName,
    /// The number of devices, 1 to 8. Default 1.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 8))]
    pub count: i64,
}

/// A USB device that a running VM has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct UsbDeviceStatus {
    /// The name under which its host offers it.
    #[schemars(length(max = 63))]
    pub name: String,
    /// The port of the host that it was in when the VM was started, bus and port as the kernel writes them: `1-2.3`.
    #[schemars(length(max = 32))]
    pub port: String,
}

/// A PCI device that a running VM has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct PciDeviceStatus {
    /// The name under which its host offers it.
    #[schemars(length(max = 63))]
    pub name: String,
    /// Its address on the host, that of its first function: `0000:01:00.0`.
    #[schemars(length(max = 16))]
    pub address: String,
}

/// The PCI devices that a host offers under one name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostPciDevices {
    /// The name.
    #[schemars(length(max = 63))]
    pub name: String,
    /// The number of devices of this name that VMs can have.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub usable: i64,
    /// The number of these that no VM has.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub free: i64,
    /// Whether one of them is a display controller: a VM with it has no `graphics`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub display: bool,
    /// The devices, also those that no VM can have. At most 32 are listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub devices: Vec<HostPciDevice>,
}

/// A PCI device of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostPciDevice {
    /// Its address, that of its first function: `0000:01:00.0`. With an identifier to which no device corresponds, the identifier.
    #[schemars(length(max = 16))]
    pub address: String,
    /// Vendor and device of its first function, in hexadecimal: `10de:20b0`. Absent if there is no such device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub id: Option<String>,
    /// The VM that has it, as `namespace/name`; `unknown` for an instance without a journal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub vm: Option<String>,
    /// Why no VM can have it, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub problem: Option<String>,
}

/// The USB devices that a host offers under one name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostUsbDevices {
    /// The name.
    #[schemars(length(max = 63))]
    pub name: String,
    /// The number of devices of this name that are plugged in and VMs can have.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub usable: i64,
    /// The number of these that no VM has.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub free: i64,
    /// The devices, also those that no VM can have. At most 32 are listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub devices: Vec<HostUsbDevice>,
}

/// A USB device of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostUsbDevice {
    /// Its port, bus and port as the kernel writes them: `1-2.3`. With an identifier to which no device corresponds, the identifier.
    #[schemars(length(max = 32))]
    pub port: String,
    /// Vendor and product, in hexadecimal: `0403:6001`. Absent if there is no such device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub id: Option<String>,
    /// The product, in the words of the device itself. Absent if it does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub product: Option<String>,
    /// The VM that has it, as `namespace/name`; `unknown` for an instance without a journal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub vm: Option<String>,
    /// Why no VM can have it, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub problem: Option<String>,
}

/// A block device that a host offers as a disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostBlockDevice {
    /// The name.
    #[schemars(length(max = 63))]
    pub name: String,
    /// The path that its administrator has given.
    #[schemars(length(max = 1024))]
    pub path: String,
    /// Its size, as a quantity. Absent if it cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub size: Option<String>,
    /// The Disk that has it, as `namespace/name`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub disk: Option<String>,
    /// Why no VM can have it, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub problem: Option<String>,
}

/// A name of devices, as a host offers it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OfferedDevices {
    /// The number of devices that VMs can have.
    pub usable: i64,
    /// Whether one of them is a display controller.
    pub display: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_counted_in_the_words_of_their_bus() {
        let counted = |bus, count| DeviceName::new(bus, "a40").counted(count);
        assert_eq!(counted(DeviceBus::Pci, 1), "1 PCI device a40");
        assert_eq!(counted(DeviceBus::Usb, 2), "2 USB devices a40");
        assert_eq!(counted(DeviceBus::Mdev, 1), "1 vGPU a40");
        assert_eq!(DeviceName::new(DeviceBus::Mdev, "a40").to_string(), "vGPUs a40");
        assert_eq!(counted(DeviceBus::Block, 1), "1 block device a40");
    }
}
