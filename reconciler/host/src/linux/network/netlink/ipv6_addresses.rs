//! The IPv6 addresses of links, and those that the host answers for on an interface without having them there, as a proxy.

use std::net::{IpAddr, Ipv6Addr};

use futures::{StreamExt, TryStreamExt};
use ipnet::Ipv6Net;
use rtnetlink::packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use rtnetlink::packet_route::address::{AddressAttribute, AddressFlags, AddressMessage, CacheInfo};
use rtnetlink::packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage,
};
use rtnetlink::packet_route::route::RouteProtocol;
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};

use super::{Link, Netlink, Result, added, errno, ipv6, on};

/// The origin of berth's entries of neighbours, which the kernel keeps with them: a number that no routing program has.
const MARK: RouteProtocol = RouteProtocol::Other(98);

/// The machine that an address of the host stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum IpOf {
    Host,
    /// The host itself sends nothing from it, nor do other guests under the host's address: it counts as deprecated.
    Guest,
}

/// An IPv6 address that the host answers for on an interface without having it there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Proxied {
    pub(in super::super) link: u32,
    pub(in super::super) address: Ipv6Addr,
    /// Whether berth has made the entry.
    pub(in super::super) is_berths: bool,
}

impl Netlink {
    /// Replaces the link's IPv6 addresses, except for link-local ones, by these.
    pub(in super::super) async fn exact_ipv6_addresses(&self, link: &Link, wanted: &[Ipv6Net]) -> Result<()> {
        self.remove_other_ipv6(link, wanted).await?;
        self.add_missing_ipv6(link, wanted, IpOf::Host).await
    }

    /// Takes the other IPv6 addresses from the link, except for link-local ones.
    pub(in super::super) async fn remove_other_ipv6(&self, link: &Link, wanted: &[Ipv6Net]) -> Result<()> {
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
        Ok(())
    }

    pub(in super::super) async fn add_missing_ipv6(
        &self,
        link: &Link,
        wanted: &[Ipv6Net],
        of: IpOf,
    ) -> Result<()> {
        let there = self.ipv6_addresses(link).await?;
        for address in wanted.iter().filter(|w| !there.iter().any(|(a, _)| a == *w)) {
            let mut request =
                self.handle.address().add(link.index, IpAddr::V6(address.addr()), address.prefix_len());
            let attributes = &mut request.message_mut().attributes;
            // Without it the address is no source and no destination until the kernel has asked for its duplicates.
            attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
            if of == IpOf::Guest {
                let mut lifetime = CacheInfo::default();
                lifetime.ifa_preferred = 0;
                lifetime.ifa_valid = u32::MAX;
                attributes.push(AddressAttribute::CacheInfo(lifetime));
            }
            added(request.execute().await, "give an address to", &link.name)?;
        }
        Ok(())
    }

    async fn ipv6_addresses(&self, link: &Link) -> Result<Vec<(Ipv6Net, AddressMessage)>> {
        let request = self.handle.address().get().set_link_index_filter(link.index);
        let all: Vec<AddressMessage> =
            request.execute().try_collect().await.map_err(on("list the addresses of", &link.name))?;
        Ok(all.into_iter().filter_map(|m| Some((ipv6(&m)?, m))).collect())
    }

    /// Lists the entries of the neighbours that the host is a proxy for.
    pub(in super::super) async fn proxied(&self) -> Result<Vec<Proxied>> {
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
            let is_berths = message.attributes.contains(&NeighbourAttribute::Protocol(MARK));
            is_proxied.then_some(Proxied { link: message.header.ifindex, address, is_berths })
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
    message.attributes.push(NeighbourAttribute::Protocol(MARK));
    message
}
