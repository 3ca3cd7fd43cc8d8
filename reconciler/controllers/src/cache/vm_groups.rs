//! The members of VMGroups: VMs and groups that name one, with what it reads of each VM.

use std::collections::HashMap;

use berth_api::{ConditionType, Power, Reason, VM, VMGroup, VMState, condition};
use kube::ResourceExt;

use crate::{
    cache::key_set::KeySet,
    key::{Key, ObjectKind},
};

/// The parts of a member that its group reads: only their changes concern it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GroupedVm {
    group: Key,
    /// Whether it declares another power than `Running`.
    pub(crate) is_own: bool,
    pub(crate) state: Option<VMState>,
    pub(crate) is_ready: bool,
    /// The reason of its condition `Ready`.
    pub(crate) reason: Option<String>,
    pub(crate) is_deleted: bool,
}

impl GroupedVm {
    /// Returns what a group reads of a VM; `None`: it is in no group.
    fn of(vm: &VM) -> Option<Self> {
        let name = vm.spec.vm_group.as_ref()?;
        let status = vm.status.as_ref();
        let ready = status.and_then(|s| condition::find(&s.conditions, ConditionType::Ready.as_str()));
        Some(Self {
            group: Key::namespaced(ObjectKind::VMGroup, &vm.namespace().unwrap_or_default(), name.as_str()),
            is_own: vm.spec.power != Power::Running,
            state: status.and_then(|s| s.state),
            // One with a change that waits for its next power cycle runs as it was started.
            is_ready: ready.is_some_and(|ready| {
                ready.status == "True" || ready.reason == Reason::PowerCycleNeeded.as_str()
            }),
            reason: ready.map(|ready| ready.reason.clone()),
            is_deleted: vm.metadata.deletion_timestamp.is_some(),
        })
    }
}

/// The members that the module describes. It has no entry for a VM without a group.
#[derive(Debug, Default)]
pub(crate) struct VmGroups {
    members: HashMap<Key, KeySet>,
    vms: HashMap<Key, GroupedVm>,
    /// Group → the group that it is a member of.
    parents: HashMap<Key, Key>,
}

impl VmGroups {
    /// Records a VM (`None`: gone); returns the groups that read another state of it, or have it no more.
    pub(crate) fn set_vm(&mut self, key: &Key, vm: Option<&VM>) -> Vec<Key> {
        let new = vm.and_then(GroupedVm::of);
        let old = self.vms.remove(key);
        let is_same = old == new;
        let group = |of: &Option<GroupedVm>| of.as_ref().map(|vm| vm.group.clone());
        let (before, after) = (group(&old), group(&new));
        self.move_member(key, before.as_ref(), after.as_ref());
        if let Some(new) = new {
            self.vms.insert(key.clone(), new);
        }
        if is_same { Vec::new() } else { both(before, after) }
    }

    /// Records a group (`None`: gone); returns the groups that it is and was a member of, and the groups that are members of it.
    pub(crate) fn set_group(&mut self, key: &Key, group: Option<&VMGroup>) -> Vec<Key> {
        let parent = group.and_then(|group| group.spec.parent.as_ref());
        let after = parent.map(|name| Key::namespaced(ObjectKind::VMGroup, key.namespace(), name.as_str()));
        let before = self.parents.remove(key);
        self.move_member(key, before.as_ref(), after.as_ref());
        if let Some(after) = &after {
            self.parents.insert(key.clone(), after.clone());
        }
        let mut concerned = both(before, after);
        let members = self.members.get(key).into_iter().flat_map(KeySet::iter);
        concerned.extend(members.filter(|member| member.kind == ObjectKind::VMGroup).cloned());
        concerned
    }

    /// Returns the members of a group: VMs first, by name.
    pub(crate) fn members(&self, group: &Key) -> impl Iterator<Item = &Key> {
        self.members.get(group).into_iter().flat_map(KeySet::iter)
    }

    /// Returns what a group reads of a VM.
    pub(crate) fn vm(&self, key: &Key) -> Option<&GroupedVm> {
        self.vms.get(key)
    }

    fn move_member(&mut self, key: &Key, before: Option<&Key>, after: Option<&Key>) {
        if before == after {
            return;
        }
        if let Some(before) = before
            && let Some(members) = self.members.get_mut(before)
        {
            members.remove(key);
            if members.is_empty() {
                self.members.remove(before);
            }
        }
        if let Some(after) = after {
            self.members.entry(after.clone()).or_default().insert(key);
        }
    }
}

/// Returns both, each once.
fn both(before: Option<Key>, after: Option<Key>) -> Vec<Key> {
    let other = before.filter(|before| Some(before) != after.as_ref());
    after.into_iter().chain(other).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn key(kind: ObjectKind, name: &str) -> Key {
        Key::namespaced(kind, "ns", name)
    }

    fn vm(group: Option<&str>, state: &str, message: &str) -> VM {
        let ready = json!({"type": "Ready", "status": "False", "reason": "Starting", "message": message,
            "lastTransitionTime": "2026-01-01T00:00:00Z"});
        serde_json::from_value(json!({
            "metadata": {"name": "a", "namespace": "ns"},
            "spec": {"disks": [], "vmGroup": group}, "status": {"state": state, "conditions": [ready]},
        }))
        .expect("a VM")
    }

    #[test]
    fn a_group_is_concerned_by_its_members_and_by_what_it_reads_of_them_only() {
        let mut groups = VmGroups::default();
        let (a, g, h) =
            (key(ObjectKind::VM, "a"), key(ObjectKind::VMGroup, "g"), key(ObjectKind::VMGroup, "h"));
        assert!(groups.set_vm(&a, Some(&vm(None, "Running", ""))).is_empty());
        assert!(groups.vms.is_empty() && groups.members.is_empty());
        assert_eq!(groups.set_vm(&a, Some(&vm(Some("g"), "Starting", ""))), std::slice::from_ref(&g));
        assert!(groups.set_vm(&a, Some(&vm(Some("g"), "Starting", "another text"))).is_empty());
        assert_eq!(groups.set_vm(&a, Some(&vm(Some("g"), "Running", ""))), std::slice::from_ref(&g));
        assert_eq!(groups.set_vm(&a, Some(&vm(Some("h"), "Running", ""))), [h.clone(), g.clone()]);
        assert_eq!(groups.members(&h).collect::<Vec<_>>(), [&a]);
        assert_eq!(groups.set_vm(&a, None), [h]);
        assert!(groups.vms.is_empty() && groups.members.is_empty());
    }

    #[test]
    fn a_group_concerns_the_one_above_it_and_those_below() {
        let group = |parent: Option<&str>| -> VMGroup {
            serde_json::from_value(
                json!({"metadata": {"name": "x", "namespace": "ns"}, "spec": {"parent": parent}}),
            )
            .expect("a group")
        };
        let mut groups = VmGroups::default();
        let (inner, outer) = (key(ObjectKind::VMGroup, "inner"), key(ObjectKind::VMGroup, "outer"));
        assert_eq!(groups.set_group(&inner, Some(&group(Some("outer")))), std::slice::from_ref(&outer));
        assert_eq!(groups.set_group(&outer, Some(&group(None))), std::slice::from_ref(&inner));
        assert_eq!(groups.set_group(&inner, None), [outer]);
        assert!(groups.members.is_empty() && groups.parents.is_empty());
    }
}
