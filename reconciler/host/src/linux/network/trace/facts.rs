//! The state of the host that a trace reads beside the rules. Plain data.

use std::net::IpAddr;

use super::super::foreign::ForeignChain;

/// The links of the host and the rules of other programs.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    /// The ports of berth's bridges, and the bridges.
    pub(super) links: Vec<LinkFact>,
    /// Whether packets of this family between the ports of all bridges pass the rules for routed packets.
    pub(super) is_tracking_global: bool,
    /// Whether the host forwards IPv6 packets at all. For IPv4, its routes say so.
    pub(super) is_ipv6_forwarded: bool,
    /// The chains of other programs.
    pub(super) foreign: Vec<ForeignChain>,
}

/// A link by its name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LinkFact {
    pub(super) name: String,
    pub(super) is_up: bool,
    /// The bridge it is a port of.
    pub(super) bridge: Option<String>,
    /// Whether packets between the ports of this bridge pass the rules for routed packets.
    pub(super) is_tracked: bool,
}

impl Facts {
    pub(super) fn link(&self, name: &str) -> Option<&LinkFact> {
        self.links.iter().find(|link| link.name == name)
    }

    pub(super) fn bridge_of(&self, port: &str) -> Option<&str> {
        self.link(port)?.bridge.as_deref()
    }

    pub(super) fn is_tracked(&self, bridge: &str) -> bool {
        self.is_tracking_global || self.link(bridge).is_some_and(|link| link.is_tracked)
    }
}

/// The kernel's answer to where a packet goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RouteFound {
    /// To the host itself.
    Local,
    /// By an interface, from `source` if the host sends it itself.
    By { interface: String, gateway: Option<IpAddr>, source: Option<IpAddr> },
    /// Nowhere, for this reason.
    None { detail: String },
}
