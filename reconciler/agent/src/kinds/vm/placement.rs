//! The placement of a VM that has a host, compared with that host.

use std::sync::Arc;

use berth_api::{Host, PlacementGroup, VM};
use kube::ResourceExt;

use crate::index::Tables;
use crate::key::ObjectName;

/// Returns why a VM's placement, as it and its group declare it now, would not choose its host.
pub(super) fn misplaced(vm: &VM, group: Option<&PlacementGroup>, host: &Host) -> Option<String> {
    let placement = vm.spec.placement.as_ref()?;
    let name = host.name_any();
    let stays = if vm.moves_when_stopped() {
        "it moves once it is stopped or restarted, if it can (condition Movable)"
    } else {
        "a placed VM moves only with placement.movePolicy WhenStopped, at its next stop"
    };
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

/// Returns the placement group of a VM, if it exists.
pub(super) fn group_of(tables: &Tables, vm: &VM, name: &ObjectName) -> Option<Arc<PlacementGroup>> {
    let group = vm.spec.placement.as_ref()?.group.as_ref()?;
    tables.placement_groups.get(&name.beside(group.as_str()))
}
