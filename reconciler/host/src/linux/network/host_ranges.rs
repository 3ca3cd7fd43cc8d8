//! The host's own address ranges, which berth's bridges must not cover.

use std::net::Ipv4Addr;
use std::path::Path;

use super::super::files::blocking;
use super::netlink::{Link, Netlink};
use super::{PUBLIC_LINK, Result, TAP_PREFIX};
use crate::HostRange;

/// A route with a shorter prefix is one part of a split default route, as VPNs create them.
const LEAST_PREFIX: u8 = 8;
/// The resolver's configuration. If it names only the local stub of systemd-resolved, the second file has the name servers
/// that the stub asks.
const RESOLVERS: [&str; 2] = ["/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"];

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
    let servers = blocking(|| name_servers(&RESOLVERS)).await;
    found.extend(servers.into_iter().map(|server| HostRange { range: server.into(), is_route: false }));
    found.retain(|of| !of.range.addr().is_loopback());
    found.sort();
    // If a range is both an interface's and a route's, the interface wins: it sorts first.
    found.dedup_by(|a, b| a.range == b.range);
    Ok(found)
}

/// Whether the link is named as berth names its own: `bth-…`, `btt…`.
pub(super) fn is_berths(link: &Link) -> bool {
    let has_prefix = matches!(link.name.as_bytes(), [b'b', b't', b'a'..=b'z', b'-', ..]);
    link.name == PUBLIC_LINK || has_prefix || link.name.starts_with(TAP_PREFIX)
}

/// Returns the IPv4 name servers in these files; a missing file has none.
fn name_servers(files: &[impl AsRef<Path>]) -> Vec<Ipv4Addr> {
    let server = |line: &str| line.trim().strip_prefix("nameserver")?.trim().parse().ok();
    let texts = files.iter().map(|file| std::fs::read_to_string(file).unwrap_or_default());
    texts.flat_map(|text| text.lines().filter_map(server).collect::<Vec<_>>()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_servers_are_read_as_the_resolver_reads_them() {
        let folder = tempfile::tempdir().expect("a folder");
        let [file, upstream, missing] = ["a", "b", "c"].map(|name| folder.path().join(name));
        let text = "# nameserver 192.0.2.9\nsearch example.org\nnameserver 192.0.2.53\nnameserver\t192.0.2.54 \nnameserver fe80::1\n";
        let found = |files: &[&Path]| -> Vec<String> {
            name_servers(files).iter().map(ToString::to_string).collect()
        };
        std::fs::write(&file, text).expect("written");
        assert_eq!(found(&[&file, &missing]), ["192.0.2.53", "192.0.2.54"]);
        std::fs::write(&file, "nameserver 127.0.0.53\n").expect("written");
        std::fs::write(&upstream, "nameserver 10.0.0.2\n").expect("written");
        assert_eq!(found(&[&file, &upstream]), ["127.0.0.53", "10.0.0.2"], "behind systemd-resolved");
    }
}
