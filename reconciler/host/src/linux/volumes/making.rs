//! The volumes that are being made in files of other names: one work at a time makes each, as all works on a volume have the same file.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::LinuxVolumes;

#[derive(Clone, Debug, Default)]
pub(super) struct Makers(Arc<Mutex<BTreeSet<String>>>);

impl Makers {
    fn ids(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// None: other work makes the volume.
    pub(super) fn begin(&self, id: &str) -> Option<Making> {
        let is_new = self.ids().insert(id.to_owned());
        is_new.then(|| Making { all: self.clone(), id: id.to_owned() })
    }
}

impl LinuxVolumes {
    /// Whether work makes the volume, or its last step goes on after the work was given up.
    pub(in super::super) fn is_making(&self, id: &str) -> bool {
        self.makers.ids().contains(id)
    }
}

/// A volume that no other work makes while this exists.
#[derive(Debug)]
pub(in super::super) struct Making {
    all: Makers,
    id: String,
}

impl Drop for Making {
    fn drop(&mut self) {
        self.all.ids().remove(&self.id);
    }
}
