//! The interface that public addresses are announced on, and the host's own addresses.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use super::netlink::{Link, LinkKind, Netlink};
use super::{PUBLIC_LINK, Result, blocking, host_ranges, ipv6};
use crate::Uplink;

/// The configuration of the interface.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct Choice {
    pub(in super::super) named: Option<String>,
    /// The address at which other hosts reach this one.
    pub(in super::super) address: Option<Ipv4Addr>,
}

pub(super) async fn find(netlink: &Netlink, choice: &Choice) -> Result<Uplink> {
    let links = netlink.links().await?;
    let ours = links.iter().find(|link| link.name == PUBLIC_LINK && link.kind == Some(LinkKind::Bridge));
    let ours = ours.map(|link| link.index);
    let ipv4 =
        netlink.all_addresses().await?.into_iter().map(|(index, address)| (index, IpAddr::V4(address)));
    let mut ipv6 = netlink.all_ipv6_networks().await?;
    // The gateway of a network is none of the host's own: a tenant declares it.
    let is_gateway = |index: u32| {
        let link = links.iter().find(|link| link.index == index);
        Some(index) != ours && link.is_some_and(host_ranges::is_berths)
    };
    ipv6.retain(|(index, net)| !net.addr().is_unicast_link_local() && !is_gateway(*index));
    let ipv6 = ipv6.into_iter().map(|(index, net)| (index, IpAddr::V6(net.addr())));
    let (public, own): (Vec<_>, Vec<_>) = ipv4.chain(ipv6).partition(|(index, _)| Some(*index) == ours);
    let addresses =
        |of: Vec<(u32, IpAddr)>| -> BTreeSet<IpAddr> { of.into_iter().map(|(_, address)| address).collect() };
    let interface = match pick(netlink, &links, choice).await? {
        Ok(link) => answers(&link).await,
        Err(why) => Err(why),
    };
    let ipv6_obstacle = match &interface {
        Ok(name) => ipv6_obstacle(name.clone()).await,
        Err(_) => None,
    };
    Ok(Uplink { interface, ipv6_obstacle, own: addresses(own), public: addresses(public) })
}

/// Returns why this interface leads no IPv6 packets to guests.
async fn ipv6_obstacle(name: String) -> Option<String> {
    // The first public address turns it on for all interfaces. Without it this one says nothing yet.
    let is_forwarded = ipv6::is_forwarded().await;
    blocking(move || {
        let forwarding = Path::new("/proc/sys/net/ipv6/conf").join(&name).join("forwarding");
        let setting = Path::new("/proc/sys/net/ipv6/conf").join(&name).join("disable_ipv6");
        match std::fs::read_to_string(setting) {
            Ok(value) if value.trim() == "0" => {
                let is_off = std::fs::read_to_string(forwarding).is_ok_and(|value| value.trim() == "0");
                (is_forwarded && is_off).then(|| format!(
                    "IPv6 packets that arrive on interface {name} are not forwarded, although this host forwards: turn that on \
                     (sysctl -w net.ipv6.conf.{name}.forwarding=1), or name another interface with --public-interface"
                ))
            }
            Ok(_) => Some(format!(
                "IPv6 is turned off on interface {name}: turn it on (sysctl -w net.ipv6.conf.{name}.disable_ipv6=0), or name another \
                 interface with --public-interface"
            )),
            Err(_) => Some(
                "IPv6 is turned off on this host: start its kernel without ipv6.disable=1, or run the VM on another host".to_owned(),
            ),
        }
    })
    .await
}

async fn pick(
    netlink: &Netlink,
    links: &[Link],
    choice: &Choice,
) -> Result<std::result::Result<Link, String>> {
    if let Some(name) = &choice.named {
        let found = links.iter().find(|link| link.name == *name).cloned();
        return Ok(found.ok_or_else(|| format!("there is no interface {name}: --public-interface names it")));
    }
    if let Some(link) = netlink.default_link().await? {
        return Ok(Ok(link));
    }
    let found = match choice.address {
        Some(address) => netlink.link_with(address).await?,
        None => None,
    };
    let none = "this host has no default route, so that it is not known where to announce public addresses: name the \
                interface with --public-interface";
    Ok(found.ok_or_else(|| none.to_owned()))
}

/// Checks that the kernel answers ARP on this link for addresses of the host's other interfaces, berth's included: its
/// default, unless `arp_ignore` is set.
async fn answers(link: &Link) -> std::result::Result<String, String> {
    let name = link.name.clone();
    if link.mac.is_none() {
        return Err(format!("interface {name} is no Ethernet: name another with --public-interface"));
    }
    blocking(move || {
        for of in ["all", name.as_str()] {
            let key = format!("net/ipv4/conf/{of}/arp_ignore");
            let value = std::fs::read_to_string(format!("/proc/sys/{key}")).unwrap_or_default();
            if !matches!(value.trim(), "" | "0") {
                return Err(format!(
                    "net.ipv4.conf.{of}.arp_ignore is {}, with which this host answers for no public address: set it \
                     to 0 (sysctl -w net.ipv4.conf.{of}.arp_ignore=0), or name another interface with \
                     --public-interface",
                    value.trim()
                ));
            }
        }
        Ok(name)
    })
    .await
}
