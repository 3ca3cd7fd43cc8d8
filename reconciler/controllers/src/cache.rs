//! A cache of all objects as last seen, with indices over all of them.
//!
//! Synchronous: no I/O. A change returns the keys it concerns. It must not know how anything is decided.

mod backup_secrets;
pub(crate) mod capacity;
pub(crate) mod claims;
mod damaged_backups;
mod image_secrets;
pub(crate) mod index;
mod key_class_secrets;
mod key_set;
mod names;
mod never_bound;
mod public_ports;
pub(crate) mod quotas;
pub(crate) mod recovery;
pub(crate) mod secrets;
pub(crate) mod security_groups;
pub(crate) mod shared_images;
mod silence;
pub(crate) mod storage;
mod table;
pub(crate) mod underlay;
pub(crate) mod users;
pub(crate) mod vm_groups;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use berth_api::{
    ConditionType, HOST_FINALIZER, Host, HostStatus, Image, KeyClass, SizeError, SizeTaken, StoragePool, VM,
    VMClass, condition,
    host::{AddressConflict, MOST_CPUS, MOST_MEMORY, MOST_OVERHEAD},
    size_taken,
    vm::{Hardware, taken_devices},
};
use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt;
use tokio::time::Instant;

use crate::{
    key::{Key, ObjectKind, with_kinds},
    object::Object,
};
use capacity::{Candidate, Demand, HostNetworks};
use claims::Claims;
use index::Index;
use never_bound::NeverBound;
use quotas::Usages;
use recovery::{Recoveries, RecoveryState};
use silence::Silence;
use storage::{BoundDisks, HostStorage, changed_pools};
use table::{AnyTable, Precedence, Table};
use underlay::Underlay;
use users::Users;

macro_rules! define_tables {
    ($($kind:ident, $table:ident, $type:ty;)+) => {
        /// The watched objects, a table for each kind.
        #[derive(Debug, Default)]
        pub(crate) struct Tables {
            $(pub(crate) $table: Table<$type>),+
        }

        impl Tables {
            /// The table of a kind.
            pub(crate) fn of(&self, kind: ObjectKind) -> &dyn AnyTable {
                match kind {
                    $(ObjectKind::$kind => &self.$table),+
                }
            }

            fn of_mut(&mut self, kind: ObjectKind) -> &mut dyn AnyTable {
                match kind {
                    $(ObjectKind::$kind => &mut self.$table),+
                }
            }

            fn put(&mut self, key: &Key, object: Object, precedence: Precedence) -> bool {
                match object {
                    $(Object::$kind(object) => self.$table.put(key, object, precedence)),+
                }
            }
        }
    };
}

with_kinds!(define_tables);

/// The cache of all objects the controllers watch.
#[derive(Debug)]
pub(crate) struct Cache {
    pub(crate) tables: Tables,
    pub(crate) index: Index,
    pub(crate) underlay: Underlay,
    pub(crate) claims: Claims,
    pub(crate) users: Users,
    pub(crate) usages: Usages,
    recoveries: Recoveries,
    silence: Silence,
    /// The images whose sources ask for credentials.
    images_with_secrets: BTreeSet<Key>,
    /// The Backups and Disks whose host reads from a repository, or writes to it.
    repository_users: BTreeSet<Key>,
    /// The Backups whose last verification found damage.
    damaged_backups: BTreeSet<Key>,
    /// The encrypted Disks and DiskSnapshots that are bound.
    encrypted: BTreeSet<Key>,
    bound_disks: BoundDisks,
    never_bound: NeverBound,
}

/// The state of an object in the cache before a change of it.
#[derive(Debug)]
struct Before {
    /// The objects it used; `None`: it did not exist.
    uses: Option<BTreeSet<Key>>,
    is_bound: bool,
    /// The Roles of hosts that download an image with credentials for it.
    secret_roles: Vec<Key>,
    host: Option<Arc<Host>>,
    class: Option<Arc<VMClass>>,
    pool: Option<Arc<StoragePool>>,
    key_class: Option<Arc<KeyClass>>,
}

impl Cache {
    pub(crate) fn new(host_silence: Duration) -> Self {
        Self {
            tables: Tables::default(),
            index: Index::default(),
            underlay: Underlay::default(),
            claims: Claims::default(),
            users: Users::default(),
            usages: Usages::default(),
            recoveries: Recoveries::default(),
            silence: Silence::new(host_silence),
            images_with_secrets: BTreeSet::new(),
            repository_users: BTreeSet::new(),
            damaged_backups: BTreeSet::new(),
            encrypted: BTreeSet::new(),
            bound_disks: BoundDisks::default(),
            never_bound: NeverBound::default(),
        }
    }

    /// Whether every kind has been listed once: no decision is made before.
    pub(crate) fn is_synced(&self) -> bool {
        ObjectKind::ALL.iter().all(|kind| self.tables.of(*kind).is_synced())
    }

    /// Begins the list of a kind.
    pub(crate) fn begin_list(&mut self, kind: ObjectKind) {
        self.tables.of_mut(kind).begin_list();
    }

    /// Records that the list in progress names this object.
    pub(crate) fn list(&mut self, key: &Key) {
        self.tables.of_mut(key.kind).list(key);
    }

    /// Completes the list of a kind; returns the keys it did not name.
    pub(crate) fn end_list(&mut self, kind: ObjectKind) -> Vec<Key> {
        self.tables.of_mut(kind).end_list()
    }

    /// Returns the cached object.
    pub(crate) fn object(&self, key: &Key) -> Option<Object> {
        self.tables.of(key.kind).object(key)
    }

    /// Whether the key is that of a Disk or VM without any status.
    pub(crate) fn is_unreported(&self, key: &Key) -> bool {
        let observed = match key.kind {
            ObjectKind::Disk => {
                self.tables.disks.get(key).map(|disk| disk.status.as_ref().map(|s| s.observed_generation))
            }
            ObjectKind::VM => {
                self.tables.vms.get(key).map(|vm| vm.status.as_ref().map(|s| s.observed_generation))
            }
            _ => None,
        };
        observed.is_some_and(|generation| generation.unwrap_or(-1) == -1)
    }

    /// Whether this VM or Disk may have been bound before, whatever its status says: it has the finalizer, and is not known from its
    /// creation on.
    pub(crate) fn was_bound<K: ResourceExt>(&self, key: &Key, object: &K) -> bool {
        object.finalizers().iter().any(|f| f == HOST_FINALIZER) && !self.never_bound.contains(key)
    }

    /// Returns the objects that a decision about this one binds to it or depends on: the decision is deferred while
    /// one of them is being written.
    pub(crate) fn depends_on(&self, key: &Key) -> Vec<Key> {
        let mut keys = vec![key.clone()];
        let named = |kind, name: &str| Key::namespaced(kind, key.namespace(), name);
        match key.kind {
            ObjectKind::VM => {
                let Some(vm) = self.tables.vms.get(key) else { return keys };
                let disks: Vec<Key> =
                    vm.spec.disks.iter().map(|d| named(ObjectKind::Disk, d.name.as_str())).collect();
                let of_disks =
                    disks.iter().filter_map(|key| self.tables.disks.get(key)).flat_map(|d| users::of_disk(d));
                // A used object gets its finalizer before the bind. A Host does not, and is written often.
                let used =
                    users::of_vm(vm).into_iter().chain(of_disks).filter(|used| used.kind != ObjectKind::Host);
                keys.extend(used.map(|used| self.resolve(&used)));
                keys.extend(disks);
                keys.extend(self.index.made_for(key));
            }
            ObjectKind::HotswapDiskAttachment => {
                if let Some(attachment) = self.tables.attachments.get(key) {
                    keys.push(named(ObjectKind::VM, attachment.spec.vm.as_str()));
                    keys.push(named(ObjectKind::Disk, attachment.spec.disk.as_str()));
                }
            }
            ObjectKind::DiskSnapshot => {
                if let Some(snapshot) = self.tables.disk_snapshots.get(key) {
                    keys.push(named(ObjectKind::Disk, snapshot.spec.disk.as_str()));
                }
            }
            ObjectKind::Backup => {
                if let Some(backup) = self.tables.backups.get(key) {
                    keys.push(named(ObjectKind::BackupRepository, backup.spec.repository.as_str()));
                    let snapshot = backup.spec.snapshot.as_ref();
                    keys.extend(snapshot.map(|name| named(ObjectKind::DiskSnapshot, name.as_str())));
                }
            }
            ObjectKind::VMSnapshot => {
                if let Some(snapshot) = self.tables.vm_snapshots.get(key) {
                    keys.push(named(ObjectKind::VM, snapshot.spec.vm.as_str()));
                    let disks = snapshot.status.iter().flat_map(|status| &status.disks);
                    keys.extend(disks.map(|disk| named(ObjectKind::DiskSnapshot, disk.snapshot.as_str())));
                }
            }
            // A rule counts a snapshot as taken, and a backup as complete, once the server has confirmed it.
            ObjectKind::SnapshotSchedule => keys.extend(self.index.made_for(key)),
            ObjectKind::Image => {
                if let Some(image) = self.tables.images.get(key) {
                    let disk = image.spec.source.disk.as_ref();
                    let of = image.foreign_data().unwrap_or(key.namespace());
                    keys.extend(disk.map(|disk| Key::namespaced(ObjectKind::Disk, of, disk.as_str())));
                    let original = image.original();
                    keys.extend(original.map(|(namespace, name)| {
                        Key::namespaced(ObjectKind::Image, namespace, name.as_str())
                    }));
                }
            }
            ObjectKind::Disk => {
                let source = self.tables.disks.get(key).and_then(|disk| disk.spec.source.as_ref());
                let of = source.map_or(key.namespace(), |source| source.namespace(key.namespace()));
                let disk = source.and_then(|source| source.disk.as_ref());
                keys.extend(disk.map(|disk| Key::namespaced(ObjectKind::Disk, of, disk.as_str())));
            }
            ObjectKind::PublicIP => keys.extend(self.index.vms_with_public_ip(key)),
            // A recovery ends once everything is given back on the server, not when that is decided: after a crash in
            // between, the reports of the host would not count any more.
            ObjectKind::Host => keys.extend(self.claims.by(&key.name).cloned()),
            // A VM's epochs count only once the server has confirmed them.
            ObjectKind::PlacementGroup => keys.extend(self.index.claimants(key)),
            _ => {}
        }
        keys
    }

    /// Whether the given object takes fewer resources than the cached one.
    pub(crate) fn releases(&self, object: &Object) -> bool {
        match object {
            Object::VM(vm) => self.index.releases(&object.key(), vm, self.demand(vm).unwrap_or_default()),
            Object::PublicIP(ip) => self.index.releases_forwarding(&object.key(), ip),
            _ => false,
        }
    }

    /// Caches an object from a watch or from the response to a write, unless the cache has a newer one; returns the
    /// keys it concerns.
    pub(crate) fn put(&mut self, object: impl Into<Object>, now: Instant) -> Vec<Key> {
        self.insert(object.into(), now, Precedence::IfNewer)
    }

    /// Caches an object even if the cache has a newer one.
    pub(crate) fn replace(&mut self, object: Object, now: Instant) -> Vec<Key> {
        self.insert(object, now, Precedence::Always)
    }

    fn insert(&mut self, object: Object, now: Instant, precedence: Precedence) -> Vec<Key> {
        let key = object.key();
        // The indices share the texts of the table's copy.
        let key = self.tables.of(key.kind).key(&key).cloned().unwrap_or(key);
        let before = self.before(&key);
        let uid = object.meta().uid.clone();
        let is_created = before.uses.is_none() && !self.tables.of(key.kind).is_listing();
        if !self.tables.put(&key, object, precedence) {
            return Vec::new();
        }
        self.never_bound.seen(&key, uid.as_deref(), self.is_bound(&key), is_created);
        let mut keys = if key.kind == ObjectKind::Lease { Vec::new() } else { vec![key.clone()] };
        keys.extend(self.index(&key, &before, now));
        keys.extend(self.count_usage(&key));
        self.users_follow(&key, before.uses);
        if matches!(key.kind, ObjectKind::Host | ObjectKind::VM | ObjectKind::Disk) {
            keys.extend(self.recovering());
        }
        match key.kind {
            ObjectKind::Image => self.note_secret(&key),
            ObjectKind::Backup | ObjectKind::Disk => self.note_repository_user(&key),
            _ => {}
        }
        if key.kind == ObjectKind::Backup {
            self.note_damage(&key);
        }
        if matches!(key.kind, ObjectKind::Disk | ObjectKind::DiskSnapshot) {
            self.note_encrypted(&key);
        }
        keys.extend(self.changed_secret_roles(&key, before.secret_roles));
        if self.is_another_class(&key, before.key_class.as_deref()) {
            keys.extend(self.class_roles(&key));
        }
        if before.is_bound && !self.is_bound(&key) {
            let uses = self.uses_of(&key).unwrap_or_default();
            self.users.unbound(&uses);
        }
        keys
    }

    /// Removes an object from the cache; returns the keys that concerns.
    pub(crate) fn remove(&mut self, key: &Key) -> Vec<Key> {
        let before = self.before(key);
        let class_roles = before.key_class.as_ref().map(|_| self.class_roles(key)).unwrap_or_default();
        self.tables.of_mut(key.kind).remove(key);
        self.never_bound.gone(key);
        let mut keys = vec![key.clone()];
        keys.extend(self.index(key, &before, Instant::now()));
        keys.extend(self.count_usage(key));
        self.users_follow(key, before.uses);
        match key.kind {
            ObjectKind::Image => self.note_secret(key),
            ObjectKind::Backup | ObjectKind::Disk => self.note_repository_user(key),
            _ => {}
        }
        if key.kind == ObjectKind::Backup {
            self.note_damage(key);
        }
        if matches!(key.kind, ObjectKind::Disk | ObjectKind::DiskSnapshot) {
            self.note_encrypted(key);
        }
        keys.extend(self.changed_secret_roles(key, before.secret_roles));
        keys.extend(class_roles);
        keys.extend(self.recovering());
        keys
    }

    fn before(&self, key: &Key) -> Before {
        Before {
            uses: self.uses_of(key),
            is_bound: self.is_bound(key),
            secret_roles: self.secret_roles(key),
            host: self.tables.hosts.get(key).cloned(),
            class: self.tables.vm_classes.get(key).cloned(),
            pool: self.tables.storage_pools.get(key).cloned(),
            key_class: self.tables.key_classes.get(key).cloned(),
        }
    }

    /// Updates everything derived from an object after it was cached or removed; returns the keys that concerns.
    fn index(&mut self, key: &Key, before: &Before, now: Instant) -> Vec<Key> {
        match key.kind {
            ObjectKind::Host => self.index_host(key, before.host.as_deref(), now),
            ObjectKind::Lease if self.tables.leases.get(key).is_some() => self.renewed(&key.name, now),
            ObjectKind::Lease => {
                self.silence.forget(&key.name);
                self.update_capacity(&key.name);
                Vec::new()
            }
            ObjectKind::VMClass => {
                let spec = |class: Option<&Arc<VMClass>>| class.map(|class| class.spec.clone());
                let changed = spec(before.class.as_ref()) != spec(self.tables.vm_classes.get(key));
                if changed { self.resize_vms(key) } else { Vec::new() }
            }
            ObjectKind::PlacementGroup => {
                let group = self.tables.placement_groups.get(key);
                self.index.set_group(key, group.map(AsRef::as_ref))
            }
            ObjectKind::PublicIP => {
                let ip = self.tables.public_ips.get(key);
                self.index.set_public_ip(key, ip.map(AsRef::as_ref))
            }
            ObjectKind::VM => {
                let mut keys = self.index_vm(key);
                let vm = self.tables.vms.get(key);
                keys.extend(self.index.vm_groups.set_vm(key, vm.map(AsRef::as_ref)));
                keys
            }
            ObjectKind::VMGroup => {
                let group = self.tables.vm_groups.get(key);
                self.index.vm_groups.set_group(key, group.map(AsRef::as_ref))
            }
            ObjectKind::HotswapDiskAttachment => {
                let attachment = self.tables.attachments.get(key);
                self.index.set_attachment(key, attachment.map(AsRef::as_ref))
            }
            ObjectKind::SecurityGroup => {
                let group = self.tables.security_groups.get(key);
                self.index.security_groups.set(key, group.map(AsRef::as_ref))
            }
            ObjectKind::Network => {
                let network = self.tables.networks.get(key);
                self.index.names.set_network(key, network.is_some_and(|n| n.spec.dns_domain.is_some()));
                Vec::new()
            }
            ObjectKind::VMSnapshot => {
                let maker = self.tables.vm_snapshots.get(key).and_then(|snapshot| index::maker_of(snapshot));
                self.index.set_maker(key, maker)
            }
            ObjectKind::Backup => {
                let made_by = self.tables.backups.get(key).and_then(|backup| backup.scheduled());
                let schedule = |name| Key::namespaced(ObjectKind::SnapshotSchedule, key.namespace(), name);
                let maker = made_by.map(|made_by| schedule(made_by.schedule));
                let mut keys = self.index.set_maker(key, maker);
                keys.extend(self.repository_to_identify(key));
                keys
            }
            ObjectKind::ServiceAccount => self.index.secrets.keys_of_account(key),
            ObjectKind::Disk => {
                self.count_disk(key);
                Vec::new()
            }
            ObjectKind::StoragePool => {
                self.note_limit(key, before.pool.as_deref());
                Vec::new()
            }
            ObjectKind::IPPool
            | ObjectKind::Image
            | ObjectKind::DiskSnapshot
            | ObjectKind::BackupRepository
            | ObjectKind::KeyClass
            | ObjectKind::SnapshotSchedule
            | ObjectKind::Quota
            | ObjectKind::Role
            | ObjectKind::ConfigMap => Vec::new(),
        }
    }

    /// Returns the hosts in a recovery, each of which checks whether its recovery is over.
    fn recovering(&self) -> Vec<Key> {
        self.recoveries.hosts().map(|name| Key::cluster(ObjectKind::Host, name)).collect()
    }

    /// Returns what the cached object uses; `None` if there is no such object.
    fn uses_of(&self, key: &Key) -> Option<BTreeSet<Key>> {
        match key.kind {
            ObjectKind::VM => self.tables.vms.get(key).map(|vm| users::of_vm(vm)),
            ObjectKind::Disk => self.tables.disks.get(key).map(|disk| users::of_disk(disk)),
            ObjectKind::DiskSnapshot => self.tables.disk_snapshots.get(key).map(|s| users::of_snapshot(s)),
            ObjectKind::Backup => self.tables.backups.get(key).map(|backup| users::of_backup(backup)),
            ObjectKind::PublicIP => self.tables.public_ips.get(key).map(|ip| users::of_public_ip(ip)),
            ObjectKind::HotswapDiskAttachment => {
                self.tables.attachments.get(key).map(|a| users::of_attachment(a))
            }
            ObjectKind::VMGroup => self.tables.vm_groups.get(key).map(|group| users::of_vm_group(group)),
            ObjectKind::VMClass => self.tables.vm_classes.get(key).map(|_| BTreeSet::new()),
            ObjectKind::KeyClass => self.tables.key_classes.get(key).map(|_| BTreeSet::new()),
            ObjectKind::Network => self.tables.networks.get(key).map(|_| BTreeSet::new()),
            ObjectKind::Image => self.tables.images.get(key).map(|_| BTreeSet::new()),
            _ => None,
        }
    }

    /// Updates the users index after a change of an object, its creation or its removal.
    fn users_follow(&mut self, key: &Key, before: Option<BTreeSet<Key>>) {
        let now = self.uses_of(key);
        if before.is_some() != now.is_some() {
            self.users.appeared_or_went(key);
        }
        self.users.change(key, &before.unwrap_or_default(), &now.unwrap_or_default());
    }

    /// Returns the PublicIPs with an address conflict on a host's segment that began or ended.
    fn conflicts_changed(&self, old: Option<&Host>, new: &[AddressConflict]) -> Vec<Key> {
        let old = old.and_then(|host| host.status.as_ref()).map(|s| s.address_conflicts.as_slice());
        let old = old.unwrap_or_default();
        let came = new.iter().filter(|conflict| !old.contains(conflict));
        let changed = old.iter().filter(|conflict| !new.contains(conflict)).chain(came);
        let addresses = changed.filter_map(|conflict| conflict.address.parse().ok());
        addresses.filter_map(|address| self.index.public_ip_with(address).cloned()).collect()
    }

    /// Indexes a host; returns the keys that its change concerns.
    fn index_host(&mut self, key: &Key, old: Option<&Host>, now: Instant) -> Vec<Key> {
        let host = self.tables.hosts.get(key).cloned();
        let mut keys = Vec::new();
        match host.as_deref() {
            Some(host) => {
                let conflicts = host.status.as_ref().map(|s| s.address_conflicts.as_slice());
                keys.extend(self.conflicts_changed(old, conflicts.unwrap_or_default()));
                if old.and_then(recovery::since) != recovery::since(host) {
                    keys.extend(self.index.vms_on(&key.name));
                }
                self.recoveries.set(&key.name, Some(host), now);
                self.update_capacity(&key.name);
            }
            None => {
                self.recoveries.set(&key.name, None, now);
                self.index.capacity.remove_host(&key.name);
            }
        }
        keys.extend(changed_pools(old, host.as_deref()));
        keys.extend(self.index_underlay(key, host.as_deref()));
        keys.extend(self.claims.set(&key.name, host.as_deref()));
        keys.extend(self.images_changed(old, host.as_deref()));
        keys
    }

    /// Returns the Images whose file a host has from now on, or has no more.
    fn images_changed(&self, old: Option<&Host>, new: Option<&Host>) -> Vec<Key> {
        fn images(host: Option<&Host>) -> &[String] {
            let status = host.and_then(|host| host.status.as_ref());
            status.map(|status| status.images.as_slice()).unwrap_or_default()
        }
        let (old, new) = (images(old), images(new));
        if old == new {
            return Vec::new();
        }
        let (old, new): (BTreeSet<&String>, BTreeSet<&String>) = (old.iter().collect(), new.iter().collect());
        let changed: BTreeSet<&str> = old.symmetric_difference(&new).map(|digest| digest.as_str()).collect();
        let is_changed =
            |image: &Image| image.stored_digest().is_some_and(|digest| changed.contains(digest.as_str()));
        self.tables
            .images
            .all()
            .filter(|image| is_changed(image))
            .map(|image| Key::of(image.as_ref()))
            .collect()
    }

    /// Indexes a host's address; returns the keys that concerns: its networks, pools that may contain the address.
    fn index_underlay(&mut self, key: &Key, host: Option<&Host>) -> Vec<Key> {
        let changed = self.underlay.set(&key.name, host);
        let mut keys = Vec::new();
        // Each Network's status depends on which ranges are free.
        if changed.fits || changed.address || changed.ranges {
            keys.extend(self.tables.networks.all().map(|network| Key::of(network.as_ref())));
        }
        if changed.address || changed.ipv6 {
            keys.extend(self.tables.ip_pools.all().map(|pool| Key::of(pool.as_ref())));
        }
        if changed.address || changed.ipv6 {
            keys.push(Key::host_addresses());
        }
        keys
    }

    /// Recomputes the usage of a class's VMs on their hosts after the class was resized, created or removed.
    fn resize_vms(&mut self, class: &Key) -> Vec<Key> {
        let vms = self.users_of(class);
        vms.iter().flat_map(|vm| self.index_vm(vm)).collect()
    }

    fn index_vm(&mut self, key: &Key) -> Vec<Key> {
        let Some(vm) = self.tables.vms.get(key).cloned() else {
            return self.index.set_vm(key, None, Demand::default());
        };
        let demand = self.demand(&vm).unwrap_or_default();
        self.index.set_vm(key, Some(&vm), demand)
    }

    /// Updates the scheduler's view of a host.
    fn update_capacity(&mut self, name: &str) {
        let Some(host) = self.tables.hosts.cluster(name) else { return };
        let bytes = |text: &str| berth_api::Quantity(text.to_owned()).bytes().unwrap_or_default();
        let status = host.status.as_ref();
        let ready = status.is_some_and(|s| condition::is_true(&s.conditions, ConditionType::Ready));
        let allocatable = status.and_then(|s| s.allocatable.as_ref());
        // Without a complete inventory, the host may already run the VM that is about to be placed there.
        let reported = status.and_then(|s| s.inventory.as_ref()).is_some_and(|inventory| inventory.complete);
        let recovery = self.recoveries.state(host, self.is_alive(name)).zip(recovery::since(host));
        let real =
            status.and_then(|s| s.capacity.as_ref()).map_or(0, |capacity| capacity.cpus.clamp(0, MOST_CPUS));
        let dedicated_cpus = status.map_or(0, HostStatus::dedicated_cpu_count);
        let kept = host.spec.reserved.as_ref().and_then(|reserved| reserved.cpus).unwrap_or_default();
        let candidate = Candidate {
            name: name.to_owned(),
            labels: host.labels().clone(),
            ready: ready && reported && recovery.is_none() && self.is_alive(name),
            recovery,
            cordoned: host.spec.cordoned
                || host.spec.draining
                || host.spec.fenced
                || host.metadata.deletion_timestamp.is_some(),
            namespaces: Arc::new(host.spec.namespaces.iter().cloned().collect()),
            tpm: status.and_then(|s| s.tpm).unwrap_or_default(),
            vsock: status.and_then(|s| s.vsock).unwrap_or_default(),
            disk_encryption: self.encrypts_disks(name),
            allocatable_cpus: allocatable.map_or(0, |a| a.cpus.clamp(0, MOST_CPUS)),
            allocatable_memory: allocatable.map_or(0, |a| bytes(&a.memory).min(MOST_MEMORY)),
            huge_memory: status.map(HostStatus::huge_memory).unwrap_or_default(),
            dedicated_cpus,
            reservable: u32::try_from(real.saturating_sub(kept).saturating_sub(dedicated_cpus).max(0) * 1000)
                .unwrap_or(u32::MAX),
            cpu_models: Arc::new(status.iter().flat_map(|s| &s.cpu_models).cloned().collect()),
            machine_types: Arc::new(status.iter().flat_map(|s| &s.machine_types).cloned().collect()),
            cpu_levels: status
                .filter(|_| !host.spec.fenced && host.metadata.deletion_timestamp.is_none())
                .map(HostStatus::cpu_levels)
                .unwrap_or_default(),
            devices: Arc::new(status.map(HostStatus::offered_devices).unwrap_or_default()),
            shares: Arc::new(status.map(HostStatus::offered_shares).unwrap_or_default()),
            backup_folders: Arc::new(status.map(HostStatus::offered_backup_folders).unwrap_or_default()),
            networks: Arc::new(HostNetworks {
                networks: status.map(|s| s.networks.clone()).unwrap_or_default(),
                vlans: status.and_then(|s| s.vlans).unwrap_or_default(),
            }),
            storage: status.and_then(HostStorage::of),
            overhead: status.and_then(|s| s.vm_overhead.as_deref()).map_or(0, bytes).min(MOST_OVERHEAD),
            ..Candidate::default()
        };
        self.index.capacity.set_host(candidate);
    }

    /// Returns what a VM takes of its host, see [`size_taken`]. None: its size is not known.
    pub(crate) fn demand(&self, vm: &VM) -> Option<Demand> {
        let namespace = vm.namespace()?;
        let class = vm.spec.class.as_ref();
        let class = class.and_then(|class| self.tables.vm_classes.lookup(&namespace, class.as_str()));
        let class = vm.class_values(class.map(|class| &class.spec));
        let class = class.as_deref();
        let declared = vm.spec.size(class).ok().map(|size| size.taken());
        let has = vm.status.as_ref().and_then(|s| s.hardware.as_ref()).and_then(Hardware::taken);
        // Reported by the host, so it is validated.
        let is_possible = |has: &SizeTaken| {
            let most = has.whole_memory.max(has.huge_memory.total());
            let cpus = has.cpus.max(has.dedicated_cpus);
            (0..=MOST_CPUS).contains(&cpus) && has.cpus.min(has.dedicated_cpus) >= 0 && most <= MOST_MEMORY
        };
        let has = has.filter(is_possible);
        let host = vm.status.as_ref().and_then(|s| s.binding.as_ref()).map(|b| &b.host);
        let host = host.and_then(|host| self.index.capacity.get(host)).filter(|h| h.allocatable_memory > 0);
        let offered = host.map(|h| SizeTaken {
            cpus: h.allocatable_cpus,
            memory: h.allocatable_memory,
            huge_memory: h.huge_memory,
            dedicated_cpus: h.dedicated_cpus,
            ..SizeTaken::default()
        });
        let SizeTaken { cpus, dedicated_cpus, memory, whole_memory, huge_memory } =
            size_taken(declared, has, offered)?;
        Some(Demand {
            cpus,
            dedicated_cpus,
            memory,
            whole_memory,
            huge_memory,
            reserved: vm.spec.cpu_controls(class).reserved,
            devices: taken_devices(vm, class),
        })
    }

    /// Returns why the size that a VM declares, with that of its class, cannot be used.
    pub(crate) fn invalid_size(&self, vm: &VM) -> Option<String> {
        let class = vm.spec.class.as_ref();
        let class = class.and_then(|class| self.tables.vm_classes.lookup(&vm.namespace()?, class.as_str()));
        match vm.spec.size(vm.class_values(class.map(|class| &class.spec)).as_deref()) {
            Ok(_) | Err(SizeError::NoClass(_) | SizeError::NoCpus) => None,
            Err(error) => Some(error.to_string()),
        }
    }

    /// Returns the CPU model that a VM declares.
    pub(crate) fn cpu_model(&self, vm: &VM) -> Option<String> {
        let class = vm.spec.class.as_ref();
        let class = class.and_then(|class| self.tables.vm_classes.lookup(&vm.namespace()?, class.as_str()));
        vm.spec.profile(vm.class_values(class.map(|class| &class.spec)).as_deref()).cpu_model
    }

    /// Whether encrypted disks can be on a host: an older agent would make their files without encryption.
    pub(crate) fn encrypts_disks(&self, host: &str) -> bool {
        let status = self.tables.hosts.cluster(host).and_then(|host| host.status.as_ref());
        status.and_then(|status| status.disk_encryption).unwrap_or_default()
    }

    /// Whether a VM is to have a TPM.
    pub(crate) fn declares_tpm(&self, vm: &VM) -> bool {
        let of_class = || {
            let class = vm.spec.class.as_ref()?;
            let class = self.tables.vm_classes.lookup(&vm.namespace()?, class.as_str());
            Some(vm.class_values(class.map(|class| &class.spec))?.tpm)
        };
        vm.spec.tpm.or_else(of_class).unwrap_or_default()
    }

    /// Whether a host in a recovery has reported, and everything that it or another host holds has been given back:
    /// then no object that is bound now, or placed later, can exist on another host.
    pub(crate) fn is_recovery_over(&self, host: &Host) -> bool {
        let is_reported = |standing| standing == Some(RecoveryState::Reported);
        let name = host.name_any();
        if !is_reported(self.recoveries.state(host, self.is_alive(&name))) {
            return false;
        }
        let awaited = |host: &Candidate| matches!(host.recovery, Some((RecoveryState::Awaited, _)));
        let not_taken_on =
            |key: &Key| self.tables.vms.get(key).is_some_and(|vm| self.is_to_be_placed_anew(vm));
        // An object bound elsewhere but not realized there is bound here once that binding is withdrawn.
        let is_lost = |key: &Key| match key.kind {
            ObjectKind::VM => self.tables.vms.get(key).is_some_and(|vm| {
                let settled = vm.status.as_ref().is_some_and(berth_api::VMStatus::is_admitted);
                !settled && self.claims.of(key, vm.as_ref()).is_some()
            }),
            _ => self.tables.disks.get(key).is_some_and(|disk| {
                let made = |s: &berth_api::DiskStatus| {
                    s.binding.as_ref().is_some_and(|b| b.host == name || s.size.is_some())
                };
                !disk.status.as_ref().is_some_and(made) && self.claims.of(key, disk.as_ref()).is_some()
            }),
        };
        !self.index.capacity.hosts().any(awaited)
            && !self.index.vms_on(&name).iter().any(not_taken_on)
            && !self.claims.by(&name).any(is_lost)
    }

    /// Whether restored status binds the VM to a recovering host that had not admitted it: another host may have.
    pub(crate) fn is_to_be_placed_anew(&self, vm: &VM) -> bool {
        let Some(status) = vm.status.as_ref().filter(|s| !s.is_admitted()) else { return false };
        let host = status.binding.as_ref().and_then(|b| self.tables.hosts.cluster(&b.host));
        let since = host.and_then(|host| recovery::since(host));
        since.is_some_and(|since| vm.creation_timestamp().is_none_or(|made| made.0 <= since))
    }

    /// Whether an administrator has marked the host as fenced.
    pub(crate) fn is_fenced(&self, host: &str) -> bool {
        self.tables.hosts.cluster(host).is_some_and(|host| host.spec.fenced)
    }

    /// Whether the host's agent renews its Lease.
    pub(crate) fn is_alive(&self, host: &str) -> bool {
        self.silence.is_alive(host)
    }

    /// Whether a direct read of the Lease a moment ago confirmed the host's silence: with a lagging watch, we would
    /// otherwise report as unknown, again and again, what a living agent reports.
    pub(crate) fn is_silence_confirmed(&self, host: &str, now: Instant) -> bool {
        self.silence.is_confirmed(host, now)
    }

    /// Records a host's Lease from a direct read; returns the keys that concerns.
    pub(crate) fn read_lease(&mut self, host: &str, lease: Option<Box<Lease>>, now: Instant) -> Vec<Key> {
        let mut keys = lease.map(|lease| self.put(*lease, now)).unwrap_or_default();
        self.silence.was_read(host, now);
        keys.push(Key::cluster(ObjectKind::Host, host));
        keys
    }

    /// Records that a host's agent renewed its Lease; returns the keys that concerns: none, unless it was silent
    /// before. Leases are the most frequent writes, so this visits no other host.
    fn renewed(&mut self, host: &str, now: Instant) -> Vec<Key> {
        if self.silence.renewed(host, now) { self.liveness_changed(host) } else { Vec::new() }
    }

    /// Records which hosts fell silent or came back; returns their keys and those of the VMs on them.
    pub(crate) fn silence_changes(&mut self, now: Instant) -> Vec<Key> {
        let mut changed = self.silence.changes(self.tables.hosts.all().map(|host| host.name_any()), now);
        changed.extend(self.recoveries.changes(now));
        changed.iter().flat_map(|host| self.liveness_changed(host)).collect()
    }

    /// Updates the fleet after a host fell silent or came back; returns its key and those of the VMs on it.
    fn liveness_changed(&mut self, host: &str) -> Vec<Key> {
        self.update_capacity(host);
        let mut keys = vec![Key::cluster(ObjectKind::Host, host)];
        keys.extend(self.index.vms_on(host));
        keys.extend(self.recovering());
        keys
    }
}
