//! The Quotas whose counts depend on an object.

use berth_api::SHARED_NAMESPACE;
use kube::ResourceExt;

use super::Cache;
use crate::key::{Key, ObjectKind};

impl Cache {
    /// Returns the Quotas that count this object, or an object that gets its size from it.
    pub(super) fn quotas_counting(&self, key: &Key) -> Vec<Key> {
        let counts = matches!(
            key.kind,
            ObjectKind::VM
                | ObjectKind::Disk
                | ObjectKind::DiskSnapshot
                | ObjectKind::Image
                | ObjectKind::PublicIP
                | ObjectKind::VMClass
                | ObjectKind::Backup
        );
        if !counts {
            return Vec::new();
        }
        let is_shared = key.namespace() == SHARED_NAMESPACE;
        let quotas = self.tables.quotas.all();
        let quotas = quotas.filter(|quota| is_shared || quota.namespace() == key.namespace);
        quotas.map(|quota| Key::of(quota.as_ref())).collect()
    }
}
