//! Messages about routes.

use std::net::{IpAddr, Ipv4Addr};

use futures::TryStreamExt;
use ipnet::Ipv4Net;
use rtnetlink::RouteMessageBuilder;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteScope, RouteType,
};

use super::{Link, Netlink, errno, on};
use crate::SystemError;

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
