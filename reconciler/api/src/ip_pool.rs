//! IPPool: the public addresses there are.

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Conditions, ObjectUser};

/// The addresses PublicIPs are taken from.
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
    doc = "The addresses PublicIPs are taken from.",
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
    /// IPv4 ranges, every address of which may be given out, for example `203.0.113.16/28` or `203.0.113.7/32`.
    #[schemars(length(min = 1, max = 32), inner(length(max = 18)))]
    #[x_kube(validation = Rule::new("self.all(c, isCIDR(c) && cidr(c).ip().family() == 4 && cidr(c).masked() == cidr(c) && cidr(c).prefixLength() >= 16)").message("each must be an IPv4 range such as 203.0.113.16/28, with no host bits set and a prefix of 16 to 32"))]
    pub cidrs: Vec<String>,
    /// `local` (default): the address is put on the VM's host itself; reachable there and wherever it is routed to that host.
    /// `l2`: the VM's host also announces it on the network segment of its public interface and answers for it there, so
    /// that everybody on the segment reaches it, whichever host the VM is on; the ranges have to be of that segment and
    /// nobody else's, and the VM leaves to the outside under it. Cannot change.
    #[serde(default)]
    pub mode: IPPoolMode,
}

/// How a pool's addresses are made reachable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum IPPoolMode {
    #[default]
    Local,
    L2,
}

/// What is known of an IPPool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct IPPoolStatus {
    /// The generation these conditions were computed from; -1 before anybody looked.
    #[serde(default = "crate::condition::never_observed")]
    pub observed_generation: i64,
    /// `Ready`; `HostAddresses`, only while a range holds addresses of hosts, which are never given out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::condition::schema")]
    pub conditions: Conditions,
    /// How many addresses are given out.
    #[serde(default)]
    pub allocated: i64,
    /// How many addresses are free.
    #[serde(default)]
    pub free: i64,
    /// Some of the PublicIPs that name it: at most four, whoever else there is. While there is one, deleting the IPPool is refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub used_by: Vec<ObjectUser>,
}
