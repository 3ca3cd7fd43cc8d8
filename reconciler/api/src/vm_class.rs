//! VMClass: a size and hardware profile.

use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use crate::{
    Architecture, Conditions, CpuAmount, CpuTopology, DiskLimits, Firmware, GuestOS, HugePages,
    IoThreadsPolicy, ObjectUser, PciDevices, QemuOption, Quantity, ScratchDisk, UsbDevices, Vgpus,
    hardware::NicModel,
};

/// A size and hardware profile that many VMs share.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "berth.dev",
    version = "v1alpha1",
    kind = "VMClass",
    plural = "vmclasses",
    singular = "vmclass",
    shortname = "vmc",
    namespaced,
    status = "VMClassStatus",
    derive = "PartialEq",
    category = "berth",
    doc = "A size and hardware profile of VMs.",
    printcolumn(name = "CPUs", type_ = "integer", json_path = ".spec.cpus"),
    printcolumn(name = "Memory", type_ = "string", json_path = ".spec.memory"),
    printcolumn(name = "Firmware", type_ = "string", json_path = ".spec.firmware"),
    printcolumn(name = "Ready", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "Reason", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].reason"#),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Message", type_ = "string", priority = 1, json_path = r#".status.conditions[?(@.type=="Ready")].message"#),
    validation = Rule::new("self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')").message("metadata.name must be a DNS label: lower-case letters, digits and '-', at most 63 characters")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.memory) || !isQuantity(self.memory) || quantity(self.memory).compareTo(quantity('16Mi')) >= 0").message("memory must be at least 16Mi: the firmware needs some of it, and no kernel boots with the rest of less").field_path(".memory"),
    validation = Rule::new("!has(self.maxMemory) || !isQuantity(self.maxMemory) || quantity(self.maxMemory).compareTo(quantity('16Mi')) >= 0").message("maxMemory must be at least 16Mi, the least memory of a VM").field_path(".maxMemory"),
    validation = Rule::new("!has(self.maxMemory) || !has(self.memory) || !isQuantity(self.maxMemory) || !isQuantity(self.memory) || quantity(self.maxMemory).compareTo(quantity(self.memory)) >= 0").message("maxMemory must be at least memory").field_path(".maxMemory"),
    validation = Rule::new("!has(self.memoryReservation) || !isQuantity(self.memoryReservation) || quantity(self.memoryReservation).compareTo(quantity('16Mi')) >= 0").message("memoryReservation must be at least 16Mi, the least memory of a VM").field_path(".memoryReservation"),
    validation = Rule::new("!has(self.memoryReservation) || !has(self.memory) || !isQuantity(self.memoryReservation) || !isQuantity(self.memory) || quantity(self.memoryReservation).compareTo(quantity(self.memory)) <= 0").message("memoryReservation must be at most memory").field_path(".memoryReservation"),
    validation = Rule::new("!has(self.memoryReservation) || ((!has(self.hugePages) || self.hugePages == 'None') && (!has(self.dedicatedCpuPlacement) || !self.dedicatedCpuPlacement))").message("memoryReservation excludes hugePages and dedicatedCpuPlacement, with which all of the memory is kept for the VM").field_path(".memoryReservation"),
    validation = Rule::new("!has(self.memoryReservation) || ((!has(self.pciDevices) || self.pciDevices.size() == 0) && (!has(self.vgpus) || self.vgpus.size() == 0))").message("memoryReservation excludes pciDevices and vgpus, which use the guest's memory themselves: all of it is kept for the VM").field_path(".memoryReservation"),
    validation = Rule::new("!has(self.hugePages) || self.hugePages == 'None' || !has(self.memory) || !isQuantity(self.memory) || int(quantity(self.memory).asApproximateFloat()) % (self.hugePages == '1Gi' ? 1073741824 : 2097152) == 0").message("memory must be a multiple of hugePages, the size of its pages").field_path(".memory"),
    validation = Rule::new("!has(self.hugePages) || self.hugePages == 'None' || !has(self.maxMemory)").message("hugePages and maxMemory exclude each other: memory in huge pages is allocated at the start").field_path(".hugePages"),
    validation = Rule::new("!has(self.maxCpus) || self.maxCpus >= self.cpus").message("maxCpus must be at least cpus").field_path(".maxCpus"),
    validation = Rule::new("!has(self.dedicatedCpuPlacement) || !self.dedicatedCpuPlacement || !has(self.maxCpus)").message("dedicatedCpuPlacement and maxCpus exclude each other: CPUs of the host are given at the start").field_path(".dedicatedCpuPlacement"),
    validation = Rule::new("!has(self.isolateEmulatorThread) || !self.isolateEmulatorThread || (has(self.dedicatedCpuPlacement) && self.dedicatedCpuPlacement)").message("isolateEmulatorThread needs dedicatedCpuPlacement").field_path(".isolateEmulatorThread"),
    validation = Rule::new("!has(self.numaNodes) || self.numaNodes <= 1 || (!has(self.maxCpus) && !has(self.maxMemory))").message("numaNodes excludes maxCpus and maxMemory: what is plugged in would be of one node").field_path(".numaNodes"),
    validation = Rule::new("!has(self.numaNodes) || self.numaNodes <= 1 || self.cpus % self.numaNodes == 0").message("cpus must be a multiple of numaNodes").field_path(".numaNodes"),
    validation = Rule::new("!has(self.numaNodes) || self.numaNodes <= 1 || !has(self.cpuTopology) || self.cpuTopology.sockets % self.numaNodes == 0 || (self.numaNodes % self.cpuTopology.sockets == 0 && self.cpuTopology.cores % (self.numaNodes / self.cpuTopology.sockets) == 0)").message("each of numaNodes must have whole sockets, or whole cores of one socket").field_path(".numaNodes"),
    validation = Rule::new("!has(self.numaNodes) || self.numaNodes <= 1 || !has(self.memory) || !isQuantity(self.memory) || int(quantity(self.memory).asApproximateFloat()) % (self.numaNodes * (!has(self.hugePages) || self.hugePages == 'None' ? 1048576 : self.hugePages == '1Gi' ? 1073741824 : 2097152)) == 0").message("memory must be a multiple of numaNodes times 1Mi, or times the size of its huge pages").field_path(".numaNodes"),
    validation = Rule::new("!has(self.maxCpus) || !has(self.cpuTopology)").message("maxCpus and cpuTopology exclude each other: CPUs that are plugged in are cores of one socket").field_path(".maxCpus"),
    validation = Rule::new("!has(self.cpuReservation) || !isQuantity(self.cpuReservation) || quantity(self.cpuReservation).asApproximateFloat() <= double(self.cpus)").message("cpuReservation must be at most cpus").field_path(".cpuReservation"),
    validation = Rule::new("!has(self.cpuReservation) || !has(self.cpuLimit) || !isQuantity(self.cpuReservation) || !isQuantity(self.cpuLimit) || quantity(self.cpuReservation).compareTo(quantity(self.cpuLimit)) <= 0").message("cpuReservation must be at most cpuLimit").field_path(".cpuReservation"),
    validation = Rule::new("(has(self.architecture) ? self.architecture : 'x86_64') == (has(oldSelf.architecture) ? oldSelf.architecture : 'x86_64')").message("architecture cannot change: create another VMClass").field_path(".architecture"),
    validation = Rule::new("!has(self.architecture) || self.architecture != 'aarch64' || !has(self.firmware) || self.firmware == 'UEFI'").message("machines of architecture aarch64 have firmware UEFI only").field_path(".firmware"),
    validation = Rule::new("!has(self.architecture) || self.architecture != 'aarch64' || !has(self.guestOS) || self.guestOS != 'Windows'").message("Windows guests have architecture x86_64 only").field_path(".guestOS"),
    validation = Rule::new("!has(self.architecture) || self.architecture != 'aarch64' || !has(self.maxCpus) || self.maxCpus == self.cpus").message("machines of architecture aarch64 have no places for more CPUs: set cpus alone").field_path(".maxCpus"),
    validation = Rule::new("!has(self.pciDevices) || self.pciDevices.map(d, has(d.count) ? d.count : 1).sum() <= 8").message("a VM can have at most 8 PCI devices").field_path(".pciDevices"),
    validation = Rule::new("!has(self.usbDevices) || self.usbDevices.map(d, has(d.count) ? d.count : 1).sum() <= 8").message("a VM can have at most 8 USB devices").field_path(".usbDevices"),
    validation = Rule::new("!has(self.vgpus) || self.vgpus.map(d, has(d.count) ? d.count : 1).sum() <= 8").message("a VM can have at most 8 vGPUs").field_path(".vgpus"),
    validation = Rule::new("!has(self.cpuTopology) || self.cpuTopology.sockets * self.cpuTopology.cores * self.cpuTopology.threads == self.cpus").message("sockets * cores * threads must equal cpus").field_path(".cpuTopology")
)]
pub struct VMClassSpec {
    /// Virtual CPUs, 1 to 128. Up to `maxCpus` running VMs get more at once; any other change reaches a VM at its next power
    /// cycle.
    #[schemars(range(min = 1, max = 128))]
    pub cpus: i64,
    /// The CPUs up to which a running VM can grow, 1 to 128 and at least `cpus`: within it, more `cpus` are plugged in at once.
    /// Excludes `cpuTopology`. Default: none, and CPUs are added at the next power cycle. A change reaches a VM at
    /// its next power cycle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 128))]
    pub max_cpus: Option<i64>,
    /// Guest memory, for example `512Mi`. At least 16Mi. Default: 2Gi for each CPU of the VM. With `maxMemory` running
    /// guests get or give back memory at once; otherwise a change reaches a VM at its next power cycle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Quantity>,
    /// The memory up to which a running guest can grow, for example `16Gi`, and at least `memory`: within it, another `memory` is
    /// plugged in, or out, at once (virtio-mem). Default: none, and memory is changed at the next power cycle. A change reaches a VM
    /// at its next power cycle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_memory: Option<Quantity>,
    /// The memory that its host keeps for the VM, for example `1Gi`: at least 16Mi and at most `memory`. A host takes VMs as long as what is
    /// kept for them fits; when it is short of memory, guests give back what they have above it, by their balloons. Excludes `hugePages`,
    /// `dedicatedCpuPlacement`, `pciDevices` and `vgpus`, with which all of the memory is kept. Default: all of the memory. Applied live.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_reservation: Option<Quantity>,
    /// The huge pages of its host that guest memory consists of: `2Mi`, `1Gi`, or `None` for ordinary pages. Guest memory must be a
    /// multiple of the page size, and `maxMemory` is excluded. The VM is placed on a host that has enough of these pages
    /// (`status.hugePages` of the Host), which its administrator reserves. Default `None`. A change reaches a VM at its next power cycle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub huge_pages: Option<HugePages>,
    /// The arrangement of the CPUs that the guest sees: `sockets` × `cores` × `threads` must equal `cpus`. Default: one
    /// socket with `cpus` cores, or a socket for each of `numaNodes`. A change reaches a VM at its next power cycle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_topology: Option<CpuTopology>,
    /// The NUMA nodes that the guest sees, 1 to 8. CPUs and memory are divided evenly among them: each has whole sockets, or whole cores of one
    /// socket; without `cpuTopology` it is a socket. With `dedicatedCpuPlacement` the CPUs of each, and its memory, are of one NUMA node of the
    /// host where possible. More than 1 excludes `maxCpus` and `maxMemory`. Default 1. A change reaches a VM at its next power cycle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 8))]
    pub numa_nodes: Option<i64>,
    /// The CPU time that the VM may use at most, in CPUs of its host, for example `1.5`: from 0.01 to 128, with at most three decimal
    /// places. Default: as much as its CPUs can use. Applied live.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_limit: Option<CpuAmount>,
    /// Its share of CPU time when the host has too little for all of its VMs, in proportion to the others': 1 to 10,000. Default: 100.
    /// Applied live.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000))]
    pub cpu_weight: Option<i64>,
    /// The CPU time that its host keeps for the VM, in CPUs of the host, for example `0.5`, and at most `cpus`: a host takes VMs as
    /// long as their reservations fit into its real CPUs, and gives a VM at least the weight of its reservation. Default: none. Applied live.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_reservation: Option<CpuAmount>,
    /// Whether each CPU of the VM has a CPU of its host for itself (CPU pinning), on which no other VM runs. The VM is placed on a host
    /// that has enough of them (`status.dedicatedCPUs` of the Host), which its administrator declares with `--dedicated-cpus`. Excludes
    /// `maxCpus`. Default false. A change reaches a VM at its next power cycle.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dedicated_cpu_placement: bool,
    /// Whether QEMU's other threads, which serve disks and the rest of the emulated hardware, have one more CPU of the host for themselves.
    /// Needs `dedicatedCpuPlacement`. Default false: they run on the CPUs that VMs share. A change reaches a VM at its next power cycle.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub isolate_emulator_thread: bool,
    /// The threads of QEMU that serve the disks: `Shared`, one for all disks on `virtio-scsi` and `virtio-blk`, or `PerDisk`, one more for
    /// each disk on `virtio-blk`. Disks that are busy at the same time then use several CPUs of the host. Default: `Shared`. A change reaches a
    /// VM at its next power cycle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io_threads_policy: Option<IoThreadsPolicy>,
    /// The architecture of the CPUs: `x86_64` or `aarch64`. A VM is placed on a host that has such processors, or that emulates them
    /// (`status.architectures` of the Host). Machines of `aarch64` have firmware `UEFI` only, and neither `maxCpus` nor `guestOS`
    /// `Windows`. Default: `x86_64`. It cannot change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub architecture: Option<Architecture>,
    /// The CPU model that the guest sees: a level of the x86-64 architecture (`x86-64-v2`, `x86-64-v2-AES`, `x86-64-v3`, `x86-64-v4`),
    /// which is the same on every host, or a model of QEMU, such as `Skylake-Server`. The VM is placed on a host that has all of its
    /// features (`status.cpuModels` of the Host). `host` is all that the processor of its host has. Default: the highest level that all hosts have
    /// where the VM may be placed, decided at its first start and kept for its life; without KVM, all that QEMU emulates. A change takes effect at
    /// the next power cycle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64), regex(pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"))]
    pub cpu_model: Option<String>,
    /// The guest's operating system, as far as its hardware depends on it: `Linux`, also for BSD and others, or `Windows`, with a clock in
    /// local time, no HPET and, with KVM, Hyper-V's interfaces. Default: that of the image that the boot
    /// disk is made from, or `Linux`. A change takes effect at the next power cycle.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "guestOS")]
    pub guest_os: Option<GuestOS>,
    /// `UEFI` (default), `UEFISecureBoot` or `BIOS`. With Secure Boot the firmware starts only boot loaders that are signed
    /// with Microsoft's keys, as those of the usual distributions and Windows are. A change reaches a VM at its next power
    /// cycle.
    #[serde(default)]
    pub firmware: Firmware,
    /// Whether guests have a TPM 2.0, which Windows 11 requires and which disk encryption can keep its keys in. Such a VM is placed
    /// on a host with the program `swtpm` only. Default false. A change reaches a VM at its next power cycle.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tpm: bool,
    /// Settings of QEMU that have no attribute of their own, keyed by `name`, at most 32. Only properties of a fixed list can be set; none
    /// of them opens a file or a socket, or runs a program. With a value that QEMU refuses, a VM does not start, and `Ready` has QEMU's message.
    /// Default: none. A change reaches a VM at its next power cycle.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    #[schemars(length(max = 32))]
    pub qemu_options: Vec<QemuOption>,
    /// A temporary disk on the host of each VM, with the serial number `scratch`: it is empty at each start of the machine, and its data is gone when
    /// the machine ends. A reboot of the guest and `power: Suspended` keep it. It is in no snapshot and no backup, and goes to no other host.
    /// A VM that declares `scratchDisk` has its own instead. Default: none. A change reaches a VM at its next power cycle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scratch_disk: Option<Box<ScratchDisk>>,
    /// Ceilings for the operations and bandwidth of each disk of its VMs that has no `limits` itself. Disks that several VMs can use at a time
    /// (`access`) have those of their own only. Default: none. Applied live.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_limits: Option<Box<DiskLimits>>,
    /// The model of the network interfaces that declare no `model` themselves: `virtio`, `e1000`, `e1000e` or `rtl8139`. Default: `virtio`. A
    /// change reaches a VM at its next power cycle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_interface_model: Option<NicModel>,
    /// PCI devices of the host for each VM that declares no `pciDevices` itself, keyed by `name`, at most 8 in total. Default: none. A
    /// change reaches a VM at its next power cycle.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    #[schemars(length(max = 8))]
    pub pci_devices: Vec<PciDevices>,
    /// USB devices of the host for each VM that declares no `usbDevices` itself, keyed by `name`, at most 8 in total. Default: none. A
    /// change reaches a VM at its next power cycle.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    #[schemars(length(max = 8))]
    pub usb_devices: Vec<UsbDevices>,
    /// vGPUs (mediated devices) for each VM that declares no `vgpus` itself, keyed by `name`, at most 8 in total. Default: none. A change
    /// reaches a VM at its next power cycle.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    #[schemars(length(max = 8))]
    pub vgpus: Vec<Vgpus>,
}

/// The observed state of a VMClass.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct VMClassStatus {
    /// The generation that these conditions describe; -1 before the first report.
    #[serde(default = "crate::condition::never_observed")]
    pub observed_generation: i64,
    /// `Ready`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::condition::schema")]
    pub conditions: Conditions,
    /// At most four of the VMs that name it. A deleted VMClass stays until nothing uses it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub used_by: Vec<ObjectUser>,
}
