//! Who uses what many may use: classes, networks, groups, pools, images, hosts.
//!
//! Kept user by user, so that no change costs more than the user it is about. What is written of it is a few names
//! ([`berth_api::listed_users`]); the object that is used is looked at at once when it gets its first user or loses
//! its last one, and for all others a moment later, once for many.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use berth_api::{
    Disk, HotswapDiskAttachment, LISTED_USERS, ObjectUser, PublicIP, SHARED_NAMESPACE, VM, listed_users,
};
use kube::ResourceExt;

use super::{Config, Key, Kind, World, draft::Draft};

/// Which objects each is used by. See the module.
#[derive(Debug, Default)]
pub(super) struct Users {
    users: HashMap<Key, BTreeSet<Key>>,
    /// Of what is found by its name alone: the namespaces from which somebody names it.
    namespaces: HashMap<(Kind, String), BTreeSet<String>>,
    /// Objects whose users are others now, and whether that cannot wait.
    news: BTreeMap<Key, bool>,
}

/// What is looked for in the shared namespace when the user's own has none of the name.
fn is_shared(kind: Kind) -> bool {
    matches!(kind, Kind::VMClass | Kind::Network | Kind::Image)
}

/// What a VM uses. One that is being deleted needs its networks and its host until its guest has ended, and nothing
/// else: it is never started again.
pub(super) fn of_vm(vm: &VM) -> BTreeSet<Key> {
    let namespace = vm.namespace().unwrap_or_default();
    let named = |kind, name: &str| Key::namespaced(kind, &namespace, name);
    let status = vm.status.as_ref();
    let host = status.and_then(|s| s.binding.as_ref()).map(|b| Key::cluster(Kind::Host, &b.host));
    let mut uses = BTreeSet::new();
    if host.is_some() || vm.metadata.deletion_timestamp.is_none() {
        let interfaces = vm.spec.network_interfaces.iter();
        uses.extend(interfaces.map(|i| named(Kind::Network, i.network.as_str())));
        // Where its addresses are from, whatever the name would lead to today.
        let given = status.into_iter().flat_map(|s| &s.interfaces).filter_map(|i| i.network.split_once('/'));
        uses.extend(given.map(|(namespace, name)| Key::namespaced(Kind::Network, namespace, name)));
    }
    if vm.metadata.deletion_timestamp.is_none() {
        uses.insert(named(Kind::VMClass, vm.spec.class.as_str()));
        let group = vm.spec.placement.as_ref().and_then(|p| p.group.as_ref());
        uses.extend(group.map(|group| named(Kind::PlacementGroup, group.as_str())));
    }
    uses.extend(host);
    uses
}

/// What a Disk uses. One that is being deleted needs its pool, whose trash its file goes to, and its host.
pub(super) fn of_disk(disk: &Disk) -> BTreeSet<Key> {
    let namespace = disk.namespace().unwrap_or_default();
    let host = disk.status.as_ref().and_then(|s| s.binding.as_ref());
    let stays = disk.metadata.deletion_timestamp.is_none();
    let image = disk.spec.image.as_ref().filter(|_| stays);
    let pool = (stays || host.is_some()).then(|| Key::cluster(Kind::StoragePool, disk.spec.pool.as_str()));
    let image = image.map(|image| Key::namespaced(Kind::Image, &namespace, image.as_str()));
    let host = host.map(|b| Key::cluster(Kind::Host, &b.host));
    [image, pool, host].into_iter().flatten().collect()
}

/// What a PublicIP uses.
pub(super) fn of_public_ip(ip: &PublicIP) -> BTreeSet<Key> {
    let stays = ip.metadata.deletion_timestamp.is_none();
    stays.then(|| Key::cluster(Kind::IPPool, ip.spec.pool.as_str())).into_iter().collect()
}

/// What an attachment uses, beside its disk and its VM.
pub(super) fn of_attachment(attachment: &HotswapDiskAttachment) -> BTreeSet<Key> {
    let binding = attachment.status.as_ref().and_then(|s| s.binding.as_ref());
    binding.map(|b| Key::cluster(Kind::Host, &b.host)).into_iter().collect()
}

impl Users {
    /// Notes what an object uses now instead of before.
    pub(super) fn change(&mut self, user: &Key, before: &BTreeSet<Key>, now: &BTreeSet<Key>) {
        for used in before.difference(now) {
            let Some(users) = self.users.get_mut(used) else { continue };
            users.remove(user);
            let last = users.is_empty();
            if last {
                self.users.remove(used);
                self.unname(used);
            }
            self.tell(used, last);
        }
        for used in now.difference(before) {
            let users = self.users.entry(used.clone()).or_default();
            let first = users.is_empty();
            users.insert(user.clone());
            if first && let Some(namespace) = used.namespace.clone().filter(|_| is_shared(used.kind)) {
                self.namespaces.entry((used.kind, used.name.clone())).or_default().insert(namespace);
            }
            self.tell(used, first);
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

    fn tell(&mut self, used: &Key, at_once: bool) {
        *self.news.entry(used.clone()).or_default() |= at_once;
        if is_shared(used.kind) && used.namespace() != SHARED_NAMESPACE {
            let shared = Key::namespaced(used.kind, SHARED_NAMESPACE, &used.name);
            *self.news.entry(shared).or_default() |= at_once;
        }
    }

    /// An object came or went: those who name it mean it, or the shared one of that name.
    pub(super) fn appeared_or_went(&mut self, used: &Key) {
        if is_shared(used.kind) && self.users.contains_key(used) {
            self.tell(used, true);
        }
    }

    /// The objects whose users are others than when this was asked last, and whether that cannot wait.
    pub(super) fn take_news(&mut self) -> BTreeMap<Key, bool> {
        std::mem::take(&mut self.news)
    }

    /// Those who use an object, by name. `exists` says whether there is an object: who names one in his own namespace
    /// does not mean the shared one.
    fn of<'a>(&'a self, used: &'a Key, exists: impl Fn(&Key) -> bool + 'a) -> impl Iterator<Item = &'a Key> {
        let from = |namespace: &str| Key::namespaced(used.kind, namespace, &used.name);
        let shared = is_shared(used.kind) && used.namespace() == SHARED_NAMESPACE;
        let name = (used.kind, used.name.clone());
        let elsewhere = self.namespaces.get(&name).filter(|_| shared).into_iter().flatten();
        let elsewhere = elsewhere.filter(|ns| *ns != SHARED_NAMESPACE).map(move |ns| from(ns));
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

    /// Whom the object lists, see [`listed_users`].
    pub(super) fn listed(
        &self,
        used: &Key,
        before: &[ObjectUser],
        exists: impl Fn(&Key) -> bool,
    ) -> Vec<ObjectUser> {
        let is_user = |user: &ObjectUser| {
            let kind = Kind::ALL.into_iter().find(|kind| kind.as_str() == user.kind);
            kind.is_some_and(|kind| {
                self.is_user(used, &Key::namespaced(kind, &user.namespace, &user.name), &exists)
            })
        };
        let all = self.of(used, &exists).take(LISTED_USERS * 2).map(|key| ObjectUser {
            kind: key.kind.as_str().to_owned(),
            namespace: key.namespace().to_owned(),
            name: key.name.clone(),
        });
        listed_users(before, is_user, all)
    }
}

/// Has each of these objects say that it is used, if it does not yet: before anything is bound that names it.
///
/// *Guarantees:* when it succeeds, each that exists is listed as used by a write that found it there.
pub(super) fn claim(world: &World, config: &Config, used: impl IntoIterator<Item = Key>, draft: &mut Draft) {
    for key in used {
        let key = world.meant(&key);
        if world.says_it_is_used(&key) != Some(false) || draft.keys().any(|written| written == key) {
            continue;
        }
        let reconcile = match key.kind {
            Kind::VMClass => super::vm_class::reconcile,
            Kind::Network => super::network::reconcile,
            Kind::PlacementGroup => super::placement_group::reconcile,
            Kind::Image => super::image::reconcile,
            Kind::StoragePool => super::storage_pool::reconcile,
            Kind::IPPool => super::ip_pool::reconcile,
            _ => continue,
        };
        reconcile(world, config, &key, draft);
    }
}

impl World {
    /// The object that is meant when its name is said: the shared one where there is none in the user's namespace.
    pub(super) fn meant(&self, named: &Key) -> Key {
        match is_shared(named.kind) && !self.exists(named) {
            true => Key::namespaced(named.kind, SHARED_NAMESPACE, &named.name),
            false => named.clone(),
        }
    }

    /// Whom an object is to list as its users.
    pub(super) fn listed_users(&self, used: &Key, before: &[ObjectUser]) -> Vec<ObjectUser> {
        self.users.listed(used, before, |key| self.exists(key))
    }

    /// All who use it. As many as there are: for what a person changes, never for each change of a user.
    pub(super) fn users_of(&self, used: &Key) -> Vec<Key> {
        self.users.of(used, |key| self.exists(key)).cloned().collect()
    }

    fn exists(&self, key: &Key) -> bool {
        self.says_it_is_used(key).is_some()
    }

    /// Whether an object that others name lists any of them; `None` where there is no such object.
    fn says_it_is_used(&self, key: &Key) -> Option<bool> {
        macro_rules! listed {
            ($cache:expr) => {
                $cache.get(key).map(|o| o.status.as_ref().is_some_and(|s| !s.used_by.is_empty()))
            };
        }
        match key.kind {
            Kind::VMClass => listed!(self.vm_classes),
            Kind::Network => listed!(self.networks),
            Kind::PlacementGroup => listed!(self.placement_groups),
            Kind::Image => listed!(self.images),
            Kind::StoragePool => listed!(self.storage_pools),
            Kind::IPPool => listed!(self.ip_pools),
            Kind::Host => listed!(self.hosts),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vm(namespace: &str, name: &str) -> Key {
        Key::namespaced(Kind::VM, namespace, name)
    }

    fn class(namespace: &str) -> Key {
        Key::namespaced(Kind::VMClass, namespace, "small")
    }

    fn names(listed: &[ObjectUser]) -> Vec<String> {
        listed.iter().map(|u| format!("{}/{}", u.namespace, u.name)).collect()
    }

    #[test]
    fn the_first_user_and_the_last_are_told_at_once_and_the_others_later() {
        let mut users = Users::default();
        let (none, uses) = (BTreeSet::new(), BTreeSet::from([class("a")]));
        users.change(&vm("a", "one"), &none, &uses);
        assert_eq!(users.take_news().get(&class("a")), Some(&true));
        users.change(&vm("a", "two"), &none, &uses);
        assert_eq!(users.take_news().get(&class("a")), Some(&false));
        users.change(&vm("a", "two"), &uses, &uses);
        assert!(users.take_news().is_empty(), "a VM that changes otherwise is no news");
        users.change(&vm("a", "one"), &uses, &none);
        assert_eq!(users.take_news().get(&class("a")), Some(&false));
        users.change(&vm("a", "two"), &uses, &none);
        assert_eq!(users.take_news().get(&class("a")), Some(&true));
        assert!(users.users.is_empty() && users.namespaces.is_empty());
    }

    #[test]
    fn who_names_an_object_means_the_shared_one_only_while_there_is_none_in_his_namespace() {
        let mut users = Users::default();
        users.change(&vm("a", "one"), &BTreeSet::new(), &BTreeSet::from([class("a")]));
        users.change(&vm("b", "two"), &BTreeSet::new(), &BTreeSet::from([class("b")]));
        let shared = class(SHARED_NAMESPACE);
        let listed = users.listed(&shared, &[], |_| false);
        assert_eq!(names(&listed), ["a/one", "b/two"]);
        let own = |key: &Key| *key == class("a");
        let later = users.listed(&shared, &listed, own);
        assert_eq!(names(&later), ["b/two"], "the one in a is meant there now");
        assert_eq!(names(&users.listed(&class("a"), &[], own)), ["a/one"]);
        users.take_news();
        users.appeared_or_went(&class("a"));
        assert_eq!(users.take_news().get(&shared), Some(&true));
    }

    #[test]
    fn a_list_is_short_and_stays_as_it_is_however_many_use_the_object() {
        let mut users = Users::default();
        let uses = BTreeSet::from([class("a")]);
        for n in 0..10_000 {
            users.change(&vm("a", &format!("{n:05}")), &BTreeSet::new(), &uses);
        }
        let listed = users.listed(&class("a"), &[], |_| true);
        assert_eq!(listed.len(), LISTED_USERS);
        users.change(&vm("a", "0"), &BTreeSet::new(), &uses);
        users.change(&vm("a", "09999"), &uses, &BTreeSet::new());
        assert_eq!(users.listed(&class("a"), &listed, |_| true), listed);
    }

    #[test]
    fn a_vm_that_goes_still_needs_its_network_and_host_but_no_class_and_no_group() {
        let vm = |deleted: bool, bound: bool| -> VM {
            let mut vm = serde_json::json!({
                "apiVersion": "berth.dev/v1alpha1", "kind": "VM", "metadata": {"name": "web", "namespace": "a"},
                "spec": {"class": "small", "disks": [{"name": "root", "boot": true}], "placement": {"group": "g"},
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
        assert_eq!(uses(false, false), ["Network a/net", "VMClass a/small", "PlacementGroup a/g"]);
        assert_eq!(uses(true, true), ["Host /h1", "Network a/net", "Network berth-shared/net"]);
        assert!(uses(true, false).is_empty(), "it goes at once");
    }
}
