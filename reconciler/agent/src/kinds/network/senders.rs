//! Networks whose addresses others than berth give out → the taps whose guests' addresses are read from what they send. Pure.

use berth_host::ObservedPort;

use crate::index::Tables;
use crate::networking::{GuestPort, find};

/// Returns the taps of these networks.
pub(super) fn observed(tables: &Tables, ports: &[GuestPort]) -> Vec<ObservedPort> {
    let observed = |guest: &GuestPort| {
        let network = find(tables, &guest.network)?;
        let (ipv4, ipv6) = (network.is_external(), network.is_ipv6_external());
        (ipv4 || ipv6).then(|| ObservedPort { tap: guest.port.tap.clone(), ipv4, ipv6 })
    };
    let mut all: Vec<ObservedPort> = ports.iter().filter_map(observed).collect();
    all.sort();
    all.dedup();
    all
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
            let found = observed(&index.read(), &[guest("ns/lan"), guest("ns/gone")]);
            found.iter().map(|port| (port.ipv4, port.ipv6)).collect::<Vec<_>>()
        };
        let external = json!({"allocation": "External"});
        assert_eq!(found(json!({"ipv4": external, "ipv6": external})), [(true, true)]);
        assert_eq!(found(json!({"cidr": "192.0.2.0/24", "ipv6": external})), [(false, true)]);
        assert_eq!(found(json!({"ipv4": external, "ipv6CIDR": "2001:db8:7::/64"})), [(true, false)]);
        assert_eq!(found(json!({"cidr": "192.0.2.0/24"})), []);
    }
}
