//! The underlay of the networks: each host's address and the largest packet its interface takes, and the ranges
//! that hosts use themselves. Updated host by host, so that no network has to visit all of them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddrV4};

use berth_api::{Host, host::MTU};
use ipnet::{Ipv4Net, Ipv6Net};

/// The underlay that the module describes.
#[derive(Debug, Default)]
pub(crate) struct Underlay {
    hosts: HashMap<String, Place>,
    /// The hosts that report an address: more than one only while one of them is mistaken.
    by_address: BTreeMap<Ipv4Addr, BTreeSet<String>>,
    /// The number of hosts with interfaces of this MTU.
    mtus: BTreeMap<i64, usize>,
    /// The ranges that each host reports as used.
    ranges: HashMap<String, Vec<Ipv4Net>>,
    /// The segments that each host reports, and by the network's and the broadcast address of each, the hosts that report it.
    segments: HashMap<String, Vec<Ipv4Net>>,
    segment_ends: BTreeMap<Ipv4Addr, BTreeSet<(String, Ipv4Net)>>,
    /// The hosts that report an IPv6 address, and the addresses of each.
    by_ipv6: BTreeMap<Ipv6Addr, BTreeSet<String>>,
    ipv6: HashMap<String, BTreeSet<Ipv6Addr>>,
    /// WireGuard on each host that can encrypt.
    keys: HashMap<String, HostKey>,
    /// The hosts that report a public key, by age: more than one only while one of them is mistaken, or takes that of another host.
    by_key: BTreeMap<String, BTreeSet<(i64, String)>>,
}

/// A host's public key for WireGuard, as it reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct HostKey {
    public_key: String,
    port: u16,
    /// When the Host was created, in seconds.
    since: i64,
}

/// Further ranges and IPv6 addresses of a host are ignored.
const MAX_RANGES: usize = 64;
/// Larger ranges of a host are ignored: one host must not block all ranges.
const SHORTEST_PREFIX: u8 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    address: Ipv4Addr,
    mtu: i64,
}

/// The aspects that a change of a host affects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Changed {
    /// The host's address.
    pub(crate) address: bool,
    /// The MTU of the tunnels between hosts.
    pub(crate) fits: bool,
    /// The ranges the host uses.
    pub(crate) ranges: bool,
    /// The segments that the host is on.
    pub(crate) segments: bool,
    /// The host's IPv6 addresses.
    pub(crate) ipv6: bool,
    /// The host's key for WireGuard.
    pub(crate) wireguard: bool,
}

impl Underlay {
    /// Records a host (`None`: gone).
    pub(crate) fn set(&mut self, name: &str, host: Option<&Host>) -> Changed {
        let fitted = self.fits();
        let new = host.and_then(place);
        let old = match new {
            Some(new) => self.hosts.insert(name.to_owned(), new),
            None => self.hosts.remove(name),
        };
        if let Some(old) = old {
            if let Some(hosts) = self.by_address.get_mut(&old.address) {
                hosts.remove(name);
                if hosts.is_empty() {
                    self.by_address.remove(&old.address);
                }
            }
            if let Some(count) = self.mtus.get_mut(&old.mtu) {
                *count -= 1;
                if *count == 0 {
                    self.mtus.remove(&old.mtu);
                }
            }
        }
        if let Some(new) = new {
            self.by_address.entry(new.address).or_default().insert(name.to_owned());
            *self.mtus.entry(new.mtu).or_default() += 1;
        }
        let address = old.map(|p| p.address) != new.map(|p| p.address);
        let ranges = host.map(ranges).unwrap_or_default();
        let before = match ranges.is_empty() {
            true => self.ranges.remove(name).unwrap_or_default(),
            false => self.ranges.insert(name.to_owned(), ranges.clone()).unwrap_or_default(),
        };
        let segments = self.set_segments(name, host);
        let ipv6 = self.set_ipv6(name, host);
        let wireguard = self.set_wireguard(name, host);
        Changed { address, fits: self.fits() != fitted, ranges: before != ranges, segments, ipv6, wireguard }
    }

    /// Records the segments of a host; returns whether they have changed.
    fn set_segments(&mut self, name: &str, host: Option<&Host>) -> bool {
        let new = host.map(segments).unwrap_or_default();
        let old = self.segments.remove(name).unwrap_or_default();
        let has_changed = new != old;
        for segment in old {
            for end in [segment.network(), segment.broadcast()] {
                if let Some(hosts) = self.segment_ends.get_mut(&end) {
                    hosts.remove(&(name.to_owned(), segment));
                    if hosts.is_empty() {
                        self.segment_ends.remove(&end);
                    }
                }
            }
        }
        for segment in &new {
            for end in [segment.network(), segment.broadcast()] {
                self.segment_ends.entry(end).or_default().insert((name.to_owned(), *segment));
            }
        }
        if !new.is_empty() {
            self.segments.insert(name.to_owned(), new);
        }
        has_changed
    }

    /// Records the key of a host; returns whether it has changed.
    fn set_wireguard(&mut self, name: &str, host: Option<&Host>) -> bool {
        let new = host.and_then(key_of);
        let old = match &new {
            Some(new) => self.keys.insert(name.to_owned(), new.clone()),
            None => self.keys.remove(name),
        };
        if old == new {
            return false;
        }
        if let Some(old) = old
            && let Some(hosts) = self.by_key.get_mut(&old.public_key)
        {
            hosts.remove(&(old.since, name.to_owned()));
            if hosts.is_empty() {
                self.by_key.remove(&old.public_key);
            }
        }
        if let Some(new) = new {
            self.by_key.entry(new.public_key).or_default().insert((new.since, name.to_owned()));
        }
        true
    }

    /// Records the IPv6 addresses of a host; returns whether they have changed.
    fn set_ipv6(&mut self, name: &str, host: Option<&Host>) -> bool {
        let new = host.map(ipv6_addresses).unwrap_or_default();
        let old = self.ipv6.remove(name).unwrap_or_default();
        for address in old.difference(&new) {
            if let Some(hosts) = self.by_ipv6.get_mut(address) {
                hosts.remove(name);
                if hosts.is_empty() {
                    self.by_ipv6.remove(address);
                }
            }
        }
        for address in new.difference(&old) {
            self.by_ipv6.entry(*address).or_default().insert(name.to_owned());
        }
        let has_changed = new != old;
        if !new.is_empty() {
            self.ipv6.insert(name.to_owned(), new);
        }
        has_changed
    }

    /// Whether some host uses addresses of this range.
    pub(crate) fn uses(&self, range: Ipv4Net) -> bool {
        let meets = |of: &Ipv4Net| of.contains(&range) || range.contains(of);
        let is_at = self.by_address.range(range.network()..=range.broadcast()).next().is_some();
        is_at || self.ranges.values().flatten().any(meets)
    }

    /// Whether some host has an IPv6 address of this prefix.
    pub(crate) fn uses_prefix(&self, prefix: Ipv6Net) -> bool {
        self.by_ipv6.range(prefix.network()..=prefix.broadcast()).next().is_some()
    }

    /// Returns the address at which the other hosts reach this one.
    pub(crate) fn address(&self, host: &str) -> Option<Ipv4Addr> {
        self.hosts.get(host).map(|place| place.address)
    }

    /// Returns the public key of a host and where it receives encrypted packets. None: it cannot encrypt. A key that several hosts
    /// report is that of the oldest one.
    pub(crate) fn wireguard(&self, host: &str) -> Option<(&str, SocketAddrV4)> {
        let key = self.keys.get(host)?;
        let (_, first) = self.by_key.get(&key.public_key)?.first()?;
        if first != host {
            return None;
        }
        Some((key.public_key.as_str(), SocketAddrV4::new(self.address(host)?, key.port)))
    }

    /// Returns the host that has this address.
    pub(crate) fn host_with(&self, address: Ipv4Addr) -> Option<&str> {
        self.by_address.get(&address).and_then(BTreeSet::first).map(String::as_str)
    }

    /// Returns the host that has this address of either family.
    pub(crate) fn host_at(&self, address: IpAddr) -> Option<&str> {
        match address {
            IpAddr::V4(address) => self.host_with(address),
            IpAddr::V6(address) => self.by_ipv6.get(&address).and_then(BTreeSet::first).map(String::as_str),
        }
    }

    /// Returns a host and the segment that it is on, of which this is the network's or the broadcast address.
    pub(crate) fn segment_with_end(&self, address: Ipv4Addr) -> Option<(&str, Ipv4Net)> {
        let (host, segment) = self.segment_ends.get(&address)?.first()?;
        Some((host.as_str(), *segment))
    }

    /// Returns the network's and the broadcast addresses of the segments that hosts are on, in order.
    pub(crate) fn segment_ends(&self) -> impl Iterator<Item = Ipv4Addr> {
        self.segment_ends.keys().copied()
    }

    /// Returns the highest IPv6 address of a host within a prefix.
    pub(crate) fn last_ipv6_within(&self, prefix: Ipv6Net) -> Option<Ipv6Addr> {
        let within = self.by_ipv6.range(prefix.network()..=prefix.broadcast());
        within.rev().find(|(_, hosts)| !hosts.is_empty()).map(|(address, _)| *address)
    }

    /// Returns the IPv6 addresses of all hosts, in order.
    pub(crate) fn ipv6_addresses(&self) -> impl Iterator<Item = (Ipv6Addr, &str)> {
        self.by_ipv6.iter().filter_map(|(address, hosts)| Some((*address, hosts.first()?.as_str())))
    }

    /// Returns every host's address, in order.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = (Ipv4Addr, &str)> {
        self.by_address.iter().filter_map(|(address, hosts)| Some((*address, hosts.first()?.as_str())))
    }

    /// Returns the largest packet of a network that fits through the tunnel between any two hosts. None while there
    /// are no two: then there is no tunnel.
    pub(crate) fn fits(&self) -> Option<i64> {
        if self.hosts.len() < 2 {
            return None;
        }
        self.mtus.first_key_value().map(|(least, _)| least - TUNNEL_BYTES)
    }
}

/// Bytes that a tunnel adds to each packet: Ethernet 14, VXLAN 8, UDP 8, IPv4 20.
pub(crate) const TUNNEL_BYTES: i64 = 50;
/// Bytes that encryption adds to those of a tunnel: IPv6 instead of IPv4 20, WireGuard 32, UDP 8, IPv4 20.
pub(crate) const WIREGUARD_BYTES: i64 = 80;

fn ranges(host: &Host) -> Vec<Ipv4Net> {
    let listed = host.status.iter().flat_map(|s| &s.ranges).take(MAX_RANGES);
    let ranges = listed.filter_map(|range| range.parse::<Ipv4Net>().ok());
    ranges.filter(|range| range.prefix_len() >= SHORTEST_PREFIX).collect()
}

/// Returns the segments that a host reports, as far as they have a network's and a broadcast address.
fn segments(host: &Host) -> Vec<Ipv4Net> {
    let listed = host.status.iter().flat_map(|s| &s.segments).take(MAX_RANGES);
    let segments = listed.filter_map(|range| range.parse::<Ipv4Net>().ok());
    segments.filter(|range| (SHORTEST_PREFIX..=30).contains(&range.prefix_len())).collect()
}

/// Returns the IPv6 addresses that a host reports, as far as they are of a single machine.
fn ipv6_addresses(host: &Host) -> BTreeSet<Ipv6Addr> {
    let listed = host.status.iter().flat_map(|s| &s.ipv6_addresses).take(MAX_RANGES);
    let is_single = |a: &Ipv6Addr| !a.is_unspecified() && !a.is_loopback() && !a.is_multicast();
    listed.filter_map(|text| text.parse().ok()).filter(is_single).collect()
}

fn key_of(host: &Host) -> Option<HostKey> {
    let (public_key, port) = host.status.as_ref()?.wireguard.as_ref()?.usable()?;
    let since = host.metadata.creation_timestamp.as_ref().map_or(0, |at| at.0.as_second());
    Some(HostKey { public_key: public_key.to_owned(), port, since })
}

/// Returns a host's address and MTU if its report is valid: otherwise it gets no tunnels, and does not affect the
/// MTU.
fn place(host: &Host) -> Option<Place> {
    let status = host.status.as_ref()?;
    let address: Ipv4Addr = status.address.as_ref()?.parse().ok()?;
    let other = address.is_unspecified() || address.is_loopback() || address.is_link_local();
    let is_hosts = !(other || address.is_multicast() || address.is_broadcast());
    let mtu = status.mtu.filter(|mtu| MTU.contains(mtu))?;
    is_hosts.then_some(Place { address, mtu })
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_api::{HostSpec, HostStatus, HostWireguard};

    fn host(address: &str, mtu: i64) -> Host {
        let mut host = Host::new("h", HostSpec::default());
        host.status =
            Some(HostStatus { address: Some(address.to_owned()), mtu: Some(mtu), ..HostStatus::default() });
        host
    }

    #[test]
    fn the_smallest_interface_decides_and_one_host_alone_decides_nothing() {
        let mut underlay = Underlay::default();
        let only_address = Changed { address: true, ..Changed::default() };
        assert_eq!(underlay.set("a", Some(&host("192.0.2.1", 1500))), only_address);
        assert_eq!(underlay.fits(), None);
        assert_eq!(
            underlay.set("b", Some(&host("192.0.2.2", 9000))),
            Changed { address: true, fits: true, ..Changed::default() }
        );
        assert_eq!(underlay.fits(), Some(1450));
        assert_eq!(underlay.set("c", Some(&host("192.0.2.3", 1500))), only_address);
        assert_eq!(underlay.set("a", Some(&host("192.0.2.1", 9000))), Changed::default());
        assert_eq!(underlay.set("c", None), Changed { address: true, fits: true, ..Changed::default() });
        assert_eq!((underlay.fits(), underlay.address("c")), (Some(8950), None));
    }

    #[test]
    fn a_range_is_used_where_a_host_has_an_address_an_interface_or_a_route_in_it() {
        let mut underlay = Underlay::default();
        let mut one = host("192.0.2.1", 1500);
        let listed = ["10.9.0.0/16", "0.0.0.0/0", "128.0.0.0/1", "nonsense"].map(str::to_owned);
        one.status.as_mut().expect("set").ranges = listed.to_vec();
        assert!(underlay.set("a", Some(&one)).ranges);
        assert!(!underlay.set("a", Some(&one)).ranges, "the same again");
        let uses = |range: &str| underlay.uses(range.parse().expect("a range"));
        assert!(uses("192.0.2.0/24") && uses("10.9.4.0/24") && uses("10.0.0.0/8"));
        assert!(!uses("10.77.0.0/16") && !uses("203.0.113.0/24"), "no host has the whole world");
        assert!(underlay.set("a", None).ranges);
        assert!(!underlay.uses("10.9.4.0/24".parse().expect("a range")));
    }

    #[test]
    fn the_ends_of_a_segment_are_known_while_a_host_reports_it() {
        let mut underlay = Underlay::default();
        let mut one = host("192.0.2.1", 1500);
        let listed =
            ["192.0.2.0/24", "192.0.3.0/24", "198.51.100.4/31", "198.51.100.9/32", "0.0.0.0/0", "nonsense"];
        one.status.as_mut().expect("set").segments = listed.map(str::to_owned).to_vec();
        assert!(underlay.set("a", Some(&one)).segments);
        assert!(!underlay.set("a", Some(&one)).segments, "the same again");
        let ends: Vec<String> = underlay.segment_ends().map(|end| end.to_string()).collect();
        assert_eq!(ends, ["192.0.2.0", "192.0.2.255", "192.0.3.0", "192.0.3.255"]);
        assert!(underlay.set("b", Some(&one)).segments && underlay.set("a", None).segments);
        let found = underlay.segment_with_end(Ipv4Addr::new(192, 0, 2, 255));
        assert_eq!(found, Some(("b", "192.0.2.0/24".parse().expect("a range"))));
        assert!(underlay.set("b", None).segments);
        assert!(underlay.segment_ends.is_empty() && underlay.segments.is_empty());
    }

    #[test]
    fn the_ipv6_addresses_of_hosts_are_theirs_until_they_are_reported_no_more() {
        let mut underlay = Underlay::default();
        let mut one = host("192.0.2.1", 1500);
        let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
        one.status.as_mut().expect("set").ipv6_addresses =
            ["2001:db8::1", "::1", "ff02::1", "x"].map(str::to_owned).to_vec();
        assert!(underlay.set("a", Some(&one)).ipv6);
        assert!(!underlay.set("a", Some(&one)).ipv6, "the same again");
        assert_eq!(underlay.ipv6_addresses().count(), 1);
        let uses = |prefix: &str| underlay.uses_prefix(prefix.parse().expect("a prefix"));
        assert!(uses("2001:db8::/64") && !uses("2001:db8:0:1::/64"));
        assert_eq!((underlay.host_at(ip("2001:db8::1")), underlay.host_at(ip("::1"))), (Some("a"), None));
        assert_eq!(underlay.host_at(ip("192.0.2.1")), Some("a"));
        underlay.set("b", Some(&one));
        assert!(underlay.set("a", None).ipv6);
        assert_eq!(underlay.host_at(ip("2001:db8::1")), Some("b"));
        assert!(underlay.set("b", None).ipv6 && underlay.by_ipv6.is_empty() && underlay.ipv6.is_empty());
    }

    #[test]
    fn a_host_that_takes_over_an_address_is_the_one_that_has_it() {
        let mut underlay = Underlay::default();
        underlay.set("a", Some(&host("192.0.2.1", 1500)));
        underlay.set("b", Some(&host("192.0.2.1", 1500)));
        underlay.set("a", None);
        assert_eq!(underlay.host_with(Ipv4Addr::new(192, 0, 2, 1)), Some("b"));
    }

    #[test]
    fn a_key_is_that_of_the_oldest_host_that_reports_it() {
        const KEYS: [&str; 2] =
            ["xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=", "TrMvSoP4jYQlY6RIzBgbssQqY3vxI2Pi+y71lOWWXX0="];
        let with = |address: &str, key: &str, since: i64| {
            let mut host = host(address, 1500);
            let at = k8s_openapi::jiff::Timestamp::from_second(since).expect("a time");
            host.metadata.creation_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at));
            let key = Some(key.to_owned());
            let wireguard = HostWireguard { public_key: key, port: Some(51_847), ..HostWireguard::default() };
            host.status.as_mut().expect("set").wireguard = Some(wireguard);
            host
        };
        let mut underlay = Underlay::default();
        assert!(underlay.set("b", Some(&with("192.0.2.2", KEYS[0], 1))).wireguard);
        assert!(!underlay.set("b", Some(&with("192.0.2.2", KEYS[0], 1))).wireguard, "the same again");
        let endpoint = "192.0.2.2:51847".parse().expect("an endpoint");
        assert_eq!(underlay.wireguard("b"), Some((KEYS[0], endpoint)));
        underlay.set("a", Some(&with("192.0.2.1", KEYS[0], 2)));
        assert_eq!(underlay.wireguard("b"), Some((KEYS[0], endpoint)), "a younger host does not take it");
        assert_eq!(underlay.wireguard("a"), None);
        assert!(underlay.set("a", Some(&with("192.0.2.1", KEYS[1], 2))).wireguard);
        assert!(underlay.wireguard("a").is_some_and(|(key, _)| key == KEYS[1]));
        assert!(underlay.set("a", Some(&with("192.0.2.1", "nonsense", 2))).wireguard);
        assert_eq!(underlay.wireguard("a"), None);
        underlay.set("b", None);
        assert!(underlay.by_key.is_empty() && underlay.keys.is_empty());
    }

    #[test]
    fn what_cannot_be_so_counts_for_nothing_and_an_address_that_two_hosts_claim_stays_taken() {
        let mut underlay = Underlay::default();
        underlay.set("a", Some(&host("192.0.2.1", 1500)));
        underlay.set("b", Some(&host("192.0.2.2", 1500)));
        for mtu in [i64::MIN, -1, 0, 60, 1279, 9217, i64::MAX] {
            underlay.set("evil", Some(&host("192.0.2.3", mtu)));
            assert_eq!((underlay.fits(), underlay.address("evil")), (Some(1450), None), "mtu {mtu}");
        }
        for address in ["0.0.0.0", "127.0.0.1", "169.254.1.1", "224.0.0.1", "255.255.255.255", "x"] {
            underlay.set("evil", Some(&host(address, 1500)));
            assert_eq!(underlay.address("evil"), None, "{address}");
        }
        underlay.set("evil", Some(&host("192.0.2.1", 1500)));
        underlay.set("evil", None);
        assert_eq!(underlay.host_with(Ipv4Addr::new(192, 0, 2, 1)), Some("a"), "it is still a's");
    }
}
