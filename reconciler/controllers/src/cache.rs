//! A cache of all objects as last seen, with indices over all of them.
//!
//! Synchronous: no I/O. A change returns the keys it concerns. It must not know how anything is decided.

pub(crate) mod affinity;
pub(crate) mod architecture;
mod backup_secrets;
pub(crate) mod capacity;
pub(crate) mod claims;
mod damaged_backups;
mod demand;
mod dependencies;
mod hosts;
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

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use berth_api::{HOST_FINALIZER, Host, KeyClass, Network, StoragePool, VMClass};
use kube::ResourceExt;
use tokio::time::Instant;

use crate::key::{Key, ObjectKind, with_kinds};
use crate::object::Object;
use claims::Claims;
use index::Index;
pub(crate) use names::ipv6_addresses_of;
use never_bound::NeverBound;
use quotas::Usages;
use recovery::Recoveries;
use silence::Silence;
use storage::BoundDisks;
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
    /// The Roles by which hosts read Secrets for it: credentials, and keys of classes.
    secret_roles: Vec<Key>,
    /// The KeyClasses whose keys the host of a Disk or DiskSnapshot needs.
    classes: Vec<Key>,
    host: Option<Arc<Host>>,
    class: Option<Arc<VMClass>>,
    pool: Option<Arc<StoragePool>>,
    network: Option<Arc<Network>>,
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

    /// Whether the first report of this Disk may come better from a VM that is created together with it, which binds it. A copy is
    /// made where its source is, whichever VM uses it.
    pub(crate) fn may_be_bound_by_its_vm(&self, key: &Key) -> bool {
        let is_copy = self.tables.disks.get(key).and_then(|disk| disk.spec.source.as_ref());
        let is_copy = is_copy.is_some_and(|source| source.disk.is_some() || source.snapshot.is_some());
        self.is_unreported(key) && !is_copy
    }

    /// Whether this VM or Disk may have been bound before, whatever its status says: it has the finalizer, and is not known from its
    /// creation on.
    pub(crate) fn was_bound<K: ResourceExt>(&self, key: &Key, object: &K) -> bool {
        object.finalizers().iter().any(|f| f == HOST_FINALIZER) && !self.never_bound.contains(key)
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
        keys.extend(self.changed_secret_roles(&key, before.secret_roles, &before.classes));
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
        keys.extend(self.changed_secret_roles(key, before.secret_roles, &before.classes));
        keys.extend(class_roles);
        keys.extend(self.recovering());
        keys
    }

    fn before(&self, key: &Key) -> Before {
        Before {
            uses: self.uses_of(key),
            is_bound: self.is_bound(key),
            secret_roles: self.secret_roles(key),
            classes: self.classes_needed(key),
            host: self.tables.hosts.get(key).cloned(),
            class: self.tables.vm_classes.get(key).cloned(),
            pool: self.tables.storage_pools.get(key).cloned(),
            network: self.tables.networks.get(key).cloned(),
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
                if self.index.affinities.set_vm(key, vm) {
                    self.index.capacity.freed();
                }
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
                let groups = |network: Option<&Arc<Network>>| {
                    network.map(|network| network.spec.security_groups.clone()).unwrap_or_default()
                };
                match groups(before.network.as_ref()) == groups(network) {
                    true => Vec::new(),
                    // The groups of their interfaces are in their status.
                    false => {
                        self.users_of(key).into_iter().filter(|key| key.kind == ObjectKind::VM).collect()
                    }
                }
            }
            ObjectKind::VMSnapshot => {
                let maker = self.tables.vm_snapshots.get(key).and_then(|snapshot| index::maker_of(snapshot));
                self.index.set_maker(key, maker)
            }
            ObjectKind::DiskSnapshot => {
                let made_by = self.tables.disk_snapshots.get(key).and_then(|snapshot| snapshot.scheduled());
                let schedule = |name| Key::namespaced(ObjectKind::SnapshotSchedule, key.namespace(), name);
                let maker = made_by.map(|(name, _)| schedule(name));
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
            ObjectKind::Network => self.tables.networks.get(key).map(|network| users::of_network(network)),
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
}
