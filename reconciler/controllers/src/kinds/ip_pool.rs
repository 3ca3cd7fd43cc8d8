//! The IPPool controller: counts the allocated addresses, and reports which of the pool's addresses are never
//! allocated, and whether a range lies over that of another object.

pub(crate) mod overlap;

use std::{collections::BTreeSet, net::IpAddr};

use berth_api::{
    AddressRange, ConditionType, ConditionUpdate, IPPool, IPPoolMode, IPPoolStatus, Readiness, Reason,
    condition,
};
use k8s_openapi::jiff::Timestamp;

use crate::{
    batch::WriteBatch,
    cache::Cache,
    config::Config,
    key::Key,
    plan::{Dependency, Outcome},
};

use overlap::Overlap;

pub(crate) fn reconcile(cache: &Cache, config: &Config, key: &Key, batch: &mut WriteBatch) -> Outcome {
    let Some(pool) = cache.tables.ip_pools.get(key).cloned() else { return Outcome::Settled };
    let allocated = cache.index.allocated_in(key);
    let overlap = overlap::find(cache, &pool);
    let (ends, hosts) = (segment_ends(cache, &pool), host_addresses(cache, &pool));
    let mut status = status(&pool, allocated, ends, &hosts, overlap.as_ref(), config.clock.now());
    let users = cache.listed_users(key, &status.used_by);
    status.used_by.clone_from(&users);
    batch.used(pool.as_ref(), status, &users, config.clock.now());
    // Another pool may get a range over one of this pool's, or give it up.
    let others =
        cache.tables.ip_pools.all().map(|other| Key::of(other.as_ref())).filter(|other| other != key);
    let awaited = overlap.map(|overlap| overlap.with);
    let dependencies: BTreeSet<Key> = others.chain(awaited).collect();
    match dependencies.is_empty() {
        true => Outcome::Settled,
        false => Outcome::Blocked(dependencies.into_iter().map(Dependency::Object).collect()),
    }
}

/// Returns the addresses of hosts that lie in the pool's ranges.
fn host_addresses(cache: &Cache, pool: &IPPool) -> Vec<(IpAddr, String)> {
    let ipv4 = cache.underlay.addresses().map(|(address, host)| (IpAddr::V4(address), host));
    let ipv6 = cache.underlay.ipv6_addresses().map(|(address, host)| (IpAddr::V6(address), host));
    let (ranges, with_ends): (Vec<AddressRange>, bool) =
        (pool.spec.ranges().collect(), pool.spec.use_all_addresses);
    let is_usable = |address: IpAddr| ranges.iter().any(|range| range.is_usable(address, with_ends));
    let held = ipv4.chain(ipv6).filter(|(address, _)| is_usable(*address));
    held.map(|(address, host)| (address, host.to_owned())).collect()
}

/// Returns the number of the pool's addresses that are not given out because they are the network's or the broadcast address of a segment
/// that a host is on.
fn segment_ends(cache: &Cache, pool: &IPPool) -> usize {
    if pool.spec.mode != IPPoolMode::L2 {
        return 0;
    }
    let (ranges, with_ends): (Vec<AddressRange>, bool) =
        (pool.spec.ranges().collect(), pool.spec.use_all_addresses);
    let ends = cache.underlay.segment_ends().map(IpAddr::V4);
    let usable = ends.filter(|end| ranges.iter().any(|range| range.is_usable(*end, with_ends)));
    // An address that was allocated before a host reported the segment is counted already.
    usable.filter(|end| cache.index.public_ip_with(*end).is_none()).count()
}

/// `ends`: the number of free addresses that are not given out.
fn status(
    pool: &IPPool,
    allocated: u128,
    ends: usize,
    hosts: &[(IpAddr, String)],
    overlap: Option<&Overlap>,
    now: Timestamp,
) -> IPPoolStatus {
    let mut status = pool.status.clone().unwrap_or_default();
    let generation = pool.metadata.generation.unwrap_or_default();
    // At most 32 ranges of a /64: the sum fits.
    let size: u128 = pool.spec.ranges().map(|range| range.size(pool.spec.use_all_addresses)).sum();
    let gone = allocated.saturating_add(u128::try_from(hosts.len() + ends).unwrap_or(u128::MAX));
    status.allocated = i64::try_from(allocated).unwrap_or(i64::MAX);
    let free = if overlap.is_some() { 0 } else { size.saturating_sub(gone) };
    status.free = i64::try_from(free).unwrap_or(i64::MAX);
    let problem = pool.spec.invalid_range().or_else(|| overlap.map(|overlap| overlap.text.clone()));
    let readiness = match problem {
        Some(text) => Readiness::Stalled(Reason::InvalidSpec, text),
        None => Readiness::Ready(Reason::Available, String::new()),
    };
    readiness.write(&mut status.conditions, generation, now);
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
        condition::set(
            &mut status.conditions,
            ConditionUpdate::from_bool(kind, true, reason, &text),
            generation,
            now,
        );
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
        let hosts = [(IpAddr::from([192, 0, 2, 1]), "h1".to_owned())];
        let found = status(&pool, 2, 0, &hosts, None, Timestamp::UNIX_EPOCH);
        assert_eq!(found.free, 3);
        let said = condition::find(&found.conditions, "HostAddresses").expect("said");
        assert!(said.status == "True" && said.message.contains("192.0.2.1 of host h1"), "{said:?}");
        pool.status = Some(found);
        assert_eq!(status(&pool, 2, 1, &hosts, None, Timestamp::UNIX_EPOCH).free, 2, "the end of a segment");
        let found = status(&pool, 2, 0, &[], None, Timestamp::UNIX_EPOCH);
        assert_eq!((found.free, condition::find(&found.conditions, "HostAddresses")), (4, None));
    }

    #[test]
    fn the_free_addresses_of_prefixes_are_counted_up_to_the_largest_number() {
        let free = |cidrs: &[&str]| {
            let cidrs = cidrs.iter().map(|c| (*c).to_owned()).collect();
            let pool = IPPool::new("p", IPPoolSpec { cidrs, ..IPPoolSpec::default() });
            status(&pool, 2, 0, &[], None, Timestamp::UNIX_EPOCH).free
        };
        assert_eq!(free(&["2001:db8::/120", "2001:db8::1:5-2001:db8::1:6"]), 255);
        assert_eq!(free(&["2001:db8::/64"]), i64::MAX);
        assert_eq!(free(&["192.0.2.0/30"]), 0);
    }

    #[test]
    fn a_range_that_is_none_is_named() {
        let cidrs = vec!["192.0.2.0/29".into(), "192.0.2.9-192.0.2.8".into()];
        let pool = IPPool::new("p", IPPoolSpec { cidrs, ..IPPoolSpec::default() });
        let found = status(&pool, 0, 0, &[], None, Timestamp::UNIX_EPOCH);
        let ready = condition::find(&found.conditions, "Ready").expect("said");
        assert!(ready.status == "False" && ready.message.contains("192.0.2.9-192.0.2.8"), "{ready:?}");
        assert_eq!(found.free, 6, "the other ranges are of use");
    }

    #[test]
    fn a_pool_over_another_object_names_it_and_has_no_free_address() {
        let spec = IPPoolSpec { cidrs: vec!["192.0.2.0/29".into()], ..IPPoolSpec::default() };
        let pool = IPPool::new("p", spec);
        let with = Key::of(&IPPool::new("other", IPPoolSpec::default()));
        let overlap = Overlap { with, text: "its range lies over that of IPPool other".to_owned() };
        let found = status(&pool, 2, 0, &[], Some(&overlap), Timestamp::UNIX_EPOCH);
        let ready = condition::find(&found.conditions, "Ready").expect("said");
        assert_eq!((ready.status.as_str(), ready.message.as_str()), ("False", overlap.text.as_str()));
        assert_eq!((found.allocated, found.free), (2, 0), "those that are given out stay");
    }
}
