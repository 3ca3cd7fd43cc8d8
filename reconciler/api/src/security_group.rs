//! SecurityGroup: the packets that network interfaces of VMs may receive and send.

mod icmp;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Conditions, ObjectUser, ResourceName};

pub use icmp::IcmpType;

/// A stateful packet filter for network interfaces of VMs. An interface names its groups in `securityGroups`; it may receive and
/// send what one of them allows, and the answers to that.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "berth.dev",
    version = "v1alpha1",
    kind = "SecurityGroup",
    plural = "securitygroups",
    singular = "securitygroup",
    shortname = "sg",
    namespaced,
    status = "SecurityGroupStatus",
    derive = "PartialEq",
    category = "berth",
    doc = "A stateful packet filter for network interfaces of VMs.",
    printcolumn(name = "Ready", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "Reason", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].reason"#),
    printcolumn(name = "Used-By", type_ = "string", json_path = ".status.usedBy[*].name"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Message", type_ = "string", priority = 1, json_path = r#".status.conditions[?(@.type=="Ready")].message"#),
    validation = Rule::new("self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')").message("metadata.name must be a DNS label: lower-case letters, digits and '-', at most 63 characters")
)]
#[serde(rename_all = "camelCase")]
pub struct SecurityGroupSpec {
    /// The connections that members accept, keyed by `name`, at most 64. Default: none. Applied live: an established connection
    /// that no rule allows any more is cut, all others go on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    #[schemars(length(max = 64))]
    pub ingress: Vec<SecurityRule>,
    /// The connections that members open, at most 64. Default: all. An empty list: none. The host's own DHCP and
    /// DNS at the gateway always answer. Applied live, as for `ingress`.
    // Atomic: the list is removed when a manager no longer applies it; one merged by name would stay, empty, and allow nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    #[schemars(length(max = 64))]
    pub egress: Option<Vec<SecurityRule>>,
}

/// Connections that are allowed: those of one protocol, to certain ports, with certain addresses at the other end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.ports) || self.ports.size() == 0 || self.protocol == 'tcp' || self.protocol == 'udp'").message("ports need the protocol tcp or udp").field_path(".ports"),
    validation = Rule::new("!has(self.icmpTypes) || self.icmpTypes.size() == 0 || self.protocol == 'icmp' || self.protocol == 'icmpv6'").message("icmpTypes need the protocol icmp or icmpv6").field_path(".icmpTypes"),
    validation = Rule::new("!has(self.icmpTypes) || self.protocol != 'icmp' || self.icmpTypes.all(t, t != 'node-information-query')").message("icmp has no type node-information-query, which is of icmpv6").field_path(".icmpTypes"),
    validation = Rule::new("!has(self.icmpTypes) || self.protocol != 'icmpv6' || self.icmpTypes.all(t, t == 'echo-request' || t == 'node-information-query')").message("icmpv6 has the types echo-request and node-information-query only").field_path(".icmpTypes"),
    validation = Rule::new("(has(self.cidrs) && self.cidrs.size() > 0) || (has(self.securityGroups) && self.securityGroups.size() > 0)").message("a rule needs cidrs or securityGroups: for everything, write cidrs 0.0.0.0/0 and ::/0").field_path(".cidrs")
)]
pub struct SecurityRule {
    /// Name of the rule within its list, the key of the list, for example `https`.
    pub name: ResourceName,
    /// `tcp`, `udp`, `icmp`, `icmpv6` or `any`. Default `any`.
    #[serde(default)]
    pub protocol: RuleProtocol,
    /// Destination ports and ranges of ports, for example `443` or `8000-8099`, at most 32. Default: all. Only for `tcp` and `udp`.
    /// Of a packet to a public address, the port of the VM counts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(max = 11)))]
    #[x_kube(validation = Rule::new("self.all(p, p.matches('^[1-9][0-9]{0,4}(-[1-9][0-9]{0,4})?$') && p.split('-').all(n, int(n) <= 65535) && int(p.split('-')[0]) <= int(p.split('-')[p.split('-').size() - 1]))").message("each of the ports must be a number from 1 to 65535 or a range such as 8000-8099"))]
    pub ports: Vec<String>,
    /// Types of ICMP queries: of `icmp`, `echo-request` (ping), `timestamp-request`, `info-request` and `address-mask-request`; of
    /// `icmpv6`, `echo-request` and `node-information-query`. Their answers pass with them, and errors with the connection that they are
    /// about. Default: all of them. Only for `icmp` and `icmpv6`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4))]
    #[x_kube(validation = Rule::new("self.all(t, self.filter(u, u == t).size() == 1)").message("a type can be named once"))]
    pub icmp_types: Vec<IcmpType>,
    /// Ranges of IPv4 and IPv6 addresses at the other end, for example `192.0.2.0/24` or `203.0.113.7/32`, at most 64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 43)))]
    #[x_kube(validation = Rule::new("self.all(c, isCIDR(c) && cidr(c).masked() == cidr(c))").message("each of the cidrs must be a range such as 192.0.2.0/24 or fd00::/8, with no host bits set; a single address ends with /32 or /128"))]
    pub cidrs: Vec<String>,
    /// Names of SecurityGroups of the same namespace, at most 16: the addresses of their members count, on all hosts, as they come
    /// and go. The group itself may be among them: its members then reach each other. One that does not exist has no members.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub security_groups: Vec<ResourceName>,
}

/// The protocol of a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum RuleProtocol {
    Tcp,
    Udp,
    Icmp,
    Icmpv6,
    #[default]
    Any,
}

/// The observed state of a SecurityGroup. Written by the controllers only.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecurityGroupStatus {
    /// The generation that these conditions describe; -1 before the first report.
    #[serde(default = "crate::condition::never_observed")]
    pub observed_generation: i64,
    /// `Ready`: hosts have the rules and apply them. The message names groups of its rules that do not exist.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::condition::schema")]
    pub conditions: Conditions,
    /// The private IPv4 addresses of its members, as ranges such as `10.64.0.2-10.64.0.9`, for the hosts. Empty while no rule of a
    /// group in the namespace names it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16_384), inner(length(max = 31)))]
    pub addresses: Vec<String>,
    /// Their IPv6 addresses, as ranges such as `fd00:60::2-fd00:60::9`, for the hosts.
    #[serde(default, skip_serializing_if = "Vec::is_empty", rename = "ipv6Addresses")]
    #[schemars(length(max = 16_384), inner(length(max = 79)))]
    pub ipv6_addresses: Vec<String>,
    /// At most four of the VMs with an interface that names it. A deleted SecurityGroup stays until there is none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub used_by: Vec<ObjectUser>,
}

/// The maximum number of ranges in `status.addresses`, and in `status.ipv6Addresses`.
pub const MOST_RANGES: usize = 16_384;

impl SecurityGroupSpec {
    /// Returns the names of the groups that its rules name, in order and without repetition.
    pub fn named_groups(&self) -> Vec<&str> {
        let rules = self.ingress.iter().chain(self.egress.iter().flatten());
        let mut names: Vec<&str> = rules.flat_map(|rule| &rule.security_groups).map(|g| g.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

/// Parses a port or a range of ports, such as `443` or `8000-8099`.
pub fn port_range(text: &str) -> Option<(u16, u16)> {
    let number = |text: &str| {
        let is_number =
            !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) && !text.starts_with('0');
        text.parse::<u16>().ok().filter(|_| is_number)
    };
    let (first, last) = match text.split_once('-') {
        Some((first, last)) => (number(first)?, number(last)?),
        None => (number(text)?, number(text)?),
    };
    (first <= last).then_some((first, last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_a_number_or_a_range_in_order() {
        assert_eq!(port_range("443"), Some((443, 443)));
        assert_eq!(port_range("8000-8099"), Some((8000, 8099)));
        for bad in ["", "0", "065", "65536", "9-8", "1-", "-1", "1-2-3", "http", "+1"] {
            assert_eq!(port_range(bad), None, "{bad}");
        }
    }

    #[test]
    fn an_absent_egress_is_not_an_empty_one() {
        let spec = |text| serde_json::from_str::<SecurityGroupSpec>(text).expect("a spec");
        assert_eq!(spec("{}").egress, None);
        let none = spec(r#"{"egress": []}"#);
        assert_eq!(none.egress, Some(Vec::new()));
        assert_eq!(serde_json::to_string(&none).expect("JSON"), r#"{"egress":[]}"#);
    }
}
