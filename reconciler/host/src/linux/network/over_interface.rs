//! Bridges that berth makes over interfaces of the host, for bridged networks that name an interface.
//!
//! ```text
//!  … btu-0a1b2c3d ─ btb-5e6f7a8b ─ eth1                  without a VLAN: the interface is a port
//!  … btu-0a1b2c3d ─ btb-5e6f7a8b ─ btg-5e6f7a8b ─ eth1   with one: eth1 keeps its addresses and frames without the tag
//! ```
//!
//! All networks of one interface and VLAN share a bridge; it has no address. Its alias records what the interface was like, from
//! before anything of the interface is changed until it is as before: a process that is killed in between finds it there.
//! An interface that the host itself uses never becomes a port, and no address or route is moved or removed.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::host_ranges::is_berths;
use super::netlink::{Link, LinkKind, Netlink, network};
use super::{PORT_PREFIX, Result, blocking, bridge_mac, sysctl, sysctl_if_there};
use crate::bridged_networks::{OVER_PREFIX, interface_id};
use crate::{BridgeChoice, HostInterface};

/// The VLAN interfaces that berth makes.
const TAGGED_PREFIX: &str = "btg-";

/// The state of an interface before berth used it, and whose bridge this is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    interface: String,
    vlan: Option<u16>,
    /// Whether the interface was up.
    up: bool,
    /// The value of `disable_ipv6` of an interface that was down: it gets no addresses because berth brings it up.
    no_ipv6: Option<bool>,
}

impl Record {
    fn of(bridge: &Link) -> Option<Self> {
        serde_json::from_str(bridge.alias.as_deref()?).ok()
    }
}

/// Returns the bridges over interfaces.
fn bridges(links: &[Link]) -> impl Iterator<Item = &Link> {
    links.iter().filter(|link| link.kind == Some(LinkKind::Bridge) && link.name.starts_with(OVER_PREFIX))
}

/// Lists the Ethernet interfaces of the host that lead to a network, by name.
pub(super) async fn interfaces(netlink: &Netlink, links: &[Link]) -> Result<Vec<HostInterface>> {
    let mut uses = Uses::default();
    for (index, address) in netlink.all_networks().await? {
        uses.push(index, format!("has address {address}"));
    }
    for (index, address) in netlink.all_ipv6_networks().await? {
        if !address.addr().is_unicast_link_local() {
            uses.push(index, format!("has address {address}"));
        }
    }
    for route in netlink.routes().await? {
        uses.push(route.link, format!("has a route to {}", route.to));
    }
    let dialled = blocking(dialled).await;
    let leads_to_a_network = |link: &&Link| {
        let kinds = [LinkKind::Bond, LinkKind::Veth, LinkKind::Vlan, LinkKind::Dummy];
        link.mac.is_some() && link.kind.is_none_or(|kind| kinds.contains(&kind)) && !is_berths(link)
    };
    let of = |link: &Link| {
        let controller = links.iter().find(|of| Some(of.index) == link.controller);
        let controller = controller.filter(|of| !of.name.starts_with(OVER_PREFIX));
        let port = controller.map(|of| format!("is a port of {}", of.name));
        let dialled = dialled.contains(&link.name).then(|| "carries PPPoE".to_owned());
        let is_its =
            |of: &&Link| of.kind == Some(LinkKind::Vlan) && of.below == Some(link.index) && !is_berths(of);
        let mut vlans: Vec<(u16, String)> =
            links.iter().filter(is_its).filter_map(|of| Some((of.vlan?, of.name.clone()))).collect();
        vlans.sort();
        HostInterface {
            name: link.name.clone(),
            mtu: link.mtu,
            up: link.up,
            carrier: link.up && link.carrier,
            in_use: port.or(dialled).or_else(|| uses.first(link.index)),
            bonded: controller.is_some_and(|of| of.kind != Some(LinkKind::Bridge)),
            vlans,
        }
    };
    let mut found: Vec<HostInterface> = links.iter().filter(leads_to_a_network).map(of).collect();
    found.sort();
    Ok(found)
}

/// Whether an interface is the end of a pair on a bridge that is not berth's. Those of containers come and go with them.
pub(super) fn is_a_containers(links: &[Link], name: &str) -> bool {
    let on_a_bridge = |link: &Link| {
        let controller = links.iter().find(|of| Some(of.index) == link.controller);
        controller.is_some_and(|of| of.kind == Some(LinkKind::Bridge) && !is_berths(of))
    };
    links.iter().any(|link| link.name == name && link.kind == Some(LinkKind::Veth) && on_a_bridge(link))
}

/// How links are used, by index, in the order in which it was found.
#[derive(Debug, Default)]
struct Uses(Vec<(u32, String)>);

impl Uses {
    fn push(&mut self, index: u32, text: String) {
        self.0.push((index, text));
    }

    fn first(&self, index: u32) -> Option<String> {
        self.0.iter().find(|(of, _)| *of == index).map(|(_, text)| text.clone())
    }
}

/// Returns the interfaces with PPPoE sessions, which have no address and need all their frames.
fn dialled() -> BTreeSet<String> {
    let text = std::fs::read_to_string("/proc/net/pppoe").unwrap_or_default();
    let device = |line: &str| line.split_whitespace().nth(2).map(str::to_owned);
    text.lines().skip(1).filter_map(device).collect()
}

/// Returns the interface, if berth can make a bridge over it.
pub(super) async fn check(netlink: &Netlink, interface: &str, vlan: Option<u16>) -> Result<()> {
    let refuse = |detail: String| Err(network("make a bridge over", interface, detail));
    let links = netlink.links().await?;
    let all = interfaces(netlink, &links).await?;
    let Some(found) = all.into_iter().find(|of| of.name == interface) else {
        return refuse(
            "there is no such interface, or it is not one that can be the port of a bridge".to_owned(),
        );
    };
    let in_use = found.in_use.filter(|_| vlan.is_none() || found.bonded);
    if let Some(in_use) = in_use {
        return refuse(format!("the host uses it: it {in_use}"));
    }
    let own = found.vlans.iter().find(|(id, _)| Some(*id) == vlan);
    own.map_or(Ok(()), |(id, name)| refuse(format!("the host uses its VLAN {id}, as {name}")))
}

/// Makes the bridge over an interface, or completes it.
///
/// *Assumptions*: [`check`] has succeeded.
pub(super) async fn ensure(netlink: &Netlink, interface: &str, vlan: Option<u16>) -> Result<Link> {
    let name = BridgeChoice::Over { interface: interface.to_owned(), vlan }.name();
    let card = netlink.expect(interface).await?;
    let bridge = match netlink.link(&name).await? {
        Some(link) => link,
        None => {
            // Another one on each host: all are on one network.
            let unique = format!("{name}{:?}", card.mac);
            netlink.add_bridge(&name, bridge_mac(&unique)).await?;
            tracing::info!(bridge = name, interface, vlan, "bridge over an interface made");
            netlink.expect(&name).await?
        }
    };
    bridge.must_be(LinkKind::Bridge)?;
    let record = match Record::of(&bridge) {
        Some(record) => record,
        None => record(netlink, &bridge, &card, vlan).await?,
    };
    if (record.interface.as_str(), record.vlan) != (interface, vlan) {
        let detail = format!("it is the bridge over another interface, {}", record.interface);
        return Err(network("use", &name, detail));
    }
    without_ipv6(&name).await;
    // The kernel would answer ARP requests for all addresses of the host here too.
    sysctl(&format!("net/ipv4/conf/{name}/arp_ignore"), "8").await?;
    let port = match vlan {
        None => card.clone(),
        Some(id) => ensure_tagged(netlink, &card, id).await?,
    };
    if port.controller != Some(bridge.index) {
        netlink.join(&port, &bridge).await?;
    }
    if !card.up {
        if !record.up {
            without_ipv6(interface).await;
        }
        netlink.set_up(&card).await?;
    }
    // A VLAN interface comes up only after the one below it.
    let port = netlink.expect(&port.name).await?;
    if !port.up {
        netlink.set_up(&port).await?;
    }
    let bridge = netlink.expect(&name).await?;
    if bridge.mtu != card.mtu {
        netlink.set_mtu(&bridge, card.mtu).await?;
    }
    if !bridge.up {
        netlink.set_up(&bridge).await?;
    }
    netlink.expect(&name).await
}

/// Records on the bridge what the interface is like, or was before another bridge of berth's came over it.
async fn record(netlink: &Netlink, bridge: &Link, card: &Link, vlan: Option<u16>) -> Result<Record> {
    let links = netlink.links().await?;
    let others = bridges(&links).filter_map(Record::of);
    let record = match others.into_iter().find(|other| other.interface == card.name) {
        Some(other) => Record { vlan, ..other },
        None => Record {
            interface: card.name.clone(),
            vlan,
            up: card.up,
            no_ipv6: if card.up { None } else { has_no_ipv6(&card.name).await },
        },
    };
    let text = serde_json::to_string(&record).expect("plain data");
    netlink.set_alias(bridge, &text).await?;
    Ok(record)
}

async fn ensure_tagged(netlink: &Netlink, card: &Link, id: u16) -> Result<Link> {
    let name = format!("{TAGGED_PREFIX}{}", interface_id(&card.name, Some(id)));
    let mut found = netlink.link(&name).await?;
    if let Some(link) = &found {
        link.must_be(LinkKind::Vlan)?;
        if (link.below, link.vlan) != (Some(card.index), Some(id)) {
            netlink.remove(link).await?;
            found = None;
        }
    }
    let tagged = match found {
        Some(link) => link,
        None => {
            netlink.add_vlan(&name, card, id).await?;
            without_ipv6(&name).await;
            tracing::info!(interface = name, on = card.name, vlan = id, "VLAN interface made");
            netlink.expect(&name).await?
        }
    };
    if tagged.mtu != card.mtu {
        netlink.set_mtu(&tagged, card.mtu).await?;
    }
    Ok(tagged)
}

/// Removes the bridges over interfaces to which no network is connected, and leaves the interfaces as they were.
pub(super) async fn remove_unused(netlink: &Netlink) -> Result<()> {
    let links = netlink.links().await?;
    let is_used = |bridge: &&Link| {
        links.iter().any(|link| link.controller == Some(bridge.index) && link.name.starts_with(PORT_PREFIX))
    };
    let unused: Vec<String> = bridges(&links).filter(|b| !is_used(b)).map(|b| b.name.clone()).collect();
    for name in unused {
        if let Some(bridge) = netlink.link(&name).await? {
            release(netlink, &bridge).await?;
        }
    }
    Ok(())
}

/// The bridge goes last: it has the record.
async fn release(netlink: &Netlink, bridge: &Link) -> Result<()> {
    // Without a record, nothing was done to any interface yet.
    if let Some(record) = Record::of(bridge) {
        if let Some(id) = record.vlan {
            let name = format!("{TAGGED_PREFIX}{}", interface_id(&record.interface, Some(id)));
            if let Some(tagged) = netlink.link(&name).await? {
                tagged.must_be(LinkKind::Vlan)?;
                netlink.remove(&tagged).await?;
            }
        }
        let links = netlink.links().await?;
        let card = links.iter().find(|link| link.name == record.interface);
        if let Some(card) = card {
            if card.controller == Some(bridge.index) {
                netlink.leave(card).await?;
            }
            let others = bridges(&links).filter(|other| other.index != bridge.index);
            let mut others = others.filter_map(Record::of);
            if !record.up && !others.any(|other| other.interface == record.interface) {
                restore(netlink, &links, card, &record).await?;
            }
        }
    }
    netlink.remove(bridge).await?;
    tracing::info!(bridge = bridge.name, "bridge over an interface removed");
    Ok(())
}

/// Brings an interface down that berth brought up, unless the host has begun to use it.
async fn restore(netlink: &Netlink, links: &[Link], card: &Link, record: &Record) -> Result<()> {
    let found = interfaces(netlink, links).await?.into_iter().find(|of| of.name == card.name);
    let is_idle = found.is_some_and(|of| of.in_use.is_none() && of.vlans.is_empty());
    if card.up && is_idle {
        netlink.set_down(card).await?;
    }
    if record.no_ipv6 == Some(false) {
        sysctl_if_there(&format!("net/ipv6/conf/{}/disable_ipv6", card.name), "0").await;
    }
    Ok(())
}

async fn without_ipv6(link: &str) {
    sysctl_if_there(&format!("net/ipv6/conf/{link}/disable_ipv6"), "1").await;
}

async fn has_no_ipv6(link: &str) -> Option<bool> {
    let path = format!("/proc/sys/net/ipv6/conf/{link}/disable_ipv6");
    blocking(move || std::fs::read_to_string(path).ok().map(|value| value.trim() == "1")).await
}
