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
