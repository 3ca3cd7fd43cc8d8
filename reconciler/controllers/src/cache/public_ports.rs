//! The ports of public addresses that lead to VMs: which VMs a change of a PublicIP concerns, and what their statuses report.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use berth_api::{
    PublicIP,
    public_ip::{MOST_PUBLIC_PORTS, PublicPort},
};
use kube::ResourceExt;

use crate::key::{Key, ObjectKind};

/// The index that the module describes.
#[derive(Debug, Default)]
pub(crate) struct PublicPorts {
    /// VM → PublicIP → its ports that lead to the VM.
    by_vm: HashMap<Key, BTreeMap<Key, Vec<PublicPort>>>,
    /// PublicIP → the VMs that its ports lead to.
    targets: HashMap<Key, BTreeSet<Key>>,
}

impl PublicPorts {
    /// Indexes a PublicIP (`None`: gone); returns the VMs to which other ports lead than before.
    pub(crate) fn set(&mut self, key: &Key, ip: Option<&PublicIP>) -> BTreeSet<Key> {
        let new = ip.map(ports_of).unwrap_or_default();
        let former = self.targets.remove(key).unwrap_or_default();
        let mut changed = BTreeSet::new();
        for vm in former.into_iter().filter(|vm| !new.contains_key(vm)) {
            if let Some(of_vm) = self.by_vm.get_mut(&vm) {
                of_vm.remove(key);
                if of_vm.is_empty() {
                    self.by_vm.remove(&vm);
                }
            }
            changed.insert(vm);
        }
        if !new.is_empty() {
            self.targets.insert(key.clone(), new.keys().cloned().collect());
        }
        for (vm, ports) in new {
            let of_vm = self.by_vm.entry(vm.clone()).or_default();
            if of_vm.get(key) != Some(&ports) {
                of_vm.insert(key.clone(), ports);
                changed.insert(vm);
            }
        }
        changed
    }

    /// Returns the ports that lead to a VM, by PublicIP and in the order of its entries.
    pub(crate) fn of(&self, vm: &Key) -> Vec<PublicPort> {
        let ports = self.by_vm.get(vm).into_iter().flat_map(BTreeMap::values).flatten();
        ports.take(MOST_PUBLIC_PORTS).cloned().collect()
    }
}

/// Returns the ports of a PublicIP by VM, as far as its status has them: a host reads them there, too.
fn ports_of(ip: &PublicIP) -> BTreeMap<Key, Vec<PublicPort>> {
    let mut by_vm: BTreeMap<Key, Vec<PublicPort>> = BTreeMap::new();
    let address = ip.status.as_ref().and_then(|status| status.address.as_ref());
    let Some(address) = address.filter(|_| ip.metadata.deletion_timestamp.is_none()) else { return by_vm };
    let (name, namespace) = (ip.name_any(), ip.namespace().unwrap_or_default());
    for entry in &ip.spec.ports {
        let (Some(port), Some(target_port)) = (ip.port_of(entry), entry.port_of_targets()) else { continue };
        for target in &entry.targets {
            let public = PublicPort {
                name: format!("{name}/{entry}", entry = entry.name),
                address: address.clone(),
                port,
                target_port,
                protocol: entry.protocol,
            };
            let vm = Key::namespaced(ObjectKind::VM, &namespace, target.as_str());
            by_vm.entry(vm).or_default().push(public);
        }
    }
    by_vm
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn ip(name: &str, entries: &Value, given: &Value) -> PublicIP {
        serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "PublicIP", "metadata": {"name": name, "namespace": "ns"},
            "spec": {"ports": entries}, "status": {"address": "203.0.113.5", "ports": given},
        }))
        .expect("a PublicIP")
    }

    fn vm(name: &str) -> Key {
        Key::namespaced(ObjectKind::VM, "ns", name)
    }

    fn given(available: i64) -> Value {
        json!([{"name": "ssh", "port": 30_017, "protocol": "tcp", "available": available, "total": 1}])
    }

    fn shown(ports: &PublicPorts, name: &str) -> Vec<String> {
        let text = |p: &PublicPort| format!("{} {}:{} {}", p.name, p.address, p.port, p.target_port);
        ports.of(&vm(name)).iter().map(text).collect()
    }

    #[test]
    fn a_vm_has_the_ports_that_lead_to_it_once_they_are_in_the_status() {
        let mut ports = PublicPorts::default();
        let entries = json!([
            {"name": "ssh", "targetPort": 22, "targets": ["a"]},
            {"name": "web", "port": 80, "targets": ["b", "a"]},
        ]);
        let key = Key::of(&ip("web", &entries, &json!([])));
        ports.set(&key, Some(&ip("web", &entries, &json!([]))));
        assert_eq!(shown(&ports, "a"), ["web/web 203.0.113.5:80 80"]);
        let changed = ports.set(&key, Some(&ip("web", &entries, &given(0))));
        assert_eq!(changed, BTreeSet::from([vm("a")]), "nothing changes for the other VM");
        assert_eq!(shown(&ports, "a"), ["web/ssh 203.0.113.5:30017 22", "web/web 203.0.113.5:80 80"]);
        let changed = ports.set(&key, Some(&ip("web", &entries, &given(1))));
        assert!(changed.is_empty(), "the number of available targets is not reported: {changed:?}");
    }

    #[test]
    fn a_port_goes_with_its_entry_and_with_the_public_ip() {
        let mut ports = PublicPorts::default();
        let both = json!([{"name": "web", "port": 80, "targets": ["a", "b"]}]);
        let one = json!([{"name": "web", "port": 80, "targets": ["b"]}]);
        let (first, second) = (ip("one", &both, &json!([])), ip("two", &one, &json!([])));
        ports.set(&Key::of(&first), Some(&first));
        ports.set(&Key::of(&second), Some(&second));
        assert_eq!(shown(&ports, "b").len(), 2);
        let changed = ports.set(&Key::of(&first), Some(&ip("one", &one, &json!([]))));
        assert_eq!(changed, BTreeSet::from([vm("a")]));
        assert!(shown(&ports, "a").is_empty());
        assert_eq!(ports.set(&Key::of(&first), None), BTreeSet::from([vm("b")]));
        assert_eq!(shown(&ports, "b"), ["two/web 203.0.113.5:80 80"]);
        ports.set(&Key::of(&second), None);
        assert!(ports.by_vm.is_empty() && ports.targets.is_empty());
    }
}
