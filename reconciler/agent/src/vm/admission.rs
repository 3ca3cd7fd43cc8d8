//! Taking a VM on: the last word on whether it may run here, whoever bound it.
//!
//! ```text
//!  bound ──judge──▶ fits: reserved here ─▶ status.admittedEpoch ─▶ its disks are made, it is started
//!              └──▶ does not: status.refusal ─▶ the scheduler takes the binding back and places it anew
//! ```
//!
//! Nothing is made for a VM before `admittedEpoch` was read back from the control plane, and the scheduler takes back
//! only what is not admitted. Both are writes of the same object that carry its resourceVersion, so one of them fails:
//! a VM that was placed by a scheduler that was behind never runs on two hosts.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use berth_api::placement_group::GroupMember;
use berth_api::{Enforcement, PlacementGroup, Quantity, Strategy, VM, VMStatus};
use kube::{Api, ResourceExt};

use crate::context::Context;
use crate::definitions::Standing;
use crate::error::Error;
use crate::index::{Tables, vm_size};
use crate::queue::ObjectName;
use crate::system::HostFacts;

/// Whether a VM may run here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// It was let in before, and the control plane knows.
    Done,
    /// It is let in; the control plane is to be told first.
    Now,
    /// What it needs is not known yet.
    NotYet,
    /// It is not, for this reason.
    Refused(String),
}

/// VMs that were let in and whose status may not say so yet, by uid.
#[derive(Debug, Default)]
pub(crate) struct Admissions {
    taken: Mutex<BTreeMap<String, i64>>,
}

/// What the judgement rests on.
#[derive(Clone, Debug, Default)]
struct Case {
    cordoned: bool,
    /// This agent is older than the control plane's definitions.
    outdated: bool,
    /// CPUs and memory of the VM.
    needs: (i64, u64),
    /// The same of all that was let in, overhead included.
    taken: (i64, u64),
    /// The same of the host.
    offered: (i64, u64),
    overhead: u64,
    group: Option<GroupCase>,
}

/// What a required group asks of this host.
#[derive(Clone, Debug, Default)]
struct GroupCase {
    name: String,
    strategy: Strategy,
    topology_key: String,
    /// This host's value of the key.
    value: Option<String>,
    /// A member that was let in here.
    here: Option<String>,
    /// Members elsewhere, as the group reports them.
    elsewhere: Vec<GroupMember>,
    /// The group lets members in by claim, and there is none for this one.
    unclaimed: bool,
}

pub(super) async fn observe(ctx: &Context, vm: &VM) -> Result<Admission, Error> {
    let status = vm.status.clone().unwrap_or_default();
    if status.is_admitted() || vm.metadata.deletion_timestamp.is_some() {
        return Ok(Admission::Done);
    }
    if let Some(refusal) = status.refused() {
        return Ok(Admission::Refused(refusal.message.clone()));
    }
    let facts = ctx.facts().await?;
    let group = group(ctx, vm).await?;
    let tables = ctx.index.read();
    let name = ObjectName::new(vm.namespace().unwrap_or_default(), vm.name_any());
    let Some(needs) = vm_size(&tables, &name, vm) else { return Ok(Admission::NotYet) };
    let mut taken = ctx.admissions.taken.lock().unwrap_or_else(PoisonError::into_inner);
    // What the tables say of them counts as soon as it is there.
    let waits = |vm: &VM| vm.status.as_ref().is_some_and(|s| !s.is_admitted() && s.binding.is_some());
    taken.retain(|uid, epoch| {
        tables
            .vms
            .all()
            .any(|(_, vm)| vm.metadata.uid.as_ref() == Some(uid) && waits(vm) && epoch_of(vm) == Some(*epoch))
    });
    let case = case(ctx, &tables, &name, vm, &facts, needs, group, &taken);
    Ok(match judge(&case) {
        Ok(()) => {
            taken.insert(vm.uid().unwrap_or_default(), epoch_of(vm).unwrap_or_default());
            Admission::Now
        }
        Err(why) => Admission::Refused(why),
    })
}

/// Of a VM that was let in before, whatever its status says of that.
pub(super) fn again(vm: &VM) -> Admission {
    let is_known = vm.status.as_ref().is_some_and(VMStatus::is_admitted);
    if is_known || vm.metadata.deletion_timestamp.is_some() { Admission::Done } else { Admission::Now }
}

fn epoch_of(vm: &VM) -> Option<i64> {
    vm.status.as_ref()?.binding.as_ref().map(|b| b.epoch)
}

/// Its group as it is now: what a table holds of it may be older than the binding.
async fn group(ctx: &Context, vm: &VM) -> Result<Option<PlacementGroup>, Error> {
    let Some(name) = vm.spec.placement.as_ref().and_then(|p| p.group.as_ref()) else { return Ok(None) };
    let groups: Api<PlacementGroup> =
        Api::namespaced(ctx.client.clone(), &vm.namespace().unwrap_or_default());
    let found = groups.get_opt(name.as_str()).await.map_err(Error::api("read the PlacementGroup"))?;
    Ok(found.filter(|group| group.spec.enforcement == Enforcement::Required))
}

#[allow(clippy::too_many_arguments, reason = "everything that is known, gathered in one place for the judge")]
fn case(
    ctx: &Context,
    tables: &Tables,
    name: &ObjectName,
    vm: &VM,
    facts: &HostFacts,
    needs: (i64, u64),
    group: Option<PlacementGroup>,
    reserved: &BTreeMap<String, i64>,
) -> Case {
    let let_in = |other: &VM| {
        let admitted = other.status.as_ref().is_some_and(VMStatus::is_admitted);
        admitted || other.metadata.uid.as_ref().is_some_and(|uid| reserved.contains_key(uid))
    };
    let others: Vec<_> = tables
        .vms
        .all()
        .filter(|(_, other)| other.metadata.uid != vm.metadata.uid && let_in(other))
        .collect();
    let sizes = others.iter().filter_map(|(name, other)| vm_size(tables, name, other));
    let taken = sizes.fold((0, 0u64), |(cpus, memory), (c, m)| {
        (cpus + c, memory.saturating_add(m).saturating_add(facts.overhead_bytes))
    });
    let host = tables.hosts.get(&ObjectName::new("", ctx.host()));
    let group = group.map(|group| {
        let same = |other: &VM| group_of(other) == Some(group.name_any());
        let here = others.iter().find(|(n, other)| n.namespace == name.namespace && same(other));
        let label = host.as_ref().and_then(|h| h.labels().get(&group.spec.topology_key).cloned());
        // Definitions that are older than this agent have no room for claims.
        let by_claim = group.is_claimed() && !matches!(ctx.definitions.standing(), Standing::Older(_));
        let uid = vm.metadata.uid.as_deref().unwrap_or_default();
        let allows = |value: &String| group.allows(uid, epoch_of(vm).unwrap_or_default(), value);
        GroupCase {
            unclaimed: by_claim && !label.as_ref().is_some_and(allows),
            name: group.name_any(),
            strategy: group.spec.strategy,
            value: label,
            here: here.map(|(n, _)| n.name.clone()),
            elsewhere: group.status.map(|s| elsewhere(s.members, &name.name, ctx.host())).unwrap_or_default(),
            topology_key: group.spec.topology_key,
        }
    });
    let overcommit = i64::from(ctx.config.cpu_overcommit.max(1));
    Case {
        cordoned: host.as_ref().is_some_and(|h| h.spec.cordoned || h.spec.draining),
        outdated: matches!(ctx.definitions.standing(), Standing::Newer(_)),
        needs,
        taken,
        offered: (i64::from(facts.cpus) * overcommit, ctx.config.offered_memory(facts.memory_bytes)),
        overhead: facts.overhead_bytes,
        group,
    }
}

fn group_of(vm: &VM) -> Option<String> {
    vm.spec.placement.as_ref()?.group.as_ref().map(ToString::to_string)
}

fn elsewhere(members: Vec<GroupMember>, me: &str, here: &str) -> Vec<GroupMember> {
    let other = |m: &GroupMember| m.vm != me && m.host.as_deref().is_some_and(|host| host != here);
    members.into_iter().filter(other).collect()
}

/// Whether the VM may run here, or why not. Pure.
///
/// *Guarantees:* never more than the host offers; never a second member of a required group that keeps apart on this
/// host, nor in its zone, nor one of a group that keeps together in another: there it is let in by the claim that the
/// group has for it, see [`TopologyClaim`].
///
/// [`TopologyClaim`]: berth_api::placement_group::TopologyClaim
fn judge(case: &Case) -> Result<(), String> {
    if case.cordoned {
        return Err("the host is cordoned: it takes no new VMs".to_owned());
    }
    if case.outdated {
        return Err("its agent is older than the control plane's definitions: update berth there".to_owned());
    }
    let free = case.offered.0 - case.taken.0;
    if case.needs.0 > free {
        return Err(format!("it needs {} CPUs and the host has {} left", case.needs.0, free.max(0)));
    }
    let free = case.offered.1.saturating_sub(case.taken.1);
    if case.needs.1.saturating_add(case.overhead) > free {
        let mib = |bytes: u64| Quantity::from_bytes(bytes >> 20 << 20);
        return Err(format!(
            "it needs {} of memory and {} of overhead and the host has {} left",
            mib(case.needs.1),
            mib(case.overhead),
            mib(free)
        ));
    }
    case.group.as_ref().map_or(Ok(()), judge_group)
}

fn judge_group(group: &GroupCase) -> Result<(), String> {
    let (name, key) = (&group.name, &group.topology_key);
    let Some(value) = &group.value else {
        return Err(format!("the host does not have the label {key} of placement group {name}"));
    };
    let at = |member: &GroupMember| {
        let host = member.host.as_deref().unwrap_or_default();
        format!("{} on host {host}", member.vm)
    };
    let unclaimed =
        || format!("placement group {name} does not give {key} {value} to this binding of the VM");
    match group.strategy {
        Strategy::Spread => {
            if let Some(other) = &group.here {
                return Err(format!("the host already has {other} of placement group {name}"));
            }
            match group.elsewhere.iter().find(|m| m.value.as_ref() == Some(value)) {
                Some(other) => Err(format!("placement group {name} already has {} at {value}", at(other))),
                None if group.unclaimed => Err(unclaimed()),
                None => Ok(()),
            }
        }
        Strategy::Pack => match group.elsewhere.iter().find(|m| m.value.as_ref() != Some(value)) {
            Some(other) => Err(format!("placement group {name} has {}, which is not at {value}", at(other))),
            None if group.unclaimed => Err(unclaimed()),
            None => Ok(()),
        },
    }
}

#[cfg(test)]
mod tests {
    use proptest::{prelude::prop, prop_assert, proptest};

    use super::*;

    const MIB: u64 = 1 << 20;

    fn case() -> Case {
        Case { needs: (1, 500 * MIB), offered: (4, 1024 * MIB), overhead: 80 * MIB, ..Case::default() }
    }

    fn group(strategy: Strategy) -> GroupCase {
        let value = Some("a".to_owned());
        GroupCase { name: "web".into(), strategy, topology_key: "zone".into(), value, ..GroupCase::default() }
    }

    fn member(vm: &str, value: &str) -> GroupMember {
        GroupMember { vm: vm.into(), host: Some("h2".into()), value: Some(value.into()) }
    }

    fn refused(case: &Case) -> String {
        judge(case).expect_err("it must not be let in")
    }

    #[test]
    fn cpus_memory_and_overhead_are_looked_at_again_and_each_refusal_says_the_numbers() {
        assert_eq!(judge(&case()), Ok(()));
        let full = Case { taken: (4, 0), ..case() };
        insta::assert_snapshot!(refused(&full), @"it needs 1 CPUs and the host has 0 left");
        let full = Case { taken: (1, 500 * MIB), ..case() };
        insta::assert_snapshot!(refused(&full), @"it needs 500Mi of memory and 80Mi of overhead and the host has 524Mi left");
        let outdated = Case { outdated: true, ..case() };
        insta::assert_snapshot!(refused(&outdated), @"its agent is older than the control plane's definitions: update berth there");
        let cordoned = Case { cordoned: true, ..case() };
        insta::assert_snapshot!(refused(&cordoned), @"the host is cordoned: it takes no new VMs");
    }

    #[test]
    fn a_second_member_of_a_group_that_keeps_apart_is_refused_on_this_host_and_in_its_zone() {
        let with = |group| Case { group: Some(group), ..case() };
        assert_eq!(judge(&with(group(Strategy::Spread))), Ok(()));
        let here = GroupCase { here: Some("web-0".into()), ..group(Strategy::Spread) };
        insta::assert_snapshot!(refused(&with(here)), @"the host already has web-0 of placement group web");
        let zone = GroupCase {
            elsewhere: vec![member("web-1", "b"), member("web-0", "a")],
            ..group(Strategy::Spread)
        };
        insta::assert_snapshot!(refused(&with(zone)), @"placement group web already has web-0 on host h2 at a");
        let unclaimed = GroupCase { unclaimed: true, ..group(Strategy::Spread) };
        insta::assert_snapshot!(refused(&with(unclaimed)), @"placement group web does not give zone a to this binding of the VM");
        let label = GroupCase { value: None, ..group(Strategy::Spread) };
        insta::assert_snapshot!(refused(&with(label)), @"the host does not have the label zone of placement group web");
        let packed = GroupCase {
            here: Some("web-0".into()),
            elsewhere: vec![member("web-1", "a")],
            ..group(Strategy::Pack)
        };
        assert_eq!(judge(&with(packed)), Ok(()));
        let unclaimed = GroupCase { unclaimed: true, ..group(Strategy::Pack) };
        insta::assert_snapshot!(refused(&with(unclaimed)), @"placement group web does not give zone a to this binding of the VM");
        let apart = GroupCase { elsewhere: vec![member("web-1", "b")], ..group(Strategy::Pack) };
        insta::assert_snapshot!(refused(&with(apart)), @"placement group web has web-1 on host h2, which is not at a");
    }

    proptest! {
        #[test]
        fn whoever_is_let_in_never_adds_up_to_more_than_the_host_offers(vms in prop::collection::vec((1i64..4, 1u64..400), 0..20)) {
            let mut taken = (0, 0);
            for (cpus, memory) in vms {
                let case = Case { needs: (cpus, memory * MIB), taken, ..case() };
                if judge(&case).is_ok() {
                    taken = (taken.0 + cpus, taken.1 + memory * MIB + case.overhead);
                    prop_assert!(taken.0 <= case.offered.0 && taken.1 <= case.offered.1);
                }
            }
        }
    }
}
