//! The saves of guests' memory for snapshots: one at a time, and each snapshot only some times.

use std::collections::BTreeMap;

use super::{MachineError, Machines};

/// The saves for snapshots, as this agent knows them.
#[derive(Debug, Default)]
pub(super) struct Saves {
    /// The instance whose guest is paused while its memory is saved.
    instance: Option<String>,
    /// How often the save of a snapshot failed after the guest was paused, and why the last time.
    failed: BTreeMap<String, (usize, String)>,
}

/// The guest of an instance is paused by the holder of this, which lets it go on, while this exists.
#[derive(Debug)]
pub(crate) struct Saving<'a> {
    machines: &'a Machines,
}

impl Drop for Saving<'_> {
    fn drop(&mut self) {
        let key = {
            let mut state = self.machines.state();
            let instance = state.saves.instance.take();
            instance.and_then(|instance| state.entries.get(&instance)?.key.clone())
        };
        if let Some(key) = key {
            self.machines.queue.add(key);
        }
    }
}

impl Machines {
    /// Has the plan of the instance's VM leave its guest as it is until the result is dropped.
    ///
    /// *Errors:* [`MachineError::SaveInProgress`] while another one exists.
    pub(crate) fn begin_save(&self, instance: &str) -> Result<Saving<'_>, MachineError> {
        let mut state = self.state();
        if state.saves.instance.is_some() {
            return Err(MachineError::SaveInProgress);
        }
        state.saves.instance = Some(instance.to_owned());
        Ok(Saving { machines: self })
    }

    /// Whether the guest of this instance is paused while its memory is saved for a snapshot.
    pub(crate) fn is_saving(&self, instance: &str) -> bool {
        self.state().saves.instance.as_deref() == Some(instance)
    }

    /// Records that the save of a snapshot failed after its guest was paused.
    pub(crate) fn save_failed(&self, snapshot: &str, why: String) {
        let mut state = self.state();
        let failed = state.saves.failed.entry(snapshot.to_owned()).or_default();
        *failed = (failed.0 + 1, why);
    }

    /// Returns how often the save of a snapshot failed, and why the last time.
    pub(crate) fn failed_saves(&self, snapshot: &str) -> Option<(usize, String)> {
        self.state().saves.failed.get(snapshot).cloned()
    }

    /// Forgets the saves of a snapshot that is taken or deleted.
    pub(crate) fn forget_saves(&self, snapshot: &str) {
        self.state().saves.failed.remove(snapshot);
    }
}
