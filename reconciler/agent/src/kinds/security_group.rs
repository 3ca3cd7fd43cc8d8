//! SecurityGroup: watched for the filters of the interfaces here, which `network::refilter` writes; the controllers reconcile it.
//!
//! Every host receives every change of a group. Those that it does not concern do nothing: on a large site they are most, and a group
//! with many members changes often.

use std::collections::BTreeSet;

use berth_api::{SecurityGroup, VM};

use crate::index::{Change, Indexed, Table, Tables};
use crate::key::{Key, ObjectName};
use crate::networking::security_groups_of;

impl Indexed for SecurityGroup {
    fn table(tables: &mut Tables) -> &mut Table<Self> {
        &mut tables.security_groups
    }

    fn keys_of(name: &ObjectName, _: &Self, tables: &Tables) -> Vec<Key> {
        let mut keys = tables.vms_where(|vm_name, vm| {
            vm_name.namespace == name.namespace && groups_of(tables, vm).any(|group| group == name.name)
        });
        keys.push(Key::filters());
        keys
    }

    /// A VM reports only whether its groups exist.
    fn keys_of_change(change: &Change<Self>, tables: &Tables) -> Vec<Key> {
        match (&change.old, &change.new) {
            (Some(old), Some(new)) => {
                let is_concerned = differ_in_filters(old, new) && filters_with(&change.name, tables);
                if is_concerned { vec![Key::filters()] } else { Vec::new() }
            }
            (Some(object), None) | (None, Some(object)) => Self::keys_of(&change.name, object, tables),
            (None, None) => Vec::new(),
        }
    }
}

/// The groups of a VM's interfaces, by their names in its namespace.
fn groups_of(tables: &Tables, vm: &VM) -> impl Iterator<Item = String> {
    let interfaces = vm.status.iter().flat_map(|status| &status.interfaces);
    interfaces.flat_map(move |interface| security_groups_of(tables, vm, interface))
}

/// The addresses of a group's members.
fn addresses(group: &SecurityGroup) -> (&[String], &[String]) {
    let status = group.status.as_ref();
    status.map(|status| (&status.addresses[..], &status.ipv6_addresses[..])).unwrap_or_default()
}

/// Whether two states of a group differ in what filters are made of.
fn differ_in_filters(old: &SecurityGroup, new: &SecurityGroup) -> bool {
    old.spec != new.spec || addresses(old) != addresses(new)
}

/// Whether a packet filter here has the rules of this group or the addresses of its members, or is about to.
fn filters_with(name: &ObjectName, tables: &Tables) -> bool {
    let Some(filtering) = &tables.filtering_groups else { return true };
    if filtering.contains(&format!("{}/{}", name.namespace, name.name)) {
        return true;
    }
    let is_named = |group: &str| {
        let group = tables.security_groups.get(&name.beside(group));
        group.is_some_and(|group| group.spec.named_groups().contains(&name.name.as_str()))
    };
    let vms = tables.vms.in_namespace(&name.namespace);
    // Each once: most VMs of a host have the same, and a group has many rules.
    let groups: BTreeSet<String> = vms.flat_map(|(_, vm)| groups_of(tables, vm)).collect();
    groups.iter().any(|group| *group == name.name || is_named(group))
}

#[cfg(test)]
mod tests {
    use kube::runtime::watcher::Event;
    use serde_json::{Value, json};

    use super::*;
    use crate::index::Index;

    fn apply(index: &Index, (name, version): (&str, u32), spec: &Value, status: &Value) -> Vec<Key> {
        let group = json!({
            "metadata": {"name": name, "namespace": "ns", "resourceVersion": version.to_string()},
            "spec": spec, "status": status,
        });
        index.apply::<SecurityGroup>(Event::Apply(serde_json::from_value(group).expect("a SecurityGroup")))
    }

    #[test]
    fn a_changed_group_concerns_hosts_with_a_filter_of_it_only() {
        let index = Index::default();
        let naming = json!({"ingress": [{"name": "a", "securityGroups": ["db"]}]});
        let with = |addresses: &[&str]| json!({"observedGeneration": 1, "addresses": addresses});
        let filters = [Key::filters()];
        apply(&index, ("web", 1), &naming, &Value::Null);
        apply(&index, ("db", 2), &json!({}), &with(&[]));
        assert_eq!(
            apply(&index, ("db", 3), &json!({}), &with(&["10.0.0.2"])),
            filters,
            "nothing was made yet"
        );
        index.read().filtering_groups = Some(["ns/other".to_owned()].into());
        assert_eq!(apply(&index, ("db", 4), &json!({}), &with(&["10.0.0.3"])), []);
        index.read().filtering_groups = Some(["ns/db".to_owned()].into());
        assert_eq!(
            apply(&index, ("db", 5), &json!({}), &with(&["10.0.0.4"])),
            filters,
            "a guest's VM may be gone"
        );
        let seen = json!({"observedGeneration": 2, "addresses": ["10.0.0.4"]});
        assert_eq!(apply(&index, ("db", 6), &json!({}), &seen), [], "the filters are the same");
        index.read().filtering_groups = Some(BTreeSet::new());
        let vm = json!({
            "metadata": {"name": "web", "namespace": "ns", "resourceVersion": "1"},
            "spec": {"class": "s", "disks": [], "networkInterfaces": [{"name": "nic0", "securityGroups": ["web"]}]},
            "status": {"observedGeneration": 1, "interfaces": [
                {"name": "nic0", "network": "ns/lan", "macAddress": "52:54:00:00:00:01", "address": "10.0.0.9"}]},
        });
        index.apply::<VM>(Event::Apply(serde_json::from_value(vm).expect("a VM")));
        assert_eq!(
            apply(&index, ("db", 7), &json!({}), &with(&["10.0.0.5"])),
            filters,
            "a rule of its group names it"
        );
        assert_eq!(apply(&index, ("web", 8), &json!({}), &Value::Null), filters);
        assert_eq!(
            apply(&index, ("db", 9), &json!({}), &with(&["10.0.0.6"])),
            [],
            "no rule names it any more"
        );
    }
}
