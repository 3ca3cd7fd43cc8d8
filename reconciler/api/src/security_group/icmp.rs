//! The types of ICMP queries.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::RuleProtocol;

/// A query of ICMP or ICMPv6. Other types are answers to these, errors about other connections, or discovery on a link: no rule is
/// needed for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum IcmpType {
    EchoRequest,
    TimestampRequest,
    InfoRequest,
    AddressMaskRequest,
    NodeInformationQuery,
}

impl IcmpType {
    pub const ALL: [Self; 5] = [
        Self::EchoRequest,
        Self::TimestampRequest,
        Self::InfoRequest,
        Self::AddressMaskRequest,
        Self::NodeInformationQuery,
    ];

    /// The name in rules.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::EchoRequest => "echo-request",
            Self::TimestampRequest => "timestamp-request",
            Self::InfoRequest => "info-request",
            Self::AddressMaskRequest => "address-mask-request",
            Self::NodeInformationQuery => "node-information-query",
        }
    }

    /// The number in packets of a protocol. None: the protocol has no such type.
    ///
    /// *Source*: RFC 792, RFC 950, RFC 4443, RFC 4620.
    #[must_use]
    pub const fn number(self, protocol: RuleProtocol) -> Option<u8> {
        match (protocol, self) {
            (RuleProtocol::Icmp, Self::EchoRequest) => Some(8),
            (RuleProtocol::Icmp, Self::TimestampRequest) => Some(13),
            (RuleProtocol::Icmp, Self::InfoRequest) => Some(15),
            (RuleProtocol::Icmp, Self::AddressMaskRequest) => Some(17),
            (RuleProtocol::Icmpv6, Self::EchoRequest) => Some(128),
            (RuleProtocol::Icmpv6, Self::NodeInformationQuery) => Some(139),
            _ => None,
        }
    }
}

impl fmt::Display for IcmpType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for IcmpType {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names = Self::ALL.map(Self::as_str).join(", ");
        let found = Self::ALL.into_iter().find(|each| each.as_str() == text);
        found.ok_or_else(|| format!("{text:?} is no query of ICMP: name one of {names}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_has_one_name_everywhere_and_a_number_in_a_protocol_that_has_it() {
        for each in IcmpType::ALL {
            assert_eq!(serde_json::to_value(each).expect("JSON"), each.as_str());
            assert_eq!(each.as_str().parse(), Ok(each));
            let numbers = [RuleProtocol::Icmp, RuleProtocol::Icmpv6].map(|protocol| each.number(protocol));
            assert!(numbers.iter().flatten().next().is_some(), "{each}");
            assert_eq!(each.number(RuleProtocol::Any), None);
        }
        assert!("destination-unreachable".parse::<IcmpType>().is_err());
        assert_eq!(IcmpType::TimestampRequest.number(RuleProtocol::Icmpv6), None);
    }
}
