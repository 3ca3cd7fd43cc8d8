//! The states of machines that snapshots keep, of the fake host.

use std::io;
use std::path::PathBuf;

use serde_json::Value;

use super::FakeSystem;
use super::state::{kept_state_path, saved_state_path};
use crate::{Result, SystemError};

fn missing(attempt: &'static str, path: PathBuf) -> SystemError {
    SystemError::File { attempt, path, source: io::ErrorKind::NotFound.into() }
}

impl FakeSystem {
    pub(super) fn keep(&self, instance: &str, id: &str, note: &Value) -> Result<()> {
        let (saved, kept) = (saved_state_path(instance), kept_state_path(id));
        let size = self.files.size_of(&saved).ok_or_else(|| missing("write", saved.clone()))?;
        self.files.put(&kept, size);
        self.hypervisor.link_state(&saved, &kept);
        self.state().kept_states.insert(id.to_owned(), note.clone());
        Ok(())
    }

    pub(super) fn seal_kept(&self, id: &str) -> Result<()> {
        let kept = kept_state_path(id);
        self.files.size_of(&kept).map(drop).ok_or_else(|| missing("write", kept))
    }

    pub(super) fn kept(&self, id: &str) -> Option<Value> {
        self.files.size_of(&kept_state_path(id))?;
        self.state().kept_states.get(id).cloned()
    }

    pub(super) fn lay(&self, instance: &str, id: &str) -> Result<()> {
        let (saved, kept) = (saved_state_path(instance), kept_state_path(id));
        let size = self.files.size_of(&kept).ok_or_else(|| missing("link", kept.clone()))?;
        self.files.put(&saved, size);
        self.hypervisor.link_state(&kept, &saved);
        Ok(())
    }

    pub(super) fn remove_kept(&self, id: &str) {
        self.files.remove(&kept_state_path(id));
        self.state().kept_states.remove(id);
    }

    /// Returns the snapshots with the memory of a guest.
    pub fn kept_states_now(&self) -> Vec<String> {
        self.state().kept_states.keys().cloned().collect()
    }
}
