//! StoragePool: watched for the retention of its trash; the controllers reconcile it.

use berth_api::StoragePool;

use crate::index::{Indexed, Table, Tables};
use crate::key::{Key, ObjectName};

impl Indexed for StoragePool {
    fn table(tables: &mut Tables) -> &mut Table<Self> {
        &mut tables.pools
    }

    fn keys_of(_: &ObjectName, _: &Self, _: &Tables) -> Vec<Key> {
        vec![Key::host()]
    }
}
