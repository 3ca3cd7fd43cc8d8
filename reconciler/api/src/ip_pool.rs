//! IPPool: the public addresses that PublicIPs are allocated from.

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Conditions, ObjectUser};

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
#[x_kube(validation = Rule::new("(has(self.mode) ? self.mode : 'local') == (has(oldSelf.mode) ? oldSelf.mode : 'local')").message("mode cannot change: its addresses are in use that way; create another IPPool").field_path(".mode"))]
pub struct IPPoolSpec {
    /// IPv4 ranges to allocate addresses from, for example `203.0.113.16/28` or `203.0.113.7/32`. The first and the last
    /// address of a range are not allocated unless it is a /31 or /32, see `useAllAddresses`.
    #[schemars(length(min = 1, max = 32), inner(length(max = 18)))]
    #[x_kube(validation = Rule::new("self.all(c, isCIDR(c) && cidr(c).ip().family() == 4 && cidr(c).masked() == cidr(c) && cidr(c).prefixLength() >= 16)").message("each must be an IPv4 range such as 203.0.113.16/28, with no host bits set and a prefix of 16 to 32"))]
    pub cidrs: Vec<String>,
    /// `local` (default): the address is assigned to the VM's host; it is reachable there and wherever it is routed to that host.
    /// `l2`: the VM's host also announces it on the network segment of its public interface and answers for it there, so
    /// that the whole segment reaches it, whichever host the VM is on. The ranges must belong to that segment and be used by
    /// no other machine. The VM's outgoing connections have this address. Cannot change.
    #[serde(default)]
    pub mode: IPPoolMode,
    /// Whether the first and the last address of each range are allocated too: they are a segment's network and broadcast
    /// address only where the range is the whole segment. Default false.
    #[serde(default)]
    pub use_all_addresses: bool,
}

impl IPPoolSpec {
    /// The first and the last address of a range that are allocated.
    pub fn usable(&self, range: ipnet::Ipv4Net) -> (std::net::Ipv4Addr, std::net::Ipv4Addr) {
        let (first, last) = (range.network(), range.broadcast());
        if self.use_all_addresses || range.prefix_len() >= 31 {
            return (first, last);
        }
        ((u32::from(first) + 1).into(), (u32::from(last) - 1).into())
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
    /// `Ready`; `HostAddresses`, only while a range holds addresses of hosts, which are never allocated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::condition::schema")]
    pub conditions: Conditions,
    /// The number of allocated addresses.
    #[serde(default)]
    pub allocated: i64,
    /// The number of free addresses.
    #[serde(default)]
    pub free: i64,
    /// At most four of the PublicIPs that name it. A deleted IPPool stays until nothing uses it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub used_by: Vec<ObjectUser>,
}
