//! SecurityGroup: watched for the filters of the interfaces here; the controllers reconcile it.

use berth_api::SecurityGroup;

use crate::index::{Change, Indexed, Table, Tables};
use crate::key::{Key, ObjectName};
use crate::networking::security_groups_of;

impl Indexed for SecurityGroup {
    fn table(tables: &mut Tables) -> &mut Table<Self> {
        &mut tables.security_groups
    }

    fn keys_of(name: &ObjectName, _: &Self, tables: &Tables) -> Vec<Key> {
        let mut keys = tables.vms_where(|vm_name, vm| {
            let mut interfaces = vm.status.iter().flat_map(|s| &s.interfaces);
            vm_name.namespace == name.namespace
                && interfaces.any(|i| security_groups_of(vm, i).contains(&name.name))
        });
        keys.push(Key::networks());
        keys
    }

    /// A VM reports only whether its groups exist.
    fn keys_of_change(change: &Change<Self>, tables: &Tables) -> Vec<Key> {
        match (&change.old, &change.new) {
            (Some(_), Some(_)) => vec![Key::networks()],
            (Some(object), None) | (None, Some(object)) => Self::keys_of(&change.name, object, tables),
            (None, None) => Vec::new(),
        }
    }
}
