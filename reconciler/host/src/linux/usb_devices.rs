//! USB devices of this host for guests. QEMU opens the device file of each and takes the device from the host's drivers itself; after the
//! machine has ended, the device file gets its former owner again, and the host's drivers the device. All functions block.
//!
//! ```text
//!  take:       record ─▶ (QEMU's user becomes the owner of the device file when the machine is launched)
//!  give back:  owner as before ─▶ drivers_probe for each interface without a driver ─▶ record removed
//! ```
//!
//! The record of a device, `<state>/usb/<port>.json`, names the instance and the owner that the device file had. A port is an instance's
//! until it is given back, also while the device is unplugged.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use berth_qemu::machine::UsbDeviceSpec;
use serde::{Deserialize, Serialize};

use super::device_records::{DeviceRecords, OfferedNames, attribute, harmless};
use super::files::{self, failed};
use super::passthrough::Kernel;
use crate::{SystemError, UsbDeviceFacts, UsbMapping, UsbSelector};

type Result<T> = std::result::Result<T, SystemError>;

/// The class of hubs.
const HUB: &str = "09";

/// The state of a device before it was taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Record {
    instance: String,
    bus: u16,
    number: u16,
    /// User, group and mode of its device file.
    owner: (u32, u32, u32),
}

/// The devices that guests may have.
#[derive(Clone, Debug)]
pub(super) struct UsbPassthrough {
    /// `/`, or the directory of a test that has `sys` and `dev`.
    root: PathBuf,
    records: DeviceRecords,
    mappings: Arc<Vec<UsbMapping>>,
    kernel: Arc<dyn Kernel>,
    /// Held while records are compared and written.
    taking: Arc<Mutex<()>>,
}

impl UsbPassthrough {
    pub(super) fn new(
        root: impl Into<PathBuf>,
        records: PathBuf,
        mappings: Vec<UsbMapping>,
        kernel: Arc<dyn Kernel>,
    ) -> Self {
        let records = DeviceRecords::new(records);
        Self { root: root.into(), records, mappings: Arc::new(mappings), kernel, taking: Arc::default() }
    }

    /// Returns the devices of all mappings, with what stands in their way.
    pub(super) fn facts(&self) -> Result<Vec<UsbDeviceFacts>> {
        if self.mappings.is_empty() {
            return Ok(Vec::new());
        }
        let records = self.records.all()?;
        let mut present = files::names(&self.devices())?;
        // Interfaces have a colon.
        present.retain(|name| !name.contains(':'));
        let mut offered = OfferedNames::default();
        let mut found = Vec::new();
        for mapping in self.mappings.iter() {
            let meant: Vec<&String> =
                present.iter().filter(|port| self.is_meant(port, &mapping.devices)).collect();
            if meant.is_empty() {
                let port = mapping.devices.to_string();
                let problem = Some(match &mapping.devices {
                    UsbSelector::Port(_) => format!("this host has no device in port {port}"),
                    UsbSelector::Id(_) => format!("this host has no device {port}"),
                });
                let name = mapping.name.clone();
                found.push(UsbDeviceFacts { name, port, problem, ..UsbDeviceFacts::default() });
            }
            for port in meant {
                let taken = offered.offer(&mapping.name, std::slice::from_ref(port));
                let mut facts = self.device(&mapping.name, port, &records);
                facts.problem = taken.or(facts.problem);
                found.push(facts);
            }
        }
        Ok(found)
    }

    /// Keeps these devices for the instance.
    ///
    /// *Errors*: [`SystemError::UsbDevice`] if another instance has one, or no guest can have it.
    pub(super) fn take(&self, instance: &str, devices: &[UsbDeviceSpec]) -> Result<()> {
        if devices.is_empty() {
            return Ok(());
        }
        let _one_at_a_time = self.taking.lock().unwrap_or_else(PoisonError::into_inner);
        let facts = self.facts()?;
        for device in devices {
            let refuse = |detail: String| Err(SystemError::UsbDevice { port: device.port.clone(), detail });
            let same = |facts: &&UsbDeviceFacts| is_same(device, facts.bus, facts.number);
            let in_port: Vec<&UsbDeviceFacts> =
                facts.iter().filter(|facts| facts.port == device.port).collect();
            let Some(found) = in_port.iter().copied().filter(same).find(|facts| facts.problem.is_none())
            else {
                let problem = in_port.iter().copied().find(same).and_then(|facts| facts.problem.clone());
                return refuse(problem.unwrap_or_else(|| "it was unplugged, or plugged in again".to_owned()));
            };
            if let Some(other) = found.held_by.as_ref().filter(|other| *other != instance) {
                return refuse(format!("instance {other} has it"));
            }
        }
        let records: BTreeMap<String, Record> = self.records.all()?;
        for device in devices {
            if records.get(&device.port).is_some_and(|record| is_same(device, record.bus, record.number)) {
                continue;
            }
            let owner = self.owner(device)?;
            let (instance, bus, number) = (instance.to_owned(), device.bus, device.number);
            self.records.write(&device.port, &Record { instance, bus, number, owner })?;
            tracing::info!(port = device.port, "taken from the host");
        }
        Ok(())
    }

    /// Gives the devices of an instance back to the host. Its machine must have ended.
    pub(super) fn give_back(&self, instance: &str) -> Result<()> {
        let _one_at_a_time = self.taking.lock().unwrap_or_else(PoisonError::into_inner);
        let records: BTreeMap<String, Record> = self.records.all()?;
        for (port, record) in records.iter().filter(|(_, record)| record.instance == instance) {
            // After it was plugged in again, it has another device file, which no guest has had.
            if self.numbers(port) == Some((record.bus, record.number)) {
                self.restore(port, record)?;
            }
            self.records.remove(port)?;
            tracing::info!(port, "given back");
        }
        Ok(())
    }

    fn restore(&self, port: &str, record: &Record) -> Result<()> {
        let device = UsbDeviceSpec { port: port.to_owned(), bus: record.bus, number: record.number };
        let node = self.node(&device);
        let (user, group, mode) = record.owner;
        match std::os::unix::fs::chown(&node, Some(user), Some(group)) {
            // Unplugged at this moment.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            changed => changed.map_err(failed("change the owner of", &node))?,
        }
        fs::set_permissions(&node, fs::Permissions::from_mode(mode))
            .map_err(failed("change the mode of", &node))?;
        let interfaces = format!("{port}:");
        for interface in files::names(&self.devices())?.iter().filter(|name| name.starts_with(&interfaces)) {
            if self.devices().join(interface).join("driver").exists() {
                continue;
            }
            // A driver that does not take the device back must not keep the machine from being removed.
            if let Err(error) = self.kernel.write(&self.root.join("sys/bus/usb/drivers_probe"), interface) {
                tracing::debug!(interface, %error, "no driver of the host takes an interface back");
            }
        }
        Ok(())
    }

    fn is_meant(&self, port: &str, selector: &UsbSelector) -> bool {
        match selector {
            UsbSelector::Port(wanted) => wanted == port,
            UsbSelector::Id(wanted) => self.id(port).as_ref() == Some(wanted),
        }
    }

    fn device(&self, name: &str, port: &str, records: &BTreeMap<String, Record>) -> UsbDeviceFacts {
        let (bus, number) = self.numbers(port).unwrap_or_default();
        let device = UsbDeviceSpec { port: port.to_owned(), bus, number };
        UsbDeviceFacts {
            name: name.to_owned(),
            id: self.id(port),
            product: self
                .attribute(port, "product")
                .map(|text| harmless(&text))
                .filter(|text| !text.is_empty()),
            problem: self.problem(&device),
            held_by: records.get(port).map(|record| record.instance.clone()),
            port: device.port,
            bus,
            number,
        }
    }

    /// Returns why no guest can have the device, if so.
    fn problem(&self, device: &UsbDeviceSpec) -> Option<String> {
        if self.attribute(&device.port, "bDeviceClass").as_deref() == Some(HUB) {
            return Some("it is a hub, which no VM can have: offer the devices in its ports".to_owned());
        }
        if !self.node(device).exists() {
            return Some(format!("this host has no device file {} for it", device.node().display()));
        }
        None
    }

    fn devices(&self) -> PathBuf {
        self.root.join("sys/bus/usb/devices")
    }

    fn node(&self, device: &UsbDeviceSpec) -> PathBuf {
        let node = device.node();
        self.root.join(node.strip_prefix("/").unwrap_or(&node))
    }

    fn owner(&self, device: &UsbDeviceSpec) -> Result<(u32, u32, u32)> {
        let node = self.node(device);
        let metadata = fs::symlink_metadata(&node).map_err(failed("look at", &node))?;
        Ok((metadata.uid(), metadata.gid(), metadata.mode() & 0o777))
    }

    fn id(&self, port: &str) -> Option<String> {
        let (vendor, product) = (self.attribute(port, "idVendor")?, self.attribute(port, "idProduct")?);
        Some(format!("{vendor}:{product}"))
    }

    /// The number of its bus, and its own on that bus.
    fn numbers(&self, port: &str) -> Option<(u16, u16)> {
        let number = |file: &str| self.attribute(port, file)?.parse().ok();
        Some((number("busnum")?, number("devnum")?))
    }

    fn attribute(&self, port: &str, file: &str) -> Option<String> {
        attribute(&self.devices().join(port).join(file))
    }
}

fn is_same(device: &UsbDeviceSpec, bus: u16, number: u16) -> bool {
    (device.bus, device.number) == (bus, number)
}

#[cfg(test)]
mod tests;
