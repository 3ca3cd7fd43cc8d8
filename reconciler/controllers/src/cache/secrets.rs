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
    /// Returns the Secret that a bound VM needs.
    pub(crate) fn of(vm: &VM) -> Option<Self> {
        let host = vm.status.as_ref()?.binding.as_ref()?.host.clone();
        let name = vm.spec.bootstrap.as_ref()?.secret_name.clone()?;
        Some(Self { host, namespace: vm.namespace()?, name })
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
    pub(crate) fn set(&mut self, old: Option<&NeededSecret>, new: Option<&NeededSecret>) -> Vec<Key> {
        if old == new {
            return Vec::new();
        }
        if let Some(NeededSecret { host, namespace, name }) = new {
            let secrets = self.needed.entry((host.clone(), namespace.clone())).or_default();
            *secrets.entry(name.clone()).or_default() += 1;
        }
        if let Some(old) = old {
            self.forget(old);
        }
        old.into_iter().chain(new).map(|secret| Key::secrets_role(&secret.host, &secret.namespace)).collect()
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
            assert_eq!(secrets.set(None, Some(needed)), [Key::secrets_role("h1", "ns")]);
        }
        assert_eq!(secrets.set(Some(&a), Some(&a)), [], "nothing changed");
        secrets.set(Some(&a), None);
        assert_eq!(secrets.of("h1", "ns"), ["a", "b"]);
        secrets.set(Some(&a), Some(&secret("h2", "a")));
        assert_eq!((secrets.of("h1", "ns"), secrets.of("h2", "ns")), (names(&["b"]), names(&["a"])));
        let account = Key::namespaced(ObjectKind::ServiceAccount, "berth-system", "host-h1");
        assert_eq!(secrets.keys_of_account(&account), [Key::secrets_role("h1", "ns")]);
        secrets.set(Some(&b), None);
        assert!(secrets.keys_of_account(&account).is_empty());
    }
}
