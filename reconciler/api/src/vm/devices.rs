//! The PCI and USB devices, the vGPUs and the shares of a host that a VM takes.

use std::collections::BTreeMap;

use super::VM;
use crate::{DeviceBus, DeviceCounts, DeviceName, PciDevices, UsbDevices, VMClassSpec, VMSpec, Vgpus};

impl VMSpec {
    /// Returns the number of devices that the VM is to have, by name. `class` is the class that it names, if that exists: its list of a bus
    /// counts if the VM declares none.
    #[must_use]
    pub fn devices(&self, class: Option<&VMClassSpec>) -> DeviceCounts {
        let class = class.filter(|_| self.class.is_some());
        let pci = match &self.pci_devices[..] {
            [] => class.map_or(&[][..], |class| &class.pci_devices[..]),
            own => own,
        };
        let usb = match &self.usb_devices[..] {
            [] => class.map_or(&[][..], |class| &class.usb_devices[..]),
            own => own,
        };
        let vgpus = match &self.vgpus[..] {
            [] => class.map_or(&[][..], |class| &class.vgpus[..]),
            own => own,
        };
        let of = |bus, name: &str, count: i64| (DeviceName::new(bus, name), count.max(1));
        let pci = pci.iter().map(|PciDevices { name, count }| of(DeviceBus::Pci, &name.0, *count));
        let usb = usb.iter().map(|UsbDevices { name, count }| of(DeviceBus::Usb, &name.0, *count));
        let vgpus = vgpus.iter().map(|Vgpus { name, count }| of(DeviceBus::Mdev, &name.0, *count));
        pci.chain(usb).chain(vgpus).collect()
    }
}

impl VMSpec {
    /// Whether the VM is to have devices that use the memory of its guest themselves, so that none of it can be given back.
    pub(crate) fn has_pinned_memory(&self, class: Option<&VMClassSpec>) -> bool {
        self.devices(class).keys().any(|device| matches!(device.bus, DeviceBus::Pci | DeviceBus::Mdev))
    }
}

/// Returns the shares that the VM declares, by name, and whether it writes to each.
#[must_use]
pub fn declared_shares(vm: &VM) -> BTreeMap<String, bool> {
    vm.spec.shares.iter().map(|share| (share.name.clone(), !share.read_only)).collect()
}

/// Returns the number of devices that the VM takes of its host, by name: what it is to have ([`VMSpec::devices`]), and what its machine
/// has until the next power cycle.
#[must_use]
pub fn taken_devices(vm: &VM, class: Option<&VMClassSpec>) -> DeviceCounts {
    let mut has = DeviceCounts::new();
    if let Some(status) = &vm.status {
        let pci = status.pci_devices.iter().map(|device| (DeviceBus::Pci, &device.name));
        let usb = status.usb_devices.iter().map(|device| (DeviceBus::Usb, &device.name));
        let vgpus = status.vgpus.iter().map(|vgpu| (DeviceBus::Mdev, &vgpu.name));
        for (bus, name) in pci.chain(usb).chain(vgpus) {
            *has.entry(DeviceName::new(bus, name)).or_default() += 1;
        }
    }
    let mut taken = vm.spec.devices(class);
    for (name, count) in has {
        let declared = taken.entry(name).or_default();
        *declared = count.max(*declared);
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::passthrough::{PciDeviceStatus, UsbDeviceStatus};
    use crate::vgpus::VgpuStatus;
    use crate::{Share, VMStatus};

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

    fn pci(name: &str, count: i64) -> (DeviceName, i64) {
        (DeviceName::new(DeviceBus::Pci, name), count)
    }

    #[test]
    fn a_vm_takes_what_it_declares_and_what_its_machine_still_has() {
        let wanted = |name: &str, count| PciDevices { name: name.into(), count };
        let has = |name: &str| PciDeviceStatus { name: name.into(), address: "0000:01:00.0".into() };
        let usb = |name: &str, count| (DeviceName::new(DeviceBus::Usb, name), count);
        let spec = VMSpec {
            pci_devices: vec![wanted("gpu", 1), wanted("nic", 2)],
            usb_devices: vec![UsbDevices { name: "gpu".into(), count: 1 }],
            ..VMSpec::default()
        };
        let mut vm = VM::new("web", spec);
        assert_eq!(taken_devices(&vm, None), [pci("gpu", 1), pci("nic", 2), usb("gpu", 1)].into());
        let pci_devices = vec![has("gpu"), has("gpu"), has("fpga")];
        let usb_devices = vec![UsbDeviceStatus { name: "key".into(), port: "1-2".into() }];
        vm.status = Some(VMStatus { pci_devices, usb_devices, ..VMStatus::default() });
        assert_eq!(
            taken_devices(&vm, None),
            [pci("fpga", 1), pci("gpu", 2), pci("nic", 2), usb("gpu", 1), usb("key", 1)].into()
        );
    }

    #[test]
    fn a_vm_takes_vgpus_as_it_takes_devices() {
        let vgpu = |name: &str, count| (DeviceName::new(DeviceBus::Mdev, name), count);
        let class: VMClassSpec =
            serde_json::from_value(serde_json::json!({"cpus": 1, "vgpus": [{"name": "a40-8q", "count": 2}]}))
                .expect("a class");
        let mut vm = VM::new("web", VMSpec { class: Some("gpus".into()), ..VMSpec::default() });
        assert_eq!(taken_devices(&vm, Some(&class)), [vgpu("a40-8q", 2)].into());
        vm.spec.vgpus = vec![Vgpus { name: "a40-1q".into(), count: 1 }];
        let has = VgpuStatus { name: "a40-8q".into(), ..VgpuStatus::default() };
        vm.status = Some(VMStatus { vgpus: vec![has], ..VMStatus::default() });
        assert_eq!(taken_devices(&vm, Some(&class)), [vgpu("a40-1q", 1), vgpu("a40-8q", 1)].into());
    }

    #[test]
    fn a_vm_without_devices_of_a_bus_has_those_of_its_class() {
        let class: VMClassSpec = serde_json::from_value(serde_json::json!({
            "cpus": 1, "pciDevices": [{"name": "gpu"}, {"name": "nic"}], "usbDevices": [{"name": "key", "count": 2}]
        }))
        .expect("a class");
        let key = (DeviceName::new(DeviceBus::Usb, "key"), 2);
        let mut spec = VMSpec { class: Some("gpus".into()), ..VMSpec::default() };
        assert_eq!(spec.devices(Some(&class)), [pci("gpu", 1), pci("nic", 1), key.clone()].into());
        spec.pci_devices = vec![PciDevices { name: "nic".into(), count: 3 }];
        assert_eq!(
            spec.devices(Some(&class)),
            [pci("nic", 3), key].into(),
            "its list replaces that of its class"
        );
        spec.class = None;
        assert_eq!(spec.devices(Some(&class)), [pci("nic", 3)].into(), "it names no class");
    }
}
