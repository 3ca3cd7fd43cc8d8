//! The hardware that a VM declares, compared with that of a running machine. Pure.

use berth_api::vm::DiskBus;
use berth_api::{Architecture, CpuTopology, HugePages, Profile, Quantity, Size, VM};
use berth_qemu::machine::{self, Bus};
use sha2::{Digest, Sha256};

use crate::index::instance_of;
use crate::journal::{Journal, Run, RunProfile};

/// Returns the names of what is declared now and the machine does not have.
pub(crate) fn differences(run: &Run, vm: &VM, size: &Size, profile: &Profile) -> Vec<&'static str> {
    let declared = RunProfile::declared(vm, profile);
    let parts = [
        ("class", run.class == class_name(vm)),
        ("cpus", run.cpus == size.cpus),
        ("memory", Quantity::from_bytes(run.memory_bytes) == Quantity::from_bytes(size.memory)),
        ("maxMemory", run.growth.map(|growth| growth.most) == size.max_memory),
        ("dedicatedCpuPlacement", run.dedicated_cpus == size.dedicated_cpus),
        ("isolateEmulatorThread", run.isolate_emulator_thread == size.isolate_emulator_thread),
        ("hugePages", run.huge_pages == size.huge_pages),
        ("firmware", run.firmware == size.firmware.as_str()),
        ("secureBootKeys", run.profile.secure_boot_keys == declared.secure_boot_keys),
        ("tpm", run.tpm == size.tpm),
        ("maxCpus", run.max_cpus == size.max_cpus),
        // Another number of CPUs, of places for them, or of nodes, is another topology.
        (
            "cpuTopology",
            run.cpus != size.cpus
                || run.max_cpus != size.max_cpus
                || numa_nodes(run) != size.numa_nodes
                || topology(run) == size.topology,
        ),
        ("numaNodes", numa_nodes(run) == size.numa_nodes),
        ("ioThreadsPolicy", run.profile.io_threads_policy == declared.io_threads_policy),
        ("cpuModel", run.profile.cpu_model == declared.cpu_model),
        ("machineType", has_machine_type(run, vm)),
        ("guestOS", run.profile.guest_os == declared.guest_os),
        ("watchdog", run.profile.watchdog == declared.watchdog),
        ("serialNumber", run.profile.serial_number == declared.serial_number),
        ("pciDevices", run.profile.pci_devices == declared.pci_devices),
        ("usbDevices", run.profile.usb_devices == declared.usb_devices),
        ("vgpus", run.profile.vgpus == declared.vgpus),
        ("shares", run.profile.shares == declared.shares),
        ("scratchDisk", run.profile.scratch_disk == declared.scratch_disk),
        ("qemuOptions", run.profile.qemu_options == declared.qemu_options),
        ("graphics", run.graphics == vm.spec.graphics),
        ("resolution", run.profile.resolution == declared.resolution),
        ("keyboardLayout", run.profile.keyboard_layout == declared.keyboard_layout),
        ("sound", run.profile.sound == declared.sound),
        ("serialPorts", run.profile.further_serial_ports == declared.further_serial_ports),
        ("vsock", run.profile.vsock == declared.vsock),
        ("bootOrder", run.profile.boot_order == declared.boot_order),
        ("uuid", run.uuid.as_ref().is_none_or(|uuid| *uuid == uuid_of(vm))),
    ];
    parts.into_iter().filter(|(_, is_same)| !is_same).map(|(name, _)| name).collect()
}

/// Whether the machine is of the declared machine type. Without a declaration it keeps the one that it has.
fn has_machine_type(run: &Run, vm: &VM) -> bool {
    let has = run.machine.as_ref().map(|machine| &machine.machine_type);
    has.zip(vm.spec.machine_type.as_ref()).is_none_or(|(has, declared)| has == declared)
}

/// Returns the bytes of memory that the host keeps for a machine; none: all of them. Whatever is declared for its next start, a balloon
/// gives nothing back of huge pages and of memory that devices use, and a machine with CPUs for itself is left alone.
pub(crate) fn memory_reservation(journal: &Journal, size: &Size) -> Option<u64> {
    let run = journal.run.as_ref()?;
    let has_devices = !journal.pci_devices.is_empty() || !journal.vgpus.is_empty();
    let is_whole = has_devices || run.dedicated_cpus || run.huge_pages != HugePages::None;
    size.memory_reservation.filter(|reserved| !is_whole && *reserved < run.memory_bytes)
}

/// Returns a declared architecture in QEMU's form.
pub(crate) fn architecture_of(declared: Architecture) -> machine::Architecture {
    match declared {
        Architecture::X86_64 => machine::Architecture::X86_64,
        Architecture::Aarch64 => machine::Architecture::Aarch64,
    }
}

/// Returns the controller of a declared disk in QEMU's form.
pub(crate) fn bus_of(bus: DiskBus) -> Bus {
    match bus {
        DiskBus::VirtioScsi => Bus::VirtioScsi,
        DiskBus::VirtioBlk => Bus::VirtioBlk,
        DiskBus::Sata => Bus::Sata,
    }
}

/// Returns the controller of a disk in the form of the API.
pub(crate) fn declared_bus(bus: Bus) -> DiskBus {
    match bus {
        Bus::VirtioScsi => DiskBus::VirtioScsi,
        Bus::VirtioBlk => DiskBus::VirtioBlk,
        Bus::Sata => DiskBus::Sata,
    }
}

/// Returns the SMBIOS UUID of a VM: the declared one, or else one that is always the same for the same instance, on any host.
pub(crate) fn uuid_of(vm: &VM) -> String {
    if let Some(uuid) = &vm.spec.uuid {
        return uuid.to_ascii_lowercase();
    }
    uuid_from(instance_of(vm).unwrap_or_default())
}

/// Returns a UUID that is always the same for the same text.
pub(crate) fn uuid_from(text: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    uuid::Builder::from_custom_bytes(bytes).into_uuid().to_string()
}

/// Returns the name of the class that the VM declares; empty without one.
pub(crate) fn class_name(vm: &VM) -> String {
    vm.spec.class.as_ref().map(ToString::to_string).unwrap_or_default()
}

/// Returns the number of NUMA nodes that the guest of a running machine sees.
pub(crate) fn numa_nodes(run: &Run) -> i64 {
    run.numa_nodes.unwrap_or(1)
}

/// Returns the arrangement of the CPUs of a running machine.
pub(crate) fn topology(run: &Run) -> CpuTopology {
    run.topology.unwrap_or(CpuTopology::of_cores(run.cpus))
}
