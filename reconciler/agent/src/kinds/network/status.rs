//! The report of the networks: they have no object, so the Host and the VMs report it in their status.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use berth_api::VM;
use berth_api::vm::InterfaceStatus;
use kube::ResourceExt;

use super::{ENSURE_EVERY, apply};
use crate::context::Context;
use crate::index::Tables;
use crate::key::{Key, ObjectName};
use crate::networking::{RETRY_TAKEN, RefusedAddress};

/// Interval while a public address waits for an administrator to change the host's interfaces.
const RETRY_REFUSED: Duration = Duration::from_secs(30);

/// Records the public addresses that are not forwarded, and enqueues the objects that report them if they have changed.
/// Returns the time after which to reconcile again.
pub(super) fn report(ctx: &Context, refused: BTreeMap<IpAddr, RefusedAddress>) -> Duration {
    let again = match (refused.is_empty(), refused.values().any(|refused| refused.mac.is_some())) {
        (true, _) => ENSURE_EVERY,
        (false, false) => RETRY_REFUSED,
        (false, true) => RETRY_TAKEN,
    };
    let before = std::mem::replace(&mut ctx.networks.applied().refused, refused.clone());
    if before != refused {
        apply::wake_public(ctx);
        ctx.enqueue(Key::host());
    }
    again
}

/// Returns why a VM cannot be started with its networks and MAC addresses; a message for people.
pub(crate) fn why_not(ctx: &Context, tables: &Tables, vm: &VM) -> Option<String> {
    let mut interfaces = vm.status.iter().flat_map(|status| &status.interfaces);
    interfaces.find_map(|interface| why_not_interface(ctx, tables, vm, interface))
}

/// Returns why an interface of a VM cannot have its network and its MAC address; a message for people.
pub(crate) fn why_not_interface(
    ctx: &Context,
    tables: &Tables,
    vm: &VM,
    interface: &InterfaceStatus,
) -> Option<String> {
    let refused = ctx.networks.applied().refused_networks.get(&interface.network).cloned();
    if let Some(why) = refused {
        return Some(format!("Network {}: {why}", interface.network));
    }
    let name = ObjectName::new(vm.namespace().unwrap_or_default(), vm.name_any());
    let age = |vm: &VM| (vm.creation_timestamp(), vm.uid());
    let has = |other: &VM, mac: &str| {
        other.status.iter().flat_map(|s| &s.interfaces).any(|i| i.mac_address.eq_ignore_ascii_case(mac))
    };
    let is_older = |(other_name, other): &(&ObjectName, &Arc<VM>), mac: &str| {
        has(other, mac) && **other_name != name && age(other) < age(vm)
    };
    let is_taken = tables.vms.all().any(|other| is_older(&other, &interface.mac_address));
    is_taken.then(|| {
        format!(
            "another VM on this host has MAC address {}: give interface {} another one",
            interface.mac_address, interface.name
        )
    })
}
