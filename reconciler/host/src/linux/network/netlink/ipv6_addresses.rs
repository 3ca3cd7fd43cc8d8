//! The IPv6 addresses of links, and those that the host answers for on an interface without having them there, as a proxy.

use std::net::{IpAddr, Ipv6Addr};

use futures::{StreamExt, TryStreamExt};
use ipnet::Ipv6Net;
use rtnetlink::packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use rtnetlink::packet_route::address::AddressMessage;
use rtnetlink::packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage,
};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};

use super::{Link, Netlink, Result, errno, ipv6, on};

impl Netlink {
    /// Replaces the link's IPv6 addresses, except for link-local ones, by these.
    pub(in super::super) async fn exact_ipv6_addresses(&self, link: &Link, wanted: &[Ipv6Net]) -> Result<()> {
        for (address, message) in self.ipv6_addresses(link).await? {
            if wanted.contains(&address) || address.addr().is_unicast_link_local() {
                continue;
            }
            match self.handle.address().del(message).execute().await {
                Err(error) if errno(&error) != Some(libc::EADDRNOTAVAIL) => {
                    return Err(on("take an address from", &link.name)(error));
                }
                _ => {}
            }
        }
        self.add_missing_ipv6(link, wanted).await
    }

    pub(in super::super) async fn add_missing_ipv6(&self, link: &Link, wanted: &[Ipv6Net]) -> Result<()> {
        let there = self.ipv6_addresses(link).await?;
        for address in wanted.iter().filter(|w| !there.iter().any(|(a, _)| a == *w)) {
            let request =
                self.handle.address().add(link.index, IpAddr::V6(address.addr()), address.prefix_len());
            match request.execute().await {
                Err(error) if errno(&error) != Some(libc::EEXIST) => {
                    return Err(on("give an address to", &link.name)(error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    async fn ipv6_addresses(&self, link: &Link) -> Result<Vec<(Ipv6Net, AddressMessage)>> {
        let request = self.handle.address().get().set_link_index_filter(link.index);
        let all: Vec<AddressMessage> =
            request.execute().try_collect().await.map_err(on("list the addresses of", &link.name))?;
        Ok(all.into_iter().filter_map(|m| Some((ipv6(&m)?, m))).collect())
    }

    /// Lists the IPv6 addresses that the host answers for on an interface without having them there, with the index of the interface.
    pub(in super::super) async fn proxied(&self) -> Result<Vec<(u32, Ipv6Addr)>> {
        let request = self.handle.neighbours().get().proxies().set_address_family(AddressFamily::Inet6);
        let all: Vec<NeighbourMessage> = request
            .execute()
            .try_collect()
            .await
            .map_err(on("list", "the neighbours that this host is a proxy for"))?;
        let entry = |message: &NeighbourMessage| {
            let is_proxied = message.header.flags.contains(NeighbourFlags::Proxy);
            let address = message.attributes.iter().find_map(|attribute| match attribute {
                NeighbourAttribute::Destination(NeighbourAddress::Inet6(address)) => Some(*address),
                _ => None,
            })?;
            is_proxied.then_some((message.header.ifindex, address))
        };
        Ok(all.iter().filter_map(entry).collect())
    }

    /// Answers neighbour solicitations for this address on this interface.
    pub(in super::super) async fn add_proxied(&self, link: &Link, address: Ipv6Addr) -> Result<()> {
        let mut message =
            NetlinkMessage::from(RouteNetlinkMessage::NewNeighbour(proxied(link.index, address)));
        message.header.flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE;
        let attempt = "answer for a public address on";
        let mut handle = self.handle.clone();
        let mut answers = handle.request(message).map_err(on(attempt, &link.name))?;
        while let Some(answer) = answers.next().await {
            if let NetlinkPayload::Error(error) = answer.payload
                && error.raw_code() != 0
                && error.raw_code().abs() != libc::EEXIST
            {
                return Err(on(attempt, &link.name)(rtnetlink::Error::NetlinkError(error)));
            }
        }
        Ok(())
    }

    pub(in super::super) async fn remove_proxied(&self, link: u32, address: Ipv6Addr) -> Result<()> {
        match self.handle.neighbours().del(proxied(link, address)).execute().await {
            Err(error) if !matches!(errno(&error), Some(libc::ENOENT | libc::ENODEV)) => {
                Err(on("end the answers for", &address.to_string())(error))
            }
            _ => Ok(()),
        }
    }
}

/// An entry of the neighbours that the host is a proxy for.
fn proxied(link: u32, address: Ipv6Addr) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = AddressFamily::Inet6;
    message.header.ifindex = link;
    message.header.flags = NeighbourFlags::Proxy;
    message.attributes.push(NeighbourAttribute::Destination(NeighbourAddress::Inet6(address)));
    message
}
