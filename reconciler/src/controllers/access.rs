//! Which Secrets a host may read: those the VMs bound to it need, and no other. Kept as one Role a host and namespace.
//!
//! Only hosts that have an account of their own have such roles: the agent inside `berth up`, and one that uses an
//! administrator's kubeconfig, need none.

use std::collections::BTreeMap;

use berth_api::{SYSTEM_NAMESPACE, VM, manifests::access};
use kube::ResourceExt;

use super::{
    Config, Key, Kind, World,
    draft::{Draft, Write},
    plan::Outcome,
};

/// What a host's Role in a namespace should become.
#[derive(Debug, PartialEq, Eq)]
enum Decision {
    Leave,
    Allow(Vec<String>),
    Remove,
}

/// A Secret that a VM has its host read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NeededSecret {
    host: String,
    namespace: String,
    name: String,
}

impl NeededSecret {
    /// The one a bound VM needs.
    pub(super) fn of(vm: &VM) -> Option<Self> {
        let host = vm.status.as_ref()?.binding.as_ref()?.host.clone();
        let name = vm.spec.bootstrap.as_ref()?.secret_name.clone()?;
        Some(Self { host, namespace: vm.namespace()?, name })
    }
}

/// The Secrets that hosts must read, kept as VMs come and go.
#[derive(Debug, Default)]
pub(super) struct Secrets {
    /// By host and namespace: each Secret, and how many VMs need it.
    needed: BTreeMap<(String, String), BTreeMap<String, usize>>,
}

impl Secrets {
    /// Notes what a VM needs now and needed before; returns the keys of the Roles that concerns.
    pub(super) fn set(&mut self, old: Option<&NeededSecret>, new: Option<&NeededSecret>) -> Vec<Key> {
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
        old.into_iter().chain(new).map(|secret| key(&secret.host, &secret.namespace)).collect()
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

    /// Those of a namespace that a host must read, in order.
    fn of(&self, host: &str, namespace: &str) -> Vec<String> {
        let secrets = self.needed.get(&(host.to_owned(), namespace.to_owned()));
        secrets.into_iter().flat_map(BTreeMap::keys).cloned().collect()
    }

    /// What the appearance or end of a host's account concerns.
    pub(super) fn keys_of_account(&self, account: &Key) -> Vec<Key> {
        let Some(host) = account.name.strip_prefix("host-") else { return Vec::new() };
        let of_host = self.needed.range((host.to_owned(), String::new())..);
        of_host
            .take_while(|((of, _), _)| of == host)
            .map(|((_, namespace), _)| key(host, namespace))
            .collect()
    }
}

/// The key of a host's Role in a namespace.
pub(super) fn key(host: &str, namespace: &str) -> Key {
    Key::namespaced(Kind::Role, namespace, &access::secrets_role_name(host))
}

/// The host a Role of ours is for.
fn host_of(role: &str) -> Option<&str> {
    role.strip_prefix("berth-secrets-")
}

pub(super) fn reconcile(world: &World, _: &Config, key: &Key, draft: &mut Draft) -> Outcome {
    // The other roles of a host are those it joined with: an administrator's.
    let Some(host) = host_of(&key.name).map(str::to_owned) else { return Outcome::Settled };
    let wanted = world.index.secrets.of(&host, key.namespace());
    match plan(has_account(world, &host), &wanted, allowed(world, key).as_deref()) {
        Decision::Leave => {}
        Decision::Allow(secrets) => draft.write(Write::Allow { role: key.clone(), host, secrets }),
        Decision::Remove => draft.write(Write::Disallow(key.clone())),
    }
    Outcome::Settled
}

/// Lets a host read one more Secret, which a VM that is about to be bound to it needs.
pub(super) fn grant(world: &World, host: &str, vm: &VM, draft: &mut Draft) {
    let Some(secret) = vm.spec.bootstrap.as_ref().and_then(|b| b.secret_name.clone()) else { return };
    let role = key(host, &vm.namespace().unwrap_or_default());
    let mut secrets = world.index.secrets.of(host, role.namespace());
    if !has_account(world, host) || secrets.contains(&secret) {
        return;
    }
    secrets.push(secret);
    secrets.sort();
    draft.write(Write::Allow { role, host: host.to_owned(), secrets });
}

fn has_account(world: &World, host: &str) -> bool {
    world.accounts.named(SYSTEM_NAMESPACE, &access::account_name(host)).is_some()
}

/// What the Role allows now; `None` if there is none.
fn allowed(world: &World, key: &Key) -> Option<Vec<String>> {
    let role = world.roles.get(key)?;
    let names = role.rules.iter().flatten().flat_map(|rule| rule.resource_names.iter().flatten().cloned());
    Some(names.collect())
}

fn plan(has_account: bool, wanted: &[String], allowed: Option<&[String]>) -> Decision {
    match (has_account && !wanted.is_empty(), allowed) {
        (true, Some(allowed)) if allowed == wanted => Decision::Leave,
        (true, _) => Decision::Allow(wanted.to_vec()),
        (false, Some(_)) => Decision::Remove,
        (false, None) => Decision::Leave,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &[&str]) -> Vec<String> {
        list.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_host_may_read_just_what_its_vms_need() {
        let some = names(&["a", "b"]);
        assert_eq!(plan(true, &some, None), Decision::Allow(some.clone()));
        assert_eq!(plan(true, &some, Some(&some)), Decision::Leave);
        assert_eq!(plan(true, &some, Some(&names(&["a"]))), Decision::Allow(some.clone()));
        assert_eq!(plan(true, &[], Some(&some)), Decision::Remove);
        assert_eq!(plan(false, &some, Some(&some)), Decision::Remove, "its account is gone");
        assert_eq!(plan(false, &some, None), Decision::Leave, "it needs no role");
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
            assert_eq!(secrets.set(None, Some(needed)), [key("h1", "ns")]);
        }
        assert_eq!(secrets.set(Some(&a), Some(&a)), [], "nothing changed");
        secrets.set(Some(&a), None);
        assert_eq!(secrets.of("h1", "ns"), ["a", "b"]);
        secrets.set(Some(&a), Some(&secret("h2", "a")));
        assert_eq!((secrets.of("h1", "ns"), secrets.of("h2", "ns")), (names(&["b"]), names(&["a"])));
        let account = Key::namespaced(Kind::ServiceAccount, "berth-system", "host-h1");
        assert_eq!(secrets.keys_of_account(&account), [key("h1", "ns")]);
        secrets.set(Some(&b), None);
        assert!(secrets.keys_of_account(&account).is_empty());
    }

    #[test]
    fn the_host_is_read_from_the_name_of_its_role() {
        assert_eq!(host_of(&access::secrets_role_name("kvm-1.rack2")), Some("kvm-1.rack2"));
        assert_eq!(host_of(&access::role_name("kvm-1")), None);
    }
}
