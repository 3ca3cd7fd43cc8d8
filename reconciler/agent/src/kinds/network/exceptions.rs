//! Further addresses of interfaces → what their taps may send beside their own. Pure.

use std::collections::BTreeMap;

use berth_api::vm::InterfaceStatus;
use berth_host::PortException;
use ipnet::Ipv4Net;

use crate::index::Tables;
use crate::networking::{GuestPort, find};

/// The exception of a tap whose address another DHCP server gives out: it sends from any.
fn any_address(tap: &str) -> PortException {
    PortException { tap: tap.to_owned(), ranges: vec![Ipv4Net::default()], macs: Vec::new(), gateway: None }
}

/// Returns the exceptions of these ports. `interfaces`: those in the statuses of the guests here, which count as they are now.
pub(super) fn exceptions<'a>(
    tables: &Tables,
    interfaces: impl Iterator<Item = &'a InterfaceStatus>,
    ports: &[GuestPort],
) -> Vec<PortException> {
    let by_mac: BTreeMap<(&str, String), &InterfaceStatus> =
        interfaces.map(|i| ((i.network.as_str(), i.mac_address.to_ascii_lowercase()), i)).collect();
    let exception = |guest: &GuestPort| {
        if guest.port.address.is_none() {
            return Some(any_address(&guest.port.tap));
        }
        let interface = by_mac.get(&(guest.network.as_str(), guest.port.mac.clone()))?;
        let network = find(tables, &guest.network)?;
        let gateway = network.gateway();
        let gateway_mac = network.gateway_mac();
        let macs = interface.allowed_mac_addresses.iter().map(|mac| mac.to_ascii_lowercase());
        let exception = PortException {
            tap: guest.port.tap.clone(),
            ranges: interface.allowed_addresses.iter().filter_map(|range| range.parse().ok()).collect(),
            macs: macs.filter(|mac| Some(mac) != gateway_mac.as_ref()).collect(),
            gateway,
        };
        (!exception.ranges.is_empty() || !exception.macs.is_empty()).then_some(exception)
    };
    let mut all: Vec<PortException> = ports.iter().filter_map(exception).collect();
    all.sort();
    all.dedup();
    all
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use berth_host::Port;
    use kube::runtime::watcher::Event;
    use serde_json::json;

    use super::*;
    use crate::index::Index;

    #[test]
    fn an_interface_gets_what_its_status_has_and_never_the_gateways_mac() {
        let index = Index::default();
        let network = json!({
            "metadata": {"name": "default", "namespace": "ns", "resourceVersion": "1"},
            "spec": {"cidr": "10.77.0.0/16"}, "status": {"observedGeneration": 1, "vni": 77},
        });
        let network: berth_api::Network = serde_json::from_value(network).expect("a Network");
        let gateway = network.gateway_mac().expect("it has an identifier");
        index.apply(Event::Apply(network));
        let interface = |last: u8, ranges: &[&str], macs: &[&str]| InterfaceStatus {
            network: "ns/default".into(),
            mac_address: format!("52:54:00:00:00:{last:02X}"),
            address: format!("10.77.0.{last}"),
            allowed_addresses: ranges.iter().map(|r| (*r).to_owned()).collect(),
            allowed_mac_addresses: macs.iter().map(|m| (*m).to_owned()).collect(),
            ..InterfaceStatus::default()
        };
        let port = |last: u8| GuestPort {
            network: "ns/default".into(),
            port: Port {
                tap: format!("btt{last}"),
                mac: format!("52:54:00:00:00:{last:02x}"),
                address: Some(Ipv4Addr::new(10, 77, 0, last)),
                ipv6: None,
            },
            groups: Vec::new(),
        };
        let interfaces = [
            interface(2, &["10.77.0.100/32", "x"], &["00:00:5e:00:01:0a", &gateway]),
            interface(3, &[], &[]),
        ];
        let found = exceptions(&index.read(), interfaces.iter(), &[port(2), port(3), port(4)]);
        let [only] = &found[..] else { panic!("{found:?}") };
        assert_eq!((only.tap.as_str(), only.ranges.len(), only.macs.len()), ("btt2", 1, 1));
        assert_eq!(only.gateway, Some(Ipv4Addr::new(10, 77, 0, 1)));
    }
}
