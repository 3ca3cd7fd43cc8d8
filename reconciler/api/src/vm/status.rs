//! The observed state of a VM.

mod interface;

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use super::{
    Acceleration, DiskBus, GuestAgentStatus, GuestUserStatus, InterfaceConfig, MOST_LISTED_SNAPSHOTS,
    ObservedAddresses, PinnedClass, SnapshotOfVM, StopSnapshot, VMMigration, VMOperation, VMRestored,
};
use crate::SizeTaken;
use crate::console::ConsoleAddress;
use crate::guest::{GuestEnd, GuestStatus};
use crate::passthrough::{PciDeviceStatus, UsbDeviceStatus};
use crate::public_ip::PublicPort;
use crate::vgpus::VgpuStatus;
use crate::{
    Binding, Conditions, CpuTopology, DataOrigin, Graphics, GuestOS, HugePages, Quantity, VMState, Watchdog,
};
pub use interface::InterfaceStatus;

/// The observed state of a VM. Read back from the host, never copied from the spec.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct VMStatus {
    /// The generation that these conditions describe; -1 before the first report.
    #[serde(default = "crate::condition::never_observed")]
    pub observed_generation: i64,
    /// `Ready`, `Reconciling`, `Stalled`, `Scheduled`, `Running`, `GuestReady`, `ClassSynced`, `InterfacesSynced`, `GuestUsersSynced` (only
    /// with `guestUsers`), `GuestAgentSynced` (only with `guestAgent`), `PlacementSynced`, `RestoreSynced`, `EncryptionSynced` and
    /// `SecurityGroupsSynced` (only while they are `False`), `GuestFrozen` (only while it is `True`), `Movable` (only while it is to move to another host).
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::exact::list")]
    #[schemars(schema_with = "crate::condition::schema")]
    pub conditions: Conditions,
    /// One word for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<VMState>,
    /// The host it is bound to. Written by the scheduler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binding: Option<Binding>,
    /// The address of its host, at which other hosts reach it. Written by the host's agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub host_address: Option<String>,
    /// The epoch of the binding that its host has admitted. Before that, nothing is created for the VM, and the scheduler may
    /// place it again. Written by the host's agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admitted_epoch: Option<i64>,
    /// The epoch of the binding that the VM leaves once its guest is off: it moves to another host. Written by the controllers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub move_epoch: Option<i64>,
    /// The epoch of the binding that its host has given up for a move: that host never starts the VM under it again. Written by the
    /// host's agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub released_epoch: Option<i64>,
    /// The host that the VM has left, or that is lost, as long as the present host does not have the variables of its firmware and the memory of
    /// its TPM: that fetches them from there, or from the copy in the shared pool of the boot disk, and does not start the VM before. Absent for
    /// a machine without either.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub former_host: Option<String>,
    /// The move of the running guest to another host, until the VM is bound there. Written by the controllers and by its host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub migration: Option<Box<VMMigration>>,
    /// The last refusal by a host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<Box<HostRefusal>>,
    /// berth's own identity of this machine on disk; survives a restore and a move of the control plane. Decided at bind.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "instanceID")]
    pub instance_id: Option<String>,
    /// The highest level of x86-64 that all hosts have where the VM could be placed when it was bound: with KVM, the CPU model of a VM that
    /// declares none, pinned at its first start. Absent: none is common to them, or none of them reports one. Written by the scheduler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub cpu_baseline: Option<String>,
    /// Addresses and MACs, decided once at bind, one entry for each interface of the spec.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::exact::list")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    #[schemars(length(max = 256))]
    pub interfaces: Vec<InterfaceStatus>,
    /// The network configuration that the guest gets for each interface, as it is declared now: addresses, routers, name servers, routes
    /// and MTU. The result in the guest is in `guest.interfaces`; a network configuration in `bootstrap` replaces it.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::exact::list")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    #[schemars(length(max = 256))]
    pub network_config: Vec<InterfaceConfig>,
    /// The addresses that the running guest was seen to send from within two hours, on Networks whose addresses others give out
    /// (`External`), of that family. Its host reads them from ARP and neighbour discovery, also without a guest agent. The guest claims
    /// them: nothing has checked that they are its own, except for `leasedAddress`, which the network's DHCP server gave it. On Networks
    /// with `ipv6PrivacyAddresses` they are the IPv6 addresses of the prefix that the guest has claimed, which no other interface has.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::exact::list")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    #[schemars(length(max = 256))]
    pub observed_addresses: Vec<ObservedAddresses>,
    /// The private address of the first interface: the IPv4 address, or in a Network without IPv4 the IPv6 address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub private_address: Option<String>,
    /// The first public IPv4 address that leads to this VM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub public_address: Option<String>,
    /// The first public IPv6 address that leads to this VM.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "publicIPv6Address")]
    #[schemars(length(max = 39))]
    pub public_ipv6_address: Option<String>,
    /// The ports of public addresses that lead to this VM, from the `ports` of PublicIPs that name it as a target. Written by the
    /// controllers.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::exact::list")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    #[schemars(length(max = 256))]
    pub public_ports: Vec<PublicPort>,
    /// The hardware the VM has now, decided at its first start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hardware: Option<Hardware>,
    /// The CPU time that the running VM may use and gets, read back from its control group. Absent where neither differs from the
    /// defaults: no limit, weight 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_time: Option<CpuTime>,
    /// The CPUs of its host that the running VM has for itself.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "dedicatedCPUs")]
    pub dedicated_cpus: Option<Box<DedicatedCpus>>,
    /// The names of what takes effect at the next power cycle: `class`, `cpus`, `maxCpus`, `memory`, `maxMemory`, `hugePages`, `firmware`,
    /// `secureBootKeys`, `tpm`, `cpuTopology`, `numaNodes`, `dedicatedCpuPlacement`, `isolateEmulatorThread`, `ioThreadsPolicy`, `cpuModel`, `machineType`, `guestOS`, `watchdog`,
    /// `serialNumber`, `graphics`, `resolution`, `keyboardLayout`, `sound`, `serialPorts`, `vsock`, `bootOrder`, `uuid`, `pciDevices`, `usbDevices`, `vgpus`, `shares`, `scratchDisk`, `qemuOptions` of its class, `disks[NAME]` of
    /// another boot disk, bus or `readOnly`, `cdroms[NAME]`, `networkInterfaces[NAME]`, `restore`, `placement` (it moves to another host). Empty while the VM does not run, and while its host is
    /// too small to start it again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 128)))]
    pub pending_power_cycle: Vec<String>,
    /// Every disk that is attached or should be.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::exact::list")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub disks: Vec<DiskAttachmentStatus>,
    /// The CD-ROM drives that the running VM has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    #[schemars(length(max = 4))]
    pub cdroms: Vec<CdromStatus>,
    /// The values of its class that a VM with `classPolicy` `Pin` keeps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned_class: Option<Box<PinnedClass>>,
    /// The PCI devices of its host that the running VM has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub pci_devices: Vec<PciDeviceStatus>,
    /// The USB devices of its host that the running VM has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub usb_devices: Vec<UsbDeviceStatus>,
    /// The vGPUs of its host that the running VM has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub vgpus: Vec<VgpuStatus>,
    /// Facts that the guest reports about itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest: Option<GuestStatus>,
    /// The users of the guest whose SSH keys or passwords are declared, and those whose keys of berth are still to be removed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    #[schemars(length(max = 32))]
    pub guest_users: Vec<GuestUserStatus>,
    /// The package of its guest agent. Absent without a policy for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest_agent: Option<Box<GuestAgentStatus>>,
    /// The QEMU process, while there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessStatus>,
    /// The address at which the VM's host serves its consoles to `berth console`, `berth logs`, `berth vnc` and `berth screenshot`,
    /// while the host does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub console: Option<ConsoleAddress>,
    /// The number of restarts after the guest ended by itself.
    #[serde(default)]
    pub restarts: i64,
    /// The last time that the guest ended by itself, also after it was started again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_end: Option<Box<GuestEnd>>,
    /// The `restartToken` of the last restart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart_token: Option<String>,
    /// The last restore of its disks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restored_from: Option<Box<VMRestored>>,
    /// The snapshots of this VM that are taken, the oldest first: at most the last 64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    #[schemars(length(max = MOST_LISTED_SNAPSHOTS))]
    pub snapshots: Vec<SnapshotOfVM>,
    /// The snapshot that its `preStop` hook waits for. The controllers create it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_snapshot: Option<Box<StopSnapshot>>,
    /// The space that it takes on its host: measured every ten minutes and rounded up. Absent before it is measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<Box<VMStorage>>,
    /// The long-running operation that its host carries out for it. Absent: there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<Box<VMOperation>>,
    /// The last time that a change of `hardware` (without `vsockCID`) was applied to it, while it ran or at a power cycle, or, while it ran,
    /// of `cpuTime`, of the disks that it declares, or of `inserted` of a CD-ROM drive. Absent: none was since its first start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::Time>")]
    pub last_reconfigured: Option<Timestamp>,
    /// Facts about its QEMU process, read once after the start of each, by name: `qemuVersion`, `accelerator`, `diskIO` (QEMU's engines for
    /// the I/O of the disks that it was started with), `vhostNet` (whether the host's kernel moves the packets of network cards),
    /// `cgroup`. Further names can come with any version. Empty while there is no process.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(transform = crate::vm::operation::bounded_facts)]
    pub facts: BTreeMap<String, String>,
}

/// The space that a VM takes on its host, as quantities.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct VMStorage {
    /// The sizes of its disks together: the most that their files may take.
    #[schemars(length(max = 32))]
    pub provisioned: String,
    /// The space that the files of its disks take, without the images and the snapshots that they are based on.
    #[schemars(length(max = 32))]
    pub disks: String,
    /// The space that the files of the snapshots of its disks take, with the memory that they keep.
    #[schemars(length(max = 32))]
    pub snapshots: String,
    /// The space that its other files take: the memory of a suspended guest, firmware variables, the TPM, logs and bootstrap data.
    #[schemars(length(max = 32))]
    pub files: String,
}

/// A host's refusal of a VM that was bound to it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostRefusal {
    /// The Host.
    pub host: String,
    /// The epoch of the binding it refused.
    pub epoch: i64,
    /// The reason, for people.
    pub message: String,
    /// The time at which the scheduler revoked the binding. For a while after that the scheduler does not choose the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::Time>")]
    pub time: Option<Timestamp>,
}

impl VMStatus {
    /// Whether the host it is bound to has admitted it: then that host may have created something for it, and only that
    /// host knows whether it runs.
    pub fn is_admitted(&self) -> bool {
        let Some(binding) = &self.binding else { return false };
        // Hardware and process of a VM that has moved are those on its former host.
        if self.released_epoch.is_some_and(|left| left < binding.epoch) {
            return self.admitted_epoch == Some(binding.epoch);
        }
        // A VM that ran was admitted, also by an agent that did not record it.
        self.admitted_epoch == Some(binding.epoch) || self.hardware.is_some() || self.process.is_some()
    }

    /// The highest epoch under which it can no longer be admitted: its binding was revoked, or it has a later one. It never
    /// decreases.
    pub fn spent_epoch(&self) -> i64 {
        let before = self.binding.as_ref().map_or(0, |b| b.epoch - 1);
        let refused =
            self.refusal.as_ref().filter(|r| self.binding.as_ref().is_none_or(|b| r.epoch < b.epoch));
        refused.map_or(0, |r| r.epoch).max(before)
    }

    /// The refusal of the host it is bound to.
    pub fn refused(&self) -> Option<&HostRefusal> {
        let binding = self.binding.as_ref().filter(|_| !self.is_admitted())?;
        self.refusal.as_deref().filter(|r| r.host == binding.host && r.epoch == binding.epoch)
    }
}

/// The hardware a VM has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Hardware {
    /// The VMClass that was named at the start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// Virtual CPUs.
    pub cpus: i64,
    /// The CPUs up to which it can grow while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_cpus: Option<i64>,
    /// Whether each CPU has a CPU of the host for itself; absent: no.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dedicated_cpu_placement: Option<bool>,
    /// Whether QEMU's other threads have one, too; absent: no.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolate_emulator_thread: Option<bool>,
    /// Guest memory, with what the guest has plugged in.
    pub memory: String,
    /// The memory up to which it can grow while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_memory: Option<String>,
    /// The memory that its host keeps for it; absent: all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub memory_reservation: Option<String>,
    /// The huge pages that guest memory consists of; absent: ordinary pages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub huge_pages: Option<HugePages>,
    /// `BIOS` or `UEFI`.
    pub firmware: String,
    /// Whether it has a TPM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tpm: Option<bool>,
    /// QEMU's machine type, pinned at the first start.
    pub machine_type: String,
    /// The declared CPU model or level, or else the level, or QEMU's model, that was pinned at the first start.
    pub cpu_model: String,
    /// The arrangement of the CPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_topology: Option<CpuTopology>,
    /// The NUMA nodes that the guest sees; absent: one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa_nodes: Option<i64>,
    /// The guest's screen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub graphics: Option<Graphics>,
    /// `kvm` or `tcg`.
    pub accelerator: String,
    /// The SMBIOS UUID.
    pub uuid: String,
    /// The guest's operating system, if it is not `Linux`.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "guestOS")]
    pub guest_os: Option<GuestOS>,
    /// The watchdog's action, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watchdog: Option<Watchdog>,
    /// The SMBIOS serial number, if one is declared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub serial_number: Option<String>,
    /// The number of its serial ports; absent: one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial_ports: Option<i64>,
    /// The context id (CID) of its vsock device on its host, if it has one. It can be another one after each start and resume.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "vsockCID")]
    #[schemars(range(min = 3, max = 2147483647))]
    pub vsock_cid: Option<i64>,
    /// The size of its scratch disk, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub scratch_disk: Option<String>,
    /// The places of the disks that the VM declares, kept over power cycles.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::exact::list")]
    #[schemars(length(max = 32))]
    pub disk_places: Vec<DiskPlace>,
    /// The places of the network cards, kept over power cycles.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::exact::list")]
    #[schemars(length(max = 16))]
    pub interface_places: Vec<InterfacePlace>,
}

/// The place of a disk in the guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct DiskPlace {
    /// The name of the disk in the spec.
    #[schemars(length(max = 63))]
    pub name: String,
    /// The controller that it is attached to.
    pub bus: DiskBus,
    /// The SCSI target, the number of the PCI function, or the SATA port.
    #[schemars(range(min = 0, max = 255))]
    pub number: i64,
}

/// The place of a network card in the guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct InterfacePlace {
    /// The name of the interface in the spec.
    #[schemars(length(max = 63))]
    pub name: String,
    /// The number of the PCI slot, or of the PCI Express port.
    #[schemars(range(min = 0, max = 255))]
    pub slot: i64,
    /// Whether it is in a PCI Express port, where it can be plugged in and out while the VM runs.
    #[serde(default)]
    pub in_port: bool,
    /// `Off`: QEMU moves the packets of the card that the machine has now, as its interface declared at the card's start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acceleration: Option<Acceleration>,
}

impl Hardware {
    /// The capacity of its host that it takes; none if the memory is no quantity.
    #[must_use]
    pub fn taken(&self) -> Option<SizeTaken> {
        let bytes = Quantity(self.memory.clone()).bytes().ok()?;
        let reserved = self.memory_reservation.clone().and_then(|reserved| Quantity(reserved).bytes().ok());
        let taken = SizeTaken::of(self.cpus, bytes, self.huge_pages.unwrap_or_default());
        let taken = taken.with_reservation(reserved);
        Some(match self.dedicated_cpu_placement {
            Some(true) => taken.with_dedicated_cpus(self.isolate_emulator_thread.unwrap_or_default()),
            _ => taken,
        })
    }
}

/// The CPUs of a host that a VM has for itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct DedicatedCpus {
    /// The number of the host's CPU for each CPU of the VM, in the order of their numbers.
    #[schemars(length(max = 128))]
    pub cpus: Vec<i64>,
    /// That for QEMU's other threads; absent: they run on the CPUs that VMs share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub emulator_thread: Option<i64>,
    /// The NUMA node of all of them; absent: they are of several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<i64>,
    /// The NUMA nodes that the guest sees, in the order of their numbers; absent: it sees one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub guest_nodes: Vec<GuestNumaNode>,
}

/// A NUMA node of a guest on dedicated CPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct GuestNumaNode {
    /// The numbers of the host's CPUs for those of the node.
    #[schemars(length(max = 128))]
    pub cpus: Vec<i64>,
    /// The NUMA node of the host that all of them are of, and that its memory is preferably from; absent: they are of several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<i64>,
}

/// The CPU time of a running VM, as its host enforces it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct CpuTime {
    /// The CPUs whose time it may use at most; absent: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 8))]
    pub limit: Option<String>,
    /// Its share when CPU time is scarce.
    pub weight: i64,
}

/// A disk of a VM as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct DiskAttachmentStatus {
    /// The Disk's name.
    pub name: String,
    /// The HotswapDiskAttachment it is attached by, if by one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attachment: Option<String>,
    /// Whether the running VM has it.
    pub attached: bool,
    /// The serial number the guest sees.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// The device in the guest, as reported by the guest agent, or else the stable path by serial.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// The source of the data that the Disk was created with: `Image`, `Disk`, `Snapshot`, `Backup`, `File` (one of the host that was
    /// taken over), or `Blank`. Absent until the Disk has a host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<DataOrigin>,
    /// Its size, as a quantity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub size: Option<String>,
    /// The space that its file takes on the host, as the Disk reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub used: Option<String>,
    /// How its host caches the attached disk: `none` (direct I/O) or `writeback` (the host's page cache).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub cache: Option<String>,
    /// Whether its data is encrypted on the host.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub encrypted: bool,
    /// The reason why it is not attached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// A CD-ROM drive of a VM as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct CdromStatus {
    /// The drive's name.
    #[schemars(length(max = 63))]
    pub name: String,
    /// Whether there is a medium in it.
    pub inserted: bool,
    /// Whether its tray is open: the guest has ejected the medium, and does not see it until the tray is closed.
    pub tray_open: bool,
}

/// A VM's QEMU process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProcessStatus {
    /// The process id on the host.
    pub pid: i64,
    /// The time of its start.
    #[schemars(with = "k8s_openapi::apimachinery::pkg::apis::meta::v1::Time")]
    pub started_at: Timestamp,
}
