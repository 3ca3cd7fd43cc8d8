//! The machine of an instance: what it was started with, and how it ended.

use std::collections::BTreeMap;

use berth_api::console::{FIRST_SERIAL_PORT, LAST_SERIAL_PORT};
use berth_api::hardware::{KeyboardLayout, Resolution};
use berth_api::vm::SecureBootKeys;
use berth_api::{
    BootSource, CpuTopology, DeviceBus, DiskFilesystem, FilesystemType, Graphics, GuestOS, HugePages,
    IoThreadsPolicy, Profile, ScratchDisk, Share, SizeTaken, VM, Watchdog,
};
use berth_host::{DedicatedRequest, FilesystemKind, NewFilesystem, NewScratch};
use berth_qemu::hypervisor::ProcessIdentity;
use berth_qemu::machine::{MachineSpec, ShareSpec};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// The memory that a guest can get while it runs, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct MemoryGrowth {
    /// The memory of the start, below which it cannot go.
    pub(crate) base: u64,
    pub(crate) most: u64,
    /// When another amount was requested, or the guest last plugged a block in or out. None: neither happened under an agent that
    /// records it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) changed_at: Option<Timestamp>,
}

/// The machine that runs, is about to run, or ran last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Run {
    /// The class that the VM named; empty without one.
    pub(crate) class: String,
    pub(crate) cpus: i64,
    /// With what was plugged in.
    pub(crate) memory_bytes: u64,
    pub(crate) firmware: String,
    /// Whether each CPU has one of the host for itself. Machines of older agents have none.
    #[serde(default)]
    pub(crate) dedicated_cpus: bool,
    /// Whether QEMU's other threads have one, too.
    #[serde(default)]
    pub(crate) isolate_emulator_thread: bool,
    /// Machines of older agents have none.
    #[serde(default)]
    pub(crate) huge_pages: HugePages,
    /// Machines of older agents have none.
    #[serde(default)]
    pub(crate) tpm: bool,
    /// None in the journal of an older agent: one socket.
    #[serde(default)]
    pub(crate) topology: Option<CpuTopology>,
    /// None in the journal of an older agent: one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) numa_nodes: Option<i64>,
    /// The CPUs up to which it can grow; machines of older agents cannot.
    #[serde(default)]
    pub(crate) max_cpus: Option<i64>,
    /// The queues of its virtio network cards that declare none; None: one, as in machines of older agents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) default_queues: Option<u8>,
    /// The bytes of memory of the start, and those up to which it can grow; of older agents it cannot.
    #[serde(default)]
    pub(crate) growth: Option<MemoryGrowth>,
    /// Machines of older agents have none.
    #[serde(default)]
    pub(crate) graphics: Graphics,
    /// The CD-ROM drives by slot; machines of older agents have none.
    #[serde(default)]
    pub(crate) cdroms: Vec<RunCdrom>,
    /// The SMBIOS UUID; None in the journal of an older agent.
    #[serde(default)]
    pub(crate) uuid: Option<String>,
    /// Machines of older agents have none of it.
    #[serde(default)]
    pub(crate) profile: RunProfile,
    /// The machine as it was launched; None in the journal of an older agent.
    #[serde(default)]
    pub(crate) machine: Option<Box<MachineSpec>>,
    /// Whether the keys of Secure Boot are enrolled when it is launched.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) enrolls: bool,
    /// The boot volume: it cannot be unplugged while the machine runs.
    pub(crate) boot_volume: String,
    /// The network interfaces it was started with, as `name/MAC`; `None` if not known.
    #[serde(default)]
    pub(crate) interfaces: Option<Vec<String>>,
    /// The spec's `restartToken` at the start.
    #[serde(default)]
    pub(crate) token: Option<String>,
    /// None if not launched yet or gone.
    #[serde(default)]
    pub(crate) process: Option<ProcessIdentity>,
    #[serde(default)]
    pub(crate) started_at: Option<Timestamp>,
    /// When its guest was booted: before `started_at`, if it was suspended since.
    #[serde(default)]
    pub(crate) booted_at: Option<Timestamp>,
    /// The hook after its start; None without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) post_start: Option<PostStart>,
    /// Whether it is started with the bootstrap data of the run before, because the declared ones cannot be read.
    #[serde(default)]
    pub(crate) keeps_bootstrap: bool,
    /// Set when it ended by itself.
    #[serde(default)]
    pub(crate) ended: Option<Ended>,
}

impl Run {
    /// Returns the CPUs of the host that the machine has for itself, if it has some.
    pub(crate) fn dedicated_request(&self) -> Option<DedicatedRequest> {
        let isolate_emulator_thread = self.isolate_emulator_thread;
        self.dedicated_cpus.then_some(DedicatedRequest { isolate_emulator_thread })
    }

    /// Returns the memory of its start, in bytes: without what was plugged in.
    pub(crate) fn base_memory(&self) -> u64 {
        self.growth.map_or(self.memory_bytes, |growth| growth.base)
    }

    /// Returns the capacity of its host that the machine takes.
    pub(crate) fn taken(&self) -> SizeTaken {
        let taken = SizeTaken::of(self.cpus, self.memory_bytes, self.huge_pages);
        match self.dedicated_request() {
            Some(request) => taken.with_dedicated_cpus(request.isolate_emulator_thread),
            None => taken,
        }
    }
}

/// The hook after the start of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum PostStart {
    Due,
    Done,
    /// Why it failed.
    Failed(String),
}

/// The declared profile of a machine, beside its size.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct RunProfile {
    /// None: the pinned one.
    pub(crate) cpu_model: Option<String>,
    pub(crate) guest_os: GuestOS,
    pub(crate) io_threads_policy: IoThreadsPolicy,
    pub(crate) watchdog: Option<Watchdog>,
    pub(crate) serial_number: Option<String>,
    /// The number of PCI devices of the host, by name.
    pub(crate) pci_devices: BTreeMap<String, i64>,
    /// The number of USB devices of the host, by name.
    pub(crate) usb_devices: BTreeMap<String, i64>,
    /// The number of vGPUs, by name.
    pub(crate) vgpus: BTreeMap<String, i64>,
    pub(crate) scratch_disk: Option<ScratchDisk>,
    /// The folders of the host that it mounts.
    pub(crate) shares: Vec<ShareSpec>,
    /// Settings of QEMU, by name.
    pub(crate) qemu_options: BTreeMap<String, String>,
    pub(crate) resolution: Option<Resolution>,
    pub(crate) keyboard_layout: Option<KeyboardLayout>,
    pub(crate) sound: bool,
    /// The number of serial ports beside the first.
    pub(crate) further_serial_ports: u8,
    /// Whether it has a vsock device.
    pub(crate) vsock: bool,
    /// Empty: the default.
    pub(crate) boot_order: Vec<BootSource>,
    /// None: those that come with the firmware.
    pub(crate) secure_boot_keys: Option<SecureBootKeys>,
}

impl RunProfile {
    /// Returns the profile that is declared.
    pub(crate) fn declared(vm: &VM, profile: &Profile) -> Self {
        Self {
            cpu_model: profile.cpu_model.clone(),
            guest_os: profile.guest_os,
            io_threads_policy: profile.io_threads_policy,
            watchdog: vm.spec.watchdog,
            serial_number: vm.spec.serial_number.clone(),
            pci_devices: devices_on(DeviceBus::Pci, profile),
            usb_devices: devices_on(DeviceBus::Usb, profile),
            vgpus: devices_on(DeviceBus::Mdev, profile),
            scratch_disk: profile.scratch_disk.clone(),
            shares: shares_of(vm),
            qemu_options: profile.qemu_options.clone(),
            resolution: vm.spec.resolution,
            keyboard_layout: vm.spec.keyboard_layout,
            sound: vm.spec.sound,
            further_serial_ports: further_serial_ports(vm),
            vsock: vm.spec.vsock,
            boot_order: vm.spec.boot_order.clone(),
            secure_boot_keys: vm.spec.secure_boot_keys.as_deref().cloned(),
        }
    }

    /// Returns the temporary disk that the machine is started with.
    pub(crate) fn scratch(&self) -> Option<NewScratch> {
        let declared = self.scratch_disk.as_ref()?;
        let filesystem = declared.filesystem.as_deref().map(new_filesystem);
        Some(NewScratch { size: declared.bytes(), filesystem })
    }
}

/// Returns a declared file system as the host makes it.
pub(crate) fn new_filesystem(declared: &DiskFilesystem) -> NewFilesystem {
    let kind = match declared.filesystem_type {
        FilesystemType::Ext4 => FilesystemKind::Ext4,
        FilesystemType::Xfs => FilesystemKind::Xfs,
    };
    NewFilesystem { kind, label: declared.label.clone() }
}

/// A number that did not pass admission counts as the nearest that would.
fn further_serial_ports(vm: &VM) -> u8 {
    let declared = u8::try_from(vm.spec.serial_ports.unwrap_or(1)).unwrap_or(1);
    declared.clamp(FIRST_SERIAL_PORT, LAST_SERIAL_PORT) - FIRST_SERIAL_PORT
}

fn devices_on(bus: DeviceBus, profile: &Profile) -> BTreeMap<String, i64> {
    let counts = profile.devices.iter().filter(|(device, _)| device.bus == bus);
    counts.map(|(device, count)| (device.name.clone(), *count)).collect()
}

/// Returns the shares that are declared, by tag: their order in the list is of no account.
fn shares_of(vm: &VM) -> Vec<ShareSpec> {
    let spec = |share: &Share| ShareSpec {
        name: share.name.clone(),
        tag: share.tag().to_owned(),
        read_only: share.read_only,
    };
    let mut shares: Vec<ShareSpec> = vm.spec.shares.iter().map(spec).collect();
    shares.sort_by(|one, other| one.tag.cmp(&other.tag));
    shares
}

/// A CD-ROM drive of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RunCdrom {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) boot_first: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Ended {
    pub(crate) at: Timestamp,
    /// Whether the guest switched itself off, as opposed to a crash.
    pub(crate) orderly: bool,
    pub(crate) how: String,
    /// Whether the kernel of the host ended it for lack of memory.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) out_of_memory: bool,
}
