//! The interface that public addresses are announced on, and the host's own addresses.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use super::netlink::{Link, LinkKind, Netlink};
use super::{PUBLIC_LINK, Result, blocking};
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
    let all = netlink.all_addresses().await?;
    let (public, own): (Vec<_>, Vec<_>) = all.into_iter().partition(|(index, _)| Some(*index) == ours);
    let addresses = |of: Vec<(u32, Ipv4Addr)>| -> BTreeSet<Ipv4Addr> {
        of.into_iter().map(|(_, address)| address).collect()
    };
    let interface = match pick(netlink, &links, choice).await? {
        Ok(link) => answers(&link).await,
        Err(why) => Err(why),
    };
    Ok(Uplink { interface, own: addresses(own), public: addresses(public) })
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
