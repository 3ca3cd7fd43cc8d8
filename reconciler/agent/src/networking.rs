//! The networks of this host as applied last: bridges, firewall, probes of public addresses, and the names of taps.
//!
//! The host's networks have no object of their own, so what is known of them is kept here: the networks' reconcile
//! writes it, VMs and the Host read it.

mod burst;
mod checks;
mod conflicts;
mod leases;
mod ports;
mod probes;
mod senders;
mod servers;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use berth_api::host::{HostNetwork, HostVLAN};
use berth_api::network::link_local_of_mac;
use berth_api::vm::{ConfiguredRoute, InterfaceStatus, NetworkInterface, ObservedAddresses};
use berth_api::{BridgeSpec, HostStatus, Network, Reason, ResourceName, VM, condition};
use berth_qemu::single_flight::SingleFlight;
use ipnet::Ipv6Net;
use kube::ResourceExt;
use tokio::time::Instant;

use crate::error::Error;
use crate::index::Tables;
use crate::journal::Journal;
use crate::key::{Key, ObjectName};
use crate::public_address::GivenAddress;
use berth_engine::Queue;
use berth_host::{
    BridgeChoice, BridgedNetwork, Firewall, HostBridge, HostInterface, HostLinks, Ipv6Route, NetworkConfig,
    Route, System, WireguardConfig,
};

use burst::Burst;
pub(crate) use checks::{Check, CheckedTarget, Checks, Health};
pub(crate) use conflicts::{Conflicts, LOOK_AGAIN};
pub(crate) use leases::Leases;
pub(crate) use ports::{GuestPort, GuestPorts, per_port, ports_of};
pub(crate) use probes::{Probe, Probes, RETRY_TAKEN};
pub(crate) use senders::Senders;
pub(crate) use servers::Servers;

/// Maximum number of bridges, of interfaces, and of VLANs of one, in the API.
const MAX_NETWORKS: usize = 64;
/// The largest MTU, and the maximum length of the use of an interface, in the API.
const MOST_MTU: u32 = 65_536;
const MAX_USE: usize = 128;

/// State applied since this agent started.
#[derive(Debug)]
pub(crate) struct Networks {
    applied: Mutex<Applied>,
    /// Results of the probes of public addresses that are to be announced.
    pub(crate) probes: Probes,
    /// Health checks of the targets of public addresses that this host has.
    pub(crate) checks: Checks,
    /// Addresses of bridged networks that other machines have.
    pub(crate) conflicts: Conflicts,
    /// Addresses each tap's guest may send from.
    pub(crate) ports: GuestPorts,
    /// Addresses that guests were seen to send from.
    pub(crate) senders: Senders,
    /// Leases of guests on networks whose addresses another DHCP server gives out.
    pub(crate) leases: Leases,
    /// Ends of the DHCP and DNS servers of networks.
    pub(crate) servers: Servers,
    /// The journals of guests that come from other hosts, by instance: their networks are made before their taps.
    arriving: Mutex<BTreeMap<String, Journal>>,
    /// Serialises passes. A pass that applies everything again serves all callers waiting for one.
    pub(crate) flight: SingleFlight<()>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Applied {
    pub(crate) networks: BTreeMap<String, NetworkConfig>,
    /// Parts of bridged networks, by bridge.
    pub(crate) bridged: BTreeMap<String, BridgedNetwork>,
    /// The interface of WireGuard, if there is one.
    pub(crate) wireguard: Option<WireguardConfig>,
    pub(crate) firewall: Option<Arc<Firewall>>,
    /// Whether others may be in effect than these, since a write of the firewall that has not succeeded.
    pub(crate) may_have_other_rules: bool,
    /// How often rules were lost to other programs.
    lost_rules: u64,
    /// Writes of other rules.
    rule_writes: Burst,
    /// Passes over the networks on behalf of VMs.
    vm_passes: Burst,
    /// Public addresses of VMs here that are not forwarded, and why.
    pub(crate) refused: BTreeMap<IpAddr, RefusedAddress>,
    /// The bridge of each network (`namespace/name`) that has one here.
    pub(crate) bridges: BTreeMap<String, String>,
    /// By bridge, the networks that could not be made at the last attempt, and why.
    pub(crate) failed: BTreeMap<String, FailedNetwork>,
    /// Networks that are not created here, and why.
    pub(crate) refused_networks: BTreeMap<String, String>,
    /// Bridged networks of VMs here that have no connection, and why.
    pub(crate) disconnected: Vec<String>,
    /// The taps that were on a bridge at the last look, and those made since. None before the first look.
    pub(crate) taps: Option<BTreeSet<String>>,
    /// When everything was last applied again.
    pub(crate) ensured_at: Option<Instant>,
}

impl Applied {
    /// Returns the firewall's rules, unless others may be in effect.
    pub(crate) fn rules_in_force(&self) -> Option<Arc<Firewall>> {
        self.firewall.clone().filter(|_| !self.may_have_other_rules)
    }

    /// Returns how long the next write of other rules waits for further changes. None: it does not, as when the rules may not be in force.
    pub(crate) fn left_to_gather(&self) -> Option<Duration> {
        self.rule_writes.left_to_gather().filter(|_| self.rules_in_force().is_some())
    }

    /// Returns how long the next pass on behalf of a VM waits for others. None: it does not.
    pub(crate) fn left_to_gather_vms(&self) -> Option<Duration> {
        self.left_to_gather().max(self.vm_passes.left_to_gather())
    }

    /// Records a pass on behalf of a VM.
    pub(crate) fn record_vm_pass(&mut self) {
        self.vm_passes.record();
    }
}

/// Why a network could not be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FailedNetwork {
    pub(crate) reason: Reason,
    pub(crate) text: String,
    /// Whether its bridge, tunnel and routes are as they should be, and its DHCP and DNS server is not.
    pub(crate) is_linked: bool,
}

/// Why a public address is not forwarded to its VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RefusedAddress {
    pub(crate) reason: Reason,
    /// Message for people: the cause and what to do.
    pub(crate) text: String,
    /// MAC address of the machine that has the address instead.
    pub(crate) mac: Option<String>,
}

impl Applied {
    /// Records that a write of the firewall begins. Returns what [`Self::end_rules`] is to be given.
    pub(crate) fn begin_rules(&mut self) -> u64 {
        self.may_have_other_rules = true;
        self.lost_rules
    }

    /// Records that a write of these rules has succeeded; returns those before. Rules that were lost since it began may be these.
    pub(crate) fn end_rules(&mut self, begun: u64, rules: Arc<Firewall>) -> Option<Arc<Firewall>> {
        self.may_have_other_rules = self.lost_rules != begun;
        if self.firewall.as_ref() != Some(&rules) {
            self.rule_writes.record();
        }
        self.firewall.replace(rules)
    }

    /// Records that another program has removed rules: they are written again, also those of a write that has not ended.
    pub(crate) fn lose_rules(&mut self) {
        self.firewall = None;
        self.lost_rules = self.lost_rules.wrapping_add(1);
    }

    /// Whether this host has no rules, and none are being written.
    pub(crate) fn has_no_rules(&self) -> bool {
        !self.may_have_other_rules && self.firewall.as_deref().is_some_and(Firewall::is_empty)
    }
}

impl Networks {
    pub(crate) fn new(system: Arc<dyn System>, queue: Arc<Queue<Key>>) -> Self {
        Self {
            applied: Mutex::default(),
            checks: Checks::new(system.clone(), queue.clone()),
            probes: Probes::new(system, queue),
            conflicts: Conflicts::default(),
            ports: GuestPorts::default(),
            senders: Senders::default(),
            leases: Leases::default(),
            servers: Servers::default(),
            arriving: Mutex::default(),
            flight: SingleFlight::default(),
        }
    }

    pub(crate) fn applied(&self) -> MutexGuard<'_, Applied> {
        self.applied.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a tap that was made.
    pub(crate) fn tap_made(&self, tap: &str) {
        if let Some(taps) = &mut self.applied().taps {
            taps.insert(tap.to_owned());
        }
    }

    /// Whether a tap was not seen at the last look. One that was made meanwhile may be there.
    pub(crate) fn may_miss(&self, tap: &str) -> bool {
        self.applied().taps.as_ref().is_none_or(|taps| !taps.contains(tap))
    }

    /// Has networks made for a guest that comes from another host, or not any more.
    pub(crate) fn set_arriving(&self, instance: &str, journal: Option<Journal>) {
        let mut arriving = self.arriving.lock().unwrap_or_else(PoisonError::into_inner);
        match journal {
            Some(journal) => drop(arriving.insert(instance.to_owned(), journal)),
            None => drop(arriving.remove(instance)),
        }
    }

    /// Returns the guests that come from other hosts, by instance.
    pub(crate) fn arriving(&self) -> BTreeMap<String, Journal> {
        self.arriving.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns why this public address cannot be forwarded to its VM.
    pub(crate) fn refused(&self, public: IpAddr) -> Option<RefusedAddress> {
        self.applied().refused.get(&public).cloned()
    }

    /// Returns all public addresses that cannot be forwarded, in order.
    pub(crate) fn all_refused(&self) -> BTreeMap<IpAddr, RefusedAddress> {
        self.applied().refused.clone()
    }

    /// Returns the bridge of a network (`namespace/name`): the one it has here, else the one it is to get.
    pub(crate) fn bridge_of(&self, tables: &Tables, network: &str) -> Option<String> {
        let here = self.applied().bridges.get(network).cloned();
        here.or_else(|| find(tables, network)?.bridge_name())
    }

    /// Returns the interface of the host by which a network (`namespace/name`) is reached from the host itself: its bridge here, or
    /// for a bridged network the one that leads to it.
    pub(crate) fn access_of(&self, tables: &Tables, network: &str) -> Option<String> {
        let host_bridge =
            find(tables, network).and_then(|found| Some(bridge_choice(found.host_bridge()?)?.name()));
        host_bridge.or_else(|| self.bridge_of(tables, network))
    }

    /// Returns the addresses that the guest of an instance uses by the interfaces of these slots, and those that it has leased. None:
    /// they are not known yet.
    pub(crate) fn observed(
        &self,
        tables: &Tables,
        vm: &VM,
        instance: &str,
        slots: &BTreeMap<String, u8>,
    ) -> Option<Vec<ObservedAddresses>> {
        let mut seen = self.senders.of(instance, slots)?;
        let interfaces = vm.status.iter().flat_map(|status| &status.interfaces);
        for interface in interfaces.filter(|interface| slots.contains_key(&interface.name)) {
            let bridge = self.bridge_of(tables, &interface.network);
            let lease = bridge.and_then(|bridge| self.leases.of(&bridge, &interface.mac_address));
            let Some(leased_address) = lease.map(|lease| lease.to_string()) else { continue };
            let (name, leased_address) = (interface.name.clone(), Some(leased_address));
            match seen.iter_mut().find(|one| one.name == name) {
                Some(one) => one.leased_address = leased_address,
                None => seen.push(ObservedAddresses { name, addresses: Vec::new(), leased_address }),
            }
        }
        seen.sort_by(|a, b| a.name.cmp(&b.name));
        Some(seen)
    }

    /// Checks that these networks (`namespace/name`) could be made here at the last attempt.
    ///
    /// *Errors:* [`Error::NetworkFailed`] with the first one that could not.
    pub(crate) fn must_be_made<'a>(
        &self,
        tables: &Tables,
        networks: impl Iterator<Item = &'a String>,
    ) -> Result<(), Error> {
        self.must_not_fail(tables, networks, |_| true)
    }

    /// Checks that these networks (`namespace/name`) have their bridges here, with all that the rules rely on. Their servers may fail.
    ///
    /// *Errors:* [`Error::NetworkFailed`] with the first one that has not.
    pub(crate) fn must_be_linked<'a>(
        &self,
        tables: &Tables,
        networks: impl Iterator<Item = &'a String>,
    ) -> Result<(), Error> {
        self.must_not_fail(tables, networks, |failed| !failed.is_linked)
    }

    fn must_not_fail<'a>(
        &self,
        tables: &Tables,
        networks: impl Iterator<Item = &'a String>,
        counts: impl Fn(&FailedNetwork) -> bool,
    ) -> Result<(), Error> {
        for network in networks {
            let Some(bridge) = self.bridge_of(tables, network) else { continue };
            let failed = self.applied().failed.get(&bridge).filter(|failed| counts(failed)).cloned();
            if let Some(FailedNetwork { reason, text: detail, .. }) = failed {
                return Err(Error::NetworkFailed { network: network.clone(), reason, detail });
            }
        }
        Ok(())
    }

    /// Describes the networks that could not be made, and those whose DHCP and DNS servers end again and again.
    pub(crate) fn failing_servers(&self) -> Vec<String> {
        let bridges = self.applied().bridges.clone();
        self.servers.failing(&bridges)
    }

    /// Returns the networks (`namespace/name`) that have a bridge here or are to get one.
    pub(crate) fn bridged(&self) -> Vec<String> {
        self.applied().bridges.keys().cloned().collect()
    }

    /// Whether this public address is currently forwarded to this private one.
    pub(crate) fn has_forward(&self, public: IpAddr, private: IpAddr) -> bool {
        let applied = self.applied();
        let forwards = applied.firewall.as_ref().map(|f| f.forwards.as_slice()).unwrap_or_default();
        forwards.iter().any(|f| f.public == public && f.private == private)
    }

    /// Whether this public prefix is currently routed to this private address.
    pub(crate) fn has_route(&self, prefix: Ipv6Net, private: IpAddr) -> bool {
        let applied = self.applied();
        let routed = applied.firewall.as_ref().map(|f| f.prefixes.as_slice()).unwrap_or_default();
        routed.iter().any(|routed| routed.prefix == prefix && IpAddr::V6(routed.via) == private)
    }
}

/// Returns the Network of this `namespace/name`.
pub(crate) fn find(tables: &Tables, network: &str) -> Option<Arc<Network>> {
    let (namespace, name) = network.split_once('/')?;
    tables.networks.get(&ObjectName::new(namespace, name))
}

/// Returns the declared bridge as the host understands it. None: it names neither a bridge nor an interface.
pub(crate) fn bridge_choice(declared: &BridgeSpec) -> Option<BridgeChoice> {
    if let Some(name) = &declared.name {
        return Some(BridgeChoice::Named(name.clone()));
    }
    let vlan = declared.vlan.map(u16::try_from).transpose().ok()?;
    Some(BridgeChoice::Over { interface: declared.interface.clone()?, vlan })
}

/// Returns why a trunk cannot be on this bridge of the host, as the end of a sentence that begins with the host. A bridge with VLAN
/// filtering takes the tag of its ports' default VLAN off: a guest would send frames without a tag that nothing has checked.
pub(crate) fn without_trunk(declared: &BridgeSpec, links: &HostLinks) -> Option<String> {
    let name = declared.name.as_ref().filter(|_| !declared.trunk().is_empty())?;
    let is_filtering = links.bridges.iter().any(|bridge| bridge.name == *name && bridge.filters_vlans);
    is_filtering.then(|| {
        format!(
            "has VLAN filtering on bridge {name}, which takes the tags of one VLAN off: turn it off, name a bridge without it in \
             bridge.name, or leave bridge.trunkVLANs out"
        )
    })
}

/// Returns the families of which the host's firewall sees bridged packets, as its status lists them.
pub(crate) fn filtered_bridges(links: &HostLinks) -> Vec<String> {
    let families = [(HostStatus::IPV4, links.filters_ipv4), (HostStatus::IPV6, links.filters_ipv6)];
    let filtered = families.into_iter().filter(|(_, is_filtered)| *is_filtered);
    filtered.map(|(family, _)| family.to_owned()).collect()
}

/// Returns the bridges and interfaces of the host as its status lists them, at most so many of each.
pub(crate) fn host_networks(links: &HostLinks) -> Vec<HostNetwork> {
    let mtu = |mtu: u32| i64::from(mtu.min(MOST_MTU));
    let bridge = |bridge: &HostBridge| HostNetwork {
        name: bridge.name.clone(),
        kind: HostNetwork::BRIDGE.to_owned(),
        mtu: mtu(bridge.mtu),
        up: bridge.up,
        ..HostNetwork::default()
    };
    let vlan = |(id, name): &(u16, String)| HostVLAN { id: (*id).into(), name: name.clone() };
    let interface = |interface: &HostInterface| HostNetwork {
        name: interface.name.clone(),
        kind: if interface.bonded { HostNetwork::PORT } else { HostNetwork::INTERFACE }.to_owned(),
        mtu: mtu(interface.mtu),
        up: interface.up,
        carrier: interface.up.then_some(interface.carrier),
        in_use: condition::cut(interface.in_use.as_deref().unwrap_or_default(), MAX_USE).to_owned(),
        vlans: interface.vlans.iter().map(vlan).take(MAX_NETWORKS).collect(),
    };
    let bridges = links.bridges.iter().map(bridge).take(MAX_NETWORKS);
    bridges.chain(links.interfaces.iter().map(interface).take(MAX_NETWORKS)).collect()
}

/// Returns the routes of the guest of an interface, its own and those of its network. A default route of its own is among them.
pub(crate) fn routes_for(of_network: &[Route], interface: &InterfaceStatus) -> Vec<Route> {
    Route::with_network(&own_routes(interface), of_network)
}

/// Returns the IPv4 routes that an interface declares.
pub(crate) fn own_routes(interface: &InterfaceStatus) -> Vec<Route> {
    let default = interface.gateway.as_ref().and_then(|via| via.parse().ok()).map(Route::default_by);
    let parse =
        |route: &ConfiguredRoute| Some(Route { to: route.to.parse().ok()?, via: route.via.parse().ok()? });
    default.into_iter().chain(interface.routes.iter().filter_map(parse)).collect()
}

/// Returns the IPv6 routes that an interface declares, except for its default route.
pub(crate) fn own_ipv6_routes(interface: &InterfaceStatus) -> Vec<Ipv6Route> {
    let parse = |route: &ConfiguredRoute| {
        Some(Ipv6Route { to: route.to.parse().ok()?, via: route.via.parse().ok()? })
    };
    interface.routes.iter().filter_map(parse).filter(|route| !route.is_default()).collect()
}

/// Returns the router of the IPv6 default route that an interface declares. In an overlay its guest follows the advertisements of the
/// gateway, unless it has no DHCPv6.
pub(crate) fn own_ipv6_gateway(network: &Network, interface: &InterfaceStatus) -> Option<Ipv6Addr> {
    let is_heeded = network.host_bridge().is_some() || network.is_without_dhcp6(interface.dhcp6);
    interface.ipv6_gateway.as_ref().filter(|_| is_heeded)?.parse().ok()
}

/// Returns the largest packet of an interface: its own, unless that of its network is smaller.
pub(crate) fn mtu_for(of_network: u16, own: Option<i64>) -> u16 {
    own.and_then(|own| u16::try_from(own).ok()).map_or(of_network, |own| own.min(of_network))
}

/// Returns the declared routes of a network's guests.
pub(crate) fn routes_of(network: &Network) -> Vec<Route> {
    let parse = |route: &berth_api::network::Route| {
        Some(Route { to: route.to.parse().ok()?, via: route.via.parse().ok()? })
    };
    network.spec.routes.iter().filter_map(parse).collect()
}

/// Returns the declared IPv6 routes of a network's guests.
pub(crate) fn ipv6_routes_of(network: &Network) -> Vec<Ipv6Route> {
    let parse = |route: &berth_api::network::Route| {
        Some(Ipv6Route { to: route.to.parse().ok()?, via: route.via.parse().ok()? })
    };
    network.spec.routes.iter().filter_map(parse).filter(|route| !route.is_default()).collect()
}

/// Returns the IPv6 routes that the guest of an interface gets, its own and those of its network: none by itself.
pub(crate) fn ipv6_routes_for(of_network: &[Ipv6Route], interface: &InterfaceStatus) -> Vec<Ipv6Route> {
    let own = [interface.ipv6_address.parse().ok(), link_local_of_mac(&interface.mac_address)];
    let mut routes = Ipv6Route::with_network(&own_ipv6_routes(interface), of_network);
    routes.retain(|route| !own.contains(&Some(route.via)));
    routes
}

/// Returns the common prefix of the names of all taps of an instance.
pub(crate) fn tap_prefix(instance: &str) -> String {
    let hex: String = instance.trim_start_matches("i-").chars().take(8).collect();
    format!("btt{hex}n")
}

/// Returns the name of the tap of the network interface in this slot of an instance.
pub(crate) fn tap_of(instance: &str, slot: u8) -> String {
    format!("{}{slot}", tap_prefix(instance))
}

/// Returns the id of the network card in this slot.
pub(crate) fn card_of(slot: u8) -> String {
    format!("nic{slot}")
}

/// Returns the hostname given to the guest.
pub(crate) fn hostname(vm: &VM) -> String {
    let own = vm.spec.bootstrap.as_ref().and_then(|b| b.hostname.as_ref());
    own.map_or_else(|| vm.name_any(), ToString::to_string)
}

/// Returns the name given to the guest: fully qualified if the VM has a domain.
pub(crate) fn guest_name(vm: &VM) -> String {
    let domain = vm.spec.bootstrap.as_ref().and_then(|b| b.domain.as_deref());
    let hostname = hostname(vm);
    domain.map_or_else(|| hostname.clone(), |domain| format!("{hostname}.{domain}"))
}

/// Returns the names of the security groups of an interface in a VM's status. Those of the spec, or else of the Network, count as soon as
/// they are declared: a guest is never started without them. An interface that left the spec keeps those it had, and has those of its
/// Network if it had none; one whose Network is not known keeps those it had too.
pub(crate) fn security_groups_of(tables: &Tables, vm: &VM, interface: &InterfaceStatus) -> Vec<String> {
    let names = |groups: &[ResourceName]| groups.iter().map(ToString::to_string).collect::<Vec<_>>();
    let declared = vm.spec.network_interfaces.iter().find(|n| n.name.as_str() == interface.name);
    match (declared, find(tables, &interface.network)) {
        (Some(declared), Some(network)) => {
            names(declared.effective_security_groups(&network.spec.security_groups))
        }
        (Some(declared), None) if !declared.security_groups.is_empty() => names(&declared.security_groups),
        (None, Some(network)) if interface.security_groups.is_empty() => names(&network.spec.security_groups),
        _ => interface.security_groups.clone(),
    }
}

/// A PublicIP that an interface of a VM names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NamedAddress {
    pub(crate) interface: String,
    /// The name of the PublicIP.
    pub(crate) name: String,
    /// The address to forward, once the control plane has given it to this VM.
    pub(crate) address: Option<GivenAddress>,
    /// The field of the interface that names it, if the address is of the other family.
    pub(crate) misnamed_in: Option<&'static str>,
}

/// Returns the PublicIPs that the interfaces of a VM name.
pub(crate) fn named_addresses(tables: &Tables, vm_name: &ObjectName, vm: &VM) -> Vec<NamedAddress> {
    let of_interface = |interface: &NetworkInterface| {
        let ipv4 = interface.public_ip.clone().map(|name| (name, "publicIP", false));
        let ipv6 = interface.public_ipv6.clone().map(|name| (name, "publicIPv6", true));
        let interface = interface.name.to_string();
        ipv4.into_iter().chain(ipv6).map(move |(name, field, is_ipv6)| {
            let given = given_address(tables, vm_name, vm, name.as_str());
            let is_other = given.is_some_and(|given| given.address.is_ipv6() != is_ipv6);
            NamedAddress {
                interface: interface.clone(),
                name: name.to_string(),
                address: given.filter(|_| !is_other),
                misnamed_in: is_other.then_some(field),
            }
        })
    };
    vm.spec.network_interfaces.iter().flat_map(of_interface).collect()
}

/// Returns the address of a PublicIP that the control plane has given to this VM.
fn given_address(tables: &Tables, vm_name: &ObjectName, vm: &VM, public_ip: &str) -> Option<GivenAddress> {
    if vm.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let public = tables.public_ips.get(&vm_name.beside(public_ip))?;
    let status = public.status.as_ref()?;
    let ours = status.used_by.iter().any(|user| Some(&user.vm_uid) == vm.metadata.uid.as_ref());
    let address = status.address.as_ref()?.parse().ok()?;
    // A prefix that is none leads nowhere: its first address alone is not the VM's.
    let prefix = status.prefix.as_ref().map(|prefix| prefix.parse::<Ipv6Net>()).transpose().ok()?;
    ours.then_some(GivenAddress { address, prefix, mode: status.mode.unwrap_or_default() })
}

#[cfg(test)]
mod tests {
    use berth_engine::RuntimeClock;
    use berth_host::fake::FakeSystem;
    use jiff::Timestamp;
    use rand::{SeedableRng, rngs::StdRng};

    use super::*;
    use crate::index::Index;

    #[tokio::test]
    async fn a_network_whose_links_fail_gets_no_tap_and_one_whose_server_fails_gets_back_those_of_guests() {
        let system = Arc::new(FakeSystem::new(Arc::new(RuntimeClock::starting_at(Timestamp::UNIX_EPOCH))));
        let queue = Arc::new(Queue::new(Duration::from_secs(1), StdRng::seed_from_u64(1)));
        let networks = Networks::new(system, queue);
        let index = Index::default();
        let (lan, bridge) = ("ns/lan".to_owned(), "bth-00004d".to_owned());
        networks.applied().bridges.insert(lan.clone(), bridge.clone());
        let all = [lan];
        let outcome = || {
            let tables = index.read();
            let made = networks.must_be_made(&tables, all.iter()).is_ok();
            (made, networks.must_be_linked(&tables, all.iter()).is_ok())
        };
        assert_eq!(outcome(), (true, true));
        for (is_linked, expected) in [(true, (false, true)), (false, (false, false))] {
            let failed = FailedNetwork { reason: Reason::Retrying, text: "no memory".to_owned(), is_linked };
            networks.applied().failed.insert(bridge.clone(), failed);
            assert_eq!(outcome(), expected, "{is_linked}");
        }
    }

    #[test]
    fn names_on_the_host_fit_into_fifteen_characters() {
        assert_eq!(tap_of("i-0123456789ab", 13), "btt01234567n13");
        assert!(tap_of("i-0123456789ab", 13).len() <= 15);
    }
}
