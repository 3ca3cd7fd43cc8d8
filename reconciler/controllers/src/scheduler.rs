//! The scheduler: chooses a VM's host. A pure function of the cache; callable read-only, so that a plan can show where a VM
//! would fit.
//!
//! ```text
//! hosts ──filter──▶ those that can take it ──score──▶ the best ── none ──▶ why: too full now, or never with these hosts
//! ```
//!
//! One decision costs one pass over the hosts, however many VMs there are: the usage by VMs is kept with each host.

mod affinity;
mod architecture;
mod baseline;
mod explain;
mod space;
#[cfg(test)]
mod tests;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use berth_api::{Architecture, BridgeSpec, DeviceCounts, DeviceName, Enforcement, HugeMemory, Strategy};

use crate::cache::affinity::{PlacedVms, Repelling};
use crate::cache::capacity::{Candidate, Members};
use affinity::{Affinity, Broken};
pub(crate) use affinity::{AffinityRule, NAMED_RULES};
pub(crate) use baseline::cpu_baseline;
pub(crate) use explain::{Unplaced, topology_values};
pub(crate) use space::{NewDisks, PoolChoice, chosen_pools};

/// A VM's request. Of two VMs with equal requests, each fits where the other does.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Request {
    /// Its namespace, for which hosts may be reserved.
    pub(crate) namespace: String,
    pub(crate) cpus: i64,
    /// CPUs of the host for it alone.
    pub(crate) dedicated_cpus: i64,
    /// Bytes of guest memory in ordinary pages that are kept for it.
    pub(crate) memory: u64,
    /// All bytes of guest memory in ordinary pages.
    pub(crate) whole_memory: u64,
    /// Bytes of guest memory in huge pages.
    pub(crate) huge_memory: HugeMemory,
    /// Thousandths of real CPUs that are kept for it.
    pub(crate) reserved: u32,
    /// The architecture that the host must have or emulate.
    pub(crate) architecture: Architecture,
    /// The CPU model that the host must have.
    pub(crate) cpu_model: Option<String>,
    /// The machine type that the host's QEMU must have.
    pub(crate) machine_type: Option<String>,
    /// Whether it has a TPM.
    pub(crate) tpm: bool,
    /// Whether it has a vsock device.
    pub(crate) vsock: bool,
    /// Whether it has an interface on an encrypted network.
    pub(crate) wireguard: bool,
    /// Whether it has an encrypted disk.
    pub(crate) disk_encryption: bool,
    /// The PCI and USB devices and vGPUs that it takes, and the block devices that its disks without a host are, by name.
    pub(crate) devices: DeviceCounts,
    /// The shares that it mounts, by name, and whether it writes to each.
    pub(crate) shares: BTreeMap<String, bool>,
    /// The folders with the backups that its disks are made from, by name.
    pub(crate) backup_folders: BTreeSet<String>,
    /// Its disks that have no host yet, by pool.
    pub(crate) disks: BTreeMap<String, NewDisks>,
    /// Those whose pool is chosen with the host, one after the other.
    pub(crate) choices: Vec<PoolChoice>,
    /// The hosts that need no copy of an image for its disks.
    pub(crate) image_hosts: BTreeSet<String>,
    /// Whether it has a graphics card of QEMU.
    pub(crate) graphics: bool,
    /// The bridges that the host must have.
    pub(crate) bridges: BTreeSet<BridgeSpec>,
    /// The one host it may run on.
    pub(crate) host: Option<String>,
    /// Labels the host must have.
    pub(crate) selector: BTreeMap<String, String>,
    /// Labels the host should have.
    pub(crate) preferred: BTreeMap<String, String>,
    /// The hosts that have the files of its disks.
    pub(crate) disk_hosts: BTreeSet<String>,
    /// The host that has just refused it.
    pub(crate) refused_by: Option<String>,
    /// Its placement group.
    pub(crate) group: Option<Group>,
    /// Its rules about other VMs.
    pub(crate) affinity: Vec<AffinityRule>,
    /// The required rules of other VMs that keep these apart from it, for messages: no more than [`NAMED_RULES`].
    pub(crate) repelling: BTreeSet<Repelling>,
    /// Its labels, if there are more such rules: all follow from them.
    pub(crate) labels: BTreeMap<String, String>,
}

/// A placement group as the scheduler sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Group {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) strategy: Strategy,
    pub(crate) enforcement: Enforcement,
    pub(crate) topology_key: String,
    /// The values of the key at which other members may be admitted.
    pub(crate) taken: BTreeSet<String>,
}

/// How a host is chosen when several can take a VM, after rules and preferences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PlacementPolicy {
    /// The host with the largest share of free capacity, which balances the load.
    #[default]
    Balance,
    /// The host with the smallest share, so that hosts fill one after the other.
    Pack,
}

/// The reason why a host was filtered out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Unfit {
    NotTheOne,
    NotReady,
    Cordoned,
    DiskElsewhere,
    Labels,
    OtherNamespaces,
    NoTpm,
    NoVsock,
    NoWireguard,
    NoEncryption,
    NoBridge,
    NoDevice,
    NoShare,
    NoBackupFolder,
    Display,
    TopologyLabel,
    GroupMember,
    GroupElsewhere,
    Affinity(Broken),
    Refused,
    Architecture,
    CpuModel,
    MachineType,
    Devices,
    Cpus,
    DedicatedCpus,
    ReservedCpus,
    Memory,
    HugePages,
    Space,
}

/// The rules about other VMs that count for a VM, and where these are.
struct Rules<'r, 'a> {
    members: &'r Members,
    spread: Option<Spread<'r, 'a>>,
    affinity: Affinity<'r, 'a>,
}

/// The group's members by the value of its topology key.
struct Spread<'r, 'a> {
    group: &'r Group,
    at: BTreeMap<&'a str, usize>,
}

/// Chooses the host, or returns why there is none.
///
/// *Guarantees:* never exceeds a host's allocatable amounts; never places two members of a required spread group on
/// one topology value, nor of a required pack group on two; never places a VM against a required rule of `placement.affinity`,
/// of its own or of another VM; the same input gives the same host, whatever the order of the candidates.
pub(crate) fn choose<'a>(
    request: &Request,
    beside: &PlacedVms,
    candidates: impl Iterator<Item = &'a Candidate> + Clone,
    policy: PlacementPolicy,
) -> Result<&'a str, Unplaced> {
    let rules = Rules::of(request, beside, candidates.clone());
    let fits = candidates.clone().filter(|c| filter(request, &rules, c).is_ok());
    let best = fits.min_by_key(|candidate| score(request, &rules, candidate, policy));
    best.map(|candidate| candidate.name.as_str()).ok_or_else(|| explain::why(request, &rules, candidates))
}

/// Whether a VM may be admitted at this value beside others that hold `taken`.
pub(crate) fn allows_value(strategy: Strategy, taken: &BTreeSet<String>, value: &str) -> bool {
    match strategy {
        Strategy::Spread => !taken.contains(value),
        Strategy::Pack => taken.iter().all(|other| other == value),
    }
}

impl<'r, 'a> Rules<'r, 'a> {
    fn of(
        request: &'r Request,
        beside: &'r PlacedVms,
        candidates: impl Iterator<Item = &'a Candidate> + Clone,
    ) -> Self {
        let members = &beside.members;
        let spread = request.group.as_ref().map(|group| {
            let at = counts_by_value(&group.topology_key, members, candidates.clone());
            Spread { group, at }
        });
        Self { members, spread, affinity: Affinity::of(request, beside, candidates) }
    }
}

/// Returns the number of VMs at each value of a topology key.
fn counts_by_value<'a>(
    topology_key: &str,
    vms: &Members,
    candidates: impl Iterator<Item = &'a Candidate>,
) -> BTreeMap<&'a str, usize> {
    let mut at = BTreeMap::new();
    if vms.is_empty() {
        return at;
    }
    for candidate in candidates {
        if let Some(count) = vms.get(&candidate.name)
            && let Some(value) = candidate.labels.get(topology_key)
        {
            *at.entry(value.as_str()).or_default() += count;
        }
    }
    at
}

impl Spread<'_, '_> {
    fn members_at(&self, value: &str) -> usize {
        self.at.get(value).copied().unwrap_or_default()
    }

    /// Whether a required rule allows another member on this host.
    fn allows(&self, candidate: &Candidate) -> Result<(), Unfit> {
        if self.group.enforcement != Enforcement::Required {
            return Ok(());
        }
        let value = candidate.labels.get(&self.group.topology_key).ok_or(Unfit::TopologyLabel)?;
        let free = allows_value(self.group.strategy, &self.group.taken, value);
        match (self.group.strategy, self.members_at(value)) {
            (Strategy::Spread, 0) if free => Ok(()),
            (Strategy::Spread, _) => Err(Unfit::GroupMember),
            (Strategy::Pack, 0) if !self.at.is_empty() => Err(Unfit::GroupElsewhere),
            (Strategy::Pack, _) if free => Ok(()),
            (Strategy::Pack, _) => Err(Unfit::GroupElsewhere),
        }
    }

    /// The distance from the group's preference; lower is better.
    fn distance(&self, candidate: &Candidate) -> i64 {
        let value = candidate.labels.get(&self.group.topology_key);
        let members = value.map_or(0, |value| i64::try_from(self.members_at(value)).unwrap_or(i64::MAX));
        match self.group.strategy {
            Strategy::Spread => members,
            Strategy::Pack => -members,
        }
    }
}

pub(crate) fn has_labels(candidate: &Candidate, wanted: &BTreeMap<String, String>) -> bool {
    wanted.iter().all(|(key, value)| candidate.labels.get(key) == Some(value))
}

/// Whether VMs of the namespace may be on the host.
fn takes_namespace(candidate: &Candidate, request: &Request) -> bool {
    candidate.namespaces.is_empty() || candidate.namespaces.contains(&request.namespace)
}

fn has_cpu_model(candidate: &Candidate, request: &Request) -> bool {
    request.cpu_model.as_ref().is_none_or(|model| candidate.cpu_models.contains(model))
}

fn has_machine_type(candidate: &Candidate, request: &Request) -> bool {
    let types = &candidate.machine_types;
    request.machine_type.as_ref().is_none_or(|wanted| types.is_empty() || types.contains(wanted))
}

/// Whether the host has as many devices of each name for VMs, free or not.
fn offers_devices(candidate: &Candidate, request: &Request) -> bool {
    let offers = |(name, count): (&DeviceName, &i64)| usable(candidate, name) >= *count;
    request.devices.iter().all(offers)
}

/// The shares that the host does not have for the VM.
fn missing_shares<'a>(candidate: &Candidate, request: &'a Request) -> impl Iterator<Item = &'a str> {
    let has = move |(name, writes): &(&String, &bool)| {
        candidate.shares.get(*name).is_some_and(|writable| *writable || !**writes)
    };
    request.shares.iter().filter(move |share| !has(share)).map(|(name, _)| name.as_str())
}

/// The number of devices of a name that VMs can have on the host.
pub(crate) fn usable(candidate: &Candidate, name: &DeviceName) -> i64 {
    candidate.devices.get(name).map_or(0, |offered| offered.usable)
}

/// The number of devices of a name that no VM has on the host.
fn free(candidate: &Candidate, name: &DeviceName) -> i64 {
    usable(candidate, name)
        .saturating_sub(candidate.used.devices.get(name).copied().unwrap_or_default())
        .max(0)
}

/// The names of which too few devices are free, with the number that is needed.
fn lacking<'a>(
    candidate: &'a Candidate,
    request: &'a Request,
) -> impl Iterator<Item = (&'a DeviceName, i64)> {
    let wanted = request.devices.iter().map(|(name, count)| (name, *count));
    wanted.filter(|(name, count)| free(candidate, name) < *count)
}

/// The names of display controllers that exclude the graphics card of the VM.
fn displays<'a>(candidate: &'a Candidate, request: &'a Request) -> impl Iterator<Item = &'a str> {
    let is_display = |name: &&DeviceName| candidate.devices.get(*name).is_some_and(|offered| offered.display);
    request.devices.keys().filter(|_| request.graphics).filter(is_display).map(|device| device.name.as_str())
}

fn filter(request: &Request, rules: &Rules<'_, '_>, candidate: &Candidate) -> Result<(), Unfit> {
    let check = |holds: bool, unfit: Unfit| if holds { Ok(()) } else { Err(unfit) };
    check(request.host.as_ref().is_none_or(|host| *host == candidate.name), Unfit::NotTheOne)?;
    check(request.disk_hosts.iter().all(|host| *host == candidate.name), Unfit::DiskElsewhere)?;
    check(has_labels(candidate, &request.selector), Unfit::Labels)?;
    check(takes_namespace(candidate, request), Unfit::OtherNamespaces)?;
    check(candidate.tpm || !request.tpm, Unfit::NoTpm)?;
    check(candidate.vsock || !request.vsock, Unfit::NoVsock)?;
    check(candidate.wireguard || !request.wireguard, Unfit::NoWireguard)?;
    check(candidate.disk_encryption || !request.disk_encryption, Unfit::NoEncryption)?;
    check(candidate.networks.why_not(&request.bridges).is_none(), Unfit::NoBridge)?;
    check(offers_devices(candidate, request), Unfit::NoDevice)?;
    check(missing_shares(candidate, request).next().is_none(), Unfit::NoShare)?;
    check(request.backup_folders.is_subset(&candidate.backup_folders), Unfit::NoBackupFolder)?;
    check(displays(candidate, request).next().is_none(), Unfit::Display)?;
    check(candidate.ready, Unfit::NotReady)?;
    check(!candidate.cordoned, Unfit::Cordoned)?;
    if let Some(spread) = &rules.spread {
        spread.allows(candidate)?;
    }
    rules.affinity.allows(candidate)?;
    check(request.refused_by.as_ref() != Some(&candidate.name), Unfit::Refused)?;
    check(architecture::fits(candidate, request), Unfit::Architecture)?;
    check(has_cpu_model(candidate, request), Unfit::CpuModel)?;
    check(has_machine_type(candidate, request), Unfit::MachineType)?;
    check(lacking(candidate, request).next().is_none(), Unfit::Devices)?;
    check(candidate.used.cpus + request.cpus <= candidate.allocatable_cpus, Unfit::Cpus)?;
    let dedicated = candidate.used.dedicated_cpus + request.dedicated_cpus;
    check(request.dedicated_cpus == 0 || dedicated <= candidate.dedicated_cpus, Unfit::DedicatedCpus)?;
    let reserved = candidate.used.reserved.saturating_add(request.reserved);
    // A VM without a reservation fits beside any.
    check(request.reserved == 0 || reserved <= candidate.reservable, Unfit::ReservedCpus)?;
    check(is_large_enough(request, candidate), Unfit::Memory)?;
    check(memory_with(request, candidate) <= candidate.allocatable_memory, Unfit::Memory)?;
    check(request.huge_memory.exceeds(&free_huge_memory(candidate)).is_none(), Unfit::HugePages)?;
    check(space::shortage(candidate, request).is_none(), Unfit::Space)
}

/// The memory in huge pages that no VM on the host has.
fn free_huge_memory(candidate: &Candidate) -> HugeMemory {
    candidate.huge_memory.saturating_sub(candidate.used.huge_memory)
}

/// Whether the memory of the VM fits into an empty host, whatever of it is kept for the VM.
fn is_large_enough(request: &Request, candidate: &Candidate) -> bool {
    let most = request.memory.max(request.whole_memory);
    most.saturating_add(candidate.overhead) <= candidate.allocatable_memory
}

/// Memory that is kept on the host once it also has the VM, overhead included.
fn memory_with(request: &Request, candidate: &Candidate) -> u64 {
    let overhead = (candidate.used.vms + 1).saturating_mul(candidate.overhead);
    candidate.used.memory.saturating_add(request.memory).saturating_add(overhead)
}

/// Lower is better: the group's preference, then that of the rules about other VMs, then the VM's preferred labels, then how full the host
/// is, then whether it has an image that others copy, then its name.
fn score<'a>(
    request: &Request,
    rules: &Rules<'_, '_>,
    candidate: &'a Candidate,
    policy: PlacementPolicy,
) -> ((i64, i64), Reverse<usize>, i128, bool, &'a str) {
    let has = |(key, value): &(&String, &String)| candidate.labels.get(*key) == Some(*value);
    let preferences = request.preferred.iter().filter(has).count();
    let left = share_left(request, candidate);
    let fullness = match policy {
        PlacementPolicy::Balance => -left,
        PlacementPolicy::Pack => left,
    };
    let needs_copy = !request.image_hosts.contains(&candidate.name);
    let of_group = rules.spread.as_ref().map_or(0, |spread| spread.distance(candidate));
    let distance = (of_group, rules.affinity.distance(candidate));
    (distance, Reverse(preferences), fullness, needs_copy, &candidate.name)
}

/// The share of the scarcest of CPUs, memory and the space for its new disks that the host has left once it also has the VM, in units of
/// 2^-32.
fn share_left(request: &Request, candidate: &Candidate) -> i128 {
    let share = |used: i128, of: i128| if of > 0 { ((of - used) << 32) / of } else { 0 };
    let cpus = share((candidate.used.cpus + request.cpus).into(), candidate.allocatable_cpus.into());
    let memory = share(memory_with(request, candidate).into(), candidate.allocatable_memory.into());
    let least = cpus.min(memory);
    space::share_left(candidate, request).map_or(least, |disks| least.min(disks))
}
