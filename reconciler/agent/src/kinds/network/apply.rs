//! Applies the steps of the networks' plan.

use std::collections::BTreeSet;

use berth_api::VMStatus;
use berth_host::{Firewall, SystemError, WireguardConfig};

use super::Step;
use super::observe::Observed;
use crate::context::Context;
use crate::error::{Error, reason_of};
use crate::index::instance_of;
use crate::key::Key;
use crate::networking::{FailedNetwork, tap_prefix};

/// Records which networks get which bridge, the addresses that guests may send from, and their leases, before any step is applied.
pub(super) fn record(ctx: &Context, observed: &Observed) {
    ctx.networks.ports.keep_only(&observed.instances, &observed.read_ports);
    wake_leased(ctx, &ctx.networks.leases.record(&observed.leases));
    let joined = observed.taps.iter().filter(|tap| !observed.loose_taps.contains(*tap));
    let taps: BTreeSet<String> = joined.cloned().collect();
    let before = ctx.networks.applied().taps.replace(taps.clone());
    wake_owners(ctx, before.iter().flatten().filter(|tap| !taps.contains(*tap)));
    let mut applied = ctx.networks.applied();
    applied.bridges.clone_from(&observed.wanted.bridges);
    applied.refused_networks.clone_from(&observed.wanted.refused_networks);
    let wanted = |bridge: &String| {
        observed.wanted.networks.iter().any(|wanted| wanted.bridge == *bridge)
            || observed.wanted.bridged.iter().any(|wanted| wanted.bridge == *bridge)
    };
    applied.failed.retain(|bridge, _| wanted(bridge));
    // One whose bridge or interface is back is connected again at once.
    applied.bridged.retain(|bridge, _| observed.wanted.bridged.iter().any(|wanted| wanted.bridge == *bridge));
}

pub(super) async fn apply(ctx: &Context, step: &Step) -> Result<(), Error> {
    match step {
        Step::ProbeAddresses { interface, addresses } => ctx.networks.probes.ensure(interface, addresses),
        Step::EnsureNetwork(network) => {
            let made = ctx.system.ensure_network(network).await;
            record_outcome(ctx, &network.bridge, made.as_ref().err());
            made?;
            ctx.networks.applied().networks.insert(network.bridge.clone(), network.clone());
        }
        Step::EnsureBridged(network) => {
            let made = ctx.system.ensure_bridged_network(network).await;
            record_outcome(ctx, &network.bridge, made.as_ref().err());
            made?;
            ctx.networks.applied().bridged.insert(network.bridge.clone(), network.clone());
        }
        Step::EnsureWireguard(config) => {
            // After a failure there may be an interface that is not as it should be. None is wanted without peers.
            let unfinished = WireguardConfig { peers: Vec::new(), ..config.clone() };
            ctx.networks.applied().wireguard = Some(unfinished);
            ctx.system.ensure_wireguard(config).await?;
            ctx.networks.applied().wireguard = Some(config.clone());
        }
        Step::RemoveWireguard => {
            ctx.system.remove_wireguard().await?;
            ctx.networks.applied().wireguard = None;
        }
        Step::ApplyFirewall(firewall) => {
            let begun = ctx.networks.applied().begin_rules();
            ctx.system.apply_firewall(firewall).await?;
            ctx.networks.senders.watch(&firewall.observed);
            let before = ctx.networks.applied().end_rules(begun, firewall.clone());
            if before.is_none_or(|before| differ_in_public(&before, firewall)) {
                wake_public(ctx);
            }
        }
        Step::RemoveTap(name) => ctx.system.remove_tap(name).await?,
        Step::RemoveNetwork(bridge) => {
            // After a failure a part of it is missing: if a VM needs it then, it is made again.
            ctx.networks.applied().networks.remove(bridge);
            ctx.networks.applied().bridged.remove(bridge);
            ctx.system.remove_network(bridge).await?;
            if ctx.networks.servers.forget(bridge) {
                ctx.enqueue(Key::host());
            }
        }
    }
    Ok(())
}

/// Records whether a network could be made, for the VMs on it and for the condition of the Host.
fn record_outcome(ctx: &Context, bridge: &str, error: Option<&SystemError>) {
    let mut applied = ctx.networks.applied();
    match error {
        Some(error) => {
            let failed = FailedNetwork {
                reason: reason_of(error),
                text: error.chain(),
                is_linked: matches!(error, SystemError::NetworkServer { .. }),
            };
            applied.failed.insert(bridge.to_owned(), failed);
        }
        None => drop(applied.failed.remove(bridge)),
    }
    drop(applied);
    if ctx.networks.servers.started(bridge, error.map(SystemError::chain)) {
        ctx.enqueue(Key::host());
    }
}

/// Whether public addresses or prefixes lead to other guests by one of these rules than by the other.
fn differ_in_public(before: &Firewall, after: &Firewall) -> bool {
    before.forwards != after.forwards || before.prefixes != after.prefixes
}

/// Enqueues the VMs of these taps, which are no longer there, or on no bridge.
fn wake_owners<'a>(ctx: &Context, taps: impl Iterator<Item = &'a String>) {
    let taps: Vec<&String> = taps.collect();
    if taps.is_empty() {
        return;
    }
    let keys = ctx.index.read().vms_where(|_, vm| {
        let prefix = instance_of(vm).map(tap_prefix);
        prefix.is_some_and(|prefix| taps.iter().any(|tap| tap.starts_with(&prefix)))
    });
    for key in keys {
        ctx.queue.add(key);
    }
}

/// Enqueues the VMs with these MAC addresses, whose statuses have other leases now.
fn wake_leased(ctx: &Context, macs: &BTreeSet<String>) {
    if macs.is_empty() {
        return;
    }
    let keys = ctx.index.read().vms_where(|_, vm| {
        let mut interfaces = vm.status.iter().flat_map(|status| &status.interfaces);
        interfaces.any(|interface| macs.contains(&interface.mac_address.to_ascii_lowercase()))
    });
    for key in keys {
        ctx.queue.add(key);
    }
}

/// Enqueues the VMs with public addresses, which may be forwarded differently now.
pub(super) fn wake_public(ctx: &Context) {
    let keys = ctx.index.read().vms_where(|_, vm| {
        let spec = vm.spec.network_interfaces.iter().any(|n| n.public_ips().next().is_some());
        let has_one = |s: &VMStatus| {
            s.public_address.is_some()
                || s.public_ipv6_address.is_some()
                || s.interfaces.iter().any(|i| i.public_ipv6_prefix.is_some())
        };
        spec || vm.status.as_ref().is_some_and(has_one)
    });
    for key in keys {
        ctx.queue.add(key);
    }
}

#[cfg(test)]
mod tests {
    use berth_host::{Forward, RoutedPrefix};

    use super::*;

    #[test]
    fn vms_report_a_public_prefix_again_once_the_rules_for_it_are_applied() {
        let routed = RoutedPrefix {
            prefix: "2001:db8:0:8:1::/80".parse().expect("a prefix"),
            via: "fd00:60::2".parse().expect("an address"),
            bridge: "bth-00004d".to_owned(),
        };
        let forward = Forward {
            public: "198.51.100.7".parse().expect("an address"),
            private: "10.77.0.2".parse().expect("an address"),
            announced_on: None,
        };
        let none = Firewall::default();
        let prefix = Firewall { prefixes: vec![routed], ..Firewall::default() };
        let address = Firewall { forwards: vec![forward], ..Firewall::default() };
        assert!(differ_in_public(&none, &prefix) && differ_in_public(&prefix, &none));
        assert!(differ_in_public(&none, &address));
        assert!(!differ_in_public(&prefix, &Firewall { guests: true, ..prefix.clone() }));
    }
}
