//! `berth_security_group`

use berth_api::{RuleProtocol, security_group::IcmpType};
use tfplugin6::{AttributePath, Diagnostic, Value};

use crate::{
    field::{Field, Presence, Shape},
    form::Form,
    kind::{KindInfo, ResourceKind},
};

/// A packet filter of network interfaces.
#[derive(Debug)]
pub struct SecurityGroup;

fn rules(name: &'static str) -> Field {
    let fields = vec![
        Field::spec("name", Shape::Text(Form::Name))
            .presence(Presence::Numbered("rule"))
            .text("Name of the rule within its list, for people. Default `rule0`, `rule1`, … by position."),
        Field::spec("protocol", Shape::Text(Form::Any)).default("any"),
        Field::spec("ports", Shape::TextList(Form::Ports)),
        Field::spec("icmp_types", Shape::TextList(Form::Any)),
        Field::spec("cidrs", Shape::TextList(Form::IpRange)),
        Field::spec("security_groups", Shape::TextList(Form::Name)),
    ];
    Field::spec(name, Shape::Keyed(fields))
}

impl ResourceKind for SecurityGroup {
    fn info(&self) -> KindInfo {
        KindInfo {
            type_name: "berth_security_group",
            kind: "SecurityGroup",
            plural: "securitygroups",
            description: "A stateful packet filter. A VM's network interface names its groups in `security_groups`: it then receives and sends only what a rule of one of them allows, and the answers to that. An interface without a group receives everything from its network and, by its public address, from outside, and sends everything.\n\nA change takes effect on running VMs, on all hosts: an established connection that no rule allows any more is cut, and all others go on. Destroying a group that VMs use is accepted; a finalizer keeps it until no VM uses it. See the page on security groups for what is filtered where.",
            example: include_str!("../../examples/resources/berth_security_group/resource.tf"),
            shown: "status.addresses",
            timeouts: [120, 120, 300],
        }
    }

    fn fields(&self) -> Vec<Field> {
        vec![rules("ingress"), rules("egress")]
    }

    fn check(&self, config: &Value) -> Vec<Diagnostic> {
        ["ingress", "egress"].into_iter().flat_map(|list| check_rules(list, config.get(list))).collect()
    }
}

fn check_rules(list: &str, rules: &Value) -> Vec<Diagnostic> {
    let rules = rules.elements().iter().enumerate();
    rules.flat_map(|(i, rule)| check_rule(&AttributePath::root(list).index(i), rule)).collect()
}

fn check_rule(at: &AttributePath, rule: &Value) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    let is_empty = |name: &str| !rule.get(name).is_unknown() && rule.get(name).elements().is_empty();
    if is_empty("cidrs") && is_empty("security_groups") {
        let path = at.clone().attribute("cidrs");
        let detail = format!(
            "{path}: a rule needs `cidrs` or `security_groups`. For everything, write cidrs = [\"0.0.0.0/0\", \"::/0\"]."
        );
        found.push(Diagnostic::error("A rule without addresses", detail).at(path));
    }
    let protocol = rule.get("protocol").as_str().unwrap_or("any");
    let has_ports = !rule.get("protocol").is_unknown() && !rule.get("ports").elements().is_empty();
    if has_ports && !matches!(protocol, "tcp" | "udp") {
        let path = at.clone().attribute("ports");
        let detail = format!("{path}: ports need `protocol` \"tcp\" or \"udp\", and it is \"{protocol}\".");
        found.push(Diagnostic::error("Ports need the protocol tcp or udp", detail).at(path));
    }
    if !rule.get("protocol").is_unknown() {
        found.extend(check_icmp_types(&at.clone().attribute("icmp_types"), protocol, rule.get("icmp_types")));
    }
    found
}

/// Refuses types that the protocol does not have. Errors and answers are none of them: they need no rule.
fn check_icmp_types(at: &AttributePath, protocol: &str, types: &Value) -> Vec<Diagnostic> {
    let protocol_of_rule = match protocol {
        "icmp" => RuleProtocol::Icmp,
        "icmpv6" => RuleProtocol::Icmpv6,
        _ if types.elements().is_empty() => return Vec::new(),
        _ => {
            let detail =
                format!("{at}: types need `protocol` \"icmp\" or \"icmpv6\", and it is \"{protocol}\".");
            return vec![
                Diagnostic::error("icmp_types need the protocol icmp or icmpv6", detail).at(at.clone()),
            ];
        }
    };
    let known: Vec<&str> = IcmpType::ALL
        .into_iter()
        .filter(|kind| kind.number(protocol_of_rule).is_some())
        .map(IcmpType::as_str)
        .collect();
    let refused = |(i, value): (usize, &Value)| {
        let text = value.as_str().filter(|text| !known.contains(text))?;
        let path = at.clone().index(i);
        let detail = format!(
            "{path}: {text:?} is no query of {protocol}. Use one of {}. Replies, and errors about a connection, need no rule.",
            known.join(", ")
        );
        Some(Diagnostic::error("Invalid icmp_types", detail).at(path))
    };
    types.elements().iter().enumerate().filter_map(refused).collect()
}
