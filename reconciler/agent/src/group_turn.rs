//! The decision of a VMGroup about one of its VMs, as it is in the status of the group. Synchronous.

use std::borrow::Cow;
use std::sync::Arc;

use berth_api::{MemberKind, MemberPower, Power, Reason, VM};

use crate::index::Tables;
use crate::key::ObjectName;

/// Whether the group of a VM lets it run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum GroupTurn {
    /// The VM does as it declares: it is in no group, its group lets it run, or it has a power of its own.
    #[default]
    Free,
    /// It is not started yet, for this reason and text. A guest that runs, runs on.
    Waits(Reason, String),
    /// It is stopped.
    Stopped,
}

impl GroupTurn {
    /// Whether the VM is not started now, although a guest of it that runs may run on.
    pub(crate) fn waits(&self) -> bool {
        matches!(self, Self::Waits(..))
    }
}

/// Returns the decision of its group about a VM.
pub(crate) fn of(tables: &Tables, vm: &VM) -> GroupTurn {
    let follows = vm.spec.power == Power::Running && vm.metadata.deletion_timestamp.is_none();
    let Some(name) = vm.spec.vm_group.as_ref().filter(|_| follows) else { return GroupTurn::Free };
    let vm_name = ObjectName::of(vm);
    let Some(group) = tables.vm_groups.get(&vm_name.beside(name.as_str())) else {
        return GroupTurn::Waits(Reason::WaitingForGroup, format!("VMGroup {name} does not exist"));
    };
    match group.power_of(MemberKind::VM, &vm_name.name) {
        Some(MemberPower::Running) => GroupTurn::Free,
        Some(MemberPower::Stopped) => GroupTurn::Stopped,
        // `Own`: the VM declares `Running` again, and the group has not seen that yet.
        Some(MemberPower::Waiting | MemberPower::Own) | None => {
            // A client that creates the members one after the other sees that it must not wait for this one.
            let (reason, cause) = match group.waits_for_absent() {
                true => (Reason::WaitingForVM, "it waits for a member that does not exist, and "),
                false => (Reason::StartOrderHeld, ""),
            };
            let text =
                format!("VMGroup {name} does not start it yet: {cause}its condition Ready has the cause");
            GroupTurn::Waits(reason, text)
        }
    }
}

/// Returns the VM with the power that it has in its group.
pub(crate) fn declared<'a>(vm: &'a VM, turn: &GroupTurn) -> Cow<'a, VM> {
    if *turn != GroupTurn::Stopped {
        return Cow::Borrowed(vm);
    }
    let mut stopped = vm.clone();
    stopped.spec.power = Power::Stopped;
    Cow::Owned(stopped)
}

/// Returns a VM of the tables with the power that it has in its group.
pub(crate) fn in_group(tables: &Tables, vm: Arc<VM>) -> Arc<VM> {
    match declared(&vm, &of(tables, &vm)) {
        Cow::Owned(stopped) => Arc::new(stopped),
        Cow::Borrowed(_) => vm.clone(),
    }
}

#[cfg(test)]
mod tests {
    use berth_api::VMGroup;
    use kube::runtime::watcher::Event;
    use serde_json::json;

    use super::*;
    use crate::index::Index;

    fn vm(power: &str, group: Option<&str>) -> VM {
        serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "ns", "uid": "u"},
            "spec": {"disks": [], "power": power, "vmGroup": group},
        }))
        .expect("a VM")
    }

    #[test]
    fn a_vm_does_as_its_group_decides_unless_it_declares_another_power() {
        let index = Index::default();
        let turn = |vm: &VM| of(&index.read(), vm);
        let member = vm("Running", Some("app"));
        assert!(matches!(turn(&member), GroupTurn::Waits(Reason::WaitingForGroup, _)));
        let decided = |version: &str, powers: &[(&str, &str)]| {
            let members: Vec<_> = powers
                .iter()
                .map(|(name, power)| json!({"kind": "VM", "name": name, "power": power}))
                .collect();
            let group: VMGroup = serde_json::from_value(json!({
                "metadata": {"name": "app", "namespace": "ns", "uid": "g", "resourceVersion": version},
                "spec": {}, "status": {"members": members},
            }))
            .expect("a group");
            index.apply(Event::Apply(group));
        };
        decided("1", &[("db", "Running")]);
        assert!(matches!(turn(&member), GroupTurn::Waits(Reason::StartOrderHeld, _)), "not known yet");
        decided("2", &[("db", "Running"), ("web", "Waiting")]);
        assert!(matches!(turn(&member), GroupTurn::Waits(Reason::StartOrderHeld, _)));
        let ready = json!({"type": "Ready", "status": "False", "reason": "WaitingForVM", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let incomplete: VMGroup = serde_json::from_value(json!({
            "metadata": {"name": "app", "namespace": "ns", "uid": "g", "resourceVersion": "3"}, "spec": {},
            "status": {"members": [{"kind": "VM", "name": "web", "power": "Waiting"}], "conditions": [ready]},
        }))
        .expect("a group");
        index.apply(Event::Apply(incomplete));
        assert!(matches!(turn(&member), GroupTurn::Waits(Reason::WaitingForVM, _)));
        decided("4", &[("web", "Running")]);
        assert_eq!(turn(&member), GroupTurn::Free);
        decided("5", &[("web", "Stopped")]);
        assert_eq!(turn(&member), GroupTurn::Stopped);
        assert_eq!(declared(&member, &turn(&member)).spec.power, Power::Stopped);
        for own in [vm("Paused", Some("app")), vm("Running", None)] {
            assert_eq!(turn(&own), GroupTurn::Free);
            assert_eq!(declared(&own, &turn(&own)).spec.power, own.spec.power);
        }
    }
}
