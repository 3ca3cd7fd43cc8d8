//! The way of one packet through the rules of a host.
//!
//! It is sent to clients as JSON: names of bridges, taps and groups in it are the host's, which the agent replaces by those of objects.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// The place of the step that names the way by which a packet comes whose sender is no guest of this host.
pub const SENDER: &str = "sender";

/// The packet of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TracedPacket {
    pub from: IpAddr,
    pub to: IpAddr,
    pub protocol: TraceProtocol,
    /// The destination port of TCP and UDP; 0 for the other protocols.
    pub port: u16,
    /// The type of ICMP and ICMPv6. None: an echo request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub icmp_type: Option<u8>,
}

/// The protocol of a traced packet. `Icmp` and `Icmpv6` are queries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TraceProtocol {
    #[default]
    Tcp,
    Udp,
    Icmp,
    Icmpv6,
}

impl TraceProtocol {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Icmp => "icmp",
            Self::Icmpv6 => "icmpv6",
        }
    }

    pub const fn has_ports(self) -> bool {
        matches!(self, Self::Tcp | Self::Udp)
    }
}

/// The steps of a packet on one host, in order, and how they end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trace {
    pub steps: Vec<TraceStep>,
    pub end: TraceEnd,
}

/// A place that the packet comes to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceStep {
    /// A few words: `source check`.
    pub place: String,
    pub result: StepResult,
    /// The object that the decision follows from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<TraceObject>,
    /// A sentence without its full stop; empty if there is nothing to add.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

/// The result of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum StepResult {
    Passed,
    /// It passes with another address or port.
    Rewritten,
    Dropped,
    /// Its sender gets an error.
    Rejected,
    /// The result is not known.
    NotEvaluated,
    /// A remark that decides nothing.
    Note,
}

/// The origin of a decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "kind")]
pub enum TraceObject {
    /// A rule of a group; without one, the group allows everything in this direction.
    SecurityGroup {
        name: String,
        direction: TraceDirection,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rule: Option<TracedRule>,
    },
    /// All groups of an interface: none of them has a rule for the packet.
    SecurityGroups {
        names: Vec<String>,
        direction: TraceDirection,
    },
    /// By its bridge on the host, and by its name in answers to clients.
    Network {
        name: String,
    },
    /// By its tap on the host, and by VM and interface in answers to clients.
    Interface {
        name: String,
    },
    PublicAddress {
        address: IpAddr,
    },
    Host,
    /// A program that is not berth.
    OtherProgram,
}

/// A rule of a group by its number, from 1, and its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TracedRule {
    pub number: usize,
    pub name: String,
}

/// The direction of a group's rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum TraceDirection {
    Ingress,
    Egress,
}

/// The end of a packet's way on one host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "kind")]
pub enum TraceEnd {
    /// A guest of this host gets it.
    Guest {
        interface: String,
        packet: TracedPacket,
    },
    /// The host itself gets it.
    Host,
    /// It leaves by an interface of the host.
    Outside {
        interface: String,
        packet: TracedPacket,
    },
    /// It leaves by the tunnel of a network to its part on other hosts.
    Tunnel {
        network: String,
        packet: TracedPacket,
    },
    Dropped,
    Rejected,
    /// A step was not evaluated.
    Undecided,
}
