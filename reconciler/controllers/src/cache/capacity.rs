//! The hosts as the scheduler sees them, updated host by host and VM by VM, so that a decision reads the sums
//! instead of computing them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use berth_api::host::HostNetwork;
use berth_api::{
    Architecture, BridgeSpec, DEFAULT_NAME, DeviceCounts, DeviceName, HostStatus, HugeMemory, OfferedDevices,
};
use k8s_openapi::jiff::Timestamp;

use crate::cache::recovery;
use crate::cache::storage::{DiskDemand, HostStorage};

/// The architectures that VMs on a host can have. Default: those of a host with an older agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Architectures(BTreeSet<Architecture>);

impl Default for Architectures {
    fn default() -> Self {
        Self(BTreeSet::from([Architecture::X86_64]))
    }
}

impl FromIterator<Architecture> for Architectures {
    fn from_iter<I: IntoIterator<Item = Architecture>>(all: I) -> Self {
        Self(all.into_iter().collect())
    }
}

impl Architectures {
    pub(crate) fn of(status: &HostStatus) -> Self {
        status.offered_architectures().into_iter().collect()
    }

    pub(crate) fn contains(&self, architecture: Architecture) -> bool {
        self.0.contains(&architecture)
    }
}

/// A host as the scheduler sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
    /// Its agent is alive and reports ready.
    pub(crate) ready: bool,
    pub(crate) cordoned: bool,
    /// The namespaces that it is reserved for. None: it takes VMs of all.
    pub(crate) namespaces: Arc<BTreeSet<String>>,
    /// VMs with a TPM can run on it.
    pub(crate) tpm: bool,
    /// VMs with a vsock device can run on it.
    pub(crate) vsock: bool,
    /// VMs on encrypted networks can run on it.
    pub(crate) wireguard: bool,
    /// Encrypted disks can be on it.
    pub(crate) disk_encryption: bool,
    /// Its standing in a recovery, and when that was opened.
    pub(crate) recovery: Option<(recovery::RecoveryState, Timestamp)>,
    /// The capacity VMs may use; zero before its first report.
    pub(crate) allocatable_cpus: i64,
    pub(crate) allocatable_memory: u64,
    /// Its CPUs for single VMs.
    pub(crate) dedicated_cpus: i64,
    /// The bytes of its huge pages.
    pub(crate) huge_memory: HugeMemory,
    /// Thousandths of real CPUs that VMs may reserve.
    pub(crate) reservable: u32,
    /// The architectures that VMs can have.
    pub(crate) architectures: Architectures,
    /// The CPU models that VMs can have.
    pub(crate) cpu_models: Arc<BTreeSet<String>>,
    /// The machine types that VMs can have. None are known of a host with an older agent.
    pub(crate) machine_types: Arc<BTreeSet<String>>,
    /// The levels of x86-64 by which it counts for the level that hosts have in common. None: it does not count.
    pub(crate) cpu_levels: BTreeSet<&'static str>,
    /// The bridges and interfaces of the host.
    pub(crate) networks: Arc<HostNetworks>,
    /// The PCI and USB devices, vGPUs and block devices that VMs can have, by name.
    pub(crate) devices: Arc<BTreeMap<DeviceName, OfferedDevices>>,
    /// The folders that VMs can have, by name, and whether they can write to each.
    pub(crate) shares: Arc<BTreeMap<String, bool>>,
    /// The folders in which Backups can be, by name.
    pub(crate) backup_folders: Arc<BTreeSet<String>>,
    /// The space of its pools. None: it does not report it.
    pub(crate) storage: Option<Arc<HostStorage>>,
    /// Memory a VM takes above its guest memory, in bytes.
    pub(crate) overhead: u64,
    /// The usage by the VMs bound to it.
    pub(crate) used: Usage,
}

/// The bridges and interfaces of a host, which bridged networks name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HostNetworks {
    pub(crate) networks: Vec<HostNetwork>,
    /// Whether its kernel has VLANs.
    pub(crate) vlans: bool,
}

impl HostNetworks {
    /// Returns why a VM on one of these bridges cannot run there, as the end of a sentence that begins with the host.
    pub(crate) fn why_not(&self, bridges: &BTreeSet<BridgeSpec>) -> Option<String> {
        bridges.iter().find_map(|bridge| bridge.disconnected_on(&self.networks, self.vlans))
    }
}

/// Capacity that one VM takes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Demand {
    /// Virtual CPUs on the CPUs that VMs share.
    pub(crate) cpus: i64,
    /// CPUs for single VMs.
    pub(crate) dedicated_cpus: i64,
    /// Bytes of guest memory in ordinary pages that are kept for it, without overhead.
    pub(crate) memory: u64,
    /// All bytes of guest memory in ordinary pages.
    pub(crate) whole_memory: u64,
    /// Bytes of guest memory in huge pages.
    pub(crate) huge_memory: HugeMemory,
    /// Thousandths of real CPUs.
    pub(crate) reserved: u32,
    /// PCI and USB devices and vGPUs by name.
    pub(crate) devices: DeviceCounts,
    /// The size of its scratch disk, in bytes.
    pub(crate) scratch: u64,
}

impl Demand {
    /// The space that it takes of the pool `default`, beside that of its Disks.
    pub(crate) fn scratch_space(&self) -> DiskDemand {
        DiskDemand { size: self.scratch, unmade_thick: 0 }
    }
}

/// Capacity that VMs take.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Virtual CPUs on the CPUs that VMs share.
    pub(crate) cpus: i64,
    /// CPUs for single VMs.
    pub(crate) dedicated_cpus: i64,
    /// Bytes of guest memory in ordinary pages that are kept for them, without overhead.
    pub(crate) memory: u64,
    /// Bytes of guest memory in huge pages.
    pub(crate) huge_memory: HugeMemory,
    /// Thousandths of real CPUs.
    pub(crate) reserved: u32,
    /// PCI and USB devices and vGPUs of VMs, and block devices of Disks, by name.
    pub(crate) devices: DeviceCounts,
    /// The number of VMs.
    pub(crate) vms: u64,
    /// The Disks that are bound, by pool, and in the pool `default` the scratch disks of VMs.
    pub(crate) disks: BTreeMap<String, DiskDemand>,
}

impl Usage {
    fn take_devices(&mut self, devices: &DeviceCounts) {
        for (name, count) in devices {
            *self.devices.entry(name.clone()).or_default() += count;
        }
    }

    fn give_back_devices(&mut self, devices: &DeviceCounts) {
        for (name, count) in devices {
            if let Some(used) = self.devices.get_mut(name) {
                *used -= count;
            }
        }
        self.devices.retain(|_, used| *used > 0);
    }

    fn give_back(&mut self, demand: &Demand) {
        self.cpus -= demand.cpus;
        self.dedicated_cpus -= demand.dedicated_cpus;
        self.memory = self.memory.saturating_sub(demand.memory);
        self.huge_memory = self.huge_memory.saturating_sub(demand.huge_memory);
        self.reserved = self.reserved.saturating_sub(demand.reserved);
        self.give_back_devices(&demand.devices);
        self.vms = self.vms.saturating_sub(1);
        self.change_disks(DEFAULT_NAME, |used| used.minus(demand.scratch_space()));
    }

    fn change_disks(&mut self, pool: &str, change: impl FnOnce(DiskDemand) -> DiskDemand) {
        let changed = change(self.disks.get(pool).copied().unwrap_or_default());
        match changed == DiskDemand::default() {
            true => self.disks.remove(pool),
            false => self.disks.insert(pool.to_owned(), changed),
        };
    }
}

/// The number of members of a group on each host.
pub(crate) type Members = BTreeMap<String, usize>;

/// Every host with its usage by VMs.
#[derive(Debug, Default)]
pub(crate) struct HostCapacity {
    hosts: BTreeMap<String, Candidate>,
    /// Includes hosts without an object (yet).
    usage: HashMap<String, Usage>,
    changes: Changes,
}

/// Changes since the last call of `HostCapacity::take_changes`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    /// Capacity, or a private address, may have become free.
    pub(crate) freed: bool,
    /// A host was added, removed or changed, apart from its usage by VMs.
    pub(crate) hosts: bool,
}

impl HostCapacity {
    pub(crate) fn hosts(&self) -> impl Iterator<Item = &Candidate> + Clone {
        self.hosts.values()
    }

    pub(crate) fn get(&self, host: &str) -> Option<&Candidate> {
        self.hosts.get(host)
    }

    pub(crate) fn usage(&self, host: &str) -> Usage {
        self.usage.get(host).cloned().unwrap_or_default()
    }

    /// Returns the space that disks of a shared pool take on all hosts together.
    pub(crate) fn taken_everywhere(&self, pool: &str) -> DiskDemand {
        let bound =
            self.usage.iter().filter_map(|(host, usage)| Some((host.as_str(), *usage.disks.get(pool)?)));
        let mut taken: BTreeMap<&str, DiskDemand> = bound.collect();
        for (name, host) in &self.hosts {
            let mut reported = host.storage.iter().flat_map(|storage| storage.pools());
            let Some((_, space)) = reported.find(|(of, space)| *of == pool && space.is_shared) else {
                continue;
            };
            // The report has files that no Disk has, and lags behind.
            let of_host = taken.entry(name.as_str()).or_default();
            of_host.size = of_host.size.max(space.promised);
        }
        taken.into_values().fold(DiskDemand::default(), DiskDemand::plus)
    }

    /// Updates a host; its usage comes from the VMs already counted.
    pub(crate) fn set_host(&mut self, host: Candidate) {
        let host = Candidate { used: self.usage(&host.name), ..host };
        let before = self.hosts.get(&host.name);
        if before == Some(&host) {
            return;
        }
        // The space of pools changes often.
        let with_former_space =
            |before: &Candidate| Candidate { storage: before.storage.clone(), ..host.clone() };
        if before.is_some_and(|before| with_former_space(before) == *before) {
            let former = before.and_then(|before| before.storage.as_deref());
            let now = host.storage.as_deref();
            self.changes.freed |= now.zip(former).is_none_or(|(now, former)| now.offers_more_than(former));
        } else {
            // It is not worth checking whether it offers more than before: hosts seldom change otherwise.
            self.changes = Changes { freed: true, hosts: true };
        }
        self.hosts.insert(host.name.clone(), host);
    }

    pub(crate) fn remove_host(&mut self, name: &str) {
        self.changes.hosts |= self.hosts.remove(name).is_some();
    }

    /// Adds a VM's usage to a host.
    pub(crate) fn take(&mut self, host: &str, demand: &Demand) {
        self.change(host, |usage| {
            usage.cpus += demand.cpus;
            usage.dedicated_cpus += demand.dedicated_cpus;
            usage.memory = usage.memory.saturating_add(demand.memory);
            usage.huge_memory = usage.huge_memory.saturating_add(demand.huge_memory);
            usage.reserved = usage.reserved.saturating_add(demand.reserved);
            usage.take_devices(&demand.devices);
            usage.vms += 1;
            usage.change_disks(DEFAULT_NAME, |used| used.plus(demand.scratch_space()));
        });
    }

    /// Subtracts a VM's usage from a host.
    pub(crate) fn give_back(&mut self, host: &str, demand: &Demand) {
        self.change(host, |usage| usage.give_back(demand));
    }

    /// Returns a host without the usage of one VM.
    pub(crate) fn without(&self, host: &str, demand: &Demand) -> Option<Candidate> {
        let mut candidate = self.hosts.get(host)?.clone();
        candidate.used.give_back(demand);
        Some(candidate)
    }

    /// Changes the space that the bound Disks of a pool take on a host.
    pub(crate) fn take_disks(
        &mut self,
        host: &str,
        pool: &str,
        change: impl FnOnce(DiskDemand) -> DiskDemand,
    ) {
        self.change(host, |usage| usage.change_disks(pool, change));
    }

    /// Counts a bound Disk that is a block device of the host.
    pub(crate) fn take_devices(&mut self, host: &str, devices: &DeviceCounts) {
        self.change(host, |usage| usage.take_devices(devices));
    }

    /// Counts it no more.
    pub(crate) fn give_back_devices(&mut self, host: &str, devices: &DeviceCounts) {
        self.change(host, |usage| usage.give_back_devices(devices));
    }

    fn change(&mut self, host: &str, change: impl FnOnce(&mut Usage)) {
        let usage = self.usage.entry(host.to_owned()).or_default();
        change(usage);
        if let Some(candidate) = self.hosts.get_mut(host) {
            candidate.used.clone_from(usage);
        }
        if *usage == Usage::default() {
            self.usage.remove(host);
        }
    }

    /// Records that some VM takes less than it did.
    pub(crate) fn freed(&mut self) {
        self.changes.freed = true;
    }

    /// Returns the changes since the last call.
    pub(crate) fn take_changes(&mut self) -> Changes {
        std::mem::take(&mut self.changes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str) -> Candidate {
        Candidate { name: name.into(), ..Candidate::default() }
    }

    fn demand(cpus: i64, memory: u64, reserved: u32) -> Demand {
        Demand { cpus, memory, reserved, ..Demand::default() }
    }

    #[test]
    fn what_vms_take_of_a_host_is_known_before_and_after_the_host_itself() {
        let mut capacity = HostCapacity::default();
        capacity.take("a", &demand(2, 100, 500));
        capacity.set_host(host("a"));
        capacity.take("a", &demand(1, 50, 250));
        assert_eq!(
            capacity.get("a").map(|h| h.used.clone()),
            Some(Usage { cpus: 3, memory: 150, reserved: 750, vms: 2, ..Usage::default() })
        );
        capacity.give_back("a", &demand(2, 100, 500));
        assert_eq!(
            capacity.get("a").map(|h| h.used.clone()),
            Some(Usage { cpus: 1, memory: 50, reserved: 250, vms: 1, ..Usage::default() })
        );
        capacity.remove_host("a");
        assert_eq!(capacity.usage("a").vms, 1);
    }

    #[test]
    fn devices_are_counted_by_name() {
        let gpu = || DeviceName::new(berth_api::DeviceBus::Pci, "gpu");
        let of = |gpus: i64| Demand { devices: [(gpu(), gpus)].into(), ..demand(1, 1, 0) };
        let mut capacity = HostCapacity::default();
        capacity.take("a", &of(2));
        capacity.take("a", &of(1));
        assert_eq!(capacity.usage("a").devices, [(gpu(), 3)].into());
        capacity.give_back("a", &of(2));
        assert_eq!(capacity.usage("a").devices, [(gpu(), 1)].into());
        capacity.give_back("a", &of(1));
        assert_eq!(capacity.usage("a"), Usage::default());
    }

    #[test]
    fn space_that_becomes_free_may_be_that_which_a_vm_waits_for_and_is_no_change_of_the_host() {
        use crate::cache::storage::PoolSpace;
        let with = |free: u64| {
            let pool = PoolSpace { total: 100, free, ..PoolSpace::default() };
            Candidate { storage: Some(Arc::new([("default", pool)].into())), ..host("a") }
        };
        let mut capacity = HostCapacity::default();
        capacity.set_host(with(10));
        capacity.take_changes();
        capacity.set_host(with(5));
        assert_eq!(capacity.take_changes(), Changes::default());
        capacity.set_host(with(20));
        assert_eq!(capacity.take_changes(), Changes { freed: true, hosts: false });
        assert_eq!(capacity.get("a").cloned(), Some(with(20)));
    }

    #[test]
    fn a_host_that_says_the_same_again_is_no_news() {
        let mut capacity = HostCapacity::default();
        capacity.set_host(host("a"));
        assert_eq!(capacity.take_changes(), Changes { freed: true, hosts: true });
        capacity.take("a", &demand(1, 1, 0));
        capacity.set_host(host("a"));
        assert_eq!(capacity.take_changes(), Changes::default(), "a VM that takes room frees none");
    }
}
