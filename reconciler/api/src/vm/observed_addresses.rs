//! The addresses that a guest was seen to send from.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// The addresses that the guest sends from by one of its interfaces. Untrusted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ObservedAddresses {
    /// The name of the interface in the spec.
    #[schemars(length(max = 63))]
    pub name: String,
    /// The addresses, IPv4 first.
    #[schemars(length(max = 16), inner(length(max = 39)))]
    pub addresses: Vec<String>,
}
