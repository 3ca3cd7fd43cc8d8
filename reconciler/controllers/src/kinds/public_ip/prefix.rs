//! The choice of a public prefix. Pure, but for the cache.

use std::{collections::BTreeSet, net::IpAddr, net::Ipv6Addr};

use berth_api::{IPPool, IPPoolMode, PublicIP, Reason};
use ipnet::{IpNet, Ipv6Net};
use kube::ResourceExt;

use super::observe::is_free;
use crate::cache::Cache;

/// Returns the first address of the prefix that the PublicIP gets: the declared one, or the lowest free one. `held`: what leads to guests
/// whose VMs are not bound there.
pub(super) fn pick(
    cache: &Cache,
    ip: &PublicIP,
    pool: &IPPool,
    held: &BTreeSet<IpNet>,
) -> Result<IpAddr, (Reason, String)> {
    let length = ip.spec.prefix_length.unwrap_or_default();
    if let Some(why) = unsuitable(pool) {
        return Err((Reason::InvalidSpec, why));
    }
    let Some(length) = u8::try_from(length).ok().filter(|length| (64..=127).contains(length)) else {
        let text = format!("prefixLength {length} is not of 64 to 127: create another PublicIP");
        return Err((Reason::InvalidSpec, text));
    };
    match ip.spec.address.as_deref() {
        Some(wanted) => declared(cache, ip, pool, wanted, held),
        None => lowest(cache, pool, length, held),
    }
}

/// Returns why a pool has no prefixes.
fn unsuitable(pool: &IPPool) -> Option<String> {
    let name = pool.name_any();
    if !pool.spec.is_ipv6() {
        return Some(format!(
            "prefixLength is of IPv6, and the ranges of IPPool {name} are not: create another PublicIP that names an IPPool with IPv6 \
             addresses, or one without prefixLength"
        ));
    }
    (pool.spec.mode == IPPoolMode::L2).then(|| {
        format!(
            "IPPool {name} has the mode l2, in which hosts answer neighbour solicitations for single addresses only: create another \
             PublicIP with prefixLength that names an IPPool with the mode local, whose ranges are routed to the hosts, or one without \
             prefixLength"
        )
    })
}

fn declared(
    cache: &Cache,
    ip: &PublicIP,
    pool: &IPPool,
    wanted: &str,
    held: &BTreeSet<IpNet>,
) -> Result<IpAddr, (Reason, String)> {
    let length = ip.spec.prefix_length.unwrap_or_default();
    let unavailable = |why: &str| {
        let text = format!("prefix {wanted}/{length} {why} IPPool {}", pool.name_any());
        (Reason::AddressUnavailable, text)
    };
    let prefix = wanted.parse().ok().and_then(|first| ip.spec.range_at(first));
    let prefix = prefix.ok_or_else(|| unavailable("is no prefix of that length of"))?;
    if !pool.spec.ranges().any(|range| range.contains_prefix(prefix)) {
        return Err(unavailable("is not in a range of"));
    }
    let is_held = held.iter().any(|range| range.contains(&prefix) || prefix.contains(range));
    if is_held || !is_free(cache, ip, prefix) {
        return Err(unavailable("has addresses that are taken in"));
    }
    Ok(prefix.addr())
}

fn lowest(
    cache: &Cache,
    pool: &IPPool,
    length: u8,
    held: &BTreeSet<IpNet>,
) -> Result<IpAddr, (Reason, String)> {
    let taken = |prefix: Ipv6Net| -> Option<Ipv6Addr> {
        let allocated = cache.index.public_until(prefix);
        allocated.or_else(|| cache.underlay.last_ipv6_within(prefix)).or_else(|| held_until(held, prefix))
    };
    if let Some(prefix) = pool.spec.ranges().find_map(|range| range.lowest_prefix(length, taken)) {
        return Ok(prefix.network().into());
    }
    let (name, ranges) = (pool.name_any(), pool.spec.cidrs.join(", "));
    let fits = pool.spec.ranges().any(|range| range.lowest_prefix(length, |_| None).is_some());
    let text = match fits {
        true => format!(
            "no prefix /{length} of IPPool {name} ({ranges}) is free: delete a PublicIP, add a range, or create a PublicIP with a longer \
             prefixLength"
        ),
        false => format!(
            "no range of IPPool {name} ({ranges}) has a whole prefix /{length}: add a larger range, or create a PublicIP with a longer \
             prefixLength"
        ),
    };
    Err((Reason::NoFreeAddress, text))
}

/// Returns the last address of a held range that overlaps the prefix.
fn held_until(held: &BTreeSet<IpNet>, prefix: Ipv6Net) -> Option<Ipv6Addr> {
    let last = |range: &IpNet| match range {
        IpNet::V4(_) => None,
        IpNet::V6(range) => (range.contains(&prefix) || prefix.contains(range)).then(|| range.broadcast()),
    };
    held.iter().filter_map(last).max()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use berth_api::Host;
    use serde_json::json;
    use tokio::time::Instant;

    use super::*;
    use crate::kinds::public_ip::observe::observe;

    fn pool(mode: &str, cidrs: &[&str]) -> IPPool {
        let pool = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "IPPool",
            "metadata": {"name": "six", "uid": "six", "resourceVersion": "1"}, "spec": {"mode": mode, "cidrs": cidrs}});
        serde_json::from_value(pool).expect("an IPPool")
    }

    fn public_ip(name: &str, length: Option<u8>, address: Option<&str>) -> PublicIP {
        let mut ip = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "PublicIP",
            "metadata": {"name": name, "namespace": "ns", "uid": name, "resourceVersion": "1"}, "spec": {"pool": "six"}});
        if let Some(length) = length {
            ip["spec"]["prefixLength"] = length.into();
        }
        if let Some(address) = address {
            ip["spec"]["address"] = address.into();
        }
        serde_json::from_value(ip).expect("a PublicIP")
    }

    fn cache(pool: IPPool) -> Cache {
        let mut cache = Cache::new(Duration::from_secs(40));
        cache.put(pool, Instant::now());
        cache
    }

    /// Records that the PublicIP has the address that it gets.
    fn allocate(cache: &mut Cache, mut ip: PublicIP) -> String {
        let address = observe(cache, &ip).address.expect("one is free").to_string();
        ip.status.get_or_insert_default().address = Some(address.clone());
        cache.put(ip, Instant::now());
        address
    }

    fn refused(cache: &Cache, ip: &PublicIP) -> (Reason, String) {
        observe(cache, ip).address.expect_err("none")
    }

    #[test]
    fn prefixes_and_single_addresses_of_a_pool_never_overlap() {
        let mut cache = cache(pool("local", &["2001:db8:0:8::/64"]));
        let host = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "Host", "metadata": {"name": "h1", "uid": "h1", "resourceVersion": "1"},
            "spec": {}, "status": {"observedGeneration": 1, "ipv6Addresses": ["2001:db8:0:8:2::7"]}});
        cache.put(serde_json::from_value::<Host>(host).expect("a Host"), Instant::now());
        assert_eq!(allocate(&mut cache, public_ip("single", None, None)), "2001:db8:0:8::1");
        let first = allocate(&mut cache, public_ip("a", Some(80), None));
        assert_eq!(first, "2001:db8:0:8:1::", "the first has a single address");
        assert_eq!(allocate(&mut cache, public_ip("b", Some(80), None)), "2001:db8:0:8:3::", "a host is in 2::/80");
        assert_eq!(allocate(&mut cache, public_ip("c", Some(127), None)), "2001:db8:0:8::2");
        assert_eq!(allocate(&mut cache, public_ip("next", None, None)), "2001:db8:0:8::4");
        let single = public_ip("d", None, Some("2001:db8:0:8:1::9"));
        assert_eq!(refused(&cache, &single).0, Reason::AddressUnavailable, "it is of a prefix");
        for taken in ["2001:db8:0:8::", "2001:db8:0:8:1::", "2001:db8:0:8:2::"] {
            let (reason, text) = refused(&cache, &public_ip("d", Some(80), Some(taken)));
            assert!(reason == Reason::AddressUnavailable && text.contains("taken"), "{text}");
        }
        let free = public_ip("d", Some(80), Some("2001:db8:0:8:9::"));
        assert_eq!(allocate(&mut cache, free), "2001:db8:0:8:9::");
        let (_, text) = refused(&cache, &public_ip("e", Some(80), Some("2001:db8:0:9::")));
        assert!(text.contains("is not in a range of IPPool six"), "{text}");
    }

    #[test]
    fn a_pool_without_such_a_prefix_and_one_that_is_full_say_so() {
        let small = cache(pool("local", &["2001:db8:0:8::/112", "2001:db8:0:9::10-2001:db8:0:9::ff"]));
        let (reason, text) = refused(&small, &public_ip("a", Some(80), None));
        assert_eq!(reason, Reason::NoFreeAddress);
        assert!(text.contains("has a whole prefix /80"), "{text}");
        let mut whole = cache(pool("local", &["2001:db8:0:8::/64"]));
        assert_eq!(allocate(&mut whole, public_ip("a", Some(64), None)), "2001:db8:0:8::");
        for length in [64, 127] {
            let (reason, text) = refused(&whole, &public_ip("b", Some(length), None));
            assert!(reason == Reason::NoFreeAddress && text.contains("is free: delete"), "{text}");
        }
        assert_eq!(refused(&whole, &public_ip("b", None, None)).0, Reason::NoFreeAddress);
    }

    #[test]
    fn a_prefix_is_of_an_ipv6_pool_that_is_routed_to_the_hosts() {
        for (mode, cidr, why) in [
            ("l2", "2001:db8:0:8::/64", "has the mode l2"),
            ("local", "192.0.2.0/24", "prefixLength is of IPv6"),
        ] {
            let (reason, text) = refused(&cache(pool(mode, &[cidr])), &public_ip("a", Some(80), None));
            assert!(reason == Reason::InvalidSpec && text.contains(why), "{text}");
        }
    }

    #[test]
    fn a_held_prefix_is_passed() {
        let held = ["2001:db8::/80", "192.0.2.7/32", "2001:db8:0:0:1::5/128"];
        let held: BTreeSet<IpNet> = held.iter().map(|range| range.parse().expect("a range")).collect();
        let until = |prefix: &str| held_until(&held, prefix.parse().expect("a prefix")).map(|a| a.to_string());
        assert_eq!(until("2001:db8::/84").as_deref(), Some("2001:db8::ffff:ffff:ffff"));
        assert_eq!(until("2001:db8:0:0:1::/80").as_deref(), Some("2001:db8::1:0:0:5"));
        assert_eq!(until("2001:db8:0:0:2::/80"), None);
    }
}
