//! Whether a VM that has a host moves to another one at its next stop.
//!
//! ```text
//!   its placement does not allow its host, and movePolicy is WhenStopped ─┐     it can: moveEpoch, Movable=True    ──▶ its host gives it up
//!   or `berth move` requests it, for this binding                        ─┴──▶ it cannot: Movable=False, and why
//! ```
//!
//! The controllers look before: a VM that no other host could take stays where it is. A VM that its host has given up is rebound by
//! [`rebind`], whatever is declared by then.

mod live;

use std::sync::Arc;

use berth_api::{
    ConditionType, ConditionUpdate, Disk, FORMER_UID_ANNOTATION, Reason, VM, VMStatus, condition, former_uid,
};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;

use crate::{
    cache::{Cache, capacity::Candidate},
    config::Config,
    kinds::{disk, rebind},
    scheduler,
};

use super::observe::{observe, with_scratch};
use super::place::requirements;
pub(super) use live::{Live, decide as decide_live};

/// How often the controllers check whether a VM that is to move can move.
const LOOK_AGAIN: SignedDuration = SignedDuration::from_secs(60);

const MOVES: &str = "it moves to another host once it is off: stop it (power: Stopped), or restart it";

/// Returns whether a VM that is to move can, or why not; `None` for one that stays where it is. Nothing is decided about one whose host has
/// not admitted it, or does not answer.
pub(super) fn decide(cache: &Cache, config: &Config, vm: &VM) -> Option<Result<(), String>> {
    let status = vm.status.as_ref().filter(|status| status.is_admitted())?;
    let binding = status.binding.as_ref()?;
    let is_requested = vm.requested_move().is_some_and(|requested| requested.epoch == binding.epoch);
    let is_to_move = is_requested || (vm.moves_when_stopped() && is_misplaced(vm, status));
    if !is_to_move {
        return None;
    }
    let host = &binding.host;
    let why = misnamed(cache, vm, host, binding.epoch).or_else(|| chosen(cache, config, vm, host).err());
    Some(why.map_or(Ok(()), Err))
}

/// When a VM that is to move is looked at again: the room of hosts, and snapshots of its disks, may have changed.
pub(super) fn looked_at_again(now: Timestamp) -> Timestamp {
    now.checked_add(LOOK_AGAIN).unwrap_or(now)
}

/// Returns the status with the decision. `decided`, `live`: as [`decide`] and [`decide_live`] return it.
pub(super) fn write(
    vm: &VM,
    decided: Option<&Result<(), String>>,
    live: Option<Live>,
    mut status: VMStatus,
    now: Timestamp,
) -> VMStatus {
    let Some(epoch) = status.binding.as_ref().map(|binding| binding.epoch) else { return status };
    if status.is_released() {
        return status;
    }
    let generation = vm.metadata.generation.unwrap_or_default();
    let kind = ConditionType::Movable;
    let moving: String;
    let update = match decided {
        None => {
            status.move_epoch = None;
            condition::remove(&mut status.conditions, kind);
            return status;
        }
        Some(Ok(())) => {
            status.move_epoch = Some(epoch);
            // One that is there is removed by its host alone, which may be handing the guest over.
            moving = match live {
                Some(Live::Moves(migration)) if status.live_move().is_none() => {
                    let text = format!("its running guest moves to host {}", migration.to);
                    status.migration = Some(migration);
                    text
                }
                Some(Live::Moves(migration)) => format!("its running guest moves to host {}", migration.to),
                Some(Live::Refused(why)) => format!("{MOVES}. While it runs, it does not move: {why}"),
                None => MOVES.to_owned(),
            };
            ConditionUpdate::from_bool(kind, true, Reason::MoveWaits, &moving)
        }
        Some(Err(why)) => {
            status.move_epoch = None;
            ConditionUpdate::from_bool(kind, false, Reason::MoveRefused, why)
        }
    };
    condition::set(&mut status.conditions, update, generation, now);
    status
}

/// Whether its host has reported, about the present spec, that its placement does not allow that host.
fn is_misplaced(vm: &VM, status: &VMStatus) -> bool {
    let synced = condition::find(&status.conditions, ConditionType::PlacementSynced.as_str());
    synced.is_some_and(|synced| {
        synced.status == "False" && synced.observed_generation == vm.metadata.generation
    })
}

/// Returns why a VM cannot move to the named host, as far as the names show that.
fn misnamed(cache: &Cache, vm: &VM, host: &str, epoch: i64) -> Option<String> {
    let declared = vm.spec.placement.as_ref().and_then(|placement| placement.host.as_deref());
    let requested = vm.requested_move().filter(|requested| requested.epoch == epoch);
    let requested = requested.and_then(|requested| requested.host);
    match (declared, requested.as_deref()) {
        (Some(declared), _) if declared == host => {
            Some(format!("placement.host names the host that it has, {host}"))
        }
        (Some(declared), Some(requested)) if declared != requested => Some(format!(
            "placement.host names host {declared}, and a move to host {requested} is requested (berth move)"
        )),
        (_, Some(requested)) if requested == host => Some(format!("it is on host {host} already")),
        (_, Some(requested)) if cache.tables.hosts.cluster(requested).is_none() => {
            Some(format!("there is no host {requested}, to which a move is requested (berth move)"))
        }
        _ => None,
    }
}

/// Returns the host that a VM would move to, decided as if its host had given it up. The error is why it cannot move.
fn chosen(cache: &Cache, config: &Config, vm: &VM, host: &str) -> Result<String, String> {
    let pre_stop = vm.spec.hooks.as_ref().and_then(|hooks| hooks.pre_stop.as_ref());
    if pre_stop.is_some_and(|hook| hook.snapshot.is_some()) {
        return Err("its preStop hook takes a snapshot of its disks at each stop".to_owned());
    }
    let now = config.clock.now();
    let disks: Vec<Arc<Disk>> = match rebind::left_disks(cache, vm, host, now) {
        Ok(disks) => disks.into_iter().map(Arc::new).collect(),
        Err(why) => return Err(why),
    };
    // Without a host, an object with the annotation would wait for the recovery of its former host: a move must not begin that.
    let is_recreated =
        former_uid(vm).is_some() || disks.iter().any(|disk| former_uid(disk.as_ref()).is_some());
    if is_recreated {
        return Err(format!(
            "it or one of its disks has the annotation {FORMER_UID_ANNOTATION}: remove that"
        ));
    }
    for left in &disks {
        if let Some(obstacle) = disk::obstacle(cache, left) {
            return Err(format!("Disk {}: {}", left.name_any(), obstacle.text));
        }
    }
    let mut left = vm.clone();
    left.status = Some(rebind::released(vm, now));
    let mut observed = observe(cache, &left, config);
    let left_disks = disk::by_pool(cache, disks.iter().map(|disk| &**disk));
    observed.new_disks = with_scratch(cache, &left, left_disks);
    for seen in &mut observed.disks {
        let known = disks.iter().find(|disk| *disk.name_any() == *seen.key.name);
        seen.object = known.cloned().or_else(|| seen.object.take());
    }
    // The VM itself counts as a member of its group on the host that it leaves.
    if observed.group.is_some()
        && let Some(members) = observed.beside.members.get_mut(host)
    {
        *members = members.saturating_sub(1);
        if *members == 0 {
            observed.beside.members.remove(host);
        }
    }
    let request = match requirements(&left, &observed) {
        Ok(request) => request,
        Err((_, readiness, _)) => return Err(readiness.message().to_owned()),
    };
    // The room on the host that its running guest is being sent to is kept for itself.
    let own = next_without(cache, vm);
    let hosts = cache.index.capacity.hosts();
    let hosts = hosts.map(|host| own.as_ref().filter(|own| own.name == host.name).unwrap_or(host));
    let chosen = scheduler::choose(&request, &observed.beside, hosts, observed.policy);
    match chosen {
        Ok(chosen) => {
            let why = rebind::copies_none(cache, &disks, chosen)
                .or_else(|| rebind::takes_no_firmware(cache, vm, chosen));
            why.map_or_else(|| Ok(chosen.to_owned()), Err)
        }
        Err(why) => Err(why.readiness("").message().to_owned()),
    }
}

/// Returns the host that the running guest of a VM is being sent to, without the VM.
fn next_without(cache: &Cache, vm: &VM) -> Option<Candidate> {
    let migration = vm.status.as_ref().and_then(VMStatus::live_move)?;
    cache.index.capacity.without(&migration.to, &cache.demand(vm).unwrap_or_default())
}

#[cfg(test)]
mod tests;
