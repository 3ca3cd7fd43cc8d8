//! The decision: a pure function of the object and the observed inputs.

use berth_api::{Binding, DEFAULT_NAME, HOST_FINALIZER, Readiness, Reason, VM, VMState, vm::InterfaceStatus};
use kube::ResourceExt;

use crate::{
    cache::capacity::HostCapacity,
    key::{Key, ObjectKind},
    kinds::disk::bind_disk,
    kinds::network::is_accepted,
    kinds::rebind::CopyRemoval,
    placement_hold::awaits_its_host,
    plan::{Dependency, Outcome, Plan, Step, namesakes},
};

use super::{
    Decision, addresses,
    observe::{Observed, bound},
    place,
    place::{check_disk, fixed_use},
};

pub(super) fn plan(vm: &VM, observed: &Observed, capacity: &HostCapacity) -> Plan<Decision> {
    if let Some(binding) = vm.status.as_ref().and_then(|s| s.binding.as_ref()) {
        return match (withdrawal(vm, observed, binding), observed.host_silent) {
            (Some(why), _) => Plan::settled(Decision::Unbind(why)),
            (None, true) => Plan::settled(Decision::Unknown(binding.host.clone())),
            (None, false) => plan_bound(vm, observed, &binding.host),
        };
    }
    if let Some(claim) = &observed.claim {
        if observed.host_silent {
            let text =
                format!("host {} has it and does not report: what runs there is not known", claim.host);
            let waits = Decision::Wait(VMState::Unknown, Readiness::Reconciling(Reason::HostSilent, text));
            return Plan::blocked(
                waits,
                vec![Dependency::Object(Key::cluster(ObjectKind::Host, &claim.host))],
            );
        }
        // Whatever was declared since: on the host that holds it, it can be stopped, changed and deleted.
        return place::bind_again(vm, observed, claim);
    }
    if let Some(text) = &observed.unconfirmed {
        return Plan::settled(Decision::Wait(
            VMState::Unknown,
            Readiness::Stalled(Reason::WaitingForInventory, text.clone()),
        ));
    }
    if vm.metadata.deletion_timestamp.is_some() {
        return plan_removal(vm, &observed.copies);
    }
    if let Some(text) = awaits_its_host(vm) {
        // A later report of a host that holds it enqueues it again.
        return Plan::settled(Decision::Wait(
            VMState::Pending,
            Readiness::Reconciling(Reason::WaitingForInventory, text),
        ));
    }
    place::place(vm, observed, capacity)
}

/// Plans a deleted VM that no host has.
fn plan_removal(vm: &VM, copies: &CopyRemoval) -> Plan<Decision> {
    match copies {
        CopyRemoval::Nothing => {
            // Nothing exists for it: it is held only by a finalizer set before a bind that never happened.
            let mut plan = Plan::settled(Decision::NoChange);
            plan.steps.push(Step::RemoveFinalizer(Key::of(vm), HOST_FINALIZER));
            plan
        }
        CopyRemoval::By(host) => Plan::settled(Decision::RemoveCopies(host.clone())),
        CopyRemoval::Waits { text, hosts } => {
            let readiness = Readiness::Reconciling(Reason::PoolAway, text.clone());
            let waits = Decision::Wait(VMState::Terminating, readiness);
            let hosts = hosts.iter().map(|host| Dependency::Object(Key::cluster(ObjectKind::Host, host)));
            Plan::blocked(waits, hosts.chain([Dependency::Hosts]).collect())
        }
    }
}

/// Returns why a VM that its host has not admitted is placed again, if it is.
///
/// *Guarantees:* an admitted VM is never placed again. The host's admission and the withdrawal of the binding are
/// both writes of this object with the resource version that was read: only one of them succeeds.
pub(super) fn withdrawal(vm: &VM, observed: &Observed, binding: &Binding) -> Option<Readiness> {
    let status = vm.status.as_ref().filter(|s| !s.is_admitted())?;
    let host = &binding.host;
    if let Some(refusal) = status.refused() {
        let text = format!("host {host} refused it: {}", refusal.message);
        return Some(Readiness::Reconciling(Reason::Refused, text));
    }
    let gone = [
        (observed.host_fenced, Reason::HostFenced, "is gone for good and had not taken it on"),
        (observed.host_silent, Reason::HostSilent, "fell silent before it took it on"),
    ];
    if let Some((_, reason, text)) = gone.iter().find(|(holds, ..)| *holds) {
        return Some(Readiness::Reconciling(*reason, format!("host {host} {text}: it is placed anew")));
    }
    if observed.recovering {
        let text = format!(
            "host {host} had not taken it on when the backup was made: it goes to the host that has it, or anew"
        );
        return Some(Readiness::Reconciling(Reason::WaitingForInventory, text));
    }
    let elsewhere = observed.disks.iter().find_map(|disk| {
        let other = bound(disk.object.as_ref()?).filter(|b| b.host != *host)?;
        Some(format!("Disk {} is on host {}: it is placed anew", disk.key.name, other.host))
    });
    elsewhere.map(|text| Readiness::Reconciling(Reason::DiskOnOtherHost, text))
}

/// Plans a bound VM: binds listed disks that have no host yet to the VM's host, and gives new interfaces addresses.
pub(super) fn plan_bound(vm: &VM, observed: &Observed, host: &str) -> Plan<Decision> {
    let mut plan = plan_interfaces(vm, observed);
    if vm.metadata.deletion_timestamp.is_some() {
        return plan;
    }
    let mut dependencies = awaited_by_interfaces(vm, observed);
    for (disk, volume_id) in observed.disks.iter().zip(&observed.fresh.volume_ids) {
        if disk.object.as_ref().is_some_and(|d| bound(d).is_some()) {
            continue;
        }
        dependencies.push(Dependency::Object(disk.key.clone()));
        // Such as its host, whose agent has to be upgraded for an encrypted disk.
        dependencies.extend(disk.obstacle.iter().flat_map(|obstacle| obstacle.dependencies.iter().cloned()));
        let here = disk.claimed.as_ref().is_none_or(|claimed| claimed == host);
        if here && observed.deleting.is_none() && check_disk(disk).is_ok() {
            let pool = observed.chosen_pools.get(&disk.key).cloned();
            plan.steps.extend(bind_disk(&disk.key, host, pool, volume_id, vec![fixed_use(vm)]));
        }
    }
    if !dependencies.is_empty() {
        let namespace = vm.namespace().unwrap_or_default();
        dependencies.extend(observed.deleting.iter().flat_map(|deleting| namesakes(deleting, &namespace)));
        plan.outcome = Outcome::Blocked(dependencies);
    }
    plan
}

/// Returns what the declared interfaces of a bound VM wait for that get nothing by this decision: a network, or an address of theirs.
fn awaited_by_interfaces(vm: &VM, observed: &Observed) -> Vec<Dependency> {
    let namespace = vm.namespace().unwrap_or_default();
    let given = vm.status.as_ref().map(|status| status.interfaces.as_slice()).unwrap_or_default();
    let fresh = observed.networks.iter().zip(&observed.fresh.interfaces);
    let mut awaited = Vec::new();
    for (interface, (network, fresh)) in vm.spec.network_interfaces.iter().zip(fresh) {
        let name = interface.network.as_str();
        let has_address = given.iter().any(|given| given.name == interface.name.as_str());
        if has_address || (fresh.is_ok() && network.as_deref().is_some_and(is_accepted)) {
            continue;
        }
        awaited.extend(place::in_namespace_or_shared(ObjectKind::Network, &namespace, name));
        match network {
            Some(_) => awaited.push(Dependency::PrivateAddress),
            None if name == DEFAULT_NAME => awaited.extend([Dependency::NetworkRange, Dependency::Hosts]),
            None => {}
        }
    }
    awaited
}

/// Plans the interfaces in a bound VM's status: each keeps its address; a new one gets an address; one that is
/// removed from the spec keeps its address while the VM runs with it.
pub(super) fn plan_interfaces(vm: &VM, observed: &Observed) -> Plan<Decision> {
    let status = vm.status.as_ref();
    let before = status.map(|status| status.interfaces.as_slice()).unwrap_or_default();
    let wanted = addresses::decide(vm, &observed.networks, &observed.fresh.interfaces);
    let is_wanted =
        |i: &&InterfaceStatus| vm.spec.network_interfaces.iter().any(|w| w.name.as_str() == i.name);
    // A write never both takes and releases: an address is taken before the write and free only after the write.
    let is_more = wanted.iter().any(|w| !before.contains(w));
    let stays = status.is_some_and(|status| status.process.is_some()) || is_more;
    let leftover = before.iter().filter(|i| !is_wanted(i) && stays).cloned();
    let interfaces: Vec<InterfaceStatus> = wanted.into_iter().chain(leftover).collect();
    if interfaces.as_slice() == before || vm.metadata.deletion_timestamp.is_some() {
        return Plan::settled(Decision::NoChange);
    }
    Plan::settled(Decision::Interfaces(interfaces))
}
