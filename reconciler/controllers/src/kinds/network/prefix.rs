//! The IPv6 prefix that a network takes from a pool.

use std::collections::BTreeSet;
use std::net::Ipv6Addr;

use berth_api::{Network, Reason, wireguard::WIREGUARD_PREFIX};
use ipnet::{IpNet, Ipv6Net};
use kube::ResourceExt;
use sha2::{Digest, Sha256};

use crate::{
    cache::Cache,
    key::{Key, ObjectKind},
    plan::Dependency,
};

use super::observe::{Observed, Rejection, is_other};

/// The prefixes that are looked at for a free one.
const MOST_TRIED: u64 = 65_536;

/// Gives a network with a pool its prefix, if it has none, or the reason why it gets none.
pub(super) fn give(cache: &Cache, network: &Network, observed: &mut Observed) {
    match pick(cache, network) {
        Ok(prefix) => observed.prefix = prefix,
        Err(why) => {
            observed.rejection.get_or_insert(why);
        }
    }
}

/// Returns the prefix that a network with a pool gets, if it has none. The error has the reason why it gets none.
fn pick(cache: &Cache, network: &Network) -> Result<Option<Ipv6Net>, Rejection> {
    let Some(name) = network.prefix_pool().filter(|_| network.ipv6_prefix().is_none()) else {
        return Ok(None);
    };
    let key = Key::cluster(ObjectKind::IPPool, name.as_str());
    let dependencies = || vec![Dependency::Object(key.clone()), Dependency::NetworkRange, Dependency::Hosts];
    let rejected = |reason, text| Rejection { reason, text, dependencies: dependencies() };
    let pool =
        cache.tables.ip_pools.cluster(name.as_str()).filter(|p| p.metadata.deletion_timestamp.is_none());
    let Some(pool) = pool else {
        let text = format!("its ipv6.pool {name} does not exist, or is being deleted: create that IPPool");
        return Err(rejected(Reason::WaitingForPool, text));
    };
    let taken: BTreeSet<Ipv6Net> = cache
        .tables
        .networks
        .all()
        .filter(|other| is_other(other, network))
        .filter_map(|other| other.ipv6_prefix())
        .collect();
    let is_public = |prefix: Ipv6Net| {
        let mut ranges = cache.tables.ip_pools.all().flat_map(|pool| pool.spec.ranges().collect::<Vec<_>>());
        ranges.any(|range| range.overlaps(IpNet::V6(prefix)))
    };
    let is_free = |prefix: Ipv6Net| {
        !taken.contains(&prefix)
            && !is_of_wireguard(prefix)
            && !cache.underlay.uses_prefix(prefix)
            && !is_public(prefix)
    };
    let ranges: Vec<Ipv6Net> = pool.spec.prefixes().collect();
    if ranges.is_empty() {
        let text = format!(
            "its ipv6.pool {name} has no networkPrefixes: add a range to that IPPool, or name another"
        );
        return Err(rejected(Reason::InvalidSpec, text));
    }
    let called = format!("{}/{}", network.namespace().unwrap_or_default(), network.name_any());
    let prefix = ranges.into_iter().find_map(|range| free_in(range, &called, is_free));
    prefix.map(Some).ok_or_else(|| {
        let text =
            format!("its ipv6.pool {name} has no free /64: add a range to that IPPool, or delete a Network");
        rejected(Reason::NoFreeAddress, text)
    })
}

/// Returns a free /64 of a range. The first that is looked at is derived from the network's name, so that a network that lost its status in
/// a restore nearly always gets the one it had.
fn free_in(range: Ipv6Net, name: &str, is_free: impl Fn(Ipv6Net) -> bool) -> Option<Ipv6Net> {
    let digest = Sha256::digest(name.as_bytes());
    let hash = u64::from(u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]]));
    let count = 1u64 << (64 - u32::from(range.prefix_len()).clamp(32, 64));
    (0..count.min(MOST_TRIED)).map(|n| numbered(range, (hash + n) % count)).find(|prefix| is_free(*prefix))
}

fn numbered(range: Ipv6Net, number: u64) -> Ipv6Net {
    let network = u128::from(range.network()) | (u128::from(number) << 64);
    Ipv6Net::new(Ipv6Addr::from(network), 64).expect("64 is a length of prefixes")
}

fn is_of_wireguard(prefix: Ipv6Net) -> bool {
    let (own, _) = WIREGUARD_PREFIX;
    prefix.network().octets().starts_with(&own)
}

#[cfg(test)]
mod tests {
    use berth_api::{IPPool, IPPoolSpec, NetworkSpec, NetworkStatus};

    use super::*;

    fn put(cache: &mut Cache, object: impl Into<crate::object::Object>) {
        cache.put(object, tokio::time::Instant::now());
    }

    fn pool(prefixes: &[&str]) -> IPPool {
        let network_prefixes = prefixes.iter().map(|prefix| (*prefix).to_owned()).collect();
        let mut pool = IPPool::new("p", IPPoolSpec { network_prefixes, ..IPPoolSpec::default() });
        pool.metadata.uid = Some("pool".into());
        pool.metadata.resource_version = Some("1".into());
        pool
    }

    fn network(name: &str, prefix: &str) -> Network {
        let ipv6 = serde_json::from_value(serde_json::json!({"pool": "p"})).expect("an object");
        let mut network = Network::new(name, NetworkSpec { ipv6: Some(ipv6), ..NetworkSpec::default() });
        network.metadata.namespace = Some("ns".into());
        network.metadata.uid = Some(name.to_owned());
        network.metadata.resource_version = Some("1".into());
        if !prefix.is_empty() {
            let ipv6_cidr = prefix.to_owned();
            network.status = Some(NetworkStatus { vni: Some(7), ipv6_cidr, ..NetworkStatus::default() });
        }
        network
    }

    #[test]
    fn networks_take_different_prefixes_of_a_pool_until_there_are_none() {
        let mut cache = Cache::new(std::time::Duration::from_secs(40));
        let waits = pick(&cache, &network("a", "")).expect_err("there is no pool");
        assert_eq!(waits.reason, Reason::WaitingForPool);
        put(&mut cache, pool(&["2001:db8:100::/62"]));
        let mut given = BTreeSet::new();
        for name in ["a", "b", "c", "d"] {
            let prefix = pick(&cache, &network(name, "")).expect("one is free").expect("it has none");
            assert!(prefix.to_string().starts_with("2001:db8:100:") && given.insert(prefix), "{prefix}");
            put(&mut cache, network(name, &prefix.to_string()));
        }
        let exhausted = pick(&cache, &network("e", "")).expect_err("none is free");
        assert_eq!(exhausted.reason, Reason::NoFreeAddress);
        let mut observed = Observed::default();
        give(&cache, &network("e", ""), &mut observed);
        assert!(observed.rejection.is_some_and(|why| why.text.contains("no free /64")));
        assert_eq!(pick(&cache, &network("a", "2001:db8:100::/64")).expect("it has one"), None);
    }

    #[test]
    fn a_prefix_follows_from_the_name_and_is_of_the_range() {
        let range: Ipv6Net = "2001:db8:100::/56".parse().expect("a range");
        let first = free_in(range, "ns/a", |_| true).expect("one is free");
        assert!(range.contains(&first) && first.prefix_len() == 64);
        assert_eq!(free_in(range, "ns/a", |_| true), Some(first));
        let next = free_in(range, "ns/a", |prefix| prefix != first).expect("another is free");
        assert!(range.contains(&next) && next != first);
        let one: Ipv6Net = "2001:db8:7::/64".parse().expect("a range");
        assert_eq!(free_in(one, "ns/a", |_| true), Some(one));
        assert_eq!(free_in(one, "ns/a", |_| false), None);
        assert!(is_of_wireguard("fd62:6572:7468:1::/64".parse().expect("a prefix")));
    }
}
