//! Networks whose addresses others than berth give out, and those whose guests choose theirs → the taps whose guests' addresses are read
//! from what they send. Pure.

use std::collections::BTreeMap;

use berth_api::network::link_local_of_mac;
use berth_host::{ChosenAddresses, ObservedPort};

use super::exceptions::{ByMac, chosen_prefix};
use super::filters::GroupsOf;
use crate::index::Tables;
use crate::networking::{GuestPort, find, per_port};

/// Returns the taps of these networks. `bridges`: the bridge of each network here.
pub(super) fn observed(
    tables: &Tables,
    bridges: &BTreeMap<String, String>,
    groups_of: &GroupsOf,
    interfaces: &ByMac<'_>,
    ports: &[GuestPort],
) -> Vec<ObservedPort> {
    let observed = |guest: &GuestPort| {
        let network = find(tables, &guest.network)?;
        let (ipv4, ipv6) = (network.is_external(), network.is_ipv6_external());
        let prefix = chosen_prefix(Some(network.as_ref()), groups_of, interfaces, guest);
        let chosen = prefix.zip(bridges.get(&guest.network)).map(|(prefix, bridge)| ChosenAddresses {
            bridge: bridge.clone(),
            prefix,
            own: link_local_of_mac(&guest.port.mac).into_iter().chain(guest.port.ipv6).collect(),
        });
        let is_observed = ipv4 || ipv6 || chosen.is_some();
        is_observed.then(|| ObservedPort { tap: guest.port.tap.clone(), ipv4, ipv6, chosen })
    };
    per_port(ports, observed)
}

#[cfg(test)]
mod tests {
    use berth_host::Port;
    use kube::runtime::watcher::Event;
    use serde_json::{Value, json};

    use super::*;
    use crate::index::Index;

    #[test]
    fn the_families_that_others_give_out_are_observed_and_no_others() {
        let found = |more: Value| {
            let mut spec = json!({"type": "Bridge", "bridge": {"name": "vmbr0"}});
            spec.as_object_mut().expect("an object").extend(more.as_object().cloned().unwrap_or_default());
            let index = Index::default();
            let network =
                json!({"metadata": {"name": "lan", "namespace": "ns", "resourceVersion": "1"}, "spec": spec});
            index.apply::<berth_api::Network>(Event::Apply(
                serde_json::from_value(network).expect("a Network"),
            ));
            let port =
                Port { tap: "btt2".into(), mac: "52:54:00:00:00:02".into(), address: None, ipv6: None };
            let guest =
                |network: &str| GuestPort { network: network.into(), port: port.clone(), groups: Vec::new() };
            let ports = [guest("ns/lan"), guest("ns/gone")];
            let (bridges, groups_of) = (BTreeMap::new(), GroupsOf::new());
            let found = observed(&index.read(), &bridges, &groups_of, &ByMac::new(), &ports);
            found.iter().map(|port| (port.ipv4, port.ipv6)).collect::<Vec<_>>()
        };
        let external = json!({"allocation": "External"});
        assert_eq!(found(json!({"ipv4": external, "ipv6": external})), [(true, true)]);
        assert_eq!(found(json!({"cidr": "192.0.2.0/24", "ipv6": external})), [(false, true)]);
        assert_eq!(found(json!({"ipv4": external, "ipv6CIDR": "2001:db8:7::/64"})), [(true, false)]);
        assert_eq!(found(json!({"cidr": "192.0.2.0/24"})), []);
    }

    #[test]
    fn a_guest_that_chooses_has_the_addresses_of_its_mac_address_in_any_case() {
        let index = Index::default();
        let spec =
            json!({"ipv6CIDR": "fd00:60::/64", "ipv6Autoconfiguration": true, "ipv6PrivacyAddresses": true});
        let network =
            json!({"metadata": {"name": "app", "namespace": "ns", "resourceVersion": "1"}, "spec": spec});
        index.apply::<berth_api::Network>(Event::Apply(serde_json::from_value(network).expect("a Network")));
        let ipv6 = "fd00:60::5054:ff:fe00:2".parse().ok();
        let port = Port { tap: "btt2".into(), mac: "52:54:00:00:00:02".into(), address: None, ipv6 };
        let guest = GuestPort { network: "ns/app".into(), port, groups: Vec::new() };
        let bridges = BTreeMap::from([("ns/app".to_owned(), "bth-00004d".to_owned())]);
        let found = observed(&index.read(), &bridges, &GroupsOf::new(), &ByMac::new(), &[guest]);
        let [ObservedPort { ipv4: false, ipv6: false, chosen: Some(chosen), .. }] = &found[..] else {
            panic!("{found:?}")
        };
        let own: Vec<String> = chosen.own.iter().map(ToString::to_string).collect();
        assert_eq!(own, ["fe80::5054:ff:fe00:2", "fd00:60::5054:ff:fe00:2"]);
        assert_eq!(format!("{} {}", chosen.bridge, chosen.prefix), "bth-00004d fd00:60::/64");
    }
}
