//! Claims to a value of a group's topology key. Even with two schedulers that do not know of each other, two members of a
//! required group must never run in one zone if its strategy is `spread`, nor in two zones if it is `pack`.
//!
//! ```text
//!  PlacementGroup.status.claims  + (zone a, VM uid, epoch e)  ─▶  VM bound to a host of zone a under epoch e
//!                                                                     │ its host reads the claim, then admits by a
//!                                                                     ▼ write of the VM as it read it
//!  the claim is removed  ◀── epoch e is spent, or the VM is gone  admitted
//! ```
//!
//! *Invariant:* while a VM can still be admitted under an epoch, or has been, the claim for that admission stays. So a VM
//! admitted with a claim to a value excludes every other at that value (`spread`), or at every other value (`pack`).
//!
//! - A claim is added only beside claims that [leave room](crate::scheduler::allows_value) for it, by a write of the group that carries the version
//!   read.
//! - A host admits a member after it has read the claim for its uid, epoch and value: a binding that a scheduler wrote
//!   without a claim, or after the claim was removed, is refused and the VM is placed again.
//! - A claim is removed only when its epoch is *spent*: the binding was withdrawn or followed by a later one. That is read
//!   from the VM itself and can never be undone, and every write that would admit the VM carries an older version: it fails.
//!   For a VM that was not bound at all, the epoch is spent first, by a write of the VM. Or the VM is gone: that is checked
//!   with the server, because the cache also lacks a VM that the watch has not delivered yet.
//! - A claim without a bind blocks no other VM: the next reconcile of the VM binds it with the claim, or spends the claim.
//!
//! A host that gets another label takes along the claims of the members that were admitted there: if the rule is broken, a
//! person broke it, and the group's conditions report it. A member that was not admitted yet is refused, and placed again.

use berth_api::{PlacementGroup, VM, VMStatus, placement_group::TopologyClaim};
use kube::ResourceExt;

use crate::{
    batch::Write,
    cache::Cache,
    key::{Key, ObjectKind},
};

/// Returns the claims under which a VM could still be admitted, over all groups of its namespace.
pub(crate) fn open(cache: &Cache, vm: &VM) -> Vec<(Key, TopologyClaim)> {
    let claims = cache.index.claims_of(&Key::of(vm));
    claims.into_iter().filter(|(_, claim)| is_open(claim, vm)).collect()
}

fn is_open(claim: &TopologyClaim, vm: &VM) -> bool {
    let spent = vm.status.as_ref().map_or(0, VMStatus::spent_epoch);
    Some(&claim.vm_uid) == vm.metadata.uid.as_ref() && claim.epoch > spent
}

/// Returns the values of the group's topology key that other VMs hold.
pub(crate) fn taken<'a>(group: &'a PlacementGroup, vm: &VM) -> impl Iterator<Item = &'a String> {
    let uid = vm.uid();
    let claims = group.status.iter().flat_map(|s| &s.claims);
    let others = claims.filter(move |c| c.key == group.spec.topology_key && Some(&c.vm_uid) != uid.as_ref());
    others.map(|c| &c.value)
}

/// The state of a claim's VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// The cache has no VM of that name and uid.
    Unknown,
    /// It can never be admitted with the claim.
    Spent,
    /// It is admitted with the claim, or will be unless the binding is withdrawn.
    Open,
    /// It was admitted, and is not a member any more.
    Left,
    /// It was admitted, and is a member: the claim for its current place, if its host has a value.
    Member(Option<TopologyClaim>),
}

/// The fate of a claim. Pure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Stays(TopologyClaim),
    Goes,
    /// It is removed once the server confirms that the VM is gone.
    GoesIfGone,
}

pub(crate) fn fate(claim: &TopologyClaim, holder: Holder) -> Fate {
    match holder {
        Holder::Unknown => Fate::GoesIfGone,
        Holder::Spent | Holder::Left => Fate::Goes,
        Holder::Open | Holder::Member(None) => Fate::Stays(claim.clone()),
        Holder::Member(Some(now)) => Fate::Stays(now),
    }
}

/// Returns the claims a group should have, and the checks that come before the write.
pub(crate) fn decide(cache: &Cache, group: &PlacementGroup) -> (Vec<TopologyClaim>, Vec<Write>) {
    let key = Key::of(group);
    let (mut claims, mut ensure) = (Vec::new(), Vec::new());
    for claim in group.status.iter().flat_map(|s| &s.claims) {
        let vm = cache.tables.vms.named(key.namespace(), &claim.vm);
        let holder = holder(group, claim, vm.map(AsRef::as_ref), |vm| claim_of_admitted(cache, group, vm));
        match fate(claim, holder) {
            Fate::Stays(claim) => claims.push(claim),
            Fate::Goes => {}
            Fate::GoesIfGone => {
                let vm = Key::namespaced(ObjectKind::VM, key.namespace(), &claim.vm);
                ensure.push(Write::EnsureGone { vm, uid: claim.vm_uid.clone() });
            }
        }
    }
    if group.is_claimed() {
        // Members admitted without a claim: by an older berth, before they were members, or under another rule.
        let members = cache
            .index
            .members(&key)
            .into_iter()
            .filter_map(|vm| claim_of_admitted(cache, group, cache.tables.vms.get(&vm)?));
        let missing: Vec<_> =
            members.filter(|m| !claims.iter().any(|c| c.vm_uid == m.vm_uid && c.epoch == m.epoch)).collect();
        claims.extend(missing);
    }
    claims.sort();
    claims.dedup();
    (claims, ensure)
}

/// Returns the state of a claim's VM, from the VM of that name and the claim for that VM's current place. Pure.
fn holder(
    group: &PlacementGroup,
    claim: &TopologyClaim,
    vm: Option<&VM>,
    now: impl Fn(&VM) -> Option<TopologyClaim>,
) -> Holder {
    let Some(vm) = vm.filter(|vm| Some(&claim.vm_uid) == vm.metadata.uid.as_ref()) else {
        return Holder::Unknown;
    };
    if !is_open(claim, vm) {
        return Holder::Spent;
    }
    if !vm.status.as_ref().is_some_and(VMStatus::is_admitted) {
        return Holder::Open;
    }
    let named = vm.spec.placement.as_ref().and_then(|p| p.group.as_ref());
    let is_member = named.is_some_and(|name| Some(name.as_str()) == group.metadata.name.as_deref());
    if is_member && group.is_claimed() { Holder::Member(now(vm)) } else { Holder::Left }
}

/// Returns the claim of an admitted member for its current place.
fn claim_of_admitted(cache: &Cache, group: &PlacementGroup, vm: &VM) -> Option<TopologyClaim> {
    let status = vm.status.as_ref().filter(|s| s.is_admitted())?;
    let binding = status.binding.as_ref()?;
    of(cache, group, vm, &binding.host, binding.epoch)
}

/// Returns the claim for a binding; `None` if the host has no value of the key.
pub(crate) fn of(
    cache: &Cache,
    group: &PlacementGroup,
    vm: &VM,
    host: &str,
    epoch: i64,
) -> Option<TopologyClaim> {
    let key = &group.spec.topology_key;
    Some(TopologyClaim {
        value: cache.index.capacity.get(host)?.labels.get(key)?.clone(),
        key: key.clone(),
        vm: vm.name_any(),
        vm_uid: vm.uid().unwrap_or_default(),
        epoch,
        host: host.to_owned(),
    })
}

#[cfg(test)]
mod tests;
