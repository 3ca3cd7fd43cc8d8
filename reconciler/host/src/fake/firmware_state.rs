//! The firmware variables and the memory of TPMs of the fake host. Those of each instance that is started without them are others.

use berth_qemu::machine::{Firmware, MachineSpec};

use super::FakeSystem;
use crate::{FirmwareCopy, ProcessFacts, Result, SystemError};

/// The end of the bytes of an instance with a TPM.
const WITH_TPM: &[u8] = b" with a TPM";

impl FakeSystem {
    /// Makes the state of a machine that is started, unless it has it.
    pub(super) fn keep_firmware(&self, machine: &MachineSpec) {
        if machine.firmware == Firmware::Bios && !machine.tpm {
            return;
        }
        let mut state = self.state();
        // Of another host, the state of the same instance is another one.
        let made = format!("{} {:p} {}", machine.instance, self, state.calls.len());
        let found = state.firmware.entry(machine.instance.clone()).or_insert_with(|| made.into_bytes());
        if machine.tpm && !found.ends_with(WITH_TPM) {
            found.extend_from_slice(WITH_TPM);
        }
    }

    /// Returns the firmware variables and the memory of the TPM of an instance.
    pub fn firmware_now(&self, instance: &str) -> Option<Vec<u8>> {
        self.state().firmware.get(instance).cloned()
    }

    /// Loses the firmware variables and the memory of the TPMs of all instances.
    pub fn lose_firmware(&self) {
        self.state().firmware.clear();
    }

    /// Returns the copies in shared pools.
    pub fn firmware_copies_now(&self) -> Vec<FirmwareCopy> {
        self.state().firmware_copies.values().cloned().collect()
    }

    pub(super) fn install_firmware(
        &self,
        instance: &str,
        archive: &[u8],
        process: Option<ProcessFacts>,
    ) -> Result<()> {
        if let Some(process) = process {
            let (instance, pid) = (instance.to_owned(), process.identity.pid);
            return Err(SystemError::StillRunning { instance, pid });
        }
        let mut state = self.state();
        match archive.is_empty() {
            true => drop(state.firmware.remove(instance)),
            false => drop(state.firmware.insert(instance.to_owned(), archive.to_vec())),
        }
        Ok(())
    }

    pub(super) fn has_tpm_memory(&self, instance: &str) -> bool {
        self.state().firmware.get(instance).is_some_and(|bytes| bytes.ends_with(WITH_TPM))
    }

    pub(super) fn put_firmware_copy(&self, pool: &str, instance: &str, copy: &FirmwareCopy) -> Result<()> {
        let mut state = self.state();
        state.ensure_there(pool)?;
        let key = (pool.to_owned(), instance.to_owned());
        let is_later = |present: &FirmwareCopy| present.uid == copy.uid && present.epoch > copy.epoch;
        if !state.firmware_copies.get(&key).is_some_and(is_later) {
            state.firmware_copies.insert(key, copy.clone());
        }
        Ok(())
    }

    pub(super) fn firmware_copy_now(
        &self,
        pool: &str,
        instance: &str,
        uid: &str,
    ) -> Result<Option<FirmwareCopy>> {
        let state = self.state();
        state.ensure_there(pool)?;
        let found = state.firmware_copies.get(&(pool.to_owned(), instance.to_owned()));
        Ok(found.filter(|copy| copy.uid == uid).cloned())
    }

    pub(super) fn take_firmware_copy(&self, pool: &str, instance: &str) -> Result<()> {
        let mut state = self.state();
        state.ensure_there(pool)?;
        state.firmware_copies.remove(&(pool.to_owned(), instance.to_owned()));
        Ok(())
    }
}
