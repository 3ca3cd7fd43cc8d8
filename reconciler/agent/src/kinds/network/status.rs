//! The report of the networks: they have no object, so the Host and the VMs report it in their status.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use berth_api::VM;
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
    let interfaces = vm.status.as_ref().map(|s| s.interfaces.as_slice()).unwrap_or_default();
    let applied = ctx.networks.applied();
    let refused = interfaces.iter().find_map(|i| {
        let why = applied.refused_networks.get(&i.network)?;
        Some(format!("Network {}: {why}", i.network))
    });
    drop(applied);
    let name = ObjectName::new(vm.namespace().unwrap_or_default(), vm.name_any());
    let age = |vm: &VM| (vm.creation_timestamp(), vm.uid());
    let has = |other: &VM, mac: &str| {
        other.status.iter().flat_map(|s| &s.interfaces).any(|i| i.mac_address.eq_ignore_ascii_case(mac))
    };
    let is_older = |(other_name, other): &(&ObjectName, &Arc<VM>), mac: &str| {
        has(other, mac) && **other_name != name && age(other) < age(vm)
    };
    refused.or_else(|| {
        let taken =
            interfaces.iter().find(|i| tables.vms.all().any(|other| is_older(&other, &i.mac_address)))?;
        Some(format!(
            "another VM on this host has MAC address {}: give interface {} another one",
            taken.mac_address, taken.name
        ))
    })
}
