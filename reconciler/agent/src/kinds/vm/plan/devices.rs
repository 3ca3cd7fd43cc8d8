//! PCI devices of the host for a VM: which it gets, and when they are given back.

use std::collections::BTreeSet;

use berth_api::vm::declared_devices;
use berth_api::{Graphics, Readiness, Reason, VM};
use berth_host::{HostFacts, PciDeviceFacts};
use berth_qemu::machine::PciDeviceSpec;

use super::{Observed, Step, write_journal};
use crate::converge::Plan;
use crate::journal::{HeldDevice, Journal};

/// The number of devices that a message names.
const NAMED: usize = 4;

/// Chooses the devices of a VM that is to be started. Those that it has already come first, so that a start that was interrupted
/// goes on with them. The error: its readiness, while it cannot have them.
pub(super) fn choose(vm: &VM, instance: &str, host: &HostFacts) -> Result<Vec<HeldDevice>, Readiness> {
    let mut chosen = Vec::new();
    for (name, count) in declared_devices(vm) {
        let offered: Vec<&PciDeviceFacts> = host.pci_devices.iter().filter(|d| d.name == name).collect();
        if vm.spec.graphics != Graphics::None
            && let Some(display) = offered.iter().find(|device| device.display)
        {
            let text = format!(
                "pciDevices: {name} ({}) is a display controller, and a VM with one has no graphics: set graphics to None, or take {name} out",
                display.address
            );
            return Err(Readiness::Stalled(Reason::NotSupported, text));
        }
        let mut usable: Vec<&&PciDeviceFacts> =
            offered.iter().filter(|device| obstacle(device, instance).is_none()).collect();
        usable.sort_by_key(|device| device.held_by.is_none());
        let count = usize::try_from(count).unwrap_or_default();
        if usable.len() < count {
            return Err(Readiness::Stalled(
                Reason::DeviceUnavailable,
                too_few(&name, count, &offered, instance),
            ));
        }
        chosen.extend(usable.into_iter().take(count).map(|device| HeldDevice {
            name: name.clone(),
            device: PciDeviceSpec { functions: device.functions.clone(), groups: device.groups.clone() },
        }));
    }
    Ok(chosen)
}

fn too_few(name: &str, count: usize, offered: &[&PciDeviceFacts], instance: &str) -> String {
    if offered.is_empty() {
        return format!("this host offers no PCI devices {name}: its administrator does with --pci-device");
    }
    let obstacles = offered
        .iter()
        .filter_map(|device| Some(format!("{}: {}", device.address, obstacle(device, instance)?)));
    let obstacles: Vec<String> = obstacles.take(NAMED).collect();
    let usable = offered.iter().filter(|device| obstacle(device, instance).is_none()).count();
    let offers = format!("the VM needs {count} PCI devices {name} and this host has {usable} for it");
    if obstacles.is_empty() { offers } else { format!("{offers} ({})", obstacles.join("; ")) }
}

fn obstacle(device: &PciDeviceFacts, instance: &str) -> Option<String> {
    let held = device.held_by.as_deref().filter(|holder| *holder != instance);
    device.problem.clone().or_else(|| held.map(|_| "another VM has it".to_owned()))
}

/// Gives back devices of an earlier run that are not among the chosen ones, before others are taken.
pub(super) fn surplus(observed: &Observed, chosen: &[HeldDevice]) -> Option<Plan<Step>> {
    let chosen: BTreeSet<&PciDeviceSpec> = chosen.iter().map(|held| &held.device).collect();
    let is_surplus = observed.journal.pci_devices.iter().any(|held| !chosen.contains(&held.device));
    let readiness = Readiness::Reconciling(Reason::Starting, "PCI devices are being given back".to_owned());
    is_surplus.then(|| Plan::steps(given_back(&observed.journal), readiness))
}

/// The steps that give back all devices of a machine that has ended, and record it. None are needed without devices.
pub(super) fn given_back(journal: &Journal) -> Vec<Step> {
    if journal.pci_devices.is_empty() {
        return Vec::new();
    }
    vec![Step::GiveBackPciDevices, write_journal(Journal { pci_devices: Vec::new(), ..journal.clone() })]
}

/// The devices to take.
pub(super) fn specs(held: &[HeldDevice]) -> Vec<PciDeviceSpec> {
    held.iter().map(|held| held.device.clone()).collect()
}
