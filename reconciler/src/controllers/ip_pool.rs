//! IPPool: counts what is given out, and says which of its addresses never are.

use std::net::Ipv4Addr;

use berth_api::{
    ConditionType, IPPool, IPPoolStatus, Readiness, Reason,
    condition::{self, set_bool},
};
use ipnet::Ipv4Net;
use k8s_openapi::jiff::Timestamp;

use super::{Config, Key, World, draft::Draft, plan::Outcome};

pub(super) fn reconcile(world: &World, config: &Config, key: &Key, draft: &mut Draft) -> Outcome {
    let Some(pool) = world.ip_pools.get(key).cloned() else { return Outcome::Settled };
    let allocated = world.index.allocated_in(key);
    let mut status = status(&pool, allocated, &host_addresses(world, &pool), config.clock.now());
    status.used_by = world.listed_users(key, &status.used_by);
    draft.status(pool.as_ref(), status);
    Outcome::Settled
}

/// Addresses of hosts that the pool's ranges hold.
fn host_addresses(world: &World, pool: &IPPool) -> Vec<(Ipv4Addr, String)> {
    let ranges: Vec<Ipv4Net> = pool.spec.cidrs.iter().filter_map(|c| c.parse().ok()).collect();
    let held = world.underlay.addresses().filter(|(a, _)| ranges.iter().any(|range| range.contains(a)));
    held.map(|(address, host)| (address, host.to_owned())).collect()
}

fn status(pool: &IPPool, allocated: usize, hosts: &[(Ipv4Addr, String)], now: Timestamp) -> IPPoolStatus {
    let mut status = pool.status.clone().unwrap_or_default();
    let generation = pool.metadata.generation.unwrap_or_default();
    let ranges = pool.spec.cidrs.iter().filter_map(|c| c.parse::<Ipv4Net>().ok());
    let size: i64 = ranges.map(|r| 1i64 << (32 - u32::from(r.prefix_len()))).sum();
    status.allocated = i64::try_from(allocated).unwrap_or(i64::MAX);
    let unusable = i64::try_from(hosts.len()).unwrap_or(i64::MAX);
    status.free = size.saturating_sub(status.allocated).saturating_sub(unusable).max(0);
    Readiness::Ready(Reason::Available, String::new()).write(&mut status.conditions, generation, now);
    if hosts.is_empty() {
        condition::remove(&mut status.conditions, ConditionType::HostAddresses);
    } else {
        let listed: Vec<String> =
            hosts.iter().take(8).map(|(address, host)| format!("{address} of host {host}")).collect();
        let text = format!(
            "the ranges hold {}{}: those are never given out; leave them out of the ranges, and everything else that \
             has an address there too",
            listed.join(", "),
            if hosts.len() > 8 { " and others" } else { "" },
        );
        let (kind, reason) = (ConditionType::HostAddresses, Reason::HostAddress);
        set_bool(&mut status.conditions, kind, true, reason, &text, generation, now);
    }
    status.observed_generation = generation;
    status
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_api::IPPoolSpec;

    #[test]
    fn a_pool_that_holds_a_hosts_address_says_so_and_counts_it_out() {
        let spec = IPPoolSpec { cidrs: vec!["192.0.2.0/29".into()], ..IPPoolSpec::default() };
        let mut pool = IPPool::new("p", spec);
        let hosts = [(Ipv4Addr::new(192, 0, 2, 1), "h1".to_owned())];
        let found = status(&pool, 2, &hosts, Timestamp::UNIX_EPOCH);
        assert_eq!(found.free, 5);
        let said = condition::find(&found.conditions, "HostAddresses").expect("said");
        assert!(said.status == "True" && said.message.contains("192.0.2.1 of host h1"), "{said:?}");
        pool.status = Some(found);
        let found = status(&pool, 2, &[], Timestamp::UNIX_EPOCH);
        assert_eq!((found.free, condition::find(&found.conditions, "HostAddresses")), (6, None));
    }
}
