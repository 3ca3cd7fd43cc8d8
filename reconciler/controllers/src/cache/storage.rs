//! The space for disks on hosts: as each host reports it, and the Disks that are bound there, kept Disk by Disk so that a decision reads
//! the sums. A bound Disk counts before its host has made it, and before the next report.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use berth_api::{
    DeviceBus, DeviceCounts, DeviceName, Disk, Host, HostPool, HostStatus, Provisioning, Quantity,
    StoragePool,
};

use super::quotas::count;
use super::{Cache, Tables};
use crate::key::{Key, ObjectKind};

/// The pools of a host, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HostStorage(BTreeMap<String, PoolSpace>);

/// The space of a pool on a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PoolSpace {
    /// Whether it has a file system of its own. All other pools of the host share one.
    pub(crate) has_folder: bool,
    pub(crate) is_away: bool,
    /// Whether other hosts have the same folder.
    pub(crate) is_shared: bool,
    pub(crate) total: u64,
    pub(crate) free: u64,
    /// The sizes of its disks, also of those that no Disk has.
    pub(crate) promised: u64,
}

/// The space that disks of one pool take, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct DiskDemand {
    /// Their sizes together.
    pub(crate) size: u64,
    /// The sizes of those that are thick and have no file yet, and the space of those that are still to be copied from another host: the free
    /// space includes theirs.
    pub(crate) unmade_thick: u64,
}

impl HostStorage {
    /// Returns None for a host that does not report its pools.
    pub(crate) fn of(status: &HostStatus) -> Option<Arc<Self>> {
        let space = |pool: &HostPool| PoolSpace {
            has_folder: pool.folder.is_some() || pool.shared_id.is_some(),
            is_shared: pool.shared_id.is_some(),
            is_away: !pool.is_there(),
            total: pool.total_bytes(),
            free: pool.free_bytes(),
            promised: pool.promised_bytes(),
        };
        let pools: BTreeMap<String, PoolSpace> =
            status.pools.iter().map(|pool| (pool.name.clone(), space(pool))).collect();
        (!pools.is_empty()).then(|| Arc::new(Self(pools)))
    }

    /// The pools, in the order of their names.
    pub(crate) fn pools(&self) -> impl Iterator<Item = (&str, PoolSpace)> {
        self.0.iter().map(|(name, space)| (name.as_str(), *space))
    }

    /// Returns the space of a pool. One that the host does not list yet will be where those without a folder of their own are.
    pub(crate) fn pool(&self, name: &str) -> Option<PoolSpace> {
        let shared = || self.0.values().find(|space| !space.has_folder);
        self.0.get(name).or_else(shared).copied()
    }

    /// Whether disks may fit that did not before.
    pub(crate) fn offers_more_than(&self, before: &Self) -> bool {
        self.0.iter().any(|(name, now)| {
            before.0.get(name).is_none_or(|before| {
                now.total > before.total
                    || now.free > before.free
                    || now.promised < before.promised
                    || (before.is_away && !now.is_away)
            })
        })
    }
}

#[cfg(test)]
impl<const N: usize> From<[(&str, PoolSpace); N]> for HostStorage {
    fn from(pools: [(&str, PoolSpace); N]) -> Self {
        Self(pools.into_iter().map(|(name, space)| (name.to_owned(), space)).collect())
    }
}

impl DiskDemand {
    /// Returns the demand of one disk. One of unknown size counts as none.
    pub(crate) fn of(tables: &Tables, disk: &Disk) -> Self {
        if disk.block_device().is_some() {
            // It takes no space of its pool.
            return Self::default();
        }
        let size = count::size(tables, disk).unwrap_or_default();
        let is_made = disk.status.as_ref().is_some_and(|status| status.size.is_some());
        let is_thick = disk.spec.provisioning == Provisioning::Thick;
        let is_coming = is_to_be_copied(tables, disk);
        let unmade_thick = match is_thick {
            true if !is_made || is_coming => size,
            false if is_coming => used(disk),
            _ => 0,
        };
        Self { size, unmade_thick }
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            size: self.size.saturating_add(other.size),
            unmade_thick: self.unmade_thick.saturating_add(other.unmade_thick),
        }
    }

    pub(crate) fn minus(self, other: Self) -> Self {
        Self {
            size: self.size.saturating_sub(other.size),
            unmade_thick: self.unmade_thick.saturating_sub(other.unmade_thick),
        }
    }
}

/// Whether the host that a disk is bound to, or will be, has yet to copy it from another one.
fn is_to_be_copied(tables: &Tables, disk: &Disk) -> bool {
    let Some(status) = &disk.status else { return false };
    let bound = status.binding.as_ref().map(|binding| &binding.host);
    let pool = tables.storage_pools.cluster(disk.pool().as_str());
    let is_shared = pool.is_some_and(|pool| pool.spec.pool_type.is_shared());
    !is_shared && status.former_host.as_ref().is_some_and(|former| Some(former) != bound)
}

/// The space that the file of a disk was measured to take.
fn used(disk: &Disk) -> u64 {
    let used = disk.status.as_ref().and_then(|status| status.used.clone());
    used.and_then(|used| Quantity(used).bytes().ok()).unwrap_or_default()
}

/// The name of the block device that a Disk is.
pub(crate) fn device_of(disk: &Disk) -> Option<DeviceName> {
    disk.block_device().map(|name| DeviceName::new(DeviceBus::Block, name.as_str()))
}

/// A Disk that is bound to a host.
#[derive(Clone, Debug, PartialEq, Eq)]
struct BoundDisk {
    host: String,
    pool: String,
    demand: DiskDemand,
    /// The block device that it is.
    devices: DeviceCounts,
}

impl BoundDisk {
    fn of(tables: &Tables, disk: &Disk) -> Option<Self> {
        let host = disk.status.as_ref()?.binding.as_ref()?.host.clone();
        let devices = device_of(disk).map(|name| (name, 1)).into_iter().collect();
        Some(Self { host, pool: disk.pool().to_string(), demand: DiskDemand::of(tables, disk), devices })
    }

    /// Whether it leaves room that it had before.
    fn leaves_room(&self, now: Option<&Self>) -> bool {
        now.is_none_or(|now| {
            (&now.host, &now.pool) != (&self.host, &self.pool)
                || now.demand.size < self.demand.size
                || now.demand.unmade_thick < self.demand.unmade_thick
        })
    }
}

/// The Disks that are bound.
#[derive(Debug, Default)]
pub(super) struct BoundDisks(HashMap<Key, BoundDisk>);

impl Cache {
    /// Counts a Disk on its host after it was cached or removed.
    pub(super) fn count_disk(&mut self, key: &Key) {
        let now = self.tables.disks.get(key).and_then(|disk| BoundDisk::of(&self.tables, disk));
        let before = match &now {
            Some(now) => self.bound_disks.0.insert(key.clone(), now.clone()),
            None => self.bound_disks.0.remove(key),
        };
        if before == now {
            return;
        }
        let capacity = &mut self.index.capacity;
        if let Some(before) = &before {
            capacity.take_disks(&before.host, &before.pool, |used| used.minus(before.demand));
            capacity.give_back_devices(&before.host, &before.devices);
            if before.leaves_room(now.as_ref()) {
                capacity.freed();
            }
        }
        if let Some(now) = &now {
            capacity.take_disks(&now.host, &now.pool, |used| used.plus(now.demand));
            capacity.take_devices(&now.host, &now.devices);
        }
    }

    /// Has VMs that wait for room tried again if a pool may promise another amount, or disks may choose it for its labels. Its status, which
    /// changes often, is no reason.
    pub(super) fn note_limit(&mut self, key: &Key, before: Option<&StoragePool>) {
        let limit = |pool: Option<&StoragePool>| {
            pool.map(|pool| (pool.spec.overcommit_percent, pool.metadata.labels.clone()))
        };
        if limit(before) != limit(self.tables.storage_pools.get(key).map(AsRef::as_ref)) {
            self.index.capacity.freed();
        }
    }
}

fn pools_of(host: Option<&Host>) -> &[HostPool] {
    host.and_then(|host| host.status.as_ref()).map(|status| status.pools.as_slice()).unwrap_or_default()
}

/// Returns the StoragePools that a host reports otherwise than before.
pub(super) fn changed_pools(old: Option<&Host>, new: Option<&Host>) -> BTreeSet<Key> {
    let (old, new) = (pools_of(old), pools_of(new));
    let changed = new.iter().filter(|pool| !old.contains(pool));
    let changed = changed.chain(old.iter().filter(|pool| !new.contains(pool)));
    changed.map(|pool| Key::cluster(ObjectKind::StoragePool, &pool.name)).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;
    use tokio::time::Instant;

    use super::*;

    const GIB: u64 = 1 << 30;

    fn disk(version: u64, size: &str, host: Option<&str>, provisioning: &str, made: Option<&str>) -> Disk {
        let binding = host.map(|host| json!({"host": host, "epoch": 1}));
        let object = json!({
            "metadata": {"name": "d", "namespace": "ns", "uid": "u", "resourceVersion": version.to_string()},
            "spec": {"size": size, "pool": "fast", "provisioning": provisioning},
            "status": {"observedGeneration": 1, "binding": binding, "size": made},
        });
        serde_json::from_value(object).expect("a Disk")
    }

    fn used(cache: &Cache, host: &str) -> Option<DiskDemand> {
        cache.index.capacity.usage(host).disks.get("fast").copied()
    }

    #[test]
    fn a_disk_that_is_a_block_device_takes_that_and_no_space() {
        let mut cache = Cache::new(Duration::from_secs(40));
        let now = Instant::now();
        let bound = |version: u64, host: &str| {
            let mut disk = disk(version, "4Gi", Some(host), "Thin", Some("8Gi"));
            disk.spec.source = serde_json::from_value(json!({"device": "nvme"})).expect("a source");
            disk
        };
        let devices = |cache: &Cache, host: &str| cache.index.capacity.usage(host).devices;
        let nvme = DeviceCounts::from([(DeviceName::new(DeviceBus::Block, "nvme"), 1)]);
        cache.put(bound(1, "h1"), now);
        assert_eq!((devices(&cache, "h1"), used(&cache, "h1")), (nvme.clone(), None));
        cache.put(bound(2, "h2"), now);
        assert_eq!((devices(&cache, "h1"), devices(&cache, "h2")), (DeviceCounts::new(), nvme));
    }

    #[test]
    fn a_disk_counts_on_its_host_from_its_binding_on_until_it_is_gone() {
        let mut cache = Cache::new(Duration::from_secs(40));
        let now = Instant::now();
        cache.put(disk(1, "4Gi", None, "Thick", None), now);
        assert_eq!(used(&cache, "h1"), None);
        cache.put(disk(2, "4Gi", Some("h1"), "Thick", None), now);
        let unmade = DiskDemand { size: 4 * GIB, unmade_thick: 4 * GIB };
        assert_eq!(used(&cache, "h1"), Some(unmade));
        assert!(!cache.index.capacity.take_changes().freed);
        cache.put(disk(3, "4Gi", Some("h1"), "Thick", Some("4Gi")), now);
        assert_eq!(used(&cache, "h1"), Some(DiskDemand { size: 4 * GIB, unmade_thick: 0 }));
        cache.put(disk(4, "6Gi", Some("h1"), "Thick", Some("4Gi")), now);
        assert_eq!(used(&cache, "h1").map(|used| used.size), Some(6 * GIB), "it is about to grow");
        cache.index.capacity.take_changes();
        cache.remove(&Key::namespaced(ObjectKind::Disk, "ns", "d"));
        assert_eq!(used(&cache, "h1"), None);
        assert!(cache.index.capacity.take_changes().freed, "a VM that waits may fit now");
    }

    #[test]
    fn the_scratch_disk_of_a_vm_counts_in_the_pool_default_of_its_host_until_it_is_gone() {
        let mut cache = Cache::new(Duration::from_secs(40));
        let vm = |version: u64, size: &str, has: Option<&str>| -> berth_api::VM {
            let hardware = has.map(|size| {
                json!({"cpus": 1, "memory": "1Gi", "firmware": "UEFI", "machineType": "pc-q35-7.2",
                    "cpuModel": "max", "accelerator": "tcg", "uuid": "u", "scratchDisk": size})
            });
            let object = json!({
                "metadata": {"name": "a", "namespace": "ns", "uid": "u", "resourceVersion": version.to_string()},
                "spec": {"disks": [], "cpus": 1, "memory": "1Gi", "scratchDisk": {"size": size}},
                "status": {"observedGeneration": 1, "binding": {"host": "h1", "epoch": 1}, "hardware": hardware},
            });
            serde_json::from_value(object).expect("a VM")
        };
        let used = |cache: &Cache| cache.index.capacity.usage("h1").disks.get("default").copied();
        cache.put(vm(1, "4Gi", None), Instant::now());
        assert_eq!(used(&cache), Some(DiskDemand { size: 4 * GIB, unmade_thick: 0 }));
        cache.put(vm(2, "1Gi", Some("4Gi")), Instant::now());
        assert_eq!(used(&cache).map(|used| used.size), Some(4 * GIB), "it has the former one until it ends");
        cache.remove(&Key::namespaced(ObjectKind::VM, "ns", "a"));
        assert_eq!(used(&cache), None);
    }

    #[test]
    fn another_limit_of_a_pool_lets_waiting_vms_try_again_and_its_status_does_not() {
        let mut cache = Cache::new(Duration::from_secs(40));
        let pool = |version: u64, percent: i64, hosts: i64| -> StoragePool {
            let object = json!({
                "metadata": {"name": "fast", "uid": "u", "resourceVersion": version.to_string()},
                "spec": {"overcommitPercent": percent},
                "status": {"observedGeneration": 1, "hosts": hosts},
            });
            serde_json::from_value(object).expect("a StoragePool")
        };
        let mut frees = |pool: StoragePool| {
            cache.put(pool, Instant::now());
            cache.index.capacity.take_changes().freed
        };
        assert!(frees(pool(1, 100, 1)));
        assert!(!frees(pool(2, 100, 2)));
        assert!(frees(pool(3, 200, 2)));
    }

    #[test]
    fn a_pool_that_a_host_does_not_list_is_in_its_state_directory() {
        let space = |has_folder, total| PoolSpace { has_folder, total, ..PoolSpace::default() };
        let storage = HostStorage::from([("default", space(false, 10)), ("fast", space(true, 20))]);
        assert_eq!(storage.pool("fast").map(|pool| pool.total), Some(20));
        assert_eq!(storage.pool("new").map(|pool| pool.total), Some(10));
        let full = HostStorage::from([("default", space(false, 10)), ("fast", space(true, 30))]);
        assert!(full.offers_more_than(&storage) && !storage.offers_more_than(&full));
    }

    #[test]
    fn the_pools_that_a_host_reports_otherwise_are_reconciled() {
        let host = |free: &str| {
            let mut host = Host::new("h", berth_api::HostSpec::default());
            let pool = |name: &str, free: &str| HostPool {
                name: name.into(),
                free: free.into(),
                ..HostPool::default()
            };
            let pools = vec![pool("default", "1Gi"), pool("fast", free)];
            host.status = Some(HostStatus { pools, ..HostStatus::default() });
            host
        };
        let names = |old: Option<&Host>, new: Option<&Host>| -> Vec<String> {
            changed_pools(old, new).into_iter().map(|key| key.name.to_string()).collect()
        };
        assert_eq!(names(Some(&host("1Gi")), Some(&host("2Gi"))), ["fast"]);
        assert_eq!(names(Some(&host("1Gi")), Some(&host("1Gi"))), Vec::<String>::new());
        assert_eq!(names(Some(&host("1Gi")), None), ["default", "fast"]);
    }
}
