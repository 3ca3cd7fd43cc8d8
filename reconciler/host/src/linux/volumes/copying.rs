//! The files that moves copy, and volumes that are not moved now.

use std::sync::{Arc, Mutex, PoisonError};

use crate::{NewMove, SystemError};

pub(super) const CHANGED: &str = "it has changed while it was copied";

pub(super) fn busy(new: &NewMove, detail: &'static str) -> SystemError {
    SystemError::VolumeBusy { id: new.id.clone(), detail }
}

/// The snapshots whose files are being copied, and are not merged meanwhile.
#[derive(Clone, Debug, Default)]
pub(super) struct Copying(Arc<Mutex<Vec<String>>>);

impl Copying {
    pub(super) fn contains(&self, snapshot: &str) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().any(|id| id == snapshot)
    }

    pub(super) fn add(&self, snapshots: Vec<String>) -> CopyingGuard {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(snapshots.iter().cloned());
        CopyingGuard { all: self.clone(), snapshots }
    }
}

/// Removes its snapshots when it is dropped.
#[derive(Debug)]
pub(super) struct CopyingGuard {
    all: Copying,
    snapshots: Vec<String>,
}

impl Drop for CopyingGuard {
    fn drop(&mut self) {
        let mut all = self.all.0.lock().unwrap_or_else(PoisonError::into_inner);
        for id in &self.snapshots {
            // Another move may copy the same one.
            if let Some(place) = all.iter().position(|found| found == id) {
                all.swap_remove(place);
            }
        }
    }
}
