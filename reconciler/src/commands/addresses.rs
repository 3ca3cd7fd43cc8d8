//! The addresses of this machine.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};

use nix::ifaddrs::getifaddrs;

/// Every address of this machine but loopback and link-local ones, in a fixed order.
pub(super) fn own() -> Vec<IpAddr> {
    let Ok(interfaces) = getifaddrs() else { return Vec::new() };
    let address = |interface: nix::ifaddrs::InterfaceAddress| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip())))
    };
    let others_reach = |ip: &IpAddr| match ip {
        IpAddr::V4(ip) => !ip.is_loopback() && !ip.is_link_local(),
        IpAddr::V6(ip) => !ip.is_loopback() && !ip.is_unicast_link_local(),
    };
    let mut own: Vec<IpAddr> = interfaces.filter_map(address).filter(others_reach).collect();
    own.sort();
    own.dedup();
    own
}

/// The address other machines most likely reach this one at: that of the default route, else the first there is.
pub(super) fn outward() -> Option<IpAddr> {
    let routed = || {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
        // An address for documentation: nothing is sent, only the routing table is asked.
        socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
        let address = socket.local_addr().ok()?.ip();
        (!address.is_unspecified() && !address.is_loopback()).then_some(address)
    };
    routed().or_else(|| own().into_iter().next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_no_address_others_reach() {
        assert!(own().iter().chain(&outward()).all(|ip| !ip.is_loopback()));
    }
}
