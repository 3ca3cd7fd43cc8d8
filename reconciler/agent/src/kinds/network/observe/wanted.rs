//! The desired state of this host's networks, according to the objects. Pure.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use berth_api::vm::InterfaceStatus;
use berth_api::{IPPoolMode, NetworkHost, VM};
use berth_host::{Forward, Ipv6Route, Lease, Nat, NetworkConfig, RoutedPrefix};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::super::announcing::{announced_on, occupied, unroutable};
use super::super::balancing::{self, Here, balance};
use super::super::bridged::{
    advertised, between_ports, bridged, name_servers, ports, refuse_public, served, served_ipv6,
};
use super::super::bridges::{Existing, assign};
use super::super::config::{addresses, config};
use super::super::encryption::wireguard;
use super::super::exceptions::{by_mac, exceptions};
use super::super::filters::{GroupsOf, filters};
use super::super::isolation::isolated;
use super::super::learned;
use super::super::leases::with_leases;
use super::super::limits::limits;
use super::super::marks::marks;
use super::super::senders::observed;
use super::super::trunks::trunks;
use super::{Actual, Desired, KeptGuest};
use crate::index::{Tables, instance_of};
use crate::key::ObjectName;
use crate::networking::{
    Probe, find, hostname, named_addresses, own_ipv6_gateway, own_ipv6_routes, own_routes, security_groups_of,
};
use crate::public_address::GivenAddress;

/// Network state of a guest.
struct Guest {
    namespace: String,
    interfaces: Vec<InterfaceStatus>,
    hostname: String,
    /// With the name of their interface.
    public: Vec<(String, GivenAddress)>,
}

impl Guest {
    /// The public addresses of an interface.
    fn public_of(&self, interface: &str) -> impl Iterator<Item = GivenAddress> {
        self.public.iter().filter(move |(of, _)| of == interface).map(|(_, given)| *given)
    }

    /// Lets its interfaces send from the prefixes that are routed to them, as from further addresses.
    fn send_from(&mut self, routed: &BTreeSet<Ipv6Net>) {
        for (name, given) in &self.public {
            let Some(prefix) = given.prefix.filter(|prefix| routed.contains(prefix)) else { continue };
            if let Some(interface) = self.interfaces.iter_mut().find(|interface| interface.name == *name) {
                interface.allowed_addresses.push(prefix.to_string());
            }
        }
    }
}

/// Returns the guests of the VMs bound here, followed by the kept ones.
fn guests(tables: &Tables, kept: &[KeptGuest]) -> Vec<Guest> {
    let of_vm = |(name, vm): (&ObjectName, &Arc<VM>)| {
        let mut interfaces: Vec<InterfaceStatus> =
            vm.status.iter().flat_map(|s| s.interfaces.clone()).collect();
        for interface in &mut interfaces {
            interface.security_groups = security_groups_of(tables, vm, interface);
            held_to_groups(interface);
        }
        let public = named_addresses(tables, name, vm)
            .into_iter()
            .filter_map(|named| Some((named.interface, named.address?)));
        Guest {
            namespace: name.namespace.clone(),
            public: public.collect(),
            interfaces,
            hostname: hostname(vm),
        }
    };
    let is_owned =
        |kept: &KeptGuest| tables.vms.all().any(|(_, vm)| instance_of(vm) == Some(kept.instance.as_str()));
    let of_kept = |kept: &KeptGuest| {
        let mut interfaces = kept.interfaces.clone();
        for interface in &mut interfaces {
            // It has no VM that could name others.
            if interface.security_groups.is_empty() {
                let network = find(tables, &interface.network);
                let groups = network.iter().flat_map(|network| &network.spec.security_groups);
                interface.security_groups = groups.map(ToString::to_string).collect();
            }
            held_to_groups(interface);
        }
        Guest {
            namespace: kept.name.namespace.clone(),
            interfaces,
            hostname: kept.name.name.clone(),
            public: kept.public.iter().map(|public| (public.interface.clone(), public.given())).collect(),
        }
    };
    let kept = kept.iter().filter(|kept| !is_owned(kept)).map(of_kept);
    tables.vms.all().map(of_vm).chain(kept).collect()
}

/// Takes its further addresses from an interface with security groups, which match only the allocated ones.
fn held_to_groups(interface: &mut InterfaceStatus) {
    if !interface.security_groups.is_empty() {
        interface.allowed_addresses.clear();
    }
}

/// Returns the lease of an interface with these addresses.
fn lease(
    tables: &Tables,
    guest: &Guest,
    interface: &InterfaceStatus,
    (address, ipv6): (Option<Ipv4Addr>, Option<Ipv6Addr>),
) -> Lease {
    let network = find(tables, &interface.network);
    let ipv6_default = network.as_ref().and_then(|network| own_ipv6_gateway(network, interface));
    let ipv6_default = ipv6_default.map(Ipv6Route::default_by);
    Lease {
        mac: interface.mac_address.to_ascii_lowercase(),
        address,
        ipv6,
        hostname: guest.hostname.clone(),
        dns: addresses(&interface.dns),
        search_domains: interface.search_domains.clone(),
        no_default_route: interface.default_route == Some(false),
        routes: own_routes(interface),
        ipv6_routes: ipv6_default.into_iter().chain(own_ipv6_routes(interface)).collect(),
        mtu: interface.mtu.and_then(|mtu| u16::try_from(mtu).ok()),
        no_dhcp4: network.as_ref().is_some_and(|network| network.is_without_dhcp4(interface.dhcp4)),
        no_dhcp6: network.as_ref().is_some_and(|network| network.is_without_dhcp6(interface.dhcp6)),
    }
}

/// Returns the desired state according to the objects. Pure.
pub(in crate::kinds::network) fn wanted(tables: &Tables, seen: &Actual<'_>) -> Desired {
    let mut guests = guests(tables, seen.kept);
    let named = guests.iter().flat_map(|guest| &guest.interfaces).map(|interface| &interface.network);
    let named = named.chain(balancing::networks(tables, seen.host));
    let existing = Existing {
        attached: attached(seen),
        bridges: seen.bridges,
        ranges: seen.ranges,
        links: seen.links.clone(),
    };
    let assigned = assign(tables, named, &existing);
    let running = assigned.with_running(tables, &existing.attached);
    let mut networks: BTreeMap<String, NetworkConfig> = BTreeMap::new();
    let mut wanted = Desired::default();
    let groups_of = groups_of(&guests);
    for guest in &guests {
        for interface in &guest.interfaces {
            let Some(bridge) = assigned.bridges.get(&interface.network) else { continue };
            let address: Option<Ipv4Addr> = interface.address.parse().ok();
            let ipv6: Option<Ipv6Addr> = interface.ipv6_address.parse().ok();
            if address.is_none() && ipv6.is_none() {
                continue;
            }
            let network = match networks.entry(bridge.clone()) {
                Entry::Occupied(network) => network.into_mut(),
                // Once for all guests: its tunnel names every host of the network.
                Entry::Vacant(network) => {
                    let found = find(tables, &interface.network);
                    // A bridged network needs nothing but its connection.
                    let overlay = found.filter(|found| found.host_bridge().is_none());
                    match overlay.and_then(|found| config(&found, bridge, seen.host)) {
                        Some(config) => network.insert(config),
                        None => continue,
                    }
                }
            };
            network.tracked |= !interface.security_groups.is_empty();
            let mac = interface.mac_address.to_ascii_lowercase();
            let is_taken = |lease: &Lease| {
                (address.is_some() && lease.address == address)
                    || (ipv6.is_some() && lease.ipv6 == ipv6)
                    || lease.mac == mac
            };
            if network.leases.iter().any(is_taken) {
                continue;
            }
            network.leases.push(lease(tables, guest, interface, (address, ipv6)));
            for given in guest.public_of(&interface.name) {
                if refuse_public(tables, interface, given.address).is_none() {
                    match given.prefix {
                        Some(prefix) => route((prefix, given.mode), ipv6, bridge, seen, &mut wanted),
                        None => forward((given.address, given.mode), interface, seen, &mut wanted),
                    }
                }
            }
        }
    }
    for name in balancing::networks(tables, seen.host) {
        let Some(bridge) = assigned.bridges.get(name).filter(|bridge| !networks.contains_key(*bridge)) else {
            continue;
        };
        let overlay = find(tables, name).filter(|found| found.host_bridge().is_none());
        networks.extend(overlay.and_then(|found| Some((bridge.clone(), config(&found, bridge, seen.host)?))));
    }
    let here = Here { host: seen.host, health: &seen.health, trusted: trusted(seen) };
    let admit = |public: IpAddr, mode| admit(public, mode, seen, &mut wanted);
    let mut balancing = balance(tables, &assigned.bridges, &mut networks, &here, admit);
    wanted.firewall.balanced = balancing.balanced;
    (wanted.checks, wanted.trusted) = (balancing.checks, balancing.trusted);
    let routed = with_routes(&mut networks, &mut wanted.firewall.prefixes);
    for guest in &mut guests {
        guest.send_from(&routed);
    }
    wanted.networks = networks.into_values().collect();
    let interfaces: Vec<&InterfaceStatus> = guests.iter().flat_map(|guest| &guest.interfaces).collect();
    wanted.bridged = bridged(tables, &assigned.bridges, &interfaces);
    for part in &mut wanted.bridged {
        part.relay = balancing.relays.remove(&part.bridge);
    }
    for (guest, interface) in guests.iter().flat_map(|guest| guest.interfaces.iter().map(move |i| (guest, i)))
    {
        let Some((bridge, served)) =
            served(tables, &running, (guest.hostname.as_str(), interface), &seen.ports)
        else {
            continue;
        };
        wanted.firewall.answered.push(served.tap.clone());
        let part = wanted.bridged.iter_mut().find(|part| part.bridge == bridge);
        part.into_iter().for_each(|part| part.served.push(served.clone()));
    }
    wanted.firewall.answered.sort();
    for interface in &interfaces {
        let found = served_ipv6(tables, &running, interface, &seen.ports);
        let Some((bridge, served)) = found else { continue };
        wanted.firewall.answered_ipv6.push(served.tap.clone());
        let part = wanted.bridged.iter_mut().find(|part| part.bridge == bridge);
        part.into_iter().for_each(|part| part.served_ipv6.push(served.clone()));
    }
    wanted.firewall.answered_ipv6.sort();
    learned::learn(tables, &assigned.bridges, &seen.ports, &mut wanted.bridged);
    wanted.firewall.name_servers = name_servers(tables, &running);
    wanted.wireguard = wireguard(tables, &assigned.bridges, seen.host);
    wanted.firewall.bridged = between_ports(tables, &running);
    wanted.firewall.advertised = advertised(tables, &running);
    for (guest, interface) in guests.iter().flat_map(|guest| guest.interfaces.iter().map(move |i| (guest, i)))
    {
        let public = guest.public_of(&interface.name);
        let refused = public
            .filter_map(|given| Some((given.address, refuse_public(tables, interface, given.address)?)));
        wanted.refused.extend(refused);
    }
    for network in &mut wanted.networks {
        network.leases.sort();
        wanted.firewall.nat.push(Nat {
            bridge: network.bridge.clone(),
            ipv4: network.ipv4,
            ipv6: network.ipv6,
            tunnel: network.tunnel.clone(),
        });
    }
    wanted.firewall.forwards.sort();
    wanted.firewall.nat.sort();
    let leased = with_leases(tables, &assigned.bridges, seen.leases, &groups_of, &seen.ports);
    wanted.firewall.ports = ports(tables, &groups_of, &leased);
    wanted.firewall.limits = limits(interfaces.iter().copied(), &seen.ports);
    wanted.firewall.marks = marks(interfaces.iter().copied(), &seen.ports);
    wanted.firewall.isolated = isolated(tables, &assigned.bridges, &seen.ports);
    wanted.firewall.trunks = trunks(tables, &groups_of, &seen.ports, &seen.links);
    let interfaces = by_mac(&interfaces);
    wanted.firewall.observed = observed(tables, &assigned.bridges, &groups_of, &interfaces, &seen.ports);
    let observed = &wanted.firewall.observed;
    wanted.firewall.exceptions = exceptions(tables, &groups_of, &interfaces, observed, &leased);
    let exceptions = &mut wanted.firewall.exceptions;
    learned::send_from(tables, &assigned.bridges, &groups_of, &leased, seen.learned, exceptions);
    wanted.firewall.filters = Arc::new(filters(tables, &groups_of, &leased, &wanted.firewall.prefixes));
    // A tap that is about to be created counts, so that the firewall is the same before and after.
    wanted.firewall.guests = !seen.taps.is_empty() || !wanted.firewall.ports.is_empty();
    (wanted.firewall.closed, wanted.firewall.ipv6_closed) = closed(tables, &running, seen);
    (wanted.firewall.allowed, wanted.firewall.ipv6_allowed) = by_family(seen.allowed);
    wanted.bridges = assigned.bridges;
    wanted.refused_networks = assigned.refused;
    wanted
}

/// Returns the security groups of the interfaces in the statuses of guests, also the empty lists.
fn groups_of(guests: &[Guest]) -> GroupsOf {
    let of_interface = |(namespace, interface): (&str, &InterfaceStatus)| {
        let groups = interface.security_groups.iter().map(|name| format!("{namespace}/{name}"));
        ((interface.network.clone(), interface.mac_address.to_ascii_lowercase()), groups.collect())
    };
    let all = guests.iter().flat_map(|guest| guest.interfaces.iter().map(|i| (guest.namespace.as_str(), i)));
    all.map(of_interface).collect()
}

/// Returns, by network, the bridge that a tap of it is on.
fn attached(seen: &Actual<'_>) -> BTreeMap<String, String> {
    let mut attached = BTreeMap::new();
    for guest in &seen.ports {
        let tap = seen.taps.iter().find(|tap| tap.name == guest.port.tap);
        if let Some(bridge) = tap.and_then(|tap| tap.bridge.as_ref()) {
            attached.entry(guest.network.clone()).or_insert_with(|| bridge.clone());
        }
    }
    attached
}

/// Returns the destinations closed to guests: the control plane, all hosts of the site, and the hosts listed in the
/// status of networks here; those of IPv4 and those of IPv6.
fn closed(
    tables: &Tables,
    bridges: &BTreeMap<String, String>,
    seen: &Actual<'_>,
) -> (Vec<Ipv4Net>, Vec<Ipv6Net>) {
    let mut closed = seen.closed.to_vec();
    if !bridges.is_empty() {
        closed.extend(tables.host_addresses.listed().into_iter().flatten().copied().map(IpNet::from));
    }
    for network in bridges.keys().filter_map(|name| find(tables, name)) {
        let hosts = network.status.iter().flat_map(|status| &status.hosts);
        let addresses = hosts.filter_map(NetworkHost::host_address);
        closed.extend(addresses.map(|address| IpNet::from(IpAddr::V4(address))));
    }
    let (ipv4, ipv6) = by_family(&closed);
    (Ipv4Net::aggregate(&ipv4), Ipv6Net::aggregate(&ipv6))
}

fn by_family(ranges: &[IpNet]) -> (Vec<Ipv4Net>, Vec<Ipv6Net>) {
    let (mut ipv4, mut ipv6) = (Vec::new(), Vec::new());
    for range in ranges {
        match range {
            IpNet::V4(range) => ipv4.push(*range),
            IpNet::V6(range) => ipv6.push(*range),
        }
    }
    (ipv4, ipv6)
}

/// Returns the public addresses with ports that an agent which has just started finds here.
fn trusted(seen: &Actual<'_>) -> BTreeSet<IpAddr> {
    let uplink = seen.uplink.filter(|_| seen.trusts_before_checks);
    uplink.into_iter().flat_map(|uplink| &uplink.public).copied().collect()
}

/// Forwards a public address to the interface's private one of the same family, or records why it cannot.
fn forward(
    (public, mode): (IpAddr, IPPoolMode),
    interface: &InterfaceStatus,
    seen: &Actual<'_>,
    wanted: &mut Desired,
) {
    let private = if public.is_ipv6() { &interface.ipv6_address } else { &interface.address };
    let Some(private) = private.parse::<IpAddr>().ok().filter(|own| own.is_ipv6() == public.is_ipv6()) else {
        return;
    };
    if let Some(announced_on) = admit(public, mode, seen, wanted) {
        wanted.firewall.forwards.push(Forward { public, private, announced_on });
    }
}

/// Routes a public prefix to the guest, or records why it cannot.
fn route(
    (prefix, mode): (Ipv6Net, IPPoolMode),
    guest: Option<Ipv6Addr>,
    bridge: &str,
    seen: &Actual<'_>,
    wanted: &mut Desired,
) {
    let Some(via) = guest else { return };
    match unroutable(prefix, mode, seen.uplink) {
        Some(refused) => {
            wanted.refused.insert(prefix.network().into(), refused);
        }
        None => wanted.firewall.prefixes.push(RoutedPrefix { prefix, via, bridge: bridge.to_owned() }),
    }
}

/// Puts the prefixes in order, and adds them to their networks; returns them. Each leads to one guest.
fn with_routes(
    networks: &mut BTreeMap<String, NetworkConfig>,
    prefixes: &mut Vec<RoutedPrefix>,
) -> BTreeSet<Ipv6Net> {
    prefixes.sort();
    prefixes.dedup_by_key(|routed| routed.prefix);
    for routed in prefixes.iter() {
        if let Some(network) = networks.get_mut(&routed.bridge) {
            network.prefixes.push(routed.clone());
        }
    }
    prefixes.iter().map(|routed| routed.prefix).collect()
}

/// Returns the interface that a public address is announced on, if it is. None: it is not used (yet); records why, and what to probe.
fn admit(
    public: IpAddr,
    mode: IPPoolMode,
    seen: &Actual<'_>,
    wanted: &mut Desired,
) -> Option<Option<String>> {
    let announced_on = announced_on(public, mode, seen.uplink);
    let announced = matches!(announced_on, Ok(Some(_)));
    if announced && !seen.uplink.is_some_and(|uplink| uplink.public.contains(&public)) {
        wanted.to_probe.push(public);
        match seen.probed.get(&public) {
            Some(Probe::Free) => {}
            Some(Probe::Taken(mac, _)) => {
                wanted.refused.insert(public, occupied(public, mac));
                return None;
            }
            Some(Probe::Running) | None => return None,
        }
    }
    match announced_on {
        Ok(announced_on) => Some(announced_on),
        Err(refused) => {
            wanted.refused.insert(public, refused);
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use berth_api::Reason;
    use berth_host::{Port, Uplink};
    use kube::runtime::watcher::Event;
    use serde_json::json;

    use super::*;
    use crate::index::Index;
    use crate::journal::ForwardedAddress;
    use crate::networking::GuestPort;

    const MAC: &str = "52:54:00:00:00:01";
    const PREFIX: &str = "2001:db8:0:8:1::/80";

    fn world(egress: &str, mode: &str) -> Index {
        let index = Index::default();
        let network = json!({
            "metadata": {"name": "default", "namespace": "berth-shared", "resourceVersion": "1"},
            "spec": {"ipv6CIDR": "fd00:60::/64", "ipv6Egress": egress}, "status": {"observedGeneration": 1, "vni": 77},
        });
        index.apply::<berth_api::Network>(Event::Apply(serde_json::from_value(network).expect("a Network")));
        let vm = json!({
            "metadata": {"name": "web", "namespace": "ns", "uid": "u1", "resourceVersion": "1"},
            "spec": {"class": "s", "disks": [{"name": "d", "boot": true}],
                "networkInterfaces": [{"name": "nic0", "publicIPv6": "containers"}]},
            "status": {"observedGeneration": 1, "instanceID": "i-0123456789ab", "interfaces": [
                {"name": "nic0", "network": "berth-shared/default", "macAddress": MAC, "ipv6Address": "fd00:60::2"}]},
        });
        index.apply::<VM>(Event::Apply(serde_json::from_value(vm).expect("a VM")));
        let ip = json!({
            "metadata": {"name": "containers", "namespace": "ns", "resourceVersion": "1"},
            "spec": {"pool": "routed6", "prefixLength": 80},
            "status": {"observedGeneration": 1, "address": "2001:db8:0:8:1::", "prefix": PREFIX, "mode": mode,
                       "usedBy": [{"use": "Address", "vm": "web", "vmUid": "u1"}]},
        });
        index.apply::<berth_api::PublicIP>(Event::Apply(serde_json::from_value(ip).expect("a PublicIP")));
        index
    }

    fn port() -> GuestPort {
        let port = Port {
            tap: "btt01234567n0".into(),
            mac: MAC.into(),
            address: None,
            ipv6: "fd00:60::2".parse().ok(),
        };
        GuestPort { network: "berth-shared/default".into(), port, groups: Vec::new() }
    }

    fn seen(index: &Index, own: &[&str], kept: &[KeptGuest]) -> Desired {
        let own = own.iter().map(|address| address.parse().expect("an address")).collect();
        let uplink =
            Uplink { interface: Ok("eth0".into()), ipv6_obstacle: None, own, public: BTreeSet::new() };
        let actual =
            Actual { kept, host: "h1", uplink: Some(&uplink), ports: vec![port()], ..Actual::default() };
        wanted(&index.read(), &actual)
    }

    #[test]
    fn a_public_prefix_is_routed_to_its_guest_which_sends_from_it() {
        let found = seen(&world("Routed", "local"), &[], &[]);
        let [routed] = &found.firewall.prefixes[..] else { panic!("{found:?}") };
        assert_eq!(
            (routed.prefix.to_string().as_str(), routed.via.to_string().as_str()),
            (PREFIX, "fd00:60::2")
        );
        assert_eq!(found.networks[0].prefixes, std::slice::from_ref(routed), "with its route");
        assert_eq!(routed.bridge, found.networks[0].bridge);
        assert!(found.firewall.forwards.is_empty() && found.refused.is_empty() && found.to_probe.is_empty());
        let [exception] = &found.firewall.exceptions[..] else { panic!("{found:?}") };
        assert_eq!(exception.ranges, [PREFIX.parse::<IpNet>().expect("a prefix")]);
        assert_eq!(exception.tap, port().port.tap);
    }

    #[test]
    fn a_public_prefix_that_cannot_lead_to_its_guest_is_refused_and_the_guest_does_not_send_from_it() {
        let refused = |found: &Desired| {
            assert!(found.firewall.prefixes.is_empty() && found.networks[0].prefixes.is_empty(), "{found:?}");
            assert!(found.firewall.exceptions.is_empty(), "{found:?}");
            let refused = &found.refused[&"2001:db8:0:8:1::".parse::<IpAddr>().expect("an address")];
            (refused.reason, refused.text.clone())
        };
        let (reason, text) = refused(&seen(&world("None", "local"), &[], &[]));
        assert!(reason == Reason::NotSupported && text.contains("ipv6Egress None"), "{text}");
        let (reason, text) = refused(&seen(&world("Routed", "l2"), &[], &[]));
        assert!(reason == Reason::NotSupported && text.contains("mode local"), "{text}");
        let (reason, text) = refused(&seen(&world("Routed", "local"), &["2001:db8:0:8:1::9"], &[]));
        assert!(reason == Reason::HostAddress && text.contains("2001:db8:0:8:1::9"), "{text}");
    }

    #[test]
    fn a_prefix_of_a_filtered_interface_is_filtered_too() {
        let index = world("Routed", "local");
        let name = ObjectName::new("ns", "web");
        let mut vm = index.read().vms.get(&name).map(|vm| VM::clone(&vm)).expect("a VM");
        vm.metadata.resource_version = Some("2".into());
        vm.spec.network_interfaces[0].security_groups = vec!["web".into()];
        index.apply::<VM>(Event::Apply(vm));
        let found = seen(&index, &[], &[]);
        let [filtered] = &found.firewall.filters.ports[..] else { panic!("{found:?}") };
        assert_eq!(filtered.prefixes, [PREFIX.parse::<Ipv6Net>().expect("a prefix")]);
        assert_eq!(found.firewall.exceptions.len(), 1, "it sends from it");
    }

    #[test]
    fn the_security_groups_of_a_network_filter_interfaces_that_name_none_as_soon_as_they_are_declared() {
        let index = world("Routed", "local");
        let groups = |index: &Index, kept: &[KeptGuest]| {
            let found = seen(index, &[], kept);
            let groups = found.firewall.filters.ports.iter().flat_map(|port| port.groups.clone());
            groups.collect::<Vec<String>>()
        };
        assert_eq!(groups(&index, &[]), [""; 0]);
        let name = ObjectName::new("berth-shared", "default");
        let mut network = index.read().networks.get(&name).map(|found| berth_api::Network::clone(&found));
        let network = network.as_mut().expect("a Network");
        network.metadata.resource_version = Some("2".into());
        network.spec.security_groups = vec!["base".into()];
        index.apply::<berth_api::Network>(Event::Apply(network.clone()));
        assert_eq!(groups(&index, &[]), ["ns/base"], "the VM's status does not have them yet");
        let name = ObjectName::new("ns", "web");
        let mut vm = index.read().vms.get(&name).map(|vm| VM::clone(&vm)).expect("a VM");
        let interfaces = vm.status.clone().expect("a status").interfaces;
        vm.metadata.resource_version = Some("2".into());
        vm.spec.network_interfaces[0].security_groups = vec!["own".into()];
        vm.spec.network_interfaces[0].allowed_addresses = vec!["::/0".into()];
        index.apply::<VM>(Event::Apply(vm.clone()));
        assert_eq!(groups(&index, &[]), ["ns/own"], "its own take their place");
        vm.metadata.resource_version = Some("3".into());
        vm.spec.network_interfaces.clear();
        index.apply::<VM>(Event::Apply(vm.clone()));
        assert_eq!(groups(&index, &[]), ["ns/base"], "its guest has the card still");
        index.apply::<VM>(Event::Delete(vm));
        let (instance, ports) = ("i-0123456789ab".to_owned(), vec![port()]);
        let kept = KeptGuest { instance, name, uid: "u1".into(), interfaces, public: Vec::new(), ports };
        assert_eq!(groups(&index, &[kept]), ["ns/base"], "a guest whose VM is not known is not open");
    }

    #[test]
    fn a_guest_whose_vm_is_not_known_keeps_its_prefix() {
        let index = world("Routed", "local");
        let name = ObjectName::new("ns", "web");
        let vm = index.read().vms.get(&name).map(|vm| VM::clone(&vm)).expect("a VM");
        let interfaces = vm.status.clone().expect("a status").interfaces;
        index.apply::<VM>(Event::Delete(vm));
        let noted = json!({"interface": "nic0", "name": "containers", "address": "2001:db8:0:8:1::", "mode": "local",
            "prefixLength": 80});
        let noted: ForwardedAddress = serde_json::from_value(noted).expect("a record");
        let kept = KeptGuest {
            instance: "i-0123456789ab".into(),
            name,
            uid: "u1".into(),
            interfaces,
            public: vec![noted],
            ports: vec![port()],
        };
        let found = seen(&index, &[], &[kept]);
        assert_eq!(found.networks[0].prefixes.len(), 1, "{found:?}");
        assert_eq!(found.firewall.exceptions.len(), 1);
    }
}
