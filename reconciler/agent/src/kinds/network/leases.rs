//! Leases of DHCP servers that are not berth's → the addresses of taps. Pure.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use berth_api::vm::InterfaceStatus;
use berth_host::ExternalLease;

use super::filters::{self, GroupsOf};
use crate::index::Tables;
use crate::networking::{GuestPort, find};

/// Returns the MAC addresses, in order, of these interfaces of a network whose addresses another DHCP server gives out.
pub(super) fn macs<'a>(interfaces: impl Iterator<Item = &'a InterfaceStatus>) -> Vec<String> {
    let mut macs: Vec<String> =
        interfaces.map(|interface| interface.mac_address.to_ascii_lowercase()).collect();
    macs.sort();
    macs.dedup();
    macs
}

/// Returns the ports with their leases as their own addresses, on networks that check them. `bridges`: by network.
///
/// A filtered interface has none that another guest here has too, in whichever network: the filters go by address.
pub(super) fn with_leases(
    tables: &Tables,
    bridges: &BTreeMap<String, String>,
    leases: &[ExternalLease],
    groups_of: &GroupsOf,
    ports: &[GuestPort],
) -> Vec<GuestPort> {
    let known: BTreeMap<(&str, &str), Ipv4Addr> =
        leases.iter().map(|lease| ((lease.bridge.as_str(), lease.mac.as_str()), lease.address)).collect();
    let lease_of = |guest: &GuestPort| {
        let network = find(tables, &guest.network).filter(|network| network.checks_leases())?;
        // A network that is refused has no bridge here; its guests, which ran before, keep their leases.
        let bridge = bridges.get(&guest.network).cloned().or_else(|| network.bridge_name())?;
        known.get(&(bridge.as_str(), guest.port.mac.as_str())).copied()
    };
    let of_each: Vec<Option<Ipv4Addr>> = ports.iter().map(lease_of).collect();
    let mut users: BTreeMap<Ipv4Addr, usize> = BTreeMap::new();
    for (guest, lease) in ports.iter().zip(&of_each) {
        if let Some(address) = lease.or(guest.port.address) {
            *users.entry(address).or_default() += 1;
        }
    }
    let with_lease = |(guest, lease): (&GuestPort, Option<Ipv4Addr>)| {
        let is_filtered = !filters::groups(groups_of, guest).is_empty();
        let is_shared = |address: &Ipv4Addr| users.get(address).is_some_and(|users| *users > 1);
        let mut guest = guest.clone();
        if let Some(address) = lease.filter(|address| !(is_filtered && is_shared(address))) {
            guest.port.address = Some(address);
        }
        guest
    };
    ports.iter().zip(of_each).map(with_lease).collect()
}

#[cfg(test)]
mod tests {
    use berth_host::Port;
    use kube::runtime::watcher::Event;
    use serde_json::json;

    use super::*;
    use crate::index::Index;

    const BRIDGE: &str = "bth-00004d";

    fn world(check: &str) -> Index {
        let index = Index::default();
        let spec = json!({"type": "Bridge", "bridge": {"name": "vmbr0"}, "ipv4": {"allocation": "External", "sourceCheck": check}});
        let network = json!({"metadata": {"name": "lan", "namespace": "berth-shared", "resourceVersion": "1"},
            "spec": spec, "status": {"observedGeneration": 1, "vni": 77}});
        index.apply::<berth_api::Network>(Event::Apply(serde_json::from_value(network).expect("a Network")));
        index
    }

    fn mac(last: u8) -> String {
        format!("52:54:00:00:00:0{last}")
    }

    fn port(network: &str, last: u8, address: Option<&str>, groups: &[&str]) -> GuestPort {
        let address = address.map(|text| text.parse().expect("an address"));
        let port = Port { tap: format!("btt0000000{last}n0"), mac: mac(last), address, ipv6: None };
        let groups = groups.iter().map(|name| (*name).to_owned()).collect();
        GuestPort { network: network.into(), port, groups }
    }

    fn lease(bridge: &str, last: u8, address: &str) -> ExternalLease {
        let address = address.parse().expect("an address");
        ExternalLease { bridge: bridge.into(), mac: mac(last), address }
    }

    fn addresses(index: &Index, leases: &[ExternalLease], ports: &[GuestPort]) -> Vec<String> {
        let bridges = BTreeMap::from([("berth-shared/lan".to_owned(), BRIDGE.to_owned())]);
        let found = with_leases(&index.read(), &bridges, leases, &GroupsOf::new(), ports);
        let text = |port: &GuestPort| port.port.address.map_or_else(String::new, |own| own.to_string());
        found.iter().map(text).collect()
    }

    #[test]
    fn a_port_has_the_lease_of_its_own_network_and_mac_if_the_network_checks_leases() {
        let ports = [
            port("berth-shared/lan", 2, None, &[]),
            port("berth-shared/lan", 3, None, &[]),
            port("ns/other", 4, Some("10.77.0.4"), &[]),
        ];
        let leases = [
            lease(BRIDGE, 2, "192.0.2.77"),
            lease("bth-99999999", 3, "192.0.2.78"),
            lease(BRIDGE, 4, "192.0.2.79"),
        ];
        assert_eq!(addresses(&world("Lease"), &leases, &ports), ["192.0.2.77", "", "10.77.0.4"]);
        assert_eq!(addresses(&world("None"), &leases, &ports), ["", "", "10.77.0.4"]);
    }

    #[test]
    fn a_filtered_port_has_no_address_that_another_guest_of_the_host_has_too() {
        let ports = [
            port("berth-shared/lan", 2, None, &["ns/web"]),
            port("berth-shared/lan", 3, None, &["ns/web"]),
            port("berth-shared/lan", 4, None, &[]),
            port("ns/other", 5, Some("10.77.0.5"), &["ns/db"]),
        ];
        let leases = |second: &str| {
            [lease(BRIDGE, 2, "10.77.0.5"), lease(BRIDGE, 3, second), lease(BRIDGE, 4, "10.77.0.5")]
        };
        let found = addresses(&world("Lease"), &leases("192.0.2.78"), &ports);
        assert_eq!(found, ["", "192.0.2.78", "10.77.0.5", "10.77.0.5"]);
    }

    #[test]
    fn macs_are_in_lower_case_and_in_order() {
        let interface = |mac: &str| InterfaceStatus { mac_address: mac.into(), ..InterfaceStatus::default() };
        let all =
            [interface("52:54:00:00:00:0B"), interface("52:54:00:00:00:0a"), interface("52:54:00:00:00:0b")];
        assert_eq!(macs(all.iter()), ["52:54:00:00:00:0a", "52:54:00:00:00:0b"]);
    }
}
