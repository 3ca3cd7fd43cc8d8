//! Observation of a VM with a process.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::{Power, VM};
use berth_host::{ProcessFacts, System, VolumeFacts};
use berth_qemu::hypervisor::ProcessState;

use super::super::{cpu_time, is_declared, pending_leases, process_facts, surplus};
use super::indexed::attachments;
use super::{Observed, offered, taken_memory};
use crate::context::Context;
use crate::error::Error;
use crate::hardware::differences;
use crate::host_shutdown::AtShutdown;
use crate::index::volume_of;
use crate::key::ObjectName;
use crate::lease_watcher::PendingLease;
use crate::machine::{ANSWER_WAIT, Connection, Machine, MachineState};
use crate::networking::{card_of, tap_of};
use crate::pools;
use crate::restores::{self, VmRestore};

pub(super) async fn observe_running(
    ctx: &Context,
    vm: &VM,
    name: &ObjectName,
    process: &ProcessFacts,
    observed: &mut Observed,
) -> Result<(), Error> {
    let uid = vm.metadata.uid.as_deref();
    let slots = &observed.journal.slots;
    observed.observed_addresses = ctx.networks.observed(&ctx.index.read(), vm, &observed.instance, slots);
    // Read before the machine: one that is let go on in between is seen as it was, and looked at once more.
    observed.is_saving = ctx.machines.is_saving(&observed.instance);
    // A machine that does not answer may be ending, or may hang: an observation like any other.
    match ctx.machines.connection(&observed.instance, uid, &process.identity) {
        Connection::Due => observed.connection_due = true,
        Connection::Failed(why) => observed.unreachable = Some(silence(ctx, process, why).await),
        Connection::Open(machine) if machine.is_silent() => {
            let seen = format!("no answer within {} seconds", ANSWER_WAIT.as_secs());
            observed.unreachable = Some(silence(ctx, process, seen).await);
        }
        Connection::Open(machine) => match machine.state().await {
            Ok(state) => {
                observed.guest = machine.guest();
                observed.mounts = mounts(&machine, &state, observed).await;
                observed.left_volumes = left_volumes(ctx, name, &state, observed);
                observed.machine = Some(state);
                observe_taps(ctx, observed).await?;
                if !process_facts::are_reported(vm, process) {
                    observed.details = Some(ctx.system.process_details(&process.identity).await?);
                }
            }
            Err(error) => {
                observed.unreachable = Some(silence(ctx, process, Error::from(error).chain()).await);
            }
        },
    }
    if matches!(observed.restore, VmRestore::Done(_)) && observed.journal.suspension.is_none() {
        observed.booted_restored = restores::booted(&ctx.index.read(), vm, &observed.journal);
    }
    observe_cpu_time(ctx, observed).await?;
    if vm.spec.power == Power::Suspended || observed.at_shutdown == Some(AtShutdown::Suspend) {
        observed.attached = attached(ctx, name).await?;
    }
    let synced = match (&observed.journal.run, &observed.size) {
        (Some(run), Ok(size)) => differences(run, vm, size, &observed.profile).is_empty(),
        _ => true,
    };
    if !synced {
        let host = ctx.system.machine_facts().await?;
        let offered = offered(ctx, &host);
        let taken = taken_memory(&ctx.index.read(), vm, host.overhead_bytes);
        observed.free_memory = Some(offered.1.saturating_sub(taken));
        observed.offered = Some(offered);
    }
    let mut pending = Vec::new();
    if !observed.guest.agent {
        // A guest that was suspended goes on with its lease.
        let booted = observed.journal.run.as_ref().and_then(|run| run.booted_at);
        pending = pending_leases(vm, observed, booted.unwrap_or(process.started_at));
        observed.lease_taken = lease_taken(ctx.system.as_ref(), &pending).await?;
    }
    let is_young = pending.iter().any(|lease| lease.is_young(observed.now));
    if observed.lease_taken || !is_young {
        pending.clear();
    }
    observed.lease_watch = (!ctx.lease_watcher.is_watching(name, &pending)).then_some(pending);
    Ok(())
}

/// Returns why the monitor of a process does not answer: what was seen, and the state of the process.
async fn silence(ctx: &Context, process: &ProcessFacts, seen: String) -> String {
    let pid = process.identity.pid;
    match ctx.system.process_state(&process.identity).await {
        Ok(Some(ProcessState::Stopped)) => {
            format!(
                "process {pid} is stopped by a signal or a debugger (`kill -CONT {pid}` lets it go on): {seen}"
            )
        }
        Ok(Some(ProcessState::Blocked)) => {
            format!("process {pid} waits in the kernel for a device or a network file system: {seen}")
        }
        _ => seen,
    }
}

/// Reads the CPU time that the machine has, and that which it is to have.
async fn observe_cpu_time(ctx: &Context, observed: &mut Observed) -> Result<(), Error> {
    // Only a reservation depends on the host.
    let cpus = match observed.cpu_controls.reserved {
        0 => 1,
        _ => ctx.system.machine_facts().await?.cpus,
    };
    observed.wanted_cpu_time = cpu_time::of(&observed.cpu_controls, cpus);
    observed.cpu_time = Some(ctx.system.cpu_time(&observed.instance).await?);
    Ok(())
}

/// Returns the volumes of the disks that attachments plug into the VM.
pub(super) async fn attached(ctx: &Context, name: &ObjectName) -> Result<Vec<VolumeFacts>, Error> {
    let disks: Vec<_> = {
        let tables = ctx.index.read();
        let attachments: Vec<_> = tables.attachments_of(name).collect();
        attachments.iter().filter_map(|a| tables.disks.get(&name.beside(a.spec.disk.as_str()))).collect()
    };
    let mut volumes = Vec::new();
    for disk in disks {
        if let Some(id) = volume_of(&disk) {
            volumes.extend(pools::reachable(ctx, disk.pool().as_str(), id).await?);
        }
    }
    Ok(volumes)
}

/// Observes which cards have lost their taps, and which taps are on no bridge. The host is asked only about taps that were not on one at the
/// last look.
async fn observe_taps(ctx: &Context, observed: &mut Observed) -> Result<(), Error> {
    let nics = observed.machine.iter().flat_map(|machine| &machine.nics);
    let cards: BTreeSet<&str> = nics.map(|nic| nic.id.as_str()).collect();
    let slots = observed.journal.slots.iter().filter(|(_, slot)| cards.contains(card_of(**slot).as_str()));
    let suspects: Vec<(String, String)> = slots
        .map(|(name, slot)| (name.clone(), tap_of(&observed.instance, *slot)))
        .filter(|(_, tap)| ctx.networks.may_miss(tap))
        .collect();
    if suspects.is_empty() {
        return Ok(());
    }
    let there = ctx.system.taps().await?;
    for (name, tap) in suspects {
        match there.iter().find(|found| found.name == tap) {
            None => observed.lost_taps.insert(name),
            Some(found) if found.bridge.is_none() => observed.loose_taps.insert(name),
            Some(_) => continue,
        };
    }
    Ok(())
}

/// Queries mount points; only of disks that are to be unplugged.
async fn mounts(
    machine: &Machine,
    state: &MachineState,
    observed: &Observed,
) -> BTreeMap<String, Vec<String>> {
    let mut mounts = BTreeMap::new();
    for disk in surplus(state, observed) {
        if let Some(points) = machine.mounts(&disk.serial, disk.target).await {
            mounts.insert(disk.id.clone(), points);
        }
    }
    mounts
}

/// Returns the volumes that QEMU has open without a disk, or that are reserved for a disk that was not plugged in, and that are not to be
/// plugged in any more.
fn left_volumes(
    ctx: &Context,
    name: &ObjectName,
    state: &MachineState,
    observed: &Observed,
) -> BTreeSet<String> {
    let mut left = ctx.machines.reserved(&observed.instance);
    left.extend(state.left_open.iter().cloned());
    let is_there = |volume: &str| state.disks.iter().any(|disk| disk.id == volume);
    left.retain(|volume| !is_there(volume) && !is_declared(volume, observed));
    // A machine keeps the reservations of its start: mostly all of them are of disks that it has.
    if left.is_empty() {
        return left;
    }
    // After the reservations: an attachment that has made one is among these.
    let attached = attachments(&ctx.index.read(), name);
    left.retain(|volume| !attached.contains_key(volume));
    left
}

async fn lease_taken(system: &dyn System, interfaces: &[PendingLease]) -> Result<bool, Error> {
    for interface in interfaces {
        let leases = system.leases_taken(&interface.bridge).await?;
        if leases.iter().any(|lease| interface.is_found(lease)) {
            return Ok(true);
        }
    }
    Ok(false)
}
