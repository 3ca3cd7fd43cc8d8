//! VMClass: watched for the VMs here that have it, and for their disks; the controllers reconcile it.

use berth_api::{Disk, VM, VMClass};

use crate::index::{Indexed, Table, Tables};
use crate::key::{Key, ObjectName};

impl Indexed for VMClass {
    fn table(tables: &mut Tables) -> &mut Table<Self> {
        &mut tables.classes
    }

    fn keys_of(name: &ObjectName, class: &Self, tables: &Tables) -> Vec<Key> {
        let mut keys =
            tables.vms_where(|_, vm| vm.spec.class.as_ref().is_some_and(|class| class.as_str() == name.name));
        if class.spec.disk_limits.is_some() {
            let disks = tables.disks.all().filter(|(disk_name, disk)| {
                let mut users = disk.status.iter().flat_map(|status| &status.used_by);
                users.any(|user| keys.contains(&Key::new::<VM>(disk_name.beside(&user.vm))))
            });
            let disks: Vec<Key> = disks.map(|(name, _)| Key::new::<Disk>(name.clone())).collect();
            keys.extend(disks);
        }
        keys.push(Key::host());
        keys
    }
}
