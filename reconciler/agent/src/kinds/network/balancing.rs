//! PublicIPs with ports that this host has → the ports of the firewall, the ways to guests on other hosts, and health checks. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use berth_api::public_ip::{PortTarget, PublicIPPort, SessionAffinity};
use berth_api::{IPPoolMode, PortProtocol, PublicIP, PublicIPStatus};
use berth_host::{Balanced, BalancedPort, NetworkConfig, Relay, relay_link};

use crate::index::Tables;
use crate::networking::{Check, CheckedTarget, Health, find};
use crate::probes::GuestAddress;

/// Returns the PublicIPs with ports that this host has.
fn held<'a>(tables: &'a Tables, host: &'a str) -> impl Iterator<Item = &'a Arc<PublicIP>> {
    tables.public_ips.all().map(|(_, ip)| ip).filter(move |ip| {
        let binding = ip.status.as_ref().and_then(|s| s.binding.as_ref());
        let is_here = binding.is_some_and(|binding| binding.host == host);
        is_here && !ip.spec.ports.is_empty() && ip.metadata.deletion_timestamp.is_none()
    })
}

/// Returns the networks (`namespace/name`) that need a part here to reach guests on other hosts.
pub(super) fn networks<'a>(tables: &'a Tables, host: &'a str) -> impl Iterator<Item = &'a String> {
    let forwarding =
        held(tables, host).filter_map(|ip| ip.status.as_ref()).flat_map(|s| &s.forwarding_addresses);
    forwarding.map(|forwarding| &forwarding.network)
}

/// The state of this host.
#[derive(Clone, Debug)]
pub(super) struct Here<'a> {
    pub(super) host: &'a str,
    /// Results of the health checks.
    pub(super) health: &'a BTreeMap<CheckedTarget, Health>,
    /// Public addresses of which targets count as healthy before their first check: an agent that has just started finds them here,
    /// and its predecessor's choice goes on.
    pub(super) trusted: BTreeSet<IpAddr>,
}

/// The needs of the ports of public addresses on this host.
#[derive(Clone, Debug, Default)]
pub(super) struct Balancing {
    pub(super) balanced: Vec<Balanced>,
    pub(super) checks: BTreeMap<CheckedTarget, Check>,
    /// Those of the checked targets that count as healthy before their first check.
    pub(super) trusted: Vec<CheckedTarget>,
    /// By bridge, the ways to guests of bridged networks on which this host has no address of its own.
    pub(super) relays: BTreeMap<String, Relay>,
}

/// Returns the needs of the ports of public addresses, and adds the ways to guests on other hosts to `networks`. `bridges`: by network.
/// `admit` returns the interface that an address is announced on, if it is; None if it is not used.
pub(super) fn balance(
    tables: &Tables,
    bridges: &BTreeMap<String, String>,
    networks: &mut BTreeMap<String, NetworkConfig>,
    here: &Here<'_>,
    mut admit: impl FnMut(IpAddr, IPPoolMode) -> Option<Option<String>>,
) -> Balancing {
    let mut wanted = Balancing::default();
    for ip in held(tables, here.host) {
        let Some(status) = &ip.status else { continue };
        let public = status.address.as_ref().and_then(|address| address.parse::<IpAddr>().ok());
        let Some(public) = public else { continue };
        let Some(announced_on) = admit(public, status.mode.unwrap_or_default()) else { continue };
        let mut sources = add_relays(status, public, bridges, networks, here.host);
        let relayed = add_lan_relays(tables, status, public, bridges, (&mut wanted.relays, &mut sources));
        let reached = |name: &str| -> Option<GuestAddress> {
            let target = status.targets.iter().find(|target| target.name == name)?;
            if is_on_bridge(tables, &target.network) {
                let (bridge, address) = by_lan(tables, &relayed, target)?;
                return Some(GuestAddress { bridge, address });
            }
            let bridge = bridges.get(&target.network)?;
            let is_here = target.host == here.host;
            if !is_here && !sources.iter().any(|(of, _)| of == bridge) {
                return None;
            }
            let link = if is_here { bridge.clone() } else { relay_link(bridge) };
            Some(GuestAddress { bridge: link, address: target.address.parse().ok()? })
        };
        let balanced = |entry: &PublicIPPort| {
            // A port that is given out is used once it is in the status: from then on it stays.
            let port = u16::try_from(ip.port_of(entry)?).ok()?;
            balanced_port(entry, (public, port), reached, here, &mut wanted)
        };
        let ports = ip.spec.ports.iter().filter_map(balanced).collect();
        let by_lan = status.targets.iter().filter_map(|target| by_lan(tables, &relayed, target));
        let is_of_family = |(_, address): &(String, IpAddr)| address.is_ipv6() == public.is_ipv6();
        let mut by_lan: Vec<(String, IpAddr)> = by_lan.filter(is_of_family).collect();
        by_lan.sort();
        by_lan.dedup();
        wanted.balanced.push(Balanced { public, announced_on, ports, sources, by_lan });
    }
    wanted.balanced.sort();
    wanted
}

fn is_on_bridge(tables: &Tables, network: &str) -> bool {
    find(tables, network).is_some_and(|network| network.host_bridge().is_some())
}

/// Returns the link of this host by which a target is reached as a machine of its network, with its address: a bridge that the host has, or
/// the relay of a network over an interface. None: it is on an overlay, or has no way from here. `relayed`: the relays, by network.
fn by_lan(
    tables: &Tables,
    relayed: &BTreeMap<&String, String>,
    target: &PortTarget,
) -> Option<(String, IpAddr)> {
    let network = find(tables, &target.network)?;
    let link = match &network.host_bridge()?.name {
        Some(name) => name.clone(),
        None => relayed.get(&target.network)?.clone(),
    };
    Some((link, target.address.parse().ok()?))
}

/// Adds the ways to targets on bridges over interfaces, on which this host has no address but the one that is allocated for that, and these
/// addresses to those under which connections are forwarded, by bridge; returns the links by network. All are of the family of the public
/// address.
fn add_lan_relays<'a>(
    tables: &Tables,
    status: &'a PublicIPStatus,
    public: IpAddr,
    bridges: &BTreeMap<String, String>,
    (relays, sources): (&mut BTreeMap<String, Relay>, &mut Vec<(String, IpAddr)>),
) -> BTreeMap<&'a String, String> {
    let is_of_family = |address: &IpAddr| address.is_ipv6() == public.is_ipv6();
    let mut relayed = BTreeMap::new();
    for forwarding in &status.forwarding_addresses {
        let Some(bridge) = bridges.get(&forwarding.network) else { continue };
        let network = find(tables, &forwarding.network);
        let is_over_interface = network
            .is_some_and(|network| network.host_bridge().is_some_and(|declared| declared.name.is_none()));
        let Some(address) = forwarding.address.parse::<IpAddr>().ok().filter(is_of_family) else { continue };
        if is_over_interface {
            let targets = status.targets.iter().filter(|target| target.network == forwarding.network);
            let targets = targets.filter_map(|target| target.address.parse::<IpAddr>().ok());
            let relay = relays.entry(bridge.clone()).or_insert_with(no_relay);
            extend(relay, address, targets.filter(is_of_family));
            sources.push((bridge.clone(), address));
            relayed.insert(&forwarding.network, relay_link(bridge));
        }
    }
    relayed
}

/// Adds the ways to targets on other hosts; returns the addresses under which connections to them are forwarded, by bridge. All are of the
/// family of the public address.
fn add_relays(
    status: &PublicIPStatus,
    public: IpAddr,
    bridges: &BTreeMap<String, String>,
    networks: &mut BTreeMap<String, NetworkConfig>,
    host: &str,
) -> Vec<(String, IpAddr)> {
    let mut sources = Vec::new();
    for forwarding in &status.forwarding_addresses {
        let Some(bridge) = bridges.get(&forwarding.network) else { continue };
        let Some(network) = networks.get_mut(bridge) else { continue };
        let is_of_family = |address: &IpAddr| address.is_ipv6() == public.is_ipv6();
        let Some(address) = forwarding.address.parse::<IpAddr>().ok().filter(is_of_family) else { continue };
        // Without a tunnel it leads nowhere.
        if network.tunnel.is_some() {
            let is_remote =
                |target: &&PortTarget| target.network == forwarding.network && target.host != host;
            let remote = status.targets.iter().filter(is_remote);
            let targets = remote.filter_map(|target| target.address.parse::<IpAddr>().ok());
            extend(network.relay.get_or_insert_with(no_relay), address, targets.filter(is_of_family));
            sources.push((bridge.clone(), address));
        }
    }
    sources
}

fn no_relay() -> Relay {
    Relay { addresses: Vec::new(), targets: Vec::new() }
}

fn extend(relay: &mut Relay, address: IpAddr, targets: impl Iterator<Item = IpAddr>) {
    relay.addresses.push(address);
    relay.targets.extend(targets);
    for list in [&mut relay.addresses, &mut relay.targets] {
        list.sort();
        list.dedup();
    }
}

/// Returns the port of a public address with the guests that get new connections, and adds their health checks.
fn balanced_port(
    declared: &PublicIPPort,
    (public, port): (IpAddr, u16),
    reached: impl Fn(&str) -> Option<GuestAddress>,
    here: &Here<'_>,
    wanted: &mut Balancing,
) -> Option<BalancedPort> {
    let number = |port: i64| u16::try_from(port).ok();
    let target_port = number(declared.port_of_targets()?)?;
    let mut targets = Vec::new();
    for name in &declared.targets {
        let Some(place) = reached(name.as_str()) else { continue };
        let address = place.address;
        if address.is_ipv4() != public.is_ipv4() {
            continue;
        }
        let is_available = match &declared.health_check {
            None => true,
            Some(health_check) => {
                let target =
                    CheckedTarget { public, port, protocol: declared.protocol, vm: name.to_string() };
                let asked = health_check.port.and_then(number).unwrap_or(target_port);
                let check = Check { place, port: asked, health_check: health_check.clone() };
                let is_trusted = here.trusted.contains(&public);
                let is_healthy = here.health.get(&target).map_or(is_trusted, Result::is_ok);
                if is_trusted {
                    wanted.trusted.push(target.clone());
                }
                wanted.checks.insert(target, check);
                is_healthy
            }
        };
        if is_available {
            targets.push(address);
        }
    }
    targets.sort();
    targets.dedup();
    let protocol = match declared.protocol {
        PortProtocol::Tcp => berth_host::PortProtocol::Tcp,
        PortProtocol::Udp => berth_host::PortProtocol::Udp,
    };
    let by_client = declared.session_affinity == SessionAffinity::ClientIP;
    Some(BalancedPort { protocol, port, by_client, targets, target_port })
}

#[cfg(test)]
mod tests {
    use berth_host::{HostInterface, HostLinks, Uplink};
    use kube::runtime::watcher::Event;
    use serde_json::{Value, json};

    use super::super::observe::{Actual, Desired, wanted};
    use super::*;
    use crate::index::Index;

    const BRIDGE: &str = "bth-00004d";

    /// A PublicIP that this host has, with a target here and one on host h2.
    fn world(port: &Value) -> Index {
        let index = Index::default();
        let vm = json!({
            "metadata": {"name": "web-1", "namespace": "ns", "uid": "u1", "resourceVersion": "1"},
            "spec": {"class": "s", "disks": [{"name": "d", "boot": true}], "networkInterfaces": [{"name": "nic0"}]},
            "status": {"observedGeneration": 1, "instanceID": "i-0123456789ab", "interfaces": [
                {"name": "nic0", "network": "ns/default", "macAddress": "52:54:00:00:00:01", "address": "10.77.0.2"}]},
        });
        index.apply::<berth_api::VM>(Event::Apply(serde_json::from_value(vm).expect("a VM")));
        let network = json!({
            "metadata": {"name": "default", "namespace": "ns", "resourceVersion": "1"}, "spec": {"cidr": "10.77.0.0/16"},
            "status": {"observedGeneration": 1, "vni": 77,
                "hosts": [{"name": "h1", "address": "192.0.2.1"}, {"name": "h2", "address": "192.0.2.2"}]},
        });
        index.apply::<berth_api::Network>(Event::Apply(serde_json::from_value(network).expect("a Network")));
        let target = |name: &str, host: &str, address: &str| json!({"name": name, "host": host, "network": "ns/default", "address": address});
        let ip = json!({
            "metadata": {"name": "web", "namespace": "ns", "resourceVersion": "1"}, "spec": {"ports": [port]},
            "status": {"observedGeneration": 1, "address": "198.18.100.1", "binding": {"host": "h1", "epoch": 1},
                "targets": [target("web-1", "h1", "10.77.0.2"), target("web-2", "h2", "10.77.0.3")],
                "forwardingAddresses": [{"network": "ns/default", "address": "10.77.255.254"}]},
        });
        index.apply::<PublicIP>(Event::Apply(serde_json::from_value(ip).expect("a PublicIP")));
        index
    }

    fn uplink() -> Uplink {
        let public = BTreeSet::from([[198, 18, 100, 1].into()]);
        Uplink { interface: Ok("eth0".to_owned()), ipv6_obstacle: None, own: BTreeSet::new(), public }
    }

    fn targets(wanted: &Desired) -> Vec<String> {
        wanted.firewall.balanced[0].ports[0].targets.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_port_leads_to_its_targets_here_and_by_a_relay_to_those_on_other_hosts() {
        let index = world(
            &json!({"name": "https", "port": 443, "targetPort": 8443, "targets": ["web-1", "web-2", "web-3"]}),
        );
        let seen = Actual { host: "h1", ..Actual::default() };
        let found = wanted(&index.read(), &seen);
        let [balanced] = &found.firewall.balanced[..] else { panic!("{found:?}") };
        assert_eq!((balanced.ports[0].port, balanced.ports[0].target_port), (443, 8443));
        assert_eq!(targets(&found), ["10.77.0.2", "10.77.0.3"]);
        let source = IpAddr::from([10, 77, 255, 254]);
        assert_eq!(balanced.sources, [(BRIDGE.to_owned(), source)]);
        let relay = Relay { addresses: vec![source], targets: vec![IpAddr::from([10, 77, 0, 3])] };
        assert_eq!(found.networks[0].relay, Some(relay));
        assert!(found.checks.is_empty() && found.firewall.forwards.is_empty());
        let elsewhere = wanted(&index.read(), &Actual { host: "h2", ..Actual::default() });
        assert!(elsewhere.firewall.balanced.is_empty(), "another host has it");
    }

    #[test]
    fn a_port_of_an_ipv6_address_leads_to_the_ipv6_addresses_of_guests_here_and_on_other_hosts() {
        let index = world(&json!({"name": "http", "port": 80, "targets": ["web-1", "web-2"]}));
        let mut ip =
            index.read().public_ips.all().next().map(|(_, ip)| PublicIP::clone(ip)).expect("a PublicIP");
        ip.metadata.resource_version = Some("2".to_owned());
        let status = ip.status.as_mut().expect("a status");
        status.address = Some("2001:db8::1".to_owned());
        status.targets[0].address = "fd00:60::2".to_owned();
        index.apply::<PublicIP>(Event::Apply(ip.clone()));
        let found = wanted(&index.read(), &Actual { host: "h1", ..Actual::default() });
        assert_eq!(found.firewall.balanced[0].public.to_string(), "2001:db8::1");
        assert_eq!(targets(&found), ["fd00:60::2"], "the other one has an IPv4 address");
        assert!(found.firewall.balanced[0].sources.is_empty(), "the address is of IPv4");
        assert_eq!(found.networks[0].relay, None);

        ip.metadata.resource_version = Some("3".to_owned());
        let status = ip.status.as_mut().expect("a status");
        status.targets[1].address = "fd00:60::3".to_owned();
        status.forwarding_addresses[0].address = "fd00:60::ffff".to_owned();
        index.apply::<PublicIP>(Event::Apply(ip));
        let found = wanted(&index.read(), &Actual { host: "h1", ..Actual::default() });
        assert_eq!(targets(&found), ["fd00:60::2", "fd00:60::3"]);
        let address = |text: &str| text.parse::<IpAddr>().expect("an address");
        let source = address("fd00:60::ffff");
        assert_eq!(found.firewall.balanced[0].sources, [(BRIDGE.to_owned(), source)]);
        let relay = Relay { addresses: vec![source], targets: vec![address("fd00:60::3")] };
        assert_eq!(found.networks[0].relay, Some(relay));
    }

    #[test]
    fn a_target_on_another_host_is_checked_by_ipv6_from_the_address_in_its_network() {
        let index = world(
            &json!({"name": "http", "port": 80, "targets": ["web-2"], "healthCheck": {"interval": "2s"}}),
        );
        let mut ip =
            index.read().public_ips.all().next().map(|(_, ip)| PublicIP::clone(ip)).expect("a PublicIP");
        ip.metadata.resource_version = Some("2".to_owned());
        let status = ip.status.as_mut().expect("a status");
        status.address = Some("2001:db8::1".to_owned());
        status.targets[1].address = "fd00:60::3".to_owned();
        status.forwarding_addresses[0].address = "fd00:60::ffff".to_owned();
        index.apply::<PublicIP>(Event::Apply(ip));
        let found = wanted(&index.read(), &Actual { host: "h1", ..Actual::default() });
        let places: Vec<(String, String)> = found
            .checks
            .values()
            .map(|check| (check.place.bridge.clone(), check.place.address.to_string()))
            .collect();
        assert_eq!(places, [("btr-00004d".to_owned(), "fd00:60::3".to_owned())]);
    }

    #[test]
    fn a_port_that_is_given_out_is_used_once_it_is_in_the_status() {
        let port = json!({"name": "ssh", "targetPort": 22, "targets": ["web-1"]});
        let index = world(&port);
        let ports = |index: &Index| -> Vec<(u16, u16)> {
            let found = wanted(&index.read(), &Actual { host: "h1", ..Actual::default() });
            found.firewall.balanced[0].ports.iter().map(|port| (port.port, port.target_port)).collect()
        };
        assert!(ports(&index).is_empty(), "it has none yet");
        let mut ip =
            index.read().public_ips.all().next().map(|(_, ip)| PublicIP::clone(ip)).expect("a PublicIP");
        ip.metadata.resource_version = Some("2".to_owned());
        let given = json!([{"name": "ssh", "port": 30_017, "protocol": "tcp", "available": 0, "total": 1}]);
        ip.status.as_mut().expect("a status").ports = serde_json::from_value(given).expect("ports");
        index.apply::<PublicIP>(Event::Apply(ip));
        assert_eq!(ports(&index), [(30_017, 22)]);
    }

    #[test]
    fn a_target_whose_check_does_not_succeed_gets_no_connections() {
        let index = world(&json!({"name": "web", "port": 80, "targets": ["web-1", "web-2"],
            "healthCheck": {"path": "/healthz", "port": 8081}}));
        let uplink = uplink();
        let mut seen = Actual { host: "h1", uplink: Some(&uplink), ..Actual::default() };
        let unchecked = wanted(&index.read(), &seen);
        assert!(targets(&unchecked).is_empty(), "nothing is known yet");
        let places: Vec<(String, u16)> =
            unchecked.checks.values().map(|check| (check.place.bridge.clone(), check.port)).collect();
        assert_eq!(places, [(BRIDGE.to_owned(), 8081), ("btr-00004d".to_owned(), 8081)]);
        let mut both = unchecked.checks.keys().cloned();
        seen.health.insert(both.next().expect("web-1"), Err("refused".to_owned()));
        seen.health.insert(both.next().expect("web-2"), Ok(()));
        assert_eq!(targets(&wanted(&index.read(), &seen)), ["10.77.0.3"]);
        // An agent that has just started.
        let started = Actual { trusts_before_checks: true, health: BTreeMap::new(), ..seen };
        let found = wanted(&index.read(), &started);
        assert_eq!((targets(&found).len(), found.trusted.len()), (2, 2), "a restart interrupts nothing");
    }

    #[test]
    fn without_a_tunnel_there_is_no_way_to_another_host() {
        let index = world(&json!({"name": "web", "port": 80, "targets": ["web-1", "web-2"]}));
        let network = json!({
            "metadata": {"name": "default", "namespace": "ns", "resourceVersion": "2"}, "spec": {"cidr": "10.77.0.0/16"},
            "status": {"observedGeneration": 1, "vni": 77, "hosts": [{"name": "h1", "address": "192.0.2.1"}]},
        });
        index.apply::<berth_api::Network>(Event::Apply(serde_json::from_value(network).expect("a Network")));
        let found = wanted(&index.read(), &Actual { host: "h1", ..Actual::default() });
        assert_eq!(targets(&found), ["10.77.0.2"]);
        assert_eq!(found.networks[0].relay, None);
    }
    #[test]
    fn targets_on_a_bridge_are_reached_by_the_hosts_own_bridge_on_whichever_host_they_are() {
        let index = world(&json!({"name": "http", "port": 80, "targets": ["web-1"]}));
        let lan = json!({
            "metadata": {"name": "lan", "namespace": "berth-shared", "resourceVersion": "1"},
            "spec": {"type": "Bridge", "bridge": {"name": "vmbr0"}, "cidr": "192.0.2.0/24"},
            "status": {"observedGeneration": 1, "vni": 78},
        });
        index.apply::<berth_api::Network>(Event::Apply(serde_json::from_value(lan).expect("a Network")));
        let target = |name: &str, host: &str, address: &str| json!({"name": name, "host": host, "network": "berth-shared/lan", "address": address});
        let check = json!({"type": "tcp"});
        let port = json!({"name": "http", "port": 80, "targets": ["web-1", "web-2"], "healthCheck": check});
        let ip = json!({
            "metadata": {"name": "web", "namespace": "ns", "resourceVersion": "2"}, "spec": {"ports": [port]},
            "status": {"observedGeneration": 1, "address": "198.18.100.1", "binding": {"host": "h1", "epoch": 1},
                "targets": [target("web-1", "h1", "192.0.2.50"), target("web-2", "h2", "192.0.2.51")]},
        });
        index.apply::<PublicIP>(Event::Apply(serde_json::from_value(ip).expect("a PublicIP")));
        let uplink = uplink();
        let seen = Actual { host: "h1", uplink: Some(&uplink), ..Actual::default() };
        let found = wanted(&index.read(), &seen);
        let of = |last: u8| ("vmbr0".to_owned(), IpAddr::from([192, 0, 2, last]));
        assert_eq!(found.firewall.balanced[0].by_lan, [of(50), of(51)]);
        assert!(found.firewall.balanced[0].sources.is_empty());
        let places: Vec<&str> = found.checks.values().map(|check| check.place.bridge.as_str()).collect();
        assert_eq!(places, ["vmbr0", "vmbr0"]);
    }

    #[test]
    fn ipv6_targets_on_a_bridge_are_reached_by_the_hosts_own_bridge_too() {
        let index = world(&json!({"name": "http", "port": 80, "targets": ["web-1"]}));
        let lan = json!({
            "metadata": {"name": "lan", "namespace": "berth-shared", "resourceVersion": "1"},
            "spec": {"type": "Bridge", "bridge": {"name": "vmbr0"}, "ipv6CIDR": "2001:db8:7::/64"},
            "status": {"observedGeneration": 1, "vni": 78},
        });
        index.apply::<berth_api::Network>(Event::Apply(serde_json::from_value(lan).expect("a Network")));
        let target = |name: &str, address: &str| json!({"name": name, "host": "h2", "network": "berth-shared/lan", "address": address});
        let port = json!({"name": "http", "port": 80, "targets": ["web-1", "web-2"]});
        let ip = json!({
            "metadata": {"name": "web", "namespace": "ns", "resourceVersion": "2"}, "spec": {"ports": [port]},
            "status": {"observedGeneration": 1, "address": "2001:db8:9::1", "binding": {"host": "h1", "epoch": 1},
                "targets": [target("web-1", "2001:db8:7::50"), target("web-2", "192.0.2.51")]},
        });
        index.apply::<PublicIP>(Event::Apply(serde_json::from_value(ip).expect("a PublicIP")));
        let found = wanted(&index.read(), &Actual { host: "h1", ..Actual::default() });
        assert_eq!(targets(&found), ["2001:db8:7::50"]);
        let address: IpAddr = "2001:db8:7::50".parse().expect("an address");
        let by_lan = ("vmbr0".to_owned(), address);
        assert_eq!(found.firewall.balanced[0].by_lan, [by_lan], "and none of the other family");
    }

    #[test]
    fn targets_over_an_interface_are_reached_by_a_relay_on_whichever_host_they_are() {
        let index = world(&json!({"name": "http", "port": 80, "targets": ["web-1"]}));
        let lan = json!({
            "metadata": {"name": "lan", "namespace": "berth-shared", "resourceVersion": "1"},
            "spec": {"type": "Bridge", "bridge": {"interface": "eth1"}, "cidr": "192.0.2.0/24"},
            "status": {"observedGeneration": 1, "vni": 78},
        });
        index.apply::<berth_api::Network>(Event::Apply(serde_json::from_value(lan).expect("a Network")));
        let target = |name: &str, host: &str, address: &str| json!({"name": name, "host": host, "network": "berth-shared/lan", "address": address});
        let port = json!({"name": "http", "port": 80, "targets": ["web-1", "web-2"], "healthCheck": {}});
        let mut ip = json!({
            "metadata": {"name": "web", "namespace": "ns", "resourceVersion": "2"}, "spec": {"ports": [port]},
            "status": {"observedGeneration": 1, "address": "198.18.100.1", "binding": {"host": "h1", "epoch": 1},
                "targets": [target("web-1", "h1", "192.0.2.50"), target("web-2", "h2", "192.0.2.51")]},
        });
        let uplink = uplink();
        let eth1 = HostInterface { name: "eth1".into(), mtu: 1500, up: true, ..HostInterface::default() };
        let links = HostLinks { interfaces: vec![eth1], ..HostLinks::default() };
        let seen = Actual {
            host: "h1",
            uplink: Some(&uplink),
            links,
            trusts_before_checks: true,
            ..Actual::default()
        };
        let mut found = |version: &str| {
            ip["metadata"]["resourceVersion"] = version.into();
            index.apply::<PublicIP>(Event::Apply(serde_json::from_value(ip.clone()).expect("a PublicIP")));
            ip["status"]["forwardingAddresses"] =
                json!([{"network": "berth-shared/lan", "address": "192.0.2.59"}]);
            wanted(&index.read(), &seen)
        };
        let without = found("3");
        assert!(targets(&without).is_empty() && without.checks.is_empty(), "no address there yet");
        let with = found("4");
        assert_eq!(targets(&with), ["192.0.2.50", "192.0.2.51"]);
        let address = |last: u8| IpAddr::from([192, 0, 2, last]);
        let of = |last: u8| ("btr-00004e".to_owned(), address(last));
        assert_eq!(with.firewall.balanced[0].by_lan, [of(50), of(51)]);
        let source = ("bth-00004e".to_owned(), address(59));
        assert_eq!(with.firewall.balanced[0].sources, [source], "its own, if others have the relay too");
        let relay = Relay { addresses: vec![address(59)], targets: vec![address(50), address(51)] };
        let [part] = &with.bridged[..] else { panic!("{with:?}") };
        assert_eq!((part.bridge.as_str(), &part.relay), ("bth-00004e", &Some(relay)));
        let places: Vec<&str> = with.checks.values().map(|check| check.place.bridge.as_str()).collect();
        assert_eq!(places, ["btr-00004e", "btr-00004e"]);
    }
}
