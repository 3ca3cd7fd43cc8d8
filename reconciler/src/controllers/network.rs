//! Network: refused when its range overlaps that of an older one, because a host routes both.

use berth_api::{Network, NetworkStatus, Readiness, Reason};
use ipnet::Ipv4Net;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

use super::{
    Key, World,
    apply::{WriteError, Writer},
    plan::{Need, Outcome},
};

pub(super) async fn reconcile(
    world: &mut World,
    writer: &Writer,
    key: &Key,
    touched: &mut Vec<Key>,
) -> Result<Outcome, WriteError> {
    let Some(network) = world.networks.get(key).cloned() else { return Ok(Outcome::Settled) };
    let overlapped = observe(world, &network);
    let readiness = plan(&network, overlapped.as_deref());
    let status = status(&network, &readiness, writer.now());
    writer.status(world, network.as_ref(), status, touched).await?;
    Ok(match overlapped {
        Some(other) => Outcome::Blocked(vec![Need::Object(Key::of(other.as_ref()))]),
        None => Outcome::Settled,
    })
}

/// An older network whose range overlaps this one's.
fn observe(world: &World, network: &Network) -> Option<std::sync::Arc<Network>> {
    let range: Ipv4Net = network.spec.cidr.parse().ok()?;
    let age = |n: &Network| (n.creation_timestamp(), n.uid());
    let overlaps = |other: &&std::sync::Arc<Network>| {
        let other_range: Option<Ipv4Net> = other.spec.cidr.parse().ok();
        let meets = other_range.is_some_and(|o| o.contains(&range) || range.contains(&o));
        meets && other.uid() != network.uid() && age(other) < age(network)
    };
    world.networks.all().find(overlaps).cloned()
}

fn plan(network: &Network, overlapped: Option<&Network>) -> Readiness {
    match overlapped {
        None => Readiness::Ready(Reason::Available, String::new()),
        Some(other) => Readiness::Stalled(
            Reason::InvalidSpec,
            format!(
                "its range {} overlaps {} of network {}/{}: create it with another range",
                network.spec.cidr,
                other.spec.cidr,
                other.namespace().unwrap_or_default(),
                other.name_any()
            ),
        ),
    }
}

fn status(network: &Network, readiness: &Readiness, now: Timestamp) -> NetworkStatus {
    let mut status = network.status.clone().unwrap_or_default();
    let generation = network.metadata.generation.unwrap_or_default();
    readiness.write(&mut status.conditions, generation, now);
    status.observed_generation = generation;
    status
}
