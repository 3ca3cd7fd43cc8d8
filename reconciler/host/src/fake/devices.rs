//! Devices of the fake host that instances take.

use berth_qemu::machine::VgpuSpec;

use super::FakeSystem;
use crate::{DeviceSpecs, PciDeviceFacts, Result, SystemError, UsbDeviceFacts, VgpuFacts};

impl FakeSystem {
    pub(super) fn take_devices_now(&self, instance: &str, devices: &DeviceSpecs) -> Result<()> {
        let mut state = self.state();
        let is_noted =
            |list: &str| state.journals.get(instance).is_some_and(|journal| !journal[list].is_null());
        let lists = [
            ("pciDevices", devices.pci.is_empty()),
            ("usbDevices", devices.usb.is_empty()),
            ("vgpus", devices.vgpus.is_empty()),
        ];
        if !lists.iter().all(|(list, is_empty)| *is_empty || is_noted(list)) {
            state.violations.push(format!("{instance} takes devices that its journal does not have"));
        }
        for vgpu in &devices.vgpus {
            take_vgpu(&mut state.facts.vgpus, instance, vgpu)?;
        }
        for device in &devices.usb {
            let refuse = |detail: &str| SystemError::UsbDevice {
                port: device.port.clone(),
                detail: detail.to_owned(),
            };
            let same = |facts: &&mut UsbDeviceFacts| facts.port == device.port;
            let found = state.facts.usb_devices.iter_mut().find(same).ok_or_else(|| refuse("it is gone"))?;
            match &found.held_by {
                Some(other) if other != instance => {
                    return Err(refuse(&format!("instance {other} has it")));
                }
                _ => found.held_by = Some(instance.to_owned()),
            }
        }
        for device in &devices.pci {
            let refuse = |detail: &str| {
                let address = device.functions.first().cloned().unwrap_or_default();
                SystemError::Device { address, detail: detail.to_owned() }
            };
            let same = |facts: &&mut PciDeviceFacts| facts.functions == device.functions;
            let found = state.facts.pci_devices.iter_mut().find(same).ok_or_else(|| refuse("it is gone"))?;
            match &found.held_by {
                Some(other) if other != instance => {
                    return Err(refuse(&format!("instance {other} has it")));
                }
                _ => found.held_by = Some(instance.to_owned()),
            }
        }
        Ok(())
    }
}

fn take_vgpu(all: &mut [VgpuFacts], instance: &str, vgpu: &VgpuSpec) -> Result<()> {
    let refuse = |detail: &str| SystemError::Vgpu {
        parent: vgpu.parent.clone(),
        mdev_type: vgpu.mdev_type.clone(),
        detail: detail.to_owned(),
    };
    let same = |facts: &&mut VgpuFacts| facts.parent == vgpu.parent && facts.mdev_type == vgpu.mdev_type;
    let found = all.iter_mut().find(same).ok_or_else(|| refuse("it is gone"))?;
    if found.held_by.get(&vgpu.uuid).is_some_and(|other| other != instance) {
        return Err(refuse("another instance has it"));
    }
    let is_full = found.made.len() >= usize::try_from(found.usable).unwrap_or(usize::MAX);
    if is_full && !found.made.contains(&vgpu.uuid) {
        return Err(refuse("its driver does not make it"));
    }
    found.held_by.insert(vgpu.uuid.clone(), instance.to_owned());
    found.made.insert(vgpu.uuid.clone());
    Ok(())
}
