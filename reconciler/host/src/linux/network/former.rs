//! The remains of a network of the other type under the name of a bridge. A bridge is named after the identifier of its network, and that
//! follows from the network's name: a network that is deleted and made anew as one of the other type has the same bridge. A host that has
//! not removed the former one in between, as one whose agent was killed, would connect guests of a private network with the network of the
//! hosts, or the network of the hosts with a DHCP server and a tunnel of berth's.

use super::netlink::Netlink;
use super::{LinuxNetworks, Result, blocking, bridged, dnsmasq, tunnel};

impl LinuxNetworks {
    /// Removes what a bridged network has left. The bridge of a private network has no such connection.
    pub(super) async fn remove_former_bridged(&self, netlink: &Netlink, bridge: &str) -> Result<()> {
        match netlink.link(&bridged::inner_of(bridge)).await? {
            Some(_) => Box::pin(self.remove(bridge)).await,
            None => Ok(()),
        }
    }

    /// Removes what a private network has left. The bridge of a bridged network has neither a DHCP server nor a tunnel.
    pub(super) async fn remove_former_private(&self, netlink: &Netlink, bridge: &str) -> Result<()> {
        let folder = self.layout.network(bridge);
        let has_server = blocking(move || dnsmasq::serves_dhcp(&folder)).await;
        if has_server || netlink.link(&tunnel::name_of(bridge)).await?.is_some() {
            return Box::pin(self.remove(bridge)).await;
        }
        Ok(())
    }
}
