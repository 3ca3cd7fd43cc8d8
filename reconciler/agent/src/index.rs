//! The last state received from the control plane, and which objects a change concerns. Synchronous: no I/O, no
//! waiting.
//!
//! Objects are ordered by name, so that equal contents are processed in the same order.

mod departed;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use berth_api::vm_class::size_taken;
use berth_api::{
    Disk, Host, HotswapDiskAttachment, Image, Network, PublicIP, SHARED_NAMESPACE, StoragePool, VM, VMClass,
};
use kube::ResourceExt;
use kube::runtime::watcher::Event;

use crate::host_addresses::HostAddresses;
use crate::key::{Key, ObjectName};
pub(crate) use departed::Departed;

const DEFAULT_MTU: u16 = 1500;

/// The objects of one kind.
#[derive(Debug)]
pub(crate) struct Table<K> {
    objects: BTreeMap<ObjectName, Arc<K>>,
    /// A list being received; replaces `objects` when it is complete.
    incoming: Option<BTreeMap<ObjectName, Arc<K>>>,
    synced: bool,
}

impl<K> Default for Table<K> {
    fn default() -> Self {
        Self { objects: BTreeMap::new(), incoming: None, synced: false }
    }
}

/// An object before and after a change; at least one of the two is present.
#[derive(Debug)]
pub(crate) struct Change<K> {
    pub(crate) name: ObjectName,
    pub(crate) old: Option<Arc<K>>,
    pub(crate) new: Option<Arc<K>>,
}

impl<K: ResourceExt + Clone> Table<K> {
    pub(crate) fn get(&self, name: &ObjectName) -> Option<Arc<K>> {
        self.objects.get(name).cloned()
    }

    /// Returns the object of this name in this namespace, else in the shared one.
    pub(crate) fn find(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        self.get(&ObjectName::new(namespace, name))
            .or_else(|| self.get(&ObjectName::new(SHARED_NAMESPACE, name)))
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (&ObjectName, &Arc<K>)> {
        self.objects.iter()
    }

    pub(crate) fn is_synced(&self) -> bool {
        self.synced
    }

    /// Applies a watch event. Returns the actual changes.
    fn apply(&mut self, event: Event<K>) -> Vec<Change<K>> {
        match event {
            Event::Init => {
                self.incoming = Some(BTreeMap::new());
                Vec::new()
            }
            Event::InitApply(object) => {
                self.incoming.get_or_insert_default().insert(name_of(&object), Arc::new(object));
                Vec::new()
            }
            Event::InitDone => {
                let new = self.incoming.take().unwrap_or_default();
                let old = std::mem::replace(&mut self.objects, new);
                self.synced = true;
                self.differences(old)
            }
            Event::Apply(object) => {
                let name = name_of(&object);
                let new = Arc::new(object);
                let old = self.objects.insert(name.clone(), new.clone());
                let same = old.as_ref().is_some_and(|o| o.resource_version() == new.resource_version());
                if same { Vec::new() } else { vec![Change { name, old, new: Some(new) }] }
            }
            Event::Delete(object) => {
                let name = name_of(&object);
                let old = self.objects.remove(&name).or_else(|| Some(Arc::new(object)));
                vec![Change { name, old, new: None }]
            }
        }
    }

    fn differences(&self, mut old: BTreeMap<ObjectName, Arc<K>>) -> Vec<Change<K>> {
        let mut changes = Vec::new();
        for (name, new) in &self.objects {
            let before = old.remove(name);
            if before.as_ref().is_none_or(|b| b.resource_version() != new.resource_version()) {
                changes.push(Change { name: name.clone(), old: before, new: Some(new.clone()) });
            }
        }
        let gone = old.into_iter().map(|(name, object)| Change { name, old: Some(object), new: None });
        changes.extend(gone);
        changes
    }

    /// Stores the response to our own write of `base`, unless the table holds a newer version.
    fn written(&mut self, base: &K, answer: K) {
        let name = name_of(&answer);
        let known = self.objects.get(&name);
        if known.is_some_and(|k| k.resource_version() == base.resource_version() && k.uid() == base.uid()) {
            self.objects.insert(name, Arc::new(answer));
        }
    }
}

fn name_of<K: ResourceExt>(object: &K) -> ObjectName {
    ObjectName::new(object.namespace().unwrap_or_default(), object.name_any())
}

/// All objects this agent watches.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    pub(crate) vms: Table<VM>,
    pub(crate) disks: Table<Disk>,
    pub(crate) attachments: Table<HotswapDiskAttachment>,
    pub(crate) public_ips: Table<PublicIP>,
    pub(crate) images: Table<Image>,
    pub(crate) classes: Table<VMClass>,
    pub(crate) networks: Table<Network>,
    pub(crate) pools: Table<StoragePool>,
    pub(crate) hosts: Table<Host>,
    pub(crate) host_addresses: HostAddresses,
    pub(crate) departed_vms: Departed<VM>,
    pub(crate) departed_disks: Departed<Disk>,
}

impl Tables {
    pub(crate) fn is_synced(&self) -> bool {
        self.vms.is_synced()
            && self.disks.is_synced()
            && self.attachments.is_synced()
            && self.public_ips.is_synced()
            && self.images.is_synced()
            && self.classes.is_synced()
            && self.networks.is_synced()
            && self.pools.is_synced()
            && self.hosts.is_synced()
            && self.host_addresses.is_synced()
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

    fn vms_where(&self, wanted: impl Fn(&ObjectName, &VM) -> bool) -> Vec<Key> {
        self.vms.all().filter(|(name, vm)| wanted(name, vm)).map(|(name, _)| Key::Vm(name.clone())).collect()
    }
}

pub(crate) fn instance_of(vm: &VM) -> Option<&str> {
    vm.status.as_ref()?.instance_id.as_deref()
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

/// Returns the CPUs and bytes of guest memory a VM takes of this host, see [`size_taken`].
pub(crate) fn vm_size(tables: &Tables, name: &ObjectName, vm: &VM) -> Option<(i64, u64)> {
    let class = tables.classes.find(&name.namespace, vm.spec.class.as_str());
    let declared = class.and_then(|c| Some((c.spec.cpus, c.spec.memory.bytes().ok()?)));
    let hardware = vm.status.as_ref().and_then(|s| s.hardware.as_ref());
    let has = hardware.and_then(|h| Some((h.cpus, berth_api::Quantity(h.memory.clone()).bytes().ok()?)));
    let binding = vm.status.as_ref().and_then(|s| s.binding.as_ref());
    let host = binding.and_then(|b| tables.hosts.get(&ObjectName::new("", &b.host)));
    let offered = host.and_then(|h| h.status.as_ref()?.allocatable.clone());
    let offered = offered.and_then(|o| Some((o.cpus, berth_api::Quantity(o.memory).bytes().ok()?)));
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
pub(crate) trait Indexed: ResourceExt + Clone + Sized {
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

    /// Stores the response to one of our own writes; returns the other keys to enqueue.
    pub(crate) fn written<K: Indexed>(&self, base: &K, answer: K) -> Vec<Key> {
        let mut tables = self.read();
        let name = name_of(&answer);
        K::table(&mut tables).written(base, answer.clone());
        K::keys_of(&name, &answer, &tables)
    }
}

impl Indexed for VM {
    fn table(tables: &mut Tables) -> &mut Table<Self> {
        &mut tables.vms
    }

    fn departed(tables: &mut Tables) -> Option<&mut Departed<Self>> {
        Some(&mut tables.departed_vms)
    }

    fn keys_of(name: &ObjectName, vm: &Self, tables: &Tables) -> Vec<Key> {
        let mut keys = vec![Key::Vm(name.clone()), Key::Network, Key::Host];
        keys.extend(vm.spec.disks.iter().map(|d| Key::Disk(name.beside(d.name.as_str()))));
        let attached = vm.status.iter().flat_map(|s| &s.disks);
        keys.extend(attached.map(|d| Key::Disk(name.beside(&d.name))));
        for attachment in tables.attachments_of(name) {
            keys.push(Key::Attachment(name.beside(&attachment.name_any())));
            keys.push(Key::Disk(name.beside(attachment.spec.disk.as_str())));
        }
        keys
    }
}

impl Indexed for Disk {
    fn table(tables: &mut Tables) -> &mut Table<Self> {
        &mut tables.disks
    }

    fn departed(tables: &mut Tables) -> Option<&mut Departed<Self>> {
        Some(&mut tables.departed_disks)
    }

    fn keys_of(name: &ObjectName, disk: &Self, tables: &Tables) -> Vec<Key> {
        let mut keys = vec![Key::Disk(name.clone()), Key::Host];
        keys.extend(tables.vms_where(|vm_name, vm| {
            vm_name.namespace == name.namespace && vm.spec.disks.iter().any(|d| d.name.as_str() == name.name)
        }));
        let users = disk.status.iter().flat_map(|s| &s.used_by);
        keys.extend(users.map(|u| Key::Vm(name.beside(&u.vm))));
        let attachments = tables
            .attachments
            .all()
            .filter(|(a_name, a)| a_name.namespace == name.namespace && a.spec.disk.as_str() == name.name);
        keys.extend(attachments.map(|(name, _)| Key::Attachment(name.clone())));
        keys
    }
}

impl Indexed for HotswapDiskAttachment {
    fn table(tables: &mut Tables) -> &mut Table<Self> {
        &mut tables.attachments
    }

    fn keys_of(name: &ObjectName, attachment: &Self, _: &Tables) -> Vec<Key> {
        vec![
            Key::Attachment(name.clone()),
            Key::Vm(name.beside(attachment.spec.vm.as_str())),
            Key::Disk(name.beside(attachment.spec.disk.as_str())),
        ]
    }
}

impl Indexed for PublicIP {
    fn table(tables: &mut Tables) -> &mut Table<Self> {
        &mut tables.public_ips
    }

    fn keys_of(name: &ObjectName, _: &Self, tables: &Tables) -> Vec<Key> {
        let mut keys = tables.vms_where(|vm_name, vm| {
            let names_it = |n: &berth_api::vm::NetworkInterface| {
                n.public_ip.as_ref().is_some_and(|p| p.as_str() == name.name)
            };
            vm_name.namespace == name.namespace && vm.spec.network_interfaces.iter().any(names_it)
        });
        keys.push(Key::Network);
        keys
    }
}

impl Indexed for Image {
    fn table(tables: &mut Tables) -> &mut Table<Self> {
        &mut tables.images
    }

    fn keys_of(name: &ObjectName, _: &Self, tables: &Tables) -> Vec<Key> {
        let uses = |disk: &Disk| disk.spec.image.as_ref().is_some_and(|i| i.as_str() == name.name);
        let disks = tables.disks.all().filter(|(_, disk)| uses(disk));
        let mut keys: Vec<Key> = disks.map(|(name, _)| Key::Disk(name.clone())).collect();
        keys.extend([Key::Image(name.clone()), Key::Host]);
        keys
    }
}

impl Indexed for VMClass {
    fn table(tables: &mut Tables) -> &mut Table<Self> {
        &mut tables.classes
    }

    fn keys_of(name: &ObjectName, _: &Self, tables: &Tables) -> Vec<Key> {
        let mut keys = tables.vms_where(|_, vm| vm.spec.class.as_str() == name.name);
        keys.push(Key::Host);
        keys
    }
}

impl Indexed for Network {
    fn table(tables: &mut Tables) -> &mut Table<Self> {
        &mut tables.networks
    }

    fn keys_of(name: &ObjectName, _: &Self, tables: &Tables) -> Vec<Key> {
        let mut keys = tables
            .vms_where(|_, vm| vm.spec.network_interfaces.iter().any(|n| n.network.as_str() == name.name));
        keys.push(Key::Network);
        keys
    }

    /// A network that is added to or removed from another host concerns no VM, and happens often on large sites.
    fn keys_of_change(change: &Change<Self>, tables: &Tables) -> Vec<Key> {
        if let (Some(old), Some(new)) = (&change.old, &change.new)
            && old.spec == new.spec
            && mtu_of(old) == mtu_of(new)
        {
            return vec![Key::Network];
        }
        let both = [&change.old, &change.new];
        both.into_iter().flatten().flat_map(|object| Self::keys_of(&change.name, object, tables)).collect()
    }
}

impl Indexed for StoragePool {
    fn table(tables: &mut Tables) -> &mut Table<Self> {
        &mut tables.pools
    }

    fn keys_of(_: &ObjectName, _: &Self, _: &Tables) -> Vec<Key> {
        vec![Key::Host]
    }
}

impl Indexed for Host {
    fn table(tables: &mut Tables) -> &mut Table<Self> {
        &mut tables.hosts
    }

    fn keys_of(_: &ObjectName, _: &Self, _: &Tables) -> Vec<Key> {
        vec![Key::Host]
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
        assert_eq!(keys, [Key::Disk(name("root")), Key::Vm(name("web")), Key::Host]);
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
        assert_eq!(keys, [Key::Disk(name("a")), Key::Host]);
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
}
