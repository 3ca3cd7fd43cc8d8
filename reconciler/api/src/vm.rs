//! VM: a machine.

mod affinity;
mod bootstrap;
mod class_policy;
mod devices;
mod disk_use;
mod disks;
mod dscp;
mod firmware_state;
mod guest_agent;
mod guest_user;
mod interface;
mod migration;
mod moves;
mod network_config;
mod observed_addresses;
mod operation;
mod placement;
mod restore;
mod secure_boot_keys;
mod status;
mod stop;
mod stop_snapshot;
mod templates;

use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

pub use crate::console::ConsoleAddress;
pub use crate::guest::{GuestEnd, GuestFilesystem, GuestInterface, GuestStatus};
pub use crate::hardware::NicModel;
pub use affinity::VMAffinity;
pub use bootstrap::{Bootstrap, GuestAgentPolicy};
pub use class_policy::{ClassPolicy, PinnedClass};
pub use devices::{declared_shares, taken_devices};
pub use disk_use::disk_obstacle;
pub use disks::{Cdrom, DiskBus, VMDisk};
pub use dscp::DscpClass;
pub use firmware_state::ACCEPT_FIRMWARE_LOSS_ANNOTATION;
pub use guest_agent::{GuestAgent, GuestAgentStatus, PackagePolicy};
pub use guest_user::{GuestUser, GuestUserStatus};
pub use interface::{Acceleration, InterfaceLimits, LinkState, NetworkInterface};
pub use migration::{MigrationPhase, VMMigration};
pub use moves::{MOVE_ANNOTATION, MovePolicy, RequestedMove};
pub use network_config::{ConfiguredRoute, InterfaceConfig};
pub use observed_addresses::ObservedAddresses;
pub use operation::{LONGEST_FACT, MOST_FACTS, VMOperation, VMOperationName};
pub use placement::Placement;
pub use restore::{MOST_LISTED_SNAPSHOTS, SnapshotOfVM, VMRestore, VMRestored};
pub use secure_boot_keys::SecureBootKeys;
pub use status::{
    CdromStatus, CpuTime, DedicatedCpus, DiskAttachmentStatus, DiskPlace, GuestNumaNode, Hardware,
    HostRefusal, InterfacePlace, InterfaceStatus, ProcessStatus, VMStatus, VMStorage,
};
pub use stop::{RestartPolicy, Stop, StopMode};
pub use stop_snapshot::{STOPPED_AT_ANNOTATION, STOPPED_VM_LABEL, StopSnapshot, stop_snapshot_name};
pub use templates::{is_disk_of, template_obstacle};

use crate::{
    Architecture, BootSource, CpuAmount, CpuTopology, Firmware, Graphics, GuestOS, Hooks, HugePages,
    IoThreadsPolicy, PciDevices, Power, Probe, Quantity, ResourceName, ScratchDisk, Share, SuspendMode,
    UsbDevices, Vgpus, Watchdog,
    hardware::{KeyboardLayout, Resolution},
};

/// A virtual machine: its size, disks, network interfaces, bootstrap data, power and placement.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "berth.dev",
    version = "v1alpha1",
    kind = "VM",
    plural = "vms",
    singular = "vm",
    namespaced,
    status = "VMStatus",
    derive = "PartialEq",
    derive = "Default",
    category = "berth",
    doc = "A virtual machine.",
    selectable = ".status.binding.host",
    selectable = ".spec.class",
    printcolumn(name = "State", type_ = "string", json_path = ".status.state"),
    printcolumn(name = "Ready", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "Reason", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].reason"#),
    printcolumn(name = "Class", type_ = "string", json_path = ".spec.class"),
    printcolumn(name = "CPUs", type_ = "integer", json_path = ".status.hardware.cpus"),
    printcolumn(name = "Memory", type_ = "string", json_path = ".status.hardware.memory"),
    printcolumn(name = "Host", type_ = "string", json_path = ".status.binding.host"),
    printcolumn(name = "IP", type_ = "string", json_path = ".status.privateAddress"),
    printcolumn(name = "Public-IP", type_ = "string", json_path = ".status.publicAddress"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Message", type_ = "string", priority = 1, json_path = r#".status.conditions[?(@.type=="Ready")].message"#),
    validation = Rule::new("self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')").message("metadata.name must be a DNS label (it is the guest's host name): lower-case letters, digits and '-', at most 63 characters"),
    validation = Rule::new("!(has(oldSelf.status) && has(oldSelf.status.state) && oldSelf.status.state == 'Suspended') || self.spec.networkInterfaces.map(n, n.name) == oldSelf.spec.networkInterfaces.map(n, n.name)").message("interfaces cannot be added or removed while the VM is suspended: its guest goes on with those that it has. Set power to Running first").field_path(".spec.networkInterfaces"),
    // A decided value may be written into the spec and left out again: the interface keeps it.
    validation = Rule::new("self.spec.networkInterfaces.all(n, oldSelf.spec.networkInterfaces.all(o, o.name != n.name || (has(n.macAddress) ? n.macAddress.lowerAscii() : '') == (has(o.macAddress) ? o.macAddress.lowerAscii() : '') || (has(oldSelf.status) && has(oldSelf.status.interfaces) && oldSelf.status.interfaces.exists(s, s.name == n.name && (has(n.macAddress) ? n.macAddress.lowerAscii() : s.macAddress) == (has(o.macAddress) ? o.macAddress.lowerAscii() : s.macAddress)))))").message("macAddress cannot change on an existing interface: give the interface another name").field_path(".spec.networkInterfaces"),
    validation = Rule::new("self.spec.networkInterfaces.all(n, oldSelf.spec.networkInterfaces.all(o, o.name != n.name || (has(n.address) ? n.address : '') == (has(o.address) ? o.address : '') || (has(oldSelf.status) && has(oldSelf.status.interfaces) && oldSelf.status.interfaces.exists(s, s.name == n.name && (has(n.address) ? n.address : s.address) == (has(o.address) ? o.address : s.address)))))").message("address cannot change on an existing interface: give the interface another name").field_path(".spec.networkInterfaces"),
    validation = Rule::new("!has(oldSelf.status) || !has(oldSelf.status.interfaces) || self.spec.networkInterfaces.all(n, !has(n.ipv6Address) || oldSelf.status.interfaces.all(s, s.name != n.name || !has(s.ipv6Address) || s.ipv6Address == n.ipv6Address))").message("ipv6Address cannot change on an existing interface: give the interface another name").field_path(".spec.networkInterfaces")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.class) || has(self.cpus) || has(self.cpuTopology)").message("set class or cpus: a VM without a class needs a number of CPUs").field_path(".cpus"),
    validation = Rule::new("!has(self.memory) || !isQuantity(self.memory) || quantity(self.memory).compareTo(quantity('16Mi')) >= 0").message("memory must be at least 16Mi: the firmware needs some of it, and no kernel boots with the rest of less").field_path(".memory"),
    validation = Rule::new("!has(self.cpus) || !has(self.cpuTopology) || self.cpuTopology.sockets * self.cpuTopology.cores * self.cpuTopology.threads == self.cpus").message("sockets * cores * threads must equal cpus").field_path(".cpuTopology"),
    validation = Rule::new("!has(self.maxMemory) || !isQuantity(self.maxMemory) || quantity(self.maxMemory).compareTo(quantity('16Mi')) >= 0").message("maxMemory must be at least 16Mi, the least memory of a VM").field_path(".maxMemory"),
    validation = Rule::new("!has(self.maxMemory) || !has(self.memory) || !isQuantity(self.maxMemory) || !isQuantity(self.memory) || quantity(self.maxMemory).compareTo(quantity(self.memory)) >= 0").message("maxMemory must be at least memory").field_path(".maxMemory"),
    validation = Rule::new("!has(self.memoryReservation) || !isQuantity(self.memoryReservation) || quantity(self.memoryReservation).compareTo(quantity('16Mi')) >= 0").message("memoryReservation must be at least 16Mi, the least memory of a VM").field_path(".memoryReservation"),
    validation = Rule::new("!has(self.memoryReservation) || !has(self.memory) || !isQuantity(self.memoryReservation) || !isQuantity(self.memory) || quantity(self.memoryReservation).compareTo(quantity(self.memory)) <= 0").message("memoryReservation must be at most memory").field_path(".memoryReservation"),
    validation = Rule::new("!has(self.memoryReservation) || ((!has(self.hugePages) || self.hugePages == 'None') && (!has(self.dedicatedCpuPlacement) || !self.dedicatedCpuPlacement))").message("memoryReservation excludes hugePages and dedicatedCpuPlacement, with which all of the memory is kept for the VM").field_path(".memoryReservation"),
    validation = Rule::new("!has(self.memoryReservation) || ((!has(self.pciDevices) || self.pciDevices.size() == 0) && (!has(self.vgpus) || self.vgpus.size() == 0))").message("memoryReservation excludes pciDevices and vgpus, which use the guest's memory themselves: all of it is kept for the VM").field_path(".memoryReservation"),
    validation = Rule::new("!has(self.hugePages) || self.hugePages == 'None' || !has(self.memory) || !isQuantity(self.memory) || int(quantity(self.memory).asApproximateFloat()) % (self.hugePages == '1Gi' ? 1073741824 : 2097152) == 0").message("memory must be a multiple of hugePages, the size of its pages").field_path(".memory"),
    validation = Rule::new("!has(self.hugePages) || self.hugePages == 'None' || !has(self.maxMemory)").message("hugePages and maxMemory exclude each other: memory in huge pages is allocated at the start").field_path(".hugePages"),
    validation = Rule::new("!has(self.maxCpus) || !has(self.cpus) || self.maxCpus >= self.cpus").message("maxCpus must be at least cpus").field_path(".maxCpus"),
    validation = Rule::new("!has(self.dedicatedCpuPlacement) || !self.dedicatedCpuPlacement || !has(self.maxCpus)").message("dedicatedCpuPlacement and maxCpus exclude each other: CPUs of the host are given at the start").field_path(".dedicatedCpuPlacement"),
    validation = Rule::new("!has(self.secureBootKeys) || (has(self.firmware) ? self.firmware == 'UEFISecureBoot' : has(self.class))").message("secureBootKeys needs firmware UEFISecureBoot").field_path(".secureBootKeys"),
    validation = Rule::new("!has(self.isolateEmulatorThread) || !self.isolateEmulatorThread || has(self.class) || (has(self.dedicatedCpuPlacement) && self.dedicatedCpuPlacement)").message("isolateEmulatorThread needs dedicatedCpuPlacement").field_path(".isolateEmulatorThread"),
    validation = Rule::new("!has(self.numaNodes) || self.numaNodes <= 1 || (!has(self.maxCpus) && !has(self.maxMemory))").message("numaNodes excludes maxCpus and maxMemory: what is plugged in would be of one node").field_path(".numaNodes"),
    validation = Rule::new("!has(self.numaNodes) || self.numaNodes <= 1 || !has(self.cpus) || self.cpus % self.numaNodes == 0").message("cpus must be a multiple of numaNodes").field_path(".numaNodes"),
    validation = Rule::new("!has(self.numaNodes) || self.numaNodes <= 1 || !has(self.cpuTopology) || self.cpuTopology.sockets % self.numaNodes == 0 || (self.numaNodes % self.cpuTopology.sockets == 0 && self.cpuTopology.cores % (self.numaNodes / self.cpuTopology.sockets) == 0)").message("each of numaNodes must have whole sockets, or whole cores of one socket").field_path(".numaNodes"),
    validation = Rule::new("!has(self.numaNodes) || self.numaNodes <= 1 || !has(self.memory) || !isQuantity(self.memory) || int(quantity(self.memory).asApproximateFloat()) % (self.numaNodes * (!has(self.hugePages) || self.hugePages == 'None' ? 1048576 : self.hugePages == '1Gi' ? 1073741824 : 2097152)) == 0").message("memory must be a multiple of numaNodes times 1Mi, or times the size of its huge pages").field_path(".numaNodes"),
    validation = Rule::new("!has(self.maxCpus) || !has(self.cpuTopology)").message("maxCpus and cpuTopology exclude each other: CPUs that are plugged in are cores of one socket").field_path(".maxCpus"),
    validation = Rule::new("!has(self.cpuReservation) || !isQuantity(self.cpuReservation) || !has(self.cpus) || quantity(self.cpuReservation).asApproximateFloat() <= double(self.cpus)").message("cpuReservation must be at most cpus").field_path(".cpuReservation"),
    validation = Rule::new("!has(self.cpuReservation) || !has(self.cpuLimit) || !isQuantity(self.cpuReservation) || !isQuantity(self.cpuLimit) || quantity(self.cpuReservation).compareTo(quantity(self.cpuLimit)) <= 0").message("cpuReservation must be at most cpuLimit").field_path(".cpuReservation"),
    validation = Rule::new("!has(self.livenessProbe) || !has(self.livenessProbe.successThreshold) || self.livenessProbe.successThreshold == 1").message("successThreshold of a liveness probe must be 1: after its failure the guest is restarted").field_path(".livenessProbe"),
    validation = Rule::new("!has(self.readinessProbe) || has(self.readinessProbe.exec) || self.networkInterfaces.size() > 0").message("a probe with tcpSocket or httpGet needs a network interface").field_path(".readinessProbe"),
    validation = Rule::new("!has(self.livenessProbe) || has(self.livenessProbe.exec) || self.networkInterfaces.size() > 0").message("a probe with tcpSocket or httpGet needs a network interface").field_path(".livenessProbe"),
    validation = Rule::new("!has(self.hooks) || self.networkInterfaces.size() > 0 || !(has(self.hooks.preStop) && has(self.hooks.preStop.httpGet) || has(self.hooks.postStart) && has(self.hooks.postStart.httpGet))").message("a hook with httpGet needs a network interface").field_path(".hooks"),
    validation = Rule::new("!has(self.guestAgent) || self.guestAgent.policy != 'Remove' || !has(self.guestUsers) || self.guestUsers.size() == 0").message("policy Remove of guestAgent excludes guestUsers, which the agent sets").field_path(".guestAgent"),
    validation = Rule::new("!has(self.startDelaySeconds) || self.startDelaySeconds == 0 || has(self.startOrder)").message("startDelaySeconds needs startOrder: VMs without an order are the last to start").field_path(".startDelaySeconds"),
    validation = Rule::new("!has(self.classPolicy) || self.classPolicy != 'Pin' || has(self.class)").message("classPolicy Pin needs a class").field_path(".classPolicy"),
    validation = Rule::new("self.disks.filter(d, d.boot).size() == 1").message("exactly one disk must have boot: true").field_path(".disks"),
    validation = Rule::new("self.disks.filter(d, has(d.bus) && d.bus == 'sata').size() <= 6").message("at most 6 disks can be on sata").field_path(".disks"),
    validation = Rule::new("!has(self.pciDevices) || self.pciDevices.map(d, has(d.count) ? d.count : 1).sum() <= 8").message("a VM can have at most 8 PCI devices").field_path(".pciDevices"),
    validation = Rule::new("!has(self.pciDevices) || self.pciDevices.size() == 0 || !has(self.power) || self.power != 'Suspended'").message("a VM with PCI devices of its host cannot be suspended: their state cannot be saved. Set power to Stopped").field_path(".power"),
    validation = Rule::new("!has(self.usbDevices) || self.usbDevices.map(d, has(d.count) ? d.count : 1).sum() <= 8").message("a VM can have at most 8 USB devices").field_path(".usbDevices"),
    validation = Rule::new("!has(self.usbDevices) || self.usbDevices.size() == 0 || !has(self.power) || self.power != 'Suspended'").message("a VM with USB devices of its host cannot be suspended: their state cannot be saved. Set power to Stopped").field_path(".power"),
    validation = Rule::new("!has(self.vgpus) || self.vgpus.map(d, has(d.count) ? d.count : 1).sum() <= 8").message("a VM can have at most 8 vGPUs").field_path(".vgpus"),
    validation = Rule::new("!has(self.vgpus) || self.vgpus.size() == 0 || !has(self.power) || self.power != 'Suspended'").message("a VM with vGPUs of its host cannot be suspended: their state cannot be saved. Set power to Stopped").field_path(".power"),
    validation = Rule::new("!has(self.shares) || self.shares.all(s, self.shares.filter(o, (has(o.tag) ? o.tag : o.name) == (has(s.tag) ? s.tag : s.name)).size() == 1)").message("two shares have the same tag: the guest could mount only one of them").field_path(".shares"),
    validation = Rule::new("!has(self.shares) || self.shares.size() == 0 || !has(self.power) || self.power != 'Suspended'").message("a VM with shares cannot be suspended: their state cannot be saved. Set power to Stopped").field_path(".power"),
    validation = Rule::new("!has(self.suspendMode) || self.suspendMode != 'Memory' || !has(self.architecture) || self.architecture != 'aarch64'").message("machines of architecture aarch64 have no suspension to memory: set suspendMode to Disk").field_path(".suspendMode"),
    validation = Rule::new("!has(self.suspendMode) || self.suspendMode != 'Memory' || !has(self.watchdog)").message("suspendMode Memory and watchdog exclude each other: the timer of the watchdog runs on while the guest sleeps").field_path(".suspendMode"),
    validation = Rule::new("!has(self.suspendMode) || self.suspendMode != 'Memory' || !has(self.firmware) || self.firmware != 'UEFISecureBoot'").message("the firmware of UEFISecureBoot has no suspension to memory: set suspendMode to Disk").field_path(".suspendMode"),
    validation = Rule::new("has(self.architecture) == has(oldSelf.architecture) && (!has(self.architecture) || self.architecture == oldSelf.architecture)").message("architecture cannot change: create another VM").field_path(".architecture"),
    validation = Rule::new("!has(self.architecture) || self.architecture != 'aarch64' || !has(self.firmware) || self.firmware == 'UEFI'").message("machines of architecture aarch64 have firmware UEFI only").field_path(".firmware"),
    validation = Rule::new("!has(self.architecture) || self.architecture != 'aarch64' || !has(self.guestOS) || self.guestOS != 'Windows'").message("Windows guests have architecture x86_64 only").field_path(".guestOS"),
    validation = Rule::new("!has(self.architecture) || self.architecture != 'aarch64' || !has(self.maxCpus) || (has(self.cpus) && self.maxCpus == self.cpus)").message("machines of architecture aarch64 have no places for more CPUs: set cpus alone").field_path(".maxCpus"),
    validation = Rule::new("!has(self.architecture) || self.architecture != 'aarch64' || !has(self.serialPorts) || self.serialPorts == 1").message("machines of architecture aarch64 have one serial port").field_path(".serialPorts"),
    validation = Rule::new("!has(self.architecture) || !has(self.machineType) || (self.architecture == 'aarch64') == self.machineType.startsWith('virt-')").message("machineType is of another architecture: virt-… is of aarch64, pc-q35-… of x86_64").field_path(".machineType"),
    validation = Rule::new("!has(self.resolution) || (has(self.graphics) && self.graphics == 'VGA')").message("resolution is that of a screen: set graphics to VGA").field_path(".resolution"),
    validation = Rule::new("!has(self.keyboardLayout) || (has(self.graphics) && self.graphics == 'VGA')").message("keyboardLayout is for viewers of a screen: set graphics to VGA").field_path(".keyboardLayout"),
    validation = Rule::new("!has(self.bootOrder) || self.bootOrder.all(s, self.bootOrder.filter(o, o == s).size() == 1)").message("bootOrder lists a source twice").field_path(".bootOrder"),
    validation = Rule::new("!has(self.bootOrder) || !self.bootOrder.exists(s, s == 'Network') || self.networkInterfaces.size() > 0").message("to boot from the network, a VM needs a network interface").field_path(".bootOrder"),
    validation = Rule::new("!has(self.cdroms) || self.cdroms.filter(c, has(c.bootFirst) && c.bootFirst).size() <= 1").message("at most one CD-ROM drive can have bootFirst: true").field_path(".cdroms"),
    validation = Rule::new("!has(self.cdroms) || self.cdroms.all(c, !has(c.image) || self.cdroms.filter(d, has(d.image) && d.image == c.image).size() == 1)").message("an image can be in one CD-ROM drive only").field_path(".cdroms"),
    validation = Rule::new("(has(self.placement) && has(self.placement.group) ? self.placement.group : '') == (has(oldSelf.placement) && has(oldSelf.placement.group) ? oldSelf.placement.group : '')").message("placement.group cannot change on an existing VM: replace the VM"),
    validation = Rule::new("self.networkInterfaces.all(n, !has(n.publicIP) || self.networkInterfaces.filter(m, has(m.publicIP) && m.publicIP == n.publicIP).size() == 1)").message("a publicIP can be on one interface only").field_path(".networkInterfaces"),
    validation = Rule::new("self.networkInterfaces.all(n, !has(n.publicIPv6) || self.networkInterfaces.filter(m, has(m.publicIPv6) && m.publicIPv6 == n.publicIPv6).size() == 1)").message("a publicIPv6 can be on one interface only").field_path(".networkInterfaces"),
    validation = Rule::new("self.networkInterfaces.all(n, !has(n.guestName) || self.networkInterfaces.filter(m, has(m.guestName) && m.guestName == n.guestName).size() == 1)").message("a guestName can be on one interface only").field_path(".networkInterfaces"),
    validation = Rule::new("self.networkInterfaces.all(n, !has(n.macAddress) || self.networkInterfaces.filter(m, has(m.macAddress) && m.macAddress.lowerAscii() == n.macAddress.lowerAscii()).size() == 1)").message("a macAddress can be on one interface only").field_path(".networkInterfaces"),
    validation = Rule::new("self.networkInterfaces.all(n, !has(n.address) || self.networkInterfaces.filter(m, has(m.address) && m.address == n.address && m.network == n.network).size() == 1)").message("an address of a network can be on one interface only").field_path(".networkInterfaces")
)]
pub struct VMSpec {
    /// Name of the VMClass: the size and hardware profile. Looked up in the VM's namespace, then in `berth-shared`.
    /// Default: none, and `cpus` is required. Values of the VM come before those of its class. A change takes effect at
    /// the next power cycle; until then the condition `ClassSynced` is False.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<ResourceName>,
    /// Whether later changes of the class reach the VM: `Follow` (default), or `Pin`, which keeps the values that the class had when the
    /// VM was placed, or when `Pin` was declared. `Follow` for a moment, or another class, takes the present values. Applied live.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class_policy: Option<ClassPolicy>,
    /// Virtual CPUs, 1 to 128. Default: those of the class, which must be named then. Up to `maxCpus` a running VM gets more at
    /// once; any other change takes effect at the next power cycle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 128))]
    pub cpus: Option<i64>,
    /// The CPUs up to which a running VM can grow, 1 to 128 and at least `cpus`: within it, more `cpus` are plugged in at once.
    /// Excludes `cpuTopology`. Default: none, and CPUs are added at the next power cycle. That of the class counts for a VM
    /// without `cpus` of its own. A change takes effect at the next power cycle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 128))]
    pub max_cpus: Option<i64>,
    /// Guest memory, for example `512Mi`. At least 16Mi. Default: that of the class; if neither declares it, 2Gi for
    /// each CPU. With `maxMemory` a running guest gets or gives back memory at once; otherwise a change takes effect at the next
    /// power cycle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Quantity>,
    /// The memory up to which a running guest can grow, for example `16Gi`, and at least `memory`: within it, another `memory` is
    /// plugged in, or out, at once (virtio-mem). Default: none, and memory is changed at the next power cycle. That of the class counts for
    /// a VM without `memory` of its own. A change takes effect at the next power cycle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_memory: Option<Quantity>,
    /// The memory that its host keeps for the VM, for example `1Gi`: at least 16Mi and at most `memory`. A host takes VMs as long as what is
    /// kept for them fits; when it is short of memory, guests give back what they have above it, by their balloons. Excludes `hugePages`,
    /// `dedicatedCpuPlacement`, `pciDevices` and `vgpus`, with which all of the memory is kept. Default: that of the class if `memory` is the class's, too, or all of the memory. Applied live.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_reservation: Option<Quantity>,
    /// The huge pages of its host that guest memory consists of: `2Mi`, `1Gi`, or `None` for ordinary pages. Guest memory must be a
    /// multiple of the page size, and `maxMemory` is excluded. The VM is placed on a host that has enough of these pages
    /// (`status.hugePages` of the Host), which its administrator reserves. Default: that of the class, or `None` without a class. A
    /// change takes effect at the next power cycle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub huge_pages: Option<HugePages>,
    /// `UEFI`, `UEFISecureBoot` or `BIOS`. With Secure Boot the firmware starts only boot loaders that are signed with
    /// Microsoft's keys, as those of the usual distributions and Windows are, or with `secureBootKeys`. Default: that of the class, or `UEFI`
    /// without a class. A change takes effect at the next power cycle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub firmware: Option<Firmware>,
    /// Keys of Secure Boot of your own: the firmware starts only boot loaders that are signed with them, and none that only Microsoft's
    /// keys have signed. Needs the firmware `UEFISecureBoot`. Default: none, and Microsoft's keys count. They are enrolled once for each
    /// value, at the next power cycle; the guest's other firmware variables, such as boot entries, stay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secure_boot_keys: Option<Box<SecureBootKeys>>,
    /// Whether the guest has a TPM 2.0, which Windows 11 requires and which disk encryption can keep its keys in. Its memory
    /// belongs to the VM: it is kept over power cycles, also while `tpm` is false, and removed with the VM. The VM's host needs
    /// the program `swtpm`. Default: that of the class, or false without a class. A change takes effect at the next power cycle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tpm: Option<bool>,
    /// The arrangement of the CPUs that the guest sees: `sockets` × `cores` × `threads` must equal `cpus`, which may be left
    /// out. Default: one socket with `cpus` cores, or a socket for each of `numaNodes`, or that of the class if `cpus` is the class's. A change
    /// takes effect at the next power cycle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_topology: Option<CpuTopology>,
    /// The NUMA nodes that the guest sees, 1 to 8. CPUs and memory are divided evenly among them: each has whole sockets, or whole cores of one
    /// socket; without `cpuTopology` it is a socket. With `dedicatedCpuPlacement` the CPUs of each, and its memory, are of one NUMA node of the
    /// host where possible. More than 1 excludes `maxCpus` and `maxMemory`. Default: that of the class, or 1 without a class. A change takes effect at
    /// the next power cycle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 8))]
    pub numa_nodes: Option<i64>,
    /// The CPU time that the VM may use at most, in CPUs of its host, for example `1.5`: from 0.01 to 128, with at most three decimal
    /// places. Default: that of the class, or as much as its CPUs can use. Applied live.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_limit: Option<CpuAmount>,
    /// Its share of CPU time when the host has too little for all of its VMs, in proportion to the others': 1 to 10,000. Default: that of the class, or 100.
    /// Applied live.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000))]
    pub cpu_weight: Option<i64>,
    /// The CPU time that its host keeps for the VM, in CPUs of the host, for example `0.5`, and at most `cpus`: a host takes VMs as
    /// long as their reservations fit into its real CPUs, and gives a VM at least the weight of its reservation. Default: that of the class, or none. Applied live.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_reservation: Option<CpuAmount>,
    /// Whether each CPU of the VM has a CPU of its host for itself (CPU pinning), on which no other VM runs. The VM is placed on a host
    /// that has enough of them (`status.dedicatedCPUs` of the Host), which its administrator declares with `--dedicated-cpus`. Excludes
    /// `maxCpus`. Default: that of the class, or false without a class. A change takes effect at the next power cycle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dedicated_cpu_placement: Option<bool>,
    /// Whether QEMU's other threads, which serve disks and the rest of the emulated hardware, have one more CPU of the host for themselves.
    /// Needs `dedicatedCpuPlacement`. Default: that of the class, or false without a class: they run on the CPUs that VMs share. A change
    /// takes effect at the next power cycle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolate_emulator_thread: Option<bool>,
    /// The threads of QEMU that serve the disks: `Shared`, one for all disks on `virtio-scsi` and `virtio-blk`, or `PerDisk`, one more for
    /// each disk on `virtio-blk`. Disks that are busy at the same time then use several CPUs of the host. Default: that of the class, or `Shared`. A
    /// change takes effect at the next power cycle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io_threads_policy: Option<IoThreadsPolicy>,
    /// The architecture of the CPUs: `x86_64` or `aarch64`. The VM is placed on a host that has such processors, or that emulates them
    /// (`status.architectures` of the Host). Machines of `aarch64` have firmware `UEFI` only, and neither `maxCpus`, more than one of
    /// `serialPorts`, disks on `sata` nor `guestOS` `Windows`. Default: that of the class, or `x86_64`. It cannot change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub architecture: Option<Architecture>,
    /// The CPU model that the guest sees: a level of the x86-64 architecture (`x86-64-v2`, `x86-64-v2-AES`, `x86-64-v3`, `x86-64-v4`),
    /// which is the same on every host, or a model of QEMU, such as `Skylake-Server`. The VM is placed on a host that has all of its
    /// features (`status.cpuModels` of the Host). `host` is all that the processor of its host has. Default: that of the class, or else the
    /// highest level that all hosts have where it may be placed (`status.cpuBaseline`), decided at the first start and kept for the life of the
    /// VM; without KVM, all that QEMU emulates. A change takes effect at the next power cycle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64), regex(pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"))]
    pub cpu_model: Option<String>,
    /// The guest's operating system, as far as its hardware depends on it: `Linux`, also for BSD and others, or `Windows`, with a clock in
    /// local time, no HPET and, with KVM, Hyper-V's interfaces. Default: that of the class, or else that of the
    /// image that the boot disk is made from, or `Linux`. A change takes effect at the next power cycle.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "guestOS")]
    pub guest_os: Option<GuestOS>,
    /// QEMU's machine type, with its version, such as `pc-q35-9.2`, or `virt-9.2` of `aarch64`: the chipset that the guest sees. The VM is placed on a host
    /// whose QEMU has it (`status.machineTypes` of the Host). Default: the newest of the host's QEMU at the first start, kept for the life of the VM (`status.hardware.machineType`), also when QEMU
    /// is upgraded. One that was declared is kept when it is removed. A change takes effect at the next power cycle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(max = 40),
        regex(pattern = r"^(pc-q35|virt)-[a-z]{0,16}[0-9]{1,3}(\.[0-9]{1,3}){1,2}$")
    )]
    pub machine_type: Option<String>,
    /// The guest's screen, for `berth vnc` and `berth screenshot`: `VGA`, with a keyboard and a pointer, or `None`. Every VM has a
    /// serial console in addition. A change takes effect at the next power cycle. Default `None`.
    #[serde(default)]
    pub graphics: Graphics,
    /// The size of the screen that the guest starts with, such as `1920x1080`; a guest can choose another one. Needs `graphics`. Default:
    /// the one that the firmware and the guest choose. A change takes effect at the next power cycle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::hardware::resolution_schema")]
    pub resolution: Option<Resolution>,
    /// The keyboard layout of the guest, such as `de` or `fr-ch`, for viewers of the screen that send characters and not the codes of keys.
    /// Needs `graphics`. Default: that of a US keyboard. A change takes effect at the next power cycle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::hardware::keyboard_layout_schema")]
    pub keyboard_layout: Option<KeyboardLayout>,
    /// Whether the guest has a sound card (Intel HD Audio), with an output and an input. With `graphics`, viewers of the screen that
    /// support sound play its output. Default false. A change takes effect at the next power cycle.
    #[serde(default)]
    pub sound: bool,
    /// Whether the guest has a vsock device, by which `berth ssh --vsock` and `berth port-forward --vsock` reach its programs without a
    /// network. Its context id, in `status.hardware.vsockCID`, is chosen by the host. The VM is placed on a host with `/dev/vhost-vsock`
    /// (`status.vsock` of the Host). Default false. A change takes effect at the next power cycle.
    #[serde(default)]
    pub vsock: bool,
    /// The number of serial ports that the guest has, 1 to 4: `ttyS0` or `COM1`, and so on. Each has a console of its own and a log
    /// (`berth console --port 2`, `berth logs --port 2`). Default 1. A change takes effect at the next power cycle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 4))]
    pub serial_ports: Option<i64>,
    /// The order in which the firmware looks for a system: `Disk` (the disk with `boot: true`), `Cdrom` (the drives in their order) and
    /// `Network` (PXE by the network cards, which for some firmware and models needs iPXE on the host). Those that are not listed are not
    /// tried; a drive with `bootFirst` is tried before all. Default: `Disk`, then `Cdrom`. A change takes effect at the next power cycle.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 3))]
    pub boot_order: Vec<BootSource>,
    /// The UUID that the guest sees (SMBIOS, system): for a guest that is moved here, its former one, to which licences and other
    /// identities may be bound. Default: one derived from the VM's own identity, in `status.hardware.uuid`. A change takes
    /// effect at the next power cycle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(max = 36),
        regex(pattern = r"^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$")
    )]
    pub uuid: Option<String>,
    /// A watchdog timer (i6300esb) for the guest to reset, and the action when it does not: `Reset` resets the guest; `PowerOff` ends
    /// the VM as after a crash, and `restartPolicy` decides. Default: none. A change takes effect at the next power cycle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watchdog: Option<Watchdog>,
    /// A temporary disk on the host of the VM, with the serial number `scratch`: it is empty at each start of the machine, and its data is gone when
    /// the machine ends. A reboot of the guest and `power: Suspended` keep it. It is in no snapshot and no backup, and goes to no other host.
    /// Default: that of the class. A change takes effect at the next power cycle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scratch_disk: Option<Box<ScratchDisk>>,
    /// PCI devices of the host that the guest has for itself, such as GPUs (VFIO passthrough), keyed by `name`, at most 8 in total. The VM
    /// is placed on a host that offers enough of each (`status.pciDevices` of the Host) and that no other VM has. A VM with a display
    /// controller has no `graphics`; a VM with devices is not suspended. Default: those of the class. A change takes effect at the next
    /// power cycle.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    #[schemars(length(max = 8))]
    pub pci_devices: Vec<PciDevices>,
    /// USB devices of the host that the guest has for itself, keyed by `name`, at most 8 in total. The VM is placed on a host that offers
    /// enough of each (`status.usbDevices` of the Host) and that no other VM has. A VM with devices is not suspended. Default: those of the
    /// class. A change takes effect at the next power cycle.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    #[schemars(length(max = 8))]
    pub usb_devices: Vec<UsbDevices>,
    /// vGPUs (mediated devices), parts of GPUs of the host that the guest has for itself, keyed by `name`, at most 8 in total. The VM is
    /// placed on a host that offers enough of each (`status.vgpus` of the Host) and that no other VM has. A VM with vGPUs of display
    /// controllers has no `graphics`; a VM with vGPUs is not suspended. Default: those of the class. A change takes effect at the next
    /// power cycle.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    #[schemars(length(max = 8))]
    pub vgpus: Vec<Vgpus>,
    /// Folders of its host that the guest mounts (virtiofs), keyed by `name`, at most 8. The VM is placed on a host whose administrator
    /// shares all of them (`status.shares` of the Host); the folders of two hosts with the same name are not the same folder, unless the
    /// administrator sees to it. A VM with shares is not suspended. Default: none. A change takes effect at the next power cycle.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    #[schemars(length(max = 8))]
    pub shares: Vec<Share>,
    /// The serial number that the guest sees (SMBIOS, system), 1 to 64 letters, digits, `-`, `.` and `_`. Default: the VM's
    /// `status.instanceID`. A change takes effect at the next power cycle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64), regex(pattern = r"^[A-Za-z0-9._-]+$"))]
    pub serial_number: Option<String>,
    /// The VM's disks, keyed by `name`; exactly one has `boot: true`. Adding or removing one that is not the boot
    /// disk takes effect on the running VM; another boot disk at the next power cycle.
    #[serde(deserialize_with = "crate::exact::list")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    #[schemars(length(min = 1, max = 16))]
    pub disks: Vec<VMDisk>,
    /// The VM's CD-ROM drives, keyed by `name`, at most 4. Media are inserted, exchanged and taken out while the VM runs; a new
    /// drive is there at the next power cycle, and one that is removed is empty at once and gone at the next power cycle.
    /// Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    #[schemars(length(max = 4))]
    pub cdroms: Vec<Cdrom>,
    /// The network interfaces, keyed by `name`, at most 10. Default: one, `nic0`, on the Network `default`. An empty list: no
    /// network. Interfaces of the models `virtio` and `e1000e` are added to and removed from the running VM, others at its next
    /// power cycle.
    #[serde(default = "one_interface", deserialize_with = "crate::exact::list")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    #[schemars(length(max = 10))]
    pub network_interfaces: Vec<NetworkInterface>,
    /// Where the VM may run. The host where it does run is in `status.binding`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<Box<Placement>>,
    /// Data for the guest's first boot (cloud-init, NoCloud).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap: Option<Box<Bootstrap>>,
    /// Users of the guest whose SSH keys and passwords are set in the running guest by its guest agent (qemu-guest-agent 5.2 or later),
    /// keyed by `name`, at most 8. The condition `GuestUsersSynced` says whether they have the declared ones. Other keys of a user stay as they
    /// are, and the keys of a user that is taken off the list are removed. Default: none. Applied live.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    #[schemars(length(max = 8))]
    pub guest_users: Vec<GuestUser>,
    /// The guest agent after the first boot. The condition `GuestAgentSynced` says whether it is as declared. Default: it is left as it is.
    /// Applied live.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest_agent: Option<Box<GuestAgent>>,
    /// `Running`, `Stopped`, `Paused`: a running guest's CPUs are stopped and its memory is kept; a VM that starts as `Paused`
    /// is created with its CPUs stopped, or `Suspended`: the guest is suspended as `suspendMode` declares, and goes on where it was once
    /// `power` is `Running` again. Default `Running`. Applied live.
    #[serde(default)]
    pub power: Power,
    /// Where the guest's memory is while `power` is `Suspended`. `Disk`: in a file of its host, and there is no QEMU. `Memory`: in the memory
    /// of its host (ACPI S3), which the guest agent requests of the guest; the guest goes on within a second, and its memory is lost if the
    /// host reboots. `Memory` is for `x86_64` without Secure Boot and `watchdog`. Default `Disk`. Applied live.
    #[serde(default)]
    pub suspend_mode: SuspendMode,
    /// The action when the guest ends by itself. Default `OnFailure`. Applied live.
    #[serde(default)]
    pub restart_policy: RestartPolicy,
    /// Whether the guest does its work: until this probe succeeds, and while it fails, `Ready` is `False` with the reason
    /// `ProbeFailed`. Default: none. Applied live.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub readiness_probe: Option<Box<Probe>>,
    /// Whether the guest still works: when this probe fails, the guest is stopped as `restartMode` declares, and counts as ended by a
    /// failure, so that `restartPolicy` decides. A guest that starts, or reboots, must succeed within `initialDelaySeconds`
    /// and the failures that are allowed. Default: none. Applied live.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub liveness_probe: Option<Box<Probe>>,
    /// Calls of the guest by its host, at the start and before a stop. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hooks: Option<Box<Hooks>>,
    /// The position of the VM when its host starts its VMs after a boot, 0 to 65535: VMs with a lower number are started first,
    /// those with the same number together, and those without one last. A VM that does not start holds back others for
    /// five minutes at most. Default: none. Applied live.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 65_535))]
    pub start_order: Option<i64>,
    /// After a boot of its host, the time from the start of this VM to that of VMs with a higher `startOrder`, or without one, in
    /// seconds, at most 3600. Default 0. Applied live.
    #[serde(default)]
    #[schemars(range(min = 0, max = 3600))]
    pub start_delay_seconds: i64,
    /// Name of a VMGroup of the same namespace. While `power` is `Running`, the group decides when the VM is started and stopped: before
    /// the group exists, and until the step of the VM begins, it is not started. With another `power`, the group has no effect on it.
    /// Default: none. Applied live.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm_group: Option<ResourceName>,
    /// How the VM is stopped.
    #[serde(default)]
    pub stop: Stop,
    /// How a restart by `restartToken` stops the VM: `Graceful`, `Soft` or `Hard`, with the meaning and the grace period of
    /// `stop`. Default: the mode of `stop`. Applied live.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart_mode: Option<StopMode>,
    /// Any text; when it changes, the VM is restarted once (as `restartMode` declares). A change is refused while `power` is
    /// not `Running`. Removing it restarts nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub restart_token: Option<String>,
    /// A snapshot of this VM whose data its disks are to have again, all of them or none. It is restored once for each value, while no
    /// machine has the disks open: a running VM has the data after its next power cycle. Default: none. Removing it changes nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restore: Option<Box<VMRestore>>,
    /// Whether deleting it is refused. Set it to false before deleting. Default false. Applied live.
    #[serde(default)]
    pub deletion_protection: bool,
}

impl VMSpec {
    /// Returns the names of the Secrets that the VM's host has to read.
    pub fn secrets(&self) -> impl Iterator<Item = &str> {
        let of_users = self.guest_users.iter().flat_map(GuestUser::secrets);
        let of_keys = self.secure_boot_keys.iter().map(|keys| keys.secret_name.as_str());
        self.bootstrap.iter().flat_map(|bootstrap| bootstrap.secrets()).chain(of_users).chain(of_keys)
    }
}

fn one_interface() -> Vec<NetworkInterface> {
    vec![NetworkInterface::default()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vm_without_interfaces_gets_one_on_the_default_network() {
        let spec: VMSpec =
            serde_json::from_value(serde_json::json!({"class": "s", "disks": [{"name": "d", "boot": true}]}))
                .expect("the smallest VM");
        assert_eq!(spec.network_interfaces, one_interface());
        assert_eq!(spec.power, Power::Running);
        assert_eq!(spec.stop.grace_period_seconds, 60);
    }
}
