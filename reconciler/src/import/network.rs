//! libvirt's networks.

use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::{Ipv4Net, Ipv6Net};
use roxmltree::Node;

use super::{
    ImportError,
    rest::others,
    xml::{all, attribute, first, text},
};

/// The prefix lengths that a Network can have.
const PREFIXES: std::ops::RangeInclusive<u8> = 8..=29;
/// The length of an IPv6 prefix that a Network can have, which is also libvirt's default.
const IPV6_PREFIX: u8 = 64;
/// The prefix of addresses of hosts for encrypted packets, which no Network can have: `fd62:6572:7468::/48`.
const OF_HOSTS: [u16; 3] = [0xfd62, 0x6572, 0x7468];
/// Elements that are read, or that do not change what guests see.
const KNOWN: [&str; 9] =
    ["name", "uuid", "metadata", "title", "description", "bridge", "mac", "forward", "ip"];

/// A network.
#[derive(Clone, Debug)]
pub struct Network {
    /// Its name.
    pub name: String,
    /// Its range, if berth can have the network.
    pub range: Option<Ipv4Net>,
    /// Its IPv6 prefix, if berth can have it.
    pub ipv6: Option<Ipv6Net>,
    /// The way of its packets to the outside: `egress`, and `ipv6_egress`.
    pub egress: &'static str,
    /// The same of IPv6.
    pub ipv6_egress: &'static str,
    /// The addresses that its DHCP server gives to MAC addresses in lower case.
    pub reserved: Vec<(String, Ipv4Addr)>,
    /// The parts that are not taken over.
    pub notes: Vec<String>,
}

pub(super) fn read(root: Node<'_, '_>) -> Result<Network, ImportError> {
    let name = text(root, &["name"]).ok_or(ImportError::Missing("name"))?.to_owned();
    let mut notes = Vec::new();
    let forward = attribute(root, &["forward"], "mode").unwrap_or(match all(root, &["forward"]).is_empty() {
        true => "none",
        false => "nat",
    });
    let (ipv6, ipv4): (Vec<_>, Vec<_>) =
        all(root, &["ip"]).into_iter().partition(|ip| ip.attribute("family") == Some("ipv6"));
    for (family, count) in [("IPv4", ipv4.len()), ("IPv6", ipv6.len())] {
        if count > 1 {
            notes.push(format!("it has {count} {family} ranges; the first one is taken over"));
        }
    }
    let is_own = matches!(forward, "none" | "nat" | "route" | "open");
    let range =
        ipv4.first().and_then(|ip| range_of(*ip)).filter(|range| PREFIXES.contains(&range.prefix_len()));
    let prefix = ipv6.first().and_then(|ip| prefix_of(*ip));
    if is_own && range.is_none() && !ipv4.is_empty() {
        notes.push(format!(
            "its IPv4 range is not taken over: that of a Network has a prefix of {} to {}",
            PREFIXES.start(),
            PREFIXES.end()
        ));
    }
    if is_own && prefix.is_none() && !ipv6.is_empty() {
        notes.push(
            "its IPv6 range is not taken over: that of a Network is a /64 of fc00::/7 or 2000::/3".to_owned(),
        );
    }
    if !is_own {
        notes.push(format!(
            "its forward mode is {forward}, which connects guests to a network of the host: a Network of type Bridge does"
        ));
    }
    let (egress, ipv6_egress) = match forward {
        // Without NAT of IPv6, its packets leave as they are.
        "nat" if attribute(root, &["forward", "nat"], "ipv6") == Some("yes") => ("Masquerade", "Masquerade"),
        "nat" => ("Masquerade", "Routed"),
        "route" | "open" => ("Routed", "Routed"),
        _ => ("None", "None"),
    };
    if egress == "Routed" {
        notes.push(format!(
            "its forward mode is {forward}: the routers outside must route its range to the host of each VM, and connections from outside \
             reach a guest by a berth_public_ip only"
        ));
    } else if ipv6_egress == "Routed" && prefix.is_some() {
        notes.push(
            "its IPv6 packets are forwarded without NAT: the routers outside must route its prefix to the host of each VM".to_owned(),
        );
    }
    notes.extend(not_taken_over(root));
    let reserved = ipv4.first().into_iter().flat_map(|ip| all(*ip, &["dhcp", "host"])).filter_map(|host| {
        Some((host.attribute("mac")?.to_ascii_lowercase(), host.attribute("ip")?.parse().ok()?))
    });
    let reserved = reserved.collect();
    Ok(Network {
        name,
        range: range.filter(|_| is_own),
        ipv6: prefix.filter(|_| is_own),
        egress,
        ipv6_egress,
        reserved,
        notes,
    })
}

/// Notes on the elements that a Network has no counterpart of, or that are for a person to declare.
fn not_taken_over(root: Node<'_, '_>) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(card) = attribute(root, &["forward"], "dev") {
        notes.push(format!("it forwards by {card} only; in berth the routes of each host decide"));
    }
    let ranges = all(root, &["ip"]);
    let has = |path: &[&str]| ranges.iter().any(|ip| first(*ip, path).is_some());
    if has(&["tftp"]) || has(&["dhcp", "bootp"]) {
        notes.push("it boots guests over the network (tftp, bootp), which a Network does not".to_owned());
    }
    let is_ipv6 = |ip: &&Node<'_, '_>| ip.attribute("family") == Some("ipv6");
    if ranges.iter().filter(is_ipv6).any(|ip| first(*ip, &["dhcp", "host"]).is_some()) {
        notes.push(
            "its reserved IPv6 addresses are not taken over: see ipv6_address of an interface".to_owned(),
        );
    }
    notes.extend(others(root, &KNOWN).map(|names| {
        format!(
            "it has settings that are not taken over: {names} (see dns, dns_domain, mtu, routes and isolated of berth_network)"
        )
    }));
    notes
}

fn range_of(ip: Node<'_, '_>) -> Option<Ipv4Net> {
    let address: Ipv4Addr = ip.attribute("address")?.parse().ok()?;
    let range = match (ip.attribute("prefix"), ip.attribute("netmask")) {
        (Some(prefix), _) => Ipv4Net::new(address, prefix.parse().ok()?).ok()?,
        (None, Some(netmask)) => Ipv4Net::with_netmask(address, netmask.parse().ok()?).ok()?,
        (None, None) => return None,
    };
    Some(range.trunc())
}

fn prefix_of(ip: Node<'_, '_>) -> Option<Ipv6Net> {
    let address: Ipv6Addr = ip.attribute("address")?.parse().ok()?;
    let length = ip.attribute("prefix").map_or(Ok(IPV6_PREFIX), str::parse).ok()?;
    let segments = address.segments();
    let is_usable = matches!(segments[0], 0xfc00..=0xfdff | 0x2000..=0x3fff) && segments[..3] != OF_HOSTS;
    (length == IPV6_PREFIX && is_usable)
        .then(|| Ipv6Net::new(address, length).ok())?
        .map(|prefix| prefix.trunc())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(inner: &str) -> Network {
        let text = format!("<network><name>n</name>{inner}</network>");
        let document = roxmltree::Document::parse(&text).expect("XML");
        read(document.root_element()).expect("a network")
    }

    const IPV4: &str = "<ip address='10.1.2.1' prefix='24'/>";
    const IPV6: &str = "<ip family='ipv6' address='fd00:0060::1' prefix='64'/>";

    #[test]
    fn both_families_and_the_way_to_the_outside_are_kept() {
        let of = |forward: &str| {
            let found = network(&format!("{forward}{IPV6}{IPV4}"));
            assert_eq!(found.range.map(|range| range.to_string()).as_deref(), Some("10.1.2.0/24"));
            assert_eq!(found.ipv6.map(|prefix| prefix.to_string()).as_deref(), Some("fd00:60::/64"));
            (found.egress, found.ipv6_egress, found.notes.len())
        };
        assert_eq!(of(""), ("None", "None", 0), "it is isolated");
        assert_eq!(of("<forward mode='nat'><nat ipv6='yes'/></forward>"), ("Masquerade", "Masquerade", 0));
        assert_eq!(of("<forward/>"), ("Masquerade", "Routed", 1));
        assert_eq!(of("<forward mode='route'/>"), ("Routed", "Routed", 1));
        let bridged = network(&format!("<forward mode='bridge'/>{IPV4}{IPV6}"));
        assert!(bridged.range.is_none() && bridged.ipv6.is_none() && bridged.notes.len() == 1);
    }

    #[test]
    fn a_prefix_that_no_network_can_have_is_said() {
        for address in
            ["fe80::1' prefix='64", "fd00::1' prefix='48", "fd62:6572:7468::1", "fd00::x", "1.2.3.4"]
        {
            let found = network(&format!("{IPV4}<ip family='ipv6' address='{address}'/>"));
            assert!(found.ipv6.is_none() && found.range.is_some(), "{address}");
            assert!(
                found.notes[0].contains("its IPv6 range is not taken over"),
                "{address}: {:?}",
                found.notes
            );
        }
    }

    #[test]
    fn an_ipv4_range_that_no_network_can_have_is_said() {
        let found = network(&format!("<ip address='10.1.2.1' prefix='30'/>{IPV6}"));
        assert!(found.range.is_none() && found.ipv6.is_some());
        assert_eq!(
            found.notes,
            ["its IPv4 range is not taken over: that of a Network has a prefix of 8 to 29"]
        );
    }

    #[test]
    fn each_part_that_is_not_taken_over_is_said() {
        let notes = network(
            "<forward mode='nat' dev='eth7'/><mtu size='9000'/><dns><forwarder addr='9.9.9.9'/></dns><bandwidth/>
             <ip address='10.1.2.1' prefix='24'><tftp root='/srv'/></ip><ip address='10.1.3.1' prefix='24'/>
             <ip family='ipv6' address='fd00:60::1'><dhcp><host name='a' ip='fd00:60::5'/></dhcp></ip>",
        )
        .notes
        .join("\n");
        for part in [
            "2 IPv4 ranges",
            "eth7",
            "over the network (tftp",
            "reserved IPv6",
            "not taken over: mtu, dns, bandwidth (see",
        ] {
            assert!(notes.contains(part), "no {part} in {notes}");
        }
    }
}
