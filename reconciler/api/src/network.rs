//! Network: a private network of VMs.

use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use crate::{Conditions, ObjectUser};

/// A private IPv4 network. Its VMs reach each other and, by NAT, the outside.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "berth.dev",
    version = "v1alpha1",
    kind = "Network",
    plural = "networks",
    singular = "network",
    namespaced,
    status = "NetworkStatus",
    derive = "PartialEq",
    category = "berth",
    doc = "A private network of VMs.",
    printcolumn(name = "CIDR", type_ = "string", json_path = ".spec.cidr"),
    printcolumn(name = "MTU", type_ = "integer", json_path = ".status.mtu"),
    printcolumn(name = "VNI", type_ = "integer", priority = 1, json_path = ".status.vni"),
    printcolumn(name = "Ready", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')").message("metadata.name must be a DNS label: lower-case letters, digits and '-', at most 63 characters")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.cidr == oldSelf.cidr").message("cidr cannot change: addresses are given out; create another Network").field_path(".cidr"))]
pub struct NetworkSpec {
    /// The IPv4 range, for example `10.77.0.0/16`. The first address is the gateway. Cannot change.
    #[schemars(length(max = 18))]
    #[x_kube(validation = Rule::new("isCIDR(self) && cidr(self).ip().family() == 4 && cidr(self).masked() == cidr(self) && cidr(self).prefixLength() >= 8 && cidr(self).prefixLength() <= 29").message("must be an IPv4 range such as 10.77.0.0/16, with no host bits set and a prefix of 8 to 29"))]
    pub cidr: String,
    /// Addresses of the name servers guests are told. Left out: the gateway, which asks the host's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4), inner(length(max = 15), regex(pattern = r"^[0-9]{1,3}(\.[0-9]{1,3}){3}$")))]
    pub dns: Vec<String>,
    /// The largest packet, in bytes; guests are told by DHCP. Default 1500, or with several hosts what fits through the
    /// tunnels between them: 50 less than their interfaces carry. One that does not fit is lowered, and said so in the
    /// condition `MTUFits`. A change reaches guests at their next start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 576, max = 9216))]
    pub mtu: Option<i64>,
}

/// What is known of a Network.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct NetworkStatus {
    /// The generation these conditions were computed from; -1 before anybody looked.
    #[serde(default = "crate::condition::never_observed")]
    pub observed_generation: i64,
    /// `Ready`; `MTUFits`, only while it is `False`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::condition::schema")]
    pub conditions: Conditions,
    /// What tells its packets from other networks' between hosts (VXLAN network identifier). Given once, used by no
    /// other Network. A Network that is refused has none, and no VM is bound that needs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16_777_215))]
    pub vni: Option<i64>,
    /// The largest packet, in bytes, that guests are told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<i64>,
    /// The hosts it is on, by name: those with a VM of it that have told their address.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4096))]
    pub hosts: Vec<NetworkHost>,
    /// Some of the VMs that are on it or are to be: at most four, whoever else there is. While there is one, deleting the Network is refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub used_by: Vec<ObjectUser>,
}

/// A host that has VMs of a Network.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct NetworkHost {
    /// The Host's name.
    pub name: String,
    /// The address the other hosts send the network's packets to.
    pub address: String,
}
