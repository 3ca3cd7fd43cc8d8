//! A network interface in the status of a VM.

use std::net::IpAddr;

use kube::KubeSchema;
use schemars::{Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::super::{ConfiguredRoute, DscpClass, InterfaceLimits};

/// An interface as it was decided at bind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct InterfaceStatus {
    /// The name in the spec.
    #[schemars(length(max = 63))]
    pub name: String,
    /// The Network, as `namespace/name`.
    #[schemars(length(max = 512))]
    pub network: String,
    /// The MAC address, lower case.
    #[schemars(length(max = 17))]
    pub mac_address: String,
    /// The private IPv4 address. Absent on a Network without IPv4, and on one whose addresses another DHCP server gives out: see
    /// `observedAddresses` and `guest.interfaces`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 15))]
    pub address: String,
    /// The IPv6 address. Absent on a Network without `ipv6CIDR`.
    #[serde(default, skip_serializing_if = "String::is_empty", rename = "ipv6Address")]
    #[schemars(length(max = 39))]
    pub ipv6_address: String,
    /// The SecurityGroups that filter it: those that the spec names, or else those of its Network. For an interface that is removed from
    /// the spec, those that it had.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), inner(length(max = 63)))]
    pub security_groups: Vec<String>,
    /// The further addresses that it may send from.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(max = 43)))]
    pub allowed_addresses: Vec<String>,
    /// The further MAC addresses that it may send from.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4), inner(length(max = 17)))]
    pub allowed_mac_addresses: Vec<String>,
    /// The ceilings for its traffic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "accepted_limits")]
    pub limits: Option<Box<InterfaceLimits>>,
    /// The class that its packets are marked with, by their DSCP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::vm::dscp::schema")]
    pub dscp: Option<DscpClass>,
    /// Its name servers, if they are not those of the Network.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4), inner(length(max = 39)))]
    pub dns: Vec<String>,
    /// Its domains for the lookup of names, if they are not those of the Network.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 6), inner(length(max = 100)))]
    pub search_domains: Vec<String>,
    /// Whether the guest gets a default route by it, if that is declared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_route: Option<bool>,
    /// The router of its IPv4 default route, if that is declared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 15))]
    pub gateway: Option<String>,
    /// The router of its IPv6 default route, if that is declared.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "ipv6Gateway")]
    #[schemars(length(max = 39))]
    pub ipv6_gateway: Option<String>,
    /// Its routes beside those of the Network.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub routes: Vec<ConfiguredRoute>,
    /// Its largest packet, in bytes, if that is declared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 576, max = 9216))]
    pub mtu: Option<i64>,
    /// Whether the DHCP server of its Network gives it its IPv4 address, if that is declared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dhcp4: Option<bool>,
    /// Whether the DHCPv6 server of its Network gives it its IPv6 address, if that is declared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dhcp6: Option<bool>,
    /// The name of the network card in the guest, if that is declared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 15))]
    pub guest_name: Option<String>,
    /// The public IPv4 address that leads here, once the host forwards it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 15))]
    pub public_address: Option<String>,
    /// The public IPv6 address that leads here, once the host forwards it.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "publicIPv6Address")]
    #[schemars(length(max = 39))]
    pub public_ipv6_address: Option<String>,
    /// The public IPv6 prefix that is routed here, once the host does.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "publicIPv6Prefix")]
    #[schemars(length(max = 43))]
    pub public_ipv6_prefix: Option<String>,
}

impl InterfaceStatus {
    /// The address at which its host reaches the guest: the private IPv4 address, or without one that of IPv6.
    pub fn reached_at(&self) -> Option<IpAddr> {
        [&self.address, &self.ipv6_address].into_iter().find_map(|text| text.parse().ok())
    }
}

/// The limits of a spec, which were checked there: a list of hosts' reports with the same rules would be too costly to validate.
fn accepted_limits(_: &mut SchemaGenerator) -> Schema {
    let amount = |text: &str| json!({"type": "string", "maxLength": 32, "description": text});
    let count = |text: &str| json!({"type": "integer", "format": "int64", "minimum": 0, "maximum": 100_000_000, "description": text});
    json_schema!({
        "type": "object",
        "description": "The ceilings for its traffic.",
        "properties": {
            "ingressBandwidth": amount("Bits a second that the guest receives."),
            "egressBandwidth": amount("Bits a second that the guest sends."),
            "ingressBurst": amount("Bytes that the guest receives at any rate after a pause."),
            "egressBurst": amount("Bytes that the guest sends at any rate after a pause."),
            "ingressPackets": count("Packets a second that the guest receives."),
            "egressPackets": count("Packets a second that the guest sends."),
        },
    })
}
