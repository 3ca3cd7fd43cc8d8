//! PCI devices of a host that a VM has.

use std::collections::BTreeMap;

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::{HostStatus, ResourceName, VM, host::MAX_DETAIL};

/// The maximum number of PCI devices of a VM.
pub const MOST_PCI_DEVICES: i64 = 8;
/// The maximum number of names of devices in a Host's status.
pub const MOST_DEVICE_NAMES: usize = 64;
/// The maximum number of devices of a name that a Host's status lists. All of them count.
pub const MOST_LISTED_DEVICES: usize = 32;

/// Devices that a VM is to have.
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

/// A device that a running VM has.
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

/// The devices that a host offers under one name.
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

/// A device of a host.
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

impl HostPciDevice {
    /// Returns the problem as the API accepts it.
    #[must_use]
    pub fn problem_text(text: &str) -> String {
        crate::condition::cut(text, MAX_DETAIL).to_owned()
    }
}

/// A name of devices, as a host offers it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OfferedDevices {
    /// The number of devices that VMs can have.
    pub usable: i64,
    /// Whether one of them is a display controller.
    pub display: bool,
}

impl HostStatus {
    /// Returns the devices that the host offers, by name. The report is trusted within the bounds of the API only.
    #[must_use]
    pub fn offered_devices(&self) -> BTreeMap<String, OfferedDevices> {
        let offered = |of: &HostPciDevices| {
            (of.name.clone(), OfferedDevices { usable: of.usable.clamp(0, 1_000_000), display: of.display })
        };
        self.pci_devices.iter().map(offered).collect()
    }
}

/// Returns the number of devices that the VM declares, by name.
#[must_use]
pub fn declared_devices(vm: &VM) -> BTreeMap<String, i64> {
    vm.spec.pci_devices.iter().map(|wanted| (wanted.name.0.clone(), wanted.count.max(1))).collect()
}

/// Returns the number of devices that the VM takes of its host, by name: what it declares, and what its machine has until
/// the next power cycle.
#[must_use]
pub fn taken_devices(vm: &VM) -> BTreeMap<String, i64> {
    let mut has: BTreeMap<String, i64> = BTreeMap::new();
    for device in vm.status.iter().flat_map(|status| &status.pci_devices) {
        *has.entry(device.name.clone()).or_default() += 1;
    }
    let mut taken = declared_devices(vm);
    for (name, count) in has {
        let declared = taken.entry(name).or_default();
        *declared = count.max(*declared);
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{VMSpec, VMStatus};

    #[test]
    fn a_vm_takes_what_it_declares_and_what_its_machine_still_has() {
        let wanted = |name: &str, count| PciDevices { name: name.into(), count };
        let has = |name: &str| PciDeviceStatus { name: name.into(), address: "0000:01:00.0".into() };
        let spec = VMSpec { pci_devices: vec![wanted("gpu", 1), wanted("nic", 2)], ..VMSpec::default() };
        let mut vm = VM::new("web", spec);
        assert_eq!(taken_devices(&vm), BTreeMap::from([("gpu".to_owned(), 1), ("nic".to_owned(), 2)]));
        let pci_devices = vec![has("gpu"), has("gpu"), has("fpga")];
        vm.status = Some(VMStatus { pci_devices, ..VMStatus::default() });
        let names = taken_devices(&vm);
        assert_eq!(
            names,
            BTreeMap::from([("fpga".to_owned(), 1), ("gpu".to_owned(), 2), ("nic".to_owned(), 2)])
        );
    }
}
