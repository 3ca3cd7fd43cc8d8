//! Ranges of an IPPool that lie over those of a Network, or of an older IPPool. None of such a pool's addresses is given out: the other
//! object had them first.

use std::net::IpAddr;

use berth_api::{AddressRange, IPPool, Network};
use kube::ResourceExt;

use crate::{cache::Cache, key::Key};

/// The first and the last address of a range.
type Bounds = (IpAddr, IpAddr);

/// A range of a pool that lies over that of another object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Overlap {
    /// The other object.
    pub(super) with: Key,
    /// Message for the administrator: the obstacle and the remedy.
    pub(super) text: String,
}

/// Returns a range of the pool that lies over that of another object; always the same one of several.
pub(crate) fn find(cache: &Cache, pool: &IPPool) -> Option<Overlap> {
    with_network(cache, pool).or_else(|| with_pool(cache, pool))
}

/// The ranges of prefixes do not count: Networks have theirs from them, and one that is taken is passed.
fn with_network(cache: &Cache, pool: &IPPool) -> Option<Overlap> {
    let ranges = addresses(pool);
    let over = |network: &Network| {
        let mut theirs = ranges_of(network).into_iter().flatten();
        theirs.find_map(|other| {
            let own = ranges.iter().find(|own| is_over(own.1, other))?;
            Some((own.0, other))
        })
    };
    let found = cache.tables.networks.all().filter_map(|network| Some((network, over(network)?)));
    let (network, (own, other)) =
        found.min_by_key(|(network, _)| (network.namespace(), network.name_any()))?;
    let name = format!("{}/{}", network.namespace().unwrap_or_default(), network.name_any());
    let text = format!(
        "its range {own} lies over {} of Network {name}, so that none of its addresses is given out: take the range out of the IPPool, \
         or delete the Network",
        text_of(network, other)
    );
    Some(Overlap { with: Key::of(network.as_ref()), text })
}

/// Ranges of prefixes do not count here either: a Network gets none in which an IPPool has addresses, nor one that another Network has.
fn with_pool(cache: &Cache, pool: &IPPool) -> Option<Overlap> {
    let ranges = addresses(pool);
    let over = |other: &IPPool| {
        let theirs = addresses(other);
        let mut all = ranges.iter().flat_map(|own| theirs.iter().map(move |other| (own, other)));
        let found = all.find(|(own, other)| is_over(own.1, other.1));
        found.map(|(own, other)| (own.0, other.0.to_owned()))
    };
    let older = cache.tables.ip_pools.all().filter(|other| is_older(other, pool));
    let found = older.filter_map(|other| Some((other, over(other)?)));
    let (other, (own, theirs)) = found.min_by_key(|(other, _)| other.name_any())?;
    let text = format!(
        "its range {own} lies over {theirs} of IPPool {}, which is older, so that none of its addresses is given out: take the range out \
         of one of the two",
        other.name_any()
    );
    Some(Overlap { with: Key::of(other.as_ref()), text })
}

fn is_older(other: &IPPool, pool: &IPPool) -> bool {
    let age = |pool: &IPPool| (pool.creation_timestamp(), pool.name_any());
    age(other) < age(pool)
}

fn addresses(pool: &IPPool) -> Vec<(&str, Bounds)> {
    let bounds = |text: &String| AddressRange::parse(text).ok().map(AddressRange::bounds);
    pool.spec.cidrs.iter().filter_map(|text| Some((text.as_str(), bounds(text)?))).collect()
}

/// Returns the addresses of each family that an accepted Network gives to its VMs. Of a network of the hosts these are the declared ranges
/// only: others of its addresses may be public.
fn ranges_of(network: &Network) -> [Option<Bounds>; 2] {
    if network.status.as_ref().is_none_or(|status| status.vni.is_none()) {
        return [None, None];
    }
    if network.host_bridge().is_some() {
        let is_declared = network.spec.ipv4.as_ref().is_some_and(|ipv4| ipv4.range.is_some());
        let ipv4 = network.pool().filter(|_| is_declared);
        return [
            ipv4.map(|(first, last)| (IpAddr::V4(first), IpAddr::V4(last))),
            network.ipv6_range().map(|(first, last)| (IpAddr::V6(first), IpAddr::V6(last))),
        ];
    }
    [
        network.range().map(|range| (IpAddr::V4(range.network()), IpAddr::V4(range.broadcast()))),
        network.ipv6_prefix().map(|prefix| (IpAddr::V6(prefix.network()), IpAddr::V6(prefix.broadcast()))),
    ]
}

/// The range of these bounds as the Network declares it.
fn text_of(network: &Network, (first, last): Bounds) -> String {
    let declared = match first {
        _ if network.host_bridge().is_some() => None,
        IpAddr::V4(_) => network.range().map(|range| range.to_string()),
        IpAddr::V6(_) => network.ipv6_prefix().map(|prefix| prefix.to_string()),
    };
    declared.unwrap_or_else(|| format!("{first}-{last}"))
}

fn is_over(a: Bounds, b: Bounds) -> bool {
    a.0.is_ipv4() == b.0.is_ipv4() && a.0 <= b.1 && b.0 <= a.1
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json};
    use tokio::time::Instant;

    use super::*;

    fn pool(name: &str, created: &str, spec: &Value) -> IPPool {
        let pool = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "IPPool", "spec": spec,
            "metadata": {"name": name, "uid": name, "resourceVersion": "1", "creationTimestamp": created}});
        serde_json::from_value(pool).expect("an IPPool")
    }

    fn network(name: &str, spec: &Value, is_accepted: bool) -> Network {
        let mut network = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "Network", "spec": spec,
            "metadata": {"name": name, "namespace": "ns", "uid": name, "resourceVersion": "1"}});
        if is_accepted {
            network["status"] = json!({"observedGeneration": 1, "vni": 7});
        }
        serde_json::from_value(network).expect("a Network")
    }

    fn with(networks: Vec<Network>, pools: &[IPPool]) -> Cache {
        let mut cache = Cache::new(Duration::from_secs(40));
        for network in networks {
            cache.put(network, Instant::now());
        }
        for pool in pools {
            cache.put(pool.clone(), Instant::now());
        }
        cache
    }

    #[test]
    fn a_range_over_an_accepted_network_is_found_and_one_over_a_network_that_is_not_accepted_is_not() {
        let lan = json!({"cidr": "10.77.0.0/16", "ipv6CIDR": "fd00:60::/64"});
        let of = |cidr: &str, is_accepted: bool| {
            let pool = pool("p", "2026-01-01T00:00:00Z", &json!({"cidrs": [cidr]}));
            find(&with(vec![network("lan", &lan, is_accepted)], std::slice::from_ref(&pool)), &pool)
        };
        for (cidr, theirs) in
            [("10.77.3.0/28", "10.77.0.0/16"), ("fd00:60::1:0-fd00:60::1:f", "fd00:60::/64")]
        {
            let overlap = of(cidr, true).expect(cidr);
            let expected = format!("its range {cidr} lies over {theirs} of Network ns/lan,");
            assert!(overlap.text.starts_with(&expected), "{}", overlap.text);
            assert_eq!(&*overlap.with.name, "lan");
            assert_eq!(of(cidr, false), None);
        }
        assert_eq!(of("10.78.0.0/24", true), None);
    }

    #[test]
    fn a_networks_own_prefix_in_a_range_of_prefixes_is_none() {
        let lan = network("lan", &json!({"ipv6CIDR": "2001:db8:100:3::/64"}), true);
        let pool = pool("p", "2026-01-01T00:00:00Z", &json!({"networkPrefixes": ["2001:db8:100::/56"]}));
        assert_eq!(find(&with(vec![lan], std::slice::from_ref(&pool)), &pool), None);
    }

    #[test]
    fn of_a_bridge_of_the_hosts_the_declared_range_counts_only() {
        let bridge = |ipv4: &Value| {
            let spec =
                json!({"type": "Bridge", "cidr": "192.0.2.0/24", "bridge": {"name": "vmbr0"}, "ipv4": ipv4});
            network("lan", &spec, true)
        };
        let pool = pool("p", "2026-01-01T00:00:00Z", &json!({"mode": "l2", "cidrs": ["192.0.2.64/27"]}));
        let found = |ipv4: &Value| find(&with(vec![bridge(ipv4)], std::slice::from_ref(&pool)), &pool);
        assert_eq!(found(&json!({})), None, "public addresses are of that network");
        assert_eq!(found(&json!({"range": "192.0.2.100-192.0.2.199"})), None);
        let text = found(&json!({"range": "192.0.2.50-192.0.2.99"})).expect("it is given to VMs").text;
        assert!(text.contains("192.0.2.50-192.0.2.99 of Network ns/lan"), "{text}");
    }

    #[test]
    fn of_two_pools_with_a_common_range_the_younger_one_gives_out_nothing() {
        let old = pool("z", "2026-01-01T00:00:00Z", &json!({"cidrs": ["192.0.2.0/27", "2001:db8::/112"]}));
        for (spec, own) in [
            (json!({"cidrs": ["198.51.100.0/28", "192.0.2.30-192.0.2.40"]}), "192.0.2.30-192.0.2.40"),
            (json!({"cidrs": ["2001:db8::/64"]}), "2001:db8::/64"),
        ] {
            let young = pool("a", "2026-02-01T00:00:00Z", &spec);
            let cache = with(Vec::new(), &[old.clone(), young.clone()]);
            let text = find(&cache, &young).expect(own).text;
            assert!(text.starts_with(&format!("its range {own} lies over ")), "{text}");
            assert!(text.contains("of IPPool z, which is older"), "{text}");
            assert_eq!(find(&cache, &old), None, "it had them first");
        }
        let apart = pool("a", "2026-02-01T00:00:00Z", &json!({"cidrs": ["192.0.2.32/27"]}));
        assert_eq!(find(&with(Vec::new(), &[old, apart.clone()]), &apart), None);
    }

    #[test]
    fn prefixes_for_networks_beside_the_addresses_of_another_pool_are_given_out_as_before() {
        let prefixes = json!({"networkPrefixes": ["2001:db8:100::/56"]});
        let pools = [
            pool("addresses", "2026-02-01T00:00:00Z", &json!({"cidrs": ["2001:db8:100:7::/64"]})),
            pool("older", "2026-01-01T00:00:00Z", &prefixes),
            pool("younger", "2026-03-01T00:00:00Z", &prefixes),
        ];
        let cache = with(Vec::new(), &pools);
        for pool in &pools {
            assert_eq!(find(&cache, pool), None);
        }
    }
}
