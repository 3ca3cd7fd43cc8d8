//! The QEMU process of a VM as its status has it, and the facts about it, which are read once for each process. Pure.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::VM;
use berth_api::condition::cut;
use berth_api::vm::{LONGEST_FACT, ProcessStatus};
use berth_host::{ProcessDetails, ProcessFacts};

use crate::journal::Journal;
use crate::machine::MachineState;

/// Returns the process for the status.
pub(super) fn status_of(process: &ProcessFacts) -> ProcessStatus {
    ProcessStatus {
        pid: i64::from(process.identity.pid),
        started_at: process.started_at.round(jiff::Unit::Second).unwrap_or(process.started_at),
    }
}

/// Whether the status has the facts of this process.
pub(super) fn are_reported(vm: &VM, process: &ProcessFacts) -> bool {
    let stored = vm.status.as_ref();
    stored.is_some_and(|status| {
        !status.facts.is_empty() && status.process.as_ref() == Some(&status_of(process))
    })
}

/// Returns the facts for the status of a VM with this process: those that were read now, or else those that are reported.
pub(super) fn report(
    vm: &VM,
    process: &ProcessFacts,
    machine: Option<&MachineState>,
    details: Option<&ProcessDetails>,
    journal: &Journal,
) -> BTreeMap<String, String> {
    match (machine, details) {
        (Some(machine), Some(details)) => read(machine, details, journal),
        _ if are_reported(vm, process) => vm.status.as_ref().map(|s| s.facts.clone()).unwrap_or_default(),
        _ => BTreeMap::new(),
    }
}

fn read(machine: &MachineState, details: &ProcessDetails, journal: &Journal) -> BTreeMap<String, String> {
    let launched = journal.run.as_ref().and_then(|run| run.machine.as_deref());
    let engines = launched.map(|machine| {
        let engines: BTreeSet<&str> = machine.disks.iter().map(|disk| disk.cache.aio()).collect();
        engines.into_iter().collect::<Vec<_>>().join(", ")
    });
    let has_cards = launched.is_some_and(|machine| !machine.nics.is_empty());
    let vhost_net = details.vhost_net.filter(|_| has_cards);
    let facts = [
        ("qemuVersion", Some(machine.qemu_version.clone())),
        ("accelerator", journal.pins.as_ref().map(|pins| pins.accelerator.clone())),
        ("diskIO", engines),
        ("vhostNet", vhost_net.map(|is_on| if is_on { "on" } else { "off" }.to_owned())),
        ("cgroup", details.cgroup.clone()),
    ];
    let known = facts.into_iter().filter_map(|(name, fact)| {
        let fact = fact.filter(|fact| !fact.is_empty())?;
        Some((name.to_owned(), cut(&fact, LONGEST_FACT).to_owned()))
    });
    known.collect()
}
