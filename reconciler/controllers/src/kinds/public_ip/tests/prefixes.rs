//! Public prefixes.

use std::time::Duration;

use berth_api::{Host, IPPool, PublicIP, Reason};
use serde_json::json;
use tokio::time::Instant;

use super::super::observe::observe;
use crate::cache::Cache;

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
    assert_eq!(
        allocate(&mut cache, public_ip("b", Some(80), None)),
        "2001:db8:0:8:3::",
        "a host is in 2::/80"
    );
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
    for (mode, cidr, why) in
        [("l2", "2001:db8:0:8::/64", "has the mode l2"), ("local", "192.0.2.0/24", "prefixLength is of IPv6")]
    {
        let (reason, text) = refused(&cache(pool(mode, &[cidr])), &public_ip("a", Some(80), None));
        assert!(reason == Reason::InvalidSpec && text.contains(why), "{text}");
    }
}

#[test]
fn a_pool_limits_the_length_of_prefixes_and_those_that_are_given_out_stay() {
    let mut limited = pool("local", &["2001:db8:0:8::/64"]);
    limited.spec.min_prefix_length = Some(80);
    let mut limited_cache = cache(limited.clone());
    for address in [None, Some("2001:db8:0:8::")] {
        let (reason, text) = refused(&limited_cache, &public_ip("a", Some(64), address));
        assert_eq!(reason, Reason::InvalidSpec);
        let expected = "prefixLength 64 is less than the minPrefixLength 80 of IPPool six: create another PublicIP with a prefixLength of 80";
        assert!(text.starts_with(expected), "{text}");
    }
    assert_eq!(allocate(&mut limited_cache, public_ip("a", Some(80), None)), "2001:db8:0:8::");
    assert_eq!(allocate(&mut limited_cache, public_ip("b", Some(127), None)), "2001:db8:0:8:1::");
    let mut given = public_ip("c", Some(64), None);
    given.status.get_or_insert_default().address = Some("2001:db8:0:8::".to_owned());
    assert!(observe(&limited_cache, &given).address.is_ok(), "it was given out before");
    limited.spec.min_prefix_length = Some(128);
    let (_, text) = refused(&cache(limited), &public_ip("a", Some(127), None));
    assert!(text.contains("create another PublicIP without prefixLength"), "{text}");
}
