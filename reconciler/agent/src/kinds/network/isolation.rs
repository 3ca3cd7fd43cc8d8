//! Isolated networks → the taps here whose guests do not reach each other. Pure.

use std::collections::BTreeMap;

use berth_host::Isolation;

use super::config::addresses;
use crate::index::Tables;
use crate::networking::{GuestPort, find};

/// Returns the isolated networks with taps here. `bridges`: by network. The spec counts as soon as it is changed.
pub(super) fn isolated(
    tables: &Tables,
    bridges: &BTreeMap<String, String>,
    ports: &[GuestPort],
) -> Vec<Isolation> {
    let mut taps: BTreeMap<&String, Vec<String>> = BTreeMap::new();
    for guest in ports {
        taps.entry(&guest.network).or_default().push(guest.port.tap.clone());
    }
    let isolation = |(name, mut taps): (&String, Vec<String>)| {
        let network = find(tables, name).filter(|network| network.is_isolated())?;
        taps.sort();
        taps.dedup();
        let status = network.status.as_ref();
        Some(Isolation {
            // A network that is refused has none here; its guests, which ran before, are isolated all the same.
            bridge: bridges.get(name).cloned().or_else(|| network.bridge_name()),
            taps,
            relays: status.map(|status| addresses(&status.relay_addresses)).unwrap_or_default(),
        })
    };
    let mut all: Vec<Isolation> = taps.into_iter().filter_map(isolation).collect();
    all.sort();
    all
}

#[cfg(test)]
mod tests {
    use berth_host::Port;
    use kube::runtime::watcher::Event;
    use serde_json::json;

    use super::*;
    use crate::index::Index;

    fn port(network: &str, tap: &str) -> GuestPort {
        let port = Port { tap: tap.into(), mac: "52:54:00:00:00:01".into(), address: None, ipv6: None };
        GuestPort { network: network.into(), port, groups: Vec::new() }
    }

    #[test]
    fn the_taps_of_isolated_networks_are_isolated_and_the_addresses_that_other_hosts_forward_from_are_known()
    {
        let index = Index::default();
        for (name, isolated) in [("web", true), ("db", false)] {
            let network = json!({
                "metadata": {"name": name, "namespace": "ns", "resourceVersion": "1"},
                "spec": {"cidr": "10.77.0.0/16", "isolated": isolated},
                "status": {"observedGeneration": 1, "vni": 77, "relayAddresses": ["10.77.255.254", "x", "fd00:60::ffff"]},
            });
            index.apply::<berth_api::Network>(Event::Apply(
                serde_json::from_value(network).expect("a Network"),
            ));
        }
        let bridges = BTreeMap::from([("ns/web".to_owned(), "bth-6a60db49".to_owned())]);
        let ports = [
            port("ns/web", "btt2n0"),
            port("ns/db", "btt3n0"),
            port("ns/web", "btt1n0"),
            port("ns/x", "btt4n0"),
        ];
        let found = isolated(&index.read(), &bridges, &ports);
        let [only] = &found[..] else { panic!("{found:?}") };
        assert_eq!(only.bridge.as_deref(), Some("bth-6a60db49"));
        assert_eq!(only.taps, ["btt1n0", "btt2n0"]);
        let relays: Vec<String> = only.relays.iter().map(ToString::to_string).collect();
        assert_eq!(relays, ["10.77.255.254", "fd00:60::ffff"]);
        let refused = isolated(&index.read(), &BTreeMap::new(), &ports);
        assert_eq!(refused[0].taps, only.taps, "also if the network is refused here");
    }
}
