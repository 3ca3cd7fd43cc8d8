//! Bridged networks: a bridge of berth's for the taps, connected to a bridge of the host by a pair of interfaces.
//!
//! ```text
//!  guest ─ tap ─ bth-0a1b2c3d ─ btv-0a1b2c3d ═ btu-0a1b2c3d ─ vmbr0 ─ eth1 ─ LAN
//!                (no address, or that of its name server)      (the host's)
//! ```
//!
//! In place of the host's bridge, there may be one of berth's over an interface ([`over_interface`]). The host then has no address on the
//! network, unless it forwards connections to public addresses there ([`relay`]).
//! The host's bridge gets one port, and none of its settings changes: the filters of interfaces need the settings of a bridge, and
//! those of berth's own are set. The port's MAC address is higher than that of any card and its MTU is the bridge's, because a
//! bridge may take the lowest of either among its ports.

use super::netlink::{Link, LinkKind, Netlink, network};
use super::{
    BRIDGE_PREFIX, PORT_PREFIX, Result, bridge_mac, bridged_names, check_link, host_ranges, ours,
    over_interface, relay, sysctl_if_there, tracking,
};
use crate::{BridgeChoice, BridgedNetwork, HostBridge};

/// The end of the pair on berth's bridge.
pub(super) const INNER_PREFIX: &str = "btv-";

fn outer_of(bridge: &str) -> String {
    format!("{PORT_PREFIX}{}", bridge.trim_start_matches(BRIDGE_PREFIX))
}

pub(super) fn inner_of(bridge: &str) -> String {
    format!("{INNER_PREFIX}{}", bridge.trim_start_matches(BRIDGE_PREFIX))
}

/// Returns the bridges whose connection to a bridge of the host is there.
pub(super) fn bridges(links: &[Link]) -> Vec<String> {
    let ends = [PORT_PREFIX, INNER_PREFIX].map(|prefix| (prefix, ours(links, prefix, LinkKind::Veth)));
    let bridge = |prefix: &str, name: &String| format!("{BRIDGE_PREFIX}{}", name.trim_start_matches(prefix));
    ends.iter().flat_map(|(prefix, names)| names.iter().map(|name| bridge(prefix, name))).collect()
}

/// Returns the bridges that are not berth's, in order.
pub(super) fn host_bridges(links: &[Link]) -> Vec<HostBridge> {
    let bridges =
        links.iter().filter(|link| link.kind == Some(LinkKind::Bridge) && !host_ranges::is_berths(link));
    let bridge = |link: &Link| HostBridge {
        name: link.name.clone(),
        mtu: link.mtu,
        up: link.up,
        filters_vlans: link.filters_vlans,
    };
    let mut bridges: Vec<HostBridge> = bridges.map(bridge).collect();
    bridges.sort();
    bridges
}

pub(super) async fn ensure(netlink: &Netlink, wanted: &BridgedNetwork) -> Result<()> {
    check_link("bridge", &wanted.bridge, BRIDGE_PREFIX)?;
    // A refusal comes before anything is made.
    match &wanted.to {
        BridgeChoice::Named(name) => check(netlink, name).await?,
        BridgeChoice::Over { interface, vlan } => over_interface::check(netlink, interface, *vlan).await?,
    }
    // First, so that what an interrupted call has made is listed with it.
    let bridge = ensure_bridge(netlink, wanted).await?;
    let host_bridge = match &wanted.to {
        BridgeChoice::Named(name) => netlink.expect(name).await?,
        BridgeChoice::Over { interface, vlan } => over_interface::ensure(netlink, interface, *vlan).await?,
    };
    let (outer, inner) = ensure_pair(netlink, &wanted.bridge).await?;
    for end in [&outer, &inner] {
        if end.mtu != host_bridge.mtu {
            netlink.set_mtu(end, host_bridge.mtu).await?;
        }
    }
    for (end, to) in [(&inner, &bridge), (&outer, &host_bridge)] {
        if end.controller != Some(to.index) {
            netlink.join(end, to).await?;
        }
        if !end.up {
            netlink.set_up(end).await?;
        }
    }
    // The bridge over an interface has the MAC address of this host's own interface in its own.
    let of_host = format!("{:?}", host_bridge.mac);
    relay::ensure(netlink, &bridge, wanted.relay.as_ref(), host_bridge.mtu, &of_host).await?;
    over_interface::remove_unused(netlink).await
}

/// Refuses what is no bridge of the host.
async fn check(netlink: &Netlink, name: &str) -> Result<()> {
    let found = netlink.expect(name).await?;
    if found.kind != Some(LinkKind::Bridge) || host_ranges::is_berths(&found) {
        return Err(network("use", name, "it is no bridge of this host"));
    }
    Ok(())
}

async fn ensure_bridge(netlink: &Netlink, wanted: &BridgedNetwork) -> Result<Link> {
    let name = &wanted.bridge;
    let bridge = match netlink.link(name).await? {
        Some(link) => link,
        None => {
            netlink.add_bridge(name, bridge_mac(name)).await?;
            tracing::info!(bridge = name, to = ?wanted.to, "bridge made");
            netlink.expect(name).await?
        }
    };
    bridge.must_be(LinkKind::Bridge)?;
    // Also of one that an interrupted call has made: the host would get addresses from the routers of the network.
    without_ipv6(name).await;
    if bridge.tracked != wanted.tracked {
        tracking::set(netlink, &bridge, wanted.tracked).await?;
    }
    bridged_names::ensure_address(netlink, &bridge, wanted.names.as_ref()).await?;
    if !bridge.up {
        netlink.set_up(&bridge).await?;
    }
    bridged_names::ensure_route(netlink, &bridge, wanted.names.as_ref()).await?;
    Ok(bridge)
}

async fn ensure_pair(netlink: &Netlink, bridge: &str) -> Result<(Link, Link)> {
    let (outer, inner) = (outer_of(bridge), inner_of(bridge));
    if netlink.link(&outer).await?.is_none() {
        // Above every card's, whose first byte has the bits of a global address.
        let [.., a, b, c] = bridge_mac(bridge);
        netlink.add_pair(&outer, &inner, [0xfe, 0x54, 0x00, a, b, c]).await?;
        for end in [&outer, &inner] {
            without_ipv6(end).await;
        }
        tracing::info!(bridge, port = outer, "port of the host's bridge made");
    }
    let ends = (netlink.expect(&outer).await?, netlink.expect(&inner).await?);
    ends.0.must_be(LinkKind::Veth)?;
    ends.1.must_be(LinkKind::Veth)?;
    Ok(ends)
}

async fn without_ipv6(link: &str) {
    sysctl_if_there(&format!("net/ipv6/conf/{link}/disable_ipv6"), "1").await;
}

/// Removes the connection to the host's bridge, and with the last one a bridge over an interface. Removing one end of a pair removes the other.
pub(super) async fn remove(netlink: &Netlink, bridge: &str) -> Result<()> {
    bridged_names::remove_route(netlink, bridge).await?;
    for name in [outer_of(bridge), inner_of(bridge)] {
        let Some(link) = netlink.link(&name).await? else { continue };
        link.must_be(LinkKind::Veth)?;
        netlink.remove(&link).await?;
        tracing::info!(port = name, "port of the host's bridge removed");
    }
    over_interface::remove_unused(netlink).await
}
