//! A public address, or a prefix, that the control plane has given to a VM.

use std::net::IpAddr;

use berth_api::IPPoolMode;
use ipnet::Ipv6Net;

/// A public address or prefix. See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GivenAddress {
    /// Of a prefix the first one.
    pub(crate) address: IpAddr,
    pub(crate) prefix: Option<Ipv6Net>,
    /// How it is announced.
    pub(crate) mode: IPPoolMode,
}
