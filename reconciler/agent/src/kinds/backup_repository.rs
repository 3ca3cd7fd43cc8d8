//! BackupRepository: only read, by the Backups in it and the Disks that are made from them.

use berth_api::{Backup, BackupRepository};

use crate::index::{Indexed, Table, Tables};
use crate::key::{Key, ObjectName};
use crate::kinds::backup::disks_of;

impl Indexed for BackupRepository {
    fn table(tables: &mut Tables) -> &mut Table<Self> {
        &mut tables.backup_repositories
    }

    fn keys_of(name: &ObjectName, _: &Self, tables: &Tables) -> Vec<Key> {
        let backups = tables.backups.in_namespace(&name.namespace);
        let its = backups.filter(|(_, backup)| backup.spec.repository.as_str() == name.name);
        // Further work may be wanted, or none any more.
        let mut keys = vec![Key::host()];
        for (backup, _) in its {
            keys.push(Key::new::<Backup>(backup.clone()));
            keys.extend(disks_of(backup, tables));
        }
        keys
    }
}
