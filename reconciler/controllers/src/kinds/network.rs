//! The Network controller: refuses a network if its range overlaps that of another one or one that a host uses,
//! because hosts route them all, and if it exceeds a tenant's limits. Any other gets its identifier on the wire,
//! the MTU that fits between its hosts, and the list of its hosts, from which their agents create the tunnels.

pub(crate) mod default_network;
mod forwarding;
mod observe;
mod plan;
mod prefix;
mod status;
#[cfg(test)]
mod tests;

use berth_api::{Network, Reason, condition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;

use crate::{
    batch::WriteBatch,
    cache::{Cache, users},
    config::Config,
    key::Key,
    plan::Outcome,
};

pub(crate) use forwarding::free_address;
use observe::observe;
use plan::plan;
use status::status;

pub(crate) fn reconcile(cache: &Cache, config: &Config, key: &Key, batch: &mut WriteBatch) -> Outcome {
    let Some(network) = cache.tables.networks.get(key).cloned() else { return Outcome::Settled };
    let mut observed = observe(cache, &config.tenants, &network);
    prefix::give(cache, &network, &mut observed);
    if observed.prefix.is_some() && observed.rejection.is_none() {
        batch.hold(cache, users::of_network(&network));
    }
    let readiness = plan(&observed);
    let mut status = status(&network, &observed, &readiness, config.clock.now());
    let users = cache.listed_users(key, &status.used_by);
    status.used_by.clone_from(&users);
    batch.used(network.as_ref(), status, &users, config.clock.now());
    match observed.rejection {
        Some(rejection) => Outcome::Blocked(rejection.dependencies),
        None => Outcome::Settled,
    }
}

/// Whether VMs may be bound on it: it has been reconciled, and is neither refused nor deleted.
pub(crate) fn is_accepted(network: &Network) -> bool {
    let rejection = stalled(network).is_some_and(|why| why.reason == IDENTIFIER_IN_USE);
    has_identifier(network) && !rejection && network.metadata.deletion_timestamp.is_none()
}

fn has_identifier(network: &Network) -> bool {
    network.status.as_ref().is_some_and(|s| s.vni.is_some())
}

fn stalled(network: &Network) -> Option<&Condition> {
    condition::find(&network.status.as_ref()?.conditions, "Stalled")
}

const IDENTIFIER_IN_USE: &str = Reason::IdentifierInUse.as_str();

/// Returns the message for a VM that needs a network which accepts no VMs.
pub(crate) fn why_not(network: &Network) -> Option<String> {
    if is_accepted(network) {
        return None;
    }
    let name = network.name_any();
    if network.metadata.deletion_timestamp.is_some() {
        return Some(format!("Network {name} is being deleted"));
    }
    Some(match stalled(network) {
        Some(rejection) => format!("Network {name} is refused: {}", rejection.message),
        None => format!("Network {name} is new and being looked at"),
    })
}
