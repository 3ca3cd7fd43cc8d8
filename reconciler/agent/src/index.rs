//! The last state received from the control plane, and which objects a change concerns. Synchronous: no I/O, no
//! waiting.
//!
//! Which objects a change of a kind concerns is stated in the kind's module in `kinds`, by its [`Indexed`].

mod departed;
mod host_addresses;
mod table;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use berth_api::vm::{Hardware, taken_devices};
use berth_api::{
    Backup, BackupRepository, CpuControls, DeviceCounts, Disk, DiskSnapshot, Host, HotswapDiskAttachment,
    Image, KeyClass, Network, PlacementGroup, Power, Profile, PublicIP, SecurityGroup, Size, SizeError,
    StoragePool, VM, VMClass, VMGroup, VMStatus,
};
use berth_api::{SizeTaken, size_taken};
use kube::runtime::watcher::Event;
use kube::{Resource, ResourceExt};

use crate::key::{Key, ObjectName};
pub(crate) use departed::Departed;
use host_addresses::HostAddresses;
pub(crate) use table::{Change, Table};

const DEFAULT_MTU: u16 = 1500;

/// All objects this agent watches.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    pub(crate) vms: Table<VM>,
    pub(crate) disks: Table<Disk>,
    pub(crate) disk_snapshots: Table<DiskSnapshot>,
    pub(crate) backups: Table<Backup>,
    pub(crate) backup_repositories: Table<BackupRepository>,
    pub(crate) attachments: Table<HotswapDiskAttachment>,
    pub(crate) public_ips: Table<PublicIP>,
    pub(crate) images: Table<Image>,
    pub(crate) classes: Table<VMClass>,
    pub(crate) key_classes: Table<KeyClass>,
    pub(crate) networks: Table<Network>,
    pub(crate) security_groups: Table<SecurityGroup>,
    pub(crate) placement_groups: Table<PlacementGroup>,
    pub(crate) vm_groups: Table<VMGroup>,
    pub(crate) pools: Table<StoragePool>,
    pub(crate) hosts: Table<Host>,
    pub(crate) host_addresses: HostAddresses,
    pub(crate) departed_vms: Departed<VM>,
    pub(crate) departed_disks: Departed<Disk>,
    pub(crate) departed_snapshots: Departed<DiskSnapshot>,
    /// The security groups (`namespace/name`) that the packet filters here were last made of, those of guests whose VMs are not
    /// bound here included. None: none were made since this agent's start.
    pub(crate) filtering_groups: Option<BTreeSet<String>>,
}

impl Tables {
    /// Returns whether each table holds the control plane's objects.
    pub(crate) fn synced(&self) -> [bool; 17] {
        // Names each field, so that the compiler reports one that is missing.
        let Self {
            vms,
            disks,
            disk_snapshots,
            backups,
            backup_repositories,
            attachments,
            public_ips,
            images,
            classes,
            key_classes,
            networks,
            security_groups,
            placement_groups,
            vm_groups,
            pools,
            hosts,
            host_addresses,
            departed_vms: _,
            departed_disks: _,
            departed_snapshots: _,
            filtering_groups: _,
        } = self;
        [
            vms.is_synced(),
            disks.is_synced(),
            disk_snapshots.is_synced(),
            backups.is_synced(),
            backup_repositories.is_synced(),
            attachments.is_synced(),
            public_ips.is_synced(),
            images.is_synced(),
            classes.is_synced(),
            key_classes.is_synced(),
            networks.is_synced(),
            security_groups.is_synced(),
            placement_groups.is_synced(),
            vm_groups.is_synced(),
            pools.is_synced(),
            hosts.is_synced(),
            host_addresses.is_synced(),
        ]
    }

    /// Whether every table holds the control plane's objects.
    pub(crate) fn is_synced(&self) -> bool {
        self.synced().iter().all(|synced| *synced)
    }

    /// Returns the attachments of a VM.
    pub(crate) fn attachments_of(
        &self,
        vm: &ObjectName,
    ) -> impl Iterator<Item = &Arc<HotswapDiskAttachment>> {
        self.attachments
            .all()
            .filter(move |(name, a)| name.namespace == vm.namespace && a.spec.vm.as_str() == vm.name)
            .map(|(_, a)| a)
    }

    /// Returns the keys of the VMs that match.
    pub(crate) fn vms_where(&self, matches: impl Fn(&ObjectName, &VM) -> bool) -> Vec<Key> {
        let vms = self.vms.all().filter(|(name, vm)| matches(name, vm));
        vms.map(|(name, _)| Key::new::<VM>(name.clone())).collect()
    }
}

pub(crate) fn instance_of(vm: &VM) -> Option<&str> {
    vm.status.as_ref()?.instance_id.as_deref()
}

/// Whether a VM is to have a QEMU.
pub(crate) fn is_to_run(vm: &VM) -> bool {
    let is_released = vm.status.as_ref().is_some_and(VMStatus::is_released);
    matches!(vm.spec.power, Power::Running | Power::Paused)
        && vm.metadata.deletion_timestamp.is_none()
        && !is_released
}

/// Returns the MTU for the guests of a network: the one the controllers found to fit, which is the same on all hosts.
pub(crate) fn mtu_of(network: &Network) -> u16 {
    let fits = network.status.as_ref().and_then(|s| s.mtu).or(network.spec.mtu);
    fits.and_then(|mtu| u16::try_from(mtu).ok()).unwrap_or(DEFAULT_MTU)
}

/// Returns the volume id of a bound disk.
pub(crate) fn volume_of(disk: &Disk) -> Option<&str> {
    disk.status.as_ref()?.volume_id.as_deref()
}

/// Returns the host that has the data of a disk, if that is another one than this.
pub(crate) fn left_on<'a>(disk: &'a Disk, own: &str) -> Option<&'a str> {
    let status = disk.status.as_ref()?;
    status.former_host.as_deref().filter(|former| *former != own)
}

/// Returns the class that a VM names.
pub(crate) fn class_of(tables: &Tables, name: &ObjectName, vm: &VM) -> Option<Arc<VMClass>> {
    vm.spec.class.as_ref().and_then(|class| tables.classes.find(&name.namespace, class.as_str()))
}

/// Returns the size with which a VM is started next.
pub(crate) fn declared_size(tables: &Tables, name: &ObjectName, vm: &VM) -> Result<Size, SizeError> {
    let class = class_of(tables, name, vm);
    vm.spec.size(vm.class_values(class.as_deref().map(|class| &class.spec)).as_deref())
}

/// Returns the hardware profile with which a VM is started next.
pub(crate) fn declared_profile(tables: &Tables, name: &ObjectName, vm: &VM) -> Profile {
    let class = class_of(tables, name, vm);
    let image = boot_image(tables, name, vm).and_then(|image| tables.images.find(&name.namespace, &image));
    let image_os = image.and_then(|image| image.spec.guest_os);
    let class = vm.class_values(class.as_deref().map(|class| &class.spec));
    vm.spec.profile_with(class.as_deref(), image_os)
}

/// Returns the name of the Image that a VM's boot disk is made from.
pub(crate) fn boot_image(tables: &Tables, name: &ObjectName, vm: &VM) -> Option<String> {
    let boot = vm.spec.disks.iter().find(|disk| disk.boot)?;
    let disk = tables.disks.get(&name.beside(boot.name.as_str()))?;
    Some(disk.spec.image.as_ref()?.to_string())
}

/// Returns the devices that a VM takes of this host.
pub(crate) fn vm_devices(tables: &Tables, name: &ObjectName, vm: &VM) -> DeviceCounts {
    let class = class_of(tables, name, vm);
    taken_devices(vm, vm.class_values(class.as_deref().map(|class| &class.spec)).as_deref())
}

/// Returns the share of CPU time that a VM declares.
pub(crate) fn cpu_controls(tables: &Tables, name: &ObjectName, vm: &VM) -> CpuControls {
    let class = class_of(tables, name, vm);
    vm.spec.cpu_controls(vm.class_values(class.as_deref().map(|class| &class.spec)).as_deref())
}

/// Returns the capacity that a VM takes of this host, see [`size_taken`].
pub(crate) fn vm_size(tables: &Tables, name: &ObjectName, vm: &VM) -> Option<SizeTaken> {
    let declared = declared_size(tables, name, vm).ok().map(|size| size.taken());
    let has = vm.status.as_ref().and_then(|s| s.hardware.as_ref()).and_then(Hardware::taken);
    let binding = vm.status.as_ref().and_then(|s| s.binding.as_ref());
    let host = binding.and_then(|b| tables.hosts.get(&ObjectName::new("", &b.host)));
    let offered = host.and_then(|host| {
        let status = host.status.as_ref()?;
        let allocatable = status.allocatable.as_ref()?;
        let memory = berth_api::Quantity(allocatable.memory.clone()).bytes().ok()?;
        let (huge_memory, dedicated_cpus) = (status.huge_memory(), status.dedicated_cpu_count());
        let cpus = allocatable.cpus;
        Some(SizeTaken { cpus, dedicated_cpus, memory, huge_memory, ..SizeTaken::default() })
    });
    size_taken(declared, has, offered)
}

/// The shared tables.
#[derive(Debug, Default)]
pub(crate) struct Index {
    tables: Mutex<Tables>,
}

impl Index {
    /// Locks the tables. Never held across an await: the guard is not `Send`.
    pub(crate) fn read(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A kind the agent watches.
pub(crate) trait Indexed: Resource<DynamicType = ()> + Clone {
    fn table(tables: &mut Tables) -> &mut Table<Self>;

    /// Returns the deleted objects of this kind, if the kind tracks them.
    fn departed(_: &mut Tables) -> Option<&mut Departed<Self>> {
        None
    }

    /// Returns the keys to enqueue for an object in this state.
    fn keys_of(name: &ObjectName, object: &Self, tables: &Tables) -> Vec<Key>;

    /// Returns the keys to enqueue for a changed object: those of its old and its new state.
    fn keys_of_change(change: &Change<Self>, tables: &Tables) -> Vec<Key> {
        let both = [&change.old, &change.new];
        both.into_iter().flatten().flat_map(|object| Self::keys_of(&change.name, object, tables)).collect()
    }

    /// Whether the reconcile of this object reads what our own write of its status has changed. If it does not, the
    /// object has just been reconciled with everything it reads.
    fn reads_own_write(_old: &Self, _new: &Self) -> bool {
        true
    }
}

impl Index {
    /// Applies a watch event; returns the keys to enqueue.
    pub(crate) fn apply<K: Indexed>(&self, event: Event<K>) -> Vec<Key> {
        let mut tables = self.read();
        let is_deletion = matches!(event, Event::Delete(_));
        let changes = K::table(&mut tables).apply(event);
        if is_deletion && let Some(departed) = K::departed(&mut tables) {
            changes.iter().filter_map(|change| change.old.clone()).for_each(|object| departed.record(object));
        }
        let mut keys = Vec::new();
        for change in changes {
            keys.extend(K::keys_of_change(&change, &tables));
        }
        keys.sort();
        keys.dedup();
        keys
    }

    /// Records that the control plane does not have the kind.
    pub(crate) fn set_unserved<K: Indexed>(&self) {
        K::table(&mut self.read()).set_unserved();
    }

    /// Keeps the watch events of an object back until [`Index::written`] or [`Index::not_written`].
    pub(crate) fn begin_write<K: Indexed>(&self, object: &K) {
        K::table(&mut self.read()).begin_write(ObjectName::of(object));
    }

    /// Stores the response to one of our own writes; returns the keys to enqueue.
    pub(crate) fn written<K: Indexed>(&self, base: &K, answer: K) -> Vec<Key> {
        let own = Key::of(&answer);
        let is_known = [base, &answer].map(ResourceExt::resource_version);
        let (old, new) = (Arc::new(base.clone()), Arc::new(answer));
        let mut keys = {
            let mut tables = self.read();
            K::table(&mut tables).written(base, new.clone());
            let reads_own_write = K::reads_own_write(&old, &new);
            let change = Change { name: own.name.clone(), old: Some(old), new: Some(new) };
            let mut keys = K::keys_of_change(&change, &tables);
            keys.retain(|key| reads_own_write || *key != own);
            keys
        };
        keys.extend(self.end_write::<K>(&own.name, |kept| !is_known.contains(&kept.resource_version())));
        keys.sort();
        keys.dedup();
        keys
    }

    /// Ends a write that failed or has an unknown result; returns the keys to enqueue.
    pub(crate) fn not_written<K: Indexed>(&self, object: &K) -> Vec<Key> {
        self.end_write::<K>(&ObjectName::of(object), |_| true)
    }

    /// Applies what was kept back during a write, if it is news.
    fn end_write<K: Indexed>(&self, name: &ObjectName, is_news: impl Fn(&K) -> bool) -> Vec<Key> {
        let kept = K::table(&mut self.read()).end_write(name).filter(is_news);
        kept.map(|object| self.apply(Event::Apply(object))).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn disk(name: &str, version: &str) -> Disk {
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "ns", "uid": name, "resourceVersion": version},
            "spec": {"size": "1Gi"},
        }))
        .expect("a disk")
    }

    fn vm(name: &str, disk: &str) -> VM {
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "ns", "uid": name, "resourceVersion": "1"},
            "spec": {"class": "s", "disks": [{"name": disk, "boot": true}]},
        }))
        .expect("a VM")
    }

    fn name(text: &str) -> ObjectName {
        ObjectName::new("ns", text)
    }

    #[test]
    fn a_disk_concerns_the_vms_that_list_it() {
        let index = Index::default();
        index.apply(Event::Apply(vm("web", "root")));
        index.apply(Event::Apply(vm("db", "other")));
        let keys = index.apply(Event::Apply(disk("root", "1")));
        assert_eq!(keys, [Key::new::<Disk>(name("root")), Key::host(), Key::new::<VM>(name("web"))]);
    }

    #[test]
    fn a_list_replaces_everything_at_once_and_tells_of_what_vanished() {
        let index = Index::default();
        index.apply(Event::Apply(disk("a", "1")));
        index.apply(Event::Apply(disk("b", "2")));
        index.apply::<Disk>(Event::Init);
        index.apply(Event::InitApply(disk("b", "2")));
        assert!(index.read().disks.get(&name("a")).is_some(), "not replaced before the list is complete");
        let keys = index.apply::<Disk>(Event::InitDone);
        assert_eq!(keys, [Key::new::<Disk>(name("a")), Key::host()]);
        assert!(index.read().disks.get(&name("a")).is_none());
    }

    #[test]
    fn our_own_write_does_not_come_back_as_a_change() {
        let index = Index::default();
        index.apply(Event::Apply(disk("a", "1")));
        index.written(&disk("a", "1"), disk("a", "2"));
        assert_eq!(index.apply(Event::Apply(disk("a", "2"))), []);
    }

    #[test]
    fn the_answer_to_a_write_never_hides_something_newer() {
        let index = Index::default();
        index.apply(Event::Apply(disk("a", "3")));
        index.written(&disk("a", "1"), disk("a", "2"));
        let known = index.read().disks.get(&name("a")).and_then(|d| d.resource_version());
        assert_eq!(known.as_deref(), Some("3"));
    }

    #[test]
    fn the_event_of_our_own_write_is_no_change_when_it_precedes_the_answer() {
        let index = Index::default();
        index.apply(Event::Apply(disk("a", "1")));
        index.begin_write(&disk("a", "1"));
        assert_eq!(index.apply(Event::Apply(disk("a", "2"))), []);
        assert_eq!(index.written(&disk("a", "1"), disk("a", "2")), [Key::host()]);
        assert_eq!(index.apply(Event::Apply(disk("a", "2"))), []);
    }

    #[test]
    fn no_event_is_lost_during_a_write() {
        let index = Index::default();
        let own = Key::new::<Disk>(name("a"));
        let known = || index.read().disks.get(&name("a")).and_then(|d| d.resource_version());
        index.apply(Event::Apply(disk("a", "1")));
        index.begin_write(&disk("a", "1"));
        index.apply(Event::Apply(disk("a", "2")));
        index.apply(Event::Apply(disk("a", "3")));
        assert!(index.written(&disk("a", "1"), disk("a", "2")).contains(&own), "changed by another");
        assert_eq!(known().as_deref(), Some("3"));
        index.begin_write(&disk("a", "3"));
        index.apply(Event::Apply(disk("a", "4")));
        assert!(index.not_written(&disk("a", "3")).contains(&own), "the answer was lost");
        assert_eq!(known().as_deref(), Some("4"));
        index.begin_write(&disk("a", "4"));
        index.apply(Event::Apply(disk("a", "5")));
        assert!(index.apply(Event::Delete(disk("a", "5"))).contains(&own));
        index.written(&disk("a", "4"), disk("a", "5"));
        assert_eq!(known(), None, "it is gone");
    }
}
