//! Messages about routes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use futures::TryStreamExt;
use ipnet::{Ipv4Net, Ipv6Net};
use rtnetlink::RouteMessageBuilder;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};

use super::{Link, Netlink, errno, on};
use crate::SystemError;

/// The origin of berth's routes of prefixes, which the kernel keeps with them: a number that no routing program has.
const MARK: RouteProtocol = RouteProtocol::Other(98);
/// Their metric: before a route of the whole range that an administrator has made, such as an unreachable one.
const METRIC: u32 = 512;

/// The kernel's route of one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum RouteOfPacket {
    Local,
    By {
        link: u32,
        gateway: Option<IpAddr>,
        source: Option<IpAddr>,
    },
    /// Nowhere: the kernel's error.
    None {
        errno: i32,
    },
}

impl Netlink {
    /// Asks the kernel for its route to an address. `from`: the sender and the link by which its packet comes; None for a packet of
    /// the host itself.
    pub(in super::super) async fn route_to(
        &self,
        to: IpAddr,
        from: Option<(IpAddr, u32)>,
    ) -> Result<RouteOfPacket, SystemError> {
        let length = if to.is_ipv4() { 32 } else { 128 };
        let mut message = RouteMessage::default();
        message.header.address_family = if to.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        message.header.destination_prefix_length = length;
        message.attributes.push(RouteAttribute::Destination(RouteAddress::from(to)));
        if let Some((from, link)) = from {
            message.header.source_prefix_length = length;
            message.attributes.push(RouteAttribute::Source(RouteAddress::from(from)));
            message.attributes.push(RouteAttribute::Iif(link));
        }
        let found: Result<Vec<RouteMessage>, _> =
            self.handle.route().get(message).execute().try_collect().await;
        let found = match found {
            Ok(found) => found,
            Err(error) => match errno(&error) {
                Some(
                    errno @ (libc::ENETUNREACH
                    | libc::EHOSTUNREACH
                    | libc::EACCES
                    | libc::EXDEV
                    | libc::EINVAL),
                ) => {
                    return Ok(RouteOfPacket::None { errno });
                }
                _ => return Err(on("find the route to", &to.to_string())(error)),
            },
        };
        Ok(found.first().map_or(RouteOfPacket::None { errno: libc::ENETUNREACH }, route_of_packet))
    }
}

/// A route of a prefix to a machine on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct PrefixRoute {
    pub(in super::super) to: Ipv6Net,
    pub(in super::super) via: Ipv6Addr,
    pub(in super::super) link: u32,
}

impl Netlink {
    /// Lists the routes of prefixes that berth has made.
    pub(in super::super) async fn prefix_routes(&self) -> Result<Vec<PrefixRoute>, SystemError> {
        let request = self.handle.route().get(RouteMessageBuilder::<Ipv6Addr>::new().build());
        let all: Vec<RouteMessage> =
            request.execute().try_collect().await.map_err(on("list", "IPv6 routes"))?;
        Ok(all.iter().filter_map(prefix_route).collect())
    }

    /// Makes the route, in place of one of berth's by another link.
    pub(in super::super) async fn set_prefix_route(&self, route: PrefixRoute) -> Result<(), SystemError> {
        let request = self.handle.route().add(message_of(route)).replace();
        request.execute().await.map_err(on("make the route of", &route.to.to_string()))
    }

    pub(in super::super) async fn remove_prefix_route(&self, route: PrefixRoute) -> Result<(), SystemError> {
        match self.handle.route().del(message_of(route)).execute().await {
            Err(error) if !matches!(errno(&error), Some(libc::ESRCH | libc::ENODEV)) => {
                Err(on("remove the route of", &route.to.to_string())(error))
            }
            _ => Ok(()),
        }
    }
}

impl Netlink {
    /// Lists the ranges that berth routes by the link without a router.
    pub(in super::super) async fn ipv6_routes_by(&self, link: &Link) -> Result<Vec<Ipv6Net>, SystemError> {
        let request = self.handle.route().get(RouteMessageBuilder::<Ipv6Addr>::new().build());
        let all: Vec<RouteMessage> =
            request.execute().try_collect().await.map_err(on("list", "IPv6 routes"))?;
        Ok(all.iter().filter_map(|message| ipv6_route_by(link, message)).collect())
    }

    /// Routes a range by the link.
    pub(in super::super) async fn add_ipv6_route(&self, link: &Link, to: Ipv6Net) -> Result<(), SystemError> {
        let request = self.handle.route().add(ipv6_message(link, to)).replace();
        request.execute().await.map_err(on("add a route by", &link.name))
    }

    pub(in super::super) async fn remove_ipv6_route(
        &self,
        link: &Link,
        to: Ipv6Net,
    ) -> Result<(), SystemError> {
        match self.handle.route().del(ipv6_message(link, to)).execute().await {
            Err(error) if !matches!(errno(&error), Some(libc::ESRCH | libc::ENODEV)) => {
                Err(on("remove a route by", &link.name)(error))
            }
            _ => Ok(()),
        }
    }
}

fn ipv6_message(link: &Link, to: Ipv6Net) -> RouteMessage {
    RouteMessageBuilder::<Ipv6Addr>::new()
        .destination_prefix(to.network(), to.prefix_len())
        .output_interface(link.index)
        .protocol(MARK)
        .priority(METRIC)
        .build()
}

fn ipv6_route_by(link: &Link, message: &RouteMessage) -> Option<Ipv6Net> {
    let header = &message.header;
    if header.protocol != MARK || header.table != RouteHeader::RT_TABLE_MAIN {
        return None;
    }
    let has_router = message.attributes.iter().any(|a| matches!(a, RouteAttribute::Gateway(_)));
    let is_by_it = message.attributes.contains(&RouteAttribute::Oif(link.index));
    let to = message.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Destination(RouteAddress::Inet6(address)) => Some(*address),
        _ => None,
    })?;
    let to = Ipv6Net::new(to, header.destination_prefix_length).ok()?;
    (is_by_it && !has_router).then_some(to)
}

fn message_of(route: PrefixRoute) -> RouteMessage {
    RouteMessageBuilder::<Ipv6Addr>::new()
        .destination_prefix(route.to.network(), route.to.prefix_len())
        .gateway(route.via)
        .output_interface(route.link)
        .protocol(MARK)
        .priority(METRIC)
        .build()
}

/// Returns the route if berth has made it.
fn prefix_route(message: &RouteMessage) -> Option<PrefixRoute> {
    let header = &message.header;
    if header.protocol != MARK || header.table != RouteHeader::RT_TABLE_MAIN {
        return None;
    }
    let (mut to, mut via, mut link) = (None, None, None);
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Destination(RouteAddress::Inet6(address)) => to = Some(*address),
            RouteAttribute::Gateway(RouteAddress::Inet6(address)) => via = Some(*address),
            RouteAttribute::Oif(index) => link = Some(*index),
            _ => {}
        }
    }
    let to = Ipv6Net::new(to?, header.destination_prefix_length).ok()?;
    Some(PrefixRoute { to, via: via?, link: link? })
}

fn route_of_packet(message: &RouteMessage) -> RouteOfPacket {
    match message.header.kind {
        RouteType::Local | RouteType::Broadcast | RouteType::Anycast => return RouteOfPacket::Local,
        RouteType::Unicast => {}
        RouteType::Prohibit => return RouteOfPacket::None { errno: libc::EACCES },
        _ => return RouteOfPacket::None { errno: libc::EHOSTUNREACH },
    }
    let ip = |address: &RouteAddress| match address {
        RouteAddress::Inet(address) => Some(IpAddr::V4(*address)),
        RouteAddress::Inet6(address) => Some(IpAddr::V6(*address)),
        _ => None,
    };
    let (mut found, mut gateway, mut source) = (None, None, None);
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Oif(index) => found = Some(*index),
            RouteAttribute::Gateway(address) => gateway = ip(address),
            RouteAttribute::PrefSource(address) => source = ip(address),
            _ => {}
        }
    }
    found.map_or(RouteOfPacket::None { errno: libc::EHOSTUNREACH }, |link| RouteOfPacket::By {
        link,
        gateway,
        source,
    })
}

/// The destination of packets to a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Route {
    pub(in super::super) to: Ipv4Net,
    pub(in super::super) link: u32,
    pub(in super::super) has_gateway: bool,
}

pub(super) fn route_by(link: &Link, to: Ipv4Net) -> RouteMessage {
    RouteMessageBuilder::<Ipv4Addr>::new()
        .destination_prefix(to.addr(), to.prefix_len())
        .output_interface(link.index)
        .scope(RouteScope::Link)
        .build()
}

pub(super) fn route(message: &RouteMessage) -> Option<Route> {
    let main = message.header.table == RouteHeader::RT_TABLE_MAIN;
    if message.header.kind != RouteType::Unicast || !main {
        return None;
    }
    let (mut to, mut link, mut has_gateway) = (Ipv4Addr::UNSPECIFIED, 0, false);
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Destination(RouteAddress::Inet(address)) => to = *address,
            RouteAttribute::Oif(index) => link = *index,
            RouteAttribute::Gateway(_) | RouteAttribute::Via(_) => has_gateway = true,
            // Over several links: only the destination matters.
            RouteAttribute::MultiPath(_) => has_gateway = true,
            _ => {}
        }
    }
    Some(Route { to: Ipv4Net::new(to, message.header.destination_prefix_length).ok()?, link, has_gateway })
}

/// Returns metric and link of a default route.
pub(super) fn default_route(message: &RouteMessage) -> Option<(u32, u32)> {
    let main = message.header.table == RouteHeader::RT_TABLE_MAIN;
    if message.header.destination_prefix_length != 0 || message.header.kind != RouteType::Unicast || !main {
        return None;
    }
    let mut found = (0, None);
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Priority(priority) => found.0 = *priority,
            RouteAttribute::Oif(index) => found.1 = Some(*index),
            _ => {}
        }
    }
    Some((found.0, found.1?))
}
