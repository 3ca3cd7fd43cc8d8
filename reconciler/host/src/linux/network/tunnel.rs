//! The connection of a private network to its part on other hosts: a VXLAN device beside its bridge, and a port of it.
//!
//! ```text
//!  guest ─ tap ─ bth-0a1b2c3d ─ btx-0a1b2c3d ═ UDP 4789, VNI ═ btx-0a1b2c3d ─ bth-0a1b2c3d ─ tap ─ guest
//!                (gateway 10.77.0.1)                                         (gateway 10.77.0.1)
//! ```
//!
//! Broadcast frames and frames to an unknown MAC go to each other host (there is one flood entry for each); the
//! location of a MAC is learnt from its replies. Every host has the gateway's address and its own DHCP server, so
//! neither crosses the tunnel: [`super::ruleset`] enforces that, and that only packets of those hosts are accepted.
//!
//! An encrypted network has the same device with IPv6 addresses, which are those of hosts within WireGuard ([`super::wireguard`]). The kernel
//! looks for the identifier of a packet among the devices of its family, so that a packet of IPv4 never reaches an encrypted network.

use super::netlink::{Link, LinkKind, Netlink, Vxlan};
use super::{BRIDGE_PREFIX, Result, TUNNEL_PREFIX, sysctl_if_there};
use crate::{NetworkConfig, Tunnel};

/// The port that IANA has assigned to VXLAN.
pub(super) const PORT: u16 = 4789;
/// The MAC address of the flood entries.
const EVERYBODY: [u8; 6] = [0; 6];
/// The minimum MTU of the tunnel device. Guests that got a larger MTU before their network had other hosts still send
/// packets of that size. Below the tunnel, the kernel reports the smaller MTU to them or fragments the packet; a port
/// of the bridge would drop it silently.
pub(super) const LEAST_MTU: u16 = 1500;

/// Returns the name of the tunnel device of this bridge.
pub(super) fn name_of(bridge: &str) -> String {
    format!("{TUNNEL_PREFIX}{}", bridge.trim_start_matches(BRIDGE_PREFIX))
}

/// Returns the name of this tunnel's bridge.
pub(super) fn bridge_of(tunnel: &str) -> String {
    format!("{BRIDGE_PREFIX}{}", tunnel.trim_start_matches(TUNNEL_PREFIX))
}

/// Creates, updates or removes the network's tunnel as configured.
pub(super) async fn ensure(netlink: &Netlink, bridge: &Link, network: &NetworkConfig) -> Result<()> {
    let Some(tunnel) = &network.tunnel else { return remove(netlink, &network.bridge).await };
    let link = device(netlink, &network.bridge, tunnel).await?;
    let mtu = u32::from(network.mtu.max(LEAST_MTU));
    if link.mtu != mtu {
        netlink.set_mtu(&link, mtu).await?;
    }
    exact_peers(netlink, &link, tunnel).await?;
    if link.controller != Some(bridge.index) {
        netlink.join(&link, bridge).await?;
    }
    if link.up { Ok(()) } else { netlink.set_up(&link).await }
}

async fn device(netlink: &Netlink, bridge: &str, tunnel: &Tunnel) -> Result<Link> {
    let name = name_of(bridge);
    let wanted = Vxlan { vni: tunnel.vni, local: Some(tunnel.local), port: PORT };
    if let Some(link) = netlink.link(&name).await? {
        link.must_be(LinkKind::Vxlan)?;
        if link.vxlan == Some(wanted) {
            return Ok(link);
        }
        // The host's address has changed: it is a fixed attribute of the device.
        netlink.remove(&link).await?;
    }
    netlink.add_vxlan(&name, wanted).await?;
    sysctl_if_there(&format!("net/ipv6/conf/{name}/disable_ipv6"), "1").await;
    tracing::info!(tunnel = name, bridge, vni = tunnel.vni, local = %tunnel.local, "tunnel made");
    netlink.expect(&name).await
}

/// Replaces the flood entries by these hosts, and removes learnt entries of other hosts.
async fn exact_peers(netlink: &Netlink, link: &Link, tunnel: &Tunnel) -> Result<()> {
    let there = netlink.destinations(link).await?;
    let floods: Vec<_> = there.iter().filter(|(mac, ..)| *mac == EVERYBODY).map(|(_, to, _)| *to).collect();
    for peer in tunnel.peers.iter().filter(|peer| !floods.contains(peer)) {
        netlink.add_destination(link, EVERYBODY, *peer).await?;
        tracing::info!(tunnel = link.name, %peer, "tunnel leads to another host");
    }
    for (mac, to, entry) in there {
        if !tunnel.peers.contains(&to) {
            netlink.remove_destination(link, entry).await?;
            if mac == EVERYBODY {
                tracing::info!(tunnel = link.name, peer = %to, "tunnel no longer leads to a host");
            }
        }
    }
    Ok(())
}

pub(super) async fn remove(netlink: &Netlink, bridge: &str) -> Result<()> {
    let name = name_of(bridge);
    let Some(link) = netlink.link(&name).await? else { return Ok(()) };
    link.must_be(LinkKind::Vxlan)?;
    netlink.remove(&link).await?;
    tracing::info!(tunnel = name, "tunnel removed");
    Ok(())
}
