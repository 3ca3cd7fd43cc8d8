//! The members of a VMGroup, and the power that it is to have.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::{
    BootStep, GroupPower, MemberKind, MemberPower, Readiness, Reason, VMGroup, VMState,
    vm_group::{DEEPEST_VM_GROUP, MOST_VM_GROUP_MEMBERS},
};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

use crate::{
    cache::Cache,
    key::{Key, ObjectKind},
};

/// A member, or a name in `bootOrder` without one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) kind: MemberKind,
    pub(super) name: String,
    /// The number of its step. That of a member that no step names is the number of steps.
    pub(super) step: usize,
    pub(super) exists: bool,
    /// The last decision about it.
    pub(super) before: MemberPower,
    /// Whether it keeps a power of its own.
    pub(super) is_own: bool,
    /// Whether it is being deleted, so that nothing waits for it.
    pub(super) leaves: bool,
    /// Of a VM.
    pub(super) state: Option<VMState>,
    /// Whether it runs and is ready.
    pub(super) is_up: bool,
    /// Whether it is off, as decided.
    pub(super) is_off: bool,
    /// The reason of its condition `Ready`.
    pub(super) reason: Option<String>,
}

impl Member {
    /// Whether it has this power.
    pub(super) fn has(&self, power: MemberPower) -> bool {
        if self.leaves {
            return true;
        }
        match power {
            MemberPower::Own => true,
            MemberPower::Waiting => false,
            MemberPower::Running => self.before == power && self.is_up,
            MemberPower::Stopped => self.before == power && self.is_off,
        }
    }

    /// Whether the decision about it is the one that the group is to come to, and it has that power.
    pub(super) fn is_synced(&self, power: MemberPower, wanted: MemberPower) -> bool {
        let is_decided = power == wanted || power == MemberPower::Own;
        self.leaves || (is_decided && self.has(power))
    }

    /// Returns what it does, for people.
    pub(super) fn text(&self) -> String {
        let reason = self.reason.as_deref().unwrap_or("not reported yet");
        match (self.kind, self.state) {
            (MemberKind::VM, Some(state)) => format!("VM {} is {state:?} ({reason})", self.name),
            (MemberKind::VM, None) => format!("VM {} has no state yet ({reason})", self.name),
            (MemberKind::VMGroup, _) => format!("VMGroup {} is not ready ({reason})", self.name),
        }
    }
}

/// The inputs of a group's decision.
#[derive(Clone, Debug, Default)]
pub(super) struct Observed {
    /// By kind and name, then the names in `bootOrder` without a member.
    pub(super) members: Vec<Member>,
    /// The number of members that are too many, and are not decided about.
    pub(super) excess: usize,
    /// `powerOnDelaySeconds` of each step.
    pub(super) delays: Vec<i64>,
    pub(super) wanted: MemberPower,
    /// Why it does not know the power that it is to have.
    pub(super) problem: Option<Readiness>,
    pub(super) missing_parent: Option<Key>,
    /// Whether the group that it is a member of waits for a member that does not exist.
    pub(super) is_above_incomplete: bool,
    /// When the next step begins, as decided before.
    pub(super) next_step: Option<Timestamp>,
}

pub(super) fn observe(cache: &Cache, group: &VMGroup, key: &Key) -> Observed {
    let (wanted, problem, missing_parent) = match wanted(cache, group, key) {
        Ok(wanted) => (wanted, None, None),
        Err(Unknown { problem, missing }) => (MemberPower::Waiting, Some(problem), missing),
    };
    let parent = group.spec.parent.as_ref();
    let parent = parent.map(|parent| Key::namespaced(ObjectKind::VMGroup, key.namespace(), parent.as_str()));
    let parent = parent.and_then(|parent| cache.tables.vm_groups.get(&parent));
    let steps = &group.spec.boot_order;
    let status = group.status.as_ref();
    let mut before: BTreeMap<(MemberKind, &str), MemberPower> = BTreeMap::new();
    for member in status.into_iter().flat_map(|status| &status.members) {
        before.insert((member.kind, &*member.name), member.power);
    }
    let numbers = step_numbers(steps);
    let mut members = Vec::new();
    let mut excess = 0;
    for key in cache.index.vm_groups.members(key) {
        if members.len() == MOST_VM_GROUP_MEMBERS {
            excess += 1;
            continue;
        }
        let Some(mut member) = observe_member(cache, key) else { continue };
        member.step = numbers.get(&(member.kind, &*member.name)).copied().unwrap_or(steps.len());
        let decided = before.get(&(member.kind, &*member.name)).copied();
        // A member that follows the group again is started with its step.
        member.before = decided.filter(|power| *power != MemberPower::Own).unwrap_or_default();
        members.push(member);
    }
    let known: BTreeSet<(MemberKind, String)> =
        members.iter().map(|member| (member.kind, member.name.clone())).collect();
    // With too many members, it is not known which names have none.
    let absent = numbers
        .iter()
        .filter(|((kind, name), _)| excess == 0 && !known.contains(&(*kind, (*name).to_owned())));
    members.extend(absent.map(|((kind, name), step)| Member {
        kind: *kind,
        name: (*name).to_owned(),
        step: *step,
        ..Member::default()
    }));
    Observed {
        members,
        excess,
        delays: steps.iter().map(|step| step.power_on_delay_seconds).collect(),
        wanted,
        problem,
        missing_parent,
        is_above_incomplete: parent.is_some_and(|parent| parent.waits_for_absent()),
        next_step: status.and_then(|status| status.next_step_time.as_ref()?.parse().ok()),
    }
}

/// Returns the step of each name: the first one that names it.
fn step_numbers(steps: &[BootStep]) -> BTreeMap<(MemberKind, &str), usize> {
    let mut numbers = BTreeMap::new();
    for (number, step) in steps.iter().enumerate() {
        let vms = step.vms.iter().map(|name| (MemberKind::VM, name.as_str()));
        let groups = step.groups.iter().map(|name| (MemberKind::VMGroup, name.as_str()));
        for name in vms.chain(groups) {
            numbers.entry(name).or_insert(number);
        }
    }
    numbers
}

/// Returns a member, without its step and the last decision about it.
fn observe_member(cache: &Cache, key: &Key) -> Option<Member> {
    let name = key.name.to_string();
    if key.kind == ObjectKind::VM {
        let vm = cache.index.vm_groups.vm(key)?;
        let is_off = matches!(
            vm.state,
            None | Some(
                VMState::Pending
                    | VMState::Unschedulable
                    | VMState::Stopped
                    | VMState::Suspended
                    | VMState::Failed
            )
        );
        return Some(Member {
            kind: MemberKind::VM,
            name,
            exists: true,
            is_own: vm.is_own,
            leaves: vm.is_deleted,
            state: vm.state,
            is_up: vm.state == Some(VMState::Running) && vm.is_ready,
            is_off,
            reason: vm.reason.clone(),
            ..Member::default()
        });
    }
    let group = cache.tables.vm_groups.get(key)?;
    let power = group.status.as_ref().and_then(|status| status.power);
    let is_ready = super::is_ready(group);
    let ready =
        group.status.as_ref().and_then(|status| status.conditions.iter().find(|c| c.type_ == "Ready"));
    Some(Member {
        kind: MemberKind::VMGroup,
        name,
        exists: true,
        is_own: group.spec.power == GroupPower::Stopped,
        leaves: group.metadata.deletion_timestamp.is_some(),
        is_up: is_ready && power == Some(MemberPower::Running) && has_all_members(cache, group, key),
        is_off: is_ready && power == Some(MemberPower::Stopped),
        reason: ready.map(|ready| ready.reason.clone()),
        ..Member::default()
    })
}

/// Whether each name in the `bootOrder` of a group is that of a member: the others are waited for.
fn has_all_members(cache: &Cache, group: &VMGroup, key: &Key) -> bool {
    let members: BTreeSet<(ObjectKind, &str)> =
        cache.index.vm_groups.members(key).map(|member| (member.kind, &*member.name)).collect();
    group.spec.boot_order.iter().all(|step| {
        step.vms.iter().all(|name| members.contains(&(ObjectKind::VM, name.as_str())))
            && step.groups.iter().all(|name| members.contains(&(ObjectKind::VMGroup, name.as_str())))
    })
}

/// Why the power that a group is to have is not known.
struct Unknown {
    problem: Readiness,
    missing: Option<Key>,
}

/// Returns the power that a group is to have: its own, unless it is a member of another group.
fn wanted(cache: &Cache, group: &VMGroup, key: &Key) -> Result<MemberPower, Unknown> {
    let above = |name: &str| {
        let key = Key::namespaced(ObjectKind::VMGroup, key.namespace(), name);
        (cache.tables.vm_groups.get(&key).cloned(), key)
    };
    let wrong =
        |text: String| Unknown { problem: Readiness::Stalled(Reason::InvalidSpec, text), missing: None };
    let mut name = group.spec.parent.clone();
    let mut depth = 1;
    while let Some(parent) = name {
        depth += 1;
        if parent.as_str() == &*key.name {
            let text = format!("parent: the groups above {} lead back to it, in a circle", key.name);
            return Err(wrong(text));
        }
        if depth > DEEPEST_VM_GROUP {
            let text = format!(
                "parent: more than {DEEPEST_VM_GROUP} groups are nested, or some of them form a circle"
            );
            return Err(wrong(text));
        }
        name = above(parent.as_str()).0.and_then(|parent| parent.spec.parent.clone());
    }
    if group.spec.power == GroupPower::Stopped {
        return Ok(MemberPower::Stopped);
    }
    let Some(parent) = &group.spec.parent else { return Ok(MemberPower::Running) };
    let (found, parent_key) = above(parent.as_str());
    let Some(found) = found else {
        let problem =
            Readiness::Reconciling(Reason::WaitingForGroup, format!("VMGroup {parent} does not exist"));
        return Err(Unknown { problem, missing: Some(parent_key) });
    };
    match found.power_of(MemberKind::VMGroup, &group.name_any()) {
        Some(power @ (MemberPower::Running | MemberPower::Stopped)) => Ok(power),
        _ => Ok(MemberPower::Waiting),
    }
}
