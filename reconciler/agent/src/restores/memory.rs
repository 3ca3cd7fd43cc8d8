//! The memory of the snapshot that a VM is restored from: whether the guest can go on with it.
//!
//! A guest in a saved state knows the hardware that it had. It goes on with exactly that, and only if the VM declares it now.

use std::collections::BTreeSet;

use berth_api::vm::VMRestore;
use berth_api::{Profile, Size, SizeError, VM};
use berth_host::{HostFacts, SnapshotFacts, VolumeFacts};
use berth_qemu::machine::{Accelerator, MachineSpec};

use crate::context::Context;
use crate::error::Error;
use crate::hardware::differences;
use crate::index::{declared_profile, declared_size, instance_of};
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
    let written = ctx.system.read_journal(instance_of(vm).unwrap_or_default()).await?;
    let Some(Ok(journal)) = written.map(Journal::parse) else {
        return refused("the VM has never run on this host");
    };
    let host = ctx.facts().await?;
    let (size, profile) = {
        let (tables, name) = (ctx.index.read(), ObjectName::of(vm));
        (declared_size(&tables, &name, vm), declared_profile(&tables, &name, vm))
    };
    if let Some(why) = obstacle(vm, &journal, &saved, (&size, &profile)).or_else(|| lacks(&host, &saved)) {
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
    let differing = differences(&saved.run, vm, size, profile);
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

/// Returns what this host lacks for a saved state.
fn lacks(host: &HostFacts, saved: &SavedMachine) -> Option<String> {
    let is_kvm = |accelerator: &Accelerator| matches!(accelerator, Accelerator::Kvm);
    if is_kvm(&host.accelerator) != is_kvm(&saved.machine.accelerator) {
        return Some("its host runs guests with another accelerator than then".to_owned());
    }
    let qemu = match &host.qemu {
        Ok(qemu) => qemu,
        Err(missing) => return Some(missing.clone()),
    };
    let model = saved.run.profile.cpu_model.as_ref().filter(|model| !qemu.cpu_models.contains(model))?;
    Some(format!("this host's CPUs or its QEMU lack a feature of cpuModel {model}"))
}

#[cfg(test)]
mod tests;
