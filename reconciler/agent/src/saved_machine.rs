//! The machine of a state in a file: what a QEMU is launched with to load it. Pure.

use std::collections::BTreeSet;

use berth_host::VolumeFacts;
use berth_qemu::block::ObservedDisk;
use berth_qemu::hypervisor::ProcessIdentity;
use berth_qemu::machine::{CdromSpec, DiskSpec, MachineSpec};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::journal::{Journal, Run};
use crate::machine::MachineState;
use crate::plugging::disk_spec;

/// The size of a state beside the guest's memory, in bytes: devices, and a header for each page.
const DEVICES: u64 = 64 << 20;
/// The newest version of a [`SavedMachine`] that this agent reads.
const VERSION: u32 = 1;

/// The note beside the state that a snapshot keeps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SavedMachine {
    pub(crate) version: u32,
    /// When the guest was paused for it.
    pub(crate) at: Timestamp,
    /// The QEMU that saved it: its disks are of the same moment only if they were switched in this process.
    pub(crate) process: ProcessIdentity,
    /// The run that it was saved of, without its machine.
    pub(crate) run: Run,
    /// The machine as it was launched, with the disks that it had, without their chains of files.
    pub(crate) machine: MachineSpec,
    /// The names of the bootstrap data that it was started with: for each it has a device.
    pub(crate) bootstrap: Vec<String>,
}

impl SavedMachine {
    /// Describes the machine of this journal, whose guest is about to be paused.
    pub(crate) fn new(
        journal: &Journal,
        state: &MachineState,
        process: &ProcessIdentity,
        (machine, bootstrap): (MachineSpec, Vec<String>),
        at: Timestamp,
    ) -> Option<Self> {
        let mut run = journal.run.clone()?;
        run.machine = None;
        run.cpus = state.cpus.unwrap_or(run.cpus);
        let without_chain = |disk: DiskSpec| DiskSpec { backing: None, ..disk };
        let disks = machine.disks.into_iter().map(without_chain).collect();
        let machine = MachineSpec { disks, ..machine };
        Some(Self { version: VERSION, at, process: process.clone(), run, machine, bootstrap })
    }

    /// Reads the note of a state. None: it is of a newer agent, or damaged.
    pub(crate) fn parse(note: Value) -> Option<Self> {
        let saved: Self = serde_json::from_value(note).ok()?;
        (saved.version <= VERSION).then_some(saved)
    }

    pub(crate) fn to_value(&self) -> Value {
        serde_json::to_value(self).expect("it is plain data with text keys")
    }

    /// Returns the machine with the present files of its disks. The error is the serial number of a disk without one.
    pub(crate) fn on_files_of(&self, volumes: &[&VolumeFacts]) -> Result<MachineSpec, String> {
        let is_known = |disk: &&DiskSpec| volumes.iter().any(|volume| volume.id == disk.id);
        match self.machine.disks.iter().find(|disk| !is_known(disk)) {
            Some(disk) => Err(disk.serial.clone()),
            None => Ok(on_present_files(&self.machine, volumes)),
        }
    }
}

/// Returns the machine with the present files of these volumes: snapshots, moves to other pools and merges have others than the one with
/// which it was started.
pub(crate) fn on_present_files(machine: &MachineSpec, volumes: &[&VolumeFacts]) -> MachineSpec {
    let disk = |disk: &DiskSpec| match volumes.iter().find(|volume| volume.id == disk.id) {
        Some(volume) => {
            let now = disk_spec(volume, &disk.serial, disk.boot, disk.target);
            DiskSpec { wwn: disk.wwn, read_only: disk.read_only, bus: disk.bus, ..now }
        }
        None => disk.clone(),
    };
    MachineSpec { disks: machine.disks.iter().map(disk).collect(), ..machine.clone() }
}

/// Returns the bytes that the state of a machine takes at most.
pub(crate) fn size_at_most(machine: &MachineSpec) -> u64 {
    machine.max_memory_bytes.unwrap_or(machine.memory_bytes) + DEVICES
}

/// Whether the journal has the network cards that the machine has now.
pub(crate) fn has_recorded_cards(journal: &Journal, machine: &MachineState) -> bool {
    let launched = journal.run.as_ref().and_then(|run| run.machine.as_deref());
    let Some(launched) = launched else { return true };
    let ids: BTreeSet<&str> = machine.nics.iter().map(|nic| nic.id.as_str()).collect();
    ids == launched.nics.iter().map(|nic| nic.id.as_str()).collect()
}

/// Returns the machine as it was launched, with the disks that it has now.
/// `volumes`: those of its disks.
pub(crate) fn as_it_is(
    journal: &Journal,
    machine: &MachineState,
    volumes: &[&VolumeFacts],
) -> Result<MachineSpec, String> {
    let launched = journal.run.as_ref().and_then(|run| run.machine.as_deref());
    let Some(launched) = launched else {
        return Err("it was started by an earlier version of berth, which did not record its hardware. Stop and start it once"
            .to_owned());
    };
    if !launched.shares.is_empty() {
        let text =
            "it has shares until the next power cycle, whose state is not saved with the guest's memory";
        return Err(text.to_owned());
    }
    // The emulator gives QEMU the TPM's memory, which is saved with the guest's, and gets it back.
    if machine.has_tpm == Some(false) {
        return Err("the emulator of its TPM has ended: restart it (restartToken)".to_owned());
    }
    if machine.disks.iter().any(|disk| disk.is_encrypted) {
        let text = "it has an encrypted disk, and its memory, which has data of it, would be saved as it is";
        return Err(text.to_owned());
    }
    let is_shared = |disk: &ObservedDisk| {
        let is_launched_so = launched.disks.iter().any(|of| of.id == disk.id && of.shared);
        is_launched_so || volumes.iter().any(|volume| volume.id == disk.id && volume.is_shared())
    };
    if machine.disks.iter().any(is_shared) {
        let text = "it has a disk that other VMs write to (ReadWriteMany), whose data would not be that of its saved memory";
        return Err(text.to_owned());
    }
    if machine.cdroms.iter().any(|drive| drive.node.is_some()) {
        return Err("there is a medium in a CD-ROM drive: take it out first".to_owned());
    }
    let without_medium = |drive: &CdromSpec| CdromSpec { medium: None, ..drive.clone() };
    let cdroms = launched.cdroms.iter().map(without_medium).collect();
    // The disks of the start in their order, which QEMU's command line has, then those that were plugged in.
    let place =
        |disk: &ObservedDisk| launched.disks.iter().position(|d| d.id == disk.id).unwrap_or(usize::MAX);
    let mut now: Vec<&ObservedDisk> = machine.disks.iter().collect();
    now.sort_by_key(|disk| (place(disk), disk.target));
    let disks: Result<Vec<DiskSpec>, String> =
        now.into_iter().map(|disk| disk_of(disk, launched, volumes)).collect();
    Ok(MachineSpec { disks: disks?, cdroms, ..launched.clone() })
}

fn disk_of(
    disk: &ObservedDisk,
    launched: &MachineSpec,
    volumes: &[&VolumeFacts],
) -> Result<DiskSpec, String> {
    if let Some(known) = launched.disks.iter().find(|d| d.id == disk.id) {
        return Ok(DiskSpec { target: disk.target.or(known.target), ..known.clone() });
    }
    match volumes.iter().find(|volume| volume.id == disk.id) {
        Some(volume) => Ok(disk_spec(volume, &disk.serial, false, disk.target)),
        None => Err(format!("disk {} is being taken out, or its file is not known", disk.serial)),
    }
}
