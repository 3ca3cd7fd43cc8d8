//! Private networks: each has a bridge with the gateway's address, a DHCP and DNS server on the bridge, taps attached
//! to it, and a tunnel to other hosts.
//!
//! berth's links are recognised by their name (`bth-…`, `btx-…`, `btu-…`, `btv-…`, `btr-…`, `btq-…`, `btb-…`, `btg-…`,
//! `btw-…`, `btt…`) and kind; no other link is touched. Works in
//! the network namespace of the process.

mod announce;
mod answered_guests;
mod answers;
mod bridged;
mod bridged_dhcp;
mod bridged_dhcp6;
mod bridged_names;
mod discovery;
mod dnsmasq;
mod firewall;
mod foreign;
mod former;
mod generation;
pub(super) mod guest_port;
mod host_ranges;
mod ipv6;
mod learning;
mod listener;
mod lost;
mod netlink;
mod over_interface;
mod prefixes;
mod probe;
mod public;
mod records_file;
mod relay;
mod ruleset;
mod seen_leases;
mod senders;
mod settings;
mod snooping;
mod socket_filter;
mod tap;
mod trace;
mod tracking;
mod tunnel;
mod uplink;
mod wireguard;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use ipnet::Ipv4Net;
use sha2::{Digest, Sha256};
use tokio::sync::OnceCell;

use super::files::{self, blocking, failed};
use super::layout::{Layout, check_link};
use crate::{
    BridgedNetwork, ExternalLease, Firewall, Forwarding, HostLinks, HostRange, LearnedAddress, LeaseTaken,
    NetworkConfig, SystemError, TapConfig, TapFacts, Trace, TraceRequest, Uplink, WireguardConfig,
    WireguardFacts,
};

use announce::Announcer;
use answers::Changes;
use bridged_dhcp::BridgedDhcp;
pub(super) use dnsmasq::DNSMASQ;
use dnsmasq::Servers;
pub(super) use firewall::NFT;
use firewall::Rules;
use foreign::{Guests, Needed};
use learning::Learning;
use lost::Removals;
use netlink::{Link, LinkKind, Netlink};
use prefixes::Prefixes;
use public::PublicAddresses;
pub use relay::relay_link;
use seen_leases::SeenLeases;
use senders::Senders;
use settings::{sysctl, sysctl_if_there};
use snooping::Snooping;
pub(super) use uplink::Choice as UplinkChoice;
use wireguard::Wireguard;
pub(super) use wireguard::{WG, WIREGUARD_GO};

type Result<T> = std::result::Result<T, SystemError>;

pub(super) const BRIDGE_PREFIX: &str = "bth-";
pub(super) const TAP_PREFIX: &str = "btt";
const TUNNEL_PREFIX: &str = "btx-";
/// The ends of pairs that connect bridged networks, as ports of the bridges that lead to their hosts' networks.
const PORT_PREFIX: &str = "btu-";
/// Carries the public addresses: a bridge without ports, because a kernel with bridges may still lack dummy interfaces.
/// It also carries the announced ones ([`public`]): an interface of berth's own is not affected by other settings.
const PUBLIC_LINK: &str = "berth-public";

#[derive(Debug)]
pub(super) struct LinuxNetworks {
    layout: Layout,
    rules: Rules,
    announcer: Announcer,
    removals: OnceCell<Removals>,
    changes: OnceCell<Changes>,
    snooping: Snooping,
    seen_leases: SeenLeases,
    learning: Learning,
    bridged_dhcp: BridgedDhcp,
    /// Whether the firewall that was applied last leads packets of IPv6.
    leads_ipv6: AtomicBool,
    senders: Senders,
    prefixes: Prefixes,
    /// Whether the kernel had VLANs when it was asked.
    vlans: OnceCell<bool>,
    wireguard: Wireguard,
    servers: Servers,
}

impl LinuxNetworks {
    pub(super) fn new(layout: Layout) -> Self {
        let rules = Rules::new(layout.networks().join("firewall.json"));
        let snooping = Snooping::new(layout.networks().join("leases.json"));
        let seen_leases = SeenLeases::new(layout.networks().join("seen-leases.json"));
        let learning = Learning::new(layout.networks().join("learned.json"));
        let wireguard = Wireguard::new(layout.wireguard_key());
        Self {
            layout,
            rules,
            announcer: Announcer::default(),
            removals: OnceCell::new(),
            changes: OnceCell::new(),
            snooping,
            seen_leases,
            learning,
            bridged_dhcp: BridgedDhcp::default(),
            leads_ipv6: AtomicBool::new(false),
            senders: Senders::default(),
            prefixes: Prefixes::default(),
            vlans: OnceCell::new(),
            wireguard,
            servers: Servers::default(),
        }
    }

    pub(super) async fn ensure(&self, network: &NetworkConfig) -> Result<()> {
        check_link("bridge", &network.bridge, BRIDGE_PREFIX)?;
        if let Some(ipv4) = network.ipv4 {
            if !ipv4.range.contains(&ipv4.gateway) {
                let value = ipv4.gateway.to_string();
                return Err(SystemError::Invalid {
                    what: "gateway",
                    value,
                    why: "outside the network's range",
                });
            }
            sysctl("net/ipv4/ip_forward", "1").await?;
        }
        let netlink = Netlink::open()?;
        self.remove_former_bridged(&netlink, &network.bridge).await?;
        let bridge = self.ensure_bridge(&netlink, network).await?;
        tunnel::ensure(&netlink, &bridge, network).await?;
        // The end of the tunnel is this host's alone.
        let end = format!("{:?}", network.tunnel.as_ref().map(|tunnel| tunnel.local));
        relay::ensure(&netlink, &bridge, network.relay.as_ref(), network.mtu.into(), &end).await?;
        // Attaching a port may have changed the MTU.
        let bridge = netlink.expect(&network.bridge).await?;
        if bridge.mtu != u32::from(network.mtu) {
            netlink.set_mtu(&bridge, network.mtu.into()).await?;
        }
        self.prefixes.route(&netlink, &bridge, network).await?;
        let served = self.servers.ensure(&self.layout.network(&network.bridge), network).await;
        served.map_err(|error| SystemError::NetworkServer {
            bridge: network.bridge.clone(),
            source: Box::new(error),
        })
    }

    pub(super) async fn ensure_bridged(&self, network: &BridgedNetwork) -> Result<()> {
        let netlink = Netlink::open()?;
        self.remove_former_private(&netlink, &network.bridge).await?;
        bridged::ensure(&netlink, network).await?;
        let port = netlink.expect(&bridged::inner_of(&network.bridge)).await?;
        self.snooping.listen(&network.bridge, &port, &network.leased)?;
        self.learning.learn(&netlink, &port, network).await?;
        self.bridged_dhcp.serve(&netlink, network).await?;
        self.ensure_bridged_names(network).await
    }

    /// Lists the leases of guests on bridged networks.
    pub(super) async fn external_leases(&self) -> Result<Vec<ExternalLease>> {
        self.snooping.leases().await
    }

    /// Lists the IPv6 addresses that guests on bridged networks have taken.
    pub(super) async fn learned_addresses(&self) -> Result<Vec<LearnedAddress>> {
        self.learning.addresses().await
    }

    /// Returns once a guest has another lease or learned address than before, or one has ended.
    pub(super) async fn external_leases_changed(&self) {
        tokio::select! {
            () = self.snooping.changed() => {}
            () = self.learning.changed() => {}
        }
    }

    pub(super) async fn host_links(&self) -> Result<HostLinks> {
        let netlink = Netlink::open()?;
        let links = netlink.links().await?;
        // Asked once: a kernel without VLANs looks for its module each time. With the module it has this folder.
        let mut interfaces = over_interface::interfaces(&netlink, &links).await?;
        interfaces.retain(|interface| !over_interface::is_a_containers(&links, &interface.name));
        let had = *self.vlans.get_or_init(|| netlink.has_vlans()).await;
        Ok(HostLinks {
            bridges: bridged::host_bridges(&links),
            interfaces,
            vlans: had || blocking(|| Path::new("/proc/net/vlan").exists()).await,
            filters_ipv4: tracking::is_global().await,
            filters_ipv6: tracking::is_global_for(Ipv6Addr::UNSPECIFIED.into()).await,
        })
    }

    async fn ensure_bridge(&self, netlink: &Netlink, network: &NetworkConfig) -> Result<Link> {
        let name = &network.bridge;
        let bridge = match netlink.link(name).await? {
            Some(link) => link,
            None => {
                check_range(netlink, network).await?;
                ipv6::check(netlink, network).await?;
                netlink.add_bridge(name, bridge_mac(name)).await?;
                // No router advertisements and no IPv6 addresses on the bridge, unless the network has a prefix.
                sysctl_if_there(&format!("net/ipv6/conf/{name}/disable_ipv6"), "1").await;
                tracing::info!(bridge = name, "bridge made");
                netlink.expect(name).await?
            }
        };
        bridge.must_be(LinkKind::Bridge)?;
        if bridge.mtu != u32::from(network.mtu) {
            netlink.set_mtu(&bridge, network.mtu.into()).await?;
        }
        if bridge.tracked != network.tracked {
            tracking::set(netlink, &bridge, network.tracked).await?;
        }
        let address = network
            .ipv4
            .map(|ipv4| Ipv4Net::new(ipv4.gateway, ipv4.range.prefix_len()).expect("a prefix of a network"));
        netlink.exact_addresses(&bridge, address.as_slice()).await?;
        if !bridge.up {
            netlink.set_up(&bridge).await?;
        }
        ipv6::ensure(netlink, &bridge, network.ipv6).await?;
        Ok(bridge)
    }

    pub(super) async fn remove(&self, bridge: &str) -> Result<()> {
        check_link("bridge", bridge, BRIDGE_PREFIX)?;
        let folder = self.layout.network(bridge);
        self.servers.remove(&folder, bridge).await?;
        let netlink = Netlink::open()?;
        tunnel::remove(&netlink, bridge).await?;
        bridged::remove(&netlink, bridge).await?;
        self.snooping.forget(bridge).await?;
        self.seen_leases.forget(bridge).await?;
        self.learning.forget(bridge).await?;
        self.bridged_dhcp.forget(bridge);
        relay::remove(&netlink, bridge).await?;
        if let Some(link) = netlink.link(bridge).await? {
            link.must_be(LinkKind::Bridge)?;
            netlink.remove(&link).await?;
            tracing::info!(bridge, "bridge removed");
        }
        // The directory goes last: while it exists, the network is listed and an interrupted removal can be completed.
        blocking(move || remove_folder(&folder)).await
    }

    /// Returns the MTU of the interface with this address.
    pub(super) async fn mtu_at(&self, address: Ipv4Addr) -> Result<Option<u16>> {
        let link = Netlink::open()?.link_with(address).await?;
        Ok(link.map(|link| u16::try_from(link.mtu).unwrap_or(u16::MAX)))
    }

    /// Lists bridges, tunnels, and the directories of networks that remain after a reboot.
    pub(super) async fn networks(&self) -> Result<Vec<String>> {
        self.networks_of(&Netlink::open()?.links().await?).await
    }

    /// Lists networks and taps by one list of all links.
    pub(super) async fn networks_and_taps(&self) -> Result<(Vec<String>, Vec<TapFacts>)> {
        let links = Netlink::open()?.links().await?;
        Ok((self.networks_of(&links).await?, taps_of(&links)))
    }

    async fn networks_of(&self, links: &[Link]) -> Result<Vec<String>> {
        let mut names = ours(links, BRIDGE_PREFIX, LinkKind::Bridge);
        names.extend(ours(links, TUNNEL_PREFIX, LinkKind::Vxlan).iter().map(|name| tunnel::bridge_of(name)));
        names.extend(bridged::bridges(links));
        names.extend(relay::bridges(links));
        let folder = self.layout.networks();
        let left = blocking(move || files::names(&folder)).await?;
        names.extend(left.into_iter().filter(|n| check_link("bridge", n, BRIDGE_PREFIX).is_ok()));
        names.sort();
        names.dedup();
        Ok(names)
    }

    /// Returns the facts about WireGuard here. The error is for people.
    pub(super) async fn wireguard_facts(&self) -> std::result::Result<WireguardFacts, String> {
        self.wireguard.facts().await.map_err(|error| error.chain())
    }

    pub(super) async fn ensure_wireguard(&self, config: &WireguardConfig) -> Result<()> {
        self.wireguard.ensure(config).await
    }

    pub(super) async fn has_wireguard(&self) -> Result<bool> {
        self.wireguard.is_there().await
    }

    pub(super) async fn remove_wireguard(&self) -> Result<()> {
        self.wireguard.remove().await
    }

    pub(super) async fn ensure_tap(&self, tap: &TapConfig) -> Result<()> {
        check_link("tap", &tap.name, TAP_PREFIX)?;
        let netlink = Netlink::open()?;
        let bridge = netlink.expect(&tap.bridge).await?;
        bridge.must_be(LinkKind::Bridge)?;
        let mut found = netlink.link(&tap.name).await?;
        let is_used = |link: &Link| link.carrier || link.queues > 0;
        // The name has a part of the identifier of the machine only: another one may have the same.
        let is_elsewhere = |link: &Link| link.controller.is_some_and(|index| index != bridge.index);
        if found.as_ref().is_some_and(|link| is_used(link) && is_elsewhere(link)) {
            let detail = "a machine that runs has a tap of this name on another bridge: stop that machine, or create this VM anew";
            return Err(netlink::network("take", &tap.name, detail));
        }
        // The number of queues of a tap is fixed at its creation. One that is in use stays.
        if let Some(link) = found.take_if(|link| {
            link.kind == Some(LinkKind::Tap) && link.multi_queue != tap.multi_queue && !is_used(link)
        }) {
            netlink.remove(&link).await?;
        }
        let link = match found {
            Some(link) => link,
            None => {
                tap::create(&tap.name, tap.multi_queue)?;
                sysctl_if_there(&format!("net/ipv6/conf/{}/disable_ipv6", tap.name), "1").await;
                tracing::info!(tap = tap.name, bridge = tap.bridge, "tap made");
                netlink.expect(&tap.name).await?
            }
        };
        link.must_be(LinkKind::Tap)?;
        let mtu = u32::from(tap.mtu.max(tunnel::LEAST_MTU));
        if link.mtu != mtu {
            netlink.set_mtu(&link, mtu).await?;
        }
        if link.controller != Some(bridge.index) {
            netlink.join(&link, &bridge).await?;
        }
        let hairpin = bridge.tracked || tracking::is_global().await;
        if link.hairpin != hairpin {
            netlink.set_hairpin(&link, hairpin).await?;
        }
        if !link.up {
            netlink.set_up(&link).await?;
        }
        self.bridged_dhcp.listen(&link)?;
        self.learning.listen(&link)
    }

    pub(super) async fn remove_tap(&self, name: &str) -> Result<()> {
        check_link("tap", name, TAP_PREFIX)?;
        let netlink = Netlink::open()?;
        let Some(link) = netlink.link(name).await? else {
            return Ok(());
        };
        link.must_be(LinkKind::Tap)?;
        netlink.remove(&link).await?;
        tracing::info!(tap = name, "tap removed");
        Ok(())
    }

    pub(super) async fn taps(&self) -> Result<Vec<TapFacts>> {
        Ok(taps_of(&Netlink::open()?.links().await?))
    }

    /// Lists the ranges that the host itself uses.
    pub(super) async fn host_ranges(&self) -> Result<Vec<HostRange>> {
        host_ranges::find(&Netlink::open()?).await
    }

    /// Lists the IPv6 addresses of the host itself.
    pub(super) async fn host_ipv6_addresses(&self) -> Result<Vec<Ipv6Addr>> {
        ipv6::own_addresses(&Netlink::open()?).await
    }

    pub(super) async fn apply_firewall(&self, firewall: &Firewall) -> Result<()> {
        let netlink = Netlink::open()?;
        let ipv6_closed = ipv6::closed(&netlink, firewall).await?;
        self.leads_ipv6.store(ipv6::leads(firewall), Ordering::Relaxed);
        let wanted = PublicAddresses::of(firewall);
        // First, so that their answers are not missed when they end.
        self.announcer.only(&wanted.announced());
        public::silence(&netlink, &wanted).await?;
        if wanted.is_empty() {
            self.senders.apply(&self.rules, firewall, &ipv6_closed).await?;
            return match netlink.link(PUBLIC_LINK).await? {
                Some(link) => {
                    link.must_be(LinkKind::Bridge)?;
                    netlink.remove(&link).await
                }
                None => Ok(()),
            };
        }
        // Addresses are added before the rules that need them, and removed after them.
        let link = public::add(&netlink, &wanted).await?;
        self.senders.apply(&self.rules, firewall, &ipv6_closed).await?;
        public::only(&netlink, &link, &wanted).await?;
        public::announce(&netlink, &self.announcer, &wanted).await
    }

    /// Lists the addresses that guests have sent from, by tap.
    pub(super) async fn seen_addresses(&self) -> Result<BTreeMap<String, BTreeSet<IpAddr>>> {
        senders::seen().await
    }

    /// Returns once another program has removed the firewall's rules, or the host answers for an announced IPv6 address no more.
    pub(super) async fn firewall_removed(&self) -> Result<()> {
        let removals = self.removals.get_or_try_init(async || Removals::open()).await?;
        let changes = self.changes.get_or_try_init(async || Changes::open()).await?;
        tokio::select! {
            () = removals.next(|| self.senders.have_choices()) => Ok(()),
            lost = self.answers_lost(changes) => lost,
        }
    }

    async fn answers_lost(&self, changes: &Changes) -> Result<()> {
        loop {
            changes.next().await;
            if self.wireguard.is_lost().await? {
                return Ok(());
            }
            let announced = self.announcer.ipv6();
            if !announced.is_empty() && !public::is_answered(&Netlink::open()?, &announced).await? {
                return Ok(());
            }
        }
    }

    /// Returns the bridge of a network whose DHCP or DNS server has ended by itself.
    pub(super) async fn network_server_ended(&self) -> Result<String> {
        self.servers.ended().await
    }

    pub(super) async fn uplink(&self, choice: &UplinkChoice) -> Result<Uplink> {
        uplink::find(&Netlink::open()?, choice).await
    }

    pub(super) async fn occupant(&self, interface: &str, address: IpAddr) -> Result<Option<String>> {
        let netlink = Netlink::open()?;
        let own = public::answering(&netlink, address).await?;
        probe::occupant(&netlink.expect(interface).await?, &own, address).await
    }

    pub(super) async fn leases_taken(&self, bridge: &str) -> Result<Vec<LeaseTaken>> {
        check_link("bridge", bridge, BRIDGE_PREFIX)?;
        let folder = self.layout.network(bridge);
        let now = jiff::Timestamp::now();
        let listed = blocking(move || dnsmasq::leases_taken(&folder)).await?;
        self.seen_leases.taken(bridge, listed, now).await
    }

    pub(super) async fn forwarding(&self) -> Result<Forwarding> {
        let enabled = blocking(|| std::fs::read_to_string("/proc/sys/net/ipv4/ip_forward")).await;
        if enabled.map_err(failed("read", Path::new("/proc/sys/net/ipv4/ip_forward")))?.trim() != "1" {
            // Creating the first network with IPv4 enables forwarding.
            if has_ipv4_networks(&Netlink::open()?).await? {
                let message = "net.ipv4.ip_forward is off: set it to 1 (sysctl -w net.ipv4.ip_forward=1)";
                return Ok(Forwarding { ok: false, message: message.to_owned() });
            }
        }
        let netlink = Netlink::open()?;
        let links = netlink.links().await?;
        let guests = self.guests_of(&netlink, &links).await?;
        let needed = Needed { ipv6: self.leads_ipv6.load(Ordering::Relaxed), ..needed_of(&links) };
        foreign::forwarding(needed, &guests).await
    }

    /// Lists the bridges of private networks, whose guests ask this host for addresses and names.
    async fn guests_of(&self, netlink: &Netlink, links: &[Link]) -> Result<Guests> {
        let with = |indices: BTreeSet<u32>| {
            let bridges = links.iter().filter(move |link| indices.contains(&link.index));
            let ours = bridges.filter(|link| check_link("bridge", &link.name, BRIDGE_PREFIX).is_ok());
            ours.map(|link| link.name.clone()).collect::<Vec<_>>()
        };
        let ipv6 = netlink.all_ipv6_networks().await?.into_iter();
        let ipv6 = ipv6.filter(|(_, of)| !of.addr().is_unicast_link_local());
        let ipv4 = netlink.all_addresses().await?.into_iter().map(|(index, _)| index);
        let (ipv4, ipv6) = (with(ipv4.collect()), with(ipv6.map(|(index, _)| index).collect()));
        let folders: BTreeMap<String, PathBuf> =
            ipv4.iter().chain(&ipv6).map(|bridge| (bridge.clone(), self.layout.network(bridge))).collect();
        let is_serving =
            |(bridge, folder): (String, PathBuf)| dnsmasq::answers_names(&folder).then_some(bridge);
        let names: BTreeSet<String> =
            blocking(move || folders.into_iter().filter_map(is_serving).collect()).await;
        Ok(Guests { ipv4, ipv6, names })
    }

    pub(super) async fn trace(&self, request: &TraceRequest) -> Result<Trace> {
        check_link("tap", &request.tap, TAP_PREFIX)?;
        trace::trace(&Netlink::open()?, &self.rules, request).await
    }
}

/// Returns the taps among these links.
fn taps_of(links: &[Link]) -> Vec<TapFacts> {
    let bridges: BTreeMap<u32, &Link> = links.iter().map(|link| (link.index, link)).collect();
    let tap = |link: &Link| {
        let bridge = link.controller.and_then(|index| bridges.get(&index));
        let bridge = bridge.filter(|bridge| bridge.kind == Some(LinkKind::Bridge));
        TapFacts { bridge: bridge.map(|bridge| bridge.name.clone()), name: link.name.clone() }
    };
    let is_tap =
        |link: &&Link| link.kind == Some(LinkKind::Tap) && check_link("link", &link.name, TAP_PREFIX).is_ok();
    let mut taps: Vec<TapFacts> = links.iter().filter(is_tap).map(tap).collect();
    taps.sort_by(|one, other| one.name.cmp(&other.name));
    taps
}

/// Whether a bridge of berth's has the IPv4 address of a gateway.
async fn has_ipv4_networks(netlink: &Netlink) -> Result<bool> {
    let addresses = netlink.all_addresses().await?;
    let links = netlink.links().await?;
    let mut bridges = links.iter().filter(|link| check_link("bridge", &link.name, BRIDGE_PREFIX).is_ok());
    Ok(bridges.any(|bridge| addresses.iter().any(|(index, _)| *index == bridge.index)))
}

/// Refuses a range that the host uses itself.
async fn check_range(netlink: &Netlink, network: &NetworkConfig) -> Result<()> {
    let Some(ipv4) = network.ipv4 else { return Ok(()) };
    let ranges = host_ranges::find(netlink).await?;
    let Some(taken) = ranges.iter().find(|of| of.is_taken_by(ipv4.range)) else { return Ok(()) };
    let detail = format!("its range {} is in use by this host ({})", ipv4.range, taken.range);
    Err(netlink::network("make", &network.bridge, detail))
}

/// Returns what drops guests' packets of IPv4 on this machine, and how to remove it. Those to the host count also before it has a
/// network.
pub(super) async fn foreign_forwarding() -> Result<Option<String>> {
    let any = format!("{BRIDGE_PREFIX}00000000");
    let guests = Guests { ipv4: vec![any.clone()], ipv6: Vec::new(), names: BTreeSet::from([any]) };
    let found = foreign::forwarding(needed_of(&Netlink::open()?.links().await?), &guests).await?;
    Ok((!found.ok).then_some(found.message))
}

/// Returns the packets of tunnels that other firewalls have to let pass.
fn needed_of(links: &[Link]) -> Needed {
    let tunnels = links.iter().filter(|link| check_link("link", &link.name, TUNNEL_PREFIX).is_ok());
    let mut needed = Needed::default();
    for local in tunnels.filter_map(|link| link.vxlan?.local) {
        needed.tunnels |= local.is_ipv4();
        needed.encrypted |= local.is_ipv6();
    }
    needed
}

fn ours(links: &[Link], prefix: &str, kind: LinkKind) -> Vec<String> {
    let mut names: Vec<String> = links
        .iter()
        .filter(|l| l.kind == Some(kind) && check_link("link", &l.name, prefix).is_ok())
        .map(|l| l.name.clone())
        .collect();
    names.sort();
    names
}

/// The MAC address of a bridge. Without a fixed one the bridge takes the lowest of its ports', so guests would see the
/// MAC address of their gateway change. It is the same on every host, like the gateway's IP address.
pub fn bridge_mac(name: &str) -> [u8; 6] {
    let hash = Sha256::digest(name.as_bytes());
    [0x52, 0x54, 0x00, hash[0], hash[1], hash[2]]
}

fn hardware_address(bytes: [u8; 6]) -> String {
    bytes.map(|b| format!("{b:02x}")).join(":")
}

fn remove_folder(folder: &Path) -> Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(failed("remove", folder)(error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
pub(super) mod tests;
