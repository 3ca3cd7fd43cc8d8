//! IPv6 addresses that guests have taken first, where others than berth give them out → what their taps may send. Pure.

use std::collections::BTreeMap;

use berth_host::{BridgedNetwork, LearnedAddress, LearnedGuest, PortException};
use ipnet::{IpNet, Ipv6Net};

use super::filters::{self, GroupsOf};
use crate::index::Tables;
use crate::networking::{GuestPort, find};

/// Returns the bridge of a guest's network, if that checks learned addresses. `bridges`: by network.
fn bridge_of(tables: &Tables, bridges: &BTreeMap<String, String>, guest: &GuestPort) -> Option<String> {
    let network = find(tables, &guest.network).filter(|network| network.checks_learned())?;
    // A network that is refused has no bridge here; its guests, which ran before, keep their addresses.
    bridges.get(&guest.network).cloned().or_else(|| network.bridge_name())
}

/// Has the hosts of these networks learn the addresses of their guests.
pub(super) fn learn(
    tables: &Tables,
    bridges: &BTreeMap<String, String>,
    ports: &[GuestPort],
    parts: &mut [BridgedNetwork],
) {
    for guest in ports {
        let Some(bridge) = bridge_of(tables, bridges, guest) else { continue };
        let (tap, mac) = (guest.port.tap.clone(), guest.port.mac.clone());
        if let Some(part) = parts.iter_mut().find(|part| part.bridge == bridge) {
            part.learned.push(LearnedGuest { tap, mac });
        }
    }
    for part in parts {
        part.learned.sort();
        part.learned.dedup();
    }
}

/// Adds the learned addresses to what taps may send beside their own. A filtered interface sends from none of them, because its filters
/// do not know them.
pub(super) fn send_from(
    tables: &Tables,
    bridges: &BTreeMap<String, String>,
    groups_of: &GroupsOf,
    ports: &[GuestPort],
    learned: &[LearnedAddress],
    exceptions: &mut Vec<PortException>,
) {
    for guest in ports.iter().filter(|guest| filters::groups(groups_of, guest).is_empty()) {
        let Some(bridge) = bridge_of(tables, bridges, guest) else { continue };
        let is_its = |address: &&LearnedAddress| address.bridge == bridge && address.mac == guest.port.mac;
        let own: Vec<IpNet> =
            learned.iter().filter(is_its).map(|one| IpNet::V6(Ipv6Net::from(one.address))).collect();
        if own.is_empty() {
            continue;
        }
        match exceptions.iter_mut().find(|exception| exception.tap == guest.port.tap) {
            Some(exception) => exception.ranges.extend(own),
            None => exceptions.push(PortException {
                tap: guest.port.tap.clone(),
                ranges: own,
                macs: Vec::new(),
                gateways: Vec::new(),
            }),
        }
    }
    exceptions.sort();
}

#[cfg(test)]
mod tests {
    use berth_host::{BridgeChoice, Port};
    use kube::runtime::watcher::Event;
    use serde_json::json;

    use super::*;
    use crate::index::Index;

    const BRIDGE: &str = "bth-00004d";
    const NETWORK: &str = "berth-shared/lan";

    fn world(check: &str) -> Index {
        let index = Index::default();
        let ipv6 = json!({"allocation": "External", "sourceCheck": check});
        let network = json!({"metadata": {"name": "lan", "namespace": "berth-shared", "resourceVersion": "1"},
            "spec": {"type": "Bridge", "bridge": {"name": "vmbr0"}, "ipv6": ipv6}, "status": {"observedGeneration": 1, "vni": 77}});
        index.apply::<berth_api::Network>(Event::Apply(serde_json::from_value(network).expect("a Network")));
        index
    }

    fn mac(last: u8) -> String {
        format!("52:54:00:00:00:0{last}")
    }

    fn guest(last: u8) -> GuestPort {
        let port = Port { tap: format!("btt{last}"), mac: mac(last), address: None, ipv6: None };
        GuestPort { network: NETWORK.into(), port, groups: Vec::new() }
    }

    fn address(bridge: &str, last: u8, text: &str) -> LearnedAddress {
        LearnedAddress { bridge: bridge.into(), mac: mac(last), address: text.parse().expect("an address") }
    }

    fn bridges() -> BTreeMap<String, String> {
        BTreeMap::from([(NETWORK.to_owned(), BRIDGE.to_owned())])
    }

    #[test]
    fn a_tap_sends_from_the_addresses_that_its_guest_has_taken_if_the_network_checks_them() {
        let learned = [
            address(BRIDGE, 2, "2001:db8:7::2"),
            address(BRIDGE, 2, "2001:db8:7::77"),
            address("bth-99999999", 3, "2001:db8:7::3"),
        ];
        let exceptions = |check: &str, groups: &GroupsOf| {
            let index = world(check);
            let further = PortException {
                tap: "btt4".into(),
                ranges: vec!["192.0.2.99/32".parse().expect("a range")],
                macs: Vec::new(),
                gateways: Vec::new(),
            };
            let mut all = vec![further];
            let ports = [guest(2), guest(3), guest(4)];
            send_from(&index.read(), &bridges(), groups, &ports, &learned, &mut all);
            let ranges = |e: &PortException| e.ranges.iter().map(|r| format!(" {r}")).collect::<String>();
            let text = |e: &PortException| format!("{}{}", e.tap, ranges(e));
            all.iter().map(text).collect::<Vec<_>>()
        };
        let own = "btt2 2001:db8:7::2/128 2001:db8:7::77/128";
        assert_eq!(exceptions("Learned", &GroupsOf::new()), [own, "btt4 192.0.2.99/32"]);
        assert_eq!(exceptions("None", &GroupsOf::new()), ["btt4 192.0.2.99/32"]);
        let filtered = GroupsOf::from([((NETWORK.to_owned(), mac(2)), vec!["ns/web".to_owned()])]);
        assert_eq!(exceptions("Learned", &filtered), ["btt4 192.0.2.99/32"]);
    }

    #[test]
    fn a_host_learns_the_addresses_of_the_guests_of_networks_that_check_them() {
        let learns = |check: &str| {
            let part = BridgedNetwork {
                bridge: BRIDGE.into(),
                to: BridgeChoice::Named("vmbr0".into()),
                tracked: false,
                leased: Vec::new(),
                served: Vec::new(),
                served_ipv6: Vec::new(),
                learned: Vec::new(),
                names: None,
                relay: None,
            };
            let mut parts = [part];
            learn(&world(check).read(), &bridges(), &[guest(3), guest(2), guest(2)], &mut parts);
            parts[0].learned.iter().map(|guest| format!("{} {}", guest.tap, guest.mac)).collect::<Vec<_>>()
        };
        assert_eq!(learns("Learned"), ["btt2 52:54:00:00:00:02", "btt3 52:54:00:00:00:03"]);
        assert_eq!(learns("None"), [""; 0]);
    }
}
