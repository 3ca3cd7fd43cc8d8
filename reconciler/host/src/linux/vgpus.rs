//! vGPUs (mediated devices) for guests: parts of a PCI device of this host, which its driver makes at the request of a user. They are made
//! when a machine is to have them, and removed after it has ended. All functions block.
//!
//! ```text
//!  take:       record ─▶ UUID to mdev_supported_types/<type>/create of the device ─▶ in a VFIO group
//!  give back:  1 to /sys/bus/mdev/devices/<UUID>/remove ─▶ record removed
//! ```
//!
//! The record of a vGPU, `<state>/vgpus/<UUID>.json`, names the instance, the device and the type. It is on disk before the vGPU is made:
//! a mediated device without a record was made by another program, and is left alone. After a boot of the host there are records
//! without vGPUs.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use berth_qemu::machine::VgpuSpec;
use serde::{Deserialize, Serialize};

use super::device_records::{DeviceRecords, OfferedNames, attribute, harmless};
use super::files::{self, failed};
use super::passthrough::{DISPLAY, Kernel, linked_name};
use crate::{PciSelector, SystemError, VgpuFacts, VgpuMapping};

type Result<T> = std::result::Result<T, SystemError>;

/// The interface of a mediated device that is a PCI device for its guest.
const API: &str = "vfio-pci";
/// The number of types that a message names.
const NAMED: usize = 8;

/// The use of a vGPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Record {
    instance: String,
    parent: String,
    mdev_type: String,
}

impl Record {
    fn is_of(&self, vgpu: &VgpuSpec) -> bool {
        (&self.parent, &self.mdev_type) == (&vgpu.parent, &vgpu.mdev_type)
    }
}

/// The mediated device with a UUID, compared with a device and a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Device {
    Absent,
    Same,
    /// It is of another device or type: another program made it.
    Other,
}

/// The number of vGPUs of a GPU with virtual functions, and of a type, that are not counted yet as those of one of the functions.
type Left = BTreeMap<(String, String), u32>;

/// The vGPUs that guests may have.
#[derive(Clone, Debug)]
pub(super) struct Vgpus {
    /// `/`, or the directory of a test that has `sys`.
    root: PathBuf,
    records: DeviceRecords,
    mappings: Arc<Vec<VgpuMapping>>,
    kernel: Arc<dyn Kernel>,
    /// Held while records and mediated devices are compared or changed.
    taking: Arc<Mutex<()>>,
}

impl Vgpus {
    pub(super) fn new(
        root: impl Into<PathBuf>,
        records: PathBuf,
        mappings: Vec<VgpuMapping>,
        kernel: Arc<dyn Kernel>,
    ) -> Self {
        let records = DeviceRecords::new(records);
        Self { root: root.into(), records, mappings: Arc::new(mappings), kernel, taking: Arc::default() }
    }

    /// Returns the vGPUs of all mappings by device and type, with what stands in their way.
    pub(super) fn facts(&self) -> Result<Vec<VgpuFacts>> {
        let _one_at_a_time = self.taking.lock().unwrap_or_else(PoisonError::into_inner);
        self.look()
    }

    /// Returns the facts to a caller that holds the lock.
    fn look(&self) -> Result<Vec<VgpuFacts>> {
        if self.mappings.is_empty() {
            return Ok(Vec::new());
        }
        let records = self.records.all()?;
        let present = files::names(&self.root.join("sys/class/mdev_bus"))?;
        let (mut offered, mut left) = (OfferedNames::default(), Left::new());
        let mut found = Vec::new();
        for mapping in self.mappings.iter() {
            let (parents, mdev_type) = (&mapping.devices.parents, &mapping.devices.mdev_type);
            let meant: Vec<&String> =
                present.iter().filter(|parent| self.is_meant(parent, parents)).collect();
            if meant.is_empty() {
                found.push(VgpuFacts {
                    name: mapping.name.clone(),
                    parent: parents.to_string(),
                    mdev_type: mdev_type.clone(),
                    problem: Some(self.no_parent(parents)?),
                    ..VgpuFacts::default()
                });
            }
            for parent in meant {
                let mut facts = self.of_parent(parent, mdev_type, &records)?;
                facts.name.clone_from(&mapping.name);
                let part = format!("{parent}/{}", facts.mdev_type);
                facts.problem = offered.offer(&mapping.name, &[part]).or(facts.problem);
                if facts.problem.is_none() {
                    let available = self.available(parent, &facts.mdev_type, &mut left);
                    facts.usable = facts.usable.saturating_add(available);
                }
                found.push(facts);
            }
        }
        Ok(found)
    }

    /// Makes these vGPUs for the instance, and removes others that it had.
    ///
    /// *Errors*: [`SystemError::Vgpu`] if another instance or program has one, or the driver does not make it.
    ///
    /// *Assumptions*: the instance has no machine.
    pub(super) fn take(&self, instance: &str, vgpus: &[VgpuSpec]) -> Result<()> {
        let _one_at_a_time = self.taking.lock().unwrap_or_else(PoisonError::into_inner);
        let is_wanted =
            |uuid: &str, record: &Record| vgpus.iter().any(|vgpu| vgpu.uuid == uuid && record.is_of(vgpu));
        for (uuid, record) in self.records.all::<Record>()? {
            if record.instance == instance && !is_wanted(&uuid, &record) {
                self.remove(&uuid, &record)?;
            }
        }
        if vgpus.is_empty() {
            return Ok(());
        }
        let (facts, records) = (self.look()?, self.records.all::<Record>()?);
        for vgpu in vgpus {
            self.check(instance, vgpu, &facts, records.get(&vgpu.uuid))?;
        }
        for vgpu in vgpus {
            let is_new = !records.contains_key(&vgpu.uuid);
            if is_new {
                let (parent, mdev_type) = (vgpu.parent.clone(), vgpu.mdev_type.clone());
                self.records
                    .write(&vgpu.uuid, &Record { instance: instance.to_owned(), parent, mdev_type })?;
            }
            if let Err(error) = self.ensure_made(vgpu) {
                // A record of this call without a vGPU is undone. The error is the driver's in any case.
                if is_new
                    && !self.folder(&vgpu.uuid).exists()
                    && let Err(left) = self.records.remove(&vgpu.uuid)
                {
                    tracing::warn!(error = left.chain(), uuid = vgpu.uuid, "record of a vGPU not removed");
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Removes the vGPUs of an instance. Its machine must have ended.
    pub(super) fn give_back(&self, instance: &str) -> Result<()> {
        let _one_at_a_time = self.taking.lock().unwrap_or_else(PoisonError::into_inner);
        for (uuid, record) in self.records.all::<Record>()? {
            if record.instance == instance {
                self.remove(&uuid, &record)?;
            }
        }
        Ok(())
    }

    /// Checks that the instance can have a vGPU, which it may have already.
    fn check(
        &self,
        instance: &str,
        vgpu: &VgpuSpec,
        facts: &[VgpuFacts],
        record: Option<&Record>,
    ) -> Result<()> {
        let its: Vec<&VgpuFacts> = facts
            .iter()
            .filter(|facts| (&facts.parent, &facts.mdev_type) == (&vgpu.parent, &vgpu.mdev_type))
            .collect();
        if its.iter().all(|facts| facts.problem.is_some()) {
            let problem = its.first().and_then(|facts| facts.problem.clone());
            return Err(refused(
                vgpu,
                problem.unwrap_or_else(|| "this host does not offer it any more".to_owned()),
            ));
        }
        if let Some(other) = record.map(|record| &record.instance).filter(|other| *other != instance) {
            return Err(refused(vgpu, format!("instance {other} has {}", vgpu.uuid)));
        }
        let is_free = match self.device(&vgpu.uuid, &vgpu.parent, &vgpu.mdev_type) {
            Device::Absent => true,
            Device::Same => record.is_some(),
            Device::Other => false,
        };
        if is_free {
            return Ok(());
        }
        let folder = vgpu.folder();
        Err(refused(
            vgpu,
            format!("another program made {}: remove it by writing 1 to its file remove", folder.display()),
        ))
    }

    fn ensure_made(&self, vgpu: &VgpuSpec) -> Result<()> {
        if !self.folder(&vgpu.uuid).exists() {
            let create = self.types(&vgpu.parent).join(&vgpu.mdev_type).join("create");
            self.kernel.write(&create, &vgpu.uuid).map_err(|error| {
                refused(
                    vgpu,
                    format!("its driver does not make it ({error}); the kernel's log has the cause"),
                )
            })?;
            tracing::info!(uuid = vgpu.uuid, parent = vgpu.parent, mdev_type = vgpu.mdev_type, "vGPU made");
        }
        group_of(&self.root, vgpu).map(drop)
    }

    /// Removes a vGPU that was made for this record, and the record.
    fn remove(&self, uuid: &str, record: &Record) -> Result<()> {
        match self.device(uuid, &record.parent, &record.mdev_type) {
            Device::Absent => {}
            Device::Same => {
                let file = self.folder(uuid).join("remove");
                let written = self.kernel.write(&file, "1");
                // It vanishes with its parent, and with the driver of that.
                if let Err(error) = written
                    && self.folder(uuid).exists()
                {
                    return Err(failed("write", &file)(error));
                }
                tracing::info!(uuid, parent = record.parent, "vGPU removed");
            }
            Device::Other => tracing::warn!(uuid, "another program made a mediated device with this UUID"),
        }
        self.records.remove(uuid)
    }

    /// Compares the mediated device with this UUID with a device and a type.
    fn device(&self, uuid: &str, parent: &str, mdev_type: &str) -> Device {
        let folder = self.folder(uuid);
        if !folder.exists() {
            return Device::Absent;
        }
        // The link leads into the folder of the parent.
        let real = fs::canonicalize(&folder).ok();
        let of = real.as_deref().and_then(Path::parent).and_then(Path::file_name);
        let is_same = of.is_some_and(|of| of == parent)
            && linked_name(&folder.join("mdev_type")).is_some_and(|of| of == mdev_type);
        if is_same { Device::Same } else { Device::Other }
    }

    fn is_meant(&self, parent: &str, selector: &PciSelector) -> bool {
        match selector {
            PciSelector::Address { slot, function: Some(function) } => parent == format!("{slot}.{function}"),
            PciSelector::Address { slot, function: None } => parent.split('.').next() == Some(slot.as_str()),
            PciSelector::Id(wanted) => self.id(parent).as_ref() == Some(wanted),
        }
    }

    /// Returns why no device of this host that is meant has mediated devices.
    fn no_parent(&self, selector: &PciSelector) -> Result<String> {
        let devices = files::names(&self.root.join("sys/bus/pci/devices"))?;
        if devices.iter().any(|device| self.is_meant(device, selector)) {
            return Ok(format!(
                "{selector} has no mediated devices: its driver makes none, or is not loaded (/sys/class/mdev_bus lists the devices with some)"
            ));
        }
        Ok(format!("this host has no device {selector}"))
    }

    /// Returns the vGPUs of a type that exist of this device. The type is given as its driver names it, or by its name for people.
    fn of_parent(&self, parent: &str, wanted: &str, records: &BTreeMap<String, Record>) -> Result<VgpuFacts> {
        let types = files::names(&self.types(parent))?;
        let of = |mdev_type: &str, file: &str| attribute(&self.types(parent).join(mdev_type).join(file));
        let named = || types.iter().find(|one| of(one, "name").as_deref() == Some(wanted));
        let mut facts = VgpuFacts {
            parent: parent.to_owned(),
            display: self.number(parent, "class").is_some_and(|class| class >> 16 == DISPLAY),
            ..VgpuFacts::default()
        };
        let Some(mdev_type) = types.iter().find(|one| *one == wanted).or_else(named) else {
            let with_name = |one: &String| match of(one, "name") {
                Some(name) => format!("{one} ({})", harmless(&name)),
                None => one.clone(),
            };
            let has: Vec<String> = types.iter().take(NAMED).map(with_name).collect();
            let more = if types.len() > NAMED { ", …" } else { "" };
            facts.mdev_type = wanted.to_owned();
            facts.problem = Some(format!("it has no type {wanted}: its types are {}{more}", has.join(", ")));
            return Ok(facts);
        };
        let its = |record: &Record| (&*record.parent, &record.mdev_type) == (parent, mdev_type);
        let held = records.iter().filter(|(_, record)| its(record));
        facts.held_by = held.map(|(uuid, record)| (uuid.clone(), record.instance.clone())).collect();
        let is_made = |uuid: &&String| self.device(uuid, parent, mdev_type) == Device::Same;
        facts.made = facts.held_by.keys().filter(is_made).cloned().collect();
        facts.usable = u32::try_from(facts.made.len()).unwrap_or(u32::MAX);
        facts.type_name = of(mdev_type, "name").map(|name| harmless(&name)).filter(|name| !name.is_empty());
        let api = of(mdev_type, "device_api").unwrap_or_default();
        facts.problem =
            (api != API).then(|| format!("its type is for {}, and VMs have {API}", harmless(&api)));
        facts.mdev_type.clone_from(mdev_type);
        Ok(facts)
    }

    /// Returns the number of vGPUs of a type that the driver can still make of the device. NVIDIA's driver has 1 for each virtual function as
    /// long as the GPU has room for one, and the most of the GPU in its description.
    fn available(&self, parent: &str, mdev_type: &str, left: &mut Left) -> u32 {
        let of = |file: &str| attribute(&self.types(parent).join(mdev_type).join(file));
        let available = of("available_instances").and_then(|number| number.parse().ok()).unwrap_or(0);
        let most = of("description").as_deref().and_then(most_instances);
        let (Some(gpu), Some(most)) = (self.physical_function(parent), most) else { return available };
        let made = || most.saturating_sub(self.made_of(&gpu, mdev_type));
        let left = left.entry((gpu.clone(), mdev_type.to_owned())).or_insert_with(made);
        let counted = available.min(*left);
        *left -= counted;
        counted
    }

    /// Returns the number of mediated devices of a type, of all virtual functions of a GPU.
    fn made_of(&self, gpu: &str, mdev_type: &str) -> u32 {
        let parents = files::names(&self.root.join("sys/class/mdev_bus")).unwrap_or_default();
        let its = parents.iter().filter(|parent| self.physical_function(parent).as_deref() == Some(gpu));
        let made = |parent: &String| {
            files::names(&self.types(parent).join(mdev_type).join("devices")).map_or(0, |made| made.len())
        };
        u32::try_from(its.map(made).sum::<usize>()).unwrap_or(u32::MAX)
    }

    fn physical_function(&self, parent: &str) -> Option<String> {
        linked_name(&self.root.join("sys/bus/pci/devices").join(parent).join("physfn"))
    }

    fn types(&self, parent: &str) -> PathBuf {
        self.root.join("sys/bus/pci/devices").join(parent).join("mdev_supported_types")
    }

    fn folder(&self, uuid: &str) -> PathBuf {
        self.root.join("sys/bus/mdev/devices").join(uuid)
    }

    fn number(&self, parent: &str, file: &str) -> Option<u32> {
        let text = attribute(&self.root.join("sys/bus/pci/devices").join(parent).join(file))?;
        u32::from_str_radix(text.trim_start_matches("0x"), 16).ok()
    }

    fn id(&self, parent: &str) -> Option<String> {
        let (vendor, device) = (self.number(parent, "vendor")?, self.number(parent, "device")?);
        Some(format!("{vendor:04x}:{device:04x}"))
    }
}

/// Returns the number of the VFIO group of a vGPU that was made. `root`: `/`, or the directory of a test.
///
/// *Errors*: [`SystemError::Vgpu`] if it is in none, or was not made.
pub(super) fn group_of(root: &Path, vgpu: &VgpuSpec) -> Result<u32> {
    let link = root.join("sys/bus/mdev/devices").join(&vgpu.uuid).join("iommu_group");
    linked_name(&link).and_then(|group| group.parse().ok()).ok_or_else(|| {
        refused(vgpu, "the kernel has it in no VFIO group: older kernels need the module vfio_mdev (modprobe vfio_mdev)".to_owned())
    })
}

/// The most vGPUs of a type that a GPU has, in the description of NVIDIA's driver: `num_heads=4, framebuffer=8192M, max_instance=6`.
fn most_instances(description: &str) -> Option<u32> {
    description.split([',', '\n']).find_map(|part| part.trim().strip_prefix("max_instance=")?.parse().ok())
}

fn refused(vgpu: &VgpuSpec, detail: String) -> SystemError {
    SystemError::Vgpu { parent: vgpu.parent.clone(), mdev_type: vgpu.mdev_type.clone(), detail }
}

#[cfg(test)]
mod tests;
