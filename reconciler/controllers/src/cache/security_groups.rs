//! The members of security groups, and which groups name which in their rules: an index that costs no more than the change.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use berth_api::{SecurityGroup, VM};
use kube::ResourceExt;

use crate::key::{Key, ObjectKind};

/// A group, and the address of an interface that has it.
pub(crate) type Membership = (Key, IpAddr);

/// The index that the module describes.
#[derive(Debug, Default)]
pub(crate) struct SecurityGroups {
    /// By group: the addresses of its members, each with the number of interfaces that have it: two leases may be equal.
    members: HashMap<Key, BTreeMap<IpAddr, usize>>,
    /// By group: the groups whose rules name it.
    named_by: HashMap<Key, BTreeSet<Key>>,
    /// By group: the groups that its rules name.
    names: HashMap<Key, BTreeSet<Key>>,
}

/// Returns the memberships of a VM's interfaces. The status counts: of an interface that is removed from the spec the guest
/// keeps the address. Where another DHCP server gives it out, that is the lease that the host has read.
pub(crate) fn memberships_of(vm: &VM) -> Vec<Membership> {
    let namespace = vm.namespace().unwrap_or_default();
    let interfaces = vm.status.iter().flat_map(|status| &status.interfaces);
    let of_interface = |interface: &berth_api::vm::InterfaceStatus| {
        let ipv4 = interface.address.parse().ok().or_else(|| lease_of(vm, &interface.name)).map(IpAddr::V4);
        let ipv6 = interface.ipv6_address.parse().ok().map(IpAddr::V6);
        let memberships = interface.security_groups.iter().flat_map(|group| {
            let key = Key::namespaced(ObjectKind::SecurityGroup, &namespace, group);
            ipv4.into_iter().chain(ipv6).map(move |address| (key.clone(), address))
        });
        memberships.collect::<Vec<_>>()
    };
    let mut all: Vec<Membership> = interfaces.flat_map(of_interface).collect();
    all.sort();
    all.dedup();
    all
}

/// The address that a DHCP server, which is not berth's, has leased to this interface.
fn lease_of(vm: &VM, interface: &str) -> Option<Ipv4Addr> {
    let mut observed = vm.status.iter().flat_map(|status| &status.observed_addresses);
    observed.find(|of| of.name == interface)?.leased_address.as_ref()?.parse().ok()
}

impl SecurityGroups {
    /// Replaces the memberships of a VM; returns the groups with other members than before.
    pub(crate) fn move_members(&mut self, old: &[Membership], new: &[Membership]) -> BTreeSet<Key> {
        let mut changed = BTreeSet::new();
        for (group, address) in old.iter().filter(|membership| !new.contains(membership)) {
            if let Some(members) = self.members.get_mut(group) {
                match members.get_mut(address) {
                    Some(count) if *count > 1 => *count -= 1,
                    _ => drop(members.remove(address)),
                }
                if members.is_empty() {
                    self.members.remove(group);
                }
            }
            changed.insert(group.clone());
        }
        for (group, address) in new.iter().filter(|membership| !old.contains(membership)) {
            *self.members.entry(group.clone()).or_default().entry(*address).or_default() += 1;
            changed.insert(group.clone());
        }
        // The hosts are not written to for a group that no rule names.
        changed.retain(|group| self.is_named(group));
        changed
    }

    /// Indexes a group (`None`: gone); returns the groups whose status its change concerns.
    pub(crate) fn set(&mut self, key: &Key, group: Option<&SecurityGroup>) -> Vec<Key> {
        let named = group.into_iter().flat_map(|group| group.spec.named_groups());
        let now: BTreeSet<Key> =
            named.map(|name| Key::namespaced(ObjectKind::SecurityGroup, key.namespace(), name)).collect();
        let existed = self.names.contains_key(key);
        let before = self.names.remove(key).unwrap_or_default();
        for named in before.difference(&now) {
            if let Some(by) = self.named_by.get_mut(named) {
                by.remove(key);
                if by.is_empty() {
                    self.named_by.remove(named);
                }
            }
        }
        for named in now.difference(&before) {
            self.named_by.entry(named.clone()).or_default().insert(key.clone());
        }
        let mut concerned: BTreeSet<Key> = before.symmetric_difference(&now).cloned().collect();
        if existed != group.is_some() {
            concerned.extend(self.named_by.get(key).into_iter().flatten().cloned());
        }
        if group.is_some() {
            self.names.insert(key.clone(), now);
        }
        concerned.into_iter().collect()
    }

    /// Whether a rule of any group names this one.
    pub(crate) fn is_named(&self, group: &Key) -> bool {
        self.named_by.contains_key(group)
    }

    /// Returns the IPv4 addresses of a group's members, in order.
    pub(crate) fn members(&self, group: &Key) -> impl Iterator<Item = Ipv4Addr> {
        self.members.get(group).into_iter().flat_map(BTreeMap::keys).filter_map(|address| match address {
            IpAddr::V4(address) => Some(*address),
            IpAddr::V6(_) => None,
        })
    }

    /// Returns the IPv6 addresses of a group's members, in order.
    pub(crate) fn ipv6_members(&self, group: &Key) -> impl Iterator<Item = Ipv6Addr> {
        self.members.get(group).into_iter().flat_map(BTreeMap::keys).filter_map(|address| match address {
            IpAddr::V4(_) => None,
            IpAddr::V6(address) => Some(*address),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn key(name: &str) -> Key {
        Key::namespaced(ObjectKind::SecurityGroup, "ns", name)
    }

    fn group(name: &str, names: &[&str]) -> SecurityGroup {
        let group = json!({
            "metadata": {"name": name, "namespace": "ns"},
            "spec": {"ingress": [{"name": "a", "securityGroups": names}]},
        });
        serde_json::from_value(group).expect("a SecurityGroup")
    }

    #[test]
    fn an_address_that_two_members_have_stays_when_one_of_them_goes() {
        let member = |name: &str, last: u8| (key(name), IpAddr::V4(Ipv4Addr::new(10, 0, 0, last)));
        let mut index = SecurityGroups::default();
        let count = |index: &SecurityGroups| index.members(&key("web")).count();
        index.move_members(&[], &[member("web", 2)]);
        index.move_members(&[], &[member("web", 2)]);
        index.move_members(&[member("web", 2)], &[]);
        assert_eq!(count(&index), 1);
        index.move_members(&[member("web", 2)], &[]);
        assert_eq!(count(&index), 0);
    }

    #[test]
    fn a_group_is_concerned_by_its_members_only_while_a_rule_names_it() {
        let mut index = SecurityGroups::default();
        let member = |name: &str, last| (key(name), IpAddr::from([10, 0, 0, last]));
        assert!(index.move_members(&[], &[member("web", 2)]).is_empty(), "no rule names it");
        let concerned = index.set(&key("db"), Some(&group("db", &["web", "db"])));
        assert_eq!(concerned, [key("db"), key("web")]);
        assert_eq!(index.members(&key("web")).collect::<Vec<_>>(), [Ipv4Addr::new(10, 0, 0, 2)]);
        let moved = index.move_members(&[member("web", 2)], &[member("web", 2), member("db", 2)]);
        assert_eq!(moved.into_iter().collect::<Vec<_>>(), [key("db")]);
        assert_eq!(index.set(&key("db"), Some(&group("db", &["db"]))), [key("web")]);
        assert!(!index.is_named(&key("web")) && index.is_named(&key("db")));
        assert_eq!(index.set(&key("db"), None), [key("db")]);
    }

    #[test]
    fn a_group_that_comes_or_goes_concerns_those_that_name_it() {
        let mut index = SecurityGroups::default();
        index.set(&key("db"), Some(&group("db", &["web"])));
        assert_eq!(index.set(&key("web"), Some(&group("web", &[]))), [key("db")]);
        assert!(index.set(&key("web"), Some(&group("web", &[]))).is_empty());
        assert_eq!(index.set(&key("web"), None), [key("db")]);
    }

    #[test]
    fn a_change_of_the_groups_of_a_network_concerns_the_vms_on_it() {
        let now = tokio::time::Instant::now();
        let mut cache = crate::cache::Cache::new(std::time::Duration::from_secs(40));
        let network = |version: &str, groups: &[&str]| -> berth_api::Network {
            let network = json!({
                "metadata": {"name": "lan", "namespace": "ns", "uid": "n", "resourceVersion": version},
                "spec": {"cidr": "10.77.0.0/24", "securityGroups": groups},
            });
            serde_json::from_value(network).expect("a Network")
        };
        let vm = json!({
            "metadata": {"name": "a", "namespace": "ns", "uid": "a", "resourceVersion": "1"},
            "spec": {"class": "s", "disks": [], "networkInterfaces": [{"name": "nic0", "network": "lan"}]},
        });
        cache.put(network("1", &[]), now);
        cache.put(serde_json::from_value::<VM>(vm).expect("a VM"), now);
        let vm = Key::namespaced(ObjectKind::VM, "ns", "a");
        assert!(cache.put(network("2", &["web"]), now).contains(&vm));
        assert!(!cache.put(network("3", &["web"]), now).contains(&vm), "the groups are the same");
        assert!(cache.put(network("4", &[]), now).contains(&vm));
    }

    #[test]
    fn an_interface_that_left_the_spec_is_a_member_while_it_has_its_address() {
        let vm = json!({
            "metadata": {"name": "a", "namespace": "ns"},
            "spec": {"class": "s", "disks": [], "networkInterfaces": []},
            "status": {"observedGeneration": 1, "interfaces": [{"name": "nic0", "network": "ns/default",
                "macAddress": "52:54:00:00:00:01", "address": "10.0.0.9", "ipv6Address": "fd00:60::9", "securityGroups": ["web", "db"]}]},
        });
        let vm: VM = serde_json::from_value(vm).expect("a VM");
        let address = IpAddr::from([10, 0, 0, 9]);
        let ipv6: IpAddr = "fd00:60::9".parse().expect("an address");
        let expected = [("db", address), ("db", ipv6), ("web", address), ("web", ipv6)];
        assert_eq!(memberships_of(&vm), expected.map(|(name, address)| (key(name), address)));
    }

    #[test]
    fn an_interface_with_a_lease_is_a_member_by_it_and_not_by_what_its_guest_claims() {
        let members = |observed: serde_json::Value| {
            let vm = json!({
                "metadata": {"name": "a", "namespace": "ns"},
                "spec": {"class": "s", "disks": [], "networkInterfaces": []},
                "status": {"observedGeneration": 1, "observedAddresses": observed, "interfaces": [{"name": "nic0",
                    "network": "berth-shared/lan", "macAddress": "52:54:00:00:00:01", "securityGroups": ["web"]}]},
            });
            let vm: VM = serde_json::from_value(vm).expect("a VM");
            memberships_of(&vm).into_iter().map(|(_, address)| address.to_string()).collect::<Vec<_>>()
        };
        let claimed = json!({"name": "nic0", "addresses": ["192.0.2.66"]});
        assert_eq!(members(json!([claimed])), [""; 0]);
        let leased = json!({"name": "nic0", "addresses": ["192.0.2.66"], "leasedAddress": "192.0.2.77"});
        assert_eq!(members(json!([leased])), ["192.0.2.77"]);
        let other = json!({"name": "nic1", "addresses": [], "leasedAddress": "192.0.2.77"});
        assert_eq!(members(json!([other])), [""; 0]);
    }
}
