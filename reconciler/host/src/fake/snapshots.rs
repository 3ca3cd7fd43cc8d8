//! Snapshots of volumes of the fake host.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use berth_qemu::machine::Backing;

use super::FakeSystem;
use super::state::{Snapshot, State, Volume, volume_path};
use crate::{Merged, NewRestore, NewSnapshot, Result, SnapshotFacts, SystemError, Taken, VolumeFacts};

impl FakeSystem {
    pub(super) fn begin_all(&self, all: &[NewSnapshot]) -> Result<Vec<VolumeFacts>> {
        self.check(all)?;
        let mut state = self.state();
        all.iter().map(|new| self.begin(&mut state, new)).collect()
    }

    pub(super) fn check(&self, all: &[NewSnapshot]) -> Result<()> {
        let state = self.state();
        let is_taken = |new: &NewSnapshot| {
            state.snapshots.get(&new.id).is_some_and(|snapshot| snapshot.facts.taken.is_some())
        };
        let is_new = |new: &&NewSnapshot| !state.snapshots.contains_key(&new.id);
        if let Some(taken) =
            all.iter().find(|new| is_taken(new)).filter(|_| all.iter().any(|new| is_new(&new)))
        {
            return Err(SystemError::NotOneMoment { id: taken.volume.clone() });
        }
        for new in all.iter().filter(is_new) {
            let lost = || SystemError::VolumeLost { id: new.volume.clone() };
            let volume = state.volumes.get(&new.volume).ok_or_else(lost)?;
            if volume.facts.is_shared() || volume.facts.is_device() {
                let why =
                    "several VMs write to it, or it is a block device: it has no snapshots and no copies";
                return Err(SystemError::Invalid { what: "volume", value: new.volume.clone(), why });
            }
            if volume.facts.pending_snapshot.is_some() {
                let detail = "another snapshot of it is being taken";
                return Err(SystemError::VolumeBusy { id: new.volume.clone(), detail });
            }
        }
        Ok(())
    }

    fn begin(&self, state: &mut State, new: &NewSnapshot) -> Result<VolumeFacts> {
        let lost = || SystemError::VolumeLost { id: new.volume.clone() };
        let volume = state.volumes.get(&new.volume).cloned().ok_or_else(lost)?;
        let now = self.facts_of(&volume);
        if state.snapshots.contains_key(&new.id) {
            return Ok(now);
        }
        let backing = Backing {
            file: now.path.clone(),
            format: now.format,
            backing: now.backing.clone().map(Box::new),
        };
        state.keys.key_of(&new.volume, now.encryption.as_deref())?;
        // As many numbers as there ever were files.
        let mut paths =
            (1..).map(|number: u32| now.path.with_file_name(format!("{}.{number}.qcow2", new.volume)));
        let path = paths.find(|path| self.files.size_of(path).is_none()).expect("numbers do not run out");
        self.files.put(&path, now.size);
        let facts = SnapshotFacts {
            encryption: now.encryption.clone(),
            pool: new.pool.clone(),
            id: new.id.clone(),
            volume: new.volume.clone(),
            size: now.size,
            owner: new.owner.clone(),
            taken: None,
        };
        let base = now.base.clone();
        state.snapshots.insert(new.id.clone(), Snapshot { facts, backing: backing.clone(), base });
        let facts = VolumeFacts {
            path,
            backing: Some(backing),
            pending_snapshot: Some(new.id.clone()),
            reserved: now.reserved.map(|_| 0),
            ..now
        };
        state.volumes.insert(new.volume.clone(), Volume { facts: facts.clone() });
        Ok(facts)
    }

    pub(super) fn finish(&self, id: &str, taken: &Taken) -> Result<SnapshotFacts> {
        let lost = || SystemError::SnapshotLost { id: id.to_owned() };
        let file = self.state().snapshots.get(id).ok_or_else(lost)?.backing.file.clone();
        let is_written = self.is_open(&file);
        let mut state = self.state();
        let snapshot = state.snapshots.get_mut(id).ok_or_else(lost)?;
        if snapshot.facts.taken.is_none() {
            if is_written {
                let detail = "a running QEMU has not been switched to its new file";
                return Err(SystemError::VolumeBusy { id: snapshot.facts.volume.clone(), detail });
            }
            snapshot.facts.taken = Some(taken.clone());
            snapshot.facts.size = self.files.size_of(&file).unwrap_or(0);
        }
        let facts = snapshot.facts.clone();
        if let Some(volume) = state.volumes.get_mut(&facts.volume) {
            volume.facts.pending_snapshot = None;
        }
        Ok(facts)
    }
}

impl FakeSystem {
    pub(super) fn restore(&self, new: &NewRestore) -> Result<VolumeFacts> {
        let lost = || SystemError::VolumeLost { id: new.volume.clone() };
        let found = self.state().volumes.get(&new.volume).cloned().ok_or_else(lost)?;
        let now = self.facts_of(&found);
        if new.is_done(&now.restores) {
            return Ok(now);
        }
        let is_open = self.is_open(&now.path);
        let mut state = self.state();
        if is_open {
            state.violations.push(format!("volume {} restored while a machine has it open", new.volume));
        }
        let taken = state.snapshots.get(&new.snapshot).filter(|s| s.facts.taken.is_some()).cloned();
        let snapshot = taken.ok_or_else(|| SystemError::SnapshotLost { id: new.snapshot.clone() })?;
        let begun = |s: &Snapshot| s.facts.volume == new.volume && s.facts.taken.is_none();
        if state.snapshots.values().any(begun) {
            let detail = "a snapshot of it is being taken";
            return Err(SystemError::VolumeBusy { id: new.volume.clone(), detail });
        }
        let former = format!("{}-former-{}", new.volume, now.restores.len());
        let path = now.path.with_file_name(format!("{}.r{}.qcow2", new.volume, now.restores.len() + 1));
        self.files.put(&path, new.size.max(snapshot.facts.size));
        self.files.remove(&now.path);
        let aside = VolumeFacts {
            id: former.clone(),
            path: volume_path(&new.pool, &former),
            restores: Vec::new(),
            ..now.clone()
        };
        let at = self.clock.now();
        state.trash.insert(former, (Volume { facts: aside }, now.size, at));
        let restores = new.added_to(now.restores.clone(), at);
        let reserved = now.reserved.map(|_| 0);
        let facts =
            VolumeFacts { path, base: None, backing: Some(snapshot.backing), restores, reserved, ..now };
        state.volumes.insert(new.volume.clone(), Volume { facts });
        let volume = state.volumes.get(&new.volume).cloned().ok_or_else(lost)?;
        drop(state);
        Ok(self.facts_of(&volume))
    }
}

impl FakeSystem {
    /// Merges one deleted snapshot with the only one that is based on it.
    pub(super) fn merge(&self, kept: &BTreeSet<String>) -> Option<Merged> {
        let machines = self.hypervisor.instances();
        let views: Vec<_> = machines.iter().filter_map(|instance| self.hypervisor.view(instance)).collect();
        let mut state = self.state();
        let (file, upper) = mergeable(&state, kept)?;
        for (volume, below) in views.iter().flat_map(|view| &view.below) {
            let place = |wanted: &Path| below.iter().position(|file| file == wanted);
            if place(&file).is_some_and(|lower| place(&upper).is_none_or(|upper| upper > lower)) {
                state.violations.push(format!("the data of volume {volume} changes in a machine"));
            }
        }
        state.snapshots.retain(|_, snapshot| snapshot.backing.file != file);
        let State { volumes, trash, snapshots, .. } = &mut *state;
        for snapshot in snapshots.values_mut() {
            snapshot.backing = without(&snapshot.backing, &file)?;
        }
        let mut merged = Merged::default();
        for (id, volume) in volumes.iter_mut().chain(trash.iter_mut().map(|(id, (volume, ..))| (id, volume)))
        {
            let shorter = volume.facts.backing.as_ref().and_then(|backing| without(backing, &file));
            if shorter != volume.facts.backing {
                volume.facts.backing = shorter;
                merged.volumes.push(id.clone());
            }
        }
        self.files.remove(&file);
        Some(merged)
    }
}

/// Returns the file of a deleted snapshot that only one snapshot is based on, and the file of that one.
fn mergeable(state: &State, kept: &BTreeSet<String>) -> Option<(PathBuf, PathBuf)> {
    let volumes = state.volumes.values().chain(state.trash.values().map(|(volume, ..)| volume));
    let below_volumes: BTreeSet<&PathBuf> =
        volumes.filter_map(|volume| Some(&volume.facts.backing.as_ref()?.file)).collect();
    let deleted = state.snapshots.iter().filter(|(id, snapshot)| {
        let facts = &snapshot.facts;
        facts.owner.is_none()
            && facts.taken.is_some()
            && !kept.contains(*id)
            && !below_volumes.contains(&snapshot.backing.file)
    });
    let found = deleted.filter_map(|(_, lower)| {
        let file = &lower.backing.file;
        let is_on = |s: &&Snapshot| s.backing.backing.as_ref().is_some_and(|below| below.file == *file);
        let mut on: Vec<&Snapshot> = state.snapshots.values().filter(is_on).collect();
        let upper = on.pop().filter(|upper| on.is_empty() && upper.facts.taken.is_some())?;
        Some((file.clone(), upper.backing.file.clone()))
    });
    found.min()
}

/// Returns a chain without one of its files.
fn without(chain: &Backing, file: &Path) -> Option<Backing> {
    let below = chain.backing.as_deref().and_then(|below| without(below, file));
    match chain.file == file {
        true => below,
        false => Some(Backing { backing: below.map(Box::new), ..chain.clone() }),
    }
}

/// Removes the snapshots that nothing owns and nothing is based on.
pub(super) fn collect(state: &mut State) {
    let mut used = BTreeSet::new();
    let mut mark = |mut below: Option<&Backing>| {
        while let Some(backing) = below {
            used.insert(backing.file.clone());
            below = backing.backing.as_deref();
        }
    };
    let volumes = state.volumes.values().chain(state.trash.values().map(|(volume, ..)| volume));
    volumes.for_each(|volume| mark(volume.facts.backing.as_ref()));
    state
        .snapshots
        .values()
        .filter(|s| s.facts.owner.is_some())
        .for_each(|s| mark(s.backing.backing.as_deref()));
    state.snapshots.retain(|_, snapshot| {
        snapshot.facts.taken.is_none()
            || snapshot.facts.owner.is_some()
            || used.contains(&snapshot.backing.file)
    });
}
