//! PlacementGroup: watched for the labels that it asks of the hosts of its members; the controllers reconcile it.

use std::sync::Arc;

use berth_api::PlacementGroup;

use crate::index::{Change, Indexed, Table, Tables};
use crate::key::{Key, ObjectName};

impl Indexed for PlacementGroup {
    fn table(tables: &mut Tables) -> &mut Table<Self> {
        &mut tables.placement_groups
    }

    fn keys_of(name: &ObjectName, _: &Self, tables: &Tables) -> Vec<Key> {
        tables.vms_where(|vm_name, vm| {
            let group = vm.spec.placement.as_ref().and_then(|placement| placement.group.as_ref());
            vm_name.namespace == name.namespace && group.is_some_and(|group| group.as_str() == name.name)
        })
    }

    /// A VM reads only the labels: the status changes with each member.
    fn keys_of_change(change: &Change<Self>, tables: &Tables) -> Vec<Key> {
        let selector = |group: Option<&Arc<Self>>| {
            group.map(|group| group.spec.host_selector.clone()).unwrap_or_default()
        };
        let (old, new) = (change.old.as_ref(), change.new.as_ref());
        match new.or(old).filter(|_| selector(old) != selector(new)) {
            Some(group) => Self::keys_of(&change.name, group, tables),
            None => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use berth_api::VM;
    use kube::runtime::watcher::Event;
    use serde_json::json;

    use super::*;
    use crate::index::Index;

    #[test]
    fn other_labels_concern_the_members_and_another_status_concerns_none() {
        let index = Index::default();
        let vm = |name: &str, group: &str| -> VM {
            serde_json::from_value(json!({
                "metadata": {"name": name, "namespace": "ns", "uid": name, "resourceVersion": "1"},
                "spec": {"disks": [], "placement": {"group": group}},
            }))
            .expect("a VM")
        };
        let group = |version: &str, labels: serde_json::Value, placed: i64| -> PlacementGroup {
            serde_json::from_value(json!({
                "metadata": {"name": "web", "namespace": "ns", "uid": "g", "resourceVersion": version},
                "spec": {"hostSelector": labels}, "status": {"placed": placed},
            }))
            .expect("a group")
        };
        index.apply(Event::Apply(vm("a", "web")));
        index.apply(Event::Apply(vm("b", "other")));
        let member = [Key::new::<VM>(ObjectName::new("ns", "a"))];
        let labels = || json!({"zone": "b"});
        assert_eq!(index.apply(Event::Apply(group("1", json!({}), 0))), []);
        assert_eq!(index.apply(Event::Apply(group("2", labels(), 0))), member);
        assert_eq!(index.apply(Event::Apply(group("3", labels(), 1))), []);
        assert_eq!(index.apply(Event::Delete(group("3", labels(), 1))), member);
    }
}
