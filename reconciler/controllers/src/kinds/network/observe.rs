//! Reads the inputs of the decision from the cache.

use std::{net::IpAddr, sync::Arc};

use berth_api::{
    DEFAULT_NAME, IPPool, Network, NetworkHost, NetworkName, Reason, SHARED_NAMESPACE, WireguardPeer,
    vm::InterfaceStatus, wireguard::address_of,
};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use kube::ResourceExt;
use sha2::{Digest, Sha256};

use crate::{
    cache::{Cache, ipv6_addresses_of, underlay::WIREGUARD_BYTES},
    config::TenantNetworks,
    key::Key,
    plan::Dependency,
};

use super::{has_identifier, stalled};

/// The largest identifier VXLAN has: 24 bits.
pub(super) const LAST_VNI: u32 = 0x00ff_ffff;

#[derive(Debug, Default)]
pub(super) struct Observed {
    /// The reason why it gets no identifier, or why it has been refused since.
    pub(super) rejection: Option<Rejection>,
    /// The identifier it gets if it has none.
    pub(super) vni: Option<u32>,
    /// The IPv6 prefix that it gets from its pool, if it has none.
    pub(super) prefix: Option<Ipv6Net>,
    /// The largest packet that fits between any two hosts; None while there are no two.
    pub(super) fits: Option<i64>,
    /// The hosts with VMs of it that the others reach.
    pub(super) hosts: Vec<NetworkHost>,
    /// Of an encrypted network: the hosts with VMs of it that cannot encrypt.
    pub(super) unencrypted: Vec<String>,
    /// The names of its VMs, in order; none without a domain.
    pub(super) names: Vec<NetworkName>,
    /// The addresses under which hosts forward connections to VMs on others, in order; none unless it is isolated.
    pub(super) relays: Vec<IpAddr>,
}

/// The reason why no VM that needs a network is bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rejection {
    pub(super) reason: Reason,
    /// Message for the user: the obstacle and the remedy.
    pub(super) text: String,
    pub(super) dependencies: Vec<Dependency>,
}

pub(super) fn observe(cache: &Cache, tenants: &TenantNetworks, network: &Network) -> Observed {
    let name = format!("{}/{}", network.namespace().unwrap_or_default(), network.name_any());
    let taken = |vni: u32| {
        cache.tables.networks.all().any(|other| has_vni(other, vni.into()) && is_other(other, network))
    };
    let rejection = same_identifier(cache, network)
        .or_else(|| if has_identifier(network) { None } else { not_allowed(cache, tenants, network) })
        .or_else(|| overlap(cache, tenants, network));
    let mut hosts = Vec::new();
    let mut unencrypted = Vec::new();
    for host in cache.index.hosts_of(&name) {
        match place(cache, network, host) {
            Some(place) => hosts.push(place),
            None if network.is_encrypted() => unencrypted.push(host.to_owned()),
            None => {}
        }
    }
    Observed {
        rejection,
        prefix: None,
        vni: if has_identifier(network) { None } else { pick_vni(&name, taken) },
        fits: cache
            .underlay
            .fits()
            .filter(|_| network.host_bridge().is_none())
            .map(|fits| if network.is_encrypted() { fits - WIREGUARD_BYTES } else { fits }),
        hosts,
        unencrypted,
        names: names(cache, network, &name),
        relays: if network.is_isolated() {
            cache.index.forwarding_in(&name).into_iter().collect()
        } else {
            Vec::new()
        },
    }
}

/// Returns how the other hosts of a network reach this one. An entry of an encrypted network has no address of the host itself: an older
/// agent would send unencrypted packets to it.
fn place(cache: &Cache, network: &Network, host: &str) -> Option<NetworkHost> {
    let name = host.to_owned();
    if !network.is_encrypted() {
        let address = cache.underlay.address(host)?.to_string();
        return Some(NetworkHost { name, address, wireguard: None });
    }
    let (public_key, endpoint) = cache.underlay.wireguard(host)?;
    let address = address_of(public_key)?.to_string();
    let peer = WireguardPeer { public_key: public_key.to_owned(), endpoint: endpoint.to_string() };
    Some(NetworkHost { name, address, wireguard: Some(peer) })
}

/// Returns the names of the VMs of a network (`namespace/name`). Each VM of the network's namespace has its own. In `berth-shared`,
/// where VMs of all namespaces meet, a name contains the namespace, so that no tenant gets that of another one's VM.
fn names(cache: &Cache, network: &Network, name: &str) -> Vec<NetworkName> {
    let is_unserved = network.host_bridge().is_some() && network.name_server().is_none();
    if network.spec.dns_domain.is_none() || is_unserved {
        return Vec::new();
    }
    let namespace = network.namespace().unwrap_or_default();
    let is_shared = namespace == SHARED_NAMESPACE;
    let of_vm = |vm: &Key| {
        let object = cache.tables.vms.get(vm)?;
        let called = match is_shared {
            true => format!("{}.{}", vm.name, vm.namespace()),
            false if vm.namespace() == namespace => vm.name.to_string(),
            false => return None,
        };
        let interfaces = object.status.iter().flat_map(|status| &status.interfaces);
        let has_address = |i: &InterfaceStatus| !i.address.is_empty() || !i.ipv6_address.is_empty();
        let on_it = interfaces.filter(|i| i.network == name && has_address(i));
        let named = on_it.flat_map(|interface| {
            let ipv6 = ipv6_addresses_of(object, interface);
            let first = NetworkName {
                name: called.clone(),
                address: interface.address.clone(),
                ipv6_address: ipv6.first().map(ToString::to_string).unwrap_or_default(),
            };
            let further = ipv6.into_iter().skip(1).map(|address| NetworkName {
                name: called.clone(),
                address: String::new(),
                ipv6_address: address.to_string(),
            });
            [first].into_iter().chain(further).collect::<Vec<_>>()
        });
        Some(named.collect::<Vec<_>>())
    };
    let mut names: Vec<NetworkName> = cache.index.names.vms(name).filter_map(of_vm).flatten().collect();
    names.sort();
    names
}

pub(super) fn has_vni(network: &Network, vni: i64) -> bool {
    network.status.as_ref().and_then(|s| s.vni) == Some(vni)
}

pub(super) fn is_other(other: &Network, network: &Network) -> bool {
    other.uid() != network.uid()
}

pub(super) fn is_older(other: &Network, network: &Network) -> bool {
    let age = |n: &Network| (n.creation_timestamp(), n.uid());
    age(other) < age(network)
}

/// Returns an older network with the same identifier, as a restore may cause: their bridges would be one.
pub(super) fn same_identifier(cache: &Cache, network: &Network) -> Option<Rejection> {
    let vni = network.status.as_ref()?.vni?;
    let is_it =
        |other: &&Arc<Network>| has_vni(other, vni) && is_other(other, network) && is_older(other, network);
    let other = cache.tables.networks.all().find(is_it)?;
    Some(Rejection {
        reason: Reason::IdentifierInUse,
        text: format!(
            "its identifier {vni} is that of {}: delete it and create it anew",
            called(other, network)
        ),
        dependencies: vec![Dependency::Object(Key::of(other.as_ref()))],
    })
}

/// Names another network, but only if it is in the same namespace or in `berth-shared`.
pub(super) fn called(other: &Network, network: &Network) -> String {
    let namespace = other.namespace().unwrap_or_default();
    if Some(&namespace) == network.namespace().as_ref() || namespace == SHARED_NAMESPACE {
        return format!("network {namespace}/{}", other.name_any());
    }
    "a network of another namespace".to_owned()
}

/// Returns why it is refused regardless of other networks. Those of `berth-shared` are the administrator's.
pub(super) fn not_allowed(cache: &Cache, tenants: &TenantNetworks, network: &Network) -> Option<Rejection> {
    let invalid = |text: String, dependencies| Rejection { reason: Reason::InvalidSpec, text, dependencies };
    let namespace = network.namespace().unwrap_or_default();
    if network.host_bridge().is_some() {
        // Its range is that of the hosts' network, which they use themselves.
        return not_a_bridge(network, &namespace).map(|text| invalid(text, Vec::new()));
    }
    // None: it has no IPv4.
    let range = network.range();
    let is_default =
        network.name_any() == DEFAULT_NAME && range.is_some_and(|range| tenants.is_default_range(range));
    if namespace != SHARED_NAMESPACE && !is_default {
        let TenantNetworks { ranges, shortest_prefix, per_namespace, .. } = tenants;
        if let Some(range) = range.filter(|range| range.prefix_len() < *shortest_prefix) {
            let text =
                format!("its range {range} is larger than /{shortest_prefix}: create it with a smaller one");
            return Some(invalid(text, Vec::new()));
        }
        let is_local = |prefix: Ipv6Net| prefix.network().is_unique_local();
        if let Some(prefix) = network.ipv6_prefix().filter(|prefix| !ranges.is_empty() && !is_local(*prefix))
        {
            let text = format!(
                "its prefix {prefix} is not of fc00::/7, and the administrator has limited the ranges of namespaces: create it with one of fc00::/7"
            );
            return Some(invalid(text, Vec::new()));
        }
        let is_outside = |range: &Ipv4Net| !ranges.is_empty() && !ranges.iter().any(|of| of.contains(range));
        if let Some(range) = range.filter(is_outside) {
            let listed: Vec<String> = ranges.iter().map(ToString::to_string).collect();
            let text =
                format!("its range {range} is not within {}: create it with one that is", listed.join(", "));
            return Some(invalid(text, Vec::new()));
        }
        let beside = cache.tables.networks.all().filter(|other| {
            other.namespace().as_deref() == Some(namespace.as_str()) && has_identifier(other)
        });
        let beside: Vec<Dependency> =
            beside.map(|other| Dependency::Object(Key::of(other.as_ref()))).collect();
        if beside.len() >= *per_namespace {
            let text = format!(
                "namespace {namespace} has {} networks, and may have no more: delete one",
                beside.len()
            );
            return Some(Rejection { reason: Reason::QuotaExceeded, text, dependencies: beside });
        }
    }
    if let Some(covered) =
        network.ipv6_prefix().and_then(|prefix| over_a_pool(cache, "prefix", prefix.into()))
    {
        return Some(covered);
    }
    if let Some(range) = range.filter(|range| cache.underlay.uses(*range)) {
        // The message does not name the host to a tenant.
        let text =
            format!("its range {range} overlaps one that a host uses itself: create it with another range");
        return Some(invalid(text, vec![Dependency::Hosts]));
    }
    if let Some(covered) = range.and_then(|range| over_a_pool(cache, "range", range.into())) {
        return Some(covered);
    }
    // A host that is on the prefix itself could make nothing of the network.
    let prefix = network.ipv6_prefix().filter(|prefix| cache.underlay.uses_prefix(*prefix))?;
    let text = format!("its prefix {prefix} has an address of a host: create it with another prefix");
    Some(invalid(text, vec![Dependency::Hosts]))
}

/// Refuses a prefix or range that covers public addresses: hosts would lead them to the guests of the network.
fn over_a_pool(cache: &Cache, what: &str, covering: IpNet) -> Option<Rejection> {
    let is_covered = |pool: &&Arc<IPPool>| pool.spec.ranges().any(|range| range.overlaps(covering));
    let pool = cache.tables.ip_pools.all().find(is_covered)?;
    // The message does not name the pool to a tenant.
    let text =
        format!("its {what} {covering} has public addresses of an IPPool: create it with another {what}");
    let dependencies = vec![Dependency::Object(Key::of(pool.as_ref()))];
    Some(Rejection { reason: Reason::InvalidSpec, text, dependencies })
}

/// Returns why a bridge of the hosts cannot be given to VMs. It is the administrator's to give.
fn not_a_bridge(network: &Network, namespace: &str) -> Option<String> {
    if namespace != SHARED_NAMESPACE {
        return Some(format!(
            "a Network of type Bridge belongs in namespace {SHARED_NAMESPACE}, where VMs of all namespaces find it: create it there"
        ));
    }
    let has_range = !network.is_external() && !network.spec.cidr.is_empty();
    if has_range && network.pool().is_none_or(|(first, last)| first > last) {
        let text = "its ipv4.range has no address: write the first one first, such as 192.0.2.50-192.0.2.99";
        return Some(text.to_owned());
    }
    let is_empty =
        network.ipv6_prefix().is_some() && network.ipv6_pool().is_none_or(|(first, last)| first > last);
    is_empty.then(|| {
        "its ipv6.range has no address: write the first one first, such as 2001:db8:7::1000-2001:db8:7::1fff"
            .to_owned()
    })
}

/// Whether the IPv4 ranges of two networks exclude each other. Two bridged networks may be parts of one network of the hosts, if they
/// give out other addresses.
fn share_ipv4(a: &Network, b: &Network) -> bool {
    if are_bridges(a, b) {
        return a.pool().zip(b.pool()).is_some_and(|(a, b)| a.0 <= b.1 && b.0 <= a.1);
    }
    a.range().zip(b.range()).is_some_and(|(a, b)| a.contains(&b) || b.contains(&a))
}

/// Whether the IPv6 prefixes of two networks exclude each other. All have one length, so that no other prefixes overlap.
fn share_ipv6(a: &Network, b: &Network) -> bool {
    if are_bridges(a, b) {
        return a.ipv6_pool().zip(b.ipv6_pool()).is_some_and(|(a, b)| a.0 <= b.1 && b.0 <= a.1);
    }
    a.ipv6_prefix().is_some_and(|prefix| b.ipv6_prefix() == Some(prefix))
}

fn are_bridges(a: &Network, b: &Network) -> bool {
    a.host_bridge().is_some() && b.host_bridge().is_some()
}

/// Returns a network with a range that overlaps this one's: if both are accepted, only an older one; if this one is
/// not, any accepted one, or an older one that may be accepted. A refused network blocks no other.
pub(super) fn overlap(cache: &Cache, tenants: &TenantNetworks, network: &Network) -> Option<Rejection> {
    let counts = |other: &Network| match (has_identifier(other), has_identifier(network)) {
        (true, false) => true,
        (false, true) => false,
        (true, true) => is_older(other, network),
        (false, false) => {
            let may_be = stalled(other).is_none() && not_allowed(cache, tenants, other).is_none();
            is_older(other, network) && may_be
        }
    };
    let overlaps = |other: &&Arc<Network>| {
        (share_ipv4(network, other) || share_ipv6(network, other))
            && is_other(other, network)
            && counts(other)
    };
    let other = cache.tables.networks.all().find(overlaps)?;
    let called = called(other, network);
    if share_ipv6(network, other) {
        let text = format!(
            "its ipv6CIDR {} is that of {called}: create it with another prefix{}",
            network.ipv6_prefix().map(|prefix| prefix.to_string()).unwrap_or_default(),
            if are_bridges(network, other) { ", or another ipv6.range" } else { "" }
        );
        let dependencies = vec![Dependency::Object(Key::of(other.as_ref()))];
        return Some(Rejection { reason: Reason::InvalidSpec, text, dependencies });
    }
    let range = network.range()?;
    let text = match called.starts_with("network") {
        true => format!(
            "its range {range} overlaps {} of {called}: create it with another range{}",
            other.spec.cidr,
            if are_bridges(network, other) { ", or another ipv4.range" } else { "" }
        ),
        false => format!("its range {range} overlaps that of {called}: create it with another range"),
    };
    let dependencies = vec![Dependency::Object(Key::of(other.as_ref()))];
    Some(Rejection { reason: Reason::InvalidSpec, text, dependencies })
}

/// Returns the ranges of the Networks that are accepted or about to be.
pub(crate) fn taken_ranges(cache: &Cache, tenants: &TenantNetworks) -> Vec<Ipv4Net> {
    let counts = |network: &&Arc<Network>| {
        has_identifier(network)
            || (stalled(network).is_none() && not_allowed(cache, tenants, network).is_none())
    };
    cache.tables.networks.all().filter(counts).filter_map(|network| network.spec.cidr.parse().ok()).collect()
}

/// Picks an unused identifier, 1 to 16,777,215. It is derived from the network's name, so that a network that lost
/// its status in a restore nearly always gets the one it had.
pub(super) fn pick_vni(name: &str, is_taken: impl Fn(u32) -> bool) -> Option<u32> {
    let digest = Sha256::digest(name.as_bytes());
    let first = u32::from_be_bytes([0, digest[0], digest[1], digest[2]]);
    // So many used ones in a row are no accident.
    (0..65_536).map(|n| (first + n) % LAST_VNI + 1).find(|vni| !is_taken(*vni))
}
