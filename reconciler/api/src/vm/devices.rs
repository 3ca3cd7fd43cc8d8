//! The PCI devices and the shares of a host that a VM takes.

use std::collections::BTreeMap;

use super::VM;

/// Returns the number of devices that the VM declares, by name.
#[must_use]
pub fn declared_devices(vm: &VM) -> BTreeMap<String, i64> {
    vm.spec.pci_devices.iter().map(|wanted| (wanted.name.0.clone(), wanted.count.max(1))).collect()
}

/// Returns the shares that the VM declares, by name, and whether it writes to each.
#[must_use]
pub fn declared_shares(vm: &VM) -> BTreeMap<String, bool> {
    vm.spec.shares.iter().map(|share| (share.name.clone(), !share.read_only)).collect()
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
    use crate::{PciDevices, Share, VMSpec, VMStatus, passthrough::PciDeviceStatus};

    #[test]
    fn a_vm_writes_to_its_shares_unless_they_are_declared_read_only() {
        let share = |name: &str, read_only| Share { name: name.into(), tag: None, read_only };
        let shares = vec![share("media", true), share("data", false)];
        let vm = VM::new("web", VMSpec { shares, ..VMSpec::default() });
        assert_eq!(
            declared_shares(&vm),
            BTreeMap::from([("data".to_owned(), true), ("media".to_owned(), false)])
        );
    }

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
