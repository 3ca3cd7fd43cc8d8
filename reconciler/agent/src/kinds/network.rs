//! This host's networks as a whole: bridges, DHCP leases, and the forwarding of public addresses.
//!
//! One reconcile covers all of them, because the firewall is one transaction and a bridge's leases are one file. It
//! runs when something changes, and on behalf of a VM that is about to start: its lease must exist before its guest
//! requests it. A change of a security group concerns the packet filters only, and has a shorter one (`refilter`).

mod announcing;
mod apply;
mod balancing;
mod bridged;
mod bridges;
mod config;
mod encryption;
mod exceptions;
mod filters;
mod half_made;
mod isolation;
mod learned;
mod leases;
mod limits;
mod marks;
mod observe;
mod plan;
mod refilter;
mod senders;
mod status;
mod trunks;
mod upcoming;

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use berth_api::Network;
use tokio::time::Instant;

use crate::context::Context;
use crate::converge::Requeue;
use crate::error::Error;
use crate::index::{Change, Indexed, Table, Tables, mtu_of};
use crate::key::{Key, ObjectName};
use crate::networking::{Applied, find};
use berth_host::{BridgedNetwork, Firewall, NetworkConfig, WireguardConfig};
pub(crate) use refilter::refilter;
pub(crate) use status::{why_not, why_not_interface};

/// A step of the networks' plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Probes which of these addresses other machines on the segment have; the results come later.
    ProbeAddresses {
        interface: String,
        addresses: Vec<IpAddr>,
    },
    EnsureNetwork(NetworkConfig),
    EnsureBridged(BridgedNetwork),
    EnsureWireguard(WireguardConfig),
    RemoveWireguard,
    ApplyFirewall(Arc<Firewall>),
    RemoveTap(String),
    RemoveNetwork(String),
}

/// For the log. A network may have thousands of leases and names, the rules thousands of members of security groups, and they are applied
/// at each change of one.
impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EnsureNetwork(network) => {
                let names = network.names.as_ref().map_or(0, |names| names.records.len());
                write!(f, "EnsureNetwork({}, {} leases, {names} names)", network.bridge, network.leases.len())
            }
            Self::ApplyFirewall(rules) => {
                let bridges = rules.nat.len() + rules.bridged.len();
                let (taps, filtered) = (rules.ports.len(), rules.filters.ports.len());
                write!(f, "ApplyFirewall({bridges} bridges, {taps} taps, {filtered} with security groups)")
            }
            _ => fmt::Debug::fmt(self, f),
        }
    }
}

/// Interval at which everything is applied again, to repair damage without an event (such as a bridge that another program removed).
const ENSURE_EVERY: Duration = Duration::from_secs(300);
/// A DHCP server that was running this recently is assumed to be running.
const JUST_NOW: Duration = Duration::from_secs(5);

impl Indexed for Network {
    fn table(tables: &mut Tables) -> &mut Table<Self> {
        &mut tables.networks
    }

    fn keys_of(name: &ObjectName, _: &Self, tables: &Tables) -> Vec<Key> {
        let mut keys = vms_on(name, tables);
        keys.push(Key::networks());
        keys
    }

    /// A network that is added to or removed from another host concerns no VM, and happens often on large sites. The names of VMs
    /// change more often still, and concern only hosts with a VM of the network.
    fn keys_of_change(change: &Change<Self>, tables: &Tables) -> Vec<Key> {
        if let (Some(old), Some(new)) = (&change.old, &change.new)
            && old.spec == new.spec
            && mtu_of(old) == mtu_of(new)
        {
            let is_elsewhere = differ_in_names(old, new) && vms_on(&change.name, tables).is_empty();
            return if is_elsewhere { Vec::new() } else { vec![Key::networks()] };
        }
        let both = [&change.old, &change.new];
        both.into_iter().flatten().flat_map(|object| Self::keys_of(&change.name, object, tables)).collect()
    }
}

/// Returns the VMs of this host with an interface in a network of this name.
fn vms_on(name: &ObjectName, tables: &Tables) -> Vec<Key> {
    tables.vms_where(|_, vm| vm.spec.network_interfaces.iter().any(|n| n.network.as_str() == name.name))
}

/// Whether two states of a network differ in the names of its VMs, and in nothing else that a host reads in its status.
fn differ_in_names(old: &Network, new: &Network) -> bool {
    let (Some(old), Some(new)) = (&old.status, &new.status) else { return false };
    let are_relays_equal = old.relay_addresses == new.relay_addresses;
    old.names != new.names && old.vni == new.vni && old.hosts == new.hosts && are_relays_equal
}

/// Reconciles the host's networks with the objects. In a burst of changes, it waits once for further ones, and a pass on behalf of a VM may
/// come first: changes that go on do not hold it up.
pub(crate) async fn reconcile(ctx: &Context) -> Result<Requeue, Error> {
    gather(ctx, Applied::left_to_gather).await;
    ctx.networks.flight.beside(pass(ctx, false)).await
}

/// Waits for what is left of the time in which changes, or other VMs that start, are gathered.
async fn gather(ctx: &Context, left: fn(&Applied) -> Option<Duration>) {
    let left = left(&ctx.networks.applied());
    if let Some(left) = left {
        tokio::time::sleep(left).await;
    }
}

/// Like `reconcile`, but also applies again what has been applied before, unless that was done just now: a hundred VMs
/// that start at once need few passes, not a hundred. In a burst of them, a pass waits for further ones. A network that cannot be made is
/// no error: [`Networks::must_be_made`] reports it to the VMs on it.
///
/// [`Networks::must_be_made`]: crate::networking::Networks::must_be_made
pub(crate) async fn ensure(ctx: &Context) -> Result<(), Error> {
    let just_now = || ctx.networks.applied().ensured_at.is_some_and(|at| at.elapsed() < JUST_NOW);
    let shared = ctx.networks.flight.share_after(gather(ctx, Applied::left_to_gather_vms), async {
        let again = pass(ctx, !just_now()).await?;
        ctx.networks.applied().record_vm_pass();
        // A network that could not be made is tried again, also when no VM waits for it.
        if matches!(again, Requeue::BackOff) {
            ctx.enqueue(Key::networks());
        }
        Ok::<(), Error>(())
    });
    shared.await
}

async fn pass(ctx: &Context, ensure_all: bool) -> Result<Requeue, Error> {
    if ctx.index.read().host_addresses.listed().is_none() {
        return Err(Error::NoHostAddresses);
    }
    let mut observed = observe::observe(ctx).await?;
    let due = ctx.networks.applied().ensured_at.is_none_or(|at| at.elapsed() >= ENSURE_EVERY);
    observed.ensure_all = ensure_all || due;
    apply::record(ctx, &observed);
    let (mut has_failed, mut is_wireguard_left) = (false, false);
    let mut half_made: Vec<(String, Error)> = Vec::new();
    // Bridges with taps that cannot be removed, and those that are not removed although no network is to have them.
    let (mut held, mut unremoved) = (BTreeSet::<String>::new(), Vec::<String>::new());
    for step in plan::plan(&observed) {
        let step = match step {
            Step::ApplyFirewall(rules) if !half_made.is_empty() || !unremoved.is_empty() => {
                let mut rules = Arc::unwrap_or_clone(rules);
                unremoved.iter().for_each(|bridge| half_made::close(&mut rules, bridge));
                let kept = rules_meanwhile(ctx, rules, std::mem::take(&mut half_made))?;
                let kept = Step::ApplyFirewall(Arc::new(kept));
                if observed.is_in_effect(&kept) && !observed.ensure_all {
                    continue;
                }
                kept
            }
            // It is not removed from below a tap.
            Step::RemoveNetwork(bridge) if held.contains(&bridge) => {
                unremoved.push(bridge);
                continue;
            }
            step => step,
        };
        if observed.is_in_effect(&step) {
            tracing::debug!(%step, "applying again");
        } else {
            tracing::info!(%step, "applying");
        }
        let Err(error) = apply::apply(ctx, &step).await else { continue };
        has_failed = true;
        match &step {
            // VMs that are about to start, and all networks without encryption, do not depend on it.
            Step::EnsureWireguard(_) => {
                tracing::warn!(error = %error.chain(), "packets of encrypted networks do not pass between hosts");
            }
            // Nor do the other networks depend on one.
            Step::EnsureNetwork(network) => {
                tracing::warn!(bridge = network.bridge, error = %error.chain(), "a network cannot be made");
                if observed.is_half_made(network, &error) {
                    half_made.push((network.bridge.clone(), error));
                }
            }
            Step::EnsureBridged(network) => {
                tracing::warn!(bridge = network.bridge, error = %error.chain(), "a network cannot be connected");
            }
            // Nor on what is left of a former one: its removal is tried again.
            Step::RemoveTap(tap) => {
                tracing::warn!(tap, error = %error.chain(), "a tap cannot be removed");
                held.extend(observed.tap_bridges.get(tap).cloned());
            }
            Step::RemoveNetwork(bridge) => {
                tracing::warn!(bridge, error = %error.chain(), "a network cannot be removed");
                unremoved.push(bridge.clone());
            }
            Step::RemoveWireguard => {
                tracing::warn!(error = %error.chain(), "the interface of encrypted networks cannot be removed");
                is_wireguard_left = true;
            }
            _ => return Err(error),
        }
    }
    ctx.networks.checks.ensure(&observed.wanted.checks, &observed.wanted.trusted);
    // Until then an interface that an agent before this one has made is looked for, and removed.
    if observed.ensure_all && !is_wireguard_left {
        ctx.networks.applied().ensured_at = Some(Instant::now());
    }
    let again = Requeue::After(status::report(ctx, observed.wanted.refused));
    Ok(if has_failed { Requeue::BackOff } else { again })
}

/// Returns the rules while the networks of these bridges could not be made.
///
/// *Errors:* that of a network of which it is not known which rules guard it.
fn rules_meanwhile(
    ctx: &Context,
    mut rules: Firewall,
    half_made: Vec<(String, Error)>,
) -> Result<Firewall, Error> {
    let applied = ctx.networks.applied();
    let (before, bridges) = (applied.firewall.clone(), applied.bridges.clone());
    drop(applied);
    let tables = ctx.index.read();
    for (bridge, error) in half_made {
        let name = bridges.iter().find(|(_, of)| **of == bridge).map(|(name, _)| name);
        let network = name.and_then(|name| find(&tables, name));
        let closed = network.and_then(|network| half_made::closed_tunnel(&network));
        if !half_made::keep_rules(&mut rules, before.as_deref(), &bridge, closed) {
            return Err(error);
        }
    }
    Ok(rules)
}

#[cfg(test)]
mod tests {
    use kube::runtime::watcher::Event;
    use serde_json::json;

    use super::*;
    use crate::index::Index;

    #[test]
    fn names_of_a_network_concern_only_hosts_with_a_vm_of_it() {
        let index = Index::default();
        let mut version = 0;
        let mut apply = |names: &[&str], host: &str| {
            version += 1;
            let names: Vec<_> =
                names.iter().map(|name| json!({"name": name, "address": "10.77.0.2"})).collect();
            let network = json!({
                "metadata": {"name": "lan", "namespace": "ns", "resourceVersion": version.to_string()},
                "spec": {"cidr": "10.77.0.0/16", "dnsDomain": "app.internal"},
                "status": {"observedGeneration": 1, "vni": 77, "names": names,
                    "hosts": [{"name": host, "address": "192.0.2.1"}]},
            });
            index.apply::<Network>(Event::Apply(serde_json::from_value(network).expect("a Network")))
        };
        assert_eq!(apply(&[], "h1"), [Key::networks()]);
        assert_eq!(apply(&["web"], "h1"), []);
        assert_eq!(apply(&["web", "db"], "h2"), [Key::networks()], "its hosts change too");
        let vm = json!({
            "metadata": {"name": "web", "namespace": "ns", "resourceVersion": "1"},
            "spec": {"class": "s", "disks": [], "networkInterfaces": [{"name": "nic0", "network": "lan"}]},
        });
        index.apply::<berth_api::VM>(Event::Apply(serde_json::from_value(vm).expect("a VM")));
        assert_eq!(apply(&["web"], "h2"), [Key::networks()]);
    }
}
