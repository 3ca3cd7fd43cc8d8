//! KeyClass: watched for the encrypted disks here; the controllers reconcile it.

use berth_api::{Disk, DiskSnapshot, KeyClass};

use crate::index::{Indexed, Table, Tables};
use crate::key::{Key, ObjectName};

impl Indexed for KeyClass {
    fn table(tables: &mut Tables) -> &mut Table<Self> {
        &mut tables.key_classes
    }

    fn keys_of(name: &ObjectName, _: &Self, tables: &Tables) -> Vec<Key> {
        let whole = format!("{}/{}", name.namespace, name.name);
        let disks = tables.disks.all().filter(|(_, disk)| {
            let declares = disk.spec.encryption.as_ref().is_some_and(|e| e.key_class.as_str() == name.name);
            let has = disk.status.as_ref().and_then(|status| status.encryption.as_ref());
            declares
                || has
                    .is_some_and(|has| has.key_class == whole || has.next.as_deref() == Some(whole.as_str()))
        });
        let snapshots = tables.disk_snapshots.all().filter(|(_, snapshot)| {
            let has = snapshot.status.as_ref().and_then(|status| status.encryption.as_ref());
            has.is_some_and(|encryption| encryption.key_class == whole)
        });
        let disks = disks.map(|(disk, _)| Key::new::<Disk>(disk.clone()));
        disks.chain(snapshots.map(|(name, _)| Key::new::<DiskSnapshot>(name.clone()))).collect()
    }
}
