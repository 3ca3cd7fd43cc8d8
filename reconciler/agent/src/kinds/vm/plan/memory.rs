//! Memory that a running machine gets and gives back. Pure.
//!
//! ```text
//!   declared ─▶ journal: changed_at ▸ RequestMemory ─▶ the guest plugs blocks in or out ─▶ as declared
//!                                                       └─ none for TAKEN_WITHIN ─▶ the rest waits for a power cycle
//! ```

use std::time::Duration;

use berth_api::{Quantity, Readiness, Reason, VM};
use berth_qemu::power::RunState;

use super::start::{left_of, too_large};
use super::{Observed, Step, write_journal};
use crate::converge::Plan;
use crate::machine::MachineState;

/// How often a host that has too little memory for a change is looked at.
const LOOK_FOR_ROOM: Duration = Duration::from_secs(30);
/// The time in which a guest plugs the next block in or out. A guest that plugs none for so long has no driver, or does not release what
/// it uses.
const TAKEN_WITHIN: Duration = Duration::from_secs(60);

/// Requests the memory that is declared, as far as the machine was started for it. How much of it the guest takes or gives back,
/// and when, is its own decision.
pub(super) fn request(vm: &VM, observed: &Observed, machine: &MachineState) -> Option<Plan<Step>> {
    let (size, has) = (observed.size.as_ref().ok()?, machine.growth?);
    let growth = observed.journal.run.as_ref()?.growth?;
    let is_possible =
        (growth.base..=growth.most).contains(&size.memory) && too_large(vm, size, observed).is_none();
    let wanted =
        size.memory.checked_sub(growth.base).filter(|wanted| is_possible && *wanted != has.requested)?;
    // Other VMs may have taken it since the change was declared.
    let needed = size.taken().memory;
    if let Some(free) = observed.free_memory.filter(|free| wanted > has.requested && *free < needed) {
        let (needed, free) = (Quantity::from_bytes(needed), Quantity::from_bytes(free >> 20 << 20));
        let text = format!("the VM is to have {needed} of memory and this host has {free} for it");
        let readiness = Readiness::Reconciling(Reason::Unschedulable, text);
        return Some(Plan::without_steps(readiness).requeue_after(LOOK_FOR_ROOM));
    }
    let mut journal = observed.journal.clone();
    if let Some(growth) = journal.run.as_mut().and_then(|run| run.growth.as_mut()) {
        growth.changed_at = Some(observed.now);
    }
    let readiness = Readiness::Reconciling(Reason::Attaching, "memory is being plugged in or out".to_owned());
    // The time first: after a crash in between the memory is requested again.
    Some(Plan::steps(vec![write_journal(journal), Step::RequestMemory(wanted)], readiness))
}

/// Returns how the VM stands while its guest plugs in or out what was requested, and how long it may still take for the next block.
pub(super) fn taking(observed: &Observed) -> Option<(Readiness, Duration)> {
    let left = left(observed)?;
    let (run, size) = (observed.journal.run.as_ref()?, observed.size.as_ref().ok()?);
    let (wanted, has) = (Quantity::from_bytes(size.memory), Quantity::from_bytes(run.memory_bytes));
    let text = format!(
        "the guest plugs memory in or out: the VM is to have {wanted} of memory, and has {has} so far"
    );
    Some((Readiness::Reconciling(Reason::Attaching, text), left))
}

/// Whether another amount of memory reaches the running guest without a power cycle: it plugs memory in or out now, or does so once its
/// host has the memory.
pub(in crate::kinds::vm) fn is_changing(vm: &VM, observed: &Observed) -> bool {
    let running = observed.machine.as_ref().filter(|machine| machine.run_state == RunState::Running);
    let requested = running.and_then(|machine| request(vm, observed, machine));
    left(observed).is_some() || requested.is_some_and(|waits_for_room| waits_for_room.steps.is_empty())
}

/// Returns how long the guest may still take for the next block. None: it runs with what is declared, or takes no more of it.
fn left(observed: &Observed) -> Option<Duration> {
    let (run, size) = (observed.journal.run.as_ref()?, observed.size.as_ref().ok()?);
    let (growth, machine) = (run.growth?, observed.machine.as_ref());
    let is_under_way = match machine.and_then(|machine| machine.growth) {
        Some(has) => growth.base.saturating_add(has.requested) == size.memory && has.plugged != has.requested,
        // Its monitor did not answer.
        None => (growth.base..=growth.most).contains(&size.memory) && run.memory_bytes != size.memory,
    };
    if !is_under_way || machine.is_some_and(|machine| machine.run_state != RunState::Running) {
        return None;
    }
    Some(left_of(TAKEN_WITHIN, growth.changed_at?, observed.now)).filter(|left| !left.is_zero())
}
