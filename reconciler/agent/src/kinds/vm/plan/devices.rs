//! PCI and USB devices and vGPUs of the host for a VM: which it gets, and when they are given back.

use berth_api::{DeviceBus, DeviceName, Graphics, Readiness, Reason, VM};
use berth_host::{DeviceSpecs, HostFacts, PciDeviceFacts, UsbDeviceFacts, VgpuFacts};
use berth_qemu::machine::{PciDeviceSpec, UsbDeviceSpec, VgpuSpec};

use super::{Observed, Step, vgpus, write_journal};
use crate::converge::Plan;
use crate::journal::{Held, Journal};

/// The number of devices that a message names.
const NAMED: usize = 4;

/// The devices of a VM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct HeldDevices {
    pub(super) pci: Vec<Held<PciDeviceSpec>>,
    pub(super) usb: Vec<Held<UsbDeviceSpec>>,
    pub(super) vgpus: Vec<Held<VgpuSpec>>,
}

impl HeldDevices {
    /// The devices to take.
    pub(super) fn specs(&self) -> DeviceSpecs {
        DeviceSpecs {
            pci: self.pci.iter().map(|held| held.device.clone()).collect(),
            usb: self.usb.iter().map(|held| held.device.clone()).collect(),
            vgpus: self.vgpus.iter().map(|held| held.device.clone()).collect(),
        }
    }
}

/// A device that a host offers, on any bus.
trait Offered {
    const BUS: DeviceBus;
    type Spec;

    fn name(&self) -> &str;
    /// The place of the device on the host, for people.
    fn place(&self) -> &str;
    fn problem(&self) -> Option<&String>;
    fn held_by(&self) -> Option<&String>;
    fn spec(&self) -> Self::Spec;

    /// Why the instance cannot have it.
    fn obstacle(&self, instance: &str) -> Option<String> {
        let held = self.held_by().filter(|holder| *holder != instance);
        self.problem().cloned().or_else(|| held.map(|_| "another VM has it".to_owned()))
    }
}

impl Offered for PciDeviceFacts {
    const BUS: DeviceBus = DeviceBus::Pci;
    type Spec = PciDeviceSpec;

    fn name(&self) -> &str {
        &self.name
    }

    fn place(&self) -> &str {
        &self.address
    }

    fn problem(&self) -> Option<&String> {
        self.problem.as_ref()
    }

    fn held_by(&self) -> Option<&String> {
        self.held_by.as_ref()
    }

    fn spec(&self) -> PciDeviceSpec {
        PciDeviceSpec { functions: self.functions.clone(), groups: self.groups.clone() }
    }
}

impl Offered for UsbDeviceFacts {
    const BUS: DeviceBus = DeviceBus::Usb;
    type Spec = UsbDeviceSpec;

    fn name(&self) -> &str {
        &self.name
    }

    fn place(&self) -> &str {
        &self.port
    }

    fn problem(&self) -> Option<&String> {
        self.problem.as_ref()
    }

    fn held_by(&self) -> Option<&String> {
        self.held_by.as_ref()
    }

    fn spec(&self) -> UsbDeviceSpec {
        UsbDeviceSpec { port: self.port.clone(), bus: self.bus, number: self.number }
    }
}

/// Chooses the devices of a VM that is to be started. Those that it has already come first, so that a start that was interrupted
/// goes on with them. The error: its readiness, while it cannot have them.
pub(super) fn choose(vm: &VM, observed: &Observed, host: &HostFacts) -> Result<HeldDevices, Readiness> {
    let mut chosen = HeldDevices::default();
    for (name, count) in &observed.profile.devices {
        let count = usize::try_from(*count).unwrap_or_default();
        match name.bus {
            DeviceBus::Pci => {
                let is_display = |device: &&PciDeviceFacts| device.name == name.name && device.display;
                let display = host.pci_devices.iter().find(is_display);
                check_screen(vm, name, display.map(|device| &device.address))?;
                chosen.pci.extend(of_name(name, count, &host.pci_devices, &observed.instance)?);
            }
            DeviceBus::Usb => {
                chosen.usb.extend(of_name(name, count, &host.usb_devices, &observed.instance)?);
            }
            DeviceBus::Mdev => {
                let is_display = |facts: &&VgpuFacts| facts.name == name.name && facts.display;
                let display = host.vgpus.iter().find(is_display);
                check_screen(vm, name, display.map(|facts| &facts.parent))?;
                let places = (chosen.vgpus.len(), count);
                chosen.vgpus.extend(vgpus::of_name(name, places, &host.vgpus, &observed.instance)?);
            }
            // A VM has them by its Disks.
            DeviceBus::Block => {}
        }
    }
    Ok(chosen)
}

/// Checks that a VM with graphics gets no display controller. `display`: the address of one that has the name.
fn check_screen(vm: &VM, name: &DeviceName, display: Option<&String>) -> Result<(), Readiness> {
    match display {
        Some(address) if vm.spec.graphics != Graphics::None => {
            let text = format!(
                "{field}: {name} ({address}) is a display controller, and a VM with one has no graphics: set graphics to None, or take {name} out",
                field = name.bus.field(),
                name = name.name,
            );
            Err(Readiness::Stalled(Reason::NotSupported, text))
        }
        _ => Ok(()),
    }
}

fn of_name<O: Offered>(
    name: &DeviceName,
    count: usize,
    all: &[O],
    instance: &str,
) -> Result<Vec<Held<O::Spec>>, Readiness> {
    let offered: Vec<&O> = all.iter().filter(|device| device.name() == name.name).collect();
    let mut usable: Vec<&&O> = offered.iter().filter(|device| device.obstacle(instance).is_none()).collect();
    usable.sort_by_key(|device| device.held_by().is_none());
    if usable.len() < count {
        let text = too_few(name, count, &offered, instance);
        return Err(Readiness::Stalled(Reason::DeviceUnavailable, text));
    }
    let held = |device: &&O| Held { name: name.name.clone(), device: device.spec() };
    Ok(usable.into_iter().take(count).map(held).collect())
}

fn too_few<O: Offered>(name: &DeviceName, count: usize, offered: &[&O], instance: &str) -> String {
    if offered.is_empty() {
        return format!("this host offers no {name}: its administrator does with {}", O::BUS.option());
    }
    let obstacles: Vec<String> =
        offered.iter().filter_map(|d| Some(format!("{}: {}", d.place(), d.obstacle(instance)?))).collect();
    let usable = offered.len() - obstacles.len();
    let offers = format!("the VM needs {count} {name} and this host has {usable} for it");
    let named = &obstacles[..obstacles.len().min(NAMED)];
    if named.is_empty() { offers } else { format!("{offers} ({})", named.join("; ")) }
}

/// Gives back devices of an earlier run that are not among the chosen ones, before others are taken.
pub(super) fn surplus(observed: &Observed, chosen: &HeldDevices) -> Option<Plan<Step>> {
    let (chosen, journal) = (chosen.specs(), &observed.journal);
    let pci = journal.pci_devices.iter().any(|held| !chosen.pci.contains(&held.device));
    let usb = journal.usb_devices.iter().any(|held| !chosen.usb.contains(&held.device));
    let vgpus = journal.vgpus.iter().any(|held| !chosen.vgpus.contains(&held.device));
    let text = "devices of the host are being given back".to_owned();
    let readiness = Readiness::Reconciling(Reason::Starting, text);
    (pci || usb || vgpus).then(|| Plan::steps(given_back(journal), readiness))
}

/// The steps that give back all devices of a machine that has ended, and record it. None are needed without devices.
pub(super) fn given_back(journal: &Journal) -> Vec<Step> {
    if !journal.has_devices() {
        return Vec::new();
    }
    vec![Step::GiveBackDevices, write_journal(journal.clone().without_devices())]
}
