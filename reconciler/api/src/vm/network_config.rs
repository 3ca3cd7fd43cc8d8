//! The network configuration that a guest gets.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// The configuration that a guest gets for one of its interfaces, by DHCP, router advertisements or cloud-init. Values that others than
/// berth give out are absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct InterfaceConfig {
    /// The name of the interface in the spec.
    #[schemars(length(max = 63))]
    pub name: String,
    /// Its private addresses with the lengths of their prefixes, IPv4 first.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::exact::list")]
    #[schemars(length(max = 2), inner(length(max = 43)))]
    pub addresses: Vec<String>,
    /// The routers of its default routes, IPv4 first.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::exact::list")]
    #[schemars(length(max = 2), inner(length(max = 39)))]
    pub gateways: Vec<String>,
    /// Its name servers, IPv4 first in an `Overlay`.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::exact::list")]
    #[schemars(length(max = 8), inner(length(max = 39)))]
    pub dns: Vec<String>,
    /// The domains in which the guest looks up names.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::exact::list")]
    #[schemars(length(max = 7), inner(length(max = 100)))]
    pub search_domains: Vec<String>,
    /// Its routes beside the default routes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub routes: Vec<ConfiguredRoute>,
    /// `false`: its IPv4 address is not leased by the DHCP server of its `Overlay`, and the guest has it by its cloud-init network
    /// configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dhcp4: Option<bool>,
    /// `false`: its IPv6 address is not leased by the DHCPv6 server of its `Overlay`, and the guest has it by its cloud-init network
    /// configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dhcp6: Option<bool>,
    /// `true`: the guest forms its IPv6 address of its `Overlay` itself, by router advertisements, and has no lease of it.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "ipv6Autoconfiguration")]
    pub ipv6_autoconfiguration: Option<bool>,
    /// The largest packet, in bytes. A change of it reaches a guest at its next start.
    pub mtu: i64,
}

impl InterfaceConfig {
    /// Whether the guest gets an address of this family without DHCP although its Network is an `Overlay`.
    #[must_use]
    pub fn is_static(&self, is_ipv6: bool) -> bool {
        let dhcp = if is_ipv6 { self.dhcp6 } else { self.dhcp4 };
        dhcp == Some(false)
    }

    /// Whether it has an address, and the guest gets each one without DHCP although its Network is an `Overlay`.
    #[must_use]
    pub fn is_wholly_without_dhcp(&self) -> bool {
        let addresses = self.addresses.iter();
        let is_formed = |is_ipv6: bool| is_ipv6 && self.ipv6_autoconfiguration == Some(true);
        !self.addresses.is_empty()
            && addresses
                .map(|address| address.contains(':'))
                .all(|is_ipv6| self.is_static(is_ipv6) || is_formed(is_ipv6))
    }
}

/// A route of a guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConfiguredRoute {
    /// The destination.
    #[schemars(length(max = 43))]
    pub to: String,
    /// The address of the router.
    #[schemars(length(max = 39))]
    pub via: String,
}
