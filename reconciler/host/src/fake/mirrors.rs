//! Mirrors of volumes between the pools of the fake host.

use berth_qemu::power::RunState;

use super::FakeSystem;
use super::state::{Volume, volume_path};
use crate::{NewMove, Result, SystemError, VolumeFacts};

impl FakeSystem {
    /// Also one whose file counts, until the former one is removed.
    pub(super) fn mirror_of(&self, id: &str) -> Option<NewMove> {
        self.state().mirrors.get(id).map(|(new, _)| new.clone())
    }

    pub(super) fn prepare(&self, new: &NewMove) -> Result<VolumeFacts> {
        self.check_relocation(new)?;
        let now = self.volume_here(new)?;
        if now.encryption.is_some() || now.continues_snapshots() {
            let why = "the disk moves while no VM has it open";
            return Err(SystemError::Invalid { what: "pool", value: new.to.clone(), why });
        }
        let name = now.path.file_name().unwrap_or_default();
        let path = volume_path(&new.to, &new.id).with_file_name(name);
        let mut state = self.state();
        self.files.put(&path, now.size);
        state.mirrors.insert(new.id.clone(), (new.clone(), path.clone()));
        Ok(VolumeFacts { pool: new.to.clone(), path, ..now })
    }

    pub(super) fn check_prepared(&self, new: &NewMove) -> Result<()> {
        let now = self.volume_here(new)?;
        let is_prepared = self.state().mirrors.get(&new.id).is_some_and(|(prepared, _)| prepared == new);
        if now.pool == new.to || is_prepared && now.pending_snapshot.is_none() {
            return Ok(());
        }
        let detail = "it has changed while it was copied";
        Err(SystemError::VolumeBusy { id: new.id.clone(), detail })
    }

    pub(super) fn commit(&self, new: &NewMove) -> Result<()> {
        self.check_prepared(new)?;
        let now = self.volume_here(new)?;
        if now.pool == new.to {
            return Ok(());
        }
        let is_running = self.runs_with(&new.id);
        let mut state = self.state();
        if is_running {
            state.violations.push(format!("a guest writes to volume {} before its file is recorded", new.id));
        }
        let lost = || SystemError::VolumeLost { id: new.id.clone() };
        let (_, other) = state.mirrors.get_mut(&new.id).ok_or_else(lost)?;
        let former = now.path.clone();
        let path = std::mem::replace(other, former);
        let facts = VolumeFacts { pool: new.to.clone(), path, ..now };
        state.volumes.insert(new.id.clone(), Volume { facts });
        Ok(())
    }

    pub(super) fn settle(&self, new: &NewMove) -> Result<()> {
        let Some((_, file)) = self.state().mirrors.get(&new.id).cloned() else { return Ok(()) };
        if self.is_open(&file) {
            let detail = "a QEMU has its file in the other pool open";
            return Err(SystemError::VolumeBusy { id: new.id.clone(), detail });
        }
        self.files.remove(&file);
        self.state().mirrors.remove(&new.id);
        Ok(())
    }

    fn volume_here(&self, new: &NewMove) -> Result<VolumeFacts> {
        let found = self.state().volumes.get(&new.id).cloned();
        let found = found.ok_or_else(|| SystemError::VolumeLost { id: new.id.clone() })?;
        Ok(self.facts_of(&found))
    }

    /// Whether the guest of a machine with this volume runs.
    fn runs_with(&self, id: &str) -> bool {
        let machines = self.hypervisor.instances();
        let mut views = machines.iter().filter_map(|instance| self.hypervisor.view(instance));
        views.any(|view| view.disks.contains_key(id) && view.run_state == RunState::Running)
    }
}
