//! The lowest free public address or prefix, and whether a declared one is free, according to the cache.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv6Addr},
};

use berth_api::{IPPool, IPPoolMode, PublicIP, Reason};
use ipnet::{IpNet, Ipv6Net};
use kube::ResourceExt;

use crate::{cache::Cache, key::Key};

/// Whether the address or prefix is free according to the control plane.
pub(super) fn is_free(cache: &Cache, ip: &PublicIP, range: IpNet) -> bool {
    let free = cache.index.public_ip_within(range).is_none_or(|holder| *holder == Key::of(ip));
    // A host would be cut off if its own address led to a VM.
    free && match range {
        IpNet::V6(prefix) if prefix.prefix_len() < 128 => cache.underlay.last_ipv6_within(prefix).is_none(),
        _ => cache.underlay.host_at(range.addr()).is_none(),
    }
}

/// Returns the lowest free IPv6 address of the pool. A taken prefix is passed at once.
pub(super) fn lowest_address(cache: &Cache, pool: &IPPool, held: &BTreeSet<IpNet>) -> Option<IpAddr> {
    let with_ends = pool.spec.use_all_addresses;
    let taken = |address| taken_until(cache, held, address);
    pool.spec.ranges().find_map(|range| range.lowest_address(with_ends, taken)).map(IpAddr::V6)
}

/// Returns the last of the taken addresses from one in this prefix on. None: the prefix is free.
fn taken_until(cache: &Cache, held: &BTreeSet<IpNet>, prefix: Ipv6Net) -> Option<Ipv6Addr> {
    let allocated = cache.index.public_until(prefix);
    allocated.or_else(|| cache.underlay.last_ipv6_within(prefix)).or_else(|| held_until(held, prefix))
}

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
    if let Some(least) = pool.spec.min_prefix_length.filter(|least| i64::from(length) < *least) {
        return Err((Reason::InvalidSpec, too_short(pool, length, least)));
    }
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
            "prefixLength is of IPv6, and the cidrs of IPPool {name} are not: create another PublicIP that names an IPPool with IPv6 \
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

fn too_short(pool: &IPPool, length: u8, least: i64) -> String {
    let name = pool.name_any();
    let other = match least {
        ..128 => format!("create another PublicIP with a prefixLength of {least} to 127"),
        _ => "create another PublicIP without prefixLength".to_owned(),
    };
    format!(
        "prefixLength {length} is less than the minPrefixLength {least} of IPPool {name}: {other}, or name another IPPool in it"
    )
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
    let taken = |prefix| taken_until(cache, held, prefix);
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
    use super::*;

    #[test]
    fn a_held_prefix_is_passed() {
        let held = ["2001:db8::/80", "192.0.2.7/32", "2001:db8:0:0:1::5/128"];
        let held: BTreeSet<IpNet> = held.iter().map(|range| range.parse().expect("a range")).collect();
        let until =
            |prefix: &str| held_until(&held, prefix.parse().expect("a prefix")).map(|a| a.to_string());
        assert_eq!(until("2001:db8::/84").as_deref(), Some("2001:db8::ffff:ffff:ffff"));
        assert_eq!(until("2001:db8:0:0:1::/80").as_deref(), Some("2001:db8::1:0:0:5"));
        assert_eq!(until("2001:db8:0:0:2::/80"), None);
    }
}
