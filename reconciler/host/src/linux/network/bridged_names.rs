//! Names on bridged networks: each host answers the questions of its own guests, and its own, at an address of the network.
//!
//! ```text
//!  guest ─ tap ─ bth-0a1b2c3d (192.0.2.53) ─ btv-0a1b2c3d ═ btu-0a1b2c3d ─ vmbr0 ─ LAN
//!                 └ dnsmasq                  ✗ nothing from or to 192.0.2.53
//! ```
//!
//! The address is the same on every host, and so is the MAC address of the bridge, so that the rules keep both from the network. The host's
//! own route to the network leads by another interface, if there is one: a rule has the answers leave by the bridge, and changes the way
//! of no other packet.

use super::netlink::{Link, Netlink};
use super::{LinuxNetworks, Result, blocking, bridge_mac, remove_folder, sysctl};
use crate::{BridgedNames, BridgedNetwork, SystemError};
use ipnet::Ipv4Net;

/// The first byte of the numbers of the tables of routes: far from those that programs choose.
const TABLES: u8 = 0x62;

/// The table of routes of a bridge.
fn table_of(bridge: &str) -> u32 {
    let [.., a, b, c] = bridge_mac(bridge);
    u32::from_be_bytes([TABLES, a, b, c])
}

/// Gives the bridge the address, or takes it away. Before it is up.
pub(super) async fn ensure_address(
    netlink: &Netlink,
    bridge: &Link,
    names: Option<&BridgedNames>,
) -> Result<()> {
    let address = names.map(|names| Ipv4Net::from(names.address));
    // A bridge that was an overlay's would answer on the host's network.
    netlink.exact_addresses(bridge, address.as_slice()).await?;
    // Without this, the kernel answers ARP requests for all addresses of the host here too, with the MAC address of this bridge,
    // and what machines of the network then send to the host would not arrive. 1: it answers for those of the bridge only; 8: for none.
    let answers = if names.is_some() { "1" } else { "8" };
    sysctl(&format!("net/ipv4/conf/{}/arp_ignore", bridge.name), answers).await
}

/// Has the answers leave by the bridge, which is up.
pub(super) async fn ensure_route(
    netlink: &Netlink,
    bridge: &Link,
    names: Option<&BridgedNames>,
) -> Result<()> {
    let table = table_of(&bridge.name);
    match names {
        Some(names) => netlink.ensure_source_route(bridge, table, (names.address, names.range)).await,
        None => remove_route(netlink, &bridge.name).await,
    }
}

/// The route itself goes with the bridge.
pub(super) async fn remove_route(netlink: &Netlink, bridge: &str) -> Result<()> {
    netlink.remove_source_rules(table_of(bridge), None).await.map(drop)
}

impl LinuxNetworks {
    /// Ensures that the name server of a bridged network runs with its names, or ends it.
    pub(super) async fn ensure_bridged_names(&self, network: &BridgedNetwork) -> Result<()> {
        let folder = self.layout.network(&network.bridge);
        if let Some(named) = &network.names {
            let served = self.servers.ensure_names(&folder, &network.bridge, &named.names).await;
            return served.map_err(|error| SystemError::NetworkServer {
                bridge: network.bridge.clone(),
                source: Box::new(error),
            });
        }
        let there = folder.clone();
        if blocking(move || there.exists()).await {
            self.servers.remove(&folder, &network.bridge).await?;
            blocking(move || remove_folder(&folder)).await?;
        }
        Ok(())
    }
}
