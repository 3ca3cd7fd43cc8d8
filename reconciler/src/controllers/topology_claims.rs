//! Who may be let in at which value of a group's topology key: two schedulers that know nothing of each other must not
//! have two members of a required group run in one zone if it keeps apart, nor in two if it keeps together.
//!
//! ```text
//!  PlacementGroup.status.claims  + (zone a, VM uid, epoch e)  ─▶  VM bound to a host of zone a under epoch e
//!                                                                     │ its host reads the claim, then admits by a
//!                                                                     ▼ write of the VM as it read it
//!  the claim goes  ◀── epoch e is spent, or the VM is gone        admitted
//! ```
//!
//! *Invariant:* while a VM can still be let in under an epoch, or was, the claim by which it would be stays. So whoever was
//! let in by a claim of a value excludes every other at that value (`spread`), or at every other value (`pack`).
//!
//! - A claim is added only beside claims that [leave room](leaves) for it, by a write of the group that carries the version
//!   read.
//! - A host lets a member in after it has read the claim for its uid, epoch and value: a binding that a scheduler wrote
//!   without one, or after it was gone, is refused and placed anew.
//! - A claim goes only when its epoch is *spent*: the binding was taken back or followed by a later one. That is read from
//!   the VM itself and can never be undone, and every write that would let the VM in carries an older version: it fails. Of
//!   a VM that was not bound at all the epoch is spent first, by a write of the VM. Or the VM is gone: that is asked
//!   of the server, because what a watch has not told of yet is not there either.
//! - A claim whose bind never came does not hold anybody up: whoever finds it binds the VM by it, or spends it.
//!
//! A host that is given another label takes the claims of the members that were let in there along: the rule was broken by
//! a person then, if it is, and the group says so. A member that was not let in yet is refused, and placed anew.

use std::collections::BTreeSet;

use berth_api::{PlacementGroup, Strategy, VM, VMStatus, placement_group::TopologyClaim};
use kube::ResourceExt;

use super::{Key, Kind, World, draft::Write};

/// The claims a VM could still be let in by, over all groups of its namespace.
pub(super) fn open(world: &World, vm: &VM) -> Vec<(Key, TopologyClaim)> {
    let claims = world.index.claims_of(&Key::of(vm));
    claims.into_iter().filter(|(_, claim)| is_open(claim, vm)).collect()
}

fn is_open(claim: &TopologyClaim, vm: &VM) -> bool {
    let spent = vm.status.as_ref().map_or(0, VMStatus::spent_epoch);
    Some(&claim.vm_uid) == vm.metadata.uid.as_ref() && claim.epoch > spent
}

/// The values of the group's topology key that others have.
pub(super) fn taken<'a>(group: &'a PlacementGroup, vm: &VM) -> impl Iterator<Item = &'a String> {
    let uid = vm.uid();
    let claims = group.status.iter().flat_map(|s| &s.claims);
    let others = claims.filter(move |c| c.key == group.spec.topology_key && Some(&c.vm_uid) != uid.as_ref());
    others.map(|c| &c.value)
}

/// Whether a VM may be let in at this value beside others that have these.
pub(super) fn leaves(strategy: Strategy, taken: &BTreeSet<String>, value: &str) -> bool {
    match strategy {
        Strategy::Spread => !taken.contains(value),
        Strategy::Pack => taken.iter().all(|other| other == value),
    }
}

/// What is known of the VM of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    /// No VM of that name and uid is known.
    Unknown,
    /// It can never be let in by it.
    Spent,
    /// It is, or will be, unless that is taken back.
    Open,
    /// It was let in, and is not a member any more.
    Left,
    /// It was let in, and is a member: the claim it has where it is now, if its host has a value.
    Member(Option<TopologyClaim>),
}

/// What becomes of a claim. Pure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Stays(TopologyClaim),
    Goes,
    /// It goes once the server says that the VM is gone.
    GoesIfGone,
}

pub(super) fn fate(claim: &TopologyClaim, holder: Holder) -> Fate {
    match holder {
        Holder::Unknown => Fate::GoesIfGone,
        Holder::Spent | Holder::Left => Fate::Goes,
        Holder::Open | Holder::Member(None) => Fate::Stays(claim.clone()),
        Holder::Member(Some(now)) => Fate::Stays(now),
    }
}

/// The claims a group is to have, and what is to be made sure of first.
pub(super) fn decide(world: &World, group: &PlacementGroup) -> (Vec<TopologyClaim>, Vec<Write>) {
    let key = Key::of(group);
    let (mut claims, mut ensure) = (Vec::new(), Vec::new());
    for claim in group.status.iter().flat_map(|s| &s.claims) {
        let vm = world.vms.named(key.namespace(), &claim.vm);
        let holder = holder(group, claim, vm.map(AsRef::as_ref), |vm| let_in(world, group, vm));
        match fate(claim, holder) {
            Fate::Stays(claim) => claims.push(claim),
            Fate::Goes => {}
            Fate::GoesIfGone => {
                let vm = Key::namespaced(Kind::VM, key.namespace(), &claim.vm);
                ensure.push(Write::EnsureGone { vm, uid: claim.vm_uid.clone() });
            }
        }
    }
    if group.is_claimed() {
        // Who was let in without one: by an older berth, before it was a member, or under another rule.
        let members =
            world.index.members(&key).into_iter().filter_map(|vm| let_in(world, group, world.vms.get(&vm)?));
        let missing: Vec<_> =
            members.filter(|m| !claims.iter().any(|c| c.vm_uid == m.vm_uid && c.epoch == m.epoch)).collect();
        claims.extend(missing);
    }
    claims.sort();
    claims.dedup();
    (claims, ensure)
}

/// What is known of the VM of a claim, from the VM of its name and the claim that one would have where it is now. Pure.
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

/// The claim of a member that was let in where it is.
fn let_in(world: &World, group: &PlacementGroup, vm: &VM) -> Option<TopologyClaim> {
    let status = vm.status.as_ref().filter(|s| s.is_admitted())?;
    let binding = status.binding.as_ref()?;
    of(world, group, vm, &binding.host, binding.epoch)
}

/// The claim for a binding; `None` if the host has no value of the key.
pub(super) fn of(
    world: &World,
    group: &PlacementGroup,
    vm: &VM,
    host: &str,
    epoch: i64,
) -> Option<TopologyClaim> {
    let key = &group.spec.topology_key;
    Some(TopologyClaim {
        value: world.index.fleet.get(host)?.labels.get(key)?.clone(),
        key: key.clone(),
        vm: vm.name_any(),
        vm_uid: vm.uid().unwrap_or_default(),
        epoch,
        host: host.to_owned(),
    })
}

#[cfg(test)]
mod tests;
