//! Hardware that is decided at the first start of a VM and kept: its machine type, its CPU model, and the places of its disks and network
//! cards. Pure.
//!
//! The journal has it. Where the journal was lost, or belongs to another host, the VM's status has it too.

use berth_api::hardware::is_machine_type;
use berth_api::vm::Hardware;
use berth_api::{Profile, VM};
use berth_host::{HostFacts, QemuFacts};
use berth_qemu::cpu_models;
use berth_qemu::machine::{Accelerator, Architecture, Bus, DiskSpec, MAX_NICS, NIC_PORTS};

use super::super::declared_disks::DeclaredDisk;
use super::Observed;
use crate::disk_places::{DiskPlace, DiskPlaces};
use crate::hardware::{bus_of, uuid_of};
use crate::journal::{Journal, PinnedHardware};
use crate::plugging::disk_spec;

/// Returns the journal of a VM with its pinned hardware: as the VM's status reports it, if the journal has none.
pub(super) fn recovered(vm: &VM, journal: &Journal) -> Journal {
    let hardware = vm.status.as_ref().and_then(|status| status.hardware.as_ref());
    let mut recovered = journal.clone();
    let Some(hardware) = hardware.filter(|_| journal.pins.is_none()) else { return recovered };
    recovered.pins = pins_of(hardware);
    for place in &hardware.disk_places {
        if let Ok(number) = u8::try_from(place.number) {
            recovered.disk_places.record(&place.name, DiskPlace { bus: bus_of(place.bus), number });
        }
    }
    for place in &hardware.interface_places {
        let slot = u8::try_from(place.slot).ok().filter(|slot| *slot < MAX_NICS);
        let slot = slot.filter(|slot| !recovered.slots.values().any(|taken| taken == slot));
        let Some(slot) = slot.filter(|_| !recovered.slots.contains_key(&place.name)) else { continue };
        recovered.slots.insert(place.name.clone(), slot);
        if place.in_port && slot < NIC_PORTS {
            recovered.in_ports.insert(place.name.clone());
        }
    }
    recovered
}

/// A status is a report of a host, which may be any text.
fn pins_of(hardware: &Hardware) -> Option<PinnedHardware> {
    let Hardware { machine_type, cpu_model, accelerator, .. } = hardware;
    if !is_machine_type(machine_type) || !cpu_models::is_name(cpu_model) {
        return None;
    }
    let architecture = Architecture::of_machine_type(machine_type);
    let (cpu_model, cpu_level) = value_and_level(architecture, cpu_model);
    Some(PinnedHardware {
        machine_type: machine_type.clone(),
        cpu_model,
        cpu_level,
        accelerator: accelerator.clone(),
        windows_without_hpet: true,
        uuid: String::new(),
    })
}

/// Returns QEMU's value for a CPU model, and the model if it is a level.
fn value_and_level(architecture: Architecture, model: &str) -> (String, Option<String>) {
    match model {
        "host" | "max" => (model.to_owned(), None),
        _ => (
            cpu_models::argument(architecture, model),
            Some(model).filter(|model| cpu_models::is_level(model)).map(str::to_owned),
        ),
    }
}

/// Returns the pins: chosen at the first start and kept. Another machine type and another UUID are declared, and a CPU model that the
/// host's accelerator does not support is replaced.
pub(super) fn pinned(vm: &VM, journal: &Journal, host: &HostFacts, qemu: &QemuFacts) -> PinnedHardware {
    let accelerator = accelerator_name(host.accelerator);
    let mut pins = journal.pins.clone().unwrap_or_else(|| PinnedHardware {
        machine_type: qemu.machine_type.clone(),
        cpu_model: String::new(),
        cpu_level: None,
        accelerator: String::new(),
        windows_without_hpet: true,
        uuid: String::new(),
    });
    if let Some(declared) = &vm.spec.machine_type {
        pins.machine_type.clone_from(declared);
    }
    if pins.accelerator != accelerator {
        (pins.cpu_model, pins.cpu_level) = default_model(vm, host, qemu);
        pins.accelerator = accelerator.to_owned();
    }
    pins.uuid = uuid_of(vm);
    pins
}

/// Returns the CPU model of a VM that declares none, and its level. With KVM it is the level that the scheduler found on all hosts where the
/// VM could be, or else the highest of this host. An emulated processor depends on the version of QEMU only, and has all that it emulates.
fn default_model(vm: &VM, host: &HostFacts, qemu: &QemuFacts) -> (String, Option<String>) {
    let has = |level: &str| qemu.cpu_models.iter().any(|model| model == level);
    let common = vm.status.as_ref().and_then(|status| status.cpu_baseline.as_deref());
    let level = match host.accelerator {
        Accelerator::Tcg { .. } => None,
        Accelerator::Kvm => common
            .filter(|level| cpu_models::is_level(level) && has(level))
            .or_else(|| cpu_models::highest_level(has)),
    };
    // Levels are of x86-64 only.
    let of_level = |level| value_and_level(Architecture::X86_64, level);
    level.map_or_else(|| (qemu.cpu_model.clone(), None), of_level)
}

/// Returns what this host lacks for the pinned hardware, with a remedy.
pub(super) fn lacks(pins: &PinnedHardware, profile: &Profile, qemu: &QemuFacts) -> Option<String> {
    let machine_type = &pins.machine_type;
    let has_type = qemu.machine_types.contains(machine_type) || *machine_type == qemu.machine_type;
    // A host that does not know its machine types, or its CPU models, leaves the check to QEMU.
    if !qemu.machine_types.is_empty() && !has_type {
        let (version, newest) = (&qemu.version, &qemu.machine_type);
        return Some(format!(
            "QEMU {version} of this host has no machine type {machine_type}, which the VM declares or was started with first: install a QEMU \
             that has it, or set machineType to one that it has, such as {newest}"
        ));
    }
    let level = pins.cpu_level.as_ref().filter(|_| profile.cpu_model.is_none())?;
    (!qemu.cpu_models.is_empty() && !qemu.cpu_models.contains(level)).then(|| {
        format!(
            "this host's CPUs or its QEMU lack a feature of {level}, the CPU model that the VM has had since its first start: set cpuModel to \
             one of status.cpuModels of the Host"
        )
    })
}

pub(super) fn accelerator_name(accelerator: Accelerator) -> &'static str {
    match accelerator {
        Accelerator::Kvm => "kvm",
        Accelerator::Tcg { .. } => "tcg",
    }
}

/// Returns the places with one for each disk that the VM declares. The first start gives the boot disk the first place of its bus.
pub(super) fn disk_places(observed: &Observed, places: DiskPlaces) -> DiskPlaces {
    let disks: Vec<(&str, Bus)> =
        boot_disk_first(observed).into_iter().map(|disk| (disk.name.as_str(), disk.bus)).collect();
    places.for_start(&disks)
}

/// Returns the disks that the VM declares at their places, the boot disk first.
pub(super) fn disks(observed: &Observed, places: &DiskPlaces) -> Vec<DiskSpec> {
    let specs = boot_disk_first(observed).into_iter().filter_map(|disk| {
        let target = places.get(&disk.name).map(|place| place.number);
        let spec = disk_spec(disk.volume.as_ref()?, &disk.serial, disk.boot, target);
        Some(DiskSpec { bus: disk.bus, read_only: disk.read_only, ..spec })
    });
    specs.collect()
}

fn boot_disk_first(observed: &Observed) -> Vec<&DeclaredDisk> {
    let mut ordered: Vec<&DeclaredDisk> = observed.disks.iter().collect();
    ordered.sort_by_key(|disk| !disk.boot);
    ordered
}
