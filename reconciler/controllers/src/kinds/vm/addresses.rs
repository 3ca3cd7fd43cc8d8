//! Private addresses and MACs: allocated once, by the controllers, so that they are known before the guest runs.

use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use berth_api::{
    Network, VM,
    network::{Route, ipv6_at},
    vm::{ConfiguredRoute, InterfaceStatus, NetworkInterface},
};
use ipnet::Ipv6Net;
use kube::ResourceExt;

use crate::{cache::Cache, cache::index::Index, key::Key, kinds::network::is_accepted};
use berth_engine::Identities;

/// The addresses of one interface; the text gives the reason for missing ones.
pub(crate) type Fresh = Result<Addresses, String>;

/// The MAC address and the private addresses of one interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Addresses {
    pub(crate) mac: String,
    /// Empty if another DHCP server gives it out.
    pub(crate) ipv4: String,
    /// Empty on a network without an IPv6 prefix.
    pub(crate) ipv6: String,
}

/// Returns one entry for each interface of the spec: its former allocation, or a fresh one.
pub(crate) fn fresh(
    cache: &Cache,
    vm: &VM,
    networks: &[Option<Arc<Network>>],
    identities: &Identities,
) -> Vec<Fresh> {
    let given = vm.status.as_ref().map(|s| s.interfaces.as_slice()).unwrap_or_default();
    let mut taken = BTreeSet::new();
    let mut taken_ipv6: BTreeSet<(String, Ipv6Addr)> = BTreeSet::new();
    let stays =
        |given: &&InterfaceStatus| vm.spec.network_interfaces.iter().any(|i| i.name.as_str() == given.name);
    let mut macs: BTreeSet<String> =
        given.iter().filter(stays).map(|given| given.mac_address.to_ascii_lowercase()).collect();
    let mut out = Vec::new();
    for (interface, network) in vm.spec.network_interfaces.iter().zip(networks) {
        if let Some(given) = given.iter().find(|g| g.name == interface.name.as_str()) {
            out.push(Ok(Addresses {
                mac: given.mac_address.clone(),
                ipv4: given.address.clone(),
                ipv6: given.ipv6_address.clone(),
            }));
            continue;
        }
        let Some(network) = network else {
            out.push(Err(String::new()));
            continue;
        };
        let name = network_name(network);
        let address = pick(&cache.index, network, interface.address.as_deref(), |a| {
            let is_a_hosts = network.host_bridge().is_some() && cache.underlay.host_with(a).is_some();
            taken.contains(&(name.clone(), a)) || cache.claims.is_address_held(&name, a) || is_a_hosts
        });
        let mac = match &interface.mac_address {
            Some(mac) => declared_mac(cache, vm, network, &macs, &mac.to_lowercase()),
            None => Ok(fresh_mac(identities, |mac| {
                cache.index.is_mac_used(mac)
                    || macs.contains(mac)
                    || cache.claims.is_mac_held(mac)
                    || is_gateway(network, mac)
            })),
        };
        let mac = match mac {
            Ok(mac) => mac,
            Err(why) => {
                out.push(Err(why));
                continue;
            }
        };
        let ipv4 = match address {
            Ok(address) => address,
            Err(why) => {
                out.push(Err(why));
                continue;
            }
        };
        let wanted = match wanted_ipv6(network, interface.ipv6_address.as_deref(), &mac) {
            Ok(wanted) => wanted,
            Err(why) => {
                out.push(Err(why));
                continue;
            }
        };
        let ipv6 = pick_ipv6(&cache.index, network, (ipv4, wanted.as_deref()), |a| {
            let is_a_hosts = network.host_bridge().is_some() && cache.underlay.host_at(a.into()).is_some();
            taken_ipv6.contains(&(name.clone(), a))
                || cache.index.is_ipv6_address_used(&name, a)
                || cache.claims.is_ipv6_address_held(&name, a)
                || is_a_hosts
        });
        let ipv6 = match ipv6 {
            Ok(ipv6) => ipv6,
            Err(why) => {
                out.push(Err(why));
                continue;
            }
        };
        taken.extend(ipv4.map(|address| (name.clone(), address)));
        taken_ipv6.extend(ipv6.map(|address| (name.clone(), address)));
        macs.insert(mac.clone());
        let text = |address: Option<String>| address.unwrap_or_default();
        let (ipv4, ipv6) = (text(ipv4.map(|a| a.to_string())), text(ipv6.map(|a| a.to_string())));
        out.push(Ok(Addresses { mac, ipv4, ipv6 }));
    }
    out
}

/// Returns one entry for each interface of the spec with an existing network that is not refused: its allocation,
/// else the fresh one.
pub(crate) fn decide(vm: &VM, networks: &[Option<Arc<Network>>], fresh: &[Fresh]) -> Vec<InterfaceStatus> {
    let given = vm.status.as_ref().map(|s| s.interfaces.as_slice()).unwrap_or_default();
    let mut decided = Vec::new();
    for (interface, (network, fresh)) in vm.spec.network_interfaces.iter().zip(networks.iter().zip(fresh)) {
        if let Some(given) = given.iter().find(|g| g.name == interface.name.as_str()) {
            decided.push(with_declared(vm, interface, network.as_deref(), given.clone()));
        } else if let (Some(network), Ok(fresh)) = (network, fresh)
            && is_accepted(network)
        {
            let given = InterfaceStatus {
                name: interface.name.0.clone(),
                network: network_name(network),
                mac_address: fresh.mac.clone(),
                address: fresh.ipv4.clone(),
                ipv6_address: fresh.ipv6.clone(),
                ..InterfaceStatus::default()
            };
            decided.push(with_declared(vm, interface, Some(network), given));
        }
    }
    decided
}

/// Returns the interface with what its host enforces of the spec. On a Network that namespaces share, no VM may send from
/// addresses of others.
fn with_declared(
    vm: &VM,
    interface: &NetworkInterface,
    network: Option<&Network>,
    given: InterfaceStatus,
) -> InterfaceStatus {
    let is_own = given.network.split_once('/').map(|(namespace, _)| namespace) == vm.namespace().as_deref();
    let own = |values: &[String]| if is_own { values.to_vec() } else { Vec::new() };
    // Where the name of its Network leads to another one today, it keeps the groups that it had of its own.
    let network = network.filter(|network| network_name(network) == given.network);
    let security_groups = match network {
        None if interface.security_groups.is_empty() => given.security_groups.clone(),
        _ => {
            let of_network = network.map(|network| network.spec.security_groups.as_slice());
            let names = interface.effective_security_groups(of_network.unwrap_or_default());
            names.iter().map(ToString::to_string).collect()
        }
    };
    InterfaceStatus {
        security_groups,
        allowed_addresses: own(&interface.allowed_addresses),
        allowed_mac_addresses: own(&interface.allowed_mac_addresses),
        limits: interface.limits.clone(),
        dscp: interface.dscp,
        dns: interface.dns.clone(),
        search_domains: interface.search_domains.clone(),
        default_route: interface.default_route,
        gateway: interface.gateway.clone(),
        ipv6_gateway: interface.ipv6_gateway.clone(),
        routes: interface.routes.iter().map(configured).collect(),
        mtu: interface.mtu,
        dhcp4: interface.dhcp4,
        dhcp6: interface.dhcp6,
        guest_name: interface.guest_name.clone(),
        ..given
    }
}

fn configured(route: &Route) -> ConfiguredRoute {
    ConfiguredRoute { to: route.to.clone(), via: route.via.clone() }
}

/// Returns a network's name as statuses contain it.
pub(crate) fn network_name(network: &Network) -> String {
    format!("{}/{}", network.namespace().unwrap_or_default(), network.name_any())
}

/// Returns the wanted address, or the lowest free one. None: another DHCP server gives it out, or the network has no IPv4.
fn pick(
    index: &Index,
    network: &Network,
    wanted: Option<&str>,
    is_taken: impl Fn(Ipv4Addr) -> bool,
) -> Result<Option<Ipv4Addr>, String> {
    let name = network_name(network);
    if network.is_external() {
        return match wanted {
            None => Ok(None),
            Some(wanted) => Err(format!(
                "{wanted} cannot be given out in network {name}, where another DHCP server does that (ipv4.allocation External): take \
                 address out"
            )),
        };
    }
    if !network.has_ipv4() {
        return match wanted {
            None => Ok(None),
            Some(wanted) => Err(format!(
                "{wanted} cannot be given out in network {name}, which has no IPv4 (cidr): take address out"
            )),
        };
    }
    let range = network.range().ok_or_else(|| format!("network {name} has no valid range"))?;
    let (lowest, highest) =
        network.pool().ok_or_else(|| format!("network {name} has no valid ipv4.range"))?;
    let gateway = network.gateway();
    let is_free = |a: Ipv4Addr| !index.is_address_used(&name, a) && !is_taken(a);
    let Some(wanted) = wanted else {
        // The index knows the first gap only from the first address that VMs can have.
        let first = if gateway == Some(lowest) { u32::from(lowest).saturating_add(1).into() } else { lowest };
        let begin = index.lowest_free(&name, first).into();
        let mut rest = (begin..=u32::from(highest)).map(Ipv4Addr::from);
        let free = rest.find(|a| !network.is_reserved(*a) && is_free(*a));
        return free.map(Some).ok_or_else(|| format!("network {name} ({range}) has no free address"));
    };
    let address: Ipv4Addr = wanted.parse().map_err(|_| format!("{wanted} is not an IPv4 address"))?;
    if address < lowest || address > highest || network.is_reserved(address) {
        let within =
            if network.host_bridge().is_some() { format!("{lowest}-{highest}") } else { range.to_string() };
        return Err(format!("{address} is not an address for VMs of network {name} ({within})"));
    }
    if is_free(address) { Ok(Some(address)) } else { Err(format!("{address} is taken in network {name}")) }
}

/// Returns the IPv6 address that an interface is to have: the one that its guest forms, or the declared one. None: any.
fn wanted_ipv6(network: &Network, declared: Option<&str>, mac: &str) -> Result<Option<String>, String> {
    let Some(formed) = network.formed_address(mac) else { return Ok(declared.map(str::to_owned)) };
    match declared.map(str::parse::<Ipv6Addr>) {
        Some(Ok(declared)) if declared != formed => Err(format!(
            "{declared} is not the address of an interface with the MAC address {mac} in network {}, whose guests form theirs \
             (ipv6Autoconfiguration), here {formed}: take ipv6Address out",
            network_name(network)
        )),
        _ => Ok(Some(formed.to_string())),
    }
}

/// The most addresses of a network that are looked at for a free one.
const MOST_LOOKED_AT: usize = 1 << 20;

/// Returns the wanted IPv6 address, or a free one: the lowest of the declared range or of a network without IPv4, else if it is free
/// that with the number of the IPv4 address in its range (`fd00:60::2` beside `10.77.0.2`). None: the network has no prefix.
fn pick_ipv6(
    index: &Index,
    network: &Network,
    (ipv4, wanted): (Option<Ipv4Addr>, Option<&str>),
    is_taken: impl Fn(Ipv6Addr) -> bool,
) -> Result<Option<Ipv6Addr>, String> {
    let name = network_name(network);
    let Some(prefix) = network.ipv6_prefix() else {
        return match wanted {
            None => Ok(None),
            Some(wanted) if network.is_ipv6_external() => Err(format!(
                "{wanted} cannot be given out in network {name}, whose routers do that (ipv6.allocation External): take ipv6Address out"
            )),
            Some(wanted) => Err(format!(
                "{wanted} cannot be given out in network {name}, which has no ipv6CIDR: take ipv6Address out"
            )),
        };
    };
    let (lowest, highest) =
        network.ipv6_pool().ok_or_else(|| format!("network {name} has no valid ipv6.range"))?;
    let gateway = network.ipv6_gateway();
    let is_for_vms = |a: Ipv6Addr| a >= lowest && a <= highest && Some(a) != gateway;
    let within = match network.ipv6_range() {
        Some(_) => format!("{lowest}-{highest}"),
        None => prefix.to_string(),
    };
    let Some(wanted) = wanted else {
        let is_free = |a: &Ipv6Addr| is_for_vms(*a) && !is_taken(*a);
        let free = match ipv4 {
            Some(ipv4) if network.ipv6_range().is_none() => beside(network, prefix, ipv4).find(is_free),
            _ => {
                // As for IPv4, the index knows the first gap only from the first address that VMs can have.
                let first = if gateway == Some(lowest) { after(lowest) } else { lowest };
                from(index.lowest_free_ipv6(&name, first), highest).find(is_free)
            }
        };
        return free.map(Some).ok_or_else(|| format!("network {name} ({within}) has no free IPv6 address"));
    };
    let address: Ipv6Addr = wanted.parse().map_err(|_| format!("{wanted} is not an IPv6 address"))?;
    if !is_for_vms(address) {
        return Err(format!("{address} is not an address for VMs of network {name} ({within})"));
    }
    if is_taken(address) { Err(format!("{address} is taken in network {name}")) } else { Ok(Some(address)) }
}

/// Returns the address of a prefix with the number of an IPv4 address in its range, and others to choose from.
fn beside(network: &Network, prefix: Ipv6Net, ipv4: Ipv4Addr) -> impl Iterator<Item = Ipv6Addr> {
    let first = network.range().map_or(0, |range| u32::from(range.network()));
    let number = u64::from(u32::from(ipv4).saturating_sub(first));
    // The numbers after 32 bits are no IPv4 address's.
    let others = (0..=u64::from(u16::MAX)).map(move |n| (1 << 32) + number + n);
    Some(number).into_iter().chain(others).map(move |number| ipv6_at(prefix, number))
}

fn after(address: Ipv6Addr) -> Ipv6Addr {
    u128::from(address).saturating_add(1).into()
}

fn from(lowest: Ipv6Addr, highest: Ipv6Addr) -> impl Iterator<Item = Ipv6Addr> {
    (u128::from(lowest)..=u128::from(highest)).map(Ipv6Addr::from).take(MOST_LOOKED_AT)
}

/// Returns a MAC that the VM declares. No two interfaces of a site have the same one: on a shared network either
/// could receive the other's packets.
fn declared_mac(
    cache: &Cache,
    vm: &VM,
    network: &Network,
    own: &BTreeSet<String>,
    mac: &str,
) -> Result<String, String> {
    let choose = "choose another, or leave it out";
    if own.contains(mac) {
        return Err(format!("MAC address {mac} is that of another interface of this VM: {choose}"));
    }
    if is_gateway(network, mac) {
        return Err(format!(
            "MAC address {mac} is the gateway's of network {}: {choose}",
            network_name(network)
        ));
    }
    let key = Key::of(vm);
    match cache.index.vm_with_mac(mac) {
        // The same VM, under another interface name.
        Some(other) if *other == key => Ok(mac.to_owned()),
        Some(other) if other.namespace() == key.namespace() => {
            Err(format!("MAC address {mac} is VM {}'s: {choose}", other.name))
        }
        // Objects of other namespaces are not named to a tenant.
        Some(_) => Err(format!("MAC address {mac} is taken: {choose}")),
        None if cache.claims.is_mac_held(mac) => Err(format!("MAC address {mac} is taken: {choose}")),
        None => Ok(mac.to_owned()),
    }
}

fn is_gateway(network: &Network, mac: &str) -> bool {
    network.gateway_mac().is_some_and(|gateway| gateway == mac)
}

fn fresh_mac(identities: &Identities, is_used: impl Fn(&str) -> bool) -> String {
    loop {
        let hex = identities.hex(8);
        // 52:54 is the prefix QEMU uses: locally administered, not a group address.
        let mac = format!("52:54:{}:{}:{}:{}", &hex[0..2], &hex[2..4], &hex[4..6], &hex[6..8]);
        if !is_used(&mac) {
            return mac;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_api::NetworkSpec;

    #[test]
    fn addresses_are_given_out_from_the_second_on_until_there_is_none() {
        let mut network =
            Network::new("default", NetworkSpec { cidr: "10.0.0.0/29".into(), ..NetworkSpec::default() });
        network.metadata.namespace = Some("berth-shared".into());
        let address = |text: &str| text.parse::<Ipv4Addr>().expect("an address");
        let index = Index::default();
        assert_eq!(pick(&index, &network, None, |_| false), Ok(Some(address("10.0.0.2"))));
        assert_eq!(pick(&index, &network, None, |a| a <= address("10.0.0.4")), Ok(Some(address("10.0.0.5"))));
        assert!(pick(&index, &network, None, |_| true).unwrap_err().contains("no free address"));
        for wrong in ["10.0.0.0", "10.0.0.1", "10.0.0.7", "10.0.1.2", "x"] {
            assert!(pick(&index, &network, Some(wrong), |_| false).is_err(), "{wrong}");
        }
        assert!(pick(&index, &network, Some("10.0.0.3"), |_| true).unwrap_err().contains("taken"));
    }

    /// Where no other VM has an address.
    fn pick_ipv6(
        network: &Network,
        ipv4: Option<Ipv4Addr>,
        wanted: Option<&str>,
        is_taken: impl Fn(Ipv6Addr) -> bool,
    ) -> Result<Option<Ipv6Addr>, String> {
        super::pick_ipv6(&Index::default(), network, (ipv4, wanted), is_taken)
    }

    #[test]
    fn an_ipv6_address_has_the_number_of_the_ipv4_address_and_another_one_where_that_is_taken() {
        let spec = NetworkSpec {
            cidr: "10.0.4.0/22".into(),
            ipv6_cidr: "fd00:60::/64".into(),
            ..NetworkSpec::default()
        };
        let mut network = Network::new("app", spec);
        network.metadata.namespace = Some("ns".into());
        let address = |text: &str| text.parse::<Ipv6Addr>().expect("an address");
        let ipv4 = Some(Ipv4Addr::new(10, 0, 5, 3));
        assert_eq!(pick_ipv6(&network, ipv4, None, |_| false), Ok(Some(address("fd00:60::103"))));
        let beside = pick_ipv6(&network, ipv4, None, |a| a == address("fd00:60::103"));
        assert_eq!(beside, Ok(Some(address("fd00:60::1:0:103"))));
        assert!(pick_ipv6(&network, ipv4, None, |_| true).unwrap_err().contains("no free IPv6 address"));
        assert_eq!(
            pick_ipv6(&network, ipv4, Some("fd00:60::5:5"), |_| false),
            Ok(Some(address("fd00:60::5:5")))
        );
        for wrong in ["fd00:60::", "fd00:60::1", "fd00:61::2", "10.0.4.9", "x"] {
            assert!(pick_ipv6(&network, ipv4, Some(wrong), |_| false).is_err(), "{wrong}");
        }
        assert!(pick_ipv6(&network, ipv4, Some("fd00:60::9"), |_| true).unwrap_err().contains("taken"));
        network.spec.ipv6_cidr = String::new();
        assert_eq!(pick_ipv6(&network, ipv4, None, |_| false), Ok(None));
        let why = pick_ipv6(&network, ipv4, Some("fd00:60::9"), |_| false).unwrap_err();
        assert!(why.contains("no ipv6CIDR"), "{why}");
    }

    #[test]
    fn where_guests_form_their_addresses_an_interface_has_that_of_its_mac_and_no_other() {
        let spec = NetworkSpec {
            ipv6_cidr: "fd00:60::/64".into(),
            ipv6_autoconfiguration: Some(true),
            ..NetworkSpec::default()
        };
        let mut network = Network::new("app", spec);
        network.metadata.namespace = Some("ns".into());
        let (mac, formed) = ("52:54:00:00:00:09", "fd00:60::5054:ff:fe00:9".to_owned());
        assert_eq!(wanted_ipv6(&network, None, mac), Ok(Some(formed.clone())));
        assert_eq!(wanted_ipv6(&network, Some(&formed), mac), Ok(Some(formed.clone())));
        let why = wanted_ipv6(&network, Some("fd00:60::2"), mac).unwrap_err();
        assert!(why.contains(&formed) && why.contains("take ipv6Address out"), "{why}");
        let given = pick_ipv6(&network, None, Some(&formed), |_| false);
        assert_eq!(given, Ok(formed.parse::<Ipv6Addr>().ok()));
        network.spec.ipv6_autoconfiguration = None;
        assert_eq!(wanted_ipv6(&network, None, mac), Ok(None));
        assert_eq!(wanted_ipv6(&network, Some("fd00:60::2"), mac), Ok(Some("fd00:60::2".to_owned())));
    }

    #[test]
    fn without_ipv4_the_lowest_free_ipv6_address_is_given_out_and_no_ipv4_address() {
        let spec = NetworkSpec { ipv6_cidr: "fd00:60::/64".into(), ..NetworkSpec::default() };
        let mut network = Network::new("app", spec);
        network.metadata.namespace = Some("ns".into());
        let address = |text: &str| text.parse::<Ipv6Addr>().expect("an address");
        let index = Index::default();
        assert_eq!(pick(&index, &network, None, |_| false), Ok(None));
        let why = pick(&index, &network, Some("10.0.0.9"), |_| false).unwrap_err();
        assert!(why.contains("no IPv4 (cidr)"), "{why}");
        assert_eq!(pick_ipv6(&network, None, None, |_| false), Ok(Some(address("fd00:60::2"))));
        let taken = address("fd00:60::2");
        assert_eq!(pick_ipv6(&network, None, None, |a| a == taken), Ok(Some(address("fd00:60::3"))));
    }

    #[test]
    fn on_a_bridge_ipv6_addresses_are_those_of_the_declared_range_without_the_gateway_or_none_at_all() {
        let network = |cidr: &str, ipv6: serde_json::Value| -> Network {
            let spec = serde_json::json!({"type": "Bridge", "bridge": {"name": "vmbr0"}, "cidr": "192.0.2.0/24",
                "ipv6CIDR": cidr, "ipv6": ipv6});
            serde_json::from_value(
                serde_json::json!({"metadata": {"name": "lan", "namespace": "berth-shared"}, "spec": spec}),
            )
            .expect("a Network")
        };
        let prefix = "2001:db8:7::/64";
        let address = |text: &str| text.parse::<Ipv6Addr>().expect("an address");
        let ipv4 = Some(Ipv4Addr::new(192, 0, 2, 50));
        let range = "2001:db8:7::50-2001:db8:7::52";
        let lan = network(prefix, serde_json::json!({"gateway": "2001:db8:7::50", "range": range}));
        assert_eq!(pick_ipv6(&lan, ipv4, None, |_| false), Ok(Some(address("2001:db8:7::51"))));
        let why = pick_ipv6(&lan, ipv4, Some("2001:db8:7::9"), |_| false).unwrap_err();
        assert!(why.contains("(2001:db8:7::50-2001:db8:7::52)"), "it may be another machine's: {why}");
        assert!(pick_ipv6(&lan, ipv4, Some("2001:db8:7::50"), |_| false).is_err(), "the gateway's");
        assert!(pick_ipv6(&lan, ipv4, None, |_| true).unwrap_err().contains("no free IPv6 address"));
        let whole = network(prefix, serde_json::json!({"gateway": "fe80::1"}));
        assert_eq!(pick_ipv6(&whole, ipv4, None, |_| false), Ok(Some(address("2001:db8:7::32"))));
        let external = network("", serde_json::json!({"allocation": "External"}));
        assert_eq!(pick_ipv6(&external, ipv4, None, |_| false), Ok(None));
        let why = pick_ipv6(&external, ipv4, Some("2001:db8:7::9"), |_| false).unwrap_err();
        assert!(why.contains("ipv6.allocation External"), "{why}");
    }

    proptest::proptest! {
        #[test]
        fn no_two_interfaces_get_one_ipv6_address(wanted in proptest::collection::vec(proptest::option::of(2u64..12), 1..12)) {
            let spec = NetworkSpec { cidr: "10.0.0.0/24".into(), ipv6_cidr: "fd00:60::/64".into(), ..NetworkSpec::default() };
            let network = Network::new("app", spec);
            let prefix = network.ipv6_prefix().expect("a prefix");
            let mut taken = BTreeSet::new();
            for (number, wanted) in (2u8..).zip(wanted) {
                let wanted = wanted.map(|n| ipv6_at(prefix, n).to_string());
                let ipv4 = Some(Ipv4Addr::new(10, 0, 0, number));
                let Ok(Some(given)) = pick_ipv6(&network, ipv4, wanted.as_deref(), |a| taken.contains(&a)) else {
                    proptest::prop_assert!(wanted.is_some(), "only a declared address can be refused");
                    continue;
                };
                proptest::prop_assert!(prefix.contains(&given) && Some(given) != network.ipv6_gateway());
                proptest::prop_assert!(taken.insert(given), "{} twice", given);
            }
        }
    }

    #[test]
    fn on_a_bridge_addresses_are_those_of_the_declared_range_without_the_gateway_or_none_at_all() {
        let network = |ipv4: serde_json::Value, cidr: Option<&str>| -> Network {
            let spec = serde_json::json!({"type": "Bridge", "bridge": {"name": "vmbr0"}, "ipv4": ipv4, "cidr": cidr.unwrap_or_default()});
            serde_json::from_value(
                serde_json::json!({"metadata": {"name": "lan", "namespace": "berth-shared"}, "spec": spec}),
            )
            .expect("a Network")
        };
        let address = |text: &str| text.parse::<Ipv4Addr>().expect("an address");
        let index = Index::default();
        let lan = network(
            serde_json::json!({"gateway": "192.0.2.51", "range": "192.0.2.50-192.0.2.52"}),
            Some("192.0.2.0/24"),
        );
        assert_eq!(pick(&index, &lan, None, |_| false), Ok(Some(address("192.0.2.50"))));
        let second = pick(&index, &lan, None, |a| a == address("192.0.2.50"));
        assert_eq!(second, Ok(Some(address("192.0.2.52"))), "not the gateway's");
        assert!(pick(&index, &lan, None, |_| true).unwrap_err().contains("no free address"));
        assert!(pick(&index, &lan, Some("192.0.2.51"), |_| false).is_err(), "the gateway's");
        let text = pick(&index, &lan, Some("192.0.2.9"), |_| false).unwrap_err();
        assert!(text.contains("(192.0.2.50-192.0.2.52)"), "it may be another machine's: {text}");
        let external = network(serde_json::json!({"allocation": "External"}), None);
        assert_eq!(pick(&index, &external, None, |_| false), Ok(None));
        assert!(pick(&index, &external, Some("192.0.2.9"), |_| false).unwrap_err().contains("External"));
    }

    fn cache(vms: &[serde_json::Value]) -> Cache {
        let mut cache = Cache::new(std::time::Duration::from_secs(40));
        for vm in vms {
            let vm: VM = serde_json::from_value(vm.clone()).expect("a VM");
            cache.put(vm, tokio::time::Instant::now());
        }
        cache
    }

    fn vm(
        namespace: &str,
        name: &str,
        spec: &serde_json::Value,
        status: &serde_json::Value,
    ) -> serde_json::Value {
        serde_json::json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "VM",
            "metadata": {"name": name, "namespace": namespace, "uid": format!("{namespace}-{name}"), "resourceVersion": "1"},
            "spec": {"class": "small", "disks": [], "networkInterfaces": spec},
            "status": {"observedGeneration": 1, "interfaces": status},
        })
    }

    #[test]
    fn a_mac_that_another_vm_has_is_refused_and_told_only_within_the_namespace() {
        let mac = "52:54:00:AA:BB:CC";
        let given = serde_json::json!([{"name": "nic0", "network": "berth-shared/default",
            "macAddress": "52:54:00:aa:bb:cc", "address": "10.0.0.2"}]);
        let plain = serde_json::json!([{"name": "nic0"}]);
        let declared = serde_json::json!([{"name": "nic0", "macAddress": mac}]);
        let cache = cache(&[vm("alice", "web", &plain, &given)]);
        let mut network =
            Network::new("default", NetworkSpec { cidr: "10.0.0.0/24".into(), ..NetworkSpec::default() });
        network.metadata.namespace = Some("berth-shared".into());
        let networks = [Some(Arc::new(network.clone()))];
        let asked = |namespace: &str, name: &str| {
            let vm = vm(namespace, name, &declared, &serde_json::json!([]));
            let vm: VM = serde_json::from_value(vm).expect("a VM");
            fresh(&cache, &vm, &networks, &Identities::seeded(1)).remove(0)
        };
        assert_eq!(
            asked("alice", "twin").unwrap_err(),
            "MAC address 52:54:00:aa:bb:cc is VM web's: choose another, or leave it out"
        );
        assert_eq!(
            asked("mallory", "twin").unwrap_err(),
            "MAC address 52:54:00:aa:bb:cc is taken: choose another, or leave it out"
        );
        assert_eq!(asked("alice", "web").map(|fresh| fresh.mac), Ok(mac.to_lowercase()), "its own");
        network.status = Some(berth_api::NetworkStatus { vni: Some(7), ..Default::default() });
        let gateway = network.gateway_mac().expect("it has an identifier");
        let other = vm("mallory", "twin", &declared, &serde_json::json!([]));
        let other: VM = serde_json::from_value(other).expect("a VM");
        let why = declared_mac(&cache, &other, &network, &BTreeSet::new(), &gateway);
        assert!(why.unwrap_err().contains("the gateway's"));
    }
}
