//! The memory of the snapshot that a VM is restored from: whether the guest can go on with it.
//!
//! A guest in a saved state knows the hardware that it had. It goes on with exactly that, and only if the VM declares it now.

use std::collections::BTreeSet;

use berth_api::vm::{VMDisk, VMRestore};
use berth_api::{Profile, Size, SizeError, VM};
use berth_host::{HostFacts, SnapshotFacts, VolumeFacts};
use berth_qemu::machine::{Accelerator, MachineSpec};

use crate::context::Context;
use crate::error::Error;
use crate::hardware::{bus_of, differences};
use crate::index::{declared_profile, declared_size, instance_of, volume_of};
use crate::journal::{Journal, LoadedMemory, Run};
use crate::key::ObjectName;
use crate::saved_machine::SavedMachine;

/// The memory that the guest of a VM goes on with.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DueMemory {
    /// The identity under which the host keeps the state.
    pub(crate) id: String,
    pub(crate) restore: LoadedMemory,
    /// The run that it was saved of.
    pub(crate) run: Run,
    /// The machine that can load it, with the present files of its disks.
    pub(crate) machine: MachineSpec,
}

/// Returns what a journal records of a restore whose memory is loaded.
pub(super) fn loaded(restore: &VMRestore) -> LoadedMemory {
    LoadedMemory { snapshot: restore.snapshot.to_string(), token: restore.token.clone() }
}

/// Returns the memory that is kept with this snapshot, the first part of that which the VM is restored from. None: there is none, or
/// it is not wanted. The inner error is for people: the VM cannot go on with it.
pub(super) async fn find(
    ctx: &Context,
    vm: &VM,
    first: &SnapshotFacts,
    volumes: &[&VolumeFacts],
) -> Result<Option<Result<Box<DueMemory>, String>>, Error> {
    let Some(restore) = vm.spec.restore.as_deref().filter(|restore| restore.wants_memory()) else {
        return Ok(None);
    };
    if !first.taken.as_ref().is_some_and(|taken| taken.memory) {
        return Ok(None);
    }
    let refused = |why: &str| {
        let text = format!(
            "the guest's memory of VMSnapshot {} cannot be loaded: {why}. With restore.memory set to false, only the disks are restored",
            restore.snapshot
        );
        Ok(Some(Err(text)))
    };
    let Some(saved) = ctx.system.kept_state(&first.id).await?.and_then(SavedMachine::parse) else {
        return refused("its file is gone from the host, or of a newer version of berth");
    };
    let instance = instance_of(vm).unwrap_or_default();
    let written = ctx.system.read_journal(instance).await?;
    let Some(Ok(journal)) = written.map(Journal::parse) else {
        return refused("the VM has never run on this host");
    };
    let host = ctx.facts().await?.for_guests_of(saved.machine.architecture());
    let bootstrap = ctx.system.bootstrap_data(instance).await?;
    let (size, profile, disks) = {
        let (tables, name) = (ctx.index.read(), ObjectName::of(vm));
        let disk = |disk: &VMDisk| {
            let volume = volume_of(tables.disks.get(&name.beside(disk.name.as_str()))?.as_ref())?.to_owned();
            Some((volume, disk.clone()))
        };
        let disks: Vec<(String, VMDisk)> = vm.spec.disks.iter().filter_map(disk).collect();
        (declared_size(&tables, &name, vm), declared_profile(&tables, &name, vm), disks)
    };
    let why = obstacle(vm, &journal, &saved, (&size, &profile))
        .or_else(|| other_disk(&disks, &saved.machine))
        .or_else(|| other_bootstrap(&bootstrap, &saved))
        .or_else(|| lacks(&host, &saved));
    if let Some(why) = why {
        return refused(&why);
    }
    match saved.on_files_of(volumes) {
        Ok(machine) => {
            let restore = loaded(restore);
            let due = DueMemory { id: first.id.clone(), restore, run: saved.run, machine };
            Ok(Some(Ok(Box::new(due))))
        }
        Err(serial) => refused(&format!(
            "the guest has the disk with the serial number {serial}, which the VM does not have"
        )),
    }
}

/// Returns why the VM as it is declared cannot go on with a saved state.
fn obstacle(
    vm: &VM,
    journal: &Journal,
    saved: &SavedMachine,
    (size, profile): (&Result<Size, SizeError>, &Profile),
) -> Option<String> {
    if Some(saved.machine.instance.as_str()) != instance_of(vm) {
        return Some("it is of another VM, which had this name".to_owned());
    }
    let size = match size {
        Ok(size) => size,
        Err(error) => return Some(error.to_string()),
    };
    let run = Run { machine: Some(Box::new(saved.machine.clone())), ..saved.run.clone() };
    let differing = differences(&run, vm, size, profile);
    if !differing.is_empty() {
        let names = differing.join(", ");
        return Some(format!("the guest had another {names}: declare what the VM had then"));
    }
    (!has_cards_of(vm, journal, &saved.machine)).then(|| {
        "the guest had other network interfaces: declare those that the VM had then, with their addresses"
            .to_owned()
    })
}

/// Whether the VM declares exactly the network cards of a machine, in the same slots and with the same MAC addresses.
fn has_cards_of(vm: &VM, journal: &Journal, machine: &MachineSpec) -> bool {
    let is_declared =
        |name: &str| vm.spec.network_interfaces.iter().any(|declared| declared.name.as_str() == name);
    let given =
        vm.status.iter().flat_map(|status| &status.interfaces).filter(|given| is_declared(&given.name));
    let cards = given.filter_map(|given| {
        Some((*journal.slots.get(given.name.as_str())?, given.mac_address.to_ascii_lowercase()))
    });
    let cards: BTreeSet<(u8, String)> = cards.collect();
    let saved: BTreeSet<(u8, String)> = machine.nics.iter().map(|nic| (nic.slot, nic.mac.clone())).collect();
    cards == saved && vm.spec.network_interfaces.len() == cards.len()
}

/// Returns which disk, of these volumes, the VM declares in another way than the machine had it.
fn other_disk(declared: &[(String, VMDisk)], machine: &MachineSpec) -> Option<String> {
    declared.iter().find_map(|(volume, declared)| {
        let had = machine.disks.iter().find(|disk| disk.id == *volume)?;
        let parts = [
            ("boot", had.boot == declared.boot),
            ("bus", had.bus == bus_of(declared.bus)),
            ("readOnly", had.read_only == declared.read_only),
        ];
        let (name, _) = parts.into_iter().find(|(_, is_same)| !is_same)?;
        Some(format!(
            "the guest had disk {} with another {name}: declare it as the VM had it then",
            declared.name
        ))
    })
}

/// Returns what differs in the devices for bootstrap data, of which a guest has those of its last start.
fn other_bootstrap(present: &[String], saved: &SavedMachine) -> Option<String> {
    (present != saved.bootstrap).then(|| {
        "the guest had devices for other kinds of bootstrap data: declare those that it had then, and start it once"
            .to_owned()
    })
}

/// Returns what this host lacks for a saved state.
fn lacks(host: &HostFacts, saved: &SavedMachine) -> Option<String> {
    if let Some(refusal) = host.refusal(saved.machine.architecture()) {
        return Some(refusal);
    }
    let is_kvm = |accelerator: &Accelerator| matches!(accelerator, Accelerator::Kvm);
    if is_kvm(&host.accelerator) != is_kvm(&saved.machine.accelerator) {
        return Some("its host runs guests with another accelerator than then".to_owned());
    }
    let qemu = match &host.qemu {
        Ok(qemu) => qemu,
        Err(missing) => return Some(missing.clone()),
    };
    let machine_type = &saved.machine.machine_type;
    // A host that does not know its machine types leaves the check to QEMU.
    if !qemu.machine_types.is_empty() && !qemu.machine_types.contains(machine_type) {
        return Some(format!("QEMU {} of this host has no machine type {machine_type}", qemu.version));
    }
    let model = saved.run.profile.cpu_model.as_ref().filter(|model| !qemu.cpu_models.contains(model))?;
    Some(format!("this host's CPUs or its QEMU lack a feature of cpuModel {model}"))
}

#[cfg(test)]
mod tests;
