//! The rules for image sources: allowed directories, allowed addresses, and the minimum rate.
//!
//! A tenant declares an Image and the host fetches it, so the host must not fetch anything that the tenant could not.
//! Every address that the host connects to passes [`Rules::allows`], regardless of its origin: a literal in the URL, a
//! DNS answer, a redirect.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ipnet::IpNet;
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::SockaddrStorage;
use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use super::super::network::BRIDGE_PREFIX;

/// The image sources that the host's administrator allows.
#[derive(Clone, Debug)]
pub struct ImageRules {
    /// Directories that may contain `file://` sources. Default: none.
    pub folders: Vec<PathBuf>,
    /// Exceptions for addresses that would otherwise be refused. The addresses of the host itself, its guests, other
    /// hosts and the control plane are allowed only by a range of a single address. Default: none.
    pub allow: Vec<IpNet>,
    /// The control plane's addresses.
    pub control_plane: Vec<IpAddr>,
    /// The minimum rate of a source over each `rate_window`, in bytes per second; a slower download is retried later.
    /// Default: 64 KiB.
    pub least_rate: u64,
    /// Default: one minute.
    pub rate_window: Duration,
}

impl Default for ImageRules {
    fn default() -> Self {
        Self {
            folders: Vec::new(),
            allow: Vec::new(),
            control_plane: Vec::new(),
            least_rate: 64 << 10,
            rate_window: Duration::from_secs(60),
        }
    }
}

/// The administrator's rules, with the known addresses of other hosts and of networks.
#[derive(Debug)]
pub(super) struct Rules {
    pub(super) given: ImageRules,
    refused: Mutex<BTreeSet<IpNet>>,
}

impl Rules {
    pub(super) fn new(given: ImageRules) -> Self {
        Self { given, refused: Mutex::default() }
    }

    /// Replaces the addresses of other hosts and of this host's networks.
    pub(super) fn refuse(&self, ranges: BTreeSet<IpNet>) {
        *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = ranges;
    }

    /// Whether images may be fetched from an address.
    pub(super) fn allows(&self, address: IpAddr) -> bool {
        let address = embedded(address);
        let mut allowed = self.given.allow.iter().filter(|range| range.contains(&address)).peekable();
        if self.is_ours(address) {
            return allowed.any(|range| range.prefix_len() == range.max_prefix_len());
        }
        allowed.peek().is_some() || !is_special(address)
    }

    /// Whether an address belongs to the host itself, to one of its guests or to the control plane. Loopback addresses
    /// are excluded here: they are refused by `is_special`.
    fn is_ours(&self, address: IpAddr) -> bool {
        let is_refused = || {
            let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
            refused.iter().any(|range| range.contains(&address))
        };
        !address.is_loopback()
            && (self.given.control_plane.contains(&address)
                || is_refused()
                || own().any(|own| own.contains(&address)))
    }

    /// Whether a URL may be requested. For a host name, [`Guard`] decides once its addresses are known.
    pub(super) fn allows_url(&self, url: &Url) -> bool {
        let Some(host) = url.host_str() else { return false };
        // The URL parser has already normalised the address.
        let address = host.trim_start_matches('[').trim_end_matches(']').parse();
        address.map_or(true, |address| self.allows(address))
    }
}

/// The host's addresses, and all addresses of the networks on berth's bridges: a tenant chooses the range of a network,
/// and may choose one that looks public.
fn own() -> impl Iterator<Item = IpNet> {
    getifaddrs().into_iter().flatten().filter_map(|interface| {
        let address = ip_of(&interface.address?)?;
        let is_bridge = interface.interface_name.starts_with(BRIDGE_PREFIX);
        let mask = interface.netmask.as_ref().filter(|_| is_bridge).and_then(ip_of);
        let network = mask.and_then(|mask| IpNet::with_netmask(address, mask).ok());
        Some(network.unwrap_or_else(|| address.into()))
    })
}

fn ip_of(address: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()));
    v4.or_else(|| address.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip())))
}

/// Extracts the IPv4 address that an IPv6 address leads to: mapped, compatible, translated (NAT64) or tunnelled (6to4).
fn embedded(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = address else { return address };
    let part = |at: usize| {
        let o = v6.octets();
        IpAddr::V4(Ipv4Addr::new(o[at], o[at + 1], o[at + 2], o[at + 3]))
    };
    match v6.segments() {
        [0, 0, 0, 0, 0, 0xffff, ..] | [0x64, 0xff9b, 0, 0, 0, 0, ..] => part(12),
        [0, 0, 0, 0, 0, 0, ..] if v6 != Ipv6Addr::LOCALHOST && !v6.is_unspecified() => part(12),
        [0x2002, ..] => part(2),
        _ => address,
    }
}

/// Whether an address is outside the public network.
fn is_special(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            let [a, b, c, _] = v4.octets();
            a == 0
                || a >= 224
                || v4.is_loopback()
                || v4.is_private()
                || v4.is_link_local()
                || (a == 100 && b & 0xc0 == 64)
                || (a, b, c) == (192, 0, 0)
        }
        IpAddr::V6(v6) => {
            let first = v6.segments()[0];
            v6.is_loopback()
                || v6.is_unspecified()
                || v6.is_multicast()
                || first & 0xfe00 == 0xfc00
                || first & 0xffc0 == 0xfe80
                || first & 0xffc0 == 0xfec0
                || v6.segments()[..3] == [0x64, 0xff9b, 1]
        }
    }
}

/// The error source for an address that is not allowed.
#[derive(Debug, thiserror::Error)]
#[error("the address is not allowed")]
pub(super) struct NotAllowed;

/// Resolves names to allowed addresses only, so that the HTTP client connects to an address that was checked.
#[derive(Debug)]
pub(super) struct Guard(pub(super) std::sync::Arc<Rules>);

impl Resolve for Guard {
    fn resolve(&self, name: Name) -> Resolving {
        let rules = std::sync::Arc::clone(&self.0);
        Box::pin(async move {
            let found: Vec<_> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            let allowed: Vec<_> = found.iter().filter(|at| rules.allows(at.ip())).copied().collect();
            if allowed.is_empty() && !found.is_empty() {
                return Err(NotAllowed.into());
            }
            let addresses: Addrs = Box::new(allowed.into_iter());
            Ok(addresses)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::network::tests::{in_own_namespace, ip};
    use super::*;

    fn rules(allow: &[&str]) -> Rules {
        let allow = allow.iter().map(|range| range.parse().expect("a range")).collect();
        let control_plane = vec!["203.0.113.9".parse().expect("an address")];
        Rules::new(ImageRules { allow, control_plane, ..ImageRules::default() })
    }

    fn allows(rules: &Rules, address: &str) -> bool {
        rules.allows(address.parse().expect("an address"))
    }

    #[test]
    fn addresses_that_are_not_public_are_refused_in_every_spelling() {
        let rules = rules(&[]);
        for refused in [
            "127.0.0.1",
            "127.9.9.9",
            "0.0.0.0",
            "0.1.2.3",
            "10.1.2.3",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "100.64.0.1",
            "100.127.255.255",
            "169.254.169.254",
            "224.0.0.1",
            "239.1.1.1",
            "255.255.255.255",
            "192.0.0.8",
            "::",
            "::1",
            "fe80::1",
            "fec0::1",
            "fc00::1",
            "fd12::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::127.0.0.1",
            "64:ff9b::169.254.169.254",
            "64:ff9b:1::1",
            "2002:7f00:1::",
            "2002:0a00:0001::1",
        ] {
            assert!(!allows(&rules, refused), "{refused}");
        }
        for allowed in [
            "192.0.2.77",
            "198.51.100.77",
            "203.0.113.77",
            "1.1.1.1",
            "100.63.0.1",
            "172.32.0.1",
            "2001:db8::1",
            "::ffff:1.1.1.1",
        ] {
            assert!(allows(&rules, allowed), "{allowed}");
        }
    }

    #[test]
    fn an_administrator_allows_ranges_and_the_hosts_own_addresses_one_by_one() {
        let some = rules(&["10.0.0.0/8", "127.0.0.0/8", "203.0.113.0/24"]);
        assert!(allows(&some, "10.1.2.3") && allows(&some, "::ffff:10.1.2.3") && allows(&some, "127.0.0.1"));
        assert!(!allows(&some, "192.168.0.1") && !allows(&some, "::1"));
        assert!(!allows(&some, "203.0.113.9"), "the control plane's, in a range of many");
        assert!(allows(&rules(&["203.0.113.9/32"]), "203.0.113.9"));
        let ranges = ["203.0.113.20/32", "203.0.113.64/26"];
        some.refuse(ranges.into_iter().map(|range| range.parse().expect("a range")).collect());
        assert!(!allows(&some, "203.0.113.20") && allows(&some, "203.0.113.21"), "another host's");
        assert!(!allows(&some, "203.0.113.99") && allows(&some, "203.0.113.128"), "a network's");
    }

    #[test]
    fn guests_behind_a_bridge_of_this_host_are_no_source_of_images() {
        in_own_namespace(|| async {
            let links = [
                "link add bth-0a1b2c3d type bridge",
                "addr add 198.51.100.1/24 dev bth-0a1b2c3d",
                "link add lan0 type bridge",
                "addr add 203.0.113.1/24 dev lan0",
            ];
            for link in links {
                ip(link);
            }
            let none = rules(&[]);
            for refused in ["198.51.100.1", "198.51.100.77", "::ffff:198.51.100.77", "203.0.113.1"] {
                assert!(!allows(&none, refused), "{refused}");
            }
            assert!(allows(&none, "198.51.101.1") && allows(&none, "203.0.113.77"), "not the host's");
            assert!(!allows(&rules(&["198.51.100.0/24"]), "198.51.100.77"), "a range of many");
            assert!(allows(&rules(&["198.51.100.77/32"]), "198.51.100.77"), "by itself");
        });
    }

    #[test]
    fn addresses_in_urls_are_checked_however_they_are_written() {
        let rules = rules(&[]);
        let allows = |url: &str| rules.allows_url(&Url::parse(url).expect("a URL"));
        for refused in [
            "http://127.0.0.1/",
            "http://2130706433/",
            "http://0x7f.1/",
            "http://0177.0.0.1/",
            "http://127.1/",
            "http://[::ffff:7f00:1]/",
            "https://[::1]:7443/",
            "http://0/",
        ] {
            assert!(!allows(refused), "{refused}");
        }
        assert!(allows("http://192.0.2.77:8080/a") && allows("https://example.org/"));
    }

    #[tokio::test]
    async fn a_name_of_loopback_resolves_to_nothing() {
        let resolve =
            |rules: Rules| Guard(std::sync::Arc::new(rules)).resolve("localhost".parse().expect("a name"));
        let error = resolve(rules(&[])).await.err().expect("refused");
        assert!(error.downcast_ref::<NotAllowed>().is_some(), "{error}");
        let found: Vec<_> = resolve(rules(&["127.0.0.1/32"])).await.expect("allowed").collect();
        assert!(!found.is_empty() && found.iter().all(|at| at.ip().to_string() == "127.0.0.1"), "{found:?}");
    }
}
