//! The way from a host to guests of a private network on other hosts, for connections to public addresses: a pair of interfaces, one
//! end of which is a port of the network's bridge. A bridged network over an interface, on which the host has no address, has one too: it
//! leads to guests of any host.
//!
//! ```text
//!  client ─ public address ─ btr-0a1b2c ═ btq-0a1b2c ─ bth-0a1b2c ─ btx-0a1b2c ═ VXLAN ═ btx-0a1b2c ─ bth-0a1b2c ─ tap ─ guest
//!                            (10.77.0.9, source of the connections)                     (gateway 10.77.0.1)
//! ```
//!
//! The gateway has the same address and MAC on every host and never crosses a tunnel, so a guest on another host could not answer it.
//! The end on this host has a MAC and addresses of its own. Packets to these guests are routed by it; [`super::ruleset`] gives them its
//! address as their source, and keeps guests from reaching the host by it. It has addresses and routes of the families of the public
//! addresses; without one of IPv6 it has no IPv6.

use std::net::IpAddr;

use ipnet::{Ipv4Net, Ipv6Net};
use sha2::{Digest, Sha256};

use super::netlink::{Link, LinkKind, Netlink};
use super::{BRIDGE_PREFIX, Result, ipv6, ours, sysctl, sysctl_if_there};
use crate::Relay;

/// The end of the pair on this host.
pub(super) const OUTER_PREFIX: &str = "btr-";
/// The end of the pair on the bridge.
pub(super) const INNER_PREFIX: &str = "btq-";

/// Returns the name of the interface by which guests of this bridge's network on other hosts are reached.
pub fn relay_link(bridge: &str) -> String {
    format!("{OUTER_PREFIX}{}", bridge.trim_start_matches(BRIDGE_PREFIX))
}

fn inner_of(bridge: &str) -> String {
    format!("{INNER_PREFIX}{}", bridge.trim_start_matches(BRIDGE_PREFIX))
}

/// Returns the bridges with such a pair.
pub(super) fn bridges(links: &[Link]) -> Vec<String> {
    let ends = [OUTER_PREFIX, INNER_PREFIX].map(|prefix| (prefix, ours(links, prefix, LinkKind::Veth)));
    let bridge = |prefix: &str, name: &String| format!("{BRIDGE_PREFIX}{}", name.trim_start_matches(prefix));
    ends.iter().flat_map(|(prefix, names)| names.iter().map(|name| bridge(prefix, name))).collect()
}

/// Creates, updates or removes the relay of a network with this bridge and MTU. `of_host` is text that no other host of the network has.
pub(super) async fn ensure(
    netlink: &Netlink,
    bridge: &Link,
    relay: Option<&Relay>,
    mtu: u32,
    of_host: &str,
) -> Result<()> {
    let Some(relay) = relay else { return remove(netlink, &bridge.name).await };
    let (outer, inner) = ensure_pair(netlink, &bridge.name, relay, of_host).await?;
    for end in [&outer, &inner] {
        if end.mtu != mtu {
            netlink.set_mtu(end, mtu).await?;
        }
    }
    if inner.controller != Some(bridge.index) {
        netlink.join(&inner, bridge).await?;
    }
    // Without this, the interface answers ARP requests for the gateway, with its own MAC address.
    sysctl(&format!("net/ipv4/conf/{}/arp_ignore", outer.name), "1").await?;
    netlink.exact_addresses(&outer, &ipv4_hosts(&relay.addresses)).await?;
    for end in [&outer, &inner] {
        if !end.up {
            netlink.set_up(end).await?;
        }
    }
    exact_routes(netlink, &outer, &ipv4_hosts(&relay.targets)).await?;
    // After it is up: without its link there are no IPv6 routes.
    ensure_ipv6(netlink, &outer, &ipv6_hosts(&relay.addresses), &ipv6_hosts(&relay.targets)).await
}

/// Gives the interface these IPv6 addresses and routes; without an address it has no IPv6. Unlike for ARP, the kernel answers neighbour
/// solicitations for the addresses of the interface itself only.
async fn ensure_ipv6(
    netlink: &Netlink,
    outer: &Link,
    addresses: &[Ipv6Net],
    targets: &[Ipv6Net],
) -> Result<()> {
    if addresses.is_empty() {
        // The addresses and routes end with it.
        sysctl_if_there(&format!("net/ipv6/conf/{}/disable_ipv6", outer.name), "1").await;
        return Ok(());
    }
    ipv6::allow(&outer.name).await?;
    netlink.exact_ipv6_addresses(outer, addresses).await?;
    let there = netlink.ipv6_routes_by(outer).await?;
    for route in there.iter().filter(|route| !targets.contains(route)) {
        netlink.remove_ipv6_route(outer, *route).await?;
    }
    for route in targets.iter().filter(|route| !there.contains(route)) {
        netlink.add_ipv6_route(outer, *route).await?;
    }
    Ok(())
}

async fn ensure_pair(netlink: &Netlink, bridge: &str, relay: &Relay, of_host: &str) -> Result<(Link, Link)> {
    let (outer, inner) = (relay_link(bridge), inner_of(bridge));
    if netlink.link(&outer).await?.is_none() {
        netlink.add_pair(&outer, &inner, relay_mac(bridge, relay, of_host)).await?;
        for end in [&outer, &inner] {
            sysctl_if_there(&format!("net/ipv6/conf/{end}/disable_ipv6"), "1").await;
        }
        tracing::info!(bridge, interface = outer, "way to guests on other hosts made");
    }
    let ends = (netlink.expect(&outer).await?, netlink.expect(&inner).await?);
    ends.0.must_be(LinkKind::Veth)?;
    ends.1.must_be(LinkKind::Veth)?;
    Ok(ends)
}

/// A MAC address that no other host has on this network, also after addresses have gone from one host to another.
fn relay_mac(bridge: &str, relay: &Relay, of_host: &str) -> [u8; 6] {
    let hash = Sha256::digest(format!("relay {bridge} {of_host} {:?}", relay.addresses));
    [0x52, 0x54, 0x01, hash[0], hash[1], hash[2]]
}

fn ipv4_hosts(addresses: &[IpAddr]) -> Vec<Ipv4Net> {
    let host = |address: &IpAddr| match address {
        IpAddr::V4(address) => Some(Ipv4Net::from(*address)),
        IpAddr::V6(_) => None,
    };
    addresses.iter().filter_map(host).collect()
}

fn ipv6_hosts(addresses: &[IpAddr]) -> Vec<Ipv6Net> {
    let host = |address: &IpAddr| match address {
        IpAddr::V4(_) => None,
        IpAddr::V6(address) => Some(Ipv6Net::from(*address)),
    };
    addresses.iter().filter_map(host).collect()
}

/// Routes exactly these guests by the interface.
async fn exact_routes(netlink: &Netlink, link: &Link, wanted: &[Ipv4Net]) -> Result<()> {
    let there: Vec<Ipv4Net> =
        netlink.routes().await?.into_iter().filter(|route| route.link == link.index).map(|r| r.to).collect();
    for route in there.iter().filter(|route| !wanted.contains(route)) {
        netlink.remove_route(link, *route).await?;
    }
    for route in wanted.iter().filter(|route| !there.contains(route)) {
        netlink.add_route(link, *route).await?;
    }
    Ok(())
}

/// Removes the pair: the removal of one end removes the other.
pub(super) async fn remove(netlink: &Netlink, bridge: &str) -> Result<()> {
    for name in [relay_link(bridge), inner_of(bridge)] {
        let Some(link) = netlink.link(&name).await? else { continue };
        link.must_be(LinkKind::Veth)?;
        netlink.remove(&link).await?;
        tracing::info!(interface = name, "way to guests on other hosts removed");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_hosts_with_one_address_after_each_other_have_different_macs() {
        let relay = Relay { addresses: vec![IpAddr::from([10, 77, 0, 9])], targets: Vec::new() };
        let mac = |of_host| relay_mac("bth-00004d", &relay, of_host);
        assert_ne!(mac("192.0.2.1"), mac("192.0.2.2"));
        assert_eq!(mac("192.0.2.1"), mac("192.0.2.1"));
    }
}
