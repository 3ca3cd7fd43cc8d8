//! The way of a private network to its part on other hosts: a VXLAN device beside its bridge, and a port of it.
//!
//! ```text
//!  guest ─ tap ─ bth-0a1b2c3d ─ btx-0a1b2c3d ═ UDP 4789, VNI ═ btx-0a1b2c3d ─ bth-0a1b2c3d ─ tap ─ guest
//!                (gateway 10.77.0.1)                                         (gateway 10.77.0.1)
//! ```
//!
//! A frame for all, or for whom nobody knows, goes to each other host (there is one flood entry for each); who is
//! where is learnt from what comes back. The gateway's address is on every host and DHCP is answered on each, so
//! neither crosses: [`super::ruleset`] sees to that, and that only those hosts are listened to.

use super::netlink::{Kind, Link, Netlink, Vxlan};
use super::{BRIDGE_PREFIX, Result, TUNNEL_PREFIX, sysctl_if_there};
use crate::system::{NetworkConfig, Tunnel};

/// The port VXLAN has from IANA.
pub(super) const PORT: u16 = 4789;
/// The address of the entries by which frames for all are sent.
const EVERYBODY: [u8; 6] = [0; 6];
/// Guests that were told more before their network had other hosts still send that much. The kernel tells them or
/// takes such a packet apart below the tunnel; at a port of the bridge it would be dropped without a word.
pub(super) const LEAST_MTU: u16 = 1500;

/// The tunnel's device beside this bridge.
pub(super) fn name_of(bridge: &str) -> String {
    format!("{TUNNEL_PREFIX}{}", bridge.trim_start_matches(BRIDGE_PREFIX))
}

/// The bridge this tunnel's device is beside.
pub(super) fn bridge_of(tunnel: &str) -> String {
    format!("{BRIDGE_PREFIX}{}", tunnel.trim_start_matches(TUNNEL_PREFIX))
}

/// Makes the network's tunnel be what it is to be, or not be.
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
        link.must_be(Kind::Vxlan)?;
        if link.vxlan == Some(wanted) {
            return Ok(link);
        }
        // The host's address changed: that is part of what the device is.
        netlink.remove(&link).await?;
    }
    netlink.add_vxlan(&name, wanted).await?;
    sysctl_if_there(&format!("net/ipv6/conf/{name}/disable_ipv6"), "1").await;
    tracing::info!(tunnel = name, bridge, vni = tunnel.vni, local = %tunnel.local, "tunnel made");
    netlink.expect(&name).await
}

/// Frames for all go to exactly these hosts, and what was learnt of others is forgotten.
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
    link.must_be(Kind::Vxlan)?;
    netlink.remove(&link).await?;
    tracing::info!(tunnel = name, "tunnel removed");
    Ok(())
}
