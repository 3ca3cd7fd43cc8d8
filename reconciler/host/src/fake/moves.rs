//! Moves of volumes between the pools of the fake host.

use std::path::Path;

use super::FakeSystem;
use super::state::{Snapshot, Volume, volume_path};
use crate::{NewMove, NewTake, NewVolume, Result, SystemError, VolumeFacts, VolumeOwner};

impl FakeSystem {
    /// Whether any machine has this file open.
    pub(super) fn is_open(&self, path: &Path) -> bool {
        let machines = self.hypervisor.instances();
        let views = machines.iter().filter_map(|instance| self.hypervisor.view(instance));
        views.flat_map(|view| view.disks.into_values()).any(|(file, _)| file == path)
    }

    /// Fake hosts share no folder: only a volume that is here already is found.
    pub(super) fn volume_taken(&self, new: &NewTake) -> Result<VolumeFacts> {
        let state = self.state();
        state.ensure_there(&new.pool)?;
        let found = state.volumes.get(&new.id).map(|volume| self.facts_of(volume));
        drop(state);
        let found = found.ok_or_else(|| SystemError::VolumeLost { id: new.id.clone() })?;
        self.state().arriving.remove(&new.id);
        Ok(found)
    }

    /// The file of the other host counts as one of this size.
    pub(super) fn arriving(&self, new: &NewTake) -> Result<VolumeFacts> {
        let owner = VolumeOwner {
            namespace: String::new(),
            name: new.id.clone(),
            uid: new.uid.clone(),
            image: None,
            source: None,
        };
        let made = self.make_volume(&NewVolume {
            pool: new.pool.clone(),
            id: new.id.clone(),
            size: Some(1 << 30),
            base: new.base.clone(),
            snapshot: None,
            file: None,
            thick: false,
            shared: false,
            encryption: None,
            owner,
        })?;
        self.state().arriving.insert(new.id.clone());
        Ok(made)
    }

    pub(super) fn not_arriving(&self, id: &str) {
        let mut state = self.state();
        if state.arriving.remove(id) {
            state.volumes.remove(id);
        }
    }

    pub(super) fn check_relocation(&self, new: &NewMove) -> Result<()> {
        let state = self.state();
        for pool in [&new.from, &new.to] {
            state.ensure_there(pool)?;
        }
        let lost = || SystemError::VolumeLost { id: new.id.clone() };
        let volume = state.volumes.get(&new.id).ok_or_else(lost)?;
        if volume.facts.pending_snapshot.is_some() {
            let detail = "a snapshot of it is being taken";
            return Err(SystemError::VolumeBusy { id: new.id.clone(), detail });
        }
        Ok(())
    }

    pub(super) fn relocate(&self, new: &NewMove) -> Result<VolumeFacts> {
        let lost = || SystemError::VolumeLost { id: new.id.clone() };
        let found = self.state().volumes.get(&new.id).cloned().ok_or_else(lost)?;
        let now = self.facts_of(&found);
        if now.pool == new.to {
            return Ok(now);
        }
        let is_open = self.is_open(&now.path);
        let mut state = self.state();
        if is_open {
            state.violations.push(format!("volume {} moved while a machine has it open", new.id));
        }
        let name = now.path.file_name().unwrap_or_default().to_owned();
        let path = volume_path(&new.to, &new.id).with_file_name(name);
        self.files.put(&path, now.size);
        self.files.remove(&now.path);
        let facts = VolumeFacts { pool: new.to.clone(), path, ..now };
        state.volumes.insert(new.id.clone(), Volume { facts: facts.clone() });
        let own =
            |snapshot: &&mut Snapshot| snapshot.facts.volume == new.id && snapshot.facts.owner.is_some();
        state.snapshots.values_mut().filter(own).for_each(|snapshot| snapshot.facts.pool.clone_from(&new.to));
        Ok(facts)
    }
}
