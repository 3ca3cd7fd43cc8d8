//! VMGroup: watched for its decisions about the VMs here; the controllers reconcile it.

use std::sync::Arc;

use berth_api::{MemberKind, MemberPower, VMGroup};

use crate::index::{Change, Indexed, Table, Tables};
use crate::key::{Key, ObjectName};

impl Indexed for VMGroup {
    fn table(tables: &mut Tables) -> &mut Table<Self> {
        &mut tables.vm_groups
    }

    fn keys_of(name: &ObjectName, _: &Self, tables: &Tables) -> Vec<Key> {
        tables.vms_where(|vm_name, vm| {
            let group = vm.spec.vm_group.as_ref();
            vm_name.namespace == name.namespace && group.is_some_and(|group| group.as_str() == name.name)
        })
    }

    /// A VM reads only what [`decisions`] returns: the status changes with each member.
    fn keys_of_change(change: &Change<Self>, tables: &Tables) -> Vec<Key> {
        let (old, new) = (change.old.as_ref(), change.new.as_ref());
        match new.or(old).filter(|_| decisions(old) != decisions(new)) {
            Some(group) => Self::keys_of(&change.name, group, tables),
            None => Vec::new(),
        }
    }
}

/// Returns the decisions of a group about VMs, and whether it waits for a member that does not exist; `None`: there is no group.
fn decisions(group: Option<&Arc<VMGroup>>) -> Option<(Vec<(&str, MemberPower)>, bool)> {
    let group = group?;
    let members = group.status.iter().flat_map(|status| &status.members);
    let vms = members.filter(|member| member.kind == MemberKind::VM);
    let powers = vms.map(|member| (member.name.as_str(), member.power)).collect();
    Some((powers, group.waits_for_absent()))
}

#[cfg(test)]
mod tests {
    use berth_api::VM;
    use kube::runtime::watcher::Event;
    use serde_json::json;

    use super::*;
    use crate::index::Index;

    #[test]
    fn another_decision_concerns_the_members_and_another_status_concerns_none() {
        let index = Index::default();
        let vm = |name: &str, group: Option<&str>| -> VM {
            serde_json::from_value(json!({
                "metadata": {"name": name, "namespace": "ns", "uid": name, "resourceVersion": "1"},
                "spec": {"disks": [], "vmGroup": group},
            }))
            .expect("a VM")
        };
        let group = |version: &str, power: &str, running: i64| -> VMGroup {
            serde_json::from_value(json!({
                "metadata": {"name": "app", "namespace": "ns", "uid": "g", "resourceVersion": version}, "spec": {},
                "status": {"running": running, "members": [{"kind": "VM", "name": "a", "power": power}]},
            }))
            .expect("a group")
        };
        index.apply(Event::Apply(vm("a", Some("app"))));
        index.apply(Event::Apply(vm("b", None)));
        let member = [Key::new::<VM>(ObjectName::new("ns", "a"))];
        assert_eq!(index.apply(Event::Apply(group("1", "Waiting", 0))), member);
        assert_eq!(index.apply(Event::Apply(group("2", "Running", 0))), member);
        assert_eq!(index.apply(Event::Apply(group("3", "Running", 1))), []);
        assert_eq!(index.apply(Event::Delete(group("3", "Running", 1))), member);
    }
}
