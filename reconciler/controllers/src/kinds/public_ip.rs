//! The PublicIP controller: an address is allocated from its pool, kept while its VM is stopped, and released when
//! the PublicIP is deleted. With ports it leads to their targets.

mod balancing;
mod by_lan;
mod observe;
mod plan;
mod ports;
mod prefix;
mod status;
#[cfg(test)]
mod tests;

use std::net::IpAddr;

use berth_api::{ADDRESS_FINALIZER, IPPoolMode, ObjectUse, Readiness};
use ipnet::IpNet;

use crate::{
    batch::WriteBatch,
    cache::{Cache, users},
    config::Config,
    key::Key,
    plan::{Outcome, Step},
};

use balancing::Balancing;
use observe::observe;
use plan::plan;
use prefix::is_free;
use status::status;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Decision {
    Gone,
    Wait(Readiness),
    Allocated {
        address: IpAddr,
        mode: Option<IPPoolMode>,
        user: Option<(ObjectUse, Option<String>)>,
        terminating: bool,
        misnamed_by: Option<String>,
        balancing: Option<Box<Balancing>>,
    },
}

pub(crate) fn reconcile(cache: &Cache, config: &Config, key: &Key, batch: &mut WriteBatch) -> Outcome {
    let Some(ip) = cache.tables.public_ips.get(key).cloned() else { return Outcome::Settled };
    let observed = observe(cache, &ip);
    let plan = plan(&ip, &observed);
    if matches!(plan.decision, Decision::Allocated { .. }) {
        batch.hold(cache, users::of_public_ip(&ip));
    }
    batch.steps(cache, config.clock.now(), &plan.steps);
    batch.status(ip.as_ref(), status(&ip, &plan.decision, observed.conflict.as_ref(), config.clock.now()));
    plan.outcome
}

/// Restores the address or prefix of a PublicIP that has lost its status: the one at which its guest is reached.
pub(crate) fn restore_address(
    cache: &Cache,
    config: &Config,
    key: &Key,
    range: IpNet,
    batch: &mut WriteBatch,
) {
    let Some(ip) = cache.tables.public_ips.get(key) else { return };
    let had = ip.status.as_ref().is_some_and(|s| s.address.is_some());
    let address = range.addr();
    let other = ip.spec.address.as_ref().is_some_and(|wanted| wanted.parse() != Ok(address))
        || ip.spec.range_at(address) != Some(range);
    if had || other || ip.metadata.deletion_timestamp.is_some() || !is_free(cache, ip, range) {
        return;
    }
    batch.steps(cache, config.clock.now(), &[Step::AddFinalizer(key.clone(), ADDRESS_FINALIZER)]);
    let mut status = ip.status.clone().unwrap_or_default();
    status.address = Some(address.to_string());
    status.prefix = ip.spec.prefix_length.map(|_| range.to_string());
    status.mode = cache.tables.ip_pools.cluster(ip.spec.pool.as_str()).map(|pool| pool.spec.mode);
    batch.status(ip.as_ref(), status);
    batch.enqueue(key.clone());
}
