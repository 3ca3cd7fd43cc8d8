//! IPPool: the public addresses that PublicIPs are allocated from, and the IPv6 prefixes that Networks take.

mod range;

use std::net::IpAddr;

use ipnet::Ipv6Net;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Conditions, ObjectUser};

pub use range::AddressRange;

/// The addresses that PublicIPs are allocated from.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "berth.dev",
    version = "v1alpha1",
    kind = "IPPool",
    plural = "ippools",
    singular = "ippool",
    status = "IPPoolStatus",
    derive = "PartialEq",
    category = "berth",
    doc = "The addresses that PublicIPs are allocated from.",
    printcolumn(name = "Mode", type_ = "string", json_path = ".spec.mode"),
    printcolumn(name = "CIDRs", type_ = "string", json_path = ".spec.cidrs"),
    printcolumn(name = "Allocated", type_ = "integer", json_path = ".status.allocated"),
    printcolumn(name = "Free", type_ = "integer", json_path = ".status.free"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].status"#
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("(has(self.cidrs) && self.cidrs.size() > 0) || (has(self.networkPrefixes) && self.networkPrefixes.size() > 0)").message("a pool has addresses: declare cidrs, networkPrefixes or both").field_path(".cidrs"),
    validation = Rule::new("!has(self.minPrefixLength) || (has(self.cidrs) && self.cidrs.size() > 0 && self.cidrs[0].contains(':'))").message("minPrefixLength limits the prefixes that PublicIPs take from IPv6 cidrs: declare IPv6 cidrs, or leave it out").field_path(".minPrefixLength"),
    validation = Rule::new("(has(self.mode) ? self.mode : 'local') == (has(oldSelf.mode) ? oldSelf.mode : 'local')").message("mode cannot change: its addresses are in use that way; create another IPPool").field_path(".mode")
)]
pub struct IPPoolSpec {
    /// Ranges to allocate addresses from, all of IPv4 or all of IPv6, for example `203.0.113.16/28`, `203.0.113.10-203.0.113.20` or
    /// `2001:db8:0:7::/112`. The first and the last address of an IPv4 CIDR and the first of an IPv6 CIDR are not allocated, unless
    /// there are no more than two, see `useAllAddresses`. Both addresses of a range `a-b` are allocated; they must be of one /16, or of
    /// one /64 of IPv6. The address of a /64 that ends with zeros is that of its routers, and never allocated. No address of the pool
    /// is allocated while one of its ranges lies over that of a Network or of an older IPPool.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 32), inner(length(max = 79)))]
    #[x_kube(validation = Rule::new("self.all(c, isCIDR(c) ? cidr(c).masked() == cidr(c) && cidr(c).prefixLength() >= (cidr(c).ip().family() == 4 ? 16 : 64) : c.split('-').size() == 2 && c.split('-').all(a, isIP(a) && ip(a).family() == (c.contains(':') ? 6 : 4)) && cidr(c.split('-')[0] + (c.contains(':') ? '/64' : '/16')).containsIP(c.split('-')[1]))").message("each must be a range such as 203.0.113.16/28, 203.0.113.10-203.0.113.20 or 2001:db8:0:7::/112: a CIDR with no host bits set and a prefix of 16 to 32, or 64 to 128 of IPv6, or two addresses of one /16, or of one /64 of IPv6"))]
    #[x_kube(validation = Rule::new("self.all(c, !c.contains(':') || (isCIDR(c) ? cidr(c).ip().isGlobalUnicast() : !isIP(c.split('-')[0]) || ip(c.split('-')[0]).isGlobalUnicast()))").message("link-local, multicast, loopback and unspecified addresses are no public ones: declare global or unique local addresses of IPv6"))]
    #[x_kube(validation = Rule::new("self.all(c, c.contains(':') == self[0].contains(':'))").message("the ranges of a pool are all of IPv4 or all of IPv6: create another IPPool for the other family"))]
    pub cidrs: Vec<String>,
    /// IPv6 ranges from which Networks with `ipv6.pool` take a /64 each, for example `2001:db8:100::/56`, with a prefix of 32 to 64.
    /// Routers outside lead them to the hosts, where a Network has `ipv6Egress` `Routed`. A Network keeps its prefix when the range is
    /// taken out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 32), inner(length(max = 43)))]
    #[x_kube(validation = Rule::new("self.all(c, isCIDR(c) && cidr(c).ip().family() == 6 && cidr(c).masked() == cidr(c) && cidr(c).prefixLength() >= 32 && cidr(c).prefixLength() <= 64 && cidr(c).ip().isGlobalUnicast())").message("each must be an IPv6 range such as 2001:db8:100::/56, of global or unique local addresses, with no host bits set and a prefix of 32 to 64"))]
    pub network_prefixes: Vec<String>,
    /// `local` (default): the address is assigned to the VM's host; it is reachable there and wherever it is routed to that host.
    /// `l2`: the VM's host also announces it on the network segment of its public interface and answers for it there, so
    /// that the whole segment reaches it, whichever host the VM is on. The ranges must belong to that segment and be used by
    /// no other machine. Its network and broadcast addresses, as the hosts' interfaces on it have them, are never allocated. The VM's
    /// outgoing connections have this address. Cannot change.
    #[serde(default)]
    pub mode: IPPoolMode,
    /// Whether the first and the last address of each CIDR are allocated too: they are a segment's network and broadcast address, and
    /// the first one of IPv6 that of its routers, only where the CIDR is the whole segment. With `mode` `l2`, those of the segments that
    /// hosts are on stay out. Default false.
    #[serde(default)]
    pub use_all_addresses: bool,
    /// The least `prefixLength` of a PublicIP, 64 to 128: with 80, none takes more than a /80 of `cidrs`, so that no single one takes the
    /// whole pool. 128: single addresses only. Default 64. It is for pools of IPv6. Applied live: prefixes that were given out stay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 64, max = 128))]
    pub min_prefix_length: Option<i64>,
}

impl IPPoolSpec {
    /// The declared ranges. Those that are none are left out: [`IPPoolSpec::invalid_range`] reports them.
    pub fn ranges(&self) -> impl Iterator<Item = AddressRange> {
        self.cidrs.iter().filter_map(|text| AddressRange::parse(text).ok())
    }

    /// The declared ranges of prefixes of Networks.
    pub fn prefixes(&self) -> impl Iterator<Item = Ipv6Net> {
        let parsed = self.network_prefixes.iter().filter_map(|text| text.parse::<Ipv6Net>().ok());
        parsed.filter(|range| (32..=64).contains(&range.prefix_len()))
    }

    /// Whether its addresses are of IPv6.
    #[must_use]
    pub fn is_ipv6(&self) -> bool {
        self.ranges().next().is_some_and(AddressRange::is_ipv6)
    }

    /// Returns why a declared range is none, for people.
    #[must_use]
    pub fn invalid_range(&self) -> Option<String> {
        self.cidrs.iter().find_map(|text| Some(format!("range {text} {}", AddressRange::parse(text).err()?)))
    }

    /// Whether the address is allocated to PublicIPs.
    #[must_use]
    pub fn is_usable(&self, address: IpAddr) -> bool {
        self.ranges().any(|range| range.is_usable(address, self.use_all_addresses))
    }
}

/// The way a pool's addresses become reachable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum IPPoolMode {
    #[default]
    Local,
    L2,
}

/// The observed state of an IPPool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct IPPoolStatus {
    /// The generation that these conditions describe; -1 before the first report.
    #[serde(default = "crate::condition::never_observed")]
    pub observed_generation: i64,
    /// `Ready`, `False` also while a range lies over that of a Network or of an older IPPool: none of its addresses is given out then;
    /// `HostAddresses`, only while a range holds addresses of hosts, which are never allocated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::condition::schema")]
    pub conditions: Conditions,
    /// The number of allocated addresses, those of prefixes included, at most 9223372036854775807.
    #[serde(default)]
    pub allocated: i64,
    /// The number of free addresses, at most 9223372036854775807.
    #[serde(default)]
    pub free: i64,
    /// At most four of the PublicIPs that name it. A deleted IPPool stays until nothing uses it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub used_by: Vec<ObjectUser>,
}
