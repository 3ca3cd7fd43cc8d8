//! libvirt's networks.

use std::net::Ipv4Addr;

use ipnet::Ipv4Net;
use roxmltree::Node;

use super::{
    ImportError,
    xml::{all, attribute, text},
};

/// The prefix lengths that a Network can have.
const PREFIXES: std::ops::RangeInclusive<u8> = 8..=29;

/// A network.
#[derive(Clone, Debug)]
pub struct Network {
    /// Its name.
    pub name: String,
    /// Its range, if berth can have the network.
    pub range: Option<Ipv4Net>,
    /// The addresses that its DHCP server gives to MAC addresses in lower case.
    pub reserved: Vec<(String, Ipv4Addr)>,
    /// The parts that berth does not have.
    pub notes: Vec<String>,
}

pub(super) fn read(root: Node<'_, '_>) -> Result<Network, ImportError> {
    let name = text(root, &["name"]).ok_or(ImportError::Missing("name"))?.to_owned();
    let mut notes = Vec::new();
    let forward = attribute(root, &["forward"], "mode").unwrap_or(match all(root, &["forward"]).is_empty() {
        true => "none",
        false => "nat",
    });
    let ip = all(root, &["ip"]).into_iter().find(|ip| ip.attribute("family").unwrap_or("ipv4") == "ipv4");
    let range = ip.and_then(range_of).filter(|range| PREFIXES.contains(&range.prefix_len()));
    let has_range = matches!(forward, "none" | "nat" | "route" | "open") && range.is_some();
    match forward {
        "nat" => {}
        "none" => notes.push("it is isolated, and guests of a Network of berth reach the outside by NAT".to_owned()),
        "route" | "open" => {
            notes.push(format!("its forward mode is {forward}, and berth forwards by NAT; a berth_public_ip leads to a guest"));
        }
        other => notes.push(format!(
            "its forward mode is {other}, which connects guests to a network of the host; berth has private networks and \
             berth_public_ip"
        )),
    }
    if all(root, &["ip"]).iter().any(|ip| ip.attribute("family") == Some("ipv6")) {
        notes.push("it has an IPv6 range, and a Network of berth has none".to_owned());
    }
    let reserved = ip.into_iter().flat_map(|ip| all(ip, &["dhcp", "host"])).filter_map(|host| {
        Some((host.attribute("mac")?.to_ascii_lowercase(), host.attribute("ip")?.parse().ok()?))
    });
    let reserved = reserved.collect();
    Ok(Network { name, range: range.filter(|_| has_range), reserved, notes })
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
