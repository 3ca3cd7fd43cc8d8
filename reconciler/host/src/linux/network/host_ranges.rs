//! The host's own address ranges, which berth's bridges must not cover.

use std::net::Ipv4Addr;

use super::super::files::blocking;
use super::netlink::{Link, Netlink};
use super::{BRIDGE_PREFIX, PUBLIC_LINK, Result, TAP_PREFIX, TUNNEL_PREFIX};
use crate::HostRange;

/// A route with a shorter prefix is one part of a split default route, as VPNs create them.
const LEAST_PREFIX: u8 = 8;

/// Returns the ranges of interfaces, routes except the default one, and name servers, in order. Excludes loopback and
/// berth's own links.
pub(super) async fn find(netlink: &Netlink) -> Result<Vec<HostRange>> {
    let links = netlink.links().await?;
    let is_ours = |index: u32| links.iter().any(|link| link.index == index && is_berths(link));
    let mut found: Vec<HostRange> = Vec::new();
    for (index, address) in netlink.all_networks().await? {
        if !is_ours(index) {
            found.push(HostRange { range: address.trunc(), is_route: false });
        }
    }
    for route in netlink.routes().await? {
        if !is_ours(route.link) && route.to.prefix_len() >= LEAST_PREFIX {
            found.push(HostRange { range: route.to.trunc(), is_route: route.has_gateway });
        }
    }
    let servers = blocking(|| std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default()).await;
    found.extend(name_servers(&servers).map(|server| HostRange { range: server.into(), is_route: false }));
    found.retain(|of| !of.range.addr().is_loopback());
    found.sort();
    // If a range is both an interface's and a route's, the interface wins: it sorts first.
    found.dedup_by(|a, b| a.range == b.range);
    Ok(found)
}

fn is_berths(link: &Link) -> bool {
    let prefixes = [BRIDGE_PREFIX, TUNNEL_PREFIX, TAP_PREFIX];
    link.name == PUBLIC_LINK || prefixes.iter().any(|prefix| link.name.starts_with(prefix))
}

fn name_servers(text: &str) -> impl Iterator<Item = Ipv4Addr> {
    let server = |line: &str| line.trim().strip_prefix("nameserver")?.trim().parse().ok();
    text.lines().filter_map(server)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_servers_are_read_as_the_resolver_reads_them() {
        let text = "# nameserver 192.0.2.9\nsearch example.org\nnameserver 192.0.2.53\nnameserver\t192.0.2.54 \nnameserver fe80::1\n";
        let servers: Vec<_> = name_servers(text).map(|server| server.to_string()).collect();
        assert_eq!(servers, ["192.0.2.53", "192.0.2.54"]);
    }
}
