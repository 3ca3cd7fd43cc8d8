//! The journal of an instance: state that must survive a crash of the agent, stored with the instance's files.
//!
//! It contains only what cannot be read back: what was decided once (pins), what was requested (a stop), and how the
//! machine ended. Whether QEMU runs and which devices it has is always read from the host.

mod live_move;
mod run;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use berth_api::vm::{InterfaceStatus, SecureBootKeys};
use berth_api::{DeviceBus, IPPoolMode, VM, former_uid};
use berth_host::ProcessFacts;
use berth_qemu::machine::{MachineSpec, NIC_PORTS, PciDeviceSpec, UsbDeviceSpec, VgpuSpec};
use ipnet::Ipv6Net;
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::disk_places::DiskPlaces;
use crate::error::Error;
use crate::offline_restart::OfflineRestart;
use crate::public_address::GivenAddress;
pub(crate) use live_move::{Arrival, ArrivalPhase, Departure, DeparturePhase};
pub(crate) use run::{Ended, MemoryGrowth, PostStart, Run, RunCdrom, RunProfile, new_filesystem};

/// The version of a journal that an older agent can read, too.
const VERSION: u32 = 1;
/// The version of a suspended machine. An older agent would boot it and so lose what its memory holds.
const WITH_SUSPENSION: u32 = 2;
/// The version of a VM which was given up. An older agent would start it.
const WITH_RELEASE: u32 = 3;
/// The newest version: that of a guest which is sent to another host, or comes from one. An older agent would let it go on.
const WITH_LIVE_MOVE: u32 = 4;
/// A machine that ran for this long before it ended is not in a crash loop.
const STABLE: SignedDuration = SignedDuration::from_secs(600);
const FIRST_DELAY: SignedDuration = SignedDuration::from_secs(10);
/// The longest delay before a restart.
pub(crate) const LONGEST_DELAY: SignedDuration = SignedDuration::from_secs(300);

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
    /// The epoch of the binding under which this host has the firmware variables and the memory of the TPM, as far as the VM had some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) firmware: Option<i64>,
    /// Set while its running guest is sent to another host, and after that as long as `released` is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) departure: Option<Box<Departure>>,
    /// Set while its running guest comes from another host, and until the VM is bound here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) arrival: Option<Box<Arrival>>,
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

/// A public address, or a prefix, that leads to an interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ForwardedAddress {
    pub(crate) interface: String,
    /// Name of the PublicIP.
    pub(crate) name: String,
    /// Of a prefix the first one.
    pub(crate) address: IpAddr,
    pub(crate) mode: IPPoolMode,
    /// The length of a prefix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) prefix_length: Option<u8>,
}

impl ForwardedAddress {
    /// The address or prefix as the control plane has given it.
    pub(crate) fn given(&self) -> GivenAddress {
        let prefix = match (self.address, self.prefix_length) {
            (IpAddr::V6(first), Some(length)) => Ipv6Net::new(first, length).ok(),
            _ => None,
        };
        GivenAddress { address: self.address, prefix, mode: self.mode }
    }
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
    /// Whether a scratch disk that the instance may have is not used again: there is no machine, and none that goes on.
    pub(crate) fn leaves_scratch(&self) -> bool {
        let may_have = |run: &Run| run.process.is_none() && run.profile.scratch_disk.is_some();
        self.suspension.is_none() && self.run.as_ref().is_none_or(may_have)
    }

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
            firmware: None,
            departure: None,
            arrival: None,
        }
    }

    pub(crate) fn parse(value: Value) -> Result<Self, Error> {
        let journal: Self =
            serde_json::from_value(value).map_err(|e| Error::Journal { detail: e.to_string() })?;
        if journal.version > WITH_LIVE_MOVE {
            let detail =
                format!("its version {} is newer than this agent ({WITH_LIVE_MOVE})", journal.version);
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
        if released.is_none() {
            self.departure = None;
        }
        self.released = released;
        self.version = self.least_version();
        self
    }

    /// Returns the journal of an instance whose guest is being sent to another host, or not any more.
    pub(crate) fn with_departure(mut self, departure: Option<Departure>) -> Self {
        self.departure = departure.map(Box::new);
        // Nothing but the move decides about the guest meanwhile, also if the control plane is away.
        self.offline = None;
        self.version = self.least_version();
        self
    }

    /// Returns the journal of an instance whose guest is coming from another host, or has come.
    pub(crate) fn with_arrival(mut self, arrival: Option<Arrival>) -> Self {
        self.arrival = arrival.map(Box::new);
        self.version = self.least_version();
        self
    }

    fn least_version(&self) -> u32 {
        if self.departure.is_some() || self.arrival.is_some() {
            return WITH_LIVE_MOVE;
        }
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
