//! The PCI devices of this host, as its status lists them. Pure.

use std::collections::BTreeMap;

use berth_api::condition::cut;
use berth_api::host::MAX_DETAIL;
use berth_api::passthrough::{HostPciDevice, HostPciDevices, MOST_DEVICE_NAMES, MOST_LISTED_DEVICES};
use berth_host::PciDeviceFacts;

use super::observe::Observed;

/// Returns the devices that the administrator lets VMs have, by name.
pub(super) fn offered(observed: &Observed) -> Vec<HostPciDevices> {
    let mut names: BTreeMap<&str, Vec<&PciDeviceFacts>> = BTreeMap::new();
    for device in &observed.facts.pci_devices {
        names.entry(&device.name).or_default().push(device);
    }
    let count = |devices: &[&PciDeviceFacts], counts: &dyn Fn(&PciDeviceFacts) -> bool| {
        i64::try_from(devices.iter().filter(|device| counts(device)).count()).unwrap_or(i64::MAX)
    };
    let of_name = |(name, devices): (&str, Vec<&PciDeviceFacts>)| HostPciDevices {
        name: name.to_owned(),
        usable: count(&devices, &|device| device.problem.is_none()),
        free: count(&devices, &|device| device.problem.is_none() && device.held_by.is_none()),
        display: devices.iter().any(|device| device.display),
        devices: devices.iter().take(MOST_LISTED_DEVICES).map(|device| listed(device, observed)).collect(),
    };
    names.into_iter().take(MOST_DEVICE_NAMES).map(of_name).collect()
}

fn listed(device: &PciDeviceFacts, observed: &Observed) -> HostPciDevice {
    let user = |instance: &String| observed.device_users.get(instance).cloned();
    HostPciDevice {
        address: device.address.clone(),
        id: device.id.clone(),
        vm: device.held_by.as_ref().map(|instance| user(instance).unwrap_or_else(|| "unknown".to_owned())),
        problem: device.problem.as_deref().map(|text| cut(text, MAX_DETAIL).to_owned()),
    }
}

/// Returns the devices as they are stored if they differ only in which VM has them, which decides nothing.
pub(super) fn without_use(stored: &[HostPciDevices], now: &[HostPciDevices]) -> Vec<HostPciDevices> {
    let plain = |devices: &[HostPciDevices]| -> Vec<HostPciDevices> {
        let unused = |of: &HostPciDevices| HostPciDevices {
            free: 0,
            devices: of.devices.iter().map(|d| HostPciDevice { vm: None, ..d.clone() }).collect(),
            ..of.clone()
        };
        devices.iter().map(unused).collect()
    };
    if plain(stored) == plain(now) { stored.to_vec() } else { now.to_vec() }
}
