//! PublicIP: watched for the VMs and networks here that use it; the controllers reconcile it.

use berth_api::PublicIP;
use berth_api::vm::NetworkInterface;

use crate::index::{Indexed, Table, Tables};
use crate::key::{Key, ObjectName};

impl Indexed for PublicIP {
    fn table(tables: &mut Tables) -> &mut Table<Self> {
        &mut tables.public_ips
    }

    fn keys_of(name: &ObjectName, _: &Self, tables: &Tables) -> Vec<Key> {
        let mut keys = tables.vms_where(|vm_name, vm| {
            let names_it = |n: &NetworkInterface| n.public_ips().any(|public| public.as_str() == name.name);
            vm_name.namespace == name.namespace && vm.spec.network_interfaces.iter().any(names_it)
        });
        keys.push(Key::networks());
        keys
    }
}
