//! Network: a private network of VMs.

use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

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
    printcolumn(name = "Reason", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].reason"#),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Message", type_ = "string", priority = 1, json_path = r#".status.conditions[?(@.type=="Ready")].message"#),
    validation = Rule::new("self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')").message("metadata.name must be a DNS label: lower-case letters, digits and '-', at most 63 characters")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.cidr == oldSelf.cidr").message("cidr cannot change: addresses are given out; create another Network").field_path(".cidr"))]
pub struct NetworkSpec {
    /// The IPv4 range, for example `10.77.0.0/16`. The first address is the gateway. Loopback, link-local, multicast and
    /// reserved ranges are refused; so is one that overlaps another Network's or one that a host uses, and outside of
    /// `berth-shared` one that is larger than /16 or not among those the administrator allows. Cannot change.
    #[schemars(length(max = 18))]
    #[x_kube(validation = Rule::new("!(self.matches('^(0|127|22[4-9]|23[0-9]|24[0-9]|25[0-5])[.]') || self.startsWith('169.254.') || (isCIDR(self) && cidr(self).containsIP('169.254.0.1')))").message("is a special range (this network, loopback, link-local, multicast or reserved): choose a private one such as 10.77.0.0/16"))]
    #[x_kube(validation = Rule::new("isCIDR(self) && cidr(self).ip().family() == 4 && cidr(self).masked() == cidr(self) && cidr(self).prefixLength() >= 8 && cidr(self).prefixLength() <= 29").message("must be an IPv4 range such as 10.77.0.0/16, with no host bits set and a prefix of 8 to 29"))]
    pub cidr: String,
    /// Addresses of the name servers that guests get by DHCP. Left out: the gateway, which asks the host's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4), inner(length(max = 15), regex(pattern = r"^[0-9]{1,3}(\.[0-9]{1,3}){3}$")))]
    pub dns: Vec<String>,
    /// The largest packet, in bytes; guests get it by DHCP. Default 1500, or with several hosts what fits through the
    /// tunnels between them: 50 less than their interfaces carry. One that does not fit is lowered, and the
    /// condition `MTUFits` is False. A change reaches guests at their next start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 576, max = 9216))]
    pub mtu: Option<i64>,
}

impl Network {
    /// The name of its bridge on each host, once it has an identifier.
    pub fn bridge_name(&self) -> Option<String> {
        let vni = self.status.as_ref()?.vni.filter(|vni| (1..1 << 24).contains(vni))?;
        Some(format!("bth-{vni:06x}"))
    }

    /// The MAC address of its gateway, the same on each host.
    pub fn gateway_mac(&self) -> Option<String> {
        Some(bridge_mac(&self.bridge_name()?).map(|byte| format!("{byte:02x}")).join(":"))
    }
}

/// The MAC address of a bridge of this name.
pub fn bridge_mac(name: &str) -> [u8; 6] {
    let hash = Sha256::digest(name.as_bytes());
    [0x52, 0x54, 0x00, hash[0], hash[1], hash[2]]
}

/// The observed state of a Network.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct NetworkStatus {
    /// The generation that these conditions describe; -1 before the first report.
    #[serde(default = "crate::condition::never_observed")]
    pub observed_generation: i64,
    /// `Ready`; `MTUFits`, only while it is `False`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::condition::schema")]
    pub conditions: Conditions,
    /// The VXLAN network identifier, which separates its packets between hosts from those of other networks. Given once, used by
    /// no other Network. A Network that is refused has none, and no VM is bound that needs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16_777_215))]
    pub vni: Option<i64>,
    /// The largest packet, in bytes, that guests get by DHCP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<i64>,
    /// The hosts it is on, by name: those with a VM of it that have reported their address.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4096))]
    pub hosts: Vec<NetworkHost>,
    /// At most four of the VMs that are on it or are to be. A deleted Network stays until nothing uses it.
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
