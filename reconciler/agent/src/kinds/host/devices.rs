//! The PCI and USB devices and vGPUs of this host, as its status lists them. Pure.

use std::collections::BTreeMap;

use berth_api::Quantity;
use berth_api::condition::cut;
use berth_api::host::MAX_DETAIL;
use berth_api::passthrough::{
    HostBlockDevice, HostPciDevice, HostPciDevices, HostUsbDevice, HostUsbDevices, MOST_DEVICE_NAMES,
    MOST_LISTED_DEVICES,
};
use berth_api::vgpus::{HostVgpuParent, HostVgpus, MAX_TYPE};
use berth_host::{BlockDeviceFacts, PciDeviceFacts, UsbDeviceFacts, VgpuFacts};

use super::observe::Observed;

/// The most VMs with vGPUs of a device that are listed, and the most vGPUs of a device that count.
const MOST_LISTED_VMS: usize = 32;
const MOST_OF_A_DEVICE: i64 = 1024;

/// The devices of one name.
struct Named<'a, D> {
    name: String,
    usable: i64,
    free: i64,
    devices: Vec<&'a D>,
}

/// Groups devices by name. `state`: the name, whether a VM can have it, and whether one has it.
fn by_name<'a, D>(all: &'a [D], state: impl Fn(&'a D) -> (&'a str, bool, bool)) -> Vec<Named<'a, D>> {
    let mut names: BTreeMap<&str, Vec<&D>> = BTreeMap::new();
    for device in all {
        names.entry(state(device).0).or_default().push(device);
    }
    let count = |devices: &[&'a D], counts: &dyn Fn(&'a D) -> bool| {
        i64::try_from(devices.iter().filter(|device| counts(**device)).count()).unwrap_or(i64::MAX)
    };
    let named = |(name, devices): (&str, Vec<&'a D>)| Named {
        name: name.to_owned(),
        usable: count(&devices, &|device| state(device).1),
        free: count(&devices, &|device| state(device).1 && !state(device).2),
        devices,
    };
    names.into_iter().take(MOST_DEVICE_NAMES).map(named).collect()
}

/// Returns the PCI devices that the administrator lets VMs have, by name.
pub(super) fn offered(observed: &Observed) -> Vec<HostPciDevices> {
    let named = by_name(&observed.facts.pci_devices, |device| {
        (device.name.as_str(), device.problem.is_none(), device.held_by.is_some())
    });
    let listed = |device: &PciDeviceFacts| HostPciDevice {
        address: device.address.clone(),
        id: device.id.clone(),
        vm: user(device.held_by.as_ref(), observed),
        problem: problem(device.problem.as_ref()),
    };
    let of_name = |of: Named<'_, PciDeviceFacts>| HostPciDevices {
        name: of.name,
        usable: of.usable,
        free: of.free,
        display: of.devices.iter().any(|device| device.display),
        devices: of.devices.into_iter().take(MOST_LISTED_DEVICES).map(listed).collect(),
    };
    named.into_iter().map(of_name).collect()
}

/// Returns the USB devices that the administrator lets VMs have, by name.
pub(super) fn offered_usb(observed: &Observed) -> Vec<HostUsbDevices> {
    let named = by_name(&observed.facts.usb_devices, |device| {
        (device.name.as_str(), device.problem.is_none(), device.held_by.is_some())
    });
    let listed = |device: &UsbDeviceFacts| HostUsbDevice {
        port: device.port.clone(),
        id: device.id.clone(),
        product: device.product.clone(),
        vm: user(device.held_by.as_ref(), observed),
        problem: problem(device.problem.as_ref()),
    };
    let of_name = |of: Named<'_, UsbDeviceFacts>| HostUsbDevices {
        name: of.name,
        usable: of.usable,
        free: of.free,
        devices: of.devices.into_iter().take(MOST_LISTED_DEVICES).map(listed).collect(),
    };
    named.into_iter().map(of_name).collect()
}

/// Returns the vGPUs that the administrator lets VMs have, by name.
pub(super) fn offered_vgpus(observed: &Observed) -> Vec<HostVgpus> {
    let mut names: BTreeMap<&str, Vec<&VgpuFacts>> = BTreeMap::new();
    for vgpus in &observed.facts.vgpus {
        names.entry(vgpus.name.as_str()).or_default().push(vgpus);
    }
    let listed = |vgpus: &VgpuFacts| HostVgpuParent {
        address: vgpus.parent.clone(),
        mdev_type: cut(&vgpus.mdev_type, MAX_TYPE).to_owned(),
        type_name: vgpus.type_name.as_ref().map(|name| cut(name, MAX_TYPE).to_owned()),
        usable: usable_of(vgpus),
        vms: vgpus.held_by.values().take(MOST_LISTED_VMS).map(|held| name_of(held, observed)).collect(),
        problem: problem(vgpus.problem.as_ref()),
    };
    let free = |vgpus: &VgpuFacts| {
        let held = i64::try_from(vgpus.held_by.len()).unwrap_or(i64::MAX);
        usable_of(vgpus).saturating_sub(held).max(0)
    };
    let of_name = |(name, devices): (&str, Vec<&VgpuFacts>)| HostVgpus {
        name: name.to_owned(),
        usable: devices.iter().map(|vgpus| usable_of(vgpus)).sum(),
        free: devices.iter().map(|vgpus| free(vgpus)).sum(),
        display: devices.iter().any(|vgpus| vgpus.display),
        devices: devices.into_iter().take(MOST_LISTED_DEVICES).map(listed).collect(),
    };
    names.into_iter().take(MOST_DEVICE_NAMES).map(of_name).collect()
}

/// Returns the block devices that the administrator offers as disks, by name.
pub(super) fn offered_block(observed: &Observed) -> Vec<HostBlockDevice> {
    let mut devices: Vec<&BlockDeviceFacts> = observed.facts.block_devices.iter().collect();
    devices.sort_by(|one, other| one.name.cmp(&other.name));
    // Two of a name have a problem each.
    devices.dedup_by(|one, other| one.name == other.name);
    let listed = |device: &BlockDeviceFacts| HostBlockDevice {
        name: device.name.clone(),
        path: device.path.display().to_string(),
        size: (device.size > 0).then(|| Quantity::from_bytes(device.size).0),
        disk: device.held_by.as_ref().map(|owner| format!("{}/{}", owner.namespace, owner.name)),
        problem: problem(device.problem.as_ref()),
    };
    devices.into_iter().take(MOST_DEVICE_NAMES).map(listed).collect()
}

/// The number of vGPUs that VMs can have of a device.
fn usable_of(vgpus: &VgpuFacts) -> i64 {
    if vgpus.problem.is_none() { i64::from(vgpus.usable).min(MOST_OF_A_DEVICE) } else { 0 }
}

fn user(held_by: Option<&String>, observed: &Observed) -> Option<String> {
    held_by.map(|instance| name_of(instance, observed))
}

fn name_of(instance: &str, observed: &Observed) -> String {
    observed.device_users.get(instance).cloned().unwrap_or_else(|| "unknown".to_owned())
}

fn problem(text: Option<&String>) -> Option<String> {
    text.map(|text| cut(text, MAX_DETAIL).to_owned())
}

/// The devices of one name without which VM has them.
pub(super) trait WithoutUse: Clone + PartialEq {
    fn unused(&self) -> Self;
}

impl WithoutUse for HostPciDevices {
    fn unused(&self) -> Self {
        let devices = self.devices.iter().map(|d| HostPciDevice { vm: None, ..d.clone() }).collect();
        Self { free: 0, devices, ..self.clone() }
    }
}

impl WithoutUse for HostUsbDevices {
    fn unused(&self) -> Self {
        let devices = self.devices.iter().map(|d| HostUsbDevice { vm: None, ..d.clone() }).collect();
        Self { free: 0, devices, ..self.clone() }
    }
}

impl WithoutUse for HostVgpus {
    fn unused(&self) -> Self {
        let devices = self.devices.iter().map(|d| HostVgpuParent { vms: Vec::new(), ..d.clone() }).collect();
        Self { free: 0, devices, ..self.clone() }
    }
}

/// Returns the devices as they are stored if they differ only in which VM has them, which decides nothing.
pub(super) fn without_use<D: WithoutUse>(stored: &[D], now: &[D]) -> Vec<D> {
    let is_same = stored.iter().map(D::unused).eq(now.iter().map(D::unused));
    if is_same { stored.to_vec() } else { now.to_vec() }
}
