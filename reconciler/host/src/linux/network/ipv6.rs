//! The IPv6 side of private networks: the gateway's address on the bridge, and forwarding on the host.
//!
//! A bridge has no IPv6 unless its network has a prefix. The gateway's address and the bridge's link-local address are the same on each
//! host, as its MAC address is: duplicate address detection is off, and neither crosses a tunnel ([`super::ruleset`]).

use std::net::Ipv6Addr;
use std::path::Path;

use ipnet::Ipv6Net;

use super::super::files::blocking;
use super::netlink::{self, Link, Netlink};
use super::{Result, host_ranges, sysctl, sysctl_if_there};
use crate::{Egress, Firewall, Ipv6Network, NetworkConfig};

/// Exists unless the kernel has no IPv6 or was started without.
const SETTINGS: &str = "/proc/sys/net/ipv6/conf";
/// The IPv6 routes of this network namespace. In each line: destination, prefix length, 6 more fields, flags, and interface.
const ROUTES: &str = "/proc/thread-self/net/ipv6_route";
/// The metadata services of clouds, by which a host has its credentials: `fd00:ec2::254` (AWS), `fd20:ce::254` (Google Cloud) and
/// `fd00:42::42` (Scaleway). They are on no link of the host. The ruleset closes those of IPv4, which are link-local.
const METADATA: [Ipv6Addr; 3] = [
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254),
    Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),
    Ipv6Addr::new(0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42),
];
/// `RTF_ADDRCONF`: a route by a router advertisement.
const BY_ADVERTISEMENT: u32 = 0x0004_0000;

/// Checks that a new network's prefix can be used here.
///
/// *Errors*: if IPv6 is turned off, or if the host itself has an address of the prefix.
pub(super) async fn check(netlink: &Netlink, network: &NetworkConfig) -> Result<()> {
    let Some(ipv6) = network.ipv6 else { return Ok(()) };
    if !blocking(|| Path::new(SETTINGS).exists()).await {
        let detail = "IPv6 is turned off on this host, and the network has an IPv6 prefix: start its kernel without \
                      ipv6.disable=1, or run these VMs on another host";
        return Err(netlink::network("make", &network.bridge, detail));
    }
    let own = own_networks(netlink).await?;
    if let Some(taken) =
        own.iter().find(|own| ipv6.prefix.contains(&own.addr()) || own.contains(&ipv6.prefix))
    {
        let detail = format!("its prefix {} is in use by this host ({taken})", ipv6.prefix);
        return Err(netlink::network("make", &network.bridge, detail));
    }
    Ok(())
}

/// Gives the bridge the gateway's address, or no IPv6 if the network has no prefix.
pub(super) async fn ensure(netlink: &Netlink, bridge: &Link, ipv6: Option<Ipv6Network>) -> Result<()> {
    let Some(ipv6) = ipv6 else {
        sysctl_if_there(&format!("net/ipv6/conf/{}/disable_ipv6", bridge.name), "1").await;
        return Ok(());
    };
    allow(&bridge.name).await?;
    let gateway = Ipv6Net::new(ipv6.gateway, ipv6.prefix.prefix_len()).expect("the length of a prefix");
    netlink.exact_ipv6_addresses(bridge, &[gateway]).await?;
    if ipv6.egress == Egress::None { Ok(()) } else { forward().await }
}

/// Lets one of berth's links have IPv6 addresses, without the detection of duplicates by the kernel.
pub(super) async fn allow(link: &str) -> Result<()> {
    let setting = |name: &str| format!("net/ipv6/conf/{link}/{name}");
    for (name, value) in
        [("accept_ra", "0"), ("accept_redirects", "0"), ("dad_transmits", "0"), ("accept_dad", "0")]
    {
        sysctl(&setting(name), value).await?;
    }
    // Last: the link-local address is made now, from the link's MAC address.
    sysctl(&setting("addr_gen_mode"), "0").await?;
    sysctl(&setting("disable_ipv6"), "0").await
}

/// Whether the host forwards IPv6 packets.
pub(super) async fn is_forwarded() -> bool {
    let read = || std::fs::read_to_string("/proc/sys/net/ipv6/conf/all/forwarding");
    blocking(read).await.is_ok_and(|value| value.trim() != "0")
}

/// Turns on forwarding, which the kernel has for all interfaces only. An interface that has its default route or its addresses by router
/// advertisements would lose them and accept no more advertisements, unless it is set to accept them from then on as well.
pub(super) async fn forward() -> Result<()> {
    let routes = blocking(|| std::fs::read_to_string(ROUTES)).await.unwrap_or_default();
    for interface in advertised(&routes) {
        let key = format!("net/ipv6/conf/{interface}/accept_ra");
        let path = Path::new("/proc/sys").join(&key);
        if blocking(move || std::fs::read_to_string(path)).await.is_ok_and(|value| value.trim() == "1") {
            sysctl(&key, "2").await?;
            tracing::info!(interface, "router advertisements stay accepted while the host forwards IPv6");
        }
    }
    sysctl("net/ipv6/conf/all/forwarding", "1").await
}

/// Returns the interfaces with a route by router advertisements: the default one, or that of the prefix of their addresses.
fn advertised(routes: &str) -> Vec<String> {
    let interface = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let [_, _, _, _, _, _, _, _, flags, interface] = fields[..] else { return None };
        let flags = u32::from_str_radix(flags, 16).ok()?;
        (flags & BY_ADVERTISEMENT != 0).then(|| interface.to_owned())
    };
    let mut interfaces: Vec<String> = routes.lines().filter_map(interface).collect();
    interfaces.sort();
    interfaces.dedup();
    interfaces
}

/// Whether guests have a way to the outside, or from there by a public address.
pub(super) fn leads(firewall: &Firewall) -> bool {
    let forwards = firewall.forwards.iter().map(|forward| forward.public);
    let mut public = forwards.chain(firewall.balanced.iter().map(|balanced| balanced.public));
    has_way_out(firewall) || public.any(|public| public.is_ipv6())
}

fn has_way_out(firewall: &Firewall) -> bool {
    let is_open = |ipv6: &Ipv6Network| ipv6.egress != Egress::None;
    firewall.nat.iter().filter_map(|network| network.ipv6.as_ref()).any(is_open)
}

/// Returns the prefixes that the host is on itself, the addresses of other hosts and of the control plane, and the metadata services of
/// clouds: guests reach none of them. Empty while no network has a way to the outside.
pub(super) async fn closed(netlink: &Netlink, firewall: &Firewall) -> Result<Vec<Ipv6Net>> {
    if !has_way_out(firewall) {
        return Ok(Vec::new());
    }
    Ok(closed_by(&own_networks(netlink).await?, firewall))
}

/// The closed ranges of a host that is on these networks.
fn closed_by(own: &[Ipv6Net], firewall: &Firewall) -> Vec<Ipv6Net> {
    let metadata = METADATA.map(Ipv6Net::from);
    let networks: Vec<Ipv6Net> =
        own.iter().chain(&firewall.ipv6_closed).chain(&metadata).map(Ipv6Net::trunc).collect();
    let closed = Ipv6Net::aggregate(&networks);
    closed.into_iter().flat_map(|range| without(range, &firewall.ipv6_allowed)).collect()
}

/// Returns the parts of a range that are in none of the others.
fn without(range: Ipv6Net, others: &[Ipv6Net]) -> Vec<Ipv6Net> {
    if others.iter().any(|other| other.contains(&range)) {
        return Vec::new();
    }
    if !others.iter().any(|other| range.contains(other)) {
        return vec![range];
    }
    let halves = range.subnets(range.prefix_len() + 1).into_iter().flatten();
    halves.flat_map(|half| without(half, others)).collect()
}

/// Returns the host's addresses, except for loopback, link-local ones and those of berth's bridges, in order.
pub(super) async fn own_addresses(netlink: &Netlink) -> Result<Vec<Ipv6Addr>> {
    let mut addresses: Vec<Ipv6Addr> = own_networks(netlink).await?.iter().map(Ipv6Net::addr).collect();
    addresses.sort();
    addresses.dedup();
    Ok(addresses)
}

/// Returns the host's addresses with their prefixes, except for loopback, link-local ones and those of berth's bridges.
async fn own_networks(netlink: &Netlink) -> Result<Vec<Ipv6Net>> {
    let links = netlink.links().await?;
    let is_ours = |index: u32| links.iter().any(|link| link.index == index && host_ranges::is_berths(link));
    let all = netlink.all_ipv6_networks().await?;
    let is_special = |of: &Ipv6Net| of.addr().is_loopback() || of.addr().is_unicast_link_local();
    Ok(all.into_iter().filter(|(index, of)| !is_ours(*index) && !is_special(of)).map(|(_, of)| of).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_allowed_is_left_out_of_what_is_closed() {
        let range = |text: &str| text.parse::<Ipv6Net>().expect("a range");
        let closed = |closed: &str, allowed: &[&str]| {
            let allowed: Vec<Ipv6Net> = allowed.iter().map(|text| range(text)).collect();
            without(range(closed), &allowed)
        };
        assert_eq!(closed("2001:db8::/64", &[]), [range("2001:db8::/64")]);
        assert_eq!(closed("2001:db8::/64", &["2001:db8:1::/64"]), [range("2001:db8::/64")]);
        assert_eq!(closed("2001:db8::7/128", &["2001:db8::/64"]), []);
        assert_eq!(
            closed("2001:db8::/126", &["2001:db8::2/128"]),
            [range("2001:db8::/127"), range("2001:db8::3/128")]
        );
        let parts = closed("2001:db8::/64", &["2001:db8::7/128", "2001:db8::9/128"]);
        assert!(parts.iter().all(|part| !part.contains(&range("2001:db8::7/128")) && part.prefix_len() > 64));
        assert!(parts.iter().any(|part| part.contains(&range("2001:db8::8/128"))));
    }

    #[test]
    fn the_metadata_services_of_clouds_are_closed_unless_they_are_allowed() {
        let range = |text: &str| text.parse::<Ipv6Net>().expect("a range");
        let (own, other) = (range("2001:db8::7/64"), range("2001:db8:9::9/128"));
        let firewall = Firewall { ipv6_closed: vec![other], ..Firewall::default() };
        let closed = closed_by(&[own], &firewall);
        for expected in ["2001:db8::/64", "2001:db8:9::9/128", "fd00:ec2::254/128", "fd20:ce::254/128"] {
            assert!(closed.contains(&range(expected)), "{expected}: {closed:?}");
        }
        assert_eq!(closed.len(), 5);
        let allowed = Firewall { ipv6_allowed: vec![range("fd00:ec2::254/128")], ..firewall };
        let closed = closed_by(&[own], &allowed);
        assert!(closed.len() == 4 && !closed.contains(&range("fd00:ec2::254/128")), "{closed:?}");
    }

    #[test]
    fn interfaces_with_a_route_by_router_advertisements_are_found() {
        let zero = "0".repeat(32);
        let line = |length: &str, flags: &str, interface: &str| {
            format!(
                "{zero} {length} {zero} 00 fe800000000000000000000000000001 00000400 00000001 00000000 {flags} {interface}\n"
            )
        };
        let routes = [
            line("00", "00450003", "eth0"),
            line("00", "00450003", "eth0"),
            line("00", "00000003", "eth1"),
            line("40", "004c0001", "eth2"),
            line("40", "00000001", "eth3"),
            line("00", "00200200", "lo"),
            "broken\n".to_owned(),
        ];
        assert_eq!(advertised(&routes.concat()), ["eth0", "eth2"]);
    }
}
