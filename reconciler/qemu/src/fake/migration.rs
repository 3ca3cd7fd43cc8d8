//! Saves the state of a fake machine to a file, and loads it again. Over a connection it goes to another fake machine.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

use super::command_error::{Answer, CommandError};
use super::machine::{Happening, Later, Machine};
use super::saved_states::{Hardware, Migration, Received, SavedState};
use crate::live_move::CHANNEL;
use crate::machine::Format;
use crate::saved_state::STATE_FILE;

/// The most bytes of a state.
const MOST_BYTES: u64 = 1 << 20;
/// How often it is seen whether a state has come.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Reads a state to its end.
async fn receive(channel: DuplexStream, received: Received) {
    let mut bytes = Vec::new();
    // One that ends early cannot be loaded.
    let _ = channel.take(MOST_BYTES).read_to_end(&mut bytes).await;
    *received.lock().unwrap_or_else(PoisonError::into_inner) = Some(bytes);
}

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

    /// Whether this names the connection that QEMU was given.
    fn has_channel(&self, uri: &Value) -> bool {
        *uri == format!("fd:{CHANNEL}").as_str() && self.migration.channel.is_some()
    }

    fn begin(&mut self, uri: &Value, after: Duration, what: Happening) -> Answer {
        if self.has_channel(uri) {
            self.migration = Migration {
                status: Some("active"),
                channel: self.migration.channel.take(),
                ..Migration::default()
            };
            self.emit("MIGRATION", json!({"status": "active"}));
            return Ok((json!({}), vec![Later { after, life: None, what }]));
        }
        let lent = self.migration.lent.take().filter(|_| *uri == format!("fd:{STATE_FILE}").as_str());
        let Some(file) = lent else {
            return Err(CommandError::generic(format!(
                "File descriptor named '{STATE_FILE}' has not been found"
            )));
        };
        self.migration = Migration { file, status: Some("active"), ..Migration::default() };
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
        let begun = self.begin(uri, self.behaviour.save_time, Happening::Loaded)?;
        if let Some(channel) = self.migration.channel.take() {
            let received = Received::default();
            self.migration.received = Some(Arc::clone(&received));
            tokio::spawn(receive(channel, received));
        }
        Ok(begun)
    }

    pub(super) fn migrate_cancel(&mut self) {
        if matches!(self.migration.status, Some("active" | "pre-switchover")) {
            self.migration.channel = None;
            if self.status == "finish-migrate" {
                self.status = "running";
                self.emit("RESUME", Value::Null);
            }
            self.end_migration("cancelled", None);
        }
    }

    /// Gives the disks up, and sends the state.
    pub(super) fn migrate_continue(&mut self) -> Result<(), CommandError> {
        let channel =
            self.migration.channel.take().filter(|_| self.migration.status == Some("pre-switchover"));
        let Some(mut channel) = channel else {
            return Err(CommandError::generic("Migration not in expected state: pre-switchover"));
        };
        let state = serde_json::to_vec(&self.state()).expect("plain data with text keys");
        tokio::spawn(async move {
            // The other end may be gone: then nothing loads the state.
            let _ = channel.write_all(&state).await;
            let _ = channel.shutdown().await;
        });
        self.status = "postmigrate";
        self.is_inactive = true;
        self.end_migration("completed", None);
        Ok(())
    }

    fn state(&self) -> SavedState {
        let down = self.nics().filter(|(_, nic)| !nic.is_up).map(|(id, _)| id.clone()).collect();
        SavedState { hardware: self.hardware(), boot: self.boot.filter(|_| self.booted), down }
    }

    /// The memory has been sent: the guest is paused until the switch.
    fn sent(&mut self) {
        if let Some(words) = self.behaviour.save_fails.clone() {
            self.migration.channel = None;
            return self.end_migration("failed", Some(words));
        }
        self.status = "finish-migrate";
        self.emit("STOP", Value::Null);
        self.end_migration("pre-switchover", None);
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
        if self.migration.channel.is_some() {
            return self.sent();
        }
        if let Some(words) = self.behaviour.save_fails.clone() {
            self.status = "postmigrate";
            return self.end_migration("failed", Some(words));
        }
        let state = self.state();
        let file = self.migration.file.clone();
        // A file that was removed meanwhile is written all the same, and is no file any more.
        let _ = self.files.create(&file, self.spec.machine.memory_bytes);
        self.states.lock().insert(file, state);
        self.status = "postmigrate";
        self.end_migration("completed", None);
    }

    /// When it is seen again whether the state has come that another machine sends.
    pub(super) fn awaits_state(&self) -> Option<Later> {
        let received = self.migration.received.as_ref()?;
        let is_there = received.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        (!is_there).then_some(Later { after: LOOK_AGAIN, life: None, what: Happening::Loaded })
    }

    /// Returns false if QEMU ends because it cannot load the state.
    pub(super) fn loaded(&mut self) -> bool {
        // A state in a file is loaded with the disks; one that another machine sends waits for them until the guest is started.
        self.is_inactive &= self.migration.received.is_some();
        let state = match self.migration.received.take() {
            None => self.states.lock().get(&self.migration.file).cloned(),
            Some(received) => {
                let bytes = received.lock().unwrap_or_else(PoisonError::into_inner).take();
                bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok())
            }
        };
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
