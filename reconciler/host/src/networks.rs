//! Bridges, taps, the firewall and public addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use async_trait::async_trait;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::net::TcpStream;

use crate::Result;
use crate::balancing::{Balanced, Relay};
use crate::bridged_networks::{BridgedNetwork, ExternalLease, LearnedAddress};
use crate::names::Names;
use crate::packet_filter::{Filters, ObservedPort, Port};
use crate::routes::{Ipv6Route, Route};
use crate::trace::{Trace, TracedPacket};
use crate::wireguard::WireguardConfig;

/// The networks of a host.
#[async_trait]
pub trait Networks: Send + Sync + fmt::Debug + 'static {
    /// Creates or updates a private network: its bridge with the gateway's address, DHCP with exactly these leases,
    /// DNS with exactly these names, its tunnel to other hosts, if any, and exactly these routes of prefixes.
    ///
    /// *Errors*: [`SystemError::Network`] if the host itself uses its range ([`HostRange::is_taken_by`]) or its IPv6 prefix, or if it
    /// has a prefix and IPv6 is turned off.
    async fn ensure_network(&self, network: &NetworkConfig) -> Result<()>;

    /// Creates or updates the part of a bridged network on this host: a bridge for its taps, connected to a bridge of the host, or
    /// to one that berth makes over an interface. Neither has an address; only [`BridgedNetwork::relay`] has the host's there. Of the
    /// host's bridge nothing is changed but that it has one port more; of the interface, that it is up and, without a VLAN, a port of
    /// berth's bridge.
    ///
    /// *Errors*: [`SystemError::Network`] if the host has no such bridge or interface, if the host uses it itself, or if its kernel
    /// has no VLANs.
    async fn ensure_bridged_network(&self, network: &BridgedNetwork) -> Result<()>;

    /// Lists the bridges and interfaces of this host that are not berth's.
    async fn host_links(&self) -> Result<HostLinks>;

    /// Removes a bridge, with its DHCP server or its connection to a bridge of the host. A bridge that berth made over an interface
    /// goes with its last connection, and the interface is left as it was found. The caller removes the taps on it first.
    async fn remove_network(&self, bridge: &str) -> Result<()>;

    /// Lists berth's bridges on this host.
    async fn networks(&self) -> Result<Vec<String>>;

    /// Creates or updates this host's interface of WireGuard, with exactly these peers. It changes nothing of one that is as it should be.
    async fn ensure_wireguard(&self, config: &WireguardConfig) -> Result<()>;

    /// Whether this host has its interface of WireGuard.
    async fn has_wireguard(&self) -> Result<bool>;

    /// Removes this host's interface of WireGuard. Its key stays.
    async fn remove_wireguard(&self) -> Result<()>;

    /// Creates a tap for QEMU and attaches it to its bridge.
    async fn ensure_tap(&self, tap: &TapConfig) -> Result<()>;

    async fn remove_tap(&self, name: &str) -> Result<()>;

    /// Lists berth's taps on this host.
    async fn taps(&self) -> Result<Vec<TapFacts>>;

    /// Lists both, which may take one look at the links of the host.
    async fn networks_and_taps(&self) -> Result<(Vec<String>, Vec<TapFacts>)> {
        Ok((self.networks().await?, self.taps().await?))
    }

    /// Replaces berth's rules in the host's firewall, in one transaction, and assigns the public addresses to the host.
    /// An empty `Firewall` removes everything. Does nothing if the rules are already in place.
    async fn apply_firewall(&self, firewall: &Firewall) -> Result<()>;

    /// Waits until another program has removed berth's rules from the host's firewall, as `nft flush ruleset` does, or the interface of
    /// WireGuard, or until the host no longer answers for an announced IPv6 address, as after its interface was down. One caller at a time, which hears of each
    /// removal since its first call.
    async fn firewall_removed(&self) -> Result<()>;

    /// Waits until the DHCP or DNS server of a private network has ended by itself, and returns its bridge. The network is watched again
    /// once it is ensured. One caller at a time; a dropped call misses no end.
    async fn network_server_ended(&self) -> Result<String>;

    /// Lists the DHCP leases that guests of this network have taken.
    async fn leases_taken(&self, bridge: &str) -> Result<Vec<LeaseTaken>>;

    /// Lists the addresses that guests have sent from in the last two hours, by tap: those of [`Firewall::observed`]. A guest claims
    /// what it likes, unless it chooses among the addresses of its network ([`ObservedPort::chosen`]).
    async fn seen_addresses(&self) -> Result<BTreeMap<String, BTreeSet<IpAddr>>>;

    /// Lists the leases of guests ([`BridgedNetwork::leased`]) that have not ended, the last one of each. They are known again after a
    /// restart.
    async fn external_leases(&self) -> Result<Vec<ExternalLease>>;

    /// Lists the IPv6 addresses that guests ([`BridgedNetwork::learned`]) have taken first and used in the last two hours. They are known
    /// again after a restart.
    async fn learned_addresses(&self) -> Result<Vec<LearnedAddress>>;

    /// Waits until a guest has another lease or learned address than before, or one has ended. One caller at a time, which hears of each
    /// change since its first call.
    async fn external_leases_changed(&self) -> Result<()>;

    /// Returns the interface on which public addresses can be announced, and the addresses that the host already has.
    async fn uplink(&self) -> Result<Uplink>;

    /// Returns the MAC address of another machine that answers for an address on the segment of this interface. Takes
    /// about a second.
    async fn occupant(&self, interface: &str, address: IpAddr) -> Result<Option<String>>;

    /// Connects to a TCP port of a guest on this bridge, from the bridge and by no other interface. The caller limits the
    /// time.
    async fn connect_to_guest(&self, bridge: &str, guest: SocketAddr) -> Result<TcpStream>;

    /// Whether the host forwards guests' packets, as far as can be read from its settings.
    async fn forwarding(&self) -> Result<Forwarding>;

    /// Returns the way of a packet through the rules of this host. Sends nothing and changes nothing.
    async fn trace(&self, request: &TraceRequest) -> Result<Trace>;
}

/// A private network on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkConfig {
    /// At most 15 characters, `bth-…`.
    pub bridge: String,
    /// Its IPv4 range. None: guests have no IPv4 address.
    pub ipv4: Option<Ipv4Network>,
    /// Its IPv6 prefix. None: the bridge has no IPv6 at all.
    pub ipv6: Option<Ipv6Network>,
    pub mtu: u16,
    /// DNS servers that guests get by DHCP. Empty: the gateway, which forwards to the host's.
    pub dns: Vec<IpAddr>,
    /// Domains in which guests look up names.
    pub search_domains: Vec<String>,
    /// The names that the name server at the gateway knows. None: it knows no names.
    pub names: Option<Names>,
    /// Routes beside that by the gateway. One to all addresses comes before that by the gateway.
    pub routes: Vec<Route>,
    /// IPv6 routes that guests get by their network configuration, beside the one by router advertisements.
    pub ipv6_routes: Vec<Ipv6Route>,
    /// The DHCP reservations. Other clients get no address.
    pub leases: Vec<Lease>,
    /// The tunnel to the network's part on other hosts; None while the network is on this host only.
    pub tunnel: Option<Tunnel>,
    /// Whether packets between its ports are tracked as connections, for the filters of interfaces.
    pub tracked: bool,
    /// The way to its guests on other hosts; None while no public address of this host leads to any.
    pub relay: Option<Relay>,
    /// The public prefixes that are routed to its guests on this host.
    pub prefixes: Vec<RoutedPrefix>,
}

impl NetworkConfig {
    /// Whether its packets are encrypted between hosts.
    pub fn is_encrypted(&self) -> bool {
        self.tunnel.as_ref().is_some_and(Tunnel::is_encrypted)
    }
}

/// The IPv4 side of a private network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ipv4Network {
    pub range: Ipv4Net,
    /// The host's own address in it, the same on every host.
    pub gateway: Ipv4Addr,
    pub egress: Egress,
}

/// The IPv6 side of a private network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ipv6Network {
    /// A /64.
    pub prefix: Ipv6Net,
    /// The host's own address in it, the same on every host.
    pub gateway: Ipv6Addr,
    /// With `None`, guests get no default route.
    pub egress: Egress,
    /// Whether guests form their addresses themselves: they get none by DHCPv6.
    pub autoconfiguration: bool,
}

/// The way of guests' packets to the outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Egress {
    /// They are rejected.
    None,
    /// Under the host's address.
    Masquerade,
    /// Unchanged.
    Routed,
}

/// The links of a host that bridged networks can be connected to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostLinks {
    /// The bridges that are not berth's, by name.
    pub bridges: Vec<HostBridge>,
    /// The Ethernet interfaces that are not berth's: cards, bonds, VLAN interfaces and pairs; by name.
    pub interfaces: Vec<HostInterface>,
    /// Whether the kernel has VLANs.
    pub vlans: bool,
    /// Whether IPv4 packets between the ports of all bridges pass the rules for routed packets (`bridge-nf-call-iptables`).
    pub filters_ipv4: bool,
    /// The same for IPv6 (`bridge-nf-call-ip6tables`).
    pub filters_ipv6: bool,
}

/// An interface of the host that berth can make a bridge over.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostInterface {
    pub name: String,
    pub mtu: u32,
    pub up: bool,
    /// False while it is down.
    pub carrier: bool,
    /// How the host uses it, so that it cannot be a port of berth's bridge: the end of a sentence that begins with the interface.
    pub in_use: Option<String>,
    /// Whether it is part of a bond, which has its frames.
    pub bonded: bool,
    /// The tags and names of the VLAN interfaces on it that are not berth's.
    pub vlans: Vec<(u16, String)>,
}

/// A bridge of the host that is not berth's.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostBridge {
    pub name: String,
    pub mtu: u32,
    pub up: bool,
    /// Whether it looks at the VLANs of its ports: it then takes the tags of one of them off.
    pub filters_vlans: bool,
}

/// The connection of a private network to its part on other hosts: VXLAN, with a copy of each broadcast packet sent to
/// each host. With IPv6 addresses it is within WireGuard ([`crate::WireguardConfig`]), and its packets enter and leave by that only.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tunnel {
    /// The VXLAN network identifier, 1 to 16,777,215.
    pub vni: u32,
    /// This host's address, the source of the tunnel's packets.
    pub local: IpAddr,
    /// The other hosts' addresses of the same family, in order. Packets from all other addresses are dropped.
    pub peers: Vec<IpAddr>,
}

impl Tunnel {
    /// Whether its packets are encrypted between hosts.
    pub fn is_encrypted(&self) -> bool {
        self.local.is_ipv6()
    }
}

/// An address reserved for a MAC address.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Lease {
    /// Lower case.
    pub mac: String,
    #[serde(default)]
    pub address: Option<Ipv4Addr>,
    #[serde(default)]
    pub ipv6: Option<Ipv6Addr>,
    pub hostname: String,
    /// Name servers in place of the network's, if there are any.
    #[serde(default)]
    pub dns: Vec<IpAddr>,
    /// Domains in place of the network's, if there are any.
    #[serde(default)]
    pub search_domains: Vec<String>,
    /// Whether the guest gets no default route.
    #[serde(default)]
    pub no_default_route: bool,
    /// IPv4 routes of the guest beside those of the network, also its default route if that is not by the gateway.
    #[serde(default)]
    pub routes: Vec<Route>,
    /// The same of IPv6, which the guest has by its network configuration.
    #[serde(default)]
    pub ipv6_routes: Vec<Ipv6Route>,
    /// The largest packet, in place of the network's.
    #[serde(default)]
    pub mtu: Option<u16>,
    /// Whether the guest has its IPv4 address without DHCP, and no lease of it.
    #[serde(default)]
    pub no_dhcp4: bool,
    /// Whether the guest has its IPv6 address without DHCPv6, and no lease of it.
    #[serde(default)]
    pub no_dhcp6: bool,
}

impl Lease {
    /// The IPv4 address that the DHCP server gives out.
    #[must_use]
    pub fn served(&self) -> Option<Ipv4Addr> {
        self.address.filter(|_| !self.no_dhcp4)
    }

    /// The IPv6 address that the DHCPv6 server gives out.
    #[must_use]
    pub fn served_ipv6(&self) -> Option<Ipv6Addr> {
        self.ipv6.filter(|_| !self.no_dhcp6)
    }
}

/// A DHCP lease that a guest has taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseTaken {
    pub mac: String,
    pub address: IpAddr,
    /// The time at which it was taken or last renewed, at the earliest: a lease of an earlier boot does not apply to this one.
    pub taken_at: Timestamp,
}

/// A tap for one NIC of one machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TapConfig {
    /// At most 15 characters, `btt…`.
    pub name: String,
    pub bridge: String,
    pub mtu: u16,
    /// Whether the card has several queues, and QEMU attaches to the tap once for each.
    pub multi_queue: bool,
}

/// A tap that exists.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TapFacts {
    pub name: String,
    /// The bridge it is a port of.
    pub bridge: Option<String>,
}

/// All of berth's rules in the host's firewall. Order does not matter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Firewall {
    /// One for each private network.
    pub nat: Vec<Nat>,
    /// The bridges for the taps of bridged networks. Their packets pass between their ports, and never to another interface.
    pub bridged: Vec<String>,
    /// Those of them whose guests hear the advertisements of the network's routers.
    pub advertised: Vec<String>,
    pub forwards: Vec<Forward>,
    /// Public addresses whose ports lead to guests.
    pub balanced: Vec<Balanced>,
    /// Public prefixes that lead to guests.
    pub prefixes: Vec<RoutedPrefix>,
    /// The addresses that each tap may send from. A tap that is not listed passes nothing.
    pub ports: Vec<Port>,
    /// Further addresses that single taps may send from.
    pub exceptions: Vec<PortException>,
    /// Ceilings for the traffic of single taps.
    pub limits: Vec<PortLimits>,
    /// The DSCP of what guests send by single taps.
    pub marks: Vec<PortMark>,
    /// The VLANs whose tagged frames single taps send and receive. Those of all others are dropped.
    pub trunks: Vec<PortTrunk>,
    /// The networks whose guests do not reach each other.
    pub isolated: Vec<Isolation>,
    /// The taps whose guests' addresses are read from what they send.
    pub observed: Vec<ObservedPort>,
    /// The taps whose guests' requests of DHCP reach no other machine: their host answers them.
    pub answered: Vec<String>,
    /// The same of DHCPv6 and router solicitations.
    pub answered_ipv6: Vec<String>,
    /// The addresses at which the host answers questions of guests of bridged networks about names, with the bridge for their taps.
    pub name_servers: Vec<(String, Ipv4Addr)>,
    /// The filters of taps. Shared: groups may have many rules and members.
    pub filters: Arc<Filters>,
    /// Whether any guest, known or not, has a tap here or is about to get one: the rules then stay in place.
    pub guests: bool,
    /// Ranges, besides link-local addresses, to which guests' packets are not forwarded.
    pub closed: Vec<Ipv4Net>,
    /// The same for IPv6, besides the prefixes in which this host has an address.
    pub ipv6_closed: Vec<Ipv6Net>,
    /// Ranges that the administrator lets guests reach nevertheless, addresses of this host included.
    pub allowed: Vec<Ipv4Net>,
    /// The same for IPv6, without addresses of this host.
    pub ipv6_allowed: Vec<Ipv6Net>,
}

impl Firewall {
    /// Whether the host needs no rules at all.
    pub fn is_empty(&self) -> bool {
        // The bridge of a network is there while a VM is bound here, also one that does not run and has no tap.
        self.nat.is_empty()
            && self.bridged.is_empty()
            && self.forwards.is_empty()
            && self.balanced.is_empty()
            && self.ports.is_empty()
            && !self.guests
    }
}

/// Further addresses that a guest may send from by a tap, beside those of its [`Port`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PortException {
    pub tap: String,
    pub ranges: Vec<IpNet>,
    /// Lower case.
    pub macs: Vec<String>,
    /// The addresses that are never among the ranges.
    pub gateways: Vec<IpAddr>,
}

/// Ceilings for the traffic of a tap. Packets above them are dropped.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PortLimits {
    pub tap: String,
    /// Of the packets that the guest receives.
    pub ingress: TrafficLimit,
    /// Of the packets that it sends.
    pub egress: TrafficLimit,
}

/// Ceilings for one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct TrafficLimit {
    /// Bytes a second, and the bytes of a burst.
    pub bandwidth: Option<(u64, u64)>,
    /// Packets a second.
    pub packets: Option<u64>,
}

/// The DSCP that packets of a guest get.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PortMark {
    pub tap: String,
    /// 0 to 63.
    pub dscp: u8,
}

/// VLANs whose tagged frames a guest may send and receive.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PortTrunk {
    pub tap: String,
    /// Ranges within 1 to 4094, in order, which do not overlap.
    pub vlans: Vec<(u16, u16)>,
}

/// A private network whose guests do not reach each other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Isolation {
    /// None: the network has none, and only its guests here are kept from each other.
    pub bridge: Option<String>,
    /// The taps of its guests.
    pub taps: Vec<String>,
    /// The addresses under which other hosts forward connections to guests here ([`Relay`]).
    pub relays: Vec<IpAddr>,
}

/// A range of addresses that the host itself uses.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostRange {
    pub range: Ipv4Net,
    /// A route that leads elsewhere: a network may lie within it, but must not cover it.
    pub is_route: bool,
}

impl HostRange {
    /// Whether a bridge with this range would capture packets of the host itself.
    pub fn is_taken_by(&self, range: Ipv4Net) -> bool {
        range.contains(&self.range) || (!self.is_route && self.range.contains(&range))
    }
}

/// A private network, and its way to the outside.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Nat {
    pub bridge: String,
    pub ipv4: Option<Ipv4Network>,
    pub ipv6: Option<Ipv6Network>,
    pub tunnel: Option<Tunnel>,
}

/// A public address that maps to a private one of the same family.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Forward {
    pub public: IpAddr,
    pub private: IpAddr,
    /// The interface on which this host announces the address. Packets of the private address that leave by this
    /// interface have the public address as their source. None: the address exists on this host only and is not
    /// announced.
    pub announced_on: Option<String>,
}

/// A public prefix that is routed to a guest. Its network has a way to the outside.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RoutedPrefix {
    pub prefix: Ipv6Net,
    /// The guest's address in its network.
    pub via: Ipv6Addr,
    /// The bridge of that network.
    pub bridge: String,
}

/// The interface on which a host can announce public addresses, and the addresses that are already in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uplink {
    /// The interface that announcements are sent on. The error is for people: why there is none, and how to fix it.
    pub interface: std::result::Result<String, String>,
    /// Why IPv6 addresses cannot be announced on the interface, and how to fix it, for people.
    pub ipv6_obstacle: Option<String>,
    /// The host's own addresses, on interfaces that are not berth's.
    pub own: BTreeSet<IpAddr>,
    /// The public addresses that this host currently has.
    pub public: BTreeSet<IpAddr>,
}

/// Whether guests' packets are forwarded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forwarding {
    pub ok: bool,
    /// The obstacle and how to remove it, or that there is none; for people.
    pub message: String,
}

/// A packet that opens a connection, from or to a tap of this host, and the host's networks as the agent applied them last: the host
/// compares them with those of the kernel.
#[derive(Clone, Debug)]
pub struct TraceRequest {
    /// The tap of the interface in question.
    pub tap: String,
    /// The taps by which guests see no carrier.
    pub down: BTreeSet<String>,
    /// The taps and the bridges whose guests the answer may describe.
    pub shown_taps: BTreeSet<String>,
    pub shown_bridges: BTreeSet<String>,
    /// Whether the guest sends the packet; otherwise it comes to the guest.
    pub is_sent: bool,
    pub packet: TracedPacket,
    pub firewall: Firewall,
    /// The private networks of this host.
    pub networks: Vec<NetworkConfig>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bridged_network_needs_rules_also_while_no_guest_runs() {
        let bridged = vec!["bth-00004d".to_owned(), "btb-5e6f7a8b".to_owned()];
        assert!(!Firewall { bridged, ..Firewall::default() }.is_empty());
        assert!(Firewall::default().is_empty());
    }
}
