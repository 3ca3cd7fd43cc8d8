//! Messages about IPv4 routes.

use std::net::Ipv4Addr;

use ipnet::Ipv4Net;
use rtnetlink::RouteMessageBuilder;
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteScope, RouteType,
};

use super::Link;

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
