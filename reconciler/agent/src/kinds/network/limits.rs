//! Limits of interfaces → ceilings for the traffic of their taps. Pure.

use std::collections::BTreeMap;

use berth_api::{Quantity, vm::InterfaceStatus};
use berth_host::{PortLimits, TrafficLimit};

use crate::networking::{GuestPort, per_port};

/// The least burst by default, in bytes: four of the largest packets that a virtio card hands over at once.
const LEAST_BURST: u64 = 256 << 10;
/// The largest burst, in bytes, as for declared ones: the kernel has 32 bits for it.
const MOST_BURST: u64 = 1 << 30;

/// Returns the limits of these ports. `interfaces`: those in the statuses of the guests here, which count as they are now.
pub(super) fn limits<'a>(
    interfaces: impl Iterator<Item = &'a InterfaceStatus>,
    ports: &[GuestPort],
) -> Vec<PortLimits> {
    let by_mac: BTreeMap<(&str, String), &InterfaceStatus> = interfaces
        .filter(|interface| interface.limits.is_some())
        .map(|i| ((i.network.as_str(), i.mac_address.to_ascii_lowercase()), i))
        .collect();
    let of_port = |guest: &GuestPort| {
        let limits = by_mac.get(&(guest.network.as_str(), guest.port.mac.clone()))?.limits.as_ref()?;
        Some(PortLimits {
            tap: guest.port.tap.clone(),
            ingress: limit(&limits.ingress_bandwidth, &limits.ingress_burst, limits.ingress_packets),
            egress: limit(&limits.egress_bandwidth, &limits.egress_burst, limits.egress_packets),
        })
    };
    per_port(ports, of_port)
}

/// Bits a second and bytes of a burst, as declared, → bytes.
fn limit(bandwidth: &Option<Quantity>, burst: &Option<Quantity>, packets: Option<i64>) -> TrafficLimit {
    let amount = |quantity: &Option<Quantity>| quantity.as_ref().and_then(|quantity| quantity.bytes().ok());
    let bandwidth = amount(bandwidth).map(|bits| {
        let rate = bits.div_ceil(8);
        (rate, amount(burst).unwrap_or_else(|| (rate / 10).clamp(LEAST_BURST, MOST_BURST)))
    });
    TrafficLimit { bandwidth, packets: packets.and_then(|packets| u64::try_from(packets).ok()) }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use berth_api::vm::InterfaceLimits;
    use berth_host::Port;

    use super::*;

    fn port(last: u8) -> GuestPort {
        GuestPort {
            network: "ns/default".into(),
            port: Port {
                tap: format!("btt{last}"),
                mac: format!("52:54:00:00:00:{last:02x}"),
                address: Some(Ipv4Addr::new(10, 77, 0, last)),
                ipv6: None,
            },
            groups: Vec::new(),
        }
    }

    #[test]
    fn bits_a_second_become_bytes_with_a_burst_of_a_tenth_of_a_second() {
        let quantity = |text: &str| Some(Quantity(text.to_owned()));
        let interface = |last: u8, limits: Option<InterfaceLimits>| InterfaceStatus {
            network: "ns/default".into(),
            mac_address: format!("52:54:00:00:00:{last:02X}"),
            limits: limits.map(Box::new),
            ..InterfaceStatus::default()
        };
        let declared = InterfaceLimits {
            ingress_bandwidth: quantity("1G"),
            egress_bandwidth: quantity("1M"),
            egress_packets: Some(500),
            ..InterfaceLimits::default()
        };
        let own_burst = InterfaceLimits {
            egress_bandwidth: quantity("8M"),
            egress_burst: quantity("1Mi"),
            ..InterfaceLimits::default()
        };
        let interfaces = [
            interface(2, Some(declared)),
            interface(3, None),
            interface(4, Some(own_burst)),
            interface(5, None),
        ];
        let found = limits(interfaces.iter(), &[port(4), port(2), port(3)]);
        let [first, second] = &found[..] else { panic!("{found:?}") };
        assert_eq!(first.tap, "btt2");
        assert_eq!(first.ingress, TrafficLimit { bandwidth: Some((125_000_000, 12_500_000)), packets: None });
        assert_eq!(
            first.egress,
            TrafficLimit { bandwidth: Some((125_000, LEAST_BURST)), packets: Some(500) }
        );
        assert_eq!(second.tap, "btt4");
        assert_eq!(second.ingress, TrafficLimit::default());
        assert_eq!(second.egress.bandwidth, Some((1_000_000, 1 << 20)));
    }

    #[test]
    fn the_burst_of_the_largest_bandwidth_fits_the_kernel() {
        let quantity = |text: &str| Some(Quantity(text.to_owned()));
        // A tenth of a second of these has more than 32 bits.
        for bandwidth in ["344G", "1T"] {
            let found = limit(&quantity(bandwidth), &None, None).bandwidth.map(|(_, burst)| burst);
            assert_eq!(found, Some(MOST_BURST), "{bandwidth}");
        }
        let declared = limit(&quantity("1T"), &quantity("1Mi"), None).bandwidth;
        assert_eq!(declared, Some((125_000_000_000, 1 << 20)));
    }
}
