//! Reads the inputs of the decision from the cache.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use berth_api::{IPPool, IPPoolMode, ObjectUse, PublicIP, Reason, UseKind};
use ipnet::Ipv4Net;
use kube::ResourceExt;

use super::balancing::{self, Balancing};
use super::prefix::{self, is_free};
use crate::{
    cache::Cache,
    key::Key,
    kinds::{
        ip_pool::overlap,
        quota::{self, Excess},
    },
    placement_hold::{PlacementHold, placement_hold},
};

#[derive(Debug)]
pub(super) struct Observed {
    /// The address it gets, or the reason for none.
    pub(super) address: Result<IpAddr, (Reason, String)>,
    /// The quota that it is beyond.
    pub(super) over_quota: Option<Excess>,
    /// How its pool makes addresses reachable.
    pub(super) mode: Option<IPPoolMode>,
    /// The destination of its ports; None without ports.
    pub(super) balancing: Option<Balancing>,
    /// A VM that names it, although it has ports.
    pub(super) misnamed_by: Option<String>,
    /// The VM that uses it as a whole, with the VM's host.
    pub(super) user: Option<(ObjectUse, Option<String>)>,
    /// The machine that also answers for the address on that host's segment.
    pub(super) conflict: Option<Conflict>,
    /// Whether addresses are reserved for guests on hosts in a recovery, which end with that.
    pub(super) has_reserved: bool,
    /// The reason why it can get no address yet.
    pub(super) unknown: Option<PlacementHold>,
}

/// Another machine that has the address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Conflict {
    pub(super) host: String,
    pub(super) mac: String,
}

pub(super) fn observe(cache: &Cache, ip: &PublicIP) -> Observed {
    let pool = cache.tables.ip_pools.cluster(ip.spec.pool.as_str());
    let mine = ip.status.as_ref().and_then(|s| s.address.as_ref()).and_then(|a| a.parse().ok());
    // An address that leads to a guest is reserved, even while the guest's VM is not bound there.
    let held = if mine.is_none() { cache.claims.public_addresses() } else { BTreeSet::new() };
    let is_free = |address: IpAddr| {
        is_free(cache, ip, address.into())
            && !held.iter().any(|range| range.contains(&address))
            && pool.is_none_or(|pool| segment_with_end(cache, pool, address).is_none())
    };
    let address = match (mine, pool) {
        (Some(mine), _) => Ok(mine),
        (None, Some(pool)) if pool.metadata.deletion_timestamp.is_some() => {
            Err((Reason::WaitingForPool, format!("IPPool {} is being deleted", ip.spec.pool)))
        }
        // The message does not name the other object to a tenant.
        (None, Some(pool)) if overlap::find(cache, pool).is_some() => {
            let text = format!(
                "IPPool {} gives out no addresses, as its ranges lie over those of another object: its condition Ready names it to the \
                 administrator, or name another IPPool",
                ip.spec.pool
            );
            Err((Reason::WaitingForPool, text))
        }
        (None, Some(pool)) if ip.spec.prefix_length.is_some() => prefix::pick(cache, ip, pool, &held),
        (None, Some(pool)) if pool.spec.is_ipv6() && ip.spec.address.is_none() => {
            prefix::lowest_address(cache, pool, &held).ok_or_else(|| no_free_address(pool))
        }
        (None, Some(pool)) => pick(pool, ip.spec.address.as_deref(), is_free)
            .map_err(|why| end_of_segment(cache, pool, ip).unwrap_or(why)),
        (None, None) => Err((Reason::WaitingForPool, format!("IPPool {} does not exist", ip.spec.pool))),
    };
    let over_quota = if mine.is_none() { quota::excess(cache, &Key::of(ip)) } else { None };
    let address = match &over_quota {
        // The reason for no address comes first.
        Some(excess) if address.is_ok() => Err((Reason::QuotaExceeded, excess.text.clone())),
        _ => address,
    };
    let balancing = balancing::observe(cache, ip, address.as_ref().ok().copied());
    let named_by = user(cache, ip);
    let misnamed_by = named_by.as_ref().filter(|_| balancing.is_some()).map(|(user, _)| user.vm.clone());
    let user = named_by.filter(|_| balancing.is_none());
    let host = match &balancing {
        Some(balancing) => balancing.host.clone(),
        None => user.as_ref().and_then(|(_, host)| host.clone()),
    };
    let conflict = host.zip(address.as_ref().ok()).and_then(|(host, address)| {
        let address = address.to_string();
        let status = cache.tables.hosts.cluster(&host)?.status.as_ref()?;
        let found = status.address_conflicts.iter().find(|conflict| conflict.address == address)?;
        Some(Conflict { mac: found.mac.clone(), host })
    });
    let unknown =
        if mine.is_none() { placement_hold(cache, ip.creation_timestamp().map(|made| made.0)) } else { None };
    Observed {
        address,
        over_quota,
        mode: pool.map(|pool| pool.spec.mode),
        balancing,
        misnamed_by,
        user,
        conflict,
        has_reserved: !held.is_empty(),
        unknown,
    }
}

/// Returns a host, and the segment that it is on, of which this address of an `l2` pool is the network's or the broadcast address.
fn segment_with_end<'a>(cache: &'a Cache, pool: &IPPool, address: IpAddr) -> Option<(&'a str, Ipv4Net)> {
    match address {
        IpAddr::V4(address) if pool.spec.mode == IPPoolMode::L2 => cache.underlay.segment_with_end(address),
        _ => None,
    }
}

/// Returns the refusal of a declared address that is the network's or the broadcast address of a segment.
fn end_of_segment(cache: &Cache, pool: &IPPool, ip: &PublicIP) -> Option<(Reason, String)> {
    let address: IpAddr = ip.spec.address.as_ref()?.parse().ok()?;
    let (host, segment) = segment_with_end(cache, pool, address).filter(|_| pool.spec.is_usable(address))?;
    let name = if segment.broadcast() == address { "broadcast" } else { "network" };
    let text = format!(
        "address {address} of IPPool {} is the {name} address of {segment}, the segment that host {host} is on, and is not given out: \
         choose another",
        pool.name_any()
    );
    Some((Reason::AddressUnavailable, text))
}

pub(super) fn pick(
    pool: &IPPool,
    wanted: Option<&str>,
    is_free: impl Fn(IpAddr) -> bool,
) -> Result<IpAddr, (Reason, String)> {
    let name = pool.name_any();
    let with_ends = pool.spec.use_all_addresses;
    let Some(wanted) = wanted else {
        // No more are looked at than are taken.
        let free = pool.spec.ranges().flat_map(|range| range.addresses(with_ends)).find(|a| is_free(*a));
        return free.ok_or_else(|| no_free_address(pool));
    };
    let unavailable =
        |why: &str| (Reason::AddressUnavailable, format!("address {wanted} {why} IPPool {name}"));
    let address: IpAddr = wanted.parse().map_err(|_| unavailable("is no address of"))?;
    if !pool.spec.ranges().any(|range| range.contains(address)) {
        return Err(unavailable("is not in"));
    }
    if !pool.spec.is_usable(address) {
        let advice = if pool.spec.ranges().any(|range| range.is_usable(address, true)) {
            "choose another, or set useAllAddresses on the IPPool"
        } else {
            "it is the address of the routers of its /64: choose another"
        };
        let text = format!(
            "address {wanted} is the first or last of its range in IPPool {name}, and these are not given out: {advice}"
        );
        return Err((Reason::AddressUnavailable, text));
    }
    if is_free(address) { Ok(address) } else { Err(unavailable("is taken in")) }
}

fn no_free_address(pool: &IPPool) -> (Reason, String) {
    let (name, ranges) = (pool.name_any(), pool.spec.cidrs.join(", "));
    let text = format!("no address of IPPool {name} ({ranges}) is free: delete a PublicIP or add a range");
    (Reason::NoFreeAddress, text)
}

impl Conflict {
    /// Message for the user: the address is kept, and leads nowhere.
    pub(super) fn text(&self, address: IpAddr) -> String {
        let Self { host, mac } = self;
        format!(
            "{mac} answers for {address} on the segment of host {host}, so that the address is not taken there; it is asked for \
             again every few seconds: take it away from that machine, or out of its IPPool's ranges"
        )
    }
}

/// Returns the VM that uses the address: the current user while it still names the address, else the oldest that
/// does.
pub(super) fn user(cache: &Cache, ip: &PublicIP) -> Option<(ObjectUse, Option<String>)> {
    let vms: Vec<_> = cache
        .index
        .vms_with_public_ip(&Key::of(ip))
        .iter()
        .filter_map(|key| cache.tables.vms.get(key))
        .cloned()
        .collect();
    let current = ip.status.as_ref().and_then(|s| s.used_by.first()).map(|u| u.vm_uid.clone());
    let holds = |vm: &&Arc<berth_api::VM>| vm.uid() == current && current.is_some();
    let first = || vms.iter().min_by_key(|vm| (vm.creation_timestamp(), vm.uid()));
    let is_bound = |vm: &&Arc<berth_api::VM>| cache.is_bound(&Key::of(vm.as_ref()));
    let vm = match ip.metadata.deletion_timestamp {
        // A deleted PublicIP is held by the bound VM that uses it, and not given to another.
        Some(_) => vms.iter().find(holds).filter(is_bound),
        None => vms.iter().find(holds).or_else(first),
    }?;
    let usage = ObjectUse {
        use_kind: UseKind::Address,
        vm: vm.name_any(),
        vm_uid: vm.uid().unwrap_or_default(),
        attachment: None,
    };
    Some((usage, vm.status.as_ref().and_then(|s| s.binding.as_ref()).map(|b| b.host.clone())))
}
