//! The journal of an instance: state that must survive a crash of the agent, stored with the instance's files.
//!
//! It contains only what cannot be read back: what was decided once (pins), what was requested (a stop), and how the
//! machine ended. Whether QEMU runs and which devices it has is always read from the host.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use berth_api::SizeTaken;
use berth_api::console::{FIRST_SERIAL_PORT, LAST_SERIAL_PORT};
use berth_api::hardware::{KeyboardLayout, Resolution};
use berth_api::{
    BootSource, CpuTopology, DeviceBus, Graphics, GuestOS, HugePages, IPPoolMode, Profile, Share, VM,
    Watchdog, former_uid,
    vm::{InterfaceStatus, SecureBootKeys},
};
use berth_host::{DedicatedRequest, ProcessFacts};
use berth_qemu::hypervisor::ProcessIdentity;
use berth_qemu::machine::{MachineSpec, NIC_PORTS, PciDeviceSpec, ShareSpec, UsbDeviceSpec, VgpuSpec};
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::disk_places::DiskPlaces;
use crate::error::Error;
use crate::offline_restart::OfflineRestart;

/// The version of a journal that an older agent can read, too.
const VERSION: u32 = 1;
/// The version of a suspended machine. An older agent would boot it and so lose what its memory holds.
const WITH_SUSPENSION: u32 = 2;
/// The newest version: that of a VM which was given up. An older agent would start it.
const WITH_RELEASE: u32 = 3;
/// A machine that ran for this long before it ended is not in a crash loop.
const STABLE: SignedDuration = SignedDuration::from_secs(600);
const FIRST_DELAY: SignedDuration = SignedDuration::from_secs(10);
const LONGEST_DELAY: SignedDuration = SignedDuration::from_secs(300);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Journal {
    pub(crate) version: u32,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    /// The newest binding under which this instance was reconciled.
    pub(crate) epoch: i64,
    #[serde(default)]
    pub(crate) pins: Option<PinnedHardware>,
    /// PCI slot of each network interface, by name: it determines the interface's name in the guest.
    #[serde(default)]
    pub(crate) slots: BTreeMap<String, u8>,
    /// The interfaces whose card is in a port of the machine, which has the number of the slot. Those that older agents gave a slot
    /// stay on the root bus, and so keep their name in the guest.
    #[serde(default)]
    pub(crate) in_ports: BTreeSet<String>,
    /// The places of the disks that the VM declares. None are known before the first start by an agent that records them.
    #[serde(default, skip_serializing_if = "DiskPlaces::is_empty")]
    pub(crate) disk_places: DiskPlaces,
    /// The network interfaces as decided at the last start; used to restore the VM's status if that is lost.
    #[serde(default)]
    pub(crate) interfaces: Vec<InterfaceStatus>,
    /// The public IPv4 addresses forwarded to it.
    #[serde(default)]
    pub(crate) public: Vec<ForwardedAddress>,
    /// The public IPv6 addresses, apart: an earlier agent cannot read a list with such an address.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) public_ipv6: Vec<ForwardedAddress>,
    /// The PCI devices of the host that were taken for the instance, or are about to be. They are given back after its machine has ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) pci_devices: Vec<Held<PciDeviceSpec>>,
    /// The USB devices of the host, likewise.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) usb_devices: Vec<Held<UsbDeviceSpec>>,
    /// The vGPUs of the host, likewise. They are removed after its machine has ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) vgpus: Vec<Held<VgpuSpec>>,
    #[serde(default)]
    pub(crate) run: Option<Run>,
    /// The bootstrap data given to the guest at the last start.
    #[serde(default)]
    pub(crate) bootstrap: Option<BootstrapRecord>,
    #[serde(default)]
    pub(crate) stop: Option<Stop>,
    /// How its guest is restarted by an agent that no control plane has answered. None: it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) offline: Option<Box<OfflineRestart>>,
    /// Set while the machine is being suspended, is suspended, or is being resumed.
    #[serde(default)]
    pub(crate) suspension: Option<Suspension>,
    /// The keys of Secure Boot that are in its firmware's variables, as they were declared. None also while they are being enrolled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) enrolled: Option<SecureBootKeys>,
    /// The last restore whose memory was loaded, or is about to be: it is loaded once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) loaded: Option<LoadedMemory>,
    /// The boot of the host in which it was last launched; None for a machine of an older agent.
    #[serde(default)]
    pub(crate) boot: Option<String>,
    #[serde(default)]
    pub(crate) restarts: i64,
    /// The last end that was not requested; it outlives the run.
    #[serde(default)]
    pub(crate) last_end: Option<Ended>,
    /// Number of consecutive runs that ended soon after their start.
    #[serde(default)]
    pub(crate) failures: u32,
    #[serde(default)]
    pub(crate) not_before: Option<Timestamp>,
    /// The VM is being deleted: what remains of the instance may be removed without the VM.
    #[serde(default)]
    pub(crate) deleting: bool,
    /// Set once the VM was given up here, so that it moves to another host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) released: Option<Released>,
}

/// A VM that its host has given up: it is not started here again under this binding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Released {
    pub(crate) epoch: i64,
    /// The volumes of its disks, which its next host takes from here.
    pub(crate) volumes: BTreeSet<String>,
}

/// A device of the host that an instance has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Held<D> {
    /// The name under which the host offered it.
    pub(crate) name: String,
    pub(crate) device: D,
}

/// Bootstrap data as given to a guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct BootstrapRecord {
    /// Equal for equal data.
    pub(crate) digest: String,
    /// Number of different data so far, including this one.
    pub(crate) number: u32,
}

/// A public address forwarded to an interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ForwardedAddress {
    pub(crate) interface: String,
    /// Name of the PublicIP.
    pub(crate) name: String,
    pub(crate) address: IpAddr,
    pub(crate) mode: IPPoolMode,
}

/// Owner of an instance according to its journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    ThisVm,
    /// This VM under the uid it had before.
    Former,
    Other,
}

/// Hardware that stays the same for the whole life of a VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PinnedHardware {
    pub(crate) machine_type: String,
    /// QEMU's `-cpu` value.
    pub(crate) cpu_model: String,
    /// The level of x86-64 that `cpu_model` stands for, if it does for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cpu_level: Option<String>,
    /// The accelerator that `cpu_model` was chosen for.
    pub(crate) accelerator: String,
    /// Whether a Windows guest has no HPET. It has one if an earlier agent started the VM first.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) windows_without_hpet: bool,
    pub(crate) uuid: String,
}

/// The memory that a guest can get while it runs, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct MemoryGrowth {
    /// The memory of the start, below which it cannot go.
    pub(crate) base: u64,
    pub(crate) most: u64,
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
    pub(crate) watchdog: Option<Watchdog>,
    pub(crate) serial_number: Option<String>,
    /// The number of PCI devices of the host, by name.
    pub(crate) pci_devices: BTreeMap<String, i64>,
    /// The number of USB devices of the host, by name.
    pub(crate) usb_devices: BTreeMap<String, i64>,
    /// The number of vGPUs, by name.
    pub(crate) vgpus: BTreeMap<String, i64>,
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
            watchdog: vm.spec.watchdog,
            serial_number: vm.spec.serial_number.clone(),
            pci_devices: devices_on(DeviceBus::Pci, profile),
            usb_devices: devices_on(DeviceBus::Usb, profile),
            vgpus: devices_on(DeviceBus::Mdev, profile),
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

/// A suspension: the state of the machine in a file, and the machine that can load it.
///
/// ```text
///   Saving ──QEMU has saved it, the file is durable──▶ Saved ──QEMU is launched for it──▶ Resuming
///                                                        ▲    │ loaded: the file is removed
///     none (the guest runs) ◀─failed, cancelled─ Saving  └────┤ QEMU ended before: the file is there
///     none (the guest runs) ◀─────────────────────────────────┘
/// ```
///
/// The removal of the file is what makes a state be used once: a guest runs only after it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Suspension {
    pub(crate) phase: SuspensionPhase,
    pub(crate) since: Timestamp,
    /// The machine as it was launched, with the disks that it had when it was saved.
    pub(crate) machine: MachineSpec,
    /// The CPUs that it had when it was saved.
    pub(crate) cpus: i64,
    /// How often a QEMU that was to load it has ended.
    #[serde(default)]
    pub(crate) attempts: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum SuspensionPhase {
    Saving,
    Saved,
    Resuming,
}

/// The restore of a VM with the memory of its guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LoadedMemory {
    /// Name of the VMSnapshot.
    pub(crate) snapshot: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) token: Option<String>,
}

/// A requested stop that is in progress.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Stop {
    pub(crate) why: StopReason,
    pub(crate) since: Timestamp,
    /// When the grace period began, if a hook held the guest back for longer than that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) released: Option<Timestamp>,
    /// How often the guest has been asked to shut down.
    pub(crate) asked: u8,
    /// The stop is no longer wanted; a guest that received the request may still shut down.
    #[serde(default)]
    pub(crate) cancelled: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum StopReason {
    PowerOff,
    Restart,
    /// The liveness probe failed.
    Unhealthy,
    Delete,
}

impl Journal {
    /// Returns the first journal of an instance.
    pub(crate) fn new(vm: &VM) -> Self {
        Self {
            version: VERSION,
            namespace: vm.namespace().unwrap_or_default(),
            name: vm.name_any(),
            uid: vm.uid().unwrap_or_default(),
            epoch: epoch_of(vm),
            pins: None,
            slots: BTreeMap::new(),
            in_ports: BTreeSet::new(),
            disk_places: DiskPlaces::default(),
            interfaces: Vec::new(),
            public: Vec::new(),
            public_ipv6: Vec::new(),
            pci_devices: Vec::new(),
            usb_devices: Vec::new(),
            vgpus: Vec::new(),
            run: None,
            bootstrap: None,
            stop: None,
            offline: None,
            suspension: None,
            enrolled: None,
            loaded: None,
            boot: None,
            restarts: 0,
            last_end: None,
            failures: 0,
            not_before: None,
            deleting: false,
            released: None,
        }
    }

    pub(crate) fn parse(value: Value) -> Result<Self, Error> {
        let journal: Self =
            serde_json::from_value(value).map_err(|e| Error::Journal { detail: e.to_string() })?;
        if journal.version > WITH_RELEASE {
            let detail = format!("its version {} is newer than this agent ({WITH_RELEASE})", journal.version);
            return Err(Error::Journal { detail });
        }
        Ok(journal)
    }

    /// Returns a bus of which devices of the host were taken for the instance, or are about to be.
    pub(crate) fn device_bus(&self) -> Option<DeviceBus> {
        let lists = [
            (DeviceBus::Pci, self.pci_devices.is_empty()),
            (DeviceBus::Usb, self.usb_devices.is_empty()),
            (DeviceBus::Mdev, self.vgpus.is_empty()),
        ];
        lists.into_iter().find(|(_, is_empty)| !is_empty).map(|(bus, _)| bus)
    }

    /// Whether devices of the host were taken for the instance, or are about to be.
    pub(crate) fn has_devices(&self) -> bool {
        self.device_bus().is_some()
    }

    /// Returns the journal of an instance whose devices were given back to the host.
    pub(crate) fn without_devices(self) -> Self {
        Self { pci_devices: Vec::new(), usb_devices: Vec::new(), vgpus: Vec::new(), ..self }
    }

    pub(crate) fn to_value(&self) -> Value {
        serde_json::to_value(self).expect("a journal is plain data with text keys")
    }

    pub(crate) fn owner(&self, vm: &VM) -> Owner {
        if self.uid.is_empty() || Some(&self.uid) == vm.metadata.uid.as_ref() {
            return Owner::ThisVm;
        }
        let same_name = Some(&self.namespace) == vm.metadata.namespace.as_ref()
            && Some(&self.name) == vm.metadata.name.as_ref();
        if same_name && former_uid(vm) == Some(self.uid.as_str()) { Owner::Former } else { Owner::Other }
    }

    /// Whether QEMU was launched and its end has not been recorded.
    pub(crate) fn has_process(&self) -> bool {
        self.run.as_ref().is_some_and(|run| run.process.is_some())
    }

    /// Returns the journal with each new interface in the lowest free slot.
    pub(crate) fn with_slots<'a>(mut self, interfaces: impl Iterator<Item = &'a str>) -> Self {
        let wanted: Vec<&str> = interfaces.collect();
        self.slots.retain(|name, _| wanted.contains(&name.as_str()));
        self.in_ports.retain(|name| wanted.contains(&name.as_str()));
        for name in wanted {
            self.give_slot(name);
        }
        self
    }

    /// Gives an interface the lowest free slot, unless it has one.
    pub(crate) fn give_slot(&mut self, name: &str) {
        if !self.slots.contains_key(name) {
            let free = (0..u8::MAX).find(|slot| !self.slots.values().any(|s| s == slot)).unwrap_or(0);
            self.slots.insert(name.to_owned(), free);
            if free < NIC_PORTS {
                self.in_ports.insert(name.to_owned());
            }
        }
    }

    /// Returns the port of an interface, if its card may be in one.
    pub(crate) fn port_of(&self, name: &str) -> Option<u8> {
        self.slots.get(name).copied().filter(|_| self.in_ports.contains(name))
    }

    /// Returns the journal with the bootstrap data given to the guest now. For a machine started by an older agent, the
    /// previous data is not known and counts as unchanged.
    pub(crate) fn with_bootstrap(mut self, digest: String) -> Self {
        let number = match &self.bootstrap {
            None => 1,
            Some(before) if before.digest == digest => before.number,
            Some(before) => before.number.saturating_add(1),
        };
        self.bootstrap = Some(BootstrapRecord { digest, number });
        self
    }

    /// Returns cloud-init's `instance-id`. A guest applies its bootstrap data once per id. Data that returns after
    /// other data also needs a new id, so the ids are numbered. The first one is the instance's own name.
    pub(crate) fn cloud_instance(&self, instance: &str) -> String {
        match self.bootstrap.as_ref().map(|note| note.number) {
            None | Some(0 | 1) => instance.to_owned(),
            Some(number) => format!("{instance}-{number}"),
        }
    }

    /// Whether there is no machine and a state that it can be resumed from.
    pub(crate) fn is_suspended(&self) -> bool {
        let phase = self.suspension.as_ref().map(|suspension| suspension.phase);
        matches!(phase, Some(SuspensionPhase::Saved | SuspensionPhase::Resuming))
    }

    /// Returns the journal with this suspension, or without one.
    pub(crate) fn with_suspension(mut self, suspension: Option<Suspension>) -> Self {
        self.suspension = suspension;
        self.version = self.least_version();
        self
    }

    /// Returns the journal of a VM that was given up, or is back.
    pub(crate) fn with_release(mut self, released: Option<Released>) -> Self {
        self.released = released;
        self.version = self.least_version();
        self
    }

    fn least_version(&self) -> u32 {
        match (&self.released, &self.suspension) {
            (Some(_), _) => WITH_RELEASE,
            (None, Some(_)) => WITH_SUSPENSION,
            (None, None) => VERSION,
        }
    }

    /// Returns the journal after the machine ended by itself; decides when it may be started again.
    pub(crate) fn with_ending(mut self, ended: Ended) -> Self {
        let Some(run) = &mut self.run else { return self };
        let lasted = run.started_at.map_or(SignedDuration::ZERO, |start| ended.at.duration_since(start));
        self.failures = if lasted >= STABLE { 1 } else { self.failures.saturating_add(1) };
        self.not_before = ended.at.checked_add(restart_delay(self.failures)).ok();
        self.last_end = Some(ended.clone());
        run.ended = Some(ended);
        self
    }

    /// Returns the journal with the process started for its run.
    pub(crate) fn with_process(mut self, process: &ProcessFacts) -> Self {
        if let Some(run) = &mut self.run {
            run.process = Some(process.identity.clone());
            run.started_at = Some(process.started_at);
            run.booted_at.get_or_insert(process.started_at);
            if run.enrolls {
                self.enrolled.clone_from(&run.profile.secure_boot_keys);
            }
        }
        self.boot = Some(process.identity.boot_id.clone());
        self
    }

    /// Returns the journal after a requested stop has completed.
    pub(crate) fn stopped(mut self) -> Self {
        self = self.with_suspension(None);
        self.run = None;
        self.offline = None;
        self.stop = None;
        self.failures = 0;
        self.not_before = None;
        self
    }
}

/// Returns the delay before a restart: none after the first end, then increasing.
pub(crate) fn restart_delay(failures: u32) -> SignedDuration {
    match failures {
        0 | 1 => SignedDuration::ZERO,
        n => (FIRST_DELAY * (1 << (n - 2).min(8))).min(LONGEST_DELAY),
    }
}

pub(crate) fn epoch_of(vm: &VM) -> i64 {
    vm.status.as_ref().and_then(|s| s.binding.as_ref()).map_or(0, |b| b.epoch)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn journal() -> Journal {
        let run = Run {
            class: "s".into(),
            cpus: 1,
            memory_bytes: 1,
            firmware: "UEFI".into(),
            dedicated_cpus: false,
            isolate_emulator_thread: false,
            huge_pages: HugePages::None,
            tpm: true,
            topology: None,
            numa_nodes: Some(2),
            max_cpus: Some(4),
            growth: Some(MemoryGrowth { base: 1, most: 2 }),
            graphics: Graphics::VGA,
            cdroms: vec![RunCdrom { name: "installer".into(), boot_first: true }],
            uuid: None,
            profile: RunProfile::default(),
            machine: None,
            enrolls: false,
            boot_volume: "v-1".into(),
            interfaces: None,
            token: None,
            process: None,
            started_at: Some(Timestamp::UNIX_EPOCH),
            booted_at: None,
            post_start: None,
            keeps_bootstrap: false,
            ended: None,
        };
        Journal { run: Some(run), ..Journal::new(&VM::default()) }
    }

    fn ended(second: i64) -> Ended {
        Ended {
            at: Timestamp::from_second(second).expect("small"),
            orderly: false,
            how: "crash".into(),
            out_of_memory: false,
        }
    }

    #[test]
    fn it_survives_the_way_to_disk_and_back() {
        let journal = journal().with_slots(["nic0", "nic1"].into_iter()).with_ending(ended(3));
        assert_eq!(Journal::parse(journal.to_value()).expect("just written"), journal);
    }

    #[test]
    fn an_older_agent_does_not_read_that_of_a_vm_which_was_given_up() {
        let released = Released { epoch: 3, volumes: BTreeSet::from(["v-1".to_owned()]) };
        let left = journal().with_release(Some(released)).stopped();
        assert_eq!(left.version, WITH_RELEASE);
        assert_eq!(Journal::parse(left.to_value()).expect("just written"), left);
        assert_eq!(left.with_release(None).version, VERSION, "it is back");
    }

    #[test]
    fn one_of_a_newer_agent_is_refused_rather_than_misread() {
        let newer = Journal { version: WITH_RELEASE + 1, ..journal() };
        assert!(matches!(Journal::parse(newer.to_value()), Err(Error::Journal { .. })));
    }

    #[test]
    fn the_first_restart_is_at_once_and_later_ones_wait_longer_up_to_five_minutes() {
        let mut journal = journal();
        let mut delays = Vec::new();
        for _ in 0..8 {
            journal = journal.with_ending(ended(3));
            delays.push(journal.not_before.expect("set").as_second() - 3);
        }
        assert_eq!(delays, [0, 10, 20, 40, 80, 160, 300, 300]);
        assert_eq!(journal.with_ending(ended(700)).failures, 1, "it ran long enough");
    }

    #[test]
    fn changed_bootstrap_data_is_another_instance_to_cloud_init_and_unchanged_data_is_not() {
        let mut journal = journal();
        let mut seen = Vec::new();
        for data in ["a", "a", "b", "b", "a"] {
            journal = Journal::parse(journal.with_bootstrap(data.into()).to_value()).expect("just written");
            seen.push(journal.cloud_instance("i-1"));
        }
        assert_eq!(seen, ["i-1", "i-1", "i-1-2", "i-1-2", "i-1-3"]);
    }

    #[test]
    fn keys_count_as_enrolled_once_a_machine_was_launched_that_enrolls_them() {
        let keys = |token: &str| SecureBootKeys { secret_name: "boot".into(), token: Some(token.into()) };
        let process = ProcessFacts {
            identity: ProcessIdentity { pid: 1, start_time: 1, boot_id: "b".into() },
            started_at: Timestamp::UNIX_EPOCH,
            dedicated: None,
        };
        let started = |enrolls: bool, enrolled: Option<SecureBootKeys>| {
            let mut journal = Journal { enrolled, ..journal() };
            let run = journal.run.as_mut().expect("it runs");
            run.enrolls = enrolls;
            run.profile.secure_boot_keys = Some(keys("1"));
            Journal::parse(journal.with_process(&process).to_value()).expect("just written").enrolled
        };
        assert_eq!(started(true, None), Some(keys("1")));
        assert_eq!(started(false, None), None, "a saved state has the variables of its moment");
        assert_eq!(started(false, Some(keys("1"))), Some(keys("1")));
    }

    #[test]
    fn an_interface_keeps_its_slot_when_others_come_and_go() {
        let journal = journal().with_slots(["a", "b"].into_iter()).with_slots(["b", "c"].into_iter());
        assert_eq!(journal.slots, BTreeMap::from([("b".to_owned(), 1), ("c".to_owned(), 0)]));
        assert_eq!(
            (journal.port_of("b"), journal.port_of("c"), journal.port_of("a")),
            (Some(1), Some(0), None)
        );
        let older = Journal { in_ports: BTreeSet::new(), ..journal }.with_slots(["b", "d"].into_iter());
        assert_eq!((older.port_of("b"), older.port_of("d")), (None, Some(0)), "b stays where it is");
    }
}
