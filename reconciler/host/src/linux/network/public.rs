//! The public addresses of this host: on the link [`PUBLIC_LINK`], and for IPv6 the answers to neighbour solicitations.
//!
//! For IPv4 the kernel answers ARP on each interface for every address of the host. For IPv6 it answers for the addresses of the
//! interface itself, and for those in its list of neighbours that the host is a proxy for: an announced address has an entry there, for
//! the interface that it is announced on. Entries of other programs stay as they are: those of berth have a mark.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use ipnet::{Ipv4Net, Ipv6Net};

use super::announce::Announcer;
use super::netlink::{IpOf, Link, LinkKind, Netlink};
use super::{PUBLIC_LINK, Result, blocking, bridge_mac, ipv6, sysctl, sysctl_if_there};
use crate::Firewall;

/// The public addresses that a firewall declares, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PublicAddresses {
    ipv4: BTreeSet<Ipv4Addr>,
    ipv6: BTreeSet<Ipv6Addr>,
    /// By interface.
    announced: BTreeMap<String, BTreeSet<IpAddr>>,
    /// Whether IPv4 ones lead to machines of networks that the host is on, for which no private network has turned on forwarding.
    leads_to_lan: bool,
}

impl PublicAddresses {
    pub(super) fn of(firewall: &Firewall) -> Self {
        let forwards = firewall.forwards.iter().map(|f| (f.public, &f.announced_on));
        let balanced = firewall.balanced.iter().map(|b| (b.public, &b.announced_on));
        let leads_to_lan =
            firewall.balanced.iter().any(|balanced| balanced.public.is_ipv4() && !balanced.by_lan.is_empty());
        let mut found = Self { leads_to_lan, ..Self::default() };
        for (public, announced_on) in forwards.chain(balanced) {
            match public {
                IpAddr::V4(public) => found.ipv4.insert(public),
                IpAddr::V6(public) => found.ipv6.insert(public),
            };
            if let Some(link) = announced_on {
                found.announced.entry(link.clone()).or_default().insert(public);
            }
        }
        found
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ipv4.is_empty() && self.ipv6.is_empty()
    }

    pub(super) fn announced(&self) -> Vec<IpAddr> {
        self.announced.values().flatten().copied().collect()
    }

    fn ipv4(&self) -> Vec<Ipv4Net> {
        self.ipv4.iter().map(|address| Ipv4Net::from(*address)).collect()
    }

    fn ipv6(&self) -> Vec<Ipv6Net> {
        self.ipv6.iter().map(|address| Ipv6Net::from(*address)).collect()
    }
}

/// Makes the link, with the addresses that it lacks.
pub(super) async fn add(netlink: &Netlink, public: &PublicAddresses) -> Result<Link> {
    let link = match netlink.link(PUBLIC_LINK).await? {
        Some(link) => link,
        None => {
            netlink.add_bridge(PUBLIC_LINK, bridge_mac(PUBLIC_LINK)).await?;
            sysctl_if_there(&format!("net/ipv6/conf/{PUBLIC_LINK}/disable_ipv6"), "1").await;
            netlink.expect(PUBLIC_LINK).await?
        }
    };
    link.must_be(LinkKind::Bridge)?;
    netlink.add_missing(&link, &public.ipv4()).await?;
    if public.leads_to_lan {
        sysctl("net/ipv4/ip_forward", "1").await?;
    }
    if !link.up {
        netlink.set_up(&link).await?;
    }
    if !public.ipv6.is_empty() {
        ipv6::allow(PUBLIC_LINK).await?;
        netlink.add_missing_ipv6(&link, &public.ipv6(), IpOf::Guest).await?;
        ipv6::forward().await?;
    }
    Ok(link)
}

/// Returns the MAC addresses by which this host itself answers for a public address: one that it has is answered for on each interface, also
/// on another one of the segment that it is probed on.
pub(super) async fn answering(netlink: &Netlink, address: IpAddr) -> Result<Vec<[u8; 6]>> {
    let Some(ours) = netlink.link(PUBLIC_LINK).await?.map(|link| link.index) else { return Ok(Vec::new()) };
    let is_here = match address {
        IpAddr::V4(address) => netlink.all_addresses().await?.contains(&(ours, address)),
        IpAddr::V6(address) => {
            let all = netlink.all_ipv6_networks().await?;
            all.iter().any(|(link, net)| (*link, net.addr()) == (ours, address))
        }
    };
    let links = if is_here { netlink.links().await? } else { Vec::new() };
    Ok(links.into_iter().filter_map(|link| link.mac).collect())
}

/// Takes the other addresses from the link, of which nothing leads anywhere any more.
pub(super) async fn only(netlink: &Netlink, link: &Link, public: &PublicAddresses) -> Result<()> {
    netlink.exact_addresses(link, &public.ipv4()).await?;
    if public.ipv6.is_empty() {
        sysctl_if_there(&format!("net/ipv6/conf/{PUBLIC_LINK}/disable_ipv6"), "1").await;
        return Ok(());
    }
    netlink.remove_other_ipv6(link, &public.ipv6()).await
}

/// Ends the answers for addresses that are not announced here any more, or by another interface: another host may have them by now.
pub(super) async fn silence(netlink: &Netlink, public: &PublicAddresses) -> Result<()> {
    let mut ours = netlink.proxied().await?;
    ours.retain(|entry| entry.is_berths);
    if ours.is_empty() {
        return Ok(());
    }
    let links = netlink.links().await?;
    for entry in ours {
        let name = links.iter().find(|link| link.index == entry.link).map(|link| link.name.as_str());
        let announced = name.and_then(|name| public.announced.get(name));
        if !announced.is_some_and(|addresses| addresses.contains(&IpAddr::V6(entry.address))) {
            netlink.remove_proxied(entry.link, entry.address).await?;
        }
    }
    Ok(())
}

/// Whether the host answers for these addresses on the interfaces with these numbers, as far as they exist.
pub(super) async fn is_answered(netlink: &Netlink, announced: &[(u32, Ipv6Addr)]) -> Result<bool> {
    let there = netlink.proxied().await?;
    for link in netlink.links().await? {
        let mut is_answered = true;
        let mut is_announcing = false;
        for (_, address) in announced.iter().filter(|(index, _)| *index == link.index) {
            is_announcing = true;
            is_answered &= there.iter().any(|entry| (entry.link, entry.address) == (link.index, *address));
        }
        if is_announcing && !(is_answered && is_proxy(&link.name).await) {
            return Ok(false);
        }
    }
    Ok(true)
}

async fn is_proxy(link: &str) -> bool {
    let path = Path::new("/proc/sys/net/ipv6/conf").join(link).join("proxy_ndp");
    blocking(move || std::fs::read_to_string(path)).await.is_ok_and(|value| value.trim() == "1")
}

/// Answers for the announced addresses, and announces them: last, when they are already reachable on this host.
pub(super) async fn announce(
    netlink: &Netlink,
    announcer: &Announcer,
    public: &PublicAddresses,
) -> Result<()> {
    for (name, addresses) in &public.announced {
        let link = netlink.expect(name).await?;
        answer(netlink, &link, addresses).await?;
        let addresses: Vec<IpAddr> = addresses.iter().copied().collect();
        announcer.announce(&link, &addresses)?;
    }
    Ok(())
}

/// Answers neighbour solicitations for the IPv6 addresses among these.
async fn answer(netlink: &Netlink, link: &Link, addresses: &BTreeSet<IpAddr>) -> Result<()> {
    let ipv6 = |address: &IpAddr| match address {
        IpAddr::V4(_) => None,
        IpAddr::V6(address) => Some(*address),
    };
    let wanted: Vec<Ipv6Addr> = addresses.iter().filter_map(ipv6).collect();
    if wanted.is_empty() {
        return Ok(());
    }
    sysctl(&format!("net/ipv6/conf/{}/proxy_ndp", link.name), "1").await?;
    // A proxy waits at random up to 0.8 seconds otherwise, in case the machine itself answers: it has no other.
    sysctl(&format!("net/ipv6/neigh/{}/proxy_delay", link.name), "0").await?;
    let there = netlink.proxied().await?;
    let is_missing =
        |address: &Ipv6Addr| !there.iter().any(|entry| (entry.link, entry.address) == (link.index, *address));
    for address in wanted.into_iter().filter(is_missing) {
        netlink.add_proxied(link, address).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Forward;

    #[test]
    fn addresses_of_both_families_are_kept_apart_and_listed_by_interface() {
        let forward = |public: &str, private: &str, announced_on: Option<&str>| Forward {
            public: public.parse().expect("an address"),
            private: private.parse().expect("an address"),
            announced_on: announced_on.map(str::to_owned),
        };
        let forwards = vec![
            forward("2001:db8::7", "fd00:60::5", Some("eth0")),
            forward("192.0.2.7", "10.77.0.5", Some("eth0")),
            forward("2001:db8::8", "fd00:60::6", None),
        ];
        let found = PublicAddresses::of(&Firewall { forwards, ..Firewall::default() });
        assert_eq!((found.ipv4().len(), found.ipv6().len(), found.announced.len()), (1, 2, 1));
        assert_eq!(found.announced["eth0"].len(), 2);
        assert!(!found.is_empty() && PublicAddresses::of(&Firewall::default()).is_empty());
    }
}
