//! Packet filters of interfaces: groups of rules, each interface with one or more of them.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv6Net};

/// The addresses that a guest may send from by one tap.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Port {
    pub tap: String,
    /// Lower case.
    pub mac: String,
    /// None: no address of its own is known, and it sends from those of its exceptions only.
    pub address: Option<Ipv4Addr>,
    /// Its IPv6 address beside the link-local one of its MAC, if it has one.
    pub ipv6: Option<Ipv6Addr>,
}

/// A tap whose guest has addresses that berth does not give out.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObservedPort {
    pub tap: String,
    /// Whether its IPv4 addresses, which others give out, are read.
    pub ipv4: bool,
    /// Whether its IPv6 addresses, which others give out, are read.
    pub ipv6: bool,
    /// The IPv6 addresses of its network that its guest chooses among. They are read too.
    pub chosen: Option<ChosenAddresses>,
}

/// Addresses of which a guest uses those that no other guest of its network has claimed before.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChosenAddresses {
    /// The bridge of its network.
    pub bridge: String,
    /// The prefix of its network, a /64.
    pub prefix: Ipv6Net,
    /// The addresses that it has in any case: those of its MAC address.
    pub own: Vec<Ipv6Addr>,
}

/// The filters of the taps of a host. A tap that is not listed is not filtered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filters {
    pub ports: Vec<FilteredPort>,
    /// The groups that ports name. One that is missing allows nothing.
    pub groups: Vec<FilterGroup>,
    /// Ranges of addresses that rules name. One that is missing is empty.
    pub sets: BTreeMap<String, Vec<(Ipv4Addr, Ipv4Addr)>>,
    /// Their ranges of IPv6 addresses.
    pub ipv6_sets: BTreeMap<String, Vec<(Ipv6Addr, Ipv6Addr)>>,
}

/// A tap that receives and sends what one of its groups allows, and the answers to that.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FilteredPort {
    pub port: Port,
    /// Names of groups.
    pub groups: Vec<String>,
    /// Whether another DHCP server gives its guest the IPv4 address: its requests and the answers pass.
    pub asks_dhcp: bool,
    /// The public prefixes that are routed to it.
    pub prefixes: Vec<Ipv6Net>,
}

/// The connections that a group of rules allows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FilterGroup {
    pub name: String,
    pub ingress: Vec<FilterRule>,
    /// None: all.
    pub egress: Option<Vec<FilterRule>>,
}

/// Connections that are allowed. A rule without ranges and sets allows none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FilterRule {
    /// Its name in its group, for people.
    pub name: String,
    pub protocol: FilterProtocol,
    /// Destination ports, first and last. Empty: all. Only for TCP and UDP.
    pub ports: Vec<(u16, u16)>,
    /// Types of queries, whose answers are allowed too. Empty: all. Only for ICMP and ICMPv6.
    pub icmp_types: Vec<u8>,
    /// The addresses at the other end.
    pub ranges: Vec<IpNet>,
    /// Names of sets with further addresses at the other end.
    pub sets: Vec<String>,
}

/// The protocol of a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FilterProtocol {
    #[default]
    Any,
    Tcp,
    Udp,
    Icmp,
    Icmpv6,
}
