//! The packets that guests send to the host itself.

/// A kind of packets that guests send to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Service {
    Dhcp,
    Dns,
    Discovery,
    Dhcpv6,
    DnsByIpv6,
}

impl Service {
    pub(super) fn is_ipv6(self) -> bool {
        match self {
            Self::Dhcp | Self::Dns => false,
            Self::Discovery | Self::Dhcpv6 | Self::DnsByIpv6 => true,
        }
    }

    pub(super) fn describe(self) -> &'static str {
        match self {
            Self::Dhcp => "DHCP (UDP port 67)",
            Self::Dns => "DNS (UDP port 53)",
            Self::Discovery => "neighbour discovery (ICMPv6)",
            Self::Dhcpv6 => "DHCPv6 (UDP port 547)",
            Self::DnsByIpv6 => "DNS by IPv6 (UDP port 53)",
        }
    }

    /// Returns the UDP ports that it is sent from and to.
    pub(super) fn ports(self) -> Option<(u16, u16)> {
        match self {
            Self::Dhcp => Some((68, 67)),
            Self::Dhcpv6 => Some((546, 547)),
            Self::Dns | Self::DnsByIpv6 => Some((50_000, 53)),
            Self::Discovery => None,
        }
    }
}
