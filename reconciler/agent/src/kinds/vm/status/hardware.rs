//! The hardware that a VM has.

use berth_api::passthrough::{PciDeviceStatus, UsbDeviceStatus};
use berth_api::vgpus::{MAX_TYPE, VgpuStatus};
use berth_api::vm::{Acceleration, DedicatedCpus, DiskPlace, GuestNumaNode, Hardware, InterfacePlace};
use berth_api::{GuestOS, HugePages, Quantity, condition};
use berth_qemu::machine::{PciDeviceSpec, VgpuSpec};

use super::super::Observed;
use crate::disk_places;
use crate::hardware::{declared_bus, memory_reservation, numa_nodes, topology};
use crate::journal::{Held, Journal, Run};

/// The places that are listed, which are those of all devices that a VM can declare, and some that have just been taken off.
const MOST_DISK_PLACES: usize = 32;
const MOST_INTERFACE_PLACES: usize = 16;

/// The PCI devices of a VM that has a machine.
pub(super) fn pci_devices(observed: &Observed) -> Vec<PciDeviceStatus> {
    let held = observed.journal.pci_devices.iter().filter(|_| observed.process.is_some());
    let device = |held: &Held<PciDeviceSpec>| PciDeviceStatus {
        name: held.name.clone(),
        address: held.device.functions.first().cloned().unwrap_or_default(),
    };
    held.map(device).collect()
}

/// The USB devices of a VM that has a machine.
pub(super) fn usb_devices(observed: &Observed) -> Vec<UsbDeviceStatus> {
    let held = observed.journal.usb_devices.iter().filter(|_| observed.process.is_some());
    held.map(|held| UsbDeviceStatus { name: held.name.clone(), port: held.device.port.clone() }).collect()
}

/// The vGPUs of a VM that has a machine.
pub(super) fn vgpus(observed: &Observed) -> Vec<VgpuStatus> {
    let held = observed.journal.vgpus.iter().filter(|_| observed.process.is_some());
    let vgpu = |held: &Held<VgpuSpec>| VgpuStatus {
        name: held.name.clone(),
        address: held.device.parent.clone(),
        mdev_type: condition::cut(&held.device.mdev_type, MAX_TYPE).to_owned(),
        uuid: held.device.uuid.clone(),
    };
    held.map(vgpu).collect()
}

/// Returns the CPUs of this host that the running machine has for itself.
pub(super) fn dedicated_cpus(observed: &Observed) -> Option<DedicatedCpus> {
    let cpus = observed.process.as_ref()?.dedicated.as_ref()?;
    Some(DedicatedCpus {
        cpus: cpus.vcpus.iter().copied().map(i64::from).collect(),
        emulator_thread: cpus.emulator.map(i64::from),
        numa_node: cpus.numa_node.map(i64::from),
        guest_nodes: guest_nodes(cpus),
    })
}

/// Returns the NUMA nodes of a guest with several: each has the same number of CPUs.
fn guest_nodes(cpus: &berth_host::DedicatedCpus) -> Vec<GuestNumaNode> {
    let of_each = cpus.vcpus.len() / cpus.guest_nodes.len().max(1);
    let nodes = cpus.vcpus.chunks(of_each.max(1)).zip(&cpus.guest_nodes);
    let node = |(vcpus, node): (&[u32], &Option<u32>)| GuestNumaNode {
        cpus: vcpus.iter().copied().map(i64::from).collect(),
        numa_node: node.map(i64::from),
    };
    nodes.map(node).collect()
}

pub(super) fn hardware(observed: &Observed) -> Option<Hardware> {
    let (run, pins) = (observed.journal.run.as_ref()?, observed.journal.pins.as_ref()?);
    let Run { class, cpus, memory_bytes, firmware, .. } = run;
    let reserved = observed.size.as_ref().ok().and_then(|size| memory_reservation(&observed.journal, size));
    Some(Hardware {
        class: Some(class.clone()).filter(|class| !class.is_empty()),
        cpus: *cpus,
        max_cpus: run.max_cpus,
        max_memory: run.growth.map(|growth| Quantity::from_bytes(growth.most).0),
        memory: Quantity::from_bytes(*memory_bytes).0,
        memory_reservation: reserved.map(|bytes| Quantity::from_bytes(bytes).0),
        dedicated_cpu_placement: run.dedicated_cpus.then_some(true),
        isolate_emulator_thread: run.isolate_emulator_thread.then_some(true),
        huge_pages: Some(run.huge_pages).filter(|pages| *pages != HugePages::None),
        firmware: firmware.clone(),
        tpm: Some(run.tpm),
        cpu_topology: Some(topology(run)),
        numa_nodes: Some(numa_nodes(run)).filter(|nodes| *nodes > 1),
        graphics: Some(run.graphics),
        // A guest that goes on with the memory of a snapshot has that of then.
        machine_type: run
            .machine
            .as_ref()
            .map_or(&pins.machine_type, |machine| &machine.machine_type)
            .clone(),
        cpu_model: run
            .profile
            .cpu_model
            .as_ref()
            .or(pins.cpu_level.as_ref())
            .unwrap_or(&pins.cpu_model)
            .clone(),
        accelerator: pins.accelerator.clone(),
        uuid: pins.uuid.clone(),
        guest_os: Some(run.profile.guest_os).filter(|os| *os != GuestOS::Linux),
        watchdog: run.profile.watchdog,
        serial_number: run.profile.serial_number.clone(),
        serial_ports: Some(1 + i64::from(run.profile.further_serial_ports)).filter(|ports| *ports > 1),
        vsock_cid: run.machine.as_ref().and_then(|machine| machine.extras.vsock_cid).map(i64::from),
        scratch_disk: run.profile.scratch_disk.as_ref().map(|disk| Quantity::from_bytes(disk.bytes()).0),
        disk_places: disk_places(&observed.journal),
        interface_places: interface_places(&observed.journal),
    })
}

fn disk_places(journal: &Journal) -> Vec<DiskPlace> {
    let places = journal.disk_places.iter().take(MOST_DISK_PLACES);
    let place = |(name, place): (&str, disk_places::DiskPlace)| DiskPlace {
        name: name.to_owned(),
        bus: declared_bus(place.bus),
        number: i64::from(place.number),
    };
    places.map(place).collect()
}

fn interface_places(journal: &Journal) -> Vec<InterfacePlace> {
    let places = journal.slots.iter().take(MOST_INTERFACE_PLACES);
    let machine = journal.run.as_ref().and_then(|run| run.machine.as_ref());
    let cards = || machine.into_iter().flat_map(|machine| &machine.nics);
    let place = |(name, slot): (&String, &u8)| InterfacePlace {
        name: name.clone(),
        slot: i64::from(*slot),
        in_port: journal.port_of(name).is_some(),
        acceleration: cards().any(|nic| nic.slot == *slot && nic.no_vhost).then_some(Acceleration::Off),
    };
    places.map(place).collect()
}
