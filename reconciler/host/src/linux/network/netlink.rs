//! The host's links and addresses, by rtnetlink.

mod bridge_info;
mod ipv6_addresses;
mod routes;
mod source_routes;
mod wireguard;

use std::net::{IpAddr, Ipv4Addr};

use futures::{StreamExt, TryStreamExt};
use ipnet::{Ipv4Net, Ipv6Net};
use rtnetlink::packet_core::{
    NLM_F_ACK, NLM_F_APPEND, NLM_F_CREATE, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload, Nla,
};
use rtnetlink::packet_route::address::{AddressAttribute, AddressMessage};
use rtnetlink::packet_route::link::{
    InfoBridge, InfoData, InfoKind, InfoVlan, InfoVxlan, LinkAttribute, LinkFlags, LinkInfo, LinkLayerType,
    LinkMessage,
};
use rtnetlink::packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use rtnetlink::packet_route::route::RouteMessage;
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};
use rtnetlink::{
    Handle, LinkBridge, LinkBridgePort, LinkMessageBuilder, LinkUnspec, LinkVeth, LinkVlan, LinkVxlan,
    RouteMessageBuilder,
};

use super::Result;
use crate::SystemError;
use bridge_info::{filters_vlans, hairpin, tracked};
pub(super) use ipv6_addresses::IpOf;
pub(super) use routes::{PrefixRoute, RouteOfPacket};
use routes::{Route, default_route, route, route_by};

/// Attributes of a tap, as `linux/if_link.h` numbers them; rtnetlink has no names for them.
const TUN_MULTI_QUEUE: u16 = 7;
const TUN_NUM_QUEUES: u16 = 8;

/// The kinds of links that berth creates, and those that can lead to a network of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkKind {
    Bridge,
    Tap,
    Vxlan,
    Veth,
    Vlan,
    Bond,
    Dummy,
    Wireguard,
    Other,
}

/// The fixed attributes of a VXLAN device, set at its creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Vxlan {
    pub(super) vni: u32,
    pub(super) local: Option<IpAddr>,
    pub(super) port: u16,
}

#[derive(Clone, Debug)]
pub(super) struct Link {
    pub(super) index: u32,
    pub(super) name: String,
    /// None for a card.
    pub(super) kind: Option<LinkKind>,
    pub(super) mtu: u32,
    pub(super) up: bool,
    /// Whether it is up and has a carrier.
    pub(super) carrier: bool,
    /// Text that programs attach to a link.
    pub(super) alias: Option<String>,
    /// The link that it is on top of.
    pub(super) below: Option<u32>,
    /// As a VLAN interface: its tag.
    pub(super) vlan: Option<u16>,
    /// The bridge that it is a port of.
    pub(super) controller: Option<u32>,
    /// As a bridge port: whether frames may leave by the port they came in on.
    pub(super) hairpin: bool,
    /// As a bridge: whether packets between its ports pass the rules for routed packets.
    pub(super) tracked: bool,
    /// As a bridge: whether its ports are in certain VLANs only.
    pub(super) filters_vlans: bool,
    pub(super) vxlan: Option<Vxlan>,
    /// As a tap: whether several programs, or one several times, can attach to it.
    pub(super) multi_queue: bool,
    /// As a tap: the number of times that programs are attached to it.
    pub(super) queues: u32,
    /// Its MAC address, if it is an Ethernet link.
    pub(super) mac: Option<[u8; 6]>,
}

impl Link {
    /// A link with one of berth's names but another kind is foreign and is not touched.
    pub(super) fn must_be(&self, kind: LinkKind) -> Result<()> {
        if self.kind == Some(kind) {
            return Ok(());
        }
        Err(network("use", &self.name, format!("it exists and is no {kind:?} of berth's")))
    }
}

/// A netlink connection to the kernel, for a few consecutive requests.
#[derive(Debug)]
pub(super) struct Netlink {
    handle: Handle,
}

impl Netlink {
    pub(super) fn open() -> Result<Self> {
        let (connection, handle, _) =
            rtnetlink::new_connection().map_err(|e| network("open", "rtnetlink", e.to_string()))?;
        // Ends when the handle is dropped.
        tokio::spawn(connection);
        Ok(Self { handle })
    }

    pub(super) async fn links(&self) -> Result<Vec<Link>> {
        let all: Vec<LinkMessage> =
            self.handle.link().get().execute().try_collect().await.map_err(on("list", "network links"))?;
        Ok(all.into_iter().filter_map(link).collect())
    }

    pub(super) async fn link(&self, name: &str) -> Result<Option<Link>> {
        let mut found = self.handle.link().get().match_name(name).execute();
        match found.try_next().await {
            Ok(message) => Ok(message.and_then(link)),
            Err(error) if errno(&error) == Some(libc::ENODEV) => Ok(None),
            Err(error) => Err(on("look for", name)(error)),
        }
    }

    pub(super) async fn expect(&self, name: &str) -> Result<Link> {
        self.link(name).await?.ok_or_else(|| network("find", name, "there is no such interface"))
    }

    pub(super) async fn add_bridge(&self, name: &str, mac: [u8; 6]) -> Result<()> {
        let message = LinkBridge::new(name).address(mac.to_vec()).build();
        self.add(name, message).await
    }

    pub(super) async fn add_vxlan(&self, name: &str, vxlan: Vxlan) -> Result<()> {
        let mut message = LinkVxlan::new(name, vxlan.vni).port(vxlan.port);
        match vxlan.local {
            Some(IpAddr::V4(local)) => message = message.local(local),
            Some(IpAddr::V6(local)) => message = message.local6(local),
            None => {}
        }
        self.add(name, message.build()).await
    }

    /// Adds an interface for a VLAN of another interface.
    pub(super) async fn add_vlan(&self, name: &str, on: &Link, id: u16) -> Result<()> {
        let added = self.handle.link().add(vlan_message(name, on.index, id)).execute().await;
        match added {
            Err(error) if errno(&error) == Some(libc::EOPNOTSUPP) => Err(network("make", name, NO_VLANS)),
            added => added.map_err(self::on("make", name)),
        }
    }

    /// Whether the kernel has VLANs, after it has loaded its module for them. Asks for a VLAN of no interface, which makes none.
    pub(super) async fn has_vlans(&self) -> bool {
        let asked = self.handle.link().add(vlan_message("btg-probe", 0, 1)).execute().await;
        !matches!(asked.as_ref().map_err(errno), Err(Some(libc::EOPNOTSUPP | libc::EPERM)))
    }

    /// Adds a pair of connected interfaces; `mac` is the first one's.
    pub(super) async fn add_pair(&self, name: &str, peer: &str, mac: [u8; 6]) -> Result<()> {
        self.add(name, LinkVeth::new(name, peer).address(mac.to_vec()).build()).await
    }

    /// Adds a link. Succeeds if it was created concurrently.
    async fn add(&self, name: &str, message: LinkMessage) -> Result<()> {
        added(self.handle.link().add(message).execute().await, "make", name)
    }

    pub(super) async fn remove(&self, link: &Link) -> Result<()> {
        match self.handle.link().del(link.index).execute().await {
            Err(error) if errno(&error) != Some(libc::ENODEV) => Err(on("remove", &link.name)(error)),
            _ => Ok(()),
        }
    }

    pub(super) async fn set_mtu(&self, link: &Link, mtu: u32) -> Result<()> {
        self.change(link, "set the MTU of", LinkUnspec::new_with_index(link.index).mtu(mtu).build()).await
    }

    pub(super) async fn set_up(&self, link: &Link) -> Result<()> {
        self.change(link, "bring up", LinkUnspec::new_with_index(link.index).up().build()).await
    }

    pub(super) async fn join(&self, link: &Link, bridge: &Link) -> Result<()> {
        let message = LinkUnspec::new_with_index(link.index).controller(bridge.index).build();
        self.change(link, "join to its bridge", message).await
    }

    pub(super) async fn leave(&self, link: &Link) -> Result<()> {
        let message = LinkUnspec::new_with_index(link.index).nocontroller().build();
        self.change(link, "take from its bridge", message).await
    }

    pub(super) async fn set_down(&self, link: &Link) -> Result<()> {
        self.change(link, "bring down", LinkUnspec::new_with_index(link.index).down().build()).await
    }

    pub(super) async fn set_alias(&self, link: &Link, text: &str) -> Result<()> {
        self.change(link, "describe", LinkUnspec::new_with_index(link.index).alias(text).build()).await
    }

    pub(super) async fn set_hairpin(&self, link: &Link, on: bool) -> Result<()> {
        let message = LinkBridgePort::new(link.index).hairpin(on).build();
        self.change(link, "set the hairpin mode of", message).await
    }

    /// Sets whether packets between the bridge's ports pass the rules for routed packets.
    pub(super) async fn set_tracked(&self, bridge: &Link, on: bool) -> Result<()> {
        let message = LinkMessageBuilder::<LinkBridge>::new_with_info_kind(InfoKind::Bridge)
            .index(bridge.index)
            .append_info_data(InfoBridge::NfCallIpTables(on))
            .append_info_data(InfoBridge::NfCallIp6Tables(on))
            .build();
        self.change(bridge, "set the tracking of", message).await
    }

    async fn change(&self, link: &Link, attempt: &'static str, message: LinkMessage) -> Result<()> {
        self.handle.link().change(message).execute().await.map_err(on(attempt, &link.name))
    }

    /// Replaces the link's IPv4 addresses by these.
    pub(super) async fn exact_addresses(&self, link: &Link, wanted: &[Ipv4Net]) -> Result<()> {
        for (address, message) in self.addresses(link).await? {
            if !wanted.contains(&address) {
                let request = self.handle.address().del(message);
                match request.execute().await {
                    Err(error) if errno(&error) != Some(libc::EADDRNOTAVAIL) => {
                        return Err(on("take an address from", &link.name)(error));
                    }
                    _ => {}
                }
            }
        }
        self.add_missing(link, wanted).await
    }

    /// Lists the host's IPv6 addresses with their prefix, and the index of their link.
    pub(super) async fn all_ipv6_networks(&self) -> Result<Vec<(u32, Ipv6Net)>> {
        let request = self.handle.address().get().execute();
        let all: Vec<AddressMessage> =
            request.try_collect().await.map_err(on("list", "the host's addresses"))?;
        Ok(all.iter().filter_map(|m| Some((m.header.index, ipv6(m)?))).collect())
    }

    pub(super) async fn add_missing(&self, link: &Link, wanted: &[Ipv4Net]) -> Result<()> {
        let there = self.addresses(link).await?;
        for address in wanted.iter().filter(|w| !there.iter().any(|(a, _)| a == *w)) {
            let request =
                self.handle.address().add(link.index, IpAddr::V4(address.addr()), address.prefix_len());
            added(request.execute().await, "give an address to", &link.name)?;
        }
        Ok(())
    }

    /// Returns the destinations of a VXLAN device: MAC address, host, and the entry itself.
    pub(super) async fn destinations(&self, link: &Link) -> Result<Vec<([u8; 6], IpAddr, NeighbourMessage)>> {
        let request = self.handle.neighbours().get().set_address_family(AddressFamily::Bridge);
        let all: Vec<NeighbourMessage> =
            request.execute().try_collect().await.map_err(on("list where to send from", &link.name))?;
        // The kernel lists the entries of all devices.
        let of_link = all.into_iter().filter(|message| message.header.ifindex == link.index);
        Ok(of_link.filter_map(|message| destination(&message).map(|(mac, to)| (mac, to, message))).collect())
    }

    /// Adds a host to which frames for this MAC address are sent.
    pub(super) async fn add_destination(&self, link: &Link, mac: [u8; 6], to: IpAddr) -> Result<()> {
        let mut message = NeighbourMessage::default();
        message.header.family = AddressFamily::Bridge;
        message.header.ifindex = link.index;
        message.header.state = NeighbourState::Permanent;
        message.header.flags = NeighbourFlags::Own;
        message.attributes.push(NeighbourAttribute::LinkLayerAddress(mac.to_vec()));
        message.attributes.push(NeighbourAttribute::Destination(to.into()));
        let mut request = NetlinkMessage::from(RouteNetlinkMessage::NewNeighbour(message));
        // Appended: the crate's own request can only replace an entry, but there is one entry for each host.
        request.header.flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_APPEND;
        let mut handle = self.handle.clone();
        let mut answers = handle.request(request).map_err(on("add a host to", &link.name))?;
        while let Some(answer) = answers.next().await {
            if let NetlinkPayload::Error(error) = answer.payload
                && error.raw_code() != 0
                && error.raw_code().abs() != libc::EEXIST
            {
                return Err(on("add a host to", &link.name)(rtnetlink::Error::NetlinkError(error)));
            }
        }
        Ok(())
    }

    pub(super) async fn remove_destination(&self, link: &Link, entry: NeighbourMessage) -> Result<()> {
        match self.handle.neighbours().del(entry).execute().await {
            Err(error) if errno(&error) != Some(libc::ENOENT) => {
                Err(on("take a host from", &link.name)(error))
            }
            _ => Ok(()),
        }
    }

    /// Returns the link that has this address, with any prefix.
    pub(super) async fn link_with(&self, address: Ipv4Addr) -> Result<Option<Link>> {
        let all = self.all_addresses().await?;
        let Some((index, _)) = all.into_iter().find(|(_, found)| *found == address) else { return Ok(None) };
        Ok(self.links().await?.into_iter().find(|link| link.index == index))
    }

    /// Lists the host's IPv4 addresses, with the index of their link.
    pub(super) async fn all_addresses(&self) -> Result<Vec<(u32, Ipv4Addr)>> {
        let all: Vec<AddressMessage> = self
            .handle
            .address()
            .get()
            .execute()
            .try_collect()
            .await
            .map_err(on("list", "the host's addresses"))?;
        Ok(all.into_iter().filter_map(|m| Some((m.header.index, ipv4(&m)?.addr()))).collect())
    }

    /// Lists the host's IPv4 addresses with their prefix, and the index of their link.
    pub(super) async fn all_networks(&self) -> Result<Vec<(u32, Ipv4Net)>> {
        let request = self.handle.address().get().execute();
        let all: Vec<AddressMessage> =
            request.try_collect().await.map_err(on("list", "the host's addresses"))?;
        Ok(all.into_iter().filter_map(|m| Some((m.header.index, ipv4(&m)?))).collect())
    }

    /// Lists the unicast routes of the main table.
    pub(super) async fn routes(&self) -> Result<Vec<Route>> {
        let request = self.handle.route().get(RouteMessageBuilder::<Ipv4Addr>::new().build());
        let all: Vec<RouteMessage> = request.execute().try_collect().await.map_err(on("list", "routes"))?;
        Ok(all.iter().filter_map(route).collect())
    }

    /// Routes a range by the link.
    pub(super) async fn add_route(&self, link: &Link, to: Ipv4Net) -> Result<()> {
        added(self.handle.route().add(route_by(link, to)).execute().await, "add a route by", &link.name)
    }

    pub(super) async fn remove_route(&self, link: &Link, to: Ipv4Net) -> Result<()> {
        match self.handle.route().del(route_by(link, to)).execute().await {
            Err(error) if errno(&error) != Some(libc::ESRCH) => {
                Err(on("remove a route by", &link.name)(error))
            }
            _ => Ok(()),
        }
    }

    /// Returns the link of the default route; if there are several, the one with the lowest metric.
    pub(super) async fn default_link(&self) -> Result<Option<Link>> {
        let request = self.handle.route().get(RouteMessageBuilder::<Ipv4Addr>::new().build());
        let all: Vec<RouteMessage> = request.execute().try_collect().await.map_err(on("list", "routes"))?;
        let chosen = all.iter().filter_map(default_route).min();
        let Some((_, index)) = chosen else { return Ok(None) };
        Ok(self.links().await?.into_iter().find(|link| link.index == index))
    }

    async fn addresses(&self, link: &Link) -> Result<Vec<(Ipv4Net, AddressMessage)>> {
        let request = self.handle.address().get().set_link_index_filter(link.index);
        let all: Vec<AddressMessage> =
            request.execute().try_collect().await.map_err(on("list the addresses of", &link.name))?;
        Ok(all.into_iter().filter_map(|m| Some((ipv4(&m)?, m))).collect())
    }
}

/// The message about a kernel without VLANs.
const NO_VLANS: &str = "VLANs are not available on this host's kernel: modprobe 8021q";

fn vlan_message(name: &str, on: u32, id: u16) -> LinkMessage {
    LinkVlan::new(name, on, id).build()
}

fn destination(message: &NeighbourMessage) -> Option<([u8; 6], IpAddr)> {
    let mut found = (None, None);
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::LinkLayerAddress(mac) => found.0 = mac.as_slice().try_into().ok(),
            NeighbourAttribute::Destination(NeighbourAddress::Inet(to)) => found.1 = Some(IpAddr::V4(*to)),
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(to)) => found.1 = Some(IpAddr::V6(*to)),
            // An entry of a bridge does not include the address family.
            NeighbourAttribute::Destination(NeighbourAddress::Other(bytes)) => {
                let ipv4 = <[u8; 4]>::try_from(bytes.as_slice()).map(IpAddr::from);
                let ipv6 = || <[u8; 16]>::try_from(bytes.as_slice()).map(IpAddr::from);
                found.1 = ipv4.or_else(|_| ipv6()).ok();
            }
            _ => {}
        }
    }
    found.0.zip(found.1)
}

fn ipv4(message: &AddressMessage) -> Option<Ipv4Net> {
    if message.header.family != AddressFamily::Inet {
        return None;
    }
    let local = message.attributes.iter().find_map(|a| match a {
        AddressAttribute::Local(IpAddr::V4(address)) => Some(*address),
        _ => None,
    })?;
    Ipv4Net::new(local, message.header.prefix_len).ok()
}

fn ipv6(message: &AddressMessage) -> Option<Ipv6Net> {
    let address = message.attributes.iter().find_map(|a| match a {
        AddressAttribute::Address(IpAddr::V6(address)) => Some(*address),
        _ => None,
    })?;
    Ipv6Net::new(address, message.header.prefix_len).ok()
}

fn link(message: LinkMessage) -> Option<Link> {
    let mut link = Link {
        index: message.header.index,
        name: String::new(),
        kind: None,
        mtu: 0,
        up: message.header.flags.contains(LinkFlags::Up),
        carrier: message.header.flags.contains(LinkFlags::LowerUp),
        alias: None,
        below: None,
        vlan: None,
        controller: None,
        hairpin: false,
        tracked: false,
        filters_vlans: false,
        vxlan: None,
        multi_queue: false,
        queues: 0,
        mac: None,
    };
    for attribute in message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name = name,
            LinkAttribute::Mtu(mtu) => link.mtu = mtu,
            LinkAttribute::IfAlias(text) => link.alias = Some(text),
            LinkAttribute::Link(index) => link.below = (index != 0).then_some(index),
            LinkAttribute::Address(mac) if message.header.link_layer_type == LinkLayerType::Ether => {
                link.mac = mac.as_slice().try_into().ok();
            }
            LinkAttribute::Controller(index) => link.controller = (index != 0).then_some(index),
            LinkAttribute::LinkInfo(infos) => {
                link.kind = infos.iter().find_map(kind);
                link.hairpin = infos.iter().any(hairpin);
                link.tracked = infos.iter().any(tracked);
                link.filters_vlans = infos.iter().any(filters_vlans);
                link.vxlan = infos.iter().find_map(vxlan);
                link.vlan = infos.iter().find_map(vlan);
                link.multi_queue = infos.iter().find_map(|info| tun(info, TUN_MULTI_QUEUE)) == Some(1);
                link.queues = infos.iter().find_map(|info| tun(info, TUN_NUM_QUEUES)).unwrap_or_default();
            }
            _ => {}
        }
    }
    (!link.name.is_empty()).then_some(link)
}

fn kind(info: &LinkInfo) -> Option<LinkKind> {
    match info {
        LinkInfo::Kind(InfoKind::Bridge) => Some(LinkKind::Bridge),
        LinkInfo::Kind(InfoKind::Tun) => Some(LinkKind::Tap),
        LinkInfo::Kind(InfoKind::Vxlan) => Some(LinkKind::Vxlan),
        LinkInfo::Kind(InfoKind::Veth) => Some(LinkKind::Veth),
        LinkInfo::Kind(InfoKind::Vlan) => Some(LinkKind::Vlan),
        LinkInfo::Kind(InfoKind::Bond) => Some(LinkKind::Bond),
        LinkInfo::Kind(InfoKind::Dummy) => Some(LinkKind::Dummy),
        LinkInfo::Kind(InfoKind::Wireguard) => Some(LinkKind::Wireguard),
        LinkInfo::Kind(_) => Some(LinkKind::Other),
        _ => None,
    }
}

fn vlan(info: &LinkInfo) -> Option<u16> {
    let LinkInfo::Data(InfoData::Vlan(attributes)) = info else { return None };
    attributes.iter().find_map(|attribute| match attribute {
        InfoVlan::Id(id) => Some(*id),
        _ => None,
    })
}

fn vxlan(info: &LinkInfo) -> Option<Vxlan> {
    let LinkInfo::Data(InfoData::Vxlan(attributes)) = info else { return None };
    let mut vxlan = Vxlan::default();
    for attribute in attributes {
        match attribute {
            InfoVxlan::Id(vni) => vxlan.vni = *vni,
            InfoVxlan::Local(local) => vxlan.local = Some(IpAddr::V4(*local)),
            InfoVxlan::Local6(local) => vxlan.local = Some(IpAddr::V6(*local)),
            InfoVxlan::Port(port) => vxlan.port = *port,
            _ => {}
        }
    }
    Some(vxlan)
}

/// Returns an attribute of a tap, which the kernel sends as a number of one or four bytes.
fn tun(info: &LinkInfo, attribute: u16) -> Option<u32> {
    let LinkInfo::Data(InfoData::Tun(attributes)) = info else { return None };
    attributes.iter().filter(|found| found.kind() == attribute).find_map(|found| {
        let mut value = [0; 4];
        let bytes = value.get_mut(..found.value_len())?;
        found.emit_value(bytes);
        Some(u32::from_ne_bytes(value))
    })
}

/// Returns the outcome of an addition: it succeeds if the object is there already.
fn added<T>(
    outcome: std::result::Result<T, rtnetlink::Error>,
    attempt: &'static str,
    name: &str,
) -> Result<()> {
    match outcome {
        Err(error) if errno(&error) != Some(libc::EEXIST) => Err(on(attempt, name)(error)),
        _ => Ok(()),
    }
}

fn errno(error: &rtnetlink::Error) -> Option<i32> {
    match error {
        rtnetlink::Error::NetlinkError(message) => Some(message.raw_code().abs()),
        _ => None,
    }
}

fn on(attempt: &'static str, name: &str) -> impl FnOnce(rtnetlink::Error) -> SystemError {
    let name = name.to_owned();
    move |error| {
        let detail = match errno(&error) {
            Some(libc::EPERM) => "no permission: the host agent needs root or CAP_NET_ADMIN".to_owned(),
            Some(code) => std::io::Error::from_raw_os_error(code).to_string(),
            None => error.to_string(),
        };
        network(attempt, &name, detail)
    }
}

pub(super) fn network(attempt: &'static str, name: &str, detail: impl Into<String>) -> SystemError {
    SystemError::Network { attempt, name: name.to_owned(), detail: detail.into() }
}

#[cfg(test)]
mod tests {
    use rtnetlink::packet_core::Emitable;

    use super::*;

    #[test]
    fn the_kernel_is_asked_for_a_vlan_in_the_bytes_of_rtnetlink() {
        let message = vlan_message("btg-01020304", 7, 120);
        let mut bytes = vec![0; message.buffer_len()];
        message.emit(&mut bytes);
        let mut expected = vec![0_u8; 16]; // struct ifinfomsg: nothing is known of the new interface
        expected.extend([17, 0, 3, 0]); // IFLA_IFNAME
        expected.extend(b"btg-01020304\0\0\0\0");
        expected.extend([8, 0, 5, 0, 7, 0, 0, 0]); // IFLA_LINK: the interface below
        expected.extend([28, 0, 18, 0]); // IFLA_LINKINFO
        expected.extend([9, 0, 1, 0]); // IFLA_INFO_KIND
        expected.extend(b"vlan\0\0\0\0");
        expected.extend([12, 0, 2, 0, 6, 0, 1, 0, 120, 0, 0, 0]); // IFLA_INFO_DATA with IFLA_VLAN_ID
        assert_eq!(bytes, expected);
    }
}
