//! The placement of a VM that has a host, compared with that host.

use std::sync::Arc;

use berth_api::{Host, PlacementGroup, VM, VMStatus};
use kube::ResourceExt;

use crate::index::Tables;
use crate::key::ObjectName;

/// Returns why a VM's placement, as it and its group declare it now, would not choose its host.
pub(super) fn misplaced(vm: &VM, group: Option<&PlacementGroup>, host: &Host) -> Option<String> {
    let placement = vm.spec.placement.as_ref()?;
    let name = host.name_any();
    let stays = stays(vm);
    if let Some(wanted) = placement.host.as_ref().filter(|wanted| **wanted != name) {
        return Some(format!("placement.host is {wanted} and the VM is on {name}; {stays}"));
    }
    let lacks = |(label, value): &(&String, &String)| host.labels().get(*label) != Some(*value);
    if let Some((label, value)) = placement.host_selector.iter().find(lacks) {
        return Some(format!(
            "placement.hostSelector asks for {label}={value}, which host {name} does not have; {stays}"
        ));
    }
    let group = group?;
    let (label, value) = group.spec.host_selector.iter().find(lacks)?;
    Some(format!(
        "hostSelector of PlacementGroup {} asks for {label}={value}, which host {name} does not have; {stays}",
        group.name_any()
    ))
}

fn stays(vm: &VM) -> &'static str {
    if vm.moves_when_stopped() {
        "it moves once it is stopped or restarted, if it can (condition Movable)"
    } else {
        "a placed VM moves only with placement.movePolicy WhenStopped, at its next stop"
    }
}

/// Returns the required rule of an admitted VM that another admitted one on this host breaks, for people: a label, or a rule, has changed.
pub(super) fn beside_another(tables: &Tables, vm: &VM, name: &ObjectName) -> Option<String> {
    let is_admitted = |vm: &VM| vm.status.as_ref().is_some_and(VMStatus::is_admitted);
    if vm.affinity().is_empty() || !is_admitted(vm) {
        return None;
    }
    let others = tables.vms.all().filter(|(other, _)| *other != name && other.namespace == name.namespace);
    let mut others = others.filter(|(_, other)| is_admitted(other));
    let (rule, other) =
        others.find_map(|(other_name, other)| Some((vm.kept_apart_from(other)?, &other_name.name)))?;
    Some(format!(
        "affinity {} keeps it apart from VM {other}, which is on its host, too; {}",
        rule.name,
        stays(vm)
    ))
}

/// Returns the placement group of a VM, if it exists.
pub(super) fn group_of(tables: &Tables, vm: &VM, name: &ObjectName) -> Option<Arc<PlacementGroup>> {
    let group = vm.spec.placement.as_ref()?.group.as_ref()?;
    tables.placement_groups.get(&name.beside(group.as_str()))
}

#[cfg(test)]
mod tests {
    use kube::runtime::watcher::Event;
    use serde_json::json;

    use super::*;
    use crate::index::Index;

    #[test]
    fn admitted_vms_on_one_host_that_a_rule_keeps_apart_are_reported_by_the_one_with_the_rule() {
        let index = Index::default();
        let vm = |name: &str, label: &str, admitted: Option<i64>| -> VM {
            serde_json::from_value(json!({
                "metadata": {"name": name, "namespace": "ns", "uid": name, "resourceVersion": "1", "labels": {"app": label}},
                "spec": {"disks": [], "placement": {"affinity": [{"name": "db", "vmSelector": {"app": "db"}}]}},
                "status": {"binding": {"host": "h", "epoch": 1}, "admittedEpoch": admitted},
            }))
            .expect("a VM")
        };
        let found = |vm: &VM| beside_another(&index.read(), vm, &ObjectName::of(vm));
        let (web, db) = (vm("a", "web", Some(1)), vm("b", "db", Some(1)));
        index.apply(Event::Apply(web.clone()));
        assert_eq!(found(&web), None, "it is alone");
        index.apply(Event::Apply(db.clone()));
        let text = found(&web).expect("both are there");
        assert!(text.starts_with("affinity db keeps it apart from VM b, which is on its host"), "{text}");
        assert_eq!(found(&db), None, "its rule does not select the other one, nor itself");
        assert_eq!(found(&vm("a", "web", None)), None, "it is not admitted");
    }
}
