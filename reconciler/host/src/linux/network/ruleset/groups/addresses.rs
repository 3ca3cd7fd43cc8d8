//! The addresses of filtered interfaces, and the maps from them to the chains of their groups. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde_json::{Value, json};

use super::super::ports::{link_local, of_macs};
use super::super::{ROUTED, TABLE};
use super::{Direction, Family, groups_of, profile_name};
use crate::{Filters, Port, PortException};

/// The addresses of a family of the filtered ports, each with the groups of its port.
pub(super) type Addresses<'a> = BTreeMap<IpAddr, BTreeSet<&'a str>>;

/// Returns the addresses. Ports may have one further MAC address, such as a virtual one: where their groups differ, its link-local address has none, and nothing
/// passes.
pub(super) fn addresses<'a>(
    filters: &'a Filters,
    exceptions: &[PortException],
    family: Family,
) -> Addresses<'a> {
    let addresses = |port: &Port| -> Vec<IpAddr> {
        let further = exceptions.iter().filter(|exception| exception.tap == port.tap).flat_map(of_macs);
        match family {
            Family::V4 => port.address.map(IpAddr::V4).into_iter().collect(),
            Family::V6 => {
                link_local(&port.mac).into_iter().chain(port.ipv6).chain(further).map(IpAddr::V6).collect()
            }
        }
    };
    let mut all = Addresses::new();
    for filtered in &filters.ports {
        let groups = groups_of(&filtered.groups);
        for address in addresses(&filtered.port) {
            let known = all.entry(address).or_insert_with(|| groups.clone());
            if *known != groups {
                known.clear();
            }
        }
    }
    all
}

pub(super) fn map(addresses: &Addresses<'_>, family: Family, direction: Direction) -> Value {
    let element = |(address, profile): (&IpAddr, &BTreeSet<&str>)| {
        let target = profile_name(profile, direction);
        json!([address, {"goto": {"target": target}}])
    };
    let elements: Vec<Value> = addresses.iter().map(element).collect();
    let name = family.named(&format!("{}_of", direction.chain));
    let mut map = json!({"family": ROUTED.family, "table": TABLE, "name": name, "type": family.kind(), "map": "verdict"});
    if !elements.is_empty() {
        map["elem"] = elements.into();
    }
    json!({"add": {"map": map}})
}

#[cfg(test)]
mod tests {
    use super::super::{EGRESS, INGRESS, filter};
    use super::*;
    use crate::FilteredPort;

    fn port(last: u8) -> FilteredPort {
        let (tap, mac) = (format!("btt{last}"), format!("52:54:00:00:00:{last:02x}"));
        let port = Port { tap, mac, address: None, ipv6: None };
        FilteredPort { port, groups: vec!["ns/web".into()], asks_dhcp: false, prefixes: Vec::new() }
    }

    #[test]
    fn the_link_local_address_of_a_further_mac_is_filtered_as_the_others_of_its_interface() {
        let mut filters = Filters { ports: vec![port(2), port(3)], ..Filters::default() };
        let mac = "00:00:5e:00:01:0a";
        let with_mac = |port: &FilteredPort| PortException {
            tap: port.port.tap.clone(),
            ranges: Vec::new(),
            macs: vec![mac.to_owned()],
            gateways: Vec::new(),
        };
        let address = link_local(mac).expect("an address");
        let led = |filters: &Filters, exceptions: &[PortException]| -> Vec<Value> {
            let commands = filter(filters, exceptions);
            let maps = commands.iter().map(|command| &command["add"]["map"]).filter(|map| !map.is_null());
            let elements = maps.flat_map(|map| map["elem"].as_array().cloned().unwrap_or_default());
            elements
                .filter(|one| one[0] == json!(address))
                .map(|one| one[1]["goto"]["target"].clone())
                .collect()
        };
        assert!(led(&filters, &[]).is_empty());
        let own: BTreeSet<&str> = BTreeSet::from(["ns/web"]);
        let to = |profile: &BTreeSet<&str>| [EGRESS, INGRESS].map(|way| json!(profile_name(profile, way)));
        let one = with_mac(&filters.ports[0]);
        assert_eq!(led(&filters, std::slice::from_ref(&one)), to(&own));
        filters.ports[1].groups = vec!["other/open".into()];
        let both = [one, with_mac(&filters.ports[1])];
        assert_eq!(led(&filters, &both), to(&BTreeSet::new()), "neither opens that of the other");
        let chains = filter(&filters, &both);
        for chain in to(&BTreeSet::new()) {
            assert!(chains.iter().any(|command| command["add"]["chain"]["name"] == chain), "{chain}");
        }
    }
}
