//! This host's networks as a whole: bridges, DHCP leases, and the forwarding of public addresses.
//!
//! One reconcile covers all of them, because the firewall is one transaction and a bridge's leases are one file. It
//! runs when something changes, and on behalf of a VM that is about to start: its lease must exist before its guest
//! requests it.

mod apply;
mod balancing;
mod bridged;
mod bridges;
mod config;
mod exceptions;
mod filters;
mod limits;
mod observe;
mod plan;
mod status;

use std::net::Ipv4Addr;
use std::time::Duration;

use berth_api::Network;
use tokio::time::Instant;

use crate::context::Context;
use crate::converge::Requeue;
use crate::error::Error;
use crate::index::{Change, Indexed, Table, Tables, mtu_of};
use crate::key::{Key, ObjectName};
use berth_host::{BridgedNetwork, Firewall, NetworkConfig};
pub(crate) use status::why_not;

/// A step of the networks' plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Probes which of these addresses other machines on the segment have; the results come later.
    ProbeAddresses {
        interface: String,
        addresses: Vec<Ipv4Addr>,
    },
    EnsureNetwork(NetworkConfig),
    EnsureBridged(BridgedNetwork),
    ApplyFirewall(Firewall),
    RemoveTap(String),
    RemoveNetwork(String),
}

/// Interval at which everything is applied again, to repair damage without an event (such as a DHCP server that died).
const ENSURE_EVERY: Duration = Duration::from_secs(300);
/// A DHCP server that was running this recently is assumed to be running.
const JUST_NOW: Duration = Duration::from_secs(5);

impl Indexed for Network {
    fn table(tables: &mut Tables) -> &mut Table<Self> {
        &mut tables.networks
    }

    fn keys_of(name: &ObjectName, _: &Self, tables: &Tables) -> Vec<Key> {
        let mut keys = tables
            .vms_where(|_, vm| vm.spec.network_interfaces.iter().any(|n| n.network.as_str() == name.name));
        keys.push(Key::networks());
        keys
    }

    /// A network that is added to or removed from another host concerns no VM, and happens often on large sites.
    fn keys_of_change(change: &Change<Self>, tables: &Tables) -> Vec<Key> {
        if let (Some(old), Some(new)) = (&change.old, &change.new)
            && old.spec == new.spec
            && mtu_of(old) == mtu_of(new)
        {
            return vec![Key::networks()];
        }
        let both = [&change.old, &change.new];
        both.into_iter().flatten().flat_map(|object| Self::keys_of(&change.name, object, tables)).collect()
    }
}

/// Reconciles the host's networks with the objects.
pub(crate) async fn reconcile(ctx: &Context) -> Result<Requeue, Error> {
    ctx.networks.flight.beside(pass(ctx, false)).await
}

/// Like `reconcile`, but also applies again what has been applied before, unless that was done just now: a hundred VMs
/// that start at once need few passes, not a hundred.
pub(crate) async fn ensure(ctx: &Context) -> Result<(), Error> {
    let just_now = || ctx.networks.applied().ensured_at.is_some_and(|at| at.elapsed() < JUST_NOW);
    ctx.networks.flight.share(async { pass(ctx, !just_now()).await.map(drop) }).await
}

async fn pass(ctx: &Context, ensure_all: bool) -> Result<Requeue, Error> {
    if ctx.index.read().host_addresses.listed().is_none() {
        return Err(Error::NoHostAddresses);
    }
    let mut observed = observe::observe(ctx).await?;
    let due = ctx.networks.applied().ensured_at.is_none_or(|at| at.elapsed() >= ENSURE_EVERY);
    observed.ensure_all = ensure_all || due;
    apply::record(ctx, &observed);
    for step in plan::plan(&observed) {
        if observed.is_in_effect(&step) {
            tracing::debug!(?step, "applying again");
        } else {
            tracing::info!(?step, "applying");
        }
        apply::apply(ctx, &step).await?;
    }
    ctx.networks.checks.ensure(&observed.wanted.checks, &observed.wanted.trusted);
    if observed.ensure_all {
        ctx.networks.applied().ensured_at = Some(Instant::now());
    }
    Ok(Requeue::After(status::report(ctx, observed.wanted.refused)))
}
