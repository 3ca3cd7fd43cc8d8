//! Classes of interfaces → the DSCP that their taps set. Pure.

use std::collections::BTreeMap;

use berth_api::vm::InterfaceStatus;
use berth_host::PortMark;

use crate::networking::{GuestPort, per_port};

/// Returns the marks of these ports. `interfaces`: those in the statuses of the guests here, which count as they are now.
pub(super) fn marks<'a>(
    interfaces: impl Iterator<Item = &'a InterfaceStatus>,
    ports: &[GuestPort],
) -> Vec<PortMark> {
    let by_mac: BTreeMap<(&str, String), u8> = interfaces
        .filter_map(|i| Some(((i.network.as_str(), i.mac_address.to_ascii_lowercase()), i.dscp?.value())))
        .collect();
    let of_port = |guest: &GuestPort| {
        let dscp = *by_mac.get(&(guest.network.as_str(), guest.port.mac.clone()))?;
        Some(PortMark { tap: guest.port.tap.clone(), dscp })
    };
    per_port(ports, of_port)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use berth_api::vm::DscpClass;
    use berth_host::Port;

    use super::*;

    #[test]
    fn an_interface_with_a_class_is_marked_with_its_value_and_another_one_is_not() {
        let interface = |last: u8, dscp: Option<DscpClass>| InterfaceStatus {
            network: "ns/default".into(),
            mac_address: format!("52:54:00:00:00:{last:02X}"),
            dscp,
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
            interface(2, Some(DscpClass::Ef)),
            interface(3, None),
            interface(4, Some(DscpClass::Af41)),
            interface(6, Some(DscpClass::Cs1)),
        ];
        let found = marks(interfaces.iter(), &[port(4), port(2), port(3)]);
        let mark = |tap: &str, dscp| PortMark { tap: tap.into(), dscp };
        assert_eq!(found, [mark("btt2", 46), mark("btt4", 34)]);
    }
}
