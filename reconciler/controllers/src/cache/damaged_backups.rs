//! The Backups whose last verification found damage: few, among very many.

use std::sync::Arc;

use berth_api::Backup;

use crate::{cache::Cache, key::Key};

impl Cache {
    /// Records whether the last verification of a Backup found damage.
    pub(super) fn note_damage(&mut self, key: &Key) {
        let backup = self.tables.backups.get(key);
        if backup.and_then(|backup| backup.verification()).is_some_and(|found| found.found_damage()) {
            self.damaged_backups.insert(key.clone());
        } else {
            self.damaged_backups.remove(key);
        }
    }

    /// Returns the damaged Backups of a namespace.
    pub(crate) fn damaged_backups<'a>(&'a self, namespace: &'a str) -> impl Iterator<Item = &'a Arc<Backup>> {
        let keys = self.damaged_backups.iter().filter(move |key| key.namespace() == namespace);
        keys.filter_map(|key| self.tables.backups.get(key))
    }
}
