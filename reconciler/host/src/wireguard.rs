//! WireGuard between hosts: the facts of a host, and its peers.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4};

/// WireGuard on a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WireguardFacts {
    /// In Base64.
    pub public_key: String,
    /// The UDP port on which the host receives encrypted packets.
    pub port: u16,
    pub implementation: WireguardImplementation,
}

/// The program that encrypts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireguardImplementation {
    Kernel,
    /// `wireguard-go`.
    Userspace,
}

impl WireguardImplementation {
    /// As the API has it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Kernel => "Kernel",
            Self::Userspace => "Userspace",
        }
    }
}

/// A host's interface of WireGuard, by which the packets of encrypted tunnels go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WireguardConfig {
    /// The host's address within WireGuard.
    pub address: Ipv6Addr,
    /// The address at which other hosts reach this one, from which the MTU follows.
    pub local: Ipv4Addr,
    /// The other hosts, in order.
    pub peers: Vec<WireguardPeer>,
}

/// Another host.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WireguardPeer {
    /// In Base64.
    pub public_key: String,
    /// Where it receives encrypted packets.
    pub endpoint: SocketAddrV4,
    /// Its address within WireGuard, the only one that it may send from.
    pub address: Ipv6Addr,
}
