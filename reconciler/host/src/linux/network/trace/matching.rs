//! The conditions of berth's rules, for one packet. Pure.
//!
//! Values are compared as the JSON that the rules are written in. A field that the packet does not have, such as the port of an echo
//! request, matches nothing, whatever the operator: nftables adds a condition on the protocol to each such field.

use std::collections::HashMap;
use std::net::IpAddr;

use serde_json::{Value, json};

use crate::{TraceProtocol, TracedPacket};

/// A source port that no rule names.
const SOURCE_PORT: u16 = 50_000;

/// A packet at one place of its way.
#[derive(Clone, Debug)]
pub(super) struct Frame {
    /// The interface it came by; empty for one of the host itself.
    pub(super) by: String,
    /// The interface it leaves by; empty before that is decided.
    pub(super) leaves_by: String,
    /// The MAC address of its sender, where a guest of this host sends it; empty for one that no rule names.
    pub(super) mac: String,
    pub(super) now: TracedPacket,
    /// As it opened the connection, before translation.
    pub(super) opened: TracedPacket,
    /// The guest that is chosen among several that a public address leads to.
    pub(super) preferred: Option<IpAddr>,
}

/// The sets and maps of the tables.
#[derive(Debug, Default)]
pub(super) struct Sets {
    elements: HashMap<(String, String), Vec<Value>>,
}

/// A value of a map.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Lookup {
    Missing,
    Found(Value),
    /// One of these, which the packet does not decide.
    OneOf(Vec<String>),
    Unknown,
}

/// The value of a field in a packet.
enum Reading {
    Absent,
    Unknown,
    /// In each of its notations.
    Known(Vec<Value>),
}

impl Reading {
    fn of(value: impl Into<Value>) -> Self {
        Self::Known(vec![value.into()])
    }
}

impl Sets {
    pub(super) fn add(&mut self, family: &str, name: &str, elements: &Value) {
        let elements = elements.as_array().cloned().unwrap_or_default();
        self.elements.insert((family.to_owned(), name.to_owned()), elements);
    }

    fn named(&self, family: &str, reference: &str) -> Option<&[Value]> {
        let name = reference.strip_prefix('@')?;
        self.elements.get(&(family.to_owned(), name.to_owned())).map(Vec::as_slice)
    }

    /// Returns whether a `match` expression applies. None: that is not known.
    pub(super) fn applies(&self, family: &str, condition: &Value, frame: &Frame) -> Option<bool> {
        let values = match frame.read(&condition["left"]) {
            Reading::Absent => return Some(false),
            Reading::Unknown => return None,
            Reading::Known(values) => values,
        };
        let right = &condition["right"];
        let mut is_equal = Some(false);
        for value in &values {
            match self.compare(family, value, right) {
                Some(true) => {
                    is_equal = Some(true);
                    break;
                }
                Some(false) => {}
                None => is_equal = None,
            }
        }
        match condition["op"].as_str() {
            Some("==" | "in") => is_equal,
            Some("!=") => is_equal.map(|is_equal| !is_equal),
            _ => None,
        }
    }

    /// Returns the value of a map for the packet: `key` and `data` of a `map` or `vmap` expression.
    pub(super) fn look_up(&self, family: &str, map: &Value, frame: &Frame) -> Lookup {
        let named = map["data"].as_str().and_then(|reference| self.named(family, reference));
        let Some(elements) = named.or_else(|| map["data"]["set"].as_array().map(Vec::as_slice)) else {
            return Lookup::Unknown;
        };
        let key = &map["key"];
        if key.get("numgen").is_some() || key.get("jhash").is_some() {
            let mut targets: Vec<String> =
                elements.iter().filter_map(|pair| pair[1].as_str()).map(str::to_owned).collect();
            targets.sort();
            targets.dedup();
            return if targets.is_empty() { Lookup::Missing } else { Lookup::OneOf(targets) };
        }
        let values = match frame.read(key) {
            Reading::Absent => return Lookup::Missing,
            Reading::Unknown => return Lookup::Unknown,
            Reading::Known(values) => values,
        };
        let found = elements.iter().find(|pair| values.iter().any(|value| pair[0] == *value));
        found.map_or(Lookup::Missing, |pair| Lookup::Found(pair[1].clone()))
    }

    /// Compares a value with the right side of a condition: whether it is that, or part of it. None: that side is in no known notation.
    fn compare(&self, family: &str, value: &Value, right: &Value) -> Option<bool> {
        let of_all = |elements: &[Value]| {
            let mut found = Some(false);
            for element in elements {
                match self.compare(family, value, element) {
                    Some(true) => return Some(true),
                    Some(false) => {}
                    None => found = None,
                }
            }
            found
        };
        match right {
            Value::String(text) if text.starts_with('@') => of_all(self.named(family, text)?),
            Value::String(text) if text.ends_with('*') => {
                Some(value.as_str()?.starts_with(text.trim_end_matches('*')))
            }
            Value::String(_) | Value::Number(_) | Value::Bool(_) => Some(value == right),
            Value::Array(elements) => of_all(elements),
            Value::Object(_) => {
                if let Some(elements) = right["set"].as_array() {
                    of_all(elements)
                } else if let Some(range) = right["range"].as_array() {
                    between(value, range)
                } else if right["prefix"].is_object() {
                    in_prefix(value, &right["prefix"])
                } else {
                    let (own, parts) = (value["concat"].as_array()?, right["concat"].as_array()?);
                    let mut all = Some(own.len() == parts.len());
                    for (own, part) in own.iter().zip(parts) {
                        match self.compare(family, own, part) {
                            Some(true) => {}
                            Some(false) => return Some(false),
                            None => all = None,
                        }
                    }
                    all
                }
            }
            Value::Null => None,
        }
    }
}

fn between(value: &Value, range: &[Value]) -> Option<bool> {
    let [first, last] = range else { return None };
    if let (Some(number), Some(first), Some(last)) = (value.as_u64(), first.as_u64(), last.as_u64()) {
        return Some((first..=last).contains(&number));
    }
    let (address, first, last) = (address(value)?, address(first)?, address(last)?);
    Some(address.is_ipv4() == first.is_ipv4() && (first..=last).contains(&address))
}

fn in_prefix(value: &Value, prefix: &Value) -> Option<bool> {
    let length = u8::try_from(prefix["len"].as_u64()?).ok()?;
    let range = ipnet::IpNet::new(address(&prefix["addr"])?, length).ok()?;
    Some(range.contains(&address(value)?))
}

fn address(value: &Value) -> Option<IpAddr> {
    value.as_str()?.parse().ok()
}

/// The type of a query, which rules name by its number, or an echo request also by its name.
fn icmp_type(of_packet: Option<u8>, echo_request: u8) -> Reading {
    match of_packet.filter(|own| *own != echo_request) {
        Some(own) => Reading::of(own),
        None => Reading::Known(vec![json!("echo-request"), json!(echo_request)]),
    }
}

impl Frame {
    /// Whether its destination was translated.
    fn is_translated(&self) -> bool {
        (self.now.to, self.now.port) != (self.opened.to, self.opened.port)
    }

    fn read(&self, left: &Value) -> Reading {
        if let Some(parts) = left.get("concat").and_then(Value::as_array) {
            let mut all = Vec::new();
            for part in parts {
                match self.read(part) {
                    Reading::Known(values) => all.extend(values.into_iter().next()),
                    other => return other,
                }
            }
            return Reading::Known(vec![json!({"concat": all})]);
        }
        if let Some(meta) = left.get("meta") {
            return self.meta(meta["key"].as_str().unwrap_or_default());
        }
        if let Some(ct) = left.get("ct") {
            return self.connection(ct);
        }
        if let Some(payload) = left.get("payload") {
            let part = |key: &str| payload[key].as_str().unwrap_or_default();
            return self.payload(part("protocol"), part("field"));
        }
        if let Some([field, _]) = left.get("&").and_then(Value::as_array).map(Vec::as_slice) {
            // It is no fragment, whatever the mask is.
            return match self.read(field) {
                Reading::Known(_) if field["payload"]["field"] == "frag-off" => Reading::of(0),
                Reading::Absent => Reading::Absent,
                _ => Reading::Unknown,
            };
        }
        match left.get("exthdr") {
            Some(_) => Reading::of(false),
            None => Reading::Unknown,
        }
    }

    fn meta(&self, key: &str) -> Reading {
        match key {
            "iifname" => Reading::of(self.by.as_str()),
            "oifname" => Reading::of(self.leaves_by.as_str()),
            "nfproto" => Reading::of(if self.now.to.is_ipv4() { "ipv4" } else { "ipv6" }),
            "l4proto" => {
                let (name, number) = match self.now.protocol {
                    TraceProtocol::Tcp => ("tcp", 6),
                    TraceProtocol::Udp => ("udp", 17),
                    TraceProtocol::Icmp => ("icmp", 1),
                    TraceProtocol::Icmpv6 => ("ipv6-icmp", 58),
                };
                Reading::Known(vec![json!(name), json!(number)])
            }
            _ => Reading::Unknown,
        }
    }

    /// The connection that the packet opens.
    fn connection(&self, ct: &Value) -> Reading {
        let family = if self.now.to.is_ipv4() { "ip" } else { "ip6" };
        let (key, direction) = (ct["key"].as_str().unwrap_or_default(), ct["dir"].as_str());
        let of_address = |wanted: &str, address: IpAddr| match wanted == family {
            true => Reading::of(address.to_string()),
            false => Reading::Absent,
        };
        match (key.split_once(' '), direction) {
            (None, None) if key == "state" => Reading::of("new"),
            (None, None) if key == "status" => match self.is_translated() {
                true => Reading::of("dnat"),
                false => Reading::Known(Vec::new()),
            },
            (Some((wanted, "saddr")), Some("original")) => of_address(wanted, self.opened.from),
            (Some((wanted, "daddr")), Some("original")) => of_address(wanted, self.opened.to),
            (Some((wanted, "saddr")), Some("reply")) => of_address(wanted, self.now.to),
            (None, Some("reply")) if key == "proto-src" => match self.now.protocol.has_ports() {
                true => Reading::of(self.now.port),
                false => Reading::Absent,
            },
            _ => Reading::Unknown,
        }
    }

    fn payload(&self, protocol: &str, field: &str) -> Reading {
        let packet = self.now;
        let is_v4 = packet.to.is_ipv4();
        let is_of = match protocol {
            "ether" => true,
            // It is no question for an address, and has no tag.
            "arp" | "vlan" => false,
            "ip" => is_v4,
            "ip6" => !is_v4,
            "tcp" | "udp" | "icmp" | "icmpv6" => packet.protocol.as_str() == protocol,
            _ => return Reading::Unknown,
        };
        if !is_of {
            return Reading::Absent;
        }
        match (protocol, field) {
            ("ether", "type") => Reading::of(if is_v4 { "ip" } else { "ip6" }),
            ("ether", "saddr") => Reading::of(self.mac.as_str()),
            // That of a guest: rules name the gateway's only, which is no frame's between guests.
            ("ether", "daddr") => Reading::of(""),
            ("ip" | "ip6", "saddr") => Reading::of(packet.from.to_string()),
            ("ip" | "ip6", "daddr") => Reading::of(packet.to.to_string()),
            ("ip", "frag-off") => Reading::of(0),
            ("tcp" | "udp", "dport") => Reading::of(packet.port),
            ("tcp" | "udp", "sport") => Reading::of(SOURCE_PORT),
            ("icmp", "type") => icmp_type(packet.icmp_type, 8),
            ("icmpv6", "type") => icmp_type(packet.icmp_type, 128),
            _ => Reading::Unknown,
        }
    }
}
