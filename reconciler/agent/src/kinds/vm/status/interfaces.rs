//! Conditions of a VM about its network interfaces. Pure.

use berth_api::condition::{self, remove};
use berth_api::vm::InterfaceStatus;
use berth_api::{ConditionType, ConditionUpdate, Reason, VM, VMStatus};
use jiff::Timestamp;

use super::super::Observed;
use super::super::plan::{interface_changes, tap_missing};
use super::super::seed::Lan;

pub(super) fn write_interfaces_synced(
    status: &mut VMStatus,
    vm: &VM,
    observed: &Observed,
    generation: i64,
    now: Timestamp,
) {
    let (Some(_), Some(_)) = (&observed.process, &observed.journal.run) else {
        remove(&mut status.conditions, ConditionType::InterfacesSynced);
        return;
    };
    let changes = interface_changes(vm, observed);
    let (plugged, unplugged) = changes.under_way();
    let shared = on_shared_networks(vm);
    let (reason, text) = if !shared.is_empty() {
        let text = format!(
            "{} may not send from further addresses: its Network is shared by namespaces; take allowedAddresses and \
             allowedMacAddresses away, or create a Network in the VM's namespace",
            shared.join(", ")
        );
        (Reason::InvalidSpec, text)
    } else if let Some(text) = &observed.misrouted {
        (Reason::InvalidSpec, text.clone())
    } else if let Some(name) = changes.without_tap.first().filter(|name| changes.power_cycle.contains(*name))
    {
        (Reason::TapMissing, tap_missing(name))
    } else if !changes.power_cycle.is_empty() {
        let names = changes.power_cycle.into_iter().collect::<Vec<_>>().join(", ");
        (Reason::PowerCycleNeeded, format!("stop and start the VM for the change of {names} to take effect"))
    } else if !unplugged.is_empty() {
        (Reason::Detaching, format!("the guest has not released {} yet", unplugged.join(", ")))
    } else if !plugged.is_empty() {
        (Reason::Attaching, format!("{} is to be plugged in", plugged.join(", ")))
    } else {
        (Reason::Synced, String::new())
    };
    let (kind, synced) = (ConditionType::InterfacesSynced, reason == Reason::Synced);
    condition::set(
        &mut status.conditions,
        ConditionUpdate::from_bool(kind, synced, reason, &text),
        generation,
        now,
    );
}

/// Returns the interfaces that declare further addresses on a Network of another namespace, where they have none.
fn on_shared_networks(vm: &VM) -> Vec<String> {
    let declares = |name: &str| {
        let mut declared = vm.spec.network_interfaces.iter().filter(|i| i.name.as_str() == name);
        declared.any(|i| !i.allowed_addresses.is_empty() || !i.allowed_mac_addresses.is_empty())
    };
    let namespace = vm.metadata.namespace.as_deref();
    let interfaces = vm.status.iter().flat_map(|status| &status.interfaces);
    let foreign = interfaces.filter(|i| i.network.split_once('/').map(|(of, _)| of) != namespace);
    foreign.filter(|i| declares(&i.name)).map(|i| i.name.clone()).collect()
}

/// Returns why interfaces are not filtered by security groups as they declare, if so.
fn groups_problem(status: &VMStatus, observed: &Observed) -> Option<(Reason, String)> {
    let filtered_on = |is_such: fn(&Lan) -> bool| {
        let filtered = status.interfaces.iter().filter(|i| !i.security_groups.is_empty());
        let on_such = filtered.filter(|i| observed.lans.get(&i.network).is_some_and(is_such));
        on_such.map(|interface| interface.name.clone()).collect::<Vec<_>>().join(", ")
    };
    let (closed, without_trunk) = (filtered_on(Lan::is_unchecked), filtered_on(Lan::has_trunk));
    let filtered = status.interfaces.iter().filter(|i| !i.security_groups.is_empty());
    let choosing = filtered.filter(|i| observed.choosing.contains(&i.network));
    let choosing: Vec<&str> = choosing.map(|interface| interface.name.as_str()).collect();
    if !closed.is_empty() {
        let text = format!(
            "interface {closed} names security groups, which need addresses that are checked, and its Network has ipv6.allocation External, \
             or ipv4.allocation External without ipv4.sourceCheck Lease: it sends nothing from addresses that others give out; take \
             securityGroups out"
        );
        return Some((Reason::NotSupported, text));
    }
    if !choosing.is_empty() {
        let text = format!(
            "interface {} names security groups, which match only allocated addresses, and its Network has ipv6PrivacyAddresses: it sends from \
             none of the addresses that its guest chooses; take securityGroups out",
            choosing.join(", ")
        );
        return Some((Reason::NotSupported, text));
    }
    if !observed.missing_groups.is_empty() {
        let text = format!(
            "SecurityGroup {} does not exist: interfaces that name it receive and send only what their other groups allow",
            observed.missing_groups.join(", ")
        );
        return Some((Reason::WaitingForSecurityGroup, text));
    }
    let has_both = |i: &&InterfaceStatus| !i.security_groups.is_empty() && !i.allowed_addresses.is_empty();
    let both: Vec<&str> = status.interfaces.iter().filter(has_both).map(|i| i.name.as_str()).collect();
    if !both.is_empty() {
        let text = format!(
            "interface {} declares allowedAddresses and has the security groups of its Network, which match only allocated addresses: it \
             sends from no further ones; take allowedAddresses out, or use a Network without securityGroups",
            both.join(", ")
        );
        return Some((Reason::NotSupported, text));
    }
    (!without_trunk.is_empty()).then(|| {
        let text = format!(
            "interface {without_trunk} names security groups, which do not see into frames with a VLAN tag: it sends and receives none of \
             the trunkVLANs of its Network; take securityGroups out, or use a Network without a trunk"
        );
        (Reason::NotSupported, text)
    })
}

pub(super) fn write_security_groups_synced(
    status: &mut VMStatus,
    observed: &Observed,
    generation: i64,
    now: Timestamp,
) {
    let kind = ConditionType::SecurityGroupsSynced;
    match groups_problem(status, observed) {
        None => remove(&mut status.conditions, kind),
        Some((reason, text)) => {
            let update = ConditionUpdate::from_bool(kind, false, reason, &text);
            condition::set(&mut status.conditions, update, generation, now);
        }
    }
}
