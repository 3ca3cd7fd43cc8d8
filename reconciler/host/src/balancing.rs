//! Public addresses whose ports lead to guests, and the way to guests on other hosts.

use std::net::IpAddr;

/// A public address whose ports lead to guests. Connections to its other ports are refused.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Balanced {
    pub public: IpAddr,
    /// The interface on which this host announces the address; None: it is not announced.
    pub announced_on: Option<String>,
    pub ports: Vec<BalancedPort>,
    /// By bridge, the address under which connections are forwarded by the relay of its network, of the family of the public address.
    pub sources: Vec<(String, IpAddr)>,
    /// Those of the guests that are machines of a bridged network, with the host's bridge there, or with its relay ([`crate::relay_link`]) where
    /// it has no address of its own. By a bridge, connections to them come from the host's address there. They are of the family of the
    /// public address.
    pub by_lan: Vec<(String, IpAddr)>,
}

/// A port of a public address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BalancedPort {
    pub protocol: PortProtocol,
    pub port: u16,
    /// Whether all connections of a client's address go to the same guest.
    pub by_client: bool,
    /// The private addresses of the guests that get new connections, in order, of the family of the public address. Empty: connections
    /// are refused.
    pub targets: Vec<IpAddr>,
    pub target_port: u16,
}

/// The protocol of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PortProtocol {
    Tcp,
    Udp,
}

/// The way from this host to guests of a private network on other hosts: an interface beside the gateway, which no other host has. Or the
/// way to those of a bridged network on any host, where this one has no other address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Relay {
    /// This host's addresses in the network, in order, which no guest has.
    pub addresses: Vec<IpAddr>,
    /// The guests that are reached by it, in order.
    pub targets: Vec<IpAddr>,
}

/// Returns the addresses of one family, in order.
pub(crate) fn of_family(addresses: &[IpAddr], is_ipv6: bool) -> Vec<IpAddr> {
    addresses.iter().filter(|address| address.is_ipv6() == is_ipv6).copied().collect()
}
