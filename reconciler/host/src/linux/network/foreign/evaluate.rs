//! The rules of other programs, for one packet from a guest to the host. Pure.
//!
//! A condition that is not known here may apply or not. A packet counts as dropped only if no rule may accept it, so that a firewall
//! that is understood in part causes no false alarm.

use std::cell::Cell;
use std::collections::HashMap;

use ipnet::IpNet;
use serde_json::{Value, json};

use super::service::Service;
use super::text;

/// Rules that are evaluated for one packet and one chain.
const MOST_RULES: usize = 20_000;
/// Chains that lead into each other; the kernel allows 16.
const MOST_JUMPS: usize = 16;
/// Targets of iptables after which a packet goes on to the next rule.
const PASSING: [&str; 8] = ["LOG", "NFLOG", "MARK", "CONNMARK", "TCPMSS", "TRACE", "CLASSIFY", "SECMARK"];

/// The rules of all chains.
#[derive(Debug)]
pub(super) struct Rules<'a> {
    chains: HashMap<[&'a str; 3], Vec<&'a Value>>,
}

/// The ends that a packet may come to.
#[derive(Clone, Copy, Debug, Default)]
struct Ends {
    accepted: bool,
    dropped: bool,
    /// It goes on with the next rule.
    next: bool,
    /// It goes on after the rule that led to this chain.
    returned: bool,
}

impl Ends {
    const ANY: Self = Self { accepted: true, dropped: true, next: true, returned: false };
    const NEXT: Self = Self { accepted: false, dropped: false, next: true, returned: false };
    const ACCEPTED: Self = Self { accepted: true, dropped: false, next: false, returned: false };
    const DROPPED: Self = Self { accepted: false, dropped: true, next: false, returned: false };
    const RETURNED: Self = Self { accepted: false, dropped: false, next: false, returned: true };

    fn or(self, other: Self) -> Self {
        Self {
            accepted: self.accepted || other.accepted,
            dropped: self.dropped || other.dropped,
            next: self.next || other.next,
            returned: self.returned || other.returned,
        }
    }
}

/// A packet on its way through the chains of a table.
#[derive(Debug)]
struct Way<'a> {
    family: &'a str,
    table: &'a str,
    service: Service,
    by: &'a str,
    /// Rules that may still be evaluated.
    left: Cell<usize>,
}

/// The value of a field in a packet.
enum Reading {
    /// The packet has no such field, and no condition on it applies.
    Absent,
    Unknown,
    /// In each of its notations.
    Known(Vec<Value>),
}

impl<'a> Rules<'a> {
    pub(super) fn of(items: &'a [Value]) -> Self {
        let mut chains: HashMap<[&str; 3], Vec<&Value>> = HashMap::new();
        for rule in items.iter().filter_map(|item| item.get("rule")) {
            let key = ["family", "table", "chain"].map(|key| text(&rule[key]));
            chains.entry(key).or_default().push(&rule["expr"]);
        }
        Self { chains }
    }

    /// Whether this chain of a hook drops the packet for certain.
    pub(super) fn is_dropped(&self, chain: &Value, service: Service, by: &str) -> bool {
        let way = Way {
            family: text(&chain["family"]),
            table: text(&chain["table"]),
            service,
            by,
            left: Cell::new(MOST_RULES),
        };
        let ends = self.walk(text(&chain["name"]), &way, 0);
        let is_dropped_last = ends.next && chain["policy"] == "drop";
        let may_pass = ends.accepted || (ends.next && !is_dropped_last);
        !may_pass && (ends.dropped || is_dropped_last)
    }

    /// Returns the ends in a chain; a return counts as one that goes on.
    fn walk(&self, chain: &str, way: &Way<'_>, depth: usize) -> Ends {
        if depth > MOST_JUMPS {
            return Ends::ANY;
        }
        let mut all = Ends::default();
        for rule in self.chains.get(&[way.family, way.table, chain]).into_iter().flatten() {
            let Some(left) = way.left.get().checked_sub(1) else { return Ends::ANY };
            way.left.set(left);
            let ends = self.rule(rule, way, depth);
            all = all.or(Ends { next: false, ..ends });
            if !ends.next {
                return Ends { next: all.returned, returned: false, ..all };
            }
        }
        Ends { next: true, returned: false, ..all }
    }

    fn rule(&self, rule: &Value, way: &Way<'_>, depth: usize) -> Ends {
        let expressions = rule.as_array().map(Vec::as_slice).unwrap_or_default();
        // A condition on the state of connections alone is that of their later packets.
        let conditions = expressions.iter().filter(|e| e.get("match").is_some() || is_xt(e, "match"));
        let is_alone = conditions.filter(|e| !is_xt_named(e, "comment")).count() == 1;
        let mut is_certain = true;
        for expression in expressions {
            let ends = match self.expression(expression, is_alone, way, depth) {
                Step::Missed => return Ends::NEXT,
                Step::Certain => continue,
                Step::Possible => {
                    is_certain = false;
                    continue;
                }
                Step::Ended(ends) => ends,
            };
            return if is_certain { ends } else { ends.or(Ends::NEXT) };
        }
        Ends::NEXT
    }

    fn expression(&self, expression: &Value, is_alone: bool, way: &Way<'_>, depth: usize) -> Step {
        let Some((kind, value)) = expression.as_object().and_then(|fields| fields.iter().next()) else {
            // A condition that nftables prints as text only.
            return Step::Possible;
        };
        match kind.as_str() {
            "match" => match applies(value, way) {
                Some(true) => Step::Certain,
                Some(false) => Step::Missed,
                None => Step::Possible,
            },
            "xt" => match (text(&value["type"]), text(&value["name"])) {
                ("match", "comment") => Step::Certain,
                ("match", "conntrack" | "state") if is_alone => Step::Missed,
                ("target", "REJECT") => Step::Ended(Ends::DROPPED),
                ("target", name) if PASSING.contains(&name) => Step::Certain,
                ("target", _) => Step::Ended(Ends::ANY),
                _ => Step::Possible,
            },
            "counter" | "log" | "mangle" | "notrack" | "set" | "ct helper" | "ct timeout" => Step::Certain,
            "limit" | "quota" | "ct count" => Step::Possible,
            "vmap" => Step::Ended(self.mapped(value, way, depth)),
            _ => self.verdict(kind, value, way, depth).map_or(Step::Ended(Ends::ANY), Step::Ended),
        }
    }

    /// Returns the ends of a verdict. None: it is in no known notation.
    fn verdict(&self, kind: &str, value: &Value, way: &Way<'_>, depth: usize) -> Option<Ends> {
        let target = || self.walk(text(&value["target"]), way, depth + 1);
        Some(match kind {
            "accept" => Ends::ACCEPTED,
            "drop" | "reject" => Ends::DROPPED,
            "return" => Ends::RETURNED,
            "continue" => Ends::NEXT,
            "jump" => target(),
            // After the other chain, the packet does not come back to this one.
            "goto" => {
                let ends = target();
                Ends { returned: ends.next, next: false, ..ends }
            }
            _ => return None,
        })
    }

    /// Returns the ends by a map of verdicts.
    fn mapped(&self, map: &Value, way: &Way<'_>, depth: usize) -> Ends {
        let Some(elements) = map["data"]["set"].as_array() else { return Ends::ANY };
        let mut possible = Ends::default();
        let reading = read(&map["key"], way);
        for pair in elements {
            let is_hit = match &reading {
                Reading::Absent => Some(false),
                Reading::Unknown => None,
                Reading::Known(values) => is_one_of(values, &pair[0]),
            };
            if is_hit == Some(false) {
                continue;
            }
            let verdict = pair[1].as_object().and_then(|fields| fields.iter().next());
            let ends = verdict.and_then(|(kind, value)| self.verdict(kind, value, way, depth));
            possible = possible.or(ends.unwrap_or(Ends::ANY));
            if is_hit == Some(true) {
                return possible;
            }
        }
        possible.or(Ends::NEXT)
    }
}

/// The effect of one expression of a rule.
enum Step {
    /// The rule does not apply.
    Missed,
    /// The rule goes on.
    Certain,
    /// The rule goes on if this condition applies, which is not known.
    Possible,
    Ended(Ends),
}

fn is_xt(expression: &Value, kind: &str) -> bool {
    expression["xt"]["type"] == kind
}

fn is_xt_named(expression: &Value, name: &str) -> bool {
    expression["xt"]["name"] == name
}

/// Whether a condition applies. None: that is not known.
fn applies(condition: &Value, way: &Way<'_>) -> Option<bool> {
    let values = match read(&condition["left"], way) {
        Reading::Absent => return Some(false),
        Reading::Unknown => return None,
        Reading::Known(values) => values,
    };
    let is_equal = is_one_of(&values, &condition["right"])?;
    match text(&condition["op"]) {
        "==" | "in" => Some(is_equal),
        "!=" => Some(!is_equal),
        _ => None,
    }
}

fn is_one_of(values: &[Value], right: &Value) -> Option<bool> {
    let mut is_equal = Some(false);
    for value in values {
        match compare(value, right) {
            Some(true) => return Some(true),
            Some(false) => {}
            None => is_equal = None,
        }
    }
    is_equal
}

fn compare(value: &Value, right: &Value) -> Option<bool> {
    let of_any = |elements: &[Value]| {
        let mut found = Some(false);
        for element in elements {
            match compare(value, element) {
                Some(true) => return Some(true),
                Some(false) => {}
                None => found = None,
            }
        }
        found
    };
    match right {
        Value::String(name) if name.starts_with('@') => None,
        Value::String(name) if name.ends_with('*') => {
            Some(value.as_str().is_some_and(|value| value.starts_with(name.trim_end_matches('*'))))
        }
        Value::String(_) | Value::Number(_) => Some(value == right),
        Value::Array(elements) => of_any(elements),
        Value::Object(fields) => {
            if let Some(elements) = right["set"].as_array() {
                return of_any(elements);
            }
            if let Some(bounds) = fields.get("range") {
                return Some((bounds[0].as_u64()?..=bounds[1].as_u64()?).contains(&value.as_u64()?));
            }
            let prefix = fields.get("prefix")?;
            let network: IpNet = format!("{}/{}", text(&prefix["addr"]), prefix["len"]).parse().ok()?;
            Some(network.contains(&value.as_str()?.parse::<std::net::IpAddr>().ok()?))
        }
        Value::Null | Value::Bool(_) => None,
    }
}

/// Reads a field of the packet, which opens a connection.
fn read(left: &Value, way: &Way<'_>) -> Reading {
    let known = |values: Value| Reading::Known(values.as_array().cloned().unwrap_or_default());
    let is_ipv6 = way.service.is_ipv6();
    if let Some(key) = left["meta"]["key"].as_str() {
        return match key {
            "iifname" | "iif" => known(json!([way.by])),
            "nfproto" => known(if is_ipv6 { json!(["ipv6", 10]) } else { json!(["ipv4", 2]) }),
            "protocol" => known(if is_ipv6 { json!(["ip6", 0x86dd]) } else { json!(["ip", 0x0800]) }),
            "l4proto" => transport(way.service),
            _ => Reading::Unknown,
        };
    }
    if let Some(key) = left["ct"]["key"].as_str() {
        return match (key, way.service) {
            // The kernel does not track neighbour discovery.
            ("state", Service::Discovery) => known(json!(["untracked", 64])),
            ("state", _) => known(json!(["new", 8])),
            ("status", _) => known(json!([])),
            _ => Reading::Unknown,
        };
    }
    let payload = &left["payload"];
    let (Some(protocol), Some(field)) = (payload["protocol"].as_str(), payload["field"].as_str()) else {
        return Reading::Unknown;
    };
    match (protocol, field) {
        ("udp" | "th", "sport" | "dport") => match way.service.ports() {
            Some((from, _)) if field == "sport" => known(json!([from])),
            Some((_, to)) => known(json!([to])),
            None => Reading::Absent,
        },
        ("udp", _) if way.service.ports().is_some() => Reading::Unknown,
        ("icmpv6", "type") if way.service == Service::Discovery => known(json!(["nd-neighbor-solicit", 135])),
        ("icmpv6", _) if way.service == Service::Discovery => Reading::Unknown,
        ("ip", "protocol") if !is_ipv6 => transport(way.service),
        ("ip6", "nexthdr") if is_ipv6 => transport(way.service),
        // A guest without a lease has no address.
        ("ip", "saddr") if way.service == Service::Dhcp => known(json!(["0.0.0.0"])),
        ("ip6", "hoplimit") if way.service == Service::Discovery => known(json!([255])),
        ("ip", _) if !is_ipv6 => Reading::Unknown,
        ("ip6", _) if is_ipv6 => Reading::Unknown,
        ("ether" | "th", _) => Reading::Unknown,
        _ => Reading::Absent,
    }
}

fn transport(service: Service) -> Reading {
    let notations = match service.ports() {
        Some(_) => vec![json!("udp"), json!(17)],
        None => vec![json!("ipv6-icmp"), json!("icmpv6"), json!(58)],
    };
    Reading::Known(notations)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_dropped(rules: Value, service: Service) -> bool {
        let rule = |expr: &Value| json!({"rule": {"family": "inet", "table": "filter", "chain": "input", "expr": expr}});
        let items: Vec<Value> = rules.as_array().expect("rules").iter().map(rule).collect();
        let chain =
            json!({"family": "inet", "table": "filter", "name": "input", "hook": "input", "policy": "drop"});
        Rules::of(&items).is_dropped(&chain, service, "bth-0a1b2c3d")
    }

    fn condition(left: Value, right: Value) -> Value {
        json!({"match": {"op": "==", "left": left, "right": right}})
    }

    #[test]
    fn a_port_is_accepted_in_each_notation() {
        let port = |protocol: &str| json!({"payload": {"protocol": protocol, "field": "dport"}});
        let accepted = |left: Value, right: Value| {
            !is_dropped(json!([[condition(left, right), {"accept": null}]]), Service::Dhcp)
        };
        assert!(accepted(port("udp"), json!(67)));
        assert!(accepted(port("th"), json!({"set": [53, 67]})));
        assert!(accepted(port("udp"), json!({"set": [22, {"range": [60, 70]}]})));
        assert!(!accepted(port("udp"), json!({"set": [53, {"range": [68, 70]}]})));
        assert!(!accepted(port("tcp"), json!(67)));
        assert!(accepted(port("udp"), json!("@open")), "a set that is not read may have it");
    }

    #[test]
    fn a_map_of_verdicts_decides_by_its_key() {
        let by = |map: Value| {
            let key = json!({"meta": {"key": "iifname"}});
            is_dropped(json!([[{"vmap": {"key": key, "data": {"set": map}}}]]), Service::Dns)
        };
        assert!(!by(json!([["lo", {"accept": null}], ["bth-0a1b2c3d", {"accept": null}]])));
        assert!(by(json!([["lo", {"accept": null}], ["eth0", {"drop": null}]])));
        let state = json!({"ct": {"key": "state"}});
        let usual = json!({"set": [["established", {"accept": null}], ["invalid", {"drop": null}]]});
        assert!(is_dropped(json!([[{"vmap": {"key": state, "data": usual}}]]), Service::Dns));
    }

    #[test]
    fn a_guest_without_an_address_is_in_no_source_range() {
        let source = json!({"payload": {"protocol": "ip", "field": "saddr"}});
        let range = |addr: &str, len: u8| json!({"prefix": {"addr": addr, "len": len}});
        let rules = |range: Value| json!([[condition(source.clone(), range), {"accept": null}]]);
        assert!(is_dropped(rules(range("10.0.0.0", 8)), Service::Dhcp));
        assert!(!is_dropped(rules(range("10.0.0.0", 8)), Service::Dns), "perhaps it is in that one");
        assert!(!is_dropped(rules(range("0.0.0.0", 0)), Service::Dhcp));
    }

    #[test]
    fn chains_that_lead_into_each_other_end() {
        assert!(!is_dropped(json!([[{"jump": {"target": "input"}}]]), Service::Dhcp), "it is not decided");
    }

    #[test]
    fn neighbour_discovery_is_not_tracked() {
        let untracked = condition(json!({"ct": {"key": "state"}}), json!({"set": ["new", "untracked"]}));
        assert!(!is_dropped(json!([[untracked, {"accept": null}]]), Service::Discovery));
        let kind = json!({"payload": {"protocol": "icmpv6", "field": "type"}});
        let solicit = condition(kind, json!({"set": ["nd-neighbor-solicit", "nd-router-advert"]}));
        assert!(!is_dropped(json!([[solicit, {"accept": null}]]), Service::Discovery));
        assert!(is_dropped(json!([]), Service::Discovery));
    }
}
