//! PCI devices of this host for guests: they are bound to the driver vfio-pci while a machine has them, and given back to the driver
//! that they had before. All functions block.
//!
//! ```text
//!  take:       record ─▶ driver_override ─▶ unbind ─▶ drivers_probe ─▶ bound to vfio-pci
//!  give back:  driver_override as before ─▶ unbind ─▶ bind to the former driver ─▶ record removed
//! ```
//!
//! The record of a function, `<state>/pci/<address>.json`, names the instance, and the driver and the override that the function had.
//! It is on disk before anything is changed, and removed last: whatever was interrupted is completed by a repetition.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use berth_qemu::machine::PciDeviceSpec;
use serde::{Deserialize, Serialize};

use super::device_records::{DeviceRecords, OfferedNames};
use super::files::{self, failed};
use crate::{PciDeviceFacts, PciMapping, PciSelector, SystemError};

type Result<T> = std::result::Result<T, SystemError>;

/// The driver of a device that a guest has.
const VFIO: &str = "vfio-pci";
/// The first byte of the class of bridges, and of display controllers.
const BRIDGE: u32 = 0x06;
pub(super) const DISPLAY: u32 = 0x03;

/// Changes files of sysfs, to which the kernel reacts.
pub(super) trait Kernel: Send + Sync + fmt::Debug {
    fn write(&self, path: &Path, text: &str) -> io::Result<()>;
}

/// The kernel of this machine.
#[derive(Debug)]
pub(super) struct HostKernel;

impl Kernel for HostKernel {
    fn write(&self, path: &Path, text: &str) -> io::Result<()> {
        fs::write(path, text)
    }
}

/// The state of a function before it was taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Record {
    instance: String,
    driver: Option<String>,
    driver_override: Option<String>,
}

/// The devices that guests may have.
#[derive(Clone, Debug)]
pub(super) struct Passthrough {
    /// `/`, or the directory of a test that has `sys` and `dev`.
    root: PathBuf,
    records: DeviceRecords,
    mappings: Arc<Vec<PciMapping>>,
    kernel: Arc<dyn Kernel>,
    /// Held while records are compared and written.
    taking: Arc<Mutex<()>>,
}

impl Passthrough {
    pub(super) fn new(
        root: impl Into<PathBuf>,
        records: PathBuf,
        mappings: Vec<PciMapping>,
        kernel: Arc<dyn Kernel>,
    ) -> Self {
        let records = DeviceRecords::new(records);
        Self { root: root.into(), records, mappings: Arc::new(mappings), kernel, taking: Arc::default() }
    }

    /// Returns the devices of all mappings, with what stands in their way.
    pub(super) fn facts(&self) -> Result<Vec<PciDeviceFacts>> {
        if self.mappings.is_empty() {
            return Ok(Vec::new());
        }
        let records = self.records.all()?;
        let present = files::names(&self.devices())?;
        let mut offered = OfferedNames::default();
        let mut found = Vec::new();
        for mapping in self.mappings.iter() {
            let units = self.units(&mapping.devices, &present)?;
            if units.is_empty() {
                let address = mapping.devices.to_string();
                let problem = Some(format!("this host has no device {address}"));
                let name = mapping.name.clone();
                found.push(PciDeviceFacts { name, address, problem, ..PciDeviceFacts::default() });
            }
            for functions in units {
                let taken = offered.offer(&mapping.name, &functions);
                let mut facts = self.device(&mapping.name, functions, &records)?;
                facts.problem = taken.or(facts.problem);
                if !found.contains(&facts) {
                    found.push(facts);
                }
            }
        }
        Ok(found)
    }

    /// Binds these devices to vfio-pci for the instance.
    ///
    /// *Errors*: [`SystemError::Device`] if another instance has one, or no guest can have it.
    pub(super) fn take(&self, instance: &str, devices: &[PciDeviceSpec]) -> Result<()> {
        let _one_at_a_time = self.taking.lock().unwrap_or_else(PoisonError::into_inner);
        let facts = self.facts()?;
        for device in devices {
            let refuse = |detail: String| {
                let address = device.functions.first().cloned().unwrap_or_default();
                Err(SystemError::Device { address, detail })
            };
            let found = facts.iter().find(|facts| {
                facts.functions == device.functions
                    && facts.groups == device.groups
                    && facts.problem.is_none()
            });
            let Some(found) = found else {
                let same = facts.iter().find(|facts| facts.functions == device.functions);
                let problem = same.and_then(|facts| facts.problem.clone());
                return refuse(problem.unwrap_or_else(|| "it is not what it was any more".to_owned()));
            };
            if let Some(other) = found.held_by.as_ref().filter(|other| *other != instance) {
                return refuse(format!("instance {other} has it"));
            }
        }
        let functions: Vec<&String> = devices.iter().flat_map(|device| &device.functions).collect();
        let records: BTreeMap<String, Record> = self.records.all()?;
        // Before anything is changed, it is known how to undo all of it.
        for function in functions.iter().filter(|function| !records.contains_key(**function)) {
            let record = Record {
                instance: instance.to_owned(),
                driver: self.driver(function),
                driver_override: self.driver_override(function),
            };
            self.records.write(function, &record)?;
        }
        for function in functions {
            self.bind(function)?;
        }
        Ok(())
    }

    /// Gives the devices of an instance back to the drivers that they had. Its machine must have ended.
    pub(super) fn give_back(&self, instance: &str) -> Result<()> {
        let _one_at_a_time = self.taking.lock().unwrap_or_else(PoisonError::into_inner);
        for (function, record) in self.records.all::<Record>()? {
            if record.instance != instance {
                continue;
            }
            if self.has_device(&function) {
                self.restore(&function, &record)?;
            } else {
                tracing::warn!(function, "a device that a machine had is gone from the host");
            }
            self.records.remove(&function)?;
        }
        Ok(())
    }

    fn bind(&self, function: &str) -> Result<()> {
        if self.driver(function).as_deref() == Some(VFIO) {
            return Ok(());
        }
        self.write(&self.of(function, "driver_override"), VFIO)?;
        if let Some(driver) = self.driver(function) {
            self.write(&self.drivers().join(driver).join("unbind"), function)?;
        }
        self.write(&self.root.join("sys/bus/pci/drivers_probe"), function)?;
        match self.driver(function) {
            Some(driver) if driver == VFIO => {
                tracing::info!(function, "bound to vfio-pci");
                Ok(())
            }
            other => Err(SystemError::Device {
                address: function.to_owned(),
                detail: format!(
                    "the kernel did not bind it to {VFIO}: its driver is {}; the kernel's log has the cause",
                    other.as_deref().unwrap_or("none")
                ),
            }),
        }
    }

    fn restore(&self, function: &str, record: &Record) -> Result<()> {
        if let Some(node) = self.group(function).map(|group| self.root.join(format!("dev/vfio/{group}")))
            && node.exists()
        {
            files::revoke(&node)?;
        }
        // It had this driver before it was taken.
        if record.driver.as_deref() == Some(VFIO) {
            return Ok(());
        }
        let before = record.driver_override.as_deref().unwrap_or("\n");
        self.write(&self.of(function, "driver_override"), before)?;
        if self.driver(function).as_deref() == Some(VFIO) {
            self.write(&self.drivers().join(VFIO).join("unbind"), function)?;
        }
        if let Some(driver) = &record.driver
            && self.driver(function).is_none()
        {
            // A driver that does not take the device back must not keep the machine from being removed.
            if let Err(error) = self.write(&self.drivers().join(driver).join("bind"), function) {
                tracing::warn!(
                    function,
                    driver,
                    error = error.chain(),
                    "the former driver does not take a device back"
                );
            }
        }
        tracing::info!(function, driver = record.driver, "given back");
        Ok(())
    }

    /// Returns the functions of each device that is meant.
    fn units(&self, selector: &PciSelector, present: &[String]) -> Result<Vec<Vec<String>>> {
        match selector {
            PciSelector::Address { slot, function: Some(function) } => {
                let address = format!("{slot}.{function}");
                Ok(present.contains(&address).then(|| vec![address]).into_iter().collect())
            }
            PciSelector::Address { slot, function: None } => {
                let functions: Vec<String> = of_slot(present, slot).cloned().collect();
                Ok(if functions.is_empty() { Vec::new() } else { vec![functions] })
            }
            PciSelector::Id(id) => {
                let mut units: Vec<Vec<String>> = Vec::new();
                for function in present {
                    let is_known = units.iter().any(|unit| unit.contains(function));
                    if is_known || self.id(function).as_ref() != Some(id) {
                        continue;
                    }
                    let slot = function.split('.').next().unwrap_or_default();
                    let group = self.group(function);
                    let belongs = |other: &&String| {
                        *other == function || (group.is_some() && self.group(other) == group)
                    };
                    units.push(of_slot(present, slot).filter(belongs).cloned().collect());
                }
                Ok(units)
            }
        }
    }

    fn device(
        &self,
        name: &str,
        functions: Vec<String>,
        records: &BTreeMap<String, Record>,
    ) -> Result<PciDeviceFacts> {
        let groups: BTreeSet<u32> = functions.iter().filter_map(|function| self.group(function)).collect();
        let has_class = |class: u32| functions.iter().any(|function| self.class(function) == Some(class));
        let held_by = functions.iter().find_map(|function| records.get(function)).map(|r| r.instance.clone());
        Ok(PciDeviceFacts {
            name: name.to_owned(),
            address: functions.first().cloned().unwrap_or_default(),
            id: functions.first().and_then(|function| self.id(function)),
            display: has_class(DISPLAY),
            problem: self.problem(&functions, &groups)?,
            groups: groups.into_iter().collect(),
            held_by,
            functions,
        })
    }

    /// Returns why no guest can have a device with these functions, if so.
    fn problem(&self, functions: &[String], groups: &BTreeSet<u32>) -> Result<Option<String>> {
        for function in functions {
            if self.class(function) == Some(BRIDGE) {
                return Ok(Some(format!("{function} is a bridge, which no VM can have")));
            }
            if self.group(function).is_none() {
                let text = "it is in no IOMMU group: switch the IOMMU (VT-d, AMD-Vi) on in the firmware, and with intel_iommu=on on the kernel's command line";
                return Ok(Some(text.to_owned()));
            }
        }
        for function in functions {
            if self.is_divided(function) {
                return Ok(Some(format!(
                    "{function} is divided into vGPUs that exist: it can be given whole once they are removed"
                )));
            }
            if self.is_set_up_by_nvidia(function) {
                let text = format!(
                    "{function} is for NVIDIA's vGPU driver on the host, which must stay its driver, and VMs have vfio-pci: berth cannot give it"
                );
                return Ok(Some(text));
            }
        }
        for group in groups {
            let others = files::names(&self.root.join(format!("sys/kernel/iommu_groups/{group}/devices")))?;
            let foreign: Vec<String> = others
                .into_iter()
                .filter(|other| !functions.contains(other) && self.class(other) != Some(BRIDGE))
                .collect();
            if !foreign.is_empty() {
                return Ok(Some(format!(
                    "its IOMMU group {group} also has {}, which the VM would reach: offer all functions of the device together (its address without a function), or move the card to another slot",
                    foreign.join(", ")
                )));
            }
        }
        if !self.drivers().join(VFIO).is_dir() {
            return Ok(Some(format!(
                "the kernel has no driver {VFIO}: run modprobe {VFIO}, also at each boot"
            )));
        }
        Ok(None)
    }

    /// Whether the function, or a virtual function of it, has mediated devices, which it would lose with its driver.
    fn is_divided(&self, function: &str) -> bool {
        let entries = files::names(&self.devices().join(function)).unwrap_or_default();
        let links = entries.iter().filter(|entry| entry.starts_with("virtfn"));
        let mut virtual_functions = links.filter_map(|link| linked_name(&self.of(function, link)));
        self.has_mediated_devices(function) || virtual_functions.any(|one| self.has_mediated_devices(&one))
    }

    fn has_mediated_devices(&self, function: &str) -> bool {
        let types = self.of(function, "mdev_supported_types");
        let has_some = |mdev_type: &String| {
            files::names(&types.join(mdev_type).join("devices")).is_ok_and(|devices| !devices.is_empty())
        };
        files::names(&types).is_ok_and(|types| types.iter().any(has_some))
    }

    /// Whether the function is a virtual function to which NVIDIA's driver gives the type of a vGPU, and which is one with that driver only.
    fn is_set_up_by_nvidia(&self, function: &str) -> bool {
        self.of(function, "physfn").exists() && self.of(function, "nvidia/current_vgpu_type").exists()
    }

    fn devices(&self) -> PathBuf {
        self.root.join("sys/bus/pci/devices")
    }

    fn drivers(&self) -> PathBuf {
        self.root.join("sys/bus/pci/drivers")
    }

    fn of(&self, function: &str, file: &str) -> PathBuf {
        self.devices().join(function).join(file)
    }

    fn has_device(&self, function: &str) -> bool {
        self.devices().join(function).exists()
    }

    fn driver(&self, function: &str) -> Option<String> {
        linked_name(&self.of(function, "driver"))
    }

    fn group(&self, function: &str) -> Option<u32> {
        linked_name(&self.of(function, "iommu_group"))?.parse().ok()
    }

    /// The override of a function's driver. Without one the kernel writes `(null)`.
    fn driver_override(&self, function: &str) -> Option<String> {
        let text = fs::read_to_string(self.of(function, "driver_override")).ok()?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty() && text != "(null)")
    }

    fn number(&self, function: &str, file: &str) -> Option<u32> {
        let text = fs::read_to_string(self.of(function, file)).ok()?;
        u32::from_str_radix(text.trim().trim_start_matches("0x"), 16).ok()
    }

    /// The base class of a function.
    fn class(&self, function: &str) -> Option<u32> {
        self.number(function, "class").map(|class| class >> 16)
    }

    fn id(&self, function: &str) -> Option<String> {
        let (vendor, device) = (self.number(function, "vendor")?, self.number(function, "device")?);
        Some(format!("{vendor:04x}:{device:04x}"))
    }

    fn write(&self, path: &Path, text: &str) -> Result<()> {
        self.kernel.write(path, text).map_err(failed("write", path))
    }
}

fn of_slot<'a>(present: &'a [String], slot: &'a str) -> impl Iterator<Item = &'a String> {
    present.iter().filter(move |address| address.split('.').next() == Some(slot))
}

/// The last part of the path that a symbolic link leads to.
pub(super) fn linked_name(link: &Path) -> Option<String> {
    Some(fs::read_link(link).ok()?.file_name()?.to_str()?.to_owned())
}

#[cfg(test)]
mod tests;
