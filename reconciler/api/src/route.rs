//! A route of guests, as a Network and an interface of a VM declare it.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::ResourceName;

/// A route of guests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.to.contains(':') == self.via.contains(':')").message("to and via must be of the same family, IPv4 or IPv6").field_path(".via"))]
pub struct Route {
    /// Name of the route, the key of the list, for example `office`.
    pub name: ResourceName,
    /// The destination, for example `192.168.0.0/16` or `fd00:9::/48`. `0.0.0.0/0` is the default route of IPv4, in place of the one by
    /// the gateway. That of IPv6 is by the gateway only.
    #[schemars(length(max = 43))]
    #[x_kube(validation = Rule::new("isCIDR(self) && cidr(self).masked() == cidr(self)").message("must be a range such as 192.168.0.0/16 or fd00:9::/48, with no host bits set"))]
    #[x_kube(validation = Rule::new("self != '::/0'").message("guests have their default route of IPv6 by ipv6.gateway of a Bridge, or by ipv6Egress of an Overlay: leave this route out"))]
    pub to: String,
    /// The address of the router, of the same family and within the Network; one of IPv6 can also be link-local, such as `fe80::9`. A VM
    /// with this address gets no such route itself.
    #[schemars(length(max = 39), regex(pattern = r"^[0-9a-f.:]+$"))]
    #[x_kube(validation = Rule::new("isIP(self) && ip.isCanonical(self)").message("must be an address, such as 10.77.0.9 or in its shortest form fd00:60::9"))]
    pub via: String,
}
