//! The Secrets of KeyClasses: a host reads those of the classes that its encrypted Disks and DiskSnapshots have or declare.

use berth_api::{Binding, EncryptionStatus};

use crate::{
    cache::Cache,
    key::{Key, ObjectKind},
};

/// Returns the class that an encryption has now.
fn class_of(encryption: &EncryptionStatus) -> Option<Key> {
    let (namespace, name) = encryption.class()?;
    Some(Key::namespaced(ObjectKind::KeyClass, namespace, name))
}

impl Cache {
    /// Returns the host of an encrypted Disk or DiskSnapshot, and the classes whose keys it needs for it: the one that it has, and the
    /// one that it is to have.
    fn needs_keys(&self, key: &Key) -> Option<(&Binding, Vec<Key>)> {
        match key.kind {
            ObjectKind::Disk => {
                let disk = self.tables.disks.get(key)?;
                let status = disk.status.as_ref()?;
                let declared = disk.spec.encryption.as_ref().map(|encryption| {
                    let class = encryption.key_class.as_str();
                    self.resolve(&Key::namespaced(ObjectKind::KeyClass, key.namespace(), class))
                });
                let has = status.encryption.as_deref().and_then(class_of);
                let classes: Vec<Key> = declared.into_iter().chain(has).collect();
                status.binding.as_ref().filter(|_| !classes.is_empty()).map(|binding| (binding, classes))
            }
            ObjectKind::DiskSnapshot => {
                let status = self.tables.disk_snapshots.get(key)?.status.as_ref()?;
                let class = status.encryption.as_deref().and_then(class_of)?;
                Some((status.binding.as_ref()?, vec![class]))
            }
            _ => None,
        }
    }

    /// Records whether this Disk or DiskSnapshot is encrypted and bound.
    pub(super) fn note_encrypted(&mut self, key: &Key) {
        if self.needs_keys(key).is_some() {
            self.encrypted.insert(key.clone());
        } else {
            self.encrypted.remove(key);
        }
    }

    /// Returns the Secrets of KeyClasses in a namespace that a host must read.
    pub(super) fn key_secrets(&self, host: &str, namespace: &str) -> Vec<String> {
        let needed = self.encrypted.iter().filter_map(|key| self.needs_keys(key));
        let classes = needed.filter(|(binding, _)| binding.host == host).flat_map(|(_, classes)| classes);
        let its = classes.filter(|class| class.namespace() == namespace);
        its.filter_map(|class| Some(self.tables.key_classes.get(&class)?.spec.secret.name.to_string()))
            .collect()
    }

    /// Returns the Roles by which hosts read the Secret of this KeyClass, or those of the classes of this Disk or DiskSnapshot.
    pub(super) fn key_roles(&self, key: &Key) -> Vec<Key> {
        let role = |host: &str, class: &Key| Key::secrets_role(host, class.namespace());
        match key.kind {
            ObjectKind::KeyClass => {
                let users = self.users_of(key);
                let hosts = users.iter().filter_map(|user| self.needs_keys(user));
                hosts.map(|(binding, _)| role(&binding.host, key)).collect()
            }
            ObjectKind::Disk | ObjectKind::DiskSnapshot => {
                let Some((binding, classes)) = self.needs_keys(key) else { return Vec::new() };
                classes.iter().map(|class| role(&binding.host, class)).collect()
            }
            _ => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use berth_api::{Disk, DiskSnapshot, KeyClass};
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
        cache.put(class("ns", "4", "own"), now);
        assert_eq!(cache.secrets_of("h1", "ns"), ["own"]);
        assert_eq!(cache.secrets_of("h1", "berth-shared"), ["shared"]);
        has["encryption"]["keyClass"] = json!("ns/x");
        assert!(cache.put(disk("5", &has), now).contains(&shared), "the role for the former class ends");
        assert!(cache.secrets_of("h1", "berth-shared").is_empty());
        let status = json!({"binding": {"host": "h1", "epoch": 1}, "encryption": has["encryption"]});
        let snapshot = object("DiskSnapshot", "ns", "6", &json!({"disk": "x"}), &status);
        cache.put(serde_json::from_value::<DiskSnapshot>(snapshot).expect("a DiskSnapshot"), now);
        let disk_key = Key::namespaced(ObjectKind::Disk, "ns", "x");
        cache.remove(&disk_key);
        assert_eq!(cache.secrets_of("h1", "ns"), ["own"], "the snapshot outlives its disk");
    }
}
