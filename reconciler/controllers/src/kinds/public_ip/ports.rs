//! The ports of an address: declared ones, and those that are given out to entries without one. Pure.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::{PortProtocol, PublicIP, PublicIPPort};

/// Returns the port of each entry, by its name. An entry without a declared port keeps the one that the status has under its name
/// and protocol, else it gets the lowest free one of the range; it is left out if there is none.
pub(super) fn assign(ip: &PublicIP) -> BTreeMap<&str, i64> {
    let mut assigned = BTreeMap::new();
    let mut taken: BTreeSet<(PortProtocol, i64)> = BTreeSet::new();
    for entry in &ip.spec.ports {
        if let Some(port) = entry.port {
            taken.insert((entry.protocol, port));
            assigned.insert(entry.name.as_str(), port);
        }
    }
    let without_port = || ip.spec.ports.iter().filter(|entry| entry.port.is_none());
    // Those that have one come first: a new entry, wherever it is in the list, gets none of theirs.
    for entry in without_port() {
        if let Some(port) = ip.port_of(entry)
            && taken.insert((entry.protocol, port))
        {
            assigned.insert(entry.name.as_str(), port);
        }
    }
    for entry in without_port() {
        if assigned.contains_key(entry.name.as_str()) {
            continue;
        }
        let free = ip.spec.port_range().find(|port| !taken.contains(&(entry.protocol, *port)));
        if let Some(port) = free {
            taken.insert((entry.protocol, port));
            assigned.insert(entry.name.as_str(), port);
        }
    }
    assigned
}

/// Returns why entries have no port, for people; None if all have one.
pub(super) fn shortage(ip: &PublicIP, assigned: &BTreeMap<&str, i64>) -> Option<String> {
    let text = |entry: &PublicIPPort| {
        format!("{name} ({protocol})", name = entry.name, protocol = entry.protocol.as_str())
    };
    let lacking = ip.spec.ports.iter().filter(|entry| !assigned.contains_key(entry.name.as_str()));
    let lacking: Vec<String> = lacking.map(text).collect();
    let range = ip.spec.port_range();
    (!lacking.is_empty()).then(|| {
        format!(
            "no port of {first}-{last} is free for {lacking}: enlarge portRange, declare a port, or take out another entry",
            first = range.start(),
            last = range.end(),
            lacking = lacking.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn entry(name: &str, more: &Value) -> Value {
        let mut entry = json!({"name": name, "targetPort": 22, "targets": ["web-1"]});
        for (key, value) in more.as_object().into_iter().flatten() {
            entry[key] = value.clone();
        }
        entry
    }

    fn ip(range: &str, entries: &[Value]) -> PublicIP {
        serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "PublicIP", "metadata": {"name": "web", "namespace": "ns"},
            "spec": {"portRange": range, "ports": entries}, "status": {"address": "192.0.2.8"},
        }))
        .expect("a PublicIP")
    }

    /// The PublicIP with these entries, and with the ports of another one in its status.
    fn changed(before: &PublicIP, range: &str, entries: &[Value]) -> PublicIP {
        let mut ip = ip(range, entries);
        let given = assign(before);
        let protocol =
            |name: &str| before.spec.ports.iter().find(|e| e.name.as_str() == name).map(|e| e.protocol);
        let ports = given.iter().map(|(name, port)| berth_api::public_ip::PortStatus {
            name: (*name).to_owned(),
            port: Some(*port),
            protocol: protocol(name).unwrap_or_default(),
            ..Default::default()
        });
        ip.status.get_or_insert_default().ports = ports.collect();
        ip
    }

    fn none() -> Value {
        json!({})
    }

    #[test]
    fn an_entry_without_a_port_gets_the_lowest_that_no_other_entry_declares() {
        let udp = json!({"protocol": "udp"});
        let entries = [
            entry("ssh", &none()),
            entry("vnc", &none()),
            entry("web", &json!({"port": 100})),
            entry("dns", &udp),
        ];
        let ip = ip("100-110", &entries);
        let expected = BTreeMap::from([("dns", 100), ("ssh", 101), ("vnc", 102), ("web", 100)]);
        assert_eq!(assign(&ip), expected, "a port of udp is another port");
        assert_eq!(shortage(&ip, &expected), None);
    }

    #[test]
    fn neither_new_nor_reordered_nor_removed_entries_move_a_port() {
        let before = ip("100-110", &[entry("a", &none()), entry("b", &none()), entry("c", &none())]);
        let entries = [entry("new", &none()), entry("c", &none()), entry("b", &none())];
        let after = changed(&before, "100-110", &entries);
        assert_eq!(assign(&after), BTreeMap::from([("b", 101), ("c", 102), ("new", 100)]));
        let moved = changed(&before, "200-201", &entries);
        assert_eq!(
            assign(&moved),
            BTreeMap::from([("b", 101), ("c", 102), ("new", 200)]),
            "another range is for new entries"
        );
    }

    #[test]
    fn a_declared_port_is_kept_when_the_declaration_is_left_out() {
        let before = ip("100-110", &[entry("a", &json!({"port": 2222}))]);
        let after = changed(&before, "100-110", &[entry("a", &none())]);
        assert_eq!(assign(&after), BTreeMap::from([("a", 2222)]));
    }

    #[test]
    fn a_port_that_another_entry_declares_is_given_up() {
        let before = ip("100-110", &[entry("a", &none())]);
        let after = changed(&before, "100-110", &[entry("a", &none()), entry("b", &json!({"port": 100}))]);
        assert_eq!(assign(&after), BTreeMap::from([("a", 101), ("b", 100)]));
    }

    #[test]
    fn entries_beyond_the_range_have_no_port_and_are_named() {
        let entries = [entry("a", &none()), entry("b", &none()), entry("c", &json!({"protocol": "udp"}))];
        let ip = ip("100-100", &entries);
        let assigned = assign(&ip);
        assert_eq!(assigned, BTreeMap::from([("a", 100), ("c", 100)]));
        let text = shortage(&ip, &assigned).expect("one lacks");
        assert!(text.starts_with("no port of 100-100 is free for b (tcp):"), "{text}");
    }
}
