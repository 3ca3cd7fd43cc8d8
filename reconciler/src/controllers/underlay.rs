//! What carries networks between hosts: each host's address and how large a packet its interface takes. Kept up to
//! date host by host, so that no network has to look at all of them.

use std::collections::{BTreeMap, HashMap};
use std::net::Ipv4Addr;

use berth_api::Host;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Underlay {
    hosts: HashMap<String, Place>,
    by_address: BTreeMap<Ipv4Addr, String>,
    /// How many hosts have interfaces of this MTU.
    mtus: BTreeMap<i64, usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    address: Ipv4Addr,
    mtu: i64,
}

/// What a change of a host concerns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Changed {
    /// Where the host is reached.
    pub(super) address: bool,
    /// What fits through the tunnels between hosts.
    pub(super) fits: bool,
}

impl Underlay {
    /// Notes a host as it is now (`None`: gone).
    pub(super) fn set(&mut self, name: &str, host: Option<&Host>) -> Changed {
        let fitted = self.fits();
        let new = host.and_then(place);
        let old = match new {
            Some(new) => self.hosts.insert(name.to_owned(), new),
            None => self.hosts.remove(name),
        };
        if let Some(old) = old {
            if self.by_address.get(&old.address).is_some_and(|of| of == name) {
                self.by_address.remove(&old.address);
            }
            if let Some(count) = self.mtus.get_mut(&old.mtu) {
                *count -= 1;
                if *count == 0 {
                    self.mtus.remove(&old.mtu);
                }
            }
        }
        if let Some(new) = new {
            self.by_address.insert(new.address, name.to_owned());
            *self.mtus.entry(new.mtu).or_default() += 1;
        }
        let address = old.map(|p| p.address) != new.map(|p| p.address);
        Changed { address, fits: self.fits() != fitted }
    }

    /// Where the other hosts reach this one.
    pub(super) fn address(&self, host: &str) -> Option<Ipv4Addr> {
        self.hosts.get(host).map(|place| place.address)
    }

    /// The host that has this address.
    pub(super) fn host_with(&self, address: Ipv4Addr) -> Option<&str> {
        self.by_address.get(&address).map(String::as_str)
    }

    /// Every address of a host, in order.
    pub(super) fn addresses(&self) -> impl Iterator<Item = (Ipv4Addr, &str)> {
        self.by_address.iter().map(|(address, host)| (*address, host.as_str()))
    }

    /// The largest packet of a network that fits through the tunnel between any two hosts. None while there are no
    /// two: then there is no tunnel to fit through.
    pub(super) fn fits(&self) -> Option<i64> {
        if self.hosts.len() < 2 {
            return None;
        }
        self.mtus.first_key_value().map(|(least, _)| least - TUNNEL_BYTES)
    }
}

/// What a tunnel adds to each packet: Ethernet 14, VXLAN 8, UDP 8, IPv4 20.
const TUNNEL_BYTES: i64 = 50;

fn place(host: &Host) -> Option<Place> {
    let status = host.status.as_ref()?;
    Some(Place { address: status.address.as_ref()?.parse().ok()?, mtu: status.mtu? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_api::{HostSpec, HostStatus};

    fn host(address: &str, mtu: i64) -> Host {
        let mut host = Host::new("h", HostSpec::default());
        host.status =
            Some(HostStatus { address: Some(address.to_owned()), mtu: Some(mtu), ..HostStatus::default() });
        host
    }

    #[test]
    fn the_smallest_interface_decides_and_one_host_alone_decides_nothing() {
        let mut underlay = Underlay::default();
        let only_address = Changed { address: true, fits: false };
        assert_eq!(underlay.set("a", Some(&host("192.0.2.1", 1500))), only_address);
        assert_eq!(underlay.fits(), None);
        assert_eq!(underlay.set("b", Some(&host("192.0.2.2", 9000))), Changed { address: true, fits: true });
        assert_eq!(underlay.fits(), Some(1450));
        assert_eq!(underlay.set("c", Some(&host("192.0.2.3", 1500))), only_address);
        assert_eq!(underlay.set("a", Some(&host("192.0.2.1", 9000))), Changed::default());
        assert_eq!(underlay.set("c", None), Changed { address: true, fits: true });
        assert_eq!((underlay.fits(), underlay.address("c")), (Some(8950), None));
    }

    #[test]
    fn a_host_that_takes_over_an_address_is_the_one_that_has_it() {
        let mut underlay = Underlay::default();
        underlay.set("a", Some(&host("192.0.2.1", 1500)));
        underlay.set("b", Some(&host("192.0.2.1", 1500)));
        underlay.set("a", None);
        assert_eq!(underlay.host_with(Ipv4Addr::new(192, 0, 2, 1)), Some("b"));
    }
}
