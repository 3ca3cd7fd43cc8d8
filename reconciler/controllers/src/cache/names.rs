//! The VMs with names in networks that have a DNS domain: an index that costs no more than the change.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, Ipv6Addr};

use berth_api::VM;
use berth_api::vm::InterfaceStatus;

use crate::key::{Key, ObjectKind};

/// A network (`namespace/name`), and an address of a VM in it.
pub(crate) type NamedAddress = (String, IpAddr);

/// The index that the module describes.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// By network (`namespace/name`). A tree: a network has thousands of VMs, and a sorted list would move half of them for each new one.
    vms: HashMap<String, BTreeSet<Key>>,
    /// The networks that have a domain.
    with_domain: HashSet<String>,
}

/// Returns the addresses that a VM's name leads to: those in its status, also while it is stopped. One that is being deleted has no
/// name any more.
pub(crate) fn named_addresses_of(vm: &VM) -> BTreeSet<NamedAddress> {
    let stays = vm.metadata.deletion_timestamp.is_none();
    let interfaces = vm.status.iter().filter(|_| stays).flat_map(|status| &status.interfaces);
    let of_interface = |interface: &InterfaceStatus| {
        let ipv4 = interface.address.parse().ok().map(IpAddr::V4);
        let ipv6 = ipv6_addresses_of(vm, interface).into_iter().map(IpAddr::V6);
        let addresses = ipv4.into_iter().chain(ipv6);
        addresses.map(|address| (interface.network.clone(), address)).collect::<Vec<_>>()
    };
    interfaces.flat_map(of_interface).collect()
}

/// Most IPv6 addresses of an interface that its name leads to.
const MOST_ADDRESSES: usize = 4;

/// Returns the IPv6 addresses that a name leads to by an interface: those of its network that the guest chooses and uses, else the
/// allocated one.
pub(crate) fn ipv6_addresses_of(vm: &VM, interface: &InterfaceStatus) -> Vec<Ipv6Addr> {
    let Ok(allocated) = interface.ipv6_address.parse::<Ipv6Addr>() else { return Vec::new() };
    let is_of_network = |address: &Ipv6Addr| address.segments()[..4] == allocated.segments()[..4];
    let observed = vm.status.iter().flat_map(|status| &status.observed_addresses);
    let of_it = observed.filter(|of| of.name == interface.name).flat_map(|of| &of.addresses);
    let used = of_it.filter_map(|text| text.parse::<Ipv6Addr>().ok());
    let used = used.filter(is_of_network).take(MOST_ADDRESSES);
    let used: Vec<Ipv6Addr> = used.collect();
    if used.is_empty() { vec![allocated] } else { used }
}

impl Names {
    /// Records whether a network has a domain.
    pub(crate) fn set_network(&mut self, key: &Key, has_domain: bool) {
        let name = format!("{}/{}", key.namespace(), key.name);
        if has_domain {
            self.with_domain.insert(name);
        } else {
            self.with_domain.remove(&name);
        }
    }

    /// Replaces the addresses of a VM; returns the networks with a domain whose names change.
    pub(crate) fn move_vm(
        &mut self,
        vm: &Key,
        old: &BTreeSet<NamedAddress>,
        new: &BTreeSet<NamedAddress>,
    ) -> BTreeSet<Key> {
        let networks = |all: &BTreeSet<NamedAddress>| -> BTreeSet<String> {
            all.iter().map(|(network, _)| network.clone()).collect()
        };
        let (before, after) = (networks(old), networks(new));
        for network in before.difference(&after) {
            if let Some(vms) = self.vms.get_mut(network) {
                vms.remove(vm);
                if vms.is_empty() {
                    self.vms.remove(network);
                }
            }
        }
        for network in after.difference(&before) {
            self.vms.entry(network.clone()).or_default().insert(vm.clone());
        }
        let changed = old.symmetric_difference(new).map(|(network, _)| network);
        let key = |network: &String| {
            let (namespace, name) = network.split_once('/')?;
            Some(Key::namespaced(ObjectKind::Network, namespace, name))
        };
        changed.filter(|network| self.with_domain.contains(*network)).filter_map(key).collect()
    }

    /// Returns the VMs with a name in a network (`namespace/name`), in order.
    pub(crate) fn vms(&self, network: &str) -> impl Iterator<Item = &Key> {
        self.vms.get(network).into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn vm(deleted: bool, address: &str) -> VM {
        let mut vm = json!({
            "metadata": {"name": "web", "namespace": "ns"},
            "spec": {"class": "s", "disks": [], "networkInterfaces": []},
            "status": {"observedGeneration": 1, "interfaces": [
                {"name": "nic0", "network": "ns/lan", "macAddress": "52:54:00:00:00:01", "address": address, "ipv6Address": "fd00:60::9"},
                {"name": "nic1", "network": "ns/other", "macAddress": "52:54:00:00:00:02", "address": ""}]},
        });
        if deleted {
            vm["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        serde_json::from_value(vm).expect("a VM")
    }

    #[test]
    fn a_vm_has_a_name_while_it_has_an_address_and_is_not_being_deleted() {
        let named = named_addresses_of(&vm(false, "10.0.0.9"));
        let address = |text: &str| ("ns/lan".to_owned(), text.parse::<IpAddr>().expect("an address"));
        assert_eq!(named, BTreeSet::from([address("10.0.0.9"), address("fd00:60::9")]));
        assert!(named_addresses_of(&vm(true, "10.0.0.9")).is_empty());
    }

    #[test]
    fn a_name_leads_to_the_ipv6_addresses_that_the_guest_chooses_and_else_to_the_allocated_one() {
        let address = |text: &str| ("ns/lan".to_owned(), text.parse::<IpAddr>().expect("an address"));
        let mut chosen = vm(false, "10.0.0.9");
        let observed = json!([{"name": "nic0", "addresses": ["fd00:60::1234:5678:0:aa", "fd00:61::1", "x"]},
            {"name": "nic1", "addresses": ["fd00:60::1234:5678:0:bb"]}]);
        chosen.status.as_mut().expect("a status").observed_addresses =
            serde_json::from_value(observed).expect("addresses");
        let named = named_addresses_of(&chosen);
        assert_eq!(named, BTreeSet::from([address("10.0.0.9"), address("fd00:60::1234:5678:0:aa")]));
        chosen.status.as_mut().expect("a status").observed_addresses.clear();
        assert!(named_addresses_of(&chosen).contains(&address("fd00:60::9")));
    }

    #[test]
    fn a_network_is_concerned_by_its_vms_only_while_it_has_a_domain() {
        let mut names = Names::default();
        let web = Key::namespaced(ObjectKind::VM, "ns", "web");
        let lan = Key::namespaced(ObjectKind::Network, "ns", "lan");
        let (none, first) = (BTreeSet::new(), named_addresses_of(&vm(false, "10.0.0.9")));
        let second = named_addresses_of(&vm(false, "10.0.0.10"));
        assert!(names.move_vm(&web, &none, &first).is_empty(), "no domain");
        assert_eq!(names.vms("ns/lan").collect::<Vec<_>>(), [&web], "known all the same");
        names.set_network(&lan, true);
        assert_eq!(names.move_vm(&web, &first, &second), BTreeSet::from([lan.clone()]));
        assert!(names.move_vm(&web, &second, &second).is_empty(), "nothing changed");
        assert_eq!(names.move_vm(&web, &second, &none), BTreeSet::from([lan.clone()]));
        assert_eq!(names.vms("ns/lan").count(), 0);
        names.set_network(&lan, false);
        assert!(names.move_vm(&web, &none, &first).is_empty());
    }
}
