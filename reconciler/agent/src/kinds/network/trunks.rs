//! Trunks of bridged networks → the VLANs of the taps on them. Pure.

use berth_host::{HostLinks, PortTrunk};

use super::filters::{self, GroupsOf};
use crate::index::Tables;
use crate::networking::{GuestPort, find, per_port, without_trunk};

/// Returns the trunks of these ports. An interface with a security group has none: the filter does not see what is in a tagged frame.
/// Neither has one on a bridge that cannot have it.
pub(super) fn trunks(
    tables: &Tables,
    groups_of: &GroupsOf,
    ports: &[GuestPort],
    links: &HostLinks,
) -> Vec<PortTrunk> {
    let trunk = |guest: &GuestPort| {
        let network = find(tables, &guest.network)?;
        let bridge = network.host_bridge()?;
        let vlans = bridge.trunk();
        let is_filtered = !filters::groups(groups_of, guest).is_empty();
        (!vlans.is_empty() && !is_filtered && without_trunk(bridge, links).is_none())
            .then(|| PortTrunk { tap: guest.port.tap.clone(), vlans })
    };
    per_port(ports, trunk)
}

#[cfg(test)]
mod tests {
    use berth_host::Port;
    use kube::runtime::watcher::Event;
    use serde_json::{Value, json};

    use super::*;
    use crate::index::Index;

    fn world(bridge: &Value) -> Index {
        let index = Index::default();
        let network = json!({
            "metadata": {"name": "lan", "namespace": "berth-shared", "resourceVersion": "1"},
            "spec": {"type": "Bridge", "bridge": bridge, "ipv4": {"allocation": "External"}},
            "status": {"observedGeneration": 1, "vni": 77},
        });
        index.apply::<berth_api::Network>(Event::Apply(serde_json::from_value(network).expect("a Network")));
        index
    }

    fn port(network: &str, groups: &[&str]) -> GuestPort {
        let port =
            Port { tap: "btt01234567n0".into(), mac: "52:54:00:00:00:01".into(), address: None, ipv6: None };
        let groups = groups.iter().map(|name| (*name).to_owned()).collect();
        GuestPort { network: network.into(), port, groups }
    }

    #[test]
    fn an_interface_has_the_vlans_of_its_network_unless_a_security_group_filters_it() {
        let trunk = json!({"name": "vmbr0", "trunkVLANs": ["20", "100-199", "10"]});
        let of = |bridge: &Value, port: GuestPort| {
            trunks(&world(bridge).read(), &GroupsOf::new(), &[port], &HostLinks::default())
                .into_iter()
                .next()
                .map(|trunk| trunk.vlans)
        };
        let vlans = vec![(10, 10), (20, 20), (100, 199)];
        assert_eq!(of(&trunk, port("berth-shared/lan", &[])), Some(vlans));
        assert_eq!(of(&trunk, port("berth-shared/lan", &["ns/web"])), None, "a filtered one");
        assert_eq!(of(&trunk, port("berth-shared/gone", &[])), None, "a network that is not known");
        assert_eq!(of(&json!({"name": "vmbr0"}), port("berth-shared/lan", &[])), None, "no trunk");
    }
}
