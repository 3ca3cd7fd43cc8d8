//! The question about the way of a packet, in the query of a request ([`crate::console::ConsoleUse::Trace`]).
//!
//! ```text
//!  to=10.0.0.3&protocol=tcp&port=443                      a packet that the VM sends
//!  from=192.0.2.9&public=198.51.100.7&protocol=icmp       a packet that comes to the VM, to a public address
//! ```

use std::collections::HashMap;
use std::net::IpAddr;

use crate::RuleProtocol;
use crate::security_group::IcmpType;

/// The most bytes of a query.
pub const MAX_QUERY: usize = 512;

/// A packet that opens a connection, as its question names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceQuery {
    /// The interface of the VM. None: its only one.
    pub interface: Option<String>,
    pub other: OtherEnd,
    /// Never `Any`.
    pub protocol: RuleProtocol,
    /// The destination port of TCP and UDP; 0 for the other protocols.
    pub port: u16,
    /// Of ICMP and ICMPv6. None: an echo request.
    pub icmp_type: Option<IcmpType>,
}

/// The other end of the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherEnd {
    /// The VM sends the packet to this address.
    To(IpAddr),
    /// The packet comes from this address; to a public address of the VM, if there is one, or to the interface's own.
    From(IpAddr, Option<IpAddr>),
}

impl OtherEnd {
    pub fn address(self) -> IpAddr {
        match self {
            Self::To(address) | Self::From(address, _) => address,
        }
    }
}

impl TraceQuery {
    /// Checks what needs no VM.
    ///
    /// *Errors*: the protocol is of the other address family, lacks its port, or has none; the address is not that of one machine.
    pub fn check(&self) -> Result<(), String> {
        let address = self.other.address();
        let is_of_one = match address {
            IpAddr::V4(v4) => {
                !v4.is_multicast() && !v4.is_broadcast() && !v4.is_unspecified() && !v4.is_loopback()
            }
            IpAddr::V6(v6) => {
                !v6.is_multicast()
                    && !v6.is_unspecified()
                    && !v6.is_loopback()
                    && !v6.is_unicast_link_local()
                    && v6.to_ipv4_mapped().is_none()
            }
        };
        if !is_of_one {
            return Err(format!(
                "{address} is no address of a single machine on a network: multicast, broadcast, loopback and IPv6 link-local \
                 addresses are not traced"
            ));
        }
        if let Some(kind) = self.icmp_type.filter(|kind| kind.number(self.protocol).is_none()) {
            return Err(format!("{} has no type {kind}", protocol_name(self.protocol)));
        }
        let has_port = self.port != 0;
        match self.protocol {
            RuleProtocol::Any => Err("a packet has a protocol: tcp, udp, icmp or icmpv6".to_owned()),
            RuleProtocol::Tcp | RuleProtocol::Udp if !has_port => {
                Err("a packet of tcp and udp has a port from 1 to 65535 (--port)".to_owned())
            }
            RuleProtocol::Icmp | RuleProtocol::Icmpv6 if has_port => {
                Err("icmp and icmpv6 have no ports: leave out --port, or name tcp or udp".to_owned())
            }
            RuleProtocol::Icmp if address.is_ipv6() => {
                Err(format!("icmp is of IPv4, and {address} of IPv6: name icmpv6"))
            }
            RuleProtocol::Icmpv6 if address.is_ipv4() => {
                Err(format!("icmpv6 is of IPv6, and {address} of IPv4: name icmp"))
            }
            _ => match self.other {
                OtherEnd::From(from, Some(public)) if from.is_ipv6() != public.is_ipv6() => {
                    Err(format!("{from} and the public address {public} are not of the same family"))
                }
                _ => Ok(()),
            },
        }
    }

    /// The query of a request.
    pub fn to_query(&self) -> String {
        let mut query = match self.other {
            OtherEnd::To(to) => format!("to={to}"),
            OtherEnd::From(from, None) => format!("from={from}"),
            OtherEnd::From(from, Some(public)) => format!("from={from}&public={public}"),
        };
        query.push_str(&format!("&protocol={}", protocol_name(self.protocol)));
        if self.port != 0 {
            query.push_str(&format!("&port={}", self.port));
        }
        if let Some(kind) = self.icmp_type {
            query.push_str(&format!("&icmp_type={kind}"));
        }
        if let Some(interface) = &self.interface {
            query.push_str(&format!("&interface={interface}"));
        }
        query
    }

    /// Reads a query of a request.
    ///
    /// *Errors*: a part is missing or wrong.
    pub fn of_query(query: &str) -> Result<Self, String> {
        if query.len() > MAX_QUERY {
            return Err(format!("the query is longer than {MAX_QUERY} bytes"));
        }
        let pairs: HashMap<&str, &str> = query.split('&').filter_map(|pair| pair.split_once('=')).collect();
        let address = |key: &str| -> Result<Option<IpAddr>, String> {
            let parse =
                |text: &&str| text.parse::<IpAddr>().map_err(|_| format!("{key}={text} is no IP address"));
            pairs.get(key).map(parse).transpose()
        };
        let public = address("public")?;
        let other = match (address("to")?, address("from")?) {
            (Some(to), None) => OtherEnd::To(to),
            (None, Some(from)) => OtherEnd::From(from, public),
            _ => return Err("a trace has either an address that it is to or one that it is from".to_owned()),
        };
        let protocol = pairs.get("protocol").copied().unwrap_or_default();
        let protocol = [RuleProtocol::Tcp, RuleProtocol::Udp, RuleProtocol::Icmp, RuleProtocol::Icmpv6]
            .into_iter()
            .find(|each| protocol_name(*each) == protocol)
            .ok_or("a packet has a protocol: tcp, udp, icmp or icmpv6")?;
        let port = match pairs.get("port") {
            None => 0,
            Some(text) => text.parse::<u16>().map_err(|_| "the port is no number from 1 to 65535")?,
        };
        let icmp_type = pairs.get("icmp_type").map(|name| name.parse::<IcmpType>()).transpose()?;
        let interface = pairs.get("interface").map(|name| (*name).to_owned());
        let query = Self { interface, other, protocol, port, icmp_type };
        query.check().map(|()| query)
    }
}

/// The name of a protocol, as in rules.
pub fn protocol_name(protocol: RuleProtocol) -> &'static str {
    match protocol {
        RuleProtocol::Tcp => "tcp",
        RuleProtocol::Udp => "udp",
        RuleProtocol::Icmp => "icmp",
        RuleProtocol::Icmpv6 => "icmpv6",
        RuleProtocol::Any => "any",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_read_as_it_was_written() {
        let ip = |text: &str| text.parse().expect("an address");
        let public = Some("198.51.100.7".parse().expect("an address"));
        for (other, protocol, port) in [
            (OtherEnd::To(ip("10.0.0.3")), RuleProtocol::Tcp, 443),
            (OtherEnd::To(ip("fd00:60::3")), RuleProtocol::Icmpv6, 0),
            (OtherEnd::From(ip("192.0.2.9"), public), RuleProtocol::Udp, 53),
            (OtherEnd::From(ip("2001:db8::9"), Some(ip("2001:db8::7"))), RuleProtocol::Tcp, 53),
            (OtherEnd::From(ip("192.0.2.9"), None), RuleProtocol::Icmp, 0),
        ] {
            for interface in [None, Some("nic1".to_owned())] {
                let query = TraceQuery { interface, other, protocol, port, icmp_type: None };
                assert_eq!(TraceQuery::of_query(&query.to_query()), Ok(query));
            }
        }
        let (other, protocol) = (OtherEnd::To(ip("10.0.0.3")), RuleProtocol::Icmp);
        let icmp_type = Some(IcmpType::TimestampRequest);
        let query = TraceQuery { interface: None, other, protocol, port: 0, icmp_type };
        assert_eq!(TraceQuery::of_query(&query.to_query()), Ok(query));
    }

    #[test]
    fn a_query_that_names_no_packet_is_refused() {
        for (wrong, why) in [
            ("", "either"),
            ("to=10.0.0.3&from=10.0.0.4&protocol=tcp&port=1", "either"),
            ("to=web&protocol=tcp&port=1", "no IP address"),
            ("to=10.0.0.3&port=1", "has a protocol"),
            ("to=10.0.0.3&protocol=any", "has a protocol"),
            ("to=10.0.0.3&protocol=tcp", "has a port"),
            ("to=10.0.0.3&protocol=tcp&port=0", "has a port"),
            ("to=10.0.0.3&protocol=tcp&port=65536", "no number"),
            ("to=10.0.0.3&protocol=icmp&port=80", "no ports"),
            ("to=10.0.0.3&protocol=icmpv6", "name icmp"),
            ("to=10.0.0.3&protocol=icmp&icmp_type=redirect", "no query of ICMP"),
            ("to=10.0.0.3&protocol=icmp&icmp_type=node-information-query", "has no type"),
            ("to=10.0.0.3&protocol=tcp&port=1&icmp_type=echo-request", "has no type"),
            ("to=fd00::3&protocol=icmp", "name icmpv6"),
            ("to=224.0.0.1&protocol=udp&port=1", "single machine"),
            ("to=fe80::1&protocol=udp&port=1", "single machine"),
            ("from=10.0.0.3&public=fd00::1&protocol=udp&port=1", "the same family"),
            ("from=fd00::3&public=192.0.2.1&protocol=udp&port=1", "the same family"),
        ] {
            let error = TraceQuery::of_query(wrong).expect_err(wrong);
            assert!(error.contains(why), "{wrong}: {error}");
        }
        assert!(TraceQuery::of_query(&"x".repeat(MAX_QUERY + 1)).is_err());
    }
}
