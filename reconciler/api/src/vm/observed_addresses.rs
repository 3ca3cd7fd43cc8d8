//! The addresses that a guest was seen to send from.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// The addresses that the guest sends from by one of its interfaces, and the one that it has leased.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ObservedAddresses {
    /// The name of the interface in the spec.
    #[schemars(length(max = 63))]
    pub name: String,
    /// The addresses, IPv4 first.
    #[serde(deserialize_with = "crate::exact::list")]
    #[schemars(length(max = 16), inner(length(max = 39)))]
    pub addresses: Vec<String>,
    /// The IPv4 address that the network's DHCP server has leased to the interface, as its host has read in the server's answer. The
    /// guest cannot claim it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 15))]
    pub leased_address: Option<String>,
}
