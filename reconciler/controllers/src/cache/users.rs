//! Users of shared objects: classes, networks, groups of both kinds, pools, images, repositories, hosts.
//!
//! An object that is deleted while in use is held by [`USED_FINALIZER`] and lists its users; it accepts no new users, and is
//! removed with the last of those it has. Only the controllers bind, and only they remove the finalizer, so that nothing is
//! bound to an object that is being deleted.
//!
//! The index is kept per user, so that a change costs no more than the user it is about. The status lists only a few names
//! ([`berth_api::listed_users`]); the used object is reconciled at once when it gets its first user or loses its last one,
//! and after a short delay, which coalesces changes, for all others.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use berth_api::{
    Backup, Disk, DiskSnapshot, EncryptionStatus, HotswapDiskAttachment, LISTED_USERS, Network, ObjectUser,
    PublicIP, Readiness, Reason, ResourceName, SHARED_NAMESPACE, USED_FINALIZER, VM, VMGroup, VMStatus,
    in_use, listed_users,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;

use crate::{
    cache::Cache,
    key::{Key, ObjectKind},
};

/// The users of each object. See the module.
#[derive(Debug, Default)]
pub(crate) struct Users {
    users: HashMap<Key, BTreeSet<Key>>,
    /// For kinds that are found by name alone: the namespaces with an object that names it.
    namespaces: HashMap<(ObjectKind, Arc<str>), BTreeSet<Arc<str>>>,
    /// Objects with changed users, and whether they must be reconciled at once.
    changed: BTreeMap<Key, bool>,
}

/// Whether the kind is looked up in the shared namespace if the user's own has no object of that name.
pub(crate) fn is_shared(kind: ObjectKind) -> bool {
    matches!(kind, ObjectKind::VMClass | ObjectKind::Network | ObjectKind::Image | ObjectKind::KeyClass)
}

/// Returns the objects a VM uses, also the host that its running guest goes to, and the one that has its firmware state until the next one has it. A VM that is being deleted needs its networks, its security groups and its host until its guest has
/// ended, and nothing else: it is never started again.
pub(crate) fn of_vm(vm: &VM) -> BTreeSet<Key> {
    let namespace = vm.namespace().unwrap_or_default();
    let named = |kind, name: &str| Key::namespaced(kind, &namespace, name);
    let status = vm.status.as_ref();
    let host = status.and_then(|s| s.binding.as_ref()).map(|b| Key::cluster(ObjectKind::Host, &b.host));
    // That host is known until it is certain where the running guest is.
    let next = status.and_then(VMStatus::live_move);
    let next = next.map(|migration| Key::cluster(ObjectKind::Host, &migration.to));
    let former = vm.firmware_state_on().filter(|_| vm.metadata.deletion_timestamp.is_none());
    let former = former.map(|host| Key::cluster(ObjectKind::Host, host));
    let mut uses = BTreeSet::new();
    if host.is_some() || vm.metadata.deletion_timestamp.is_none() {
        let interfaces = vm.spec.network_interfaces.iter();
        uses.extend(interfaces.map(|i| named(ObjectKind::Network, i.network.as_str())));
        // The networks its addresses come from, whichever network the name resolves to today.
        let given = status.into_iter().flat_map(|s| &s.interfaces).filter_map(|i| i.network.split_once('/'));
        uses.extend(given.map(|(namespace, name)| Key::namespaced(ObjectKind::Network, namespace, name)));
        let declared = vm.spec.network_interfaces.iter().flat_map(|i| &i.security_groups).map(|g| g.as_str());
        let had = status.into_iter().flat_map(|s| &s.interfaces).flat_map(|i| &i.security_groups);
        let groups = declared.chain(had.map(String::as_str));
        uses.extend(groups.map(|group| named(ObjectKind::SecurityGroup, group)));
    }
    if vm.metadata.deletion_timestamp.is_none() {
        uses.extend(vm.spec.class.as_ref().map(|class| named(ObjectKind::VMClass, class.as_str())));
        let media = vm.spec.cdroms.iter().filter_map(|cdrom| cdrom.image.as_ref());
        uses.extend(media.map(|image| named(ObjectKind::Image, image.as_str())));
        let group = vm.spec.placement.as_ref().and_then(|p| p.group.as_ref());
        uses.extend(group.map(|group| named(ObjectKind::PlacementGroup, group.as_str())));
        uses.extend(vm.spec.vm_group.as_ref().map(|group| named(ObjectKind::VMGroup, group.as_str())));
    }
    uses.extend(host);
    uses.extend(next);
    uses.extend(former);
    uses
}

/// Returns the group that a VMGroup is a member of.
pub(crate) fn of_vm_group(group: &VMGroup) -> BTreeSet<Key> {
    let namespace = group.namespace().unwrap_or_default();
    let parent = group.spec.parent.as_ref().filter(|_| group.metadata.deletion_timestamp.is_none());
    parent.map(|name| Key::namespaced(ObjectKind::VMGroup, &namespace, name.as_str())).into_iter().collect()
}

/// Returns the objects a Disk uses, also the host that has its data until the next one has it. One that is being deleted needs its host, its
/// pool for the trash, and the class of its key.
pub(crate) fn of_disk(disk: &Disk) -> BTreeSet<Key> {
    let namespace = disk.namespace().unwrap_or_default();
    let host = disk.status.as_ref().and_then(|s| s.binding.as_ref());
    let stays = disk.metadata.deletion_timestamp.is_none();
    let image = disk.spec.image.as_ref().filter(|_| stays);
    let uses_pool = stays || host.is_some();
    let pool = |name: &ResourceName| Key::cluster(ObjectKind::StoragePool, name.as_str());
    let uses_pool = uses_pool && !disk.awaits_pool();
    // Both while it is to be moved.
    let pools = [disk.target_pool(), disk.pool()].into_iter().filter(|_| uses_pool).map(pool);
    let image = image.map(|image| Key::namespaced(ObjectKind::Image, &namespace, image.as_str()));
    let host = host.map(|b| Key::cluster(ObjectKind::Host, &b.host));
    let former = disk.status.as_ref().and_then(|status| status.former_host.as_ref());
    let former = former.map(|former| Key::cluster(ObjectKind::Host, former));
    let declared = disk.spec.encryption.as_ref().filter(|_| stays || host.is_some());
    let declared = declared.map(|e| Key::namespaced(ObjectKind::KeyClass, &namespace, e.key_class.as_str()));
    let has = classes_of(disk.status.as_ref().and_then(|s| s.encryption.as_deref()));
    [image, host, former, declared].into_iter().flatten().chain(pools).chain(has).collect()
}

/// Returns the KeyClasses that protect the key of an encrypted Disk or DiskSnapshot: the one that it has, and the one that is about to do so.
pub(crate) fn classes_of(encryption: Option<&EncryptionStatus>) -> impl Iterator<Item = Key> {
    let classes = encryption.into_iter().flat_map(EncryptionStatus::classes);
    classes.map(|(namespace, name)| Key::namespaced(ObjectKind::KeyClass, namespace, name))
}

/// Returns the objects a PublicIP uses.
pub(crate) fn of_public_ip(ip: &PublicIP) -> BTreeSet<Key> {
    let stays = ip.metadata.deletion_timestamp.is_none();
    stays.then(|| Key::cluster(ObjectKind::IPPool, ip.spec.pool.as_str())).into_iter().collect()
}

/// Returns the objects a Network uses: the pool of its prefix, also while it is being deleted.
pub(crate) fn of_network(network: &Network) -> BTreeSet<Key> {
    let pool = network.prefix_pool().map(|pool| Key::cluster(ObjectKind::IPPool, pool.as_str()));
    pool.into_iter().collect()
}

/// Returns the objects a snapshot uses: its host, the pool of its file, and the class of its key.
pub(crate) fn of_snapshot(snapshot: &DiskSnapshot) -> BTreeSet<Key> {
    let status = snapshot.status.as_ref();
    let host = status.and_then(|s| s.binding.as_ref()).map(|b| Key::cluster(ObjectKind::Host, &b.host));
    let pool = status.and_then(|s| s.pool.as_ref());
    let pool = pool.map(|pool| Key::cluster(ObjectKind::StoragePool, pool.as_str()));
    let classes = classes_of(status.and_then(|s| s.encryption.as_deref()));
    [host, pool].into_iter().flatten().chain(classes).collect()
}

/// Returns the objects a Backup uses: its repository, its host, and the pool of its snapshot until it is complete.
pub(crate) fn of_backup(backup: &Backup) -> BTreeSet<Key> {
    let namespace = backup.namespace().unwrap_or_default();
    let status = backup.status.as_ref();
    let host = status.and_then(|s| s.binding.as_ref()).map(|b| Key::cluster(ObjectKind::Host, &b.host));
    let pool = status.filter(|_| !backup.is_complete()).and_then(|s| s.pool.as_ref());
    let pool = pool.map(|pool| Key::cluster(ObjectKind::StoragePool, pool.as_str()));
    let repository =
        Key::namespaced(ObjectKind::BackupRepository, &namespace, backup.spec.repository.as_str());
    [Some(repository), host, pool].into_iter().flatten().collect()
}

/// Returns the objects an attachment uses, beside its disk and its VM.
pub(crate) fn of_attachment(attachment: &HotswapDiskAttachment) -> BTreeSet<Key> {
    let binding = attachment.status.as_ref().and_then(|s| s.binding.as_ref());
    binding.map(|b| Key::cluster(ObjectKind::Host, &b.host)).into_iter().collect()
}

/// The state of the finalizer that holds an object in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Protection {
    /// There is nothing to do.
    None,
    /// It is used and not held yet.
    Hold,
    /// It is deleted and still used.
    Wait(Readiness),
    /// It is deleted and not used.
    Release,
}

/// Returns the action for the finalizer of an object with these users.
pub(crate) fn protection(meta: &ObjectMeta, users: &[ObjectUser]) -> Protection {
    match (meta.deletion_timestamp.is_some(), users.is_empty()) {
        (true, true) => Protection::Release,
        (true, false) => Protection::Wait(Readiness::Reconciling(Reason::InUse, in_use(users))),
        (false, false) if !is_held(meta) => Protection::Hold,
        (false, _) => Protection::None,
    }
}

fn is_held(meta: &ObjectMeta) -> bool {
    meta.finalizers.iter().flatten().any(|finalizer| finalizer == USED_FINALIZER)
}

impl Users {
    /// Replaces what an object used before with what it uses now.
    pub(crate) fn change(&mut self, user: &Key, before: &BTreeSet<Key>, now: &BTreeSet<Key>) {
        for used in before.difference(now) {
            let Some(users) = self.users.get_mut(used) else { continue };
            users.remove(user);
            let last = users.is_empty();
            if last {
                self.users.remove(used);
                self.unname(used);
            }
            self.mark_changed(used, last);
        }
        for used in now.difference(before) {
            let users = self.users.entry(used.clone()).or_default();
            let first = users.is_empty();
            users.insert(user.clone());
            if first && let Some(namespace) = used.namespace.clone().filter(|_| is_shared(used.kind)) {
                self.namespaces.entry((used.kind, used.name.clone())).or_default().insert(namespace);
            }
            self.mark_changed(used, first);
        }
    }

    fn unname(&mut self, used: &Key) {
        let name = (used.kind, used.name.clone());
        if let Some(namespaces) = self.namespaces.get_mut(&name) {
            namespaces.remove(used.namespace());
            if namespaces.is_empty() {
                self.namespaces.remove(&name);
            }
        }
    }

    fn mark_changed(&mut self, used: &Key, at_once: bool) {
        *self.changed.entry(used.clone()).or_default() |= at_once;
        if is_shared(used.kind) && used.namespace() != SHARED_NAMESPACE {
            let shared = Key::namespaced(used.kind, SHARED_NAMESPACE, &used.name);
            *self.changed.entry(shared).or_default() |= at_once;
        }
    }

    /// Records that a user that still names these objects is no longer bound: it may have been the only one that
    /// held a deleted object.
    pub(crate) fn unbound(&mut self, uses: &BTreeSet<Key>) {
        uses.iter().for_each(|used| self.mark_changed(used, false));
    }

    /// Records that an object was created or removed: objects that name it now refer to it, or to the shared one of
    /// that name.
    pub(crate) fn appeared_or_went(&mut self, used: &Key) {
        if is_shared(used.kind) && self.users.contains_key(used) {
            self.mark_changed(used, true);
        }
    }

    /// Returns the objects with changed users since the last call, and whether they must be reconciled at once.
    pub(crate) fn take_changes(&mut self) -> BTreeMap<Key, bool> {
        std::mem::take(&mut self.changed)
    }

    /// Returns the users of an object, by name. `exists` says whether there is an object: a user that names one in
    /// its own namespace does not refer to the shared one.
    fn of<'a>(&'a self, used: &'a Key, exists: impl Fn(&Key) -> bool + 'a) -> impl Iterator<Item = &'a Key> {
        let from = |namespace: &str| Key::namespaced(used.kind, namespace, &used.name);
        let shared = is_shared(used.kind) && used.namespace() == SHARED_NAMESPACE;
        let name = (used.kind, used.name.clone());
        let elsewhere = self.namespaces.get(&name).filter(|_| shared).into_iter().flatten();
        let elsewhere = elsewhere.filter(|ns| ***ns != *SHARED_NAMESPACE).map(move |ns| from(ns));
        let elsewhere = elsewhere.filter(move |key| !exists(key));
        let own = self.users.get(used).into_iter().flatten();
        own.chain(elsewhere.flat_map(|key| self.users.get(&key).into_iter().flatten()))
    }

    fn is_user(&self, used: &Key, user: &Key, exists: impl Fn(&Key) -> bool) -> bool {
        let uses = |used: &Key| self.users.get(used).is_some_and(|users| users.contains(user));
        let own = Key { namespace: user.namespace.clone(), ..used.clone() };
        let shared = is_shared(used.kind) && used.namespace() == SHARED_NAMESPACE;
        uses(used) || (shared && own != *used && uses(&own) && !exists(&own))
    }

    /// Returns the users the object lists, see [`listed_users`].
    pub(crate) fn listed(
        &self,
        used: &Key,
        before: &[ObjectUser],
        exists: impl Fn(&Key) -> bool,
        counts: impl Fn(&Key) -> bool,
    ) -> Vec<ObjectUser> {
        let is_user = |user: &ObjectUser| {
            let kind = ObjectKind::ALL.iter().find(|kind| kind.as_str() == user.kind);
            kind.is_some_and(|kind| {
                let user = Key::namespaced(*kind, &user.namespace, &user.name);
                counts(&user) && self.is_user(used, &user, &exists)
            })
        };
        let all =
            self.of(used, &exists).filter(|user| counts(user)).take(LISTED_USERS * 2).map(|key| ObjectUser {
                kind: key.kind.as_str().to_owned(),
                namespace: key.namespace().to_owned(),
                name: key.name.to_string(),
            });
        listed_users(before, is_user, all)
    }
}

impl Cache {
    /// Resolves a name: to the shared object if there is none in the user's namespace.
    pub(crate) fn resolve(&self, named: &Key) -> Key {
        match is_shared(named.kind) && !self.exists(named) {
            true => Key::namespaced(named.kind, SHARED_NAMESPACE, &named.name),
            false => named.clone(),
        }
    }

    /// Returns the users an object should list.
    pub(crate) fn listed_users(&self, used: &Key, before: &[ObjectUser]) -> Vec<ObjectUser> {
        // Every user of a Host has something there, also a VM that has left it without its firmware state.
        let counts_all = used.kind == ObjectKind::Host || !self.is_deleted(used);
        self.users.listed(used, before, |key| self.exists(key), |user| counts_all || self.is_bound(user))
    }

    /// Returns all users. There may be many: for changes made by a person, never for each change of a user.
    pub(crate) fn users_of(&self, used: &Key) -> Vec<Key> {
        self.users.of(used, |key| self.exists(key)).cloned().collect()
    }

    fn exists(&self, key: &Key) -> bool {
        self.meta_of_used(key).is_some()
    }

    /// Whether a used object has the finalizer; `None` if there is no such object.
    pub(crate) fn is_held(&self, key: &Key) -> Option<bool> {
        self.meta_of_used(key).map(is_held)
    }

    /// Whether a used object is being deleted.
    pub(crate) fn is_deleted(&self, key: &Key) -> bool {
        self.meta_of_used(key).is_some_and(|meta| meta.deletion_timestamp.is_some())
    }

    /// Returns the first of these objects that is being deleted: nothing that names it is bound. A host does not count: what has left it, or
    /// is leaving it, goes to another one, and the host goes once the last has.
    pub(crate) fn first_deleted(&self, named: impl IntoIterator<Item = Key>) -> Option<Key> {
        let named = named.into_iter().filter(|key| key.kind != ObjectKind::Host);
        named.map(|key| self.resolve(&key)).find(|key| self.is_deleted(key))
    }

    fn meta_of_used(&self, key: &Key) -> Option<&ObjectMeta> {
        let is_used = matches!(
            key.kind,
            ObjectKind::VMClass
                | ObjectKind::KeyClass
                | ObjectKind::Network
                | ObjectKind::PlacementGroup
                | ObjectKind::VMGroup
                | ObjectKind::SecurityGroup
                | ObjectKind::Image
                | ObjectKind::StoragePool
                | ObjectKind::BackupRepository
                | ObjectKind::IPPool
                | ObjectKind::Host
        );
        self.tables.of(key.kind).meta(key).filter(|_| is_used)
    }

    /// Whether a user is bound: a VM, Disk, snapshot or attachment to its host, a PublicIP to its address. A Disk that has left its host also
    /// is while that has its data: without its pool and its image, it would not get to the next one. A VM that has left its host is not: as a
    /// new one, it waits for a network or a class of that name, and would forever hold one that is being deleted. A Backup also is while it
    /// has data in its repository. A Network is to the pool of its prefix. A VMGroup holds the one that it is a member of.
    pub(crate) fn is_bound(&self, user: &Key) -> bool {
        match user.kind {
            ObjectKind::VM => self
                .tables
                .vms
                .get(user)
                .is_some_and(|o| o.status.as_ref().is_some_and(|s| s.binding.is_some())),
            ObjectKind::Disk => self.tables.disks.get(user).is_some_and(|o| {
                o.status.as_ref().is_some_and(|s| s.binding.is_some() || s.former_host.is_some())
            }),
            ObjectKind::DiskSnapshot => self
                .tables
                .disk_snapshots
                .get(user)
                .is_some_and(|o| o.status.as_ref().is_some_and(|s| s.binding.is_some())),
            ObjectKind::Backup => self.tables.backups.get(user).is_some_and(|backup| {
                backup.status.as_ref().is_some_and(|s| s.binding.is_some() || s.backup_id.is_some())
            }),
            ObjectKind::HotswapDiskAttachment => self
                .tables
                .attachments
                .get(user)
                .is_some_and(|o| o.status.as_ref().is_some_and(|s| s.binding.is_some())),
            ObjectKind::PublicIP => self
                .tables
                .public_ips
                .get(user)
                .is_some_and(|o| o.status.as_ref().is_some_and(|s| s.address.is_some())),
            ObjectKind::VMGroup => self.tables.vm_groups.get(user).is_some(),
            ObjectKind::Network => self
                .tables
                .networks
                .get(user)
                .is_some_and(|o| o.status.as_ref().is_some_and(|s| !s.ipv6_cidr.is_empty())),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vm(namespace: &str, name: &str) -> Key {
        Key::namespaced(ObjectKind::VM, namespace, name)
    }

    fn class(namespace: &str) -> Key {
        Key::namespaced(ObjectKind::VMClass, namespace, "small")
    }

    fn names(listed: &[ObjectUser]) -> Vec<String> {
        listed.iter().map(|u| format!("{}/{}", u.namespace, u.name)).collect()
    }

    #[test]
    fn what_leaves_a_host_that_is_being_deleted_is_bound_to_another_one() {
        let now = tokio::time::Instant::now();
        let mut cache = Cache::new(std::time::Duration::from_secs(40));
        let metadata = |name: &str| {
            let deleted = "2026-01-01T00:00:00Z";
            serde_json::json!({"name": name, "resourceVersion": "1", "deletionTimestamp": deleted})
        };
        let host = serde_json::json!({"apiVersion": "berth.dev/v1alpha1", "kind": "Host", "metadata": metadata("a"), "spec": {}});
        cache.put(serde_json::from_value::<berth_api::Host>(host).expect("a host"), now);
        let pool = serde_json::json!({"apiVersion": "berth.dev/v1alpha1", "kind": "StoragePool", "metadata": metadata("fast"), "spec": {}});
        cache.put(serde_json::from_value::<berth_api::StoragePool>(pool).expect("a pool"), now);
        let first = |pool: &str| {
            let spec = serde_json::json!({"size": "1Gi", "pool": pool});
            let status = serde_json::json!({"size": "1Gi", "pool": pool, "formerHost": "a"});
            let left = serde_json::json!({"metadata": {"name": "root", "namespace": "ns"}, "spec": spec, "status": status});
            cache.first_deleted(of_disk(&serde_json::from_value(left).expect("a disk")))
        };
        assert_eq!(first("slow"), None);
        assert_eq!(first("fast"), Some(Key::cluster(ObjectKind::StoragePool, "fast")));
    }

    #[test]
    fn a_disk_between_two_hosts_holds_what_it_uses_with_the_host_that_has_its_data() {
        let now = tokio::time::Instant::now();
        let mut cache = Cache::new(std::time::Duration::from_secs(40));
        let disk = |name: &str, former: Option<&str>| -> Disk {
            let metadata = serde_json::json!({"name": name, "namespace": "ns", "resourceVersion": "1"});
            let status = serde_json::json!({"size": "1Gi", "formerHost": former});
            let spec = serde_json::json!({"size": "1Gi"});
            serde_json::from_value(serde_json::json!({"metadata": metadata, "spec": spec, "status": status}))
                .expect("a disk")
        };
        for disk in [disk("left", Some("a")), disk("new", None)] {
            cache.put(disk, now);
        }
        let is_bound = |name: &str| cache.is_bound(&Key::namespaced(ObjectKind::Disk, "ns", name));
        assert!(is_bound("left"), "the host is not forgotten with the only file of the disk");
        assert!(!is_bound("new"));
    }

    #[test]
    fn a_vm_that_has_left_its_host_holds_the_host_with_its_firmware_state_and_no_network() {
        let now = tokio::time::Instant::now();
        let mut cache = Cache::new(std::time::Duration::from_secs(40));
        let deleted = |name: &str, namespace: Option<&str>| {
            serde_json::json!({"name": name, "namespace": namespace, "resourceVersion": "1",
                "deletionTimestamp": "2026-01-01T00:00:00Z"})
        };
        let host = serde_json::json!({"metadata": deleted("a", None), "spec": {}});
        cache.put(serde_json::from_value::<berth_api::Host>(host).expect("a host"), now);
        let network =
            serde_json::json!({"metadata": deleted("net", Some("ns")), "spec": {"cidr": "10.0.0.0/24"}});
        cache.put(serde_json::from_value::<Network>(network).expect("a network"), now);
        let left: VM = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "web", "namespace": "ns", "resourceVersion": "1"},
            "spec": {"class": "small", "disks": [], "networkInterfaces": [{"name": "eth0", "network": "net"}]},
            "status": {"formerHost": "a"},
        }))
        .expect("a VM");
        cache.put(left, now);
        let users = |used: Key| names(&cache.listed_users(&used, &[]));
        assert_eq!(users(Key::cluster(ObjectKind::Host, "a")), ["ns/web"]);
        assert_eq!(
            users(Key::namespaced(ObjectKind::Network, "ns", "net")),
            [""; 0],
            "it waits for a new one"
        );
    }

    #[test]
    fn the_first_user_and_the_last_are_told_at_once_and_the_others_later() {
        let mut users = Users::default();
        let (none, uses) = (BTreeSet::new(), BTreeSet::from([class("a")]));
        users.change(&vm("a", "one"), &none, &uses);
        assert_eq!(users.take_changes().get(&class("a")), Some(&true));
        users.change(&vm("a", "two"), &none, &uses);
        assert_eq!(users.take_changes().get(&class("a")), Some(&false));
        users.change(&vm("a", "two"), &uses, &uses);
        assert!(users.take_changes().is_empty(), "a VM that changes otherwise is no news");
        users.change(&vm("a", "one"), &uses, &none);
        assert_eq!(users.take_changes().get(&class("a")), Some(&false));
        users.change(&vm("a", "two"), &uses, &none);
        assert_eq!(users.take_changes().get(&class("a")), Some(&true));
        assert!(users.users.is_empty() && users.namespaces.is_empty());
    }

    #[test]
    fn who_names_an_object_means_the_shared_one_only_while_there_is_none_in_his_namespace() {
        let mut users = Users::default();
        users.change(&vm("a", "one"), &BTreeSet::new(), &BTreeSet::from([class("a")]));
        users.change(&vm("b", "two"), &BTreeSet::new(), &BTreeSet::from([class("b")]));
        let shared = class(SHARED_NAMESPACE);
        let listed = users.listed(&shared, &[], |_| false, |_| true);
        assert_eq!(names(&listed), ["a/one", "b/two"]);
        let own = |key: &Key| *key == class("a");
        let later = users.listed(&shared, &listed, own, |_| true);
        assert_eq!(names(&later), ["b/two"], "the one in a is meant there now");
        assert_eq!(names(&users.listed(&class("a"), &[], own, |_| true)), ["a/one"]);
        users.take_changes();
        users.appeared_or_went(&class("a"));
        assert_eq!(users.take_changes().get(&shared), Some(&true));
    }

    #[test]
    fn a_list_is_short_and_stays_as_it_is_however_many_use_the_object() {
        let mut users = Users::default();
        let uses = BTreeSet::from([class("a")]);
        for n in 0..10_000 {
            users.change(&vm("a", &format!("{n:05}")), &BTreeSet::new(), &uses);
        }
        let listed = users.listed(&class("a"), &[], |_| true, |_| true);
        assert_eq!(listed.len(), LISTED_USERS);
        users.change(&vm("a", "0"), &BTreeSet::new(), &uses);
        users.change(&vm("a", "09999"), &uses, &BTreeSet::new());
        assert_eq!(users.listed(&class("a"), &listed, |_| true, |_| true), listed);
    }

    #[test]
    fn a_vm_that_goes_still_needs_its_network_and_host_but_no_class_and_no_group() {
        let vm = |deleted: bool, bound: bool| -> VM {
            let mut vm = serde_json::json!({
                "apiVersion": "berth.dev/v1alpha1", "kind": "VM", "metadata": {"name": "web", "namespace": "a"},
                "spec": {"class": "small", "disks": [{"name": "root", "boot": true}], "placement": {"group": "g"},
                    "cdroms": [{"name": "a", "image": "installer"}, {"name": "b"}],
                    "networkInterfaces": [{"name": "nic0", "network": "net"}]},
            });
            if deleted {
                vm["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
            }
            if bound {
                vm["status"] = serde_json::json!({"binding": {"host": "h1", "epoch": 1},
                    "interfaces": [{"name": "nic0", "network": "berth-shared/net", "macAddress": "", "address": ""}]});
            }
            serde_json::from_value(vm).expect("a VM")
        };
        let uses = |deleted, bound| -> Vec<String> {
            let uses = of_vm(&vm(deleted, bound));
            uses.iter().map(|k| format!("{} {}/{}", k.kind.as_str(), k.namespace(), k.name)).collect()
        };
        assert_eq!(
            uses(false, false),
            ["Network a/net", "VMClass a/small", "PlacementGroup a/g", "Image a/installer"]
        );
        assert_eq!(uses(true, true), ["Host /h1", "Network a/net", "Network berth-shared/net"]);
        assert!(uses(true, false).is_empty(), "it goes at once");
        let left = |deleted| {
            let mut left = vm(deleted, true);
            left.status.as_mut().expect("a status").former_host = Some("h0".to_owned());
            of_vm(&left).contains(&Key::cluster(ObjectKind::Host, "h0"))
        };
        assert!(left(false) && !left(true), "its firmware state is there still");
    }
}
