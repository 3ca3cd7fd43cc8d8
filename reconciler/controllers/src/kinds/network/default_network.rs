//! The Network `default` of a namespace. The controllers create it for the first VM there that names no other
//! network, unless the administrator shares one of that name in `berth-shared`: so the VMs of two namespaces have
//! no network in common until one is declared.

use std::{net::Ipv4Addr, sync::Arc};

use berth_api::{DEFAULT_NAME, IPPool, Network, NetworkSpec, VM};
use ipnet::Ipv4Net;
use kube::ResourceExt;
use sha2::{Digest, Sha256};

use crate::{
    cache::Cache,
    config::{Config, TenantNetworks},
    kinds::network::observe::taken_ranges,
};

/// The number of ranges tried before the search for a free one gives up.
const MAX_PROBES: u32 = 65_536;
/// Marks the Network as managed by the controllers.
const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "berth");

/// Whether the VM waits for the default network of its namespace, which does not exist.
pub(crate) fn is_missing(cache: &Cache, vm: &VM) -> bool {
    let namespace = vm.namespace().unwrap_or_default();
    let names_it = vm.spec.network_interfaces.iter().any(|i| i.network.as_str() == DEFAULT_NAME);
    names_it
        && vm.metadata.deletion_timestamp.is_none()
        && cache.tables.networks.lookup(&namespace, DEFAULT_NAME).is_none()
}

/// Returns the Network to create in a namespace. `None`: no range is free.
pub(crate) fn of_namespace(cache: &Cache, config: &Config, namespace: &str) -> Option<Network> {
    let cidr = free_range(cache, &config.tenants, namespace)?.to_string();
    let mut network = Network::new(DEFAULT_NAME, NetworkSpec { cidr, ..NetworkSpec::default() });
    network.metadata.namespace = Some(namespace.to_owned());
    let (label, value) = MANAGED_BY;
    network.labels_mut().insert(label.to_owned(), value.to_owned());
    Some(network)
}

/// Returns a range that no Network, no IPPool and no host uses. The start of the search is derived from the namespace's name,
/// so that a namespace that lost its Network, as after a restore, gets the same range again, which its guests still
/// use.
fn free_range(cache: &Cache, tenants: &TenantNetworks, namespace: &str) -> Option<Ipv4Net> {
    let taken = taken_ranges(cache, tenants);
    let is_free = |range: &Ipv4Net| {
        let overlaps = |other: &Ipv4Net| other.contains(range) || range.contains(other);
        let is_public = |pool: &Arc<IPPool>| pool.spec.ranges().any(|of| of.overlaps((*range).into()));
        !cache.underlay.uses(*range)
            && !taken.iter().any(overlaps)
            && !cache.tables.ip_pools.all().any(is_public)
    };
    candidates(tenants, namespace).find(is_free)
}

/// Returns the ranges a namespace may get, in the order in which they are tried.
fn candidates(tenants: &TenantNetworks, namespace: &str) -> impl Iterator<Item = Ipv4Net> + use<> {
    let TenantNetworks { default_range, default_prefix, .. } = *tenants;
    let bits = u32::from(default_prefix.saturating_sub(default_range.prefix_len()));
    let count = 1_u32.checked_shl(bits).unwrap_or(u32::MAX);
    let digest = Sha256::digest(namespace.as_bytes());
    let first = u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]]) % count;
    let base = u32::from(default_range.network());
    let size = u32::from(32 - default_prefix.min(32));
    (0..count.min(MAX_PROBES)).filter_map(move |n| {
        let slot = (u64::from(first) + u64::from(n)) % u64::from(count);
        let address = u64::from(base) + (slot << size);
        Ipv4Net::new(Ipv4Addr::from(u32::try_from(address).ok()?), default_prefix).ok()
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use berth_api::NetworkStatus;
    use tokio::time::Instant;

    use super::*;

    fn cache(networks: &[(&str, &str, &str)]) -> Cache {
        let mut cache = Cache::new(Duration::from_secs(40));
        for (n, (namespace, name, cidr)) in networks.iter().enumerate() {
            let spec = NetworkSpec { cidr: (*cidr).to_owned(), ..NetworkSpec::default() };
            let mut network = Network::new(name, spec);
            network.metadata.namespace = Some((*namespace).to_owned());
            network.metadata.uid = Some(n.to_string());
            network.metadata.resource_version = Some((n + 1).to_string());
            let vni = i64::try_from(n).ok().map(|n| n + 1);
            network.status = Some(NetworkStatus { vni, ..NetworkStatus::default() });
            cache.put(network, Instant::now());
        }
        cache
    }

    fn tenants(range: &str, prefix: u8) -> TenantNetworks {
        TenantNetworks {
            default_range: range.parse().expect("a range"),
            default_prefix: prefix,
            ..TenantNetworks::default()
        }
    }

    #[test]
    fn each_namespace_gets_a_range_of_its_own_that_follows_from_its_name() {
        let tenants = tenants("10.64.0.0/10", 20);
        let alice = free_range(&cache(&[]), &tenants, "alice").expect("all are free");
        assert!(tenants.is_default_range(alice), "{alice}");
        assert_eq!(free_range(&cache(&[]), &tenants, "alice"), Some(alice), "the same after a restore");
        let bob = free_range(&cache(&[]), &tenants, "bob").expect("all are free");
        assert_ne!(alice, bob);
        let taken = cache(&[("mallory", "mine", &alice.to_string())]);
        let other = free_range(&taken, &tenants, "alice").expect("others are free");
        assert!(other != alice && tenants.is_default_range(other), "{other}");
        let spec = berth_api::IPPoolSpec { cidrs: vec![alice.to_string()], ..Default::default() };
        let mut public = IPPool::new("public", spec);
        public.metadata.resource_version = Some("1".to_owned());
        let mut with_pool = cache(&[]);
        with_pool.put(public, Instant::now());
        assert_eq!(free_range(&with_pool, &tenants, "alice"), Some(other), "nor that of an IPPool");
    }

    #[test]
    fn every_range_is_tried_before_there_is_none() {
        let tenants = tenants("10.77.0.0/16", 18);
        let slots = ["10.77.0.0/18", "10.77.64.0/18", "10.77.128.0/18", "10.77.192.0/18"];
        let mut all: Vec<String> = candidates(&tenants, "ns").map(|range| range.to_string()).collect();
        all.sort_by_key(|range| slots.iter().position(|slot| slot == range));
        assert_eq!(all, slots);
        for free in slots {
            let others = slots.iter().filter(|slot| **slot != free);
            let networks: Vec<(&str, &str, &str)> = others.map(|slot| ("other", *slot, *slot)).collect();
            let range = free_range(&cache(&networks), &tenants, "ns");
            assert_eq!(range.map(|range| range.to_string()).as_deref(), Some(free));
        }
        assert_eq!(free_range(&cache(&[("other", "wide", "10.77.0.0/16")]), &tenants, "ns"), None);
        let whole = candidates(&self::tenants("10.0.0.0/8", 8), "ns").collect::<Vec<_>>();
        assert_eq!(whole, ["10.0.0.0/8".parse::<Ipv4Net>().expect("a range")]);
    }
}
