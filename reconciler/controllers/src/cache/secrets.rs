//! The Secrets that hosts must read, for the VMs bound to them.

use std::collections::BTreeMap;

use berth_api::VM;
use kube::ResourceExt;

use crate::key::Key;

/// A Secret that a VM's host has to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NeededSecret {
    host: String,
    namespace: String,
    name: String,
}

impl NeededSecret {
    /// Returns the Secrets that a bound VM needs.
    pub(crate) fn of(vm: &VM) -> Vec<Self> {
        let binding = vm.status.as_ref().and_then(|status| status.binding.as_ref());
        let (Some(binding), Some(namespace)) = (binding, vm.namespace()) else { return Vec::new() };
        let secret = |name: &str| Self {
            host: binding.host.clone(),
            namespace: namespace.clone(),
            name: name.to_owned(),
        };
        vm.spec.secrets().map(secret).collect()
    }
}

/// The Secrets that hosts must read, updated as VMs are bound and unbound.
#[derive(Debug, Default)]
pub(crate) struct Secrets {
    /// By host and namespace: each Secret, and the number of VMs that need it.
    needed: BTreeMap<(String, String), BTreeMap<String, usize>>,
}

impl Secrets {
    /// Replaces what a VM needed before with what it needs now; returns the keys of the Roles that concerns.
    pub(crate) fn set(&mut self, old: &[NeededSecret], new: &[NeededSecret]) -> Vec<Key> {
        if old == new {
            return Vec::new();
        }
        for NeededSecret { host, namespace, name } in new {
            let secrets = self.needed.entry((host.clone(), namespace.clone())).or_default();
            *secrets.entry(name.clone()).or_default() += 1;
        }
        for old in old {
            self.forget(old);
        }
        let mut keys: Vec<Key> =
            old.iter().chain(new).map(|secret| Key::secrets_role(&secret.host, &secret.namespace)).collect();
        keys.dedup();
        keys
    }

    fn forget(&mut self, secret: &NeededSecret) {
        let at = (secret.host.clone(), secret.namespace.clone());
        let Some(secrets) = self.needed.get_mut(&at) else { return };
        if let Some(count) = secrets.get_mut(&secret.name) {
            *count -= 1;
            if *count == 0 {
                secrets.remove(&secret.name);
            }
        }
        if secrets.is_empty() {
            self.needed.remove(&at);
        }
    }

    /// Returns the Secrets of a namespace that a host must read, in order.
    pub(crate) fn of(&self, host: &str, namespace: &str) -> Vec<String> {
        let secrets = self.needed.get(&(host.to_owned(), namespace.to_owned()));
        secrets.into_iter().flat_map(BTreeMap::keys).cloned().collect()
    }

    /// Returns the keys that the creation or removal of a host's account concerns.
    pub(crate) fn keys_of_account(&self, account: &Key) -> Vec<Key> {
        let Some(host) = account.name.strip_prefix("host-") else { return Vec::new() };
        let of_host = self.needed.range((host.to_owned(), String::new())..);
        of_host
            .take_while(|((of, _), _)| of == host)
            .map(|((_, namespace), _)| Key::secrets_role(host, namespace))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::ObjectKind;

    fn names(list: &[&str]) -> Vec<String> {
        list.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_secret_is_needed_until_the_last_vm_that_needs_it_is_gone() {
        let secret = |host: &str, name: &str| NeededSecret {
            host: host.into(),
            namespace: "ns".into(),
            name: name.into(),
        };
        let (a, b) = (secret("h1", "a"), secret("h1", "b"));
        let mut secrets = Secrets::default();
        for needed in [&a, &a, &b] {
            assert_eq!(secrets.set(&[], std::slice::from_ref(needed)), [Key::secrets_role("h1", "ns")]);
        }
        let of_a = std::slice::from_ref(&a);
        assert_eq!(secrets.set(of_a, of_a), [], "nothing changed");
        secrets.set(of_a, &[]);
        assert_eq!(secrets.of("h1", "ns"), ["a", "b"]);
        secrets.set(of_a, &[secret("h2", "a")]);
        assert_eq!((secrets.of("h1", "ns"), secrets.of("h2", "ns")), (names(&["b"]), names(&["a"])));
        let account = Key::namespaced(ObjectKind::ServiceAccount, "berth-system", "host-h1");
        assert_eq!(secrets.keys_of_account(&account), [Key::secrets_role("h1", "ns")]);
        secrets.set(std::slice::from_ref(&b), &[]);
        assert!(secrets.keys_of_account(&account).is_empty());
    }

    #[test]
    fn a_vm_needs_the_secrets_of_its_bootstrap_data_and_those_of_keys() {
        let vm = |bootstrap: serde_json::Value| -> VM {
            let users = [("a", Some("of-a"), None), ("b", None, Some("of-b"))];
            let users = users.map(|(name, keys, password)| {
                serde_json::json!({"name": name, "sshAuthorizedKeysSecret": keys, "passwordSecret": password})
            });
            serde_json::from_value(serde_json::json!({"metadata": {"name": "web", "namespace": "ns"},
                "spec": {"disks": [], "bootstrap": bootstrap, "guestUsers": users, "secureBootKeys": {"secretName": "boot"}},
                "status": {"observedGeneration": 1, "binding": {"host": "h1", "epoch": 1}}}))
            .expect("a VM")
        };
        let names =
            |bootstrap| NeededSecret::of(&vm(bootstrap)).into_iter().map(|s| s.name).collect::<Vec<_>>();
        let both = serde_json::json!({"secretName": "data", "sshAuthorizedKeysSecret": "keys"});
        assert_eq!(names(both), ["data", "keys", "of-a", "of-b", "boot"]);
        let of_keys = serde_json::json!({"sshAuthorizedKeysSecret": "keys"});
        assert_eq!(names(of_keys), ["keys", "of-a", "of-b", "boot"]);
        assert_eq!(names(serde_json::json!({})), ["of-a", "of-b", "boot"]);
    }
}
