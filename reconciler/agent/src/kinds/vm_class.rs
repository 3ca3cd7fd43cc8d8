//! VMClass: watched for the VMs here that have it; the controllers reconcile it.

use berth_api::VMClass;

use crate::index::{Indexed, Table, Tables};
use crate::key::{Key, ObjectName};

impl Indexed for VMClass {
    fn table(tables: &mut Tables) -> &mut Table<Self> {
        &mut tables.classes
    }

    fn keys_of(name: &ObjectName, _: &Self, tables: &Tables) -> Vec<Key> {
        let mut keys =
            tables.vms_where(|_, vm| vm.spec.class.as_ref().is_some_and(|class| class.as_str() == name.name));
        keys.push(Key::host());
        keys
    }
}
