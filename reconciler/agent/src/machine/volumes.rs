//! The volumes that machines have open, or are about to open.

use std::collections::BTreeSet;

use berth_qemu::machine::DiskSpec;
use tokio::sync::OwnedMutexGuard;

use super::{Entry, Holder, Machine, MachineError, Machines, Still};

impl Machines {
    /// Whether the machine of this VM has this volume open, or may have.
    pub(crate) fn holds(&self, vm_uid: &str, volume: &str) -> bool {
        let state = self.state();
        state.entries.values().any(|e| e.vm_uid.as_deref() == Some(vm_uid) && e.holds(volume))
    }

    /// Returns the machines that have this volume open, or may have.
    pub(crate) fn holders(&self, volume: &str) -> Vec<Holder> {
        let state = self.state();
        let holding = state.entries.iter().filter(|(_, entry)| entry.holds(volume));
        let holder = |(instance, entry): (&String, &Entry)| Holder {
            instance: instance.clone(),
            vm_uid: entry.vm_uid.clone(),
            key: entry.key.clone(),
            is_certain: entry.has(volume).is_some(),
        };
        holding.map(holder).collect()
    }

    /// Returns the volumes that are reserved for this instance.
    pub(crate) fn reserved(&self, instance: &str) -> BTreeSet<String> {
        self.state().entries.get(instance).map(|entry| entry.reserved.clone()).unwrap_or_default()
    }

    /// Whether any machine has this volume open, or may have.
    pub(crate) fn is_open(&self, volume: &str) -> bool {
        self.state().entries.values().any(|entry| entry.holds(volume))
    }

    /// Returns the machines that have this volume open: several only if they read it, or if it is shared.
    pub(crate) fn openers(&self, volume: &str) -> Vec<Machine> {
        let state = self.state();
        let seen = |m: &&Machine| m.driver.borrow().volumes.as_ref().is_some_and(|v| v.contains(volume));
        state.entries.values().filter_map(|e| e.machine.as_ref()).filter(seen).cloned().collect()
    }

    /// Returns the machine that has this volume open, and may write to it.
    pub(crate) fn holder(&self, volume: &str) -> Option<Machine> {
        self.openers(volume).into_iter().next()
    }

    /// Waits until no other machine opens one of those of these disks that are read only or shared. The file of such a disk is accessible to
    /// the user of one QEMU at a time: that of another one has to have it open before.
    pub(crate) async fn open_alone(&self, disks: &[DiskSpec]) -> Vec<OwnedMutexGuard<()>> {
        let common = disks.iter().filter(|disk| disk.read_only || disk.shared);
        self.opening.lock_all(common.map(|disk| disk.id.as_str()).collect()).await
    }

    /// Reserves a volume for a machine that is about to open it.
    ///
    /// *Guarantees:* between `Ok` and [`Machines::forget`] or [`Machines::unreserve`] the machine counts as a holder, so
    /// its claim on the volume is kept.
    pub(crate) fn reserve(&self, instance: &str, vm_uid: &str, volume: &str) -> Result<(), MachineError> {
        let mut state = self.state();
        if state.blocked.contains(volume) || state.held_still.contains(volume) {
            return Err(MachineError::ReservationBlocked { volume: volume.to_owned() });
        }
        let entry = state.entries.entry(instance.to_owned()).or_default();
        entry.vm_uid = Some(vm_uid.to_owned());
        entry.reserved.insert(volume.to_owned());
        Ok(())
    }

    /// Keeps machines from opening these volumes until the result is dropped. Those that have them open keep them.
    ///
    /// *Errors:* [`MachineError::ReservationBlocked`] while another caller holds one of them still.
    pub(crate) fn hold_still(&self, volumes: Vec<String>) -> Result<Still<'_>, MachineError> {
        let mut state = self.state();
        if let Some(held) = volumes.iter().find(|volume| state.held_still.contains(*volume)) {
            return Err(MachineError::ReservationBlocked { volume: held.clone() });
        }
        state.held_still.extend(volumes.iter().cloned());
        Ok(Still { machines: self, volumes })
    }

    /// Releases a reservation: from now on, the volumes QEMU has are what counts.
    pub(crate) fn unreserve(&self, instance: &str, volume: &str) {
        if let Some(entry) = self.state().entries.get_mut(instance) {
            entry.reserved.remove(volume);
        }
    }

    /// Whether this machine counts as having this volume open. If it has no disk of it, an attempt to plug it in has failed, and QEMU may
    /// have its file open still.
    pub(crate) fn is_certain_holder(&self, instance: &str, volume: &str) -> bool {
        self.state().entries.get(instance).is_some_and(|entry| entry.has(volume) == Some(true))
    }

    /// Blocks reservations of this volume until [`Machines::allow_reservations`].
    pub(crate) fn block_reservations(&self, volume: &str) {
        self.state().blocked.insert(volume.to_owned());
    }

    pub(crate) fn allow_reservations(&self, volume: &str) {
        self.state().blocked.remove(volume);
    }
}
