//! The Secrets of KeyClasses: a host reads those of the classes that its encrypted Disks and DiskSnapshots have or declare.

use std::collections::BTreeSet;

use berth_api::{Binding, Disk, KeyClass, SHARED_NAMESPACE};

use crate::{
    cache::{Cache, users},
    key::{Key, ObjectKind},
};

impl Cache {
    /// Returns the binding of a Disk or a DiskSnapshot.
    fn binding_of(&self, key: &Key) -> Option<&Binding> {
        match key.kind {
            ObjectKind::Disk => self.tables.disks.get(key)?.status.as_ref()?.binding.as_ref(),
            ObjectKind::DiskSnapshot => {
                self.tables.disk_snapshots.get(key)?.status.as_ref()?.binding.as_ref()
            }
            _ => None,
        }
    }

    /// Returns the classes whose keys the host of an encrypted Disk or DiskSnapshot needs for it: those that it has, and the one that it is
    /// to have.
    pub(super) fn classes_needed(&self, key: &Key) -> Vec<Key> {
        match key.kind {
            ObjectKind::Disk => {
                let Some(disk) = self.tables.disks.get(key) else { return Vec::new() };
                let status = disk.status.as_ref().and_then(|status| status.encryption.as_deref());
                self.declared_class(key.namespace(), disk)
                    .into_iter()
                    .chain(users::classes_of(status))
                    .collect()
            }
            ObjectKind::DiskSnapshot => {
                let status = self.tables.disk_snapshots.get(key).and_then(|found| found.status.as_ref());
                users::classes_of(status.and_then(|status| status.encryption.as_deref())).collect()
            }
            _ => Vec::new(),
        }
    }

    fn declared_class(&self, namespace: &str, disk: &Disk) -> Option<Key> {
        let class = disk.spec.encryption.as_ref()?.key_class.as_str();
        Some(self.resolve(&Key::namespaced(ObjectKind::KeyClass, namespace, class)))
    }

    /// Records whether this Disk or DiskSnapshot is encrypted and bound.
    pub(super) fn note_encrypted(&mut self, key: &Key) {
        if self.binding_of(key).is_some() && !self.classes_needed(key).is_empty() {
            self.encrypted.insert(key.clone());
        } else {
            self.encrypted.remove(key);
        }
    }

    /// Returns the Secrets of KeyClasses in a namespace that a host must read.
    pub(super) fn key_secrets(&self, host: &str, namespace: &str) -> Vec<String> {
        let may_need = |key: &&Key| {
            (namespace == SHARED_NAMESPACE || key.namespace() == namespace)
                && self.binding_of(key).is_some_and(|binding| binding.host == host)
        };
        let classes = self.encrypted.iter().filter(may_need).flat_map(|key| self.classes_needed(key));
        let its = classes.filter(|class| class.namespace() == namespace);
        its.filter_map(|class| self.secrets_of_class(&class)).flatten().collect()
    }

    /// Returns the namespace and the names of the Secrets that a host needs for a new Disk.
    pub(crate) fn key_secrets_of(&self, disk: &Disk) -> Option<(String, Vec<String>)> {
        let class = self.declared_class(disk.metadata.namespace.as_deref()?, disk)?;
        Some((class.namespace().to_owned(), self.secrets_of_class(&class)?))
    }

    /// Returns the names of the Secrets with the key of a class, or with what opens its Vault.
    fn secrets_of_class(&self, class: &Key) -> Option<Vec<String>> {
        Some(self.tables.key_classes.get(class)?.spec.secrets().map(ToString::to_string).collect())
    }

    /// Returns the Roles by which hosts read the Secrets of the classes of this Disk or DiskSnapshot.
    pub(super) fn key_roles(&self, key: &Key) -> Vec<Key> {
        let Some(binding) = self.binding_of(key) else { return Vec::new() };
        let classes = self.classes_needed(key);
        classes.iter().map(|class| Key::secrets_role(&binding.host, class.namespace())).collect()
    }

    /// Returns the Roles by which hosts read the Secret of this KeyClass, and that of the shared one of the same name: each is in the place
    /// of the other for some Disks.
    pub(super) fn class_roles(&self, class: &Key) -> BTreeSet<Key> {
        let users = self.users_of(class);
        let hosts = users.iter().filter_map(|user| Some(self.binding_of(user)?.host.as_str()));
        let hosts: BTreeSet<&str> = hosts.collect();
        let namespaces = [class.namespace(), SHARED_NAMESPACE];
        hosts.iter().flat_map(|host| namespaces.map(|namespace| Key::secrets_role(host, namespace))).collect()
    }

    /// Whether a KeyClass is there now and was not, or has other Secrets. Its status is written with each of its users.
    pub(super) fn is_another_class(&self, key: &Key, before: Option<&KeyClass>) -> bool {
        let now = self.tables.key_classes.get(key);
        let secrets = |class: &KeyClass| class.spec.secrets().map(ToString::to_string).collect::<Vec<_>>();
        now.map(|class| secrets(class)) != before.map(secrets)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use berth_api::DiskSnapshot;
    use serde_json::{Value, json};
    use tokio::time::Instant;

    use super::*;

    fn object(kind: &str, namespace: &str, version: &str, spec: &Value, status: &Value) -> Value {
        json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": kind,
            "metadata": {"name": "x", "namespace": namespace, "uid": format!("{kind}-{namespace}"), "resourceVersion": version},
            "spec": spec, "status": status,
        })
    }

    fn class(namespace: &str, version: &str, secret: &str) -> KeyClass {
        let spec = json!({"secret": {"name": secret, "key": "key"}});
        serde_json::from_value(object("KeyClass", namespace, version, &spec, &json!(null)))
            .expect("a KeyClass")
    }

    #[test]
    fn a_host_reads_what_opens_the_vault_of_a_class_also_after_that_was_changed() {
        let mut cache = Cache::new(Duration::from_secs(40));
        let now = Instant::now();
        let class = |version: &str, token: &str| -> KeyClass {
            let secret = |name: &str| json!({"name": name});
            let vault = json!({"address": "https://vault", "key": "berth", "tokenSecret": secret(token), "caSecret": secret("ca")});
            serde_json::from_value(object("KeyClass", "ns", version, &json!({"vault": vault}), &json!(null)))
                .expect("a KeyClass")
        };
        cache.put(class("1", "token"), now);
        let spec = json!({"size": "1Gi", "encryption": {"keyClass": "x"}});
        let bound = json!({"binding": {"host": "h1", "epoch": 1}, "volumeID": "v"});
        let disk: Disk = serde_json::from_value(object("Disk", "ns", "2", &spec, &bound)).expect("a Disk");
        let needs = cache.key_secrets_of(&disk).expect("a class");
        assert_eq!(needs, ("ns".to_owned(), vec!["token".to_owned(), "ca".to_owned()]));
        cache.put(disk, now);
        let mut secrets = cache.secrets_of("h1", "ns");
        secrets.sort();
        assert_eq!(secrets, ["ca", "token"]);
        assert!(cache.put(class("3", "other"), now).contains(&Key::secrets_role("h1", "ns")));
        assert!(cache.secrets_of("h1", "ns").contains(&"other".to_owned()));
    }

    #[test]
    fn a_host_reads_the_key_of_another_class_that_a_disk_is_to_have() {
        let mut cache = Cache::new(Duration::from_secs(40));
        let now = Instant::now();
        let named = |name: &str, version: &str| -> KeyClass {
            let mut class = class("ns", version, name);
            class.metadata.name = Some(name.to_owned());
            class.metadata.uid = Some(name.to_owned());
            class
        };
        cache.put(named("old", "1"), now);
        cache.put(named("new", "2"), now);
        let disk = |version: &str, class: &str| -> Disk {
            let spec = json!({"size": "1Gi", "encryption": {"keyClass": class}});
            let has = json!({"keyClass": "ns/old", "providerID": "Secret", "keyID": "a", "diskKeyID": "b", "generation": 1});
            let status = json!({"binding": {"host": "h1", "epoch": 1}, "volumeID": "v", "encryption": has});
            serde_json::from_value(object("Disk", "ns", version, &spec, &status)).expect("a Disk")
        };
        let role = Key::secrets_role("h1", "ns");
        assert!(cache.put(disk("3", "old"), now).contains(&role));
        assert!(!cache.put(disk("4", "old"), now).contains(&role), "nothing has changed");
        // The Role is that for the class which the disk has, and gets a further Secret.
        assert!(cache.put(disk("5", "new"), now).contains(&role));
        assert_eq!(cache.secrets_of("h1", "ns"), ["new", "old"]);
    }

    #[test]
    fn a_host_reads_the_keys_of_the_classes_that_its_disks_and_snapshots_have_or_declare() {
        let mut cache = Cache::new(Duration::from_secs(40));
        let now = Instant::now();
        cache.put(class("berth-shared", "1", "shared"), now);
        let spec = json!({"size": "1Gi", "encryption": {"keyClass": "x"}});
        let bound = json!({"binding": {"host": "h1", "epoch": 1}, "volumeID": "v"});
        let disk = |version: &str, status: &Value| -> Disk {
            serde_json::from_value(object("Disk", "ns", version, &spec, status)).expect("a Disk")
        };
        let shared = Key::secrets_role("h1", "berth-shared");
        assert!(cache.put(disk("2", &bound), now).contains(&shared));
        assert_eq!(cache.secrets_of("h1", "berth-shared"), ["shared"]);
        assert!(cache.secrets_of("h2", "berth-shared").is_empty());
        // The disk names the class of its own namespace from now on, and still has the other one.
        let mut has = bound;
        has["encryption"] = json!({"keyClass": "berth-shared/x", "providerID": "Secret", "keyID": "a", "diskKeyID": "b", "generation": 1});
        cache.put(disk("3", &has), now);
        let roles = cache.put(class("ns", "4", "own"), now);
        assert!(roles.contains(&shared) && roles.contains(&Key::secrets_role("h1", "ns")), "{roles:?}");
        assert!(!cache.put(class("ns", "5", "own"), now).contains(&shared), "only its status is another one");
        assert_eq!(cache.secrets_of("h1", "ns"), ["own"]);
        assert_eq!(cache.secrets_of("h1", "berth-shared"), ["shared"]);
        // Its key is about to be protected by the other class, or already is.
        has["encryption"]["next"] = json!("ns/x");
        cache.put(disk("6", &has), now);
        assert_eq!(cache.secrets_of("h1", "ns"), ["own"]);
        has["encryption"]["keyClass"] = json!("ns/x");
        assert!(cache.put(disk("7", &has), now).contains(&shared), "the role for the former class ends");
        assert!(cache.secrets_of("h1", "berth-shared").is_empty());
        let status = json!({"binding": {"host": "h1", "epoch": 1}, "encryption": has["encryption"]});
        let snapshot = object("DiskSnapshot", "ns", "8", &json!({"disk": "x"}), &status);
        cache.put(serde_json::from_value::<DiskSnapshot>(snapshot).expect("a DiskSnapshot"), now);
        let disk_key = Key::namespaced(ObjectKind::Disk, "ns", "x");
        cache.remove(&disk_key);
        assert_eq!(cache.secrets_of("h1", "ns"), ["own"], "the snapshot outlives its disk");
    }
}
