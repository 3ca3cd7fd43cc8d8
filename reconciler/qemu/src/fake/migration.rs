//! Saves the state of a fake machine to a file, and loads it again.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use super::command_error::{Answer, CommandError};
use super::machine::{Happening, Later, Machine};
use super::saved_states::{Hardware, Migration, SavedState};
use crate::machine::Format;
use crate::saved_state::STATE_FILE;

impl Machine {
    fn hardware(&self) -> Hardware {
        let disks = self.disks().map(|(id, disk)| (id.clone(), disk.target)).collect();
        let nics = self.nics().map(|(id, nic)| (id.clone(), nic.bus.clone())).collect();
        (self.cpus.clone(), self.spec.machine.memory_bytes, disks, nics)
    }

    pub(super) fn query_migrate(&self) -> Value {
        let Some(status) = self.migration.status else { return json!({}) };
        match &self.migration.error {
            Some(error) => json!({"status": status, "error-desc": error}),
            None => json!({"status": status}),
        }
    }

    fn begin(&mut self, uri: &Value, after: Duration, what: Happening) -> Answer {
        let lent = self.migration.lent.take().filter(|_| *uri == format!("fd:{STATE_FILE}").as_str());
        let Some(file) = lent else {
            return Err(CommandError::generic(format!(
                "File descriptor named '{STATE_FILE}' has not been found"
            )));
        };
        self.migration = Migration { lent: None, file, status: Some("active"), error: None };
        self.emit("MIGRATION", json!({"status": "active"}));
        Ok((json!({}), vec![Later { after, life: None, what }]))
    }

    pub(super) fn migrate(&mut self, uri: &Value) -> Answer {
        if self.migration.status == Some("active") {
            return Err(CommandError::generic("There's a migration process in progress"));
        }
        if self.status == "inmigrate" {
            return Err(CommandError::generic("Guest is waiting for an incoming migration"));
        }
        self.begin(uri, self.behaviour.save_time, Happening::Saved)
    }

    pub(super) fn migrate_incoming(&mut self, uri: &Value) -> Answer {
        if self.status != "inmigrate" || self.migration.status.is_some() {
            return Err(CommandError::generic("The incoming migration has already been started"));
        }
        self.begin(uri, self.behaviour.save_time, Happening::Loaded)
    }

    pub(super) fn migrate_cancel(&mut self) {
        if self.migration.status == Some("active") {
            self.end_migration("cancelled", None);
        }
    }

    fn end_migration(&mut self, status: &'static str, error: Option<String>) {
        self.migration.status = Some(status);
        self.migration.error = error;
        self.emit("MIGRATION", json!({"status": status}));
    }

    pub(super) fn saved(&mut self) {
        if self.migration.status != Some("active") {
            return;
        }
        if let Some(words) = self.behaviour.save_fails.clone() {
            self.status = "postmigrate";
            return self.end_migration("failed", Some(words));
        }
        let down = self.nics().filter(|(_, nic)| !nic.is_up).map(|(id, _)| id.clone()).collect();
        let boot = self.boot.filter(|_| self.booted);
        let state = SavedState { hardware: self.hardware(), boot, down };
        let file = self.migration.file.clone();
        // A file that was removed meanwhile is written all the same, and is no file any more.
        let _ = self.files.create(&file, self.spec.machine.memory_bytes);
        self.states.lock().insert(file, state);
        self.status = "postmigrate";
        self.end_migration("completed", None);
    }

    /// Returns false if QEMU ends because it cannot load the state.
    pub(super) fn loaded(&mut self) -> bool {
        let state = self.states.lock().get(&self.migration.file).cloned();
        let state =
            state.filter(|state| state.hardware == self.hardware() && self.behaviour.load_fails.is_none());
        let Some(state) = state else { return false };
        self.status = "paused";
        self.boot = state.boot;
        self.booted = state.boot.is_some();
        for (id, device) in &mut self.devices {
            if let Some(nic) = &mut device.nic {
                nic.is_up = !state.down.contains(id);
            }
        }
        self.end_migration("completed", None);
        true
    }

    /// Gives QEMU a file for its state.
    pub(super) fn lend(&mut self, file: PathBuf, is_empty: bool) -> std::io::Result<()> {
        if is_empty {
            self.files.create(&file, 0)?;
        } else {
            self.files.size(&file, Format::Raw)?;
        }
        self.migration.lent = Some(file);
        Ok(())
    }
}
