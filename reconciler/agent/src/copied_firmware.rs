//! The copies of firmware state in shared pools that this agent has written.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::named_locks::NamedLocks;

/// The last copies, by instance.
#[derive(Debug, Default)]
pub(crate) struct CopiedFirmware {
    /// That of an instance is locked while its copy is written or removed, so that none replaces a newer one. A pool that does not answer
    /// holds up no other instance.
    pub(crate) writing: NamedLocks,
    known: Mutex<BTreeMap<String, Copied>>,
}

/// A copy that was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Copied {
    /// Of the pool, the stay of the VM and the archive.
    pub(crate) digest: Vec<u8>,
    pub(crate) is_final: bool,
}

impl CopiedFirmware {
    fn known(&self) -> MutexGuard<'_, BTreeMap<String, Copied>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the copy of this instance that was written last.
    pub(crate) fn last(&self, instance: &str) -> Option<Copied> {
        self.known().get(instance).cloned()
    }

    pub(crate) fn record(&self, instance: &str, copied: Copied) {
        self.known().insert(instance.to_owned(), copied);
    }

    pub(crate) fn forget(&self, instance: &str) {
        self.known().remove(instance);
    }
}
