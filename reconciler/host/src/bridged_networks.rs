//! Bridged networks: their parts on a host, and the addresses that others than berth give out there.

use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::{Ipv4Net, Ipv6Net};
use sha2::{Digest, Sha256};

use crate::balancing::Relay;
use crate::names::Names;
use crate::routes::GuestRoutes;

/// The part of a bridged network on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BridgedNetwork {
    /// The bridge for taps. At most 15 characters, `bth-…`.
    pub bridge: String,
    /// The bridge that it is connected to.
    pub to: BridgeChoice,
    /// Whether packets between its ports are tracked as connections, for the filters of interfaces.
    pub tracked: bool,
    /// The MAC addresses, lower case and in order, of guests whose IPv4 addresses the network's DHCP server gives out: its answers to
    /// them are read.
    pub leased: Vec<String>,
    /// The guests whose requests of DHCP the host answers.
    pub served: Vec<ServedGuest>,
    /// Those whose requests of DHCPv6 and router solicitations it answers.
    pub served_ipv6: Vec<ServedIpv6Guest>,
    /// The guests whose IPv6 addresses are learned from their neighbour discovery.
    pub learned: Vec<LearnedGuest>,
    /// The names that the host answers for its own guests and for itself. None: it answers nothing.
    pub names: Option<BridgedNames>,
    /// The way to guests of the network for connections to public addresses, if the host has no address of its own there.
    pub relay: Option<Relay>,
}

/// The names of the machines of a bridged network, and where its hosts answer questions about them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BridgedNames {
    /// An address of the network that no machine there has. It is the same on every host, and the network sees nothing of it.
    pub address: Ipv4Addr,
    /// The range of the network.
    pub range: Ipv4Net,
    pub names: Names,
}

/// A guest of a bridged network that gets its IPv6 addresses from others than berth, and sends from those that it has taken first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LearnedGuest {
    pub tap: String,
    /// Lower case.
    pub mac: String,
}

/// A guest of a bridged network that gets its IPv4 address from its host by DHCP, if it asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedGuest {
    pub tap: String,
    /// Lower case.
    pub mac: String,
    pub address: Ipv4Addr,
    /// Of the network.
    pub prefix_len: u8,
    pub hostname: String,
    pub mtu: Option<u16>,
    pub dns: Vec<Ipv4Addr>,
    pub search_domains: Vec<String>,
    pub routes: GuestRoutes,
}

/// A guest of a bridged network that gets its IPv6 address from its host by DHCPv6, if it asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedIpv6Guest {
    pub tap: String,
    /// Lower case.
    pub mac: String,
    pub address: Ipv6Addr,
    /// Of the network.
    pub prefix: Ipv6Net,
    /// The link-local address of the network's router. None: the guest gets no default route.
    pub router: Option<Ipv6Addr>,
    pub mtu: Option<u16>,
    pub dns: Vec<Ipv6Addr>,
    pub search_domains: Vec<String>,
}

/// The bridge that the part of a bridged network is connected to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BridgeChoice {
    /// One that the host has.
    Named(String),
    /// One that berth makes, the same for all networks of the same interface and VLAN.
    Over { interface: String, vlan: Option<u16> },
}

impl BridgeChoice {
    /// The name of the bridge.
    pub fn name(&self) -> String {
        match self {
            Self::Named(name) => name.clone(),
            Self::Over { interface, vlan } => format!("{OVER_PREFIX}{}", interface_id(interface, *vlan)),
        }
    }
}

/// The prefix of the bridges that berth makes over interfaces.
pub(crate) const OVER_PREFIX: &str = "btb-";

/// The end of the names of berth's links over an interface and VLAN.
pub(crate) fn interface_id(interface: &str, vlan: Option<u16>) -> String {
    let hash = Sha256::digest(format!("{interface}/{}", vlan.unwrap_or_default()));
    hash[..4].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// An IPv4 address that a DHCP server of a bridged network, which is not berth's, has leased to a guest.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ExternalLease {
    /// The bridge for the network's taps.
    pub bridge: String,
    /// Lower case.
    pub mac: String,
    pub address: Ipv4Addr,
}

/// An IPv6 address that a guest of a bridged network has taken, and that no other machine there had.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LearnedAddress {
    /// The bridge for the network's taps.
    pub bridge: String,
    /// Lower case.
    pub mac: String,
    pub address: Ipv6Addr,
}
