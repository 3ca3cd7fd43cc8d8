//! Network: a private network of VMs.

use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use crate::Conditions;

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
    /// The largest packet, in bytes; guests are told by DHCP. Default 1500.
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
    /// `Ready`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::condition::schema")]
    pub conditions: Conditions,
}
